# SPDX-License-Identifier: Apache-2.0
"""Queries and scenarios are data: they pickle, compare, and are written as TOML and read again."""

import math
import pickle
import tomllib

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pufferslice as ps
from pufferslice import Scenario, queries
from pufferslice.data.readers import FileTable
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import above, between, equals, summary
from pufferslice.scenario.distributions import GaussianDistribution, GaussianMixture
from pufferslice.scenario.priors import Bootstrap, Resampled
from pufferslice.scenario.secrets import Bins

N, SITE, ILL = 60, "site", "ill"
RNG = np.random.default_rng(11)
TABLE = pa.table(
    {
        "site": ["a", "b", "c"] * (N // 3),
        "ill": ["yes", "no"] * (N // 2),
        "age": RNG.uniform(20, 80, N),
        "pay": RNG.uniform(10, 60, N),
        "state": [0, 1, 1] * (N // 3),
        "week": [1, 2] * (N // 2),
        "day": [f"2026-01-{1 + k % 28:02}" for k in range(N)],
    }
)
EARLIER = TABLE.slice(0, 45)
CLIP = {"age": (18, 90), "pay": (0, 100)}
CHAIN = [[0.9, 0.1], [0.2, 0.8]]
MEANS = summary(mean=["age"], clip={"age": (18, 90)})
TOTALS = summary(count={"ill": "yes"}, total=["pay"], clip={"pay": (0, 100)})

QUERIES = {
    "summary": summary(
        rate=[("ill", "yes"), ("age", above(40)), ("age", between(20, 30))],
        mean=["pay", "age"],
        quantile={"age": [0.25, 0.5]},
        covariance=[("age", "pay")],
        clip=CLIP,
        missing={"age": 30},
        edges={"age": [18, 40, 90]},
    ),
    "count share": summary(count_share=1000, total=["age"]),
    "group_by": queries.group_by({"site": ["a", "b"], "ill": [equals("no")]}, mean=["age"]),
    "calendar": queries.group_by({"day": queries.days("2026-01-01", "2026-01-04")}, mean=["age"]),
    "months": queries.group_by({"day": queries.months("2026-01", "2026-02")}, mean=["age"]),
    "years": queries.contingency_table({"day": queries.years(2025, 2026)}, statistic="rate"),
    "hours": queries.contingency_table({"day": queries.hours()}),
    "weekdays": queries.contingency_table({"day": queries.weekdays()}, allow_empty=True),
    "intervals": queries.group_by({"age": queries.intervals([18, 40, 90])}, total=["pay"]),
    "columns": queries.columns(["age"], {"pay": above(30)}),
    "autocorrelation": queries.autocorrelation("age", time="week", lags=[1, 2]),
    "model": queries.linear_regression(features=["age"], targets=["pay"], clip=CLIP),
    "classifier": queries.logistic_regression(
        features=["age"], target="ill", positive="yes", regularisation=2.0
    ),
    "range and scales": MEANS.with_range({"age": (20, 80)}).with_scales([7.0]),
    "join": queries.join(MEANS.with_scales([3.0]), queries.contingency_table({"ill": ["yes"]})),
    "held-out clip": summary(mean=["age"], clip_from=TABLE),
}
ONLY_PICKLED = {
    "histogram": queries.histogram("age", [18, 40, 90], statistic="rate"),
    "second_moments": queries.second_moments(target="age", numbers=["pay"], clip=CLIP),
    "as_sums": QUERIES["join"].with_scales([1.0, 1.0]).as_sums(),
}


def copied(value):
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - its own


def length_of(row):
    return row["age"]


FUNCTION = queries.row_function(
    length_of, names=["age"], columns=["age"], description="the age as it is"
)


@pytest.mark.parametrize("name", [*QUERIES, *ONLY_PICKLED])
def test_queries_pickle(name):
    query = (QUERIES | ONLY_PICKLED)[name]
    again = copied(query)
    assert again == query
    assert again.made == query.made
    assert again.to_dict() == query.description()
    assert attrs.evolve(query, missing="drop-rows") != again


def test_a_query_that_was_pickled_computes_the_same():
    query = copied(QUERIES["summary"])
    np.testing.assert_array_equal(query.outputs(TABLE), QUERIES["summary"].outputs(TABLE))
    function = copied(FUNCTION)
    np.testing.assert_array_equal(function.outputs(TABLE), FUNCTION.outputs(TABLE))


def test_the_call_is_a_copy():
    wanted = ["age"]
    query = summary(mean=wanted)
    wanted.append("pay")
    assert copied(query).names == ("mean(age)",)


def test_a_pickle_that_is_another_query_here_is_refused():
    rebuild, (call, public, _) = MEANS.__reduce__()
    with pytest.raises(ScenarioError, match="another one"):
        rebuild(call, public, "0" * 64)


def share(query=MEANS, table=TABLE, **options):
    return Scenario.from_prevalence(
        table, column="ill", value="yes", within=0.1, query=query, **options
    )


def worlds(query=MEANS, **options):
    return Scenario.from_worlds(
        {"low": TABLE.slice(0, 30), "high": TABLE.slice(30)}, query=query, **options
    )


LOW, HIGH = (GaussianDistribution(mean=[m], cov=[[2.0]]) for m in (1.0, 2.0))
SCENARIOS = {
    "prevalence": share,
    "earlier": lambda: share(moments_from=EARLIER, n_rows=90, design="independent"),
    "condition": lambda: Scenario.from_prevalence(
        TABLE, column="age", value=above(45), within=0.1, query=TOTALS
    ),
    "values": lambda: Scenario.from_prevalence(
        TABLE, column="site", values=["a", "b"], within=0.1, query=MEANS
    ),
    "draws": lambda: Scenario.from_prevalence(
        TABLE,
        column="ill",
        value="yes",
        prior="draws",
        shares=[0.3, 0.4, 0.6],
        within=0.15,
        n_draws=4,
        seed=3,
        query=summary(median=["age"]),
    ),
    "volume": lambda: Scenario.from_volume(TABLE, query=TOTALS, up_to=90, name="the shop"),
    "supplier": lambda: Scenario.from_supplier(
        TABLE, column="site", value="a", query=TOTALS, up_to=40, ratio=1.2
    ),
    "attribute": lambda: Scenario.from_attribute(
        query=MEANS, values=[1, 2, 4], mean=[0, 1], cov=[[4, 1], [1, 2]], within=1.5, name="dose"
    ),
    "history": lambda: Scenario.from_attribute(
        query=queries.columns(["pay"]), history=TABLE, bins=[30, 50], name="age"
    ),
    "counts": lambda: Scenario.from_occupancy(
        {"calm": CHAIN}, length=4, positions=[0, (1, 2)], query=summary(count={"state": 1})
    ),
    "loads": lambda: Scenario.from_occupancy(
        CHAIN,
        positions=range(2),
        query=queries.group_by({"week": [1, 2]}, total=["pay"], clip={"pay": (0, 100)}),
        periods={"week": [1, 1, 2, 2]},
        loads=TABLE,
    ),
    "groups": lambda: Scenario.from_groups(TABLE, secret=SITE, query=MEANS, pairs=[("a", "c")]),
    "columns": lambda: Scenario.from_groups(TABLE, secret=["site", "ill"], query=MEANS),
    "bins": lambda: Scenario.from_records(
        TABLE, secret=Bins(column="age", edges=[50]), query=queries.columns(["pay"])
    ),
    "sampled": lambda: Scenario.from_records(
        TABLE, secret=ILL, query=queries.columns(["pay"]), source="held_out"
    ).with_sampled_priors(),
    "bootstrap": lambda: Scenario.from_bootstrap(
        TABLE, secret=ILL, query=MEANS, bootstrap=Bootstrap(n_replicates=5, seed=2)
    ),
    "worlds": lambda: worlds(name="half"),
    "gaussian": lambda: Scenario.from_worlds({"low": LOW, "high": HIGH}, query=MEANS),
    "mixture": lambda: Scenario.from_worlds(
        {"low": LOW, "high": GaussianMixture.weighted([LOW, HIGH], [0.25, 0.75])}, query=MEANS
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    pq.write_table(TABLE, tmp_path / "people.parquet")
    pq.write_table(EARLIER, tmp_path / "earlier.parquet")
    pq.write_table(TABLE.slice(0, 30), tmp_path / "low.parquet")
    pq.write_table(TABLE.slice(30), tmp_path / "high.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


FILES = {
    "table": "people.parquet",
    "moments_from": "earlier.parquet",
    "history": "people.parquet",
    "loads": "people.parquet",
}


def files_of(scenario):
    known = {name for name in FILES if name in scenario.made.named}
    files = {name: FILES[name] for name in known}
    for world in scenario.made.named.get("worlds", {}):
        if "worlds" in scenario.made.named and scenario.prior_kind != "gaussian":
            files[world] = f"{world}.parquet"
    return files


def there_and_back(scenario, folder):
    """Write a scenario in a folder, and read it again."""
    (folder / "scenario.toml").write_text(scenario.to_toml(files=files_of(scenario)))
    return Scenario.from_toml(folder / "scenario.toml")


@pytest.mark.parametrize("name", SCENARIOS)
class TestScenarios:
    def test_pickles(self, name):
        scenario = SCENARIOS[name]()
        again = copied(scenario)
        assert again == scenario
        assert hash(again) == hash(scenario)
        assert again.made == scenario.made
        assert again.to_dict() == scenario.description()

    def test_toml(self, name, folder):
        scenario = SCENARIOS[name]()
        again = there_and_back(scenario, folder)
        assert again.description() == scenario.description()
        assert again == scenario
        # And once more, from what was read from files.
        (folder / "again.toml").write_text(again.to_toml())
        assert Scenario.from_toml(folder / "again.toml") == scenario


@pytest.mark.parametrize("name", QUERIES)
def test_queries_in_toml(name, folder):
    query = QUERIES[name]
    if query.level == "row" or query.range is not None:
        build = Scenario.from_records if query.level == "row" else Scenario.from_groups
        scenario = build(TABLE, secret=ILL, query=query)
        assert there_and_back(scenario, folder) == scenario
        return
    dim = query.dim
    middle = np.full(dim, 0.5)
    declared = {
        world: GaussianDistribution(mean=middle + shift, cov=1e-4 * np.eye(dim))
        for world, shift in (("low", 0.0), ("high", 0.01))
    }
    scenario = Scenario.from_worlds(declared, query=query)
    assert there_and_back(scenario, folder) == scenario


def test_pairs_that_were_chosen_later(folder):
    scenario = SCENARIOS["loads"]()
    fewer = attrs.evolve(scenario, pairs=scenario.pairs[1:])
    assert there_and_back(fewer, folder) == fewer != scenario


def test_shipped_tables_need_no_file(folder):
    last, this = ps.datasets.adult_years()
    scenario = Scenario.from_prevalence(
        this, column="sex", value="Female", within=0.05, query=MEANS, moments_from=last
    )
    document = tomllib.loads(scenario.to_toml())
    assert document["data"]["dataset"] == "adult-this-year"
    assert document["prevalence"]["moments_from"] == "adult-last-year"
    (folder / "scenario.toml").write_text(scenario.to_toml())
    assert Scenario.from_toml(folder / "scenario.toml") == scenario


def test_files_that_were_named_are_found_from_anywhere(folder, tmp_path_factory):
    scenario = share(table="people.parquet")
    path = tmp_path_factory.mktemp("elsewhere") / "scenario.toml"
    path.write_text(scenario.to_toml())
    assert Scenario.from_toml(path) == scenario


def test_other_rows_and_other_numbers_are_other_scenarios():
    scenario = share()
    columns = {"age": np.sort(TABLE["age"].to_numpy())}
    sorted_ages = TABLE.set_column(2, "age", [columns["age"]])
    assert share(table=sorted_ages) != scenario
    assert share(table=sorted_ages).digest == scenario.digest  # which is of public facts alone
    assert share(moments_from=EARLIER).digest != scenario.digest
    assert scenario != 3
    assert math.isclose(len({scenario, share()}), 1)


def test_python_and_the_command_line_have_one_digest(folder):
    scenario = share()
    again = there_and_back(scenario, folder)
    claim = ps.Guarantee.guess(at_most=0.7)
    mine, theirs = (ps.certify_release(each, claim) for each in (scenario, again))
    assert mine.scenario_digest == theirs.scenario_digest == scenario.digest
    assert mine.digest != theirs.digest  # the salt of the evidence
    statements = [each.statement.to_json() for each in (mine, theirs)]
    for statement in statements:
        del statement["evidence_digest"]
    assert statements[0] == statements[1]


MODEL = {"features": ["age"], "target": "pay", "positive": above(30)}
REFUSED = {
    "people.csv": lambda: share().to_toml(),
    "null_values differ": lambda: share(
        table=FileTable.of("people.parquet", ["?"]), moments_from="earlier.parquet"
    ).to_toml(),
    "files names 'people'": lambda: share().to_toml(files={"people": "x.csv"}),
    "table is left out": lambda: share(
        table=None, moments_from="people.parquet", n_rows=9
    ).to_toml(),
    "row_function": lambda: Scenario.from_records(TABLE, secret=ILL, query=FUNCTION).to_toml(
        files={"table": "people.parquet"}
    ),
    "histogram": lambda: share(ONLY_PICKLED["histogram"].with_missing("middle")).to_toml(
        files={"table": "people.parquet"}
    ),
    "positive is a condition": lambda: Scenario.from_groups(
        TABLE, secret=ILL, query=queries.linear_svm(**MODEL, regularisation=1.0)
    ).to_toml(files={"table": "people.parquet"}),
    "put together": lambda: worlds().with_prior(worlds()).to_toml(),
    "a Resampled in memory": lambda: Scenario.from_worlds(
        {
            name: Resampled(
                table=TABLE.slice(start, 30), bootstrap=Bootstrap(n_replicates=3, seed=1)
            )
            for name, start in (("low", 0), ("high", 30))
        },
        query=MEANS,
    ).to_toml(),
    "probabilities": lambda: worlds(probabilities={"low": 0.4, "high": 0.6}).to_toml(
        files={"low": "low.parquet", "high": "high.parquet"}
    ),
    "the groups of 'age'": lambda: share(
        queries.contingency_table({"age": [above(30), above(50)]})
    ).to_toml(files={"table": "people.parquet"}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_toml_cannot_hold(words, folder):
    with pytest.raises(ArgumentError, match=words):
        REFUSED[words]()
