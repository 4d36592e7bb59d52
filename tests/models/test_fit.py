# SPDX-License-Identifier: Apache-2.0
"""Models of released moments: known answers without noise, and what noise does to them."""

import inspect
import math

import numpy as np
import pyarrow as pa
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier
from sklearn.naive_bayes import CategoricalNB

from pufferslice import models
from pufferslice.models import fit
from pufferslice.models.moments import Moments
from pufferslice.queries import above, second_moments
from pufferslice.queries.moments import Design

RNG = np.random.default_rng(38)
N = 700
AGE = RNG.integers(17, 91, N)
KIND = RNG.choice(["a", "b", "c", "d"], N, p=[0.4, 0.3, 0.2, 0.1])
TOWN = RNG.choice(["x", "y"], N)
HOURS = np.clip(40 + 0.2 * AGE + 12 * RNG.normal(size=N), 0, 99)
SCORE = 0.03 * AGE + 0.02 * HOURS + (KIND == "a") - 0.5 * (TOWN == "x") + RNG.normal(size=N)
TABLE = pa.table(
    {
        "age": AGE,
        "hours": HOURS,
        "kind": KIND,
        "town": TOWN,
        "score": np.clip(SCORE, -4, 9),
        "rich": np.where(SCORE > 2.6, "yes", "no"),
    }
)
RECIPE = {
    "numbers": ["age", "hours"],
    "levels": {"kind": ["a", "b"], "town": ["x"]},
    "clip": {"age": (17, 90), "hours": (0, 99), "score": (-4, 9)},
}
CLIP = {name: RECIPE["clip"][name] for name in ("age", "hours")}
CLASS = second_moments(target={"rich": "yes"}, **(RECIPE | {"clip": CLIP}))
NUMBER = second_moments(target="score", **RECIPE)
LEVELS = second_moments(target={"rich": "yes"}, levels={"kind": ["a", "b", "c"], "town": ["x"]})


def moments_of(query, noise=None, values=None):
    """The moments of the table, as if released with noise of this covariance."""
    exact = query.outputs(TABLE)[0]
    return Moments.named(
        Design.read(query.parameters),
        names=query.names,
        values=exact if values is None else values,
        noise=np.zeros((query.dim, query.dim)) if noise is None else noise,
        n_rows=N,
    )


def rows_of(query):
    design = Design.read(query.parameters)
    return design.matrix(TABLE), design.answers(TABLE)


class TestWithoutNoise:
    def test_least_squares_of_a_number(self):
        columns, answers = rows_of(NUMBER)
        moments = moments_of(NUMBER)
        model = fit._linear(moments, fit.shortest_coefficients(moments), "Perceptron")
        expected = LinearRegression().fit(columns, answers)
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-8, atol=1e-10)
        assert model.intercept_ == pytest.approx(expected.intercept_, rel=1e-8)
        assert model.score(TABLE) == pytest.approx(expected.score(columns, answers), rel=1e-8)
        np.testing.assert_allclose(model.to_sklearn().predict(TABLE), model.predict(columns))

    @pytest.mark.parametrize("penalty", [0.5, 300.0])
    def test_ridge_of_a_number(self, penalty):
        columns, answers = rows_of(NUMBER)
        moments = moments_of(NUMBER)
        model = fit._linear(moments, fit.ridge_coefficients(moments, penalty), "Perceptron")
        expected = Ridge(alpha=penalty).fit(columns, answers)
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-8, atol=1e-10)
        assert model.intercept_ == pytest.approx(expected.intercept_, rel=1e-8)

    def test_ridge_of_a_class(self):
        columns, answers = rows_of(CLASS)
        moments = moments_of(CLASS)
        model = fit._linear(moments, fit.ridge_coefficients(moments, 20.0), "Perceptron")
        expected = RidgeClassifier(alpha=20.0).fit(columns, answers > 0)
        np.testing.assert_allclose(model.coef_[0], np.ravel(expected.coef_), rtol=1e-8)
        np.testing.assert_allclose(model.intercept_, expected.intercept_, rtol=1e-8)
        assert model.score(TABLE) == expected.score(columns, answers > 0)
        assert (model.to_sklearn().predict(TABLE) == model.predict(TABLE)).all()

    def test_linear_discriminant(self):
        columns, answers = rows_of(CLASS)
        moments = moments_of(CLASS)
        model = fit.discriminant(moments, fit.ridge_coefficients(moments, None))
        expected = LinearDiscriminantAnalysis().fit(columns, answers > 0)
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(model.intercept_, expected.intercept_, rtol=1e-7)
        np.testing.assert_allclose(
            model.to_sklearn().predict_proba(TABLE), expected.predict_proba(columns), rtol=1e-6
        )

    def test_naive_bayes_of_levels(self):
        codes = np.column_stack([np.unique(KIND, return_inverse=True)[1], TOWN == "x"])
        answers = rows_of(LEVELS)[1] > 0
        model = fit.independent_columns(moments_of(LEVELS), 1.0)
        odds = CategoricalNB(alpha=1.0).fit(codes, answers).predict_log_proba(codes)
        np.testing.assert_allclose(model.decision_function(TABLE), odds[:, 1] - odds[:, 0])
        # Smoothing of the classes' shares, which scikit-learn does not do either.
        assert model.to_sklearn().score(TABLE, answers) == model.score(TABLE)

    def test_naive_bayes_of_numbers(self):
        query = second_moments(target={"rich": "yes"}, numbers=["age"], clip={"age": (17, 90)})
        model = fit.independent_columns(moments_of(query), 1.0)
        rich = rows_of(query)[1] > 0
        means = [AGE[~rich].mean(), AGE[rich].mean()]
        variance = (
            sum(
                ((AGE[is_in] - m) ** 2).sum() for is_in, m in zip([~rich, rich], means, strict=True)
            )
            / N
        )
        odds = (-((AGE - means[1]) ** 2) + (AGE - means[0]) ** 2) / (2 * variance)
        odds += math.log(rich.mean() / (1 - rich.mean()))
        np.testing.assert_allclose(model.decision_function(TABLE), odds, rtol=1e-8, atol=1e-8)

    def test_levels_that_sum_to_one_have_the_shortest_solution(self):
        query = second_moments(
            target="score",
            levels={"town": ["x", "y"]},
            clip={"score": (-4, 9)},
        )
        moments = moments_of(query)
        columns, answers = rows_of(query)
        for coefficients in (
            fit.shortest_coefficients(moments),
            fit.ridge_coefficients(moments, None),
        ):
            model = fit._linear(moments, coefficients, "Perceptron")
            best = LinearRegression().fit(columns, answers)
            np.testing.assert_allclose(model.predict(TABLE), best.predict(columns), rtol=1e-8)
            assert model.coef_[0] == pytest.approx(-model.coef_[1])


class TestWithNoise:
    def noise(self, size, query=CLASS):
        """A covariance of correlated noise, of about this share of the ranges."""
        factor = np.random.default_rng(5).normal(size=(query.dim, query.dim))
        correlation = factor @ factor.T / query.dim
        spans = query.features.spans
        return size**2 * correlation * np.outer(spans, spans)

    def test_mean_square_of_the_noise_by_draws(self):
        noise = self.noise(1e-4)
        moments = moments_of(CLASS, noise)
        d, scales = moments.n_columns, moments.scales
        exact = moments_of(CLASS)
        draws = np.random.default_rng(6).multivariate_normal(exact.values, noise, 1_500)
        total = np.zeros((d, d))
        for values in draws:
            noisy = moments_of(CLASS, values=values)
            raw = noisy.products - np.outer(noisy.means, noisy.means)
            apart = raw - exact.products + np.outer(exact.means, exact.means)
            scaled = (apart / np.outer(scales, scales))[:d, :d]
            total += scaled @ scaled / len(draws)
        expected = moments.mean_square_noise()
        np.testing.assert_allclose(total, expected, atol=0.12 * np.abs(expected).max())
        along = np.sqrt([moments.noise_along(axis) ** 2 for axis in np.eye(d)])
        spread = np.std(
            [moments_of(CLASS, values=v).products.diagonal()[:d] - v[:d] ** 2 for v in draws],
            axis=0,
        )
        np.testing.assert_allclose(along, spread, rtol=0.1)

    def test_products_of_levels_that_exclude_each_other_have_no_noise(self):
        moments = moments_of(CLASS, self.noise(0.05))
        first, second = (Design.read(CLASS.parameters).names.index(f"kind = {k}") for k in "ab")
        assert moments.products[first, second] == 0
        only = moments_of(
            second_moments(target={"rich": "yes"}, levels={"kind": ["a", "b"]}),
            np.diag([0.1, 0.2, 0, 0, 0]) ** 2,
        )
        # Of S = diag(m) - m m', only the means are noisy.
        a, b = only.means[:2]
        slope = np.array([[1 - 2 * a, 0], [-b, -a]])  # of the first row, by both means
        square = slope @ np.diag([0.01, 0.04]) @ slope.T / only.scales[0] ** 2
        slope = np.array([[-b, -a], [0, 1 - 2 * b]])
        square += slope @ np.diag([0.01, 0.04]) @ slope.T / only.scales[1] ** 2
        square /= np.outer(only.scales[:2], only.scales[:2])
        np.testing.assert_allclose(only.mean_square_noise(), square, rtol=1e-12)

    @pytest.mark.parametrize("size", [1e-4, 0.3, 3.0])
    def test_indefinite_moments_are_projected(self, size):
        noise = self.noise(size)
        values = np.random.default_rng(7).multivariate_normal(CLASS.outputs(TABLE)[0], noise)
        moments = moments_of(CLASS, noise, values)
        raw = moments.products - np.outer(moments.means, moments.means)
        if size > 0.1:
            assert np.linalg.eigvalsh(raw)[0] < 0
        least = np.linalg.eigvalsh(moments.covariance / np.outer(moments.scales, moments.scales))[0]
        assert least > -1e-12
        for model in (
            fit._linear(moments, fit.ridge_coefficients(moments, None), "Perceptron"),
            fit._linear(moments, fit.shortest_coefficients(moments), "Perceptron"),
            fit.discriminant(moments, fit.ridge_coefficients(moments, None)),
            fit.independent_columns(moments, 1.0),
        ):
            assert np.isfinite([*model.coef_[0], *model.intercept_]).all()
            assert 0 <= model.score(TABLE) <= 1

    def test_the_penalty_shrinks_what_the_noise_hides(self):
        clean, noise = moments_of(CLASS), np.zeros((CLASS.dim, CLASS.dim))
        place = CLASS.names.index("mean((age - 53.5) * (age - 53.5))")
        noise[place, place] = (30 * CLASS.features.spans[place]) ** 2
        hidden = moments_of(CLASS, noise, clean.values)
        before, after = (fit.ridge_coefficients(m, None) for m in (clean, hidden))
        assert abs(after[0]) < 0.02 * abs(before[0])
        assert abs(after[2]) > 0.3 * abs(before[2])


def test_models_take_released_numbers_and_public_facts_only():
    for build in (models.ridge, models.lda, models.naive_bayes, models.least_squares):
        names = [*inspect.signature(build).parameters]
        assert names[0] == "release"
        assert set(names) <= {"release", "certificate", "penalty", "smoothing"}


class TestRecipes:
    def test_words_are_hashed_row_by_row(self):
        texts = pa.table({"note": ["Good old times", "old OLD", None, "bad"]})
        whole = models.hashed_words(texts, "note", n_buckets=16)
        alone = models.hashed_words(texts.slice(1, 1), "note", n_buckets=16)
        assert whole.slice(1, 1).equals(alone)
        assert sum(column[1].as_py() for column in whole.columns) == 1
        assert sum(column[2].as_py() for column in whole.columns) == 0

    def test_random_features_are_those_of_a_kernel(self):
        images = np.random.default_rng(1).random((3, 8, 8))
        table = models.random_features(images, n_features=20_000, seed=1)
        columns = np.column_stack([column.to_numpy() for column in table.columns])
        apart = ((images[0] - images[1]) ** 2).sum() / 64
        assert 2 * (columns[0] @ columns[1]) / 20_000 == pytest.approx(
            math.exp(-apart / 2), abs=0.03
        )
        one = models.random_features(images[1:2], n_features=20_000, seed=1)
        assert one.column("feature 7")[0] == table.column("feature 7")[1]


class TestSuggestions:
    def test_what_decides_is_found_first(self):
        columns = models.suggest_columns(TABLE, 4, target="score", without=["rich"])
        assert {"age", "kind"} <= {*columns["numbers"], *columns["levels"]}
        assert columns["levels"]["kind"] == ["a"]
        assert "rich" not in columns["levels"]
        query = second_moments(target="score", **columns)
        assert len(Design.read(query.parameters).columns) == 4

    def test_weights_agree_with_draws_of_the_noise(self):
        weights = np.array(models.weights_by_use(NUMBER, TABLE))
        assert weights.max() == 1
        exact = moments_of(NUMBER)
        rows = NUMBER.features.numbers(models.design.frame_of(TABLE))
        b = fit.ridge_coefficients(exact, None)
        found = []
        for place in range(NUMBER.dim):
            step = np.eye(NUMBER.dim)[place] * 1e-6
            moved = moments_of(NUMBER, values=exact.values + step)
            raw = moved.products - np.outer(moved.means, moved.means)
            rest = (raw[:-1, -1] - raw[:-1, :-1] @ b) / 1e-6
            found.append(rest @ np.linalg.solve(exact.covariance[:-1, :-1], rest))
        expected = np.array(found) * rows.var(axis=0)
        expected = np.maximum(expected / expected.max(), 2.0**-14)
        np.testing.assert_allclose(weights, expected, rtol=0.05)


def test_thresholds_of_one_column_are_columns_by_themselves():
    query = second_moments(target={"rich": "yes"}, levels={"age": [above(30), above(60)]})
    assert "rate(age > 30, age > 60)" in query.names
    model = fit.independent_columns(moments_of(query), 1.0)
    assert model.n_features_in_ == 2
    assert [*model.feature_names_in_] == ["age > 30", "age > 60"]
