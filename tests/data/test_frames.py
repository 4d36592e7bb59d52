# SPDX-License-Identifier: Apache-2.0
import decimal

import narwhals as nw
import narwhals.stable.v2 as stable
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferslice.data.frames import (
    floats_of,
    frame_of,
    label_of,
    labels_of,
    missing_rows,
    without_missing,
)
from pufferslice.errors import TableError
from pufferslice.queries import row_function

DATA = {
    "age": [30, 41, 52],
    "pay": [1.5, 2.0, -3.25],
    "member": [True, False, True],
    "race": ["A", "B", "A"],
}


def records(data=DATA):
    fields = [
        ("age", np.int32),
        ("pay", np.float64),
        ("member", np.bool_),
        ("race", "U1"),
    ]
    return np.array(list(zip(*data.values(), strict=True)), dtype=fields)


MAKERS = {
    "pandas": lambda: pd.DataFrame(DATA),
    "pandas nullable": lambda: pd.DataFrame(DATA).convert_dtypes(),
    "pandas arrow": lambda: pd.DataFrame(DATA).convert_dtypes(dtype_backend="pyarrow"),
    "pandas objects": lambda: pd.DataFrame(DATA, dtype=object),
    "polars": lambda: pl.DataFrame(DATA),
    "pyarrow": lambda: pa.table(DATA),
    "numpy structured": records,
    "numpy records": lambda: records().view(np.recarray),
    "narwhals": lambda: nw.from_native(pl.DataFrame(DATA)),
    "stable narwhals": lambda: stable.from_native(pl.DataFrame(DATA)),
}


@pytest.fixture(params=MAKERS)
def frame(request):
    return frame_of(MAKERS[request.param]())


class TestFrameOf:
    def test_every_library_gives_the_same_numbers_and_labels(self, frame):
        for name in ("age", "pay", "member"):
            floats = floats_of(frame, name)
            assert floats.dtype == np.float64
            np.testing.assert_array_equal(floats, np.array(DATA[name], dtype=float))
        assert labels_of(frame, "age").tolist() == ["30", "41", "52"]
        assert labels_of(frame, "pay").tolist() == ["1.5", "2", "-3.25"]
        assert labels_of(frame, "member").tolist() == ["True", "False", "True"]
        assert labels_of(frame, "race").tolist() == ["A", "B", "A"]


class TestNumpyRecords:
    def test_masked_values_are_missing(self):
        masked = np.ma.array(records(), mask=[(0, 1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1)])
        assert missing_rows(frame_of(masked), ["pay", "race"]).tolist() == [True, False, True]

    def test_bytes_are_texts_and_foreign_byte_order_is_read(self):
        table = np.array([(b"x", 1.5), (b"y", 2.5)], dtype=[("s", "S3"), ("v", ">f8")])
        frame = frame_of(table)
        assert labels_of(frame, "s").tolist() == ["x", "y"]
        assert floats_of(frame, "v").tolist() == [1.5, 2.5]

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            (object, ["private", 1]),
            (complex, [1j, 2]),
            ("S3", [b"\xff", b"a"]),
            ((float, 2), [(1, 2), (3, 4)]),
        ],
    )
    def test_fields_that_are_no_column_are_named_without_their_values(self, kind, values):
        table = np.array([(value,) for value in values], dtype=[("odd", kind)])
        with pytest.raises(TableError, match="field 'odd'") as caught:
            frame_of(table)
        assert "private" not in str(caught.value)
        assert caught.value.__suppress_context__


class TestFloatsOf:
    def test_numbers_and_what_is_none(self):
        decimals = {"a": [decimal.Decimal("1.5"), decimal.Decimal(2)]}
        for library in (pl.DataFrame, pa.table):
            assert floats_of(frame_of(library(decimals)), "a").tolist() == [1.5, 2.0]
        with pytest.raises(TableError, match="'a' has 2 infinite values in 3 rows"):
            floats_of(frame_of(pa.table({"a": [np.inf, 1.0, -np.inf]})), "a")
        with pytest.raises(TableError, match="'race' must hold numbers") as caught:
            floats_of(frame_of(pa.table({"race": ["private", "2"]})), "race")
        assert "private" not in str(caught.value)


class TestLabelsOf:
    @pytest.mark.parametrize(
        ("value", "label"),
        [
            (3, "3"),
            (3.0, "3"),
            (-0.0, "0"),
            (np.float32(0.1), "0.1"),
            (np.int8(-4), "-4"),
            (np.bool_(False), "False"),
            ("3.0", "3.0"),
            (float("inf"), "inf"),
        ],
    )
    def test_known_labels(self, value, label):
        assert label_of(value) == label

    @given(st.lists(st.floats(-(2.0**53), 2.0**53, exclude_min=True, exclude_max=True), min_size=1))
    def test_different_numbers_have_different_labels(self, values):
        values = list({value + 0.0 for value in values})  # one zero
        labels = labels_of(frame_of(pa.table({"a": values})), "a")
        assert len(set(labels.tolist())) == len(values)

    @pytest.mark.soundness
    @pytest.mark.parametrize(
        "column",
        [
            pd.Series([2**53, 2**53 + 1, 1.5], dtype=object),
            pd.Series([2**63, 2**63 + 1, -1], dtype=object),
            pd.Series([2.0**53, 1.5]),
            pd.Series([-(2.0**60), float("inf")]),
        ],
    )
    def test_integers_that_floats_merge_are_refused(self, column):
        with pytest.raises(TableError, match=r"'a' has labels of 2\^53 or more.*convert it"):
            labels_of(frame_of(pd.DataFrame({"a": column})), "a")

    @pytest.mark.soundness
    @pytest.mark.parametrize("values", [[1, "1"], [True, "True"], [b"x", "x"]])
    def test_categories_that_read_the_same_are_refused(self, values):
        table = pd.DataFrame({"a": pd.Categorical([*values, values[0]])})
        with pytest.raises(TableError, match="'a' has different categories that read the same"):
            labels_of(frame_of(table), "a")

    def test_a_dictionary_that_repeats_a_value_is_one_label(self):
        codes, values = pa.array([0, 1, 2]), pa.array(["x", "x", "y"])
        table = pa.table({"a": pa.DictionaryArray.from_arrays(codes, values)})
        assert labels_of(frame_of(table), "a").tolist() == ["x", "x", "y"]

    @pytest.mark.parametrize("encoded", [False, True])
    def test_text_that_is_not_utf8(self, encoded):
        """Parquet files can hold it; the error that Python raises would show a value."""
        texts = pa.Array.from_buffers(
            pa.string(),
            2,
            [None, pa.py_buffer(np.array([0, 3, 5], np.int32)), pa.py_buffer(b"Bob\xe3\xe3")],
        )
        frame = frame_of(pa.table({"a": texts.dictionary_encode() if encoded else texts}))
        with pytest.raises(TableError, match="text that is not UTF-8") as caught:
            labels_of(frame, "a")
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
        reader = row_function(lambda row: 0.0, names=["x"], columns=["a"], description="nothing")
        with pytest.raises(TableError, match="text that is not UTF-8"):
            reader.outputs(frame.to_native())

    @given(st.lists(st.text(), min_size=1))
    def test_texts_stay_as_they_are(self, texts):
        frame = frame_of(pa.table({"a": texts}))
        if any("\0" in text for text in texts):
            with pytest.raises(TableError, match="NUL"):
                labels_of(frame, "a")
        else:
            assert labels_of(frame, "a").tolist() == texts

    @pytest.mark.parametrize(
        "table",
        [
            pd.DataFrame({"a": pd.Categorical(["x", "y", "x"])}),
            pl.DataFrame({"a": pl.Series(["x", "y", "x"], dtype=pl.Categorical)}),
            pl.DataFrame({"a": pl.Series(["x", "y", "x"], dtype=pl.Enum(["x", "y"]))}),
            pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode()}),
        ],
    )
    def test_categories(self, table):
        assert labels_of(frame_of(table), "a").tolist() == ["x", "y", "x"]
        with pytest.raises(TableError, match="must hold numbers"):
            floats_of(frame_of(table), "a")


GAPS = {"age": [1.0, None, 3.0, None], "pay": [1.0, 2.0, float("nan"), float("nan")]}
GAPPED = [pd.DataFrame(GAPS), pl.DataFrame(GAPS), pa.table(GAPS)]


class TestMissing:
    @pytest.mark.parametrize("table", GAPPED)
    def test_null_and_nan_are_counted_and_refused_or_dropped(self, table):
        frame = frame_of(table)
        assert missing_rows(frame, ["age"]).tolist() == [False, True, False, True]
        assert missing_rows(frame, ["age", "pay"]).tolist() == [False, True, True, True]
        assert missing_rows(frame, []).tolist() == [False] * 4
        kept, n_dropped = without_missing(frame, ["age"], "drop-rows")
        assert n_dropped == 2
        assert isinstance(kept.to_native(), type(table))
        assert floats_of(kept, "age").tolist() == [1.0, 3.0]
        with pytest.raises(TableError, match=r"3 of 4 rows .*'age' 2, 'pay' 2"):
            without_missing(frame, ["age", "pay"], "refuse")

    @pytest.mark.parametrize("policy", ["refuse", "drop-rows"])
    def test_a_complete_frame_passes_untouched(self, policy):
        frame = frame_of(pa.table(DATA))
        kept, n_dropped = without_missing(frame, list(DATA), policy)
        assert kept is frame
        assert n_dropped == 0
