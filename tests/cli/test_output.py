# SPDX-License-Identifier: Apache-2.0
"""The progress bar: rows per second on a terminal, nothing elsewhere."""

import io
import re
import sys
import time

import pytest

from pufferslice._core.threads import silent
from pufferslice.cli.output import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("total", [9_000, 0])
def test_rows_per_second_are_shown(monkeypatch, total):
    # Patched here: pytest puts its own stream back between a fixture and the test.
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar("rows") as progress:
        progress(1_000, total)
        time.sleep(0.15)
        progress(9_000, total)
        time.sleep(0.15)
    rates = re.findall(r"([\d,]+) rows/s", screen.getvalue())
    assert 0 < max(int(rate.replace(",", "")) for rate in rates) < 8_000 / 0.15 + 1


def test_elsewhere_it_is_silent(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar("rows") as progress:
        assert progress is silent
