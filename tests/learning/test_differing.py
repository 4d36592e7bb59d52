# SPDX-License-Identifier: Apache-2.0
"""Distributions of the number of differing records: how they are made, kept and refused."""

import json
import math
from fractions import Fraction

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy import stats
from tests.learning import counting

from pufferslice import learning
from pufferslice.errors import ArgumentError
from pufferslice.learning.differing import (
    DifferingRecords,
    at_most,
    binomial,
    count_differing,
    exactly,
    from_coupled_draws,
    from_pmf,
)
from pufferslice.learning.sampling import Poisson, WithoutReplacement, WithReplacement

HP = mp.clone()
HP.dps = 40


@st.composite
def distributions(draw):
    parts = draw(st.lists(st.integers(1, 99), min_size=1, max_size=8))
    counts = draw(
        st.lists(st.integers(0, 500), min_size=len(parts), max_size=len(parts), unique=True)
    )
    return from_pmf({c: p / sum(parts) for c, p in zip(counts, parts, strict=True)})


class TestOneNumber:
    @pytest.mark.parametrize("n", [0, 1, 20, np.int64(20)])
    def test_exactly(self, n):
        distribution = exactly(n)
        assert distribution.counts.tolist() == [n]
        assert distribution.log_probabilities.tolist() == [0.0]
        assert distribution.largest == n
        assert not distribution.is_random
        assert distribution.is_fixed_set
        assert distribution.origin == f"exactly {n} records differ"

    def test_at_most_stands_at_its_largest_and_leaves_the_set_open(self):
        distribution = at_most(20)
        assert distribution.counts.tolist() == [20]
        assert distribution.largest == 20
        assert not distribution.is_random
        assert not distribution.is_fixed_set
        assert distribution.origin == "at most 20 records differ, whichever they are"
        assert distribution != exactly(20)

    @pytest.mark.parametrize("make", [exactly, at_most])
    @pytest.mark.parametrize("n", [-1, 2.0, True, "20", None])
    def test_whole_numbers_only(self, make, n):
        with pytest.raises(ArgumentError, match="n_differing must be a whole number and at least"):
            make(n)


class TestBinomial:
    @pytest.mark.parametrize(("n_records", "chance"), [(1, 0.5), (100, 0.05), (1_000, 0.999)])
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

    @pytest.mark.parametrize(("chance", "only"), [(0, 0), (0.0, 0), (1, 10), (1.0, 10)])
    def test_certain_numbers_are_fixed_sets(self, chance, only):
        distribution = binomial(n_records=10, mismatch_probability=chance)
        assert distribution.counts.tolist() == [only]
        assert distribution.is_fixed_set

    @pytest.mark.statistical
    def test_simulated_records(self, rng):
        n_different = (rng.random((200_000, 30)) < 0.1).sum(axis=1)
        p = {
            tau: counting.p_value(
                n_different,
                np.exp(binomial(n_records=30, mismatch_probability=tau).log_probabilities),
            )
            for tau in (0.098, 0.1, 0.102)
        }
        assert p[0.1] > counting.THRESHOLD
        assert max(p[0.098], p[0.102]) < counting.THRESHOLD

    @pytest.mark.parametrize("chance", [-0.1, 1.1, math.nan, math.inf, True, "0.1", None])
    def test_chance(self, chance):
        with pytest.raises(ArgumentError, match="mismatch_probability must be a probability from"):
            binomial(n_records=10, mismatch_probability=chance)

    @pytest.mark.parametrize("n_records", [0, -1, 2.5])
    def test_n_records(self, n_records):
        with pytest.raises(ArgumentError, match="n_records must be a whole number and at least 1"):
            binomial(n_records=n_records, mismatch_probability=0.5)

    def test_too_long(self):
        with pytest.raises(ArgumentError, match="bound the number by `at_most`"):
            binomial(n_records=2**25, mismatch_probability=0.5)


class TestPmf:
    def test_sequence_and_mapping_mean_the_same(self):
        by_count = from_pmf({4: 0.25, 0: 0.5, 2: 0.25})
        assert from_pmf([0.5, 0.0, 0.25, 0.0, 0.25]) == by_count
        assert from_pmf(np.array([0.5, 0.0, 0.25, 0.0, 0.25, 0.0])) == by_count
        assert by_count.counts.tolist() == [0, 2, 4]
        assert by_count.log_probabilities.tolist() == np.log([0.5, 0.25, 0.25]).tolist()
        assert by_count.is_random
        assert not by_count.is_fixed_set

    def test_impossible_counts_are_not_the_largest(self):
        assert from_pmf([0.5, 0.5, 0.0]).largest == 1

    def test_one_number_for_certain_is_still_not_a_fixed_set(self):
        distribution = from_pmf({20: 1.0})
        assert not distribution.is_random
        assert not distribution.is_fixed_set

    @pytest.mark.parametrize(
        "probabilities", [[0.5, 0.4], [0.5, 0.5 + 1e-9], [1.5, -0.5], {0: 0.9}, {0: 0.6, 3: 0.5}]
    )
    def test_a_cut_tail_is_refused_with_the_way_out(self, probabilities):
        with pytest.raises(ArgumentError, match=r"sum to 1; .* Put what is missing on the largest"):
            from_pmf(probabilities)

    @pytest.mark.parametrize("probabilities", [[], {}, [[0.5, 0.5]], 1.0])
    def test_shape(self, probabilities):
        with pytest.raises(ArgumentError, match="one row of at least one number"):
            from_pmf(probabilities)

    @pytest.mark.parametrize("probabilities", [[math.nan, 1.0], [math.inf], {0: math.nan}])
    def test_finite(self, probabilities):
        with pytest.raises(ArgumentError, match="probabilities must be finite"):
            from_pmf(probabilities)

    @pytest.mark.parametrize("count", [-1, 0.5, "two", True])
    def test_counts_of_a_mapping(self, count):
        with pytest.raises(ArgumentError, match="must be a whole number and at least 0"):
            from_pmf({count: 1.0})

    def test_not_numbers(self):
        with pytest.raises(ArgumentError, match="expected numbers"):
            from_pmf(["half", "half"])


class TestCounted:
    def test_two_datasets(self):
        first = np.arange(12).reshape(4, 3)
        second = first.copy()
        second[[0, 3]] += 1
        distribution = count_differing(first, second)
        assert distribution.counts.tolist() == [2]
        assert distribution.is_fixed_set
        assert distribution.origin == "two given datasets of 4 records differ in exactly 2"

    def test_the_same_dataset(self):
        assert count_differing([1, 2], [1, 2]).largest == 0

    def test_two_worlds(self):
        labels = np.repeat(np.arange(10), 5_000)
        worlds = learning.two_world_prevalence(labels, label=3, share=0.1004, seed=7)
        assert count_differing(worlds.first, worlds.second).largest == worlds.n_differing == 20

    def test_lengths(self):
        with pytest.raises(ArgumentError, match="same number of records"):
            count_differing([1, 2], [1, 2, 3])


def draw_pair(rng):
    """Six records, each of which differs with probability 1/4."""
    first = rng.integers(100, size=6)
    return first, np.where(rng.random(6) < 0.25, first + 1, first)


class TestCoupledDraws:
    @pytest.mark.statistical
    def test_is_the_sample(self):
        n_draws = 4_000
        distribution = from_coupled_draws(draw_pair, n_draws=n_draws, seed=3)
        times = np.rint(np.exp(distribution.log_probabilities) * n_draws).astype(int)
        totals = np.repeat(distribution.counts, times)
        assert len(totals) == n_draws
        p = {
            tau: counting.p_value(totals, stats.binom(6, tau).pmf(range(7))) for tau in (0.25, 0.3)
        }
        assert p[0.25] > counting.THRESHOLD > p[0.3]

    def test_says_that_it_is_a_declared_sample(self):
        distribution = from_coupled_draws(draw_pair, n_draws=50, seed=3)
        assert (
            "50 coupled draws with seed 3, declared to be the distribution" in distribution.origin
        )
        assert not distribution.is_fixed_set

    def test_the_seed_decides(self):
        distributions = [from_coupled_draws(draw_pair, n_draws=50, seed=seed) for seed in (1, 1, 2)]
        assert distributions[0] == distributions[1]
        assert distributions[0] != distributions[2]

    def test_always_the_same_number_is_still_no_fixed_set(self):
        distribution = from_coupled_draws(lambda rng: ([1, 2], [2, 2]), n_draws=3, seed=1)
        assert distribution.counts.tolist() == [1]
        assert distribution.log_probabilities.tolist() == [0.0]
        assert not distribution.is_fixed_set

    @pytest.mark.parametrize("bad", [[[1], [2]], (1,), ([1], [2], [3]), None])
    def test_not_a_pair(self, bad):
        with pytest.raises(ArgumentError, match="draw_pair must return a tuple of two datasets"):
            from_coupled_draws(lambda rng: bad, n_draws=1, seed=1)

    def test_lengths_that_vary(self):
        lengths = iter([2, 3])

        def draw(rng):
            dataset = [0] * next(lengths)
            return dataset, dataset

        with pytest.raises(ArgumentError, match="datasets of one length; got from 2 to 3 records"):
            from_coupled_draws(draw, n_draws=2, seed=1)

    def test_numbers(self):
        with pytest.raises(ArgumentError, match="n_draws must be a whole number and at least 1"):
            from_coupled_draws(draw_pair, n_draws=0, seed=1)
        with pytest.raises(ArgumentError, match="seed must be a whole number and at least 0"):
            from_coupled_draws(draw_pair, n_draws=1, seed=-1)


class TestTail:
    @given(distributions(), st.integers(0, 500))
    def test_probability(self, distribution, above):
        exact = math.fsum(
            math.exp(p)
            for c, p in zip(distribution.counts, distribution.log_probabilities, strict=True)
            if c > above
        )
        assert distribution.tail_probability(above) == pytest.approx(exact, rel=1e-13)

    def test_agrees_with_scipy(self):
        distribution = binomial(n_records=100, mismatch_probability=0.05)
        for above in (0, 5, 50, 100):
            expected = stats.binom(100, 0.05).sf(above)
            assert distribution.tail_probability(above) == pytest.approx(expected, rel=1e-10)

    @given(distributions(), st.integers(0, 500))
    def test_folding_only_moves_mass_up(self, distribution, above):
        folded = distribution.folded(above=above)
        assert folded.largest == distribution.largest
        assert np.count_nonzero(folded.counts > above) <= 1
        for limit in range(0, 501, 25):
            assert folded.tail_probability(limit) >= distribution.tail_probability(limit) - 1e-15

    @given(distributions(), st.integers(0, 500))
    def test_folding_never_lowers_a_cost(self, distribution, above):
        def cost(differing):
            return np.exp(differing.log_probabilities) @ np.exp(1e-4 * differing.counts**2.0)

        assert cost(distribution.folded(above=above)) >= cost(distribution) * (1 - 1e-12)

    def test_known_answer(self):
        folded = from_pmf([0.5, 0.25, 0.125, 0.125]).folded(above=1)
        assert folded.counts.tolist() == [0, 1, 3]
        np.testing.assert_allclose(np.exp(folded.log_probabilities), [0.5, 0.25, 0.25])
        assert folded.origin.endswith("counts above 1 taken as 3")

    def test_far_tails_are_folded_in_log_space(self):
        distribution = binomial(n_records=50_000, mismatch_probability=0.0004)
        folded = distribution.folded(above=2_000)
        assert len(folded.counts) == 2_002
        assert -10_000 < folded.log_probabilities[-1] < -1_000

    def test_nothing_to_fold(self):
        distribution = from_pmf([0.5, 0.5])
        assert distribution.folded(above=1) is distribution
        assert distribution.folded(above=0) is distribution

    def test_everything_above_zero(self):
        assert from_pmf({3: 0.5, 4: 0.5}).folded(above=0).counts.tolist() == [4]

    def test_above(self):
        with pytest.raises(ArgumentError, match="above must be a whole number"):
            exactly(1).folded(above=-1)
        with pytest.raises(ArgumentError, match="above must be a whole number"):
            exactly(1).tail_probability(0.5)


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
        assert distribution.description() == {
            "kind": "binomial",
            "n_records": 50_000,
            "mismatch_probability": 0.0004,
        }

    def test_a_changed_distribution_does_not_keep_the_description_of_the_old_one(self):
        distribution = binomial(n_records=2, mismatch_probability=0.5)
        changed = attrs.evolve(distribution, counts=[0, 1, 5])
        assert changed.description()["kind"] == "listed"
        assert DifferingRecords.from_description(changed.description()) == changed

    def test_a_description_is_a_copy(self):
        distribution = binomial(n_records=2, mismatch_probability=0.5)
        distribution.description()["n_records"] = 3
        assert distribution.description()["n_records"] == 2

    @pytest.mark.parametrize("kind", ["poisson", None, ["listed"], 1])
    def test_unknown_kind(self, kind):
        with pytest.raises(ArgumentError, match="must be listed or binomial; got"):
            DifferingRecords.from_description({"kind": kind})

    @pytest.mark.parametrize("change", [{"origin": None}, {"n": 3}], ids=["missing", "unknown"])
    @pytest.mark.parametrize("kind", ["listed", "binomial"])
    def test_other_fields(self, kind, change):
        distribution = (
            exactly(3) if kind == "listed" else binomial(n_records=3, mismatch_probability=0.5)
        )
        fields = distribution.description() | change
        fields = {name: value for name, value in fields.items() if value is not None}
        if sorted(fields) == sorted(distribution.description()):
            del fields["n_records"]
        with pytest.raises(ArgumentError, match=f"a {kind} distribution is described by"):
            DifferingRecords.from_description(fields)

    @pytest.mark.parametrize(
        "change",
        [
            {"counts": [2.5]},
            {"counts": ["3"]},
            {"log_probabilities": [-0.1]},
            {"log_probabilities": ["x"]},
            {"is_fixed_set": "yes"},
            {"is_fixed_set": 1},
            {"origin": ""},
        ],
    )
    def test_values_are_checked_again(self, change):
        with pytest.raises(ArgumentError):
            DifferingRecords.from_description(exactly(3).description() | change)


class TestValue:
    def make(self, **changes):
        fields = {
            "counts": [0, 5],
            "log_probabilities": [math.log(0.5)] * 2,
            "is_fixed_set": False,
            "origin": "test",
        }
        return DifferingRecords(**fields | changes)

    def test_locked_and_equal_by_value(self):
        distribution = self.make()
        assert distribution == self.make()
        assert distribution != self.make(counts=[0, 6])
        assert distribution != self.make(origin="other")
        with pytest.raises(ValueError, match="read-only"):
            distribution.counts[0] = 1
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            distribution.origin = "other"
        assert repr(distribution) == "DifferingRecords('test')"

    @pytest.mark.parametrize("counts", [[5, 0], [0, 0], [-1, 5]])
    def test_counts_ascend(self, counts):
        with pytest.raises(ArgumentError, match="not negative, each greater than the last"):
            self.make(counts=counts)

    @pytest.mark.parametrize("counts", [[0.0, 1.0], [[0, 1]], 3, [], ["a", "b"], [True, False]])
    def test_counts_are_whole(self, counts):
        with pytest.raises(ArgumentError, match="counts must be a vector of whole numbers"):
            self.make(counts=counts)

    def test_counts_that_do_not_fit(self):
        with pytest.raises(ArgumentError, match="not negative, each greater than the last"):
            self.make(counts=np.array([0, 2**64 - 1], dtype=np.uint64))

    def test_at_least_one_count(self):
        with pytest.raises(ArgumentError, match="at least one number"):
            self.make(counts=np.array([], dtype=np.int64), log_probabilities=[])

    def test_impossible_counts_are_left_out(self):
        with pytest.raises(ArgumentError, match="log_probabilities must be finite; 1 of 2"):
            self.make(log_probabilities=[0.0, -math.inf])

    def test_sum(self):
        with pytest.raises(ArgumentError, match="must sum to 1, got"):
            self.make(log_probabilities=[-1.0, -1.0])

    def test_length(self):
        with pytest.raises(ArgumentError, match=r"log_probabilities must have shape \(2,\)"):
            self.make(log_probabilities=[0.0])

    def test_a_fixed_set_has_one_size(self):
        with pytest.raises(ArgumentError, match="a fixed set has one size; got True with 2 counts"):
            self.make(is_fixed_set=True)
        with pytest.raises(ArgumentError, match="is_fixed_set must be True or False"):
            self.make(is_fixed_set=None)

    @pytest.mark.parametrize("origin", ["", None, 3])
    def test_origin(self, origin):
        with pytest.raises(ArgumentError, match="origin must be a sentence"):
            self.make(origin=origin)


def mixed(design, differing):
    """The distribution of K if D is random: the mixture over D of its distributions given D."""
    total = np.zeros(design.discrepancy_cap(differing.largest) + 1)
    for d, log_chance in zip(differing.counts, differing.log_probabilities, strict=True):
        distribution = design.discrepancy_distribution(int(d))
        total[: len(distribution.counts)] += np.exp(log_chance + distribution.log_probabilities)
    return total


class TestRandomRecords:
    """Independent records that differ with probability tau, and a batch of them."""

    N_RECORDS, BATCH_SIZE, TAU, N_DRAWS = 10, 8, 0.3, 100_000

    def draw_mismatches(self, rng):
        return rng.random((self.N_DRAWS, self.N_RECORDS)) < self.TAU

    @property
    def differing(self):
        return binomial(n_records=self.N_RECORDS, mismatch_probability=self.TAU)

    @pytest.mark.statistical
    def test_repeated_draws_share_a_mismatch(self, rng):
        mismatches = self.draw_mismatches(rng)
        design = WithReplacement(n_records=self.N_RECORDS, batch_size=self.BATCH_SIZE)
        batches = rng.integers(self.N_RECORDS, size=(self.N_DRAWS, self.BATCH_SIZE))
        k = np.take_along_axis(mismatches, batches, axis=1).sum(axis=1)
        of_the_paper = stats.binom(self.BATCH_SIZE, self.TAU).pmf(range(self.BATCH_SIZE + 1))
        assert counting.p_value(k, mixed(design, self.differing)) > counting.THRESHOLD
        assert counting.p_value(k, of_the_paper) < counting.THRESHOLD

    def test_the_binomial_of_the_paper_is_too_small(self):
        design = WithReplacement(n_records=self.N_RECORDS, batch_size=self.BATCH_SIZE)
        n, b, tau = self.N_RECORDS, self.BATCH_SIZE, Fraction(3, 10)
        of_the_paper = b * tau * (1 - tau) + (b * tau) ** 2
        # Two draws hit the same record with probability 1/N, and then mismatch together.
        exact = of_the_paper + b * (b - 1) * tau * (1 - tau) / n
        distribution = mixed(design, self.differing)
        assert distribution @ np.arange(b + 1) ** 2.0 == pytest.approx(float(exact), rel=1e-13)

    @pytest.mark.statistical
    def test_without_replacement_and_poisson_batches_do_not_repeat(self, rng):
        mismatches = self.draw_mismatches(rng)
        n, b, tau = self.N_RECORDS, self.BATCH_SIZE, self.TAU
        poisson, sized = (
            Poisson(n_records=n, rate=b / n),
            WithoutReplacement(n_records=n, batch_size=b),
        )
        chosen = rng.random((self.N_DRAWS, n)) < b / n
        for design, k, closed in (
            (sized, mismatches[:, :b].sum(axis=1), stats.binom(b, tau)),
            (poisson, (mismatches & chosen).sum(axis=1), stats.binom(n, tau * b / n)),
        ):
            distribution = mixed(design, self.differing)
            np.testing.assert_allclose(
                distribution, closed.pmf(range(len(distribution))), rtol=1e-11
            )
            assert counting.p_value(k, distribution) > counting.THRESHOLD


def test_public_names_are_sorted_and_there():
    assert learning.__all__ == sorted(set(learning.__all__))
    assert all(hasattr(learning, name) for name in learning.__all__)
