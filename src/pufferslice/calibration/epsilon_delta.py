# SPDX-License-Identifier: Apache-2.0
"""(epsilon, delta) readings of Rényi claims, and noise for sliced (epsilon, delta) claims."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Literal, final

import attrs
import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtr

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_above, check_at_least, check_between, check_one_of, is_a
from pufferslice._core.search import SAFETY, raise_until, smallest_safe
from pufferslice._core.text import given
from pufferslice.calibration.calibrate import (
    LEAST_NOISE,
    Method,
    calibrate,
    check_shift,
    cost,
    full_cost,
    full_deltas,
    grid_margin,
    largest_shift,
)
from pufferslice.calibration.guarantee import (
    RELEASE_NOTIONS,
    ApproximateGuarantee,
    Claim,
    Guarantee,
)
from pufferslice.calibration.sphere import sphere_cost
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity import GapTables
from pufferslice.sensitivity.renyi import aggregate_average, moment_rate
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.sensitivity import Envelope, Full, Slices
from pufferslice.sensitivity.tables import DistanceTables, MatchingTables

ViewRule = Literal["paper", "improved", "order_grid", "order_optimum", "direct"]

DEFAULT_DELTAS: Final = (1e-5,)
"""Of the views of a certificate."""

ORDERS: Final = tuple(
    1 + x for x in (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 63, 127, 255)
)
"""The grid over which orders are minimised at fixed noise."""

CLAIM_ORDERS: Final = tuple(1 + 1.4**k for k in range(-6, 26))
"""The grid where the direct formula ends; any order gives a valid epsilon."""

REPORTED_ORDER: Final = 2.0
"""The order of the reported unsliced cost of claims without an order."""

SMALLEST_DIRECT_DELTA: Final = 1e-12
"""Below this the direct formula would subtract nearly equal floats, and is not used."""

LARGEST_EPSILON: Final = 1e4
"""Where a search for an epsilon stops."""


_ROUGH_ENTRIES: Final = 60_000
"""Searches start on tables rounded up to this many entries."""
_MOST_STEPS: Final = 150
_RELATIVE_WIDTH: Final = 2.0**-44
_BELOW: Final = 1 - 2.0**-50
_ABOVE: Final = 1 + 1e-12
_DELTA_ERROR: Final = 2.0**-49
"""More than the float error of a difference of two probabilities."""


Scope = Literal["sliced average", "sliced joint", "unsliced"]
Conversion = Callable[[float, float, float], float]
"""From an order, its epsilon and a delta to the epsilon at that delta."""


def unique_deltas(deltas: Iterable[float]) -> tuple[float, ...]:
    """The deltas of views, checked, each once.

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
    """One reading of a claim as (epsilon, delta)."""

    scope: Scope
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


def improved_term(order: float, delta: float) -> float:
    """The c of `improved_epsilon_joint`: what converting to `delta` adds; may be negative."""
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def gaussian_delta(ratios: Floats, epsilon: Floats | float) -> Floats:
    """Delta of N(shift, std^2) against N(0, std^2), ratios = shift / std; elementwise."""
    ratios = np.abs(np.asarray(ratios, dtype=np.float64))
    if not np.all(np.asarray(epsilon) >= 0):
        raise ArgumentError(f"epsilon must be a number and at least 0, got {epsilon!r}")
    no_delta = (ratios == 0) | np.isposinf(epsilon)
    safe, epsilon = np.where(ratios == 0, 1.0, ratios), np.where(no_delta, 0.0, epsilon)
    direct = ndtr(safe / 2 - epsilon / safe) - np.exp(
        np.minimum(epsilon + log_ndtr(-safe / 2 - epsilon / safe), 0.0)
    )
    return np.asarray(np.where(no_delta, 0.0, np.maximum(direct, 0.0)))


def views_of(
    slices: Slices | None,
    full: Full,
    claim: Claim,
    noise_std: float,
    method: Method | None,
    delta: float,
) -> tuple[View, ...]:
    """All views of a claim at `delta` for the noise that gives it; `method` goes with slices.

    A sliced claim without slices is one along the whole sphere, in closed form.
    From samples, or with directions drawn from the sphere, a sliced view follows from the claim
    itself: other numbers from the same draws would each have their own failure probability.
    Guarantee: every view holds for the tables of `slices` and `full` at their resolution, and
    `order_grid` is at most `improved`, at most `paper`.
    """
    check_between(0, 1, delta=delta)
    check_above(0, noise_std=noise_std)
    views: list[View] = []
    order = REPORTED_ORDER
    if isinstance(claim, Guarantee):
        check_one_of(RELEASE_NOTIONS, notion=claim.notion)
        order = claim.order
        if claim.is_sliced:
            views += _sliced_views(slices, full, claim, noise_std, method, delta)
    views += unsliced_views(full, noise_std, order, delta)
    return tuple(view for view in views if math.isfinite(view.epsilon))


def best_views(views: Iterable[View]) -> tuple[View, ...]:
    """The smallest epsilon of each scope and delta; of equal ones the first."""
    best: dict[tuple[str, float], View] = {}
    for view in views:
        if view.epsilon < best.setdefault((view.scope, view.delta), view).epsilon:
            best[view.scope, view.delta] = view
    return tuple(best.values())


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
    C; the rest has mass tau. Never above the Rényi conversion `renyi_cost`, which bounds it
    pointwise and is used where delta - tau is too small for floats.
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

    weights = slices.profile.weights
    margin = grid_margin(slices.profile.dim, noise_std)

    def deltas(epsilons: Floats) -> Floats:
        """Delta of the covered levels along each slice, shape (n_instances, n_slices)."""
        if envelope == "transport":
            rows = tables.deltas(epsilons, noise_std, margin)
        else:
            rows = gaussian_delta((tables.worst() + margin) / noise_std, epsilons) + _DELTA_ERROR
            rows[tables.equal] = 0.0
        return np.asarray(rows * (1 - slices.missing)[:, None])

    if claim.notion == "average":
        by_slice = smallest_epsilons(deltas, np.ones((len(left), len(weights))), left[:, None])
        return float(aggregate_average(by_slice, weights)[~tables.equal].max())

    def joint(epsilons: Floats) -> Floats:
        each = np.repeat(epsilons[:, None], len(weights), axis=1)
        return aggregate_average(deltas(each), weights) * _ABOVE

    by_instance = smallest_epsilons(joint, np.full(len(left), claim.epsilon), left)
    return float(by_instance[~tables.equal].max())


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
    margin = grid_margin(slices.profile.dim, noise_std)
    epsilons = []
    for order in CLAIM_ORDERS:
        rate = moment_rate(order, noise_std)
        if envelope == "transport":
            logs = tables.log_moments(rate, margin)
        else:
            with np.errstate(over="ignore"):
                logs = rate * (tables.worst() + margin) ** 2
        logs = logs + np.log1p(-slices.missing)[:, None]
        terms = np.array([improved_term(order, float(delta)) for delta in left])
        if claim.notion == "joint":
            # Weights are shares of their sum, which may be rounded.
            logs = logsumexp(logs, b=slices.profile.weights, axis=1) + (_ABOVE - 1)
            epsilons.append(np.maximum(0.0, logs / (order - 1) + terms))
        else:
            epsilons.append(np.maximum(0.0, logs / (order - 1) + terms[:, None]))
    best = np.array(epsilons).min(axis=0)
    if claim.notion == "average":
        best = aggregate_average(best, slices.profile.weights)
    return float(best[~tables.equal].max())


def calibrate_approximate(
    target: ApproximateGuarantee, slices: Slices, envelope: Envelope
) -> float:
    """Smallest noise standard deviation found, in scaled coordinates, that gives the target.

    Guarantee: `approximate_cost(result) <= target.epsilon` was evaluated and holds. 0 if all
    distributions are equal.
    """
    tables = _tables(slices)
    if slices.are_equal:
        return 0.0
    start = largest_shift(tables, slices.profile.weights)
    check_shift(start)

    def cost_of(slices: Slices, std: float) -> float:
        return approximate_cost(slices, target, std, envelope)

    if cost_of(slices, start * LEAST_NOISE) <= target.epsilon:
        return start * LEAST_NOISE
    coarse = attrs.evolve(slices, differences=tables.coarsened(_ROUGH_ENTRIES))
    rough = smallest_safe(lambda std: cost_of(coarse, std), target.epsilon, start=start)
    noise_std = smallest_safe(lambda std: cost_of(slices, std), target.epsilon, start=rough)
    return raise_until(lambda std: cost_of(slices, std) <= target.epsilon, noise_std * SAFETY)


def sliced_noise(slices: Slices, target: Claim, method: Method) -> float:
    """The noise that a claim along slices needs."""
    if isinstance(target, ApproximateGuarantee):
        return calibrate_approximate(target, slices, method.envelope)
    if isinstance(target, Guarantee):
        return calibrate(target, slices, method)
    raise ArgumentError(f"{target} is a claim about the whole output; it has no slices")


def smallest_epsilon(
    delta_at: Callable[[float], float], delta: float, *, first: float = 1.0
) -> float:
    """Smallest epsilon with `delta_at(epsilon) <= delta`; infinite if none is found.

    `first` is tried first: if it is enough, the result is not larger.
    """

    def deltas(epsilons: Floats) -> Floats:
        return np.array([delta_at(float(epsilons[0]))])

    return float(smallest_epsilons(deltas, np.array([first]), np.array([delta]))[0])


def smallest_epsilons(deltas: Callable[[Floats], Floats], first: Floats, limits: Floats) -> Floats:
    """For each entry the smallest epsilon with delta at most its limit; infinite if none is found.

    Guarantee: `deltas` was evaluated at the result and was at most the limit. A bracket is narrowed
    by secants of ln(delta), every third time by halves; its upper end is returned. `first` is tried
    first, so an entry for which it is enough never gets more.
    Needs: no delta grows with its own epsilon.
    """
    low, high = np.zeros_like(first), np.where(first > 0, first, 1.0)
    at_low, at_high = deltas(low), deltas(high)
    none = at_low <= limits
    while (short := at_high > limits).any() and high.max() < LARGEST_EPSILON:
        low[short], at_low[short] = high[short], at_high[short]
        high[short] *= 2
        at_high = deltas(high)
    high[at_high > limits] = np.inf
    high[none] = 0.0
    with np.errstate(divide="ignore"):
        above, below = np.log(at_low / limits), np.log(at_high / limits)
    side = np.zeros_like(first)
    for step in range(_MOST_STEPS):
        wide = np.isfinite(high) & (high - low > _RELATIVE_WIDTH * high)
        if not wide.any():
            break
        # Narrow brackets are evaluated at infinity, where the delta costs nothing to compute.
        middle = np.where(wide, (low + high) / 2, np.inf)
        if step % 3 < 2:
            with np.errstate(invalid="ignore", divide="ignore"):
                secant = high - (high - low) * below / (below - above)
            middle = np.where(wide & (secant > low) & (secant < high), secant, middle)
        at_middle = deltas(middle)
        with np.errstate(divide="ignore"):
            value = np.log(at_middle / limits)
        good = (at_middle <= limits) & wide
        # An end that stays twice counts half, so that the other one does not creep (Illinois).
        above = np.where(good, np.where(side > 0, above / 2, above), value)
        below = np.where(good, value, np.where(side < 0, below / 2, below))
        side = np.where(good, 1.0, -1.0)
        low = np.where(wide & ~good, middle, low)
        high = np.where(good, middle, high)
    return high


def _sliced_views(
    slices: Slices | None,
    full: Full,
    claim: Guarantee,
    noise_std: float,
    method: Method | None,
    delta: float,
) -> list[View]:
    """By the claim itself and, where nothing was sampled, by its cost at other orders and gaps."""

    def at_order(order: float) -> float:
        other = attrs.evolve(claim, order=order)
        if slices is None or method is None:
            return sphere_cost(full, other, noise_std)
        return cost(slices, other, noise_std, method)

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
    if slices is not None and method is not None and not slices.failure_probability:
        if isinstance(slices.differences, GapTables) and delta >= SMALLEST_DIRECT_DELTA:
            epsilons["direct"] = _direct(slices, slices.differences, claim, noise_std, delta)
        if method.rule == "closed_form":
            epsilons["order_optimum"] = optimum_over_orders(at_order(2.0) / 2, delta)
    return _views("sliced average" if average else "sliced joint", epsilons, delta)


def _direct(
    slices: Slices, gaps: GapTables, claim: Guarantee, noise_std: float, delta: float
) -> float:
    weights, margin = slices.profile.weights, grid_margin(slices.profile.dim, noise_std)

    def epsilons_of(tables: DistanceTables) -> Floats:
        if claim.notion == "average":
            rows = _row_epsilons(tables, lambda e: tables.deltas(e, noise_std, margin), delta)
            return aggregate_average(rows, weights)
        ones = np.ones(tables.n_instances)
        deltas = partial(joint_deltas, tables, weights, noise_std, margin)
        return smallest_epsilons(deltas, ones, delta * ones)

    return _largest(gaps, epsilons_of)


def unsliced_views(full: Full, noise_std: float, order: float, delta: float) -> list[View]:
    """The views of the whole output alone; none where its distances are not known."""
    if (
        full.differences is None
        or full.missing.any()
        or isinstance(full.differences, RowDifference)
    ):
        return []

    def at_order(order: float) -> float:
        return full_cost(full, order, noise_std)

    def direct(tables: DistanceTables) -> Floats:
        rows = _row_epsilons(tables, lambda e: full_deltas(full, tables, e, noise_std), delta)
        return np.asarray(rows.min(axis=1))

    spent = at_order(order)
    epsilons = _by_claim(improved_epsilon_joint, order, spent, delta)
    epsilons["order_grid"] = _best_over_orders(
        at_order, improved_epsilon_joint, order=order, cost=spent, delta=delta
    )
    if isinstance(full.differences, MatchingTables) and delta >= SMALLEST_DIRECT_DELTA:
        epsilons["direct"] = _largest(full.differences, direct)
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
    """The smallest converted cost over `ORDERS` and the claim's `order`, whose cost is `cost`.

    Needs: no cost falls with the order; orders that cannot give a smaller epsilon are skipped.
    """
    best = convert(order, cost, delta)
    least = 0.0
    for other in ORDERS:
        if convert(other, least, delta) < best:
            least = max(least, cost_at(other))
            best = min(best, convert(other, least, delta))
    return best


def _largest(tables: DistanceTables, epsilons_of: Callable[[DistanceTables], Floats]) -> float:
    """The largest epsilon of an instance; needs: no epsilon grows if gaps are rounded less.

    Only instances whose epsilon on rougher tables is above the largest so far are evaluated.
    """
    rough_tables = tables.coarsened(_ROUGH_ENTRIES)
    rough = epsilons_of(rough_tables)
    if rough_tables is tables:
        return float(rough.max())
    ranked: Integers = np.argsort(-rough, kind="stable")
    largest, n = 0.0, 1
    while len(ranked) and rough[ranked[0]] > largest:
        some, ranked = np.sort(ranked[:n]), ranked[n:]
        largest, n = max(largest, float(epsilons_of(tables.only(some)).max())), 2 * n
    return largest


def joint_deltas(
    tables: DistanceTables, weights: Floats, noise_std: float, margin: float, epsilons: Floats
) -> Floats:
    """Mean over the slices of the delta of each instance at its own epsilon.

    Sound because hockey-stick divergences are jointly convex.
    """
    each = np.repeat(epsilons[:, None], tables.n_slices, axis=1)
    return aggregate_average(tables.deltas(each, noise_std, margin), weights)


def _row_epsilons(
    tables: DistanceTables, deltas: Callable[[Floats], Floats], delta: float
) -> Floats:
    """Smallest epsilon of each instance and slice at `delta`."""
    ones = np.ones((tables.n_instances, tables.n_slices))
    return smallest_epsilons(deltas, ones, delta * ones)


def _tables(slices: Slices) -> GapTables:
    if not isinstance(slices.differences, GapTables):
        raise ArgumentError(
            "an (epsilon, delta) claim is calibrated on gaps, which Gaussian distributions do "
            "not have; certify a Rényi claim and read its (epsilon, delta) views"
        )
    if slices.sphere is not None:
        raise ArgumentError(
            "the sphere as profile does not go with an (epsilon, delta) claim; use a FiniteProfile"
        )
    return slices.differences


def _delta_left(slices: Slices, delta: float) -> Floats:
    """What is left of delta for the covered levels, per instance, rounded down."""
    left = np.asarray((delta - slices.missing) * _BELOW)
    if not (left > 0).all():
        raise ArgumentError(
            f"the samples leave out levels of mass {float(slices.missing.max()):.3g}, which must be"
            f" below delta {delta:g}; take more samples, or claim a larger delta"
        )
    return left


def _check_conversion(order: float, epsilon: float, delta: float) -> None:
    check_above(1, order=order)
    check_between(0, 1, delta=delta)
    if not epsilon >= 0:
        raise ArgumentError(f"epsilon must be a number and at least 0, got {epsilon!r}")
