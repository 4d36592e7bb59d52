# SPDX-License-Identifier: Apache-2.0
"""Scales that a public table proposes: what one row contributes, to one digit."""

import numpy as np
import pyarrow as pa
import pytest

from pufferslice.errors import TableError
from pufferslice.queries import columns, group_by, summary

N = 4_000
RNG = np.random.default_rng(2)
AGE = RNG.normal(40, 3.0, N)
TABLE = pa.table({"age": AGE, "ill": np.where(np.arange(N) % 10 == 0, "yes", "no")})


def test_known_answers():
    query = summary(mean=["age"], rate={"ill": "yes"}, total=["age"], std=["age"])
    # The spread of an estimated standard deviation of normal numbers is std / sqrt(2) per row.
    assert query.scaled_from(TABLE).scales.tolist() == [3.0, 0.3, 10_000.0, 2.0]


def test_a_group_has_fewer_rows():
    query = group_by({"ill": ["yes"]}, mean=["age"])
    std = AGE[::10].std()
    # One of ten rows is in the group, so its mean varies as that of a tenth of the rows.
    assert query.scaled_from(TABLE).scales.tolist() == [float(f"{std * np.sqrt(10):.0e}")]


def test_single_rows():
    query = columns(["age"], flags={"ill": "yes"})
    assert query.scaled_from(TABLE).scales.tolist() == [3.0, 0.3]


def test_statistics_without_a_formula_vary_between_parts():
    (unit,) = summary(median=["age"]).scaled_from(TABLE).scales
    # The median of normal numbers: 3 sqrt(pi / 2) = 3.76, here from 20 parts.
    assert 2.0 <= unit <= 6.0


def test_scales_by_name_come_after():
    query = summary(mean=["age"], rate={"ill": "yes"}).scaled_from(TABLE).with_scales({"age": 7})
    assert query.scales.tolist() == [7.0, 0.3]


def test_missing_values_follow_the_policy():
    table = pa.table({"age": [1.0, None, 3.0]})
    with pytest.raises(TableError, match="missing"):
        summary(mean=["age"]).scaled_from(table)
    assert summary(mean=["age"]).with_missing("drop-rows").scaled_from(table).scales == [1.0]
