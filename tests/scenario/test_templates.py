# SPDX-License-Identifier: Apache-2.0
"""Templates: prevalence, attribute, Markov chain and volume, with known answers."""

import re
from itertools import pairwise, product

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import binom, norm

from pufferslice import (
    GaussianDistribution,
    Guarantee,
    Scenario,
    certify_release,
    release,
    verify,
)
from pufferslice.data import read_table
from pufferslice.errors import ReleaseError
from pufferslice.queries import (
    columns,
    group_by,
    intervals,
    summary,
)
from pufferslice.scenario.attribute import gaussian_process
from pufferslice.scenario.markov import drawn_path, state_counts
from pufferslice.scenario.pairs import ordered_pairs

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


class TestDrawnPrevalence:
    def scenario(self, table=TABLE, **options):
        settings = {
            "column": "ill",
            "value": "yes",
            "shares": [0.3, 0.4],
            "query": summary(median=["age"]),
            "prior": "draws",
            "n_draws": 20,
            "seed": 0,
        }
        return Scenario.from_prevalence(table, **(settings | options))

    @pytest.mark.parametrize("design", ["stratified", "independent"])
    def test_moments_are_those_of_drawn_tables(self, design):
        query = summary(mean=["age"])
        drawn = self.scenario(query=query, design=design, n_draws=4000, seed=1).priors[0]
        ages, ill = np.array(TABLE["age"]), np.array(TABLE["ill"]) == "yes"
        with_it, without = ages[ill], ages[~ill]
        for share, world in zip((0.3, 0.4), drawn.distributions.values(), strict=True):
            mean = share * with_it.mean() + (1 - share) * without.mean()
            variance = (share * with_it.var() + (1 - share) * without.var()) / N
            if design == "independent":
                variance += share * (1 - share) * (with_it.mean() - without.mean()) ** 2 / N
            assert abs(world.outputs.mean() - mean) < 5 * np.sqrt(variance / 4000)
            # A variance of 4,000 draws is within 5 * sqrt(2 / 4000) of itself.
            assert world.outputs.var() == pytest.approx(variance, rel=0.12)

    def test_draws_are_the_prior(self):
        reports = []
        drawn = self.scenario(progress=lambda done, total: reports.append((done, total)))
        assert drawn.prior_kind == "empirical"
        assert reports == [(k, 40) for k in range(1, 41)]

    def test_pairs_within_a_difference(self):
        scenario = self.scenario(shares=[0.3, 0.35, 0.5], within=0.06)
        assert scenario.pairs == (("30 %", "35 %"),)


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

    def test_a_gaussian_process_by_its_kernel(self):
        """Markov kernel: given the value at 2, times on both sides are independent."""
        mean, cov = gaussian_process(lambda s, t: np.exp(-abs(s - t)), [2.0, 1.0, 4.0], mean=3.0)
        assert mean.tolist() == [3.0] * 3
        scenario = self.scenario(mean=mean, cov=cov)
        declared = scenario.priors[0].declared["0"]
        np.testing.assert_allclose(declared.mean, 3 - 3 * np.exp([-1.0, -2.0]))
        np.testing.assert_allclose(declared.cov, np.diag(1 - np.exp([-2.0, -4.0])), atol=1e-12)


class TestAttributeOfAHistory:
    """Earlier cases in bins: their rows are the distribution, and no normal one."""

    CASES = pa.table({"grade": [1.0, 3.0, 6.0, 8.0, 14.0, 15.0], "days": [0, 1, 4, 5, 30, 31]})

    def scenario(self, history=CASES, **options):
        settings = {"query": columns(["days"]), "name": "grade", "bins": [5, 10]}
        return Scenario.from_attribute(history=history, **(settings | options))

    def test_cost_by_hand(self):
        """Days 0 and 1 under one bin, 4 and 5 under the other: pieces that are 4 apart."""
        scenario = self.scenario(self.CASES.slice(0, 4), bins=[5])
        assert scenario.secrets == ("grade < 5", "grade >= 5")
        assert scenario.distribution == "records"
        assert scenario.priors[0].source == "held_out"
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.7))
        assert certificate.noise_std == pytest.approx(4 / (2 * norm.ppf(0.7)), rel=1e-6)

    def test_pairs_of_bins_that_hold_close_numbers(self):
        """4.9 and 10 are in the outer bins and 5.1 apart."""
        low, middle, high = self.scenario().secrets
        assert self.scenario(within=5).pairs == ((low, middle), (middle, high))
        assert len(self.scenario(within=5.1).pairs) == len(self.scenario().pairs) == 3

    def test_right_guesses_on_real_pupils(self, data_folder):
        """The best threshold on absences, chosen on the same draws, stays below the claim.

        Noise that was fitted to these rows as if they were normal let a rule of one line be right
        89.3 % of the time where 51.5 % were stated.
        """
        pupils = read_table(data_folder / "student-mat.csv.gz")
        options = {"name": "G3", "bins": [1, 10], "query": columns(["absences"])}
        scenario = self.scenario(pupils, **options)
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.6))
        rng, n, best = np.random.default_rng(1), 100_000, []
        grades, absences = pupils["G3"].to_numpy(), pupils["absences"].to_numpy().astype(float)
        kinds = [grades < 1, (grades >= 1) & (grades < 10), grades >= 10]
        for first, second in ((0, 1), (0, 2), (1, 2)):
            drawn = [rng.choice(absences[kinds[kind]], n) for kind in (first, second)]
            noisy = [each + certificate.noise_std * rng.normal(size=n) for each in drawn]
            cuts = np.linspace(-20, 40, 301)
            below = [np.searchsorted(np.sort(each), cuts) / n for each in noisy]
            best.append(0.5 + np.abs(below[0] - below[1]).max() / 2)
        assert max(best) <= 0.6 + 4 * 0.5 / np.sqrt(2 * n)
        assert max(best) > 0.58  # the noise is not larger than needed

    def test_a_release_reads_no_column_of_the_secret(self, tmp_path):
        """Which bin a new case is in may not be known yet."""
        certificate = certify_release(self.scenario(), Guarantee.guess(at_most=0.7))
        case, ledger = pa.table({"days": [17]}), tmp_path / "ledger"
        with pytest.raises(ReleaseError, match="exactly one row"):
            release(self.scenario(), pa.table({"days": [1, 2]}), certificate, ledger=ledger)
        assert release(self.scenario(), case, certificate, ledger=ledger).names == ("days",)
        assert verify(certificate, scenario=self.scenario()).holds


class TestMarkovChain:
    CHAIN = ((0.9, 0.1), (0.2, 0.8))

    def test_known_answers(self):
        query = summary(count={"state": 1})
        scenario = Scenario.from_occupancy(self.CHAIN, length=12, positions=[5], query=query)
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
        scenario = Scenario.from_occupancy(self.CHAIN, length=12, positions=[5], query=query)
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
        scenario = Scenario.from_occupancy(
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
        scenario = Scenario.from_occupancy(chain, **options, n_draws=500, seed=4)
        prior = scenario.priors[0]
        assert prior.origin.endswith("500 draws per secret, public seed 4; the drawn sample is "
                                     "declared to be the prior")  # fmt: skip
        means = [d.mean[0] for d in prior.distributions.values()]
        # A hundred coins, one of them known; the standard error is 0.22.
        assert means == pytest.approx([49.5, 50.5], abs=1.2)

    @pytest.mark.parametrize("draws", [{}, {"n_draws": 10, "seed": 0}])
    def test_impossible_states_are_left_out(self, draws):
        chain = [[0.0, 0.5, 0.5], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]
        scenario = Scenario.from_occupancy(
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
        scenario = Scenario.from_occupancy(
            {"calm": self.CHAIN, "busy": [[0.5, 0.5], [0.5, 0.5]]},
            length=6,
            positions=range(6),
            query=query,
        )
        assert len(scenario.pairs) == 6
        assert [prior.name for prior in scenario.priors] == ["calm", "busy"]

    def test_counts_that_are_too_rare_are_left_out_and_said(self):
        """A hundred coins, one of them known: the others are binomial, without their far tails."""
        chain, query = [[0.5, 0.5], [0.5, 0.5]], summary(count={"state": 1})
        scenario = Scenario.from_occupancy(chain, length=100, positions=[50], query=query)
        (prior,) = scenario.priors
        for own, held in enumerate(prior.distributions.values()):
            exact = binom.pmf(held.outputs[:, 0] - own, 99, 0.5)
            rare = 1 - exact.sum()
            assert exact.min() >= 2.0**-24
            np.testing.assert_allclose(held.counts / held.total, exact / exact.sum(), rtol=0.01)
        stated = float(re.search(r"of probability (\S+) together", prior.origin)[1])
        assert stated == pytest.approx(rare, rel=0.05)
        assert 0 < rare < 1e-6
        short = Scenario.from_occupancy(chain, length=8, positions=[5], query=query)
        assert "left out" not in short.priors[0].origin


VALUES = {"a": 1.0, "b": 1.5, "c": 4.0}


class TestOrderedPairs:
    def test_rules(self):
        assert ordered_pairs(VALUES, difference=0.5) == [("a", "b")]
        assert ordered_pairs(VALUES, ratio=3) == [("a", "b"), ("b", "c")]
        assert ordered_pairs(VALUES, nearest=1) == [("a", "b"), ("b", "c")]
        assert len(ordered_pairs(VALUES, nearest=2)) == 3


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
