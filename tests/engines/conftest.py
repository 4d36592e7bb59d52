# SPDX-License-Identifier: Apache-2.0
"""The engines of the contract, each with a function that hands it a table."""

import itertools
import os
import shutil
import warnings

import pyarrow as pa
import pyarrow.dataset
import pytest

QUICK = ("polars", "duckdb", "ibis")
SLOW = ("pyspark", "dask")
ENGINES = (*QUICK, *(pytest.param(name, marks=pytest.mark.soak) for name in SLOW))
"""Engines; those that take seconds for each query do all of it in the soak only."""
READ = (*ENGINES, "dataset")
"""Engines, and tables that are read in batches."""
EVERY = (*QUICK, *SLOW, "dataset")
"""All of them, for what everyone must do each time."""
ZONE = "Europe/Berlin"


@pytest.fixture(scope="session")
def spark():
    """A session of Spark on this machine, with the time zone of the tests."""
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        pytest.skip("there is no Java: install Debian's default-jre-headless")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = (
            sql.SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.session.timeZone", ZONE)
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.codegen.wholeStage", "false")  # slow to compile for many columns
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def held_by(request):
    """A function from an engine's name and a pyarrow table to the engine's own table."""

    def table_of(engine, table):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the engines themselves
            return _HELD[engine](request, table)

    return table_of


def _polars(_, table):
    pl = pytest.importorskip("polars", reason="polars is not installed")
    return pl.from_arrow(table).lazy()


def _duckdb(_, table):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    connection = duckdb.connect()
    connection.execute(f"SET TimeZone = '{ZONE}'")
    connection.register("given", table)
    return connection.table("given")


def _ibis(_, table):
    ibis = pytest.importorskip("ibis", reason="ibis is not installed")
    connection = ibis.duckdb.connect()
    connection.raw_sql(f"SET TimeZone = '{ZONE}'")
    ibis.set_backend(connection)
    return ibis.memtable(table)


def _pyspark(request, table):
    return request.getfixturevalue("spark").createDataFrame(table)


def _dask(_, table):
    frames = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    return frames.from_pandas(table.to_pandas(types_mapper=pandas.ArrowDtype), npartitions=3)


def _dataset(_, table):
    # Batches of unequal sizes, one of them empty.
    ends = [0, 1, 1, len(table) // 3, len(table)]
    return pa.dataset.dataset([table.slice(a, b - a) for a, b in itertools.pairwise(ends)])


_HELD = {
    "dataset": _dataset,
    "polars": _polars,
    "duckdb": _duckdb,
    "ibis": _ibis,
    "pyspark": _pyspark,
    "dask": _dask,
}
