# SPDX-License-Identifier: Apache-2.0
"""Exponential moments of sums of rows: never below an enumeration, and tight where they can be."""

import itertools
import math

import attrs
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaln, logsumexp
from scipy.stats import chi2

from pufferslice.sensitivity import shells
from pufferslice.sensitivity.layers import Layers, Sorting
from pufferslice.sensitivity.renyi import gaussian_delta
from pufferslice.sensitivity.shells import RowSum, excess_factor, log_chi_tail

SEEDS = st.integers(0, 2**32 - 1)
LOG_RATES = st.floats(-7.0, 4.0)


@given(st.one_of(st.just(0.0), st.floats(1e-9, 100.0)))
def test_excess_factor(t):
    with mpmath.workdps(60):
        x = mpmath.mpf(t)
        exact = 2 * (mpmath.exp(x) - 1 - x) / x**2 if x else mpmath.mpf(1)
        assert exact <= excess_factor(np.array(t)).item() <= exact * (1 + 1e-11)


@pytest.mark.soundness
@given(st.floats(-200.0, 1.0), st.floats(0.0, 1.0))
def test_the_inequality_behind_it(y, above):
    """e^y is at most 1 + y + y^2 psi(t) / 2 for every y up to t, with equality at t."""
    t = max(y, 0.0) + above
    bound = 1 + y + y**2 * excess_factor(np.array(t)).item() / 2
    assert math.exp(y) <= bound * (1 + 1e-12)
    at = 1 + t + t**2 * excess_factor(np.array(t)).item() / 2
    assert at == pytest.approx(math.exp(t), rel=1e-11)


@given(st.floats(0.0, 60.0), st.integers(1, 40))
def test_chi_tail(radius, dim):
    with mpmath.workdps(50):
        exact = mpmath.gammainc(mpmath.mpf(dim) / 2, mpmath.mpf(radius) ** 2 / 2, regularized=True)
        exact = float(mpmath.log(exact))
    assert exact <= log_chi_tail(np.array([radius]), dim).item() <= exact + 1e-9
    if exact > -600:
        assert exact == pytest.approx(chi2(dim).logsf(radius**2), abs=1e-6)


def parts_of(*kinds, n_layers=32):
    """Layers of independent parts, each around its own mean."""
    parts = []
    for rows in kinds:
        dim = rows.shape[1]
        sorting = Sorting(metric=np.eye(dim), spans=np.ptp(rows, axis=0), n_layers=n_layers)
        parts.append(sorting.of_kind(rows, rows.mean(axis=0)))
    return tuple(parts)


def sum_of(*kinds, n_rows, probability=1.0):
    """The change of a row is a sum of rows of the kinds, drawn independently."""
    return RowSum(
        n_rows=n_rows,
        probability=probability,
        mean=np.sum([rows.mean(axis=0) for rows in kinds], axis=0),
        mean_error=1e-12,
        parts=parts_of(*kinds),
    )


def outcomes(*kinds, n_rows, probability=1.0):
    """Every outcome of the sum, and the logarithm of its probability."""
    changes = np.array([np.sum(rows, axis=0) for rows in itertools.product(*kinds)])
    if probability < 1:
        changes = np.concatenate([np.zeros((1, changes.shape[1])), changes])
    weights = np.full(len(changes), probability / (len(changes) - (probability < 1)))
    weights[0] = 1 - probability if probability < 1 else weights[0]
    values, logs = [], []
    for counts in itertools.product(range(n_rows + 1), repeat=len(changes) - 1):
        if (last := n_rows - sum(counts)) >= 0:
            all_counts = np.array([*counts, last])
            values.append(all_counts @ changes)
            logs.append(
                gammaln(n_rows + 1) - gammaln(all_counts + 1).sum() + all_counts @ np.log(weights)
            )
    assert logsumexp(logs) == pytest.approx(0.0, abs=1e-9)
    return np.array(values), np.array(logs)


def rows_at_random(rng, dim, kinds, n_values=2):
    scale = rng.uniform(0.05, 0.6)
    return [
        scale * (rng.normal(size=(n_values, dim)) + rng.normal(size=dim) * rng.integers(0, 2))
        for _ in range(kinds)
    ]


@pytest.mark.soundness
class TestNeverBelow:
    """All outcomes, listed: fixed and random numbers of rows, one part and two."""

    @given(SEEDS, st.integers(1, 2), st.integers(1, 2), st.integers(1, 6), LOG_RATES)
    def test_fixed(self, seed, dim, n_kinds, n_rows, log_rate):
        kinds = rows_at_random(np.random.default_rng(seed), dim, n_kinds)
        self.check(kinds, math.exp(log_rate), n_rows=n_rows)

    @given(SEEDS, st.integers(1, 2), st.integers(1, 2), st.integers(1, 4), LOG_RATES)
    def test_random(self, seed, dim, n_kinds, n_rows, log_rate):
        rng = np.random.default_rng(seed)
        kinds, probability = rows_at_random(rng, dim, n_kinds), rng.uniform(0.02, 0.9)
        self.check(kinds, math.exp(log_rate), n_rows=n_rows, probability=probability)

    @given(SEEDS, st.integers(20, 200), LOG_RATES)
    def test_many_rows_of_two_values(self, seed, n_rows, log_rate):
        """Rare far changes, or a mean change with small ones around it."""
        rng = np.random.default_rng(seed)
        values = np.repeat([[0.0], [1.0]], [rng.integers(1, 30), 1], axis=0)
        values = (values - rng.choice([0.0, values.mean()])) / rng.uniform(1, n_rows)
        row_sum = sum_of(values, n_rows=n_rows)
        share, (low, high) = 1 / len(values), (values[0].item(), values[-1].item())
        counts = np.arange(n_rows + 1)
        logs = gammaln(n_rows + 1) - gammaln(counts + 1) - gammaln(n_rows - counts + 1)
        logs += counts * math.log(share) + (n_rows - counts) * math.log1p(-share)
        rate = math.exp(log_rate)
        truth = logsumexp(logs + rate * (low * n_rows + (high - low) * counts) ** 2)
        assert truth <= row_sum.log_moments(np.array([rate])).item() + 1e-9

    def check(self, kinds, rate, **number):
        row_sum = sum_of(*kinds, **number)
        values, logs = outcomes(*kinds, **number)
        squares = (values**2).sum(axis=1)
        truth = logsumexp(logs + rate * squares)
        bound = row_sum.log_moments(np.array([rate])).item()
        assert truth <= bound * (1 + 1e-9) + 1e-12
        assert bound <= rate * row_sum.reach**2 * (1 + 1e-9)
        assert row_sum.reach**2 >= squares.max() * (1 - 1e-12)
        # A margin is what a grid adds to every distance.
        for epsilon, (std, margin) in itertools.product(
            (0.1, 1.0, 3.0), ((1.0, 0.0), (0.8, 0.5), (2.0, 3.0))
        ):
            distances = (np.sqrt(squares) + margin) / std
            truth = float(np.exp(logs) @ gaussian_delta(distances, epsilon))
            assert truth <= row_sum.delta(epsilon, std, margin)


class TestTightness:
    @pytest.mark.parametrize("dim", [1, 3])
    def test_a_fixed_change(self, dim):
        """Rows that all change alike: the sum is one point."""
        row = np.full((1, dim), 0.25)
        row_sum = sum_of(row, n_rows=8)
        rates = np.array([0.01, 0.5, 3.0])
        exact = rates * 64 * dim / 16
        assert row_sum.log_moments(rates) == pytest.approx(exact, rel=1e-6)

    def test_many_small_rows_are_nearly_gaussian(self):
        """-ln det(I - 2 c M) / 2 for a sum that is nearly normal with covariance M."""
        rng = np.random.default_rng(1)
        rows = rng.uniform(-1, 1, (400, 3)) / 100
        rows -= rows.mean(axis=0)
        n_rows = 40_000
        moment = n_rows * np.cov(rows.T, bias=True)
        row_sum = sum_of(rows, n_rows=n_rows)
        for share in (0.01, 0.1, 0.2):
            rate = share / np.trace(moment)
            exact = -np.linalg.slogdet(np.eye(3) - 2 * rate * moment)[1] / 2
            found = row_sum.log_moments(np.array([rate])).item()
            assert exact * (1 - 1e-3) <= found <= exact * 1.03

    def test_the_two_parts_add(self):
        """Two kinds of rows, drawn independently, or as one kind of changes, listed."""
        rng = np.random.default_rng(2)
        kinds = [rng.normal(size=(5, 2)) / 60 for _ in range(2)]
        changes = np.array([a + b for a, b in itertools.product(*kinds)])
        apart, listed = sum_of(*kinds, n_rows=300), sum_of(changes, n_rows=300)
        rates = np.array([0.1, 1.0])
        assert apart.log_moments(rates) == pytest.approx(listed.log_moments(rates), rel=0.05)

    def test_a_random_number_of_rows(self):
        """Rarely many rows: the moment is near that of a fixed number, but for far modes."""
        rng = np.random.default_rng(3)
        rows = rng.normal(size=(5, 2)) / 100
        fixed = sum_of(rows, n_rows=500)
        random = sum_of(rows, n_rows=1000, probability=0.5)
        rates = np.array([0.1, 0.5])
        assert (random.log_moments(rates) >= fixed.log_moments(rates)).all()
        assert random.log_moments(rates) == pytest.approx(fixed.log_moments(rates), rel=0.1)

    @pytest.mark.soundness
    def test_a_delta_leaves_out_that_many_rows_differ(self):
        """Of 2,000 rows each in 20, hardly ever more than 200: about the delta of so many."""
        row = np.array([[0.01]])
        random = sum_of(row, n_rows=2000, probability=0.05)
        ((tail, fixed), *_) = random.fixed
        assert 100 < fixed.n_rows < 200
        counts = np.arange(2001)
        logs = gammaln(2001) - gammaln(counts + 1) - gammaln(2001 - counts)
        logs += counts * math.log(0.05) + (2000 - counts) * math.log(0.95)
        masses = np.exp(logs)
        assert masses[fixed.n_rows :].sum() <= tail
        truth = masses @ gaussian_delta(0.01 * counts, 1.0)
        assert truth <= random.delta(1.0, 1.0, 0.0) <= 60 * truth
        (log,) = random.log_moments(np.array([6.0]))
        assert log >= logsumexp(logs + 6e-4 * counts**2)


class TestChoices:
    """What the search chooses bounds, whatever it is; here, that it is not badly chosen."""

    @given(SEEDS, st.integers(1, 3), st.floats(0.0, 6.0), st.integers(1, 300))
    def test_tilts(self, seed, dim, inner, n_factors):
        rng = np.random.default_rng(seed)
        spectra = shells._Spectra(
            values=rng.exponential(rng.uniform(0.1, 2), (1, dim)),
            squares=rng.exponential(rng.uniform(0.1, 2), (1, dim)),
            errors=np.zeros(1),
            growth=np.zeros(1),
        )
        inner = np.array([inner])
        tilt, slope = shells._best_tilts(spectra, inner, n_factors)
        assert tilt >= 0
        assert 0 < slope <= 1
        found = shells._tilted_log(spectra, tilt, slope, inner, n_factors).item()
        tilts, slopes = np.linspace(0, 1, 60), np.geomspace(1e-3, 1, 60)
        t, y = (each.ravel() for each in np.meshgrid(tilts, slopes))
        many = shells._Spectra(*(np.repeat(each, len(t), axis=0) for each in spectra))
        best = shells._tilted_log(many, t, y, np.repeat(inner, len(t)), n_factors).min()
        assert found <= best + 1e-3 * (1 + abs(best))

    @pytest.mark.soundness
    @given(SEEDS)
    def test_bounds_do_not_depend_on_them(self, seed):
        """Any tilts inside, and any ball: each total is above the truth."""
        rng = np.random.default_rng(seed)
        kinds = rows_at_random(rng, 2, 2)
        row_sum = sum_of(*kinds, n_rows=4)
        values, logs = outcomes(*kinds, n_rows=4)
        truth = logsumexp(logs + 0.5 * (values**2).sum(axis=1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                shells,
                "_best_tilts",
                lambda spectra, inner, _n: (
                    rng.uniform(0, 0.9, len(inner)),
                    rng.uniform(0.05, 1, len(inner)),
                ),
            )
            totals = row_sum.cut(np.array([0.5])).totals
        assert (totals >= truth - 1e-12).all()

    @given(SEEDS, st.integers(1, 2))
    def test_more_noise_or_a_lower_order_never_costs_more(self, seed, n_kinds):
        rng = np.random.default_rng(seed)
        row_sum = sum_of(*rows_at_random(rng, 2, n_kinds, 5), n_rows=30)
        rates = np.geomspace(1e-4, 1e3, 60)
        logs = row_sum.log_moments(rates)
        assert (np.diff(logs) >= -1e-12).all()
        assert (np.diff(logs / rates) >= -1e-9 * (logs / rates)[1:]).all()


def test_layers_are_all_that_counts():
    """Fewer layers of the same rows: a larger bound; and a radius that is too large."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(50, 2)) * rng.exponential(1, (50, 1)) / 40
    fine = sum_of(rows, n_rows=100)
    coarse = attrs.evolve(fine, parts=parts_of(rows, n_layers=1))
    wide = attrs.evolve(
        fine, parts=tuple(Layers(2 * part.radii, part.moments) for part in fine.parts)
    )
    rates = np.array([0.05, 0.1, 0.5])
    for other in (coarse, wide):
        assert (other.log_moments(rates) > fine.log_moments(rates)).all()
    assert repr(fine) == "RowSum(dim=2, n_rows=100)"
