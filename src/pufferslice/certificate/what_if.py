# SPDX-License-Identifier: Apache-2.0
"""What a certificate would look like at other epsilons, and what makes its noise.

What is computed from evidence is as confidential as the evidence; only `stated_variation` is not.
"""

import math
from collections.abc import Sequence
from typing import Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import check_above, check_count
from pufferslice._core.threads import Progress, silent
from pufferslice.calibration.calibrate import Method, full_cost, full_costs, slice_costs
from pufferslice.calibration.epsilon_delta import REPORTED_ORDER
from pufferslice.calibration.guarantee import ApproximateGuarantee, Claim, Guarantee
from pufferslice.calibration.guessing import (
    LOW_ORDERS,
    full_variation,
    released_variation,
    total_variation_bound,
)
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.issue import required_evidence
from pufferslice.certificate.statement import CertificateOptions, calibrated_noise
from pufferslice.certificate.training import TrainingClaim
from pufferslice.errors import CalibrationError
from pufferslice.learning import TrainingPlan
from pufferslice.learning.accountants import calibrate_multiplier
from pufferslice.sensitivity import GapTables, MatchingTables
from pufferslice.sensitivity.renyi import aggregate
from pufferslice.sensitivity.sensitivity import Full

N_EPSILONS: Final = 25
_REACH: Final = 1.5
"""Powers of ten on both sides of the claimed epsilon."""
_MOST_ENTRIES: Final = 60_000
"""Unsliced costs are read off tables rounded up to this many entries: a bound still, and quick."""

TIGHT: Final = Method(rule="tight", envelope="transport")
CLOSED_FORM: Final = Method(rule="closed_form", envelope="worst_gap")


@final
@attrs.frozen(kw_only=True)
class SweepPoint:
    """One epsilon: the noise that it asks for, and what that noise would let a reader guess."""

    claim: Claim
    noise_std: float | None
    """By the certificate's own method, in scaled coordinates; None where there is none."""
    tight_std: float | None
    """By the tight rule; None for claims that are not along slices."""
    closed_form_std: float | None
    """By the paper's closed form; None where it does not apply."""
    unsliced_order: float
    unsliced_epsilon: float | None
    """Bound on the unsliced cost of `noise_std` at `unsliced_order`; None where it is infinite."""
    total_variation: float
    """Bound on the total variation of what is released under two secrets; 1 says nothing."""

    @property
    def mean_absolute_error(self) -> float | None:
        """Of one coordinate, in scaled units."""
        return None if self.noise_std is None else mean_absolute_error(self.noise_std)


@final
@attrs.frozen(kw_only=True)
class TrainingSweepPoint:
    """One epsilon of a training run: the noise multiplier that its plan would have."""

    claim: Guarantee
    noise_multiplier: float | None
    """By the plan's own accountant; None where there is none."""
    total_variation: float
    """Bound on the total variation of what the run releases in two worlds; 1 says nothing."""


@final
@attrs.frozen(kw_only=True)
class PairCost:
    """How hard one pair of secrets is to protect, under one prior, at the certificate's noise."""

    prior: str
    pair: tuple[str, str]
    sliced_cost: float | None
    """Its own share of the claim, aggregated over the slices; None for claims without an order."""
    unsliced_cost: float | None
    """Bound on its unsliced divergence; None where there is none."""
    largest_gap: float | None
    """Along the slice that shows most, in scaled units; None for Gaussian distributions."""


@final
@attrs.frozen(kw_only=True)
class SliceProfile:
    """What each slice can show of the pair that costs most, at the certificate's noise."""

    prior: str
    pair: tuple[str, str]
    order: float
    costs: Floats = attrs.field(converter=locked, eq=same)
    """One per slice of positive weight."""
    angles: Floats | None = attrs.field(eq=attrs.cmp_using(eq=np.array_equal))
    """Of the directions, in radians, if the query has two coordinates; a slice has no sign."""
    average: float
    joint: float


def mean_absolute_error(noise_std: float) -> float:
    """Expected size of an error that is Gaussian noise: std * sqrt(2 / pi).

    >>> round(mean_absolute_error(1.0), 6)
    0.797885
    """
    return noise_std * math.sqrt(2 / math.pi)


def epsilons_around(claimed: float, n_epsilons: int = N_EPSILONS) -> tuple[float, ...]:
    """Round epsilons below and above the claimed one, which stands in the middle as it is.

    >>> epsilons_around(1.0, 5)
    (0.0316, 0.178, 1.0, 5.62, 31.6)
    """
    check_above(0, claimed=claimed)
    check_count(3, n_epsilons=n_epsilons)
    half = n_epsilons // 2
    powers = [_REACH * step / half for step in range(-half, half + 1)]
    return tuple(claimed if not x else float(f"{claimed * 10**x:.3g}") for x in powers)


def what_if(
    certificate: Certificate, epsilons: Sequence[float], progress: Progress = silent
) -> tuple[SweepPoint, ...]:
    """For each epsilon what the certificate would state, all else as it is.

    Guarantee: noise and costs are those of the functions that certify. Nothing is promised by an
    outlook: to use another epsilon, certify again.
    """
    evidence = required_evidence(certificate)
    said = CertificateOptions.read_off(certificate.statement)
    delta = float(certificate.statement["noise"]["implementation_delta"])
    order = _unsliced_order(said.target)
    found = []
    for done, epsilon in enumerate(epsilons):
        progress(done, len(epsilons))
        target = attrs.evolve(said.target, epsilon=epsilon)
        asked = attrs.evolve(said, target=target, noise_std=None)
        noise_std = _noise_or_none(evidence, asked)
        cost = full_cost(evidence.full, order, noise_std) if noise_std else math.inf
        found.append(
            SweepPoint(
                claim=asked.target,
                noise_std=noise_std,
                tight_std=_tight(evidence, asked, noise_std),
                closed_form_std=_closed_form(evidence, asked),
                unsliced_order=order,
                unsliced_epsilon=_finite(cost),
                total_variation=1.0,
            )
        )
    progress(len(epsilons), len(epsilons))
    variations = _variations_at(evidence.full, [row.noise_std for row in found], delta)
    return tuple(
        attrs.evolve(row, total_variation=variation)
        for row, variation in zip(found, variations, strict=True)
    )


def _variations_at(
    full: Full, noise_stds: Sequence[float | None], implementation_delta: float
) -> list[float]:
    """Bounds on the total variation under two secrets; 1, which says nothing, without a noise."""
    coarse = _coarse_full(full)
    return [
        released_variation(full_variation(coarse, std), implementation_delta) if std else 1.0
        for std in noise_stds
    ]


def what_if_training(
    certificate: Certificate, epsilons: Sequence[float], progress: Progress = silent
) -> tuple[TrainingSweepPoint, ...]:
    """For each epsilon the noise multiplier of the same plan; none for several runs or schedules.

    Nothing is promised by an outlook: to use another epsilon, plan again.
    """
    said = TrainingClaim.read_off(certificate.statement)
    plan = said.runs[0]
    if len(said.runs) > 1 or np.ptp(plan.noise_multipliers) > 0:
        return ()
    found = []
    for done, epsilon in enumerate(epsilons):
        progress(done, len(epsilons))
        claim = attrs.evolve(said.guarantee(), epsilon=epsilon)
        multiplier = _multiplier_or_none(plan, claim)
        variation = 1.0
        if multiplier is not None:
            noise = np.full(plan.n_steps, multiplier)
            changed = attrs.evolve(plan, noise_multipliers=noise)
            variation = _training_variation(attrs.evolve(said, runs=(changed,)))
        found.append(
            TrainingSweepPoint(claim=claim, noise_multiplier=multiplier, total_variation=variation)
        )
    progress(len(epsilons), len(epsilons))
    return tuple(found)


def _training_variation(said: TrainingClaim) -> float:
    """Bound on the total variation of what runs release in two worlds, the best of some orders.

    1 for a claim on average over batch draws, which bounds nothing that is released.
    """
    if said.guarantee().notion != "unsliced":
        return 1.0
    costs = [said.cost(order) for order in LOW_ORDERS]
    bound = float(total_variation_bound(LOW_ORDERS, costs).min())
    return released_variation(bound, said.implementation_delta)


def stated_variation(certificate: Certificate) -> float:
    """Bound on the total variation under two secrets, from the public statement alone.

    1, which says nothing, if the statement has no unsliced bound.
    """
    statement = certificate.statement
    if certificate.road == "learning":
        return _training_variation(TrainingClaim.read_off(statement))
    guess = statement["unsliced"]["guess"]
    return 1.0 if guess is None else min(1.0, 2 * float(guess) - 1)


def _coarse_full(full: Full) -> Full:
    """The same couplings with fewer, larger distances: still a bound."""
    if not isinstance(full.seen, MatchingTables):
        return full
    return attrs.evolve(full, seen=full.seen.coarsened(_MOST_ENTRIES))


def _unsliced_order(claim: Claim) -> float:
    """The order at which the unsliced cost is stated."""
    return claim.order if isinstance(claim, Guarantee) else REPORTED_ORDER


def pair_costs(certificate: Certificate) -> tuple[PairCost, ...]:
    """Every pair under every prior, the hardest first."""
    evidence = required_evidence(certificate)
    claim, noise_std = certificate.guarantee, certificate.noise_std
    names = _instances(evidence)
    sliced = _sliced_costs(evidence, certificate)
    seen = evidence.slices.seen
    gaps = seen.worst().max(axis=1) if isinstance(seen, GapTables) else None
    unsliced = full_costs(evidence.full, _unsliced_order(claim), noise_std)
    if len(unsliced) != len(names):
        unsliced = np.full(len(names), math.inf)
    rows = [
        PairCost(
            prior=prior,
            pair=pair,
            sliced_cost=None if sliced is None else _finite(sliced[i]),
            unsliced_cost=_finite(unsliced[i]),
            largest_gap=None if gaps is None else float(gaps[i]),
        )
        for i, (prior, pair) in enumerate(names)
    ]
    return tuple(sorted(rows, key=_hardness, reverse=True))


def slice_profile(certificate: Certificate) -> SliceProfile | None:
    """The slices of the hardest pair; None where gaps leave out tails, so that no cost is known."""
    evidence = required_evidence(certificate)
    slices, claim = evidence.slices, certificate.guarantee
    if slices.missing.any() or slices.are_equal:
        return None
    order = _unsliced_order(claim)
    method = Method(**certificate.statement["method"])
    costs = slice_costs(slices, order, certificate.noise_std, method.envelope)
    weights = slices.profile.weights
    averages, joints = (aggregate(name, order, costs, weights) for name in ("average", "joint"))
    most = int((averages if claim.notion == "average" else joints).argmax())
    used = weights > 0
    directions = slices.profile.directions[used]
    prior, pair = _instances(evidence)[most]
    return SliceProfile(
        prior=prior,
        pair=pair,
        order=order,
        costs=costs[most][used],
        angles=np.arctan2(directions[:, 1], directions[:, 0]) if directions.shape[1] == 2 else None,
        average=float(averages[most]),
        joint=float(joints[most]),
    )


def _multiplier_or_none(plan: TrainingPlan, claim: Guarantee) -> float | None:
    try:
        return calibrate_multiplier(
            plan.accountant, claim, plan.sampling, plan.differing, plan.n_steps
        )
    except CalibrationError:
        return None


def _noise_or_none(evidence: Evidence, said: CertificateOptions) -> float | None:
    try:
        return calibrated_noise(evidence, said)
    except CalibrationError:
        return None


def _tight(evidence: Evidence, said: CertificateOptions, own: float | None) -> float | None:
    """The tight rule for the same claim; `own` is what the certificate's method asks for."""
    if not said.target.is_sliced:
        return None
    if said.method.rule == "tight":
        return own
    return _noise_or_none(evidence, attrs.evolve(said, method=TIGHT))


def _closed_form(evidence: Evidence, said: CertificateOptions) -> float | None:
    """The paper's rule for the same claim, where it has one."""
    gaps = isinstance(evidence.slices.seen, GapTables)
    if not gaps or isinstance(said.target, ApproximateGuarantee) or not said.target.is_sliced:
        return None
    return _noise_or_none(evidence, attrs.evolve(said, method=CLOSED_FORM))


def _sliced_costs(evidence: Evidence, certificate: Certificate) -> Floats | None:
    """Per instance, aggregated as the claim does; without the term for drawn directions."""
    claim = certificate.guarantee
    if not isinstance(claim, Guarantee) or not claim.is_sliced:
        return None
    method = Method(**certificate.statement["method"])
    costs = slice_costs(evidence.slices, claim.order, certificate.noise_std, method.envelope)
    return aggregate(claim.notion, claim.order, costs, evidence.slices.profile.weights)


def _instances(evidence: Evidence) -> list[tuple[str, tuple[str, str]]]:
    """Prior and pair of every instance, in the order of the evidence."""
    scenario = evidence.scenario
    return [
        (str(prior["name"]), (str(first), str(second)))
        for prior in scenario["priors"]
        for first, second in scenario["pairs"]
    ]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _hardness(row: PairCost) -> tuple[float, float, float]:
    infinite = math.inf
    return (
        -1.0 if row.sliced_cost is None else row.sliced_cost,
        infinite if row.unsliced_cost is None else row.unsliced_cost,
        -1.0 if row.largest_gap is None else row.largest_gap,
    )
