# SPDX-License-Identifier: Apache-2.0
"""Safe-side root finding for monotone functions.

The end of the bracket that was evaluated and found safe is returned, never a midpoint.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice.errors import CalibrationError

RELATIVE_WIDTH: Final = 2.0**-44
"""Precision of a search: the value is within this factor of the smallest safe one."""

COARSE_WIDTH: Final = 2.0**-30
"""Precision of a search where costs are expensive and known less precisely."""

SAFETY: Final = 1 + 2.0**-38
"""Factor that raises every calibrated noise, far above the float error of the formulas."""

LARGEST: Final = 1e150
"""The largest noise: its square is still a float."""
LARGEST_EPSILON: Final = 1e4
"""Where a search for an epsilon stops."""

_SMALLEST: Final = 1e-150
_MAX_STEPS: Final = 400
_MOST_STEPS: Final = 150


def smallest_safe(
    cost: Callable[[float], float],
    limit: float,
    *,
    start: float,
    factor: float = 2.0,
    width: float = RELATIVE_WIDTH,
) -> float:
    """Smallest x > 0, up to a relative `width`, with `cost(x) <= limit`.

    `factor` is how far the start may be from it, roughly.
    Guarantee: `cost(result) <= limit` was evaluated and held.
    Needs: `cost` does not increase in x (it may be infinite for small x).

    >>> smallest_safe(lambda x: 8 / x**2, 2.0, start=1.0)
    2.0
    """
    known: dict[float, float] = {}

    def value_at(x: float) -> float:
        if x not in known:
            known[x] = cost(x)
        return known[x]

    unsafe, safe = _bracket(value_at, limit, start, factor)
    values = (value_at(unsafe), value_at(safe))
    for step in range(_MAX_STEPS):
        if safe <= unsafe * (1 + width):
            return safe
        x = _candidate(unsafe, safe, values, limit, step, width)
        value = cost(x)
        if value <= limit:
            safe, values = x, (values[0], value)
        else:
            unsafe, values = x, (value, values[1])
    return safe


def smallest_safe_multiplier(
    cost: Callable[[float], float], limit: float, *, start: float
) -> float:
    """Find `smallest_safe` up to `COARSE_WIDTH`, for an expensive cost smooth in 1 / x^2.

    By turns the answer is guessed from the two values next to the limit, and from two unsafe points
    (the cost may have a cliff); then a point a little beyond such a guess is tried, which is safe
    if the guess was good.
    """
    values: dict[float, float] = {}

    def value(x: float) -> float:
        if x not in values:
            values[x] = cost(x)
        return values[x]

    unsafe, safe = _bracket(value, limit, start)
    nudge, width = 1 + COARSE_WIDTH / 2, math.inf
    for step in range(_MAX_STEPS):
        if safe <= unsafe * (1 + COARSE_WIDTH):
            break
        near = sorted(values, key=lambda x: abs(values[x] - limit))[:2]
        further = max((x for x in values if x < unsafe), default=safe)
        pairs = (near, (unsafe, further)) if step % 3 == 0 else ((unsafe, further), near)
        guesses = [_crossing(x, y, (value(x), value(y)), limit) for x, y in pairs]
        x = next((x for x in guesses if unsafe < x < safe), math.nan)
        if step % 3 == 2:
            x += (x - unsafe) / 16
            width, is_slow = safe - unsafe, safe - unsafe > width / 8
            x = math.nan if is_slow else x
        if not unsafe < x < safe:
            x = math.sqrt(unsafe) * math.sqrt(safe)
        x = min(max(x, unsafe * nudge), safe / nudge)
        safe, unsafe = (x, unsafe) if value(x) <= limit else (safe, x)
    return safe


def _crossing(x: float, other: float, values: tuple[float, float], limit: float) -> float:
    """Point where a line in 1 / x^2 through two points reaches the limit; NaN if nowhere."""
    rise = values[0] - values[1]
    if not (math.isfinite(rise) and rise * (other - x) > 0):
        return math.nan
    share = (values[0] - limit) / rise
    inverse = 1 + share * ((x / other) ** 2 - 1)
    return x / math.sqrt(inverse) if inverse > 0 else math.nan


def raise_until(holds: Callable[[float], bool], value: float) -> float:
    """A float at or above `value` at which `holds`; for a monotone `holds`, close to the first.

    Steps double, so that a value far below the safe region is still left quickly.
    """
    step = math.ulp(value)
    while not holds(value):
        value += step
        step *= 2
        if not value < LARGEST:
            raise CalibrationError(
                f"no value up to {LARGEST:g} satisfies the bound. Ask for a larger epsilon or "
                "delta, or a smaller order"
            )
    return value


def _bracket(
    cost: Callable[[float], float], limit: float, start: float, first: float = 2.0
) -> tuple[float, float]:
    """An unsafe and a safe point, one below the other."""
    low = high = min(max(start, _SMALLEST * 4), LARGEST / 4)
    factor = first
    while not cost(high) <= limit:
        if not high < LARGEST:
            raise CalibrationError(
                f"no noise up to {LARGEST:g} brings the cost down to {limit:g}. Ask for a weaker "
                "claim, or scale the query"
            )
        low, high = high, min(high * factor, LARGEST)
        factor *= factor
    factor = first
    while cost(low) <= limit:
        if not low > _SMALLEST:
            raise CalibrationError(
                f"the cost stays below {limit:g} for noise down to {_SMALLEST:g}: nothing to hide. "
                "Ask for a smaller epsilon, or scale the query"
            )
        high, low = low, max(low / factor, _SMALLEST)
        factor *= factor
    return low, high


def _candidate(
    unsafe: float, safe: float, values: tuple[float, float], limit: float, step: int, width: float
) -> float:
    """Secant in log-log coordinates, kept inside the bracket; every third step bisects."""
    middle = math.sqrt(unsafe) * math.sqrt(safe)
    above, below = values
    if step % 3 == 2 or not (math.isfinite(above) and below > 0):
        return middle
    slope = math.log(above / below)
    if not slope > 0:
        return middle
    share = math.log(above / limit) / slope
    x = unsafe * math.exp(share * math.log(safe / unsafe))
    nudge = 1 + width / 2
    return min(max(x, unsafe * nudge), safe / nudge)


def smallest_epsilon(
    delta_at: Callable[[float], float],
    delta: float,
    *,
    first: float = 1.0,
    width: float = RELATIVE_WIDTH,
) -> float:
    """Smallest epsilon with `delta_at(epsilon) <= delta`; infinite if none is found.

    `first` is tried first: if it is enough, the result is not larger. The result is the smallest up
    to the relative `width`, and never below it.
    """

    def deltas(epsilons: Floats) -> Floats:
        return np.array([delta_at(float(epsilons[0]))])

    found = smallest_epsilons(deltas, np.array([first]), np.array([delta]), width=width)
    return float(found[0])


def smallest_epsilons(
    deltas: Callable[[Floats], Floats],
    first: Floats,
    limits: Floats,
    *,
    width: float = RELATIVE_WIDTH,
) -> Floats:
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
        wide = np.isfinite(high) & (high - low > width * high)
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
