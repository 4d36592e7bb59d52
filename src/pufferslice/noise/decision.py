# SPDX-License-Identifier: Apache-2.0
"""Decisions on the noise of a release: what the claim needs, and what else was requested.

The shape comes first, then the size. Each later step only adds noise, so that a claim that is met
stays met; whoever uses the result evaluates the claim again at the final noise.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above, check_between, check_one_of, is_a
from pufferslice._core.numbers import at_most
from pufferslice._core.search import LARGEST
from pufferslice._core.text import given, listed
from pufferslice.claims import Claim
from pufferslice.claims.claim import Compared
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.noise.fit import FITTED, Fit, fit_shape
from pufferslice.queries import Query
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.couplings import EFFORTS, Effort, Recipe
from pufferslice.sensitivity.sensitivity import Full
from pufferslice.sensitivity.whitening import Shape, grid_margin

INTERVAL_STDS: Final = 1.959963984540054
"""Half-width of a 95 % interval, in standard deviations."""

_LEAST_WEIGHT_SHARE: Final = 2.0**-6
"""Weight of a coordinate without a wanted accuracy, as a share of the largest weight."""
_LEAST_CLAIM_SHARE: Final = 2.0**-10
"""Smallest claim for a wanted accuracy, as a share of the most that it may cost."""
_ROOM: Final = 1 + 2.0**-29
_DOWN: Final = 1 - 2.0**-30
_FIRST_RECIPE: Final = Recipe(effort="quick")
"""Recipe of a first search, which shows roughly how much noise there will be."""

Tables = TypeVar("Tables", bound=Compared)
Compare = Callable[[Shape | None, Recipe], Tables]
"""Function of a shape and a recipe for couplings that compares the two worlds."""


def wide_noise(noise_std: float) -> float:
    """Widen the noise to 64 bits: narrower floats would round a cost, down as well as up."""
    std = float(noise_std) if is_a(noise_std, np.floating) else noise_std
    check_between(0, LARGEST, noise_std=std)
    return float(std)


@final
@attrs.frozen(kw_only=True)
class NoiseOptions:
    """The data holder's requests about the noise, beside the claim."""

    shape: object = None
    """Shape `"fitted"`, `"diagonal"`, `"isotropic"` or a covariance; None for the default."""
    guard: float | None = None
    """Public radius, in scaled coordinates, up to which shifts of the output are hidden, too."""
    weights: Mapping[str, float] | Sequence[float] | None = None
    """Weight of each coordinate's variance in the total."""
    noise_std: float | None = attrs.field(
        default=None, converter=attrs.converters.optional(wide_noise)
    )
    """Noise that the data holder chose; it must meet the claim."""
    accuracy: Mapping[str, float] | None = None
    """Required half-widths of 95 % intervals, in the user's units."""
    effort: Effort = "thorough"
    """Effort of the search for couplings."""
    coupling: str | None = None
    """Coupling of the rows of a change; None for the one that needs the least noise."""
    person: tuple[float, float] | None = None
    """Epsilon and delta that the noise must also give to any one person; None for no more than
    the default floor."""

    def __attrs_post_init__(self) -> None:
        check_one_of(EFFORTS, effort=self.effort)
        if self.person is not None:
            if not is_a(self.person, Sequence) or is_a(self.person, str) or len(self.person) != 2:
                raise ArgumentError(
                    f"person must be (epsilon, delta), got {given(self.person)}; write (1.0, 1e-6)"
                )
            check_above(0, epsilon=self.person[0])
            check_between(0, 1, delta=self.person[1])
        if self.noise_std is not None and self.accuracy is not None:
            raise ArgumentError("give noise_std or accuracy, not both: accuracy decides the noise")

    def check_sliced(self) -> None:
        """Refuse options that do not go with a claim along slices."""
        is_isotropic = self.shape is None or (is_a(self.shape, str) and self.shape == "isotropic")
        if self.guard is not None or self.weights is not None or not is_isotropic:
            raise ArgumentError(
                "a claim along slices has isotropic noise: noise with another shape would vanish "
                "where no slice looks. Leave shape, guard and weights out, or claim the whole "
                "output with Guarantee.unsliced(...)"
            )

    def half_widths(self, query: Query) -> Floats | None:
        """Return the largest half-width of each coordinate; infinite for those without a name."""
        if self.accuracy is None:
            return None
        unknown = not is_a(self.accuracy, Mapping) or set(self.accuracy) - set(query.names)
        if unknown or not self.accuracy:
            raise ArgumentError(
                f"accuracy must map coordinates of the query to half-widths: {listed(query.names)}"
            )
        for name, width in self.accuracy.items():
            check_above(0, **{f"accuracy[{name!r}]": width})
        return np.array([float(self.accuracy.get(name, math.inf)) for name in query.names])


@final
@attrs.frozen(kw_only=True)
class Decision(Generic[Tables]):
    """The shape of the noise, the differences in its whitened coordinates, and the noise size."""

    fit: Fit
    compared: Tables
    claim: Claim
    """Claim of the release; for a wanted accuracy, the least claim that reaches it."""
    noise_std: float | None
    """Noise above what the claim needs; None where the claim decides."""


def decided_noise(
    scenario: Scenario, claim: Claim, options: NoiseOptions, compare: Compare[Tables]
) -> Decision[Tables]:
    """Decide shape and size: for the claim, then accuracy or a chosen noise, then the floors."""
    widths = options.half_widths(scenario.query)
    fit = _shape_for(scenario, claim, options, widths)
    first = _FIRST_RECIPE
    if fit.coupling is not None:
        rare = not claim.by_mean_square
        first = attrs.evolve(first, coupling=fit.coupling, layers_changes=rare)
    compared = compare(fit.shape, first)
    equal, full = compared.full.are_equal, compared.full
    if claim.is_sliced and compared.slices is not None:
        equal = compared.slices.are_equal
    if equal:
        return Decision(fit=fit, compared=compared, claim=claim, noise_std=options.noise_std)
    std = options.noise_std
    if widths is not None:
        std = float((widths / half_widths_of(full, 1.0, scenario.query)).min())
    if options.effort == "thorough" and full.recipe is not None and fit.coupling is None:
        # Couplings for the noise that the claim needs, once it is roughly known.
        rough = claim.least_noise(compared) if std is None else std
        compared = compare(fit.shape, claim.recipe(rough, options.effort))
    if widths is not None and std is not None:
        claim = _least_claim(claim, compared, std)
    floor = max(fit.noise_std or 0.0, _guard_noise(compared.full, claim, options.guard)) * _ROOM
    if floor and floor > (claim.least_noise(compared) if std is None else std):
        if std is not None:
            raise CalibrationError(
                "this noise hides less than it must: one row, or every shift up to the guard. Use "
                f"a noise_std of at least {floor:.6g}, a smaller guard, or less accuracy"
            )
        std = floor
    return Decision(fit=fit, compared=compared, claim=claim, noise_std=std)


def noise_stds(full: Full, noise_std: float) -> Floats:
    """Compute the standard deviation of each coordinate's noise, in scaled coordinates."""
    if full.shape is None:
        return np.full(full.dim, noise_std)
    return full.shape.stds(noise_std)


def half_widths_of(full: Full, noise_std: float, query: Query) -> Floats:
    """Compute the half-width of each coordinate's 95 % interval, in the user's units."""
    return np.asarray(noise_stds(full, noise_std) * query.scales * INTERVAL_STDS)


def guard_radius(full: Full, claim: Claim, noise_std: float) -> float:
    """Find the longest shift of the output, in scaled coordinates, that a claim's noise hides.

    Whitened, and with the most that rounding to the grid adds, it is no longer than the claim
    allows between two points. In proportion to the noise.
    """
    stretch = 1.0 if full.shape is None else full.shape.stretch
    longest = math.sqrt(claim.distance_limit) * noise_std - grid_margin(full.dim, noise_std)
    return max(0.0, longest / stretch * _DOWN)


def _guard_noise(full: Full, claim: Claim, guard: float | None) -> float:
    """Compute the noise that the guard needs, which may be more than the claim needs."""
    return 0.0 if guard is None else guard / guard_radius(full, claim, 1.0)


def _shape_for(
    scenario: Scenario, claim: Claim, options: NoiseOptions, widths: Floats | None
) -> Fit:
    if claim.is_sliced:
        options.check_sliced()
        return Fit("isotropic", None)
    shape, weights = "fitted" if options.shape is None else options.shape, options.weights
    stds = None
    if widths is not None and scenario.prior_kind == "rows":
        stds = widths / INTERVAL_STDS / scenario.query.scales
    elif widths is not None and weights is None and is_a(shape, str) and shape in FITTED:
        weights = _weights_of(scenario.query, widths)
    return fit_shape(
        scenario,
        claim,
        shape=shape,
        guard=options.guard,
        weights=weights,
        effort=options.effort,
        stds=stds,
        coupling=options.coupling,
        person=options.person,
    )


def _weights_of(query: Query, widths: Floats) -> list[float]:
    """Weight the coordinates that need these half-widths; give the others a small weight."""
    weights = (query.scales / widths) ** 2
    return np.maximum(weights, weights.max() * _LEAST_WEIGHT_SHARE).tolist()  # type: ignore[no-any-return]


def _least_claim(claim: Claim, compared: Compared, noise_std: float) -> Claim:
    """Find the claim with the least bound that a noise meets; refuse one above its own bound."""
    cost = claim.spent(compared, noise_std)
    if not cost <= claim.bound:
        raise CalibrationError(
            f"this accuracy costs {at_most(cost)}, more than the {claim.bound:g} of {claim}; "
            "accept less accuracy, or allow a larger bound"
        )
    # An (epsilon, delta) claim may cost nothing, but must have a positive epsilon.
    least = max(float(np.nextafter(cost, np.inf)), claim.bound * _LEAST_CLAIM_SHARE)
    return claim.with_bound(min(least, claim.bound))
