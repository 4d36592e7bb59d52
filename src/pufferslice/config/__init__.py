# SPDX-License-Identifier: Apache-2.0
"""Files that people write, scenario.toml and training.toml, as typed models."""

from pufferslice.config.document import overridden, reference, schema, template
from pufferslice.config.scenario import ScenarioFile, read_request
from pufferslice.config.starters import STARTERS
from pufferslice.config.training import TrainingFile, read_plan, read_training, write_plan

__all__ = [
    "STARTERS",
    "ScenarioFile",
    "TrainingFile",
    "overridden",
    "read_plan",
    "read_request",
    "read_training",
    "reference",
    "schema",
    "template",
    "write_plan",
]
