# SPDX-License-Identifier: Apache-2.0
"""Numbers of a page about a budget."""

from typing import Any

from pufferslice._core.text import label
from pufferslice.certificate.budget_wording import (
    first_lines,
    limit_sentences,
    part_words,
    reserve_sentence,
)
from pufferslice.certificate.sweep import stated_variation
from pufferslice.learning.plan import HYPOTHESES
from pufferslice.report.inputs import ReportInputs


def budget_numbers(held: ReportInputs) -> dict[str, Any]:
    """Collect what the public statement says about all parts, and what was released of them."""
    certificate = held.certificate
    statement = certificate.budget.escaped()
    lines = first_lines(statement)
    return {
        "kind": "budget",
        "subject": label(", ".join(part.name for part in certificate.budget.parts)),
        "statement": statement,
        "claim": certificate.guarantee,
        "is_secure": certificate.is_secure,
        "variation": stated_variation(certificate),
        "protected": lines.protected,
        "guesses": lines.guess,
        "person": lines.person,
        "parts": [part_words(part).removeprefix("  - ") for part in statement.parts],
        "reserve": reserve_sentence(statement).splitlines()[:1],
        "rows": certificate.table_rows(),
        "hypotheses": [HYPOTHESES[code] for code in statement.hypotheses],
        "limits": limit_sentences(statement),
        "releases": [(released, released.table_rows()) for released in held.releases],
        "refuted": [],
    }
