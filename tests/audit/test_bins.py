# SPDX-License-Identifier: Apache-2.0
"""Bins are counted right, chosen best among all partitions, and bounded by exact binomials."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pufferslice._core.sampler import SIGMA_INT
from pufferslice.audit.bins import (
    best_partition,
    bin_counts,
    candidate_edges,
    likely_lower,
    likely_upper,
    lower_share,
    sorted_counts,
    upper_share,
)

NUMBERS = st.lists(st.integers(-5, 5), min_size=1, max_size=30)


@given(NUMBERS, st.sets(st.integers(-5, 5), min_size=1))
def test_counts_by_hand(values, edges):
    edges, values = np.array(sorted(edges), float), np.array(values, float)
    ends = [-np.inf, *edges, np.inf]
    expected = [sum(a < v <= b for v in values) for a, b in itertools.pairwise(ends)]
    assert bin_counts(edges, values).tolist() == expected
    assert sorted_counts(edges, np.sort(values)).tolist() == expected


def test_candidate_edges_in_gaps_and_below_infinite_values(rng):
    """The widest gap is cut in the middle, however little the values on its sides vary."""
    first, second = np.sort(rng.normal(1, 1e-9, 500)), np.sort(rng.normal(0, 1e-9, 500))
    edges = candidate_edges(first, second)
    assert (np.diff(edges) > 0).all()
    assert np.abs(edges - 0.5).min() < 1e-8
    first, second = np.array([0.0, 1.0, np.inf, np.inf]), np.array([0.0, 0.5, 0.7])
    edges = candidate_edges(first, second)
    assert edges[-1] == 1.0
    assert bin_counts(edges, first)[-1] == 2
    assert candidate_edges(np.full(5, np.inf), second)[-1] == 0.7


def test_repeated_values_get_a_bin_of_their_own(rng):
    """As many as are allowed, the most frequent ones; two of a kind may be chance."""
    plain = np.sort(rng.normal(size=1_000))
    atoms = np.repeat(np.arange(10.0), np.arange(3, 13))
    edges = candidate_edges(np.sort([*plain, *atoms, 20.0, 20.0]), plain)
    held = [x for x in range(21) if np.diff(np.searchsorted(edges, [x - 1e-9, x + 1e-9])) >= 2]
    assert held == list(range(2, 10))
    assert len(candidate_edges(plain, plain)) < 100


def test_the_chosen_partition_is_the_best_of_all(rng):
    p, q = rng.integers(0, 60, 7).astype(float), rng.integers(0, 60, 7).astype(float)
    sizes, scale, quantile, order = (9.0 * p.sum(), 9.0 * q.sum()), (9.0, 9.0), 3.0, 3.0

    def value(ends):
        total = 0.0
        for start, stop in itertools.pairwise([0, *ends, 7]):
            low = likely_lower(p[start:stop].sum() * 9, sizes[0], quantile)
            count = min((q[start:stop].sum() + 0.5) * 9, sizes[1])
            total += low**order * likely_upper(count, sizes[1], quantile) ** (1 - order)
        return total

    cuts = (c for k in range(7) for c in itertools.combinations(range(1, 7), k))
    best = max(value(c) for c in cuts)
    found, ends = best_partition((p, q), sizes, order, quantile, scale)
    assert found == pytest.approx(best)
    assert value(tuple(np.flatnonzero(ends)[:-1] + 1)) == pytest.approx(best)
    assert ends[-1] == 1


@pytest.mark.parametrize(("count", "n"), [(0, 50), (1, 50), (25, 50), (49, 50), (50, 50)])
def test_shares_are_exact_binomial_bounds(count, n):
    share = 0.01
    low, high = lower_share(count, n, share), upper_share(count, n, share)
    assert stats.binom.sf(count - 1, n, low) <= share * (1 + 1e-9) or low == 0
    assert stats.binom.cdf(count, n, high) <= share * (1 + 1e-9) or high == 1
    if 0 < count < n:
        tails = stats.binom.sf(count - 1, n, low), stats.binom.cdf(count, n, high)
        assert tails == pytest.approx((share, share), rel=1e-5)


@pytest.mark.soundness
@pytest.mark.parametrize("dim", [1, 9, 10_000])
def test_rounding_of_outputs_is_paid_for_at_both_edges_of_a_bin(dim):
    """Noise and query are rounded to the grid by half a step each, in every coordinate."""
    moved = np.sqrt(dim) / SIGMA_INT
    at_most = 2 * 2 * moved * stats.norm.pdf(0)
    many = 10**13
    assert upper_share(0, many, 0.01) > at_most
    assert lower_share(many, many, 0.01) < 1 - at_most
    assert lower_share(1, many, 0.01) == 0
