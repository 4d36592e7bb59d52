# SPDX-License-Identifier: Apache-2.0
"""The public statement of a certificate, computed from the evidence and from what was asked."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.checks import check_above
from pufferslice._core.text import listed, quoted
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
from pufferslice.errors import CalibrationError
from pufferslice.sensitivity import GapTables, MatchingTables
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere
from pufferslice.sensitivity.sensitivity import Confidence, Slices

ROUNDING_DELTA: Final = 2.0**-46
"""Total variation, per coordinate, between an integer Gaussian around a rounded point and the
rounded real Gaussian around the point itself: at most (1/2) / (sqrt(2 pi) 2^44), plus less than
2^-80 for rounding the density. Charged where the divergence is that of the real mechanism."""

INTEGER_DELTA: Final = 2.0**-93
"""Total variation, per coordinate, between the integer Gaussian and the rounded real one, both
around the same integer: 0.0202 / 2^88. The Rényi bounds hold without it, guesses need it."""

_LIMITS: Final = (
    "It is not differential privacy for individuals: only the named secret is protected.",
    (
        "It holds under the declared priors and for the listed pairs; if the truth is none of "
        "these priors, nothing is claimed."
    ),
    (
        "Sliced numbers describe the ideal real-valued mechanism along the slices of the profile; "
        "they do not survive post-processing. Only the unsliced number is a statement about the "
        "released bits."
    ),
    (
        "It covers exactly one release. Releases of one scenario do not add up: two harmless ones "
        "can tell the secret together."
    ),
    "The evidence is confidential and must stay internal.",
)
_PRIOR_IS_DATA: Final = (
    "The priors were made from the released data itself, so the noise scale and every number "
    "computed from it tell something about the data."
)
_SAMPLED: Final = (
    "The priors are known only through independent draws; except with the failure probability "
    "the claim holds for the distributions that the draws come from. That the draws are "
    "independent, and that nobody chose them or the slices by their results, is assumed."
)
_IN_DELTA: Final = (
    "What lies beyond the bands around the sampled distributions is in delta, not in epsilon: an "
    "output that rare may tell the secret."
)
_CLIPPED: Final = (
    "The claim holds for the query clipped to its public range, which is what a release publishes. "
    "Intervals around released numbers are of that value too, not of the value before clipping."
)
_CLIPS: Final = (
    "THE RANGE CLIPS THE DATA: the query lies outside its public range for {found}. What is "
    "released of them is the nearest value in the range, not their own."
)
_SPHERE: Final = (
    "The profile is the whole sphere; the directions were drawn from it, and the failure "
    "probability covers that too."
)
_DRAWN: Final = (
    "The noise that is drawn is not exactly the noise of the bounds. The distance, "
    "implementation_delta, is part of no epsilon; an (epsilon, delta) view holds for what is "
    "released with 1 + exp(epsilon) times the distance added to its delta."
)
_EQUAL: Final = "The distributions are equal under every pair: no noise is needed."
_INSECURE: Final = "INSECURE: the noise comes from a seeded test generator. Never publish it."
_DROPPED: Final = "{n} rows with missing values were left out; the claim is about the others."


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


def calibrated_noise(evidence: Evidence, said: CertificateOptions) -> float:
    """The noise standard deviation that the target asks for, in scaled coordinates."""
    if said.noise_std is not None:
        return said.noise_std
    if isinstance(said.target, Guarantee) and not said.target.is_sliced:
        return calibrate_unsliced(said.target, evidence.full)
    return sliced_noise(evidence.slices, said.target, said.method)


def spent_epsilon(evidence: Evidence, said: CertificateOptions, noise_std: float) -> float:
    """The number that the claim bounds, at this noise."""
    if evidence.slices.are_equal:
        return 0.0
    check_above(0, noise_std=noise_std)
    if isinstance(said.target, ApproximateGuarantee):
        return approximate_cost(evidence.slices, said.target, noise_std, said.method.envelope)
    if said.target.is_sliced:
        return cost(evidence.slices, said.target, noise_std, said.method)
    return full_cost(evidence.full, said.target.order, noise_std)


def statement_of(evidence: Evidence, said: CertificateOptions) -> dict[str, Any]:
    """The whole public statement; deterministic in its two arguments."""
    noise_std = calibrated_noise(evidence, said)
    spent = spent_epsilon(evidence, said, noise_std)
    if not spent <= said.target.epsilon:
        if said.noise_std is not None:
            msg = (
                f"noise_std {noise_std:g} costs {at_most(spent)}, more than the claim's epsilon "
                f"{said.target.epsilon:g}; claim at least that much, or use more noise"
            )
            raise CalibrationError(msg)
        msg = (
            f"the calibrated noise {noise_std!r} costs {spent!r}, more than the target. Please "
            "report this: the noise was not used"
        )
        raise CalibrationError(msg)
    profile = evidence.slices.profile
    equal = evidence.slices.are_equal
    return {
        "road": "static",
        "scenario": dict(evidence.scenario),
        "guarantee": said.target.to_json(),
        "method": attrs.asdict(said.method),
        "spent_epsilon": spent,
        "distributions_are_equal": equal,
        "noise": _noise(evidence, said, noise_std),
        "profile": {
            "kind": "sphere" if isinstance(profile, SampledSphere) else "finite",
            "dim": profile.dim,
            "n_directions": int(np.count_nonzero(profile.weights)),
            "effective_slices": profile.effective_slices,
            "largest_weight": float(profile.weights.max() / profile.weights.sum()),
            "digest": profile.digest(),
        },
        "failure_probability": evidence.slices.failure_probability,
        "sampling": _sampling(evidence, said, noise_std),
        "unsliced": unsliced_of(evidence, _order(said.target), noise_std),
        "deltas": [] if equal else list(said.deltas),
        "views": [] if equal else _views(evidence, said, noise_std),
        "earlier_releases": list(said.earlier_releases),
        "limits": limits_of(evidence, said.generator),
        "evidence_digest": evidence.digest(),
    }


def limits_of(evidence: Evidence, generator: str) -> list[str]:
    """What is not covered, in sentences."""
    limits = list(_LIMITS)
    if any(p["source"] == "released_data" for p in evidence.scenario["priors"]):
        limits.append(_PRIOR_IS_DATA)
    if evidence.scenario["rows_dropped"]:
        limits.append(_DROPPED.format(n=evidence.scenario["rows_dropped"]))
    if evidence.scenario["query"]["range"] is not None:
        limits.append(_CLIPPED)
    if sentence := clipping_sentence(evidence.scenario):
        limits.append(sentence)
    if evidence.confidence is not None:
        limits += _doubts(evidence.confidence)
    limits.append(_EQUAL if evidence.slices.are_equal else _DRAWN)
    if generator != OperatingSystemNoise.name:
        limits.append(_INSECURE)
    return limits


def clipping_sentence(scenario: Mapping[str, Any]) -> str:
    """Under which secrets the public range cuts off values of the query; empty if under none."""
    clipped: Mapping[str, Sequence[str]] = scenario["clipped"]
    parts = [
        f"{how} values under {_counted(clipped[how])}" for how in ("all", "some") if clipped[how]
    ]
    return _CLIPS.format(found=" and ".join(parts)) if parts else ""


def _counted(secrets: Sequence[str]) -> str:
    return f"{len(secrets)} secret{'s' if len(secrets) > 1 else ''} ({listed(secrets, quoted)})"


def _doubts(confidence: Confidence) -> list[str]:
    said = [_SAMPLED] if confidence.band is not None else []
    said += [_IN_DELTA] if confidence.tails == "in_delta" else []
    return said + ([_SPHERE] if confidence.on_sphere else [])


def _sampling(
    evidence: Evidence, said: CertificateOptions, noise_std: float
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
        "noise_shares": _noise_shares(evidence, said, noise_std),
    }


def _noise_shares(
    evidence: Evidence, said: CertificateOptions, noise_std: float
) -> dict[str, float] | None:
    """Shares of the noise standard deviation: the prior itself, its sampling, the drawn slices."""
    if not said.target.is_sliced or not noise_std:
        return None
    slices = evidence.slices
    drawn = FiniteProfile(directions=slices.profile.directions, weights=slices.profile.weights)
    finite = Slices(profile=drawn, seen=slices.seen, missing=slices.missing)
    with_bands = noise_std if slices.sphere is None else _noise_or_none(finite, said)
    of_distribution = with_bands
    if evidence.plain is not None:
        of_distribution = _noise_or_none(Slices(profile=drawn, seen=evidence.plain), said)
    parts = (min(of_distribution, noise_std), min(with_bands, noise_std), noise_std)
    return {
        "distribution": parts[0] / noise_std,
        "sampling": max(0.0, parts[1] - parts[0]) / noise_std,
        "slicing": (parts[2] - max(parts[0], parts[1])) / noise_std,
    }


def _noise_or_none(slices: Slices, said: CertificateOptions) -> float:
    """The noise, or 0 where these gaps alone would need none."""
    try:
        return sliced_noise(slices, said.target, said.method)
    except CalibrationError:
        return 0.0


def _order(claim: Claim) -> float:
    """The order at which the unsliced cost is reported."""
    return claim.order if isinstance(claim, Guarantee) else REPORTED_ORDER


def implementation_delta(evidence: Evidence) -> float:
    """Total variation between the sampled release and the one the bound is about."""
    exact = not isinstance(evidence.slices.seen, GapTables)
    return evidence.full.dim * (DRAW_DELTA + (ROUNDING_DELTA if exact else INTEGER_DELTA))


def _noise(evidence: Evidence, said: CertificateOptions, noise_std: float) -> dict[str, Any]:
    scales: Sequence[float] = evidence.scenario["query"]["scales"]
    return {
        "family": "integer_gaussian",
        "std": noise_std,
        "calibrated": said.noise_std is None,
        "std_by_coordinate": [noise_std * scale for scale in scales],
        "grid": noise_std / SIGMA_INT,
        "generator": said.generator,
        "secure": said.generator == OperatingSystemNoise.name,
        "implementation_delta": implementation_delta(evidence) if noise_std else 0.0,
    }


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
    made = _coupling(evidence)
    variation = released_variation(
        full_variation(evidence.full, noise_std), implementation_delta(evidence)
    )
    return {
        "order": order,
        "epsilon": bound if math.isfinite(bound) else None,
        "from": made if math.isfinite(bound) else f"{made}: infinite at this order and noise",
        "guess": None if variation >= 1 else right_guesses(variation),
    }


def _coupling(evidence: Evidence) -> str:
    seen = evidence.full.seen
    if not isinstance(seen, MatchingTables):
        return "the exact divergence of the Gaussian distributions"
    if evidence.full.from_range and evidence.scenario["query"]["range"] is None:
        return "the diameter of the range in which the rows were counted"
    if evidence.full.from_range:
        return "the diameter of the public range"
    if seen.n_slices == 1:
        return "one coupling per pair"
    return f"the best of {seen.n_slices} couplings per pair"


def _views(evidence: Evidence, said: CertificateOptions, noise_std: float) -> list[dict[str, Any]]:
    noise = (noise_std, said.method)
    return [
        attrs.asdict(view)
        for delta in said.deltas
        for view in views_of(evidence.slices, evidence.full, said.target, noise, delta)
    ]
