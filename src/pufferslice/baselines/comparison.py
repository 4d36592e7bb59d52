# SPDX-License-Identifier: Apache-2.0
"""Every mechanism on one scenario: what it adds, what it takes, noise against epsilon."""

import csv
import io
import math
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above, check_at_least, check_count
from pufferslice._core.threads import Progress, silent
from pufferslice.baselines.sinkhorn import SinkhornSettings, sinkhorn_noise
from pufferslice.baselines.wasserstein import (
    DistributionCouple,
    check_couples,
    dagwm_noise_std,
    full_sensitivity,
    group_noise_std,
    gwm_noise_std,
    laplace_scale,
    shift_noise_std,
)
from pufferslice.calibration.calibrate import Method, calibrate, calibrate_unsliced
from pufferslice.calibration.guarantee import Guarantee, Notion, in_full
from pufferslice.certificate import Evidence, certify_release
from pufferslice.errors import ArgumentError, CalibrationError, ScenarioError
from pufferslice.queries import Query
from pufferslice.scenario.distributions import FiniteDistribution, GaussianDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile, check_profile
from pufferslice.sensitivity.renyi import gaussian_envelope

Scope = Literal["sliced", "unsliced", "none"]


@final
@attrs.frozen(kw_only=True)
class Row:
    """What one mechanism adds for the budget, and what that promises."""

    mechanism: str
    is_ours: bool
    guarantee: str
    """The claim in words, as `(4, 1)-Joint-SRPP`."""
    scope: Scope
    """Whether the claim is about slices or about the whole output; `none`: no claim holds."""
    noise: Literal["gaussian", "laplace"]
    noise_std: float
    """Standard deviation of one coordinate, in scaled units."""
    mean_squared_error: float
    """Expected squared error of one coordinate, in scaled units squared: the noise alone."""
    unsliced_epsilon: float | None
    """Upper bound on the unsliced cost of this noise at the order; None where it is infinite."""
    guess: float | None
    """Most that guesses between two protected secrets can be right; None where nothing is known."""
    seconds: float
    """From the distributions to the noise."""
    peak_bytes: int
    """Largest memory of Python and its arrays on the way, beyond what was held before."""
    note: str = ""


@final
@attrs.frozen(kw_only=True)
class Comparison:
    """All mechanisms on one scenario, for one order and one epsilon; ours on top."""

    order: float
    epsilon: float
    dim: int
    n_instances: int
    rows: tuple[Row, ...]
    left_out: Mapping[str, str]
    """Mechanisms without a row, and why."""

    def row(self, mechanism: str) -> Row:
        """The row of one mechanism."""
        return next(row for row in self.rows if row.mechanism == mechanism)

    def to_json(self) -> dict[str, Any]:
        """The table as JSON values."""
        return attrs.asdict(self) | {
            "rows": [attrs.asdict(row) for row in self.rows],
            "left_out": dict(self.left_out),
        }

    def to_csv(self) -> str:
        """The rows as CSV, with a header."""
        file = io.StringIO()
        writer = csv.DictWriter(file, [field.name for field in attrs.fields(Row)])
        writer.writeheader()
        writer.writerows(attrs.asdict(row) for row in self.rows)
        return file.getvalue()


EMPIRICAL_METHODS: Final = (
    Method(rule="tight", envelope="transport"),
    Method(rule="tight", envelope="worst_gap"),
    Method(rule="closed_form", envelope="worst_gap"),
)
EXACT_METHODS: Final = (Method(rule="tight", envelope="exact"),)

UNSLICED: Final = "unsliced, couplings"
NOTIONS: Final[tuple[Notion, Notion]] = ("average", "joint")
BASELINES: Final = (
    "general Wasserstein (GWM)",
    "distribution-aware (DAGWM)",
    "Sinkhorn-Wasserstein",
    "Wasserstein, Laplace noise",
    "group privacy",
)
"""How the mechanisms of others are called in tables and pictures."""

SINKHORN: Final = SinkhornSettings(regularisation=0.1, tolerance=1e-4)
"""Unless the caller says otherwise; the regularisation is in scaled units."""

_SMALL_LAWS: Final = ((0.0, 0.0, 1.0), (0.0, 1.0, 1.0), (0.0, 1.0))
_REFUSALS: Final = (ArgumentError, CalibrationError)


@final
@attrs.frozen(kw_only=True)
class Settings:
    """The knobs of the mechanisms that have any, and how large a problem is worth its time."""

    q: float = 1.0
    """Of DAGWM, at least 1; 1 needs the least noise."""
    sinkhorn: SinkhornSettings = SINKHORN
    group_sensitivity: float | None = None
    """How far one group can move the query, in scaled units; None: the width of the range."""
    largest_table: int = 5_000**2
    """Mechanisms that look at all distances are left out if a pair has more than these."""

    def __attrs_post_init__(self) -> None:
        check_at_least(1, q=self.q)
        check_count(1, largest_table=self.largest_table)
        if self.group_sensitivity is not None:
            check_above(0, group_sensitivity=self.group_sensitivity)


def compare_mechanisms(
    scenario: Scenario,
    profile: FiniteProfile,
    target: Guarantee,
    settings: Settings = Settings(),  # noqa: B008 - a frozen value
    progress: Progress = silent,
) -> Comparison:
    """One row per mechanism at the order and epsilon of `target`; ours in all its forms on top.

    The notion of `target` plays no part: each row says its own. Time and memory are measured here,
    with the compiled loops loaded before. Baselines assume ideal real-valued noise.
    """
    check_profile(profile, scenario.dim)
    contestants = _ours(scenario, profile, target) | _others(scenario, target, settings)
    _load_loops(contestants)
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    for done, (name, contestant) in enumerate(contestants.items(), start=1):
        try:
            rows.append(_measured(name, contestant))
        except _REFUSALS as error:
            left_out[name] = str(error)
        progress(done, len(contestants))
    return Comparison(
        order=target.order,
        epsilon=target.epsilon,
        dim=scenario.dim,
        n_instances=len(scenario.instances),
        rows=tuple(rows),
        left_out=left_out,
    )


def couples_of(scenario: Scenario) -> list[DistributionCouple]:
    """The two distributions of every instance.

    Only distributions that are known exactly can be compared.
    """
    couples = []
    for prior, pair in scenario.instances:
        couple = prior.distributions[pair.first], prior.distributions[pair.second]
        if not all(
            isinstance(distribution, FiniteDistribution | GaussianDistribution)
            for distribution in couple
        ):
            msg = (
                "mechanisms are compared on declared distributions, empirical or Gaussian; of a "
                "distribution known only by samples or bins the baselines could bound nothing"
            )
            raise ScenarioError(msg)
        couples.append(couple)
    return couples  # type: ignore[return-value]


def group_reach(query: Query, settings: Settings) -> float:
    """How far a group can move the query: as said, or the width of the public range."""
    if settings.group_sensitivity is not None:
        return settings.group_sensitivity
    if query.range is None:
        msg = (
            "group privacy needs the sensitivity of the query to a whole group, which nobody gave;"
            " say it, or give the query a public range, whose width bounds it"
        )
        raise ArgumentError(msg)
    return query.range.diameter(query.scales)


def check_table(couples: list[DistributionCouple], largest: int) -> None:
    """No pair of distributions has more distances than are worth the time."""
    for first, second in couples:
        if isinstance(first, FiniteDistribution) and isinstance(second, FiniteDistribution):
            size = first.n_samples * second.n_samples
            if size > largest:
                msg = (
                    f"a pair of distributions has {first.n_samples:,} x {second.n_samples:,} "
                    f"distances, more than the {largest:,} that were allowed; raise "
                    "largest_table, and wait"
                )
                raise ArgumentError(msg)


class _Answer(NamedTuple):
    """What a mechanism adds; its time and memory are measured around it."""

    noise_std: float
    unsliced_epsilon: float | None
    note: str = ""
    guess: float | None = None


class _Contestant(NamedTuple):
    """A mechanism that is ready to run, and what it would promise."""

    run: Callable[[], _Answer]
    guarantee: str
    scope: Scope
    noise: Literal["gaussian", "laplace"] = "gaussian"
    is_ours: bool = False


def _ours(scenario: Scenario, profile: FiniteProfile, target: Guarantee) -> dict[str, _Contestant]:
    """Every notion by every rule and envelope that applies, and the unsliced form."""
    methods = EXACT_METHODS if scenario.priors[0].kind == "gaussian" else EMPIRICAL_METHODS

    def contestant(notion: Notion, method: Method | None) -> _Contestant:
        claim = attrs.evolve(target, notion=notion)

        def run() -> _Answer:
            statement = certify_release(scenario, claim.along(profile), method=method).statement
            whole = statement["unsliced"]
            return _Answer(statement["noise"]["std"], whole["epsilon"], guess=whole["guess"])

        scope: Scope = "sliced" if claim.is_sliced else "unsliced"
        return _Contestant(run, str(claim), scope, is_ours=True)

    forms = {
        name_of(notion, method): contestant(notion, method)
        for notion in NOTIONS
        for method in methods
    }
    return forms | {UNSLICED: contestant("unsliced", None)}


def name_of(notion: str, method: Method) -> str:
    """How a form of ours is called in tables and pictures."""
    if method.rule == "closed_form":
        return f"{notion}, closed form"
    return f"{notion}, tight, {method.envelope.replace('_', ' ')}"


def _others(scenario: Scenario, target: Guarantee, settings: Settings) -> dict[str, _Contestant]:
    """The mechanisms that the paper and its field would use instead."""
    couples = couples_of(scenario)
    claim = attrs.evolve(target, notion="unsliced")

    def tabled(noise: Callable[[], _Answer]) -> Callable[[], _Answer]:
        def run() -> _Answer:
            check_table(couples, settings.largest_table)
            return noise()

        return run

    def gwm() -> _Answer:
        return _Answer(gwm_noise_std(couples, claim), claim.epsilon)

    def dagwm() -> _Answer:
        noise_std = dagwm_noise_std(couples, claim, settings.q)
        return _Answer(noise_std, claim.epsilon, f"q = {settings.q:g}")

    def sinkhorn() -> _Answer:
        return _sinkhorn(couples, claim, settings.sinkhorn)

    def laplace() -> _Answer:
        scale = laplace_scale(couples, target.epsilon)
        return _Answer(math.sqrt(2) * scale, target.epsilon, "Song et al., Ding; a pure claim")

    def group() -> _Answer:
        reach = group_reach(scenario.query, settings)
        said = "as given" if settings.group_sensitivity is not None else "width of the range"
        noise_std = group_noise_std(reach, claim)
        return _Answer(noise_std, claim.epsilon, f"sensitivity {reach:.4g}, {said}")

    rpp, pure = str(claim), f"{in_full(target.epsilon)}-Pufferfish"
    made = (
        _Contestant(tabled(gwm), rpp, "unsliced"),
        _Contestant(tabled(dagwm), rpp, "unsliced"),
        _Contestant(tabled(sinkhorn), "none: an estimate", "none"),
        _Contestant(laplace, pure, "unsliced", "laplace"),
        _Contestant(group, f"{rpp}, any prior", "unsliced"),
    )
    return dict(zip(BASELINES, made, strict=True))


def _sinkhorn(
    couples: list[DistributionCouple], claim: Guarantee, settings: SinkhornSettings
) -> _Answer:
    found = sinkhorn_noise(couples, claim, settings)
    exact = np.asarray(found.exact_sensitivity)
    cost: float | None = 0.0 if exact == 0 else None
    if found.noise_std > 0:
        cost = float(gaussian_envelope(claim.order, exact, found.noise_std))
    note = (
        f"regularisation {settings.regularisation:g}, tolerance {settings.tolerance:g}, marginals "
        f"off by {found.marginal_violation:.2g}, gap to exact {found.gap:+.3g}"
    )
    return _Answer(found.noise_std, cost, note)


def _load_loops(contestants: Mapping[str, _Contestant]) -> None:
    """Have every compiled loop in memory, so that no row pays for loading it."""
    ours = [one for one in contestants.values() if one.is_ours]
    for contestant in (ours[0], ours[-1]):
        try:
            contestant.run()
        except _REFUSALS:
            continue
    # Neither pair can be coupled at its nearest-neighbour distance, so every loop is entered.
    low, high, few = (
        FiniteDistribution.uniform(np.array([distribution]).T) for distribution in _SMALL_LAWS
    )
    couples = [(low, high), (low, few)]
    target = Guarantee.unsliced(order=2, epsilon=1)
    gwm_noise_std(couples, target)
    dagwm_noise_std(couples, target)
    laplace_scale(couples, 1.0)
    sinkhorn_noise(couples, target, SinkhornSettings(regularisation=1, tolerance=0.5))


def _measured(name: str, contestant: _Contestant) -> Row:
    already = tracemalloc.is_tracing()
    if not already:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        held = tracemalloc.get_traced_memory()[0]
        start = time.perf_counter()
        answer = contestant.run()
        seconds = time.perf_counter() - start
        peak = tracemalloc.get_traced_memory()[1] - held
    finally:
        if not already:
            tracemalloc.stop()
    return Row(
        mechanism=name,
        is_ours=contestant.is_ours,
        guarantee=contestant.guarantee,
        scope=contestant.scope,
        noise=contestant.noise,
        noise_std=answer.noise_std,
        mean_squared_error=answer.noise_std**2,
        unsliced_epsilon=answer.unsliced_epsilon,
        guess=answer.guess,
        seconds=seconds,
        peak_bytes=peak,
        note=answer.note,
    )


EPSILONS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

LARGEST_DAGWM: Final = 1_000**2
"""Distances of a pair above which DAGWM, which starts afresh at every epsilon, is not drawn."""

NoiseAt = Callable[[float], float]
"""From epsilon to the standard deviation of the noise."""


def noise_curves(
    scenario: Scenario,
    profile: FiniteProfile,
    order: float,
    settings: Settings = Settings(),  # noqa: B008 - a frozen value
    epsilons: Sequence[float] = EPSILONS,
) -> dict[str, Floats]:
    """Noise standard deviation of each mechanism at every epsilon; NaN where there is none.

    Mechanisms that do not apply to the scenario are absent. The distances of a coupling are
    computed once for all epsilons, except by DAGWM, whose coupling depends on the noise.
    """
    made = _our_noise(scenario, profile, order) | _other_noise(scenario, order, settings)
    curves = {}
    for name, prepare in made.items():
        try:
            noise_at = prepare()
        except (ArgumentError, CalibrationError):
            continue
        curves[name] = np.array([_noise_or_nan(noise_at, epsilon) for epsilon in epsilons])
    return curves


def _noise_or_nan(noise_at: NoiseAt, epsilon: float) -> float:
    try:
        return noise_at(epsilon)
    except CalibrationError:
        return math.nan


def _our_noise(
    scenario: Scenario, profile: FiniteProfile, order: float
) -> dict[str, Callable[[], NoiseAt]]:
    evidence = Evidence.of(scenario, profile)
    methods = EXACT_METHODS if scenario.priors[0].kind == "gaussian" else EMPIRICAL_METHODS
    made: dict[str, Callable[[], NoiseAt]] = {
        name_of(notion, method): partial(_sliced, evidence, order, (notion, method))
        for notion in NOTIONS
        for method in methods
    }
    return made | {UNSLICED: partial(_unsliced, evidence, order)}


def _sliced(evidence: Evidence, order: float, form: tuple[Notion, Method]) -> NoiseAt:
    notion, method = form

    def noise_at(epsilon: float) -> float:
        target = Guarantee(notion=notion, order=order, epsilon=epsilon)
        return calibrate(target, evidence.slices, method)

    return noise_at


def _unsliced(evidence: Evidence, order: float) -> NoiseAt:
    def noise_at(epsilon: float) -> float:
        return calibrate_unsliced(_rpp(order, epsilon), evidence.full)

    return noise_at


def _other_noise(
    scenario: Scenario, order: float, settings: Settings
) -> dict[str, Callable[[], NoiseAt]]:
    couples = couples_of(scenario)

    def gwm() -> NoiseAt:
        check_table(couples, settings.largest_table)
        sensitivity = full_sensitivity(couples)
        return lambda epsilon: shift_noise_std(sensitivity, _rpp(order, epsilon))

    def dagwm() -> NoiseAt:
        check_couples(couples)
        check_table(couples, min(LARGEST_DAGWM, settings.largest_table))
        return lambda epsilon: dagwm_noise_std(couples, _rpp(order, epsilon), settings.q)

    def sinkhorn() -> NoiseAt:
        check_table(couples, settings.largest_table)
        sensitivity = sinkhorn_noise(couples, _rpp(order, 1.0), settings.sinkhorn).sensitivity
        return lambda epsilon: shift_noise_std(sensitivity, _rpp(order, epsilon))

    def laplace() -> NoiseAt:
        scale = laplace_scale(couples, 1.0)
        return lambda epsilon: math.sqrt(2) * scale / epsilon

    def group() -> NoiseAt:
        reach = group_reach(scenario.query, settings)
        return lambda epsilon: group_noise_std(reach, _rpp(order, epsilon))

    return dict(zip(BASELINES, (gwm, dagwm, sinkhorn, laplace, group), strict=True))


def _rpp(order: float, epsilon: float) -> Guarantee:
    return Guarantee.unsliced(order=order, epsilon=epsilon)
