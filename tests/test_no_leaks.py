# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""No message, traceback or log shows what one record alone has.

Tables hold a marked name and a marked number, each in one row. Every provocation must end in an
error of the library; neither mark may be in its text, in the traceback as Python prints it, on
standard output or error, or in a log. Add to `IN_PYTHON` and `COMMANDS` what else can go wrong.
"""

import gzip
import logging
import re
import traceback

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pufferslice as ps
from pufferslice.cli.app import run
from pufferslice.data import read_table
from pufferslice.data.frames import frame_of, without_missing
from pufferslice.data.readers import FileTable
from pufferslice.data.tables import frames_of
from pufferslice.errors import PuffersliceError
from pufferslice.learning import TwoWorlds
from pufferslice.queries import (
    above,
    columns,
    contingency_table,
    equals,
    logistic_regression,
    row_function,
    summary,
    table_function,
)
from pufferslice.scenario.simulator import OutputSimulator, Simulator

NAME = "MARK-Jane-Doe-7"
NUMBER = 7461532.25
MARKED = re.compile(r"Jane.{0,3}Doe|7[ ,_]?461[ ,_]?532|7\.46")

N_SINGLES = 1_897
WHO = [NAME, *(f"{NAME}-{i}" for i in range(1, N_SINGLES))]
INCOMES = [NUMBER + i for i in range(N_SINGLES)]
SMALL = {
    "who": [NAME, "a", "a", "b", "b"],
    "site": ["a", "a", "a", "b", "b"],
    "x": [NUMBER, 1.0, 2.0, 3.0, 4.0],
}
ALL = {"who": WHO, "income": INCOMES, "x": [float(i) for i in range(N_SINGLES)]}
MISSING = {
    "who": [NAME, None, "a", "b"],
    "site": ["a", "a", "b", "b"],
    "x": [NUMBER, 1.0, 2.0, None],
}
MIXED = {"who": [NAME, 1.5, ("b",), 2], "site": ["a", "a", "b", "b"], "x": [NUMBER, "one", 2, 3]}
MEAN, ROWS = summary(mean=["x"]), columns(["x"])
LINE = ps.FiniteProfile.axes(dim=1)
TARGET = ps.Guarantee.joint(order=4, epsilon=1.0)
TABLE = pa.table(SMALL)
GROUPS = ps.Scenario.from_groups(TABLE, secret="site", query=MEAN)
RECORDS = ps.Scenario.from_records(TABLE, secret="site", query=ROWS)
LIBRARIES = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "numpy": lambda data: pd.DataFrame(data).to_records(index=False),
}


def categories(data):
    values = pd.Categorical(data["who"], categories=sorted(set(data["who"])), ordered=True)
    return pd.DataFrame({**data, "who": values})


def enums(data):
    return pl.DataFrame(data).with_columns(pl.col("who").cast(pl.Enum(sorted(set(data["who"])))))


def releasing(rows, tmp_path, scenario=GROUPS):
    certificate = ps.certify_release(scenario, TARGET.along(LINE))
    ps.release(scenario, rows, certificate, ledger=tmp_path / "ledger.db")


def quoting(*_):
    """A user's function whose error quotes a cell, as `float` and a dict do."""
    return float({NAME: NAME}[NAME])


def missing_key(*_):
    return {}[NAME]


def written(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def parquet(tmp_path, data=None, name="t.parquet", **types):
    path = tmp_path / name
    pq.write_table(pa.table(data or SMALL), path, **types)
    return path


def damaged(tmp_path):
    path = parquet(tmp_path, ALL, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    return path


def in_batches(path, query=MEAN):
    """The query on each batch of rows of a file."""
    table = FileTable.of(path)
    columns = list(dict.fromkeys((table.columns[0], *query.columns)))
    frames = [without_missing(frame, columns, "refuse")[0] for frame in frames_of(table, columns)]
    return [query.outputs(frame) for frame in frames]


CSV = "who,site,x\n" + "\n".join(f"{w},{s},{x}" for w, s, x in zip(*SMALL.values(), strict=True))
HEADERLESS = CSV.partition("\n")[2]
LATE = "site,x\n" + "a,1\n" * 3_000_000 + f"b,{NAME}\n"


def worlds(made, query=MEAN, **said):
    return ps.Scenario.from_worlds({"one": made, "two": made}, query=query, **said)


IN_PYTHON = {
    # Secrets: of names, of incomes, of several columns, in bins, and given as a column.
    "names": lambda _: ps.Scenario.from_groups(pa.table(ALL), secret="who", query=MEAN),
    "incomes": lambda _: ps.Scenario.from_records(pa.table(ALL), secret="income", query=ROWS),
    "two columns": lambda _: ps.Scenario.from_groups(TABLE, secret=["who", "x"], query=MEAN),
    "bootstrap": lambda _: ps.Scenario.from_bootstrap(
        TABLE, secret="x", query=MEAN, bootstrap=ps.Bootstrap(n_replicates=3, seed=1)
    ),
    "bins of text": lambda _: ps.Scenario.from_groups(
        TABLE, secret=ps.Bins(column="who", quantiles=2), query=MEAN
    ),
    "bins of ties": lambda _: ps.Scenario.from_groups(
        pa.table({"x": [1.0, 1.0, 1.0, NUMBER]}),
        secret=ps.Bins(column="x", quantiles=3),
        query=MEAN,
    ),
    "one secret": lambda _: ps.Scenario.from_groups(
        pa.table({"s": ["a", "a"], "x": [NUMBER, 1.0]}), secret="s", query=MEAN
    ),
    "a column as secret": lambda _: ps.Scenario.from_groups(
        TABLE, secret=pd.Series(WHO), query=MEAN
    ),
    "an array as secret": lambda _: ps.Scenario.from_groups(
        TABLE, secret=np.array(WHO), query=MEAN
    ),
    "a column as bins": lambda _: ps.Bins(column=pd.Series(WHO), quantiles=2),
    "joined labels": lambda _: ps.Scenario.from_groups(
        pa.table({"a": [f"{NAME} & b"] * 2, "b": ["c"] * 2, "x": [1.0, 2.0]}),
        secret=["a", "b"],
        query=MEAN,
    ),
    "a NUL": lambda _: ps.Scenario.from_groups(
        pa.table({"s": [f"{NAME}\0", "b"], "x": [1.0, 2.0]}), secret="s", query=MEAN
    ),
    "large labels": lambda _: ps.Scenario.from_groups(
        pa.table({"s": [NUMBER * 2**40, 1.5], "x": [1.0, 2.0]}), secret="s", query=MEAN
    ),
    "a level near rare labels": lambda _: ps.Scenario.from_groups(
        pa.table({"s": ["a", "b"] * 9, "who": [NAME] * 9 + [f"{NAME}s"] * 9}),
        secret="s",
        query=contingency_table({"who": ["MARK-Jan-Do-7"]}, statistic="count"),
    ),
    "an unknown pair": lambda _: ps.Scenario.from_groups(
        TABLE, secret="site", query=MEAN, pairs=[("a", "c")]
    ),
    "a column as pairs": lambda _: ps.Scenario.from_groups(
        TABLE, secret="site", query=MEAN, pairs=pd.Series(WHO)
    ),
    "a list of arrays as pairs": lambda _: ps.Scenario.from_groups(
        TABLE, secret="site", query=MEAN, pairs=[np.array(WHO)]
    ),
    "worlds named by numbers": lambda _: ps.Scenario.from_worlds(
        {NUMBER: TABLE, NAME: TABLE}, query=MEAN
    ),
    # Columns of a query, of every library and type.
    **{
        f"a mean of names in {name}": lambda _, make=make: MEAN_OF_NAMES.outputs(make(SMALL))
        for name, make in (LIBRARIES | {"categories": categories, "enums": enums}).items()
    },
    **{
        f"missing in {name}": lambda _, make=make: ps.Scenario.from_groups(
            make(MISSING), secret="who", query=MEAN
        )
        for name, make in LIBRARIES.items()
    },
    **{
        f"mixed {column} in {name}": lambda _, make=make, column=column: ps.Scenario.from_groups(
            make(MIXED), secret=column, query=MEAN
        )
        for name, make in LIBRARIES.items()
        if name in {"pandas", "numpy"}
        for column in ("who", "x")
    },
    "all missing": lambda _: ps.Scenario.from_groups(
        pa.table({"s": [None, None, NAME], "x": [NUMBER, 1.0, None]}),
        secret="s",
        query=MEAN.with_missing("drop-rows"),
    ),
    "infinite": lambda _: MEAN.outputs(pa.table({"x": [NUMBER, np.inf]})),
    "an overflow": lambda _: summary(std=["x"]).outputs(pa.table({"x": [NUMBER, 1e308, -1e308]})),
    "huge integers": lambda _: frame_of(
        np.array([(10**30, NAME)], dtype=[("x", object), ("who", object)])
    ),
    "dates and names": lambda _: frame_of(np.array([(NAME,), (3,)], dtype=[("who", object)])),
    "bytes": lambda _: frame_of(np.array([(NAME.encode() + b"\xff",)], dtype=[("who", "S40")])),
    "unknown column of a headless table": lambda _: MEAN.outputs(
        pa.table({NAME: [1], str(NUMBER): [2]})
    ),
    "repeated names": lambda _: frame_of(pa.table([[1], [2], [3]], names=[NAME, "7", NAME])),
    "repeated names in pandas": lambda _: frame_of(pd.DataFrame([[1, 2]], columns=[NAME, NAME])),
    "names that are numbers": lambda _: frame_of(pd.DataFrame([[1, 2]], columns=[NUMBER, 1.0])),
    "names that are pairs": lambda _: frame_of(
        pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([(NAME, 1), (NAME, 2)]))
    ),
    "a list as table": lambda _: frame_of([{"who": NAME}]),
    "an array as table": lambda _: frame_of(np.array([[NUMBER]])),
    # Conditions, queries of one's own, models.
    "a number against names": lambda _: summary(rate={"who": above(1)}).outputs(TABLE),
    "a word against numbers": lambda _: summary(rate={"x": "word"}).outputs(TABLE),
    "a column as value": lambda _: equals(pd.Series(WHO)),
    "a column as limit": lambda _: above(pd.Series(INCOMES)),
    "a column as rate": lambda _: summary(rate=pd.Series(WHO)),
    "a column as quantile": lambda _: summary(quantile=pd.Series(INCOMES)),
    "a column as level": lambda _: summary(quantile={"x": pd.Series(INCOMES)}),
    "a column as names": lambda _: columns([pd.Series(WHO)]),
    "a column as scales": lambda _: MEAN.with_scales(pd.Series(WHO)),
    "a table as range": lambda _: MEAN.with_range(pd.DataFrame(SMALL)),
    "a column as description": lambda _: row_function(
        quoting, names=["f"], columns=["who"], description=pd.Series(WHO)
    ),
    **{
        f"{function.__name__} of {build.__name__}": lambda _, build=build, function=function: build(
            function, names=["f"], columns=["who"], description="f"
        ).outputs(TABLE)
        for build in (row_function, table_function)
        for function in (quoting, missing_key)
    },
    "a function that returns a cell": lambda _: row_function(
        lambda row: row["who"], names=["f"], columns=["who"], description="f"
    ).outputs(TABLE),
    "a function of too much": lambda _: row_function(
        lambda row: [row["x"], row["x"]], names=["f"], columns=["x"], description="f"
    ).outputs(TABLE),
    "one class": lambda _: logistic_regression(
        features=["x"], target="who", positive=NAME[:3]
    ).outputs(TABLE),
    "features of names": lambda _: logistic_regression(
        features=["who"], target="site", positive="a"
    ).outputs(TABLE),
    # Two copies of a feature and next to no regularisation: the Hessian is singular.
    "no convergence": lambda _: logistic_regression(
        features=["x", "y"], target="site", positive="a", regularisation=1e-200
    ).outputs(pa.table({**SMALL, "y": SMALL["x"]})),
    # Worlds and simulators.
    "a world of names": lambda _: worlds(pa.table({"x": WHO})),
    "a list of worlds": lambda _: worlds([TABLE, pa.table({"x": WHO})]),
    "a world that quotes": lambda _: worlds(
        Simulator(draw_table=quoting).declared(n_draws=2, seed=1)
    ),
    "outputs that quote": lambda _: worlds(
        OutputSimulator(draw_outputs=quoting).sampled(n_draws=2, seed=1)
    ),
    "outputs of names": lambda _: worlds(
        OutputSimulator(draw_outputs=lambda _, n: [[NAME]] * n).declared(n_draws=2, seed=1)
    ),
    "a distribution of names": lambda _: worlds(ps.FiniteDistribution.uniform([[NAME]])),
    "weights of names": lambda _: ps.FiniteDistribution.weighted([[1.0]], [NAME]),
    "two worlds": lambda _: TwoWorlds(first=enums(SMALL), second=pl.DataFrame(SMALL)),
    # Files.
    "a csv of other widths": lambda t: read_table(written(t, f"a,b\n1,2\n{NAME},{NUMBER},3\n")),
    "a csv that is no text": lambda t: read_table(written(t, f"a\n{NAME}\xff\n".encode("latin-1"))),
    "an open quote": lambda t: read_table(written(t, f'a,b\n"{NAME},1\n2,3\n')),
    "a csv without header": lambda t: MEAN.outputs(read_table(written(t, HEADERLESS))),
    "a header twice": lambda t: read_table(written(t, f"{NUMBER},{NAME},{NAME}\n1,2,3\n")),
    "a csv that is gzip": lambda t: read_table(written(t, f"{NAME}\n1\n", "t.csv.gz")),
    "a cut gzip": lambda t: read_table(written(t, gzip.compress(CSV.encode())[:-9], "t.csv.gz")),
    "text as parquet": lambda t: read_table(written(t, CSV, "t.parquet")),
    "damaged parquet": lambda t: read_table(damaged(t)),
    "a mean of a csv": lambda t: MEAN_OF_NAMES.outputs(read_table(written(t, CSV))),
    "a column as null values": lambda t: read_table(written(t, CSV), null_values=NAME[:0] + "?"),
    # Files in batches.
    "a batch of names": lambda t: in_batches(parquet(t), MEAN_OF_NAMES),
    "a batch of missing": lambda t: in_batches(parquet(t, MISSING)),
    "a csv that changes": lambda t: in_batches(written(t, LATE)),
    "a csv of names": lambda t: in_batches(written(t, CSV), MEAN_OF_NAMES),
    "a headless csv": lambda t: in_batches(written(t, HEADERLESS)),
    "damage in a batch": lambda t: in_batches(damaged(t)),
    "a cut csv": lambda t: in_batches(written(t, gzip.compress(CSV.encode())[:-9], "t.csv.gz")),
    # Arguments that are data.
    "a column as order": lambda _: ps.Guarantee.joint(order=pd.Series(INCOMES), epsilon=1),
    "a column as share": lambda _: ps.Guarantee.guess(at_most=pd.Series(INCOMES)),
    "a column as profile": lambda _: ps.certify_release(GROUPS, TARGET.along(pd.Series(WHO))),
    "a table as directions": lambda _: ps.FiniteProfile.of(pd.DataFrame(SMALL)),
    # Releases.
    "other rows": lambda t: releasing(
        pa.table({**SMALL, "x": [NUMBER + 1, 1.0, 2.0, 3.0, 4.0]}), t
    ),
    "rows of other groups": lambda t: releasing(TABLE, t),
    "a group that is not known": lambda t: releasing(
        pa.table({"site": [NAME, NAME], "x": [NUMBER, 1.0]}), t
    ),
    "a row that is not there": lambda t: releasing(
        pa.table({"site": ["a"], "x": [NUMBER + 1]}), t, RECORDS
    ),
    "a row of names": lambda t: releasing(pa.table({"site": ["a"], "x": [NAME]}), t, RECORDS),
}

MEAN_OF_NAMES = summary(mean=["who"])


def assert_no_marks(*texts):
    for text in texts:
        found = MARKED.search(text)
        assert found is None, text[max(0, found.start() - 200) : found.end() + 20]


@pytest.mark.parametrize("provoke", IN_PYTHON.values(), ids=IN_PYTHON)
def test_errors_of_the_library(provoke, tmp_path, capfd, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(PuffersliceError) as caught:
        provoke(tmp_path)
    printed = capfd.readouterr()
    lines = "".join(traceback.format_exception(caught.value))
    assert_no_marks(lines, repr(caught.value), printed.out, printed.err, caplog.text)
    assert len(str(caught.value)) < 1_000


SECTIONS = """
[data]
path = "t.csv"
{data}
[secret]
{secret}
[query]
{query}
[prior]
source = "released-data"
kind = "empirical"
[profile]
n_directions = 4
seed = 7
[guarantee]
notion = "joint"
order = 4
epsilon = 1.0
"""
GOOD = {"data": "", "secret": 'column = "site"', "query": 'distribution = "groups"\nmean = ["x"]'}
BY_NAME = GOOD | {"secret": 'column = "who"'}
BY_NUMBER = GOOD | {"secret": 'column = "x"'}
BY_ROW = {
    "data": "",
    "secret": 'column = "site"',
    "query": 'distribution = "records"\ncolumns = ["x"]\nrange = { low = [0], high = [9e9] }',
}
CALIBRATE = "calibrate scenario.toml"
RELEASE = "release scenario.toml --certificate c.json --ledger l.db --out r.json"
ROW = {"data": "", "secret": "", "query": 'distribution = "records"\ncolumns = ["x"]'}

COMMANDS = [
    (CALIBRATE, BY_NAME, CSV),
    (CALIBRATE, BY_NUMBER, CSV),
    (CALIBRATE, GOOD | {"secret": 'columns = ["who", "x"]'}, CSV),
    (CALIBRATE, GOOD | {"secret": 'column = "site"\npairs = [["a", "z"]]'}, CSV),
    (CALIBRATE, GOOD | {"secret": 'bins = { column = "who", quantiles = 2 }'}, CSV),
    (CALIBRATE, GOOD | {"query": 'distribution = "groups"\nmean = ["who"]'}, CSV),
    (CALIBRATE, GOOD, HEADERLESS),
    (CALIBRATE, GOOD, CSV + f"\n{NAME},{NUMBER}\n"),
    (CALIBRATE, GOOD, CSV + f"\n{NAME},a,\n"),
    (CALIBRATE, BY_ROW | {"secret": 'column = "who"'}, CSV),
    (CALIBRATE, BY_ROW | {"secret": 'column = "x"'}, CSV),
    (CALIBRATE, BY_ROW, HEADERLESS),
    (CALIBRATE, BY_ROW, CSV + f"\n{NAME},{NUMBER}\n"),
    ("compare scenario.toml", BY_NAME, CSV),
    ("audit c.json --scenario scenario.toml", BY_NAME, CSV),
    ("spent c.json --scenario scenario.toml", BY_NAME, CSV),
    (f"{RELEASE} --group zebra", GOOD, CSV),
    (f"{RELEASE} --row 99", GOOD, CSV),
    (f"{RELEASE} --row 0", GOOD, CSV),
    (f"{RELEASE} --row 0", BY_ROW, CSV),
    (f"{RELEASE} --rows t.csv", GOOD, CSV),
    (f"{RELEASE} --rows other.csv", GOOD, CSV),
    (f"{RELEASE} --group a", BY_NUMBER, CSV),
    ("verify t.csv", GOOD, CSV),
    ("report t.csv --out page.html", GOOD, CSV),
    ("calibrate t.csv", GOOD, CSV),
    ("train t.csv", GOOD, CSV),
    ("sign t.csv --key t.csv", GOOD, CSV),
    (f"{CALIBRATE} --set secret.column=who", GOOD, CSV),
    (f"{CALIBRATE} --set secret.column=nothing", GOOD, HEADERLESS),
]


@pytest.mark.parametrize(
    ("command", "said", "text"), COMMANDS, ids=[f"{i} {c[0]}" for i, c in enumerate(COMMANDS)]
)
def test_errors_of_commands(command, said, text, tmp_path, monkeypatch, capfd, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    written(tmp_path, text)
    written(tmp_path, f"site,x\n{NAME},{NUMBER}\n", "other.csv")
    written(tmp_path, SECTIONS.format(**said), "scenario.toml")
    ps.certify_release(GROUPS, TARGET.along(LINE)).save(tmp_path / "c.json")
    assert run(command.split()) != 0
    printed = capfd.readouterr()
    assert printed.err
    assert_no_marks(printed.out, printed.err, caplog.text)
    assert len(printed.err) < 1_500


def test_the_likely_remedy_is_named():
    with pytest.raises(ps.errors.ScenarioError, match=r"1,897 of the 1,897 .*Bins.*quantiles = "):
        ps.Scenario.from_records(pa.table(ALL), secret="income", query=ROWS)


def test_lists_of_labels_stop_at_eight():
    table = pa.table({"s": [f"g{i:03}" for i in range(300)] * 2, "x": np.arange(600.0)})
    with pytest.raises(ps.errors.ScenarioError, match=r"g007 and 292 more") as caught:
        ps.Scenario.from_groups(table, secret="s", query=MEAN, pairs=[("a", "b")])
    assert "g008" not in str(caught.value)
