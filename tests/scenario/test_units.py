# SPDX-License-Identifier: Apache-2.0
"""Units of columns, orders of rows and libraries of frames: none changes what is promised."""

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.fitting import fitting_value
from tests.row_scenarios import EARLIER, GUESS, LOADS, TWO_STATES, WEEKS, groups, prevalence

from pufferslice import Scenario, certify_release, queries, verify
from pufferslice.data.frames import frame_of
from pufferslice.queries.features import feature_bits

pytestmark = pytest.mark.soundness

FACTOR = 1_000
COSTS = np.rint(np.array(EARLIER["cost"]))


def table_in(factor, table=EARLIER):
    """The table with costs in other units; whole numbers, so that nothing is rounded."""
    return table.set_column(3, "cost", [pa.array(COSTS * factor)])


def means_in(factor):
    clip = {"age": (0, 100), "cost": (0, 1_000 * factor)}
    return queries.join(
        queries.summary(mean=["age", "cost"], clip=clip),
        queries.contingency_table({"site": ["a", "b"]}, statistic="rate"),
    )


def totals_in(factor):
    clip = {"cost": (0, 1_000 * factor)}
    return queries.summary(total=["cost"], count={"site": "a"}, clip=clip)


def volume_in(factor):
    return Scenario.from_volume(
        None, query=totals_in(factor), up_to=220, moments_from=table_in(factor)
    )


def supplier_in(factor):
    return Scenario.from_supplier(
        None,
        column="site",
        value="a",
        query=totals_in(factor),
        up_to=80,
        ratio=1.25,
        moments_from=table_in(factor),
    )


def home_in(factor):
    loads = np.array(TWO_STATES["kwh"])
    loads = TWO_STATES.set_column(1, "kwh", [pa.array(np.rint(loads * 8) / 8 * factor)])
    query = queries.group_by({"week": [1, 2]}, total=["kwh"], clip={"kwh": (0, 5 * factor)})
    return Scenario.from_occupancy(
        [[0.9, 0.1], [0.2, 0.8]], positions=[5], query=query, periods=WEEKS, loads=loads
    )


def rows_in(factor, make=prevalence, **options):
    return make(query=means_in(factor), moments_from=table_in(factor), **options)


SCENARIOS = {
    "independent": (rows_in, {"coupling": "independent"}, ["mean(cost)"]),
    "cells": (rows_in, {"coupling": "cells:site"}, ["mean(cost)"]),
    "transport": (rows_in, {"coupling": "transport"}, ["mean(cost)"]),
    "diagonal": (rows_in, {"shape": "diagonal"}, ["mean(cost)"]),
    "person": (rows_in, {"person": (1.0, 1e-6)}, ["mean(cost)"]),
    "random number": (lambda k: rows_in(k, design="independent"), {}, ["mean(cost)"]),
    "several kinds": (lambda k: rows_in(k, make=groups), {}, ["mean(cost)"]),
    "volume": (volume_in, {}, ["total(cost)"]),
    "supplier": (supplier_in, {}, ["total(cost)"]),
    "home": (home_in, {}, ["total(kwh | week = 1)", "total(kwh | week = 2)"]),
}


@pytest.mark.parametrize("kind", SCENARIOS)
def test_a_column_in_other_units(kind):
    """Its noise is multiplied, and nothing else changes."""
    make, options, scaled = SCENARIOS[kind]
    plain, thousands = (
        certify_release(make(factor), GUESS, **options).statement for factor in (1, FACTOR)
    )
    units = np.where(np.isin(plain.scenario.query.names, scaled), FACTOR, 1)
    assert units.max() == FACTOR
    ratios = np.divide(thousands.noise.std_by_coordinate, plain.noise.std_by_coordinate)
    np.testing.assert_allclose(ratios, units, rtol=1e-6)
    assert thousands.guess == pytest.approx(plain.guess, rel=1e-6)
    assert thousands.mean_square == pytest.approx(plain.mean_square, rel=1e-6)
    assert thousands.coupling == plain.coupling
    assert thousands.limits == plain.limits
    if plain.one_person is not None:
        epsilons = [each.one_person.epsilon for each in (plain, thousands)]
        assert epsilons[1] == pytest.approx(epsilons[0], rel=1e-6)


def test_units_of_the_rows_that_are_released():
    """Noise that is fitted to them is rounded in each unit: up, by no more than a tenth."""
    plain, thousands = (
        certify_release(
            prevalence(query=means_in(factor), table=table_in(factor), n_rows=None,
                       moments_from=None), GUESS,
        ).statement
        for factor in (1, FACTOR)
    )  # fmt: skip
    ratios = np.divide(thousands.noise.std_by_coordinate, plain.noise.std_by_coordinate)
    np.testing.assert_allclose(ratios / [1, FACTOR, 1, 1], 1.0, atol=0.12)


def shuffled(table, seed=1):
    return table.take(np.random.default_rng(seed).permutation(len(table)))


TABLES = {
    "arrow": lambda table: table,
    "another order": shuffled,
    "pandas": lambda table: table.to_pandas(),
    "polars": pl.from_arrow,
    "polars, another order": lambda table: pl.from_arrow(shuffled(table)),
    "records": lambda table: table.to_pandas().to_records(index=False),
    "pieces": lambda table: pa.concat_tables([table.slice(40), table.slice(0, 40)]),
    "categories": lambda table: table.to_pandas().astype({"site": "category"}),
    "small floats": lambda table: table.to_pandas().astype({"age": "float32"}),
    "pandas text": lambda table: table.to_pandas().astype({"site": pd.StringDtype()}),
}


class TestReleasedValues:
    @pytest.mark.parametrize("library", TABLES)
    def test_exact_sums_are_the_same(self, library):
        scenario = prevalence(query=means_in(1), n_rows=len(EARLIER))
        assert fitting_value(scenario, TABLES[library](EARLIER)) == fitting_value(scenario, EARLIER)

    def test_in_threads(self):
        scenario = prevalence(query=means_in(1), n_rows=len(EARLIER))
        with ThreadPoolExecutor(4) as threads:
            orders = [shuffled(EARLIER, seed) for seed in range(8)]
            values = list(threads.map(lambda table: fitting_value(scenario, table), orders))
        assert all(value == values[0] for value in values)

    def test_parts_add_up(self):
        """Integers of parts of a table are those of the whole, in any parts."""
        features = means_in(1).as_sums().features
        n_bits = feature_bits(len(EARLIER))
        whole = features.integers(frame_of(EARLIER), n_bits).sum(axis=0)
        for cuts in ([20], [1, 2, 3], [7, 30, 59]):
            ends = [0, *cuts, len(EARLIER)]
            parts = [EARLIER.slice(a, b - a) for a, b in pairwise(ends)]
            sums = [features.integers(frame_of(part), n_bits).sum(axis=0) for part in parts]
            np.testing.assert_array_equal(np.sum(sums, axis=0), whole)

    def test_a_home_in_any_order(self):
        scenario = home_in(1)
        street = pa.table({"week": [1, 2] * 50, "kwh": np.arange(100) % 37 / 8})
        assert fitting_value(scenario, street) == fitting_value(scenario, shuffled(street))


@pytest.mark.parametrize("library", ["another order", "pandas", "polars", "pieces"])
@pytest.mark.parametrize("coupling", ["independent", "cells:site", "transport"])
def test_certificates_from_another_library_verify(library, coupling):
    """Moments may differ in their last digits; the noise then differs by as little."""
    scenario = prevalence()
    certificate = certify_release(scenario, GUESS, coupling=coupling)
    other = prevalence(moments_from=TABLES[library](EARLIER))
    assert verify(certificate, scenario=other).problems == ()
    again = certify_release(other, GUESS, coupling=coupling)
    stds = [each.statement.noise.std_by_coordinate for each in (certificate, again)]
    np.testing.assert_allclose(*stds, rtol=1e-9)


def test_slots_of_a_home_in_another_order_verify():
    options = {"chain": [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]], "states": [0, 1, 2]}
    query = queries.summary(total=["kwh", "peak"], clip={"kwh": (0, 5), "peak": (0, 1)})
    options |= {"positions": [3], "query": query, "length": 12}
    first, other = (Scenario.from_occupancy(**options, loads=t) for t in (LOADS, shuffled(LOADS)))
    certificate = certify_release(first, GUESS)
    assert verify(certificate, scenario=other).problems == ()
    assert math.isfinite(certificate.statement.mean_square)
