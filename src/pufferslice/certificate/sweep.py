# SPDX-License-Identifier: Apache-2.0
"""Other bounds of a claim side by side, before any release; which pairs and slices cost most.

What is computed from evidence is as confidential as the evidence; only `stated_variation` is not.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import check_between, check_count
from pufferslice._core.display import data_frame, html_of, rounded
from pufferslice._core.text import shown
from pufferslice._core.threads import Progress, silent
from pufferslice.calibration.calibrate import Method, full_cost, full_costs, slice_costs
from pufferslice.calibration.epsilon_delta import unsliced_views
from pufferslice.calibration.fit import shift_limit
from pufferslice.calibration.guarantee import (
    Claim,
    Guarantee,
    GuessGuarantee,
    at_most,
    percent_at_most,
)
from pufferslice.calibration.guessing import (
    LOW_ORDERS,
    full_variation,
    released_variation,
    right_guesses,
    total_variation_bound,
)
from pufferslice.calibration.sphere import sphere_costs
from pufferslice.calibration.unsliced import unsliced_cost
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.issue import certify_release, required_evidence
from pufferslice.certificate.statement import (
    CertificateOptions,
    calibrated_noise,
    noise_stds,
    unsliced_order,
)
from pufferslice.certificate.training import TrainingClaim
from pufferslice.errors import CalibrationError
from pufferslice.learning.accountants import calibrate_multiplier
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity import GapTables
from pufferslice.sensitivity.couplings import Effort
from pufferslice.sensitivity.renyi import aggregate
from pufferslice.sensitivity.tables import MatchingTables

if TYPE_CHECKING:
    import pandas as pd

_REACH: Final = 1.5
"""Powers of ten on both sides of the claimed epsilon."""
_MOST_ENTRIES: Final = 60_000
"""Total variations and views use tables rounded up to so many entries: still a bound, and quick."""

_UP: Final = 1 + 2.0**-40

TIGHT: Final = Method(rule="tight", envelope="transport")
CLOSED_FORM: Final = Method(rule="closed_form", envelope="worst_gap")

_LADDER: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Epsilons to try, as shares of the claimed one."""
_N_GUESSES: Final = 7
DELTA: Final = 1e-5
_INTERNAL: Final = (
    "Internal: nothing is spent. Estimates only: far from the claim, noise and guesses may be "
    "larger."
)


@final
@attrs.frozen(kw_only=True)
class SweepPoint:
    """One bound of a claim: the noise that it needs, and what a reader could guess."""

    claim: Claim
    noise_std: float | None
    """By the certificate's method, in scaled (with a shape, whitened) coordinates; None where no
    noise reaches the bound."""
    noise_stds: Floats | None = attrs.field(converter=attrs.converters.optional(locked), eq=same)
    """Of each statistic, in the user's units."""
    tight_std: float | None
    """By the tight rule; None for claims that are not along slices."""
    closed_form_std: float | None
    """By the paper's closed form; None where it does not apply."""
    unsliced_epsilon: float | None
    """Bound on the unsliced cost at the order of the statement; None where it is infinite."""
    epsilon_at_delta: float | None
    """The best view of the whole output at the delta that was asked for; None if there is none."""
    total_variation: float
    """Bound on the total variation of what is released under two secrets; 1 is no bound."""

    @property
    def guess(self) -> float:
        """Most that guesses between two protected secrets, equally likely before, can be right."""
        return right_guesses(self.total_variation)


@final
@attrs.frozen(kw_only=True, repr=False)
class Sweep:
    """What other bounds of a claim would cost, all else equal; `print(sweep)` is a table.

    Shape and couplings are those found for the claim itself: far from it, a certificate of another
    bound may have noise that is a quarter larger, or more right guesses. A sweep promises nothing
    and spends nothing: to use a bound, certify it.
    """

    claim: Claim
    """The one that was asked about."""
    names: tuple[str, ...]
    """The statistics."""
    order: float
    """Of `unsliced_epsilon`."""
    delta: float
    """Of `epsilon_at_delta`."""
    rows: tuple[SweepPoint, ...]

    @classmethod
    def of(
        cls,
        certificate: Certificate,
        bounds: Sequence[float] | None = None,
        *,
        delta: float = DELTA,
        progress: Progress = silent,
    ) -> "Sweep":
        """Other bounds of a certificate: epsilons, or shares of guesses; without, some around it.

        Needs the evidence, and distributions that differ.
        """
        check_between(0, 1, delta=delta)
        statement = certificate.statement
        if required_evidence(certificate).are_equal:
            raise CalibrationError("the distributions are equal: every bound holds without noise")
        claim = certificate.guarantee
        bounds = _ladder(claim) if bounds is None else bounds
        return cls(
            claim=claim,
            names=tuple(statement["scenario"]["query"]["names"]),
            order=float(statement["unsliced"]["order"]),
            delta=float(delta),
            rows=sweep_points(certificate, bounds, delta=float(delta), progress=progress),
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "claim": self.claim.to_json(),
            "order": self.order,
            "delta": self.delta,
            "rows": [
                {
                    "bound": row.claim.bound,
                    "guess": row.guess,
                    "unsliced_epsilon": row.unsliced_epsilon,
                    "epsilon_at_delta": row.epsilon_at_delta,
                    "noise_std_by_coordinate": None
                    if row.noise_stds is None
                    else dict(zip(self.names, row.noise_stds.tolist(), strict=True)),
                }
                for row in self.rows
            ],
        }

    def to_pandas(self) -> "pd.DataFrame":
        """One row per bound; the noise of each statistic is a column with its name."""
        rows = []
        for row in self.to_dict()["rows"]:
            noise = row.pop("noise_std_by_coordinate") or dict.fromkeys(self.names)
            rows.append(row | noise)
        return data_frame(rows)

    def __str__(self) -> str:
        table = self._table()
        rows = [list(table[0]), *(list(line.values()) for line in table)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in rows
        ]
        return "\n".join([f"{self._heading}:", *lines, _INTERNAL])

    def _repr_html_(self) -> str:
        return html_of([f"{self._heading}."], self._table(), str(self), internal=True)

    def __repr__(self) -> str:
        return f"Sweep(claim='{self.claim}', n_bounds={len(self.rows)})"

    @property
    def _heading(self) -> str:
        return f"What other bounds would cost; the claim is {self.claim}"

    def _table(self) -> list[dict[str, str]]:
        """A line for each number, a column for each bound; nothing where there is no number."""
        heads = [f"{row.claim.bound:g}" for row in self.rows]
        lines = {
            "right guesses": [
                percent_at_most(row.guess).replace("\u00a0", " ") for row in self.rows
            ],
            f"epsilon at order {self.order:g}": [_up(row.unsliced_epsilon) for row in self.rows],
            f"epsilon at delta {self.delta:g}": [_up(row.epsilon_at_delta) for row in self.rows],
        }
        lines = {name: cells for name, cells in lines.items() if set(cells) != {"-"}}
        for place, name in enumerate(self.names):
            lines[f"noise of {shown(name)}"] = [
                "-" if row.noise_stds is None else rounded(float(row.noise_stds[place]))
                for row in self.rows
            ]
        return [
            {"bound": name} | dict(zip(heads, cells, strict=True)) for name, cells in lines.items()
        ]


def what_if(
    scenario: Scenario,
    guarantee: Claim,
    *,
    bounds: Sequence[float] | None = None,
    delta: float = DELTA,
    effort: Effort = "thorough",
    progress: Progress = silent,
) -> Sweep:
    """What other bounds of a guarantee would cost, before anything is certified or spent.

    `bounds` are epsilons or, of `Guarantee.guess`, shares of right guesses; without, some around
    that of `guarantee`. Couplings are looked for once. For a guarantee with options of its own (a
    shape, a method, samples) certify it and ask `Sweep.of(certificate)`.
    """
    certificate = certify_release(scenario, guarantee, effort=effort, progress=progress)
    return Sweep.of(certificate, bounds, delta=delta, progress=progress)


def _ladder(claim: Claim) -> tuple[float, ...]:
    """Bounds to try; the claim's own is among them, not rounded."""
    if isinstance(claim, GuessGuarantee):
        return bounds_around(claim, _N_GUESSES)
    return tuple(
        claim.bound if share == 1 else float(f"{claim.bound * share:.3g}") for share in _LADDER
    )


def _up(epsilon: float | None) -> str:
    return "-" if epsilon is None else at_most(epsilon, digits=3)


@final
@attrs.frozen(kw_only=True)
class TrainingSweepPoint:
    """One epsilon of a training run: the noise multiplier that its plan would have."""

    claim: Guarantee
    noise_multiplier: float | None
    """By the plan's own accountant; None where there is none."""
    total_variation: float
    """Bound on the total variation of what the run releases in two worlds; 1 is no bound."""


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


def bounds_around(claim: Claim, n_bounds: int = 25) -> tuple[float, ...]:
    """Other bounds of a claim, its own in the middle: epsilons, or shares of right guesses.

    >>> bounds_around(Guarantee.unsliced(order=4, epsilon=1.0), 5)
    (0.0316, 0.178, 1.0, 5.62, 31.6)
    >>> bounds_around(GuessGuarantee(at_most=0.6), 5)
    (0.5333, 0.5667, 0.6, 0.7333, 0.8667)
    """
    check_count(3, n_bounds=n_bounds)
    half = n_bounds // 2
    if not isinstance(claim, GuessGuarantee):
        powers = [_REACH * step / half for step in range(-half, half + 1)]
        return tuple(claim.bound if not x else float(f"{claim.bound * 10**x:.3g}") for x in powers)
    steps = [i / (half + 1) for i in range(1, half + 1)]
    below = [0.5 + (claim.at_most - 0.5) * step for step in steps]
    above = [claim.at_most + (1 - claim.at_most) * step for step in steps]
    rounded_shares = {share for x in (*below, *above) if 0.5 < (share := round(x, 4)) < 1}
    return tuple(sorted({*rounded_shares, claim.at_most}))


def sweep_points(
    certificate: Certificate,
    bounds: Sequence[float],
    *,
    delta: float | None = None,
    progress: Progress = silent,
) -> tuple[SweepPoint, ...]:
    """For each bound (epsilon, or share of guesses) what the certificate would state.

    All else stays, shape and couplings included; to certify again may find better ones.
    Guarantee: noise and costs are those of the functions that certify. A sweep promises nothing:
    to use another bound, certify again.
    """
    evidence = required_evidence(certificate)
    stated = CertificateOptions.read_off(certificate.statement)
    distance = float(certificate.statement["noise"]["implementation_delta"])
    scales = np.array(certificate.statement["scenario"]["query"]["scales"])
    order, full = unsliced_order(stated.target), evidence.full
    coarse = full
    if isinstance(full.differences, MatchingTables):
        coarse = attrs.evolve(full, differences=full.differences.coarsened(_MOST_ENTRIES))
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
        stds, epsilon, at_delta, variation = None, None, None, 1.0
        if noise_std:
            stds = noise_stds(full, noise_std) * scales
            epsilon = _finite(full_cost(full, order, noise_std))
            variation = released_variation(full_variation(coarse, noise_std), distance)
            if delta is not None:
                views = unsliced_views(coarse, noise_std, order, delta)
                at_delta = _finite(min((view.epsilon for view in views), default=math.inf))
        points.append(
            SweepPoint(
                claim=target,
                noise_std=noise_std,
                noise_stds=stds,
                tight_std=tight_std,
                closed_form_std=closed_form_std,
                unsliced_epsilon=epsilon,
                epsilon_at_delta=at_delta,
                total_variation=variation,
            )
        )
    progress(len(bounds), len(bounds))
    return tuple(points)


def what_if_training(
    certificate: Certificate, epsilons: Sequence[float], progress: Progress = silent
) -> tuple[TrainingSweepPoint, ...]:
    """For each epsilon the noise multiplier of the same plan.

    None for several runs, for schedules, and for claims without an order.
    A sweep promises nothing: to use another epsilon, plan again.
    """
    stated = TrainingClaim.read_off(certificate.statement)
    plan, guarantee = stated.runs[0], stated.guarantee()
    is_constant = len(stated.runs) == 1 and not np.ptp(plan.noise_multipliers)
    if not is_constant or not isinstance(guarantee, Guarantee):
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

    1, which is no bound, if the statement has none for the whole output.
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
