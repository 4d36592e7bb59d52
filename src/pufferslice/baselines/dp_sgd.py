# SPDX-License-Identifier: Apache-2.0
"""DP-SGD and group DP-SGD as dp-accounting accounts for them; for comparison only."""

import contextlib
import logging
import math
from collections.abc import Iterator
from typing import Any, Final, Literal, final

import attrs

from pufferslice._core.checks import (
    check_above,
    check_at_least,
    check_between,
    check_count,
    check_one_of,
)
from pufferslice._core.search import raise_until, smallest_safe
from pufferslice.errors import ArgumentError, MissingExtraError
from pufferslice.learning import SamplingDesign

Accounting = Literal["rdp", "pld"]

_INTERVAL: Final = 1e-4
"""Step of the grid on which dp-accounting puts losses."""
_WIDTH: Final = 2.0**-24
"""Precision of a noise multiplier."""


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
    check_between(0, 1, delta=delta)
    with _accountant(run, noise_multiplier, accounting) as accountant:
        return float(accountant.get_epsilon(delta))


def dp_sgd_delta(
    run: DpSgd, noise_multiplier: float, epsilon: float, accounting: Accounting
) -> float:
    """Delta of the run at `epsilon`; at 0 it bounds the total variation, hence right guesses."""
    check_at_least(0, epsilon=epsilon)
    with _accountant(run, noise_multiplier, accounting) as accountant:
        return float(accountant.get_delta(epsilon))


def dp_sgd_multiplier(run: DpSgd, epsilon: float, delta: float, accounting: Accounting) -> float:
    """Smallest noise multiplier with which the run is (epsilon, delta)-private."""
    check_at_least(0, epsilon=epsilon)
    check_between(0, 1, delta=delta)

    def cost(multiplier: float) -> float:
        return dp_sgd_delta(run, multiplier, epsilon, accounting)

    multiplier = smallest_safe(cost, delta, start=float(run.group_size), width=_WIDTH)
    return raise_until(lambda multiplier: cost(multiplier) <= delta, multiplier)


@contextlib.contextmanager
def _accountant(run: DpSgd, noise_multiplier: float, accounting: Accounting) -> Iterator[Any]:
    """Compose the run in an accountant of dp-accounting, which has no types."""
    check_above(0, noise_multiplier=noise_multiplier)
    check_one_of(("rdp", "pld"), accounting=accounting)
    library = dp_accounting()
    event = library.PoissonSampledDpEvent(
        run.rate, library.GaussianDpEvent(noise_multiplier / run.group_size)
    )
    accountant = (
        library.rdp.RdpAccountant()
        if accounting == "rdp"
        else library.pld.PLDAccountant(value_discretization_interval=_INTERVAL)
    )
    # It logs every order that it leaves out, which only makes its epsilon larger.
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield accountant.compose(event, run.n_steps)
    finally:
        logger.setLevel(before)


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
