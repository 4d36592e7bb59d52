# SPDX-License-Identifier: Apache-2.0
"""Pictures of certificates and sweeps: the noise, beside what it should be compared with."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.display import rounded
from pufferslice._core.plot import Bar, Chart, Plot, Row, row_chart, scale
from pufferslice._core.svg import HEIGHT, WIDTH, Axes, Series, line_chart
from pufferslice._core.text import shown
from pufferslice.certificate.budget_evidence import BudgetEvidence
from pufferslice.certificate.budget_wording import first_lines
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.statement import (
    BoxRange,
    BudgetStatement,
    ReleaseStatement,
    ScenarioPart,
    ShareSecret,
    Statement,
    TrainingStatement,
)
from pufferslice.errors import CalibrationError, CertificateError
from pufferslice.noise.decision import INTERVAL_STDS
from pufferslice.noise.rows import sampling_weights
from pufferslice.sensitivity.rows import RowDifference

if TYPE_CHECKING:
    from pufferslice.certificate.sweep import Sweep

NOISE: Final = "Noise of each statistic"
_BY_SAMPLING: Final = (
    "The sampling error is that of as many rows drawn at random, half of them with the secret, by "
    "the moments of the evidence. Noise of the same size makes intervals 1.4 times as long."
)
BY_RANGE: Final = (
    "The scale is the width of the public range of the statistic; where none is public there are "
    "numbers alone."
)


def certificate_plot(
    statement: Statement, evidence: Evidence | BudgetEvidence | None, digest: str
) -> Plot:
    """Draw the noise of each statistic: beside its sampling error, or within its public range.

    Sampling errors are known from the evidence of rows; a picture with them is internal.
    """
    if isinstance(statement, TrainingStatement):
        raise CertificateError(
            "a certificate of training runs has no statistics to plot; the report of its "
            "certificate draws what other bounds would cost"
        )
    guess = first_lines(statement).guess
    notes = [f"Certificate {digest[:12]}. {guess}"]
    key = ("noise", "noise, 95\u00a0% of the time at most")
    if isinstance(statement, BudgetStatement):
        rows = [
            row
            for part in statement.tables
            for row in noise_rows(
                part.scenario, part.noise.std_by_coordinate, prefix=f"{shown(part.name)}: "
            )
        ]
        notes.append("Noise with the whole precision of each part; with less it is larger.")
        return _plot(rows, [*notes, BY_RANGE], key)
    errors = sampling_errors(statement, evidence)
    if errors is None:
        rows = noise_rows(statement.scenario, statement.noise.std_by_coordinate)
        return _plot(rows, [*notes, BY_RANGE], key)
    rows = [
        Row(
            name=shown(name),
            numbers=f"noise {rounded(std)}, sampling {rounded(error)}",
            ends=scale(std, error),
            bars=(Bar("noise", 0.0, std), Bar("beside", 0.0, error)),
        )
        for name, std, error in zip(
            statement.scenario.query.names,
            statement.noise.std_by_coordinate,
            errors.tolist(),
            strict=True,
        )
    ]
    keys = (("noise", "standard deviation of the noise"), ("beside", "sampling error"))
    return _plot(rows, [*notes, _BY_SAMPLING], *keys, is_internal=True)


def _plot(
    rows: list[Row], notes: list[str], *keys: tuple[str, str], is_internal: bool = False
) -> Plot:
    return Plot(
        title=NOISE,
        charts=(row_chart(NOISE, rows),),
        keys=keys,
        notes=tuple(notes),
        is_internal=is_internal,
    )


def noise_rows(
    scenario: ScenarioPart, stds: tuple[float, ...] | list[float], *, prefix: str = ""
) -> list[Row]:
    """Make a row for each statistic: its noise, on a scale as wide as its public range."""
    rows = []
    for name, std, ends in zip(scenario.query.names, stds, _ranges(scenario), strict=True):
        half, label = INTERVAL_STDS * std, prefix + shown(name)
        numbers = f"±\u00a0{rounded(half, std)}"
        width = 0.0 if ends is None else ends[1] - ends[0]
        if ends is None or not (math.isfinite(width) and width > 0):
            rows.append(Row(name=label, numbers=numbers))
            continue
        row = Row(
            name=label,
            numbers=f"{numbers} ({100 * half / width:.2g}\u00a0% of the range)",
            ends=(0.0, width),
            bars=(Bar("noise", 0.0, min(half, width)),),
        )
        rows.append(row)
    return rows


def _ranges(scenario: ScenarioPart) -> list[tuple[float, float] | None]:
    """Find the public range of each statistic; None where the statement has none."""
    names, ranges = scenario.query.names, scenario.query.range
    if isinstance(ranges, BoxRange) and ranges.dim == len(names):
        return list(zip(ranges.low, ranges.high, strict=True))
    if not scenario.has_priors("rows"):
        return [None] * len(names)
    known = {f"mean({column})": ends for column, ends in _clips(scenario.query.parameters)}
    secret = scenario.secret
    kinds = {"rate": (0.0, 1.0)}
    if isinstance(secret, ShareSecret):
        kinds["count"] = (0.0, float(secret.n_rows))
    return [known.get(name, kinds.get(name.partition("(")[0])) for name in names]


def _clips(parameters: object) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the clip range of each column, of joined queries as well."""
    if isinstance(parameters, Mapping):
        for column, (low, high) in (parameters.get("clip") or {}).items():
            yield column, (float(low), float(high))
        for part in parameters.get("queries") or ():
            yield from _clips(part["parameters"])


def sampling_errors(
    statement: ReleaseStatement, evidence: Evidence | BudgetEvidence | None
) -> Floats | None:
    """Compute the standard error of each statistic of a table of so many rows, in its own units.

    None where the evidence does not have the moments of a public number of rows.
    """
    secret = statement.scenario.secret
    if not isinstance(evidence, Evidence) or not isinstance(secret, ShareSecret):
        return None
    moments = evidence.full.differences
    if not isinstance(moments, RowDifference):
        return None
    scales = np.array(statement.scenario.query.scales)
    return np.asarray(scales * np.sqrt(secret.n_rows / sampling_weights(moments)))


def sweep_plot(sweep: "Sweep") -> Plot:
    """Draw right guesses and the noise, relative to that at the claimed bound, against the bound.

    The noise of all statistics has one shape, so one line shows them all.
    """
    rows = [(row, float(row.noise_stds[0])) for row in sweep.rows if row.noise_stds is not None]
    if not rows:
        raise CalibrationError("nothing to plot: no noise reaches any of these bounds")
    claimed, unit = min(rows, key=lambda each: abs(each[0].claim.bound - sweep.claim.bound))
    is_share = sweep.claim.unit != 1
    bounds = tuple(sweep.claim.unit * row.claim.bound for row, _ in rows)
    at = sweep.claim.unit * claimed.claim.bound
    noise = Series(name="noise", look="first", xs=bounds, ys=tuple(std / unit for _, std in rows))
    right = tuple(100 * row.guess for row, _ in rows)
    guesses = Series(name="guesses", look="third", xs=bounds, ys=right)
    label = f"{sweep.claim.symbol} claimed" + (" (%)" if is_share else "")
    relative = Axes(
        x_label=label,
        y_label=f"noise, 1 at {at:g}",
        log_x=not is_share,
        log_y=True,
        x_range=(50.0, 100.0) if is_share else None,
    )
    shares = Axes(
        x_label=label,
        y_label="right guesses, at most (%)",
        log_x=not is_share,
        x_range=relative.x_range,
        y_range=(50.0, 100.0),
    )
    charts = (
        line_chart("Noise of every statistic", [noise], relative, upright=at),
        line_chart("Right guesses", [guesses], shares, upright=at),
    )
    note = (
        f"The claim is {sweep.claim}, at the dashed line. Left: noise of every statistic, as a "
        "multiple of that of the claim. Right: right guesses between two protected values. "
        "Estimates: to use another bound, certify it."
    )
    return Plot(
        title="What other bounds would cost",
        charts=tuple(Chart(chart, WIDTH, HEIGHT) for chart in charts),
        notes=(note,),
        is_internal=True,
    )
