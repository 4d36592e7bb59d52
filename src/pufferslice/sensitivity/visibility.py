# SPDX-License-Identifier: Apache-2.0
"""Visibility: whether the slices of a profile show that two distributions differ."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.exact import projection_errors
from pufferslice.sensitivity.sensitivity import Full, Slices, distribution_pairs
from pufferslice.sensitivity.tables import BLIND

_LEAST_SHARE: Final = 2.0**-6
"""Share of what the best of d axes shows that a slice must show of a difference of means."""
_LEAST_WEIGHT: Final = 0.25
"""Least total weight of slices that show a difference, as a share of one equal slice's weight."""


def unseen_instances(scenario: Scenario, full: Full, slices: Slices) -> npt.NDArray[np.bool_]:
    """Find instances whose distributions differ, but only along slices of almost no weight.

    Needs: `full` and `slices` are of this scenario.
    """
    profile, tables = slices.profile, slices.differences
    share = _LEAST_SHARE / math.sqrt(profile.dim)
    distributions, pairs = distribution_pairs(scenario)
    finite = [each for each in distributions if isinstance(each, FiniteDistribution)]
    norms = [float(np.linalg.norm(np.abs(each.outputs).max(axis=0))) for each in finite]
    errors = projection_errors(profile.directions, max(norms, default=0.0))
    least, visible = tables.visible(profile.directions, errors, share)
    reach = None
    if full.differences is not None and not full.from_range:
        reach = full.differences.reach()
    least = np.maximum(least if reach is None else reach * BLIND, 0.0)
    if finite:
        means = [np.average(each.outputs, axis=0, weights=each.counts) for each in finite]
        shifts = [float(np.linalg.norm(means[a] - means[b])) for a, b in pairs]
        least = np.maximum(least, np.array(shifts) * share)
    weights = profile.weights / profile.weights.sum()
    seeing = (visible > least[:, None]) @ weights
    return np.asarray(~tables.equal & (seeing < _LEAST_WEIGHT / np.count_nonzero(weights)))
