# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per command, which parses, calls one function, and prints."""

import signal
import sys
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code.

    Ctrl-C raises KeyboardInterrupt in the command alone: while modules are loaded, and after the
    work, it ends the process at once and silently, because there is nothing to clean up.
    """
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(number, frame)

    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:  # a shell ignores it for background jobs
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pufferslice.cli.app import run
    from pufferslice.cli.output import INTERRUPTED

    if interruptible:
        signal.signal(signal.SIGINT, interrupt)
    try:
        code = run()
        if interruptible:  # a signal that came at the end of the work raises its error here
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except BaseException:
        # Modules in C that are being loaded may raise an error of their own in its place.
        if not interrupted:
            raise
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = INTERRUPTED
    sys.exit(code)
