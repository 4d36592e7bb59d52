# SPDX-License-Identifier: Apache-2.0
"""Statistics that are functions of released sums: public descriptions, and the formulas.

A formula takes the released values, shape (k,) or (k, n), real or complex: its derivatives are read
off complex arguments.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, final, get_args

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.checks import check_one_of
from pufferslice.errors import ArgumentError
from pufferslice.queries.features import Feature

Values: TypeAlias = npt.NDArray[Any]
"""Released values in the order that a description names them, real or complex."""

DerivedKind = Literal["sum", "ratio", "std", "covariance", "correlation", "quantile", "coefficient"]


def _names(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names)


def _floats(numbers: Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, numbers))


@final
@attrs.frozen(kw_only=True)
class Derived:
    """A statistic that is computed from released sums, after noise; public.

    | kind | `of` | `numbers` |
    |---|---|---|
    | `sum` | any | a constant, and a coefficient of each |
    | `ratio` | numerator, denominator | a constant that is added |
    | `std` | x, xx, count | center of x |
    | `covariance` | x, y, xy, count | centers of x and y |
    | `correlation` | x, y, xx, xy, yy, count | centers of x and y |
    | `quantile` | counts of the cells of a histogram | level, edges |
    | `coefficient` | columns x, target y, all xx, all xy | place, penalty, centers of all x and y |

    x and y are means, and products are means of centred numbers; with a count they are totals of a
    group, which are divided by it. A coefficient is that of the column at its place, or the
    intercept, after all of them.
    """

    name: str
    kind: DerivedKind
    of: tuple[str, ...] = attrs.field(converter=_names)
    """Names of the released sums."""
    numbers: tuple[float, ...] = attrs.field(default=(), converter=_floats)
    """Public numbers of the formula."""

    def __attrs_post_init__(self) -> None:
        check_one_of(get_args(DerivedKind), kind=self.kind)
        n_inputs, n_numbers = len(self.of), len(self.numbers)
        n_columns = n_numbers - 3
        fits = {
            "sum": n_inputs >= 1 and n_numbers == n_inputs + 1,
            "ratio": (n_inputs, n_numbers) == (2, 1),
            "std": n_inputs in (2, 3) and n_numbers == 1,
            "covariance": n_inputs in (3, 4) and n_numbers == 2,
            "correlation": n_inputs in (5, 6) and n_numbers == 2,
            "quantile": n_inputs >= 1 and n_numbers == n_inputs + 2,
            "coefficient": n_columns >= 1
            and n_inputs == n_columns + 1 + n_columns * (n_columns + 3) // 2,
        }
        if not fits[self.kind]:
            raise ArgumentError(
                f"of and numbers must be as many as a {self.kind} has, got {n_inputs} and "
                f"{n_numbers}"
            )

    @property
    def is_same(self) -> bool:
        """Whether it is a released sum itself, under another name."""
        return self.kind == "sum" and self.numbers == (0.0, 1.0)

    @property
    def is_smooth(self) -> bool:
        """Whether the formula has derivatives."""
        return self.kind != "quantile"

    def ends(self, parts: Sequence[Feature], n_rows: int | None) -> tuple[float, float] | None:
        """Public range of the statistic, whatever the rows are; None where there is none.

        `parts` are the sums that it is computed from, with their public clip ranges. A ratio has a
        range if it is a mean or a share: a sum over rows of a group, by the number of its rows.
        """
        ranges = [attrs.evolve(part, cell=()).ends for part in parts]
        halves = [(high - low) / 2 for low, high in ranges]
        match self.kind:
            case "quantile":
                return self.numbers[1], self.numbers[-1]
            case "correlation":
                return -1.0, 1.0
            case "std":
                return 0.0, halves[0]
            case "covariance":
                return -halves[0] * halves[1], halves[0] * halves[1]
            case "ratio" if _is_of(*parts):
                low, high = ranges[0]
                return self.numbers[0] + low, self.numbers[0] + high
            case "sum" if n_rows is not None:
                sizes = [1 if part.is_mean else n_rows for part in parts]
                terms = [
                    sorted(factor * size * end for end in part.ends)
                    for factor, size, part in zip(self.numbers[1:], sizes, parts, strict=True)
                ]
                low, high = (sum(ends) for ends in zip(*terms, strict=True))
                return self.numbers[0] + low, self.numbers[0] + high
            case _:
                return None

    def value(self, values: Values, n_rows: int | None = None) -> Values:
        """Compute the statistic from released values, shape (k,) or (k, n)."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.asarray(_FORMULAS[self.kind](self, values, n_rows))

    def denominators(self, values: Values, n_rows: int | None = None) -> dict[str, Values]:
        """What the formula divides by, or takes a root of, by words for it."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            found = {}
            if self.kind == "ratio":
                found[self.of[1]] = values[1]
            if self.kind in _COUNTED and len(self.of) > _COUNTED[self.kind]:
                found[self.of[-1]] = values[-1]
            if self.kind == "std":
                found["the variance"] = _moments(self, values)[0]
            if self.kind == "correlation":
                first, _, second = _moments(self, values)
                found |= {"the first variance": first, "the second variance": second}
            if self.kind == "coefficient":
                found["the spread of the columns"] = _determinant(_gram(self, values, n_rows))
            return found


def std_of(variance: Values) -> Values:
    """The root of a variance, 0 where noise made it negative."""
    return np.asarray(np.sqrt(np.where(np.asarray(variance).real > 0, variance, 0.0)))


def correlation_of(first: Values, both: Values, second: Values) -> Values:
    """A covariance over the root of two variances, 0 where one is not positive."""
    product = np.asarray(first * second)
    positive = (np.asarray(first).real > 0) & (np.asarray(second).real > 0)
    return np.asarray(np.where(positive, both / std_of(np.where(positive, product, 1.0)), 0.0))


def quantile_of(counts: Values, edges: Sequence[float], level: float) -> Values:
    """A quantile of a histogram, shape (n_cells, ...), with linear interpolation in its cell.

    Negative counts, which noise makes, count as 0.

    >>> quantile_of(np.array([1.0, 3.0]), [0, 10, 20], 0.5).item()
    13.333333333333332
    """
    sums = np.cumsum(np.maximum(counts, 0.0), axis=0)
    wanted = level * sums[-1]
    cell = np.minimum((sums < wanted).sum(axis=0), len(sums) - 1)
    below = np.concatenate([np.zeros_like(sums[:1]), sums])
    start = np.take_along_axis(below, cell[None], axis=0)[0]
    within = np.take_along_axis(below, cell[None] + 1, axis=0)[0] - start
    ends = np.asarray(edges)
    share = np.divide(wanted - start, within, out=np.full_like(wanted, 0.5), where=within > 0)
    return np.asarray(ends[cell] + share * (ends[cell + 1] - ends[cell]))


def coefficients_of(gram: Values, products: Values, means: Values, target: Values) -> Values:
    """Coefficients and intercept of a linear regression, from moments with the last axes free."""
    inverse = np.moveaxis(gram, (0, 1), (-2, -1)), np.moveaxis(products, 0, -1)[..., None]
    slopes = np.moveaxis(_solved(*inverse)[..., 0], -1, 0)
    intercept = target - (slopes * means).sum(axis=0)
    return np.concatenate([slopes, intercept[None]])


def _solved(matrices: Values, rights: Values) -> Values:
    try:
        return np.linalg.solve(matrices, rights)
    except np.linalg.LinAlgError:  # exactly singular
        return np.full_like(rights, np.nan)


def _is_of(summed: Feature, counted: Feature) -> bool:
    """Return whether one feature counts rows, and the other sums over some of these."""
    within = set(counted.cell) <= set(summed.cell)
    return within and not counted.factors and summed.is_mean == counted.is_mean


_COUNTED: Final[Mapping[str, int]] = {"std": 2, "covariance": 3, "correlation": 5}
"""Number of moments of each kind, before the count of its group."""


def _moments(derived: Derived, values: Values) -> list[Values]:
    """Variance of x; or covariance; or variance of x, covariance and variance of y."""
    n_moments = _COUNTED[derived.kind]
    means = values[:n_moments]
    if len(derived.of) > n_moments:
        means = means / values[n_moments]
    columns = [m - c for m, c in zip(means, derived.numbers, strict=False)]
    pairs = [(a, b) for i, a in enumerate(columns) for b in columns[i:]]
    if derived.kind == "covariance":
        pairs = [(columns[0], columns[1])]
    return [xy - a * b for xy, (a, b) in zip(means[len(columns) :], pairs, strict=True)]


def _sum(derived: Derived, values: Values, _: int | None) -> Values:
    total = np.tensordot(np.array(derived.numbers[1:]), values, axes=1)
    return np.asarray(derived.numbers[0] + total)


def _ratio(derived: Derived, values: Values, _: int | None) -> Values:
    return np.asarray(derived.numbers[0] + values[0] / values[1])


def _quantile(derived: Derived, values: Values, _: int | None) -> Values:
    return quantile_of(values.real, derived.numbers[1:], derived.numbers[0])


def _centred(derived: Derived, values: Values) -> Values:
    """Means of columns and target less their centers."""
    centers = np.array(derived.numbers[2:])
    return np.asarray(values[: len(centers)] - centers.reshape(-1, *[1] * (values.ndim - 1)))


def _gram(derived: Derived, values: Values, n_rows: int | None) -> Values:
    means = _centred(derived, values)[:-1]
    n_columns = len(means)
    penalty = derived.numbers[1]
    if penalty and n_rows is None:
        raise ArgumentError(
            f"{derived.name} has a regularisation, which needs the public number of rows"
        )
    gram = np.empty((n_columns, n_columns, *values.shape[1:]), dtype=values.dtype)
    rows, columns = np.triu_indices(n_columns)
    start = n_columns + 1
    gram[rows, columns] = gram[columns, rows] = values[start : start + len(rows)]
    gram -= means[:, None] * means[None, :]
    places = np.arange(n_columns)
    gram[places, places] += penalty / (n_rows or 1)
    return gram


def _determinant(gram: Values) -> Values:
    return np.asarray(np.linalg.det(np.moveaxis(gram, (0, 1), (-2, -1))))


def _coefficient(derived: Derived, values: Values, n_rows: int | None) -> Values:
    means, gram = _centred(derived, values), _gram(derived, values, n_rows)
    n_columns = len(gram)
    products = values[-n_columns:] - means[:-1] * means[-1]
    raw = values[: n_columns + 1]
    every = coefficients_of(gram, products, raw[:-1], raw[-1])
    return np.asarray(every[int(derived.numbers[0])])


_FORMULAS: Final[Mapping[str, Callable[[Derived, Values, int | None], Values]]] = {
    "sum": _sum,
    "ratio": _ratio,
    "std": lambda derived, values, _: std_of(_moments(derived, values)[0]),
    "covariance": lambda derived, values, _: _moments(derived, values)[0],
    "correlation": lambda derived, values, _: correlation_of(*_moments(derived, values)),
    "quantile": _quantile,
    "coefficient": _coefficient,
}
