# SPDX-License-Identifier: Apache-2.0
"""Run times against the number of samples, and the power that is fitted to them."""

import numpy as np
import pytest

from reproduction.timing import RunTimes, fitted_exponent, run_times


@pytest.mark.parametrize("power", [0.0, 1.0, 2.5])
def test_exact_powers_are_found(power):
    sizes = np.array([10.0, 30.0, 100.0, 1000.0])
    assert fitted_exponent(sizes, 3e-6 * sizes**power) == pytest.approx(power, abs=1e-12)
    times = RunTimes(method="x", sizes=sizes, seconds=3e-6 * sizes**power)
    assert times.exponent == pytest.approx(power, abs=1e-12)


def test_three_ways_are_timed():
    reports = []

    def progress(done, total):
        reports.append((done, total))

    found = run_times(dim=3, n_directions=20, seed=1, n_samples=40, progress=progress)
    assert [one.method for one in found] == [
        "sliced, 20 directions",
        "exact unsliced, bottleneck matching",
        "Sinkhorn",
    ]
    sliced, unsliced = [40, 80, 160, 320, 640, 1280], [10, 15, 20, 30, 40]
    assert [one.sizes.tolist() for one in found] == [sliced, unsliced, unsliced]
    assert all((one.seconds > 0).all() for one in found)
    assert reports == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.slow
def test_unsliced_grows_faster_than_sliced():
    """Measured, so with room: the one is nearly linear, the other about quadratic."""
    sliced, exact, _ = run_times(dim=5, n_directions=50, seed=1, n_samples=2_000)
    assert sliced.exponent < 1.6
    assert exact.exponent > sliced.exponent
