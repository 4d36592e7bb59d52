# SPDX-License-Identifier: Apache-2.0
r"""What a release shows of one person who contributes one row.

Replacing a row (or, where the number of rows is hidden, adding or removing one) moves the sums by
at most a distance $\mu$ in standard deviations of the noise, so that the two outputs are no easier
to tell apart than N(0, 1) and N($\mu$, 1). This needs public ranges of the features, and noise that
does not depend on the released rows.
"""

from typing import Final

import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_at_least, check_between
from pufferslice._core.search import RELATIVE_WIDTH, smallest_epsilon
from pufferslice.sensitivity.precision import Precision
from pufferslice.sensitivity.renyi import gaussian_delta, released_delta

_DELTA_ERROR: Final = 2.0**-48
_UP: Final = 1 + 2.0**-50
_LEAST_DISTANCE: Final = 2.0**-50


def row_distance(
    covariance: Floats,
    low: Floats,
    high: Floats,
    *,
    absent: bool = False,
    enough: float = 0.0,
) -> float:
    r"""Bound how far one row can move the output, in standard deviations of the noise.

    $$\mu = \max \sqrt{(f - f')^\top \Sigma^{-1} (f - f')}$$

    over features f, f' of a row, each in one of the boxes; see `Precision.farthest`. Boxes, one
    for each combination of cells, show that no row is in two cells at once.

    Args:
        covariance: Covariance of the noise, shape (dim, dim).
        low: Low ends of the boxes, shape (n_boxes, dim), as one row adds to the output.
        high: High ends of the boxes.
        absent: Whether the row may also be absent, as where the number of rows is hidden.
        enough: Distance at which a bound is good enough, and quicker to find.

    Guarantee: rounded up; infinite where the covariance is singular up to rounding.
    Needs: the features of every possible row are in one of the boxes.

    >>> low, high = np.array([[0.0, 0.0]]), np.array([[2.0, 0.0]])
    >>> round(row_distance(np.eye(2), low, high), 9)
    2.0
    >>> round(row_distance(np.eye(2), low + 1, high + 1), 9)
    2.0
    >>> round(row_distance(np.eye(2), low + 1, high + 1, absent=True), 9)
    3.16227766
    """
    if absent:
        nothing = np.zeros((1, low.shape[1]))
        low, high = np.vstack([low, nothing]), np.vstack([high, nothing])
    return Precision.of(covariance).farthest(low, high, enough=enough)


def row_delta(distance: float, epsilon: float, implementation_delta: float) -> float:
    r"""Bound the delta of one row at this epsilon.

    The delta of N($\mu$, 1) against N(0, 1), plus what noise that is not ideal adds.

    Guarantee: rounded up. With $z = \mu/2 - \epsilon/\mu$ and $w = \mu/2 + \epsilon/\mu$ the delta
    is $\phi(z) (R(-z) - R(w))$ for the Mills ratio R, and $w \phi(z) \le 1/4 + 2\mu/5$: rounding of
    z, w and of both terms changes it by less than $(15 + 3\mu)\, 2^{-53}$.

    >>> round(row_delta(1.0, 0.5, 0.0), 12)
    0.238421708135
    """
    ideal = float(gaussian_delta(np.array(distance), epsilon)) + _DELTA_ERROR * (1 + distance)
    return min(1.0, released_delta(ideal, epsilon, implementation_delta) * _UP)


def row_epsilon(distance: float, delta: float, implementation_delta: float) -> float:
    """Find the smallest epsilon of one row at this delta; infinite if none was found.

    Guarantee: `row_delta` was evaluated there, and is at most `delta`.

    >>> round(row_epsilon(1.0, 1e-6, 0.0), 6)
    4.88656
    """
    return smallest_epsilon(
        lambda epsilon: row_delta(distance, epsilon, implementation_delta), delta
    )


def distance_within(epsilon: float, delta: float, implementation_delta: float) -> float:
    """Find the largest distance of one row that meets (epsilon, delta); 0 if none does.

    Guarantee: `row_delta` was evaluated there, and is at most `delta`.

    >>> round(distance_within(1.0, 1e-6, 0.0), 6)
    0.236704
    """
    check_at_least(0, epsilon=epsilon)
    check_between(0, 1, delta=delta)

    def meets(distance: float) -> bool:
        return row_delta(distance, epsilon, implementation_delta) <= delta

    low, high = 0.0, 1.0
    while meets(high):
        low, high = high, 2 * high
    while high - low > RELATIVE_WIDTH * high and high > _LEAST_DISTANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low
