# SPDX-License-Identifier: Apache-2.0
"""(epsilon, delta) views of a claim. A sliced view is never a statement about the whole output."""

import math
from collections.abc import Callable
from typing import Final, Literal, final

import attrs
import numpy as np
from scipy.special import log_ndtr, ndtr

from pufferslice.arrays import Floats, Integers
from pufferslice.calibration import Full, Method, Slices, cost, full_cost, grid_margin
from pufferslice.checks import check_above, check_at_least, check_between, check_one_of
from pufferslice.errors import ArgumentError
from pufferslice.gaps import GapTables, GaussianPairs
from pufferslice.guarantee import RELEASE_NOTIONS, Claim, Guarantee

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

_BISECTIONS: Final = 36
LARGEST_EPSILON: Final = 1e4
"""Where a search for an epsilon gives up."""


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
        msg = "epsilon must be a number and at least 0"
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
    rows = _Rows.of(slices.seen, grid_margin(slices.profile.dim, noise_std), noise_std)
    return rows.joint_delta(slices.profile.weights, epsilon)


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
        coarse_full = attrs.evolve(full, seen=_coarse(full.seen))
        found += _unsliced_views(coarse_full, noise_std, order, delta)
    return tuple(found)


def _coarse(seen: GapTables | GaussianPairs) -> GapTables | GaussianPairs:
    return seen.coarsened(_MOST_ENTRIES) if isinstance(seen, GapTables) else seen


def _sliced_views(
    slices: Slices, claim: Guarantee, noise_std: float, method: Method, delta: float
) -> list[View]:
    spent = cost(slices, claim, noise_std, method)
    if not spent <= claim.epsilon:
        msg = f"noise {noise_std!r} costs {spent!r}: it does not give the claim {claim}"
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
        coarse = attrs.evolve(slices, seen=_coarse(slices.seen))
        found += _recomputed_views(coarse, claim, noise_std, method, delta)
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
        rows = _Rows.of(slices.seen, grid_margin(slices.profile.dim, noise_std), noise_std)
        weights = slices.profile.weights
        solve = rows.average_epsilon if average else rows.joint_epsilon
        found.append(("direct", solve(weights, delta)))
    if method.rule == "closed_form":
        rho = cost(slices, attrs.evolve(claim, order=2.0), noise_std, method) / 2
        found.append(("order_optimum", optimum_over_orders(rho, delta)))
    return found


def _unsliced_views(full: Full, noise_std: float, order: float, delta: float) -> list[View]:
    def at_order(order: float) -> float:
        return improved_epsilon_joint(order, full_cost(full, order, noise_std), delta)

    bound = full_cost(full, order, noise_std)
    found: list[tuple[ViewRule, float]] = []
    if math.isfinite(bound):
        found += [("paper", paper_epsilon(order, bound, delta)), ("improved", at_order(order))]
    found.append(("order_grid", min(map(at_order, ORDERS))))
    if isinstance(full.seen, GapTables) and delta >= SMALLEST_DIRECT_DELTA:
        rows = _Rows.of(full.seen, grid_margin(full.dim, noise_std), noise_std)
        found.append(("direct", rows.best_epsilon(delta)))
    return [
        View(scope="unsliced", rule=rule, epsilon=epsilon, delta=delta)
        for rule, epsilon in found
        if math.isfinite(epsilon)
    ]


@final
@attrs.frozen
class _Rows:
    """Shift-to-noise ratios of every slice and instance, with masses; coarse enough to solve on."""

    ratios: Floats
    masses: Floats
    starts: Integers
    n_instances: int

    @classmethod
    def of(cls, tables: GapTables, margin: float, noise_std: float) -> "_Rows":
        ratios = (tables.gaps + margin) / noise_std
        equal = np.tile(tables.equal, tables.n_slices)
        ratios[np.repeat(equal, np.diff(tables.starts))] = 0.0
        return cls(ratios, tables.masses, tables.starts, tables.n_instances)

    def deltas(self, epsilons: Floats) -> Floats:
        """Delta of each row at its own epsilon, shape (n_instances, n_slices)."""
        each = np.repeat(epsilons.T.reshape(-1), np.diff(self.starts))
        found = self.masses * gaussian_delta(self.ratios, each)
        rows = np.add.reduceat(found, self.starts[:-1])
        return np.asarray(rows.reshape(-1, self.n_instances).T)

    @property
    def shape(self) -> tuple[int, int]:
        return self.n_instances, (len(self.starts) - 1) // self.n_instances

    def joint_delta(self, weights: Floats, epsilon: float) -> float:
        return float((self.deltas(np.full(self.shape, epsilon)) @ weights).max())

    def joint_epsilon(self, weights: Floats, delta: float) -> float:
        return smallest_epsilon(lambda epsilon: self.joint_delta(weights, epsilon), delta)

    def row_epsilons(self, delta: float) -> Floats:
        """Smallest epsilon of each row with delta at most `delta`: bisection, upper ends kept."""
        low, high = np.zeros(self.shape), np.ones(self.shape)
        while (short := self.deltas(high) > delta).any() and high.max() < LARGEST_EPSILON:
            high[short] *= 2
        high[self.deltas(high) > delta] = np.inf
        done = self.deltas(low) <= delta
        high[done] = 0.0
        for _ in range(_BISECTIONS):
            middle = np.where(np.isfinite(high), (low + high) / 2, 0.0)
            good = self.deltas(middle) <= delta
            high = np.where(good & np.isfinite(high), middle, high)
            low = np.where(good, low, middle)
        return high

    def average_epsilon(self, weights: Floats, delta: float) -> float:
        seen = weights > 0
        return float((self.row_epsilons(delta)[:, seen] @ weights[seen]).max())

    def best_epsilon(self, delta: float) -> float:
        """The best coupling of each instance, the largest over instances."""
        return float(self.row_epsilons(delta).min(axis=1).max())


def smallest_epsilon(delta_at: Callable[[float], float], delta: float) -> float:
    """Smallest epsilon found with `delta_at(epsilon) <= delta`; infinite if there is none."""
    low, high = 0.0, 1.0
    if delta_at(0.0) <= delta:
        return 0.0
    while delta_at(high) > delta:
        low, high = high, 2 * high
        if high > LARGEST_EPSILON:
            return math.inf
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_at(middle) <= delta else (middle, high)
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
