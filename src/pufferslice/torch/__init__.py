# SPDX-License-Identifier: Apache-2.0
"""Training with torch under a plan: the only package that imports torch (extra `torch`).

`import pufferslice` does not load it; import it by its name.
"""

from pufferslice.errors import MissingExtraError

try:
    import torch  # noqa: F401 - only to say which extra is missing
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "training needs torch; install it with: pip install 'pufferslice[torch]'"
    ) from error

from pufferslice.torch.batches import Batch
from pufferslice.torch.model_checks import replace_batchnorm, validate
from pufferslice.torch.own_loop import PrivateLoader, PrivateOptimizer, make_private
from pufferslice.torch.trainer import StepReport, Trainer

__all__ = [
    "Batch",
    "PrivateLoader",
    "PrivateOptimizer",
    "StepReport",
    "Trainer",
    "make_private",
    "replace_batchnorm",
    "validate",
]
