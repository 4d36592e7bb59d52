# SPDX-License-Identifier: Apache-2.0
"""Refusals by the arguments that are wrong in them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tests.refusals import Refusal

from pufferslice.errors import ArgumentError


def wrong_values(
    call: Callable[..., Any], right: Mapping[str, Any], /, **wrong: Sequence[Any]
) -> dict[str, Refusal]:
    """Refusals of a call for each wrong value of an argument, which the message has to name."""
    return {
        f"{call.__name__}, {name}, {index}": Refusal(
            partial(call, **{**right, name: value}), ArgumentError, name
        )
        for name, values in wrong.items()
        for index, value in enumerate(values)
    }


def wrong_calls(calls: Mapping[str, tuple[Callable[[], Any], str]]) -> dict[str, Refusal]:
    """Refusals of calls by an `ArgumentError`, each with the word that it has to name."""
    return {name: Refusal(call, ArgumentError, word) for name, (call, word) in calls.items()}
