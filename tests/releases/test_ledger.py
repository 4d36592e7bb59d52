# SPDX-License-Identifier: Apache-2.0
import json
import re
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from fractions import Fraction

import attrs
import pytest
from tests.releases.grants import ONE, SECRET, THREE, TWO, granted, lived, states_of, text_of

from pufferslice.cli.app import run
from pufferslice.errors import AlreadyReleasedError, LedgerError
from pufferslice.releases.commands import copying, finished
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.states import Book, Intent, Part


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "census.ledger")


def test_the_life_of_a_release(ledger):
    assert ledger.entries() == []
    assert not ledger.path.exists()
    entry = ledger.intend(granted(ONE))
    assert states_of(ledger) == [(ONE, "intended", None)]
    ledger.record_drawn(entry, text_of(ONE))
    assert states_of(ledger) == [(ONE, "drawn", text_of(ONE))]
    ledger.record_published(entry)
    assert states_of(ledger) == [(ONE, "published", text_of(ONE))]
    assert ledger.entry(ONE).release == text_of(ONE)
    assert ledger.entry(TWO) is None
    assert ledger.releases() == [ONE]
    kinds = [event.kind for event in ledger.events()]
    assert kinds == ["made", "granted", "intended", "drawn", "published"]
    assert ledger.problems() == []


def test_it_is_for_its_owner_only(ledger):
    """It keeps releases that nobody was handed yet."""
    ledger.intend(granted(ONE))
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


def test_another_process_reads_what_was_written(ledger):
    """Each step is committed before the next one begins."""
    ledger.intend(granted(ONE))
    with sqlite3.connect(f"file:{ledger.path}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT kind FROM events ORDER BY number").fetchall()
    connection.close()
    assert rows == [("made",), ("granted",), ("intended",)]


def test_a_with_block_keeps_the_file_open(tmp_path):
    with Ledger(tmp_path / "l") as ledger:
        lived(ledger)
        assert Ledger(tmp_path / "l").releases() == [ONE]
    assert ledger.releases() == [ONE]
    assert [path.name for path in tmp_path.iterdir()] == ["l"]


@pytest.mark.parametrize("state", ["intended", "drawn", "published"])
def test_a_second_release_is_refused_with_the_ways_out(ledger, state):
    lived(ledger, ONE, state)
    with pytest.raises(AlreadyReleasedError, match=f"certificate {ONE[:12]} covers one") as caught:
        ledger.intend(granted(ONE))
    assert "one query" in str(caught.value)
    # Of an attempt without a result the ledger keeps nothing to publish again.
    assert ("keeps it" in str(caught.value)) == (state != "intended")
    assert ("ledger void" in str(caught.value)) == (state == "intended")
    assert [entry.state for entry in ledger.entries()] == [state]


@pytest.mark.soundness
@pytest.mark.parametrize("state", ["intended", "drawn", "published"])
def test_one_certificate_for_one_secret(ledger, state):
    lived(ledger, ONE, state)
    for keys in (SECRET, ("other", *SECRET), None):
        with pytest.raises(AlreadyReleasedError, match="same secret, 111111111111"):
            ledger.intend(granted(TWO, keys))
        with pytest.raises(AlreadyReleasedError, match="same secret"):
            ledger.check_free(granted(TWO, keys))
    lived(ledger, TWO, keys=("other",))
    assert ledger.releases() == [ONE, TWO]
    ledger.check_free(granted(THREE, ("third",)))


def test_the_picture_of_whole_releases(ledger):
    assert "No releases." in ledger.plot()._repr_svg_()
    lived(ledger, THREE, keys=("other",), statistics=("mean(<b>)", "rate(x)"))
    svg = ledger.plot()._repr_svg_()
    assert re.findall(r"<title>(.*?)</title>", svg) == [
        f"mean(&lt;b&gt;) and 1 more, {THREE[:12]}: 100\u00a0% spent, 0\u00a0% left",
    ]
    assert ledger.plot().is_internal


@pytest.mark.soundness
def test_an_attempt_that_was_given_up_costs_nothing_and_ends_there(ledger):
    first = lived(ledger, ONE, "intended")
    ledger.give_up(first)
    with pytest.raises(LedgerError, match="does not have 111111111111 in state 'intended'"):
        ledger.record_drawn(first, text_of(ONE))
    assert ledger.releases() == []
    second = lived(ledger, ONE, "drawn")
    assert [entry.serial for entry in ledger.entries()] == [1, 2]
    for entry in (first, second):
        with pytest.raises(LedgerError, match="in state 'intended'"):
            ledger.give_up(entry)
    with pytest.raises(AlreadyReleasedError, match="same secret"):
        ledger.intend(granted(TWO))


def test_another_certificate_after_an_attempt_that_was_given_up(ledger):
    ledger.give_up(lived(ledger, ONE, "intended"))
    lived(ledger, TWO)
    with pytest.raises(AlreadyReleasedError, match="same secret, 222222222222"):
        ledger.intend(granted(ONE))


def test_steps_out_of_order(ledger):
    entry = lived(ledger, ONE, "intended")
    with pytest.raises(LedgerError, match="does not have the intent"):
        ledger.record_drawn(attrs.evolve(entry, hash="0" * 64), "{}")
    with pytest.raises(LedgerError, match="does not have the intent"):
        ledger.record_drawn(attrs.evolve(entry, number=2), "{}")
    with pytest.raises(LedgerError, match="does not have 111111111111 in state 'drawn'"):
        ledger.record_published(entry)
    ledger.record_drawn(entry, "{}")
    with pytest.raises(LedgerError, match="in state 'intended'"):
        ledger.record_drawn(entry, '{"other": 1}')
    assert ledger.entry(ONE).release == "{}"


class TestBudgets:
    """Parts, periods and charges; a certificate of one release is a budget of one part."""

    def spend(self, ledger, part, charge, **said):
        parts = {"yearbook": Part(), "monthly": Part(n_periods=3, is_fresh=True)}
        budget = granted(ONE, parts=parts)
        intent = Intent(certificate=ONE, part=part, charge=Fraction(charge), **said)
        return ledger.intend(budget, intent)

    @pytest.mark.soundness
    def test_never_more_than_was_granted(self, ledger):
        assert self.spend(ledger, "yearbook", "2/5").serial == 1
        assert self.spend(ledger, "yearbook", "3/5").serial == 2
        with pytest.raises(AlreadyReleasedError, match="has 0 of its precision left"):
            self.spend(ledger, "yearbook", "1/1000000")
        for period in (1, 2, 3):
            self.spend(ledger, "monthly", "2/3", period=period)
            with pytest.raises(AlreadyReleasedError, match=f"period {period}, has 1/3"):
                self.spend(ledger, "monthly", "1/2", period=period)
        assert ledger.book().left(ONE, "monthly", 2) == Fraction(1, 3)

    @pytest.mark.parametrize(
        ("part", "charge", "period"),
        [("other", 1, 1), ("monthly", 1, 0), ("monthly", 1, 4), ("yearbook", 0, 1),
         ("yearbook", -1, 1), ("yearbook", 2, 1)],
    )  # fmt: skip
    def test_what_was_not_declared(self, ledger, part, charge, period):
        with pytest.raises(LedgerError, match="use what it declares"):
            self.spend(ledger, part, charge, period=period)
        assert ledger.entries() == []

    def test_what_was_given_up_comes_back(self, ledger):
        ledger.give_up(self.spend(ledger, "yearbook", "4/5"))
        assert ledger.book().left(ONE, "yearbook", 1) == 1

    @pytest.mark.soundness
    def test_the_marks_of_tables(self, ledger):
        may, june = {"n_rows": 9, "sums": [3]}, {"n_rows": 9, "sums": [4]}
        self.spend(ledger, "monthly", "1/2", table=may)
        with pytest.raises(LedgerError, match="not fresh"):
            self.spend(ledger, "monthly", "1/2", period=2, table=may)
        with pytest.raises(LedgerError, match="another table"):
            self.spend(ledger, "monthly", "1/2", table=june)
        self.spend(ledger, "monthly", "1/4", table=may)
        self.spend(ledger, "monthly", "1/2", period=2, table=june)
        self.spend(ledger, "monthly", "1/2", period=3)
        self.spend(ledger, "yearbook", "1/2", table=may)
        with pytest.raises(LedgerError, match="part 'yearbook' was released of another table"):
            self.spend(ledger, "yearbook", "1/2", table=june)

    def test_what_a_release_was_of_is_kept(self, ledger):
        self.spend(ledger, "yearbook", "1/3", features=[[1.0, 0.0]], noise=[[2.0]], table={"n": 1})
        fields = ledger.events()[-1].fields
        stated = {key: fields[key] for key in ("features", "noise", "table", "charge", "part")}
        assert stated == {
            "features": [[1.0, 0.0]],
            "noise": [[2.0]],
            "table": {"n": 1},
            "charge": "1/3",
            "part": "yearbook",
        }

    def test_it_is_listed(self, ledger, capsys):
        self.spend(ledger, "monthly", "2/3", period=2)
        assert run(["ledger", "list", str(ledger.path)]) == 0
        said = capsys.readouterr().out
        assert "part monthly 2; left: 1/3 of the precision" in said
        assert "for all its outputs together" in said
        assert "1/3 of the precision left in period 2" in said

    def test_its_picture(self, ledger, capsys):
        self.spend(ledger, "monthly", "2/3", period=2)
        plot = ledger.path.with_suffix(".svg")
        assert run(["ledger", "list", str(ledger.path), "--plot", str(plot)]) == 0
        assert f"Picture, internal: {plot}" in capsys.readouterr().out
        svg = plot.read_text()
        names = re.findall(r"<title>(.*?)</title>", svg)
        assert names == [
            f"monthly 2, {ONE[:12]}: 66.7\u00a0% spent, 33.3\u00a0% left",
            f"monthly, {ONE[:12]}, 2 of 3 periods: 0\u00a0% spent, 100\u00a0% left",
            f"yearbook, {ONE[:12]}: 0\u00a0% spent, 100\u00a0% left",
        ]
        spent = re.findall(r'class="noise" x="16.0" y="\d+" width="([\d.]+)"', svg)
        assert [float(width) for width in spent] == [pytest.approx(488 * 2 / 3, abs=0.01), 0.0, 0.0]


class TestChain:
    def test_every_event_has_the_hash_of_all_before(self, ledger):
        lived(ledger)
        book = Book("copy")
        book.take(ledger.events())
        assert (book.number, book.hash) == (5, ledger.events()[-1].hash)
        hashes = [event.hash for event in ledger.events()]
        assert len(set(hashes)) == 5
        assert ledger.book().hashes == set(hashes)
        assert ledger.book().lineage == hashes[0]

    def test_equal_events_have_different_hashes(self, tmp_path):
        """Else a published hash would tell a table by its mark."""
        salts = set()
        for name in "ab":
            book = Ledger(tmp_path / name)
            lived(book)
            salts |= {event.fields["salt"] for event in book.events()}
        assert len(salts) == 10

    def test_an_event_is_neither_changed_nor_removed(self, ledger):
        lived(ledger)
        connection = sqlite3.connect(ledger.path)
        for statement in ("UPDATE events SET kind = 'void'", "DELETE FROM events"):
            with pytest.raises(sqlite3.IntegrityError, match="a ledger"):
                connection.execute(statement)
        connection.close()

    @pytest.mark.soundness
    @pytest.mark.parametrize(
        "damage",
        [
            "UPDATE events SET body = replace(body, ':\"1\"', ':\"1/2\"') WHERE number = 3",
            "UPDATE events SET body = replace(body, 'release', 'monthly') WHERE number = 3",
            "UPDATE events SET kind = 'void' WHERE number = 4",
            "UPDATE events SET release = 2 WHERE number = 4",
            "UPDATE events SET at = '2020' WHERE number = 4",
            "UPDATE events SET role = 'me' WHERE number = 4",
            "DELETE FROM events WHERE number = 2",
            "DELETE FROM events WHERE number = 1",
            "UPDATE events SET number = 9 WHERE number = 5",
        ],
    )
    def test_damage_is_noticed(self, ledger, damage, capsys):
        lived(ledger)
        connection = sqlite3.connect(ledger.path)
        connection.executescript(f"DROP TRIGGER no_change; DROP TRIGGER no_loss; {damage}")
        connection.close()
        with pytest.raises(LedgerError, match=r"damaged.*restore a copy"):
            Ledger(ledger.path).intend(granted(TWO, ("other",)))
        assert run(["ledger", "check", str(ledger.path), "--json"]) == 1
        problems = json.loads(capsys.readouterr().out)["problems"]
        assert any("triggers" in problem for problem in problems)
        assert any("chain of hashes is broken" in problem for problem in problems)

    @pytest.mark.soundness
    def test_a_release_in_it_that_was_changed_is_noticed(self, ledger):
        lived(ledger)
        connection = sqlite3.connect(ledger.path)
        connection.execute("UPDATE contents SET text = replace(text, '1', '2')")
        connection.commit()
        connection.close()
        assert ledger.problems() == ["the release of 111111111111 is damaged or of another"]
        connection = sqlite3.connect(ledger.path)
        connection.execute("DELETE FROM contents")
        connection.commit()
        connection.close()
        assert ledger.problems() == ["the release of 111111111111 is not kept here"]

    def test_events_that_nobody_wrote(self, ledger):
        """A chain that fits, of events that mean nothing."""
        ledger.make()
        bodies = {"made": {"version": 5}, "finished": {"taken": 3}, "intended": {"charge": "1/0"}}
        for kind in ("unknown", "granted", *bodies):
            fields = bodies.get(kind, {})
            with pytest.raises(LedgerError, match=f"cannot be read .{kind}"):
                ledger.change(lambda t, kind=kind, fields=fields: t.append(kind, **fields))
        ledger.change(lambda t: t.append("started", run="r", plan="p", n_steps=3))
        with pytest.raises(LedgerError, match="cannot be read"):
            ledger.change(lambda t: t.append("started", run="r", plan="p", n_steps=3))


@pytest.mark.parametrize("content", [b"x" * 5000, b"PAR1", b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_file_that_is_no_ledger(tmp_path, content):
    path = tmp_path / "l"
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="cannot be used"):
        Ledger(path).intend(granted(ONE))
    with pytest.raises(LedgerError, match="cannot be used"):
        Ledger(path).entries()
    assert path.read_bytes() == content


@pytest.mark.soundness
def test_a_file_of_0_bytes_is_damage_and_not_a_new_ledger(tmp_path):
    """Its releases are lost, and would be allowed a second time."""
    path, other = tmp_path / "l", Ledger(tmp_path / "other")
    path.touch()
    entry = lived(other)
    for call in (
        lambda book: book.entries(),
        lambda book: book.releases(),
        lambda book: book.problems(),
        lambda book: book.id,
        lambda book: book.moved_to,
        lambda book: book.intend(granted(ONE)),
        lambda book: book.record_drawn(entry, "{}"),
        lambda book: finished(copying(book, other)),
        lambda book: finished(copying(other, book)),
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
        Ledger(tmp_path / "l").intend(granted(ONE))
    assert not (tmp_path / "l").exists()


def test_looking_and_advancing_make_no_ledger(tmp_path):
    ledger = Ledger(tmp_path / "l")
    assert (ledger.entries(), ledger.events(), ledger.id, ledger.moved_to) == ([], [], None, None)
    assert (ledger.is_incoming, ledger.problems()) == (False, [])
    ledger.check_free(granted(ONE))
    with pytest.raises(LedgerError, match="cannot be used"):
        ledger.record_drawn(lived(Ledger(tmp_path / "other")), "{}")
    assert not (tmp_path / "l").exists()


def test_every_ledger_has_an_id(tmp_path):
    first, second = Ledger(tmp_path / "1"), Ledger(tmp_path / "2")
    for book in (first, second):
        lived(book)
    assert len({first.id, second.id, None}) == 3
    assert Ledger(tmp_path / "1").id == first.id
    with sqlite3.connect(first.path) as connection:
        connection.execute("INSERT INTO identity VALUES (5, 'x', NULL)")
    connection.close()
    with pytest.raises(LedgerError, match="has version"):
        first.intend(granted(TWO, ("other",)))


@pytest.mark.soundness
def test_to_look_in_keeps_the_lock_of_another_thread(tmp_path):
    """Closing a file drops all locks of its process, and two releases could be intended at once."""
    path = tmp_path / "ledger"
    lived(Ledger(path))
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
    lived(Ledger(path))
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(LedgerError, match=r"it has 2 names \(hard links\); copy it"):
            lived(Ledger(name), TWO, keys=("other",))
    other.unlink()
    other.symlink_to(path)
    lived(Ledger(other), TWO, keys=("other",))
    assert Ledger(path).releases() == [ONE, TWO]


def test_a_busy_ledger_says_so(ledger, monkeypatch):
    monkeypatch.setattr("pufferslice.releases.storage._WAIT_SECONDS", 0.1)
    entry = lived(ledger, ONE, "intended")
    holder = sqlite3.connect(ledger.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(LedgerError, match="locked"):
            ledger.record_drawn(entry, "{}")
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    assert states_of(ledger) == [(ONE, "intended", None)]


def test_an_open_transaction_of_a_dead_process_is_not_there(ledger):
    entry = lived(ledger, ONE, "intended")
    dead = sqlite3.connect(ledger.path, isolation_level=None)
    dead.execute("BEGIN IMMEDIATE")
    dead.execute(
        "INSERT INTO events VALUES (4, 'void', ?, '{}', '', '', NULL, 'x')", (entry.number,)
    )
    dead.close()
    assert states_of(ledger) == [(ONE, "intended", None)]


@pytest.mark.parametrize("n_certificates", [1, 8])
def test_threads_that_intend_at_once(ledger, n_certificates, monkeypatch):
    """Exactly one of eight wins, on a file that does not exist before; also if all differ."""
    check = Book.check_free

    def slow_check(*args):
        check(*args)
        time.sleep(0.01)  # all others arrive between the check and the entry

    monkeypatch.setattr(Book, "check_free", slow_check)
    for turn in range(4):
        path = ledger.path.with_name(f"{turn}.ledger")
        start = threading.Barrier(8)
        won, lost = [], []

        def attempt(certificate, path=path, start=start, won=won, lost=lost):
            start.wait()
            try:
                Ledger(path).intend(granted(certificate))
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
        assert states_of(Ledger(path)) == [(won[0], "intended", None)]


def test_a_ledger_object_sees_what_others_recorded_and_a_file_that_was_replaced(tmp_path):
    path = tmp_path / "l"
    ledger = Ledger(path)
    lived(ledger)
    before = path.read_bytes()
    lived(Ledger(path), TWO, keys=("other",))
    assert ledger.releases() == [ONE, TWO]
    path.write_bytes(before)
    assert ledger.releases() == [ONE]
    lived(ledger, THREE, keys=("third",))
    assert Ledger(path).releases() == [ONE, THREE]


@pytest.mark.parametrize("command", ["list", "check", "show", "copy", "migrate", "void"])
@pytest.mark.parametrize("empty", [False, True])
def test_a_wrong_name_does_not_look_like_a_ledger_without_releases(
    tmp_path, capsys, command, empty
):
    where = tmp_path / "census.legder"
    if empty:
        where.touch()
    new = [str(tmp_path / "new")]
    last = {"show": ["ab"], "void": ["ab"], "copy": new, "migrate": new}.get(command, [])
    assert run(["ledger", command, str(where), *last]) == (1 if empty else 2)
    said = capsys.readouterr().err
    assert ("it has 0 bytes" if empty else "there is no ledger at") in said
    assert where.exists() == empty
    assert not (tmp_path / "new").exists()


def test_a_closed_ledger_says_where_it_went(tmp_path, capsys):
    old, new = Ledger(tmp_path / "old"), Ledger(tmp_path / "new")
    assert old.moved_to is None
    lived(old)
    assert old.moved_to is None
    finished(copying(old, new))
    assert old.moved_to == str(tmp_path / "new")
    assert run(["ledger", "list", str(tmp_path / "old")]) == 0
    assert f"Closed: it was copied to {tmp_path / 'new'}" in capsys.readouterr().out
    assert run(["ledger", "list", str(tmp_path / "new"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["moved_to"] is None


def test_list_show_and_void(ledger, capsys):
    about = {"claim": "at most 64 %", "statistics": ("mean(a)", "mean(b)"), "n_rows": 16_280}
    first = ledger.intend(granted(ONE, **about))
    ledger.record_drawn(first, text_of(ONE))
    lived(ledger, TWO, "intended", keys=("other",))
    name = str(ledger.path)
    assert run(["ledger", "list", name, "--json"]) == 0
    (row, _) = json.loads(capsys.readouterr().out)["releases"]
    assert row.pop("date") == first.at
    assert row == {
        "certificate": ONE,
        "state": "drawn",
        "claim": "at most 64 %",
        "statistics": ["mean(a)", "mean(b)"],
        "rows": 16_280,
        "part": "release",
        "period": 1,
        "left": "nothing",
    }
    assert run(["ledger", "list", name]) == 0
    line = f"{ONE[:12]}  drawn      {first.at[:16].replace('T', ' ')}  at most 64 %: mean(a), "
    assert f"{line}mean(b), 16,280 rows; left: nothing" in capsys.readouterr().out
    for command, digits in (("show", ""), ("show", "3"), ("void", "3")):
        assert run(["ledger", command, name, digits]) == 2
        assert "give the first digits of one" in capsys.readouterr().err
    assert run(["ledger", "show", name, "2222", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [step["kind"] for step in shown["trail"]] == ["intended"]
    assert run(["ledger", "void", name, "1111"]) == 1
    assert run(["ledger", "void", name, "2222"]) == 0
    assert [entry.state for entry in ledger.entries()] == ["drawn", "void"]
    assert "census.ledger" in ledger._repr_html_()
    assert list(ledger.to_pandas()["certificate"]) == [ONE, TWO]
