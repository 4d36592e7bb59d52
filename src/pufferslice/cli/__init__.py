# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per verb, each parses, calls one function, and prints."""

import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code.

    Ctrl-C reaches the verb alone: while modules are loaded, and after the work, it ends the
    process at once and silently, for there is nothing to tidy up.
    """
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:  # not in the background of a shell, which has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pufferslice.cli.app import run

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run()
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)
