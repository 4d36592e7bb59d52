# SPDX-License-Identifier: Apache-2.0
"""Values of the wrong kind in a scenario.toml: the error names section, key and what is wanted."""

import pytest

from pufferslice.config.scenario import SECTIONS, SHAPES, check_shapes
from pufferslice.errors import ArgumentError


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"data": {"path": []}}, r"\[data\] path must be a text, got \[\]"),
        ({"data": {"null_values": [1]}}, r"\[data\] null_values must be a list of texts"),
        ({"data": {"bins": True}}, r"\[data\] bins must be a number, got True"),
        ({"query": {"range": 3}}, r"\[query\] range must be a table"),
        ({"query": {"range": {"low": 3}}}, r"\[query.range\] low must be a list of numbers"),
        ({"query": {"rate": [{"column": 1}]}}, r"\[query.rate\] column must be a text"),
        ({"query": {"scales": {"x": "y"}}}, r"\[query\] scales must be a list of numbers, or"),
        ({"guarantee": {"deltas": 0.1}}, r"\[guarantee\] deltas must be a list of numbers"),
        ({"worlds": {"a": 1}}, r"\[worlds\] a must be a text"),
        ({"gaussian": {"a": 1}}, r"\[gaussian\] a must be a table"),
        ({"gaussian": {"a": {"cov": [[1], [1, 2]]}}}, r"\[gaussian.a\] cov .* of one length"),
        ({"profile": {"directions": ["x" * 99]}}, r"directions must be .*, got \['x+\.\.\.$"),
    ],
)
def test_wrong_kinds(document, message):
    with pytest.raises(ArgumentError, match=message):
        check_shapes(document)


def test_every_key_has_a_shape():
    assert {name: frozenset(SHAPES.get(name, {})) for name in SECTIONS} == dict(SECTIONS)
