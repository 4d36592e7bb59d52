# SPDX-License-Identifier: Apache-2.0
"""What tables, columns and files are refused; tests of values that must not show are elsewhere."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.refusal_tables import refusals
from tests.refusals import check_refused

from pufferslice.data import LabelledImages, read_table
from pufferslice.data.frames import floats_of, frame_of, labels_of, without_missing
from pufferslice.data.readers import FileTable
from pufferslice.errors import ArgumentError, TableError

TABLE = pa.table({"age": [30, 40, 50], "job": ["a", "?", "c"], "pay": [1.5, 2.5, 3.5]})
GAPS = pd.DataFrame({"age": [None, 3.0, None], "pay": [2.0, float("nan"), float("nan")]})
MIXED = pd.DataFrame({"a": np.array([1, "x"], dtype=object)})
CSV = b"age,job,pay\n30,a,1.5\n40,?,2.5\n50,c,3.5\n"
SEMICOLONS = "Größe;Alter\n1,5;30\n1,6;31\n".encode("cp1252")
GAPPED = [
    pd.DataFrame({"a": [1.0, np.nan, np.nan]}),
    pd.DataFrame({"a": pd.array([1, None, None], dtype="Int64")}),
    pd.DataFrame({"a": [True, None, None]}),
    pl.DataFrame({"a": [1.0, np.nan, None]}),
    pl.DataFrame({"a": [1, None, None]}),
    pa.table({"a": [1.0, np.nan, None]}),
    pa.table({"a": [True, None, None]}),
    np.array([(1.0,), (np.nan,), (np.nan,)], dtype=[("a", float)]),
]
ALL_MISSING = [
    pd.DataFrame({"a": [np.nan, np.nan]}),
    pl.DataFrame({"a": [None, None]}),
    pa.table({"a": pa.array([None, None], pa.string())}),
]


def columns_of(read, name="a"):
    return lambda table: read(frame_of(table), name)


def labels(*values):
    return labels_of(frame_of(pa.table({"a": list(values)})), "a")


def images(labels, n_images):
    pixels = np.zeros((n_images, 4, 4, 1), np.uint8)
    return LabelledImages(images=pixels, labels=np.array(labels), white=16, n_classes=2)


def read(name, content):
    Path(name).write_bytes(content)
    return read_table(name)


def read_parts(name, content):
    Path(name).write_bytes(content)
    return next(FileTable.of(name).frames(["Alter"]))


def without_rows():
    pq.write_table(TABLE.slice(0, 0), "t.parquet")
    return "t.parquet"


REFUSED = {
    ArgumentError: [
        ("missing", lambda: without_missing(frame_of(TABLE), ["age"], "ignore")),
        ("write ['?']", lambda: read_table("t.parquet", null_values="?")),
    ],
    TableError: [
        # Tables.
        ("builtins.dict", frame_of, {"a": [1]}),
        ("LazyFrame", frame_of, pl.LazyFrame({"a": [1]})),
        ("Series", frame_of, pd.Series([1])),
        ("one dimension", frame_of, np.zeros(3), np.zeros((2, 2), "i4,f4")),
        ("different", frame_of, pd.DataFrame([[1, 2, 3]], columns=["a", "b", "a"])),
        ("different", frame_of, pa.table([[1], [2], [3]], names=["a", "b", "a"])),
        ("type int", frame_of, pd.DataFrame([[1, 2]])),
        ("empty", frame_of, pd.DataFrame(index=[1, 2]), pl.DataFrame({"a": []})),
        ("3 rows", lambda: without_missing(frame_of(GAPS), ["age", "pay"], "drop-rows")),
        # Columns.
        ("Did you mean 'age'", columns_of(floats_of, "aeg"), TABLE),
        ("Did you mean 'age'", columns_of(labels_of, "aeg"), TABLE),
        ("Object", columns_of(floats_of), MIXED),
        ("Object", columns_of(labels_of), MIXED),
        ("2 missing values in 3 rows", columns_of(floats_of), *GAPPED),
        ("2 missing values in 3 rows", columns_of(labels_of), *GAPPED),
        ("'a' is all missing", columns_of(floats_of), *ALL_MISSING),
        ("'a' is all missing", columns_of(labels_of), *ALL_MISSING),
        ("'a' must hold", labels, b"x", [1, 2], np.datetime64("2020-01-01", "s")),
        ("labels", lambda: images([0], 2)),
        ("2 of 3", lambda: images([-1, 0, 2], 3)),
        # Files.
        (".csv", lambda name: read(name, CSV), "t.xlsx", "t", "t.parquet.gz"),
        ("empty", lambda name: read(name, b""), "t.csv", "t.csv.gz", "t.parquet"),
        ("rows", lambda text: read("t.csv.gz", gzip.compress(text)), b"a,b\n", b"\n\n", b""),
        ("3 columns", lambda: read_table(without_rows())),
        ("'a'", lambda: read("t.csv", b"a,b,a\n1,2,3\n")),
        ("sep=';'", lambda name: read(name, SEMICOLONS), "t.csv", "t.tsv"),
        ("sep=';'", lambda name: read_parts(name, SEMICOLONS), "t.csv", "t.tsv"),
        ("sep=';'", lambda read: read("t.csv.gz", gzip.compress(SEMICOLONS)), read, read_parts),
    ],
}


@pytest.mark.parametrize("refusal", refusals(REFUSED))
def test_refused(refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_refused(refusal)
