# SPDX-License-Identifier: Apache-2.0
"""Memory of this process, for benchmarks that measure it in a process of their own."""

from pathlib import Path

STATUS = Path("/proc/self/status")
MACHINE = Path("/proc/meminfo")


def resident_bytes() -> int:
    """What the process holds now."""
    return _bytes(STATUS, "VmRSS")


def highest_resident_bytes() -> int:
    """The most it has held; `ru_maxrss` would begin with what its parent had."""
    return _bytes(STATUS, "VmHWM")


def available_bytes() -> int:
    """What the machine could still give, without swapping."""
    return _bytes(MACHINE, "MemAvailable")


def _bytes(table: Path, name: str) -> int:
    lines = table.read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) * 1024
