# SPDX-License-Identifier: Apache-2.0
"""Files that people write, scenario.toml and training.toml, as typed models."""

from pufferslice.config.scenario import read_request
from pufferslice.config.training import read_plan, read_training, write_plan

__all__ = [
    "read_plan",
    "read_request",
    "read_training",
    "write_plan",
]
