# SPDX-License-Identifier: Apache-2.0
"""Attacks on all outputs of many offices, each with a budget of three parts and its own ledger."""

import math

import pytest
from soak.sizes import SIZE
from tests.releases.test_series import attacked, certified, reached

pytestmark = [pytest.mark.soak, pytest.mark.soundness, pytest.mark.timeout(3600)]

N_OFFICES = SIZE.offices
__all__ = ["attacked"]


@pytest.mark.parametrize("at_most", [0.64, 0.9])
def test_an_attack_on_all_outputs(attacked, tmp_path, at_most):
    parts, _ = attacked
    share = reached(parts, certified(parts, at_most), tmp_path, N_OFFICES)
    error = math.sqrt(at_most * (1 - at_most) / N_OFFICES)
    assert share <= at_most + 4 * error
    if at_most == 0.9:  # the attack is one that finds something
        assert share > 0.57
