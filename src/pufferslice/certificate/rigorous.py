# SPDX-License-Identifier: Apache-2.0
r"""Proof of the claim of a release in ball arithmetic, where every number carries its error.

A ball is an interval that is proved to hold the exact number. Each claim becomes one ball, its
*excess*: what the noise costs, less what the claim allows. A claim is proved where the whole ball
is at most 0, refuted where it is above 0, and left undecided otherwise.

The numbers of the evidence are taken as they are: exact, except for what they say of their own
rounding. Distances under couplings and covariances in scaled coordinates were rounded when they
were made, and count with that error. The formulas are those of `claims`, without its room for
rounding: a cost that is stated there is at least the one here.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, final

import attrs
import numpy as np

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats
from pufferslice._core.sampler import INTEGER_DELTA, ROUNDING_DELTA
from pufferslice._core.search import smallest_epsilons
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.statement import ReleaseStatement
from pufferslice.claims import Claim, Guarantee, Method
from pufferslice.errors import MissingExtraError
from pufferslice.sensitivity.gaussian import SCALING, GaussianPairs
from pufferslice.sensitivity.renyi import CLAIM_ORDERS
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.sensitivity import Full, Slices
from pufferslice.sensitivity.tables import DistanceTables, GapTables, MatchingTables
from pufferslice.sensitivity.variation import LOW_ORDERS

try:
    from flint import arb, arb_mat, ctx

    from pufferslice.certificate.balls import (
        gaussian_delta,
        grid_of,
        largest_of,
        least_of,
        log_det,
        noise_delta,
    )
    from pufferslice.certificate.row_proof import mean_square_excess, row_excess
except ImportError as error:
    raise MissingExtraError(
        "a rigorous verification needs python-flint: pip install 'pufferslice[rigorous]'"
    ) from error

Outcome = Literal["proved", "refuted", "not covered"]

Rows = list[list[arb]]
"""Numbers by instance, and for each instance by slice or coupling."""

_PRECISIONS: Final = (128, 512)
"""Bits of the arithmetic; the second is used where the first leaves a claim undecided."""
_NEAR: Final = 2.0**-42
"""Relative distance from a float at which a bound on an epsilon or a least variance is proved."""
_FURTHER: Final = 2.0**-32
"""Relative distance below a float at which a bound is proved; floats were rounded up."""


@final
@attrs.frozen(kw_only=True)
class Finding:
    """One stated number, and whether it is proved."""

    stated: str
    """The claim, in words."""
    outcome: Outcome
    why: str
    """Bound on the excess over the stated number, or what is not covered."""

    def __str__(self) -> str:
        return f"{self.outcome}: {self.stated} ({self.why})"


@final
@attrs.frozen(kw_only=True)
class Proof:
    """The outcome of a rigorous verification: the claim, and the stated unsliced numbers."""

    findings: tuple[Finding, ...]

    @property
    def outcome(self) -> Outcome:
        """`refuted` if any finding is, else `not covered` if any is not, else `proved`."""
        outcomes = {finding.outcome for finding in self.findings}
        if "refuted" in outcomes:
            return "refuted"
        return "not covered" if "not covered" in outcomes else "proved"

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return {"outcome": self.outcome, "findings": [attrs.asdict(f) for f in self.findings]}

    def __str__(self) -> str:
        lines = "\n".join(f"  - {finding}" for finding in self.findings)
        return f"{self.outcome.upper()} in ball arithmetic, from the evidence:\n{lines}"


def prove(certificate: Certificate) -> Proof:
    """Decide the claim and the unsliced numbers of a release from its evidence, in ball arithmetic.

    Guarantee: a number that is `proved` bounds, in exact arithmetic, what the formulas give for the
    tables or Gaussian pairs of the evidence and the stated noise; one that is `refuted` does not.
    Needs: statement and evidence fit together, which `verify` checks before it calls this.
    """
    statement, evidence = certificate.statement, certificate.evidence
    if not isinstance(evidence, Evidence) or not isinstance(statement, ReleaseStatement):
        stated = "the claim"
        why = "training runs, budgets and certificates without evidence are not"
        return Proof(findings=(Finding(stated=stated, outcome="not covered", why=why),))
    noise_std = statement.noise.std
    findings = [
        _finding(evidence, stated, partial(_excess, evidence, claim, noise_std))
        for stated, claim in _stated(statement)
    ]
    rows, stated_square = evidence.full.differences, statement.mean_square
    if stated_square is not None and isinstance(rows, RowDifference):
        excess = partial(mean_square_excess, evidence.full, rows, stated_square, noise_std)
        findings.append(_finding(evidence, f"mean_square {stated_square!r}", excess))
    return Proof(findings=tuple(findings))


def _stated(statement: ReleaseStatement) -> Iterator[tuple[str, Claim]]:
    """List the claim itself, and the unsliced numbers as claims of their own."""
    claim, unsliced = statement.claim, statement.unsliced
    yield f"the claim {claim}", claim
    if unsliced.epsilon:
        bound = Guarantee.unsliced(order=unsliced.order, epsilon=unsliced.epsilon)
        yield f"unsliced.epsilon {unsliced.epsilon!r}", bound
    if unsliced.guess is not None and unsliced.guess > 1 / 2:
        yield f"unsliced.guess {unsliced.guess!r}", Guarantee.guess(at_most=unsliced.guess)


def _finding(evidence: Evidence, stated: str, excess_of: Callable[[], arb]) -> Finding:
    if evidence.are_equal:
        return Finding(stated=stated, outcome="proved", why="all distributions are equal")
    excess = arb.nan()
    for bits in _PRECISIONS:
        with ctx.workprec(bits):
            excess = excess_of()
            if excess <= 0:
                room = float((-excess).lower())
                return Finding(stated=stated, outcome="proved", why=f"with room {room:.3g}")
            if excess > 0:
                over = float(excess.lower())
                return Finding(stated=stated, outcome="refuted", why=f"exceeded by {over:.3g}")
    why = f"balls do not decide it: the excess is {excess.str(3)}"
    return Finding(stated=stated, outcome="not covered", why=why)


def _excess(evidence: Evidence, claim: Claim, noise_std: float) -> arb:
    if claim.method is not None:
        return _sliced_excess(evidence, claim, claim.method, arb(noise_std))
    if claim.is_sliced:
        return _sphere_excess(evidence.full, claim, arb(noise_std))
    return _whole_excess(evidence.full, claim, arb(noise_std))


def _whole_excess(full: Full, claim: Claim, noise_std: arb) -> arb:
    """Bound the excess of a claim about the whole output, the largest over instances."""
    excess_of = _WHOLE_EXCESSES.get(type(full.differences))
    if excess_of is None or (full.missing.any() and claim.hockey_stick is None):
        return arb.nan()
    return excess_of(full, full.differences, claim, noise_std)


def _coupled_excess(full: Full, tables: MatchingTables, claim: Claim, noise_std: arb) -> arb:
    """Bound the excess of a claim about the whole output from coupled distances."""
    # A distance is a sum of squares, each addition rounded.
    grid, longer = grid_of(full.dim), 1 + (full.dim + 8) * arb(UNIT_ROUNDOFF)
    if claim.has_order:
        a = arb(claim.reported_order) - 1
        rate = (a + 1) * a / 2 * longer
        moments = _row_means(
            tables, lambda gap, *_: (rate * (gap / noise_std + grid) ** 2).exp(), arb(1)
        )
        return largest_of([least_of(row).log() / a for row in moments]) - claim.bound
    if claim.hockey_stick is None:
        return arb.nan()
    epsilon, limit = map(arb, claim.hockey_stick)
    deltas = _row_means(
        tables, lambda gap, *_: gaussian_delta((gap / noise_std + grid) * longer, epsilon), arb(0)
    )
    covered = [
        least_of(row) * (arb(1) - mass) + mass
        for row, mass in zip(deltas, full.missing.tolist(), strict=True)
    ]
    return largest_of(covered) + noise_delta(full.dim, INTEGER_DELTA, epsilon) - limit


def _sliced_excess(evidence: Evidence, claim: Claim, method: Method, noise_std: arb) -> arb:
    """Bound the excess of a claim along slices, the largest over instances."""
    slices = evidence.required_slices()
    tables, weights = slices.differences, slices.profile.weights.tolist()
    if isinstance(tables, GapTables) and method.envelope == "worst_gap":
        tables = _of_worst(tables)
    if claim.hockey_stick is not None and isinstance(tables, GapTables):
        return _sliced_delta_excess(slices, tables, claim, noise_std)
    if not claim.has_order or slices.missing.any():
        return arb.nan()
    a = arb(claim.reported_order) - 1
    if isinstance(tables, GaussianPairs):
        directions = slices.profile.directions.tolist()
        columns = [arb_mat([[arb(x)] for x in row]) for row in directions]
        costs = [
            [_gaussian_cost([piece.along(column) for piece in pieces], a + 1) for column in columns]
            for pieces in _pieces(tables, noise_std)
        ]
    else:
        rate, stds, grid = (a + 1) * a / 2, _stds(slices, noise_std), grid_of(slices.profile.dim)
        moments = _row_means(
            tables, lambda gap, _, along: (rate * (gap / stds[along] + grid) ** 2).exp(), arb(1)
        )
        costs = [[moment.log() / a for moment in row] for row in moments]
    if method.rule == "closed_form":
        costs = [[largest_of(along) for along in zip(*costs, strict=True)]]
        if claim.notion == "joint" and slices.sphere is None:
            weighted_costs = [
                cost for cost, weight in zip(costs[0], weights, strict=True) if weight
            ]
            return largest_of(weighted_costs) - claim.bound
    # For drawn directions, the Hoeffding term times the largest cost or moment.
    halfwidth = largest = arb(0)
    if slices.sphere is not None and evidence.confidence is not None:
        share = evidence.confidence.sphere_probability
        halfwidth = ((2 / arb(share)).log() / (2 * len(weights))).sqrt()
        reach = slices.sphere.diameter / noise_std + grid_of(slices.profile.dim)
        largest = (a + 1) / 2 * reach**2
    if claim.notion == "average":
        totals = [_weighted(row, weights) + halfwidth * largest for row in costs]
    else:
        added = halfwidth * (a * largest).expm1()
        moments = [[(a * cost).exp() for cost in row] for row in costs]
        totals = [(_weighted(row, weights) + added).log() / a for row in moments]
    return largest_of(totals) - claim.bound


def _sphere_excess(full: Full, claim: Claim, noise_std: arb) -> arb:
    """Bound the excess along the whole sphere, the largest over instances; see `claims.sliced`."""
    average = claim.notion == "average"
    if full.differences is None or full.missing.any() or full.shape is not None:
        return arb.nan()
    if average and not full.is_single:
        return arb.nan()
    a, dim = arb(claim.reported_order) - 1, full.dim

    def moment(x: arb) -> arb:
        """Compute the average cost of a slice, as a moment, for two points or Gaussians."""
        return (x / dim).exp() if average else x.hypgeom_1f1(arb(1) / 2, arb(dim) / 2)

    if isinstance(full.differences, GaussianPairs):
        ratios = _squared_ratios(full.differences, noise_std)
        totals = [
            sum((share * moment((a + 1) * a / 2 * ratio) for share, ratio in pieces), arb(0))
            for pieces in ratios
        ]
        whole = _gaussian_excesses(full.differences, claim.whole, noise_std)
        # Not a number where the least variance is not proved; the whole output may do.
        excesses = [
            along if (along := total.log() / a - claim.bound) <= 0 else in_full
            for total, in_full in zip(totals, whole, strict=True)
        ]
        # Spreads are bounded from below, so that this refutes nothing.
        return excess if (excess := largest_of(excesses)) <= 0 else arb.nan()
    if not isinstance(full.differences, MatchingTables):
        return arb.nan()
    # A distance is a sum of squares, each addition rounded.
    rate, grid = (a + 1) * a / 2 * (1 + (dim + 8) * arb(UNIT_ROUNDOFF)), grid_of(dim)
    moments = _row_means(
        full.differences, lambda gap, *_: moment(rate * (gap / noise_std + grid) ** 2), arb(1)
    )
    return largest_of([least_of(row).log() / a for row in moments]) - claim.bound


def _squared_ratios(pairs: GaussianPairs, noise_std: arb) -> list[list[tuple[arb, arb]]]:
    """Return the share of each piece, and its squared shift over the least variance."""
    ratios: list[list[tuple[arb, arb]]] = []
    for pieces in _pieces(pairs, noise_std):
        row: list[tuple[arb, arb]] = []
        for piece in pieces:
            spread = np.array([[float(x.mid()) for x in line] for line in piece.total.tolist()])
            # Floats find the least variance, and balls prove a bound next to it.
            least = arb(float(np.linalg.eigvalsh(spread).min()) * (1 - _NEAR))
            rest = arb_mat(piece.total)
            for i in range(pairs.dim):
                rest[i, i] -= least
            proved = piece.same_spread() and least > 0 and log_det(rest).is_finite()
            square = (piece.shift.transpose() * piece.shift)[0, 0]
            row.append((piece.share, square / least if proved else arb.nan()))
        ratios.append(row)
    return ratios


def _sliced_delta_excess(slices: Slices, tables: GapTables, claim: Claim, noise_std: arb) -> arb:
    """Bound the excess of the mean delta (joint) or of the mean epsilon (average) over slices."""
    stick = claim.hockey_stick
    if stick is None:
        return arb.nan()
    epsilon, limit = stick
    weights, stds = slices.profile.weights.tolist(), _stds(slices, noise_std)
    missing, grid = slices.missing[:, None], grid_of(slices.profile.dim)

    def deltas(epsilons: Floats) -> Rows:
        found = _row_means(
            tables,
            lambda gap, instance, along: gaussian_delta(
                gap / stds[along] + grid, arb(epsilons[instance, along])
            ),
            arb(0),
        )
        return [
            [delta * (arb(1) - mass) + mass for delta in row]
            for row, mass in zip(found, slices.missing.tolist(), strict=True)
        ]

    shape = (tables.n_instances, len(weights))
    if claim.notion == "joint":
        at_claim = deltas(np.full(shape, epsilon))
        return largest_of([_weighted(row, weights) for row in at_claim]) - limit
    if not (missing < limit).all():
        return arb.nan()
    # Floats find the epsilon of each slice, and balls prove bounds next to it.
    std, margin = float(noise_std), float(grid * noise_std)
    near = smallest_epsilons(
        lambda epsilons: tables.deltas(epsilons, std, margin) * (1 - missing),
        np.ones(shape),
        np.broadcast_to(limit - missing, shape),
    )
    if not np.isfinite(near).all():
        return arb.nan()
    near[tables.equal] = 0.0
    low, high = near * (1 - _FURTHER), near * (1 + _NEAR)
    if not all(delta <= limit for row in deltas(high) for delta in row):
        return arb.nan()
    most = largest_of([_weighted(row, weights) for row in _exact(high)]) - epsilon
    if most <= 0:
        return most
    exceeds = np.array([[delta > limit for delta in row] for row in deltas(low)])
    low[~exceeds] = 0.0
    least = largest_of([_weighted(row, weights) for row in _exact(low)]) - epsilon
    return least if least > 0 else arb.nan()


def _of_worst(tables: GapTables) -> GapTables:
    """Move all mass of a row to its worst gap."""
    n_rows = len(tables.starts) - 1
    return attrs.evolve(
        tables,
        starts=np.arange(n_rows + 1),
        gaps=tables.gaps[tables.starts[:-1]],
        counts=np.ones(n_rows, dtype=np.int64),
        totals=np.ones_like(tables.totals),
    )


def _stds(slices: Slices, noise_std: arb) -> list[arb]:
    """Compute the noise along each slice: a direction has length 1 up to rounding."""
    return [noise_std * _dot(row, row).sqrt() for row in _exact(slices.profile.directions)]


def _row_means(
    tables: DistanceTables, value: Callable[[arb, int, int], arb], if_equal: arb
) -> Rows:
    """Average value(gap, instance, slice) over each row; equal instances get a constant."""
    gaps, counts = tables.gaps.tolist(), tables.counts.tolist()
    means: Rows = [[] for _ in range(tables.n_instances)]
    for row, (start, stop) in enumerate(pairwise(tables.starts.tolist())):
        along, instance = divmod(row, tables.n_instances)
        mean = if_equal
        if not tables.equal[instance]:
            mean = arb(0)
            for entry in range(start, stop):
                mean += counts[entry] * value(arb(gaps[entry]), instance, along)
            mean /= int(tables.totals[instance])
        means[instance].append(mean)
    return means


class _Piece(NamedTuple):
    """Two Gaussians: their shift, the noisy spread of the second, and how much wider the first is.

    Components that are equal need none of the three.
    """

    share: arb
    shift: arb_mat
    total: arb_mat
    wider: arb_mat

    def reversed(self) -> "_Piece":
        return _Piece(self.share, self.shift, self.total + self.wider, -1 * self.wider)

    def along(self, direction: arb_mat) -> "_Piece":
        """Project both Gaussians on a column; its length does not matter."""
        row = direction.transpose()
        spreads = (row * spread * direction for spread in (self.total, self.wider))
        return _Piece(self.share, row * self.shift, *spreads)

    def is_equal(self) -> bool:
        return all(entry == 0 for entry in (*self.shift.entries(), *self.wider.entries()))

    def same_spread(self) -> bool:
        return all(entry == 0 for entry in self.wider.entries())

    def divergence(self, order: arb) -> arb:
        """Divergence of the first Gaussian; NaN unless all spreads are positive definite."""
        if self.is_equal():
            return arb(0)
        a = order - 1
        mixed = self.total - a * self.wider
        spread = arb(0)
        if not self.same_spread():
            first, second = log_det(self.total + self.wider), log_det(self.total)
            spread = (order * second - a * first - log_det(mixed)) / (2 * a)
        return spread + order / 2 * self.squared_shift(mixed)

    def squared_shift(self, spread: arb_mat) -> arb:
        """Squared length of the shift, in standard deviations of `spread`."""
        if not log_det(spread).is_finite():
            return arb.nan()
        return (self.shift.transpose() * spread.solve(self.shift))[0, 0]

    def variation(self) -> arb:
        """Bound on the total variation between the spreads alone, by Pinsker's inequality."""
        if self.same_spread():
            return arb(0)
        return least_of([_pinsker(self), _pinsker(self.reversed())]).min(arb(1))


def _pinsker(piece: _Piece) -> arb:
    """Bound a total variation by half the sum of x - ln(1 + x) over relative excesses x.

    For nearly equal spreads that difference cancels; with f^2 the sum of their squares it is at
    most -f - ln(1 - f), because sums of higher powers are at most those of f. This grows with f,
    so that the upper end of its ball does, which is exact.
    """
    excess = log_det(piece.total + piece.wider) - log_det(piece.total)
    if not excess.is_finite():
        return arb.nan()
    relative = piece.total.solve(piece.wider)
    divergence = relative.trace() - excess
    size = (relative * relative).trace().nonnegative_part().sqrt().upper()
    if size < 1:
        divergence = divergence.min(-size - (-size).log1p())
    # By ends: the root of a ball that reaches below 0 would be far too large.
    low, high = ((end / 4).max(arb(0)).sqrt() for end in (divergence.lower(), divergence.upper()))
    return low.union(high)


def _pieces(pairs: GaussianPairs, noise_std: arb) -> list[list[_Piece]]:
    """Return the pieces of each instance, every number with the error of its rounding."""
    pieces: list[list[_Piece]] = [[] for _ in range(pairs.n_instances)]
    totals = [int(pairs.counts[pairs.owners == owner].sum()) for owner in range(len(pieces))]
    noise = arb_mat(pairs.dim, pairs.dim)
    for i in range(pairs.dim):
        noise[i, i] = noise_std**2
    for i, owner in enumerate(pairs.owners.tolist()):
        means, covs = pairs.means[i], pairs.covs[i]
        pieces[owner].append(
            _Piece(
                arb(int(pairs.counts[i])) / totals[owner],
                _difference(means[:, :, None], UNIT_ROUNDOFF),
                _matrix(covs[1], SCALING) + noise,
                _difference(covs, SCALING),
            )
        )
    return pieces


def _difference(two: Floats, error: float) -> arb_mat:
    """Subtract; equal numbers give exactly 0, because numbers that differ were kept apart."""
    first, second = _matrix(two[0], error), _matrix(two[1], error)
    result = first - second
    for i, j in zip(*np.nonzero(two[0] == two[1]), strict=True):
        result[int(i), int(j)] = arb(0)
    return result


def _matrix(numbers: Floats, error: float) -> arb_mat:
    """Enclose each number in a ball with this relative radius, or with the smallest float."""
    least = math.ulp(0.0)
    return arb_mat([[arb(x, abs(x) * error + least) for x in row] for row in numbers.tolist()])


def _gaussian_cost(pieces: Sequence[_Piece], order: arb) -> arb:
    """Return the larger of both orders of the pair, for pieces joined by convexity."""
    a, both = order - 1, []
    for sides in (pieces, [piece.reversed() for piece in pieces]):
        moment = arb(0)
        for piece in sides:
            moment += piece.share * (a * piece.divergence(order)).exp()
        both.append(moment.log() / a)
    return both[0].max(both[1])


def _gaussian_excesses(pairs: GaussianPairs, claim: Claim, noise_std: arb) -> list[arb]:
    instances = _pieces(pairs, noise_std)
    if claim.has_order:
        order = arb(claim.reported_order)
        return [_gaussian_cost(pieces, order) - claim.bound for pieces in instances]
    if claim.hockey_stick is None:
        return [arb.nan()]
    epsilon, limit = map(arb, claim.hockey_stick)
    limit -= noise_delta(pairs.dim, ROUNDING_DELTA, epsilon)
    return [_gaussian_delta_excess(pieces, epsilon, limit) for pieces in instances]


def _gaussian_delta_excess(pieces: Sequence[_Piece], epsilon: arb, limit: arb) -> arb:
    """Bound the excess of a delta from means and spreads, or from divergences of several orders."""
    split = arb(0)
    for piece in pieces:
        if not piece.is_equal():
            one, other = (piece.squared_shift(p.total) for p in (piece, piece.reversed()))
            square = one.min(other) if epsilon == 0 else one.max(other)
            split += piece.share * (gaussian_delta(square.sqrt(), epsilon) + piece.variation())
    excesses = [split - limit]
    for number in LOW_ORDERS if epsilon == 0 else CLAIM_ORDERS:
        if excesses[-1] <= 0:
            return excesses[-1]
        order = arb(number)
        a, cost = order - 1, _gaussian_cost(pieces, order)
        if epsilon == 0:
            excesses.append(cost - _least_divergence(order, limit.lower()))
        else:
            moment = (a * (cost - epsilon) + a * (a / order).log()).exp()
            excesses.append(moment / order - limit)
    return least_of(excesses)


def _least_divergence(order: arb, apart: arb) -> arb:
    r"""Least divergence of two distributions whose total variation is `apart`, exact.

    See `total_variation_bound`. The moment is convex in q, so it is at least its value less its
    slope at any q, as q moves by less than 1.
    """
    if not 0 < apart < 1:
        return arb.nan()
    if order * apart >= 1:
        return -(1 - apart).log()
    a, low, high = order - 1, (order - 1) * apart, 1 - apart

    def moment_and_slope(q: arb) -> tuple[arb, arb]:
        value, slope = arb(0), arb(0)
        for p, base, sign in ((q + apart, q, 1), (1 - q - apart, 1 - q, -1)):
            power = (p / base) ** a
            value += p * power
            slope += sign * power * (order - a * p / base)
        return value, slope

    middle = ((low + high) / 2).mid()
    for _ in range(ctx.prec):
        slope = moment_and_slope(middle)[1]
        low, high = (low, middle) if slope.mid() > 0 else (middle, high)
        middle = ((low + high) / 2).mid()
    value, slope = moment_and_slope(middle)
    return (value - abs(slope)).union(value).log() / a


def _exact(numbers: Floats) -> Rows:
    return [[arb(x) for x in row] for row in numbers.tolist()]


def _dot(first: Sequence[arb], second: Sequence[arb]) -> arb:
    return sum((a * b for a, b in zip(first, second, strict=True)), arb(0))


def _weighted(values: Sequence[arb], weights: Sequence[float]) -> arb:
    """Average over slices; weights are shares of their sum."""
    shares = [arb(weight) for weight in weights]
    return _dot(values, shares) / sum(shares, arb(0))


_WHOLE_EXCESSES: Final[Mapping[type, Callable[..., arb]]] = {
    MatchingTables: _coupled_excess,
    GaussianPairs: lambda _, pairs, claim, std: largest_of(_gaussian_excesses(pairs, claim, std)),
    RowDifference: row_excess,
}
"""Function that computes the excess of a claim, by the kind of difference."""
