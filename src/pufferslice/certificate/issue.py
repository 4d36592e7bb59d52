# SPDX-License-Identifier: Apache-2.0
"""Issue a certificate from a scenario, and ask what another noise, order or notion would cost."""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np

from pufferslice._core.checks import check_above, check_between, check_one_of
from pufferslice._core.threads import Progress, silent
from pufferslice.calibration.calibrate import Method, cost, full_cost
from pufferslice.calibration.epsilon_delta import approximate_cost
from pufferslice.calibration.guarantee import (
    RELEASE_NOTIONS,
    ApproximateGuarantee,
    Claim,
    Guarantee,
)
from pufferslice.calibration.noise import Noise, OperatingSystemNoise
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.statement import CertificateOptions, release_statement, unsliced_of
from pufferslice.errors import ArgumentError, CalibrationError, CertificateError, ScenarioError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.concentration import BandKind, samples_for_tail
from pufferslice.sensitivity.couplings import MOST_MATCHINGS
from pufferslice.sensitivity.exact import projection_errors
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.profiles import FiniteProfile, Profile, SampledSphere, check_profile
from pufferslice.sensitivity.sensitivity import Confidence, distribution_pairs
from pufferslice.sensitivity.tables import MatchingTables

DEFAULT_DELTAS: Final = (1e-5,)

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
    failure_probability: float | None = None,
    band: BandKind = "order_statistics",
    method: Method | None = None,
    deltas: Sequence[float] = DEFAULT_DELTAS,
    noise: Noise = OperatingSystemNoise(),  # noqa: B008 - it has no state
    noise_std: float | None = None,
    earlier_releases: Sequence[str] = (),
    progress: Progress = silent,
) -> Certificate:
    """Find the noise for one release of the scenario's query, and state what it promises.

    Without `method`: the tight rule with the smallest envelope that applies. `deltas` are those of
    the (epsilon, delta) views. `earlier_releases` names what a ledger already holds.
    `failure_probability` is required for sampled priors and for the sphere as profile, and refused
    otherwise; `band` names how sampled distributions are bounded. `noise_std`, in scaled
    coordinates, certifies a noise of your own instead of the smallest one; it must meet the target.

    A sliced guarantee names its slices: `Guarantee.joint(..., profile=...)`.

    Guarantee: one release with the stated noise satisfies `guarantee` for the scenario's priors and
    pairs, except with probability `failure_probability` over the draws of sampled priors and
    directions.
    """
    from pufferslice.certificate.schema import check_statement  # noqa: PLC0415 - pydantic

    target = guarantee
    profile = target.profile if target.is_sliced else coupling_profile(scenario)
    if profile is None:
        msg = f"{target} is a claim along slices; name them with profile=FiniteProfile.uniform(...)"
        raise ArgumentError(msg)
    check_profile(profile, scenario.dim)
    check_one_of(RELEASE_NOTIONS, notion=target.notion)
    confidence = _confidence(
        scenario, profile, target, failure_probability=failure_probability, band=band
    )
    for delta in deltas:
        check_between(0, 1, delta=delta)
    digests = not isinstance(earlier_releases, str) and all(
        isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in earlier_releases
    )
    if not digests or len(set(earlier_releases)) != len(earlier_releases):
        msg = "earlier_releases must list digests of certificates, each once; use ledger.releases()"
        raise ArgumentError(msg)
    _check_method(scenario, target, method)
    if noise_std is not None:
        check_above(0, noise_std=noise_std)
    gaussian = scenario.prior_kind == "gaussian"
    default = Method(rule="tight", envelope="exact" if gaussian else "transport")
    options = CertificateOptions(
        target=target,
        method=method or default,
        deltas=tuple(dict.fromkeys(float(delta) for delta in deltas)),
        generator=noise.name,
        earlier_releases=tuple(earlier_releases),
        noise_std=None if noise_std is None else float(noise_std),
    )
    evidence = Evidence.of(scenario, profile, confidence, progress)
    check_visible(evidence, scenario)
    if isinstance(target, ApproximateGuarantee):
        _check_tails(evidence, target)
    statement = release_statement(evidence, options)
    try:
        check_statement(statement)
    except CertificateError:
        msg = "the noise or the scales are too large for a certificate; use other units"
        raise CalibrationError(msg) from None
    return Certificate(statement=statement, evidence=evidence)


def coupling_profile(scenario: Scenario) -> FiniteProfile:
    """The directions along which atoms are coupled for a claim without slices: a public constant.

    Binned distributions are known along the directions of their scan alone.
    """
    distributions, _ = distribution_pairs(scenario)
    grid = distributions[0].grid
    if grid is not None:
        n = len(grid.directions)
        return FiniteProfile(directions=grid.directions, weights=np.full(n, 1 / n))
    return FiniteProfile.uniform(dim=scenario.dim, n_directions=MOST_MATCHINGS, seed=0)


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
    method = Method(**certificate.statement["method"])
    std = certificate.noise_std if noise_std is None else noise_std
    if isinstance(claim, ApproximateGuarantee):
        if order is not None:
            msg = f"{claim} has no order; leave it out, or certify a Rényi claim"
            raise ArgumentError(msg)
        sliced = claim if notion is None else attrs.evolve(claim, notion=notion)  # type: ignore[arg-type]
        check_above(0, noise_std=std)
        epsilon = approximate_cost(evidence.slices, sliced, std, method.envelope)
        if not 0 < epsilon < np.inf:
            msg = (
                f"noise {std:g} gives epsilon {epsilon:g} at delta {claim.delta:g}; a claim needs "
                "an epsilon that is finite and above 0. Ask about another noise, or another delta"
            )
            raise CalibrationError(msg)
        return attrs.evolve(sliced, epsilon=epsilon)
    unit = Guarantee(
        notion=claim.notion if notion is None else notion,  # type: ignore[arg-type]
        order=claim.order if order is None else order,
        epsilon=1.0,
    )
    check_one_of(RELEASE_NOTIONS, notion=unit.notion)
    if evidence.slices.are_equal:
        msg = "the distributions are equal: every noise, even none, costs nothing"
        raise CalibrationError(msg)
    check_above(0, noise_std=std)
    if unit.is_sliced:
        epsilon = cost(evidence.slices, unit, std, method)
    else:
        epsilon = full_cost(evidence.full, unit.order, std)
    if not np.isfinite(epsilon):
        msg = f"noise {std:g} gives no finite divergence at order {unit.order:g}; use more noise"
        raise CalibrationError(msg)
    return attrs.evolve(unit, epsilon=epsilon)


def spent_in_full(
    certificate: Certificate, *, noise_std: float | None = None, order: float | None = None
) -> dict[str, Any]:
    """What noise costs in all dimensions by the certificate's evidence, and the right guesses.

    As `unsliced` in a statement: `order`, `epsilon`, `from` and `guess`; None where nothing bounds
    a number.
    """
    evidence = required_evidence(certificate)
    std = certificate.noise_std if noise_std is None else noise_std
    stated = float(certificate.statement["unsliced"]["order"])
    return unsliced_of(evidence, stated if order is None else order, std)


def under_scenario(certificate: Certificate, scenario: Scenario) -> Certificate:
    """The certificate's noise and profile with the evidence of another scenario, for `spent`.

    The result is not a certificate of that scenario: its statement is not the evidence's, and
    `verify` refutes it.
    """
    certified = required_evidence(certificate)
    stated, other = certificate.statement["scenario"], scenario.description()
    differ = [key for key in _SHARED if stated[key] != other[key]]
    if differ:
        msg = (
            f"the other scenario must have the certificate's {', '.join(_SHARED)}; it differs in "
            f"{', '.join(differ)}. Only priors may differ: noise in other units, for another query "
            "or between other secrets costs something else"
        )
        raise ArgumentError(msg)
    confidence = certified.confidence
    sampled = confidence is not None and confidence.band is not None
    if (scenario.prior_kind == "sampled") != sampled:
        msg = (
            "the other scenario must be known like the certified one, both by samples or neither; "
            f"this one has {scenario.prior_kind} priors"
        )
        raise ArgumentError(msg)
    evidence = Evidence.of(scenario, certified.slices.profile, confidence)
    statement = dict(certificate.statement) | {"evidence_digest": evidence.digest()}
    return Certificate(statement=statement, evidence=evidence)


def required_evidence(certificate: Certificate) -> Evidence:
    """The evidence; raise if it is absent or its digest is not the statement's."""
    if certificate.evidence is None:
        msg = (
            "statement only: the evidence is not available. Put the .evidence.npz file beside the "
            "certificate; whoever issued it has it"
        )
        raise CertificateError(msg)
    if certificate.evidence.digest() != certificate.statement["evidence_digest"]:
        msg = (
            "the evidence does not belong to this statement: its digest differs. Put the file "
            "beside it that was written with it"
        )
        raise CertificateError(msg)
    return certificate.evidence


def _confidence(
    scenario: Scenario,
    profile: Profile,
    target: Claim,
    *,
    failure_probability: float | None,
    band: BandKind,
) -> Confidence | None:
    """How the claim may fail; raise unless `failure_probability` is given exactly where it can."""
    sampled, on_sphere = scenario.prior_kind == "sampled", isinstance(profile, SampledSphere)
    in_delta = isinstance(target, ApproximateGuarantee)
    if on_sphere and (in_delta or not target.is_sliced):
        msg = (
            f"the sphere as profile goes with average and joint Rényi claims, not with {target}; "
            "use a FiniteProfile"
        )
        raise ArgumentError(msg)
    if on_sphere and scenario.prior_kind == "gaussian":
        msg = (
            "the sphere as profile needs a public range, which Gaussian priors do not have; use "
            "a FiniteProfile"
        )
        raise ScenarioError(msg)
    if not (sampled or on_sphere):
        if failure_probability is None:
            return None
        msg = (
            f"failure_probability {failure_probability!r} was given, but nothing can fail: the "
            "priors are exact and the profile is finite. Leave it out, or declare the priors "
            "sampled with scenario.with_sampled_priors()"
        )
        raise ArgumentError(msg)
    if failure_probability is None:
        what = "sampled priors" if sampled else "the sphere as profile"
        msg = f"{what} need failure_probability, the probability that the claim does not hold"
        raise ArgumentError(msg)
    if sampled and not in_delta and scenario.query.range is None:
        msg = (
            "a Rényi claim cannot be certified from samples without a public range: beyond the "
            "samples anything could lie. Give the query one with query.with_range(Box(low, high)), "
            "to which it is then clipped; or claim sliced (epsilon, delta) with "
            "ApproximateGuarantee (--claim epsilon-delta), which puts the tails into delta"
        )
        raise ScenarioError(msg)
    return Confidence(
        failure_probability=failure_probability,
        band=band if sampled else None,
        tails=("in_delta" if in_delta else "at_range") if sampled else None,
        on_sphere=on_sphere,
    )


def _check_method(scenario: Scenario, target: Claim, method: Method | None) -> None:
    if method is not None and not target.is_sliced:
        msg = (
            f"method {method} is about slices; an unsliced target is calibrated on couplings of "
            "the whole output and takes no method"
        )
        raise ArgumentError(msg)
    if not isinstance(target, ApproximateGuarantee):
        return
    if scenario.prior_kind == "gaussian":
        msg = (
            "an (epsilon, delta) claim is calibrated on gaps, which Gaussian priors do not have; "
            "certify a Rényi claim and read its (epsilon, delta) views"
        )
        raise ArgumentError(msg)
    if method is not None and method.rule == "closed_form":
        msg = "rule 'closed_form' is a formula for Rényi claims; use rule 'tight'"
        raise ArgumentError(msg)


def _check_tails(evidence: Evidence, target: ApproximateGuarantee) -> None:
    """Raise, with the number of samples that would do, unless the tails fit into delta."""
    missing, confidence = float(evidence.slices.missing.max()), evidence.confidence
    if missing < target.delta or confidence is None or confidence.band is None:
        return
    share = confidence.band_probability(evidence.slices.profile.n_directions)
    needed = samples_for_tail(target.delta / 2, share, confidence.band)
    msg = (
        f"too few samples: the bands leave out a mass of {missing:.3g}, which must be below delta "
        f"{target.delta:g}. About {needed} samples of each distribution leave half of delta to "
        "the noise; or claim a larger delta"
    )
    raise CalibrationError(msg)


def check_visible(evidence: Evidence, scenario: Scenario) -> None:
    """Refuse a profile that gives almost no weight to a difference between distributions."""
    profile, tables, full = evidence.slices.profile, evidence.slices.seen, evidence.full.seen
    share = _LEAST_SHARE / math.sqrt(profile.dim)
    if isinstance(tables, GaussianPairs):
        apart, visible = tables.differences(profile.directions)
        least = apart * share**2
    else:
        distributions, pairs = distribution_pairs(scenario)
        atoms = {
            i: distribution
            for i, distribution in enumerate(distributions)
            if isinstance(distribution, FiniteDistribution)
        }
        means = {
            i: np.average(distribution.outputs, axis=0, weights=distribution.counts)
            for i, distribution in atoms.items()
        }
        norms = [
            float(np.linalg.norm(np.abs(distribution.outputs).max(axis=0)))
            for distribution in atoms.values()
        ]
        # What rounding of projections added to gaps is nothing that a slice sees.
        errors = projection_errors(profile.directions, max(norms, default=0.0))
        visible = tables.worst() - 4 * errors
        apart = visible.max(axis=1)
        if isinstance(full, MatchingTables) and not evidence.full.from_range:
            apart = full.worst().min(axis=1)
        shifts = [np.linalg.norm(means[a] - means[b]) if atoms else 0.0 for a, b in pairs]
        least = np.maximum(np.maximum(apart * _BLIND, np.array(shifts) * share), 0.0)
    weights = profile.weights / profile.weights.sum()
    seeing = (visible > least[:, None]) @ weights
    blind = ~tables.equal & (seeing < _LEAST_WEIGHT / np.count_nonzero(weights))
    if blind.any():
        msg = (
            "the profile does not see the difference between the distributions of "
            f"{int(blind.sum())} of {len(blind)} (prior, pair) instances, which do differ: no "
            "slice of some weight shows a fair part of it. The noise would not hide it from "
            "anyone who looks in another direction. Use more, or other, directions, or equal "
            "weights"
        )
        raise CalibrationError(msg)
