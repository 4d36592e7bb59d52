# SPDX-License-Identifier: Apache-2.0
"""From a guarantee and gaps to noise, and from noise to epsilon."""

import math
from collections.abc import Callable
from typing import Final, Literal, final

import attrs
import numpy as np

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats
from pufferslice._core.checks import check_above, check_one_of
from pufferslice._core.search import SAFETY, raise_until, smallest_safe
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.calibration.noise import SIGMA_INT
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.sensitivity import GapTables
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.renyi import SLICED_NOTIONS, aggregate, gaussian_envelope, moment_rate
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.sensitivity import ENVELOPES, Envelope, Full, Slices
from pufferslice.sensitivity.tables import DistanceTables

LEAST_NOISE: Final = 2.0**-40
"""The least noise that is certified, as a share of noise that hides the differences by itself."""

Rule = Literal["tight", "closed_form"]

RULES: Final = ("tight", "closed_form")


@final
@attrs.frozen(kw_only=True)
class Method:
    """How noise determines cost: a rule, and the envelope it uses along each slice."""

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


def grid_margin(dim: int, noise_std: float) -> float:
    """Most that quantising both points to the grid of the release can add to a gap or distance."""
    return float(math.sqrt(dim) * noise_std / SIGMA_INT)


def slice_costs(slices: Slices, order: float, noise_std: float, envelope: Envelope) -> Floats:
    """Bound on the divergence along each slice, shape (n_instances, n_slices)."""
    check_one_of(slices.envelopes, envelope=envelope)
    check_above(1, order=order)
    check_above(0, noise_std=noise_std)
    slices.check_whole()
    if isinstance(slices.differences, GaussianPairs):
        return slices.differences.slice_costs(slices.profile.directions, order, noise_std)
    margin = grid_margin(slices.profile.dim, noise_std)
    if envelope == "transport":
        rate = moment_rate(order, noise_std)
        return slices.differences.log_moments(rate, margin) / (order - 1)
    costs = gaussian_envelope(order, slices.differences.worst() + margin, noise_std)
    costs[slices.differences.equal] = 0.0
    return costs


def sliced_cost(slices: Slices, claim: Guarantee, noise_std: float, envelope: Envelope) -> float:
    """The epsilon of the claim at this noise: aggregate over slices, maximum over instances last.

    Source: corollary:SRPE_implies_SRPP (the definition quantifies over instances outside).
    """
    check_one_of(SLICED_NOTIONS, notion=claim.notion)
    costs = slice_costs(slices, claim.order, noise_std, envelope)
    return float(_aggregated(slices, claim, costs, noise_std).max())


def _aggregated(slices: Slices, claim: Guarantee, costs: Floats, noise_std: float) -> Floats:
    r"""Aggregate over the slices of a profile, or over the sphere that they were drawn from.

    For the sphere, with h the half-width and D the diameter, average:
    $mean + h \alpha D^2 / (2 \sigma^2)$; joint: h times the largest moment less 1 is added inside
    the logarithm.
    Source: thm:mc_finite_gaussian_ave_srpp, thm:mc_finite_gaussian_joint_srpp.
    """
    total = aggregate(claim.notion, claim.order, costs, slices.profile.weights)
    if slices.sphere is None:
        return total
    reach = np.array(slices.sphere.diameter + grid_margin(slices.profile.dim, noise_std))
    largest = float(gaussian_envelope(claim.order, reach, noise_std))
    if claim.notion == "average":
        return total + slices.sphere.halfwidth * largest
    a = claim.order - 1
    added = math.log(slices.sphere.halfwidth) + _log_expm1(a * largest)
    return np.asarray(np.logaddexp(a * total, added) / a)


def _log_expm1(value: float) -> float:
    """Ln(exp(value) - 1) for value > 0, where exp may overflow."""
    return math.log(math.expm1(value)) if value < 1 else value + math.log1p(-math.exp(-value))


def closed_form_cost(slices: Slices, claim: Guarantee, noise_std: float) -> float:
    r"""The paper's rule read backwards: the epsilon at which it asks for this noise.

    average: $\frac{\alpha}{2\sigma^2} \sum_u \omega_u \Delta_u^2$; joint:
    $\frac{\alpha}{2\sigma^2} \max_u \Delta_u^2$; with $\Delta_u$ the largest W-infinity of all
    instances along u. On the sphere, whose worst direction is not among the drawn ones, the joint
    rule is the log-moment of the drawn ones with the Hoeffding term.
    Source: thm:gaussian-ave-SRPEp, thm:gaussian-joint-SRPEp; on the sphere
    thm:mc_finite_gaussian_ave_srpp, thm:mc_finite_gaussian_joint_srpp.
    """
    check_one_of(SLICED_NOTIONS, notion=claim.notion)
    slices.check_whole()
    if not isinstance(slices.differences, GapTables):
        raise ArgumentError(
            "rule 'closed_form' needs W-infinity, which is infinite between Gaussians of different"
            " spread; use rule 'tight', which takes their exact divergence"
        )
    differ = slices.differences.worst()[~slices.differences.equal]
    sensitivities = differ.max(axis=0) + grid_margin(slices.profile.dim, noise_std)
    costs = gaussian_envelope(claim.order, sensitivities, noise_std)
    if slices.sphere is not None:
        return float(_aggregated(slices, claim, costs, noise_std))
    weights = slices.profile.weights
    return float(costs @ weights if claim.notion == "average" else costs[weights > 0].max())


def full_costs(full: Full, order: float, noise_std: float) -> Floats:
    """Upper bound on the unsliced divergence of each instance, the best of its couplings.

    Guarantee: for finite distributions it also holds for the released integers, because the ideal
    integer Gaussian costs no more than the continuous one and the grid margin is added.
    """
    check_above(1, order=order)
    check_above(0, noise_std=noise_std)
    if full.differences is None:
        return np.array([math.inf])
    if full.missing.any() or isinstance(full.differences, RowDifference):
        # Second moments of rows bound no Rényi divergence.
        return np.full(full.differences.n_instances, math.inf)
    if isinstance(full.differences, GaussianPairs):
        return full.differences.full_costs(order, noise_std)
    # A distance is a sum of squares, each addition rounded.
    rate = moment_rate(order, noise_std) * (1 + (full.dim + 8) * UNIT_ROUNDOFF)
    margin = grid_margin(full.dim, noise_std)
    return np.asarray(full.differences.log_moments(rate, margin).min(axis=1) / (order - 1))


def full_deltas(full: Full, tables: DistanceTables, epsilons: Floats, noise_std: float) -> Floats:
    """Bound on the delta of the whole output at `epsilons`, by instance and coupling of `tables`.

    Not for what the tables leave out (`full.missing`).
    """
    # A distance is a sum of squares, each addition rounded.
    std = noise_std * (1 - (full.dim + 8) * UNIT_ROUNDOFF)
    return tables.deltas(epsilons, std, grid_margin(full.dim, noise_std))


def full_cost(full: Full, order: float, noise_std: float) -> float:
    """Upper bound on the unsliced divergence of the release, the largest over instances."""
    return float(full_costs(full, order, noise_std).max()) * SAFETY


def cost(slices: Slices, claim: Guarantee, noise_std: float, method: Method) -> float:
    """The epsilon of a sliced claim at this noise, by the method; 0 for equal distributions."""
    check_one_of(SLICED_NOTIONS, notion=claim.notion)
    check_one_of(slices.envelopes, envelope=method.envelope)
    if slices.are_equal:
        return 0.0
    check_above(0, noise_std=noise_std)
    if method.rule == "closed_form":
        return closed_form_cost(slices, claim, noise_std)
    return sliced_cost(slices, claim, noise_std, method.envelope)


def calibrate(target: Guarantee, slices: Slices, method: Method) -> float:
    """Smallest noise standard deviation, in scaled coordinates, that gives a sliced target.

    Guarantee: `cost(result) <= target.epsilon` was evaluated and holds; the result is within one
    part in 10^11 of the smallest such noise. 0 if all distributions are equal.
    """
    check_one_of(SLICED_NOTIONS, notion=target.notion)
    check_one_of(slices.envelopes, envelope=method.envelope)
    if slices.are_equal:
        return 0.0
    start = largest_shift(slices.differences, slices.profile.weights)
    return smallest_noise(lambda std: cost(slices, target, std, method), target, start)


def check_shift(shift: float) -> None:
    """Refuse to search for noise if no slice shows a difference."""
    if not shift > 0:
        raise CalibrationError(
            "the distributions differ, but not along any slice of the profile; noise 0 would "
            "protect nothing. Use a profile with other directions"
        )


def smallest_noise(cost_at: Callable[[float], float], target: Guarantee, shift: float) -> float:
    """Smallest noise at which a cost is within the target; `shift` is the scale of differences."""
    check_shift(shift)
    start = shift * math.sqrt(target.order / (2 * target.epsilon))
    if cost_at(start * LEAST_NOISE) <= target.epsilon:
        # The distributions themselves hide the secret; the noise only covers the grid.
        return start * LEAST_NOISE
    noise_std = smallest_safe(cost_at, target.epsilon, start=start) * SAFETY
    return raise_until(lambda std: cost_at(std) <= target.epsilon, noise_std)


def largest_shift(
    differences: DistanceTables | GaussianPairs | RowDifference, weights: Floats | float = 1.0
) -> float:
    """The scale of the differences, to start a search from; 0 if no slice of weight shows any."""
    if isinstance(differences, DistanceTables):
        return float((differences.worst() * (np.asarray(weights) > 0)).max())
    if isinstance(differences, RowDifference):
        return math.sqrt(float(np.trace(differences.second_moment)))
    means = np.linalg.norm(differences.means[:, 0] - differences.means[:, 1], axis=1)
    spreads = np.abs(differences.covs[:, 0] - differences.covs[:, 1]).max(axis=(1, 2))
    return float(max(means.max(), math.sqrt(spreads.max())))
