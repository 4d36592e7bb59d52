# SPDX-License-Identifier: Apache-2.0
"""Number of records that the secret changes: the distribution of D under one coupling.

The secret enters the accounting only through D, the number of records at which two coupled datasets
of the same length differ. Independent records with distributions p and q differ with probability
TV(p, q) under the maximal coupling, and not less often under any other; `discrete_mismatch` and
`gaussian_mismatch` compute it, rounded up.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import attrs
import numpy as np
from scipy.special import erf, logsumexp, ndtr

from pufferslice._core.arrays import Floats, Integers, locked, same
from pufferslice._core.checks import (
    UNIT_TOLERANCE,
    check_above,
    check_at_least,
    check_between,
    check_count,
    check_finite,
    check_probabilities,
    check_share,
    is_a,
    plain_float,
)
from pufferslice.errors import ArgumentError
from pufferslice.learning.sampling import binomial_log_probabilities
from pufferslice.learning.worlds import differing_rows
from pufferslice.scenario.distributions import GaussianDistribution

ROUNDING_SLACK: Final = 2.0**-49
"""Bound on the absolute rounding error of a sum of four normal probabilities, or of one erf."""

_FIELDS: Final = {
    "listed": ("counts", "log_probabilities", "is_fixed_set", "origin"),
    "binomial": ("n_records", "mismatch_probability"),
}
"""Keys of a description, by its kind."""

_TAIL_FIELDS: Final = ("excess_probability", "failure_probability")
"""Further keys of a listed distribution; absent where nothing is left out."""
_TAIL_ROUNDING: Final = 1e-12
"""Bound on the relative rounding error of a sum of probabilities."""

_FAR: Final = 40.0
"""Sum of standard deviations beyond which normals are disjoint, up to rounding."""
_WIDE: Final = 1e16
"""Ratio of standard deviations beyond which normals are disjoint, up to rounding."""

DiscreteDistribution = Sequence[float] | Floats | Mapping[Any, float]
NormalDistribution = tuple[float, float] | GaussianDistribution
DrawPair = Callable[[np.random.Generator], tuple[object, object]]
"""One dataset of each world, drawn together."""


def _locked_counts(values: object) -> Integers:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ArgumentError(f"counts must be a vector of integers, got type {array.dtype}")
    counts = array.astype(np.int64)
    counts.setflags(write=False)
    return counts


@final
@attrs.frozen(kw_only=True, repr=False)
class DifferingRecords:
    """The distribution of the number D of differing records.

    Made by `exactly`, `binomial` and others.

    >>> exactly(20)
    DifferingRecords('exactly 20 records differ')
    """

    counts: Integers = attrs.field(converter=_locked_counts, eq=same)
    """The values of D that can occur, ascending, shape (n_counts,)."""
    log_probabilities: Floats = attrs.field(converter=locked, eq=same)
    """Natural logs of the probabilities of the counts, all finite, shape (n_counts,)."""
    is_fixed_set: bool
    """Whether all differences lie in one set of records that is fixed before anything is drawn.

    Mean square needs it: it averages over batches for one set, not over batches and sets.
    """
    origin: str
    """Public sentence on where the distribution comes from."""
    excess_probability: float = 0.0
    """Probability that more records differ than the counts say; it belongs to delta.

    The probabilities of the counts are then those given that no more differ, and no Rényi claim
    follows from them.
    """
    failure_probability: float = 0.0
    """Probability, over a simulation, that the excess probability is larger than stated; it
    belongs to the confidence of a claim."""
    _recipe: Mapping[str, Any] | None = attrs.field(default=None, init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if self.counts.size == 0 or self.counts[0] < 0 or np.any(np.diff(self.counts) <= 0):
            raise ArgumentError(
                "counts must be at least one number, not negative, each greater than the last, "
                f"got {self.counts.tolist()[:5]}"
            )
        check_finite(log_probabilities=self.log_probabilities)
        with np.errstate(over="ignore"):
            check_probabilities(
                length=len(self.counts),
                **{"the exponentials of log_probabilities": np.exp(self.log_probabilities)},
            )
        varies = self.is_random or self.excess_probability != 0
        if not is_a(self.is_fixed_set, bool) or (self.is_fixed_set and varies):
            raise ArgumentError(
                "is_fixed_set must be True or False, and a fixed set has one size; got "
                f"{self.is_fixed_set!r} with {len(self.counts)} counts and excess_probability "
                f"{self.excess_probability!r}"
            )
        if not is_a(self.origin, str) or not self.origin:
            raise ArgumentError(f"origin must be a sentence, got {self.origin!r}")
        for name in _TAIL_FIELDS:
            check_at_least(0, **{name: getattr(self, name)})
            if getattr(self, name) >= 1:
                raise ArgumentError(f"{name} must be below 1, got {getattr(self, name)!r}")
        if self.failure_probability and not self.excess_probability:
            raise ArgumentError(
                "failure_probability belongs to an excess_probability, which must be above 0"
            )

    @property
    def largest(self) -> int:
        """The largest number of differing records that can occur."""
        return int(self.counts[-1])

    @property
    def is_random(self) -> bool:
        """Whether more than one number can occur."""
        return len(self.counts) > 1

    def tail_probability(self, above: int) -> float:
        """P(D > above); of a truncated distribution, at most that.

        >>> round(binomial(n_records=100, mismatch_probability=0.05).tail_probability(5), 12)
        0.384000872044
        """
        check_count(0, above=above)
        inside = float(np.exp(self.log_probabilities[self.counts > above]).sum())
        return self.excess_probability + (1 - self.excess_probability) * inside

    def truncated(self, *, tail_probability: float) -> "DifferingRecords":
        """Drop the upper tail of the distribution, up to `tail_probability`.

        What is left out becomes the `excess_probability`. It is paid once for a whole run, because
        the same records differ in all steps, and only in the delta of an (epsilon, delta) claim:
        every Rényi claim is refused. `folded` keeps Rényi claims.
        Guarantee: if the run is (epsilon, delta')-private given that D is among the counts left,
        it is (epsilon, delta' + excess_probability)-private (joint convexity of hockey-stick
        divergences).
        Source: lem:dkw_huc_cap, for a distribution that is known.

        >>> records = binomial(n_records=100, mismatch_probability=0.05)
        >>> records.truncated(tail_probability=1e-6).largest
        18
        """
        check_between(0, 1, tail_probability=tail_probability)
        if self.excess_probability:
            raise ArgumentError("this distribution is truncated already; truncate the whole one")
        exceed = exceedances(self.log_probabilities)
        last = int(np.argmax(exceed <= tail_probability))
        if last == len(self.counts) - 1:
            return self
        logs = self.log_probabilities[: last + 1]
        excess = float(exceed[last])
        return DifferingRecords(
            counts=self.counts[: last + 1],
            log_probabilities=logs - logsumexp(logs),
            is_fixed_set=False,
            origin=f"{self.origin}; more than {self.counts[last]} with probability {excess:.3g}",
            excess_probability=excess,
        )

    @property
    def without_excess(self) -> "DifferingRecords":
        """The distribution given that no more records differ than the counts say.

        What follows from it holds only up to the `excess_probability`.
        """
        if not self.excess_probability:
            return self
        return attrs.evolve(self, excess_probability=0.0, failure_probability=0.0)

    def check_whole(self) -> None:
        """Raise if some counts were left out: Rényi claims and bits need all of them."""
        if self.excess_probability:
            raise ArgumentError(
                f"more than {self.largest} records differ with probability "
                f"{self.excess_probability:.3g}, which no Rényi claim covers; claim right guesses "
                "with Guarantee.guess(...) or (epsilon, delta) with Guarantee.epsilon_delta(...), "
                "or give the whole distribution"
            )

    def folded(self, *, above: int) -> "DifferingRecords":
        """Move every count above `above` to the largest one.

        Guarantee: costs do not fall with D, so a cost under the folded distribution is never below
        the cost under this one. It has fewer counts to account for. Dropping the tail would be
        unsound.
        """
        check_count(0, above=above)
        self.check_whole()
        tail = self.counts > above
        if np.count_nonzero(tail) <= 1:
            return self
        logs = self.log_probabilities
        return DifferingRecords(
            counts=np.append(self.counts[~tail], self.largest),
            log_probabilities=np.append(logs[~tail], logsumexp(logs[tail])),
            is_fixed_set=self.is_fixed_set,
            origin=f"{self.origin}; counts above {above} taken as {self.largest}",
        )

    def description(self) -> dict[str, Any]:
        """The distribution as JSON values that `from_description` reads."""
        if self._recipe is not None:
            return dict(self._recipe)
        return {
            "kind": "listed",
            "counts": self.counts.tolist(),
            "log_probabilities": self.log_probabilities.tolist(),
            "is_fixed_set": self.is_fixed_set,
            "origin": self.origin,
            **({n: getattr(self, n) for n in _TAIL_FIELDS} if self.excess_probability else {}),
        }

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> "DifferingRecords":
        """The distribution that a `description()` describes."""
        fields = dict(description)
        kind = str(fields.pop("kind", None))
        if kind not in _FIELDS:
            raise ArgumentError(
                f"the kind of differing records must be listed or binomial; got {kind!r}"
            )
        names = _FIELDS[kind]
        if kind == "listed" and set(fields) & set(_TAIL_FIELDS):
            names += _TAIL_FIELDS
        if sorted(fields) != sorted(names):
            keys = ", ".join(sorted(map(str, fields))) or "nothing"
            raise ArgumentError(
                f"a {kind} distribution is described by {', '.join(names)}; got {keys}"
            )
        return binomial(**fields) if kind == "binomial" else cls(**fields)

    def __repr__(self) -> str:
        return f"DifferingRecords({self.origin!r})"


def _one_count(
    n_differing: int, origin: str, *, is_fixed_set: bool = False, **tail: float
) -> DifferingRecords:
    return DifferingRecords(
        counts=[int(n_differing)],
        log_probabilities=[0.0],
        is_fixed_set=is_fixed_set,
        origin=origin,
        **tail,
    )


def _records_differ(n: int) -> str:
    return "1 record differs" if n == 1 else f"{n} records differ"


def exactly(n_differing: int) -> DifferingRecords:
    """Distribution of a fixed set of `n_differing` records in which all differences lie.

    Which records they are need not be known, but it must not be random: two given datasets, or a
    secret that touches a given part of the data. If some of the set agree, nothing costs more.
    """
    check_count(0, n_differing=n_differing)
    return _one_count(n_differing, f"exactly {_records_differ(n_differing)}", is_fixed_set=True)


def at_most(max_differing: int) -> DifferingRecords:
    """Distribution of at most `max_differing` differing records, whichever they are.

    Costs do not fall with D, so the largest number stands for all. Which records differ may be
    random, so mean square does not accept it; if the set is fixed, use `exactly`.
    """
    check_count(0, max_differing=max_differing)
    which = "it is" if max_differing == 1 else "they are"
    return _one_count(max_differing, f"at most {_records_differ(max_differing)}, whichever {which}")


def mostly_at_most(
    max_differing: int, *, tail_probability: float, failure_probability: float
) -> DifferingRecords:
    """Distribution of at most `max_differing` records, except with `tail_probability`.

    For a coupling that is known through simulation: `tail_cap_estimate` of counts of differing
    records in the whole data gives all three numbers. `failure_probability` is that the estimate
    is wrong, 0 for a cap that is known.
    Guarantee: as `DifferingRecords.truncated`; no Rényi claim.
    Source: lem:dkw_huc_cap, cor:uniform_huc_cap.

    >>> mostly_at_most(25, tail_probability=1e-6, failure_probability=0.0)
    DifferingRecords('at most 25 records differ, except with probability 1e-06')
    """
    check_between(0, 1, tail_probability=tail_probability)
    check_count(0, max_differing=max_differing)
    tail = float(tail_probability)
    return _one_count(
        max_differing,
        f"at most {_records_differ(max_differing)}, except with probability {tail!r}",
        excess_probability=tail,
        failure_probability=plain_float(failure_probability),
    )


def exceedances(log_probabilities: Floats) -> Floats:
    """P(D > d) for each count d of a distribution, rounded up; 0 for the last alone.

    Summed from the far end, so that small tails are not lost against 1.
    """
    at_least = np.cumsum(np.exp(log_probabilities)[::-1])[::-1]
    # What underflows is not 0: it stays above what the smallest floats lose in the sum.
    above = np.maximum(at_least[1:] * (1 + _TAIL_ROUNDING), np.finfo(np.float64).tiny)
    return np.asarray(np.append(above, 0.0))


def binomial(*, n_records: int, mismatch_probability: float) -> DifferingRecords:
    """Distribution of independent records that differ with `mismatch_probability` each.

    For records with distributions p and q under the two secrets, that is the total variation of p
    and q (`discrete_mismatch`, `gaussian_mismatch`), under the maximal coupling. For records that
    are independent but not identically distributed, use the largest: it dominates.

    >>> binomial(n_records=2, mismatch_probability=0.5).log_probabilities
    array([-1.38629436, -0.69314718, -1.38629436])
    """
    check_count(1, n_records=n_records)
    check_share(mismatch_probability=mismatch_probability)
    chance = float(mismatch_probability)
    logs = binomial_log_probabilities(int(n_records), chance, 1 - chance)
    possible = np.isfinite(logs)
    distribution = DifferingRecords(
        counts=np.flatnonzero(possible),
        log_probabilities=logs[possible],
        is_fixed_set=chance in {0, 1},
        origin=f"independent records, each of {n_records} differs with probability {chance!r}",
    )
    recipe = {"kind": "binomial", "n_records": int(n_records), "mismatch_probability": chance}
    # Set only here, so that it always describes the numbers.
    object.__setattr__(distribution, "_recipe", recipe)
    return distribution


def from_pmf(probabilities: Sequence[float] | Floats | Mapping[int, float]) -> DifferingRecords:
    """A given distribution: `probabilities[d]` for D = d, as a sequence from 0 or by count.

    It must sum to 1. Put the missing probability of a truncated distribution on the largest number
    that can occur, or move it to a delta; leaving it out is unsound.

    >>> from_pmf({0: 0.75, 20: 0.25}).counts
    array([ 0, 20])
    """
    if isinstance(probabilities, Mapping):
        check_count(0, **{f"count {count!r}": count for count in probabilities})
        pairs = sorted(probabilities.items())
        counts = np.array([int(count) for count, _ in pairs], dtype=np.int64)
        chances = locked([chance for _, chance in pairs])
    else:
        chances = locked(probabilities)
        counts = np.arange(chances.size)
    if chances.ndim != 1 or chances.size == 0:
        raise ArgumentError(
            f"probabilities must be one row of at least one number, got shape {chances.shape}"
        )
    check_finite(probabilities=chances)
    total = math.fsum(chances)
    if chances.min() < 0 or abs(total - 1) > UNIT_TOLERANCE:
        raise ArgumentError(
            f"probabilities must not be negative and must sum to 1; smallest "
            f"{float(chances.min())!r}, sum {total!r}. Put what is missing on the largest number "
            "of records that can differ"
        )
    possible = chances > 0
    return DifferingRecords(
        counts=counts[possible],
        log_probabilities=np.log(chances[possible]),
        is_fixed_set=False,
        origin="a given distribution of the number of differing records",
    )


def count_differing(first: object, second: object) -> DifferingRecords:
    """Count the records that differ between two given datasets of equal length, row by row.

    Takes two tables, arrays or lists; see `pufferslice.learning.worlds.differing_rows` for when
    records are the same. The count goes into the accounting, so it becomes public.

    >>> count_differing([1, 2, 3], [1, 5, 3])
    DifferingRecords('two given datasets of 3 records differ in exactly 1')
    """
    rows = differing_rows(first, second)
    n_differing = int(np.count_nonzero(rows))
    origin = f"two given datasets of {len(rows)} records differ in exactly {n_differing}"
    return _one_count(n_differing, origin, is_fixed_set=True)


def from_coupled_draws(draw_pair: DrawPair, *, n_draws: int, seed: int) -> DifferingRecords:
    """The frequencies of `n_draws` coupled pairs of datasets, taken as the distribution.

    `draw_pair(rng)` returns one dataset of each world, drawn together, all of one length. Any
    coupling is sound; one under which fewer records differ needs less noise: `maximal_pairs` for
    independent records, or both datasets built from one latent draw. The sample is *declared* to
    be the distribution, which `origin` states: a count that did not occur is taken as impossible.
    If the coupling is known, `binomial` or `from_pmf` need no such declaration.
    """
    check_count(1, n_draws=n_draws)
    check_count(0, seed=seed)
    rng = np.random.default_rng(seed)
    totals, lengths = [], set()
    for _ in range(n_draws):
        pair = draw_pair(rng)
        if not is_a(pair, tuple) or len(pair) != 2:
            raise ArgumentError(
                f"draw_pair must return a tuple of two datasets, got {type(pair).__name__}"
            )
        rows = differing_rows(*pair)
        totals.append(int(np.count_nonzero(rows)))
        lengths.add(len(rows))
    if len(lengths) > 1:
        low, high = min(lengths), max(lengths)
        raise ArgumentError(
            f"draw_pair must return datasets of one length; got from {low} to {high} records"
        )
    counts, times = np.unique(totals, return_counts=True)
    return DifferingRecords(
        counts=counts,
        log_probabilities=np.log(times / n_draws),
        is_fixed_set=False,
        origin=(
            f"the sample of {n_draws} coupled draws with seed {seed}, declared to be the "
            "distribution: counts that did not occur in it are taken as impossible"
        ),
    )


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
        shared, *separate = (
            rng.choice(len(p), n_records, p=part / part.sum())
            if part.any()
            else np.zeros(n_records, dtype=np.int64)
            for part in parts
        )
        return np.where(same, shared, separate[0]), np.where(same, shared, separate[1])

    return draw


def discrete_mismatch(first: DiscreteDistribution, second: DiscreteDistribution) -> float:
    """Total variation of two discrete record distributions, rounded up.

    Takes two sequences of the same length, or two mappings by value (a missing value has
    probability 0).

    >>> round(discrete_mismatch({"A": 0.5, "B": 0.5}, {"A": 0.25, "C": 0.75}), 12)
    0.75
    """
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        values = list({**first, **second})
        p, q = (locked([side.get(value, 0.0) for value in values]) for side in (first, second))
    elif isinstance(first, Mapping) or isinstance(second, Mapping):
        raise ArgumentError("first and second must both be sequences or both be mappings by value")
    else:
        p, q = locked(first), locked(second)
    check_probabilities(first=p, second=q, length=max(1, p.size))
    # The two differ only if the sums do; `fsum` is exact up to its last rounding.
    excess = max(math.fsum([*a[a > b], *-b[a > b]]) for a, b in ((p, q), (q, p)))
    return min(1.0, math.nextafter(excess, math.inf)) if excess > 0 else 0.0


def gaussian_mismatch(first: NormalDistribution, second: NormalDistribution) -> float:
    """Total variation of two Gaussian record distributions, rounded up.

    In one dimension each is a pair (mean, std) and the two densities are compared between the
    points where they cross. In more dimensions each is a `GaussianDistribution`, and both must have
    the same covariance: the total variation is then that of two normals at their Mahalanobis
    distance.

    >>> round(gaussian_mismatch((0.0, 1.0), (1.0, 1.0)), 12)
    0.382924922548
    """
    if isinstance(first, GaussianDistribution) and isinstance(second, GaussianDistribution):
        if not first.dim == second.dim == 1:
            return _equal_covariance_mismatch(first, second)
        first, second = (
            (float(side.mean[0]), math.sqrt(side.cov[0, 0])) for side in (first, second)
        )
    if not isinstance(first, tuple) or not isinstance(second, tuple):
        kinds = f"{type(first).__name__} and {type(second).__name__}"
        raise ArgumentError(
            f"first and second must be two (mean, std) or two GaussianDistribution; got {kinds}"
        )
    for name, pair in (("first", first), ("second", second)):
        n_numbers = len(pair)
        if n_numbers != 2:
            raise ArgumentError(f"{name} must be a pair (mean, std), got {n_numbers} numbers")
        check_above(0, **{f"std of {name}": pair[1]})
        check_finite(**{f"mean of {name}": locked(pair[0])})
    narrow, wide = sorted((first, second), key=lambda pair: float(pair[1]))
    with np.errstate(over="ignore"):
        shift = float(np.abs(np.float64(wide[0]) - float(narrow[0])) / float(narrow[1]))
        ratio = float(np.float64(wide[1]) / float(narrow[1]))
    if ratio == 1:
        return _shifted_mismatch(shift)
    if ratio > _WIDE or shift > _FAR * (1 + ratio):
        return 1.0
    # N(0, 1) and N(shift, ratio^2) cross at the roots of spread t^2 + 2 shift t =
    # shift^2 + 2 ratio^2 log_ratio, here without cancellation.
    spread, log_ratio = (ratio - 1) * (ratio + 1), math.log1p(ratio - 1)
    root = ratio * math.sqrt(shift**2 + 2 * spread * log_ratio)
    low = -(shift + root) / spread
    high = (shift**2 + 2 * ratio**2 * log_ratio) / (shift + root)
    inside = ndtr(high) - ndtr((high - shift) / ratio) - (ndtr(low) - ndtr((low - shift) / ratio))
    return min(1.0, float(inside) + ROUNDING_SLACK)


def _equal_covariance_mismatch(first: GaussianDistribution, second: GaussianDistribution) -> float:
    if not np.array_equal(first.cov, second.cov):
        raise ArgumentError(
            "first and second must have the same covariance; for others there is no closed form. "
            "Give an upper bound on their total variation instead"
        )
    try:
        scaled = np.linalg.solve(np.linalg.cholesky(first.cov), first.mean - second.mean)
    except np.linalg.LinAlgError:
        raise ArgumentError(
            "the covariance must be positive definite; leave out coordinates that do not vary"
        ) from None
    # The rounding error of the distance grows with the condition number.
    margin = 1 + first.dim * float(np.linalg.cond(first.cov)) * ROUNDING_SLACK
    return _shifted_mismatch(margin * float(np.linalg.norm(scaled)))


def _shifted_mismatch(distance: float) -> float:
    """Total variation of two normals with one covariance, at a Mahalanobis distance."""
    return min(1.0, float(erf(distance / math.sqrt(8))) * (1 + ROUNDING_SLACK))
