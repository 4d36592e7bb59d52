# SPDX-License-Identifier: Apache-2.0
"""Groups of rows: tables, histograms, hours and days, against pandas and counting by hand."""

from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from pufferslice.data.frames import WEEKDAYS, frame_of
from pufferslice.errors import TableError
from pufferslice.queries import (
    at_least,
    between,
    columns,
    contingency_table,
    day,
    days,
    equals,
    group_by,
    histogram,
    hour,
    hours,
    intervals,
    months,
    quarters,
    summary,
    weekday,
    weekdays,
    weeks,
    years,
)

RNG = np.random.default_rng(8)
N = 300
START = pd.Timestamp("2026-01-01") + pd.to_timedelta(RNG.integers(0, 21 * 24 * 60, N), unit="min")
DATA = {
    "sex": RNG.choice(["F", "M"], N),
    "age": RNG.integers(17, 90, N),
    "pay": RNG.normal(30, 9, N),
    "start": START.to_numpy().astype("datetime64[us]"),
}
FRAME = pd.DataFrame(DATA)
TABLES = {"pandas": FRAME, "polars": pl.DataFrame(DATA), "pyarrow": pa.table(DATA)}


def test_group_by_agrees_with_pandas():
    query = group_by(
        {"sex": ["M", "F"], "age": [at_least(50)]},
        std=["pay"],
        mean=["pay"],
        median=["age"],
        rate={"pay": at_least(30)},
        quantile={"pay": 0.25},
        correlation=[("age", "pay")],
        count_share=100,
    )
    assert query.names[:2] == (
        "std(pay | sex = M, age >= 50)",
        "mean(pay | sex = M, age >= 50)",
    )
    assert query.names[6] == "count/100 | sex = M, age >= 50"
    expected = []
    for sex in "MF":
        part = FRAME[(FRAME["sex"] == sex) & (FRAME["age"] >= 50)]
        expected += [
            part["pay"].std(ddof=0),
            part["pay"].mean(),
            part["age"].median(),
            (part["pay"] >= 30).mean(),
            part["pay"].quantile(0.25),
            part["pay"].corr(part["age"]),
            len(part) / 100,
        ]
    for table in TABLES.values():
        np.testing.assert_allclose(query.outputs(table)[0], expected, rtol=1e-12)


def test_a_group_without_rows_is_zero():
    query = group_by({"sex": ["X"]}, mean=["pay"], median=["pay"], std=["pay"], total=["pay"])
    np.testing.assert_array_equal(query.outputs(FRAME), np.zeros((1, 4)))


@pytest.mark.parametrize("statistic", ["count", "rate"])
def test_contingency_table_agrees_with_pandas(statistic):
    query = contingency_table(
        {"sex": ["F", "M"], "age": intervals([17, 40, 90])}, statistic=statistic
    )
    assert query.names[1] == f"{statistic}(sex = F, 40 <= age < 90)"
    table = pd.crosstab(FRAME["sex"], pd.cut(FRAME["age"], [17, 40, 90], right=False))
    expected = table.to_numpy().reshape(-1) / (1 if statistic == "count" else N)
    np.testing.assert_allclose(query.outputs(FRAME)[0], expected, rtol=1e-15)
    assert query.range_of(dict.fromkeys(query.names, (0, 1))).low.tolist() == [0.0] * 4


def test_histogram_agrees_with_numpy():
    edges = [17, 30, 45, 60, 90]
    query = histogram("age", edges, statistic="count", scales=[10] * 4)
    np.testing.assert_array_equal(query.outputs(FRAME)[0], np.histogram(DATA["age"], edges)[0])
    assert query.kind == "histogram"
    assert query.scales.tolist() == [10] * 4
    # An empty bin is no mistake, unlike a condition that nobody meets.
    empty = histogram("age", [200, 300], statistic="count")
    assert empty.coordinates[0].column is None


class TestCalendar:
    @pytest.mark.parametrize("name", TABLES)
    def test_hours_days_and_weekdays_against_pandas(self, name):
        table = TABLES[name]
        hourly = contingency_table({"start": hours()}, statistic="count").outputs(table)[0]
        expected = FRAME["start"].dt.hour.value_counts().reindex(range(24), fill_value=0)
        np.testing.assert_array_equal(hourly, expected)
        weekly = group_by({"start": weekdays()}, total=["pay"]).outputs(table)[0]
        sums = FRAME.groupby(FRAME["start"].dt.day_name())["pay"].sum()
        np.testing.assert_allclose(weekly, sums.reindex(WEEKDAYS), rtol=1e-12)
        daily = group_by({"start": days("2026-01-05", date(2026, 1, 9))}, mean=["pay"])
        means = FRAME.groupby(FRAME["start"].dt.strftime("%Y-%m-%d"))["pay"].mean()
        wanted = [f"2026-01-0{k}" for k in range(5, 10)]
        np.testing.assert_allclose(daily.outputs(table)[0], means.reindex(wanted), rtol=1e-12)
        assert daily.names[0] == "mean(pay | day of start = 2026-01-05)"

    @pytest.mark.parametrize("name", TABLES)
    def test_weeks_months_quarters_and_years_against_pandas(self, name):
        times = pd.Timestamp("2024-12-25") + pd.to_timedelta(RNG.integers(0, 600, N), unit="D")
        table = pd.DataFrame({"start": times.to_numpy().astype("datetime64[us]")})
        groups = {
            "%G-W%V": weeks("2024-W52", "2026-W20"),
            "%Y-%m": months("2024-12", "2026-02"),
            "%Y": years(2024, 2026),
        }
        wanted = [
            times.strftime(pattern).value_counts().reindex([c.value for c in conditions])
            for pattern, conditions in groups.items()
        ]
        parts = times.to_period("Q").astype(str).str.replace("Q", "-Q").value_counts()
        wanted.append(parts.reindex([c.value for c in quarters("2024-Q4", "2026-Q3")]))
        make = {"pandas": lambda x: x, "polars": pl.from_pandas, "pyarrow": pa.Table.from_pandas}
        native = make[name](table)
        queries = [
            contingency_table({"start": c})
            for c in (*groups.values(), quarters("2024-Q4", "2026-Q3"))
        ]
        for query, counts in zip(queries, wanted, strict=True):
            np.testing.assert_array_equal(query.outputs(native)[0], counts.fillna(0))
            sums = query.features.outputs(frame_of(native), 20)
            np.testing.assert_array_equal(np.array(sums, dtype=float), counts.fillna(0))
        assert queries[0].names[0] == "count(week of start = 2024-W52)"

    def test_conditions_in_rates_and_flags(self):
        table = pa.table(
            {"at": [datetime(2026, 1, 5, 20, tzinfo=UTC), datetime(2026, 1, 6, 3, tzinfo=UTC)]}
        )
        rates = [("at", hour(20)), ("at", weekday("Tuesday")), ("at", day("2026-01-07"))]
        query = summary(rate=rates)
        assert query.names[1] == "rate(weekday of at = Tuesday)"
        assert query.outputs(table).tolist() == [[0.5, 0.5, 0.0]]
        flags = columns([], flags=[("at", hour(20))])
        assert flags.outputs(table).tolist() == [[1.0], [0.0]]
        assert query.parameters["rate"][0] == {"column": "at", "hour": 20}

    def test_times_with_a_zone_are_read_in_it(self):
        moment = datetime(2026, 1, 5, 23, 30, tzinfo=UTC)
        times = pa.array([moment], type=pa.timestamp("us", tz="Europe/Zurich"))
        query = summary(rate=[("at", hour(0)), ("at", weekday("Tuesday"))])
        assert query.outputs(pa.table({"at": times})).tolist() == [[1.0, 1.0]]

    def test_dates_have_no_hour(self):
        table = pa.table({"at": [date(2026, 1, 5)]})
        assert summary(rate={"at": weekday("Monday")}).outputs(table).tolist() == [[1.0]]
        with pytest.raises(TableError, match="must hold times"):
            summary(rate={"at": hour(3)}).outputs(table)
        with pytest.raises(TableError, match="must hold dates or times"):
            summary(rate={"at": day("2026-01-05")}).outputs(pa.table({"at": ["2026-01-05"]}))


def test_between_holds_its_low_end_only():
    table = pa.table({"age": [16.9, 17, 29.9, 30]})
    assert summary(count={"age": between(17, 30)}).outputs(table)[0, 0] == 2
    assert summary(count={"age": equals(17)}).outputs(table)[0, 0] == 1
