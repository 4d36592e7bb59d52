# SPDX-License-Identifier: Apache-2.0
"""The exit codes of the command line; 0 is done."""

from typing import Final

REFUSED: Final = 1
"""Refused, refuted, or a part left out."""
WRONG_USE: Final = 2
INTERRUPTED: Final = 130
"""Ctrl-C, as shells have it: 128 and the number of the signal."""
