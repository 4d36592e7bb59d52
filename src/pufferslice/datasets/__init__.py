# SPDX-License-Identifier: Apache-2.0
"""Real data to learn and test with: the Adult table, and images of digits.

`digits` needs scikit-learn and is resolved on first use (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pufferslice.datasets.adult_census import (
    ADULT_SHA256,
    adult,
    adult_complete,
    adult_records,
    adult_summary,
)
from pufferslice.datasets.images import LabelledImages

if TYPE_CHECKING:
    from pufferslice.datasets.digit_images import digits

__all__ = [
    "ADULT_SHA256",
    "LabelledImages",
    "adult",
    "adult_complete",
    "adult_records",
    "adult_summary",
    "digits",
]

# Hidden from type checkers: for them a module with `__getattr__` has every name, typos included.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import the digits on their first use and keep them."""
        if name != "digits":
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = import_module(f"{__name__}.digit_images").digits
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """The public names, resolved or not."""
    return list(__all__)
