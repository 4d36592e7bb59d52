# SPDX-License-Identifier: Apache-2.0
"""The long commands, killed or interrupted at random moments, as real processes."""

import numpy as np
import pytest
from tests.kill.commands import COMMANDS
from tests.kill.loop import loop
from tests.kill.nursery import Nursery

KILLS = 1
SOAK_KILLS = 25


@pytest.mark.slow
@pytest.mark.soundness
@pytest.mark.timeout(600)
def test_killed_or_interrupted_at_random_moments(seed, tmp_path):
    """A kill and a Ctrl-C of every command; one process, for its imports are what takes long.

    How many of them come in time depends on the machine; that none comes in time would be a test
    of nothing.
    """
    n_killed = 0
    with Nursery() as nursery:
        for number, command in enumerate(COMMANDS.values()):
            rng = np.random.default_rng([seed, number])
            made = command(tmp_path, nursery)
            n_killed += loop(made, rng, kills=KILLS, interrupts=1, from_scratch=0)["kills"]
    assert n_killed >= 1


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_many_times(seed, tmp_path, name):
    rng = np.random.default_rng([seed, list(COMMANDS).index(name)])
    with Nursery() as nursery:
        command = COMMANDS[name](tmp_path, nursery)
        row = loop(command, rng, kills=SOAK_KILLS, interrupts=8, from_scratch=2)
    assert row["kills"] >= SOAK_KILLS // 2
    assert len(getattr(command, "noise", ())) != 1
