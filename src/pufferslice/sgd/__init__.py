# SPDX-License-Identifier: Apache-2.0
"""Private learning without the learning: differing records, sampling, cost, plan, draws and keys.

Numbers only: nothing here trains or needs torch.
"""

from pufferslice.sgd.accountants import (
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
from pufferslice.sgd.amplified import amplified_divergence
from pufferslice.sgd.clipping import (
    Clipping,
    FlatClipping,
    LayerClipping,
    effective_multiplier,
)
from pufferslice.sgd.differing import (
    DifferingRecords,
    at_most,
    binomial,
    count_differing,
    exactly,
    from_coupled_draws,
    from_pmf,
)
from pufferslice.sgd.drawing import draw_batch
from pufferslice.sgd.grid import SumGrid, implementation_delta, rounding_share, sum_grid
from pufferslice.sgd.mismatch import discrete_mismatch, gaussian_mismatch
from pufferslice.sgd.plan import TrainingPlan, plan_training, plan_with_noise
from pufferslice.sgd.run_key import RunKey
from pufferslice.sgd.sampling import (
    Discrepancy,
    Poisson,
    SamplingDesign,
    WithoutReplacement,
    WithReplacement,
    poisson_mean_square_ratio,
    sampling_from_description,
)
from pufferslice.sgd.signal import SignalToNoise, signal_to_noise
from pufferslice.sgd.worlds import TwoWorlds, relabelled, two_world_prevalence

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
