# SPDX-License-Identifier: Apache-2.0
"""Coupled draws of datasets in two worlds, for `from_coupled_draws` and the caps.

Any coupling is sound; one under which fewer records differ needs less noise. Source:
app:estimate_caps.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pufferslice._core.arrays import locked
from pufferslice._core.checks import check_count, check_probabilities

DrawPair = Callable[[np.random.Generator], tuple[Any, Any]]
"""One dataset of each world, drawn together."""


def independent_pairs(
    draw_first: Callable[[np.random.Generator], object],
    draw_second: Callable[[np.random.Generator], object],
) -> DrawPair:
    """Each dataset drawn by itself: always possible, and mostly all records differ."""
    return lambda rng: (draw_first(rng), draw_second(rng))


def shared_latent_pairs(
    draw_latent: Callable[[np.random.Generator], Any],
    build: Callable[[Any, Any], object],
    worlds: tuple[Any, Any],
) -> DrawPair:
    """Both datasets built from one latent draw: `build(latent, world)` for each of the worlds.

    Needs: `build` is deterministic, and `build(latent, world)` has the distribution of that world.
    """

    def draw(rng: np.random.Generator) -> tuple[object, object]:
        latent = draw_latent(rng)
        return build(latent, worlds[0]), build(latent, worlds[1])

    return draw


def maximal_pairs(first: Any, second: Any, *, n_records: int) -> DrawPair:  # array-like
    """Independent records of classes 0, 1, … with these probabilities, equal as often as possible.

    Each record differs with the probability `discrete_mismatch(first, second)`, independently, so
    `binomial(n_records=..., mismatch_probability=...)` is the exact distribution of the count.

    >>> draw = maximal_pairs([0.5, 0.5], [0.25, 0.75], n_records=4)
    >>> a, b = draw(np.random.default_rng(0))
    >>> int((a != b).sum())
    0
    """
    check_count(1, n_records=n_records)
    p, q = locked(first), locked(second)
    check_probabilities(first=p, second=q, length=max(1, p.size))
    p, q = p / p.sum(), q / q.sum()
    common = np.minimum(p, q)
    parts = [common, p - common, q - common]

    def draw(rng: np.random.Generator) -> tuple[object, object]:
        same = rng.random(n_records) < common.sum()
        shared, *own = (
            rng.choice(len(p), n_records, p=part / part.sum())
            if part.any()
            else np.zeros(n_records, dtype=np.int64)
            for part in parts
        )
        return np.where(same, shared, own[0]), np.where(same, shared, own[1])

    return draw
