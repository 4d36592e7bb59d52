# SPDX-License-Identifier: Apache-2.0
"""Histograms of projections: the grid of bins, a distribution known by them, and their sums."""

import io
import math
from collections.abc import Iterable
from typing import Any, ClassVar, Final, Literal, Protocol, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, Integers, arrays_in, locked, locked_integers, same
from pufferslice._core.checks import check_count, check_finite, check_one_of, check_unit_rows
from pufferslice._core.files import canonical_json, digest, parsed_json
from pufferslice._core.text import given, listed_labels
from pufferslice.errors import ArgumentError, ScenarioError, StorageError

DEFAULT_BINS: Final = 4096
"""Bins along a direction: the range over this many is the resolution of a binned distribution."""

MOST_BINS: Final = 2**16
"""More bins would be finer than the single-precision projection."""

_SINGLE: Final = 2.0**-24
_ULP: Final = 2.0**-52
_VERSION: Final = 2
_ROWS_SIDE_BY_SIDE: Final = 64


def _owned(values: Any) -> Integers:  # whatever numpy can read as integers
    """As `locked_integers`, without a copy of an array that is read-only already."""
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and not values.flags.writeable:
        return np.ascontiguousarray(values)
    return locked_integers(values)


def _tuple(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(names)


@final
@attrs.frozen(kw_only=True, repr=False)
class BinGrid:
    """Equal bins along every direction, over the public range of the scaled query.

    The range is a box, or an ellipsoid with its axes along the coordinates (a scaled ball).

    >>> grid = BinGrid(directions=[[1.0]], center=[5.0], extents=[5.0], shape="box", n_bins=10)
    >>> grid.widths.round(6), round(grid.diameter, 6)
    (array([1.]), 10.0)
    """

    directions: Floats = attrs.field(converter=locked, eq=same)
    """Unit vectors in scaled coordinates, shape (n_directions, dim)."""
    center: Floats = attrs.field(converter=locked, eq=same)
    """Middle of the range, shape (dim,)."""
    extents: Floats = attrs.field(converter=locked, eq=same)
    """Half the width of the range along each coordinate, shape (dim,)."""
    shape: Literal["box", "ellipsoid"]
    n_bins: int
    reaches: Floats = attrs.field(init=False, eq=False)
    """Half the width of the range along each direction, rounded up."""

    def __attrs_post_init__(self) -> None:
        check_unit_rows(directions=self.directions)
        check_one_of(("box", "ellipsoid"), shape=self.shape)
        check_count(2, n_bins=self.n_bins)
        if self.n_bins > MOST_BINS:
            raise ArgumentError(f"n_bins must be at most {MOST_BINS}, got {self.n_bins}")
        if self.center.shape != (self.dim,) or self.extents.shape != (self.dim,):
            raise ArgumentError(
                f"center and extents must have shape ({self.dim},), as the directions have; got "
                f"{self.center.shape} and {self.extents.shape}"
            )
        check_finite(center=self.center, extents=self.extents)
        if not self.extents.min() > 0:
            raise ArgumentError(
                f"extents must be greater than 0, got {float(self.extents.min())!r}"
            )
        with np.errstate(over="ignore"):
            stretched = self.directions * self.extents
            is_box = self.shape == "box"
            sizes = np.abs(stretched).sum(1) if is_box else np.linalg.norm(stretched, axis=1)
            object.__setattr__(self, "reaches", locked(sizes * (1 + (self.dim + 4) * _ULP)))
        check_finite(reaches=self.reaches)

    @property
    def dim(self) -> int:
        """Dimension of the scaled query."""
        return int(self.directions.shape[1])

    @property
    def n_directions(self) -> int:
        """Number of directions."""
        return len(self.directions)

    @property
    def widths(self) -> Floats:
        """Width of a bin along each direction, shape (n_directions,)."""
        return 2 * self.reaches / self.n_bins

    @property
    def errors(self) -> Floats:
        r"""Bound on the rounding error of a projection along each direction, in its own units.

        In single precision with unit roundoff u, a sum of dim products of rounded factors, moved
        to the bins by one more addition, is off by at most $\gamma_{dim+4}$ times the reach,
        $\gamma_m = mu / (1 - mu)$, in whatever order it is summed; four more roundings are for the
        double-precision steps before it, and for rows that rounding leaves just outside.
        """
        roundings = (self.dim + 8) * _SINGLE
        return self.reaches * (roundings / (1 - roundings))

    @property
    def slacks(self) -> Floats:
        """How far a value may lie outside of its bin along each direction, rounding included."""
        return np.asarray(self.errors + 4 * _ULP * self.reaches)

    @property
    def ends(self) -> Floats:
        """The range along each direction, from its middle, rounded outwards: (n_directions, 2)."""
        reach = self.reaches + self.slacks
        return np.stack([-reach, reach], axis=1)

    @property
    def diameter(self) -> float:
        """At least the Euclidean diameter of the range, in scaled coordinates."""
        box = self.shape == "box"
        reach = math.hypot(*self.extents) if box else float(self.extents.max())
        return 2 * reach * (1 + (self.dim + 4) * _ULP)

    def gaps(self, n_apart: Integers, direction: int) -> Floats:
        """The largest distance of two values whose bins are `n_apart` apart along a direction."""
        width, error = self.widths[direction], self.errors[direction]
        return np.asarray(((n_apart + 1) * width + 2 * error) * (1 + 4 * _ULP))

    def holds(self, point: Floats) -> bool:
        """Whether a point of the scaled query lies in the range, up to rounding."""
        shares = np.abs(np.asarray(point) - self.center) / self.extents
        size = shares.max() if self.shape == "box" else np.linalg.norm(shares)
        return bool(size <= 1 + (self.dim + 4) * _ULP)

    def n_bytes(self, n_secrets: int) -> int:
        """Memory that the histograms of so many secrets take."""
        return 8 * n_secrets * self.n_directions * self.n_bins

    def digest(self) -> str:
        """SHA-256 over everything that decides the bin of a value."""
        arrays = (self.directions, self.center, self.extents)
        facts = f"{self.shape} {self.n_bins} {self.directions.shape}".encode()
        return digest(facts, *(array.astype(">f8").tobytes() for array in arrays))

    def __repr__(self) -> str:
        return (
            f"BinGrid(n_directions={self.n_directions}, dim={self.dim}, shape={self.shape!r}, "
            f"n_bins={self.n_bins})"
        )


class Strata(Protocol):
    """The rows of one secret, kept elsewhere in strata of equal mass; one is read at a time."""

    @property
    def n_rows(self) -> int:
        """Rows of the secret."""

    @property
    def n_strata(self) -> int:
        """Number of strata."""

    @property
    def dim(self) -> int:
        """Output dimension."""

    @property
    def digest(self) -> str:
        """SHA-256 over the rows and how they are cut."""

    def rows(self, stratum: int) -> Floats:
        """The prepared rows of one stratum, shape (n, dim)."""

    def masses(self, stratum: int) -> Integers:
        """The integer mass of each of these rows; their sum is the same in every stratum."""


def _digest_of(strata: Strata | None) -> str | None:
    return None if strata is None else strata.digest


@attrs.frozen(kw_only=True, repr=False)
class _Binned:
    """Rows that were counted in one histogram per direction.

    Ranks are exact; a value is known up to one bin and the rounding error of its projection.
    """

    mean: ClassVar[None] = None
    name: ClassVar[bytes]
    """What tells the types apart in a digest."""
    grid: BinGrid
    counts: Integers = attrs.field(converter=_owned, eq=same)
    """Rows in each bin, shape (n_directions, n_bins); every direction counts every row."""

    def __attrs_post_init__(self) -> None:
        _check_counts(self.counts[None], self.grid)
        if not self.total:
            raise ArgumentError("a binned distribution needs at least one row, got none")

    @property
    def dim(self) -> int:
        """Output dimension."""
        return self.grid.dim

    @property
    def total(self) -> int:
        """Number of rows: the denominator of all probabilities."""
        return int(self.counts[0].sum())

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return self.total

    def bounds(self, rows: slice, ranks: Integers) -> tuple[Floats, Floats]:
        """At most and at least the order statistics of these ranks, from 1 to n_samples.

        `rows` are directions; both results have shape (n_rows, n_ranks): the edges of the bins,
        with the error of the projection. Values are measured from the projected centre of the
        grid, the same for all distributions on it.
        """
        grid = self.grid
        bins = np.stack([np.searchsorted(np.cumsum(row), ranks) for row in self.counts[rows]])
        width, slack = grid.widths[rows, None], grid.slacks[rows, None]
        low = (bins - grid.n_bins / 2) * width - slack
        return low, (bins + 1 - grid.n_bins / 2) * width + slack

    def atoms(self) -> None:
        """None: the rows were not kept."""

    def draw(self, n_draws: int, *, rng: np.random.Generator) -> tuple[Floats, Integers]:
        """A `ScenarioError`: the rows were not kept."""
        del n_draws, rng
        raise ScenarioError(
            "streamed distributions keep counts and no values, so nothing can be drawn from them; "
            "audit with outputs that the mechanism itself made, see supplied_outputs"
        )

    def reduced(self) -> tuple[npt.NDArray[Any], ...]:
        """The counts in lowest terms."""
        return (self.counts // np.gcd.reduce(self.counts, axis=None),)

    def digest_parts(self) -> list[bytes]:
        """Grid and counts as bytes."""
        return [self.name, self.grid.digest().encode(), self.counts.tobytes()]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_samples={self.total}, grid={self.grid!r})"


@final
@attrs.frozen(kw_only=True, repr=False)
class BinnedDistribution(_Binned):
    """The empirical distribution of rows that were counted in bins.

    With `strata`, the rows themselves can be read again, to couple them.
    """

    kind: ClassVar[Literal["empirical"]] = "empirical"
    name: ClassVar[bytes] = b"binned"
    strata: Strata | None = attrs.field(default=None, eq=_digest_of)
    """The rows on disk; None if they were only counted."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        strata = self.strata
        if strata is not None and (strata.n_rows, strata.dim) != (self.total, self.dim):
            raise ArgumentError(
                "the strata must be of the rows that were counted: their number or dimension "
                "differs. Spill the rows again"
            )

    def digest_parts(self) -> list[bytes]:
        """Grid, counts and the digest of the strata as bytes."""
        strata = [] if self.strata is None else [b"strata", self.strata.digest.encode()]
        return super().digest_parts() + strata


@final
@attrs.frozen(kw_only=True, repr=False)
class SampledBinnedDistribution(_Binned):
    """A distribution that is known only through draws of it, which were counted in bins."""

    kind: ClassVar[Literal["sampled"]] = "sampled"
    name: ClassVar[bytes] = b"sampled, binned"


@final
@attrs.frozen(kw_only=True, repr=False)
class Histograms:
    """How many rows of each secret fall into each bin along each direction.

    Histograms of parts of the rows add up to those of all rows, in any order, bit for bit.
    """

    grid: BinGrid
    secrets: tuple[str, ...] = attrs.field(converter=_tuple)
    """The secrets that have rows, in alphabetical order."""
    counts: Integers = attrs.field(converter=_owned, eq=same)
    """Shape (n_secrets, n_directions, n_bins)."""
    n_dropped: int = 0
    """Rows left out because of missing values."""
    n_clipped: Integers = attrs.field(
        default=attrs.Factory(lambda self: np.zeros(len(self.secrets), np.int64), takes_self=True),
        converter=locked_integers,
        eq=same,
    )
    """Rows of each secret that the range moved, shape (n_secrets,)."""
    ends: Floats = attrs.field(
        default=attrs.Factory(lambda self: no_ends(self.grid.dim), takes_self=True),
        converter=locked,
        eq=same,
    )
    """Lowest and highest value of each coordinate before clipping, in the user's units, shape
    (2, dim); confidential. Infinite, the wrong way round, where no row was counted."""

    def __attrs_post_init__(self) -> None:
        if list(self.secrets) != sorted(set(self.secrets)):
            raise ArgumentError(
                "secrets must be different texts in alphabetical order; the "
                f"{len(self.secrets)} given are not"
            )
        check_count(0, n_dropped=self.n_dropped)
        if self.counts.ndim != 3 or len(self.counts) != len(self.secrets):
            raise ArgumentError(f"counts must have shape (n_secrets, ...); got {self.counts.shape}")
        if len(self.n_clipped) != len(self.secrets) or self.ends.shape != (2, self.grid.dim):
            raise ArgumentError(
                f"n_clipped must have shape ({len(self.secrets)},) and ends (2, {self.grid.dim}); "
                f"got {self.n_clipped.shape} and {self.ends.shape}"
            )
        _check_counts(self.counts, self.grid)

    @property
    def n_rows(self) -> dict[str, int]:
        """Rows of each secret; confidential."""
        totals = self.counts[:, 0].sum(axis=1)
        return {secret: int(n) for secret, n in zip(self.secrets, totals, strict=True)}

    def distribution(self, secret: str) -> BinnedDistribution:
        """The distribution of the rows of one secret."""
        if secret not in self.secrets:
            known = listed_labels(self.n_rows)
            raise ArgumentError(f"there is no secret {given(secret)}; the secrets are {known}")
        return BinnedDistribution(grid=self.grid, counts=self.counts[self.secrets.index(secret)])

    def distributions(self) -> dict[str, BinnedDistribution]:
        """The distribution of every secret."""
        return {secret: self.distribution(secret) for secret in self.secrets}

    def to_bytes(self) -> bytes:
        """The histograms as a numpy archive, without pickles; confidential."""
        file = io.BytesIO()
        grid = self.grid
        facts = {
            "version": _VERSION,
            "secrets": self.secrets,
            "n_dropped": self.n_dropped,
            "shape": grid.shape,
            "n_bins": grid.n_bins,
        }
        arrays: dict[str, Any] = {
            "facts": np.frombuffer(canonical_json(facts), dtype=np.uint8),
            "directions": grid.directions,
            "center": grid.center,
            "extents": grid.extents,
            "counts": self.counts,
            "n_clipped": self.n_clipped,
            "ends": self.ends,
        }
        np.savez(file, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Histograms":
        """Read back what `to_bytes` wrote; anything else is a `StorageError`."""
        try:
            arrays = arrays_in(content)
            facts = parsed_json(arrays.pop("facts").tobytes())
            if facts["version"] != _VERSION:
                version = given(facts["version"])
                raise StorageError(
                    f"the histograms have version {version}, not {_VERSION}; scan again"
                )
            grid_arrays = {name: arrays.pop(name) for name in ("directions", "center", "extents")}
            arrays["counts"].setflags(write=False)
            return cls(
                grid=BinGrid(shape=facts["shape"], n_bins=facts["n_bins"], **grid_arrays),
                secrets=facts["secrets"],
                n_dropped=facts["n_dropped"],
                **arrays,
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise StorageError(
                "the histograms cannot be read: they are damaged or something else "
                f"({type(error).__name__}). Scan the data again"
            ) from None

    def __repr__(self) -> str:
        return f"Histograms(n_secrets={len(self.secrets)}, grid={self.grid!r})"


def added(parts: Iterable[Histograms]) -> Histograms:
    """The histograms of all parts together; they must be on one grid.

    Guarantee: integers are added, so neither the order nor the way of cutting matters.
    """
    histograms = list(parts)
    if not histograms:
        raise ArgumentError("at least one histogram is needed, got none")
    grid = histograms[0].grid
    if any(part.grid != grid for part in histograms[1:]):
        raise ArgumentError(
            "histograms can be added only on one grid: the same directions, range and bins. Make "
            "them with one scan"
        )
    secrets = sorted({secret for part in histograms for secret in part.secrets})
    where = {secret: index for index, secret in enumerate(secrets)}
    counts = np.zeros((len(secrets), grid.n_directions, grid.n_bins), dtype=np.int64)
    n_clipped = np.zeros(len(secrets), dtype=np.int64)
    for part in histograms:
        places = [where[secret] for secret in part.secrets]
        n_clipped[places] += part.n_clipped
        for place, rows in zip(places, part.counts, strict=True):
            counts[place] += rows
    counts.setflags(write=False)
    return Histograms(
        grid=grid,
        secrets=tuple(secrets),
        counts=counts,
        n_dropped=sum(part.n_dropped for part in histograms),
        n_clipped=n_clipped,
        ends=joined_ends(part.ends for part in histograms),
    )


def no_ends(dim: int) -> Floats:
    """The ends of no values at all; shape (2, dim)."""
    return np.array([[math.inf] * dim, [-math.inf] * dim])


def ends_of(values: Floats) -> Floats:
    """Lowest and highest value of each coordinate; shape (2, dim)."""
    dim = values.shape[1]
    # Many rows side by side: numpy reduces long rows much faster than short ones.
    n_wide = len(values) // _ROWS_SIDE_BY_SIDE * _ROWS_SIDE_BY_SIDE
    wide = values[:n_wide].reshape(-1, _ROWS_SIDE_BY_SIDE * dim)
    lowest, highest = values[n_wide:], values[n_wide:]
    if n_wide:
        lowest = np.vstack([lowest, wide.min(axis=0).reshape(-1, dim)])
        highest = np.vstack([highest, wide.max(axis=0).reshape(-1, dim)])
    return np.stack([lowest.min(axis=0), highest.max(axis=0)])


def central_ends(values: Floats, counts: Integers) -> Floats:
    """The 2 % and 98 % quantile of each coordinate; shape (2, dim)."""
    return np.quantile(values, [0.02, 0.98], axis=0, weights=counts, method="inverted_cdf")


def joined_ends(parts: Iterable[Floats]) -> Floats:
    """Lowest and highest value of each coordinate over all parts, each of shape (2, dim)."""
    ends = np.stack(list(parts))
    return np.stack([ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)])


def _check_counts(counts: Integers, grid: BinGrid) -> None:
    if counts.shape[1:] != (grid.n_directions, grid.n_bins):
        wanted = (grid.n_directions, grid.n_bins)
        raise ArgumentError(
            f"counts must have shape {wanted} for each secret, got {counts.shape[1:]}"
        )
    if counts.size and counts.min() < 0:
        raise ArgumentError(f"counts must not be negative, the smallest is {counts.min()}")
    totals = counts.sum(axis=2)
    if (totals != totals[:, :1]).any():
        raise ArgumentError(
            "every direction must count every row once; the sums differ between directions"
        )
