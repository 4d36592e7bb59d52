# SPDX-License-Identifier: Apache-2.0
"""Cost of noise along the slices of a profile, for Rényi and for (epsilon, delta) claims.

Aggregate over the slices first, take the maximum over instances last.
Source: corollary:SRPE_implies_SRPP (the definition quantifies over instances outside).
"""

import math
from collections.abc import Callable
from typing import Final, Literal, final

import attrs
import numpy as np
from scipy.special import logsumexp

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_one_of
from pufferslice._core.search import SAFETY, raise_until, smallest_epsilons, smallest_safe
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.sensitivity.renyi import (
    CLAIM_ORDERS,
    SLICED_NOTIONS,
    aggregate,
    aggregate_average,
    gaussian_envelope,
    improved_term,
)
from pufferslice.sensitivity.sensitivity import ENVELOPES, Envelope, SliceDifference, Slices
from pufferslice.sensitivity.tables import ROUGH_ENTRIES
from pufferslice.sensitivity.whitening import grid_margin

LEAST_NOISE: Final = 2.0**-40
"""Least certified noise, as a share of noise that hides the differences by itself."""

SMALLEST_DIRECT_DELTA: Final = 1e-12
"""Delta below which the direct formula is not used: it would subtract nearly equal floats."""

_BELOW: Final = 1 - 2.0**-50
_ABOVE: Final = 1 + 1e-12

Rule = Literal["tight", "closed_form"]

RULES: Final = ("tight", "closed_form")


@final
@attrs.frozen(kw_only=True)
class Method:
    """A way in which noise determines cost: a rule, and its envelope along each slice."""

    rule: Rule
    envelope: Envelope

    def __attrs_post_init__(self) -> None:
        check_one_of(RULES, rule=self.rule)
        check_one_of(ENVELOPES, envelope=self.envelope)
        if self.rule == "closed_form" and self.envelope != "worst_gap":
            raise ArgumentError(
                f"rule 'closed_form' is the worst-gap formula, got envelope {self.envelope!r}; "
                "use envelope 'worst_gap', or rule 'tight'"
            )


def slice_divergence(
    slices: Slices, notion: str, order: float, noise_std: float, method: Method
) -> float:
    """Compute the epsilon of a sliced Rényi claim by the method; 0 if all instances are equal."""
    check_one_of(SLICED_NOTIONS, notion=notion)
    check_one_of(slices.envelopes, envelope=method.envelope)
    if slices.are_equal:
        return 0.0
    if method.rule == "closed_form":
        return closed_form_cost(slices, notion, order, noise_std)
    costs = slices.costs(order, noise_std, method.envelope)
    return float(_aggregated(slices, notion, order, costs, noise_std).max())


def _aggregated(
    slices: Slices, notion: str, order: float, costs: Floats, noise_std: float
) -> Floats:
    r"""Aggregate over the slices of a profile, or over the sphere that they were drawn from.

    For the sphere, with h the half-width and D the diameter, average:
    $mean + h \alpha D^2 / (2 \sigma^2)$; joint: h times the largest moment less 1 is added inside
    the logarithm.
    Source: thm:mc_finite_gaussian_ave_srpp, thm:mc_finite_gaussian_joint_srpp.
    """
    total = aggregate(notion, order, costs, slices.profile.weights)
    if slices.sphere is None:
        return total
    reach = np.array(slices.sphere.diameter + grid_margin(slices.profile.dim, noise_std))
    largest = float(gaussian_envelope(order, reach, noise_std))
    if notion == "average":
        return total + slices.sphere.halfwidth * largest
    a = order - 1
    added = math.log(slices.sphere.halfwidth) + _log_expm1(a * largest)
    return np.asarray(np.logaddexp(a * total, added) / a)


def _log_expm1(value: float) -> float:
    """Ln(exp(value) - 1) for value > 0, where exp may overflow."""
    return math.log(math.expm1(value)) if value < 1 else value + math.log1p(-math.exp(-value))


def closed_form_cost(slices: Slices, notion: str, order: float, noise_std: float) -> float:
    r"""Invert the paper's rule: the epsilon at which it asks for this noise.

    average: $\frac{\alpha}{2\sigma^2} \sum_u \omega_u \Delta_u^2$; joint:
    $\frac{\alpha}{2\sigma^2} \max_u \Delta_u^2$; with $\Delta_u$ the largest W-infinity of all
    instances along u. On the sphere, whose worst direction is not among the drawn ones, the joint
    rule is the log-moment of the drawn ones with the Hoeffding term.
    Source: thm:gaussian-ave-SRPEp, thm:gaussian-joint-SRPEp; on the sphere
    thm:mc_finite_gaussian_ave_srpp, thm:mc_finite_gaussian_joint_srpp.
    """
    slices.check_whole()
    differ = slices.differences.worst_gaps()[~slices.differences.equal]
    sensitivities = differ.max(axis=0) + grid_margin(slices.profile.dim, noise_std)
    costs = gaussian_envelope(order, sensitivities, noise_std)
    if slices.sphere is not None:
        return float(_aggregated(slices, notion, order, costs, noise_std))
    weights = slices.profile.weights
    return float(costs @ weights if notion == "average" else costs[weights > 0].max())


def slice_epsilon(
    slices: Slices, notion: str, delta: float, noise_std: float, envelope: Envelope, first: float
) -> float:
    r"""Find the smallest epsilon at the claim's delta for this noise, the largest over instances.

    With C the levels of the gap tables and tau the mass that they leave out, along a slice u

    $$\delta_u(\epsilon) = \int_C \delta_{N}(gap(t)/\sigma, \epsilon)\, dt,$$

    not renormalised, with $\delta_N$ that of two Gaussians at this distance. Joint: the smallest
    epsilon at which $\sum_u \omega_u \delta_u \le \delta - \tau$. Average: the mean of the smallest
    epsilons at which each $\delta_u \le \delta - \tau$.

    Guarantee: the noisy outputs satisfy the claim with the returned epsilon, if the gaps of the
    tables are at least the true ones.
    Reason: hockey-stick divergences are jointly convex, also for the parts of both mixtures over
    C; the rest has mass tau. Never above `converted_epsilon`, which bounds it
    pointwise and is used where delta - tau is too small for floats.
    Source: def:ave_spp, def:joint_spp.
    """
    tables = _tables(slices, envelope)
    if slices.are_equal:
        return 0.0
    left, noise = _delta_left(slices, delta), slices.noise(noise_std)
    if left.min() < SMALLEST_DIRECT_DELTA:
        return converted_epsilon(slices, notion, delta, noise_std, envelope)
    weights = slices.profile.weights

    def deltas(epsilons: Floats) -> Floats:
        """Compute the delta of covered levels along each slice, shape (n_instances, n_slices)."""
        rows = tables.slice_deltas(epsilons, noise, envelope)
        return np.asarray(rows * (1 - slices.missing)[:, None])

    if notion == "average":
        by_slice = smallest_epsilons(deltas, np.ones((len(left), len(weights))), left[:, None])
        return float(aggregate_average(by_slice, weights)[~tables.equal].max())

    def joint(epsilons: Floats) -> Floats:
        each = np.repeat(epsilons[:, None], len(weights), axis=1)
        return aggregate_average(deltas(each), weights) * _ABOVE

    by_instance = smallest_epsilons(joint, np.full(len(left), first), left)
    return float(by_instance[~tables.equal].max())


def converted_epsilon(
    slices: Slices, notion: str, delta: float, noise_std: float, envelope: Envelope
) -> float:
    r"""Bound `slice_epsilon` by converting Rényi moments at the best order of a grid.

    $$H_u = \int_C \exp\Big(\frac{\alpha(\alpha-1)\,gap(t)^2}{2\sigma^2}\Big) dt,$$
    not renormalised. Joint: $\sum_u \omega_u H_u$ is converted at $\delta - \tau$. Average: each
    slice is converted at $\delta - \tau$, never below 0, and the mean of their epsilons is taken.

    Reason: pointwise $(p - e^\epsilon q)_+ \le e^{-(\alpha-1)\epsilon} (\alpha-1)^{\alpha-1}
    \alpha^{-\alpha} p^\alpha q^{1-\alpha}$, also for measures with less than the whole mass.
    """
    tables, left = _tables(slices, envelope), _delta_left(slices, delta)
    noise, directions = slices.noise(noise_std), slices.profile.directions
    epsilons = []
    for order in CLAIM_ORDERS:
        with np.errstate(over="ignore"):
            logs = (order - 1) * tables.slice_costs(directions, order, noise, envelope)
        logs = logs + np.log1p(-slices.missing)[:, None]
        terms = np.array([improved_term(order, float(each)) for each in left])
        if notion == "joint":
            # Weights are shares of their sum, which may be rounded.
            logs = logsumexp(logs, b=slices.profile.weights, axis=1) + (_ABOVE - 1)
            epsilons.append(np.maximum(0.0, logs / (order - 1) + terms))
        else:
            epsilons.append(np.maximum(0.0, logs / (order - 1) + terms[:, None]))
    best = np.array(epsilons).min(axis=0)
    if notion == "average":
        best = aggregate_average(best, slices.profile.weights)
    return float(best[~tables.equal].max())


def _tables(slices: Slices, envelope: Envelope) -> SliceDifference:
    check_one_of(slices.envelopes, envelope=envelope)
    if slices.sphere is not None:
        raise ArgumentError(
            "the sphere as profile does not go with an (epsilon, delta) claim; use a FiniteProfile"
        )
    return slices.differences


def _delta_left(slices: Slices, delta: float) -> Floats:
    """Return the part of delta that remains for the covered levels, per instance, rounded down."""
    left = np.asarray((delta - slices.missing) * _BELOW)
    if not (left > 0).all():
        raise ArgumentError(
            f"the samples leave out levels of mass {float(slices.missing.max()):.3g}, which must be"
            f" below delta {delta:g}; take more samples, or claim a larger delta"
        )
    return left


def least_slice_noise(
    slices: Slices, cost_of: Callable[[Slices, float], float], limit: float, start: float = 1.0
) -> float:
    """Find the smallest noise standard deviation, in scaled coordinates, that meets a cost limit.

    Guarantee: `cost_of(slices, result) <= limit` was evaluated and holds; the result is within one
    part in 10^11 of the smallest such noise. 0 if all distributions are equal. `start` is noise to
    start from, as a multiple of the size of the differences.
    """
    if slices.are_equal:
        return 0.0
    if not slices.scale > 0:
        raise CalibrationError(
            "the distributions differ, but not along any slice of the profile; noise 0 would "
            "protect nothing. Use a profile with other directions"
        )
    first = slices.scale * start
    if cost_of(slices, first * LEAST_NOISE) <= limit:
        # The distributions themselves hide the secret; the noise only covers the grid.
        return first * LEAST_NOISE
    coarse = attrs.evolve(slices, differences=slices.differences.coarsened(ROUGH_ENTRIES))
    if coarse.differences is not slices.differences:
        first = smallest_safe(lambda std: cost_of(coarse, std), limit, start=first)
    noise_std = smallest_safe(lambda std: cost_of(slices, std), limit, start=first)
    return raise_until(lambda std: cost_of(slices, std) <= limit, noise_std * SAFETY)
