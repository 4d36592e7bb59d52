# SPDX-License-Identifier: Apache-2.0
"""Tables that are read in batches, as often as needed: larger than memory, without an engine."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias, final

import attrs
import narwhals as nw
import pyarrow as pa

from pufferslice.data.frames import Frame, check_names, frame_of

ROWS_PER_BATCH: Final = 2**16
"""Rows that are in memory at once."""


class Batches(Protocol):
    """A table whose rows come in batches, the same each time."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""

    def frames(self, columns: Sequence[str]) -> Iterator[Frame]:
        """Read columns of the rows, at least one of them."""

    def n_rows(self) -> int:
        """Count the rows."""


Dataset: TypeAlias = Any
"""A dataset of pyarrow, which is imported by whoever has one."""


@final
@attrs.frozen(repr=False, eq=False)
class DatasetBatches:
    """The batches of a dataset of pyarrow: files, folders or stores that it knows."""

    dataset: Dataset

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        names: list[str] = self.dataset.schema.names
        check_names(names)
        return names

    def frames(self, columns: Sequence[str]) -> Iterator[Frame]:
        """Read columns of the rows, at least one of them."""
        for batch in self.dataset.to_batches(columns=[*columns], batch_size=ROWS_PER_BATCH):
            if batch.num_rows:
                yield frame_of(pa.Table.from_batches([batch]))

    def n_rows(self) -> int:
        """Count the rows."""
        return int(self.dataset.count_rows())


def batches_of(table: object) -> Batches | None:
    """The table as batches, if it is a dataset of pyarrow; None for anything else.

    >>> import pyarrow.dataset
    >>> batches_of(pyarrow.dataset.dataset(pa.table({"age": [30, 40]}))).n_rows()
    2
    """
    datasets = sys.modules.get("pyarrow.dataset")
    if datasets is not None and isinstance(table, datasets.Dataset):
        return DatasetBatches(table)
    return None


@final
@attrs.frozen(repr=False, eq=False)
class WithConstant:
    """Batches with one more column, which is the same in every row."""

    batches: Batches
    name: str
    value: Any

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [*dict.fromkeys([*self.batches.columns, self.name])]

    def frames(self, columns: Sequence[str]) -> Iterator[Frame]:
        """Read columns of the rows, at least one of them."""
        read = [column for column in columns if column != self.name]
        for frame in self.batches.frames(read or self.batches.columns[:1]):
            yield frame.with_columns(nw.lit(self.value).alias(self.name))

    def n_rows(self) -> int:
        """Count the rows."""
        return self.batches.n_rows()
