# SPDX-License-Identifier: Apache-2.0
r"""The grid on which clipped sums are added, and the clipping radius that covers rounding.

The noise of a layer has standard deviation s, drawn as integers of parameter `SIGMA_INT`; so sums
are kept as integer multiples of g = s / `SIGMA_INT`. A batch is cut into blocks, and these into at
most `MOST_GROUPS` groups. Each block is summed in floating point, the blocks of a group are added
in float64, their sum is rounded to the grid once, and groups are added as integers. A block without
differing draws has the same bits in both worlds. So if a group holds k >= 1 differing draws, its
integer sum moves by at most

$$2 k r + 2 k b \rho r + 2 a r + \sqrt{d} g \le k (2 r + 2 b \rho r + 2 a r + \sqrt{d} g),$$

with r the radius that examples are clipped to, b the block, rho the rounding share of one example,
a that of adding blocks, and d the coordinates of the layer: the sums, the floating-point error of
the blocks with differing draws in both worlds, that of adding blocks, and the rounding to the grid
in both. The radius is chosen so that the bracket is at most 2 C, the shift that the plan accounts
for each differing draw; so the plan's cost covers all rounding.
"""

import math
from collections.abc import Sequence
from typing import Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import check_count
from pufferslice._core.sampler import DRAW_DELTA, INTEGER_DELTA, LARGEST_DRAW, SIGMA_INT
from pufferslice.errors import ArgumentError
from pufferslice.learning.plan import TrainingPlan
from pufferslice.learning.sampling import Poisson

ROOM: Final = 2.0**62
"""Limit of integer sums with their noise, in absolute value."""

MOST_GROUPS: Final = 16
"""Parts of a batch that are rounded to the grid by themselves."""

SAFETY: Final = 1 - 2.0**-40
"""Factor on every radius: covers the few roundings (2^-53 each) of stds, ratios and radii."""

_LEAST_STEP: Final = 2.0**-900
_LARGEST_STEP: Final = 2.0**900
_UNIT_ROUNDOFF: Final = 2.0**-24


@final
@attrs.frozen(kw_only=True)
class SumGrid:
    """The grid of one step: for each clipped layer, its step and its clipping radius."""

    steps: Floats = attrs.field(converter=locked, eq=same)
    """Distance of neighbouring sums, shape (n_layers,); noise std over `SIGMA_INT`."""
    radii: Floats = attrs.field(converter=locked, eq=same)
    """Norm that per-example gradients are clipped to, shape (n_layers,); below the clip norms."""


def rounding_share(block: int) -> float:
    """Floating-point error of a block's sum, per example, over the clipping radius.

    Guarantee: code that sums a block to within `block * rounding_share(block)` radii may use the
    radii of `sum_grid`. The share is that of single precision, (block + 8) roundings of 2^-24.
    """
    check_count(1, block=block)
    return (int(block) + 8) * _UNIT_ROUNDOFF


def sum_grid(plan: TrainingPlan, step: int, sizes: Sequence[int]) -> SumGrid:
    """The grid of a step, for layers with the given numbers of coordinates.

    Guarantee: with examples clipped to `radii` and blocks rounded to multiples of `steps`, each
    differing draw moves the sum of a layer by at most twice its clip norm, rounding included.
    """
    norms = np.array(plan.clipping.norms, dtype=np.float64)
    check_count(0, step=step)
    if step >= plan.n_steps:
        raise ArgumentError(f"step must be below the plan's n_steps = {plan.n_steps}, got {step}")
    plan.check_sizes(sizes)
    if plan.block is None:
        raise ArgumentError(
            "the plan has no block yet; give one to plan_training or let a Trainer choose it"
        )
    design = plan.sampling
    n_draws = int(design.n_records if isinstance(design, Poisson) else design.batch_size)
    block = int(plan.block)
    with np.errstate(over="ignore"):
        steps = plan.noise_stds(step) / SIGMA_INT
    # Far from the smallest and largest floats, so that every product here is a normal one.
    if not ((steps >= _LEAST_STEP) & (steps <= _LARGEST_STEP)).all():
        raise ArgumentError(
            f"the noise has standard deviation {float(steps.min() * SIGMA_INT)!r} to "
            f"{float(steps.max() * SIGMA_INT)!r}, too near the ends of the floating-point range; "
            "choose clip norms and noise multipliers of ordinary size"
        )
    # An integer that is at least the root, so that no rounding can make it too small.
    roots = np.array([math.isqrt(int(size) - 1) + 1 for size in sizes], dtype=np.float64)
    # Each addition of blocks rounds by 2^-53 of a partial sum of at most one radius per draw; twice
    # that, because their own rounding can make blocks longer.
    n_blocks = -(-n_draws // block)
    n_additions = -(-n_blocks // MOST_GROUPS) - 1
    share = block * rounding_share(block) + 2.0**-52 * n_draws * n_additions
    radii = (norms - roots * steps / 2) / (1 + share) * SAFETY
    if not (radii >= norms / 2).all():
        layer = int(np.argmin(radii / norms))
        raise ArgumentError(
            f"with block = {plan.block}, rounding would take up more than half of the clip norm "
            f"{norms[layer]:g}: examples would be clipped to {max(0.0, radii[layer]):g}. Use a "
            "smaller block, or a smaller noise multiplier"
        )
    # Each draw adds its clipped gradient and at most one rounding.
    sums = n_draws * (norms / steps + 1) + LARGEST_DRAW
    if not (sums * (1 + 2.0**-40) < ROOM).all():
        layer = int(np.argmax(sums))
        multiplier = steps[layer] * SIGMA_INT / norms[layer]
        raise ArgumentError(
            f"a batch may hold {n_draws} draws, whose sum would not fit 64 bits beside noise of "
            f"multiplier {multiplier:g}; use a noise multiplier of at least "
            f"{1.01 * n_draws * SIGMA_INT / (ROOM - LARGEST_DRAW - n_draws):.3g}, or smaller "
            "batches"
        )
    return SumGrid(steps=steps, radii=radii)


def implementation_delta(plan: TrainingPlan, n_parameters: int) -> float:
    """Total-variation distance of a run's noise from the noise that its cost assumes.

    One draw for each parameter and step, each within `DRAW_DELTA` of the discrete Gaussian and that
    within `INTEGER_DELTA` of Gaussian noise rounded to the grid; rounded up. The second counts
    because the amplified cost is proved for Gaussian noise; rounding the noisy sum afterwards costs
    nothing.
    """
    check_count(1, n_parameters=n_parameters)
    per_step = math.nextafter((DRAW_DELTA + INTEGER_DELTA) * int(n_parameters), math.inf)
    return min(1.0, math.nextafter(per_step * plan.n_steps, math.inf))
