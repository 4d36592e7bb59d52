# SPDX-License-Identifier: Apache-2.0
"""Training with torch under a plan; the only package that imports torch (extra `opacus`).

Not loaded by `import pufferslice`: import it by its name.
"""

from pufferslice.torch.opacus import (
    PlanAccountant,
    check_opacus,
    noise_caveat,
    opacus_noise_multiplier,
    opacus_sampling,
)

__all__ = [
    "PlanAccountant",
    "check_opacus",
    "noise_caveat",
    "opacus_noise_multiplier",
    "opacus_sampling",
]
