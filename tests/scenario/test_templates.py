# SPDX-License-Identifier: Apache-2.0
"""Templates: prevalence, attribute, Markov chain and volume, with known answers."""

import re
from itertools import pairwise, product

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import binom

from pufferslice import GaussianDistribution, Guarantee, Scenario, certify_release, release, verify
from pufferslice.errors import ArgumentError, ReleaseError, ScenarioError, TableError
from pufferslice.queries import (
    at_least,
    contingency_table,
    group_by,
    histogram,
    intervals,
    linear_regression,
    summary,
)
from pufferslice.releases.value import fitting_value
from pufferslice.scenario.templates import (
    drawn_path,
    gaussian_process,
    ordered_pairs,
    state_counts,
)

RNG = np.random.default_rng(3)
N = 400
TABLE = pa.table(
    {
        "ill": ["yes"] * 150 + ["no"] * 250,
        "age": np.r_[RNG.normal(60, 8, 150), RNG.normal(40, 12, 250)],
        "visits": np.r_[RNG.poisson(6, 150), RNG.poisson(2, 250)].astype(float),
    }
)
QUERY = summary(mean=["age"], rate={"visits": 0.0}, scales={"age": 10, "visits": 0.1})


def prevalence(table=TABLE, **options):
    settings = {"column": "ill", "value": "yes", "shares": [0.3, 0.4], "query": QUERY}
    return Scenario.from_prevalence(table, **(settings | options))


class TestPrevalence:
    @pytest.mark.parametrize("design", ["stratified", "independent"])
    def test_moments_are_those_of_drawn_tables(self, design):
        formula = prevalence(design=design).priors[0].declared
        drawn = prevalence(design=design, prior="draws", n_draws=4000, seed=1).priors[0]
        for name, declared in formula.items():
            rows = drawn.distributions[name].outputs * QUERY.scales
            errors = np.sqrt(np.diag(declared.cov) / len(rows))
            assert (np.abs(rows.mean(axis=0) - declared.mean) < 5 * errors).all()
            # A variance of 4,000 draws is within 5 * sqrt(2 / 4000) of itself.
            sizes = np.sqrt(np.outer(np.diag(declared.cov), np.diag(declared.cov)))
            assert (np.abs(np.cov(rows.T) - declared.cov) < 0.12 * sizes).all()

    def test_known_answer(self):
        table = pa.table({"ill": ["yes"] * 2 + ["no"] * 2, "x": [0.0, 2.0, 10.0, 10.0]})

        def declared(n_rows, **options):
            options |= {"shares": [0.5, 0.9], "query": summary(mean=["x"]), "n_rows": n_rows}
            return prevalence(table, **options).priors[0].declared

        stratified = declared(10)
        assert stratified["50 %"].mean[0] == 0.5 * 1 + 0.5 * 10
        assert stratified["50 %"].cov[0, 0] == pytest.approx(0.5 * 1 / 10)
        independent = declared(10, design="independent")
        assert independent["50 %"].cov[0, 0] == pytest.approx((0.5 + 0.25 * 81) / 10)
        # 90 % of 11 rows are 10 rows.
        rounded = declared(11)
        assert rounded["90 %"].mean[0] == pytest.approx(10 / 11 * 1 + 1 / 11 * 10)

    def test_the_certificate_says_where_the_prior_comes_from(self, tmp_path):
        scenario = prevalence()
        certificate = certify_release(scenario, Guarantee.unsliced(order=4, epsilon=1.0))
        (prior,) = certificate.statement["scenario"]["priors"]
        assert "normal approximation" in prior["origin"]
        assert verify(certificate, scenario=scenario).holds
        published = release(scenario, TABLE, certificate, ledger=tmp_path / "ledger")
        assert published.names == QUERY.names

    def test_totals_and_counts_are_of_all_rows(self):
        query = summary(total=["age"], count={"ill": "yes"})
        declared = prevalence(query=query, n_rows=1000).priors[0].declared
        assert declared["30 %"].mean[1] == pytest.approx(300)
        ages = np.array(TABLE["age"])
        mean = 0.3 * ages[:150].mean() + 0.7 * ages[150:].mean()
        assert declared["30 %"].mean[0] == pytest.approx(1000 * mean)
        variance = 0.3 * ages[:150].var() + 0.7 * ages[150:].var()
        assert declared["30 %"].cov[0, 0] == pytest.approx(1000 * variance)

    def test_a_release_has_as_many_rows_as_declared(self, tmp_path):
        scenario = prevalence(n_rows=100)
        certificate = certify_release(scenario, Guarantee.unsliced(order=4, epsilon=1.0))
        with pytest.raises(ReleaseError, match="rows"):
            release(scenario, TABLE, certificate, ledger=tmp_path / "ledger")

    def test_pairs_within_a_difference(self):
        scenario = prevalence(shares=[0.3, 0.35, 0.5], within=0.06)
        assert scenario.pairs == (("30 %", "35 %"),)

    @pytest.mark.parametrize(
        "options",
        [
            {"shares": [0.3]},
            {"shares": [0.3, 1.5]},
            {"shares": [0.3, 0.3]},
            {"shares": [0.3, 0.3001]},
            {"design": "systematic"},
            {"prior": "exact"},
            {"seed": 3},
            {"prior": "draws"},
            {"prior": "draws", "seed": 1, "n_draws": 2**31},
            {"prior": "draws", "seed": 1, "n_rows": 2**70},
            {"n_rows": 1},
            {"within": 0.01},
        ],
    )
    def test_wrong_options(self, options):
        with pytest.raises(ArgumentError):
            prevalence(**options)

    def test_other_statistics_need_draws(self):
        with pytest.raises(ScenarioError, match="draws"):
            prevalence(query=summary(median=["age"]))
        reports = []
        drawn = prevalence(
            query=summary(median=["age"]),
            prior="draws",
            n_draws=20,
            seed=0,
            progress=lambda done, total: reports.append((done, total)),
        )
        assert drawn.prior_kind == "empirical"
        assert reports == [(k, 40) for k in range(1, 41)]

    @pytest.mark.parametrize("design", ["stratified", "independent"])
    @pytest.mark.parametrize(
        "query",
        [
            summary(std=["age"], covariance=[("age", "visits")], correlation=[("age", "visits")]),
            group_by({"visits": intervals([0, 3, 20])}, mean=["age"], std=["age"], total=["age"]),
            contingency_table({"ill": ["yes", "no"], "age": [at_least(50)]}, statistic="rate"),
            histogram("age", [0, 40, 60, 100], statistic="count"),
            linear_regression(features=["age"], targets=["visits"]),
        ],
        ids=lambda query: query.kind,
    )
    def test_the_delta_method_against_drawn_tables(self, query, design):
        options = {"query": query, "design": design, "n_rows": 2000, "shares": [0.3, 0.6]}
        formula = prevalence(**options).priors[0].declared
        drawn = prevalence(**options, prior="draws", n_draws=2000, seed=1).priors[0]
        for name, declared in formula.items():
            rows = drawn.distributions[name].outputs
            stds = np.sqrt(np.diag(declared.cov))
            # Sampling: 5 standard errors; the delta method: the second order, of size std^2.
            assert (np.abs(rows.mean(axis=0) - declared.mean) < 0.12 * stds + 1e-9).all()
            apart = np.abs(np.cov(rows.T) - declared.cov)
            assert (apart < 0.17 * np.outer(stds, stds) + 1e-12).all()

    def test_the_certificate_names_the_delta_method(self):
        linear, bent = prevalence(), prevalence(query=summary(std=["age"]))
        assert linear.priors[0].origin.endswith("normal approximation")
        assert bent.priors[0].origin.endswith("normal approximation by the delta method")

    def test_the_spread_of_a_constant_is_zero_without_doubt(self):
        table = pa.table(
            {
                "ill": ["yes", "no"] * 6,
                "part": ["one"] * 8 + ["two"] * 4,
                "x": [1.0] * 8 + [2.0] * 4,
                "y": [0.0, 1, 2, 3] * 3,
            }
        )
        query = group_by({"part": ["one"]}, std=["x", "y"], correlation=[("x", "y")])
        scenario = prevalence(table, shares=[0.25, 0.5], query=query)
        declared = scenario.priors[0].declared["50 %"]
        assert declared.mean[[0, 2]].tolist() == [0.0, 0.0]
        assert not declared.cov[[0, 2]].any()

    def test_a_group_that_a_world_does_not_have(self):
        table = pa.table({"ill": ["yes", "no"] * 4, "x": [0.0, 1, 2, 3] * 2})
        query = group_by({"x": [99, 2]}, mean=["x"], allow_empty=True)
        scenario = prevalence(table, shares=[0.25, 0.5], query=query)
        declared = scenario.priors[0].declared["50 %"]
        assert declared.mean.tolist() == [0.0, 2.0]
        assert declared.cov == pytest.approx(np.zeros((2, 2)), abs=1e-15)

    def test_a_value_that_nobody_or_everybody_has(self):
        table = pa.table({"ill": ["yes"] * 5 + ["no"], "age": [1.0, 2, 3, 4, 5, 6]})
        with pytest.raises(ScenarioError, match="at least 2 rows"):
            prevalence(table, query=summary(mean=["age"]))


class TestAttribute:
    MEAN = (0.0, 1.0, 2.0)
    COV = ((4.0, 2.0, 0.0), (2.0, 3.0, 0.5), (0.0, 0.5, 1.0))
    QUERY = summary(mean=["a", "b"])

    def scenario(self, **options):
        settings = {"query": self.QUERY, "values": [0.0, 2.0], "mean": self.MEAN, "cov": self.COV}
        return Scenario.from_attribute(**(settings | options))

    def test_cost_by_hand(self):
        # Y | a has the mean (1 + a / 2, 2) and the covariance [[2, 0.5], [0.5, 1]] for all a.
        scenario = self.scenario()
        declared = scenario.priors[0].declared
        assert declared["2"].mean.tolist() == [2.0, 2.0]
        assert declared["0"].cov.tolist() == [[2.0, 0.5], [0.5, 1.0]]
        certificate = certify_release(
            scenario, Guarantee.unsliced(order=4, epsilon=1.0), shape="isotropic"
        )
        total = np.array([[2.0, 0.5], [0.5, 1.0]]) + certificate.noise_std**2 * np.eye(2)
        shift = np.array([1.0, 0.0])
        assert 4 / 2 * shift @ np.linalg.solve(total, shift) == pytest.approx(1.0, rel=1e-6)

    @pytest.mark.parametrize(
        "options",
        [
            {"values": [1.0]},
            {"values": [1.0, 1.0]},
            {"mean": [0.0, 1.0]},
            {"mean": [0.0, 1.0], "cov": np.eye(2)},
            {"within": 0.1},
            {"cov": None},
            {"mean": None, "cov": None},
            {"history": pa.table({"attribute": [1.0]})},
        ],
    )
    def test_wrong_options(self, options):
        with pytest.raises(ArgumentError):
            self.scenario(**options)

    def test_a_history_gives_the_moments(self, rng):
        rows = rng.multivariate_normal(self.MEAN, self.COV, size=50)
        history = pa.table({"mean(b)": rows[:, 2], "a": rows[:, 1], "t": rows[:, 0]})
        known = {"mean": rows.mean(axis=0), "cov": np.cov(rows.T)}
        given = Scenario.from_attribute(
            query=self.QUERY, values=[0.0, 2.0], history=history, name="t"
        )
        wanted = self.scenario(**known, name="t")
        for secret, declared in given.priors[0].declared.items():
            np.testing.assert_allclose(declared.mean, wanted.priors[0].declared[secret].mean)
            np.testing.assert_allclose(declared.cov, wanted.priors[0].declared[secret].cov)
        assert "50 earlier cases" in given.priors[0].origin
        with pytest.raises(TableError):
            Scenario.from_attribute(query=self.QUERY, values=[0.0, 2.0], history=history)
        gapped = pa.concat_tables([history, history.slice(0, 1).set_column(0, "mean(b)", [[None]])],
                                  promote_options="permissive")  # fmt: skip
        options = {"values": [0.0, 2.0], "history": gapped, "name": "t"}
        with pytest.raises(TableError, match="1 of 51 rows have missing values"):
            Scenario.from_attribute(query=self.QUERY, **options)
        complete = Scenario.from_attribute(query=self.QUERY.with_missing("drop-rows"), **options)
        assert complete.distributions_digest() == given.distributions_digest()
        assert complete.n_dropped == 1

    @pytest.mark.parametrize(("columns", "fits"), [(("a", "b"), False), (None, True)])
    def test_a_case_of_columns_is_one_row(self, columns, fits, rng, tmp_path):
        """Cases by the names of the statistics may be tables; by columns, a case is a row."""
        rows = rng.multivariate_normal(self.MEAN, self.COV, size=50)
        names = ("t", *(columns or self.QUERY.names))
        history = pa.table(dict(zip(names, rows.T, strict=True)))
        scenario = Scenario.from_attribute(
            query=self.QUERY, values=[0.0, 2.0], history=history, name="t"
        )
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.6))
        two = pa.table({"a": [1.0, 2.0], "b": [2.0, 3.0]})
        if fits:
            assert release(scenario, two, certificate, ledger=tmp_path / "two").values.shape == (2,)
        else:
            with pytest.raises(
                ReleaseError, match=r"takes one row.*statistics: mean\(a\), mean\(b\)"
            ):
                release(scenario, two, certificate, ledger=tmp_path / "two")
        assert release(scenario, two[:1], certificate, ledger=tmp_path / "one").values.shape == (2,)

    @pytest.mark.soundness
    @pytest.mark.parametrize("missing", ["refuse", "drop-rows"])
    @pytest.mark.parametrize("as_file", [False, True])
    def test_missing_values_do_not_decide_whether_a_case_fits(
        self, missing, as_file, rng, tmp_path
    ):
        rows = rng.multivariate_normal(self.MEAN, self.COV, size=50)
        history = pa.table(dict(zip(("t", "a", "b"), rows.T, strict=True)))
        scenario = Scenario.from_attribute(
            query=self.QUERY.with_missing(missing), values=[0.0, 2.0], history=history, name="t"
        )

        def value(**columns):
            table = pa.table({name: pa.array(v, pa.float64()) for name, v in columns.items()})
            if as_file:
                pq.write_table(table, tmp_path / "case.parquet")
            return fitting_value(scenario, tmp_path / "case.parquet" if as_file else table)

        assert len(value(a=[1.0], b=[2.0])) == len(value(a=[None], b=[2.0])) == 2
        for a in ([1.0, 2.0], [1.0, None], [None, None]):
            with pytest.raises(ReleaseError, match="a release takes one row"):
                value(a=a, b=[2.0, 3.0])

    def test_a_gaussian_process_by_its_kernel(self):
        """Markov kernel: given the value at 2, times on both sides are independent."""
        mean, cov = gaussian_process(lambda s, t: np.exp(-abs(s - t)), [2.0, 1.0, 4.0], mean=3.0)
        assert mean.tolist() == [3.0] * 3
        scenario = self.scenario(mean=mean, cov=cov)
        declared = scenario.priors[0].declared["0"]
        np.testing.assert_allclose(declared.mean, 3 - 3 * np.exp([-1.0, -2.0]))
        np.testing.assert_allclose(declared.cov, np.diag(1 - np.exp([-2.0, -4.0])), atol=1e-12)


class TestMarkovChain:
    CHAIN = ((0.9, 0.1), (0.2, 0.8))

    def test_known_answers(self):
        query = summary(count={"state": 1})
        scenario = Scenario.from_markov_chain(self.CHAIN, length=12, positions=[5], query=query)
        laws = scenario.priors[0].distributions
        first = laws["state 0 at 5"].counts / 2**30
        second = laws["state 1 at 5"].counts / 2**30
        assert first[:3] == pytest.approx([0.3138106, 0.13947138, 0.13339701], abs=1e-8)
        assert second[-3:] == pytest.approx([0.087996498, 0.067108864, 0.085899346], abs=1e-8)
        certificate = certify_release(scenario, Guarantee.unsliced(order=4, epsilon=1.0))
        assert certificate.noise_std**2 == pytest.approx(59.7779278691121, rel=1e-7)
        assert certificate.evidence.full.differences.worst().max() == pytest.approx(6.0)

    def test_a_release_has_a_row_for_each_time(self, tmp_path):
        query = summary(count={"state": 1})
        scenario = Scenario.from_markov_chain(self.CHAIN, length=12, positions=[5], query=query)
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.7))
        states = pa.table({"state": [0, 1] * 6})
        one_more = pa.table({"state": [0, 1] * 6 + [None]})
        for rows in (states[:10], one_more, pa.concat_tables([states, states])):
            with pytest.raises(ReleaseError, match="one row for each time"):
                release(scenario, rows, certificate, ledger=tmp_path / "ledger")
        assert release(scenario, states, certificate, ledger=tmp_path / "ledger").values.size == 1

    THREE = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]])
    START = np.array([0.2, 0.5, 0.3])

    def enumerated(self, chain, start, length, known, state, counted):
        """Probabilities of the counts, by a sum over all paths."""
        truth: dict[tuple[int, ...], float] = {}
        for path in product(range(len(chain)), repeat=length):
            if all(path[time] == state for time in known):
                p = start[path[0]] * np.prod([chain[a, b] for a, b in pairwise(path)])
                key = tuple(sum(path[t] == s for t in window) for window, s in counted)
                truth[key] = truth.get(key, 0.0) + p
        return {key: mass / sum(truth.values()) for key, mass in truth.items()}

    @pytest.mark.parametrize("known", [range(2, 3), range(1, 4), range(5)])
    @pytest.mark.parametrize(
        "counted",
        [
            [(range(5), 1), (range(5), 2)],
            [(range(2), 1), (range(2, 5), 1)],
            [(range(4), 0), (range(1, 5), 2), (range(3, 4), 1)],
        ],
    )
    def test_three_states_against_enumeration(self, known, counted):
        truth = self.enumerated(self.THREE, self.START, 5, known, 1, counted)
        counts = state_counts(self.THREE, self.START, 5, known, 1, counted)
        for key, mass in truth.items():
            assert counts[key] == pytest.approx(mass)
        assert np.count_nonzero(counts) == len(truth)

    def test_windows_and_intervals(self):
        query = group_by({"hour": intervals([0, 4, 8])}, count={"state": 1})
        scenario = Scenario.from_markov_chain(
            self.CHAIN, length=8, positions=[(2, 4), 7], windows=[(0, 4), (4, 8)], query=query
        )
        assert scenario.secrets == (
            "state 0 from 2 to 4", "state 1 from 2 to 4", "state 0 at 7", "state 1 at 7",
        )  # fmt: skip
        assert scenario.pairs == (scenario.secrets[:2], scenario.secrets[2:])
        held = scenario.priors[0].distributions["state 1 from 2 to 4"]
        windows = [(range(4), 1), (range(4, 8), 1)]
        chain = np.array(self.CHAIN)
        truth = self.enumerated(chain, [2 / 3, 1 / 3], 8, range(2, 5), 1, windows)
        assert len(truth) == held.n_samples
        for output, count in zip(held.outputs, held.counts, strict=True):
            assert count / 2**30 == pytest.approx(truth[tuple(output)], abs=2**-30)
        table = pa.table({"hour": range(8), "state": [0, 1, 1, 1, 0, 0, 1, 0]})
        assert query.outputs(table).tolist() == [[3.0, 1.0]]

    @pytest.mark.parametrize("known", [range(3, 4), range(2, 5)])
    def test_drawn_paths_follow_the_exact_distribution(self, known):
        n = 40_000
        rng = np.random.default_rng(6)
        path = drawn_path(self.THREE, self.START, 6, known, 2, n, rng)
        assert (path[:, known.start : known.stop] == 2).all()
        counted = [(range(6), 1), (range(3), 0)]
        exact = state_counts(self.THREE, self.START, 6, known, 2, counted)
        drawn = np.zeros_like(exact)
        np.add.at(drawn, ((path == 1).sum(axis=1), (path[:, :3] == 0).sum(axis=1)), 1)
        assert not drawn[exact == 0].any()
        # Five standard errors of each share.
        assert (np.abs(drawn / n - exact) <= 5 * np.sqrt(exact / n)).all()

    def test_draws_of_a_long_chain(self):
        chain = [[0.5, 0.5], [0.5, 0.5]]
        options = {"length": 100, "positions": [50], "query": summary(count={"state": 1})}
        scenario = Scenario.from_markov_chain(chain, **options, n_draws=500, seed=4)
        prior = scenario.priors[0]
        assert prior.origin.endswith("500 draws per secret, public seed 4; the drawn sample is "
                                     "declared to be the prior")  # fmt: skip
        means = [d.mean[0] for d in prior.distributions.values()]
        # A hundred coins, one of them known; the standard error is 0.22.
        assert means == pytest.approx([49.5, 50.5], abs=1.2)

    @pytest.mark.parametrize("draws", [{}, {"n_draws": 10, "seed": 0}])
    def test_impossible_states_are_left_out(self, draws):
        chain = [[0.0, 0.5, 0.5], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]
        scenario = Scenario.from_markov_chain(
            chain,
            length=4,
            positions=[(1, 2), 0],
            start=[0.5, 0.5, 0.0],
            counted=[1],
            query=summary(count={"state": 1}),
            **draws,
        )
        assert scenario.secrets == (
            "state 1 from 1 to 2", "state 2 from 1 to 2", "state 0 at 0", "state 1 at 0",
        )  # fmt: skip

    def test_every_position_is_protected_and_several_chains_are_priors(self):
        query = summary(count={"state": 1})
        scenario = Scenario.from_markov_chain(
            {"calm": self.CHAIN, "busy": [[0.5, 0.5], [0.5, 0.5]]},
            length=6,
            positions=range(6),
            query=query,
        )
        assert len(scenario.pairs) == 6
        assert [prior.name for prior in scenario.priors] == ["calm", "busy"]

    @pytest.mark.parametrize(
        "options",
        [
            {"transition": [[0.9, 0.2], [0.2, 0.8]]},
            {"transition": [[0.9, 0.1], [0.2, 0.800005]]},
            {"transition": [[1.0]]},
            {"transition": [[1.0, 0.0], [0.0, 1.0]]},
            {"transition": {}},
            {"start": [0.5, 0.6]},
            {"positions": [6]},
            {"positions": [2.5]},
            {"positions": [(3, 2)]},
            {"positions": [(1, 2, 3)]},
            {"windows": [(0, 7)]},
            {"windows": [(3, 3)]},
            {"windows": [4]},
            {"windows": [(0, 3), (3, 6)]},
            {"n_draws": 10},
            {"seed": 1},
            {"n_draws": 1, "seed": 1},
            {"n_draws": 2**31, "seed": 1},
            {"n_draws": 2**70, "seed": 1},
            {"counted": [-1]},
            {"counted": [7]},
            {"length": 1},
            {"length": 2**70},
            {"query": summary(count=[("state", 1), ("state", 0)])},
            {"query": summary(count={"state": 1}).with_missing("drop-rows")},
        ],
    )
    def test_wrong_options(self, options):
        settings = {
            "transition": self.CHAIN,
            "length": 6,
            "positions": [2],
            "query": summary(count={"state": 1}),
        }
        with pytest.raises(ArgumentError):
            Scenario.from_markov_chain(**(settings | options))

    def test_counts_that_are_too_rare_are_left_out_and_said(self):
        """A hundred coins, one of them known: the others are binomial, without their far tails."""
        chain, query = [[0.5, 0.5], [0.5, 0.5]], summary(count={"state": 1})
        scenario = Scenario.from_markov_chain(chain, length=100, positions=[50], query=query)
        (prior,) = scenario.priors
        for own, held in enumerate(prior.distributions.values()):
            exact = binom.pmf(held.outputs[:, 0] - own, 99, 0.5)
            rare = 1 - exact.sum()
            assert exact.min() >= 2.0**-24
            np.testing.assert_allclose(held.counts / held.total, exact / exact.sum(), rtol=0.01)
        stated = float(re.search(r"of probability (\S+) together", prior.origin)[1])
        assert stated == pytest.approx(rare, rel=0.05)
        assert 0 < rare < 1e-6
        short = Scenario.from_markov_chain(chain, length=8, positions=[5], query=query)
        assert "left out" not in short.priors[0].origin

    def test_too_many_counts(self):
        chain = np.full((5, 5), 0.2)
        query = summary(count=[("state", state) for state in range(1, 5)])
        with pytest.raises(ScenarioError, match="cells"):
            Scenario.from_markov_chain(chain, length=200, positions=[3], query=query)


class TestVolume:
    def test_known_answer(self):
        table = pa.table({"spent": [1.0, 3.0]})
        query = summary(mean=["spent"], total=["spent"], count={"spent": 3.0})
        scenario = Scenario.from_volume(table, sizes=[100, 105, 200], query=query, ratio=1.1)
        assert scenario.pairs == (("100 rows", "105 rows"),)
        declared = scenario.priors[0].declared["100 rows"]
        assert declared.mean.tolist() == [2.0, 200.0, 50.0]
        assert np.diag(declared.cov) == pytest.approx([0.01, 100.0, 25.0])

    @pytest.mark.parametrize("sizes", [[10], [10, 10], [1, 2]])
    def test_wrong_sizes(self, sizes):
        with pytest.raises(ArgumentError):
            Scenario.from_volume(
                pa.table({"x": [1.0, 2.0]}), sizes=sizes, query=summary(mean=["x"]), ratio=1.5
            )


VALUES = {"a": 1.0, "b": 1.5, "c": 4.0}


class TestOrderedPairs:
    def test_rules(self):
        assert ordered_pairs(VALUES, difference=0.5) == [("a", "b")]
        assert ordered_pairs(VALUES, ratio=3) == [("a", "b"), ("b", "c")]
        assert ordered_pairs(VALUES, nearest=1) == [("a", "b"), ("b", "c")]
        assert len(ordered_pairs(VALUES, nearest=2)) == 3

    @pytest.mark.parametrize(
        ("values", "rule"),
        [
            (VALUES, {}),
            (VALUES, {"ratio": 2, "difference": 1}),
            (VALUES, {"ratio": 1.01}),
            (VALUES, {"ratio": 0.5}),
            (VALUES, {"difference": 0.0}),
            (VALUES, {"nearest": 0}),
            ({"a": 1.0}, {"nearest": 1}),
            ({"a": 1.0, "b": float("nan")}, {"nearest": 1}),
            ({"a": -1.0, "b": 1.0}, {"ratio": 2}),
        ],
    )
    def test_wrong_rules(self, values, rule):
        with pytest.raises(ArgumentError):
            ordered_pairs(values, **rule)


class TestGaussians:
    def test_conditioning_does_not_cancel(self):
        cov = [[1.6044, 1.6e5], [1.6e5, 1.6e10]]
        from fractions import Fraction

        exact = Fraction(1.6e10) - Fraction(1.6e5) ** 2 / Fraction(1.6044)
        joint = GaussianDistribution(mean=[0.0, 0.0], cov=cov)
        assert joint.conditioned(on=[0], at=[1.0]).cov[0, 0] == float(exact)

    def test_from_draws(self):
        rows = np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]])
        drawn = GaussianDistribution.from_draws(rows)
        assert drawn.mean.tolist() == [2.0, 2.0]
        assert np.allclose(drawn.cov, np.cov(rows.T))

    @pytest.mark.parametrize(
        "call",
        [
            lambda: GaussianDistribution.from_draws([[1.0]]),
            lambda: GaussianDistribution(mean=[0.0], cov=[[1.0]]).conditioned(on=[0], at=[1.0]),
            lambda: GaussianDistribution(mean=[0.0, 0.0], cov=np.eye(2)).conditioned(on=[], at=[]),
            lambda: TestAttribute().scenario(values=[np.nan, 1.0]),
            lambda: GaussianDistribution(mean=[0.0, 0.0], cov=np.zeros((2, 2))).conditioned(
                on=[0], at=[1.0]
            ),
        ],
    )
    def test_wrong_calls(self, call):
        with pytest.raises(ArgumentError):
            call()
