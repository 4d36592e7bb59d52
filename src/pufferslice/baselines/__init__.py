# SPDX-License-Identifier: Apache-2.0
"""Other mechanisms, for comparison. Nothing here issues a certificate.

For static releases: `general`, `distribution-aware` and `Sinkhorn` Wasserstein mechanisms, Laplace
mechanisms for scalar queries, group privacy, and the Markov Quilt mechanism. For learning: DP-SGD,
which needs the extra `baselines` (dp-accounting) and is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from pufferslice.baselines.distances import (
    entropic_wasserstein,
    sliced_wasserstein,
    wasserstein_distance,
)
from pufferslice.baselines.laplace import laplace_envelope, laplace_renyi_scale
from pufferslice.baselines.markov import MarkovNoise, markov_noise, quilt_scale
from pufferslice.baselines.sinkhorn import SinkhornSettings, sinkhorn_noise, sinkhorn_w_infinity
from pufferslice.baselines.transport import w_infinity
from pufferslice.baselines.wasserstein import (
    dagwm_cost,
    dagwm_noise_std,
    full_sensitivity,
    group_noise_std,
    group_sensitivity,
    gwm_noise_std,
    laplace_scale,
)

if TYPE_CHECKING:
    from pufferslice.baselines.dp_sgd import (
        DpSgd,
        dp_sgd_epsilon,
        dp_sgd_multiplier,
        group_size,
        run_epsilon,
    )

__all__ = [
    "DpSgd",
    "MarkovNoise",
    "SinkhornSettings",
    "dagwm_cost",
    "dagwm_noise_std",
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
    "quilt_scale",
    "run_epsilon",
    "sinkhorn_noise",
    "sinkhorn_w_infinity",
    "sliced_wasserstein",
    "w_infinity",
    "wasserstein_distance",
]

_DP_SGD: Final = ("DpSgd", "dp_sgd_epsilon", "dp_sgd_multiplier", "group_size", "run_epsilon")
"""Names that need dp-accounting."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a name that needs dp-accounting on its first use."""
        if name not in _DP_SGD:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        return getattr(import_module(f"{__name__}.dp_sgd"), name)
