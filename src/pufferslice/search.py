# SPDX-License-Identifier: Apache-2.0
"""Safe-side root finding for monotone functions.

The end of the bracket that was evaluated and found safe is returned, never a midpoint.
"""

import math
from collections.abc import Callable
from typing import Final

from pufferslice.errors import CalibrationError

RELATIVE_WIDTH: Final = 2.0**-44
"""The returned value is within this factor of the smallest safe one."""

SAFETY: Final = 1 + 2.0**-38
"""Every calibrated noise is raised by this factor, far above the float error of the formulas."""

_LARGEST: Final = 1e150
_SMALLEST: Final = 1e-150
_MAX_STEPS: Final = 400


def smallest_safe(cost: Callable[[float], float], limit: float, *, start: float) -> float:
    """Smallest x > 0, up to `RELATIVE_WIDTH`, with `cost(x) <= limit`.

    Guarantee: `cost(result) <= limit` was evaluated and held.
    Needs: `cost` does not increase in x (it may be infinite for small x).

    >>> smallest_safe(lambda x: 8 / x**2, 2.0, start=1.0)
    2.0
    """
    unsafe, safe = _bracket(cost, limit, start)
    values = (cost(unsafe), cost(safe))
    for step in range(_MAX_STEPS):
        if safe <= unsafe * (1 + RELATIVE_WIDTH):
            return safe
        x = _candidate(unsafe, safe, values, limit, step)
        value = cost(x)
        if value <= limit:
            safe, values = x, (values[0], value)
        else:
            unsafe, values = x, (value, values[1])
    return safe


def raise_until(holds: Callable[[float], bool], value: float) -> float:
    """A float at or above `value` at which `holds`; for a monotone `holds`, close to the first.

    Steps double, so that a value far below the safe region is still left quickly.
    """
    step = math.ulp(value)
    while not holds(value):
        value += step
        step *= 2
        if not value < _LARGEST:
            msg = (
                f"no value up to {_LARGEST:g} satisfies the bound. Ask for a larger epsilon or "
                "delta, or a smaller order"
            )
            raise CalibrationError(msg)
    return value


def _bracket(cost: Callable[[float], float], limit: float, start: float) -> tuple[float, float]:
    """An unsafe and a safe point, one below the other."""
    low = high = min(max(start, _SMALLEST * 4), _LARGEST / 4)
    factor = 2.0
    while not cost(high) <= limit:
        low, high = high, high * factor
        factor *= factor
        if not high < _LARGEST:
            msg = (
                f"no noise up to {_LARGEST:g} brings the cost down to {limit:g}. Ask for a larger "
                "epsilon, or scale the query"
            )
            raise CalibrationError(msg)
    factor = 2.0
    while cost(low) <= limit:
        high, low = low, low / factor
        factor *= factor
        if low < _SMALLEST:
            msg = (
                f"the cost stays below {limit:g} for noise down to {_SMALLEST:g}: nothing to hide. "
                "Ask for a smaller epsilon, or scale the query"
            )
            raise CalibrationError(msg)
    return low, high


def _candidate(
    unsafe: float, safe: float, values: tuple[float, float], limit: float, step: int
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
    nudge = 1 + RELATIVE_WIDTH / 2
    return min(max(x, unsafe * nudge), safe / nudge)
