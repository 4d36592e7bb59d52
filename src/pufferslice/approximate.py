# SPDX-License-Identifier: Apache-2.0
"""Noise for a sliced (epsilon, delta) claim, and back; mass that gaps leave out goes into delta."""

from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np
from scipy.special import logsumexp

from pufferslice.arrays import Floats
from pufferslice.calibration import Envelope, Slices, grid_margin, largest_shift
from pufferslice.checks import check_above, check_one_of
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.gaps import GapTables
from pufferslice.guarantee import ApproximateGuarantee
from pufferslice.renyi import aggregate_average, moment_rate
from pufferslice.search import SAFETY, raise_until, smallest_safe
from pufferslice.views import improved_term

ORDERS: Final = tuple(1 + 1.4**k for k in range(-6, 26))
"""Any order gives a valid epsilon; the best of these is taken for each instance."""

_ROUGH_ENTRIES: Final = 60_000
_ORDERS_BESIDE: Final = 2
_ALMOST_NONE: Final = 1e-12
_BELOW: Final = 1 - 2.0**-50
_WEIGHTS_ROUNDING: Final = 1e-12


def approximate_cost(
    slices: Slices,
    claim: ApproximateGuarantee,
    noise_std: float,
    envelope: Envelope,
    orders: Sequence[float] = ORDERS,
) -> float:
    r"""Smallest epsilon found at the claim's delta for this noise, the largest over instances.

    With C the levels of the gap tables and tau the mass that they leave out, along a slice u
    $$H_u = \int_C \exp\Big(\frac{\alpha(\alpha-1)\,gap(t)^2}{2\sigma^2}\Big) dt$$
    is not renormalised. Joint: $\sum_u \omega_u H_u$ is converted at $\delta - \tau$. Average: each
    slice is converted at $\delta - \tau$, never below 0, and the mean of their epsilons is taken.

    Guarantee: the noisy outputs satisfy the claim with the returned epsilon, if the gaps of the
    tables are at least the true ones.
    Reason: the part of both mixtures over C costs $H_u$ by joint convexity; pointwise
    $(p - e^\epsilon q)_+ \le e^{-(\alpha-1)\epsilon} (\alpha-1)^{\alpha-1} \alpha^{-\alpha}
    p^\alpha q^{1-\alpha}$, also for measures with less than the whole mass; the rest has mass tau.
    Source: def:ave_spp, def:joint_spp.
    """
    check_one_of(("transport", "worst_gap"), envelope=envelope)
    check_above(0, noise_std=noise_std)
    tables = _tables(slices)
    if slices.are_equal:
        return 0.0
    left = _delta_left(slices, claim.delta)
    found = _epsilons(slices, tables, left, (claim.notion, noise_std, envelope), orders)
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
    start = largest_shift(tables)
    if not start > 0:
        msg = (
            "no slice of the profile shows any difference between the laws, though the laws differ;"
            " noise 0 would protect nothing. Use a profile that sees the difference"
        )
        raise CalibrationError(msg)
    if approximate_cost(slices, target, start * _ALMOST_NONE, envelope) <= target.epsilon:
        msg = (
            f"without any noise the laws already satisfy {target}; ask for a smaller epsilon or "
            "delta, for which noise is needed"
        )
        raise CalibrationError(msg)
    coarse = attrs.evolve(slices, seen=tables.coarsened(_ROUGH_ENTRIES))
    rough = smallest_safe(
        lambda std: approximate_cost(coarse, target, std, envelope), target.epsilon, start=start
    )
    near = _orders_near(coarse, target, rough, envelope)
    noise_std = smallest_safe(
        lambda std: approximate_cost(slices, target, std, envelope, near),
        target.epsilon,
        start=rough,
    )
    return raise_until(
        lambda std: approximate_cost(slices, target, std, envelope) <= target.epsilon,
        noise_std * SAFETY,
    )


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
    slices: Slices,
    tables: GapTables,
    left: Floats,
    said: tuple[str, float, Envelope],
    orders: Sequence[float],
) -> Floats:
    """Epsilon by order, instance and, for the average notion, slice."""
    notion, noise_std, envelope = said
    margin = grid_margin(slices.profile.dim, noise_std)
    found = []
    for order in orders:
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
            logs = logsumexp(logs, b=slices.profile.weights, axis=1) + _WEIGHTS_ROUNDING
            found.append(np.maximum(0.0, logs / (order - 1) + terms))
        else:
            found.append(np.maximum(0.0, logs / (order - 1) + terms[:, None]))
    return np.array(found)


def _orders_near(
    slices: Slices, claim: ApproximateGuarantee, noise_std: float, envelope: Envelope
) -> tuple[float, ...]:
    """The orders that are best for some instance, or slice, with their neighbours."""
    left = _delta_left(slices, claim.delta)
    found = _epsilons(slices, _tables(slices), left, (claim.notion, noise_std, envelope), ORDERS)
    best = set(np.unique(found.argmin(axis=0)).tolist())
    near = {b + step for b in best for step in range(-_ORDERS_BESIDE, _ORDERS_BESIDE + 1)}
    return tuple(order for index, order in enumerate(ORDERS) if index in near)
