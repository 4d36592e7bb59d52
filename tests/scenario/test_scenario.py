# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from pufferslice.errors import ArgumentError, ScenarioError, TableError
from pufferslice.queries import columns, summary
from pufferslice.scenario.distributions import FiniteDistribution, GaussianDistribution
from pufferslice.scenario.pairs import SecretPair
from pufferslice.scenario.priors import LAWS, Bootstrap, Resampled
from pufferslice.scenario.scenario import Scenario
from pufferslice.scenario.secrets import Bins
from pufferslice.scenario.simulator import Simulator

COLUMNS = {
    "race": ["B", "A", "C", "A", "B", "C", "A", "B"],
    "sex": ["f", "m", "f", "m", "m", "f", "f", "f"],
    "age": [30, 20, 50, 40, 35, 70, 60, 31],
    "pay": [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5],
}
MEAN = summary(mean=["age", "pay"], rate={"sex": "f"})
ROW = columns(["age", "pay"])
RESAMPLING = Bootstrap(n_replicates=12, seed=5)


def records_of(data):
    return np.rec.fromarrays([np.array(values) for values in data.values()], names=list(data))


def chunked(data):
    table = pa.table(data)
    return pa.concat_tables([table.slice(0, 3), table.slice(3, 1), table.slice(4)])


TABLE = pa.table(COLUMNS)
LIBRARIES = [pa.table, pd.DataFrame, pl.DataFrame, records_of, chunked]
NAMES = ["pyarrow", "pandas", "polars", "records", "chunked"]


def scenarios(table):
    """The four distributions on one table, by name."""
    return {
        "groups": Scenario.from_groups(table, secret="race", query=MEAN),
        "bootstrap": Scenario.from_bootstrap(
            table, secret="race", query=MEAN, bootstrap=RESAMPLING
        ),
        "records": Scenario.from_records(table, secret="race", query=ROW),
        "worlds": Scenario.from_worlds(
            {"then": table, "now": Resampled(table=table, bootstrap=RESAMPLING)}, query=MEAN
        ),
    }


def gaussian_worlds(shift, **options):
    worlds = {
        "a": GaussianDistribution(mean=[0.0], cov=[[1.0]]),
        "b": GaussianDistribution(mean=[shift], cov=[[2.0]]),
    }
    return Scenario.from_worlds(worlds, query=summary(mean=["x"]), **options)


@pytest.mark.parametrize("table_of", LIBRARIES, ids=NAMES)
@pytest.mark.parametrize("distribution", LAWS)
def test_every_distribution_is_the_same_from_every_library(distribution, table_of):
    reference, scenario = scenarios(TABLE)[distribution], scenarios(table_of(COLUMNS))[distribution]
    assert scenario.distribution == distribution
    assert scenario.distributions_digest() == reference.distributions_digest()
    assert scenario.description() == reference.description()


def test_groups_by_hand():
    scenario = scenarios(TABLE)["groups"]
    assert scenario.secrets == ("A", "B", "C")
    assert scenario.pairs == (("A", "B"), ("A", "C"), ("B", "C"))
    assert scenario.dim == 3
    (prior,) = scenario.priors
    assert prior.distributions["A"].outputs == pytest.approx(np.array([[40.0, 29 / 6, 1 / 3]]))
    assert prior.distributions["C"].outputs.tolist() == [[60.0, 5.0, 1.0]]
    assert prior.probabilities == {"A": 3 / 8, "B": 3 / 8, "C": 2 / 8}
    assert prior.n_rows == {"A": 3, "B": 3, "C": 2}
    assert [(instance.prior.name, instance.pair) for instance in scenario.instances] == [
        ("table", pair) for pair in scenario.pairs
    ]


def test_chosen_pairs_are_ordered_and_taken_once():
    scenario = Scenario.from_groups(
        TABLE, secret="race", query=MEAN, pairs=[("C", "A"), ["A", "C"], ("B", "C")]
    )
    assert scenario.pairs == (SecretPair("A", "C"), SecretPair("B", "C"))


def test_quantile_bins_mean_the_same_under_every_prior():
    moved = pa.table({**COLUMNS, "age": [age + 15 for age in COLUMNS["age"]]})
    secret = Bins(column="age", quantiles=2)
    scenario = Scenario.from_groups({"one": TABLE, "two": moved}, secret=secret, query=MEAN)
    edge = np.median(COLUMNS["age"] + [age + 15 for age in COLUMNS["age"]])
    for prior, shift in zip(scenario.priors, (0, 15), strict=True):
        upper = [age + shift for age in COLUMNS["age"] if age + shift > edge]
        assert prior.distributions["age q2/2"].outputs[0, 0] == pytest.approx(np.mean(upper))


def test_a_secret_that_one_prior_lacks():
    few = TABLE.filter(pa.array([race != "C" for race in COLUMNS["race"]]))
    tables = {"census": TABLE, "survey": few}
    with pytest.raises(ScenarioError, match="prior 'survey' gives 'C' probability 0"):
        Scenario.from_groups(tables, secret="race", query=MEAN)
    scenario = Scenario.from_groups(tables, secret="race", query=MEAN, pairs=[("A", "B")])
    assert len(scenario.instances) == 2


def test_probabilities_of_worlds():
    scenario = gaussian_worlds(1.0, probabilities={"a": 0.2, "b": 0.8})
    assert scenario.priors[0].secret_probability("b") == 0.8
    assert gaussian_worlds(1.0).priors[0].secret_probability("b") == 0.5
    with pytest.raises(ArgumentError, match="sum to 1"):
        gaussian_worlds(1.0, probabilities={"a": 0.2, "b": 0.7})


MISSING = {
    **COLUMNS,
    "age": [30, None, *COLUMNS["age"][2:]],
    "race": [*COLUMNS["race"][:-1], None],
    "note": [None] * 8,
}


@pytest.mark.parametrize("table_of", [pa.table, pd.DataFrame, pl.DataFrame])
def test_missing_values_are_refused_or_dropped_and_counted(table_of):
    table = table_of(MISSING)
    with pytest.raises(TableError, match=r"2 of 8 rows have missing values.*drop-rows"):
        Scenario.from_groups(table, secret="race", query=MEAN)
    query = MEAN.with_missing("drop-rows")
    scenario = Scenario.from_groups(table, secret="race", query=query)
    assert scenario.n_dropped == 2
    assert scenario.description()["rows_dropped"] == 2
    assert scenario.priors[0].n_rows == {"A": 2, "B": 2, "C": 2}
    assert scenario.priors[0].distributions["A"].outputs[0, 0] == 50.0


def test_dropped_rows_of_worlds_are_counted():
    query = summary(mean=["age"]).with_missing("drop-rows")
    worlds = {"then": TABLE, "now": pa.table({"age": [40.0, None, 60.0]})}
    with pytest.raises(TableError, match="missing"):
        Scenario.from_worlds(worlds, query=query.with_missing("refuse"))
    scenario = Scenario.from_worlds(worlds, query=query)
    assert scenario.n_dropped == 1
    assert scenario.priors[0].distributions["now"].outputs.tolist() == [[50.0]]


def test_worlds_of_every_kind():
    query = summary(mean=["age"]).with_scales([10.0])
    simulator = Simulator(draw_table=lambda rng: pa.table({"age": rng.normal(50, 1, size=4)}))
    scenario = Scenario.from_worlds(
        {
            "table": TABLE,
            "tables": [TABLE, TABLE.slice(0, 1)],
            "resampled": Resampled(table=TABLE, bootstrap=RESAMPLING),
            "declared": simulator.declared(n_draws=6, seed=2),
            "distribution": FiniteDistribution.uniform([[30.0], [40.0]]),
        },
        query=query,
        name="site",
    )
    distributions = scenario.priors[0].distributions
    assert distributions["table"].outputs.tolist() == [[4.2]]
    assert distributions["tables"].outputs.tolist() == [[4.2], [3.0]]
    assert distributions["resampled"].n_samples == 12
    assert distributions["declared"].n_samples == 6
    assert distributions["distribution"].outputs.tolist() == [[3.0], [4.0]]
    assert scenario.secret == {"worlds": "site"}
    assert scenario.rule is None
    origin = scenario.priors[0].origin
    for part in (
        "one table per world",
        "2 given tables",
        "12 bootstrap",
        "6 draws",
        "finite distributions",
    ):
        assert part in origin
    assert origin.count("declared to be the prior") == 2


@pytest.mark.soundness
def test_worlds_made_of_tables_do_not_call_themselves_a_public_model_unasked():
    """The source is printed; saying nothing must not print the reassuring one."""
    worlds = {"a": TABLE, "b": TABLE.slice(0, 4)}
    assert Scenario.from_worlds(worlds, query=MEAN).priors[0].source == "released_data"


def test_with_prior():
    one = Scenario.from_groups({"one": TABLE}, secret="race", query=MEAN)
    moved = pa.table({**COLUMNS, "age": [age + 5 for age in COLUMNS["age"]]})
    two = Scenario.from_groups({"two": moved}, secret="race", query=MEAN, source="held_out")
    both = one.with_prior(two)
    assert [(prior.name, prior.source) for prior in both.priors] == [
        ("one", "released_data"),
        ("two", "held_out"),
    ]
    assert len(both.instances) == 6
    assert both.ledger_keys() == one.ledger_keys()


def test_worlds_can_be_held_under_several_gaussian_priors():
    both = gaussian_worlds(1.0).with_prior(gaussian_worlds(3.0))
    assert [prior.distributions["b"].mean.tolist() for prior in both.priors] == [[1.0], [3.0]]


@pytest.mark.soundness
def test_with_prior_keeps_one_meaning_of_the_bins():
    """Else the second prior would belong to other secrets than the ones that are released."""
    moved = pa.table({**COLUMNS, "age": [age + 1000 for age in COLUMNS["age"]]})
    secret = Bins(column="age", quantiles=2)
    one = Scenario.from_groups({"one": TABLE}, secret=secret, query=MEAN)
    two = Scenario.from_groups({"two": moved}, secret=secret, query=MEAN)
    with pytest.raises(ScenarioError):
        one.with_prior(two)


@pytest.mark.parametrize("distribution", LAWS)
def test_repr_and_description_show_no_data(distribution):
    scenario = scenarios(TABLE)[distribution]
    n_pairs = len(scenario.pairs)
    assert repr(scenario) == (
        f"Scenario(distribution={distribution!r}, n_secrets={len(scenario.secrets)}, "
        f"n_pairs={n_pairs}, n_priors=1, dim={scenario.dim}, digest={scenario.digest[:12]!r})"
    )
    public = json.dumps(scenario.description())
    for number in ("n_rows", "outputs", "counts", "probabilities"):
        assert number not in public
    for value in COLUMNS["pay"]:
        assert str(value) not in public


@pytest.mark.parametrize("change", [1e-9, -1e-9])
def test_the_digest_of_the_distributions_sees_every_change(change):
    data = {**COLUMNS, "pay": [COLUMNS["pay"][0] + change, *COLUMNS["pay"][1:]]}
    for distribution in LAWS:
        before, after = (
            scenarios(pa.table(d))[distribution].distributions_digest() for d in (COLUMNS, data)
        )
        assert before != after
