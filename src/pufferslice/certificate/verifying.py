# SPDX-License-Identifier: Apache-2.0
"""Recompute a certificate's claim from its evidence."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import attrs

from pufferslice.certificate.document import Certificate
from pufferslice.certificate.issuing import required_evidence
from pufferslice.certificate.signing import signature_problem
from pufferslice.certificate.statement import Said, statement_of
from pufferslice.errors import PuffersliceError

UNCHECKED: Final = {
    "noise.generator": "which generator a release will use",
    "noise.secure": "follows from the generator",
    "earlier_releases": "which releases came before",
    "scenario": "whether the declared secrets, query and priors describe the truth; only that they "
    "are those of the evidence",
}
"""Fields that the evidence cannot decide, and what about them stays open."""

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
    """Whether there was evidence to recompute from."""

    @property
    def holds(self) -> bool:
        """Whether everything that can be recomputed was, and agrees."""
        return not self.problems

    def __str__(self) -> str:
        if self.problems:
            verdict = "REFUTED" if self.has_evidence else "NOT VERIFIED"
            return f"{verdict}\n" + "\n".join(f"  - {problem}" for problem in self.problems)
        signed = "; the signature holds" if self.signed else ""
        open_points = "\n".join(f"  - {point}" for point in self.unchecked)
        return f"VERIFIED from the evidence{signed}. Cannot be checked here:\n{open_points}"


def verify(certificate: Certificate, *, public_key: bytes | None = None) -> Verification:
    """Recompute noise, cost, unsliced bound and views from the evidence and compare all fields.

    With `public_key` (PEM) the statement must carry a valid Ed25519 signature of that key.
    """
    problems = []
    if public_key is not None and (problem := signature_problem(certificate, public_key)):
        problems.append(problem)
    problems += _recomputed_problems(certificate)
    return Verification(
        problems=tuple(problems),
        unchecked=tuple(f"{field}: {why}" for field, why in UNCHECKED.items()),
        signed=public_key is not None and not problems,
        has_evidence=certificate.evidence is not None,
    )


def _recomputed_problems(certificate: Certificate) -> list[str]:
    statement = certificate.statement
    try:
        evidence = required_evidence(certificate)
        expected = statement_of(evidence, Said.read_off(statement))
    except PuffersliceError as error:
        return [str(error)]
    except (KeyError, TypeError, AttributeError) as error:
        return [f"the statement is malformed: {type(error).__name__} at {error}"]
    return [
        f"{path} is {said!r} in the statement, the evidence gives {found!r}"
        for path, said, found in differences(statement, expected)
    ]


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
