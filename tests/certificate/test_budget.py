# SPDX-License-Identifier: Apache-2.0
"""Budgets: what all parts cost together, verified and enumerated; and rules that are false."""

import io
import itertools
import json
import math
from fractions import Fraction

import attrs
import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtr
from scipy.stats import norm
from tests.certificate.conftest import changed, changes, stating
from tests.json_edits import put, statement_of
from tests.refusal_tables import keywords, refusals
from tests.refusals import check_refused

from pufferslice import (
    Certificate,
    FiniteProfile,
    Guarantee,
    Repeated,
    Reserve,
    Scenario,
    Training,
    certify_budget,
    certify_release,
    queries,
    sign,
    verify,
)
from pufferslice._core.sampler import SIGMA_INT
from pufferslice.certificate import new_key_pair, spent
from pufferslice.certificate.budget import (
    MOST_NUMBERS,
    BudgetOptions,
    budget_statement,
    differences_of,
    implementation_delta,
)
from pufferslice.certificate.budget_evidence import BudgetEvidence
from pufferslice.certificate.statement import read_statement
from pufferslice.certificate.training import record_cost
from pufferslice.certificate.verdict import verdict
from pufferslice.certificate.verify import UNCHECKED_BUDGET
from pufferslice.claims.views import ORDERS, improved_epsilon_joint
from pufferslice.errors import ArgumentError, CalibrationError, CertificateError, ScenarioError
from pufferslice.learning import (
    LayerClipping,
    Poisson,
    TrainingPlan,
    WithoutReplacement,
    WithReplacement,
)
from pufferslice.noise.spending import ROOM
from pufferslice.releases.budget import grant_of_budget
from pufferslice.scenario.distributions import FiniteDistribution, GaussianDistribution
from pufferslice.sensitivity.person import row_delta, row_epsilon
from pufferslice.sensitivity.whitening import Covariance

GUESS = Guarantee.guess(at_most=0.64)
LIMIT = GUESS.distance_limit
RNG = np.random.default_rng(20)


def survey(n, rng=RNG):
    """A table with a hidden property, on which a number depends, and a label."""
    ill = rng.random(n) < 0.4
    return pa.table(
        {
            "ill": np.where(ill, "yes", "no"),
            "age": np.clip(rng.normal(45, 15, n) + 8 * ill, 18, 90),
            "hours": rng.integers(10, 60, n).astype(float),
            "site": np.where(rng.random(n) < 0.3, "a", "b"),
        }
    )


EARLIER, TABLE = survey(2_000), survey(2_000)
CLIP = {"age": (18, 90), "hours": (0, 80)}
YEAR = queries.summary(mean=["age", "hours"], rate={"site": "a"}, clip=CLIP)
MONTH = queries.summary(mean=["age"], count={"site": "a"}, clip={"age": CLIP["age"]})
LATER = queries.summary(total=["hours"], clip={"hours": CLIP["hours"]})


def prevalence(query, table=TABLE, earlier=EARLIER, **options):
    settings = {"column": "ill", "value": "yes", "within": 0.05, "moments_from": earlier}
    return Scenario.from_prevalence(table, query=query, **(settings | options))


def volume(query=LATER, **options):
    settings = {"name": "shop", "up_to": 3_000, "ratio": 1.1, "moments_from": EARLIER}
    return Scenario.from_volume(TABLE, query=query, **(settings | options))


def home():
    """Totals of a home by week."""
    loads = pa.table({"state": [0, 0, 1, 1] * 5, "kwh": np.linspace(0, 4, 20)})
    return Scenario.from_occupancy(
        [[0.9, 0.1], [0.2, 0.8]],
        query=queries.group_by({"week": [1, 2]}, total=["kwh"], clip={"kwh": (0, 5)}),
        positions=[2],
        loads=loads,
        periods={"week": [1, 1, 1, 2, 2, 2]},
    )


YEARBOOK, MONTHLY, EXTRA = prevalence(YEAR), prevalence(MONTH), prevalence(LATER)
TRAINING = Training(
    differing=YEARBOOK.differing(),
    sampling=Poisson(n_records=2_000, rate=0.05),
    clip_norm=1.0,
    n_steps=50,
)
REPEATED = Repeated(MONTHLY, times=12, rows=(150, 180))
PARTS = {"yearbook": YEARBOOK, "monthly": REPEATED, "later": Reserve(EXTRA), "model": TRAINING}
SHARES = {"yearbook": 0.3, "monthly": 0.5, "later": 0.1, "model": 0.1}


@pytest.fixture(scope="module")
def budget():
    return certify_budget(PARTS, GUESS, shares=SHARES)


def part_of(certificate, name):
    return next(part for part in certificate.budget.parts if part.name == name)


def moments_by_hand(table, query, share_of=("ill", "yes")):
    """Mean and covariance of what rows with and without the property have, in the user's units."""
    column, value = share_of
    has = np.array(table[column].to_pylist()) == value
    columns = []
    for name in query.as_sums().names:
        inner = name.partition("(")[2].rstrip(")")
        if "=" in inner:
            key, _, label = inner.partition(" = ")
            columns.append((np.array(table[key].to_pylist()) == label).astype(float))
        else:
            columns.append(np.clip(np.array(table[inner]), *CLIP[inner]))
    rows = np.column_stack(columns)
    return [
        (part.mean(axis=0), np.cov(part.T, bias=True).reshape(len(columns), -1))
        for part in (rows[~has], rows[has])
    ]


def precision_of(part):
    """The declared precision of a part in the user's units, from the statement alone."""
    scales = np.array(part.scenario.query.scales)
    whitening = np.array(part.noise.whitening) / scales
    return whitening.T @ whitening


def cost_by_hand(part, table, query, n, n_differing):
    """tr(P M) for one table of n rows of which so many differ, from the definition."""
    (mean0, cov0), (mean1, cov1) = moments_by_hand(table, query)
    change = mean1 - mean0
    names = part.scenario.query.names
    units = np.array([1 / n if name.startswith(("mean", "rate")) else 1.0 for name in names])
    moment = n_differing**2 * np.outer(change, change) + n_differing * (cov0 + cov1)
    return float(np.trace(precision_of(part) @ (moment * np.outer(units, units))))


@pytest.mark.soundness
class TestCost:
    def test_every_part_by_hand(self, budget):
        # 12 months may make up the yearbook, and each rounds its differing rows up.
        year = cost_by_hand(part_of(budget, "yearbook"), EARLIER, YEAR, 2_000, 100 + 11)
        later = cost_by_hand(part_of(budget, "later"), EARLIER, LATER, 2_000, 100 + 11)
        month = max(
            cost_by_hand(
                part_of(budget, "monthly"), EARLIER, MONTH, n, math.ceil(Fraction("0.05") * n)
            )
            for n in range(150, 181)
        )
        assert part_of(budget, "yearbook").mean_square == pytest.approx(year, rel=1e-3)
        assert part_of(budget, "later").mean_square == pytest.approx(later, rel=1e-3)
        assert part_of(budget, "monthly").mean_square == pytest.approx(12 * month, rel=1e-3)

    def test_training_by_hand(self, budget):
        part = part_of(budget, "model")
        (multiplier,) = part.plan.noise_multipliers
        differing, rate = 100 + 11, 0.05
        square = rate * (1 - rate) * differing + rate**2 * differing**2
        assert part.mean_square == pytest.approx(50 * 4 * square / multiplier**2, rel=1e-9)
        assert part.signal == pytest.approx(2_000 * rate * math.sqrt(50) / multiplier)

    def test_all_parts_add_up(self, budget):
        statement = budget.budget
        total = math.fsum(part.mean_square for part in statement.parts)
        assert statement.mean_square == pytest.approx(total, rel=1e-9)
        assert statement.mean_square >= total
        assert statement.spent == statement.guess <= 0.64
        assert statement.guess == pytest.approx(ndtr(math.sqrt(total) / 2), rel=1e-9)
        assert statement.information == pytest.approx(total / 2 / math.log(2), rel=1e-9)

    @pytest.mark.parametrize("name", SHARES)
    def test_each_part_uses_its_share(self, budget, name):
        part = part_of(budget, name)
        assert part.mean_square <= SHARES[name] * LIMIT
        assert part.mean_square >= SHARES[name] * LIMIT * (1 - 1e-6)

    def test_room_for_what_is_rounded(self, budget):
        """The room of the accounting, the grid of all numbers, and the sampler's error."""
        statement = budget.budget
        alone = certify_budget({"yearbook": YEARBOOK}, GUESS, coupling="independent")
        (plain,) = alone.budget.parts
        assert plain.mean_square >= cost_by_hand(plain, EARLIER, YEAR, 2_000, 100) * (1 + ROOM)
        total = math.fsum(part.mean_square for part in statement.parts)
        assert math.sqrt(statement.mean_square) >= math.sqrt(total) + 2.0**-44 * 2**10
        assert MOST_NUMBERS == 2**20
        assert statement.noise.implementation_delta == implementation_delta(50)
        assert implementation_delta(50) > 50 * 2**32 * 1e-26

    @pytest.mark.parametrize("bits", [0.05, 0.5])
    def test_information(self, bits):
        certificate = certify_budget(PARTS, Guarantee.information(bits=bits), shares=SHARES)
        statement = certificate.budget
        assert bits * (1 - 1e-6) <= statement.information == statement.spent <= bits
        assert verify(certificate).holds

    def test_a_month_beside_one_release_alone(self):
        """Twelve months of equal rows cost sqrt(12) times the noise of one."""
        once = certify_budget({"month": Repeated(MONTHLY, times=1, rows=(160, 160))}, GUESS)
        twelve = certify_budget({"month": Repeated(MONTHLY, times=12, rows=(160, 160))}, GUESS)
        (one,), (many,) = once.budget.parts, twelve.budget.parts
        assert many.noise.std_by_coordinate == pytest.approx(
            math.sqrt(12) * np.array(one.noise.std_by_coordinate), rel=1e-6
        )

    def test_volumes_add_up(self):
        parts = {"year": volume(up_to=30_000), "months": Repeated(volume(), times=12)}
        statement = certify_budget(parts, GUESS).budget
        assert [part.rows for part in statement.parts] == [None, None]
        rows = np.clip(np.array(EARLIER["hours"]), 0, 80)
        for part, differing in zip(statement.parts, (2_727, 272), strict=True):
            square = differing**2 * rows.mean() ** 2 + differing * rows.var()
            cost = part.times * square / part.noise.std_by_coordinate[0] ** 2
            assert part.mean_square == pytest.approx(cost, rel=1e-4)

    def test_independent_rows(self):
        scenario = prevalence(YEAR, design="independent")
        training = attrs.evolve(TRAINING, differing=scenario.differing())
        certificate = certify_budget({"year": scenario, "model": training}, GUESS)
        plan = part_of(certificate, "model").plan
        assert plan.differing["kind"] == "binomial"
        assert verify(certificate).holds

    @pytest.mark.parametrize(
        ("sampling", "expected"),
        [
            (Poisson(n_records=50_000, rate=512 / 50_000), 86.3918462734234),
            (WithoutReplacement(n_records=50_000, batch_size=512), 86.3782446370052),
        ],
    )
    def test_known_multipliers(self, sampling, expected):
        """D = 20 of 50,000, 3,920 steps, a guess of 0.64: section 27 of the theory."""
        mean_square = sampling.mean_square_over(20, 400)
        assert math.sqrt(4 * 3_920 * mean_square / LIMIT) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize(
        ("sampling", "expected"),
        [
            (Poisson(n_records=50_000, rate=512 / 50_000), 86.5767902287835),
            (WithoutReplacement(n_records=50_000, batch_size=512), 86.5628604507265),
            (WithReplacement(n_records=50_000, batch_size=512), 86.930765292914),
        ],
    )
    def test_known_multipliers_of_a_random_number(self, sampling, expected):
        """D ~ Bin(40, 1/2)."""
        mean_square = sampling.mean_square_over(20, 20**2 + 10)
        assert math.sqrt(4 * 3_920 * mean_square / LIMIT) == pytest.approx(expected, rel=1e-12)


def squared_distance_of_tables(certificate):
    """How far one row, with a place in every table and period, moves all of them."""
    options = BudgetOptions.read_off(certificate.budget)
    differences = differences_of(certificate.evidence, options)
    return sum(
        choice.times * differences[name].one_row_distance(choice.noise) ** 2
        for name, choice in options.tables.items()
    )


def test_releases_before_03_are_named(budget, tmp_path):
    assert budget.budget.earlier_releases == []
    named = budget.acknowledging(["ab" * 32])
    assert named.budget.earlier_releases == ["ab" * 32]
    assert "earlier-releases-apart" in named.budget.limits
    assert "does not cover jointly: abababababab." in str(named)
    assert named.digest != budget.digest
    named.save(tmp_path / "budget.json")
    assert verify(Certificate.load(tmp_path / "budget.json")).holds
    assert grant_of_budget(named).earlier == ("ab" * 32,)
    with pytest.raises(ArgumentError, match="earlier_releases"):
        budget.acknowledging(["year.json"])


class TestPerson:
    def test_all_parts_count(self, budget):
        """One row in every table and period, and one record of the training."""
        alone = certify_budget({"yearbook": YEARBOOK}, GUESS, shares={"yearbook": 0.3})
        tables = {name: part for name, part in PARTS.items() if name != "model"}
        without = {name: share for name, share in SHARES.items() if name != "model"}
        some = certify_budget(tables, GUESS, shares=without)
        epsilons = [each.budget.one_person.epsilon for each in (alone, some, budget)]
        assert epsilons == sorted(epsilons)
        assert epsilons[0] < epsilons[1] < epsilons[2]

    def test_by_hand(self):
        """One feature: every row moves the mean by at most its range over n, in every period."""
        query = queries.summary(mean=["age"], clip={"age": CLIP["age"]})
        parts = {"months": Repeated(prevalence(query), times=3, rows=(150, 180))}
        certificate = certify_budget(parts, GUESS)
        (part,) = certificate.budget.parts
        distance = math.sqrt(3) * 72 / 150 / part.noise.std_by_coordinate[0]
        person = certificate.budget.one_person
        epsilon, delta = person.epsilon, person.delta
        found = ndtr(distance / 2 - epsilon / distance) - math.exp(epsilon) * ndtr(
            -distance / 2 - epsilon / distance
        )
        assert found == pytest.approx(delta, rel=1e-3)
        assert "named-secret-only" not in certificate.budget.limits

    def test_a_training_run_by_hand(self):
        """Every batch has all rows: each step is one more Gaussian, 2 / z apart for one row."""
        run = attrs.evolve(
            TRAINING, sampling=WithoutReplacement(n_records=2_000, batch_size=2_000), n_steps=3
        )
        certificate = certify_budget({"yearbook": YEARBOOK, "model": run}, GUESS)
        multipliers = part_of(certificate, "model").plan.noise_multipliers
        square = squared_distance_of_tables(certificate) + sum(4 / z**2 for z in multipliers)
        person = certificate.budget.one_person
        expected = row_epsilon(math.sqrt(square), person.delta, implementation_delta(3))
        assert person.epsilon == pytest.approx(expected, rel=1e-3)
        assert person.epsilon >= expected * (1 - 1e-9)

    def test_no_more_than_the_sum_over_orders(self, budget):
        """Another proof of the same: Rényi costs of all outputs add at every order."""
        person, square = budget.budget.one_person, squared_distance_of_tables(budget)
        plan = TrainingPlan.from_json(part_of(budget, "model").plan.to_json())
        costs = {order: record_cost([plan], order) + order * square / 2 for order in ORDERS}
        by_orders = min(improved_epsilon_joint(o, c, person.delta) for o, c in costs.items())
        of_tables = row_epsilon(math.sqrt(square), person.delta, 0.0)
        assert of_tables < person.epsilon <= by_orders

    def test_the_grid_counts(self):
        """All releases round at most so many numbers, each by half a step in both worlds."""
        certificate = certify_budget({"later": Reserve(EXTRA)}, GUESS)
        person = certificate.budget.one_person
        whole = math.sqrt(squared_distance_of_tables(certificate))
        distance = whole + math.sqrt(MOST_NUMBERS) / SIGMA_INT
        assert row_delta(whole, person.epsilon, 0.0) < row_delta(distance, person.epsilon, 0.0)
        assert row_delta(distance, person.epsilon, 0.0) <= person.delta

    def test_a_wanted_epsilon(self):
        tables = {name: part for name, part in PARTS.items() if name != "model"}
        certificate = certify_budget(tables, GUESS, person=(0.1, 1e-5))
        person = certificate.budget.one_person
        assert (person.epsilon <= 0.1, person.delta) == (True, 1e-5)
        assert verify(certificate).holds

    def test_noise_from_the_released_rows_promises_nothing(self):
        certificate = certify_budget(
            {"year": prevalence(YEAR, earlier=None), "later": EXTRA}, GUESS
        )
        statement = certificate.budget
        assert statement.one_person is None
        assert statement.one_person_given_noise.epsilon > 0
        assert statement.not_stated == {"one_person": "noise-from-released-rows"}
        assert {"noise-from-released-rows", "named-secret-only"} <= set(statement.limits)
        assert "no promise" in str(certificate)
        assert verify(certificate).holds

    def test_slots_of_a_home_are_no_persons(self):
        scenario = home()
        certificate = certify_budget({"weeks": scenario, "later": Reserve(scenario)}, GUESS)
        assert certificate.budget.not_stated == {"one_person": "person-not-a-row"}
        assert "the state of" in str(certificate)
        assert verify(certificate).holds


@pytest.mark.soundness
class TestVerification:
    def test_an_untouched_budget_holds(self, budget):
        verification = verify(budget)
        assert verification.problems == ()
        assert len(verification.unchecked) == len(UNCHECKED_BUDGET)
        assert not verify(budget, rigorous=True).holds

    @pytest.mark.parametrize("every", [pytest.param(True, marks=pytest.mark.soak), False])
    def test_every_changed_field_is_noticed(self, every):
        small = certify_budget(
            {"year": prevalence(MONTH), "months": REPEATED, "model": TRAINING}, GUESS
        )
        missed = {
            path
            for path, statement in list(changes(small.statement))[:: 1 if every else 3]
            if verify(Certificate(statement=statement, evidence=small.evidence)).holds
        }
        names = {".".join(str(key) for key in path if not isinstance(key, int)) for path in missed}
        # What the holder decided, and what changes no number: a range of rows inside of the other.
        assert names <= {
            "guarantee.at_most",
            "parts.share",
            "parts.name",
            "parts.plan.order",
            "parts.plan.clipping.norm",
            "parts.plan.differing.origin",
            "parts.rows",
        }

    @pytest.mark.parametrize("name", ["yearbook", "monthly"])
    def test_less_noise_than_certified(self, budget, name):
        place = [part.name for part in budget.budget.parts].index(name)

        def shrink(statement):
            noise = statement["parts"][place]["noise"]
            noise["whitening"] = (np.array(noise["whitening"]) * (1 + 1e-9)).tolist()

        assert not verify(changed(budget, shrink)).holds

    def test_more_periods_than_certified(self, budget):
        place = [part.name for part in budget.budget.parts].index("monthly")
        assert not verify(stating(budget, ("parts", place, "times"), 24)).holds
        assert not verify(stating(budget, ("parts", place, "rows"), [50, 180])).holds

    def test_evidence_of_another_or_none(self, budget):
        other = certify_budget(PARTS, GUESS, shares=SHARES)
        assert not verify(attrs.evolve(budget, evidence=other.evidence)).holds
        (problem,) = verify(attrs.evolve(budget, evidence=None)).problems
        assert "statement only" in problem

    @pytest.mark.parametrize(
        "change", ["moments", "coupling", "scenario", "digest", "other parts", "fewer parts"]
    )
    def test_changed_evidence(self, budget, change):
        evidence = budget.evidence
        kept = ("tables", "scenarios", "confidential")
        rows = evidence.tables["yearbook"]
        facts = evidence.confidential["yearbook"]
        options = {
            "moments": {
                "tables": evidence.tables | {"yearbook": attrs.evolve(rows, means=rows.means * 0.5)}
            },
            "coupling": {"coupling": "cells:site"},
            "scenario": {
                "scenarios": evidence.scenarios | {"later": evidence.scenarios["monthly"]}
            },
            "digest": {
                "confidential": evidence.confidential
                | {"yearbook": facts | {"distributions_digest": None}}
            },
            "other parts": {"scenarios": {"yearbook": evidence.scenarios["yearbook"]}},
            "fewer parts": {k: {"yearbook": getattr(evidence, k)["yearbook"]} for k in kept},
        }[change]
        forged = attrs.evolve(evidence, **options)
        statement = budget.statement.model_copy(update={"evidence_digest": forged.digest()})
        assert not verify(Certificate(statement=statement, evidence=forged)).holds

    def test_scenarios_of_the_parts(self, budget):
        scenarios = {"yearbook": YEARBOOK, "monthly": MONTHLY, "later": EXTRA}
        verification = verify(budget, scenario=scenarios)
        assert verification.problems == ()
        assert verification.source == "the data"

    @pytest.mark.parametrize(
        ("scenario", "word"),
        [
            (YEARBOOK, "mapping"),
            ({"yearly": YEARBOOK}, "no part"),
            ({"yearbook": prevalence(YEAR, within=0.06)}, "description"),
            ({"yearbook": prevalence(YEAR, earlier=survey(2_000))}, "other rows"),
        ],
    )
    def test_other_scenarios(self, budget, scenario, word):
        (problem,) = verify(budget, scenario=scenario).problems
        assert word in problem

    def test_evidence_that_its_rows_refute(self, budget):
        """Moments that are too small in evidence and statement alike: the rows themselves tell."""
        rows = budget.evidence.tables["yearbook"]
        middle = rows.means.mean(axis=0)
        closer = attrs.evolve(rows, means=middle + 0.9 * (rows.means - middle))
        evidence = attrs.evolve(
            budget.evidence, tables=budget.evidence.tables | {"yearbook": closer}
        )
        options = BudgetOptions.read_off(budget.statement)
        forged = Certificate(statement=budget_statement(evidence, options), evidence=evidence)
        assert verify(forged).holds
        (problem,) = verify(forged, scenario={"yearbook": YEARBOOK}).problems
        assert "more noise" in problem

    def test_narrower_ranges_in_evidence_and_statement_alike(self, budget):
        """One person rests on the public ranges, and on no moments."""
        rows = budget.evidence.tables["yearbook"]
        middle = (rows.low + rows.high) / 2
        ends = {k: middle + (1 - 1e-6) * (getattr(rows, k) - middle) for k in ("low", "high")}
        tables = {"yearbook": attrs.evolve(rows, **ends)}
        evidence = attrs.evolve(budget.evidence, tables=budget.evidence.tables | tables)
        options = BudgetOptions.read_off(budget.statement)
        forged = Certificate(statement=budget_statement(evidence, options), evidence=evidence)
        stated, true = (each.budget.one_person.epsilon for each in (forged, budget))
        assert stated < true
        assert verify(forged).holds
        (problem,) = verify(forged, scenario={"yearbook": YEARBOOK}).problems
        assert "one person" in problem

    def test_files(self, budget, tmp_path):
        path = tmp_path / "budget.json"
        signed_with, public = new_key_pair()
        signed = sign(budget, signed_with)
        signed.save(path)
        loaded = Certificate.load(path)
        assert loaded.digest == budget.digest
        assert isinstance(loaded.evidence, BudgetEvidence)
        assert verify(loaded, public_key=public).holds
        assert repr(loaded.evidence).startswith("BudgetEvidence(parts=['yearbook'")
        document = json.loads(path.read_text())
        assert document["statement"]["workflow"] == "budget"
        path.write_text(json.dumps(put(document, ("statement", "coupling"), "transport")))
        with pytest.raises(CertificateError, match="coupling"):
            Certificate.load(path)

    @pytest.mark.parametrize("key", ["facts", "salt", "0_means"])
    def test_damaged_evidence(self, budget, key):
        content = budget.evidence.to_bytes()
        arrays = dict(np.load(io.BytesIO(content)))
        arrays[key] = arrays[key][:1]
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        if key == "salt":
            assert BudgetEvidence.from_bytes(file.getvalue()).digest() != budget.evidence.digest()
            return
        with pytest.raises(CertificateError):
            BudgetEvidence.from_bytes(file.getvalue())

    def test_evidence_of_another_version(self, budget):
        arrays = dict(np.load(io.BytesIO(budget.evidence.to_bytes())))
        facts = json.loads(arrays["facts"].tobytes()) | {"version": 99}
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        with pytest.raises(CertificateError, match="evidence") as caught:
            BudgetEvidence.from_bytes(file.getvalue())
        assert "version 99" in str(caught.value.__cause__)

    def test_a_run_without_its_table(self, budget):
        """A forged statement trains on a table whose number of rows is not public."""
        run = BudgetOptions.read_off(budget.statement).parts["model"]
        sizes = certify_budget({"shop": volume()}, GUESS)
        options = BudgetOptions.read_off(sizes.statement)
        forged = attrs.evolve(options, parts={**options.parts, "model": run})
        with pytest.raises(CertificateError, match="number of rows"):
            budget_statement(sizes.evidence, forged)

    def test_other_kinds_of_certificates(self, budget):
        for call in (spent, verdict):
            with pytest.raises(CertificateError):
                call(budget)


class TestWords:
    def test_what_everyone_reads(self, budget):
        text = str(budget)
        assert "any two shares of 'ill = yes' at most 5 points apart" in text
        assert "sees all outputs of this budget guesses right at most 64\u00a0%" in text
        assert "12 periods of 150 to 180 fresh rows, 50\u00a0% of the promise" in text
        assert "every row of every table" in text

    def test_noise_with_and_without_the_reserve(self, budget):
        without = certify_budget(
            {name: part for name, part in PARTS.items() if name != "later"},
            GUESS,
            shares={name: share / 0.9 for name, share in SHARES.items() if name != "later"},
            coupling="independent",
        )
        text = str(budget)
        assert "Without the reserve ('later')" in text
        assert f"{100 * (1 - math.sqrt(0.9)):.2g}\u00a0% smaller" in text
        ours, others = (part_of(each, "yearbook").noise for each in (budget, without))
        assert np.array(others.std_by_coordinate) == pytest.approx(
            math.sqrt(0.9) * np.array(ours.std_by_coordinate), rel=1e-6
        )
        assert "Without the reserve" not in str(without)

    def test_a_hopeless_signal_is_said(self, budget):
        assert "HOPELESS" not in str(budget)
        parts, shares = {"y": YEARBOOK, "m": TRAINING}, {"y": 0.9, "m": 1e-4}
        assert "HOPELESS" in str(certify_budget(parts, GUESS, shares=shares))

    def test_rows_of_the_table(self, budget):
        rows = budget.table_rows()
        assert [row["part"] for row in rows] == ["yearbook"] * 3 + ["monthly"] * 2 + ["later"]
        assert "Internal" not in budget._repr_html_()
        assert budget.is_secure

    def test_average_over_other_rows(self):
        text = str(certify_budget({"y": prevalence(YEAR, design="independent")}, GUESS))
        assert "on average over the other rows" in text


class TestChoices:
    def test_equal_shares_by_default(self):
        statement = certify_budget({"a": YEARBOOK, "b": EXTRA}, GUESS).budget
        assert [part.share for part in statement.parts] == [0.5, 0.5]

    def test_the_coupling_with_the_least_noise(self):
        query = queries.contingency_table({"site": ["a", "b"]}, statistic="rate")
        found = certify_budget({"a": prevalence(query), "b": prevalence(query)}, GUESS)
        assert found.budget.coupling == "cells:site"
        fixed = certify_budget({"a": prevalence(query)}, GUESS, coupling="independent")
        assert fixed.budget.coupling == "independent"
        assert verify(found).holds
        assert "matched by site" in str(found)

    def test_diagonal_noise(self):
        certificate = certify_budget(PARTS, GUESS, shares=SHARES, shape="diagonal")
        for part in certificate.budget.tables:
            whitening = np.array(part.noise.whitening)
            assert np.array_equal(whitening, np.diag(np.diagonal(whitening)))
        assert verify(certificate).holds

    def test_layers(self):
        layers = LayerClipping(
            names=("w", "b"), norms=(1.0, 2.0), sizes=(10, 2), allocation="equal"
        )
        training = attrs.evolve(TRAINING, clip_norm=layers)
        certificate = certify_budget({"y": YEARBOOK, "m": training}, GUESS)
        assert part_of(certificate, "m").plan.clipping.kind == "layers"
        assert verify(certificate).holds

    def test_a_quarter_is_made_of_months(self):
        parts = {
            "months": Repeated(MONTHLY, times=12, rows=(150, 180)),
            "quarters": Repeated(MONTHLY, times=4, rows=(450, 540)),
        }
        certificate = certify_budget(parts, GUESS, coupling="independent")
        worst = max(
            cost_by_hand(
                part_of(certificate, "quarters"),
                EARLIER,
                MONTH,
                n,
                math.ceil(Fraction("0.05") * n) + 2,
            )
            for n in range(450, 541)
        )
        part = part_of(certificate, "quarters")
        assert part.mean_square == pytest.approx(4 * worst, rel=1e-3)


def bits(n_copies=2):
    """Two fair bits of which the secret is whether they differ: rows of two kinds."""
    rows = [(a, b) for a in (0, 1) for b in (0, 1)] * n_copies
    return pa.table(
        {
            "A": [a for a, _ in rows],
            "B": [b for _, b in rows],
            "xor": ["yes" if a != b else "no" for a, b in rows],
        }
    )


@pytest.mark.soundness
class TestFalseRules:
    """Five tempting rules, each with its counterexample; docs/series.md has the numbers."""

    TRUE = 0.5 + 0.5 * (2 * ndtr(2.0) - 1) ** 2
    """Right guesses of the exclusive or of two bits, each published with noise of a quarter."""

    def scenario(self, *columns):
        return Scenario.from_prevalence(
            None,
            column="xor",
            value="yes",
            within=0.1,
            n_rows=10,
            query=queries.summary(count=[(column, queries.equals(1)) for column in columns]),
            moments_from=bits(),
        )

    def test_the_true_number(self):
        assert pytest.approx(0.955534873110961, rel=1e-12) == self.TRUE
        # By integration: the outputs of both bits, given that they are equal or differ.
        grid = np.linspace(-2.5, 3.5, 601)
        density = [norm.pdf(grid, bit, 0.25) for bit in (0, 1)]
        same = (np.outer(density[0], density[0]) + np.outer(density[1], density[1])) / 2
        differ = (np.outer(density[0], density[1]) + np.outer(density[1], density[0])) / 2
        step = (grid[1] - grid[0]) ** 2
        guesses = 0.5 + 0.25 * np.abs(same - differ).sum() * step
        assert guesses == pytest.approx(self.TRUE, abs=1e-4)

    def test_adding_the_best_couplings_of_single_releases(self):
        """Each bit alone is the same in both worlds, so 0.5 would be stated; 0.9555 is true.

        A budget of both bits needs noise for the change that one coupling makes to both.
        """
        parts = {"A": self.scenario("A"), "B": self.scenario("B")}
        certificate = certify_budget(parts, Guarantee.guess(at_most=0.97))
        evidence = certificate.evidence
        squares = [
            float(rows.mean_squares(Covariance(dim=1, std=0.25 / part.scenario.query.scales[0]))[0])
            for rows, part in zip(evidence.tables.values(), certificate.budget.tables, strict=True)
        ]
        assert squares == pytest.approx([8.0, 8.0], rel=1e-6)
        assert certificate.guarantee.mean_square_cost(sum(squares), 0.0) >= self.TRUE

    def test_couplings_chosen_part_by_part(self):
        """A by its own cells costs 0, B independently 8: 0.9214 would be stated, 0.9555 is true."""
        assert ndtr(math.sqrt(8) / 2) == pytest.approx(0.9214, abs=5e-5)
        assert ndtr(math.sqrt(8) / 2) < self.TRUE
        parts = {"A": self.scenario("A"), "B": self.scenario("B")}
        with pytest.raises(ScenarioError, match="part by part"):
            certify_budget(parts, GUESS, coupling="cells:A")
        both = self.scenario("A", "B")
        certificate = certify_budget(
            {"first": both, "second": both}, Guarantee.guess(at_most=0.97), coupling="cells:A"
        )
        # One coupling by A: A never changes, and B always does.
        (rows, _) = certificate.evidence.tables.values()
        scales = np.array(certificate.budget.tables[0].scenario.query.scales)
        moment = rows.with_differing(both.differing()).second_moments[0] * np.outer(scales, scales)
        assert np.diagonal(moment) == pytest.approx([0.0, 1.0], abs=1e-4)

    def test_the_same_name_of_another_label_is_another_coupling(self):
        one = queries.summary(count={"age": queries.above(40)})
        other = queries.summary(count={"age": queries.above(60)})
        parts = {"one": prevalence(one), "other": prevalence(other)}
        with pytest.raises(ScenarioError, match="different conditions"):
            certify_budget(parts, GUESS, coupling="cells:age")
        assert certify_budget(parts, GUESS).budget.coupling == "independent"

    def test_adding_costs_of_gaussian_priors(self):
        """Order 4, noise 1: s + V and V, with V ~ N(0, 100), cost 2/101 and 0 alone.

        Their sum would be 0.0198; together they cost 1.005, because V cancels.
        """
        covariance = np.array([[101.0, 100.0], [100.0, 101.0]])
        change = np.array([1.0, 0.0])
        alone = 2 * change**2 / np.diagonal(covariance)
        together = 2 * change @ np.linalg.solve(covariance, change)
        assert alone.sum() == pytest.approx(0.0198019801980198, rel=1e-12)
        assert together == pytest.approx(1.00497512437811, rel=1e-12)
        worlds = {
            name: GaussianDistribution(mean=[mean], cov=[[100.0]])
            for name, mean in (("low", 0.0), ("high", 1.0))
        }
        scenario = Scenario.from_worlds(worlds, query=queries.summary(mean=["x"]))
        with pytest.raises(ScenarioError, match="gaussian"):
            certify_budget({"one": scenario, "other": scenario}, GUESS)

    def test_joint_slices_with_a_common_direction(self):
        """Order 4, two slices, divergences 2 and 0, twice: 3.53955 by adding, 3.76895 in truth."""

        def joint(costs):
            return math.log(np.mean(np.exp(3 * np.array(costs)))) / 3

        assert 2 * joint([2.0, 0.0]) == pytest.approx(3.53955, abs=5e-6)
        assert joint([4.0, 0.0]) == pytest.approx(3.76895, abs=5e-6)
        sliced = Guarantee.joint(order=4, epsilon=1.0, profile=FiniteProfile.axes(dim=3))
        with pytest.raises(CalibrationError, match="Joint"):
            certify_budget({"year": YEARBOOK}, sliced)

    def test_enumerated_tables(self):
        """Tables of three rows with the bits, in two parts: every world, every output."""
        certificate = certify_budget(
            {"A": self.scenario("A"), "B": self.scenario("B")}, Guarantee.guess(at_most=0.8)
        )
        stds = [part.noise.std_by_coordinate[0] for part in certificate.budget.parts]
        grid = np.linspace(-6, 9, 301)
        kinds = {"no": [(0, 0), (1, 1)], "yes": [(0, 1), (1, 0)]}
        step = (grid[1] - grid[0]) ** 2

        def outputs(*rows):
            density = np.zeros((len(grid), len(grid)))
            tables = list(itertools.product(*(kinds[row] for row in rows)))
            for table in tables:
                sums = np.sum(table, axis=0)
                density += np.outer(
                    norm.pdf(grid, sums[0], stds[0]), norm.pdf(grid, sums[1], stds[1])
                )
            return density / len(tables) * step

        for common in itertools.product(kinds, repeat=2):
            reached = 0.5 + 0.25 * np.abs(outputs("no", *common) - outputs("yes", *common)).sum()
            assert reached <= certificate.budget.guess


WORLDS = Scenario.from_worlds(
    {"a": FiniteDistribution.uniform([[0.0]]), "b": FiniteDistribution.uniform([[1.0]])},
    query=queries.summary(mean=["x"]),
)
OTHER_N = prevalence(YEAR, n_rows=1_000)


def certified(parts=PARTS, guarantee=GUESS, **options):
    return certify_budget(parts, guarantee, **options)


def of_parts(**parts):
    return certify_budget(parts, GUESS)


def repeated(**options):
    settings = {"scenario": MONTHLY, "times": 12, "rows": (150, 180)} | options
    return Repeated(settings.pop("scenario"), **settings)


def training(**options):
    return attrs.evolve(TRAINING, **options)


def never_drawn():
    """A budget with a run whose batches are practically always empty."""
    table = prevalence(MONTH, within=1e-4, design="independent")
    drawn = Poisson(n_records=2_000, rate=5e-324)
    return of_parts(a=table, m=training(differing=table.differing(), sampling=drawn))


def of_person(person, scenario=YEARBOOK):
    return certify_budget({"year": scenario}, GUESS, person=person)


def certify_release_of_year():
    return certify_release(YEARBOOK, GUESS)


def wide(n):
    """A query with many features."""
    cells = {"hours": list(range(n))}
    return prevalence(queries.contingency_table(cells, allow_empty=True), n_rows=2_000, table=None)


REFUSED = {
    ArgumentError: [
        ("parts", certified, {}, [], None),
        ("named", certified, {"": YEARBOOK}, {1: YEARBOOK}),
        ("must be a scenario", lambda part: of_parts(year=part), "scenario.toml", 3),
        ("include a scenario", lambda: of_parts(model=TRAINING)),
        ("guarantee", lambda claim: certified(guarantee=claim), "guess", 0.64),
        ("shares", lambda shares: certified(shares=shares), {}, [0.5], SHARES | {"more": 0.1}),
        ("shares", lambda shares: certified(shares=shares), SHARES | {"later": 0.0}),
        ("shares", lambda shares: certified(shares=shares), SHARES | {"later": np.nan}),
        ("add up", lambda: certified(shares=SHARES | {"later": 0.2})),
        ("shape", lambda: certified(shape="isotropic")),
        ("'diagonal'", lambda: of_parts(cells=wide(2_001))),
        ("coupling", lambda name: certified(coupling=name), "transport", "cells", 3),
        ("person", of_person, 1.0, (1.0,), "ab"),
        ("epsilon", lambda: of_person((0.0, 1e-6))),
        ("delta", lambda: of_person((1.0, 0.0))),
        ("training", lambda: certified(person=(1.0, 1e-6))),
        ("moments_from", lambda: of_person((1.0, 1e-6), prevalence(YEAR, earlier=None))),
        ("times", keywords(repeated), {"times": 0}, {"times": 10_001}),
        ("rows", keywords(repeated), {"rows": None}, {"rows": 150}, {"rows": (180, 150)}),
        ("rows", keywords(repeated), {"rows": (1, 150)}, {"rows": (150, 2**43)}),
        ("rows", keywords(repeated), {"scenario": volume(), "rows": (1, 2)}),
        ("scenario", keywords(repeated), {"scenario": TABLE}),
        ("scenario", Reserve, TABLE),
        ("must divide", lambda: of_parts(m=REPEATED, q=repeated(times=5))),
        ("differing", keywords(training), {"differing": 100}),
        ("sampling", keywords(training), {"sampling": 0.1}),
        ("n_steps", keywords(training), {"n_steps": 0}),
    ],
    ScenarioError: [
        ("harmless alone", lambda: of_parts(a=YEARBOOK, b=WORLDS)),
        ("harmless alone", Reserve, WORLDS),
        ("different", lambda: of_parts(a=YEARBOOK, b=prevalence(YEAR, within=0.04))),
        ("different", lambda: of_parts(a=YEARBOOK, b=prevalence(YEAR, value="no"))),
        ("different", lambda: of_parts(a=YEARBOOK, b=volume())),
        ("different", lambda: of_parts(a=volume(), b=volume(ratio=1.2))),
        ("one number of rows", lambda: of_parts(a=YEARBOOK, b=OTHER_N)),
        ("'model'", lambda: of_parts(a=OTHER_N, model=TRAINING)),
        ("'model'", lambda: of_parts(a=volume(), model=TRAINING)),
        ("'model'", lambda: of_parts(a=REPEATED, model=TRAINING)),
        ("part by part", lambda: certified(coupling="cells:site")),
        ("periods=", lambda: repeated(scenario=home())),
    ],
    CalibrationError: [
        ("training", never_drawn),
        ("(4, 1)", lambda: certified(guarantee=Guarantee.unsliced(order=4, epsilon=1.0))),
        ("1e-05", lambda: certified(guarantee=Guarantee.epsilon_delta(1.0, 1e-5))),
        ("sampler", lambda: certified(guarantee=Guarantee.guess(at_most=0.5 + 1e-13))),
        ("sampler", lambda: of_person((1e-9, 1e-30))),
    ],
    CertificateError: [
        ("budgets", lambda: certify_release_of_year().budget),
        ("release", lambda: of_parts(a=YEARBOOK).released),
    ],
}


@pytest.mark.parametrize("refusal", refusals(REFUSED))
def test_refused(refusal):
    check_refused(refusal)


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        (("parts", 0, "name"), "monthly", "different names"),
        (("parts", 0, "share"), 0.9, "shares"),
        (("parts", 0, "times"), 3, "times"),
        (("parts", 1, "rows"), None, "rows"),
        (("parts", 1, "rows"), [180, 150], "rows"),
        (("parts", 0, "noise", "whitening"), [[1.0]], "one noise"),
        (("spent",), 0.65, "spent"),
        (("not_stated",), {"one_person": "no-finite-epsilon"}, "reason"),
        (("hypotheses",), [], "hypotheses"),
        (("limits",), ["one-budget"], "limits"),
        (("noise", "secure"), False, "secure"),
        (("coupling",), "transport", "coupling"),
        (("parts", 0, "scenario", "secret", "within"), 0.04, "n_differing"),
        (("guarantee",), {"notion": "unsliced", "order": 4.0, "epsilon": 1.0}, "notion"),
    ],
)
def test_statements_that_contradict_themselves(budget, path, value, word):
    with pytest.raises(CertificateError, match=word):
        read_statement(put(budget.statement.to_json(), path, value))
    assert statement_of(budget.statement.to_json()) == budget.statement
