# SPDX-License-Identifier: Apache-2.0
"""Ours beside what others would add: one table, noise against epsilon, run time against size.

Nothing here issues a certificate; for that there is `pufferslice.certify_release`.
"""

from pufferslice.compare.curves import EPSILONS, noise_curves
from pufferslice.compare.running import Settings, compare_mechanisms
from pufferslice.compare.table import Comparison, Row
from pufferslice.compare.timing import RunTimes, fitted_exponent, run_times

__all__ = [
    "EPSILONS",
    "Comparison",
    "Row",
    "RunTimes",
    "Settings",
    "compare_mechanisms",
    "fitted_exponent",
    "noise_curves",
    "run_times",
]
