# SPDX-License-Identifier: Apache-2.0
"""Released second moments of a design, and what their noise does to covariances of its columns."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, Integers, locked, locked_integers, same
from pufferslice._core.text import listed, quoted
from pufferslice.certificate import Certificate
from pufferslice.errors import ArgumentError, ReleaseError
from pufferslice.queries.moments import Design
from pufferslice.releases import Release

_LEAST_VARIANCE = 2.0**-20
"""Least variance of a column, as a share of the square of its range."""


@final
@attrs.frozen(kw_only=True, repr=False, slots=False)
class Moments:
    """Means and products of the columns of a design as released, with the covariance of the noise.

    Columns are less their public centers; the target is the last one. Nothing here reads rows.
    """

    design: Design
    n_rows: int
    """Public number of rows of the released table."""
    values: Floats = attrs.field(converter=locked, eq=same)
    """Released moments, the means of all columns first, shape (n_moments,)."""
    noise: Floats = attrs.field(converter=locked, eq=same)
    """Covariance of their noise, shape (n_moments, n_moments)."""
    places: Integers = attrs.field(converter=locked_integers, eq=same)
    """Place of each product among the moments, shape (n_columns + 1, n_columns + 1); -1 for levels
    that exclude each other."""

    @classmethod
    def of(cls, release: Release, certificate: Certificate | None = None) -> "Moments":
        """Find the moments of a release; `certificate` is needed above 100 statistics."""
        if release.design is None:
            raise ArgumentError(
                "release must be of one queries.second_moments(...), from which models follow; "
                "this one has none, or several"
            )
        if release.n_rows is None:
            raise ArgumentError(
                "release must have a public number of rows, as Scenario.from_prevalence has"
            )
        return cls.named(
            release.design,
            names=release.names,
            values=release.values,
            noise=release.known_noise(certificate),
            n_rows=release.n_rows,
            aliases={s.name: s.of[0] for s in release.specs if s.is_same},
        )

    @classmethod
    def named(
        cls,
        design: Design,
        *,
        names: Sequence[str],
        values: Floats,
        noise: Floats,
        n_rows: int,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> "Moments":
        """Find the moments of a design among named statistics.

        `aliases` give the name under which a moment stands, where a joined query asks for its sum.
        """
        features, places = design.moments()
        where = {name: place for place, name in enumerate(names)}
        found = [where.get(aliases.get(name, name)) for name in features.names]
        chosen = [place for place in found if place is not None]
        if len(chosen) < len(found):
            absent = [n for n, place in zip(features.names, found, strict=True) if place is None]
            raise ReleaseError(
                f"the release lacks {listed(absent, quoted)}, which its design has; release all "
                "moments of the design"
            )
        return cls(
            design=design,
            n_rows=n_rows,
            values=np.asarray(values)[chosen],
            noise=np.asarray(noise)[np.ix_(chosen, chosen)],
            places=places,
        )

    @property
    def n_columns(self) -> int:
        """Number of columns, without the target."""
        return len(self.design.columns)

    @property
    def is_exact(self) -> bool:
        """Whether the moments have no noise."""
        return not self.noise.any()

    @property
    def means(self) -> Floats:
        """Mean of each column and of the target, shape (n_columns + 1,)."""
        return np.asarray(self.values[: len(self.places)])

    @property
    def products(self) -> Floats:
        """Mean of each product; 0, without noise, for levels that exclude each other."""
        padded: Floats = np.append(self.values, 0.0)
        return np.asarray(padded[self.places])

    @cached_property
    def scales(self) -> Floats:
        """Standard deviation of each column and of the target, as far as it is known."""
        means = self.means
        spans = np.array([np.ptp(c.ends) for c in (*self.design.columns, self.design.target)])
        is_flag = np.array([not c.factors for c in (*self.design.columns, self.design.target)])
        least = np.maximum(
            spans**2 * _LEAST_VARIANCE, np.sqrt(np.diagonal(self.noise)[: len(means)]) * is_flag
        )
        variances = np.diagonal(self.products) - means**2
        return np.asarray(np.sqrt(np.maximum(variances, least)))

    @cached_property
    def covariance(self) -> Floats:
        """Covariance of columns and target, projected on the positive semidefinite matrices.

        Columns are scaled to unit variance first; negative eigenvalues, made by noise, become 0.
        """
        scales = self.scales
        raw = (self.products - np.outer(self.means, self.means)) / np.outer(scales, scales)
        values, axes = np.linalg.eigh(raw)
        if values[0] >= 0:
            return np.asarray(raw * np.outer(scales, scales))
        return np.asarray((axes * np.maximum(values, 0.0)) @ axes.T * np.outer(scales, scales))

    def mean_square_noise(self) -> Floats:
        r"""Mean square of the noise on the covariance of the columns, in units of their scales.

        $$E\, N^2, \qquad N = D^{-1} (\tilde S - S) D^{-1}$$

        to first order in the noise; D holds the scales. Shape (n_columns, n_columns).
        """
        d, scales = self.n_columns, self.scales[: self.n_columns]
        means = self.means[:d]
        # A last moment without noise stands for products that are 0 by a public rule.
        noise = np.pad(self.noise, (0, 1))
        total = np.zeros((d, d))
        for i in range(d):
            products = self.places[i, :d]
            rows = noise[products] - means[i] * noise[:d] - np.outer(means, noise[i])
            cov = rows[:, products] - means[i] * rows[:, :d] - np.outer(rows[:, i], means)
            total += cov / scales[i] ** 2
        return np.asarray(total / np.outer(scales, scales))

    def noise_along(self, direction: Floats) -> float:
        """Standard deviation of the noise on the variance of a combination of the columns."""
        weights = np.append(direction, 0.0)
        pairs = np.outer(weights, weights)
        known = self.places >= 0
        slopes = np.zeros(len(self.values))
        np.add.at(slopes, self.places[known], pairs[known])
        slopes[: len(weights)] -= 2 * float(weights @ self.means) * weights
        return self.noise_of(slopes)

    def noise_of(self, slopes: Floats) -> float:
        """Standard deviation of the noise on a combination of the moments."""
        return float(np.sqrt(max(float(slopes @ self.noise @ slopes), 0.0)))

    def __repr__(self) -> str:
        return f"Moments(n_columns={self.n_columns}, n_moments={len(self.values)})"
