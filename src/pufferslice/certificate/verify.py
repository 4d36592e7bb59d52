# SPDX-License-Identifier: Apache-2.0
"""Verification: recompute a certificate from its evidence, and check the relations in it."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

import attrs

from pufferslice._core.text import given, listed, quoted
from pufferslice._core.threads import Progress, silent
from pufferslice.certificate.budget import (
    BudgetOptions,
    budget_statement,
    required_budget_evidence,
)
from pufferslice.certificate.budget_evidence import broken_budget, difference_of
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.issue import (
    differences,
    leaves_rows_unchecked,
    required_evidence,
    scenario_problems,
    too_little_noise,
)
from pufferslice.certificate.release import CertificateOptions, release_statement
from pufferslice.certificate.signature import date_problem, revocation_problem, signature_problem
from pufferslice.certificate.statement import (
    BudgetStatement,
    Statement,
    TrainingStatement,
    read_scenario,
    read_statement,
)
from pufferslice.certificate.training import TrainingClaim, training_statement
from pufferslice.errors import ArgumentError, PuffersliceError, escaped
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.relations import broken_relations

if TYPE_CHECKING:
    from pufferslice.certificate.rigorous import Proof

UNCHECKED: Final = {
    "noise.generator": "which generator a release will use",
    "noise.secure": "follows from the generator",
    "noise.calibrated": "whether the noise was calibrated to the claim or chosen by the holder",
    "noise.shape.kind": "how the shape was chosen, so whether it reveals how the secrets differ",
    "noise.shape.gap": "how close the shape is to the best one; no promise depends on it",
    "earlier_releases": "which releases came before",
    "scenario": "whether the declared secrets, query and priors describe the truth; only their "
    "agreement with the evidence is checked",
}
"""Fields that the evidence cannot decide, and what remains unknown about each."""

UNCHECKED_TRAINING: Final = {
    "runs": "whether the runs followed their plans, on these data, under the listed hypotheses",
    "data": "whether all runs were over the named data",
    "noise": "how the noise was drawn",
    "implementation_delta": "how many numbers were drawn, and how exactly",
    "one_record": "whether its conditions were met: one record for each person, no preprocessing "
    "fitted to the data",
    "limits": "which program made the runs, and what that program leaves open",
}
"""Fields of a training statement that its plans cannot decide, and what remains unknown."""


UNCHECKED_BUDGET: Final = {
    "noise.generator": "which generator releases will use",
    "noise.secure": "follows from the generator",
    "parts": "whether all parts were fixed before the first output, as a ledger shows, and whether "
    "the rows of different periods are independent given the secret",
    "earlier_releases": UNCHECKED["earlier_releases"],
    "scenario": "whether the declared secret and queries describe the truth; only their agreement "
    "with the evidence is checked",
}
"""Fields of a budget that the evidence cannot decide, and what remains unknown about each."""

_UNCHECKED: Final = {
    "release": UNCHECKED,
    "training": UNCHECKED_TRAINING,
    "budget": UNCHECKED_BUDGET,
}
_RELATIVE: Final = 1e-9
"""Relative tolerance for the last digits of another machine's eigenvalues."""


@final
@attrs.frozen(kw_only=True)
class Verification:
    """The outcome of recomputing a certificate."""

    problems: tuple[str, ...]
    """Sentences on what does not hold; empty if the claim was confirmed."""
    unchecked: tuple[str, ...]
    """Sentences on what the evidence cannot decide."""
    signed: bool
    """Whether a signature was checked against the given key, and holds."""
    has_evidence: bool
    """Whether there was anything to recompute from: evidence, or the plans of runs."""
    source: str
    """Source from which the claim was recomputed."""
    proof: "Proof | None" = None
    """Result in ball arithmetic; None if it was not requested, or if there are other problems."""

    @property
    def holds(self) -> bool:
        """Whether all that can be recomputed agrees and, if a proof was requested, is proved."""
        return not self.problems and (self.proof is None or self.proof.outcome == "proved")

    def __str__(self) -> str:
        if self.problems:
            verdict = "REFUTED" if self.has_evidence else "NOT VERIFIED"
            return f"{verdict}\n" + "\n".join(
                f"  - {escaped(problem)}" for problem in self.problems
            )
        signed = "; the signature holds" if self.signed else ""
        open_points = "\n".join(f"  - {point}" for point in self.unchecked)
        text = f"VERIFIED from {self.source}{signed}. Cannot be checked here:\n{open_points}"
        if self.proof is None:
            return text
        if not self.holds:
            return f"{self.proof}\nUp to rounding, the statement agrees with {self.source}."
        return f"{self.proof}\n{text}"


def verify(
    certificate: Certificate,
    *,
    public_key: bytes | None = None,
    scenario: Scenario | Mapping[str, Scenario] | None = None,
    rigorous: bool = False,
    not_before: str | None = None,
    newer: Certificate | None = None,
    progress: Progress = silent,
) -> Verification:
    """Recompute noise, cost, unsliced bound and views from the evidence and compare all fields.

    With `public_key` (PEM) the statement must carry a valid Ed25519 signature of that key; its date
    must not lie before the day `not_before`, and `newer`, another certificate that the key signed,
    must not revoke this one: with a higher serial in the same ledger, about the same secret.
    Without `scenario` statement and evidence are shown to agree, and no more; with it the evidence
    itself is recomputed from the scenario's data, which takes as long as certifying it; `progress`
    follows that. For a budget, `scenario` maps names of its parts to their scenarios. With
    `rigorous` the claim and the unsliced numbers must also be proved in ball arithmetic (`Proof`),
    which leaves no room for rounding.
    """
    training = certificate.workflow == "training"
    source = "the plan" if training else "the evidence"
    unsigned = None if public_key is None else signature_problem(certificate, public_key)
    problems = [] if unsigned is None else [unsigned]
    unchecked = dict(_UNCHECKED[certificate.workflow])
    if public_key is None and (not_before is not None or newer is not None):
        raise ArgumentError("not_before and newer need public_key: dates are part of a signature")
    if public_key is not None and certificate.signature is not None:
        unchecked["signature"] = "the date is by the clock of whoever signed"
    if unsigned is None and public_key is not None:
        problems += filter(None, [not_before and date_problem(certificate, not_before)])
        problems += filter(None, [newer and revocation_problem(certificate, newer, public_key)])
    if public_key is None and certificate.signature is not None:
        unchecked["signature"] = "whose it is, and whether it holds: no public key was given"
    problems += _recomputed_problems(certificate, source)
    if scenario is not None:
        problems = problems or _problems_of(certificate, scenario, progress)
        unchecked["scenario"] = "whether the declared secrets, query and priors describe the truth"
        if (
            not problems
            and isinstance(scenario, Scenario)
            and leaves_rows_unchecked(certificate, scenario)
        ):
            unchecked["unsliced.epsilon, views"] = (
                "they rest on single rows, of which this scenario has moments only; a table in "
                "memory decides them"
            )
        source = "the data"
    proof = None
    if rigorous:
        from pufferslice.certificate.rigorous import prove  # noqa: PLC0415 - python-flint

        proof = None if problems else prove(certificate)
    return Verification(
        problems=tuple(problems),
        unchecked=tuple(f"{field}: {why}" for field, why in unchecked.items()),
        signed=public_key is not None and unsigned is None,
        has_evidence=certificate.evidence is not None or training,
        source=source,
        proof=proof,
    )


def _problems_of(
    certificate: Certificate, scenario: Scenario | Mapping[str, Scenario], progress: Progress
) -> list[str]:
    """List what does not hold for a scenario, or for those of some parts of a budget."""
    if certificate.workflow != "budget" and not isinstance(scenario, Mapping):
        return scenario_problems(certificate, scenario, progress)
    if certificate.workflow != "budget" or not isinstance(scenario, Mapping):
        return ["a budget needs a scenario for each named part, as a mapping; a release needs one"]
    return [
        problem
        for name, each in scenario.items()
        for problem in part_problems(certificate, name, each)
    ]


def part_problems(certificate: Certificate, name: str, scenario: Scenario) -> list[str]:
    """List what does not hold for the scenario of one part of a budget, from its own rows."""
    evidence = required_budget_evidence(certificate)
    stated = {part.name: part for part in certificate.budget.tables}.get(name)
    if stated is None:
        return [
            f"the budget has no part {quoted(name)} about rows; it has {listed(evidence.tables)}"
        ]
    if stated.scenario.to_json() != scenario.description():
        return [f"part {quoted(name)} was certified for another scenario: its description differs"]
    known = evidence.confidential[name]["distributions_digest"]
    if known != scenario.distributions_digest():
        return [f"part {quoted(name)} was certified for other rows than this scenario has"]
    fresh = attrs.evolve(
        evidence, tables={**evidence.tables, name: difference_of(scenario, evidence.coupling)}
    )
    recomputed = budget_statement(fresh, BudgetOptions.read_off(certificate.budget))
    (square,) = (part.mean_square for part in recomputed.tables if part.name == name)
    if square > stated.mean_square * (1 + _RELATIVE):
        return [f"the rows of part {quoted(name)} need more noise than the budget states"]
    person, fresh_person = map(_person_of, (certificate.budget, recomputed))
    if person is not None and not (fresh_person or math.inf) <= person * (1 + _RELATIVE):
        return [f"with the rows of part {quoted(name)} one person gets less than is stated"]
    return []


def _person_of(stated: BudgetStatement) -> float | None:
    """Epsilon of one person, given the noise or not; None where none is stated."""
    person = stated.one_person or stated.one_person_given_noise
    return None if person is None else person.epsilon


def _recomputed_problems(certificate: Certificate, source: str) -> list[str]:
    statement = certificate.statement
    problems: list[str] = []
    expected: Statement
    try:
        read_statement(statement.to_json())
        if isinstance(statement, TrainingStatement):
            expected = training_statement(TrainingClaim.read_off(statement))
        elif isinstance(statement, BudgetStatement):
            budget = required_budget_evidence(certificate)
            budget.check()
            problems = broken_budget(budget, statement)
            expected = budget_statement(budget, BudgetOptions.read_off(statement))
        else:
            evidence = required_evidence(certificate)
            read_scenario(evidence.scenario)
            evidence.check()
            if certificate.shape != evidence.full.shape:
                return ["the evidence is about another shape of noise than the statement"]
            for broken in broken_relations(evidence.full, evidence.slices, evidence.scenario):
                return [broken]
            options = CertificateOptions.read_off(statement)
            expected = release_statement(evidence, options)
            problems = too_little_noise(evidence, options, statement.noise.std)
    except PuffersliceError as error:
        return [str(error)]
    return problems + [
        f"{path} is {given(stated)} in the statement, {source} gives {given(right)}"
        for path, stated, right in differences(statement.to_json(), expected.to_json())
    ]
