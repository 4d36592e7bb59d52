# SPDX-License-Identifier: Apache-2.0
"""Caps of one round: by hand, against clipped gradients, and attained by the worst of them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferslice.errors import ArgumentError
from pufferslice.learning.caps import (
    ClippedBlocks,
    block_projected_variance,
    block_reach,
    block_reach_bound,
    cap_matrix,
    lipschitz_reach,
    matrix_caps,
    mean_square_caps,
    minimal_squared_caps,
    normalised_mean_square_caps,
    normalised_squared_caps,
    projected_variance,
    squared_caps,
)
from pufferslice.learning.sampling import Poisson, poisson_mean_square_ratio

AXES = np.eye(2)
DIAGONAL = [[0.6, 0.8]]
TWO_BLOCKS = ClippedBlocks(sizes=[1, 1], clip_norms=[3.0, 5.0])


class TestClippedBlocks:
    def test_norms_are_taken_block_by_block(self):
        blocks = ClippedBlocks(sizes=np.array([2, 1]), clip_norms=[1.0, 2.0])
        assert blocks.norms(np.array([[3.0, 4.0, -5.0], [0.0, 0.0, 0.0]])).tolist() == [
            [5.0, 5.0],
            [0.0, 0.0],
        ]
        assert blocks.sizes == (2, 1)
        assert blocks.dim == 3
        assert blocks == ClippedBlocks(sizes=[2, 1], clip_norms=[1.0, 2.0])
        assert blocks != ClippedBlocks(sizes=[2, 1], clip_norms=[1.0, 2.5])

    def test_by_size(self):
        blocks = ClippedBlocks.by_size([1, 3], clip_norm=2.0)
        assert blocks.clip_norms == pytest.approx([1.0, math.sqrt(3)], rel=1e-15)

    @pytest.mark.parametrize(
        ("sizes", "clip_norms", "complaint"),
        [
            ([], [], "one entry per block, at least one; got 0 sizes"),
            ([1, 2], [1.0], r"got 2 sizes and clip_norms of shape \(1,\)"),
            ([1, 0], [1.0, 1.0], "size must be a whole number and at least 1, got 0"),
            ([1.5], [1.0], "size must be a whole number and at least 1, got 1.5"),
            ([1, 1], [1.0, 0.0], "clip_norm must be a finite number greater than 0, got 0.0"),
            ([1, 1], [1.0, math.nan], "clip_norm must be a finite number greater than 0, got nan"),
        ],
    )
    def test_refusals(self, sizes, clip_norms, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            ClippedBlocks(sizes=sizes, clip_norms=clip_norms)

    @pytest.mark.parametrize(
        ("sizes", "clip_norm", "complaint"),
        [
            ([], 1.0, "at least one"),
            ([2, -1], 1.0, "size must be a whole number"),
            ([2, 1], 0.0, "clip_norm must be a finite number greater than 0"),
        ],
    )
    def test_refusals_by_size(self, sizes, clip_norm, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            ClippedBlocks.by_size(sizes, clip_norm=clip_norm)


class TestReach:
    def test_lipschitz_reach_by_hand(self):
        assert lipschitz_reach([0.2, 0.0], clip_norm=4.0).tolist() == [0.8, 0.0]

    def test_block_reach_by_hand(self):
        """3 * 0.6 + 5 * 0.8; with A = [[1, 2], [0, 1]], A^T u = (0.6, 2.0): 1.8 + 10."""
        assert block_reach(DIAGONAL, TWO_BLOCKS, preconditioner=AXES) == pytest.approx([5.8])
        skewed = block_reach(DIAGONAL, TWO_BLOCKS, preconditioner=[[1.0, 2.0], [0.0, 1.0]])
        assert skewed == pytest.approx([11.8])

    def test_one_block_reaches_the_clip_norm_in_every_direction(self, rng):
        directions = unit_rows(rng, 5, 3)
        flat = ClippedBlocks(sizes=[3], clip_norms=[4.0])
        reach = block_reach(directions, flat, preconditioner=0.2 * np.eye(3))
        assert reach == pytest.approx(lipschitz_reach(np.full(5, 0.2), clip_norm=4.0))

    def test_bound_equals_reach_for_one_learning_rate_per_layer(self, rng):
        directions = unit_rows(rng, 5, 3)
        blocks = ClippedBlocks(sizes=[2, 1], clip_norms=[3.0, 5.0])
        exact = block_reach(directions, blocks, preconditioner=np.diag([0.1, 0.1, 0.7]))
        assert block_reach_bound(directions, blocks, lipschitz=[0.1, 0.7]) == pytest.approx(exact)

    def test_bound_is_not_below_reach(self, rng):
        """Inside the first layer A turns and shrinks; its operator norm is a Lipschitz constant."""
        directions = unit_rows(rng, 50, 3)
        blocks = ClippedBlocks(sizes=[2, 1], clip_norms=[3.0, 5.0])
        matrix = np.zeros((3, 3))
        matrix[:2, :2], matrix[2, 2] = [[0.3, -0.5], [0.1, 0.2]], 0.7
        exact = block_reach(directions, blocks, preconditioner=matrix)
        bound = block_reach_bound(
            directions, blocks, lipschitz=[np.linalg.norm(matrix[:2, :2], 2), 0.7]
        )
        assert np.all(bound >= exact * (1 - 1e-12))
        assert np.any(bound > 1.05 * exact)

    @pytest.mark.parametrize(
        ("lipschitz", "clip_norm", "complaint"),
        [
            ([-0.1], 1.0, "lipschitz must not be negative; the smallest is -0.1"),
            ([math.inf], 1.0, "lipschitz must be finite; 1 of 1"),
            ([0.1], 0.0, "clip_norm must be a finite number greater than 0"),
            ([1e300], 1e300, "too large for a float"),
        ],
    )
    def test_lipschitz_refusals(self, lipschitz, clip_norm, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            lipschitz_reach(lipschitz, clip_norm=clip_norm)

    @pytest.mark.parametrize(
        ("directions", "preconditioner", "complaint"),
        [
            ([[1.0, 1.0]], AXES, "directions must be unit vectors; row 0"),
            ([[1.0, 0.0, 0.0]], AXES, "directions must have 2 coordinates, got 3"),
            (DIAGONAL, np.eye(3), r"preconditioner must have shape \(2, 2\), got \(3, 3\)"),
            (DIAGONAL, math.nan * AXES, "preconditioner must be finite; 4 of 4"),
            (DIAGONAL, 1e308 * np.ones((2, 2)), "too large for a float"),
        ],
    )
    def test_block_refusals(self, directions, preconditioner, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            block_reach(directions, TWO_BLOCKS, preconditioner=preconditioner)

    def test_bound_refuses_another_number_of_blocks(self):
        with pytest.raises(ArgumentError, match=r"lipschitz must have one entry per block, 2; got"):
            block_reach_bound(DIAGONAL, TWO_BLOCKS, lipschitz=[1.0])


class TestCaps:
    def test_squared_caps_by_hand(self):
        """The paper's experiment: (2 * 0.2 * 4 * 20 / 512)^2 = (1/16)^2."""
        reach = lipschitz_reach([0.2], clip_norm=4.0)
        assert squared_caps(reach, discrepancy_cap=20, divisor=512) == pytest.approx(
            [1 / 256], rel=1e-14
        )

    def test_mean_square_caps_by_hand(self):
        """(2 * 0.5 / 4)^2 * 3; the mean square is one number, not the square of a mean."""
        caps = mean_square_caps([0.5], mean_square_discrepancy=3.0, divisor=4)
        assert caps.tolist() == [3 / 16]

    def test_per_layer_caps_by_hand(self):
        """(2 * 3 / 10)^2 * (3 * 0.6 + 5 * 0.8)^2."""
        reach = block_reach(DIAGONAL, TWO_BLOCKS, preconditioner=AXES)
        caps = squared_caps(reach, discrepancy_cap=3, divisor=10)
        assert caps == pytest.approx([0.36 * 5.8**2], rel=1e-14)
        mean_square = mean_square_caps(reach, mean_square_discrepancy=0.7, divisor=10)
        assert mean_square == pytest.approx([0.04 * 0.7 * 5.8**2], rel=1e-14)

    def test_nothing_differs_nothing_moves(self):
        assert squared_caps([3.0], discrepancy_cap=0, divisor=10).tolist() == [0.0]
        assert mean_square_caps([3.0], mean_square_discrepancy=0.0, divisor=10).tolist() == [0.0]

    def test_flat_caps_are_the_same_in_all_directions_and_equal_the_full_bound(self, rng):
        """Learning rate 0.2, clip norm 4, 3 of 10 differ: the update moves by at most 0.48."""
        flat = ClippedBlocks(sizes=[3], clip_norms=[4.0])
        reach = block_reach(unit_rows(rng, 9, 3), flat, preconditioner=0.2 * np.eye(3))
        caps = squared_caps(reach, discrepancy_cap=3, divisor=10)
        assert caps == pytest.approx(np.full(9, 0.48**2), rel=1e-13)

    def test_a_global_lipschitz_constant_will_do(self, rng):
        """The update is a projection onto a half plane after a step: 0.5-Lipschitz in norm, though
        not along the slice: there it moves although the gradients do not differ."""
        normal = np.array([0.6, 0.8])

        def update(gradient):
            point = -0.5 * gradient
            return point - max(float(normal @ point), 0.0) * normal

        gradients = [np.array([-1.0, 0.0]), np.array([1.0, 0.0])]
        shift = update(gradients[0]) - update(gradients[1])
        cap = squared_caps(lipschitz_reach([0.5], clip_norm=1.0), discrepancy_cap=1, divisor=1)
        assert abs(shift[1]) > 0.1
        assert shift[1] ** 2 <= cap[0]

    def test_poisson_ratio_by_hand(self):
        """N=2, one differs, rate 1/2: K/B is 0, 1, 0, 1/2 with equal chance; mean square 5/16."""
        ratio = poisson_mean_square_ratio(Poisson(n_records=2, rate=0.5), 1)
        caps = normalised_mean_square_caps([1.0], mean_square_ratio=ratio)
        assert caps == pytest.approx([4 * 5 / 16], rel=1e-14)
        assert normalised_squared_caps([1.0], ratio_cap=0.5).tolist() == [1.0]

    def test_the_largest_batch_size_is_not_a_divisor(self):
        """Divided by the realised size, a batch of the one differing record alone moves by 2C; the
        cap with the largest size, 2 records, allows half of that."""
        mean_gradients = [
            (batch.sum(axis=0) / max(len(batch), 1))
            for world in (np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[-1.0, 0.0], [0.0, 1.0]]))
            for batch in (world[:0], world[:1], world[1:], world)
        ]
        shifts = np.subtract(mean_gradients[:4], mean_gradients[4:])
        moved = minimal_squared_caps([[1.0, 0.0]], shifts)
        assert moved.tolist() == [4.0]
        assert squared_caps([1.0], discrepancy_cap=1, divisor=2)[0] < moved[0]
        assert normalised_squared_caps([1.0], ratio_cap=1.0)[0] == moved[0]

    @pytest.mark.parametrize(
        ("call", "complaint"),
        [
            (lambda: squared_caps([1.0], discrepancy_cap=-1, divisor=2), "discrepancy_cap must be"),
            (lambda: squared_caps([1.0], discrepancy_cap=1, divisor=0), "divisor must be a finite"),
            (
                lambda: mean_square_caps([1.0], mean_square_discrepancy=math.nan, divisor=2),
                "mean_square_discrepancy must be a finite number and at least 0, got nan",
            ),
            (
                lambda: mean_square_caps([1.0], mean_square_discrepancy=1, divisor=-2),
                "divisor must be a finite number greater than 0, got -2",
            ),
            (lambda: normalised_squared_caps([1.0], ratio_cap=-0.1), "ratio_cap must be"),
            (
                lambda: normalised_mean_square_caps([1.0], mean_square_ratio=-1.0),
                "mean_square_ratio must be",
            ),
            (lambda: squared_caps([-1.0], discrepancy_cap=1, divisor=2), "reach must not be nega"),
            (lambda: squared_caps([1e200], discrepancy_cap=1, divisor=2), "too large for a float"),
            (lambda: squared_caps(["a"], discrepancy_cap=1, divisor=2), "expected numbers"),
        ],
    )
    def test_refusals(self, call, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            call()


class TestMinimal:
    def test_by_hand(self):
        """Along (0.6, 0.8) the shifts move 0.6, -1.0 and 0."""
        shifts = [[1.0, 0.0], [-1.0, -0.5], [0.8, -0.6]]
        assert minimal_squared_caps(DIAGONAL, shifts) == pytest.approx([1.0], rel=1e-15)
        assert minimal_squared_caps(AXES, shifts) == pytest.approx([1.0, 0.36], rel=1e-15)

    @given(seed=st.integers(0, 2**32 - 1), n_differing=st.integers(0, 4))
    def test_no_clipped_batch_moves_farther_than_its_cap(self, seed, n_differing):
        case = BlockwiseCase(np.random.default_rng(seed))
        worlds = [case.clipped(), case.clipped()]
        worlds[1][n_differing:] = worlds[0][n_differing:]
        moved = minimal_squared_caps(case.directions, [case.shift(*worlds)])
        assert np.all(moved <= case.caps(n_differing) * (1 + 1e-12))

    @given(seed=st.integers(0, 2**32 - 1), n_differing=st.integers(1, 4))
    def test_aligned_gradients_attain_the_cap_of_their_slice(self, seed, n_differing):
        """Fails if the 2 is dropped, or the sum over blocks taken after squaring."""
        case = BlockwiseCase(np.random.default_rng(seed))
        shifts = []
        for direction in case.directions:
            first, second = case.clipped(), None
            first[:n_differing] = case.aligned(direction)
            second = first.copy()
            second[:n_differing] *= -1
            shifts.append(case.shift(first, second))
        moved = minimal_squared_caps(case.directions, shifts)
        assert moved == pytest.approx(case.caps(n_differing), rel=1e-9)

    @pytest.mark.parametrize(
        ("shifts", "complaint"),
        [
            ([1.0, 0.0], r"shifts must have shape \(n_shifts, dim\), both at least 1; got \(2,\)"),
            (np.empty((0, 2)), "shifts must have shape"),
            ([[math.nan, 1.0]], "shifts must be finite; 1 of 2"),
            ([[1.0, 0.0, 0.0]], "directions must have 3 coordinates, got 2"),
            ([[1e200, 0.0]], "too large for a float"),
        ],
    )
    def test_refusals(self, shifts, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            minimal_squared_caps(DIAGONAL, shifts)


class TestMatrix:
    def test_one_block_by_hand(self):
        """(2 * 1 * 3 / 2)^2 = 9 times A A^T."""
        flat = ClippedBlocks(sizes=[2], clip_norms=[3.0])
        matrix = cap_matrix(
            flat, preconditioner=[[1.0, 2.0], [0.0, 1.0]], discrepancy_cap=1, divisor=2
        )
        assert matrix == pytest.approx(9 * np.array([[5.0, 2.0], [2.0, 1.0]]), rel=1e-14)

    def test_two_blocks_by_hand(self):
        """(2 * 1 / 1)^2 * (3 + 5) * diag(3, 5)."""
        matrix = cap_matrix(TWO_BLOCKS, preconditioner=AXES, discrepancy_cap=1, divisor=1)
        assert matrix == pytest.approx(np.diag([96.0, 160.0]), rel=1e-14)

    def test_one_block_gives_the_caps_themselves(self, rng):
        flat, directions = ClippedBlocks(sizes=[3], clip_norms=[2.0]), unit_rows(rng, 20, 3)
        preconditioner = rng.standard_normal((3, 3))
        counts = {"discrepancy_cap": 2, "divisor": 7}
        matrix = cap_matrix(flat, preconditioner=preconditioner, **counts)
        reach = block_reach(directions, flat, preconditioner=preconditioner)
        assert matrix_caps(directions, matrix) == pytest.approx(squared_caps(reach, **counts))

    @given(seed=st.integers(0, 2**32 - 1))
    def test_never_below_the_caps(self, seed):
        case = BlockwiseCase(np.random.default_rng(seed))
        matrix = cap_matrix(
            case.blocks, preconditioner=case.preconditioner, discrepancy_cap=2, divisor=case.size
        )
        assert np.linalg.eigvalsh(matrix)[0] >= -1e-9 * np.abs(matrix).max()
        assert np.all(matrix_caps(case.directions, matrix) >= case.caps(2) * (1 - 1e-9))

    def test_touches_the_caps_where_the_blocks_see_the_slice_alike(self):
        even = [[math.sqrt(0.5), math.sqrt(0.5)]]
        matrix = cap_matrix(TWO_BLOCKS, preconditioner=AXES, discrepancy_cap=1, divisor=1)
        reach = block_reach(even, TWO_BLOCKS, preconditioner=AXES)
        caps = squared_caps(reach, discrepancy_cap=1, divisor=1)
        assert matrix_caps(even, matrix) == pytest.approx(caps, rel=1e-14)

    def test_matrix_caps_by_hand(self):
        """0.36 * 1 + 2 * 0.48 * 0.5 + 0.64 * 2."""
        assert matrix_caps(DIAGONAL, [[1.0, 0.5], [0.5, 2.0]]) == pytest.approx([2.12])

    @pytest.mark.parametrize(
        ("matrix", "complaint"),
        [
            ([[1.0, 0.5], [0.4, 1.0]], "matrix must be symmetric"),
            ([[1.0, 2.0], [2.0, 1.0]], "no negative eigenvalue"),
            (np.eye(3), r"matrix must have shape \(2, 2\), got \(3, 3\)"),
            (1.0, r"matrix must have shape \(2, 2\), got \(\)"),
            ([[math.inf, 0.0], [0.0, 1.0]], "matrix must be finite"),
        ],
    )
    def test_refusals(self, matrix, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            matrix_caps(DIAGONAL, matrix)

    def test_cap_matrix_refuses_overflow(self):
        with pytest.raises(ArgumentError, match="too large for a float"):
            cap_matrix(TWO_BLOCKS, preconditioner=1e200 * AXES, discrepancy_cap=1, divisor=1)


class TestNoise:
    def test_projected_variance_by_hand(self):
        """0.36 * 4 + 2 * 0.48 * 1 + 0.64 * 9."""
        assert projected_variance(DIAGONAL, [[4.0, 1.0], [1.0, 9.0]]) == pytest.approx([8.16])

    def test_block_noise_is_the_diagonal_covariance(self, rng):
        directions = unit_rows(rng, 6, 3)
        blocks = ClippedBlocks(sizes=[2, 1], clip_norms=[3.0, 5.0])
        got = block_projected_variance(directions, blocks, noise_stds=[2.0, 3.0])
        assert got == pytest.approx(projected_variance(directions, np.diag([4.0, 4.0, 9.0])))

    def test_noise_has_that_variance(self, rng):
        cov = np.array([[4.0, 1.0], [1.0, 9.0]])
        draws = rng.multivariate_normal([0, 0], cov, size=200_000) @ np.array(DIAGONAL[0])
        # Standard error of a variance from 200 000 draws: 0.32 percent.
        assert draws.var() == pytest.approx(projected_variance(DIAGONAL, cov)[0], rel=0.02)

    def test_a_slice_without_noise_is_refused(self):
        with pytest.raises(ArgumentError, match="positive variance along every slice; 1 of 2"):
            projected_variance(AXES, np.diag([1.0, 0.0]))
        with pytest.raises(ArgumentError, match="positive variance along every slice; 1 of 2"):
            block_projected_variance(AXES, TWO_BLOCKS, noise_stds=[0.0, 1.0])

    @pytest.mark.parametrize(
        ("stds", "complaint"),
        [
            ([1.0], r"noise_stds must have one entry per block, 2; got \(1,\)"),
            ([1.0, -1.0], "noise_stds must not be negative"),
            ([1e200, 1.0], "too large for a float"),
        ],
    )
    def test_refusals(self, stds, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            block_projected_variance(AXES, TWO_BLOCKS, noise_stds=stds)

    def test_covariance_refusal_names_the_covariance(self):
        with pytest.raises(ArgumentError, match="noise_cov must be symmetric"):
            projected_variance(AXES, [[1.0, 0.5], [0.0, 1.0]])


class BlockwiseCase:
    """One round of preconditioned SGD on 6 records with blockwise clipping, drawn at random."""

    size = 6

    def __init__(self, rng):
        self.rng = rng
        self.blocks = ClippedBlocks(sizes=[2, 1, 2], clip_norms=rng.uniform(0.5, 3.0, 3))
        self.preconditioner = rng.standard_normal((5, 5))
        self.directions = unit_rows(rng, 4, 5)

    def clipped(self):
        """Per-example gradients, most of them beyond the clip norm before clipping."""
        grads = self.rng.standard_normal((self.size, 5)) * 5
        norms = self.blocks.norms(grads)
        factors = np.minimum(1, self.blocks.clip_norms / norms)
        return grads * np.repeat(factors, self.blocks.sizes, axis=1)

    def aligned(self, direction):
        """At the clip norm in every block, along what the slice sees of the block."""
        seen = np.array([self.preconditioner.T @ direction])
        scale = self.blocks.clip_norms / self.blocks.norms(seen)
        return (seen * np.repeat(scale, self.blocks.sizes, axis=1))[0]

    def shift(self, first, second):
        """Difference of the two updates."""
        return -self.preconditioner @ (first.mean(axis=0) - second.mean(axis=0))

    def caps(self, n_differing):
        reach = block_reach(self.directions, self.blocks, preconditioner=self.preconditioner)
        return squared_caps(reach, discrepancy_cap=n_differing, divisor=self.size)


def test_mean_square_caps_bound_the_mean_over_all_batches():
    """All 2-subsets of 4 records, 2 of them differ by the full 2C: the bound is met exactly."""
    first = np.array([[1.0, 0.0]] * 4)
    second = first * np.array([[-1.0], [-1.0], [1.0], [1.0]])
    batches = [list(batch) for batch in itertools.combinations(range(4), 2)]
    moved = [float((first[b] - second[b]).mean(axis=0)[0]) ** 2 for b in batches]
    mean_square = sum(sum(i < 2 for i in b) ** 2 for b in batches) / len(batches)
    caps = mean_square_caps([1.0], mean_square_discrepancy=mean_square, divisor=2)
    assert caps == pytest.approx([sum(moved) / len(moved)], rel=1e-15)


def unit_rows(rng, n_rows, dim):
    rows = rng.standard_normal((n_rows, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
