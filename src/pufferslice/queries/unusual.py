# SPDX-License-Identifier: Apache-2.0
"""What clipping and filling change in a column, wherever the table is."""

from collections import Counter
from collections.abc import Mapping
from typing import final

import attrs
import narwhals as nw
import numpy as np

from pufferslice._core.display import rounded
from pufferslice._core.text import shown
from pufferslice.data.engines import asked, collected
from pufferslice.data.frames import Frame, complete_part
from pufferslice.data.handed import HandedSums
from pufferslice.data.tables import Rows, frames_of
from pufferslice.errors import TableError
from pufferslice.queries.expressions import Expressions
from pufferslice.queries.partition import finite_numbers
from pufferslice.queries.sources import Source


@final
@attrs.frozen(kw_only=True)
class Unusual:
    """What clipping and filling change in a column: for the data holder, and confidential."""

    column: str
    n_rows: int
    n_missing: int
    """Rows without a finite value, which count as the public one."""
    n_clipped: int
    """Rows with a value outside of the clip range."""
    mean_before: float | None
    """Mean of the finite values; None for a column of labels, or without any."""
    mean_after: float | None
    """Mean of the same values, clipped: the difference is the bias that clipping costs."""

    def __str__(self) -> str:
        parts = []
        if self.n_missing:
            parts.append(f"{self.n_missing:,} of {self.n_rows:,} rows have no value")
        if self.n_clipped and self.mean_before is not None and self.mean_after is not None:
            parts.append(
                f"{self.n_clipped:,} of {self.n_rows:,} values are clipped, and the mean "
                f"{rounded(self.mean_before)} becomes {rounded(self.mean_after)}"
            )
        return f"{shown(self.column)}: {'; '.join(parts) or 'nothing is clipped or missing'}"


Read = Mapping[str, Source | None]
"""Columns that are read as numbers, and None for those that are compared as labels."""


def unusual_values(rows: Rows, columns: Read) -> tuple[Unusual, ...]:
    """Count what is missing, and what clipping changes, in each of some columns."""
    sums: Counter[str] = Counter()
    if isinstance(rows, HandedSums):
        raise TableError("sums of rows do not show which values are missing; give the table")
    if isinstance(rows, nw.LazyFrame):
        sums.update(_asked(Expressions.of(rows, list(columns)), columns))
    else:
        for frame in frames_of(rows, list(columns)):
            sums.update(_read(frame, columns))
    found = []
    for place, (column, source) in enumerate(columns.items()):
        n_present = sums[f"present{place}"]
        has_means = source is not None and n_present > 0
        found.append(
            Unusual(
                column=column,
                n_rows=int(sums["n"]),
                n_missing=int(sums["n"] - n_present),
                n_clipped=int(sums[f"clipped{place}"]),
                mean_before=sums[f"before{place}"] / n_present if has_means else None,
                mean_after=sums[f"after{place}"] / n_present if has_means else None,
            )
        )
    return tuple(found)


def _read(frame: Frame, columns: Read) -> dict[str, float]:
    """Sums over the rows of a frame."""
    sums: dict[str, float] = {"n": len(frame)}
    for place, (column, source) in enumerate(columns.items()):
        if source is None:
            is_float = frame[column].dtype.is_float()
            present = complete_part(frame, column, finite=is_float)[1]
            sums[f"present{place}"] = int(np.count_nonzero(present))
            continue
        numbers = finite_numbers(frame, column)
        finite = numbers[~np.isnan(numbers)]
        clipped = np.clip(finite, source.low, source.high)
        sums[f"present{place}"] = len(finite)
        sums[f"clipped{place}"] = int(np.count_nonzero(clipped != finite))
        sums[f"before{place}"], sums[f"after{place}"] = float(finite.sum()), float(clipped.sum())
    return sums


def _asked(of: Expressions, columns: Read) -> dict[str, float]:
    """The same sums over the rows of an engine's table, in one query."""
    one, zero = nw.lit(1), nw.lit(0)
    values: dict[str, nw.Expr] = {}
    for place, (column, source) in enumerate(columns.items()):
        known = of.is_known(column)
        values[f"present{place}"] = nw.when(known).then(one).otherwise(zero)
        if source is not None:
            raw = of.doubles(column)
            clipped = raw.clip(source.low, source.high)
            values[f"clipped{place}"] = nw.when(known, raw != clipped).then(one).otherwise(zero)
            values[f"before{place}"] = nw.when(known).then(raw).otherwise(nw.lit(0.0))
            values[f"after{place}"] = nw.when(known).then(clipped).otherwise(nw.lit(0.0))
    with asked(of.lazy):
        summed = of.lazy.select(**values).select(
            nw.len().alias("n"), *(nw.col(name).sum() for name in values)
        )
    return {name: float(value or 0) for name, (value,) in collected(summed).items()}
