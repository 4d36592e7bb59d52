# SPDX-License-Identifier: Apache-2.0
"""Gap tables as values, and tables in bounded memory: still upper bounds."""

import itertools
import math

import attrs
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import oracles
from tests.oracles import HP, exact

from pufferslice.claims import Guarantee
from pufferslice.claims.slices import Method
from pufferslice.scenario.distributions import FiniteDistribution, SampledDistribution
from pufferslice.sensitivity import DistributionPair, GapTables, gap_tables
from pufferslice.sensitivity.bands import SortedSample, band_tables, common_bands
from pufferslice.sensitivity.concentration import LEVEL_QUANTA
from pufferslice.sensitivity.kernels import thinned
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.renyi import aggregate
from pufferslice.sensitivity.sensitivity import Slices
from pufferslice.sensitivity.tables import MatchingTables, resolved


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

    def test_log_moments_beyond_floats_are_infinite(self):
        huge = built(gaps=[1e200, 0.5, 3.0, 4.0, 0.0, 1.0, 0.25])
        assert huge.log_moments(1.0, 0.0)[0, 0] == math.inf

    def test_frozen_and_silent_about_gaps(self):
        tables = built()
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            tables.gaps = np.zeros(7)
        assert repr(tables) == "GapTables(n_instances=2, n_slices=2)"


@pytest.mark.soundness
@pytest.mark.parametrize("n_entries", [600, 60, 1])
def test_coarser_tables_keep_worst_zero_and_mass(n_entries, rng):
    directions = FiniteProfile.uniform(dim=3, n_directions=6, seed=1).directions
    tables = gap_tables(random_distributions(rng, 2, 400, 3), all_pairs(2), directions)
    assert_bounds(tables.coarsened(n_entries), tables)


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

    def test_no_gap_no_delta_and_no_overflow(self):
        zero = attrs.evolve(self.tables(), gaps=np.array([3.0, 0.0, 0.0]))
        assert zero.deltas(np.zeros((1, 2)), 1.0, 0.0)[0, 1] < 1e-14
        huge = self.tables().deltas(np.full((1, 2), 1e6), 1e-3, 0.0)
        assert ((huge >= 0) & (huge <= 1 + 1e-14)).all()

    def test_equal_distributions_have_none(self):
        same = attrs.evolve(self.tables(), gaps=np.zeros(3), equal=np.array([True]))
        assert not same.deltas(np.zeros((1, 2)), 1.0, 0.1).any()


TRANSPORT = Method(rule="tight", envelope="transport")
CLAIMS = [
    Guarantee.joint(order=4, epsilon=1.0),
    Guarantee.average(order=4, epsilon=1.0),
    Guarantee.average(order=2, epsilon=0.05),
    Guarantee.joint(order=32, epsilon=3.0),
]


def all_pairs(n_secrets):
    return [DistributionPair(*pair) for pair in itertools.combinations(range(n_secrets), 2)]


def random_distributions(rng, n_secrets, n_samples, dim):
    """Other centres and spreads; every second one has heavy tails."""
    made = []
    for index in range(n_secrets):
        shape = rng.normal(size=dim), rng.uniform(0.5, 1.5, size=dim)
        rows = (rng.standard_t(4, size=(n_samples, dim)), rng.normal(size=(n_samples, dim)))
        made.append(FiniteDistribution.uniform(shape[0] + shape[1] * rows[index % 2]))
    return made


def assert_bounds(coarse, fine):
    """Same worst gaps, mass 1, never a smaller gap at the same level."""
    coarse.check()
    assert coarse.worst().tolist() == fine.worst().tolist()
    for instance, row in itertools.product(range(fine.n_instances), range(fine.n_slices)):
        rough = oracles.tabulated(coarse, instance, row)
        assert sum(mass for _, mass in rough) == 1
        assert oracles.dominates(rough, oracles.tabulated(fine, instance, row))


class TestThinned:
    @pytest.mark.soundness
    @given(
        st.lists(st.floats(0, 1e6, allow_subnormal=True), min_size=1, max_size=60, unique=True),
        st.integers(2, 20),
        st.data(),
    )
    def test_few_entries_that_bound_the_others(self, gaps, most, data):
        gaps = np.sort(np.array(gaps))[::-1].copy() + 0.0
        counts = np.array(
            data.draw(st.lists(st.integers(1, 2**40), min_size=len(gaps), max_size=len(gaps)))
        )
        kept, masses = thinned(gaps, counts, most)
        assert len(kept) == len(masses) <= most
        assert kept[0] == gaps[0]
        assert masses.sum() == counts.sum()
        assert masses.min() >= 1
        assert (np.diff(kept) < 0).all()
        assert set(kept) <= set(gaps)
        # Mass at or above every threshold.
        for gap in gaps:
            assert masses[kept >= gap].sum() >= counts[gaps >= gap].sum()
        if gaps[-1] == 0:
            assert (kept[-1], masses[-1]) == (0, counts[-1])

    @pytest.mark.parametrize("steepness", [0.01, 1, 4, 16, 64])
    @pytest.mark.parametrize(("most", "percent"), [(16, 40), (64, 8), (256, 1.2), (512, 0.5)])
    def test_costs_little_at_every_noise(self, most, percent, steepness, rng):
        for rows in (rng.normal(0.3, 1.4, size=20_000), rng.standard_t(4, size=20_000)):
            distributions = [
                FiniteDistribution.uniform(x[:, None]) for x in (rows, rng.normal(size=20_000))
            ]
            fine = gap_tables(distributions, [DistributionPair(0, 1)], np.array([[1.0]]))
            gaps, counts = thinned(fine.gaps, fine.counts, most)
            rough = attrs.evolve(fine, starts=np.array([0, len(gaps)]), gaps=gaps, counts=counts)
            rate = steepness / fine.worst().max() ** 2
            # Less noise by this share costs the fine table as much.
            assert rough.log_moments(rate, 0.0) <= fine.log_moments(rate * (1 + percent / 100), 0.0)


class TestNoise:
    """All pairs of many secrets, against the hardest of them alone, which is a lower bound."""

    @pytest.mark.parametrize("claim", CLAIMS, ids=str)
    def test_in_little_room_with_unequal_weights(self, claim, rng, monkeypatch):
        distributions, pairs = random_distributions(rng, 16, 300, 5), all_pairs(16)
        directions = FiniteProfile.uniform(dim=5, n_directions=30, seed=3).directions
        weights = np.where(np.arange(30) < 4, 0.24, 0.04 / 26)
        profile = FiniteProfile(directions=directions, weights=weights / weights.sum())
        room = 20 * len(pairs) * 30
        monkeypatch.setattr("pufferslice.sensitivity.tables.MOST_ENTRIES", room)
        tables = gap_tables(distributions, pairs, directions, weights=profile.weights)
        monkeypatch.undo()
        assert len(tables.gaps) <= room
        slices = Slices(profile=profile, differences=tables)
        self.assert_near_the_hardest(claim, slices, distributions, pairs, 0.01)

    def assert_near_the_hardest(self, claim, slices, distributions, pairs, room):
        noise_std = claim.whole.slice_noise(slices, claim.notion, TRANSPORT)
        rate = claim.order * (claim.order - 1) / (2 * noise_std**2)
        logs = slices.differences.log_moments(rate, 0.0) / (claim.order - 1)
        costs = aggregate(claim.notion, claim.order, logs, slices.profile.weights)
        hardest = [pairs[i] for i in np.argsort(-costs)[:5]]
        alone = gap_tables(distributions, hardest, slices.profile.directions)
        fewer = attrs.evolve(slices, differences=alone, missing=np.zeros(5))
        least = claim.whole.slice_noise(fewer, claim.notion, TRANSPORT)
        assert least * (1 - 1e-9) <= noise_std <= least * (1 + room) ** 0.5


class TestBounds:
    """A small room in place of 2^24 entries, for every kind of table."""

    @pytest.mark.soundness
    @pytest.mark.parametrize("room", [1_500, 1])
    def test_exact(self, room, rng, monkeypatch):
        distributions, pairs = random_distributions(rng, 5, 200, 2), all_pairs(5)
        distributions[3] = distributions[2]
        directions = FiniteProfile.uniform(dim=2, n_directions=6, seed=1).directions
        fine = gap_tables(distributions, pairs, directions)
        monkeypatch.setattr("pufferslice.sensitivity.tables.MOST_ENTRIES", room)
        coarse = gap_tables(distributions, pairs, directions)
        assert len(coarse.gaps) <= max(room, 2 * 60) < len(fine.gaps)
        assert coarse.equal.tolist() == fine.equal.tolist()
        assert coarse.equal.any()
        assert_bounds(coarse, fine)

    @pytest.mark.soundness
    def test_larger_tables_keep_the_hardest_pairs_whole(self, rng, monkeypatch):
        """Room for all, but no reason to keep all of it."""
        distributions, pairs = random_distributions(rng, 6, 400, 2), all_pairs(6)
        profile = FiniteProfile.uniform(dim=2, n_directions=5, seed=1)
        fine = gap_tables(distributions, pairs, profile.directions)
        monkeypatch.setattr("pufferslice.sensitivity.tables._SMALL", 1000)
        coarse = gap_tables(distributions, pairs, profile.directions)
        assert len(coarse.gaps) < len(fine.gaps) / 2
        assert_bounds(coarse, fine)
        for claim in CLAIMS:
            one, other = (
                claim.whole.slice_cost(
                    Slices(profile=profile, differences=tables), claim.notion, 3.0, TRANSPORT
                )
                for tables in (coarse, fine)
            )
            assert one == other

    @pytest.mark.soundness
    def test_bands(self, rng, monkeypatch):
        profile = FiniteProfile.uniform(dim=2, n_directions=4, seed=1)
        draws = [
            SampledDistribution(outputs=rng.normal(k / 2, 1 + k / 3, size=(600, 2)))
            for k in range(4)
        ]
        distributions = [
            SortedSample.of(distribution, profile.directions) for distribution in draws
        ]
        bands = common_bands([600] * 4, 0.01, "order_statistics")
        ends = np.tile([-20.0, 20.0], (4, 1))
        fine = band_tables(distributions, all_pairs(4), bands, ends)
        monkeypatch.setattr("pufferslice.sensitivity.tables.MOST_ENTRIES", 300)
        coarse = band_tables(distributions, all_pairs(4), bands, ends, weights=profile.weights)
        for rough, whole in ((coarse.bound, fine.bound), (coarse.plain, fine.plain)):
            rough.check()
            assert len(rough.gaps) <= 300 < len(whole.gaps)
            assert rough.totals.tolist() == [LEVEL_QUANTA] * 6
            assert (rough.log_moments(0.1, 0.0) >= whole.log_moments(0.1, 0.0) * (1 - 1e-12)).all()


class TestWhichRowsAreFine:
    """Rows that are multiples of one row, so that costs are known; calls are written down."""

    ROW = np.geomspace(1, 0.1, 900)

    def n_entries(self, most):
        gaps, _ = thinned(self.ROW, np.ones(len(self.ROW), dtype=np.int64), most)
        return len(gaps)

    def resolve(self, kind, scales, room, monkeypatch):
        """The tables, with the number of instances and of entries a row of every call."""
        calls = []

        def make(instances, most, _progress):
            calls.append((len(instances), most))
            ones = np.ones(len(self.ROW), dtype=np.int64)
            rows = [
                thinned(scales[i][along] * self.ROW, ones, most)
                if scales[i][along]
                else (np.zeros(1), ones[:1] * len(ones))
                for along in range(len(scales[0]))
                for i in instances
            ]
            return [kind.of_rows(rows, [len(ones)] * len(instances))]

        monkeypatch.setattr("pufferslice.sensitivity.tables.MOST_ENTRIES", room)
        (tables,) = resolved(make, len(scales), len(scales[0]))
        lengths = np.diff(tables.starts).reshape(tables.n_slices, -1)
        return tables, lengths.tolist(), calls

    def test_more_entries_the_fewer_can_cost_most(self, monkeypatch):
        """A row of k entries may cost 4 / k too much: that rules out some more in every wave."""
        squares = [1.0] + [0.96] * 4 + [0.92] * 10 + [0.86] * 40
        scales = [(math.sqrt(square),) for square in squares]
        tables, lengths, calls = self.resolve(GapTables, scales, 3_300, monkeypatch)
        assert calls == [(55, 16), (55, 30), (15, 70), (5, 140), (1, 512)]
        most = [512] + [140] * 4 + [70] * 10 + [30] * 40
        assert lengths == [[self.n_entries(n) for n in most]]
        assert tables.worst()[:, 0] == pytest.approx(np.sqrt(squares))

    def test_a_coupling_costs_what_the_best_one_does(self, monkeypatch):
        """The first pair has one bad coupling, the second two of middling length."""
        scales, room = [(8.0, 1.0), (2.0, 2.0)], 1_200
        _, lengths, _ = self.resolve(MatchingTables, scales, room, monkeypatch)
        coarse, fine = self.n_entries(16), self.n_entries(512)
        assert lengths == [[coarse, fine]] * 2
        _, lengths, _ = self.resolve(GapTables, scales, room, monkeypatch)
        assert lengths == [[fine, coarse]] * 2

    def test_rows_without_a_gap_are_made_once(self, monkeypatch):
        tables, _, calls = self.resolve(GapTables, [(0.0,)] * 3, 30, monkeypatch)
        assert calls == [(3, 5)]
        assert not tables.worst().any()
