# SPDX-License-Identifier: Apache-2.0
"""General and distribution-aware Wasserstein mechanisms, Laplace mechanisms, group privacy."""

import itertools
import math

import numpy as np
import ot
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from scipy.optimize import linprog

from pufferslice import FiniteDistribution, Guarantee
from pufferslice.baselines import (
    dagwm_cost,
    dagwm_noise_std,
    full_sensitivity,
    group_noise_std,
    group_sensitivity,
    gwm_noise_std,
    laplace_envelope,
    laplace_renyi_scale,
    laplace_scale,
    w_infinity,
)
from pufferslice.baselines.wasserstein import shift_noise_std
from pufferslice.queries import summary
from pufferslice.sensitivity import DistributionPair, gap_tables
from pufferslice.sensitivity.renyi import gaussian_envelope, transport_envelope

RPP = Guarantee.unsliced(order=4, epsilon=1.0)
SPIKE = (
    FiniteDistribution.uniform([[0.0], [0.0], [0.0], [10.0]]),
    FiniteDistribution.uniform([[0.0], [0.0], [0.0], [0.0]]),
)


def distribution(rng, n, dim, shift=0.0):
    return FiniteDistribution.uniform(rng.normal(size=(n, dim)) + shift)


def weighted(rng, n, dim, shift=0.0):
    counts = rng.integers(1, 6, size=n)
    return FiniteDistribution(outputs=rng.normal(size=(n, dim)) + shift, counts=counts)


def table(first, second):
    return np.linalg.norm(first.outputs[:, None] - second.outputs[None], axis=2)


def least_moment(first, second, rate):
    """The infimum over couplings of E exp(rate d^2), by a linear program."""
    costs = np.exp(rate * table(first, second) ** 2)
    supply, demand = first.counts / first.total, second.counts / second.total
    n, m = costs.shape
    marginals = np.vstack([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    solved = linprog(costs.ravel(), A_eq=marginals, b_eq=np.concatenate([supply, demand]))
    assert solved.status == 0
    return solved.fun


def test_known_general_noise():
    """3-4-5: variance 4 * 25 / 2."""
    first = FiniteDistribution.uniform([[0.0, 0.0], [3.0, 4.0]])
    second = FiniteDistribution.uniform([[0.0, 0.0]])
    assert full_sensitivity([(first, second)]) == 5
    assert gwm_noise_std([(first, second)], RPP) ** 2 == pytest.approx(50, rel=1e-14)


@pytest.mark.soundness
@given(st.floats(1e-6, 1e6), st.floats(1.01, 100), st.floats(1e-4, 1e3))
def test_general_noise_never_overspends_and_wastes_nothing(sensitivity, order, epsilon):
    target = Guarantee.unsliced(order=order, epsilon=epsilon)
    noise_std = shift_noise_std(sensitivity, target)
    assert gaussian_envelope(order, sensitivity, noise_std) <= epsilon
    assert gaussian_envelope(order, sensitivity, noise_std * (1 - 1e-12)) > epsilon


@pytest.mark.parametrize("q", [1.0, 1.5, 3.0])
def test_known_answer_of_dagwm(q):
    """One coupling only: (1/a) ln(3/4 + exp(a (a + 1) 100 / (2 s^2)) / 4) = 1 with a = q.

    At q = 1 the variance is 100 / ln(4e - 3) by transport, and 100 by the worst gap.
    """
    a, target = mp.mpf(q), Guarantee.unsliced(order=2, epsilon=1.0)
    known = 50 * a * (a + 1) / mp.log(4 * mp.exp(a) - 3)
    assert dagwm_noise_std([SPIKE], target, q) ** 2 == pytest.approx(float(known), rel=1e-10)
    assert gwm_noise_std([SPIKE], target) ** 2 == pytest.approx(100, rel=1e-14)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 3))
def test_dagwm_cost_against_all_permutations(seed, n, dim):
    rng = np.random.default_rng(seed)
    first, second = distribution(rng, n, dim), distribution(rng, n, dim, shift=0.5)
    costs = table(first, second)
    least = min(
        transport_envelope(4, costs[np.arange(n), list(columns)], np.full(n, 1 / n), 2.0)
        for columns in itertools.permutations(range(n))
    )
    assert dagwm_cost((first, second), 4, 2.0) == pytest.approx(least, rel=1e-10)


@pytest.mark.parametrize("make", [distribution, weighted])
@pytest.mark.parametrize(("n", "m"), [(9, 9), (9, 6), (1, 8)])
@pytest.mark.parametrize("noise_std", [1.5, 4.0, 40.0])
def test_dagwm_cost_against_a_linear_program(rng, make, n, m, noise_std):
    first, second = make(rng, n, 2), make(rng, m, 2, shift=0.7)
    q, order = 1.5, 3.0
    a = q * (order - 1)
    known = math.log(least_moment(first, second, a * (a + 1) / (2 * noise_std**2))) / a
    assert dagwm_cost((first, second), order, noise_std, q) == pytest.approx(known, rel=1e-5)


@pytest.mark.soundness
@pytest.mark.parametrize("make", [distribution, weighted])
@pytest.mark.parametrize(("n", "m"), [(40, 40), (40, 25)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_dagwm_noise_is_the_smallest_that_meets_the_target(rng, make, n, m, epsilon):
    couple = make(rng, n, 3), make(rng, m, 3, shift=0.5)
    target = Guarantee.unsliced(order=4, epsilon=epsilon)
    noise_std = dagwm_noise_std([couple], target)
    # The coupling behind the noise meets epsilon; the one found here is optimal to POT's rounding.
    assert dagwm_cost(couple, 4, noise_std) <= epsilon * (1 + 1e-9)
    assert dagwm_cost(couple, 4, noise_std * (1 - 1e-9)) > epsilon
    assert noise_std < gwm_noise_std([couple], target) * (1 + 1e-9)


@pytest.mark.parametrize("noise_std", [gwm_noise_std, dagwm_noise_std])
def test_noise_takes_the_worst_instance(rng, noise_std):
    near, far = (
        (distribution(rng, 20, 3), distribution(rng, 20, 3, shift=shift)) for shift in (0, 2)
    )
    assert noise_std([near], RPP) < noise_std([far], RPP) == noise_std([near, far], RPP)


@pytest.mark.parametrize("size", [1e-160, 1e145])
def test_noise_scales_with_the_query(rng, size):
    first, second = distribution(rng, 12, 2), distribution(rng, 12, 2, shift=1.0)
    scaled = (
        FiniteDistribution.uniform(first.outputs * size),
        FiniteDistribution.uniform(second.outputs * size),
    )
    for noise_std in (gwm_noise_std, dagwm_noise_std):
        known = noise_std([(first, second)], RPP) * size
        assert noise_std([scaled], RPP) == pytest.approx(known, rel=1e-9)


def test_equal_distributions_need_no_noise(rng):
    first = distribution(rng, 10, 2)
    again = FiniteDistribution.uniform(np.repeat(first.outputs, 2, axis=0))
    assert gwm_noise_std([(first, again)], RPP) == 0
    assert dagwm_noise_std([(first, again)], RPP) == 0
    assert dagwm_cost((first, again), 4, 1.0) == 0


def test_known_laplace_scale():
    assert laplace_scale([SPIKE], 2.0) == 5.0
    shorter = FiniteDistribution.uniform([[0.0]]), FiniteDistribution.uniform([[3.0]])
    assert laplace_scale([shorter, SPIKE], 0.5) == 20.0


@pytest.mark.soundness
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_laplace_noise_never_overspends(far, epsilon):
    couple = FiniteDistribution.uniform([[0.0]]), FiniteDistribution.uniform([[far]])
    scale = laplace_scale([couple], epsilon)
    assert scale * epsilon >= far
    assert scale * epsilon <= far * (1 + 1e-15) * (1 + 1e-15)


def laplace_divergence(order: float, shift: float, scale: float) -> float:
    def integrand(x: mp.mpf) -> mp.mpf:
        return mp.exp((-order * abs(x - shift) + (order - 1) * abs(x)) / scale) / (2 * scale)

    moment = mp.quad(integrand, [-mp.inf, 0, shift, mp.inf])
    return float(mp.log(moment) / (order - 1))


@pytest.mark.parametrize("order", [1.1, 2.0, 16.0])
@pytest.mark.parametrize("shift", [1e-3, 0.7, 20.0])
def test_the_laplace_envelope_is_the_divergence_by_quadrature(order: float, shift: float):
    found = float(laplace_envelope(order, shift, 1.3))
    assert found == pytest.approx(laplace_divergence(order, shift, 1.3), rel=1e-9, abs=1e-13)
    assert found <= shift / 1.3
    assert float(laplace_envelope(order, -shift, 1.3)) == found
    assert float(laplace_envelope(order, shift * 0.9, 1.3)) < found
    assert laplace_envelope(order, 0.0, 1.0) == 0


def test_the_laplace_scale_meets_the_target_and_is_below_the_pure_one():
    couples = [
        (FiniteDistribution.uniform([[0.0], [1.0]]), FiniteDistribution.uniform([[2.0], [5.0]]))
    ]
    for epsilon in (0.01, 1.0, 30.0):
        target = Guarantee.unsliced(order=4, epsilon=epsilon)
        scale = laplace_renyi_scale(couples, target)
        assert laplace_divergence(4, 4.0, scale) == pytest.approx(epsilon, rel=1e-6)
        assert float(laplace_envelope(4, 4.0, scale)) <= epsilon
        assert scale < laplace_scale(couples, epsilon)
    same = FiniteDistribution.uniform([[1.0]])
    assert laplace_renyi_scale([(same, same)], target) == 0
    assert math.isfinite(float(laplace_envelope(4, 1e6, 1.0)))
    assert np.all(np.diff(laplace_envelope(4, np.linspace(0, 9, 50), 1.0)) > 0)


@pytest.mark.parametrize(("n", "m"), [(50, 50), (50, 33)])
def test_ding_is_song_on_the_line(rng, n, m):
    """The largest move of POT's optimal plan of the 1-Wasserstein distance is W-infinity."""
    first, second = distribution(rng, n, 1), distribution(rng, m, 1, shift=0.8)
    plan = ot.emd_1d(first.outputs[:, 0], second.outputs[:, 0], metric="cityblock", dense=False)
    moved = plan.data > 0
    ding = np.abs(first.outputs[plan.row[moved], 0] - second.outputs[plan.col[moved], 0]).max()
    assert laplace_scale([(first, second)], 1.0) == pytest.approx(ding, rel=1e-12)
    assert w_infinity(first, second) == pytest.approx(ding, rel=1e-12)
    worst = gap_tables([first, second], [DistributionPair(0, 1)], np.ones((1, 1))).worst()[0, 0]
    assert laplace_scale([(first, second)], 2.0) == worst / 2


def test_group_privacy_is_the_shift_formula():
    assert group_noise_std(5.0, RPP) ** 2 == pytest.approx(50, rel=1e-14)


def test_group_sensitivity_is_the_most_that_one_group_can_move_a_query():
    """Every replacement of every group by extreme rows, through the query itself."""
    sizes, low, high = [2, 1], 10.0, 25.0
    rows = list(itertools.product((low, high), ("no", "yes")))
    query = summary(mean=["age"], rate={"ill": "yes"}).with_scales([4.0, 0.5])
    totals = summary(total=["age"], count={"ill": "yes"}).with_scales([4.0, 0.5])
    tables = [
        pa.table({"age": [row[0] for row in three], "ill": [row[1] for row in three]})
        for three in itertools.product(rows, repeat=3)
    ]
    for some_query, divisors in ((query, [3, 3]), (totals, [1, 1])):
        outputs = np.array([some_query.outputs(table)[0] for table in tables])
        outputs = (outputs / some_query.scales).reshape(16, 4, 2)  # first group, second, output
        replaced = [
            np.linalg.norm(outputs[:, None] - outputs[None], axis=3).max(),
            np.linalg.norm(outputs[:, :, None] - outputs[:, None], axis=3).max(),
        ]
        bound = group_sensitivity(
            [high - low, 1.0], divisors=divisors, scales=some_query.scales, group_sizes=sizes
        )
        assert max(replaced) <= bound == pytest.approx(max(replaced), rel=1e-9)
