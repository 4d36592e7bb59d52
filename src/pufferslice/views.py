# SPDX-License-Identifier: Apache-2.0
"""(epsilon, delta) views of a claim. A sliced view is never a statement about the whole output."""

import math
from collections.abc import Callable
from typing import Final, Literal, TypeVar, final

import attrs
import numpy as np
from scipy.special import log_ndtr, ndtr

from pufferslice.arrays import Floats
from pufferslice.calibration import Full, Method, Slices, cost, full_cost, grid_margin
from pufferslice.checks import check_above, check_at_least, check_between, check_one_of
from pufferslice.errors import ArgumentError
from pufferslice.gaps import DistanceTables, GapTables, MatchingTables
from pufferslice.guarantee import RELEASE_NOTIONS, Claim, Guarantee
from pufferslice.renyi import aggregate_average

ViewRule = Literal["paper", "improved", "order_grid", "order_optimum", "direct"]

ORDERS: Final = tuple(
    1 + x for x in (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 63, 127, 255)
)
"""The grid over which orders are minimised at fixed noise."""

REPORTED_ORDER: Final = 2.0
"""At which the unsliced cost is reported for claims that have no order of their own."""

SMALLEST_DIRECT_DELTA: Final = 1e-12
"""Below this the direct formula would subtract nearly equal floats, and is not offered."""

_MOST_ENTRIES: Final = 60_000
"""Views are solved on gap tables rounded up to this many entries: a bound still, and quick."""

_BISECTIONS: Final = 46
LARGEST_EPSILON: Final = 1e4
"""Where a search for an epsilon gives up."""

Part = TypeVar("Part", Slices, Full)

DeltaAt = Callable[[float], float]
"""From epsilon to the delta that it leaves."""


@final
@attrs.frozen(kw_only=True)
class View:
    """One reading of a claim as (epsilon, delta)."""

    scope: Literal["sliced average", "sliced joint", "unsliced"]
    rule: ViewRule
    epsilon: float
    delta: float


def paper_epsilon(order: float, epsilon: float, delta: float) -> float:
    """Epsilon + ln(1/delta) / (order - 1); valid for average, joint and unsliced.

    Source: thm:ave_srpp_to_ave_spp_app, thm:joint_srpp_to_joint_spp_app.

    >>> round(paper_epsilon(4, 1.0, 1e-5), 12)
    4.837641821657
    """
    _check_conversion(order, epsilon, delta)
    return epsilon - math.log(delta) / (order - 1)


def improved_epsilon_joint(order: float, epsilon: float, delta: float) -> float:
    """max(0, epsilon + c), c = ln((order-1)/order) - (ln delta + ln order) / (order-1).

    Valid for joint and unsliced claims, not for average ones: there the maximum with 0 must be
    taken slice by slice (`improved_epsilon_average`). After Canonne, Kamath and Steinke (2020).

    >>> round(improved_epsilon_joint(4, 1.0, 1e-5), 12)
    4.087861628832
    """
    _check_conversion(order, epsilon, delta)
    return max(0.0, epsilon + improved_term(order, delta))


def improved_epsilon_average(order: float, epsilon: float, delta: float) -> float:
    """Epsilon + max(0, c), with the c of `improved_epsilon_joint`."""
    _check_conversion(order, epsilon, delta)
    return epsilon + max(0.0, improved_term(order, delta))


def optimum_over_orders(rho: float, delta: float) -> float:
    """Rho + 2 sqrt(rho ln(1/delta)): for a cost of order * rho at *every* order.

    Needs: the worst-gap closed form; not for transport, tight joint or random differing records.

    >>> round(optimum_over_orders(0.25, 1e-5), 12)
    3.643070212208
    """
    check_at_least(0, rho=rho)
    check_between(0, 1, delta=delta)
    return rho + 2 * math.sqrt(-rho * math.log(delta))


def gaussian_delta(ratios: Floats, epsilon: Floats | float) -> Floats:
    """Delta of N(shift, std^2) against N(0, std^2), ratios = shift / std; elementwise."""
    ratios = np.abs(np.asarray(ratios, dtype=np.float64))
    if not np.all(np.asarray(epsilon) >= 0):
        msg = f"epsilon must be a number and at least 0, got {epsilon!r}"
        raise ArgumentError(msg)
    safe = np.where(ratios == 0, 1.0, ratios)
    direct = ndtr(safe / 2 - epsilon / safe) - np.exp(
        np.minimum(epsilon + log_ndtr(-safe / 2 - epsilon / safe), 0.0)
    )
    return np.asarray(np.where(ratios == 0, 0.0, np.maximum(direct, 0.0)))


def direct_delta_joint(slices: Slices, noise_std: float, epsilon: float) -> float:
    """Sum over slices of weight times the mean over the gap table of `gaussian_delta`.

    The largest over instances. Sound because hockey-stick divergences are jointly convex.
    """
    check_above(0, noise_std=noise_std)
    check_at_least(0, epsilon=epsilon)
    if not isinstance(slices.seen, GapTables):
        msg = "the direct view reads gap tables, which Gaussian laws do not have; use another view"
        raise ArgumentError(msg)
    if slices.missing.any() or slices.sphere is not None:
        msg = "the direct view needs gaps on all levels along a finite profile; use another view"
        raise ArgumentError(msg)
    said = (noise_std, grid_margin(slices.profile.dim, noise_std))
    return _joint_delta(slices.seen, said, slices.profile.weights)(epsilon)


def views_of(
    slices: Slices, full: Full, claim: Claim, noise: tuple[float, Method], delta: float
) -> tuple[View, ...]:
    """All views of a claim at `delta` for the noise (standard deviation, method) that gives it.

    From samples, or on the sphere, a sliced view is one that follows from the claim itself: other
    numbers read off the same draws would each have a failure probability of their own.
    """
    check_between(0, 1, delta=delta)
    noise_std, method = noise
    check_above(0, noise_std=noise_std)
    found: list[View] = []
    order = REPORTED_ORDER
    if isinstance(claim, Guarantee):
        check_one_of(RELEASE_NOTIONS, notion=claim.notion)
        order = claim.order
        if claim.is_sliced:
            found += _sliced_views(slices, claim, noise_std, method, delta)
    if full.seen is not None:
        found += _unsliced_views(_coarse(full), noise_std, order, delta)
    return tuple(found)


def _coarse(part: Part) -> Part:
    """The same with tables that are quick to solve on: rounded up, so a bound still."""
    if not isinstance(part.seen, DistanceTables):
        return part
    return attrs.evolve(part, seen=part.seen.coarsened(_MOST_ENTRIES))


def _sliced_views(
    slices: Slices, claim: Guarantee, noise_std: float, method: Method, delta: float
) -> list[View]:
    spent = cost(slices, claim, noise_std, method)
    if not spent <= claim.epsilon:
        msg = (
            f"noise {noise_std!r} costs {spent!r}: it does not give the claim {claim}. Give the "
            "claim that spent says"
        )
        raise ArgumentError(msg)
    average = claim.notion == "average"
    scope: Literal["sliced average", "sliced joint"] = (
        "sliced average" if average else "sliced joint"
    )
    improved = improved_epsilon_average if average else improved_epsilon_joint
    found: list[tuple[ViewRule, float]] = [
        ("paper", paper_epsilon(claim.order, claim.epsilon, delta)),
        ("improved", improved(claim.order, claim.epsilon, delta)),
    ]
    if not slices.failure_probability:
        found += _recomputed_views(_coarse(slices), claim, noise_std, method, delta)
    return [
        View(scope=scope, rule=rule, epsilon=epsilon, delta=delta)
        for rule, epsilon in found
        if math.isfinite(epsilon)
    ]


def _recomputed_views(
    slices: Slices, claim: Guarantee, noise_std: float, method: Method, delta: float
) -> list[tuple[ViewRule, float]]:
    """Views that look at the gaps again, at other orders or directly."""
    average = claim.notion == "average"
    improved = improved_epsilon_average if average else improved_epsilon_joint

    def at_order(order: float) -> float:
        epsilon = cost(slices, attrs.evolve(claim, order=order), noise_std, method)
        return improved(order, epsilon, delta)

    found: list[tuple[ViewRule, float]] = [("order_grid", min(map(at_order, ORDERS)))]
    if isinstance(slices.seen, GapTables) and delta >= SMALLEST_DIRECT_DELTA:
        found.append(("direct", _direct_epsilon(slices, slices.seen, claim, noise_std, delta)))
    if method.rule == "closed_form":
        rho = cost(slices, attrs.evolve(claim, order=2.0), noise_std, method) / 2
        found.append(("order_optimum", optimum_over_orders(rho, delta)))
    return found


def _direct_epsilon(
    slices: Slices, tables: GapTables, claim: Guarantee, noise_std: float, delta: float
) -> float:
    """Epsilon at `delta` from the gaps themselves, aggregated as the claim is."""
    said = (noise_std, grid_margin(slices.profile.dim, noise_std))
    weights = slices.profile.weights
    if claim.notion == "average":
        return float(aggregate_average(_row_epsilons(tables, said, delta), weights).max())
    return smallest_epsilon(_joint_delta(tables, said, weights), delta)


def _unsliced_views(full: Full, noise_std: float, order: float, delta: float) -> list[View]:
    def at_order(order: float) -> float:
        return improved_epsilon_joint(order, full_cost(full, order, noise_std), delta)

    bound = full_cost(full, order, noise_std)
    found: list[tuple[ViewRule, float]] = []
    if math.isfinite(bound):
        found += [("paper", paper_epsilon(order, bound, delta)), ("improved", at_order(order))]
    found.append(("order_grid", min(map(at_order, ORDERS))))
    if isinstance(full.seen, MatchingTables) and delta >= SMALLEST_DIRECT_DELTA:
        # The best coupling of each instance, the largest over instances.
        epsilons = _row_epsilons(full.seen, (noise_std, grid_margin(full.dim, noise_std)), delta)
        found.append(("direct", float(epsilons.min(axis=1).max())))
    return [
        View(scope="unsliced", rule=rule, epsilon=epsilon, delta=delta)
        for rule, epsilon in found
        if math.isfinite(epsilon)
    ]


def _joint_delta(tables: DistanceTables, said: tuple[float, float], weights: Floats) -> DeltaAt:
    """Mean over the slices of the delta at an epsilon, the largest over instances."""
    noise_std, margin = said

    def delta_at(epsilon: float) -> float:
        epsilons = np.full((tables.n_instances, tables.n_slices), epsilon)
        return float(aggregate_average(tables.deltas(epsilons, noise_std, margin), weights).max())

    return delta_at


def _row_epsilons(tables: DistanceTables, said: tuple[float, float], delta: float) -> Floats:
    """Smallest epsilon of each instance and slice at `delta`."""
    noise_std, margin = said
    ones = np.ones((tables.n_instances, tables.n_slices))
    return smallest_epsilons(
        lambda epsilons: tables.deltas(epsilons, noise_std, margin), ones, delta * ones
    )


def smallest_epsilon(delta_at: DeltaAt, delta: float) -> float:
    """Smallest epsilon found with `delta_at(epsilon) <= delta`; infinite if there is none."""
    found = smallest_epsilons(
        lambda epsilons: np.array([delta_at(float(epsilons[0]))]), np.ones(1), np.array([delta])
    )
    return float(found[0])


def smallest_epsilons(deltas: Callable[[Floats], Floats], first: Floats, limits: Floats) -> Floats:
    """For each entry the smallest epsilon found with delta at most its limit; infinite if none.

    Guarantee: `deltas` was evaluated at the result and was at most the limit: bisection, of which
    the upper ends are kept. `first` is tried first, so that an entry for which it is enough never
    gets more.
    Needs: no delta grows with its own epsilon.
    """
    low, high = np.zeros_like(first), first.copy()
    while (short := deltas(high) > limits).any() and high.max() < LARGEST_EPSILON:
        low[short] = high[short]
        high[short] *= 2
    high[deltas(high) > limits] = np.inf
    high[deltas(np.zeros_like(first)) <= limits] = 0.0
    for _ in range(_BISECTIONS):
        middle = np.where(np.isfinite(high), (low + high) / 2, 0.0)
        good = (deltas(middle) <= limits) & np.isfinite(high)
        high, low = np.where(good, middle, high), np.where(good, low, middle)
    return high


def _check_conversion(order: float, epsilon: float, delta: float) -> None:
    check_above(1, order=order)
    check_between(0, 1, delta=delta)
    if not epsilon >= 0:
        msg = f"epsilon must be a number and at least 0, got {epsilon!r}"
        raise ArgumentError(msg)


def improved_term(order: float, delta: float) -> float:
    """The c of `improved_epsilon_joint`: what converting to `delta` adds, maybe less than 0."""
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
