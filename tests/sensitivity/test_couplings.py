# SPDX-License-Identifier: Apache-2.0
"""The unsliced bound: couplings with exact marginals, near the best and never below the truth."""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from scipy.stats import norm
from tests import oracles

from pufferslice._core import threads
from pufferslice.baselines import w_infinity
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity import DistributionPair, couplings
from pufferslice.sensitivity.coupling_kernels import random_directions, transport
from pufferslice.sensitivity.couplings import (
    SEED,
    Recipe,
    coupled_differences,
    coupling_tables,
)
from pufferslice.sensitivity.sensitivity import Full
from pufferslice.sensitivity.tables import FINEST_DIGITS

ONE_PAIR = [DistributionPair(0, 1)]
RECIPES = [
    Recipe(),
    Recipe(cost="renyi", rate=0.7),
    Recipe(cost="delta", epsilon=1.0, noise_std=2.0),
    Recipe(cost="guess", noise_std=2.0),
    Recipe(effort="quick", cost="renyi", rate=0.7),
]


@pytest.fixture
def only_searches(monkeypatch):
    """Small problems go the way of large ones."""
    monkeypatch.setattr(couplings, "_ASSIGNED", 0)
    monkeypatch.setattr(couplings, "_CELLS", 0)
    monkeypatch.setattr(couplings, "_BLOCK", 8)
    monkeypatch.setattr(couplings, "_QUICK_BLOCK", 4)


def uniform_pair(rng, n, m, dim, shift=0.5):
    samples = rng.normal(size=(n, dim)), rng.normal(shift, 1.2, size=(m, dim))
    return [FiniteDistribution.uniform(x) for x in samples]


def probabilities(points, masses):
    """Each point with its share of all mass, nothing rounded."""
    total, result = sum(int(mass) for mass in masses), Counter()
    for point, mass in zip(points.tolist(), masses.tolist(), strict=True):
        result[tuple(point)] += Fraction(mass, total)
    return result


def check_marginals(distributions, recipe, n_instances=1):
    (instance,) = couplings._instances(distributions, ONE_PAIR, n_instances)
    for pieces in couplings._candidates(instance, recipe):
        assert pieces.masses.min() >= 1
        assert int(pieces.masses.sum()) == instance.total
        for points, distribution in zip(instance.ends(pieces), distributions, strict=True):
            expected = probabilities(distribution.outputs, distribution.counts)
            assert probabilities(points, pieces.masses) == expected


def costs_of(recipe, squares):
    """The recipe's cost of each squared distance from its definition; `renyi` up to a factor."""
    if recipe.cost == "squared":
        return squares
    if recipe.cost == "renyi":
        return np.exp(recipe.rate * (squares - squares.max()))
    r, epsilon = np.sqrt(squares) / recipe.noise_std, recipe.epsilon
    far = np.exp(epsilon) * norm.cdf(-r / 2 - epsilon / r)
    return norm.cdf(r / 2 - epsilon / r) - far


def table_cost(recipe, tables):
    """The recipe's cost of an instance, the least over its couplings."""
    if recipe.cost == "squared":
        rows = np.add.reduceat(tables.masses * tables.gaps**2, tables.starts[:-1])
        return float(rows.min())
    if recipe.cost == "renyi":
        return float(tables.log_moments(recipe.rate, 0.0).min())
    epsilons = np.full((tables.n_instances, tables.n_slices), recipe.epsilon)
    return float(tables.deltas(epsilons, recipe.noise_std, 0.0).min())


class TestKnownAnswers:
    """Distances 1 and 2 with masses 3/4 and 1/4."""

    @pytest.mark.parametrize("counts", [[3, 1], [6, 2]])
    def test_one_table_three_claims(self, counts):
        distributions = [
            FiniteDistribution(outputs=[[0, 0], [10, 0]], counts=[3, 1]),
            FiniteDistribution(outputs=[[1, 0], [10, 2]], counts=counts),
        ]
        tables = coupling_tables(distributions, ONE_PAIR, Recipe())
        total = sum(counts)
        assert tables.totals.tolist() == [total]
        assert tables.gaps.tolist() == [2.0, 1.0] * tables.n_slices
        assert tables.counts.tolist() == [total // 4, 3 * total // 4] * tables.n_slices
        renyi = tables.log_moments(4 * 3 / (2 * 2.0**2), 0.0) / 3
        assert renyi == pytest.approx(1.54882977420058, rel=1e-12)
        for epsilon, delta in ((1.0, 0.0368563806139969), (0.0, 0.243790719161392)):
            at = np.full(renyi.shape, epsilon)
            assert tables.deltas(at, 2.0, 0.0) == pytest.approx(delta, rel=1e-12)

    def test_equal_distributions_have_a_zero_row(self, rng):
        first = FiniteDistribution.uniform(rng.normal(size=(5, 2)))
        twice = FiniteDistribution(outputs=first.outputs[::-1], counts=[2] * 5)
        other = FiniteDistribution.uniform(rng.normal(size=(5, 2)))
        pairs = [DistributionPair(0, 1), DistributionPair(0, 2)]
        tables = coupling_tables([first, twice, other], pairs, Recipe())
        assert tables.equal.tolist() == [True, False]
        assert tables.worst()[0].tolist() == [0.0] * tables.n_slices
        assert tables.worst()[1].min() > 0
        assert tables.totals.tolist() == [10, 5]
        tables.check()
        differences, masses = coupled_differences([first, twice], ONE_PAIR, Recipe(), 3)[0]
        assert (differences.tolist(), masses.tolist()) == ([[0.0, 0.0]], [1.0])

    def test_directions_belong_to_the_algorithm(self):
        """A new generator would find other couplings than those of certificates already issued."""
        expected = [
            [0.11342683764187757, 0.8576805795975168, -0.5015160773931686],
            [-0.9403656220703457, 0.10273092285590953, -0.3242820598143304],
        ]
        assert random_directions(SEED, 2, 3) == pytest.approx(np.array(expected), rel=1e-12)


class TestMarginals:
    @settings(max_examples=60)
    @given(st.data())
    def test_few_atoms(self, data):
        dim = data.draw(st.integers(1, 3))
        distributions = [data.draw(oracles.empirical_distributions(dim)) for _ in range(2)]
        check_marginals(distributions, data.draw(st.sampled_from(RECIPES)))

    @pytest.mark.parametrize("recipe", RECIPES)
    @pytest.mark.parametrize("sizes", [(60, 60), (60, 59), (90, 60), (7, 400), (400, 7), (1, 9)])
    def test_sizes(self, only_searches, sizes, recipe, rng):
        check_marginals(uniform_pair(rng, *sizes, 3), recipe)

    @pytest.mark.parametrize("recipe", RECIPES)
    def test_weights(self, only_searches, recipe, rng):
        for spread in (0.1, 1.0, 3.0):
            weights = np.exp(rng.normal(scale=spread, size=(2, 150)))
            outputs = np.round(rng.normal(size=(2, 150, 2)), 1)
            distributions = [
                FiniteDistribution.weighted(x, w / w.sum())
                for x, w in zip(outputs, weights, strict=True)
            ]
            check_marginals(distributions, recipe)

    @pytest.mark.parametrize("cost", ["squared", "renyi"])
    @pytest.mark.parametrize("sizes", [(61, 60), (40, 61), (300, 7)])
    def test_little_time_for_each_of_many(self, only_searches, sizes, cost, rng):
        recipe = Recipe(effort="quick", cost=cost, rate=0.7)
        check_marginals(uniform_pair(rng, *sizes, 3), recipe, n_instances=2**20)
        weights = [rng.integers(1, 9, size=n) for n in sizes]
        pair = [
            FiniteDistribution(outputs=rng.normal(size=(n, 3)), counts=counts)
            for n, counts in zip(sizes, weights, strict=True)
        ]
        check_marginals(pair, recipe, n_instances=2**20)

    def test_largest_totals(self, only_searches, rng):
        """The common denominator of coprime totals next to 2^31 is next to 2^62."""
        counts = [np.full(40, 2**31 // 40), np.full(40, 2**31 // 40)]
        counts[1][0] -= 1
        distributions = [
            FiniteDistribution(outputs=rng.normal(size=(40, 2)), counts=c) for c in counts
        ]
        check_marginals(distributions, RECIPES[1])

    @pytest.mark.parametrize("recipe", RECIPES)
    def test_mean_difference(self, recipe, rng):
        """Under any coupling the mean difference is the difference of the means."""
        distributions = uniform_pair(rng, 80, 50, 3)
        differences, masses = coupled_differences(distributions, ONE_PAIR, recipe, 10**6)[0]
        expected = distributions[0].mean - distributions[1].mean
        assert masses @ differences == pytest.approx(expected, abs=1e-12)


class TestNearTheBest:
    @pytest.mark.soundness
    @pytest.mark.parametrize("recipe", RECIPES)
    @pytest.mark.parametrize("dim", [2, 6])
    def test_assignment_is_the_best(self, recipe, dim, rng):
        distributions = uniform_pair(rng, 120, 120, dim)
        best = self.optimum(recipe, distributions)
        cost = table_cost(recipe, coupling_tables(distributions, ONE_PAIR, recipe))
        # A table holds distances rounded up to this many binary digits.
        raised = self.optimum(recipe, distributions, raised=1 + 2.0**-FINEST_DIGITS)
        assert best * (1 - 1e-9) <= cost <= raised * (1 + 1e-9)

    @pytest.mark.soundness
    @pytest.mark.parametrize("recipe", RECIPES[:4])
    @pytest.mark.parametrize("dim", [2, 6])
    def test_searches_come_close(self, only_searches, recipe, dim, rng):
        """In most draws; a search in blocks of 8 may miss the best partner of a far atom."""
        ratios = []
        for _ in range(5):
            distributions = uniform_pair(rng, 400, 400, dim)
            cost = table_cost(recipe, coupling_tables(distributions, ONE_PAIR, recipe))
            ratios.append(cost / self.optimum(recipe, distributions))
        assert min(ratios) >= 1 - 1e-9
        assert np.median(ratios) <= 1.1

    @staticmethod
    def optimum(recipe, distributions, *, raised=1.0):
        """The cost of the best coupling, or of the same one with all its distances raised."""
        squares = cdist(*(d.outputs for d in distributions), "sqeuclidean")
        best = linear_sum_assignment(costs_of(recipe, squares))
        coupled = squares[best] * raised**2
        if recipe.cost == "renyi":
            return float(logsumexp(recipe.rate * coupled) - np.log(len(squares)))
        return float(costs_of(recipe, coupled).mean())

    @pytest.mark.parametrize("sizes", [(12, 12), (12, 8), (9, 7)])
    def test_transport_is_the_best(self, sizes, rng):
        for _ in range(20):
            n, m = sizes
            supplies = rng.multinomial(100, np.full(n, 1 / n))
            demands = rng.multinomial(100, np.full(m, 1 / m))
            costs = np.round(rng.exponential(size=sizes), 1)
            flows, room = np.empty((2, m, n), dtype=np.int64)
            transport(costs, supplies, demands, flows, room)
            assert flows.sum(axis=0).tolist() == supplies.tolist()
            assert flows.sum(axis=1).tolist() == demands.tolist()
            rows = [np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))]
            expected = linprog(
                costs.ravel(), A_eq=np.vstack(rows), b_eq=np.append(supplies, demands)
            ).fun
            assert (costs * flows.T).sum() == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize("n", [3, 40])
    def test_least_worst_distance(self, n, rng):
        distributions = uniform_pair(rng, n, n, 2)
        tables = coupling_tables(distributions, ONE_PAIR, Recipe())
        assert tables.worst().min() == pytest.approx(w_infinity(*distributions), rel=1e-12)

    @pytest.mark.parametrize("recipe", RECIPES[:4])
    def test_never_above_a_monotone_coupling(self, only_searches, recipe, rng):
        stretched = rng.normal(size=(300, 4)) * [100.0, 1.0, 0.01, 1.0]
        pairs = [
            uniform_pair(rng, 100, 70, 4),
            [FiniteDistribution.uniform(x) for x in (stretched[:150], stretched[150:] + 0.5)],
        ]
        for distributions in pairs:
            monotone = oracles.matching_tables(distributions, ONE_PAIR, np.eye(4))
            ours = coupling_tables(distributions, ONE_PAIR, recipe)
            assert table_cost(recipe, ours) <= table_cost(recipe, monotone) * 1.01

    def test_unequal_sizes_cost_little_more_than_equal_ones(self, rng):
        """Of much data, for which a quick search has one round; 3,000 and 2,900 atoms."""
        first, second = uniform_pair(rng, 3_000, 3_000, 4)
        fewer = FiniteDistribution.uniform(second.outputs[:2_900])
        recipe = Recipe(effort="quick", cost="renyi", rate=0.3)
        equal, unequal = (
            table_cost(recipe, coupling_tables([first, b], ONE_PAIR, recipe, n_instances=2**20))
            for b in (second, fewer)
        )
        assert unequal < 1.25 * equal

    def test_few_distinct_atoms_are_exact(self, rng):
        """0/1 columns: thousands of rows, at most eight atoms, by a linear program."""
        samples = [rng.random((n, 3)) < p for n, p in ((3000, 0.3), (1999, 0.6))]
        distributions = [FiniteDistribution.uniform(x.astype(float)) for x in samples]
        tables = coupling_tables(distributions, ONE_PAIR, Recipe())
        atoms, masses = zip(*(d.reduced() for d in distributions), strict=True)
        rows = [np.kron(np.eye(8), np.ones(8)), np.kron(np.ones(8), np.eye(8))]
        shares = np.concatenate([m / m.sum() for m in masses])
        best = linprog(cdist(*atoms, "sqeuclidean").ravel(), A_eq=np.vstack(rows), b_eq=shares).fun
        assert best * (1 - 1e-9) <= table_cost(Recipe(), tables) <= best * 1.01


@pytest.mark.parametrize(
    "recipe",
    [Recipe(cost="renyi", rate=0.1, noise_std=0.5), Recipe(cost="delta", epsilon=2, noise_std=0.5)],
)
def test_the_guess_has_a_coupling_of_its_own(recipe, rng):
    samples = rng.normal(size=(40, 2)), rng.normal(0.5, 2.0, size=(40, 2))
    distances = cdist(*samples)
    variations = 2 * norm.cdf(distances / (2 * recipe.noise_std)) - 1
    best = variations[linear_sum_assignment(variations)].mean()
    distributions = [FiniteDistribution.uniform(x) for x in samples]
    tables = coupling_tables(distributions, ONE_PAIR, recipe)
    found = tables.deltas(np.zeros((1, tables.n_slices)), recipe.noise_std, 0.0)[0]
    assert tables.n_slices == 4
    # Distances are rounded up to eight binary digits.
    assert best <= found[3] <= best * 1.005
    assert found[:3].min() > best * 1.02


def test_the_guess_needs_a_noise_for_a_coupling_of_its_own(rng):
    distributions = uniform_pair(rng, 40, 40, 2)
    for recipe in (Recipe(), Recipe(cost="renyi", rate=0.1), Recipe(cost="guess", noise_std=0.5)):
        assert coupling_tables(distributions, ONE_PAIR, recipe).n_slices == 3


def test_same_couplings_on_any_number_of_cores(only_searches, monkeypatch, rng):
    distributions = [FiniteDistribution.uniform(rng.normal(k, 1, size=(90, 3))) for k in range(4)]
    pairs = [DistributionPair(a, b) for a, b in itertools.combinations(range(4), 2)]
    results, calls = [], []
    for cores in (1, 2, 5):
        monkeypatch.setattr(threads, "n_cores", lambda cores=cores: cores)
        recipe = RECIPES[1]
        tables = coupling_tables(
            distributions, pairs, recipe, lambda done, total: calls.append((done, total))
        )
        results.append((tables.gaps.tobytes(), tables.counts.tobytes(), tables.starts.tobytes()))
    assert results[0] == results[1] == results[2]
    assert calls[:6] == [(k, 6) for k in range(1, 7)]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e90, 1e140])
def test_any_scale(only_searches, recipe, scale, rng):
    samples = rng.normal(size=(2, 40, 2)) * scale
    distributions = [FiniteDistribution.uniform(x) for x in samples]
    check_marginals(distributions, recipe)
    tables = coupling_tables(distributions, ONE_PAIR, recipe)
    tables.check()
    assert scale / 100 < tables.worst().min() < scale * 100


class TestDifferences:
    def test_few_stand_for_many(self, rng):
        distributions = uniform_pair(rng, 500, 500, 3, shift=2.0)
        everything = coupled_differences(distributions, ONE_PAIR, Recipe(), 500)[0]
        few, masses = coupled_differences(distributions, ONE_PAIR, Recipe(), 60)[0]
        assert few.shape == (60, 3)
        assert masses.sum() == pytest.approx(1, rel=1e-12)
        lengths = np.sort((everything[0] ** 2).sum(axis=1))
        assert np.sort((few[:30] ** 2).sum(axis=1)) == pytest.approx(lengths[-30:])
        moments = [(d * m[:, None]).T @ d for d, m in (everything, (few, masses))]
        assert moments[0] == pytest.approx(moments[1], rel=0.15, abs=0.1)

    def test_one_is_enough(self, rng):
        differences, masses = coupled_differences(
            uniform_pair(rng, 20, 10, 2), ONE_PAIR, Recipe(), 1
        )[0]
        assert differences.shape == (1, 2)
        assert masses.tolist() == pytest.approx([1.0])


def built(distributions, recipe=RECIPES[0]):
    tables = coupling_tables(distributions, ONE_PAIR, recipe)
    return Full(dim=distributions[0].dim, differences=tables)


@pytest.mark.parametrize("dim", [1, 2, 9])
def test_point_masses(dim, rng):
    """order * distance^2 / (2 sigma^2), for every coupling."""
    shift = rng.normal(size=dim)
    distributions = [
        FiniteDistribution.uniform([np.zeros(dim)]),
        FiniteDistribution.uniform([shift]),
    ]
    full = built(distributions)
    assert full.divergence(4.0, 1.5) == pytest.approx(4 * shift @ shift / (2 * 1.5**2), rel=1e-10)
    assert full.differences.worst() == pytest.approx(np.linalg.norm(shift), rel=1e-14)


def test_pure_shift_costs_dim_times_the_average(rng):
    """A moved sample: the best coupling matches each point with its own image."""
    sample, shift = rng.normal(size=(30, 4)), rng.normal(size=4)
    distributions = [FiniteDistribution.uniform(sample), FiniteDistribution.uniform(sample + shift)]
    full = built(distributions)
    along_axes = 3 * shift**2 / (2 * 2.0**2)
    assert full.divergence(3.0, 2.0) == pytest.approx(4 * along_axes.mean(), rel=1e-10)


def test_on_the_line_it_is_the_transport_bound(rng):
    distributions = [FiniteDistribution.uniform(rng.integers(-9, 9, size=(n, 1))) for n in (6, 10)]
    full = built(distributions)
    (gaps,) = oracles.true_gap_distributions(distributions, ONE_PAIR, [[1.0]])[0]
    expected = float(oracles.envelope("transport", 3.0, gaps, 4.0))
    assert full.divergence(3.0, 4.0) == pytest.approx(expected, rel=0.008)
    assert full.divergence(3.0, 4.0) >= expected * (1 - 1e-12)
    assert full.differences.n_slices == 1


@pytest.mark.soundness
@pytest.mark.parametrize("order", [1.5, 2.0, 3.0])
def test_never_below_the_true_divergence(order, rng):
    """Densities of both noisy samples in the plane, both orders of the pair."""
    for _ in range(5):
        samples = oracles.random_samples(rng, 2)
        distributions = [FiniteDistribution.uniform(x) for x in samples]
        noise_std = float(rng.uniform(0.8, 2.5))
        own = Recipe(cost="renyi", rate=order * (order - 1) / 2 / noise_std**2)
        bound = min(built(distributions, r).divergence(order, noise_std) for r in (Recipe(), own))
        for pair in (samples, samples[::-1]):
            assert oracles.divergence_on_grid(order, *pair, noise_std) <= bound + 1e-9
