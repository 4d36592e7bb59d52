# SPDX-License-Identifier: Apache-2.0
"""What the ledger of runs records, refuses, and still knows after a crash."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from pufferslice.errors import LedgerError, PuffersliceError, RewindError
from pufferslice.releases import Ledger
from pufferslice.releases.states import Grant
from pufferslice.torch.ledger import Checkpointed, RecordedRun, RunLedger

RUN, PLAN, N_STEPS = "0123456789abcdef", "p" * 64, 10
A, B = "a" * 32, "b" * 32


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ledger"


@pytest.fixture
def ledger(path):
    with closing(RunLedger(path)) as ledger:
        ledger.start(RUN, PLAN, N_STEPS)
        yield ledger


def take(ledger, steps, *, tag=A):
    for step in steps:
        ledger.record_step(step, tag)


def recorded(path):
    """Every step in the file, as another program reads it."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute("SELECT step, tag FROM steps ORDER BY 1").fetchall()
    finally:
        connection.close()


def test_the_life_of_a_run(ledger, path):
    assert ledger.latest_checkpoint() is None
    take(ledger, range(4))
    ledger.record_checkpoint(4, "digest")
    assert ledger.latest_checkpoint() == Checkpointed(4, "digest")
    take(ledger, range(4, 10))
    assert ledger.run().taken is None
    ledger.finish(10)
    assert ledger.run() == RecordedRun(RUN, PLAN, N_STEPS, 10)
    assert recorded(path) == [(step, A) for step in range(10)]


def test_it_is_a_ledger_like_any_other(ledger, path):
    take(ledger, range(3))
    ledger.record_checkpoint(3, "digest")
    ledger.finish(3)
    book = Ledger(path)
    kinds = [event.kind for event in book.events()]
    assert kinds == ["made", "started", "checkpointed", "finished"]
    assert book.problems() == []
    assert book.book().run == ledger.run()
    entry = book.intend(Grant(certificate="1" * 64, keys=("secret",)))
    book.record_drawn(entry, "{}")
    assert ledger.run().taken == 3


def test_closing_leaves_one_file_and_opens_again(ledger, path):
    take(ledger, [0])
    ledger.close()
    assert [file.name for file in path.parent.iterdir()] == ["run.ledger"]
    ledger.close()
    take(ledger, [1])
    assert len(recorded(path)) == 2


@pytest.mark.soundness
def test_a_step_taken_again_is_a_replay_or_refused(ledger, path):
    take(ledger, range(4))
    take(ledger, [2, 3, 0, 3])
    for step in (2, 3):
        with pytest.raises(RewindError, match=f"step {step}"):
            ledger.record_step(step, B)
    take(ledger, [4])
    assert recorded(path) == [(step, A) for step in range(5)]
    assert issubclass(RewindError, LedgerError)


@pytest.mark.soundness
def test_steps_come_in_turn_and_within_the_plan(ledger, path):
    for step in (1, 5, 9):
        with pytest.raises(LedgerError, match=f"step {step}"):
            ledger.record_step(step, A)
    assert recorded(path) == []
    take(ledger, range(10))
    with pytest.raises(LedgerError, match="step 10"):
        ledger.record_step(10, A)
    with pytest.raises(LedgerError, match="11"):
        ledger.finish(11)
    assert ledger.run().taken is None


@pytest.mark.soundness
def test_nothing_after_the_end(ledger):
    take(ledger, range(4))
    ledger.record_checkpoint(4, "x")
    ledger.finish(4)
    ledger.finish(4)
    for call in (
        lambda: ledger.record_step(4, A),
        lambda: ledger.record_step(3, A),
        lambda: ledger.record_checkpoint(4, "y"),
        lambda: ledger.check_resume(4, "x"),
        lambda: ledger.finish(3),
        lambda: ledger.start(RUN, PLAN, N_STEPS),
    ):
        with pytest.raises(LedgerError, match="4 of 10"):
            call()
    assert ledger.latest_checkpoint() == Checkpointed(4, "x")


def test_a_run_follows_one_plan(ledger):
    take(ledger, range(2))
    ledger.start(RUN, PLAN, N_STEPS)
    for other in ((RUN, "q" * 64, N_STEPS), (RUN, PLAN, N_STEPS + 1), ("other", PLAN, N_STEPS)):
        with pytest.raises(LedgerError, match=f"another plan|is of run {RUN}"):
            ledger.start(*other)
    take(ledger, [2])


@pytest.mark.soundness
def test_only_the_latest_checkpoint_is_resumed(ledger):
    take(ledger, range(3))
    with pytest.raises(LedgerError, match="step 4"):
        ledger.record_checkpoint(4, "ahead of its steps")
    ledger.record_checkpoint(3, "first")
    ledger.record_checkpoint(3, "three")
    ledger.check_resume(3, "three")
    take(ledger, range(3, 6))
    ledger.check_resume(3, "three")  # steps after it are replays
    ledger.record_checkpoint(6, "six")
    ledger.check_resume(6, "six")
    for old in ((3, "first"), (3, "three"), (6, "three"), (3, "six"), (5, "unknown")):
        with pytest.raises(RewindError, match="checkpoint"):
            ledger.check_resume(*old)


def test_a_checkpoint_whose_record_a_crash_prevented(ledger):
    """Its file is whole and no step came after it: nothing is taken again."""
    take(ledger, range(3))
    ledger.record_checkpoint(3, "three")
    take(ledger, range(3, 6))
    ledger.check_resume(6, "not recorded")
    take(ledger, [6])
    with pytest.raises(RewindError):
        ledger.check_resume(6, "not recorded")


def test_a_run_that_is_not_there(tmp_path):
    ledger, missing = RunLedger(tmp_path / "made.ledger"), RunLedger(tmp_path / "missing.ledger")
    ledger.make()
    for call in (
        lambda ledger: ledger.record_step(0, A),
        lambda ledger: ledger.record_checkpoint(0, A),
        lambda ledger: ledger.latest_checkpoint(),
        lambda ledger: ledger.check_resume(0, A),
        lambda ledger: ledger.finish(0),
        lambda ledger: ledger.run(),
    ):
        with pytest.raises(LedgerError, match="no run"):
            call(ledger)
        with pytest.raises(LedgerError, match=r"No such file|no run"):
            call(missing)
    assert not missing.path.exists()
    ledger.close()


@pytest.mark.parametrize("content", [b"x" * 5_000, b"SQLite format 3\0" + b"\xff" * 4_096])
def test_a_file_that_is_no_ledger(path, content):
    path.write_bytes(content)
    for call in (
        lambda: RunLedger(path).start(RUN, PLAN, N_STEPS),
        lambda: RunLedger(path).record_step(0, A),
    ):
        with pytest.raises(LedgerError, match="cannot be used"):
            call()
    assert path.read_bytes() == content


@pytest.mark.soundness
def test_a_file_of_0_bytes_is_damage_and_not_a_new_ledger(path):
    path.touch()
    for call in (
        lambda: RunLedger(path).start(RUN, PLAN, N_STEPS),
        lambda: RunLedger(path).holds_run(),
        lambda: RunLedger(path).record_step(0, A),
    ):
        with pytest.raises(LedgerError, match="0 bytes"):
            call()
    assert path.read_bytes() == b""


def test_a_ledger_that_was_made_and_holds_no_run_yet(path):
    """What a process leaves that is killed before its run is started."""
    ledger = RunLedger(path)
    assert not ledger.holds_run()
    assert not path.exists()
    ledger.make()
    assert not ledger.holds_run()
    with pytest.raises(LedgerError, match="no run"):
        ledger.run()
    ledger.start(RUN, PLAN, N_STEPS)
    assert ledger.holds_run()
    ledger.close()


def test_a_ledger_of_an_older_version(ledger, path):
    ledger.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE identity SET version = 4")
    connection.close()
    for call in (ledger.run, lambda: ledger.start(RUN, PLAN, N_STEPS)):
        with pytest.raises(LedgerError, match="version 4"):
            call()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE run_ledger (version INTEGER NOT NULL)")
    connection.close()
    with pytest.raises(LedgerError, match=r"before 0\.3.*the program that began it"):
        ledger.run()


@pytest.mark.soundness
def test_a_second_ledger_object_keeps_the_lock_of_the_first(ledger, path):
    """Else another process takes itself for the last one, and removes steps that are in use."""
    take(ledger, range(2))
    with closing(RunLedger(path)) as second:
        assert second.run().taken is None
    look = (
        "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1]);"
        "connection.execute('SELECT * FROM steps').fetchall(); connection.close()"
    )
    subprocess.run([sys.executable, "-c", look, path], check=True)
    assert path.with_name(f"{path.name}-wal").exists()
    take(ledger, [2])


@pytest.mark.soundness
def test_a_ledger_with_several_names_is_refused(ledger, path, tmp_path):
    """Steps that are not yet in the file lie beside it, by name: one step could be taken twice."""
    take(ledger, [0])
    other = tmp_path / "other"
    other.hardlink_to(path)
    with pytest.raises(LedgerError, match="2 names"):
        RunLedger(other).record_step(1, A)


def test_a_path_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "run.ledger"):
        with pytest.raises(PuffersliceError, match="cannot be used"):
            RunLedger(path).start(RUN, PLAN, N_STEPS)


def test_a_busy_ledger_says_so(ledger, path, monkeypatch):
    monkeypatch.setattr("pufferslice.releases.storage._WAIT_SECONDS", 0.1)
    ledger.close()
    ledger.run()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(LedgerError, match="locked"):
            take(ledger, [0])
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    take(ledger, [0])


def test_threads_that_take_the_same_step(ledger, path):
    """Of eight with different sums exactly one is recorded, at each of ten steps."""
    won, lost = [], []

    def attempt(tag):
        for step in range(10):
            start.wait()
            try:
                ledger.record_step(step, tag)
                won.append((step, tag))
            except RewindError:
                lost.append((step, tag))

    start = threading.Barrier(8)
    threads = [threading.Thread(target=attempt, args=(str(k) * 32,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (10, 70)
    assert sorted(won) == recorded(path)


PROGRAM = """
import sys
from pufferslice.errors import RewindError
from pufferslice.torch.ledger import RunLedger

path, tag, until = sys.argv[1], sys.argv[2], int(sys.argv[3])
ledger = RunLedger(path)
ledger.start("run", "plan", 1_000_000)
refused = 0
for step in range(until):
    try:
        ledger.record_step(step, tag)
    except RewindError:
        refused += 1
    print(step, refused, flush=True)
"""


def begin(path, tag, until):
    command = [sys.executable, "-c", PROGRAM, str(path), tag, str(until)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_on_one_ledger(path):
    """Every step is recorded once; whoever came second with other sums was told."""
    processes = [begin(path, tag, 200) for tag in (A, B)]
    ends = [process.communicate(timeout=60)[0].splitlines()[-1] for process in processes]
    refused = [int(end.split()[1]) for end in ends]
    assert all(process.returncode == 0 for process in processes)
    steps = recorded(path)
    assert [step for step, _ in steps] == list(range(200))
    assert refused == [sum(tag != own for _, tag in steps) for own in (A, B)]


@pytest.mark.soundness
@pytest.mark.parametrize("after", [0, 37])
def test_what_was_recorded_survives_a_killed_process(path, after):
    process = begin(path, A, 1_000_000)
    for line in process.stdout:
        if int(line.split()[0]) >= after:
            break
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().splitlines()
    process.stdout.close()
    assert process.wait(timeout=30) == -signal.SIGKILL
    told = [int(line.split()[0]) for line in rest[:-1]]
    last = max([after, *told])
    with closing(RunLedger(path)) as ledger:
        with pytest.raises(RewindError):
            ledger.record_step(last, B)
        ledger.record_step(last, A)
        steps = [step for step, _ in recorded(path)]
        assert steps == list(range(len(steps)))
        ledger.record_step(len(steps), B)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_process_opens_its_own_connection(ledger, path):
    """A connection is not carried over a fork, nor closed by the child."""
    take(ledger, [0])
    inherited = ledger._storage._connection
    child = os.fork()
    if child == 0:
        try:
            take(ledger, [1])
            is_own = ledger._storage._connection is not inherited
            ledger.close()
            inherited.total_changes  # noqa: B018 - raises if it was closed
            os._exit(0 if is_own else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    take(ledger, [2])
    assert [step for step, _ in recorded(path)] == [0, 1, 2]
