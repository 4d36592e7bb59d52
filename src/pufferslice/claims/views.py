# SPDX-License-Identifier: Apache-2.0
"""(epsilon, delta) views of Rényi claims."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, Protocol, TypeVar, final

import attrs

from pufferslice._core.checks import check_above, check_at_least, check_between, is_a
from pufferslice._core.text import given
from pufferslice.claims.claim import Compared
from pufferslice.claims.guarantee import Claim
from pufferslice.claims.sliced import Sliced
from pufferslice.claims.slices import SMALLEST_DIRECT_DELTA
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.renyi import improved_term
from pufferslice.sensitivity.sensitivity import Full

ViewRule = Literal[
    "paper", "improved", "order_grid", "order_optimum", "direct", "loss_distribution"
]

DEFAULT_DELTAS: Final = (1e-5,)
"""Deltas at which a certificate states views by default."""

LARGEST_VIEW: Final = 20.0
"""Largest epsilon that is stated for sums of rows."""

ORDERS: Final = tuple(
    1 + x for x in (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 63, 127, 255)
)
"""Orders over which costs are minimised at fixed noise."""

Scope = Literal["sliced average", "sliced joint", "unsliced"]
Conversion = Callable[[float, float, float], float]
"""Function of an order, its epsilon and a delta that gives the epsilon at that delta."""


def unique_deltas(deltas: Iterable[float]) -> tuple[float, ...]:
    """Check deltas, and return each once.

    >>> unique_deltas([1e-5, 1e-6, 1e-5])
    (1e-05, 1e-06)
    """
    if not is_a(deltas, Iterable):
        raise ArgumentError(f"deltas must be several numbers, got {given(deltas)}; use a list")
    listed = tuple(deltas)
    for delta in listed:
        check_between(0, 1, delta=delta)
    return tuple(dict.fromkeys(float(delta) for delta in listed))


@final
@attrs.frozen(kw_only=True)
class View:
    """One view of a claim as (epsilon, delta)."""

    scope: Scope
    rule: ViewRule
    epsilon: float
    delta: float


class Reading(Protocol):
    """A claim read as (epsilon, delta), about the whole output or along slices."""

    @property
    def scope(self) -> Scope:
        """Part of the output that the claim is about."""

    @property
    def epsilon(self) -> float:
        """Epsilon at the delta."""

    @property
    def delta(self) -> float:
        """Delta of the reading."""


def paper_epsilon(order: float, epsilon: float, delta: float) -> float:
    """Compute epsilon + ln(1/delta) / (order - 1); valid for average, joint and unsliced.

    Source: thm:ave_srpp_to_ave_spp_app, thm:joint_srpp_to_joint_spp_app.

    >>> round(paper_epsilon(4, 1.0, 1e-5), 12)
    4.837641821657
    """
    _check_conversion(order, epsilon, delta)
    return epsilon - math.log(delta) / (order - 1)


def improved_epsilon_joint(order: float, epsilon: float, delta: float) -> float:
    """Max(0, epsilon + c), c = ln((order-1)/order) - (ln delta + ln order) / (order-1).

    Valid for joint and unsliced claims, not for average ones: there the maximum with 0 must be
    taken slice by slice (`improved_epsilon_average`). After Canonne, Kamath and Steinke (2020).

    >>> round(improved_epsilon_joint(4, 1.0, 1e-5), 12)
    4.087861628832
    """
    _check_conversion(order, epsilon, delta)
    return max(0.0, epsilon + improved_term(order, delta))


def improved_epsilon_average(order: float, epsilon: float, delta: float) -> float:
    """Compute epsilon + max(0, c), with the c of `improved_epsilon_joint`."""
    _check_conversion(order, epsilon, delta)
    return epsilon + max(0.0, improved_term(order, delta))


def optimum_over_orders(rho: float, delta: float) -> float:
    """Compute rho + 2 sqrt(rho ln(1/delta)): for a cost of order * rho at *every* order.

    Needs: the worst-gap closed form; not for transport, tight joint or random differing records.

    >>> round(optimum_over_orders(0.25, 1e-5), 12)
    3.643070212208
    """
    check_at_least(0, rho=rho)
    check_between(0, 1, delta=delta)
    return rho + 2 * math.sqrt(-rho * math.log(delta))


def views_of(compared: Compared, claim: Claim, noise_std: float, delta: float) -> tuple[View, ...]:
    """List all views of a claim at `delta` for the noise that gives it.

    A sliced claim without slices is one along the whole sphere, in closed form.
    From samples, or with directions drawn from the sphere, a sliced view follows from the claim
    itself: other numbers from the same draws would each have their own failure probability.
    Guarantee: every view holds for the differences at their resolution, and `order_grid` is at most
    `improved`, at most `paper`.
    """
    check_between(0, 1, delta=delta)
    check_above(0, noise_std=noise_std)
    views: list[View] = []
    if claim.is_sliced and claim.has_order:
        views += _sliced_views(compared, claim, noise_std, delta)  # type: ignore[arg-type]
    views += unsliced_views(compared.full, noise_std, claim.reported_order, delta)
    return tuple(view for view in views if math.isfinite(view.epsilon))


AnyView = TypeVar("AnyView", bound="Reading")


def best_views(views: Iterable[AnyView]) -> tuple[AnyView, ...]:
    """Keep the smallest epsilon of each scope and delta; of equal ones the first."""
    best: dict[tuple[str, float], AnyView] = {}
    for view in views:
        if view.epsilon < best.setdefault((view.scope, view.delta), view).epsilon:
            best[view.scope, view.delta] = view
    return tuple(best.values())


def _sliced_views(compared: Compared, claim: Sliced, noise_std: float, delta: float) -> list[View]:
    """List views by the claim itself and, if nothing was sampled, by other orders and gaps."""
    slices = compared.slices

    def at_order(order: float) -> float:
        return claim.with_order(order).spent(compared, noise_std)

    spent = at_order(claim.order)
    if not spent <= claim.epsilon:
        raise ArgumentError(
            f"noise {noise_std!r} costs {spent!r}: it does not give the claim {claim}. Claim the "
            "epsilon that it costs"
        )
    average = claim.notion == "average"
    improved = improved_epsilon_average if average else improved_epsilon_joint
    epsilons = _by_claim(improved, claim.order, claim.epsilon, delta)
    if slices is None or not slices.failure_probability:
        epsilons["order_grid"] = _best_over_orders(
            at_order, improved, order=claim.order, cost=spent, delta=delta
        )
    if slices is not None and claim.method is not None and not slices.failure_probability:
        direct = None
        if delta >= SMALLEST_DIRECT_DELTA:
            noise, weights = slices.noise(noise_std), slices.profile.weights
            direct = slices.differences.epsilon_along(claim.notion, weights, delta, noise)
        if direct is not None:
            epsilons["direct"] = direct
        if claim.method.rule == "closed_form":
            epsilons["order_optimum"] = optimum_over_orders(at_order(2.0) / 2, delta)
    return _views("sliced average" if average else "sliced joint", epsilons, delta)


def unsliced_views(full: Full, noise_std: float, order: float, delta: float) -> list[View]:
    """List the views of the whole output alone; none where its distances are not known."""
    if full.differences is None or full.missing.any():
        return []
    direct = full.epsilon_at(delta, noise_std) if delta >= SMALLEST_DIRECT_DELTA else None
    if not full.differences.converts_orders:
        if direct is None or not direct < LARGEST_VIEW:
            return []
        return _views("unsliced", {"direct": direct}, delta)

    def at_order(order: float) -> float:
        return full.divergence(order, noise_std)

    spent = at_order(order)
    epsilons = _by_claim(improved_epsilon_joint, order, spent, delta)
    epsilons["order_grid"] = _best_over_orders(
        at_order, improved_epsilon_joint, order=order, cost=spent, delta=delta
    )
    if direct is not None:
        epsilons["direct"] = direct
    return _views("unsliced", epsilons, delta)


def _by_claim(
    improved: Conversion, order: float, epsilon: float, delta: float
) -> dict[ViewRule, float]:
    return {
        "paper": paper_epsilon(order, epsilon, delta),
        "improved": improved(order, epsilon, delta),
    }


def _views(scope: Scope, epsilons: Mapping[ViewRule, float], delta: float) -> list[View]:
    return [
        View(scope=scope, rule=rule, epsilon=epsilon, delta=delta)
        for rule, epsilon in epsilons.items()
    ]


def _best_over_orders(
    cost_at: Callable[[float], float],
    convert: Conversion,
    *,
    order: float,
    cost: float,
    delta: float,
) -> float:
    """Find the smallest converted cost over `ORDERS` and the claim's `order`, which costs `cost`.

    Needs: no cost falls with the order; orders that cannot give a smaller epsilon are skipped.
    """
    best = convert(order, cost, delta)
    least = 0.0
    for other in ORDERS:
        if convert(other, least, delta) < best:
            least = max(least, cost_at(other))
            best = min(best, convert(other, least, delta))
    return best


def _check_conversion(order: float, epsilon: float, delta: float) -> None:
    check_above(1, order=order)
    check_between(0, 1, delta=delta)
    if not epsilon >= 0:
        raise ArgumentError(f"epsilon must be a number and at least 0, got {epsilon!r}")
