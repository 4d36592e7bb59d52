# SPDX-License-Identifier: Apache-2.0
"""Accounting for private learning: how many records differ, how batches are drawn, what it costs.

Numbers only: nothing here trains, draws noise or needs torch.
"""

from pufferslice.sgd.differing import (
    DifferingRecords,
    at_most,
    binomial,
    count_differing,
    exactly,
    from_coupled_draws,
    from_pmf,
)
from pufferslice.sgd.mismatch import discrete_mismatch, gaussian_mismatch
from pufferslice.sgd.sampling import (
    Discrepancy,
    Poisson,
    SamplingDesign,
    WithoutReplacement,
    WithReplacement,
    poisson_mean_square_ratio,
    sampling_from_description,
)
from pufferslice.sgd.worlds import TwoWorlds, relabelled, two_world_prevalence

__all__ = [
    "DifferingRecords",
    "Discrepancy",
    "Poisson",
    "SamplingDesign",
    "TwoWorlds",
    "WithReplacement",
    "WithoutReplacement",
    "at_most",
    "binomial",
    "count_differing",
    "discrete_mismatch",
    "exactly",
    "from_coupled_draws",
    "from_pmf",
    "gaussian_mismatch",
    "poisson_mean_square_ratio",
    "relabelled",
    "sampling_from_description",
    "two_world_prevalence",
]
