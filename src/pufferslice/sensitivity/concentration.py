# SPDX-License-Identifier: Apache-2.0
"""Bounds from finite samples: bands around quantiles, Hoeffding, Clopper-Pearson."""

import math
from typing import Final, Literal, final, get_args

import attrs
import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betainccinv, betaincinv, xlog1py

from pufferslice._core.arrays import Floats, Integers, locked_integers, same
from pufferslice._core.checks import check_between, check_count, check_one_of
from pufferslice.errors import ArgumentError

BandKind = Literal["order_statistics", "dkw"]

BANDS: Final[tuple[BandKind, ...]] = get_args(BandKind)
"""Kinds of bands: order statistics at fixed levels (exact binomial tails), or Dvoretzky-Kiefer-
Wolfowitz."""

LEVEL_QUANTA: Final = 2**48
"""Number of quanta of probability: levels of quantile functions are integer multiples of one."""

MOST_SAMPLES: Final = 2**45
"""Largest sample size for which the finest level, 1 / n, is still such a multiple."""

_PARTS_PER_OCTAVE: Final = 8
_FEWEST_PARTS: Final = 16
_MOST_PARTS: Final = 4096
_EXACT_UP_TO: Final = 2**33
"""Largest sample size with exact binomial tails; beyond it Chernoff's inequality bounds them."""
_TAIL_ERROR: Final = 1.001
"""Bound on the relative error of the incomplete beta function; every tail is raised by it."""
_ROUNDING: Final = 2.0**-50


def split(failure_probability: float, n_parts: int) -> float:
    """Split a probability among `n_parts` events, any of which may fail; never rounded up.

    >>> split(0.05, 400)
    0.000125
    """
    check_between(0, 1, failure_probability=failure_probability)
    check_count(1, n_parts=n_parts)
    share = failure_probability / n_parts
    return share if share * n_parts <= failure_probability else math.nextafter(share, 0.0)


def dkw_halfwidth(n_samples: int, failure_probability: float) -> float:
    """Half-width of a band around an empirical CDF (Dvoretzky, Kiefer, Wolfowitz; Massart).

    Guarantee: the whole CDF is inside, except with probability `failure_probability`. Times the
    range it is also the two-sided Hoeffding half-width of a mean.
    Source: lem:dkw_huc_cap, lem:mc_ms_cap, thm:mc_finite_gaussian_ave_srpp,
    thm:mc_finite_gaussian_joint_srpp.

    >>> round(dkw_halfwidth(1000, 0.05), 12)
    0.042946940835
    """
    check_count(1, n_samples=n_samples)
    check_between(0, 1, failure_probability=failure_probability)
    return math.sqrt(math.log(2 / failure_probability) / (2 * n_samples))


def clopper_pearson(
    n_successes: int, n_trials: int, failure_probability: float
) -> tuple[float, float]:
    """Compute an interval for a probability from counts; each end fails with half the probability.

    >>> low, high = clopper_pearson(0, 100, 0.05)
    >>> low, round(high, 6)
    (0.0, 0.036217)
    """
    check_count(1, n_trials=n_trials)
    check_count(0, n_successes=n_successes)
    check_between(0, 1, failure_probability=failure_probability)
    if n_successes > n_trials:
        raise ArgumentError(f"n_successes must be at most n_trials {n_trials}, got {n_successes}")
    half, k, n = failure_probability / 2, n_successes, n_trials
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, half)) * (1 - _ROUNDING)
    high = 1.0 if k == n else float(betainccinv(k + 1, n - k, half)) * (1 + _ROUNDING)
    return low, min(1.0, high)


@final
@attrs.frozen(kw_only=True)
class BandRanks:
    """Ranks of the order statistics that bound a distribution's quantiles at fixed levels.

    Ranks count from 1, the smallest sample. Between two levels the quantile is at most the upper
    bound of the next level up and at least the lower bound of the next level down.
    """

    n_samples: int
    levels: Integers = attrs.field(converter=locked_integers, eq=same)
    """Ascending levels, as integer multiples of 1 / LEVEL_QUANTA, shape (n_levels,)."""
    upper: Integers = attrs.field(converter=locked_integers, eq=same)
    """Rank that bounds the quantile from above; n_samples + 1 where only a public range does."""
    lower: Integers = attrs.field(converter=locked_integers, eq=same)
    """Rank that bounds the quantile from below; 0 where only a public range does."""

    @property
    def masses(self) -> Integers:
        """Mass of each interval between levels, in units of 1 / LEVEL_QUANTA: (n_levels + 1,)."""
        return np.diff(self.levels, prepend=0, append=LEVEL_QUANTA)

    @property
    def interval_upper(self) -> Integers:
        """Rank of the upper bound on each interval, shape (n_levels + 1,)."""
        return np.append(self.upper, self.n_samples + 1)

    @property
    def interval_lower(self) -> Integers:
        """Rank of the lower bound on each interval, shape (n_levels + 1,)."""
        return np.append(np.zeros(1, dtype=np.int64), self.lower)

    @property
    def interval_middle(self) -> Integers:
        """Rank of the sample's own quantile in the middle of each interval: not a bound."""
        ends = np.append(np.append(np.zeros(1, dtype=np.int64), self.levels), LEVEL_QUANTA)
        middles = (ends[:-1] + ends[1:]) / (2 * LEVEL_QUANTA)
        ranks = np.ceil(middles * self.n_samples).astype(np.int64)
        return np.asarray(np.clip(ranks, 1, self.n_samples))

    @property
    def covered(self) -> npt.NDArray[np.bool_]:
        """Intervals on which both bounds are samples, shape (n_levels + 1,)."""
        return (self.interval_upper <= self.n_samples) & (self.interval_lower >= 1)

    @property
    def missing(self) -> float:
        """Mass of the levels that are not covered."""
        return int(self.masses[~self.covered].sum()) / LEVEL_QUANTA


def band_levels(n_samples: int) -> Integers:
    """Return the fixed grid for a largest sample of `n_samples`: symmetric about 1/2.

    Square-root spaced, as the width of a band is, and at least geometric towards both ends.
    Integer arithmetic, so that every machine has the same grid.
    """
    check_count(1, n_samples=n_samples)
    if n_samples > MOST_SAMPLES:
        raise ArgumentError(f"n_samples must be at most 2^45, got {n_samples}")
    half = LEVEL_QUANTA // 2
    n_parts = min(_MOST_PARTS, max(_FEWEST_PARTS, math.isqrt(4 * n_samples)))
    levels = {j * j * half // (n_parts * n_parts) for j in range(1, n_parts + 1)}
    finest = -(-LEVEL_QUANTA // max(2, n_samples))
    octave = half // 2
    while octave >= _PARTS_PER_OCTAVE and 2 * octave > finest:
        step = octave // _PARTS_PER_OCTAVE
        levels |= {octave + i * step for i in range(_PARTS_PER_OCTAVE)}
        octave //= 2
    low = np.array(sorted(level for level in levels if finest <= level <= half), dtype=np.int64)
    return np.unique(np.concatenate([low, LEVEL_QUANTA - low]))


def band_ranks(
    n_samples: int, failure_probability: float, kind: BandKind, levels: Integers | None = None
) -> BandRanks:
    r"""Find the ranks between which a distribution's quantile function lies, at all levels at once.

    `order_statistics`: with J levels, the upper rank at level t is the smallest k with
    $P(Bin(n, t) \ge k) \le \rho / (2J)$, the lower one the largest k with
    $P(Bin(n, t) \le k - 1) \le \rho / (2J)$. `dkw`: the ranks of $t \pm e$, e the half-width.

    Guarantee: for n independent draws of *any* distribution, discrete and tied ones included, every
    quantile lies between its two order statistics, except with probability `failure_probability`.
    Needs: levels chosen without looking at the draws; the default is `band_levels`. Two
    distributions that are compared need the same levels.
    """
    check_one_of(BANDS, kind=kind)
    check_between(0, 1, failure_probability=failure_probability)
    grid = band_levels(n_samples) if levels is None else np.asarray(levels, dtype=np.int64)
    if kind == "dkw":
        halfwidth = dkw_halfwidth(n_samples, failure_probability) * (1 + _ROUNDING)
        shares, slack = grid / LEVEL_QUANTA, n_samples * _ROUNDING
        upper = np.ceil(n_samples * (shares + halfwidth) + slack)
        lower = np.ceil(n_samples * (shares - halfwidth) - slack)
        upper = np.minimum(upper, n_samples + 1).astype(np.int64)
        lower = np.maximum(lower, 0).astype(np.int64)
    else:
        share = split(failure_probability, 2 * len(grid))
        upper = _upper_ranks(n_samples, grid, share)
        mirrored = _upper_ranks(n_samples, LEVEL_QUANTA - grid[::-1], share)[::-1]
        lower = n_samples + 1 - mirrored
    return BandRanks(n_samples=n_samples, levels=grid, upper=upper, lower=lower)


def samples_for_tail(missing: float, failure_probability: float, kind: BandKind) -> int:
    """Find the fewest samples, within a hundredth, whose band leaves at most `missing` uncovered.

    >>> samples_for_tail(0.1, 0.05, "dkw") > samples_for_tail(0.1, 0.05, "order_statistics")
    True
    """
    check_between(0, 1, missing=missing, failure_probability=failure_probability)

    def fits(n_samples: int) -> bool:
        return band_ranks(n_samples, failure_probability, kind).missing <= missing

    high = 2
    while not fits(high):
        high *= 2
        if high > MOST_SAMPLES:
            raise ArgumentError(
                f"no number of samples up to 2^45 leaves at most {missing!r} uncovered; "
                "ask for a larger delta"
            )
    low = high // 2
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _upper_ranks(n_samples: int, levels: Integers, share: float) -> Integers:
    """Find the smallest k with P(Bin(n, t) >= k) at most `share`, for every level t: bisection."""
    shares = levels / LEVEL_QUANTA
    low = np.zeros(len(levels), dtype=np.int64)
    high = np.full(len(levels), n_samples + 1, dtype=np.int64)
    while (high - low).max() > 1:
        middle = (low + high) // 2
        safe = tail_bound(n_samples, middle, shares) <= share
        high, low = np.where(safe, middle, high), np.where(safe, low, middle)
    return high


def tail_bound(n_samples: int, ranks: Integers, shares: Floats) -> Floats:
    """Bound P(Bin(n_samples, shares) >= ranks) from above, elementwise; ranks from 0 on."""
    if n_samples <= _EXACT_UP_TO:
        k = np.maximum(ranks, 1).astype(np.float64)
        tails = betainc(k, n_samples - k + 1, shares) * _TAIL_ERROR
        return np.asarray(np.where(ranks < 1, 1.0, tails))
    share = ranks / n_samples
    with np.errstate(divide="ignore", invalid="ignore"):
        # n times the relative entropy of the observed share to the true one, rounded down.
        entropy = share * np.log(share / shares) + xlog1py(
            1 - share, (shares - share) / (1 - shares)
        )
        exponent = n_samples * entropy * (1 - 2.0**-20)
    return np.asarray(np.where(share <= shares, 1.0, np.exp(-exponent) * _TAIL_ERROR))
