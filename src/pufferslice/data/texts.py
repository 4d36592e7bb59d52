# SPDX-License-Identifier: Apache-2.0
"""Facts about columns of text that do not depend on the order of rows, wherever these are."""

from collections.abc import Sequence
from typing import Any

import narwhals as nw

from pufferslice.data.engines import Lazy, asked, collected, schema_of
from pufferslice.data.frames import Frame
from pufferslice.data.handed import HandedSums
from pufferslice.data.tables import Rows, frames_of

_TEXTS = (nw.String, nw.Categorical, nw.Enum)


def text_facts(rows: Rows, columns: Sequence[str]) -> tuple[int, dict[str, list[int]]]:
    """Number of rows and, by column of text, that of different texts and their total length.

    Of a table of an engine by one query.

    >>> from pufferslice.data.tables import rows_of
    >>> import pyarrow as pa
    >>> text_facts(rows_of(pa.table({"site": ["a", "bc", None, "a"]})), ["site"])
    (4, {'site': [2, 4]})
    """
    if isinstance(rows, HandedSums):
        return rows.n_rows(), {}
    if isinstance(rows, nw.LazyFrame):
        return _asked(rows, columns)
    n_rows, lengths = 0, dict.fromkeys(columns, 0)
    different: dict[str, set[str]] = {column: set() for column in columns}
    texts: set[str] = set()
    for frame in frames_of(rows, columns):
        n_rows += len(frame)
        for column in columns:
            found = _texts(frame, column)
            if found is not None:
                texts.add(column)
                lengths[column] += int(found.str.len_chars().sum())
                different[column].update(found.unique().to_list())
    return n_rows, {c: [len(different[c]), lengths[c]] for c in columns if c in texts}


def _texts(frame: Frame, column: str) -> "nw.Series[Any] | None":
    series = frame[column]
    return series.drop_nulls().cast(nw.String) if isinstance(series.dtype, _TEXTS) else None


def _asked(lazy: Lazy, columns: Sequence[str]) -> tuple[int, dict[str, list[int]]]:
    schema = schema_of(lazy)
    texts = [column for column in columns if isinstance(schema[column], _TEXTS)]
    aggregates = [nw.len().alias("n")]
    for place, column in enumerate(texts):
        text = nw.col(column)
        if not isinstance(schema[column], nw.String):
            text = text.cast(nw.String)
        # What is different may count null as well.
        gap = nw.when(text.is_null()).then(nw.lit(1)).otherwise(nw.lit(0))
        aggregates += [
            text.n_unique().alias(f"different{place}"),
            text.str.len_chars().sum().alias(f"length{place}"),
            gap.max().alias(f"gap{place}"),
        ]
    with asked(lazy):
        summed = lazy.select(*aggregates)
    found = {name: int(value or 0) for name, (value,) in collected(summed).items()}
    return found["n"], {
        column: [found[f"different{k}"] - found[f"gap{k}"], found[f"length{k}"]]
        for k, column in enumerate(texts)
    }
