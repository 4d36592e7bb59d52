# SPDX-License-Identifier: Apache-2.0
"""The clip norm covers all rounding of clipped sums; checked in exact fractions."""

import itertools
import math
from fractions import Fraction

import attrs
import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pufferslice._core.sampler import DRAW_DELTA, INTEGER_DELTA, LARGEST_DRAW, SIGMA_INT
from pufferslice.claims import Measure
from pufferslice.errors import ArgumentError
from pufferslice.learning import (
    LayerClipping,
    LogMoment,
    Poisson,
    WithoutReplacement,
    WithReplacement,
    exactly,
    plan_with_noise,
)
from pufferslice.learning.integer_sums import (
    ROOM,
    SumGrid,
    implementation_delta,
    rounding_share,
    sum_grid,
)

POISSON = Poisson(n_records=1_000, rate=0.1)


def planned(*, clip_norm=1.0, multipliers=(5.0,), sampling=POISSON, block=16):
    plan = plan_with_noise(
        differing=exactly(1),
        sampling=sampling,
        clip_norm=clip_norm,
        noise_multipliers=np.array(multipliers),
        accountant=LogMoment(),
        measure=Measure.guess(),
    )
    return attrs.evolve(plan, block=block)


def share_of(block, n_draws=1_000):
    """b rho + a, exactly: rounding in a block, and in adding the blocks of a group."""
    n_blocks = -(-n_draws // block)
    n_additions = -(-n_blocks // 16) - 1
    return Fraction(block * (block + 8), 2**24) + Fraction(n_draws * n_additions, 2**52)


def moved_beyond_roots(grid, layer, block):
    """2 r + 2 b rho r + 2 a r, exactly: what a differing draw moves before the grid's rounding."""
    share = share_of(block)
    return 2 * Fraction(float(grid.radii[layer])) * (1 + share)


def is_within(grid, layer, norm, *, block, size):
    """2 r + 2 b rho r + sqrt(d) g <= 2 C, exactly: the root is squared away."""
    room = 2 * Fraction(norm) - moved_beyond_roots(grid, layer, block)
    return room >= 0 and size * Fraction(float(grid.steps[layer])) ** 2 <= room**2


@st.composite
def layered(draw):
    n_layers = draw(st.integers(1, 4))
    some = {"min_size": n_layers, "max_size": n_layers}
    sizes = draw(st.lists(st.integers(1, 10**9), **some))
    clipping = LayerClipping(
        names=tuple(f"layer {i}" for i in range(n_layers)),
        norms=tuple(draw(st.lists(st.floats(1e-6, 1e6), **some))),
        sizes=tuple(sizes),
        allocation=draw(st.sampled_from(["equal", "least_noise"])),
    )
    multiplier = 10.0 ** draw(st.floats(-1, 13))
    block = draw(st.integers(1, 4_200))
    return planned(clip_norm=clipping, multipliers=(multiplier,), block=block), sizes


@pytest.mark.soundness
@given(layered())
def test_all_layers_together_stay_inside_the_cost(case):
    """sum (moved / std)^2 <= (2 / z)^2, with the stds as they come out of floating point.

    And no differing draw moves the sum of one layer by more than twice its clip norm.
    """
    plan, sizes = case
    try:
        grid = sum_grid(plan, 0, sizes)
    except ArgumentError:
        assume(False)
    total = Fraction(0)
    norms = plan.clipping.norms
    for layer, size in enumerate(sizes):
        assert is_within(grid, layer, norms[layer], block=plan.block, size=size)
        assert norms[layer] / 2 <= grid.radii[layer] < norms[layer]
        step = Fraction(float(grid.steps[layer]))
        root = Fraction(math.isqrt(size * 10**40) + 1, 10**20)
        moved = moved_beyond_roots(grid, layer, plan.block) + root * step
        total += (moved / (step * SIGMA_INT)) ** 2
    assert total <= (2 / Fraction(float(plan.noise_multipliers[0]))) ** 2


@pytest.mark.soundness
@pytest.mark.parametrize("size", [1, 10**6])
@pytest.mark.parametrize("block", [1, 1_000])
def test_the_radius_is_no_smaller_than_it_must_be(size, block):
    """With noise so large that the grid takes a quarter of the clip norm; each term is seen."""
    multiplier = SIGMA_INT / math.sqrt(size) / 2
    plan = planned(clip_norm=3.0, multipliers=(multiplier,), block=block)
    grid = sum_grid(plan, 0, [size])
    assert grid.steps[0] == 3.0 * multiplier / SIGMA_INT
    with mpmath.workdps(30):
        share = mpmath.mpf(share_of(block).numerator) / share_of(block).denominator
        radius = (3 - mpmath.sqrt(size) * mpmath.mpf(float(grid.steps[0])) / 2) / (1 + share)
    assert grid.radii[0] == pytest.approx(float(radius), rel=1e-11)
    assert grid.radii[0] < radius
    # the same inequality with a factor or the root left out would allow a larger radius
    step = float(grid.steps[0])
    forgotten = [3.0 / (1 + float(share)), 3.0 - math.sqrt(size) * step / 2]
    if size > 1:
        forgotten += [(3.0 - step / 2) / (1 + float(share))]
    for larger in forgotten:
        wrong = SumGrid(steps=grid.steps, radii=[larger])
        assert not is_within(wrong, 0, 3.0, block=block, size=size)
    assert is_within(grid, 0, 3.0, block=block, size=size)


def test_known_shares():
    assert rounding_share(1) == 9 / 2**24
    assert rounding_share(16) == 24 / 2**24


def test_steps_have_their_own_grid():
    plan = planned(multipliers=(5.0, 10.0))
    first, second = sum_grid(plan, 0, [10]), sum_grid(plan, 1, [10])
    assert second.steps[0] == 2 * first.steps[0]
    assert first == sum_grid(plan, 0, [10])
    assert first != second
    with pytest.raises(ValueError, match="read-only"):
        first.radii[0] = 1.0


@pytest.mark.parametrize(
    "sampling",
    [
        Poisson(n_records=10**6, rate=1e-4),
        WithoutReplacement(n_records=10**7, batch_size=10**6),
        WithReplacement(n_records=10**7, batch_size=10**6),
    ],
    ids=lambda design: design.name,
)
def test_sums_that_would_not_fit(sampling):
    with pytest.raises(ArgumentError, match=r"3\.85"):
        sum_grid(planned(sampling=sampling, multipliers=(3.0,)), 0, [10])
    grid = sum_grid(planned(sampling=sampling, multipliers=(3.85,)), 0, [10])
    # the worst that an integer sum can be, in exact numbers
    worst = 10**6 * (1 / Fraction(float(grid.steps[0])) + 1) + LARGEST_DRAW
    assert worst < ROOM


@pytest.mark.soundness
@given(st.integers(1, 10**12), st.floats(1e-8, 1e8), st.floats(1e-3, 1e9))
def test_every_sum_that_is_let_through_fits(most, norm, multiplier):
    plan = planned(
        sampling=WithoutReplacement(n_records=most, batch_size=most),
        clip_norm=norm,
        multipliers=(multiplier,),
    )
    try:
        grid = sum_grid(plan, 0, [10])
    except ArgumentError:
        assume(False)
    assert most * (Fraction(norm) / Fraction(float(grid.steps[0])) + 1) + LARGEST_DRAW < ROOM


@pytest.mark.soundness
def test_the_distance_of_drawn_noise_adds_up():
    plan = planned(multipliers=(5.0,) * 60)
    delta = implementation_delta(plan, 650)
    exact = 650 * 60 * (Fraction(DRAW_DELTA) + Fraction(INTEGER_DELTA))
    assert Fraction(delta) >= exact
    assert delta == pytest.approx(float(exact), rel=1e-14)
    assert implementation_delta(plan, 10**60) == 1.0


@pytest.mark.soundness
@pytest.mark.parametrize("sigma", [4, 16, 64])
def test_rounded_gaussian_noise_is_near_the_discrete_distribution(sigma):
    """0.0202 / sigma^2 in total variation; so 2^-93 at 2^44 has room."""
    with mpmath.workdps(40):
        reach = range(-12 * sigma, 12 * sigma + 1)
        weights = [mpmath.exp(-(mpmath.mpf(z) ** 2) / (2 * sigma**2)) for z in reach]
        half, scale = mpmath.mpf(1) / 2, sigma * mpmath.sqrt(2)
        below = [mpmath.erf((z - half) / scale) / 2 for z in (*reach, 12 * sigma + 1)]
        cells = [b - a for a, b in itertools.pairwise(below)]
        total = mpmath.fsum(weights)
        distance = mpmath.fsum(abs(w / total - c) for w, c in zip(weights, cells, strict=True)) / 2
    assert float(distance * sigma**2) == pytest.approx(0.02016, rel=0.02)
    assert distance * sigma**2 / SIGMA_INT**2 < INTEGER_DELTA
