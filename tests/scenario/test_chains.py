# SPDX-License-Identifier: Apache-2.0
"""Slots that differ between two worlds of a chain: known answers, enumeration, false formulas."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtri
from tests.refusal_tables import refusals
from tests.refusals import check_refused

from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.scenario.chains import (
    MOST_SLOTS,
    Chain,
    DifferingSlots,
    differing_slots,
    stationary,
    undominated,
)

HOME = [[0.9, 0.1], [0.2, 0.8]]
MEAN_SQUARE = (2 * ndtri(0.64)) ** 2
COUNT = ([[0.0], [1.0]], np.zeros((2, 1, 1)))
"""Means and covariances of loads that are the state itself."""


def one(slot):
    return range(slot, slot + 1)


def weeks(n_slots, n_periods=1):
    return np.arange(n_slots) * n_periods // n_slots


def least_noise(moment, mean_square=MEAN_SQUARE):
    """The covariance of least trace that has this mean square."""
    values, axes = np.linalg.eigh(moment)
    roots = np.sqrt(np.maximum(values, 0))
    return (axes * roots) @ axes.T * roots.sum() / mean_square


def paths_of(transition, start, n_slots):
    """All sequences of states, and their probabilities."""
    paths = np.array(list(itertools.product(range(len(start)), repeat=n_slots)))
    steps = transition[paths[:, :-1], paths[:, 1:]].prod(axis=1)
    return paths, start[paths[:, 0]] * steps


def sums_given(paths, masses, periods, loads):
    """Probabilities of the sums of integer loads per period, one axis for each period.

    `loads` has the probabilities of the loads 0, 1, … of a slot, for each state.
    """
    n_periods, (n_states, n_loads) = max(periods) + 1, loads.shape
    counts = np.array(
        [
            (paths[:, periods == j] == x).sum(axis=1)
            for j in range(n_periods)
            for x in range(n_states)
        ]
    ).T
    length = len(periods) * (n_loads - 1) + 1
    total = np.zeros((length,) * n_periods)
    kinds, places = np.unique(counts, axis=0, return_inverse=True)
    weights = np.bincount(places.ravel(), masses)
    for kind, weight in zip(kinds, weights, strict=True):
        laws = []
        for of_period in kind.reshape(n_periods, n_states):
            law = np.ones(1)
            for load, n in zip(loads, of_period, strict=True):
                for _ in range(n):
                    law = np.convolve(law, load)
            laws.append(np.pad(law, (0, length - len(law))))
        total += weight * (laws[0] if n_periods == 1 else np.outer(*laws))
    return total / masses.sum()


def true_guess(first, second, cov):
    """Right guesses of two laws on integers, with noise; by summation over a fine grid."""
    difference = np.asarray(first - second)
    points = np.argwhere(np.abs(difference) > 1e-15)
    whitened = np.linalg.solve(np.linalg.cholesky(cov), points.T)
    step = 0.05 if len(cov) == 1 else 0.125
    grids = [np.arange(row.min() - 6, row.max() + 6, step) for row in whitened]
    bells = [
        np.exp(-((grid[:, None] - row) ** 2) / 2) / math.sqrt(2 * math.pi)
        for grid, row in zip(grids, whitened, strict=True)
    ]
    density = bells[0] * difference[tuple(points.T)]
    density = density @ (bells[1].T if len(bells) > 1 else np.ones(len(points)))
    return 0.5 + np.abs(density).sum() * step ** len(bells) / 4


def guess_of(chain, protected, states, periods, loads, cov):
    """Right guesses of two states in the protected slots, by enumeration of all sequences."""
    paths, masses = paths_of(chain.transition, chain.start, len(periods))
    worlds = []
    for state in states:
        has = (paths[:, list(protected)] == state).all(axis=1)
        worlds.append(sums_given(paths[has], masses[has], periods, loads))
    return true_guess(*worlds, cov)


def load_moments(loads):
    values = np.arange(loads.shape[1])
    means = loads @ values
    return means[:, None], (loads @ values**2 - means**2)[:, None, None]


def random_chain(rng, n_states, kind):
    """A random chain of some kind: slow, fast, or of two states that alternate."""
    rows = rng.dirichlet(np.ones(n_states), n_states)
    if kind == "slow":
        rows = 0.8 * np.eye(n_states) + 0.2 * rows
    if kind == "alternating":
        rows = np.array([[0.0, 1.0], [1.0, 0.0]]) * 0.7 + 0.3 * rows
    return Chain.of(rows, rng.dirichlet(np.ones(n_states)) if rng.random() < 0.5 else "stationary")


def moments_by_hand(chain, protected, periods):
    """Counts of two states by the lengths of both tails, as the formulas have them."""
    paths, masses = paths_of(chain.transition, chain.start, len(periods))
    shares = np.array([masses @ (paths[:, s] == 1) / masses.sum() for s in range(len(periods))])
    eigenvalue = chain.transition[1, 1] - chain.transition[0, 1]
    first, last = protected[0], protected[-1]

    def survival(slot):
        if slot >= first:
            return abs(eigenvalue) ** max(0, slot - last)
        variances = shares * (1 - shares)
        return abs(eigenvalue) ** (first - slot) * variances[slot] / variances[first]

    n_periods = max(periods) + 1
    means, squares = np.zeros(n_periods), np.zeros((n_periods, n_periods))
    for left in range(first + 1):
        for right in range(last, len(periods)):
            share = survival(left) - (survival(left - 1) if left else 0)
            share *= survival(right) - (survival(right + 1) if right + 1 < len(periods) else 0)
            run = np.arange(left, right + 1)
            apart = np.maximum(0, np.maximum(first - run, run - last))
            signs = np.sign(eigenvalue) ** apart
            turn = np.bincount(periods[run], signs, minlength=n_periods)
            means += share * np.bincount(periods[run], minlength=n_periods)
            squares += share * np.outer(turn, turn)
    return means, squares


class TestKnownAnswers:
    def test_home(self):
        slots = differing_slots(Chain.of(HOME), one(5), (0, 1), weeks(12))
        assert slots.expected == pytest.approx(4.999989, rel=1e-11)
        assert slots.means == pytest.approx(4.999989, rel=1e-11)
        assert slots.squares[0, 0] == pytest.approx(32.44381235646, rel=1e-11)
        moment = slots.second_moment(*COUNT)
        assert math.sqrt(least_noise(moment)[0, 0]) == pytest.approx(7.94505131220131, rel=1e-11)

    def test_two_loads(self):
        # One slot alone: M = m m' + S0 + S1.
        slots = differing_slots(Chain.of(HOME), one(0), (0, 1), [0])
        moment = slots.second_moment(
            [[1.0, 2.0], [4.0, 1.0]], [np.eye(2), [[3.0, 1.0], [1.0, 2.0]]]
        )
        assert moment == pytest.approx(np.array([[9.0 + 4, -3 + 1], [-3 + 1, 1.0 + 3]]), rel=1e-11)

    def test_stationary(self):
        rng = np.random.default_rng(1)
        rows = np.array(Chain.of(rng.dirichlet(np.full(4, 0.1), 4)).transition)
        rows[0] = [1 - 2.0**-45, 2.0**-45, 0, 0]  # nearly absorbing
        shares = stationary(rows)
        exact = [[Fraction(value) for value in row] for row in rows]
        held = [Fraction(value) for value in shares]
        flows = [sum(held[i] * exact[i][j] for i in range(4)) for j in range(4)]
        assert all(abs(flow / share - 1) < 1e-14 for flow, share in zip(flows, held, strict=True))
        assert stationary(np.array([[1.0, 0.0], [0.2, 0.8]])).tolist() == [1.0, 0.0]
        assert stationary(np.array([[0.0, 1.0], [1.0, 0.0]])).tolist() == [0.5, 0.5]

    def test_shares(self):
        chain = Chain.of(HOME, [0.25, 0.75])
        power = np.array([0.25, 0.75]) @ np.linalg.matrix_power(HOME, 7)
        assert chain.shares(8)[7] == pytest.approx(power, rel=1e-14)
        assert Chain.of(HOME).shares(3)[2] == pytest.approx([2 / 3, 1 / 3], rel=1e-14)
        thirds = Chain.of(np.full((3, 3), 1 / 3))
        assert all(sum(map(Fraction, row)) == 1 for row in thirds.transition)


@pytest.mark.parametrize("start", ["stationary", [0.2, 0.5, 0.3]])
@pytest.mark.parametrize("periods", [[0] * 6, [0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 0]])
def test_variances_of_sums_by_enumeration(start, periods):
    """What someone without data does not know: paths of states, and loads given the states."""
    chain = Chain.of([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]], start)
    periods = np.array(periods)
    means = np.array([[100.0, 0.0], [103.0, 1.0], [90.0, 5.0]])
    variances = np.array([[1.0, 2.0], [4.0, 0.0], [0.5, 3.0]])
    paths, masses = paths_of(chain.transition, chain.start, len(periods))
    found = chain.sum_variances(periods, means, variances)
    for period in range(periods.max() + 1):
        in_it = paths[:, periods == period]
        sums, within = means[in_it].sum(axis=1), variances[in_it].sum(axis=1)
        expected = masses @ within + masses @ (sums - masses @ sums) ** 2
        assert found[period] == pytest.approx(expected, rel=1e-9)


class TestMoments:
    @pytest.mark.parametrize("seed", range(40))
    def test_two_states(self, seed):
        rng = np.random.default_rng([2, seed])
        chain = random_chain(rng, 2, ["slow", "fast", "alternating"][seed % 3])
        first, periods = int(rng.integers(8)), weeks(9, int(rng.integers(1, 4)))
        protected = range(first, int(rng.integers(first, 9)) + 1)
        slots = differing_slots(chain, protected, (0, 1), periods)
        means, squares = moments_by_hand(chain, protected, periods)
        assert slots.means == pytest.approx(np.column_stack([means, means]), rel=1e-9)
        assert slots.squares == pytest.approx(squares, rel=1e-9, abs=1e-9)
        # What rounding may take is added as a matrix.
        assert np.linalg.eigvalsh(slots.squares - squares)[0] > -1e-15 * len(periods)

    @pytest.mark.parametrize("seed", range(10))
    def test_three_states(self, seed):
        # Pairs of sequences, coupled forwards and backwards in plain loops.
        rng = np.random.default_rng([3, seed])
        chain, periods = random_chain(rng, 3, ["slow", "fast"][seed % 2]), weeks(5, 2)
        slot = int(rng.integers(5))
        slots = differing_slots(chain, one(slot), (0, 2), periods)
        shares = [chain.start @ np.linalg.matrix_power(chain.transition, s) for s in range(5)]

        def coupled(x, y, backwards_to=None):
            rows = chain.transition
            if backwards_to is not None:
                flows = shares[backwards_to][:, None] * rows
                rows = (flows / flows.sum(axis=0)).T
            common = np.minimum(rows[x], rows[y])
            if x == y:
                return np.diag(common)
            left = np.outer(rows[x] - common, rows[y] - common) / max(1 - common.sum(), 1e-300)
            return np.diag(common) + left

        worlds = [{((0, 2),): 1.0}, {((0, 2),): 1.0}]
        for side, steps in enumerate([range(slot - 1, -1, -1), range(slot + 1, 5)]):
            for s in steps:
                grown = {}
                for path, mass in worlds[side].items():
                    joint = coupled(*path[-1], s if side == 0 else None)
                    for pair in itertools.product(range(3), repeat=2):
                        if joint[pair] > 0:
                            grown[*path, pair] = mass * joint[pair]
                worlds[side] = grown
        means, squares = np.zeros((2, 3)), np.zeros((4, 4))
        for (before, p), (after, q) in itertools.product(worlds[0].items(), worlds[1].items()):
            path = [*before[::-1], *after[1:]]
            count, change = np.zeros((2, 3)), np.zeros((2, 3))
            for j, (x, y) in zip(periods, path, strict=True):
                count[j, [x, y]] += x != y
                change[j, x] -= 1
                change[j, y] += 1
            means += p * q * count
            squares += p * q * np.outer(change[:, 1:], change[:, 1:])
        assert slots.means == pytest.approx(means, rel=1e-9)
        assert slots.squares == pytest.approx(squares, rel=1e-9, abs=1e-10)

    @pytest.mark.parametrize("slot", range(0, 12, 3))
    def test_rounding_is_upwards(self, slot):
        # Against exact fractions of the chain that is held.
        chain = Chain.of(HOME)
        slots = differing_slots(chain, one(slot), (0, 1), weeks(12))
        power = Fraction(chain.transition[1, 1]) - Fraction(chain.transition[0, 1])
        tails = [[power**k for k in range(1, n + 1)] for n in (slot, 11 - slot)]
        (left, right), powers = map(sum, tails), [(2 * k - 1) * power**k for k in range(1, 12)]
        squares = sum(powers[:slot]) + sum(powers[: 11 - slot])
        exact = 1 + left + right, 1 + squares + 2 * (left + right + left * right)
        held = Fraction(slots.means[0, 0]), Fraction(slots.squares[0, 0])
        assert all(1 < got / want < 1 + 1e-11 for got, want in zip(held, exact, strict=True))

    def test_what_is_left_out_is_charged(self):
        slots = differing_slots(Chain.of(HOME), one(0), (0, 1), weeks(2_000, 4))
        assert 2.0**-70 < slots.means[3, 0] < 2.0**-45

    def test_long_chains_are_quick_and_forget(self):
        # Half-hours of a year: far weeks have no more than rounding may take.
        slots = differing_slots(Chain.of(HOME), one(9_000), (0, 1), weeks(17_520, 52))
        week = weeks(17_520, 52)[9_000]
        assert slots.means[week, 0] == pytest.approx(1 + 2 * 0.7 / 0.3, rel=1e-6)
        assert slots.squares[0, 0] < 1e-5
        assert slots.squares[week, week] > slots.means[week, 0] ** 2

    def test_rare_states_are_as_exact_as_others(self):
        # State 1 dies out, to 0.9^2000 / 2, about 2^-305. Slot s differs if state 0 was reached.
        chain = Chain.of([[1.0, 0.0], [0.1, 0.9]], [0.5, 0.5])
        slots = differing_slots(chain, one(2_000), (0, 1), weeks(2_001))
        expected = sum(1 - 0.5 * 0.9**s for s in range(2_001))
        assert slots.expected == pytest.approx(expected, rel=1e-9)


class TestGuesses:
    """The truth, by enumeration, against the claim."""

    @pytest.mark.parametrize("part", range(10))
    def test_totals(self, part):
        for seed in range(15):
            rng = np.random.default_rng([4, part, seed])
            n_states = 3 if seed % 3 == 2 else 2
            kind = ["slow", "fast", "alternating"][int(rng.integers(5 - n_states))]
            chain, n_slots = random_chain(rng, n_states, kind), 9 if n_states == 2 else 6
            first = int(rng.integers(n_slots))
            protected = range(first, first + int(rng.integers(1, 3 if first + 1 < n_slots else 2)))
            loads = rng.dirichlet([0.3] * 3, n_states)
            slots = differing_slots(chain, protected, (0, 1), weeks(n_slots))
            target = rng.uniform(0.55, 0.9)
            moment = slots.second_moment(*load_moments(loads))
            cov = least_noise(moment, (2 * ndtri(target)) ** 2)
            truth = guess_of(chain, protected, (0, 1), weeks(n_slots), loads, cov)
            assert truth <= target + 1e-5

    @pytest.mark.parametrize("seed", range(15))
    def test_two_periods(self, seed):
        rng = np.random.default_rng([5, seed])
        n_states = 2 + seed % 2
        kind = ["slow", "fast", "alternating"][int(rng.integers(5 - n_states))]
        chain, n_slots = random_chain(rng, n_states, kind), 8 if n_states == 2 else 6
        periods = weeks(n_slots, 2) if rng.random() < 0.5 else np.arange(n_slots) % 2
        loads = rng.dirichlet([0.3] * 2, n_states)
        slot = int(rng.integers(n_slots))
        moment = differing_slots(chain, one(slot), (0, 1), periods).second_moment(
            *load_moments(loads)
        )
        # Not only the fitted noise: any noise with this mean square.
        turn = rng.normal(size=(2, 2))
        for cov in (least_noise(moment), turn @ turn.T):
            noise = cov * np.trace(np.linalg.solve(cov, moment)) / MEAN_SQUARE
            assert guess_of(chain, one(slot), (0, 1), periods, loads, noise) <= 0.641

    def test_it_is_reached(self):
        # A home that hardly changes: all slots differ, and nothing else varies.
        chain, loads = Chain.of([[0.9999, 0.0001], [0.0001, 0.9999]]), np.eye(2)
        moment = differing_slots(chain, one(3), (0, 1), weeks(8)).second_moment(*COUNT)
        truth = guess_of(chain, one(3), (0, 1), weeks(8), loads, least_noise(moment))
        assert 0.9999 * 0.64 < truth <= 0.64 + 1e-6


class TestFalse:
    """Shorter formulas that would be false, each met by an attack."""

    def test_reversed_steps_need_the_ratio_of_variances(self):
        # Who is in state 1 was there all along; the eigenvalue 0.5 alone sees two slots.
        chain, n_slots = Chain.of([[1.0, 0.0], [0.5, 0.5]], [0.02, 0.98]), 9
        naive = sum(0.5**k * (2 * k + 1) for k in range(n_slots))
        slots = differing_slots(chain, one(8), (0, 1), weeks(n_slots))
        stated, true = (
            guess_of(chain, one(8), (0, 1), weeks(n_slots), np.eye(2), least_noise(np.array([[m]])))
            for m in (slots.squares[0, 0], naive)
        )
        assert stated <= 0.64
        assert true > 0.84

    def test_alternating_states_need_signs(self):
        # States alternate: sums of even and of odd slots move against each other.
        chain, periods = Chain.of([[0.01, 0.99], [0.99, 0.01]]), np.arange(8) % 2
        unsigned = np.array([[16.0, 16.0], [16.0, 16.0]]) + 0.1 * np.eye(2)
        slots = differing_slots(chain, one(4), (0, 1), periods)
        assert slots.squares[0, 1] < 0
        stated, true = (
            guess_of(chain, one(4), (0, 1), periods, np.eye(2), least_noise(moment))
            for moment in (slots.squares, unsigned)
        )
        assert stated <= 0.64
        assert true > 0.9
        assert (slots.squares <= unsigned).all()

    def test_longer_runs_are_no_bound(self):
        # States 0 and 1 meet at once; Dobrushin's coefficient of the chain is 0.98.
        chain = Chain.of([[1.0, 0, 0], [1.0, 0, 0], [0.02, 0, 0.98]], [0.5, 0.5, 0.0])
        longer = np.array([[1.0, 0.98], [0.98, 0.98]])
        slots = differing_slots(chain, one(0), (0, 1), [0, 1])
        moment = slots.second_moment([[0.0], [1.0], [1.0]], np.zeros((3, 1, 1)))
        assert (moment <= longer + 1e-9).all()
        loads = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        cov = least_noise(moment + 1e-9 * np.eye(2)), least_noise(longer)
        stated, true = (
            guess_of(chain, one(0), (0, 1), np.array([0, 1]), loads, noise) for noise in cov
        )
        assert stated <= 0.6401
        assert true > 0.7


class TestPositions:
    def test_totals_need_the_middle_alone(self):
        chain = Chain.of(HOME)
        all_slots = [differing_slots(chain, one(t), (0, 1), weeks(21)) for t in range(21)]
        (middle,) = undominated(all_slots)
        assert middle == 10
        for slots in all_slots:
            assert all_slots[10].dominates(slots)
            assert slots.squares[0, 0] <= all_slots[10].squares[0, 0]

    def test_weeks_need_their_own(self):
        chain = Chain.of(HOME)
        slots = [differing_slots(chain, one(t), (0, 1), weeks(21, 3)) for t in (3, 10, 17, 10)]
        assert undominated(slots) == [0, 1, 2]

    def test_entries_are_not_enough(self):
        small = DifferingSlots(means=np.ones((2, 2)), squares=np.eye(2))
        large = DifferingSlots(means=np.ones((2, 2)), squares=np.array([[1.0, 0.5], [0.5, 1.0]]))
        more = DifferingSlots(means=np.ones((2, 2)), squares=np.array([[2.0, 0.5], [0.5, 2.0]]))
        assert not large.dominates(small)
        assert more.dominates(small)
        assert more.dominates(large)
        assert not DifferingSlots(means=np.zeros((2, 2)), squares=more.squares).dominates(small)
        assert undominated([small, more, large]) == [1]
        # A difference that is singular may be indefinite but for rounding.
        edge = DifferingSlots(means=np.ones((2, 2)), squares=np.eye(2) + np.ones((2, 2)))
        assert not edge.dominates(small)


def slots_of(
    transition=HOME, start="stationary", protected=range(1, 2), states=(0, 1), periods=(0, 0, 0)
):
    return differing_slots(Chain.of(transition, start), protected, states, periods)


REFUSED = {
    ArgumentError: [
        ("transition", Chain.of, [[1.0]], 0.5, [[0.5, 0.5]], np.eye(33), [[0.5, 0.6], [0.5, 0.5]]),
        ("transition", Chain.of, [[1.5, -0.5], [0.5, 0.5]], [[math.nan, 1.0], [0.5, 0.5]]),
        ("start", lambda start: Chain.of(HOME, start), "uniform", [1.0], [0.5, 0.4]),
        ("start", Chain.of, np.eye(2)),
        ("periods", lambda periods: slots_of(periods=periods), [], [[0, 0]], [0, 2, 2], [-1, 0, 0]),
        ("periods", lambda: slots_of(periods=np.zeros(MOST_SLOTS + 1, dtype=int))),
        ("protected", lambda span: slots_of(protected=span), one(3), range(1, 1), range(0, 3, 2)),
        ("protected", lambda span: slots_of(protected=span), one(-1), (0, 1)),
        ("states", lambda states: slots_of(states=states), (0, 0), (0, 2), (1,)),
        ("load_means", lambda: slots_of().second_moment([0.0, 1.0], np.zeros((2, 1, 1)))),
        ("load_means", lambda: slots_of().second_moment([[0.0], [1.0]], np.zeros((1, 1, 1)))),
    ],
    ScenarioError: [
        ("state 1", lambda: slots_of([[1.0, 0.0], [0.2, 0.8]])),
        ("state 0", lambda: slots_of([[0.0, 1.0], [0.5, 0.5]], protected=range(1, 3))),
    ],
}


@pytest.mark.parametrize("refusal", refusals(REFUSED))
def test_refused(refusal):
    check_refused(refusal)
