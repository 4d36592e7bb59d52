# SPDX-License-Identifier: Apache-2.0
"""Issue a certificate from a scenario, and ask what another noise, order or notion would cost."""

import re
from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np

from pufferslice.calibration import Method, cost, full_cost
from pufferslice.certificate.document import Certificate
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.statement import Said, statement_of
from pufferslice.checks import check_above, check_between, check_one_of
from pufferslice.errors import ArgumentError, CalibrationError, CertificateError
from pufferslice.gaps import GapTables, GaussianPairs
from pufferslice.guarantee import RELEASE_NOTIONS, Guarantee
from pufferslice.noise import Noise, OperatingSystemNoise
from pufferslice.parallel import Progress, silent
from pufferslice.scenario import Scenario
from pufferslice.slicing import FiniteProfile

DEFAULT_DELTAS: Final = (1e-5,)

_BLIND: Final = 2.0**-40
_DIGEST: Final = re.compile("[0-9a-f]{64}")


def certify_release(  # noqa: PLR0913 - the claim is three nouns, the rest has safe defaults
    scenario: Scenario,
    profile: FiniteProfile,
    target: Guarantee,
    *,
    method: Method | None = None,
    deltas: Sequence[float] = DEFAULT_DELTAS,
    noise: Noise = OperatingSystemNoise(),  # noqa: B008 - it has no state
    earlier_releases: Sequence[str] = (),
    progress: Progress = silent,
) -> Certificate:
    """Find the noise for one release of the scenario's query, and state what it promises.

    Without `method`: the tight rule with the smallest envelope that applies. `deltas` are those
    of the (epsilon, delta) views. `earlier_releases` names what a ledger already holds.

    Guarantee: one release with the stated noise satisfies `target` for the scenario's priors and
    pairs, along the slices of `profile` if the target is sliced.
    """
    if profile.dim != scenario.dim:
        msg = (
            f"profile has dimension {profile.dim}, the query has {scenario.dim}; "
            f"use FiniteProfile.uniform(dim={scenario.dim}, ...)"
        )
        raise ArgumentError(msg)
    check_one_of(RELEASE_NOTIONS, notion=target.notion)
    for delta in deltas:
        check_between(0, 1, delta=delta)
    asked = tuple(dict.fromkeys(float(delta) for delta in deltas))
    _check_digests(earlier_releases)
    if method is not None and not target.is_sliced:
        msg = (
            f"method {method} is about slices; an unsliced target is calibrated on couplings of "
            "the whole output and takes no method"
        )
        raise ArgumentError(msg)
    gaussian = scenario.priors[0].kind == "gaussian"
    default = Method(rule="tight", envelope="exact" if gaussian else "transport")
    said = Said(
        target=target,
        method=method or default,
        deltas=asked,
        generator=noise.name,
        earlier_releases=tuple(earlier_releases),
    )
    evidence = Evidence.of(scenario, profile, progress)
    _check_seen(evidence)
    return Certificate(statement=statement_of(evidence, said), evidence=evidence)


def spent(
    certificate: Certificate,
    *,
    noise_std: float | None = None,
    notion: str | None = None,
    order: float | None = None,
) -> Guarantee:
    """What noise costs by the certificate's evidence; what is left out is as certified.

    `noise_std` is in scaled coordinates. The answer is a number, not a certificate.
    """
    evidence = required_evidence(certificate)
    claim = certificate.guarantee
    unit = Guarantee(
        notion=claim.notion if notion is None else notion,  # type: ignore[arg-type]
        order=claim.order if order is None else order,
        epsilon=1.0,
    )
    check_one_of(RELEASE_NOTIONS, notion=unit.notion)
    std = certificate.noise_std if noise_std is None else noise_std
    if evidence.slices.are_equal:
        msg = "the laws are equal: every noise, also none, costs nothing"
        raise CalibrationError(msg)
    check_above(0, noise_std=std)
    if unit.is_sliced:
        found = cost(evidence.slices, unit, std, Method(**certificate.statement["method"]))
    else:
        found = full_cost(evidence.full, unit.order, std)
    if not np.isfinite(found):
        msg = f"noise {std:g} gives no finite divergence at order {unit.order:g}; use more noise"
        raise CalibrationError(msg)
    return attrs.evolve(unit, epsilon=found)


def under_scenario(certificate: Certificate, scenario: Scenario) -> Certificate:
    """The certificate's noise and profile with the evidence of another scenario, for `spent`.

    The result is no certificate of that scenario: its statement is not the evidence's, and
    `verify` refutes it.
    """
    profile = required_evidence(certificate).slices.profile
    if scenario.dim != profile.dim:
        msg = f"the other scenario has dimension {scenario.dim}, the certificate {profile.dim}"
        raise ArgumentError(msg)
    evidence = Evidence.of(scenario, profile)
    statement = dict(certificate.statement) | {"evidence_digest": evidence.digest()}
    return Certificate(statement=statement, evidence=evidence)


def required_evidence(certificate: Certificate) -> Evidence:
    """The evidence, or an error that says how to get it; its digest must fit the statement."""
    if certificate.evidence is None:
        msg = (
            "statement only: the evidence is not at hand. Put the .evidence.npz file beside the "
            "certificate; whoever issued it has it"
        )
        raise CertificateError(msg)
    if certificate.evidence.digest() != certificate.statement["evidence_digest"]:
        msg = "the evidence does not belong to this statement: its digest differs"
        raise CertificateError(msg)
    return certificate.evidence


def _check_digests(earlier_releases: Sequence[str]) -> None:
    good = not isinstance(earlier_releases, str) and all(
        isinstance(one, str) and _DIGEST.fullmatch(one) for one in earlier_releases
    )
    if not good or len(set(earlier_releases)) != len(earlier_releases):
        msg = "earlier_releases must list digests of certificates, each once; use ledger.releases()"
        raise ArgumentError(msg)


def _check_seen(evidence: Evidence) -> None:
    """Refuse a profile that cannot see the difference between laws that do differ."""
    profile, seen = evidence.slices.profile, evidence.slices.seen
    used = profile.weights > 0
    if isinstance(seen, GaussianPairs):
        apart, visible = seen.differences(profile.directions[used])
    elif isinstance(evidence.full.seen, GapTables):
        apart = evidence.full.seen.worst().max(axis=1)
        visible = seen.worst()[:, used].max(axis=1)
    else:
        return
    blind = ~seen.equal & (visible <= apart * _BLIND)
    if blind.any():
        msg = (
            f"the profile does not see the difference between the laws of {int(blind.sum())} of "
            f"{len(blind)} (prior, pair) instances, which do differ; the noise would not hide it "
            "from anyone who looks in another direction. Use more, or other, directions"
        )
        raise CalibrationError(msg)
