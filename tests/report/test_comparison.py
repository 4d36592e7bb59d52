# SPDX-License-Identifier: Apache-2.0
"""A comparison as text: every number that was given is there."""

import attrs
import numpy as np

from pufferslice.baselines.comparison import Comparison, Row
from pufferslice.report.comparison import comparison_text, grouped

CURVES = {
    "average, tight, transport": np.array([3.0, 2.0, np.nan]),
    "joint, closed form": np.array([5.0, 4.0, 3.0]),
    "joint, tight, worst gap": np.array([4.5, 3.0, 2.0]),
    "general Wasserstein (GWM)": np.array([10.0, 7.0, 5.0]),
    "Sinkhorn-Wasserstein": np.array([10.01, 7.01, 5.01]),
}


def row(**changes):
    base = {
        "mechanism": "joint, tight, transport",
        "is_ours": True,
        "guarantee": "(4, 1)-Joint-SRPP",
        "scope": "sliced",
        "noise": "gaussian",
        "noise_std": 1.5,
        "mean_squared_error": 2.25,
        "unsliced_epsilon": 3.25,
        "guess": 0.875,
        "seconds": 0.25,
        "peak_bytes": 3 * 2**20,
    }
    return Row(**base | changes)


def comparison(*rows, left_out=None):
    facts = {"order": 4.0, "epsilon": 1.0, "dim": 9, "n_instances": 10}
    return Comparison(rows=rows, left_out=left_out or {}, **facts)


def test_text_has_a_line_per_row_and_says_what_is_left_out():
    lone = row(mechanism="Sinkhorn", unsliced_epsilon=None, note="gap to exact -8.65")
    text = comparison_text(comparison(row(), lone, left_out={"Laplace": "for scalar queries"}))
    lines = text.splitlines()
    assert lines[0] == ("Noise for ε = 1 at order 4; 10 instances, 9 coordinates, scaled units.")
    assert lines[2].split() == [
        "mechanism", "guarantee", "scope", "noise", "MSE", "unsliced", "ε", "guesses",
        "time", "memory",
    ]  # fmt: skip
    numbers = lines[3].split()[-9:]
    assert numbers == ["1.5", "2.25", "3.25", "87.5", "%", "0.250", "s", "3.00", "MiB"]
    assert "infinite" in lines[4]
    assert "Sinkhorn: gap to exact -8.65." in lines
    assert lines[-1] == "Laplace is left out: for scalar queries."


def test_text_without_notes_ends_with_the_table():
    assert comparison_text(comparison(row())).splitlines()[-1].endswith("3.00 MiB")


def test_one_is_not_many():
    found = attrs.evolve(comparison(row()), dim=1, n_instances=1)
    assert "; 1 instance, 1 coordinate, scaled units." in comparison_text(found)


def test_curves_that_coincide_share_a_line():
    assert grouped(CURVES) == [
        ["average, tight, transport"],
        ["joint, closed form"],
        ["joint, tight, worst gap"],
        ["general Wasserstein (GWM)", "Sinkhorn-Wasserstein"],
    ]
