# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pufferslice.data.frames import frame_of
from pufferslice.errors import ArgumentError, ScenarioError, TableError
from pufferslice.queries import above, at_least, at_most, below, equals

FRAME = frame_of(
    pa.table({"n": [1, 2, 3], "x": [1.0, 2.0, 3.5], "s": ["1", "b", "c"], "b": [True, False, True]})
)


@pytest.mark.parametrize(
    ("condition", "words", "flags", "description"),
    [
        (above(2), "n > 2", [0, 0, 1], {"above": 2.0}),
        (at_least(2), "n >= 2", [0, 1, 1], {"at_least": 2.0}),
        (below(2), "n < 2", [1, 0, 0], {"below": 2.0}),
        (at_most(2), "n <= 2", [1, 1, 0], {"at_most": 2.0}),
        (equals(2), "n = 2", [0, 1, 0], {"equals": "2"}),
    ],
)
def test_each_condition(condition, words, flags, description):
    assert condition.on("n") == words
    assert condition.flags(FRAME, "n").tolist() == [bool(flag) for flag in flags]
    assert condition.description() == description


@pytest.mark.parametrize(
    ("column", "value", "flags"),
    [
        ("x", 2, [False, True, False]),
        ("x", 3.5, [False, False, True]),
        ("n", 2.0, [False, True, False]),
        ("n", "2", [False, True, False]),
        ("s", 1, [True, False, False]),
        ("s", "absent", [False, False, False]),
        ("b", True, [True, False, True]),
        ("b", np.bool_(False), [False, True, False]),
    ],
)
def test_equals_compares_labels(column, value, flags):
    assert equals(value).flags(FRAME, column).tolist() == flags


def test_conditions_are_values():
    assert above(0) == above(0.0)
    assert above(0) != at_least(0)
    assert equals("3") == equals(3) == equals(3.0)
    assert len({above(0), above(0), below(0)}) == 2


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("b", "true", "column 'b'"),
        ("n", "many", "column 'n'"),
    ],
)
def test_labels_that_can_never_occur_are_slips(column, value, message):
    with pytest.raises(ScenarioError, match=message):
        equals(value).flags(FRAME, column)


@pytest.mark.parametrize("value", [None, np.float64("nan"), [1], b"x"])
def test_equals_needs_a_plain_value(value):
    with pytest.raises(ArgumentError, match="a value to compare with"):
        equals(value)


@pytest.mark.parametrize("builder", [above, at_least, below, at_most])
@pytest.mark.parametrize("limit", [float("nan"), "1", True])
def test_limits_are_finite_numbers(builder, limit):
    with pytest.raises(ArgumentError, match=f"limit of {builder.__name__} must be a finite number"):
        builder(limit)


@pytest.mark.parametrize("condition", [above(0), equals(1)])
def test_missing_values_never_count_as_not_met(condition):
    with pytest.raises(TableError, match="1 missing values in 2 rows"):
        condition.flags(frame_of(pd.DataFrame({"n": [1.0, None]})), "n")
