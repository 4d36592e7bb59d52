# SPDX-License-Identifier: Apache-2.0
"""Periods with a public range of numbers of rows: every number of rows against the bound."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.row_moments import rows_of

from pufferslice.sensitivity import periods
from pufferslice.sensitivity.periods import PeriodDifference, TableSizes
from pufferslice.sensitivity.whitening import Covariance, Shape

SEEDS = st.integers(0, 2**32 - 1)


def table_sizes(least, most, within=0.05, design="stratified", pieces=1):
    return TableSizes(within=within, design=design, least=least, most=most, pieces=pieces)


def random_period(rng, tables, dim=3, n_rows=100):
    """Rows with means and totals; the means are of `n_rows` rows."""
    root = rng.normal(size=(dim, dim))
    is_mean = rng.random(dim) < 0.5
    units = np.where(is_mean, 1 / n_rows, 1.0)
    shift = 2 * rng.normal(size=dim)
    rows = rows_of(
        shift=shift * units,
        spread=root @ root.T * np.outer(units, units),
        spans=(6 * np.abs(root).sum(axis=1) + np.abs(shift)) * units,
        counts=[1.0, 1.0],
    )
    return PeriodDifference(rows=rows, is_mean=is_mean, n_rows=n_rows, sizes=tables)


def noise_of(rng, period):
    root = rng.normal(size=(period.rows.dim,) * 2) + 2 * np.eye(period.rows.dim)
    units = np.where(period.is_mean, 1 / period.n_rows, 1.0)
    covariance = root @ root.T * np.outer(units, units)
    shape = Shape.of_covariance(covariance)
    std = math.sqrt(np.trace(covariance) / period.rows.dim)
    return Covariance(dim=period.rows.dim, std=std, shape=shape)


def cost_at(period, noise, n_rows, n_differing=None):
    """The mean square of one table of so many rows, from the definition."""
    tables = period.sizes
    share = Fraction(repr(tables.within))
    mean = math.ceil(share * n_rows) + tables.pieces - 1
    square = mean**2
    if tables.design == "independent":
        mean = n_rows * tables.within
        square = mean**2 + mean * (1 - tables.within)
    units = np.where(period.is_mean, period.n_rows / n_rows, 1.0)
    (change,) = period.rows.changes
    moment = square * np.outer(change.mean, change.mean) + mean * change.cov
    whitened = noise.whitening / noise.std * units
    return float(np.trace(whitened @ moment @ whitened.T))


@pytest.mark.soundness
class TestEveryNumberOfRows:
    @pytest.mark.parametrize("few", [periods.FEW, 0])
    @pytest.mark.parametrize("design", ["stratified", "independent"])
    @given(SEEDS, st.integers(2, 400), st.integers(0, 600), st.integers(1, 12))
    def test_no_table_costs_more(self, few, design, seed, least, width, pieces):
        rng = np.random.default_rng(seed)
        within = float(rng.choice([0.05, 0.1, 0.013, 0.3]))
        period = random_period(rng, table_sizes(least, least + width, within, design, pieces))
        noise = noise_of(rng, period)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(periods, "FEW", few)
            (bound,) = period.mean_squares(noise)
        costs = [cost_at(period, noise, n) for n in range(least, least + width + 1)]
        assert bound >= max(costs)

    @given(SEEDS, st.integers(200, 4_000), st.integers(0, 4_000))
    def test_one_by_one_it_is_the_largest(self, seed, least, width):
        rng = np.random.default_rng(seed)
        period = random_period(rng, table_sizes(least, least + width))
        noise = noise_of(rng, period)
        (bound,) = period.mean_squares(noise)
        largest = max(cost_at(period, noise, n) for n in range(least, least + width + 1))
        assert bound == pytest.approx(largest, rel=1e-4)

    @given(SEEDS)
    def test_over_intervals_it_is_close(self, seed):
        rng = np.random.default_rng(seed)
        period = random_period(rng, table_sizes(20_000, 60_000))
        noise = noise_of(rng, period)
        (bound,) = period.mean_squares(noise)
        sampled = [cost_at(period, noise, n) for n in range(20_000, 60_001, 97)]
        assert max(sampled) <= bound <= 1.06 * max(sampled)

    def test_a_share_of_differing_rows_does_not_fall_with_the_number_of_rows(self):
        # ceil(0.05 * 9,000) / 9,000 = 0.05 and ceil(0.05 * 9,001) / 9,001 = 0.050106.
        rows = rows_of(shift=[1 / 9_000], spread=[[0.0]], spans=[1 / 9_000], counts=[1.0, 1.0])
        noise = Covariance(dim=1, std=1.0)
        for most, expected in ((9_000, 0.05), (9_001, 451 / 9_001), (12_000, 451 / 9_001)):
            period = PeriodDifference(
                rows=rows, is_mean=np.array([True]), n_rows=9_000, sizes=table_sizes(9_000, most)
            )
            (bound,) = period.mean_squares(noise)
            assert math.sqrt(bound) == pytest.approx(expected, rel=1e-6)

    def test_totals_are_largest_with_the_most_rows(self):
        rows = rows_of(shift=[1.0], spread=[[0.0]], spans=[1.0], counts=[1.0, 1.0])
        period = PeriodDifference(
            rows=rows, is_mean=np.array([False]), n_rows=9_000, sizes=table_sizes(9_000, 12_000)
        )
        (bound,) = period.mean_squares(Covariance(dim=1, std=1.0))
        assert math.sqrt(bound) == pytest.approx(600, rel=1e-6)

    def test_one_number_of_rows_is_the_difference_of_its_table(self):
        rng = np.random.default_rng(3)
        tables = table_sizes(100, 100)
        period = random_period(rng, tables)
        noise = noise_of(rng, period)
        alone = period.rows.with_differing(period.sizes.differing(100))
        assert period.mean_squares(noise) == pytest.approx(alone.mean_squares(noise), rel=1e-5)

    @pytest.mark.parametrize("pieces", [1, 2, 12])
    def test_pieces_round_up_on_their_own(self, pieces):
        """Rows in any number of tables: each rounds its own share of differing rows up."""
        rng = np.random.default_rng(pieces)
        for _ in range(50):
            parts = rng.integers(1, 500, pieces)
            differing = sum(math.ceil(Fraction("0.05") * int(n)) for n in parts)
            whole = table_sizes(1, 10_000, pieces=pieces).differing(int(parts.sum()))
            assert differing <= whole.most

    def test_several_kinds_of_rows(self):
        """Each pair of kinds has its own bound."""
        rng = np.random.default_rng(5)
        means = rng.normal(size=(3, 2)) / 50
        covs = np.array([np.diag(rng.uniform(0.5, 1, 2)) / 50**2 for _ in range(3)])
        tables = table_sizes(50, 50)
        plain = rows_of(
            shift=np.zeros(2),
            spread=np.eye(2),
            spans=[2.0, 2.0],
            counts=[1.0, 1.0],
            means=means,
            covs=covs,
            pairs=[[0, 1], [0, 2], [1, 2]],
            shares=np.zeros((3, 0)),
            cell_means=np.zeros((3, 0, 2)),
        ).with_differing(tables.differing(50))
        period = PeriodDifference(
            rows=plain, is_mean=np.array([True, True]), n_rows=50, sizes=tables
        )
        noise = noise_of(rng, period)
        own = plain.mean_squares(noise)
        assert len(own) == 3
        assert period.mean_squares(noise) == pytest.approx(own, rel=1e-4)


class TestEnds:
    def test_moments_at_both_ends(self):
        period = random_period(np.random.default_rng(4), table_sizes(100, 400), n_rows=100)
        moments = period.second_moments
        assert len(moments) == 2
        alone = random_period(np.random.default_rng(4), table_sizes(100, 100), n_rows=100)
        assert len(alone.second_moments) == 1
