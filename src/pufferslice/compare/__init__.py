# SPDX-License-Identifier: Apache-2.0
"""Ours beside what others would add: one table, and noise against epsilon.

Nothing here issues a certificate; for that there is `pufferslice.certify_release`.
"""

from pufferslice.compare.curves import EPSILONS, noise_curves
from pufferslice.compare.running import Settings, compare_mechanisms
from pufferslice.compare.table import Comparison, Row

__all__ = [
    "EPSILONS",
    "Comparison",
    "Row",
    "Settings",
    "compare_mechanisms",
    "noise_curves",
]
