# SPDX-License-Identifier: Apache-2.0
"""A ledger in a real PostgreSQL server: one release whatever many people, kills and cuts do."""

import contextlib
import json
import multiprocessing
import os
import socket
import threading
import time
from fractions import Fraction

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from tests.releases.grants import ONE, TWO, granted, lived, states_of, text_of

from pufferslice import Guarantee, Scenario, certify_release
from pufferslice._core.sampler import SeededTestNoise
from pufferslice.cli.app import run
from pufferslice.errors import AlreadyReleasedError, ArgumentError, LedgerError, PuffersliceError
from pufferslice.queries import summary
from pufferslice.releases import Ledger, release, release_again
from pufferslice.releases import postgres as module
from pufferslice.releases.commands import copying, finished
from pufferslice.releases.states import Intent, Part
from pufferslice.scenario.distributions import GaussianDistribution

KEPT = text_of(ONE)


def query(address: str, statement: str) -> list[tuple]:
    base, _, name = address.partition("#")
    with psycopg.connect(base, autocommit=True) as connection:
        connection.execute(f"SET search_path = pufferslice_{name}")
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_the_life_of_a_release(address) -> None:
    ledger = Ledger(address)
    assert ledger.entries() == []
    assert ledger.path is None
    entry = ledger.intend(granted(ONE))
    assert states_of(ledger) == [(ONE, "intended", None)]
    ledger.record_drawn(entry, KEPT)
    ledger.record_published(entry)
    assert states_of(ledger) == [(ONE, "published", KEPT)]
    assert [(event.kind, event.role) for event in ledger.events()] == [
        (kind, "postgres") for kind in ("made", "granted", "intended", "drawn", "published")
    ]
    assert ledger.problems() == []
    for call, words in [
        (lambda: ledger.intend(granted(ONE)), "covers one release"),
        (lambda: ledger.intend(granted(TWO)), "same secret"),
        (lambda: ledger.record_drawn(entry, KEPT), "in state 'intended'"),
    ]:
        with pytest.raises(LedgerError, match=words):
            call()
    with ledger as same:
        lived(same, TWO, keys=("other",))
    assert ledger.releases() == [ONE, TWO]


def test_ledgers_of_one_database_are_apart(server) -> None:
    first, second = (Ledger(server.address(name)) for name in ("apart_a", "apart_b"))
    for ledger in (first, second):
        lived(ledger, ONE, "intended")
    assert first.releases() == second.releases() == [ONE]
    assert first.book().lineage != second.book().lineage


def test_a_release_of_a_scenario(address, tmp_path) -> None:
    worlds = {
        name: GaussianDistribution(mean=[mean], cov=[[1.0]])
        for name, mean in {"low": 0.0, "high": 1.0}.items()
    }
    scenario = Scenario.from_worlds(worlds, query=summary(mean=["x"]), source="public_model")
    noise = SeededTestNoise(seed=1)
    certificate = certify_release(
        scenario, Guarantee.unsliced(order=4, epsilon=1.0), generator=noise
    )
    table = pa.table({"x": [0.5, 0.7]})
    out = tmp_path / "a.json"
    released = release(scenario, table, certificate, ledger=address, generator=noise, out=out)
    with pytest.raises(AlreadyReleasedError):
        release(scenario, table, certificate, ledger=Ledger(address), generator=noise)
    again = release_again(certificate, ledger=address, out=tmp_path / "b.json")
    np.testing.assert_array_equal(released.values, again.values)
    assert Ledger(address).problems() == []


def _attempt(address: str, certificate: str, charge, skew: float, results) -> None:
    """In a process of its own, with a clock that may be wrong."""
    now = time.time
    time.time = lambda: now() + skew
    try:
        ledger = Ledger(address)
        intent = None
        if charge is not None:
            intent = Intent(certificate=certificate, part="year", charge=charge)
        parts = {"year" if intent else "release": Part()}
        entry = ledger.intend(granted(certificate, parts=parts), intent)
        text = json.dumps({"certificate": certificate, "by": os.getpid()})
        ledger.record_drawn(entry, text)
        ledger.record_published(entry)
        results.put((certificate, text, "released"))
    except LedgerError as error:
        results.put((certificate, None, str(error)))


def at_once(address: str, certificates: list[str], charges: list, skews=None) -> list:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    skews = skews or [0.0] * len(certificates)
    processes = [
        context.Process(target=_attempt, args=(address, certificate, charge, skew, results))
        for certificate, charge, skew in zip(certificates, charges, skews, strict=True)
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
    assert states_of(Ledger(address)) == [(done[0][0], "published", done[0][1])]
    refused = [answer[2] for answer in answers if answer[2] != "released"]
    assert all("covers one release" in text or "same secret" in text for text in refused)
    assert Ledger(address).problems() == []


@pytest.mark.soundness
def test_a_part_is_kept_by_processes_with_wrong_clocks(address) -> None:
    year = 3e7
    answers = at_once(
        address,
        [ONE] * 12,
        [Fraction(6, 25)] * 12,
        [year * (-1) ** k for k in range(12)],
    )
    assert [answer[2] for answer in answers].count("released") == 4
    left = "has 1/25 of its precision left"
    assert all(left in text for *_, text in answers if text != "released")
    times = [event.at for event in Ledger(address).events()]
    assert times == sorted(times)
    assert all(at[:4] == time.strftime("%Y", time.gmtime()) for at in times)


@pytest.mark.soundness
def test_a_server_killed_between_any_two_steps(server, address) -> None:
    ledger = Ledger(address)
    steps = [
        (lambda: ledger.intend(granted(ONE)), []),
        (lambda: ledger.record_drawn(ledger.entries()[0], KEPT), [(ONE, "intended", None)]),
        (lambda: ledger.record_published(ledger.entries()[0]), [(ONE, "drawn", KEPT)]),
    ]
    for step, before in steps:
        server.kill()
        with pytest.raises(LedgerError, match="cannot be used"):
            step()
        server.start()
        assert states_of(ledger) == before
        step()
    server.kill()
    server.start()
    assert states_of(ledger) == [(ONE, "published", KEPT)]
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
    direct = Ledger(server.address("cut"))
    lived(direct, "0" * 64, "intended", keys=("first",))
    completed = 0
    for pieces in range(4, 90, 3):
        certificate = f"{pieces:064x}"
        grant = granted(certificate, (certificate,))
        proxy = Proxy(server.port, pieces=pieces, silent=False)
        through = Ledger(server.address("cut", port=proxy.port))
        handed_out = None
        drawn = False
        try:
            entry = through.intend(grant)
            handed_out = text_of(certificate)
            through.record_drawn(entry, handed_out)
            drawn = True
            through.record_published(entry)
            completed += 1
        except LedgerError:
            pass
        finally:
            proxy.close()
        entry = direct.entry(certificate)
        # nothing unrecorded: what may be handed out stands in the ledger
        if drawn:
            assert entry.release == handed_out
        if entry is not None:
            with pytest.raises(AlreadyReleasedError, match="covers one release"):
                direct.intend(grant)
        assert entry is None or entry.release in (None, handed_out)
    assert completed >= 1
    assert direct.problems() == []


def test_a_network_that_says_nothing(server, monkeypatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.5)
    lived(Ledger(server.address("quiet")))
    proxy = Proxy(server.port, pieces=6, silent=True)
    began = time.monotonic()
    with pytest.raises(LedgerError, match="cannot be used"):
        lived(Ledger(server.address("quiet", port=proxy.port)), TWO, keys=("other",))
    assert time.monotonic() - began < 4
    proxy.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM events",
        "TRUNCATE events",
        "UPDATE events SET kind = 'void'",
        "DELETE FROM contents",
        "TRUNCATE contents",
        "UPDATE contents SET text = '{}'",
        "INSERT INTO events (number, kind, release, body) VALUES (9, 'published', 3, '{}')",
        "INSERT INTO events (number, kind, release, body) VALUES (5, 'drawn', 3, '{}')",
        "INSERT INTO events (number, kind, release, body) VALUES (5, 'drawn', 2, '{}')",
        "INSERT INTO events (number, kind, release, body) VALUES (5, 'void', 3, '{}')",
        "INSERT INTO events (number, kind, release, body) VALUES (5, 'published', 2, '{}')",
        "INSERT INTO events (number, kind, release, body) VALUES (5, 'intended', 3, '{}')",
        "INSERT INTO events (number, kind, body) VALUES (5, 'made', '{}')",
        "INSERT INTO events (number, kind, body, hash) VALUES (5, 'granted', '{}', 'x')",
    ],
)
def test_the_database_itself_keeps_the_rules(server, statement) -> None:
    address = server.address("rules")
    ledger = Ledger(address)
    if not ledger.entries():
        lived(ledger, ONE, "drawn")
    with pytest.raises(psycopg.errors.RaiseException):
        query(address, statement)
    assert states_of(ledger) == [(ONE, "drawn", KEPT)]
    assert ledger.problems() == []


def test_after_a_copy_the_database_takes_nothing_more(address, tmp_path) -> None:
    lived(Ledger(address), ONE, "intended")
    finished(copying(Ledger(address), Ledger(tmp_path / "new")))
    with pytest.raises(psycopg.errors.RaiseException, match="moved and is closed"):
        query(
            address, "INSERT INTO events (number, kind, release, body) VALUES (5, 'drawn', 3, '')"
        )


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
    assert {event.role for event in Ledger(reader).events()} == {"writer_role"}
    with pytest.raises(LedgerError, match="permission denied"):
        lived(Ledger(reader), TWO, keys=("other",))
    for who in (writer, reader):
        for statement in (
            "DELETE FROM events",
            "TRUNCATE events",
            "UPDATE events SET role = 'someone else'",
            "DELETE FROM contents",
            "UPDATE contents SET text = '{}'",
            "UPDATE identity SET source = 'x'",
            "DROP TRIGGER guard_rows ON events",
            "ALTER TABLE events DISABLE TRIGGER ALL",
            "CREATE OR REPLACE FUNCTION guard() RETURNS trigger LANGUAGE sql AS ''",
            "INSERT INTO events (number, kind, body, role) VALUES (6, 'granted', '{}', 'me')",
            "INSERT INTO events (number, kind, body, at) VALUES (6, 'granted', '{}', '2020')",
        ):
            with pytest.raises(
                (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidFunctionDefinition)
            ):
                query(who, statement)
    for kind in ("before", "moved", "arrived"):
        with pytest.raises(psycopg.errors.RaiseException, match="only the owner"):
            query(writer, f"INSERT INTO events (number, kind, body) VALUES (6, '{kind}', '')")  # noqa: S608
    forged = (
        "CREATE TEMP TABLE mine (number BIGINT, kind TEXT);"
        "CREATE TRIGGER t BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION guard()"
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        query(reader, forged)
    query(owner, forged.replace("TEMP TABLE mine", "TABLE mine"))
    with pytest.raises(psycopg.errors.RaiseException, match="nothing else"):
        query(owner, "INSERT INTO mine VALUES (1, 'intended')")
    stranger = server.address("nothing_here", user="reader_role")
    assert Ledger(stranger).entries() == []
    with pytest.raises(LedgerError, match="permission denied"):
        lived(Ledger(stranger))
    assert Ledger(writer).problems() == []


@pytest.mark.soundness
@pytest.mark.parametrize(
    "attack",
    [
        "ALTER TABLE events DISABLE TRIGGER guard_rows",
        "ALTER TABLE contents DISABLE TRIGGER guard_table",
        "DROP TRIGGER guard_table ON events",
        (
            "CREATE OR REPLACE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN RETURN NEW; END'"
        ),
        (
            "DROP TRIGGER guard_rows ON events; CREATE TRIGGER guard_rows BEFORE INSERT ON events "
            "FOR EACH ROW WHEN (false) EXECUTE FUNCTION guard()"
        ),
    ],
)
def test_check_finds_a_guard_that_was_replaced(address, attack) -> None:
    ledger = Ledger(address)
    lived(ledger)
    assert ledger.problems() == []
    query(address, attack)
    assert "removed or replaced" in ledger.problems()[0]


@pytest.mark.soundness
@pytest.mark.parametrize(
    "erased",
    [
        "DELETE FROM events WHERE number = 4",
        (
            "DELETE FROM events WHERE number IN (4, 5); UPDATE events SET number = number - 2 "
            "WHERE number > 5"
        ),
        "UPDATE events SET role = 'someone else' WHERE number = 4",
        "UPDATE events SET at = '2020-01-01T00:00:00Z' WHERE number = 4",
        "UPDATE events SET address = NULL WHERE number = 4",
    ],
)
def test_check_finds_an_erased_trail_by_the_chain(address, erased, capsys) -> None:
    lived(Ledger(address))
    lived(Ledger(address), TWO, keys=("other",))
    attack = (
        f"ALTER TABLE events DISABLE TRIGGER ALL; {erased}; ALTER TABLE events ENABLE TRIGGER ALL"
    )
    query(address, attack)
    assert run(["ledger", "check", address, "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert "chain of hashes is broken" in problem
    with pytest.raises(LedgerError, match="is damaged"):
        lived(Ledger(address), "3" * 64, keys=("third",))


def test_a_copy_closes_the_old_ledger(address, tmp_path, capsys) -> None:
    old = Ledger(tmp_path / "old.ledger")
    lived(old)
    entry = lived(old, TWO, "intended", keys=("other",))
    assert run(["ledger", "copy", str(tmp_path / "old.ledger"), address]) == 0
    new = Ledger(address)
    assert new.entries() == old.entries()
    assert new.problems() == old.problems() == []
    with pytest.raises(LedgerError, match="was copied to"):
        lived(old, "3" * 64, keys=("third",))
    with pytest.raises(AlreadyReleasedError, match="same secret"):
        new.intend(granted("3" * 64, ("other",)))
    with pytest.raises(LedgerError, match="was copied to"):
        old.record_drawn(entry, KEPT)
    with pytest.raises(LedgerError, match="before; use that one"):
        finished(copying(old, Ledger(tmp_path / "third.ledger")))
    assert not (tmp_path / "third.ledger").exists()
    assert finished(copying(old, new)) == 2
    back = Ledger(tmp_path / "back.ledger")
    assert finished(copying(new, back)) == 2
    assert back.entries() == old.entries()
    assert [event.role for event in back.events()].count("postgres") == 1  # it arrived there
    for wrong, words in [(back, "itself"), (Ledger(tmp_path / "none"), "no ledger")]:
        with pytest.raises(PuffersliceError, match=words):
            finished(copying(wrong, back))


def test_check_finds_damage(address, capsys) -> None:
    lived(Ledger(address))
    assert run(["ledger", "check", address]) == 0
    query(address, "ALTER TABLE contents DISABLE TRIGGER ALL")
    query(address, "UPDATE contents SET text = '{}'")
    capsys.readouterr()
    assert run(["ledger", "check", address, "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    words = ("damaged or of another", "triggers")
    assert all(any(word in problem for problem in problems) for word in words)


def test_list_and_show(address, tmp_path, capsys) -> None:
    assert run(["ledger", "list", address]) == 2
    assert "there is no ledger" in capsys.readouterr().err
    ledger = Ledger(address)
    lived(ledger, ONE, "intended")
    lived(ledger, TWO, "intended", keys=("other",))
    assert run(["ledger", "list", address, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["releases"]
    assert [(row["certificate"], row["state"]) for row in listed] == [
        (certificate, "intended") for certificate in (ONE, TWO)
    ]
    assert run(["ledger", "show", address, "11"]) == 0
    shown = capsys.readouterr().out
    assert "intended at 20" in shown
    assert "by postgres from 127.0.0.1" in shown
    assert run(["ledger", "show", address, ""]) == 2
    assert run(["ledger", "create", str(tmp_path / "file")]) == 1


def test_a_ledger_of_another_version(address) -> None:
    ledger = Ledger(address)
    lived(ledger)
    query(address, "UPDATE identity SET version = 6")
    with pytest.raises(LedgerError, match="has version 6, this program reads 5"):
        ledger.entries()
    query(address, "DELETE FROM identity")
    with pytest.raises(LedgerError, match="has version None"):
        ledger.entries()
    query(address, "DROP TABLE identity")
    with pytest.raises(LedgerError, match="has version None"):
        ledger.entries()


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
        lived(Ledger(address))


BACKEND = "SELECT pg_backend_pid()"


class TestKept:
    """In a `with` block a connection stays open."""

    def test_it_is_used_again_and_closed_at_the_end(self, address):
        with Ledger(address) as ledger:
            ledger.make()
            lived(ledger)
            ((first,),) = ledger.storage.rows(BACKEND)
            assert ledger.storage.rows(BACKEND) == [(first,)]
            ledger.storage.change(lambda connection: connection.execute(BACKEND))
            assert ledger.storage.rows(BACKEND) == [(first,)]
            with ledger.alone():  # another one, as the kept one is in use
                assert ledger.storage.rows(BACKEND) != [(first,)]
        assert ledger.storage.rows(BACKEND) != ledger.storage.rows(BACKEND)

    def test_one_that_the_server_ended_is_an_error_and_then_another(self, address):
        with Ledger(address) as ledger:
            ledger.make()
            ((first,),) = ledger.storage.rows(BACKEND)
            query(address, f"SELECT pg_terminate_backend({first})")
            with pytest.raises(LedgerError, match="cannot be used"):
                ledger.entries()
            assert ledger.storage.rows(BACKEND) != [(first,)]

    def test_an_error_inside_leaves_nothing_behind(self, address):
        with Ledger(address) as ledger:
            lived(ledger)
            with pytest.raises(AlreadyReleasedError):
                lived(ledger)
            assert len(ledger.entries()) == 1
            assert ledger.problems() == []

    def test_a_forked_process_opens_its_own(self, address):
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        with Ledger(address) as ledger:
            ledger.make()
            mine = ledger.storage.rows(BACKEND)
            child = context.Process(target=lambda: results.put(ledger.storage.rows(BACKEND)))
            child.start()
            assert results.get(timeout=60) != mine
            child.join()
            assert ledger.storage.rows(BACKEND) == mine
