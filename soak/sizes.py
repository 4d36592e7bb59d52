# SPDX-License-Identifier: Apache-2.0
"""How much the suites of this folder try: a sample in `make test`, more in `make soak`."""

import os
from typing import Final, NamedTuple


class Sizes(NamedTuple):
    """Counts of what is drawn at random."""

    commands: int
    """Runs of a command with changed files or flags, for each test."""
    files: int
    """Damaged files for each reader."""
    scenarios: int
    """Certified scenarios of each kind, whose claims are recomputed."""
    guided_readers: int
    """Readers that the coverage-guided fuzzer gets."""
    guided_files: int
    """Inputs of the coverage-guided fuzzer for each of them."""
    kills: int
    """Runs of each command that are killed."""
    interrupts: int
    """Runs of each command that get a Ctrl-C."""
    from_scratch: int
    """Runs of each command that are killed in a process that imports for itself."""
    cases: int
    """Combinations of a hostile list, at most."""
    orders: int
    """Orders in which the commands of a ledger are run, on files; in databases a tenth."""
    racers: int
    """Processes that release at once."""
    rounds: int
    """Rounds in which they do."""
    outputs: int
    """Outputs of an attack on resampled tables."""
    offices: int
    """Offices whose outputs under a budget are attacked."""
    rows: int
    """Rows of the largest table that is attacked."""


SIZES: Final = {
    "sample": Sizes(
        commands=4,
        files=20,
        scenarios=5,
        guided_readers=0,
        guided_files=0,
        kills=1,
        interrupts=1,
        from_scratch=0,
        cases=6,
        orders=44,
        racers=6,
        rounds=2,
        outputs=500,
        offices=20,
        rows=400,
    ),
    "small": Sizes(
        commands=100,
        files=400,
        scenarios=60,
        guided_readers=4,
        guided_files=1_000,
        kills=4,
        interrupts=3,
        from_scratch=1,
        cases=1_000,
        orders=2_000,
        racers=20,
        rounds=3,
        outputs=3_000,
        offices=200,
        rows=5_000,
    ),
    "full": Sizes(
        commands=1_000,
        files=2_000,
        scenarios=1_500,
        guided_readers=17,
        guided_files=20_000,
        kills=115,
        interrupts=8,
        from_scratch=2,
        cases=1_000,
        orders=100_000,
        racers=20,
        rounds=30,
        outputs=20_000,
        offices=1_000,
        rows=30_000,
    ),
}
SIZE: Final = SIZES[os.environ.get("PUFFERSLICE_SOAK", "sample")]
"""What this run asks for."""
IS_SAMPLE: Final = SIZE is SIZES["sample"]
