# SPDX-License-Identifier: Apache-2.0
"""Bounds with the inverse of a covariance: against corners of boxes, and exact rationals."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pufferslice.sensitivity.precision import Precision, top_eigenvalue

pytestmark = pytest.mark.soundness

SEEDS = st.integers(0, 2**32 - 1)


def covariance_of(rng, dim, least=0.1):
    root = rng.normal(size=(dim, dim))
    return root @ root.T + least * np.eye(dim)


def corners(low, high):
    return np.array(list(itertools.product(*zip(low, high, strict=True))))


def farthest_corners(covariance, low, high):
    """The largest distance of two points: a convex function, so at corners of boxes."""
    ends = [corners(*box) for box in zip(low, high, strict=True)]
    squares = [0.0]
    for first, second in itertools.product(ends, repeat=2):
        change = (first[:, None] - second[None]).reshape(-1, low.shape[1])
        squares.append(np.einsum("ij,ji->i", change, np.linalg.solve(covariance, change.T)).max())
    return math.sqrt(max(squares))


def boxes_of(rng, n_boxes, dim, share=0.5):
    """Boxes, of which a share of the sides have a width."""
    low = rng.normal(size=(n_boxes, dim))
    return low, low + rng.exponential(size=(n_boxes, dim)) * (rng.random((n_boxes, dim)) < share)


def one_box(covariance, spans):
    return Precision.of(covariance).farthest(np.zeros((1, len(spans))), np.array([spans]))


class TestFarthest:
    def test_by_hand(self):
        assert one_box(np.array([[4.0]]), [3.0]) == pytest.approx(1.5)
        assert one_box(np.diag([4.0, 1.0]), [2.0, 2.0]) == pytest.approx(math.sqrt(5))
        # From 0 in the first box to 5 in the second: the cross term between centres and widths.
        low, high = np.array([[0.0], [3.0]]), np.array([[1.0], [5.0]])
        assert Precision.of(np.eye(1)).farthest(low, high) == pytest.approx(5.0)

    @given(SEEDS, st.integers(1, 4), st.integers(1, 4))
    @example(0, 1, 1)
    def test_never_below_any_two_corners(self, seed, dim, n_boxes):
        rng = np.random.default_rng(seed)
        covariance = covariance_of(rng, dim, least=rng.choice([1e-9, 0.1]))
        low, high = boxes_of(rng, n_boxes, dim)
        bound = Precision.of(covariance).farthest(low, high)
        assert bound >= farthest_corners(covariance, low, high) * (1 - 1e-6)

    @given(SEEDS, st.integers(1, 4))
    def test_points_are_exact(self, seed, dim):
        rng = np.random.default_rng(seed)
        covariance = covariance_of(rng, dim)
        points, _ = boxes_of(rng, 5, dim)
        bound = Precision.of(covariance).farthest(points, points)
        assert bound == pytest.approx(farthest_corners(covariance, points, points), rel=1e-9)

    @given(SEEDS, st.integers(1, 6))
    def test_no_more_than_simple_bounds(self, seed, dim):
        """Of one box: the sum of entries, and the dimension times the largest eigenvalue."""
        rng = np.random.default_rng(seed)
        covariance, spans = covariance_of(rng, dim), rng.uniform(0.1, 2.0, dim)
        form = np.linalg.inv(covariance) * np.outer(spans, spans)
        simple = min(np.abs(form).sum(), dim * np.linalg.eigvalsh(form)[-1])
        assert one_box(covariance, spans) <= math.sqrt(simple) * (1 + 1e-9)

    def test_near_the_largest_corner_where_simple_bounds_are_not(self):
        covariance, spans = np.eye(6) + 0.3, np.arange(1.0, 7.0)
        truth = farthest_corners(covariance, np.zeros((1, 6)), spans[None])
        form = np.linalg.inv(covariance) * np.outer(spans, spans)
        simple = min(np.abs(form).sum(), 6 * np.linalg.eigvalsh(form)[-1])
        assert truth <= one_box(covariance, spans) <= 1.01 * truth
        assert math.sqrt(simple) > 1.1 * truth

    def test_one_box_around_all_may_be_less(self):
        """Widths along a nearly singular direction, apart from centres along others."""
        rng = np.random.default_rng(5)
        for _ in range(30):
            covariance = covariance_of(rng, 3, least=0.01)
            low, high = boxes_of(rng, 6, 3, share=0.8)
            around = Precision.of(covariance).farthest(low.min(0)[None], high.max(0)[None])
            assert Precision.of(covariance).farthest(low, high) <= around * (1 + 1e-12)

    def test_blocks_of_boxes_agree(self, monkeypatch):
        rng = np.random.default_rng(6)
        low, high = boxes_of(rng, 40, 3)
        precision = Precision.of(covariance_of(rng, 3))
        whole = precision.farthest(low, high)
        monkeypatch.setattr("pufferslice.sensitivity.precision._VALUES_AT_ONCE", 7 * 120)
        assert precision.farthest(low, high) == pytest.approx(whole, rel=1e-12)

    def test_cells_of_a_cross_table_are_hidden_better_than_their_box(self):
        """Rates of 8 cells that add up to 1, and an age: no row is in two cells at once."""
        rng = np.random.default_rng(7)
        shares = rng.dirichlet(np.full(8, 3.0))
        moment = np.zeros((9, 9))
        moment[:8, :8] = np.diag(shares) - np.outer(shares, shares)
        moment[8, 8] = 0.05
        values, axes = np.linalg.eigh(moment + 1e-9 * 9 * np.eye(9))
        covariance = (axes * np.sqrt(values)) @ axes.T
        low = np.eye(9)[:8]
        high = low.copy()
        high[:, 8] = 1.0
        by_cells = Precision.of(covariance).farthest(low, high)
        naive = one_box(covariance, np.ones(9))
        ends = np.vstack([low, high])
        changes = (ends[:, None] - ends[None]).reshape(-1, 9)
        squares = np.einsum("ij,ji->i", changes, np.linalg.solve(covariance, changes.T))
        assert by_cells == pytest.approx(math.sqrt(squares.max()), rel=1e-6)
        assert 1_000 > naive > 50 * by_cells

    def test_units_cancel(self):
        rng = np.random.default_rng(8)
        covariance, (low, high) = covariance_of(rng, 3), boxes_of(rng, 4, 3)
        units = np.array([1e-6, 1.0, 1e9])
        scaled = Precision.of(covariance * np.outer(units, units)).farthest(
            low * units, high * units
        )
        assert scaled == pytest.approx(Precision.of(covariance).farthest(low, high), rel=1e-9)


def exact_mean_square(covariance, moment):
    """Trace of the inverse times M, of 2 by 2 matrices, in rationals."""
    ((a, b), (_, d)) = [[Fraction(x) for x in row] for row in covariance.tolist()]
    ((p, q), (r, s)) = [[Fraction(x) for x in row] for row in moment.tolist()]
    return (d * p - b * r - b * q + a * s) / (a * d - b * b)


class TestMeanSquares:
    @given(SEEDS, st.floats(1e-16, 0.9))
    @example(0, 2.0**-50)
    def test_never_below_the_exact_value(self, seed, apart):
        """Also where the covariance is singular up to rounding."""
        rng = np.random.default_rng(seed)
        correlation = 1 - apart
        covariance = np.array([[1.0, correlation], [correlation, 1.0]])
        root = rng.normal(size=(2, 2))
        moments = np.array([root @ root.T, [[1.0, 1.0], [1.0, 1.0]]])
        for found, moment in zip(
            Precision.of(covariance).mean_squares(moments), moments, strict=True
        ):
            if covariance[0, 1] < 1:
                assert math.isinf(found) or Fraction(float(found)) >= exact_mean_square(
                    covariance, moment
                )
            else:
                assert math.isinf(found)

    @given(SEEDS, st.integers(1, 5))
    def test_close_to_the_solution(self, seed, dim):
        rng = np.random.default_rng(seed)
        covariance, moment = covariance_of(rng, dim), covariance_of(rng, dim)
        (found,) = Precision.of(covariance).mean_squares(moment[None])
        assert found == pytest.approx(np.trace(np.linalg.solve(covariance, moment)), rel=1e-9)

    def test_an_inverse_that_is_off_is_noticed(self):
        """The excess measures the factor against the covariance."""
        covariance = covariance_of(np.random.default_rng(1), 3)
        assert 1 <= Precision.of(covariance).excess < 1 + 1e-11
        nearly = np.array([[1.0, 1 - 1e-12], [1 - 1e-12, 1.0]])
        assert 1 + 1e-6 < Precision.of(nearly).excess < 1.1

    @pytest.mark.parametrize(
        "covariance", [np.zeros((2, 2)), np.ones((2, 2)), -np.eye(2), np.full((2, 2), np.nan)]
    )
    def test_singular(self, covariance):
        precision = Precision.of(covariance)
        assert precision.excess == math.inf
        assert precision.farthest(np.zeros((1, 2)), np.ones((1, 2))) == math.inf
        assert precision.mean_squares(np.zeros((1, 2, 2))).tolist() == [math.inf]


def test_repr_shows_no_numbers():
    assert repr(Precision.of(np.eye(3))) == "Precision(dim=3)"


@pytest.mark.parametrize("shape", ["random", "cluster", "unit", "block", "zero"])
def test_the_largest_eigenvalue_of_a_large_matrix_is_bounded(shape):
    rng, dim = np.random.default_rng(8), 300
    axes = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    values = {
        "random": rng.exponential(size=dim),
        "cluster": np.where(np.arange(dim) < 40, 1 - 1e-9 * np.arange(dim), 0.5),
        "unit": np.ones(dim),
        "block": np.where(np.arange(dim) == 7, 2.0, 1.0),
        "zero": np.zeros(dim),
    }[shape]
    if shape == "block":  # the start of the steps has next to nothing along the largest
        axes = np.eye(dim)
    matrix = (axes * values) @ axes.T
    matrix = (matrix + matrix.T) / 2
    assert values.max() <= top_eigenvalue(matrix) <= values.max() * (1 + 1e-4)


def test_a_guess_below_the_largest_eigenvalue_is_not_taken(monkeypatch):
    matrix = np.diag(np.arange(1.0, 301.0))
    monkeypatch.setattr("scipy.sparse.linalg.eigsh", lambda *_, **__: np.array([299.9]))
    assert 300 <= top_eigenvalue(matrix) <= 300 * (1 + 1e-9)
