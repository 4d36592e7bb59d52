# SPDX-License-Identifier: Apache-2.0
"""The number of differing records: its distributions, and total variation from above."""

import json
import math
import sys
from fractions import Fraction

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy import stats

from pufferslice.learning.differing import (
    ROUNDING_SLACK,
    DifferingRecords,
    at_most,
    binomial,
    count_differing,
    discrete_mismatch,
    exactly,
    from_coupled_draws,
    from_pmf,
    gaussian_mismatch,
    maximal_pairs,
    mostly_at_most,
)
from pufferslice.learning.sampling import WithReplacement
from pufferslice.scenario.distributions import GaussianDistribution

HP = mp.clone()
HP.dps = 40
PRECISE = mp.clone()
PRECISE.dps = 360  # so that differences of probabilities keep digits down to the least floats


def gaussian(mean, cov):
    return GaussianDistribution(mean=mean, cov=cov)


@st.composite
def distributions(draw):
    parts = draw(st.lists(st.integers(1, 99), min_size=1, max_size=8))
    counts = draw(
        st.lists(st.integers(0, 500), min_size=len(parts), max_size=len(parts), unique=True)
    )
    return from_pmf({c: p / sum(parts) for c, p in zip(counts, parts, strict=True)})


class TestOneNumber:
    def test_at_most_stands_at_its_largest_and_leaves_the_set_open(self):
        assert exactly(np.int64(20)).is_fixed_set
        distribution = at_most(20)
        assert distribution.counts.tolist() == [20]
        assert distribution.largest == 20
        assert not distribution.is_random
        assert not distribution.is_fixed_set
        assert distribution != exactly(20)


class TestBinomial:
    @pytest.mark.parametrize(("n_records", "chance"), [(1, 0.5), (1_000, 0.999)])
    def test_agrees_with_scipy(self, n_records, chance):
        distribution = binomial(n_records=n_records, mismatch_probability=chance)
        assert distribution.counts.tolist() == list(range(n_records + 1))
        expected = stats.binom(n_records, chance).logpmf(distribution.counts)
        np.testing.assert_allclose(distribution.log_probabilities, expected, rtol=1e-9, atol=1e-9)
        assert distribution.is_random
        assert not distribution.is_fixed_set
        assert distribution.largest == n_records

    def test_the_far_tail_is_there(self):
        distribution = binomial(n_records=50_000, mismatch_probability=0.0004)
        exact = 50_000 * HP.log(HP.mpf(0.0004))
        assert distribution.log_probabilities[-1] == pytest.approx(float(exact), rel=1e-14)
        assert np.all(np.isfinite(distribution.log_probabilities))

    @pytest.mark.parametrize(("chance", "only"), [(0, 0), (1.0, 10)])
    def test_certain_numbers_are_fixed_sets(self, chance, only):
        distribution = binomial(n_records=10, mismatch_probability=chance)
        assert distribution.counts.tolist() == [only]
        assert distribution.is_fixed_set


class TestPmf:
    def test_sequence_and_mapping_mean_the_same(self):
        by_count = from_pmf({4: 0.25, 0: 0.5, 2: 0.25})
        assert from_pmf([0.5, 0.0, 0.25, 0.0, 0.25]) == by_count
        assert from_pmf(np.array([0.5, 0.0, 0.25, 0.0, 0.25, 0.0])) == by_count
        assert by_count.counts.tolist() == [0, 2, 4]
        assert by_count.log_probabilities.tolist() == np.log([0.5, 0.25, 0.25]).tolist()
        assert by_count.is_random
        assert not by_count.is_fixed_set
        certain = from_pmf({20: 1.0})
        assert not certain.is_random
        assert not certain.is_fixed_set


def test_counted_datasets():
    first = np.arange(12).reshape(4, 3)
    second = first.copy()
    second[[0, 3]] += 1
    distribution = count_differing(first, second)
    assert distribution.counts.tolist() == [2]
    assert distribution.is_fixed_set
    assert distribution.origin == "two given datasets of 4 records differ in exactly 2"
    assert count_differing([1, 2], [1, 2]).largest == 0


def draw_pair(rng):
    """Six records, each of which differs with probability 1/4."""
    first = rng.integers(100, size=6)
    return first, np.where(rng.random(6) < 0.25, first + 1, first)


class TestCoupledDraws:
    def test_is_a_declared_sample_that_depends_on_the_seed(self):
        first, again, other = (
            from_coupled_draws(draw_pair, n_draws=50, seed=seed) for seed in (1, 1, 2)
        )
        assert "50 coupled draws with seed 1, declared to be the distribution" in first.origin
        assert not first.is_fixed_set
        assert first == again != other
        certain = from_coupled_draws(lambda rng: ([1, 2], [2, 2]), n_draws=3, seed=1)
        assert certain.counts.tolist() == [1]
        assert not certain.is_fixed_set


class TestMaximalPairs:
    P, Q = (0.5, 0.3, 0.2, 0.0), (0.2, 0.3, 0.1, 0.4)

    def test_has_its_marginals_and_the_least_mismatch(self):
        first, second = maximal_pairs(self.P, self.Q, n_records=200_000)(np.random.default_rng(1))
        for drawn, chances in ((first, self.P), (second, self.Q)):
            shares = np.bincount(drawn, minlength=4) / len(drawn)
            assert shares == pytest.approx(chances, abs=0.005)
        differ = first != second
        assert differ.mean() == pytest.approx(discrete_mismatch(self.P, self.Q), abs=0.005)
        # Given that they differ, first and second come from the two excesses.
        assert set(first[differ]) == {0, 2}
        assert set(second[differ]) == {3}

    @pytest.mark.parametrize(("p", "q", "share"), [(P, P, 0.0), ([1, 0], [0, 1], 1.0)])
    def test_equal_and_disjoint_worlds(self, p, q, share):
        first, second = maximal_pairs(p, q, n_records=50)(np.random.default_rng(0))
        assert (first != second).mean() == share
        assert first.dtype.kind == second.dtype.kind == "i"

    def test_how_many_differ_under_several_couplings(self):
        """60 (1 - sum of p q) independent, 60 * 0.4 maximal, 60 * 0.1 by one latent draw."""
        p, q = np.array(self.P), np.array(self.Q)

        def latent(rng):
            shared = rng.random(60)
            return (shared < 0.3) * 1, (shared < 0.4) * 1

        couplings = {
            60 * (1 - p @ q): lambda rng: (rng.choice(4, 60, p=p), rng.choice(4, 60, p=q)),
            60 * 0.4: maximal_pairs(p, q, n_records=60),
            60 * 0.1: latent,
        }
        for mean, draw in couplings.items():
            found = from_coupled_draws(draw, n_draws=400, seed=5)
            drawn = float(found.counts @ np.exp(found.log_probabilities))
            assert drawn == pytest.approx(mean, rel=0.05)


class TestTruncated:
    def test_known_answer(self):
        """Of 1/2, 1/4, 1/8, 1/8 the last is left out; the rest is out of 7/8."""
        distribution = from_pmf([0.5, 0.25, 0.125, 0.125])
        cut = distribution.truncated(tail_probability=0.2)
        assert cut.counts.tolist() == [0, 1, 2]
        np.testing.assert_allclose(np.exp(cut.log_probabilities), [4 / 7, 2 / 7, 1 / 7])
        assert 0.125 <= cut.excess_probability == pytest.approx(0.125)
        assert cut.failure_probability == 0.0
        assert cut.tail_probability(1) == pytest.approx(0.25)
        assert "more than 2 with probability 0.125" in cut.origin
        given = cut.without_excess
        assert (given.excess_probability, given.counts.tolist()) == (0.0, [0, 1, 2])
        assert distribution.without_excess is distribution

    @given(distributions(), st.floats(1e-6, 0.9))
    def test_leaves_out_no_more_than_asked_and_never_less_than_it_says(self, distribution, tail):
        cut = distribution.truncated(tail_probability=tail)
        assert cut.excess_probability <= tail
        exact = math.fsum(
            math.exp(p)
            for c, p in zip(distribution.counts, distribution.log_probabilities, strict=True)
            if c > cut.largest
        )
        assert exact <= cut.excess_probability
        back = DifferingRecords.from_description(json.loads(json.dumps(cut.description())))
        assert back == cut
        for limit in range(0, 501, 50):
            truth = distribution.tail_probability(limit)
            assert cut.tail_probability(limit) >= truth * (1 - 1e-12)
            if limit <= cut.largest:
                assert cut.tail_probability(limit) == pytest.approx(truth, rel=1e-9, abs=1e-15)

    @pytest.mark.soundness
    @pytest.mark.parametrize("tail", [5e-324, 1e-310])
    def test_what_underflows_is_not_left_out(self, tail):
        """P(D = 1,000) is 1e-3,000: 0 as a float, and far from free in a Rényi divergence."""
        records = binomial(n_records=1_000, mismatch_probability=0.001)
        assert records.truncated(tail_probability=tail) is records

    def test_nothing_to_leave_out(self):
        coin = from_pmf([0.5, 0.5])
        assert coin.truncated(tail_probability=0.25) is coin
        assert exactly(4).truncated(tail_probability=0.25).is_fixed_set

    def test_mostly_at_most(self):
        records = mostly_at_most(25, tail_probability=1e-6, failure_probability=0.05)
        assert records.counts.tolist() == [25]
        assert (records.excess_probability, records.failure_probability) == (1e-6, 0.05)
        assert not records.is_fixed_set
        assert DifferingRecords.from_description(records.description()) == records


class TestTail:
    @given(distributions(), st.integers(0, 500))
    def test_probability(self, distribution, above):
        exact = math.fsum(
            math.exp(p)
            for c, p in zip(distribution.counts, distribution.log_probabilities, strict=True)
            if c > above
        )
        assert distribution.tail_probability(above) == pytest.approx(exact, rel=1e-13)

    @given(distributions(), st.integers(0, 500))
    def test_folding_only_moves_mass_up(self, distribution, above):
        folded = distribution.folded(above=above)
        assert folded.largest == distribution.largest
        assert np.count_nonzero(folded.counts > above) <= 1
        for limit in range(0, 501, 25):
            assert folded.tail_probability(limit) >= distribution.tail_probability(limit) - 1e-15

    def test_known_answer(self):
        folded = from_pmf([0.5, 0.25, 0.125, 0.125]).folded(above=1)
        assert folded.counts.tolist() == [0, 1, 3]
        np.testing.assert_allclose(np.exp(folded.log_probabilities), [0.5, 0.25, 0.25])
        assert folded.origin.endswith("counts above 1 taken as 3")


class TestDescription:
    @pytest.mark.parametrize(
        "distribution",
        [
            exactly(20),
            at_most(20),
            binomial(n_records=1_000, mismatch_probability=0.0004),
            binomial(n_records=10, mismatch_probability=1),
            from_pmf({0: 0.9, 7: 0.1}),
            count_differing([1, 2], [1, 3]),
            from_coupled_draws(draw_pair, n_draws=30, seed=3),
            binomial(n_records=100, mismatch_probability=0.1).folded(above=20),
        ],
        ids=lambda distribution: distribution.origin[:20],
    )
    def test_round_trip_through_json(self, distribution):
        text = json.dumps(distribution.description(), allow_nan=False)
        again = DifferingRecords.from_description(json.loads(text))
        assert again == distribution
        assert again.description() == distribution.description()

    def test_a_binomial_distribution_is_described_by_its_two_numbers(self):
        distribution = binomial(n_records=np.int64(50_000), mismatch_probability=np.float64(0.0004))
        description = {"kind": "binomial", "n_records": 50_000, "mismatch_probability": 0.0004}
        assert distribution.description() == description
        distribution.description()["n_records"] = 3  # a copy
        assert distribution.description() == description

    def test_a_changed_distribution_does_not_keep_the_description_of_the_old_one(self):
        changed = attrs.evolve(binomial(n_records=2, mismatch_probability=0.5), counts=[0, 1, 5])
        assert changed.description()["kind"] == "listed"
        assert DifferingRecords.from_description(changed.description()) == changed


def make(**changes):
    fields = {
        "counts": [0, 5],
        "log_probabilities": [math.log(0.5)] * 2,
        "is_fixed_set": False,
        "origin": "test",
    }
    return DifferingRecords(**fields | changes)


def test_locked_and_equal_by_value():
    distribution = make()
    assert distribution == make()
    assert distribution != make(counts=[0, 6])
    assert distribution != make(origin="other")
    with pytest.raises(ValueError, match="read-only"):
        distribution.counts[0] = 1
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        distribution.origin = "other"


def mixed(design, differing):
    """The distribution of K if D is random: the mixture over D of its distributions given D."""
    total = np.zeros(design.discrepancy_cap(differing.largest) + 1)
    for d, log_chance in zip(differing.counts, differing.log_probabilities, strict=True):
        logs = design.discrepancy_log_probabilities(int(d))
        total[: len(logs)] += np.exp(log_chance + logs)
    return total


def test_the_binomial_of_the_paper_is_too_small():
    """Independent records that differ with probability tau, drawn with replacement."""
    n, b, tau = 10, 8, Fraction(3, 10)
    design = WithReplacement(n_records=n, batch_size=b)
    of_the_paper = b * tau * (1 - tau) + (b * tau) ** 2
    # Two draws hit the same record with probability 1/N, and then mismatch together.
    exact = of_the_paper + b * (b - 1) * tau * (1 - tau) / n
    distribution = mixed(design, binomial(n_records=n, mismatch_probability=float(tau)))
    assert distribution @ np.arange(b + 1) ** 2.0 == pytest.approx(float(exact), rel=1e-13)


def exact_gaussian(first, second):
    """Half the integral of |p - q|, in pieces between the crossing points."""
    (m1, s1), (m2, s2) = ((PRECISE.mpf(m), PRECISE.mpf(s)) for m, s in (first, second))
    a, b = 1 / s2**2 - 1 / s1**2, 2 * (m1 / s1**2 - m2 / s2**2)
    c = m2**2 / s2**2 - m1**2 / s1**2 + 2 * PRECISE.log(s2 / s1)
    if a == 0:
        roots = [] if b == 0 else [-c / b]
    else:
        root = PRECISE.sqrt(b * b - 4 * a * c)
        roots = sorted([(-b - root) / (2 * a), (-b + root) / (2 * a)])
    excess = [PRECISE.ncdf((x - m1) / s1) - PRECISE.ncdf((x - m2) / s2) for x in roots]
    steps = [abs(y - x) for x, y in zip([0, *excess], [*excess, 0], strict=True)]
    return sum(steps) / 2


class TestDiscrete:
    @pytest.mark.parametrize(
        ("first", "second", "known"),
        [
            ([0.5, 0.5], [0.25, 0.75], 0.25),
            ([1.0, 0.0], [0.0, 1.0], 1.0),
            ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5], 0.0),
            ({"cat": 0.1, "dog": 0.9}, {"dog": 0.8996, "cat": 0.1004}, 0.0004),
            ({"cat": 1.0}, {"dog": 1.0}, 1.0),
            (np.array([0.5, 0.5]), (0.5, 0.5), 0.0),
        ],
    )
    def test_known_answers(self, first, second, known):
        assert discrete_mismatch(first, second) == pytest.approx(known, abs=1e-15)

    @given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=30))
    def test_never_below_the_exact_sum_and_hardly_above(self, parts):
        p, q = (
            [(x + 1) / sum(y + 1 for y in side) for x in side] for side in zip(*parts, strict=True)
        )
        exact = sum(abs(Fraction(x) - Fraction(y)) for x, y in zip(p, q, strict=True)) / 2
        assert exact <= Fraction(discrete_mismatch(p, q))
        assert discrete_mismatch(p, q) == pytest.approx(float(exact), rel=1e-11, abs=1e-15)


means = st.floats(-20, 20)
stds = st.floats(0.05, 20)


class TestGaussianLine:
    @pytest.mark.parametrize(
        ("first", "second", "known"),
        [
            ((0.0, 1.0), (1.0, 1.0), 0.38292492254802624),
            ((0.0, 2.0), (2.0, 2.0), 0.38292492254802624),
            ((0.0, 1.0), (0.0, 2.0), 0.3226745688347687),
            ((3.0, 1.0), (3.0, 1.0), 0.0),
        ],
    )
    def test_known_answers(self, first, second, known):
        # Second: 2 (Phi(x) - Phi(x/2)) at the crossing point x = sqrt(8 ln(2) / 3).
        assert gaussian_mismatch(first, second) == pytest.approx(known, abs=4e-15)

    @given(means, stds, means, stds)
    def test_never_below_many_digits_and_hardly_above(self, m1, s1, m2, s2):
        exact = exact_gaussian((m1, s1), (m2, s2))
        excess = float(PRECISE.mpf(gaussian_mismatch((m1, s1), (m2, s2))) - exact)
        # a factor cannot round denormal numbers up
        assert excess >= -sys.float_info.min or exact > 1 - PRECISE.mpf(2) ** -53
        assert excess <= 3 * ROUNDING_SLACK

    @pytest.mark.parametrize("ratio", [1 + 2**-52, 1 + 1e-6, 1.001])
    @pytest.mark.parametrize("shift", [0.0, 1e-6, 3.0])
    def test_nearly_equal_stds(self, shift, ratio):
        exact = exact_gaussian((0.0, 1.0), (shift, ratio))
        excess = float(PRECISE.mpf(gaussian_mismatch((0.0, 1.0), (shift, ratio))) - exact)
        assert 0 <= excess <= 3 * ROUNDING_SLACK

    @pytest.mark.parametrize("shift", [1e-300, 1e-9, 0.1, 5.0])
    def test_equal_stds_keep_relative_digits(self, shift):
        exact = exact_gaussian((0.0, 1.0), (shift, 1.0)) if shift > 1e-30 else None
        value = gaussian_mismatch((0.0, 1.0), (shift, 1.0))
        known = float(exact) if exact is not None else shift / math.sqrt(2 * math.pi)
        assert value == pytest.approx(known, rel=1e-14)
        assert value >= known * (1 - 2**-52)

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ((0.0, 1e-300), (0.0, 1e300)),
            ((-1e308, 1e-300), (1e308, 2e-300)),
            ((0.0, 1.0), (1e300, 1.0)),
        ],
    )
    def test_far_apart_is_one(self, first, second):
        assert gaussian_mismatch(first, second) == 1
        assert gaussian_mismatch(second, first) == 1


class TestGaussianSpace:
    def test_one_dimension_is_the_line(self):
        first, second = (
            GaussianDistribution(mean=[m], cov=[[s**2]]) for m, s in ((0.0, 1.0), (0.0, 2.0))
        )
        assert gaussian_mismatch(first, second) == gaussian_mismatch((0.0, 1.0), (0.0, 2.0))

    def test_by_hand(self):
        # Distance sqrt((3/1)^2 + (8/2)^2) = 5, so 2 Phi(2.5) - 1.
        cov = [[1.0, 0.0], [0.0, 4.0]]
        first, second = (gaussian([0, 0], cov), gaussian([3, 8], cov))
        assert gaussian_mismatch(first, second) == pytest.approx(0.9875806693484477, rel=1e-14)

    @pytest.mark.parametrize("spread", [1.0, 1e6])
    def test_never_below_many_digits(self, spread, rng):
        for _ in range(20):
            dim = int(rng.integers(2, 6))
            basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
            cov = (basis * np.geomspace(1, spread, dim)) @ basis.T
            cov = (cov + cov.T) / 2
            first, second = (
                GaussianDistribution(mean=m, cov=cov) for m in rng.standard_normal((2, dim))
            )
            gap = PRECISE.matrix((first.mean - second.mean).tolist())
            distance = PRECISE.sqrt(
                (gap.T * PRECISE.lu_solve(PRECISE.matrix(cov.tolist()), gap))[0]
            )
            exact = PRECISE.erf(distance / PRECISE.sqrt(8))
            value = gaussian_mismatch(first, second)
            assert exact <= PRECISE.mpf(value)
            assert value == pytest.approx(float(exact), rel=1e-13 * spread)


def test_one_record_differs_and_several_differ():
    assert exactly(1).origin == "exactly 1 record differs"
    assert at_most(1).origin == "at most 1 record differs, whichever it is"
    assert at_most(2).origin == "at most 2 records differ, whichever they are"
