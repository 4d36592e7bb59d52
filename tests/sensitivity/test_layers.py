# SPDX-License-Identifier: Apache-2.0
"""Layers of rows: together the covariance, each within its radius, and never too small."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferslice.sensitivity.layers import (
    Meeting,
    SortedRows,
    Sorting,
    combined,
    farthest_in_boxes,
    n_layers_of,
    one_layer,
    whitened_layers,
)
from pufferslice.sensitivity.shells import excess_factor

pytestmark = pytest.mark.soundness

SEEDS = st.integers(0, 2**32 - 1)
LENGTHS = st.floats(0.01, 30.0)


def rows_of(rng, n_rows, dim):
    """Rows with some far outliers, and rows that are equal."""
    rows = rng.normal(size=(n_rows, dim)) * rng.exponential(1.0, (n_rows, 1)) ** 2
    return np.concatenate([rows, rows[:2]])


def metric_of(rng, dim):
    return np.tril(rng.normal(size=(dim, dim)), -1) + np.diag(rng.uniform(0.3, 3, dim))


def weighted(changes, masses, length, metric):
    """E X X' psi(u |X|) of rows themselves."""
    lengths = np.linalg.norm(changes @ metric.T, axis=1)
    return (changes.T * (masses * excess_factor(length * lengths))) @ changes


def check_above(layers, truth, length, rel):
    """The matrix of the layers is above the truth, and not far above it."""
    found = np.tensordot(excess_factor(length * layers.radii), layers.moments, axes=1)
    lacking = np.linalg.eigvalsh(found - truth)
    assert lacking[0] >= -1e-12 * np.linalg.norm(truth)
    assert np.trace(found) <= np.trace(truth) * (1 + rel) * (1 + 1e-3) + 1e-5


@given(SEEDS, st.integers(1, 3), st.integers(1, 32), LENGTHS)
def test_rows_of_a_kind(seed, dim, n_layers, length):
    rng = np.random.default_rng(seed)
    rows, metric = rows_of(rng, 9, dim), metric_of(rng, dim)
    apart = rows - rows.mean(axis=0)
    sorting = Sorting(metric=metric, spans=np.ptp(rows, axis=0) + 1, n_layers=n_layers)
    layers = sorting.of_kind(rows, rows.mean(axis=0))
    np.testing.assert_allclose(layers.moments.sum(axis=0), np.cov(rows.T, bias=True), atol=1e-4)
    masses = np.full(len(rows), 1 / len(rows))
    length /= np.linalg.norm(apart @ metric.T, axis=1).max()
    check_above(layers, weighted(apart, masses, length, metric), length, rel=np.expm1(length * 30))
    if n_layers == 32:
        # No row counts as farther than one layer outside it.
        step = length * layers.radii.max() / 24
        check_above(layers, weighted(apart, masses, length, metric), length, rel=np.expm1(step))


@given(SEEDS, st.integers(1, 3), LENGTHS)
def test_changes_of_coupled_rows(seed, dim, length):
    rng = np.random.default_rng(seed)
    changes, metric, masses = rows_of(rng, 9, dim), metric_of(rng, dim), rng.dirichlet(np.ones(11))
    mean = masses @ changes
    sorting = Sorting(metric=metric, spans=np.ptp(changes, axis=0) + 1, n_layers=32)
    layers = sorting.of_changes(changes, masses, mean)
    length /= layers.radii.max()
    step = length * layers.radii.max() / 24
    truth = weighted(changes - mean, masses, length, metric)
    check_above(layers, truth, length, rel=np.expm1(step))


def plan_of(rng, counts):
    """A coupling of two counts of cells, in units of a row."""
    first, second = (rng.permutation(np.repeat(np.arange(len(row)), row)) for row in counts)
    plan = np.zeros((counts.shape[1],) * 2)
    np.add.at(plan, (first, second), 1 / len(first))
    return plan


@given(SEEDS, st.integers(1, 2), st.integers(1, 3), st.booleans(), LENGTHS)
def test_rows_that_meet_by_their_cells(seed, dim, n_cells, is_planned, length):
    """All pairs of rows, by their probabilities: of equal cells, or of cells by a plan."""
    rng = np.random.default_rng(seed)
    kinds = [rows_of(rng, 5, dim) for _ in range(2)]
    codes = [rng.integers(0, n_cells, 7) for _ in range(2)]
    counts = np.array([np.bincount(each, minlength=n_cells) for each in codes])
    common = counts.min(axis=0)
    rest = counts - common
    plan = np.diag(common / 7) + np.outer(*rest) / 7 / max(1, rest[0].sum())
    if is_planned:
        plan = plan_of(rng, counts)
    pairs = list(itertools.product(range(7), repeat=2))
    changes = np.array([kinds[1][b] - kinds[0][a] for a, b in pairs])
    masses = np.array(
        [
            plan[codes[0][a], codes[1][b]] / (counts[0][codes[0][a]] * counts[1][codes[1][b]])
            for a, b in pairs
        ]
    )
    assert masses.sum() == pytest.approx(1.0)
    mean, metric = kinds[1].mean(axis=0) - kinds[0].mean(axis=0), metric_of(rng, dim)
    assert masses @ changes == pytest.approx(mean)
    spans = np.ptp(np.concatenate(kinds), axis=0) + 1
    sorting = Sorting(metric=metric, spans=spans, n_layers=32)
    plans = plan[None] if is_planned else np.zeros((0, n_cells, n_cells))
    coded = list(zip(kinds, codes, strict=True))
    (layers,) = sorting.of_cells(coded, [(0, 1)], n_cells, plans)
    apart = changes - mean
    covariance = (apart.T * masses) @ apart
    np.testing.assert_allclose(layers.moments.sum(axis=0), covariance, atol=1e-6 * spans.max() ** 2)
    length /= layers.radii.max()
    check_above(layers, weighted(apart, masses, length, metric), length, rel=np.inf)


@given(SEEDS, st.integers(1, 3))
def test_other_coordinates(seed, dim):
    """Radii where another matrix whitens are no shorter than the rows are there."""
    rng = np.random.default_rng(seed)
    rows, (metric, other) = rows_of(rng, 9, dim), (metric_of(rng, dim) for _ in range(2))
    sorting = Sorting(metric=metric, spans=np.ptp(rows, axis=0) + 1, n_layers=8)
    layers = sorting.of_kind(rows, rows.mean(axis=0))
    same, moved = (whitened_layers(layers, matrix, metric) for matrix in (metric, other))
    assert (same.radii == layers.radii).all()
    lengths = np.linalg.norm((rows - rows.mean(axis=0)) @ other.T, axis=1)
    assert moved.radii.max() >= lengths.max() * (1 - 1e-12)
    np.testing.assert_allclose(
        moved.moments.sum(axis=0),
        other @ np.cov(rows.T, bias=True).reshape(dim, dim) @ other.T,
        atol=1e-4,
    )


@given(SEEDS, st.integers(1, 3))
def test_boxes_hold_their_corners(seed, dim):
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.normal(size=(2, 2, dim)), axis=0)
    metric, center = metric_of(rng, dim), rng.normal(size=dim)
    corners = [
        np.where(sides, ends[1, box], ends[0, box])
        for box in range(2)
        for sides in itertools.product([False, True], repeat=dim)
    ]
    farthest = max(np.linalg.norm(metric @ (corner - center)) for corner in corners)
    assert farthest <= farthest_in_boxes(*ends, center, metric) <= 4 * farthest * dim


def test_one_layer():
    cov, spans = np.array([[2.0]]), np.array([3.0])
    only = one_layer(cov, 4.0, spans, is_coupled=False)
    assert only.radii.tolist() == [4.0]
    assert only.moments.item() == pytest.approx(2.0 + 4e-9 * 9)
    assert one_layer(0 * cov, 4.0, spans, is_coupled=False).radii.tolist() == [0.0]
    assert one_layer(0 * cov, 4.0, spans, is_coupled=True).radii.tolist() == [4.0]


def test_numbers_of_layers():
    assert n_layers_of(2, 8) == 32
    assert 4 <= n_layers_of(2, 100) < 32
    assert n_layers_of(50, 256) == 1


@given(SEEDS, st.integers(1, 3))
def test_changes_from_each_two_layers(seed, dim):
    """Probability and second moment of x' - x + s, for rows x and x' of two layers each."""
    rng = np.random.default_rng(seed)
    sides, shift, probability = rng.normal(size=(2, 2, 3, dim)), rng.normal(size=dim), 0.3

    def sorted_side(layers):
        """Layers of so many rows, each with the probability 1/6."""
        seconds = np.einsum("lri,lrj->lij", layers, layers) / 6
        return SortedRows(np.full(2, 0.5), np.ones(2), layers.sum(axis=1) / 6, seconds)

    meeting = Meeting(probability, *map(sorted_side, sides), shift)
    masses, moments = combined(meeting)
    assert masses == pytest.approx(np.full(4, probability / 4))
    for moment, (after, before) in zip(moments, itertools.product(sides[1], sides[0]), strict=True):
        changes = (after[:, None] - before + shift).reshape(-1, dim)
        np.testing.assert_allclose(moment, probability * changes.T @ changes / 36, atol=1e-12)
