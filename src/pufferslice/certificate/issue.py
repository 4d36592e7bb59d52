# SPDX-License-Identifier: Apache-2.0
"""Issue a certificate from a scenario, and ask what another noise, order or notion would cost."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from pufferslice._core.checks import check_above, check_between, check_one_of, is_a
from pufferslice._core.sampler import Noise, OperatingSystemNoise
from pufferslice._core.text import given
from pufferslice._core.threads import Progress, silent
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.release import (
    PERSON_DELTA,
    CertificateOptions,
    release_statement,
    unsliced_of,
)
from pufferslice.certificate.statement import UnslicedPart
from pufferslice.claims import Claim, Method
from pufferslice.claims.guarantee import RELEASE_NOTIONS, asked
from pufferslice.claims.views import DEFAULT_DELTAS, unique_deltas
from pufferslice.errors import (
    ArgumentError,
    CalibrationError,
    CertificateError,
    PuffersliceError,
    ScenarioError,
)
from pufferslice.noise.decision import NoiseOptions, decided_noise, wide_noise
from pufferslice.scenario.rows import RowDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.concentration import BandKind, samples_for_tail
from pufferslice.sensitivity.couplings import Effort, Recipe
from pufferslice.sensitivity.profiles import (
    AnyProfile,
    FiniteProfile,
    SampledSphere,
    WholeSphere,
    check_profile,
)
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.sensitivity import Confidence
from pufferslice.sensitivity.visibility import unseen_instances
from pufferslice.sensitivity.whitening import Shape

_SHARED: Final = ("distribution", "secret", "secrets", "pairs", "query")
_RELATIVE: Final = 1e-9
"""Relative tolerance for the last digits of another machine's exp and log."""
_SALTED_OR_CHOSEN: Final = ("evidence_digest", "noise.calibrated")
"""Fields not recomputed from a scenario: a salted digest, and who decided the noise."""
_OF_ROWS: Final = re.compile(r"unsliced\.(epsilon|from)|views.*")
"""Fields beside a claim of right guesses that rest on rows, and not on their moments alone."""
_LACKS_ROWS: Final = (
    "the claim rests on single rows, of which this scenario has moments only; verify with the "
    "table in memory"
)
_BOUND: Final = re.compile(r"spent|unsliced\.(epsilon|guess)|views\[\d+\]\.epsilon")


def certify_release(
    scenario: Scenario,
    guarantee: Claim,
    *,
    shape: object = None,
    guard: float | None = None,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    effort: Effort = "thorough",
    failure_probability: float | None = None,
    band: BandKind = "order_statistics",
    method: Method | None = None,
    deltas: Sequence[float] = DEFAULT_DELTAS,
    generator: Noise = OperatingSystemNoise(),  # noqa: B008 - it has no state
    noise_std: float | None = None,
    accuracy: Mapping[str, float] | None = None,
    coupling: str | None = None,
    person: tuple[float, float] | None = None,
    progress: Progress = silent,
) -> Certificate:
    """Find the noise for one release of the scenario's query, and state what it promises.

    A guarantee about the whole output is `Guarantee.unsliced`, `.epsilon_delta` or `.guess`. Its
    noise has a `shape`: `"fitted"` (default) to the secret, `"diagonal"`, `"isotropic"`, or a
    public covariance of your own, in scaled coordinates. `guard` is a public radius in scaled
    coordinates: shifts of the output up to it are hidden, too. `weights` say which coordinates
    should have less noise. `effort` is how long couplings are looked for: `"thorough"`, `"quick"`.

    A sliced guarantee names its slices, `Guarantee.joint(..., profile=...)`, and has isotropic
    noise. `method` belongs to it; without, the tight rule with the smallest envelope that applies.
    The `WholeSphere` takes no method: its cost is a closed form, and where there is none (see
    `pufferslice.claims.sliced`) it is refused.

    For sums of rows, `coupling` is how the rows of a change meet: `"independent"`, `"cells:NAME"`
    or `"transport:NAME"` by equal or near cells of a public label that the query names (`*` for all
    its conditions together), or `"transport"`; without it, the one of the first three kinds that
    needs the least noise. `person=(epsilon, delta)` asks for as much differential
    privacy for any one person as well; it needs moments from another table.

    `deltas` are those of the (epsilon, delta) views. `failure_probability` is required for sampled
    priors whose samples are used, and for the sphere as profile, and refused otherwise; `band`
    names how sampled distributions are bounded.
    `noise_std`, in scaled (with a shape, whitened) coordinates, certifies a noise of your own
    instead of the smallest one; it must meet the target. `accuracy` maps coordinates to the 95 %
    half-width that they need, in the user's units: the certificate then claims the least epsilon
    (or share of guesses) that reaches it, and at most that of `guarantee`.

    Guarantee: one release with the stated noise satisfies `guarantee` for the scenario's priors and
    pairs, except with probability `failure_probability` over the draws of sampled priors and
    directions.
    """
    wanted = NoiseOptions(
        shape=shape,
        guard=guard,
        weights=weights,
        noise_std=noise_std,
        accuracy=accuracy,
        effort=effort,
        coupling=coupling,
        person=person,
    )
    evidence, options = decided_release(
        scenario,
        guarantee,
        wanted,
        method=method,
        failure_probability=failure_probability,
        band=band,
        progress=progress,
    )
    options = attrs.evolve(
        options,
        deltas=unique_deltas(deltas),
        generator=generator.name,
    )
    try:
        statement = release_statement(evidence, options)
    except CertificateError:
        raise CalibrationError(
            "the noise or the scales are too large for a certificate; use other units"
        ) from None
    beside = evidence.full.shape if statement.noise.shape.is_beside else None
    return Certificate(statement=statement, evidence=evidence, noise=beside)


def decided_release(
    scenario: Scenario,
    guarantee: Claim,
    wanted: NoiseOptions,
    *,
    method: Method | None = None,
    failure_probability: float | None = None,
    band: BandKind = "order_statistics",
    progress: Progress = silent,
) -> tuple[Evidence, CertificateOptions]:
    """Decide the noise of a release as `certify_release` does; nothing is stated yet."""
    target = _checked_claim(scenario, guarantee, method)
    profile = target.profile
    if not target.is_sliced and scenario.prior_kind == "sampled" and scenario.dim == 1:
        profile = FiniteProfile.axes(dim=1)
    confidence = _confidence(
        scenario, profile, target, failure_probability=failure_probability, band=band
    )

    def compared(whitening: Shape | None, recipe: Recipe) -> Evidence:
        evidence = Evidence.of(
            scenario,
            None if isinstance(profile, WholeSphere) else profile,
            confidence,
            recipe=recipe,
            shape=whitening,
            progress=progress,
            reuse=True,
        )
        if target.is_sliced:
            check_visible(evidence, scenario)
            _check_tails(evidence, target)
        return evidence

    decision = decided_noise(scenario, target, wanted, compared)
    return decision.compared, CertificateOptions(
        target=decision.claim,
        noise_std=decision.noise_std,
        shape=decision.fit.kind,
        shape_gap=decision.fit.gap,
        person_delta=PERSON_DELTA if wanted.person is None else float(wanted.person[1]),
    )


def _checked_claim(scenario: Scenario, claim: Claim, method: Method | None) -> Claim:
    """Attach the slices' method to the claim; raise if a release of the scenario cannot make it."""
    if not is_a(claim, Claim):
        raise ArgumentError(
            f"guarantee must be a claim such as Guarantee.guess(at_most=0.6), got {given(claim)}"
        )
    check_one_of(RELEASE_NOTIONS, notion=claim.notion)
    if not claim.bound > 0:
        raise ArgumentError(
            f"the epsilon of a claim must be greater than 0, got {claim}. For total variation "
            "of at most delta, claim Guarantee.guess(at_most=(1 + delta) / 2)"
        )
    _check_method(scenario, claim, method)
    if not claim.is_sliced:
        return claim
    if claim.profile is None:
        raise ArgumentError(
            f"{claim} is a claim along slices; name them with profile=FiniteProfile.uniform(...)"
        )
    check_profile(claim.profile, scenario.dim)
    if scenario.prior_kind == "rows":
        raise ScenarioError(
            "sums of rows are certified as a whole, not along slices; claim "
            "Guarantee.guess(at_most=...)"
        )
    if method is None and not isinstance(claim.profile, WholeSphere):
        gaussian = scenario.prior_kind == "gaussian"
        method = Method(rule="tight", envelope="exact" if gaussian else "transport")
    return claim.by(method)


def spent(
    certificate: Certificate,
    *,
    noise_std: float | None = None,
    notion: str | None = None,
    order: float | None = None,
) -> Claim:
    """Compute what noise costs by the certificate's evidence; omitted arguments are as certified.

    `noise_std` is in scaled coordinates. The answer is a number, not a certificate; from samples
    it holds, for a noise, notion and order chosen without looking at it, except with the
    certificate's failure probability.
    """
    evidence = required_evidence(certificate)
    claim = asked(certificate.guarantee, notion=notion, order=order)
    check_one_of(RELEASE_NOTIONS, notion=claim.notion)
    if evidence.are_equal:
        raise CalibrationError("the distributions are equal: every noise, even none, costs nothing")
    stated = CertificateOptions.read_off(certificate.released)
    if claim.is_sliced and evidence.slices is None and not stated.target.is_sliced:
        raise ArgumentError(
            "the certificate is about the whole output, and its evidence has no slices; ask about "
            "notion 'unsliced', or certify a claim along slices"
        )
    std = certificate.noise_std if noise_std is None else wide_noise(noise_std)
    cost = claim.by(stated.target.method).spent(evidence, std)
    try:
        return claim.with_bound(cost)
    except ArgumentError:  # infinite, or every guess
        raise CalibrationError(
            f"noise {std:g} gives no bound like {claim}; ask about another noise, order or delta"
        ) from None


def spent_in_full(
    certificate: Certificate, *, noise_std: float | None = None, order: float | None = None
) -> UnslicedPart:
    """Compute the cost in all dimensions, and the right guesses, by the certificate's evidence.

    Both numbers are as in `unsliced` of a statement; None where nothing bounds one.
    """
    evidence = required_evidence(certificate)
    std = certificate.noise_std if noise_std is None else wide_noise(noise_std)
    order = certificate.released.unsliced.order if order is None else order
    check_above(1, order=order)
    return unsliced_of(evidence, float(order), std)


def under_scenario(certificate: Certificate, scenario: Scenario) -> Certificate:
    """Pair the certificate's noise and profile with another scenario's evidence, for `spent`.

    The result is not a certificate of that scenario: its statement is not the evidence's, and
    `verify` refutes it.
    """
    certified = required_evidence(certificate)
    stated, other = certificate.released.scenario.to_json(), scenario.description()
    differ = [key for key in _SHARED if stated[key] != other[key]]
    if differ:
        raise ArgumentError(
            f"the other scenario must have the certificate's {', '.join(_SHARED)}; it differs in "
            f"{', '.join(differ)}. Only priors may differ: noise in other units, for another query "
            "or between other secrets costs something else"
        )
    sampled = {prior["kind"] for prior in stated["priors"]} == {"sampled"}
    if (scenario.prior_kind == "sampled") != sampled:
        raise ArgumentError(
            "the other scenario must be known like the certified one, both by samples or neither; "
            f"this one has {scenario.prior_kind} priors"
        )
    evidence = certified.of_scenario(scenario)
    statement = certificate.released.model_copy(update={"evidence_digest": evidence.digest()})
    return attrs.evolve(certificate, statement=statement, evidence=evidence, signature=None)


def required_evidence(certificate: Certificate) -> Evidence:
    """Return the evidence; raise if it is absent or does not match the digest in the statement."""
    if certificate.evidence is None:
        raise CertificateError(
            "statement only: the evidence is not available. Put the .evidence.npz file beside the "
            "certificate; whoever issued it has it"
        )
    if not isinstance(certificate.evidence, Evidence):
        raise CertificateError(
            "this belongs to certificates of a release, and this one is a budget"
        )
    if certificate.evidence.digest() != certificate.released.evidence_digest:
        raise CertificateError(
            "the evidence does not belong to this statement: its digest differs. Use the "
            ".evidence.npz file that was written with it"
        )
    return certificate.evidence


def _confidence(
    scenario: Scenario,
    profile: AnyProfile | None,
    target: Claim,
    *,
    failure_probability: float | None,
    band: BandKind,
) -> Confidence | None:
    """Build the confidence; refuse a `failure_probability` that is missing or not needed."""
    sampled, on_sphere = scenario.prior_kind == "sampled", isinstance(profile, SampledSphere)
    in_closed_form = isinstance(profile, WholeSphere)
    in_delta = target.allows_tails
    if sampled and (in_closed_form or not target.is_sliced):
        if scenario.query.range is None and not (in_delta and scenario.dim == 1):
            raise ScenarioError(
                "the whole output cannot be bounded from samples without a public range: beyond "
                "the samples anything could lie. Give the query one with "
                "query.with_range(Box(low, high)), to which it is then clipped; or claim along "
                "the slices of a FiniteProfile"
            )
        sampled = scenario.dim == 1  # otherwise the range alone bounds it
    if (on_sphere or in_closed_form) and in_delta:
        raise ArgumentError(
            f"the sphere as profile goes with average and joint Rényi claims, not with {target}; "
            "use a FiniteProfile"
        )
    if on_sphere and scenario.prior_kind == "gaussian":
        raise ScenarioError(
            "the sphere as profile needs a public range, which Gaussian priors do not have; use "
            "a FiniteProfile"
        )
    if not (sampled or on_sphere):
        if failure_probability is None:
            return None
        raise ArgumentError(
            f"failure_probability {failure_probability!r} was given, but nothing can fail: the "
            "priors are exact and no directions are drawn, or the public range alone bounds the "
            "whole output. Leave it out, or declare the priors sampled with "
            "scenario.with_sampled_priors()"
        )
    if failure_probability is None:
        what = "sampled priors" if sampled else "the sphere as profile"
        raise ArgumentError(
            f"{what} need failure_probability, the probability that the claim does not hold"
        )
    if sampled and not in_delta and scenario.query.range is None:
        raise ScenarioError(
            "a Rényi claim cannot be certified from samples without a public range: beyond the "
            "samples anything could lie. Give the query one with query.with_range(Box(low, high)), "
            "to which it is then clipped; or claim sliced (epsilon, delta), as Guarantee.joint("
            "epsilon=..., delta=...), which puts the tails into delta"
        )
    check_between(0, 1, failure_probability=failure_probability)
    # The tails go into a delta along slices always, else where no range bounds them.
    beyond = in_delta and (target.is_sliced or scenario.query.range is None)
    return Confidence(
        failure_probability=float(failure_probability),
        band=band if sampled else None,
        tails=("in_delta" if beyond else "at_range") if sampled else None,
        on_sphere=on_sphere,
    )


def _check_method(scenario: Scenario, target: Claim, method: Method | None) -> None:
    if method is not None and not target.is_sliced:
        raise ArgumentError(
            "a method (rule, envelope) is about slices; a claim about the whole output is "
            "calibrated on couplings. Leave it out, or claim along slices"
        )
    if method is not None and isinstance(target.profile, WholeSphere):
        raise ArgumentError(
            "a method (rule, envelope) is about single slices; the whole sphere has a closed form. "
            "Leave it out"
        )
    if not (target.is_sliced and target.allows_tails):
        return
    if scenario.prior_kind == "gaussian":
        raise ArgumentError(
            "an (epsilon, delta) claim is calibrated on gaps, which Gaussian priors do not have; "
            "certify a Rényi claim and read its (epsilon, delta) views"
        )
    if method is not None and method.rule == "closed_form":
        raise ArgumentError("rule 'closed_form' is a formula for Rényi claims; use rule 'tight'")


def _check_tails(evidence: Evidence, target: Claim) -> None:
    """Raise, with the number of samples that would do, unless the tails fit into delta."""
    slices, confidence = evidence.slices, evidence.confidence
    if slices is None or confidence is None or confidence.band is None:
        return
    if target.hockey_stick is None or slices.missing.max() < target.hockey_stick[1]:
        return
    delta = target.hockey_stick[1]
    share = confidence.band_probability(slices.profile.n_directions)
    needed = samples_for_tail(delta / 2, share, confidence.band)
    raise CalibrationError(
        f"too few samples: the bands leave out a mass of {float(slices.missing.max()):.3g}, which "
        f"must be below delta {delta:g}. About {needed} samples of each distribution leave half of "
        "delta to the noise; or claim a larger delta"
    )


def check_visible(evidence: Evidence, scenario: Scenario) -> None:
    """Refuse a profile that gives almost no weight to a difference between distributions.

    The whole sphere shows every difference; its evidence has no slices.
    """
    if evidence.slices is None:
        return
    blind = unseen_instances(scenario, evidence.full, evidence.slices)
    if blind.any():
        raise CalibrationError(
            "the profile does not see the difference between the distributions of "
            f"{int(blind.sum())} of {len(blind)} (prior, pair) instances, which do differ: no "
            "slice of some weight shows a fair part of it. The noise would not hide it from "
            "anyone who looks in another direction. Use more, or other, directions, or equal "
            "weights"
        )


def scenario_problems(
    certificate: Certificate, scenario: Scenario, progress: Progress = silent
) -> list[str]:
    """List what does not hold for this scenario, whatever the evidence says.

    Tables and costs are computed from the scenario's own distributions. The stated noise must meet
    the claim, and every other stated bound must be at least the recomputed one. Moments of rows are
    compared with those of the evidence, which are raised by more than the order of sums can change.
    """
    if certificate.workflow == "training":
        return ["the certificate is about training runs; a scenario belongs to a release"]
    statement, evidence = certificate.released, required_evidence(certificate)
    if statement.scenario.to_json() != scenario.description():
        return ["the certificate was issued for another scenario: its description differs"]
    if certificate.shape != evidence.full.shape:
        return ["the evidence is about another shape of noise than the statement"]
    options, noise_std = CertificateOptions.read_off(statement), statement.noise.std
    lacks_rows = _rests_on_rows(evidence, scenario)
    try:
        if not evidence.is_of(scenario, progress):
            return ["the certificate was issued for other distributions than this scenario has"]
        fresh = evidence.of_scenario(scenario, progress=progress, reuse=True)
        if scenario.prior_kind == "rows":  # its moments allow for those of this scenario
            full = evidence.full
            if lacks_rows and isinstance(full.differences, RowDifference):
                full = attrs.evolve(full, differences=full.differences.without_layers())
            fresh = attrs.evolve(fresh, full=full)
        if options.target.is_sliced:
            check_visible(fresh, scenario)
        if problems := too_little_noise(fresh, options, noise_std):
            return [_LACKS_ROWS] if lacks_rows else problems
        expected = release_statement(fresh, attrs.evolve(options, noise_std=noise_std))
    except PuffersliceError as error:
        return [str(error)]
    is_apart = leaves_rows_unchecked(certificate, scenario)
    return [
        f"{path} is {given(stated)} in the statement, the data give {given(right)}"
        for path, stated, right in differences(statement.to_json(), expected.to_json())
        if path not in _SALTED_OR_CHOSEN
        and not _is_safe(path, stated, right)
        and not (is_apart and _OF_ROWS.fullmatch(path))
    ]


def leaves_rows_unchecked(certificate: Certificate, scenario: Scenario) -> bool:
    """Whether epsilons beside a claim rest on single rows, of which a scenario has moments only.

    `scenario_problems` does not recompute them: whoever relies on it says so, or refuses.
    """
    stated = certificate.released
    return (
        stated.guarantee.kind in {"guess", "information"}
        and (stated.unsliced.epsilon is not None or bool(stated.views))
        and _rests_on_rows(required_evidence(certificate), scenario)
    )


def _rests_on_rows(evidence: Evidence, scenario: Scenario) -> bool:
    """Whether bounds were computed from single rows, of which a scenario has moments only."""
    difference = evidence.full.differences
    return (
        isinstance(difference, RowDifference)
        and len(difference.layers) > 0
        and any(
            isinstance(each, RowDistribution) and each.rows is None
            for prior in scenario.priors
            for each in prior.distributions.values()
        )
    )


def _is_safe(path: str, stated: object, recomputed: object) -> bool:
    """Return whether a bound is stated higher than recomputed: couplings may be better now."""
    numbers = isinstance(stated, int | float) and isinstance(recomputed, int | float)
    return bool(numbers and _BOUND.fullmatch(path) and stated >= recomputed)  # type: ignore[operator]


def too_little_noise(
    evidence: Evidence, options: CertificateOptions, noise_std: float
) -> list[str]:
    """Check that the stated noise meets the stated epsilon, without any room for rounding."""
    spent = options.target.spent(evidence, noise_std)
    if spent <= options.target.bound:
        return []
    return [f"the stated noise costs {spent!r}, more than the claim's {options.target.bound!r}"]


def differences(stated: Any, right: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:  # JSON
    """List the paths at which two JSON values differ by more than rounding."""
    if isinstance(stated, Mapping) and isinstance(right, Mapping):
        for key in sorted(set(stated) | set(right)):
            at = f"{path}.{key}" if path else str(key)
            if key not in stated or key not in right:
                yield at, stated.get(key, "absent"), right.get(key, "absent")
            else:
                yield from differences(stated[key], right[key], at)
    elif isinstance(stated, list) and isinstance(right, list) and len(stated) == len(right):
        for index, (a, b) in enumerate(zip(stated, right, strict=True)):
            yield from differences(a, b, f"{path}[{index}]")
    elif isinstance(stated, bool) or isinstance(right, bool):
        if stated is not right:
            yield path, stated, right
    elif isinstance(stated, int | float) and isinstance(right, int | float):
        room = 0.0 if isinstance(stated, int) and isinstance(right, int) else _RELATIVE
        if not math.isclose(stated, right, rel_tol=room, abs_tol=0.0):
            yield path, stated, right
    elif type(stated) is not type(right) or stated != right:
        yield path, stated, right
