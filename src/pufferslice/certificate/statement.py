# SPDX-License-Identifier: Apache-2.0
"""The public statement about a release, computed from the evidence and the caller's options."""

import math
from collections.abc import Mapping
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above
from pufferslice.calibration.calibrate import Method, cost, full_cost, grid_margin
from pufferslice.calibration.epsilon_delta import (
    REPORTED_ORDER,
    approximate_cost,
    sliced_noise,
    views_of,
)
from pufferslice.calibration.fit import ShapeKind, shift_limit
from pufferslice.calibration.guarantee import (
    ApproximateGuarantee,
    Claim,
    Guarantee,
    GuessGuarantee,
    at_most,
    claim_of,
)
from pufferslice.calibration.noise import SIGMA_INT, OperatingSystemNoise
from pufferslice.calibration.sphere import sphere_cost, sphere_noise_std
from pufferslice.calibration.unsliced import (
    calibrate_unsliced,
    implementation_delta,
    released_guess,
    unsliced_cost,
)
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.limits import RELEASE_LIMITS
from pufferslice.errors import CalibrationError
from pufferslice.sensitivity.couplings import SEED
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.profiles import (
    WHOLE_SPHERE,
    FiniteProfile,
    SampledSphere,
    WholeSphere,
)
from pufferslice.sensitivity.renyi import SLICED_NOTIONS
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.sensitivity import Full, Slices
from pufferslice.sensitivity.tables import MatchingTables

_DOWN: Final = 1 - 2.0**-30


@final
@attrs.frozen(kw_only=True)
class CertificateOptions:
    """What the caller of a certificate decided; everything else follows from the evidence."""

    target: Claim
    method: Method | None
    """How noise and cost along slices are tied; None for claims about the whole output, and for the
    whole sphere, which has a closed form of its own."""
    deltas: tuple[float, ...]
    generator: str
    earlier_releases: tuple[str, ...]
    noise_std: float | None = None
    """A noise that the caller chose; None where the claim decides."""
    total: float | None = None
    """The total epsilon, fixed beforehand, of all releases of data that the secret determines."""
    shape: ShapeKind = "isotropic"
    """How the shape of the noise was decided."""
    shape_gap: float | None = None
    """How near the shape is to the best one."""

    @classmethod
    def read_off(cls, statement: Mapping[str, Any]) -> "CertificateOptions":
        """The decisions that a statement reports."""
        return cls(
            target=claim_of(statement["guarantee"]),
            method=None if statement["method"] is None else Method(**statement["method"]),
            deltas=tuple(statement["deltas"]),
            generator=statement["noise"]["generator"],
            earlier_releases=tuple(statement["earlier_releases"]),
            noise_std=None if statement["noise"]["calibrated"] else statement["noise"]["std"],
            total=statement["total"],
            shape=statement["noise"]["shape"]["kind"],
            shape_gap=statement["noise"]["shape"]["gap"],
        )


def calibrated_noise(evidence: Evidence, options: CertificateOptions) -> float:
    """The noise standard deviation that the target asks for, in whitened coordinates."""
    if options.noise_std is not None:
        return options.noise_std
    if options.method is not None:
        return sliced_noise(evidence.required_slices(), options.target, options.method)
    if isinstance(options.target, Guarantee) and options.target.is_sliced:
        return sphere_noise_std(evidence.full, options.target)
    return calibrate_unsliced(options.target, evidence.full)


def spent_on(evidence: Evidence, options: CertificateOptions, noise_std: float) -> float:
    """The number that the claim bounds, at this noise."""
    if evidence.are_equal:
        return 0.5 if isinstance(options.target, GuessGuarantee) else 0.0
    check_above(0, noise_std=noise_std)
    if options.method is None:
        if isinstance(options.target, Guarantee) and options.target.is_sliced:
            return sphere_cost(evidence.full, options.target, noise_std)
        return unsliced_cost(evidence.full, options.target, noise_std)
    slices, envelope = evidence.required_slices(), options.method.envelope
    if isinstance(options.target, ApproximateGuarantee):
        return approximate_cost(slices, options.target, noise_std, envelope)
    if isinstance(options.target, Guarantee):
        return cost(slices, options.target, noise_std, options.method)
    raise CalibrationError(
        f"{options.target} is a claim about the whole output; it takes no method"
    )


def release_statement(evidence: Evidence, options: CertificateOptions) -> dict[str, Any]:
    """The whole public statement; deterministic in its two arguments."""
    noise_std = calibrated_noise(evidence, options)
    spent = spent_on(evidence, options, noise_std)
    if not spent <= options.target.bound:
        if options.noise_std is not None:
            raise CalibrationError(
                f"noise_std {noise_std:g} costs {at_most(spent)}, more than the claim's "
                f"{options.target.bound:g}; claim at least that much, or use more noise"
            )
        raise CalibrationError(
            f"the calibrated noise {noise_std!r} costs {spent!r}, more than the target. Please "
            "report this: the noise was not used"
        )
    if options.total is not None:
        check_total(evidence, options)
    equal, slices = evidence.are_equal, evidence.slices if options.target.is_sliced else None
    deltas = () if equal else options.deltas
    scales = np.array(evidence.scenario["query"]["scales"], dtype=np.float64)
    statement = {
        "workflow": "release",
        "scenario": dict(evidence.scenario),
        "guarantee": options.target.to_json(),
        "method": None if options.method is None else attrs.asdict(options.method),
        "spent": spent,
        "total": options.total,
        "distributions_are_equal": equal,
        "noise": {
            "family": "integer_gaussian",
            "std": noise_std,
            "calibrated": options.noise_std is None,
            "std_by_coordinate": (noise_stds(evidence.full, noise_std) * scales).tolist(),
            "grid": noise_std / SIGMA_INT,
            "shape": _shape(evidence.full, options, noise_std),
            "generator": options.generator,
            "secure": options.generator == OperatingSystemNoise.name,
            "implementation_delta": implementation_delta(evidence.full) if noise_std else 0.0,
        },
        "profile": _profile(evidence) if options.target.is_sliced else None,
        "failure_probability": evidence.failure_probability,
        "sampling": _sampling(evidence, options, noise_std),
        "unsliced": unsliced_of(evidence, unsliced_order(options.target), noise_std),
        "deltas": list(deltas),
        "views": [
            attrs.asdict(view)
            for delta in deltas
            for view in views_of(
                slices, evidence.full, options.target, noise_std, options.method, delta
            )
        ],
        "earlier_releases": list(options.earlier_releases),
    }
    return statement | {"limits": limits_of(statement), "evidence_digest": evidence.digest()}


def check_total(evidence: Evidence, options: CertificateOptions) -> None:
    """Refuse a total where releases do not add up, or where it is not one."""
    target = options.target
    if not evidence.full.is_determined:
        raise CalibrationError(
            "total is for data that the secret determines: a single value of the query under every "
            "secret and prior. Otherwise two harmless releases can reveal the secret together. "
            "Calibrate all of it as one concatenated query"
        )
    if not isinstance(target, Guarantee) or target.is_sliced or options.total is None:
        raise CalibrationError(
            "total is for unsliced Rényi claims, whose costs add; use Guarantee.unsliced(...)"
        )
    if not target.epsilon <= options.total:
        raise CalibrationError(
            f"total {options.total:g} must be at least the epsilon {target.epsilon:g} of this "
            "release"
        )


def noise_stds(full: Full, noise_std: float) -> Floats:
    """Standard deviation of the noise of each coordinate, in scaled coordinates."""
    if full.shape is None:
        return np.full(full.dim, noise_std)
    return full.shape.stds(noise_std)


def guard_radius(full: Full, claim: Claim, noise_std: float) -> float:
    """The longest shift of the output, in scaled coordinates, that a claim's noise hides.

    Whitened, and with the most that rounding to the grid adds, it is no longer than the claim
    allows between two points. In proportion to the noise.
    """
    stretch = 1.0 if full.shape is None else full.shape.stretch
    longest = math.sqrt(shift_limit(claim)) * noise_std - grid_margin(full.dim, noise_std)
    return max(0.0, longest / stretch * _DOWN)


def _shape(full: Full, options: CertificateOptions, noise_std: float) -> dict[str, Any]:
    """The public shape of the noise, and the guard that follows from it."""
    whole = noise_std and not options.target.is_sliced
    return {
        "kind": options.shape,
        "whitening": None if full.shape is None else full.shape.whitening.tolist(),
        "guard": guard_radius(full, options.target, noise_std) if whole else None,
        "gap": options.shape_gap,
    }


def _profile(evidence: Evidence) -> dict[str, Any]:
    if evidence.slices is None:
        whole = WholeSphere(dim=evidence.full.dim)
        return {"kind": WHOLE_SPHERE, "dim": whole.dim, "digest": whole.digest()}
    profile = evidence.slices.profile
    return {
        "kind": "sphere" if isinstance(profile, SampledSphere) else "finite",
        "dim": profile.dim,
        "n_directions": int(np.count_nonzero(profile.weights)),
        "effective_slices": profile.effective_slices,
        "largest_weight": float(profile.weights.max() / profile.weights.sum()),
        "digest": profile.digest(),
    }


def limits_of(statement: Mapping[str, Any]) -> list[str]:
    """The codes of what a release does not cover; they follow from the rest of its statement."""
    scenario, noise, sampling = statement["scenario"], statement["noise"], statement["sampling"]
    equal, sampled = statement["distributions_are_equal"], sampling or {"band": None, "tails": None}
    private = any(prior["source"] == "released_data" for prior in scenario["priors"])
    rows = any(prior["kind"] == "rows" for prior in scenario["priors"])
    normal = any(prior["kind"] == "gaussian" for prior in scenario["priors"])
    sphere = statement["profile"] is not None and statement["profile"]["kind"] == "sphere"
    present = {
        "slices-are-ideal": statement["guarantee"]["notion"] in SLICED_NOTIONS,
        "one-release": statement["total"] is None,
        "releases-add-to-total": statement["total"] is not None,
        "declared-priors-only": not rows,
        "rows-like-these": rows,
        "noise-from-released-rows": rows and private,
        "shape-shows-differences": private
        and not rows
        and noise["shape"]["kind"] in ("fitted", "diagonal"),
        "prior-is-released-data": private and not rows,
        "rows-dropped": bool(scenario["rows_dropped"]),
        "query-is-clipped": scenario["query"]["range"] is not None,
        "range-clips-data": any(scenario["clipped"].values()),
        "priors-sampled": sampled["band"] is not None,
        "priors-normal": normal,
        "tails-in-delta": sampled["tails"] == "in_delta",
        "sphere-sampled": sphere,
        "distributions-equal": equal,
        "noise-not-ideal": not equal,
        "insecure-noise": not noise["secure"],
    }
    return [code for code in RELEASE_LIMITS if present.get(code, True)]


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
        "delta_of_tails": float(evidence.required_slices().missing.max()) if tails else None,
        "noise_shares": _noise_shares(evidence, options, noise_std),
    }


def _noise_shares(
    evidence: Evidence, options: CertificateOptions, noise_std: float
) -> dict[str, float] | None:
    """Shares of the noise standard deviation: the prior itself, its sampling, the drawn slices."""
    if not options.target.is_sliced or not noise_std:
        return None
    slices = evidence.required_slices()
    drawn = FiniteProfile(directions=slices.profile.directions, weights=slices.profile.weights)
    finite = Slices(profile=drawn, differences=slices.differences, missing=slices.missing)
    with_bands = noise_std if slices.sphere is None else _noise_or_zero(finite, options)
    alone = with_bands
    if slices.plain is not None:
        alone = _noise_or_zero(Slices(profile=drawn, differences=slices.plain), options)
    alone, with_bands = min(alone, noise_std), min(with_bands, noise_std)
    return {
        "distribution": alone / noise_std,
        "sampling": max(0.0, with_bands - alone) / noise_std,
        "slicing": (noise_std - max(alone, with_bands)) / noise_std,
    }


def _noise_or_zero(slices: Slices, options: CertificateOptions) -> float:
    if options.method is None:
        return 0.0
    try:
        return sliced_noise(slices, options.target, options.method)
    except CalibrationError:
        return 0.0


def unsliced_order(claim: Claim) -> float:
    """The order at which the unsliced cost of a release is stated."""
    return claim.order if isinstance(claim, Guarantee) else REPORTED_ORDER


def unsliced_of(evidence: Evidence, order: float, noise_std: float) -> dict[str, Any]:
    """What the noise costs in all dimensions, and how often it lets a secret be guessed."""
    if evidence.are_equal:
        return {"order": order, "epsilon": 0.0, "from": "equal distributions", "guess": 0.5}
    if evidence.full.differences is None:
        return {
            "order": order,
            "epsilon": None,
            "from": "samples alone: they bound nothing beyond the slices without a public range",
            "guess": None,
        }
    bound = full_cost(evidence.full, order, noise_std)
    source, guess = _coupling(evidence), released_guess(evidence.full, noise_std)
    return {
        "order": order,
        "epsilon": bound if math.isfinite(bound) else None,
        "from": source if math.isfinite(bound) else f"{source}: no bound at this order and noise",
        "guess": None if guess >= 1 else guess,
    }


def _coupling(evidence: Evidence) -> str:
    tables = evidence.full.differences
    if isinstance(tables, RowDifference):
        return "second moments of the rows that make the difference, coupled independently"
    if isinstance(tables, GaussianPairs) and tables.has_mixtures:
        return "the exact divergences of Gaussian components, coupled"
    if not isinstance(tables, MatchingTables):
        return "the exact divergence of the Gaussian distributions"
    if evidence.full.from_range:
        return "the diameter of the public range"
    recipe = evidence.full.recipe
    if recipe is None:
        return "the gaps of the one coordinate"
    n = tables.n_slices
    best = "one coupling" if n == 1 else f"the best of {n} couplings"
    return f"{best} per pair ({recipe.effort}, seed {SEED})"
