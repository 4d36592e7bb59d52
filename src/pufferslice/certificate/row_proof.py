# SPDX-License-Identifier: Apache-2.0
"""Proof in ball arithmetic of claims about rows that differ; see `sensitivity.shells`.

Floats choose the ball, the shells, and the numbers in each bound; balls evaluate them again from
the moments and layers of the evidence.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final, final

import attrs
import numpy as np
from flint import arb, arb_mat

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats
from pufferslice._core.sampler import INTEGER_DELTA
from pufferslice.certificate.balls import (
    gaussian_delta,
    grid_of,
    largest_of,
    least_of,
    log_det,
    noise_delta,
)
from pufferslice.claims import Claim
from pufferslice.sensitivity.flags import FlagSum
from pufferslice.sensitivity.hockey_stick import log_peaks
from pufferslice.sensitivity.layers import MOMENT_ERROR
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.sensitivity import Full
from pufferslice.sensitivity.shells import Cut, RowSum

_MOST_TERMS: Final = 4096
"""Most terms of a finite sum in balls."""
_NEAR: Final = 2.0**-34
"""Relative width of the brackets that floats find and balls prove."""
_FAR: Final = 2.0**-30
"""Relative distance above an eigenvalue of floats at which balls surely prove a bound."""
_NEAR_ZERO: Final = 2.0**-20
_ENDS: Final = (1e-12, 1e9)
"""Squared distances between which floats look for a point of contact."""
_HALVINGS: Final = 60
_NEGLIGIBLE: Final = -60.0
"""Logarithm of a bound on a shell that need not be better."""


def row_excess(full: Full, rows: RowDifference, claim: Claim, noise_std: arb) -> arb:
    """Bound the excess of a claim about rows, the largest over instances."""
    proof = _Proof(full=full, rows=rows, noise_std=noise_std)
    instances = range(rows.n_instances)
    if claim.has_order:
        order = arb(claim.reported_order)
        costs = [proof.log_moment(i, order * (order - 1) / 2) / (order - 1) for i in instances]
        excess, is_sum = largest_of(costs) - claim.bound, proof.has_flags
    elif claim.hockey_stick is not None:
        epsilon, limit = map(arb, claim.hockey_stick)
        deltas = [proof.delta(i, epsilon) for i in instances]
        excess = largest_of(deltas) + noise_delta(full.dim, INTEGER_DELTA, epsilon) - limit
        is_sum = proof.has_flags or epsilon == 0
    elif claim.by_mean_square:
        bits = [proof.mean_square(i) / (2 * arb.const_log2()) for i in instances]
        excess, is_sum = largest_of(bits) - claim.bound, True
    else:
        return arb.nan()
    # Other shells, or another rate, might prove what these do not.
    return excess if is_sum or excess <= 0 else arb.nan()


def mean_square_excess(full: Full, rows: RowDifference, stated: float, noise_std: float) -> arb:
    """Bound the excess of the mean squared distance over the stated one."""
    proof = _Proof(full=full, rows=rows, noise_std=arb(noise_std))
    return largest_of([proof.mean_square(i) for i in range(rows.n_instances)]) - stated


@final
@attrs.frozen(kw_only=True, slots=False)
class _Proof:
    """Row differences and noise, in balls."""

    full: Full
    rows: RowDifference
    noise_std: arb

    @property
    def margin(self) -> arb:
        """What the grid adds to a distance, in noise deviations."""
        return grid_of(self.full.dim)

    @property
    def whitening(self) -> Floats:
        shape = self.full.shape
        return np.eye(self.full.dim) if shape is None else shape.whitening

    @property
    def has_flags(self) -> bool:
        """Whether every number is a finite sum, and no bound that floats chose."""
        return all(
            isinstance(each, FlagSum) for sums in self.rows.sums(self.full.shape) for each in sums
        )

    def sums(self, instance: int) -> list[FlagSum | RowSum]:
        """Sums of the rows that differ, as floats have them."""
        return self.rows.sums(self.full.shape)[instance]

    def log_moment(self, instance: int, rate: arb) -> arb:
        """Bound the logarithm of the exponential moment of a squared distance; NaN without one."""
        farther = self.margin
        inner = rate * (1 + farther) / self.noise_std**2
        found = [
            _flag_moment(each, inner).log()
            if isinstance(each, FlagSum)
            else self._shells(instance, part, each, inner)
            for part, each in enumerate(self.sums(instance))
        ]
        return _least_finite(found) + rate * (farther + farther**2)

    def delta(self, instance: int, epsilon: arb) -> arb:
        """Bound a delta by the mean squared distance, by a finite sum, or by moments."""
        found = [self._mean_delta(instance, epsilon)]
        for part, each in enumerate(self.sums(instance)):
            if isinstance(each, FlagSum):
                found.append(self._flag_delta(each, epsilon))
            elif epsilon > 0:
                found += self._peaks(instance, part, each, epsilon)
        return _least_finite(found)

    def mean_square(self, instance: int) -> arb:
        """Bound the mean squared distance of coupled outputs."""
        matrix, moment = _matrix(self.whitening), _matrix(self.rows.second_moments[instance])
        square = (matrix * moment * matrix.transpose()).trace() / self.noise_std**2
        return (square.sqrt() + self.margin) ** 2

    def _mean_delta(self, instance: int, epsilon: arb) -> arb:
        """Bound a delta by Jensen's inequality for a line from 0, and then h itself."""
        distance = self.mean_square(instance).sqrt()
        height = gaussian_delta(distance, epsilon)
        if epsilon == 0 or distance**2 * _slope(distance**2, epsilon) <= 1:
            return height
        # Floats find where the line touches, and balls prove a bracket around it.
        low, high = _bracket(lambda q: q * float(_slope(arb(q), epsilon).mid()) - 1)
        if not (low * _slope(low, epsilon) >= 1 >= high * _slope(high, epsilon)):
            return arb.nan()
        return distance**2 * gaussian_delta(high.sqrt(), epsilon) / low

    def _flag_delta(self, flags: FlagSum, epsilon: arb) -> arb:
        total = arb(0)
        for count, mass in _flag_masses(flags):
            if count:
                ratio = count * arb(flags.length) / self.noise_std + self.margin
                total += mass * gaussian_delta(ratio, epsilon)
        return total

    def _peaks(self, instance: int, part: int, rows: RowSum, epsilon: arb) -> Iterator[arb]:
        """Bound a delta by the rate that floats find best, for each number of rows."""
        for tail, fixed in [*rows.fixed, (0.0, rows)]:
            ladder, logs = fixed.ladder
            rates = ladder * float(self.noise_std) ** 2
            rate = float(rates[int(np.argmin(log_peaks(float(epsilon), rates) + logs))])
            moment = self._moment_at(instance, part, fixed, arb(rate))
            yield arb(tail) + _peak(epsilon, rate) * moment.exp()

    def _moment_at(self, instance: int, part: int, rows: RowSum, rate: arb) -> arb:
        farther = self.margin
        inner = rate * (1 + farther) / self.noise_std**2
        return self._shells(instance, part, rows, inner) + rate * (farther + farther**2)

    def _shells(self, instance: int, part: int, rows: RowSum, rate: arb) -> arb:
        """Bound a logarithm by the ball, the shells and the bounds that floats choose."""
        cut = rows.cut(np.array([float(rate)]))
        laws = self.rows.laws_of(instance)[part]
        if not np.array_equal(self.rows.metric, self.whitening):
            return arb.nan()
        return _Shells(
            rows=rows,
            cut=cut,
            theta=(2 * rate).sqrt(),
            mean=_matrix(self.whitening) * _column(self._mean_of(instance)),
            error=self._mean_error,
            layers=[self._whitened(law) for law in laws],
        ).total()

    @property
    def _mean_error(self) -> arb:
        size = _matrix(np.abs(self.whitening)) * _column([arb(x) for x in self.rows.spans.tolist()])
        return 2 * arb(MOMENT_ERROR) * _length_of(size)

    def _mean_of(self, instance: int) -> list[arb]:
        first, second = self.rows.pairs[instance].tolist()
        pairs = zip(self.rows.means[first].tolist(), self.rows.means[second].tolist(), strict=True)
        return [arb(b) - arb(a) for a, b in pairs]

    def _whitened(self, law: int) -> list[tuple[arb, arb_mat]]:
        matrix = _matrix(self.whitening)
        radii, layers = self.rows.radii[law].tolist(), self.rows.layers[law]
        return [
            (arb(radius), matrix * _matrix(layer) * matrix.transpose())
            for radius, layer in zip(radii, layers, strict=True)
            if layer.any()
        ]


@final
@attrs.frozen(kw_only=True)
class _Shells:
    """The cut of an integral that floats chose, in balls."""

    rows: RowSum
    cut: Cut
    theta: arb
    mean: arb_mat
    error: arb
    layers: list[list[tuple[arb, arb_mat]]]

    def total(self) -> arb:
        """Bound the logarithm: the ball, the shells around it, and what is beyond."""
        first, power = int(self.cut.totals[0].argmin()), (self.theta * self._reach) ** 2
        if not math.isfinite(self.cut.totals[0, first]):
            return power / 2
        lengths = [arb(length) for length in self.cut.lengths.tolist()]
        logs = [self._tilted(lengths[first], arb(0), arb(0), arb(1))]
        for k in range(first + 1, len(lengths)):
            inner, tilt = lengths[k - 1] / self.theta, float(self.cut.tilts[0, k])
            if math.isnan(tilt):
                logs.append(self._radial(lengths[k], inner, float(self.cut.shells[0, k])))
            else:
                slope = arb(float(self.cut.slopes[0, k]))
                logs.append(self._tilted(lengths[k], inner, arb(tilt), slope))
        dim = self.mean.nrows()
        last = lengths[-1] / self.theta
        logs.append(power + arb(2).log() * dim / 2 + self._tail(last / arb(2).sqrt()))
        total = sum((each.exp() for each in logs), arb(0)).log()
        return total.min(power / 2)

    @property
    def _n_rows(self) -> arb:
        return arb(self.rows.n_rows)

    @property
    def _n_mean(self) -> arb:
        return self._n_rows * arb(self.rows.probability)

    @property
    def _mean_length(self) -> arb:
        return _length_of(self.mean) + self.error

    @property
    def _reach(self) -> arb:
        farthest = sum((largest_of([radius for radius, _ in part]) for part in self._parts), arb(0))
        return self._n_rows * (self._mean_length + farthest)

    @property
    def _parts(self) -> list[list[tuple[arb, arb_mat]]]:
        return [part for part in self.layers if part]

    def _tail(self, radius: arb) -> arb:
        """Logarithm of the probability that g is longer."""
        return (radius**2 / 2).gamma_upper(arb(self.mean.nrows()) / 2, 1).log()

    def _matrices(self, length: arb) -> list[arb_mat]:
        """Return C of each part, or the one of rows that differ with a probability only."""
        dim = self.mean.nrows()
        both = [
            _sum((_psi(length * radius) * m for radius, m in part), dim) for part in self._parts
        ]
        both = both or [arb_mat(dim, dim)]
        if self.rows.probability == 1:
            return both
        share, own = arb(self.rows.probability), length * self._mean_length
        total = _sum(both, dim)
        if len(both) > 1:
            first, second = both
            crossed = [
                first * (length**2 / 2 * _top(second)),
                second * (length**2 / 2 * _top(first)),
            ]
            total += min(crossed, key=lambda each: float(each.trace().mid()))
        factor = share * _psi(share * own) + (1 - share) * _psi((1 - share) * own)
        alone = self.mean * self.mean.transpose()
        for i in range(dim):
            alone[i, i] += (2 * self._mean_length + self.error) * self.error
        return [
            total * (share * ((1 - share) * own).exp()) + alone * (share * (1 - share) * factor)
        ]

    def _tilted(self, length: arb, inner: arb, tilt: arb, slope: arb) -> arb:
        """Compute bound 1; NaN unless the matrix is proved to be positive definite."""
        dim, matrices = self.mean.nrows(), self._matrices(length)
        matrix = _sum(matrices, dim) * (-slope * self.theta**2 * self._n_rows)
        for i in range(dim):
            matrix[i, i] += 1 - tilt
        shift = self.mean * (self.theta * self._n_mean)
        level = self._n_rows * len(matrices) * (slope - 1 - slope.log())
        bent = (shift.transpose() * matrix.solve(shift))[0, 0]
        drift = self._n_mean * length * self.error
        return level - tilt * inner**2 / 2 - log_det(matrix) / 2 + bent / 2 + drift

    def _radial(self, length: arb, inner: arb, stated: float) -> arb:
        """Compute the lesser of bounds 2 and 3."""
        tail, straight = self._tail(inner), self._n_mean * length * self._mean_length
        best = tail + length * self._reach
        if not math.isfinite(stated) or best < max(stated, _NEGLIGIBLE):
            return best
        matrices = self._matrices(length)
        for largest in (arb_mat.trace, _top):
            growth = sum((1 + length**2 * largest(m) / 2).log() for m in matrices)
            best = best.min(tail + straight + self._n_rows * growth)
            if best < max(stated, _NEGLIGIBLE):
                break
        return best


def _least_finite(values: list[arb]) -> arb:
    """Return the least bound; what is not a number bounds nothing."""
    return least_of([value for value in values if value.is_finite()] or [arb.nan()])


def _matrix(numbers: Floats) -> arb_mat:
    return arb_mat([[arb(x) for x in row] for row in numbers.tolist()])


def _column(numbers: list[arb]) -> arb_mat:
    return arb_mat([[x] for x in numbers])


def _sum(matrices: Iterable[arb_mat], dim: int) -> arb_mat:
    total = arb_mat(dim, dim)
    for matrix in matrices:
        total += matrix
    return total


def _length_of(column: arb_mat) -> arb:
    return (column.transpose() * column)[0, 0].sqrt()


def _psi(t: arb) -> arb:
    """Compute 2 (e^t - 1 - t) / t^2; near 0 by an upper bound with the same first terms."""
    if not t > _NEAR_ZERO:
        return 1 + t / 3 + t**2 / 10
    return 2 * (t.expm1() - t) / t**2


def _top(matrix: arb_mat) -> arb:
    """Bound the largest eigenvalue: floats find it, and balls prove a bound next to it."""
    dim = matrix.nrows()
    values = np.array([[float(x.mid()) for x in row] for row in matrix.tolist()])
    top, size = float(np.linalg.eigvalsh(values)[-1]), float(np.linalg.norm(values))
    for error in (4 * dim * UNIT_ROUNDOFF, _FAR):
        bound, rest = arb(top) + arb(error) * arb(size) + arb(math.ulp(0.0)), matrix * -1
        for i in range(dim):
            rest[i, i] += bound
        if log_det(rest).is_finite():
            return bound
    return matrix.trace()


def _slope(square: arb, epsilon: arb) -> arb:
    """Slope of ln h at a squared distance."""
    ratio = square.sqrt()
    density = (-((ratio / 2 - epsilon / ratio) ** 2) / 2).exp() / (2 * arb.pi()).sqrt()
    return density / (2 * ratio) / gaussian_delta(ratio, epsilon)


def _bracket(target: Callable[[float], float]) -> tuple[arb, arb]:
    """Bracket where a falling function of floats reaches 0."""
    low, high = _ENDS
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if target(middle) > 0 else (low, middle)
    return arb(low * (1 - _NEAR)), arb(high * (1 + _NEAR))


def _peak(epsilon: arb, rate: float) -> arb:
    """Bound the largest h at a squared distance, less its exponential; NaN if not proved."""
    low, high = _bracket(lambda q: float(_slope(arb(q), epsilon).mid()) - rate)
    if not (_slope(low, epsilon) >= rate >= _slope(high, epsilon)):
        return arb.nan()
    return gaussian_delta(high.sqrt(), epsilon) * (-rate * low).exp()


def _flag_masses(flags: FlagSum) -> Iterator[tuple[int, arb]]:
    """Probabilities of each number of rows that change; none where there are too many."""
    if flags.n_rows > _MOST_TERMS:
        yield 1, arb.nan()
        return
    p, n = arb(flags.probability), flags.n_rows
    for count in range(n + 1):
        yield count, arb(n).bin(count) * p**count * (1 - p) ** (n - count)


def _flag_moment(flags: FlagSum, rate: arb) -> arb:
    length = rate * arb(flags.length) ** 2
    return sum((mass * (length * count**2).exp() for count, mass in _flag_masses(flags)), arb(0))
