# SPDX-License-Identifier: Apache-2.0
"""Files that people write: scenario.toml and training.toml, and the values they stand for."""

from pufferslice.config.scenario import (
    SECTIONS,
    Request,
    check_document,
    query_of,
    read_request,
    request_of,
)
from pufferslice.config.training import (
    TRAINING_SECTIONS,
    read_plan,
    read_training,
    training_of,
    write_plan,
)

__all__ = [
    "SECTIONS",
    "TRAINING_SECTIONS",
    "Request",
    "check_document",
    "query_of",
    "read_plan",
    "read_request",
    "read_training",
    "request_of",
    "training_of",
    "write_plan",
]
