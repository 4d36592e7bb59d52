# SPDX-License-Identifier: Apache-2.0
"""Gap tables as values: moments, worst gaps, coarsening, and what a read table must satisfy."""

import math

import attrs
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import oracles
from tests.oracles import HP, exact

from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity import DistributionPair, GapTables, gap_tables
from pufferslice.sensitivity.profiles import FiniteProfile


def built(**changes):
    """Two instances, two slices; rows (slice 0: i0, i1), (slice 1: i0, i1)."""
    fields = {
        "starts": [0, 2, 3, 5, 7],
        "gaps": [2.0, 0.5, 3.0, 4.0, 0.0, 1.0, 0.25],
        "counts": [1, 3, 5, 2, 2, 1, 4],
        "totals": [4, 5],
        "equal": [False, False],
    }
    fields |= changes
    kinds = {
        "starts": np.int64,
        "gaps": float,
        "counts": np.int64,
        "totals": np.int64,
        "equal": bool,
    }
    return GapTables(**{name: np.array(fields[name], dtype=kinds[name]) for name in kinds})


def random_tables(rng, n_slices=6, n_samples=400):
    distributions = [
        FiniteDistribution.uniform(rng.standard_t(2, size=(n, 3))) for n in (n_samples, n_samples)
    ]
    profile = FiniteProfile.uniform(dim=3, n_directions=n_slices, seed=1)
    return gap_tables(distributions, [DistributionPair(0, 1)], profile.directions)


class TestValues:
    def test_layout(self):
        tables = built()
        assert (tables.n_instances, tables.n_slices) == (2, 2)
        assert tables.worst().tolist() == [[2.0, 4.0], [3.0, 1.0]]
        assert tables.masses.tolist() == [0.25, 0.75, 1.0, 0.5, 0.5, 0.2, 0.8]
        tables.check()

    def test_log_moments_by_hand(self):
        """Slice 0 of instance 0: ln(e^(rate 2^2)/4 + 3 e^(rate 0.5^2)/4)."""
        moments = built().log_moments(0.5, 0.0)
        first = math.log(math.exp(2) / 4 + 3 * math.exp(0.125) / 4)
        second = math.log(math.exp(8) / 2 + 1 / 2)
        assert moments[0] == pytest.approx([first, second], rel=1e-14)
        third = math.log(math.exp(0.5) / 5 + 4 * math.exp(0.03125) / 5)
        assert moments[1] == pytest.approx([4.5, third], rel=1e-14)

    def test_the_margin_is_added_to_every_gap_before_squaring(self):
        moments = built().log_moments(0.5, 1.0)
        first = math.log(math.exp(4.5) / 4 + 3 * math.exp(1.125) / 4)
        second = math.log(math.exp(12.5) / 2 + math.exp(0.5) / 2)
        assert moments[0] == pytest.approx([first, second], rel=1e-14)

    @given(st.data(), st.floats(1e-3, 50), st.floats(0, 2))
    def test_log_moments_against_40_digits(self, data, rate, margin):
        distributions = [data.draw(oracles.empirical_distributions(1)) for _ in range(2)]
        tables = gap_tables(distributions, [DistributionPair(0, 1)], np.array([[1.0]]))
        (true,) = oracles.true_gap_distributions(distributions, [(0, 1)], [[1.0]])[0]
        moment = HP.fsum(
            exact(mass) * HP.exp(HP.mpf(rate) * (exact(gap) + HP.mpf(margin)) ** 2)
            for gap, mass in true
        )
        value = tables.log_moments(rate, margin)[0, 0]
        if tables.equal[0]:
            assert value == 0, "the same distribution costs nothing, on any grid"
            return
        assert value == pytest.approx(float(HP.log(moment)), rel=1e-12, abs=1e-14)

    @pytest.mark.soundness
    @pytest.mark.parametrize("rate", [0.5, 1.5, 4.6, 20.0, 38.0, 44.0])
    @pytest.mark.parametrize("total", [2**20, 2**40, 2**62])
    def test_a_large_gap_of_hardly_any_mass_keeps_all_its_digits(self, rate, total):
        """As a difference of numbers of order 1, a moment of 1e-15 would be rounding alone."""
        tables = GapTables(
            starts=np.array([0, 2]),
            gaps=np.array([1.0, 0.0]),
            counts=np.array([1, total - 1]),
            totals=np.array([total]),
            equal=np.array([False]),
        )
        expected = HP.log1p(HP.expm1(HP.mpf(rate)) / total)
        value = tables.log_moments(rate, 0.0)[0, 0]
        assert value == pytest.approx(float(expected), rel=2e-12, abs=0)

    def test_log_moments_of_many_rows_are_those_of_few(self, rng):
        """Enough rows to be shared out among threads."""
        tables = random_tables(rng, n_slices=2100, n_samples=12)
        together = tables.log_moments(0.3, 0.0)[0]
        for k in (0, 1, 700, 1400, 2099):
            row = oracles.tabulated(tables, 0, k)
            moment = sum(float(m) * math.exp(0.3 * float(g) ** 2) for g, m in row)
            assert together[k] == pytest.approx(math.log(moment), rel=1e-12)

    def test_log_moments_stay_in_log_space(self):
        moments = built().log_moments(1e6, 0.0)
        assert moments[0] == pytest.approx([4e6 - math.log(4), 16e6 - math.log(2)], rel=1e-15)

    def test_log_moments_beyond_floats_are_infinite(self):
        huge = built(gaps=[1e200, 0.5, 3.0, 4.0, 0.0, 1.0, 0.25])
        assert huge.log_moments(1.0, 0.0)[0, 0] == math.inf

    def test_frozen_and_silent_about_gaps(self):
        tables = built()
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            tables.gaps = np.zeros(7)
        assert repr(tables) == "GapTables(n_instances=2, n_slices=2)"


class TestCoarsening:
    @pytest.mark.soundness
    @pytest.mark.parametrize("n_entries", [2000, 600, 60, 6, 1])
    def test_dominates_and_keeps_worst_zero_and_mass(self, n_entries, rng):
        tables = random_tables(rng)
        coarse = tables.coarsened(n_entries)
        coarse.check()
        assert coarse.worst().tolist() == tables.worst().tolist()
        for k in range(tables.n_slices):
            fine, rough = oracles.tabulated(tables, 0, k), oracles.tabulated(coarse, 0, k)
            assert sum(mass for _, mass in rough) == 1
            assert oracles.dominates(rough, fine)

    def test_few_entries_are_left(self, rng):
        tables = random_tables(rng)
        sizes = [len(tables.coarsened(n).gaps) for n in (2000, 600, 200)]
        assert len(tables.gaps) > 1000
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[2] <= 2 * 200

    def test_enough_room_changes_nothing(self):
        tables = built()
        same = tables.coarsened(10)
        assert same.gaps.tolist() == tables.gaps.tolist()
        assert same.counts.tolist() == tables.counts.tolist()

    def test_zero_gaps_stay_zero(self):
        distribution = FiniteDistribution.uniform(
            np.r_[np.zeros(50), 1 + np.arange(50) / 50][:, None]
        )
        none = FiniteDistribution.uniform([[0.0]])
        tables = gap_tables([distribution, none], [DistributionPair(0, 1)], np.array([[1.0]]))
        coarse = tables.coarsened(4)
        assert len(coarse.gaps) < len(tables.gaps)
        assert coarse.gaps[-1] == 0
        assert coarse.masses[-1] == 0.5

    def test_cost_grows_but_little_at_first(self, rng):
        tables = random_tables(rng)
        fine = tables.log_moments(0.05, 0.0)
        rough = tables.coarsened(len(tables.gaps) // 2).log_moments(0.05, 0.0)
        assert (rough >= fine).all()
        assert (rough <= fine * 1.1).all()

    def test_equal_instances_stay_equal(self):
        distribution = FiniteDistribution.uniform([[0.0], [1.0]])
        tables = gap_tables(
            [distribution, distribution], [DistributionPair(0, 1)], np.array([[1.0]])
        )
        assert tables.coarsened(1).equal.tolist() == [True]


class TestCheck:
    @pytest.mark.parametrize(
        "changes",
        [
            {"starts": [1, 2, 3, 5, 7]},
            {"starts": [0, 2, 3, 5, 6]},
            {"starts": [0, 3, 2, 5, 7]},
            {"starts": [0, 2, 2, 5, 7]},
            {"gaps": [0.5, 2.0, 3.0, 4.0, 0.0, 1.0, 0.25]},
            {"gaps": [2.0, -0.5, 3.0, 4.0, 0.0, 1.0, 0.25]},
            {"gaps": [math.inf, 0.5, 3.0, 4.0, 0.0, 1.0, 0.25]},
            {"gaps": [2.0, math.nan, 3.0, 4.0, 0.0, 1.0, 0.25]},
            {"counts": [1, 2, 5, 2, 2, 1, 4]},
            {"counts": [4, 0, 5, 2, 2, 1, 4]},
            {"counts": [5, -1, 5, 2, 2, 1, 4]},
            {"totals": [4, 6]},
            {"equal": [False]},
        ],
        ids=str,
    )
    def test_arrays_that_do_not_fit(self, changes):
        with pytest.raises(ArgumentError, match="gap tables"):
            built(**changes).check()

    @pytest.mark.parametrize(
        "changes",
        [
            {"starts": [0, 2, 3, 7]},
            {"gaps": [2.0, 0.5, 3.0, 4.0, 0.0, 1.0]},
            {"counts": [1, 3, 5, 2, 2, 1]},
            {"totals": [4], "equal": [False]},
            {"starts": [0], "gaps": [], "counts": [], "totals": [], "equal": []},
        ],
        ids=str,
    )
    def test_arrays_of_the_wrong_length(self, changes):
        with pytest.raises(ArgumentError):
            built(**changes).check()

    def test_what_is_built_passes(self, rng):
        random_tables(rng).check()


class TestDeltas:
    """The delta of noisy outputs along a slice, from the gaps."""

    def tables(self):
        return GapTables(
            starts=np.array([0, 2, 3]),
            gaps=np.array([3.0, 1.0, 2.0]),
            counts=np.array([1, 3, 4]),
            totals=np.array([4]),
            equal=np.array([False]),
        )

    def test_a_gap_that_vanishes_beside_the_noise(self):
        """Its ratio to the noise is no number any more, and must not be divided by."""
        tables = attrs.evolve(self.tables(), gaps=np.array([5e-324, 5e-324, 2.0]))
        assert tables.deltas(np.full((1, 2), 1.0), 1e3, 0.0)[0, 0] < 1e-14

    @pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 30.0])
    def test_by_mpmath(self, epsilon):
        """On the safe side by less than 1e-14."""
        found = self.tables().deltas(np.full((1, 2), epsilon), 2.0, 0.5)
        with mpmath.workdps(40):

            def delta(gap):
                r, e = (mpmath.mpf(gap) + 0.5) / 2, mpmath.mpf(epsilon)
                return mpmath.ncdf(r / 2 - e / r) - mpmath.exp(e) * mpmath.ncdf(-r / 2 - e / r)

            exact = [(delta(3) + 3 * delta(1)) / 4, delta(2)]
        for one, true in zip(found[0], exact, strict=True):
            assert true <= one <= true + 1e-14

    def test_each_row_has_its_own_epsilon(self):
        both = self.tables().deltas(np.array([[0.1, 1.0]]), 2.0, 0.0)[0]
        alone = [self.tables().deltas(np.full((1, 2), e), 2.0, 0.0)[0] for e in (0.1, 1.0)]
        assert both[0] == alone[0][0]
        assert both[1] == alone[1][1]

    def test_no_gap_no_delta_and_no_overflow(self):
        zero = attrs.evolve(self.tables(), gaps=np.array([3.0, 0.0, 0.0]))
        assert zero.deltas(np.zeros((1, 2)), 1.0, 0.0)[0, 1] < 1e-14
        huge = self.tables().deltas(np.full((1, 2), 1e6), 1e-3, 0.0)
        assert ((huge >= 0) & (huge <= 1 + 1e-14)).all()

    def test_equal_distributions_have_none(self):
        same = attrs.evolve(self.tables(), gaps=np.zeros(3), equal=np.array([True]))
        assert not same.deltas(np.zeros((1, 2)), 1.0, 0.1).any()
