# SPDX-License-Identifier: Apache-2.0
"""The Markov Quilt mechanism and group privacy beside ours, for the count of a state in time.

Source: Song, Wang and Chaudhuri, Pufferfish Privacy Mechanisms for Correlated Data, SIGMOD 2017.
"""

import math
from collections.abc import Callable
from typing import Final, final

import attrs
import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from pufferslice._core.arrays import Floats, locked
from pufferslice._core.checks import check_between, check_count
from pufferslice._core.search import smallest_safe
from pufferslice.errors import ArgumentError
from pufferslice.scenario.chains import stationary
from pufferslice.scenario.markov import state_counts
from pufferslice.sensitivity.renyi import gaussian_delta

_EPSILONS: Final = (1e-6, 100.0)
"""Ends of the range of epsilon: beyond them nobody compares noise, and numbers overflow."""
_NEXT_TO_NONE: Final = 1e-9
"""Noise that hides nothing, because counts differ by 1 or more."""


@final
@attrs.frozen(kw_only=True)
class MarkovNoise:
    """Noise on the count of state 1, as a standard deviation, by mechanism and what it promises."""

    quilt: float
    """Markov Quilt: pure epsilon for the state at every time, under this chain."""
    group: float
    """Laplace for groups of all times: pure epsilon between any two sequences of states."""
    pair: float
    """Ours: (epsilon, delta) for the state at every time, under this chain."""
    guess: float
    """Ours: the state at every time is guessed right no more often than pure epsilon allows, at
    most e^epsilon / (1 + e^epsilon) of the time, between two states that are equally likely."""


def markov_noise(
    transition: npt.ArrayLike, *, length: int, epsilon: float, delta: float
) -> MarkovNoise:
    """Noise of each mechanism on the count of state 1 over `length` steps of a stationary chain.

    Every position is protected. For comparison only: `Scenario.from_occupancy` certifies.

    >>> noise = markov_noise([[0.5, 0.5], [0.5, 0.5]], length=4, epsilon=1.0, delta=1e-5)
    >>> round(noise.quilt, 3), round(noise.group, 3)
    (1.414, 5.657)
    """
    chain = locked(transition)
    square = chain.ndim == 2 and len(chain) == chain.shape[1] and len(chain) >= 2
    if not square or not (chain.min() > 0 and np.allclose(chain.sum(axis=1), 1, atol=1e-12)):
        raise ArgumentError(
            "transition must be a square matrix of positive probabilities whose rows sum to 1"
        )
    check_count(1, length=length)
    check_between(*_EPSILONS, epsilon=epsilon)
    check_between(0, 1, delta=delta)
    couplings = [
        coupling
        for position in range(length)
        for coupling in _couplings(chain, length=length, position=position)
    ]
    right = 1 / (1 + math.exp(-epsilon))

    def worst_delta(std: float) -> float:
        return max(float(m @ gaussian_delta(gaps / std, epsilon)) for gaps, m in couplings)

    def worst_guess(std: float) -> float:
        return max(float(m @ ndtr(gaps / (2 * std))) for gaps, m in couplings)

    def least(cost: Callable[[float], float], limit: float) -> float:
        is_met_without = cost(_NEXT_TO_NONE) <= limit
        return 0.0 if is_met_without else smallest_safe(cost, limit, start=float(length))

    return MarkovNoise(
        quilt=math.sqrt(2) * _quilt_scale(chain, length=length, epsilon=epsilon),
        group=math.sqrt(2) * length / epsilon,
        pair=least(worst_delta, delta),
        guess=least(worst_guess, right),
    )


def _quilt_scale(chain: Floats, *, length: int, epsilon: float) -> float:
    r"""Scale of the Laplace noise of the Markov Quilt mechanism on the count of a state.

    $$\max_i \min_Q \frac{|N|}{\epsilon - e(Q \mid X_i)}$$

    over the positions i of a stationary chain and its quilts Q: the positions a before and b after
    i, one of them, or none; N are the positions that Q separates from the rest with i, and e is the
    largest log ratio of the probabilities of Q between two states of X_i.

    Guarantee: pure epsilon-Pufferfish privacy for the state at every position, for this chain.
    """
    start = stationary(chain)
    # Back in time by Bayes' rule.
    forward = _influences(chain, length)
    backward = _influences((chain * start[:, None]).T / start[:, None], length)
    worst = 0.0
    for i in range(length):
        before, after = backward[1 : i + 1], forward[1 : length - i]
        scores = [length / epsilon]
        steps_before, steps_after = np.arange(1, i + 1), np.arange(1, length - i)
        both = (before[:, None] + after[None]).max(axis=(2, 3), initial=0.0)
        near = steps_before[:, None] + steps_after[None] - 1
        scores.append(_least_score(near, both, epsilon))
        left = before.max(axis=(1, 2), initial=0.0)
        scores.append(_least_score(length - 1 - i + steps_before, left, epsilon))
        right = after.max(axis=(1, 2), initial=0.0)
        scores.append(_least_score(i + steps_after, right, epsilon))
        worst = max(worst, min(scores))
    return worst


def _couplings(chain: Floats, *, length: int, position: int) -> list[tuple[Floats, Floats]]:
    """Distances and masses of the monotone coupling of the counts given two states."""
    counts = [(range(length), 1)]
    known = range(position, position + 1)
    masses = [
        state_counts(chain, stationary(chain), length, known, state, counts)
        for state in range(len(chain))
    ]
    ends = [np.cumsum(part) for part in masses if part is not None]
    couplings = []
    for i, first in enumerate(ends):
        for second in ends[i + 1 :]:
            levels = np.unique(np.concatenate([first, second]))
            # The value of each side just below the end of each level; beyond 1 is rounding.
            sides = [np.minimum(np.searchsorted(side, levels), length) for side in (first, second)]
            gaps = np.abs(sides[0] - sides[1]).astype(np.float64)
            couplings.append((gaps, np.diff(levels, prepend=0.0)))
    return couplings


def _influences(chain: Floats, length: int) -> Floats:
    """Largest log ratio between two states, for every number of steps: (length, n, n)."""
    result = np.zeros((length, len(chain), len(chain)))
    power = np.eye(len(chain))
    for steps in range(1, length):
        power = power @ chain
        logs = np.log(power)
        result[steps] = (logs[:, None] - logs[None]).max(axis=2)
    return result


def _least_score(near: npt.NDArray[np.intp], influences: Floats, epsilon: float) -> float:
    usable = influences < epsilon
    return float((near[usable] / (epsilon - influences[usable])).min(initial=math.inf))
