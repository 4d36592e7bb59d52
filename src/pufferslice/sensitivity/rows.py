# SPDX-License-Identifier: Apache-2.0
r"""Second moments of the change between two worlds that differ in some rows.

With W the change that one row makes, of mean m and covariance C, independent from row to row, and D
rows that differ, the change $Z = \sum_{k \le D} W_k$ has the second moment

$$M = E[D^2]\, m m^\top + E[D]\, C.$$

In general rows are of several kinds, with means $\mu_x$ and covariances $S_x$, and fall into
periods. With $V_{jx}$ the change of the number of rows of kind x in period j, $N_{jx}$ the number
of rows there that differ and are of kind x in one of the worlds, and B the rows $\mu_x - \mu_0$,

$$M = (I \otimes B)^\top\, E[V V^\top]\, (I \otimes B)
    + \mathrm{diag}_j \sum_x E[N_{jx}]\, S_x.$$

Given the coupled tables the outputs are $N(a, \Sigma)$ and $N(a + Z, \Sigma)$. Right guesses are at
most $E\,\Phi(\sqrt{Z^\top \Sigma^{-1} Z} / 2)$ by joint convexity, and at most
$\Phi(\sqrt{\rho} / 2)$ with $\rho = E\, Z^\top \Sigma^{-1} Z = \mathrm{tr}(\Sigma^{-1} M)$ by
Jensen's inequality, because $q \mapsto \Phi(\sqrt q / 2)$ is concave.

C depends on how the two rows of a change are coupled; m does not. Drawn independently,
$C = S_0 + S_1$. Coupled by *cells*, a public label of rows, the labels of both rows are equal as
often as they can be, and the rows are independent given their labels: with the shares $p_{ic}$ of
the cells and $o_c = \min(p_{0c}, p_{1c})$, rows of cell c meet with probability $o_c$, and the rest
is drawn independently from what each kind has left. By *transport*, rows meet that are close.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple, Self, final

import attrs
import numpy as np
import numpy.typing as npt
from scipy.special import erf

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers, locked, locked_integers, same
from pufferslice._core.text import listed
from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.occupancy import stated_changes
from pufferslice.scenario.rows import CellMoments, RowDistribution, stated_differing
from pufferslice.sensitivity.couplings import Recipe, coupled_ends
from pufferslice.sensitivity.difference import NotOnSpheres
from pufferslice.sensitivity.precision import Precision
from pufferslice.sensitivity.tables import DistributionPair
from pufferslice.sensitivity.whitening import Covariance, Shape

INDEPENDENT: Final = "independent"
TRANSPORT: Final = "transport"
CELLS: Final = "cells:"
"""Beginning of the name of a coupling by cells; the name of the labelling follows."""

_MOST_NUMBERS: Final = 2**25
"""Most numbers in the covariances of cells; labellings with more are left out."""
_MOMENT_ERROR: Final = 1e-9
"""Bound on errors of stored moments, as shares of what one row could do: far above rounding."""
_AGREEMENT: Final = 2.0**-34
"""Largest difference between moments of the same rows, as shares of what one row could do: far
below `_MOMENT_ERROR`, by which second moments are raised."""
_EXACTLY: Final = 2.0**-44
"""Largest relative difference between numbers that do not depend on the order of rows."""
_UP: Final = 1 + 2.0**-40
_ROOM: Final = 1 + 2.0**-20


class Change(NamedTuple):
    """Mean and covariance of the change that one row makes."""

    mean: Floats
    cov: Floats


@final
@attrs.frozen(kw_only=True, repr=False, slots=False)
class RowDifference(NotOnSpheres):
    """Moments of the rows of each kind, how they are coupled, and how many of them change."""

    name: ClassVar[str] = "rows"
    prior_kinds: ClassVar[tuple[str, ...]] = ("rows",)
    is_on_grid: ClassVar[bool] = True
    is_point: ClassVar[bool] = False
    is_single: ClassVar[bool] = False

    means: Floats = attrs.field(converter=locked, eq=same)
    """Mean of what a row of each kind adds, scaled, shape (n_kinds, n_features)."""
    covs: Floats = attrs.field(converter=locked, eq=same)
    """Its covariance, shape (n_kinds, n_features, n_features)."""
    pairs: Integers = attrs.field(converter=locked_integers, eq=same)
    """The two kinds of each instance, shape (n_instances, 2)."""
    counts: Floats = attrs.field(converter=locked, eq=same)
    """Expected number of rows that differ and are of a kind in one of the worlds, by period, shape
    (n_instances, n_periods, n_kinds)."""
    squares: Floats = attrs.field(converter=locked, eq=same)
    """Second moment of the change of the number of rows of every kind but the first, period by
    period, shape (n_instances, d, d) with d = n_periods (n_kinds - 1)."""
    low: Floats = attrs.field(converter=locked, eq=same)
    """Lowest ends of the public boxes that hold what a row adds, shape (n_boxes, n_features)."""
    high: Floats = attrs.field(converter=locked, eq=same)
    """Highest ends, shape (n_boxes, n_features)."""
    shares: Floats = attrs.field(converter=locked, eq=same)
    """Share of each cell, by kind, shape (n_kinds, n_cells); no cells where rows are coupled in
    another way."""
    cell_means: Floats = attrs.field(converter=locked, eq=same)
    """Mean of what a row of each cell adds, shape (n_kinds, n_cells, n_features)."""
    cell_covs: Floats = attrs.field(converter=locked, eq=same)
    """Its covariance, shape (n_kinds, n_cells, n_features, n_features)."""
    coupled: Floats = attrs.field(converter=locked, eq=same)
    """Second moment of the change by transport, shape (n_instances, n_features, n_features); of
    no instances where rows are coupled in another way."""
    _latest: tuple[Shape | None, Floats] | None = attrs.field(
        default=None, init=False, eq=False, repr=False
    )

    @classmethod
    def of(
        cls,
        distributions: Sequence[RowDistribution],
        pairs: Sequence[tuple[int, int]],
        *,
        coupling: str = INDEPENDENT,
        shape: Shape | None = None,
    ) -> "RowDifference":
        """Compute the difference of worlds; transport is that of rows that the shape whitens."""
        kinds = _kinds_of(distributions)
        cells = _cells_of(kinds, coupling)
        places = [(distributions[a].place, distributions[b].place) for a, b in pairs]
        changes = [
            distributions[a].differing.between(*place, len(kinds))
            for (a, _), place in zip(pairs, places, strict=True)
        ]
        if coupling != INDEPENDENT and not _are_of_pairs([counts for counts, _ in changes], places):
            raise ArgumentError(
                "coupling must be 'independent' for several periods, and for chains of more than "
                "two states: there rows of other kinds than those of the pair differ, too"
            )
        dim = len(kinds[0].row_mean)
        coupled = np.zeros((0, dim, dim))
        if coupling == TRANSPORT:
            coupled = _transported(kinds, places, shape)
        return cls(
            means=[kind.row_mean for kind in kinds],
            covs=[_symmetric(kind.row_cov) for kind in kinds],
            pairs=places,
            counts=[counts for counts, _ in changes],
            squares=[squares for _, squares in changes],
            low=kinds[0].boxes.low,
            high=kinds[0].boxes.high,
            shares=[part.shares for part in cells],
            cell_means=[part.means for part in cells],
            cell_covs=[_symmetric(part.covs) for part in cells],
            coupled=coupled,
        )

    @property
    def n_instances(self) -> int:
        """Number of instances."""
        return len(self.pairs)

    @property
    def n_features(self) -> int:
        """Number of sums of one period."""
        return int(self.means.shape[1])

    @property
    def n_periods(self) -> int:
        """Number of periods."""
        return int(self.counts.shape[1])

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self.n_periods * self.n_features

    @property
    def spans(self) -> Floats:
        """Largest change of each feature by one row, shape (n_features,); public."""
        return np.asarray(self.high.max(axis=0) - self.low.min(axis=0))

    @property
    def equal(self) -> npt.NDArray[np.bool_]:
        """Instances that are equal: none, as rows with these moments can always differ."""
        return np.zeros(self.n_instances, dtype=np.bool_)

    @cached_property
    def changes(self) -> list[Change]:
        """Mean and covariance of the change that one row makes, of each instance."""
        return [self._change(i, a, b) for i, (a, b) in enumerate(self.pairs.tolist())]

    def _change(self, instance: int, first: int, second: int) -> Change:
        mean = self.means[second] - self.means[first]
        if len(self.coupled):
            return Change(mean, self.coupled[instance] - np.outer(mean, mean))
        if not self.shares.shape[1]:
            return Change(mean, self.covs[first] + self.covs[second])
        common = np.minimum(self.shares[first], self.shares[second])
        apart = self.cell_means[second] - self.cell_means[first] - mean
        within = self.cell_covs[first] + self.cell_covs[second]
        cov = np.tensordot(common, within, axes=1) + (apart.T * common) @ apart
        rest = [_left_over(self, kind, common) for kind in (first, second)]
        share = max(rest[0][0], rest[1][0])
        if share > 0:
            apart = rest[1][1].mean - rest[0][1].mean - mean
            cov += share * (rest[0][1].cov + rest[1][1].cov + np.outer(apart, apart))
        return Change(mean, np.asarray(cov))

    @cached_property
    def second_moments(self) -> Floats:
        """Second moments M, raised by the possible rounding of stored moments.

        Shape (n_instances, dim, dim). The raise exceeds the error of every entry, relative to what
        rows could do, times the number of coordinates, so that it is one of matrices.
        """
        shift = np.kron(np.eye(self.n_periods), self.means[1:] - self.means[0])
        each = np.arange(self.n_periods)
        moments = np.empty((self.n_instances, self.dim, self.dim))
        for i, (counts, squares) in enumerate(zip(self.counts, self.squares, strict=True)):
            moment = shift.T @ squares @ shift
            blocks = moment.reshape(self.n_periods, self.n_features, self.n_periods, -1)
            if self.is_coupled:
                blocks[0, :, 0] += counts.max() * self.changes[i].cov
            else:
                blocks[each, :, each] += np.einsum("jx,xfg->jfg", counts, self.covs)
            turned = np.diagonal(squares).reshape(self.n_periods, -1).sum(axis=1)
            most = turned * len(self.means) + counts.sum(axis=1)
            sizes = np.diagonal(moment) + np.kron(most, self.spans**2)
            moments[i] = _symmetric(moment) + _MOMENT_ERROR * self.dim * np.diag(sizes)
        return moments

    @property
    def is_coupled(self) -> bool:
        """Whether rows meet by cells or by transport; then there is one period."""
        return bool(self.shares.shape[1] or len(self.coupled))

    def is_coupled_as(self, coupling: str) -> bool:
        """Whether the rows of a change meet as this coupling says."""
        kind = TRANSPORT if len(self.coupled) else CELLS if self.shares.shape[1] else INDEPENDENT
        return coupling.startswith(kind) if kind == CELLS else coupling == kind

    @property
    def floors(self) -> Floats | None:
        """Least second moments of any coupling, shape (n_instances, dim, dim): only m counts.

        None where rows of other kinds than those of the pair differ, or turn back as well (so that
        fewer turn than differ): there the mean change is not known.
        """
        most = self.counts.max(axis=(1, 2))
        turned = np.diagonal(self.squares, axis1=1, axis2=2).max(axis=1)
        if not _are_of_pairs(self.counts, self.pairs) or (most**2 > turned * _ROOM).any():
            return None
        means = [n * change.mean for n, change in zip(most, self.changes, strict=True)]
        return np.array([np.outer(mean, mean) for mean in means])

    @property
    def scale(self) -> float:
        """Root mean square of the change."""
        return math.sqrt(max(float(np.trace(moment)) for moment in self.second_moments))

    def problems(self, scenario: Mapping[str, Any]) -> Iterator[str]:
        """Report if fewer rows differ than the stated range of secrets needs."""
        stated = list(_stated_changes(scenario, self.pairs, len(self.means)))
        shapes = {(counts.shape, squares.shape) for counts, squares in stated}
        if len(stated) != self.n_instances or shapes != {
            (self.counts.shape[1:], self.squares.shape[1:])
        }:
            yield "the evidence is of other rows, or periods, than the stated secret"
            return
        for counts, squares, (needed, product) in zip(
            self.counts, self.squares, stated, strict=True
        ):
            sizes = np.abs(product).max() * (_ROOM - 1)
            if (counts < needed / _ROOM).any() or (
                np.linalg.eigvalsh(squares - product)[0] < -len(product) * sizes
            ):
                yield "fewer rows differ in the evidence than the stated range of secrets needs"
                return

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the moments, for a file."""
        return {f.name: getattr(self, f.name) for f in attrs.fields(type(self)) if f.init}

    def mean_squares(self, noise: Covariance) -> Floats:
        """Compute the expected squared distance of coupled outputs in noise deviations, rounded up.

        The grid adds to the distance of every two coupled outputs (Minkowski).
        """
        distances = np.sqrt(self._whitened_squares(noise.shape)) / noise.std
        return np.asarray((distances + noise.margin / noise.std) ** 2 * _UP)

    def _whitened_squares(self, shape: Shape | None) -> Floats:
        """Expected squared distances in whitened coordinates, rounded up; kept for one shape."""
        if self._latest is not None and self._latest[0] is shape:
            return self._latest[1]
        whitening = np.eye(self.dim) if shape is None else shape.whitening
        size = np.abs(whitening)
        squares = []
        for moment in self.second_moments:
            total = float(np.sum((whitening @ moment) * whitening))
            largest = float(np.sum((size @ np.abs(moment)) * size))
            squares.append(total + 4 * (self.dim + 4) ** 2 * UNIT_ROUNDOFF * largest)
        found = np.array(squares)
        object.__setattr__(self, "_latest", (shape, found))
        return found

    def least_share(self, noise: Covariance) -> float:
        """Share of noise of this shape below which no coupling could go, rounded down.

        Every coupling has at least the second moment of the mean change alone.
        """
        whitening = noise.whitening
        floors = self.floors
        if floors is None:
            return 0.0
        least, stated = (
            max(float(np.sum((whitening @ moment) * whitening)) for moment in moments)
            for moments in (floors, self.second_moments)
        )
        return math.floor(100 * math.sqrt(min(1.0, least / stated))) / 100

    @property
    def boxes(self) -> tuple[Floats, Floats]:
        """Public boxes, one of which holds what a row adds to all coordinates: low, high ends."""
        each = np.eye(self.n_periods)
        return np.asarray(np.kron(each, self.low)), np.asarray(np.kron(each, self.high))

    def one_row_distance(self, noise: Covariance) -> float:
        """Bound how far exchanging one row can move the output, in noise deviations.

        The matrix that whitens the released values is taken as it is, and the grid adds to the
        distance of every two outputs.
        """
        whitened = Precision(factor=noise.whitening, excess=1.0).farthest(*self.boxes)
        return (whitened + noise.margin) / noise.std * _UP

    def divergences(self, order: float, noise: Covariance) -> Floats:
        """Return infinity: second moments bound no Rényi divergence."""
        del order, noise
        return np.full(self.n_instances, math.inf)

    def delta_curve(self, noise: Covariance) -> Callable[[float], Floats]:
        """Return the total variation, whatever epsilon is: second moments bound no more."""
        variations = self.variations(noise)
        return lambda _epsilon: variations

    def variations(self, noise: Covariance) -> Floats:
        """Bound total variation by two Gaussians at the root mean squared distance (Jensen)."""
        distances = np.sqrt(self.mean_squares(noise))
        return np.asarray(np.minimum(1.0, erf(distances / (2 * math.sqrt(2))) * _UP))

    def epsilon_at(self, delta: float, noise: Covariance) -> None:
        """Return None: second moments give no epsilon below the total variation."""
        del delta, noise

    def reach(self) -> None:
        """Return None: distances of coupled rows are not kept."""

    def coarsened(self, n_entries: int) -> Self:
        """Return the moments themselves."""
        del n_entries
        return self

    def farther(self, distance: float) -> None:
        """Return None: distances of coupled rows are not kept."""
        del distance

    def unwhitened(self, shape: Shape) -> Self:
        """Return the moments themselves, which are not whitened."""
        del shape
        return self

    def source(self, found: str | None) -> str:
        """Name the moments and the coupling."""
        del found
        how = "coupled independently"
        if self.shares.shape[1]:
            how = "coupled by cells"
        elif len(self.coupled):
            how = "coupled by transport"
        return f"second moments of the rows that make the difference, {how}"

    def check(self) -> None:
        """Raise unless the numbers can be moments of clipped rows."""
        self._check_shapes()
        most, least = self.high.max(axis=0), self.low.min(axis=0)
        room = self.spans * (_ROOM - 1)
        varied = np.diagonal(self.covs, axis1=1, axis2=2)
        possible = (
            (self.low <= self.high).all()
            and self.spans.min() > 0
            and (self.means <= most + room).all()
            and (self.means >= least - room).all()
            and (varied <= self.spans**2 / 4 * _ROOM).all()
            and self.counts.min() >= 0
            and self.counts.max() > 0
            and self._has_possible_counts()
            and not (len(self.coupled) and self.shares.shape[1])
            and all(self._is_covariance(cov) for cov in self.covs)
            and self._has_fitting_cells()
            and all(self._is_covariance(change.cov) for change in self.changes)
        )
        if not possible:
            raise ArgumentError("these are not moments of rows within the public ranges")

    def _check_shapes(self) -> None:
        kinds, dim = len(self.means), self.means.shape[-1]
        n, periods, cells = len(self.pairs), self.n_periods, self.shares.shape[-1]
        shapes = {
            "means": (kinds, dim),
            "covs": (kinds, dim, dim),
            "pairs": (n, 2),
            "counts": (n, periods, kinds),
            "squares": (n, periods * (kinds - 1), periods * (kinds - 1)),
            "low": (len(self.low), dim),
            "high": (len(self.low), dim),
            "shares": (kinds, cells),
            "cell_means": (kinds, cells, dim),
            "cell_covs": (kinds, cells, dim, dim),
            "coupled": (len(self.coupled) and n, dim, dim),
        }
        arrays = self.arrays()
        fits = all(arrays[name].shape == shape for name, shape in shapes.items())
        fits = fits and all(np.isfinite(array).all() for array in arrays.values())
        fits = fits and min(kinds, dim, n, periods, len(self.low)) > 0
        if not fits or self.pairs.min() < 0 or self.pairs.max() >= kinds:
            raise ArgumentError("moments of rows must be finite, and of one number of coordinates")

    def _has_possible_counts(self) -> bool:
        """Whether second moments of the numbers of rows can be that, and are of these kinds.

        Rows meet by cells or by transport only where all that differ are of the kinds of the pair.
        """
        alone = np.diagonal(self.squares, axis1=1, axis2=2)
        least = [np.linalg.eigvalsh(square)[0] for square in self.squares]
        return bool(
            (np.array(least) >= -_MOMENT_ERROR * alone.max(initial=0.0)).all()
            and (not self.is_coupled or _are_of_pairs(self.counts, self.pairs))
        )

    def _is_covariance(self, cov: Floats) -> bool:
        """Whether a matrix is symmetric and, up to rounding, positive semi-definite."""
        units = np.where(self.spans > 0, self.spans, 1.0)
        values = np.linalg.eigvalsh(cov / np.outer(units, units))
        return bool(
            np.allclose(cov, cov.T, rtol=1e-9, atol=0.0)
            and values[0] >= -_MOMENT_ERROR * self.n_features
        )

    def _has_fitting_cells(self) -> bool:
        """Whether cells have the shares, means and covariances of their kinds."""
        if not self.shares.shape[1]:
            return True
        means = np.einsum("kc,kcf->kf", self.shares, self.cell_means)
        apart = self.cell_means - self.means[:, None]
        covs = np.einsum("kc,kcfg->kfg", self.shares, self.cell_covs)
        covs = covs + np.einsum("kc,kcf,kcg->kfg", self.shares, apart, apart)
        units = np.outer(self.spans, self.spans)
        return bool(
            (self.shares >= 0).all()
            and np.abs(self.shares.sum(axis=1) - 1).max() <= _MOMENT_ERROR
            and (np.abs(means - self.means) <= _MOMENT_ERROR * self.spans).all()
            and (np.abs(covs - self.covs) <= _MOMENT_ERROR * units).all()
            and all(self._is_covariance(cov) for kind in self.cell_covs for cov in kind)
        )

    def __repr__(self) -> str:
        return f"RowDifference(dim={self.dim}, n_instances={self.n_instances})"


def _stated_changes(
    scenario: Mapping[str, Any], pairs: Integers, n_kinds: int
) -> Iterator[tuple[Floats, Floats]]:
    """Moments of the numbers of rows that change, by instance, from a public description."""
    secret = scenario["secret"]
    if "state_of" in secret:
        yield from stated_changes(secret, [prior["name"] for prior in scenario["priors"]])
        return
    differing = stated_differing(secret)
    for first, second in pairs.tolist():
        yield differing.between(first, second, n_kinds)


def _are_of_pairs(counts: npt.ArrayLike, pairs: npt.ArrayLike) -> bool:
    """Whether there is one period, and all rows that differ are of the two kinds of the pair."""
    numbers = np.array(counts)
    others = np.ones((len(numbers), numbers.shape[2]), dtype=np.bool_)
    np.put_along_axis(others, np.asarray(pairs), values=False, axis=1)
    return bool(numbers.shape[1] == 1 and not numbers[:, 0][others].any())


def _kinds_of(distributions: Sequence[RowDistribution]) -> list[RowDistribution]:
    """One distribution for each kind of rows, in the order of their places."""
    by_place = {each.place: each for each in distributions}
    return [by_place[place] for place in sorted(by_place)]


def are_moments_of_same_rows(stored: RowDifference, other: RowDifference) -> bool:
    """Whether moments are the same but for the order of sums: `second_moments` allows for that.

    With means that are off by a share e of what one row could do, r, and covariances by e r r', an
    entry of the second moment is off by at most (4e + 4e^2) E[D^2] + 2e E[D], times r r': less than
    a quarter of what `_MOMENT_ERROR` adds.
    """
    mine, theirs = stored.arrays(), other.arrays()
    if any(mine[name].shape != array.shape for name, array in theirs.items()):
        return False
    units = stored.spans
    room = {
        "means": units,
        "cell_means": units,
        "covs": np.outer(units, units),
        "cell_covs": np.outer(units, units),
        "coupled": np.outer(units, units),
    }
    return all(
        bool(
            (np.abs(mine[name] - array) <= _AGREEMENT * room[name]).all()
            if name in room
            else np.allclose(mine[name], array, rtol=_EXACTLY, atol=0.0)
        )
        for name, array in theirs.items()
    )


def labellings(distributions: Sequence[RowDistribution]) -> list[str]:
    """Couplings by cells that rows of these kinds can have."""
    kinds = _kinds_of(distributions)
    found = []
    for name in kinds[-1].labels if all(kind.labels for kind in kinds) else ():
        n_cells = len(np.unique(np.concatenate([kind.labels[name] for kind in kinds])))
        if n_cells > 1 and n_cells * len(kinds[0].row_mean) ** 2 * len(kinds) <= _MOST_NUMBERS:
            found.append(f"{CELLS}{name}")
    return found


def _cells_of(kinds: Sequence[RowDistribution], coupling: str) -> list[CellMoments]:
    """Moments of the cells that a coupling is by; none if it is by no cells."""
    dim = len(kinds[0].row_mean)
    none = CellMoments(np.zeros(0), np.zeros((0, dim)), np.zeros((0, dim, dim)))
    if coupling in {INDEPENDENT, TRANSPORT}:
        return [none] * len(kinds)
    name = coupling.removeprefix(CELLS)
    if not coupling.startswith(CELLS) or any(name not in kind.labels for kind in kinds):
        known = [INDEPENDENT, *labellings(kinds), TRANSPORT]
        raise ArgumentError(f"coupling must be one of {listed(known)}, got {coupling!r}")
    cells = np.unique(np.concatenate([kind.labels[name] for kind in kinds]))
    return [kind.cells(name, cells) for kind in kinds]


def _left_over(rows: RowDifference, kind: int, common: Floats) -> tuple[float, Change]:
    """Share and moments of the rows of a kind that no row of the same cell meets."""
    left = np.maximum(rows.shares[kind] - common, 0.0)
    share = float(left.sum())
    if not share > 0:
        return 0.0, Change(rows.means[kind], rows.covs[kind])
    weights = left / share
    mean = weights @ rows.cell_means[kind]
    apart = rows.cell_means[kind] - mean
    cov = np.tensordot(weights, rows.cell_covs[kind], axes=1) + (apart.T * weights) @ apart
    return share, Change(mean, cov)


def transported_rows(
    kinds: Sequence[RowDistribution], pairs: Sequence[tuple[int, int]], shape: Shape | None
) -> list[tuple[Floats, Floats, Floats]]:
    """Rows that meet because they are close in whitened coordinates, and their masses, by pair.

    The shape decides which rows meet; what is returned are the rows themselves.
    """
    rows = [np.unique(kind.rows_at_hand, axis=0, return_counts=True) for kind in kinds]
    atoms = [_whitened(points, shape) for points, _ in rows]
    distributions = [
        FiniteDistribution(outputs=points, counts=counts)
        for points, (_, counts) in zip(atoms, rows, strict=True)
    ]
    if any(len(np.unique(points, axis=0)) < len(points) for points in atoms):
        raise ArgumentError(
            "coupling 'transport' cannot tell some rows apart in the coordinates of this noise; "
            "use 'independent', or a label of the query"
        )
    found = coupled_ends(
        distributions, [DistributionPair(a, b) for a, b in pairs], Recipe(effort="thorough")
    )
    return [
        (_row_of(first, atoms[a], rows[a][0]), _row_of(second, atoms[b], rows[b][0]), masses)
        for (a, b), (first, second, masses) in zip(pairs, found, strict=True)
    ]


def _transported(
    kinds: Sequence[RowDistribution], pairs: Sequence[tuple[int, int]], shape: Shape | None
) -> Floats:
    """Second moments of the change where rows meet that are close."""
    moments = []
    for first, second, masses in transported_rows(kinds, pairs, shape):
        change = second - first
        moments.append(_symmetric((change.T * masses) @ change))
    return np.array(moments)


def _whitened(rows: Floats, shape: Shape | None) -> Floats:
    return rows + 0.0 if shape is None else shape.whitened(rows, np.zeros(shape.dim))


def _row_of(points: Floats, atoms: Floats, rows: Floats) -> Floats:
    """The rows that were whitened to these points."""
    where = {atom.tobytes(): place for place, atom in enumerate(atoms)}
    return rows[[where[point.tobytes()] for point in points]]


def _symmetric(matrices: Floats) -> Floats:
    return np.asarray((matrices + np.swapaxes(matrices, -1, -2)) / 2)
