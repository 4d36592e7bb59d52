# SPDX-License-Identifier: Apache-2.0
"""A cap on how many records differ, from simulated counts: it holds except with a tail."""

import math
from collections.abc import Iterator, Sequence
from typing import Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Integers, locked_integers
from pufferslice._core.checks import check_between, check_count
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.concentration import dkw_halfwidth, split

_ROUNDING: Final = 1e-12
"""Relative error allowed in a rank."""


@final
@attrs.frozen(kw_only=True)
class TailCap:
    """A count that is exceeded with probability at most `tail_probability`.

    It gives an (epsilon, delta) claim whose delta includes the tail, never a Rényi claim.
    """

    value: int
    """The count."""
    tail_probability: float
    """Probability of more, over the coupled data and the batch; belongs to delta."""
    failure_probability: float
    """Probability, over the simulation, that the bound fails; 0 if the distribution is known."""


def tail_cap_estimate(
    *instances: Integers,
    discrepancy_cap: int,
    tail_probability: float,
    failure_probability: float,
) -> TailCap:
    """A count that the discrepancy exceeds with probability at most `tail_probability`.

    The order statistic of rank ceil((1 - (delta - e)) M), with e the DKW half-width; the cap of
    every draw if delta is not above e. The largest of all instances (prior and pair of secrets)
    counts, and the failure probability is split evenly over them.
    Guarantee: for every instance, except with probability `failure_probability` over the
    simulation.
    Use: (epsilon, delta) claims. For a run, give counts of differing records in the whole data,
    with the number of records as `discrepancy_cap`: one tail for all rounds, which
    `mostly_at_most` takes into a plan. Of discrepancies in batches, each round has its own tail.
    Needs: independent replicates of the coupling and the batch, none above `discrepancy_cap`.
    Source: lem:dkw_huc_cap, cor:uniform_huc_cap.
    """
    check_between(0, 1, tail_probability=tail_probability)
    value = 0
    for draws, slack in checked_replicates(instances, discrepancy_cap, failure_probability):
        n_above = math.floor((tail_probability - slack) * len(draws) * (1 - _ROUNDING))
        is_known = tail_probability > slack
        rank = len(draws) - 1 - n_above
        value = max(value, int(np.sort(draws)[rank]) if is_known else discrepancy_cap)
    return TailCap(
        value=value, tail_probability=tail_probability, failure_probability=failure_probability
    )


def checked_replicates(
    instances: Sequence[Integers], discrepancy_cap: int, failure_probability: float
) -> Iterator[tuple[Integers, float]]:
    """The counts of each instance, checked, and their DKW half-width."""
    check_count(0, discrepancy_cap=discrepancy_cap)
    if not instances:
        raise ArgumentError("discrepancies must hold the counts of at least one instance, got none")
    share = split(failure_probability, len(instances))
    for counts in instances:
        draws = checked_counts(discrepancies=counts)
        n_beyond = np.count_nonzero(draws > discrepancy_cap)
        if n_beyond:
            raise ArgumentError(
                f"discrepancies must not exceed discrepancy_cap {discrepancy_cap}; {n_beyond} of "
                f"{draws.size} do"
            )
        yield draws, dkw_halfwidth(len(draws), share)


def checked_counts(**named: Integers) -> Integers:
    """The one named vector of counts, as locked integers, none negative."""
    ((name, numbers),) = named.items()
    values = np.asarray(numbers)
    # Checked as what they become: unsigned integers from 2^63 on would turn negative.
    counts = values.astype(np.int64) if values.dtype.kind in "iu" else None
    if counts is None or counts.ndim != 1 or counts.size == 0 or counts.min() < 0:
        raise ArgumentError(
            f"{name} must be a non-empty vector of integers, none negative; "
            f"got {values.dtype} of shape {values.shape}"
        )
    return locked_integers(counts)
