# SPDX-License-Identifier: Apache-2.0
"""The closed form of the least noise for sums of rows, and its floor that hides one row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferslice.claims import Guarantee
from pufferslice.noise.rows import (
    least_covariance,
    least_variances,
    one_row_distance,
    row_covariance,
)
from pufferslice.sensitivity.rows import RowDifference

LIMIT = Guarantee.guess(at_most=0.64).distance_limit
MOMENT = np.array([[2.0, 1.0], [1.0, 2.0]])
SEEDS = st.integers(0, 2**32 - 1)


def positive_definite(rng, dim):
    root = rng.normal(size=(dim, dim))
    return root @ root.T + 0.1 * np.eye(dim)


def mean_square(covariance, moment):
    return float(np.trace(np.linalg.solve(covariance, moment)))


def difference(spans, moment=MOMENT):
    """One row differs, whose change has this second moment."""
    dim = len(moment)
    return RowDifference(
        shift=np.zeros(dim), spread=moment, spans=np.full(dim, spans), counts=[1.0, 1.0]
    )


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


class TestOneRow:
    def test_by_hand(self):
        """Alone a row moves the output by its span; together at most by all spans."""
        assert one_row_distance(np.array([[4.0]]), np.array([3.0])) == pytest.approx(1.5)
        both = one_row_distance(np.diag([4.0, 1.0]), np.array([2.0, 2.0]))
        assert both == pytest.approx(np.sqrt(1 + 4))
        assert one_row_distance(np.zeros((1, 1)), np.ones(1)) == np.inf

    @given(SEEDS, st.integers(1, 4))
    def test_never_below_any_row(self, seed, dim):
        rng = np.random.default_rng(seed)
        covariance, spans = positive_definite(rng, dim), rng.uniform(0.1, 2.0, dim)
        corners = np.indices((2,) * dim).reshape(dim, -1).T * 2 - 1
        farthest = max(float(c @ np.linalg.solve(covariance, c)) for c in corners * spans)
        assert one_row_distance(covariance, spans) ** 2 >= farthest * (1 - 1e-9)


@pytest.mark.soundness
@pytest.mark.parametrize("kind", ["fitted", "diagonal"])
@pytest.mark.parametrize("from_released_rows", [True, False])
class TestCovariance:
    def covariance(self, rows, kind, *, from_released_rows):
        return row_covariance(
            rows, LIMIT, kind=kind, weights=np.ones(2), from_released_rows=from_released_rows
        )

    def test_it_meets_the_mean_square(self, kind, from_released_rows):
        rows = difference(1.5)
        found, is_raised = self.covariance(rows, kind, from_released_rows=from_released_rows)
        assert mean_square(found, rows.second_moment) <= LIMIT * (1 + 1e-9)
        assert is_raised == from_released_rows
        if kind == "diagonal":
            assert found[0, 1] == 0.0

    def test_one_row_is_hidden(self, kind, from_released_rows):
        rows = difference(50.0)
        found, is_raised = self.covariance(rows, kind, from_released_rows=from_released_rows)
        assert one_row_distance(found, rows.spans) <= 1 + 1e-9
        assert mean_square(found, rows.second_moment) <= LIMIT
        assert is_raised


@pytest.mark.soundness
@given(SEEDS)
def test_noise_of_the_released_rows_is_rounded_up(seed):
    """To a larger matrix with few digits, so that it does not tell the moments."""
    rows = difference(1.5, moment=positive_definite(np.random.default_rng(seed), 2) / 20)
    exact, coarse = (
        row_covariance(rows, LIMIT, kind="fitted", weights=np.ones(2), from_released_rows=released)
        for released in (False, True)
    )
    assert np.linalg.eigvalsh(coarse[0] - exact[0])[0] >= -1e-9 * np.trace(exact[0])
    alone, _ = row_covariance(
        rows, LIMIT, kind="diagonal", weights=np.ones(2), from_released_rows=True
    )
    for std in np.sqrt(np.diag(alone)):
        assert float(f"{std:.1e}") == pytest.approx(std, rel=1e-9)
