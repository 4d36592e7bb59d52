# SPDX-License-Identifier: Apache-2.0
"""Commands that change a ledger, each a list of steps; whatever a step does is durable after it.

A command may be killed between any two steps, and others may run there. Tests run these same lists
in all orders; nothing else in the library advances a ledger.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import attrs

from pufferslice._core.files import digest
from pufferslice.errors import LedgerError, StorageError
from pufferslice.releases.chain import Event, is_whole
from pufferslice.releases.ledger import Ledger, Transaction
from pufferslice.releases.marks import Outside, SpentMark
from pufferslice.releases.states import Entry, Grant, Intent
from pufferslice.releases.storage import SELECT_EVENTS

AGAIN: Final = "write it again with release_again, or `pufferslice release --again --out NEW`"
"""Advice on how to get a release that is recorded and could not be handed out."""

_Result = TypeVar("_Result")


class Step(NamedTuple):
    """A step that a command has just taken."""

    name: str
    is_alone: bool = False
    """Whether the command keeps a ledger to itself here: it may be killed, and others wait."""


Steps = Generator[Step, None, _Result]


def finished(steps: Steps[_Result]) -> _Result:
    """Take all steps, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


def releasing(
    ledger: Ledger,
    grant: Grant,
    intent: Intent,
    outside: Outside,
    *,
    draw: Callable[[Entry], _Result],
    text: Callable[[_Result], str],
    hand_out: Callable[[_Result], object],
) -> Steps[_Result]:
    """Release once: intent, noise, result, spent mark, handed out, each recorded before the next.

    Marks are read before the ledger, so that every mark of this ledger is of an earlier event.
    """
    seen = outside.seen(ledger.book())
    yield Step("looked")
    folder = None if outside.folder is None else str(outside.folder)
    entry = ledger.intend(grant, attrs.evolve(intent, marks=folder), seen)
    yield Step("intended")
    result = draw(entry)
    yield Step("noise")
    release = text(result)
    ledger.record_drawn(entry, release)
    yield Step("drawn")
    with _recorded_in(ledger):
        outside.leave(ledger.storage.label, ledger.lineage, grant, entry, release)
    yield Step("marked")
    _check_again(ledger, entry, outside, release)
    yield Step("checked")
    with _recorded_in(ledger):
        hand_out(result)
    yield Step("handed out")
    ledger.record_published(entry)
    yield Step("published")
    return result


def publishing_again(
    ledger: Ledger, entry: Entry, outside: Outside, hand_out: Callable[[], object]
) -> Steps[None]:
    """Hand out a recorded release once more, and record that."""
    grant, release = ledger.book().grants[entry.certificate], entry.release or ""
    with _recorded_in(ledger):
        outside.leave(ledger.storage.label, ledger.lineage, grant, entry, release)
    yield Step("marked")
    _check_again(ledger, entry, outside, release)
    yield Step("checked")
    with _recorded_in(ledger):
        hand_out()
    yield Step("handed out")
    if ledger.book().entries[entry.number].state == "drawn":
        ledger.record_published(entry)
    yield Step("published")


def _check_again(ledger: Ledger, entry: Entry, outside: Outside, release: str) -> None:
    """Make sure, after the mark was left, that the ledger was not restored meanwhile.

    Of two that release at once from two branches of a ledger, at least one sees the other's mark.
    """
    marks, book = outside.seen(ledger.book()), ledger.book()
    book.check_kept(entry, digest(release.encode()))
    book.check_marks(marks, ledger.place, entry.certificate)


@contextlib.contextmanager
def _recorded_in(ledger: Ledger) -> Iterator[None]:
    """Say of a file that could not be written that the release is recorded."""
    try:
        yield
    except StorageError as error:
        raise StorageError(
            f"{error.strerror or error}. The release is recorded in the ledger {ledger.name!r}; "
            f"{AGAIN}"
        ) from error


def reconciling(ledger: Ledger, marks: Sequence[SpentMark]) -> Steps[int]:
    """Take in the releases that marks know of and the ledger does not; return how many.

    A ledger without any release takes in those of all ledgers: the one that it replaces has
    another name.
    """
    ledger.check_there()

    def work(transaction: Transaction) -> int:
        book = transaction.book
        is_new = not book.entries
        missing = [
            mark
            for mark in marks
            if book.forgets(mark, ledger.place) or (is_new and mark.intent not in book.hashes)
        ]
        for mark in missing:
            transaction.append(
                "found",
                grant=mark.grant.to_fields(),
                part=mark.part,
                period=mark.period,
                charge=str(mark.charge),
                intent=mark.intent,
                content=mark.content,
            )
        contents = {entry.content for entry in book.entries.values()}
        for mark in marks:
            if mark.text is not None and mark.content in contents:
                transaction.keep(mark.text)
        return len(missing)

    n_found = ledger.change(work)
    yield Step("reconciled")
    return n_found


def copying(source: Ledger, target: Ledger) -> Steps[int]:
    """Move to a new ledger and close the old one; return the number of releases.

    At no time are both open. Killed, it can be repeated, and goes on where it was.
    """
    source.check_there()
    source.check_arrived()
    identity = source.identity()
    if identity.id == target.id:
        raise LedgerError("a ledger cannot be copied to itself")
    if source.book().moved is None:
        target.make(identity.id)
        yield Step("incoming")
        with source.alone() as transaction:
            # by the same command in another process, or by another one: seen below
            if transaction.book.moved is None:
                events = [Event(*row) for row in transaction.execute(SELECT_EVENTS, (0,))]
                if not is_whole(events):
                    raise transaction.book.damaged("its chain of events is broken")
                texts = dict(transaction.execute("SELECT digest, text FROM contents"))
                target.change(
                    lambda other: _fill(target, other, identity.id, events, texts),
                    f"{source.name!r} is still open; copy again",
                    is_incoming=True,
                )
                yield Step("filled", is_alone=True)
                arrived = target.identity()
                if arrived.source != identity.id or target.events() != events:
                    raise LedgerError(
                        f"ledger {target.name!r} does not hold what {source.name!r} holds, which "
                        "is still open; copy to a new one"
                    )
                transaction.append("moved", target=target.name, id=arrived.id)
        yield Step("moved")
    moved = source.book().moved
    if moved is not None:
        open_up(source.name, identity.id, moved, target)
    yield Step("arrived")
    return len(source.book().entries)


def _fill(
    target: Ledger,
    transaction: Transaction,
    source: str,
    events: Sequence[Event],
    texts: Mapping[str, str],
) -> None:
    """Bring an incoming ledger up to the events of the ledger with id `source`."""
    check_incoming(target, transaction, source)
    book = transaction.book
    if book.number and [event.hash for event in events[: book.number]][-1:] != [book.hash]:
        raise LedgerError(f"ledger {target.name!r} has other entries; copy to a new one")
    transaction.take_in(events[book.number :], texts)


def check_incoming(target: Ledger, transaction: Transaction, source: str) -> None:
    """Make a ledger incoming from the one with id `source`; refuse one that holds other entries."""
    ((known,),) = transaction.execute("SELECT source FROM identity").fetchall()
    if known is None:
        if transaction.book.number:
            raise LedgerError(f"ledger {target.name!r} has entries; copy to a new one")
        transaction.execute("UPDATE identity SET source = ?", (source,))
    elif known != source:
        raise LedgerError(
            f"ledger {target.name!r} is incoming from another ledger; copy to a new one"
        )


def open_up(name: str, source: str, moved: tuple[str, str | None], target: Ledger) -> None:
    """Open the target, if the ledger `name` with id `source` moved there."""

    def opened(transaction: Transaction) -> None:
        ((found_id, known),) = transaction.execute("SELECT id, source FROM identity").fetchall()
        is_there = moved[1] == found_id or (moved[1] is None and moved[0] == target.name)
        if not is_there or known not in {None, source}:
            raise _moved_before(name, moved[0])
        if known is not None:
            transaction.execute("UPDATE identity SET source = NULL")
            transaction.append("arrived", id=found_id, source=source)

    if target.id is None:
        raise _moved_before(name, moved[0])
    target.change(opened, f"{name!r} is closed; copy again", is_incoming=True)


def _moved_before(name: str, where: str) -> LedgerError:
    return LedgerError(
        f"ledger {name!r} was copied to {where!r} before; use that one, and if it is gone, restore "
        "a copy of it"
    )
