# SPDX-License-Identifier: Apache-2.0
r"""Bounds on the delta of two Gaussians at a random distance, from moments of the distance.

$h_\epsilon(r)$ is the delta of N(r, 1) against N(0, 1). As a function of the squared distance q it
has the slope

$$p(q) = \frac{\phi(z)}{2 \sqrt q}, \quad z = \frac{\sqrt q}{2} - \frac{\epsilon}{\sqrt q},\quad
  (\ln p)' = \frac{\epsilon^2}{2 q^2} - \frac{1}{2q} - \frac18, \quad
  (\ln p)'' = \frac{1}{q^2} \Big( \frac12 - \frac{\epsilon^2}{q} \Big).$$

*$\ln h_\epsilon(\sqrt q)$ is concave.* Up to $q = 2 \epsilon^2$ the slope is log-concave, and so is
its integral from 0, which is $h_\epsilon$. From there on the slope falls, so that $h_\epsilon$
itself is concave.

*$h_\epsilon(\sqrt q)$ is first convex, then concave*, because the slope first rises, then falls.
"""

from typing import Final

import numpy as np
from scipy.special import erf, log_ndtr

from pufferslice._core.arrays import Floats

_LEAST_LOG, _LARGEST_LOG = -50.0, 30.0
"""Logarithms of the squared distances among which a point of contact is looked for."""
_BISECTIONS: Final = 12
_SECANTS: Final = 4
_WIDTHS: Final = tuple(2.0**-k for k in (24, 21, 17, 10, 4))
"""Half-widths, in logarithms, of the bracket around a point of contact; the first that holds."""
_SLOPE_ERROR: Final = 2.0**-34
"""Bound on the error of the logarithm of a slope, beside that of delta."""
_LOG_ERROR: Final = 2.0**-46
"""Bound on the relative error of a logarithm, rounding of its argument included."""
_MOST_ERROR: Final = 2.0**-10
"""Largest error of a logarithm that is made use of."""
_LOG_TWO_PI: Final = float(np.log(2 * np.pi))
_UP: Final = 1 + 2.0**-40


def log_gaussian_delta(ratios: Floats, epsilon: float) -> tuple[Floats, Floats]:
    """Compute ln of the delta of N(ratio, 1) against N(0, 1), and a bound on its error.

    Precise where delta is tiny. The error is infinite where floats do not tell delta from 0.
    """
    ratios = np.asarray(ratios, dtype=np.float64)
    near = log_ndtr(ratios / 2 - epsilon / ratios)
    far = epsilon + log_ndtr(-ratios / 2 - epsilon / ratios)
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = -np.expm1(np.minimum(far - near, 0.0))
        error = _LOG_ERROR * (1 + epsilon + np.abs(near) + np.abs(far)) * (1 + 1 / rest)
        return near + np.log(rest), error


def log_peaks(epsilon: float, rates: Floats) -> Floats:
    r"""Bound $\ln \max_q h_\epsilon(\sqrt q)\, e^{-c q}$ for each rate c.

    For any random Q, $E\, h_\epsilon(\sqrt Q)$ is at most its exponential times $E\, e^{c Q}$.

    Guarantee: rounded up. By concavity the maximum is where the slope of $\ln h_\epsilon(\sqrt q)$
    is c. At the lower end of a bracket the slope is above c, at the upper one below it, by more
    than its error; the bound takes h at the upper end, and the exponential at the lower one.

    >>> log_peaks(1.0, np.array([0.5, 2.0])).round(5).tolist()
    [-2.25097, -3.99177]
    """
    rates = np.asarray(rates, dtype=np.float64)
    low, high = _contacts(epsilon, np.log(rates), power=0)
    return np.asarray(np.minimum(0.0, _log_heights(high, epsilon) - rates * np.exp(low) / _UP))


def mean_delta(mean_squares: Floats, epsilon: float) -> Floats:
    r"""Bound $E\, h_\epsilon(\sqrt Q)$ for any random Q with at most this mean.

    By Jensen's inequality for the least concave function above $h_\epsilon(\sqrt q)$: a line from 0
    to the point that it touches, and from there on the function itself.

    Guarantee: rounded up, and never above the bound at epsilon 0, the total variation.

    >>> mean_delta(np.array([0.1, 9.0]), 1.0).round(6).tolist()
    [0.014313, 0.787601]
    """
    mean_squares = np.asarray(mean_squares, dtype=np.float64)
    variations = erf(np.sqrt(mean_squares / 8))
    logs = np.log(np.maximum(mean_squares, np.exp(_LEAST_LOG)))
    low, high = _contacts(epsilon, np.zeros(1), power=1)
    line = logs + _log_heights(high, epsilon) - low
    best = np.where(logs >= high, _log_heights(logs, epsilon), line)
    return np.asarray(np.minimum(1.0, np.minimum(variations, np.exp(best)) * _UP))


def _log_heights(log_q: Floats, epsilon: float) -> Floats:
    """Bound ln of h at a squared distance, rounded up."""
    height, error = log_gaussian_delta(np.exp(log_q / 2), epsilon)
    return np.asarray(np.where(error < _MOST_ERROR, height + error, 0.0))


def _contacts(epsilon: float, targets: Floats, *, power: int) -> tuple[Floats, Floats]:
    """Bracket where ln of the slope of ln h, times a power of q, falls to each target.

    Logarithms of squared distances. At the lower end the logarithm was evaluated, and is above the
    target by more than its error, or that end is minus infinity; at the upper end it is below.
    """

    def excess(log_q: Floats) -> tuple[Floats, Floats]:
        ratios = np.exp(log_q / 2)
        height, error = log_gaussian_delta(ratios, epsilon)
        z = ratios / 2 - epsilon / ratios
        slope = -(z**2) / 2 - _LOG_TWO_PI / 2 - np.log(2 * ratios) - height
        return slope + power * log_q - targets, error + _SLOPE_ERROR * (1 + z**2)

    below, above = np.full_like(targets, _LEAST_LOG), np.full_like(targets, _LARGEST_LOG)
    at_below, at_above = np.full_like(targets, np.nan), np.full_like(targets, np.nan)
    for step in range(_BISECTIONS + _SECANTS):
        middle = (below + above) / 2
        if step >= _BISECTIONS:
            with np.errstate(invalid="ignore", divide="ignore"):
                secant = below + (above - below) * at_below / (at_below - at_above)
            middle = np.where((below <= secant) & (secant <= above), secant, middle)
        value, error = excess(middle)
        is_steep = ~((error < _MOST_ERROR) & (value < 0))
        below, above = np.where(is_steep, middle, below), np.where(is_steep, above, middle)
        at_below = np.where(is_steep, value, at_below)
        at_above = np.where(is_steep, at_above, value)
    low, high = np.full_like(targets, -np.inf), np.full_like(targets, _LARGEST_LOG)
    for end, side in ((low, 1.0), (high, -1.0)):
        is_open = np.ones(len(targets), dtype=np.bool_)
        for width in _WIDTHS:
            other = middle - side * width
            value, error = excess(other)
            holds = is_open & (error < _MOST_ERROR) & (side * value > error)
            end[holds], is_open = other[holds], is_open & ~holds
            if not is_open.any():
                break
    return low, high
