# SPDX-License-Identifier: Apache-2.0
"""A soak with a time limit starts no test after it, and takes the files in an order of its seed."""

import math
import os
import random
import time

import pytest

UNTIL = float(os.environ.get("PUFFERSLICE_SOAK_UNTIL", "inf"))
"""Seconds since the epoch."""


def pytest_collection_modifyitems(items):
    """So that what is left out is not always the same; all workers have the same order."""
    if math.isfinite(UNTIL):
        order = random.Random(os.environ["PUFFERSLICE_SEED"])
        place = {path: order.random() for path in sorted({item.path for item in items})}
        items.sort(key=lambda item: place[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """True: somebody has run the test, or nobody has to."""
    return True if time.time() > UNTIL else None
