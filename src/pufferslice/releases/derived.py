# SPDX-License-Identifier: Apache-2.0
"""Statistics computed from released sums, after noise: post-processing, with intervals.

Nothing here reads rows. Intervals cover the noise alone, whose covariance is public: to first
order, or by draws of the noise where a formula is not smooth or divides by something near 0.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Final, TypeAlias, final

import attrs
import numpy as np
from scipy.special import ndtr, ndtri

from pufferslice._core.arrays import Floats, locked
from pufferslice._core.checks import is_a
from pufferslice._core.display import Shown, rounded
from pufferslice._core.text import given, listed, quoted, shown
from pufferslice.certificate import Certificate
from pufferslice.data.frames import label_of
from pufferslice.errors import ArgumentError, ReleaseError
from pufferslice.noise.decision import INTERVAL_STDS
from pufferslice.queries.derived import Derived
from pufferslice.queries.query import column_names
from pufferslice.queries.statistics import Quantiles, quantile_levels

CONFIDENCE: Final = 0.95
N_DRAWS: Final = 10_000
"""Draws of the noise where the first order is not enough."""
SEED: Final = 1729
"""Public seed of these draws: the same release has the same intervals."""
NEAR: Final = 4.0
"""Noise deviations within which a denominator counts as near 0."""

_STEP: Final = 2.0**-200
_NATURAL: Final[Mapping[str, tuple[float, float]]] = {
    "std": (0.0, math.inf),
    "correlation": (-1.0, 1.0),
}
"""Values that a statistic can have."""

Pairs: TypeAlias = Sequence[tuple[str, str]]


@final
@attrs.frozen(kw_only=True)
class DerivedValue:
    """A statistic computed from released sums, with an interval."""

    name: str
    value: float
    """Not a number where it cannot be computed from these values."""
    standard_error: float
    """Standard deviation by the noise alone; of draws, half of their central 68 %."""
    low: float
    high: float
    remark: str = ""
    """What a reader must know beside the interval; mostly empty."""


@final
@attrs.frozen(kw_only=True, repr=False)
class DerivedStatistics(Shown):
    """Statistics computed from a release, after noise."""

    is_internal: ClassVar[bool] = False

    rows: tuple[DerivedValue, ...]
    simultaneous: bool = False
    """Whether all intervals hold together with 95 %; otherwise each alone."""

    def __getitem__(self, name: str) -> DerivedValue:
        for row in self.rows:
            if row.name == name:
                return row
        raise ArgumentError(
            f"there is no derived statistic {given(name)}; there are "
            f"{listed([row.name for row in self.rows])}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON values; what cannot be computed is null."""
        rows = [
            {key: value if _is_known(value) else None for key, value in row.items()}
            for row in self.table_rows()
        ]
        return {
            "interval": CONFIDENCE,
            "simultaneous": self.simultaneous,
            "statistics": rows,
        }

    def table_rows(self) -> list[dict[str, Any]]:
        """Return value, standard error, interval and remark, one row per statistic."""
        return [
            {
                "statistic": row.name,
                "value": row.value,
                "standard_error": row.standard_error,
                "low": row.low,
                "high": row.high,
                "remark": row.remark,
            }
            for row in self.rows
        ]

    def shown_rows(self) -> list[dict[str, Any]]:
        """Return the rows with rounded values."""
        return [
            row
            | {key: rounded(row[key], row["standard_error"]) for key in ("value", "low", "high")}
            for row in self.table_rows()
        ]

    def sentences(self) -> list[str]:
        """Say what the intervals cover."""
        return [
            "Computed from the released values, after noise; 95 % intervals cover the noise, "
            + ("all of them together." if self.simultaneous else "each alone.")
        ]

    def __str__(self) -> str:
        names = [shown(row.name) for row in self.rows]
        width = max(map(len, names))
        lines = [
            f"  {name:<{width}}  {row.value:>12.6g}  error {row.standard_error:<10.4g} "
            f"95 % in [{row.low:.6g}, {row.high:.6g}]{f' ({row.remark})' if row.remark else ''}"
            for name, row in zip(names, self.rows, strict=True)
        ]
        return "\n".join([*self.sentences(), *lines])

    def __repr__(self) -> str:
        return f"DerivedStatistics({listed([row.name for row in self.rows])})"


def noise_covariance(certificate: Certificate) -> Floats:
    """Covariance of the noise of a release under a certificate, in the user's units."""
    scales = np.array(certificate.released.scenario.query.scales)
    shape, std = certificate.shape, certificate.noise_std
    scaled = np.eye(len(scales)) if shape is None else shape.covariance
    covariance = std**2 * scaled * np.outer(scales, scales)
    return np.asarray((covariance + covariance.T) / 2)


def derived_statistics(
    specs: Sequence[Derived],
    *,
    names: Sequence[str],
    values: Floats,
    covariance: Floats,
    n_rows: int | None = None,
    simultaneous: bool = False,
) -> DerivedStatistics:
    """Compute statistics from released values, shape (dim,), with noise of a known covariance.

    What a statistic needs and `names` lack, also as a margin of released cells, is an error that
    names it. `n_rows` is the public number of rows, if there is one. `simultaneous`: with
    probability 95 % all intervals hold together, by the quantile of the largest standardised error
    under the known correlation.
    """
    for spec in specs:
        check_released(spec, names)
    needed = dict.fromkeys(name for spec in specs for name in spec.of)
    margins = {name: cells_of(name, names) for name in needed if name not in names}
    places = {name: place for place, name in enumerate([*names, *margins])}
    sums = np.eye(len(places), len(names))
    for name, cells in margins.items():
        sums[places[name], [places[cell] for cell in cells]] = 1.0
    released, values, covariance = covariance, sums @ values, sums @ covariance @ sums.T
    noise: Floats = np.empty((0, 0))
    parts = []
    for spec in specs:
        where = [places[name] for name in spec.of]
        part = _Part.of(spec, values[where], covariance[np.ix_(where, where)], n_rows)
        if not noise.size and (simultaneous or part.by_draws):
            noise = sums @ _noise_draws(released)
        parts.append((part, where))
    reach = INTERVAL_STDS
    if simultaneous:
        errors = [np.abs(part.normal_errors(noise[where])) for part, where in parts]
        reach = float(np.quantile(np.max(errors, axis=0), CONFIDENCE))
    return DerivedStatistics(
        rows=tuple(part.row(reach, noise[where] if noise.size else noise) for part, where in parts),
        simultaneous=simultaneous,
    )


def check_released(spec: Derived, names: Sequence[str]) -> None:
    """Check that all sums that a statistic needs are released, or margins of released cells."""
    absent = [name for name in spec.of if name not in names and not cells_of(name, names)]
    if absent:
        raise ReleaseError(
            f"{shown(spec.name)} needs {listed(absent, quoted)}, which the release does not have; "
            "ask for it in the query, or leave the statistic out"
        )


def cells_of(name: str, names: Sequence[str]) -> tuple[str, ...]:
    """Find the released cells that a margin is the sum of: those of one table; none if none are.

    >>> cells = [f"count(race = {r}, income = {i})" for r in "WB" for i in ("<=50K", ">50K")]
    >>> cells_of("count(race = B)", cells)
    ('count(race = B, income = <=50K)', 'count(race = B, income = >50K)')
    """
    kind, wanted = _conditions(name)
    tables: dict[tuple[str, ...], list[str]] = {}
    for cell in names:
        other_kind, conditions = _conditions(cell)
        if kind == other_kind and wanted and set(wanted) < set(conditions):
            rest = [each.partition(" ")[0] for each in conditions if each not in wanted]
            tables.setdefault(tuple(rest), []).append(cell)
    return tuple(next(iter(tables.values()), ()))


def _conditions(name: str) -> tuple[str, list[str]]:
    """Split the name of a cell into what is summed and its conditions; none for other names."""
    kind, _, inner = name.removesuffix(")").partition("(")
    if kind not in {"count", "rate", "total"} or not inner:
        return kind, []
    numbers, bar, where = inner.rpartition(" | ")
    if kind == "total" and not bar:
        return kind, []
    return f"{kind}({numbers}", where.split(", ")


@attrs.frozen(kw_only=True)
class _Part:
    """One statistic at the released values."""

    spec: Derived
    values: Floats
    n_rows: int | None
    gradient: Floats
    std: float
    near: tuple[str, ...]
    """Denominators near 0, in words."""

    @classmethod
    def of(cls, spec: Derived, values: Floats, cov: Floats, n_rows: int | None) -> "_Part":
        steps = values[:, None] + 1j * _STEP * np.eye(len(values))

        def std(gradient: Floats) -> float:
            return math.sqrt(max(float(gradient @ cov @ gradient), 0.0))

        gradient = np.zeros(len(values))
        near = []
        if spec.is_smooth:
            gradient = spec.value(steps, n_rows).imag / _STEP
            slopes = spec.denominators(steps, n_rows)
            for words, denominator in spec.denominators(values, n_rows).items():
                room = NEAR * std(slopes[words].imag / _STEP)
                # All but that of a ratio are sizes.
                size = abs(denominator) if spec.kind == "ratio" else denominator
                if not size > room:
                    near.append(words)
        return cls(
            spec=spec,
            values=values,
            n_rows=n_rows,
            gradient=gradient,
            std=std(gradient) if np.isfinite(gradient).all() else math.inf,
            near=tuple(near),
        )

    @property
    def by_draws(self) -> bool:
        """Whether the first order is not enough."""
        return bool(self.near) or not self.spec.is_smooth

    def draws(self, noise: Floats) -> Floats:
        """The statistic on the released values with other noise added."""
        drawn = self.spec.value(self.values[:, None] + noise, self.n_rows)
        return np.asarray(drawn, dtype=np.float64)

    def normal_errors(self, noise: Floats) -> Floats:
        """Errors of draws, standardised: by the deviation, or by their ranks."""
        if not self.by_draws:
            return np.asarray(self.gradient @ noise / (self.std or 1.0))
        drawn = np.nan_to_num(self.draws(noise), nan=math.inf)
        ranks = np.searchsorted(np.sort(drawn), drawn, "left") + np.searchsorted(
            np.sort(drawn), drawn, "right"
        )
        return np.asarray(ndtri((ranks + 1) / (2 * len(drawn) + 2)))

    def row(self, reach: float, noise: Floats) -> DerivedValue:
        """The statistic, with an interval of so many standard deviations."""
        value = float(self.spec.value(self.values, self.n_rows))
        std, low, high = self.std, value - reach * self.std, value + reach * self.std
        if self.by_draws:
            drawn = self.draws(noise)
            drawn = drawn[~np.isnan(drawn)]
            if not len(drawn):
                drawn = np.array([math.nan])
            tail = ndtr([-reach, -1.0, 1.0, reach])
            low, first, last, high = np.quantile(drawn, tail).tolist()
            std = (last - first) / 2
        least, most = _NATURAL.get(self.spec.kind, (-math.inf, math.inf))
        value, low, high = (min(max(each, least), most) for each in (value, low, high))
        remark = ""
        if self.near:
            remark = (
                f"{listed(self.near)} is within {NEAR:g} standard deviations of its noise from 0: "
                f"little is known; by {N_DRAWS:,} draws of the noise"
            )
        return DerivedValue(
            name=self.spec.name, value=value, standard_error=std, low=low, high=high, remark=remark
        )


def requested(
    names: Sequence[str],
    *,
    ratio: Pairs = (),
    std: Sequence[str] = (),
    covariance: Pairs = (),
    correlation: Pairs = (),
    margin: Mapping[str, Sequence[str]] | None = None,
    quantile: Quantiles | None = None,
    regression: Mapping[str, Sequence[str]] | None = None,
) -> list[Derived]:
    """Describe statistics of released sums, whose names tell what they are.

    `ratio`: pairs of released statistics, or margins of a released table, as `count(race = B)`.
    `std`: columns; `covariance` and `correlation`: pairs of columns, whose means and products are
    released. `margin`: sums of released cells, by the name of
    the sum. `quantile`: levels by column, from a released histogram. `regression`: columns by
    target.

    >>> names = ["count(sex = F)", "count(sex = M)"]
    >>> requested(names, margin={"all": names})[0].numbers
    (0.0, 1.0, 1.0)
    """
    found = _Moments(names=tuple(names))
    specs = [
        Derived(name=f"{a} / {b}", kind="ratio", of=[a, b], numbers=[0.0])
        for a, b in _pairs("ratio", ratio)
    ]
    specs += [found.second("std", (x,)) for x in column_names("std", std)]
    specs += [found.second("covariance", pair) for pair in _pairs("covariance", covariance)]
    specs += [found.second("correlation", pair) for pair in _pairs("correlation", correlation)]
    for name, cells in _lists("margin", margin):
        specs.append(Derived(name=name, kind="sum", of=cells, numbers=[0.0, *[1.0] * len(cells)]))
    for column, level in quantile_levels(quantile or {}):
        specs.append(_quantile(names, column, level))
    for target, inputs in _lists("regression", regression):
        specs += found.coefficients(target, inputs)
    for spec in specs:
        check_released(spec, names)
    return specs


def _pairs(argument: str, pairs: Pairs) -> list[tuple[str, str]]:
    if is_a(pairs, str) or not is_a(pairs, Sequence):
        raise ArgumentError(f"{argument} must be a list of pairs of names, got {given(pairs)}")
    for pair in pairs:
        if len(column_names(argument, pair)) != 2:
            raise ArgumentError(f"{argument} must be a list of pairs of names, got {given(pair)}")
    return [(first, second) for first, second in pairs]


def _lists(
    argument: str, lists: Mapping[str, Sequence[str]] | None
) -> list[tuple[str, tuple[str, ...]]]:
    if lists is not None and not is_a(lists, Mapping):
        raise ArgumentError(f"{argument} must map names to lists of names, got {given(lists)}")
    found = [(name, column_names(argument, each)) for name, each in (lists or {}).items()]
    for name, each in found:
        if not each:
            raise ArgumentError(f"{argument} must have at least one name for {quoted(name)}")
    return found


@attrs.frozen(kw_only=True)
class _Moments:
    """Released means and products, found by the grammar of their names."""

    names: tuple[str, ...]

    def product(self, first: str, second: str) -> tuple[str, float, float]:
        """The name of the mean of a product, and the centers of both columns."""
        for x, y in ((first, second), (second, first)):
            pattern = re.compile(rf"mean\({_factor(x, 'x')} \* {_factor(y, 'y')}\)")
            for name in self.names:
                if match := pattern.fullmatch(name):
                    centers = _center(match, "x"), _center(match, "y")
                    return (name, *(centers if x == first else centers[::-1]))
        return f"mean({first} * {second})", 0.0, 0.0

    def second(self, kind: str, columns: tuple[str, ...]) -> Derived:
        """A standard deviation, covariance or correlation."""
        means = [f"mean({column})" for column in columns]
        pairs = [(x, y) for place, x in enumerate(columns) for y in columns[place:]]
        if kind == "covariance":
            pairs = [(columns[0], columns[1])]
        products = {pair: self.product(*pair) for pair in pairs}
        centers = {pair[0]: centers[1] for pair, centers in products.items()}
        centers |= {pair[1]: centers[2] for pair, centers in products.items()}
        return Derived(
            name=f"{kind}({', '.join(columns)})",
            kind=kind,  # type: ignore[arg-type]
            of=[*means, *(name for name, *_ in products.values())],
            numbers=[centers[column] for column in columns],
        )

    def coefficients(self, target: str, inputs: tuple[str, ...]) -> list[Derived]:
        """Coefficients and intercept of a linear regression."""
        pairs = [(x, y) for place, x in enumerate(inputs) for y in inputs[place:]]
        products = [self.product(x, y) for x, y in pairs]
        with_target = [self.product(x, target) for x in inputs]
        of = [f"mean({column})" for column in (*inputs, target)]
        of += [name for name, *_ in (*products, *with_target)]
        centers = [center for _, center, _ in with_target] + [with_target[0][2]]
        names = [*(f"coefficient({x} -> {target})" for x in inputs), f"intercept({target})"]
        return [
            Derived(name=name, kind="coefficient", of=of, numbers=[place, 0.0, *centers])
            for place, name in enumerate(names)
        ]


def _factor(column: str, group: str) -> str:
    plain = re.escape(column)
    return rf"(?:{plain}|\({plain} (?P<{group}sign>[-+]) (?P<{group}>[^()*]+)\))"


def _center(match: re.Match[str], group: str) -> float:
    number = match[group]
    return 0.0 if number is None else float(number) * (1 if match[f"{group}sign"] == "-" else -1)


def _quantile(names: Sequence[str], column: str, level: float) -> Derived:
    pattern = re.compile(rf"(count|rate)\(([^()]+) <= {re.escape(column)} < ([^()]+)\)")
    matches = [match for name in names if (match := pattern.fullmatch(name))]
    kinds = {match[1] for match in matches}
    cells = sorted(
        (float(match[2]), float(match[3]), match[0]) for match in matches if match[1] == min(kinds)
    )
    if not cells or any(cell[1] != after[0] for cell, after in pairwise(cells)):
        raise ReleaseError(
            f"a quantile of {quoted(column)} needs a released histogram of it without gaps; ask "
            "for one in the query, or leave the quantile out"
        )
    return Derived(
        name=f"quantile({column}, {label_of(level)})",
        kind="quantile",
        of=[name for *_, name in cells],
        numbers=[level, cells[0][0], *(high for _, high, _ in cells)],
    )


def _noise_draws(covariance: Floats) -> Floats:
    """Draws of the noise with a public seed, shape (dim, N_DRAWS)."""
    sizes = np.sqrt(np.diagonal(covariance))
    units = np.where(sizes > 0, sizes, 1.0)
    values, axes = np.linalg.eigh(covariance / np.outer(units, units))
    factor = units[:, None] * axes * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(factor @ _standard_normals(len(covariance)))


@lru_cache(maxsize=1)
def _standard_normals(dim: int) -> Floats:
    return locked(np.random.default_rng(SEED).standard_normal((dim, N_DRAWS)))


def _is_known(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
