# SPDX-License-Identifier: Apache-2.0
"""Gaps bounded from samples: above the true gaps at once, tails paid for, rare mass not lost."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pufferslice.scenario.distributions import FiniteDistribution, SampledDistribution
from pufferslice.sensitivity import DistributionPair, gap_tables
from pufferslice.sensitivity.bands import (
    SortedSample,
    band_tables,
    common_bands,
    missing_mass,
    tail_cut_estimate,
)
from pufferslice.sensitivity.concentration import BANDS, LEVEL_QUANTA, band_ranks, dkw_halfwidth
from pufferslice.sensitivity.profiles import FiniteProfile

LINE = np.array([[1.0]])
PAIR = [DistributionPair(0, 1)]

PAIRS_OF_LAWS = {
    "skewed": (stats.beta(1, 6), stats.beta(2, 4)),
    "discrete": (stats.randint(0, 4), stats.binom(4, 0.3)),
    "heavy-tailed": (stats.truncpareto(0.3, 50), stats.truncpareto(0.5, 50)),
    "tied": (stats.bernoulli(0.02), stats.bernoulli(0.05)),
    "equal": (stats.norm(), stats.norm()),
}


def tables_of(first, second, *, failure=0.05, kind="order_statistics", ends=None, directions=LINE):
    """The band tables of two samples, each band failing with half of the probability."""
    distributions = [
        SampledDistribution(outputs=np.reshape(x, (len(x), -1))) for x in (first, second)
    ]
    ranked = [SortedSample.of(distribution, directions) for distribution in distributions]
    bands = common_bands(
        [distribution.n_samples for distribution in distributions], failure / 2, kind
    )
    limits = len(directions) if ends is None else np.tile(ends, (len(directions), 1))
    return band_tables(ranked, PAIR, bands, limits)


def moment(tables, rate):
    """Mean over the covered levels of exp(rate gap^2), times their mass."""
    share = tables.totals[0] / LEVEL_QUANTA
    return math.exp(float(tables.log_moments(rate, 0.0)[0, 0])) * share


def true_gap(pair, levels):
    first, second = pair
    return np.abs(first.ppf(levels) - second.ppf(levels))


@pytest.mark.statistical
@pytest.mark.soundness
@pytest.mark.parametrize("kind", BANDS)
@pytest.mark.parametrize("sizes", [(300, 300), (150, 400)])
@pytest.mark.parametrize("name", PAIRS_OF_LAWS)
def test_the_bound_covers_all_levels_at_once(name, sizes, kind, rng):
    """400 runs at failure probability 0.2: at most 80 and 5 standard deviations may fail.

    A run fails if the tabulated distribution of the gap does not dominate the true one: the mass of
    gaps above some height is more in truth than in the table.
    """
    pair, n_runs, failure, n_levels = PAIRS_OF_LAWS[name], 400, 0.2, 4_000
    levels = (np.arange(n_levels) + 0.5) / n_levels
    bands = common_bands(list(sizes), failure / 2, kind)
    edges = np.concatenate([[0], bands[0].levels, [LEVEL_QUANTA]]) / LEVEL_QUANTA
    inside = (bands[0].covered & bands[1].covered)[np.searchsorted(edges, levels) - 1]
    truth = np.sort(true_gap(pair, levels[inside]))[::-1]
    wanted = (np.arange(len(truth)) + 0.5) / n_levels
    draws = [
        distribution.rvs((n_runs, n), random_state=rng).astype(float)
        for distribution, n in zip(pair, sizes, strict=True)
    ]
    failed = 0
    for first, second in zip(*draws, strict=True):
        ranked = [
            SortedSample.of(SampledDistribution(outputs=x[:, None]), LINE) for x in (first, second)
        ]
        tables = band_tables(ranked, PAIR, bands, 1).bound
        # The k-th largest true gap is at most the table's gap at that mass.
        mass = np.cumsum(tables.counts) / LEVEL_QUANTA
        above = np.minimum(np.searchsorted(mass, wanted), len(mass) - 1)
        failed += bool((truth > tables.gaps[above] + 1e-9).any())
    assert failed <= n_runs * failure + 5 * math.sqrt(n_runs * failure * (1 - failure))


@pytest.mark.statistical
@pytest.mark.soundness
def test_the_tail_cut_estimator_misses_rare_mass_and_the_bands_do_not(rng):
    """Mass 1e-5 at a far atom, 5,000 samples: seen in 4.9 % of runs in one order, never in the
    other; with the public range the library's bound is never below the true W-infinity."""
    mass, far, n, n_runs = 1e-5, 100.0, 5_000, 2_000
    zeros = np.zeros(n)
    missed = np.zeros(2, dtype=int)
    expected = 1 - (1 - mass) ** n
    assert 1 - expected == pytest.approx(0.951, abs=5e-4)
    for run in range(n_runs):
        drawn = far * (rng.random(n) < mass)
        if drawn.any() or run < 3:
            # With no atom drawn both samples are all zero, and so are both estimates.
            missed += [
                tail_cut_estimate(drawn, zeros, 0.05) < far,
                tail_cut_estimate(zeros, drawn, 0.05) < far,
            ]
        else:
            missed += 1
        if run < 3 or drawn.any():
            assert tables_of(drawn, zeros, ends=(0.0, far)).bound.worst()[0, 0] >= far
    assert missed[1] == n_runs
    assert stats.binomtest(int(missed[0]), n_runs, 1 - expected).pvalue > 1e-6
    assert stats.binomtest(int(missed[0]), n_runs, 0.05).pvalue < 1e-6


def test_without_a_range_the_rare_mass_is_in_the_missing_levels():
    """The atom has mass 1e-5; the bands leave out more, and say so."""
    found = tables_of(np.zeros(5_000), np.zeros(5_000))
    assert found.bound.worst().max() == 0
    assert missing_mass(found.bound)[0] > 1e-5
    assert missing_mass(found.bound)[0] < 0.01


def test_known_answer_of_point_masses():
    """All samples equal: the covered levels have the exact gap, the tails reach the range."""
    n = 400
    found = tables_of(np.full(n, 2.0), np.full(n, 5.0), ends=(0.0, 8.0))
    band = band_ranks(n, 0.025, "order_statistics")
    bound = found.bound
    assert bound.totals.tolist() == [LEVEL_QUANTA]
    # At the top G may be 8 where F is at least 2; at the bottom F may be 0 where G is at most 5.
    tail = (LEVEL_QUANTA - band.masses[band.covered].sum()) // 2
    masses = dict(zip(bound.gaps.tolist(), bound.counts.tolist(), strict=True))
    assert masses == {6.0: tail, 5.0: tail, 3.0: LEVEL_QUANTA - 2 * tail}
    assert found.plain.gaps.tolist() == [3.0]


def test_dkw_by_hand():
    """With DKW the bound at a level is the larger of both shifted differences."""
    n, failure = 1000, 0.1
    x, y = np.arange(n) / n, 2 * np.arange(n) / n
    found = tables_of(x, y, failure=failure, kind="dkw").bound
    e = dkw_halfwidth(n, failure / 2)
    # gap(t) = t; U_G - L_F = 2 (t + e) - (t - e) = t + 3e, less what grid and ranks add.
    assert found.worst()[0, 0] == pytest.approx(1 - e + 3 * e, abs=0.05)
    assert found.worst()[0, 0] >= 1 - e + 3 * e - 0.003


@given(
    st.lists(st.integers(-5, 5), min_size=150, max_size=220),
    st.lists(st.integers(-5, 5), min_size=150, max_size=220),
    st.sampled_from(BANDS),
)
@settings(max_examples=30)
def test_never_below_the_gaps_of_the_samples(first, second, kind):
    """On the covered levels the sample is always inside its own band; with a range on all."""
    x, y = np.array(first, dtype=float), np.array(second, dtype=float)
    exact = gap_tables([FiniteDistribution.uniform(v[:, None]) for v in (x, y)], PAIR, LINE)
    found = tables_of(x, y, kind=kind, ends=(-5.0, 5.0))
    for rate in (0.01, 0.1):
        assert moment(found.bound, rate) >= math.exp(exact.log_moments(rate, 0.0)[0, 0]) - 1e-12
        assert moment(found.bound, rate) >= moment(found.plain, rate) - 1e-12
    covered = tables_of(x, y, kind=kind)
    assert covered.bound.worst()[0, 0] <= found.bound.worst()[0, 0]
    assert missing_mass(covered.bound)[0] == pytest.approx(
        1 - covered.bound.totals[0] / LEVEL_QUANTA
    )


def test_both_orders_of_a_pair_are_one(rng):
    x, y = rng.exponential(size=500), rng.normal(size=700)
    one, other = tables_of(x, y, ends=(-9, 9)).bound, tables_of(y, x, ends=(-9, 9)).bound
    assert np.array_equal(one.gaps, other.gaps)
    assert np.array_equal(one.counts, other.counts)


@pytest.mark.soundness
def test_the_float_error_of_a_projection_is_inside_its_bounds(rng):
    outputs = rng.normal(size=(60, 5)) * np.array([1e8, 1.0, 1e-3, 1e4, 1.0])
    directions = FiniteProfile.uniform(dim=5, n_directions=4, seed=0).directions
    sample = SortedSample.of(SampledDistribution(outputs=outputs), directions)
    low, high = sample.bounds(slice(0, 4), np.arange(1, 61))
    rows = [list(map(Fraction, row)) for row in outputs.tolist()]
    for k, u in enumerate(directions.tolist()):
        exact = sorted(sum(Fraction(a) * x for a, x in zip(u, row, strict=True)) for row in rows)
        assert all(a <= x <= b for a, x, b in zip(low[k], exact, high[k], strict=True))
    assert (high - low).max() < 1e-5


def test_gaps_to_a_public_end_do_not_give_a_record_away(rng):
    """The gap from a record to the range's end is rounded up, or the record could be read off."""
    x, y = rng.random(size=(2, 300)) + 1
    found = tables_of(x, y, ends=(0.0, 3.0)).bound
    worst = float(found.worst()[0, 0])
    assert not np.isin(3.0 - worst, np.concatenate([x, y]))
    bits = np.array([worst]).view(np.int64)[0]
    assert bits % 2**44 == 0
