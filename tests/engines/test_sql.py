# SPDX-License-Identifier: Apache-2.0
"""Statements for a database, run there by somebody else, who hands over the numbers."""

import decimal
import json

import duckdb
import numpy as np
import psycopg
import pyarrow as pa
import pytest
from tests.engines.tables import CLIP, nasty_query, nasty_table, plain_query, plain_table
from tests.refusal_tables import refusals
from tests.refusals import check_refused
from tests.releases.conftest import server  # noqa: F401 - a fixture

import pufferslice as ps
from pufferslice.data.frames import frame_of
from pufferslice.data.handed import HandedSums
from pufferslice.errors import ArgumentError, ScenarioError, TableError
from pufferslice.queries import contingency_table, equals, summary
from pufferslice.queries.features import RowFeatures
from pufferslice.queries.layout import Layout
from pufferslice.queries.partition import partitions_of
from pufferslice.queries.sql import statements_of
from pufferslice.queries.sums import tally_of

NASTY = nasty_table()
TYPES = {"text": "text", "kind": "text", "yes": "boolean"}
TABLE, EARLIER = plain_table(seed=6), plain_table(seed=5)


class OnDuckDB:
    """DuckDB, in the time zone of the table."""

    def __init__(self):
        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone = 'Europe/Berlin'")

    def hold(self, name, table):
        self.connection.register("given", table)
        self.connection.execute(f"CREATE TABLE {name} AS FROM given")

    def rows(self, statement):
        cursor = self.connection.execute(statement)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


class OnPostgres:
    """PostgreSQL, with a table of the same values."""

    TYPES = {  # noqa: RUF012 - a constant
        "double": "float8",
        "float": "float4",
        "int64": "int8",
        "int8": "int2",
        "bool": "boolean",
        "string": "text",
        "decimal128(20, 2)": "numeric(20, 2)",
        "date32[day]": "date",
        "timestamp[us]": "timestamp",
        "timestamp[us, tz=Europe/Berlin]": "timestamptz",
    }

    def __init__(self, connection):
        self.connection = connection
        self.connection.execute("SET TimeZone = 'Europe/Berlin'")

    def hold(self, name, table):
        kinds = [self.TYPES.get(str(kind), "text") for kind in table.schema.types]
        columns = ", ".join(
            f'"{column}" {kind}' for column, kind in zip(table.column_names, kinds, strict=True)
        )
        self.connection.execute(f"DROP TABLE IF EXISTS {name}")
        self.connection.execute(f"CREATE TABLE {name} ({columns})")
        with self.connection.cursor().copy(f"COPY {name} FROM STDIN") as copy:
            for row in table.to_pylist():
                copy.write_row(list(row.values()))

    def rows(self, statement):
        cursor = self.connection.execute(statement)
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@pytest.fixture(params=["duckdb", "postgres"])
def database(request):
    if request.param == "duckdb":
        yield OnDuckDB()
        return
    address = request.getfixturevalue("server").address("sql").partition("#")[0]
    with psycopg.connect(address, autocommit=True) as connection:
        yield OnPostgres(connection)


def results(database, statements):
    return {
        "sums": database.rows(statements.sums),
        "products": database.rows(statements.products),
    }


@pytest.mark.parametrize("every", range(4))
def test_statements_give_the_integers_of_numpy(database, every):
    features = nasty_query().as_sums().features
    part = RowFeatures.of(features.parts[every::4])
    table = NASTY
    if isinstance(database, OnPostgres):  # which refuses products that are too small for a double
        tiny = [x is not None and 0 < abs(x) < 1e-300 for x in NASTY["x"].to_pylist()]
        table = NASTY.filter(pa.array([not each for each in tiny]))
    integers = part.integers(frame_of(table), 20)
    secret = partitions_of([("sex", equals("F"), None)])
    layout = Layout.of(part, 20, secret)
    database.hold("nasty", table)
    found = tally_of(
        HandedSums.of(results(database, statements_of(layout, "nasty", TYPES))), layout
    )
    women = np.array(table["sex"].to_pylist()) == "F"
    chosen = found.flags("sex", equals("F"))
    for rows, groups in ((women, chosen), (~women, ~chosen)):
        added = dict(zip(part.names, found.sums()[groups].sum(axis=0).tolist(), strict=True))
        assert added == dict(zip(part.names, integers[rows].sum(axis=0).tolist(), strict=True))
        wanted = np.cov(integers[rows].T, bias=True)
        np.testing.assert_allclose(found.covariance(groups), wanted, atol=1e-12 * 2**40)


def test_a_release_by_numbers_alone(database, tmp_path):
    query = plain_query()
    database.hold("people", TABLE)
    database.hold("earlier", EARLIER)
    asked = query.to_sql("earlier", column="sex", value="F", types={"ill": "boolean"})
    scenario = ps.Scenario.from_moments(
        results(database, asked),
        query=query,
        column="sex",
        value="F",
        within=0.05,
        n_rows=len(TABLE),
        source="held_out",
    )
    in_memory = ps.Scenario.from_prevalence(
        None,
        column="sex",
        value="F",
        within=0.05,
        query=query,
        moments_from=EARLIER,
        n_rows=len(TABLE),
    )
    assert scenario.description() == in_memory.description()
    assert scenario.distributions_digest() == in_memory.distributions_digest()
    certificate = ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.64))
    assert ps.verify(certificate, scenario=in_memory).holds
    # Anybody may run the first statement again, with or without the secret.
    numbers = {"sums": database.rows(query.to_sql("people", types={"ill": "boolean"}).sums)}
    released = ps.release(scenario, numbers, certificate, ledger=tmp_path / "one.ledger")
    exact = query.as_sums().features.outputs(frame_of(TABLE), 20)
    apart = np.abs(released.values - [float(x) for x in exact]) / released.noise_stds
    assert 0 < apart.max() < 8


def test_numbers_of_the_released_table_and_of_sizes(database, tmp_path):
    database.hold("people", TABLE)
    query = summary(total=["pay"], count={"race": "A"}, clip={"pay": (0, 100)})
    numbers = results(database, query.to_sql("people"))
    volume = ps.Scenario.from_moments(numbers, query=query, up_to=3_000)
    assert (
        volume.description()
        == ps.Scenario.from_volume(TABLE, query=query, up_to=3_000).description()
    )
    numbers = results(database, query.to_sql("people", column="sex", value="F"))
    for name, rows in numbers.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(rows, default=_number))
        numbers[name] = json.loads(path.read_text())
    supplier, share = (
        ps.Scenario.from_moments(numbers, query=query, column="sex", value="F", **options)
        for options in ({"up_to": 2_000}, {"within": 0.05})
    )
    assert supplier.priors[0].source == share.priors[0].source == "released_data"
    assert share.secret["n_rows"] == len(TABLE)
    wanted = ps.Scenario.from_supplier(TABLE, column="sex", value="F", query=query, up_to=2_000)
    assert supplier.distributions_digest() == wanted.distributions_digest()


def _number(value):
    assert isinstance(value, decimal.Decimal)
    return int(value)


def test_names_and_labels_are_quoted():
    odd = 'a "b".c'
    query = contingency_table({odd: ["it's", "plain"]})
    connection = OnDuckDB()
    connection.connection.execute("""CREATE TABLE "odd table" AS
        SELECT * FROM (VALUES ('it''s'), ('plain'), ('other'), (NULL)) AS t("a ""b"".c")""")
    numbers = results(connection, query.to_sql("odd table"))
    found = ps.Scenario.from_moments(numbers, query=query, up_to=90)
    assert found.priors[0].distributions["the larger size"].sums == (4, 2**20, 2**20)


QUERY = summary(total=["pay"], count={"race": "A"}, clip={"pay": (0, 100)})


def numbers(**changes):
    connection = OnDuckDB()
    connection.hold("people", TABLE)
    found = results(connection, QUERY.to_sql("people", column="sex", value="F"))
    return {name: changes.get(name, lambda rows: rows)(rows) for name, rows in found.items()}


def moments(query=QUERY, value="F", given=None, **changes):
    options = {"query": query, "column": "sex", "value": value, "within": 0.05}
    return ps.Scenario.from_moments(given or numbers(), **(options | changes))


def with_cell(column, value):
    return lambda rows: [rows[0] | {column: value}, *rows[1:]]


@pytest.mark.parametrize(
    "refusal",
    refusals(
        {
            TableError: [
                ("another query", lambda: moments(summary(count={"race": "B"}))),
                ("another secret", lambda: moments(value="M")),
                ("secret0", lambda: moments(given=numbers(sums=lambda rows: [{"n": 9}]))),
                ("integers", lambda: moments(given=numbers(sums=with_cell("n", 2.5)))),
                ("integers", lambda: moments(given=numbers(sums=with_cell("n", None)))),
                ("so large", lambda: moments(given=numbers(sums=with_cell("sum0", 2**60)))),
                ("so large", lambda: moments(given=numbers(sums=with_cell("key0", 7)))),
                ("changed", lambda: moments(given=numbers(products=with_cell("n", 1)))),
                ("changed", lambda: moments(given=numbers(products=lambda rows: rows[1:]))),
                ("products", lambda: moments(given={"sums": numbers()["sums"]})),
                ("missing", lambda: QUERY.features.unusual(numbers())),
            ],
            ArgumentError: [
                ("'sums'", lambda: moments(given={"rows": []})),
                ("up_to", lambda: moments(within=None)),
                ("up_to", lambda: moments(up_to=9)),
                ("column", lambda: QUERY.to_sql("people", column="sex")),
                ("column", lambda: QUERY.to_sql("people", value="F")),
                ("clip", lambda: summary(mean=["pay"]).to_sql("people")),
                ("table", lambda: QUERY.to_sql("")),
                ("types", lambda: QUERY.to_sql("people", types={"race": "string"})),
                ("NUL", lambda: summary(rate={"race": "a\0"}).to_sql("people")),
            ],
            ScenarioError: [("sum", lambda: summary(median=["pay"]).to_sql("people"))],
        }
    ),
)
def test_refused(refusal):
    check_refused(refusal)


def test_the_clip_is_in_the_statement():
    text = str(summary(total=["x"], clip={"x": CLIP["x"]}).to_sql("t"))
    assert "'-8.0'" in text
    assert text.count("GROUP BY") == 0
