# SPDX-License-Identifier: Apache-2.0
"""Training with torch under a plan: the only package that imports torch (extra `torch`).

`import pufferslice` does not load it; import it by its name. The names for Opacus need the extra
`opacus` and are resolved on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from pufferslice.errors import MissingExtraError

try:
    import torch  # noqa: F401 - only to say which extra is missing
except ModuleNotFoundError as error:
    msg = "training needs torch; install it with: pip install 'pufferslice[torch]'"
    raise MissingExtraError(msg) from error

from pufferslice.torch.batches import Batch
from pufferslice.torch.model_checks import replace_batchnorm, validate
from pufferslice.torch.own_loop import PrivateLoader, PrivateOptimizer, make_private
from pufferslice.torch.trainer import Batches, StepReport, Trainer

if TYPE_CHECKING:
    from pufferslice.torch.opacus import PlanAccountant, opacus_sampling

__all__ = [
    "Batch",
    "Batches",
    "PlanAccountant",
    "PrivateLoader",
    "PrivateOptimizer",
    "StepReport",
    "Trainer",
    "make_private",
    "opacus_sampling",
    "replace_batchnorm",
    "validate",
]

_NEED_OPACUS: Final = {"PlanAccountant", "opacus_sampling"}


# Hidden from type checkers: for them a module with `__getattr__` has every name, typos included.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a name that needs Opacus on its first use and keep it."""
        if name not in _NEED_OPACUS:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = getattr(import_module(f"{__name__}.opacus"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """The public names, resolved or not."""
    return sorted(__all__)
