# SPDX-License-Identifier: Apache-2.0
"""Real data to learn and test with; Adult ships, others are read from a folder of the user.

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
from pufferslice.datasets.cifar_images import CIFAR10_CLASSES, cifar10, read_cifar10
from pufferslice.datasets.heart_and_school import cleveland_summary, student_summary
from pufferslice.datasets.images import LabelledImages
from pufferslice.datasets.uci_tables import cleveland, read_cleveland, read_student, student

if TYPE_CHECKING:
    from pufferslice.datasets.digit_images import digits

__all__ = [
    "ADULT_SHA256",
    "CIFAR10_CLASSES",
    "LabelledImages",
    "adult",
    "adult_complete",
    "adult_records",
    "adult_summary",
    "cifar10",
    "cleveland",
    "cleveland_summary",
    "digits",
    "read_cifar10",
    "read_cleveland",
    "read_student",
    "student",
    "student_summary",
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
