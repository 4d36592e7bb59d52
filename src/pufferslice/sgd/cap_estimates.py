# SPDX-License-Identifier: Apache-2.0
"""Tail caps and mean squares of the discrepancy: from a law, in closed form, or by simulation.

A tail cap on the number of differing records gives (epsilon, delta), never a Rényi claim: what the
tail leaves out belongs to delta, what the simulation may get wrong belongs to the confidence. A
mean square estimated over data *and* batches certifies nothing; it is for comparison. Nothing here
leads to a certificate.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, final

import attrs
import numpy as np

from pufferslice.arrays import Floats, Integers, locked, locked_integers
from pufferslice.checks import (
    check_at_least,
    check_between,
    check_count,
    check_finite,
)
from pufferslice.concentration import dkw_halfwidth, split
from pufferslice.errors import ArgumentError

_ROUNDING: Final = 1e-12
"""Relative error charged to a sum of probabilities, and to a rank, on the safe side."""


@final
@attrs.frozen(kw_only=True)
class TailCap:
    """A count that is exceeded with probability at most `tail_probability`."""

    may_be_used_for: ClassVar[str] = (
        "an (epsilon, delta) claim whose delta includes the tail probability; never a Rényi claim"
    )

    value: int
    """The count."""
    tail_probability: float
    """Over the coupled data and the batch; belongs to delta."""
    failure_probability: float
    """That the bound itself is wrong, over the simulation; 0 if the law is known."""


@final
@attrs.frozen(kw_only=True)
class MeanSquareCap:
    """An upper bound on the mean square of the discrepancy over data and batch together."""

    may_be_used_for: ClassVar[str] = (
        "comparison only: an average over the data bounds no pair of datasets"
    )

    value: float
    """The bound on the mean of the squared count."""
    failure_probability: float
    """That the bound is wrong, over the simulation; 0 if the law is known."""


@final
@attrs.frozen(kw_only=True)
class AcrossRounds:
    """What tail caps leave open after a whole run; two numbers that must not be added."""

    delta: float
    """To be added to the delta of the claim."""
    failure_probability: float
    """To be said beside the claim: the confidence is 1 minus this."""


def tail_cap(counts: Integers, log_probabilities: Floats, *, tail_probability: float) -> TailCap:
    """The smallest count that a known law exceeds with probability at most `tail_probability`.

    Use: with the law of the discrepancy in one batch, or better, once for the whole run, with the
    law of the number of differing records: it is the same in all rounds, so its tail is paid once.
    Needs: the whole law; a truncated one does not say how much it left out.
    Source: lem:dkw_huc_cap, for a law that is known.

    >>> tail_cap(np.arange(3), np.log([0.5, 0.3, 0.2]), tail_probability=0.25).value
    1
    """
    check_between(0, 1, tail_probability=tail_probability)
    values, logs = _whole(counts=counts), locked(log_probabilities)
    if values.shape != logs.shape or not np.all(np.diff(values) > 0):
        msg = (
            "counts must ascend and have one log probability each; "
            f"got shapes {values.shape} and {logs.shape}"
        )
        raise ArgumentError(msg)
    # Summed from the far end, so that small tails are not lost against 1.
    at_least = np.cumsum(np.exp(logs)[::-1])[::-1]
    if not abs(float(at_least[0]) - 1) <= _ROUNDING:
        msg = f"the probabilities must sum to 1, got {float(at_least[0])!r}; fold in the tail"
        raise ArgumentError(msg)
    exceed = np.append(at_least[1:], 0.0) * (1 + _ROUNDING)
    value = int(values[np.argmax(exceed <= tail_probability)])
    return TailCap(value=value, tail_probability=tail_probability, failure_probability=0.0)


def hoeffding_tail_cap(
    *, batch_size: int, mismatch_probability: float, tail_probability: float
) -> TailCap:
    """The paper's closed form, B tau + sqrt(B ln(1/delta) / 2), as a whole number at most B.

    Needs: independent records that differ with probability at most `mismatch_probability`, and a
    batch of *different* records (without replacement). The paper states it for sampling with
    replacement; there it fails, because repeated draws of one record share its mismatch.
    Use: as `tail_cap`, which is smaller wherever the law is known.
    Source: app:estimate_caps:structure.
    """
    check_count(1, batch_size=batch_size)
    check_at_least(0, mismatch_probability=mismatch_probability)
    check_between(0, 1, tail_probability=tail_probability)
    _check_at_most_one(mismatch_probability)
    slack = math.sqrt(batch_size / 2 * math.log(1 / tail_probability))
    value = min(batch_size, math.floor(batch_size * mismatch_probability + slack))
    return TailCap(value=value, tail_probability=tail_probability, failure_probability=0.0)


def mismatch_mean_square_cap(*, batch_size: int, mismatch_probability: float) -> MeanSquareCap:
    """Mean of the squared discrepancy of independent records: B tau (1 - tau) + (B tau)^2.

    Needs: as `hoeffding_tail_cap`, a batch of different records.
    Use: comparison only. It averages over the data too, so it bounds no pair of datasets.
    Source: as `hoeffding_tail_cap`.
    """
    check_count(1, batch_size=batch_size)
    check_at_least(0, mismatch_probability=mismatch_probability)
    _check_at_most_one(mismatch_probability)
    mean = batch_size * mismatch_probability
    return MeanSquareCap(value=mean * (1 - mismatch_probability) + mean**2, failure_probability=0.0)


def simulate_discrepancies(
    draw_pair: Callable[[np.random.Generator], tuple[Any, Any]],
    draw_batch: Callable[[np.random.Generator], Any],
    *,
    n_replicates: int,
    seed: int,
) -> Integers:
    """How many records of a drawn batch differ between two coupled datasets, many times over.

    `draw_pair` gives two datasets of the same shape, records along the first axis; `draw_batch`
    gives indices, repeated where a record is drawn repeatedly. Only the counts are kept. A missing
    number (NaN) counts as differing.
    Source: alg:mc_caps, alg:mc_discrepancy_cap.
    """
    check_count(1, n_replicates=n_replicates)
    check_count(0, seed=seed)
    rng = np.random.default_rng(seed)
    counts = [_count_differing(*draw_pair(rng), draw_batch(rng)) for _ in range(n_replicates)]
    return locked_integers(counts)


def mean_square_cap_estimate(
    discrepancies: Integers, *, discrepancy_cap: int, failure_probability: float
) -> MeanSquareCap:
    r"""Upper bound on the mean of the squared discrepancy, from simulated ones.

    $$\hat\mu_2 + K^2 \sqrt{\ln(2/\gamma) / (2M)}$$

    Guarantee: at least the mean over data and batch, except with probability
    `failure_probability`.
    Use: comparison only. The caps need a bound for every pair of datasets, this averages over them.
    Needs: independent replicates, none above `discrepancy_cap` (the paper's batch size, or the
    smaller cap of the sampling design).
    Source: lem:mc_ms_cap.
    """
    draws = _draws(discrepancies, discrepancy_cap)
    slack = dkw_halfwidth(len(draws), failure_probability)
    value = float(np.mean(draws.astype(np.float64) ** 2)) + discrepancy_cap**2 * slack
    return MeanSquareCap(value=value, failure_probability=failure_probability)


def uniform_mean_square_cap_estimate(
    discrepancies: Sequence[Integers], *, discrepancy_cap: int, failure_probability: float
) -> MeanSquareCap:
    """The largest `mean_square_cap_estimate` of all instances (prior and pair of secrets).

    Guarantee: each instance is below its own estimate, all at once, except with probability
    `failure_probability`, which is split evenly over the instances.
    Use: comparison only, as for one instance.
    Source: cor:uniform_ms_cap.
    """
    share = _share(discrepancies, failure_probability)
    caps = [
        mean_square_cap_estimate(draws, discrepancy_cap=discrepancy_cap, failure_probability=share)
        for draws in discrepancies
    ]
    value = max(cap.value for cap in caps)
    return MeanSquareCap(value=value, failure_probability=failure_probability)


def tail_cap_estimate(
    discrepancies: Integers,
    *,
    discrepancy_cap: int,
    tail_probability: float,
    failure_probability: float,
) -> TailCap:
    """A count that the discrepancy exceeds with probability at most `tail_probability`.

    The order statistic of rank ceil((1 - (delta - e)) M), with e the DKW half-width; the cap of
    every draw if delta is not above e.
    Guarantee: except with probability `failure_probability` over the simulation.
    Use: (epsilon, delta) claims, with `across_rounds`. Counts of differing records in the whole
    data may be given as well, with the number of records as `discrepancy_cap`: one tail for all
    rounds.
    Needs: independent replicates of the coupling and the batch, none above `discrepancy_cap`.
    Source: lem:dkw_huc_cap.
    """
    draws = _draws(discrepancies, discrepancy_cap)
    check_between(0, 1, tail_probability=tail_probability)
    left_out = tail_probability - dkw_halfwidth(len(draws), failure_probability)
    value = discrepancy_cap
    if left_out > 0:
        n_above = math.floor(left_out * len(draws) * (1 - _ROUNDING))
        value = int(np.sort(draws)[len(draws) - 1 - n_above])
    return TailCap(
        value=value, tail_probability=tail_probability, failure_probability=failure_probability
    )


def uniform_tail_cap_estimate(
    discrepancies: Sequence[Integers],
    *,
    discrepancy_cap: int,
    tail_probability: float,
    failure_probability: float,
) -> TailCap:
    """The largest `tail_cap_estimate` of all instances (prior and pair of secrets).

    Guarantee: the tail of every instance is at most `tail_probability`, all at once, except with
    probability `failure_probability`, which is split evenly over the instances.
    Source: cor:uniform_huc_cap.
    """
    share = _share(discrepancies, failure_probability)
    caps = [
        tail_cap_estimate(
            draws,
            discrepancy_cap=discrepancy_cap,
            tail_probability=tail_probability,
            failure_probability=share,
        )
        for draws in discrepancies
    ]
    return attrs.evolve(
        max(caps, key=lambda cap: cap.value), failure_probability=failure_probability
    )


def across_rounds(*, tail_probabilities: Floats, failure_probabilities: Floats) -> AcrossRounds:
    """Add up what the tail caps of a run leave open, each on its own side.

    `tail_probabilities` has one entry per round. A cap on the differing records of the whole data
    holds in all rounds at once: one entry, however many rounds. `failure_probabilities` has one
    entry per estimation; an estimate that serves several rounds can fail only once, and a known law
    not at all.
    Use: with a claim (epsilon, delta') under the caps, claim (epsilon, delta' + delta), with
    confidence 1 - failure_probability. The paper subtracts both sums from one probability.
    Source: lem:dkw_huc_cap, cor:uniform_huc_cap, across rounds.
    """
    return AcrossRounds(
        delta=_sum_below_one(tail_probabilities=tail_probabilities),
        failure_probability=_sum_below_one(failure_probabilities=failure_probabilities),
    )


def _sum_below_one(**named: Floats) -> float:
    ((name, given),) = named.items()
    values = np.ravel(locked(given))
    check_finite(**{name: values})
    if np.any(values < 0) or not math.fsum(values) < 1:
        msg = (
            f"{name} must not be negative and must sum to less than 1, or nothing is claimed; got "
            f"the sum {math.fsum(values)!r} over {values.size} entries. Bound the differing records"
            " of the whole data once instead of the discrepancy of every round"
        )
        raise ArgumentError(msg)
    return math.fsum(values)


def _share(discrepancies: Sequence[Integers], failure_probability: float) -> float:
    if not len(discrepancies):
        msg = "discrepancies must hold the counts of at least one instance, got none"
        raise ArgumentError(msg)
    return split(failure_probability, len(discrepancies))


def _draws(discrepancies: Integers, discrepancy_cap: int) -> Integers:
    check_count(0, discrepancy_cap=discrepancy_cap)
    draws = _whole(discrepancies=discrepancies)
    if draws.max() > discrepancy_cap:
        msg = (
            f"discrepancies must not exceed discrepancy_cap {discrepancy_cap}; "
            f"{np.count_nonzero(draws > discrepancy_cap)} of {draws.size} do"
        )
        raise ArgumentError(msg)
    return draws


def _whole(**named: Integers) -> Integers:
    ((name, given),) = named.items()
    values = np.asarray(given)
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iu" or values.min() < 0:
        msg = (
            f"{name} must be a non-empty line of whole numbers, none negative; "
            f"got {values.dtype} of shape {values.shape}"
        )
        raise ArgumentError(msg)
    return locked_integers(values)


def _check_at_most_one(mismatch_probability: float) -> None:
    if mismatch_probability > 1:
        msg = f"mismatch_probability must be at most 1, got {mismatch_probability!r}"
        raise ArgumentError(msg)


def _count_differing(first: Any, second: Any, batch: Any) -> int:  # noqa: ANN401 - array-likes
    """Positions of the batch whose records differ."""
    one, two, indices = np.asarray(first), np.asarray(second), np.asarray(batch)
    if one.shape != two.shape or one.ndim == 0:
        msg = (
            "draw_pair must give two datasets of the same shape, records along the first axis; "
            f"got {one.shape} and {two.shape}"
        )
        raise ArgumentError(msg)
    fits = indices.ndim == 1 and (indices.dtype.kind in "iu" or not indices.size)
    if not fits or (indices.size and (indices.min() < 0 or indices.max() >= len(one))):
        msg = f"draw_batch must give a line of indices from 0 to {len(one) - 1}"
        raise ArgumentError(msg)
    chosen = indices.astype(np.int64)
    differ = one[chosen] != two[chosen]
    return int(np.count_nonzero(differ.any(axis=tuple(range(1, differ.ndim)))))
