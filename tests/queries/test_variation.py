# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""What does not vary says nothing: it is refused when the scenario is built, never later."""

import numpy as np
import pyarrow as pa
import pytest

import pufferslice as ps
from pufferslice.errors import ScenarioError
from pufferslice.queries import above, at_least, columns, logistic_regression, summary
from pufferslice.scenario.distributions import GaussianMixture
from pufferslice.scenario.simulator import Simulator

LINE = ps.FiniteProfile.axes(dim=1)
TABLE = pa.table(
    {
        "site": ["a", "a", "b", "b"],
        "hlth": ["poor", "good", "poor", "good"],
        "sick": [1.0, 0.0, 1.0, 0.0],
        "unit": [3, 3, 3, 3],
    }
)
BUILDERS = {
    "groups": lambda table, query: ps.Scenario.from_groups(table, secret="site", query=query),
    "bootstrap": lambda table, query: ps.Scenario.from_bootstrap(
        table, secret="site", query=query, bootstrap=ps.Bootstrap(n_replicates=3, seed=1)
    ),
    "worlds": lambda table, query: ps.Scenario.from_worlds(
        {"a": table.slice(0, 2), "b": table.slice(2, 2)}, query=query
    ),
    "lists of tables": lambda table, query: ps.Scenario.from_worlds(
        {"a": [table.slice(0, 2)], "b": [table.slice(2, 1), table.slice(2, 2)]}, query=query
    ),
    "resampled": lambda table, query: ps.Scenario.from_worlds(
        {
            name: ps.Resampled(table=part, bootstrap=ps.Bootstrap(n_replicates=3, seed=1))
            for name, part in (("a", table.slice(0, 2)), ("b", table.slice(2, 2)))
        },
        query=query,
    ),
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=list(BUILDERS))
class TestTables:
    @pytest.mark.parametrize(
        ("query", "words"),
        [
            (summary(rate={"hlth": "Poor"}), "no row meets .*'hlth = Poor'"),
            (summary(mean=["sick"], rate={"sick": above(7)}), "no row meets .*'sick > 7'"),
            (summary(rate={"sick": at_least(0)}), "every row meets .*'sick >= 0'"),
            (summary(mean=["unit"]), "column 'unit' has the same value in every row"),
        ],
    )
    def test_a_constant_is_refused(self, build, query, words):
        with pytest.raises(ScenarioError, match=words):
            build(TABLE, query)

    def test_constant_in_each_group_but_not_over_all_is_taken(self, build):
        table = TABLE.append_column("both", [[1.0, 1.0, 2.0, 2.0]])
        query = summary(mean=["both"], rate={"both": 2})
        assert build(table, query).secrets == ("a", "b")


TEMPLATES = {
    "prevalence": lambda table, query, **options: ps.Scenario.from_prevalence(
        table, column="site", value="a", within=0.25, query=query, **options
    ),
    "volume": lambda table, query, **options: ps.Scenario.from_volume(
        table, up_to=20, query=query, **options
    ),
}


@pytest.mark.parametrize("build", TEMPLATES.values(), ids=list(TEMPLATES))
class TestTemplates:
    def test_a_constant_is_refused(self, build):
        with pytest.raises(ScenarioError, match=r"no row meets .*'hlth = Poor'.*mean 'poor'"):
            build(pa.concat_tables([TABLE] * 5), summary(count={"hlth": "Poor"}))
        with pytest.raises(ScenarioError, match="column 'unit' has the same value in every row"):
            build(TABLE, summary(total=["sick", "unit"], clip={"sick": (0, 1), "unit": (0, 9)}))


def test_drawn_tables_of_a_constant_are_refused():
    with pytest.raises(ScenarioError, match="column 'unit' has the same value in every row"):
        TEMPLATES["prevalence"](
            TABLE, summary(median=["unit"]), prior="draws", seed=1, shares=[0.25, 0.5]
        )


def test_a_misspelt_property_gets_a_hint():
    query = summary(mean=["sick"], clip={"sick": (0, 1)})
    words = "at least 2 rows must be of kind 'hlth = Poor'.* Did you mean 'poor'"
    with pytest.raises(ScenarioError, match=words):
        ps.Scenario.from_prevalence(
            pa.concat_tables([TABLE] * 5), column="hlth", value="Poor", within=0.25, query=query
        )


def test_a_number_with_a_point_gets_the_label_as_a_hint():
    table = pa.table({"site": ["a", "b"] * 15, "grade": [7, 7, 11, 11, 12, 12] * 5})
    with pytest.raises(ScenarioError, match="Did you mean '7'"):
        ps.Scenario.from_groups(table, secret="site", query=summary(rate={"grade": "7.0"}))
    with pytest.raises(ScenarioError) as told:
        ps.Scenario.from_groups(table, secret="site", query=summary(rate={"grade": "8.0"}))
    assert "Did you mean" not in str(told.value)


def test_rows_and_models():
    with pytest.raises(ScenarioError, match=r"no row meets .*'hlth = Poor'"):
        ps.Scenario.from_records(TABLE, secret="site", query=columns(["sick"], {"hlth": "Poor"}))
    query = logistic_regression(features=["unit"], target="sick", positive=1)
    with pytest.raises(ScenarioError, match="column 'unit' has the same value"):
        ps.Scenario.from_groups(TABLE, secret="site", query=query)


def test_several_tables_count_together():
    low, high = (pa.table({"site": ["a", "a", "b", "b"], "x": [x] * 4}) for x in (1.0, 2.0))
    query = summary(mean=["x"])
    found = ps.Scenario.from_groups({"low": low, "high": high}, secret="site", query=query)
    assert len(found.priors) == 2
    with pytest.raises(ScenarioError, match="column 'x'"):
        ps.Scenario.from_groups({"low": low, "again": low}, secret="site", query=query)


def test_simulators_and_declared_distributions_are_not_refused():
    worlds = {
        name: Simulator(draw_table=lambda _: TABLE).declared(n_draws=2, seed=1) for name in "ab"
    }
    assert ps.Scenario.from_worlds(worlds, query=summary(rate={"hlth": "Poor"})).dim == 1
    mixed = {"a": TABLE, "b": ps.FiniteDistribution.uniform([[0.0]])}
    assert ps.Scenario.from_worlds(mixed, query=summary(rate={"hlth": "Poor"})).dim == 1


def test_only_labels_of_ten_rows_are_shown_and_at_most_eight():
    alike = [f"label {i}" for i in range(20)]
    labels = [*alike * 10, *["Label X", "label Y"] * 9]
    table = pa.table({"site": ["a", "b"] * 109, "hlth": labels})
    with pytest.raises(ScenarioError) as told:
        ps.Scenario.from_groups(table, secret="site", query=summary(rate={"hlth": "label x"}))
    assert "Label X" not in str(told.value)
    assert "label Y" not in str(told.value)
    assert 1 <= str(told.value).count("'label ") - 1 <= 8  # the condition itself has no quote
    far = pa.table({"site": ["a", "b"], "hlth": ["secret one", "secret two"]})
    with pytest.raises(ScenarioError) as told:
        ps.Scenario.from_groups(
            pa.concat_tables([far] * 10), secret="site", query=summary(rate={"hlth": "zzz"})
        )
    assert "Did you mean" not in str(told.value)


def normal(mean):
    return lambda rng, n: rng.normal(mean, 0.01, (n, 1))


class TestDeclaredUnits:
    RATE = summary(rate={"state": 1})

    def worlds(self, *means, spread=0.01):
        return {
            f"world {place}": ps.GaussianDistribution(mean=[mean], cov=[[spread**2]])
            for place, mean in enumerate(means)
        }

    @pytest.mark.parametrize("means", [(45, 0.5), (0.5, 1.03), (0.5, -0.03)])
    def test_a_percentage_is_not_a_rate(self, means):
        with pytest.raises(ScenarioError, match=r"'rate.*' lies between 0 and 1.*percentage"):
            ps.Scenario.from_worlds(self.worlds(*means), query=self.RATE)

    def test_a_normal_approximation_may_leave_the_range_a_little(self):
        assert ps.Scenario.from_worlds(self.worlds(0.5, 1.01, -0.01), query=self.RATE).dim == 1

    def test_components_of_a_mixture_are_in_the_unit_too(self):
        low, high, far = self.worlds(0.05, 0.95, 45).values()
        fitting = GaussianMixture.weighted([low, high], [0.5, 0.5])
        worlds = {"a": fitting, "b": low}
        assert ps.Scenario.from_worlds(worlds, query=self.RATE).dim == 1
        other = GaussianMixture.weighted([low, far], [0.5, 0.5])
        with pytest.raises(ScenarioError, match="a rate is a share"):
            ps.Scenario.from_worlds({**worlds, "c": other}, query=self.RATE)

    @pytest.mark.parametrize(
        "world",
        [
            lambda mean: ps.FiniteDistribution.uniform(normal(mean)(np.random.default_rng(0), 500)),
            lambda mean: ps.OutputSimulator(draw_outputs=normal(mean)).declared(
                n_draws=500, seed=1
            ),
        ],
    )
    def test_draws_may_leave_the_range_a_little_and_can_be_clipped(self, world):
        def scenario(*means, query):
            worlds = {f"world {place}": world(mean) for place, mean in enumerate(means)}
            return ps.Scenario.from_worlds(worlds, query=query)

        clipped = self.RATE.with_range({"state": (0, 1)})
        assert scenario(0.024, 0.03, query=self.RATE).dim == 1
        assert scenario(0.0, 0.03, query=clipped).with_sampled_priors().dim == 1
        with pytest.raises(ScenarioError, match=r"'rate.*' lies between 0 and 1.*with_range"):
            scenario(0.0, 0.03, query=self.RATE)
        with pytest.raises(ScenarioError, match="lies outside"):
            scenario(45, 50, query=clipped)

    def test_rare_atoms_may_leave_the_range(self):
        def world(weight):
            return ps.FiniteDistribution.weighted([[0.5], [1.5]], [1 - weight, weight])

        rare = {"a": world(0.01), "b": world(0.015)}
        assert ps.Scenario.from_worlds(rare, query=self.RATE).dim == 1
        with pytest.raises(ScenarioError, match="a rate is a share"):
            ps.Scenario.from_worlds({**rare, "c": world(0.03)}, query=self.RATE)
