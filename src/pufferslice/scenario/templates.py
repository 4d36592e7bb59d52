# SPDX-License-Identifier: Apache-2.0
"""Scenarios that people have: a prevalence, an attribute, a state in time, a volume to hide."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, locked
from pufferslice._core.checks import check_above, check_between, check_count, check_one_of, is_a
from pufferslice._core.text import given, quoted
from pufferslice._core.threads import Progress, silent
from pufferslice.data.frames import Frame, check_columns, floats_of, frame_of
from pufferslice.data.readers import complete_frames, read_table
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.queries.conditions import conditions_of
from pufferslice.queries.query import RowMeans, RowMoments
from pufferslice.scenario.distributions import (
    FiniteDistribution,
    GaussianDistribution,
)
from pufferslice.scenario.priors import Source, check_level
from pufferslice.scenario.scenario import Pairs, Scenario

Design = Literal["stratified", "independent"]
DESIGNS: Final = ("stratified", "independent")
PriorForm = Literal["gaussian", "draws"]
PRIOR_FORMS: Final = ("gaussian", "draws")

_FEWEST_ROWS: Final = 2
_LEAST_SHARE: Final = 2.0**-24
"""Probabilities of a chain that can be held to within a percent of themselves."""
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
    chosen = [rule for rule in (difference, ratio, nearest) if rule is not None]
    if len(chosen) != 1:
        msg = "give exactly one of difference, ratio and nearest"
        raise ArgumentError(msg)
    names = sorted(values, key=lambda name: values[name])
    numbers = np.array([float(values[name]) for name in names])
    if len(names) < 2 or not np.isfinite(numbers).all():
        msg = "ordered secrets must be at least two finite numbers"
        raise ArgumentError(msg)
    room = 1 + 1e-12
    if nearest is not None:
        check_count(1, nearest=nearest)
        keep = [(i, j) for i in range(len(names)) for j in range(i + 1, i + 1 + nearest)]
        pairs = [(i, j) for i, j in keep if j < len(names)]
    elif ratio is not None:
        check_above(1, ratio=ratio)
        if not numbers.min() > 0:
            msg = "a ratio needs secrets above 0"
            raise ArgumentError(msg)
        pairs = _close(numbers, lambda low, high: high <= low * ratio * room)
    else:
        check_above(0, difference=difference)  # type: ignore[arg-type]
        pairs = _close(numbers, lambda low, high: high - low <= difference * room)  # type: ignore[operator]
    if not pairs:
        msg = "no two secrets are that close; nothing would be protected"
        raise ArgumentError(msg)
    return [(names[i], names[j]) for i, j in pairs]


def _close(numbers: Floats, is_close: Any) -> list[tuple[int, int]]:  # noqa: ANN401 - a predicate
    n = len(numbers)
    return [(i, j) for i in range(n) for j in range(i + 1, n) if is_close(numbers[i], numbers[j])]


def prevalence(
    table: object,
    *,
    column: str,
    value: Any,  # noqa: ANN401 - a value or a condition
    shares: Sequence[float],
    query: Query,
    n_rows: int | None = None,
    design: Design = "stratified",
    prior: PriorForm = "gaussian",
    n_draws: int = 500,
    seed: int | None = None,
    within: float | None = None,
    source: Source = "released_data",
    progress: Progress = silent,
) -> Scenario:
    """As `Scenario.from_prevalence`."""
    check_level(query, "table", "worlds")
    check_one_of(DESIGNS, design=design)
    check_one_of(PRIOR_FORMS, prior=prior)
    if (seed is None) != (prior == "gaussian"):
        msg = "seed goes with prior='draws', which needs one; a Gaussian prior draws nothing"
        raise ArgumentError(msg)
    ((_, condition),) = conditions_of("value", {column: value})
    needed = list(dict.fromkeys((column, *query.columns)))
    n_dropped = n_with = n_without = 0
    first, second = RowMoments(), RowMoments()
    parts = complete_frames(
        _read_if_needed(table, query, whole=prior == "draws"),
        needed,
        query.missing,
        silent if prior == "draws" else progress,
    )
    for part, n_missing in parts:
        n_dropped += n_missing
        if not len(part):
            continue
        frame, has = part, condition.flags(part, column)
        n_with += int(np.count_nonzero(has))
        n_without += int(np.count_nonzero(~has))
        if prior == "gaussian":
            means = _row_means(query, part)
            first.add(means.terms[has])
            second.add(means.terms[~has])
    if min(n_with, n_without) < _FEWEST_ROWS:
        msg = (
            f"a prevalence needs at least {_FEWEST_ROWS} rows with the property and "
            f"{_FEWEST_ROWS} without; choose another value"
        )
        raise ScenarioError(msg)
    n = n_with + n_without if n_rows is None else n_rows
    check_count(_FEWEST_ROWS, n_rows=n)
    names = _share_names(shares)
    sizes = {name: round(share * n) for name, share in names.items()}
    if len(set(sizes.values())) != len(sizes):
        msg = f"two shares give the same number of rows among {n}; take shares further apart"
        raise ArgumentError(msg)
    property_name = condition.on(column)
    worlds: dict[str, Any]
    if prior == "gaussian":
        (mean_1, cov_1), (mean_0, cov_0) = (
            (moments.mean, moments.covariance) for moments in (first, second)
        )
        worlds = {}
        for name, size in sizes.items():
            share = size / n
            cov = share * cov_1 + (1 - share) * cov_0
            if design == "independent":
                cov = cov + share * (1 - share) * np.outer(mean_1 - mean_0, mean_1 - mean_0)
            mean, cov = means.moments(share * mean_1 + (1 - share) * mean_0, cov, n)
            worlds[name] = GaussianDistribution(mean=mean, cov=cov)
        origin = (
            f"mean and covariance of rows with and without {property_name}, drawn with replacement "
            f"({design}) to {n} rows; {_approximation(query)}"
        )
    else:
        check_count(2, n_draws=n_draws)
        check_count(0, seed=seed or 0)
        evaluate = query.bound(frame)
        groups = np.flatnonzero(has), np.flatnonzero(~has)
        worlds = {}
        for number, (name, size) in enumerate(sizes.items(), start=1):
            rng = np.random.default_rng([seed or 0, number])
            outputs = np.empty((n_draws, query.dim))
            for draw in range(n_draws):
                k = size if design == "stratified" else int(rng.binomial(n, size / n))
                rows = [rng.choice(g, m) for g, m in zip(groups, (k, n - k), strict=True) if m]
                outputs[draw] = evaluate(np.concatenate(rows))
                progress((number - 1) * n_draws + draw + 1, len(sizes) * n_draws)
            worlds[name] = FiniteDistribution.uniform(outputs)
        origin = (
            f"{n_draws} tables of {n} rows, drawn with replacement ({design}) from the rows with "
            f"and without {property_name}, public seed {seed}; the drawn sample is declared to be "
            "the prior"
        )
    pairs: Pairs = "all" if within is None else ordered_pairs(names, difference=within)
    scenario = Scenario.from_worlds(
        worlds, query=query, pairs=pairs, source=source, name=f"share of {property_name}"
    )
    return _told(scenario, origin, n_dropped, dict.fromkeys(worlds, n))


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


def attribute(
    *,
    query: Query,
    values: Sequence[float],
    mean: npt.ArrayLike | None = None,
    cov: npt.ArrayLike | None = None,
    history: object = None,
    name: str = "attribute",
    within: float | None = None,
    source: Source | None = None,
) -> Scenario:
    """As `Scenario.from_attribute`."""
    if (mean is None) != (cov is None) or (mean is None) == (history is None):
        msg = "give mean and cov together, or a history to take them from"
        raise ArgumentError(msg)
    if history is None:
        joint = GaussianDistribution(mean=locked(mean), cov=locked(cov))
        origin = f"statistics and {quoted(name)} jointly Gaussian, given the value of the latter"
    else:
        frame = frame_of(history)
        labels = [
            label if label in frame.columns else coordinate.column or label
            for label, coordinate in zip(query.names, query.coordinates, strict=True)
        ]
        check_columns(frame, [name, *labels])
        joint = GaussianDistribution.from_draws(
            np.column_stack([floats_of(frame, column) for column in (name, *labels)])
        )
        origin = f"mean and covariance of {len(frame)} earlier cases; normal approximation"
    if joint.dim != query.dim + 1:
        msg = (
            f"mean and cov (or the times of a process) must have {query.dim + 1} coordinates, the "
            f"attribute first and then those of the query; got {joint.dim}"
        )
        raise ArgumentError(msg)
    numbers = {_number_name(value): float(value) for value in values}
    if len(numbers) < 2 or len(numbers) != len(values):
        msg = "values must be at least two different numbers"
        raise ArgumentError(msg)
    worlds: dict[str, Any] = {
        label: joint.conditioned(on=[0], at=[value]) for label, value in numbers.items()
    }
    pairs: Pairs = "all" if within is None else ordered_pairs(numbers, difference=within)
    scenario = Scenario.from_worlds(
        worlds,
        query=query,
        pairs=pairs,
        source=source or ("public_model" if history is None else "held_out"),
        name=name,
    )
    return _told(scenario, origin)


def markov_chain(
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
    source: Source = "public_model",
    progress: Progress = silent,
) -> Scenario:
    """As `Scenario.from_markov_chain`."""
    chains = transition if isinstance(transition, Mapping) else {"chain": transition}
    check_count(2, length=length)
    if (n_draws is None) != (seed is None):
        msg = "n_draws and seed go together: draws of the chain need a public seed"
        raise ArgumentError(msg)
    if n_draws is not None and seed is not None:
        check_count(2, n_draws=n_draws)
        check_count(0, seed=seed)
    times = [_time(position, length) for position in positions]
    spans = [_window(window, length) for window in ([(0, length)] if windows is None else windows)]
    scenario = None
    for name, matrix in chains.items():
        chain = locked(matrix)
        n_states = len(chain)
        square = chain.ndim == 2 and chain.shape == (n_states, n_states) and n_states >= 2
        if not square or not (chain.min() >= 0 and np.allclose(chain.sum(axis=1), 1, atol=1e-12)):
            msg = "transition must be a square matrix of probabilities whose rows sum to 1"
            raise ArgumentError(msg)
        first = stationary(chain) if isinstance(start, str) else locked(start)
        if first.shape != (n_states,) or not (first.min() >= 0 and abs(first.sum() - 1) < 1e-9):
            msg = f"start must be 'stationary' or {n_states} probabilities that sum to 1"
            raise ArgumentError(msg)
        states = list(range(1, n_states)) if counted is None else list(counted)
        if not all(_is_index(s, n_states) for s in states) or len(set(states)) != len(states):
            msg = f"counted must be different states from 0 to {n_states - 1}"
            raise ArgumentError(msg)
        coordinates = [(span, state) for span in spans for state in states]
        if query.dim != len(coordinates):
            msg = (
                f"the query must have one coordinate for each counted state of each window "
                f"({len(coordinates)}), got {query.dim}; the last state follows from the others"
            )
            raise ArgumentError(msg)
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
                    worlds[label] = FiniteDistribution.uniform(np.stack(rows, axis=1))
                else:
                    masses = state_counts(chain, first, length, known, state, coordinates)
                    if masses is None:
                        continue
                    worlds[label], error, rare = _held(masses)
                    errors.append(error)
                    left_out = max(left_out, rare)
                labels.append(label)
            pairs += [(a, b) for i, a in enumerate(labels) for b in labels[i + 1 :]]
            progress(number + 1, len(times))
        part = Scenario.from_worlds(
            worlds, query=query, pairs=pairs, source=source, name="state at a time"
        )
        origin = (
            f"counts of {length} states of a Markov chain with {n_states} states; the prior has "
            "their probabilities held to multiples of 2^-30, each within "
            f"{max(errors):.2g} of itself"
        )
        if left_out:
            origin += (
                f"; counts rarer than {_LEAST_SHARE:.1g} are left out, under each secret of "
                f"probability {left_out:.2g} together at most, which the chain itself adds to a "
                "delta and to right guesses"
            )
        if n_draws is not None:
            origin = (
                f"counts of {length} states of a Markov chain with {n_states} states, {n_draws} "
                f"draws per secret, public seed {seed}; the drawn sample is declared to be the "
                "prior"
            )
        part = _told(part, origin)
        prior = attrs.evolve(part.priors[0], name=str(name))
        part = attrs.evolve(part, priors=(prior,))
        scenario = part if scenario is None else scenario.with_prior(part)
    if scenario is None:
        msg = "transition must hold at least one chain"
        raise ArgumentError(msg)
    return scenario


def _is_index(value: object, length: int) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and value in range(length)


def _time(position: int | tuple[int, int], length: int) -> range:
    """One position, or all from a first to a last one."""
    ends: Sequence[int] = position if isinstance(position, tuple | list) else (position, position)
    if len(ends) != 2 or not all(_is_index(end, length) for end in ends) or ends[0] > ends[1]:
        msg = (
            f"positions must be integers from 0 to {length - 1}, or (first, last) of them; got "
            f"{given(position)}"
        )
        raise ArgumentError(msg)
    return range(int(ends[0]), int(ends[1]) + 1)


def _window(window: tuple[int, int], length: int) -> range:
    is_pair = is_a(window, tuple | list) and len(window) == 2
    indices = is_pair and all(_is_index(end, length + 1) for end in window)
    if not indices or window[0] >= window[1]:
        msg = (
            f"windows must be (first, stop) with first < stop, from 0 to {length}; got "
            f"{given(window)}"
        )
        raise ArgumentError(msg)
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
        msg = (
            f"{len(counted)} counts over {length} steps need too many cells for an exact "
            "distribution; count fewer states in fewer windows, or give n_draws and a seed"
        )
        raise ScenarioError(msg)
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
    """Paths of the chain given that it has `state` at all the `known` times, (n_draws, length).

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
        """From each state to one drawn by its row of weights."""
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


def _held(masses: Floats) -> tuple[FiniteDistribution, float, float]:
    """Counts with probabilities held to multiples of 2^-30, without those too rare for that.

    Also returns the largest relative error of a probability, and the probability that is left out.
    There are at most 2^21 counts, so that some are kept.
    """
    kept = masses >= _LEAST_SHARE
    outputs, shares = np.argwhere(kept).astype(np.float64), masses[kept]
    left_out = math.fsum(masses[~kept].ravel())
    shares = shares / math.fsum(shares)
    held = FiniteDistribution.weighted(outputs, shares)
    return held, float(np.abs(held.counts / held.total / shares - 1).max()), left_out


def volume(
    table: object,
    *,
    sizes: Sequence[int],
    query: Query,
    ratio: float | None = None,
    source: Source = "released_data",
    progress: Progress = silent,
) -> Scenario:
    """As `Scenario.from_volume`."""
    check_level(query, "table", "worlds")
    n_dropped, rows = 0, RowMoments()
    parts = complete_frames(_read_if_needed(table, query), query.columns, query.missing, progress)
    for part, n_missing in parts:
        n_dropped += n_missing
        if len(part):
            means = _row_means(query, part)
            rows.add(means.terms)
    if rows.n_rows < _FEWEST_ROWS:
        msg = f"a volume needs at least {_FEWEST_ROWS} complete rows"
        raise ScenarioError(msg)
    if len(set(sizes)) != len(sizes) or len(sizes) < 2:
        msg = "sizes must be at least two different numbers of rows"
        raise ArgumentError(msg)
    worlds: dict[str, Any] = {}
    names: dict[str, float] = {}
    for size in sizes:
        check_count(_FEWEST_ROWS, size=size)
        label = f"{size:,} rows"
        names[label] = float(size)
        mean, cov = means.moments(rows.mean, rows.covariance, size)
        worlds[label] = GaussianDistribution(mean=mean, cov=cov)
    scenario = Scenario.from_worlds(
        worlds,
        query=query,
        pairs="all" if ratio is None else ordered_pairs(names, ratio=ratio),
        source=source,
        name="number of rows",
    )
    origin = f"mean and covariance of the rows, drawn with replacement; {_approximation(query)}"
    return _told(scenario, origin, n_dropped, {name: int(n) for name, n in names.items()})


def _row_means(query: Query, frame: Frame) -> RowMeans:
    """The query as a function of means over rows, whose moments have a formula."""
    if query.row_means is None:
        msg = (
            "a Gaussian prior by formula is for means, rates, counts, totals, standard deviations, "
            "covariances and linear regressions; this query has something else, such as a "
            "quantile. Use prior='draws' with a seed"
        )
        raise ScenarioError(msg)
    check_columns(frame, query.columns)
    return query.row_means(frame)


def _read_if_needed(table: object, query: Query, *, whole: bool = False) -> object:
    """Files are read as a whole where parts of their rows cannot be added up."""
    if isinstance(table, str | os.PathLike) and (whole or not query.is_linear):
        return read_table(table)
    return table


def _approximation(query: Query) -> str:
    return "normal approximation" + ("" if query.is_linear else " by the delta method")


def _share_names(shares: Sequence[float]) -> dict[str, float]:
    if len(shares) < 2:
        msg = f"shares must be at least two numbers between 0 and 1, got {given(shares)}"
        raise ArgumentError(msg)
    for share in shares:
        check_between(0, 1, share=share)
    names = {f"{100 * share:.6g} %": float(share) for share in shares}
    if len(names) != len(shares):
        msg = "shares must be different"
        raise ArgumentError(msg)
    return names


def _number_name(value: float) -> str:
    return f"{value:.12g}"


def stationary(chain: Floats) -> Floats:
    """The stationary distribution of a chain that has one."""
    n = len(chain)
    system = np.vstack([chain.T - np.eye(n), np.ones(n)])
    solution, _, rank, _ = np.linalg.lstsq(system, np.append(np.zeros(n), 1.0), rcond=None)
    if rank < n:
        msg = "the chain has several stationary distributions; give start as probabilities"
        raise ArgumentError(msg)
    positive = np.maximum(solution, 0.0)
    return np.asarray(positive / math.fsum(positive))


def _told(
    scenario: Scenario, origin: str, n_dropped: int = 0, n_rows: Mapping[str, int] | None = None
) -> Scenario:
    """The scenario with this sentence about its prior, and the rows that a release must have."""
    priors = tuple(
        attrs.evolve(prior, origin=origin, n_rows=n_rows or {}) for prior in scenario.priors
    )
    return attrs.evolve(scenario, priors=priors, n_dropped=scenario.n_dropped + n_dropped)
