# SPDX-License-Identifier: Apache-2.0
"""What can be tested along one line: a Rényi divergence, an epsilon at a delta, a delta at one."""

import abc
import math
from typing import Protocol, final

import attrs
import numpy as np
from scipy.special import ndtri

from pufferslice.arrays import Floats, Integers, locked, same
from pufferslice.audit.binning import (
    best_partition,
    candidate_edges,
    likely_lowers,
    likely_uppers,
    lower_share,
    sorted_counts,
    upper_share,
)

Pair = tuple[Floats, Floats]
"""Sorted values along a line under the first and the second secret."""


@final
@attrs.frozen(kw_only=True)
class LinePlan:
    """Where a line is cut, decided on the pilot outputs alone."""

    edges: Floats = attrs.field(converter=locked, eq=same)
    """Ascending; none if the pilot saw nothing to gain."""
    above: bool = True
    """Of a threshold test: whether the event is to lie above the edge."""
    promise: float = 0.0
    """The lower bound that the pilot expects; no bound itself."""

    @property
    def n_bins(self) -> int:
        """At least 2 are paid for, so that the reach of a test is known before any output is."""
        return max(2, len(self.edges) + 1)


class LineTest(Protocol):
    """A number of two laws on the line that cannot grow when they are cut into bins."""

    @property
    def statistic(self) -> str:
        """What is estimated, in words."""
        ...

    def plan(self, pilot: Pair, sizes: tuple[int, int], share: float) -> LinePlan:
        """Where to cut; `sizes` outputs will be counted, each of about `share` doubt."""
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
        """The partition that promises most."""
        edges = candidate_edges(*pilot)
        expected = _cells(edges, pilot)
        scale = (sizes[0] / len(pilot[0]), sizes[1] / len(pilot[1]))
        n_outputs = (float(sizes[0]), float(sizes[1]))
        found, ends = best_partition(expected, n_outputs, self.order, -float(ndtri(share)), scale)
        return LinePlan(edges=edges[ends[:-1] == 1], promise=self._divergence(found))

    def bound(self, plan: LinePlan, counts: tuple[Integers, Integers], share: float) -> float:
        """Lower bound on the divergence of the first law from the second."""
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
        """When all outputs of one law lie where none of the other does."""
        low, high = lower_share(sizes[0], sizes[0], share), upper_share(0, sizes[1], share)
        if low == 0:
            return 0.0
        return max(0.0, self.order * math.log(low) / (self.order - 1) - math.log(high))

    def _divergence(self, moment: float) -> float:
        return max(0.0, math.log(moment) / (self.order - 1)) if moment > 0 else 0.0


class _ThresholdTest(abc.ABC):
    """What is the same of tests by the probability of one event, above or below a threshold."""

    @abc.abstractmethod
    def _values(self, low: Floats, high: Floats) -> Floats:
        """The bound, if the event has at least `low` under one law, at most `high` under the other.

        It grows in the first and falls in the second.
        """

    def plan(self, pilot: Pair, sizes: tuple[int, int], share: float) -> LinePlan:
        """The threshold that promises most."""
        edges, above, below = _tails(pilot, sizes, share)
        return _best_threshold(edges, self._values(*above), self._values(*below))

    def bound(self, plan: LinePlan, counts: tuple[Integers, Integers], share: float) -> float:
        """Lower bound in the order of the pair."""
        return self._value(*_event(plan, counts, share))

    def reach(self, sizes: tuple[int, int], share: float) -> float:
        """When the event is certain under one law and never seen under the other."""
        low, high = lower_share(sizes[0], sizes[0], share), upper_share(0, sizes[1], share)
        return self._value(low, high)

    def _value(self, low: float, high: float) -> float:
        return float(self._values(np.array([low]), np.array([high]))[0])


@final
@attrs.frozen(kw_only=True)
class EpsilonTest(_ThresholdTest):
    r"""The smallest epsilon at a delta, by the best threshold: $\ln((P(A) - \delta) / Q(A))$.

    Guarantee: for an event A that does not depend on the counted outputs, at most the epsilon that
    the two laws need at `delta`, except with probability 2 * share.
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

    Guarantee: as `EpsilonTest`, for the delta that the two laws need at `epsilon`.
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


def _cells(edges: Floats, pilot: Pair) -> tuple[Floats, Floats]:
    first, second = (sorted_counts(edges, values).astype(np.float64) for values in pilot)
    return first, second


def _tails(
    pilot: Pair, sizes: tuple[int, int], share: float
) -> tuple[Floats, tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Candidate edges, and the likely bounds (first law low, second law high) on both sides."""
    edges = candidate_edges(*pilot)
    first, second = (np.cumsum(cells)[:-1] for cells in _cells(edges, pilot))
    quantile = -float(ndtri(share))

    def likely(p: Floats, q: Floats) -> tuple[Floats, Floats]:
        scales = sizes[0] / len(pilot[0]), sizes[1] / len(pilot[1])
        counts = np.minimum((q + 0.5) * scales[1], sizes[1])
        low = likely_lowers(p * scales[0], float(sizes[0]), quantile)
        return low, likely_uppers(counts, float(sizes[1]), quantile)

    n_first, n_second = len(pilot[0]), len(pilot[1])
    return edges, likely(n_first - first, n_second - second), likely(first, second)


def _best_threshold(edges: Floats, above: Floats, below: Floats) -> LinePlan:
    upper, lower = int(above.argmax()), int(below.argmax())
    is_above = bool(above[upper] >= below[lower])
    where, promise = (upper, above[upper]) if is_above else (lower, below[lower])
    return LinePlan(edges=edges[[where]], above=is_above, promise=float(promise))


def _event(plan: LinePlan, counts: tuple[Integers, Integers], share: float) -> tuple[float, float]:
    """Lower bound of the event under the first law, upper bound under the second."""
    side = 1 if plan.above else 0
    n_first, n_second = (int(count.sum()) for count in counts)
    low = lower_share(int(counts[0][side]), n_first, share)
    return low, upper_share(int(counts[1][side]), n_second, share)
