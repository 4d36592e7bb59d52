# SPDX-License-Identifier: Apache-2.0
"""Models of `transformers`, in which every example keeps an attention mask of its own.

Before such a model builds the mask of its attention layers, it asks whether the tokenizer's mask
has any padding at all, in order to leave the mask out where there is none. The answer is a value of
the data, and `torch.func.vmap` gives none. In a replica the question is not asked: the model builds
the mask, in its own form and by its own code, whether there is padding or not. That moves no value
but by rounding.

What is known of a model is its class, `transformers.PreTrainedModel`, and the public registry of
functions that build masks. Any other code of it runs as it is.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

from torch import Tensor, nn

_IMPLEMENTATIONS: Final = ("eager", "sdpa")
"""Kinds of attention whose mask is a tensor that says which tokens see which."""

_MARK: Final = "pufferslice_keeps_masks"
"""Attribute of the config of a replica."""

_NEVER_LEFT_OUT: Final = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}


def adapt(copy: nn.Module) -> None:
    """Let a module of a replica, if it is a model of `transformers`, run under `torch.func.vmap`.

    The replica's own config is marked, never the user's; functions that build masks look for it.
    """
    # absent if no code has made such a model; to ask `transformers` itself would import it
    modeling = sys.modules.get("transformers.modeling_utils")
    if modeling is None or not isinstance(copy, modeling.PreTrainedModel):
        return
    _register(sys.modules["transformers"].AttentionMaskInterface)
    vars(copy.config)[_MARK] = True
    # reads the values of input_ids, in order to warn
    copy.__dict__["warn_if_padding_and_no_attention_mask"] = _nothing


def _nothing(*_: object, **__: object) -> None:
    """In the place of a method that only warns."""


def _register(registry: Any) -> None:  # noqa: ANN401 - a class of a package that may be missing
    """Let the functions that build masks look for the mark; without it they are as before."""
    for name in _IMPLEMENTATIONS:
        build = registry()[name]
        if not hasattr(build, _MARK):
            registry.register(name, _keeping(build))


def _keeping(build: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    def build_mask(*given: Any, **named: Any) -> Tensor | None:  # noqa: ANN401 - as `build`
        of_replica = hasattr(named.get("config"), _MARK)
        if of_replica and named.get("attention_mask") is not None:
            named |= _NEVER_LEFT_OUT
        return build(*given, **named)

    setattr(build_mask, _MARK, True)
    return build_mask
