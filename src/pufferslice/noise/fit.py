# SPDX-License-Identifier: Apache-2.0
"""Fit the shape of the noise to a scenario, for a claim about the whole output.

Soundness does not depend on what is found here: the noise is calibrated to whatever shape results.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked
from pufferslice._core.checks import check_above, check_one_of
from pufferslice._core.sampler import DRAW_DELTA, INTEGER_DELTA
from pufferslice._core.text import given, listed
from pufferslice.claims import Claim
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.noise.rows import (
    ONE_PERSON,
    RowNoise,
    accurate_noise,
    least_value,
    rounded_within,
    row_covariance,
    sampling_weights,
    shared_noise,
)
from pufferslice.noise.shape import (
    FittedShape,
    Kind,
    fit_coupled,
    fit_gaussian,
    fit_points,
)
from pufferslice.queries import Query
from pufferslice.queries.ranges import Box
from pufferslice.scenario.distributions import Distribution, FiniteDistribution
from pufferslice.scenario.rows import RowDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.couplings import SEED, Effort, Recipe, coupled_differences
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.person import distance_within, row_distance
from pufferslice.sensitivity.renyi import moment_rate
from pufferslice.sensitivity.rows import (
    INDEPENDENT,
    MOST_FEATURES,
    TRANSPORT,
    RowDifference,
    couplings_by_cells,
)
from pufferslice.sensitivity.sensitivity import (
    Full,
    distribution_pairs,
    full_sensitivity,
    whitened,
)
from pufferslice.sensitivity.whitening import Shape

ShapeKind = Literal["fitted", "diagonal", "isotropic", "given"]
SHAPES: Final = ("fitted", "diagonal", "isotropic")
"""Shapes that can be requested by name; a covariance from the user is `given`."""

FITTED: Final = ("fitted", "diagonal")

GUARD_SHARE: Final = 0.09
"""Default guard as a share of the largest difference between protected secrets: about a tenth,
which raises the total variance by 2.6 % on the nine statistics of Adult."""

MOST_FULL: Final = 2_000
"""Most sums of rows whose noise may be correlated."""
_ROUNDS: Final = 2
"""Number of times that couplings and shape are found in turn."""
_MOST_PIECES: Final = 2000
"""Largest number of an instance's coupled differences to which a shape is fitted."""
_MOST_ATOMS: Final[Mapping[str, int]] = {"quick": 4_000, "thorough": 40_000}
"""Largest number of a distribution's atoms to which a shape is fitted."""
_MOST_SIZED: Final = 2
"""Most couplings for which the noise is sized where mean squares do not decide."""
_LARGER: Final = 1.02
"""Factor by which variances grow until a claim holds for noise that was rounded up."""
_ROOM: Final = 1 + 2.0**-20
"""Room for what is added to raised noise, so that its gap is still one."""
_OTHER_ORDER: Final = 4.0
"""Order of the Rényi claim whose shape other claims use."""


class Whole(NamedTuple):
    """The whole output alone, as what a claim is asked about."""

    full: Full
    slices: None = None


class Fit(NamedTuple):
    """A shape of noise, and how near it is to the best one."""

    kind: ShapeKind
    shape: Shape | None
    """Shape of the noise; None for isotropic noise."""
    gap: float | None = None
    """Bound on the excess variance: at most 1 + gap times that of the best Gaussian noise; None if
    no such bound is known."""
    noise_std: float | None = None
    """Noise above what the claim needs; None where the claim decides."""
    coupling: str | None = None
    """Coupling of the rows of a change; None for what is not made of rows."""


def fit_shape(
    scenario: Scenario,
    target: Claim,
    *,
    shape: str | object = "fitted",
    guard: float | None = None,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    effort: Effort = "thorough",
    stds: Floats | None = None,
    coupling: str | None = None,
    person: tuple[float, float] | None = None,
) -> Fit:
    """Fit the shape of the noise for a claim about the whole output.

    `guard` is a public radius in scaled coordinates: every shift of the output by no more than that
    is hidden as well as the claim says. `weights` say how much the variance of each coordinate
    counts, in scaled coordinates; by default equally. For sums of rows, `stds` are the largest
    standard deviations that are accurate enough, infinite where none is wanted; `coupling` names
    the coupling, and `person` is the (epsilon, delta) that any one person gets as well.
    """
    if scenario.prior_kind == "rows":
        return _row_fit(
            scenario,
            target,
            shape=shape,
            guard=guard,
            weights=weights,
            stds=stds,
            coupling=coupling,
            person=person,
        )
    if coupling is not None or person is not None:
        raise ArgumentError(
            "coupling and person are for sums of rows, as from_prevalence has them; leave them out"
        )
    if not isinstance(shape, str):
        if guard is not None or weights is not None:
            raise ArgumentError(
                "guard and weights belong to a fitted shape; a covariance of your own has neither"
            )
        public_shape = Shape.of_covariance(shape)
        if public_shape.dim != scenario.dim:
            raise ArgumentError(
                f"shape must be a covariance of the query's {scenario.dim} coordinates, got one "
                f"of {public_shape.dim}"
            )
        return Fit("given", public_shape)
    check_one_of(SHAPES, shape=shape)
    importance = _importance(scenario.query, weights)
    if guard is not None:
        check_above(0, guard=guard)
    if shape == "isotropic" or scenario.dim == 1:
        if guard is not None or weights is not None:
            raise ArgumentError(
                "guard and weights belong to a fitted shape of more than one coordinate"
            )
        return Fit("isotropic", None)
    kind: Kind = "diagonal" if shape == "diagonal" else "fitted"
    fitted = _fitted(scenario, target, kind=kind, guard=guard, weights=importance, effort=effort)
    if fitted is None:
        return Fit("isotropic", None)
    gap = fitted.gap if target.has_gap else None
    return Fit(kind, Shape.of_covariance(fitted.covariance), gap)


def _row_fit(
    scenario: Scenario,
    target: Claim,
    *,
    shape: object,
    guard: float | None,
    weights: Mapping[str, float] | Sequence[float] | None,
    stds: Floats | None,
    coupling: str | None,
    person: tuple[float, float] | None,
) -> Fit:
    """Fit sums of rows in closed form; `weights` multiply those by sampling error.

    Of the couplings by cells that the query names, and the independent one, that with the least
    noise is taken.
    """
    if shape not in FITTED or guard is not None:
        raise ArgumentError(
            "sums of rows have fitted noise (shape 'fitted' or 'diagonal') and no guard; leave "
            "shape and guard out"
        )
    if scenario.dim > MOST_FULL and shape != "diagonal":
        raise ArgumentError(
            f"shape must be 'diagonal' for more than {MOST_FULL:,} sums, got {scenario.dim:,}: "
            "the matrix of correlated noise would be too large. Ask for it, or for fewer sums"
        )
    distributions, pairs = distribution_pairs(scenario)
    kinds = [each for each in distributions if isinstance(each, RowDistribution)]
    names = [INDEPENDENT, *couplings_by_cells(kinds)] if coupling is None else [coupling]
    is_released = scenario.priors[0].source == "released_data"
    if person is not None and is_released:
        raise ArgumentError(
            "person needs noise that does not depend on the released rows; give moments_from=, an "
            "earlier, held-out or public table"
        )
    if person is not None and "state_of" in scenario.secret:
        raise ArgumentError(
            "person is about people with one row each, and here the rows are slots of one home; "
            "leave it out"
        )
    limit = ONE_PERSON
    if person is not None:
        tau = scenario.dim * (DRAW_DELTA + INTEGER_DELTA)
        limit = distance_within(*person, tau)
        if not limit > 0:
            raise CalibrationError(
                f"person {given(person)} allows less than the sampler's own error; ask for a "
                "larger delta"
            )
    plain = RowDifference.of(kinds, pairs)
    if not (target.by_mean_square or plain.bounds_rare_outputs):
        raise CalibrationError(
            f"{target} is about rare outputs, which are bounded for up to {MOST_FEATURES} "
            "statistics of a number of rows that are alike, and not here; claim "
            "Guarantee.guess(at_most=...)"
        )
    balance = sampling_weights(plain)
    importance = _importance(scenario.query, weights)
    if importance is not None:
        balance = balance * np.diagonal(importance)
    kind: Kind = "diagonal" if shape == "diagonal" else "fitted"

    def found(difference: RowDifference) -> RowNoise:
        moments = difference.second_moments
        if stds is None:
            return shared_noise(moments, target.distance_limit, balance, kind=kind)
        return accurate_noise(moments, stds, balance, kind=kind)

    def coupled(name: str) -> RowDifference:
        if not name.startswith(TRANSPORT):
            return RowDifference.of(kinds, pairs, coupling=name)
        # Rows meet that are close in the metric of the noise, which follows from how they meet.
        difference = plain
        for _ in range(_ROUNDS):
            metric = Shape.of_covariance(found(difference).covariance)
            difference = RowDifference.of(kinds, pairs, coupling=name, shape=metric)
        return difference

    def whole(name: str, covariance: Floats) -> Whole:
        """Compare the worlds under this noise, beyond second moments."""
        shape = None if scenario.dim == 1 else Shape.of_covariance(covariance)
        layered = RowDifference.of(kinds, pairs, coupling=name, shape=shape, layered="changes")
        return Whole(Full(dim=scenario.dim, differences=layered, shape=shape))

    def sized(name: str, noise: RowNoise) -> RowNoise:
        """Enlarge the noise to what a claim needs that a mean square does not bound."""
        least = target.least_noise(whole(name, noise.covariance))
        growth = least**2 * scenario.dim / float(np.trace(noise.covariance))
        return attrs.evolve(noise, covariance=noise.covariance * growth)

    differences = {name: plain if name == INDEPENDENT else coupled(name) for name in names}

    def price(name: str) -> float:
        moments = differences[name].second_moments
        if stds is not None:
            return accurate_noise(moments, stds, balance, kind=kind).mean_square
        return least_value(moments, target.distance_limit, balance, kind=kind)

    name = names[0] if len(names) == 1 else min(names, key=price)
    best = found(differences[name])
    if not target.by_mean_square and stds is None:
        # What a mean square tells of couplings says little about rare outputs.
        tried = dict.fromkeys([*sorted(names, key=price)[:_MOST_SIZED], names[0]])
        noises = {each: sized(each, found(differences[each])) for each in tried}
        name = min(noises, key=lambda each: float(np.diagonal(noises[each].covariance) @ balance))
        best = noises[name]
    difference = differences[name]
    if stds is not None:
        covariance = best.covariance
        if is_released:
            covariance = rounded_within(covariance, stds)
        distance = row_distance(covariance, *difference.boxes)
        floor = None
        if distance > limit or person is not None:
            floor = math.sqrt(float(np.trace(covariance)) / scenario.dim) * distance / limit
        met = None if is_released else best.gap
        return Fit(kind, Shape.of_covariance(covariance), met, floor, name)
    covariance, is_raised = row_covariance(
        difference, best.covariance, limit=limit, from_released_rows=is_released
    )
    noise_std = None
    if is_raised or person is not None:
        noise_std = math.sqrt(float(np.trace(covariance)) / scenario.dim)
    if is_released and not target.by_mean_square:
        # What is rounded up has another shape, for which the claim is evaluated again.
        while target.spent(whole(name, covariance), float(noise_std or 0.0)) > target.bound:
            covariance, _ = row_covariance(
                difference, covariance * _LARGER, limit=limit, from_released_rows=True
            )
            noise_std = math.sqrt(float(np.trace(covariance)) / scenario.dim)
    if scenario.dim == 1:
        return Fit("isotropic", None, noise_std=noise_std, coupling=name)
    gap: float | None = None
    if target.by_mean_square:
        growth = np.diagonal(covariance) @ balance / (np.diagonal(best.covariance) @ balance)
        gap = (1 + best.gap) * float(growth) * _ROOM - 1 if is_raised else best.gap
    return Fit(kind, Shape.of_covariance(covariance), gap, noise_std, name)


def _importance(
    query: Query, weights: Mapping[str, float] | Sequence[float] | None
) -> Floats | None:
    if weights is None:
        return None
    if isinstance(weights, Mapping):
        unknown = set(weights) - set(query.names)
        if unknown:
            raise ArgumentError(
                f"weights must name coordinates of the query: {listed(query.names)}"
            )
        weights = [float(weights.get(name, 1.0)) for name in query.names]
    values = locked(weights)
    if values.shape != (query.dim,) or not (values.min() > 0 and np.isfinite(values).all()):
        raise ArgumentError(
            f"weights must be {query.dim} positive numbers, one for each coordinate"
        )
    return np.diag(values)


def _fitted(
    scenario: Scenario,
    target: Claim,
    *,
    kind: Kind,
    guard: float | None,
    weights: Floats | None,
    effort: Effort,
) -> FittedShape | None:
    """Fit a covariance; return None where nothing but isotropic noise makes sense."""
    limit = target.distance_limit
    order = target.reported_order if target.has_order else _OTHER_ORDER
    epsilon = order * limit / 2

    def guarded(fit: Callable[..., FittedShape], differences: Floats) -> FittedShape:
        """Fit with at least the guard's variance in every direction, whatever the weights."""
        radius = guard
        if radius is None:
            radius = GUARD_SHARE * float(np.linalg.norm(differences, axis=1).max())
        least = max(radius**2 / limit, math.ulp(0.0))
        if weights is None:
            return fit(guard=least, kind=kind)
        # The solver's guard is in the metric of the weights. It is no larger than this one, so its
        # lower bound still holds.
        least_weight = float(np.diag(weights).min())
        return _raised(fit(guard=least * least_weight, weights=weights, kind=kind), least, weights)

    distributions, pairs = distribution_pairs(scenario)
    if scenario.prior_kind == "gaussian":
        gaussian = full_sensitivity(scenario, recipe=Recipe()).differences
        if isinstance(gaussian, GaussianPairs):
            shifts = gaussian.means[:, 0] - gaussian.means[:, 1]
            return guarded(
                partial(fit_gaussian, shifts, gaussian.covs, order=order, epsilon=epsilon), shifts
            )
    finite = _atoms(distributions)
    if len(finite) < len(distributions):
        return _fitted_to_range(scenario, limit, weights)
    means = np.array([d.mean for d in finite])
    shifts = np.array([means[a] - means[b] for a, b in pairs])
    if all(distribution.n_samples == 1 for distribution in finite):
        if not shifts.any():
            return None
        return guarded(partial(fit_points, shifts, limit=limit), shifts)
    finite = [_thinned(distribution, _MOST_ATOMS[effort]) for distribution in finite]
    shape, result = None, None
    recipe = Recipe(effort="quick")
    for _ in range(_ROUNDS):
        rows = whitened(finite, shape, scenario.query.center)
        coupled = coupled_differences(rows, pairs, recipe, _MOST_PIECES)
        coloring = np.eye(scenario.dim) if shape is None else shape.coloring
        differences = [differences @ coloring.T for differences, _ in coupled]
        masses = [masses for _, masses in coupled]
        if not any(part.any() for part in differences):
            return None
        root_mean_squares = np.array(
            [
                np.sqrt(m @ (d**2).sum(axis=1)) * np.eye(1, scenario.dim)[0]
                for d, m in zip(differences, masses, strict=True)
            ]
        )
        fit = partial(fit_coupled, differences, masses, order=order, epsilon=epsilon)
        result = guarded(fit, shifts if shifts.any() else root_mean_squares)
        shape = Shape.of_covariance(result.covariance)
        noise_std = math.sqrt(np.trace(result.covariance) / scenario.dim)
        recipe = Recipe(effort=effort, cost="renyi", rate=moment_rate(order, noise_std))
    return result


def _raised(fitted: FittedShape, least: float, weights: Floats) -> FittedShape:
    """Raise the shape to at least this variance in every direction."""
    values, axes = np.linalg.eigh(fitted.covariance)
    raised = fitted.covariance + (axes * np.maximum(least - values, 0.0)) @ axes.T
    gap = fitted.gap
    if gap is not None:
        growth = np.trace(weights @ raised) / np.trace(weights @ fitted.covariance)
        gap = (1 + gap) * float(growth) * (1 + 2.0**-44) - 1
    return FittedShape(covariance=raised, gap=gap, steps=fitted.steps)


def _thinned(distribution: FiniteDistribution, most: int) -> FiniteDistribution:
    """Draw at most this many atoms with a constant seed: enough to fit a shape to."""
    n = distribution.n_samples
    if n <= most:
        return distribution
    places = np.sort(np.random.default_rng(SEED).permutation(n)[:most])
    return FiniteDistribution(
        outputs=distribution.outputs[places], counts=distribution.counts[places]
    )


def _atoms(distributions: Sequence[Distribution]) -> list[FiniteDistribution]:
    """Select the distributions that are finite."""
    return [each for each in distributions if isinstance(each, FiniteDistribution)]


def _fitted_to_range(
    scenario: Scenario, limit: float, weights: Floats | None
) -> FittedShape | None:
    """Fit noise to a public box where no more is known: wide sides get more of it."""
    limits = scenario.query.range
    if not isinstance(limits, Box):
        return None
    sides = (limits.high - limits.low) / scenario.query.scales
    return fit_points(sides[None, :], limit=limit, guard=0.0, weights=weights, kind="diagonal")
