# SPDX-License-Identifier: Apache-2.0
"""Sweeps: the cost of other bounds of a claim, and which pairs and slices cost most.

What is computed from evidence is as confidential as the evidence; only `stated_variation` is not.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import check_between
from pufferslice._core.display import Shown, rounded
from pufferslice._core.numbers import at_most, percent_at_most
from pufferslice._core.plot import Plot
from pufferslice._core.text import shown
from pufferslice._core.threads import Progress, silent
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.issue import decided_release, required_evidence
from pufferslice.certificate.pictures import sweep_plot
from pufferslice.certificate.release import CertificateOptions
from pufferslice.certificate.statement import TrainingStatement
from pufferslice.certificate.training import TrainingClaim
from pufferslice.claims import Claim, Method
from pufferslice.claims.guess import released_variation, right_guesses
from pufferslice.claims.views import unsliced_views
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.learning.plan import least_multiplier
from pufferslice.noise.decision import NoiseOptions, noise_stds
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.couplings import Effort
from pufferslice.sensitivity.renyi import aggregate

_MOST_ENTRIES: Final = 60_000
"""Entries to which tables are rounded up for total variations and views: still a bound."""

_UP: Final = 1 + 2.0**-40

TIGHT: Final = Method(rule="tight", envelope="transport")
CLOSED_FORM: Final = Method(rule="closed_form", envelope="worst_gap")

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
    """Noise by the certificate's method, in scaled (with a shape, whitened) coordinates; None where
    no noise reaches the bound."""
    noise_stds: Floats | None = attrs.field(converter=attrs.converters.optional(locked), eq=same)
    """Noise standard deviation of each statistic, in the user's units."""
    tight_std: float | None
    """Noise by the tight rule; None for claims that are not along slices."""
    closed_form_std: float | None
    """Noise by the paper's closed form; None where it does not apply."""
    unsliced_epsilon: float | None
    """Bound on the unsliced cost at the order of the statement; None where it is infinite."""
    epsilon_at_delta: float | None
    """Best view of the whole output at the requested delta; None if there is none."""
    total_variation: float
    """Bound on the total variation between releases under two secrets; 1 is no bound."""

    @property
    def guess(self) -> float:
        """Upper bound on right guesses between two protected, equally likely secrets."""
        return right_guesses(self.total_variation)


@final
@attrs.frozen(kw_only=True, repr=False)
class Sweep(Shown):
    """The costs of other bounds of a claim, all else equal; `print(sweep)` is a table.

    Shape and couplings are those found for the claim itself: far from it, a certificate of another
    bound may have noise that is a quarter larger, or more right guesses. A sweep promises nothing
    and spends nothing: to use a bound, certify it.
    """

    claim: Claim
    """Claim that the sweep started from."""
    names: tuple[str, ...]
    """Names of the statistics."""
    order: float
    """Order of `unsliced_epsilon`."""
    delta: float
    """Delta of `epsilon_at_delta`."""
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
        """Sweep over bounds of a certificate: epsilons, or shares of guesses; by default near it.

        Needs the evidence, and distributions that differ.
        """
        evidence = required_evidence(certificate)
        options = CertificateOptions.read_off(certificate.released)
        return cls.decided(evidence, options, bounds, delta=delta, progress=progress)

    @classmethod
    def decided(
        cls,
        evidence: Evidence,
        options: CertificateOptions,
        bounds: Sequence[float] | None = None,
        *,
        delta: float = DELTA,
        progress: Progress = silent,
    ) -> "Sweep":
        """Sweep over bounds of a release that need not be certified."""
        check_between(0, 1, delta=delta)
        if evidence.are_equal:
            raise CalibrationError("the distributions are equal: every bound holds without noise")
        claim = options.target
        bounds = claim.ladder() if bounds is None else bounds
        return cls(
            claim=claim,
            names=tuple(evidence.scenario["query"]["names"]),
            order=claim.reported_order,
            delta=float(delta),
            rows=_points(evidence, options, bounds, delta=float(delta), progress=progress),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the sweep as JSON values."""
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

    def table_rows(self) -> list[dict[str, Any]]:
        """Return one row per bound; the noise of each statistic is a column with its name."""
        rows = []
        for row in self.to_json()["rows"]:
            noise = row.pop("noise_std_by_coordinate") or dict.fromkeys(self.names)
            rows.append(row | noise)
        return rows

    def plot(self) -> Plot:
        """Draw the noise, relative to that of the claim, and right guesses against the bound."""
        return sweep_plot(self)

    def __str__(self) -> str:
        table = self.shown_rows()
        rows = [list(table[0]), *(list(line.values()) for line in table)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in rows
        ]
        return "\n".join([f"{self._heading}:", *lines, _INTERNAL])

    def sentences(self) -> list[str]:
        """Say what the table is about."""
        return [f"{self._heading}."]

    def __repr__(self) -> str:
        return f"Sweep(claim='{self.claim}', n_bounds={len(self.rows)})"

    @property
    def _heading(self) -> str:
        return f"What other bounds would cost; the claim is {self.claim}"

    def shown_rows(self) -> list[dict[str, str]]:
        """Return a line for each number and a column for each bound; missing numbers stay empty.

        Epsilons at an order are for claims that have one.
        """
        heads = [f"{row.claim.bound:g}" for row in self.rows]
        lines = {
            "right guesses": [
                percent_at_most(row.guess).replace("\u00a0", " ") for row in self.rows
            ],
            f"epsilon at order {self.order:g}": [
                _up(row.unsliced_epsilon if self.claim.has_order else None) for row in self.rows
            ],
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
    """Compute what other bounds of a guarantee would cost, before anything is certified or spent.

    `bounds` are epsilons or, of `Guarantee.guess`, shares of right guesses; without, some around
    that of `guarantee`. Couplings are looked for once. For a guarantee with options of its own (a
    shape, a method, samples) certify it and ask `Sweep.of(certificate)`.
    """
    wanted = NoiseOptions(effort=effort)
    evidence, options = decided_release(scenario, guarantee, wanted, progress=progress)
    return Sweep.decided(evidence, options, bounds, delta=delta, progress=progress)


def _up(epsilon: float | None) -> str:
    return "-" if epsilon is None else at_most(epsilon, digits=3)


@final
@attrs.frozen(kw_only=True)
class TrainingSweepPoint:
    """One bound of a training run, and the noise multiplier that its plan would have."""

    claim: Claim
    noise_multiplier: float | None
    """Noise multiplier by the plan's own accountant; None where there is none."""
    total_variation: float
    """Bound on the total variation between what the run releases in two worlds; 1 is no bound."""


@final
@attrs.frozen(kw_only=True)
class PairCost:
    """The cost of one pair of secrets under one prior, at the certificate's noise."""

    prior: str
    pair: tuple[str, str]
    sliced_cost: float | None
    """Cost of the pair aggregated over the slices; None for claims without an order."""
    unsliced_cost: float | None
    """Bound on the unsliced divergence of the pair; None where there is none."""
    largest_gap: float | None
    """Gap along the slice that shows most, in scaled units; None for Gaussian distributions."""


@final
@attrs.frozen(kw_only=True)
class SliceProfile:
    """The cost along each slice of the pair that costs most, at the certificate's noise."""

    prior: str
    pair: tuple[str, str]
    order: float
    costs: Floats = attrs.field(converter=locked, eq=same)
    """Cost along each slice of positive weight."""
    average: float
    joint: float


def sweep_points(
    certificate: Certificate,
    bounds: Sequence[float],
    *,
    delta: float | None = None,
    progress: Progress = silent,
) -> tuple[SweepPoint, ...]:
    """Compute what the certificate would state for each bound (epsilon, or share of guesses).

    All else stays, shape and couplings included; to certify again may find better ones.
    Guarantee: noise and costs are those of the functions that certify. A sweep promises nothing:
    to use another bound, certify again.
    """
    evidence = required_evidence(certificate)
    options = CertificateOptions.read_off(certificate.released)
    return _points(evidence, options, bounds, delta=delta, progress=progress)


def _points(
    evidence: Evidence,
    options: CertificateOptions,
    bounds: Sequence[float],
    *,
    delta: float | None,
    progress: Progress,
) -> tuple[SweepPoint, ...]:
    claim, full = options.target, evidence.full
    distance = full.implementation_delta
    scales = np.array(evidence.scenario["query"]["scales"])
    order, coarse = claim.reported_order, full
    if full.differences is not None:
        coarse = attrs.evolve(full, differences=full.differences.coarsened(_MOST_ENTRIES))
    points = []
    for done, bound in enumerate(bounds):
        progress(done, len(bounds))
        target = claim.with_bound(bound)
        noise_std = _noise_or_none(evidence, target)
        tight_std = closed_form_std = None
        if claim.method is not None:
            is_tight = claim.method.rule == "tight"
            tight_std = noise_std if is_tight else _noise_or_none(evidence, target.by(TIGHT))
            if claim.has_order:
                closed_form_std = _noise_or_none(evidence, target.by(CLOSED_FORM))
        stds, epsilon, at_delta, variation = None, None, None, 1.0
        if noise_std:
            stds = noise_stds(full, noise_std) * scales
            epsilon = _finite(full.divergence(order, noise_std))
            variation = released_variation(coarse.variation(noise_std), distance)
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
    certificate: Certificate, bounds: Sequence[float], progress: Progress = silent
) -> tuple[TrainingSweepPoint, ...]:
    """Compute the noise multiplier of the same plan for each bound of its claim.

    None for several runs, and for schedules.
    A sweep promises nothing: to use another bound, plan again.
    """
    if not isinstance(certificate.statement, TrainingStatement):
        return ()
    stated = TrainingClaim.read_off(certificate.statement)
    (plan, *others) = stated.runs
    if others or np.ptp(plan.noise_multipliers):
        return ()
    points = []
    for done, bound in enumerate(bounds):
        progress(done, len(bounds))
        claim = stated.measure.claim(bound)
        multiplier, variation = None, 1.0
        with contextlib.suppress(CalibrationError):
            multiplier = least_multiplier(
                plan.accountant, claim, plan.sampling, plan.differing, plan.n_steps
            )
        if multiplier is not None:
            noise = np.full(plan.n_steps, multiplier)
            run = attrs.evolve(plan, noise_multipliers=noise)
            variation = _variation(attrs.evolve(stated, runs=(run,)).guess())
        points.append(
            TrainingSweepPoint(claim=claim, noise_multiplier=multiplier, total_variation=variation)
        )
    progress(len(bounds), len(bounds))
    return tuple(points)


def stated_variation(certificate: Certificate) -> float:
    """Bound the total variation under two secrets, from the public statement alone.

    1, which is no bound, if the statement has none for the whole output.
    """
    return _variation(certificate.statement.guess)


def _variation(guess: float | None) -> float:
    return 1.0 if guess is None else min(1.0, 2 * guess - 1)


def pair_costs(certificate: Certificate) -> tuple[PairCost, ...]:
    """List every pair under every prior, the most expensive first."""
    evidence = required_evidence(certificate)
    claim, noise_std, slices = certificate.guarantee, certificate.noise_std, evidence.slices
    instances = _instances(evidence)
    sliced, gaps = claim.instance_costs(evidence, noise_std), None
    if slices is not None:
        gaps = slices.differences.largest_gaps()
    unsliced = evidence.full.divergences(claim.reported_order, noise_std)
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
    r"""Compute a whole-output claim's cost if priors are off by these shares of its guard.

    If each true distribution is within a share t of the guard of the declared one ($W_\infty$),
    every coupled distance grows by at most $2 t \sqrt{c}$ times the noise, c the squared distance
    that the claim allows between two points. Empty where no coupling bounds the output.
    """
    evidence, claim = required_evidence(certificate), certificate.guarantee
    full, noise_std = evidence.full, certificate.noise_std
    guard = certificate.released.noise.shape.guard
    if guard is None or full.from_range or full.differences is None:
        return ()
    costs = []
    for share in shares:
        more = 2 * share * math.sqrt(claim.distance_limit) * noise_std * _UP
        off = full.differences.farther(more)
        if off is None:
            return ()
        costs.append(claim.cost(attrs.evolve(full, differences=off), noise_std))
    return tuple(costs)


def slice_profile(certificate: Certificate) -> SliceProfile | None:
    """Compute the slice costs of the hardest pair; None without slices or with gaps left out."""
    evidence = required_evidence(certificate)
    slices, claim = evidence.slices, certificate.guarantee
    if slices is None or not claim.is_sliced or slices.missing.any() or slices.are_equal:
        return None
    order, method = claim.reported_order, claim.method
    if method is None:
        return None
    costs = slices.costs(order, certificate.noise_std, method.envelope)
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


def _noise_or_none(evidence: Evidence, target: Claim) -> float | None:
    try:
        return target.least_noise(evidence)
    except (CalibrationError, ArgumentError):  # no such noise, or no such method for this evidence
        return None


def _instances(evidence: Evidence) -> list[tuple[str, tuple[str, str]]]:
    """List prior and pair of every instance, in the order of the evidence."""
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
