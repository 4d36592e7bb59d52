# SPDX-License-Identifier: Apache-2.0
"""Numbers of claims as texts, rounded so that no claim looks stronger than it is."""

import math
from decimal import ROUND_CEILING, Context


def in_full(value: float) -> str:
    """A number of a claim with all its digits: fewer could make the claim look stronger.

    >>> in_full(4.0), in_full(1.0000004)
    ('4', '1.0000004')
    """
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def at_most(value: float, digits: int = 6) -> str:
    """A bound with six digits, or as many as are given, rounded up.

    >>> at_most(1.0), at_most(2.00000001), at_most(3.1946, digits=3)
    ('1', '2.00001', '3.2')
    """
    short = f"{value:.{digits}g}"
    if float(short) >= value:
        return short
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(value)
    return f"{float(rounded):.{digits}g}"


def percent_at_most(share: float) -> str:
    r"""A bound on a probability in tenths of a percent, rounded up; the space does not break.

    >>> percent_at_most(0.81501), percent_at_most(1.2)
    ('81.6\xa0%', '100\xa0%')
    """
    return f"{min(100.0, math.ceil(share * 1000) / 10):g}\u00a0%"
