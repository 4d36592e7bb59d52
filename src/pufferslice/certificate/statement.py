# SPDX-License-Identifier: Apache-2.0
"""The public statement of a certificate, computed from the evidence and from what was asked."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import attrs

from pufferslice.calibration import (
    Method,
    calibrate,
    calibrate_unsliced,
    cost,
    full_cost,
)
from pufferslice.certificate.evidence import Evidence
from pufferslice.errors import CalibrationError
from pufferslice.gaps import GapTables
from pufferslice.guarantee import Guarantee
from pufferslice.noise import DRAW_DELTA, SIGMA_INT, OperatingSystemNoise
from pufferslice.views import views_of

ROUNDING_DELTA: Final = 2.0**-46
"""Total variation, per coordinate, between an integer Gaussian around a rounded point and the
rounded real Gaussian around the point itself: at most (1/2) / (sqrt(2 pi) 2^44), plus less than
2^-80 for rounding the density. Charged where the divergence is that of the real mechanism."""

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
_EQUAL: Final = "The laws are equal under every pair, so no noise is added."
_INSECURE: Final = "INSECURE: the noise comes from a seeded test generator. Never publish it."
_DROPPED: Final = "{n} rows with missing values were left out; the claim is about the others."


@final
@attrs.frozen(kw_only=True)
class Said:
    """What the caller of a certificate decided; everything else follows from the evidence."""

    target: Guarantee
    method: Method
    deltas: tuple[float, ...]
    generator: str
    earlier_releases: tuple[str, ...]

    @classmethod
    def read_off(cls, statement: Mapping[str, Any]) -> "Said":
        """The decisions that a statement reports."""
        return cls(
            target=Guarantee(**statement["guarantee"]),
            method=Method(**statement["method"]),
            deltas=tuple(statement["deltas"]),
            generator=statement["noise"]["generator"],
            earlier_releases=tuple(statement["earlier_releases"]),
        )


def calibrated_noise(evidence: Evidence, said: Said) -> float:
    """The noise standard deviation that the target asks for, in scaled coordinates."""
    if said.target.is_sliced:
        return calibrate(said.target, evidence.slices, said.method)
    return calibrate_unsliced(said.target, evidence.full)


def spent_epsilon(evidence: Evidence, said: Said, noise_std: float) -> float:
    """The number that the claim bounds, at this noise."""
    if evidence.slices.are_equal:
        return 0.0
    if said.target.is_sliced:
        return cost(evidence.slices, said.target, noise_std, said.method)
    return full_cost(evidence.full, said.target.order, noise_std)


def statement_of(evidence: Evidence, said: Said) -> dict[str, Any]:
    """The whole public statement; deterministic in its two arguments."""
    noise_std = calibrated_noise(evidence, said)
    spent = spent_epsilon(evidence, said, noise_std)
    if not spent <= said.target.epsilon:
        msg = f"the calibrated noise {noise_std!r} costs {spent!r}, more than the target"
        raise CalibrationError(msg)
    profile = evidence.slices.profile
    equal = evidence.slices.are_equal
    return {
        "road": "static",
        "scenario": dict(evidence.scenario),
        "guarantee": attrs.asdict(said.target),
        "method": attrs.asdict(said.method),
        "spent_epsilon": spent,
        "laws_are_equal": equal,
        "noise": _noise(evidence, said.generator, noise_std),
        "profile": {
            "dim": profile.dim,
            "n_directions": profile.n_directions,
            "digest": profile.digest(),
        },
        "failure_probability": 0.0,
        "unsliced": _unsliced(evidence, said.target.order, noise_std),
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
    if evidence.slices.are_equal:
        limits.append(_EQUAL)
    if generator != OperatingSystemNoise.name:
        limits.append(_INSECURE)
    return limits


def implementation_delta(evidence: Evidence) -> float:
    """Total variation between the sampled release and the one the bound is about."""
    exact = not isinstance(evidence.slices.seen, GapTables)
    return evidence.full.dim * (DRAW_DELTA + (ROUNDING_DELTA if exact else 0.0))


def _noise(evidence: Evidence, generator: str, noise_std: float) -> dict[str, Any]:
    scales: Sequence[float] = evidence.scenario["query"]["scales"]
    return {
        "family": "integer_gaussian",
        "std": noise_std,
        "std_by_coordinate": [noise_std * scale for scale in scales],
        "grid": noise_std / SIGMA_INT,
        "generator": generator,
        "secure": generator == OperatingSystemNoise.name,
        "implementation_delta": implementation_delta(evidence) if noise_std else 0.0,
    }


def _unsliced(evidence: Evidence, order: float, noise_std: float) -> dict[str, Any]:
    if evidence.slices.are_equal:
        return {"order": order, "epsilon": 0.0, "from": "equal laws"}
    seen = evidence.full.seen
    bound = full_cost(evidence.full, order, noise_std)
    made = (
        f"the best of {seen.n_slices} couplings per pair"
        if isinstance(seen, GapTables)
        else "the exact divergence of the Gaussian laws"
    )
    if not math.isfinite(bound):
        return {
            "order": order,
            "epsilon": None,
            "from": f"{made}: infinite at this order and noise",
        }
    return {"order": order, "epsilon": bound, "from": made}


def _views(evidence: Evidence, said: Said, noise_std: float) -> list[dict[str, Any]]:
    noise = (noise_std, said.method)
    return [
        attrs.asdict(view)
        for delta in said.deltas
        for view in views_of(evidence.slices, evidence.full, said.target, noise, delta)
    ]
