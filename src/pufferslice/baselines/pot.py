# SPDX-License-Identifier: Apache-2.0
"""The cheapest coupling of two distributions of unequal weights, by POT's network simplex."""

from typing import Final

import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice.errors import CalibrationError, MissingExtraError

try:
    import ot
except ImportError as error:
    msg = "DAGWM for unequal weights needs POT: pip install 'pufferslice[baselines]'"
    raise MissingExtraError(msg) from error

_MOST_PIVOTS: Final = 10**9
_LARGEST_TOTAL: Final = 2**53
"""Larger integers are not floats."""


def cheapest_plan(costs: Floats, supply: Integers, demand: Integers) -> Floats:
    """The plan of least total cost from `supply` to `demand`, which have one sum.

    Guarantee: its entries are integers and its marginals exact; rounding can only make it not quite
    cheapest.
    """
    plan = ot.emd(supply.astype(float), demand.astype(float), costs, _MOST_PIVOTS)
    np.rint(plan, out=plan)
    exact = (
        supply.sum() <= _LARGEST_TOTAL
        and np.array_equal(plan.sum(axis=1), supply)
        and np.array_equal(plan.sum(axis=0), demand)
    )
    if not exact:
        msg = (
            f"the weights have the common denominator {supply.sum()}, which is too large for an "
            "exact coupling in floats; use weights with a smaller one"
        )
        raise CalibrationError(msg)
    return np.asarray(plan)
