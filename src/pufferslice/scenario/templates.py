# SPDX-License-Identifier: Apache-2.0
"""Numbers behind common scenarios: close pairs, moments, Markov chains."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above, check_between, check_count, is_a
from pufferslice._core.text import given
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.scenario.distributions import (
    FiniteDistribution,
)

PriorForm = Literal["rows", "draws"]
PRIOR_FORMS: Final = get_args(PriorForm)
NO_NORMAL_LAW: Final = (
    "prior='gaussian' is refused: a normal distribution that is fitted to rows is not their "
    "distribution, and noise that rests on it can reveal the secret (57.9 % were stated and 84.5 % "
    "true). Leave prior out: sums of rows need no distribution. Use prior='draws' for a query that "
    "is not a sum"
)
"""Reason why no certificate rests on a normal approximation."""

LEAST_SHARE: Final = 2.0**-24
"""Least probability of a chain that can be held to within a percent of itself."""
_MOST_COUNTS: Final = 2**21
"""Cells of the dynamic program of a Markov chain; beyond, it is drawn."""


def ordered_pairs(
    values: Mapping[str, float],
    *,
    difference: float | None = None,
    ratio: float | None = None,
    nearest: int | None = None,
) -> list[tuple[str, str]]:
    """Pairs of secrets that are numbers and close: by difference, by ratio, or the k nearest.

    >>> ordered_pairs({"10": 10, "11": 11, "20": 20}, ratio=1.5)
    [('10', '11')]
    """
    rules = [rule for rule in (difference, ratio, nearest) if rule is not None]
    if len(rules) != 1:
        raise ArgumentError("give exactly one of difference, ratio and nearest")
    names = sorted(values, key=lambda name: values[name])
    numbers = np.array([float(values[name]) for name in names])
    if len(names) < 2 or not np.isfinite(numbers).all():
        raise ArgumentError("ordered secrets must be at least two finite numbers")
    (limit,), low, room = rules, numbers[:, None], 1 + 1e-12
    if nearest is not None:
        check_count(1, nearest=nearest)
        places = np.arange(len(names))
        close = places - places[:, None] <= nearest
    elif ratio is not None:
        check_above(1, ratio=limit)
        if not numbers.min() > 0:
            raise ArgumentError("a ratio needs secrets above 0")
        close = numbers <= low * limit * room
    else:
        check_above(0, difference=limit)
        close = numbers - low <= limit * room
    pairs = np.argwhere(np.triu(close, 1)).tolist()
    if not pairs:
        raise ArgumentError("no two secrets are that close; nothing would be protected")
    return [(names[i], names[j]) for i, j in pairs]


def gaussian_process(
    kernel: Callable[[float, float], float], times: Sequence[float], *, mean: float = 0.0
) -> tuple[Floats, Floats]:
    """Mean and covariance of a Gaussian process at some times, for `Scenario.from_attribute`.

    The first time is that of the hidden attribute, the others are those of the statistics.

    >>> mean, cov = gaussian_process(lambda s, t: math.exp(-abs(s - t)), [20.0, 8.0, 21.0])
    >>> [round(float(x), 4) for x in cov[0]]
    [1.0, 0.0, 0.3679]
    """
    cov = np.array([[float(kernel(s, t)) for t in times] for s in times])
    return np.full(len(cov), float(mean)), (cov + cov.T) / 2


def is_index(value: object, length: int) -> bool:
    """Whether a value is an integer from 0 to before the length."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and value in range(length)


def time_span(position: int | tuple[int, int], length: int) -> range:
    """Times of one position, or of all from a first to a last one."""
    ends: Sequence[int] = position if isinstance(position, tuple | list) else (position, position)
    if len(ends) != 2 or not all(is_index(end, length) for end in ends) or ends[0] > ends[1]:
        raise ArgumentError(
            f"positions must be integers from 0 to {length - 1}, or (first, last) of them; got "
            f"{given(position)}"
        )
    return range(int(ends[0]), int(ends[1]) + 1)


def window_span(window: tuple[int, int], length: int) -> range:
    """Times of a window, from the first to before the stop."""
    is_pair = is_a(window, tuple | list) and len(window) == 2
    indices = is_pair and all(is_index(end, length + 1) for end in window)
    if not indices or window[0] >= window[1]:
        raise ArgumentError(
            f"windows must be (first, stop) with first < stop, from 0 to {length}; got "
            f"{given(window)}"
        )
    return range(int(window[0]), int(window[1]))


def state_counts(
    chain: Floats,
    start: Floats,
    length: int,
    known: range,
    state: int,
    counted: Sequence[tuple[range, int]],
) -> Floats | None:
    """Probabilities of counts given that the chain has `state` at all the `known` times.

    Each count is that of a state in a window of time. By dynamic programming; one axis for each
    count, as long as its window and one more. None if the state is impossible there.
    """
    n_states = len(chain)
    sizes = [len(window) + 1 for window, _ in counted]
    if n_states * math.prod(sizes) > _MOST_COUNTS:
        raise ScenarioError(
            f"{len(counted)} counts over {length} steps need too many cells for an exact "
            "distribution; count fewer states in fewer windows, or give n_draws and a seed"
        )
    table = np.zeros((n_states, *sizes))
    table.reshape(n_states, -1)[:, 0] = start
    for step in range(length):
        if step:
            table = np.tensordot(chain.T, table, axes=(1, 0))
        if step in known:
            only = np.zeros_like(table)
            only[state] = table[state]
            table = only
        for axis, (window, s) in enumerate(counted):
            if step in window:
                table[s] = np.roll(table[s], 1, axis=axis)
    masses = table.sum(axis=0)
    total = float(masses.sum())
    if not total > 0:
        return None
    return np.asarray(masses / total)


def drawn_path(
    chain: Floats,
    start: Floats,
    length: int,
    known: range,
    state: int,
    n_draws: int,
    rng: np.random.Generator,
) -> npt.NDArray[np.intp] | None:
    """Draw paths of a chain that has `state` at all the `known` times, (n_draws, length).

    Forward from the last of them, and backward from the first by Bayes' rule. None if the state is
    impossible there.
    """
    shares = [start]
    for _ in range(known.start):
        shares.append(shares[-1] @ chain)
    if not shares[-1][state] > 0 or (len(known) > 1 and not chain[state, state] > 0):
        return None
    path = np.full((n_draws, length), state, dtype=np.intp)

    def step(states: npt.NDArray[np.intp], weights: Floats) -> npt.NDArray[np.intp]:
        """Draw the next state of each path by the row of weights of its state."""
        ends = np.cumsum(weights, axis=1)[states]
        drawn = rng.random((n_draws, 1)) * ends[:, -1:]
        # A state of weight 0 has an empty interval; the last one with weight ends them all.
        last = (ends < ends[:, -1:]).sum(axis=1)
        return np.asarray(np.minimum((ends <= drawn).sum(axis=1), last))

    for time in range(known.stop, length):
        path[:, time] = step(path[:, time - 1], chain)
    for time in range(known.start - 1, -1, -1):
        path[:, time] = step(path[:, time + 1], chain.T * shares[time])
    return path


def held_counts(masses: Floats) -> tuple[FiniteDistribution, float, float]:
    """Hold probabilities of counts to multiples of 2^-30, without those too rare for that.

    Also returns the largest relative error of a probability, and the probability that is left out.
    There are at most 2^21 counts, so that some are kept.
    """
    is_likely = masses >= LEAST_SHARE
    outputs, shares = np.argwhere(is_likely).astype(np.float64), masses[is_likely]
    left_out = math.fsum(masses[~is_likely].ravel())
    shares = shares / math.fsum(shares)
    held = FiniteDistribution.weighted(outputs, shares)
    return held, float(np.abs(held.counts / held.total / shares - 1).max()), left_out


def share_names(shares: Sequence[float]) -> dict[str, float]:
    """Name the worlds of at least two different shares."""
    if len(shares) < 2:
        raise ArgumentError(
            f"shares must be at least two numbers between 0 and 1, got {given(shares)}"
        )
    for share in shares:
        check_between(0, 1, shares=share)
    names = {f"{100 * share:.6g} %": float(share) for share in shares}
    if len(names) != len(shares):
        raise ArgumentError("shares must be different")
    return names


def stationary(chain: Floats) -> Floats:
    """The stationary distribution of a chain that has one."""
    n = len(chain)
    system = np.vstack([chain.T - np.eye(n), np.ones(n)])
    solution, _, rank, _ = np.linalg.lstsq(system, np.append(np.zeros(n), 1.0), rcond=None)
    if rank < n:
        raise ArgumentError(
            "the chain has several stationary distributions; give start as probabilities"
        )
    positive = np.maximum(solution, 0.0)
    return np.asarray(positive / math.fsum(positive))
