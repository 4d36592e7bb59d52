# SPDX-License-Identifier: Apache-2.0
# The public names, once: type checkers read this file, and the package resolves names by it.

from pufferslice import data
from pufferslice import errors as errors
from pufferslice import models as models
from pufferslice import queries as queries
from pufferslice.certificate import (
    Certificate as Certificate,
    Repeated as Repeated,
    Reserve as Reserve,
    Training as Training,
    certify_budget as certify_budget,
    certify_release as certify_release,
    certify_training as certify_training,
    sign as sign,
    spent as spent,
    verify as verify,
    what_if as what_if,
)
from pufferslice.claims import (
    Guarantee as Guarantee,
    Method as Method,
)
from pufferslice.errors import PuffersliceError as PuffersliceError
from pufferslice.noise import plan_samples as plan_samples
from pufferslice.releases import (
    Ledger as Ledger,
    Release as Release,
    release as release,
)
from pufferslice.scenario import (
    Bins as Bins,
    Bootstrap as Bootstrap,
    FiniteDistribution as FiniteDistribution,
    GaussianDistribution as GaussianDistribution,
    OutputSimulator as OutputSimulator,
    Resampled as Resampled,
    SampledDistribution as SampledDistribution,
    Scenario as Scenario,
    Simulator as Simulator,
)
from pufferslice.sensitivity import (
    FiniteProfile as FiniteProfile,
    SampledSphere as SampledSphere,
)

__version__: str
datasets = data
