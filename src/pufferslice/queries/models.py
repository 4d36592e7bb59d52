# SPDX-License-Identifier: Apache-2.0
"""Parameters of scikit-learn classifiers fitted on the rows (extra `sklearn`, loaded when asked).

Every fit is deterministic and does not depend on the order of the rows: the same rows and public
arguments give the same parameters, to the last bit on one machine.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, locked
from pufferslice._core.checks import check_above, check_count
from pufferslice._core.text import given, quoted
from pufferslice.data.frames import Frame, floats_of
from pufferslice.errors import ArgumentError, MissingExtraError, ScenarioError
from pufferslice.queries.conditions import Condition, ConditionLike, condition_of
from pufferslice.queries.query import Coordinate, Evaluate, Query, Rows, column_names, recorded

FeatureScales: TypeAlias = Sequence[float] | Mapping[str, float] | None
"""Public divisors of the features, in their order or by name; those not named are 1."""

_Fit: TypeAlias = Callable[[Floats, npt.NDArray[np.bool_]], Floats]

_TOLERANCE = 1e-8
_MAX_ITERATIONS = 10_000
_LARGEST_SEED = 2**32 - 1


@recorded
def logistic_regression(
    *,
    features: Sequence[str],
    target: str,
    positive: ConditionLike,
    feature_scales: FeatureScales = None,
    regularisation: float = 1.0,
) -> Query:
    """Coefficients and intercept of a logistic regression fitted on the rows.

    Minimises the summed log loss plus `regularisation`/2 times the squared norm of the
    coefficients (not the intercept). A row counts as positive if its `target` meets the condition
    `positive`; a plain value means `equals`.

    >>> import pyarrow as pa
    >>> query = logistic_regression(features=["age"], target="income", positive=">50K")
    >>> query.names
    ('coefficient(age)', 'intercept')
    >>> query.outputs(pa.table({"age": [1, 2, 3], "income": ["<=50K", "<=50K", ">50K"]}))
    array([[ 0.7, -2.2]])
    """
    task = _Task.of(features, target, positive, feature_scales)
    # A second-order solver: badly scaled features still converge in a few steps.
    return task.linear_query(
        "logistic_regression",
        regularisation,
        _sklearn().linear_model.LogisticRegression(
            solver="newton-cholesky", tol=_TOLERANCE, max_iter=_MAX_ITERATIONS
        ),
    )


@recorded
def linear_svm(
    *,
    features: Sequence[str],
    target: str,
    positive: ConditionLike,
    feature_scales: FeatureScales = None,
    regularisation: float = 1.0,
) -> Query:
    """Coefficients and intercept of a linear support vector machine fitted on the rows.

    Minimises the summed squared hinge loss plus `regularisation`/2 times the squared norm of
    coefficients and intercept together (as liblinear does). See `logistic_regression` for the
    arguments.
    """
    task = _Task.of(features, target, positive, feature_scales)
    # The primal solver draws no random numbers.
    model = _sklearn().svm.LinearSVC(dual=False, tol=_TOLERANCE, max_iter=_MAX_ITERATIONS)
    return task.linear_query("linear_svm", regularisation, model)


@recorded
def forest_importances(
    *, features: Sequence[str], target: str, positive: ConditionLike, n_trees: int, seed: int
) -> Query:
    """Feature importances (mean decrease of the Gini impurity) of a random forest on the rows.

    `seed` is public: with it the forest is a fixed function of the rows. Importances are not
    negative and sum to 1, or are all 0 if no tree could split.
    """
    task = _Task.of(features, target, positive, None)
    model = _sklearn().ensemble.RandomForestClassifier
    return task.importances("forest_importances", model, n_trees, seed, {})


@recorded
def boosting_importances(
    *,
    features: Sequence[str],
    target: str,
    positive: ConditionLike,
    n_trees: int,
    seed: int,
    depth: int = 3,
    learning_rate: float = 0.1,
) -> Query:
    """Feature importances (mean decrease of the squared error) of gradient boosting on the rows.

    `n_trees` trees of `depth` levels, each fitted to what the ones before it leave, weighted by
    `learning_rate`. See `forest_importances` for the rest.
    """
    task = _Task.of(features, target, positive, None)
    check_count(1, depth=depth)
    check_above(0, learning_rate=learning_rate)
    options = {"max_depth": int(depth), "learning_rate": float(learning_rate)}
    model = _sklearn().ensemble.GradientBoostingClassifier
    return task.importances("boosting_importances", model, n_trees, seed, options)


def _sklearn() -> Any:  # it ships no types
    try:
        for part in ("base", "ensemble", "exceptions", "linear_model", "svm"):
            import_module(f"sklearn.{part}")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "model queries need scikit-learn; install it with: pip install 'pufferslice[sklearn]'"
        ) from error
    return import_module("sklearn")


@attrs.frozen
class _Task:
    """Target and features of a prediction."""

    features: tuple[str, ...]
    target: str
    positive: Condition
    feature_scales: Floats

    @classmethod
    def of(
        cls, features: Sequence[str], target: str, positive: ConditionLike, scales: FeatureScales
    ) -> "_Task":
        names = column_names("features", features)
        if not names or target in names:
            raise ArgumentError(
                f"features must be at least one column and not the target, got {given(names)}"
            )
        return cls(names, target, condition_of(positive), _scales_of(names, scales))

    def linear_query(
        self, kind: str, regularisation: float, model: Any
    ) -> Query:  # of scikit-learn
        """Coefficients and intercept of a linear model."""
        check_above(0, regularisation=regularisation)

        def fit(matrix: Floats, classes: npt.NDArray[np.bool_]) -> Floats:
            fitted = (
                _sklearn().base.clone(model).set_params(C=1 / regularisation).fit(matrix, classes)
            )
            return np.append(fitted.coef_[0], fitted.intercept_)

        names = (*(f"coefficient({feature})" for feature in self.features), "intercept")
        return self.query(kind, names, {"regularisation": float(regularisation)}, fit)

    def importances(
        self,
        kind: str,
        model: Any,  # of scikit-learn
        n_trees: int,
        seed: int,
        options: dict[str, Any],
    ) -> Query:
        """Importances of the features in trees; the seed makes them a function of the rows."""
        check_count(1, n_trees=n_trees)
        check_count(0, seed=seed)
        if seed > _LARGEST_SEED:
            raise ArgumentError(f"seed must be at most {_LARGEST_SEED}, got {seed}")

        def fit(matrix: Floats, classes: npt.NDArray[np.bool_]) -> Floats:
            trees = model(n_estimators=int(n_trees), random_state=int(seed), **options)
            return np.array(trees.fit(matrix, classes).feature_importances_)

        parameters = {"n_trees": int(n_trees), "seed": int(seed), **options}
        names = tuple(f"importance({feature})" for feature in self.features)
        return self.query(kind, names, parameters, fit)

    def query(
        self, kind: str, names: tuple[str, ...], parameters: dict[str, Any], fit: _Fit
    ) -> Query:
        low, high = (0.0, 1.0) if kind.endswith("_importances") else (-math.inf, math.inf)
        return Query(
            names=names,
            columns=(*self.features, self.target),
            level="table",
            kind=kind,
            parameters={
                "features": self.features,
                "target": self.target,
                "positive": self.positive.description(),
                "feature_scales": self.feature_scales.tolist(),
                **parameters,
            },
            bind=lambda frame: self._bind(frame, fit),
            coordinates=(
                *(Coordinate(column=feature, low=low, high=high) for feature in self.features),
                *(Coordinate() for _ in names[len(self.features) :]),
            ),
        )

    def _bind(self, frame: Frame, fit: _Fit) -> Evaluate:
        matrix = np.column_stack([floats_of(frame, name) for name in self.features])
        with np.errstate(over="ignore"):
            matrix = matrix / self.feature_scales
        if not np.isfinite(matrix).all():
            raise ScenarioError(
                "features divided by feature_scales must be finite; choose larger feature_scales"
            )
        classes = self.positive.flags(frame, self.target)

        def evaluate(rows: Rows) -> Floats:
            rows_of_each = np.bincount(classes[rows], minlength=2)
            if not rows_of_each.all():
                raise ScenarioError(
                    f"a classifier needs rows of both classes; all {len(rows)} rows are on one "
                    f"side of the condition {quoted(self.positive.on(self.target))}. Choose a "
                    "condition that splits every group, or join small groups"
                )
            ordered = rows[np.lexsort((classes[rows], *matrix[rows].T))]
            return _converged(fit, matrix[ordered], classes[ordered])

        return evaluate


def _scales_of(names: tuple[str, ...], scales: FeatureScales) -> Floats:
    if isinstance(scales, Mapping):
        unknown = [name for name in scales if name not in names]
        if unknown:
            raise ArgumentError(
                f"feature_scales names {given(unknown[0])}, which is not among the features"
            )
        scales = [scales.get(name, 1.0) for name in names]
    values = locked([1.0] * len(names) if scales is None else scales)
    if values.shape != (len(names),) or not (np.isfinite(values) & (values > 0)).all():
        raise ArgumentError(
            f"feature_scales must be {len(names)} finite numbers greater than 0, one per feature; "
            f"got {given(values.tolist())}"
        )
    return values


def _converged(fit: _Fit, matrix: Floats, classes: npt.NDArray[np.bool_]) -> Floats:
    """Fit a model; refuse it if the solver warns that it stopped short."""
    stopped_short = _sklearn().exceptions.ConvergenceWarning
    with warnings.catch_warnings():
        warnings.simplefilter("error", stopped_short)
        warnings.simplefilter("error", RuntimeWarning)
        try:
            return fit(matrix, classes)
        except (stopped_short, RuntimeWarning) as warning:
            kind = type(warning).__name__
            raise ScenarioError(
                f"the model does not converge on {len(classes)} rows ({kind}). Give the features "
                "public feature_scales so that they have similar sizes, or raise regularisation"
            ) from None
