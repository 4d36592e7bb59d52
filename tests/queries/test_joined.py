# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pyarrow as pa
import pytest
from tests.refusals import Refusal, check_refused

from pufferslice import Guarantee, Scenario, certify_release, datasets, queries, release, verify
from pufferslice.data.frames import frame_of
from pufferslice.errors import ArgumentError
from pufferslice.queries import Ball, Box, columns, contingency_table, join, summary

RNG = np.random.default_rng(5)
TABLE = pa.table(
    {
        "age": RNG.integers(18, 90, 400),
        "pay": RNG.gamma(2, 20, 400),
        "sex": RNG.choice(["F", "M"], 400),
        "ill": RNG.choice(["no", "yes"], 400, p=[0.7, 0.3]),
    }
)
MEANS = summary(mean=["age"], total=["pay"], clip={"age": (17, 90), "pay": (0, 200)})
CELLS = contingency_table({"sex": ["F", "M"], "ill": ["yes"]})
STDS = summary(std=["age"])


def test_coordinates_stand_side_by_side():
    joined = join(MEANS, CELLS)
    assert joined.names == (*MEANS.names, *CELLS.names)
    assert joined.columns == ("age", "pay", "sex", "ill")
    both = np.concatenate([MEANS.outputs(TABLE), CELLS.outputs(TABLE)], axis=1)
    np.testing.assert_array_equal(joined.outputs(TABLE), both)
    assert joined.description() != join(CELLS, MEANS).description()


def test_features_are_those_of_the_parts():
    joined, n_bits = join(MEANS, CELLS).features, 20
    whole = joined.integers(pa_frame(), n_bits)
    parts = [query.features.integers(pa_frame(), n_bits) for query in (MEANS, CELLS)]
    np.testing.assert_array_equal(whole, np.concatenate(parts, axis=1))
    assert joined.is_mean == MEANS.features.is_mean + CELLS.features.is_mean
    assert join(MEANS, summary(median=["age"])).features is None


def pa_frame():
    return frame_of(TABLE)


def test_smooth_queries_stay_smooth():
    joined = join(MEANS, STDS)
    means = joined.row_means(pa_frame())
    average = means.terms.mean(axis=0)
    np.testing.assert_allclose(means.function(average, 400), joined.outputs(TABLE)[0], rtol=1e-12)
    assert means.slopes(average, 400).shape == (3, means.terms.shape[1])


def test_ranges_and_scales_are_joined():
    first = summary(mean=["age"]).with_range(Box([17], [90])).with_scales([10])
    second = summary(std=["age"]).with_range(Box([0], [40])).with_scales([5])
    joined = join(first, second)
    assert joined.range.low.tolist() == [17, 0]
    assert joined.range.high.tolist() == [90, 40]
    assert joined.scales.tolist() == [10, 5]


def test_a_release_has_means_rates_and_a_cross_table_together(tmp_path):
    last_year, this_year = datasets.adult_years()
    query = queries.join(
        queries.summary(mean=["age"], rate={"income": ">50K"}, clip={"age": (17, 90)}),
        queries.contingency_table({"race": ["White", "Black"], "income": [">50K", "<=50K"]}),
    )
    scenario = Scenario.from_prevalence(
        this_year, column="sex", value="Female", within=0.05, query=query, moments_from=last_year
    )
    certificate = certify_release(scenario, Guarantee.guess(at_most=0.64))
    assert verify(certificate, scenario=scenario).holds
    released = release(scenario, this_year, certificate, ledger=tmp_path / "adult.ledger")
    truth = query.outputs(this_year)[0]
    assert (np.abs(released.values - truth) < 6 * released.noise_stds).all()
    assert "count(race = Black, income = >50K)" in released.names


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(join, ArgumentError, "queries"),
        Refusal(lambda: join(MEANS, "CELLS"), ArgumentError, "queries"),
        Refusal(lambda: join(MEANS, columns(["age"])), ArgumentError, "whole table"),
        Refusal(lambda: join(MEANS, summary(mean=["age"])), ArgumentError, "mean(age)"),
        Refusal(lambda: join(MEANS, CELLS.with_missing("middle")), ArgumentError, "missing"),
        Refusal(
            lambda: join(summary(mean=["pay"]).with_range(Box([0], [9])), CELLS),
            ArgumentError,
            "Box",
        ),
        Refusal(lambda: join(summary(mean=["pay"]).with_range(Ball([0], 9))), ArgumentError, "Box"),
    ],
)
def test_refused(refusal):
    check_refused(refusal)
