# SPDX-License-Identifier: Apache-2.0
"""The least noise for sums of rows: closed form, several matrices, accuracy, and one row."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.row_moments import rows_of

from pufferslice.claims import Guarantee
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.noise import rows as noise_rows
from pufferslice.noise.rows import (
    accurate_noise,
    hiding_one_row,
    least_covariance,
    least_variances,
    row_covariance,
    shared_noise,
)
from pufferslice.sensitivity.person import distance_within, row_delta, row_distance

LIMIT = Guarantee.guess(at_most=0.64).distance_limit
MOMENT = np.array([[2.0, 1.0], [1.0, 2.0]])
SEEDS = st.integers(0, 2**32 - 1)
KINDS = ("fitted", "diagonal")
SOLVERS = ("newton", "multiplied")


@pytest.fixture(params=SOLVERS)
def solver(request, monkeypatch):
    if request.param == "multiplied":
        monkeypatch.setattr(noise_rows, "_MOST_VALUES", 0)
        monkeypatch.setattr(noise_rows, "_MOST_STEPS", 20_000)
        monkeypatch.setattr(noise_rows, "TOLERANCE", 1e-6)
    return request.param


def positive_definite(rng, dim):
    root = rng.normal(size=(dim, dim))
    return root @ root.T + 0.1 * np.eye(dim)


def moments_of(rng, n, dim):
    """Second moments of rows with different means, units and correlations."""
    shifts = rng.normal(size=(n, dim))
    spreads = np.array([positive_definite(rng, dim) for _ in range(n)])
    units = np.exp(rng.normal(size=dim))
    return (5 * shifts[:, :, None] * shifts[:, None, :] + spreads) * np.outer(units, units)


def mean_square(covariance, moment):
    return float(np.trace(np.linalg.solve(covariance, moment)))


def clarabel(moments, kind):
    """A covariance, and its mean squares, as variables of another solver."""
    cvxpy = pytest.importorskip("cvxpy")
    dim = moments.shape[1]
    if kind == "diagonal":
        variances = cvxpy.Variable(dim, pos=True)
        return variances, [np.diagonal(m) @ cvxpy.inv_pos(variances) for m in moments]
    covariance = cvxpy.Variable((dim, dim), PSD=True)
    roots = [np.linalg.cholesky(m) for m in moments]
    costs = [cvxpy.matrix_frac(root, covariance) for root in roots]
    return cvxpy.diag(covariance), costs


def minimum(objective, constraints):
    import cvxpy

    problem = cvxpy.Problem(cvxpy.Minimize(objective), constraints)
    return float(problem.solve(solver=cvxpy.CLARABEL))


def difference(spans, moment=MOMENT):
    """One row differs, whose change has this second moment."""
    dim = len(moment)
    return rows_of(shift=np.zeros(dim), spread=moment, spans=np.full(dim, spans), counts=[1.0, 1.0])


class TestClosedForm:
    def test_known_traces(self):
        plain = least_covariance(MOMENT, LIMIT, np.ones(2))
        assert np.trace(plain) == pytest.approx(14.5224227522858, rel=1e-12)
        weighted = least_covariance(MOMENT, LIMIT, np.array([4.0, 1.0]))
        assert 4 * weighted[0, 0] + weighted[1, 1] == pytest.approx(32.936116953190, rel=1e-11)

    @given(SEEDS, st.integers(1, 5))
    def test_it_meets_the_mean_square_and_no_other_noise_is_smaller(self, seed, dim):
        rng = np.random.default_rng(seed)
        moment, weights = positive_definite(rng, dim), rng.uniform(0.1, 9.0, dim)
        least = least_covariance(moment, LIMIT, weights)
        assert mean_square(least, moment) == pytest.approx(LIMIT, rel=1e-9)
        for _ in range(5):
            other = positive_definite(rng, dim)
            other *= mean_square(other, moment) / LIMIT
            assert np.diag(least) @ weights <= np.diag(other) @ weights * (1 + 1e-9)

    @given(SEEDS, st.integers(1, 5))
    def test_diagonal_noise_meets_it_and_none_is_smaller(self, seed, dim):
        rng = np.random.default_rng(seed)
        moment, weights = positive_definite(rng, dim), rng.uniform(0.1, 9.0, dim)
        least = least_variances(moment, LIMIT, weights)
        assert np.array_equal(least, np.diag(np.diag(least)))
        assert mean_square(least, moment) == pytest.approx(LIMIT, rel=1e-9)
        for _ in range(5):
            other = np.diag(rng.uniform(0.1, 9.0, dim))
            other *= mean_square(other, moment) / LIMIT
            assert np.diag(least) @ weights <= np.diag(other) @ weights * (1 + 1e-9)


@pytest.mark.soundness
class TestSharedNoise:
    @pytest.mark.parametrize("kind", KINDS)
    def test_one_matrix_is_the_closed_form(self, kind):
        least = least_covariance if kind == "fitted" else least_variances
        moment = moments_of(np.random.default_rng(1), 1, 4)[0]
        found = shared_noise(moment[None], LIMIT, np.ones(4), kind=kind)
        assert found.covariance == pytest.approx(least(moment, LIMIT, np.ones(4)), rel=1e-9)
        assert found.gap < 1e-9

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("seed", range(4))
    def test_agrees_with_clarabel(self, kind, seed, solver):
        rng = np.random.default_rng(seed)
        dim = 2 + seed
        moments, weights = moments_of(rng, 2 + 2 * seed, dim), rng.uniform(0.1, 9.0, dim)
        found = shared_noise(moments, LIMIT, weights, kind=kind)
        assert all(mean_square(found.covariance, m) <= LIMIT for m in moments)
        assert found.mean_square <= LIMIT
        variances, costs = clarabel(moments, kind)
        least = minimum(weights @ variances, [cost <= LIMIT for cost in costs])
        value = float(weights @ np.diag(found.covariance))
        assert value / (1 + found.gap) <= least * (1 + 1e-6)
        assert value >= least * (1 - 1e-6)
        assert found.gap <= 1.5e-6

    @pytest.mark.parametrize("kind", KINDS)
    def test_many_matrices_and_features(self, kind):
        moments = moments_of(np.random.default_rng(2), 30, 20)
        assert shared_noise(moments, LIMIT, np.ones(20), kind=kind).gap <= 1e-6

    @pytest.mark.parametrize("share", [1.0, 0.5])
    def test_dominated_matrices_change_nothing(self, share):
        moment, other = moments_of(np.random.default_rng(3), 2, 3)
        alone = shared_noise(np.array([moment, other]), LIMIT, np.ones(3))
        copies = np.array([share * moment, moment, other, share * other, 0 * other])
        assert len(noise_rows._undominated(copies)) == 2
        both = shared_noise(copies, LIMIT, np.ones(3))
        assert both.covariance == pytest.approx(alone.covariance, rel=1e-9)

    @pytest.mark.parametrize("kind", KINDS)
    def test_statistics_that_follow_from_others(self, kind):
        """Three cells that add up, in both matrices: singular, and yet every cost is met."""
        shares = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
        moments = np.array([np.diag(p) - np.outer(p, p) for p in shares])
        found = shared_noise(moments, LIMIT, np.ones(3), kind=kind)
        assert all(mean_square(found.covariance, m) <= LIMIT * (1 + 1e-6) for m in moments)
        assert found.gap <= 1e-6

    def test_units_cancel(self):
        rng = np.random.default_rng(4)
        moments, units = moments_of(rng, 3, 3), np.array([1e-3, 1.0, 1e3])
        plain = shared_noise(moments, LIMIT, np.ones(3)).covariance
        scaled = shared_noise(moments * np.outer(units, units), LIMIT, units**-2).covariance
        assert scaled == pytest.approx(plain * np.outer(units, units), rel=1e-6)

    @pytest.mark.parametrize(
        "call",
        [
            lambda moments: shared_noise(moments, LIMIT, np.ones(2)),
            lambda moments: accurate_noise(moments, np.ones(2), np.ones(2)),
        ],
    )
    def test_nothing_to_hide_is_refused(self, call):
        with pytest.raises(CalibrationError, match="moments"):
            call(np.zeros((1, 2, 2)))

    def test_repr_shows_no_numbers_of_the_covariance(self):
        found = shared_noise(MOMENT[None], LIMIT, np.ones(2))
        assert repr(found).startswith("RowNoise(dim=2, gap=")


@pytest.mark.soundness
class TestAccuracy:
    def test_by_hand(self):
        """By symmetry both weights are equal: the root of M, scaled to variances of 1."""
        found = accurate_noise(MOMENT[None], np.ones(2), np.ones(2))
        assert found.mean_square == pytest.approx((math.sqrt(3) + 1) ** 2 / 2, rel=1e-6)
        assert found.covariance[0, 1] == pytest.approx(2 - math.sqrt(3), rel=1e-6)
        alone = accurate_noise(
            np.diag([4.0, 9.0])[None], np.array([2.0, 3.0]), np.ones(2), kind="diagonal"
        )
        assert alone.mean_square == pytest.approx(2.0, rel=1e-6)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("seed", range(4))
    def test_agrees_with_clarabel(self, kind, seed, solver):
        import cvxpy

        rng = np.random.default_rng(seed)
        dim = 2 + seed
        moments = moments_of(rng, 1 + seed, dim)
        stds = np.sqrt(np.diag(moments[0])) * rng.uniform(0.1, 3.0, dim)
        found = accurate_noise(moments, stds, np.ones(dim), kind=kind)
        assert (np.diag(found.covariance) <= stds**2).all()
        costs = [mean_square(found.covariance, m) for m in moments]
        assert max(costs) <= found.mean_square <= max(costs) * (1 + 1e-9)
        variances, costs = clarabel(moments, kind)
        least = minimum(cvxpy.max(cvxpy.hstack(costs)), [variances <= stds**2])
        assert found.mean_square / (1 + found.gap) <= least * (1 + 1e-6)
        assert found.mean_square >= least * (1 - 1e-6)
        assert found.gap <= 1.5e-6

    @pytest.mark.parametrize("kind", KINDS)
    def test_some_statistics_are_free(self, kind, solver):
        """The least mean square of noise as accurate, with no more noise on the others."""
        import cvxpy

        rng = np.random.default_rng(5)
        moments, weights = moments_of(rng, 2, 4), rng.uniform(0.5, 2.0, 4)
        stds = np.array([0.5, math.inf, 1.0, math.inf])
        found = accurate_noise(moments, stds, weights, kind=kind)
        variances = np.diag(found.covariance)
        named = np.isfinite(stds)
        assert (variances[named] <= stds[named] ** 2).all()
        noise, costs = clarabel(moments, kind)
        limits = [
            noise[np.flatnonzero(named)] <= stds[named] ** 2,
            weights[~named] @ noise[np.flatnonzero(~named)] <= weights[~named] @ variances[~named],
        ]
        least = minimum(cvxpy.max(cvxpy.hstack(costs)), limits)
        assert found.mean_square == pytest.approx(least, rel=3e-6)
        assert found.gap <= 1.5e-6

    @pytest.mark.parametrize("n_moments", [1, 5])
    def test_many_features(self, n_moments):
        rng = np.random.default_rng(6)
        moments = moments_of(rng, n_moments, 20)
        stds = np.sqrt(np.diag(moments[0])) * np.exp(rng.normal(size=20))
        assert accurate_noise(moments, stds, np.ones(20)).gap <= 1e-6

    def test_less_than_by_fixed_weights(self):
        """Weights of 1 / s^2 alone meet the same limits at a larger cost."""
        moments = moments_of(np.random.default_rng(7), 1, 5)
        stds = np.sqrt(np.diag(moments[0]))[::-1].copy()
        fixed = least_covariance(moments[0], 1.0, stds**-2)
        fixed *= (stds**2 / np.diag(fixed)).min()
        found = accurate_noise(moments, stds, np.ones(5))
        assert found.mean_square < 0.95 * mean_square(fixed, moments[0])


@pytest.mark.soundness
class TestHidingOneRow:
    LOW, HIGH = np.zeros((1, 3)), np.array([[1.0, 2.0, 4.0]])

    def test_enough_noise_stays_as_it_is(self):
        covariance = np.diag([4.0, 16.0, 64.0])
        assert hiding_one_row(covariance, self.LOW, self.HIGH) is covariance

    @pytest.mark.parametrize("limit", [0.1, 1.0, 3.0])
    @pytest.mark.parametrize("absent", [False, True])
    @settings(max_examples=20)
    @given(seed=SEEDS)
    def test_the_distance_is_met_and_noise_is_only_added(self, seed, limit, absent):
        rng = np.random.default_rng(seed)
        covariance = positive_definite(rng, 3) * 10.0 ** rng.integers(-3, 2)
        low = rng.normal(size=(3, 3))
        boxes = low, low + rng.exponential(size=(3, 3)) * (rng.random((3, 3)) < 0.5)
        found = hiding_one_row(covariance, *boxes, absent=absent, limit=limit)
        assert row_distance(found, *boxes, absent=absent) <= limit
        added = found - covariance
        assert np.linalg.eigvalsh(added)[0] >= -1e-12 * np.trace(found)
        if added.any():
            assert row_distance(found, *boxes, absent=absent) >= 0.9 * limit

    def test_noise_is_added_where_it_is_needed(self):
        """A constant statistic needs all of its noise; the others have enough."""
        covariance = np.diag([100.0, 400.0, 1e-12])
        found = hiding_one_row(covariance, self.LOW, self.HIGH)
        assert np.diag(found)[:2] == pytest.approx([100.0, 400.0])
        # 1/100 + 4/400 + 16/v = 1
        assert 16 / 0.98 <= found[2, 2] <= 1.03 * 16 / 0.98

    def test_a_statistic_that_no_row_changes(self):
        high = np.array([[1.0, 0.0, 1.0]])
        found = hiding_one_row(1e-6 * np.eye(3), self.LOW, high)
        assert row_distance(found, self.LOW, high) <= 1

    def test_a_claim_for_one_person(self):
        limit = distance_within(1.0, 1e-6, 0.0)
        found = hiding_one_row(np.eye(3), self.LOW, self.HIGH, limit=limit)
        assert row_delta(row_distance(found, self.LOW, self.HIGH), 1.0, 0.0) <= 1e-6

    def test_no_noise_hides_a_row_entirely(self):
        with pytest.raises(ArgumentError, match="limit"):
            hiding_one_row(np.eye(3), self.LOW, self.HIGH, limit=0.0)


def raised(rows, kind, *, from_released_rows):
    least = shared_noise(rows.second_moments, LIMIT, np.ones(2), kind=kind).covariance
    return row_covariance(rows, least, from_released_rows=from_released_rows)


@pytest.mark.soundness
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("from_released_rows", [True, False])
class TestCovariance:
    def covariance(self, rows, kind, *, from_released_rows):
        return raised(rows, kind, from_released_rows=from_released_rows)

    def test_it_meets_the_mean_square(self, kind, from_released_rows):
        rows = difference(1.5)
        found, is_raised = self.covariance(rows, kind, from_released_rows=from_released_rows)
        assert mean_square(found, rows.second_moments[0]) <= LIMIT * (1 + 1e-9)
        assert is_raised == from_released_rows
        if kind == "diagonal":
            assert found[0, 1] == 0.0

    def test_one_row_is_hidden(self, kind, from_released_rows):
        rows = difference(50.0)
        found, is_raised = self.covariance(rows, kind, from_released_rows=from_released_rows)
        spans = rows.spans[None]
        assert row_distance(found, 0 * spans, spans) <= 1 + 1e-9
        assert mean_square(found, rows.second_moments[0]) <= LIMIT
        assert is_raised


@pytest.mark.soundness
@settings(max_examples=20)
@given(SEEDS)
def test_noise_of_the_released_rows_is_rounded_up(seed):
    """To a larger matrix with few digits, so that it does not tell the moments."""
    rows = difference(1.5, moment=positive_definite(np.random.default_rng(seed), 2) / 20)
    exact, coarse = (
        raised(rows, "fitted", from_released_rows=released) for released in (False, True)
    )
    assert np.linalg.eigvalsh(coarse[0] - exact[0])[0] >= -1e-9 * np.trace(exact[0])
    alone, _ = raised(rows, "diagonal", from_released_rows=True)
    for std in np.sqrt(np.diag(alone)):
        assert float(f"{std:.1e}") == pytest.approx(std, rel=1e-9)
