# SPDX-License-Identifier: Apache-2.0
"""How finely gaps are kept: all tables in bounded memory, fine where the largest cost can be.

Gaps are only ever rounded up, so every resolution is sound; what it decides is noise.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from pufferslice.arrays import Floats, Integers
from pufferslice.gaps.tables import DistanceTables, MatchingTables

Tables = TypeVar("Tables", bound=DistanceTables)

FINEST_DIGITS: Final = 8
"""Binary digits kept when a gap is rounded up: a relative width of at most 1/256."""

MOST_ENTRIES: Final = 2**24
"""Of one set of tables, 16 bytes each; more only where two for each row are more."""

ENOUGH: Final = 512
"""Entries of a row above which more would change the noise variance by less than half a percent."""

_SMALL: Final = 2**21
_FIRST: Final = 16
_LEAST: Final = 2
_WAVES: Final = 4
_LOOSE: Final = 4.0
"""A row of k entries costs about this over k, as a share, more than a fine one: to rank them."""
_STEEPNESSES: Final = (0.25, 1.0, 4.0, 16.0, 64.0)
"""Exponents of the worst gap at which instances are ranked: from much noise to little."""


class LawPair(NamedTuple):
    """One instance: the positions of its two laws in a list of laws."""

    first: int
    second: int


def resolved(
    make: Callable[[Sequence[int], int], Sequence[Tables]],
    n_instances: int,
    n_slices: int,
    weights: Floats | None = None,
) -> Sequence[Tables]:
    """Tables of all instances with at most `MOST_ENTRIES` entries, or two for each row.

    `make(instances, most)` makes tables of some instances, in ascending order, with at most `most`
    entries a row; those of which costs are taken come first. Small tables are kept as fine as they
    are made. Else the rows of all instances are kept coarsely but of those that may have the
    largest cost for some notion and noise. Where the room does not give `ENOUGH` to every row,
    these are made again, with more entries the fewer there are of them.
    `weights` are those of the slices; without, they are equal.
    """
    n_rows = n_instances * n_slices
    most = MOST_ENTRIES // max(1, n_rows)
    kept = np.full(n_instances, max(_LEAST, min(_FIRST, most // 2)))
    fine = make(range(n_instances), most) if most >= ENOUGH else None
    if fine is None:
        found = make(range(n_instances), int(kept[0]))
    elif len(fine[0].gaps) <= _SMALL:
        return fine
    else:
        found = [tables.coarsened(_FIRST * n_rows) for tables in fine]
    for _ in range(_WAVES):
        undecided = _undecided(found[0], kept, weights)
        room = MOST_ENTRIES // n_slices - int(kept[~undecided].sum())
        share = min(ENOUGH, room // max(1, int(undecided.sum())))
        # Half of the room, so that there is more for fewer of them later, if that is enough now.
        halved = share < ENOUGH and share // 2 > kept[undecided].max(initial=0)
        each = share // 2 if halved else share
        chosen = np.flatnonzero(undecided & (kept < each))
        if not len(chosen):
            break
        finer = [t.only(chosen) for t in fine] if fine else make(chosen.tolist(), each)
        found = [_spliced(all_, chosen, own) for all_, own in zip(found, finer, strict=True)]
        kept[chosen] = each
    return found


def digits_for(most: int) -> int:
    """Binary digits to round to before a row is thinned to `most` entries: finer than that."""
    return min(FINEST_DIGITS, max(4, most.bit_length()))


def restricted(
    pairs: Sequence[LawPair], instances: Sequence[int]
) -> tuple[list[int], list[LawPair]]:
    """Positions of the laws that some instances need, and their pairs as positions in that list."""
    chosen = [pairs[i] for i in instances]
    used = sorted({law for pair in chosen for law in pair})
    places = {law: place for place, law in enumerate(used)}
    return used, [LawPair(places[a], places[b]) for a, b in chosen]


def _undecided(
    tables: DistanceTables, kept: Integers, weights: Floats | None
) -> npt.NDArray[np.bool_]:
    """Instances that finer rows might show to cost most, or not."""
    found = np.zeros(tables.n_instances, dtype=np.bool_)
    for costs in _rankings(tables, weights):
        surely = (costs / (1 + _LOOSE / kept)).max()
        found |= (costs >= surely) & (costs > 0)
    return found & (kept < ENOUGH)


def _rankings(tables: DistanceTables, weights: Floats | None) -> Iterator[Floats]:
    """What each instance costs, up to a factor, in several ways."""
    worst = float(tables.worst().max())
    shares = np.full(tables.n_slices, 1 / tables.n_slices) if weights is None else weights
    for steepness in _STEEPNESSES:
        if not worst > 0:
            return
        logs = tables.log_moments(steepness / worst / worst, 0.0)
        if isinstance(tables, MatchingTables):
            yield logs.min(axis=1)
        else:
            yield logs @ shares
            yield logsumexp(logs, b=shares, axis=1)


def _spliced(tables: Tables, instances: Integers, finer: Tables) -> Tables:
    """The tables with the rows of some instances, in ascending order, taken from others."""
    lengths = np.diff(tables.starts).reshape(tables.n_slices, -1)
    taken = np.zeros(lengths.shape, dtype=np.bool_)
    taken[:, instances] = True
    old = np.repeat(~taken, lengths.reshape(-1))
    lengths[:, instances] = np.diff(finer.starts).reshape(tables.n_slices, -1)
    new = np.repeat(taken, lengths.reshape(-1))
    gaps, counts = np.empty(len(new)), np.empty(len(new), dtype=np.int64)
    gaps[new], counts[new] = finer.gaps, finer.counts
    gaps[~new], counts[~new] = tables.gaps[old], tables.counts[old]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return attrs.evolve(tables, starts=starts, gaps=gaps, counts=counts)
