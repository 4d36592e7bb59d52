# SPDX-License-Identifier: Apache-2.0
"""Template occupancy: hide the state at some times, where states or loads are published.

Counts of states alone have an exact distribution. For loads, or other numbers of a slot that depend
on the state, the worlds of a pair are coupled as in `pufferslice.scenario.chains`.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, Literal, final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pufferslice._core.arrays import Floats, Integers, locked
from pufferslice._core.checks import check_count, is_a
from pufferslice._core.text import given, listed, quoted
from pufferslice._core.threads import Progress, silent
from pufferslice.data.frames import frame_of, label_of
from pufferslice.data.handed import HandedSums
from pufferslice.data.tables import Rows, names_of, rows_of, with_constant
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query, equals
from pufferslice.queries.features import RowFeatures, feature_bits
from pufferslice.scenario.chains import MOST_SLOTS, Chain, DifferingSlots, differing_slots
from pufferslice.scenario.made import recorded
from pufferslice.scenario.markov import counts_of_states, drawn_path, time_span
from pufferslice.scenario.pairs import SecretPair
from pufferslice.scenario.priors import Prior, Source
from pufferslice.scenario.rows import (
    HIDDEN_ROWS,
    Boxes,
    RowDistribution,
    RowTable,
    Tests,
    check_kinds,
    checked_features,
    covariance_of,
)

if TYPE_CHECKING:
    from pufferslice.scenario.scenario import Scenario

Chains = npt.ArrayLike | Mapping[str, npt.ArrayLike]
Periods = Mapping[str, Sequence[Any]]
"""Value of a column in each slot, by the name of the column."""

MOST_PAIRS: Final = 2_000
"""Most pairs of states at protected times, each of which is a constraint on the noise."""
_SLOTS_AT_ONCE: Final = 2**22
_FEW_DRAWS: Final = 2_000
_ROUNDING: Final = 1e-9


@recorded
def from_occupancy(
    cls: type["Scenario"],
    chain: Chains,
    *,
    positions: Sequence[int | tuple[int, int]],
    query: Query,
    length: int | None = None,
    periods: Periods | None = None,
    loads: object = None,
    state: str = "state",
    states: Sequence[Any] | None = None,
    start: npt.ArrayLike | Literal["stationary"] = "stationary",
    counted: Sequence[int] | None = None,
    windows: Sequence[tuple[int, int]] | None = None,
    n_draws: int | None = None,
    seed: int | None = None,
    name: str = "the home",
    source: Source | None = None,
    progress: Progress = silent,
) -> "Scenario":
    """Hide in which state a home was at some times, where states or loads are published.

    `chain[i][j]` is the probability of state j after state i; a mapping gives several chains, each
    a prior. `positions`, from 0, are the times that matter: at each of them no two states are told
    apart; `(first, last)` is an interval, through all of which the chain has one state.

    *Counts of states alone*, without `loads`: the query is a `count` or a `rate` of the values of
    one column, with a coordinate for each of the `counted` states (by default all but the first)
    in each of the `windows`, as `(first, stop)`, of `length` times. Its distribution is exact: each
    probability is held to a multiple of 2^-30, and counts that are too rare for that are left out;
    the certificate says how much. Chains with too many counts need `n_draws` with a public `seed`.
    A release takes one row for each time.

    *Loads given the state*: `loads` is a table of slots with the column `state`, whose `states` are
    in the order of the chain (by default 0, 1, …), or maps each state to the mean and the
    covariance of what a slot adds to the sums of one period. The query has totals and counts, with
    public `clip` ranges, of all `length` slots, or of each group of one column: `periods={"week":
    […]}` gives its value in every slot, and `group_by({"week": […]}, total=["kwh"])` is a total for
    each week. The reader knows the chain and what a slot adds in each state, but no other state of
    this home. Rows of other homes may be in the release, whose number of rows is not checked.
    `name` says whose state it is.
    """
    if loads is None:
        if periods is not None or length is None:
            raise ArgumentError(
                "counts of states need length, the number of times, and no periods; for numbers "
                "that depend on the state give loads"
            )
        return counts_of_states(
            cls,
            chain,
            length=length,
            positions=positions,
            query=query,
            start=start,
            counted=counted,
            windows=windows,
            n_draws=n_draws,
            seed=seed,
            whose=name,
            source=source or "public_model",
            progress=progress,
        )
    exact = {"counted": counted, "windows": windows, "n_draws": n_draws, "seed": seed}
    unused = [word for word, value in exact.items() if value is not None]
    if unused:
        raise ArgumentError(f"{listed(unused)}: is for counts of states alone; leave it out")
    matrices = chain if isinstance(chain, Mapping) else {"chain": chain}
    chains = {str(key): Chain.of(matrix, start) for key, matrix in matrices.items()}
    sizes = {each.n_states for each in chains.values()}
    if len(sizes) != 1:
        raise ArgumentError("chain must map names to chains over the same states, at least one")
    slots = Slots.of(query.as_sums(), length, periods)
    labels = list(range(*sizes)) if states is None else list(states)
    kinds = _kinds(slots, loads, state, labels)
    if len(kinds) not in sizes:
        raise ArgumentError(f"states must name the {max(sizes)} states of the chain in its order")
    known = [time_span(position, len(slots.periods)) for position in positions]
    if not known or len(known) * math.comb(len(kinds), 2) * len(chains) > MOST_PAIRS:
        raise ArgumentError(
            f"positions must give 1 to {MOST_PAIRS:,} pairs of states in all chains; protect those "
            "times that matter most"
        )
    priors = []
    for prior, steps in chains.items():
        worlds: dict[str, SlotDistribution] = {}
        size, ignorance = _by_the_model(slots, steps, kinds)
        for number, times in enumerate(known):
            differing = DifferingStates.of(steps, times, slots.periods)
            for kind in kinds:
                worlds[_world(kind.place, times)] = SlotDistribution(
                    **{f.name: getattr(kind, f.name) for f in attrs.fields(RowDistribution)}
                    | {"differing": differing, "size": size, "ignorance": ignorance},
                    kinds=tuple(kinds),
                    chain=steps,
                    known=times,
                    periods=slots.periods,
                )
            progress(number + 1, len(known))
        priors.append(
            Prior(
                name=prior,
                source=source or "public_model",
                origin="means and covariances of what a slot adds in each state",
                probabilities=dict.fromkeys(worlds, 1 / len(worlds)),
                distributions=worlds,
            )
        )
    secret = {
        "state_of": name,
        "chains": {
            prior: {"transition": steps.transition.tolist(), "start": steps.start.tolist()}
            for prior, steps in chains.items()
        },
        "is_stationary": is_a(start, str),
        "positions": [[times.start, times.stop - 1] for times in known],
        "periods": slots.periods.tolist(),
    }
    return cls(
        distribution="worlds",
        secret=secret,
        secrets=tuple(priors[0].distributions),
        pairs=tuple(
            SecretPair(_world(a, times), _world(b, times))
            for times in known
            for a, b in combinations(range(len(kinds)), 2)
        ),
        priors=tuple(priors),
        query=slots.query,
    )


def _world(state: int, known: range) -> str:
    """Name of the world that has a state at the known times."""
    if len(known) == 1:
        return f"state {state} at {known.start}"
    return f"state {state} from {known.start} to {known.stop - 1}"


@final
@attrs.frozen(kw_only=True)
class DifferingStates:
    """Slots that differ between two states at the same known times."""

    between_states: Mapping[tuple[int, int], DifferingSlots]

    @property
    def trials(self) -> tuple[float, float]:
        """Return 0: slots that differ are of several kinds, and as many as the chain makes them."""
        return 0.0, 0.0

    @classmethod
    def of(cls, chain: Chain, known: range, periods: npt.ArrayLike) -> "DifferingStates":
        """Compute the moments for every pair of states."""
        pairs = combinations(range(chain.n_states), 2)
        return cls(
            between_states={pair: differing_slots(chain, known, pair, periods) for pair in pairs}
        )

    def between(self, first: int, second: int, n_kinds: int) -> tuple[Floats, Floats]:
        """Moments of the numbers of slots that turn from one state into another."""
        del n_kinds
        slots = self.between_states[first, second]
        return slots.means, slots.squares


def stated_changes(
    secret: Mapping[str, Any], priors: Sequence[str]
) -> Iterator[tuple[Floats, Floats]]:
    """Moments of the numbers of slots that change, of each instance, by a public description."""
    for prior in priors:
        declared = secret["chains"][prior]
        start = "stationary" if secret["is_stationary"] else declared["start"]
        chain = Chain.of(declared["transition"], start)
        for first, last in secret["positions"]:
            slots = DifferingStates.of(chain, range(first, last + 1), secret["periods"])
            for a, b in combinations(range(chain.n_states), 2):
                yield slots.between(a, b, chain.n_states)


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class SlotDistribution(RowDistribution):
    """Sums of what the slots of a chain add, by period, where it has a state at known times."""

    kinds: tuple[RowDistribution, ...]
    """What a slot adds in each state."""
    chain: Chain
    known: range
    periods: Integers
    """Period of each slot, from 0."""

    @property
    def mean(self) -> Floats:
        """Mean of the sums, shape (dim,)."""
        shares = self.chain.shares_given(self.place, self.known, len(self.periods))
        n_periods = int(self.periods.max()) + 1
        counts = np.zeros((n_periods, shares.shape[1]))
        np.add.at(counts, self.periods, shares)
        return np.asarray((counts @ np.array([kind.row_mean for kind in self.kinds])).ravel())

    @property
    def cov(self) -> Floats:
        """Covariance of some drawn sums, for attacks that take them for Gaussians."""
        drawn, _ = self.draw(_FEW_DRAWS, rng=np.random.default_rng(0))
        return covariance_of(drawn)

    def draw(self, n_draws: int, *, rng: np.random.Generator) -> tuple[Floats, Integers]:
        """Draw sums of real slots, with replacement, along paths of the chain."""
        n_slots, n_features = len(self.periods), len(self.row_mean)
        n_periods = int(self.periods.max()) + 1
        rows = [kind.rows_at_hand for kind in self.kinds]
        values = np.zeros((n_draws, n_periods, n_features))
        block = max(1, _SLOTS_AT_ONCE // (n_slots * n_features))
        for first in range(0, n_draws, block):
            size = min(block, n_draws - first)
            start, steps = self.chain.start, self.chain.transition
            path = drawn_path(steps, start, n_slots, self.known, self.place, size, rng)
            if path is None:
                raise ScenarioError("the protected state cannot occur at these times")
            for slot, period in enumerate(self.periods.tolist()):
                for kind, part in enumerate(rows):
                    chosen = np.flatnonzero(path[:, slot] == kind)
                    drawn = part[rng.integers(len(part), size=len(chosen))]
                    values[first + chosen, period] += drawn
        return values.reshape(n_draws, -1), np.arange(n_draws)

    def digest_parts(self) -> list[bytes]:
        """Bytes of the whole distribution, for a digest."""
        own = f"slots {self.place} {self.known} {self.periods.tolist()}".encode()
        arrays = [self.chain.transition, self.chain.start]
        parts = [part for kind in self.kinds for part in kind.digest_parts()]
        return [own, *(array.tobytes() for array in arrays), *parts]


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class Slots:
    """The sums of a query over the slots of each period."""

    query: Query
    """The query in its public scales."""
    features: RowFeatures
    """The sums of the first period."""
    column: str | None
    """Column whose groups are the periods; None for one period."""
    label: Any
    """Value of that column in the first period."""
    periods: Integers
    """Period of each slot, from 0."""
    scales: Floats
    """Public unit of each sum of one period."""

    @classmethod
    def of(cls, query: Query, length: int | None, periods: Periods | None) -> "Slots":
        """Read the periods of a query; refuse one whose sums are not the same for each period."""
        features = checked_features(query, has_public_rows=False)
        if periods is None:
            if length is None:
                raise ArgumentError("length must say how many slots there are, or periods")
            check_count(1, length=length)
            if length > MOST_SLOTS:
                raise ArgumentError(f"length must be at most {MOST_SLOTS:,}, got {length}")
            column, label, codes, n_periods = None, None, np.zeros(length, dtype=np.int64), 1
        else:
            column, values = _only_column(periods)
            if length not in {None, len(values)}:
                raise ArgumentError("length must be the number of slots of periods; leave it out")
            codes, n_periods = _period_of_slots(features, column, values)
            label = values[int(np.flatnonzero(codes == 0)[0])]
        n_features = len(features.parts) // n_periods
        first = RowFeatures(parts=features.parts[:n_features])
        units = np.maximum(first.spans, np.maximum(np.abs(first.low), np.abs(first.high)))
        scales = np.exp2(np.ceil(np.log2(units)))
        return cls(
            query=attrs.evolve(query, scales=np.tile(scales, n_periods)),
            features=first,
            column=column,
            label=label,
            periods=codes,
            scales=scales,
        )

    @property
    def n_periods(self) -> int:
        """Number of periods."""
        return int(self.periods.max()) + 1

    def read(self, rows: Rows, secret: Tests) -> RowTable:
        """Read what each slot of a table adds to the sums of its period."""
        if self.column is not None:
            rows = with_constant(rows, self.column, self.label)
        n_bits = feature_bits(HIDDEN_ROWS)
        return RowTable.read(
            rows,
            secret,
            query=self.query,
            features=self.features,
            n_rows=None,
            n_bits=n_bits,
            low=self.features.low / self.scales,
            steps=self.features.spans / self.scales * 2.0**-n_bits,
            boxes=self.boxes,
            is_checked=False,
        )

    @property
    def boxes(self) -> Boxes:
        """Public boxes of what a slot adds to the sums of its period."""
        low, high = self.features.boxes()
        return Boxes(low=low / self.scales, high=high / self.scales)


def _only_column(periods: Periods) -> tuple[str, Sequence[Any]]:
    if not is_a(periods, Mapping) or len(periods) != 1:
        raise ArgumentError(
            "periods must map one column to its value in each slot, as {'week': [1, 1, 2, 2]}"
        )
    ((column, values),) = periods.items()
    if is_a(values, str) or not is_a(values, Sequence | np.ndarray) or len(values) < 2:
        raise ArgumentError(f"periods must list a value of {quoted(column)} for each slot")
    return column, list(values)


def _period_of_slots(
    features: RowFeatures, column: str, values: Sequence[Any]
) -> tuple[Integers, int]:
    """Period of each slot, and the number of periods; each has the same sums, in one order."""
    groups: dict[Any, list[Any]] = {}
    for part in features.parts:
        tests = [test for name, test in part.cell if name == column]
        if len(tests) != 1:
            raise ScenarioError(
                f"periods names {quoted(column)}, so that each statistic must be of one group of "
                "it; use group_by({column: [...]}, total=[...], count=...)"
            )
        rest = tuple(pair for pair in part.cell if pair[0] != column)
        groups.setdefault(tests[0], []).append((part.factors, rest, part.fills))
    if len({str(group) for group in groups.values()}) != 1 or list(groups) != list(
        dict.fromkeys(dict(part.cell)[column] for part in features.parts)
    ):
        raise ScenarioError("every period must have the same statistics, one period after another")
    frame = frame_of(pa.table({column: values}))
    flags = np.array([test.flags(frame, column) for test in groups])
    if not (flags.sum(axis=0) == 1).all() or not flags.any(axis=1).all():
        raise ScenarioError(
            f"each slot must be in one group of {quoted(column)} of the query, and each group must "
            "have slots; give periods and groups that fit"
        )
    return np.asarray(flags.argmax(axis=0), dtype=np.int64), len(groups)


def _kinds(slots: Slots, loads: object, state: str, states: Sequence[Any]) -> list[RowDistribution]:
    """What a slot adds in each state: rows of a table, or moments that are given."""
    n_periods, features = slots.n_periods, slots.features
    shared: dict[str, Any] = {
        "boxes": slots.boxes,
        "size": np.zeros(n_periods * len(features.parts)),
        "ignorance": np.zeros(n_periods * len(features.parts)),
        "differing": DifferingStates(between_states={}),
    }
    made = []
    if isinstance(loads, Mapping) and all(is_a(pair, tuple | list) for pair in loads.values()):
        for place, label in enumerate(states):
            if not is_a(label, Hashable) or label not in loads:
                raise ArgumentError(f"loads must have a mean and a covariance for {given(label)}")
            mean, cov = (locked(each) for each in loads[label])
            _check_moments(mean, cov, features)
            mean, cov = mean / slots.scales, cov / np.outer(slots.scales, slots.scales)
            made.append(RowDistribution(place=place, row_mean=mean, row_cov=cov, **shared))
        return made
    held = rows_of(loads)
    cells = {name for part in slots.features.parts for name, _ in part.cell} - {slots.column}
    absent = sorted(cells - set(names_of(held)))
    if absent and not isinstance(held, HandedSums):
        raise ScenarioError(
            f"loads has no column {listed(absent, quoted)}, by which the query groups; if it tells "
            "the periods, give its value in each slot, as periods={'week': [1, 1, 2, 2]}"
        )
    tests = {f"{state} = {label_of(label)}": (state, equals(label)) for label in states}
    rows = slots.read(held, list(tests.values()))
    chosen = {name: rows.flags(*test) for name, test in tests.items()}
    check_kinds({name: rows.n_chosen(flags) for name, flags in chosen.items()})
    for place, flags in enumerate(chosen.values()):
        part = rows.summed(flags)
        made.append(
            RowDistribution(
                place=place,
                row_mean=part.mean,
                row_cov=part.covariance,
                rows=part.rows,
                sums=tuple(part.sums.tolist()),
                **shared,
            )
        )
    return made


def _by_the_model(
    slots: Slots, chain: Chain, kinds: Sequence[RowDistribution]
) -> tuple[Floats, Floats]:
    """Mean and variance of the sums for someone who knows the chain and the loads, and no data."""
    means = np.array([kind.row_mean for kind in kinds])
    variances = np.array([np.diagonal(kind.row_cov) for kind in kinds])
    sums = np.zeros((slots.n_periods, means.shape[1]))
    np.add.at(sums, slots.periods, chain.shares(len(slots.periods)) @ means)
    return sums.ravel(), chain.sum_variances(slots.periods, means, variances).ravel()


def _check_moments(mean: Floats, cov: Floats, features: RowFeatures) -> None:
    """Check that declared moments can be those of clipped numbers."""
    dim = len(features.parts)
    fits = mean.shape == (dim,) and cov.shape == (dim, dim) and np.allclose(cov, cov.T)
    if fits:
        values = np.linalg.eigvalsh(cov)
        spread = (mean - features.low) * (features.high - mean)  # the most a variance can be
        fits = bool(
            (features.low <= mean).all()
            and (mean <= features.high).all()
            and values[0] >= -_ROUNDING * abs(values[-1])
            and (np.diagonal(cov) <= spread * (1 + _ROUNDING)).all()
        )
    if not fits:
        raise ArgumentError(
            f"loads must map each state to the mean and the covariance of {dim} numbers of a slot, "
            "which can be those of numbers within the clip ranges"
        )
