# SPDX-License-Identifier: Apache-2.0
"""Linear regression and autocorrelation, against scikit-learn and the definition."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import LinearRegression, Ridge

from pufferslice.errors import ScenarioError
from pufferslice.queries import autocorrelation, linear_regression

RNG = np.random.default_rng(4)
N = 120
X = np.column_stack([RNG.normal(1000, 3, N), RNG.normal(0, 1, N)])
Y = np.column_stack([X @ [0.5, -2.0] + RNG.normal(0, 1, N), X @ [0.0, 1.0] + 7])
DATA = {"a": X[:, 0], "b": X[:, 1], "u": Y[:, 0], "v": Y[:, 1]}
TASK = {"features": ["a", "b"], "targets": ["u", "v"]}


@pytest.mark.parametrize("regularisation", [0.0, 30.0])
def test_agrees_with_scikit_learn(regularisation):
    query = linear_regression(**TASK, regularisation=regularisation)
    assert query.names == (
        "coefficient(a -> u)",
        "coefficient(b -> u)",
        "intercept(u)",
        "coefficient(a -> v)",
        "coefficient(b -> v)",
        "intercept(v)",
    )
    model = Ridge(regularisation) if regularisation else LinearRegression()
    model.fit(X, Y)
    expected = np.column_stack([model.coef_, model.intercept_]).reshape(-1)
    np.testing.assert_allclose(query.outputs(pa.table(DATA))[0], expected, rtol=1e-8, atol=1e-8)


def test_features_that_depend_on_each_other():
    twice = pa.table(DATA | {"b": 2 * X[:, 0], "ill": ["yes", "no"] * (N // 2)})
    query = linear_regression(features=["a", "b"], targets=["u"])
    slope = np.polyfit(X[:, 0], Y[:, 0], 1)[0]
    # The shortest of all (x, y) with x + 2 y = slope.
    np.testing.assert_allclose(query.outputs(twice)[0, :2], [slope / 5, 2 * slope / 5], rtol=1e-8)
    with pytest.raises(ScenarioError, match="depend linearly"):
        query.scaled_from(twice)


class TestAutocorrelation:
    def test_definition(self):
        x = RNG.normal(size=50).cumsum()
        places = RNG.permutation(50)
        table = pa.table({"t": places.astype("datetime64[D]"), "x": x[places]})
        query = autocorrelation("x", time="t", lags=[1, 7, 60])
        apart = x - x.mean()
        expected = [sum(apart[:-k] * apart[k:]) / sum(apart**2) for k in (1, 7)]
        np.testing.assert_allclose(query.outputs(table)[0], [*expected, 0.0], rtol=1e-12)
        assert (query.outputs(pa.table({"t": [1, 2], "x": [3.0, 3.0]})) == 0).all()
