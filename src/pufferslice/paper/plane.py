# SPDX-License-Identifier: Apache-2.0
"""Equally spaced, equally weighted directions of the plane: the slice profile of two figures."""

import math
from typing import Final, final

import attrs
import numpy as np

from pufferslice.arrays import Floats

N_LIMIT: Final = 720
"""Directions that stand for all: the rule of equal steps converges faster than any power."""


@final
@attrs.frozen
class PlaneProfile:
    """So many directions of the plane, all the way round."""

    n_directions: int

    @property
    def angles(self) -> Floats:
        """Radians, from 0 on."""
        return 2 * math.pi * np.arange(self.n_directions) / self.n_directions

    @property
    def directions(self) -> Floats:
        """Unit vectors, shape (n_directions, 2)."""
        return np.column_stack([np.cos(self.angles), np.sin(self.angles)])

    @property
    def weights(self) -> Floats:
        """All the same."""
        return np.full(self.n_directions, 1 / self.n_directions)
