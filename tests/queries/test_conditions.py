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


@pytest.mark.parametrize("condition", [above(0), equals(1)])
def test_missing_values_never_count_as_not_met(condition):
    with pytest.raises(TableError, match="1 missing values in 2 rows"):
        condition.flags(frame_of(pd.DataFrame({"n": [1.0, None]})), "n")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: equals("true").flags(FRAME, "b"), ScenarioError, "column 'b'"),
        (lambda: equals("many").flags(FRAME, "n"), ScenarioError, "column 'n'"),
        *(
            (lambda value=value: equals(value), ArgumentError, "a value to compare with")
            for value in (None, np.float64("nan"), [1], b"x")
        ),
        *(
            (lambda limit=limit: below(limit), ArgumentError, "limit of below must be a finite")
            for limit in (float("nan"), "1", True)
        ),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()
