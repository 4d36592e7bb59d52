# SPDX-License-Identifier: Apache-2.0
r"""The whole output: one table of coupled distances, three claims, and the noise for each.

With distances $r_i$ of masses $m_i$ under any coupling of two distributions, and noise of standard
deviation $\sigma$, joint convexity of f-divergences bounds all three:

* Rényi: $\frac{1}{\alpha-1} \ln \sum_i m_i \exp(\alpha(\alpha-1) r_i^2 / (2\sigma^2))$;
* delta: $\sum_i m_i\, \delta_N(r_i / \sigma, \epsilon)$, with $\delta_N$ that of two Gaussians;
* total variation: $\sum_i m_i (2\Phi(r_i / (2\sigma)) - 1)$, and from it right guesses.

Each claim takes the coupling that is best for it. Gaussian distributions need none.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above, check_at_least
from pufferslice._core.search import SAFETY, raise_until, smallest_safe
from pufferslice.calibration.calibrate import (
    LEAST_NOISE,
    full_cost,
    full_costs,
    full_deltas,
    largest_shift,
)
from pufferslice.calibration.epsilon_delta import (
    CLAIM_ORDERS,
    SMALLEST_DIRECT_DELTA,
    gaussian_delta,
    smallest_epsilon,
)
from pufferslice.calibration.guarantee import (
    ApproximateGuarantee,
    Claim,
    Guarantee,
    GuessGuarantee,
)
from pufferslice.calibration.guessing import (
    full_variation,
    released_variation,
    right_guesses,
)
from pufferslice.calibration.guessing import released_delta as delta_with_integers
from pufferslice.calibration.noise import DRAW_DELTA, INTEGER_DELTA
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.sensitivity import Full
from pufferslice.sensitivity.tables import MatchingTables

ROUNDING_DELTA: Final = 2.0**-46
"""Total variation, per coordinate, between an integer Gaussian around a rounded point and the
rounded real Gaussian around the point itself: at most (1/2) / (sqrt(2 pi) 2^44), plus less than
2^-80 for rounding the density. Accounted where the divergence is that of the real mechanism."""

_DELTA_ERROR: Final = 2.0**-49
_UP: Final = 1 + 2.0**-50


def implementation_delta(full: Full) -> float:
    """Total variation between the sampled release and the one the bounds are about."""
    exact = isinstance(full.differences, GaussianPairs)
    return full.dim * (DRAW_DELTA + (ROUNDING_DELTA if exact else INTEGER_DELTA))


def released_delta(full: Full, epsilon: float, noise_std: float) -> float:
    """Bound on the delta of what is released, at `epsilon`, the largest over instances."""
    return delta_curve(full, noise_std)(epsilon)


def delta_curve(full: Full, noise_std: float) -> Callable[[float], float]:
    r"""`released_delta` as a function of epsilon: what does not depend on it is computed once.

    The distance $\tau$ of the sampled noise from the ideal one adds $(1 + e^\epsilon)\tau$.
    Gaussian distributions of equal spread: exact. Of other spreads: the part of the spreads is
    added, or the best of many orders is taken.
    """
    check_above(0, noise_std=noise_std)
    if full.differences is None or isinstance(full.differences, RowDifference):
        return lambda _epsilon: 1.0
    tau = implementation_delta(full)
    if isinstance(full.differences, GaussianPairs):
        ideal = _gaussian_curve(full, full.differences, noise_std)
    else:
        ideal = partial(_coupled_deltas, full, full.differences, noise_std)

    def delta_at(epsilon: float) -> float:
        check_at_least(0, epsilon=epsilon)
        return min(1.0, delta_with_integers(float(ideal(epsilon).max()), epsilon, tau) * _UP)

    return delta_at


def _gaussian_curve(
    full: Full, pairs: GaussianPairs, noise_std: float
) -> Callable[[float], Floats]:
    shifts, variations = pairs.parts(noise_std)
    farthest = shifts.max(axis=1) * _UP
    orders = np.array(CLAIM_ORDERS)[:, None]
    costs = np.array([full_costs(full, order, noise_std) for order in CLAIM_ORDERS]) * SAFETY
    terms = (orders - 1) * np.log1p(-1 / orders) - np.log(orders)

    def ideal(epsilon: float) -> Floats:
        split = pairs.averaged(gaussian_delta(farthest, epsilon) + _DELTA_ERROR + variations)
        logs = (orders - 1) * (costs - epsilon) + terms
        converted = np.exp(np.minimum(logs.min(axis=0), 0.0)) * _UP
        return np.asarray(np.minimum(split, converted))

    return ideal


def _coupled_deltas(full: Full, tables: MatchingTables, noise_std: float, epsilon: float) -> Floats:
    at = np.full((tables.n_instances, tables.n_slices), float(epsilon))
    deltas = full_deltas(full, tables, at, noise_std).min(axis=1)
    return np.asarray(deltas * (1 - full.missing) + full.missing)


def released_guess(full: Full, noise_std: float) -> float:
    """Bound on right guesses between two protected, equally likely secrets; 1 if there is none."""
    variation = full_variation(full, noise_std)
    return right_guesses(released_variation(variation, implementation_delta(full)))


def unsliced_cost(full: Full, claim: Claim, noise_std: float) -> float:
    """What the noise costs of a claim about the whole output: to be at most the claim's bound.

    The divergence at the claim's order, the smallest epsilon at its delta, or the right guesses.
    """
    if isinstance(claim, Guarantee):
        return full_cost(full, claim.order, noise_std)
    if isinstance(claim, ApproximateGuarantee):
        return smallest_epsilon(delta_curve(full, noise_std), claim.delta, first=claim.epsilon)
    return released_guess(full, noise_std)


def calibrate_unsliced(target: Claim, full: Full) -> float:
    """Smallest noise standard deviation, in whitened coordinates, that meets the target.

    Guarantee: `unsliced_cost(result) <= target.bound` was evaluated and holds; 0 if all
    distributions are equal.
    """
    if full.differences is None:
        raise CalibrationError(
            "samples without a public range do not bound the unsliced divergence; give the query a "
            "range, or claim along slices"
        )
    if isinstance(full.differences, RowDifference) and not isinstance(target, GuessGuarantee):
        raise CalibrationError(
            f"second moments of rows bound right guesses, and not {target}; claim "
            "Guarantee.guess(at_most=...)"
        )
    if isinstance(target, Guarantee) and full.missing.any():
        raise CalibrationError(
            "these bands leave out the tails, so they bound no Rényi divergence; give the query a "
            "public range, or claim (epsilon, delta) or a share of guesses"
        )
    if isinstance(target, ApproximateGuarantee) and target.delta < SMALLEST_DIRECT_DELTA:
        raise ArgumentError(
            f"delta must be at least {SMALLEST_DIRECT_DELTA:g} for a claim about the whole output, "
            f"got {target.delta!r}"
        )
    if np.all(full.differences.equal):
        return 0.0

    def cost_at(std: float) -> float:
        if isinstance(target, Guarantee):
            return full_cost(full, target.order, std)
        if isinstance(target, ApproximateGuarantee):
            return released_delta(full, target.epsilon, std)
        return 2 * released_guess(full, std) - 1

    limit, start = target.bound, largest_shift(full.differences)
    least, tau = 0.0, implementation_delta(full)
    if isinstance(target, Guarantee):
        start *= math.sqrt(target.order / (2 * target.epsilon))
    elif isinstance(target, ApproximateGuarantee):
        limit, least = target.delta, delta_with_integers(0.0, target.epsilon, tau)
    else:
        limit, least = 2 * target.at_most - 1, released_variation(0.0, tau)
    if not least < limit:
        raise CalibrationError(
            f"{target} allows less than the sampler's own error, {tau:.3g} in total variation, "
            "whatever the noise. Claim a larger delta, a smaller epsilon (which implies this "
            "claim), or more right guesses"
        )
    if not start > 0:
        raise CalibrationError(
            "the distributions differ by less than the rounding of whitened coordinates; use "
            "shape='isotropic', or a range and scales of the size of the differences"
        )
    if cost_at(start * LEAST_NOISE) <= limit:
        # The distributions themselves hide the secret; the noise only covers the grid.
        return start * LEAST_NOISE
    noise_std = smallest_safe(cost_at, limit, start=start) * SAFETY
    return raise_until(lambda std: unsliced_cost(full, target, std) <= target.bound, noise_std)
