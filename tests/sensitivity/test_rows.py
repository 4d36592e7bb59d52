# SPDX-License-Identifier: Apache-2.0
"""Second moments of rows: by hand, by enumeration, and what cannot be moments."""

import itertools
import math

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from tests.refusals import Refusal, check_refused

from pufferslice.errors import ArgumentError, ClaimError
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.whitening import Covariance

ROWS = RowDifference(
    shift=[1.0, 0.0], spread=[[2.0, 0.5], [0.5, 1.0]], spans=[9.0, 9.0], counts=[2.0, 5.0]
)
NOISE = Covariance(dim=2, std=3.0)


def test_second_moment_by_hand():
    """E[D^2] m m^T + E[D] C, and 2e-9 of what two coordinates could do."""
    expected = np.array([[5.0 + 4.0, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(ROWS.second_moment, expected, atol=1e-6)
    raised = ROWS.second_moment - expected
    assert np.diag(raised) == pytest.approx(2e-9 * (np.diag(expected) + 5 * 81), rel=1e-4)


def test_answers_by_hand():
    (square,) = ROWS.mean_squares(NOISE)
    assert square == pytest.approx(11 / 9, rel=1e-6)
    (variation,) = ROWS.variations(NOISE)
    assert variation == pytest.approx(2 * ndtr(math.sqrt(11 / 9) / 2) - 1, rel=1e-6)
    assert ROWS.divergences(2.0, NOISE).tolist() == [math.inf]
    assert ROWS.delta_curve(NOISE)(3.0).tolist() == [variation]


@pytest.mark.soundness
@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_never_below_the_enumerated_mean_square(seed, n_differing):
    """All draws of the rows that differ, from few rows of two kinds."""
    rng = np.random.default_rng(seed)
    kinds = rng.normal(size=(2, 3, 2))
    changes = [b - a for a, b in itertools.product(*kinds)]
    shift, spread = np.mean(changes, axis=0), np.cov(np.transpose(changes), bias=True)
    rows = RowDifference(
        shift=shift,
        spread=(spread + spread.T) / 2,
        spans=[20.0, 20.0],
        counts=[n_differing, n_differing**2],
    )
    totals = [sum(parts) for parts in itertools.product(changes, repeat=n_differing)]
    truth = float(np.mean([total @ total for total in totals])) / 9
    assert truth <= rows.mean_squares(NOISE).item() <= truth * (1 + 1e-6) + 1e-5


def changed(**fields):
    return attrs.evolve(ROWS, **fields).check


@pytest.mark.parametrize(
    "refusal",
    [
        *[
            Refusal(changed(**fields), ArgumentError, "moments")
            for fields in (
                {"shift": [1.0]},
                {"shift": [math.nan, 0.0]},
                {"counts": [0.0, 1.0]},
                {"spans": [9.0, 0.0]},
                {"shift": [10.0, 0.0]},
                {"spread": [[50.0, 0.0], [0.0, 1.0]]},
                {"spread": [[2.0, 0.5], [0.4, 1.0]]},
                {"spread": [[1.0, 2.0], [2.0, 1.0]]},
                {"counts": [3.0, 5.0]},
            )
        ],
        Refusal(lambda: ROWS.sphere_divergences("joint", 2.0, NOISE), ClaimError, "sphere"),
    ],
)
def test_refused(refusal):
    check_refused(refusal)


def test_fewer_rows_than_stated_are_noticed():
    """Two rows differ on average, and five of the squared number."""
    for secret, is_fine in (
        ({"n_differing": 2}, True),
        ({"n_differing": 3}, False),
        ({"n_differing": 2, "design": "independent", "n_rows": 20, "within": 0.1}, False),
        ({"n_differing": 1, "design": "independent", "n_rows": 10, "within": 0.1}, True),
    ):
        assert (not list(ROWS.problems({"secret": secret}))) == is_fine
    ROWS.check()
