# SPDX-License-Identifier: Apache-2.0
"""Exact distributions of the discrepancy by going through every batch.

Nothing here calls a formula of the library.
"""

import itertools
from fractions import Fraction


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
