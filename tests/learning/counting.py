# SPDX-License-Identifier: Apache-2.0
"""Simulated counts against a distribution, and exact distributions by going through every batch.

Nothing here calls a formula of the library.
"""

import itertools
from fractions import Fraction

import numpy as np
from scipy import stats

THRESHOLD = 1e-9
"""A right distribution falls below it once in a thousand million runs; the wrong ones here lie far
below."""


def p_value(draws, probabilities):
    """Chi-square test of simulated counts; counts that are expected fewer than 10 times pool."""
    expected = np.asarray(probabilities) * len(draws)
    counts = np.bincount(draws, minlength=len(expected)).astype(float)
    if counts[len(expected) :].any() or counts[: len(expected)][expected == 0].any():
        return 0.0
    often = expected >= 10
    cells = [*counts[: len(expected)][often], counts[: len(expected)][~often].sum()]
    expected_cells = [*expected[often], expected[~often].sum()]
    if expected_cells[-1] < 10:
        cells[-2:] = [sum(cells[-2:])]
        expected_cells[-2:] = [sum(expected_cells[-2:])]
    if len(expected_cells) == 1:
        return 1.0
    statistic = sum((s - e) ** 2 / e for s, e in zip(cells, expected_cells, strict=True))
    return float(stats.chi2.sf(statistic, len(expected_cells) - 1))


def poisson_batches(n_records, rate):
    """Every batch as a tuple of indices, with its exact probability."""
    q = Fraction(rate)
    for size in range(n_records + 1):
        for batch in itertools.combinations(range(n_records), size):
            yield batch, q**size * (1 - q) ** (n_records - size)


def sets_of(n_records, batch_size):
    """Every set of indices, equally likely."""
    batches = list(itertools.combinations(range(n_records), batch_size))
    return [(batch, Fraction(1, len(batches))) for batch in batches]


def sequences_of(n_records, batch_size):
    """Every sequence of indices, equally likely."""
    chance = Fraction(1, n_records**batch_size)
    return [(b, chance) for b in itertools.product(range(n_records), repeat=batch_size)]


def exact_distribution(batches, n_differing):
    """Probabilities of each discrepancy if the first `n_differing` records differ."""
    distribution = {}
    for batch, chance in batches:
        k = sum(index < n_differing for index in batch)
        distribution[k] = distribution.get(k, 0) + chance
    return distribution
