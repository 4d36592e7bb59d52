# SPDX-License-Identifier: Apache-2.0
"""Sinkhorn-Wasserstein mechanism: entropy-regularised W-infinity over a grid of thresholds.

An estimate for comparison, not a bound: with a loose tolerance it can be far below W-infinity, and
noise calibrated to it then guarantees nothing.
"""

import math
from collections.abc import Sequence
from typing import Final, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above, check_count
from pufferslice._core.kernels import kernel
from pufferslice._core.text import given
from pufferslice.baselines.transport import check_pair, pairwise_distances, w_infinity
from pufferslice.baselines.wasserstein import (
    DistributionCouple,
    check_couples,
    check_unsliced,
    shift_noise_std,
)
from pufferslice.claims import Renyi
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.scenario.distributions import FiniteDistribution

Mask = npt.NDArray[np.uint8]
"""Flags of the admitted entries, one byte each."""

_TABLES: Final = 1.25
"""Tables of distances: the distances, and two masks of one byte each."""
_CHECKED_EVERY: Final = 32
_ROUNDING: Final = 1e-9
_FAINT: Final = 1e-250
"""Sum of scaled weights below which it is computed again, scaled by its own largest."""


@final
@attrs.frozen(kw_only=True)
class SinkhornSettings:
    """Settings of the regularised distance; every one changes the answer."""

    regularisation: float
    """Weight of the entropy, in the unit of the distances."""
    tolerance: float
    """Largest sum of absolute marginal errors at which a coupling counts as one."""
    n_thresholds: int = 32
    """Number of equal steps from the largest nearest-neighbour distance up to the largest distance.

    At that lowest distance some atoms have only one partner, and scaling hardly converges.
    """
    max_iterations: int = 20_000
    """Iterations for one threshold; more are an error."""
    thresholds: tuple[float, ...] = attrs.field(default=(), converter=tuple)
    """Thresholds instead of the grid."""

    def __attrs_post_init__(self) -> None:
        check_above(0, regularisation=self.regularisation, tolerance=self.tolerance)
        check_count(2, n_thresholds=self.n_thresholds)
        check_count(1, max_iterations=self.max_iterations)
        if not all(math.isfinite(t) and t >= 0 for t in self.thresholds):
            raise ArgumentError(
                f"thresholds must be finite and at least 0, got {given(self.thresholds)}"
            )


@final
@attrs.frozen(kw_only=True)
class SinkhornEstimate:
    """The least of threshold + regularisation * KL over the grid, and how it was reached."""

    value: float
    threshold: float
    relative_entropy: float
    """KL of the coupling from the product distribution, in nats."""
    marginal_violation: float
    """Sum of absolute errors of the marginal that is not exact."""
    n_iterations: int
    """Number of iterations over all thresholds."""


@final
@attrs.frozen(kw_only=True)
class SinkhornNoise:
    """Noise of the Sinkhorn-Wasserstein mechanism, and the sensitivity behind it."""

    noise_std: float
    sensitivity: float
    """The largest estimate of all instances."""
    exact_sensitivity: float
    """The largest W-infinity."""
    marginal_violation: float
    """The largest of all instances."""

    @property
    def gap(self) -> float:
        """Estimate less the exact sensitivity; negative: too little noise."""
        return self.sensitivity - self.exact_sensitivity


def sinkhorn_noise(
    couples: Sequence[DistributionCouple], target: Renyi, settings: SinkhornSettings
) -> SinkhornNoise:
    """Noise as the general Wasserstein mechanism would add it for the estimated sensitivity.

    It guarantees the target only if the estimate is not below W-infinity, which `gap` shows.
    Source: app:Sinkhorn.
    """
    check_unsliced(target)
    check_couples(couples)
    estimates = [sinkhorn_w_infinity(first, second, settings) for first, second in couples]
    sensitivity = max(estimate.value for estimate in estimates)
    return SinkhornNoise(
        noise_std=shift_noise_std(sensitivity, target),
        sensitivity=sensitivity,
        exact_sensitivity=max(w_infinity(first, second) for first, second in couples),
        marginal_violation=max(estimate.marginal_violation for estimate in estimates),
    )


def sinkhorn_w_infinity(
    first: FiniteDistribution, second: FiniteDistribution, settings: SinkhornSettings
) -> SinkhornEstimate:
    r"""Entropy-regularised W-infinity by masked Sinkhorn iterations in log space.

    $$\min_t \; t + \hat\varepsilon\, \mathrm{KL}(\pi_t \,\|\, \nu\otimes\mu)$$

    Thresholds at or above the best value so far are skipped. Each of the others ends in one of four
    ways: its coupling meets the tolerance; the dual value, which bounds KL from below, shows that
    it cannot be the minimum; some rows have more mass than all columns within the threshold, so
    that there is no coupling; or the iterations run out, which is an error.
    Source: app:Sinkhorn.
    """
    check_pair(first, second, n_tables=_TABLES)
    distances = pairwise_distances(first, second)
    weights = first.counts / first.total, second.counts / second.total
    best: SinkhornEstimate | None = None
    n_iterations, violation = 0, math.inf
    for threshold in _thresholds(distances, settings):
        if best is not None and threshold >= best.value:
            continue
        by_row = (distances <= threshold).view(np.uint8)
        if not (by_row.any(axis=1).all() and by_row.any(axis=0).all()):
            continue
        ceiling = math.inf if best is None else best.value
        entropy, violation, n_steps = _scaled(
            (by_row, np.ascontiguousarray(by_row.T)),
            weights,
            settings,
            (ceiling - threshold) / settings.regularisation,
        )
        n_iterations += n_steps
        value = threshold + settings.regularisation * entropy
        if value < ceiling:
            best = SinkhornEstimate(
                value=value,
                threshold=threshold,
                relative_entropy=entropy,
                marginal_violation=violation,
                n_iterations=n_iterations,
            )
    if best is None:
        stuck = "" if violation == math.inf else f", and the marginals stay off by {violation:.3g}"
        raise CalibrationError(
            f"no threshold admits a coupling{stuck}; give at least one that is as large as the "
            "largest distance of two atoms"
        )
    return attrs.evolve(best, n_iterations=n_iterations)


def _scaled(
    masks: tuple[Mask, Mask],
    weights: tuple[Floats, Floats],
    settings: SinkhornSettings,
    ceiling: float,
) -> tuple[float, float, int]:
    """Scale rows and columns in turn; potentials f and g are logarithms of the scalings.

    `masks` are by rows and by columns. Returns the relative entropy, infinite if the threshold is
    ruled out, the violation of the marginals, and the number of iterations.
    """
    by_row, by_column = masks
    (a, b), (log_a, log_b) = weights, (np.log(weights[0]), np.log(weights[1]))
    f = -_log_sums(by_column, by_row, log_b)
    violation = math.inf
    for step in range(1, settings.max_iterations + 1):
        g = -_log_sums(by_row, by_column, f + log_a)
        following = -_log_sums(by_column, by_row, g + log_b)
        rows = a * np.exp(f - following)
        violation = float(np.abs(rows - a).sum())
        if violation <= settings.tolerance:
            return float(rows @ f + b @ g), violation, step
        out = float(a @ f + b @ g) >= ceiling
        if out or (step % _CHECKED_EVERY == 0 and _is_overfull(by_row, weights, rows)):
            return math.inf, violation, step
        f = following
    raise CalibrationError(
        f"Sinkhorn did not converge in {settings.max_iterations} iterations: the marginals are off "
        f"by {violation:.3g}, the tolerance is {settings.tolerance:g}. Use a larger regularisation,"
        " more iterations, or thresholds farther from W-infinity"
    )


def _is_overfull(by_row: Mask, weights: tuple[Floats, Floats], rows: Floats) -> bool:
    """Whether the rows with the largest deficit have more mass than the columns they can reach."""
    a, b = weights
    served = rows / a
    worst = served <= (1 + served.min()) / 2
    within = by_row[worst].any(axis=0)
    return bool(a[worst].sum() > b[within].sum() * (1 + _ROUNDING))


def _log_sums(mask: Mask, transposed: Mask, logs: Floats) -> Floats:
    """Log of the sum of exp(logs) over the rows that each column of `mask` admits."""
    top = float(logs.max())
    sums = _masked_sums(mask, np.exp(logs - top))
    faint = np.flatnonzero(sums < _FAINT)
    sums[faint] = 1.0
    result = np.asarray(top + np.log(sums))
    for column in faint:
        admitted = logs[transposed[column] > 0]
        result[column] = admitted.max() + math.log(np.exp(admitted - admitted.max()).sum())
    return result


@kernel
def _masked_sums(mask: Mask, weights: Floats) -> Floats:
    sums = np.zeros(mask.shape[1])
    for i in range(len(mask)):
        row, weight = mask[i], weights[i]
        for j in range(len(sums)):
            sums[j] += row[j] * weight
    return sums


def _thresholds(distances: Floats, settings: SinkhornSettings) -> list[float]:
    """Order of thresholds: one of the lower quarter, which may rule out many, then from the top."""
    low = float(max(distances.min(axis=1).max(), distances.min(axis=0).max()))
    grid = np.linspace(low, float(distances.max()), settings.n_thresholds + 1)[1:]
    ascending = sorted({float(t) for t in settings.thresholds or grid})
    return list(dict.fromkeys([ascending[len(ascending) // 4], *reversed(ascending)]))
