# SPDX-License-Identifier: Apache-2.0
"""What models and their designs refuse."""

from functools import partial

import attrs
import numpy as np
import pyarrow as pa
import pytest
from tests.models.test_fit import CLASS, NUMBER, TABLE, moments_of
from tests.refusal_tables import keywords, positions, refusals
from tests.refusals import check_refused

from pufferslice import Guarantee, Scenario, certify_release, models, release
from pufferslice._core.sampler import SeededTestNoise
from pufferslice.errors import ArgumentError, ReleaseError, TableError
from pufferslice.models import fit
from pufferslice.models.moments import Moments
from pufferslice.queries import join, second_moments, summary

NOTE = pa.table({"note": ["a b", "c"]})
MOMENTS = partial(second_moments, target={"rich": "yes"}, levels={"town": ["x"]})
MODEL = fit.discriminant(moments_of(CLASS), fit.ridge_coefficients(moments_of(CLASS), None))
FLAT = TABLE.append_column("flat", pa.array([1.0] * TABLE.num_rows))
SUGGESTED = partial(models.suggest_columns, FLAT, target="score")


def released(query, folder, **scenario):
    """A release of the query with seeded noise, and its certificate."""
    noise = SeededTestNoise(3)
    settings = {"column": "town", "value": "y", "within": 0.1, "moments_from": TABLE.slice(0)}
    scenario = Scenario.from_prevalence(TABLE, query=query, **(settings | scenario))
    certificate = certify_release(scenario, Guarantee.guess(at_most=0.7), generator=noise)
    return release(
        scenario, TABLE, certificate, ledger=folder / "l.ledger", generator=noise
    ), certificate


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    query = second_moments(target="score", levels={"kind": ["a"]}, clip={"score": (-4, 9)})
    return released(query, tmp_path_factory.mktemp("some"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    query = summary(mean=["age"], clip={"age": (17, 90)})
    return released(query, tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize(
    "refusal",
    refusals(
        {
            ArgumentError: [
                (
                    "levels",
                    keywords(MOMENTS),
                    {"levels": ["x"]},
                    {"levels": {"town": "x"}},
                    {"levels": {"town": []}},
                    {"levels": {"town": ["x", "x"]}},
                    {"levels": {}},
                ),
                (
                    "target",
                    keywords(MOMENTS),
                    {"target": 3},
                    {"target": {}},
                    {"target": {"a": 1, "b": 2}},
                    {"target": {"town": "y"}},
                ),
                ("numbers", keywords(MOMENTS), {"numbers": "age"}, {"numbers": ["age", "age"]}),
                ("clip", keywords(MOMENTS), {"clip": {"town": (0, 1)}}),
                (
                    "2,000",
                    keywords(MOMENTS),
                    {"numbers": [f"x{k}" for k in range(70)]},
                ),
                ("n must", keywords(SUGGESTED), {"n": 0}),
                ("target", keywords(SUGGESTED), {"target": "flat"}),
                (
                    "earlier_table",
                    keywords(SUGGESTED),
                    {"without": ["age", "hours", "kind", "town", "rich"]},
                ),
                (
                    "query",
                    lambda: models.weights_by_use(summary(mean=["a"], clip={"a": (0, 1)}), TABLE),
                ),
                (
                    "earlier_table",
                    lambda: models.weights_by_use(
                        NUMBER, pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(0, 1)])
                    ),
                ),
                (
                    "n_buckets",
                    lambda n: models.hashed_words(NOTE, "note", n_buckets=n),
                    0,
                    2_000,
                ),
                (
                    "rows",
                    lambda rows: models.random_features(rows, n_features=2, seed=1),
                    np.zeros(3),
                    np.zeros((2, 0)),
                    np.full((2, 2), np.nan),
                ),
                ("seed", lambda: models.random_features(np.zeros((2, 2)), n_features=2, seed=-1)),
                ("rows", MODEL.predict, np.zeros(5), np.zeros((3, 2))),
                ("answers", MODEL.score, np.zeros((3, 5))),
                ("penalty", positions(fit.ridge_coefficients), (moments_of(CLASS), -1.0)),
            ],
            ReleaseError: [
                (
                    "lacks",
                    lambda: Moments.named(
                        moments_of(CLASS).design,
                        names=CLASS.names[:-1],
                        values=np.zeros(3),
                        noise=np.eye(3),
                        n_rows=3,
                    ),
                )
            ],
            TableError: [
                ("note", lambda: models.hashed_words(TABLE, "note", n_buckets=3)),
                ("kind", lambda: MODEL.predict(TABLE.drop_columns(["kind"]))),
            ],
        }
    ),
)
def test_refused(refusal):
    check_refused(refusal)


def test_models_of_another_release(some, plain):
    with pytest.raises(ArgumentError, match="certificate"):
        models.ridge(some[0], plain[1])
    with pytest.raises(ArgumentError, match="second_moments"):
        models.ridge(*plain)
    with pytest.raises(ArgumentError, match="number of rows"):
        models.ridge(attrs.evolve(some[0], n_rows=None), some[1])


@pytest.mark.parametrize("build", [models.lda, models.naive_bayes])
def test_classifiers_of_a_number(build, some):
    with pytest.raises(ArgumentError, match="target"):
        build(*some)


def test_smoothing(some):
    with pytest.raises(ArgumentError, match="smoothing"):
        models.naive_bayes(*some, smoothing=-1.0)


def test_a_joined_query_has_the_same_model(some, tmp_path):
    query = join(
        summary(mean=["age"], clip={"age": (17, 90)}),
        second_moments(target="score", levels={"kind": ["a"]}, clip={"score": (-4, 9)}),
    )
    model = models.ridge(*released(query, tmp_path))
    assert model.n_features_in_ == 1
    moments = Moments.of(*some)
    assert models.least_squares(*some).coef_ == fit.shortest_coefficients(moments)
