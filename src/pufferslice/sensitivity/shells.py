# SPDX-License-Identifier: Apache-2.0
r"""Exponential moments of the squared length of a sum of independent rows.

Z is the sum of D independent changes Y of one row, in coordinates that make the noise isotropic.
With $\theta = \sqrt{2c}$ and g standard normal in d dimensions,

$$E\, e^{c |Z|^2} = E_g\, M_Y(\theta g)^D, \quad M_Y(v) = E\, e^{v \cdot Y}.$$

Let $\psi(t) = 2 (e^t - 1 - t) / t^2$, which does not fall, so that $e^y \le 1 + y + y^2 \psi(t) /
2$ for $y \le t$. With $X = Y - E Y$ and $C(u) = E\, X X^\top \psi(u |X|)$, for $|g| \le r$ and $u
= \theta r$,

$$M_Y(\theta g)^D \le e^{a \cdot g} (1 + x(g))^D, \quad a = \theta D\, E Y, \quad
  x(g) = \tfrac12 \theta^2\, g^\top C(u)\, g .$$

Space is cut into a ball and shells $r_{k-1} \le |g| \le r_k$, and the integral over each is at most
each of these, with $V = \theta^2 D\, C(u)$:

1. $\exp\big(D (y - 1 - \ln y) - t r_{k-1}^2 / 2\big)\, \det(K)^{-1/2} \exp(\tfrac12 a^\top K^{-1}
   a)$ with $K = (1 - t) I - y V$, for any $t \ge 0$ and $0 < y \le 1$ that leave K positive
   definite: $\ln(1 + x) \le y x + y - 1 - \ln y$, and $1 \le e^{t (|g|^2 - r_{k-1}^2) / 2}$. In the
   ball $t = 0$ and $y = 1$.
2. $P(\chi_d > r_{k-1}) \exp\big(|a| r_k + D \ln(1 + \tfrac12 u^2 \lambda_{\max}(C(u)))\big)$.
3. $P(\chi_d > r_{k-1})\, e^{u R}$, where $|Z| \le R$ in every outcome.

Beyond the last shell, $e^{\theta |g| R} \le e^{\theta^2 R^2 + |g|^2 / 4}$ leaves $e^{\theta^2 R^2}
2^{d/2} P(\chi_d > r / \sqrt 2)$. Nothing is cut off: far modes, as that all rows are extreme, are
real. No bound is above $e^{c R^2}$.

*Parts.* Where Y is a sum of independent parts, their C's add in 1, and in 2 the logarithms add:
$\sum_p \ln(1 + x_p) \le P \ln(1 + \sum_p x_p / P)$ gives 1 with $P D$ in place of D before y.
*Random D.* If each of n rows differs with probability w, then for $m = E Y$, $|v| \le u$ and q with
$M_{X}(v) \le 1 + q$, centred at $w m$,

$$1 - w + w\, M_Y(v) \le e^{w v \cdot m} \big(1 + \tfrac12 (v \cdot m)^2\, w (1-w)
  [w \psi(u w |m|) + (1-w) \psi(u (1-w) |m|)] + w e^{(1-w) u |m|} q \big).$$

For two parts $q = x_1 + x_2 + x_1 x_2$, and $x_1 x_2$ is at most either one times the largest value
of the other. A delta is a probability, so that it may leave out the rare event that more than some
number of rows differ.

C depends on the length $u = \theta r$ alone. Radii are such that u is on one grid for every rate: C
is decomposed once for each u, and every bound grows with the rate.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Final, NamedTuple, final

import attrs
import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, log_ndtr, logsumexp

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers, locked, same
from pufferslice.sensitivity.hockey_stick import log_peaks
from pufferslice.sensitivity.layers import Layers

_STEPS: Final = 8
"""Shells in an octave of the radius."""
_LADDER_STEPS: Final = 4
"""Rates of the ladder in an octave."""
_LEAST_MOMENT: Final = 2.0**-6
_LARGEST_MOMENT: Final = 2.0**7
"""First and last rate of the ladder, times about the mean square."""
_JUMP: Final = 1.5
"""Growth of a logarithm over its rate, in a step of the ladder, at which far modes set in."""
_ROUNDS: Final = 2
_POINTS: Final = 15
"""Rates in each of these rounds, which look for the last one below that jump."""
_TAILS: Final = (2.0**-27, 2.0**-47)
"""Probabilities that a delta may leave out where the number of rows is random."""
_MUCH: Final = 2.0**6
"""Multiple of such a tail above which a smaller one would hardly change a delta."""
_LEAST_ARGUMENT: Final = 2.0**-10
"""Argument of psi below which it is not computed again."""
_LARGEST_ARGUMENT: Final = 100.0
"""Argument of psi above which only the reach bounds a shell."""
_LEAST_LENGTH: Final = 1e-150
_HOPELESS: Final = 2.0**40
"""Bound by the reach above which no better one is looked for."""
_LEAST_LOG: Final = -45.0
"""Logarithm of a bound on a shell below which nothing better is looked for."""
_SERIES: Final = 0.5
"""Argument of psi below which it is a series, because a difference would lose digits."""
_TERMS: Final = 20
_NEWTON_STEPS: Final = 16
_SHORT: Final = 2.0**-20
"""Step after which the bound, whose slope is 0 there, would hardly fall."""
_TO_BOUNDARY: Final = 0.9
_LEAST: Final = 2.0**-40
"""Least positive t: it is at most 1."""
_NUMBERS_AT_ONCE: Final = 2**18
_LOG_ERROR: Final = 2.0**-44
"""Bound on the relative error of the terms of a logarithm."""
_UP: Final = 1 + 2.0**-40


def excess_factor(t: Floats) -> Floats:
    r"""Compute $\psi(t) = 2 (e^t - 1 - t) / t^2$ for t from 0 to 100, rounded up.

    >>> excess_factor(np.array([0.0, 1.0])).round(9).tolist()
    [1.0, 1.436563657]
    """
    t = np.asarray(t, dtype=np.float64)
    near, series = np.where(t < _SERIES, t, 0.0), np.zeros_like(t)
    for k in range(_TERMS, -1, -1):
        series = series * near + 2 / math.factorial(k + 2)
    far = np.where(t < _SERIES, 1.0, t)
    return np.asarray(np.where(t < _SERIES, series, 2 * (np.expm1(far) - far) / far**2) * _UP)


def log_chi_tail(radii: Floats, dim: int) -> Floats:
    r"""Bound $\ln P(\chi_d > r)$, rounded up, by the finite sum of positive terms that it is.

    >>> log_chi_tail(np.array([0.0, 2.0]), 2).round(9).tolist()
    [0.0, -2.0]
    """
    half = np.asarray(radii, dtype=np.float64) ** 2 / 2
    powers = np.arange(dim // 2) + (dim % 2) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = powers * np.log(half)[..., None] - gammaln(powers + 1) - half[..., None]
    terms = np.where((powers == 0) & (half[..., None] == 0), 0.0, terms)
    if dim % 2:
        normal = math.log(2) + log_ndtr(-np.sqrt(2 * half))
        terms = np.concatenate([normal[..., None], terms], axis=-1)
    tails = logsumexp(terms, axis=-1)
    return np.asarray(np.minimum(0.0, tails + _LOG_ERROR * (dim + half + np.abs(tails))))


class Cut(NamedTuple):
    """Bounds on the logarithms of the parts of an integral, and how they were found.

    Shape (n_rates, n_shells), where no other is given.
    """

    lengths: Floats
    """Outer radius of each ball, and of the shell around the ball before, times theta, shape
    (n_shells,)."""
    balls: Floats
    """Bound on the integral over the ball of this radius."""
    shells: Floats
    """Bound on the integral over the shell; infinite for the first, which is none."""
    tilts: Floats
    """Number t of bound 1; not a number where bound 2 or 3 is the better one."""
    slopes: Floats
    """Number y of bound 1."""
    beyond: Floats
    """Bound on what is beyond the last shell, shape (n_rates,)."""

    @property
    def totals(self) -> Floats:
        """Bound for each choice of the ball: it, the shells around it, and what is beyond."""
        parts = np.column_stack([self.shells[:, 1:], self.beyond])
        rest = np.logaddexp.accumulate(parts[:, ::-1], axis=1)[:, ::-1]
        with np.errstate(over="ignore", invalid="ignore"):
            near = self.balls + np.log1p(np.exp(rest - self.balls))
        return np.where(rest < self.balls, near, np.logaddexp(self.balls, rest))


class _Spectra(NamedTuple):
    """Eigenvalues of V, and what else a bound needs, for each rate and shell."""

    values: Floats
    """Bounds on the eigenvalues, shape (..., d); infinite where psi is out of range."""
    squares: Floats
    """Squared components of a along the eigenvectors, rounded up, shape (..., d)."""
    errors: Floats
    """How far the eigenvectors are from orthonormal, shape (...)."""
    growth: Floats
    """Bound on D times the logarithms in bound 2, shape (...)."""

    def at(self, places: tuple[Integers, ...]) -> "_Spectra":
        return _Spectra(*(array[places] for array in self))

    def scaled(self, thetas: Floats, n_rows: int, is_out: npt.NDArray[np.bool_]) -> "_Spectra":
        """Turn decompositions of C into those of V for each theta, shape (n_rates, 1)."""
        one = np.ones_like(thetas)
        return _Spectra(
            values=np.where(is_out[:, None], np.inf, (thetas**2 * n_rows)[..., None] * self.values),
            squares=((thetas * n_rows) ** 2)[..., None] * self.squares,
            errors=one * self.errors,
            growth=one * np.where(is_out, np.inf, n_rows * self.growth),
        )


@final
@attrs.frozen(kw_only=True, eq=False, slots=False, repr=False)
class RowSum:
    """The sum of the changes of the rows that differ, in whitened coordinates."""

    n_rows: int
    """Number of rows that may differ."""
    probability: float
    """Probability that each of them does; 1 for a fixed number."""
    mean: Floats = attrs.field(converter=locked, eq=same)
    """Mean change of one row that differs, shape (d,)."""
    mean_error: float
    """Bound on the length of the error of the mean."""
    parts: tuple[Layers, ...]
    """Independent parts of the change of one row that differs."""

    @cached_property
    def reach(self) -> float:
        """Largest length of the sum, rounded up."""
        farthest = sum(float(part.radii.max()) for part in self.parts)
        return self.n_rows * (self.mean_length + farthest) * _UP

    @property
    def mean_length(self) -> float:
        """Length of the mean change of a row that differs, rounded up."""
        return float(np.linalg.norm(self.mean)) * _UP + self.mean_error

    def log_moments(self, rates: Floats) -> Floats:
        r"""Bound $\ln E\, e^{c |Z|^2}$ for each rate c, rounded up."""
        rates = np.asarray(rates, dtype=np.float64)
        with np.errstate(over="ignore"):
            bounds = rates * self.reach**2 * _UP
        chosen = bounds < _HOPELESS
        if chosen.any():
            totals = self.cut(rates[chosen]).totals.min(axis=1) * _UP
            bounds[chosen] = np.minimum(totals, bounds[chosen])
        return np.asarray(bounds)

    @cached_property
    def ladder(self) -> tuple[Floats, Floats]:
        """Rates over all that may matter, and bounds on the logarithms of the moments there."""
        mean, spread = self.n_rows * self.probability, 0.0
        for part in self.parts:
            spread += float(np.trace(part.moments.sum(axis=0)))
        mean_square = max(mean * spread + (mean * self.mean_length) ** 2, math.ulp(0.0))
        low, high = (
            math.floor(_LADDER_STEPS * math.log2(end / mean_square))
            for end in (_LEAST_MOMENT, _LARGEST_MOMENT)
        )
        rates = np.exp2(np.arange(low, high) / _LADDER_STEPS)
        logs = self.log_moments(rates)
        # Far modes set in at once: rates just below that are often the best ones.
        growth = logs / rates
        steep = int(np.argmax(np.append(growth[1:] > _JUMP * growth[:-1], True)))
        below, above = rates[steep], rates[min(steep + 1, len(rates) - 1)]
        for _ in range(_ROUNDS):
            ends = np.geomspace(below, above, _POINTS + 2)
            found = self.log_moments(ends[1:-1])
            rates, logs = np.append(rates, ends[1:-1]), np.append(logs, found)
            is_steep = np.append(found > _JUMP * growth[steep] * ends[1:-1], True)
            below, above = ends[np.argmax(is_steep) :][:2]
        return rates, logs

    def delta(self, epsilon: float, std: float, margin: float) -> float:
        r"""Bound the delta of two Gaussians that lie Z apart, for noise of this deviation.

        By $h_\epsilon(\sqrt q) \le A_c e^{c q}$ for each rate of the ladder. `margin` is what a
        grid adds to every distance: $(r + m)^2 \le (1 + m) r^2 + m + m^2$, in noise deviations.
        """
        least = 1.0
        for tail, fixed in self.fixed:
            least = min(least, tail + fixed.delta(epsilon, std, margin))
            if least > _MUCH * tail:
                return least
        ladder, logs = self.ladder
        farther = margin / std * _UP
        rates = ladder * std**2 / (1 + farther) / _UP
        found = log_peaks(epsilon, rates) + logs + rates * (farther + farther**2) * _UP
        return min(least, math.exp(min(0.0, float(found.min()))) * _UP)

    def variation(self, std: float, margin: float) -> float:
        """Return 1: the mean squared distance bounds it better."""
        del std, margin
        return 1.0

    @cached_property
    def fixed(self) -> list[tuple[float, "RowSum"]]:
        """Sums of fixed numbers of rows, and the probability that more rows differ."""
        if self.probability == 1:
            return []
        numbers = [(tail, _most_rows(self.n_rows, self.probability, tail)) for tail in _TAILS]
        return [
            (tail, attrs.evolve(self, n_rows=number, probability=1.0))
            for tail, number in numbers
            if number < self.n_rows
        ]

    def cut(self, rates: Floats) -> Cut:
        """Bound the parts of the integral for each rate."""
        thetas, dim, mean = np.sqrt(2 * rates), len(self.mean), self.n_rows * self.probability
        largest = float(thetas.max())
        most = max(4 * largest**2 * self.reach, largest * (8 * math.sqrt(dim) + 32))
        places = np.arange(_step(float(thetas.min())), _step(most) + 2)
        lengths, thetas = np.exp2(places / _STEPS), thetas[:, None] * (1 + 2.0**-50)
        spectra = self._spectra.at((np.clip(places, *self._ends) - self._ends[0],))
        spectra = spectra.scaled(thetas, self.n_rows, places > self._ends[1])
        radii = lengths / thetas
        inner = np.column_stack([np.zeros(len(radii)), radii[:, :-1]]) / _UP
        drift = mean * lengths * self.mean_error
        straight = mean * lengths * self.mean_length + spectra.growth
        powers, tails = np.minimum(straight, lengths * self.reach), log_chi_tail(inner, dim)
        shells = tails + powers + _LOG_ERROR * (np.abs(tails) + powers)
        balls = _tilted_log(spectra, np.zeros(1), np.ones(1), np.zeros(1), 0) + drift
        tilts, slopes = np.full(shells.shape, np.nan), np.ones(shells.shape)
        is_tried = np.isfinite(spectra.values[..., 0]) & (shells > _LEAST_LOG)
        shells[:, 0], is_tried[:, 0] = np.inf, False
        n_factors = self.n_rows * (len(self.parts) if self.probability == 1 else 1)
        for at in _portions(is_tried, dim):
            part = spectra.at(at)
            tilt, slope = _best_tilts(part, inner[at], n_factors)
            found = _tilted_log(part, tilt, slope, inner[at], n_factors) + drift[at[1]]
            better = found < shells[at]
            where = at[0][better], at[1][better]
            shells[where], tilts[where], slopes[where] = found[better], tilt[better], slope[better]
        powers = (thetas[:, 0] * self.reach) ** 2
        tails = log_chi_tail(radii[:, -1] / (math.sqrt(2) * _UP), dim)
        beyond = powers + dim * math.log(2) / 2 + tails + _LOG_ERROR * (powers - tails + dim)
        return Cut(lengths, balls, shells, tilts, slopes, beyond)

    @cached_property
    def _ends(self) -> tuple[int, int]:
        """First and last step of the lengths at which C is decomposed."""
        farthest = max(float(part.radii.max()) for part in self.parts)
        if self.probability < 1:
            farthest = max(farthest, self.mean_length)
        farthest = max(farthest, _LEAST_LENGTH)
        first, last = _LEAST_ARGUMENT / farthest, _LARGEST_ARGUMENT / farthest
        return _step(first), _step(last)

    @cached_property
    def _spectra(self) -> _Spectra:
        """Decompose C at every step of the length u, from the first to the last one."""
        return self._decomposed(np.exp2(np.arange(self._ends[0], self._ends[1] + 1) / _STEPS))

    def _decomposed(self, lengths: Floats) -> _Spectra:
        """Decompose C, and the mean of one row of n, for each product of theta and radius."""
        dim, share = len(self.mean), self.probability
        both = [_weighted(part, lengths) for part in self.parts]
        if share == 1:
            matrices = np.sum(both, axis=0)
            tops = [_largest_value(each) for each in both]
        else:
            matrices = self._thinned(both, lengths)
            tops = [_largest_value(matrices)]
        growth = np.sum([np.log1p(lengths**2 * top / 2) for top in tops], axis=0)
        _, axes = np.linalg.eigh(matrices)
        turned, size = np.swapaxes(axes, 1, 2), np.abs(axes)
        errors = _norms(turned @ axes - np.eye(dim)) * _UP + 4 * (dim + 4) * UNIT_ROUNDOFF * dim
        bent = turned @ matrices @ axes
        values = np.diagonal(bent, axis1=1, axis2=2)
        rest = _norms(bent - values[:, :, None] * np.eye(dim)) * _UP
        largest = _norms(np.swapaxes(size, 1, 2) @ np.abs(matrices) @ size)
        rest += 4 * (dim + 4) * UNIT_ROUNDOFF * largest
        along = np.abs(turned @ self.mean) + 4 * (dim + 4) * UNIT_ROUNDOFF * self.mean_length
        return _Spectra(values + rest[:, None], (share * along) ** 2 * _UP, errors, growth * _UP)

    def _thinned(self, both: list[Floats], lengths: Floats) -> Floats:
        """Return C of a row that differs with a probability only."""
        dim, share, length = len(self.mean), self.probability, self.mean_length
        total = np.sum(both, axis=0)
        if len(both) > 1:
            first, second = both
            tops = [lengths**2 * _largest_value(each) / 2 for each in both]
            crossed = first * tops[1][:, None, None], second * tops[0][:, None, None]
            traces = [np.trace(each, axis1=1, axis2=2) for each in crossed]
            total = total + np.where((traces[0] < traces[1])[:, None, None], *crossed)
        own = lengths * length
        factors = share * excess_factor(share * own) + (1 - share) * excess_factor(
            (1 - share) * own
        )
        error = (2 * length + self.mean_error) * self.mean_error + 4 * UNIT_ROUNDOFF * length**2
        alone = np.outer(self.mean, self.mean) + error * np.eye(dim)
        grown = share * np.exp((1 - share) * own) * _UP
        thinned = grown[:, None, None] * total
        thinned += (share * (1 - share) * factors * _UP)[:, None, None] * alone
        return np.asarray(thinned)

    def __repr__(self) -> str:
        return f"RowSum(dim={len(self.mean)}, n_rows={self.n_rows})"


def _step(length: float) -> int:
    """Last step of the lengths that is not above this one."""
    return math.floor(_STEPS * math.log2(length))


def _most_rows(n_rows: int, probability: float, tail: float) -> int:
    r"""Find a number that more rows exceed with this probability at most.

    By Chernoff's bound $\exp(-n\, d(k/n \| w))$ on $P(D \ge k)$, d the binary divergence.
    """

    def is_rare(count: int) -> bool:
        share = count / n_rows
        rest = 0.0 if share == 1 else (1 - share) * math.log((1 - share) / (1 - probability))
        divergence = share * math.log(share / probability) + rest
        return n_rows * divergence * (1 - 2.0**-20) - 2.0**-20 >= -math.log(tail)

    low, high = math.ceil(n_rows * probability), n_rows
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_rare(middle) else (middle, high)
    return high


def _norms(matrices: Floats) -> Floats:
    return np.asarray(np.sqrt((matrices**2).sum(axis=(1, 2))))


def _weighted(part: Layers, lengths: Floats) -> Floats:
    """Return C of one part for each length, rounded up, shape (n_lengths, d, d)."""
    factors = excess_factor(lengths[:, None] * part.radii)
    sums = np.tensordot(factors, part.moments, axes=1)
    sizes = factors @ _norms(part.moments)
    rounding = 4 * (len(part.radii) + 4) * UNIT_ROUNDOFF * sizes
    return np.asarray(sums + rounding[:, None, None] * np.eye(sums.shape[1]))


def _largest_value(matrices: Floats) -> Floats:
    """Bound the largest eigenvalue of each matrix."""
    dim = matrices.shape[1]
    return np.asarray(
        np.linalg.eigvalsh(matrices)[:, -1] + 8 * dim * UNIT_ROUNDOFF * _norms(matrices)
    )


def _portions(chosen: npt.NDArray[np.bool_], dim: int) -> Iterator[tuple[Integers, Integers]]:
    """Split the chosen places into portions of which all numbers fit into a cache."""
    rows, columns = np.nonzero(chosen)
    size = max(1, _NUMBERS_AT_ONCE // dim)
    for start in range(0, len(rows), size):
        yield rows[start : start + size], columns[start : start + size]


def _tilted_log(
    spectra: _Spectra, tilts: Floats, slopes: Floats, inner: Floats, n_factors: int
) -> Floats:
    """Compute bound 1, rounded up; infinite where K is not proved to be positive definite."""
    errors = spectra.errors
    room = ((1 - tilts) * (1 - errors))[..., None] - slopes[..., None] * spectra.values
    is_definite = room.min(axis=-1) > 0
    room = np.where(is_definite[..., None], room, 1.0)
    spread, shift = np.log(room), spectra.squares / room
    level = n_factors * (slopes - 1 - np.log(slopes))
    cut = tilts * inner**2 / 2
    total = level - cut - spread.sum(axis=-1) / 2 + shift.sum(axis=-1) / 2
    sizes = level + cut + np.abs(spread).sum(axis=-1) + shift.sum(axis=-1)
    total = total + room.shape[-1] * errors / 2 + _LOG_ERROR * (sizes + n_factors * (1 - slopes))
    return np.asarray(np.where(is_definite, total, np.inf))


def _best_tilts(spectra: _Spectra, inner: Floats, n_factors: int) -> tuple[Floats, Floats]:
    """Minimise bound 1 over t and y, a convex problem, by Newton's method from inside."""
    values, squares = spectra.values, spectra.squares
    slopes = 0.5 / np.maximum(values.max(axis=1), 0.5)
    tilts = (1 - slopes * values.max(axis=1)) / 2
    for _ in range(_NEWTON_STEPS):
        room = 1 / (1 - tilts[:, None] - slopes[:, None] * values)
        part = room / 2 + squares * room**2 / 2
        bent = room**2 / 2 + squares * room**3
        slope_t = part.sum(axis=1) - inner**2 / 2
        slope_y = (part * values).sum(axis=1) + n_factors * (1 - 1 / slopes)
        tt, ty = bent.sum(axis=1), (bent * values).sum(axis=1)
        yy = (bent * values**2).sum(axis=1) + n_factors / slopes**2
        # A number at the end of its range that would leave it stays there.
        determinant = tt * yy - ty**2
        stays_t = (tilts == 0) & (ty * slope_y < yy * slope_t)
        stays_y = (slopes == 1) & (ty * slope_t > tt * slope_y)
        with np.errstate(divide="ignore", invalid="ignore"):
            move_t = np.where(stays_y, -slope_t / tt, (ty * slope_y - yy * slope_t) / determinant)
            move_y = np.where(stays_t, -slope_y / yy, (ty * slope_t - tt * slope_y) / determinant)
        move_t, move_y = np.nan_to_num(move_t, posinf=0.0), np.nan_to_num(move_y, posinf=0.0)
        move_t = np.where(stays_t | ((tilts == 0) & (move_t < 0)), 0.0, move_t)
        move_y = np.where(stays_y | ((slopes == 1) & (move_y > 0)), 0.0, move_y)
        lost = ((move_t[:, None] + move_y[:, None] * values) * room).max(axis=1)
        lost = np.maximum(lost, -move_y / slopes)
        step = _TO_BOUNDARY / np.maximum(lost, _TO_BOUNDARY)
        # All of the way to t = 0 or y = 1, but not beyond.
        step /= np.maximum(1.0, np.maximum(-step * move_t / np.maximum(tilts, _LEAST), 0.0))
        tilts = np.maximum(tilts + step * move_t, 0.0)
        slopes = np.minimum(slopes + step * move_y, 1.0)
        if max(np.abs(move_t).max(), np.abs(move_y).max()) < _SHORT:
            break
    return tilts, slopes
