# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per command, which parses, calls one function, and prints."""

import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code.

    Ctrl-C raises KeyboardInterrupt in the command alone: while modules are loaded, and after the
    work, it ends the process at once and silently, because there is nothing to clean up.
    """
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:  # a shell ignores it for background jobs
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pufferslice.cli.app import run

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run()
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)
