# SPDX-License-Identifier: Apache-2.0
"""Other mechanisms, for comparison. Nothing here issues a certificate.

For static releases: `general`, `distribution-aware` and `Sinkhorn` Wasserstein mechanisms, Laplace
mechanisms for scalar queries, group privacy, and the Markov Quilt mechanism. For learning: DP-SGD.
What needs a library of the extra `baselines` (dp-accounting, POT) imports it when it is called.
"""

from pufferslice.baselines.dp_sgd import (
    DpSgd,
    dp_sgd_delta,
    dp_sgd_epsilon,
    dp_sgd_multiplier,
    group_size,
)
from pufferslice.baselines.markov import markov_noise
from pufferslice.baselines.sinkhorn import SinkhornSettings, sinkhorn_noise, sinkhorn_w_infinity
from pufferslice.baselines.transport import (
    entropic_wasserstein,
    sliced_wasserstein,
    w_infinity,
    wasserstein_distance,
)
from pufferslice.baselines.wasserstein import (
    dagwm_cost,
    dagwm_noise_std,
    full_sensitivity,
    group_noise_std,
    group_sensitivity,
    gwm_noise_std,
    laplace_envelope,
    laplace_renyi_scale,
    laplace_scale,
)

__all__ = [
    "DpSgd",
    "SinkhornSettings",
    "dagwm_cost",
    "dagwm_noise_std",
    "dp_sgd_delta",
    "dp_sgd_epsilon",
    "dp_sgd_multiplier",
    "entropic_wasserstein",
    "full_sensitivity",
    "group_noise_std",
    "group_sensitivity",
    "group_size",
    "gwm_noise_std",
    "laplace_envelope",
    "laplace_renyi_scale",
    "laplace_scale",
    "markov_noise",
    "sinkhorn_noise",
    "sinkhorn_w_infinity",
    "sliced_wasserstein",
    "w_infinity",
    "wasserstein_distance",
]
