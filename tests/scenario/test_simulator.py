# SPDX-License-Identifier: Apache-2.0
"""Simulators: independent draws in blocks from public seeds, sampled or declared."""

import numpy as np
import pyarrow as pa
import pytest

from pufferslice.errors import ScenarioError
from pufferslice.queries import Box, summary
from pufferslice.scenario import simulator
from pufferslice.scenario.distributions import SampledDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.scenario.simulator import (
    OutputSimulator,
    Simulator,
    stable_number,
)

QUERY = summary(mean=["x"]).with_range(Box([-2], [2])).with_scales([2])
TABLES = Simulator(draw_table=lambda rng: pa.table({"x": rng.normal(size=4)}))
OUTPUTS = OutputSimulator(draw_outputs=lambda rng, n: rng.normal(size=(n, 1)))


@pytest.mark.parametrize("simulator", [TABLES, OUTPUTS])
def test_sampled_worlds_have_sampled_distributions(simulator):
    worlds = {name: simulator.sampled(n_draws=30, seed=4) for name in ("a", "b")}
    scenario = Scenario.from_worlds(worlds, query=QUERY)
    assert scenario.prior_kind == "sampled"
    prior = scenario.priors[0]
    assert prior.source == "public_model"
    assert prior.origin == (
        "a simulator, known through 30 independent draws per world, public seed 4"
    )
    distributions = prior.distributions
    assert isinstance(distributions["a"], SampledDistribution)
    assert distributions["a"].n_samples == 30
    assert np.abs(distributions["a"].outputs).max() <= 1
    assert distributions["a"] != distributions["b"]
    assert (
        distributions["a"] == Scenario.from_worlds(worlds, query=QUERY).priors[0].distributions["a"]
    )


def test_blocks_have_their_own_streams(monkeypatch):
    """The number of draws changes only the last block."""
    monkeypatch.setattr(simulator, "DRAWS_PER_BLOCK", 8)
    few, many = (OUTPUTS.sampled(n_draws=n, seed=1).outputs(QUERY, "a") for n in (20, 24))
    assert len(few) == 20
    assert np.array_equal(few[:16], many[:16])
    second = np.random.default_rng([1, stable_number("a"), 1]).normal(size=(8, 1))
    assert np.array_equal(few[8:16], second)
    assert not np.array_equal(few[:8], few[8:16])


def test_outputs_that_are_not_numbers_are_refused_and_not_shown():
    wrong = OutputSimulator(draw_outputs=lambda rng, n: [["Ada"]] * n).sampled(n_draws=3, seed=0)
    with pytest.raises(ScenarioError, match="array of numbers") as caught:
        Scenario.from_worlds({"a": wrong, "b": wrong}, query=QUERY)
    assert "Ada" not in str(caught.value)


def test_reprs_show_no_draws():
    assert repr(TABLES) == "Simulator()"
    assert repr(OUTPUTS) == "OutputSimulator()"
    assert repr(OUTPUTS.sampled(n_draws=3, seed=1)) == "SimulatedSample(n_draws=3, seed=1)"
    assert repr(TABLES.declared(n_draws=3, seed=1)) == "DeclaredSample(n_draws=3, seed=1)"
