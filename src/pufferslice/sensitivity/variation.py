# SPDX-License-Identifier: Apache-2.0
"""Bounds on the total variation from a bound on a Rényi divergence."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice._core.kernels import kernel
from pufferslice.errors import ArgumentError

_BISECTIONS: Final = 60
_SLACK: Final = 1e-12
"""Bound on the float error of a binary divergence, times (order - 1) / order."""
_UP: Final = 1 + 1e-12

LOW_ORDERS: Final = (1.01, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)
"""Orders at which a divergence is turned into total variation; low ones are mostly the best."""


def total_variation_bound(orders: npt.ArrayLike, epsilons: npt.ArrayLike) -> Floats:
    r"""Bound the total variation if the divergence of `order` is at most `epsilon`.

    $$\sup\{\, p - q :\; d_\alpha(p \| q) \le \epsilon \,\},\quad
      d_\alpha(p \| q) = \tfrac{1}{\alpha-1}
      \ln\big(p^\alpha q^{1-\alpha} + (1-p)^\alpha (1-q)^{1-\alpha}\big)$$

    Guarantee: never below $TV(P, Q)$ for distributions with $D_\alpha(P \| Q) \le \epsilon$, in
    either order of the pair; no smaller number holds for all such distributions. Elementwise; 1 for
    infinity.

    Proof. $TV = \sup_A P(A) - Q(A)$. The indicator of A is post-processing, so the binary
    distributions with $p = P(A)$, $q = Q(A)$ have $d_\alpha(p \| q) \le D_\alpha(P \| Q)$, and
    binary distributions are distributions. With $t = p - q$, $h(t, q) = \exp((\alpha-1)\,
    d_\alpha(q + t \| q))$ is jointly convex and least at $t = 0$, so $f(t) = \min_q d_\alpha(q + t
    \| q)$ does not decrease in t, and a t with $f(t) > \epsilon$ is above the supremum: such an end
    of the bisection is returned. The minimum lies at $q = 1 - t$ if $t \ge 1/\alpha$, where it is
    $-\ln(1 - t)$, and else where the derivative of h in q vanishes, between $(\alpha - 1) t$ and $1
    - t$. Because $D_\alpha \ge KL$, Pinsker's $\sqrt{\epsilon / 2}$ and the bound $\sqrt{1 -
    e^{-\epsilon}}$ of Bretagnolle and Huber hold as well; the least of the three is returned.

    >>> bounds = total_variation_bound([2.0, 2.0, 4.0], [0.0, 0.5, np.inf])
    >>> [round(float(bound), 6) for bound in bounds]
    [0.0, 0.402716, 1.0]
    """
    order, epsilon = np.broadcast_arrays(
        np.asarray(orders, dtype=np.float64), np.asarray(epsilons, dtype=np.float64)
    )
    if not (np.all(order > 1) and np.all(np.isfinite(order))):
        raise ArgumentError(
            f"orders must be finite and greater than 1, got {order.min()} to {order.max()}"
        )
    if not np.all(epsilon >= 0):
        raise ArgumentError(
            f"epsilons must be numbers and at least 0, got {epsilon.min()} to {epsilon.max()}"
        )
    # Copies: older numpy warns when numba asks whether a broadcast array may be written to.
    binary = _largest_apart(order.flatten(), epsilon.flatten()).reshape(order.shape)
    pinsker = np.sqrt(epsilon / 2) * _UP
    bretagnolle_huber = np.sqrt(-np.expm1(-epsilon)) * _UP
    return np.asarray(np.minimum(np.minimum(binary, pinsker), bretagnolle_huber))


@kernel
def binary_divergence(order: float, first: float, second: float) -> float:
    """Divergence between two coins that show heads with these probabilities, 0 < second < 1."""
    heads = tails = -math.inf
    if first > 0:
        heads = order * math.log(first) + (1 - order) * math.log(second)
    if first < 1:
        tails = order * math.log1p(-first) + (1 - order) * math.log1p(-second)
    top, other = max(heads, tails), min(heads, tails)
    return (top + math.log1p(math.exp(other - top))) / (order - 1)


@kernel
def _largest_apart(orders: Floats, epsilons: Floats) -> Floats:
    """Bound how far apart two coins can be: the upper end of a bisection, which costs too much."""
    result = np.ones_like(epsilons)
    for i in range(len(result)):
        limit = epsilons[i] + _SLACK * orders[i] / (orders[i] - 1)
        low, high = 0.0, 1.0
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            if _least_divergence(orders[i], middle) > limit:
                high = middle
            else:
                low = middle
        result[i] = high
    return result


@kernel
def _least_divergence(order: float, apart: float) -> float:
    """Find the least divergence between coins `apart` in probability: bisection on a sign."""
    if apart * order >= 1:
        return -math.log1p(-apart) if apart < 1 else math.inf
    low, high = (order - 1) * apart, 1 - apart
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if middle <= low or middle >= high:
            break
        if _slope(order, 1 + apart / middle) > _slope(order, 1 - apart / (1 - middle)):
            high = middle
        else:
            low = middle
    return binary_divergence(order, min(high + apart, 1.0), high)


@kernel
def _slope(order: float, ratio: float) -> float:
    """Logarithm of ratio^(order - 1) (order - (order - 1) ratio)."""
    rest = order - (order - 1) * ratio
    if ratio <= 0 or rest <= 0:
        return -math.inf
    return (order - 1) * math.log(ratio) + math.log(rest)
