# SPDX-License-Identifier: Apache-2.0
"""Real processes: killed at every step, short of disk, racing each other, forked."""

import json
import subprocess
import sys

import pytest

PREPARE = """
import json, os, resource, signal, sys
from pathlib import Path
import pyarrow as pa
import pufferslice as ps
from pufferslice._core.sampler import OperatingSystemNoise
from pufferslice.releases import release_again
import importlib
releasing = importlib.import_module("pufferslice.releases.release")
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.states import Book

table = pa.table({"s": ["a", "a", "b", "b"], "x": [1.0, 2.0, 5.0, 9.0], "y": [3.0, 1.0, 4.0, 1.5]})
rows = table.slice(2)
query = ps.queries.summary(mean=["x", "y"])
scenario = ps.Scenario.from_groups(table, secret="s", query=query)
profile = ps.FiniteProfile.uniform(dim=2, n_directions=5, seed=1)
target = ps.Guarantee.joint(order=4, epsilon=1.0)
folder = Path(sys.argv[1])


def certified():
    return ps.certify_release(scenario, target.along(profile), deltas=())


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def before(function):
    return die


def after(function):
    def wrapped(*args, **kwargs):
        function(*args, **kwargs)
        die()

    return wrapped


def in_a_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def entries_of(ledger):
    try:
        return [[e.certificate, e.state, e.release] for e in ledger.entries()]
    except ps.errors.LedgerError as error:
        return str(error)


def state_of(place):
    return {
        "entries": entries_of(Ledger(place / "l")),
        "files": sorted(p.name for p in place.iterdir() if not p.name.startswith(".")),
        "hidden": sorted(p.name for p in place.iterdir() if p.name.startswith(".")),
    }
"""

KILL = (
    PREPARE
    + """
def at_the_second_draw(draw):
    return lambda self, size: draw(self, size) if size == 1 else die()


def patched(owner, name, where):
    def patch():
        setattr(owner, name, where(getattr(owner, name)))

    return patch


STEPS = {
    "before intend": patched(Ledger, "intend", before),
    "inside intend": patched(Book, "check_free", before),
    "after intend": patched(Ledger, "intend", after),
    "inside noise": patched(OperatingSystemNoise, "draw", at_the_second_draw),
    "before the result is recorded": patched(Ledger, "record_drawn", before),
    "after the result is recorded": patched(Ledger, "record_drawn", after),
    "inside the write": patched(os, "fsync", before),
    "before the file has its name": patched(Path, "hardlink_to", before),
    "as the file has its name": patched(Path, "hardlink_to", after),
    "before publication is recorded": patched(Ledger, "record_published", before),
    "after publication is recorded": patched(Ledger, "record_published", after),
}
# The ledger is made before, except where its making is killed; SQLite does its own flushing. So
# `os.fsync` and `hardlink_to` are those of the release file.
MAKING = {
    "inside the making of the ledger": patched(os, "fsync", before),
    "before the ledger has its name": patched(Path, "hardlink_to", before),
    "as the ledger has its name": patched(Path, "hardlink_to", after),
}

found = {}
for number, (step, patch) in enumerate((STEPS | MAKING).items()):
    place = folder / str(number)
    place.mkdir()
    certificate = certified()
    if step not in MAKING:
        Ledger(place / "l").make()

    def killed():
        patch()
        ps.release(scenario, rows, certificate, ledger=place / "l", out=place / "r.json")

    status = in_a_child(killed)
    told = state_of(place)
    told["killed"] = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    told["certificate"] = certificate.digest
    nothing_happened = step in ("before intend", "inside intend", *MAKING)
    told["file"] = (place / "r.json").read_text() if (place / "r.json").exists() else None
    for name, attempt in {
        "second": lambda: ps.release(scenario, rows, certificate, ledger=place / "l"),
        "again": lambda: release_again(certificate, ledger=place / "l", out=place / "a.json"),
    }.items():
        if name == "second" and nothing_happened:
            continue
        try:
            told[name] = attempt().to_json()
        except ps.PuffersliceError as error:
            told[name] = f"{type(error).__name__}: {error}"
    if nothing_happened:
        told["retry"] = ps.release(scenario, rows, certificate, ledger=place / "l").to_json()
    found[step] = told
print(json.dumps(found))
"""
)


def run(script, folder, *args):
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder), *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What a release leaves behind when it is killed (SIGKILL) at each of its steps."""
    return run(KILL, tmp_path_factory.mktemp("kill"))


NOTHING_HAPPENED = [
    "before intend",
    "inside intend",
    "inside the making of the ledger",
    "before the ledger has its name",
    "as the ledger has its name",
]
INTENDED = ["after intend", "inside noise", "before the result is recorded"]
DRAWN = [
    "after the result is recorded",
    "inside the write",
    "before the file has its name",
    "as the file has its name",
    "before publication is recorded",
]
PUBLISHED = ["after publication is recorded"]
WRITTEN = ["as the file has its name", "before publication is recorded", *PUBLISHED]


@pytest.mark.parametrize("step", NOTHING_HAPPENED)
def test_killed_before_the_intent(killed, step):
    told = killed[step]
    assert told["entries"] == []
    assert told["file"] is None
    assert "nothing was ever handed out" in told["again"]
    assert told["retry"]["certificate"] == told["certificate"]


@pytest.mark.parametrize("step", INTENDED)
def test_killed_before_the_result(killed, step):
    told = killed[step]
    assert told["entries"] == [[told["certificate"], "intended", None]]
    assert told["file"] is None
    assert told["second"].startswith("AlreadyReleasedError")
    assert "without a result" in told["second"]
    assert "nothing was ever handed out" in told["again"]


@pytest.mark.parametrize("step", [*DRAWN, *PUBLISHED])
def test_killed_with_a_result(killed, step):
    told = killed[step]
    ((certificate, state, kept),) = told["entries"]
    assert certificate == told["certificate"]
    assert state == ("published" if step in PUBLISHED else "drawn")
    assert told["second"].startswith("AlreadyReleasedError")
    assert told["again"] == json.loads(kept)
    if step in WRITTEN:
        assert json.loads(told["file"]) == json.loads(kept)
    else:
        assert told["file"] is None


def test_every_step_was_killed(killed):
    assert set(killed) == {*NOTHING_HAPPENED, *INTENDED, *DRAWN, *PUBLISHED}
    for told in killed.values():
        assert told["killed"]
        # Whatever a killed write leaves is hidden and has another name.
        assert len(told["hidden"]) <= 1


FULL = (
    PREPARE
    + """
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit(size):
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


def then_full(function):
    def wrapped(*args, **kwargs):
        result = function(*args, **kwargs)
        limit(64)
        return result

    return wrapped


found = {}
for number, step in enumerate(["at once", "intend", "record_drawn", "write"]):
    place = folder / str(number)
    place.mkdir()
    certificate = certified()
    kept = Ledger.intend, Ledger.record_drawn, releasing.write_new
    if step == "at once":
        limit(64)
    elif step == "write":
        releasing.write_new = then_full(releasing.write_new)
    else:
        setattr(Ledger, step, then_full(getattr(Ledger, step)))
    try:
        ps.release(scenario, rows, certificate, ledger=place / "l", out=place / "r.json")
        error = "none"
    except ps.PuffersliceError as problem:
        error = f"{type(problem).__name__}: {problem}"
    finally:
        limit(None)
        Ledger.intend, Ledger.record_drawn, releasing.write_new = kept
    told = state_of(place)
    told["error"], told["certificate"] = error, certificate.digest
    if step == "record_drawn":
        told["again"] = release_again(
            certificate, ledger=place / "l", out=place / "r.json"
        ).to_json()
    if step == "at once":
        told["retry"] = ps.release(scenario, rows, certificate, ledger=place / "l").to_json()
    found[step] = told
print(json.dumps(found))
"""
)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """What a release leaves behind when the disk takes no more bytes after each of its steps."""
    return run(FULL, tmp_path_factory.mktemp("full"))


def test_full_from_the_start(full):
    told = full["at once"]
    assert told["error"].startswith("LedgerError")
    assert "nothing was released" in told["error"]
    assert told["entries"] == []
    assert told["retry"]["certificate"] == told["certificate"]


def test_full_after_the_intent(full):
    told = full["intend"]
    assert told["error"].startswith("LedgerError")
    assert told["entries"] == [[told["certificate"], "intended", None]]
    assert told["files"] == ["l"]


def test_full_when_the_file_is_written(full):
    told = full["record_drawn"]
    assert told["error"].startswith("StorageError: ")
    assert "recorded in the ledger" in told["error"]
    assert "release_again" in told["error"]
    assert [entry[1] for entry in told["entries"]] == ["drawn"]
    assert told["files"] == ["l", "l.spent"]  # no whole mark, and nothing went out
    assert told["hidden"] == []
    assert told["again"] == json.loads(told["entries"][0][2])


def test_full_after_the_file_was_written(full):
    told = full["write"]
    assert told["error"].startswith("LedgerError")
    assert "nothing was released" not in told["error"]
    assert [entry[1] for entry in told["entries"]] == ["drawn"]
    assert told["files"] == ["l", "l.spent", "r.json"]


RACE = (
    PREPARE
    + """
turns, player = int(sys.argv[2]), int(sys.argv[3])
if player == 0:
    for turn in range(turns):
        certified().save(folder / f"{turn}.json")
print("prepared", flush=True)
for line in sys.stdin:
    turn = line.strip()
    certificate = ps.Certificate.load(folder / f"{turn}.json")
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        out = folder / f"{turn}.{player}.release"
        ps.release(scenario, rows, certificate, ledger=folder / f"{turn}.ledger", out=out)
        print("won", flush=True)
    except ps.errors.AlreadyReleasedError:
        print("refused", flush=True)
"""
)


def test_two_processes_release_at_once_and_exactly_one_wins(tmp_path):
    turns = 4
    players = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path), str(turns), str(k)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    ]
    try:
        assert [player.stdout.readline().strip() for player in players] == ["prepared"] * 2
        for turn in range(turns):
            for player in players:
                player.stdin.write(f"{turn}\n")
                player.stdin.flush()
            assert [player.stdout.readline().strip() for player in players] == ["ready"] * 2
            for player in players:
                player.stdin.write("go\n")
                player.stdin.flush()
            outcomes = [player.stdout.readline().strip() for player in players]
            assert sorted(outcomes) == ["refused", "won"]
            (released,) = tmp_path.glob(f"{turn}.*.release")
            assert released.name == f"{turn}.{outcomes.index('won')}.release"
    finally:
        for player in players:
            player.stdin.close()
            player.stdout.close()
            assert player.wait(timeout=30) == 0


FORK = (
    PREPARE
    + """
import threading

certificates = [certified() for _ in range(7)]  # runs the compiled kernels and their threads
ps.release(scenario, rows, certificates[0], ledger=folder / "0.ledger")


def release(k):
    ledger, out = folder / f"{k}.ledger", folder / f"{k}.json"
    ps.release(scenario, rows, certificates[k], ledger=ledger, out=out)


statuses = [in_a_child(lambda k=k: release(k) or os._exit(0)) for k in range(1, 4)]
thread = threading.Thread(target=release, args=[4])
thread.start()
thread.join()
release(5)
release(6)
values = [ps.Release.load(folder / f"{k}.json").grid_values for k in range(1, 7)]
print(json.dumps({"statuses": statuses, "values": values}))
"""
)


@pytest.mark.soundness
def test_forked_processes_and_threads_never_repeat_noise(tmp_path):
    """The fork comes after kernels were compiled and run, and after noise was drawn."""
    told = run(FORK, tmp_path)
    assert told["statuses"] == [0, 0, 0]
    drawn = [value for pair in told["values"] for value in pair]
    assert len(drawn) == 12
    assert len(set(drawn)) == 12
