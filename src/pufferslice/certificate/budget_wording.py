# SPDX-License-Identifier: Apache-2.0
"""Wording of budgets, and of statements of any kind: sentences in plain words."""

import math
from collections.abc import Iterable
from typing import Any, Final

from pufferslice._core.numbers import at_most, in_full, percent_at_most
from pufferslice._core.text import listed, quoted, shown
from pufferslice.certificate import wording
from pufferslice.certificate.limits import BUDGET_LIMITS, NOT_STATED
from pufferslice.certificate.statement import (
    BudgetStatement,
    ScenarioPart,
    ShareSecret,
    SizeSecret,
    Statement,
    TablePart,
    TrainingPart,
)
from pufferslice.certificate.wording import (
    FirstLines,
    earlier_sentence,
    noise_sentence,
    protected_sentence,
    range_words_of,
)
from pufferslice.learning.plan import HYPOTHESES
from pufferslice.noise.decision import INTERVAL_STDS

_HOPELESS: Final = 1.0
"""Signal to noise of a whole run below which one parameter cannot be learnt."""


def prose_of(statement: Statement, digest: str) -> str:
    """Write a whole statement as text, in the order a reader asks; bounds are rounded up."""
    if isinstance(statement, BudgetStatement):
        return budget_prose(statement, digest)
    return wording.prose_of(statement, digest)


def first_lines(statement: Statement) -> FirstLines:
    """Write a few lines for every reader: the protection, the right guesses, and one person."""
    if isinstance(statement, BudgetStatement):
        return budget_lines(statement)
    return wording.first_lines(statement)


def table_rows(statement: Statement) -> list[dict[str, Any]]:
    """Return the noise of each statistic, of each part of a budget, or of each run."""
    if isinstance(statement, BudgetStatement):
        return budget_rows(statement)
    return wording.table_rows(statement)


def limit_sentences(statement: Statement) -> tuple[str, ...]:
    """Say what a certificate does not cover."""
    if isinstance(statement, BudgetStatement):
        return tuple(BUDGET_LIMITS[code] for code in statement.limits)
    return wording.limit_sentences(statement)


def doubt_sentence(statement: Statement) -> str:
    """Say how likely samples mislead, after a space; empty where nothing was sampled."""
    return "" if isinstance(statement, BudgetStatement) else wording.doubt_sentence(statement)


def budget_prose(statement: BudgetStatement, digest: str) -> str:
    """Write the whole statement as text, in the order a reader asks; bounds are rounded up."""
    statement = statement.escaped()
    claim = statement.guarantee
    hypotheses = ""
    if statement.hypotheses:
        hypotheses = "Hypotheses:\n" + _bullets(HYPOTHESES[code] for code in statement.hypotheses)
    cost = claim.cost_words(statement.spent, "")
    told = (
        f"{cost} They tell at most {at_most(statement.information, 3)} bits about a pair of "
        f"protected values; the mean squared distance is at most "
        f"{at_most(statement.mean_square, 3)}."
    )
    parts = [
        f"Certificate {digest[:16]}",
        "\n".join(filter(None, budget_lines(statement))),
        "Parts, each with the noise of its whole precision (less precision is more noise):\n"
        + "\n".join(part_words(part) for part in statement.parts),
        reserve_sentence(statement),
        f"Claim: {claim}, for all outputs together, for rows as described below.\n{told}",
        _coupling(statement),
        _noise(statement),
        hypotheses,
        earlier_sentence(statement.earlier_releases),
        "Limits:\n" + _bullets(limit_sentences(statement)),
    ]
    return "\n\n".join(part for part in parts if part)


def budget_lines(statement: BudgetStatement) -> FirstLines:
    """Write a few lines for every reader; the noise is that of many parts, and comes later."""
    statement = statement.escaped()
    return FirstLines(
        protected=f"Protected: {_protected(statement.tables[0].scenario)}.",
        guess=all_outputs_sentence(statement.guess),
        person=_person_sentence(statement),
        noise="",
    )


def all_outputs_sentence(guess: float) -> str:
    """Say how often someone who sees all outputs of a budget guesses right."""
    return (
        "Someone who has narrowed the secret down to two protected values, both equally likely, "
        f"and sees all outputs of this budget guesses right at most {percent_at_most(guess)} of "
        "the time, on average over outputs (coin flip: 50\u00a0%)."
    )


def budget_rows(statement: BudgetStatement) -> list[dict[str, Any]]:
    """Return the noise of each statistic of each part, for its whole precision."""
    return [
        {
            "part": part.name,
            "statistic": name,
            "share": part.share,
            "periods": part.times,
            "noise_std": std,
            "within_95_percent": INTERVAL_STDS * std,
        }
        for part in statement.tables
        for name, std in zip(part.scenario.query.names, part.noise.std_by_coordinate, strict=True)
    ]


def part_words(part: TablePart | TrainingPart) -> str:
    """Describe one part in a line: what it is, its share, and its noise."""
    share = f"{100 * part.share:.3g}\u00a0% of the promise"
    if isinstance(part, TrainingPart):
        multiplier = min(part.plan.noise_multipliers)
        return (
            f"  - {shown(part.name)}: training, {part.plan.n_steps:,} steps, "
            f"{part.plan.sampling.kind.replace('_', ' ')} sampling, {share}; noise multiplier "
            f"{multiplier:.4g}. {_signal(part)}"
        )
    what = {"table": "one table", "reserve": "a reserve for later"}.get(part.kind, "")
    if part.kind == "repeated":
        what = f"{part.times} periods"
        if part.rows is not None:
            what += f" of {part.rows[0]:,} to {part.rows[1]:,} fresh rows"
    names, stds = part.scenario.query.names, part.noise.std_by_coordinate
    return f"  - {shown(part.name)}: {what}, {share}. {noise_sentence(names, stds)}"


def reserve_sentence(statement: BudgetStatement) -> str:
    """Say what the reserves cost the other parts; empty without any.

    Noise falls with the root of a share, and without reserves their share would go to the others.
    """
    reserves = [part for part in statement.tables if part.kind == "reserve"]
    left = 1 - math.fsum(part.share for part in reserves)
    if not reserves or not left > 0:
        return ""
    names = listed([part.name for part in reserves], quoted)
    lines = [
        (
            f"Without the reserve ({names}), the noise of every other part would be "
            f"{100 * (1 - math.sqrt(left)):.2g}\u00a0% smaller:"
        )
    ]
    for part in statement.tables:
        if part.kind != "reserve":
            stds = [std * math.sqrt(left) for std in part.noise.std_by_coordinate]
            words = noise_sentence(part.scenario.query.names, stds)
            lines.append(f"  - {shown(part.name)}: {words}")
    return "\n".join(lines)


def _protected(scenario: ScenarioPart) -> str:
    """Say what is hidden, and from whom; how many rows differ depends on the part."""
    secret = scenario.secret
    if not isinstance(secret, ShareSecret | SizeSecret):
        return protected_sentence(scenario).removeprefix("Protected: ").removesuffix(".")
    if isinstance(secret, ShareSecret) and secret.design == "independent":
        return f"{range_words_of(secret)}, on average over the other rows"
    return (
        f"{range_words_of(secret)}, even from someone who knows every row of every table but those "
        "that make the difference"
    )


def _noise(statement: BudgetStatement) -> str:
    noise = statement.noise
    return (
        f"Noise: Gaussian on a grid, generator {noise.generator}, sampling error at most "
        f"{at_most(noise.implementation_delta, 3)} in total variation, for at most "
        f"{noise.most_numbers:,} released numbers."
    )


def _signal(part: TrainingPart) -> str:
    signal = f"{part.signal:.3g}"
    if part.signal < _HOPELESS:
        return (
            f"HOPELESS: even if all gradients of the whole run agreed, their sum would be {signal} "
            "times the noise for a model with a single parameter; expect to learn nothing. Use "
            "second moments of few columns instead, or a larger share"
        )
    return (
        f"Signal: if all gradients of the whole run agreed, their sum would be {signal} times the "
        "noise for a model with a single parameter, and less by the root of their number for more"
    )


def _person_sentence(statement: BudgetStatement) -> str:
    person = statement.one_person
    if person is not None:
        return (
            f"Any one person: ({at_most(person.epsilon)}, {in_full(person.delta)})-differential "
            "privacy of all outputs together, where a person has at most one row in the table of "
            "every part and period."
        )
    given = statement.one_person_given_noise
    more = ""
    if given is not None:
        more = (
            f" Given the noise, it would be ({at_most(given.epsilon)}, {in_full(given.delta)})-"
            "differential privacy."
        )
    return f"Any one person: no promise. {NOT_STATED[statement.not_stated['one_person']]}{more}"


def _coupling(statement: BudgetStatement) -> str:
    label = statement.coupling.partition(":")[2]
    how = "drawn independently of each other"
    if label:
        how = f"matched by {shown(label)} as far as possible"
    return (
        f"Coupling: in the proof, the rows of the two worlds are {how}, in the same way in all "
        "parts."
    )


def _bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"  - {sentence}" for sentence in sentences)
