# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pyarrow as pa
import pytest

from pufferslice.data.frames import frame_of
from pufferslice.errors import ScenarioError
from pufferslice.queries import Box, columns, summary
from pufferslice.scenario.distributions import FiniteDistribution, GaussianDistribution
from pufferslice.scenario.priors import (
    Bootstrap,
    Prior,
    Resampled,
    grouped_prior,
    world_distribution,
)
from pufferslice.scenario.simulator import Simulator

TABLE = pa.table({"s": ["b", "a", "b", "a", "b"], "x": [4.0, 1.0, 5.0, 3.0, 9.0]})
LABELS = np.array(TABLE["s"].to_pylist())
MEAN = summary(mean=["x"])
ROW = columns(["x"])


def distribution_of(value):
    return FiniteDistribution.uniform([[value]])


def grouped(query, distribution, bootstrap=None, table=TABLE, labels=LABELS):
    about = ("p", "held_out", "declared")
    return grouped_prior(*about, query, frame_of(table), labels, distribution, bootstrap)[0]


def prior_of(**changed):
    fields = {
        "name": "p",
        "source": "held_out",
        "origin": "declared",
        "probabilities": {"a": 0.25, "b": 0.75},
        "distributions": {"a": distribution_of(1.0), "b": distribution_of(2.0)},
    }
    return Prior(**{**fields, **changed})


def test_record_distributions_are_the_rows_of_the_group():
    prior = grouped(ROW, "records")
    distributions = prior.distributions
    assert sorted(distributions["a"].outputs[:, 0]) == [1.0, 3.0]
    assert sorted(distributions["b"].outputs[:, 0]) == [4.0, 5.0, 9.0]
    assert all(distribution.is_uniform for distribution in distributions.values())
    assert prior.n_rows == {"a": 2, "b": 3}


def test_distributions_are_those_of_the_clipped_and_scaled_query():
    query = ROW.with_range(Box([2.0], [6.0])).with_scales([2.0])
    distributions = grouped(query, "records").distributions
    assert sorted(distributions["a"].outputs[:, 0]) == [1.0, 1.5]
    assert sorted(distributions["b"].outputs[:, 0]) == [2.0, 2.5, 3.0]


def test_bootstrap_distributions_resample_each_group_at_its_own_size():
    query = summary(mean=["x"], count_share=6)
    prior = grouped(query, "bootstrap", Bootstrap(n_replicates=400, seed=3))
    distributions = prior.distributions
    assert prior.n_rows == {"a": 2, "b": 3}
    assert set(distributions["a"].outputs[:, 1]) == {2 / 6}
    assert set(distributions["b"].outputs[:, 1]) == {3 / 6}
    # All means of two draws from {1, 3}, with their probabilities.
    values, counts = np.unique(distributions["a"].outputs[:, 0], return_counts=True)
    assert values.tolist() == [1.0, 2.0, 3.0]
    assert counts / 400 == pytest.approx([0.25, 0.5, 0.25], abs=0.1)
    assert set(distributions["b"].outputs[:, 0]) <= {
        (i + j + k) / 3 for i in (4, 5, 9) for j in (4, 5, 9) for k in (4, 5, 9)
    }


def test_bootstrap_depends_on_the_public_seed_alone():
    def outputs(seed):
        prior = grouped(MEAN, "bootstrap", Bootstrap(n_replicates=20, seed=seed))
        return prior.distributions["b"].outputs

    np.testing.assert_array_equal(outputs(1), outputs(1))
    assert not np.array_equal(outputs(1), outputs(2))


def test_groups_do_not_share_a_bootstrap_stream():
    table = pa.table({"s": ["a"] * 5 + ["b"] * 5, "x": list(range(5)) * 2})
    labels = np.array(table["s"].to_pylist())
    prior = grouped(MEAN, "bootstrap", Bootstrap(n_replicates=50, seed=1), table, labels)
    distributions = prior.distributions
    assert not np.array_equal(distributions["a"].outputs, distributions["b"].outputs)


def test_prior_kind():
    gaussian = GaussianDistribution(mean=[0.0], cov=[[1.0]])
    both = {"a": gaussian, "b": gaussian}
    assert prior_of(distributions=both, declared=both).kind == "gaussian"
    with pytest.raises(ScenarioError, match="declared"):
        prior_of(distributions=both)


def test_no_repr_shows_data():
    secret = 123.456
    table = pa.table({"x": [secret, secret]})
    bootstrap = Bootstrap(n_replicates=7, seed=1)
    shown = [
        prior_of(distributions={"a": distribution_of(secret), "b": distribution_of(secret)}),
        Resampled(table=table, bootstrap=bootstrap),
    ]
    assert [repr(value) for value in shown] == [
        "Prior(name='p', source='held_out', n_secrets=2)",
        "Resampled(n_replicates=7)",
    ]


def test_a_world_that_is_a_declared_sample():
    simulator = Simulator(draw_table=lambda rng: pa.table({"x": rng.normal(size=3)}))
    distribution, origin, *_ = world_distribution(MEAN, "a", simulator.declared(n_draws=25, seed=8))
    again, *_ = world_distribution(MEAN, "a", simulator.declared(n_draws=25, seed=8))
    other, *_ = world_distribution(MEAN, "b", simulator.declared(n_draws=25, seed=8))
    assert distribution == again
    assert distribution != other
    assert len(set(distribution.outputs[:, 0])) == 25
    assert origin == (
        "25 draws of a simulator, public seed 8; the drawn sample is declared to be the prior"
    )


def test_worlds_with_long_names_do_not_share_a_stream():
    """Shared streams would hide in one world's sample what differs in the other's."""
    sample = Simulator(draw_table=lambda rng: pa.table({"x": rng.normal(size=3)})).declared(
        n_draws=5, seed=8
    )
    low, *_ = world_distribution(MEAN, "low prevalence", sample)
    high, *_ = world_distribution(MEAN, "high prevalence", sample)
    assert low != high


def test_a_declared_finite_distribution_is_clipped_and_scaled_with_its_weights():
    query = MEAN.with_range(Box([0.0], [5.0])).with_scales([10.0])
    declared = FiniteDistribution.weighted([[1.0], [50.0]], [0.25, 0.75])
    distribution, origin, *_ = world_distribution(query, "a", declared)
    assert distribution.outputs.tolist() == [[0.1], [0.5]]
    assert (distribution.counts / distribution.total).tolist() == [0.25, 0.75]
    assert origin == "declared finite distributions"


def test_a_gaussian_world_is_scaled():
    query = summary(mean=["x", "y"]).with_scales([2.0, 5.0])
    distribution, origin, *_ = world_distribution(
        query, "a", GaussianDistribution(mean=[4.0, 10.0], cov=[[4.0, 1.0], [1.0, 9.0]])
    )
    assert distribution.mean.tolist() == [2.0, 2.0]
    assert distribution.cov == pytest.approx(np.array([[1.0, 0.1], [0.1, 0.36]]))
    assert origin == "declared Gaussian distributions"


def test_bootstrap_replicates_are_not_drawn_from_the_stream_of_slices():
    """Slices with the same seed must not depend on the sample."""
    table = pa.table({"s": ["a"] * 1_000, "x": np.arange(1_000.0)})
    bootstrap = Bootstrap(n_replicates=3, seed=7)
    prior = grouped(MEAN, "bootstrap", bootstrap, table, np.full(1_000, "a"))
    found = prior.distributions["a"].outputs[:, 0]
    for stream, used in (7, False), ([7, 0], False), ([7, 1], True):
        rows = np.random.default_rng(stream).integers(1_000, size=(3, 1_000))
        assert np.array_equal(found, rows.mean(axis=1)) is used
