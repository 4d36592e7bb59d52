# SPDX-License-Identifier: Apache-2.0
"""The public statement about a release, computed from the evidence and the caller's options."""

import math
from collections.abc import Mapping
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.checks import check_above
from pufferslice.calibration.calibrate import Method, calibrate_unsliced, cost, full_cost
from pufferslice.calibration.epsilon_delta import (
    REPORTED_ORDER,
    approximate_cost,
    sliced_noise,
    views_of,
)
from pufferslice.calibration.guarantee import (
    ApproximateGuarantee,
    Claim,
    Guarantee,
    at_most,
    claim_of,
)
from pufferslice.calibration.guessing import full_variation, released_variation, right_guesses
from pufferslice.calibration.noise import DRAW_DELTA, SIGMA_INT, OperatingSystemNoise
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.limits import RELEASE_LIMITS
from pufferslice.errors import CalibrationError
from pufferslice.sensitivity import GapTables
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere
from pufferslice.sensitivity.sensitivity import Slices
from pufferslice.sensitivity.tables import MatchingTables

ROUNDING_DELTA: Final = 2.0**-46
"""Total variation, per coordinate, between an integer Gaussian around a rounded point and the
rounded real Gaussian around the point itself: at most (1/2) / (sqrt(2 pi) 2^44), plus less than
2^-80 for rounding the density. Accounted where the divergence is that of the real mechanism."""

INTEGER_DELTA: Final = 2.0**-93
"""Total variation, per coordinate, between the integer Gaussian and the rounded real one, both
around the same integer: 0.0202 / 2^88. The Rényi bounds hold without it, guesses need it."""


@final
@attrs.frozen(kw_only=True)
class CertificateOptions:
    """What the caller of a certificate decided; everything else follows from the evidence."""

    target: Claim
    method: Method
    deltas: tuple[float, ...]
    generator: str
    earlier_releases: tuple[str, ...]
    noise_std: float | None = None
    """A noise that the caller chose; None where the claim decides."""

    @classmethod
    def read_off(cls, statement: Mapping[str, Any]) -> "CertificateOptions":
        """The decisions that a statement reports."""
        return cls(
            target=claim_of(statement["guarantee"]),
            method=Method(**statement["method"]),
            deltas=tuple(statement["deltas"]),
            generator=statement["noise"]["generator"],
            earlier_releases=tuple(statement["earlier_releases"]),
            noise_std=None if statement["noise"]["calibrated"] else statement["noise"]["std"],
        )


def calibrated_noise(evidence: Evidence, options: CertificateOptions) -> float:
    """The noise standard deviation that the target asks for, in scaled coordinates."""
    if options.noise_std is not None:
        return options.noise_std
    if isinstance(options.target, Guarantee) and not options.target.is_sliced:
        return calibrate_unsliced(options.target, evidence.full)
    return sliced_noise(evidence.slices, options.target, options.method)


def spent_epsilon(evidence: Evidence, options: CertificateOptions, noise_std: float) -> float:
    """The number that the claim bounds, at this noise."""
    if evidence.slices.are_equal:
        return 0.0
    check_above(0, noise_std=noise_std)
    if isinstance(options.target, ApproximateGuarantee):
        return approximate_cost(evidence.slices, options.target, noise_std, options.method.envelope)
    if options.target.is_sliced:
        return cost(evidence.slices, options.target, noise_std, options.method)
    return full_cost(evidence.full, options.target.order, noise_std)


def release_statement(evidence: Evidence, options: CertificateOptions) -> dict[str, Any]:
    """The whole public statement; deterministic in its two arguments."""
    noise_std = calibrated_noise(evidence, options)
    spent = spent_epsilon(evidence, options, noise_std)
    if not spent <= options.target.epsilon:
        if options.noise_std is not None:
            msg = (
                f"noise_std {noise_std:g} costs {at_most(spent)}, more than the claim's epsilon "
                f"{options.target.epsilon:g}; claim at least that much, or use more noise"
            )
            raise CalibrationError(msg)
        msg = (
            f"the calibrated noise {noise_std!r} costs {spent!r}, more than the target. Please "
            "report this: the noise was not used"
        )
        raise CalibrationError(msg)
    profile = evidence.slices.profile
    equal = evidence.slices.are_equal
    deltas = () if equal else options.deltas
    noise = (noise_std, options.method)
    return {
        "workflow": "release",
        "scenario": dict(evidence.scenario),
        "guarantee": options.target.to_json(),
        "method": attrs.asdict(options.method),
        "spent_epsilon": spent,
        "distributions_are_equal": equal,
        "noise": {
            "family": "integer_gaussian",
            "std": noise_std,
            "calibrated": options.noise_std is None,
            "std_by_coordinate": [
                noise_std * scale for scale in evidence.scenario["query"]["scales"]
            ],
            "grid": noise_std / SIGMA_INT,
            "generator": options.generator,
            "secure": options.generator == OperatingSystemNoise.name,
            "implementation_delta": implementation_delta(evidence) if noise_std else 0.0,
        },
        "profile": {
            "kind": "sphere" if isinstance(profile, SampledSphere) else "finite",
            "dim": profile.dim,
            "n_directions": int(np.count_nonzero(profile.weights)),
            "effective_slices": profile.effective_slices,
            "largest_weight": float(profile.weights.max() / profile.weights.sum()),
            "digest": profile.digest(),
        },
        "failure_probability": evidence.slices.failure_probability,
        "sampling": _sampling(evidence, options, noise_std),
        "unsliced": unsliced_of(evidence, unsliced_order(options.target), noise_std),
        "deltas": list(deltas),
        "views": [
            attrs.asdict(view)
            for delta in deltas
            for view in views_of(evidence.slices, evidence.full, options.target, noise, delta)
        ],
        "earlier_releases": list(options.earlier_releases),
        "limits": _limits(evidence, options.generator),
        "evidence_digest": evidence.digest(),
    }


def _limits(evidence: Evidence, generator: str) -> list[str]:
    scenario, confidence = evidence.scenario, evidence.confidence
    equal = evidence.slices.are_equal
    absent = {
        "prior-is-released-data": all(p["source"] != "released_data" for p in scenario["priors"]),
        "rows-dropped": not scenario["rows_dropped"],
        "query-is-clipped": scenario["query"]["range"] is None,
        "range-clips-data": not any(scenario["clipped"].values()),
        "priors-sampled": confidence is None or confidence.band is None,
        "tails-in-delta": confidence is None or confidence.tails != "in_delta",
        "sphere-sampled": confidence is None or not confidence.on_sphere,
        "distributions-equal": not equal,
        "noise-not-ideal": equal,
        "insecure-noise": generator == OperatingSystemNoise.name,
    }
    return [code for code in RELEASE_LIMITS if not absent.get(code)]


def _sampling(
    evidence: Evidence, options: CertificateOptions, noise_std: float
) -> dict[str, Any] | None:
    """How sampled distributions were bounded, and which part of the noise is due to that."""
    confidence = evidence.confidence
    if confidence is None:
        return None
    public = all(prior["source"] == "public_model" for prior in evidence.scenario["priors"])
    tails = confidence.tails == "in_delta" and public
    return {
        "band": confidence.band,
        "tails": confidence.tails,
        "delta_of_tails": float(evidence.slices.missing.max()) if tails else None,
        "noise_shares": _noise_shares(evidence, options, noise_std),
    }


def _noise_shares(
    evidence: Evidence, options: CertificateOptions, noise_std: float
) -> dict[str, float] | None:
    """Shares of the noise standard deviation: the prior itself, its sampling, the drawn slices."""
    if not options.target.is_sliced or not noise_std:
        return None
    slices = evidence.slices
    drawn = FiniteProfile(directions=slices.profile.directions, weights=slices.profile.weights)
    finite = Slices(profile=drawn, seen=slices.seen, missing=slices.missing)
    with_bands = noise_std if slices.sphere is None else _noise_or_zero(finite, options)
    alone = with_bands
    if evidence.plain is not None:
        alone = _noise_or_zero(Slices(profile=drawn, seen=evidence.plain), options)
    alone, with_bands = min(alone, noise_std), min(with_bands, noise_std)
    return {
        "distribution": alone / noise_std,
        "sampling": max(0.0, with_bands - alone) / noise_std,
        "slicing": (noise_std - max(alone, with_bands)) / noise_std,
    }


def _noise_or_zero(slices: Slices, options: CertificateOptions) -> float:
    try:
        return sliced_noise(slices, options.target, options.method)
    except CalibrationError:
        return 0.0


def unsliced_order(claim: Claim) -> float:
    """The order at which the unsliced cost of a release is stated."""
    return claim.order if isinstance(claim, Guarantee) else REPORTED_ORDER


def implementation_delta(evidence: Evidence) -> float:
    """Total variation between the sampled release and the one the bound is about."""
    exact = not isinstance(evidence.slices.seen, GapTables)
    return evidence.full.dim * (DRAW_DELTA + (ROUNDING_DELTA if exact else INTEGER_DELTA))


def unsliced_of(evidence: Evidence, order: float, noise_std: float) -> dict[str, Any]:
    """What the noise costs in all dimensions, and how often it lets a secret be guessed."""
    if evidence.slices.are_equal:
        return {"order": order, "epsilon": 0.0, "from": "equal distributions", "guess": 0.5}
    if evidence.full.seen is None:
        return {
            "order": order,
            "epsilon": None,
            "from": "samples alone: they bound nothing beyond the slices without a public range",
            "guess": None,
        }
    bound = full_cost(evidence.full, order, noise_std)
    source = _coupling(evidence)
    variation = released_variation(
        full_variation(evidence.full, noise_std), implementation_delta(evidence)
    )
    return {
        "order": order,
        "epsilon": bound if math.isfinite(bound) else None,
        "from": source if math.isfinite(bound) else f"{source}: infinite at this order and noise",
        "guess": None if variation >= 1 else right_guesses(variation),
    }


def _coupling(evidence: Evidence) -> str:
    tables = evidence.full.seen
    if not isinstance(tables, MatchingTables):
        return "the exact divergence of the Gaussian distributions"
    if evidence.full.from_range and evidence.scenario["query"]["range"] is None:
        return "the diameter of the range in which the rows were counted"
    if evidence.full.from_range:
        return "the diameter of the public range"
    if tables.n_slices == 1:
        return "one coupling per pair"
    return f"the best of {tables.n_slices} couplings per pair"
