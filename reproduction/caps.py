# SPDX-License-Identifier: Apache-2.0
r"""HUC and sa-HUC caps: how far one round of clipped SGD can move, its cost, and estimates.

One clipped gradient *reaches* some distance along a slice of the update, two of them lie at most
twice that apart, and K of the B gradients of a batch differ:

$$h_{t,i} = (2 \cdot reach_i \cdot K / B)^2$$

Caps contain the step size, so they belong to noise on the *update*. They bound the cost of one
round given its history. Sums over rounds and the recipe are the paper's numbers, for comparison:
slice-wise caps do **not** certify a run, because a shift that no slice sees today can be turned
into a slice by tomorrow's gradient. Nothing here leads to a certificate; the accountants work in
full dimension.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, Integers, locked, locked_integers, same
from pufferslice._core.checks import (
    check_above,
    check_at_least,
    check_between,
    check_count,
    check_finite,
    check_probabilities,
    check_share,
    check_unit_rows,
    is_a,
)
from pufferslice.errors import ArgumentError
from pufferslice.learning.differing import DrawPair, exceedances
from pufferslice.learning.moments import log_mean_exp
from pufferslice.learning.tails import TailCap, checked_counts, checked_replicates
from pufferslice.sensitivity.renyi import aggregate_average, aggregate_joint

_ROUNDING: Final = 1e-12
"""Relative error allowed in a symmetric matrix and in a sum of probabilities."""

_quiet: Final = np.errstate(over="ignore", invalid="ignore")
"""`_finite` reports overflow, as an error and not as a warning."""


def _plain_integers(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(size) if is_a(size, np.integer) else size for size in sizes)


@final
@attrs.frozen(kw_only=True)
class ClippedBlocks:
    """Blocks of coordinates (layers), in order, each clipped on its own.

    >>> ClippedBlocks(sizes=[2, 1], clip_norms=[3.0, 4.0]).dim
    3
    """

    sizes: tuple[int, ...] = attrs.field(converter=_plain_integers)
    """Coordinates per block; the first block has the first ones."""
    clip_norms: Floats = attrs.field(converter=locked, eq=same)
    """Largest Euclidean norm of a per-example gradient inside each block."""

    def __attrs_post_init__(self) -> None:
        for size in self.sizes:
            check_count(1, size=size)
        if not self.sizes or self.clip_norms.shape != (len(self.sizes),):
            raise ArgumentError(
                "sizes and clip_norms must have one entry per block, at least one; "
                f"got {len(self.sizes)} sizes and clip_norms of shape {self.clip_norms.shape}"
            )
        for clip_norm in self.clip_norms:
            check_above(0, clip_norm=float(clip_norm))

    @classmethod
    def by_size(cls, sizes: Sequence[int], *, clip_norm: float) -> "ClippedBlocks":
        """Clip norms proportional to the root of the block size; their squares sum to clip_norm^2.

        The rule of the paper's per-layer example.
        """
        check_above(0, clip_norm=clip_norm)
        for size in sizes:
            check_count(1, size=size)
        shares = np.array(sizes, dtype=float) / max(sum(sizes), 1)
        return cls(sizes=sizes, clip_norms=clip_norm * np.sqrt(shares))

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return sum(self.sizes)

    def norms(self, rows: Floats) -> Floats:
        """Euclidean norm of each row inside each block, shape (n_rows, n_blocks)."""
        starts = list(itertools.accumulate(self.sizes[:-1], initial=0))
        return np.asarray(np.sqrt(np.add.reduceat(rows**2, starts, axis=1)))


@_quiet
def lipschitz_reach(lipschitz: Floats, *, clip_norm: float) -> Floats:
    """How far one gradient of norm at most `clip_norm` can reach: lipschitz * clip_norm.

    Needs: along slice i the update moves by at most `lipschitz[i]` times the Euclidean norm of a
    change of the mean gradient. A global Lipschitz constant serves every slice. For plain SGD, also
    with momentum and weight decay, the learning rate is one.
    Source: prop:exist_HUC.
    """
    check_above(0, clip_norm=clip_norm)
    return _finite(_not_negative(lipschitz=lipschitz) * clip_norm)


@_quiet
def block_reach(directions: Floats, blocks: ClippedBlocks, *, preconditioner: Floats) -> Floats:
    r"""How far one blockwise clipped gradient can reach: sum of $C_b \|P_b A^T u_i\|$.

    Guarantee: no gradient reaches farther, and one that is aligned with $P_b A^T u_i$ at the clip
    norm in every block reaches exactly there, so the caps from it are minimal.
    Needs: the update is linear in the mean gradient, params - A @ gradient, and A does not depend
    on the data or the batch.
    Source: corollary:vanilla_SGD_HUC.

    >>> blocks = ClippedBlocks(sizes=[1, 1], clip_norms=[3.0, 5.0])
    >>> float(block_reach([[0.6, 0.8]], blocks, preconditioner=np.eye(2))[0])
    5.8
    """
    rows = _unit_rows(directions, blocks.dim)
    matrix = _square(blocks.dim, preconditioner=preconditioner)
    return _finite(blocks.norms(rows @ matrix) @ blocks.clip_norms)


@_quiet
def block_reach_bound(directions: Floats, blocks: ClippedBlocks, *, lipschitz: Floats) -> Floats:
    r"""The explicit form for layers: sum of $C_b L_b \|P_b u_i\|$, never below `block_reach`.

    Needs: $\|P_b A^T u_i\| \le L_b \|P_b u_i\|$ for every block and slice; with one learning rate
    per layer L_b is that rate, and the two forms agree.
    Source: corollary:vanilla_SGD_HUC, in the form of app:perlayer_clipping.
    """
    factors = _not_negative(lipschitz=lipschitz)
    if factors.shape != blocks.clip_norms.shape:
        raise ArgumentError(
            f"lipschitz must have one entry per block, {len(blocks.sizes)}; got {factors.shape}"
        )
    rows = _unit_rows(directions, blocks.dim)
    return _finite(blocks.norms(rows) @ (blocks.clip_norms * factors))


def squared_caps(reach: Floats, *, discrepancy_cap: float, divisor: float) -> Floats:
    """Bounds on the squared shift of one round along each slice, for every batch draw (HUC).

    Use: cost of one round given its history. With one flat clip norm the caps are the same in all
    directions and equal the full-dimension bound; otherwise they do not certify a run.
    Needs: no batch has more than `discrepancy_cap` differing records, and the sum of gradients is
    divided by the public `divisor`: the batch size or the expected one. Never the largest possible
    size, which would make the caps too small. For a sum that is divided by the realised size, give
    the largest ratio K/B (1 under Poisson sampling) and divisor 1.
    Source: def:HUC, prop:exist_HUC, corollary:vanilla_SGD_HUC, app:poisson_subsampling.

    >>> float(squared_caps([0.5], discrepancy_cap=3, divisor=6)[0])
    0.25
    """
    check_at_least(0, discrepancy_cap=discrepancy_cap)
    check_above(0, divisor=divisor)
    ratio = discrepancy_cap / divisor
    return mean_square_caps(reach, mean_square_discrepancy=ratio * ratio, divisor=1)


@_quiet
def mean_square_caps(reach: Floats, *, mean_square_discrepancy: float, divisor: float) -> Floats:
    """Bounds on the mean over batch draws of the squared shift along each slice (sa-HUC).

    Use: comparison, and the paper's average over batch draws; it implies no bound on what one
    batch draw shows. Take the largest slice, not the log-moment, for its joint form.
    Needs: the mean square over batch draws alone, at most this for every pair of coupled datasets.
    For a sum that is divided by the realised size, give the mean of (K/B)^2 and divisor 1; a batch
    of no records counts as ratio 0.
    Source: def:msHUC, prop:msHUC_from_K2, app:poisson_subsampling.
    """
    check_at_least(0, mean_square_discrepancy=mean_square_discrepancy)
    check_above(0, divisor=divisor)
    # The 2 belongs to the difference of two clipped gradients; it is written only here.
    mean_square_ratio = mean_square_discrepancy / divisor / divisor
    return _finite((2 * _not_negative(reach=reach)) ** 2 * mean_square_ratio)


@_quiet
def minimal_squared_caps(directions: Floats, shifts: Floats) -> Floats:
    """The smallest caps of one round whose possible shifts are known: the largest square per slice.

    Guarantee: every valid cap vector of this history and coupling is at least this, and this one is
    attained. `shifts` has shape (n_shifts, dim).
    Use: to see how far a cap is from tight. Like every cap it is about one round.
    Source: prop:HUC_tight.
    """
    moves = locked(shifts)
    if moves.ndim != 2 or moves.size == 0:
        raise ArgumentError(
            f"shifts must have shape (n_shifts, dim), both at least 1; got {moves.shape}"
        )
    check_finite(shifts=moves)
    rows = _unit_rows(directions, moves.shape[1])
    return _finite(np.max((rows @ moves.T) ** 2, axis=1))


@_quiet
def cap_matrix(
    blocks: ClippedBlocks, *, preconditioner: Floats, discrepancy_cap: float, divisor: float
) -> Floats:
    r"""One matrix H with squared shift along u at most $u^T H u$, for every u in R^dim.

    $$H = (2K/B)^2 \, \big(\sum_b C_b\big) \, A \, \big(\sum_b C_b P_b\big) A^T$$

    Guarantee: never below the squared caps of `block_reach` (Cauchy-Schwarz over the blocks). With
    one block it equals them in every direction.
    Use: a sensitivity ellipsoid of one round; the caps of a profile are its diagonal values.
    Source: def:HUC, corollary:vanilla_SGD_HUC.
    """
    matrix = _square(blocks.dim, preconditioner=preconditioner)
    radius = np.sqrt(np.repeat(blocks.clip_norms, blocks.sizes) * blocks.clip_norms.sum())
    scale = squared_caps(np.ones(1), discrepancy_cap=discrepancy_cap, divisor=divisor)[0]
    half = matrix * radius
    return _finite(scale * (half @ half.T))


@_quiet
def matrix_caps(directions: Floats, matrix: Floats) -> Floats:
    """The squared caps that a cap matrix gives along each slice: u^T H u.

    Source: def:HUC.
    """
    return _quadratic(directions, matrix=matrix)


@_quiet
def projected_variance(directions: Floats, noise_cov: Floats) -> Floats:
    """Variance of the noise along each slice, u^T Sigma u; each must be positive.

    Source: lemma:gaussian_SRE.
    """
    variance = _quadratic(directions, noise_cov=noise_cov)
    n_without = int(np.count_nonzero(~(variance > 0)))
    if n_without:
        raise ArgumentError(
            f"the noise must have positive variance along every slice; {n_without} of "
            f"{variance.size} slices have none. Add noise there, or leave those slices out"
        )
    return variance


@_quiet
def round_costs(order: float, caps: Floats, variance: Floats) -> Floats:
    """Bound on the divergence of one round along each slice: order * cap / (2 * variance).

    Guarantee: given the history. From squared caps, for every batch draw; from mean-square caps,
    on average over batch draws.
    Needs: `variance` of the noise along each slice (`projected_variance`), in the same space as
    the caps: the update, or the mean gradient if the caps have step size 1.
    Source: lemma:gaussian_SRE, lem:sa_gaussian_slice.

    >>> round_costs(4, [0.5, 1.0], [2.0, 2.0]).tolist()
    [0.5, 1.0]
    """
    check_above(1, order=order)
    values, variances = _along_slices(1, caps=caps), locked(variance)
    if variances.shape != values.shape:
        raise ArgumentError(
            f"variance must have one entry per cap, {values.size}; got shape {variances.shape}"
        )
    check_finite(variance=variances)
    check_above(0, smallest_variance=float(variances.min()))
    return _finite(order * values / (2 * variances))


@_quiet
def subsampled_round_costs(
    order: float, caps_by_draw: Floats, log_probabilities: Floats, variance: Floats
) -> Floats:
    r"""Bound on the divergence of one round along each slice, for a batch that is drawn at random.

    $$\frac{1}{\alpha-1} \ln E_\eta\, e^{(\alpha-1)\, \alpha\, h(\eta) / (2 v)}$$

    `caps_by_draw` has the squared caps of each outcome of the draw, shape (n_draws, n_directions),
    and `log_probabilities` one entry for each: `squared_caps` for 0, 1, 2, ... differing records in
    the batch, and `discrepancy_log_probabilities` of the sampling design.
    Guarantee: given the history, and also if the draw is published (joint convexity). Never above
    `round_costs` of the largest caps, and below it wherever a smaller cap is possible.
    Needs: as `round_costs`; the draw does not depend on the data.
    Source: lem:renyi_mixture_shared, lem:sa_never_looser_ARJR.

    >>> none, one = (squared_caps([1.0], discrepancy_cap=k, divisor=2) for k in (0, 1))
    >>> costs = subsampled_round_costs(2, [none, one], np.log([0.5, 0.5]), [1.0])
    >>> float(costs[0])  # ln((1 + e) / 2)
    0.62011450...
    """
    values = _along_slices(2, caps_by_draw=caps_by_draw)
    logs = np.asarray(log_probabilities, dtype=np.float64)
    check_probabilities(
        length=len(values), **{"the exponentials of log_probabilities": np.exp(logs)}
    )
    costs = np.stack([round_costs(order, caps, variance) for caps in values])
    return _finite(log_mean_exp(logs[:, None], (order - 1) * costs) / (order - 1))


def average_round_cost(costs: Floats, weights: Floats) -> float:
    """Cost of one round given its history, average over the slices.

    `costs` are `round_costs` of caps of either kind, or `subsampled_round_costs` (the paper's
    AR^sa, at most the cost of the largest caps).
    Use: one round; the functions that give the costs say what each means.
    Source: lemma:gaussian_SRE, lem:sa_gaussian_slice, def:ave_srd, eq:AR_sa_round,
    lem:sa_never_looser_ARJR.
    """
    values = _along_slices(1, costs=costs)
    return float(aggregate_average(values, _weights(weights, values)))


def joint_round_cost(order: float, costs: Floats, weights: Floats) -> float:
    """Cost of one round given its history, log-moment over the slices.

    `costs` are `round_costs` of squared caps, or `subsampled_round_costs` (the paper's JR^sa; the
    log-moments over slices and over draws may be exchanged).
    Use: one round. From mean-square caps the log-moment of the means is *below* the mean of the
    log-moments; take `largest_round_cost` there.
    Source: lemma:gaussian_SRE, def:joint_srd, eq:JR_sa_round, lem:sa_never_looser_ARJR.
    """
    check_above(1, order=order)
    values = _along_slices(1, costs=costs)
    return float(aggregate_joint(order, values, _weights(weights, values)))


def largest_round_cost(costs: Floats, weights: Floats) -> float:
    """Cost of one round given its history, the largest slice: the paper's rule for joint claims.

    Use: one round. At least the average and the joint cost, with squared caps or with mean-square
    caps of the closed form (one discrepancy shared by all slices).
    Source: thm:HUC_SRPP_SGD, thm:msHUC_SRPP_SGD.
    """
    values = _along_slices(1, costs=costs)
    return float(np.max(values[_weights(weights, values) > 0]))


@_quiet
def average_total_squared_cap(caps: Floats, weights: Floats) -> float:
    """Caps of shape (n_steps, n_directions), weighted over the slices and summed over the steps.

    Caps may first be divided by the projected variance of their step, for noise that is not the
    same everywhere; then order / 2 times the result is the paper's total.
    Use: comparison with the paper. The sum over rounds bounds no run for caps along slices.
    Source: thm:HUC_SRPP_SGD, thm:msHUC_SRPP_SGD.
    """
    values = _along_slices(2, caps=caps)
    return float(_finite(aggregate_average(values, _weights(weights, values)).sum()))


@_quiet
def joint_total_squared_cap(caps: Floats, weights: Floats) -> float:
    """Caps of shape (n_steps, n_directions): the largest slice of each step, summed over the steps.

    Use: as `average_total_squared_cap`, comparison with the paper.
    Source: thm:HUC_SRPP_SGD, thm:msHUC_SRPP_SGD.
    """
    values = _along_slices(2, caps=caps)
    return float(_finite(values[:, _weights(weights, values) > 0].max(axis=1).sum()))


def claimed_epsilon(order: float, total_squared_cap: float, *, noise_std: float) -> float:
    """The cost of a run by the paper's rule: order * total / (2 * noise_std^2).

    Use: comparison with the paper; the accountants give the cost of a run.
    Needs: `noise_std` in the space of the caps (`round_costs`).
    Source: thm:HUC_SRPP_SGD, thm:msHUC_SRPP_SGD.
    """
    check_above(1, order=order)
    check_at_least(0, total_squared_cap=total_squared_cap)
    check_above(0, noise_std=noise_std)
    return float(_finite(np.array(order / 2 * (total_squared_cap / noise_std / noise_std))))


def claimed_noise_std(order: float, epsilon: float, total_squared_cap: float) -> float:
    """The noise of the paper's rule, in the space of the caps; see `claimed_epsilon`.

    Use: comparison with the paper; never the calibration of a run.
    Source: thm:HUC_SRPP_SGD, thm:msHUC_SRPP_SGD.
    """
    check_above(1, order=order)
    check_above(0, epsilon=epsilon)
    check_at_least(0, total_squared_cap=total_squared_cap)
    return math.sqrt(_finite(np.array(order / 2 * (total_squared_cap / epsilon))))


@final
@attrs.frozen(kw_only=True)
class RecipeNoise:
    """The noise of the paper's experiments, its claimed cost and its true one."""

    noise_multiplier: float
    """Noise standard deviation on the sum of clipped gradients, over the clip norm."""
    claimed_epsilon: float
    true_epsilon: float
    """The cost of the run by the worst-case or the mean-square accountant."""

    @property
    def understatement(self) -> float:
        """The true cost over the claimed one."""
        return self.true_epsilon / self.claimed_epsilon


def recipe_noise(
    order: float, epsilon: float, learning_rates: Floats, *, squared_discrepancy: float
) -> RecipeNoise:
    r"""The noise multiplier of the paper's experiments for a claimed `epsilon`, and its true cost.

    The recipe calibrates noise on the *update*, from caps that contain the learning rates, and then
    adds that noise, times batch size over clip norm, to the *gradient*. There the learning rates
    shrink nothing, so the true cost is $T / \sum_t \eta_t^2$ times the claim.
    `squared_discrepancy` is the square of the every-draw cap (then the cost is the worst-case one),
    or the mean square over batch draws (then it is the mean-square one).
    Use: comparison, always with the true cost beside it; never a plan for training.
    Source: thm:HUC_SRPP_SGD, thm:msHUC_SRPP_SGD, as used in the appendix on experiments.
    """
    check_above(0, squared_discrepancy=squared_discrepancy)
    rates = locked(learning_rates)
    if rates.ndim != 1 or rates.size == 0:
        raise ArgumentError(
            f"learning_rates must have one entry per step, at least one; got {rates.shape}"
        )
    check_above(0, smallest_learning_rate=float(rates.min()))
    # Clip norm and batch size cancel, so both are 1 here.
    on_updates, on_gradients = (
        float(mean_square_caps(reach, mean_square_discrepancy=squared_discrepancy, divisor=1).sum())
        for reach in (rates, np.ones_like(rates))
    )
    multiplier = claimed_noise_std(order, epsilon, on_updates)
    return RecipeNoise(
        noise_multiplier=multiplier,
        claimed_epsilon=float(epsilon),
        true_epsilon=claimed_epsilon(order, on_gradients, noise_std=multiplier),
    )


class AcrossRounds(NamedTuple):
    """What the tail caps of a run leave open; two numbers that must not be added."""

    delta: float
    """To be added to the delta of the claim."""
    failure_probability: float
    """1 minus the confidence of the claim."""


def tail_cap(counts: Integers, log_probabilities: Floats, *, tail_probability: float) -> TailCap:
    """The smallest count that is exceeded with probability at most `tail_probability`.

    Use: with the distribution of the discrepancy in one batch, or better, once for the whole run,
    with the distribution of the number of differing records: it is the same in all rounds, so its
    tail counts once. Needs: the whole distribution, not a truncated one.
    Source: lem:dkw_huc_cap, for a distribution that is known.

    >>> tail_cap(np.arange(3), np.log([0.5, 0.3, 0.2]), tail_probability=0.25).value
    1
    """
    check_between(0, 1, tail_probability=tail_probability)
    values, logs = checked_counts(counts=counts), locked(log_probabilities)
    if values.shape != logs.shape or not np.all(np.diff(values) > 0):
        raise ArgumentError(
            "counts must ascend and have one log probability each; "
            f"got shapes {values.shape} and {logs.shape}"
        )
    total = float(np.exp(logs).sum())
    if not abs(total - 1) <= _ROUNDING:
        raise ArgumentError(f"the probabilities must sum to 1, got {total!r}; fold in the tail")
    value = int(values[np.argmax(exceedances(logs) <= tail_probability)])
    return TailCap(value=value, tail_probability=tail_probability, failure_probability=0.0)


def hoeffding_tail_cap(
    *, batch_size: int, mismatch_probability: float, tail_probability: float
) -> TailCap:
    """The paper's closed form, B tau + sqrt(B ln(1/delta) / 2), as an integer at most B.

    Needs: independent records that differ with probability at most `mismatch_probability`, and a
    batch of *different* records (without replacement). The paper states it for sampling with
    replacement; there it fails, because repeated draws of one record share its mismatch.
    Use: as `tail_cap`, which is smaller wherever the distribution is known.
    Source: app:estimate_caps:structure.
    """
    mean = _mean_discrepancy(batch_size, mismatch_probability)
    check_between(0, 1, tail_probability=tail_probability)
    slack = math.sqrt(batch_size / 2 * math.log(1 / tail_probability))
    value = min(batch_size, math.floor(mean + slack))
    return TailCap(value=value, tail_probability=tail_probability, failure_probability=0.0)


def mismatch_mean_square_cap(*, batch_size: int, mismatch_probability: float) -> float:
    """Mean of the squared discrepancy of independent records: B tau (1 - tau) + (B tau)^2.

    Needs: as `hoeffding_tail_cap`, a batch of different records.
    Use: comparison only. It averages over the data too, so it bounds no pair of datasets.
    Source: as `hoeffding_tail_cap`.
    """
    mean = _mean_discrepancy(batch_size, mismatch_probability)
    return mean * (1 - mismatch_probability) + mean**2


def simulate_discrepancies(
    draw_pair: DrawPair,
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
    counts = []
    for _ in range(n_replicates):
        first, second = map(np.asarray, draw_pair(rng))
        indices = np.asarray(draw_batch(rng))
        if first.shape != second.shape or first.ndim == 0:
            raise ArgumentError(
                "draw_pair must give two datasets of the same shape, records along the first axis; "
                f"got {first.shape} and {second.shape}"
            )
        are_integers = indices.ndim == 1 and (indices.dtype.kind in "iu" or not indices.size)
        if not are_integers or np.any((indices < 0) | (indices >= len(first))):
            raise ArgumentError(
                f"draw_batch must give a vector of indices from 0 to {len(first) - 1}"
            )
        drawn = indices.astype(np.int64)
        differ = first[drawn] != second[drawn]
        counts.append(int(np.count_nonzero(differ.any(axis=tuple(range(1, differ.ndim))))))
    return locked_integers(counts)


def mean_square_cap_estimate(
    *instances: Integers, discrepancy_cap: int, failure_probability: float
) -> float:
    r"""Upper bound on the mean of the squared discrepancy, from simulated ones of each instance.

    $$\hat\mu_2 + K^2 \sqrt{\ln(2/\gamma) / (2M)}$$

    An instance is a prior and a pair of secrets. The largest estimate counts, and the failure
    probability is split evenly over the instances.
    Guarantee: at least the mean over data and batch of every instance, except with probability
    `failure_probability`.
    Use: comparison only. The caps need a bound for every pair of datasets, this averages over them.
    Needs: independent replicates, none above `discrepancy_cap` (the paper's batch size, or the
    smaller cap of the sampling design).
    Source: lem:mc_ms_cap, cor:uniform_ms_cap.
    """
    return max(
        float(np.mean(draws.astype(np.float64) ** 2)) + discrepancy_cap**2 * slack
        for draws, slack in checked_replicates(instances, discrepancy_cap, failure_probability)
    )


def across_rounds(*, tail_probabilities: Floats, failure_probabilities: Floats) -> AcrossRounds:
    """Add up what the tail caps of a run leave open: the tails, and the failures of the estimates.

    `tail_probabilities` has one entry per round. A cap on the differing records of the whole data
    holds in all rounds at once: one entry for any number of rounds. `failure_probabilities` has one
    entry per estimation; an estimate that serves several rounds can fail only once, and a known
    distribution not at all. Use: with a claim (epsilon, delta') under the caps, claim (epsilon,
    delta' + delta), with confidence 1 - failure_probability. The paper subtracts both sums from one
    probability. Source: lem:dkw_huc_cap, cor:uniform_huc_cap, across rounds.
    """
    named = {
        "tail_probabilities": tail_probabilities,
        "failure_probabilities": failure_probabilities,
    }
    sums = []
    for name, probabilities in named.items():
        values = np.ravel(_not_negative(**{name: probabilities}))
        total = math.fsum(values)
        if not total < 1:
            raise ArgumentError(
                f"{name} must sum to less than 1; got the sum {total!r} over {values.size} "
                "entries. Bound the differing records of the whole data once instead of the "
                "discrepancy of every round"
            )
        sums.append(total)
    return AcrossRounds(*sums)


def _unit_rows(directions: Floats, dim: int | None = None) -> Floats:
    rows = locked(directions)
    check_unit_rows(directions=rows)
    if dim is not None and rows.shape[1] != dim:
        raise ArgumentError(f"directions must have {dim} coordinates, got {rows.shape[1]}")
    return rows


def _square(dim: int, **named: Floats) -> Floats:
    ((name, matrix),) = named.items()
    values = locked(matrix)
    if values.shape != (dim, dim):
        raise ArgumentError(f"{name} must have shape ({dim}, {dim}), got {values.shape}")
    check_finite(**{name: values})
    return values


def _quadratic(directions: Floats, **named: Floats) -> Floats:
    """u^T M u for each direction u, where M is symmetric and has no negative eigenvalue."""
    rows = _unit_rows(directions)
    values = _square(rows.shape[1], **named)
    slack = _ROUNDING * float(np.abs(values).max())
    if np.abs(values - values.T).max() > slack or np.linalg.eigvalsh(values)[0] < -slack:
        raise ArgumentError(
            f"{next(iter(named))} must be symmetric and have no negative eigenvalue; use "
            "(m + m.T) / 2, and a covariance"
        )
    # Rounding may leave a zero slightly below zero.
    return _finite(np.maximum(np.sum((rows @ values) * rows, axis=1), 0.0))


def _not_negative(**named: Floats) -> Floats:
    ((name, numbers),) = named.items()
    values = locked(numbers)
    check_finite(**{name: values})
    if np.any(values < 0):
        raise ArgumentError(f"{name} must not be negative; the smallest is {float(values.min())!r}")
    return values


def _finite(values: Floats) -> Floats:
    if not np.all(np.isfinite(values)):
        raise ArgumentError(
            "the result is too large for a float; give clip norms, caps and noise in larger units"
        )
    return np.asarray(values)


def _along_slices(n_axes: int, **named: Floats) -> Floats:
    """Caps or costs along the slices, with two axes also for each step or draw."""
    values = _not_negative(**named)
    if values.ndim != n_axes or values.size == 0:
        rows = ("", "n_steps or n_draws, ")[n_axes - 1]
        raise ArgumentError(
            f"{next(iter(named))} must have shape ({rows}n_directions) and not be empty, got "
            f"{values.shape}"
        )
    return values


def _weights(weights: Floats, values: Floats) -> Floats:
    shares = locked(weights)
    check_probabilities(length=values.shape[-1], weights=shares)
    return shares


def _mean_discrepancy(batch_size: int, mismatch_probability: float) -> float:
    check_count(1, batch_size=batch_size)
    check_share(mismatch_probability=mismatch_probability)
    return batch_size * mismatch_probability
