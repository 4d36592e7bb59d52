# SPDX-License-Identifier: Apache-2.0
"""What a certificate would look like with other bounds, and what makes its noise.

What is computed from evidence is as confidential as the evidence; only `stated_variation` is not.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import check_above, check_count
from pufferslice._core.threads import Progress, silent
from pufferslice.calibration.calibrate import Method, full_cost, full_costs, slice_costs
from pufferslice.calibration.fit import shift_limit
from pufferslice.calibration.guarantee import Claim, Guarantee, GuessGuarantee
from pufferslice.calibration.guessing import (
    LOW_ORDERS,
    full_variation,
    released_variation,
    total_variation_bound,
)
from pufferslice.calibration.sphere import sphere_costs
from pufferslice.calibration.unsliced import unsliced_cost
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.issue import required_evidence
from pufferslice.certificate.statement import (
    CertificateOptions,
    calibrated_noise,
    unsliced_order,
)
from pufferslice.certificate.training import TrainingClaim
from pufferslice.errors import CalibrationError
from pufferslice.learning.accountants import calibrate_multiplier
from pufferslice.sensitivity import GapTables
from pufferslice.sensitivity.renyi import aggregate
from pufferslice.sensitivity.sensitivity import Full
from pufferslice.sensitivity.tables import MatchingTables

N_EPSILONS: Final = 25
_REACH: Final = 1.5
"""Powers of ten on both sides of the claimed epsilon."""
_MOST_ENTRIES: Final = 60_000
"""Total variations use tables rounded up to this many entries: still a bound, and quick."""

_UP: Final = 1 + 2.0**-40

TIGHT: Final = Method(rule="tight", envelope="transport")
CLOSED_FORM: Final = Method(rule="closed_form", envelope="worst_gap")


@final
@attrs.frozen(kw_only=True)
class SweepPoint:
    """One epsilon, or share of guesses: the noise that it needs, and what a reader could guess."""

    claim: Claim
    noise_std: float | None
    """By the certificate's method, in scaled (with a shape, whitened) coordinates; None where there
    is none."""
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
        """Of one coordinate, in scaled units; with a shape, the root mean square of them."""
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
    """Its share of the claim, aggregated over the slices; None for claims without an order."""
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
    average: float
    joint: float


def mean_absolute_error(noise_std: float) -> float:
    """Expected size of an error that is Gaussian noise: std * sqrt(2 / pi).

    >>> round(mean_absolute_error(1.0), 6)
    0.797885
    """
    return noise_std * math.sqrt(2 / math.pi)


def epsilons_around(claimed: float, n_epsilons: int = N_EPSILONS) -> tuple[float, ...]:
    """Round epsilons below and above the claimed one, which is in the middle, not rounded.

    >>> epsilons_around(1.0, 5)
    (0.0316, 0.178, 1.0, 5.62, 31.6)
    """
    check_above(0, claimed=claimed)
    check_count(3, n_epsilons=n_epsilons)
    half = n_epsilons // 2
    powers = [_REACH * step / half for step in range(-half, half + 1)]
    return tuple(claimed if not x else float(f"{claimed * 10**x:.3g}") for x in powers)


def bounds_around(claim: Claim, n_bounds: int = N_EPSILONS) -> tuple[float, ...]:
    """Other bounds of a claim, its own in the middle: epsilons, or shares of right guesses.

    >>> bounds_around(GuessGuarantee(at_most=0.6), 5)
    (0.5333, 0.5667, 0.6, 0.7333, 0.8667)
    """
    if not isinstance(claim, GuessGuarantee):
        return epsilons_around(claim.epsilon, n_bounds)
    check_count(3, n_bounds=n_bounds)
    steps = [i / (n_bounds // 2 + 1) for i in range(1, n_bounds // 2 + 1)]
    below = [0.5 + (claim.at_most - 0.5) * step for step in steps]
    above = [claim.at_most + (1 - claim.at_most) * step for step in steps]
    rounded = {share for x in (*below, *above) if 0.5 < (share := round(x, 4)) < 1}
    return tuple(sorted({*rounded, claim.at_most}))


def sweep_points(
    certificate: Certificate, bounds: Sequence[float], progress: Progress = silent
) -> tuple[SweepPoint, ...]:
    """For each bound (epsilon, or share of guesses) what the certificate would state.

    All else stays, shape and couplings included; to certify again may find better ones.
    Guarantee: noise and costs are those of the functions that certify. A sweep promises nothing:
    to use another bound, certify again.
    """
    evidence = required_evidence(certificate)
    stated = CertificateOptions.read_off(certificate.statement)
    delta = float(certificate.statement["noise"]["implementation_delta"])
    order = unsliced_order(stated.target)
    full, coarse = evidence.full, quick_full(evidence)
    has_closed_form = (
        isinstance(stated.target, Guarantee)
        and evidence.slices is not None
        and isinstance(evidence.slices.differences, GapTables)
    )
    points = []
    for done, bound in enumerate(bounds):
        progress(done, len(bounds))
        target = stated.target.with_bound(bound)
        options = attrs.evolve(stated, target=target, noise_std=None)
        noise_std = _noise_or_none(evidence, options)
        tight_std = closed_form_std = None
        if options.method is not None and options.method.rule == "tight":
            tight_std = noise_std
        elif options.method is not None:
            tight_std = _noise_or_none(evidence, attrs.evolve(options, method=TIGHT))
        if has_closed_form:
            closed_form_std = _noise_or_none(evidence, attrs.evolve(options, method=CLOSED_FORM))
        points.append(
            SweepPoint(
                claim=target,
                noise_std=noise_std,
                tight_std=tight_std,
                closed_form_std=closed_form_std,
                unsliced_order=order,
                unsliced_epsilon=_finite(full_cost(full, order, noise_std)) if noise_std else None,
                total_variation=released_variation(full_variation(coarse, noise_std), delta)
                if noise_std
                else 1.0,
            )
        )
    progress(len(bounds), len(bounds))
    return tuple(points)


def quick_full(evidence: Evidence) -> Full:
    """The whole output with tables that were rounded up to few entries: still a bound."""
    full = evidence.full
    if not isinstance(full.differences, MatchingTables):
        return full
    return attrs.evolve(full, differences=full.differences.coarsened(_MOST_ENTRIES))


def what_if_training(
    certificate: Certificate, epsilons: Sequence[float], progress: Progress = silent
) -> tuple[TrainingSweepPoint, ...]:
    """For each epsilon the noise multiplier of the same plan.

    None for several runs, for schedules, and for claims without an order.
    A sweep promises nothing: to use another epsilon, plan again.
    """
    stated = TrainingClaim.read_off(certificate.statement)
    plan, guarantee = stated.runs[0], stated.guarantee()
    if len(stated.runs) > 1 or np.ptp(plan.noise_multipliers) > 0:
        return ()
    if not isinstance(guarantee, Guarantee):
        return ()
    points = []
    for done, epsilon in enumerate(epsilons):
        progress(done, len(epsilons))
        claim = attrs.evolve(guarantee, epsilon=epsilon)
        multiplier, variation = None, 1.0
        with contextlib.suppress(CalibrationError):
            multiplier = calibrate_multiplier(
                plan.accountant, claim, plan.sampling, plan.differing, plan.n_steps
            )
        if multiplier is not None:
            noise = np.full(plan.n_steps, multiplier)
            run = attrs.evolve(plan, noise_multipliers=noise)
            variation = _training_variation(attrs.evolve(stated, runs=(run,)))
        points.append(
            TrainingSweepPoint(claim=claim, noise_multiplier=multiplier, total_variation=variation)
        )
    progress(len(epsilons), len(epsilons))
    return tuple(points)


def stated_variation(certificate: Certificate) -> float:
    """Bound on the total variation under two secrets, from the public statement alone.

    1, which says nothing, if the statement has no unsliced bound.
    """
    statement = certificate.statement
    if certificate.workflow == "training":
        return _training_variation(TrainingClaim.read_off(statement))
    guess = statement["unsliced"]["guess"]
    return 1.0 if guess is None else min(1.0, 2 * float(guess) - 1)


def _training_variation(claim: TrainingClaim) -> float:
    """Bound on the total variation of what runs release in two worlds, the best of some orders.

    1 for a claim on average over batch draws, which bounds nothing that is released.
    """
    if claim.runs[0].accountant.notion != "unsliced":
        return 1.0
    costs = [claim.cost(order) for order in LOW_ORDERS]
    bound = float(total_variation_bound(LOW_ORDERS, costs).min())
    bound = min(1.0, bound + claim.differing.excess_probability)
    return released_variation(bound, claim.implementation_delta)


def pair_costs(certificate: Certificate) -> tuple[PairCost, ...]:
    """Every pair under every prior, the hardest first."""
    evidence = required_evidence(certificate)
    claim, noise_std, slices = certificate.guarantee, certificate.noise_std, evidence.slices
    instances = _instances(evidence)
    sliced = None
    if slices is not None and isinstance(claim, Guarantee) and claim.is_sliced:
        # As the claim aggregates them; without the term for drawn directions.
        envelope = certificate.statement["method"]["envelope"]
        costs = slice_costs(slices, claim.order, noise_std, envelope)
        sliced = aggregate(claim.notion, claim.order, costs, slices.profile.weights)
    elif isinstance(claim, Guarantee) and claim.is_sliced:
        sliced = sphere_costs(evidence.full, claim, noise_std)
    gaps = None
    if slices is not None and isinstance(slices.differences, GapTables):
        gaps = slices.differences.worst().max(axis=1)
    unsliced = full_costs(evidence.full, unsliced_order(claim), noise_std)
    if len(unsliced) != len(instances):
        unsliced = np.full(len(instances), math.inf)
    rows = [
        PairCost(
            prior=prior,
            pair=pair,
            sliced_cost=None if sliced is None else _finite(sliced[i]),
            unsliced_cost=_finite(unsliced[i]),
            largest_gap=None if gaps is None else float(gaps[i]),
        )
        for i, (prior, pair) in enumerate(instances)
    ]
    return tuple(sorted(rows, key=_hardness, reverse=True))


def costs_if_off(certificate: Certificate, shares: Sequence[float]) -> tuple[float, ...]:
    r"""What a claim about the whole output costs if priors are off by these shares of its guard.

    If each true distribution is within a share t of the guard of the declared one ($W_\infty$),
    every coupled distance grows by at most $2 t \sqrt{c}$ times the noise, c the squared distance
    that the claim allows between two points. Empty where no coupling bounds the output.
    """
    evidence, claim = required_evidence(certificate), certificate.guarantee
    full, noise_std = evidence.full, certificate.noise_std
    tables, guard = full.differences, certificate.statement["noise"]["shape"]["guard"]
    if guard is None or full.from_range or not isinstance(tables, MatchingTables):
        return ()
    costs = []
    for share in shares:
        more = 2 * share * math.sqrt(shift_limit(claim)) * noise_std * _UP
        # What is declared equal may differ if a prior is off.
        off = attrs.evolve(tables, gaps=tables.gaps + more, equal=np.zeros_like(tables.equal))
        costs.append(unsliced_cost(attrs.evolve(full, differences=off), claim, noise_std))
    return tuple(costs)


def slice_profile(certificate: Certificate) -> SliceProfile | None:
    """The slices of the hardest pair; None without slices, or where gaps leave out tails."""
    evidence = required_evidence(certificate)
    slices, claim = evidence.slices, certificate.guarantee
    if slices is None or not claim.is_sliced or slices.missing.any() or slices.are_equal:
        return None
    order = unsliced_order(claim)
    envelope = certificate.statement["method"]["envelope"]
    costs = slice_costs(slices, order, certificate.noise_std, envelope)
    weights = slices.profile.weights
    averages, joints = (aggregate(name, order, costs, weights) for name in ("average", "joint"))
    hardest = int((averages if claim.notion == "average" else joints).argmax())
    used = weights > 0
    prior, pair = _instances(evidence)[hardest]
    return SliceProfile(
        prior=prior,
        pair=pair,
        order=order,
        costs=costs[hardest][used],
        average=float(averages[hardest]),
        joint=float(joints[hardest]),
    )


def _noise_or_none(evidence: Evidence, options: CertificateOptions) -> float | None:
    try:
        return calibrated_noise(evidence, options)
    except CalibrationError:
        return None


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
    return (
        -1.0 if row.sliced_cost is None else row.sliced_cost,
        math.inf if row.unsliced_cost is None else row.unsliced_cost,
        -1.0 if row.largest_gap is None else row.largest_gap,
    )
