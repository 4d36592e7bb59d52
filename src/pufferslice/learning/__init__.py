# SPDX-License-Identifier: Apache-2.0
"""Accounting for private training: differing records, sampling, cost, plan, draws and keys.

Numbers only: nothing here trains or needs torch.
"""

from pufferslice.learning.accountants import (
    Accountant,
    Amplified,
    LogMoment,
    MeanSquare,
    WorstCase,
    calibrate_multiplier,
    cost_by_count,
    mixed_cost,
    run_cost,
)
from pufferslice.learning.amplification import amplified_divergence
from pufferslice.learning.clipping import FlatClipping, LayerClipping, effective_multiplier
from pufferslice.learning.differing import (
    DifferingRecords,
    at_most,
    binomial,
    count_differing,
    discrete_mismatch,
    exactly,
    from_coupled_draws,
    from_pmf,
    gaussian_mismatch,
    maximal_pairs,
    mostly_at_most,
)
from pufferslice.learning.plan import TrainingPlan, plan_training, plan_with_noise, signal_to_noise
from pufferslice.learning.sampling import (
    Poisson,
    SamplingDesign,
    WithoutReplacement,
    WithReplacement,
    poisson_mean_square_ratio,
)
from pufferslice.learning.tails import TailCap, tail_cap_estimate
from pufferslice.learning.worlds import TwoWorlds, relabelled, two_world_prevalence

__all__ = [
    "Accountant",
    "Amplified",
    "DifferingRecords",
    "FlatClipping",
    "LayerClipping",
    "LogMoment",
    "MeanSquare",
    "Poisson",
    "SamplingDesign",
    "TailCap",
    "TrainingPlan",
    "TwoWorlds",
    "WithReplacement",
    "WithoutReplacement",
    "WorstCase",
    "amplified_divergence",
    "at_most",
    "binomial",
    "calibrate_multiplier",
    "cost_by_count",
    "count_differing",
    "discrete_mismatch",
    "effective_multiplier",
    "exactly",
    "from_coupled_draws",
    "from_pmf",
    "gaussian_mismatch",
    "maximal_pairs",
    "mixed_cost",
    "mostly_at_most",
    "plan_training",
    "plan_with_noise",
    "poisson_mean_square_ratio",
    "relabelled",
    "run_cost",
    "signal_to_noise",
    "tail_cap_estimate",
    "two_world_prevalence",
]
