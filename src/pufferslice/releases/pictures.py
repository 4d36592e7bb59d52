# SPDX-License-Identifier: Apache-2.0
"""Pictures of releases and ledgers: values with their noise, and what is left to release."""

from typing import TYPE_CHECKING, Final

from pufferslice._core.display import rounded
from pufferslice._core.plot import Bar, Plot, Row, row_chart, scale
from pufferslice._core.text import shown
from pufferslice.noise.decision import INTERVAL_STDS
from pufferslice.releases.states import WHOLE, Book, Grant

if TYPE_CHECKING:
    from pufferslice.releases.release import Release

VALUES: Final = "Released values and their noise"
_SPENT: Final = "Spent and left"


def release_plot(release: "Release") -> Plot:
    """Draw every value with the 95 % interval of its noise, each on its own scale from zero."""
    notes = [
        f"Bars: 95\u00a0% intervals of the noise, not of sampling, for {release.interval_is_of}.",
        f"Claim: {release.guarantee}. Certificate {release.certificate[:12]}.",
    ]
    if release.small_counts:
        notes.append(release.small_counts)
    if not release.secure:
        notes.insert(0, "INSECURE: the noise comes from a seeded test generator.")
    return Plot(
        title=VALUES,
        charts=(row_chart(VALUES, value_rows(release)),),
        notes=tuple(notes),
        is_internal=not release.secure,
    )


def value_rows(release: "Release") -> list[Row]:
    """Make a row for each released statistic."""
    rows = []
    for name, value, std, ends in zip(
        release.names,
        release.values.tolist(),
        release.noise_stds.tolist(),
        release.intervals.tolist(),
        strict=True,
    ):
        rows.append(
            Row(
                name=shown(name),
                numbers=f"{rounded(value, std)} ±\u00a0{rounded(INTERVAL_STDS * std, std)}",
                ends=scale(value, *ends),
                interval=(ends[0], value, ends[1]),
            )
        )
    return rows


def ledger_plot(name: str, book: Book) -> Plot:
    """Draw which share of the precision of each part is spent and left."""
    rows = [row for grant in book.grants.values() for row in _grant_rows(book, grant)]
    notes = [f"Ledger {shown(name)}." + ("" if rows else " No releases.")]
    if book.before:
        notes.append(f"Spent before 0.3, not covered jointly: {len(book.before)} release(s).")
    return Plot(
        title=_SPENT,
        charts=(row_chart(_SPENT, rows),),
        keys=(("noise", "spent"), ("beside", "left")) if rows else (),
        notes=tuple(notes),
        is_internal=True,
    )


def _grant_rows(book: Book, grant: Grant) -> list[Row]:
    """Make a row for each part and period with a release, and one for the periods without."""
    rows = []
    for part, known in grant.parts.items():
        name = digest = grant.certificate[:12]
        if part != WHOLE:
            name = f"{shown(part)}, {name}"
        elif grant.statistics:
            more = f" and {len(grant.statistics) - 1} more" if grant.statistics[1:] else ""
            name = f"{shown(grant.statistics[0])}{more}, {name}"
        periods = range(1, known.n_periods + 1)
        begun = [p for p in periods if book.of_part(grant.certificate, part, p)]
        for period in begun:
            spent = 100 * float(1 - book.left(grant.certificate, part, period))
            which = name if known.n_periods == 1 else f"{shown(part)} {period}, {digest}"
            rows.append(_spent_row(which, spent))
        if n_left := known.n_periods - len(begun):
            which = name if known.n_periods == 1 else f"{name}, {n_left} of {len(periods)} periods"
            rows.append(_spent_row(which, 0.0))
    return rows


def _spent_row(name: str, spent: float) -> Row:
    return Row(
        name=shown(name),
        numbers=f"{rounded(spent)}\u00a0% spent, {rounded(100 - spent)}\u00a0% left",
        ends=(0.0, 100.0),
        bars=(Bar("noise", 0.0, spent), Bar("beside", spent, 100.0)),
    )
