# SPDX-License-Identifier: Apache-2.0
"""Templates and releases from files that are read a batch at a time."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from pufferslice import Guarantee, Scenario, certify_release, release
from pufferslice.calibration.noise import SeededTestNoise
from pufferslice.data import readers
from pufferslice.errors import ReleaseError, TableError
from pufferslice.queries import above, summary
from pufferslice.queries.query import RowMoments, mean_and_covariance
from pufferslice.releases.value import fitting_value

SHARES = [0.3, 0.35, 0.4]
QUERY = summary(mean=["x"], rate={"x": above(1.0)}, total=["y"]).with_scales({"total(y)": 1000.0})


@pytest.fixture
def table(rng):
    has = rng.random(5_000) < 0.35
    return pa.table(
        {
            "x": rng.normal(1 + has, 2.0),
            "y": rng.normal(50 + 5 * has, 9.0),
            "ill": np.where(has, "yes", "no"),
        }
    )


@pytest.fixture
def files(tmp_path, table, monkeypatch):
    """The table as several Parquet files of several row groups, read in small batches."""
    monkeypatch.setattr(readers, "ROWS_PER_BATCH", 700)
    for number, start in enumerate(range(0, len(table), 2_000)):
        part = table.slice(start, 2_000)
        pq.write_table(part, tmp_path / f"part-{number}.parquet", row_group_size=900)
    return tmp_path / "*.parquet"


def prevalence(data, query=QUERY, **settings):
    return Scenario.from_prevalence(
        data, column="ill", value="yes", shares=SHARES, query=query, **settings
    )


def assert_close(first, second):
    for secret, one in first.priors[0].declared.items():
        other = second.priors[0].declared[secret]
        np.testing.assert_allclose(one.mean, other.mean, rtol=1e-12)
        np.testing.assert_allclose(one.cov, other.cov, rtol=1e-9, atol=1e-12)


def test_files_give_the_worlds_of_their_table(table, files):
    told = []
    streamed = prevalence(str(files), progress=lambda *now: told.append(now))
    assert_close(streamed, prevalence(table))
    assert told[-1] == (5_000, 5_000)
    assert len(told) >= 9
    sizes = [4_800, 5_000]
    assert_close(
        Scenario.from_volume(files, sizes=sizes, query=QUERY),
        Scenario.from_volume(table, sizes=sizes, query=QUERY),
    )


def test_statistics_that_do_not_add_up_read_the_whole_table(table, files, tmp_path):
    query = summary(std=["y"])
    scenario = prevalence(files, query)
    assert_close(scenario, prevalence(table, query))
    values = [float(fitting_value(scenario, rows)[0]) for rows in (table, files)]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_a_csv_file_may_be_streamed(tmp_path, table):
    pyarrow.csv.write_csv(table, tmp_path / "rows.csv")
    assert_close(prevalence(tmp_path / "rows.csv"), prevalence(table))


def test_draws_read_the_whole_table(table, files):
    settings = {"prior": "draws", "n_draws": 3, "seed": 1, "query": summary(median=["x"])}
    one, other = (prevalence(data, **settings).priors[0].distributions for data in (table, files))
    for secret in one:
        np.testing.assert_array_equal(one[secret].outputs, other[secret].outputs)


def test_a_release_from_files_is_that_of_their_table(table, files, tmp_path):
    scenario = prevalence(files)
    values = [
        np.array([float(x) for x in fitting_value(scenario, rows)]) for rows in (table, str(files))
    ]
    np.testing.assert_allclose(*values, rtol=1e-12)
    noise = SeededTestNoise(seed=2)
    certificate = certify_release(scenario, Guarantee.guess(at_most=0.7), noise=noise)
    released = [
        release(scenario, rows, certificate, ledger=tmp_path / f"{k}.ledger", noise=noise).values
        for k, rows in enumerate((table, files))
    ]
    np.testing.assert_allclose(*released, rtol=1e-9)


def test_rows_without_a_value_are_dropped_or_refused(tmp_path, table):
    x = table["x"].to_pylist()
    x[:2_000] = [None] * 2_000
    table = table.set_column(0, "x", pa.array(x))
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1_000)
    path = tmp_path / "t.parquet"
    with pytest.raises(TableError, match="missing"):
        prevalence(path)
    dropping = QUERY.with_missing("drop-rows")
    streamed, whole = prevalence(path, dropping), prevalence(table, dropping)
    assert_close(streamed, whole)
    # a batch that is missing as a whole is not counted; the others are
    assert whole.n_dropped == 2_000
    assert set(streamed.priors[0].n_rows.values()) == {3_000}


def test_files_that_do_not_fit_are_refused(table, files, tmp_path):
    scenario = prevalence(files)
    with pytest.raises(TableError, match="x"):
        fitting_value(scenario, _written(tmp_path / "other.parquet", table.drop(["x"])))
    with pytest.raises(ReleaseError, match="own size"):
        fitting_value(scenario, _written(tmp_path / "short.parquet", table.slice(0, 10)))
    # values that cannot be used are replaced by a public one: a refusal would be an output
    missing = table.set_column(0, "x", pa.array([None] * len(table), pa.float64()))
    value = fitting_value(scenario, _written(tmp_path / "missing.parquet", missing))
    means = [d.mean for d in scenario.priors[0].declared.values()]
    np.testing.assert_allclose(
        [float(x) for x in value], np.mean(means, axis=0) / QUERY.scales, rtol=1e-12
    )
    records = Scenario.from_groups(table, secret="ill", query=summary(mean=["x"]))  # noqa: S106 - a column
    group = _written(tmp_path / "group.parquet", table.filter(pa.compute.field("ill") == "yes"))
    assert fitting_value(records, group).shape == (1,)


def _written(path, table):
    pq.write_table(table, path)
    return path


def test_moments_of_parts_are_those_of_the_whole(rng):
    rows = rng.normal(1e6, 1.0, size=(1_000, 3))
    moments = RowMoments()
    for part in np.split(rows, [0, 1, 400, 401, 999]):
        moments.add(part)
    assert moments.n_rows == 1_000
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(moments.covariance, np.cov(rows.T, bias=True), rtol=1e-7)
    mean, cov = mean_and_covariance(rows)
    np.testing.assert_array_equal(mean, rows.mean(axis=0))
    np.testing.assert_allclose(cov, np.cov(rows.T, bias=True), rtol=1e-12)
