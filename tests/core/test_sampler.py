# SPDX-License-Identifier: Apache-2.0
"""Integer noise against a second implementation: every trial, its error, its streams, forks."""

import itertools
import os
import random
import subprocess
import sys
import threading

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from tests.refusals import Refusal, check_refused

from pufferslice._core import sampler
from pufferslice._core.sampler import (
    DRAW_DELTA,
    LARGEST_DRAW,
    SIGMA_INT,
    OperatingSystemNoise,
    SeededTestNoise,
    draw_integers,
)
from pufferslice.errors import ArgumentError

KEY = bytes(range(32))
TOP = 2**64 - 1
EXTREMES = [(0, 0), (0, 1), (0, 2**40 - 1), (255, 0), (255, 1), (255, 2**40 - 1), (16, 2**39)]


@pytest.fixture(autouse=True)
def sixty_digits():
    with mpmath.workdps(60):
        yield


def test_constants():
    assert SIGMA_INT == 2**44
    assert LARGEST_DRAW == 2**48 - 1
    assert OperatingSystemNoise.secure
    assert OperatingSystemNoise.name == "aes_256_ctr_operating_system"
    assert not SeededTestNoise.secure
    assert SeededTestNoise.name == "seeded_test"


# The reference: the same algorithm, written again with mpmath and a block cipher, one word a time.


def reference_words(key):
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - as CTR
    for counter in itertools.count():
        block = encryptor.update(counter.to_bytes(16, "big"))
        yield int.from_bytes(block[:8], "little")
        yield int.from_bytes(block[8:], "little")


def reference_cumulative():
    weights = [mpmath.exp(-mpmath.mpf(x * x) / 512) for x in range(256)]
    total = mpmath.fsum(weights)
    sums = [int(mpmath.nint(2**128 * mpmath.fsum(weights[: x + 1]) / total)) for x in range(256)]
    return [part for part in sums if part < 2**128]


def reference_probability(x, low):
    t = mpmath.mpf(low) / 2**40
    return mpmath.exp(-t * (2 * x + t) / 512)


def reference_trial(words, cumulative):
    high, rest = next(words), next(words)
    tied = any(high == bound >> 64 for bound in cumulative)
    position = (high << 64) + (next(words) if tied else 0)
    x = sum(bound <= position for bound in cumulative)
    low, negative, coarse = rest & (2**40 - 1), rest >> 40 & 1, rest >> 41
    threshold = int(mpmath.floor(2**87 * reference_probability(x, low)))
    uniform = (coarse << 64) + (next(words) if coarse == threshold >> 64 else 0)
    magnitude = (x << 40) + low
    if uniform >= threshold or (negative and magnitude == 0):
        return None
    return -magnitude if negative else magnitude


def reference_draws(key, size):
    words, cumulative = reference_words(key), reference_cumulative()
    trials = (reference_trial(words, cumulative) for _ in itertools.count())
    return list(itertools.islice((value for value in trials if value is not None), size))


def test_draws_are_those_of_the_slow_reference():
    assert draw_integers(KEY, 4_000).tolist() == reference_draws(KEY, 4_000)


LOOPS = [sampler._fill, sampler._fill_by_arrays]


@pytest.mark.parametrize("fill", LOOPS)
@pytest.mark.parametrize("buffer_words", [4, 5, 7, 1_000])
@pytest.mark.parametrize("margin", [sampler.MARGIN, 2.0**19, 2.0**30])
def test_draws_depend_neither_on_the_buffer_nor_on_what_is_handed_over(buffer_words, margin, fill):
    draws = np.empty(1_000, dtype=np.int64)
    sampler._draw(KEY, draws, buffer_words, margin, fill=fill)
    assert np.array_equal(draws, draw_integers(KEY, 1_000))


@pytest.mark.parametrize("number", range(5))
def test_both_loops_draw_the_same_integers(number):
    key, found = bytes([number]) * 32, []
    for fill in LOOPS:
        draws = np.empty(300_000, dtype=np.int64)
        sampler._draw(key, draws, sampler.BUFFER_WORDS, sampler.MARGIN, fill=fill)
        found.append(draws)
    assert np.array_equal(*found)


def test_a_longer_array_begins_with_the_shorter_one_and_never_repeats():
    size = 2 * sampler.BUFFER_WORDS
    draws = draw_integers(KEY, size)
    assert len(np.unique(draws)) == size
    for part in (0, 1, 9, sampler.BUFFER_WORDS // 2):
        assert np.array_equal(draw_integers(KEY, part), draws[:part])


def test_cumulative_table_agrees_with_mpmath():
    weights = [mpmath.exp(-mpmath.mpf(x * x) / 512) for x in range(400)]
    total = mpmath.fsum(weights)
    table = sampler.cumulative_table()
    for x, bound in enumerate(table):
        exact = mpmath.fsum(weights[: x + 1]) / total
        assert abs(mpmath.mpf(bound) / 2**128 - exact) < mpmath.mpf(2) ** -128
    assert list(table) == sorted(table)
    assert len(table) < sampler.BASE_SIZE


def test_acceptance_agrees_with_mpmath():
    rng = random.Random(1)
    pairs = EXTREMES + [(rng.randrange(256), rng.randrange(2**40)) for _ in range(500)]
    for x, low in pairs:
        exact = reference_probability(x, low)
        error = mpmath.mpf(sampler.acceptance_threshold(x, low)) / 2**87 - exact
        assert -(mpmath.mpf(2) ** -87) * (1 + mpmath.mpf(10) ** -20) < error <= 0


def test_draw_delta_covers_every_term():
    half_sum = (1 + mpmath.jtheta(3, 0, mpmath.exp(-mpmath.mpf(1) / 512))) / 2
    ideal = [mpmath.exp(-mpmath.mpf(x * x) / 512) / half_sum for x in range(256)]
    bounds = [0, *sampler.cumulative_table()]
    bounds += [2**128] * (257 - len(bounds))
    actual = [mpmath.mpf(high - low) / 2**128 for low, high in itertools.pairwise(bounds)]
    rounding = mpmath.fsum(abs(a - b) for a, b in zip(ideal, actual, strict=True))
    cut = 1 - mpmath.fsum(ideal)
    acceptance = SIGMA_INT * mpmath.sqrt(2 * mpmath.pi) / (2**41 * half_sum)
    assert 0 < 2 * cut <= sampler.TABLE_CUT < 3 * cut
    assert rounding + cut <= sampler.TABLE_CUT + sampler.CUMULATIVE_ROUNDING
    assert mpmath.mpf(2) ** -87 < sampler.ACCEPT_ROUNDING
    assert sampler.LEAST_ACCEPTANCE < acceptance < 1
    assert (2 * cut + rounding + mpmath.mpf(2) ** -87) / acceptance <= DRAW_DELTA < 1e-25
    stated = sampler.TABLE_CUT + sampler.CUMULATIVE_ROUNDING + sampler.ACCEPT_ROUNDING
    assert stated / acceptance <= DRAW_DELTA


def packed(low, negative, coarse):
    return coarse << 41 | negative << 40 | low


def position_of(x):
    """A position word in the middle of the probability of x."""
    bounds = [0, *sampler.cumulative_table()]
    return (bounds[x] + bounds[x + 1]) >> 65


def run_loop(words, margin=sampler.MARGIN):
    """What both loops do."""
    array, found = np.array(words, dtype=np.uint64), []
    for fill in LOOPS:
        draws = np.zeros(1, dtype=np.int64)
        used, made = fill(array, draws, *sampler._search_tables(), margin)
        found.append((used, draws[:made].tolist()))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("x", [0, 1, 16, 60, 100, 148, 200])
def test_a_tied_position_takes_another_word(x):
    bound = sampler.cumulative_table()[x]
    high, low_word = divmod(bound, 2**64)
    rest = packed(0, 0, 0)
    assert run_loop([high, rest, 0, 0]) == (0, [])
    assert sampler.exact_trial([high, rest, low_word, TOP]) == ((x + 1) * 2**40, 3)
    assert sampler.exact_trial([high, rest, low_word - 1, TOP]) == (x * 2**40, 3)


def test_a_tied_acceptance_takes_another_word():
    x, low = 20, 2**39 + 12_345
    coarse, fine = divmod(sampler.acceptance_threshold(x, low), 2**64)
    words = [position_of(x), packed(low, 1, coarse)]
    assert run_loop([*words, 0, 0]) == (0, [])
    assert sampler.exact_trial([*words, fine - 1, 0]) == (-(x * 2**40 + low), 3)
    assert sampler.exact_trial([*words, fine, 0]) == (None, 3)


def test_both_ties_in_one_trial_take_four_words():
    bound = sampler.cumulative_table()[30]
    high, low_word = divmod(bound, 2**64)
    coarse, fine = divmod(sampler.acceptance_threshold(31, 2**39), 2**64)
    words = [high, packed(2**39, 0, coarse), low_word]
    assert sampler.exact_trial([*words, fine - 1]) == (31 * 2**40 + 2**39, 4)
    assert sampler.exact_trial([*words, fine]) == (None, 4)


def test_the_compiled_loop_decides_as_the_exact_trial_or_not_at_all():
    rng = random.Random(3)
    pairs = [(x, low) for x, low in EXTREMES if x < 140]
    pairs += [(rng.randrange(140), rng.randrange(2**40)) for _ in range(400)]
    decided = 0
    for x, low in pairs:
        tie = sampler.acceptance_threshold(x, low) >> 64
        for coarse in range(max(tie - 3, 0), min(tie + 4, 2**23)):
            words = [position_of(x), packed(low, coarse % 2, coarse), 0, 0]
            used, made = run_loop(words)
            if used == 0:
                assert abs(coarse - tie) <= 1
                continue
            decided += 1
            value, exact_used = sampler.exact_trial(words)
            assert (used, made) == (exact_used, [] if value is None else [value])
            assert coarse != tie
    assert decided > 4 * len(pairs)


def test_zero_counts_once():
    positive, negative = packed(0, 0, 5), packed(0, 1, 5)
    assert run_loop([1, positive, 0, 0]) == (2, [0])
    assert run_loop([1, negative, 0, 0]) == (2, [])
    assert sampler.exact_trial([1, positive, 0, 0]) == (0, 2)
    assert sampler.exact_trial([1, negative, 0, 0]) == (None, 2)


def test_seeded_noise_repeats_and_seeds_differ():
    first = SeededTestNoise(seed=7).draw(100)
    assert np.array_equal(first, SeededTestNoise(seed=7).draw(100))
    assert np.array_equal(first, SeededTestNoise(seed=np.int64(7)).draw(100))
    others = [SeededTestNoise(seed=seed).draw(100) for seed in (0, 8, 70, 2**80)]
    assert not any(set(first.tolist()) & set(other.tolist()) for other in others)


@pytest.mark.parametrize("source", [OperatingSystemNoise(), SeededTestNoise(seed=1)])
def test_sizes(source):
    for size in (0, 1, 9, np.int64(10_000)):
        draws = source.draw(size)
        assert draws.shape == (size,)
        assert draws.dtype == np.int64
        assert np.abs(draws).max(initial=0) <= LARGEST_DRAW


NUMBERS = [-1, 2.0, 1.5, float("nan"), "3", None, True, False]


@pytest.mark.parametrize(
    "refusal",
    [
        *[
            Refusal(lambda n=size, source=source: source.draw(n), ArgumentError, "size")
            for size in NUMBERS
            for source in (OperatingSystemNoise(), SeededTestNoise(seed=1))
        ],
        *[
            Refusal(lambda n=seed: SeededTestNoise(seed=n), ArgumentError, "seed")
            for seed in NUMBERS
        ],
        *[
            Refusal(lambda n=length: draw_integers(bytes(n), 1), ArgumentError, "key")
            for length in (0, 16, 31, 33)
        ],
    ],
)
def test_refused(refusal):
    check_refused(refusal)


def test_a_key_is_not_shown():
    with pytest.raises(ArgumentError) as caught:
        draw_integers(b"\x07" * 31, 1)
    assert "x07" not in str(caught.value)


def test_operating_system_noise_never_repeats():
    calls = [OperatingSystemNoise().draw(50).tolist() for _ in range(20)]
    source = OperatingSystemNoise()
    calls += [source.draw(50).tolist() for _ in range(20)]
    values = [value for call in calls for value in call]
    assert len(set(values)) == len(values)


def test_two_threads_at_once_draw_different_noise():
    source, barrier, drawn = OperatingSystemNoise(), threading.Barrier(2), []

    def work():
        barrier.wait()
        drawn.append(source.draw(50_000))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = drawn
    assert len(np.intersect1d(first, second)) < 20


FORK = """
import os, sys
import numpy as np
from pufferslice._core.sampler import OperatingSystemNoise, SeededTestNoise

source = OperatingSystemNoise()
source.draw(100_000)
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.close(reader)
    drawn = np.concatenate([source.draw(100), SeededTestNoise(seed=1).draw(100)])
    os.write(writer, drawn.tobytes())
    os._exit(0)
os.close(writer)
sys.stdout.buffer.write(source.draw(100).tobytes())
sys.stdout.flush()
sys.stdout.buffer.write(os.read(reader, 1600))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_after_the_kernel_was_used_draws_different_noise():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, check=True, timeout=60)
    parent, child, seeded = np.frombuffer(done.stdout, dtype=np.int64).reshape(3, 100)
    assert not set(parent.tolist()) & set(child.tolist())
    assert np.array_equal(seeded, SeededTestNoise(seed=1).draw(100))
