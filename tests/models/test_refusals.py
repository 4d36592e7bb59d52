# SPDX-License-Identifier: Apache-2.0
"""What models and their designs refuse."""

import json
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
from pufferslice.queries import contingency_table, join, second_moments, summary
from pufferslice.releases.binding import release_problems
from pufferslice.releases.release import Measured, Release

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
        models.ridge(some[0], certificate=plain[1])
    with pytest.raises(ArgumentError, match="second_moments"):
        models.ridge(plain[0])
    with pytest.raises(ArgumentError, match="number of rows"):
        models.ridge(attrs.evolve(some[0], n_rows=None))
    large = attrs.evolve(some[0], noise_covariance=None)
    with pytest.raises(ArgumentError, match="certificate is required"):
        models.ridge(large)
    measured = Measured(serial=1, of_periods=False, share=1.0, directions=None)
    with pytest.raises(ArgumentError, match="release under a budget"):
        models.ridge(attrs.evolve(large, measured=measured), certificate=some[1])
    assert models.ridge(large, certificate=some[1]) == models.ridge(some[0])


@pytest.mark.parametrize("build", [models.lda, models.naive_bayes])
def test_classifiers_of_a_number(build, some):
    with pytest.raises(ArgumentError, match="target"):
        build(some[0])


def test_smoothing(some):
    with pytest.raises(ArgumentError, match="smoothing"):
        models.naive_bayes(some[0], smoothing=-1.0)


def test_a_joined_query_has_the_same_model(some, tmp_path):
    query = join(
        summary(mean=["age"], clip={"age": (17, 90)}),
        second_moments(target="score", levels={"kind": ["a"]}, clip={"score": (-4, 9)}),
    )
    model = models.ridge(released(query, tmp_path)[0])
    assert model.n_features_in_ == 1
    moments = Moments.of(some[0])
    assert models.least_squares(some[0]).coef_ == fit.shortest_coefficients(moments)


def test_a_sum_that_stands_under_another_name_is_found(tmp_path):
    levels = {"kind": ["a"], "town": ["x"]}
    query = join(
        contingency_table({"town": ["x"], "kind": ["a"]}, statistic="rate"),
        second_moments(target={"rich": "yes"}, levels=levels),
    )
    assert "rate(kind = a, town = x)" not in query.features.names
    given = released(query, tmp_path)[0]
    moments = Moments.of(given)
    place = given.names.index("rate(town = x, kind = a)")
    assert moments.products[0, 1] == given.values[place]


def test_a_file_is_enough(some, tmp_path):
    path = tmp_path / "release.json"
    path.write_text(json.dumps(some[0].to_json()))
    read = Release.load(path)
    assert read == some[0]
    for build in (models.ridge, models.least_squares):
        assert build(read) == build(some[0])


@pytest.mark.parametrize(
    "change",
    [
        {"target": {"column": "rich", "equals": 3}},
        {"target": {"column": "age", "above": "3"}},
        {"target": {"column": "age", "between": 3}},
        {"target": {"column": "age", "nearly": 3}},
        {"target": {"column": "rich"}},
        {"target": None},
        {"clip": {"score": [9, -4]}},
        {"clip": {"score": [-4, 9], "age": [0, 1]}},
        {"levels": [{"column": "score", "above": 3}]},
        {"levels": []},
        {"levels": 3},
        {"more": 3},
    ],
)
def test_an_edited_design_is_refused(some, change):
    document = some[0].to_json()
    document["design"] = document["design"] | change
    with pytest.raises(ReleaseError, match="design"):
        Release.from_json(document)


def test_another_design_does_not_verify(some):
    assert not release_problems(some[1], some[0])
    for design in (None, moments_of(CLASS).design):
        changed = attrs.evolve(some[0], design=design)
        (problem,) = release_problems(some[1], changed)
        assert problem.startswith("design")
