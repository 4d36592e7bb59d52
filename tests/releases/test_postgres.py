# SPDX-License-Identifier: Apache-2.0
"""A ledger in a real PostgreSQL server: one release whatever many people, kills and cuts do."""

import contextlib
import json
import multiprocessing
import os
import socket
import threading
import time

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from pufferslice import Guarantee, Scenario, certify_release
from pufferslice._core.sampler import SeededTestNoise
from pufferslice.cli.app import run
from pufferslice.errors import AlreadyReleasedError, ArgumentError, LedgerError, PuffersliceError
from pufferslice.queries import summary
from pufferslice.releases import Ledger, release, release_again
from pufferslice.releases import postgres as module
from pufferslice.releases.ledger import Entry
from pufferslice.releases.postgres import Database
from pufferslice.scenario.distributions import GaussianDistribution

ONE, TWO = "1" * 64, "2" * 64
KEPT = json.dumps({"certificate": ONE})


def query(address: str, statement: str) -> list[tuple]:
    base, _, name = address.partition("#")
    with psycopg.connect(base, autocommit=True) as connection:
        connection.execute(f"SET search_path = pufferslice_{name}")
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def lived(ledger: Ledger, certificate: str = ONE) -> None:
    ledger.intend("scenario", certificate, [])
    ledger.record_drawn(certificate, json.dumps({"certificate": certificate}))
    ledger.record_published(certificate)


def test_the_life_of_a_release(address) -> None:
    ledger = Ledger(address)
    assert ledger.entries() == []
    assert ledger.path is None
    ledger.intend("scenario", ONE, [])
    assert ledger.entries() == [Entry(ONE, "intended", None)]
    ledger.record_drawn(ONE, KEPT)
    ledger.record_published(ONE)
    assert ledger.entries() == [Entry(ONE, "published", KEPT)]
    assert [(event.state, event.role) for event in ledger.trail()] == [
        ("intended", "postgres"),
        ("drawn", "postgres"),
        ("published", "postgres"),
    ]
    assert ledger.problems() == []
    for call, words in [
        (lambda: ledger.intend("scenario", ONE, []), "covers one release"),
        (lambda: ledger.intend("scenario", TWO, []), "does not mention"),
        (lambda: ledger.intend("other", TWO, [ONE]), "another scenario"),
        (lambda: ledger.record_drawn(ONE, KEPT), "in state 'intended'"),
    ]:
        with pytest.raises(LedgerError, match=words):
            call()
    ledger.intend("scenario", TWO, [ONE])
    assert ledger.releases() == [ONE, TWO]


def test_ledgers_of_one_database_are_apart(server) -> None:
    first, second = (Ledger(server.address(name)) for name in ("apart_a", "apart_b"))
    first.intend("one", ONE, [])
    second.intend("two", ONE, [])
    assert first.releases() == second.releases() == [ONE]


def test_a_release_of_a_scenario(address, tmp_path) -> None:
    worlds = {
        name: GaussianDistribution(mean=[mean], cov=[[1.0]])
        for name, mean in {"low": 0.0, "high": 1.0}.items()
    }
    scenario = Scenario.from_worlds(worlds, query=summary(mean=["x"]), source="public_model")
    noise = SeededTestNoise(seed=1)
    certificate = certify_release(scenario, Guarantee.unsliced(order=4, epsilon=1.0), noise=noise)
    table = pa.table({"x": [0.5, 0.7]})
    out = tmp_path / "a.json"
    released = release(scenario, table, certificate, ledger=address, noise=noise, out=out)
    with pytest.raises(AlreadyReleasedError):
        release(scenario, table, certificate, ledger=Ledger(address), noise=noise)
    again = release_again(certificate, ledger=address, out=tmp_path / "b.json")
    np.testing.assert_array_equal(released.values, again.values)
    assert Ledger(address).problems() == []


def _attempt(address: str, certificate: str, budget, skew: float, results) -> None:
    """In a process of its own, with a clock that may be wrong."""
    now = time.time
    time.time = lambda: now() + skew
    try:
        ledger = Ledger(address)
        ledger.intend("scenario", certificate, [], budget)
        text = json.dumps({"certificate": certificate, "by": os.getpid()})
        ledger.record_drawn(certificate, text)
        ledger.record_published(certificate)
        results.put((certificate, text, "released"))
    except LedgerError as error:
        results.put((certificate, None, str(error)))


def at_once(address: str, certificates: list[str], budgets: list, skews=None) -> list:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    skews = skews or [0.0] * len(certificates)
    processes = [
        context.Process(target=_attempt, args=(address, certificate, budget, skew, results))
        for certificate, budget, skew in zip(certificates, budgets, skews, strict=True)
    ]
    for process in processes:
        process.start()
    answers = [results.get(timeout=100) for _ in processes]
    for process in processes:
        process.join()
    return answers


@pytest.mark.soundness
@pytest.mark.parametrize("same", [True, False])
def test_of_twenty_processes_one_releases(address, same) -> None:
    certificates = [ONE] * 20 if same else [f"{k:064x}" for k in range(20)]
    answers = at_once(address, certificates, [None] * 20)
    done = [answer for answer in answers if answer[2] == "released"]
    assert len(done) == 1
    assert Ledger(address).entries() == [Entry(done[0][0], "published", done[0][1])]
    refused = [answer[2] for answer in answers if answer[2] != "released"]
    assert all("covers one release" in text or "does not mention" in text for text in refused)
    assert Ledger(address).problems() == []


@pytest.mark.soundness
def test_a_total_is_kept_by_processes_with_wrong_clocks(address) -> None:
    year = 3e7
    answers = at_once(
        address,
        [f"{k:064x}" for k in range(12)],
        [("key", 0.24, 1.0)] * 12,
        [year * (-1) ** k for k in range(12)],
    )
    assert [answer[2] for answer in answers].count("released") == 4
    assert all("would cost 1.2" in text for *_, text in answers if text != "released")
    times = [event.at for event in Ledger(address).trail()]
    assert times == sorted(times)
    assert all(at[:4] == time.strftime("%Y", time.gmtime()) for at in times)


@pytest.mark.soundness
def test_a_server_killed_between_any_two_steps(server, address) -> None:
    ledger = Ledger(address)
    steps = [
        (lambda: ledger.intend("scenario", ONE, []), []),
        (lambda: ledger.record_drawn(ONE, KEPT), [Entry(ONE, "intended", None)]),
        (lambda: ledger.record_published(ONE), [Entry(ONE, "drawn", KEPT)]),
    ]
    for step, before in steps:
        server.kill()
        with pytest.raises(LedgerError, match="cannot be used"):
            step()
        server.start()
        assert ledger.entries() == before
        step()
    server.kill()
    server.start()
    assert ledger.entries() == [Entry(ONE, "published", KEPT)]
    assert ledger.problems() == []


class Proxy:
    """Hands on so many pieces from the client, then cuts the line or says nothing more."""

    def __init__(self, port: int, *, pieces: int, silent: bool) -> None:
        self._port, self._left, self._silent = port, pieces, silent
        self._door = socket.create_server(("127.0.0.1", 0))
        self._open = [self._door]
        self._threads: list[threading.Thread] = []
        self.port = self._door.getsockname()[1]
        self._start(self._serve)

    def _start(self, work, *args) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._open += [client, server]
                self._start(self._hand_on, client, server, True)
                self._start(self._hand_on, server, client, False)

    def _hand_on(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                if counts:
                    self._left -= 1
                if self._left < 0:
                    if self._silent:
                        time.sleep(2)
                    break
                # the piece arrives, and its answer may not
                target.sendall(piece)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._open:
            end.close()


@pytest.mark.soundness
def test_a_network_that_is_cut_anywhere(server) -> None:
    Ledger(server.address("cut")).intend("scenario", "0" * 64, [])
    completed = 0
    for pieces in range(4, 60, 2):
        certificate = f"{pieces:064x}"
        direct = Ledger(server.address("cut"))
        proxy = Proxy(server.port, pieces=pieces, silent=False)
        through = Ledger(server.address("cut", port=proxy.port))
        handed_out = None
        try:
            through.intend("scenario", certificate, direct.releases())
            handed_out = json.dumps({"certificate": certificate})
            through.record_drawn(certificate, handed_out)
            drawn = True
            through.record_published(certificate)
            completed += 1
        except LedgerError:
            drawn = False
        finally:
            proxy.close()
        states = {entry.certificate: entry for entry in direct.entries()}
        entry = states.get(certificate)
        # nothing unrecorded: what may be handed out stands in the ledger
        if drawn:
            assert entry.release == handed_out
            assert entry.state == "published"
        if entry is not None:
            with pytest.raises(AlreadyReleasedError, match="covers one release"):
                direct.intend("scenario", certificate, direct.releases())
        assert entry is None or entry.release in (None, handed_out)
    assert completed >= 1
    assert direct.problems() == []


def test_a_network_that_says_nothing(server, monkeypatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.5)
    Ledger(server.address("quiet")).intend("scenario", ONE, [])
    proxy = Proxy(server.port, pieces=6, silent=True)
    began = time.monotonic()
    with pytest.raises(LedgerError, match="cannot be used"):
        lived(Ledger(server.address("quiet", port=proxy.port)), TWO)
    assert time.monotonic() - began < 4
    proxy.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM releases",
        "TRUNCATE releases",
        "UPDATE releases SET state = 'drawn'",
        "UPDATE releases SET release = '{}'",
        "UPDATE releases SET certificate = 'x'",
        "UPDATE releases SET state = 'published', release = 'other'",
        "INSERT INTO releases (certificate, state, release) VALUES ('x', 'drawn', '{}')",
        "INSERT INTO releases (certificate, state) VALUES ('x', 'published')",
    ],
)
def test_the_database_itself_keeps_the_rules(server, statement) -> None:
    address = server.address("rules")
    ledger = Ledger(address)
    if not ledger.entries():
        ledger.intend("scenario", ONE, [])
        ledger.record_drawn(ONE, KEPT)
    with pytest.raises(psycopg.errors.RaiseException):
        query(address, statement)
    assert ledger.entries() == [Entry(ONE, "drawn", KEPT)]


def test_roles(server) -> None:
    owner = server.address("roles")
    query(owner, "CREATE ROLE writer_role LOGIN")
    query(owner, "CREATE ROLE reader_role LOGIN")
    create = ["ledger", "create", owner, "--writer", "writer_role", "--reader", "reader_role"]
    assert run(create) == 0
    assert run(create) == 0
    writer = server.address("roles", user="writer_role")
    reader = server.address("roles", user="reader_role")
    lived(Ledger(writer))
    assert Ledger(reader).releases() == [ONE]
    assert {event.role for event in Ledger(reader).trail()} == {"writer_role"}
    with pytest.raises(LedgerError, match="permission denied"):
        Ledger(reader).intend("scenario", TWO, [ONE])
    for who in (writer, reader):
        for statement in (
            "DELETE FROM releases",
            "DELETE FROM trail",
            "INSERT INTO trail (certificate, state) VALUES ('x', 'drawn')",
            "UPDATE ledger SET scenario = 'x'",
            "INSERT INTO moved (target) VALUES ('x')",
            "UPDATE identity SET state = 'open'",
            "DROP TRIGGER guard_rows ON releases",
            "INSERT INTO releases (number, certificate) OVERRIDING SYSTEM VALUE VALUES (0, 'x')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                query(who, statement)
    forged = (
        "CREATE TEMP TABLE mine (certificate TEXT, state TEXT, release TEXT);"
        "CREATE TRIGGER t BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION guard()"
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        query(reader, forged)
    query(owner, forged.replace("TEMP TABLE mine", "TABLE mine"))
    with pytest.raises(psycopg.errors.RaiseException, match="nothing else"):
        query(owner, "INSERT INTO mine VALUES ('x', 'intended', NULL)")
    stranger = server.address("nothing_here", user="reader_role")
    assert Ledger(stranger).entries() == []
    with pytest.raises(LedgerError, match="permission denied"):
        Ledger(stranger).intend("scenario", ONE, [])


def test_an_older_schema_is_brought_up_to_date(address, monkeypatch) -> None:
    with monkeypatch.context() as before:
        before.setattr(module, "_MIGRATIONS", module._MIGRATIONS[:1])
        Database(address).migrate()
    earlier = f"INSERT INTO releases (certificate, state) VALUES ('{ONE}', 'intended')"  # noqa: S608
    query(address, earlier)
    query(address, "INSERT INTO ledger (version, scenario) VALUES (2, 'scenario')")
    with pytest.raises(LedgerError, match="schema version 1, this program uses 3"):
        Ledger(address).intend("scenario", TWO, [ONE])
    assert Database(address).migrate() == 3
    Ledger(address).intend("scenario", TWO, [ONE])
    assert Ledger(address).releases() == [ONE, TWO]
    assert [row[0] for row in query(address, "SELECT version FROM migrations")] == [1, 2, 3]
    with monkeypatch.context() as before:
        before.setattr(module, "_MIGRATIONS", module._MIGRATIONS[:1])
        with pytest.raises(LedgerError, match="newer program"):
            Ledger(address).entries()


def test_a_copy_closes_the_old_ledger(address, tmp_path, capsys) -> None:
    old = Ledger(tmp_path / "old.ledger")
    lived(old)
    old.intend("scenario", TWO, [ONE], ("key", 0.5, 1.0))
    assert run(["ledger", "copy", str(tmp_path / "old.ledger"), address]) == 0
    new = Ledger(address)
    assert new.entries() == old.entries()
    assert new.problems() == old.problems() == []
    with pytest.raises(LedgerError, match="was copied to"):
        old.intend("scenario", "3" * 64, [ONE, TWO])
    with pytest.raises(AlreadyReleasedError, match=r"would cost 1\.25"):
        new.intend("scenario", "3" * 64, [ONE], ("key", 0.75, 1.0))
    with pytest.raises(LedgerError, match="was copied to"):
        old.record_drawn(TWO, KEPT)
    with pytest.raises(LedgerError, match="before; use that one"):
        old.copy_to(Ledger(tmp_path / "third.ledger"))
    assert not (tmp_path / "third.ledger").exists()
    assert old.copy_to(new) == 2
    back = Ledger(tmp_path / "back.ledger")
    assert new.copy_to(back) == 2
    assert back.entries() == old.entries()
    for wrong, words in [(back, "itself"), (Ledger(tmp_path / "none"), "no ledger")]:
        with pytest.raises(PuffersliceError, match=words):
            wrong.copy_to(back)


def test_check_finds_damage(address, capsys) -> None:
    ledger = Ledger(address)
    lived(ledger)
    assert run(["ledger", "check", address]) == 0
    query(address, "ALTER TABLE releases DISABLE TRIGGER ALL")
    query(address, "UPDATE releases SET release = '{}', state = 'drawn'")
    query(
        address, "INSERT INTO releases (certificate, state, release) VALUES ('x', 'intended', 'y')"
    )
    query(address, "INSERT INTO trail (certificate, state) VALUES ('gone', 'intended')")
    capsys.readouterr()
    assert run(["ledger", "check", address, "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    words = ("damaged", "before it was drawn", "triggers", "not in the ledger", "not explain")
    assert all(any(word in problem for problem in problems) for word in words)


def test_list_and_show(address, tmp_path, capsys) -> None:
    assert run(["ledger", "list", address]) == 2
    assert "there is no ledger" in capsys.readouterr().err
    ledger = Ledger(address)
    ledger.intend("scenario", ONE, [])
    ledger.intend("scenario", TWO, [ONE])
    assert run(["ledger", "list", address, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["releases"]
    assert listed == [{"certificate": c, "state": "intended"} for c in (ONE, TWO)]
    assert run(["ledger", "show", address, "11"]) == 0
    shown = capsys.readouterr().out
    assert "intended at 20" in shown
    assert "by postgres from 127.0.0.1" in shown
    assert run(["ledger", "show", address, ""]) == 2
    assert run(["ledger", "create", str(tmp_path / "file")]) == 1


def test_a_password_stays_out_of_messages(server) -> None:
    secret = "hunter2"  # noqa: S105 - a password in an address
    hidden = f"postgresql://someone:{secret}@127.0.0.1:{server.port}/nowhere?connect_timeout=3#x"
    ledger = Ledger(hidden)
    assert secret not in repr(ledger) + ledger.name
    with pytest.raises(LedgerError) as caught:
        ledger.entries()
    assert secret not in str(caught.value)
    with pytest.raises(ArgumentError, match="name of a ledger"):
        _ = Ledger(server.address("Bad-Name")).name
    with pytest.raises(ArgumentError, match="address of a ledger"):
        _ = Ledger(f"postgresql://u:{secret}@[bad/db#x").name


def test_too_busy(address, monkeypatch) -> None:
    monkeypatch.setattr(module, "_MOST_TRIES", 0)
    with pytest.raises(LedgerError, match="too busy"):
        Ledger(address).intend("scenario", ONE, [])
