# SPDX-License-Identifier: Apache-2.0
"""A difference of the tests alone: one shift that is known, of one instance."""

import math
from typing import ClassVar

import attrs
import numpy as np
from scipy.special import erf

from pufferslice._core.arrays import Floats, locked, same
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.difference import NotOfRows, NotOnSpheres
from pufferslice.sensitivity.renyi import gaussian_delta

UP = 1 + 2.0**-40


@attrs.frozen(kw_only=True)
class OneShift(NotOnSpheres, NotOfRows):
    """Two points, in whitened coordinates: what the protocol of differences asks for, no more."""

    name: ClassVar[str] = "one_shift"
    prior_kinds: ClassVar[tuple[str, ...]] = ("empirical",)
    is_on_grid: ClassVar[bool] = True
    is_point: ClassVar[bool] = True
    is_single: ClassVar[bool] = True
    n_instances: ClassVar[int] = 1

    shift: Floats = attrs.field(converter=locked, eq=same)

    @property
    def equal(self):
        return np.array([not self.shift.any()])

    @property
    def scale(self):
        return float(np.linalg.norm(self.shift))

    def check(self):
        if self.shift.ndim != 1 or not np.isfinite(self.shift).all():
            raise ArgumentError("a shift must be finite numbers")

    def problems(self, scenario):
        return iter(())

    def arrays(self):
        return {"shift": self.shift}

    def mean_squares(self, noise):
        return np.array([((self.scale + noise.margin) / noise.std) ** 2 * UP])

    def divergences(self, order, noise):
        return order / 2 * self.mean_squares(noise)

    def delta_curve(self, noise):
        ratios = np.sqrt(self.mean_squares(noise))
        return lambda epsilon: np.minimum(gaussian_delta(ratios, epsilon) * UP + 1e-15, 1.0)

    def variations(self, noise):
        ratios = np.sqrt(self.mean_squares(noise))
        return np.minimum(1.0, erf(ratios / (2 * math.sqrt(2))) * UP)

    def epsilon_at(self, delta, noise):
        return None

    def reach(self):
        return np.array([self.scale])

    def coarsened(self, n_entries):
        return self

    def farther(self, distance):
        return attrs.evolve(self, shift=self.shift * (1 + distance / self.scale))

    def unwhitened(self, shape):
        return attrs.evolve(self, shift=shape.coloring @ self.shift)

    def source(self, found):
        return "the shift itself"
