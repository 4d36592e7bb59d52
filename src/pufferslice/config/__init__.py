# SPDX-License-Identifier: Apache-2.0
"""Files that people write, scenario.toml and training.toml, as typed models."""

from pufferslice.config.document import overridden, reference, schema, template
from pufferslice.config.scenario import Request, ScenarioFile, read_request, request_of
from pufferslice.config.training import (
    TrainingFile,
    read_plan,
    read_training,
    training_of,
    write_plan,
)

__all__ = [
    "Request",
    "ScenarioFile",
    "TrainingFile",
    "overridden",
    "read_plan",
    "read_request",
    "read_training",
    "reference",
    "request_of",
    "schema",
    "template",
    "training_of",
    "write_plan",
]
