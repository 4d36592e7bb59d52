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

Rényi divergences and (epsilon, delta) need exponential moments of that squared distance, which
`shells` bounds from *layers* of the rows: parts of C by how far rows are from their mean. Where
only means, covariances and public ranges are known, there is one layer.

C depends on how the two rows of a change are coupled; m does not. Drawn independently,
$C = S_0 + S_1$. By *transport*, rows meet that are close. Coupled by *cells*, a public label of
rows, the labels of both rows are drawn together, and the rows are independent given their labels.
Whatever the probabilities $\pi_{cc'}$ of two labels are, with the shares $p_{ic}$ of the cells as
their sums, the rows of each kind keep their law, so that this is a coupling of the rows. Their
covariance is that of the means of their cells: $C = S_0 + S_1 - X - X^\top$ with

$$X = \sum_{cc'} \pi_{cc'}\, u_{0c} u_{1c'}^\top,$$

$u_{ic}$ the mean of the rows of a cell less that of their kind. The labels are equal as often as
they can be, $\pi_{cc} = o_c = \min(p_{0c}, p_{1c})$, and otherwise independent,

$$X = \sum_c o_c\, u_{0c} u_{1c}^\top + \frac{\big(\sum_c (p_{0c} - o_c) u_{0c}\big)
    \big(\sum_c (p_{1c} - o_c) u_{1c}\big)^\top}{1 - \sum_c o_c},$$

or $\pi$ is the transport of the cells whose means are close. Shares and means of the cells, and
$\pi$, are enough.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self, cast, final

import attrs
import numpy as np
import numpy.typing as npt
from scipy.special import erf

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers, locked, locked_integers, same
from pufferslice._core.search import smallest_epsilon
from pufferslice._core.text import listed
from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.occupancy import stated_changes
from pufferslice.scenario.rows import (
    CellMoments,
    DifferingRows,
    RowDistribution,
    stated_differing,
)
from pufferslice.sensitivity.couplings import Recipe, coupled_ends, least_plan
from pufferslice.sensitivity.difference import NotOnSpheres
from pufferslice.sensitivity.flags import MOST_FLAGS, FlagSum
from pufferslice.sensitivity.hockey_stick import mean_delta
from pufferslice.sensitivity.layers import (
    MOMENT_ERROR,
    Layers,
    Sorting,
    farthest_in_boxes,
    n_layers_of,
    one_layer,
    whitened_layers,
)
from pufferslice.sensitivity.precision import Precision
from pufferslice.sensitivity.shells import RowSum
from pufferslice.sensitivity.tables import DistributionPair
from pufferslice.sensitivity.whitening import Covariance, Shape

INDEPENDENT: Final = "independent"
TRANSPORT: Final = "transport"
CELLS: Final = "cells:"
"""Beginning of the name of a coupling by equal cells; the name of the labelling follows."""
NEAR_CELLS: Final = "transport:"
"""Beginning of the name of a coupling by near cells; the name of the labelling follows."""

_MOST_PLANNED: Final = 2**14
"""Most pairs of cells of a transport that is tried without being asked for."""

MOST_FEATURES: Final = 256
"""Most features of a row for bounds beyond second moments."""
_FEW_CELLS: Final = 2**6
"""Most cells whose rows are sorted into layers apart beside a claim that does not need it."""
_MOST_LAYERED: Final = 2**9
"""Most cells whose rows are sorted into layers apart."""
_LAYER_ROOM: Final = 1e-3
"""Tolerance for radii of layers, as a share of the longest change."""
_AGREEMENT: Final = 2.0**-36
"""Largest difference between moments of the same rows, as shares of what one row could do, and
between the shares of cells and those that a plan has, in total."""
_LAYER_AGREEMENT: Final = 2.0**-30
"""Largest difference between layers of the same rows, as shares of what is in them."""
_EXACTLY: Final = 2.0**-44
"""Largest relative difference between numbers that do not depend on the rows."""
_EPSILON_WIDTH: Final = 2.0**-20
"""Relative width of the bracket in which the smallest epsilon is found."""
_MOST_RAISED: Final = 40
"""Largest factor of `MOMENT_ERROR` by which layers are rounded up."""
_UP: Final = 1 + 2.0**-40
_ROOM: Final = 1 + 2.0**-20


Layered = Literal["nothing", "kinds", "changes"]


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
    is_by_mean_square: ClassVar[bool] = True
    is_point: ClassVar[bool] = False
    is_single: ClassVar[bool] = False
    converts_orders: ClassVar[bool] = False

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
    plans: Floats = attrs.field(converter=locked, eq=same)
    """Probability of each two cells, shape (n_instances, n_cells, n_cells); of no instances where
    labels are equal as often as they can be."""
    coupled: Floats = attrs.field(converter=locked, eq=same)
    """Second moment of the change by transport, shape (n_instances, n_features, n_features); of
    no instances where rows are coupled in another way."""
    trials: Floats = attrs.field(converter=locked, eq=same)
    """Number of rows that may differ, and the probability that each of them does, shape
    (n_instances, 2); 0 where it is not a number of like rows."""
    metric: Floats = attrs.field(converter=locked, eq=same)
    """Whitening matrix of the radii of layers, shape (n_features, n_features); none without."""
    radii: Floats = attrs.field(converter=locked, eq=same)
    """Radius of each layer of the rows of every kind and, where rows are coupled by few cells or by
    transport, of the changes of every instance; shape (n_kinds or n_kinds + n_instances, n_layers),
    without layers (0, 0)."""
    layers: Floats = attrs.field(converter=locked, eq=same)
    """Part of the covariance from each layer, shape (..., n_layers, n_features, n_features)."""
    _latest: "_Whitened | None" = attrs.field(default=None, init=False, eq=False, repr=False)

    @classmethod
    def of(
        cls,
        distributions: Sequence[RowDistribution],
        pairs: Sequence[tuple[int, int]],
        *,
        coupling: str = INDEPENDENT,
        shape: Shape | None = None,
        layered: Layered = "nothing",
    ) -> "RowDifference":
        """Compute the difference of worlds; transport is that of rows that the shape whitens.

        `layered` keeps what bounds beyond second moments need, as far as the rows are known:
        layers of the rows of each kind, or of the changes of rows that meet by many cells as well.
        """
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
        dim, n_cells = len(kinds[0].row_mean), len(cells[0].cells)
        coupled, plans = np.zeros((0, dim, dim)), np.zeros((0, n_cells, n_cells))
        transported: list[tuple[Floats, Floats]] = []
        if coupling == TRANSPORT:
            transported = _transported(kinds, places, shape)
            moments = [(change.T * masses) @ change for change, masses in transported]
            coupled = _symmetric(np.array(moments))
        if coupling.startswith(NEAR_CELLS):
            plans = _planned(cells, places, shape)
        metric: Floats = np.zeros((0, 0))
        layers: list[Layers] = []
        is_known = all(kind.rows is not None for kind in kinds)
        trials = [distributions[a].differing.trials for a, _ in pairs]
        is_number = all(number for number, _ in trials)
        if layered != "nothing" and is_known and is_number and dim <= MOST_FEATURES:
            metric = np.eye(dim) if shape is None else shape.whitening
            is_coupled = layered == "changes" or coupling == TRANSPORT or n_cells <= _FEW_CELLS
            how = coupling if is_coupled else INDEPENDENT
            layers = _layers_of(kinds, places, how, metric, transported, plans)
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
            plans=plans,
            coupled=coupled,
            trials=trials,
            metric=metric,
            radii=[each.radii for each in layers] or np.zeros((0, 0)),
            layers=[each.moments for each in layers] or np.zeros((0, 0, dim, dim)),
        )

    def with_differing(self, differing: DifferingRows) -> "RowDifference":
        """Return the difference of worlds in which other numbers of rows differ."""
        changes = [differing.between(a, b, len(self.means)) for a, b in self.pairs.tolist()]
        return attrs.evolve(
            self,
            counts=[counts for counts, _ in changes],
            squares=[squares for _, squares in changes],
            trials=[differing.trials] * len(self.pairs),
        )

    def without_layers(self) -> "RowDifference":
        """Return what moments alone tell: bounds beyond second moments are then no smaller."""
        none, dim = np.zeros((0, 0)), self.n_features
        return attrs.evolve(self, metric=none, radii=none, layers=np.zeros((0, 0, dim, dim)))

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
    def bounds_rare_outputs(self) -> bool:
        """Whether more is bounded than right guesses: Rényi divergences, and small deltas."""
        is_number = self.n_periods == 1 and bool(self.trials[:, 0].all())
        return is_number and self.dim <= MOST_FEATURES

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
        cov = self.covs[first] + self.covs[second]
        if self.shares.shape[1]:
            shared = self._shared(instance, first, second)
            cov = cov - (shared + shared.T)
        return Change(mean, cov)

    def _shared(self, instance: int, first: int, second: int) -> Floats:
        """Covariance of the two rows of a change that meet by cells."""
        shares = self.shares[[first, second]]
        apart = self.cell_means[[first, second]] - self.means[[first, second], None]
        if len(self.plans):
            return np.asarray(apart[0].T @ self.plans[instance] @ apart[1])
        common = shares.min(axis=0)
        met = (apart[0].T * common) @ apart[1]
        left = np.einsum("kc,kcf->kf", shares - common, apart)
        rest = float((shares - common).sum(axis=1).max())
        return np.asarray(met if rest <= 0 else met + np.outer(left[0], left[1]) / rest)

    @cached_property
    def second_moments(self) -> Floats:
        """Second moments M, raised by the possible rounding of stored moments.

        Shape (n_instances, dim, dim). The raise exceeds the error of every entry, relative to what
        rows could do, times the number of coordinates, so that it is one of matrices.
        """
        shift = self.means[1:] - self.means[0]
        if self.n_periods > 1:
            shift = np.kron(np.eye(self.n_periods), shift)
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
            sizes = np.diagonal(moment) + np.outer(most, self.spans**2).ravel()
            moments[i] = _symmetric(moment) + MOMENT_ERROR * self.dim * np.diag(sizes)
        return moments

    @property
    def is_coupled(self) -> bool:
        """Whether rows meet by cells or by transport; then there is one period."""
        return bool(self.shares.shape[1] or len(self.coupled))

    def is_coupled_as(self, coupling: str) -> bool:
        """Whether the rows of a change meet as this coupling says."""
        if self.shares.shape[1]:
            return coupling.startswith(NEAR_CELLS if len(self.plans) else CELLS)
        return coupling == (TRANSPORT if len(self.coupled) else INDEPENDENT)

    @property
    def mean_changes(self) -> Floats | None:
        """Expected change of the sums, shape (n_instances, dim), whatever the coupling is.

        None where rows of other kinds than those of the pair differ, or turn back as well (so that
        fewer turn than differ): there the mean change is not known.
        """
        most = self.counts.max(axis=(1, 2))
        turned = np.diagonal(self.squares, axis1=1, axis2=2).max(axis=1)
        if not _are_of_pairs(self.counts, self.pairs) or (most**2 > turned * _ROOM).any():
            return None
        return np.array([n * change.mean for n, change in zip(most, self.changes, strict=True)])

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
        trials = _stated_trials(scenario["secret"])
        for counts, squares, own, (needed, product) in zip(
            self.counts, self.squares, self.trials, stated, strict=True
        ):
            # In units of what is needed, period by period: far less than `second_moments` adds.
            sizes = np.sqrt(np.diagonal(product))
            sizes = np.where(sizes > 0, sizes, 1.0)
            spare = (squares - product) / np.outer(sizes, sizes)
            if (
                (counts < needed * (1 - _EXACTLY)).any()
                or (np.linalg.eigvalsh(spare)[0] < -len(product) * _EXACTLY)
                or (own[0] > 0 and (own < trials).any())
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
        distances = np.sqrt(self._whitened(noise.shape).squares) / noise.std
        return np.asarray((distances + noise.margin / noise.std) ** 2 * _UP)

    def sums(self, shape: Shape | None) -> list[list[FlagSum | RowSum]]:
        """Return what bounds rare outputs: for each instance, sums of which each is a bound."""
        return self._whitened(shape).sums

    def laws_of(self, instance: int) -> list[list[int]]:
        """Places, among those with layers, of the parts of each sum: kinds, then changes.

        Rows drawn independently have two parts, or one where rows of one kind are all alike.
        """
        kinds, change = self.pairs[instance].tolist(), len(self.means) + instance
        drawn = [kind for kind in kinds if self.covs[kind].any()] or kinds[:1]
        has_changes = self.is_coupled and (not len(self.radii) or len(self.radii) > change)
        return [drawn, *([[change]] if has_changes else [])]

    def _whitened(self, shape: Shape | None) -> "_Whitened":
        """The rows in whitened coordinates; kept for one shape."""
        if self._latest is None or self._latest.shape is not shape:
            object.__setattr__(self, "_latest", _Whitened(rows=self, shape=shape))
        return cast("_Whitened", self._latest)

    def least_share(self, noise: Covariance) -> float:
        """Share of noise of this shape below which no coupling could go, rounded down.

        Every coupling has at least the second moment of the mean change alone.
        """
        means = self.mean_changes
        if means is None:
            return 0.0
        least = float(((means @ noise.whitening.T) ** 2).sum(axis=1).max())
        stated = float(self._whitened(noise.shape).squares.max())
        return math.floor(100 * math.sqrt(min(1.0, least / stated))) / 100

    @property
    def boxes(self) -> tuple[Floats, Floats]:
        """Public boxes, one of which holds what a row adds to all coordinates: low, high ends."""
        if self.n_periods == 1:
            return self.low, self.high
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
        r"""Bound $D_\alpha \le \ln E\, e^{\alpha (\alpha-1) Q / 2} / (\alpha - 1)$.

        The grid makes every distance longer: $(r + m)^2 \le (1 + m) r^2 + m + m^2$ in noise
        deviations. Infinite where the differing rows are not a number of like rows, or have too
        many features.
        """
        farther = noise.margin / noise.std * _UP
        rate = order * (order - 1) / 2
        whitened = rate * (1 + farther) / noise.std**2 * _UP
        logs = [
            min(
                (float(each.log_moments(np.array([whitened]))[0]) for each in sums),
                default=math.inf,
            )
            for sums in self.sums(noise.shape)
        ]
        added = rate * (farther + farther**2)
        return np.asarray((np.array(logs) + added) / (order - 1) * _UP)

    def delta_curve(self, noise: Covariance) -> Callable[[float], Floats]:
        """Bound delta by the mean squared distance, and by exponential moments where they exist."""
        squares, variations = self.mean_squares(noise), self.variations(noise)

        def deltas(epsilon: float) -> Floats:
            found = self._deltas_of_sums(epsilon, noise)
            return np.minimum(np.minimum(variations, mean_delta(squares, epsilon)), found)

        return deltas

    def _deltas_of_sums(self, epsilon: float, noise: Covariance) -> Floats:
        """Bound delta by exponential moments alone; 1 where there are none."""
        return np.array(
            [
                min((each.delta(epsilon, noise.std, noise.margin) for each in sums), default=1.0)
                for sums in self.sums(noise.shape)
            ]
        )

    def variations(self, noise: Covariance) -> Floats:
        """Bound total variation by two Gaussians at the root mean squared distance (Jensen).

        Of a single feature of two values it is computed as the sum that it is.
        """
        bounds = variations_within(self.mean_squares(noise))
        if self.dim > 1:
            return bounds
        exact = [
            min((each.variation(noise.std, noise.margin) for each in sums), default=1.0)
            for sums in self.sums(noise.shape)
        ]
        return np.asarray(np.minimum(bounds, exact))

    def epsilon_at(self, delta: float, noise: Covariance) -> float | None:
        """Find the smallest epsilon at `delta`; None where rows have too many features."""
        if not self.bounds_rare_outputs:
            return None

        def smallest(curve: Callable[[float], Floats], first: float) -> float:
            def largest(epsilon: float) -> float:
                return float(curve(epsilon).max())

            return smallest_epsilon(largest, delta, first=first, width=_EPSILON_WIDTH)

        found = smallest(lambda epsilon: self._deltas_of_sums(epsilon, noise), 1.0)
        # The bound by the mean square falls: above delta there, it gives no smaller epsilon.
        if math.isfinite(found) and mean_delta(self.mean_squares(noise), found).min() > delta:
            return found
        return smallest(self.delta_curve(noise), found if math.isfinite(found) else 1.0)

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
            how = "coupled by near cells" if len(self.plans) else "coupled by cells"
        elif len(self.coupled):
            how = "coupled by transport"
        return f"moments of the rows that make the difference, {how}"

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
            and self._are_covariances(self.covs)
            and self._has_fitting_cells()
            and self._are_covariances(np.array([change.cov for change in self.changes]))
            and self._has_possible_trials()
            and self._has_fitting_layers()
        )
        if not possible:
            raise ArgumentError("these are not moments of rows within the public ranges")

    def _check_shapes(self) -> None:
        kinds, dim = len(self.means), self.means.shape[-1]
        n, periods, cells = len(self.pairs), self.n_periods, self.shares.shape[-1]
        layers, laws = self.radii.shape[-1], kinds
        if self.is_coupled and len(self.radii) > kinds:
            laws += n
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
            "plans": (len(self.plans) and n, cells, cells),
            "coupled": (len(self.coupled) and n, dim, dim),
            "trials": (n, 2),
            "metric": (len(self.metric) and dim, len(self.metric) and dim),
            "radii": (len(self.metric) and laws, layers),
            "layers": (len(self.metric) and laws, layers, dim, dim),
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
            (np.array(least) >= -MOMENT_ERROR * alone.max(initial=0.0)).all()
            and (not self.is_coupled or _are_of_pairs(self.counts, self.pairs))
        )

    def _has_possible_trials(self) -> bool:
        """Whether the numbers of rows that may differ give the expected ones."""
        number, probability = self.trials.T
        is_number = number > 0
        mean = number * probability
        squares = np.diagonal(self.squares, axis1=1, axis2=2).max(axis=1, initial=0.0)
        fits = (
            (self.counts.max(axis=(1, 2)) <= mean * _ROOM)
            & (squares <= (mean**2 + mean * (1 - probability)) * _ROOM)
            & (number == np.floor(number))
            & (probability > 0)
            & (probability <= 1)
        )
        return bool(
            (fits | ((number == 0) & (probability == 0))).all()
            and (self.n_periods == 1 or not is_number.any())
        )

    def _has_fitting_layers(self) -> bool:
        """Whether layers have the covariances, and no layer has rows beyond its radius."""
        if not len(self.metric):
            return True
        whole = np.array([*self.covs, *(each.cov for each in self.changes)])[: len(self.radii)]
        size = np.abs(self.metric) @ self.spans
        least = float(np.linalg.norm(size)) * _LAYER_ROOM
        # What layers were rounded up by, at most, in the coordinates of the radii.
        raised = _MOST_RAISED * MOMENT_ERROR * len(self.spans) * float(size @ size)
        squares = np.tensordot(self.layers, self.metric.T @ self.metric, 2)
        shares = np.maximum(squares - raised, 0.0) / np.maximum(self.radii, least) ** 2
        return bool(
            (self.radii >= 0).all()
            and (shares.sum(axis=1) <= 1 + _LAYER_ROOM).all()
            and self._are_covariances(self.layers)
            and self._are_covariances(_symmetric(self.layers.sum(axis=1) - whole))
        )

    def _are_covariances(self, covs: Floats) -> bool:
        """Whether matrices are symmetric and, up to rounding, positive semi-definite."""
        units = np.where(self.spans > 0, self.spans, 1.0)
        raised = covs / np.outer(units, units) + MOMENT_ERROR * self.n_features * np.eye(len(units))
        try:
            np.linalg.cholesky(raised)
        except np.linalg.LinAlgError:
            return False
        return np.array_equal(covs, np.swapaxes(covs, -1, -2))

    def _has_fitting_cells(self) -> bool:
        """Whether cells have the shares and means of their kinds, and vary no more than these."""
        if not self.shares.shape[1]:
            return True
        means = np.einsum("kc,kcf->kf", self.shares, self.cell_means)
        apart = self.cell_means - self.means[:, None]
        between = np.einsum("kc,kcf,kcg->kfg", self.shares, apart, apart)
        return bool(
            (self.shares >= 0).all()
            and np.abs(self.shares.sum(axis=1) - 1).max() <= _AGREEMENT
            and (np.abs(means - self.means) <= MOMENT_ERROR * self.spans).all()
            and self.has_plans
            and self._are_covariances(_symmetric(self.covs - between))
        )

    @property
    def has_plans(self) -> bool:
        r"""Whether the probabilities of each two cells have the shares of both kinds.

        A plan $\pi$ of which both marginals are off by $\delta$ in total is within $2 \delta$, in
        total, of one that has them (scale down what is too much, and add the product of what is
        missing), so that X is off by at most $2 \delta r r'$.
        """
        plans, shares = self.plans, self.shares[self.pairs[: len(self.plans)]]
        sums = np.stack([plans.sum(axis=2), plans.sum(axis=1)], axis=1)
        lacking = np.abs(sums - shares).sum(axis=(1, 2))
        return bool((plans >= 0).all() and (lacking <= _AGREEMENT).all())

    def __repr__(self) -> str:
        return f"RowDifference(dim={self.dim}, n_instances={self.n_instances})"


@final
@attrs.frozen(kw_only=True, eq=False, slots=False, repr=False)
class _Whitened:
    """A row difference in the coordinates that a shape whitens."""

    rows: RowDifference
    shape: Shape | None

    @property
    def whitening(self) -> Floats:
        return np.eye(self.rows.dim) if self.shape is None else self.shape.whitening

    @cached_property
    def squares(self) -> Floats:
        """Expected squared distances, rounded up."""
        whitening, size = self.whitening, np.abs(self.whitening)
        squares = []
        for moment in self.rows.second_moments:
            total = float(np.sum((whitening @ moment) * whitening))
            # No entry is much above the product of the roots of two others, so that rounding is
            # bounded without a second product.
            roots = np.sqrt(np.diagonal(moment))
            most = float((np.abs(moment) / np.outer(roots, roots)).max())
            largest = most * float(np.sum((size @ roots) ** 2))
            squares.append(total + 4 * (self.rows.dim + 4) ** 2 * UNIT_ROUNDOFF * largest)
        return np.array(squares)

    @cached_property
    def sums(self) -> list[list[FlagSum | RowSum]]:
        """Sums of the rows that differ, of each instance: each bounds it; none where nothing does.

        Drawn independently, and as the coupling has them.
        """
        return [self._sums_of(instance) for instance in range(self.rows.n_instances)]

    def _sums_of(self, instance: int) -> list[FlagSum | RowSum]:
        rows, (number, probability) = self.rows, self.rows.trials[instance].tolist()
        if not rows.bounds_rare_outputs:
            return []
        change = rows.changes[instance]
        flag = self._flag_of(change)
        if flag is not None and number <= MOST_FLAGS:
            share, length = flag
            return [FlagSum(n_rows=int(number), probability=probability * share, length=length)]
        size = np.abs(self.whitening)
        length = float(np.linalg.norm(size @ np.abs(change.mean)))
        error = 2 * MOMENT_ERROR * float(np.linalg.norm(size @ rows.spans))
        return [
            RowSum(
                n_rows=int(number),
                probability=probability,
                mean=self.whitening @ change.mean,
                mean_error=error + 4 * (rows.dim + 4) * UNIT_ROUNDOFF * length,
                parts=tuple(self._layers(law) for law in laws),
            )
            for laws in rows.laws_of(instance)
        ]

    def _flag_of(self, change: Change) -> tuple[float, float] | None:
        """Share of the rows that change, and how far, of one feature that is one of two numbers.

        None for other features, or where the coupling changes more rows than it must.
        """
        rows = self.rows
        ends = np.unique(rows.low)
        if rows.n_features > 1 or not np.array_equal(rows.low, rows.high) or len(ends) != 2:
            return None
        span, mean = float(ends[1] - ends[0]), abs(float(change.mean[0]))
        if change.cov.item() + mean**2 > span * mean + 4 * MOMENT_ERROR * span**2:
            return None
        share = min(1.0, mean / span + 2 * MOMENT_ERROR)
        return share, span * abs(float(self.whitening.item())) * _UP

    def _layers(self, law: int) -> Layers:
        """Whitened layers of a kind or a change; one where only moments and ranges are known."""
        rows, instance = self.rows, law - len(self.rows.means)
        if len(rows.radii):
            stored = Layers(rows.radii[law], rows.layers[law])
            return whitened_layers(stored, self.whitening, rows.metric)
        is_coupled = instance >= 0
        kinds = rows.pairs[instance].tolist() if is_coupled else [law]
        cov = rows.changes[instance].cov if is_coupled else rows.covs[law]
        radius = sum(map(self._farthest, kinds))
        only = one_layer(cov, radius, rows.spans, is_coupled=is_coupled)
        return whitened_layers(only, self.whitening, self.whitening)

    def _farthest(self, kind: int) -> float:
        rows = self.rows
        return farthest_in_boxes(rows.low, rows.high, rows.means[kind], self.whitening)


def variations_within(mean_squares: Floats) -> Floats:
    """Bound total variation by mean squared distances: two Gaussians, by Jensen's inequality."""
    distances = np.sqrt(mean_squares)
    return np.asarray(np.minimum(1.0, erf(distances / (2 * math.sqrt(2))) * _UP))


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


def _stated_trials(secret: Mapping[str, Any]) -> tuple[float, float]:
    """Return number and probability of rows that differ; infinite where it is no such number."""
    return (math.inf, math.inf) if "state_of" in secret else stated_differing(secret).trials


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
    r"""Whether moments are the same but for the order of sums: what is stored allows for that.

    With e the largest error, r what one row could do, and all inequalities entry by entry:

    *Second moments.* Means and cells are off by $e r$, covariances by $e r r'$, plans by e in
    total, shares not at all. Then $m m^\top$ is off by at most $(4e + 4e^2)\, r r'$; $S_0 + S_1$ by
    $2e$, and $X + X^\top$ by $2 (4e + 4e^2) + 4e$ times that. All of it is less than a quarter of
    what `second_moments` adds, $10^{-9} d$ times at least $E[D^2]\, r^2$ and $E[D]\, r^2$.

    *Layers.* A layer with the share s of the rows has at most $s r^2$, or $4 s r^2$ of changes, on
    its diagonal. An entry is off by a share of the root of two of these at most: less than what is
    added on the diagonal, $4 \cdot 10^{-9} d s r^2$, or $4 \cdot 10^{-8} d s r^2$ of changes. Radii
    are off by e times the length that whitening can give r, and have $2 \cdot 10^{-9}$ times that.
    Where one of both has no layers, the rows are not known there, and only moments are compared.
    """
    if len(stored.layers) == 0 or len(other.layers) == 0:
        stored, other = stored.without_layers(), other.without_layers()
    mine, theirs = stored.arrays(), other.arrays()
    if any(mine[name].shape != array.shape for name, array in theirs.items()):
        return False
    spans = other.spans
    roots = np.sqrt(np.maximum(np.diagonal(other.layers, axis1=-2, axis2=-1), 0.0))
    length = np.linalg.norm(np.abs(other.metric) @ spans) if len(other.metric) else 0.0
    room = {
        "means": _AGREEMENT * spans,
        "cell_means": _AGREEMENT * spans,
        "covs": _AGREEMENT * np.outer(spans, spans),
        "coupled": _AGREEMENT * np.outer(spans, spans),
        "layers": _LAYER_AGREEMENT * roots[..., :, None] * roots[..., None, :],
        "radii": _AGREEMENT * length,
        "counts": _EXACTLY * other.counts,
        "squares": _EXACTLY * np.abs(other.squares),
        "plans": np.inf,
    }
    return stored.has_plans and all(
        bool((np.abs(mine[name] - array) <= room.get(name, 0.0)).all())
        for name, array in theirs.items()
    )


def couplings_by_cells(distributions: Sequence[RowDistribution]) -> list[str]:
    """Couplings by cells that are tried for rows of these kinds.

    Equal cells of every labelling, and near cells of the finest one that has few of them.
    """
    kinds = _kinds_of(distributions)
    names = [name for name in kinds[-1].cells if all(name in kind.cells for kind in kinds)]
    sizes = {name: len(_union(kinds, name)) for name in names}
    found = [f"{CELLS}{name}" for name, size in sizes.items() if size > 1]
    few = {name: size for name, size in sizes.items() if 1 < size <= math.isqrt(_MOST_PLANNED)}
    return found + ([f"{NEAR_CELLS}{max(few, key=few.__getitem__)}"] if few else [])


def _union(kinds: Sequence[RowDistribution], name: str) -> Integers:
    """Labels that rows of some kind have."""
    return np.unique(np.concatenate([kind.cells[name].cells for kind in kinds]))


def _cells_of(kinds: Sequence[RowDistribution], coupling: str) -> list[CellMoments]:
    """Moments of the cells that a coupling is by; none if it is by no cells."""
    none = np.zeros(0, dtype=np.int64)
    if coupling in {INDEPENDENT, TRANSPORT}:
        return [CellMoments(none, none, np.zeros((0, len(kinds[0].row_mean))))] * len(kinds)
    how, _, name = coupling.partition(":")
    if f"{how}:" not in {CELLS, NEAR_CELLS} or any(name not in kind.cells for kind in kinds):
        known = [INDEPENDENT, *couplings_by_cells(kinds), TRANSPORT]
        raise ArgumentError(f"coupling must be one of {listed(known)}, got {coupling!r}")
    return [kind.cells[name].among(_union(kinds, name)) for kind in kinds]


def _planned(
    cells: Sequence[CellMoments], pairs: Sequence[tuple[int, int]], shape: Shape | None
) -> Floats:
    """Probabilities of each two cells where cells meet that are close, in whitened coordinates."""
    found = [part.counts > 0 for part in cells]
    atoms = [
        FiniteDistribution(outputs=_whitened(part.means[some], shape), counts=part.counts[some])
        for part, some in zip(cells, found, strict=True)
    ]
    plans = np.zeros((len(pairs), len(found[0]), len(found[0])))
    for plan, (a, b) in zip(plans, pairs, strict=True):
        plan[np.ix_(found[a], found[b])] = least_plan(atoms[a], atoms[b])
    return plans


def _layers_of(
    kinds: Sequence[RowDistribution],
    pairs: Sequence[tuple[int, int]],
    coupling: str,
    metric: Floats,
    transported: Sequence[tuple[Floats, Floats]],
    plans: Floats,
) -> list[Layers]:
    """Layers of the rows of each kind and, where they are coupled, of the changes of each pair.

    Without the latter where rows meet by too many cells.
    """
    spans, number = kinds[0].boxes.spans, len(kinds)
    number += 0 if coupling == INDEPENDENT else len(pairs)
    sorting = Sorting(metric=metric, spans=spans, n_layers=n_layers_of(number, len(spans)))
    drawn = [sorting.of_kind(each.rows_at_hand, each.row_mean) for each in kinds]
    if coupling == TRANSPORT:
        means = [kinds[b].row_mean - kinds[a].row_mean for a, b in pairs]
        changes = zip(transported, means, strict=True)
        return drawn + [sorting.of_changes(*change, mean) for change, mean in changes]
    name = coupling.partition(":")[2]
    codes = [each.codes(name) for each in kinds]
    known = [code for code in codes if code is not None]
    if not name or len(known) < len(kinds):
        return drawn
    cells = np.unique(np.concatenate(known))
    if len(cells) > _MOST_LAYERED:
        return drawn
    coded = [
        (each.rows_at_hand, np.searchsorted(cells, code))
        for each, code in zip(kinds, known, strict=True)
    ]
    return drawn + sorting.of_cells(coded, pairs, len(cells), plans)


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
) -> list[tuple[Floats, Floats]]:
    """Changes and their probabilities where rows meet that are close."""
    found = transported_rows(kinds, pairs, shape)
    return [(second - first, masses) for first, second, masses in found]


def _whitened(rows: Floats, shape: Shape | None) -> Floats:
    return rows + 0.0 if shape is None else shape.whitened(rows, np.zeros(shape.dim))


def _row_of(points: Floats, atoms: Floats, rows: Floats) -> Floats:
    """The rows that were whitened to these points."""
    where = {atom.tobytes(): place for place, atom in enumerate(atoms)}
    return rows[[where[point.tobytes()] for point in points]]


def _symmetric(matrices: Floats) -> Floats:
    return np.asarray((matrices + np.swapaxes(matrices, -1, -2)) / 2)
