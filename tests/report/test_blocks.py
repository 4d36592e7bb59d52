# SPDX-License-Identifier: Apache-2.0
import pytest

from pufferslice.report.blocks import text_table


def test_columns_are_as_wide_as_their_widest_cell():
    text = text_table([("name", "a", "long head"), ("x", "1.25", "2")])
    assert text.splitlines() == ["  name     a  long head", "  x     1.25          2"]


def test_rows_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        text_table([("a", "b"), ("c",)])
