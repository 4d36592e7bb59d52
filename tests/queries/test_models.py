# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import optimize

from pufferslice.errors import ScenarioError
from pufferslice.queries import (
    above,
    boosting_importances,
    forest_importances,
    linear_svm,
    logistic_regression,
)

RNG = np.random.default_rng(5)
N = 240
X = np.column_stack([RNG.normal(40, 10, N), RNG.normal(0, 1, N), RNG.integers(0, 5, N)])
Y = X[:, 0] / 10 + X[:, 1] + RNG.normal(0, 1, N) > 4
DATA = {"age": X[:, 0], "z": X[:, 1], "k": X[:, 2], "income": np.where(Y, ">50K", "<=50K")}
FEATURES = ["age", "z", "k"]
TASK = {"features": FEATURES, "target": "income", "positive": ">50K"}
SCALES = np.array([10.0, 1.0, 2.0])
LINEAR = [logistic_regression, linear_svm]
ALL = [
    logistic_regression(**TASK),
    linear_svm(**TASK),
    forest_importances(**TASK, n_trees=10, seed=3),
    boosting_importances(**TASK, n_trees=10, seed=3, depth=2, learning_rate=0.5),
]


def log_loss(weights, regularisation, matrix):
    margins = (2 * Y - 1) * (matrix @ weights[:-1] + weights[-1])
    return np.logaddexp(0, -margins).sum() + regularisation / 2 * weights[:-1] @ weights[:-1]


def squared_hinge(weights, regularisation, matrix):
    margins = (2 * Y - 1) * (matrix @ weights[:-1] + weights[-1])
    return (np.maximum(0, 1 - margins) ** 2).sum() + regularisation / 2 * weights @ weights


@pytest.mark.parametrize(
    ("build", "objective"), [(logistic_regression, log_loss), (linear_svm, squared_hinge)]
)
@pytest.mark.parametrize("regularisation", [0.1, 30.0])
def test_the_stated_objective_is_minimised(build, objective, regularisation):
    query = build(**TASK, feature_scales=SCALES, regularisation=regularisation)
    weights = query.outputs(pa.table(DATA))[0]
    best = optimize.minimize(
        objective, np.zeros(4), args=(regularisation, X / SCALES), method="BFGS", tol=1e-9
    )
    np.testing.assert_allclose(weights, best.x, atol=2e-4)
    assert objective(weights, regularisation, X / SCALES) <= best.fun + 1e-9


@pytest.mark.parametrize("query", ALL, ids=lambda query: query.kind)
class TestEveryModel:
    def test_every_library_gives_the_same_bits(self, query):
        records = np.rec.fromarrays(list(DATA.values()), names=list(DATA))
        expected = query.outputs(pa.table(DATA))
        for table in (pd.DataFrame(DATA), pl.DataFrame(DATA), records):
            np.testing.assert_array_equal(query.outputs(table), expected)

    def test_neither_the_order_of_rows_nor_another_run_changes_a_bit(self, query):
        bound = query.bound(pa.table(DATA))
        rows = np.arange(N)
        first = bound(rows)
        np.testing.assert_array_equal(bound(rows), first)
        np.testing.assert_array_equal(bound(RNG.permutation(rows)), first)
        assert not np.array_equal(bound(rows[: N // 2]), first)

    def test_one_class_only_has_a_way_out(self, query):
        bound = query.bound(pa.table(DATA))
        for side in (Y, ~Y):
            rows = np.flatnonzero(side)
            with pytest.raises(ScenarioError) as caught:
                bound(rows)
            assert "'income = >50K'" in str(caught.value)


def test_names_and_parameters():
    linear = ("coefficient(age)", "coefficient(z)", "coefficient(k)", "intercept")
    assert ALL[0].names == ALL[1].names == linear
    assert ALL[2].names == ("importance(age)", "importance(z)", "importance(k)")
    assert [query.kind for query in ALL] == [
        "logistic_regression",
        "linear_svm",
        "forest_importances",
        "boosting_importances",
    ]
    query = linear_svm(**TASK, feature_scales={"age": 10}, regularisation=3)
    assert query.parameters["feature_scales"] == [10.0, 1.0, 1.0]
    assert query.parameters["regularisation"] == 3.0
    assert ALL[2].parameters["n_trees"] == 10
    assert ALL[2].parameters["seed"] == 3


def test_the_target_may_be_a_numeric_condition():
    data = {**DATA, "pay": X[:, 1] * 2}
    task = {"features": ["age", "k"], "target": "pay", "regularisation": 1.0}
    query = logistic_regression(**task, positive=above(0))
    flags = np.where(X[:, 1] > 0, "yes", "no")
    same = logistic_regression(**{**task, "target": "flag"}, positive="yes")
    np.testing.assert_array_equal(
        query.outputs(pa.table(data)), same.outputs(pa.table({**data, "flag": flags}))
    )


def test_a_fit_that_does_not_converge_is_refused():
    # Two copies of a feature and next to no regularisation: the Hessian is singular.
    data = {**DATA, "z": X[:, 0]}
    query = logistic_regression(**TASK, regularisation=1e-200)
    with warnings.catch_warnings():
        # A user who silences warnings must still be refused.
        warnings.simplefilter("ignore")
        with pytest.raises(ScenarioError, match=f"does not converge on {N} rows.*feature_scales"):
            query.outputs(pa.table(data))


def test_features_that_overflow_their_scales():
    query = logistic_regression(**TASK, feature_scales=[1e-308, 1, 1])
    with pytest.raises(ScenarioError, match="choose larger feature_scales"):
        query.bound(pa.table({**DATA, "age": X[:, 0] * 1e10}))


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_scikit_learn_is_loaded_on_first_use_only():
    done = run(
        "import sys, pufferslice.queries as q; assert 'sklearn' not in sys.modules; "
        "q.linear_svm(features=['a'], target='b', positive='c'); assert 'sklearn' in sys.modules"
    )
    assert done.returncode == 0, done.stderr


def test_without_scikit_learn_the_extra_is_named():
    done = run(
        "import sys; sys.modules['sklearn'] = None\n"
        "import pufferslice.queries as q\n"
        "q.summary(mean=['a'])\n"
        "q.logistic_regression(features=['a'], target='b', positive='c')"
    )
    assert done.returncode == 1
    assert "MissingExtraError" in done.stderr
    assert "pip install 'pufferslice[sklearn]'" in done.stderr
