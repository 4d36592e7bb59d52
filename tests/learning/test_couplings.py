# SPDX-License-Identifier: Apache-2.0
"""Coupled draws: right marginals, and as many differing records as they should have."""

import numpy as np
import pytest

from pufferslice.errors import ArgumentError
from pufferslice.learning import (
    discrete_mismatch,
    from_coupled_draws,
    independent_pairs,
    maximal_pairs,
    shared_latent_pairs,
)

P, Q = [0.5, 0.3, 0.2, 0.0], [0.2, 0.3, 0.1, 0.4]


def test_a_maximal_coupling_has_its_marginals_and_the_least_mismatch() -> None:
    first, second = maximal_pairs(P, Q, n_records=200_000)(np.random.default_rng(1))
    for found, wanted in ((first, P), (second, Q)):
        assert np.bincount(found, minlength=4) / len(found) == pytest.approx(wanted, abs=0.005)
    assert (first != second).mean() == pytest.approx(discrete_mismatch(P, Q), abs=0.005)
    # given that they differ, first and second come from the two excesses
    assert set(first[first != second]) == {0, 2}
    assert set(second[first != second]) == {3}


@pytest.mark.parametrize(("p", "q", "share"), [(P, P, 0.0), ([1, 0], [0, 1], 1.0)])
def test_equal_and_disjoint_worlds(p: list[float], q: list[float], share: float) -> None:
    first, second = maximal_pairs(p, q, n_records=50)(np.random.default_rng(0))
    assert (first != second).mean() == share
    assert first.dtype.kind == second.dtype.kind == "i"


def test_a_maximal_coupling_differs_less_than_an_independent_one() -> None:
    def draw(chances: list[float]):
        return lambda rng: rng.choice(4, 60, p=chances)

    settings = {"n_draws": 400, "seed": 5}
    independent = from_coupled_draws(independent_pairs(draw(P), draw(Q)), **settings)
    maximal = from_coupled_draws(maximal_pairs(P, Q, n_records=60), **settings)
    means = [
        float(np.dot(found.counts, np.exp(found.log_probabilities)))
        for found in (independent, maximal)
    ]
    same = sum(a * b for a, b in zip(P, Q, strict=True))
    assert means == pytest.approx([60 * (1 - same), 60 * 0.4], rel=0.05)


def test_a_shared_latent_moves_only_what_the_world_moves() -> None:
    draw = shared_latent_pairs(
        lambda rng: rng.random(100), lambda latent, share: (latent < share) * 1, (0.3, 0.4)
    )
    counts = from_coupled_draws(draw, n_draws=500, seed=2)
    mean = float(np.dot(counts.counts, np.exp(counts.log_probabilities)))
    assert mean == pytest.approx(10, abs=0.6)


def test_probabilities_are_checked() -> None:
    with pytest.raises(ArgumentError, match="first"):
        maximal_pairs([0.5, 0.6], [0.5, 0.5], n_records=3)
