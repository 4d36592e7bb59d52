# SPDX-License-Identifier: Apache-2.0
"""The small table of the commands' tests, which hostile files lie beside."""

from tests.cli.conftest import folder

__all__ = ["folder"]
