# SPDX-License-Identifier: Apache-2.0
"""DP-SGD and group DP-SGD as dp-accounting accounts for them; for comparison only."""

import functools
import logging
import math
from collections.abc import Callable
from typing import Any, Final, Literal, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_above, check_between, check_count, check_one_of
from pufferslice._core.search import (
    LARGEST_EPSILON,
    raise_until,
    smallest_epsilon,
    smallest_safe,
)
from pufferslice.errors import ArgumentError, CalibrationError, MissingExtraError
from pufferslice.learning import SamplingDesign, TrainingPlan
from pufferslice.sensitivity.renyi import gaussian_delta

Accounting = Literal["rdp", "pld"]

_FINEST: Final = 1e-4
_MOST_POINTS: Final = 2**17
_NEGLIGIBLE: Final = 1e-8
_MOST_COUNTS: Final = 64
_FOURIER_ERROR: Final = 2.0**-50
"""Error added to delta for every step: distributions are composed by a Fourier transform, whose
rounding (measured: 1e-17 for every step) is not pessimistic, and would matter where delta is about
1e-12."""


@final
@attrs.frozen(kw_only=True)
class DpSgd:
    """DP-SGD with Poisson sampling, for a group of records that a neighbour may add or remove.

    A group of size k is accounted for as in the paper: as one record of k times the clip norm that
    is drawn as a whole, so the noise multiplier is divided by k. Records that are drawn one by one
    can cost more. The declared secret is not protected; the paper shows that neither protection
    implies the other.
    """

    rate: float
    n_steps: int
    group_size: int = 1

    def __attrs_post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ArgumentError(f"rate must be above 0 and at most 1, got {self.rate!r}")
        check_count(1, n_steps=self.n_steps, group_size=self.group_size)


def dp_sgd_epsilon(
    run: DpSgd, noise_multiplier: float, delta: float, accounting: Accounting
) -> float:
    """Epsilon of the run at `delta`, by Rényi orders (`rdp`) or loss distributions (`pld`)."""
    check_above(0, noise_multiplier=noise_multiplier)
    check_between(0, 1, delta=delta)
    check_one_of(("rdp", "pld"), accounting=accounting)
    library = dp_accounting()
    event = library.PoissonSampledDpEvent(
        run.rate, library.GaussianDpEvent(noise_multiplier / run.group_size)
    )
    accountant = (
        library.rdp.RdpAccountant()
        if accounting == "rdp"
        else library.pld.PLDAccountant(value_discretization_interval=_FINEST)
    )
    # It logs every order that it leaves out, which only makes its epsilon larger.
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return float(accountant.compose(event, run.n_steps).get_epsilon(delta))
    finally:
        logger.setLevel(before)


def dp_sgd_multiplier(run: DpSgd, epsilon: float, delta: float, accounting: Accounting) -> float:
    """Smallest noise multiplier with which the run costs at most `epsilon` at `delta`."""
    check_above(0, epsilon=epsilon)

    def cost(multiplier: float) -> float:
        return dp_sgd_epsilon(run, multiplier, delta, accounting)

    multiplier = smallest_safe(cost, epsilon, start=float(run.group_size))
    return raise_until(lambda multiplier: cost(multiplier) <= epsilon, multiplier)


def dp_accounting() -> Any:  # a module without types
    """The library dp-accounting, of an extra."""
    try:
        import dp_accounting.pld  # noqa: PLC0415 - an extra
        import dp_accounting.rdp  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError(
            "DP-SGD rows need dp-accounting: pip install 'pufferslice[baselines]'"
        ) from error
    return dp_accounting


def group_size(sampling: SamplingDesign, n_differing: int) -> int:
    """The paper's effective group size: the root of the mean-square discrepancy, rounded up."""
    check_count(0, n_differing=n_differing)
    return max(1, math.ceil(math.sqrt(sampling.mean_square_discrepancy(n_differing))))


def run_epsilon(plan: TrainingPlan, delta: float) -> float | None:
    """An epsilon for which the whole run is (epsilon, delta)-Pufferfish, unsliced.

    For the accountants `worst_case` and `log_moment`: given the number K of differing records in
    each batch, a step is a Gaussian mechanism of shift 2K in units of the noise; K is published,
    so its hockey-stick divergence is the mean over K. Random differing records are mixed outside
    the composition, and a tail that their distribution leaves out is added to delta. Every rounding
    is pessimistic; a delta as small as the rounding error of the composition is refused. None for
    the other accountants, whose claims are not of this form.
    """
    check_between(0, 1, delta=delta)
    distributions = _published_distributions(plan)
    if distributions is None:
        return None
    if len(distributions) > _MOST_COUNTS:
        raise ArgumentError(
            f"{len(distributions)} possible numbers of differing records are too many for privacy "
            f"loss distributions; at most {_MOST_COUNTS}. Use the grid of orders"
        )
    multipliers, repeats = np.unique(plan.noise_multipliers, return_counts=True)
    if max(plan.differing.counts) and not delta > int(repeats.sum()) * _FOURIER_ERROR:
        raise _unreachable(delta)
    weights = np.exp(plan.differing.log_probabilities)
    curves = [
        _composed(counts, chances, multipliers, repeats, delta) for counts, chances in distributions
    ]

    def total_delta(epsilon: float) -> float:
        deltas = [curve(epsilon) for curve in curves]
        return plan.differing.excess_probability + float(np.dot(weights, deltas))

    return _finite_epsilon(total_delta, delta)


def _published_distributions(plan: TrainingPlan) -> list[tuple[Integers, Floats]] | None:
    """The distribution of K for each possible number of differing records."""
    counts = [int(n) for n in plan.differing.counts]
    if plan.accountant.name == "worst_case":
        caps = [plan.sampling.discrepancy_cap(n) for n in counts]
        return [(np.array([cap]), np.ones(1)) for cap in caps]
    if plan.accountant.name == "log_moment":
        logs = [plan.sampling.discrepancy_log_probabilities(n) for n in counts]
        return [(np.arange(len(row)), np.exp(row)) for row in logs]
    return None


def _composed(
    counts: Integers, chances: Floats, multipliers: Floats, repeats: Integers, delta: float
) -> Callable[[float], float]:
    """delta(epsilon) of all steps for one number of differing records."""
    if counts.max() == 0:
        return lambda _epsilon: 0.0
    n_steps = int(repeats.sum())
    negligible = _NEGLIGIBLE * delta / n_steps
    # Only distributions on one grid compose, and the least noise has the widest one. It has few
    # points, and is fine enough for the run.
    shifts = 2 * counts / float(multipliers.min())
    spread = math.sqrt(n_steps * float(chances @ shifts**2))
    interval = max(_FINEST * min(1.0, spread), 1e-9)
    reach = _reach(shifts, chances, negligible)
    interval *= max(1, math.ceil(reach / interval / _MOST_POINTS))
    parts = (
        _step(2 * counts / float(multiplier), chances, interval, negligible).self_compose(int(n))
        for multiplier, n in zip(multipliers, repeats, strict=True)
    )
    whole = functools.reduce(lambda before, steps: before.compose(steps), parts)
    error = n_steps * _FOURIER_ERROR
    return lambda epsilon: float(whole.get_delta_for_epsilon(epsilon)) + error


def _step(
    shifts: Floats, chances: Floats, interval: float, negligible: float
) -> Any:  # a class of an extra
    """The privacy loss distribution of one step on multiples of `interval`, pessimistic."""
    reach = _reach(shifts, chances, negligible)
    n_points = math.ceil(reach / interval) + 1
    rounded = np.arange(-n_points, n_points + 1)
    epsilons = np.abs(rounded) * interval
    deltas = np.zeros(n_points + 1)
    for shift, chance in zip(shifts, chances, strict=True):
        deltas += chance * gaussian_delta(shift, epsilons[n_points:])
    low = 1 - np.exp(-epsilons[n_points:]) + np.exp(-epsilons[n_points:]) * deltas
    curve = np.concatenate([low[:0:-1], deltas])
    pld = dp_accounting().pld
    connected = pld.pld_pmf.create_pmf_pessimistic_connect_dots
    pmf = connected(interval, rounded, np.clip(curve, 0.0, 1.0))
    return pld.privacy_loss_distribution.PrivacyLossDistribution(pmf)


def _reach(shifts: Floats, chances: Floats, delta: float) -> float:
    """The epsilon of one step at `delta`."""
    return _finite_epsilon(lambda e: float(chances @ gaussian_delta(shifts, e)), delta)


def _finite_epsilon(delta_at: Callable[[float], float], delta: float) -> float:
    epsilon = smallest_epsilon(delta_at, delta)
    if not math.isfinite(epsilon):
        raise _unreachable(delta)
    return epsilon


def _unreachable(delta: float) -> CalibrationError:
    return CalibrationError(
        f"no epsilon up to {LARGEST_EPSILON:g} gives delta {delta:g}; ask for a larger delta, "
        "or more noise"
    )
