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
    accountant_named,
    calibrate_multiplier,
    cost_by_count,
    mixed_cost,
    run_cost,
)
from pufferslice.learning.amplification import amplified_divergence
from pufferslice.learning.clipping import (
    Clipping,
    FlatClipping,
    LayerClipping,
    effective_multiplier,
)
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
)
from pufferslice.learning.integer_sums import (
    SumGrid,
    implementation_delta,
    rounding_share,
    sum_grid,
)
from pufferslice.learning.keys import RunKey
from pufferslice.learning.plan import (
    SignalToNoise,
    TrainingPlan,
    plan_training,
    plan_with_noise,
    signal_to_noise,
)
from pufferslice.learning.sampling import (
    Discrepancy,
    Poisson,
    SamplingDesign,
    WithoutReplacement,
    WithReplacement,
    draw_batch,
    poisson_mean_square_ratio,
    sampling_from_description,
)
from pufferslice.learning.worlds import TwoWorlds, relabelled, two_world_prevalence

__all__ = [
    "Accountant",
    "Amplified",
    "Clipping",
    "DifferingRecords",
    "Discrepancy",
    "FlatClipping",
    "LayerClipping",
    "LogMoment",
    "MeanSquare",
    "Poisson",
    "RunKey",
    "SamplingDesign",
    "SignalToNoise",
    "SumGrid",
    "TrainingPlan",
    "TwoWorlds",
    "WithReplacement",
    "WithoutReplacement",
    "WorstCase",
    "accountant_named",
    "amplified_divergence",
    "at_most",
    "binomial",
    "calibrate_multiplier",
    "cost_by_count",
    "count_differing",
    "discrete_mismatch",
    "draw_batch",
    "effective_multiplier",
    "exactly",
    "from_coupled_draws",
    "from_pmf",
    "gaussian_mismatch",
    "implementation_delta",
    "mixed_cost",
    "plan_training",
    "plan_with_noise",
    "poisson_mean_square_ratio",
    "relabelled",
    "rounding_share",
    "run_cost",
    "sampling_from_description",
    "signal_to_noise",
    "sum_grid",
    "two_world_prevalence",
]
