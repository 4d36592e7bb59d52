# SPDX-License-Identifier: Apache-2.0
"""Models of a release of second moments. Source: docs/models.md.

All of them solve S b = s, with S the covariance of the columns and s that with the target, after
projection on the positive semidefinite matrices. What they are fitted to is released already: none
of them takes rows, and none costs anything.
"""

import math
from collections.abc import Iterator

import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_at_least
from pufferslice.certificate import Certificate
from pufferslice.errors import ArgumentError
from pufferslice.models.linear import LinearClassifier, LinearModel, LinearRegressor
from pufferslice.models.moments import Moments
from pufferslice.releases import Release

_SINGULAR = 1e-12
"""Share of the largest eigenvalue below which one counts as 0, even without noise."""
_MOST_EXPLAINED = 0.99
"""Most that the columns may explain of a class, by a discriminant of noisy moments."""


def ridge(
    release: Release, *, certificate: Certificate | None = None, penalty: float | None = None
) -> LinearModel:
    r"""Ridge regression of the target on the columns; of a condition, a classifier.

    $$b = (S + R)^{-1} s, \qquad R = D\, (E N^2)^{1/2} D$$

    R is the root mean square of the noise on S in units of the columns' standard deviations D,
    which the release states: directions that the noise hides are shrunk, others are not.
    `penalty` is a plain one in its place: scikit-learn's `alpha`, with R the unit matrix times
    alpha over the number of rows. `certificate`: that of the release, needed above 100 moments.
    """
    moments = Moments.of(release, certificate)
    return _linear(moments, ridge_coefficients(moments, penalty), "Perceptron")


def least_squares(release: Release, *, certificate: Certificate | None = None) -> LinearModel:
    """Least squares without a penalty; of a condition, a classifier by the nearer of 0 and 1.

    Combinations of columns whose variance is below its noise are left out; of equally good
    solutions it is the shortest in units of the columns' standard deviations.
    """
    moments = Moments.of(release, certificate)
    return _linear(moments, shortest_coefficients(moments), "Perceptron")


def lda(
    release: Release, *, certificate: Certificate | None = None, penalty: float | None = None
) -> LinearClassifier:
    """Linear discriminant analysis: normal classes with one covariance; `penalty` as for `ridge`.

    Its direction is that of `ridge`; size and intercept follow from the classes' means and shares.
    """
    moments = _of_class(Moments.of(release, certificate), "lda")
    return discriminant(moments, ridge_coefficients(moments, penalty))


def naive_bayes(
    release: Release, *, certificate: Certificate | None = None, smoothing: float = 1.0
) -> LinearClassifier:
    """Naive Bayes: levels of a column by their shares in each class, numbers by normal laws.

    Both classes have the same variance of a number, so that the log odds are linear. `smoothing`
    rows are added to every level in each class, and as many as the noise's standard deviation is.
    """
    check_at_least(0, smoothing=smoothing)
    return independent_columns(
        _of_class(Moments.of(release, certificate), "naive_bayes"), smoothing
    )


def ridge_coefficients(moments: Moments, penalty: float | None) -> Floats:
    """Solve with a penalty; where the matrix is singular, the shortest solution."""
    scales = moments.scales[: moments.n_columns]
    if penalty is None:
        values, axes = np.linalg.eigh(moments.mean_square_noise())
        added = (axes * np.sqrt(np.maximum(values, 0.0))) @ axes.T
    else:
        check_at_least(0, penalty=penalty)
        added = np.diag(penalty / moments.n_rows / scales**2)
    return _shortest(*_scaled(moments, added), 0.0) / scales


def shortest_coefficients(moments: Moments) -> Floats:
    """Solve without a penalty, along directions with a variance above its noise."""
    scales = moments.scales[: moments.n_columns]
    matrix, target = _scaled(moments, 0.0)
    _, axes = np.linalg.eigh(matrix)
    least = np.array([moments.noise_along(axis / scales) for axis in axes.T])
    return _shortest(matrix, target, least) / scales


def discriminant(moments: Moments, coefficients: Floats) -> LinearClassifier:
    r"""Fisher's discriminant from coefficients of a regression on the class.

    With $W = S - \pi_0 \pi_1 \Delta \Delta^\top$ and $S b = \pi_0 \pi_1 \Delta$ follows
    $W^{-1} \Delta = b / (\pi_0 \pi_1 (1 - \Delta^\top b))$.
    """
    share, between = _share(moments), moments.covariance[-1, :-1]
    spread = share * (1 - share)
    shift = between / spread
    explained = min(max(float(shift @ coefficients), 0.0), _MOST_EXPLAINED)
    if moments.is_exact:
        explained = float(shift @ coefficients)
    direction = coefficients / (spread * (1 - explained))
    middle = moments.means[:-1] + (0.5 - share) * shift
    offset = math.log(share / (1 - share)) - float(middle @ direction)
    return _classifier(moments, direction, offset, "LinearDiscriminantAnalysis")


def independent_columns(moments: Moments, smoothing: float) -> LinearClassifier:
    """Naive Bayes from the shares of levels, and the means of numbers, in each class."""
    share, d = _share(moments), moments.n_columns
    shares, coefficients, offset = np.array([1 - share, share]), np.zeros(d), 0.0
    offset = math.log(share / (1 - share))
    for group in _exclusive(moments):
        logs = _log_shares(moments, group, smoothing)
        coefficients[group] = (logs[1] - logs[0])[:-1] - (logs[1] - logs[0])[-1]
        offset += float((logs[1] - logs[0])[-1])
    for place in (p for p, column in enumerate(moments.design.columns) if column.factors):
        between = moments.covariance[-1, place]
        shift = between / (share * (1 - share))
        variance = moments.covariance[place, place] - between * shift
        least = moments.noise_along(np.eye(d)[place]) + _SINGULAR * moments.scales[place] ** 2
        coefficients[place] = shift / max(variance, least)
        middle = moments.means[place] + (0.5 - shares[1]) * shift
        offset -= float(middle * coefficients[place])
    return _classifier(moments, coefficients, offset, "LogisticRegression")


def _scaled(moments: Moments, added: Floats | float) -> tuple[Floats, Floats]:
    """The equations for columns of unit variance."""
    d, scales = moments.n_columns, moments.scales
    scaled = moments.covariance / np.outer(scales, scales)
    return scaled[:d, :d] + added, scaled[:d, d] * scales[d]


def _shortest(matrix: Floats, target: Floats, least: Floats | float) -> Floats:
    """The shortest solution along eigenvectors whose eigenvalue is above the least one."""
    values, axes = np.linalg.eigh(matrix)
    kept = values > np.maximum(least, _SINGULAR * float(np.abs(values).max(initial=0.0)))
    inverse = np.where(kept, 1 / np.where(kept, values, 1.0), 0.0)
    return np.asarray((axes * inverse) @ (axes.T @ target))


def _share(moments: Moments) -> float:
    """Share of rows that meet the condition, inside the open interval from 0 to 1."""
    place = moments.n_columns
    least = max(float(np.sqrt(moments.noise[place, place])), 0.5 / moments.n_rows)
    return min(max(float(moments.means[-1]), min(least, 0.5)), max(1 - least, 0.5))


def _exclusive(moments: Moments) -> Iterator[list[int]]:
    """Levels of one column that exclude each other; others are columns by themselves."""
    for group in moments.design.groups:
        chosen = list(group)
        apart = moments.places[np.ix_(chosen, chosen)] < 0
        if apart.sum() == len(chosen) * (len(chosen) - 1):
            yield chosen
        else:
            yield from ([place] for place in chosen)


def _log_shares(moments: Moments, group: list[int], smoothing: float) -> Floats:
    """Log shares of levels, and of rows with none of them, in each class: (2, n_levels + 1)."""
    target, n_moments = moments.n_columns, len(moments.values)
    unit = np.eye(n_moments)
    both = np.array([unit[moments.places[place, target]] for place in group])
    either = unit[group]
    slopes = np.stack([either - both, both])
    constant = np.stack([-unit[target], unit[target]])
    rest = constant[:, None] - slopes.sum(axis=1, keepdims=True)
    slopes = np.concatenate([slopes, rest], axis=1)
    shares = slopes @ moments.values
    shares[0, -1] += 1.0
    stds = np.array([[moments.noise_of(each) for each in rows] for rows in slopes])
    added = smoothing / moments.n_rows
    if not smoothing and moments.is_exact:
        added = 0.5 / moments.n_rows
    raised = np.maximum(shares, 0.0) + stds + added
    return np.asarray(np.log(raised / raised.sum(axis=1, keepdims=True)))


def _of_class(moments: Moments, name: str) -> Moments:
    if not moments.design.is_class:
        raise ArgumentError(
            f"target of the release must be a condition for {name}, as {{'income': '>50K'}}; for "
            "numbers use ridge or least_squares"
        )
    return moments


def _linear(moments: Moments, coefficients: Floats, estimator: str) -> LinearModel:
    offset = float(moments.means[-1] - moments.means[:-1] @ coefficients)
    if moments.design.is_class:
        # As for classes of -1 and 1.
        return _classifier(moments, 2 * coefficients, 2 * offset - 1, estimator)
    centers = moments.design.centers
    return LinearRegressor(
        design=moments.design,
        weights=coefficients,
        offset=offset + float(centers[-1] - centers[:-1] @ coefficients),
    )


def _classifier(
    moments: Moments, coefficients: Floats, offset: float, estimator: str
) -> LinearClassifier:
    shift = float(moments.design.centers[:-1] @ coefficients)
    return LinearClassifier(
        design=moments.design, weights=coefficients, offset=offset - shift, estimator=estimator
    )
