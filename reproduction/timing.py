# SPDX-License-Identifier: Apache-2.0
"""Run time against the number of samples: sliced, exact unsliced and Sinkhorn, measured here."""

import time
from collections.abc import Callable, Sequence
from typing import Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import check_count
from pufferslice._core.threads import Progress, silent
from pufferslice.baselines import SinkhornSettings, sinkhorn_w_infinity, w_infinity
from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity import DistributionPair, gap_tables
from pufferslice.sensitivity.profiles import FiniteProfile

N_SAMPLES: Final = 4_000
"""Samples of each distribution up to which the unsliced ways are timed."""

_UNSLICED: Final = (0.25, 0.375, 0.5, 0.75, 1)
_SLICED: Final = (1, 2, 4, 8, 16, 32)
"""As multiples of that number; slicing is only then more than what a call costs anyway."""

_FEWEST: Final = 8
_FEWEST_RUNS, _MOST_RUNS = 3, 20
_ENOUGH: Final = 0.4
"""Seconds after which a short run was repeated often enough."""
_SHIFT: Final = 0.3
_SINKHORN: Final = SinkhornSettings(regularisation=0.3, tolerance=1e-4, n_thresholds=12)


@final
@attrs.frozen(kw_only=True)
class RunTimes:
    """What one way of finding a sensitivity took for samples of several sizes."""

    method: str
    sizes: Floats = attrs.field(converter=locked, eq=same)
    """Samples of each of two distributions."""
    seconds: Floats = attrs.field(converter=locked, eq=same)
    """Least of several runs."""

    @property
    def exponent(self) -> float:
        """The power of the size that the time grows with."""
        return fitted_exponent(self.sizes, self.seconds)


def fitted_exponent(sizes: Sequence[float] | Floats, seconds: Sequence[float] | Floats) -> float:
    """Slope of the straight line through the points in logarithms, by least squares.

    >>> round(fitted_exponent([10, 100, 1000], [1.0, 100.0, 10000.0]), 12)
    2.0
    """
    x, y = np.log(np.asarray(sizes, dtype=float)), np.log(np.asarray(seconds, dtype=float))
    if len(x) < 2 or len(x) != len(y) or np.ptp(x) == 0 or not np.isfinite(x + y).all():
        raise ArgumentError(
            "a slope needs two or more different sizes and as many times, all above 0; got "
            f"{len(x)} sizes and {len(y)} times"
        )
    centered = x - x.mean()
    return float(centered @ y / (centered @ centered))


def run_times(
    *,
    dim: int,
    n_directions: int,
    seed: int,
    n_samples: int = N_SAMPLES,
    progress: Progress = silent,
) -> tuple[RunTimes, RunTimes, RunTimes]:
    """Two Gaussian samples of several sizes, a shift apart; sensitivities in three ways.

    The exact distance and Sinkhorn are timed up to `n_samples`, slicing from there on.
    """
    check_count(1, dim=dim, n_directions=n_directions)
    check_count(_FEWEST, n_samples=n_samples)
    profile = FiniteProfile.uniform(dim=dim, n_directions=n_directions, seed=seed)
    ways: dict[
        str, tuple[Callable[[FiniteDistribution, FiniteDistribution], object], Sequence[float]]
    ] = {
        f"sliced, {profile.n_directions} directions": (
            lambda first, second: gap_tables(
                [first, second], [DistributionPair(0, 1)], profile.directions
            ),
            _SLICED,
        ),
        "exact unsliced, bottleneck matching": (w_infinity, _UNSLICED),
        "Sinkhorn": (
            lambda first, second: sinkhorn_w_infinity(first, second, _SINKHORN),
            _UNSLICED,
        ),
    }
    times = []
    for done, (method, (way, multiples)) in enumerate(ways.items(), start=1):
        sizes = [int(multiple * n_samples) for multiple in multiples]
        seconds = [_least_seconds(way, *_samples(n, dim, seed)) for n in sizes]
        times.append(RunTimes(method=method, sizes=sizes, seconds=seconds))
        progress(done, len(ways))
    return times[0], times[1], times[2]


def _samples(n_samples: int, dim: int, seed: int) -> tuple[FiniteDistribution, FiniteDistribution]:
    rng = np.random.default_rng([seed, n_samples])
    first, second = rng.standard_normal((2, n_samples, dim))
    return FiniteDistribution.uniform(first), FiniteDistribution.uniform(second + _SHIFT)


def _least_seconds(
    way: Callable[[FiniteDistribution, FiniteDistribution], object],
    first: FiniteDistribution,
    second: FiniteDistribution,
) -> float:
    """The fastest of several runs, after one that loads compiled loops and warms the caches."""
    way(first, second)
    taken: list[float] = []
    while len(taken) < _FEWEST_RUNS or (sum(taken) < _ENOUGH and len(taken) < _MOST_RUNS):
        start = time.perf_counter()
        way(first, second)
        taken.append(time.perf_counter() - start)
    return min(taken)
