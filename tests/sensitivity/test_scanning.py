# SPDX-License-Identifier: Apache-2.0
"""Scans of real files: the same bits however rows are cut, stopped or spread; bad files."""

import gzip
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from pufferslice.errors import ScenarioError, StorageError, TableError
from pufferslice.queries import Box, columns
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.histograms import BinnedDistribution, Histograms
from pufferslice.scenario.scenario import Scenario
from pufferslice.scenario.simulator import OutputSimulator
from pufferslice.sensitivity import (
    DistributionPair,
    RowScan,
    gap_tables,
    scan,
    scan_files,
    scan_outputs,
    scan_tables,
    simulated_outputs,
    streamed_scenario,
)
from pufferslice.sensitivity.binned import Tally, bin_grid, binned_tables
from pufferslice.sensitivity.profiles import FiniteProfile

GROUP = "group"
PROFILE = FiniteProfile.uniform(dim=3, n_directions=9, seed=3)
QUERY = columns(["x", "y", "z"]).with_range(Box([-3, -3, 0], [3, 3, 9])).with_scales([1, 2, 0.5])
SCAN = RowScan.of(QUERY, secret=GROUP, profile=PROFILE, n_bins=256)


def people(rng, n):
    """Numbers beside a secret; some of them beyond the range, z whole."""
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

    def test_batches_inside_a_row_group(self, table, whole, tmp_path, monkeypatch):
        monkeypatch.setattr("pufferslice.data.readers.ROWS_PER_BATCH", 333)
        assert scan_files(write(tmp_path / "data", table), SCAN) == whole

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
        seen = []
        assert scan_tables(pieces, SCAN, progress=lambda *told: seen.append(told)) == whole
        assert seen[-1] == (5_000, 0)

    def test_arrays_one_after_the_other(self, table, whole):
        outputs, groups = QUERY.outputs(table), np.array(table["group"].to_pylist())
        blocks = [(group, outputs[groups == group]) for group in ("west", "north", "south")]
        assert scan_outputs(iter(blocks), QUERY, SCAN.grid) == whole

    def test_progress_in_rows(self, table, tmp_path):
        seen = []
        scan_files(write(tmp_path / "data", table), SCAN, progress=lambda *told: seen.append(told))
        assert seen == [(n, 5_000) for n in (1_000, 2_000, 3_000, 4_000, 5_000)]

    def test_a_secret_of_some_files_only(self, table, tmp_path):
        folder = write(tmp_path / "data", table.slice(0, 100))
        extra = people(np.random.default_rng(1), 30).set_column(0, "group", pa.array(["new"] * 30))
        pa.parquet.write_table(extra, folder / "z.parquet")
        assert scan_files(folder, SCAN).n_rows["new"] == 30

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
    def test_costs_are_those_of_the_rows_up_to_two_bins(self, table, tmp_path):
        scan = RowScan.of(QUERY, secret=GROUP, profile=PROFILE)
        histograms = scan_files(write(tmp_path / "data", table), scan)
        scenario = streamed_scenario(histograms, scan)
        exact = Scenario.from_records(table, secret=GROUP, query=QUERY)
        assert scenario.secrets == exact.secrets
        assert scenario.pairs == exact.pairs
        assert scenario.secret == exact.secret
        assert scenario.priors[0].probabilities == exact.priors[0].probabilities
        pairs = [DistributionPair(0, 1), DistributionPair(0, 2), DistributionPair(1, 2)]
        distributions, atoms = (list(s.priors[0].distributions.values()) for s in (scenario, exact))
        assert all(isinstance(distribution, BinnedDistribution) for distribution in distributions)
        assert all(isinstance(distribution, FiniteDistribution) for distribution in atoms)
        above = binned_tables(distributions, pairs, PROFILE.directions).worst()
        true = gap_tables(atoms, pairs, PROFILE.directions).worst()
        assert (above >= true).all()
        assert (above <= true + 2 * (scan.grid.widths + scan.grid.errors)).all()

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

    def test_infinite_values_are_counted_with_file_and_row_group(self, table, tmp_path):
        x = table["x"].to_numpy().copy()
        x[[4_000, 4_400]] = np.inf
        folder = write(tmp_path / "data", table.set_column(1, "x", pa.array(x)), n_files=2)
        match = r"part-001.parquet', row group 1: column 'x' has 2 infinite values in 1000 rows"
        with pytest.raises(TableError, match=match):
            scan_files(folder, SCAN)

    def test_values_outside_the_range(self, table, tmp_path):
        scan = RowScan.of(
            columns(["x", "y", "z"]),
            secret=GROUP,
            profile=PROFILE,
            range=Box([-20, -20, 0], [20, 20, 8]),
        )
        n_nines = int((table.slice(0, 1_000)["z"].to_numpy() == 9).sum())
        match = rf"row group 0: {n_nines} of 1000 rows .*'z' {n_nines}\).*with_range"
        with pytest.raises(ScenarioError, match=match):
            scan_files(write(tmp_path / "data", table), scan)

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
        (folder / "q.parquet").write_bytes(b"")
        with pytest.raises(TableError, match="is an empty file"):
            scan_files(folder, SCAN)

    def test_empty_folder_and_other_kinds(self, tmp_path):
        with pytest.raises(TableError, match="must hold Parquet files"):
            scan_files(tmp_path, SCAN)
        with pytest.raises(TableError, match=r"must end in .csv"):
            scan_files(tmp_path / "people.xlsx", SCAN)

    def test_csv_with_a_header_only(self, tmp_path):
        (tmp_path / "people.csv").write_text("group,x,y,z\n")
        with pytest.raises(TableError, match=r"people.csv' has no rows"):
            scan_files(tmp_path / "people.csv", SCAN)

    def test_unknown_column(self, table, tmp_path):
        folder = write(tmp_path / "data", table.drop_columns(["y"]))
        with pytest.raises(TableError, match="there is no column 'y'"):
            scan_files(folder, SCAN)

    def test_no_tables(self):
        with pytest.raises(TableError, match="no rows to count"):
            scan_tables([], SCAN)

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
    def test_a_stopped_scan_goes_on(self, table, whole, tmp_path, monkeypatch, often, kind):
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
        seen = []
        found = scan_files(data, SCAN, checkpoint=saved, progress=lambda n, _: seen.append(n))
        assert found == whole
        assert seen[0] > 2_000
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
        said = {"query": QUERY, "secret": "group", "profile": PROFILE, "n_bins": 256} | change
        before = saved.read_bytes()
        with pytest.raises(StorageError, match=f"made with another {what}; its counts"):
            scan_files(data, RowScan.of(said.pop("query"), **said), checkpoint=saved)
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

    def test_damaged_histograms_are_refused(self, table, tmp_path):
        data, saved = write(tmp_path / "data", table), tmp_path / "scan.part"
        scan_files(data, SCAN, checkpoint=saved)
        saved.write_bytes(saved.read_bytes()[:-500])
        with pytest.raises(StorageError, match="or it is damaged"):
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

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_a_signal_in_the_middle_leaves_nothing_half_written(
        self, table, whole, tmp_path, number
    ):
        data, saved = write(tmp_path / "data", table, n_files=10), tmp_path / "out" / "scan.part"
        saved.parent.mkdir()
        script = tmp_path / "scan.py"
        script.write_text(
            "import sys, time\n"
            "from pufferslice.queries import Box, columns\n"
            "from pufferslice.sensitivity.profiles import FiniteProfile\n"
            "from pufferslice.sensitivity import RowScan, checkpoint, scan_files\n"
            "checkpoint.SECONDS_BETWEEN = 0.0\n"
            "profile = FiniteProfile.uniform(dim=3, n_directions=9, seed=3)\n"
            "box = Box([-3, -3, 0], [3, 3, 9])\n"
            'query = columns(["x", "y", "z"]).with_range(box).with_scales([1, 2, 0.5])\n'
            'scan = RowScan.of(query, secret="group", profile=profile, n_bins=256)\n'
            "def slowly(done, total):\n"
            "    print(done, flush=True)\n"
            "    time.sleep(0.05)\n"
            "scan_files(sys.argv[1], scan, checkpoint=sys.argv[2], progress=slowly)\n"
        )
        command = [sys.executable, str(script), str(data), str(saved)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            for line in process.stdout:
                if int(line) >= 2_000:
                    break
            time.sleep(0.02)
            os.kill(process.pid, number)
            process.communicate(timeout=60)
        assert process.returncode != 0
        kept = [path.name for path in saved.parent.iterdir()]
        assert "scan.part" in kept
        if number == signal.SIGINT:
            assert kept == ["scan.part"]
        seen = []
        found = scan_files(data, SCAN, checkpoint=saved, progress=lambda n, _: seen.append(n))
        assert found == whole
        assert seen[0] > 500


def test_an_interrupted_scan_without_checkpoint_leaves_no_thread(table, tmp_path):
    before = threading.active_count()
    with pytest.raises(Stop):
        scan_files(write(tmp_path / "data", table), SCAN, progress=stop_after(1))
    assert threading.active_count() == before


def test_histograms_of_nothing_add_up():
    assert Histograms.none(SCAN.grid).n_rows == {}
