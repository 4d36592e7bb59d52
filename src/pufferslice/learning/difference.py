# SPDX-License-Identifier: Apache-2.0
"""The difference between two worlds of training runs, as claims ask for it.

Given the coupled data some number D of records differ, and the steps compose. So every bound is
computed for each D, and the expectation over D comes last, outside the composition.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, final

import attrs
import numpy as np
from scipy.special import erf, ndtr

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.search import SAFETY, smallest_epsilon
from pufferslice.claims import Guess, Measure, OverBatches
from pufferslice.claims.claim import WholeClaim
from pufferslice.errors import CalibrationError
from pufferslice.learning.accountants import (
    Accountant,
    Amplified,
    MeanSquare,
    WorstCase,
    checked_multipliers,
    cost_by_count,
    mixed_cost,
    nothing_differs,
)
from pufferslice.learning.differing import DifferingRecords, exceedances
from pufferslice.learning.privacy_loss import (
    FORGOTTEN,
    PRECISION,
    DeltaCurve,
    SecretDraws,
    StepLoss,
    composed,
)
from pufferslice.learning.sampling import SamplingDesign

_FEW: Final = 32
"""Most numbers of differing records that are computed each."""
_QUANTILES: Final = ndtr(-np.concatenate([np.linspace(-3.5, 4.5, 33), np.linspace(5, 11.6, 8)]))
"""Probabilities of more differing records at which they are computed where there are many."""
_MOST_LOSSES: Final = 256
"""Most losses of steps, over all numbers of differing records; with more, noise is rounded down."""
_LEAST_LOSSES: Final = 8
_COARSER: Final = 10
"""Factor on the precision of a composition where there are many."""
_NEGLIGIBLE: Final = 1e-3
"""Share of delta that one number of differing records may have where its own delta is known."""
_ROUGH_WIDTH: Final = 2.0**-8


class NoisySteps(NamedTuple):
    """The steps of one run: how batches are drawn, the noise, and what is known of the draws."""

    accountant: Accountant
    sampling: SamplingDesign
    noise_multipliers: Floats
    """The effective multiplier of each step, shape (n_steps,)."""

    def mean_squares(self, differing: DifferingRecords) -> Floats:
        """Bound E[K^2] of a batch for each number of differing records, by the accountant.

        Worst case takes the largest K: there, batches need not be drawn.
        """
        counts = differing.counts.astype(np.float64)
        if self.accountant == WorstCase():
            one, most = (self.sampling.discrepancy_cap(n) for n in (1, differing.largest))
            return np.asarray(np.minimum(counts * one, most) ** 2)
        first, second = (self.sampling.mean_square_over(*unit) for unit in ((1, 0), (0, 1)))
        return np.asarray(first * counts + second * counts**2)


class _Nodes(NamedTuple):
    """Numbers of differing records that are computed, for themselves and for smaller ones."""

    counts: list[int]
    places: Integers
    """For each number of differing records the next node; beyond the last there is none."""

    @classmethod
    def of(cls, differing: DifferingRecords) -> "_Nodes":
        counts = differing.counts
        if len(counts) <= _FEW:
            return cls(counts.tolist(), np.arange(len(counts)))
        exceed = exceedances(differing.log_probabilities)
        nodes = np.unique(np.searchsorted(-exceed, -_QUANTILES))
        return cls(counts[nodes].tolist(), np.searchsorted(nodes, np.arange(len(counts))))

    def bounds(self, at_nodes: list[float], ceiling: Floats) -> Floats:
        """Bound what does not fall with the number of differing records, for each of them."""
        return np.asarray(np.minimum(np.append(at_nodes, math.inf)[self.places], ceiling))


@final
@attrs.frozen(kw_only=True)
class RunDifference:
    """What runs over the same data show of a secret, with `noise_std` times their noise.

    Guarantee: every answer bounds what all runs together release under two values of the secret, in
    both orders, for ideal noise, as long as the draws of a run are as secret as its accountant
    needs; mean square needs no secrecy.
    Needs: one coupling of the data for all runs.
    """

    runs: tuple[NoisySteps, ...]
    differing: DifferingRecords
    implementation_delta: float = 0.0
    """Total variation between the noise that is drawn and ideal noise."""
    precision: float = PRECISION
    """Share of the variance that rounding may add to privacy-loss distributions, about."""
    near_delta: float | None = None
    """Delta near which `delta_curve` is to be most exact, and quickest; None for every delta."""

    def squared_distance(self, noise_std: float) -> float:
        r"""Bound the mean of $\sum_t 4 K_t^2 / z_t^2$ over data and batches.

        Given all batches, a run is no easier to tell apart than two Gaussians whose squared
        distance, in deviations of the noise, is this sum. It adds up over runs and releases,
        whoever sees the draws.
        """
        return self._mean(self._squared_distances(noise_std))

    def variation(self, noise_std: float) -> float:
        """Bound the total variation.

        With mean square by Jensen's inequality, because right guesses are concave in the squared
        distance; otherwise by the privacy-loss distribution, or by the first where that is less.
        """
        if any(run.accountant == MeanSquare() for run in self.runs):
            return self._with_excess(float(_variation(np.array(self.squared_distance(noise_std)))))
        return self.delta_curve(noise_std)(0.0)

    def delta_curve(self, noise_std: float) -> Callable[[float], float]:
        """Bound delta as a function of epsilon, by the privacy-loss distribution.

        A run that is accounted by mean square counts as one whose draws are published.
        """
        nodes = _Nodes.of(self.differing)
        curves = [self._curve(n, len(nodes.counts), noise_std) for n in nodes.counts]
        ceiling = _variation(self._squared_distances(noise_std))

        def mean(bounds: Sequence[Callable[[float], float]], epsilon: float) -> float:
            values = nodes.bounds([bound(epsilon) for bound in bounds], ceiling)
            return self._with_excess(min(1.0, self._mean(values)))

        if self.near_delta is None:
            return partial(mean, curves)
        estimates = [curve.by_moments for curve in curves]
        near = smallest_epsilon(partial(mean, estimates), self.near_delta)
        if not 0 < near < math.inf:
            return partial(mean, curves)
        # A curve is loose far below its epsilon; so this is where it stops to matter, or `near`.
        limits = _NEGLIGIBLE * self.near_delta / np.maximum(self._weights(nodes), FORGOTTEN)
        ends = (
            smallest_epsilon(estimate, limit, first=near, width=_ROUGH_WIDTH)
            for estimate, limit in zip(estimates, limits.tolist(), strict=True)
        )
        return partial(mean, [c.near(min(near, e)) for c, e in zip(curves, ends, strict=True)])

    def divergence(self, order: float, noise_std: float) -> float:
        """Bound the Rényi divergence of an order; with mean square, its mean over batch draws."""
        costs = [
            cost_by_count(
                run.accountant,
                order,
                run.sampling,
                self.differing,
                run.noise_multipliers * noise_std,
            )
            for run in self.runs
        ]
        return mixed_cost(order, np.sum(costs, axis=0), self.differing)

    def mean_square(self, noise_std: float) -> float:
        """Bound twice the Kullback-Leibler divergence, which adds up over steps."""
        self.differing.check_whole()
        return math.fsum(
            attrs.evolve(self, runs=(run,))._twice_divergence(noise_std)  # noqa: SLF001 - itself
            for run in self.runs
        )

    def _twice_divergence(self, noise_std: float) -> float:
        (run,) = self.runs
        published = self.squared_distance(noise_std)
        if run.accountant != Amplified():
            return published
        nodes = _Nodes.of(self.differing)
        steps = _grouped(self._multipliers(run, noise_std), len(nodes.counts))
        at_nodes = []
        for n_differing in nodes.counts:
            logs = run.sampling.discrepancy_log_probabilities(n_differing)
            losses = ((SecretDraws.of(multiplier, logs, FORGOTTEN), n) for multiplier, n in steps)
            at_nodes.append(2 * math.fsum(n * loss.mean() for loss, n in losses))
        ceiling = self._squared_distances(noise_std)
        return min(published, self._mean(nodes.bounds(at_nodes, ceiling)))

    def _curve(self, n_differing: int, n_nodes: int, noise_std: float) -> DeltaCurve:
        """Bound delta for one number of differing records."""
        tail = FORGOTTEN / (4 * sum(len(run.noise_multipliers) for run in self.runs))
        steps: list[tuple[StepLoss, int]] = []
        for run in self.runs:
            multipliers = self._multipliers(run, noise_std)
            if run.accountant == WorstCase():
                cap = run.sampling.discrepancy_cap(n_differing)
                root = math.sqrt(float(np.sum(multipliers**-2.0)))
                multipliers = np.array([1 / root]) if cap else multipliers[:1]
            steps += [
                (run.accountant.loss(run.sampling, n_differing, multiplier, tail), n)
                for multiplier, n in _grouped(multipliers, n_nodes * len(self.runs))
            ]
        coarser = 1 if n_nodes <= _LEAST_LOSSES else _COARSER
        return composed(steps, precision=coarser * self.precision)

    def _squared_distances(self, noise_std: float) -> Floats:
        """Bound the mean squared distance for each number of differing records."""
        total = np.zeros(len(self.differing.counts))
        for run in self.runs:
            noise = float(np.sum(self._multipliers(run, noise_std) ** -2.0))
            total += 4 * noise * run.mean_squares(self.differing)
        return np.asarray(total * SAFETY)

    def _weights(self, nodes: _Nodes) -> Floats:
        """Return the probability of the numbers of differing records that each node stands for."""
        chances = np.exp(self.differing.log_probabilities)
        sums = np.bincount(nodes.places, chances, len(nodes.counts) + 1)
        return np.asarray(sums[:-1], dtype=np.float64)

    @staticmethod
    def _multipliers(run: NoisySteps, noise_std: float) -> Floats:
        return checked_multipliers(run.noise_multipliers * noise_std)

    def _mean(self, bounds: Floats) -> float:
        """Take the mean over the numbers of differing records, and round it up."""
        chances = np.exp(self.differing.log_probabilities)
        return float(chances @ bounds) / float(chances.sum()) * SAFETY

    def _with_excess(self, delta: float) -> float:
        return min(1.0, delta + self.differing.excess_probability)


def measured(difference: RunDifference, measure: Measure) -> WholeClaim:
    """Return the claim of a measure whose bound is what the runs cost.

    Guarantee: the claim holds for all runs together, with the noise that is drawn.
    """
    if not difference.differing.largest:
        raise nothing_differs()
    if measure.kind is OverBatches:
        return measure.claim(difference.divergence(measure.order, 1.0))
    bound = measure.cost(attrs.evolve(difference, near_delta=measure.delta), 1.0)
    if not math.isfinite(bound) or (measure.kind is Guess and bound >= 1):
        raise CalibrationError(
            f"no useful bound on {measure} can be stated: the noise, the tail of the differing "
            "records or the distance of the noise leave none. Use more noise or a larger delta"
        )
    return measure.claim(bound)


def _variation(squared_distance: Floats) -> Floats:
    """Bound the total variation of two normals at a squared distance."""
    return np.asarray(np.minimum(1.0, erf(np.sqrt(squared_distance / 8)) * SAFETY))


def _grouped(multipliers: Floats, n_shares: int) -> list[tuple[float, int]]:
    """List the noise of all steps and how often it occurs, rounded down if it has many values."""
    values, repeats = np.unique(multipliers, return_counts=True)
    most = max(_LEAST_LOSSES, _MOST_LOSSES // n_shares)
    if len(values) > most:
        ends = np.geomspace(values[0], values[-1], most + 1)[:-1]
        starts = np.unique(np.searchsorted(values, ends))
        values, repeats = values[starts], np.add.reduceat(repeats, starts)
    return list(zip(values.tolist(), repeats.tolist(), strict=True))
