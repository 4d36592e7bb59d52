# SPDX-License-Identifier: Apache-2.0
r"""Certify a budget: many releases and training runs about one secret, under one promise.

**Theorem.** Fix one coupling of all tables. With $Z_j$ the change of the features of part j under
it, $\bar P_j$ their declared precision, $T_j$ its number of periods, $K_t$ the number of differing
records in batch t and $z_t$ its noise multiplier, all outputs together allow right guesses of at
most $\Phi(\tfrac12 \sqrt{\rho})$ and tell at most $\rho / 2$ nats, where

$$\rho = \sum_j T_j\, E Z_j^\top \bar P_j Z_j + \sum_t 4\, E K_t^2 / z_t^2.$$

*Proof.* Given all coupled tables and batches, the transcript is an adaptive composition of Gaussian
mechanisms whose squared distances add up to at most $R^2 = \sum Z_j^\top \bar P_j Z_j + \sum 4
K_t^2 / z_t^2$ on every path (`pufferslice.noise.spending`), and so is no easier to tell apart than
N(0, 1) and N(R, 1). Joint convexity, and then Jensen's inequality for $E R^2 = \rho$.

Rounding to the grid moves every released number by at most a step of $2^{-44}$ deviations of its
noise, so that $\sqrt{\rho}$ grows by at most $2^{-44}$ times the root of their number (Minkowski).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, Literal, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import check_above, check_between, check_one_of, is_a
from pufferslice._core.sampler import (
    DRAW_DELTA,
    INTEGER_DELTA,
    SIGMA_INT,
    Noise,
    OperatingSystemNoise,
)
from pufferslice._core.search import LARGEST, SAFETY
from pufferslice._core.text import given, listed
from pufferslice.certificate.budget_evidence import BudgetEvidence, check_coupling, shared_couplings
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.parts import (
    BudgetPart,
    DeclaredParts,
    DeclaredTable,
    Training,
    sizes_of,
)
from pufferslice.certificate.release import PERSON_DELTA
from pufferslice.certificate.statement import (
    BudgetNoise,
    BudgetStatement,
    TablePart,
    TrainingPart,
    checked,
    read_scenario,
)
from pufferslice.certificate.training import epsilon_at, record_difference
from pufferslice.claims import Claim, Guess, Information, Measure
from pufferslice.errors import ArgumentError, CalibrationError, CertificateError
from pufferslice.learning.accountants import MeanSquare, WorstCase
from pufferslice.learning.difference import NoisySteps
from pufferslice.learning.differing import DifferingRecords, at_most, binomial
from pufferslice.learning.plan import (
    HYPOTHESES,
    TrainingPlan,
    plan_with_noise,
    signal_to_noise,
)
from pufferslice.learning.sampling import WithoutReplacement
from pufferslice.noise.rows import ONE_PERSON, row_covariance, sampling_weights, shared_noise
from pufferslice.noise.shape import Kind
from pufferslice.noise.spending import ROOM
from pufferslice.queries.features import is_mean_named
from pufferslice.scenario.rows import Differing
from pufferslice.sensitivity.periods import PeriodDifference
from pufferslice.sensitivity.person import distance_within, row_epsilon
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.whitening import Covariance, Shape

MOST_NUMBERS: Final = 2**20
"""Most numbers that a budget releases from tables; the grid and the sampler are charged for all."""
MOST_PARAMETERS: Final = 2**32
"""Most parameters of a model that is trained under a budget."""
SHAPES: Final = ("fitted", "diagonal")
MOST_FITTED: Final = 2_000
"""Most features of a part whose noise can be correlated."""

_GRID_MARGIN: Final = float(math.sqrt(MOST_NUMBERS) / SIGMA_INT)
"""Largest distance that the grid adds between two outputs of all tables."""
_LEAST_SHARE: Final = 2.0**-20
_DOWN: Final = 1 - 2.0**-30
_UP: Final = 1 + 2.0**-44
_SHARE_ROUNDING: Final = Fraction(1, 2**40)


@final
@attrs.frozen(kw_only=True)
class TableChoice:
    """Decisions on a part about rows: its share, and its noise, which is public."""

    kind: Literal["table", "reserve", "repeated"]
    times: int
    rows: tuple[int, int] | None
    share: float
    whitening: Floats = attrs.field(converter=locked, eq=same)
    """Matrix that whitens the features, in scaled coordinates."""

    @property
    def noise(self) -> Covariance:
        """Noise of a release of all features with the whole precision."""
        return Covariance(dim=len(self.whitening), std=1.0, shape=Shape(whitening=self.whitening))


@final
@attrs.frozen(kw_only=True)
class RunChoice:
    """Decisions on a part that trains a model."""

    share: float
    plan: TrainingPlan


@final
@attrs.frozen(kw_only=True)
class BudgetOptions:
    """The decisions of the data holder; everything else follows from the evidence."""

    target: Claim
    parts: Mapping[str, TableChoice | RunChoice]
    shape: Kind
    generator: str
    person_delta: float = PERSON_DELTA
    earlier_releases: tuple[str, ...] = ()

    @classmethod
    def read_off(cls, statement: BudgetStatement) -> "BudgetOptions":
        """Read the decisions from a statement."""
        persons = (statement.one_person, statement.one_person_given_noise)
        return cls(
            target=statement.guarantee,
            parts={part.name: _choice(part) for part in statement.parts},
            shape=statement.tables[0].noise.kind,
            generator=statement.noise.generator,
            person_delta=next((p.delta for p in persons if p is not None), PERSON_DELTA),
            earlier_releases=tuple(statement.earlier_releases),
        )

    @property
    def tables(self) -> dict[str, TableChoice]:
        """Decisions on the parts about rows."""
        return {n: part for n, part in self.parts.items() if isinstance(part, TableChoice)}

    @property
    def runs(self) -> dict[str, RunChoice]:
        """Decisions on the parts that train a model."""
        return {n: part for n, part in self.parts.items() if isinstance(part, RunChoice)}


def _choice(part: TablePart | TrainingPart) -> TableChoice | RunChoice:
    if isinstance(part, TrainingPart):
        return RunChoice(share=part.share, plan=TrainingPlan.from_json(part.plan.to_json()))
    return TableChoice(
        kind=part.kind,
        times=part.times,
        rows=None if part.rows is None else (part.rows[0], part.rows[1]),
        share=part.share,
        whitening=part.noise.whitening,
    )


def certify_budget(
    parts: Mapping[str, BudgetPart],
    guarantee: Claim,
    *,
    shares: Mapping[str, float] | None = None,
    coupling: str | None = None,
    shape: Kind = "fitted",
    person: tuple[float, float] | None = None,
    generator: Noise = OperatingSystemNoise(),  # noqa: B008 - it has no state
) -> Certificate:
    """Certify all outputs about one secret together: several tables, periods and training runs.

    A part is a scenario of rows (one table, published in one release or in several),
    `Repeated(scenario, times=…, rows=…)` (fresh rows each period), `Reserve(scenario)` (features
    that may be needed later), or `Training(…)`. All of them are fixed before the first output;
    within a part, what is published with which precision may be chosen after seeing earlier
    outputs, by `release(…, part=…, only=…, spend=…)`.

    `shares` say how much of the promise each part has, by name, together at most 1; a share is for
    all periods together. Without them, all have the same. `coupling` is how the rows of a change
    meet in the proof, one for all parts: `"independent"`, or `"cells:NAME"` by a label that all
    queries name; without it, the one that needs the least noise. `shape="diagonal"`: noise without
    correlation. `person=(epsilon, delta)` asks for as much differential privacy for any one person
    as well; it needs moments from other tables, and no training.

    Guarantee: all outputs together, in any order, chosen after earlier ones, satisfy `guarantee`
    for rows whose mean squared distance under the stated precisions is at most the stated one.
    """
    declared = DeclaredParts.of(parts)
    _check_claim(guarantee)
    check_one_of(SHAPES, shape=shape)
    wanted = _checked_shares(declared, shares)
    large = [t.name for t in declared.tables if t.scenario.dim > MOST_FITTED]
    if large and shape != "diagonal":
        raise ArgumentError(
            f"shape must be 'diagonal' where a part has more than {MOST_FITTED:,} features, as "
            f"{listed(large)}"
        )
    limit = _limit_of_all(guarantee, declared)
    hidden = _person_limit(declared, person)
    if coupling is None:
        names = shared_couplings(declared)
    else:
        check_coupling(declared, coupling)
        names = [coupling]
    runs = {
        name: RunChoice(share=wanted[name], plan=_plan_of(declared, name, wanted[name] * limit))
        for name in declared.runs
    }
    found = []
    for name in names:
        evidence = BudgetEvidence.of(declared, name)
        tables = {
            table.name: _table_choice(declared, table, evidence, wanted, limit, shape, hidden)
            for table in declared.tables
        }
        found.append((_price(evidence, tables), evidence, tables))
    _, evidence, tables = min(found, key=lambda each: each[0])
    options = BudgetOptions(
        target=guarantee,
        parts={name: tables[name] if name in tables else runs[name] for name in declared.names},
        shape=shape,
        generator=generator.name,
        person_delta=PERSON_DELTA if person is None else float(person[1]),
    )
    return Certificate(statement=budget_statement(evidence, options), evidence=evidence)


def budget_statement(evidence: BudgetEvidence, options: BudgetOptions) -> BudgetStatement:
    """Build the whole public statement; the result depends on the two arguments alone."""
    tables, runs = options.tables, options.runs
    if list(tables) != list(evidence.tables):
        raise CertificateError("the evidence is about other parts than the statement")
    differences = differences_of(evidence, options)
    squares = {name: _table_square(differences[name], choice) for name, choice in tables.items()}
    squares |= {
        name: _run_square(run.plan, _records(evidence, tables)) for name, run in runs.items()
    }
    mean_square = total_mean_square(squares.values())
    tau = implementation_delta(sum(run.plan.n_steps for run in runs.values()))
    spent = options.target.whole.mean_square_cost(mean_square, tau)
    if not spent <= options.target.bound:
        raise CalibrationError(
            f"the parts of the budget cost {spent!r} together, more than the claim's "
            f"{options.target.bound!r}. Please report this: nothing was certified"
        )
    values: dict[str, Any] = {
        "workflow": "budget",
        "guarantee": options.target,
        "spent": spent,
        "mean_square": mean_square,
        "guess": Guess(at_most=0.75).mean_square_cost(mean_square, tau),
        "information": Information(bits=1.0).mean_square_cost(mean_square, tau),
        "coupling": evidence.coupling,
        "parts": [
            _table_values(name, choice, evidence, squares[name], options.shape)
            if isinstance(choice, TableChoice)
            else _run_values(name, choice, squares[name])
            for name, choice in options.parts.items()
        ],
        "noise": {
            "family": "integer_gaussian",
            "generator": options.generator,
            "secure": options.generator == OperatingSystemNoise.name,
            "most_numbers": MOST_NUMBERS,
            "most_parameters": MOST_PARAMETERS,
            "implementation_delta": tau,
        },
        **_person(evidence, differences, options, tau),
        "hypotheses": list(HYPOTHESES) if runs else [],
        "earlier_releases": list(options.earlier_releases),
    }
    draft = BudgetStatement.model_construct(
        **values
        | {
            "parts": [
                checked(
                    TrainingPart if part["kind"] == "training" else TablePart,
                    part,
                    "parts",
                    CertificateError,
                )
                for part in values["parts"]
            ],
            "noise": checked(BudgetNoise, values["noise"], "noise", CertificateError),
        }
    )
    values |= {"limits": draft.expected_limits(), "evidence_digest": evidence.digest()}
    return checked(
        BudgetStatement,
        values | {"parts": draft.parts, "noise": draft.noise},
        "statement",
        CertificateError,
    )


def _table_square(difference: PeriodDifference | RowDifference, choice: TableChoice) -> float:
    """Bound the mean squared distance of all periods of a part, with the room for rounding."""
    one = float(difference.mean_squares(choice.noise).max())
    return one * choice.times * (1 + ROOM) * _UP


def total_mean_square(squares: Iterable[float]) -> float:
    """Add mean squares of all parts, and what the grid adds to every released number."""
    root: float = math.sqrt(math.fsum(squares) * _UP) + _GRID_MARGIN
    return root**2 * _UP


def implementation_delta(n_steps: int) -> float:
    """Bound the total variation between all sampled outputs, with so many steps, and ideal ones."""
    n_numbers = MOST_NUMBERS + n_steps * MOST_PARAMETERS
    return float(n_numbers * (DRAW_DELTA + INTEGER_DELTA) * _UP)


def required_budget_evidence(certificate: Certificate) -> BudgetEvidence:
    """Return the evidence of a budget; raise if it is absent or of another statement."""
    statement = certificate.budget
    if not isinstance(certificate.evidence, BudgetEvidence):
        raise CertificateError(
            "statement only: the evidence of the budget is not available. Put the .evidence.npz "
            "file beside the certificate; whoever issued it has it"
        )
    if certificate.evidence.digest() != statement.evidence_digest:
        raise CertificateError(
            "the evidence does not belong to this budget: its digest differs. Use the "
            ".evidence.npz file that was written with it"
        )
    return certificate.evidence


def differences_of(
    evidence: BudgetEvidence, options: BudgetOptions
) -> dict[str, PeriodDifference | RowDifference]:
    """Return what the worlds differ by in one period of each part about rows."""
    most_times = max((t.times for t in options.tables.values() if t.rows is not None), default=1)
    return {
        name: part_difference(rows, evidence.scenarios[name], options.tables[name], most_times)
        for name, rows in evidence.tables.items()
    }


def part_difference(
    rows: RowDifference, scenario: Mapping[str, Any], choice: TableChoice, most_times: int
) -> PeriodDifference | RowDifference:
    """Return what the worlds differ by in one period of a part."""
    secret = scenario["secret"]
    sizes = sizes_of(secret, choice.rows, choice.times, most_times)
    if sizes is None:
        return rows
    is_mean = np.array([is_mean_named(name) for name in scenario["query"]["names"]])
    return PeriodDifference(rows=rows, is_mean=is_mean, n_rows=secret["n_rows"], sizes=sizes)


def _check_claim(claim: Claim) -> None:
    if not is_a(claim, Claim):
        raise ArgumentError(
            f"guarantee must be a claim such as Guarantee.guess(at_most=0.64), got {given(claim)}"
        )
    if not claim.by_mean_square:
        raise CalibrationError(
            f"a budget is certified for right guesses or bits, and not yet for {claim}; claim "
            "Guarantee.guess(at_most=...) or Guarantee.information(bits=...)"
        )


def _checked_shares(parts: DeclaredParts, shares: Mapping[str, float] | None) -> dict[str, float]:
    """Read the share of each part; equal ones by default."""
    if shares is None:
        return dict.fromkeys(parts.names, 1 / len(parts.names))
    if not is_a(shares, Mapping) or set(shares) != set(parts.names):
        raise ArgumentError(f"shares must give a number for each part: {listed(parts.names)}")
    for name, share in shares.items():
        check_between(_LEAST_SHARE, 1 + _LEAST_SHARE, **{f"shares[{name!r}]": share})
    total = sum(Fraction(repr(float(share))) for share in shares.values())
    if total > 1 + _SHARE_ROUNDING:
        raise ArgumentError(f"shares must add up to at most 1, got {float(total):.6g}")
    return {name: float(shares[name]) for name in parts.names}


def _limit_of_all(claim: Claim, parts: DeclaredParts) -> float:
    """Return the mean square that all parts may have together, before the grid."""
    tau = implementation_delta(sum(run.n_steps for run in parts.runs.values()))
    root = math.sqrt(claim.distance_limit) * _DOWN - _GRID_MARGIN
    if not root > 0 or claim.whole.mean_square_cost(root**2, tau) > claim.bound:
        raise CalibrationError(
            f"{claim} allows less than the sampler's own error, {tau:.3g} in total variation, "
            "whatever the noise; claim more right guesses, or more bits"
        )
    return float(root**2)


def _person_limit(parts: DeclaredParts, person: tuple[float, float] | None) -> float:
    """Return how far one row may move all outputs, in deviations of the noise."""
    if person is None:
        return ONE_PERSON
    if not is_a(person, Sequence) or is_a(person, str) or len(person) != 2:
        raise ArgumentError(
            f"person must be (epsilon, delta), got {given(person)}; write (1.0, 1e-6)"
        )
    check_above(0, epsilon=person[0])
    check_between(0, 1, delta=person[1])
    if parts.runs:
        raise ArgumentError(
            "person is for budgets without training, whose noise is decided by the secret; leave "
            "it out, and the certificate states what one person gets"
        )
    if any(t.scenario.priors[0].source == "released_data" for t in parts.tables):
        raise ArgumentError(
            "person needs noise that does not depend on the released rows; give moments_from= to "
            "every scenario, an earlier, held-out or public table"
        )
    limit = distance_within(*person, implementation_delta(0))
    if not limit > _GRID_MARGIN:
        raise CalibrationError(
            f"person {given(person)} allows less than the sampler's own error; ask for a larger "
            "delta"
        )
    return limit - _GRID_MARGIN


def _table_choice(
    parts: DeclaredParts,
    table: DeclaredTable,
    evidence: BudgetEvidence,
    shares: Mapping[str, float],
    limit: float,
    shape: Kind,
    hidden: float,
) -> TableChoice:
    """Find the least noise of a part for its share of the limit."""
    rows, share = evidence.tables[table.name], shares[table.name]
    choice = TableChoice(
        kind=table.kind,
        times=table.times,
        rows=table.rows,
        share=share,
        whitening=np.eye(rows.dim),
    )
    scenario = evidence.scenarios[table.name]
    difference = part_difference(rows, scenario, choice, parts.most_times)
    allowed = share * limit / table.times / (1 + ROOM) / SAFETY
    covariance = np.array(
        shared_noise(
            difference.second_moments, allowed, sampling_weights(rows), kind=shape
        ).covariance
    )
    excess = _cost_of(difference, covariance) / allowed
    if excess > 1:
        covariance = covariance * (excess * SAFETY)
    covariance, _ = row_covariance(
        difference,
        covariance,
        limit=hidden * math.sqrt(share / sum(shares.values()) / table.times),
        from_released_rows=table.scenario.priors[0].source == "released_data",
    )
    if _cost_of(difference, covariance) > allowed:
        covariance = covariance * SAFETY
    return attrs.evolve(choice, whitening=_whitening(covariance))


def _whitening(covariance: Floats) -> Floats:
    shape = Shape.of_covariance(covariance)
    return shape.whitening / math.sqrt(float(np.trace(covariance)) / len(covariance))


def _cost_of(difference: PeriodDifference | RowDifference, covariance: Floats) -> float:
    noise = Covariance(dim=len(covariance), std=1.0, shape=Shape(whitening=_whitening(covariance)))
    return float(difference.mean_squares(noise).max())


def _price(evidence: BudgetEvidence, tables: Mapping[str, TableChoice]) -> float:
    """Add up the variances of all parts, in sampling variances, as means over their features."""
    return math.fsum(
        float(choice.noise.stds**2 @ sampling_weights(evidence.tables[name])) / choice.noise.dim
        for name, choice in tables.items()
    )


def _plan_of(parts: DeclaredParts, name: str, allowed: float) -> TrainingPlan:
    """Find the noise of a training part: the same in every step."""
    run = parts.runs[name]
    law = _law_of(parts, run)
    mean_square = run.sampling.mean_square_over(law.mean, law.mean_square)
    multiplier = math.sqrt(4 * run.n_steps * mean_square / allowed) * SAFETY**2
    if not 0 < multiplier < LARGEST:
        raise CalibrationError("the share of a training part leaves no finite noise; raise it")
    return plan_with_noise(
        differing=_records_of(law),
        sampling=run.sampling,
        clip_norm=run.clipping,
        noise_multipliers=np.full(run.n_steps, multiplier),
        accountant=MeanSquare(),
        measure=Measure.guess(),
        block=run.block,
    )


def _law_of(parts: DeclaredParts, run: Training) -> Differing:
    """How many rows of the table that is trained on differ, also where it is made of periods."""
    secret = next(
        t.scenario.secret
        for t in parts.tables
        if t.rows is None and t.scenario.secret.get("n_rows") == run.sampling.n_records
    )
    return _law(secret, parts.most_times)


def _law(secret: Mapping[str, Any], most_times: int) -> Differing:
    sizes = sizes_of(secret, None, 1, most_times)
    if sizes is None:
        raise CertificateError("a training part needs a table with a public number of rows")
    return sizes.differing(sizes.most)


def _records_of(law: Differing) -> DifferingRecords:
    if law.probability < 1:
        return binomial(n_records=law.most, mismatch_probability=law.probability)
    return at_most(law.most)


def _records(evidence: BudgetEvidence, tables: Mapping[str, TableChoice]) -> Differing:
    """How many rows of the table that is published once differ."""
    most_times = max((t.times for t in tables.values() if t.rows is not None), default=1)
    secrets = (evidence.scenarios[n]["secret"] for n, t in tables.items() if t.rows is None)
    return _law(next((secret for secret in secrets if "n_rows" in secret), {}), most_times)


def _run_square(plan: TrainingPlan, law: Differing) -> float:
    """Bound the mean squared distance of a run, over all steps: 4 E K^2 / z^2 each."""
    if plan.differing.description() != _records_of(law).description():
        raise CertificateError("a plan is about other differing records than the secret has")
    mean_square = plan.sampling.mean_square_over(law.mean, law.mean_square) * _UP
    return math.fsum((4 * mean_square / plan.noise_multipliers**2).tolist()) * _UP


def _table_values(
    name: str, choice: TableChoice, evidence: BudgetEvidence, mean_square: float, shape: Kind
) -> dict[str, Any]:
    scenario = evidence.scenarios[name]
    scales = np.array(scenario["query"]["scales"], dtype=np.float64)
    return {
        "kind": choice.kind,
        "name": name,
        "scenario": read_scenario(scenario),
        "times": choice.times,
        "rows": None if choice.rows is None else list(choice.rows),
        "share": choice.share,
        "mean_square": mean_square,
        "noise": {
            "kind": shape,
            "whitening": choice.whitening.tolist(),
            "std_by_coordinate": (choice.noise.stds * scales).tolist(),
        },
    }


def _run_values(name: str, choice: RunChoice, mean_square: float) -> dict[str, Any]:
    plan = choice.plan
    signal = signal_to_noise(plan, [1] * len(plan.clipping.norms))
    return {
        "kind": "training",
        "name": name,
        "plan": plan.to_json(),
        "share": choice.share,
        "mean_square": mean_square,
        "signal": signal.whole_run,
    }


def _as_step(distance: float) -> NoisySteps:
    """Return a step that shows one row as far as outputs at this distance do.

    All releases of a part are a randomised function of one release of its features
    (`pufferslice.noise.spending`), and so those of all parts of one that can come first, at most
    this distance away; what is trained afterwards composes with it.
    """
    every = WithoutReplacement(n_records=2, batch_size=2)
    return NoisySteps(WorstCase(), every, np.array([2 / (distance * _UP)]))


def _person(
    evidence: BudgetEvidence,
    differences: Mapping[str, PeriodDifference | RowDifference],
    options: BudgetOptions,
    tau: float,
) -> dict[str, Any]:
    """State what all outputs together show of one person, who has a row in every table."""
    values: dict[str, Any] = dict.fromkeys(("one_person", "one_person_given_noise"))
    squares = []
    for name, difference in differences.items():
        choice = options.tables[name]
        # A slot is one reading of a home, and no person's only row.
        if "state_of" in evidence.scenarios[name]["secret"]:
            return values | {"not_stated": {"one_person": "person-not-a-row"}}
        distance = difference.one_row_distance(choice.noise)
        squares.append(choice.times * distance**2 * (1 + ROOM) * _UP)
    distance = math.sqrt(total_mean_square(squares)) * _UP
    delta = options.person_delta
    plans = [run.plan for run in options.runs.values()]
    if plans and distance < LARGEST:
        runs = record_difference(plans, implementation_delta=tau)
        both = attrs.evolve(runs, runs=(*runs.runs, _as_step(distance)))
        epsilon = epsilon_at(both, delta)
    else:
        epsilon = row_epsilon(distance, delta, tau)
    if not epsilon < LARGEST:
        return values | {"not_stated": {"one_person": "no-finite-epsilon"}}
    person = {"epsilon": epsilon, "delta": delta}
    priors = [prior for each in evidence.scenarios.values() for prior in each["priors"]]
    if any(prior["source"] == "released_data" for prior in priors):
        values["one_person_given_noise"] = person
        return values | {"not_stated": {"one_person": "noise-from-released-rows"}}
    return values | {"one_person": person, "not_stated": {}}
