# SPDX-License-Identifier: Apache-2.0
"""DP-SGD and group-DP-SGD as others account for them, by dp-accounting; for comparison only."""

import math
from typing import Final, Literal, final

import attrs

from pufferslice.checks import check_above, check_between, check_count, check_one_of
from pufferslice.errors import ArgumentError, MissingExtraError
from pufferslice.search import raise_until, smallest_safe
from pufferslice.sgd import SamplingDesign

try:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant
except ImportError as error:
    msg = "DP-SGD rows need dp-accounting: pip install 'pufferslice[baselines]'"
    raise MissingExtraError(msg) from error

Accounting = Literal["rdp", "pld"]

_COARSE: Final = 1e-4


@final
@attrs.frozen(kw_only=True)
class DpSgd:
    """DP-SGD with Poisson sampling, for a group of records that a neighbour may add or remove.

    A group of size k is accounted for as the paper does: as one record of k times the clip norm,
    drawn together, so the noise multiplier is divided by k. Records that are drawn one by one can
    cost more than that. What it protects is not the declared secret; the paper shows that neither
    implies the other.
    """

    rate: float
    n_steps: int
    group_size: int = 1

    def __attrs_post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            msg = f"rate must be above 0 and at most 1, got {self.rate!r}"
            raise ArgumentError(msg)
        check_count(1, n_steps=self.n_steps, group_size=self.group_size)


def dp_sgd_epsilon(
    run: DpSgd, noise_multiplier: float, delta: float, accounting: Accounting
) -> float:
    """Epsilon of the run at `delta`, by Rényi orders (`rdp`) or loss distributions (`pld`)."""
    check_above(0, noise_multiplier=noise_multiplier)
    check_between(0, 1, delta=delta)
    check_one_of(("rdp", "pld"), accounting=accounting)
    event = dp_accounting.PoissonSampledDpEvent(
        run.rate, dp_accounting.GaussianDpEvent(noise_multiplier / run.group_size)
    )
    accountant = (
        RdpAccountant()
        if accounting == "rdp"
        else PLDAccountant(value_discretization_interval=_COARSE)
    )
    return float(accountant.compose(event, run.n_steps).get_epsilon(delta))


def dp_sgd_multiplier(run: DpSgd, epsilon: float, delta: float, accounting: Accounting) -> float:
    """Smallest noise multiplier with which the run costs at most `epsilon` at `delta`."""
    check_above(0, epsilon=epsilon)

    def cost(multiplier: float) -> float:
        return dp_sgd_epsilon(run, multiplier, delta, accounting)

    found = smallest_safe(cost, epsilon, start=float(run.group_size))
    return raise_until(lambda multiplier: cost(multiplier) <= epsilon, found)


def group_size(sampling: SamplingDesign, n_differing: int) -> int:
    """The paper's effective group size: the root of the mean-square discrepancy, rounded up."""
    check_count(0, n_differing=n_differing)
    return max(1, math.ceil(math.sqrt(sampling.mean_square_discrepancy(n_differing))))
