# SPDX-License-Identifier: Apache-2.0
"""Caps of one round by hand and attained, their cost, estimates, and where they stop to bound."""

import ast
import inspect
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

import pufferslice
from pufferslice.learning import TailCap
from pufferslice.learning.plan import recipe_learning_rates
from pufferslice.learning.sampling import (
    Poisson,
    WithoutReplacement,
    WithReplacement,
    poisson_mean_square_ratio,
)
from pufferslice.sensitivity.renyi import gaussian_divergence
from reproduction import caps
from reproduction.caps import (
    AcrossRounds,
    ClippedBlocks,
    across_rounds,
    average_round_cost,
    average_total_squared_cap,
    block_reach,
    block_reach_bound,
    cap_matrix,
    claimed_epsilon,
    claimed_noise_std,
    hoeffding_tail_cap,
    joint_round_cost,
    joint_total_squared_cap,
    largest_round_cost,
    lipschitz_reach,
    matrix_caps,
    mean_square_cap_estimate,
    mean_square_caps,
    minimal_squared_caps,
    mismatch_mean_square_cap,
    projected_variance,
    recipe_noise,
    round_costs,
    simulate_discrepancies,
    squared_caps,
    subsampled_round_costs,
    tail_cap,
)

AXES = np.eye(2)
DIAGONAL = [[0.6, 0.8]]
HALVES = [0.5, 0.5]
TWO_BLOCKS = ClippedBlocks(sizes=[1, 1], clip_norms=[3.0, 5.0])
SEEDS = st.integers(0, 2**32 - 1)


def unit_rows(rng, n_rows, dim):
    rows = rng.standard_normal((n_rows, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class BlockwiseCase:
    """One round of preconditioned SGD on 6 records with blockwise clipping, drawn at random."""

    size = 6

    def __init__(self, seed):
        self.rng = rng = np.random.default_rng(seed)
        self.blocks = ClippedBlocks(sizes=[2, 1, 2], clip_norms=rng.uniform(0.5, 3.0, 3))
        self.preconditioner = rng.standard_normal((5, 5))
        self.directions = unit_rows(rng, 4, 5)

    def clipped(self):
        """Per-example gradients, most of them beyond the clip norm before clipping."""
        grads = self.rng.standard_normal((self.size, 5)) * 5
        factors = np.minimum(1, self.blocks.clip_norms / self.blocks.norms(grads))
        return grads * np.repeat(factors, self.blocks.sizes, axis=1)

    def aligned(self, direction):
        """At the clip norm in every block, along the projection of the slice."""
        along = np.array([self.preconditioner.T @ direction])
        scale = self.blocks.clip_norms / self.blocks.norms(along)
        return (along * np.repeat(scale, self.blocks.sizes, axis=1))[0]

    def shift(self, first, second):
        return -self.preconditioner @ (first.mean(axis=0) - second.mean(axis=0))

    def caps(self, n_differing):
        reach = block_reach(self.directions, self.blocks, preconditioner=self.preconditioner)
        return squared_caps(reach, discrepancy_cap=n_differing, divisor=self.size)


class TestReach:
    def test_blocks(self):
        blocks = ClippedBlocks(sizes=np.array([2, 1]), clip_norms=[1.0, 2.0])
        assert blocks.norms(np.array([[3.0, 4.0, -5.0]])).tolist() == [[5.0, 5.0]]
        assert blocks.dim == 3
        assert blocks == ClippedBlocks(sizes=[2, 1], clip_norms=[1.0, 2.0])
        assert blocks != ClippedBlocks(sizes=[2, 1], clip_norms=[1.0, 2.5])
        by_size = ClippedBlocks.by_size([1, 3], clip_norm=2.0)
        assert by_size.clip_norms == pytest.approx([1.0, math.sqrt(3)], rel=1e-15)

    def test_block_reach_by_hand(self):
        """3 * 0.6 + 5 * 0.8; with A = [[1, 2], [0, 1]], A^T u = (0.6, 2.0): 1.8 + 10."""
        assert block_reach(DIAGONAL, TWO_BLOCKS, preconditioner=AXES) == pytest.approx([5.8])
        skewed = block_reach(DIAGONAL, TWO_BLOCKS, preconditioner=[[1.0, 2.0], [0.0, 1.0]])
        assert skewed == pytest.approx([11.8])

    def test_bound_is_not_below_reach(self, rng):
        """Inside the first layer A turns and shrinks; its operator norm is a Lipschitz constant."""
        directions = unit_rows(rng, 50, 3)
        blocks = ClippedBlocks(sizes=[2, 1], clip_norms=[3.0, 5.0])
        matrix = np.zeros((3, 3))
        matrix[:2, :2], matrix[2, 2] = [[0.3, -0.5], [0.1, 0.2]], 0.7
        exact = block_reach(directions, blocks, preconditioner=matrix)
        norm = np.linalg.norm(matrix[:2, :2], 2)
        bound = block_reach_bound(directions, blocks, lipschitz=[norm, 0.7])
        assert np.all(bound >= exact * (1 - 1e-12))
        assert np.any(bound > 1.05 * exact)
        rates = block_reach(directions, blocks, preconditioner=np.diag([0.1, 0.1, 0.7]))
        assert block_reach_bound(directions, blocks, lipschitz=[0.1, 0.7]) == pytest.approx(rates)


class TestSquaredCaps:
    def test_squared_caps_by_hand(self):
        """The paper's experiment: (2 * 0.2 * 4 * 20 / 512)^2 = (1/16)^2; and two layers."""
        reach = lipschitz_reach([0.2, 0.0], clip_norm=4.0)
        flat = squared_caps(reach, discrepancy_cap=20, divisor=512)
        assert flat == pytest.approx([1 / 256, 0.0], rel=1e-14)
        layers = block_reach(DIAGONAL, TWO_BLOCKS, preconditioner=AXES)
        result = squared_caps(layers, discrepancy_cap=3, divisor=10)
        assert result == pytest.approx([0.36 * 5.8**2], rel=1e-14)
        assert squared_caps([3.0], discrepancy_cap=0, divisor=10).tolist() == [0.0]

    def test_mean_square_caps_by_hand(self):
        """(2 * 0.5 / 4)^2 * 3; the mean square is one number, not the square of a mean."""
        result = mean_square_caps([0.5], mean_square_discrepancy=3.0, divisor=4)
        assert result.tolist() == [3 / 16]

    def test_mean_square_caps_bound_the_mean_over_all_batches(self):
        """All 2-subsets of 4 records, 2 of them differ by the full 2C: the bound is attained."""
        first = np.array([[1.0, 0.0]] * 4)
        second = first * np.array([[-1.0], [-1.0], [1.0], [1.0]])
        batches = [list(batch) for batch in itertools.combinations(range(4), 2)]
        moved = [float((first[b] - second[b]).mean(axis=0)[0]) ** 2 for b in batches]
        mean_square = sum(sum(i < 2 for i in b) ** 2 for b in batches) / len(batches)
        result = mean_square_caps([1.0], mean_square_discrepancy=mean_square, divisor=2)
        assert result == pytest.approx([sum(moved) / len(moved)], rel=1e-15)

    def test_a_global_lipschitz_constant_will_do(self):
        """A step and a projection onto a half plane: 0.5-Lipschitz in norm, but the slice moves
        although the gradients do not differ along it."""
        normal = np.array([0.6, 0.8])

        def update(gradient):
            point = -0.5 * gradient
            return point - max(float(normal @ point), 0.0) * normal

        shift = update(np.array([-1.0, 0.0])) - update(np.array([1.0, 0.0]))
        cap = squared_caps(lipschitz_reach([0.5], clip_norm=1.0), discrepancy_cap=1, divisor=1)
        assert abs(shift[1]) > 0.1
        assert shift[1] ** 2 <= cap[0]

    def test_normalised_by_the_realised_batch_size(self):
        """N=2, one differs, rate 1/2: K/B is 0, 1, 0, 1/2 with equal chance; mean square 5/16."""
        ratio = poisson_mean_square_ratio(Poisson(n_records=2, rate=0.5), 1)
        result = mean_square_caps([1.0], mean_square_discrepancy=ratio, divisor=1)
        assert result == pytest.approx([4 * 5 / 16], rel=1e-14)
        # A batch of the one differing record moves by 2C; the largest size is no divisor.
        worlds = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[-1.0, 0.0], [0.0, 1.0]])
        means = [w[s].sum(axis=0) / n for w in worlds for s, n in ((slice(1), 1), (slice(2), 2))]
        moved = minimal_squared_caps([[1.0, 0.0]], np.subtract(means[:2], means[2:]))
        assert squared_caps([1.0], discrepancy_cap=1, divisor=2)[0] < moved[0] == 4.0
        assert squared_caps([1.0], discrepancy_cap=1.0, divisor=1)[0] == moved[0]


class TestMinimal:
    @given(seed=SEEDS, n_differing=st.integers(0, 4))
    def test_no_clipped_batch_moves_farther_than_its_cap(self, seed, n_differing):
        case = BlockwiseCase(seed)
        worlds = [case.clipped(), case.clipped()]
        worlds[1][n_differing:] = worlds[0][n_differing:]
        moved = minimal_squared_caps(case.directions, [case.shift(*worlds)])
        assert np.all(moved <= case.caps(n_differing) * (1 + 1e-12))

    @given(seed=SEEDS, n_differing=st.integers(1, 4))
    def test_aligned_gradients_attain_the_cap_of_their_slice(self, seed, n_differing):
        """Fails if the 2 is dropped, or the sum over blocks taken after squaring."""
        case = BlockwiseCase(seed)
        shifts = []
        for direction in case.directions:
            first = case.clipped()
            first[:n_differing] = case.aligned(direction)
            second = first.copy()
            second[:n_differing] *= -1
            shifts.append(case.shift(first, second))
        moved = minimal_squared_caps(case.directions, shifts)
        assert moved == pytest.approx(case.caps(n_differing), rel=1e-9)


class TestMatrix:
    def test_by_hand(self):
        """(2 * 1 * 3 / 2)^2 = 9 times A A^T; and (2 * 1 / 1)^2 * (3 + 5) * diag(3, 5)."""
        flat = ClippedBlocks(sizes=[2], clip_norms=[3.0])
        skew = [[1.0, 2.0], [0.0, 1.0]]
        matrix = cap_matrix(flat, preconditioner=skew, discrepancy_cap=1, divisor=2)
        assert matrix == pytest.approx(9 * np.array([[5.0, 2.0], [2.0, 1.0]]), rel=1e-14)
        matrix = cap_matrix(TWO_BLOCKS, preconditioner=AXES, discrepancy_cap=1, divisor=1)
        assert matrix == pytest.approx(np.diag([96.0, 160.0]), rel=1e-14)
        assert matrix_caps(DIAGONAL, [[1.0, 0.5], [0.5, 2.0]]) == pytest.approx([2.12])
        # Symmetric up to rounding, which grows with the entries.
        assert matrix_caps(DIAGONAL, [[1e9, 1e-4], [0.0, 1e9]]) == pytest.approx([1e9])

    @given(seed=SEEDS)
    def test_never_below_the_caps(self, seed):
        case = BlockwiseCase(seed)
        matrix = cap_matrix(
            case.blocks, preconditioner=case.preconditioner, discrepancy_cap=2, divisor=case.size
        )
        assert np.linalg.eigvalsh(matrix)[0] >= -1e-9 * np.abs(matrix).max()
        assert np.all(matrix_caps(case.directions, matrix) >= case.caps(2) * (1 - 1e-9))

    def test_equals_the_caps_of_one_block_and_where_the_blocks_see_the_slice_alike(self, rng):
        flat, directions = ClippedBlocks(sizes=[3], clip_norms=[2.0]), unit_rows(rng, 20, 3)
        even = [[math.sqrt(0.5), math.sqrt(0.5)]]
        for rows, blocks, linear in (
            (directions, flat, rng.standard_normal((3, 3))),
            (even, TWO_BLOCKS, AXES),
        ):
            counts = {"discrepancy_cap": 2, "divisor": 7}
            matrix = cap_matrix(blocks, preconditioner=linear, **counts)
            reach = block_reach(rows, blocks, preconditioner=linear)
            assert matrix_caps(rows, matrix) == pytest.approx(squared_caps(reach, **counts))


def all_round_costs(order, costs, weights):
    """Average, joint and largest."""
    return [
        average_round_cost(costs, weights),
        joint_round_cost(order, costs, weights),
        largest_round_cost(costs, weights),
    ]


class TestOneRound:
    def test_projected_variance(self, rng):
        """0.36 * 4 + 2 * 0.48 * 1 + 0.64 * 9."""
        cov = np.array([[4.0, 1.0], [1.0, 9.0]])
        assert projected_variance(DIAGONAL, cov) == pytest.approx([8.16])
        draws = rng.multivariate_normal([0, 0], cov, size=200_000) @ np.array(DIAGONAL[0])
        # Standard error of a variance from 200 000 draws: 0.32 percent.
        assert draws.var() == pytest.approx(8.16, rel=0.02)

    def test_costs_by_hand(self):
        """4 * 0.5 / (2 * 2) and 4 * 9 / (2 * 6); mean 1.75, joint below, largest 3."""
        costs = round_costs(4, [0.5, 9.0], [2.0, 6.0])
        assert costs.tolist() == [0.5, 3.0]
        joint = math.log((math.exp(1.5) + math.exp(9)) / 2) / 3
        assert all_round_costs(4, costs, HALVES) == pytest.approx([1.75, joint, 3.0], rel=1e-14)
        assert all_round_costs(4, costs, [1.0, 0.0]) == pytest.approx([0.5] * 3, rel=1e-15)

    def test_cost_is_the_divergence_of_the_largest_shift(self):
        shift, std = 1.7, 2.3
        first, second = (np.array(shift), np.array(std**2)), (np.array(0.0), np.array(std**2))
        truth = float(gaussian_divergence(5, first, second))
        assert round_costs(5, [shift**2], [std**2]) == pytest.approx(truth, rel=1e-13)

    @given(
        order=st.floats(1.01, 64),
        slices=st.lists(st.tuples(*[st.floats(1e-3, 1e3)] * 3), min_size=1, max_size=6),
    )
    def test_average_joint_largest_ascend(self, order, slices):
        some_caps, variance, weights = np.array(slices).T
        costs = round_costs(order, some_caps, variance)
        average, joint, largest = all_round_costs(order, costs, weights / weights.sum())
        slack = 1 + 1e-9
        assert average <= joint * slack
        assert joint <= largest * slack

    def test_joint_of_mean_square_caps_would_be_too_small(self):
        """K is 0 or 2 with equal chance, so E[K^2] = 2; reaches 1/2 and 3/2, noise 1, order 4."""
        reach, variance = np.array([0.5, 1.5]), np.ones(2)
        per_draw = [squared_caps(reach, discrepancy_cap=k, divisor=1) for k in (0, 2)]
        by_draw = [round_costs(4, h, variance) for h in per_draw]
        mean_of_joint = np.mean([joint_round_cost(4, costs, HALVES) for costs in by_draw])
        mean_caps = mean_square_caps(reach, mean_square_discrepancy=2.0, divisor=1)
        costs = round_costs(4, mean_caps, variance)
        assert joint_round_cost(4, costs, HALVES) < mean_of_joint
        assert largest_round_cost(costs, HALVES) >= mean_of_joint


class TestSubsampledRound:
    """The round's cost as a log-moment over the batch draw: AR^sa and JR^sa."""

    @staticmethod
    def design_case(order=4.0):
        """Three of eight differing records in batches of four; two slices, unlike noise."""
        design = WithoutReplacement(n_records=8, batch_size=4)
        logs = design.discrepancy_log_probabilities(3)
        by_draw = [squared_caps([0.5, 1.5], discrepancy_cap=k, divisor=4) for k in range(len(logs))]
        return order, by_draw, logs, [0.7, 1.1]

    def test_by_hand(self):
        """Shifts 0 or 1 with chances 3/4 and 1/4, noise 1, order 2: the exponent is the square."""
        case = (2, [[0.0, 0.0], [1.0, 4.0]], np.log([0.75, 0.25]), [1.0, 1.0])
        slices = [math.log(0.75 + 0.25 * math.exp(h)) for h in (1, 4)]
        costs = subsampled_round_costs(*case)
        assert costs == pytest.approx(slices, rel=1e-14)
        average = 0.25 * slices[0] + 0.75 * slices[1]
        joint = math.log(0.75 + 0.25 * (0.25 * math.e + 0.75 * math.exp(4)))
        found = all_round_costs(2, costs, [0.25, 0.75])
        assert found == pytest.approx([average, joint, slices[1]], rel=1e-14)

    def test_joint_is_the_moment_over_draws_of_the_moment_over_slices(self):
        """The paper's order of the two expectations, over all 70 batches one by one."""
        order, _, _, variance = case = self.design_case()
        moments = []
        for batch in itertools.combinations(range(8), 4):
            n_differing = sum(record < 3 for record in batch)
            h = squared_caps([0.5, 1.5], discrepancy_cap=n_differing, divisor=4)
            costs = round_costs(order, h, variance)
            moments.append(np.exp(3 * joint_round_cost(order, costs, HALVES)))
        truth = math.log(np.mean(moments)) / 3
        joint = joint_round_cost(order, subsampled_round_costs(*case), HALVES)
        assert joint == pytest.approx(truth, rel=1e-13)

    @pytest.mark.soundness
    def test_bounds_the_divergence_of_the_mixture_over_draws(self):
        order, by_draw, logs, variance = self.design_case()
        bounds = subsampled_round_costs(order, by_draw, logs, variance)
        chances, shifts = np.exp(logs), np.sqrt(np.array(by_draw))
        for column, (bound, v) in enumerate(zip(bounds, variance, strict=True)):
            std, moves = math.sqrt(v), shifts[:, column]

            def moment(y, std=std, moves=moves):
                p, q = (chances @ stats.norm.pdf(y, s * moves / 2, std) for s in (1, -1))
                return p**order * q ** (1 - order)

            truth = math.log(integrate.quad(moment, -15, 15, epsabs=0)[0]) / (order - 1)
            assert 0.2 * bound < truth <= bound

    @given(
        order=st.floats(1.05, 32),
        draws=st.lists(st.tuples(*[st.floats(0.05, 1)] * 4), min_size=1, max_size=5),
        variance=st.tuples(*[st.floats(0.1, 10)] * 3),
    )
    def test_never_looser_than_the_worst_draw(self, order, draws, variance):
        """lem:sa_never_looser_ARJR, strict where a smaller shift has a chance."""
        chances, *columns = np.array(draws).T
        by_draw, logs = np.array(columns).T, np.log(chances / chances.sum())
        weights, largest = [0.2, 0.3, 0.5], by_draw.max(axis=0)
        smaller = (by_draw < largest - 1e-6).any(axis=0)
        # One slice may dominate a log-moment so far that floats do not show the others.
        for cost, bound, is_strict in zip(
            all_round_costs(order, subsampled_round_costs(order, by_draw, logs, variance), weights),
            all_round_costs(order, round_costs(order, largest, variance), weights),
            (smaller.any(), smaller.all(), False),
            strict=True,
        ):
            assert cost <= bound * (1 + 1e-12)
            if is_strict:
                assert cost < bound
            elif (by_draw == largest).all():
                assert cost == pytest.approx(bound, rel=1e-12)

    def test_draws_without_a_chance_do_not_count(self):
        order, by_draw, logs, variance = self.design_case()
        more = [*by_draw, squared_caps([0.5, 1.5], discrepancy_cap=100, divisor=4)]
        assert subsampled_round_costs(
            order, more, np.append(logs, -math.inf), variance
        ) == pytest.approx(subsampled_round_costs(order, by_draw, logs, variance), rel=1e-15)


class TestFullCovariance:
    """Noise of any covariance, step by step: the caps know it through the slices alone."""

    def test_whitening_the_round_is_the_same_cost(self, rng):
        """Along u the round is N(<shift, u>, u^T Sigma_t u), whatever the rest of Sigma_t is."""
        dim, n_steps, order = 3, 4, 5.0
        rows = unit_rows(rng, 6, dim)
        weights = np.full(6, 1 / 6)
        scaled, rounds = [], []
        for _ in range(n_steps):
            half, shift = rng.normal(size=(dim, dim)), rng.normal(size=dim)
            noise_cov = half @ half.T
            variance = projected_variance(rows, noise_cov)
            caps_of_step = minimal_squared_caps(rows, [shift])
            truths = [
                float(
                    gaussian_divergence(
                        order,
                        (np.array(u @ shift), np.array(u @ noise_cov @ u)),
                        (np.array(0.0), np.array(u @ noise_cov @ u)),
                    )
                )
                for u in rows
            ]
            costs = round_costs(order, caps_of_step, variance)
            assert costs == pytest.approx(truths, rel=1e-10)
            # No slice costs more than the whole output.
            whole = order / 2 * shift @ np.linalg.solve(noise_cov, shift)
            rounds.append(all_round_costs(order, costs, weights))
            assert rounds[-1][2] <= whole * (1 + 1e-9)
            scaled.append(caps_of_step / variance)
        average, _, largest = np.sum(rounds, axis=0)
        for total, of_rounds in (
            (average_total_squared_cap(scaled, weights), average),
            (joint_total_squared_cap(scaled, weights), largest),
        ):
            assert order / 2 * total == pytest.approx(of_rounds, rel=1e-13)


class TestTotals:
    def test_by_hand(self):
        """Average (1/4 + 9/4) + (1 + 6/4); joint 3 + 4; claims 16 * 2 / (2 * 0.25) and back."""
        total = [[1.0, 3.0], [4.0, 2.0]]
        assert average_total_squared_cap(total, [0.25, 0.75]) == 5.0
        assert joint_total_squared_cap(total, [0.25, 0.75]) == 7.0
        assert claimed_epsilon(16, 2.0, noise_std=0.5) == 64.0
        assert claimed_noise_std(16, 64.0, 2.0) == 0.5

    @pytest.mark.soundness
    def test_the_released_slice_shows_the_secret(self, rng):
        """Slice-wise caps do not certify a run. Two rounds in the plane, projected on e1: round 1
        releases (0, x) + noise; round 2 releases M times its second coordinate as the first one.

        Both caps along e1 are 0, but the slice of round 2 is N(Mx, (M^2 + 1) s^2): the cost is
        order * M^2 / (2 (M^2 + 1) s^2) = 7.92. The bound in full dimension, 8, holds.
        """
        order, factor, std, n_runs = 4, 10.0, 0.5, 100_000
        per_round = [minimal_squared_caps([[1.0, 0.0]], [s]) for s in ([0.0, 1.0], [0.0, 0.0])]
        assert joint_total_squared_cap(per_round, [1.0]) == 0.0
        variance = (factor**2 + 1) * std**2
        distributions = [(np.array(factor * x), np.array(variance)) for x in (1.0, 0.0)]
        true_cost = float(gaussian_divergence(order, *distributions))
        assert true_cost == pytest.approx(order * factor**2 / (2 * variance), rel=1e-13)
        assert 7.9 < true_cost < claimed_epsilon(order, 1.0, noise_std=std) == 8.0
        for x, (mean, _) in zip((1.0, 0.0), distributions, strict=True):
            noise = rng.standard_normal((2, n_runs)) * std
            released = factor * (x + noise[0]) + noise[1]
            # Standard errors: 0.016 for the mean, 0.45 percent for the variance.
            assert released.mean() == pytest.approx(float(mean), abs=0.1)
            assert released.var() == pytest.approx(variance, rel=0.03)


class TestRecipe:
    @pytest.mark.parametrize(
        ("batch_size", "peak", "n_steps", "multipliers", "factor"),
        [(512, 0.2, 3920, (865.43, 21.40), 67), (1024, 0.14, 1960, (428.51, 16.16), 137)],
    )
    def test_known_answers(self, batch_size, peak, n_steps, multipliers, factor):
        """N=50,000, 20 records differ, order 16, epsilon 1, 5 percent warm-up."""
        rates = recipe_learning_rates(peak=peak, n_steps=n_steps, n_warmup_steps=n_steps // 20)
        sampling = WithoutReplacement(n_records=50_000, batch_size=batch_size)
        squares = (sampling.discrepancy_cap(20) ** 2, sampling.mean_square_discrepancy(20))
        for square, multiplier in zip(squares, multipliers, strict=True):
            noise = recipe_noise(16, 1.0, rates, squared_discrepancy=square)
            assert noise.noise_multiplier == pytest.approx(multiplier, abs=0.005)
            assert noise.claimed_epsilon == 1.0
            assert round(noise.true_epsilon) == factor
            true = 2 * 16 * n_steps * square / noise.noise_multiplier**2
            assert noise.true_epsilon == pytest.approx(true, rel=1e-12)


class TestTailCap:
    @pytest.mark.parametrize(("tail", "value"), [(0.6, 0), (0.4, 2), (0.21, 2), (0.19, 5)])
    def test_by_hand(self, tail, value):
        """P(> 0) = 0.5, P(> 2) = 0.2, P(> 5) = 0."""
        cap = tail_cap([0, 2, 5], np.log([0.5, 0.3, 0.2]), tail_probability=tail)
        assert cap == TailCap(value=value, tail_probability=tail, failure_probability=0.0)

    @given(st.integers(1, 60), st.floats(0.01, 0.99), st.floats(math.log(1e-250), 0))
    def test_agrees_with_scipy(self, n, share, log_tail):
        counts, tail = np.arange(n + 1), math.exp(log_tail) * 0.999
        value = tail_cap(counts, stats.binom.logpmf(counts, n, share), tail_probability=tail).value
        assert stats.binom.sf(value, n, share) <= tail * (1 + 1e-9)
        assert value == 0 or stats.binom.sf(value - 1, n, share) > tail * (1 - 1e-9)

    def test_closed_forms_by_hand(self):
        """100 * 0.1 + sqrt(50 ln 100) = 10 + 15.17, and 100 * 0.1 * 0.9 + 10^2."""
        chances = {"batch_size": 100, "mismatch_probability": 0.1}
        cap = hoeffding_tail_cap(**chances, tail_probability=0.01)
        assert cap == TailCap(value=25, tail_probability=0.01, failure_probability=0.0)
        chances_of_all = {"batch_size": 3, "mismatch_probability": 1.0}
        assert hoeffding_tail_cap(**chances_of_all, tail_probability=0.01).value == 3
        assert mismatch_mean_square_cap(**chances) == pytest.approx(109.0, rel=1e-15)

    def test_closed_forms_hold_for_different_records(self):
        """Records differ independently, the batch has different records: K is Binomial(B, tau)."""
        sampling, tau = WithoutReplacement(n_records=30, batch_size=8), 0.2
        distribution = mixed_distribution(sampling, tau)
        assert distribution == pytest.approx(stats.binom.pmf(np.arange(31), 8, tau), abs=1e-12)
        square = mismatch_mean_square_cap(batch_size=8, mismatch_probability=tau)
        assert square == pytest.approx(float(distribution @ np.arange(31.0) ** 2), rel=1e-11)
        for tail in (0.3, 0.1, 0.01, 1e-4):
            cap = hoeffding_tail_cap(batch_size=8, mismatch_probability=tau, tail_probability=tail)
            assert distribution[cap.value + 1 :].sum() <= tail

    def test_closed_forms_fail_with_replacement(self):
        """100 draws of 100 records that differ with chance 1/2: the draws share mismatches, so the
        variance is about twice the binomial one; mean square 50 + 9900 (1/4 + 1/400)."""
        distribution = mixed_distribution(WithReplacement(n_records=100, batch_size=100), 0.5)
        cap = hoeffding_tail_cap(batch_size=100, mismatch_probability=0.5, tail_probability=1e-6)
        assert distribution[cap.value + 1 :].sum() > 50e-6
        square = mismatch_mean_square_cap(batch_size=100, mismatch_probability=0.5)
        assert square == 2525.0
        assert float(distribution @ np.arange(101.0) ** 2) == pytest.approx(2549.75, rel=1e-11)


def mixed_distribution(sampling, mismatch_probability):
    """P(K = k), k = 0.., when each record differs independently and the batch is then drawn."""
    n = sampling.n_records
    distribution = np.zeros(max(n, sampling.batch_size) + 1)
    for differing, chance in enumerate(stats.binom.pmf(np.arange(n + 1), n, mismatch_probability)):
        chances = np.exp(sampling.discrepancy_log_probabilities(differing))
        distribution[: len(chances)] += chance * chances
    return distribution


class TestSimulation:
    def test_counts_by_hand(self):
        """Repeated draws count repeatedly, records may be rows, a missing number differs."""
        first = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, math.nan]])
        second = np.array([[1.0, 2.0], [3.0, 4.5], [5.0, math.nan]])
        batches = iter([[0], [1], [1, 1, 0], [2], [0, 1, 2], []])
        counts = simulate_discrepancies(
            lambda rng: (first, second), lambda rng: next(batches), n_replicates=6, seed=1
        )
        assert counts.tolist() == [0, 1, 2, 1, 2, 0]
        words = ["cat", "dog"], ["cat", "cat"]
        counts = simulate_discrepancies(
            lambda rng: words, lambda rng: [0, 1], n_replicates=1, seed=1
        )
        assert counts.tolist() == [1]

    @pytest.mark.statistical
    def test_has_the_distribution_of_the_sampling_design(self, seed):
        """30 records, 4 differ, 10 without replacement; the seed decides."""

        def simulated(seed):
            return simulate_discrepancies(
                lambda rng: (np.zeros(30), np.arange(30) < 4),
                lambda rng: rng.choice(30, size=10, replace=False),
                n_replicates=5_000,
                seed=seed,
            )

        counts = simulated(seed)
        assert np.array_equal(counts, simulated(seed))
        assert not np.array_equal(counts, simulated(seed + 1))
        times = np.bincount(counts, minlength=5)
        pvalue = {
            n: stats.chisquare(times, 5_000 * stats.hypergeom.pmf(np.arange(5), 30, 4, n)).pvalue
            for n in (9, 10, 11)
        }
        assert pvalue[10] > 1e-6
        assert max(pvalue[9], pvalue[11]) < 1e-6


class TestEstimates:
    COUNTS = (0, 1, 1, 2, 4)
    """Mean square 22/5."""

    def test_mean_square_by_hand(self):
        """22/5 + 5^2 sqrt(ln(2/0.1) / 10)."""
        cap = mean_square_cap_estimate(self.COUNTS, discrepancy_cap=5, failure_probability=0.1)
        assert cap == pytest.approx(4.4 + 25 * math.sqrt(math.log(20) / 10), rel=1e-15)
        large = mean_square_cap_estimate([2**40], discrepancy_cap=2**40, failure_probability=0.5)
        assert large == pytest.approx(2.0**80 * (1 + math.sqrt(math.log(4) / 2)), rel=1e-14)

    def test_several_instances(self):
        """The failure probability is split over two instances; the larger estimate counts."""
        square = mean_square_cap_estimate(
            np.zeros(5, dtype=int), self.COUNTS, discrepancy_cap=5, failure_probability=0.1
        )
        value = 4.4 + 25 * math.sqrt(math.log(40) / 10)
        assert square == pytest.approx(value, rel=1e-15)

    @pytest.mark.statistical
    def test_is_above_the_truth_as_often_as_it_says(self, rng):
        """K = 4 with chance 1/2, else 0: mean square 8, Hoeffding nearly tight. 2000 repetitions.

        The paper's term allows gamma / 2 (it is one-sided); without it half of them fall below.
        """
        draws = 4 * rng.integers(0, 2, size=(2000, 50))
        values = [
            mean_square_cap_estimate(d, discrepancy_cap=4, failure_probability=0.2) for d in draws
        ]
        assert np.mean(np.array(values) < 8) <= 0.1
        assert np.mean((draws**2).mean(axis=1) < 8) > 0.3

    def test_a_mean_square_over_the_data_certifies_nothing(self):
        """Half of the pairs of datasets differ in all 10 records, half in none. For the first the
        mean square over batches is 100; the estimate tends to the average over pairs, 50."""
        counts = 10 * np.random.default_rng(3).integers(0, 2, 20_000)
        cap = mean_square_cap_estimate(counts, discrepancy_cap=10, failure_probability=1e-3)
        assert cap < 54


class TestAcrossRounds:
    def test_tails_and_failures_are_added_separately(self):
        left = across_rounds(
            tail_probabilities=np.full(100, 1e-4), failure_probabilities=[0.01, 0.02]
        )
        assert left.delta == pytest.approx(0.01, rel=1e-14)
        assert left.failure_probability == pytest.approx(0.03, rel=1e-14)
        left = across_rounds(tail_probabilities=[1e-6], failure_probabilities=[])
        assert left == AcrossRounds(delta=1e-6, failure_probability=0.0)


@pytest.mark.soundness
def test_no_claim_comes_from_caps():
    """The library imports nothing of the reproduction, and this module says what it is for."""
    files = list(Path(pufferslice.__file__).parent.rglob("*.py"))
    assert len(files) > 100
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in getattr(node, "names", []) if hasattr(alias, "name")]
            imported = [getattr(node, "module", None) or "", *names]
            assert not any(name.startswith("reproduction") for name in imported), path
    assert not {"Guarantee", "Certificate", "TrainingPlan"} & set(vars(caps))
    assert "Nothing here leads to a certificate" in " ".join(caps.__doc__.split())
    for name, function in inspect.getmembers(caps, inspect.isfunction):
        if function.__module__ == caps.__name__ and name[0] != "_":
            words = ("Use:", "Guarantee:", "Needs:", "Source:")
            assert any(word in inspect.getdoc(function) for word in words), name
