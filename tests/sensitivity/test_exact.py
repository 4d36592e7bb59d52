# SPDX-License-Identifier: Apache-2.0
"""Gap tables of finite distributions, against quantile functions in fractions and POT."""

import itertools
from fractions import Fraction
from types import SimpleNamespace

import attrs
import numpy as np
import ot
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import oracles

from pufferslice._core.threads import silent
from pufferslice.errors import ScenarioError
from pufferslice.queries import summary
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity import DistributionPair, gap_tables
from pufferslice.sensitivity.couplings import Recipe, coupling_tables
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.sensitivity import slice_sensitivity
from pufferslice.sensitivity.tables import FINEST_DIGITS, OCTAVES

LINE = np.array([[1.0]])
ONE_PAIR = [DistributionPair(0, 1)]
WIDTH = 1 + Fraction(1, 2**FINEST_DIGITS)
FLOOR = Fraction(1, 2**OCTAVES)


def on_the_line(values, counts=None):
    outputs = np.array(values, dtype=float)[:, None]
    counts = np.ones(len(outputs), dtype=int) if counts is None else counts
    return FiniteDistribution(outputs=outputs, counts=counts)


def line_table(first, second):
    return gap_tables([first, second], ONE_PAIR, LINE)


def entries(tables):
    """[(gap, mass)] of a single row, as floats."""
    return list(zip(tables.gaps.tolist(), tables.masses.tolist(), strict=True))


class TestKnownTables:
    def test_one_atom_moves(self):
        tables = line_table(on_the_line([0, 0, 10, 0]), on_the_line([0, 0, 0, 0]))
        assert entries(tables) == [(10.0, 0.25), (0.0, 0.75)]
        assert tables.worst().tolist() == [[10.0]]
        assert not tables.equal.any()

    def test_unequal_sizes_merge_the_break_points(self):
        """{0, 6} against {0, 3, 6}: break points 1/3, 1/2, 2/3."""
        tables = line_table(on_the_line([6, 0]), on_the_line([3, 6, 0]))
        assert entries(tables) == [(3.0, 1 / 3), (0.0, 2 / 3)]
        assert tables.totals.tolist() == [6]

    def test_multiplicities(self):
        """3/4 at 0, 1/4 at 8 against 1/2 at 0, 1/2 at 1."""
        tables = line_table(on_the_line([0, 8], [3, 1]), on_the_line([1, 0]))
        assert entries(tables) == [(7.0, 0.25), (1.0, 0.25), (0.0, 0.5)]

    def test_a_gap_far_below_the_worst_is_raised_to_the_floor(self):
        tables = line_table(on_the_line([1, 1e-9, 0]), on_the_line([0, 0, 0]))
        gaps = [gap for gap, _ in entries(tables)]
        assert gaps[0] == 1.0
        assert gaps[-1] == 0.0
        assert 1e-9 <= gaps[1] <= 2.0**-OCTAVES

    def test_rows_are_stored_slice_by_slice(self):
        """Two instances and three axes: worst() is (instance, slice)."""
        distributions = [
            FiniteDistribution.uniform([row]) for row in ([0, 0, 0], [1, 2, 3], [10, 20, 30])
        ]
        tables = gap_tables(
            distributions, [DistributionPair(0, 1), DistributionPair(1, 2)], np.eye(3)
        )
        assert tables.worst().tolist() == [[1.0, 2.0, 3.0], [9.0, 18.0, 27.0]]
        assert (tables.n_instances, tables.n_slices) == (2, 3)
        assert tables.gaps.tolist() == [1.0, 9.0, 2.0, 18.0, 3.0, 27.0]

    def test_equal_distributions_are_marked(self):
        distribution, twice, other = (on_the_line(v) for v in ([0, 1], [1, 0, 0, 1], [0, 2]))
        pairs = [DistributionPair(0, 1), DistributionPair(0, 2), DistributionPair(0, 0)]
        assert gap_tables([distribution, twice, other], pairs, LINE).equal.tolist() == [
            True,
            False,
            True,
        ]

    def test_distributions_equal_along_the_slice_only_are_not_marked(self):
        first, second = FiniteDistribution.uniform([[0, 1]]), FiniteDistribution.uniform([[0, 2]])
        tables = gap_tables([first, second], ONE_PAIR, np.array([[1.0, 0.0]]))
        tables.check()
        assert entries(tables) == [(0.0, 1.0)]
        assert tables.equal.tolist() == [False]


class TestAgainstQuantileFunctions:
    @pytest.mark.soundness
    @given(oracles.worlds())
    def test_dominates_the_truth_and_is_within_one_bin(self, world):
        distributions, pairs, profile = world
        tables = gap_tables(distributions, pairs, profile.directions)
        truth = oracles.true_gap_distributions(distributions, pairs, profile.directions)
        for i, k in itertools.product(range(len(pairs)), range(profile.n_directions)):
            table, true = oracles.tabulated(tables, i, k), truth[i][k]
            worst = true[0][0]
            # An oblique projection of values up to 3 is off by a few 2^-53 of them.
            error = Fraction(0) if 1.0 in abs(profile.directions[k]) else Fraction(1, 2**46)
            assert sum(mass for _, mass in table) == 1
            assert oracles.dominates(table, true)
            assert worst <= Fraction(float(tables.worst()[i, k])) <= worst + error
            wide = [(gap + error, mass) for gap, mass in true]
            assert oracles.dominates(oracles.stretched(wide, WIDTH, (worst + error) * FLOOR), table)

    @given(st.data())
    def test_axes_are_exact_and_zero_has_its_own_bin(self, data):
        distributions = [data.draw(oracles.empirical_distributions(2)) for _ in range(2)]
        tables = gap_tables(distributions, ONE_PAIR, np.eye(2))
        truth = oracles.true_gap_distributions(distributions, ONE_PAIR, np.eye(2))
        for k in range(2):
            table = oracles.tabulated(tables, 0, k)
            # Quarters up to 6 have at most 5 binary digits: nothing is rounded at all.
            assert dict(table) == dict(truth[0][k])

    @pytest.mark.soundness
    def test_dominates_for_values_whose_difference_is_not_a_float(self, rng):
        """A difference of floats rounds down as often as up; the table may only round up."""
        short = 0
        for _ in range(50):
            first, second = rng.normal(size=2) * 10.0 ** rng.integers(-3, 4, size=2)
            table = line_table(on_the_line([first]), on_the_line([second]))
            short += Fraction(float(table.worst()[0, 0])) < abs(Fraction(first) - Fraction(second))
        assert short == 0

    @pytest.mark.soundness
    def test_dominates_along_oblique_directions_of_badly_scaled_points(self, rng):
        for seed in range(20):
            dim = int(rng.integers(2, 12))
            outputs = rng.normal(size=(2, 4, dim)) * 10.0 ** rng.integers(-6, 7, size=dim)
            distributions = [FiniteDistribution.uniform(rows) for rows in outputs]
            u = FiniteProfile.uniform(dim=dim, n_directions=3, seed=seed).directions
            tables = gap_tables(distributions, ONE_PAIR, u)
            truth = oracles.true_gap_distributions(distributions, ONE_PAIR, u)
            for k in range(3):
                assert oracles.dominates(oracles.tabulated(tables, 0, k), truth[0][k])

    def test_many_samples(self, rng):
        """Sorted differences by numpy, for sizes that blocks and threads see."""
        first, second = rng.standard_t(3, size=(2, 9001, 3))
        u = FiniteProfile.uniform(dim=3, n_directions=19, seed=2).directions
        tables = gap_tables([FiniteDistribution.uniform(x) for x in (first, second)], ONE_PAIR, u)
        for k, direction in enumerate(u):
            gaps = np.sort(np.abs(np.sort(first @ direction) - np.sort(second @ direction)))
            row = slice(tables.starts[k], tables.starts[k + 1])
            ranks = np.repeat(tables.gaps[row], tables.counts[row])[::-1]
            assert tables.worst()[0, k] == pytest.approx(gaps[-1], rel=1e-13)
            assert (ranks >= gaps * (1 - 1e-13) - 1e-14).all()
            assert (
                ranks <= np.maximum(gaps, gaps[-1] * 2.0**-OCTAVES) * (1 + 2.0**-8) + 1e-13
            ).all()


class TestAgainstPOT:
    def test_the_monotone_plan_has_the_tabulated_distribution(self, rng):
        for _ in range(20):
            n, m = rng.integers(1, 9, size=2)
            x, y = rng.integers(-20, 20, size=n) / 4, rng.integers(-20, 20, size=m) / 4
            a, b = (rng.integers(1, 6, size=k) for k in (n, m))
            plan = ot.emd_1d(x, y, a / a.sum(), b / b.sum(), metric="sqeuclidean")
            table = line_table(on_the_line(x, a), on_the_line(y, b))
            true = {}
            for i, j in zip(*np.nonzero(plan > 1e-12), strict=True):
                gap = abs(x[i] - y[j])
                true[gap] = true.get(gap, 0) + plan[i, j]
            assert dict(entries(table)) == pytest.approx(true, abs=1e-12)

    def test_worst_gap_is_bottleneck_by_brute_force(self, rng):
        for _ in range(20):
            x, y = rng.integers(-20, 20, size=(2, 5)) / 4
            best = min(
                max(abs(x[i] - y[j]) for i, j in enumerate(order))
                for order in itertools.permutations(range(5))
            )
            assert line_table(on_the_line(x), on_the_line(y)).worst()[0, 0] == best


class TestInvariances:
    def tables(self, distributions, directions):
        return gap_tables(distributions, ONE_PAIR, directions)

    def same(self, one, two):
        assert two.gaps.tolist() == one.gaps.tolist()
        assert two.masses.tolist() == one.masses.tolist()

    @given(st.data())
    def test_order_of_samples_duplication_translation_swap(self, data):
        distributions = [data.draw(oracles.empirical_distributions(2)) for _ in range(2)]
        base = self.tables(distributions, np.eye(2))
        changes = [
            lambda rows, counts: (rows[::-1], counts[::-1]),
            lambda rows, counts: (np.vstack([rows] * 2), np.concatenate([counts] * 2)),
            lambda rows, counts: (rows + np.array([2.5, -7.0]), counts),
        ]
        for change in changes:
            changed = [change(x.outputs, x.counts) for x in distributions]
            other = [FiniteDistribution(outputs=rows, counts=counts) for rows, counts in changed]
            self.same(base, self.tables(other, np.eye(2)))
        self.same(base, self.tables(distributions[::-1], np.eye(2)))
        self.same(base, self.tables(distributions, -np.eye(2)))

    def test_scale_equivariance(self, rng):
        """Exact for powers of two; within one bin for others."""
        outputs = rng.normal(size=(2, 40, 3))
        u = FiniteProfile.uniform(dim=3, n_directions=4, seed=0).directions
        base = self.tables([FiniteDistribution.uniform(x) for x in outputs], u)
        eight = self.tables([FiniteDistribution.uniform(8 * x) for x in outputs], u)
        assert eight.gaps.tolist() == (8 * base.gaps).tolist()
        assert eight.counts.tolist() == base.counts.tolist()
        three = self.tables([FiniteDistribution.uniform(3 * x) for x in outputs], u)
        assert three.worst() == pytest.approx(3 * base.worst(), rel=1e-13)
        moments = [t.log_moments(rate, 0.0) for t, rate in ((base, 0.9), (three, 0.1))]
        assert moments[1] == pytest.approx(moments[0], rel=0.02)

    def test_the_same_whatever_the_other_distributions_and_directions(self, rng):
        """A pair's row does not depend on what is tabulated beside it."""
        distributions = [FiniteDistribution.uniform(rng.normal(size=(n, 2))) for n in (7, 11, 3)]
        u = FiniteProfile.uniform(dim=2, n_directions=21, seed=3).directions
        pairs = [DistributionPair(0, 1), DistributionPair(1, 2), DistributionPair(0, 2)]
        together = gap_tables(distributions, pairs, u)
        for i, pair in enumerate(pairs):
            alone = gap_tables(
                [distributions[pair.first], distributions[pair.second]], ONE_PAIR, u[[17]]
            )
            gaps, masses = zip(*oracles.tabulated(together, i, 17), strict=True)
            alone_gaps, alone_masses = zip(*oracles.tabulated(alone, 0, 0), strict=True)
            assert masses == alone_masses
            assert [float(g) for g in gaps] == pytest.approx([float(g) for g in alone_gaps])


@pytest.mark.soundness
@pytest.mark.parametrize("scale", [1e-170, 1e-150, 1e-100, 1.0, 1e100])
@pytest.mark.parametrize("n_second", [1, 2])
def test_distances_do_not_vanish_below_the_range_of_squares(scale, n_second):
    """A distance of 0 would say that distributions which differ cost nothing."""
    first = FiniteDistribution.uniform([[scale, scale]])
    second = FiniteDistribution.uniform([[0.0, 0.0]] * n_second)
    found = coupling_tables([first, second], ONE_PAIR, Recipe()).worst()
    assert (found >= scale * np.sqrt(2) * (1 - 1e-15)).all()
    assert (found <= scale * np.sqrt(2) * (1 + 1e-15)).all()


@pytest.mark.soundness
class TestGapsThatRoundToTheEdgeOfABin:
    """1.1 - 0.1 is 1.0 in floats and more in exact arithmetic: the gap belongs above the edge."""

    @pytest.mark.parametrize("n_samples", [1, 2, 3, 4])
    def test_the_worst_gap_keeps_its_mass(self, n_samples):
        first = on_the_line([1.1] * n_samples + [0.105])
        second = on_the_line([0.1] * (n_samples + 1))
        tables = line_table(first, second)
        tables.check()
        gap, mass = entries(tables)[0]
        assert Fraction(gap) >= Fraction(1.1) - Fraction(0.1)
        assert mass == n_samples / (n_samples + 1)

    @given(st.lists(st.tuples(st.integers(-40, 40), st.integers(-40, 40)), min_size=1, max_size=6))
    def test_decimals(self, tenths):
        first, second = (sorted(t / 10 for t in side) for side in zip(*tenths, strict=True))
        tables = line_table(on_the_line(first), on_the_line(second))
        tables.check()
        exact = (abs(Fraction(a) - Fraction(b)) for a, b in zip(first, second, strict=True))
        assert Fraction(tables.worst().item()) >= max(exact)


@pytest.mark.soundness
def test_a_type_of_distribution_without_a_row_is_refused():
    """Left out, it would move the places of the others."""
    worlds = {"a": on_the_line([0.0]), "b": on_the_line([1.0])}
    scenario = Scenario.from_worlds(worlds, query=summary(mean=["x"]))
    (prior,) = scenario.priors
    foreign = dict.fromkeys(worlds, SimpleNamespace(kind="empirical", dim=1))
    mixed = attrs.evolve(
        scenario, priors=(prior, attrs.evolve(prior, name="foreign", distributions=foreign))
    )
    with pytest.raises(ScenarioError, match="must be of one kind"):
        slice_sensitivity(mixed, FiniteProfile.axes(dim=1), None, silent)
