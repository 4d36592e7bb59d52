# SPDX-License-Identifier: Apache-2.0
"""Draws of a batch, and the number of differing records that it then holds.

Two datasets of the same length differ in D records, and a batch is drawn by the same indices from
both. The discrepancy K is the number of drawn indices at which they differ; an index that is drawn
twice counts twice. A design is three public facts: the distribution of K given D, the largest K of
any draw, and the constant that the sum of gradients is divided by. `draw_batch` draws a batch.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final, assert_never, final

import attrs
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_count, is_a
from pufferslice._core.kernels import kernel
from pufferslice._core.sampler import Words, check_key
from pufferslice.errors import ArgumentError

_MOST_COUNTS: Final = 2**24
"""Most counts of a distribution: more would fill the memory."""
_CHUNK: Final = 2**14
"""Words of the keystream per call of the cipher."""
_ZEROS: Final = bytes(8 * _CHUNK)


def _plain(value: Any) -> Any:  # the class checks it afterwards
    """A numpy scalar as the Python number that JSON can hold."""
    return value.item() if isinstance(value, np.generic) else value


@final
@attrs.frozen(kw_only=True)
class Poisson:
    """Design in which every record enters the batch on its own with probability `rate`.

    K given D is Binomial(D, rate). Batch sizes vary; a batch may be empty.

    >>> Poisson(n_records=50_000, rate=0.01024).divisor
    512.0
    """

    name: ClassVar[str] = "poisson"

    n_records: int = attrs.field(converter=_plain)
    """Records in the dataset, the same in both worlds."""
    rate: float = attrs.field(converter=_plain)
    """Probability of each record, greater than 0 and at most 1."""

    def __attrs_post_init__(self) -> None:
        check_count(1, n_records=self.n_records)
        if isinstance(self.rate, bool) or not (is_a(self.rate, int | float) and 0 < self.rate <= 1):
            raise ArgumentError(f"rate must be greater than 0 and at most 1, got {self.rate!r}")

    @property
    def divisor(self) -> float:
        """The expected batch size; never the realised one, which would depend on the draw."""
        return float(self.rate * self.n_records)

    def discrepancy_cap(self, max_differing: int) -> int:
        """The most differing records that any draw can hold: all of them."""
        return _checked_differing(self.n_records, max_differing=max_differing)

    def discrepancy_log_probabilities(self, n_differing: int) -> Floats:
        """Logs of P(K = k) for k = 0, 1, ..., the cap: Binomial(n_differing, rate).

        >>> np.exp(Poisson(n_records=100, rate=0.5).discrepancy_log_probabilities(2)).round(12)
        array([0.25, 0.5 , 0.25])
        """
        d = _checked_differing(self.n_records, n_differing=n_differing)
        return binomial_log_probabilities(d, self.rate, 1 - self.rate)

    def mean_square_discrepancy(self, n_differing: int) -> float:
        """E[K^2] = Dq (1 + (D - 1) q).

        >>> round(Poisson(n_records=50_000, rate=0.01024).mean_square_discrepancy(20), 9)
        0.244645888
        """
        d = _checked_differing(self.n_records, n_differing=n_differing)
        return d * self.rate * (1 + (d - 1) * self.rate)

    def mean_square_over(self, mean: float, mean_square: float) -> float:
        """E[K^2] = q (1 - q) E D + q^2 E D^2 for a random D with these two moments.

        >>> round(Poisson(n_records=50_000, rate=0.01024).mean_square_over(20, 400), 9)
        0.244645888
        """
        return self.rate * (1 - self.rate) * mean + self.rate**2 * mean_square

    def description(self) -> dict[str, Any]:
        """The design as JSON values."""
        return {"kind": self.name, "n_records": self.n_records, "rate": self.rate}


@attrs.frozen(kw_only=True)
class _FixedSize:
    """Batches that all have the same number of draws."""

    name: ClassVar[str]

    n_records: int = attrs.field(converter=_plain)
    """Records in the dataset, the same in both worlds."""
    batch_size: int = attrs.field(converter=_plain)
    """Draws in a batch, at most `n_records`."""

    def __attrs_post_init__(self) -> None:
        check_count(1, n_records=self.n_records, batch_size=self.batch_size)
        if self.batch_size > self.n_records:
            raise ArgumentError(
                f"batch_size must be at most n_records = {self.n_records}, got {self.batch_size}"
            )

    @property
    def divisor(self) -> float:
        """The batch size."""
        return float(self.batch_size)

    def description(self) -> dict[str, Any]:
        """The design as JSON values."""
        return {"kind": self.name, "n_records": self.n_records, "batch_size": self.batch_size}


@final
@attrs.frozen(kw_only=True)
class WithoutReplacement(_FixedSize):
    """Design whose batch is a uniform set of `batch_size` records.

    K given D is Hypergeometric(n_records, D, batch_size).
    """

    name: ClassVar[str] = "without_replacement"

    def discrepancy_cap(self, max_differing: int) -> int:
        """The most differing records that any draw can hold. Source: prop:wr_caps."""
        d = _checked_differing(self.n_records, max_differing=max_differing)
        return min(d, self.batch_size)

    def discrepancy_log_probabilities(self, n_differing: int) -> Floats:
        """Logs of P(K = k) for k = 0, 1, ..., the cap; minus infinity where k cannot occur.

        K is Hypergeometric(n_records, n_differing, batch_size).
        """
        d = _checked_differing(self.n_records, n_differing=n_differing)
        lowest, highest = max(0, d + self.batch_size - self.n_records), min(d, self.batch_size)
        _check_length(highest + 1)
        k = np.arange(lowest + 1, highest + 1, dtype=np.float64)
        logs = _normalised_logs(np.log(self._ratios(d, k)))
        return np.concatenate([np.full(lowest, -np.inf), logs])

    def log_probabilities(self, n_differing: Integers) -> Floats:
        """The distributions of K for ascending numbers of differing records, one row of logs each.

        Rows have the counts from 0 to the largest that the last number allows. Far out in the tails
        they are a little less accurate than `discrepancy_log_probabilities`.
        """
        d, counts = n_differing[:, None], np.arange(self.discrepancy_cap(int(n_differing[-1])) + 1)
        _check_length(len(counts))
        possible = (counts <= d) & (counts >= d + self.batch_size - self.n_records)
        inside = possible[:, 1:] & possible[:, :-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.log(np.where(inside, self._ratios(d, counts[1:]), 1.0))
        logs = np.pad(_running_sums(steps), ((0, 0), (1, 0)))
        logs[~possible] = -np.inf
        logs -= logs.max(axis=1, keepdims=True)
        return np.asarray(logs - np.log(np.exp(logs).sum(axis=1, keepdims=True)))

    def _ratios(self, d: int | Integers, k: Floats | Integers) -> Floats:
        """P(K = k) / P(K = k - 1)."""
        b, room = self.batch_size, self.n_records - d - self.batch_size
        return np.asarray((d - k + 1) / k * ((b - k + 1) / (room + k)))

    def mean_square_discrepancy(self, n_differing: int) -> float:
        """E[K^2] = (BD/N) (1 + (D - 1)(B - 1) / (N - 1)).

        >>> design = WithoutReplacement(n_records=50_000, batch_size=512)
        >>> round(design.mean_square_discrepancy(20), 12)
        0.244568859377
        """
        d = _checked_differing(self.n_records, n_differing=n_differing)
        return float(_mean_squares(self.n_records, d, np.array(self.divisor)))

    def mean_square_over(self, mean: float, mean_square: float) -> float:
        """E[K^2] for a random D with these two moments.

        (B/N) (N - B)/(N - 1) (E D - E D^2 / N) + (B/N)^2 E D^2.

        >>> design = WithoutReplacement(n_records=50_000, batch_size=512)
        >>> round(design.mean_square_over(20, 400), 12)
        0.244568859377
        """
        b, n = self.batch_size, self.n_records
        left = (n - b) / max(1, n - 1)
        return b / n * left * (mean - mean_square / n) + (b / n) ** 2 * mean_square


@final
@attrs.frozen(kw_only=True)
class WithReplacement(_FixedSize):
    """Design whose batch is `batch_size` independent uniform draws of a record.

    K given D is Binomial(batch_size, D / n_records): for a *given* D. If D is random, the draws
    share its mismatches and K is a mixture of such distributions over D, not Binomial(batch_size,
    E[D/N]) as the paper's eq:Delta_binomial_tau has it.
    """

    name: ClassVar[str] = "with_replacement"

    def discrepancy_cap(self, max_differing: int) -> int:
        """The whole batch as soon as one record differs: it may be drawn every time.

        Source: prop:wr_caps.
        """
        d = _checked_differing(self.n_records, max_differing=max_differing)
        return self.batch_size if d else 0

    def discrepancy_log_probabilities(self, n_differing: int) -> Floats:
        """Logs of P(K = k) for k = 0, 1, ..., the cap: Binomial(batch_size, D / n_records).

        Source: prop:wr_caps.
        """
        d = _checked_differing(self.n_records, n_differing=n_differing)
        return binomial_log_probabilities(
            self.discrepancy_cap(d), float(d), float(self.n_records - d)
        )

    def mean_square_discrepancy(self, n_differing: int) -> float:
        """E[K^2] = (BD/N) (1 + (B - 1) D / N).

        >>> design = WithReplacement(n_records=50_000, batch_size=512)
        >>> round(design.mean_square_discrepancy(20), 12)
        0.24666112
        """
        d = _checked_differing(self.n_records, n_differing=n_differing)
        b, n = self.batch_size, self.n_records
        return b * d / n * (1 + (b - 1) * d / n)

    def mean_square_over(self, mean: float, mean_square: float) -> float:
        """E[K^2] = (B/N) E D + (B^2 - B) E D^2 / N^2 for a random D with these two moments.

        >>> design = WithReplacement(n_records=50_000, batch_size=512)
        >>> round(design.mean_square_over(20, 400), 12)
        0.24666112
        """
        b, n = self.batch_size, self.n_records
        return b / n * mean + (b * b - b) * mean_square / n**2


SamplingDesign = Poisson | WithoutReplacement | WithReplacement

_DESIGNS: Final = {design.name: design for design in (Poisson, WithoutReplacement, WithReplacement)}


def sampling_from_description(description: Mapping[str, Any]) -> SamplingDesign:
    """The design that a `description()` describes.

    >>> sampling_from_description({"kind": "poisson", "n_records": 10, "rate": 0.5})
    Poisson(n_records=10, rate=0.5)
    """
    fields = dict(description)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _DESIGNS:
        raise ArgumentError(
            f"the kind of a sampling design must be one of {', '.join(_DESIGNS)}; got {kind!r}"
        )
    names = [field.name for field in attrs.fields(_DESIGNS[kind])]
    if sorted(fields) != sorted(names):
        keys = ", ".join(sorted(map(str, fields))) or "nothing"
        raise ArgumentError(f"{kind} sampling is described by {' and '.join(names)}; got {keys}")
    design: SamplingDesign = _DESIGNS[kind](**fields)
    return design


def poisson_mean_square_ratio(sampling: Poisson, n_differing: int) -> float:
    r"""The paper's normalised discrepancy of Poisson batches: $E[\kappa^2]$ for the ratio K/B.

    $$E[\kappa^2] = \sum_{b \ge 1} P(B = b) \frac{E[K^2 | B = b]}{b^2}, \quad
      B \sim \mathrm{Binomial}(N, q)$$

    with ratio 0 for an empty batch. For comparison only: it belongs to a sum divided by the
    realised batch size, and the library divides by the expected one (`Poisson.divisor`).
    """
    d = _checked_differing(sampling.n_records, n_differing=n_differing)
    n, q = sampling.n_records, sampling.rate
    sizes = np.arange(1, n + 1, dtype=np.float64)
    # Given its size, a Poisson batch is a uniform set of records.
    mean_squares = _mean_squares(n, d, sizes)
    chances = np.exp(binomial_log_probabilities(n, q, 1 - q)[1:])
    return float(chances @ (mean_squares / sizes**2))


def draw_batch(sampling: SamplingDesign, key: bytes) -> Integers:
    """Draw the indices of one batch, in drawn order, from the stream of a 32-byte key.

    The stream is the AES-256-CTR keystream of the key, read as little-endian 64-bit numbers. A
    record enters a Poisson batch if its number is below rate * 2^64. The other designs pass over
    numbers that would favour small indices; without replacement is the first part of a Fisher-Yates
    shuffle.

    Guarantee: a function of the design and the key alone. The distribution is the design's,
    exactly, if the stream is uniform; a Poisson rate is rounded down to a multiple of 2^-64, and a
    smaller rate never costs more. Needs: a uniform key that is used for one batch and nothing else.
    That AES-256-CTR is indistinguishable from uniform is a computational assumption.

    >>> draw_batch(WithoutReplacement(n_records=5, batch_size=5), bytes(32)).tolist()
    [1, 2, 3, 4, 0]
    """
    check_key(key)
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def next_words(size: int) -> Words:
        raw = stream.update(memoryview(_ZEROS)[: 8 * min(_CHUNK, size)])
        return np.frombuffer(raw, dtype="<u8").astype(np.uint64, copy=False)

    n_records, n_drawn = int(sampling.n_records), 0
    match sampling:
        case Poisson():
            if sampling.rate == 1:
                return np.arange(n_records, dtype=np.int64)
            # The product is exact and below 2^64, and int() rounds down.
            threshold = np.uint64(int(float(sampling.rate) * 2.0**64))
            chunks = [
                np.flatnonzero(next_words(n_records - start) < threshold) + start
                for start in range(0, n_records, _CHUNK)
            ]
            return np.concatenate(chunks).astype(np.int64, copy=False)
        case WithoutReplacement():
            records, size = np.arange(n_records, dtype=np.int64), int(sampling.batch_size)
            while n_drawn < size:
                n_drawn = shuffle_from(records, n_drawn, next_words(size - n_drawn))
            return records[:size].copy()
        case WithReplacement():
            batch = np.empty(int(sampling.batch_size), dtype=np.int64)
            while n_drawn < len(batch):
                n_drawn = uniform_from(batch, n_drawn, n_records, next_words(len(batch) - n_drawn))
            return batch
    assert_never(sampling)


@kernel
def shuffle_from(records: Integers, n_drawn: int, words: Words) -> int:
    """Continue a shuffle whose first `n_drawn` places are final; returns how many then are.

    Each place takes a uniform one of the remaining records.
    """
    for word in words:
        left = np.uint64(len(records) - n_drawn)
        if word < (np.uint64(0) - left) % left:
            continue
        other = n_drawn + np.int64(word % left)
        records[n_drawn], records[other] = records[other], records[n_drawn]
        n_drawn += 1
    return n_drawn


@kernel
def uniform_from(batch: Integers, n_drawn: int, n_records: int, words: Words) -> int:
    """Continue to fill a batch with uniform indices; returns how many there then are."""
    bound = np.uint64(n_records)
    surplus = (np.uint64(0) - bound) % bound
    for word in words:
        if word < surplus:
            continue
        batch[n_drawn] = np.int64(word % bound)
        n_drawn += 1
    return n_drawn


def binomial_log_probabilities(n_trials: int, success: float, failure: float) -> Floats:
    """Log probabilities of 0..n_trials successes; one trial has odds `success` to `failure`.

    Both are given, up to a common factor, so that neither is lost to rounding near 0 or 1.
    """
    _check_length(n_trials + 1)
    if success == 0 or failure == 0:
        logs = np.full(n_trials + 1, -np.inf)
        logs[n_trials if failure == 0 else 0] = 0.0
        return logs
    k = np.arange(1, n_trials + 1, dtype=np.float64)
    return _normalised_logs(np.log((n_trials - k + 1) / k) + math.log(success / failure))


def binomial_windows(n_trials: Floats, success: float, lowest: int, highest: int) -> Floats:
    """Log probabilities of `lowest`..`highest` successes; one row for each number of trials.

    Relative to the first entry of a row, which must be possible in all rows.
    """
    k = np.arange(lowest + 1, highest + 1, dtype=np.float64)
    left = n_trials[:, None] - k + 1
    steps = np.log(np.maximum(left, 1) / k) + math.log(success / (1 - success))
    logs = np.pad(_running_sums(steps), ((0, 0), (1, 0)))
    logs[:, 1:][left < 1] = -np.inf
    return logs


def _normalised_logs(steps: Floats) -> Floats:
    """Log probabilities from the logs of their successive ratios, which decrease.

    Summed outwards from the largest: tails keep their relative accuracy, and no large numbers
    cancel as they would in differences of log factorials.
    """
    mode = int(np.count_nonzero(steps > 0))
    below = _running_sums(-steps[:mode][::-1])[::-1]
    above = _running_sums(steps[mode:])
    logs = np.concatenate([below, [0.0], above])
    return np.asarray(logs - math.log(np.exp(logs).sum()))


def _running_sums(terms: Floats) -> Floats:
    """Cumulative sums of rows, corrected for the rounding error of every addition."""
    sums = np.cumsum(terms, axis=-1)
    before = np.zeros_like(sums)
    before[..., 1:] = sums[..., :-1]
    added = sums - before
    lost = (before - (sums - added)) + (terms - added)
    return np.asarray(sums + np.cumsum(lost, axis=-1))


def _mean_squares(n_records: int, n_differing: int, sizes: Floats) -> Floats:
    """E[K^2] of uniform sets of the given sizes."""
    means = sizes * n_differing / n_records
    return np.asarray(means * (1 + (n_differing - 1) * (sizes - 1) / max(n_records - 1, 1)))


def _checked_differing(n_records: int, **named: int) -> int:
    """The one named number, which counts records of the dataset."""
    ((name, value),) = named.items()
    check_count(0, **named)
    if value > n_records:
        raise ArgumentError(f"{name} must be at most n_records = {n_records}, got {value}")
    return int(value)


def _check_length(n_counts: int) -> None:
    if n_counts > _MOST_COUNTS:
        raise ArgumentError(
            f"the distribution would have {n_counts} counts, more than the {_MOST_COUNTS} that "
            "are summed over; bound the number by `at_most`, or use the worst case, which needs "
            "no distribution"
        )
