# SPDX-License-Identifier: Apache-2.0
"""The exact distribution of counts of the states of a Markov chain, given some of them."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, locked
from pufferslice._core.checks import check_count, check_fits, is_a
from pufferslice._core.text import given
from pufferslice._core.threads import Progress, silent
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.scenario.chains import stationary
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.priors import DECLARED, Source

if TYPE_CHECKING:
    from pufferslice.scenario.scenario import Scenario

LEAST_SHARE: Final = 2.0**-24
"""Least probability of a chain that can be held to within a percent of itself."""
_MOST_COUNTS: Final = 2**21
"""Cells of the dynamic program of a Markov chain; beyond, it is drawn."""


def counts_of_states(
    cls: type["Scenario"],
    transition: npt.ArrayLike | Mapping[str, npt.ArrayLike],
    *,
    length: int,
    positions: Sequence[int | tuple[int, int]],
    query: Query,
    start: npt.ArrayLike | Literal["stationary"] = "stationary",
    counted: Sequence[int] | None = None,
    windows: Sequence[tuple[int, int]] | None = None,
    n_draws: int | None = None,
    seed: int | None = None,
    whose: str = "the home",
    source: Source = "public_model",
    progress: Progress = silent,
) -> "Scenario":
    """Hide the state at some times, where counts of states alone are released; see from_occupancy.

    The query has a coordinate for each of the `counted` states (by default all but the first, which
    follows), in each of the `windows` (by default all times).
    """
    chains = transition if isinstance(transition, Mapping) else {"chain": transition}
    is_share = _is_share_of_states(query)
    check_count(2, length=length)
    check_fits(1, length=length)
    if query.missing != "refuse":
        raise ArgumentError(
            f"query must refuse missing values, got {given(query.missing)}: a chain has a "
            'state at every time. Use query.with_missing("refuse"), in a file missing = '
            '"refuse", and fill gaps before the release'
        )
    if (n_draws is None) != (seed is None):
        raise ArgumentError("n_draws and seed go together: draws of the chain need a public seed")
    if n_draws is not None and seed is not None:
        check_count(2, n_draws=n_draws)
        check_count(0, seed=seed)
        check_fits(length, n_draws=n_draws)
    times = [time_span(position, length) for position in positions]
    windows = [(0, length)] if windows is None else windows
    spans = [window_span(window, length) for window in windows]
    scenario = None
    for name, matrix in chains.items():
        chain = locked(matrix)
        n_states = len(chain)
        square = chain.ndim == 2 and chain.shape == (n_states, n_states) and n_states >= 2
        shares = square and chain.min() >= 0
        if not shares or np.abs(chain.sum(axis=1) - 1).max() > 1e-9:
            raise ArgumentError(
                "transition must be a square matrix of probabilities whose rows sum to 1"
            )
        first = stationary(chain) if isinstance(start, str) else locked(start)
        if first.shape != (n_states,) or not (first.min() >= 0 and abs(first.sum() - 1) < 1e-9):
            raise ArgumentError(
                f"start must be 'stationary' or {n_states} probabilities that sum to 1"
            )
        states = list(range(1, n_states)) if counted is None else list(counted)
        if not all(is_index(s, n_states) for s in states) or len(set(states)) != len(states):
            raise ArgumentError(f"counted must be different states from 0 to {n_states - 1}")
        coordinates = [(span, state) for span in spans for state in states]
        if query.dim != len(coordinates):
            raise ArgumentError(
                f"the query must have one coordinate for each counted state of each window "
                f"({len(coordinates)}), got {query.dim}; the last state follows from the others"
            )
        worlds: dict[str, Any] = {}
        pairs: list[tuple[str, str]] = []
        errors, left_out = [0.0], 0.0
        for number, known in enumerate(times):
            labels = []
            for state in range(n_states):
                label = f"state {state} at {known.start}"
                if len(known) > 1:
                    label = f"state {state} from {known.start} to {known.stop - 1}"
                if n_draws is not None:
                    rng = np.random.default_rng([seed or 0, number, state])
                    path = drawn_path(chain, first, length, known, state, n_draws, rng)
                    if path is None:
                        continue
                    rows = [
                        (path[:, span.start : span.stop] == k).sum(1) for span, k in coordinates
                    ]
                    held = FiniteDistribution.uniform(np.stack(rows, axis=1))
                else:
                    masses = state_counts(chain, first, length, known, state, coordinates)
                    if masses is None:
                        continue
                    held, error, rare = held_counts(masses)
                    errors.append(error)
                    left_out = max(left_out, rare)
                if is_share:
                    held = attrs.evolve(held, outputs=held.outputs / length)
                worlds[label] = held
                labels.append(label)
            pairs += combinations(labels, 2)
            progress(number + 1, len(times))
        origin = f"counts of {length} states of a Markov chain with {n_states} states"
        if n_draws is not None:
            origin += f", {n_draws} draws per secret, public seed {seed}; {DECLARED}"
        else:
            origin += (
                "; the prior has their probabilities held to multiples of 2^-30, each within "
                f"{max(errors):.2g} of itself"
            )
        if left_out:
            origin += (
                f"; counts rarer than {LEAST_SHARE:.1g} are left out, under each secret of "
                f"probability {left_out:.2g} together at most, which the chain itself adds to "
                "a delta and to right guesses"
            )
        part = cls.from_worlds(
            worlds, query=query, pairs=pairs, source=source, name=f"state of {whose}"
        )
        n_rows = dict.fromkeys(worlds, length)
        part = part.with_origin(origin, n_rows=n_rows, name=str(name))
        scenario = part if scenario is None else scenario.with_prior(part)
    if scenario is None:
        raise ArgumentError("transition must hold at least one chain")
    return scenario


def _is_share_of_states(query: Query) -> bool:
    """Whether a query is of shares of states; refused if it is not of counts either."""
    kinds = {coordinate.statistic for coordinate in query.coordinates}
    stated = query.parameters
    cells = [[entry] for kind in ("count", "rate") for entry in stated.get(kind) or []]
    cells = cells or stated.get("by") or []
    labels = [{entry["column"] for entry in cell if "equals" in entry} for cell in cells]
    states = set.intersection(*labels) if labels else set()
    if kinds not in ({"count"}, {"rate"}) or not states:
        raise ScenarioError(
            "the query of a Markov chain must be a count or a rate of states: values of one "
            "column, as summary(count={'state': 1}). Nothing is known about other numbers of a "
            "time, as loads, and noise for counts does not hide the state in them"
        )
    return kinds == {"rate"}


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
