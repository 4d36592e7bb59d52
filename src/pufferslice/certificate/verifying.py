# SPDX-License-Identifier: Apache-2.0
"""Recompute a certificate's claim from its evidence."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import attrs

from pufferslice.certificate.document import Certificate
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.issuing import check_seen, required_evidence
from pufferslice.certificate.learning import Trained, learning_statement
from pufferslice.certificate.relations import broken_relations
from pufferslice.certificate.shape import check_shape
from pufferslice.certificate.signing import signature_problem
from pufferslice.certificate.statement import Said, spent_epsilon, statement_of
from pufferslice.errors import PuffersliceError
from pufferslice.scenario import Scenario
from pufferslice.showing import escaped, given

UNCHECKED: Final = {
    "noise.generator": "which generator a release will use",
    "noise.secure": "follows from the generator",
    "noise.calibrated": "whether the claim or the data holder decided the noise",
    "earlier_releases": "which releases came before",
    "scenario": "whether the declared secrets, query and priors describe the truth; only that they "
    "are those of the evidence",
}
"""Fields that the evidence cannot decide, and what about them stays open."""

UNCHECKED_LEARNING: Final = {
    "runs": "whether the runs followed their plans, on these data, under the listed hypotheses",
    "data": "whether all runs were over the named data",
    "noise": "how the noise was drawn",
    "implementation_delta": "how many numbers were drawn, and how exactly",
    "one_record": "whether its conditions were met: one record for each person, no preprocessing "
    "fitted to the data",
    "limits": "which program made the runs, and what that program leaves open",
}
"""The same for training runs."""

_RELATIVE: Final = 1e-9
"""Room for the last digits of another machine's exp and log."""


@final
@attrs.frozen(kw_only=True)
class Verification:
    """The outcome of recomputing a certificate."""

    problems: tuple[str, ...]
    """What does not hold; empty if the claim was confirmed."""
    unchecked: tuple[str, ...]
    """What the evidence cannot decide."""
    signed: bool
    """Whether a signature was checked against the given key, and holds."""
    has_evidence: bool
    """Whether there was anything to recompute from: evidence, or the plans of runs."""
    source: str
    """What the claim was recomputed from."""

    @property
    def holds(self) -> bool:
        """Whether everything that can be recomputed was, and agrees."""
        return not self.problems

    def __str__(self) -> str:
        if self.problems:
            verdict = "REFUTED" if self.has_evidence else "NOT VERIFIED"
            return f"{verdict}\n" + "\n".join(f"  - {escaped(one)}" for one in self.problems)
        signed = "; the signature holds" if self.signed else ""
        open_points = "\n".join(f"  - {point}" for point in self.unchecked)
        return f"VERIFIED from {self.source}{signed}. Cannot be checked here:\n{open_points}"


def verify(
    certificate: Certificate,
    *,
    public_key: bytes | None = None,
    scenario: Scenario | None = None,
) -> Verification:
    """Recompute noise, cost, unsliced bound and views from the evidence and compare all fields.

    With `public_key` (PEM) the statement must carry a valid Ed25519 signature of that key. Without
    `scenario` statement and evidence are shown to agree, and no more; with it the evidence itself
    is recomputed from the scenario's data.
    """
    unsigned = None if public_key is None else signature_problem(certificate, public_key)
    problems = [*([unsigned] if unsigned else []), *_recomputed_problems(certificate)]
    unchecked = dict(_unchecked(certificate))
    if scenario is not None:
        if not problems:
            problems = scenario_problems(certificate, scenario)
        unchecked["scenario"] = "whether the declared secrets, query and priors describe the truth"
    return Verification(
        problems=tuple(problems),
        unchecked=tuple(f"{field}: {why}" for field, why in unchecked.items()),
        signed=public_key is not None and unsigned is None,
        has_evidence=certificate.evidence is not None or _is_learning(certificate),
        source=_source(certificate) if scenario is None else "the data",
    )


def scenario_problems(certificate: Certificate, scenario: Scenario) -> list[str]:
    """What does not hold for this scenario, whatever the evidence says.

    Tables and costs are computed from the scenario's own laws. The stated noise must meet the
    claim, and no other bound may be stated lower than it is found.
    """
    if _is_learning(certificate):
        return ["the certificate is about training runs; a scenario belongs to a release"]
    statement, evidence = certificate.statement, required_evidence(certificate)
    if statement["scenario"] != scenario.description():
        return ["the certificate was issued for another scenario: its description differs"]
    if evidence.confidential["laws_digest"] != scenario.laws_digest():
        return ["the certificate was issued for other laws than this scenario has"]
    said, noise_std = Said.read_off(statement), statement["noise"]["std"]
    try:
        fresh = Evidence.of(scenario, evidence.slices.profile, evidence.doubt, reuse=True)
        check_seen(fresh, scenario)
        problems = _too_little_noise(fresh, said, noise_std)
        found = problems or statement_of(fresh, attrs.evolve(said, noise_std=noise_std))
    except PuffersliceError as error:
        return [str(error)]
    if isinstance(found, list):
        return found
    return [
        f"{path} is {given(stated)} in the statement, the data give {given(right)}"
        for path, stated, right in differences(statement, found)
        if path not in _OF_ITS_OWN and not _is_safe(path, stated, right)
    ]


_OF_ITS_OWN: Final = ("evidence_digest", "noise.calibrated")
"""The digest is salted; who decided the noise is not recomputed."""

_BOUND: Final = re.compile(r"spent_epsilon|unsliced\.(epsilon|guess)|views\[\d+\]\.epsilon")


def _is_safe(path: str, stated: object, found: object) -> bool:
    """Whether a bound is stated higher than it was found: couplings may be better next time."""
    numbers = isinstance(stated, int | float) and isinstance(found, int | float)
    return bool(numbers and _BOUND.fullmatch(path) and stated >= found)  # type: ignore[operator]


def _is_learning(certificate: Certificate) -> bool:
    return certificate.statement.get("road") == "learning"


def _source(certificate: Certificate) -> str:
    return "the plan" if _is_learning(certificate) else "the evidence"


def _unchecked(certificate: Certificate) -> dict[str, str]:
    return UNCHECKED_LEARNING if _is_learning(certificate) else UNCHECKED


def _recomputed_problems(certificate: Certificate) -> list[str]:
    statement = certificate.statement
    try:
        check_shape(statement)
        if _is_learning(certificate):
            expected = learning_statement(Trained.read_off(statement))
            too_little: list[str] = []
        else:
            evidence = required_evidence(certificate)
            evidence.check()
            broken = next(broken_relations(evidence), None)
            if broken is not None:
                return [broken]
            said = Said.read_off(statement)
            expected = statement_of(evidence, said)
            too_little = _too_little_noise(evidence, said, statement["noise"]["std"])
    except PuffersliceError as error:
        return [str(error)]
    source = _source(certificate)
    found = differences(statement, expected)
    return too_little + [
        f"{path} is {given(stated)} in the statement, {source} gives {given(right)}"
        for path, stated, right in found
    ]


def _too_little_noise(evidence: Evidence, said: Said, noise_std: float) -> list[str]:
    """The stated noise itself must meet the stated epsilon; room for rounding is not for this."""
    spent = spent_epsilon(evidence, said, noise_std)
    if spent <= said.target.epsilon:
        return []
    return [f"the stated noise costs {spent!r}, more than the claim's {said.target.epsilon!r}"]


def differences(said: Any, found: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:  # noqa: ANN401 - JSON
    """Paths at which two JSON values differ by more than rounding."""
    if isinstance(said, Mapping) and isinstance(found, Mapping):
        for key in sorted(set(said) | set(found)):
            at = f"{path}.{key}" if path else str(key)
            if key not in said or key not in found:
                yield at, said.get(key, "absent"), found.get(key, "absent")
            else:
                yield from differences(said[key], found[key], at)
    elif isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        for index, (a, b) in enumerate(zip(said, found, strict=True)):
            yield from differences(a, b, f"{path}[{index}]")
    elif not _same(said, found):
        yield path, said, found


def _same(said: object, found: object) -> bool:
    if isinstance(said, bool) or isinstance(found, bool):
        return said is found
    if isinstance(said, int | float) and isinstance(found, int | float):
        return math.isclose(said, found, rel_tol=_RELATIVE, abs_tol=0.0)
    return type(said) is type(found) and said == found
