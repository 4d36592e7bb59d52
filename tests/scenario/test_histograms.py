# SPDX-License-Identifier: Apache-2.0
"""Bin grids, binned distributions and their sums: geometry, ranks, bad input, files."""

import io

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferslice.errors import ArgumentError, StorageError
from pufferslice.scenario.histograms import (
    MOST_BINS,
    BinGrid,
    BinnedDistribution,
    Histograms,
    added,
    ends_of,
)

BOX = BinGrid(
    directions=[[0.6, 0.8]], center=[0.0, 0.0], extents=[1.0, 2.0], shape="box", n_bins=22
)


def line_grid(n_bins=10, center=5.0, extent=5.0):
    return BinGrid(
        directions=[[1.0]], center=[center], extents=[extent], shape="box", n_bins=n_bins
    )


def line_distribution(counts):
    return BinnedDistribution(grid=line_grid(n_bins=len(counts)), counts=[counts])


def histograms(grid, **rows):
    """One direction: counts by secret."""
    secrets = sorted(rows)
    return Histograms(grid=grid, secrets=secrets, counts=[[rows[secret]] for secret in secrets])


class TestGeometry:
    def test_box_reaches_as_far_as_its_corners(self):
        assert BOX.reaches == pytest.approx([0.6 + 1.6], rel=1e-14)
        assert BOX.reaches[0] >= 0.6 + 1.6
        assert BOX.widths == pytest.approx([0.2], rel=1e-14)
        assert BOX.diameter == pytest.approx(2 * 5**0.5, rel=1e-14)

    def test_ellipsoid_reaches_less(self):
        grid = attrs.evolve(BOX, shape="ellipsoid")
        assert grid.reaches == pytest.approx([(0.36 + 2.56) ** 0.5], rel=1e-14)
        assert grid.diameter == pytest.approx(4.0, rel=1e-14)
        assert grid.diameter >= 4.0

    def test_error_is_that_of_single_precision(self):
        grid = line_grid()
        roundings = 9 * 2.0**-24
        assert grid.errors == pytest.approx([5 * roundings / (1 - roundings)], rel=1e-14)

    def test_gaps_are_a_bin_more_than_the_distance_of_bins(self):
        grid = line_grid()
        gaps = grid.gaps(np.array([0, 3, 9]), 0)
        assert gaps == pytest.approx(np.array([1, 4, 10]) + 2 * grid.errors[0], rel=1e-12)
        assert gaps[2] > 10

    def test_digest_sees_every_part(self):
        others = [
            attrs.evolve(BOX, directions=[[0.8, 0.6]]),
            attrs.evolve(BOX, center=[0.0, 1.0]),
            attrs.evolve(BOX, extents=[1.0, 1.0]),
            attrs.evolve(BOX, shape="ellipsoid"),
            attrs.evolve(BOX, n_bins=23),
        ]
        assert len({BOX.digest(), *(other.digest() for other in others)}) == 6
        assert all(other != BOX for other in others)
        assert attrs.evolve(BOX) == BOX

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"n_bins": 1}, "n_bins must be"),
            ({"n_bins": MOST_BINS + 1}, "n_bins must be at most 65536"),
            ({"shape": "cube"}, "shape must be one of box, ellipsoid"),
            ({"extents": [0.0]}, "extents must be greater than 0"),
            ({"directions": [1.0]}, "directions must have shape"),
            ({"extents": [1.0, 1.0]}, "center and extents must have shape"),
            ({"center": [np.nan]}, "center must be finite"),
            ({"extents": [np.inf]}, "extents must be finite"),
            ({"extents": [np.finfo(float).max]}, "reaches must be finite"),
            ({"directions": [[2.0]]}, "directions must be unit vectors"),
        ],
    )
    def test_bad_grids(self, change, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            attrs.evolve(line_grid(), **change)


class TestDistribution:
    def test_values_of_ranks_hold_the_row(self):
        """Rows in bins [0, 1), [2, 3), [2, 3), [9, 10], measured from the centre 5."""
        distribution = line_distribution([1, 0, 2, 0, 0, 0, 0, 0, 0, 1])
        lower, upper = distribution.bounds(slice(None), np.array([1, 2, 3, 4]))
        assert upper == pytest.approx(np.array([[-4, -2, -2, 5]]), abs=1e-5)
        assert lower == pytest.approx(np.array([[-5, -3, -3, 4]]), abs=1e-5)
        assert (upper > np.array([-4, -2, -2, 5])).all()
        assert (lower < np.array([-5, -3, -3, 4])).all()
        assert distribution.grid.ends == pytest.approx(np.array([[-5, 5]]), abs=1e-5)
        assert (np.abs(distribution.grid.ends) > 5).all()
        assert (distribution.total, distribution.n_samples, distribution.dim) == (4, 4, 1)

    @pytest.mark.parametrize(
        ("counts", "complaint"),
        [
            ([[1, 2]], "counts must have shape"),
            ([[0] * 10], "at least one row"),
            ([[-1, 2, *[0] * 8]], "must not be negative"),
            ([[0.5] * 10], "expected"),
        ],
    )
    def test_bad_counts(self, counts, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            BinnedDistribution(grid=line_grid(), counts=counts)

    def test_every_direction_must_see_every_row(self):
        grid = BinGrid(directions=np.eye(2), center=[0, 0], extents=[1, 1], shape="box", n_bins=2)
        with pytest.raises(ArgumentError, match="count every row once"):
            BinnedDistribution(grid=grid, counts=[[1, 1], [1, 2]])


class TestSums:
    def test_secrets_of_some_parts_only(self):
        grid = line_grid(2)
        total = added([histograms(grid, a=[1, 0], b=[0, 2]), histograms(grid, b=[3, 0], c=[4, 4])])
        assert total.secrets == ("a", "b", "c")
        assert total.counts.tolist() == [[[1, 0]], [[3, 2]], [[4, 4]]]
        assert total.n_rows == {"a": 1, "b": 5, "c": 8}
        assert total.distribution("c") == line_distribution([4, 4])
        assert list(total.distributions()) == ["a", "b", "c"]

    def test_dropped_rows_add_up(self):
        counts = np.zeros((0, 1, 10), dtype=np.int64)
        none = Histograms(grid=line_grid(), secrets=(), counts=counts, n_dropped=2)
        assert added([none, none]).n_dropped == 4
        assert added([none]).secrets == ()

    @given(st.lists(st.lists(st.integers(0, 2**40), min_size=3, max_size=3), min_size=1))
    def test_order_and_cuts_do_not_matter(self, rows):
        grid = line_grid(3)
        parts = [histograms(grid, **{f"s{i % 3}": row}) for i, row in enumerate(rows)]
        half = len(parts) // 2 or 1
        cut = [added(part) for part in (parts[:half], parts[half:]) if part]
        assert added(parts) == added(parts[::-1]) == added(cut)

    def test_another_grid_is_refused(self):
        other = histograms(line_grid(2, center=4.0), a=[1, 1])
        with pytest.raises(ArgumentError, match="only on one grid"):
            added([histograms(line_grid(2), a=[1, 1]), other])
        with pytest.raises(ArgumentError, match="at least one histogram"):
            added([])

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"secrets": ("b", "a")}, "alphabetical order"),
            ({"secrets": ("a",)}, "counts must have shape"),
            ({"n_dropped": -1}, "n_dropped must be"),
            ({"n_clipped": [0]}, "n_clipped must have shape"),
        ],
    )
    def test_bad_histograms(self, change, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            attrs.evolve(histograms(line_grid(2), a=[1, 1], b=[0, 1]), **change)

    def test_unknown_secret(self):
        with pytest.raises(ArgumentError, match="no secret 'z'; the secrets are a"):
            histograms(line_grid(2), a=[1, 1]).distribution("z")


class TestBytes:
    def test_round_trip(self):
        some = attrs.evolve(histograms(line_grid(2), a=[2**40, 1], β=[0, 7]), n_dropped=3)
        assert Histograms.from_bytes(some.to_bytes()) == some

    @pytest.mark.parametrize("damage", [lambda b: b[:100], lambda b: b"", lambda b: b"PK" + b[9:]])
    def test_damage_is_told(self, damage):
        content = histograms(line_grid(2), a=[1, 1]).to_bytes()
        with pytest.raises(StorageError, match="cannot be read"):
            Histograms.from_bytes(damage(content))

    def test_another_version(self):
        content = histograms(line_grid(2), a=[1, 1]).to_bytes()
        with np.load(io.BytesIO(content)) as archive:
            arrays = {name: archive[name] for name in archive.files}
        facts = arrays.pop("facts").tobytes().replace(b'"version":2', b'"version":9')
        file = io.BytesIO()
        np.savez(file, facts=np.frombuffer(facts, dtype=np.uint8), **arrays)
        with pytest.raises(StorageError, match="have version 9"):
            Histograms.from_bytes(file.getvalue())


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 128, 1_000])
@pytest.mark.parametrize("dim", [1, 3])
def test_ends_are_those_of_plain_reductions(n, dim, rng):
    values = rng.normal(size=(n, dim))
    expected = np.stack([values.min(axis=0), values.max(axis=0)])
    np.testing.assert_array_equal(ends_of(values), expected)
    np.testing.assert_array_equal(ends_of(np.asfortranarray(values)), expected)
