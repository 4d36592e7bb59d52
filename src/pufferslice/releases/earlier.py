# SPDX-License-Identifier: Apache-2.0
"""Ledgers of versions before 0.3: read once, to keep what they hold, and closed.

They were keyed by the wording of a scenario, so what they hold may be about any secret.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from pufferslice._core.files import canonical_json, digest
from pufferslice.errors import LedgerError
from pufferslice.releases.commands import Step, Steps, check_incoming, open_up
from pufferslice.releases.ledger import Ledger, Transaction
from pufferslice.releases.states import VERSION
from pufferslice.releases.storage import Connection

_STATES: Final = {"intended", "drawn", "published"}
_VERSIONS: Final = {2, 3}


class Earlier(NamedTuple):
    """What a ledger before 0.3 holds."""

    id: str
    releases: Sequence[tuple[str, str]]
    """Certificate and state of each release, oldest first."""
    moved: tuple[str, str | None] | None
    """Location of the ledger that it moved to, and its id if that is known."""
    columns: Sequence[str]
    """Columns of its mark that it moved."""


def migrating(source: Ledger, target: Ledger) -> Steps[int]:
    """Keep in a new ledger what one before 0.3 holds, and close that; return how many releases.

    In the same steps as a copy: at no time are both open, and a killed one can be repeated.
    """
    source.check_there()
    with source.storage.alone(is_checked=False) as connection:
        earlier = _read(source, connection)
    if earlier.moved is None:
        target.make(earlier.id)
        yield Step("incoming")
        with source.storage.alone(is_checked=False) as connection:
            earlier = _read(source, connection)
            if earlier.moved is None:
                held = earlier
                target.change(
                    lambda transaction: _fill(target, transaction, held),
                    f"{source.name!r} is still open; migrate again",
                    is_incoming=True,
                )
                yield Step("filled", is_alone=True)
                moved = (target.name, target.identity().id)
                connection.execute(
                    f"INSERT INTO moved ({', '.join(earlier.columns)}) "  # noqa: S608 - constants
                    f"VALUES ({', '.join('?' for _ in earlier.columns)})",
                    moved[: len(earlier.columns)],
                )
                earlier = earlier._replace(moved=moved)
        yield Step("moved")
    if earlier.moved is not None:
        open_up(source.name, earlier.id, earlier.moved, target)
    yield Step("arrived")
    return len(earlier.releases)


def _fill(target: Ledger, transaction: Transaction, earlier: Earlier) -> None:
    check_incoming(target, transaction, earlier.id)
    if not transaction.book.number:
        transaction.append("made", version=VERSION)
    for certificate, state in earlier.releases:
        if transaction.book.before.get(certificate) != state:
            transaction.append("before", certificate=certificate, state=state)


def _read(source: Ledger, connection: Connection) -> Earlier:
    tables = source.storage.tables(connection)
    if not {"ledger", "releases", "moved"} <= set(tables):
        raise LedgerError(
            f"ledger {source.name!r} is not one of releases before 0.3; use it as it is, or move "
            "it with `pufferslice ledger copy`"
        )
    heads = connection.execute("SELECT version, scenario FROM ledger").fetchall()
    if any(version not in _VERSIONS for version, _ in heads):
        raise LedgerError(
            f"ledger {source.name!r} has version {heads[0][0]!r}; those of version 2 and 3 migrate"
        )
    name = digest(canonical_json([list(head) for head in heads]))
    if "identity" in tables:
        ((name, state),) = connection.execute("SELECT id, state FROM identity").fetchall()
        if state != "open":
            raise LedgerError(
                f"ledger {source.name!r} is incoming: the copy into it was not finished. Finish it "
                "with the program that began it"
            )
    rows = connection.execute("SELECT certificate, state FROM releases").fetchall()
    if not all(state in _STATES for _, state in rows):
        raise LedgerError(
            f"ledger {source.name!r} is damaged: an entry has no state; restore a copy"
        )
    columns = [column for column in ("target", "id") if column in tables["moved"]]
    mark = connection.execute(f"SELECT {', '.join(columns)} FROM moved").fetchone()  # noqa: S608 - constants
    moved = None if mark is None else (mark[0], mark[1] if "id" in columns else None)
    return Earlier(name, rows, moved, columns)
