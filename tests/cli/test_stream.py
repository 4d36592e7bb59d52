# SPDX-License-Identifier: Apache-2.0
"""Streamed rows that are coupled: `calibrate`, `verify` and `release` find the same strata."""

import json
import tempfile

import fsspec
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import write_parts

SCENARIO = """
[data]
path = "parts"
bins = 256
[secret]
column = "g"
[query]
distribution = "records"
columns = ["x", "y"]
range = { low = [-6, 0], high = [6, 20] }
[prior]
kind = "empirical"
[profile]
n_directions = 6
seed = 7
[guarantee]
notion = "unsliced"
order = 4
epsilon = 1.0
[calibration]
effort = "quick"
"""
CALIBRATE = "calibrate scenario.toml --json"
IN_MEMORY = "calibrate memory.toml --json"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    table = write_parts(tmp_path, 2, 400)
    pq.write_table(table.slice(0, 1), tmp_path / "row.parquet")
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    (tmp_path / "memory.toml").write_text(SCENARIO.replace("bins = 256\n", ""))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not list(temporary.iterdir()), "a temporary folder was left"


def noise_of(answer):
    assert answer.code == 0
    return json.loads(answer.out)["noise_std"]


def test_what_decides_when_strata_are_left_out(ask):
    coupled = ask(CALIBRATE)
    assert "0.0122 MiB in a temporary folder, which is removed" in coupled.err
    assert noise_of(coupled) == noise_of(ask(CALIBRATE, "--set data.strata=true"))
    ranged = ask(CALIBRATE, "--set data.strata=false")
    assert ranged.err == ""
    assert noise_of(ranged) > 3 * noise_of(coupled)
    sliced = f"{CALIBRATE} --set guarantee.notion=joint --set calibration.effort=thorough"
    for line in (sliced, f"{CALIBRATE} --set prior.kind=sampled"):
        assert ask(line).err == ""
    assert "removed" in ask(sliced, "--set data.strata=true").err


def test_near_rows_in_memory(ask):
    isotropic = "--set calibration.shape=isotropic"
    streamed = noise_of(ask(CALIBRATE, isotropic, "--set data.bins=4096"))
    assert noise_of(ask(IN_MEMORY, isotropic)) == pytest.approx(streamed, rel=0.02)


def test_from_a_file_to_a_release(ask, folder):
    shown = ask("calibrate scenario.toml --out certificate.json --strata-folder kept")
    assert "MiB in 'kept', confidential, until you remove it" in shown.err
    assert "verify --scenario read the rows and look for the couplings again" in shown.out
    before = (folder / "kept" / "rows.f64").stat().st_mtime_ns
    checked = ask("verify certificate.json --scenario scenario.toml --strata-folder kept")
    assert (checked.code, checked.err) == (0, "")
    assert "VERIFIED from the data" in checked.out
    assert (folder / "kept" / "rows.f64").stat().st_mtime_ns == before
    line = (
        "release scenario.toml --certificate certificate.json --ledger a.ledger --rows row.parquet"
    )
    done = ask(line, "--out release.json")
    assert (done.code, "temporary folder" in done.err) == (0, True)
    assert "temporary folder" in ask("spent certificate.json --scenario scenario.toml").err


def test_a_cluster_makes_both_passes(ask, folder):
    alone = noise_of(ask("calibrate scenario.toml --json"))
    there = ask("calibrate scenario.toml --json --workers 2 --checkpoint scan")
    assert "0.0122 MiB in memory and disks of the cluster, until the command ends" in there.err
    assert noise_of(there) == alone
    assert (folder / "scan").exists()
    kept = ask("calibrate scenario.toml --json --workers 1 --strata-folder kept --checkpoint scan")
    assert noise_of(kept) == alone
    assert (folder / "kept" / "rows.f64").exists()


@pytest.fixture
def shelf(folder):
    memory = fsspec.filesystem("memory")
    memory.put(str(folder / "parts"), "/parts", recursive=True)
    memory.put(str(folder / "row.parquet"), "/row.parquet")
    yield
    memory.rm("/", recursive=True)


@pytest.mark.usefixtures("shelf")
def test_urls_of_data(ask, folder):
    for line in (CALIBRATE, IN_MEMORY):
        assert noise_of(ask(line, "--set data.path=memory://parts")) == noise_of(ask(line))
    (folder / "scenario.toml").write_text(SCENARIO.replace('"parts"', f'"file://{folder}/parts"'))
    ask("calibrate scenario.toml --out certificate.json")
    assert "file://" not in (folder / "certificate.json").read_text()
    (folder / "scenario.toml").write_text(SCENARIO.replace('"parts"', '"memory://parts"'))
    assert ask("verify certificate.json --scenario scenario.toml").code == 0
    line = "release scenario.toml --certificate certificate.json --ledger a.ledger"
    done = ask(line, "--rows memory://row.parquet --out release.json")
    assert done.code == 0
    assert "memory:" not in (folder / "release.json").read_text()


@pytest.mark.soundness
@pytest.mark.parametrize(
    "more",
    [
        "--out s3://me:hunter2@bucket/c.json",
        "--checkpoint s3://me:hunter2@bucket/scan",
        "--strata-folder s3://me:hunter2@bucket/kept",
        "--ledger s3://me:hunter2@bucket/a.ledger",
        "--set data.path=s3://me:hunter2@bucket/people.parquet",
        "--set data.path='https://host/people.parquet?key=hunter2'",
        "--set data.path='https://host/people.json?key=hunter2'",
    ],
)
def test_nothing_is_written_elsewhere_and_no_password_is_shown(ask, folder, more):
    before = set(folder.iterdir())
    answer = ask("calibrate scenario.toml", more)
    assert answer.code != 0
    assert "hunter2" not in answer.out + answer.err
    assert set(folder.iterdir()) == before


@pytest.mark.soundness
def test_a_certificate_is_of_strata_or_of_the_range(ask, folder):
    ask("calibrate scenario.toml --out certificate.json")
    (folder / "scenario.toml").write_text(
        SCENARIO.replace("bins = 256", "bins = 256\nstrata = false")
    )
    checked = ask("verify certificate.json --scenario scenario.toml")
    assert checked.code == 1
    assert "issued for other distributions" in checked.out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{IN_MEMORY} --set data.strata=true", "[data] strata: is for streamed rows"),
        (f"{IN_MEMORY} --strata-folder kept", "--strata-folder is for streamed data whose rows"),
        (
            f"{CALIBRATE} --set prior.kind=sampled --set data.strata=true",
            "[data] strata: couplings of samples bound the samples alone",
        ),
        ("verify certificate.json --strata-folder kept", "give --scenario too"),
    ],
)
def test_refused(ask, line, words):
    ask("calibrate scenario.toml --set data.strata=false --out certificate.json")
    answer = ask(line)
    assert answer.code == 2
    assert words in answer.out + answer.err
