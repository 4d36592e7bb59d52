# SPDX-License-Identifier: Apache-2.0
"""Tables in: frames and files; and the tables that ship with the library (`ps.datasets`).

`digits` needs scikit-learn and is resolved on first use (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pufferslice.data.adult import ADULT_SHA256, adult, adult_complete
from pufferslice.data.frames import (
    MISSING_POLICIES,
    Frame,
    check_columns,
    floats_of,
    frame_of,
    label_of,
    labels_of,
    missing_rows,
    without_missing,
)
from pufferslice.data.readers import read_table

if TYPE_CHECKING:
    from pufferslice.data.images import LabelledImages, digits

__all__ = [
    "ADULT_SHA256",
    "MISSING_POLICIES",
    "Frame",
    "LabelledImages",
    "adult",
    "adult_complete",
    "check_columns",
    "digits",
    "floats_of",
    "frame_of",
    "label_of",
    "labels_of",
    "missing_rows",
    "read_table",
    "without_missing",
]

# Hidden from type checkers: for them a module with `__getattr__` has every name, typos included.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import the images on their first use and keep them."""
        if name not in {"LabelledImages", "digits"}:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = getattr(import_module(f"{__name__}.images"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """The public names, resolved or not."""
    return list(__all__)
