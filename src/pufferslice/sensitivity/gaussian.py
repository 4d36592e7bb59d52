# SPDX-License-Identifier: Apache-2.0
r"""Pairs of Gaussian distributions, whose divergences along slices and in full are exact.

Of two mixtures of Gaussians the components are coupled, and every two coupled components are a
piece of the pair. By joint convexity, with masses $m_{kl}$ of the pieces,

$$H(P \| Q) \le \sum_{kl} m_{kl} H(N_k \| N_l), \qquad H = e^{(\alpha-1) D_\alpha},$$

and delta and total variation are at most the mean of those of the pieces. Any coupling is sound.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Final, NoReturn, Self, final

import attrs
import numpy as np
import numpy.typing as npt
from scipy.special import erf

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers
from pufferslice._core.search import SAFETY
from pufferslice.errors import ArgumentError, ClaimError, ScenarioError
from pufferslice.scenario.distributions import (
    WEIGHT_QUANTA,
    Distribution,
    GaussianDistribution,
    GaussianMixture,
)
from pufferslice.sensitivity.coupling_kernels import transport
from pufferslice.sensitivity.difference import NotOfRows
from pufferslice.sensitivity.renyi import (
    CLAIM_ORDERS,
    GaussianSpectrum,
    gaussian_delta,
    gaussian_divergence_apart,
)
from pufferslice.sensitivity.sphere import log_sphere_moment
from pufferslice.sensitivity.variation import LOW_ORDERS, total_variation_bound
from pufferslice.sensitivity.whitening import Covariance, Shape

_DELTA_ERROR: Final = 2.0**-49
_UP: Final = 1 + 2.0**-50
_ROUNDINGS: Final = 32 * UNIT_ROUNDOFF
_MIXED_UP: Final = 1 + 2.0**-40
"""Bound on the rounding of a mean over the pieces of a mixture."""
SCALING: Final = 4 * UNIT_ROUNDOFF
"""Bound on what dividing a covariance by two scales can change, relative to its size."""


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class GaussianPairs(NotOfRows):
    """Means and covariances under both secrets of every piece, in scaled coordinates.

    An instance with Gaussian distributions is one piece, one with mixtures several.

    Only differences of means matter, and scaled means far from 0 would lose them to rounding: `of`
    puts the second mean at 0 and rounds the exact difference once.
    """

    name: ClassVar[str] = "gaussian"
    prior_kinds: ClassVar[tuple[str, ...]] = ("gaussian",)
    is_on_grid: ClassVar[bool] = False
    envelopes: ClassVar[tuple[str, ...]] = ("exact",)
    """Ways to bound a divergence along a slice."""
    is_point: ClassVar[bool] = False

    means: Floats
    """Means, shape (n_pieces, 2, dim)."""
    covs: Floats
    """Covariances, shape (n_pieces, 2, dim, dim); each number within `SCALING` of the exact one,
    relative to its own size; two are equal only where the declared numbers are."""
    owners: Integers = attrs.field(
        default=attrs.Factory(lambda self: np.arange(len(self.means)), takes_self=True)
    )
    """Instance of each piece, in order, shape (n_pieces,)."""
    counts: Integers = attrs.field(
        default=attrs.Factory(lambda self: np.ones(len(self.means), np.int64), takes_self=True)
    )
    """Mass of each piece, as a part of the sum over its instance, shape (n_pieces,)."""
    _latest: tuple[float, GaussianSpectrum] | None = attrs.field(
        default=None, init=False, repr=False
    )

    @classmethod
    def of(
        cls,
        pairs: Sequence[tuple[Distribution, Distribution]],
        scales: Floats,
        shape: Shape | None = None,
    ) -> Self:
        """Pair Gaussians, or mixtures of them, given in the user's units.

        The `scales` are the units of the noise. With a `shape` in the coordinates that it whitens:
        exact images, each number rounded once.
        """
        pieces: list[tuple[GaussianDistribution, GaussianDistribution]] = []
        owners, counts = [], []
        for instance, (first, second) in enumerate(pairs):
            if isinstance(first, GaussianDistribution) and isinstance(second, GaussianDistribution):
                coupled = [(first, second, 1)]
            else:
                coupled = coupled_components(_mixture(first), _mixture(second), scales)
            for one, other, count in coupled:
                pieces.append((one, other))
                owners.append(instance)
                counts.append(count)
        units = [Fraction(scale) for scale in scales]
        shifts = []
        for one, other in pieces:
            shift = [
                (Fraction(a) - Fraction(b)) / unit
                for a, b, unit in zip(one.mean, other.mean, units, strict=True)
            ]
            exact = shift if shape is None else shape.whitened_exactly(shift)
            shifts.append([_nearest(x) for x in exact])
        declared = np.array([[one.cov, other.cov] for one, other in pieces])
        if shape is None:
            covs = declared / np.outer(scales, scales)
        else:
            images: dict[bytes, Floats] = {}
            for cov in declared.reshape(-1, *declared.shape[2:]):
                if cov.tobytes() not in images:
                    images[cov.tobytes()] = _whitened_covariance(cov, units, shape)
            whitened = [images[cov.tobytes()] for pair in declared for cov in pair]
            covs = np.array(whitened).reshape(declared.shape)
        # Numbers that differ must stay apart, or different distributions would seem equal.
        differ = declared[:, 0] != declared[:, 1]
        if shape is not None:
            differ = np.broadcast_to(differ.any(axis=(1, 2), keepdims=True), differ.shape)
            differ = differ & np.eye(len(scales), dtype=np.bool_)
        merged = differ & (covs[:, 0] == covs[:, 1])
        larger = np.where(declared[:, 0] > declared[:, 1], np.inf, -np.inf)
        covs[:, 0] = np.where(merged, np.nextafter(covs[:, 0], larger), covs[:, 0])
        means = np.stack([np.array(shifts), np.zeros((len(pieces), len(scales)))], axis=1)
        return cls(means=means, covs=covs, owners=np.array(owners), counts=np.array(counts))

    @property
    def n_instances(self) -> int:
        """Number of (prior, pair) combinations."""
        return int(self.owners[-1]) + 1

    @property
    def has_mixtures(self) -> bool:
        """Whether some instance has several pieces."""
        return len(self.means) > self.n_instances

    @property
    def dim(self) -> int:
        """Output dimension."""
        return int(self.means.shape[2])

    @property
    def is_single(self) -> bool:
        """Whether every instance is of two Gaussians, not of mixtures."""
        return not self.has_mixtures

    @property
    def scale(self) -> float:
        """Largest distance of two means, or difference of two spreads."""
        means = np.linalg.norm(self.means[:, 0] - self.means[:, 1], axis=1)
        spreads = np.abs(self.covs[:, 0] - self.covs[:, 1]).max(axis=(1, 2))
        return float(max(means.max(), math.sqrt(spreads.max())))

    def fits(self, directions: Floats) -> bool:
        """Return whether the directions have as many coordinates as the Gaussians."""
        return bool(directions.shape[1] == self.dim)

    def scale_along(self, weights: Floats) -> float:
        """Return the size of the differences: every slice may show it."""
        del weights
        return self.scale

    def problems(self, scenario: Mapping[str, Any]) -> Iterator[str]:
        """Yield nothing: the description says nothing about means and covariances."""
        del scenario
        return iter(())

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return means and covariances, and for mixtures the pieces, for a file."""
        arrays = {"means": self.means, "covs": self.covs}
        return arrays | (
            {"owners": self.owners, "counts": self.counts} if self.has_mixtures else {}
        )

    def mean_squares(self, noise: Covariance) -> NoReturn:
        """Refuse: the data's own spread counts as noise here, and distances would not."""
        del noise
        raise ClaimError(
            "declared Gaussian distributions have no mean squared distance; claim guesses, a Rényi "
            "divergence, or (epsilon, delta)"
        )

    def delta_curve(self, noise: Covariance) -> Callable[[float], Floats]:
        """Compute delta as a function of epsilon: exact for equal spreads.

        For other spreads their part is added, or the best of many orders is taken.
        """
        shifts, variations = self.parts(noise.std)
        farthest = shifts.max(axis=1) * _UP
        orders = np.array(CLAIM_ORDERS)[:, None]
        costs = np.array([self.divergences(order, noise) for order in CLAIM_ORDERS]) * SAFETY
        terms = (orders - 1) * np.log1p(-1 / orders) - np.log(orders)

        def deltas(epsilon: float) -> Floats:
            split = self.averaged(gaussian_delta(farthest, epsilon) + _DELTA_ERROR + variations)
            logs = (orders - 1) * (costs - epsilon) + terms
            converted = np.exp(np.minimum(logs.min(axis=0), 0.0)) * _UP
            return np.asarray(np.minimum(split, converted))

        return deltas

    def variations(self, noise: Covariance) -> Floats:
        """Bound total variation by means and spreads, or by the best of several orders.

        Exact for equal spreads; for others the part of the spreads is added.
        """
        costs = np.array([self.divergences(order, noise) for order in LOW_ORDERS]).T * SAFETY
        bounds = total_variation_bound(LOW_ORDERS, costs).min(axis=1)
        shifts, variations = self.parts(noise.std)
        near = erf(shifts.min(axis=1) / (2 * math.sqrt(2)))
        split = self.averaged((near + variations) * (1 + 1e-12))
        return np.asarray(np.minimum(split, bounds))

    def epsilon_at(self, delta: float, noise: Covariance) -> None:
        """Return None: there are no distances from which to read an epsilon."""
        del delta, noise

    def sphere_divergences(self, notion: str, order: float, noise: Covariance) -> Floats:
        """Bound the divergence along the whole sphere, for pieces with equal covariances."""
        if not self.have_one_spread:
            raise ArgumentError(
                "the whole sphere has a closed form for Gaussians only where both distributions of "
                "every pair have the same covariance. Use a FiniteProfile (a SampledSphere needs a "
                "public range, which Gaussian priors do not have)"
            )
        a = order - 1
        points = order / 2 * self.squared_ratios(order, noise.std)
        if notion == "average":
            pieces = points / noise.dim
        else:
            pieces = np.array([log_sphere_moment(a * x, noise.dim) / a for x in points])
        return self.mixed(np.stack([pieces, pieces]), order)

    def reach(self) -> None:
        """Return None: Gaussians reach everywhere."""

    def coarsened(self, n_entries: int) -> Self:
        """Return the pairs themselves."""
        del n_entries
        return self

    def farther(self, distance: float) -> None:
        """Return None: nothing is coupled."""
        del distance

    def unwhitened(self, shape: Shape) -> Self:
        """Return the pairs in scaled coordinates."""
        coloring = shape.coloring
        covs = coloring @ self.covs @ coloring.T
        return attrs.evolve(
            self, means=self.means @ coloring.T, covs=(covs + covs.swapaxes(-1, -2)) / 2
        )

    def source(self, found: str | None) -> str:
        """Name the divergences of the Gaussians."""
        del found
        if self.has_mixtures:
            return "the exact divergences of Gaussian components, coupled"
        return "the exact divergence of the Gaussian distributions"

    def slice_deltas(self, epsilons: Floats, noise: Covariance, envelope: str) -> NoReturn:
        """Refuse: Gaussians have no gaps along slices."""
        del epsilons, noise, envelope
        raise ArgumentError(
            "an (epsilon, delta) claim is calibrated on gaps, which Gaussian distributions do "
            "not have; certify a Rényi claim and read its (epsilon, delta) views"
        )

    def epsilon_along(self, notion: str, weights: Floats, delta: float, noise: Covariance) -> None:
        """Return None: there are no gaps from which to read an epsilon."""
        del notion, weights, delta, noise

    def largest_gaps(self) -> None:
        """Return None: Gaussians of different spread have no largest gap."""

    def worst_gaps(self) -> NoReturn:
        """Refuse: W-infinity is infinite between Gaussians of different spread."""
        raise ArgumentError(
            "rule 'closed_form' needs W-infinity, which is infinite between Gaussians of different"
            " spread; use rule 'tight', which takes their exact divergence"
        )

    @property
    def equal(self) -> npt.NDArray[np.bool_]:
        """Instances whose two distributions are the same distribution."""
        return np.logical_and.reduceat(self._equal_pieces, self._starts)

    @property
    def _equal_pieces(self) -> npt.NDArray[np.bool_]:
        same_mean = (self.means[:, 0] == self.means[:, 1]).all(axis=1)
        same_cov = (self.covs[:, 0] == self.covs[:, 1]).all(axis=(1, 2))
        return np.asarray(same_mean & same_cov)

    @property
    def _starts(self) -> Integers:
        """Return the first piece of each instance."""
        return np.searchsorted(self.owners, np.arange(self.n_instances))

    @property
    def _masses(self) -> Floats:
        totals = np.add.reduceat(self.counts, self._starts)
        return np.asarray(self.counts / totals[self.owners])

    def averaged(self, values: Floats) -> Floats:
        """Average over the pieces of each instance, shape (n_instances, ...), rounded up."""
        if not self.has_mixtures:
            return values
        masses = self._masses.reshape(-1, *[1] * (values.ndim - 1))
        return np.add.reduceat(masses * values, self._starts) * _MIXED_UP

    def mixed(self, costs: Floats, order: float) -> Floats:
        r"""Combine the divergences of pieces into those of instances, the larger of both orders.

        $$\frac{1}{\alpha-1} \ln \sum_i m_i e^{(\alpha-1) D_i}$$

        `costs` has shape (2, n_pieces, ...).
        """
        if not self.has_mixtures:
            return np.asarray(costs.max(axis=0))
        top = np.maximum.reduceat(costs, self._starts, axis=1)
        # Small costs keep their digits in the first form, large ones do not overflow in the second.
        with np.errstate(over="ignore", invalid="ignore"):
            moments = np.stack([self.averaged(np.expm1((order - 1) * part)) for part in costs])
            lowered = costs - top[:, self.owners]
            rest = np.stack([self.averaged(np.exp((order - 1) * part)) for part in lowered])
            small = np.log1p(moments) / (order - 1) * _MIXED_UP
            large = top * _MIXED_UP + np.log(rest) / (order - 1)
        mixed = np.where((order - 1) * top < 1, small, np.where(np.isinf(top), np.inf, large))
        return np.asarray(mixed.max(axis=0))

    def squared_ratios(self, order: float, noise_std: float) -> Floats:
        r"""Bound the squared distance of the means over the least noisy variance in any direction.

        Upper bounds, shape (n_pieces,), for pieces with one covariance S on both sides:
        $|\Delta|^2 / (\lambda_{\min}(S) + \sigma^2)$. The divergence along u is $\alpha/2$ times
        $\langle u, \Delta \rangle^2 / (u^\top S u + \sigma^2)$, at most that share of it.
        """
        covs, variance = self.covs[:, 0], noise_std**2
        sizes = self.dim * np.abs(covs).max(axis=(1, 2)) + variance
        errors = _spread_errors(self.dim, order, sizes)
        least = np.linalg.eigvalsh(covs).min(axis=1)
        spreads = np.maximum(least - errors, 0.0) + variance
        shifts = self.means[:, 0] - self.means[:, 1]
        longer = 1 + (self.dim + 8) * UNIT_ROUNDOFF
        return np.asarray((shifts**2).sum(axis=1) * longer / spreads)

    @property
    def have_one_spread(self) -> bool:
        """Return whether both sides of every piece have the same covariance."""
        return bool(np.array_equal(self.covs[:, 0], self.covs[:, 1]))

    def visible(self, directions: Floats, errors: Floats, share: float) -> tuple[Floats, Floats]:
        """Return what a slice must show of each pair, squared, and what each direction shows."""
        del errors  # differences are projected, not values
        shifts = self.means[:, 0] - self.means[:, 1]
        spreads = self.covs[:, 0] - self.covs[:, 1]
        apart = np.linalg.norm(shifts, axis=1) ** 2 + np.linalg.norm(spreads, axis=(1, 2))
        along = np.einsum("ld,ide,le->il", directions, spreads, directions)
        visible = (shifts @ directions.T) ** 2 + np.abs(along)
        return self.averaged(apart) * share**2, self.averaged(visible)

    def check(self) -> None:
        """Check that the arrays fit together and are distributions; for pairs read from a file."""
        n, dim = len(self.means), self.means.shape[-1]
        if self.means.shape != (n, 2, dim) or self.covs.shape != (n, 2, dim, dim) or not n * dim:
            raise ArgumentError(
                "means and covs must have shapes (n, 2, dim) and (n, 2, dim, dim), n and dim at "
                f"least 1; got {self.means.shape} and {self.covs.shape}"
            )
        has_owners = self.owners.shape == self.counts.shape == (n,) and self.owners[0] == 0
        steps = np.diff(self.owners) if has_owners else np.array([-1])
        in_order = has_owners and not ((steps != 0) & (steps != 1)).any() and self.counts.min() >= 1
        if not in_order or self.counts.max() > WEIGHT_QUANTA or not self._have_one_mass():
            raise ArgumentError(
                f"owners and counts must have one integer for each of the {n} pieces, the owners "
                "in order and without a gap, the counts at least 1 and of one sum"
            )
        for mean, cov in zip(
            self.means.reshape(-1, dim), self.covs.reshape(-1, dim, dim), strict=True
        ):
            GaussianDistribution(mean=mean, cov=cov)

    def _have_one_mass(self) -> bool:
        """Return whether each instance is one piece, or pieces with the right common sum."""
        sizes, sums = np.bincount(self.owners), np.zeros(int(self.owners[-1]) + 1, dtype=np.int64)
        np.add.at(sums, self.owners, self.counts)
        return bool(np.all((sums == WEIGHT_QUANTA) | ((sizes == 1) & (sums == 1))))

    def slice_costs(
        self, directions: Floats, order: float, noise: Covariance, envelope: str
    ) -> Floats:
        """Compute the larger of both orders of the pair, shape (n_instances, n_slices)."""
        del envelope  # the divergence is exact
        variance = noise.std**2
        sizes = _along(np.abs(directions), np.abs(self.covs)).max(axis=1)
        errors = _spread_errors(self.dim, order, sizes + variance)
        totals = _along(directions, self.covs) + (variance - errors)[:, None]
        shifts, wider = self._shifts(directions), self._wider(directions)
        both = np.stack(
            [
                gaussian_divergence_apart(order, shifts, wider, totals[:, 1]),
                gaussian_divergence_apart(order, shifts, -wider, totals[:, 0]),
            ]
        )
        both[:, totals.min(axis=1) < errors] = np.inf
        both[:, self._equal_pieces] = 0.0
        return self.mixed(both, order)

    def divergences(self, order: float, noise: Covariance) -> Floats:
        """Compute the larger divergence of both orders in all dimensions, shape (n_instances,)."""
        both = np.zeros((2, len(self.means)))
        apart = ~self._equal_pieces
        if apart.any():
            both[:, apart] = self._spectrum(noise.std).divergences(order)
        return self.mixed(both, order)

    def _spectrum(self, noise_std: float) -> GaussianSpectrum:
        """Decompose the pieces that differ, in both orders; kept for the latest noise.

        Their units make every variance about 1, so that no rounding hides a small one.
        """
        if self._latest is not None and self._latest[0] == noise_std:
            return self._latest[1]
        found: list[list[GaussianSpectrum]] = [[], []]
        for piece in np.flatnonzero(~self._equal_pieces):
            means, covs = self.means[piece], self.covs[piece]
            totals = np.maximum(np.diagonal(covs, axis1=1, axis2=2).max(axis=0), 0) + noise_std**2
            units = np.exp2(np.rint(np.log2(np.maximum(totals, np.finfo(float).tiny)) / 2))
            sides = list(zip(means / units, covs / np.outer(units, units), strict=True))
            for part, (first, second) in zip(found, (sides, sides[::-1]), strict=True):
                part.append(GaussianSpectrum.of(first, second, noise_std**2 / units**2, SCALING))
        spectrum = GaussianSpectrum.stacked([GaussianSpectrum.stacked(part) for part in found])
        object.__setattr__(self, "_latest", (noise_std, spectrum))
        return spectrum

    def parts(self, noise_std: float) -> tuple[Floats, Floats]:
        r"""Bound what means and spreads contribute, after noise, to telling a pair apart.

        First, shape (n_pieces, 2): distance of the means in standard deviations of the one and
        of the other Gaussian. Second, shape (n_pieces,): total variation between two centred
        Gaussians with their spreads, by Pinsker's inequality from the smaller divergence

        $$KL = \tfrac12 \sum_i (\lambda_i - 1 - \ln \lambda_i)$$

        over the eigenvalues of one spread relative to the other; 0 for equal spreads.
        Reason: with M between P and Q, of the mean of the one and the spread of the other,
        TV(P, Q) <= TV(P, M) + TV(M, Q), and delta likewise.
        """
        shifts, variations = np.full((len(self.means), 2), np.inf), np.ones(len(self.means))
        for i in range(len(self.means)):
            means, covs = self.means[i], self.covs[i]
            totals = np.maximum(np.diagonal(covs, axis1=1, axis2=2).max(axis=0), 0) + noise_std**2
            if not totals.min() > 0:
                continue
            units = np.exp2(np.rint(np.log2(totals) / 2))
            scaled = covs / np.outer(units, units) + np.diag(noise_std**2 / units**2)
            size = self.dim * float(np.abs(scaled).max())
            error = float(_spread_errors(self.dim, 2.0, size))
            apart = (means[0] - means[1]) / units
            smallest = float(np.linalg.eigvalsh(scaled).min())
            if not smallest > 4 * error:
                continue
            lowered = scaled - error * np.eye(self.dim)
            for side in range(2):
                square = float(apart @ np.linalg.solve(lowered[side], apart))
                shifts[i, side] = math.sqrt(max(square, 0.0)) * (1 + 2.0**-30)
            if np.array_equal(covs[0], covs[1]):
                variations[i] = 0.0
                continue
            room = 64 * self.dim * size / smallest * UNIT_ROUNDOFF + 4 * error / smallest
            divergences = []
            for first, second in ((0, 1), (1, 0)):
                factor = np.linalg.cholesky(scaled[second])
                half = np.linalg.solve(factor, scaled[first])
                ratios = np.linalg.eigvalsh(np.linalg.solve(factor, half.T))
                off = np.abs(ratios - 1) + room
                # lambda - 1 - ln(lambda) grows faster below 1 than above it.
                known = off.max() < 1
                divergences.append(-(off + np.log1p(-off)).sum() / 2 if known else math.inf)
            variations[i] = min(1.0, math.sqrt(min(divergences) / 2) * (1 + 2.0**-30))
        return shifts, variations

    def _shifts(self, directions: Floats) -> Floats:
        """Bound the distance of the means along each direction: (n_instances, n_slices).

        The difference is projected, because the rounding of means far from 0 would hide it; the
        rounding error of its projection is added.
        """
        apart = self.means[:, 0] - self.means[:, 1]
        error = (self.dim + 4) * UNIT_ROUNDOFF * (np.abs(apart) @ np.abs(directions.T))
        return np.asarray(np.abs(apart @ directions.T) + error)

    def _wider(self, directions: Floats) -> Floats:
        """Bound how much wider the first one is along each direction, away from 0 by its error.

        The difference is projected, as in `_shifts`.
        """
        apart = self.covs[:, 0] - self.covs[:, 1]
        widths = _along(directions, apart)
        sizes = np.abs(directions)
        error = 2 * (self.dim + 4) * UNIT_ROUNDOFF * _along(sizes, np.abs(apart))
        error += SCALING * _along(sizes, np.where(apart != 0, np.abs(self.covs).sum(axis=1), 0.0))
        return np.asarray(widths + np.copysign(error, widths))

    def __repr__(self) -> str:
        return f"GaussianPairs(n_instances={self.n_instances}, dim={self.dim})"


def coupled_components(
    first: GaussianMixture, second: GaussianMixture, scales: Floats
) -> list[tuple[GaussianDistribution, GaussianDistribution, int]]:
    """Couple components of two mixtures at the least squared distance; each comes with its count.

    The distance is that of Wasserstein in scaled coordinates; any other coupling would be as sound.
    """
    first, second = first.merged(), second.merged()
    units = np.outer(scales, scales)
    costs = np.zeros((len(first.components), len(second.components)))
    for i, one in enumerate(first.components):
        values, axes = np.linalg.eigh(one.cov / units)
        root = (axes * np.sqrt(np.maximum(values, 0))) @ axes.T
        for j, other in enumerate(second.components):
            if one != other:
                cov = other.cov / units
                turned = np.linalg.eigvalsh(root @ cov @ root)
                between = np.trace(one.cov / units) + np.trace(cov)
                between -= 2 * np.sqrt(np.maximum(turned, 0)).sum()
                shift = (one.mean - other.mean) / scales
                # Components that differ never cost nothing, whatever rounding says.
                costs[i, j] = max(shift @ shift + between, np.finfo(float).tiny)
    top = costs.max()
    flows, room = np.empty((2, *costs.T.shape), dtype=np.int64)
    transport(costs / top if top > 0 else costs, first.counts, second.counts, flows, room)
    return [
        (first.components[i], second.components[j], int(flows[j, i]))
        for j, i in zip(*np.nonzero(flows), strict=True)
    ]


def _mixture(distribution: Distribution) -> GaussianMixture:
    if isinstance(distribution, GaussianDistribution):
        return GaussianMixture.weighted([distribution], [1.0])
    if not isinstance(distribution, GaussianMixture):
        raise ScenarioError(
            f"a Gaussian cannot be compared with a {distribution.kind} distribution"
        )
    return distribution


def _whitened_covariance(cov: Floats, units: Sequence[Fraction], shape: Shape) -> Floats:
    """Compute A C A^T for the scaled covariance C and whitening matrix A, rounded only once."""
    scaled = [
        [Fraction(x) / (a * b) for x, b in zip(row, units, strict=True)]
        for row, a in zip(cov.tolist(), units, strict=True)
    ]
    half = [shape.whitened_exactly(column) for column in zip(*scaled, strict=True)]
    whole = [shape.whitened_exactly(row) for row in zip(*half, strict=True)]
    try:
        return np.array([[float(x) for x in row] for row in whole])
    except OverflowError:
        raise ArgumentError(
            "the covariances of two Gaussians are too large for the noise; use larger scales"
        ) from None


def _along(directions: Floats, covs: Floats) -> Floats:
    """Compute the variance along each direction, shape (..., n_slices)."""
    return np.asarray(((directions @ covs) * directions).sum(axis=-1))


def _spread_errors(dim: int, order: float, sizes: npt.ArrayLike) -> Floats:
    """Bound the rounding error of spreads of these sizes; the noise is lowered by it.

    Less noise costs more. Without it, rounded spreads could lower a cost that is nearly infinite.
    Where no more than this is left of a spread, the cost is unknown and counts as infinite.
    """
    return np.asarray(_ROUNDINGS * dim * order * np.asarray(sizes))


def _nearest(number: Fraction) -> float:
    """Return the nearest float, but not 0 for a number that is not 0."""
    try:
        rounded = float(number)
    except OverflowError:
        raise ArgumentError(
            "the means of two Gaussians are too far apart for the scales; use larger scales"
        ) from None
    return rounded or math.copysign(math.ulp(0.0), number) * bool(number)
