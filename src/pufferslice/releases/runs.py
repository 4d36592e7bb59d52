# SPDX-License-Identifier: Apache-2.0
"""Charge a training run to its part of a budget: once, before its first step, however it ends."""

import os
from typing import Final

import attrs

from pufferslice._core.files import canonical_json, digest
from pufferslice._core.text import quoted
from pufferslice.certificate import verify
from pufferslice.certificate.budget import MOST_PARAMETERS
from pufferslice.certificate.certificate import BudgetPlan
from pufferslice.errors import AlreadyReleasedError, ArgumentError, ReleaseError
from pufferslice.releases.budget import grant_of_budget
from pufferslice.releases.commands import finished, publishing_again, releasing
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.marks import Outside
from pufferslice.releases.states import Entry, Intent

FORMAT: Final = "pufferslice-charged-run"
VERSION: Final = 1


def charge_run(
    plan: BudgetPlan,
    run: str,
    *,
    ledger: str | os.PathLike[str] | Ledger,
    n_parameters: int,
    folder: str | os.PathLike[str] | None = None,
    spent_marks: str | os.PathLike[str] | None = None,
) -> None:
    """Record in the ledger that the run with this name trains the part of the plan.

    To be called before the first step. Repeating the call for the same run, as one that resumes
    does, charges nothing more; any other run of the part is refused. The whole part is charged,
    also for a run that stops early. The spent mark is left as by a release; for a ledger in a
    database in the `folder` of the run.
    """
    _check_run(plan, n_parameters)
    certificate = plan.certificate
    book = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    outside = Outside.of(
        book.path,
        asked=folder if spent_marks is None and book.path is None else spent_marks,
        certificate=certificate.path,
        out=None,
    )
    if outside.folder is None:
        raise ArgumentError(
            "spent_marks is required for a run without a folder whose ledger is in a database: "
            "nothing else would be left of it there"
        )
    text = canonical_json(
        {
            "format": FORMAT,
            "version": VERSION,
            "certificate": certificate.digest,
            "part": plan.part,
            "run": run,
        }
    ).decode()
    entry = _entry_of(book, plan, digest(text.encode()), run)
    if entry is None:
        intent = Intent(certificate=certificate.digest, part=plan.part, table={"run": run})
        finished(
            releasing(
                book,
                grant_of_budget(certificate),
                intent,
                outside,
                draw=lambda _: text,
                text=str,
                hand_out=lambda _: None,
            )
        )
        return
    book.check_arrived()
    book.book().check_open()
    if entry.state == "intended":  # killed before its first step
        book.record_drawn(entry, text)
    kept = attrs.evolve(book.book().entries[entry.number], release=text)
    finished(publishing_again(book, kept, outside, lambda: None))


def _check_run(plan: BudgetPlan, n_parameters: int) -> None:
    """Raise unless the budget holds, and accounts for this plan and for a model of this size."""
    plan.check()
    if n_parameters > MOST_PARAMETERS:
        raise ArgumentError(
            f"model has {n_parameters:,} parameters, and a budget accounts for the sampler's error "
            f"of at most {MOST_PARAMETERS:,}; train fewer of them"
        )
    for problem in verify(plan.certificate).problems:
        raise ReleaseError(
            f"the budget does not hold: {problem}. Use the files that were written with it"
        )


def _entry_of(book: Ledger, plan: BudgetPlan, content: str, run: str) -> Entry | None:
    """Find the charge of a run in the ledger; raise if another run has had the part."""
    for entry in book.book().of_part(plan.certificate.digest, plan.part):
        if content == entry.content or (entry.table or {}).get("run") == run:
            return entry
        raise AlreadyReleasedError(
            f"part {quoted(plan.part)} was charged by another run, and covers one: resume that "
            "run in its folder, or train under a part of its own, in the next budget"
        )
    return None
