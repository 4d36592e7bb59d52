# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
import json

import attrs
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from pufferslice.errors import ArgumentError, PuffersliceError, ScenarioError, TableError
from pufferslice.queries import Box, columns, equals, row_function, summary, table_function
from pufferslice.scenario.distributions import FiniteDistribution, GaussianDistribution
from pufferslice.scenario.priors import LAWS, Bootstrap, Resampled
from pufferslice.scenario.scenario import Scenario, SecretPair
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
    arrays = {name: np.array(values) for name, values in data.items()}
    dtype = [(name, array.dtype) for name, array in arrays.items()]
    records = np.empty(len(next(iter(arrays.values()))), dtype=dtype)
    for name, array in arrays.items():
        records[name] = array
    return records


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


def gaussian_worlds(shift, **said):
    worlds = {
        "a": GaussianDistribution(mean=[0.0], cov=[[1.0]]),
        "b": GaussianDistribution(mean=[shift], cov=[[2.0]]),
    }
    return Scenario.from_worlds(worlds, query=summary(mean=["x"]), **said)


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


def test_records_by_hand():
    distributions = scenarios(TABLE)["records"].priors[0].distributions
    assert sorted(distributions["C"].outputs.tolist()) == [[50.0, 3.5], [70.0, 6.5]]


def test_a_row_function_is_a_query_for_records():
    query = row_function(
        lambda row: row["age"] * row["pay"], names=["v"], columns=["age", "pay"], description="age"
    )
    distributions = Scenario.from_records(TABLE, secret="sex", query=query).priors[0].distributions
    assert sorted(distributions["m"].outputs[:, 0]) == [50.0, 180.0, 192.5]


def test_several_columns_make_one_secret():
    data = {**COLUMNS, "race": ["A", "A", "B", "B", "A", "B", "B", "A"]}
    data["sex"] = ["f", "m", "f", "m", "m", "f", "m", "f"]
    scenario = Scenario.from_groups(pa.table(data), secret=["sex", "race"], query=MEAN)
    assert scenario.secrets == ("f & A", "f & B", "m & A", "m & B")
    assert scenario.secret == {"columns": ["sex", "race"]}
    assert len(scenario.pairs) == 6


def test_quantile_bins_are_a_secret():
    scenario = Scenario.from_groups(TABLE, secret=Bins(column="age", quantiles=2), query=MEAN)
    assert scenario.secrets == ("age q1/2", "age q2/2")
    assert scenario.secret == {"columns": ["age"], "quantiles": 2}
    lower = [age for age in COLUMNS["age"] if age <= 37.5]
    assert scenario.priors[0].distributions["age q1/2"].outputs[0, 0] == np.mean(lower)


def test_tied_quantile_bins():
    table = pa.table({"age": [1] * 9 + [2], "pay": np.arange(10.0)})
    with pytest.raises(ScenarioError, match="tied; use fewer quantiles"):
        Scenario.from_groups(
            table, secret=Bins(column="age", quantiles=3), query=summary(mean=["pay"])
        )


def test_chosen_pairs_are_ordered_and_taken_once():
    scenario = Scenario.from_groups(
        TABLE, secret="race", query=MEAN, pairs=[("C", "A"), ["A", "C"], ("B", "C")]
    )
    assert scenario.pairs == (SecretPair("A", "C"), SecretPair("B", "C"))


@pytest.mark.parametrize(
    ("pairs", "kind", "said"),
    [
        ("some", ArgumentError, "pairs must be one of all; got 'some'"),
        ([], ArgumentError, "at least one pair of secrets, or be 'all'"),
        ([("A", "A")], ArgumentError, "two different secrets"),
        (["AB"], ArgumentError, "two different secrets"),
        ([("A", "B", "C")], ArgumentError, "two different secrets"),
        ([("A", "Z")], ScenarioError, "'Z'; the secrets are A, B, C"),
    ],
)
def test_pairs_that_cannot_be(pairs, kind, said):
    with pytest.raises(kind, match=said):
        Scenario.from_groups(TABLE, secret="race", query=MEAN, pairs=pairs)


@pytest.mark.parametrize("pairs", [[None], [1], 5, None])
def test_pairs_of_another_kind(pairs):
    with pytest.raises(PuffersliceError, match="pair"):
        Scenario.from_groups(TABLE, secret="race", query=MEAN, pairs=pairs)


def test_several_priors_are_a_mapping_of_tables():
    moved = pa.table({**COLUMNS, "age": [age + 5 for age in COLUMNS["age"]]})
    scenario = Scenario.from_groups(
        {"census": TABLE, "survey": moved}, secret="race", query=MEAN, source="held_out"
    )
    assert [prior.name for prior in scenario.priors] == ["census", "survey"]
    assert {prior.source for prior in scenario.priors} == {"held_out"}
    assert len(scenario.instances) == 6
    assert scenario.priors[1].distributions["C"].outputs[0, 0] == 65.0


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
    said = "prior 'survey' gives 'C' probability 0. Drop the pair, or give a prior under which both"
    with pytest.raises(ScenarioError, match=said):
        Scenario.from_groups(tables, secret="race", query=MEAN)
    scenario = Scenario.from_groups(tables, secret="race", query=MEAN, pairs=[("A", "B")])
    assert len(scenario.instances) == 2


def test_a_world_of_probability_zero():
    worlds = {"a": FiniteDistribution.uniform([[0.0]]), "b": FiniteDistribution.uniform([[1.0]])}
    with pytest.raises(ScenarioError, match="gives 'b' probability 0"):
        Scenario.from_worlds(worlds, query=summary(mean=["x"]), probabilities={"a": 1.0, "b": 0.0})


def test_probabilities_of_worlds():
    scenario = gaussian_worlds(1.0, probabilities={"a": 0.2, "b": 0.8})
    assert scenario.priors[0].secret_probability("b") == 0.8
    assert gaussian_worlds(1.0).priors[0].secret_probability("b") == 0.5
    with pytest.raises(ArgumentError, match="sum to 1"):
        gaussian_worlds(1.0, probabilities={"a": 0.2, "b": 0.7})


@pytest.mark.parametrize("make", [Scenario.from_groups, Scenario.from_records])
def test_a_secret_with_one_value(make):
    table = pa.table({"s": ["a", "a"], "x": [1.0, 2.0]})
    query = summary(mean=["x"]) if make == Scenario.from_groups else columns(["x"])
    with pytest.raises(ScenarioError, match="at least 2 values, found 'a': there is nothing"):
        make(table, secret="s", query=query)


def test_one_world():
    with pytest.raises(ScenarioError, match="at least 2 values, found 'a'"):
        Scenario.from_worlds({"a": TABLE}, query=MEAN)


def test_no_worlds():
    with pytest.raises(ScenarioError, match="at least 2 values, found none"):
        Scenario.from_worlds({}, query=MEAN)


@pytest.mark.parametrize("secret", ["race", Bins(column="age", quantiles=2)])
def test_no_tables(secret):
    with pytest.raises(PuffersliceError):
        Scenario.from_groups({}, secret=secret, query=MEAN)


@pytest.mark.parametrize("distribution", ["groups", "bootstrap", "records"])
def test_a_group_of_one_record(distribution):
    table = pa.table({**COLUMNS, "race": ["Z", *COLUMNS["race"][1:]]})
    with pytest.raises(ScenarioError, match=r"1 of the . values of the secret have one, .*Bins"):
        scenarios(table)[distribution]


@pytest.mark.parametrize(
    ("secret", "said"), [("rase", "Did you mean 'race'"), (["race", "x"], "no column 'x'")]
)
def test_unknown_columns(secret, said):
    with pytest.raises(TableError, match=said):
        Scenario.from_groups(TABLE, secret=secret, query=MEAN)
    with pytest.raises(TableError, match="no column 'agee'"):
        Scenario.from_groups(TABLE, secret="race", query=summary(mean=["agee"]))


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


def test_dropped_rows_of_all_priors_are_counted():
    tables = {"one": pa.table(MISSING), "two": pa.table(MISSING), "three": TABLE}
    query = MEAN.with_missing("drop-rows")
    assert Scenario.from_groups(tables, secret="race", query=query).n_dropped == 4


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


def test_a_simulator_needs_bands():
    simulator = Simulator(draw_table=lambda _: TABLE)
    with pytest.raises(ScenarioError, match=r"simulator.declared"):
        Scenario.from_worlds({"a": TABLE, "b": simulator}, query=MEAN)


def test_gaussian_and_finite_worlds_do_not_mix():
    worlds = {
        "a": GaussianDistribution(mean=[0.0], cov=[[1.0]]),
        "b": FiniteDistribution.uniform([[1.0]]),
    }
    with pytest.raises(ScenarioError, match="distributions of one kind"):
        Scenario.from_worlds(worlds, query=summary(mean=["x"]))


def test_worlds_are_named_by_texts():
    worlds = {1: FiniteDistribution.uniform([[0.0]]), 2: FiniteDistribution.uniform([[1.0]])}
    with pytest.raises(ArgumentError, match="named by"):
        Scenario.from_worlds(worlds, query=summary(mean=["x"]))


def test_priors_are_named_by_texts():
    with pytest.raises(ArgumentError, match="named by"):
        Scenario.from_groups({1: TABLE}, secret="race", query=MEAN)


@pytest.mark.soundness
def test_worlds_made_of_tables_do_not_call_themselves_a_public_model_unasked():
    """The source is printed; saying nothing must not print the reassuring one."""
    worlds = {"a": TABLE, "b": TABLE.slice(0, 4)}
    try:
        scenario = Scenario.from_worlds(worlds, query=MEAN)
    except (TypeError, PuffersliceError):
        return
    assert scenario.priors[0].source == "released_data"


@pytest.mark.parametrize(
    ("distribution", "query"),
    [("groups", ROW), ("bootstrap", ROW), ("records", MEAN), ("worlds", ROW)],
)
def test_a_query_of_the_wrong_level(distribution, query):
    make = {
        "groups": lambda: Scenario.from_groups(TABLE, secret="race", query=query),
        "bootstrap": lambda: Scenario.from_bootstrap(
            TABLE, secret="race", query=query, bootstrap=RESAMPLING
        ),
        "records": lambda: Scenario.from_records(TABLE, secret="race", query=query),
        "worlds": lambda: Scenario.from_worlds({"a": TABLE, "b": TABLE}, query=query),
    }[distribution]
    with pytest.raises(ScenarioError, match=f"distribution '{distribution}' needs a query of a"):
        make()


@pytest.mark.parametrize("source", ["public", None, ""])
def test_an_unknown_source(source):
    with pytest.raises(ArgumentError, match="source must be one of public_model"):
        Scenario.from_groups(TABLE, secret="race", query=MEAN, source=source)


def test_the_default_source_of_a_table_is_the_released_data():
    for distribution in ("groups", "bootstrap", "records"):
        assert scenarios(TABLE)[distribution].priors[0].source == "released_data"


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
    assert both.key() == one.key()


@pytest.mark.parametrize(
    "changed",
    [
        {"secret": "sex", "query": summary(mean=["age", "pay"])},
        {"secret": "race", "query": MEAN.with_scales([1.0, 2.0, 1.0])},
        {"secret": "race", "query": MEAN, "pairs": [("A", "B")]},
    ],
)
def test_with_a_prior_of_something_else(changed):
    one = Scenario.from_groups({"one": TABLE}, secret="race", query=MEAN)
    other = Scenario.from_groups({"two": TABLE}, **changed)
    with pytest.raises(ScenarioError, match="same distribution, secrets, pairs and query"):
        one.with_prior(other)


def test_with_a_prior_of_the_same_name():
    scenario = Scenario.from_groups(TABLE, secret="race", query=MEAN)
    with pytest.raises(ArgumentError, match="'table' repeats"):
        scenario.with_prior(scenario)


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


def test_with_prior_counts_the_dropped_rows_of_both():
    query = MEAN.with_missing("drop-rows")
    one = Scenario.from_groups({"one": TABLE}, secret="race", query=query)
    two = Scenario.from_groups({"two": pa.table(MISSING)}, secret="race", query=query)
    assert one.with_prior(two).description()["rows_dropped"] == 2


def test_gaussian_and_empirical_priors_do_not_mix():
    empirical = Scenario.from_worlds(
        {"a": FiniteDistribution.uniform([[0.0]]), "b": FiniteDistribution.uniform([[1.0]])},
        query=summary(mean=["x"]),
    )
    renamed = attrs.evolve(empirical, priors=(attrs.evolve(empirical.priors[0], name="other"),))
    with pytest.raises(ScenarioError, match="all sampled or all Gaussian; make two scenarios"):
        gaussian_worlds(1.0).with_prior(renamed)


@pytest.mark.parametrize("distribution", LAWS)
def test_repr_and_description_show_no_data(distribution):
    scenario = scenarios(TABLE)[distribution]
    n_pairs = len(scenario.pairs)
    assert repr(scenario) == (
        f"Scenario(distribution={distribution!r}, n_secrets={len(scenario.secrets)}, "
        f"n_pairs={n_pairs}, n_priors=1, dim={scenario.dim})"
    )
    public = json.dumps(scenario.description())
    for number in ("n_rows", "outputs", "counts", "probabilities"):
        assert number not in public
    for value in COLUMNS["pay"]:
        assert str(value) not in public


def test_the_description_is_json_and_says_where_priors_come_from():
    scenario = Scenario.from_groups(
        TABLE, secret="race", query=MEAN.with_range(Box([0, 0, 0], [90, 9, 1])), source="held_out"
    )
    description = json.loads(json.dumps(scenario.description()))
    assert description == scenario.description()
    assert description["priors"] == [
        {
            "name": "table",
            "source": "held_out",
            "kind": "empirical",
            "origin": "the query on the rows of each group",
        }
    ]
    assert description["query"]["range"] == {
        "kind": "box",
        "low": [0, 0, 0],
        "high": [90, 9, 1],
    }


def test_the_key_is_of_the_secret_alone():
    groups = Scenario.from_groups(TABLE, secret="race", query=MEAN)
    records = Scenario.from_records(TABLE, secret="race", query=ROW, pairs=[("A", "B")])
    assert groups.key() == records.key()
    assert groups.key() != Scenario.from_groups(TABLE, secret="sex", query=MEAN).key()


@pytest.mark.parametrize("change", [1e-9, -1e-9])
def test_the_digest_of_the_distributions_sees_every_change(change):
    data = {**COLUMNS, "pay": [COLUMNS["pay"][0] + change, *COLUMNS["pay"][1:]]}
    for distribution in LAWS:
        before, after = (
            scenarios(pa.table(d))[distribution].distributions_digest() for d in (COLUMNS, data)
        )
        assert before != after


def test_the_digest_of_gaussian_distributions():
    assert (
        gaussian_worlds(1.0).distributions_digest() == gaussian_worlds(1.0).distributions_digest()
    )
    assert (
        gaussian_worlds(1.0).distributions_digest() != gaussian_worlds(1.5).distributions_digest()
    )


def test_row_order_does_not_matter_for_records_and_conditions(rng):
    order = rng.permutation(8)
    shuffled = TABLE.take(pa.array(order))
    query = columns(["age"], flags={"sex": equals("f")})
    for prior, other in zip(
        Scenario.from_records(TABLE, secret="race", query=query).priors,
        Scenario.from_records(shuffled, secret="race", query=query).priors,
        strict=True,
    ):
        for secret, distribution in prior.distributions.items():
            mine, theirs = (
                np.sort(one.outputs, axis=0) for one in (distribution, other.distributions[secret])
            )
            np.testing.assert_array_equal(mine, theirs)


def test_a_table_function_gets_the_groups_rows_in_its_own_library():
    kinds = []

    def spread(table):
        kinds.append(type(table))
        return float(table["pay"].max() - table["pay"].min())

    query = table_function(spread, names=["w"], columns=["pay"], description="width of pay")
    scenario = Scenario.from_groups(pl.DataFrame(COLUMNS), secret="race", query=query)
    assert scenario.priors[0].distributions["A"].outputs.tolist() == [[5.0]]
    assert set(kinds) == {pl.DataFrame}
