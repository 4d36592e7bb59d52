# SPDX-License-Identifier: Apache-2.0
"""Second moments of a design: which are released, their values, and the recipe in a certificate."""

import numpy as np
import pyarrow as pa
import pytest

from pufferslice import Guarantee, Scenario, certify_release
from pufferslice.data.frames import frame_of
from pufferslice.queries import above, hours, intervals, join, second_moments, summary
from pufferslice.queries.moments import MOST_MOMENTS, Design

TABLE = pa.table(
    {
        "age": [20, 30, 50, 90, None, 95],
        "sex": ["F", "M", "F", "M", "F", None],
        "kind": ["a", "b", "c", "a", "b", "a"],
        "ill": ["yes", "no", "no", "yes", "yes", "no"],
    }
)
QUERY = second_moments(
    target={"ill": "yes"},
    numbers=["age"],
    levels={"sex": ["F"], "kind": ["a", "b"]},
    clip={"age": (10, 90)},
    missing={"sex": "F"},
)


def test_moments_by_hand():
    age = np.array([-30, -20, 0, 40, 0, 40.0])  # less the middle, which a missing value counts as
    columns = np.column_stack(
        [age, [1, 0, 1, 0, 1, 1], [1, 0, 0, 1, 0, 1], [0, 1, 0, 0, 1, 0], [1, 0, 0, 1, 1, 0]]
    )
    design = Design.read(QUERY.parameters)
    features, places = design.moments()
    sums = QUERY.as_sums()
    assert features.names == QUERY.names == sums.names
    released = np.append([float(x) for x in features.outputs(frame_of(TABLE), 20)], 0.0)
    # The grid has 2^20 steps.
    np.testing.assert_allclose(released[places], columns.T @ columns / 6, atol=1e-3)
    np.testing.assert_allclose(released[:5], columns.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(design.matrix(TABLE), columns[:, :4] + [50, 0, 0, 0])
    np.testing.assert_allclose(design.answers(TABLE), columns[:, 4])
    assert design.names == ("age", "sex = F", "kind = a", "kind = b")


def test_what_a_public_rule_gives_is_not_released():
    # 4 means and the target's; products of 5 columns without 4 squares and one exclusive pair.
    assert QUERY.dim == 5 + 15 - 4 - 1
    assert "rate(kind = a, kind = b)" not in QUERY.names
    _, places = Design.read(QUERY.parameters).moments()
    assert places[2, 3] == places[3, 2] == -1
    assert [places[k, k] for k in range(1, 5)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("levels", "n_zeros"),
    [
        ({"age": intervals([0, 30, 60, 90])}, 3),
        ({"age": [above(30), above(60)]}, 0),
        ({"kind": ["a", "b", "c"]}, 3),
        ({"at": hours()[:4]}, 6),
    ],
    ids=["intervals", "thresholds", "labels", "hours"],
)
def test_which_levels_exclude_each_other(levels, n_zeros):
    query = second_moments(target={"ill": "yes"}, levels=levels)
    _, places = Design.read(query.parameters).moments()
    assert (places[np.triu_indices(len(places))] < 0).sum() == n_zeros


def test_a_zero_in_the_data_alone_is_released_with_noise():
    # No row of kind c is ill, which is data and no rule.
    query = second_moments(target={"ill": "yes"}, levels={"kind": ["c"]})
    place = query.names.index("rate(kind = c, ill = yes)")
    assert query.outputs(TABLE)[0, place] == 0
    rows = pa.table({name: TABLE[name].to_pylist() * 40 for name in TABLE.column_names})
    scenario = Scenario.from_prevalence(
        rows, column="sex", value="F", within=0.1, query=query, moments_from=rows.slice(0, 200)
    )
    certificate = certify_release(scenario, Guarantee.guess(at_most=0.64))
    stds = certificate.released.noise.std_by_coordinate
    # One row can move it by 1/240, and the floor hides one row.
    assert stds[place] >= 1 / 240


def test_the_recipe_is_in_the_description():
    other = second_moments(
        target="age",
        levels={"kind": ["a"], "at": [*intervals([0.5, 2]), above(7)]},
        clip={"age": (10, 90)},
        missing={"age": 30},
    )
    for query in (QUERY, other, join(other, summary(rate={"sex": "F"}))):
        described = query.parameters
        described = described["queries"][0]["parameters"] if query.kind == "join" else described
        design = Design.read(described)
        assert set(design.moments()[0].names) <= {*query.names}
    assert not Design.read(other.parameters).is_class


def test_two_thousand_moments_are_one_release():
    names = [f"x{k}" for k in range(60)]
    query = second_moments(target="y", numbers=names, clip=dict.fromkeys([*names, "y"], (0, 1)))
    assert query.dim == 61 + 61 * 62 // 2 <= MOST_MOMENTS
