# SPDX-License-Identifier: Apache-2.0
"""Memory of this process, for benchmarks that measure it in a process of their own."""

from pathlib import Path

STATUS = Path("/proc/self/status")


def resident_bytes() -> int:
    """What the process holds now."""
    return _status_bytes("VmRSS")


def highest_resident_bytes() -> int:
    """The most it has held; `ru_maxrss` would begin with what its parent had."""
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    lines = STATUS.read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) * 1024
