# SPDX-License-Identifier: Apache-2.0
"""Gaps from histograms: never below the exact ones, at most two bins above."""

import itertools
import math
from fractions import Fraction

import attrs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pufferslice.calibration.calibrate import Method, calibrate
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.certificate import certify_release, verify
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Ball, Box, columns
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.histograms import BinGrid, BinnedDistribution, added
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity import (
    DistributionPair,
    RowScan,
    binned,
    gap_tables,
    scan_tables,
    streamed_scenario,
)
from pufferslice.sensitivity.binned import Tally, bin_grid, binned_tables
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.sensitivity import Slices

GROUP = "group"
ONE_PAIR = [DistributionPair(0, 1)]
ROUNDED = 1 + 1 / 256


def grid_of(dim, n_bins=16, extent=8.0, n_directions=3, shape="box"):
    profile = FiniteProfile.uniform(dim=dim, n_directions=n_directions, seed=5)
    return BinGrid(
        directions=profile.directions,
        center=np.zeros(dim),
        extents=np.full(dim, extent),
        shape=shape,
        n_bins=n_bins,
    )


def counted(grid, *samples, n_threads=1):
    """Histograms of samples, named a, b, …"""
    tally = Tally(grid, n_threads)
    for name, sample in zip("abcdefgh", samples, strict=False):
        rows = np.asarray(sample, dtype=float)
        tally.add(rows, [name], np.zeros(len(rows), dtype=np.int64))
    return tally.histograms()


def both_tables(grid, first, second):
    distributions = counted(grid, first, second).distributions()
    binned = binned_tables([distributions["a"], distributions["b"]], ONE_PAIR, grid.directions)
    exact = gap_tables(
        [FiniteDistribution.uniform(first), FiniteDistribution.uniform(second)],
        ONE_PAIR,
        grid.directions,
    )
    return binned, exact


def expanded(tables, row):
    """Every gap of a row as often as its mass says, descending."""
    entries = slice(tables.starts[row], tables.starts[row + 1])
    return np.repeat(tables.gaps[entries], tables.counts[entries])


def true_gaps(first, second, direction):
    """Gaps at equally spaced ranks, as many as both sizes divide, descending; up to 1e-14."""
    total = math.lcm(len(first), len(second))
    a, b = (np.sort(np.repeat(rows @ direction, total // len(rows))) for rows in (first, second))
    return np.sort(np.abs(a - b))[::-1] - 1e-14


@st.composite
def samples(draw):
    """Two samples in a box, many of them on the edges of bins of the axes and of the box."""
    dim = draw(st.integers(1, 4))
    on_edge = st.integers(-8, 8).map(float)
    value = st.one_of(on_edge, st.floats(-8, 8, width=32), st.sampled_from([-8.0, 8.0, 0.0]))
    rows = st.lists(value, min_size=dim, max_size=dim)
    first = draw(st.lists(rows, min_size=1, max_size=9))
    second = draw(st.lists(rows, min_size=1, max_size=9))
    return np.array(first), np.array(second)


class TestAgainstExactTables:
    @given(samples())
    def test_gaps_are_held_and_less_than_two_bins_wider(self, both):
        first, second = both
        grid = grid_of(first.shape[1])
        binned, exact = both_tables(grid, first, second)
        binned.check()
        for row in range(grid.n_directions):
            above, true = expanded(binned, row), true_gaps(first, second, grid.directions[row])
            price = 2 * grid.widths[row] + 2 * grid.errors[row]
            assert (above >= true).all()
            assert (above <= (true + price) * ROUNDED).all()
        assert (binned.worst() >= exact.worst() * (1 - 1e-12)).all()
        assert (binned.worst() <= (exact.worst() + 2 * (grid.widths + grid.errors))).all()

    def test_axis_values_on_edges(self):
        """One bin is 1 wide; rows at 0 and 3 are three edges apart: 3 <= gap <= 4 and a bit."""
        grid = BinGrid(directions=[[1.0]], center=[0.0], extents=[8.0], shape="box", n_bins=16)
        binned, _ = both_tables(grid, np.array([[0.0], [0.0]]), np.array([[3.0], [3.0]]))
        assert binned.worst()[0, 0] == pytest.approx(4, abs=1e-5)
        assert not binned.equal.any()

    def test_the_same_rows_are_one_bin_apart(self):
        """The distribution of a row inside its bin is not known."""
        grid = BinGrid(directions=[[1.0]], center=[0.0], extents=[8.0], shape="box", n_bins=16)
        binned, _ = both_tables(grid, np.array([[0.3]]), np.array([[0.3]]))
        assert binned.worst()[0, 0] == pytest.approx(1, abs=1e-5)

    def test_unequal_sizes(self):
        """{0, 6} against {0, 3, 6}, bins of 1: a third of the mass is 3 apart, up to a bin."""
        grid = BinGrid(directions=[[1.0]], center=[4.0], extents=[4.0], shape="box", n_bins=8)
        binned, _ = both_tables(grid, np.array([[0.5], [6.5]]), np.array([[0.5], [3.5], [6.5]]))
        assert binned.totals.tolist() == [6]
        assert binned.counts.tolist() == [2, 4]
        assert binned.gaps == pytest.approx([4, 1], rel=1 / 200)


class TestProjectionError:
    @pytest.mark.parametrize("dim", [1, 3, 10, 53])
    @pytest.mark.parametrize("shape", ["box", "ellipsoid"])
    def test_bins_are_right_up_to_the_stated_error(self, dim, shape, rng):
        """Against exact projections in fractions; without the error term some would be wrong."""
        grid = grid_of(dim, n_bins=4096, extent=3.0, n_directions=5, shape=shape)
        rows = _rows_on_edges(grid, rng, n_rows=60)
        wrong_without = 0
        for row in rows:
            distribution = counted(grid, row[None, :]).distribution("a")
            for direction in range(grid.n_directions):
                (bin_found,) = np.flatnonzero(distribution.counts[direction])
                value = sum(
                    Fraction(float(u)) * Fraction(float(x))
                    for u, x in zip(grid.directions[direction], row, strict=True)
                )
                width = Fraction(float(grid.widths[direction]))
                low = (int(bin_found) - grid.n_bins // 2) * width
                error = Fraction(float(grid.errors[direction]))
                assert low - error <= value <= low + width + error
                wrong_without += not low <= value <= low + width
        assert wrong_without > 0

    def test_values_of_ranks_hold_every_projection(self, rng):
        grid = grid_of(4, n_bins=64)
        rows = rng.uniform(-8, 8, size=(500, 4))
        distribution = counted(grid, rows).distribution("a")
        ranks = np.arange(1, 501)
        sorted_rows = np.sort(grid.directions @ rows.T, axis=1)
        lower, upper = distribution.bounds(slice(None), ranks)
        assert (lower <= sorted_rows).all()
        assert (upper >= sorted_rows).all()
        price = (grid.widths + 3 * grid.errors)[:, None]
        assert (upper - sorted_rows <= price).all()


def _rows_on_edges(grid, rng, n_rows):
    """Rows whose projection on some direction is on an edge, as well as floats allow."""
    rows = rng.uniform(-1, 1, size=(n_rows, grid.dim)) * grid.extents / grid.dim**0.5
    for index, row in enumerate(rows):
        direction = rng.integers(grid.n_directions)
        u, width = grid.directions[direction], grid.widths[direction]
        rows[index] += u * (np.round(u @ row / width) * width - u @ row)
    return rows


class TestTally:
    @pytest.mark.parametrize("n_threads", [1, 2, 3, 7])
    @pytest.mark.parametrize("n_rows", [1, 255, 256, 257, 3000])
    def test_chunks_threads_and_order_change_nothing(self, n_rows, n_threads, rng):
        grid = grid_of(10, n_bins=128, n_directions=7)
        rows = rng.uniform(-8, 8, size=(n_rows, 10))
        codes = rng.integers(3, size=n_rows)
        names = ["x", "y", "z"]
        whole = Tally(grid, 1)
        whole.add(rows, names, codes)
        parts = []
        cuts = np.unique([0, n_rows, *rng.integers(n_rows + 1, size=4)])
        shuffled = rng.permutation(n_rows)
        for start, stop in itertools.pairwise(cuts):
            tally = Tally(grid, n_threads)
            some = shuffled[start:stop]
            tally.add(rows[some], names, codes[some])
            parts.append(tally.histograms())
        assert added(parts) == whole.histograms()
        assert whole.n_rows == n_rows

    def test_short_counts_are_settled_before_they_wrap(self, rng, monkeypatch):
        grid = grid_of(2, n_bins=8)
        rows, codes = rng.uniform(-8, 8, size=(3_000, 2)), rng.integers(3, size=3_000)
        whole = Tally(grid, 1)
        whole.add(rows, ["x", "y", "z"], codes)
        monkeypatch.setattr(binned, "MOST_RECENT", 500)
        tally = Tally(grid, 1)
        for start in range(0, 3_000, 300):
            tally.add(rows[start : start + 300], ["x", "y", "z"], codes[start : start + 300])
            assert tally.n_rows == start + 300
        tally.add(rows[:1], ["new"], np.zeros(1, dtype=np.int64))
        found = tally.histograms()
        assert found.n_rows == {"new": 1, **whole.histograms().n_rows}
        assert np.array_equal(found.counts[1:], whole.histograms().counts)
        assert int(tally._recent.max()) <= 500

    def test_histograms_can_be_added_to_a_tally(self, rng):
        grid = grid_of(2)
        first, second = rng.uniform(-8, 8, size=(2, 50, 2))
        tally = Tally(grid)
        tally.add(first, ["b"], np.zeros(50, dtype=np.int64))
        tally.add_histograms(counted(grid, second))
        assert tally.histograms() == added(
            [counted(grid, second), _renamed(counted(grid, first), "b")]
        )
        with pytest.raises(ArgumentError, match="only on one grid"):
            tally.add_histograms(counted(grid_of(2, n_bins=8), second))

    def test_every_bin_counts(self):
        """Known answer along an axis: ten rows in ten bins, the ends included."""
        grid = BinGrid(directions=[[1.0]], center=[5.0], extents=[5.0], shape="box", n_bins=10)
        distribution = counted(grid, np.arange(10)[:, None] + 0.5).distribution("a")
        assert distribution.counts.tolist() == [[1] * 10]
        ends = counted(grid, [[0.0], [10.0]]).distribution("a")
        assert ends.counts[0, [0, 9]].tolist() == [1, 1]

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 8.1, 1e300])
    @pytest.mark.parametrize("shape", ["box", "ellipsoid"])
    def test_rows_outside_are_counted_and_end_the_tally(self, bad, shape):
        grid = grid_of(3, shape=shape)
        rows = np.zeros((300, 3))
        rows[[7, 290], 1] = bad
        tally = Tally(grid)
        with pytest.raises(ScenarioError, match="2 of 300 rows lie outside the public range"):
            tally.add(rows, ["a"], np.zeros(300, dtype=np.int64))
        with pytest.raises(ScenarioError, match="refused rows"):
            tally.histograms()
        with pytest.raises(ScenarioError, match="refused rows"):
            tally.add(rows[:1], ["a"], np.zeros(1, dtype=np.int64))

    def test_a_secret_that_is_an_identifier_is_told_before_memory_runs_out(self):
        tally = Tally(grid_of(2, n_bins=65_536, n_directions=100))
        names = [f"person {index}" for index in range(100_000)]
        with pytest.raises(ScenarioError, match=r"of 100000 secrets take .* GiB.*identifier"):
            tally.add(np.zeros((100_000, 2)), names, np.arange(100_000))

    def test_places_fit_32_bits(self, monkeypatch):
        monkeypatch.setattr(binned, "MOST_RECENT", 40)
        with pytest.raises(ScenarioError, match="identifier"):
            Tally(grid_of(2, n_bins=16)).add(np.zeros((3, 2)), ["a", "b", "c"], np.arange(3))

    @pytest.mark.parametrize(
        ("rows", "codes", "complaint"),
        [
            (np.zeros((2, 3)), np.zeros(2, dtype=np.int64), "outputs must have shape"),
            (np.zeros((2, 2)), np.array([0, 1]), "codes must be from 0 to 0"),
            (np.zeros((2, 2)), np.array([-1, 0]), "codes must be from 0 to 0"),
        ],
    )
    def test_bad_rows(self, rows, codes, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            Tally(grid_of(2)).add(rows, ["a"], codes)


def _renamed(histograms, name):
    return type(histograms)(grid=histograms.grid, secrets=(name,), counts=histograms.counts)


class TestGrid:
    def test_box_of_the_scaled_query(self):
        query = columns(["x", "y"]).with_range(Box([0, -5], [10, 5])).with_scales([2, 5])
        grid = bin_grid(query, FiniteProfile.axes(dim=2), n_bins=100)
        assert grid.center.tolist() == [2.5, 0.0]
        assert grid.extents == pytest.approx([2.5, 1.0])
        assert grid.shape == "box"
        assert grid.widths == pytest.approx([0.05, 0.02])

    def test_ball_of_the_scaled_query(self):
        query = columns(["x", "y"]).with_range(Ball([10, 0], 3)).with_scales([2, 1])
        grid = bin_grid(query, FiniteProfile.axes(dim=2), n_bins=100)
        assert grid.center.tolist() == [5.0, 0.0]
        assert grid.reaches == pytest.approx([1.5, 3.0])
        assert grid.shape == "ellipsoid"

    @pytest.mark.parametrize(
        "limits", [Box([1e9, 0], [1e9 + 1, 1e-9]), Ball([1e9, 0], 0.5), Ball([0, 3], 1e-3)]
    )
    @given(st.integers(0, 2**32))
    @settings(max_examples=20)
    def test_whatever_is_clipped_is_inside(self, limits, seed):
        query = columns(["x", "y"]).with_range(limits).with_scales([0.3, 7.0])
        grid = bin_grid(query, FiniteProfile.uniform(dim=2, n_directions=3, seed=1), n_bins=64)
        rng = np.random.default_rng(seed)
        rows = limits.center + rng.normal(size=(100, 2)) * rng.choice([1e-9, 1, 1e3, 1e12])
        assert counted(grid, query.prepared(rows)).n_rows == {"a": 100}

    def test_range_beside_a_query_that_does_not_clip(self):
        query, profile = columns(["x"]), FiniteProfile.axes(dim=1)
        box = Box([0], [4])
        assert bin_grid(query, profile, range=box) == bin_grid(query.with_range(box), profile)

    @pytest.mark.parametrize(
        ("query", "limits", "error", "complaint"),
        [
            (columns(["x"]), None, ScenarioError, "bins need a public range"),
            (columns(["x"]).with_range(Box([0], [1])), Box([0], [2]), ArgumentError, "of its own"),
            (columns(["x"]), Box([0, 0], [2, 2]), ArgumentError, "one dimension, got 1 and 2"),
        ],
    )
    def test_bad_ranges(self, query, limits, error, complaint):
        with pytest.raises(error, match=complaint):
            bin_grid(query, FiniteProfile.axes(dim=1), range=limits)


class TestLargeCounts:
    def test_tables_of_a_trillion_rows_are_those_of_few(self):
        """Ranks no longer fit one denominator; they are rounded, on the safe side."""
        grid = BinGrid(directions=[[1.0]], center=[0.0], extents=[8.0], shape="box", n_bins=16)
        small = [[3, 0, 2, *[0] * 12, 1], [0, 5, *[0] * 12, 2, 0]]
        factors = (10**12 + 39, 10**12 + 61)
        assert math.lcm(6 * factors[0], 7 * factors[1]) > 2**62
        tables = []
        for scale in ((1, 1), factors):
            distributions = [
                BinnedDistribution(grid=grid, counts=np.array([row]) * k)
                for row, k in zip(small, scale, strict=True)
            ]
            tables.append(binned_tables(distributions, ONE_PAIR, grid.directions))
        few, many = tables
        many.check()
        assert many.worst() == few.worst()
        for rate in (0.1, 1.0, 10.0):
            cost, true = many.log_moments(rate, 0.0), few.log_moments(rate, 0.0)
            assert (cost >= true).all()
            assert cost == pytest.approx(true, rel=1e-9)

    def test_other_directions_or_grids_are_refused(self):
        distributions = [counted(grid_of(2), np.zeros((2, 2))).distribution("a")] * 2
        with pytest.raises(ArgumentError, match="binned along other directions"):
            binned_tables(distributions, ONE_PAIR, np.eye(2))
        other = counted(grid_of(2, n_bins=8), np.zeros((2, 2))).distribution("a")
        with pytest.raises(ArgumentError, match="binned on one grid"):
            binned_tables([distributions[0], other], ONE_PAIR, distributions[0].grid.directions)


QUERY = columns(["x", "y"]).with_range(Box([-8, -8], [8, 8]))
PROFILE = FiniteProfile.of([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-0.8, 0.6]])
METHODS = [
    Method(rule="tight", envelope="transport"),
    Method(rule="tight", envelope="worst_gap"),
    Method(rule="closed_form", envelope="worst_gap"),
]
TARGETS = [Guarantee.joint(order=4, epsilon=1.0), Guarantee.average(order=2, epsilon=0.5)]


@st.composite
def two_groups(draw):
    """Two groups; many values are on edges of the 64 bins, and some beyond the range."""
    on_edge = st.integers(-36, 36).map(lambda k: k / 4)
    value = st.one_of(on_edge, st.floats(-9, 9, width=32))
    sizes = draw(st.tuples(st.integers(2, 12), st.integers(2, 12)))
    n = sum(sizes)
    numbers = [draw(st.lists(value, min_size=n, max_size=n)) for _ in range(2)]
    # One row tells the groups apart by more than a bin, so that both need noise.
    numbers[0][0], numbers[0][-1] = -8.0, 8.0
    # A column that does not vary is refused.
    numbers[1][0], numbers[1][-1] = -1.0, 1.0
    groups = ["a"] * sizes[0] + ["b"] * sizes[1]
    return pa.table({"group": groups, "x": numbers[0], "y": numbers[1]})


def noise_of(scenario, target, method):
    certificate = certify_release(scenario, target.along(PROFILE), method=method)
    assert verify(certificate).holds
    return certificate.statement["noise"]["std"]


def ceiling(exact, scan, target, method):
    """The noise of the exact gaps, each wider by two bins and twice the projection error."""
    distributions = list(exact.priors[0].distributions.values())
    found = gap_tables(distributions, [DistributionPair(0, 1)], PROFILE.directions)
    price = float((2 * scan.grid.widths + 2 * scan.grid.errors).max())
    wider = attrs.evolve(found, gaps=(found.gaps + price) * ROUNDED, equal=np.array([False]))
    return calibrate(target, Slices(profile=PROFILE, differences=wider), method)


@pytest.mark.soundness
@pytest.mark.parametrize("target", TARGETS, ids=["joint", "average"])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.rule}-{m.envelope}")
@given(table=two_groups(), cut=st.integers(1, 5))
@settings(max_examples=25)
def test_noise_is_that_of_exact_tables_up_to_the_stated_error(table, cut, target, method):
    scan = RowScan.of(QUERY, secret=GROUP, profile=PROFILE, n_bins=64)
    parts = [table.slice(start, cut) for start in range(0, table.num_rows, cut)]
    streamed = streamed_scenario(scan_tables(parts, scan), scan)
    exact = Scenario.from_records(table, secret=GROUP, query=QUERY)
    ours = noise_of(streamed, target, method)
    true = noise_of(exact, target, method)
    # Both round gaps up to 1/256; bins may round a gap less than exact tables do.
    assert ours >= true / ROUNDED
    assert ours <= ceiling(exact, scan, target, method) * (1 + 1e-9)


def test_the_unsliced_bound_is_that_of_the_range():
    """alpha diam^2 / (2 sigma^2): rows were not kept, so no matching of them is known."""
    rng = np.random.default_rng(5)
    table = pa.table(
        {"group": ["a", "b"] * 50, **dict(zip("xy", rng.normal(size=(2, 100)), strict=True))}
    )
    scan = RowScan.of(QUERY, secret=GROUP, profile=PROFILE, n_bins=64)
    scenario = streamed_scenario(scan_tables([table], scan), scan)
    statement = certify_release(scenario, TARGETS[0].along(PROFILE)).statement
    diameter, std = 16 * 2**0.5, statement["noise"]["std"]
    assert statement["unsliced"]["epsilon"] == pytest.approx(4 * diameter**2 / (2 * std**2))
    assert statement["failure_probability"] == 0
