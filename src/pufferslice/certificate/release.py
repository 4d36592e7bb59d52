# SPDX-License-Identifier: Apache-2.0
"""The statement about a release, computed from the evidence and the caller's options."""

import math
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.numbers import at_most
from pufferslice._core.sampler import SIGMA_INT, OperatingSystemNoise
from pufferslice._core.search import LARGEST
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.statement import (
    NoisePart,
    ProfilePart,
    ReleaseStatement,
    SamplingPart,
    UnslicedPart,
    WholeSpherePart,
    checked,
    read_scenario,
)
from pufferslice.claims import Claim
from pufferslice.claims.guess import released_guess
from pufferslice.claims.views import views_of
from pufferslice.errors import CalibrationError, CertificateError
from pufferslice.noise.decision import guard_radius, noise_stds
from pufferslice.noise.fit import ShapeKind
from pufferslice.sensitivity.person import row_epsilon
from pufferslice.sensitivity.profiles import (
    WHOLE_SPHERE,
    FiniteProfile,
    SampledSphere,
    WholeSphere,
)
from pufferslice.sensitivity.rows import INDEPENDENT
from pufferslice.sensitivity.sensitivity import Full, Slices

PERSON_DELTA: Final = 1e-6
"""Default delta of the statement about one person."""
MOST_STATED: Final = 10_000
"""Most entries of a matrix in a statement; a larger one has a file of its own."""
_OF_ROWS: Final = ("mean_square", "one_person")
"""Numbers that only scenarios of rows have."""
_MOST_BESIDE: Final = 64
"""Most statistics for which epsilons are stated beside a claim that is not about them."""


@final
@attrs.frozen(kw_only=True)
class CertificateOptions:
    """The decisions of the caller of a certificate; everything else follows from the evidence."""

    target: Claim
    deltas: tuple[float, ...] = ()
    generator: str = OperatingSystemNoise.name
    earlier_releases: tuple[str, ...] = ()
    noise_std: float | None = None
    """Noise that the caller chose; None where the claim decides."""
    shape: ShapeKind = "isotropic"
    """Origin of the shape of the noise."""
    shape_gap: float | None = None
    """Bound on the relative excess variance of the shape over the best one; None if unknown."""
    person_delta: float = PERSON_DELTA
    """Delta at which the release is stated for one person."""

    @classmethod
    def read_off(cls, statement: ReleaseStatement) -> "CertificateOptions":
        """Read the caller's decisions from a statement."""
        noise = statement.noise
        return cls(
            target=statement.claim,
            deltas=tuple(statement.deltas),
            generator=noise.generator,
            earlier_releases=tuple(statement.earlier_releases),
            noise_std=None if noise.calibrated else noise.std,
            shape=noise.shape.kind,
            shape_gap=noise.shape.gap,
            person_delta=next(
                (
                    part.delta
                    for part in (statement.one_person, statement.one_person_given_noise)
                    if part is not None
                ),
                PERSON_DELTA,
            ),
        )


def calibrated_noise(evidence: Evidence, options: CertificateOptions) -> float:
    """Compute the noise standard deviation that the target needs, in whitened coordinates."""
    if options.noise_std is not None:
        return options.noise_std
    return options.target.least_noise(evidence)


def release_statement(evidence: Evidence, options: CertificateOptions) -> ReleaseStatement:
    """Build the whole public statement; the result depends on the two arguments alone."""
    noise_std = calibrated_noise(evidence, options)
    spent = options.target.spent(evidence, noise_std)
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
    equal, method = evidence.are_equal, options.target.method
    has_epsilons = _has_epsilons(evidence.full, options.target)
    deltas = () if equal else options.deltas
    scales = np.array(evidence.scenario["query"]["scales"], dtype=np.float64)
    values: dict[str, Any] = {
        "workflow": "release",
        "scenario": read_scenario(evidence.scenario),
        "guarantee": options.target,
        "method": None if method is None else attrs.asdict(method),
        "spent": spent,
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
            "implementation_delta": evidence.full.implementation_delta if noise_std else 0.0,
        },
        "profile": _profile(evidence) if options.target.is_sliced else None,
        "failure_probability": evidence.failure_probability,
        "sampling": _sampling(evidence, options, noise_std),
        "unsliced": unsliced_of(
            evidence, options.target.reported_order, noise_std, has_epsilon=has_epsilons
        ),
        **_of_rows(evidence, options, noise_std),
        "deltas": list(deltas),
        "views": [
            attrs.asdict(view)
            for delta in (deltas if has_epsilons else ())
            for view in views_of(evidence, options.target, noise_std, delta)
        ],
        "earlier_releases": list(options.earlier_releases),
    }
    for name, kind in (("noise", NoisePart), ("sampling", SamplingPart)):
        if values[name] is not None:
            values[name] = checked(kind, values[name], name, CertificateError)
    draft = ReleaseStatement.model_construct(**values)
    values |= {"limits": draft.expected_limits(), "evidence_digest": evidence.digest()}
    return checked(ReleaseStatement, values, "statement", CertificateError)


def _of_rows(evidence: Evidence, options: CertificateOptions, noise_std: float) -> dict[str, Any]:
    """State what scenarios of rows add: the mean square, the coupling, and one person."""
    full = evidence.full
    values: dict[str, Any] = dict.fromkeys(
        ("mean_square", "coupling", "one_person", "one_person_given_noise")
    )
    rows, noise, share = full.differences, None, None
    if rows is not None and noise_std:
        noise = full.noise(noise_std)
        share = rows.least_share(noise)
    if rows is None or noise is None or share is None:
        return values | {"not_stated": dict.fromkeys(_OF_ROWS, "not-of-rows")}
    values["mean_square"] = full.mean_square(noise_std)
    name = INDEPENDENT if full.recipe is None else full.recipe.coupling
    values["coupling"] = {"name": name, "least_share": share}
    distance = rows.one_row_distance(noise)
    # A slot is one reading of a home, and no person's only row.
    if distance is None or "state_of" in evidence.scenario["secret"]:
        return values | {"not_stated": {"one_person": "person-not-a-row"}}
    epsilon = row_epsilon(distance, options.person_delta, full.implementation_delta)
    if not epsilon < LARGEST:
        return values | {"not_stated": {"one_person": "no-finite-epsilon"}}
    person = {"epsilon": epsilon, "delta": options.person_delta}
    if any(prior["source"] == "released_data" for prior in evidence.scenario["priors"]):
        values["one_person_given_noise"] = person
        return values | {"not_stated": {"one_person": "noise-from-released-rows"}}
    return values | {"one_person": person, "not_stated": {}}


def _shape(full: Full, options: CertificateOptions, noise_std: float) -> dict[str, Any]:
    """Describe the public shape of the noise, and the guard that follows from it."""
    whole = noise_std and not options.target.is_sliced
    shape: dict[str, Any] = {
        "kind": options.shape,
        "whitening": None,
        "guard": guard_radius(full, options.target, noise_std) if whole else None,
        "gap": options.shape_gap,
    }
    if full.shape is not None and full.shape.whitening.size > MOST_STATED:
        shape["whitening_digest"] = full.shape.digest()
    elif full.shape is not None:
        shape["whitening"] = full.shape.whitening.tolist()
    return shape


def _profile(evidence: Evidence) -> ProfilePart | WholeSpherePart:
    if evidence.slices is None:
        whole = WholeSphere(dim=evidence.full.dim)
        return WholeSpherePart(kind=WHOLE_SPHERE, dim=whole.dim, digest=whole.digest())
    profile = evidence.slices.profile
    return ProfilePart(
        kind="sphere" if isinstance(profile, SampledSphere) else "finite",
        dim=profile.dim,
        n_directions=int(np.count_nonzero(profile.weights)),
        effective_slices=profile.effective_slices,
        largest_weight=float(profile.weights.max() / profile.weights.sum()),
        digest=profile.digest(),
    )


def _sampling(
    evidence: Evidence, options: CertificateOptions, noise_std: float
) -> dict[str, Any] | None:
    """Describe how sampled distributions were bounded, and their share of the noise."""
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
    """Split the noise standard deviation by cause: the prior, its sampling, the drawn slices."""
    if not options.target.is_sliced or not noise_std:
        return None
    slices = evidence.required_slices()
    drawn = FiniteProfile(directions=slices.profile.directions, weights=slices.profile.weights)
    finite = Slices(profile=drawn, differences=slices.differences, missing=slices.missing)
    with_bands = noise_std if slices.sphere is None else _noise_or_zero(options.target, finite)
    alone = with_bands
    if slices.plain is not None:
        alone = _noise_or_zero(options.target, Slices(profile=drawn, differences=slices.plain))
    alone, with_bands = min(alone, noise_std), min(with_bands, noise_std)
    return {
        "distribution": alone / noise_std,
        "sampling": max(0.0, with_bands - alone) / noise_std,
        "slicing": (noise_std - max(alone, with_bands)) / noise_std,
    }


def _noise_or_zero(target: Claim, slices: Slices) -> float:
    if target.method is None:
        return 0.0
    try:
        return target.whole.slice_noise(slices, target.notion, target.method)
    except CalibrationError:
        return 0.0


def _has_epsilons(full: Full, claim: Claim) -> bool:
    """Whether epsilons are stated: not beside a claim by mean square of very many statistics."""
    rows = full.differences
    of_rows = rows is not None and not rows.converts_orders
    return not (of_rows and claim.by_mean_square and full.dim > _MOST_BESIDE)


def unsliced_of(
    evidence: Evidence, order: float, noise_std: float, *, has_epsilon: bool = True
) -> UnslicedPart:
    """Bound what the noise costs in all dimensions, and how often the secret can be guessed."""
    values: dict[str, Any] = {"order": order, "epsilon": 0.0, "guess": 0.5}
    values["source"] = "equal distributions"
    if not evidence.are_equal:
        full = evidence.full
        bound = full.divergence(order, noise_std) if has_epsilon else math.inf
        guess = released_guess(full, noise_std)
        is_bounded = bound < LARGEST
        lacks = not is_bounded and full.differences is not None
        values |= {
            "epsilon": bound if is_bounded else None,
            "source": f"{full.source}: no bound at this order and noise" if lacks else full.source,
            "guess": None if guess >= 1 else guess,
        }
    return checked(UnslicedPart, values, "unsliced", CertificateError)
