# SPDX-License-Identifier: Apache-2.0
"""Templates of the row model on tables of engines, and on tables that are read in batches."""

import math
import os
import pathlib
import signal
import warnings

import numpy as np
import pyarrow as pa
import pytest
from tests.engines.conftest import READ
from tests.engines.tables import plain_query, plain_table

import pufferslice as ps
from pufferslice.data.tables import rows_of
from pufferslice.queries import above, contingency_table, group_by, join, summary
from pufferslice.queries.conditions import conditions_of
from pufferslice.queries.layout import Layout
from pufferslice.releases.value import fitting_value, released_rows, table_mark
from pufferslice.scenario.keys import share_keys

TABLE = plain_table(300)
TOTALS = join(
    summary(total=["pay"], count={"race": "A"}, clip={"pay": (0, 100)}),
    group_by({"race": ["A", "B"]}, total=["age"], clip={"age": (17, 90)}),
)
EARLIER = plain_table(280, seed=9)
GROUPED = {"secret": "g", "query": summary(mean=["x"])}
LOADS = pa.table(
    {
        "state": ["empty", "home", "home", "empty", None] * 40,
        "kwh": np.linspace(0, 3, 200),
        "week": np.arange(200) % 4,
    }
)


def prevalence(table):
    return ps.Scenario.from_prevalence(
        table, column="race", values=["A", "B"], within=0.1, query=plain_query()
    )


def volume(table):
    return ps.Scenario.from_volume(table, query=TOTALS, up_to=400)


def supplier(table):
    return ps.Scenario.from_supplier(table, column="age", value=above(50), query=TOTALS, up_to=200)


def occupancy(table):
    return ps.Scenario.from_occupancy(
        [[0.9, 0.1], [0.2, 0.8]],
        positions=[3],
        query=group_by({"week": [1, 2]}, total=["kwh"], clip={"kwh": (0, 3)}),
        periods={"week": [1] * 6 + [2] * 6},
        loads=table,
        states=["empty", "home"],
    )


@pytest.mark.parametrize("engine", READ)
@pytest.mark.parametrize(
    ("template", "table"),
    [(prevalence, TABLE), (volume, TABLE), (supplier, TABLE), (occupancy, LOADS)],
)
def test_templates_have_the_moments_of_rows_in_memory(engine, held_by, template, table):
    wanted, found = template(table), template(held_by(engine, table))
    assert found.description() == wanted.description()
    assert found.distributions_digest() == wanted.distributions_digest()
    distributions = found.priors[0].distributions
    for name, rows in wanted.priors[0].distributions.items():
        np.testing.assert_allclose(distributions[name].row_mean, rows.row_mean, rtol=1e-12)
        np.testing.assert_allclose(distributions[name].row_cov, rows.row_cov, atol=1e-12)
    certificate = ps.certify_release(found, ps.Guarantee.guess(at_most=0.7))
    assert ps.verify(certificate, scenario=wanted).holds


@pytest.mark.parametrize("engine", READ)
def test_a_query_without_conditions_has_one_group(engine, held_by):
    query = summary(total=["pay"], clip={"pay": (0, 100)})
    wanted, found = (
        ps.Scenario.from_volume(table, query=query, up_to=400)
        for table in (TABLE, held_by(engine, TABLE))
    )
    assert found.distributions_digest() == wanted.distributions_digest()


@pytest.mark.parametrize("engine", READ)
def test_what_the_holder_is_told(engine, held_by):
    table = pa.table(
        {
            "gain": pa.array([math.nan, None, math.inf, -math.inf, 5.0, 25_000.0, -1.0]),
            "whole": pa.array([1, 2, None, 2**62, 5, 6, 7]),
            "income": ["a"] * 6 + [None],
        }
    )
    clip = {"gain": (0, 20_000), "whole": (2, 9)}
    features = summary(mean=["gain", "whole"], rate={"income": "a"}, clip=clip).features
    wanted, found = (features.unusual(each) for each in (table, held_by(engine, table)))
    assert found == wanted
    gain, whole, income = wanted
    assert (gain.n_rows, gain.n_missing, gain.n_clipped) == (7, 4, 2)
    assert (whole.n_missing, whole.n_clipped, income.n_missing) == (1, 2, 1)
    assert (income.mean_before, gain.mean_after) == (None, 20_005 / 3)


@pytest.mark.parametrize("engine", ["polars", "duckdb", "dataset"])
def test_conditions_on_many_columns_are_not_all_grouped_by(engine, held_by):
    rng = np.random.default_rng(8)
    names = [f"c{k}" for k in range(6)]
    table = pa.table(
        {"sex": rng.choice(["F", "M"], 400)} | {n: rng.integers(0, 7, 400) for n in names}
    )
    query = join(*(contingency_table({name: list(range(6))}) for name in names))
    layout = Layout.of(query.as_sums().features, 20)
    assert 0 < len(layout.grids) < query.dim
    wanted, found = (
        ps.Scenario.from_prevalence(each, column="sex", value="F", within=0.1, query=query)
        for each in (table, held_by(engine, table))
    )
    for name, rows in wanted.priors[0].distributions.items():
        same = found.priors[0].distributions[name]
        np.testing.assert_allclose(same.row_cov, rows.row_cov, atol=1e-15)
        assert list(same.cells) == list(rows.cells) == [*names, "*"]
        for label, cells in rows.cells.items():
            for mine, theirs in zip(same.cells[label], cells, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-15)


def test_a_killed_worker_of_dask_changes_nothing(tmp_path):
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    frames = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    parts = [TABLE.slice(75 * place, 75).to_pandas() for place in range(4)]

    def part_of(place):
        marker = pathlib.Path(folder) / "killed"
        if place == 2 and not marker.exists() and os.getpid() != own:
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return parts[place]

    folder, own = str(tmp_path), os.getpid()
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(
            n_workers=2, processes=True, dashboard_address=":0", host="127.0.0.1"
        ) as cluster,
        distributed.Client(cluster),
    ):
        warnings.simplefilter("ignore")
        table = frames.from_map(part_of, range(4), meta=parts[0][:0])
        found = volume(table)
    assert (tmp_path / "killed").exists()
    wanted = volume(TABLE)
    assert found.distributions_digest() == wanted.distributions_digest()
    assert ps.verify(
        ps.certify_release(found, ps.Guarantee.guess(at_most=0.7)), scenario=wanted
    ).holds


@pytest.mark.parametrize("engine", READ)
def test_a_ledger_knows_a_table_again_wherever_it_is(engine, held_by):
    table = pa.table(
        {
            "sex": ["F", "M", None, "F"] * 5,
            "site": ["a", "b\u0301é", "🦈🏳️‍🌈", None] * 5,
            "kind": pa.array(["p", "q", None, ""] * 5).dictionary_encode(),
            "age": [30.0, 41.0, 52.0, None] * 5,
        }
    )
    query = summary(
        mean=["age"], rate=[("site", "a"), ("kind", "p"), ("age", 41)], clip={"age": (17, 90)}
    )
    scenario = ps.Scenario.from_prevalence(table, column="sex", value="F", within=0.1, query=query)
    marks = []
    for each in (table, held_by(engine, table)):
        rows = released_rows(scenario, each)
        marks.append(table_mark(scenario, rows, fitting_value(scenario, rows)))
    assert marks[0] == marks[1]


@pytest.mark.parametrize("engine", READ)
@pytest.mark.parametrize(
    ("column", "value"),
    [("sex", "F"), ("age", above(50)), ("flag", True), ("whole", 1)],
)
def test_a_ledger_knows_a_secret_wherever_its_table_is(engine, held_by, column, value):
    table = pa.table(
        {
            "sex": ["F", "M", None, "M"] * 50,
            "age": [30.0, 41.0, 52.0, None] * 50,
            "flag": pa.array([True, False] * 100),
            "whole": [1, 2, 2, 3] * 50,
        }
    )
    conditions = [condition for _, condition in conditions_of("value", {column: value})]
    keys = share_keys(rows_of(table), column, conditions)
    assert share_keys(rows_of(held_by(engine, table)), column, conditions) == keys


def test_parts_of_a_budget_in_two_engines(held_by, tmp_path):
    """Declared from an engine, released from another one, verified with rows in memory."""

    def shares(table, column):
        query = summary(mean=[column], clip={column: (0, 100)})
        return ps.Scenario.from_prevalence(
            table, column="race", value="A", within=0.1, query=query, moments_from=EARLIER
        )

    one, two = (held_by(each, TABLE) for each in ("duckdb", "polars"))
    yearbook, monthly = shares(one, "age"), shares(two, "pay")
    budget = ps.certify_budget(
        {"yearbook": yearbook, "monthly": ps.Repeated(monthly, times=2, rows=(250, 350))},
        ps.Guarantee.guess(at_most=0.64),
        shares={"yearbook": 0.6, "monthly": 0.4},
        coupling="independent",
    )
    ledger = tmp_path / "one.ledger"
    released = ps.release(yearbook, two, budget, part="yearbook", ledger=ledger)
    ps.release(monthly, one, budget, part="monthly", period=1, ledger=ledger)
    exact = np.clip(np.array(TABLE["age"].to_pylist(), dtype=float), 0, 100)
    exact = np.where(np.isfinite(exact), exact, 50.0).mean()
    assert abs(released.values[0] - exact) < 8 * released.noise_stds[0] + 1e-3
    in_memory = {"yearbook": shares(TABLE, "age"), "monthly": shares(TABLE, "pay")}
    assert ps.verify(budget, scenario=in_memory).holds


def test_tables_that_were_not_opened_are_not_shown():
    scenario = prevalence(TABLE)
    with pytest.raises(ps.errors.ArgumentError) as caught:
        fitting_value(scenario, TABLE)
    assert "got Table" in str(caught.value)
    table = pa.table({"x": [1.0, 2.0]})
    drawn = ps.Scenario.from_groups(
        pa.table({"g": ["a", "b"] * 2, "x": [1.0, 2.0, 3.0, 4.0]}), **GROUPED
    )
    with pytest.raises(ps.errors.ReleaseError, match="got Table"):
        fitting_value(drawn, table)


def test_the_logger_tells_of_long_work_and_of_no_data(held_by, caplog):
    with caplog.at_level("INFO", logger="pufferslice"):
        scenario = prevalence(held_by("duckdb", TABLE))
        ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.7))
    texts = [record.getMessage() for record in caplog.records]
    assert [text for text in texts if "by duckdb: begins" in text]
    assert texts[-1].startswith("what 3 pairs of worlds differ by: ")
    assert not [text for text in texts for column in TABLE.column_names if column in text]
