# SPDX-License-Identifier: Apache-2.0
"""The events of a ledger: numbered from 1, never changed, each with the hash of all before it."""

import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final, final

import attrs

from pufferslice._core.files import canonical_json, digest, parsed_json

START: Final = ""
"""Hash before the first event."""
_SALT_BYTES: Final = 16


@final
@attrs.frozen
class Event:
    """One event of a ledger."""

    number: int
    kind: str
    release: int | None
    """Number of the intent of the release that the event is about; None for other events."""
    body: str
    """The other fields as JSON, with a salt: the hash of the event may be published."""
    at: str
    """Time in UTC: by the clock of the server, or of this machine for a file."""
    role: str
    """Role in the database; empty for a file."""
    address: str | None
    """Address of the client of a database, if it is known."""
    hash: str
    """SHA-256 of the hash before it and of all fields but the number."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of the body; a `ValueError` if it is damaged."""
        return dict(parsed_json(self.body))


def body_of(fields: Mapping[str, Any]) -> str:
    """Write the fields of an event as JSON, with a random salt."""
    return canonical_json({"salt": secrets.token_hex(_SALT_BYTES), **fields}).decode()


def linked(before: str, event: Event) -> str:
    """Compute the hash of an event from the hash of the one before it."""
    release = "" if event.release is None else str(event.release)
    parts = (event.kind, release, event.body, event.at, event.role, event.address or "")
    return digest(before.encode(), *(part.encode() for part in parts))


def is_whole(events: Iterable[Event], number: int = 0, before: str = START) -> bool:
    """Return whether no event is missing, changed or moved after the one with this number."""
    for expected, event in enumerate(events, start=number + 1):
        if event.number != expected or event.hash != linked(before, event):
            return False
        before = event.hash
    return True
