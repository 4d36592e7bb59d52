# SPDX-License-Identifier: Apache-2.0
"""The commands of a ledger in any order, with crashes between any two of their steps.

The commands are the lists of steps of `pufferslice.releases.commands`, on a real ledger. A schedule
chooses again and again which of them takes its next step, or which one is killed. Whatever it
chooses, at the end: no two noises for one grant, no more than was granted, no release forgotten.
"""

import contextlib
import json
import random
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import reduce
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psycopg

from pufferslice._core.files import canonical_json, digest
from pufferslice.errors import LedgerError, PuffersliceError
from pufferslice.noise.spending import Measurement, Spending
from pufferslice.releases.commands import (
    Step,
    copying,
    finished,
    publishing_again,
    reconciling,
    releasing,
)
from pufferslice.releases.earlier import migrating
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.marks import Outside, found_in
from pufferslice.releases.release import Recorded
from pufferslice.releases.states import Grant, Intent, Part

EARLIER = "e" * 64
ONE, SAME, OTHER, BUDGET = (
    Grant(certificate="1" * 64, keys=("secret",)),
    Grant(certificate="2" * 64, keys=("more", "secret")),
    Grant(certificate="3" * 64, keys=("other",)),
    Grant(
        certificate="4" * 64,
        keys=("budget",),
        parts={
            "table": Part(),
            "monthly": Part(n_periods=2, is_fresh=True),
            "matrix": Part(dim=2),
        },
    ),
)
NAMING = Grant(certificate="5" * 64, keys=("secret",), earlier=(EARLIER,))
MOST_KILLS = 2


class Handed(NamedTuple):
    """Noise that left a process."""

    certificate: str
    part: str
    period: int
    charge: Fraction
    noise: int
    directions: tuple[tuple[float, ...], ...] | None = None


class Store:
    """Ledgers by name in one kind of store, which can be backed up and restored."""

    def location(self, name: str) -> str:
        raise NotImplementedError

    def ledger(self, name: str) -> Ledger:
        return Ledger(self.location(name))

    def backup(self, name: str) -> Any:
        raise NotImplementedError

    def restore(self, name: str, backup: Any) -> None:
        raise NotImplementedError

    def make_earlier(self, name: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Remove what the folder of the run does not hold."""


class Files(Store):
    """SQLite files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def location(self, name: str) -> str:
        return str(self.folder / name)

    def backup(self, name: str) -> bytes | None:
        path = self.folder / name
        return path.read_bytes() if path.exists() else None

    def restore(self, name: str, backup: bytes | None) -> None:
        path = self.folder / name
        if backup is None:
            path.unlink(missing_ok=True)
        else:
            path.with_suffix(".restored").write_bytes(backup)
            path.with_suffix(".restored").replace(path)

    def make_earlier(self, name: str) -> None:
        with contextlib.closing(sqlite3.connect(self.folder / name)) as connection:
            connection.executescript(
                "CREATE TABLE ledger (version INTEGER, scenario TEXT);"
                "CREATE TABLE releases (certificate TEXT PRIMARY KEY, state TEXT, release TEXT);"
                "CREATE TABLE moved (target TEXT NOT NULL);"
                "INSERT INTO ledger VALUES (2, 'scenario')"
            )
            connection.execute("INSERT INTO releases VALUES (?, 'published', '')", (EARLIER,))
            connection.commit()


class Databases(Store):
    """Schemas of a PostgreSQL server, which is told the address of a name."""

    TABLES = ("identity", "events", "contents")

    def __init__(self, address: Callable[[str], str]) -> None:
        self.address, self.run = address, secrets.token_hex(8)
        self.kept = contextlib.ExitStack()

    def ledger(self, name: str) -> Ledger:
        """A ledger with a connection of its own, as in a process of its own."""
        return self.kept.enter_context(super().ledger(name))

    def location(self, name: str) -> str:
        return self.address(f"r{self.run}_{name}")

    @contextlib.contextmanager
    def _inside(self, name: str) -> Iterator[Any]:
        address, _, schema = self.location(name).partition("#")
        with psycopg.connect(address) as connection:
            connection.execute(f"SET search_path = pufferslice_{schema}")
            yield connection

    def backup(self, name: str) -> dict[str, list[Any]] | None:
        if Ledger(self.location(name)).id is None:
            return None
        with self._inside(name) as connection:
            return {
                table: connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
                for table in self.TABLES
            }

    def restore(self, name: str, backup: dict[str, list[Any]] | None) -> None:
        if backup is None:
            self.drop(name)
            return
        with self._inside(name) as connection:
            for table, rows in backup.items():
                connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER ALL")
                connection.execute(f"DELETE FROM {table}")  # noqa: S608
                for row in rows:
                    places = ", ".join(["%s"] * len(row))
                    connection.execute(f"INSERT INTO {table} VALUES ({places})", row)  # noqa: S608
                connection.execute(f"ALTER TABLE {table} ENABLE TRIGGER ALL")

    def drop(self, name: str) -> None:
        with self._inside(name) as connection:
            schema = self.location(name).partition("#")[2]
            connection.execute(f"DROP SCHEMA IF EXISTS pufferslice_{schema} CASCADE")

    def close(self) -> None:
        self.kept.close()
        for name in "abc":
            self.drop(name)


class World:
    """One run: a store, a folder that no backup restores, and what left a process."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.noise = count(1)
        self.handed: list[Handed] = []
        self.drawn = 0
        self.has_restored = False

    def ledger(self, name: str) -> Ledger:
        return self.store.ledger(name)

    def outside(self, book: Ledger) -> Outside:
        return Outside(place=book.place, folder=self.folder / "marks", out=self.folder / "out")

    def release(
        self,
        grant: Grant,
        name: str = "a",
        part: str = "release",
        charge: Any = 1,
        period: int = 1,
        table: dict[str, int] | None = None,
        directions: Sequence[Sequence[float]] | None = None,
    ) -> Iterator[Step]:
        book = self.ledger(name)
        if name != "a" and book.id is None:
            return  # to another ledger only as a copy
        intent = Intent(
            certificate=grant.certificate,
            part=part,
            period=period,
            charge=Fraction(charge),
            table=table,
            directions=directions,
        )

        def draw(entry: Any) -> dict[str, Any]:
            self.drawn += 1
            return {
                "format": "pufferslice-release",
                "certificate": grant.certificate,
                "guarantee": "",
                "values": [{"name": "x", "value": next(self.noise)}],
                "ledger": Recorded.of(book.lineage, entry).to_json(),
                "directions": directions,
            }

        yield from releasing(
            book,
            grant,
            intent,
            self.outside(book),
            draw=draw,
            text=lambda document: canonical_json(document).decode(),
            hand_out=self.hand_out,
        )

    def hand_out(self, document: dict[str, Any]) -> None:
        (value,), place = document["values"], document["ledger"]
        noise = value["value"]
        path = self.folder / "out" / f"{noise}.json"
        path.write_bytes(canonical_json(document))
        self.handed.append(
            Handed(
                document["certificate"],
                place["part"],
                place["period"],
                Fraction(place["charge"]),
                noise,
                document["directions"],
            )
        )

    def again(self, grant: Grant, name: str = "a") -> Iterator[Step]:
        book = self.ledger(name)
        book.check_arrived()
        entry = book.entry(grant.certificate)
        if entry is not None and entry.release is not None:
            yield Step("found")
            document = json.loads(entry.release)
            yield from publishing_again(
                book, entry, self.outside(book), lambda: self.hand_out(document)
            )

    def void(self, grant: Grant, name: str = "a") -> Iterator[Step]:
        book = self.ledger(name)
        entry = book.entry(grant.certificate)
        if entry is not None:
            yield Step("found")
            book.give_up(entry)
            yield Step("void")

    def copy(self, source: str, target: str) -> Iterator[Step]:
        yield from copying(self.ledger(source), self.ledger(target))

    def migrate(self, source: str, target: str) -> Iterator[Step]:
        yield from migrating(self.ledger(source), self.ledger(target))

    def create(self, name: str = "a") -> Iterator[Step]:
        self.ledger(name).make()
        yield Step("made")

    def reconcile(self, name: str = "a") -> Iterator[Step]:
        marks = found_in([self.folder / "marks", self.folder / "out"])
        yield Step("read")
        yield from reconciling(self.ledger(name), marks)

    def back_up_and_restore(self, name: str = "a") -> Iterator[Step]:
        backup = self.store.backup(name)
        yield Step("backed up")
        self.has_restored = True
        self.store.restore(name, backup)
        yield Step("restored")

    def check(self) -> None:
        """What must hold in the end, whatever happened."""
        by_noise = {each.noise: each for each in self.handed}
        spent: dict[tuple[str, str, int], Fraction] = {}
        measured = [
            Measurement(directions=np.array(each.directions), estimate=np.zeros((0, 1)))
            for each in by_noise.values()
            if each.directions is not None
        ]
        assert reduce(Spending.plus, measured, Spending.none(2)).fits(), "more than was declared"
        for each in by_noise.values():
            if each.directions is not None:
                continue
            place = each.certificate, each.part, each.period
            spent[place] = spent.get(place, Fraction(0)) + each.charge
        assert all(charge <= 1 for charge in spent.values()), f"two noises: {spent}"
        same = {ONE.certificate, SAME.certificate, NAMING.certificate}
        assert len(same & {each.certificate for each in by_noise.values()}) <= 1, "one secret twice"
        names = [name for name in "abc" if self.ledger(name).id is not None]
        books = [self.ledger(name) for name in names]
        opened = [b for b in books if not b.is_incoming and b.moved_to is None]
        lineages = [b.lineage for b in opened if b.lineage]
        assert self.has_restored or len(set(lineages)) == len(lineages), "two are open"
        for book in opened:
            self._check_kept(book, by_noise)
        if (self.folder / "old").exists():
            self._check_migrated(opened)

    def _check_migrated(self, opened: list[Ledger]) -> None:
        """What the old ledger held is in the one that it says it moved to."""
        with self.ledger("old").storage.alone(is_checked=False) as connection:
            moved = connection.execute("SELECT target FROM moved").fetchall()
        for book in opened:
            assert (book.name,) not in moved or book.earlier() == [EARLIER], "earlier is lost"

    def _check_kept(self, book: Ledger, by_noise: dict[int, Handed]) -> None:
        """What left is in an open ledger, or it releases nothing until it is."""
        assert book.problems() == []
        marks = self.outside(book).seen(book.book())
        forgets = any(book.book().forgets(mark, book.place) for mark in marks)
        if forgets:
            refused(self.release(OTHER, book.name[-1]))
            finished(reconciling(book, found_in([self.folder / "marks", self.folder / "out"])))
        released = {path: json.loads(path.read_bytes()) for path in (self.folder / "out").iterdir()}
        mine = {
            document["values"][0]["value"]: digest(path.read_bytes())
            for path, document in released.items()
            if document["ledger"]["id"] == book.lineage
        }
        known = {entry.content for entry in book.entries()}
        assert set(mine.values()) <= known, f"forgotten: {mine}"
        finished(reconciling(book, found_in([self.folder / "marks", self.folder / "out"])))
        kept = {entry.content for entry in book.entries() if entry.release is not None}
        assert set(mine.values()) <= kept, f"not kept: {mine}"
        assert book.problems() == []
        for noise in mine:
            each = by_noise[noise]
            if each.part == "release":
                grant = {g.certificate: g for g in (ONE, SAME, OTHER, NAMING)}[each.certificate]
                assert refused(self.release(grant, book.name[-1]))


def refused(command: Iterator[Step]) -> bool:
    """Run a command that a ledger has to refuse."""
    try:
        for _ in command:
            pass
    except LedgerError:
        return True
    raise AssertionError("a second release was allowed")


Command = Callable[[World], Iterator[Step]]


class Program(NamedTuple):
    """Commands that run at once, after others that ran alone."""

    commands: tuple[Command, ...]
    before: tuple[Command, ...] = ()
    needs_files: bool = False


def _released(grant: Grant, **said: Any) -> Command:
    return lambda world: world.release(grant, **said)


def _half_released(grant: Grant) -> Command:
    """A release that is killed after it was recorded."""

    def command(world: World) -> Iterator[Step]:
        for step in world.release(grant):
            yield step
            if step.name == "drawn":
                return

    return command


_AGAIN: Command = lambda world: world.again(ONE)  # noqa: E731
_VOID: Command = lambda world: world.void(ONE)  # noqa: E731
_RESTORE: Command = lambda world: world.back_up_and_restore()  # noqa: E731
_RECONCILE: Command = lambda world: world.reconcile()  # noqa: E731
_COPY: Command = lambda world: world.copy("a", "b")  # noqa: E731
_CREATE: Command = lambda world: world.create()  # noqa: E731


def _earlier(world: World) -> Iterator[Step]:
    world.store.make_earlier("old")
    yield Step("made")


_MIGRATE: Command = lambda world: world.migrate("old", "a")  # noqa: E731
_PART = {"part": "table"}

PROGRAMS: dict[str, Program] = {
    "two releases": Program((_released(ONE), _released(ONE))),
    "two certificates of one secret": Program((_released(ONE), _released(SAME))),
    "three at once": Program((_released(ONE), _released(SAME), _released(OTHER))),
    "create": Program((_CREATE, _released(ONE), _released(ONE))),
    "again": Program((_released(ONE), _AGAIN, _AGAIN)),
    "again and void": Program((_released(ONE), _AGAIN, _VOID, _released(ONE))),
    "void": Program((_released(ONE), _VOID, _released(SAME))),
    "copy": Program((_released(ONE), _COPY, _released(ONE, name="b")), (_released(OTHER),)),
    "two copies": Program(
        (_COPY, lambda world: world.copy("a", "c"), _released(ONE), _released(ONE, name="c")),
        (_released(OTHER),),
    ),
    "copy and again": Program((_COPY, _AGAIN, _VOID), (_half_released(ONE),)),
    "budget": Program(
        (
            _released(BUDGET, charge="2/3", **_PART),
            _released(BUDGET, charge="1/3", **_PART),
            _released(BUDGET, charge="1/2", **_PART),
        )
    ),
    "periods": Program(
        (
            _released(BUDGET, part="monthly", charge="1/2", table={"n": 1}),
            _released(BUDGET, part="monthly", charge="2/3", period=2, table={"n": 2}),
            _released(BUDGET, part="monthly", charge="2/3", period=2, table={"n": 2}),
        )
    ),
    "matrix": Program(
        (
            _released(BUDGET, part="matrix", directions=[[1.0, 0.0]]),
            _released(BUDGET, part="matrix", directions=[[0.6, 0.8]]),
            _released(BUDGET, part="matrix", directions=[[0.0, 1.0]]),
        )
    ),
    "restore, matrix": Program(
        (
            _released(BUDGET, part="matrix", directions=[[1.0, 0.0]]),
            _RESTORE,
            _RECONCILE,
            _released(BUDGET, part="matrix", directions=[[0.6, 0.8]]),
        ),
        (_released(OTHER),),
    ),
    "restore to nothing, reconcile": Program(
        (_released(ONE), _RESTORE, _RECONCILE, _released(ONE), _released(SAME))
    ),
    "restore": Program((_released(ONE), _RESTORE, _released(ONE)), (_released(OTHER),)),
    "restore to nothing": Program((_released(ONE), _RESTORE, _released(ONE))),
    "restore, same secret": Program((_released(ONE), _RESTORE, _released(SAME))),
    "restore, void": Program((_released(ONE), _RESTORE, _VOID, _released(SAME))),
    "restore, again": Program((_RESTORE, _AGAIN, _released(ONE)), (_half_released(ONE),)),
    "restore, budget": Program(
        (
            _released(BUDGET, charge="2/3", **_PART),
            _RESTORE,
            _released(BUDGET, charge="2/3", **_PART),
        ),
        (_released(OTHER),),
    ),
    "reconcile": Program((_released(ONE), _RESTORE, _RECONCILE, _released(ONE))),
    "copy and restore": Program(
        (_COPY, _RESTORE, _released(ONE), _released(ONE, name="b")), (_released(OTHER),)
    ),
    "migrate": Program(
        (_MIGRATE, _released(ONE), _released(NAMING)), (_earlier,), needs_files=True
    ),
    "two migrations": Program(
        (_MIGRATE, lambda world: world.migrate("old", "b"), _released(NAMING)),
        (_earlier,),
        needs_files=True,
    ),
}


def at_random(rng: random.Random) -> Callable[[int, int], int]:
    """A schedule in which one of twelve choices is a kill."""

    def choose(n_waiting: int, n_mortal: int) -> int:
        if n_mortal and rng.random() < 1 / 12:
            return n_waiting + rng.randrange(n_mortal)
        return rng.randrange(n_waiting)

    return choose


class Actor:
    """A command on its way."""

    def __init__(self, command: Iterator[Step]) -> None:
        self.steps = command
        self.is_done = self.is_alone = self.is_begun = False

    def take(self) -> None:
        self.is_begun = True
        try:
            self.is_alone = next(self.steps).is_alone
        except (StopIteration, PuffersliceError):
            self.is_done, self.is_alone = True, False

    def kill(self) -> None:
        self.steps.close()  # type: ignore[attr-defined]
        self.is_done, self.is_alone = True, False


def run(program: Program, world: World, choose: Callable[[int, int], int]) -> tuple[int, ...]:
    """Run a program by a schedule, check the end, and return what was chosen.

    `choose` gets the number of commands that can go on and the number of those that can be killed.
    """
    (world.folder / "marks").mkdir(parents=True)
    (world.folder / "out").mkdir()
    for command in program.before:
        for _ in command(world):
            pass
    actors = [Actor(command(world)) for command in program.commands]
    chosen, n_kills = [], 0
    while waiting := [actor for actor in actors if not actor.is_done]:
        waiting = [actor for actor in waiting if actor.is_alone] or waiting
        mortal = [actor for actor in waiting if actor.is_begun] if n_kills < MOST_KILLS else []
        choice = choose(len(waiting), len(mortal))
        chosen.append(choice)
        if choice < len(waiting):
            waiting[choice].take()
        else:
            n_kills += 1
            mortal[choice - len(waiting)].kill()
    world.check()
    world.store.close()
    shutil.rmtree(world.folder)
    return tuple(chosen)
