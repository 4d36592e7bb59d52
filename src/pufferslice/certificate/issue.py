# SPDX-License-Identifier: Apache-2.0
"""Issue a certificate from a scenario, and ask what another noise, order or notion would cost."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above, check_between, check_one_of, is_a
from pufferslice._core.search import LARGEST
from pufferslice._core.text import given, listed
from pufferslice._core.threads import Progress, silent
from pufferslice.calibration.calibrate import Method
from pufferslice.calibration.epsilon_delta import DEFAULT_DELTAS, unique_deltas
from pufferslice.calibration.fit import FITTED, fit_shape
from pufferslice.calibration.guarantee import (
    RELEASE_NOTIONS,
    ApproximateGuarantee,
    Claim,
    Guarantee,
    GuessGuarantee,
    at_most,
)
from pufferslice.calibration.noise import Noise, OperatingSystemNoise
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.statement import (
    CertificateOptions,
    calibrated_noise,
    guard_radius,
    noise_stds,
    release_statement,
    spent_on,
    unsliced_of,
    unsliced_order,
)
from pufferslice.certificate.wording import INTERVAL_STDS
from pufferslice.errors import ArgumentError, CalibrationError, CertificateError, ScenarioError
from pufferslice.queries import Query
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.concentration import BandKind, samples_for_tail
from pufferslice.sensitivity.couplings import Effort, Recipe
from pufferslice.sensitivity.exact import projection_errors
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.profiles import (
    AnyProfile,
    FiniteProfile,
    SampledSphere,
    WholeSphere,
    check_profile,
)
from pufferslice.sensitivity.renyi import moment_rate
from pufferslice.sensitivity.sensitivity import Confidence, distribution_pairs
from pufferslice.sensitivity.tables import MatchingTables

_LEAST_WEIGHT_SHARE: Final = 2.0**-6
"""Weight of a coordinate without a wanted accuracy, as a share of the largest weight."""
_LEAST_CLAIM_SHARE: Final = 2.0**-10
"""Smallest claim for a wanted accuracy, as a share of the most that it may cost."""
_GUARD_ROOM: Final = 1 + 2.0**-29
_FIRST_RECIPE: Final = Recipe(effort="quick")
"""To learn roughly how much noise there will be."""

_SHARED: Final = ("distribution", "secret", "secrets", "pairs", "query")
_BLIND: Final = 2.0**-40
"""A slice shows a difference if distributions differ along it by this share of their distance."""
_LEAST_SHARE: Final = 2.0**-6
"""It shows a difference of means if it shows this share of what the best of d axes shows."""
_LEAST_WEIGHT: Final = 0.25
"""Slices that show a difference have at least this share of the weight of one equal slice."""
_DIGEST: Final = re.compile("[0-9a-f]{64}")


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
    noise: Noise = OperatingSystemNoise(),  # noqa: B008 - it has no state
    noise_std: float | None = None,
    accuracy: Mapping[str, float] | None = None,
    total: float | None = None,
    earlier_releases: Sequence[str] = (),
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
    `pufferslice.calibration.sphere`) it is refused.

    `deltas` are those of the (epsilon, delta) views. `earlier_releases` names what a ledger already
    holds. `failure_probability` is required for sampled priors whose samples are used, and for the
    sphere as profile, and refused otherwise; `band` names how sampled distributions are bounded.
    `noise_std`, in scaled (with a shape, whitened) coordinates, certifies a noise of your own
    instead of the smallest one; it must meet the target. `accuracy` maps coordinates to the 95 %
    half-width that they need, in the user's units: the certificate then claims the least epsilon
    (or share of guesses) that reaches it, and at most that of `guarantee`. `total` fixes, before
    the first of several releases of data that the secret determines, the epsilon of all of them.

    Guarantee: one release with the stated noise satisfies `guarantee` for the scenario's priors and
    pairs, except with probability `failure_probability` over the draws of sampled priors and
    directions.
    """
    from pufferslice.certificate.schema import check_statement  # noqa: PLC0415 - pydantic

    target = guarantee
    if not is_a(target, Claim):
        raise ArgumentError(
            f"guarantee must be a claim such as Guarantee.guess(at_most=0.6), got {given(target)}"
        )
    check_one_of((*RELEASE_NOTIONS, "guess"), notion=target.notion)
    if not target.bound > 0:
        raise ArgumentError(
            f"the epsilon of a claim must be greater than 0, got {target}. For total variation "
            "of at most delta, claim Guarantee.guess(at_most=(1 + delta) / 2)"
        )
    check_one_of(get_args(Effort), effort=effort)
    is_ours = shape is None or (is_a(shape, str) and shape in FITTED)
    profile: AnyProfile | None
    if target.is_sliced:
        profile = target.profile
        if profile is None:
            raise ArgumentError(
                f"{target} is a claim along slices; name them with "
                "profile=FiniteProfile.uniform(...)"
            )
        check_profile(profile, scenario.dim)
        is_isotropic = shape is None or (is_a(shape, str) and shape == "isotropic")
        if guard is not None or weights is not None or not is_isotropic:
            raise ArgumentError(
                "a claim along slices has isotropic noise: noise with another shape would vanish "
                "where no slice looks. Leave shape, guard and weights out, or claim the whole "
                "output with Guarantee.unsliced(...)"
            )
    else:
        on_line = scenario.prior_kind == "sampled" and scenario.dim == 1
        profile = FiniteProfile.axes(dim=1) if on_line else None
    if scenario.prior_kind == "rows" and target.is_sliced:
        raise ScenarioError(
            "sums of rows are certified as a whole, not along slices; claim "
            "Guarantee.guess(at_most=...)"
        )
    confidence = _confidence(
        scenario, profile, target, failure_probability=failure_probability, band=band
    )
    deltas = unique_deltas(deltas)
    earlier = tuple(earlier_releases)
    digests = all(is_a(digest, str) and _DIGEST.fullmatch(digest) for digest in earlier)
    if not digests or len(set(earlier)) != len(earlier):
        raise ArgumentError(
            "earlier_releases must list digests of certificates, each once; use ledger.releases()"
        )
    _check_method(scenario, target, method)
    along = None if isinstance(profile, WholeSphere) else profile
    query, widths = scenario.query, None
    if noise_std is not None:
        noise_std = _wide_noise(noise_std)
        if accuracy is not None:
            raise ArgumentError("give noise_std or accuracy, not both: accuracy decides the noise")
    if accuracy is not None:
        widths = _widths(query, accuracy)
    if total is not None:
        check_above(0, total=total)
    if target.is_sliced and along is not None and method is None:
        gaussian = scenario.prior_kind == "gaussian"
        method = Method(rule="tight", envelope="exact" if gaussian else "transport")
    options = CertificateOptions(
        target=target,
        method=method,
        deltas=deltas,
        generator=noise.name,
        earlier_releases=earlier,
        noise_std=noise_std,
        total=None if total is None else float(total),
    )
    fitted = least_std = None
    if not target.is_sliced:
        if widths is not None and weights is None and is_ours:
            weights = _weights_of(query, widths)
        fit = fit_shape(
            scenario,
            target,
            shape="fitted" if shape is None else shape,
            guard=guard,
            weights=weights,
            effort=effort,
        )
        fitted, options = fit.shape, attrs.evolve(options, shape=fit.kind, shape_gap=fit.gap)
        if fit.noise_std is not None:
            least_std = fit.noise_std * _GUARD_ROOM
    evidence = Evidence.of(
        scenario, along, confidence, recipe=_FIRST_RECIPE, shape=fitted, progress=progress
    )
    if target.is_sliced:
        check_visible(evidence, scenario)
        if isinstance(target, ApproximateGuarantee):
            _check_tails(evidence, target)
    if widths is not None and not evidence.are_equal:
        stds = noise_stds(evidence.full, 1.0) * query.scales * INTERVAL_STDS
        options = attrs.evolve(options, noise_std=float((widths / stds).min()))
    if effort == "thorough" and evidence.full.recipe is not None and not evidence.are_equal:
        # Couplings for the noise that the claim needs, once it is roughly known.
        recipe = _recipe(target, calibrated_noise(evidence, options), effort)
        evidence = evidence.of_scenario(scenario, recipe=recipe, progress=progress, reuse=True)
    if widths is not None and options.noise_std is not None:
        cost = spent_on(evidence, options, options.noise_std)
        if not cost <= target.bound:
            raise CalibrationError(
                f"this accuracy costs {at_most(cost)}, more than the {target.bound:g} of "
                f"{target}; accept less accuracy, or claim more"
            )
        # An (epsilon, delta) claim may cost nothing, but must have a positive epsilon.
        least = max(float(np.nextafter(cost, np.inf)), target.bound * _LEAST_CLAIM_SHARE)
        options = attrs.evolve(options, target=target.with_bound(min(least, target.bound)))
    is_chosen = options.noise_std is not None
    if guard is not None and not evidence.are_equal:
        # The noise that the claim needs may be less than the guard needs.
        least = guard / guard_radius(evidence.full, options.target, 1.0) * _GUARD_ROOM
        if calibrated_noise(evidence, options) < least:
            if is_chosen:
                raise CalibrationError(
                    f"this noise hides shifts of less than guard {guard:g} only; use a smaller "
                    "guard, or more noise (less accuracy)"
                )
            options = attrs.evolve(options, noise_std=least)
    if least_std is not None and calibrated_noise(evidence, options) < least_std:
        if is_chosen:
            raise CalibrationError(
                "this noise does not hide one row; use a noise_std of at least "
                f"{least_std:.6g}, or less accuracy"
            )
        options = attrs.evolve(options, noise_std=least_std)
    statement = release_statement(evidence, options)
    try:
        check_statement(statement)
    except CertificateError:
        raise CalibrationError(
            "the noise or the scales are too large for a certificate; use other units"
        ) from None
    return Certificate(statement=statement, evidence=evidence)


def _widths(query: Query, accuracy: Mapping[str, float]) -> Floats:
    """The half-width that each coordinate may have; infinite for those that are not named."""
    unknown = not is_a(accuracy, Mapping) or set(accuracy) - set(query.names)
    if unknown or not accuracy:
        raise ArgumentError(
            f"accuracy must map coordinates of the query to half-widths: {listed(query.names)}"
        )
    for name, width in accuracy.items():
        check_above(0, **{f"accuracy[{name!r}]": width})
    return np.array([float(accuracy.get(name, math.inf)) for name in query.names])


def _weights_of(query: Query, widths: Floats) -> list[float]:
    """Weights of coordinates that need these half-widths; a small one for those without any."""
    weights = (query.scales / widths) ** 2
    return np.maximum(weights, weights.max() * _LEAST_WEIGHT_SHARE).tolist()  # type: ignore[no-any-return]


def _recipe(target: Claim, noise_std: float, effort: Effort) -> Recipe:
    """Couplings for the cost of the claim itself; sliced claims take the Rényi cost."""
    if isinstance(target, GuessGuarantee):
        return Recipe(effort=effort, cost="guess", noise_std=noise_std)
    if isinstance(target, ApproximateGuarantee) and not target.is_sliced:
        return Recipe(effort=effort, cost="delta", epsilon=target.epsilon, noise_std=noise_std)
    rate = moment_rate(unsliced_order(target), noise_std)
    return Recipe(effort=effort, cost="renyi", rate=rate, noise_std=noise_std)


def spent(
    certificate: Certificate,
    *,
    noise_std: float | None = None,
    notion: str | None = None,
    order: float | None = None,
) -> Claim:
    """What noise costs by the certificate's evidence; arguments left out are as certified.

    `noise_std` is in scaled coordinates. The answer is a number, not a certificate; from samples
    it holds, for a noise, notion and order chosen without looking at it, except with the
    certificate's failure probability.
    """
    evidence = required_evidence(certificate)
    claim = certificate.guarantee
    if isinstance(claim, Guarantee):
        claim = Guarantee(
            notion=claim.notion if notion is None else notion,  # type: ignore[arg-type]
            order=claim.order if order is None else order,
            epsilon=claim.epsilon,
        )
    elif order is not None:
        raise ArgumentError(f"{claim} has no order; leave it out, or certify a Rényi claim")
    elif isinstance(claim, ApproximateGuarantee) and notion is not None:
        claim = attrs.evolve(claim, notion=notion)  # type: ignore[arg-type]
    elif notion not in {None, claim.notion}:
        raise ArgumentError(
            f"{claim} has no notion {notion!r}; leave it out, or certify a claim that has"
        )
    check_one_of((*RELEASE_NOTIONS, "guess"), notion=claim.notion)
    if evidence.are_equal:
        raise CalibrationError("the distributions are equal: every noise, even none, costs nothing")
    stated = CertificateOptions.read_off(certificate.statement)
    if claim.is_sliced and evidence.slices is None and not stated.target.is_sliced:
        raise ArgumentError(
            "the certificate is about the whole output, and its evidence has no slices; ask about "
            "notion 'unsliced', or certify a claim along slices"
        )
    std = certificate.noise_std if noise_std is None else _wide_noise(noise_std)
    options = attrs.evolve(
        stated, target=claim, method=stated.method if claim.is_sliced else None, noise_std=None
    )
    cost = spent_on(evidence, options, std)
    try:
        return claim.with_bound(cost)
    except ArgumentError:  # infinite, or every guess
        raise CalibrationError(
            f"noise {std:g} gives no bound like {claim}; ask about another noise, order or delta"
        ) from None


def spent_in_full(
    certificate: Certificate, *, noise_std: float | None = None, order: float | None = None
) -> dict[str, Any]:
    """What noise costs in all dimensions by the certificate's evidence, and the right guesses.

    As `unsliced` in a statement: `order`, `epsilon`, `from` and `guess`; None where nothing bounds
    a number.
    """
    evidence = required_evidence(certificate)
    std = certificate.noise_std if noise_std is None else _wide_noise(noise_std)
    order = certificate.statement["unsliced"]["order"] if order is None else order
    check_above(1, order=order)
    return unsliced_of(evidence, float(order), std)


def _wide_noise(noise_std: float) -> float:
    """As a float of 64 bits: numpy's narrow ones would round a cost, down as well as up."""
    std = float(noise_std) if is_a(noise_std, np.floating) else noise_std
    check_between(0, LARGEST, noise_std=std)
    return float(std)


def under_scenario(certificate: Certificate, scenario: Scenario) -> Certificate:
    """The certificate's noise and profile with the evidence of another scenario, for `spent`.

    The result is not a certificate of that scenario: its statement is not the evidence's, and
    `verify` refutes it.
    """
    certified = required_evidence(certificate)
    stated, other = certificate.statement["scenario"], scenario.description()
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
    statement = dict(certificate.statement) | {"evidence_digest": evidence.digest()}
    return Certificate(statement=statement, evidence=evidence)


def required_evidence(certificate: Certificate) -> Evidence:
    """The evidence; raise if it is absent or its digest is not the statement's."""
    if certificate.evidence is None:
        raise CertificateError(
            "statement only: the evidence is not available. Put the .evidence.npz file beside the "
            "certificate; whoever issued it has it"
        )
    if certificate.evidence.digest() != certificate.statement["evidence_digest"]:
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
    """How the claim may fail; raise unless `failure_probability` is given exactly where it can."""
    sampled, on_sphere = scenario.prior_kind == "sampled", isinstance(profile, SampledSphere)
    in_closed_form = isinstance(profile, WholeSphere)
    # A claim in which a rare output may reveal the secret.
    in_delta = not isinstance(target, Guarantee)
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
            "to which it is then clipped; or claim sliced (epsilon, delta) with "
            "ApproximateGuarantee, in a file delta instead of order, which puts the tails into it"
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
    if not isinstance(target, ApproximateGuarantee) or not target.is_sliced:
        return
    if scenario.prior_kind == "gaussian":
        raise ArgumentError(
            "an (epsilon, delta) claim is calibrated on gaps, which Gaussian priors do not have; "
            "certify a Rényi claim and read its (epsilon, delta) views"
        )
    if method is not None and method.rule == "closed_form":
        raise ArgumentError("rule 'closed_form' is a formula for Rényi claims; use rule 'tight'")


def _check_tails(evidence: Evidence, target: ApproximateGuarantee) -> None:
    """Raise, with the number of samples that would do, unless the tails fit into delta."""
    slices, confidence = evidence.required_slices(), evidence.confidence
    missing = float(slices.missing.max())
    if missing < target.delta or confidence is None or confidence.band is None:
        return
    share = confidence.band_probability(slices.profile.n_directions)
    needed = samples_for_tail(target.delta / 2, share, confidence.band)
    raise CalibrationError(
        f"too few samples: the bands leave out a mass of {missing:.3g}, which must be below delta "
        f"{target.delta:g}. About {needed} samples of each distribution leave half of delta to "
        "the noise; or claim a larger delta"
    )


def check_visible(evidence: Evidence, scenario: Scenario) -> None:
    """Refuse a profile that gives almost no weight to a difference between distributions.

    The whole sphere shows every difference; its evidence has no slices.
    """
    slices, full = evidence.slices, evidence.full.differences
    if slices is None:
        return
    profile, tables = slices.profile, slices.differences
    share = _LEAST_SHARE / math.sqrt(profile.dim)
    if isinstance(tables, GaussianPairs):
        apart, visible = tables.differences(profile.directions)
        least = apart * share**2
    else:
        distributions, pairs = distribution_pairs(scenario)
        finite = [each for each in distributions if isinstance(each, FiniteDistribution)]
        means = [np.average(each.outputs, axis=0, weights=each.counts) for each in finite]
        norms = [float(np.linalg.norm(np.abs(each.outputs).max(axis=0))) for each in finite]
        # Rounding of projections adds to gaps; a slice does not show that part.
        errors = projection_errors(profile.directions, max(norms, default=0.0))
        visible = tables.worst() - 4 * errors
        apart = visible.max(axis=1)
        if isinstance(full, MatchingTables) and not evidence.full.from_range:
            apart = full.worst().min(axis=1)
        # Distributions are all finite, or all known by draws.
        shifts = [np.linalg.norm(means[a] - means[b]) if finite else 0.0 for a, b in pairs]
        least = np.maximum(np.maximum(apart * _BLIND, np.array(shifts) * share), 0.0)
    weights = profile.weights / profile.weights.sum()
    seeing = (visible > least[:, None]) @ weights
    blind = ~tables.equal & (seeing < _LEAST_WEIGHT / np.count_nonzero(weights))
    if blind.any():
        raise CalibrationError(
            "the profile does not see the difference between the distributions of "
            f"{int(blind.sum())} of {len(blind)} (prior, pair) instances, which do differ: no "
            "slice of some weight shows a fair part of it. The noise would not hide it from "
            "anyone who looks in another direction. Use more, or other, directions, or equal "
            "weights"
        )
