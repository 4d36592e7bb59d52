# SPDX-License-Identifier: Apache-2.0
"""Scans of rows and files: the same bits however rows are cut or interrupted; bad input."""

import gzip
import json
import stat
import threading

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from pufferslice.data.frames import frame_of
from pufferslice.errors import ArgumentError, ScenarioError, StorageError, TableError
from pufferslice.queries import Ball, Box, columns, summary
from pufferslice.scenario.secrets import Bins, ColumnSecret
from pufferslice.scenario.simulator import OutputSimulator
from pufferslice.sensitivity import (
    RowScan,
    scan,
    scan_files,
    scan_outputs,
    scan_tables,
    simulated_outputs,
    streamed_scenario,
)
from pufferslice.sensitivity.binned import Tally, bin_grid
from pufferslice.sensitivity.profiles import FiniteProfile

GROUP = "group"
PROFILE = FiniteProfile.uniform(dim=3, n_directions=9, seed=3)
QUERY = columns(["x", "y", "z"]).with_range(Box([-3, -3, 0], [3, 3, 9])).with_scales([1, 2, 0.5])
SCAN = RowScan.of(QUERY, secret=GROUP, profile=PROFILE, n_bins=256)


def people(rng, n):
    """Numbers beside a secret; some of them beyond the range, z an integer."""
    groups = rng.choice(["north", "south", "west"], size=n, p=[0.5, 0.3, 0.2])
    numbers = rng.normal(size=(n, 2)) + (groups == "north")[:, None]
    z = rng.integers(0, 10, size=n)
    return pa.table({"group": groups, "x": numbers[:, 0], "y": numbers[:, 1], "z": z})


@pytest.fixture
def table(rng):
    return people(rng, 5_000)


@pytest.fixture
def whole(table):
    """The histograms of all rows at once."""
    tally = Tally(SCAN.grid, 1)
    rows = SCAN.rows(table)
    tally.add_rows(rows)
    return tally.histograms()


def write(folder, table, *, n_files=1, row_group_size=1_000):
    folder.mkdir(exist_ok=True)
    size = -(-table.num_rows // n_files)
    for index in range(n_files):
        part = table.slice(index * size, size)
        path = folder / f"part-{index:03}.parquet"
        pa.parquet.write_table(part, path, row_group_size=row_group_size)
    return folder


class TestSameBits:
    @pytest.mark.parametrize(("n_files", "row_group_size"), [(1, 5_000), (1, 77), (7, 300)])
    def test_parquet_however_it_is_cut(self, table, whole, tmp_path, n_files, row_group_size):
        folder = write(tmp_path / "data", table, n_files=n_files, row_group_size=row_group_size)
        assert scan_files(folder, SCAN) == whole
        assert scan_files(f"{folder}/part-*.parquet", SCAN) == whole

    @pytest.mark.parametrize("name", ["people.csv", "people.tsv", "people.csv.gz"])
    def test_csv(self, table, whole, tmp_path, monkeypatch, name):
        monkeypatch.setattr("pufferslice.data.readers._BYTES_PER_BATCH", 10_000)
        path = tmp_path / name
        options = pa.csv.WriteOptions(delimiter="\t" if ".tsv" in name else ",")
        opener = gzip.open if name.endswith("gz") else open
        with opener(path, "wb") as file:
            pa.csv.write_csv(table, file, options)
        assert scan_files(path, SCAN) == whole

    def test_tables_one_after_the_other(self, table, whole):
        pieces = (table.slice(start, 613) for start in range(0, 5_000, 613))
        reports = []
        assert scan_tables(pieces, SCAN, progress=lambda *counts: reports.append(counts)) == whole
        assert reports[-1] == (5_000, 0)

    def test_arrays_one_after_the_other(self, table, whole):
        outputs, groups = QUERY.outputs(table), np.array(table["group"].to_pylist())
        blocks = [(group, outputs[groups == group]) for group in ("west", "north", "south")]
        assert scan_outputs(iter(blocks), QUERY, SCAN.grid) == whole

    def test_progress_in_rows(self, table, tmp_path):
        reports = []
        scan_files(
            write(tmp_path / "data", table), SCAN, progress=lambda *counts: reports.append(counts)
        )
        assert reports == [(n, 5_000) for n in (1_000, 2_000, 3_000, 4_000, 5_000)]

    def test_dropped_rows_are_counted(self, table, tmp_path):
        holes = table.set_column(1, "x", pa.array([None] * 10 + table["x"].to_pylist()[10:]))
        folder = write(tmp_path / "data", holes, row_group_size=10)
        scan = RowScan.of(
            QUERY.with_missing("drop-rows"), secret=GROUP, profile=PROFILE, n_bins=256
        )
        found = scan_files(folder, scan)
        assert found.n_dropped == 10
        assert sum(found.n_rows.values()) == 4_990


class TestScenario:
    def test_groups_of_one_row_are_refused(self, table, tmp_path):
        one = table.slice(0, 1).set_column(0, "group", pa.array(["alone"]))
        histograms = scan_tables([table, one], SCAN)
        with pytest.raises(ScenarioError, match="at least 2 rows; 1 of the 4 values"):
            streamed_scenario(histograms, SCAN)

    def test_histograms_of_another_scan_are_refused(self, whole):
        other = RowScan.of(QUERY, secret=GROUP, profile=PROFILE, n_bins=8)
        with pytest.raises(ScenarioError, match="another scan"):
            streamed_scenario(whole, other)

    def test_chosen_pairs(self, whole):
        scenario = streamed_scenario(whole, SCAN, pairs=[("south", "north")])
        assert [tuple(pair) for pair in scenario.pairs] == [("north", "south")]


class TestSimulators:
    def test_draws_come_in_blocks_and_the_same_again(self):
        world = OutputSimulator(draw_outputs=lambda rng, n: rng.normal(size=(n, 3)))
        worlds = {name: world.sampled(n_draws=70_000, seed=5) for name in ("a", "b")}
        grid = bin_grid(QUERY, PROFILE, n_bins=64)
        sizes = [len(block) for _, block in simulated_outputs(worlds, QUERY)]
        assert sizes == [65_536, 4_464] * 2
        first = scan_outputs(simulated_outputs(worlds, QUERY), QUERY, grid)
        assert first == scan_outputs(simulated_outputs(worlds, QUERY), QUERY, grid)
        assert first.n_rows == {"a": 70_000, "b": 70_000}
        assert not np.array_equal(*first.counts)

    def test_bad_blocks_are_named(self):
        grid = bin_grid(QUERY, PROFILE, n_bins=64)
        blocks = [("a", np.zeros((3, 3))), ("b", np.full((3, 3), np.nan))]
        with pytest.raises(
            ScenarioError, match=r"block 1: 3 of 3 rows are NaN or infinite .*'x' 3"
        ):
            scan_outputs(blocks, QUERY, grid)
        infinite = [("a", np.array([[0.0, np.inf, 0.0], [0.0, 0.0, 0.0]]))]
        with pytest.raises(ScenarioError, match=r"1 of 2 rows are NaN or infinite \('y' 1\)"):
            scan_outputs(infinite, QUERY, grid)
        with pytest.raises(ScenarioError, match=r"outputs must have shape \(n, 3\)"):
            scan_outputs([("a", np.zeros(3))], QUERY, grid)
        with pytest.raises(ScenarioError, match="counted on a public range"):
            scan_outputs(blocks, columns(["x", "y", "z"]), grid)


class TestBadFiles:
    def test_missing_values_are_counted_with_file_and_row_group(self, table, tmp_path, monkeypatch):
        """The count is that of the row group, though the batch that shows it is smaller."""
        monkeypatch.setattr("pufferslice.data.readers.ROWS_PER_BATCH", 100)
        x = table["x"].to_numpy().copy()
        x[[2_000, 2_001, 2_950]] = np.nan
        folder = write(tmp_path / "data", table.set_column(1, "x", pa.array(x)))
        match = r"part-000.parquet', row group 2: 3 of 1000 rows have missing values .*'x' 3"
        with pytest.raises(TableError, match=match):
            scan_files(folder, SCAN)

    def test_different_schemas(self, table, tmp_path):
        folder = write(tmp_path / "data", table)
        other = table.set_column(3, "z", table["z"].cast(pa.float64()))
        pa.parquet.write_table(other, folder / "q.parquet")
        with pytest.raises(TableError, match="same columns and types; they differ in z"):
            scan_files(folder, SCAN)

    def test_empty_files(self, table, tmp_path):
        folder = write(tmp_path / "data", table)
        pa.parquet.write_table(table.slice(0, 0), folder / "q.parquet")
        with pytest.raises(TableError, match=r"q.parquet' has no rows; remove it"):
            scan_files(folder, SCAN)

    def test_csv_with_a_header_only(self, tmp_path):
        (tmp_path / "people.csv").write_text("group,x,y,z\n")
        with pytest.raises(TableError, match=r"people.csv' has no rows"):
            scan_files(tmp_path / "people.csv", SCAN)

    def test_only_missing_rows(self):
        scan = RowScan.of(QUERY.with_missing("drop-rows"), secret=GROUP, profile=PROFILE)
        hole = pa.table({"group": ["a"], "x": [np.nan], "y": [0.0], "z": [1]})
        with pytest.raises(TableError, match="all 1 have missing values"):
            scan_tables([hole], scan)
        with pytest.raises(TableError, match=r"table 0: .*no column 'x'"):
            scan_tables([hole.drop_columns(["x"])], scan)


class Stop(Exception):  # noqa: N818 - not an error
    """Raised in the middle of a scan."""


def stop_after(n_rows):
    def progress(done, total):
        if done >= n_rows:
            raise Stop

    return progress


class TestCheckpoint:
    @pytest.fixture
    def often(self, monkeypatch):
        monkeypatch.setattr(scan, "SECONDS_BETWEEN", 0.0)

    @pytest.mark.parametrize("kind", ["parquet", "csv"])
    def test_an_interrupted_scan_resumes(self, table, whole, tmp_path, monkeypatch, often, kind):
        monkeypatch.setattr("pufferslice.data.readers.ROWS_PER_BATCH", 250)
        monkeypatch.setattr("pufferslice.data.readers._BYTES_PER_BATCH", 10_000)
        data = tmp_path / "people.csv"
        if kind == "csv":
            pa.csv.write_csv(table, data)
        else:
            data = write(tmp_path / "data", table, n_files=3)
        saved = tmp_path / "scan.part"
        with pytest.raises(Stop):
            scan_files(data, SCAN, checkpoint=saved, progress=stop_after(2_700))
        reports = []
        found = scan_files(data, SCAN, checkpoint=saved, progress=lambda n, _: reports.append(n))
        assert found == whole
        assert reports[0] > 2_000
        again = []
        assert scan_files(data, SCAN, checkpoint=saved, progress=lambda n, _: again.append(n))
        assert not again
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
        assert stat.S_IMODE(saved.stat().st_mode) == 0o600

    def test_batches_of_another_size_change_nothing(
        self, table, whole, tmp_path, monkeypatch, often
    ):
        data, saved = write(tmp_path / "data", table), tmp_path / "scan.part"
        monkeypatch.setattr("pufferslice.data.readers.ROWS_PER_BATCH", 300)
        with pytest.raises(Stop):
            scan_files(data, SCAN, checkpoint=saved, progress=stop_after(2_500))
        monkeypatch.setattr("pufferslice.data.readers.ROWS_PER_BATCH", 70)
        assert scan_files(data, SCAN, checkpoint=saved) == whole

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            ({"profile": FiniteProfile.uniform(dim=3, n_directions=9, seed=4)}, "profile"),
            ({"n_bins": 128}, "range"),
            ({"secret": "z"}, "query"),
            ({"query": QUERY.with_range(Box([-3, -3, 0], [3, 3, 8]))}, "query and range"),
            ({"query": QUERY.with_scales([1, 2, 1])}, "query and range"),
        ],
    )
    def test_another_scan_is_refused(self, table, tmp_path, change, what):
        data, saved = write(tmp_path / "data", table), tmp_path / "scan.part"
        scan_files(data, SCAN, checkpoint=saved)
        options = {"query": QUERY, "secret": "group", "profile": PROFILE, "n_bins": 256} | change
        before = saved.read_bytes()
        with pytest.raises(StorageError, match=f"made with another {what}; its counts"):
            scan_files(data, RowScan.of(options.pop("query"), **options), checkpoint=saved)
        assert saved.read_bytes() == before

    def test_changed_data_is_refused(self, table, tmp_path):
        data, saved = write(tmp_path / "data", table), tmp_path / "scan.part"
        scan_files(data, SCAN, checkpoint=saved)
        write(data, table.slice(1))
        with pytest.raises(StorageError, match="another data"):
            scan_files(data, SCAN, checkpoint=saved)

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"hello",
            b"{}\n\0\nrest",
            b"[1]\n\0\n",
            b'{"format": "pufferslice-scan", "version": 1}\n\0\n',
            b'{"format": "pufferslice-scan", "version": 1, "identity": {}, "position": [""]}\n\0\n',
        ],
    )
    def test_another_file_is_refused(self, table, tmp_path, content):
        data, saved = write(tmp_path / "data", table), tmp_path / "scan.part"
        saved.write_bytes(content)
        with pytest.raises(StorageError, match="not a checkpoint of a scan"):
            scan_files(data, SCAN, checkpoint=saved)

    @pytest.mark.soundness
    @pytest.mark.parametrize("part", ["position", "counts"])
    def test_counts_beside_another_position_are_refused(self, table, tmp_path, often, part):
        """Else rows would be counted twice, or not at all."""
        data, saved = write(tmp_path / "data", table, n_files=3), tmp_path / "scan.part"
        with pytest.raises(Stop):
            scan_files(data, SCAN, checkpoint=saved, progress=stop_after(2_000))
        early, _, early_counts = saved.read_bytes().partition(b"\n\0\n")
        scan_files(data, SCAN, checkpoint=saved)
        late, _, late_counts = saved.read_bytes().partition(b"\n\0\n")
        head = json.loads(early if part == "counts" else late)
        if part == "position":
            head["position"] = [0, 0, 0]
        mixed = json.dumps(head).encode() + b"\n\0\n" + late_counts
        assert early_counts != late_counts
        saved.write_bytes(mixed)
        with pytest.raises(StorageError, match="or it is damaged"):
            scan_files(data, SCAN, checkpoint=saved)


def test_an_interrupted_scan_without_checkpoint_leaves_no_thread(table, tmp_path):
    before = threading.active_count()
    with pytest.raises(Stop):
        scan_files(write(tmp_path / "data", table), SCAN, progress=stop_after(1))
    assert threading.active_count() == before


RACE = "race"
AGES = columns(["age"]).with_range(Box([0], [100]))


def scan_of(query=AGES, secret=RACE, **options):
    return RowScan.of(query, secret=secret, profile=FiniteProfile.axes(dim=query.dim), **options)


def labels(rows):
    return [rows.secrets[code] for code in rows.codes]


class TestSecrets:
    @pytest.mark.parametrize(
        "values",
        [
            ["b", "a", "b"],
            pa.array(["b", "a", "b"]).dictionary_encode(),
            [2, 1, 2],
            [2.0, 1.0, 2.0],
            [0.0, -0.0, 1.5],
            [True, False, True],
        ],
        ids=["text", "category", "whole", "real", "minus zero", "flag"],
    )
    def test_labels_are_those_of_the_whole_table(self, values):
        table = pa.table({"race": values, "age": [1, 2, 3]})
        rule = ColumnSecret(columns=("race",))
        rows = scan_of().rows(table)
        assert labels(rows) == rule.labels(frame_of(table)).tolist()
        assert len(set(rows.secrets)) == len(rows.secrets)

    def test_every_clipped_row_of_both_zeros_is_counted(self):
        """Arrow tells 0.0 from -0.0; as secrets they are one."""
        table = pa.table({"race": [0.0, -0.0, 1.0, 1.0], "age": [150.0, 160.0, 1.0, 2.0]})
        assert scan_tables([table], scan_of()).n_clipped.tolist() == [2, 0]

    @pytest.mark.soundness
    @pytest.mark.parametrize(("first", "second"), [("a &", "b"), ("a", "& b"), ("a & b", "c")])
    def test_labels_that_joined_columns_could_merge_are_refused(self, first, second):
        """'a &' with 'b' and 'a' with '& b' would both be 'a & & b'."""
        table = pa.table({"sex": [first], "race": [second], "age": [1]})
        with pytest.raises(ScenarioError, match="two secrets could become one"):
            scan_of(secret=["sex", "race"]).rows(table)

    def test_objects_of_several_kinds_are_refused_and_not_shown(self):
        table = pd.DataFrame({"race": pd.Series([17, "x"], dtype=object), "age": [1.0, 2.0]})
        with pytest.raises(TableError, match="type is Object") as caught:
            scan_of().rows(table)
        assert "17" not in str(caught.value)
        assert caught.value.__context__ is None

    def test_many_values_in_many_columns(self, rng):
        """More combinations than rows, and than fit a small table."""
        n = 500
        table = {f"c{k}": rng.integers(400, size=n).astype(str) for k in range(5)}
        rows = scan_of(secret=list(table)).rows(pa.table({**table, "age": np.zeros(n)}))
        expected = [" & ".join(row) for row in zip(*table.values(), strict=True)]
        assert labels(rows) == expected

    @pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pa.table])
    def test_any_dataframe(self, frame):
        rows = scan_of().rows(frame({"race": ["b", "a"], "age": [10.0, 150.0], "other": [1, 2]}))
        assert labels(rows) == ["b", "a"]
        assert rows.outputs.tolist() == [[10.0], [100.0]]


class TestBadRows:
    def test_missing_values_are_counted_by_column(self):
        table = pa.table({"race": ["a", None, "b"], "age": [float("nan"), None, 3.0]})
        with pytest.raises(TableError, match=r"2 of 3 rows have missing .*'race' 1, 'age' 2"):
            scan_of().rows(table)

    def test_missing_rows_can_be_left_out(self):
        scan = scan_of(AGES.with_missing("drop-rows"))
        rows = scan.rows(pa.table({"race": ["a", None, "b"], "age": [1.0, 2.0, None]}))
        assert (labels(rows), rows.n_dropped) == (["a"], 2)
        none = scan.rows(pa.table({"race": pa.array([None], pa.string()), "age": [2.0]}))
        assert (none.outputs.shape, none.n_dropped) == ((0, 1), 1)

    def test_outside_the_range_without_clipping(self):
        scan = scan_of(columns(["age", "pay"]), range=Box([0, 0], [100, 10]))
        table = pa.table({"race": ["a"] * 4, "age": [1, 101, -1, 5], "pay": [1, 11, 2, 3]})
        with pytest.raises(ScenarioError, match=r"2 of 4 rows .*\('age' 2, 'pay' 1\).*with_range"):
            scan.rows(table)
        inside = scan.rows(pa.table({"race": ["a"], "age": [100], "pay": [0]}))
        assert inside.outputs.tolist() == [[100.0, 0.0]]

    def test_outside_a_ball_without_clipping(self):
        scan = scan_of(columns(["age", "pay"]), range=Ball([0, 0], 5))
        with pytest.raises(ScenarioError, match="1 of 2 rows lie outside the public range"):
            scan.rows(pa.table({"race": ["a"] * 2, "age": [3, 5], "pay": [4, 5]}))


class TestWhatCanBeStreamed:
    def test_queries_of_a_table_are_refused_with_the_way_out(self):
        query = summary(mean=["age"]).with_range(Box([0], [100]))
        with pytest.raises(ScenarioError, match=r"distribution 'records'.*read_table"):
            scan_of(query)

    def test_quantile_secrets_are_refused_with_the_way_out(self):
        with pytest.raises(ScenarioError, match="add a column with the bin of each row"):
            scan_of(secret=Bins(column="age", quantiles=4))

    def test_null_values_are_a_list(self):
        with pytest.raises(ArgumentError, match="null_values must be a list"):
            scan_of(null_values="?")
