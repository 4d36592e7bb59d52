# SPDX-License-Identifier: Apache-2.0
"""Linear models with the methods of scikit-learn's, which they do not need."""

from abc import abstractmethod
from importlib import import_module
from typing import Any, ClassVar, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import is_a
from pufferslice._core.display import Shown
from pufferslice._core.text import shown
from pufferslice.errors import ArgumentError, MissingExtraError
from pufferslice.queries.moments import Design


@attrs.frozen(kw_only=True, repr=False)
class LinearModel(Shown):
    """A linear function of the columns of a design. Abstract."""

    is_internal: ClassVar[bool] = False

    design: Design
    """Public recipe of the columns."""
    weights: Floats = attrs.field(converter=locked, eq=same)
    """Coefficient of each column, in the user's units, shape (n_columns,)."""
    offset: float
    """Value of a row whose columns are all 0."""

    @property
    def n_features_in_(self) -> int:
        """Number of columns."""
        return len(self.design.columns)

    @property
    def feature_names_in_(self) -> npt.NDArray[np.object_]:
        """Name of each column."""
        return np.array(self.design.names, dtype=object)

    @abstractmethod
    def predict(self, rows: object) -> npt.NDArray[Any]:
        """Predict the target of each row of a table, or of a matrix of the design's columns."""

    @abstractmethod
    def score(self, rows: object, answers: object = None) -> float:
        """Compare predictions with the target of a table, or with `answers`."""

    @abstractmethod
    def to_sklearn(self) -> Any:  # it ships no types
        """Return a fitted scikit-learn pipeline that takes tables (extra `sklearn`)."""

    def linear(self, rows: object) -> Floats:
        """The linear function of each row of a table, or of a matrix of columns."""
        matrix = rows if isinstance(rows, np.ndarray) else self.design.matrix(rows)
        if matrix.ndim != 2 or matrix.shape[1] != len(self.weights):
            raise ArgumentError(
                f"rows must be a table, or a matrix of {len(self.weights)} columns, got an array "
                f"of shape {matrix.shape}"
            )
        return np.asarray(matrix @ self.weights + self.offset)

    def answers(self, rows: object, answers: object) -> Floats:
        """The target of each row as numbers."""
        if answers is not None:
            return np.asarray(answers, dtype=np.float64)
        if is_a(rows, np.ndarray):
            raise ArgumentError("answers must be given where rows are a matrix of columns")
        return self.design.answers(rows)

    def pipeline(self, estimator: Any) -> Any:  # of scikit-learn
        """Put a fitted estimator behind the recipe of the columns."""
        sklearn = scikit_learn()
        estimator.n_features_in_ = self.n_features_in_
        columns = sklearn.preprocessing.FunctionTransformer(self.design.matrix)
        return sklearn.pipeline.Pipeline([("columns", columns), ("model", estimator)])

    def to_json(self) -> dict[str, Any]:
        """Return coefficients and intercept as JSON values."""
        return {
            "target": self.design.target.name,
            "intercept": self.offset,
            "coefficients": {row["column"]: row["coefficient"] for row in self.table_rows()},
        }

    def table_rows(self) -> list[dict[str, Any]]:
        """Return the coefficient of each column."""
        pairs = zip(self.design.names, self.weights.tolist(), strict=True)
        return [{"column": name, "coefficient": weight} for name, weight in pairs]

    def sentences(self) -> list[str]:
        """Say what the model is of."""
        target = shown(self.design.target.name)
        return [f"{type(self).__name__} of {target}, a function of released moments alone."]

    def __str__(self) -> str:
        names = [shown(name) for name in self.design.names]
        width = max(map(len, [*names, "intercept"]))
        rows = [*zip(names, self.weights, strict=True), ("intercept", self.offset)]
        lines = [f"  {name:<{width}}  {weight:>+10.4g}" for name, weight in rows]
        return "\n".join([*self.sentences(), *lines])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_columns={len(self.weights)})"


@final
@attrs.frozen(kw_only=True, repr=False)
class LinearRegressor(LinearModel):
    """A linear prediction of a number."""

    @property
    def coef_(self) -> Floats:
        """Coefficient of each column, shape (n_columns,)."""
        return self.weights

    @property
    def intercept_(self) -> float:
        """Prediction for a row whose columns are all 0."""
        return self.offset

    def predict(self, rows: object) -> Floats:
        """Predict the number of each row of a table, or of a matrix of the design's columns."""
        return self.linear(rows)

    def score(self, rows: object, answers: object = None) -> float:
        """Share of the variance of the target that the predictions explain."""
        wanted = self.answers(rows, answers)
        rest = float(((wanted - self.predict(rows)) ** 2).sum())
        return 1 - rest / float(((wanted - wanted.mean()) ** 2).sum())

    def to_sklearn(self) -> Any:  # it ships no types
        """Return a fitted scikit-learn pipeline that takes tables (extra `sklearn`)."""
        estimator = scikit_learn().linear_model.Ridge()
        estimator.coef_, estimator.intercept_ = np.array(self.coef_), self.intercept_
        return self.pipeline(estimator)


@final
@attrs.frozen(kw_only=True, repr=False)
class LinearClassifier(LinearModel):
    """A linear prediction of whether a row meets the condition of the target."""

    estimator: str
    """Class of scikit-learn that decides alike."""

    @property
    def classes_(self) -> npt.NDArray[np.bool_]:
        """The classes: rows that do not meet the condition, and rows that do."""
        return np.array([False, True])

    @property
    def coef_(self) -> Floats:
        """Coefficient of each column, shape (1, n_columns)."""
        return np.asarray(self.weights[None])

    @property
    def intercept_(self) -> Floats:
        """Decision for a row whose columns are all 0, shape (1,)."""
        return np.array([self.offset])

    def decision_function(self, rows: object) -> Floats:
        """A number for each row, above 0 where the condition is predicted to be met."""
        return self.linear(rows)

    def predict(self, rows: object) -> npt.NDArray[np.bool_]:
        """Predict whether each row of a table, or of a matrix of columns, meets the condition."""
        return np.asarray(self.linear(rows) > 0)

    def score(self, rows: object, answers: object = None) -> float:
        """Share of rows that are predicted right."""
        return float((self.predict(rows) == (self.answers(rows, answers) > 0)).mean())

    def to_sklearn(self) -> Any:  # it ships no types
        """Return a fitted scikit-learn pipeline that takes tables (extra `sklearn`)."""
        sklearn = scikit_learn()
        home = "discriminant_analysis" if self.estimator.endswith("Analysis") else "linear_model"
        estimator = getattr(getattr(sklearn, home), self.estimator)()
        estimator.coef_, estimator.intercept_ = np.array(self.coef_), self.intercept_
        estimator.classes_ = self.classes_
        return self.pipeline(estimator)


def scikit_learn() -> Any:  # it ships no types
    """Import the parts of scikit-learn that a fitted pipeline needs."""
    try:
        for part in ("discriminant_analysis", "linear_model", "pipeline", "preprocessing"):
            import_module(f"sklearn.{part}")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "to_sklearn needs scikit-learn; install it with: pip install 'pufferslice[sklearn]'"
        ) from error
    return import_module("sklearn")
