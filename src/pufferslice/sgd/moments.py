# SPDX-License-Identifier: Apache-2.0
"""Moments of costs over a random number of records, in log space and with no digit lost."""

from collections.abc import Callable
from typing import Final

import numpy as np

from pufferslice.arrays import Floats, Integers
from pufferslice.sgd.differing import DifferingRecords

_FEW_COUNTS: Final = 512
"""Up to so many counts, each has its cost computed."""
_TOLERANCE: Final = 2.0**-30
"""For more of them: how much of the moment may come from rounding up to the next computed cost."""


def log_mean_exp(log_probabilities: Floats, exponents: Floats) -> Floats:
    """The log of E exp(X) over the first axis, for exponents that are not negative.

    From the positive terms of E[exp(X) - 1], so that a result of 1e-15 has all its digits.

    >>> float(log_mean_exp(np.log([0.5, 0.5]), np.array([0.0, 2e-15])))
    1e-15
    """
    with np.errstate(divide="ignore", over="ignore"):  # log 0 is an impossible or a free count
        terms = log_probabilities + exponents + np.log(-np.expm1(-exponents))
        top = terms.max(axis=0)
        top = np.where(np.isfinite(top), top, 0.0)
        return np.asarray(np.logaddexp(0, top + np.log(np.exp(terms - top).sum(axis=0))))


def costs_by_count(
    cost_of: Callable[[int], float], order: float, differing: DifferingRecords
) -> Floats:
    """An upper bound on the cost for each of `differing.counts`, sharp where it matters.

    Needs: `cost_of` does not fall. With few counts each is computed. With more, a count takes the
    cost of the next larger computed one, and costs are computed until that adds no more than a
    billionth to the moment of order `order - 1` of the cost.
    """
    n_counts = len(differing.counts)
    costs = np.full(n_counts, np.nan)
    wanted = np.arange(n_counts) if n_counts <= _FEW_COUNTS else _powers_of_two(n_counts)
    while wanted.size:
        costs[wanted] = [cost_of(int(count)) for count in differing.counts[wanted]]
        known = np.flatnonzero(~np.isnan(costs))
        wanted = _halving(known, costs, order, differing.log_probabilities)
    return np.asarray(costs[known[np.searchsorted(known, np.arange(n_counts))]])


def _powers_of_two(n_counts: int) -> Integers:
    """The last position, and those below it at distances that double from the first one."""
    return np.unique([*(2 ** np.arange(n_counts.bit_length()) - 1), n_counts - 1])


def _halving(known: Integers, costs: Floats, order: float, log_probabilities: Floats) -> Integers:
    """Middles of the gaps between known costs across which rounding up still adds too much."""
    if np.isinf(costs[-1]):  # and the moment with it, whatever is between
        return np.empty(0, dtype=np.int64)
    block = np.searchsorted(known, np.arange(len(costs)))
    above, below = costs[known[block]], costs[known[np.maximum(block - 1, 0)]]
    exponents, steps = (order - 1) * above, (order - 1) * np.maximum(above - below, 0)
    with np.errstate(divide="ignore"):
        logs = log_probabilities + exponents
        total = np.logaddexp.reduce(logs + np.log(-np.expm1(-exponents)))
        added = logs + np.log(-np.expm1(-steps))
    added[known] = -np.inf
    each = np.logaddexp.reduceat(added, known)
    too_much = np.flatnonzero(each > total + np.log(_TOLERANCE / len(known)))
    return np.asarray((known[too_much] + known[too_much + 1]) // 2)
