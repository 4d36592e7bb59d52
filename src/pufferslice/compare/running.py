# SPDX-License-Identifier: Apache-2.0
"""Run every mechanism on one scenario and measure what it adds and takes."""

import math
import time
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, final

import attrs
import numpy as np

from pufferslice.baselines import (
    LawCouple,
    SinkhornSettings,
    dagwm_noise_std,
    group_noise_std,
    gwm_noise_std,
    laplace_scale,
    sinkhorn_noise,
)
from pufferslice.calibration import Method
from pufferslice.certificate import certify_release
from pufferslice.checks import check_above, check_at_least, check_count
from pufferslice.compare.table import Comparison, Row, Scope
from pufferslice.errors import ArgumentError, CalibrationError, ScenarioError
from pufferslice.guarantee import Guarantee, Notion, in_full
from pufferslice.laws import EmpiricalLaw, GaussianLaw
from pufferslice.parallel import Progress, silent
from pufferslice.queries import Query
from pufferslice.renyi import gaussian_envelope
from pufferslice.scenario import Scenario
from pufferslice.slicing import FiniteProfile, check_profile

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


def couples_of(scenario: Scenario) -> list[LawCouple]:
    """The two laws of every instance; only laws that are known exactly can be compared."""
    couples = []
    for prior, pair in scenario.instances:
        couple = prior.laws[pair.first], prior.laws[pair.second]
        if not all(isinstance(law, EmpiricalLaw | GaussianLaw) for law in couple):
            msg = (
                "mechanisms are compared on declared laws, empirical or Gaussian; of a law known "
                "only by samples or bins the baselines could bound nothing"
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


def check_table(couples: list[LawCouple], largest: int) -> None:
    """No pair of laws has more distances than are worth the time."""
    for first, second in couples:
        if isinstance(first, EmpiricalLaw) and isinstance(second, EmpiricalLaw):
            size = first.n_samples * second.n_samples
            if size > largest:
                msg = (
                    f"a pair of laws has {first.n_samples:,} x {second.n_samples:,} distances, "
                    f"more than the {largest:,} that were allowed; raise largest_table, and wait"
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
            statement = certify_release(scenario, profile, claim, method=method).statement
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


def _sinkhorn(couples: list[LawCouple], claim: Guarantee, settings: SinkhornSettings) -> _Answer:
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
    low, high, few = (EmpiricalLaw.uniform(np.array([law]).T) for law in _SMALL_LAWS)
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
