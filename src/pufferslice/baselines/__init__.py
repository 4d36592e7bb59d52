# SPDX-License-Identifier: Apache-2.0
"""What others would add, for comparison. Nothing here issues a certificate.

Needs the extra `baselines` (dp-accounting).
"""

from pufferslice.baselines.dpsgd import DpSgd, dp_sgd_epsilon, dp_sgd_multiplier, group_size
from pufferslice.baselines.pld import run_epsilon

__all__ = ["DpSgd", "dp_sgd_epsilon", "dp_sgd_multiplier", "group_size", "run_epsilon"]
