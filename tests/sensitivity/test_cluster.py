# SPDX-License-Identifier: Apache-2.0
"""Scans on a real local cluster of two worker processes; killed workers; bad input."""

import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from functools import partial

import attrs
import dask.dataframe
import dask.sizeof
import distributed
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from pufferslice.errors import (
    ArgumentError,
    ClusterError,
    PuffersliceError,
    ScenarioError,
    StorageError,
    TableError,
)
from pufferslice.queries import Box, columns, row_function
from pufferslice.sensitivity import (
    RowScan,
    cluster,
    scan,
    scan_files,
    spill_files,
    streamed_scenario,
)
from pufferslice.sensitivity.cluster import (
    ClusterStrata,
    cluster_client,
    scan_cluster_files,
    scan_dask_frame,
    spill_cluster_files,
    spill_dask_frame,
)
from pufferslice.sensitivity.couplings import Recipe
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.sensitivity import full_sensitivity
from pufferslice.sensitivity.strata import Cut

GROUP = "group"
PROFILE = FiniteProfile.uniform(dim=2, n_directions=8, seed=3)
QUERY = columns(["x", "y"]).with_range(Box([-3, -3], [3, 3])).with_scales([1, 2])
SCAN = RowScan.of(QUERY, secret=GROUP, profile=PROFILE, n_bins=128)


@pytest.fixture(scope="module")
def client():
    with cluster_client(workers=2) as client:
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory, seed):
    """Twelve files of two row groups, one of them with a secret of its own."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(seed)
    for index in range(12):
        groups = rng.choice(["a", "b"] if index else ["a", "rare"], size=2_000)
        x, y = rng.normal(size=(2, 2_000)) + (groups == "a")
        table = pa.table({"group": groups, "x": x, "y": y, "other": np.zeros(2_000)})
        pa.parquet.write_table(table, folder / f"{index:02}.parquet", row_group_size=1_000)
    return folder


@pytest.fixture(scope="module")
def whole(folder):
    return scan_files(folder, SCAN)


class TestFiles:
    def test_same_bits_as_one_process(self, client, folder, whole):
        reports = []
        found = scan_cluster_files(
            folder, SCAN, client, progress=lambda *counts: reports.append(counts)
        )
        assert found == whole
        assert reports[-1] == (24_000, 24_000)
        assert found.n_rows["rare"] > 0

    def test_through_the_address_of_a_scheduler(self, client, folder, whole):
        with cluster_client(scheduler=client.scheduler.address) as other:
            assert scan_cluster_files(f"{folder}/*.parquet", SCAN, other) == whole

    def test_a_part_of_the_sum_at_a_time(self, client, folder, whole, monkeypatch):
        monkeypatch.setattr(cluster, "MOST_ROWS_PER_TASK", 1_000)
        monkeypatch.setattr(cluster, "LEAVES_PER_PART", 3)
        reports = []
        assert scan_cluster_files(folder, SCAN, client, progress=lambda n, _: reports.append(n))
        assert reports == [1_000 * (k + 1) for k in range(24)]
        assert scan_cluster_files(folder, SCAN, client) == whole

    def test_a_csv_file_is_one_task(self, client, folder, whole, tmp_path):
        pa.csv.write_csv(pa.parquet.read_table(folder), tmp_path / "people.csv")
        assert scan_cluster_files(tmp_path / "people.csv", SCAN, client) == whole

    def test_dask_knows_the_size_of_a_result(self, whole):
        assert dask.sizeof.sizeof(whole) == 3 * 8 * 128 * 8  # secrets, directions, bins, bytes

    def test_results_do_not_stay_in_the_cluster(self, client, folder):
        scan_cluster_files(folder, SCAN, client)
        deadline = time.monotonic() + 20
        while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
            assert time.monotonic() < deadline
            time.sleep(0.1)


class TestDask:
    @pytest.mark.parametrize("partitions", [1, 5])
    def test_dataframe(self, client, folder, whole, partitions):
        frame = dask.dataframe.read_parquet(folder).repartition(npartitions=partitions)
        assert scan_dask_frame(frame, SCAN, client) == whole

    def test_dataframe_with_an_empty_partition(self, client, folder):
        frame = dask.dataframe.read_parquet(folder)
        few = frame[frame["group"] == "rare"]
        assert set(scan_dask_frame(few, SCAN, client).n_rows) == {"rare"}
        with pytest.raises(TableError, match="no rows to count"):
            scan_dask_frame(frame[frame["group"] == "nobody"], SCAN, client)


class TestStrata:
    """Rows that Dask's shuffle brings to their strata, which the workers couple."""

    @pytest.fixture
    def frame(self, folder):
        frame = dask.dataframe.read_parquet(folder).repartition(npartitions=5)
        return dask.dataframe.concat([frame, frame.partitions[0].query("group == 'nobody'")])

    def test_same_strata_and_couplings_as_in_one_process(self, client, folder, frame, whole):
        announced, reports = [], []
        found = spill_dask_frame(
            frame,
            SCAN,
            whole,
            client,
            most_rows=1_700,
            announce=announced.append,
            progress=lambda *counts: reports.append(counts),
        )
        sizes = []
        expected = spill_files(folder, SCAN, whole, most_rows=1_700, announce=sizes.append)
        assert announced == sizes
        for secret, strata in expected.items():
            assert found[secret].digest == strata.digest
            assert found[secret].n_strata == strata.n_strata
            for k in range(strata.n_strata):
                assert np.array_equal(found[secret].rows(k), strata.rows(k))
                assert np.array_equal(found[secret].masses(k), strata.masses(k))
        assert found["a"].n_strata == 8
        n_strata = sum(strata.n_strata for strata in expected.values())
        assert reports == [(k + 1, n_strata) for k in range(n_strata)]
        here, there = (
            streamed_scenario(whole, SCAN, strata=strata) for strata in (expected, found)
        )
        assert here.distributions_digest() == there.distributions_digest()
        recipe = Recipe(effort="quick", cost="renyi", rate=0.2)
        one, two = (full_sensitivity(s, recipe=recipe).differences for s in (here, there))
        for name in ("starts", "gaps", "counts", "totals"):
            assert np.array_equal(getattr(one, name), getattr(two, name))

    @pytest.mark.parametrize("rows_per_task", [1_000, 5_000])
    def test_files_give_the_same_strata(self, client, folder, whole, monkeypatch, rows_per_task):
        monkeypatch.setattr(cluster, "_MOST_ROWS_PER_PARTITION", rows_per_task)
        found = spill_cluster_files(folder, SCAN, whole, client, most_rows=1_700)
        for secret, strata in spill_files(folder, SCAN, whole, most_rows=1_700).items():
            assert found[secret].digest == strata.digest
            assert np.array_equal(found[secret].rows(0), strata.rows(0))

    def test_files_with_rows_left_out(self, client, folder, tmp_path):
        table = pa.parquet.read_table(folder / "03.parquet")
        x = table["x"].to_numpy().copy()
        x[500:] = np.nan
        holes = tmp_path / "holes.parquet"
        pa.parquet.write_table(table.set_column(1, "x", pa.array(x)), holes, row_group_size=500)
        query = QUERY.with_missing("drop-rows")
        scan = RowScan.of(query, secret=GROUP, profile=PROFILE, n_bins=128)
        histograms = scan_cluster_files(holes, scan, client)
        assert histograms.n_dropped == 1_500
        found = spill_cluster_files(holes, scan, histograms, client, most_rows=100)
        expected = spill_files(holes, scan, histograms, most_rows=100)
        assert {k: v.digest for k, v in found.items()} == {k: v.digest for k, v in expected.items()}

    @pytest.mark.soundness
    def test_strata_that_a_lost_worker_had_are_those_that_were_spilled(self, folder, tmp_path):
        """Dask makes them again from the file, which has changed since."""
        file = tmp_path / "rows.parquet"
        shutil.copy(folder / "03.parquet", file)
        with cluster_client(workers=1) as client:
            histograms = scan_cluster_files(file, SCAN, client)
            strata = spill_cluster_files(file, SCAN, histograms, client)
            kept = strata["a"].rows(0)
            table = pa.parquet.read_table(file)
            y = pa.array(table["y"].to_numpy() / 100)
            pa.parquet.write_table(table.set_column(2, "y", y), file, row_group_size=1_000)
            client.restart_workers(list(client.scheduler_info()["workers"]))
            with pytest.raises(PuffersliceError, match="rows are not those"):
                strata["a"].rows(0)
            work = strata["a"].each_pair(strata["b"], [(0, 0)], lambda *_: pytest.fail("coupled"))
            with pytest.raises(PuffersliceError, match="rows are not those"):
                list(work)
        assert np.isfinite(kept).all()

    def test_no_process_but_the_workers_reads_rows(self, client, frame, whole, monkeypatch):
        strata = spill_dask_frame(frame, SCAN, whole, client, most_rows=1_700)
        here = os.getpid()
        monkeypatch.setattr(ClusterStrata, "rows", lambda *_: pytest.fail("rows came here"))
        places = [(k, k) for k in range(8)]
        processes = set(strata["a"].each_pair(strata["b"], places, lambda *_: os.getpid()))
        assert len(processes) == 2
        assert here not in processes
        assert repr(strata["a"]).endswith("n_strata=8, dim=2)")

    @pytest.mark.soundness
    def test_other_rows_than_the_scan_has_counted(self, client, frame, whole):
        moved = frame.assign(x=frame["x"] * 0.5)
        renamed = frame.assign(group=frame["group"].replace("rare", "odd"))
        fewer = frame.partitions[:3]
        for other in (moved, renamed, fewer):
            with pytest.raises(ScenarioError, match="not those that were counted"):
                spill_dask_frame(other, SCAN, whole, client, most_rows=1_700)

    @pytest.mark.soundness
    def test_rows_that_change_between_the_passes(self, client):
        """As of files that another process writes; a task is tried with what it would get then."""
        cut = Cut(n_rows=4, n_strata=1)
        table = pd.DataFrame({"group": ["a", "b"], "x": [0.0, 1.0], "y": [0.0, 1.0]})
        with pytest.raises(ScenarioError, match="not those that were counted"):
            cluster._numbered(table, SCAN, {"a": cut}, {"a": 0}, {})
        rows = cluster._numbered(table[:1], SCAN, {"a": cut}, {"a": 0}, {})
        with pytest.raises(ScenarioError, match="not those that were counted"):
            cluster._gathered(rows, 0, "a", cut, 0, SCAN.grid)

    def test_strata_that_are_elsewhere(self, client, folder, frame, whole):
        strata = spill_dask_frame(frame, SCAN, whole, client)
        on_disk = spill_files(folder, SCAN, whole)
        with pytest.raises(ArgumentError, match="spill both from one frame"):
            next(strata["a"].each_pair(on_disk["b"], [(0, 0)], abs))
        client.cancel(list(strata["a"].strata))
        with pytest.raises(ClusterError, match="no longer on the cluster"):
            strata["a"].rows(0)


def test_workers_read_urls_themselves(client, folder, whole):
    def register():
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        class Shelf(LocalFileSystem):
            protocol = "shelf"

            @classmethod
            def _strip_protocol(cls, path):
                return super()._strip_protocol(str(path).removeprefix("shelf://"))

        fsspec.register_implementation("shelf", Shelf, clobber=True)

    register()
    with pytest.raises(ArgumentError, match="no filesystem 'shelf'"):
        scan_cluster_files(f"shelf://{folder}", SCAN, client)
    client.run(register)
    assert scan_cluster_files(f"shelf://{folder}", SCAN, client) == whole
    found = spill_cluster_files(f"shelf://{folder}", SCAN, whole, client)
    expected = spill_files(folder, SCAN, whole)
    assert {k: s.digest for k, s in found.items()} == {k: s.digest for k, s in expected.items()}
    assert scan_cluster_files(f"file://{folder}", SCAN, client) == whole


class TestErrors:
    def test_errors_of_a_task_arrive_as_they_are(self, client, folder, tmp_path):
        table = pa.parquet.read_table(folder / "03.parquet")
        x = table["x"].to_numpy().copy()
        x[[1_500, 1_501]] = np.nan
        bad = tmp_path / "bad.parquet"
        pa.parquet.write_table(table.set_column(1, "x", pa.array(x)), bad, row_group_size=1_000)
        with pytest.raises(TableError, match=r"bad.parquet', row group 1: 2 of 1000 rows"):
            scan_cluster_files(bad, SCAN, client)

    @pytest.mark.parametrize("error", [ScenarioError, ClusterError])
    def test_no_log_shows_what_a_task_raised(self, client, folder, capfd, error):
        name = "MARK-John-Roe-8"

        def quoting(row):
            raise ValueError(name)

        query = row_function(quoting, names=["x", "y"], columns=["x", "y"], description="quotes")
        if error is ClusterError:  # as if something of ours, or below it, raised
            query = attrs.evolve(query, bind=quoting)
        scan = RowScan.of(query.with_range(Box([-3, -3], [3, 3])), secret=GROUP, profile=PROFILE)
        with pytest.raises(error, match="ValueError") as caught:
            scan_cluster_files(folder / "00.parquet", scan, client)
        logs = [text for lines in client.get_worker_logs().values() for _, text in lines]
        assert name not in "".join([*traceback.format_exception(caught.value), *logs])
        assert name not in "".join(capfd.readouterr())

    @pytest.mark.parametrize(
        "read",
        [
            lambda frame, client, _: scan_dask_frame(frame, SCAN, client),
            lambda frame, client, whole: spill_dask_frame(frame, SCAN, whole, client),
        ],
        ids=["scan", "spill"],
    )
    def test_what_a_graph_raises_is_not_quoted(self, client, whole, read):
        name = "MARK-Jane-Doe-7"
        data = pd.DataFrame({"group": ["a", "b"], "x": [name, "c"], "y": [0.0, 1.0]})
        frame = dask.dataframe.from_pandas(data, npartitions=1)
        frame = frame.assign(x=frame["x"].astype(float))
        with pytest.raises(ClusterError, match="failed with ValueError") as caught:
            read(frame, client, whole)
        assert name not in "".join(traceback.format_exception(caught.value))

    @pytest.mark.soundness
    def test_workers_with_another_version(self, client, folder, whole, monkeypatch):
        monkeypatch.setattr("pufferslice.__version__", "0.0.1")
        words = r"has pufferslice 0\.0\.1, and workers have"
        with pytest.raises(ClusterError, match=words):
            scan_cluster_files(folder, SCAN, client)
        with pytest.raises(ClusterError, match=words):
            spill_cluster_files(folder, SCAN, whole, client)

    def test_no_scheduler(self, monkeypatch):
        monkeypatch.setattr(cluster, "_SECONDS_TO_CONNECT", 1)
        with pytest.raises(ClusterError, match=r"no scheduler answers at 'tcp://127.0.0.1:9'"):
            cluster_client(scheduler="tcp://127.0.0.1:9").__enter__()

    def test_one_kind_of_cluster(self):
        for options in ({}, {"workers": 1, "scheduler": "tcp://127.0.0.1:9"}):
            with pytest.raises(ArgumentError, match="either workers"):
                cluster_client(**options).__enter__()
        with pytest.raises(ArgumentError, match="workers must be an integer"):
            cluster_client(workers=0).__enter__()

    def test_a_worker_out_of_memory(self, client, folder):
        """numpy refuses the array, as it does on a worker whose memory is limited."""

        def huge(row):
            return [float(np.zeros(2**50)[0]), row["y"]]

        query = row_function(huge, names=["a", "b"], columns=["x", "y"], description="too large")
        scan = RowScan.of(
            query.with_range(Box([0, 0], [1, 1])), secret=GROUP, profile=PROFILE, n_bins=128
        )
        with pytest.raises(ClusterError, match=r"out of memory .*of one secret take 0.00781 MiB"):
            scan_cluster_files(folder, scan, client)


def slow_query():
    """As QUERY, but a row takes a while, so that workers can be killed in the middle."""

    def evaluate(row):
        time.sleep(0.0002)
        return [row["x"], row["y"]]

    query = row_function(evaluate, names=["x", "y"], columns=["x", "y"], description="slowly")
    return query.with_range(Box([-3, -3], [3, 3])).with_scales([1, 2])


def kill_one_worker(client, n_rows):
    """A progress report that kills a worker once so many rows are counted; and whom it killed."""
    client.wait_for_workers(2, timeout=60)
    processes, killed = client.run(os.getpid), []

    def report(done, total):
        if not killed and n_rows <= done < total:
            killed.append(next(iter(processes.values())))
            os.kill(killed[0], signal.SIGKILL)

    return report, killed


class TestLostWorkers:
    def test_a_killed_worker_changes_nothing(self, client, folder):
        some = f"{folder}/0[0-4].parquet"
        whole = scan_files(some, SCAN)
        scan = RowScan.of(slow_query(), secret=GROUP, profile=PROFILE, n_bins=128)
        report, killed = kill_one_worker(client, 0)
        found = scan_cluster_files(some, scan, client, progress=report)
        assert killed[0] not in client.run(os.getpid).values()
        assert found.n_rows == whole.n_rows
        assert np.array_equal(found.counts, whole.counts)

    def test_a_scan_that_is_cancelled_on_the_cluster(self, client, folder):
        scan = RowScan.of(slow_query(), secret=GROUP, profile=PROFILE, n_bins=128)

        def cancel(done, total):
            client.cancel([distributed.Future(key, client) for key in list(client.futures)])

        with pytest.raises(ClusterError, match="the cluster cancelled"):
            scan_cluster_files(folder, scan, client, progress=cancel)

    def test_a_task_that_kills_every_worker_is_told(self, client, folder, monkeypatch):
        def deadly(row):
            os.kill(os.getpid(), signal.SIGKILL)

        query = row_function(deadly, names=["x", "y"], columns=["x", "y"], description="deadly")
        scan = RowScan.of(query.with_range(Box([-3, -3], [3, 3])), secret=GROUP, profile=PROFILE)
        monkeypatch.setattr(client.cluster.scheduler, "allowed_failures", 0)
        with pytest.raises(ClusterError, match="workers were lost"):
            scan_cluster_files(folder / "00.parquet", scan, client)


RESUMED = """
import sys, time
from tests.sensitivity.test_cluster import SCAN
from pufferslice.sensitivity import cluster, scan

scan.SECONDS_BETWEEN = 0.0
cluster.MOST_ROWS_PER_TASK = 1_000
address, folder, saved = sys.argv[1:]

def slowly(done, total):
    print(done, flush=True)
    time.sleep(0.2)

with cluster.cluster_client(scheduler=address) as client:
    cluster.scan_cluster_files(folder, SCAN, client, checkpoint=saved, progress=slowly)
"""


class TestCheckpoint:
    """What a cluster has counted is saved by its client, for the next one or for one process."""

    @pytest.fixture
    def often(self, monkeypatch):
        monkeypatch.setattr(scan, "SECONDS_BETWEEN", 0.0)
        monkeypatch.setattr(cluster, "MOST_ROWS_PER_TASK", 1_000)

    def interrupted(self, resume, n_rows):
        """Raises after so many rows."""

        def stop(done, total):
            if done >= n_rows:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            resume(progress=stop)

    def test_a_killed_client(self, client, folder, whole, tmp_path, often):
        saved = tmp_path / "scan.part"
        command = [sys.executable, "-c", RESUMED, client.scheduler.address, folder, saved]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            lines = iter(process.stdout.readline, "")
            assert any(int(line) >= 18_000 for line in lines), "it ended before it was killed"
            process.kill()
        assert process.returncode == -signal.SIGKILL
        reports = []
        found = scan_cluster_files(
            folder, SCAN, client, checkpoint=saved, progress=lambda n, _: reports.append(n)
        )
        assert found == whole
        # A part is two tasks: 17 that ended before the last report are five parts or more.
        assert 11_000 <= reports[0] < 24_000
        assert reports[-1] == 24_000
        again = []
        assert scan_cluster_files(folder, SCAN, client, checkpoint=saved, progress=again.append)
        assert not again, "nothing is left to count"

    def test_a_killed_worker(self, client, folder, whole, tmp_path, often):
        report, killed = kill_one_worker(client, 5_000)
        saved = tmp_path / "scan.part"
        found = scan_cluster_files(folder, SCAN, client, checkpoint=saved, progress=report)
        assert found == whole
        assert killed[0] not in client.run(os.getpid).values()

    def test_one_process_and_a_cluster_resume_from_each_other(
        self, client, folder, whole, tmp_path, often, monkeypatch
    ):
        monkeypatch.setattr("pufferslice.data.readers.ROWS_PER_BATCH", 300)
        saved = tmp_path / "scan.part"
        here = partial(scan_files, folder, SCAN, checkpoint=saved)
        there = partial(scan_cluster_files, folder, SCAN, client, checkpoint=saved)
        self.interrupted(here, 5_300)  # in the middle of a row group
        self.interrupted(there, 15_000)
        reports = []
        assert here(progress=lambda n, _: reports.append(n)) == whole
        assert reports[0] > 10_000
        saved.unlink()
        self.interrupted(there, 9_000)
        self.interrupted(here, 15_300)
        assert there() == whole

    @pytest.mark.soundness
    def test_another_scan_and_changed_files(self, client, folder, tmp_path, monkeypatch):
        saved = tmp_path / "scan.part"
        scan_cluster_files(folder, SCAN, client, checkpoint=saved)
        finer = RowScan.of(QUERY, secret=GROUP, profile=PROFILE, n_bins=64)
        with pytest.raises(StorageError, match="another range"):
            scan_cluster_files(folder, finer, client, checkpoint=saved)
        with pytest.raises(StorageError, match="another data"):
            scan_cluster_files(folder / "00.parquet", SCAN, client, checkpoint=saved)
        content = saved.read_bytes()
        saved.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(StorageError, match="damaged"):
            scan_cluster_files(folder, SCAN, client, checkpoint=saved)
        saved.write_bytes(content)
        monkeypatch.setattr("pufferslice.__version__", "0.0.1")
        with pytest.raises(StorageError, match="another version of pufferslice"):
            scan_cluster_files(folder, SCAN, client, checkpoint=saved)


def test_without_dask_the_way_out_is_told():
    code = (
        "import sys\nsys.modules['distributed'] = None\n"
        "from pufferslice.errors import MissingExtraError\n"
        "try:\n    import pufferslice.sensitivity.cluster\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'pufferslice[scale]'" in done.stdout
