# SPDX-License-Identifier: Apache-2.0
"""What the checks, arrays, JSON and searches refuse."""

import io
import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from tests.refusal_tables import refusals
from tests.refusals import check_refused

from pufferslice._core import checks
from pufferslice._core.arrays import array_in, arrays_in, locked, locked_integers
from pufferslice._core.files import canonical_json, parsed_json, pretty_json
from pufferslice._core.plot import checked_path
from pufferslice._core.search import raise_until, smallest_safe
from pufferslice.errors import ArgumentError, CalibrationError, PuffersliceError

HUGE = 10**400
"""An integer beyond all floats."""
NOT_NUMBERS = ["1", None, [2.0], 2j]
NOT_REAL = [[1 + 2j], np.array([1 + 2j]), np.array(["2026-11-18"], dtype="M8[D]"), "words"]
RAGGED = [[1, 2], [3]]
RULES = ("tight", "closed_form")


def saved(save, *arrays, **named):
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


ALONE = saved(np.save, np.arange(3.0))
PICKLED = saved(np.savez, a=np.array([{}], dtype=object))


def named(check, *limits):
    return lambda value: check(*limits, order=value)


def weights(values):
    checks.check_probabilities(length=2, weights=np.array(values))


def directions(rows):
    checks.check_unit_rows(directions=np.array(rows))


REFUSED = {
    ArgumentError: [
        ("order", named(checks.check_above, 1), 1, 0.5, math.nan, math.inf, HUGE, -HUGE),
        ("order", named(checks.check_at_least, 1), 0.999, -2, math.nan, math.inf, HUGE),
        ("order", named(checks.check_between, 0, 1), 0, 1.0, 2, math.nan, HUGE),
        ("25 % as 0.25", named(checks.check_between, 0, 1), 25),
        ("order", named(checks.check_share), -1e-300, math.nextafter(1, 2), 2, math.nan, -math.inf),
        ("order", named(checks.check_count, 2), 1, 2.5, 2.0, True, math.nan, Fraction(5, 2)),
        ("order", named(checks.check_share), *NOT_NUMBERS),
        ("order", named(checks.check_above, 0), *NOT_NUMBERS),
        ("order", named(checks.check_at_least, 0), *NOT_NUMBERS),
        ("order", named(checks.check_between, 0, 1), *NOT_NUMBERS),
        ("order", named(checks.check_count, 0), *NOT_NUMBERS),
        ("67108864", named(checks.check_fits, 4), 2**26 + 1),
        ("268435456", named(checks.check_fits, 1), 2**70),
        ("order must be one of tight", named(checks.check_one_of, RULES), "loose"),
        ("secrets", lambda: checks.check_unique("secrets", iter(["a", "b", "a"]))),
        ("bad", lambda: checks.check_finite(good=np.zeros(1), bad=np.array([math.nan]))),
        ("row 1", lambda length: directions([[1, 0], [0.6 * length, 0.8 * length]]), 0.0, 2.0),
        ("row 1", lambda length: directions([[1, 0], [0, length]]), 1 + 1e-11, 1 - 1e-11),
        ("directions", lambda shape: directions(np.ones(shape)), (2,), (0, 1), (1, 0)),
        ("directions", directions, [[math.nan]]),
        ("weights", weights, [0.5, 0.6], [-0.1, 1.1], [1.0], [0.2, 0.3, 0.5], [math.nan, 1.0]),
        ("weights", weights, [0.5, 0.5 + 1e-11]),
        ("expected numbers", locked, *NOT_REAL),
        ("must end in .svg", checked_path, "x.png", "x", ".svg"),
        ("expected integers", locked_integers, *NOT_REAL),
        ("expected", locked, RAGGED),
        ("expected", locked_integers, RAGGED, [1.5], [math.nan], [math.inf], [2.0**70]),
        ("expected", locked_integers, np.array([2**63], dtype=np.uint64)),
    ],
    ValueError: [
        ("archive", arrays_in, ALONE, PICKLED, b"", b"PK\x03\x04"),
        ("array", array_in, saved(np.savez, np.arange(3)), ALONE[:-1], b""),
        ("JSON", lambda spell: spell({"x": math.nan}), canonical_json, pretty_json),
        ("JSON", lambda spell: spell({"x": math.inf}), canonical_json, pretty_json),
        ("JSON", lambda spell: spell({"x": -math.inf}), canonical_json, pretty_json),
        ("twice", parsed_json, b'{"a": 1, "a": 2}'),
        ("NaN", parsed_json, b'{"a": {"b": NaN}}'),
        ("1e400", parsed_json, b"[1e400]"),
        ("float", parsed_json, b"-" + b"9" * 400),
        ("64 levels", parsed_json, b"[" * 100 + b"]" * 100),
        ("nested", parsed_json, b"[" * 100_000),
        ("Expecting", parsed_json, b""),
        ("decode", parsed_json, b"\x80abc"),
    ],
    CalibrationError: [
        ("no noise", lambda cost: smallest_safe(lambda _: cost, 2.0, start=1.0), 3.0, math.inf),
        ("no noise", lambda cost: smallest_safe(lambda _: cost, 2.0, start=1.0), math.nan),
        ("nothing to hide", lambda: smallest_safe(lambda _: 1.0, 2.0, start=1.0)),
        ("no value", partial(raise_until, lambda _: False), 1.0, math.nan),
    ],
}


@pytest.mark.parametrize("refusal", refusals(REFUSED))
def test_refused(refusal):
    check_refused(refusal)


def test_a_wrong_argument_is_a_value_error_of_the_library():
    assert issubclass(ArgumentError, PuffersliceError)
    assert issubclass(ArgumentError, ValueError)
