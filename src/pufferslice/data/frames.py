# SPDX-License-Identifier: Apache-2.0
"""Any dataframe as one frame type, and its columns as arrays.

Nothing is repaired: missing, infinite and mixed values are counted and refused, and no message
shows a value of the table.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final, Literal, NoReturn

import narwhals as nw
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from narwhals.exceptions import DuplicateError

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_one_of
from pufferslice._core.text import MOST_SHOWN, given, listed, quoted
from pufferslice.errors import TableError

Frame = nw.DataFrame[Any]
"""A table of any supported library, seen through narwhals."""

MISSING_POLICIES = ("refuse", "drop-rows", "middle")
"""Policies for rows with missing values; the last is for sums of clipped rows."""
FILL_OR_DROP: Final = (
    'Fill them in, or leave those rows out: missing = "drop-rows" under [data] of a scenario file, '
    'query.with_missing("drop-rows") in Python; the number left out is stated'
)

CalendarPart = Literal["hour", "weekday", "day", "week", "month", "quarter", "year"]

WEEKDAYS: Final = (
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
)

_LEAST_UNSURE = 2.0**53
"""Least integer from which on different integers may be the same float."""

_ACCEPTED = "a pandas or polars DataFrame, a pyarrow Table, or a numpy structured array"


def frame_of(table: object) -> Frame:
    """Wrap the table as a frame, without a copy where its library allows.

    Takes pandas, polars, pyarrow, numpy structured or record arrays, and narwhals frames; needs
    at least one row, at least one column, and column names that are different strings.

    >>> import pyarrow as pa
    >>> frame_of(pa.table({"age": [30, 40], "race": ["A", "B"]})).shape
    (2, 2)
    """
    frame = _frame_of_records(table) if isinstance(table, np.ndarray) else _frame_of_native(table)
    check_names(frame.columns)
    n_rows, n_columns = frame.shape
    if not n_columns or not n_rows:
        raise TableError(
            f"the table is empty: {n_rows} rows, {n_columns} columns; it needs at least one each"
        )
    return frame


def floats_of(frame: Frame, name: str) -> Floats:
    """Convert a column of numbers, or of True and False, to float64.

    Refuses unknown, non-numeric and all-missing columns, and missing or infinite values.

    >>> import pyarrow as pa
    >>> floats_of(frame_of(pa.table({"age": [30, 40]})), "age")
    array([30., 40.])
    """
    series = _complete_column(frame, name)
    plain = plain_values(series)
    if plain.dtype.kind not in "biuf":
        _refuse_kind(series, name)
    floats = np.asarray(plain, dtype=np.float64)
    infinite = int(np.count_nonzero(np.isinf(floats)))
    if infinite:
        raise TableError(
            f"column {name!r} has {infinite} infinite values in {len(floats)} rows; remove them"
        )
    return floats


def _refuse_kind(series: nw.Series[Any], name: str) -> NoReturn:
    raise TableError(
        f"column {name!r} must hold numbers, but its type is {_kind(series)}. Choose another "
        "column or convert it, also from decimal commas to points; if a text such as '?' "
        "stands for a missing value in a file, name it in null_values"
    )


def labels_of(frame: Frame, name: str) -> npt.NDArray[np.str_]:
    """Convert a column to strings, for secrets and conditions; numbers print as by `label_of`.

    Different values of a column have different labels. Refuses missing values.

    >>> import pyarrow as pa
    >>> labels_of(frame_of(pa.table({"site": [1.0, 2.5]})), "site").tolist()
    ['1', '2.5']
    """
    labels, codes = coded_labels(frame, name)
    return labels[codes]


def coded_labels(frame: Frame, name: str) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.intp]]:
    """The different labels of a column, and the place of that of each row among them.

    >>> import pyarrow as pa
    >>> labels, codes = coded_labels(frame_of(pa.table({"site": ["b", "a", "b"]})), "site")
    >>> labels.tolist(), codes.tolist()
    (['b', 'a'], [0, 1, 0])
    """
    series = _complete_column(frame, name)
    if isinstance(series.dtype, nw.Categorical | nw.Enum):
        series = _category_texts(series, name)
    if isinstance(series.dtype, nw.String):
        return _coded_texts(series, name)
    plain = plain_values(series)
    if plain.dtype.kind not in "biuf":
        raise TableError(
            f"column {name!r} must hold text, numbers or True/False to be read as labels, but its "
            f"type is {_kind(series)}; convert it to text"
        )
    values, positions = np.unique(plain, return_inverse=True)
    finite = values[np.isfinite(values)]
    if values.dtype.kind == "f" and (np.abs(finite).astype(np.float64) >= _LEAST_UNSURE).any():
        raise TableError(
            f"column {name!r} has labels of 2^53 or more among real numbers, where different "
            "integers may be the same float, so two labels could become one; convert it to text"
        )
    return np.array([label_of(value) for value in values], dtype=np.str_), positions


def _coded_texts(
    series: nw.Series[Any], name: str
) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.intp]]:
    array: Any = pc.cast(series.to_arrow(), pa.large_string())
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    coded = array.dictionary_encode()
    different = nw.from_native(pa.chunked_array([coded.dictionary]), series_only=True)
    texts = values_of(different, name)
    # numpy drops trailing NULs from text, which would make two labels one.
    if any("\0" in text for text in texts):
        raise TableError(f"column {name!r} has labels with a NUL character; remove it")
    return np.array(texts, dtype=np.str_), np.asarray(coded.indices.to_numpy(), dtype=np.intp)


def calendar_of(frame: Frame, name: str, part: CalendarPart) -> npt.NDArray[np.str_]:
    """The part of the calendar that each time of a column is in, as a label.

    Hours are `0` to `23`, weekdays `Monday`, days `2026-01-31`, weeks `2026-W05` (ISO 8601), months
    `2026-01`, quarters `2026-Q1`, years `2026`. Of times with a time zone it is that of the zone.
    Refuses missing values.

    >>> import pyarrow as pa
    >>> from datetime import date
    >>> frame = frame_of(pa.table({"start": [date(2026, 1, 31)]}))
    >>> [calendar_of(frame, "start", part).item() for part in ("weekday", "week", "quarter")]
    ['Saturday', '2026-W05', '2026-Q1']
    """
    series = _complete_column(frame, name)
    allowed = (nw.Datetime,) if part == "hour" else (nw.Datetime, nw.Date)
    if not isinstance(series.dtype, allowed):
        what = "times" if part == "hour" else "dates or times"
        raise TableError(
            f"column {name!r} must hold {what}, but its type is {_kind(series)}; convert it (in a "
            "CSV file, 2026-01-31 or 2026-01-31 18:30)"
        )
    if part == "hour":
        return np.asarray(series.dt.hour().to_numpy()).astype(np.str_)
    # Few days are written out: a table has fewer of them than rows.
    days, places = np.unique(_days_of(series), return_inverse=True)
    return np.array([_calendar_label(each, part) for each in days.tolist()], dtype=np.str_)[places]


def _days_of(series: nw.Series[Any]) -> npt.NDArray[np.datetime64]:
    """The local day of each time."""
    year, month, day = (
        np.asarray(numbers.to_numpy(), dtype=np.int64)
        for numbers in (series.dt.year(), series.dt.month(), series.dt.day())
    )
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    return np.asarray(months.astype("datetime64[D]") + (day - 1))


def _calendar_label(day: date, part: CalendarPart) -> str:
    year, week, weekday = day.isocalendar()
    return {
        "weekday": WEEKDAYS[weekday - 1],
        "day": day.isoformat(),
        "week": f"{year:04}-W{week:02}",
        "month": f"{day.year:04}-{day.month:02}",
        "quarter": f"{day.year:04}-Q{(day.month + 2) // 3}",
        "year": f"{day.year:04}",
    }[part]


def order_of(frame: Frame, name: str) -> npt.NDArray[np.intp]:
    """The rank of each row by a column of dates, times or numbers; equal values have one rank."""
    series = _complete_column(frame, name)
    if not (series.dtype.is_numeric() or isinstance(series.dtype, nw.Datetime | nw.Date)):
        raise TableError(
            f"column {name!r} must hold dates, times or numbers, but its type is {_kind(series)}; "
            "convert it"
        )
    return np.unique(series.to_numpy(), return_inverse=True)[1].reshape(-1)


def label_of(value: object) -> str:
    """A single value as a label: integers without a trailing `.0`, `True` and `False`.

    >>> label_of(3.0), label_of(0.5), label_of(True), label_of(">50K")
    ('3', '0.5', 'True', '>50K')
    """
    if isinstance(value, float | np.floating) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return str(value)


def check_columns(frame: Frame, names: Sequence[str]) -> None:
    """Check that every name is a column of the frame."""
    check_known(frame.columns, names)


def check_known(columns: Sequence[str], names: Sequence[str]) -> None:
    """Check that every name is one of the columns of a table."""
    for name in names:
        if name not in columns:
            close = difflib.get_close_matches(str(name), columns, n=1)
            hint = f" Did you mean {quoted(close[0])}?" if close else ""
            raise TableError(f"there is no column {given(name)}.{hint} {columns_shown(columns)}")


def columns_shown(names: Sequence[str]) -> str:
    """Name some columns in a message; none if the names may be the values of a row."""
    if any(map(_is_number, names)):
        return (
            f"The names of the {len(names)} columns are not shown, because some are numbers: the "
            "first row of the file may be missing its header"
        )
    return f"The columns are {listed(names)}"


def missing_rows(frame: Frame, columns: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Find the rows that have a null or NaN in any of the columns.

    >>> import pyarrow as pa
    >>> missing_rows(frame_of(pa.table({"age": [30, None], "pay": [1.5, 2.5]})), ["age", "pay"])
    array([False,  True])
    """
    check_columns(frame, columns)
    missing = np.zeros(len(frame), dtype=np.bool_)
    for name in columns:
        missing |= _missing_values(frame[name])
    return missing


def complete_part(
    frame: Frame, name: str, *, finite: bool = False
) -> tuple[Frame, npt.NDArray[np.bool_]]:
    """Select a column where it has a value; also return which rows these are.

    With `finite` an infinite number counts as missing. A column of another type than numbers is
    refused then, whatever its values.

    >>> import pyarrow as pa
    >>> rows, present = complete_part(frame_of(pa.table({"age": [30, None, 50]})), "age")
    >>> len(rows), present.tolist()
    (2, [True, False, True])
    """
    missing = missing_rows(frame, [name])
    part, series = frame.select(name), frame[name]
    if finite:
        dtype = series.dtype
        if not (dtype.is_numeric() or isinstance(dtype, nw.Boolean | nw.Object | nw.Unknown)):
            _refuse_kind(series, name)
        if dtype.is_float():
            missing |= ~np.isfinite(np.asarray(series.to_numpy(), dtype=np.float64))
    return (part if not missing.any() else part[np.flatnonzero(~missing)]), ~missing


def without_missing(
    frame: Frame, columns: Sequence[str], missing: str, *, remedy: str = FILL_OR_DROP
) -> tuple[Frame, int]:
    """Apply the policy `missing` to the frame; also return how many rows were dropped.

    `refuse` raises if any of the columns has a missing value; `drop-rows` leaves those rows out.

    >>> import pyarrow as pa
    >>> frame = frame_of(pa.table({"age": [30, None, 50]}))
    >>> kept, n_dropped = without_missing(frame, ["age"], "drop-rows")
    >>> len(kept), n_dropped
    (2, 1)
    """
    check_one_of(MISSING_POLICIES, missing=missing)
    if missing == "middle":
        raise TableError(
            "a missing value counts as the middle of its range only in sums of clipped rows "
            f"(from_prevalence, from_volume). {FILL_OR_DROP}"
        )
    rows = missing_rows(frame, columns)
    n_missing = int(np.count_nonzero(rows))
    if n_missing == 0:
        return frame, 0
    if missing == "refuse":
        counts = {name: int(np.count_nonzero(_missing_values(frame[name]))) for name in columns}
        named = counted({name: count for name, count in counts.items() if count})
        raise TableError(
            f"{n_missing} of {len(frame)} rows have missing values ({named}). {remedy}"
        )
    if n_missing == len(frame):
        named = listed(columns)
        raise TableError(
            f"every one of the {len(frame)} rows has a missing value in {named}: nothing is left. "
            "Fill them in, or choose other columns"
        )
    return frame[np.flatnonzero(~rows)], n_missing


def _frame_of_native(table: object) -> Frame:
    if isinstance(table, nw.DataFrame):
        return table
    try:
        return nw.from_native(table, eager_only=True)
    except DuplicateError:
        raise TableError(
            "column names must be different from each other; rename the repeated ones"
        ) from None
    except TypeError:
        kind = f"{type(table).__module__}.{type(table).__qualname__}"
        raise TableError(
            f"a table must be {_ACCEPTED}; got {kind}. Collect a lazy frame first"
        ) from None


def _frame_of_records(records: npt.NDArray[Any]) -> Frame:
    names = records.dtype.names
    if names is None or records.ndim != 1:
        raise TableError(
            f"a table must be {_ACCEPTED}; got a numpy array of shape {records.shape} and type "
            f"{records.dtype}. Give it one dimension and named fields"
        )
    return nw.from_native(pa.table({n: _arrow_of(n, records[n]) for n in names}), eager_only=True)


def _arrow_of(name: str, field: npt.NDArray[Any]) -> "pa.Array[Any]":
    masked = np.ma.getmaskarray(field) if isinstance(field, np.ma.MaskedArray) else None
    try:
        values = np.asarray(field).astype(field.dtype.newbyteorder("="))
        if values.dtype.kind == "S":
            values = values.astype(np.str_)
        column: pa.Array[Any] = pa.array(values, mask=masked)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        # No cause is chained: most would show a value.
        raise TableError(
            f"field {name!r} of type {field.dtype} cannot be a column; convert it to one type"
        ) from None
    return column


def check_names(names: Sequence[object]) -> None:
    """Check that column names are strings, and that no two are the same."""
    other = next((name for name in names if not isinstance(name, str)), None)
    if other is not None:
        kind = type(other).__name__
        raise TableError(f"column names must be texts; one is of type {kind}. Rename the columns")
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    if twice:
        if any(map(_is_number, names)):
            way_out = f"{columns_shown([str(name) for name in names])}. Add one"
        else:
            way_out = f"Rename all but one of each of {listed(twice, quoted)}"
        raise TableError(f"column names must be different from each other. {way_out}")


def _missing_values(series: nw.Series[Any]) -> npt.NDArray[np.bool_]:
    missing = np.asarray(series.is_null().to_numpy(), dtype=np.bool_)
    if series.dtype.is_float():
        missing = missing | np.isnan(np.asarray(series.to_numpy(), dtype=np.float64))
    return missing


def _complete_column(frame: Frame, name: str) -> nw.Series[Any]:
    """Select a column; refuse one that is unknown or misses a value."""
    check_columns(frame, [name])
    series = frame[name]
    n_missing = int(np.count_nonzero(_missing_values(series)))
    if n_missing == len(series):
        raise TableError(f"column {name!r} is all missing ({n_missing} rows); leave it out")
    if n_missing:
        raise TableError(
            f"column {name!r} has {n_missing} missing values in {len(series)} rows. Fill them in, "
            'or leave those rows out with query.with_missing("drop-rows")'
        )
    return series


def values_of(series: nw.Series[Any], name: str) -> list[Any]:
    """Convert the values of a column to Python's; bytes that are not text are refused."""
    try:
        return series.to_list()
    except UnicodeDecodeError:
        # Not from the error, which holds a value.
        raise TableError(
            f"column {name!r} has text that is not UTF-8; the file is damaged, or was written with "
            "another encoding. Write it again"
        ) from None


def counted(counts: Mapping[str, int]) -> str:
    """List columns or coordinates in a message, each with its count."""
    first = list(counts.items())[:MOST_SHOWN]
    more = f" and {len(counts) - len(first)} more" if len(counts) > len(first) else ""
    return ", ".join(f"{quoted(name)} {count}" for name, count in first) + more


def _kind(series: nw.Series[Any]) -> str:
    # The name alone: the type of categories would list them.
    return type(series.dtype).__name__


def _is_number(name: object) -> bool:
    try:
        float(str(name))
    except ValueError:
        return False
    return True


def _category_texts(series: nw.Series[Any], name: str) -> nw.Series[Any]:
    kinds = series.unique()
    texts = values_of(kinds.cast(nw.String), name)
    if len(set(texts)) < len(set(values_of(kinds, name))):
        raise TableError(
            f"column {name!r} has different categories that read the same as text, so two labels "
            "would become one; rename them"
        )
    return series.cast(nw.String)


def plain_values(series: nw.Series[Any]) -> npt.NDArray[Any]:
    """Convert a column without missing values to numpy; a decimal to the nearest double."""
    if isinstance(series.dtype, nw.Decimal):
        return series.cast(nw.String).cast(nw.Float64).to_numpy()
    # pandas keeps True/False beside None as objects, and still does once None is gone.
    if isinstance(series.dtype, nw.Object):
        objects = series.to_list()
        kinds = {type(value) for value in objects}
        if kinds <= {bool} or kinds <= {int, float}:
            return np.array(objects)
    return series.to_numpy()
