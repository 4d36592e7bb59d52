# SPDX-License-Identifier: Apache-2.0
r"""Integer Gaussian noise on a keyed stream.

The distribution is the discrete Gaussian on the integers, $P(z) \propto \exp(-z^2 / (2 \sigma^2))$,
with the one parameter $\sigma = 2^{44}$; a release scales its grid, never the sampler. One trial:

1. draw x >= 0 with probability proportional to exp(-x^2 / (2 * 16^2)), from a table of 128-bit
   cumulative probabilities;
2. draw 40 uniform bits `low`, and put the magnitude m = x * 2^40 + low;
3. accept with probability exp(-t (2x + t) / (2 * 16^2)), t = low / 2^40, so that m has been kept in
   proportion to exp(-m^2 / (2 * 2^88));
4. draw a sign; reject minus zero, which would count zero twice.

`exact_trial` does this in integers. A loop decides the same trials with one 64-bit comparison and a
few floating-point operations, and hands every trial that is too close for them (one in eight
million) to `exact_trial`: no rounding of a float ever decides a draw, and the draws depend on the
key alone. There are two such loops: a compiled one for millions of draws, and one of whole arrays,
which needs no compiler.

A trial takes two words of the stream: the high word of the table position; then, from the lowest
bit, `low` (40), the sign (1) and the leading bits of the acceptance (23). A third and a fourth are
taken only to settle a tie.
"""

import functools
import hashlib
import math
import os
from bisect import bisect_right
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context
from typing import ClassVar, Protocol, final

import attrs
import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_count
from pufferslice._core.kernels import has_compiler, kernel
from pufferslice._core.threads import in_threads
from pufferslice.errors import ArgumentError

Words = npt.NDArray[np.uint64]
Guide = npt.NDArray[np.uint8]
_Fill = Callable[[Words, Integers, Guide, Words, float], tuple[int, int]]

LOW_BITS = 40
COARSE_BITS = 64 - LOW_BITS - 1
WORD = 2**64
BASE_SIGMA = 16
BASE_SIZE = 256
TABLE_UNIT = 2**128
ACCEPT_UNIT = 2 ** (COARSE_BITS + 64)

SIGMA_INT = BASE_SIGMA * 2**LOW_BITS
"""Parameter of the distribution, 2^44; the standard deviation of the ideal distribution, to
hundreds of digits."""

LARGEST_DRAW = BASE_SIZE * 2**LOW_BITS - 1
"""No draw is larger than this in absolute value (2^48 - 1)."""

TABLE_CUT = 2 * math.exp(-128) * 1.6 / 20
CUMULATIVE_ROUNDING = BASE_SIZE * 2.0**-128
ACCEPT_ROUNDING = 2.0**-86
LEAST_ACCEPTANCE = 0.95
DRAW_DELTA = (TABLE_CUT + CUMULATIVE_ROUNDING + ACCEPT_ROUNDING) / LEAST_ACCEPTANCE
r"""Total-variation distance of one draw from the ideal distribution is at most this, about 1.4e-26.

Let mu(x, low, sign) be the probability that an ideal trial gives this triple and accepts it, and nu
the same for the trial that is implemented. The distributions of the draw are mu/|mu| and nu/|nu|,
and half the L1 distance of these is at most |mu - nu| / |mu|. Now

* |mu| = sum_z exp(-z^2 / (2 sigma^2)) / (2^41 S) with S = sum_{x>=0} exp(-x^2/512). By Poisson
  summation the first sum is at least sigma sqrt(2 pi); and S is between 16 sqrt(pi/2) and one more.
  So |mu| >= 20.05 / 21.06 > `LEAST_ACCEPTANCE`;
* |mu - nu| <= |q - r| + sup |h - k|, with q, r the distributions of x and h, k the acceptances;
* cutting q at 256 moves twice its tail (L1), and (256 + j)^2 >= 256^2 + 512 j, so the tail is at
  most exp(-128) / (1 - 1/e) / S: `TABLE_CUT`;
* each of the 255 cumulative sums is rounded by at most half of 2^-128 (and 10^-50 from the 60-digit
  arithmetic), so each of the 256 probabilities by at most 2^-128, and less in the two that end at
  exact 0 and 1: `CUMULATIVE_ROUNDING`;
* the acceptance is compared with 87 bits, its threshold rounded down from a value good to 50
  digits: off by less than 2^-86, `ACCEPT_ROUNDING`.

Needs: the keystream is uniform. That AES-256-CTR is indistinguishable from uniform is a
computational assumption and not part of this number.
"""

INTEGER_DELTA = 2.0**-93
r"""Total-variation distance of the ideal distribution from a Gaussian rounded to integers.

With f the density of N(0, sigma^2), the integral of f over a cell of width 1 is f at its middle
plus 1/24 of a second derivative inside it. So the two distributions differ, in absolute sum, by
$\frac{1}{24} \int |f''| = \frac{4}{24} \max |f'|$, up to a share of order 1/sigma; and max |f'| is
$1 / (\sqrt{2 \pi e} \sigma^2)$. Half of it, the total variation, is 0.0202 / sigma^2, while 2^-93
is 0.031 / sigma^2. Rényi bounds of a static release hold without it; delta, guesses and the
amplified cost of a run need it.
"""

ROUNDING_DELTA = 2.0**-46
"""Total variation, per coordinate, between an integer Gaussian around a rounded point and the
rounded real Gaussian around the point itself: at most (1/2) / (sqrt(2 pi) 2^44), plus less than
2^-80 for rounding the density. Accounted where the divergence is that of the real mechanism."""

TRIAL_WORDS = 4
GUIDE_BITS = 12
BUFFER_WORDS = 2**15
PART_DRAWS = 2**18
"""Longer requests are drawn in parts on all cores, each part with its own key."""
FEW_DRAWS = 2**14
"""Most draws for which whole arrays are as quick as loading the compiler."""
MARGIN = 2.0**-6
"""How close, in units of 2^-23, an acceptance must be before a loop hands it over.

The loops' value of exp(-a), 0 <= a < 1, is off by less than 2^-32: a itself is rounded once
(2^-54), the series to degree 12 leaves out less than 1/13! < 2^-32.5, and its 36 roundings sum to
less than 2^-47. With the 2^-86 above this is less than 2^-9 units; the few other roundings are
below 2^-28 units.
"""

_DIGITS = Context(prec=60, rounding=ROUND_HALF_EVEN)
_ZEROS = bytes(8 * BUFFER_WORDS)
KEY_BYTES = 32
"""Length of an AES-256 key."""


class Noise(Protocol):
    """A source of integer Gaussian noise with parameter `SIGMA_INT`."""

    secure: ClassVar[bool]
    """Whether a release may use it."""
    name: ClassVar[str]
    """What a certificate calls it."""

    def draw(self, size: int) -> Integers:
        """Draw `size` independent values."""
        ...


@final
@attrs.frozen
class OperatingSystemNoise:
    """Noise for releases: AES-256-CTR under a new key from the operating system for every call.

    Guarantee: each draw is within `DRAW_DELTA` in total variation of the discrete Gaussian. No
    state is kept between calls, so forked processes and threads cannot repeat each other's noise.

    >>> OperatingSystemNoise().draw(3).shape
    (3,)
    """

    secure: ClassVar[bool] = True
    name: ClassVar[str] = "aes_256_ctr_operating_system"

    def draw(self, size: int) -> Integers:
        """Draw `size` independent values under a fresh key."""
        return draw_integers(os.urandom(KEY_BYTES), size)


@final
@attrs.frozen
class SeededTestNoise:
    """Repeatable noise, for tests only: whoever knows the seed can subtract it. Not for releases.

    Every call of `draw` starts the same stream again.

    >>> SeededTestNoise(seed=7).draw(3).tolist() == SeededTestNoise(seed=7).draw(3).tolist()
    True
    """

    secure: ClassVar[bool] = False
    name: ClassVar[str] = "seeded_test"

    seed: int
    """An integer, at least 0."""

    def __attrs_post_init__(self) -> None:
        check_count(0, seed=self.seed)

    def draw(self, size: int) -> Integers:
        """Draw the first `size` values of the seed's stream."""
        label = f"pufferslice seeded test noise {int(self.seed)}"
        return draw_integers(hashlib.sha256(label.encode()).digest(), size)


def draw_integers(key: bytes, size: int) -> Integers:
    """Draw `size` values of the discrete Gaussian from the stream of a 32-byte key.

    Guarantee: a function of the key alone; a longer array begins with the shorter one. Each value
    is within `DRAW_DELTA` in total variation of the ideal distribution, and at most `LARGEST_DRAW`
    in size. Needs: a uniform key, used for one call only.
    """
    check_count(0, size=size)
    draws = np.zeros(int(size), dtype=np.int64)
    add_integers(key, draws)
    return draws


def check_key(key: bytes) -> None:
    """The key of a stream has the length that AES-256 needs; it is never shown."""
    if len(key) != KEY_BYTES:
        raise ArgumentError(
            f"key must be {KEY_BYTES} bytes, got {len(key)}. Take os.urandom({KEY_BYTES})"
        )


def add_integers(key: bytes, sums: Integers) -> None:
    """Add to the sums, in place, what `draw_integers` draws from the key."""
    check_key(key)
    parts = [sums[start : start + PART_DRAWS] for start in range(0, len(sums), PART_DRAWS)]

    def add_part(number: int) -> None:
        # The first part has the key itself.
        part_key = key
        if number:
            label = number.to_bytes(8, "little")
            hashed = hashlib.blake2b(label, key=key, digest_size=32, person=b"noise part")
            part_key = hashed.digest()
        draws = np.empty(len(parts[number]), dtype=np.int64)
        # 2.05 words a draw on average: a small request does not fill the whole buffer.
        n_words = 2 * len(draws) + len(draws) // 8 + 2 * TRIAL_WORDS
        _draw(part_key, draws, min(BUFFER_WORDS, n_words), MARGIN, fill=fill)
        parts[number] += draws

    is_compiled = len(sums) > FEW_DRAWS and has_compiler()
    fill = _fill if is_compiled else _fill_by_arrays

    if len(parts) > 1:
        in_threads(add_part, range(len(parts)))
    elif parts:
        add_part(0)


def _draw(key: bytes, draws: Integers, buffer_words: int, margin: float, *, fill: _Fill) -> None:
    """Fill `draws`: a loop decides most trials, `exact_trial` the close ones."""
    size = len(draws)
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    buffer = np.empty(buffer_words, dtype=np.uint64)
    words = buffer[:0]
    guide, high_words = _search_tables()
    n_drawn = 0
    while n_drawn < size:
        if len(words) < TRIAL_WORDS:
            # Move the unused words to the front and fill the rest with new keystream.
            n_unused = len(words)
            buffer[:n_unused] = words.copy()
            rest = buffer[n_unused:].view(np.uint8).data
            stream.update_into(memoryview(_ZEROS)[: len(rest)], rest)
            words = buffer
        used, added = fill(words, draws[n_drawn:], guide, high_words, margin)
        words, n_drawn = words[used:], n_drawn + added
        if n_drawn < size and len(words) >= TRIAL_WORDS:
            value, used = exact_trial(words[:TRIAL_WORDS].tolist())
            words = words[used:]
            if value is not None:
                draws[n_drawn] = value
                n_drawn += 1


@kernel
def _fill(
    words: Words, draws: Integers, guide: Guide, high_words: Words, margin: float
) -> tuple[int, int]:
    """Run trials until `draws` is full, `words` run out, or a trial is too close to decide here.

    Returns the number of words used and of values written, without the undecided trial.
    """
    used, n_drawn = 0, 0
    while n_drawn < len(draws) and used + TRIAL_WORDS <= len(words):
        position, rest = words[used], words[used + 1]
        x = np.int64(guide[position >> np.uint64(64 - GUIDE_BITS)])
        while position > high_words[x]:
            x += 1
        if position == high_words[x]:
            break
        low = np.int64(rest & np.uint64(2**LOW_BITS - 1))
        negative = np.int64((rest >> np.uint64(LOW_BITS)) & np.uint64(1))
        coarse = float(np.int64(rest >> np.uint64(LOW_BITS + 1)))
        exponent = float(low) * float((x << (LOW_BITS + 1)) + low) * 2.0 ** -(2 * LOW_BITS + 9)
        # 1 - a <= exp(-a) <= 1 - a + a^2 / 2 decides nearly all trials without the series.
        if coarse + 1.0 + margin > 2.0**COARSE_BITS * (1.0 - exponent):
            accepted = 2.0**COARSE_BITS * (1.0 - exponent * (1.0 - 0.5 * exponent))
            if coarse < accepted + margin:
                accepted = 2.0**COARSE_BITS * _exp_minus(exponent)
            if coarse >= accepted + margin:
                used += 2
                continue
            if coarse + 1.0 + margin > accepted:
                break
        magnitude = (x << LOW_BITS) + low
        used += 2
        if magnitude == 0 and negative == 1:
            continue
        draws[n_drawn] = (magnitude ^ -negative) + negative
        n_drawn += 1
    return used, n_drawn


def _fill_by_arrays(
    words: Words, draws: Integers, guide: Guide, high_words: Words, margin: float
) -> tuple[int, int]:
    """Do as `_fill`, for all trials at once."""
    del guide
    n_trials = len(words) // 2 - (TRIAL_WORDS // 2 - 1)
    positions, rests = words[: 2 * n_trials : 2], words[1 : 2 * n_trials : 2]
    x = np.searchsorted(high_words, positions).astype(np.int64)
    low = (rests & np.uint64(2**LOW_BITS - 1)).astype(np.int64)
    negative = ((rests >> np.uint64(LOW_BITS)) & np.uint64(1)).astype(np.int64)
    coarse = (rests >> np.uint64(LOW_BITS + 1)).astype(np.float64)
    exponents = low.astype(np.float64) * ((x << (LOW_BITS + 1)) + low) * 2.0 ** -(2 * LOW_BITS + 9)
    accepted = 2.0**COARSE_BITS * _series(exponents)
    is_rejected = coarse >= accepted + margin
    is_close = (positions == high_words[x]) | (~is_rejected & (coarse + 1.0 + margin > accepted))
    n_decided = int(np.argmax(is_close)) if is_close.any() else n_trials
    magnitudes = (x << LOW_BITS) + low
    is_drawn = ~is_rejected & ~((magnitudes == 0) & (negative == 1))
    places = np.flatnonzero(is_drawn[:n_decided])[: len(draws)]
    draws[: len(places)] = (magnitudes[places] ^ -negative[places]) + negative[places]
    used = int(places[-1]) + 1 if 0 < len(places) == len(draws) else n_decided
    return 2 * used, len(places)


def _series(exponents: Floats) -> Floats:
    """Compute exp(-exponent) of exponents in [0, 1), as `_exp_minus` does."""
    totals = np.ones_like(exponents)
    for degree in range(12, 0, -1):
        totals = 1.0 - exponents * totals / degree
    return totals


@kernel
def _exp_minus(exponent: float) -> float:
    """exp(-exponent) for an exponent in [0, 1), to within 2^-32, by its series to degree 12."""
    total = 1.0
    for degree in range(12, 0, -1):
        total = 1.0 - exponent * total / degree
    return total


def exact_trial(words: list[int]) -> tuple[int | None, int]:
    """One trial in integers, from four words: the draw (None: rejected) and the words it used."""
    position, rest, *spare = words
    cumulative = cumulative_table()
    used, within = 2, 0
    if position in {bound // WORD for bound in cumulative}:
        within = spare[used - 2]
        used += 1
    x = bisect_right(cumulative, position * WORD + within)
    low, rest = rest % 2**LOW_BITS, rest >> LOW_BITS
    negative, coarse = rest % 2, rest // 2
    threshold = acceptance_threshold(x, low)
    fine = 0
    if coarse == threshold // WORD:
        fine = spare[used - 2]
        used += 1
    magnitude = x * 2**LOW_BITS + low
    if coarse * WORD + fine >= threshold or (magnitude == 0 and negative):
        return None, used
    return (-magnitude if negative else magnitude), used


def acceptance_threshold(x: int, low: int) -> int:
    """The acceptance probability of (x, low) in units of 2^-87, rounded down."""
    exponent = _DIGITS.divide(-low * (x * 2 ** (LOW_BITS + 1) + low), 2 ** (2 * LOW_BITS + 9))
    return int(_DIGITS.multiply(_DIGITS.exp(exponent), ACCEPT_UNIT))


@functools.cache
def cumulative_table() -> tuple[int, ...]:
    """P(X <= x) of the half-Gaussian X in units of 2^-128, for x = 0, 1, ... while below 1."""
    weights = [_DIGITS.exp(_DIGITS.divide(-x * x, 2 * BASE_SIGMA**2)) for x in range(BASE_SIZE)]
    sums = [weights[0]]
    for weight in weights[1:]:
        sums.append(_DIGITS.add(sums[-1], weight))
    shares = (_DIGITS.divide(_DIGITS.multiply(part, TABLE_UNIT), sums[-1]) for part in sums)
    bounds = (int(_DIGITS.to_integral_value(share)) for share in shares)
    return tuple(bound for bound in bounds if bound < TABLE_UNIT)


@functools.cache
def _search_tables() -> tuple[Guide, Words]:
    """Where the search starts, by the leading bits of a position; and the high words to pass.

    The last high words are 2^64 - 1, which no position passes. Starts are below `BASE_SIZE` and
    stored in bytes, so that both tables fit the first cache.
    """
    high_words = np.array([bound // WORD for bound in cumulative_table()], dtype=np.uint64)
    starts = np.arange(2**GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - GUIDE_BITS)
    return np.searchsorted(high_words, starts).astype(np.uint8), high_words
