# SPDX-License-Identifier: Apache-2.0
"""States of a ledger and of what is in it, and every rule about how they may change.

A ledger is a chain of events; its state is what the events make of an empty book, one after the
other. An event that the rules refuse is refused when it is recorded and when it is read.
docs/decisions/21-one-ledger.md has the states on one page.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, final

import attrs
import numpy as np

from pufferslice.errors import AlreadyReleasedError, LedgerError
from pufferslice.noise.spending import Measurement, Spending, measured_share
from pufferslice.releases.chain import START, Event, is_whole

VERSION: Final = 5

ReleaseState = Literal["intended", "drawn", "published", "void"]

WHOLE: Final = "release"
"""Name of the only part of a certificate that covers one release."""

_AGAIN: Final = (
    "Publish that same release again (the ledger keeps it; on the command line: --again)"
)
_HAS_HAD_IT: Final[Mapping[str, str]] = {
    "intended": (
        "its noise was never handed out, but the attempt ended without a result. `pufferslice "
        "ledger void` gives it up; then the certificate can be released"
    ),
    "drawn": f"its result is kept in the ledger, but was not confirmed as published. {_AGAIN}",
    "published": f"it was published. {_AGAIN}",
}
"""Meaning of each state in which a release has used up its certificate, and what to do."""
_TOGETHER: Final = (
    "two releases about it can reveal it together. What you will publish belongs in one query "
    "(queries.join) or in one budget, certified before the first release (certify_budget; "
    "Repeated for the table of next month or year)"
)


@final
@attrs.frozen(kw_only=True)
class Part:
    """A part of a budget; a certificate of one release has one, `release`."""

    n_periods: int = 1
    """Number of periods, each of which may be released."""
    is_fresh: bool = False
    """Whether each period has rows of its own; otherwise all are of one table."""
    dim: int | None = None
    """Number of features of a part of a budget, whose precision is a matrix; None where only whole
    releases are made."""


@final
@attrs.frozen(kw_only=True)
class Grant:
    """What one certificate allows: of which secret, in which parts, with which noise."""

    certificate: str
    """Digest of the certificate."""
    keys: tuple[str, ...] | None
    """Keys of the secret; None if they are not known: then they are those of every secret."""
    parts: Mapping[str, Part] = attrs.field(factory=lambda: {WHOLE: Part()})
    earlier: Sequence[str] = ()
    """Releases before 0.3 that the certificate states as not covered jointly."""
    claim: str = ""
    statistics: tuple[str, ...] = ()
    n_rows: int | None = None
    """Number of rows where it is public."""
    most_numbers: int | None = None
    """Most numbers that may be released from tables; None for a certificate of one release."""

    @property
    def is_budget(self) -> bool:
        """Whether it has parts that are spent one by one."""
        return list(self.parts) != [WHOLE]

    def meets(self, other: "Grant") -> bool:
        """Return whether both may be about one secret."""
        return self.keys is None or other.keys is None or not set(self.keys).isdisjoint(other.keys)

    def to_fields(self) -> dict[str, Any]:
        """Return the grant as fields of an event."""
        return attrs.asdict(self)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Read the fields of an event."""
        keys = fields["keys"]
        return cls(
            certificate=fields["certificate"],
            keys=None if keys is None else tuple(keys),
            parts={name: Part(**part) for name, part in fields["parts"].items()},
            earlier=tuple(fields["earlier"]),
            claim=fields["claim"],
            statistics=tuple(fields["statistics"]),
            n_rows=fields["n_rows"],
            most_numbers=fields["most_numbers"],
        )


@final
@attrs.frozen(kw_only=True)
class Intent:
    """A release that is about to be made: of which part of what, and how precise."""

    certificate: str
    part: str = WHOLE
    period: int = 1
    charge: Fraction = Fraction(1)
    """Share of the precision of the part and period that the release takes, rounded up."""
    features: Sequence[Sequence[float]] | None = None
    """Combinations of the declared statistics that are released; None: all of them."""
    noise: Sequence[Sequence[float]] | None = None
    """Covariance of the noise; None: that of the certificate."""
    directions: Sequence[Sequence[float]] | None = None
    """Released numbers of a part of a budget, in coordinates in which the declared precision is 1;
    None: all features alike, with the share `charge` of it."""
    table: Mapping[str, Any] | None = None
    """Mark of the released table; confidential."""
    marks: str | None = None
    """Folder that gets the spent mark; None for a database."""


@final
@attrs.frozen(kw_only=True)
class Entry:
    """One release in a ledger."""

    number: int
    """Number of the event that intended it."""
    hash: str
    """Hash of that event."""
    certificate: str
    part: str
    period: int
    serial: int
    """Place among the releases of this part and period, from 1."""
    charge: Fraction
    directions: Sequence[Sequence[float]] | None
    table: Mapping[str, Any] | None
    state: ReleaseState
    at: str
    """Time in UTC at which it was intended."""
    marks: str | None = None
    """Folder of its spent mark."""
    is_found: bool = False
    """Whether it is known from a mark outside of the ledger, which may lack the release itself."""
    content: str | None = None
    """Digest of the release as canonical JSON, from the state `drawn` on."""
    release: str | None = None
    """The release as canonical JSON, where it was looked up; None before it was drawn."""


class RecordedRun(NamedTuple):
    """The training run of a ledger."""

    name: str
    plan: str
    """Digest of its plan."""
    n_steps: int
    taken: int | None = None
    """Number of steps taken when the run ended; None while it is unfinished."""


class Checkpointed(NamedTuple):
    """A checkpoint that was written."""

    step: int
    """Number of steps taken before it, which is the next step to take."""
    digest: str


class Mark(Protocol):
    """What a file outside of the ledger says about a release."""

    @property
    def ledger(self) -> str:
        """Lineage of the ledger."""

    @property
    def place(self) -> str | None:
        """Path of the ledger, if it is a file."""

    @property
    def intent(self) -> str:
        """Hash of the event that intended the release."""

    @property
    def content(self) -> str:
        """Digest of the release."""

    @property
    def grant(self) -> Grant:
        """What the release was of."""


@final
class Book:
    """The state of a ledger after some events."""

    def __init__(self, name: str) -> None:
        self.name = name
        """Location of the ledger, for messages."""
        self.number = 0
        self.hash = START
        self.lineage: str | None = None
        """Hash of the first event, which all copies of a ledger share."""
        self.hashes: set[str] = set()
        """Hashes of all events, and those of releases elsewhere that were taken in."""
        self.grants: dict[str, Grant] = {}
        self.entries: dict[int, Entry] = {}
        self.before: dict[str, str] = {}
        """State of each release before 0.3, by its certificate."""
        self.moved: tuple[str, str] | None = None
        """Location and id of the ledger that this one moved to; None while it is open."""
        self.signed: dict[str, int] = {}
        """Number of the last signature of each certificate."""
        self.run: RecordedRun | None = None
        self.checkpoints: list[Checkpointed] = []

    def copied(self) -> "Book":
        """Return a book that changes without this one."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | list | set):
                setattr(other, name, value.copy())
        return other

    def take(self, events: Iterable[Event]) -> None:
        """Bring the book up to these events; refuse what they may not do."""
        for event in events:
            if not is_whole([event], self.number, self.hash):
                raise self.damaged("its chain of events is broken")
            self.change(event)
            self.number, self.hash = event.number, event.hash
            self.hashes.add(event.hash)

    def change(self, event: Event) -> None:
        """Change what an event changes, or refuse it; the chain is not looked at."""
        try:
            TRANSITIONS[event.kind](self, event, event.fields)
        except (ValueError, LookupError, TypeError, ZeroDivisionError) as error:
            raise self.damaged(f"it has an event that cannot be read ({event.kind})") from error

    def damaged(self, why: str) -> LedgerError:
        """Return the error of a ledger that nobody wrote like this."""
        return LedgerError(f"ledger {self.name!r} is damaged: {why}; restore a copy")

    def of_part(self, certificate: str, part: str, period: int | None = None) -> list[Entry]:
        """List the releases of a part, or of one period of it, that were not given up."""
        return [
            entry
            for entry in self.entries.values()
            if (entry.certificate, entry.part) == (certificate, part)
            and period in {None, entry.period}
            and entry.state != "void"
        ]

    def spending(self, certificate: str, part: str, period: int) -> Spending | None:
        """Return the precision that is spent of a part and period; None where it is a number."""
        known = self.grants[certificate].parts.get(part)
        if known is None or known.dim is None:
            return None
        dim = known.dim
        spending = Spending.none(dim)
        for entry in self.of_part(certificate, part, period):
            spending = spending.plus(_measured(dim, entry.charge, entry.directions))
        return spending

    def left(self, certificate: str, part: str, period: int) -> Fraction:
        """Return the share of the precision of a part and period that is not spent."""
        spending = self.spending(certificate, part, period)
        if spending is not None:
            return Fraction(spending.largest_share(np.eye(spending.dim))).limit_denominator(1000)
        spent = sum((e.charge for e in self.of_part(certificate, part, period)), Fraction(0))
        return max(Fraction(0), 1 - spent)

    def held_by(self, grant: Grant) -> list[Grant]:
        """List other grants of the same secret with a release that was not given up."""
        spent = {e.certificate for e in self.entries.values() if e.state != "void"}
        others = (other for name, other in self.grants.items() if name != grant.certificate)
        return [other for other in others if other.certificate in spent and other.meets(grant)]

    def forgets(self, mark: "Mark", place: str | None, certificate: str | None = None) -> bool:
        """Return whether a mark is unknown here that the ledger should know.

        Those of this ledger, of one in its place, or release files of a certificate: that is
        released from one ledger and its copies, which know each other's releases.
        """
        is_own = mark.ledger == self.lineage or (place is not None and mark.place == place)
        is_own = is_own or (mark.place is None and mark.grant.certificate == certificate)
        contents = {entry.content for entry in self.entries.values()}
        return is_own and not (mark.intent in self.hashes and mark.content in contents)

    def check_kept(self, entry: Entry, content: str) -> None:
        """Raise unless a recorded release is still in the ledger, as it was recorded."""
        known = self.entries.get(entry.number)
        if known is None or (known.hash, known.content) != (entry.hash, content):
            raise LedgerError(
                f"ledger {self.name!r} does not have the release of {entry.certificate[:12]} that "
                "was just recorded: it was restored from a backup meanwhile. Nothing was handed "
                "out; `pufferslice ledger reconcile` takes in what is missing"
            )
        later = any(e.is_found and e.number > entry.number for e in self.entries.values())
        if later and known.state != "published" and not self._has_room_for(known):
            raise LedgerError(
                f"ledger {self.name!r} was restored from a backup and reconciled while a release "
                f"of {entry.certificate[:12]} was made: another one was handed out in its place. "
                "Nothing was handed out now; that one can be published again (on the command "
                "line: --again)"
            )

    def _has_room_for(self, entry: Entry) -> bool:
        """Whether a release is allowed beside all others, those that were found later included."""
        spending = self.spending(entry.certificate, entry.part, entry.period)
        entries = self.of_part(entry.certificate, entry.part, entry.period)
        has_room = spending.fits() if spending is not None else sum(e.charge for e in entries) <= 1
        return has_room and not self.held_by(self.grants[entry.certificate])

    def check_marks(
        self, marks: Sequence["Mark"], place: str | None, certificate: str | None = None
    ) -> None:
        """Raise if the ledger is older than its marks, so that it forgot a release."""
        forgotten = [mark for mark in marks if self.forgets(mark, place, certificate)]
        if forgotten:
            names = ", ".join(sorted({mark.grant.certificate[:12] for mark in forgotten}))
            raise LedgerError(
                f"ledger {self.name!r} is older than the spent marks of its releases: it does not "
                f"know what was published under {names}. It was restored from a backup, or made "
                "anew. `pufferslice ledger reconcile LEDGER FOLDER`, with the folder of the marks, "
                "takes in what is missing"
            )

    def check_open(self) -> None:
        """Raise if the ledger moved to another one."""
        if self.moved is not None:
            raise LedgerError(
                f"ledger {self.name!r} was copied to {self.moved[0]!r} and closed; use that one"
            )

    def check_free(self, grant: Grant) -> None:
        """Raise if something else was released, or may have been, about the secret of a grant."""
        unnamed = sorted(set(self.before) - set(grant.earlier))
        if unnamed:
            named = ", ".join(digest[:12] for digest in unnamed)
            raise AlreadyReleasedError(
                f"ledger {self.name!r} holds releases from before 0.3 that the certificate does "
                f"not mention: {named}. What they show is not covered jointly, and the certificate "
                "must say so: use certificate.acknowledging(ledger.earlier()), or `pufferslice "
                "calibrate --ledger L --acknowledge-earlier`"
            )
        others = self.held_by(grant)
        if others:
            raise AlreadyReleasedError(
                f"ledger {self.name!r} holds another certificate of the same secret, "
                f"{others[0].certificate[:12]}: one certificate is for one secret, and "
                f"{_TOGETHER}. A later or corrected table is about the same secret; a different "
                "secret, as that of another office, has a name or a ledger of its own"
            )

    def _check_room(self, intent: Intent) -> None:
        """Raise unless the part has that much precision left in this period, for this table."""
        grant = self.grants[intent.certificate]
        part = grant.parts.get(intent.part)
        if part is None or not 1 <= intent.period <= part.n_periods or not 0 < intent.charge <= 1:
            raise LedgerError(
                f"certificate {intent.certificate[:12]} has no part {intent.part!r} with period "
                f"{intent.period} and a charge of {intent.charge}; use what it declares"
            )
        left = self.left(intent.certificate, intent.part, intent.period)
        if part.dim is not None:
            self._check_precision(intent, part.dim)
        elif intent.charge > left:
            entries = self.of_part(intent.certificate, intent.part, intent.period)
            if not grant.is_budget:
                raise AlreadyReleasedError(
                    f"certificate {intent.certificate[:12]} covers one release and has had it: "
                    f"{_HAS_HAD_IT[entries[-1].state]}; {_TOGETHER}"
                )
            raise AlreadyReleasedError(
                f"part {intent.part!r}, period {intent.period}, has {left} of its precision left, "
                f"and {intent.charge} was asked for; ask for less, or use another part"
            )
        self._check_table(intent, is_fresh=part.is_fresh)

    def _check_precision(self, intent: Intent, dim: int) -> None:
        """Raise unless the matrix that is spent stays below the declared precision."""
        name, part, period = intent.certificate, intent.part, intent.period
        spending = self.spending(name, part, period) or Spending.none(dim)
        asked = _measured(dim, intent.charge, intent.directions)
        if asked.directions.shape[1] != dim or not spending.plus(asked).fits():
            raise AlreadyReleasedError(
                f"part {part!r}, period {period}, has less precision left than was asked for: of "
                f"all statistics {100 * spending.largest_share(np.eye(dim)):.3g} %. Ask for less, "
                "or use another part"
            )
        most = self.grants[name].most_numbers
        released = sum(
            self.grants[name].parts[entry.part].dim or 0
            if entry.directions is None
            else len(entry.directions)
            for entry in self.entries.values()
            if entry.certificate == name
        )
        if most is not None and released + asked.n_numbers > most:
            raise AlreadyReleasedError(
                f"certificate {name[:12]} accounts for {most:,} released numbers, and {released:,} "
                "were released; release fewer at a time"
            )

    def _check_table(self, intent: Intent, *, is_fresh: bool) -> None:
        """Raise if the rows are not those of the part, or those of another period."""
        if intent.table is None:
            return
        for entry in self.of_part(intent.certificate, intent.part):
            if entry.table is None:
                continue
            is_other = is_fresh and entry.period != intent.period
            if is_other == (entry.table == intent.table):
                raise LedgerError(
                    f"the table of part {intent.part!r}, period {intent.period}, is that of period "
                    f"{entry.period}, so its rows are not fresh; release the rows of this period"
                    if is_other
                    else f"part {intent.part!r} was released of another table in period "
                    f"{entry.period}; use that table, or a part with fresh rows"
                )


def _measured(
    dim: int, charge: Fraction, directions: Sequence[Sequence[float]] | None
) -> Measurement:
    """Return what a release measures: given numbers, or all features with a share."""
    if directions is None:
        return measured_share(np.eye(dim), float(charge))
    matrix = np.array(directions, dtype=np.float64)
    return Measurement(directions=matrix, estimate=np.zeros((1, len(matrix))))


def _made(book: Book, event: Event, fields: Mapping[str, Any]) -> None:
    if event.number != 1 or fields["version"] != VERSION:
        raise ValueError("a ledger begins once")
    book.lineage = event.hash


def _before(book: Book, _: Event, fields: Mapping[str, Any]) -> None:
    book.before[fields["certificate"]] = fields["state"]


def _granted(book: Book, _: Event, fields: Mapping[str, Any]) -> None:
    book.check_open()
    grant = Grant.of_fields(fields)
    if grant.certificate in book.grants:
        raise ValueError("a certificate is granted once")
    book.grants[grant.certificate] = grant


def _intended(book: Book, event: Event, fields: Mapping[str, Any]) -> None:
    book.check_open()
    names = [field.name for field in attrs.fields(Intent)]
    values = {name: fields[name] for name in names}
    intent = Intent(**values | {"charge": Fraction(values["charge"])})
    book._check_room(intent)  # noqa: SLF001 - of this module
    book.check_free(book.grants[intent.certificate])
    _enter(book, event, intent, "intended")


def _enter(book: Book, event: Event, intent: Intent, state: ReleaseState) -> Entry:
    alike = [
        entry
        for entry in book.entries.values()
        if (entry.certificate, entry.part, entry.period)
        == (intent.certificate, intent.part, intent.period)
    ]
    entry = Entry(
        number=event.number,
        hash=event.hash,
        certificate=intent.certificate,
        part=intent.part,
        period=intent.period,
        serial=len(alike) + 1,
        charge=intent.charge,
        directions=intent.directions,
        table=intent.table,
        state=state,
        at=event.at,
        marks=intent.marks,
    )
    book.entries[entry.number] = entry
    return entry


def _advanced(old: ReleaseState, new: ReleaseState) -> "Transition":
    """Make the transition of a release from one state to another."""

    def advance(book: Book, event: Event, fields: Mapping[str, Any]) -> None:
        if new != "published":
            # after a copy the other ledger says that nothing was drawn
            book.check_open()
        entry = book.entries.get(event.release or 0)
        if entry is None or entry.hash != fields["intent"]:
            raise LedgerError(
                f"ledger {book.name!r} does not have the intent of this release: it was restored "
                "from a backup meanwhile, so nothing was changed"
            )
        if entry.state != old:
            raise LedgerError(
                f"ledger {book.name!r} does not have {entry.certificate[:12]} in state {old!r}; "
                "another process has advanced this release, so nothing was changed"
            )
        content = fields["content"] if new == "drawn" else entry.content
        book.entries[entry.number] = attrs.evolve(entry, state=new, content=content)

    return advance


def _found(book: Book, event: Event, fields: Mapping[str, Any]) -> None:
    """Take in a release that this ledger forgot, whatever the rules would have said."""
    book.check_open()
    grant, content, intent = Grant.of_fields(fields["grant"]), fields["content"], fields["intent"]
    book.grants.setdefault(grant.certificate, grant)
    known = next((e for e in book.entries.values() if e.hash == intent), None)
    if known is None or known.content is not None:
        wanted = Intent(
            certificate=grant.certificate,
            part=fields["part"],
            period=fields["period"],
            charge=Fraction(fields["charge"]),
        )
        known = _enter(book, event, wanted, "published")
    book.entries[known.number] = attrs.evolve(
        known, state="published", content=content, hash=intent, is_found=True
    )
    book.hashes.add(intent)


def _moved(book: Book, _: Event, fields: Mapping[str, Any]) -> None:
    book.check_open()
    book.moved = fields["target"], fields["id"]


def _arrived(book: Book, _: Event, fields: Mapping[str, Any]) -> None:
    book.check_open()
    del fields


def _signed(book: Book, event: Event, fields: Mapping[str, Any]) -> None:
    book.check_open()
    book.signed[fields["certificate"]] = event.number


def _started(book: Book, _: Event, fields: Mapping[str, Any]) -> None:
    if book.run is not None:
        raise ValueError("a ledger holds one run")
    book.run = RecordedRun(name=fields["run"], plan=fields["plan"], n_steps=fields["n_steps"])


def _checkpointed(book: Book, _: Event, fields: Mapping[str, Any]) -> None:
    book.checkpoints.append(Checkpointed(step=fields["step"], digest=fields["digest"]))


def _finished(book: Book, _: Event, fields: Mapping[str, Any]) -> None:
    if book.run is None:
        raise ValueError("there is no run to finish")
    book.run = book.run._replace(taken=fields["taken"])


Transition = Callable[[Book, Event, Mapping[str, Any]], None]

TRANSITIONS: Final[Mapping[str, Transition]] = {
    "made": _made,
    "before": _before,
    "granted": _granted,
    "intended": _intended,
    "drawn": _advanced("intended", "drawn"),
    "published": _advanced("drawn", "published"),
    "void": _advanced("intended", "void"),
    "found": _found,
    "moved": _moved,
    "arrived": _arrived,
    "signed": _signed,
    "started": _started,
    "checkpointed": _checkpointed,
    "finished": _finished,
}
"""What each kind of event changes."""
