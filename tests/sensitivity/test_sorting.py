# SPDX-License-Identifier: Apache-2.0
"""Rows sorted by digits are those that numpy sorts, whatever the values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from pufferslice.sensitivity import kernels
from pufferslice.sensitivity.kernels import SHORT, sort_rows, stable_order

N = 3 * SHORT
LARGEST = np.finfo(float).max
TINIEST = 5e-324
ENDS = [-np.inf, -LARGEST, -TINIEST, 0.0, TINIEST, LARGEST, np.inf]


def rows_of(rng: np.random.Generator) -> dict[str, np.ndarray]:
    normal = rng.normal(size=N)
    neighbours = 1 + rng.permutation(N) * 2.0**-52
    bits = rng.integers(0, 2**64, size=N, dtype=np.uint64).view(np.float64)
    return {
        "normal": normal,
        "ascending": np.sort(normal),
        "descending": np.sort(normal)[::-1].copy(),
        "all equal": np.full(N, 0.1),
        "few values": rng.integers(-3, 4, size=N) * 1.0,
        "far from zero": 1e9 + normal,
        "next to each other": neighbours,
        "next to each other, and one far away": np.append(neighbours, -1e300),
        "any bits": np.where(np.isnan(bits), 0.0, bits),
        "denormal": rng.permutation(N) * TINIEST,
        "both ends": rng.choice(ENDS, size=N),
        "heavy tails": rng.standard_cauchy(size=N) ** 5,
    }


@pytest.fixture(params=list(rows_of(np.random.default_rng(0))))
def row(request, rng) -> np.ndarray:
    return rows_of(rng)[request.param]


def test_rows_are_sorted_as_numpy_sorts_them(row):
    rows = np.stack([row, -row, row[::-1]])
    expected = np.sort(rows, axis=1)
    spare = np.full(2 * row.size, np.nan)
    sort_rows(rows, spare)
    assert_array_equal(rows, expected)


def test_the_order_is_numpys_stable_one(row):
    before = row.copy()
    assert_array_equal(stable_order(row), np.argsort(row, kind="stable"))
    assert_array_equal(row, before)


@pytest.mark.parametrize("length", [0, 1, 2, SHORT - 1, SHORT, SHORT + 1])
def test_every_length(rng, length):
    values = rng.normal(size=length)
    rows = values[None].copy()
    sort_rows(rows, np.empty(length))
    assert_array_equal(rows[0], np.sort(values))
    assert_array_equal(values[stable_order(values)], np.sort(values))


@given(
    centre=st.floats(-1e300, 1e300),
    spread=st.floats(0, 1e300),
    n_values=st.integers(1, N),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_centre_and_spread_with_any_number_of_ties(centre, spread, n_values, seed):
    rng = np.random.default_rng(seed)
    values = rng.choice(centre + spread * rng.normal(size=n_values), size=N)
    rows = values[None].copy()
    sort_rows(rows, np.empty(N))
    assert_array_equal(rows[0], np.sort(values))
    assert_array_equal(stable_order(values), np.argsort(values, kind="stable"))


def test_rows_with_too_many_moves_are_left_to_numpy_and_lose_nothing(rng):
    """Values that agree in all leading digits, beside one that is far away."""
    row = np.append(1 + rng.permutation(N) * 2.0**-52, -1e300)
    kept, room = row.copy(), np.empty(row.size, dtype=np.uint64)
    counts = np.empty((3, 2**11), dtype=np.uint64)
    assert not kernels._sort(row.view(np.uint64), room, counts)
    assert_array_equal(np.sort(row), np.sort(kept))


def test_ordinary_rows_are_not(rng):
    row, counts = rng.normal(size=100_000), np.empty((3, 2**11), dtype=np.uint64)
    assert kernels._sort(row.view(np.uint64), np.empty(row.size, dtype=np.uint64), counts)
    assert (np.diff(row) >= 0).all()
