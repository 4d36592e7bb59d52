# SPDX-License-Identifier: Apache-2.0
"""The long commands, killed or interrupted at random moments, as real processes."""

import numpy as np
import pytest
from soak.kill.commands import COMMANDS
from soak.kill.loop import loop
from soak.kill.nursery import Nursery
from soak.sizes import IS_SAMPLE, SIZE

WARM = [name for name in COMMANDS if COMMANDS[name].is_warm]
TOGETHER = [WARM] if IS_SAMPLE else [[name] for name in COMMANDS]
"""Imports are what takes long: the sample shares one process, and does not train."""


@pytest.mark.soundness
@pytest.mark.parametrize("names", TOGETHER, ids="-".join)
def test_killed_or_interrupted_at_random_moments(seed, tmp_path, names):
    """How many signals come in time depends on the machine; none would be a test of nothing."""
    n_killed = 0
    with Nursery(module for name in names for module in COMMANDS[name].modules) as nursery:
        for name in names:
            command = COMMANDS[name](tmp_path, nursery)
            rng = np.random.default_rng([seed, list(COMMANDS).index(name)])
            row = loop(
                command,
                rng,
                kills=SIZE.kills,
                interrupts=SIZE.interrupts,
                from_scratch=SIZE.from_scratch,
            )
            n_killed += row["kills"]
            assert IS_SAMPLE or len(getattr(command, "noise", ())) != 1
    assert n_killed >= max(1, SIZE.kills // 4)
