# SPDX-License-Identifier: Apache-2.0
"""From one lower bound per slice to one for the claim."""

from typing import final

import attrs

from pufferslice.arrays import Floats, locked, same
from pufferslice.renyi import aggregate_average, aggregate_joint


@final
@attrs.frozen(kw_only=True)
class Mean:
    """The mean over the slices: of divergences, of epsilons, or of deltas."""

    weights: Floats = attrs.field(converter=locked, eq=same)

    @property
    def words(self) -> str:
        """As `average over 200 slices`."""
        return f"average over {len(self.weights)} slices"

    def of(self, values: Floats) -> float:
        """Source: def:ave_srd."""
        return float(aggregate_average(values, self.weights))


@final
@attrs.frozen(kw_only=True)
class JointMoment:
    """The log-moment over the slices of Rényi divergences."""

    order: float
    weights: Floats = attrs.field(converter=locked, eq=same)

    @property
    def words(self) -> str:
        """As `joint over 200 slices`."""
        return f"joint over {len(self.weights)} slices"

    def of(self, values: Floats) -> float:
        """Source: def:joint_srd."""
        return float(aggregate_joint(self.order, values, self.weights))
