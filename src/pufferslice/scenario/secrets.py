# SPDX-License-Identifier: Apache-2.0
"""The secret of a row: the value of one column, of several columns, or a bin of a number."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import check_count, check_finite, check_unique, is_a
from pufferslice._core.text import given
from pufferslice.data.frames import Frame, floats_of, label_of, labels_of
from pufferslice.errors import ArgumentError, ScenarioError

_BETWEEN: Final = " & "


def _edges(edges: Sequence[float]) -> tuple[float, ...]:
    """Read public inner edges, at least one, ascending."""
    if is_a(edges, str) or not is_a(edges, Sequence | np.ndarray) or not len(edges):
        raise ArgumentError(f"edges must list at least one number, got {given(edges)}")
    numbers = locked(edges)
    check_finite(edges=numbers)
    if numbers.ndim != 1 or (numbers[1:] <= numbers[:-1]).any():
        raise ArgumentError("edges must be a list of ascending numbers, each once")
    return tuple(numbers.tolist())


@final
@attrs.frozen(kw_only=True)
class Bins:
    """A secret that is a bin of a numeric column: of quantiles, or between public edges.

    >>> Bins(column="G3", quantiles=5)
    Bins(column='G3', quantiles=5, edges=None)
    >>> Bins(column="G3", edges=[5, 10])
    Bins(column='G3', quantiles=None, edges=(5.0, 10.0))
    """

    column: str
    quantiles: int | None = None
    """Number of bins, each with as many rows as the others; their edges are data."""
    edges: tuple[float, ...] | None = attrs.field(
        default=None, converter=attrs.converters.optional(_edges)
    )
    """Public inner edges, ascending; a value on an edge belongs to the upper bin."""

    def __attrs_post_init__(self) -> None:
        if not is_a(self.column, str):
            raise ArgumentError(f"column must be the name of a column, got {given(self.column)}")
        if (self.quantiles is None) == (self.edges is None):
            raise ArgumentError("bins need quantiles, or edges: one of the two")
        if self.quantiles is not None:
            check_count(2, quantiles=self.quantiles)


@final
@attrs.frozen(kw_only=True)
class ColumnSecret:
    """Secret of a row that is its value in one column, or its values in several."""

    columns: tuple[str, ...]

    def labels(self, frame: Frame) -> npt.NDArray[np.str_]:
        """The secret of every row."""
        parts = [labels_of(frame, column) for column in self.columns]
        if len(parts) == 1:
            return parts[0]
        for column, part in zip(self.columns, parts, strict=True):
            # With a space on both sides, so that "a &" and "& b" are refused too.
            if any(_BETWEEN in f" {label} " for label in set(part.tolist())):
                raise ScenarioError(
                    f"column {column!r} has labels with {_BETWEEN!r}, which joins the columns of a "
                    "secret; two secrets could become one. Rename these labels"
                )
        joined = [_BETWEEN.join(row) for row in zip(*parts, strict=True)]
        return np.array(joined, dtype=np.str_)

    def description(self) -> dict[str, Any]:
        """Statement of the certificate about the secret."""
        return {"columns": list(self.columns)}


@final
@attrs.frozen(kw_only=True)
class BinSecret:
    """Secret of a row that is the bin of one number, between fixed edges."""

    column: str
    edges: Floats = attrs.field(converter=locked, eq=same, repr=False)
    """Inner edges, ascending; a value on an edge belongs to the lower bin. Confidential."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (self.column,)

    @property
    def n_bins(self) -> int:
        """Number of bins."""
        return len(self.edges) + 1

    def labels(self, frame: Frame) -> npt.NDArray[np.str_]:
        """The secret of every row: `q1` for the lowest bin."""
        positions = np.searchsorted(self.edges, floats_of(frame, self.column), side="left")
        names = np.array([f"{self.column} q{i + 1}/{self.n_bins}" for i in range(self.n_bins)])
        return names[positions]

    def description(self) -> dict[str, Any]:
        """Statement of the certificate about the secret, without the edges, which are data."""
        return {"columns": [self.column], "quantiles": self.n_bins}


@final
@attrs.frozen(kw_only=True)
class EdgeSecret:
    """Secret of a row that is the bin of one number, between public edges."""

    column: str
    edges: tuple[float, ...]
    """Inner edges, ascending; a value on an edge belongs to the upper bin."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (self.column,)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the bins, from the lowest.

        >>> EdgeSecret(column="G3", edges=(5.0, 10.0)).names
        ('G3 < 5', '5 <= G3 < 10', 'G3 >= 10')
        """
        ends = [label_of(edge) for edge in self.edges]
        between = [f"{low} <= {self.column} < {high}" for low, high in pairwise(ends)]
        return (f"{self.column} < {ends[0]}", *between, f"{self.column} >= {ends[-1]}")

    def labels(self, frame: Frame) -> npt.NDArray[np.str_]:
        """The secret of every row."""
        places = np.searchsorted(self.edges, floats_of(frame, self.column), side="right")
        return np.array(self.names)[places]

    def description(self) -> dict[str, Any]:
        """Statement of the certificate about the secret."""
        return {"columns": [self.column], "edges": list(self.edges)}


SecretRule = ColumnSecret | BinSecret | EdgeSecret


def secret_columns(secret: str | Sequence[str] | Bins) -> tuple[str, ...]:
    """The columns that a declared secret reads."""
    if isinstance(secret, Bins):
        return (secret.column,)
    # The values of a column would be read as the names of columns.
    named = isinstance(secret, str | list | tuple)
    columns = (secret,) if isinstance(secret, str) else tuple(secret if named else ())
    if not columns or not all(is_a(column, str) and column for column in columns):
        raise ArgumentError(
            f"secret must name one column, several columns, or be Bins; got {given(secret)}"
        )
    check_unique("secret columns", columns)
    return columns


def secret_rule(secret: str | Sequence[str] | Bins, frames: Sequence[Frame]) -> SecretRule:
    """Make a rule of the declared secret; quantiles are those of all frames together."""
    columns = secret_columns(secret)
    if not isinstance(secret, Bins):
        return ColumnSecret(columns=columns)
    if secret.quantiles is None:
        return EdgeSecret(column=secret.column, edges=secret.edges or ())
    values = np.concatenate([floats_of(frame, secret.column) for frame in frames])
    if secret.quantiles > len(values):
        raise ScenarioError(
            f"quantiles={secret.quantiles} are more than the rows, so that bins would be empty; "
            "use fewer quantiles"
        )
    shares = np.arange(1, secret.quantiles) / secret.quantiles
    edges = np.quantile(values, shares)
    rule = BinSecret(column=secret.column, edges=edges)
    filled = np.bincount(np.searchsorted(edges, values, side="left"), minlength=rule.n_bins)
    if filled.min() == 0:
        raise ScenarioError(
            f"quantiles={secret.quantiles} leaves {int((filled == 0).sum())} bins of column "
            f"{secret.column!r} empty, because values are tied; use fewer quantiles"
        )
    return rule
