# SPDX-License-Identifier: Apache-2.0
r"""Privacy-loss distributions of noisy steps, composed: delta as a function of epsilon.

The loss of an output is $\ell = \ln dP/dQ$, and a run whose steps have the losses $L_1, ..., L_T$
under P has $\delta(\epsilon) = E\,(1 - e^{\epsilon - \sum L_t})_+$. Everything is an upper bound:

* *Rounding to a grid.* A loss between two grid points moves to both, in the shares that keep
  $E\,e^{-L}$. For any other steps $\delta$ is the mean of a convex function of $e^{-L}$, so it does
  not fall (Jensen). Masses are rounded up, and shares toward the upper end. The grid is as fine as
  the composition needs near 0, and coarser in proportion to the losses beyond.
* *Tails.* Losses beyond the grid, and rare counts of differing records, are taken as infinite.
* *Composition* is a power of a discrete Fourier transform. The rounding errors of transform, power
  and inverse are bounded and added to every mass. So that they stay small beside a small delta,
  losses are tilted: masses are multiplied by $e^{\theta \ell}$ before the transform, and divided by
  it after the inverse.
* *The window of the transform.* What wraps around at its top is bounded by moments and added. What
  wraps around at its bottom only adds to delta inside the window; it keeps its mass only without a
  tilt, so that with one delta below the window is bounded by moments.
* *A few roundings a step* are left, in weights and losses. A shift of all losses and a factor cover
  them.

In every pair here Q is the mirror image of P, so the loss under Q is distributed as minus the loss
under P, and both orders of the pair have the same delta.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, final

import attrs
import numpy as np
import numpy.typing as npt
from scipy import fft
from scipy.special import ndtr

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers, locked
from pufferslice._core.search import SAFETY
from pufferslice.errors import CalibrationError
from pufferslice.sensitivity.renyi import gaussian_delta

PRECISION: Final = 4e-6
"""Share of the variance of the losses that rounding to the grid may add, about."""

FORGOTTEN: Final = 2.0**-100
"""Probability, over all steps, of losses and of counts that are taken as infinite."""

_SPACINGS: Final = (2.0**-12, 2.0**-8)
"""Least and largest distance of grid points over their size, where they are not neighbours."""
_MEAN_SPACING: Final = 2.0**-8
_WIDE_SPACING: Final = 2.0**-5
"""The same for a mean, and for moments by which a tilt and a window are chosen."""
_FINE: Final = 2**30
"""Largest loss of a step over the step of the grid on which moments are computed."""
_MOST_COUNTS: Final = 256
"""Counts of differing records in a step; if there are more, some are taken as the next larger."""
_LEAST_POINTS: Final = 2**14
_MOST_POINTS: Final = 2**21
"""Points in the window of a composition."""
_WINDOW: Final = 43.0
"""Square of the usual length of a window, over six times the variance of all losses."""
_LEFT_OUT: Final = 2.0**-30
"""Share of delta beyond a window."""
_TOLERATED: Final = 2.0**-15
"""Share of delta that may be due to errors before losses are tilted for this epsilon."""
_MOST_ATTEMPTS: Final = 3
"""Compositions for one epsilon."""
_TILTS: Final = np.geomspace(1e-3, 1e4, 80)
"""Tilts that are tried, times the standard deviation of all losses."""
_FURTHER: Final = np.geomspace(0.5, 40, 24)
"""What is added to a tilt to bound a tail, times that standard deviation."""
_TRANSFORM: Final = 8 * UNIT_ROUNDOFF
r"""Error of a Fourier transform of $2^m$ numbers, over m and the sum of their absolute values.

A transform is m passes of additions and of products with a root of unity: at most six roundings
each, and the rounding of the root (Higham, Accuracy and Stability of Numerical Algorithms, 24.1).
"""
_PRODUCT: Final = 4 * UNIT_ROUNDOFF
"""Bound on the relative error of a complex product."""
_CHANCE_ERROR: Final = 8 * UNIT_ROUNDOFF
"""Bound on the relative error of the probability of a count, over the number of counts."""
_MORE_COUNTS: Final = 32
"""Counts that are added for the rounding of a logarithm, which is above -100 for counts kept."""
_LOSS_ERROR: Final = 2.0**-43
"""Bound on the error of a loss, over one plus the largest loss of a step."""
_INVERSE_ERROR: Final = _LOSS_ERROR / 8
"""Part of it that the output of a loss may have; its rounding takes less than the rest."""
_ROUNDINGS: Final = 2.0**-46
"""Bound on the relative error of a mass, over one plus its exponent."""
_SUM_ERROR: Final = 1 + 2.0**-30
"""Factor above the relative error of a sum over a window."""
_LEAST_MASS: Final = 1e-290
"""Probability below which digits are lost."""
_LARGEST_EXPONENT: Final = 700.0
"""Exponent above which an exponential is rounded down, so that it does not overflow."""
_LEAST_LOSS: Final = 1e-9
_LARGEST_LOSS: Final = 1e6
"""Ends of the range of largest losses of a step that are composed; outside, digits are lost."""
_LARGEST_MEAN: Final = 1e3
"""Largest shift of a step, in deviations of the noise; beyond it nothing is hidden."""
_DELTA_ERROR: Final = 2.0**-49
"""Bound on the absolute error of a difference of two normal probabilities."""
_MOST_HALVINGS: Final = 80
_KNOWN: Final = 400
"""Points between which the first guess of an inverse is interpolated."""
_LOG_ROOT_TAU: Final = 0.5 * math.log(2 * math.pi)


class DeltaCurve(Protocol):
    """An upper bound on delta, as a function of epsilon."""

    def __call__(self, epsilon: float) -> float:
        """Bound delta at epsilon."""

    def by_moments(self, epsilon: float) -> float:
        """Estimate delta at epsilon, quickly, by a number that is not much too small."""

    def near(self, epsilon: float) -> Callable[[float], float]:
        """Return the same bound, computed once: everywhere true, most exact near epsilon."""


@final
@attrs.frozen
class GaussianCurve:
    """Delta of N(shift, 1) against N(0, 1)."""

    shift: float

    def __call__(self, epsilon: float) -> float:
        """Bound delta at epsilon."""
        if not self.shift:
            return 0.0
        return min(1.0, float(gaussian_delta(np.array(self.shift), epsilon)) + _DELTA_ERROR)

    def by_moments(self, epsilon: float) -> float:
        """Return delta itself."""
        return self(epsilon)

    def near(self, epsilon: float) -> Callable[[float], float]:
        """Return the curve itself."""
        del epsilon
        return self


class Cells(NamedTuple):
    """Bounds on the probabilities under P of losses between ascending edges, the first of them 0.

    The probabilities under Q are those of the mirror images.
    """

    rising: tuple[Floats, Floats]
    """Least and largest probability of the losses between two edges."""
    falling: tuple[Floats, Floats]
    """The same between two negative edges."""
    beyond: float
    """Largest probability of a loss above the last edge."""
    below: float
    """Largest probability of a loss below minus the last edge."""
    at_zero: float
    """Probability of no loss at all."""


class StepLoss(Protocol):
    """The privacy loss of one noisy step."""

    @property
    def chance_error(self) -> float:
        """Bound on the relative error of the probabilities of counts."""

    @property
    def shift(self) -> float | None:
        """Distance of P and Q in deviations of the noise, if both are single Gaussians."""

    def reach(self, tail: float) -> float:
        """Return a loss that is exceeded with probability `tail`, about."""

    def cells(self, edges: Floats) -> Cells:
        """Bound the probabilities of losses between ascending edges, the first of them 0."""


class Counts(NamedTuple):
    """Numbers of differing records in a batch, and their probabilities."""

    counts: Floats
    chances: Floats
    outside: float
    """Probability of other numbers."""
    outside_square: float
    """Their sum of probabilities times squares."""
    chance_error: float
    """Bound on the relative error of the probabilities."""

    @classmethod
    def of(cls, log_probabilities: Floats, tail: float) -> "Counts":
        """Leave out rare counts, up to `tail`, and take some as the next larger if they are many.

        A larger count never has less delta: the divergences of a step do not fall with its shifts
        (published draws), or with the inner products of its means (secret draws).
        """
        possible = np.flatnonzero(np.isfinite(log_probabilities))
        chances = np.exp(log_probabilities[possible])
        rare = chances <= tail / len(possible)
        outside = float(chances[rare].sum()) * SAFETY
        outside_square = float(chances[rare] @ possible[rare].astype(np.float64) ** 2) * SAFETY
        counts, chances = possible[~rare].astype(np.float64), chances[~rare]
        error = _CHANCE_ERROR * (len(counts) + _MORE_COUNTS)
        size = -(-len(counts) // _MOST_COUNTS)
        if size > 1:
            starts = np.arange(1, len(counts), size)  # the first stays alone: it may be no record
            ends = np.append(starts[1:], len(counts)) - 1
            counts = np.append(counts[0], counts[ends])
            chances = np.append(chances[0], np.add.reduceat(chances, starts))
        return cls(counts, chances, outside, outside_square, error)


@final
@attrs.frozen(kw_only=True, eq=False)
class PublishedDraws:
    r"""Loss of a step whose number K of differing records is published.

    Given K it is that of $N(\mu/2, 1)$ against $N(-\mu/2, 1)$, $\mu = 2K/z$: normal, with mean
    $\mu^2/2$ and variance $\mu^2$.
    """

    shifts: Floats = attrs.field(converter=locked)
    """The shift of each count, positive."""
    chances: Floats = attrs.field(converter=locked)
    no_shift: float
    """Probability that no differing record is drawn."""
    outside: float
    """Probability of counts that are left out."""
    chance_error: float
    """Bound on the relative error of the probabilities."""

    @classmethod
    def of(
        cls, multiplier: float, log_probabilities: Floats, tail: float = 0.0
    ) -> "PublishedDraws":
        """Build the loss from the log probabilities of the counts 0, 1, …; leave out `tail`."""
        counts, chances, outside, _, error = Counts.of(log_probabilities, tail)
        some = counts > 0
        return cls(
            shifts=2 * counts[some] / multiplier,
            chances=chances[some],
            no_shift=float(chances[~some].sum()),
            outside=outside,
            chance_error=error,
        )

    @classmethod
    def certain(cls, shift: float) -> "PublishedDraws":
        """Build the loss of a step with one shift, 0 or more."""
        shifts = np.full(int(shift > 0), shift)
        return cls(
            shifts=shifts,
            chances=np.ones_like(shifts),
            no_shift=float(not shift),
            outside=0.0,
            chance_error=0.0,
        )

    @property
    def shift(self) -> float | None:
        """The shift, if it is certain."""
        is_certain = len(self.shifts) == 1 and not self.no_shift and not self.outside
        return float(self.shifts[0]) if is_certain else None

    def reach(self, tail: float) -> float:
        """Return a loss that is exceeded with probability `tail`, about."""
        if not self.shifts.size:
            return 0.0
        if self.shifts[-1] > _LARGEST_MEAN:
            return math.inf
        return _least(lambda loss: self._above(loss) <= tail)

    def cells(self, edges: Floats) -> Cells:
        """Bound the probabilities of losses between ascending edges, the first of them 0."""
        points = edges[:, None] / self.shifts
        below = float(self.chances @ ndtr(-self.shifts / 2 - points[-1]))
        return Cells(
            rising=_between(points - self.shifts / 2, self.chances),
            falling=_between(points + self.shifts / 2, self.chances),
            beyond=self._above(float(edges[-1])) * SAFETY + self.outside,
            below=below * SAFETY,
            at_zero=self.no_shift,
        )

    def _above(self, loss: float) -> float:
        return float(self.chances @ ndtr(self.shifts / 2 - loss / self.shifts))


@final
@attrs.frozen(kw_only=True, eq=False)
class SecretDraws:
    r"""Loss of a step of Poisson sampling whose draws stay secret, for the worst gradients.

    P is $\sum_k w_k N(k/z, 1)$ and Q is $\sum_k w_k N(-k/z, 1)$, w the probabilities of the number
    of differing records in a batch. The loss rises with the output t: it is $\ln A(t) - \ln A(-t)$,
    $A(t) = \sum_k w_k e^{kt/z - k^2/(2z^2)}$.
    """

    means: Floats = attrs.field(converter=locked)
    """k/z for each count."""
    chances: Floats = attrs.field(converter=locked)
    outside: float
    """Probability of counts that are left out."""
    outside_square: float
    """Their sum of probabilities times (k/z)^2."""
    chance_error: float
    """Bound on the relative error of the probabilities."""

    @classmethod
    def of(cls, multiplier: float, log_probabilities: Floats, tail: float = 0.0) -> "SecretDraws":
        """Build the loss from the log probabilities of the counts 0, 1, …; leave out `tail`."""
        counts, chances, outside, square, error = Counts.of(log_probabilities, tail)
        return cls(
            means=counts / multiplier,
            chances=chances,
            outside=outside,
            outside_square=square / multiplier / multiplier,
            chance_error=error,
        )

    @property
    def shift(self) -> float | None:
        """The distance of both means, if the count is certain."""
        is_certain = len(self.means) == 1 and not self.outside
        return 2 * float(self.means[0]) if is_certain else None

    def reach(self, tail: float) -> float:
        """Return a loss that is exceeded with probability `tail`, about."""
        if self.means[-1] > _LARGEST_MEAN:
            return math.inf
        output = _least(lambda t: float(self.chances @ ndtr(self.means - t)) <= tail)
        return float(self.losses(np.array([output]))[0][0])

    def cells(self, edges: Floats) -> Cells:
        """Bound the probabilities of losses between ascending edges, the first of them 0."""
        return self._cells(self._outputs(edges))

    def _cells(self, outputs: Floats) -> Cells:
        points = outputs[:, None]
        return Cells(
            rising=_between(points - self.means, self.chances),
            falling=_between(points + self.means, self.chances),
            beyond=float(self.chances @ ndtr(self.means - outputs[-1])) * SAFETY + self.outside,
            below=float(self.chances @ ndtr(-self.means - outputs[-1])) * SAFETY,
            at_zero=0.0,
        )

    def losses(self, outputs: Floats) -> tuple[Floats, Floats]:
        """Return the losses of outputs, and their derivatives."""
        logs = np.log(self.chances) - self.means**2 / 2
        upper, upper_slope = self._log_sums(logs, outputs)
        lower, lower_slope = self._log_sums(logs, -outputs)
        return upper - lower, upper_slope + lower_slope

    def _log_sums(self, logs: Floats, outputs: Floats) -> tuple[Floats, Floats]:
        """Return ln A and its derivative: the mean of the tilted counts."""
        terms = outputs[:, None] * self.means + logs
        top = terms.max(axis=1)
        np.exp(terms - top[:, None], out=terms)
        sums = terms.sum(axis=1)
        return top + np.log(sums), (terms @ self.means) / sums

    def _outputs(self, losses: Floats) -> Floats:
        """Return outputs with these losses, up to a part of the error that is charged."""
        top = 1.0
        while self.losses(np.array([top]))[0][0] < losses[-1]:
            top *= 2
        known = np.linspace(0.0, top, _KNOWN)
        outputs = np.interp(losses, self.losses(known)[0], known)
        low, high = np.zeros_like(outputs), np.full_like(outputs, top)
        tolerance = _INVERSE_ERROR * (1 + losses[-1])
        for _ in range(_MOST_HALVINGS):
            found, slopes = self.losses(outputs)
            excess = found - losses
            far = np.abs(excess) > tolerance
            if not far.any():
                outputs[0] = 0.0
                return np.maximum.accumulate(outputs)
            low, high = np.where(excess < 0, outputs, low), np.where(excess > 0, outputs, high)
            with np.errstate(divide="ignore", invalid="ignore"):
                newton = outputs - excess / slopes
            inside = (newton > low) & (newton < high)
            outputs = np.where(far, np.where(inside, newton, (low + high) / 2), outputs)
        raise CalibrationError(
            f"the losses of a step with mean shifts up to {self.means[-1]:g} in units of the noise "
            "have too few digits; use another noise multiplier, or log_moment"
        )

    def mean(self) -> float:
        r"""Bound the mean loss: the Kullback-Leibler divergence of a step.

        Beyond the last edge the loss is at most $(k_1 + k_0) t/z + k_0^2/(2 z^2) - \ln w_{k_0}$,
        $k_0$ the least and $k_1$ the largest count; the mean of that has a closed form. A count
        that is left out adds its own divergence (joint convexity).
        """
        reach = self.reach(FORGOTTEN)
        if not _LEAST_LOSS <= reach <= _LARGEST_LOSS:
            return math.inf
        part = _rounded(self, reach / _FINE, _FINE, _MEAN_SPACING)
        finite = float(part.masses @ (part.positions * (reach / _FINE)))
        slope = float(self.means[-1] + self.means[0])
        start = float(self.means[0] ** 2 / 2 - math.log(self.chances[0]))
        last = np.array([0.0, _FINE * (reach / _FINE)])
        distances = self._outputs(last)[-1] - self.means
        densities = np.exp(-(distances**2) / 2 - _LOG_ROOT_TAU)
        tails = (slope * self.means + start) * ndtr(-distances) + slope * densities
        error = (_LOSS_ERROR + 2 * self.chance_error) * (1 + reach)
        rare = 2 * self.outside_square
        return (finite + float(self.chances @ tails) + rare) * SAFETY + error


def composed(steps: Sequence[tuple[StepLoss, int]], *, precision: float = PRECISION) -> DeltaCurve:
    """Bound delta of many steps together, each taken as often as its number says.

    Guarantee: never below the delta of the composed pairs, also if later steps were chosen after
    seeing earlier outputs. No bound, 1, if losses are too small or too large for their digits.
    Steps of a certain shift are Gaussian together, without any rounding to a grid.
    """
    certain = [(loss.shift, n) for loss, n in steps if loss.shift is not None]
    uncertain = [(loss, n) for loss, n in steps if loss.shift is None]
    shift = math.sqrt(math.fsum(n * mu**2 for mu, n in certain)) * SAFETY
    if not uncertain:
        return GaussianCurve(shift)
    if certain:
        uncertain.append((PublishedDraws.certain(shift), 1))
    n_steps = sum(n for _, n in uncertain)
    reach = max(loss.reach(FORGOTTEN / (4 * n_steps)) for loss, _ in uncertain)
    if not _LEAST_LOSS <= reach <= _LARGEST_LOSS:
        return GaussianCurve(math.inf if reach else 0.0)
    return _Composer(uncertain, reach, precision)


def _least(holds: Callable[[float], bool]) -> float:
    """Return a number at which a monotone condition holds, next to the least positive one."""
    low, high = 0.0, 1.0
    while not holds(high):
        low, high = high, 2 * high
    for _ in range(_MOST_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _between(points: Floats, chances: Floats) -> tuple[Floats, Floats]:
    """Bound the probabilities of a mixture of normals between ascending points, one a row."""
    first, second = points[:-1], points[1:]
    above = first > 0  # of both tails the smaller one has all its digits
    low, high = np.where(above, -second, first), np.where(above, -first, second)
    at_low, at_high = ndtr(low), ndtr(high)
    # `ndtr` errs by less than 5 + 2 x^2 roundings, and the rounding of x by x^2 more.
    errors = (6 + 4 * low**2) * at_low + (6 + 4 * np.minimum(high, 0) ** 2) * at_high
    masses = (at_high - at_low) @ chances
    error = errors @ chances * UNIT_ROUNDOFF + 1 / 2**1000
    least = np.maximum(masses - error, 0.0)
    return np.where(least > _LEAST_MASS, least, 0.0), masses + error


class _Masses(NamedTuple):
    """A distribution of losses on multiples of a step."""

    positions: Integers
    masses: Floats
    infinite: float

    def log_moment(self, tilt: float, step: float) -> float:
        """Compute ln E exp(tilt L) of the finite part."""
        exponents = tilt * step * self.positions
        top = float(exponents.max())
        return math.log(float(self.masses @ np.exp(exponents - top))) + top


def _rounded(loss: StepLoss, step: float, n_points: int, spacing: float) -> _Masses:
    r"""Round a loss to multiples of `step` up to `n_points` of them, toward more loss.

    Edges are known up to an error $\eta$, which is charged in two ways: a share of $\eta$ over the
    width of its cell moves to the upper end here, and a composition shifts all losses by
    $2 \eta$. Raised by $\eta$, the losses of a cell lie between its lower edge and its upper edge
    plus $2 \eta$; rounded to these two they need no larger share at the upper end.
    """
    grid = _grid(n_points, spacing)
    edges = np.asarray(grid * step)
    cells = loss.cells(edges)
    (rise_least, rise_most), (fall_least, fall_most) = cells.rising, cells.falling
    lowered = -np.expm1(-np.diff(grid) * step)
    error = _ROUNDINGS * (1 + edges[1:]) + _LOSS_ERROR / 2 * (1 + edges[-1])
    under_q = np.exp(np.minimum(edges[:-1], _LARGEST_EXPONENT)) * fall_least
    to_upper = (rise_most * (1 + error) - under_q) / lowered
    to_nearer = (fall_most * (1 + error) - np.exp(-edges[1:]) * rise_least) / lowered
    to_upper, to_nearer = np.clip(to_upper, 0, rise_most), np.clip(to_nearer, 0, fall_most)
    n = len(grid) - 1
    masses = np.zeros(2 * n + 1)
    masses[n + 1 :] += to_upper
    masses[n:-1] += rise_most - to_upper
    masses[1 : n + 1] += to_nearer[::-1]
    masses[:n] += (fall_most - to_nearer)[::-1]
    masses[0] += cells.below
    masses[n] += cells.at_zero
    positions = np.concatenate([-grid[:0:-1], grid])
    return _Masses(positions[masses > 0], masses[masses > 0], cells.beyond)


def _grid(n_points: int, spacing: float) -> Integers:
    """Return 0, 1, 2, … and then, where that is dense enough, numbers in a ratio, to the last."""
    dense = min(n_points, int(1 / spacing))
    n_ratios = math.ceil(math.log(n_points / dense) / math.log1p(spacing))
    sparse = np.ceil(dense * (1 + spacing) ** np.arange(1, n_ratios + 1))
    numbers = np.concatenate([np.arange(dense + 1), np.minimum(sparse, n_points), [n_points]])
    return np.unique(numbers).astype(np.int64)


@final
class _Composition:
    r"""The sum of all losses in a window, and bounds on what is missing there.

    Delta is the sum of masses above epsilon less the sum of masses times $e^{\epsilon - loss}$.
    Both sums are kept for every loss.
    """

    def __init__(
        self,
        *,
        tilt: float,
        losses: Floats,
        masses: Floats,
        log_factor: float,
        infinite: float,
        log_outside: float,
        shift: float,
    ) -> None:
        self._tilt, self._losses, self._shift = tilt, losses, shift
        self._log_factor = log_factor
        self._infinite, self._log_outside = infinite, log_outside
        with np.errstate(over="ignore", invalid="ignore"):
            above = masses * np.exp(log_factor - tilt * losses)
            lowered = above * np.exp(losses[0] - losses)
            self._above, self._lowered = (np.cumsum(x[::-1])[::-1] for x in (above, lowered))

    def __call__(self, epsilon: float) -> float:
        """Bound delta."""
        epsilon -= self._shift
        if self._tilt and epsilon < self._losses[0]:
            exponent = min(0.0, self._log_factor - self._tilt * epsilon)
            return min(1.0, math.exp(exponent) * _SUM_ERROR + self._infinite)
        first = int(np.searchsorted(self._losses, epsilon, side="right"))
        if first == len(self._losses):
            return min(1.0, self._infinite)
        with np.errstate(over="ignore", invalid="ignore"):
            above = self._above[first]
            lowered = self._lowered[first] * np.exp(epsilon - self._losses[0])
            error = 4 * UNIT_ROUNDOFF * len(self._losses) * (above + lowered)
            total = float(above - lowered + error) * _SUM_ERROR + self._infinite
        # Far below the losses that the tilt is for, sums overflow.
        return min(1.0, total) if math.isfinite(total) else 1.0

    def outside(self, epsilon: float) -> float:
        """Bound what wraps around, where it lands above epsilon."""
        with np.errstate(over="ignore"):
            return float(np.exp(self._log_outside - self._tilt * epsilon))


@final
class _Composer:
    """Delta of many steps, composed with the tilt that is best for an epsilon."""

    def __init__(
        self, steps: Sequence[tuple[StepLoss, int]], reach: float, precision: float
    ) -> None:
        self._steps, self._reach, self._precision = steps, reach, precision
        self._n_steps = sum(n for _, n in steps)
        self._compositions: dict[float, _Composition] = {}
        self._fine = reach / _FINE
        self._parts = [(_rounded(loss, self._fine, _FINE, _WIDE_SPACING), n) for loss, n in steps]
        squares = (n * float(p.masses @ (self._fine * p.positions) ** 2) for p, n in self._parts)
        self._deviation = math.sqrt(math.fsum(squares))
        self._tilts = np.append(0.0, _TILTS / self._deviation)
        self._moments = np.array([self._log_moment(tilt) for tilt in self._tilts.tolist()])

    def __call__(self, epsilon: float) -> float:
        """Bound delta at epsilon."""
        return self.near(epsilon)(epsilon)

    def by_moments(self, epsilon: float) -> float:
        """Estimate delta at epsilon by exponential moments (Chernoff)."""
        return math.exp(float(np.min(self._moments - self._tilts * epsilon)))

    def near(self, epsilon: float) -> Callable[[float], float]:
        """Compose with the tilt that is best at epsilon."""
        tilt = float(self._tilts[np.argmin(self._moments - self._tilts * epsilon)])
        if tilt not in self._compositions:
            log_share = math.log(_LEFT_OUT)
            for _ in range(_MOST_ATTEMPTS):
                composition = self._composed(tilt, log_share)
                total, outside = composition(epsilon), composition.outside(epsilon)
                if outside <= _TOLERATED * total:
                    break
                log_weight = self._log_moment(tilt) - tilt * epsilon
                log_share = math.log(_LEFT_OUT * max(total, FORGOTTEN)) - log_weight
            self._compositions[tilt] = composition
        return self._compositions[tilt]

    def _log_moment(self, tilt: float) -> float:
        return math.fsum(n * part.log_moment(tilt, self._fine) for part, n in self._parts)

    def _window(self, tilt: float, log_share: float) -> tuple[float, float]:
        """Return the ends of a window that holds all but a share of the tilted losses."""
        here, tops, bottoms = self._log_moment(tilt), [], []
        for further in (_FURTHER / self._deviation).tolist():
            tops.append((self._log_moment(tilt + further) - here - log_share) / further)
            bottoms.append((here - self._log_moment(tilt - further) + log_share) / further)
        return max(bottoms), min(tops)

    def _spacing(self, tilt: float) -> float:
        """Return a spacing whose rounding matters no more than that of the window's grid."""
        squares = 0.0
        for part, n in self._parts:
            losses = self._fine * part.positions
            tilted = part.masses * np.exp(tilt * losses - part.log_moment(tilt, self._fine))
            squares += n * float(tilted @ losses**2)
        least, most = _SPACINGS
        return min(max(math.sqrt(100 * self._precision / (1 + tilt**2 * squares)), least), most)

    def _composed(self, tilt: float, log_share: float) -> _Composition:
        low, high = self._window(tilt, log_share)
        wanted = math.sqrt(_WINDOW * self._n_steps / self._precision)
        n_points = int(np.clip(2 ** math.ceil(math.log2(wanted)), _LEAST_POINTS, _MOST_POINTS))
        step, spacing = (high - low) / n_points, self._spacing(tilt)
        first = math.floor(low / step)
        top = (first + n_points - 1) * step
        further = (_FURTHER / self._deviation).tolist()
        above, tail_tilt = min((self._log_moment(tilt + x) - x * top, tilt + x) for x in further)
        below = min(self._log_moment(tilt - x) + x * low for x in further)
        unit = _TRANSFORM * math.log2(n_points)
        total = np.ones(n_points // 2 + 1, dtype=np.complex128)
        log_sizes, relative = np.zeros(len(total)), np.zeros(len(total))
        log_factor, infinite, log_tail, shift = 0.0, 0.0, -tail_tilt * top, 0.0
        for loss, n in self._steps:
            part = _rounded(loss, step, math.ceil(self._reach / step), spacing)
            moment = part.log_moment(tilt, step)
            tilted = part.masses * np.exp(tilt * step * part.positions - moment)
            spectrum = fft.rfft(np.bincount(part.positions % n_points, tilted, n_points))
            error = unit * float(tilted.sum())
            sizes = np.abs(spectrum) + error
            log_sizes += n * np.log(sizes)
            relative += n * (error / sizes)
            total *= _power(spectrum, n)
            # `tail_tilt` is the larger tilt: these roundings cover both moments.
            roundings = _ROUNDINGS * (1 + tail_tilt * self._reach) + loss.chance_error
            log_factor += n * (moment + roundings)
            infinite += n * part.infinite
            log_tail += n * (part.log_moment(tail_tilt, step) + roundings)
            shift += n * (_LOSS_ERROR * (1 + self._reach) + 2 * loss.chance_error)
        # |a^n - b^n| <= n e (|a| + e)^(n - 1) for |a - b| <= e; so for products of powers.
        errors = np.exp(log_sizes) * (relative + _PRODUCT * (self._n_steps + len(self._steps)))
        mass_error = 2 * (float(errors.sum()) + unit * float(np.abs(total).sum())) / n_points
        masses = np.roll(fft.irfft(total, n_points), -(first % n_points))
        return _Composition(
            tilt=tilt,
            losses=np.asarray((first + np.arange(n_points)) * step),
            masses=np.maximum(masses, 0.0) + mass_error,
            log_factor=log_factor,
            infinite=(infinite + math.exp(min(0.0, log_tail))) * _SUM_ERROR,
            log_outside=float(np.logaddexp(above, below)),
            shift=shift,
        )


def _power(values: npt.NDArray[np.complex128], n: int) -> npt.NDArray[np.complex128]:
    """Raise to a positive power by squaring."""
    power = values
    for digit in f"{n:b}"[1:]:
        power = power * power
        if digit == "1":
            power = power * values
    return power
