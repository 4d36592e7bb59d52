# SPDX-License-Identifier: Apache-2.0
"""Tiny tables, enumerated: exact guesses, divergences and deltas against what is certified."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import logsumexp, ndtr
from scipy.stats import binom, norm
from tests.row_moments import rows_of

from pufferslice import Guarantee, Scenario, certify_release, queries
from pufferslice.scenario.rows import share_differing
from pufferslice.sensitivity import rows
from pufferslice.sensitivity.rows import transported_rows
from pufferslice.sensitivity.whitening import Covariance

pytestmark = pytest.mark.soundness

STEP = {1: 0.02, 2: 0.1}
"""Step of the grids of integration, in standard deviations of the noise."""
ERROR = {1: 1e-5, 2: 1e-3}
"""Error of integrals on these grids."""
COUPLINGS = ["independent", "cells:site", "transport:site", "transport"]


class Law:
    """A distribution of vectors, by its points and their probabilities."""

    def __init__(self, points, weights):
        points = np.round(np.asarray(points, dtype=float), 9)
        self.points, places = np.unique(points, axis=0, return_inverse=True)
        self.weights = np.bincount(places.ravel(), weights)

    @classmethod
    def of(cls, rows):
        return cls(rows, np.full(len(rows), 1 / len(rows)))

    def plus(self, other):
        points = (self.points[:, None] + other.points[None]).reshape(-1, self.points.shape[1])
        return Law(points, np.outer(self.weights, other.weights).ravel())

    def times(self, count):
        """The sum of so many independent draws."""
        total = Law(np.zeros((1, self.points.shape[1])), [1.0])
        for _ in range(count):
            total = total.plus(self)
        return total

    @classmethod
    def mixture(cls, laws, weights):
        points = np.concatenate([law.points for law in laws])
        shares = [w * law.weights for w, law in zip(weights, laws, strict=True)]
        return cls(points, np.concatenate(shares))


def densities(laws, whitening):
    """Densities of the laws with noise on a grid of whitened coordinates, and its cell size."""
    points = [law.points @ whitening.T for law in laws]
    every = np.concatenate(points)
    dim = every.shape[1]
    step = STEP[dim]
    axes = [
        np.arange(low - 7, high + 7, step)
        for low, high in zip(every.min(0), every.max(0), strict=True)
    ]
    found = []
    for law, own in zip(laws, points, strict=True):
        bells = [norm.pdf(axis[:, None] - own[None, :, k]) for k, axis in enumerate(axes)]
        last = bells[1] if dim > 1 else np.ones((1, len(own)))
        found.append((bells[0] * law.weights) @ last.T)
    return found, step**dim


def guess(laws, whitening):
    (p, q), cell = densities(laws, whitening)
    return 0.5 + np.abs(p - q).sum() * cell / 4


def bits(laws, whitening):
    """Kullback-Leibler divergence, the larger of both orders."""
    (p, q), cell = densities(laws, whitening)
    p, q = np.maximum(p, 1e-300), np.maximum(q, 1e-300)
    return max((p * np.log2(p / q)).sum(), (q * np.log2(q / p)).sum()) * cell


def delta(laws, whitening, epsilon):
    (p, q), cell = densities(laws, whitening)
    both = ((p, q), (q, p))
    return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in both) * cell


def whitening_of(certificate):
    """Matrix that makes the certified noise standard normal, in scaled coordinates."""
    shape = certificate.shape
    dim = len(certificate.statement.noise.std_by_coordinate)
    return (np.eye(dim) if shape is None else shape.whitening) / certificate.noise_std


def random_table(rng, dim, n_kinds=2):
    """A few rows of each kind: numbers, and a label that goes with them."""
    sizes = rng.integers(2, 5, n_kinds)
    kinds = np.repeat([f"k{k}" for k in range(n_kinds)], sizes)
    columns = {f"x{j}": rng.choice([0.0, 0.25, 0.5, 1.0], sizes.sum()) for j in range(dim)}
    site = np.where(rng.random(sizes.sum()) < 0.4 + 0.3 * columns["x0"], "a", "b")
    site[0], site[-1] = "a", "b"
    return pa.table({"kind": kinds, "site": site, **columns})


def query_of(dim, statistic):
    """Of so many coordinates: numbers, or one number and the rate of a label."""
    words = {"mean": "rate", "total": "count"}[statistic]
    numbers = queries.summary(**{statistic: ["x0"]}, clip={"x0": (0, 1)})
    if dim == 1:
        return numbers
    labels = queries.summary(**{words: {"site": "a"}})
    return queries.join(numbers, labels)


def kinds_of(scenario):
    """Rows of each kind, as they add to the scaled query."""
    return {name: Law.of(each.rows) for name, each in scenario.priors[0].distributions.items()}


def prevalence(rng, dim, **options):
    settings = {"column": "kind", "value": "k1", "source": "held_out"}
    settings |= {"query": query_of(dim, "mean")} | options
    return Scenario.from_prevalence(random_table(rng, dim), **settings)


def differing_law(scenario):
    """Probabilities of each number of rows that differ."""
    differing = scenario.differing()
    numbers = np.arange(differing.most + 1)
    return dict(enumerate(binom.pmf(numbers, differing.most, differing.probability)))


def known(law, differing):
    """The sum of the rows that differ, whoever knows the others."""
    return Law.mixture([law.times(d) for d in differing], list(differing.values()))


DESIGNS = {
    "stratified": {"n_rows": 20, "within": 0.15},
    "independent": {"n_rows": 5, "within": 0.3, "design": "independent"},
}


def certified(scenario, claim, coupling):
    if coupling.endswith(":site") and scenario.dim == 1:
        coupling = "independent"
    return certify_release(scenario, claim, coupling=coupling)


class TestPairs:
    @pytest.mark.parametrize("coupling", COUPLINGS)
    @pytest.mark.parametrize("design", DESIGNS)
    @pytest.mark.parametrize("dim", [1, 2])
    def test_guesses_and_bits(self, dim, design, coupling):
        """No random table is above its claim, whatever it is and however its rows meet."""
        for seed in range(4):
            rng = np.random.default_rng([dim, seed])
            scenario = prevalence(rng, dim, **DESIGNS[design])
            target = float(rng.choice([0.55, 0.64, 0.8]))
            certificate = certified(scenario, Guarantee.guess(at_most=target), coupling)
            differing, whitening = differing_law(scenario), whitening_of(certificate)
            worlds = [known(law, differing) for law in kinds_of(scenario).values()]
            assert guess(worlds, whitening) <= certificate.guess + ERROR[dim]
            # The same noise: a divergence of at most half the mean square, in nats.
            mean_square = certificate.statement.mean_square
            assert bits(worlds, whitening) * math.log(2) <= mean_square / 2 + ERROR[dim]

    @pytest.mark.parametrize("dim", [1, 2])
    @pytest.mark.parametrize("seed", range(3))
    def test_bits(self, dim, seed):
        scenario = prevalence(np.random.default_rng([3, seed]), dim, **DESIGNS["stratified"])
        certificate = certify_release(scenario, Guarantee.information(bits=0.2))
        differing, whitening = differing_law(scenario), whitening_of(certificate)
        worlds = [known(law, differing) for law in kinds_of(scenario).values()]
        assert bits(worlds, whitening) <= 0.2 + ERROR[dim]

    @pytest.mark.parametrize("coupling", COUPLINGS)
    @pytest.mark.parametrize("seed", range(4))
    def test_someone_who_holds_both_tables(self, seed, coupling):
        """The candidates of each coupling: on average at most the claim, and more than less known.

        Independent candidates are harder to hide than coupled ones: what is claimed of them is
        their own mean square.
        """
        scenario = prevalence(np.random.default_rng([4, seed]), 2, **DESIGNS["stratified"])
        certificate = certified(scenario, Guarantee.guess(at_most=0.64), coupling)
        whitening, (differing,) = whitening_of(certificate), [scenario.differing().most]
        first, second = scenario.priors[0].distributions.values()
        joint = joint_of(first, second, coupling, certificate)
        changes = joint.times(differing)
        distances = np.linalg.norm(changes.points @ whitening.T, axis=1)
        truth = changes.weights @ ndtr(distances / 2)
        assert truth <= certificate.guess
        squares = changes.weights @ distances**2
        assert squares <= certificate.statement.mean_square == pytest.approx(squares, rel=1e-5)
        worlds = [known(law, {differing: 1.0}) for law in kinds_of(scenario).values()]
        assert guess(worlds, whitening) <= truth + ERROR[2]

    @pytest.mark.parametrize("design", DESIGNS)
    @pytest.mark.parametrize("seed", range(3))
    def test_tables_whose_other_rows_are_unknown(self, seed, design):
        """At every share of a range: the other rows only hide more."""
        options = DESIGNS[design] | {"n_rows": 6, "within": 1 / 3}
        scenario = prevalence(np.random.default_rng([5, seed]), 1, **options)
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.64))
        whitening, n = whitening_of(certificate), 6
        without, having = kinds_of(scenario).values()

        def table(share):
            if design == "independent":
                return Law.mixture([without, having], [1 - float(share), float(share)]).times(n)
            n_having = math.floor(share * n + Fraction(1, 2))
            return having.times(n_having).plus(without.times(n - n_having))

        for share in [Fraction(k, 12) for k in range(9)]:
            worlds = [table(share), table(share + Fraction(1, 3))]
            assert guess(worlds, whitening) <= certificate.guess + ERROR[1]

    @pytest.mark.parametrize("seed", range(4))
    def test_rows_of_a_register_are_drawn_without_replacement(self, seed):
        """Hoeffding: whoever knows no row learns no more from rows that are all different."""
        scenario = prevalence(np.random.default_rng([6, seed]), 1, n_rows=4, within=0.5)
        rows = [
            np.tile(each.rows, (3, 1))[:6] for each in scenario.priors[0].distributions.values()
        ]
        table = pa.table({"kind": ["k0"] * 6 + ["k1"] * 6, "x0": np.concatenate(rows)[:, 0]})
        scenario = Scenario.from_prevalence(
            table, column="kind", value="k1", within=0.5, n_rows=4, query=query_of(1, "mean"),
            source="held_out",
        )  # fmt: skip
        certificate = certify_release(
            scenario, Guarantee.guess(at_most=0.64), coupling="independent"
        )
        strata = [each.rows for each in scenario.priors[0].distributions.values()]

        def released(n_having):
            law = Law(np.zeros((1, 1)), [1.0])
            for stratum, n in zip(strata, (4 - n_having, n_having), strict=True):
                if n:
                    sums = [sum(rows) for rows in itertools.combinations(stratum, n)]
                    law = law.plus(Law.of(sums))
            return law

        for n_having in range(3):
            worlds = [released(n_having), released(n_having + 2)]
            assert guess(worlds, whitening_of(certificate)) <= certificate.guess + ERROR[1]

    @pytest.mark.parametrize("seed", range(5))
    def test_several_kinds_change_at_once(self, seed):
        """Two divisions of rows among three kinds: some rows turn from a to b, some from c to b."""
        rng = np.random.default_rng([7, seed])
        dim = 1 + seed % 2
        table = random_table(rng, dim, n_kinds=3)
        scenario = Scenario.from_prevalence(
            table,
            column="kind",
            values=["k0", "k1"],
            within=0.15,
            n_rows=20,
            query=query_of(dim, "mean"),
            source="held_out",
        )
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.64))
        whitening, laws = whitening_of(certificate), list(kinds_of(scenario).values())
        for taken, given in itertools.product(divisions(3, 3), repeat=2):
            if any(a and b for a, b in zip(taken, given, strict=True)):
                continue
            worlds = []
            for counts in (taken, given):
                total = Law(np.zeros((1, dim)), [1.0])
                for law, n in zip(laws, counts, strict=True):
                    total = total.plus(law.times(n))
                worlds.append(total)
            assert guess(worlds, whitening) <= certificate.guess + ERROR[dim]


def divisions(total, n_kinds):
    return [c for c in itertools.product(range(total + 1), repeat=n_kinds) if sum(c) == total]


def joint_of(first, second, coupling, certificate):
    """The law of the change of one row under a coupling, from all pairs of rows."""
    pairs = np.full((len(first.rows), len(second.rows)), 1 / len(first.rows) / len(second.rows))
    if coupling == "transport":
        ((x, y, masses),) = transported_rows([first, second], [(0, 1)], certificate.shape)
        return Law(y - x, masses)
    if coupling.startswith("transport:"):
        # Any plan of the two labels, and rows that are independent given theirs.
        (plan,) = certificate.evidence.full.differences.plans
        labels = [each.codes(coupling.removeprefix("transport:")) for each in (first, second)]
        cells = np.unique(np.concatenate(labels))
        places = [np.searchsorted(cells, codes) for codes in labels]
        sizes = [np.bincount(own, minlength=len(cells)) for own in places]
        pairs = plan[np.ix_(*places)] / sizes[0][places[0]][:, None] / sizes[1][places[1]]
        assert pairs.sum(axis=1) == pytest.approx(np.full(len(pairs), 1 / len(pairs)))
        assert pairs.sum(axis=0) == pytest.approx(np.full(len(pairs.T), 1 / len(pairs.T)))
    if coupling.startswith("cells"):
        labels = [each.codes(coupling.removeprefix("cells:")) for each in (first, second)]
        shares = [
            {c: np.mean(codes == c) for c in set(np.concatenate(labels).tolist())}
            for codes in labels
        ]
        common = {c: min(shares[0][c], shares[1][c]) for c in shares[0]}
        rest = 1 - sum(common.values())
        for a, b in itertools.product(range(len(first.rows)), range(len(second.rows))):
            of_a, of_b = labels[0][a], labels[1][b]
            within = [1 / np.sum(codes == c) for codes, c in zip(labels, (of_a, of_b), strict=True)]
            mass = common[of_a] if of_a == of_b else 0.0
            if rest > 1e-12:
                left = (shares[0][of_a] - common[of_a]) * (shares[1][of_b] - common[of_b])
                mass += left / rest
            pairs[a, b] = mass * within[0] * within[1]
    changes = (second.rows[None] - first.rows[:, None]).reshape(-1, first.rows.shape[1])
    return Law(changes, pairs.ravel())


class TestRareOutputs:
    """Rényi divergences and deltas by theorem 2: of the whole laws, in both orders."""

    RENYI = Guarantee.unsliced(order=4, epsilon=1.0)
    DELTA = Guarantee.epsilon_delta(epsilon=1.0, delta=1e-3)

    def check(self, laws, certificate):
        """The claim, and every view."""
        whitening, claim = whitening_of(certificate), certificate.guarantee
        if claim.has_order:
            assert renyi(laws, whitening, claim.order) <= claim.bound * (1 + 1e-4)
        elif claim.hockey_stick is not None:
            epsilon, limit = claim.hockey_stick
            assert delta(laws, whitening, epsilon) <= limit * 1.003
        for view in certificate.statement.views:
            assert delta(laws, whitening, view.epsilon) <= view.delta * 1.003

    @pytest.mark.parametrize("claim", [RENYI, DELTA], ids=["renyi", "delta"])
    @pytest.mark.parametrize("coupling", COUPLINGS)
    @pytest.mark.parametrize("design", DESIGNS)
    @pytest.mark.parametrize("dim", [1, 2])
    def test_pairs(self, dim, design, coupling, claim):
        for seed in range(3 - dim):
            scenario = prevalence(np.random.default_rng([12, dim, seed]), dim, **DESIGNS[design])
            certificate = certified(scenario, claim, coupling)
            differing = differing_law(scenario)
            self.check([known(law, differing) for law in kinds_of(scenario).values()], certificate)

    @pytest.mark.parametrize("coupling", COUPLINGS)
    def test_views_beside_a_guess(self, coupling):
        scenario = prevalence(np.random.default_rng([13, 0]), 2, **DESIGNS["stratified"])
        certificate = certified(scenario, Guarantee.guess(at_most=0.6), coupling)
        differing = differing_law(scenario)
        assert certificate.statement.views
        self.check([known(law, differing) for law in kinds_of(scenario).values()], certificate)

    @pytest.mark.parametrize("coupling", ["cells:site", "transport:site"])
    def test_changes_are_kept_in_layers_where_the_claim_needs_them(self, coupling, monkeypatch):
        """Else the rows of each kind alone, if the cells are many: that takes long."""
        guess = Guarantee.guess(at_most=0.6)
        for claim, few, n_laws in ((guess, 64, 3), (guess, 1, 2), (self.RENYI, 1, 3)):
            monkeypatch.setattr(rows, "_FEW_CELLS", few)
            scenario = prevalence(np.random.default_rng([13, 1]), 2, **DESIGNS["stratified"])
            evidence = certified(scenario, claim, coupling).evidence
            assert len(evidence.full.differences.radii) == n_laws
            assert evidence.full.recipe.layers_changes == (claim is self.RENYI)

    @pytest.mark.parametrize("claim", [RENYI, DELTA], ids=["renyi", "delta"])
    @pytest.mark.parametrize("dim", [1, 2])
    def test_several_kinds_change_at_once(self, dim, claim):
        scenario = Scenario.from_prevalence(
            random_table(np.random.default_rng([14, dim]), dim, n_kinds=3),
            column="kind",
            values=["k0", "k1"],
            within=0.1,
            n_rows=20,
            query=query_of(dim, "mean"),
            source="held_out",
        )
        certificate = certify_release(scenario, claim)
        laws = list(kinds_of(scenario).values())
        for taken, given in itertools.combinations(divisions(2, 3), 2):
            if not any(a and b for a, b in zip(taken, given, strict=True)):
                worlds = [
                    laws[0].times(a).plus(laws[1].times(b)).plus(laws[2].times(c))
                    for a, b, c in (taken, given)
                ]
                self.check(worlds, certificate)

    @pytest.mark.parametrize("dim", [1, 2])
    def test_it_is_reached(self, dim):
        """Rows of a kind that are all alike: a bound 2 % lower would be false."""
        columns = {"kind": ["k0"] * 3 + ["k1"] * 3, "x0": [0.0] * 3 + [1.0] * 3}
        table = pa.table({**columns, "site": ["b"] * 3 + ["a"] * 3})
        settings = {"column": "kind", "value": "k1", "source": "held_out", "n_rows": 200}
        scenario = Scenario.from_prevalence(
            table, **settings, within=0.15, query=query_of(dim, "mean")
        )
        worlds = [law.times(30) for law in kinds_of(scenario).values()]
        certificate = certify_release(scenario, self.RENYI)
        assert renyi(worlds, whitening_of(certificate), 4.0) == pytest.approx(1.0, rel=0.02)
        self.check(worlds, certificate)
        certificate = certify_release(scenario, self.DELTA)
        truth = delta(worlds, whitening_of(certificate), 1.0)
        assert truth == pytest.approx(1e-3, rel=0.02 if dim == 1 else 0.2)
        self.check(worlds, certificate)


def renyi(laws, whitening, order):
    """Rényi divergence, the larger of both orders, on a grid as far as either law is tilted."""
    points = [law.points @ whitening.T for law in laws]
    dim = points[0].shape[1]
    every = np.concatenate(points)
    middle, reach = (every.max(0) + every.min(0)) / 2, (every.max(0) - every.min(0)) / 2
    step = 4 * STEP[dim] / (3 if dim == 2 else 1)
    far = 2 * order * reach + 8
    axes = [np.arange(-end, end, step) + m for m, end in zip(middle, far, strict=True)]
    logs = []
    for law, own in zip(laws, points, strict=True):
        bells = [norm.logpdf(axis[:, None] - own[None, :, k]) for k, axis in enumerate(axes)]
        total = np.full([len(axis) for axis in axes], -np.inf)
        for k, weight in enumerate(law.weights):
            parts = [bell[:, k] for bell in bells]
            part = parts[0] if dim == 1 else np.add.outer(*parts)
            total = np.logaddexp(total, part + np.log(weight)) if weight > 0 else total
        logs.append(total)
    found = max(logsumexp(order * a + (1 - order) * b) for a, b in (logs, logs[::-1]))
    return (found + dim * math.log(step)) / (order - 1)


class TestSizes:
    @pytest.mark.parametrize("dim", [1, 2])
    @pytest.mark.parametrize("seed", range(4))
    def test_volume(self, dim, seed):
        """Any two sizes within the ratio, with the smaller table known or not."""
        rng = np.random.default_rng([8, dim, seed])
        scenario = Scenario.from_volume(
            random_table(rng, dim),
            query=query_of(dim, "total"),
            up_to=9,
            ratio=1.3,
            source="held_out",
        )
        assert scenario.secret["n_differing"] == 2
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.64))
        whitening, law = whitening_of(certificate), kinds_of(scenario)["the larger size"]
        for larger in range(1, 10):
            for smaller in range(math.ceil(larger / Fraction("1.3")), larger):
                worlds = [law.times(0), law.times(larger - smaller)]
                assert guess(worlds, whitening) <= certificate.guess + ERROR[dim]
                if dim == 1:
                    worlds = [law.times(smaller), law.times(larger)]
                    assert guess(worlds, whitening) <= certificate.guess + ERROR[dim]

    @pytest.mark.parametrize("seed", range(3))
    def test_supplier(self, seed):
        rng = np.random.default_rng([9, seed])
        scenario = Scenario.from_supplier(
            random_table(rng, 2),
            column="kind",
            value="k1",
            query=query_of(2, "total"),
            up_to=9,
            ratio=1.3,
            source="held_out",
        )
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.6))
        whitening, law = whitening_of(certificate), kinds_of(scenario)["the larger size"]
        assert guess([law.times(0), law.times(2)], whitening) <= certificate.guess + ERROR[2]


class TestReached:
    """Rows of one kind are all alike: the distance is one number, and nothing is lost."""

    TABLE = pa.table({"kind": ["k0"] * 3 + ["k1"] * 3, "x0": [0.0] * 3 + [1.0] * 3})

    @pytest.mark.parametrize("at_most", [0.55, 0.64, 0.9])
    def test_prevalence(self, at_most):
        scenario = Scenario.from_prevalence(
            self.TABLE,
            column="kind",
            value="k1",
            within=0.15,
            n_rows=200,
            query=query_of(1, "mean"),
            source="held_out",
        )
        certificate = certify_release(scenario, Guarantee.guess(at_most=at_most))
        worlds = [law.times(30) for law in kinds_of(scenario).values()]
        truth = guess(worlds, whitening_of(certificate))
        assert at_most - 0.02 * (at_most - 0.5) < truth <= at_most + ERROR[1]

    def test_supplier_and_bits(self):
        scenario = Scenario.from_supplier(
            self.TABLE,
            column="kind",
            value="k1",
            query=query_of(1, "total"),
            up_to=100,
            ratio=1.25,
            source="held_out",
        )
        certificate = certify_release(scenario, Guarantee.information(bits=0.25))
        worlds = [law.times(20) for law in kinds_of(scenario).values()]
        truth = bits(worlds, whitening_of(certificate))
        assert 0.98 * 0.25 < truth <= 0.25 + ERROR[1]


class TestOnePerson:
    @pytest.mark.parametrize("dim", [1, 2])
    @pytest.mark.parametrize("seed", range(4))
    def test_no_delta_is_above_the_statement(self, dim, seed):
        """Each row of a tiny table replaced by each other one, the rest known or drawn."""
        rng = np.random.default_rng([10, dim, seed])
        scenario = prevalence(rng, dim, n_rows=4, within=0.3)
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.7), person=(1.0, 1e-3))
        person, whitening = certificate.statement.one_person, whitening_of(certificate)
        laws = list(kinds_of(scenario).values())
        rows = np.unique(np.concatenate([law.points for law in laws]), axis=0)
        others = [Law(np.zeros((1, dim)), [1.0]), laws[0].plus(laws[1]).plus(laws[1])]
        for one, other in itertools.combinations(rows, 2):
            for rest in others[: 3 - dim]:
                worlds = [Law(row[None], [1.0]).plus(rest) for row in (one, other)]
                found = delta(worlds, whitening, person.epsilon)
                assert found <= person.delta * 1.003

    def test_it_is_reached(self):
        """Two rows at the two ends of the range."""
        scenario = Scenario.from_prevalence(
            TestReached.TABLE,
            column="kind",
            value="k1",
            within=0.3,
            n_rows=4,
            query=query_of(1, "mean"),
            source="held_out",
        )
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.9), person=(1.0, 1e-3))
        person, whitening = certificate.statement.one_person, whitening_of(certificate)
        ends = scenario.priors[0].distributions["the larger share"].boxes
        worlds = [Law(end, [1.0]) for end in (ends.low, ends.high)]
        assert 0.98 < delta(worlds, whitening, person.epsilon) / person.delta <= 1.001

    @pytest.mark.parametrize("seed", range(3))
    def test_a_row_more_where_the_size_is_hidden(self, seed):
        rng = np.random.default_rng([11, seed])
        scenario = Scenario.from_volume(
            random_table(rng, 1),
            query=query_of(1, "total"),
            up_to=9,
            ratio=1.3,
            source="held_out",
        )
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.9))
        person, whitening = certificate.statement.one_person, whitening_of(certificate)
        ends = scenario.priors[0].distributions["the larger size"].boxes
        for one, other in itertools.combinations(np.vstack([ends.low, ends.high]), 2):
            worlds = [Law(row[None], [1.0]) for row in (one, other)]
            assert delta(worlds, whitening, person.epsilon) <= person.delta * 1.01 + 1e-9


class TestKnownAnswers:
    def test_five_rows_that_rarely_change(self):
        """n = 100, D = 5, P(W = 1) = 1/5, noise 1/50."""
        rows = rows_of(shift=[0.2], spread=[[0.16]], spans=[1.0], counts=[5.0, 25.0])
        noise = Covariance(dim=1, std=2.0)  # in hundredths
        counts, weights = np.arange(6), binom.pmf(np.arange(6), 5, 0.2)
        (rho,) = rows.mean_squares(noise)
        assert rho == pytest.approx(weights @ (counts / 2) ** 2, rel=1e-6)
        assert rho == pytest.approx(0.45, rel=1e-6)
        truth = weights @ ndtr(counts / 4)
        assert truth == pytest.approx(0.595949101074213, rel=1e-12)
        claimed = 0.5 + rows.variations(noise)[0] / 2
        assert claimed == pytest.approx(0.631342161391791, rel=1e-6)
        assert truth < claimed
        distances = counts[1:] / 2
        h_1 = ndtr(distances / 2 - 1 / distances) - math.e * ndtr(-distances / 2 - 1 / distances)
        assert weights[1:] @ h_1 == pytest.approx(0.0486749417989402, rel=1e-12)
        assert rows.delta_curve(noise)(1.0)[0] >= weights[1:] @ h_1

    @pytest.mark.parametrize("n_rows", [2, 7, 10, 12, 25])
    @pytest.mark.parametrize("within", [0.1, 0.05, 1 / 3, 0.07])
    def test_python_rounding_would_break_the_number_of_rows(self, n_rows, within):
        """Half up, no two counts differ by more; `round`, half to even, does break it."""
        most = share_differing(within, n_rows, "stratified").most
        steps = [Fraction(k, 400) for k in range(401)]
        span = Fraction(repr(within))
        pairs = [(p, p + span) for p in steps if p + span <= 1]
        half_up = [math.floor(q * n_rows + Fraction(1, 2)) for pair in pairs for q in pair]
        assert max(b - a for a, b in zip(half_up[::2], half_up[1::2], strict=True)) <= most

    def test_half_to_even_is_not_half_up(self):
        """n = 10: 5 and 15 % are rounded to 0 and to 2 rows, which differ by 2 and not by 1."""
        counts = [round(Fraction(share) * 10) for share in ("0.05", "0.15")]
        assert counts == [0, 2]
        assert share_differing(0.1, 10, "stratified").most == 1
