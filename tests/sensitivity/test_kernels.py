# SPDX-License-Identifier: Apache-2.0
"""Rows sorted as numpy sorts them; gaps counted once, each in its bin."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from pufferslice.sensitivity.kernels import (
    SHORT,
    sort_rows,
    stable_order,
    tabulate,
    tabulate_difference,
)

DROP = 44
N_BINS = 24 << 8


def histogram():
    return np.zeros(N_BINS, dtype=np.int64)


def near(rng, n):
    """Gaps that hardly change from rank to rank."""
    first = np.sort(rng.normal(size=n))
    return first, first * 1.0001 + 1


def smooth(rng, n):
    """Gaps that pass through a few bins among neighbours."""
    first = np.linspace(0, 1, n)
    return first, first * 1.3 + 1


def far(rng, n):
    """Gaps over many octaves among neighbours."""
    first = np.arange(n, dtype=float) * 1e3
    return first, first + 2.0 ** rng.uniform(-12, 9, size=n)


def stepped(rng, n):
    """A few bins for most ranks, and jumps."""
    first = np.sort(rng.normal(size=n)) * 1e-4
    second = first + np.where(np.arange(n) % 97 == 0, 1e-3, 1.0)
    return first, np.sort(second)


@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 1_000, 4_097])
@pytest.mark.parametrize("extra", [0.0, 1e-12])
@pytest.mark.parametrize("distributions", [near, smooth, far, stepped])
def test_every_gap_is_counted_once_in_its_bin(rng, distributions, n, extra):
    a, b = distributions(rng, n)
    gaps = np.abs(a - b) + extra
    if not extra:
        gaps = np.where(_rounded_down(a, b), gaps * (1 + 2.0**-52), gaps)
    expected = tabulate(gaps, np.ones(n, dtype=np.int64), DROP, histogram())
    found = tabulate_difference(a, b, extra, DROP, histogram())
    assert found[1].sum() == n
    floor = gaps.max() * 2.0**-8
    for want, got in zip(_above(expected, floor), _above(found, floor), strict=True):
        np.testing.assert_array_equal(got, want)


def _rounded_down(a, b):
    """Where a - b in floats is nearer to 0 than in exact arithmetic."""
    return np.array(
        [
            abs(Fraction(float(x) - float(y))) < abs(Fraction(float(x)) - Fraction(float(y)))
            for x, y in zip(a, b, strict=True)
        ]
    )


def _above(entries, floor):
    gaps, counts = entries
    return gaps[gaps > floor], counts[gaps > floor]


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


def test_both_zeros_are_equal(rng):
    values = rng.choice([-0.0, 0.0, 1.0], size=2 * SHORT)
    assert_array_equal(stable_order(values), np.argsort(values, kind="stable"))


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
