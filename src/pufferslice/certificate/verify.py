# SPDX-License-Identifier: Apache-2.0
"""Recompute a certificate from its evidence, and check the relations that must hold in it."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.text import given
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.issue import check_seen, required_evidence
from pufferslice.certificate.schema import check_shape
from pufferslice.certificate.signing import signature_problem
from pufferslice.certificate.statement import CertificateOptions, spent_epsilon, statement_of
from pufferslice.certificate.training import TrainingClaim, learning_statement
from pufferslice.errors import PuffersliceError, escaped
from pufferslice.queries.ranges import range_of
from pufferslice.scenario.priors import KINDS, LAWS, ONE_RELEASE, SOURCES
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity import GapTables, GaussianPairs, MatchingTables

_ROOM: Final = 1 - 2.0**-20
"""Room for rounding between two ways to compute one length."""
_COARSE: Final = 0.5
"""Tables are rounded up, each to its own digits; less than this share is no rounding."""


def broken_relations(evidence: Evidence) -> Iterator[str]:
    """What cannot be true of any scenario, in sentences; nothing for evidence that was issued."""
    yield from _in_description(evidence.scenario, evidence.slices.profile.dim)
    seen, full = evidence.slices.seen, evidence.full
    gaussian = {prior["kind"] for prior in evidence.scenario["priors"]} == {"gaussian"}
    if gaussian != isinstance(seen, GaussianPairs):
        yield "the priors are said to be of another kind than the evidence"
    sampled = {prior["kind"] for prior in evidence.scenario["priors"]} == {"sampled"}
    if full.seen is None and not (sampled and evidence.scenario["query"]["range"] is None):
        yield "the evidence of the whole output is missing, and these priors have it"
    if isinstance(seen, GapTables) and isinstance(full.seen, MatchingTables):
        gaps = seen.worst().max(axis=1)
        if full.from_range:
            yield from _in_range(evidence, full.seen)
        elif (full.seen.worst().min(axis=1) < gaps * _ROOM).any():
            yield "a coupling's largest distance is below a gap along a slice, which cannot be"
    if isinstance(seen, GapTables) and evidence.plain is not None:
        yield from _in_bands(evidence, seen, evidence.plain)


def _in_description(scenario: Mapping[str, Any], dim: int) -> Iterator[str]:
    distribution, secrets, query, priors = (
        scenario[key] for key in ("distribution", "secrets", "query", "priors")
    )
    pairs = [tuple(pair) for pair in scenario["pairs"]]
    names, scales = query["names"], query["scales"]
    distinct = {prior["name"] for prior in priors}
    clipped = [*scenario["clipped"]["all"], *scenario["clipped"]["some"]]
    rules = {
        f"the distribution must be one of {', '.join(LAWS)}": distribution in LAWS,
        f"one_release_is must be what distribution {distribution!r} says": (
            scenario["one_release_is"] == ONE_RELEASE.get(distribution)
        ),
        "there must be at least two secrets, all different": (
            1 < len(secrets) == len(set(secrets))
        ),
        "there must be pairs to protect, each once": 0 < len(pairs) == len(set(pairs)),
        "a pair must be two different values among the secrets": all(
            len(pair) == len(set(pair)) == 2 and set(pair) <= set(secrets) for pair in pairs
        ),
        "there must be priors, all of different names": 0 < len(priors) == len(distinct),
        f"a prior must be {', '.join(KINDS)}, from {', '.join(SOURCES)}": all(
            prior["source"] in SOURCES and prior["kind"] in KINDS for prior in priors
        ),
        "the query must have as many names and scales as the profile has dimensions": (
            len(set(names)) == len(names) == len(scales) == dim
        ),
        "the scales of a query must be greater than 0": all(scale > 0 for scale in scales),
        "rows_dropped must be at least 0": scenario["rows_dropped"] >= 0,
        "only secrets, each once, can be clipped, and only by a range": (
            len(clipped) == len(set(clipped))
            and set(clipped) <= set(secrets)
            and (not clipped or query["range"] is not None)
        ),
    }
    yield from (rule for rule, holds in rules.items() if not holds)


def _in_range(evidence: Evidence, full: MatchingTables) -> Iterator[str]:
    """A bound from a range is at least the diameter of the range that is stated."""
    scenario = evidence.scenario
    stated = range_of(scenario["query"]["range"] or scenario["counted_range"])
    if stated is None:
        yield "a bound from a range is used, but no range is stated"
        return
    diameter = stated.diameter(np.array(scenario["query"]["scales"], dtype=np.float64))
    if full.worst().min() < diameter * _ROOM:
        yield "the bound from the range is below the diameter of the stated range"


def _in_bands(evidence: Evidence, seen: GapTables, plain: GapTables) -> Iterator[str]:
    """Bands lie around the samples: on covered levels their gaps are at least the samples' own."""
    missing = evidence.slices.missing[:, None]
    least = seen.means() * (1 - missing) + missing * plain.worst()
    narrow = (least < plain.means() * _COARSE).any()
    if narrow or (not missing.any() and (seen.worst() < plain.worst() * _ROOM).any()):
        yield "the bands are narrower than what the samples themselves show"
    if evidence.beyond is not None:
        share = (evidence.beyond.totals / seen.totals)[:, None]
        low = seen.means() < evidence.beyond.means() * share * _COARSE
        if low.any() or (seen.worst() < evidence.beyond.worst() * _ROOM).any():
            yield "the gaps leave out what counts at the public range beyond the bands"


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

    Tables and costs are computed from the scenario's own distributions. The stated noise must meet
    the claim, and no other bound may be stated lower than it is found.
    """
    if _is_learning(certificate):
        return ["the certificate is about training runs; a scenario belongs to a release"]
    statement, evidence = certificate.statement, required_evidence(certificate)
    if statement["scenario"] != scenario.description():
        return ["the certificate was issued for another scenario: its description differs"]
    if evidence.confidential["distributions_digest"] != scenario.distributions_digest():
        return ["the certificate was issued for other distributions than this scenario has"]
    said, noise_std = CertificateOptions.read_off(statement), statement["noise"]["std"]
    try:
        fresh = Evidence.of(scenario, evidence.slices.profile, evidence.confidence, reuse=True)
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
            expected = learning_statement(TrainingClaim.read_off(statement))
            too_little: list[str] = []
        else:
            evidence = required_evidence(certificate)
            evidence.check()
            broken = next(broken_relations(evidence), None)
            if broken is not None:
                return [broken]
            said = CertificateOptions.read_off(statement)
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


def _too_little_noise(evidence: Evidence, said: CertificateOptions, noise_std: float) -> list[str]:
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
