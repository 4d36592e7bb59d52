# SPDX-License-Identifier: Apache-2.0
"""The row model: known answers, enumerated tables, real attacks, and what is refused."""

import itertools
import math
from fractions import Fraction

import attrs
import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtr
from scipy.stats import binom, norm
from tests.certificate.test_evidence import packed, parts_of, state
from tests.fitting import fitting_value
from tests.row_moments import rows_of

from pufferslice import (
    Certificate,
    FiniteProfile,
    Guarantee,
    Scenario,
    certify_release,
    queries,
    release,
    verify,
    what_if,
)
from pufferslice.audit import audit_release
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.verdict import verdict
from pufferslice.errors import (
    ArgumentError,
    CalibrationError,
    CertificateError,
    ReleaseError,
    ScenarioError,
    TableError,
)
from pufferslice.noise.rows import least_covariance, least_variances
from pufferslice.queries.features import feature_bits
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.rows import Differing, share_differing, size_differing
from pufferslice.sensitivity.person import row_distance
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.sensitivity import distribution_pairs
from pufferslice.sensitivity.whitening import Covariance

GUESS = Guarantee.guess(at_most=0.64)
TABLE = pa.table(
    {
        "ill": ["yes"] * 20 + ["no"] * 30,
        "age": [*range(40, 60), *range(20, 50)],
        "site": ["a", "b"] * 25,
    }
)
QUERY = queries.summary(mean=["age"], rate={"site": "a"}, clip={"age": (0, 100)})


EARLIER = TABLE.slice(0)
"""The same rows in another table: what is computed from them is the same."""


def prevalence(table=TABLE, **options):
    settings = {"column": "ill", "value": "yes", "within": 0.1, "query": QUERY}
    return Scenario.from_prevalence(table, **(settings | options))


def difference_of(scenario):
    return RowDifference.of(*distribution_pairs(scenario))


def user_covariance(certificate):
    """Covariance of the noise in the user's units, from the public statement alone."""
    noise, query = certificate.statement.noise, certificate.statement.scenario.query
    whitening = noise.shape.whitening
    scales = np.array(query.scales)
    inverse = np.eye(len(scales)) if whitening is None else np.linalg.inv(whitening)
    return noise.std**2 * np.outer(scales, scales) * (inverse @ inverse.T)


class TestKnownAnswers:
    @pytest.mark.parametrize(
        ("guess", "expected"),
        [
            (0.55, 0.0631630963737249),
            (0.6, 0.256739018669206),
            (0.64, 0.513970825836408),
            (0.75, 1.81974569247829),
        ],
    )
    def test_mean_square_of_a_guess(self, guess, expected):
        assert Guarantee.guess(at_most=guess).distance_limit == pytest.approx(expected, rel=1e-12)

    def test_least_noise(self):
        moment, limit = (
            np.array([[2.0, 1.0], [1.0, 2.0]]),
            Guarantee.guess(at_most=0.64).distance_limit,
        )
        assert np.trace(least_covariance(moment, limit, np.ones(2))) == pytest.approx(
            14.5224227522858, rel=1e-12
        )
        weighted = least_covariance(moment, limit, np.array([4.0, 1.0]))
        assert 4 * weighted[0, 0] + weighted[1, 1] == pytest.approx(32.936116953190, rel=1e-11)

    def test_two_coins(self):
        # Bernoulli 1/4 and 3/4, n = 100, D = 10: M = 0.002875.
        table = pa.table({"k": ["x"] * 4 + ["y"] * 4, "v": [1, 1, 1, 0, 1, 0, 0, 0]})
        scenario = prevalence(
            table, column="k", value="x", query=queries.summary(rate={"v": 1}), n_rows=100
        )
        difference = difference_of(scenario)
        (scale,) = scenario.query.scales
        assert difference.second_moments[0][0, 0] * scale**2 == pytest.approx(0.002875, rel=1e-6)
        certificate = certify_release(held_out(scenario), GUESS, coupling="independent")
        (std,) = certificate.statement.noise.std_by_coordinate
        assert std == pytest.approx(0.0747910603440602, rel=1e-6)

    def test_guess_of_a_given_noise(self):
        # n = 100, D = 5, P(W = 1) = 1/5, noise 1/50: rho = 0.45, guess 0.631342161391791.
        difference = rows_of(shift=[0.2], spread=[[0.16]], spans=[1.0], counts=[5.0, 25.0])
        (rho,) = difference.mean_squares(Covariance(dim=1, std=100 / 50))
        assert rho == pytest.approx(0.45, rel=1e-6)
        assert ndtr(math.sqrt(rho) / 2) == pytest.approx(0.631342161391791, rel=1e-6)

    @pytest.mark.parametrize("n_rows", range(2, 60))
    def test_no_two_shares_differ_by_more_rows(self, n_rows):
        # Counts by exact rationals, half up; shares in steps of 1/1000.
        within = 0.1
        counts = [math.floor(Fraction(k, 1000) * n_rows + Fraction(1, 2)) for k in range(1001)]
        most = max(b - a for a, b in zip(counts, counts[100:], strict=False))
        assert most <= share_differing(within, n_rows, "stratified").most

    @pytest.mark.parametrize("up_to", [11, 99, 1000])
    def test_no_two_sizes_differ_by_more_rows(self, up_to):
        sizes = range(1, up_to + 1)
        within = [b - a for a in sizes for b in sizes if a <= b and 10 * b <= 11 * a]
        assert size_differing(1.1, up_to).most >= max(within)

    def test_a_random_number_of_rows(self):
        law = Differing(most=40, probability=0.5)
        counts = np.arange(41)
        weights = binom.pmf(counts, 40, 0.5)
        assert law.mean == pytest.approx(weights @ counts)
        assert law.mean_square == pytest.approx(weights @ counts**2)

    def test_integers_have_room(self):
        for n_rows in (1, 2, 1000, 2**42, 2**50):
            assert n_rows * 2 ** feature_bits(n_rows) < 2**62


def held_out(scenario):
    """The scenario as if its moments came from elsewhere, so that the noise is not rounded."""
    priors = tuple(attrs.evolve(prior, source="held_out") for prior in scenario.priors)
    return attrs.evolve(scenario, priors=priors)


@pytest.mark.soundness
class TestEnumeration:
    """Tiny tables in one dimension: all draws of the differing rows, and all common rows known."""

    @pytest.mark.parametrize("seed", range(12))
    def test_no_guess_is_above_the_claim(self, seed):
        rng = np.random.default_rng(seed)
        values = rng.choice([0.0, 1.0, 3.0, 10.0], size=12)
        table = pa.table({"k": ["x"] * 5 + ["y"] * 7, "v": values})
        n_rows = int(rng.integers(5, 12))
        scenario = prevalence(
            table,
            column="k",
            value="x",
            within=float(rng.choice([0.1, 0.2, 0.3])),
            query=queries.summary(mean=["v"], clip={"v": (0, 10)}),
            n_rows=n_rows,
            source="held_out",
        )
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.6))
        std = certificate.statement.noise.std_by_coordinate[0]
        differing = scenario.secret["n_differing"]
        sums = [
            np.array([sum(rows) for rows in itertools.product(kind, repeat=differing)]) / n_rows
            for kind in (values[5:], values[:5])
        ]
        truth = self._right_guesses(*sums, std)
        assert truth <= certificate.guess <= 0.6

    @staticmethod
    def _right_guesses(first, second, std):
        grid = np.linspace(-12 * std, max(first.max(), second.max()) + 12 * std, 60_001)
        densities = [
            norm.pdf(grid[:, None], np.unique(atoms), std)
            @ (np.unique(atoms, return_counts=True)[1] / len(atoms))
            for atoms in (first, second)
        ]
        variation = np.abs(densities[0] - densities[1]).sum() * (grid[1] - grid[0]) / 2
        return (1 + variation) / 2

    def test_a_claim_that_is_nearly_reached(self):
        # Constant rows of each kind: the distance is one number, and Jensen loses nothing.
        table = pa.table({"k": ["x"] * 5 + ["y"] * 7, "v": [1.0] * 5 + [0.0] * 7})
        scenario = prevalence(
            table,
            column="k",
            value="x",
            query=queries.summary(mean=["v"], clip={"v": (0, 1)}),
            n_rows=1000,
            source="held_out",
        )
        certificate = certify_release(scenario, GUESS)
        std = certificate.statement.noise.std_by_coordinate[0]
        assert ndtr(0.1 / std / 2) == pytest.approx(0.64, abs=1e-4)


@pytest.mark.soundness
class TestNoise:
    def test_the_stated_noise_meets_the_claim_by_another_formula(self):
        certificate = certify_release(prevalence(), GUESS, coupling="independent")
        ages, sites = np.array(TABLE["age"]), np.array(TABLE["site"]) == "a"
        rows = np.column_stack([ages, sites]).astype(float)
        ill = np.array(TABLE["ill"]) == "yes"
        shift = rows[ill].mean(axis=0) - rows[~ill].mean(axis=0)
        spread = np.cov(rows[ill].T, bias=True) + np.cov(rows[~ill].T, bias=True)
        moment = (25 * np.outer(shift, shift) + 5 * spread) / 50**2
        rho = np.trace(np.linalg.solve(user_covariance(certificate), moment))
        assert ndtr(math.sqrt(rho) / 2) <= 0.64
        # Rounded to two digits, because the moments are those of the released rows.
        assert ndtr(math.sqrt(rho) / 2) > 0.62

    @pytest.mark.parametrize("factor", [1000.0, 1e-6])
    def test_units_cancel(self, factor):
        def stds(times):
            table = TABLE.set_column(1, "age", pa.array(np.array(TABLE["age"]) * times))
            query = queries.summary(
                mean=["age"], rate={"site": "a"}, clip={"age": (0, 100 * times)}
            )
            scenario = prevalence(table, query=query, source="held_out")
            return certify_release(scenario, GUESS).statement.noise.std_by_coordinate

        plain, scaled = stds(1.0), stds(factor)
        assert scaled[0] == pytest.approx(factor * plain[0], rel=1e-6)
        assert scaled[1] == pytest.approx(plain[1], rel=1e-6)

    @pytest.mark.parametrize(
        "query",
        [
            queries.contingency_table({"site": ["a", "b"]}, statistic="count"),
            queries.contingency_table(
                {"age": [queries.above(200), queries.above(40)]}, statistic="rate"
            ),
        ],
        ids=["cells that add up", "a constant"],
    )
    def test_one_row_is_hidden_where_moments_see_nothing(self, query):
        scenario = prevalence(query=query, source="held_out")
        certificate = certify_release(scenario, GUESS)
        scales = scenario.query.scales
        covariance = user_covariance(certificate) / np.outer(scales, scales)
        spans = difference_of(scenario).spans[None]
        assert row_distance(covariance, 0 * spans, spans) <= 1 + 1e-6
        assert certificate.guess <= 0.64
        assert verify(certificate, scenario=scenario).holds

    def test_a_diagonal_shape(self):
        moment, limit = (
            np.array([[2.0, 1.0], [1.0, 3.0]]),
            Guarantee.guess(at_most=0.64).distance_limit,
        )
        diagonal = least_variances(moment, limit, np.ones(2))
        assert np.trace(np.linalg.solve(diagonal, moment)) == pytest.approx(limit)
        certificate = certify_release(prevalence(source="held_out"), GUESS, shape="diagonal")
        covariance = user_covariance(certificate)
        assert covariance[0, 1] == 0

    def test_other_bounds_are_swept(self):
        sweep = what_if(prevalence(), GUESS, bounds=[0.52, 0.55])  # an epsilon above 20 is no view
        assert sweep.rows[0].noise_stds[0] > sweep.rows[1].noise_stds[0]
        assert all(row.unsliced_epsilon > 0 for row in sweep.rows)
        assert sweep.rows[0].epsilon_at_delta < sweep.rows[1].epsilon_at_delta


class TestRelease:
    def test_sums_do_not_depend_on_the_order_of_rows(self):
        scenario = prevalence()
        value = fitting_value(scenario, TABLE)
        places = np.random.default_rng(1).permutation(50)
        assert value == fitting_value(scenario, TABLE.take(places))
        assert float(value[0] * Fraction(scenario.query.scales[0])) == pytest.approx(
            np.mean(np.array(TABLE["age"])), abs=1e-4
        )

    def test_the_public_number_of_rows(self, tmp_path):
        scenario = prevalence(n_rows=49)
        certificate = certify_release(scenario, GUESS)
        with pytest.raises(ReleaseError, match="rows"):
            release(scenario, TABLE, certificate, ledger=tmp_path / "ledger")

    def test_values_never_refuse_a_release(self, tmp_path):
        earlier = prevalence(None, moments_from=TABLE, n_rows=4)
        certificate = certify_release(earlier, GUESS)
        odd = pa.table(
            {
                "ill": ["yes", None, "no", "no"],
                "age": [math.nan, math.inf, None, 1e300],
                "site": [None, "z", "a", "a"],
            }
        )
        published = release(earlier, odd, certificate, ledger=tmp_path / "ledger")
        assert published.names == QUERY.names

    def test_a_hidden_size_is_neither_checked_nor_stated(self, tmp_path):
        query = queries.summary(total=["age"], count={"site": "a"}, clip={"age": (0, 100)})
        scenario = Scenario.from_volume(None, query=query, up_to=120, moments_from=TABLE)
        certificate = certify_release(scenario, GUESS)
        for n_rows in (10, 50):
            rows = TABLE.slice(0, n_rows)
            release(scenario, rows, certificate, ledger=tmp_path / f"{n_rows}.ledger")
        assert "50" not in str(certificate.statement.scenario)

    def test_noise_of_the_released_rows_is_coarse_and_stated(self):
        own, other = prevalence(), prevalence(moments_from=EARLIER)
        codes = certify_release(own, GUESS).statement.limits
        assert "noise-from-released-rows" in codes
        assert "noise-from-released-rows" not in certify_release(other, GUESS).statement.limits


@pytest.mark.soundness
class TestAttacks:
    def test_the_best_attack_on_real_rows_stays_below(self, seed):
        scenario = prevalence(source="held_out")
        certificate = certify_release(scenario, GUESS)
        audit = audit_release(
            scenario, None, certificate, n_outputs=20_000, confidence=0.999, seed=seed
        )
        assert not audit.refuted
        assert max(attack.accuracy.low for attack in audit.inferences) <= 0.64

    def test_half_the_noise_is_refuted(self, seed):
        scenario = prevalence(
            pa.table({"ill": ["yes"] * 9 + ["no"] * 9, "age": [100.0] * 9 + [0.0] * 9}),
            query=queries.summary(mean=["age"], clip={"age": (0, 100)}),
            n_rows=1000,
            source="held_out",
        )
        certificate = certify_release(scenario, GUESS)
        noise = certificate.statement.noise
        halved = attrs.evolve(
            certificate,
            statement=certificate.statement.model_copy(
                update={"noise": noise.model_copy(update={"std": noise.std / 2})}
            ),
        )
        audit = audit_release(scenario, None, halved, n_outputs=20_000, confidence=0.95, seed=seed)
        assert audit.refuted

    def test_correlated_rows_of_one_large_customer(self, seed):
        # 48 half-hour means of 400 homes: a normal law stated 57.9 % where 84.5 % were true.
        rng = np.random.default_rng(5)
        loads = rng.gamma(2.0, 0.3, (400, 48))
        loads[0] *= 60
        heated = rng.random(400) < 0.3
        heated[0] = True
        columns = {f"h{k}": loads[:, k] for k in range(48)}
        table = pa.table({**columns, "heated": np.where(heated, "yes", "no")})
        names = list(columns)
        query = queries.summary(mean=names, clip=dict.fromkeys(names, (0.0, 60.0)))
        scenario = prevalence(
            table, column="heated", value="yes", within=0.05, query=query, source="held_out"
        )
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.6))
        first, second = scenario.priors[0].distributions.values()
        rng = np.random.default_rng(seed)
        outputs = [world.draw(20_000, rng=rng)[0] for world in (first, second)]
        inverse = np.array(certificate.statement.noise.shape.whitening)
        whitened = [rows @ inverse.T / certificate.noise_std for rows in outputs]
        # Someone who knows both candidate tables, and sees the noisy one.
        distances = np.linalg.norm(whitened[0] - whitened[1], axis=1)
        assert ndtr(distances / 2).mean() <= 0.6 + 0.005


class TestEvidence:
    def test_edited_moments_are_noticed(self):
        certificate = certify_release(prevalence(moments_from=EARLIER), GUESS)
        evidence = certificate.evidence
        full = evidence.full
        smaller = attrs.evolve(full.differences, counts=full.differences.counts / 4)
        edited = attrs.evolve(evidence, full=attrs.evolve(full, differences=smaller))
        statement = certificate.statement.model_copy(update={"evidence_digest": edited.digest()})
        forged = attrs.evolve(certificate, statement=statement, evidence=edited)
        assert not verify(forged).holds

    def test_sums_of_rows_have_no_slices(self):
        evidence = certify_release(prevalence(moments_from=EARLIER), GUESS).evidence
        parts = parts_of(evidence)
        for name in ("means", "covs", "pairs", "counts", "squares", "low", "high"):
            parts[f"slices_{name}"] = parts[f"full_{name}"]
        parts |= {"directions": np.eye(2), "weights": np.ones(2) / 2}
        state(lambda facts: facts["differences"].update(slices="rows"))(parts)
        with pytest.raises(CertificateError, match="cannot be read"):
            Evidence.from_bytes(packed(parts))

    def test_saved_and_proved(self, tmp_path):
        pytest.importorskip("flint")
        certificate = certify_release(prevalence(moments_from=EARLIER), GUESS)
        certificate.save(tmp_path / "certificate.json")
        loaded = Certificate.load(tmp_path / "certificate.json")
        assert verify(loaded, rigorous=True).holds


class TestSeveralKinds:
    DIVIDED = pa.table(
        {
            "site": (["a"] * 12 + ["b"] * 18 + ["c"] * 20),
            "age": [*range(20, 32), *range(30, 48), *range(50, 70)],
        }
    )
    AGE = queries.summary(mean=["age"], clip={"age": (0, 100)})

    def scenario(self, values, **options):
        settings = {"column": "site", "values": values, "within": 0.1, "query": self.AGE}
        return Scenario.from_prevalence(self.DIVIDED, source="held_out", **(settings | options))

    def test_every_pair_of_kinds_is_a_constraint(self):
        scenario = self.scenario(["a", "b"])
        assert scenario.secrets == ("site = a", "site = b", "other values")
        certificate = certify_release(scenario, GUESS)
        (std,) = certificate.statement.noise.std_by_coordinate
        ages = np.array(self.DIVIDED["age"])
        kinds = [ages[:12], ages[12:30], ages[30:]]
        needed = [
            (25 * (x.mean() - y.mean()) ** 2 + 5 * (x.var() + y.var())) / 50**2
            for x, y in itertools.combinations(kinds, 2)
        ]
        assert ndtr(math.sqrt(max(needed)) / std / 2) == pytest.approx(0.64, abs=1e-4)
        assert verify(certificate, scenario=scenario).holds

    def test_all_values_leave_no_others(self):
        assert self.scenario(["a", "b", "c"]).secrets == ("site = a", "site = b", "site = c")

    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"values": ["a", queries.equals("a")]}, ScenarioError, "exclude each other"),
            ({"values": "a"}, ArgumentError, "list of values"),
            ({"value": "a"}, ArgumentError, "one of the two"),
            ({"values": None}, ArgumentError, "one of the two"),
            ({"prior": "draws"}, ArgumentError, "share of one value"),
        ],
    )
    def test_refused(self, options, error, words):
        with pytest.raises(error, match=words):
            self.scenario(**({"values": ["a", "b"]} | options))


class TestSupplier:
    QUERY = queries.summary(total=["age"], count={"ill": "yes"}, clip={"age": (0, 100)})

    def scenario(self, **options):
        settings = {"column": "site", "value": "a", "up_to": 40, "ratio": 1.25}
        settings |= {"query": self.QUERY, "moments_from": TABLE} | options
        return Scenario.from_supplier(None, **settings)

    def test_moments_are_those_of_their_rows(self):
        scenario = self.scenario()
        assert scenario.secret["n_differing"] == 8
        certificate = certify_release(scenario, GUESS)
        theirs = np.array(TABLE["site"]) == "a"
        rows = np.column_stack([np.array(TABLE["age"]), np.array(TABLE["ill"]) == "yes"])[theirs]
        mean, cov = rows.mean(axis=0), np.cov(rows.T.astype(float), bias=True)
        moment = 64 * np.outer(mean, mean) + 8 * cov
        rho = np.trace(np.linalg.solve(user_covariance(certificate), moment))
        assert ndtr(math.sqrt(rho) / 2) == pytest.approx(0.64, abs=1e-4)
        assert verify(certificate, scenario=scenario).holds

    def test_the_number_of_rows_is_neither_checked_nor_stated(self, tmp_path):
        scenario = self.scenario()
        certificate = certify_release(scenario, GUESS)
        for n_rows in (10, 50):
            released = release(
                scenario, TABLE.slice(0, n_rows), certificate, ledger=tmp_path / f"{n_rows}.ledger"
            )
            assert "n_rows" not in str(released.to_json())
        assert "50" not in str(certificate.statement.scenario)

    def test_a_misspelt_name_gets_a_hint(self):
        table = pa.table({"site": ["acme"] * 20 + ["other"] * 20, "age": [*range(40)]})
        query = queries.summary(total=["age"], clip={"age": (0, 100)})
        with pytest.raises(ScenarioError, match="Did you mean 'acme'"):
            Scenario.from_supplier(table, column="site", value="Acme", up_to=40, query=query)

    def test_one_row_more_is_hidden_too(self):
        person = certify_release(self.scenario(), GUESS).statement.one_person
        assert 0 < person.epsilon < 20


class TestStatement:
    def test_what_scenarios_of_rows_add(self):
        statement = certify_release(prevalence(moments_from=EARLIER), GUESS).statement
        assert ndtr(math.sqrt(statement.mean_square) / 2) == pytest.approx(statement.guess)
        assert statement.guess == statement.spent <= 0.64
        assert statement.coupling.name.partition(":")[0] in {"independent", "cells"}
        assert statement.one_person.delta == 1e-6
        assert statement.one_person_given_noise is None
        assert statement.not_stated == {}

    def test_noise_from_the_released_rows_promises_nothing_to_a_person(self):
        certificate = certify_release(prevalence(), GUESS)
        statement = certificate.statement
        assert statement.one_person is None
        assert statement.one_person_given_noise.epsilon > 0
        assert statement.not_stated == {"one_person": "noise-from-released-rows"}
        assert "no promise" in str(certificate)

    def test_other_scenarios_say_why_not(self):
        worlds = {name: [[0.0], [shift]] for name, shift in (("a", 1.0), ("b", 2.0))}
        worlds = {name: FiniteDistribution.uniform(rows) for name, rows in worlds.items()}
        query = queries.summary(mean=["age"])
        statement = certify_release(Scenario.from_worlds(worlds, query=query), GUESS).statement
        assert statement.mean_square is statement.one_person is statement.coupling is None
        assert statement.not_stated == dict.fromkeys(("mean_square", "one_person"), "not-of-rows")

    @pytest.mark.parametrize("coupling", ["independent", "cells:site", "transport"])
    def test_a_chosen_coupling(self, coupling):
        scenario = prevalence(moments_from=EARLIER)
        certificate = certify_release(scenario, GUESS, coupling=coupling)
        assert certificate.statement.coupling.name == coupling
        assert certificate.guess <= 0.64
        assert verify(certificate, scenario=scenario).holds
        least = certify_release(scenario, GUESS)
        if coupling != "transport":
            assert (
                certificate.statement.noise.std_by_coordinate[0]
                >= least.statement.noise.std_by_coordinate[0] * 0.8
            )


class TestRowsAtHand:
    def test_rows_that_need_more_noise_are_shown_to_their_holder(self):
        shifted = TABLE.set_column(1, "age", pa.array([*range(70, 90), *range(20, 50)]))
        earlier = prevalence(shifted, moments_from=TABLE)
        judged = verdict(certify_release(earlier, GUESS))
        assert judged.current_guess > 0.66
        assert "more noise" in judged.current_sentence
        assert "rows at hand" not in str(certify_release(earlier, GUESS))

    def test_the_same_rows_need_no_more(self):
        certificate = certify_release(prevalence(moments_from=EARLIER), GUESS)
        judged = verdict(certificate)
        assert judged.current_guess == pytest.approx(certificate.guess, abs=1e-4)
        assert judged.current_sentence == ""

    def test_rows_that_cannot_be_compared_are_not(self):
        one_kind = TABLE.set_column(0, "ill", pa.array(["no"] * 50))
        certificate = certify_release(prevalence(one_kind, moments_from=TABLE), GUESS)
        assert verdict(certificate).current_guess is None


CHAIN = [[0.9, 0.1], [0.2, 0.8]]


COUNT = queries.summary(count={"site": "a"})


def moments(**changes):
    settings = {"shift": [0.2], "spread": [[0.16]], "spans": [1.0], "counts": [5.0, 25.0]}
    return rows_of(**(settings | changes))


def home():
    loads = pa.table({"state": [0, 1] * 5, "kwh": range(10)})
    query = queries.summary(total=["kwh"], clip={"kwh": (0, 9)})
    return Scenario.from_occupancy(CHAIN, length=12, positions=[5], query=query, loads=loads)


def markov(query):
    return Scenario.from_occupancy(CHAIN, length=12, positions=[5], query=query)


@pytest.mark.parametrize(
    ("call", "error", "argument"),
    [
        (
            lambda: Guarantee.unsliced(order=4, epsilon=1.0).least_noise(
                certify_release(home(), GUESS).evidence
            ),
            CalibrationError,
            "noise",
        ),
        (
            lambda: certify_release(
                prevalence(),
                Guarantee.joint(order=4, epsilon=1.0, profile=FiniteProfile.axes(dim=2)),
            ),
            ScenarioError,
            "along slices",
        ),
        (
            lambda: certify_release(
                prevalence(moments_from=EARLIER, within=0.02),
                Guarantee.guess(at_most=0.999),
                accuracy={"mean(age)": 0.5},
            ),
            CalibrationError,
            "one row",
        ),
        (lambda: prevalence(None, n_rows=10), ArgumentError, "moments_from"),
        (lambda: prevalence(TABLE, moments_from=TABLE), ArgumentError, "moments_from"),
        (
            lambda: Scenario.from_volume(TABLE, query=COUNT, up_to=99, moments_from=TABLE),
            ArgumentError,
            "moments_from",
        ),
        (
            lambda: Scenario.from_volume(TABLE, query=COUNT, up_to=5, ratio=1.01),
            ArgumentError,
            "ratio",
        ),
        (
            lambda: Scenario.from_volume(
                pa.table({"site": pa.array([None], pa.string())}),
                query=COUNT.with_missing("middle"),
                up_to=100,
            ),
            ScenarioError,
            "at least 2 rows",
        ),
        (
            lambda: Scenario.from_groups(
                TABLE,
                secret="ill",  # noqa: S106 - a column
                query=QUERY.with_missing("middle"),
            ),
            TableError,
            "middle of its range",
        ),
        (
            lambda: fitting_value(
                attrs.evolve(prevalence(), query=queries.summary(median=["age"])), TABLE
            ),
            ReleaseError,
            "no sums over rows",
        ),
        (lambda: moments(counts=[math.inf, 25.0]).check(), ArgumentError, "finite"),
        (lambda: moments(shift=[2.0]).check(), ArgumentError, "within the public ranges"),
    ],
)
def test_refused(call, error, argument):
    with pytest.raises(error, match=argument):
        call()


def test_a_chain_of_rates_is_that_of_counts():
    counts = markov(queries.summary(count={"state": 1})).priors[0].distributions
    rates = markov(queries.summary(rate={"state": 1})).priors[0].distributions
    for secret, counted in counts.items():
        np.testing.assert_allclose(rates[secret].outputs * 12, counted.outputs)
