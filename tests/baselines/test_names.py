# SPDX-License-Identifier: Apache-2.0
"""The names of the baselines: all there, and only DP-SGD needs dp-accounting."""

import subprocess
import sys

import pytest

from pufferslice import baselines

WITHOUT = """
import sys
sys.modules["dp_accounting"] = None
import numpy as np
from pufferslice import FiniteDistribution, Guarantee, baselines
from pufferslice.errors import MissingExtraError
couple = FiniteDistribution.uniform([[0.0]]), FiniteDistribution.uniform([[3.0]])
print(baselines.gwm_noise_std([couple], Guarantee.unsliced(order=4, epsilon=2.0)))
import pufferslice.baselines
try:
    baselines.DpSgd
except MissingExtraError as error:
    print(error)
"""


def test_names_are_sorted_and_resolve():
    assert baselines.__all__ == sorted(baselines.__all__)
    for name in baselines.__all__:
        assert getattr(baselines, name) is not None


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="has no attribute 'sinkhorn_certificate'"):
        _ = baselines.sinkhorn_certificate


def test_only_dp_sgd_needs_dp_accounting():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.stderr == ""
    noise, complaint = done.stdout.splitlines()
    assert noise == "3.0"
    assert "pip install 'pufferslice[baselines]'" in complaint


def test_no_baseline_can_issue_a_certificate():
    assert not [name for name in baselines.__all__ if "certif" in name.lower()]
