# SPDX-License-Identifier: Apache-2.0
"""The whole audit of one static certificate: outputs, attacks, and a verdict on every claim."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

import attrs
import numpy as np

from pufferslice.audit.aggregates import Aggregation, JointMoment, Mean, SphereMean
from pufferslice.audit.divergence import (
    Claimed,
    Comparison,
    Lines,
    PilotRange,
    SplitOutputs,
    audit_lines,
    audit_slices,
    both_orders,
    check_in_reach,
)
from pufferslice.audit.inference import Inference, infer_secrets, mean_of
from pufferslice.audit.line_tests import DeltaTest, EpsilonTest, LineTest, RenyiTest
from pufferslice.audit.outputs import Outputs, check_outputs, check_scenario, draw_outputs
from pufferslice.audit.pilot_lines import WHITENED, pilot_lines
from pufferslice.audit.stated_noise import audit_noise
from pufferslice.audit.verdict import Verdict
from pufferslice.certificate import Certificate
from pufferslice.checks import check_between, check_count
from pufferslice.concentration import split
from pufferslice.errors import ArgumentError
from pufferslice.guarantee import ApproximateGuarantee, Claim, at_most, in_full
from pufferslice.histograms import BinnedLaw
from pufferslice.laws import SampledBinnedLaw
from pufferslice.noise import Noise, OperatingSystemNoise
from pufferslice.parallel import Progress, silent
from pufferslice.scenario import Scenario
from pufferslice.showing import escaped
from pufferslice.slicing import Profile, SampledSphere, check_profile

_SPHERE_CAP: Final = 8.0
"""Divergences along drawn directions count up to this many times the claim."""

_NOISE_PARTS: Final = 1000
"""Of so many parts of the doubt one is for the stated noise, whose test is tight for honest noise:
it would refute as often as it may, while bounds on divergences stay far below the truth."""

_WITHOUT_MEAN: Final = (BinnedLaw, SampledBinnedLaw)
_SHUFFLE: Final = 2**31
"""Keeps the shuffling of the pilot apart from the streams of the laws."""


@final
@attrs.frozen(kw_only=True)
class Audit:
    """What all attacks together say about a certificate.

    Guarantee: if everything that the certificate states holds, `refuted` is true with probability
    at most 1 - `confidence`. An audit never proves a claim.
    """

    certificate: str
    """Digest of the certificate."""
    confidence: float
    """Of all verdicts together."""
    n_outputs: int
    """Under each secret, the fewest."""
    verdicts: tuple[Verdict, ...]
    inferences: tuple[Inference, ...]
    """Attacks on the secret itself: numbers to read, which refute nothing by themselves."""
    unaudited: tuple[str, ...]
    """What the certificate states and no verdict is about, and why."""

    @property
    def refuted(self) -> bool:
        """Whether any claim is."""
        return any(verdict.refuted for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "certificate": self.certificate,
            "refuted": self.refuted,
            "confidence": self.confidence,
            "n_outputs": self.n_outputs,
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "inferences": [inference.to_json() for inference in self.inferences],
            "unaudited": list(self.unaudited),
        }

    def __str__(self) -> str:
        head = "REFUTED" if self.refuted else "NOT REFUTED"
        certificate = escaped(self.certificate[:16])
        lines = [
            f"{head} at confidence {self.confidence:g}, certificate {certificate}",
            "An audit can refute a claim; it never proves one.",
            "",
            *(str(verdict) for verdict in self.verdicts),
            *(f"NOT AUDITED: {escaped(text)}" for text in self.unaudited),
        ]
        if self.inferences:
            each = self.inferences[0].confidence
            alone = f"each interval alone has confidence {each:g}"
            lines += ["", f"Guessing the secret, where it succeeds best ({alone}):"]
            lines += [f"  {inference}" for inference in _best(self.inferences)]
        return "\n".join(lines)


def _best(inferences: Sequence[Inference]) -> list[Inference]:
    """For each attack and kind of prior, the pair or set of secrets with the largest advantage."""
    best: dict[tuple[str, str], Inference] = {}
    for inference in inferences:
        key = (inference.attack, inference.prior_kind)
        if key not in best or inference.advantage.value > best[key].advantage.value:
            best[key] = inference
    return list(best.values())


class _Question(NamedTuple):
    """One claim and the test that is made of it."""

    test: LineTest
    claimed: Claimed
    aggregation: Aggregation | None
    """None along the best single line."""


def audit_release(
    scenario: Scenario,
    profile: Profile,
    certificate: Certificate,
    *,
    n_outputs: int,
    confidence: float,
    seed: int,
    noise: Noise = OperatingSystemNoise(),  # noqa: B008 - it has no state
    progress: Progress = silent,
) -> Audit:
    """Draw fresh outputs as releases would, and try to refute what the certificate states.

    Guarantee: that of `Audit`. `seed` is that of the values drawn from the laws and of the pilot,
    never of the noise.
    """
    _check_profile(profile, certificate)
    outputs = draw_outputs(scenario, certificate, n_outputs, seed=seed, noise=noise)
    return audit_outputs(
        scenario,
        profile,
        certificate,
        outputs,
        confidence=confidence,
        seed=seed,
        progress=progress,
    )


def audit_outputs(
    scenario: Scenario,
    profile: Profile,
    certificate: Certificate,
    outputs: Outputs,
    *,
    confidence: float,
    seed: int,
    progress: Progress = silent,
) -> Audit:
    """As `audit_release`, on outputs that are at hand; see `supplied_outputs`.

    Needs: independent outputs of the mechanism that is to be audited.
    """
    check_between(0, 1, confidence=confidence)
    check_count(0, seed=seed)
    check_scenario(scenario, certificate)
    _check_profile(profile, certificate)
    check_outputs(scenario, certificate, outputs)
    questions, unaudited = _questions(certificate, profile)
    noise_std = certificate.noise_std
    n_questions = len(questions) + (noise_std > 0)
    noise_share = split(1 - confidence, _NOISE_PARTS) if noise_std > 0 else 0.0
    share = split(1 - confidence - noise_share, len(questions))
    parts = _split(scenario, outputs, seed)
    comparisons = [
        comparison
        for prior, secrets in parts.items()
        for comparison in both_orders(prior, secrets, scenario.pairs)
    ]
    sliced, lines = _slices(profile), _lines(scenario, comparisons)
    verdicts = []
    for done, (test, claimed, aggregation) in enumerate(questions):
        progress(done, n_questions)
        if aggregation is None:
            verdict = audit_lines(lines, test, claimed, confidence=1 - share)
        else:
            slices = (sliced, aggregation.spending(share / 2, len(comparisons)))
            verdict = audit_slices(comparisons, test, slices, claimed, confidence=1 - share)
        verdicts.append(verdict)
    along_one = questions[0].aggregation is None
    check_in_reach(verdicts, questions[0].test, 1 if along_one else len(sliced.names))
    if noise_std > 0:
        progress(len(questions), n_questions)
        verdicts.append(
            audit_noise(
                parts,
                _axes(scenario),
                noise_std=noise_std,
                center=scenario.query.center,
                confidence=1 - noise_share,
            )
        )
    progress(n_questions, n_questions)
    return Audit(
        certificate=certificate.digest,
        confidence=confidence,
        n_outputs=outputs.n_outputs,
        verdicts=tuple(verdicts),
        inferences=_inferences(scenario, certificate, outputs, (seed, confidence)),
        unaudited=tuple(unaudited),
    )


def _questions(certificate: Certificate, profile: Profile) -> tuple[list[_Question], list[str]]:
    """A test of everything that the certificate states, and what cannot be tested."""
    claim = certificate.guarantee
    questions, unaudited = [_main_question(claim, profile)], []
    unsliced = certificate.statement["unsliced"]
    if unsliced["epsilon"] is None:
        unaudited.append(f"the unsliced cost: the certificate states none ({unsliced['from']})")
    elif claim.is_sliced:
        order, epsilon = unsliced["order"], unsliced["epsilon"]
        words = f"the unsliced bound ({in_full(order)}, {at_most(epsilon)})-RPP"
        questions.append(
            _Question(RenyiTest(order=order), Claimed(words, "epsilon", epsilon), None)
        )
    questions += _view_questions(certificate, profile)
    if isinstance(profile, SampledSphere):
        unaudited.append("the views along slices of the sphere, which follow from the claim")
    return questions, unaudited


def _main_question(claim: Claim, profile: Profile) -> _Question:
    if isinstance(claim, ApproximateGuarantee):
        return _approximate_question(str(claim), claim, profile)
    test = RenyiTest(order=claim.order)
    claimed = Claimed(str(claim), "epsilon", claim.epsilon)
    if not claim.is_sliced:
        return _Question(test, claimed, None)
    if isinstance(profile, SampledSphere):
        cap = _SPHERE_CAP * claim.epsilon
        return _Question(test, claimed, SphereMean(n_directions=profile.n_directions, cap=cap))
    if claim.notion == "joint":
        return _Question(test, claimed, JointMoment(order=claim.order, weights=profile.weights))
    return _Question(test, claimed, Mean(weights=profile.weights))


def _approximate_question(words: str, claim: ApproximateGuarantee, profile: Profile) -> _Question:
    mean = Mean(weights=profile.weights)
    if claim.notion == "joint":
        test = DeltaTest(epsilon=claim.epsilon)
        return _Question(test, Claimed(words, "delta", claim.delta), mean)
    claimed = Claimed(words, "epsilon", claim.epsilon)
    return _Question(EpsilonTest(delta=claim.delta), claimed, mean)


def _view_questions(certificate: Certificate, profile: Profile) -> list[_Question]:
    """The smallest epsilon of every scope and delta; larger ones follow from it."""
    smallest: dict[tuple[str, float], float] = {}
    for view in certificate.statement["views"]:
        at = (view["scope"], view["delta"])
        smallest[at] = min(view["epsilon"], smallest.get(at, view["epsilon"]))
    questions = []
    for (scope, delta), epsilon in smallest.items():
        words = f"the view ({at_most(epsilon)}, {in_full(delta)}), {scope}"
        if scope == "unsliced":
            claimed = Claimed(words, "epsilon", epsilon)
            questions.append(_Question(EpsilonTest(delta=delta), claimed, None))
        elif epsilon > 0 and not isinstance(profile, SampledSphere):
            make = ApproximateGuarantee.joint if "joint" in scope else ApproximateGuarantee.average
            view = make(epsilon=epsilon, delta=delta)
            questions.append(_approximate_question(words, view, profile))
    return questions


def _split(scenario: Scenario, outputs: Outputs, seed: int) -> dict[str, dict[str, SplitOutputs]]:
    """By prior and secret."""
    rng = np.random.default_rng([seed, _SHUFFLE])
    return {
        prior.name: {
            secret: SplitOutputs.of(values, rng=rng)
            for secret, values in outputs.values[prior.name].items()
        }
        for prior in scenario.priors
    }


def _axes(scenario: Scenario) -> list[str]:
    return [f"axis {name}" for name in scenario.query.names]


def _slices(profile: Profile) -> Lines:
    names = [f"slice {index}" for index in range(profile.n_directions)]
    return Lines(profile.directions, names)


def _lines(scenario: Scenario, comparisons: Sequence[Comparison]) -> list[tuple[Comparison, Lines]]:
    """Axes, the difference of the means where it is known, and what the pilot recommends."""
    laws = {prior.name: prior.laws for prior in scenario.priors}
    found = []
    for comparison in comparisons:
        first, second = (laws[comparison.prior][secret] for secret in comparison.pair)
        directions, names = [*np.eye(scenario.dim)], _axes(scenario)
        if not isinstance(first, _WITHOUT_MEAN) and not isinstance(second, _WITHOUT_MEAN):
            shift = mean_of(first) - mean_of(second)
            length = float(np.linalg.norm(shift))
            if length > 0 and scenario.dim > 1:
                directions = [shift / length, *directions]
                names = ["the mean difference", *names]
        pilots = [part.pilot for part in comparison.outputs]
        recommended = pilot_lines(*pilots)
        lines = Lines(np.array([*directions, *recommended.values()]), [*names, *recommended])
        found.append((comparison, lines))
        if WHITENED in recommended:
            names = [f"{WHITENED}, and out of the range of {comparison.pair[1]!r}"]
            within = PilotRange.of(pilots[1])
            found.append((comparison, Lines(recommended[WHITENED][None], names, within)))
    return found


def _inferences(
    scenario: Scenario, certificate: Certificate, outputs: Outputs, said: tuple[int, float]
) -> tuple[Inference, ...]:
    """The attacks on the secret, where laws have values and there is noise to see through."""
    seed, confidence = said
    if not certificate.noise_std:
        return ()
    return tuple(
        inference
        for prior in scenario.priors
        if not any(isinstance(law, _WITHOUT_MEAN) for law in prior.laws.values())
        for inference in infer_secrets(
            outputs.values[prior.name],
            prior,
            certificate.noise_std,
            pairs=scenario.pairs,
            seed=seed,
            confidence=confidence,
        )
    )


def _check_profile(profile: Profile, certificate: Certificate) -> None:
    check_profile(profile, profile.dim if isinstance(profile, Profile) else 1)
    stated = certificate.statement.get("profile", {}).get("digest")
    if certificate.road == "static" and stated != profile.digest():
        msg = (
            "the certificate was issued for another slice profile; give the one that was "
            "certified, which lies in the evidence and in the scenario file"
        )
        raise ArgumentError(msg)
