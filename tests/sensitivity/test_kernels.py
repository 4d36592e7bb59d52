# SPDX-License-Identifier: Apache-2.0
"""Gaps are counted into bins by edges where bins are few, one by one elsewhere; both agree."""

from fractions import Fraction

import numpy as np
import pytest

from pufferslice.sensitivity.kernels import tabulate, tabulate_difference

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
