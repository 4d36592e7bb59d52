# SPDX-License-Identifier: Apache-2.0
"""A soak with a time limit starts no test after it."""

import os
import time

import pytest

UNTIL = float(os.environ.get("PUFFERSLICE_SOAK_UNTIL", "inf"))
"""Seconds since the epoch."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """True: somebody has run the test, or nobody has to."""
    return True if time.time() > UNTIL else None
