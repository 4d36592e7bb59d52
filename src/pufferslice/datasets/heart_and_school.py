# SPDX-License-Identifier: Apache-2.0
"""The paper's nine statistics of the Cleveland and the student table, in public units.

Units and ranges are what anyone knows about the columns; none was fitted to the rows.
"""

from typing import Final

import numpy as np

from pufferslice.queries import Box, Query, above, at_least, summary

_CLINIC: Final = ("age", "trestbps", "chol")
_CLINIC_LOW: Final = np.array([18.0, 60.0, 50.0])
_CLINIC_HIGH: Final = np.array([100.0, 260.0, 650.0])
_GRADES: Final = ("G1", "G2", "G3")
_BEST_GRADE: Final = 20.0


def cleveland_summary() -> Query:
    """The paper's nine statistics of the Cleveland table, with public scales and range.

    Means and standard deviations of age, resting blood pressure and cholesterol; shares of rows
    with cholesterol from 240 mg/dl, blood pressure from 140 mmHg, and heart disease. Scales: 10
    years, 20 mmHg and 50 mg/dl for the means, half of that for the standard deviations, 0.1 for
    the shares. Range: ages 18 to 100, 60 to 260 mmHg, 50 to 650 mg/dl; a standard deviation is at
    most half of its column's width.

    >>> cleveland_summary().dim
    9
    """
    spread = (_CLINIC_HIGH - _CLINIC_LOW) / 2
    rates = (("chol", at_least(240)), ("trestbps", at_least(140)), ("num", above(0)))
    return (
        summary(mean=_CLINIC, std=_CLINIC, rate=rates)
        .with_range(
            Box([*_CLINIC_LOW, 0, 0, 0, 0, 0, 0], [*_CLINIC_HIGH, *spread, 1, 1, 1]),
        )
        .with_scales([10, 20, 50, 5, 10, 25, 0.1, 0.1, 0.1])
    )


def student_summary() -> Query:
    """The paper's nine statistics of the student table, with public scales and range.

    Means and standard deviations of the grades G1, G2 and G3, from 0 to 20; shares of students
    with a study time coded 3 or 4 (five hours a week and more), a past failure, and more than 10
    absences. Scales: 2 points for the means, 1 point for the standard deviations, 0.1 for the
    shares.

    >>> student_summary().names[6]
    'rate(studytime >= 3)'
    """
    rates = (("studytime", at_least(3)), ("failures", above(0)), ("absences", above(10)))
    top = _BEST_GRADE
    return (
        summary(mean=_GRADES, std=_GRADES, rate=rates)
        .with_range(Box([0.0] * 9, [*[top] * 3, *[top / 2] * 3, 1, 1, 1]))
        .with_scales([2, 2, 2, 1, 1, 1, 0.1, 0.1, 0.1])
    )
