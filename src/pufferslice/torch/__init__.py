# SPDX-License-Identifier: Apache-2.0
"""Training with torch under a plan: the only package that imports torch (extra `opacus`).

`import pufferslice` does not load it; import it by its name.
"""

# `opacus` comes first: it says which extra is missing.
from pufferslice.torch.opacus import (
    OpacusRun,
    check_opacus,
    noise_caveat,
    opacus_noise_multiplier,
    opacus_sampling,
)
from pufferslice.torch.opacus_accountant import PlanAccountant

__all__ = [
    "OpacusRun",
    "PlanAccountant",
    "check_opacus",
    "noise_caveat",
    "opacus_noise_multiplier",
    "opacus_sampling",
]
