# SPDX-License-Identifier: Apache-2.0
"""Second moments of rows: by hand, by enumeration, and what cannot be moments."""

import itertools
import math

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.special import ndtr
from tests.refusals import Refusal, check_refused
from tests.row_moments import rows_of

from pufferslice.errors import ArgumentError, ClaimError
from pufferslice.scenario.rows import Boxes, Differing, RowDistribution, covariance_of
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.whitening import Covariance, Shape

ROWS = rows_of(
    shift=[1.0, 0.0], spread=[[2.0, 0.5], [0.5, 1.0]], spans=[9.0, 9.0], counts=[2.0, 5.0]
)
NOISE = Covariance(dim=2, std=3.0)


def test_second_moment_by_hand():
    """E[D^2] m m^T + E[D] C, and 2e-9 of what two coordinates could do."""
    expected = np.array([[5.0 + 4.0, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(ROWS.second_moments[0], expected, atol=1e-5)
    raised = ROWS.second_moments[0] - expected
    assert (np.diag(raised) >= 2e-9 * (np.diag(expected) + 5 * 81)).all()


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
    rows = rows_of(
        shift=shift,
        spread=(spread + spread.T) / 2,
        spans=[20.0, 20.0],
        counts=[n_differing, n_differing**2],
    )
    totals = [sum(parts) for parts in itertools.product(changes, repeat=n_differing)]
    truth = float(np.mean([total @ total for total in totals])) / 9
    assert truth <= rows.mean_squares(NOISE).item() <= truth * (1 + 1e-6) + 1e-5


def kind_of(rows, labels=None, place=0):
    dim = rows.shape[1]
    return RowDistribution(
        place=place,
        row_mean=rows.mean(axis=0),
        row_cov=covariance_of(rows),
        rows=rows,
        labels={} if labels is None else {"x": labels},
        boxes=Boxes(low=np.full((1, dim), -20.0), high=np.full((1, dim), 20.0)),
        differing=Differing(most=3),
        size=np.zeros(dim),
        ignorance=np.ones(dim),
    )


@pytest.mark.soundness
class TestCouplings:
    """The second moment of a change, by all pairs of rows and their probabilities."""

    @given(st.integers(0, 2**32 - 1))
    def test_cells_by_enumeration(self, seed):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(1, 7, 2)
        rows = [rng.normal(size=(size, 2)) for size in sizes]
        labels = [rng.integers(0, 3, size) for size in sizes]
        counts = np.array([np.bincount(each, minlength=3) for each in labels])
        shares = counts / sizes[:, None]
        common = shares.min(axis=0)
        # Probability of each row to be of the part that meets its own cell, and of the rest.
        meets, left = (
            [part[k][labels[k]] / counts[k][labels[k]] for k in range(2)]
            for part in ([common, common], shares - common)
        )
        joint = np.zeros(sizes)
        for a, b in itertools.product(*map(range, sizes)):
            if labels[0][a] == labels[1][b]:
                joint[a, b] += common[labels[0][a]] * (
                    meets[0][a] * meets[1][b] / common[labels[0][a]] ** 2
                    if common[labels[0][a]]
                    else 0
                )
        if (rest := 1 - common.sum()) > 1e-12:
            joint += np.outer(left[0], left[1]) / rest
        assert joint.sum(axis=1) == pytest.approx(np.full(sizes[0], 1 / sizes[0]))
        assert joint.sum(axis=0) == pytest.approx(np.full(sizes[1], 1 / sizes[1]))
        changes = rows[1][None] - rows[0][:, None]
        mean = np.einsum("ab,abi->i", joint, changes)
        second = np.einsum("ab,abi,abj->ij", joint, changes, changes)
        kinds = [kind_of(*each, k) for k, each in enumerate(zip(rows, labels, strict=True))]
        difference = RowDifference.of(kinds, [(0, 1)], coupling="cells:x")
        difference.check()
        (change,) = difference.changes
        np.testing.assert_allclose(change.mean, mean, atol=1e-12)
        np.testing.assert_allclose(change.cov, second - np.outer(mean, mean), atol=1e-12)

    @given(st.integers(0, 2**32 - 1))
    def test_transport_by_the_best_assignment(self, seed):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(2, 6, 2))
        difference = RowDifference.of(
            [kind_of(part, place=k) for k, part in enumerate(rows)], [(0, 1)], coupling="transport"
        )
        difference.check()
        costs = ((rows[1][None] - rows[0][:, None]) ** 2).sum(axis=2)
        best = costs[linear_sum_assignment(costs)].mean()
        (change,) = difference.changes
        found = np.trace(change.cov) + change.mean @ change.mean
        assert best * (1 - 1e-9) <= found <= best * (1 + 1e-9)

    def test_maximal_coupling_of_flags(self):
        """Flags that differ with probability 1/2 change as rarely as they can."""
        flags = [np.array([[1.0], [0], [0], [0]]), np.array([[1.0], [1], [1], [0]])]
        kinds = [kind_of(each, each[:, 0].astype(int), k) for k, each in enumerate(flags)]
        (change,) = RowDifference.of(kinds, [(0, 1)], coupling="cells:x").changes
        assert change.cov.item() + change.mean.item() ** 2 == pytest.approx(0.5)
        (change,) = RowDifference.of(kinds, [(0, 1)]).changes
        assert change.cov.item() + change.mean.item() ** 2 == pytest.approx(0.625)

    def test_no_coupling_is_below_the_floor(self):
        (floor,) = ROWS.floors
        assert np.linalg.eigvalsh(ROWS.second_moments[0] - floor)[0] >= 0
        assert ROWS.least_share(NOISE) == math.floor(100 * math.sqrt(4 / 11)) / 100

    @pytest.mark.parametrize(
        "fields",
        [
            {"counts": [[[3.0, 3.0]]], "squares": [[[5.0]]]},
            {
                "means": [[-0.5, 0.0], [0.5, 0.0], [0.0, 0.0]],
                "covs": [[[1.0, 0.0], [0.0, 1.0]]] * 3,
                "counts": [[[2.0, 1.0, 1.0]]],
                "squares": [np.eye(2)],
                "shares": np.zeros((3, 0)),
                "cell_means": np.zeros((3, 0, 2)),
                "cell_covs": np.zeros((3, 0, 2, 2)),
            },
        ],
        ids=["states that turn back", "states of other pairs"],
    )
    def test_no_floor_where_the_mean_change_is_not_known(self, fields):
        """A sum that alternates moves less than its slots: a floor of E[D] m would be too high."""
        rows = attrs.evolve(ROWS, **fields)
        rows.check()
        assert rows.floors is None
        assert rows.least_share(NOISE) == 0.0

    def test_rows_of_other_pairs_do_not_meet(self):
        """Rows that meet have the change of their pair, and those of others another one."""
        rows = attrs.evolve(
            ROWS,
            means=[[-0.5, 0.0], [0.5, 0.0], [0.0, 0.0]],
            covs=[[[1.0, 0.0], [0.0, 1.0]]] * 3,
            counts=[[[2.0, 2.0, 0.0]]],
            squares=[[[4.0, 0.0], [0.0, 0.0]]],
            shares=np.zeros((3, 0)),
            cell_means=np.zeros((3, 0, 2)),
            cell_covs=np.zeros((3, 0, 2, 2)),
            coupled=[[[2.0, 0.0], [0.0, 1.0]]],
        )
        rows.check()
        with pytest.raises(ArgumentError, match="moments"):
            attrs.evolve(rows, counts=[[[2.0, 1.0, 1.0]]]).check()

    def test_periods(self):
        """Rows of two periods: expected products of their numbers times the mean change."""
        squares = np.array([[3.0, 1.0], [1.0, 2.0]])
        two = attrs.evolve(
            rows_of(shift=[1.0], spread=[[2.0]], spans=[9.0], counts=[1.0, 1.0]),
            counts=[[[1.5, 1.5], [1.0, 1.0]]],
            squares=[squares],
        )
        expected = squares + np.diag([3.0, 2.0])
        np.testing.assert_allclose(two.second_moments[0], expected, atol=1e-5)
        assert two.dim == 2
        two.check()


def changed(**fields):
    return attrs.evolve(ROWS, **fields).check


KINDS = [[[1.0, 0.25], [0.25, 0.5]]] * 2
NEARLY_EQUAL = [np.array([[1.671875], [1.671875 + 2.0**-52], [3.0]]), np.array([[1.0]])]
"""Times 0.6 the first two are the same float: which row is met could not be said."""


@pytest.mark.parametrize(
    "refusal",
    [
        *[
            Refusal(changed(**fields), ArgumentError, "moments")
            for fields in (
                {"means": [[1.0], [0.0]]},
                {"means": [[math.nan, 0.0], [0.0, 0.0]]},
                {"counts": [[[0.0, 0.0]]]},
                {"high": [[4.5, -4.5]]},
                {"means": [[10.0, 0.0], [0.0, 0.0]]},
                {"covs": [[[50.0, 0.0], [0.0, 1.0]], KINDS[1]]},
                {"covs": [[[2.0, 0.5], [0.4, 1.0]], KINDS[1]]},
                {"covs": [[[1.0, 2.0], [2.0, 1.0]], KINDS[1]]},
                {"squares": [[[-1.0]]]},
                {"pairs": [[0, 2]]},
                {
                    "shares": [[1.0], [1.0]],
                    "cell_means": [[[9.0, 0]]] * 2,
                    "cell_covs": [KINDS[:1]] * 2,
                },
            )
        ],
        Refusal(
            lambda: RowDifference.of([kind_of(np.eye(2))] * 2, [(0, 0)], coupling="cells:y"),
            ArgumentError,
            "coupling",
        ),
        Refusal(
            lambda: RowDifference.of(
                [kind_of(part, place=k) for k, part in enumerate(NEARLY_EQUAL)],
                [(0, 1)],
                coupling="transport",
                shape=Shape(whitening=[[0.6]]),
            ),
            ArgumentError,
            "coupling",
        ),
        Refusal(lambda: ROWS.sphere_divergences("joint", 2.0, NOISE), ClaimError, "sphere"),
    ],
)
def test_refused(refusal):
    check_refused(refusal)


def test_fewer_rows_than_stated_are_noticed():
    """Two rows differ on average, and five of the squared number."""
    shares = {"within": 0.1, "design": "stratified"}
    for secret, is_fine in (
        (shares | {"n_rows": 20}, True),
        (shares | {"n_rows": 21}, False),
        (shares | {"n_rows": 10, "design": "independent"}, True),
        (shares | {"n_rows": 20, "design": "independent"}, False),
        ({"ratio": 1.1, "up_to": 22}, True),
        ({"ratio": 1.1, "up_to": 40}, False),
    ):
        assert (not list(ROWS.problems({"secret": secret}))) == is_fine
    ROWS.check()
