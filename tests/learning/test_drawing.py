# SPDX-License-Identifier: Apache-2.0
"""Batches are a function of their key, and the same as by exact integers."""

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from pufferslice.errors import ArgumentError
from pufferslice.learning import Poisson, WithoutReplacement, WithReplacement, draw_batch
from pufferslice.learning.sampling import _CHUNK, shuffle_from, uniform_from

DESIGNS = [
    Poisson(n_records=1_000, rate=0.3),
    WithoutReplacement(n_records=1_000, batch_size=300),
    WithReplacement(n_records=1_000, batch_size=300),
]


def key_of(number):
    return hashlib.sha256(str(number).encode()).digest()


def words_of(key):
    """The keystream from single AES blocks of a counter, as Python numbers."""
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - CTR by hand
    counter = 0
    while True:
        block = cipher.update(counter.to_bytes(16, "big"))
        yield int.from_bytes(block[:8], "little")
        yield int.from_bytes(block[8:], "little")
        counter += 1


def uniform(words, bound):
    """The next word that does not favour small remainders."""
    return next(word % bound for word in words if word >= 2**64 % bound)


def by_hand(sampling, key):
    """The same batch in exact integers and fractions."""
    words, n = words_of(key), sampling.n_records
    if isinstance(sampling, Poisson):
        draws = [Fraction(next(words) + 1, 2**64) for _ in range(n)]
        return [i for i, draw in enumerate(draws) if draw <= Fraction(sampling.rate)]
    if isinstance(sampling, WithReplacement):
        return [uniform(words, n) for _ in range(sampling.batch_size)]
    records, batch = list(range(n)), []
    for place in range(sampling.batch_size):
        other = place + uniform(words, n - place)
        records[place], records[other] = records[other], records[place]
        batch.append(records[place])
    return batch


def designs():
    sizes = st.integers(1, 60)
    fixed = st.tuples(st.sampled_from([WithoutReplacement, WithReplacement]), sizes, sizes)
    return st.one_of(
        st.builds(Poisson, n_records=sizes, rate=st.floats(1e-3, 1)),
        fixed.map(lambda f: f[0](n_records=max(f[1:]), batch_size=min(f[1:]))),
    )


@given(designs(), st.binary(min_size=32, max_size=32))
def test_every_draw_agrees_with_exact_integers(sampling, key):
    assert draw_batch(sampling, key).tolist() == by_hand(sampling, key)


@pytest.mark.parametrize(
    "sampling",
    [
        Poisson(n_records=2 * _CHUNK + 17, rate=0.01),
        WithoutReplacement(n_records=_CHUNK + 99, batch_size=_CHUNK + 50),
        WithReplacement(n_records=_CHUNK + 99, batch_size=_CHUNK + 50),
    ],
    ids=lambda design: design.name,
)
def test_batches_longer_than_one_chunk_of_the_stream(sampling):
    assert draw_batch(sampling, key_of(1)).tolist() == by_hand(sampling, key_of(1))


@pytest.mark.parametrize("sampling", DESIGNS, ids=lambda design: design.name)
def test_a_batch_is_a_function_of_its_key(sampling):
    first = draw_batch(sampling, key_of(1))
    assert first.dtype == np.int64
    assert first.flags.c_contiguous
    assert first.flags.owndata
    assert np.array_equal(first, draw_batch(sampling, key_of(1)))
    assert not np.array_equal(first, draw_batch(sampling, key_of(2)))
    assert 0 <= first.min() <= first.max() < 1_000


def test_without_replacement_draws_no_record_twice():
    batch = draw_batch(DESIGNS[1], key_of(1))
    assert len(set(batch.tolist())) == len(batch) == 300
    assert len(draw_batch(DESIGNS[2], key_of(1))) == 300
    whole = draw_batch(WithoutReplacement(n_records=50, batch_size=50), key_of(1))
    assert sorted(whole) == list(range(50))


@pytest.mark.parametrize("rate", [1, 1.0])
def test_rate_one_takes_every_record(rate):
    assert draw_batch(Poisson(n_records=70, rate=rate), key_of(1)).tolist() == list(range(70))


@pytest.mark.soundness
@pytest.mark.parametrize("rate", [2.0**-64 - 2.0**-117, 2.0**-70, 5e-324])
def test_a_rate_is_rounded_down(rate):
    """Below 2^-64 nothing is drawn: never more often than the plan says."""
    assert len(draw_batch(Poisson(n_records=10_000, rate=rate), key_of(1))) == 0


@pytest.mark.soundness
def test_a_word_that_equals_the_rate_is_out():
    """A key whose first word is a rate that floating point can hold."""
    key = next(key for key in map(key_of, range(50_000)) if next(words_of(key)) % 2**11 == 0)
    rate = next(words_of(key)) / 2**64
    assert len(draw_batch(Poisson(n_records=1, rate=rate), key)) == 0
    assert len(draw_batch(Poisson(n_records=1, rate=math.nextafter(rate, 1)), key)) == 1


def test_a_rate_just_below_one():
    batch = draw_batch(Poisson(n_records=10_000, rate=math.nextafter(1, 0)), key_of(1))
    assert batch.tolist() == list(range(10_000))


def test_one_record():
    for sampling in (
        WithoutReplacement(n_records=1, batch_size=1),
        WithReplacement(n_records=1, batch_size=1),
    ):
        assert draw_batch(sampling, key_of(1)).tolist() == [0]


def test_words_that_favour_small_indices_are_passed_over():
    """2^64 is 1 more than a multiple of 3 and of 5, 6 more than one of 10: so many go."""
    batch = np.full(6, -1)
    words = np.array([0, 5, 6, 16, 2**64 - 1, 3], dtype=np.uint64)
    assert uniform_from(batch, 0, 10, words) == 3
    assert batch.tolist() == [6, 6, 5, -1, -1, -1]
    records = np.arange(3)
    # three left: 0 is passed over; two left and one left: no word is
    assert shuffle_from(records, 0, np.array([0, 2], dtype=np.uint64)) == 1
    assert records.tolist() == [2, 1, 0]
    assert shuffle_from(records, 1, np.array([1, 0], dtype=np.uint64)) == 3
    assert records.tolist() == [2, 0, 1]


@pytest.mark.parametrize("key", [b"", b"x" * 31, b"x" * 33])
def test_keys_of_the_wrong_length(key):
    with pytest.raises(ArgumentError, match=r"key must be 32 bytes, got .*os\.urandom\(32\)"):
        draw_batch(DESIGNS[0], key)
