# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""Small scenarios of every kind of distribution, and their certificates."""

import numpy as np
import pyarrow as pa
import pytest

from pufferslice.certificate import certify_release
from pufferslice.claims import Guarantee
from pufferslice.queries import Box, columns, summary
from pufferslice.scenario.distributions import FiniteDistribution, GaussianDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile

JOINT = Guarantee.joint(order=2, epsilon=1.0)


def made_table(seed):
    rng = np.random.default_rng(seed)
    sites = np.repeat(["north", "south", "west"], [60, 30, 10])
    shift = np.repeat([0.0, 1.0, 2.0], [60, 30, 10])
    pay = np.clip(rng.normal(3.0 + shift, 1.0), 0, 10)
    return pa.table({"site": sites, "pay": pay, "age": rng.uniform(20, 60, 100)})


@pytest.fixture(scope="session")
def profile():
    return FiniteProfile.uniform(dim=2, n_directions=6, seed=7)


@pytest.fixture(scope="session")
def records():
    query = columns(["pay", "age"]).with_range(Box([0, 0], [10, 100])).with_scales([1.0, 10.0])
    return Scenario.from_records(made_table(1), secret="site", query=query)


@pytest.fixture(scope="session")
def two_priors():
    tables = {"now": made_table(1), "then": made_table(2)}
    return Scenario.from_groups(tables, secret="site", query=summary(mean=["pay", "age"]))


@pytest.fixture(scope="session")
def gaussian():
    worlds = {
        "low": GaussianDistribution(mean=[0.0, 0.0], cov=[[1.0, 0.3], [0.3, 2.0]]),
        "high": GaussianDistribution(mean=[2.0, 1.0], cov=np.eye(2)),
    }
    query = summary(mean=["x", "y"]).with_scales([1.0, 2.0])
    return Scenario.from_worlds(worlds, query=query, source="public_model")


@pytest.fixture(scope="session")
def weighted():
    """Two atoms of unequal weight against one, on the line."""
    worlds = {
        "often": FiniteDistribution.weighted([[0.0], [4.0]], [0.25, 0.75]),
        "never": FiniteDistribution.uniform([[0.0]]),
    }
    return Scenario.from_worlds(worlds, query=summary(mean=["x"]), source="public_model")


@pytest.fixture(scope="session")
def certificates(profile, records, two_priors, gaussian, weighted):
    """By scenario."""
    line = FiniteProfile.axes(dim=1)
    return {
        id(scenario): certify_release(scenario, JOINT.along(line if scenario.dim == 1 else profile))
        for scenario in (records, two_priors, gaussian, weighted)
    }
