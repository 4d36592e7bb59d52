# SPDX-License-Identifier: Apache-2.0
"""Shapes of noise: one whitening function, its inverse, and what a range becomes."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pufferslice.queries import Ball, Box
from pufferslice.sensitivity.whitening import Shape


def random_shape(seed, dim):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(dim, dim)) + 2 * np.eye(dim)
    return Shape.of_covariance(factor @ factor.T)


def test_known_matrix():
    # A covariance of [[4, 2], [2, 5]] has the factor [[2, 0], [1, 2]]; its mean variance is 4.5.
    shape = Shape.of_covariance([[4.0, 2.0], [2.0, 5.0]])
    expected = np.linalg.inv(np.array([[2.0, 0.0], [1.0, 2.0]])) * np.sqrt(4.5)
    assert np.allclose(shape.whitening, expected, rtol=1e-14)
    assert np.allclose(shape.covariance, np.array([[4.0, 2.0], [2.0, 5.0]]) / 4.5, rtol=1e-14)
    assert np.allclose(shape.stds(3.0), 3 * np.sqrt(np.array([4.0, 5.0]) / 4.5), rtol=1e-14)


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_whitening_makes_noise_isotropic(seed, dim):
    shape = random_shape(seed, dim)
    covariance = shape.whitening @ shape.covariance @ shape.whitening.T
    assert np.allclose(covariance, np.eye(dim), atol=1e-8)
    assert shape.stretch >= np.linalg.norm(shape.whitening, 2)


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 20))
def test_a_row_alone_is_whitened_like_a_row_among_others(seed, dim, n):
    shape, rng = random_shape(seed, dim), np.random.default_rng(seed)
    rows, center = rng.normal(size=(n, dim)) * 1e3, rng.normal(size=dim)
    together = shape.whitened(rows, center)
    alone = np.vstack([shape.whitened(row[None, :], center) for row in rows])
    assert np.array_equal(together, alone)
    assert np.array_equal(together, shape.whitened(np.asfortranarray(rows), center))


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_colouring_undoes_whitening(seed, dim):
    shape, rng = random_shape(seed, dim), np.random.default_rng(seed)
    values = [Fraction(x) for x in rng.normal(size=dim)]
    back = shape.colored(shape.whitened_exactly(values))
    assert np.allclose([float(x) for x in back], [float(x) for x in values], atol=1e-9)


def test_there_is_one_zero():
    shape = Shape.of_covariance([[1.0, -0.5], [-0.5, 1.0]])
    rows = shape.whitened(np.array([[-0.0, 0.0], [0.0, -0.0]]), np.zeros(2))
    assert not np.signbit(rows).any()


def test_no_value_is_refused():
    shape = Shape.of_covariance([[1.0, 0.9], [0.9, 1.0]])
    largest = np.finfo(float).max
    rows = np.array([[largest, -largest], [-largest, largest], [5e-324, largest]])
    assert np.isfinite(shape.whitened(rows, np.array([largest, largest]))).all()


@given(st.integers(0, 2**32), st.integers(1, 5), st.booleans())
def test_a_range_contains_all_whitened_differences(seed, dim, is_ball):
    shape, rng = random_shape(seed, dim), np.random.default_rng(seed)
    scales, center = rng.uniform(0.1, 10, dim), rng.normal(size=dim) * 100
    sides = rng.uniform(0.1, 50, dim)
    range_ = Ball(center, 7.0) if is_ball else Box(center - sides, center + sides)
    rows = range_.clip(center + rng.normal(size=(200, dim)) * 100) / scales
    corners = shape.whitened(rows, range_.center / scales)
    apart = np.linalg.norm(corners[:, None] - corners[None], axis=2).max()
    diameter = shape.diameter(range_, scales)
    assert apart <= diameter
    if not is_ball and dim == 1:
        assert diameter <= apart * (1 + 1e-9)


def test_a_box_of_many_dimensions_is_bounded():
    shape = random_shape(0, 16)
    range_ = Box(np.zeros(16), np.ones(16))
    signs = np.random.default_rng(0).choice([-1, 1], size=(500, 16))
    assert np.linalg.norm(signs @ shape.whitening.T, axis=1).max() <= shape.diameter(
        range_, np.ones(16)
    )
