# SPDX-License-Identifier: Apache-2.0
"""Batches follow the distributions that are charged for, and would be seen not to if they did not.

One threshold for all: a right distribution falls below it once in a thousand million runs, each
wrong distribution here (rates or sizes off by a tenth) is below it by orders of magnitude.
"""

import hashlib

import numpy as np
import pytest
from scipy import stats

from pufferslice.learning import Poisson, WithoutReplacement, WithReplacement
from pufferslice.learning.sampling import draw_batch

pytestmark = [pytest.mark.statistical, pytest.mark.soundness]

THRESHOLD = 1e-9
N_BATCHES = 10_000
N_RECORDS = 200
N_DIFFERING = 20
SIZE = 40

POISSON = Poisson(n_records=N_RECORDS, rate=SIZE / N_RECORDS)
WITHOUT = WithoutReplacement(n_records=N_RECORDS, batch_size=SIZE)
WITH = WithReplacement(n_records=N_RECORDS, batch_size=SIZE)


def batches(sampling, seed, n_batches=N_BATCHES):
    """Independent batches, as the number of times that each record was drawn."""
    keys = (hashlib.sha256(f"{sampling} {seed} {i}".encode()).digest() for i in range(n_batches))
    drawn = (draw_batch(sampling, key) for key in keys)
    return np.stack([np.bincount(batch, minlength=sampling.n_records) for batch in drawn])


@pytest.fixture(scope="module")
def poisson(seed):
    return batches(POISSON, seed)


@pytest.fixture(scope="module")
def without(seed):
    return batches(WITHOUT, seed)


@pytest.fixture(scope="module")
def with_(seed):
    return batches(WITH, seed)


def test_every_ordered_set_is_as_likely(seed):
    """60 of them; a shuffle that takes any of all places, not of those left, is seen."""
    sampling = WithoutReplacement(n_records=5, batch_size=3)
    keys = (hashlib.sha256(f"{seed} {i}".encode()).digest() for i in range(20_000))
    drawn = [draw_batch(sampling, key) @ [25, 5, 1] for key in keys]
    _, counts = np.unique(drawn, return_counts=True)
    assert len(counts) == 60
    assert stats.chisquare(counts).pvalue > THRESHOLD
    rng = np.random.default_rng(seed)
    naive = [naive_shuffle(rng)[:3] @ [25, 5, 1] for _ in range(20_000)]
    assert stats.chisquare(np.unique(naive, return_counts=True)[1]).pvalue < THRESHOLD


def test_draws_with_replacement_are_uniform_and_independent(seed):
    sampling = WithReplacement(n_records=20, batch_size=20)
    keys = (hashlib.sha256(f"{seed} {i}".encode()).digest() for i in range(5_000))
    drawn = np.stack([draw_batch(sampling, key) for key in keys])
    pairs = np.bincount((20 * drawn[:, :-1] + drawn[:, 1:]).ravel(), minlength=400)
    assert stats.chisquare(np.bincount(drawn.ravel(), minlength=20)).pvalue > THRESHOLD
    assert stats.chisquare(pairs).pvalue > THRESHOLD
    # one repeat in fifty too many would be seen
    pairs[::21] = (pairs[::21] * 1.4).astype(int)
    assert stats.chisquare(pairs).pvalue < THRESHOLD


@pytest.mark.parametrize("where", ["first", "last", "spread"])
@pytest.mark.parametrize("design", ["poisson", "without", "with_"])
def test_differing_records_in_a_batch(design, where, request):
    """The distribution of K that the accountants charge for, wherever the differing records lie."""
    counts = request.getfixturevalue(design)
    places = {
        "first": np.arange(N_DIFFERING),
        "last": np.arange(N_RECORDS - N_DIFFERING, N_RECORDS),
        "spread": np.arange(0, N_RECORDS, N_RECORDS // N_DIFFERING),
    }[where]
    observed = np.bincount(counts[:, places].sum(axis=1))
    assert chi_square_p(observed, distribution_of(design, 1.0)) > THRESHOLD
    assert chi_square_p(observed, distribution_of(design, 0.9)) < THRESHOLD
    assert chi_square_p(observed, distribution_of(design, 1.1)) < THRESHOLD


def distribution_of(design, factor):
    """The distribution of K that the plan charges, for a rate or batch size of `factor` times."""
    sampling = {
        "poisson": Poisson(n_records=N_RECORDS, rate=factor * POISSON.rate),
        "without": WithoutReplacement(n_records=N_RECORDS, batch_size=round(factor * SIZE)),
        "with_": WithReplacement(n_records=N_RECORDS, batch_size=round(factor * SIZE)),
    }[design]
    return np.exp(sampling.discrepancy_log_probabilities(N_DIFFERING))


def chi_square_p(observed, probabilities):
    """Cells with fewer than ten expected are put together, at both ends."""
    length = max(len(observed), len(probabilities))
    observed = np.pad(observed, (0, length - len(observed)))
    expected = np.pad(probabilities, (0, length - len(probabilities))) * observed.sum()
    inside = np.flatnonzero(expected >= 10)
    low, high = inside[0], inside[-1] + 1
    cells = [
        np.concatenate([[v[:low].sum()], v[low:high], [v[high:].sum()]])
        for v in (observed, expected)
    ]
    keep = cells[1] > 1e-9
    cells[1] *= cells[0].sum() / cells[1].sum()
    return stats.chisquare(cells[0][keep], cells[1][keep], sum_check=False).pvalue


def naive_shuffle(rng):
    records = np.arange(5)
    for place in range(5):
        other = rng.integers(5)
        records[[place, other]] = records[[other, place]]
    return records
