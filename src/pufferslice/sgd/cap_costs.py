# SPDX-License-Identifier: Apache-2.0
"""What caps cost: one round given its history, the paper's totals, and the paper's noise recipe.

The cost of one round is a bound. The sums over rounds and the recipe are the paper's own numbers,
for comparison: slice-wise caps do not certify a run, and the recipe's noise is in the wrong place.
Nothing here leads to a certificate.
"""

import math
from typing import final

import attrs
import numpy as np

from pufferslice.arrays import Floats, locked
from pufferslice.checks import (
    check_above,
    check_at_least,
    check_finite,
    check_probabilities,
)
from pufferslice.errors import ArgumentError
from pufferslice.renyi import aggregate_average, aggregate_joint
from pufferslice.sgd.caps import lipschitz_reach, normalised_mean_square_caps


@np.errstate(over="ignore")
def round_costs(order: float, caps: Floats, variance: Floats) -> Floats:
    """Bound on the divergence of one round along each slice: order * cap / (2 * variance).

    Guarantee: given the history. From squared caps, for every batch draw; from mean-square caps,
    on average over batch draws.
    Needs: `variance` of the noise along each slice (`projected_variance`), in the same space as
    the caps: the update, or the mean gradient if the caps were made with step size 1.
    Source: lemma:gaussian_SRE, lem:sa_gaussian_slice.

    >>> round_costs(4, [0.5, 1.0], [2.0, 2.0]).tolist()
    [0.5, 1.0]
    """
    check_above(1, order=order)
    values, variances = _caps(caps, n_axes=1), locked(variance)
    if variances.shape != values.shape:
        msg = f"variance must have one entry per cap, {values.size}; got shape {variances.shape}"
        raise ArgumentError(msg)
    check_finite(variance=variances)
    check_above(0, smallest_variance=float(variances.min()))
    costs = np.asarray(order * values / (2 * variances))
    check_finite(costs=costs)
    return costs


def average_round_cost(order: float, caps: Floats, variance: Floats, weights: Floats) -> float:
    """Cost of one round given its history, average over the slices.

    Use: one round, with caps of either kind; `round_costs` says what each means.
    Source: lemma:gaussian_SRE, lem:sa_gaussian_slice, def:ave_srd.
    """
    costs = round_costs(order, caps, variance)
    return float(aggregate_average(costs, _weights(weights, costs)))


def joint_round_cost(
    order: float, squared_caps: Floats, variance: Floats, weights: Floats
) -> float:
    """Cost of one round given its history, log-moment over the slices.

    Use: one round, from squared caps only. From mean-square caps the log-moment of the means is
    *below* the mean of the log-moments; take `largest_round_cost` there.
    Source: lemma:gaussian_SRE, def:joint_srd.
    """
    costs = round_costs(order, squared_caps, variance)
    return float(aggregate_joint(order, costs, _weights(weights, costs)))


def largest_round_cost(order: float, caps: Floats, variance: Floats, weights: Floats) -> float:
    """Cost of one round given its history, the largest slice: the paper's rule for joint claims.

    Use: one round. At least the average and the joint cost, with squared caps or with mean-square
    caps of the closed form (one discrepancy shared by all slices).
    Source: thm:HUC_SRPP_SGD, thm:msHUC_SRPP_SGD.
    """
    costs = round_costs(order, caps, variance)
    return float(np.max(costs[_weights(weights, costs) > 0]))


def average_total_squared_cap(caps: Floats, weights: Floats) -> float:
    """Caps of shape (n_steps, n_directions), weighted over the slices and summed over the steps.

    Caps may first be divided by the projected variance of their step, for noise that is not the
    same everywhere; then order / 2 times the result is the paper's total.
    Use: comparison with the paper. The sum over rounds bounds no run for caps along slices.
    Source: thm:HUC_SRPP_SGD, thm:msHUC_SRPP_SGD.
    """
    values = _caps(caps, n_axes=2)
    return _total(aggregate_average(values, _weights(weights, values)))


def joint_total_squared_cap(caps: Floats, weights: Floats) -> float:
    """Caps of shape (n_steps, n_directions): the largest slice of each step, summed over the steps.

    Use: as `average_total_squared_cap`, comparison with the paper.
    Source: thm:HUC_SRPP_SGD, thm:msHUC_SRPP_SGD.
    """
    values = _caps(caps, n_axes=2)
    return _total(values[:, _weights(weights, values) > 0].max(axis=1))


def claimed_epsilon(order: float, total_squared_cap: float, *, noise_std: float) -> float:
    """What the paper's rule says that a run costs: order * total / (2 * noise_std^2).

    Use: comparison with the paper; the accountants give the cost of a run.
    Needs: `noise_std` in the space of the caps (`round_costs`).
    Source: thm:HUC_SRPP_SGD, thm:msHUC_SRPP_SGD.
    """
    check_above(1, order=order)
    check_at_least(0, total_squared_cap=total_squared_cap)
    check_above(0, noise_std=noise_std)
    epsilon = order / 2 * (total_squared_cap / noise_std / noise_std)
    check_finite(epsilon=np.array(epsilon))
    return epsilon


def claimed_noise_std(order: float, epsilon: float, total_squared_cap: float) -> float:
    """The noise that the paper's rule asks for, in the space of the caps; see `claimed_epsilon`.

    Use: comparison with the paper; never the calibration of a run.
    Source: thm:HUC_SRPP_SGD, thm:msHUC_SRPP_SGD.
    """
    check_above(1, order=order)
    check_above(0, epsilon=epsilon)
    check_at_least(0, total_squared_cap=total_squared_cap)
    variance = order / 2 * (total_squared_cap / epsilon)
    check_finite(variance=np.array(variance))
    return math.sqrt(variance)


@final
@attrs.frozen(kw_only=True)
class RecipeNoise:
    """The noise of the paper's experiments, with what it claims and what it costs."""

    noise_multiplier: float
    """Noise standard deviation on the sum of clipped gradients, over the clip norm."""
    claimed_epsilon: float
    """What the recipe says."""
    true_epsilon: float
    """What the run costs: the worst-case or the mean-square number of the accountants."""

    @property
    def understatement(self) -> float:
        """How many times the claim the true cost is."""
        return self.true_epsilon / self.claimed_epsilon


def recipe_noise(
    order: float, epsilon: float, learning_rates: Floats, *, squared_discrepancy: float
) -> RecipeNoise:
    r"""The noise multiplier of the paper's experiments for a claimed `epsilon`, and its true cost.

    The recipe calibrates noise on the *update*, from caps that contain the learning rates, and then
    adds that noise, times batch size over clip norm, to the *gradient*. There the learning rates
    shrink nothing, so the true cost is $T / \sum_t \eta_t^2$ times the claim.
    `squared_discrepancy` is the square of the every-draw cap (then the cost is the worst-case one),
    or the mean square over batch draws (then it is the mean-square one).
    Use: comparison, always with the true cost beside it; never a plan for training.
    Source: thm:HUC_SRPP_SGD, thm:msHUC_SRPP_SGD, as used in the appendix on experiments.
    """
    check_above(0, squared_discrepancy=squared_discrepancy)
    rates = locked(learning_rates)
    if rates.ndim != 1 or rates.size == 0:
        msg = f"learning_rates must have one entry per step, at least one; got {rates.shape}"
        raise ArgumentError(msg)
    check_finite(learning_rates=rates)
    check_above(0, smallest_learning_rate=float(rates.min()))
    total_on_updates = _uniform_total(rates, squared_discrepancy)
    multiplier = claimed_noise_std(order, epsilon, total_on_updates)
    total_on_gradients = _uniform_total(np.ones_like(rates), squared_discrepancy)
    return RecipeNoise(
        noise_multiplier=multiplier,
        claimed_epsilon=float(epsilon),
        true_epsilon=claimed_epsilon(order, total_on_gradients, noise_std=multiplier),
    )


def _uniform_total(lipschitz: Floats, squared_discrepancy: float) -> float:
    """Total cap of a flat clip norm. Clip norm and batch size cancel, so both are 1 here."""
    reach = lipschitz_reach(lipschitz, clip_norm=1.0)
    return _total(normalised_mean_square_caps(reach, mean_square_ratio=squared_discrepancy))


@np.errstate(over="ignore")
def _total(caps: Floats) -> float:
    total = float(caps.sum())
    check_finite(total_squared_cap=np.array(total))
    return total


def _caps(caps: Floats, *, n_axes: int) -> Floats:
    values = locked(caps)
    if values.ndim != n_axes or values.size == 0:
        wanted = ("n_directions", "n_steps, n_directions")[n_axes - 1]
        msg = f"caps must have shape ({wanted}) and not be empty, got {values.shape}"
        raise ArgumentError(msg)
    check_finite(caps=values)
    check_at_least(0, smallest_cap=float(values.min()))
    return values


def _weights(weights: Floats, costs: Floats) -> Floats:
    values = locked(weights)
    check_probabilities(length=costs.shape[-1], weights=values)
    return values
