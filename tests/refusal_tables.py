# SPDX-License-Identifier: Apache-2.0
"""The refusals of a package as one table: what the message names, the call, and values for it."""

from functools import partial

import pytest
from tests.refusals import Refusal


def refusals(table):
    """Parameters for a test: one for each row `(names, call, *values)` of an error, or each value.

    A call with values takes one of them; a call without values takes nothing.
    """
    return [
        pytest.param(Refusal(one, error, names), id=f"{names} {number}")
        for error, rows in table.items()
        for names, call, *values in rows
        for number, one in enumerate([partial(call, value) for value in values] or [call])
    ]


def keywords(call):
    """The call for values that are its keyword arguments."""
    return lambda value: call(**value)


def positions(call):
    """The call for values that are its positional arguments."""
    return lambda value: call(*value)
