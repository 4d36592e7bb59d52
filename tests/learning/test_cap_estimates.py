# SPDX-License-Identifier: Apache-2.0
"""Tail caps and mean squares.

Known distributions, closed forms, simulation, and what a run leaves open.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pufferslice.errors import ArgumentError
from pufferslice.learning.caps import (
    AcrossRounds,
    MeanSquareCap,
    TailCap,
    across_rounds,
    hoeffding_tail_cap,
    mean_square_cap_estimate,
    mismatch_mean_square_cap,
    simulate_discrepancies,
    tail_cap,
    tail_cap_estimate,
    uniform_mean_square_cap_estimate,
    uniform_tail_cap_estimate,
)
from pufferslice.learning.sampling import WithoutReplacement, WithReplacement
from pufferslice.sensitivity.concentration import dkw_halfwidth

COUNTS = np.array([0, 1, 1, 2, 4])
"""Mean square 22/5."""


class TestHalfwidth:
    def test_known_answer(self):
        assert dkw_halfwidth(1000, 0.05) == pytest.approx(0.0429469408346738, rel=1e-14)

    @pytest.mark.parametrize(("n", "failure"), [(0, 0.1), (10, 0.0), (10, 1.0), (10, math.nan)])
    def test_refusals(self, n, failure):
        with pytest.raises(ArgumentError, match=r"n_samples|failure_probability"):
            dkw_halfwidth(n, failure)


class TestTailCapOfADistribution:
    LAW = (np.array([0, 2, 5]), np.log([0.5, 0.3, 0.2]))

    @pytest.mark.parametrize(("tail", "value"), [(0.6, 0), (0.4, 2), (0.21, 2), (0.19, 5)])
    def test_by_hand(self, tail, value):
        """P(> 0) = 0.5, P(> 2) = 0.2, P(> 5) = 0."""
        cap = tail_cap(*self.LAW, tail_probability=tail)
        assert cap == TailCap(value=value, tail_probability=tail, failure_probability=0.0)

    @given(
        n=st.integers(1, 60), share=st.floats(0.01, 0.99), log_tail=st.floats(math.log(1e-250), 0)
    )
    def test_agrees_with_scipy(self, n, share, log_tail):
        counts = np.arange(n + 1)
        tail = math.exp(log_tail) * 0.999
        value = tail_cap(counts, stats.binom.logpmf(counts, n, share), tail_probability=tail).value
        assert stats.binom.sf(value, n, share) <= tail * (1 + 1e-9)
        assert value == 0 or stats.binom.sf(value - 1, n, share) > tail * (1 - 1e-9)

    def test_far_tails_are_not_lost(self):
        """P(K > 9) = 0.01^10 for ten records at rate 0.01: below 1e-19, above 1e-21."""
        counts = np.arange(11)
        logs = stats.binom.logpmf(counts, 10, 0.01)
        assert tail_cap(counts, logs, tail_probability=1.01e-20).value == 9
        assert tail_cap(counts, logs, tail_probability=0.99e-20).value == 10

    def test_of_a_sampling_design(self):
        distribution = WithoutReplacement(
            n_records=50_000, batch_size=512
        ).discrepancy_distribution(20)
        cap = tail_cap(distribution.counts, distribution.log_probabilities, tail_probability=1e-6)
        exact = stats.hypergeom(50_000, 20, 512)
        assert exact.sf(cap.value) <= 1e-6 < exact.sf(cap.value - 1)

    @pytest.mark.parametrize(
        ("counts", "probabilities", "tail", "complaint"),
        [
            ([0, 1], [0.5, 0.5], 0.0, "tail_probability must lie strictly between 0 and 1"),
            ([0, 1], [0.5, 0.4], 0.1, "must sum to 1, got 0.9"),
            ([0, 1], [0.5, math.nan], 0.1, "must sum to 1, got nan"),
            ([1, 0], [0.5, 0.5], 0.1, "counts must ascend"),
            ([0, 1], [0.5, 0.3, 0.2], 0.1, r"got shapes \(2,\) and \(3,\)"),
            ([0.0, 1.0], [0.5, 0.5], 0.1, "counts must be a non-empty line of whole numbers"),
            ([-1, 1], [0.5, 0.5], 0.1, "counts must be a non-empty line of whole numbers"),
            ([], [], 0.1, "counts must be a non-empty line"),
        ],
    )
    def test_refusals(self, counts, probabilities, tail, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            tail_cap(counts, np.log(probabilities), tail_probability=tail)


class TestClosedForms:
    def test_hoeffding_by_hand(self):
        """100 * 0.1 + sqrt(50 ln 100) = 10 + 15.17."""
        cap = hoeffding_tail_cap(batch_size=100, mismatch_probability=0.1, tail_probability=0.01)
        assert cap == TailCap(value=25, tail_probability=0.01, failure_probability=0.0)
        everything = hoeffding_tail_cap(
            batch_size=3, mismatch_probability=1.0, tail_probability=0.01
        )
        assert everything.value == 3

    def test_mean_square_by_hand(self):
        """100 * 0.1 * 0.9 + 10^2."""
        cap = mismatch_mean_square_cap(batch_size=100, mismatch_probability=0.1)
        assert cap.value == pytest.approx(109.0, rel=1e-15)
        assert cap.failure_probability == 0.0

    def test_they_hold_for_different_records(self):
        """Records differ independently, the batch has different records: K is Binomial(B, tau)."""
        sampling, tau = WithoutReplacement(n_records=30, batch_size=8), 0.2
        distribution = mixed_distribution(sampling, tau)
        assert distribution == pytest.approx(stats.binom.pmf(np.arange(31), 8, tau), abs=1e-12)
        square = mismatch_mean_square_cap(batch_size=8, mismatch_probability=tau)
        assert square.value == pytest.approx(float(distribution @ np.arange(31.0) ** 2), rel=1e-11)
        for tail in (0.3, 0.1, 0.01, 1e-4):
            cap = hoeffding_tail_cap(batch_size=8, mismatch_probability=tau, tail_probability=tail)
            assert distribution[cap.value + 1 :].sum() <= tail

    def test_they_fail_with_replacement(self):
        """100 draws of 100 records that differ with chance 1/2: the draws share mismatches, so the
        variance is about twice the binomial one; mean square 50 + 9900 (1/4 + 1/400)."""
        distribution = mixed_distribution(WithReplacement(n_records=100, batch_size=100), 0.5)
        cap = hoeffding_tail_cap(batch_size=100, mismatch_probability=0.5, tail_probability=1e-6)
        assert distribution[cap.value + 1 :].sum() > 50e-6
        square = mismatch_mean_square_cap(batch_size=100, mismatch_probability=0.5)
        assert square.value == 2525.0
        assert float(distribution @ np.arange(101.0) ** 2) == pytest.approx(2549.75, rel=1e-11)

    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [
            ({"batch_size": 0}, "batch_size must be"),
            ({"mismatch_probability": -0.1}, "mismatch_probability must be"),
            ({"mismatch_probability": 1.1}, "mismatch_probability must be at most 1, got 1.1"),
            ({"tail_probability": 1.0}, "tail_probability must lie"),
        ],
    )
    def test_refusals(self, changes, complaint):
        given_values = {"batch_size": 5, "mismatch_probability": 0.1, "tail_probability": 0.1}
        with pytest.raises(ArgumentError, match=complaint):
            hoeffding_tail_cap(**given_values | changes)
        if "tail_probability" not in changes:
            given_values.pop("tail_probability")
            with pytest.raises(ArgumentError, match=complaint):
                mismatch_mean_square_cap(**given_values | changes)


class TestSimulation:
    def test_counts_by_hand(self):
        """Repeated draws count repeatedly, records may be rows, a missing number differs."""
        first = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, math.nan]])
        second = np.array([[1.0, 2.0], [3.0, 4.5], [5.0, math.nan]])
        batches = iter([[0], [1], [1, 1, 0], [2], [0, 1, 2], []])
        counts = simulate_discrepancies(
            lambda rng: (first, second), lambda rng: next(batches), n_replicates=6, seed=1
        )
        assert counts.tolist() == [0, 1, 2, 1, 2, 0]
        assert not counts.flags.writeable

    def test_labels_may_be_words(self):
        counts = simulate_discrepancies(
            lambda rng: (["cat", "dog"], ["cat", "cat"]),
            lambda rng: np.arange(2),
            n_replicates=1,
            seed=1,
        )
        assert counts.tolist() == [1]

    @pytest.mark.statistical
    def test_has_the_distribution_of_the_sampling_design(self, seed):
        """30 records, 4 differ, 10 without replacement."""
        counts = simulate_discrepancies(
            lambda rng: (np.zeros(30), np.arange(30) < 4),
            lambda rng: rng.choice(30, size=10, replace=False),
            n_replicates=5_000,
            seed=seed,
        )
        seen = np.bincount(counts, minlength=5)
        pvalue = {
            n: stats.chisquare(seen, 5_000 * stats.hypergeom.pmf(np.arange(5), 30, 4, n)).pvalue
            for n in (9, 10, 11)
        }
        assert pvalue[10] > 1e-6
        assert max(pvalue[9], pvalue[11]) < 1e-6

    def test_the_seed_decides(self):
        runs = [
            simulate_discrepancies(
                lambda rng: (np.zeros(50), rng.random(50) < 0.3),
                lambda rng: rng.integers(0, 50, 20),
                n_replicates=20,
                seed=s,
            ).tolist()
            for s in (1, 1, 2)
        ]
        assert runs[0] == runs[1] != runs[2]

    @pytest.mark.parametrize(
        ("pair", "batch", "complaint"),
        [
            ((np.zeros(3), np.zeros(4)), [0], r"same shape.*got \(3,\) and \(4,\)"),
            ((np.array(1.0), np.array(1.0)), [0], "records along the first axis"),
            ((np.zeros(3), np.zeros(3)), [3], "a line of indices from 0 to 2"),
            ((np.zeros(3), np.zeros(3)), [-1], "a line of indices from 0 to 2"),
            ((np.zeros(3), np.zeros(3)), [0.5], "a line of indices from 0 to 2"),
            ((np.zeros(3), np.zeros(3)), [[0]], "a line of indices from 0 to 2"),
        ],
    )
    def test_refusals(self, pair, batch, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            simulate_discrepancies(lambda rng: pair, lambda rng: batch, n_replicates=1, seed=1)

    @pytest.mark.parametrize(("n", "seed"), [(0, 1), (1, -1)])
    def test_numbers_refused(self, n, seed):
        with pytest.raises(ArgumentError, match=r"n_replicates|seed"):
            simulate_discrepancies(
                lambda rng: ([0], [0]), lambda rng: [0], n_replicates=n, seed=seed
            )


class TestMeanSquareEstimate:
    def test_by_hand(self):
        """22/5 + 5^2 sqrt(ln(2/0.1) / 10)."""
        cap = mean_square_cap_estimate(COUNTS, discrepancy_cap=5, failure_probability=0.1)
        assert cap.value == pytest.approx(4.4 + 25 * math.sqrt(math.log(20) / 10), rel=1e-15)
        assert cap.failure_probability == 0.1

    def test_uniform_by_hand(self):
        """The failure probability is split: ln(2 * 2 / 0.1); the larger instance counts."""
        cap = uniform_mean_square_cap_estimate(
            [np.zeros(5, dtype=int), COUNTS], discrepancy_cap=5, failure_probability=0.1
        )
        assert cap.value == pytest.approx(4.4 + 25 * math.sqrt(math.log(40) / 10), rel=1e-15)
        assert cap.failure_probability == 0.1

    def test_large_counts_do_not_overflow(self):
        cap = mean_square_cap_estimate([2**40], discrepancy_cap=2**40, failure_probability=0.5)
        assert cap.value == pytest.approx(2.0**80 * (1 + math.sqrt(math.log(4) / 2)), rel=1e-14)

    @pytest.mark.statistical
    def test_is_above_the_truth_as_often_as_it_says(self, rng):
        """K = 4 with chance 1/2, else 0: mean square 8, Hoeffding nearly tight. 2000 repetitions.

        The paper's term allows gamma / 2 (it is one-sided); without it half of them fall below.
        """
        draws = 4 * rng.integers(0, 2, size=(2000, 50))
        caps = [
            mean_square_cap_estimate(d, discrepancy_cap=4, failure_probability=0.2).value
            for d in draws
        ]
        assert np.mean(np.array(caps) < 8) <= 0.1
        assert np.mean((draws**2).mean(axis=1) < 8) > 0.3

    def test_it_certifies_nothing(self):
        """Half of the pairs of datasets differ in all 10 records, half in none. For the first the
        mean square over batches is 100; the estimate tends to the average over pairs, 50."""
        counts = simulate_discrepancies(
            lambda rng: (np.zeros(10), np.full(10, rng.integers(0, 2))),
            lambda rng: np.arange(10),
            n_replicates=20_000,
            seed=3,
        )
        cap = mean_square_cap_estimate(counts, discrepancy_cap=10, failure_probability=1e-3)
        assert cap.value < 54
        assert "comparison only" in MeanSquareCap.may_be_used_for


class TestTailEstimate:
    def test_by_hand(self):
        """M = 1000, half-width 0.04295: delta 0.1 leaves out floor(57.05) = 57 replicates above,
        so the 943rd of 0..999 in order, which is 942."""
        counts = np.random.default_rng(1).permutation(1000)
        cap = tail_cap_estimate(
            counts, discrepancy_cap=999, tail_probability=0.1, failure_probability=0.05
        )
        assert cap == TailCap(value=942, tail_probability=0.1, failure_probability=0.05)

    def test_a_tail_below_the_halfwidth_gets_the_cap_of_every_draw(self):
        cap = tail_cap_estimate(
            np.zeros(1000, dtype=int),
            discrepancy_cap=512,
            tail_probability=0.0429,
            failure_probability=0.05,
        )
        assert cap.value == 512

    def test_uniform_by_hand(self):
        """Half-width sqrt(ln(2 * 2 / 0.05) / 2000) = 0.04681: floor(53.19) are left out."""
        cap = uniform_tail_cap_estimate(
            [np.arange(1000), np.zeros(1000, dtype=int)],
            discrepancy_cap=999,
            tail_probability=0.1,
            failure_probability=0.05,
        )
        assert cap == TailCap(value=946, tail_probability=0.1, failure_probability=0.05)

    @pytest.mark.statistical
    def test_is_a_tail_cap_as_often_as_it_says(self, rng):
        """Binomial(40, 0.3), tail 0.1, 500 simulations of 400: without the half-width the cap is
        too small in a good part of them, with it in none of many."""
        distribution = stats.binom(40, 0.3)
        draws = distribution.rvs(size=(500, 400), random_state=rng)
        caps = [
            tail_cap_estimate(
                d, discrepancy_cap=40, tail_probability=0.1, failure_probability=0.1
            ).value
            for d in draws
        ]
        assert np.mean(distribution.sf(caps) > 0.1) <= 0.1
        bare = np.sort(draws, axis=1)[:, 359]
        assert np.mean(distribution.sf(bare) > 0.1) > 0.1

    @pytest.mark.parametrize(
        ("counts", "changes", "complaint"),
        [
            ([0, 6, 7], {}, "must not exceed discrepancy_cap 5; 2 of 3 do"),
            ([0.5], {}, "discrepancies must be a non-empty line of whole numbers"),
            ([], {}, "discrepancies must be a non-empty line"),
            ([[1]], {}, "discrepancies must be a non-empty line"),
            ([1], {"discrepancy_cap": -1}, "discrepancy_cap must be"),
            ([1], {"failure_probability": 0.0}, "failure_probability must lie"),
            ([1], {"tail_probability": 1.0}, "tail_probability must lie"),
        ],
    )
    def test_refusals(self, counts, changes, complaint):
        settings = {"discrepancy_cap": 5, "tail_probability": 0.1, "failure_probability": 0.1}
        settings |= changes
        with pytest.raises(ArgumentError, match=complaint):
            tail_cap_estimate(counts, **settings)
        if "tail_probability" not in changes:
            settings.pop("tail_probability")
            with pytest.raises(ArgumentError, match=complaint):
                mean_square_cap_estimate(counts, **settings)

    @pytest.mark.parametrize("failure", [0.0, 1.0])
    def test_uniform_refusals(self, failure):
        with pytest.raises(ArgumentError, match="at least one instance, got none"):
            uniform_mean_square_cap_estimate([], discrepancy_cap=5, failure_probability=0.1)
        with pytest.raises(ArgumentError, match="failure_probability must lie"):
            uniform_tail_cap_estimate(
                [COUNTS], discrepancy_cap=5, tail_probability=0.1, failure_probability=failure
            )


class TestAcrossRounds:
    def test_each_on_its_own_side(self):
        left = across_rounds(
            tail_probabilities=np.full(100, 1e-4), failure_probabilities=[0.01, 0.02]
        )
        assert left.delta == pytest.approx(0.01, rel=1e-14)
        assert left.failure_probability == pytest.approx(0.03, rel=1e-14)

    def test_a_known_distribution_fails_never(self):
        left = across_rounds(tail_probabilities=[1e-6], failure_probabilities=[])
        assert left == AcrossRounds(delta=1e-6, failure_probability=0.0)

    def test_bounding_the_differing_records_once_is_better(self):
        """200 records differ with chance 0.05 each, batches of 100, 1000 rounds, delta 1e-5.

        Once: a cap on D for all rounds, which also caps every batch, and which leaves the batch
        draws to the accountant. Per round: a thousandth of delta for each.
        """
        delta, n_rounds, sampling = 1e-5, 1000, WithoutReplacement(n_records=200, batch_size=100)
        counts = np.arange(201)
        differing = tail_cap(counts, stats.binom.logpmf(counts, 200, 0.05), tail_probability=delta)
        once = across_rounds(
            tail_probabilities=[differing.tail_probability], failure_probabilities=[]
        )
        batch = np.arange(101)
        per_round = tail_cap(
            batch, stats.binom.logpmf(batch, 100, 0.05), tail_probability=delta / n_rounds
        )
        every = across_rounds(
            tail_probabilities=np.full(n_rounds, per_round.tail_probability),
            failure_probabilities=[],
        )
        assert once.delta == pytest.approx(every.delta, rel=1e-12)
        mean_square = sampling.mean_square_discrepancy(differing.value)
        assert sampling.discrepancy_cap(differing.value) == differing.value
        assert mean_square < per_round.value**2

    @pytest.mark.parametrize(
        ("tails", "failures", "complaint"),
        [
            (np.full(4000, 1e-3), [], "tail_probabilities must not be negative and must sum to"),
            ([-0.1], [], "over 1 entries. Bound the differing records of the whole data once"),
            ([math.nan], [], "tail_probabilities must be finite"),
            ([0.1], [0.5, 0.5], "failure_probabilities must not be negative and must sum to less"),
        ],
    )
    def test_refusals(self, tails, failures, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            across_rounds(tail_probabilities=tails, failure_probabilities=failures)

    def test_a_tail_cap_is_labelled(self):
        assert "never a Rényi claim" in TailCap.may_be_used_for


def mixed_distribution(sampling, mismatch_probability):
    """P(K = k), k = 0.., when each record differs independently and the batch is then drawn."""
    n = sampling.n_records
    distribution = np.zeros(max(n, sampling.batch_size) + 1)
    for differing, chance in enumerate(stats.binom.pmf(np.arange(n + 1), n, mismatch_probability)):
        given_differing = sampling.discrepancy_distribution(differing)
        distribution[given_differing.counts] += chance * np.exp(given_differing.log_probabilities)
    return distribution
