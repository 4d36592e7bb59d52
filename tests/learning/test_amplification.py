# SPDX-License-Identifier: Apache-2.0
"""The amplified divergence: known answers, 40-digit quadrature, and no gradients that exceed it."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

from pufferslice.learning import amplification
from pufferslice.learning.amplification import (
    RELATIVE_ERROR,
    amplified_by_count,
    amplified_divergence,
    amplified_divergences,
)
from pufferslice.learning.sampling import Poisson

HP = mp.clone()
HP.dps = 40

KNOWN = [
    ((2, 1, 0.1, 1), 0.0408272790240896),
    ((4, 2, 0.1, 2), 0.0797833947480583),
    ((8, 3, 0.05, 3), 0.0402518578122349),
    ((16, 8, 0.01, 20), 0.0200009817479189),
    ((16, 4, 0.01, 20), 101.957391276349),
]


def binomial_distribution(rate, n_differing):
    return Poisson(n_records=n_differing, rate=rate).discrepancy_log_probabilities(n_differing)


def integrated(order, z, rate, d, *, swapped=False, reach=None):
    """D_order(P || Q), or of the swapped pair, by Gauss-Legendre panels in 40 digits.

    What is integrated is Q f(P/Q) with f(x) = x^order - 1 - order (x - 1). A scan in floats, much
    finer than the noise, says which panels are within e^-75 of the largest.
    """
    a, s, q = HP.mpf(order), HP.mpf(z), HP.mpf(rate)
    weights = [HP.binomial(d, k) * q**k * (1 - q) ** (d - k) for k in range(d + 1)]
    sign = -1 if swapped else 1

    def mixture(x):
        return HP.fsum(
            w * HP.exp((k * x - HP.mpf(k * k) / 2) / s**2) for k, w in enumerate(weights)
        )

    def integrand(x):
        low = mixture(-sign * x)
        ratio = mixture(sign * x) / low
        return HP.npdf(x, 0, s) * low * (ratio**a - 1 - a * (ratio - 1))

    edges = panel_edges(order, z, d, reach)
    logs = [float(HP.log(w)) if w else -math.inf for w in weights]
    heights = scanned(order, z, np.array(logs), sign * edges)
    matter = np.maximum(heights[1:], heights[:-1]) > heights.max() - 75
    total = HP.fsum(
        HP.quad(integrand, [HP.mpf(edges[i]), HP.mpf(edges[i + 1])], maxdegree=4)
        for i in np.flatnonzero(matter)
    )
    return HP.log1p(total) / (a - 1)


def panel_edges(order, z, d, reach):
    reach = (2 * order + 1) * d + 14 * z if reach is None else reach
    width = 2 * z / (1 + math.sqrt(order * d) / (2 * z))
    return np.linspace(-reach, reach, math.ceil(2 * reach / width) + 1)


def scanned(order, z, logs, x):
    """Logs of P^order Q^(1 - order), up to a constant, from floats of extended precision."""
    logs, x = logs.astype(np.longdouble), x.astype(np.longdouble)
    k = np.arange(len(logs)).astype(np.longdouble)
    order, z = np.longdouble(order), np.longdouble(z)
    heights = -(x**2) / (2 * z**2)
    for sign, power in ((1, order), (-1, 1 - order)):
        terms = logs + (sign * x[:, None] * k - k**2 / 2) / z**2
        top = terms.max(axis=1)
        heights += power * (top + np.log(np.exp(terms - top[:, None]).sum(axis=1)))
    return heights


def summed(order, z, rate, d, *, step):
    """ln H / (order - 1) as one plain sum over the whole line, in extended precision."""
    reach = (2 * order + 1) * d + 14 * z
    points = np.arange(-math.ceil(reach / step), math.ceil(reach / step) + 1) * step
    distribution = [
        HP.log(HP.binomial(d, k)) + k * HP.log(HP.mpf(rate)) + (d - k) * HP.log1p(-HP.mpf(rate))
        for k in range(d + 1)
    ]
    logs = np.array(
        [np.longdouble(float(v)) + np.longdouble(float(v - float(v))) for v in distribution]
    )
    pieces = np.array_split(points, len(points) * d // 500_000 + 1)
    heights = np.concatenate([scanned(order, z, logs, piece) for piece in pieces])
    top = heights.max()
    log_sum = np.log(np.exp(heights - top).sum() * step / (z * np.sqrt(2 * np.longdouble(math.pi))))
    return float((top + log_sum) / (np.longdouble(order) - 1))


class TestKnownAnswers:
    @pytest.mark.soundness
    @pytest.mark.parametrize(("case", "answer"), KNOWN)
    def test_one_step(self, case, answer):
        assert answer <= amplified_divergence(*case) <= answer * (1 + 1e-11)

    @given(
        order=st.floats(1.01, 256), z=st.floats(0.3, 1e4), d=st.integers(1, 50), n=st.integers(1, 3)
    )
    def test_a_rate_of_one_is_a_shift(self, order, z, d, n):
        z = np.array([z * k for k in range(1, n + 1)])
        costs = amplified_divergences(order, z, binomial_distribution(1.0, d))
        assert costs == pytest.approx(2 * order * d**2 / z**2, rel=1e-11)

    def test_limits(self):
        """Little noise: a shift by D against count 0, not by 2 D. Much noise: that of the means."""
        assert amplified_divergence(4, 1.0, 0.5, 0) == 0.0
        order, rate, d = 4, 0.2, 7
        little, much = (amplified_divergence(order, z, rate, d) for z in (1e-3, 1e12))
        assert little == pytest.approx(order * d**2 / (2 * 1e-3**2), rel=1e-5)
        assert much == pytest.approx(2 * order * (rate * d) ** 2 / 1e12**2, rel=1e-10)

    @pytest.mark.soundness
    @pytest.mark.parametrize("rate", [1e-20, 1e-27, 1e-30, 1e-60])
    @pytest.mark.parametrize("d", [1, 3, 300])
    @pytest.mark.parametrize("z", [1.0, 3.0, 100.0])
    def test_rare_records(self, rate, d, z):
        """2 alpha (D q)^2 sinh(1 / z^2), unless many records drawn at once cost more."""
        known = 2 * 4 * (d * rate) ** 2 * math.sinh(1 / z**2)
        cost = amplified_divergence(4, z, rate, d)
        assert cost >= known
        if d < 300 or z == 100:
            assert cost <= known * (1 + 1e-9)
        together = amplified_by_count(4, z, Poisson(n_records=500, rate=rate), np.array([d, d + 1]))
        assert together[0] == pytest.approx(cost, rel=1e-9)


class TestAgainstQuadrature:
    @pytest.mark.soundness
    @pytest.mark.parametrize(
        "case",
        [
            (1.01, 0.3, 0.05, 1),
            (1.01, 10_000, 0.3, 2),
            (1.1, 2.5, 0.0003, 1),
            (1.5, 0.7, 0.2, 2),
            (2, 1.0, 0.013, 5),
            (4, 20, 0.5, 8),
            (16, 570, 0.005, 20),
            (64, 0.6, 0.13, 3),
            (256, 4.6, 0.056, 2),
            (256, 10_000, 0.06, 2),
        ],
    )
    def test_agrees_from_above(self, case):
        truth = integrated(*case)
        ours = HP.mpf(amplified_divergence(*case))
        assert truth <= ours <= truth * (1 + 1e-11)
        assert float(ours / truth - 1 - RELATIVE_ERROR) == pytest.approx(0, abs=5e-13)

    @pytest.mark.soundness
    @pytest.mark.parametrize(
        "case", [(1e5, 100.0, math.exp(-10), 2), (1e6, 200.0, math.exp(-12.5), 1)]
    )
    def test_a_far_mode_of_a_huge_order_is_bounded_with_its_rounding(self, case):
        """Exponents of 1e7 cancel to a few nats; their rounding, 1e-9, is in the cost."""
        truth = integrated(*case)
        ours = HP.mpf(amplified_divergence(*case))
        assert truth <= ours <= truth * (1 + 1e-6)

    @pytest.mark.parametrize("case", [(2, 1, 0.1, 1), (1.5, 0.7, 0.2, 2)])
    def test_both_orders_of_the_pair_are_equal(self, case):
        ours = amplified_divergence(*case)
        assert float(integrated(*case)) == pytest.approx(ours, rel=1e-11)
        assert float(integrated(*case, swapped=True)) == pytest.approx(ours, rel=1e-11)

    @pytest.mark.parametrize(
        ("case", "step"),
        [
            ((16, 60.0, 0.01, 1000), 20.0),
            ((4, 50.0, 0.5, 1000), 10.0),
            ((256, 100.0, 0.01, 200), 20.0),
            ((64, 0.3, 0.3, 5), 0.01),
        ],
    )
    def test_many_records_and_little_noise(self, case, step):
        ours = amplified_divergence(*case)
        assert ours / (1 + RELATIVE_ERROR) == pytest.approx(summed(*case, step=step), rel=1e-12)


def test_an_order_too_large_for_floats_costs_infinitely_much_or_enough():
    """Of one record: at least the cost of its own component beside the sum of all others."""
    order, rate = 2.0**63, 0.1
    for multiplier in (1.0, 1e6, 1e9):
        least = order / (2 * multiplier**2) + math.log(rate)
        assert amplified_divergence(order, multiplier, rate, 1) >= least


class TestTheSum:
    def test_many_multipliers_at_once_are_as_good_as_one(self, rng):
        z = np.exp(rng.uniform(np.log(0.3), np.log(1e4), 300))
        distribution = binomial_distribution(0.02, 12)
        together = amplified_divergences(16, z, distribution)
        alone = [amplified_divergence(16, value, 0.02, 12) for value in z]
        assert together == pytest.approx(np.array(alone), rel=1e-12)

    @pytest.mark.parametrize("order", [1.01, 2, 16, 256])
    def test_the_search_loses_nothing(self, order, rng, monkeypatch):
        """Every lattice searched, against every lattice summed whole."""
        cases = [
            (order, 10 ** rng.uniform(0, 3), 10 ** rng.uniform(-4, -0.1), int(rng.integers(1, 60)))
            for _ in range(12)
        ]
        monkeypatch.setattr(amplification, "_DENSE_POINTS", 16)
        searched = [amplified_divergence(*case) for case in cases]
        monkeypatch.setattr(amplification, "_DENSE_POINTS", 10**6)
        whole = [amplified_divergence(*case) for case in cases]
        assert searched == pytest.approx(whole, rel=1e-13)

    @pytest.mark.parametrize("largest", [1, 4_000, 5_000, 6_000])
    def test_matrices_in_little_room_are_split_or_left(self, largest, monkeypatch):
        """Counts together, in halves, in part or all one by one: the same divergences."""
        counts, sampling = np.arange(400, 430), Poisson(n_records=1000, rate=0.02)
        alone = [amplified_divergence(4, 100.0, 0.02, int(count)) for count in counts]
        monkeypatch.setattr(amplification, "_LARGEST_PRODUCT", largest)
        split = amplified_by_count(4, 100.0, sampling, counts)
        assert split == pytest.approx(np.array(alone), rel=2e-11)
        assert (split.tolist() == alone) == (largest == 1)

    @pytest.mark.parametrize("precision", [2.0, 10.0])
    @pytest.mark.parametrize("case", [*(case for case, _ in KNOWN), (1.5, 0.4, 0.3, 3)])
    @pytest.mark.soundness
    def test_a_coarse_lattice_pays_for_its_error(self, case, precision, monkeypatch):
        """The stated error covers the true one, far from where rounding hides either."""
        truth = amplified_divergence(*case)
        monkeypatch.setattr(amplification, "_LOG_PRECISION", precision)
        coarse = amplified_divergence(*case)
        assert truth * (1 - 1e-12) < coarse

    @pytest.mark.soundness
    @pytest.mark.parametrize("case", [(2, 1, 0.1, 1), (1.5, 2, 0.5, 1), (1.25, 3, 0.2, 2)])
    def test_a_short_lattice_pays_for_what_lies_beyond_it(self, case, monkeypatch):
        """Cut where the log of the integrand falls by 1 per unit: the tail is then visible."""
        truth = amplified_divergence(*case)
        order, z, _, d = case
        whole = amplification._lattice

        def short(*arguments):
            lattice = whole(*arguments)
            end = (2 * order - 1) * d / z + 1
            return lattice._replace(n_points=math.ceil(end / lattice.step), slope=1.0)

        monkeypatch.setattr(amplification, "_lattice", short)
        assert amplified_divergence(*case) > truth

    @pytest.mark.soundness
    @pytest.mark.parametrize("case", [(16, 4, 0.01, 20), (2, 0.3, 0.4, 6), (256, 0.5, 0.9, 3)])
    def test_the_closed_form_for_huge_costs_is_a_bound(self, case, monkeypatch):
        truth = amplified_divergence(*case)
        monkeypatch.setattr(amplification, "_HUGE", 0.0)
        assert amplified_divergence(*case) >= truth

    def test_the_closed_form_takes_over_without_a_drop(self):
        """At order (D/z)^2 = 2^36, from noise a little above to a little below."""
        z = 20 * 4 / 2.0**18 * np.array([1.001, 0.999])
        exact, bounded = amplified_divergences(16, z, binomial_distribution(0.01, 20))
        assert exact < bounded < exact * 1.01
        assert np.isfinite(amplified_divergence(16, 1e-100, 0.01, 20))
        assert np.isfinite(amplified_divergence(16, 1e-100, 1.0, 20))


class TestNoGradientsExceedIt:
    """A random search over the sums that clipped gradients can make, in two and three dimensions.

    For D differing records with gradients a_i in one world and b_i in the other, the worlds are
    mixtures over the drawn subsets. Divergences of both orders of the pair, by summing on a grid.
    """

    @pytest.mark.soundness
    @pytest.mark.parametrize(("dim", "n_searches"), [(2, 120), (3, 40)])
    def test_random_gradients(self, dim, n_searches, rng):
        closest = 0.0
        for _ in range(n_searches):
            d, order = int(rng.integers(1, 4)), rng.uniform(1.05, 3)
            z, rate = rng.uniform(1.5, 4), rng.uniform(0.05, 0.95)
            first, second = random_gradients(rng, d, dim), random_gradients(rng, d, dim)
            bound = amplified_divergence(order, z, rate, d)
            for pair in ((first, second), (second, first)):
                divergence = divergence_on_grid(order, z, rate, *pair)
                assert divergence <= bound
                closest = max(closest, divergence / bound)
        assert 0.3 < closest < 1

    @pytest.mark.soundness
    def test_a_climb_does_not_get_past_it(self, rng):
        """From random gradients, keep every change that raises the divergence."""
        d, order, z, rate = 2, 3.0, 1.5, 0.2
        bound = amplified_divergence(order, z, rate, d)
        best = (random_gradients(rng, d, 2), random_gradients(rng, d, 2))
        height = divergence_on_grid(order, z, rate, *best)
        for step in range(250):
            change = rng.normal(scale=0.6 * 0.985**step, size=(2, d, 2))
            pair = tuple(clipped(old + new) for old, new in zip(best, change, strict=True))
            divergence = divergence_on_grid(order, z, rate, *pair)
            assert divergence <= bound
            best, height = (pair, divergence) if divergence > height else (best, height)
        assert height > 0.97 * bound

    @pytest.mark.soundness
    def test_the_worst_gradients_attain_it_and_longer_ones_exceed_it(self):
        worst = np.array([[1.0, 0.0], [1.0, 0.0]])
        bound = amplified_divergence(2.5, 1.8, 0.3, 2)
        assert divergence_on_grid(2.5, 1.8, 0.3, worst, -worst) == pytest.approx(bound, rel=1e-10)
        assert divergence_on_grid(2.5, 1.8, 0.3, 1.01 * worst, -1.01 * worst) > bound


def random_gradients(rng, d, dim):
    """Half of them of full length, the others shorter."""
    directions = rng.normal(size=(d, dim))
    lengths = np.where(rng.random(d) < 0.5, 1.0, rng.random(d))
    return directions / np.linalg.norm(directions, axis=1, keepdims=True) * lengths[:, None]


def clipped(gradients):
    return gradients / np.maximum(1, np.linalg.norm(gradients, axis=1, keepdims=True))


def divergence_on_grid(order, z, rate, first, second):
    """D_order of the two mixtures over drawn subsets, in units of the noise."""
    d, dim = first.shape
    subsets = np.array(list(itertools.product([0, 1], repeat=d)))
    weights = rate ** subsets.sum(axis=1) * (1 - rate) ** (d - subsets.sum(axis=1))
    reach = (2 * order - 1) * d / z + 7
    step = 0.5 if dim == 2 else 0.6
    axis = np.arange(-math.ceil(reach / step), math.ceil(reach / step) + 1) * step
    points = np.stack(np.meshgrid(*[axis] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    p, q = (log_mixture(points, subsets @ gradients / z, weights) for gradients in (first, second))
    logs = order * p + (1 - order) * q - (points**2).sum(axis=1) / 2
    top = logs.max()
    log_sum = math.log(np.exp(logs - top).sum()) + dim * math.log(step / math.sqrt(2 * math.pi))
    return (top + log_sum) / (order - 1)


def log_mixture(points, means, weights):
    """Log of the density relative to the standard normal one."""
    terms = np.log(weights) + points @ means.T - (means**2).sum(axis=1) / 2
    top = terms.max(axis=1)
    return top + np.log(np.exp(terms - top[:, None]).sum(axis=1))


class TestByCount:
    """Many counts at once, on one lattice."""

    @pytest.mark.soundness
    @pytest.mark.parametrize("seed", range(3))
    def test_never_below_a_count_alone(self, seed):
        rng = np.random.default_rng(seed)
        for _ in range(8):
            order, z = (
                float(np.exp(rng.uniform(*np.log(ends)))) for ends in ((1.01, 64), (0.03, 3e3))
            )
            rate, n = (
                np.exp(rng.uniform(*np.log((1e-5, 0.99)))),
                np.exp(rng.uniform(0, np.log(4e3))),
            )
            counts = np.unique(rng.integers(int(n), int(1.3 * n) + 3, 4))
            design = Poisson(n_records=10_000, rate=rate)
            costs = amplified_by_count(order, z, design, counts)
            alone = [amplified_divergence(order, z, rate, int(d)) for d in counts]
            assert np.all(costs >= np.array(alone) * (1 - 1e-14))
            assert np.all(costs <= np.array(alone) * (1 + 1e-9))

    @pytest.mark.soundness
    def test_a_far_mode_is_not_missed(self):
        """At D = 20 nearly all of the cost comes from batches that hold every differing record."""
        design = Poisson(n_records=100, rate=0.01)
        costs = amplified_by_count(16, 4, design, np.arange(18, 23))
        assert costs[2] == pytest.approx(101.957391276349, rel=1e-9)

    def test_certain_draws_huge_shifts_and_no_records(self):
        certain = amplified_by_count(4, 10.0, Poisson(n_records=9, rate=1.0), np.array([0, 3]))
        assert certain == pytest.approx([0.0, 0.72], rel=1e-9)
        design = Poisson(n_records=100, rate=0.5)
        for z in (1e-9, 1e-100):
            costs = amplified_by_count(4, z, design, np.array([1, 50, 51]))
            assert costs[1] == amplified_divergence(4, z, 0.5, 50)
