# SPDX-License-Identifier: Apache-2.0
"""Templates: prevalence, attribute, Markov chain and volume, with known answers."""

from itertools import pairwise, product

import numpy as np
import pyarrow as pa
import pytest

from pufferslice import GaussianDistribution, Guarantee, Scenario, certify_release, release, verify
from pufferslice.errors import ArgumentError, ReleaseError, ScenarioError
from pufferslice.queries import summary
from pufferslice.scenario.templates import ordered_pairs, state_counts

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


def prevalence(**options):
    settings = {"column": "ill", "value": "yes", "shares": [0.3, 0.4], "query": QUERY}
    return Scenario.from_prevalence(TABLE, **(settings | options))


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
        query = summary(mean=["x"])
        common = {"column": "ill", "value": "yes", "shares": [0.5, 0.9], "query": query}
        stratified = Scenario.from_prevalence(table, n_rows=10, **common).priors[0].declared
        assert stratified["50 %"].mean[0] == 0.5 * 1 + 0.5 * 10
        assert stratified["50 %"].cov[0, 0] == pytest.approx(0.5 * 1 / 10)
        independent = (
            Scenario.from_prevalence(table, n_rows=10, design="independent", **common)
            .priors[0]
            .declared
        )
        assert independent["50 %"].cov[0, 0] == pytest.approx((0.5 + 0.25 * 81) / 10)
        # 90 % of 11 rows are 10 rows.
        rounded = Scenario.from_prevalence(table, n_rows=11, **common).priors[0].declared
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
            {"n_rows": 1},
            {"within": 0.01},
        ],
    )
    def test_wrong_options(self, options):
        with pytest.raises(ArgumentError):
            prevalence(**options)

    def test_other_statistics_need_draws(self):
        with pytest.raises(ScenarioError, match="draws"):
            prevalence(query=summary(std=["age"]))
        drawn = prevalence(query=summary(std=["age"]), prior="draws", n_draws=20, seed=0)
        assert drawn.prior_kind == "empirical"

    def test_a_value_that_nobody_or_everybody_has(self):
        with pytest.raises(ScenarioError, match="at least 2 rows"):
            Scenario.from_prevalence(
                pa.table({"ill": ["yes"] * 5 + ["no"], "age": [1.0, 2, 3, 4, 5, 6]}),
                column="ill",
                value="yes",
                shares=[0.3, 0.4],
                query=summary(mean=["age"]),
            )


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
        ],
    )
    def test_wrong_options(self, options):
        with pytest.raises(ArgumentError):
            self.scenario(**options)


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

    def test_three_states_against_enumeration(self):
        chain = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]])
        start, length, position, state = np.array([0.2, 0.5, 0.3]), 5, 2, 1
        truth: dict[tuple[int, int], float] = {}
        for path in product(range(3), repeat=length):
            if path[position] == state:
                p = start[path[0]] * np.prod([chain[a, b] for a, b in pairwise(path)])
                key = (path.count(1), path.count(2))
                truth[key] = truth.get(key, 0.0) + p
        total = sum(truth.values())
        counts = state_counts(chain, start, length, position, state, [1, 2])
        for key, mass in truth.items():
            assert counts[key] == pytest.approx(mass / total)
        assert np.count_nonzero(counts) == len(truth)

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
            {"transition": [[1.0]]},
            {"transition": [[1.0, 0.0], [0.0, 1.0]]},
            {"transition": {}},
            {"start": [0.5, 0.6]},
            {"positions": [6]},
            {"positions": [2.5]},
            {"counted": [-1]},
            {"counted": [7]},
            {"length": 1},
            {"query": summary(count=[("state", 1), ("state", 0)])},
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

    def test_probabilities_that_are_too_rare(self):
        query = summary(count={"state": 1})
        with pytest.raises(ScenarioError, match="too rare"):
            Scenario.from_markov_chain(
                [[1.0, 0.0], [0.9, 0.1]], length=60, positions=[0], query=query, start=[0.5, 0.5]
            )

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

    def test_from_draws_and_of_means(self):
        rows = np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]])
        drawn = GaussianDistribution.from_draws(rows)
        assert drawn.mean.tolist() == [2.0, 2.0]
        assert np.allclose(drawn.cov, np.cov(rows.T))
        means = GaussianDistribution.of_means(rows, 10)
        assert np.allclose(means.cov, np.cov(rows.T, ddof=0) / 10)

    @pytest.mark.parametrize(
        "call",
        [
            lambda: GaussianDistribution.from_draws([[1.0]]),
            lambda: GaussianDistribution.of_means([[1.0], [2.0]], 0),
            lambda: GaussianDistribution(mean=[0.0], cov=[[1.0]]).conditioned(on=[0], at=[1.0]),
            lambda: GaussianDistribution(mean=[0.0, 0.0], cov=np.eye(2)).conditioned(on=[], at=[]),
            lambda: GaussianDistribution(mean=[0.0, 0.0], cov=np.zeros((2, 2))).conditioned(
                on=[0], at=[1.0]
            ),
        ],
    )
    def test_wrong_calls(self, call):
        with pytest.raises(ArgumentError):
            call()
