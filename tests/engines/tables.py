# SPDX-License-Identifier: Apache-2.0
"""A table of values on which engines disagree, and queries that read all of them."""

import decimal
import math
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa

from pufferslice.queries import (
    above,
    at_least,
    at_most,
    below,
    between,
    contingency_table,
    days,
    equals,
    group_by,
    hours,
    intervals,
    join,
    months,
    quarters,
    summary,
    weekdays,
    weeks,
    years,
)

N_ROWS = 600
FLOATS = [
    *(math.nan, None, math.inf, -math.inf, -0.0, 0.0, 5e-324, -5e-324, 1e308, -1e308),
    *(0.5, 1.5, 2.5, -0.5, 7.5, 8.0, 8.000000000000002, 7.999999999999999, -8.0),
    *(2.0**53, 2.0**53 + 2, 0.1, 0.2, 0.30000000000000004, 1 / 3, 2 / 3),
    *(k / 2**17 for k in range(-9, 10)),  # halves of a step between -8 and 8
    *(k / 2**18 + 1 for k in range(-9, 10)),
]
INTEGERS = [0, 1, -1, 2, 3, 7, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63), None]
TEXTS = ["a", "b", "B", "", " a", "a ", "é", "e\u0301", "a'b", 'a"b', "True", "1", "None", None]
DECIMALS = ["0.00", "3.00", "0.10", "-0.01", "12345678901234567.89", "0.29", "1.15", None]
START = datetime(2023, 12, 28, 21, 30, tzinfo=UTC)


def repeated(values, shift=0):
    """The values again and again, in another order for each column."""
    return [values[(7 * k + shift + k // len(values)) % len(values)] for k in range(N_ROWS)]


def nasty_table():
    """Every kind of value that a column may have, with missing ones."""
    rng = np.random.default_rng(3)
    times = [START + timedelta(hours=13 * k) for k in range(N_ROWS)]
    naive = [time.replace(tzinfo=None) for time in times]
    gone = rng.random(N_ROWS) < 0.1
    numbers = [None if x is None else decimal.Decimal(x) for x in repeated(DECIMALS)]
    return pa.table(
        {
            "row": pa.array(range(N_ROWS)),
            "sex": pa.array(repeated(["F", "M", "M", None])),
            "x": pa.array(repeated(FLOATS), pa.float64()),
            "half": pa.array(repeated(FLOATS[4:20], 3), pa.float32()),
            "whole": pa.array(repeated(INTEGERS), pa.int64()),
            "small": pa.array(repeated([0, 1, 2, 127, -128, None]), pa.int8()),
            "yes": pa.array(repeated([True, False, False, None])),
            "text": pa.array(repeated(TEXTS)),
            "kind": pa.array(repeated(["p", "q", "r", None])).dictionary_encode(),
            "money": pa.array(numbers, pa.decimal128(20, 2)),
            "day": pa.array([t.date() for t in times], pa.date32(), mask=gone),
            "time": pa.array(naive, pa.timestamp("us"), mask=gone),
            "zoned": pa.array(times, pa.timestamp("us", tz="Europe/Berlin"), mask=gone),
        }
    )


CLIP = {
    "x": (-8, 8),
    "half": (-1, 7),
    "whole": (-(2**60), 2**61),
    "small": (-100, 100),
    "yes": (0, 1),
    "money": (-1, 5.3),
}
COMPARED = [above(0), at_least(-8), below(0.5), at_most(1 / 3), between(0, 0.30000000000000004)]


def nasty_query():
    """Statistics that read every column of the table, in every way."""
    return join(
        summary(
            mean=list(CLIP),
            std=["x", "whole", "money"],
            covariance=[("x", "half"), ("small", "money")],
            rate=[("x", test) for test in COMPARED],
            count=[
                *(("whole", equals(value)) for value in (2**53, 2**53 + 1, -(2**63), 3)),
                ("whole", above(2**53)),
                ("small", between(-5, 3)),
                *(("x", equals(value)) for value in (0, 0.1, 8, 1e308, -8)),
                *(("half", equals(value)) for value in (0.5, -8, 0.1)),
                *(("money", equals(value)) for value in (3, 0.1, 0.29)),
                ("money", at_least(0.29)),
                ("yes", True),
                ("yes", at_most(0)),
                ("day", equals("2024-01-01")),
                *(("text", value) for value in TEXTS if value is not None),
            ],
            clip=CLIP,
            missing={"x": 7.25, "whole": 3},
        ),
        contingency_table({"kind": ["p", "q"], "yes": [True, False]}, missing={"kind": "q"}),
        group_by(
            {"kind": ["p", "r"]},
            mean=["x"],
            total=["small"],
            clip={"x": CLIP["x"], "small": CLIP["small"]},
            missing={"x": 7.25},
        ),
        *(
            contingency_table({column: groups})
            for column, groups in (
                ("day", days(date(2023, 12, 30), date(2024, 1, 2))),
                ("day", weeks("2023-W52", "2024-W03")),
                ("day", quarters("2023-Q4", "2024-Q2")),
                ("time", months("2023-12", "2024-03")),
                ("time", years(2023, 2024)),
                ("time", hours()[::3]),
                ("zoned", days(date(2023, 12, 30), date(2024, 1, 2))),
                ("zoned", weekdays()),
                ("zoned", hours()[::3]),
            )
        ),
        contingency_table({"half": intervals([-1, 0, 0.1, 0.5, 3])}),
    )


def plain_table(n_rows=2_000, seed=5):
    """Rows of which a scenario is made."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["F", "M"], n_rows)
    return pa.table(
        {
            "sex": sex,
            "age": rng.integers(10, 99, n_rows),
            "pay": np.round(rng.lognormal(3, 1, n_rows) + 5 * (sex == "M"), 2),
            "race": rng.choice(["A", "B", "C"], n_rows),
            "ill": pa.array(rng.random(n_rows) < 0.2, mask=rng.random(n_rows) < 0.05),
        }
    )


def plain_query():
    """Statistics of these rows."""
    return join(
        summary(
            mean=["age", "pay"],
            std=["age"],
            rate={"ill": True},
            clip={"age": (17, 90), "pay": (0, 100)},
        ),
        contingency_table({"race": ["A", "B"], "ill": [True, False]}),
        group_by({"race": ["A", "B"]}, total=["pay"], clip={"pay": (0, 100)}),
    )
