# SPDX-License-Identifier: Apache-2.0
"""Scenarios: secrets, pairs, priors and the distributions of a query."""

from pufferslice.scenario.attribute import gaussian_process
from pufferslice.scenario.distributions import (
    Distribution,
    FiniteDistribution,
    GaussianDistribution,
    GaussianMixture,
    SampledDistribution,
)
from pufferslice.scenario.pairs import SecretPair
from pufferslice.scenario.priors import (
    Bootstrap,
    Resampled,
)
from pufferslice.scenario.scenario import (
    Scenario,
)
from pufferslice.scenario.secrets import (
    Bins,
)
from pufferslice.scenario.simulator import (
    OutputSimulator,
    Simulator,
)

__all__ = [
    "Bins",
    "Bootstrap",
    "Distribution",
    "FiniteDistribution",
    "GaussianDistribution",
    "GaussianMixture",
    "OutputSimulator",
    "Resampled",
    "SampledDistribution",
    "Scenario",
    "SecretPair",
    "Simulator",
    "gaussian_process",
]
