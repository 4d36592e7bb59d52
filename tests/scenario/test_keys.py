# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""A ledger knows a secret by its name: no other change of a scenario makes another secret of it."""

import itertools

import numpy as np
import pyarrow as pa
import pytest

from pufferslice import (
    Bins,
    Bootstrap,
    GaussianDistribution,
    Guarantee,
    Scenario,
    certify_release,
    release,
)
from pufferslice.errors import AlreadyReleasedError
from pufferslice.queries import above, at_least, at_most, below, columns, equals, summary
from pufferslice.scenario.keys import key_of

RNG = np.random.default_rng(4)
N = 200
SEX = ["Female", "Male", "Male", "Male"] * (N // 4)
RACE = ["Black", "White", "White", "Asian", "White"] * (N // 5)
COLUMNS = {
    "sex": SEX,
    "race": RACE,
    "minor": [1, 0, 0, 0] * (N // 4),
    "age": RNG.integers(20, 60, N).tolist(),
    "hours": RNG.integers(10, 50, N).tolist(),
}
TABLE = pa.table(COLUMNS)
MEAN = summary(mean=["age"], clip={"age": (17, 90)})
TOTAL = summary(total=["age"], clip={"age": (17, 90)})


def changed(**columns):
    return pa.table(COLUMNS | columns)


def prevalence(table=TABLE, **options):
    settings = {"column": "sex", "value": "Female", "within": 0.05, "query": MEAN}
    if "values" in options:
        del settings["value"]
    return Scenario.from_prevalence(table, **(settings | options))


def meet(*scenarios):
    return all(
        not set(a.ledger_keys()).isdisjoint(b.ledger_keys())
        for a, b in itertools.combinations(scenarios, 2)
    )


def one_cell(column, value, place=0):
    values = list(COLUMNS[column])
    values[place] = value
    return changed(**{column: values})


EARLIER = changed(age=[age + 1 for age in COLUMNS["age"]])
SAME_SHARE = {
    "a width": prevalence(within=0.0525),
    "another query": prevalence(query=summary(mean=["hours"], clip={"hours": (1, 99)})),
    "other rows": prevalence(EARLIER),
    "moments": prevalence(moments_from=EARLIER),
    "only moments": prevalence(None, moments_from=EARLIER, n_rows=N),
    "design": prevalence(design="independent"),
    "number of rows": prevalence(n_rows=N + 1),
    "order of rows": prevalence(TABLE.take(np.arange(N)[::-1].copy())),
    "one cell of another column": prevalence(one_cell("age", 31)),
    "one cell": prevalence(one_cell("sex", "Male")),
    "one missing cell": prevalence(one_cell("sex", None)),
    "one cell with a new label": prevalence(one_cell("sex", "other")),
    "the other value": prevalence(value="Male"),
    "the other value, of a table with a new label": prevalence(one_cell("sex", "x"), value="Male"),
    "both values": prevalence(values=["Female", "Male"]),
    "a condition": prevalence(value=equals("Female")),
    "draws": prevalence(
        prior="draws",
        query=summary(median=["age"]),
        shares=[0.2, 0.25],
        within=None,
        seed=1,
        n_draws=5,
    ),
    "other letters": prevalence(changed(sex=[f" {sex.upper()}" for sex in SEX]), value=" FEMALE"),
    "other labels": prevalence(
        changed(sex=["F" if s == "Female" else "M" for s in SEX]), value="F"
    ),
    "a supplier": Scenario.from_supplier(
        TABLE, column="sex", value="Female", query=TOTAL, up_to=90
    ),
}


@pytest.mark.soundness
@pytest.mark.parametrize("change", SAME_SHARE)
def test_a_share_is_known_by_its_column_and_split(change):
    assert meet(prevalence(), SAME_SHARE[change])


@pytest.mark.soundness
@pytest.mark.parametrize("label", [None, "x"])
def test_both_values_of_a_table_with_one_other_cell(label):
    """Else whoever releases both shares of a table with a misspelt cell gets both."""
    table = one_cell("sex", label)
    assert meet(prevalence(table), prevalence(table, value="Male"))


def test_several_values_meet_each_of_them():
    both = prevalence(column="race", values=["Black", "White"])
    single = [prevalence(column="race", value=value) for value in ("Black", "White", "Asian")]
    for scenario in single:
        assert meet(both, scenario)
    for a, b in itertools.combinations(single, 2):
        assert not meet(a, b)
    assert not meet(both, prevalence())


def test_conditions_that_are_the_same_split():
    older, younger = (
        prevalence(column="age", value=above(40)),
        prevalence(column="age", value=at_most(40)),
    )
    assert meet(older, younger)
    at_work, not_at_work = (
        prevalence(column="hours", value=at_least(30)),
        prevalence(column="hours", value=below(30)),
    )
    assert meet(at_work, not_at_work)
    assert not meet(older, prevalence(column="age", value=above(41)))
    assert not meet(older, at_work)
    # numbers with two values: whatever the words
    minors = [prevalence(column="minor", value=value) for value in (1, 0, above(0), below(1))]
    assert meet(*minors)


def occupancy(**options):
    settings = {"length": 12, "positions": [5], "query": summary(count={"state": 1})}
    return Scenario.from_occupancy([[0.9, 0.1], [0.2, 0.8]], **(settings | options))


def loads(**options):
    slots = pa.table({"state": [0, 1] * 20, "kwh": np.arange(40.0)})
    query = summary(total=["kwh"], clip={"kwh": (0, 40)})
    return occupancy(loads=slots, query=query, **options)


def attribute(**options):
    settings = {
        "values": [0.0, 2.0],
        "mean": [0.0, 1.0],
        "cov": [[4.0, 2.0], [2.0, 3.0]],
        "query": summary(mean=["a"]),
    }
    return Scenario.from_attribute(**(settings | options))


def worlds(low=0.0, names=("low", "high"), **options):
    made = {name: GaussianDistribution(mean=[low + k], cov=[[1.0]]) for k, name in enumerate(names)}
    return Scenario.from_worlds(made, query=summary(mean=["a"]), **options)


def volume(**options):
    return Scenario.from_volume(TABLE, **({"query": TOTAL, "up_to": 300} | options))


def supplier(value, **options):
    settings = {"column": "race", "value": value, "query": TOTAL, "up_to": 90}
    return Scenario.from_supplier(TABLE, **(settings | options))


SEX_QUERY = summary(mean=["age"])
BOOTSTRAP = Bootstrap(n_replicates=5, seed=1)
SAME = {
    "volume": [volume(), volume(ratio=1.2), volume(up_to=250), volume(moments_from=EARLIER)],
    "supplier": [supplier("Black"), supplier("Black", ratio=1.3, up_to=80)],
    "occupancy": [
        occupancy(),
        occupancy(positions=[1, 2]),
        occupancy(length=14),
        occupancy(start=[0.5, 0.5]),
        loads(),
        loads(positions=[(3, 4)]),
    ],
    "attribute": [attribute(), attribute(values=[1.0, 5.0, 9.0]), attribute(mean=[1.0, 2.0])],
    "worlds": [worlds(), worlds(3.0), worlds(names=("then", "now")), worlds(names=("a", "b", "c"))],
    "groups": [
        Scenario.from_groups(TABLE, secret="race", query=SEX_QUERY),
        Scenario.from_groups(EARLIER, secret="race", query=SEX_QUERY, pairs=[("Black", "White")]),
        Scenario.from_bootstrap(TABLE, secret="race", query=SEX_QUERY, bootstrap=BOOTSTRAP),
        Scenario.from_records(TABLE, secret="race", query=columns(["age"])),
        Scenario.from_groups(TABLE, secret=["race", "sex"], query=SEX_QUERY),
    ],
    "bins": [
        Scenario.from_groups(TABLE, secret=Bins(column="hours", quantiles=k), query=SEX_QUERY)
        for k in (2, 4)
    ],
}
NAMED = {
    "volume": volume(name="the shop"),
    "supplier": supplier("White"),
    "occupancy": occupancy(name="the other home"),
    "loads": loads(name="a third home"),
    "attribute": attribute(name="other"),
    "worlds": worlds(name="other world"),
    "groups": Scenario.from_groups(TABLE, secret="sex", query=SEX_QUERY),
}


@pytest.mark.soundness
@pytest.mark.parametrize("kind", SAME)
def test_a_secret_is_known_by_its_name(kind):
    assert meet(*SAME[kind])


def test_secrets_with_other_names_do_not_meet():
    scenarios = [*(scenarios[0] for scenarios in SAME.values()), *NAMED.values(), prevalence()]
    for a, b in itertools.combinations(scenarios, 2):
        assert not meet(a, b)


def test_keys_are_stable():
    """A ledger keeps them: another key would forget what was released."""
    assert key_of("The\u00a0 SHOP ") == key_of("the shop")
    assert key_of("the shop") == (
        "9842554249d2cc545f6303da94b3a882e4dd10ebf3cdc8101a1afde947ab16bb"
    )


def test_joined_priors_keep_all_keys():
    one = worlds()
    assert meet(one, one.with_prior(worlds(3.0)))


@pytest.mark.soundness
def test_a_second_certificate_is_refused_whatever_was_changed(tmp_path):
    """By the release itself: five points or five and a quarter, one row corrected, Male."""
    claim = Guarantee.guess(at_most=0.7)
    first = prevalence(moments_from=EARLIER)
    release(first, TABLE, certify_release(first, claim), ledger=tmp_path / "ledger")
    for scenario, table in (
        (prevalence(moments_from=EARLIER, within=0.0525), TABLE),
        (prevalence(one_cell("age", 31), moments_from=EARLIER), one_cell("age", 31)),
        (prevalence(moments_from=EARLIER, value="Male"), TABLE),
        (prevalence(moments_from=EARLIER, query=summary(rate={"minor": 1})), TABLE),
    ):
        with pytest.raises(AlreadyReleasedError, match="same secret"):
            release(scenario, table, certify_release(scenario, claim), ledger=tmp_path / "ledger")
    other = prevalence(column="race", value="Black", moments_from=EARLIER)
    release(other, TABLE, certify_release(other, claim), ledger=tmp_path / "ledger")
