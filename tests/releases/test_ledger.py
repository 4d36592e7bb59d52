# SPDX-License-Identifier: Apache-2.0
import json
import sqlite3
import stat
import subprocess
import sys
import threading
import time

import pytest

from pufferslice.cli.app import run
from pufferslice.errors import AlreadyReleasedError, LedgerError
from pufferslice.releases.ledger import Entry, Ledger

SCENARIO = "scenario"
ONE, TWO = "1" * 64, "2" * 64


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "census.ledger")


def test_the_life_of_a_release(ledger):
    assert ledger.entries() == []
    assert not ledger.path.exists()
    ledger.intend(SCENARIO, ONE, [])
    assert ledger.entries() == [Entry(ONE, "intended", None)]
    assert ledger.entry(ONE).release is None
    ledger.record_drawn(ONE, "{}")
    assert ledger.entries() == [Entry(ONE, "drawn", "{}")]
    ledger.record_published(ONE)
    assert ledger.entries() == [Entry(ONE, "published", "{}")]
    assert ledger.entry(ONE).release == "{}"
    assert ledger.releases() == [ONE]


def test_it_is_for_its_owner_only(ledger):
    """It keeps releases that nobody was handed yet."""
    ledger.intend(SCENARIO, ONE, [])
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


def test_another_process_reads_what_was_written(ledger):
    """Each step is committed before the next one begins."""
    ledger.intend(SCENARIO, ONE, [])
    with sqlite3.connect(f"file:{ledger.path}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT certificate, state FROM releases").fetchall()
    connection.close()
    assert rows == [(ONE, "intended")]


def advance(ledger, state):
    ledger.intend(SCENARIO, ONE, [])
    if state != "intended":
        ledger.record_drawn(ONE, "{}")
    if state == "published":
        ledger.record_published(ONE)


@pytest.mark.parametrize("state", ["intended", "drawn", "published"])
def test_a_second_release_is_refused_with_the_ways_out(ledger, state):
    advance(ledger, state)
    with pytest.raises(AlreadyReleasedError, match=f"certificate {ONE[:12]} covers one") as caught:
        ledger.intend(SCENARIO, ONE, [])
    assert "concatenated query" in str(caught.value)
    # Of an attempt without a result the ledger keeps nothing to publish again.
    assert ("keeps it" in str(caught.value)) == (state != "intended")
    assert ("certify again" in str(caught.value)) == (state == "intended")
    assert [entry.state for entry in ledger.entries()] == [state]


@pytest.mark.parametrize("state", ["intended", "drawn", "published"])
def test_releases_that_the_certificate_does_not_name(ledger, state):
    advance(ledger, state)
    with pytest.raises(AlreadyReleasedError, match="does not mention: 111111111111") as caught:
        ledger.intend(SCENARIO, TWO, [])
    for way_out in ("concatenated query", "earlier_releases=ledger.releases()"):
        assert way_out in str(caught.value)
    ledger.intend(SCENARIO, TWO, [ONE])
    assert ledger.releases() == [ONE, TWO]


def test_a_ledger_of_another_scenario(ledger):
    ledger.intend(SCENARIO, ONE, [])
    with pytest.raises(LedgerError, match=r"another scenario: .*Use one ledger per secret"):
        ledger.intend("other", TWO, [ONE])
    assert ledger.releases() == [ONE]


def test_steps_out_of_order(ledger):
    with pytest.raises(LedgerError):
        ledger.record_drawn(ONE, "{}")
    ledger.intend(SCENARIO, ONE, [])
    with pytest.raises(LedgerError, match="does not have 111111111111 in state 'drawn'"):
        ledger.record_published(ONE)
    ledger.record_drawn(ONE, "{}")
    with pytest.raises(LedgerError, match="in state 'intended'"):
        ledger.record_drawn(ONE, '{"other": 1}')
    assert ledger.entry(ONE).release == "{}"


@pytest.mark.parametrize("content", [b"x" * 5000, b"PAR1", b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_file_that_is_no_ledger(tmp_path, content):
    path = tmp_path / "l"
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="cannot be used"):
        Ledger(path).intend(SCENARIO, ONE, [])
    with pytest.raises(LedgerError, match="cannot be used"):
        Ledger(path).entries()
    assert path.read_bytes() == content


@pytest.mark.soundness
def test_a_file_of_0_bytes_is_damage_and_not_a_new_ledger(tmp_path):
    """Its releases are lost, and would be allowed a second time."""
    path, other = tmp_path / "l", Ledger(tmp_path / "other")
    path.touch()
    other.intend(SCENARIO, ONE, [])
    for call in (
        lambda book: book.entries(),
        lambda book: book.releases(),
        lambda book: book.problems(),
        lambda book: book.id,
        lambda book: book.moved_to,
        lambda book: book.intend(SCENARIO, ONE, []),
        lambda book: book.record_drawn(ONE, "{}"),
        lambda book: book.copy_to(other),
        other.copy_to,
    ):
        with pytest.raises(LedgerError, match="damaged: it has 0 bytes"):
            call(Ledger(path))
    assert path.read_bytes() == b""
    assert other.moved_to is None


@pytest.mark.soundness
def test_a_file_that_went_away_and_left_its_journal_is_not_a_new_ledger(tmp_path):
    """SQLite would take the journal, and with it old pages, into the new file."""
    (tmp_path / "l-journal").write_bytes(b"x" * 512)
    with pytest.raises(LedgerError, match="the file is gone"):
        Ledger(tmp_path / "l").intend(SCENARIO, ONE, [])
    assert not (tmp_path / "l").exists()


def test_looking_and_advancing_make_no_ledger(tmp_path):
    ledger = Ledger(tmp_path / "l")
    assert (ledger.entries(), ledger.id, ledger.moved_to) == ([], None, None)
    assert not ledger.is_incoming
    with pytest.raises(LedgerError, match="cannot be used"):
        ledger.record_drawn(ONE, "{}")
    assert list(tmp_path.iterdir()) == []


def test_every_ledger_has_an_id(tmp_path):
    first, second = Ledger(tmp_path / "1"), Ledger(tmp_path / "2")
    for book in (first, second):
        book.intend(SCENARIO, ONE, [])
    assert len({first.id, second.id, None}) == 3
    assert Ledger(tmp_path / "1").id == first.id
    with sqlite3.connect(first.path) as connection:
        connection.execute("DELETE FROM identity")
    connection.close()
    with pytest.raises(LedgerError, match="damaged: it has no id"):
        first.intend(SCENARIO, TWO, [ONE])


@pytest.mark.soundness
def test_to_look_in_keeps_the_lock_of_another_thread(tmp_path):
    """Closing a file drops all locks of its process, and two releases could be intended at once."""
    path = tmp_path / "ledger"
    Ledger(path).intend(SCENARIO, ONE, [])
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    assert Ledger(path).releases() == [ONE]
    begin = "import sqlite3, sys; sqlite3.connect(sys.argv[1], 0).execute('BEGIN IMMEDIATE')"
    done = subprocess.run(
        [sys.executable, "-c", begin, path], capture_output=True, text=True, check=False
    )
    connection.close()
    assert "database is locked" in done.stderr


@pytest.mark.soundness
def test_a_ledger_with_several_names_is_refused(tmp_path):
    """A process that is killed leaves what is not yet in the file beside it, under one name."""
    path, other = tmp_path / "ledger", tmp_path / "other"
    Ledger(path).intend(SCENARIO, ONE, [])
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(LedgerError, match=r"it has 2 names \(hard links\); copy it"):
            Ledger(name).intend(SCENARIO, TWO, [ONE])
    other.unlink()
    other.symlink_to(path)
    Ledger(other).intend(SCENARIO, TWO, [ONE])
    assert Ledger(path).releases() == [ONE, TWO]


def test_a_busy_ledger_says_so(ledger, monkeypatch):
    monkeypatch.setattr("pufferslice.releases.storage._WAIT_SECONDS", 0.1)
    ledger.intend(SCENARIO, ONE, [])
    holder = sqlite3.connect(ledger.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(LedgerError, match="locked"):
            ledger.record_drawn(ONE, "{}")
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    assert ledger.entries() == [Entry(ONE, "intended", None)]


def test_an_open_transaction_of_a_dead_process_is_not_there(ledger):
    ledger.intend(SCENARIO, ONE, [])
    dead = sqlite3.connect(ledger.path, isolation_level=None)
    dead.execute("BEGIN IMMEDIATE")
    dead.execute("UPDATE releases SET state = 'published'")
    dead.close()
    assert ledger.entries() == [Entry(ONE, "intended", None)]


@pytest.mark.parametrize("n_certificates", [1, 8])
def test_threads_that_intend_at_once(ledger, n_certificates, monkeypatch):
    """Exactly one of eight wins, on a file that does not exist before; also if all differ."""
    check = Ledger._check_entries

    def slow_check(*args):
        check(*args)
        time.sleep(0.01)  # all others arrive between the check and the entry

    monkeypatch.setattr(Ledger, "_check_entries", slow_check)
    for turn in range(4):
        book = Ledger(ledger.path.with_name(f"{turn}.ledger"))
        start = threading.Barrier(8)
        won, lost = [], []

        def attempt(certificate, book=book, start=start, won=won, lost=lost):
            start.wait()
            try:
                book.intend(SCENARIO, certificate, [])
                won.append(certificate)
            except AlreadyReleasedError:
                lost.append(certificate)

        names = [str(k % n_certificates) * 64 for k in range(8)]
        threads = [threading.Thread(target=attempt, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 7)
        assert book.entries() == [Entry(won[0], "intended", None)]


@pytest.mark.parametrize("command", ["list", "check", "show", "copy"])
@pytest.mark.parametrize("empty", [False, True])
def test_a_wrong_name_does_not_look_like_a_ledger_without_releases(
    tmp_path, capsys, command, empty
):
    where = tmp_path / "census.legder"
    if empty:
        where.touch()
    last = {"show": ["ab"], "copy": [str(tmp_path / "new")]}.get(command, [])
    assert run(["ledger", command, str(where), *last]) == (1 if empty else 2)
    said = capsys.readouterr().err
    assert ("it has 0 bytes" if empty else "there is no ledger at") in said
    assert where.exists() == empty
    assert not (tmp_path / "new").exists()


def test_a_closed_ledger_says_where_it_went(tmp_path, capsys):
    old, new = Ledger(tmp_path / "old"), Ledger(tmp_path / "new")
    assert old.moved_to is None
    old.intend("scenario", "a" * 64, [])
    assert old.moved_to is None
    old.copy_to(new)
    assert old.moved_to == str(tmp_path / "new")
    assert run(["ledger", "list", str(tmp_path / "old")]) == 0
    assert f"Closed: it was copied to {tmp_path / 'new'}" in capsys.readouterr().out
    assert run(["ledger", "list", str(tmp_path / "new"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["moved_to"] is None
