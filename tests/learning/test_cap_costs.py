# SPDX-License-Identifier: Apache-2.0
"""What caps cost, where they stop being a bound, and the paper's recipe with its true cost."""

import ast
import inspect
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pufferslice
from pufferslice.errors import ArgumentError
from pufferslice.learning import caps
from pufferslice.learning.caps import (
    ClippedBlocks,
    average_round_cost,
    average_total_squared_cap,
    block_projected_variance,
    block_reach,
    claimed_epsilon,
    claimed_noise_std,
    joint_round_cost,
    joint_total_squared_cap,
    largest_round_cost,
    lipschitz_reach,
    mean_square_caps,
    minimal_squared_caps,
    recipe_noise,
    round_costs,
    squared_caps,
)
from pufferslice.learning.plan import recipe_learning_rates
from pufferslice.learning.sampling import WithoutReplacement
from pufferslice.sensitivity.renyi import aggregate_joint, gaussian_divergence

HALVES = [0.5, 0.5]

positive = st.floats(1e-3, 1e3)


class TestOneRound:
    def test_costs_by_hand(self):
        """4 * 0.5 / (2 * 2) and 4 * 9 / (2 * 6)."""
        assert round_costs(4, [0.5, 9.0], [2.0, 6.0]).tolist() == [0.5, 3.0]

    def test_cost_is_the_divergence_of_the_largest_shift(self):
        shift, std = 1.7, 2.3
        first, second = (np.array(shift), np.array(std**2)), (np.array(0.0), np.array(std**2))
        assert round_costs(5, [shift**2], [std**2]) == pytest.approx(
            float(gaussian_divergence(5, first, second)), rel=1e-13
        )

    def test_aggregates_by_hand(self):
        """Costs 0.5 and 3 at order 4: mean 1.75; ln((e^1.5 + e^9) / 2) / 3; largest 3."""
        given_caps = (4, [0.5, 9.0], [2.0, 6.0], HALVES)
        assert average_round_cost(*given_caps) == pytest.approx(1.75, rel=1e-15)
        joint = math.log((math.exp(1.5) + math.exp(9)) / 2) / 3
        assert joint_round_cost(*given_caps) == pytest.approx(joint, rel=1e-14)
        assert largest_round_cost(*given_caps) == 3.0

    def test_slices_without_weight_do_not_count(self):
        given_caps = (4, [0.5, 9.0], [2.0, 6.0], [1.0, 0.0])
        for cost in (average_round_cost, joint_round_cost, largest_round_cost):
            assert cost(*given_caps) == pytest.approx(0.5, rel=1e-15)

    @given(
        order=st.floats(1.01, 64),
        slices=st.lists(st.tuples(positive, positive, positive), min_size=1, max_size=6),
    )
    def test_average_joint_largest_ascend(self, order, slices):
        some_caps, variance, weights = np.array(slices).T
        given_caps = (order, some_caps, variance, weights / weights.sum())
        slack = 1 + 1e-9
        assert average_round_cost(*given_caps) <= joint_round_cost(*given_caps) * slack
        assert joint_round_cost(*given_caps) <= largest_round_cost(*given_caps) * slack

    def test_joint_of_mean_square_caps_would_be_too_small(self):
        """K is 0 or 2 with equal chance, so E[K^2] = 2; reaches 1/2 and 3/2, noise 1, order 4."""
        reach, variance = np.array([0.5, 1.5]), np.ones(2)
        per_draw = [squared_caps(reach, discrepancy_cap=k, divisor=1) for k in (0, 2)]
        mean_of_joint = np.mean([joint_round_cost(4, h, variance, HALVES) for h in per_draw])
        mean_caps = mean_square_caps(reach, mean_square_discrepancy=2.0, divisor=1)
        joint_of_mean = aggregate_joint(4, round_costs(4, mean_caps, variance), np.array(HALVES))
        assert joint_of_mean < mean_of_joint
        assert largest_round_cost(4, mean_caps, variance, HALVES) >= mean_of_joint

    def test_layers_with_their_own_noise(self):
        """Along (0.6, 0.8): cap (2 * 1/2)^2 * 5.8^2, variance 0.36 * 4 + 0.64 * 9, order 2."""
        blocks = ClippedBlocks(sizes=[1, 1], clip_norms=[3.0, 5.0])
        directions = [[0.6, 0.8]]
        reach = block_reach(directions, blocks, preconditioner=np.eye(2))
        costs = round_costs(
            2,
            squared_caps(reach, discrepancy_cap=1, divisor=2),
            block_projected_variance(directions, blocks, noise_stds=[2.0, 3.0]),
        )
        assert costs == pytest.approx([5.8**2 / 7.2], rel=1e-14)

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ((1, [1.0], [1.0]), "order must be a finite number greater than 1"),
            ((2, [-1.0], [1.0]), "smallest_cap must be a finite number and at least 0, got -1.0"),
            ((2, [math.nan], [1.0]), "caps must be finite"),
            ((2, [], []), r"caps must have shape \(n_directions\) and not be empty, got \(0,\)"),
            ((2, [[1.0]], [[1.0]]), r"caps must have shape \(n_directions\)"),
            ((2, [1.0, 1.0], [1.0]), r"variance must have one entry per cap, 2; got shape \(1,\)"),
            ((2, [1.0], [0.0]), "smallest_variance must be a finite number greater than 0"),
            ((2, [1.0], [math.inf]), "variance must be finite"),
            ((2, [1e300], [1e-300]), "costs must be finite"),
        ],
    )
    def test_refusals(self, arguments, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            round_costs(*arguments)

    @pytest.mark.parametrize("cost", [average_round_cost, joint_round_cost, largest_round_cost])
    def test_weights_must_fit(self, cost):
        with pytest.raises(ArgumentError, match=r"weights must have shape \(2,\), got \(1,\)"):
            cost(2, [1.0, 1.0], [1.0, 1.0], [1.0])


class TestTotals:
    CAPS = ((1.0, 3.0), (4.0, 2.0))

    def test_by_hand(self):
        """Average (1/4 + 9/4) + (1 + 6/4); joint 3 + 4."""
        assert average_total_squared_cap(self.CAPS, [0.25, 0.75]) == 5.0
        assert joint_total_squared_cap(self.CAPS, [0.25, 0.75]) == 7.0
        assert joint_total_squared_cap(self.CAPS, [1.0, 0.0]) == 5.0

    def test_noise_of_each_step_and_slice(self):
        """Each cap over its own variance; the total cost at order 4 is 4/2 times the total."""
        scaled = np.array(self.CAPS) / np.array([[2.0, 3.0], [8.0, 1.0]])
        assert average_total_squared_cap(scaled, HALVES) == 2.0
        assert 4 / 2 * joint_total_squared_cap(scaled, HALVES) == 6.0

    def test_claims_by_hand(self):
        """16 * 2 / (2 * 0.25) and back."""
        assert claimed_epsilon(16, 2.0, noise_std=0.5) == 64.0
        assert claimed_noise_std(16, 64.0, 2.0) == 0.5
        assert claimed_noise_std(16, 64.0, 0.0) == 0.0

    @pytest.mark.parametrize(
        ("call", "complaint"),
        [
            (
                lambda: average_total_squared_cap([1.0], [1.0]),
                r"caps must have shape \(n_steps, n_directions\) and not be empty, got \(1,\)",
            ),
            (lambda: joint_total_squared_cap(np.empty((0, 1)), [1.0]), "not be empty"),
            (lambda: joint_total_squared_cap([[1.0]], HALVES), "weights must have shape"),
            (lambda: joint_total_squared_cap([[1e308]] * 2, [1.0]), "total_squared_cap must be"),
            (lambda: claimed_epsilon(1, 1.0, noise_std=1), "order must be"),
            (lambda: claimed_epsilon(2, -1.0, noise_std=1), "total_squared_cap must be"),
            (lambda: claimed_epsilon(2, 1.0, noise_std=0), "noise_std must be"),
            (lambda: claimed_epsilon(2, 1e300, noise_std=1e-100), "epsilon must be finite"),
            (lambda: claimed_noise_std(2, 0.0, 1.0), "epsilon must be"),
            (lambda: claimed_noise_std(0.5, 1.0, 1.0), "order must be"),
            (lambda: claimed_noise_std(2, 1.0, math.nan), "total_squared_cap must be"),
            (lambda: claimed_noise_std(2, 1e-200, 1e200), "variance must be finite"),
        ],
    )
    def test_refusals(self, call, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            call()


@pytest.mark.soundness
class TestCapsAlongSlicesDoNotCertifyARun:
    """Two rounds in the plane, seen along e1 only. Round 1 releases (0, x) + noise; round 2 takes
    the second coordinate of round 1, M times, and releases it as the first one, + noise."""

    ORDER, FACTOR, NOISE_STD = 4, 10.0, 0.5
    SLICE = ((1.0, 0.0),)

    def rounds(self, x, history):
        return np.array([0.0, x]), np.array([self.FACTOR * history[1], 0.0])

    def test_the_caps_see_nothing(self, rng):
        histories = rng.standard_normal((100, 2)) * 10
        shifts = np.array(
            [np.subtract(self.rounds(1.0, h), self.rounds(0.0, h)) for h in histories]
        )
        per_round = [minimal_squared_caps(self.SLICE, shifts[:, t]) for t in range(2)]
        assert joint_total_squared_cap(per_round, [1.0]) == 0.0
        assert claimed_epsilon(self.ORDER, 0.0, noise_std=self.NOISE_STD) == 0.0

    def test_the_released_slice_shows_the_secret(self, rng):
        """N(Mx, (M^2 + 1) s^2): order * M^2 / (2 (M^2 + 1) s^2) = 7.92, not 0."""
        spread = (self.FACTOR**2 + 1) * self.NOISE_STD**2
        distributions = [(np.array(self.FACTOR * x), np.array(spread)) for x in (1.0, 0.0)]
        true_cost = float(gaussian_divergence(self.ORDER, *distributions))
        by_hand = self.ORDER * self.FACTOR**2 / (2 * (self.FACTOR**2 + 1) * self.NOISE_STD**2)
        assert true_cost == pytest.approx(by_hand, rel=1e-13)
        assert true_cost > 7.9
        for x, (mean, variance) in zip((1.0, 0.0), distributions, strict=True):
            seen = self.released(x, 100_000, rng)
            # Standard errors: 0.016 for the mean, 0.45 percent for the variance.
            assert seen.mean() == pytest.approx(float(mean), abs=0.1)
            assert seen.var() == pytest.approx(float(variance), rel=0.03)

    def test_the_full_dimension_bound_holds(self):
        """Round 1 moves by 1 in the plane, round 2 by 0 given its history."""
        bound = claimed_epsilon(self.ORDER, 1.0, noise_std=self.NOISE_STD)
        by_hand = self.ORDER * self.FACTOR**2 / (2 * (self.FACTOR**2 + 1) * self.NOISE_STD**2)
        assert bound == 8.0
        assert by_hand < bound

    def released(self, x, n_runs, rng):
        """First coordinate of round 2."""
        seen = np.empty(n_runs)
        noise = rng.standard_normal((n_runs, 2, 2)) * self.NOISE_STD
        for run in range(n_runs):
            first = self.rounds(x, (0.0, 0.0))[0] + noise[run, 0]
            seen[run] = self.rounds(x, first)[1][0] + noise[run, 1, 0]
        return seen


class TestRecipe:
    def test_schedule_by_hand(self):
        rates = recipe_learning_rates(peak=0.2, n_steps=3920, n_warmup_steps=196)
        assert len(rates) == 3920
        assert rates[0] == pytest.approx(0.2 / 196)
        assert rates[195] == rates[196] == 0.2
        middle = 196 + (3920 - 196) // 2
        assert rates[middle] == pytest.approx(0.1, rel=1e-12)
        last = 0.1 * (1 + math.cos(math.pi * 3723 / 3724))
        assert rates[-1] == pytest.approx(last, rel=1e-9)

    def test_no_warm_up(self):
        rates = recipe_learning_rates(peak=1.0, n_steps=2, n_warmup_steps=0)
        assert rates == pytest.approx([1.0, 0.5])

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

    def test_long_hand_with_clip_norm_and_batch_size(self):
        """h_t = (2 eta_t C K / L)^2, sigma^2 = alpha H / (2 epsilon), multiplier sigma L / C."""
        rates = recipe_learning_rates(peak=0.2, n_steps=3920, n_warmup_steps=196)
        reach = lipschitz_reach(rates, clip_norm=4.0)
        total = float(squared_caps(reach, discrepancy_cap=20, divisor=512).sum())
        std = claimed_noise_std(16, 8.0, total)
        noise = recipe_noise(16, 8.0, rates, squared_discrepancy=400)
        assert noise.noise_multiplier == pytest.approx(std * 512 / 4, rel=1e-13)

    @given(scale=st.floats(0.01, 10), epsilon=st.floats(0.01, 100))
    def test_understatement_depends_on_the_learning_rates_alone(self, scale, epsilon):
        rates = scale * np.array([1.0, 2.0])
        noise = recipe_noise(3, epsilon, rates, squared_discrepancy=7.0)
        assert noise.understatement == pytest.approx(2 / (5 * scale**2), rel=1e-12)

    def test_learning_rate_one_states_the_truth(self):
        noise = recipe_noise(16, 2.0, np.ones(10), squared_discrepancy=4.0)
        assert noise.true_epsilon == pytest.approx(2.0, rel=1e-14)

    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [
            ({"peak": 0.0}, "peak must be"),
            ({"n_steps": 0}, "n_steps must be"),
            ({"n_warmup_steps": -1}, "n_warmup_steps must be"),
            ({"n_warmup_steps": 10}, "n_warmup_steps must be less than n_steps 10, got 10"),
        ],
    )
    def test_schedule_refusals(self, changes, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            recipe_learning_rates(**{"peak": 1.0, "n_steps": 10, "n_warmup_steps": 2} | changes)

    @pytest.mark.parametrize(
        ("rates", "square", "complaint"),
        [
            ([], 1.0, "learning_rates must have one entry per step, at least one"),
            ([[0.1]], 1.0, "learning_rates must have one entry per step"),
            ([math.nan], 1.0, "learning_rates must be finite"),
            ([0.1, 0.0], 1.0, "smallest_learning_rate must be a finite number greater than 0"),
            ([0.1], 0.0, "squared_discrepancy must be a finite number greater than 0"),
        ],
    )
    def test_recipe_refusals(self, rates, square, complaint):
        with pytest.raises(ArgumentError, match=complaint):
            recipe_noise(16, 1.0, rates, squared_discrepancy=square)


MODULES = (caps, caps, caps)


class TestNothingHereLeadsToACertificate:
    def test_what_issues_or_follows_a_claim_does_not_import_these_modules(self):
        package = Path(pufferslice.__file__).parent
        issuing = [
            *package.glob("certificate/**/*.py"),
            *package.glob("torch/**/*.py"),
            *package.glob("sgd/plan*.py"),
            *package.glob("sgd/accountants*.py"),
            *package.glob("releasing.py"),
        ]
        assert issuing
        for path in issuing:
            assert not imported(path) & forbidden(), path

    @pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
    def test_they_make_no_claim(self, module):
        assert not {"Guarantee", "Certificate", "Plan"} & set(vars(module))

    @pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
    def test_each_says_what_it_is_good_for(self, module):
        assert "Nothing here leads to a certificate" in " ".join(module.__doc__.split())
        for name, function in public_functions(module):
            words = ("Use:", "Guarantee:", "Needs:", "Source:")
            assert any(word in inspect.getdoc(function) for word in words), name


def public_functions(module):
    functions = inspect.getmembers(module, inspect.isfunction)
    return [(n, f) for n, f in functions if f.__module__ == module.__name__ and n[0] != "_"]


def forbidden():
    """The modules, and what the package may pass on from them."""
    names = {name for module in MODULES for name, _ in public_functions(module)}
    return {module.__name__ for module in MODULES} | {
        f"pufferslice.learning.{name}" for name in names
    }


def imported(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names
