# SPDX-License-Identifier: Apache-2.0
"""Lower bounds on divergences from outputs, against a sliced claim or along single lines.

A tenth of the outputs, the pilot, decides everything that can be chosen: the pair and its order,
the line, the bins. The others are counted once, so a choice costs no confidence; every probability
that is bounded does: two per bin and slice.
"""

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, final

import attrs
import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from pufferslice._core.arrays import Floats, Integers, locked, same
from pufferslice._core.checks import check_between, check_count, check_finite
from pufferslice._core.threads import Progress, in_threads, silent
from pufferslice.audit.bins import (
    Aggregation,
    best_partition,
    bin_counts,
    candidate_edges,
    likely_lowers,
    likely_uppers,
    lower_share,
    sorted_counts,
    upper_share,
)
from pufferslice.audit.verdict import Quantity, Verdict
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.concentration import split
from pufferslice.sensitivity.profiles import project

PILOT_SHARE: Final = 0.1
"""Share of the outputs that is used for choices and is not counted."""

FEWEST_OUTPUTS: Final = 100
"""With fewer the pilot is too small."""

_OUTERMOST: Final = 5
_NO_SPREAD: Final = 1e-12

_LIKELY_BINS: Final = 12
_LINES_AT_ONCE: Final = 16
_MOST_OUTPUTS: Final = 2**62


Pair = tuple[Floats, Floats]
"""Sorted values along a line under the first and the second secret."""


@final
@attrs.frozen(kw_only=True, repr=False)
class SplitOutputs:
    """Outputs under one secret, shuffled: the pilot for choices, the others to count."""

    pilot: Floats = attrs.field(converter=locked, eq=same)
    """Shape (n, dim)."""
    counted: Floats = attrs.field(converter=locked, eq=same)
    """Shape (n, dim)."""

    @classmethod
    def of(cls, values: Floats, *, rng: np.random.Generator) -> "SplitOutputs":
        """A random tenth is the pilot, so the order of the outputs does not matter."""
        if values.ndim != 2 or values.shape[1] == 0:
            msg = f"outputs must have shape (n, dim), dim at least 1; got {values.shape}"
            raise ArgumentError(msg)
        check_finite(outputs=values)
        if len(values) < FEWEST_OUTPUTS:
            msg = (
                f"too few outputs: {len(values)} under one secret, at least {FEWEST_OUTPUTS} are "
                "needed"
            )
            raise ArgumentError(msg)
        where = rng.permutation(len(values))
        n_pilot = math.ceil(PILOT_SHARE * len(values))
        return cls(pilot=values[where[:n_pilot]], counted=values[where[n_pilot:]])

    @property
    def n_outputs(self) -> int:
        """Both parts."""
        return len(self.pilot) + len(self.counted)

    def __repr__(self) -> str:
        return f"SplitOutputs(n_outputs={self.n_outputs}, dim={self.pilot.shape[1]})"


class Claimed(NamedTuple):
    """A number that is claimed to bound the quantity of a test."""

    words: str
    quantity: Quantity
    value: float


class Comparison(NamedTuple):
    """Two secrets under one prior, in one order, with the outputs of both."""

    prior: str
    pair: tuple[str, str]
    outputs: tuple[SplitOutputs, SplitOutputs]

    @property
    def sizes(self) -> tuple[int, int]:
        """How many outputs are counted."""
        return len(self.outputs[0].counted), len(self.outputs[1].counted)

    @property
    def n_outputs(self) -> int:
        """Of the secret that has fewer."""
        return min(part.n_outputs for part in self.outputs)

    def verdict(
        self,
        claimed: Claimed,
        *,
        statistic: str,
        lower_bound: float,
        refutable_below: float,
        confidence: float,
        line: str,
    ) -> Verdict:
        """The verdict on a claim from these outputs."""
        return Verdict(
            claim=claimed.words,
            quantity=claimed.quantity,
            claimed=claimed.value,
            statistic=statistic,
            lower_bound=lower_bound,
            confidence=confidence,
            refutable_below=refutable_below,
            n_outputs=self.n_outputs,
            pair=self.pair,
            prior=self.prior,
            line=line,
        )


class PilotRange(NamedTuple):
    """How far the pilot outputs of one secret lie from their centre, in the worst coordinate."""

    center: Floats
    spread: Floats
    limit: float

    @classmethod
    def of(cls, pilot: Floats) -> "PilotRange":
        """A little wider than the pilot: by the distance between its outermost outputs."""
        center, spread = pilot.mean(axis=0), pilot.std(axis=0)
        spread[spread == 0] = max(float(spread.max()), 1.0) * _NO_SPREAD
        reach = np.sort((np.abs(pilot - center) / spread).max(axis=1))
        return cls(center, spread, 2 * float(reach[-1]) - float(reach[-_OUTERMOST:][0]))

    def left_by(self, values: Floats) -> npt.NDArray[np.bool_]:
        """Which outputs lie outside."""
        return np.asarray((np.abs(values - self.center) > self.limit * self.spread).any(axis=1))


class Lines(NamedTuple):
    """Directions in scaled coordinates and their names."""

    directions: Floats
    names: Sequence[str]
    within: PilotRange | None = None
    """Outputs outside of it count as infinitely far along every direction."""

    def along(self, values: Floats, which: slice = slice(None)) -> Floats:
        """Outputs along each direction, one row per direction."""
        projected = project(self.directions[which], values)
        if self.within is not None:
            projected[:, self.within.left_by(values)] = np.inf
        return projected


@final
@attrs.frozen(kw_only=True)
class LinePlan:
    """Where a line is cut, decided on the pilot outputs alone."""

    edges: Floats = attrs.field(converter=locked, eq=same)
    """Ascending; none if the pilot shows no difference."""
    above: bool = True
    """Of a threshold test: whether the event lies above the edge."""
    promise: float = 0.0
    """The lower bound that the pilot predicts; it is not itself a bound."""

    @property
    def n_bins(self) -> int:
        """At least 2 are paid for, so that the reach of a test does not depend on the outputs."""
        return max(2, len(self.edges) + 1)


class LineTest(Protocol):
    """A number of two distributions on the line that cannot grow when they are binned."""

    @property
    def statistic(self) -> str:
        """What is estimated, in words."""
        ...

    def plan(self, pilot: Pair, sizes: tuple[int, int], share: float) -> LinePlan:
        """Where to cut; `sizes` outputs will be counted, each of about `share` confidence."""
        ...

    def bound(self, plan: LinePlan, counts: tuple[Integers, Integers], share: float) -> float:
        """Lower bound from the counts in the plan's bins; each interval fails with `share`."""
        ...

    def reach(self, sizes: tuple[int, int], share: float) -> float:
        """The largest bound that so many outputs can give."""
        ...


@final
@attrs.frozen(kw_only=True)
class RenyiTest:
    r"""The Rényi divergence of order $\alpha$, by bins.

    $$D_\alpha(P \| Q) \ge \frac{1}{\alpha-1}
      \ln \sum_j \underline{p}_j^\alpha \, \overline{q}_j^{1-\alpha}$$

    Guarantee: for bins that do not depend on the counted outputs, the right-hand side is at most
    the divergence, except with probability 2 * bins * share. Cutting into bins cannot increase a
    divergence, and the sum grows in every p_j and falls in every q_j.
    """

    order: float

    @property
    def statistic(self) -> str:
        """What is estimated, in words."""
        return f"Rényi divergence of order {self.order:g}"

    def plan(self, pilot: Pair, sizes: tuple[int, int], share: float) -> LinePlan:
        """The partition with the largest predicted bound."""
        edges = candidate_edges(*pilot)
        expected = _cells(edges, pilot)
        scale = (sizes[0] / len(pilot[0]), sizes[1] / len(pilot[1]))
        n_outputs = (float(sizes[0]), float(sizes[1]))
        moment, ends = best_partition(expected, n_outputs, self.order, -float(ndtri(share)), scale)
        return LinePlan(edges=edges[ends[:-1] == 1], promise=self._divergence(moment))

    def bound(self, plan: LinePlan, counts: tuple[Integers, Integers], share: float) -> float:
        """Lower bound on the divergence of the first distribution from the second."""
        if not len(plan.edges):
            return 0.0
        n_first, n_second = (int(count.sum()) for count in counts)
        moment = math.fsum(
            lower_share(int(p), n_first, share) ** self.order
            * upper_share(int(q), n_second, share) ** (1 - self.order)
            for p, q in zip(*counts, strict=True)
            if p
        )
        return self._divergence(moment)

    def reach(self, sizes: tuple[int, int], share: float) -> float:
        """The bound if no bin has outputs of both distributions."""
        low, high = lower_share(sizes[0], sizes[0], share), upper_share(0, sizes[1], share)
        if low == 0:
            return 0.0
        return max(0.0, self.order * math.log(low) / (self.order - 1) - math.log(high))

    def _divergence(self, moment: float) -> float:
        return max(0.0, math.log(moment) / (self.order - 1)) if moment > 0 else 0.0


class _ThresholdTest(abc.ABC):
    """The shared part of tests by the probability of an event above or below a threshold."""

    @abc.abstractmethod
    def _values(self, low: Floats, high: Floats) -> Floats:
        """The bound, if the event has at least `low` on one side, at most `high` on the other.

        It grows in the first and falls in the second.
        """

    def plan(self, pilot: Pair, sizes: tuple[int, int], share: float) -> LinePlan:
        """The threshold with the largest predicted bound."""
        edges = candidate_edges(*pilot)
        first, second = (np.cumsum(cells)[:-1] for cells in _cells(edges, pilot))
        n_first, n_second = len(pilot[0]), len(pilot[1])
        quantile = -float(ndtri(share))

        def predicted(p: Floats, q: Floats) -> Floats:
            counts = np.minimum((q + 0.5) * (sizes[1] / n_second), sizes[1])
            low = likely_lowers(p * (sizes[0] / n_first), float(sizes[0]), quantile)
            return self._values(low, likely_uppers(counts, float(sizes[1]), quantile))

        above, below = predicted(n_first - first, n_second - second), predicted(first, second)
        is_above = bool(above.max() >= below.max())
        values = above if is_above else below
        where = int(values.argmax())
        return LinePlan(edges=edges[[where]], above=is_above, promise=float(values[where]))

    def bound(self, plan: LinePlan, counts: tuple[Integers, Integers], share: float) -> float:
        """Lower bound in the order of the pair."""
        side = 1 if plan.above else 0
        n_first, n_second = (int(count.sum()) for count in counts)
        low = lower_share(int(counts[0][side]), n_first, share)
        return self._value(low, upper_share(int(counts[1][side]), n_second, share))

    def reach(self, sizes: tuple[int, int], share: float) -> float:
        """The bound if the event is certain under one distribution and absent under the other."""
        low, high = lower_share(sizes[0], sizes[0], share), upper_share(0, sizes[1], share)
        return self._value(low, high)

    def _value(self, low: float, high: float) -> float:
        return float(self._values(np.array([low]), np.array([high]))[0])


@final
@attrs.frozen(kw_only=True)
class EpsilonTest(_ThresholdTest):
    r"""The smallest epsilon at a delta, by the best threshold: $\ln((P(A) - \delta) / Q(A))$.

    Guarantee: for an event A that does not depend on the counted outputs, at most the epsilon that
    the two distributions need at `delta`, except with probability 2 * share.
    """

    delta: float

    @property
    def statistic(self) -> str:
        """What is estimated, in words."""
        return f"epsilon at delta {self.delta:g} by the best threshold"

    def _values(self, low: Floats, high: Floats) -> Floats:
        ratio = np.maximum(low - self.delta, 0.0) / high
        return np.log(np.maximum(ratio, 1.0))


@final
@attrs.frozen(kw_only=True)
class DeltaTest(_ThresholdTest):
    r"""The smallest delta at an epsilon, by the best threshold: $P(A) - e^\epsilon Q(A)$.

    Guarantee: as `EpsilonTest`, for the delta that the two distributions need at `epsilon`.
    """

    epsilon: float

    @property
    def statistic(self) -> str:
        """What is estimated, in words."""
        return f"delta at epsilon {self.epsilon:g} by the best threshold"

    def _values(self, low: Floats, high: Floats) -> Floats:
        # exp may overflow to infinity, which is a bound of 0.
        with np.errstate(over="ignore"):
            return np.asarray(np.maximum(low - np.exp(self.epsilon) * high, 0.0))


def audit_line(
    first: Floats,
    second: Floats,
    claim: Guarantee,
    *,
    confidence: float,
    seed: int,
    pair: tuple[str, str] = ("first", "second"),
    line: str = "the given numbers",
) -> Verdict:
    """Refute a Rényi claim from one number per output, or per run, in each of two worlds.

    Both orders of the pair are tested. The numbers may be anything computed from what was released,
    by a rule that does not depend on them.

    Guarantee: the bound is at most the Rényi divergence of the released outputs, with `confidence`.
    Needs: independent numbers; the claim bounds both orders.

    >>> rng = np.random.default_rng(0)
    >>> claim = Guarantee.unsliced(order=2, epsilon=1.0)
    >>> worlds = rng.normal(2.0, 1.0, 10_000), rng.normal(0.0, 1.0, 10_000)
    >>> audit_line(*worlds, claim, confidence=0.95, seed=0).outcome
    'refuted'
    """
    test = RenyiTest(order=claim.order)
    verdict = audit_lines(
        _along_one_line(first, second, pair=pair, line=line, seed=seed),
        test,
        Claimed(str(claim), "epsilon", claim.epsilon),
        confidence=confidence,
    )
    check_in_reach([verdict], test, 1)
    return verdict


def bound_epsilon(
    first: Floats, second: Floats, *, delta: float, confidence: float, seed: int
) -> float:
    """Lower bound on the epsilon that two worlds need at `delta`, by the best threshold test.

    Guarantee: at most the true epsilon of the pair in the better of both orders, with `confidence`.
    Needs: independent numbers, as `audit_line`.

    >>> rng = np.random.default_rng(0)
    >>> worlds = rng.normal(2.0, 1.0, 10_000), rng.normal(0.0, 1.0, 10_000)
    >>> bound_epsilon(*worlds, delta=1e-5, confidence=0.95, seed=0) > 2
    True
    """
    check_between(0, 1, delta=delta)
    verdict = audit_lines(
        _along_one_line(
            first, second, pair=("first", "second"), line="the given numbers", seed=seed
        ),
        EpsilonTest(delta=delta),
        Claimed(f"epsilon at delta {delta:g}", "epsilon", 0.0),
        confidence=confidence,
    )
    return verdict.lower_bound


def _along_one_line(
    first: Floats, second: Floats, *, pair: tuple[str, str], line: str, seed: int
) -> list[tuple[Comparison, Lines]]:
    check_count(0, seed=seed)
    rng = np.random.default_rng(seed)
    parts = [
        SplitOutputs.of(np.asarray(values, dtype=np.float64).reshape(-1, 1), rng=rng)
        for values in (first, second)
    ]
    named = dict(zip(pair, parts, strict=True))
    lines = Lines(np.ones((1, 1)), (line,))
    return [(comparison, lines) for comparison in both_orders("given", named, [pair])]


def audit_slices(
    comparisons: Sequence[Comparison],
    test: LineTest,
    claimed: Claimed,
    *,
    lines: Lines,
    aggregation: Aggregation,
    confidence: float,
    progress: Progress = silent,
) -> Verdict:
    """Lower bound on a number that is aggregated over the slices of a profile.

    Guarantee: at most the true aggregate of the pair and order that it names, with `confidence`;
    so, if the claim holds for all pairs, the verdict is `refuted` with probability at most 1 -
    `confidence`.
    Needs: independent outputs. Source: def:ave_srd, def:joint_srd.
    """
    n_lines = len(lines.names)
    check_between(0, 1, confidence=confidence)
    failure = 1 - confidence - aggregation.failure_probability
    share = split(failure, 2 * _LIKELY_BINS * n_lines)
    pilots = _Pilots(lines)

    def planned(comparison: Comparison) -> list[LinePlan]:
        pairs = pilots.pairs(comparison)
        return [test.plan(pair, comparison.sizes, share) for pair in pairs]

    pilots.prepare(comparisons)
    plans = in_threads(planned, comparisons, progress)
    promises = [aggregation.of(np.array([cut.promise for cut in cuts])) for cuts in plans]
    best = int(np.argmax(promises))
    chosen, cuts = comparisons[best], plans[best]
    paid = split(failure, 2 * sum(plan.n_bins for plan in cuts))
    counts = _counted(chosen, lines, cuts)
    bounds = np.array(
        [test.bound(plan, count, paid) for plan, count in zip(cuts, counts, strict=True)]
    )
    reach = test.reach(chosen.sizes, split(failure, 4 * n_lines))
    top = int(np.argmax(np.where(aggregation.weights > 0, bounds, -1.0)))
    return chosen.verdict(
        claimed,
        statistic=f"{test.statistic}, {aggregation.words}",
        lower_bound=aggregation.of(bounds),
        refutable_below=aggregation.of(np.full(n_lines, reach)),
        confidence=confidence,
        line=lines.names[top],
    )


def audit_lines(
    candidates: Sequence[tuple[Comparison, Lines]],
    test: LineTest,
    claimed: Claimed,
    *,
    confidence: float,
) -> Verdict:
    """Lower bound on a number of the whole output, along the best line by the pilot.

    Guarantee: as `audit_slices`. Projection to a line cannot increase a divergence, so the bound
    holds for the whole output.
    Needs: independent outputs, and lines that do not depend on the counted ones.
    """
    check_between(0, 1, confidence=confidence)
    share = split(1 - confidence, 2 * _LIKELY_BINS)
    best: tuple[float, int, int, LinePlan] | None = None
    for index, (comparison, lines) in enumerate(candidates):
        for where, pair in enumerate(_Pilots(lines).pairs(comparison)):
            plan = test.plan(pair, comparison.sizes, share)
            if best is None or plan.promise > best[0]:
                best = (plan.promise, index, where, plan)
    if best is None:
        msg = "there is no line to audit; candidates must hold at least one, got none"
        raise ArgumentError(msg)
    _, index, where, plan = best
    chosen, lines = candidates[index]
    paid = split(1 - confidence, 2 * plan.n_bins)
    line = lines._replace(directions=lines.directions[[where]])
    (counts,) = _counted(chosen, line, [plan])
    return chosen.verdict(
        claimed,
        statistic=test.statistic,
        lower_bound=test.bound(plan, counts, paid),
        refutable_below=test.reach(chosen.sizes, split(1 - confidence, 4)),
        confidence=confidence,
        line=lines.names[where],
    )


def _cells(edges: Floats, pilot: Pair) -> tuple[Floats, Floats]:
    first, second = (sorted_counts(edges, values).astype(np.float64) for values in pilot)
    return first, second


def both_orders(
    prior: str, outputs: Mapping[str, SplitOutputs], pairs: Sequence[tuple[str, str]]
) -> list[Comparison]:
    """Every pair in both orders: a divergence is not symmetric."""
    return [
        Comparison(prior, (a, b), (outputs[a], outputs[b]))
        for first, second in pairs
        for a, b in ((first, second), (second, first))
    ]


def outputs_needed(test: LineTest, claimed: float, n_lines: int, confidence: float) -> int | None:
    """Outputs under each secret from which the claim is in reach, within a hundredth.

    None if no number of outputs would do.
    """
    share = split(1 - confidence, 4 * n_lines)

    def reaches(n_outputs: int) -> bool:
        n_counted = n_outputs - math.ceil(PILOT_SHARE * n_outputs)
        return test.reach((n_counted, n_counted), share) > claimed

    high = FEWEST_OUTPUTS
    while not reaches(high):
        high *= 2
        if high > _MOST_OUTPUTS:
            return None
    low = high // 2
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return max(high, FEWEST_OUTPUTS)


def check_in_reach(verdicts: Sequence[Verdict], test: LineTest, n_lines: int) -> None:
    """Refuse an audit that could refute no claim, whatever the outputs are.

    `test` and `n_lines` are those of the first verdict, which the message names.
    """
    if any(verdict.in_reach for verdict in verdicts):
        return
    first = verdicts[0]
    needed = outputs_needed(test, first.claimed, n_lines, first.confidence)
    size = "no number of outputs" if needed is None else f"about {needed} outputs under each secret"
    msg = (
        f"too few outputs for confidence {first.confidence:.6g}: {first.n_outputs} under each "
        f"secret can refute nothing that is claimed; {size} would put {first.claim} in reach"
    )
    raise ArgumentError(msg)


class _Pilots:
    """Pilot outputs along the lines, projected and sorted once for every secret."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._projected: dict[int, Floats] = {}

    def prepare(self, comparisons: Sequence[Comparison]) -> None:
        """All secrets at once, on all cores."""
        parts = {id(part): part for comparison in comparisons for part in comparison.outputs}
        in_threads(self._along, list(parts.values()))

    def pairs(self, comparison: Comparison) -> list[Pair]:
        """Both secrets of a comparison along every line."""
        first, second = (self._along(part) for part in comparison.outputs)
        return list(zip(first, second, strict=True))

    def _along(self, part: SplitOutputs) -> Floats:
        if id(part) not in self._projected:
            self._projected[id(part)] = np.sort(self._lines.along(part.pilot), axis=1)
        return self._projected[id(part)]


def _counted(
    comparison: Comparison, lines: Lines, plans: Sequence[LinePlan]
) -> list[tuple[Integers, Integers]]:
    blocks = range(0, len(plans), _LINES_AT_ONCE)

    def count(start: int) -> list[tuple[Integers, Integers]]:
        chosen = slice(start, start + _LINES_AT_ONCE)
        first, second = (lines.along(part.counted, chosen) for part in comparison.outputs)
        return [
            (bin_counts(plan.edges, p), bin_counts(plan.edges, q))
            for plan, p, q in zip(plans[chosen], first, second, strict=True)
        ]

    return [counts for block in in_threads(count, blocks) for counts in block]
