# SPDX-License-Identifier: Apache-2.0
"""One way to test refusals: the call, the class of the error, and what its message names."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Refusal(NamedTuple):
    """A call that is refused, the class of the error, and a word that the message has to name."""

    call: Callable[[], Any]
    error: type[Exception]
    names: str


def check_refused(refusal: Refusal) -> None:
    """Fail unless the call raises exactly such an error, naming the argument."""
    with pytest.raises(refusal.error) as caught:
        refusal.call()
    assert refusal.names in str(caught.value)
