# SPDX-License-Identifier: Apache-2.0
"""All mechanisms on one scenario: their noise, time and memory, and noise against epsilon."""

import csv
import io
import math
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, NamedTuple, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above, check_at_least, check_count, is_a
from pufferslice._core.display import Shown
from pufferslice._core.numbers import in_full
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
from pufferslice.certificate import certify_release
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.issue import required_evidence
from pufferslice.claims import Claim, Method, Renyi, Sliced
from pufferslice.claims.sliced import SlicedNotion
from pufferslice.errors import ArgumentError, CalibrationError, MissingExtraError, ScenarioError
from pufferslice.noise.decision import noise_stds
from pufferslice.queries import summary
from pufferslice.scenario.distributions import FiniteDistribution, GaussianDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile, check_profile
from pufferslice.sensitivity.renyi import gaussian_envelope
from pufferslice.sensitivity.sensitivity import Slices, slice_sensitivity

Scope = Literal["sliced", "unsliced", "none"]
NoiseShape = Literal["isotropic", "fitted"]


@final
@attrs.frozen(kw_only=True)
class Row:
    """The noise of one mechanism for the target, and its guarantee."""

    mechanism: str
    is_ours: bool
    guarantee: str
    """The claim in words, as `(4, 1)-Joint-SRPP`."""
    scope: Scope
    """Whether the claim is about slices or about the whole output; `none`: no claim holds."""
    noise: Literal["gaussian", "laplace"]
    noise_std: float
    """Standard deviation of one coordinate, in scaled units; of noise with a shape, the root mean
    square over the coordinates."""
    mean_squared_error: float
    """Expected squared error of one coordinate, in scaled units squared: the noise alone, as a
    mean over the coordinates."""
    unsliced_epsilon: float | None
    """Upper bound on the unsliced cost of this noise at the order; None where it is infinite."""
    guess: float | None
    """Upper bound on right guesses between two protected secrets; None where none is known."""
    seconds: float
    """Time from the distributions to the noise."""
    peak_bytes: int
    """Peak memory of Python and its arrays, above that before the call."""
    note: str = ""


@final
@attrs.frozen(kw_only=True)
class Comparison(Shown):
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

    def table_rows(self) -> list[dict[str, Any]]:
        """One row per mechanism."""
        return [attrs.asdict(row) for row in self.rows]

    def shown_rows(self) -> list[dict[str, Any]]:
        """The columns that matter most."""
        shown = ("mechanism", "guarantee", "scope", "noise_std", "unsliced_epsilon", "guess")
        return [{name: getattr(row, name) for name in shown} for row in self.rows]

    def sentences(self) -> list[str]:
        """What is compared, and what is not."""
        head = f"Noise for order {in_full(self.order)}, epsilon {in_full(self.epsilon)}"
        sentences = [f"{head}, in scaled units. Compare rows of the same scope."]
        return sentences + [f"{name} is left out: {why}." for name, why in self.left_out.items()]

    def details(self) -> str:
        """All columns."""
        return self.to_csv()

    def to_csv(self) -> str:
        """The rows as CSV, with a header."""
        file = io.StringIO()
        writer = csv.DictWriter(file, [field.name for field in attrs.fields(Row)])
        writer.writeheader()
        writer.writerows(attrs.asdict(row) for row in self.rows)
        return file.getvalue()


EPSILONS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
LARGEST_DAGWM: Final = 1_000**2
"""Distances of a pair above which the curves leave out DAGWM, which starts again at every
epsilon."""

BASELINES: Final = (
    "general Wasserstein (GWM)",
    "distribution-aware (DAGWM)",
    "Sinkhorn-Wasserstein",
    "Wasserstein, Laplace noise",
    "group privacy",
)
"""Names of the other mechanisms in tables and pictures."""

SINKHORN: Final = SinkhornSettings(regularisation=0.1, tolerance=1e-4)
"""Default settings; the regularisation is in scaled units."""

UNSLICED: Final = "unsliced, couplings"
"""Name of our unsliced form with isotropic noise in tables and pictures."""

SHAPED: Final = "unsliced, fitted shape"
"""Name of our unsliced form with noise of a fitted shape, for more than one coordinate."""

_NOTIONS: Final[tuple[SlicedNotion, ...]] = ("average", "joint")
_EXACT_METHODS: Final = (Method(rule="tight", envelope="exact"),)
_EMPIRICAL_METHODS: Final = (
    Method(rule="tight", envelope="transport"),
    Method(rule="tight", envelope="worst_gap"),
    Method(rule="closed_form", envelope="worst_gap"),
)
_SMALL_SAMPLES: Final = ((0.0, 0.0, 1.0), (0.0, 1.0, 1.0), (0.0, 1.0))
_REFUSALS: Final = (ArgumentError, CalibrationError, MissingExtraError)

NoiseAt = Callable[[Renyi], float]
"""From an unsliced target to the standard deviation of the noise."""


@final
@attrs.frozen(kw_only=True)
class Settings:
    """Settings of the mechanisms that have any, and the largest problem to solve."""

    q: float = 1.0
    """Parameter of DAGWM, at least 1; 1 needs the least noise."""
    sinkhorn: SinkhornSettings = SINKHORN
    group_sensitivity: float | None = None
    """Largest move of the query by one group, in scaled units; None: the width of the range."""
    largest_table: int = 5_000**2
    """Most distances of a pair for mechanisms that use all of them; beyond, they are left out."""

    def __attrs_post_init__(self) -> None:
        check_at_least(1, q=self.q)
        check_count(1, largest_table=self.largest_table)
        if self.group_sensitivity is not None:
            check_above(0, group_sensitivity=self.group_sensitivity)


def compare_mechanisms(
    scenario: Scenario,
    profile: FiniteProfile | None,
    target: Claim,
    settings: Settings = Settings(),  # noqa: B008 - a frozen value
    progress: Progress = silent,
) -> Comparison:
    """One row per mechanism at the order and epsilon of `target`; ours in all its forms on top.

    `target` is a Rényi claim; each row has its own notion, whatever that of `target`. Without a
    profile there are no sliced forms. Time and memory are measured here, with the compiled loops
    loaded before. Baselines assume ideal real-valued noise.
    """
    if profile is not None:
        check_profile(profile, scenario.dim)
    whole = target.whole
    if not isinstance(whole, Renyi):
        raise ArgumentError(
            f"mechanisms are compared at one order and epsilon, which {target} does not have; use "
            "Guarantee.unsliced(...)"
        )
    contestants = _ours(scenario, profile, whole) | _others(scenario, whole, settings)
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
        order=whole.order,
        epsilon=whole.epsilon,
        dim=scenario.dim,
        n_instances=len(scenario.instances),
        rows=tuple(rows),
        left_out=left_out,
    )


def noise_curves(
    scenario: Scenario,
    profile: FiniteProfile | None,
    order: float,
    settings: Settings = Settings(),  # noqa: B008 - a frozen value
    epsilons: Sequence[float] = EPSILONS,
) -> dict[str, Floats]:
    """Noise standard deviation of each mechanism at every epsilon, as in `Row`; NaN without any.

    Mechanisms that do not apply to the scenario are absent. The shape of the noise and the
    couplings are those of the middle epsilon, so that they are looked for once; a certificate at
    another epsilon may have a little less noise. DAGWM starts again at every epsilon, because its
    coupling depends on the noise.
    """
    middle = Renyi(order=order, epsilon=sorted(epsilons)[len(epsilons) // 2])

    def curve(noise_at: NoiseAt) -> Floats:
        noises = []
        for epsilon in epsilons:
            try:
                noises.append(noise_at(Renyi(order=order, epsilon=epsilon)))
            except CalibrationError:
                noises.append(math.nan)
        return np.array(noises)

    curves = {}
    if profile is not None:
        slices = slice_sensitivity(scenario, profile, None, silent)
        for name, (notion, method) in _forms(scenario).items():
            curves[name] = curve(partial(_sliced_noise, slices, notion, method))
    for name, shape in _shapes(scenario).items():
        certificate = certify_release(scenario, middle, shape=shape)
        curves[name] = curve(partial(_whole_noise, required_evidence(certificate)))
    largest_dagwm = min(LARGEST_DAGWM, settings.largest_table)
    for name, baseline in _baselines(scenario, settings, largest_dagwm).items():
        with suppress(*_REFUSALS):
            curves[name] = curve(baseline().noise_at)
    return curves


def _sliced_noise(slices: Slices, notion: SlicedNotion, method: Method, target: Renyi) -> float:
    return target.slice_noise(slices, notion, method)


def _whole_noise(evidence: Evidence, target: Renyi) -> float:
    """The noise of an unsliced target, a root mean square over the coordinates."""
    noise_std = target.least_noise(evidence)
    return _root_mean_square(noise_stds(evidence.full, noise_std))


def _root_mean_square(values: Floats) -> float:
    return math.sqrt(float(np.mean(np.square(values))))


def couples_of(scenario: Scenario) -> list[DistributionCouple]:
    """The two distributions of every instance; only exactly known distributions are compared."""
    couples = []
    for prior, pair in scenario.instances:
        couple = prior.distributions[pair.first], prior.distributions[pair.second]
        if not all(isinstance(d, FiniteDistribution | GaussianDistribution) for d in couple):
            raise ScenarioError(
                "mechanisms are compared on declared distributions, empirical or Gaussian; the "
                "baselines have no bound for a distribution known only by samples"
            )
        couples.append(couple)
    return couples  # type: ignore[return-value]


def name_of(notion: str, method: Method) -> str:
    """The name of a sliced form of our mechanism in tables and pictures."""
    if method.rule == "closed_form":
        return f"{notion}, closed form"
    return f"{notion}, tight, {method.envelope.replace('_', ' ')}"


class _Answer(NamedTuple):
    """The row of a mechanism without its name, and the time and memory that it took."""

    guarantee: str
    noise_std: float
    unsliced_epsilon: float | None
    note: str = ""
    guess: float | None = None
    scope: Scope = "unsliced"
    noise: Literal["gaussian", "laplace"] = "gaussian"
    is_ours: bool = False


def _forms(scenario: Scenario) -> dict[str, tuple[SlicedNotion, Method]]:
    """The sliced forms of our mechanism that apply, by name."""
    methods = _EXACT_METHODS if scenario.priors[0].kind == "gaussian" else _EMPIRICAL_METHODS
    return {name_of(notion, method): (notion, method) for notion in _NOTIONS for method in methods}


def _shapes(scenario: Scenario) -> dict[str, NoiseShape]:
    """The shapes of noise of our unsliced forms, by name; on a line there is one."""
    if scenario.dim == 1:
        return {UNSLICED: "isotropic"}
    return {UNSLICED: "isotropic", SHAPED: "fitted"}


def _ours(
    scenario: Scenario, profile: FiniteProfile | None, target: Renyi
) -> dict[str, Callable[[], _Answer]]:
    """Every notion by every rule and envelope that applies, and the unsliced forms."""

    def answer(claim: Claim, method: Method | None, shape: NoiseShape) -> _Answer:
        certificate = certify_release(scenario, claim, method=method, shape=shape)
        noise_std, unsliced, note = certificate.noise_std, certificate.released.unsliced, ""
        if certificate.shape is not None:
            stds = certificate.shape.stds(noise_std)
            noise_std = _root_mean_square(stds)
            note = (
                f"correlated noise, {stds.min():.4g} to {stds.max():.4g} by coordinate; "
                "shown is the root mean square"
            )
        return _Answer(
            str(claim),
            noise_std,
            unsliced.epsilon,
            note,
            guess=unsliced.guess,
            scope="sliced" if claim.is_sliced else "unsliced",
            is_ours=True,
        )

    forms = {} if profile is None else _forms(scenario)
    contestants: dict[str, Callable[[], _Answer]] = {}
    for name, (notion, method) in forms.items():
        claim = Sliced(claim=target, notion=notion, profile=profile)
        contestants[name] = partial(answer, claim, method, "isotropic")
    for name, shape in _shapes(scenario).items():
        contestants[name] = partial(answer, target, None, shape)
    return contestants


def _others(
    scenario: Scenario, target: Renyi, settings: Settings
) -> dict[str, Callable[[], _Answer]]:
    """The mechanisms that the paper and its field would use instead."""

    def answer(baseline: Callable[[], _Baseline]) -> _Answer:
        noise_at, note, exact = baseline()
        noise_std = noise_at(target)
        cost: float | None = target.epsilon
        if exact is not None:
            cost = None if exact > 0 else 0.0
            if noise_std > 0:
                cost = float(gaussian_envelope(target.order, exact, noise_std))
        return _Answer(str(target), noise_std, cost, note)

    gwm, dagwm, sinkhorn, laplace, group = (
        partial(answer, baseline)
        for baseline in _baselines(scenario, settings, settings.largest_table).values()
    )
    pure = f"{in_full(target.epsilon)}-Pufferfish"
    contestants: tuple[Callable[[], _Answer], ...] = (
        gwm,
        dagwm,
        lambda: sinkhorn()._replace(guarantee="none: an estimate", scope="none"),
        lambda: laplace()._replace(guarantee=pure, noise="laplace"),
        lambda: group()._replace(guarantee=f"{target}, any prior"),
    )
    return dict(zip(BASELINES, contestants, strict=True))


class _Baseline(NamedTuple):
    """Another mechanism, ready for any epsilon."""

    noise_at: NoiseAt
    note: str = ""
    exact: Floats | None = None
    """The true sensitivity, where the mechanism uses an estimate."""


def _baselines(
    scenario: Scenario, settings: Settings, largest_dagwm: int
) -> dict[str, Callable[[], _Baseline]]:
    """Baselines by name; each computes what does not depend on epsilon, or refuses."""
    couples = couples_of(scenario)

    def gwm() -> _Baseline:
        _check_table(couples, settings.largest_table)
        sensitivity = full_sensitivity(couples)
        return _Baseline(lambda target: shift_noise_std(sensitivity, target))

    def dagwm() -> _Baseline:
        check_couples(couples)
        _check_table(couples, largest_dagwm)
        note = f"q = {settings.q:g}"
        return _Baseline(lambda target: dagwm_noise_std(couples, target, settings.q), note)

    def sinkhorn() -> _Baseline:
        _check_table(couples, settings.largest_table)
        any_target = Renyi(order=2, epsilon=1.0)
        estimate = sinkhorn_noise(couples, any_target, settings.sinkhorn)
        note = (
            f"regularisation {settings.sinkhorn.regularisation:g}, tolerance "
            f"{settings.sinkhorn.tolerance:g}, marginals off by {estimate.marginal_violation:.2g}, "
            f"gap to exact {estimate.gap:+.3g}"
        )
        exact = np.asarray(estimate.exact_sensitivity)
        return _Baseline(lambda target: shift_noise_std(estimate.sensitivity, target), note, exact)

    def laplace() -> _Baseline:
        return _Baseline(
            lambda target: math.sqrt(2) * laplace_scale(couples, target.epsilon),
            "Song et al., Ding; a pure claim",
        )

    def group() -> _Baseline:
        sensitivity, source = settings.group_sensitivity, "as given"
        if sensitivity is None:
            if scenario.query.range is None:
                raise ArgumentError(
                    "group privacy needs group_sensitivity, how far one group can move the query; "
                    "give it, or give the query a public range, whose width bounds it"
                )
            source = "width of the range"
            sensitivity = scenario.query.range.diameter(scenario.query.scales)
        note = f"sensitivity {sensitivity:.4g}, {source}"
        return _Baseline(partial(group_noise_std, sensitivity), note)

    return dict(zip(BASELINES, (gwm, dagwm, sinkhorn, laplace, group), strict=True))


def _check_table(couples: list[DistributionCouple], largest: int) -> None:
    for first, second in couples:
        if is_a(first, FiniteDistribution) and is_a(second, FiniteDistribution):
            size = first.n_samples * second.n_samples
            if size > largest:
                raise ArgumentError(
                    f"a pair of distributions has {first.n_samples:,} x {second.n_samples:,} "
                    f"distances, more than the {largest:,} that were allowed; raise largest_table "
                    "for a longer computation"
                )


def _load_loops(contestants: Mapping[str, Callable[[], _Answer]]) -> None:
    """Load every compiled loop and library, so that no row pays for it."""
    with suppress(*_REFUSALS):
        next(iter(contestants.values()))()
    # The first contestant has isotropic noise; shapes are fitted on a small scenario.
    worlds = {
        secret: FiniteDistribution.uniform(np.array([values, values[::-1]]).T)
        for secret, values in zip("ab", _SMALL_SAMPLES, strict=False)
    }
    small = Scenario.from_worlds(worlds, query=summary(mean=["x", "y"]), source="public_model")
    certify_release(small, Renyi(order=2, epsilon=1.0), shape="fitted")
    # Neither pair can be coupled at its nearest-neighbour distance, so every loop is entered.
    low, high, few = (FiniteDistribution.uniform(np.array([values]).T) for values in _SMALL_SAMPLES)
    couples = [(low, high), (low, few)]
    target = Renyi(order=2, epsilon=1)
    gwm_noise_std(couples, target)
    with suppress(MissingExtraError):
        dagwm_noise_std(couples, target)
    laplace_scale(couples, 1.0)
    sinkhorn_noise(couples, target, SinkhornSettings(regularisation=1, tolerance=0.5))


def _measured(name: str, contestant: Callable[[], _Answer]) -> Row:
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        start = time.perf_counter()
        answer = contestant()
        seconds = time.perf_counter() - start
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        if not was_tracing:
            tracemalloc.stop()
    return Row(
        mechanism=name,
        mean_squared_error=answer.noise_std**2,
        seconds=seconds,
        peak_bytes=peak,
        **answer._asdict(),
    )
