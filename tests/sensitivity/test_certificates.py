# SPDX-License-Identifier: Apache-2.0
"""Certificates of streamed rows beside those of the same rows in memory."""

import attrs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pufferslice.calibration.calibrate import Method, calibrate
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.certificate import certify_release, verify
from pufferslice.queries import Box, columns
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity import (
    DistributionPair,
    RowScan,
    gap_tables,
    scan_tables,
    streamed_scenario,
)
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.sensitivity import Slices

GROUP = "group"
QUERY = columns(["x", "y"]).with_range(Box([-8, -8], [8, 8]))
PROFILE = FiniteProfile.of([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-0.8, 0.6]])
ROUNDED = 1 + 1 / 256
METHODS = [
    Method(rule="tight", envelope="transport"),
    Method(rule="tight", envelope="worst_gap"),
    Method(rule="closed_form", envelope="worst_gap"),
]
TARGETS = [Guarantee.joint(order=4, epsilon=1.0), Guarantee.average(order=2, epsilon=0.5)]


@st.composite
def tables(draw):
    """Two groups; many values are on edges of the 64 bins, and some beyond the range."""
    on_edge = st.integers(-36, 36).map(lambda k: k / 4)
    value = st.one_of(on_edge, st.floats(-9, 9, width=32))
    sizes = draw(st.tuples(st.integers(2, 12), st.integers(2, 12)))
    n = sum(sizes)
    numbers = [draw(st.lists(value, min_size=n, max_size=n)) for _ in range(2)]
    # One row tells the groups apart by more than a bin, so that noise is needed on both roads.
    numbers[0][0], numbers[0][-1] = -8.0, 8.0
    # A column that does not vary is refused.
    numbers[1][0], numbers[1][-1] = -1.0, 1.0
    groups = ["a"] * sizes[0] + ["b"] * sizes[1]
    return pa.table({"group": groups, "x": numbers[0], "y": numbers[1]})


def noise_of(scenario, target, method):
    certificate = certify_release(scenario, target.along(PROFILE), method=method)
    assert verify(certificate).holds
    return certificate.statement["noise"]["std"]


def ceiling(exact, scan, target, method):
    """The noise of the exact gaps, each wider by two bins and twice the projection error."""
    distributions = list(exact.priors[0].distributions.values())
    found = gap_tables(distributions, [DistributionPair(0, 1)], PROFILE.directions)
    price = float((2 * scan.grid.widths + 2 * scan.grid.errors).max())
    wider = attrs.evolve(found, gaps=(found.gaps + price) * ROUNDED, equal=np.array([False]))
    return calibrate(target, Slices(profile=PROFILE, seen=wider), method)


@pytest.mark.soundness
@pytest.mark.parametrize("target", TARGETS, ids=["joint", "average"])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.rule}-{m.envelope}")
@given(table=tables(), cut=st.integers(1, 5))
@settings(max_examples=25)
def test_noise_is_that_of_the_exact_road_up_to_the_stated_error(table, cut, target, method):
    scan = RowScan.of(QUERY, secret=GROUP, profile=PROFILE, n_bins=64)
    parts = [table.slice(start, cut) for start in range(0, table.num_rows, cut)]
    streamed = streamed_scenario(scan_tables(parts, scan), scan)
    exact = Scenario.from_records(table, secret=GROUP, query=QUERY)
    ours = noise_of(streamed, target, method)
    true = noise_of(exact, target, method)
    # Both roads round gaps up to 1/256; bins may round a gap less than the exact road does.
    assert ours >= true / ROUNDED
    assert ours <= ceiling(exact, scan, target, method) * (1 + 1e-9)


def test_the_unsliced_bound_is_that_of_the_range():
    """alpha diam^2 / (2 sigma^2): rows were not kept, so no matching of them is known."""
    rng = np.random.default_rng(5)
    table = pa.table(
        {"group": ["a", "b"] * 50, **dict(zip("xy", rng.normal(size=(2, 100)), strict=True))}
    )
    scan = RowScan.of(QUERY, secret=GROUP, profile=PROFILE, n_bins=64)
    scenario = streamed_scenario(scan_tables([table], scan), scan)
    statement = certify_release(scenario, TARGETS[0].along(PROFILE)).statement
    diameter, std = 16 * 2**0.5, statement["noise"]["std"]
    assert statement["unsliced"]["epsilon"] == pytest.approx(4 * diameter**2 / (2 * std**2))
    assert statement["failure_probability"] == 0
