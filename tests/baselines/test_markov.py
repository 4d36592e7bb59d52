# SPDX-License-Identifier: Apache-2.0
"""The Markov Quilt mechanism and its neighbours, against sums over all paths."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from scipy.stats import laplace, norm

from pufferslice import Guarantee, Scenario, certify_release
from pufferslice.baselines import markov_noise
from pufferslice.queries import summary

CHAINS = {
    "sticky": [[0.9, 0.1], [0.2, 0.8]],
    "quick": [[0.4, 0.6], [0.5, 0.5]],
    "three": [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5]],
}


def paths(chain, length):
    """Every path of the stationary chain and its probability."""
    chain = np.array(chain)
    values, vectors = np.linalg.eig(chain.T)
    start = np.real(vectors[:, np.argmax(np.real(values))])
    start = start / start.sum()
    for path in product(range(len(chain)), repeat=length):
        yield path, start[path[0]] * math.prod(chain[a, b] for a, b in pairwise(path))


def brute_force_scale(chain, length, epsilon):
    every = list(paths(chain, length))
    worst = 0.0
    for i in range(length):
        scores = [length / epsilon]
        for left, right in product([None, *range(i)], [None, *range(i + 1, length)]):
            quilt = [time for time in (left, right) if time is not None]
            if not quilt:
                continue
            joint = {}
            for path, p in every:
                key = (path[i], tuple(path[time] for time in quilt))
                joint[key] = joint.get(key, 0.0) + p
            own = {x: sum(p for (y, _), p in joint.items() if y == x) for x in range(len(chain))}
            influence = max(
                math.log(joint[x, q] / own[x] / (joint[y, q] / own[y]))
                for x in own
                for y in own
                for q in {q for _, q in joint}
            )
            first, last = -1 if left is None else left, length if right is None else right
            if influence < epsilon:
                scores.append((last - first - 1) / (epsilon - influence))
        worst = max(worst, min(scores))
    return worst


def count_distributions(chain, length):
    """Of the count of state 1 given each state at each position, by a sum over all paths."""
    every = list(paths(chain, length))
    for position in range(length):
        given = np.zeros((len(chain), length + 1))
        for path, p in every:
            given[path[position], path.count(1)] += p
        yield given / given.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_the_scale_against_brute_force(name, epsilon):
    chain = CHAINS[name]
    expected = brute_force_scale(chain, 5, epsilon)
    noise = markov_noise(chain, length=5, epsilon=epsilon, delta=1e-5)
    assert noise.quilt == pytest.approx(math.sqrt(2) * expected, rel=1e-9)


def test_a_weak_claim_may_need_no_noise():
    chain, right = CHAINS["quick"], 1 / (1 + math.exp(-4.0))
    for given in count_distributions(chain, 5):
        assert (1 + np.abs(given[0] - given[1]).sum() / 2) / 2 < right
    assert markov_noise(chain, length=5, epsilon=4.0, delta=1e-5).guess == 0
    assert markov_noise(chain, length=5, epsilon=2.0, delta=1e-5).guess > 0


def test_independent_steps():
    noise = markov_noise([[0.5, 0.5], [0.5, 0.5]], length=20, epsilon=1.0, delta=1e-5)
    # One step counts for one: Laplace of scale 1, and the analytic Gaussian mechanism.
    assert noise.quilt == pytest.approx(math.sqrt(2), rel=1e-9)
    assert noise.pair == pytest.approx(3.730631634, rel=1e-8)
    assert norm.cdf(1 / (2 * noise.guess)) == pytest.approx(math.e / (1 + math.e), rel=1e-9)
    assert noise.group == pytest.approx(20 * math.sqrt(2))


@pytest.mark.soundness
@pytest.mark.parametrize("name", CHAINS)
def test_every_promise_holds(name):
    length, epsilon, delta = 6, 1.0, 1e-3
    noise = markov_noise(CHAINS[name], length=length, epsilon=epsilon, delta=delta)
    grid = np.linspace(-60, 60 + length, 24_001)
    cell = grid[1] - grid[0]

    def outputs(kernel, scale):
        densities = np.stack([kernel.pdf(grid, loc=k, scale=scale) for k in range(length + 1)])
        return (given @ densities for given in count_distributions(CHAINS[name], length))

    for given in outputs(laplace, noise.quilt / math.sqrt(2)):
        assert np.log(given.max(axis=0) / given.min(axis=0)).max() <= epsilon + 1e-9
    for given in outputs(norm, noise.pair):
        for p, q in product(given, given):
            assert np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell <= delta + 1e-9
    for given in outputs(norm, noise.guess):
        for p, q in product(given, given):
            right = (1 + np.abs(p - q).sum() * cell / 2) / 2
            assert right <= math.e / (1 + math.e) + 1e-9


def test_ours_is_the_noise_that_is_certified():
    chain, length = CHAINS["sticky"], 10
    noise = markov_noise(chain, length=length, epsilon=1.0, delta=1e-5)
    scenario = Scenario.from_occupancy(
        chain, length=length, positions=range(length), query=summary(count={"state": 1})
    )
    guess = certify_release(scenario, Guarantee.guess(at_most=math.e / (1 + math.e)))
    assert guess.noise_std == pytest.approx(noise.guess, rel=1e-3)
    pair = certify_release(scenario, Guarantee.epsilon_delta(1.0, 1e-5))
    assert pair.noise_std == pytest.approx(noise.pair, rel=1e-3)
