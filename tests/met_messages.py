# SPDX-License-Identifier: Apache-2.0
"""Which of the library's messages the tests have met, over all workers of a run.

Every error of the library passes through `PuffersliceError`, so a recorder there sees the line that
builds it. At the end of a whole run the sites that no test met are listed.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

from pufferslice.errors import PuffersliceError

_SCRIPT = Path(__file__).resolve().parent.parent / "docs" / "messages.py"
_SPEC = importlib.util.spec_from_file_location("messages", _SCRIPT)
messages = importlib.util.module_from_spec(_SPEC)
"""docs/messages.py, which mkdocs loads by its path."""
_SPEC.loader.exec_module(messages)

ELSEWHERE = (
    "{problem}",
    "{n_failed} of the processes of the run failed in this step",
    "the processes of the run have different weights",
    "process {self.rank} of {self.size} lost another process of the run",
)
"""Beginnings of messages that are met in other processes only: tests/torch/test_distributed.py
starts real ones and reads what they print."""

_HANDED_OVER = "pufferslice_messages_met"


class Recorder:
    """A plugin: notes where errors are built, and takes in what the workers of xdist noted."""

    def __init__(self):
        self.met = set()

    def start(self):
        met, own = self.met, PuffersliceError.__init__
        self._own = own

        def noting(error, *args, **kwargs):
            frame = sys._getframe(1)
            met.add((frame.f_globals.get("__name__", ""), frame.f_lineno))
            own(error, *args, **kwargs)

        PuffersliceError.__init__ = noting

    def stop(self):
        PuffersliceError.__init__ = self._own

    def unmet(self):
        """The sites that nothing was built at.

        A missing extra is met in other processes only; tests/test_packaging.py looks at each.
        """
        return [
            site
            for site in messages.all_sites()
            if site.kind not in {"MissingExtraError", "warning"}
            and not site.text.startswith(ELSEWHERE)
            and not any(
                (site.module, line) in self.met
                for line in range(site.first_line, site.last_line + 1)
            )
        ]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        self.met |= {
            tuple(entry) for entry in getattr(node, "workeroutput", {}).get(_HANDED_OVER, [])
        }

    def pytest_sessionfinish(self, session):
        config = session.config
        if hasattr(config, "workeroutput"):
            config.workeroutput[_HANDED_OVER] = sorted(self.met)
        elif is_whole(config) and not left_out(config) and self.unmet():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if is_whole(terminalreporter.config):
            unmet = self.unmet()
            terminalreporter.section(f"{len(unmet)} messages that no test met")
            for site in unmet:
                terminalreporter.line(str(site))


def is_whole(config):
    """Whether all tests were asked for; a part of the tests meets a part of the messages."""
    chosen = any(config.getoption(name, None) for name in ("keyword", "lf", "deselect"))
    everywhere = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return everywhere and not chosen and config.option.markexpr == "not soak"


def left_out(config):
    """Whether a test was skipped or ended early, and may have met a message otherwise."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    kinds = ("skipped", "failed", "error")
    return reporter is None or any(reporter.stats.get(kind) for kind in kinds)
