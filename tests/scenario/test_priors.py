# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pyarrow as pa
import pytest

from pufferslice.errors import ArgumentError, ScenarioError, TableError
from pufferslice.queries import Box, columns, summary, table_function
from pufferslice.scenario.distributions import EmpiricalLaw, GaussianLaw
from pufferslice.scenario.priors import (
    LAWS,
    ONE_RELEASE,
    Bootstrap,
    Prior,
    Resampled,
    bootstrap_laws,
    check_probabilities_of,
    group_laws,
    group_rows,
    record_laws,
    world_law,
)
from pufferslice.scenario.simulator import DeclaredSample, Simulator

TABLE = pa.table({"s": ["b", "a", "b", "a", "b"], "x": [4.0, 1.0, 5.0, 3.0, 9.0]})
LABELS = np.array(TABLE["s"].to_pylist())
MEAN = summary(mean=["x"])
ROW = columns(["x"])


def law_of(value):
    return EmpiricalLaw.uniform([[value]])


def prior_of(**changed):
    said = {
        "name": "p",
        "source": "held_out",
        "origin": "declared",
        "probabilities": {"a": 0.25, "b": 0.75},
        "laws": {"a": law_of(1.0), "b": law_of(2.0)},
    }
    return Prior(**{**said, **changed})


def test_every_law_says_what_one_release_is():
    assert set(ONE_RELEASE) == set(LAWS)


def test_group_laws_are_point_masses_at_the_groups_own_query():
    laws, n_rows, *_ = group_laws(MEAN, TABLE, LABELS)
    assert {secret: law.outputs.tolist() for secret, law in laws.items()} == {
        "a": [[2.0]],
        "b": [[6.0]],
    }
    assert n_rows == {"a": 2, "b": 3}


def test_record_laws_are_the_rows_of_the_group():
    laws, n_rows, *_ = record_laws(ROW, TABLE, LABELS)
    assert sorted(laws["a"].outputs[:, 0]) == [1.0, 3.0]
    assert sorted(laws["b"].outputs[:, 0]) == [4.0, 5.0, 9.0]
    assert all(law.is_uniform for law in laws.values())
    assert n_rows == {"a": 2, "b": 3}


def test_laws_are_those_of_the_clipped_and_scaled_query():
    query = ROW.with_range(Box([2.0], [6.0])).with_scales([2.0])
    laws, *_ = record_laws(query, TABLE, LABELS)
    assert sorted(laws["a"].outputs[:, 0]) == [1.0, 1.5]
    assert sorted(laws["b"].outputs[:, 0]) == [2.0, 2.5, 3.0]


def test_bootstrap_laws_resample_each_group_at_its_own_size():
    query = summary(mean=["x"], count_share=6)
    laws, n_rows, *_ = bootstrap_laws(query, TABLE, LABELS, Bootstrap(n_replicates=400, seed=3))
    assert n_rows == {"a": 2, "b": 3}
    assert set(laws["a"].outputs[:, 1]) == {2 / 6}
    assert set(laws["b"].outputs[:, 1]) == {3 / 6}
    # All means of two draws from {1, 3}, with their probabilities.
    values, counts = np.unique(laws["a"].outputs[:, 0], return_counts=True)
    assert values.tolist() == [1.0, 2.0, 3.0]
    assert counts / 400 == pytest.approx([0.25, 0.5, 0.25], abs=0.1)
    assert set(laws["b"].outputs[:, 0]) <= {
        (i + j + k) / 3 for i in (4, 5, 9) for j in (4, 5, 9) for k in (4, 5, 9)
    }


def test_bootstrap_depends_on_the_public_seed_alone():
    def outputs(seed):
        laws, *_ = bootstrap_laws(MEAN, TABLE, LABELS, Bootstrap(n_replicates=20, seed=seed))
        return laws["b"].outputs

    np.testing.assert_array_equal(outputs(1), outputs(1))
    assert not np.array_equal(outputs(1), outputs(2))


def test_groups_do_not_share_a_bootstrap_stream():
    table = pa.table({"s": ["a"] * 5 + ["b"] * 5, "x": list(range(5)) * 2})
    labels = np.array(table["s"].to_pylist())
    laws, *_ = bootstrap_laws(MEAN, table, labels, Bootstrap(n_replicates=50, seed=1))
    assert not np.array_equal(laws["a"].outputs, laws["b"].outputs)


@pytest.mark.parametrize(
    ("make", "query", "other"),
    [
        (group_laws, ROW, r"summary\(...\) or table_function\(...\)"),
        (
            lambda *said: bootstrap_laws(*said, Bootstrap(n_replicates=2, seed=0)),
            ROW,
            r"summary\(...\) or table_function\(...\)",
        ),
        (record_laws, MEAN, r"columns\(...\)"),
        (lambda query, table, _: world_law(query, "a", table), ROW, r"summary\(...\)"),
    ],
)
def test_a_query_of_the_wrong_level(make, query, other):
    with pytest.raises(ScenarioError, match=f"which is one of a {query.level}; use {other}"):
        make(query, TABLE, LABELS)


def test_rows_of_each_group_are_in_table_order():
    rows = group_rows(LABELS)
    assert {secret: where.tolist() for secret, where in rows.items()} == {
        "a": [1, 3],
        "b": [0, 2, 4],
    }


def test_one_row_is_no_group():
    with pytest.raises(ScenarioError, match=r"at least 2 rows; 2 of the \d values"):
        group_rows(np.array(["d", "a", "c", "a"]))


def test_prior_probabilities():
    prior = prior_of()
    assert prior.secret_probability("b") == 0.75
    assert prior.secret_probability("nobody") == 0.0
    assert prior.description() == {
        "name": "p",
        "source": "held_out",
        "kind": "empirical",
        "origin": "declared",
    }


def test_prior_kind():
    gaussian = GaussianLaw(mean=[0.0], cov=[[1.0]])
    both = {"a": gaussian, "b": gaussian}
    assert prior_of(laws=both, declared=both).kind == "gaussian"
    with pytest.raises(ScenarioError, match="declared"):
        prior_of(laws=both)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"source": "guess"}, "source must be one of public_model, held_out, released_data"),
        ({"laws": {}}, "laws of one kind"),
        (
            {"laws": {"a": law_of(1.0), "b": GaussianLaw(mean=[0.0], cov=[[1.0]])}},
            "laws of one kind, all empirical, all sampled or all Gaussian",
        ),
        (
            {"laws": {"a": law_of(1.0), "b": EmpiricalLaw.uniform([[0.0, 0.0]])}},
            "laws of one dimension",
        ),
    ],
)
def test_priors_that_cannot_be(changed, said):
    with pytest.raises((ArgumentError, ScenarioError), match=said):
        prior_of(**changed)


def test_no_repr_shows_data():
    secret = 123.456
    table = pa.table({"x": [secret, secret]})
    simulator = Simulator(draw_table=lambda _: table)
    bootstrap = Bootstrap(n_replicates=7, seed=1)
    shown = [
        prior_of(laws={"a": law_of(secret), "b": law_of(secret)}),
        simulator,
        simulator.declared(n_draws=3, seed=2),
        Resampled(table=table, bootstrap=bootstrap),
    ]
    assert [repr(value) for value in shown] == [
        "Prior(name='p', source='held_out', n_secrets=2)",
        "Simulator()",
        "DeclaredSample(n_draws=3, seed=2)",
        "Resampled(n_replicates=7)",
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Bootstrap(n_replicates=1, seed=0),
        lambda: Bootstrap(n_replicates=2.5, seed=0),
        lambda: Bootstrap(n_replicates=2, seed=-1),
        lambda: DeclaredSample(simulator=Simulator(draw_table=lambda _: TABLE), n_draws=0, seed=1),
        lambda: Simulator(draw_table=lambda _: TABLE).declared(n_draws=1, seed=None),
    ],
)
def test_numbers_of_a_resampling(make):
    with pytest.raises(ArgumentError, match="must be a whole number and at least"):
        make()


def test_a_world_that_is_one_table():
    law, origin, *_ = world_law(MEAN, "a", TABLE)
    assert law.outputs.tolist() == [[4.4]]
    assert origin == "the query on one table per world"


def test_a_world_of_several_tables():
    law, origin, *_ = world_law(MEAN, "a", [TABLE, TABLE.slice(0, 2)])
    assert law.outputs.tolist() == [[4.4], [2.5]]
    assert "2 given tables per world, equally likely" in origin


def test_a_world_of_resampled_tables():
    resampled = Resampled(table=TABLE, bootstrap=Bootstrap(n_replicates=30, seed=4))
    law, origin, *_ = world_law(summary(mean=["x"], count_share=5), "a", resampled)
    assert law.n_samples == 30
    assert set(law.outputs[:, 1]) == {1.0}
    assert len(set(law.outputs[:, 0])) > 5
    assert "public seed 4" in origin
    assert "the drawn sample is declared to be the prior" in origin


def test_a_world_that_is_a_declared_sample():
    simulator = Simulator(draw_table=lambda rng: pa.table({"x": rng.normal(size=3)}))
    law, origin, *_ = world_law(MEAN, "a", simulator.declared(n_draws=25, seed=8))
    again, *_ = world_law(MEAN, "a", simulator.declared(n_draws=25, seed=8))
    other, *_ = world_law(MEAN, "b", simulator.declared(n_draws=25, seed=8))
    assert law == again
    assert law != other
    assert len(set(law.outputs[:, 0])) == 25
    assert origin == (
        "25 draws of a simulator, public seed 8; the drawn sample is declared to be the prior"
    )


def test_worlds_with_long_names_do_not_share_a_stream():
    """Shared streams would hide in one world's sample what differs in the other's."""
    sample = Simulator(draw_table=lambda rng: pa.table({"x": rng.normal(size=3)})).declared(
        n_draws=5, seed=8
    )
    low, *_ = world_law(MEAN, "low prevalence", sample)
    high, *_ = world_law(MEAN, "high prevalence", sample)
    assert low != high


def test_a_simulator_is_refused_with_the_way_out():
    with pytest.raises(ScenarioError, match=r"'a' is a simulator.*simulator.declared\(n_draws="):
        world_law(MEAN, "a", Simulator(draw_table=lambda _: TABLE))


def test_a_declared_finite_law_is_clipped_and_scaled_with_its_weights():
    query = MEAN.with_range(Box([0.0], [5.0])).with_scales([10.0])
    declared = EmpiricalLaw.weighted([[1.0], [50.0]], [0.25, 0.75])
    law, origin, *_ = world_law(query, "a", declared)
    assert law.outputs.tolist() == [[0.1], [0.5]]
    assert (law.counts / law.total).tolist() == [0.25, 0.75]
    assert origin == "declared finite laws"


def test_a_gaussian_world_is_scaled():
    query = summary(mean=["x", "y"]).with_scales([2.0, 5.0])
    law, origin, *_ = world_law(
        query, "a", GaussianLaw(mean=[4.0, 10.0], cov=[[4.0, 1.0], [1.0, 9.0]])
    )
    assert law.mean.tolist() == [2.0, 2.0]
    assert law.cov == pytest.approx(np.array([[1.0, 0.1], [0.1, 0.36]]))
    assert origin == "declared Gaussian laws"


def test_a_gaussian_world_of_another_dimension():
    with pytest.raises(ScenarioError, match="the query's 1 coordinates, got 2"):
        world_law(MEAN, "a", GaussianLaw(mean=[0.0, 0.0], cov=np.eye(2)))


def test_a_clipped_query_has_no_gaussian_law():
    query = MEAN.with_range(Box([0.0], [1.0]))
    with pytest.raises(ScenarioError, match="leave the range out"):
        world_law(query, "a", GaussianLaw(mean=[0.0], cov=[[1.0]]))


def test_missing_values_of_a_world_are_refused():
    with pytest.raises(TableError, match="1 missing values in 2 rows"):
        world_law(MEAN, "a", pa.table({"x": [1.0, None]}))


def test_outputs_that_are_not_finite_are_counted_not_shown():
    query = table_function(
        lambda _: [float("nan")], names=["v"], columns=["x"], description="not a number"
    )
    with pytest.raises(ScenarioError, match="1 of 1 values are NaN"):
        world_law(query, "a", TABLE)


@pytest.mark.parametrize(
    ("probabilities", "said"),
    [
        ({"a": 1.0}, "'b' is missing"),
        ({"a": 0.5, "b": 0.6}, "must sum to 1"),
        ({"a": -0.5, "b": 1.5}, r"probabilities\['a'\] must be"),
        ({"a": float("nan"), "b": 1.0}, r"probabilities\['a'\] must be"),
    ],
)
def test_probabilities_that_are_none(probabilities, said):
    with pytest.raises(ArgumentError, match=said):
        check_probabilities_of(["a", "b"], probabilities)


def test_no_probability_is_negative_named_or_not():
    with pytest.raises(ArgumentError, match="'c'"):
        check_probabilities_of(["a", "b"], {"a": 1.0, "b": 1.0, "c": -1.0})


def test_good_probabilities_pass():
    check_probabilities_of(["a", "b"], {"a": 0.0, "b": 1.0})


def test_bootstrap_replicates_are_not_drawn_from_the_stream_of_slices():
    """Slices with the same seed must not depend on the sample."""
    table = pa.table({"s": ["a"] * 1_000, "x": np.arange(1_000.0)})
    bootstrap = Bootstrap(n_replicates=3, seed=7)
    laws, *_ = bootstrap_laws(MEAN, table, np.full(1_000, "a"), bootstrap)
    found = laws["a"].outputs[:, 0]
    for stream, used in (7, False), ([7, 0], False), ([7, 1], True):
        rows = np.random.default_rng(stream).integers(1_000, size=(3, 1_000))
        assert np.array_equal(found, rows.mean(axis=1)) is used
