# SPDX-License-Identifier: Apache-2.0
"""Releases inside a part of a budget: which statistics, how precisely, of which rows."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above, check_between, check_count, is_a
from pufferslice._core.text import given, listed, quoted
from pufferslice.certificate import Certificate
from pufferslice.certificate.budget import MOST_NUMBERS, required_budget_evidence
from pufferslice.certificate.left import whitened_statistics
from pufferslice.certificate.statement import TablePart
from pufferslice.data.tables import Rows
from pufferslice.errors import (
    AlreadyReleasedError,
    ArgumentError,
    CalibrationError,
    ReleaseError,
)
from pufferslice.noise.spending import (
    Measurement,
    Spending,
    measured_noise,
    measured_rest,
    measured_share,
)
from pufferslice.queries.features import feature_bits
from pufferslice.releases.marks import parts_of
from pufferslice.releases.states import Grant
from pufferslice.scenario.rows import exact_sums, most_rows
from pufferslice.scenario.scenario import Scenario

Only = Sequence[str] | Mapping[str, Mapping[str, float]]
"""Statistics by name, or coefficients of statistics by the name of each combination."""

_SHARE_UP: Final = 1 + 2.0**-40


@final
@attrs.frozen(kw_only=True)
class PartRequest:
    """The statistics of a part that are to be released, and how they are measured."""

    names: tuple[str, ...]
    coefficients: Floats
    """Statistics as combinations of those of the part, in the user's units, shape (n, dim)."""
    measurement: Measurement
    share: float | None
    """Share of the declared precision of all statistics of the part; None for anything else."""
    is_rest: bool = False
    """Whether all that is left is measured; the values then combine all releases of the part."""

    @property
    def charge(self) -> Fraction:
        """Share of the declared precision that is spent in some direction, rounded up."""
        if self.share is not None:
            return Fraction(self.share)
        directions = self.measurement.directions
        largest = float(np.linalg.norm(directions, 2)) ** 2 * _SHARE_UP
        return Fraction(min(1.0, largest))


def stated_part(certificate: Certificate, name: str | None) -> TablePart:
    """Return a part about rows by its name."""
    parts = {part.name: part for part in certificate.budget.tables}
    if name is None or name not in parts:
        raise ArgumentError(f"part must be one of {listed(parts, quoted)}, got {given(name)}")
    return parts[name]


def checked_period(part: TablePart, period: int | None) -> int:
    """Return the period of a release; 1 for a part that is published once."""
    if part.kind != "repeated":
        if period is not None:
            raise ArgumentError(f"part {quoted(part.name)} has no periods; leave period out")
        return 1
    if period is None:
        raise ArgumentError(f"part {quoted(part.name)} needs period, from 1 to {part.times}")
    check_count(1, period=period)
    if period > part.times:
        raise ArgumentError(
            f"period must be at most {part.times} for part {quoted(part.name)}, got {period}"
        )
    return int(period)


def requested_part(
    part: TablePart,
    spending: Spending,
    *,
    only: Only | None = None,
    spend: float | None = None,
    noise: Mapping[str, float] | None = None,
) -> PartRequest:
    """Read what is to be released: all statistics or some, by a share or by their noise."""
    if spend is not None and noise is not None:
        raise ArgumentError("give spend or noise, not both: noise decides what is spent")
    if noise is not None and only is None:
        only = list(noise) if is_a(noise, Mapping) else None
    names, coefficients = _combinations(part, only)
    whitened = coefficients @ whitened_statistics(part)
    if noise is not None:
        measurement = _by_noise(part, names, whitened, noise, spending)
        return PartRequest(
            names=names, coefficients=coefficients, measurement=measurement, share=None
        )
    if only is None:
        is_rest = spend is None and bool(spending.total.any())
        if is_rest:
            share, measurement = None, _rest(part, spending)
        else:
            share = 1.0 if spend is None else _checked_share(spend)
            measurement = measured_share(np.eye(spending.dim), share)
            measurement = attrs.evolve(measurement, estimate=whitened @ measurement.estimate)
        return PartRequest(
            names=names,
            coefficients=coefficients,
            measurement=measurement,
            share=share,
            is_rest=is_rest,
        )
    share = spending.largest_share(whitened) if spend is None else _checked_share(spend)
    if not share > 0:
        raise AlreadyReleasedError(
            f"nothing is left of these statistics alone of part {quoted(part.name)}; release all "
            "that is left of the part, without only"
        )
    measurement = measured_share(whitened, share)
    if measurement.n_numbers < len(names):
        raise ArgumentError(
            f"only names statistics of which some follow from others: {listed(names)}. Leave those "
            "out, and compute them after noise"
        )
    return PartRequest(names=names, coefficients=coefficients, measurement=measurement, share=None)


def _rest(part: TablePart, spending: Spending) -> Measurement:
    try:
        return measured_rest(spending)
    except CalibrationError:
        raise AlreadyReleasedError(
            f"nothing is left of part {quoted(part.name)}, or of this period of it; what was "
            "released can be published again, and combined"
        ) from None


def _by_noise(
    part: TablePart,
    names: Sequence[str],
    whitened: Floats,
    noise: Mapping[str, float],
    spending: Spending,
) -> Measurement:
    stds = _checked_stds(noise, names)
    try:
        return measured_noise(whitened, stds, spending)
    except CalibrationError:
        least = spending.least_stds(whitened)
        raise CalibrationError(
            f"part {quoted(part.name)} has less precision left than this noise needs; the least is "
            f"{_noise_words(names, least)}"
        ) from None


def _combinations(part: TablePart, only: Only | None) -> tuple[tuple[str, ...], Floats]:
    """Read statistics by name, or combinations of them, as coefficients in the user's units."""
    known = {name: place for place, name in enumerate(part.scenario.query.names)}
    if only is None:
        return tuple(known), np.eye(len(known))
    named = only if isinstance(only, Mapping) else None
    if named is None and (is_a(only, str) or not is_a(only, Sequence)):
        raise ArgumentError(
            f"only must list statistics, or map names to coefficients, got {given(only)}"
        )
    terms: dict[str, Mapping[str, float]] = {}
    for name in only:
        terms[name] = {name: 1.0} if named is None else named[name]
        if not is_a(terms[name], Mapping) or not terms[name]:
            raise ArgumentError(f"only must map {given(name)} to coefficients of statistics")
    unknown = [name for each in terms.values() for name in each if name not in known]
    if unknown or not terms or (named is None and len(terms) != len(only)):
        raise ArgumentError(
            f"only must name statistics of part {quoted(part.name)}, each once: "
            f"{listed(known)}; got {given(unknown[0]) if unknown else given(list(only))}"
        )
    coefficients = np.zeros((len(terms), len(known)))
    for row, each in enumerate(terms.values()):
        for name, value in each.items():
            coefficients[row, known[name]] = value
    if not np.isfinite(coefficients).all() or not coefficients.any(axis=1).all():
        raise ArgumentError("only must have finite coefficients, not all 0")
    return tuple(terms), coefficients


def _checked_share(spend: float) -> float:
    check_between(0, 1 + 2.0**-52, spend=spend)
    return min(1.0, float(spend))


def _checked_stds(noise: Mapping[str, float], names: Sequence[str]) -> Floats:
    if not is_a(noise, Mapping) or set(noise) != set(names):
        raise ArgumentError(
            f"noise must map each released statistic to a standard deviation: {listed(names)}"
        )
    for name, std in noise.items():
        check_above(0, **{f"noise[{name!r}]": std})
    return np.array([float(noise[name]) for name in names])


def _noise_words(names: Sequence[str], stds: Floats) -> str:
    words = [
        f"{name} {'none' if math.isinf(std) else format(std, '.6g')}"
        for name, std in zip(names, stds.tolist(), strict=True)
    ]
    return listed(words)


def part_sums(scenario: Scenario, rows: Rows, part: TablePart) -> tuple[int, list[Fraction]]:
    """Sum the rows of a part exactly, in scaled coordinates, and count them.

    Only their number is refused.
    """
    query, features = scenario.query, scenario.query.features
    if features is None:
        raise ReleaseError("this scenario has no sums over rows; build it with from_prevalence")
    n_bits = feature_bits(most_rows(scenario.secret))
    n_rows, sums = exact_sums(rows, features, n_bits)
    known = scenario.secret.get("n_rows")
    least, most = (known or 1, known or n_rows) if part.rows is None else part.rows
    if not least <= n_rows <= most:
        size = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        raise ReleaseError(
            f"a table of part {quoted(part.name)} has {size} rows, which is public; got "
            f"{n_rows:,}. Release the table that the budget is about"
        )
    outputs = features.of_sums(n_rows, sums, n_bits)
    return n_rows, [x / Fraction(s) for x, s in zip(outputs, query.scales.tolist(), strict=True)]


def grant_of_budget(certificate: Certificate) -> Grant:
    """Return what a budget allows: of which secret, in which parts."""
    statement = certificate.budget
    evidence = required_budget_evidence(certificate)
    keys = [key for each in evidence.confidential.values() for key in each["keys"]]
    return Grant(
        certificate=certificate.digest,
        keys=tuple(dict.fromkeys(keys)),
        parts=parts_of(statement),
        earlier=tuple(statement.earlier_releases),
        claim=str(certificate.guarantee),
        statistics=tuple(
            dict.fromkeys(name for part in statement.tables for name in part.scenario.query.names)
        ),
        n_rows=next(
            (
                part.scenario.secret.n_rows
                for part in statement.tables
                if part.rows is None and hasattr(part.scenario.secret, "n_rows")
            ),
            None,
        ),
        most_numbers=MOST_NUMBERS,
    )
