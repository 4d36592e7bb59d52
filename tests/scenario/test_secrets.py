# SPDX-License-Identifier: Apache-2.0
import pyarrow as pa
import pytest

from pufferslice.data.frames import frame_of
from pufferslice.scenario.secrets import (
    Bins,
    BinSecret,
    ColumnSecret,
    EdgeSecret,
    secret_columns,
    secret_rule,
)


def test_labels_of_one_and_of_several_columns():
    table = {"sex": ["f", "m", "f"], "site": [1.0, 2.0, 2.5], "sick": [True, False, True]}
    frame = frame_of(pa.table(table))
    assert ColumnSecret(columns=("sick",)).labels(frame).tolist() == ["True", "False", "True"]
    labels = ColumnSecret(columns=("sex", "site")).labels(frame)
    assert labels.tolist() == ["f & 1", "m & 2", "f & 2.5"]


@pytest.mark.parametrize(
    ("secret", "columns"),
    [
        ("race", ("race",)),
        (["sex", "race"], ("sex", "race")),
        (("race",), ("race",)),
        (Bins(column="G3", quantiles=5), ("G3",)),
        (Bins(column="G3", edges=[10]), ("G3",)),
    ],
)
def test_columns_that_a_secret_reads(secret, columns):
    assert secret_columns(secret) == columns


def test_bins_by_hand():
    """Median of 0..5 is 2.5; the quartiles of 0..4 are 1, 2, 3, and an edge is of the lower bin."""
    frame = frame_of(pa.table({"x": [0, 1, 2, 3, 4, 5]}))
    halves = secret_rule(Bins(column="x", quantiles=2), [frame])
    assert halves.edges.tolist() == [2.5]
    assert halves.labels(frame).tolist() == ["x q1/2"] * 3 + ["x q2/2"] * 3
    frame = frame_of(pa.table({"x": [0, 1, 2, 3, 4]}))
    quarters = secret_rule(Bins(column="x", quantiles=4), [frame])
    assert quarters.labels(frame).tolist() == ["x q1/4", "x q1/4", "x q2/4", "x q3/4", "x q4/4"]


def test_bins_outside_the_seen_values_are_the_outer_ones():
    rule = BinSecret(column="x", edges=[0.0, 1.0])
    frame = frame_of(pa.table({"x": [-1e9, 0.0, 0.5, 1e9]}))
    assert rule.labels(frame).tolist() == ["x q1/3", "x q1/3", "x q2/3", "x q3/3"]


def test_bins_are_those_of_all_tables_together():
    low, high = (frame_of(pa.table({"x": [0.0 + far, 1.0 + far]})) for far in (0, 10))
    rule = secret_rule(Bins(column="x", quantiles=2), [low, high])
    assert set(rule.labels(low)) == {"x q1/2"}
    assert set(rule.labels(high)) == {"x q2/2"}


def test_edges_are_data_and_stay_out_of_sight():
    rule = secret_rule(Bins(column="x", quantiles=2), [frame_of(pa.table({"x": [0.0, 12.25]}))])
    assert rule.description() == {"columns": ["x"], "quantiles": 2}
    assert "6.125" not in repr(rule)


def test_bins_between_public_edges_by_hand():
    """A value on an edge is of the upper bin; the edges do not depend on the rows."""
    rule = secret_rule(Bins(column="x", edges=[0, 2.5]), [])
    assert rule == EdgeSecret(column="x", edges=(0.0, 2.5))
    assert rule.names == ("x < 0", "0 <= x < 2.5", "x >= 2.5")
    frame = frame_of(pa.table({"x": [-1e9, -0.5, 0.0, 2.4, 2.5, 1e9]}))
    assert rule.labels(frame).tolist() == [name for name in rule.names for _ in range(2)]
    assert rule.description() == {"columns": ["x"], "edges": [0.0, 2.5]}
