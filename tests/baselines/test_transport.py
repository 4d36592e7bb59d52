# SPDX-License-Identifier: Apache-2.0
"""W-infinity in all dimensions against permutations, linear programs, scipy, POT and the line."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from pufferslice.baselines import transport, w_infinity
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity import DistributionPair, gap_tables

COORDINATE = st.one_of(st.integers(-3, 3).map(float), st.floats(-10, 10))


@st.composite
def samples(draw, *, equal, largest=6):
    """Two samples in the same dimension, with ties."""
    dim = draw(st.integers(1, 3))
    n = draw(st.integers(1, largest))
    m = n if equal else draw(st.integers(1, largest))
    rows = st.lists(COORDINATE, min_size=dim, max_size=dim)
    first = draw(st.lists(rows, min_size=n, max_size=n))
    second = draw(st.lists(rows, min_size=m, max_size=m))
    return np.array(first), np.array(second)


@st.composite
def weighted_distributions(draw):
    distributions = []
    for rows in draw(samples(equal=False)):
        counts = st.lists(st.integers(1, 9), min_size=len(rows), max_size=len(rows))
        distributions.append(FiniteDistribution(outputs=rows, counts=draw(counts)))
    return tuple(distributions)


def table(first, second):
    """Distances by numpy's norm of all differences."""
    return np.linalg.norm(first[:, None] - second[None], axis=2)


def by_permutations(first, second):
    costs = table(first, second)
    rows = range(len(first))
    return min(
        max(costs[row, column] for row, column in zip(rows, columns, strict=True))
        for columns in itertools.permutations(rows)
    )


def can_couple(first, second, costs, limit):
    """Whether a coupling within the limit exists, by a linear program."""
    allowed = np.argwhere(costs <= limit)
    n, m = costs.shape
    marginals = np.zeros((n + m, len(allowed)))
    for k, (i, j) in enumerate(allowed):
        marginals[i, k] = marginals[n + j, k] = 1
    masses = np.concatenate([first.counts / first.total, second.counts / second.total])
    if len(allowed) == 0:
        return False
    return linprog(np.zeros(len(allowed)), A_eq=marginals, b_eq=masses).status == 0


def by_linear_programs(first, second):
    costs = table(first.outputs, second.outputs)
    limits = np.unique(costs)
    feasible = [limit for limit in limits if can_couple(first, second, costs, limit)]
    return min(feasible)


@given(samples(equal=True))
def test_equal_sizes_against_all_permutations(pair):
    first, second = map(FiniteDistribution.uniform, pair)
    assert w_infinity(first, second) == pytest.approx(by_permutations(*pair), rel=1e-12, abs=1e-150)


@settings(max_examples=60)
@given(weighted_distributions())
def test_weights_against_linear_programs(pair):
    assert w_infinity(*pair) == pytest.approx(by_linear_programs(*pair), rel=1e-9, abs=1e-12)


@given(weighted_distributions())
def test_symmetric_and_zero_between_equal_distributions(pair):
    assert w_infinity(*pair) == w_infinity(*pair[::-1])
    assert w_infinity(pair[0], pair[0]) == 0


@pytest.mark.parametrize(("n", "m"), [(300, 300), (300, 200), (1, 250), (257, 256)])
def test_on_the_line_it_is_the_worst_gap(rng, n, m):
    first = FiniteDistribution.uniform(rng.normal(size=(n, 1)))
    second = FiniteDistribution.uniform(rng.standard_t(3, size=(m, 1)) + 0.5)
    known = gap_tables([first, second], [DistributionPair(0, 1)], np.ones((1, 1))).worst()[0, 0]
    assert w_infinity(first, second) == pytest.approx(known, rel=1e-12)


def by_bisection(first, second):
    """Plain bisection over all distances with scipy's bipartite matching."""
    costs = table(first, second)
    limits = np.unique(costs)
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        matched = maximum_bipartite_matching(csr_array(costs <= limits[middle]))
        low, high = (low, middle) if (matched >= 0).all() else (middle + 1, high)
    return limits[low]


@pytest.mark.parametrize("patience", [0, 1, 6])
@pytest.mark.parametrize("dim", [1, 2, 4])
def test_far_above_the_nearest_neighbours(rng, monkeypatch, patience, dim):
    """Clusters of 120 and 80 become 80 and 120: forty atoms change the cluster."""
    monkeypatch.setattr(transport, "_PATIENCE", patience)
    first, second = rng.uniform(size=(2, 200, dim))
    first[120:, 0] += 3
    second[80:, 0] += 3
    found = w_infinity(FiniteDistribution.uniform(first), FiniteDistribution.uniform(second))
    costs = table(first, second)
    assert max(costs.min(axis=0).max(), costs.min(axis=1).max()) < found / 2
    assert found == pytest.approx(by_bisection(first, second), rel=1e-14)
    doubled = FiniteDistribution(outputs=first, counts=np.full(200, 2))
    assert w_infinity(doubled, FiniteDistribution.uniform(second)) == found


@pytest.mark.parametrize("size", [1e-300, 1e-170, 1e149])
def test_sizes_at_which_squares_leave_the_floats_or_nearly_do(size):
    first = FiniteDistribution.uniform(np.array([[0.0, 0.0], [3.0, 4.0]]) * size)
    second = FiniteDistribution.uniform(np.zeros((2, 2)))
    assert w_infinity(first, second) == pytest.approx(5 * size, rel=1e-12)


def test_free_memory_is_known_without_meminfo(monkeypatch):
    known = transport.free_bytes()
    monkeypatch.setattr(transport, "_MEMINFO", transport._MEMINFO.with_name("absent"))
    assert transport.free_bytes() >= known > 2**20
