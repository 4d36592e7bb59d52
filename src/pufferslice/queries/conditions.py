# SPDX-License-Identifier: Apache-2.0
"""Conditions on a column, for rates and 0/1 coordinates."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, final

import attrs
import narwhals as nw
import numpy as np
import numpy.typing as npt

from pufferslice._core.text import given, quoted
from pufferslice.data.frames import Frame, floats_of, label_of, labels_of
from pufferslice.errors import ArgumentError, ScenarioError

Comparison = Literal["equals", "above", "at_least", "below", "at_most"]

_SIGNS: dict[Comparison, str] = {
    "equals": "=",
    "above": ">",
    "at_least": ">=",
    "below": "<",
    "at_most": "<=",
}
_COMPARE = {
    "above": np.greater,
    "at_least": np.greater_equal,
    "below": np.less,
    "at_most": np.less_equal,
}


@final
@attrs.frozen
class Condition:
    """A test on one value of a column; built by `equals`, `above`, `at_least`, `below`, `at_most`.

    `equals` compares labels (`3`, `3.0` and `"3"` are one label); the others compare numbers.
    """

    comparison: Comparison
    value: str | float

    def on(self, column: str) -> str:
        """The condition on a column in words, such as `capital-gain > 0`."""
        return f"{column} {_SIGNS[self.comparison]} {label_of(self.value)}"

    def description(self) -> dict[str, str | float]:
        """The condition as JSON values."""
        return {self.comparison: self.value}

    def flags(self, frame: Frame, column: str) -> npt.NDArray[np.bool_]:
        """Which rows meet the condition; the column may have no missing values."""
        if isinstance(self.value, str):
            labels = labels_of(frame, column)
            _check_comparable(frame, column, self.value)
            return np.asarray(labels == self.value, dtype=np.bool_)
        flags = _COMPARE[self.comparison](floats_of(frame, column), self.value)
        return np.asarray(flags, dtype=np.bool_)


ConditionLike: TypeAlias = Condition | str | float | bool
"""A condition, or a plain value that means `equals`."""

Conditions: TypeAlias = Mapping[str, ConditionLike] | Sequence[tuple[str, ConditionLike]]
"""Conditions by column; as pairs if a column occurs more than once."""


def equals(value: str | float | bool) -> Condition:  # noqa: FBT001 - the value to compare with
    """The value of the column is `value`, compared as labels.

    >>> equals(">50K").on("income")
    'income = >50K'
    """
    allowed = isinstance(value, str | bool | int | float | np.bool_ | np.integer | np.floating)
    if not allowed or (isinstance(value, float | np.floating) and math.isnan(value)):
        msg = f"a value to compare with must be a text, a number, True or False; got {given(value)}"
        raise ArgumentError(msg)
    return Condition("equals", label_of(value))


def above(limit: float) -> Condition:
    """The value of the column is greater than `limit`."""
    return _numeric("above", limit)


def at_least(limit: float) -> Condition:
    """The value of the column is `limit` or greater."""
    return _numeric("at_least", limit)


def below(limit: float) -> Condition:
    """The value of the column is less than `limit`."""
    return _numeric("below", limit)


def at_most(limit: float) -> Condition:
    """The value of the column is `limit` or less."""
    return _numeric("at_most", limit)


def conditions_of(
    argument: str, conditions: Conditions | None
) -> tuple[tuple[str, Condition], ...]:
    """The conditions as (column, condition) pairs, plain values as `equals`."""
    pairs = pairs_of(argument, () if conditions is None else conditions, "condition")
    return tuple((column, condition_of(value)) for column, value in pairs)


def pairs_of(argument: str, entries: Any, value: str) -> list[tuple[str, Any]]:  # noqa: ANN401 - checked here
    """A mapping from columns to conditions or levels, or a list of such pairs, as pairs."""
    pairs = list(entries.items()) if isinstance(entries, Mapping) else entries
    is_list = isinstance(pairs, list | tuple)
    others = (
        [pair for pair in pairs if not isinstance(pair, list | tuple) or len(pair) != 2]
        if is_list
        else [entries]
    )
    if others:
        msg = (
            f"{argument} must map columns to {value}s, or list (column, {value}) pairs; got "
            f"{given(others[0])}"
        )
        raise ArgumentError(msg)
    return [(column, entry) for column, entry in pairs]


def condition_of(value: ConditionLike) -> Condition:
    """The condition itself, or `equals(value)`."""
    return value if isinstance(value, Condition) else equals(value)


def _numeric(comparison: Comparison, limit: float) -> Condition:
    number = isinstance(limit, int | float | np.integer | np.floating)
    if not number or isinstance(limit, bool) or not math.isfinite(limit):
        msg = f"the limit of {comparison} must be a finite number, got {given(limit)}"
        raise ArgumentError(msg)
    return Condition(comparison, float(limit))


def _check_comparable(frame: Frame, column: str, label: str) -> None:
    """A label that no value of the column's type can have is a mistake, not a rate of 0."""
    dtype = frame[column].dtype
    if dtype == nw.Boolean and label not in ("True", "False"):
        msg = (
            f"column {column!r} holds True and False, which never equal {quoted(label)}; use "
            "equals(True)"
        )
        raise ScenarioError(msg)
    if dtype.is_numeric():
        try:
            float(label)
        except ValueError:
            msg = (
                f"column {column!r} holds numbers, which never equal {quoted(label)}; give a number"
            )
            raise ScenarioError(msg) from None
