# SPDX-License-Identifier: Apache-2.0
"""Wasserstein distances of finite distributions: on the line, in all dimensions, along slices.

Estimates for reading and comparison; mechanisms use exact gaps, see `pufferslice.sensitivity`.
Source: def:WD, app:ER_WD.
"""

from typing import Final

import numpy as np
from scipy.optimize import linear_sum_assignment

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_above, check_at_least
from pufferslice.baselines.transport import check_pair, masses, pairwise_distances
from pufferslice.errors import CalibrationError, MissingExtraError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity.profiles import Profile, check_profile, project

_MOST_ROUNDS: Final = 100_000
_MARGINAL_ERROR: Final = 1e-9


def wasserstein_distance(
    first: FiniteDistribution, second: FiniteDistribution, *, p: float
) -> float:
    r"""$W_p$: the p-th root of the least mean of $\|X - Y\|^p$ over all couplings.

    On the line the sorted coupling is the best one. In more dimensions equal weights make an
    assignment problem; unequal ones need the extra `baselines` (POT).

    >>> first = FiniteDistribution.uniform([[0.0, 0.0], [3.0, 4.0]])
    >>> wasserstein_distance(first, FiniteDistribution.uniform([[0.0, 0.0]]), p=1)
    2.5
    """
    check_at_least(1, p=p)
    if first.dim == second.dim == 1:
        supply, demand = masses(first, second)
        mean = _on_line(first.outputs[:, 0], supply, second.outputs[:, 0], demand, p)
        return float(mean ** (1 / p))
    check_pair(first, second, n_tables=3)
    supply, demand = masses(first, second)
    distances = pairwise_distances(first, second)
    largest = float(distances.max())
    if largest == 0:
        return 0.0
    costs = (distances / largest) ** p
    if len({*supply.tolist(), *demand.tolist()}) == 1:
        rows, columns = linear_sum_assignment(costs)
        mean = float(costs[rows, columns].mean())
    else:
        # Not at the top: it needs an extra.
        from pufferslice.baselines.pot import cheapest_plan  # noqa: PLC0415

        plan = cheapest_plan(costs, supply, demand)
        mean = float((plan * costs).sum() / supply.sum())
    return float(largest * mean ** (1 / p))


def sliced_wasserstein(
    first: FiniteDistribution, second: FiniteDistribution, *, p: float, profile: Profile
) -> float:
    r"""$SW_p$: the p-th root of the mean over slices of $W_p^p$ along them.

    With a `SampledSphere` it estimates the distance over the whole sphere from drawn directions.

    >>> from pufferslice.sensitivity import FiniteProfile
    >>> first, second = (FiniteDistribution.uniform([[x, 0.0]]) for x in (0.0, 3.0))
    >>> sliced_wasserstein(first, second, p=2, profile=FiniteProfile.axes(dim=2))**2
    4.5
    """
    check_at_least(1, p=p)
    check_profile(profile, first.dim)
    check_profile(profile, second.dim)
    supply, demand = masses(first, second)
    left, right = (project(profile.directions, values.outputs) for values in (first, second))
    powers = [_on_line(x, supply, y, demand, p) for x, y in zip(left, right, strict=True)]
    weights = profile.weights / profile.weights.sum()
    return float(np.dot(weights, powers) ** (1 / p))


def entropic_wasserstein(
    first: FiniteDistribution, second: FiniteDistribution, *, p: float, regularisation: float
) -> float:
    r"""The p-th root of the mean of $\|X - Y\|^p$ under the entropic plan (Sinkhorn).

    The plan minimises that mean plus `regularisation` times its relative entropy to the product of
    the distributions. Never below $W_p$ up to the error of the iteration, which stops when the
    marginals are met to 1e-9. Needs the extra `baselines` (POT). Source: app:ER_WD.
    """
    check_at_least(1, p=p)
    check_above(0, regularisation=regularisation)
    try:
        import ot  # noqa: PLC0415 - an extra
    except ImportError as error:
        msg = "entropic plans need POT: pip install 'pufferslice[baselines]'"
        raise MissingExtraError(msg) from error
    check_pair(first, second, n_tables=6)
    costs = pairwise_distances(first, second) ** p
    shares = [values.counts / values.total for values in (first, second)]
    plan, log = ot.sinkhorn(
        *shares,
        costs,
        regularisation,
        method="sinkhorn_log",
        numItermax=_MOST_ROUNDS,
        stopThr=_MARGINAL_ERROR,
        log=True,
        warn=False,
    )
    if not log["err"][-1] <= _MARGINAL_ERROR:
        msg = (
            f"the plan did not meet its marginals in {_MOST_ROUNDS:,} rounds; use a larger "
            "regularisation"
        )
        raise CalibrationError(msg)
    return float((plan * costs).sum() ** (1 / p))


def _on_line(x: Floats, supply: Integers, y: Floats, demand: Integers, p: float) -> float:
    """Mean of |X - Y|^p under the sorted coupling; masses are integers of one total."""
    x_order, y_order = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    x_ends, y_ends = np.cumsum(supply[x_order]), np.cumsum(demand[y_order])
    ends = np.union1d(x_ends, y_ends)
    widths = np.diff(ends, prepend=0)
    gaps = np.abs(
        x[x_order][np.searchsorted(x_ends, ends)] - y[y_order][np.searchsorted(y_ends, ends)]
    )
    return float(np.dot(widths, gaps**p) / ends[-1])
