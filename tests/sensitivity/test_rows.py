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
from tests.row_moments import difference_of, kind_of, rows_of

from pufferslice.errors import ArgumentError, ClaimError
from pufferslice.scenario.rows import Boxes, Differing
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
    assert ROWS.delta_curve(NOISE)(0.0).tolist() == pytest.approx([variation], rel=1e-9)
    assert ROWS.epsilon_at(1e-5, NOISE) is None
    # The line from 0 that touches delta at epsilon 1, times the mean square.
    q = np.linspace(0.1, 9.0, 10**6)
    delta = ndtr(np.sqrt(q) / 2 - 1 / np.sqrt(q)) - math.e * ndtr(-np.sqrt(q) / 2 - 1 / np.sqrt(q))
    assert ROWS.delta_curve(NOISE)(1.0).item() == pytest.approx(
        (delta / q).max() * square, rel=1e-5
    )


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

    @given(st.integers(0, 2**32 - 1))
    def test_near_cells_by_enumeration(self, seed):
        """Rows that are independent given their cells, whatever plan the cells follow."""
        rng = np.random.default_rng(seed)
        rows = [rng.normal(size=(size, 2)) for size in rng.integers(1, 7, 2)]
        labels = [rng.integers(0, 3, len(part)) for part in rows]
        kinds = [kind_of(*each, k) for k, each in enumerate(zip(rows, labels, strict=True))]
        difference = RowDifference.of(kinds, [(0, 1)], coupling="transport:x")
        difference.check()
        (plan,), cells = difference.plans, np.unique(np.concatenate(labels))
        joint = np.zeros([len(part) for part in rows])
        for a, b in itertools.product(*map(range, joint.shape)):
            places = np.searchsorted(cells, [labels[0][a], labels[1][b]])
            sizes = [np.sum(labels[k] == labels[k][row]) for k, row in ((0, a), (1, b))]
            joint[a, b] = plan[tuple(places)] / np.prod(sizes)
        assert joint.sum(axis=1) == pytest.approx(np.full(len(rows[0]), 1 / len(rows[0])))
        assert joint.sum(axis=0) == pytest.approx(np.full(len(rows[1]), 1 / len(rows[1])))
        changes = rows[1][None] - rows[0][:, None]
        mean = np.einsum("ab,abi->i", joint, changes)
        second = np.einsum("ab,abi,abj->ij", joint, changes, changes)
        (change,) = difference.changes
        np.testing.assert_allclose(change.mean, mean, atol=1e-12)
        np.testing.assert_allclose(change.cov, second - np.outer(mean, mean), atol=1e-12)

    @given(st.integers(0, 2**32 - 1))
    def test_near_cells_change_no_more_than_equal_ones(self, seed):
        rng = np.random.default_rng(seed)
        kinds = [
            kind_of(rng.normal(size=(9, 2)), rng.integers(0, 4, 9), place) for place in range(2)
        ]
        near, equal = (
            np.trace(RowDifference.of(kinds, [(0, 1)], coupling=f"{how}:x").second_moments[0])
            for how in ("transport", "cells")
        )
        assert near <= equal * (1 + 1e-9)

    def test_maximal_coupling_of_flags(self):
        """Flags that differ with probability 1/2 change as rarely as they can."""
        flags = [np.array([[1.0], [0], [0], [0]]), np.array([[1.0], [1], [1], [0]])]
        kinds = [kind_of(each, each[:, 0].astype(int), k) for k, each in enumerate(flags)]
        (change,) = RowDifference.of(kinds, [(0, 1)], coupling="cells:x").changes
        assert change.cov.item() + change.mean.item() ** 2 == pytest.approx(0.5)
        (change,) = RowDifference.of(kinds, [(0, 1)]).changes
        assert change.cov.item() + change.mean.item() ** 2 == pytest.approx(0.625)

    def test_no_coupling_is_below_the_floor(self):
        (mean,) = ROWS.mean_changes
        assert np.linalg.eigvalsh(ROWS.second_moments[0] - np.outer(mean, mean))[0] >= 0
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
            },
        ],
        ids=["states that turn back", "states of other pairs"],
    )
    def test_no_floor_where_the_mean_change_is_not_known(self, fields):
        """A sum that alternates moves less than its slots: a floor of E[D] m would be too high."""
        rows = attrs.evolve(ROWS, **fields)
        rows.check()
        assert rows.mean_changes is None
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


def mixtures(outcomes, std, dim):
    """Densities of two mixtures of Gaussians on a grid, and the size of its cells."""
    values = np.concatenate([values for values, _ in outcomes])
    low, high = values.min(axis=0) - 12 * std, values.max(axis=0) + 12 * std
    axes = [np.linspace(a, b, 4001 if dim == 1 else 161) for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, dim)
    densities = []
    for values, masses in outcomes:
        found, places = np.unique(values.round(12), axis=0, return_inverse=True)
        weights = np.bincount(places.ravel(), weights=masses)
        squares = ((points[:, None] - found) ** 2).sum(axis=2) / std**2
        densities.append(np.exp(-squares / 2) @ weights / (2 * np.pi * std**2) ** (dim / 2))
    return densities, math.prod(axis[1] - axis[0] for axis in axes)


def table_sums(draws, n_rows):
    """All sums of so many rows, each from the values and probabilities of `draws`."""
    values, masses = draws
    places = np.array(list(itertools.product(range(len(values)), repeat=n_rows)))
    return values[places].sum(axis=1), masses[places].prod(axis=1)


@pytest.mark.soundness
class TestExactMixtures:
    """The divergences of what is released from two tables, by integrals over all draws of rows."""

    @given(
        st.integers(0, 2**32 - 1),
        st.sampled_from([1, 2]),
        st.sampled_from(["independent", "cells:x", "transport"]),
        st.floats(0.4, 3.0),
    )
    def test_rows_that_differ(self, seed, dim, coupling, std):
        """A share of exactly so many rows: both draws of the rows that make the difference."""
        rng = np.random.default_rng(seed)
        kinds, n_rows = rng.normal(size=(2, 3, dim)) * rng.uniform(0.1, 1), 2
        labels = [rng.integers(0, 2, 3) for _ in range(2)]
        differing = Differing(most=n_rows)
        rows = difference_of(*kinds, differing, labels=labels, coupling=coupling)
        sums = [table_sums((kind, np.full(3, 1 / 3)), n_rows) for kind in kinds]
        self.check(rows, sums, std)

    @given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2]), st.floats(0.4, 3.0))
    def test_rows_that_may_differ(self, seed, dim, std):
        """Each row has the property by itself, in two worlds with shares 0.2 apart."""
        rng = np.random.default_rng(seed)
        kinds, n_rows = rng.normal(size=(2, 2, dim)) * rng.uniform(0.1, 1), 3
        rows = difference_of(*kinds, Differing(most=n_rows, probability=0.2))
        sums = [
            table_sums((np.concatenate(kinds), np.repeat([1 - share, share], 2) / 2), n_rows)
            for share in (0.3, 0.5)
        ]
        self.check(rows, sums, std)

    def test_flags(self):
        """One feature of two values: the coupled sum is near the exact divergence."""
        flags = [np.array([[1.0], [0], [0], [0]]), np.array([[1.0], [1], [1], [0]])]
        codes = [each[:, 0].astype(int) for each in flags]
        kinds = [kind_of(*each, k) for k, each in enumerate(zip(flags, codes, strict=True))]
        boxes = Boxes(low=[[0.0], [1.0]], high=[[0.0], [1.0]])
        kinds = [attrs.evolve(kind, boxes=boxes) for kind in kinds]
        rows = RowDifference.of(kinds, [(0, 1)], coupling="cells:x")
        ((flag_sum,),) = rows.sums(None)
        assert flag_sum.probability == pytest.approx(0.5)
        sums = [table_sums((flag, np.full(4, 0.25)), 3) for flag in flags]
        self.check(rows, sums, 1.0)
        independent = RowDifference.of(kinds, [(0, 1)])
        assert type(independent.sums(None)[0][0]) is not type(flag_sum)
        self.check(independent, sums, 1.0)

    def check(self, rows, sums, std):
        rows.check()
        dim, noise = rows.dim, Covariance(dim=rows.dim, std=std)
        (first, second), cell = mixtures(sums, std, dim)
        curve = rows.delta_curve(noise)
        for p, q in ((first, second), (second, first)):
            for order in (1.5, 4.0):
                seen = (p > 1e-300) & (q > 1e-300)
                total = np.exp(order * np.log(p[seen]) + (1 - order) * np.log(q[seen])).sum()
                truth = math.log(total * cell) / (order - 1)
                assert truth <= rows.divergences(order, noise).item() + 1e-6
            for epsilon in (0.0, 0.5, 2.0):
                truth = np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell
                assert truth <= curve(epsilon).item() + 1e-6
        assert np.abs(first - second).sum() * cell / 2 <= rows.variations(noise).item() + 1e-6


class TestLayers:
    def test_moments_alone_bound_more_wastefully(self):
        rng = np.random.default_rng(0)
        kinds = rng.normal(size=(2, 30, 2))
        layered = difference_of(*kinds, Differing(most=40))
        only = attrs.evolve(
            layered,
            metric=np.zeros((0, 0)),
            radii=np.zeros((0, 0)),
            layers=np.zeros((0, 0, 2, 2)),
        )
        noise = Covariance(dim=2, std=60.0)
        few, many = (each.divergences(4.0, noise).item() for each in (only, layered))
        assert many < few < math.inf

    def test_a_coupling_adds_a_bound(self):
        rng = np.random.default_rng(1)
        kinds, labels = rng.normal(size=(2, 12, 2)), [np.arange(12) % 3] * 2
        for coupling in ("cells:x", "transport"):
            rows = difference_of(*kinds, Differing(most=4), labels=labels, coupling=coupling)
            rows.check()
            ((drawn, coupled),) = rows.sums(None)
            assert (len(drawn.parts), len(coupled.parts)) == (2, 1)
            assert rows.laws_of(0) == [[0, 1], [2]]
            bounds = [each.log_moments(np.array([0.01])).item() for each in (drawn, coupled)]
            noise = Covariance(dim=2, std=1.0)
            # The rate of order 2 is 1; at std 10 it is 0.01.
            found = rows.divergences(2.0, attrs.evolve(noise, std=10.0)).item()
            assert found == pytest.approx(min(bounds), rel=1e-9)

    def test_states_of_a_home_have_no_number_of_rows(self):
        assert not ROWS.bounds_rare_outputs
        assert ROWS.sums(None) == [[]]


LAYERED = difference_of(*np.random.default_rng(2).normal(size=(2, 9, 2)), Differing(most=5))


def relayered(**fields):
    return attrs.evolve(LAYERED, **fields).check


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
                {"shares": [[1.0], [1.0]], "cell_means": [[[9.0, 0]]] * 2},
                {
                    "shares": [[0.5, 0.5]] * 2,
                    "cell_means": np.repeat(ROWS.means[:, None], 2, axis=1),
                    "plans": [[[0.5, 0.0], [0.25, 0.25]]],
                },
                {
                    "shares": [[0.5, 0.5]] * 2,
                    "cell_means": ROWS.means[:, None] + np.array([[2.0, 0.0], [-2.0, 0.0]]),
                },
            )
        ],
        *[
            Refusal(relayered(**fields), ArgumentError, "moments")
            for fields in (
                {"trials": [[4.0, 1.0]]},
                {"trials": [[5.5, 1.0]]},
                {"trials": [[5.0, 0.0]]},
                {"trials": [[10.0, 0.5]], "squares": [[[40.0]]]},
                {"radii": LAYERED.radii / 2},
                {"layers": LAYERED.layers / 2},
                {"layers": LAYERED.layers[:, ::-1] * [[[[1, 2], [2, 1]]]]},
                {"radii": LAYERED.radii[:1]},
                {"metric": np.eye(3)},
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
