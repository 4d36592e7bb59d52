# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""A ledger before 0.3 is never opened for a release; what it holds stays spent."""

import contextlib
import json
import os
import secrets
import signal
import sqlite3

import pyarrow as pa
import pytest
from tests.releases.grants import ONE, TWO, granted
from tests.releases.test_copy import in_a_child

import pufferslice as ps
from pufferslice.cli.app import run
from pufferslice.errors import AlreadyReleasedError, LedgerError
from pufferslice.releases import Ledger, earlier
from pufferslice.releases.commands import copying, finished
from pufferslice.releases.earlier import migrating
from pufferslice.releases.ledger import Transaction

RELEASES = """CREATE TABLE releases (
    certificate TEXT PRIMARY KEY, state TEXT NOT NULL, release TEXT, composition TEXT,
    spent DOUBLE PRECISION, total DOUBLE PRECISION
)"""
SCHEMAS = {
    2: ["CREATE TABLE moved (target TEXT NOT NULL)"],
    3: [
        "CREATE TABLE moved (target TEXT NOT NULL, id TEXT NOT NULL)",
        "CREATE TABLE identity (id TEXT NOT NULL, state TEXT NOT NULL, source TEXT)",
        "INSERT INTO identity VALUES ('its-own-id', 'open', NULL)",
    ],
}
KINDS = [("file", 2), ("file", 3), ("database", 2), ("database", 3)]


def statements(version, entries):
    """What version 0.2.0 (2) and the program after it (3) wrote."""
    yield "CREATE TABLE ledger (version INTEGER NOT NULL, scenario TEXT NOT NULL)"
    yield from (RELEASES, *SCHEMAS[version])
    yield f"INSERT INTO ledger VALUES ({version}, 'a scenario')"  # noqa: S608
    for certificate, state in entries.items():
        yield f"INSERT INTO releases (certificate, state) VALUES ('{certificate}', '{state}')"  # noqa: S608


def made_before(place, version, entries):
    if "://" not in str(place):
        with contextlib.closing(sqlite3.connect(place)) as connection:
            connection.executescript(";".join(statements(version, entries)))
        return
    import psycopg

    address, _, name = place.partition("#")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA pufferslice_{name}")
        connection.execute(f"SET search_path = pufferslice_{name}")
        for statement in statements(version, entries):
            connection.execute(statement)


@pytest.fixture
def place(tmp_path, request):
    def new(kind):
        name = f"m{secrets.token_hex(8)}"
        return (
            str(tmp_path / name)
            if kind == "file"
            else request.getfixturevalue("server").address(name)
        )

    return new


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}-{kind[1]}")
def old(request, place):
    kind, version = request.param
    where = place(kind)
    made_before(where, version, {ONE: "published", TWO: "intended"})
    return where


@pytest.mark.soundness
def test_it_is_not_opened(old, tmp_path):
    for call in (
        lambda book: book.intend(granted(ONE)),
        lambda book: book.entries(),
        lambda book: book.check_free(granted(ONE)),
        lambda book: book.problems(),
        lambda book: finished(copying(book, Ledger(tmp_path / "new"))),
    ):
        with pytest.raises(LedgerError, match=r"before 0\.3.*ledger migrate OLD NEW"):
            call(Ledger(old))
    assert not (tmp_path / "new").exists()


def test_what_it_holds_is_kept_as_spent(old, place, capsys):
    target = place("file")
    assert run(["ledger", "migrate", old, target]) == 0
    assert "spent before 0.3, not covered jointly, releases: 2" in capsys.readouterr().out
    new = Ledger(target)
    assert new.earlier() == [ONE, TWO]
    assert (new.entries(), new.problems(), new.is_incoming) == ([], [], False)
    assert run(["ledger", "list", target]) == 0
    assert "Spent before 0.3, not covered jointly with anything else: 2" in capsys.readouterr().out
    assert run(["ledger", "migrate", old, target]) == 0
    assert new.book().before == {ONE: "published", TWO: "intended"}
    with pytest.raises(LedgerError, match="before; use that one"):
        finished(migrating(Ledger(old), Ledger(place("file"))))


@pytest.mark.soundness
def test_it_blocks_every_certificate_that_does_not_say_so(old, place):
    new = Ledger(place("database" if "://" in old else "file"))
    finished(migrating(Ledger(old), new))
    for named in ((), (ONE,), (TWO,)):
        for keys in (("any secret",), None):
            with pytest.raises(AlreadyReleasedError, match="--acknowledge-earlier"):
                new.intend(granted("3" * 64, keys, earlier=named))
    new.intend(granted("3" * 64, earlier=(ONE, TWO)))
    with pytest.raises(AlreadyReleasedError, match="same secret"):
        new.intend(granted("4" * 64, earlier=(ONE, TWO)))


@pytest.mark.soundness
@pytest.mark.parametrize(
    "moment", ["incoming", "filled", "moved", "arrived", "inside the opening", "inside the filling"]
)
def test_killed_between_any_two_steps(old, place, moment):
    target = place("file")

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def migrate():
        if moment == "inside the opening":
            append = Transaction.append
            Transaction.append = lambda self, kind, **f: (
                die() if kind == "arrived" else append(self, kind, **f)
            )
        if moment == "inside the filling":
            earlier._fill = lambda *_: die()
        for step in migrating(Ledger(old), Ledger(target)):
            if step.name == moment:
                die()

    assert in_a_child(migrate) == -signal.SIGKILL
    new = Ledger(target)
    if moment != "arrived":
        with pytest.raises(LedgerError, match="is incoming"):
            new.intend(granted("3" * 64, earlier=(ONE, TWO)))
    assert finished(migrating(Ledger(old), new)) == 2
    assert new.earlier() == [ONE, TWO]
    new.intend(granted("3" * 64, earlier=(ONE, TWO)))


def test_the_old_program_finds_it_closed(old, place):
    new = Ledger(place("file"))
    finished(migrating(Ledger(old), new))
    with Ledger(old).storage.alone(is_checked=False) as connection:
        assert connection.execute("SELECT target FROM moved").fetchall() == [(new.name,)]


def test_a_release_that_the_old_program_makes_meanwhile_is_kept(old, place):
    """After the first try, and before the old one is closed."""
    target = place("file")
    steps = migrating(Ledger(old), Ledger(target))
    while next(steps).name != "filled":
        pass
    steps.close()
    with Ledger(old).storage.alone(is_checked=False) as connection:
        connection.execute("UPDATE releases SET state = 'published'")
        connection.execute(
            "INSERT INTO releases (certificate, state) VALUES (?, 'drawn')", ("3" * 64,)
        )
    finished(migrating(Ledger(old), Ledger(target)))
    assert Ledger(target).book().before == {ONE: "published", TWO: "published", "3" * 64: "drawn"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE ledger SET version = 4", "version 4"),
        ("UPDATE releases SET state = 'lost'", "an entry has no state"),
        ("DROP TABLE moved", "not one of releases before"),
        ("UPDATE identity SET state = 'incoming'", "Finish it with the program"),
    ],
)
def test_what_does_not_migrate(tmp_path, change, words):
    old, new = tmp_path / "old", tmp_path / "new"
    made_before(old, 3, {ONE: "published"})
    with contextlib.closing(sqlite3.connect(old)) as connection:
        connection.execute(change)
        connection.commit()
    with pytest.raises(LedgerError, match=words):
        finished(migrating(Ledger(old), Ledger(new)))
    assert not new.exists()


def test_a_ledger_of_today_does_not_migrate(tmp_path):
    Ledger(tmp_path / "today").intend(granted(ONE))
    with pytest.raises(LedgerError, match="not one of releases before"):
        finished(migrating(Ledger(tmp_path / "today"), Ledger(tmp_path / "new")))
    made_before(tmp_path / "old", 2, {ONE: "published"})
    with pytest.raises(LedgerError, match="has entries"):
        finished(migrating(Ledger(tmp_path / "old"), Ledger(tmp_path / "today")))


SCENARIO = """
[data]
path = "people.csv"
[secret]
column = "site"
[query]
distribution = "groups"
mean = ["pay"]
[guarantee]
notion = "guess"
at_most = 0.7
"""


def test_calibrate_puts_the_sentence_into_the_certificate(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made_before(tmp_path / "old", 2, {ONE: "published"})
    (tmp_path / "people.csv").write_text("site,pay\na,1\na,2\nb,4\nb,5\n")
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    assert run(["ledger", "migrate", "old", "new"]) == 0
    calibrate = ["calibrate", "scenario.toml", "--out", "c.json"]
    assert run([*calibrate, "--acknowledge-earlier"]) == 2
    assert run([*calibrate, "--ledger", "new"]) == 1
    assert "--acknowledge-earlier" in capsys.readouterr().err
    assert run([*calibrate, "--ledger", "new", "--acknowledge-earlier"]) == 0
    assert "not covered jointly with this one" in capsys.readouterr().out
    certificate = ps.Certificate.load("c.json")
    assert certificate.statement.earlier_releases == [ONE]
    assert "earlier-releases-apart" in certificate.statement.limits
    release = ["release", "scenario.toml", "--certificate", "c.json", "--ledger", "new"]
    assert run([*release, "--out", "r.json", "--group", "a"]) == 0
    assert run([*calibrate[:2], "--ledger", "new", "--acknowledge-earlier"]) == 1
    assert "same secret" in capsys.readouterr().err
    # one that does not say so
    scenario = ps.Scenario.from_groups(
        pa.table({"s": ["a", "a", "b", "b"], "x": [1.0, 2.0, 4.0, 5.0]}),
        secret="s",
        query=ps.queries.summary(mean=["x"]),
    )
    other = ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.7))
    assert "earlier-releases-apart" not in other.statement.limits
    rows = pa.table({"s": ["a", "a"], "x": [1.0, 2.0]})
    with pytest.raises(AlreadyReleasedError, match=r"from before 0\.3"):
        ps.release(scenario, rows, other, ledger="new")
    assert json.loads((tmp_path / "r.json").read_text())["certificate"] == certificate.digest
