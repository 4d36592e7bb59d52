# SPDX-License-Identifier: Apache-2.0
"""Privacy-loss distributions: never below the truth, and hardly above it."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from scipy import fft
from scipy.special import ndtr
from scipy.stats import binom, norm

from pufferslice._core.search import smallest_epsilon
from pufferslice.errors import CalibrationError
from pufferslice.learning import privacy_loss
from pufferslice.learning.privacy_loss import PublishedDraws, SecretDraws, composed
from pufferslice.learning.sampling import Poisson, WithoutReplacement

HP = mp.clone()
HP.dps = 30

CLOSE = 3e-6
"""Relative error of delta that the grid may add, for the precision that is used."""


def log_chances(rate, n_differing):
    return Poisson(n_records=max(n_differing, 1), rate=rate).discrepancy_log_probabilities(
        n_differing
    )


def secret(z, rate, n_differing):
    return SecretDraws.of(z, log_chances(rate, n_differing), privacy_loss.FORGOTTEN)


class Exact:
    """One step of secret draws, in 30 digits."""

    def __init__(self, z, rate, n_differing):
        q = HP.mpf(rate)
        self.z = HP.mpf(z)
        self.parts = [
            (k, HP.binomial(n_differing, k) * q**k * (1 - q) ** (n_differing - k))
            for k in range(n_differing + 1)
        ]

    def density(self, t):
        return HP.fsum(w * HP.npdf(t - k / self.z) for k, w in self.parts)

    def loss(self, t):
        return HP.log(self.density(t) / self.density(-t))

    def above(self, t):
        return HP.fsum(w * HP.ncdf(k / self.z - t) for k, w in self.parts)

    def below_mirrored(self, t):
        """Q(T > t)."""
        return HP.fsum(w * HP.ncdf(-k / self.z - t) for k, w in self.parts)

    def delta(self, epsilon):
        """One step, by the output that has this loss."""
        low, high = HP.mpf(-60), HP.mpf(60)
        for _ in range(110):
            middle = (low + high) / 2
            low, high = (middle, high) if self.loss(middle) < epsilon else (low, middle)
        return self.above(high) - HP.exp(epsilon) * self.below_mirrored(high)


ONE_STEP = [
    (1.3, 0.01, 1, 0.0),
    (1.3, 0.01, 1, 2.5),
    (0.4, 0.1, 1, 5.0),
    (2.0, 0.3, 4, 0.0),
    (2.0, 0.3, 4, 7.0),
    (40.0, 0.01, 20, 0.01),
    (5.0, 0.9, 3, 0.5),
    (0.3, 0.5, 2, 30.0),
]


@pytest.mark.soundness
@pytest.mark.parametrize(("z", "rate", "n_differing", "epsilon"), ONE_STEP)
def test_one_step_of_secret_draws(z, rate, n_differing, epsilon):
    exact = Exact(z, rate, n_differing).delta(HP.mpf(epsilon))
    bound = composed([(secret(z, rate, n_differing), 1)])(epsilon)
    assert exact <= bound <= exact * (1 + 1e-3) + 1e-20


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("z", "rate", "n_differing", "n_steps", "epsilon"),
    [(1.3, 0.1, 1, 2, 1.0), (2.0, 0.4, 3, 2, 3.0), (3.0, 0.2, 2, 3, 0.0), (1.0, 0.3, 1, 3, 4.0)],
)
def test_few_steps_of_secret_draws(z, rate, n_differing, n_steps, epsilon):
    """The first outputs are integrated over, on a lattice; the last step has a closed form."""
    counts, chances = np.arange(n_differing + 1) / z, np.exp(log_chances(rate, n_differing))
    logs = np.log(chances) - counts**2 / 2

    def losses(t):
        return np.log(np.exp(np.multiply.outer(t, counts) + logs).sum(axis=-1)) - np.log(
            np.exp(np.multiply.outer(-t, counts) + logs).sum(axis=-1)
        )

    def delta(epsilons):
        low, high = np.full_like(epsilons, -40.0), np.full_like(epsilons, 40.0)
        for _ in range(60):
            middle = (low + high) / 2
            under = losses(middle) < epsilons
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        above = ndtr(np.subtract.outer(-low, -counts)) @ chances
        return above - np.exp(epsilons) * (ndtr(np.subtract.outer(-low, counts)) @ chances)

    outputs = np.arange(-9, counts[-1] + 9, 0.05)
    density = np.exp(-(np.subtract.outer(outputs, counts) ** 2) / 2) @ chances
    weights = density * 0.05 / math.sqrt(2 * math.pi)
    first, loss = weights, losses(outputs)
    if n_steps == 3:
        first, loss = np.outer(first, weights).ravel(), np.add.outer(loss, loss).ravel()
    exact = float(first @ delta(epsilon - loss))
    bound = composed([(secret(z, rate, n_differing), n_steps)])(epsilon)
    assert exact * (1 - 1e-9) <= bound <= exact * (1 + 1e-4)


@pytest.mark.soundness
@pytest.mark.parametrize("draws", [SecretDraws, PublishedDraws])
@pytest.mark.parametrize(
    ("z", "rate", "n_differing", "n_steps"),
    [(1.3, 0.01, 1, 5_000), (4.0, 0.01, 20, 500), (0.8, 0.001, 1, 200)],
)
@pytest.mark.parametrize("wanted", [5.0, 20.0, 60.0])
def test_a_bound_for_one_epsilon_is_true_at_all(draws, z, rate, n_differing, n_steps, wanted):
    """Also below the window of its transform, where tilted masses wrap around and are lost."""
    loss = draws.of(z, log_chances(rate, n_differing), privacy_loss.FORGOTTEN)
    curve = composed([(loss, n_steps)])
    near = curve.near(wanted)
    for epsilon in (0.0, 0.5, 2.0, 0.9 * wanted, wanted, 1.1 * wanted):
        # Each grid adds up to CLOSE; what is beyond all losses is FORGOTTEN.
        assert near(epsilon) >= curve(epsilon) * (1 - 1e-3) - 2 * privacy_loss.FORGOTTEN
    assert near(wanted) <= curve(wanted) * (1 + 1e-9)


class Optimistic:
    """Losses rounded down on a plain grid, tails left out, convolved without a transform."""

    def __init__(self, z, rate, n_differing, n_steps, width):
        counts = np.arange(n_differing + 1) / z
        chances = binom.pmf(np.arange(n_differing + 1), n_differing, rate)
        outputs = np.linspace(-12, counts[-1] + 12, 400_001)
        logs = np.log(chances) - counts**2 / 2
        upper, lower = (
            np.logaddexp.reduce(sign * outputs[:, None] * counts + logs, axis=1) for sign in (1, -1)
        )
        cells = np.floor((upper - lower)[:-1] / width).astype(int)
        tails = ndtr(outputs[:, None] - counts) @ chances, ndtr(counts - outputs[:, None]) @ chances
        masses = np.where(outputs[:-1] < 0, np.diff(tails[0]), -np.diff(tails[1]))
        one = np.bincount(cells - cells.min(), masses)
        total = np.ones(1)
        for _ in range(n_steps):
            total = np.convolve(total, one)
        self.masses = total
        self.losses = width * (cells.min() * n_steps + np.arange(len(total)))

    def delta(self, epsilon):
        above = self.losses > epsilon
        return float(self.masses[above] @ -np.expm1(epsilon - self.losses[above]))


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("z", "rate", "n_differing", "n_steps"),
    [(1.3, 0.05, 1, 5), (3.0, 0.2, 4, 3), (10.0, 0.5, 6, 8)],
)
def test_an_optimistic_bound_is_below(z, rate, n_differing, n_steps):
    width = 2e-3
    low = Optimistic(z, rate, n_differing, n_steps, width)
    bound = composed([(secret(z, rate, n_differing), n_steps)])
    for epsilon in (0.0, 0.3, 1.0, 3.0):
        assert low.delta(epsilon) * (1 - 1e-9) <= bound(epsilon)
        # Rounding down loses at most one width a step.
        most = low.delta(epsilon - n_steps * width)
        assert bound(epsilon) <= most * (1 + 1e-4) + 1e-12


def exact_published(z, rate, n_steps, epsilon):
    """One differing record and published draws: the number of steps with it is binomial."""
    q, e = HP.mpf(rate), HP.mpf(epsilon)
    total = HP.mpf(0)
    for n in range(1, n_steps + 1):
        chance = HP.binomial(n_steps, n) * q**n * (1 - q) ** (n_steps - n)
        mu = 2 * HP.sqrt(n) / HP.mpf(z)
        total += chance * (HP.ncdf(mu / 2 - e / mu) - HP.exp(e) * HP.ncdf(-mu / 2 - e / mu))
    return total


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("z", "rate", "n_steps"), [(1.0, 0.3, 1), (3.0, 0.1, 40), (2.0, 0.01, 1_000), (0.5, 0.001, 300)]
)
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 6.0, 20.0])
def test_published_draws_of_one_record(z, rate, n_steps, epsilon):
    """Down to a delta of 1e-20 and less: errors stay small beside it."""
    exact = exact_published(z, rate, n_steps, epsilon)
    loss = PublishedDraws.of(z, log_chances(rate, 1), privacy_loss.FORGOTTEN)
    bound = composed([(loss, n_steps)])(epsilon)
    assert exact <= bound <= exact * (1 + 1e-3) + 1e-26


@pytest.mark.soundness
def test_published_draws_of_steps_with_different_noise():
    """Two kinds of steps with a different design each; all sequences of draws are summed."""
    design = WithoutReplacement(n_records=6, batch_size=2)
    first = PublishedDraws.of(4.0, design.discrepancy_log_probabilities(3))
    second = PublishedDraws.of(6.0, log_chances(0.5, 2))
    bound = composed([(first, 2), (second, 1)])(0.5)
    chances = [np.exp(design.discrepancy_log_probabilities(3))] * 2
    chances.append(np.exp(log_chances(0.5, 2)))
    total = 0.0
    for drawn in itertools.product(range(3), repeat=3):
        mu = math.sqrt(sum((2 * k / z) ** 2 for k, z in zip(drawn, (4, 4, 6), strict=True)))
        if mu:
            delta = ndtr(mu / 2 - 0.5 / mu) - math.exp(0.5) * ndtr(-mu / 2 - 0.5 / mu)
            total += delta * math.prod(p[k] for p, k in zip(chances, drawn, strict=True))
    assert total <= bound <= total * (1 + 1e-4)


class TestKnownAnswers:
    LOSS = secret(1.3, 0.01, 1)

    def test_epsilon_of_one_record(self):
        """The relation is replacement; where a record is added or removed it is 2.6814."""
        epsilon = smallest_epsilon(composed([(self.LOSS, 5_000)]), 1e-5)
        assert epsilon == pytest.approx(4.96588658, rel=3e-6)
        assert epsilon >= 4.96588658

    def test_dp_accounting_agrees(self):
        dp = pytest.importorskip("dp_accounting")
        import dp_accounting.pld

        event = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.3))
        found = {}
        for relation in dp.NeighboringRelation:
            accountant = dp_accounting.pld.PLDAccountant(neighboring_relation=relation)
            found[relation.name] = accountant.compose(event, 5_000).get_epsilon(1e-5)
        assert found["REPLACE_ONE"] == pytest.approx(4.9659, abs=5e-5)
        assert found["ADD_OR_REMOVE_ONE"] == pytest.approx(2.6814, abs=5e-5)
        ours = smallest_epsilon(composed([(self.LOSS, 5_000)]), 1e-5)
        assert ours == pytest.approx(found["REPLACE_ONE"], rel=2e-5)

    @pytest.mark.parametrize("delta", [1e-2, 1e-8, 1e-15, 1e-25])
    def test_gaussian_composition_is_one_gaussian(self, delta):
        """A count that is almost certain goes over the grid; one that is certain does not."""
        certain = composed([(secret(400.0, 1.0, 3), 2_000)])
        almost = SecretDraws.of(400.0, np.log(np.array([1e-40, 0, 0, 1.0]) + 1e-300))
        assert almost.shift is None
        epsilon = smallest_epsilon(composed([(almost, 2_000)]), delta)
        mu = 2 * 3 * math.sqrt(2_000) / 400
        exact = HP.findroot(
            lambda e: (
                HP.log(HP.ncdf(mu / 2 - e / mu) - HP.exp(e) * HP.ncdf(-mu / 2 - e / mu))
                - HP.log(delta)
            ),
            epsilon * 0.99,
        )
        assert exact <= epsilon <= exact * (1 + 1e-5)
        if delta > 1e-14:
            assert smallest_epsilon(certain, delta) == pytest.approx(float(exact), rel=1e-3)


@pytest.mark.soundness
@settings(max_examples=60, deadline=None)
@given(
    log_z=st.floats(-1, 6),
    log_rate=st.floats(-8, 0),
    n_differing=st.integers(1, 40),
    log_steps=st.floats(0, 8),
    epsilon=st.floats(0, 4),
)
def test_laws(log_z, log_rate, n_differing, log_steps, epsilon):
    """Secret draws never cost more than published ones; less noise, more records, more steps do."""
    z, rate, n_steps = math.exp(log_z), math.exp(log_rate), int(math.exp(log_steps))

    def delta(z=z, rate=rate, d=n_differing, n=n_steps, epsilon=epsilon):
        return composed([(secret(z, rate, d), n)])(epsilon)

    mine = delta()
    assert 0 <= mine <= 1
    for harder in (delta(z=z / 1.1), delta(d=n_differing + 1), delta(n=2 * n_steps)):
        assert mine <= harder * (1 + 1e-4) + 1e-20
    assert delta(epsilon=epsilon + 0.5) <= mine * (1 + 1e-4) + 1e-20
    published = PublishedDraws.of(z, log_chances(rate, n_differing), privacy_loss.FORGOTTEN)
    assert mine <= composed([(published, n_steps)])(epsilon) * (1 + 1e-4) + 1e-20


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("z", "rate", "n_differing"),
    [(1.3, 0.01, 1), (40.0, 0.01, 8), (2.0, 0.5, 5), (100.0, 0.1, 3), (0.5, 0.3, 2)],
)
def test_mean_loss(z, rate, n_differing):
    exact = Exact(z, rate, n_differing)
    nodes = [-12, *range(-6, n_differing + 8, 2), n_differing / z + 14]
    divergence = HP.quad(lambda t: exact.density(t) * exact.loss(t), sorted(nodes))
    loss = SecretDraws.of(z, log_chances(rate, n_differing))
    assert divergence <= loss.mean() <= divergence * (1 + 1e-5)


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("z", "parts", "close"),
    [(10.0, {20: 0.9, 21: 0.1}, 1.002), (1.0, {0: 0.7, 1: 0.28, 2: 0.02}, 2.0)],
)
def test_counts_that_are_left_out_are_in_the_mean_loss(z, parts, close):
    """The last count, by its own divergence; beside a count that is as large, hardly too much."""
    chances = np.array([parts.get(k, 1e-320) for k in range(max(parts) + 1)])
    loss = SecretDraws.of(z, np.log(chances), tail=1.1 * parts[max(parts)] * len(chances))
    assert len(loss.means) == len(parts) - 1
    outputs = np.linspace(-14, 14, 20_001)
    under_p, under_q = (
        sum(w * norm.pdf(outputs - sign * k / z) for k, w in parts.items()) for sign in (1, -1)
    )
    divergence = under_p @ np.log(under_p / under_q) * (outputs[1] - outputs[0])
    assert divergence <= loss.mean() <= divergence * close


@pytest.mark.soundness
@pytest.mark.parametrize("draws", [SecretDraws, PublishedDraws])
def test_counts_that_are_left_out_are_in_delta(draws):
    """One step in fifty has 30 records with next to no noise; at this epsilon only that shows."""
    chances = np.full(31, 1e-320)
    chances[[1, 30]] = 0.98, 0.02
    loss = draws.of(0.1, np.log(chances), tail=0.03 * len(chances))
    assert loss.outside >= 0.02
    assert 0.02 <= composed([(loss, 1)])(1_000.0) <= 0.0201


class TestRoundingErrors:
    """The bounds that are charged hold, with room, where they can be measured."""

    @pytest.mark.parametrize("n_points", [2**12, 2**17])
    def test_transforms(self, n_points, rng):
        masses = rng.random(n_points) ** 20
        masses /= masses.sum()
        exact = fft.rfft(masses.astype(np.longdouble))
        found = fft.rfft(masses)
        unit = privacy_loss._TRANSFORM * math.log2(n_points)
        assert float(np.abs(found - exact).max()) < unit / 8
        back = fft.irfft(found, n_points)
        size = 2 * float(np.abs(found).sum()) / n_points
        wide = fft.irfft(found.astype(np.clongdouble), n_points)
        assert float(np.abs(back - wide).max()) < unit * size / 8

    @pytest.mark.parametrize("width", [1e-6, 1e-2, 3.0])
    def test_masses_between_points(self, width, rng):
        starts = rng.uniform(-30, 30, 300)
        for start in starts.tolist():
            points = np.array([[start], [start + width]])
            least, most = privacy_loss._between(points, np.ones(1))
            low, high = (HP.mpf(float(x)) for x in points[:, 0])
            sign = -1 if low > 0 else 1
            with HP.workdps(60):
                exact = sign * (HP.ncdf(sign * high) - HP.ncdf(sign * low))
            assert least[0] <= exact <= most[0]

    def test_a_power(self, rng):
        values = np.exp(2j * np.pi * rng.random(50)) * rng.uniform(0.99, 1, 50)
        wide = values.astype(np.clongdouble)
        for n in (1, 2, 3, 1_000, 3_921):
            power = np.ones(50, dtype=np.clongdouble)
            for digit in f"{n:b}":
                power = power * power * (wide if digit == "1" else 1)
            error = np.abs(privacy_loss._power(values, n) - power) / np.abs(power)
            assert float(error.max()) < privacy_loss._PRODUCT * n


class TestExtremes:
    @pytest.mark.parametrize("z", [1e-90, 1e-3, 1e30, 1e90])
    @pytest.mark.parametrize("loss", [SecretDraws, PublishedDraws])
    def test_absurd_noise_has_a_bound(self, z, loss):
        delta = composed([(loss.of(z, log_chances(0.2, 3)), 7)])(0.5)
        assert 0 <= delta <= 1
        if z < 1:
            assert delta > 0.7

    def test_no_record_differs(self):
        for loss in (SecretDraws, PublishedDraws):
            assert composed([(loss.of(2.0, np.zeros(1)), 5)])(0.0) == 0.0

    def test_losses_that_lose_their_digits_are_refused(self):
        """Logarithms near half a million have no digits for a loss of a millionth."""
        with pytest.raises(CalibrationError, match="noise multiplier"):
            SecretDraws.of(1e-3, np.array([-800.0, 0.0])).cells(np.linspace(0, 1e-6, 5))

    def test_many_counts_are_taken_together(self):
        logs = log_chances(0.5, 1_500)
        together = SecretDraws.of(200.0, logs, privacy_loss.FORGOTTEN)
        assert 100 < len(together.means) <= 257
        kept = np.exp(logs) > 1e-20
        alone = SecretDraws(
            means=np.flatnonzero(kept) / 200.0,
            chances=np.exp(logs[kept]),
            outside=float(np.exp(logs[~kept]).sum()),
            outside_square=0.0,
            chance_error=1e-12,
        )
        bound, close = (composed([(loss, 1)])(30.0) for loss in (together, alone))
        assert close <= bound <= close * 1.1

    def test_a_million_steps(self):
        """The sum of many small losses is nearly normal."""
        q, z, n = 1e-3, 2.0, 1_000_000
        delta = composed([(secret(z, q, 1), n)])(0.0)
        variance = 2 * n * secret(z, q, 1).mean()
        assert delta == pytest.approx(2 * ndtr(math.sqrt(variance) / 2) - 1, rel=1e-2)
