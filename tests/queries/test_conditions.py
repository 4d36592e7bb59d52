# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pyarrow as pa
import pytest

from pufferslice.data.frames import frame_of
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
