# SPDX-License-Identifier: Apache-2.0
"""Rows of one distribution, sorted into layers by how far they are from their mean.

Of each layer its radius and its part of the covariance are kept: enough to bound exponential
moments, and no rows. Everything is rounded up.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, final

import attrs
import numpy as np

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers

MOMENT_ERROR: Final = 1e-9
"""Bound on errors of stored moments, as shares of what one row could do: far above rounding."""

_COUPLED_ERROR: Final = 40 * MOMENT_ERROR
"""The same of a part of a coupled covariance, which is a sum of products of moments."""
_HALVINGS: Final = 4
"""One of so many layers halves the distance to the mean; the others divide it evenly."""
_MOST_LAYERS: Final = 32
_MOST_NUMBERS: Final = 2**17
"""About the most numbers in all layers."""
_FEW_LAYERS: Final = 8
"""Most layers of the rows of a cell, before those of two are combined."""
_MOST_CELLS: Final = 2**10
"""Most cells times layers of the rows of each."""
_BLOCK: Final = 4096
_UP: Final = 1 + 2.0**-40
_ROOM: Final = 1 + 2.0**-20


def n_layers_of(n_distributions: int, dim: int) -> int:
    """Number of layers for so many distributions of rows, of so many features."""
    return max(1, min(_MOST_LAYERS, _MOST_NUMBERS // (n_distributions * dim**2)))


class Layers(NamedTuple):
    """Layers of the rows of one distribution."""

    radii: Floats
    """Largest distance from the mean in each layer, rounded up, shape (n_layers,)."""
    moments: Floats
    """Part of the covariance that comes from each layer, rounded up, shape (n_layers, d, d)."""


class SortedRows(NamedTuple):
    """Layers of rows around a center with more of their moments, which are not rounded up."""

    shares: Floats
    """Probability of each layer, shape (n_layers,)."""
    radii: Floats
    firsts: Floats
    """Part of the mean, shape (n_layers, d)."""
    seconds: Floats
    """Part of the second moment, shape (n_layers, d, d)."""


class Meeting(NamedTuple):
    """Rows of two kinds that meet with some probability, drawn independently of each other."""

    probability: float
    first: SortedRows
    second: SortedRows
    shift: Floats
    """Difference of their means, less the mean of the whole change."""


@final
@attrs.frozen(kw_only=True)
class Sorting:
    """A way to sort rows into layers: by their distance from a center where `metric` whitens."""

    metric: Floats
    """Whitening matrix, shape (d, d)."""
    spans: Floats
    """Largest change of each feature by one row, shape (d,)."""
    n_layers: int

    def sorted_rows(self, rows: Floats, masses: Floats, center: Floats) -> SortedRows:
        """Sort rows with these probabilities around a center."""
        apart, size = rows - center, np.abs(self.metric)
        lengths = np.linalg.norm(apart @ self.metric.T, axis=1) * _UP
        rounding = 4 * (len(center) + 4) * UNIT_ROUNDOFF
        lengths += rounding * np.linalg.norm(np.abs(apart) @ size.T, axis=1)
        lengths += 2 * MOMENT_ERROR * float(np.linalg.norm(size @ self.spans))
        where = _places(lengths, self.n_layers)
        order = np.argsort(where, kind="stable")
        apart, masses = apart[order], masses[order]
        ends = np.searchsorted(where[order], np.arange(self.n_layers + 1))
        found = [_sums(apart[i:j], masses[i:j]) for i, j in pairwise(ends.tolist())]
        shares, firsts, seconds = (np.array(column) for column in zip(*found, strict=True))
        return SortedRows(shares, _largest(lengths, where, self.n_layers), firsts, seconds)

    def of_kind(self, rows: Floats, mean: Floats) -> Layers:
        """Sort all rows of a kind around their mean."""
        found = self.sorted_rows(rows, np.full(len(rows), 1 / len(rows)), mean)
        raised = _raised(found.shares, self.spans, 4 * MOMENT_ERROR)
        return Layers(found.radii, found.seconds + raised)

    def of_changes(self, changes: Floats, masses: Floats, mean: Floats) -> Layers:
        """Sort the changes of coupled rows around their mean."""
        found = self.sorted_rows(changes, masses, mean)
        raised = _raised(found.shares, self.spans, _COUPLED_ERROR)
        return Layers(found.radii, found.seconds + raised)

    def of_cells(
        self,
        kinds: Sequence[tuple[Floats, Integers]],
        pairs: Iterable[tuple[int, int]],
        n_cells: int,
        plans: Floats,
    ) -> list[Layers]:
        """Sort the changes of rows that are coupled by cells, for pairs of kinds.

        A kind is its rows and the cell of each; a plan has the probability of each two cells.
        Without plans, cells are equal as often as they can be.
        """
        few = attrs.evolve(self, n_layers=max(1, min(_FEW_LAYERS, _MOST_CELLS // n_cells)))
        parts = [_Cells.of(few, rows, codes, n_cells) for rows, codes in kinds]
        if len(plans):
            both = zip(pairs, plans, strict=True)
            meetings = [_planned(plan, parts[a], parts[b]) for (a, b), plan in both]
        else:
            meetings = [_meetings(few, parts[a], parts[b]) for a, b in pairs]
        return [self._of_meetings(list(each)) for each in meetings]

    def _of_meetings(self, meetings: Sequence[Meeting]) -> Layers:
        r"""Combine the layers of rows that meet.

        A change is $X = X_1 - X_0 + s$ for rows from two layers and the shift s between their
        means, and no longer than the radii of both and the shift together.
        """
        lengths = [self._length(meeting.shift) for meeting in meetings]
        radii = [
            (each.second.radii[:, None] + each.first.radii + length).ravel() * _UP
            for each, length in zip(meetings, lengths, strict=True)
        ]
        where = _places(np.concatenate(radii), self.n_layers)
        largest = _largest(np.concatenate(radii), where, self.n_layers)
        dim = len(self.spans)
        shares, moments = np.zeros(self.n_layers), np.zeros((self.n_layers, dim, dim))
        places = np.split(where, np.cumsum([len(each) for each in radii])[:-1])
        for meeting, place in zip(meetings, places, strict=True):
            masses, seconds = combined(meeting)
            np.add.at(shares, place, masses)
            np.add.at(moments, place, seconds)
        return Layers(largest, moments + _raised(shares, self.spans, _COUPLED_ERROR))

    def _length(self, shift: Floats) -> float:
        rounding = 4 * (len(shift) + 4) * UNIT_ROUNDOFF
        size = float(np.linalg.norm(np.abs(self.metric) @ np.abs(shift)))
        size += float(np.linalg.norm(np.abs(self.metric) @ self.spans)) * MOMENT_ERROR
        return float(np.linalg.norm(self.metric @ shift)) * _UP + rounding * size


class _Cells(NamedTuple):
    """The rows of a kind, by cell."""

    rows: Floats
    codes: Integers
    counts: Integers
    means: Floats
    sorted: list[SortedRows | None]

    @classmethod
    def of(cls, sorting: Sorting, rows: Floats, codes: Integers, n_cells: int) -> "_Cells":
        counts = np.bincount(codes, minlength=n_cells)
        means, found = np.zeros((n_cells, rows.shape[1])), []
        for cell, count in enumerate(counts.tolist()):
            chosen = rows[codes == cell]
            if count:
                means[cell] = chosen.mean(axis=0)
                masses = np.full(count, 1 / count)
            found.append(sorting.sorted_rows(chosen, masses, means[cell]) if count else None)
        return cls(rows, codes, counts, means, found)

    @property
    def shares(self) -> Floats:
        return np.asarray(self.counts / len(self.rows))


def _planned(plan: Floats, first: _Cells, second: _Cells) -> Iterator[Meeting]:
    """List how rows meet by a plan."""
    mean = second.rows.mean(axis=0) - first.rows.mean(axis=0)
    for a, b in np.argwhere(plan > 0).tolist():
        one, other = first.sorted[a], second.sorted[b]
        if one is not None and other is not None:
            yield Meeting(float(plan[a, b]), one, other, second.means[b] - first.means[a] - mean)


def _meetings(sorting: Sorting, first: _Cells, second: _Cells) -> Iterator[Meeting]:
    """List how rows meet: of equal cells as often as they can, and the rest independently."""
    mean = second.rows.mean(axis=0) - first.rows.mean(axis=0)
    common = np.minimum(first.shares, second.shares)
    for cell, share in enumerate(common.tolist()):
        one, other = first.sorted[cell], second.sorted[cell]
        if one is not None and other is not None:
            yield Meeting(share, one, other, second.means[cell] - first.means[cell] - mean)
    rest = []
    for part in (first, second):
        left = np.maximum(part.shares - common, 0.0)
        share = float(left.sum())
        if not share > 0:
            return
        masses = (left / np.maximum(part.counts, 1) / share)[part.codes]
        center = masses @ part.rows
        rest.append((share, center, sorting.sorted_rows(part.rows, masses, center)))
    (share, low, one), (_, high, other) = rest
    yield Meeting(share, one, other, high - low - mean)


def whitened_layers(layers: Layers, whitening: Floats, metric: Floats) -> Layers:
    """Turn layers into those of whitened rows; radii were measured where `metric` whitens.

    In other coordinates a radius is as much longer as any vector can become.
    """
    size, dim = np.abs(whitening), len(whitening)
    stretch = 1.0
    if not np.array_equal(whitening, metric):
        stretch = float(np.linalg.norm(np.linalg.solve(metric.T, whitening.T), 2)) * _ROOM
    moments = whitening @ layers.moments @ whitening.T
    largest = size @ np.abs(layers.moments) @ size.T
    rounding = 4 * (dim + 4) * UNIT_ROUNDOFF * np.sqrt((largest**2).sum(axis=(1, 2)))
    moments = (moments + np.swapaxes(moments, 1, 2)) / 2
    return Layers(layers.radii * stretch, moments + rounding[:, None, None] * np.eye(dim))


def one_layer(cov: Floats, radius: float, spans: Floats, *, is_coupled: bool) -> Layers:
    """Return the only layer of a distribution of which no more than this is known."""
    if not cov.any() and not is_coupled:
        return Layers(np.zeros(1), np.zeros((1, *cov.shape)))
    error = _COUPLED_ERROR if is_coupled else 4 * MOMENT_ERROR
    return Layers(np.array([radius]), cov[None] + _raised(np.ones(1), spans, error))


def farthest_in_boxes(low: Floats, high: Floats, center: Floats, metric: Floats) -> float:
    """Bound the distance of any point of some boxes from a center, where `metric` whitens."""
    size, middles, halves = np.abs(metric), (low + high) / 2 - center, (high - low) / 2
    lengths = np.linalg.norm(middles @ metric.T, axis=1) + np.linalg.norm(halves @ size.T, axis=1)
    reach = np.linalg.norm((np.abs(middles) + halves + 2 * np.abs(center)) @ size.T, axis=1)
    return float((lengths + 8 * (len(center) + 4) * UNIT_ROUNDOFF * reach).max()) * _UP


def combined(meeting: Meeting) -> tuple[Floats, Floats]:
    """Probability and second moment of the change from each pair of layers."""
    one, other, shift, dim = meeting.second, meeting.first, meeting.shift, len(meeting.shift)
    shares = one.shares[:, None] * other.shares
    moments = one.seconds[:, None] * other.shares[:, None, None]
    moments = moments + one.shares[:, None, None, None] * other.seconds
    crossed = one.firsts[:, None, :, None] * other.firsts[:, None, :]
    mean = one.firsts[:, None] * other.shares[:, None] - one.shares[:, None, None] * other.firsts
    moved = mean[..., None] * shift
    moments -= crossed + np.swapaxes(crossed, 2, 3)
    moments += moved + np.swapaxes(moved, 2, 3) + shares[..., None, None] * np.outer(shift, shift)
    weighted = meeting.probability * moments
    return meeting.probability * shares.ravel(), weighted.reshape(-1, dim, dim)


def _raised(shares: Floats, spans: Floats, error: float) -> Floats:
    """Return what exceeds the error of every entry, times the number of features."""
    return np.asarray(error * len(spans) * shares[:, None, None] * np.diag(spans**2))


def _places(lengths: Floats, n_layers: int) -> Integers:
    """Layer of each length: the inner ones halve, the outer ones divide the longest evenly."""
    halving = n_layers // _HALVINGS
    even, top = n_layers - halving, float(lengths.max(initial=0.0))
    if not top > 0:
        return np.zeros(len(lengths), dtype=np.int64)
    steps = lengths / top * even
    with np.errstate(divide="ignore"):
        inner = halving + np.clip(np.ceil(np.log2(steps)), -halving, 0.0)
    outer = halving + np.minimum(np.ceil(steps), even) - 1
    return np.asarray(np.where(steps <= 1, inner, outer).astype(np.int64))


def _largest(lengths: Floats, where: Integers, n_layers: int) -> Floats:
    radii = np.zeros(n_layers)
    np.maximum.at(radii, where, lengths)
    return radii


def _sums(rows: Floats, masses: Floats) -> tuple[float, Floats, Floats]:
    """Total mass, first and second moments, in blocks, so that rounding stays small."""
    dim = rows.shape[1]
    first, second = np.zeros(dim), np.zeros((dim, dim))
    for start in range(0, len(rows), _BLOCK):
        block, weights = rows[start : start + _BLOCK], masses[start : start + _BLOCK]
        first += weights @ block
        second += (block.T * weights) @ block
    return float(masses.sum()), first, (second + second.T) / 2
