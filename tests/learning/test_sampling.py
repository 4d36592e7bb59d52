# SPDX-License-Identifier: Apache-2.0
"""Sampling designs against exact counting and simulation, and draws against exact integers."""

import hashlib
import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy import stats
from tests.learning import counting

from pufferslice.learning.sampling import (
    _CHUNK,
    Poisson,
    WithoutReplacement,
    WithReplacement,
    binomial_windows,
    draw_batch,
    poisson_mean_square_ratio,
    sampling_from_description,
    shuffle_from,
    uniform_from,
)

HP = mp.clone()
HP.dps = 40


@st.composite
def designs(draw, most_records=60):
    n_records = draw(st.integers(1, most_records))
    kind = draw(st.sampled_from([Poisson, WithoutReplacement, WithReplacement]))
    if kind is Poisson:
        return Poisson(n_records=n_records, rate=draw(st.floats(1e-6, 1.0)))
    return kind(n_records=n_records, batch_size=draw(st.integers(1, n_records)))


@st.composite
def designs_with_differing(draw):
    design = draw(designs())
    return design, draw(st.integers(0, design.n_records))


def probabilities(design, n_differing):
    return np.exp(design.discrepancy_log_probabilities(n_differing))


class TestMeanSquare:
    @given(designs_with_differing())
    def test_is_the_mean_square_of_the_distribution(self, drawn):
        design, n_differing = drawn
        chances = probabilities(design, n_differing)
        summed = chances @ np.arange(len(chances)) ** 2.0
        assert design.mean_square_discrepancy(n_differing) == pytest.approx(summed, rel=1e-12)


class TestDistribution:
    @pytest.mark.parametrize("n_differing", range(6))
    @pytest.mark.parametrize(
        ("design", "batches"),
        [
            (Poisson(n_records=5, rate=0.375), list(counting.poisson_batches(5, 0.375))),
            (Poisson(n_records=5, rate=1), list(counting.poisson_batches(5, 1))),
            *(
                (WithoutReplacement(n_records=5, batch_size=b), counting.sets_of(5, b))
                for b in (1, 3, 5)
            ),
            *(
                (WithReplacement(n_records=5, batch_size=b), counting.sequences_of(5, b))
                for b in (1, 3, 5)
            ),
        ],
    )
    def test_against_every_batch(self, design, batches, n_differing):
        exact = counting.exact_distribution(batches, n_differing)
        logs = design.discrepancy_log_probabilities(n_differing)
        for k, log_probability in enumerate(logs):
            chance = exact.pop(k, 0)
            if chance == 0:
                assert log_probability == -math.inf
            else:
                assert math.exp(log_probability) == pytest.approx(float(chance), rel=1e-14)
        assert not any(exact.values())
        assert len(logs) == design.discrepancy_cap(n_differing) + 1

    @given(designs_with_differing())
    def test_agrees_with_scipy(self, drawn):
        design, d = drawn
        chances = probabilities(design, d)
        match design:
            case Poisson():
                oracle = stats.binom(d, design.rate)
            case WithoutReplacement():
                oracle = stats.hypergeom(design.n_records, d, design.batch_size)
            case WithReplacement():
                oracle = stats.binom(design.discrepancy_cap(d), d / design.n_records)
        exact = oracle.pmf(np.arange(len(chances)))
        np.testing.assert_allclose(chances, exact, rtol=1e-10, atol=1e-300)
        assert math.fsum(chances) == pytest.approx(1, abs=1e-14)

    @pytest.mark.parametrize(
        ("design", "caps"),
        [
            (Poisson(n_records=10, rate=0.1), {0: 0, 1: 1, 4: 4, 10: 10}),
            (WithoutReplacement(n_records=10, batch_size=4), {0: 0, 1: 1, 4: 4, 10: 4}),
            (WithReplacement(n_records=10, batch_size=4), {0: 0, 1: 4, 4: 4, 10: 4}),
        ],
    )
    def test_caps(self, design, caps):
        assert {d: design.discrepancy_cap(d) for d in caps} == caps


def log_binomial(n_trials, chance):
    q = HP.mpf(chance.numerator) / chance.denominator
    return lambda k: (
        HP.log(HP.binomial(n_trials, k)) + k * HP.log(q) + (n_trials - k) * HP.log1p(-q)
    )


def log_hypergeometric(n, d, b):
    return lambda k: HP.log(HP.binomial(d, k) * HP.binomial(n - d, b - k) / HP.binomial(n, b))


def test_rows_of_several_numbers_of_differing_records():
    """Also where so many differ that a batch must hold some of them."""
    design = WithoutReplacement(n_records=10, batch_size=8)
    numbers = np.array([1, 4, 9, 10])
    for d, logs in zip(numbers, design.log_probabilities(numbers), strict=True):
        expected = stats.hypergeom(10, d, 8).pmf(np.arange(len(logs)))
        np.testing.assert_allclose(np.exp(logs), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("design", "n_differing", "exact"),
    [
        (Poisson(n_records=10**6, rate=0.01), 50_000, log_binomial(50_000, Fraction(0.01))),
        (Poisson(n_records=500, rate=1 - 2**-50), 500, log_binomial(500, 1 - Fraction(2) ** -50)),
        (Poisson(n_records=100, rate=1e-300), 100, log_binomial(100, Fraction(1e-300))),
        (
            WithoutReplacement(n_records=50_000, batch_size=30_000),
            30_000,
            log_hypergeometric(50_000, 30_000, 30_000),
        ),
        (
            WithReplacement(n_records=50_000, batch_size=50_000),
            20,
            log_binomial(50_000, Fraction(20, 50_000)),
        ),
    ],
)
def test_logs_of_tails_are_exact_to_the_last_digits(design, n_differing, exact):
    logs = design.discrepancy_log_probabilities(n_differing)
    possible = np.flatnonzero(np.isfinite(logs))
    for k in np.unique(np.linspace(possible[0], possible[-1], 40).astype(int)):
        # Plain cumulative sums are off by 8e-15 here, differences of gammaln by far more.
        error = float(HP.mpf(float(logs[k])) - exact(int(k)))
        assert abs(error) < 3e-15 * abs(float(exact(int(k)))) + 2e-16


DESIGNS = (
    Poisson(n_records=12, rate=0.5),
    WithoutReplacement(n_records=12, batch_size=6),
    WithReplacement(n_records=12, batch_size=6),
)


class TestPoissonRatio:
    @pytest.mark.parametrize("n_differing", [0, 1, 3, 5])
    @pytest.mark.parametrize("rate", [0.125, 1.0])
    def test_all_batches(self, rate, n_differing):
        exact = sum(
            chance * Fraction(sum(i < n_differing for i in batch), len(batch)) ** 2
            for batch, chance in counting.poisson_batches(5, rate)
            if batch
        )
        ratio = poisson_mean_square_ratio(Poisson(n_records=5, rate=rate), n_differing)
        assert ratio == pytest.approx(float(exact), rel=1e-13)

    def test_is_not_the_mean_square_over_the_expected_size(self):
        design = Poisson(n_records=50_000, rate=0.01024)
        divided = design.mean_square_discrepancy(20) / design.divisor**2
        ratio = poisson_mean_square_ratio(design, 20)
        # E[K^2 | B] / B^2 = both + single / B; the mean of 1/B exceeds 1/E[B] by (1 - q)/E[B]^2.
        both = 20 * 19 / (50_000 * 49_999)
        single = 20 / 50_000 - both
        inverse = (1 + (1 - design.rate) / design.divisor) / design.divisor
        assert ratio == pytest.approx(both + single * inverse, rel=2e-5)
        assert ratio > 1.001 * divided


@given(designs())
def test_descriptions_read_back(design):
    text = json.dumps(design.description(), allow_nan=False)
    assert sampling_from_description(json.loads(text)) == design
    assert design.description()["kind"] == design.name


def test_numpy_numbers_become_plain():
    design = Poisson(n_records=np.int64(10), rate=np.float32(0.5))
    assert json.loads(json.dumps(design.description()))["rate"] == 0.5
    assert type(WithReplacement(n_records=np.int32(10), batch_size=np.uint8(5)).batch_size) is int


@pytest.mark.parametrize(
    "design",
    [
        Poisson(n_records=2**25, rate=0.5),
        WithoutReplacement(n_records=2**26, batch_size=2**25),
        WithReplacement(n_records=2**26, batch_size=2**25),
    ],
)
def test_moments_of_distributions_that_would_fill_the_memory(design):
    assert design.mean_square_discrepancy(2**25) > 0
    assert design.discrepancy_cap(2**25) == 2**25


def key_of(number):
    return hashlib.sha256(str(number).encode()).digest()


def words_of(key):
    """The keystream from single AES blocks of a counter, as Python numbers."""
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - CTR by hand
    for counter in itertools.count():
        block = cipher.update(counter.to_bytes(16, "big"))
        yield int.from_bytes(block[:8], "little")
        yield int.from_bytes(block[8:], "little")


def uniform(words, bound):
    """The next word that does not favour small remainders."""
    return next(word % bound for word in words if word >= 2**64 % bound)


def by_hand(sampling, key):
    """The same batch in exact integers and fractions."""
    words, n = words_of(key), sampling.n_records
    if isinstance(sampling, Poisson):
        numbers = [Fraction(next(words) + 1, 2**64) for _ in range(n)]
        return [i for i, number in enumerate(numbers) if number <= Fraction(sampling.rate)]
    if isinstance(sampling, WithReplacement):
        return [uniform(words, n) for _ in range(sampling.batch_size)]
    records = list(range(n))
    for place in range(sampling.batch_size):
        other = place + uniform(words, n - place)
        records[place], records[other] = records[other], records[place]
    return records[: sampling.batch_size]


class TestDraws:
    @given(designs(), st.binary(min_size=32, max_size=32))
    def test_agree_with_exact_integers(self, sampling, key):
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
    def test_longer_than_one_chunk_of_the_stream(self, sampling):
        batch = draw_batch(sampling, key_of(1))
        assert batch.tolist() == by_hand(sampling, key_of(1))
        assert batch.dtype == np.int64
        assert batch.flags.owndata
        assert not np.array_equal(batch, draw_batch(sampling, key_of(2)))

    @pytest.mark.soundness
    def test_a_rate_is_rounded_down(self):
        """Below 2^-64 nothing is drawn, and a word that equals the rate is out: never more often
        than the plan says."""
        for rate in (2.0**-64 - 2.0**-117, 2.0**-70, 5e-324):
            assert len(draw_batch(Poisson(n_records=10_000, rate=rate), key_of(1))) == 0
        key = next(key for key in map(key_of, range(50_000)) if next(words_of(key)) % 2**11 == 0)
        rate = next(words_of(key)) / 2**64
        assert len(draw_batch(Poisson(n_records=1, rate=rate), key)) == 0
        assert len(draw_batch(Poisson(n_records=1, rate=math.nextafter(rate, 1)), key)) == 1
        for rate in (math.nextafter(1, 0), 1, 1.0):
            batch = draw_batch(Poisson(n_records=10_000, rate=rate), key_of(1))
            assert batch.tolist() == list(range(10_000))

    def test_a_shuffle_by_hand(self):
        """Each word chooses among the records that are left; the first 30 places are final."""
        words = np.random.default_rng(4).integers(2**63, size=40, dtype=np.uint64)
        records, expected = np.arange(50), list(range(50))
        for place, word in enumerate(words[:30].tolist()):
            other = place + word % (50 - place)
            expected[place], expected[other] = expected[other], expected[place]
        assert shuffle_from(records, 0, words[:10]) == 10
        assert shuffle_from(records, 10, words[10:30]) == 30
        assert records.tolist() == expected

    def test_words_that_favour_small_indices_are_passed_over(self):
        """2^64 is 1 more than a multiple of 3 and of 5, 6 more than one of 10."""
        batch = np.full(6, -1)
        words = np.array([0, 5, 6, 16, 2**64 - 1, 3], dtype=np.uint64)
        assert uniform_from(batch, 0, 10, words) == 3
        assert batch.tolist() == [6, 6, 5, -1, -1, -1]
        records = np.arange(3)
        # Three left: 0 is passed over; two left and one left: no word is.
        assert shuffle_from(records, 0, np.array([0, 2], dtype=np.uint64)) == 1
        assert records.tolist() == [2, 1, 0]
        assert shuffle_from(records, 1, np.array([1, 0], dtype=np.uint64)) == 3
        assert records.tolist() == [2, 0, 1]


def test_windows_of_binomials_are_those_of_scipy():
    logs = binomial_windows(np.array([7.0, 30.0]), 0.3, 2, 9)
    for row, n in zip(logs, (7, 30), strict=True):
        expected = stats.binom.logpmf(np.arange(2, 10), n, 0.3) - stats.binom.logpmf(2, n, 0.3)
        np.testing.assert_allclose(np.exp(row), np.exp(expected), rtol=1e-12)
