# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per verb, each parses, calls one function, and prints.

Exit codes: 0 done, 1 refused or refuted, 2 wrong use.
"""

from pufferslice.cli.app import main

__all__ = ["main"]
