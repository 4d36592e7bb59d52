# SPDX-License-Identifier: Apache-2.0
"""Caps with a tail from simulated counts: by hand, as often right as they say."""

import numpy as np
import pytest
from scipy import stats

from pufferslice.learning import TailCap, tail_cap_estimate


def test_tail_by_hand():
    """M = 1000, half-width 0.04295: delta 0.1 leaves out floor(57.05) = 57 replicates above,
    so the 943rd of 0..999 in order, which is 942. A tail below the half-width gets the cap."""
    counts, options = np.random.default_rng(1).permutation(1000), {"failure_probability": 0.05}
    cap = tail_cap_estimate(counts, discrepancy_cap=999, tail_probability=0.1, **options)
    assert cap == TailCap(value=942, tail_probability=0.1, **options)
    zeros = np.zeros(1000, dtype=int)
    cap = tail_cap_estimate(zeros, discrepancy_cap=512, tail_probability=0.0429, **options)
    assert cap.value == 512


def test_several_instances():
    """The failure probability is split over two instances; the larger estimate counts.

    Half-width sqrt(ln(2 * 2 / 0.05) / 2000) = 0.04681: floor(53.19) are left out.
    """
    options = {"tail_probability": 0.1, "failure_probability": 0.05}
    zeros = np.zeros(1000, dtype=int)
    tail = tail_cap_estimate(np.arange(1000), zeros, discrepancy_cap=999, **options)
    assert tail == TailCap(value=946, **options)


@pytest.mark.statistical
def test_is_a_tail_cap_as_often_as_it_says(rng):
    """Binomial(40, 0.3), tail 0.1, 500 simulations of 400: without the half-width the cap is
    too small in a good part of them, with it in none of many."""
    distribution = stats.binom(40, 0.3)
    draws = distribution.rvs(size=(500, 400), random_state=rng)
    options = {"discrepancy_cap": 40, "tail_probability": 0.1, "failure_probability": 0.1}
    values = [tail_cap_estimate(d, **options).value for d in draws]
    assert np.mean(distribution.sf(values) > 0.1) <= 0.1
    bare = np.sort(draws, axis=1)[:, 359]
    assert np.mean(distribution.sf(bare) > 0.1) > 0.1
