# SPDX-License-Identifier: Apache-2.0
"""Tables in bounded memory: still upper bounds, and fine where the largest cost is."""

import itertools

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import oracles

from pufferslice.calibration.calibrate import Method, calibrate, cost
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.queries import Box, columns
from pufferslice.scenario.distributions import FiniteDistribution, SampledDistribution
from pufferslice.scenario.histograms import BinnedDistribution
from pufferslice.sensitivity import DistributionPair, gap_tables, matching_tables
from pufferslice.sensitivity.bands import SortedSample, band_tables, common_bands
from pufferslice.sensitivity.binned import Tally, bin_grid, binned_tables
from pufferslice.sensitivity.concentration import LEVEL_QUANTA
from pufferslice.sensitivity.kernels import thinned
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.renyi import aggregate
from pufferslice.sensitivity.sensitivity import Slices

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

    def test_what_fits_is_left_alone(self):
        gaps, counts = np.array([3.0, 2.0, 0.0]), np.array([1, 2, 3])
        kept, masses = thinned(gaps, counts, 3)
        assert (kept.tolist(), masses.tolist()) == ([3, 2, 0], [1, 2, 3])

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

    def test_many_pairs_and_directions(self):
        rng = np.random.default_rng(5)
        distributions, pairs = random_distributions(rng, 24, 120, 6), all_pairs(24)
        profile = FiniteProfile.uniform(dim=6, n_directions=500, seed=2)
        slices = Slices(profile=profile, seen=gap_tables(distributions, pairs, profile.directions))
        for claim in CLAIMS:
            self.assert_near_the_hardest(claim, slices, distributions, pairs, 0.01)

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
        slices = Slices(profile=profile, seen=tables)
        self.assert_near_the_hardest(claim, slices, distributions, pairs, 0.01)

    def assert_near_the_hardest(self, claim, slices, distributions, pairs, room):
        noise_std = calibrate(claim, slices, TRANSPORT)
        rate = claim.order * (claim.order - 1) / (2 * noise_std**2)
        logs = slices.seen.log_moments(rate, 0.0) / (claim.order - 1)
        costs = aggregate(claim.notion, claim.order, logs, slices.profile.weights)
        hardest = [pairs[i] for i in np.argsort(-costs)[:5]]
        alone = gap_tables(distributions, hardest, slices.profile.directions)
        least = calibrate(claim, attrs.evolve(slices, seen=alone, missing=np.zeros(5)), TRANSPORT)
        assert least * (1 - 1e-9) <= noise_std <= least * (1 + room) ** 0.5

    def test_pairs_that_are_all_alike_share_the_room(self, monkeypatch):
        """Nothing to choose: every row gets the same."""
        rng = np.random.default_rng(3)
        rows = np.abs(rng.normal(size=(200, 1)))
        distributions = [FiniteDistribution.uniform(rows)]
        distributions += [FiniteDistribution.uniform(np.zeros((200, 1))) for _ in range(10)]
        pairs = [DistributionPair(0, k) for k in range(1, 11)]
        monkeypatch.setattr("pufferslice.sensitivity.tables.MOST_ENTRIES", 400)
        tables = gap_tables(distributions, pairs, np.array([[1.0]]))
        lengths = np.diff(tables.starts)
        assert lengths.min() == lengths.max() > 30
        assert len(tables.gaps) <= 400


class TestBounds:
    """A small room in place of 2^24 entries, for every kind of table."""

    @pytest.mark.soundness
    @pytest.mark.parametrize("room", [5_000, 1_500, 300, 1])
    def test_exact(self, room, rng, monkeypatch):
        distributions, pairs = random_distributions(rng, 5, 200, 2), all_pairs(5)
        distributions[3] = distributions[2]
        directions = FiniteProfile.uniform(dim=2, n_directions=6, seed=1).directions
        for make in (gap_tables, matching_tables):
            fine = make(distributions, pairs, directions)
            monkeypatch.setattr("pufferslice.sensitivity.tables.MOST_ENTRIES", room)
            coarse = make(distributions, pairs, directions)
            monkeypatch.undo()
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
                cost(Slices(profile=profile, seen=tables), claim, 3.0, TRANSPORT)
                for tables in (coarse, fine)
            )
            assert one == other

    @pytest.mark.soundness
    @pytest.mark.parametrize("room", [800, 300])
    def test_binned(self, room, rng, monkeypatch):
        profile = FiniteProfile.uniform(dim=2, n_directions=4, seed=1)
        query = columns(["x", "y"]).with_range(Box([-9, -9], [9, 9]))
        tally = Tally(bin_grid(query, profile, n_bins=512))
        for k in range(4):
            rows = np.clip(rng.normal(k / 2, 1 + k / 3, size=(900, 2)), -9, 9)
            tally.add(rows, [f"s{k}"], np.zeros(900, dtype=np.int64))
        counted = tally.histograms()
        distributions = [
            BinnedDistribution(grid=counted.grid, counts=counts) for counts in counted.counts
        ]
        fine = binned_tables(distributions, all_pairs(4), profile.directions)
        monkeypatch.setattr("pufferslice.sensitivity.tables.MOST_ENTRIES", room)
        coarse = binned_tables(
            distributions, all_pairs(4), profile.directions, weights=profile.weights
        )
        assert len(coarse.gaps) <= room < len(fine.gaps)
        assert_bounds(coarse, fine)

    @pytest.mark.soundness
    @pytest.mark.parametrize("room", [1_500, 300])
    def test_bands(self, room, rng, monkeypatch):
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
        monkeypatch.setattr("pufferslice.sensitivity.tables.MOST_ENTRIES", room)
        coarse = band_tables(distributions, all_pairs(4), bands, ends, weights=profile.weights)
        for rough, whole in ((coarse.bound, fine.bound), (coarse.plain, fine.plain)):
            rough.check()
            assert len(rough.gaps) <= room < len(whole.gaps)
            assert rough.totals.tolist() == [LEVEL_QUANTA] * 6
            assert (rough.log_moments(0.1, 0.0) >= whole.log_moments(0.1, 0.0) * (1 - 1e-12)).all()
