# SPDX-License-Identifier: Apache-2.0
"""Lower bounds on divergences from outputs, against a sliced claim or along single lines.

A tenth of the outputs, the pilot, decides everything that can be chosen: the pair and its order,
the line, the bins. The others are counted once, so a choice costs no confidence; every probability
that is bounded does: two per bin and slice.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, final

import attrs
import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import (
    check_between,
    check_count,
    check_finite,
    check_unique,
    is_a,
)
from pufferslice._core.threads import in_threads
from pufferslice.audit.bins import (
    best_partition,
    bin_counts,
    candidate_edges,
    likely_lower,
    likely_upper,
    lower_share,
    sorted_counts,
    upper_share,
)
from pufferslice.audit.verdict import Quantity, Verdict, fewest
from pufferslice.claims import Renyi
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.concentration import dkw_halfwidth, split
from pufferslice.sensitivity.profiles import project
from pufferslice.sensitivity.renyi import aggregate_average, aggregate_joint

PILOT_SHARE: Final = 0.1
"""Share of the outputs that is used for choices and is not counted."""

FEWEST_OUTPUTS: Final = 100
"""Fewest outputs under a secret: with fewer the pilot is too small."""

_OUTERMOST: Final = 5
_NO_SPREAD: Final = 1e-12

_LIKELY_BINS: Final = 12
_LINES_AT_ONCE: Final = 16
_LARGEST_EXPONENT: Final = 700.0
"""Largest exponent of e whose power is a float."""

Pair = tuple[Floats, Floats]
"""Sorted values along a line under the first and the second secret."""


@final
@attrs.frozen(eq=False, repr=False)
class SplitOutputs:
    """Outputs under one secret, shuffled: the pilot for choices, the others to count."""

    pilot: Floats
    """Shape (n, dim)."""
    counted: Floats
    """Shape (n, dim)."""

    @classmethod
    def of(cls, values: Floats, *, rng: np.random.Generator) -> "SplitOutputs":
        """Split outputs: a random tenth is the pilot, so their order does not matter."""
        if values.ndim != 2 or values.shape[1] == 0:
            raise ArgumentError(
                f"outputs must have shape (n, dim), dim at least 1; got {values.shape}"
            )
        check_finite(outputs=values)
        if len(values) < FEWEST_OUTPUTS:
            raise ArgumentError(
                f"too few outputs: {len(values)} under one secret, at least {FEWEST_OUTPUTS} are "
                "needed"
            )
        where = rng.permutation(len(values))
        n_pilot = math.ceil(PILOT_SHARE * len(values))
        return cls(values[where[:n_pilot]], values[where[n_pilot:]])

    @property
    def n_outputs(self) -> int:
        """Number of outputs of both parts."""
        return len(self.pilot) + len(self.counted)


class Claimed(NamedTuple):
    """A number that is claimed to bound the quantity of a test."""

    claim: str
    quantity: Quantity
    claimed: float


class Comparison(NamedTuple):
    """Two secrets under one prior, in one order, with the outputs of both."""

    prior: str
    pair: tuple[str, str]
    outputs: tuple[SplitOutputs, SplitOutputs]

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of counted outputs."""
        return len(self.outputs[0].counted), len(self.outputs[1].counted)

    @property
    def n_outputs(self) -> int:
        """Number of outputs of the secret that has fewer."""
        return min(part.n_outputs for part in self.outputs)


def both_orders(
    prior: str, outputs: Mapping[str, SplitOutputs], pairs: Sequence[tuple[str, str]]
) -> list[Comparison]:
    """Every pair in both orders: a divergence is not symmetric."""
    return [
        Comparison(prior, (a, b), (outputs[a], outputs[b]))
        for first, second in pairs
        for a, b in ((first, second), (second, first))
    ]


class Lines(NamedTuple):
    """Directions and their names."""

    directions: Floats
    names: Sequence[str]
    is_outside: Callable[[Floats], npt.NDArray[np.bool_]] | None = None
    """Rule for outputs that count as infinitely far along every direction."""
    coordinates: Callable[[Floats], Floats] | None = None
    """Map from outputs to the coordinates of the directions; None for scaled coordinates."""

    def only(self, where: int) -> "Lines":
        """Keep one of the directions."""
        return self._replace(directions=self.directions[[where]], names=[self.names[where]])

    def along(self, values: Floats, which: slice = slice(None)) -> Floats:
        """Outputs along each direction, one row per direction."""
        mapped = values if self.coordinates is None else self.coordinates(values)
        projected = project(self.directions[which], mapped)
        if self.is_outside is not None:
            projected[:, self.is_outside(values)] = np.inf
        return projected


def outside_of(pilot: Floats) -> Callable[[Floats], npt.NDArray[np.bool_]]:
    """Rule for outputs farther from the centre than the pilot, in the worst coordinate.

    The limit is a little wider than the pilot: by the distance between its outermost outputs.
    """
    center, spread = pilot.mean(axis=0), pilot.std(axis=0)
    spread[spread == 0] = max(float(spread.max()), 1.0) * _NO_SPREAD
    reach = np.sort((np.abs(pilot - center) / spread).max(axis=1))
    limit = 2 * float(reach[-1]) - float(reach[-_OUTERMOST:][0])
    return lambda values: np.asarray((np.abs(values - center) > limit * spread).any(axis=1))


@final
@attrs.frozen(eq=False)
class LinePlan:
    """Cuts of a line, decided on the pilot outputs alone."""

    edges: Floats
    """Edges of the bins, ascending; none if the pilot shows no difference."""
    promise: float = 0.0
    """The lower bound that the pilot predicts; it is not itself a bound."""
    above: bool = True
    """Whether the event of a threshold test lies above the edge."""

    @property
    def n_bins(self) -> int:
        """Number of bins paid for, at least 2: the reach of a test does not depend on outputs."""
        return max(2, len(self.edges) + 1)


@final
@attrs.frozen
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
        """The bins with the largest predicted bound, for `sizes` counted outputs."""
        edges = candidate_edges(*pilot)
        first, second = (sorted_counts(edges, values).astype(np.float64) for values in pilot)
        scale = (sizes[0] / len(pilot[0]), sizes[1] / len(pilot[1]))
        n_outputs = (float(sizes[0]), float(sizes[1]))
        quantile, order = -float(ndtri(share)), self._order(sizes[1], share)
        moment, ends = best_partition((first, second), n_outputs, order, quantile, scale)
        return LinePlan(edges[ends[:-1] == 1], _divergence(order, moment))

    def bound(self, plan: LinePlan, counts: tuple[Integers, Integers], share: float) -> float:
        """Lower bound on the divergence of the first distribution from the second."""
        if not len(plan.edges):
            return 0.0
        n_first, n_second = (int(count.sum()) for count in counts)
        order = self._order(n_second, share)
        moment = math.fsum(
            lower_share(int(p), n_first, share) ** order
            * upper_share(int(q), n_second, share) ** (1 - order)
            for p, q in zip(*counts, strict=True)
            if p
        )
        return _divergence(order, moment)

    def reach(self, sizes: tuple[int, int], share: float) -> float:
        """The bound if no bin has outputs of both distributions."""
        low, high = lower_share(sizes[0], sizes[0], share), upper_share(0, sizes[1], share)
        if low == 0:
            return 0.0
        return max(0.0, self.order * math.log(low) / (self.order - 1) - math.log(high))

    def _order(self, n_outputs: int, share: float) -> float:
        """The largest order up to this one whose moments are floats.

        A divergence grows with its order, so a lower bound at a smaller order is one at this order.
        """
        largest_ratio = -math.log(upper_share(0, n_outputs, share))
        return min(self.order, _LARGEST_EXPONENT / max(1.0, largest_ratio))


def _divergence(order: float, moment: float) -> float:
    return max(0.0, math.log(moment) / (order - 1)) if moment > 0 else 0.0


@final
@attrs.frozen
class ThresholdTest:
    """A number that two distributions need, by an event above or below a threshold.

    Guarantee: for an event that does not depend on the counted outputs, the bound is at most that
    number, except with probability 2 * share.
    """

    statistic: str
    """What is estimated, in words."""
    value: Callable[[Floats, Floats], Floats]
    """The bound if the event has at least the first probability under one distribution, and at most
    the second under the other; it grows in the first and falls in the second."""

    def plan(self, pilot: Pair, sizes: tuple[int, int], share: float) -> LinePlan:
        """The threshold with the largest predicted bound, for `sizes` counted outputs."""
        edges = candidate_edges(*pilot)
        below = [np.cumsum(sorted_counts(edges, values))[:-1] for values in pilot]
        above = [len(values) - counts for values, counts in zip(pilot, below, strict=True)]
        quantile = -float(ndtri(share))

        def predicted(p: Integers, q: Integers) -> Floats:
            expected = p.astype(np.float64) * (sizes[0] / len(pilot[0]))
            low = likely_lower(expected, float(sizes[0]), quantile)
            # Half a count more, because an empty pilot bin is not an empty bin.
            counts = np.minimum((q + 0.5) * (sizes[1] / len(pilot[1])), sizes[1])
            return self.value(low, likely_upper(counts, float(sizes[1]), quantile))

        values = np.concatenate([predicted(*above), predicted(*below)])
        best = int(values.argmax())
        edge = edges[[best % len(edges)]]
        return LinePlan(edge, float(values[best]), above=best < len(edges))

    def bound(self, plan: LinePlan, counts: tuple[Integers, Integers], share: float) -> float:
        """Lower bound in the order of the pair."""
        side = 1 if plan.above else 0
        n_first, n_second = (int(count.sum()) for count in counts)
        low = lower_share(int(counts[0][side]), n_first, share)
        high = upper_share(int(counts[1][side]), n_second, share)
        return float(self.value(np.asarray(low), np.asarray(high)))

    def reach(self, sizes: tuple[int, int], share: float) -> float:
        """The bound if the event is certain under one distribution and absent under the other."""
        low, high = lower_share(sizes[0], sizes[0], share), upper_share(0, sizes[1], share)
        return float(self.value(np.asarray(low), np.asarray(high)))


def epsilon_test(delta: float) -> ThresholdTest:
    r"""The smallest epsilon at a delta, by the best threshold: $\ln((P(A) - \delta) / Q(A))$."""

    def value(low: Floats, high: Floats) -> Floats:
        return np.log(np.maximum(np.maximum(low - delta, 0.0) / high, 1.0))

    return ThresholdTest(f"epsilon at delta {delta:g} by the best threshold", value)


def delta_test(epsilon: float) -> ThresholdTest:
    r"""The smallest delta at an epsilon, by the best threshold: $P(A) - e^\epsilon Q(A)$."""

    def value(low: Floats, high: Floats) -> Floats:
        # exp may overflow to infinity, which is a bound of 0.
        with np.errstate(over="ignore"):
            return np.asarray(np.maximum(low - np.exp(epsilon) * high, 0.0))

    return ThresholdTest(f"delta at epsilon {epsilon:g} by the best threshold", value)


def guess_test() -> ThresholdTest:
    r"""Right guesses between two equally likely secrets by a threshold: $(1 + P(A) - Q(A)) / 2$."""

    def value(low: Floats, high: Floats) -> Floats:
        return np.asarray(0.5 + np.maximum(low - high, 0.0) / 2)

    return ThresholdTest("right guesses by the best threshold", value)


LineTest = RenyiTest | ThresholdTest
"""A number of two distributions on the line that cannot grow when they are binned."""


class Aggregation(NamedTuple):
    """Rule that makes the slices' numbers the claim's number; it grows with each of them."""

    words: str
    weights: Floats
    of: Callable[[Floats], float]
    failure_probability: float = 0.0
    """Probability that the aggregate of true numbers is above the claimed number."""


_ALONE: Final = Aggregation("", np.ones(1), lambda values: float(values[0]))
"""Aggregation of a single line."""


def mean_over(weights: Floats) -> Aggregation:
    """The mean over the slices: of divergences, of epsilons, or of deltas. Source: def:ave_srd."""
    return Aggregation(
        words=f", average over {len(weights)} slices",
        weights=weights,
        of=lambda values: float(aggregate_average(values, weights)),
    )


def joint_over(weights: Floats, order: float) -> Aggregation:
    """The log-moment over the slices of Rényi divergences. Source: def:joint_srd."""
    return Aggregation(
        words=f", joint over {len(weights)} slices",
        weights=weights,
        of=lambda values: float(aggregate_joint(order, values, weights)),
    )


def mean_over_sphere(
    n_directions: int, cap: float, failure_probability: float, n_comparisons: int
) -> Aggregation:
    """The mean over all directions, from a random draw of them (Hoeffding).

    It bounds joint claims too, which are never below average ones. Larger values than `cap` count
    as it. The drawn directions may choose one of `n_comparisons`.
    Source: thm:mc_finite_gaussian_ave_srpp.
    """
    width = cap * dkw_halfwidth(n_directions, split(failure_probability, n_comparisons))
    return Aggregation(
        words=f", average over the sphere, from {n_directions} slices",
        weights=np.full(n_directions, 1 / n_directions),
        of=lambda values: max(0.0, float(np.minimum(values, cap).mean()) - width),
        failure_probability=failure_probability,
    )


def audit_line(
    first: Floats,
    second: Floats,
    claim: Renyi,
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
    Needs: independent numbers; the claim is about the whole output and bounds both orders.

    >>> rng = np.random.default_rng(0)
    >>> claim = Renyi(order=2, epsilon=1.0)
    >>> worlds = rng.normal(2.0, 1.0, 10_000), rng.normal(0.0, 1.0, 10_000)
    >>> audit_line(*worlds, claim, confidence=0.95, seed=0).outcome
    'refuted'
    """
    if not is_a(claim, Renyi):
        raise ArgumentError(
            "claim must be a Rényi guarantee of the whole output, as of Guarantee.unsliced; one "
            f"line cannot refute {claim}"
        )
    check_unique("pair", pair)
    check_between(0, 1, confidence=confidence)
    test, claimed = RenyiTest(claim.order), Claimed(str(claim), "epsilon", claim.epsilon)
    candidates = _along_one_line(first, second, pair=pair, line=line, seed=seed)
    verdict = audit_lines(candidates, test, claimed, confidence=confidence)
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
    check_between(0, 1, delta=delta, confidence=confidence)
    claimed = Claimed(f"epsilon at delta {delta:g}", "epsilon", 0.0)
    candidates = _along_one_line(first, second, pair=("first", "second"), line="", seed=seed)
    return audit_lines(candidates, epsilon_test(delta), claimed, confidence=confidence).lower_bound


def _along_one_line(
    first: Floats, second: Floats, *, pair: tuple[str, str], line: str, seed: int
) -> list[tuple[Comparison, Lines]]:
    check_count(0, seed=seed)
    rng = np.random.default_rng(seed)
    parts = [
        SplitOutputs.of(np.asarray(values, dtype=np.float64).reshape(-1, 1), rng=rng)
        for values in (first, second)
    ]
    lines = Lines(np.ones((1, 1)), (line,))
    named = dict(zip(pair, parts, strict=True))
    return [(comparison, lines) for comparison in both_orders("given", named, [pair])]


def audit_slices(
    comparisons: Sequence[Comparison],
    test: LineTest,
    claimed: Claimed,
    *,
    lines: Lines,
    aggregation: Aggregation,
    confidence: float,
) -> Verdict:
    """Lower bound on a number that is aggregated over the slices of a profile.

    Guarantee: at most the true aggregate of the pair and order that it names, with `confidence`;
    so, if the claim holds for all pairs, the verdict is `refuted` with probability at most 1 -
    `confidence`.
    Needs: independent outputs. Source: def:ave_srd, def:joint_srd.
    """
    failure = 1 - confidence - aggregation.failure_probability
    share = split(failure, 2 * _LIKELY_BINS * len(lines.names))
    parts = list({id(part): part for each in comparisons for part in each.outputs}.values())
    sorted_pilots = in_threads(lambda part: np.sort(lines.along(part.pilot), axis=1), parts)
    pilots = {id(part): pilot for part, pilot in zip(parts, sorted_pilots, strict=True)}

    def choice(comparison: Comparison) -> _Choice:
        pairs = zip(*(pilots[id(part)] for part in comparison.outputs), strict=True)
        plans = [test.plan(pair, comparison.sizes, share) for pair in pairs]
        promise = aggregation.of(np.array([plan.promise for plan in plans]))
        return _Choice(promise, comparison, lines, plans)

    choices = in_threads(choice, comparisons)
    return _verdict(choices, test, claimed, aggregation, confidence)


def audit_lines(
    candidates: Sequence[tuple[Comparison, Lines]],
    test: LineTest,
    claimed: Claimed,
    *,
    confidence: float,
) -> Verdict:
    """Lower bound on a number of the whole output, along the best line by the pilot.

    Guarantee: as `audit_slices`. A number that is computed from an output cannot have a larger
    divergence than the output, so the bound holds for the whole output.
    Needs: independent outputs, and lines that do not depend on the counted ones.
    """
    share = split(1 - confidence, 2 * _LIKELY_BINS)
    choices = []
    for comparison, lines in candidates:
        pilots = (np.sort(lines.along(part.pilot), axis=1) for part in comparison.outputs)
        for where, pair in enumerate(zip(*pilots, strict=True)):
            plan = test.plan(pair, comparison.sizes, share)
            choices.append(_Choice(plan.promise, comparison, lines.only(where), [plan]))
    return _verdict(choices, test, claimed, _ALONE, confidence)


class _Choice(NamedTuple):
    """One comparison along some lines, and where they are cut."""

    promise: float
    comparison: Comparison
    lines: Lines
    plans: Sequence[LinePlan]


def _verdict(
    choices: Sequence[_Choice],
    test: LineTest,
    claimed: Claimed,
    aggregation: Aggregation,
    confidence: float,
) -> Verdict:
    """The verdict by the counted outputs of the choice that promises most."""
    _, comparison, lines, plans = max(choices, key=lambda choice: choice.promise)
    failure = 1 - confidence - aggregation.failure_probability
    bounds = _bounds(comparison, lines, plans, test, failure)
    reach = test.reach(comparison.sizes, split(failure, 4 * len(plans)))
    return Verdict(
        **claimed._asdict(),
        statistic=test.statistic + aggregation.words,
        lower_bound=aggregation.of(bounds),
        confidence=confidence,
        refutable_below=aggregation.of(np.full(len(plans), reach)),
        n_outputs=comparison.n_outputs,
        pair=comparison.pair,
        prior=comparison.prior,
        line=lines.names[int(np.argmax(np.where(aggregation.weights > 0, bounds, -1.0)))],
    )


def _bounds(
    comparison: Comparison, lines: Lines, plans: Sequence[LinePlan], test: LineTest, failure: float
) -> Floats:
    """The lower bound along every line; two intervals are paid for in every bin."""
    share = split(failure, 2 * sum(plan.n_bins for plan in plans))

    def block(start: int) -> list[float]:
        chosen = slice(start, start + _LINES_AT_ONCE)
        first, second = (lines.along(part.counted, chosen) for part in comparison.outputs)
        return [
            test.bound(plan, (bin_counts(plan.edges, p), bin_counts(plan.edges, q)), share)
            for plan, p, q in zip(plans[chosen], first, second, strict=True)
        ]

    return np.concatenate(in_threads(block, range(0, len(plans), _LINES_AT_ONCE)))


def outputs_needed(test: LineTest, claimed: float, n_lines: int, confidence: float) -> int | None:
    """Outputs under each secret from which the claim is in reach, within a hundredth.

    None if no number of outputs would do.
    """
    share = split(1 - confidence, 4 * n_lines)

    def reaches(n_outputs: int) -> bool:
        n_counted = n_outputs - math.ceil(PILOT_SHARE * n_outputs)
        return test.reach((n_counted, n_counted), share) > claimed

    return fewest(reaches, least=FEWEST_OUTPUTS, parts=100)


def check_in_reach(verdicts: Sequence[Verdict], test: LineTest, n_lines: int) -> None:
    """Refuse an audit that could refute no claim, whatever the outputs are.

    `test` and `n_lines` are those of the first verdict, which the message names.
    """
    if any(verdict.in_reach for verdict in verdicts):
        return
    first = verdicts[0]
    needed = outputs_needed(test, first.claimed, n_lines, first.confidence)
    size = "no number of outputs" if needed is None else f"about {needed} outputs under each secret"
    raise ArgumentError(
        f"too few outputs for confidence {first.confidence:.6g}: {first.n_outputs} under each "
        f"secret can refute nothing that is claimed; {size} would put {first.claim} in reach"
    )
