# SPDX-License-Identifier: Apache-2.0
r"""Markov chains with a protected state: how many slots differ between two worlds, by moments.

The secret is the state of one slot, or of all slots of an interval: a in one world, b in the other.
Given it, later and earlier slots are independent, and the earlier ones are a chain by Bayes' rule.
In both directions the two worlds are coupled step by step: from different states x, x' the next
states are equal as often as possible, and otherwise independent, and once equal they stay so.
What a slot adds is equal where the states are, and independent given the states elsewhere. So with
$V_j$ the change of the number of slots of period j in each state but the first, with $N_{jx}$
the number of slots of period j that differ and are in state x in one of the worlds, with B the rows
$\mu_x - \mu_0$ of mean loads and $S_x$ their covariances, the coupled sums per period differ
by Z with

$$M = E\,ZZ^\top = (I \otimes B)^\top\, E\,VV^\top\, (I \otimes B)
    + \mathrm{diag}_j \sum_x E N_{jx}\, S_x.$$

*Two states.* From 0 and 1 the next states differ with probability $|\lambda|$, $\lambda$ the second
eigenvalue, and then in the opposite order if $\lambda < 0$. So slot s differs with probability
$|\lambda|^{|s-t|}$, in one run around t; with $N_j$ the number of differing slots of period j,
$V_j$ the sum of $(\pm 1)^{|s-t|}$ over them and $m = \mu_1 - \mu_0$, $M = E\,VV^\top \otimes
mm^\top + \mathrm{diag}(E N) \otimes (S_0 + S_1)$. Before t, a chain that is not stationary has
$\lambda^k\,\mathrm{Var}(X_{t-k}) / \mathrm{Var}(X_t)$ in place of $\lambda^k$.

*Bounds on the run are not enough.* $E\,VV^\top$ is not monotone, as a matrix, in how long the
run is: with a run that is always longer, two periods differ together, and noise that is fitted
to that hides no change of one alone. So neither Dobrushin's coefficients, nor unsigned counts, nor
a larger $\lambda$ may stand for the pair; the moments of the coupled pair itself are computed.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain as chained
from itertools import permutations, repeat
from typing import Final, Literal, NamedTuple, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers, locked, locked_integers, same
from pufferslice._core.checks import check_probabilities, is_a
from pufferslice._core.text import given
from pufferslice.errors import ArgumentError, ScenarioError

MOST_SLOTS: Final = 2**20
"""Largest number of slots; the bounds on rounding are for at most so many."""
MOST_STATES: Final = 32
"""Largest number of states; pairs of pairs of them are in memory."""
_BITS: Final = 52
_DIGITS: Final = 1100
_NEGLIGIBLE: Final = 2.0**-60
_LEAST_SHARE: Final = 2.0**-800


@final
@attrs.frozen(kw_only=True)
class Chain:
    """A Markov chain, its probabilities held to multiples of 2^-52, rows to the sum 1.

    Differences of these are exact, so that the chain of which moments are computed is this one.
    """

    transition: Floats = attrs.field(converter=locked, eq=same)
    """Probability of the next state, given the last one, shape (n_states, n_states)."""
    start: Floats = attrs.field(converter=locked, eq=same)
    """Probability of the state in the first slot, shape (n_states,)."""
    is_stationary: bool
    """Whether every slot has the probabilities of the first one."""

    @classmethod
    def of(
        cls, transition: npt.ArrayLike, start: npt.ArrayLike | Literal["stationary"] = "stationary"
    ) -> "Chain":
        """Check and hold the probabilities of a chain."""
        rows = locked(transition)
        n_states = len(rows) if rows.ndim else 0
        if not 2 <= n_states <= MOST_STATES or rows.shape != (n_states, n_states):
            raise ArgumentError(
                f"transition must be a square matrix for 2 to {MOST_STATES} states, one row for "
                f"each last state; got shape {rows.shape}"
            )
        for row in rows:
            check_probabilities(length=n_states, transition=row)
        rows = _held(rows)
        if is_a(start, str):
            if start != "stationary":
                raise ArgumentError(
                    f"start must be 'stationary' or probabilities, got {given(start)}"
                )
            return cls(transition=rows, start=stationary(rows), is_stationary=True)
        first = locked(start)
        check_probabilities(length=n_states, start=first)
        return cls(transition=rows, start=_held(first[None])[0], is_stationary=False)

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.start)

    def shares(self, n_slots: int) -> Floats:
        """Probabilities of the states in each of the first slots, shape (n_slots, n_states)."""
        if self.is_stationary:
            return np.tile(self.start, (n_slots, 1))
        # In integers, so that shares above 2^-960 are exact but for the conversion to floats.
        steps, parts = _integers(self.transition), _integers(self.start) << _DIGITS
        shares = np.empty((n_slots, self.n_states))
        for slot in range(n_slots):
            shares[slot] = parts / (1 << (_DIGITS + _BITS))
            parts = (parts @ steps) >> _BITS
        return shares

    def shares_given(self, state: int, known: range, n_slots: int) -> Floats:
        """Probabilities of the states in each slot where all known ones have a state.

        Shape (n_slots, n_states); in floats, for means that promise nothing.
        """
        given_state = np.eye(self.n_states)[state]
        before, shares = self.shares(known.start + 1), np.empty((n_slots, self.n_states))
        shares[known.start : known.stop] = given_state
        for slot in range(known.stop, n_slots):
            shares[slot] = shares[slot - 1] @ self.transition
        reaches = given_state
        for slot in range(known.start - 1, -1, -1):
            reaches = self.transition @ reaches
            shares[slot] = before[slot] * reaches / (before[slot] @ reaches)
        return shares

    def sum_variances(self, periods: Integers, means: Floats, variances: Floats) -> Floats:
        """Variances of the sums of what slots add, by period, shape (n_periods, n_loads).

        `means` and `variances` are those of a slot in each state, shape (n_states, n_loads). In
        floats, for yardsticks that promise nothing.
        """
        n_periods = int(periods.max()) + 1
        shares = self.shares(len(periods))
        total = np.zeros((n_periods, means.shape[1]))
        # Of the sum so far: its mean and mean square together with the last state.
        sums = np.zeros((n_periods, *means.shape))
        squares = np.zeros_like(sums)
        center = shares.mean(axis=0) @ means
        for slot, period in enumerate(periods.tolist()):
            if slot:
                sums, squares = (self.transition.T @ part for part in (sums, squares))
            added, weights = means - center, shares[slot][:, None]
            squares[period] += (2 * sums[period] + added * weights) * added
            sums[period] += added * weights
            total[period] += shares[slot] @ variances
        spread = squares.sum(axis=1) - sums.sum(axis=1) ** 2
        return np.asarray(total + np.maximum(spread, 0.0))


@final
@attrs.frozen(kw_only=True)
class DifferingSlots:
    """Moments of the slots that differ between two worlds of a chain: upper bounds."""

    means: Floats = attrs.field(converter=locked, eq=same)
    """Expected number of slots of a period that differ and have a state in one of the worlds, at
    most; shape (n_periods, n_states). With two states both columns are that of all that differ."""
    squares: Floats = attrs.field(converter=locked, eq=same)
    """Second moment of the change of the number of slots in each state but the first, period by
    period, at most (as a matrix); shape (d, d), d = n_periods (n_states - 1)."""

    @property
    def expected(self) -> float:
        """Expected number of slots that differ, at most."""
        return float(self.means.sum()) / 2

    def second_moment(self, load_means: npt.ArrayLike, load_covs: npt.ArrayLike) -> Floats:
        """Second moment of the change of the sums of loads, at most, as a matrix.

        `load_means` has shape (n_states, n_loads), `load_covs` (n_states, n_loads, n_loads).
        Coordinates are those of the first period, then of the second, and so on. The products are
        rounded as usual; whoever certifies charges that, as for all stored moments.

        Guarantee: right guesses of the two worlds from the sums with noise N(0, Σ) are at most
        Φ(½√tr(Σ⁻¹M)), and tr(Σ⁻¹M) for the M of the loads does not decrease in `squares` (as a
        matrix) or in `means`.
        """
        means, covs = locked(load_means), locked(load_covs)
        n_periods, n_states = self.means.shape
        n_loads = means.shape[-1]
        if means.shape != (n_states, n_loads) or covs.shape != (n_states, n_loads, n_loads):
            raise ArgumentError(
                "load_means and load_covs must have the shapes (n_states, n_loads) and (n_states, "
                f"n_loads, n_loads), got {means.shape} and {covs.shape} for {n_states} states"
            )
        shift = np.kron(np.eye(n_periods), means[1:] - means[0])
        moment = shift.T @ self.squares @ shift
        blocks = moment.reshape(n_periods, n_loads, n_periods, n_loads)
        each = np.arange(n_periods)
        blocks[each, :, each] += np.einsum("jx,xfg->jfg", self.means, covs)
        return np.asarray((moment + moment.T) / 2)

    def dominates(self, other: "DifferingSlots") -> bool:
        """Whether the second moment is at least the other's for all loads, as far as is provable.

        Both terms of it are linear in these moments, and do not decrease.
        """
        more = self.squares - other.squares
        if (self.means < other.means).any() or (np.diagonal(more) < 0).any():
            return False
        if not more.any() or len(more) == 1:
            return True
        sizes = np.abs(self.squares).sum() + np.abs(other.squares).sum()
        rounding = 4 * (len(more) + 4) ** 2 * UNIT_ROUNDOFF * sizes
        return bool(np.linalg.eigvalsh(more)[0] >= rounding)


def undominated(differing: Sequence[DifferingSlots]) -> list[int]:
    """Places of those that no other one dominates; noise for these is enough for all.

    >>> chain = Chain.of([[0.9, 0.1], [0.2, 0.8]])
    >>> total = np.zeros(7, dtype=int)
    >>> undominated([differing_slots(chain, range(t, t + 1), (0, 1), total) for t in range(7)])
    [3]
    """
    left: list[int] = []
    for place, slots in enumerate(differing):
        if not any(differing[one].dominates(slots) for one in left):
            left = [one for one in left if not slots.dominates(differing[one])] + [place]
    return left


def differing_slots(
    chain: Chain, protected: range, states: tuple[int, int], periods: npt.ArrayLike
) -> DifferingSlots:
    r"""Moments of the slots that differ, where `protected` slots have one or the other state.

    `periods` has a period from 0 for each slot. In all `protected` slots, one or several in a row,
    the chain has the first state in one world and the second in the other.

    >>> differing_slots(
    ...     Chain.of([[0.9, 0.1], [0.2, 0.8]]), range(5, 6), (0, 1), np.zeros(12, dtype=int)
    ... ).squares.round(8)
    array([[32.44381236]])

    *Proof.* The pair (x, x') of different states is a chain that ends where they meet: from it
    (i, j) follows with probability $(p_i-p'_i)^+(p'_j-p_j)^+/\sum(p-p')^+$, p and p' the rows of
    x and x', so that both worlds have their distribution. $E\,v_s v_{s'}^\top$ for the change
    $v_s$ of the state of slot s follows for s, s' on one side of the secret; for others it is
    the product of means, as both sides are independent given the secret.

    *Rounding.* All terms before signs are products of non-negative numbers, so that entries are
    within a share η of the unsigned counts, and $x^\top E x \le \eta E[D \sum_s 2(x_{x'_s}^2 +
    x_{x_s}^2)]$ (Cauchy). A reversed step may be off by a share e: its coupling over 1+e is part of
    a coupling of the true steps, which leave it with probability 2e at most. With `lost` the
    probability of that, and of what is left when pairs have practically met, sums are at most the
    n_j slots of a period there. All is added to means, and 2T times it to the diagonal of squares.
    """
    labels, sizes = _counted_periods(periods)
    n_slots, n_states = len(labels), chain.n_states
    first, last = _protected_ends(protected, n_slots)
    pairs = np.array(list(permutations(range(n_states), 2)))
    origin = _pair_place(states, pairs, n_states)
    shares = chain.shares(first + 1)
    impossible = [s for s in states if not shares[first, s] > _LEAST_SHARE]
    if last > first:
        impossible += [s for s in states if not chain.transition[s, s] > 0]
    if impossible:
        raise ScenarioError(
            f"state {impossible[0]} cannot occur in the protected slots from {first} to {last} of "
            "this chain, so that there is nothing to hide; choose other states, slots or a start"
        )
    steady = _pair_steps(chain.transition, pairs)
    known = repeat(np.eye(len(pairs)), last - first + 1)
    forward = _run(labels[first:], chained(known, repeat(steady)), origin, pairs, sizes)
    backward = _run(
        labels[:first][::-1], _reversed_steps(chain, shares, pairs), origin, pairs, sizes
    )
    # Relative error of a reversed step: twice that of shares, and that of its own arithmetic.
    of_shares = 3 * n_states**3 if chain.is_stationary else 1
    error = (2 * of_shares + n_states + 8) * UNIT_ROUNDOFF
    relative = 2 * (n_slots + 2) * (error + (len(pairs) + 8) * UNIT_ROUNDOFF)
    lost = forward.lost + backward.lost
    if first:
        lost += 2 * error * (1 + float(backward.pairs.sum())) + _NEGLIGIBLE
    taking, giving = (np.eye(n_states)[pairs[:, one]] for one in (0, 1))
    means = (forward.pairs + backward.pairs) @ (taking + giving)
    slack = relative * means + lost * sizes[:, None]
    turns = (giving - taking)[:, 1:]
    cross = np.outer(forward.pairs @ turns, backward.pairs @ turns)
    squares = forward.squares + backward.squares + cross + cross.T
    squares += 2 * n_slots * np.diag(slack[:, 1:].ravel())
    return DifferingSlots(means=means + slack, squares=(squares + squares.T) / 2)


def stationary(transition: Floats) -> Floats:
    """The stationary distribution of a chain that has one, small probabilities as exact as large.

    States are eliminated one by one without a subtraction (Grassmann, Taksar and Heyman 1985).
    The elimination of one of k states errs by a share (k+1)u in transitions, u the unit roundoff,
    and so by at most 2(k-1)(k+1)u in the distribution, a quotient of sums of products of k-1
    transitions (Markov chain tree theorem): together a share of at most 3k³u.

    >>> stationary(np.array([[0.9, 0.1], [0.2, 0.8]])).round(12)
    array([0.66666667, 0.33333333])
    """
    n = len(transition)
    reaches = np.linalg.matrix_power((transition > 0) | np.eye(n, dtype=bool), n)
    is_recurrent = (reaches <= reaches.T).all(axis=1)
    if not reaches[np.ix_(is_recurrent, is_recurrent)].all():
        raise ArgumentError(
            "the chain has several stationary distributions; give start as probabilities"
        )
    steps = np.array(transition[np.ix_(is_recurrent, is_recurrent)])
    for k in range(len(steps) - 1, 0, -1):
        steps[:k, k] /= steps[k, :k].sum()
        steps[:k, :k] += np.outer(steps[:k, k], steps[k, :k])
    weights = np.ones(len(steps))
    for k in range(1, len(steps)):
        weights[k] = weights[:k] @ steps[:k, k]
    shares = np.zeros(n)
    shares[is_recurrent] = weights / weights.sum()
    return shares


class _Run(NamedTuple):
    """Moments of the slots on one side of a secret that differ."""

    pairs: Floats
    """Expected number of slots of each period with each pair of different states."""
    squares: Floats
    """Second moment of the change of the number of slots in each state but the first."""
    lost: float
    """Probability that later slots differ, which are left out."""


def _run(
    labels: Integers, steps: Iterable[Floats], origin: int, pairs: Integers, sizes: Floats
) -> _Run:
    """Follow a pair from a secret, slot by slot, until it has practically met."""
    n_periods, n_states = len(sizes), int(pairs.max()) + 1
    turns = (np.eye(n_states)[pairs[:, 1]] - np.eye(n_states)[pairs[:, 0]])[:, 1:]
    law = np.eye(len(pairs))[origin]
    # Of the changes so far, by period, those that go with each present pair.
    sums = np.zeros((n_periods, n_states - 1, len(pairs)))
    means = np.zeros((n_periods, len(pairs)))
    squares = np.zeros((n_periods, n_states - 1, n_periods, n_states - 1))
    for label, step in zip(labels.tolist(), steps, strict=False):
        law, sums = law @ step, sums @ step
        if (left := float(law.sum())) <= _NEGLIGIBLE:
            return _Run(means, _folded(squares), left)
        earlier = sums @ turns
        squares[:, :, label] += earlier
        squares[label] += earlier.transpose(2, 0, 1)
        squares[label, :, label] += turns.T @ (law[:, None] * turns)
        sums[label] += turns.T * law
        means[label] += law
    return _Run(means, _folded(squares), 0.0)


def _folded(squares: Floats) -> Floats:
    size = squares.shape[0] * squares.shape[1]
    return squares.reshape(size, size)


def _pair_steps(rows: Floats, pairs: Integers) -> Floats:
    """Probabilities of the next pair of different states, shape (n_pairs, n_pairs)."""
    first, second = rows[pairs[:, 0]], rows[pairs[:, 1]]
    taken, added = np.maximum(first - second, 0.0), np.maximum(second - first, 0.0)
    # Not less than either sum, so that rounding gives no state more than its probability.
    moved = np.maximum(taken.sum(axis=1), added.sum(axis=1))
    taken = np.divide(taken, moved[:, None], out=np.zeros_like(taken), where=moved[:, None] > 0)
    return np.asarray(taken[:, pairs[:, 0]] * added[:, pairs[:, 1]])


def _reversed_steps(chain: Chain, shares: Floats, pairs: Integers) -> Iterator[Floats]:
    """The steps of a pair from each slot to the slot before it, by Bayes' rule."""
    step = None
    for slot in range(len(shares) - 2, -1, -1):
        if step is None or not chain.is_stationary:
            flows = (shares[slot][:, None] * chain.transition).T
            totals = flows.sum(axis=1, keepdims=True)
            rows = np.divide(flows, totals, out=np.zeros_like(flows), where=totals > 0)
            step = _pair_steps(rows, pairs)
        yield step


def _held(rows: Floats) -> Floats:
    """Hold probabilities to multiples of 2^-52; the largest of a row takes the rest."""
    parts = np.rint(rows * 2.0**_BITS)
    parts[np.arange(len(rows)), rows.argmax(axis=1)] += 2.0**_BITS - parts.sum(axis=1)
    return np.asarray(parts / 2.0**_BITS)


def _integers(probabilities: Floats) -> npt.NDArray[np.object_]:
    """Multiples of 2^-52 as integers of any size."""
    return (probabilities * 2.0**_BITS).astype(np.int64).astype(object)


def _counted_periods(periods: npt.ArrayLike) -> tuple[Integers, Floats]:
    """The period of each slot, and the number of slots of each period."""
    labels = locked_integers(periods)
    if labels.ndim != 1 or not 0 < len(labels) <= MOST_SLOTS:
        raise ArgumentError(
            f"periods must have one entry for each slot, at most {MOST_SLOTS}; got shape "
            f"{labels.shape}"
        )
    if labels.min() < 0 or labels.max() >= len(labels) or not np.bincount(labels).all():
        raise ArgumentError(
            "periods must be numbers from 0 without a gap, as np.arange(n_slots) // slots_in_week"
        )
    return labels, np.bincount(labels).astype(np.float64)


def _protected_ends(protected: range, n_slots: int) -> tuple[int, int]:
    """The first and the last of the protected slots."""
    is_run = is_a(protected, range) and len(protected) > 0 and protected.step == 1
    if not is_run or protected[0] < 0 or protected[-1] >= n_slots:
        raise ArgumentError(
            f"protected must be a range of slots from 0 to {n_slots - 1}, got {given(protected)}"
        )
    return protected[0], protected[-1]


def _pair_place(states: tuple[int, int], pairs: Integers, n_states: int) -> int:
    """The place of the protected states among all pairs."""
    places = {pair: place for place, pair in enumerate(map(tuple, pairs.tolist()))}
    if tuple(states) not in places:
        raise ArgumentError(
            f"states must be two different states from 0 to {n_states - 1}, got {given(states)}"
        )
    return places[tuple(states)]
