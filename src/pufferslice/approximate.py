# SPDX-License-Identifier: Apache-2.0
"""Noise for a sliced (epsilon, delta) claim, and back; mass that gaps leave out goes into delta."""

from typing import Final

import attrs
import numpy as np
from scipy.special import logsumexp

from pufferslice.arrays import Floats
from pufferslice.calibration import LEAST_NOISE, Envelope, Slices, grid_margin, largest_shift
from pufferslice.checks import check_above, check_one_of
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.gaps import GapTables
from pufferslice.guarantee import ApproximateGuarantee
from pufferslice.renyi import aggregate_average, moment_rate
from pufferslice.search import SAFETY, raise_until, smallest_safe
from pufferslice.views import (
    SMALLEST_DIRECT_DELTA,
    gaussian_delta,
    improved_term,
    smallest_epsilons,
)

ORDERS: Final = tuple(1 + 1.4**k for k in range(-6, 26))
"""Any order gives a valid epsilon; the best of these is taken where the direct way ends."""

_ROUGH_ENTRIES: Final = 60_000
_BELOW: Final = 1 - 2.0**-50
_ABOVE: Final = 1 + 1e-12
_DELTA_ERROR: Final = 2.0**-49
"""More than the float error of a difference of two probabilities."""


def approximate_cost(
    slices: Slices, claim: ApproximateGuarantee, noise_std: float, envelope: Envelope
) -> float:
    r"""Smallest epsilon found at the claim's delta for this noise, the largest over instances.

    With C the levels of the gap tables and tau the mass that they leave out, along a slice u

    $$\delta_u(\epsilon) = \int_C \delta_{N}(gap(t)/\sigma, \epsilon)\, dt,$$

    not renormalised, with $\delta_N$ that of two Gaussians at this distance. Joint: the smallest
    epsilon at which $\sum_u \omega_u \delta_u \le \delta - \tau$. Average: the mean of the smallest
    epsilons at which each $\delta_u \le \delta - \tau$.

    Guarantee: the noisy outputs satisfy the claim with the returned epsilon, if the gaps of the
    tables are at least the true ones.
    Reason: hockey-stick divergences are jointly convex, also for the parts of both mixtures over
    C; the rest has mass tau. Never above the Rényi conversion `renyi_cost`, of which it is the
    integrand, and that is what is used where delta - tau is too small for floats.
    Source: def:ave_spp, def:joint_spp.
    """
    check_one_of(("transport", "worst_gap"), envelope=envelope)
    check_above(0, noise_std=noise_std)
    tables = _tables(slices)
    if slices.are_equal:
        return 0.0
    left = _delta_left(slices, claim.delta)
    if left.min() < SMALLEST_DIRECT_DELTA:
        return renyi_cost(slices, claim, noise_std, envelope)

    def deltas(epsilons: Floats) -> Floats:
        return _deltas(slices, tables, epsilons, (noise_std, envelope))

    weights = slices.profile.weights
    if claim.notion == "average":
        found = smallest_epsilons(deltas, np.ones((len(left), len(weights))), left[:, None])
        return float(aggregate_average(found, weights)[~tables.equal].max())

    def joint(epsilons: Floats) -> Floats:
        each = np.repeat(epsilons[:, None], len(weights), axis=1)
        return aggregate_average(deltas(each), weights) * _ABOVE

    found = smallest_epsilons(joint, np.full(len(left), claim.epsilon), left)
    return float(found[~tables.equal].max())


def renyi_cost(
    slices: Slices, claim: ApproximateGuarantee, noise_std: float, envelope: Envelope
) -> float:
    r"""As `approximate_cost`, by converting Rényi moments at the best order of a grid.

    $$H_u = \int_C \exp\Big(\frac{\alpha(\alpha-1)\,gap(t)^2}{2\sigma^2}\Big) dt,$$
    not renormalised. Joint: $\sum_u \omega_u H_u$ is converted at $\delta - \tau$. Average: each
    slice is converted at $\delta - \tau$, never below 0, and the mean of their epsilons is taken.

    Reason: pointwise $(p - e^\epsilon q)_+ \le e^{-(\alpha-1)\epsilon} (\alpha-1)^{\alpha-1}
    \alpha^{-\alpha} p^\alpha q^{1-\alpha}$, also for measures with less than the whole mass.
    """
    check_one_of(("transport", "worst_gap"), envelope=envelope)
    tables, left = _tables(slices), _delta_left(slices, claim.delta)
    found = _epsilons(slices, tables, left, (claim.notion, noise_std, envelope))
    best = found.min(axis=0)
    if claim.notion == "average":
        best = aggregate_average(best, slices.profile.weights)
    return float(best[~tables.equal].max())


def calibrate_approximate(
    target: ApproximateGuarantee, slices: Slices, envelope: Envelope
) -> float:
    """Smallest noise standard deviation found, in scaled coordinates, that gives the target.

    Guarantee: `approximate_cost(result) <= target.epsilon` was evaluated and holds. 0 if all laws
    are equal.
    """
    tables = _tables(slices)
    if slices.are_equal:
        return 0.0
    start = largest_shift(tables, slices.profile.weights)
    if not start > 0:
        msg = (
            "no slice of the profile shows any difference between the laws, though the laws differ;"
            " noise 0 would protect nothing. Use a profile that sees the difference"
        )
        raise CalibrationError(msg)

    def cost_of(seen: Slices, std: float) -> float:
        return approximate_cost(seen, target, std, envelope)

    if cost_of(slices, start * LEAST_NOISE) <= target.epsilon:
        return start * LEAST_NOISE
    coarse = attrs.evolve(slices, seen=tables.coarsened(_ROUGH_ENTRIES))
    rough = smallest_safe(lambda std: cost_of(coarse, std), target.epsilon, start=start)
    noise_std = smallest_safe(lambda std: cost_of(slices, std), target.epsilon, start=rough)
    return raise_until(lambda std: cost_of(slices, std) <= target.epsilon, noise_std * SAFETY)


def _deltas(
    slices: Slices, tables: GapTables, epsilons: Floats, said: tuple[float, Envelope]
) -> Floats:
    """Delta of the covered levels along each slice, shape (n_instances, n_slices)."""
    noise_std, envelope = said
    margin = grid_margin(slices.profile.dim, noise_std)
    if envelope == "transport":
        found = tables.deltas(epsilons, noise_std, margin)
    else:
        found = gaussian_delta((tables.worst() + margin) / noise_std, epsilons) + _DELTA_ERROR
        found[tables.equal] = 0.0
    return np.asarray(found * (1 - slices.missing)[:, None])


def _tables(slices: Slices) -> GapTables:
    if not isinstance(slices.seen, GapTables):
        msg = (
            "an (epsilon, delta) claim is calibrated on gaps, which Gaussian laws do not have; "
            "certify a Rényi claim and read its (epsilon, delta) views"
        )
        raise ArgumentError(msg)
    if slices.sphere is not None:
        msg = (
            "the sphere as profile does not go with an (epsilon, delta) claim; use a FiniteProfile"
        )
        raise ArgumentError(msg)
    return slices.seen


def _delta_left(slices: Slices, delta: float) -> Floats:
    """What is left of delta for the covered levels, per instance, rounded down."""
    left = np.asarray((delta - slices.missing) * _BELOW)
    if not (left > 0).all():
        msg = (
            f"the samples leave out levels of mass {float(slices.missing.max()):.3g}, which must be"
            f" below delta {delta:g}; take more samples, or claim a larger delta"
        )
        raise ArgumentError(msg)
    return left


def _epsilons(
    slices: Slices, tables: GapTables, left: Floats, said: tuple[str, float, Envelope]
) -> Floats:
    """Epsilon by order, instance and, for the average notion, slice."""
    notion, noise_std, envelope = said
    margin = grid_margin(slices.profile.dim, noise_std)
    found = []
    for order in ORDERS:
        rate = moment_rate(order, noise_std)
        if envelope == "transport":
            logs = tables.log_moments(rate, margin)
        else:
            with np.errstate(over="ignore"):
                logs = rate * (tables.worst() + margin) ** 2
        logs = logs + np.log1p(-slices.missing)[:, None]
        terms = np.array([improved_term(order, float(delta)) for delta in left])
        if notion == "joint":
            # Weights are shares of their sum; room for its rounding.
            logs = logsumexp(logs, b=slices.profile.weights, axis=1) + (_ABOVE - 1)
            found.append(np.maximum(0.0, logs / (order - 1) + terms))
        else:
            found.append(np.maximum(0.0, logs / (order - 1) + terms[:, None]))
    return np.array(found)
