# SPDX-License-Identifier: Apache-2.0
"""Couplings that bound the whole output: any is sound, better ones need less noise.

A coupling is a list of pieces: an atom of the first distribution, one of the second, and an integer
mass. Both marginals are exact. Candidates come from bisection with exact transport in small blocks,
from exact transport of the whole where that is small, and from monotone couplings along axes.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple, final, get_args

import attrs
import numpy as np
import scipy  # loads its packages of solvers when one is asked for: our start is shorter
from scipy.special import logsumexp

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_above, check_at_least, check_count, check_one_of
from pufferslice._core.threads import Progress, in_threads, silent
from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import FiniteDistribution, equal_distributions
from pufferslice.sensitivity.coupling_kernels import (
    DELTA,
    RENYI,
    SQUARED,
    bisect,
    corner,
    improve,
    pair_squares,
    piece_distances,
    piece_squares,
    random_directions,
    to_costs,
    transport,
)
from pufferslice.sensitivity.kernels import project, stable_order
from pufferslice.sensitivity.renyi import row_deltas
from pufferslice.sensitivity.tables import (
    MOST_ENTRIES,
    DistributionPair,
    MatchingTables,
    Rounder,
    Row,
    resolved,
)

Effort = Literal["quick", "thorough"]
EFFORTS: Final = get_args(Effort)
Cost = Literal["squared", "renyi", "delta", "guess"]

SEED: Final = 15
"""Seed of the directions along which distributions are cut; any seed gives a sound coupling."""

MOST_MATCHINGS: Final = 16
"""Largest number of monotone couplings that are tried."""

_N_DIRECTIONS: Final = 1024
_STRIDE: Final = 37
"""Number of directions by which each round starts later than the last."""
_SIDES: Final = (2, 2, 2, 0, 2, 2, 2, 1)
"""Kind of nearness in each round: mostly that of the sum of both atoms, which gains most."""
_BLOCK: Final = 64
_QUICK_BLOCK: Final = 32
"""Largest number of pieces that are coupled anew together."""
_FEWEST_ROUNDS: Final = 8
_MOST_ROUNDS: Final = 64
_WORK: Final = 16_000_000
"""Number of pieces that all rounds of a thorough search may visit, where there are many."""
_QUICKER: Final = 16
_PATIENCE: Final = 4
_LEAST_FALL: Final = 0.002
"""Least share by which the cost must fall in `_PATIENCE` rounds for a search to continue."""
_ASSIGNED: Final = 2_000
"""Largest number of units of mass for which the whole problem is solved as an assignment."""
_CELLS: Final = 2**18
"""Largest number of pairs of atoms for which the whole problem is solved as a transport."""
_BOTTLENECK: Final = 600
_ALL_CELLS: Final = 2**26
"""Largest number of pairs of atoms, over all instances, that exact solutions may visit."""
_PIECES_PER_ATOM: Final = 2
_UNITS_PER_ATOM: Final = 4
_BULK: Final = 0.95
"""Share of mass put into equal units where masses have no common one; the rest is coupled apart."""
_FEW_ROUNDS: Final = 2
"""Largest number of rounds that indicates large data: pieces are few, and the farthest get most of
the work."""
_SINGLE: Final = 0.8
"""Share of mass in one unit an atom from which on these units are coupled apart."""
_FAR_SHARES: Final = (0.25, 0.06, 0.015, 0.004)
"""Shares of the farthest pieces that are coupled anew last, because they cost most."""
_FOREVER: Final = 1e300
_LARGEST: Final = 1e100


@final
@attrs.frozen(kw_only=True)
class Recipe:
    """Parameters of a search for couplings: all that a second run needs to find the same ones.

    Distances r are those of the outputs that the caller passes (whitened, for shaped noise).
    """

    effort: Effort = "thorough"
    """`quick` takes seconds on large data; `thorough` searches until the cost hardly falls."""
    cost: Cost = "squared"
    """Cost that the last rounds lower and that ranks the candidates: the claim's own."""
    rate: float = 0.0
    """Rate of the cost `renyi`, exp(rate * r^2): order * (order - 1) / (2 * noise_std^2)."""
    epsilon: float = 0.0
    """Epsilon of the cost `delta`, the delta at epsilon of two Gaussians r / noise_std apart."""
    noise_std: float = 0.0
    """Noise of the costs `delta` and `guess`; the cost of a guess is the delta at epsilon 0. With
    it, every other cost also keeps the candidate that is best for the guess."""
    coupling: str = "independent"
    """For sums of rows, the coupling of the two rows of a change."""
    layers_changes: bool = True
    """For rows that meet by cells, whether layers of the changes are kept, beside those of each
    kind of rows: claims about rare outputs need less noise with them."""

    def __attrs_post_init__(self) -> None:
        check_one_of(get_args(Effort), effort=self.effort)
        check_one_of(get_args(Cost), cost=self.cost)
        check_at_least(0, rate=self.rate, epsilon=self.epsilon, noise_std=self.noise_std)
        if self.cost == "renyi":
            check_above(0, rate=self.rate)
        if self.cost in {"delta", "guess"}:
            check_above(0, noise_std=self.noise_std)

    @property
    def of_guess(self) -> "Recipe | None":
        """Recipe for a guess at the same noise; None if the noise is not known."""
        return attrs.evolve(self, cost="guess") if self.noise_std else None


def coupling_tables(
    distributions: Sequence[FiniteDistribution],
    pairs: Sequence[DistributionPair],
    recipe: Recipe,
    progress: Progress = silent,
    *,
    n_instances: int | None = None,
) -> MatchingTables:
    """Compute distances in all dimensions: one `slice` of the tables per candidate coupling.

    `n_instances` are those among which the work is shared, by default these pairs.

    The first is best under the recipe's cost, the second under the squared distance, the third has
    the least worst distance, and the fourth, where the noise is known, is best for the guess.
    Callers take the least per instance and claim.
    Guarantee: every candidate is a coupling with exact marginals, so each bounds every claim about
    the whole output; distances are rounded up, after a sum of squares in floats.
    """
    slots = 1 if distributions[0].dim == 1 else len(_rankings(recipe))
    most = max(2, 4 * MOST_ENTRIES // max(1, slots * len(pairs)))

    def rows_of(instance: "_Instance") -> list[Row]:
        if instance.equal:
            zero = np.zeros(1), np.array([instance.total], dtype=np.int64)
            return [zero] * slots
        rounder = Rounder(most)
        rows: dict[int, Row] = {}
        best = instance.best(recipe)[:slots]
        for pieces in best:
            if id(pieces) not in rows:
                distances = instance.distances(pieces)
                rows[id(pieces)] = rounder.row(distances, pieces.masses)
        return [rows[id(pieces)] for pieces in best]

    instances = _instances(distributions, pairs, n_instances)
    tables = in_threads(rows_of, instances, progress)
    rows = [rows[slot] for slot in range(slots) for rows in tables]
    totals = [instance.total for instance in instances]
    fine = MatchingTables.of_rows(rows, totals, [instance.equal for instance in instances])

    def make(chosen: Integers, most: int, _progress: Progress) -> list[MatchingTables]:
        return [fine.only(chosen).coarsened(most * len(chosen) * slots)]

    return resolved(make, len(pairs), slots)[0]


def coupled_differences(
    distributions: Sequence[FiniteDistribution],
    pairs: Sequence[DistributionPair],
    recipe: Recipe,
    most: int,
) -> list[tuple[Floats, Floats]]:
    """Return differences of coupled atoms per instance, shape (k, dim), and masses that sum to 1.

    They are those of the best candidate, to fit the shape of noise to, not to state a claim. Of
    more than `most` pieces the longest half of `most` is kept, and a systematic sample by length
    stands for the others.
    """
    check_count(1, most=most)

    def differences(instance: "_Instance") -> tuple[Floats, Floats]:
        if instance.equal:
            return np.zeros((1, instance.first.points.shape[1])), np.ones(1)
        pieces = instance.best(recipe)[0]
        a, b = instance.ends(pieces)
        masses = pieces.masses / instance.total
        if len(masses) <= most:
            return a - b, masses
        order = np.argsort(-((a - b) ** 2).sum(axis=1), kind="stable")
        n_kept = most // 2
        reached = np.cumsum(masses[order[n_kept:]])
        n_drawn = most - n_kept
        quantiles = (np.arange(n_drawn) + 0.5) / n_drawn * reached[-1]
        chosen = np.append(order[:n_kept], order[n_kept + np.searchsorted(reached, quantiles)])
        shares = np.append(masses[order[:n_kept]], np.full(n_drawn, reached[-1] / n_drawn))
        return a[chosen] - b[chosen], shares

    return in_threads(differences, _instances(distributions, pairs))


def coupled_ends(
    distributions: Sequence[FiniteDistribution],
    pairs: Sequence[DistributionPair],
    recipe: Recipe,
) -> list[tuple[Floats, Floats, Floats]]:
    """Return both atoms of each piece of the best coupling per instance, and its mass as a share.

    Guarantee: the masses have exact marginals, up to the rounding of a division.
    """

    def ends(instance: "_Instance") -> tuple[Floats, Floats, Floats]:
        pieces = instance.best(recipe)[0]
        return (*instance.ends(pieces), pieces.masses / instance.total)

    return in_threads(ends, _instances(distributions, pairs))


def least_plan(first: FiniteDistribution, second: FiniteDistribution) -> Floats:
    """Find the coupling of least mean squared distance: share of each two atoms.

    Guarantee: the shares have exact marginals, up to the rounding of a division.
    """
    total = math.lcm(first.total, second.total)
    masses = [each.counts * (total // each.total) for each in (first, second)]
    flows, room = np.empty((2, second.n_samples, first.n_samples), dtype=np.int64)
    squares = pair_squares(np.array(first.outputs), np.array(second.outputs))
    transport(squares, masses[0], masses[1], flows, room)
    return np.asarray(flows.T / total)


class Pieces(NamedTuple):
    """A coupling: `masses[i]` of the mass of atom `first[i]` goes to atom `second[i]`."""

    first: Integers
    second: Integers
    masses: Integers


class _Side(NamedTuple):
    """One distribution of an instance, with masses over the common denominator."""

    points: Floats
    masses: Integers


class _Instance(NamedTuple):
    first: _Side
    second: _Side
    total: int
    equal: bool
    n_instances: int

    def ends(self, pieces: Pieces) -> tuple[Floats, Floats]:
        """Return the two atoms of every piece."""
        return self.first.points[pieces.first], self.second.points[pieces.second]

    def best(self, recipe: Recipe) -> list[Pieces]:
        """Keep the best candidate by each of the rankings."""
        candidates = _candidates(self, recipe)
        if len(candidates) == 1:
            return candidates * len(_rankings(recipe))
        measured = [self.measured(pieces) for pieces in candidates]
        result = []
        for value_of in _rankings(recipe):
            costs = [value_of(squares, masses) for squares, masses in measured]
            result.append(candidates[int(np.argmin(costs))])
        return result

    def measured(self, pieces: Pieces) -> tuple[Floats, Floats]:
        """Return squared distances, and masses as shares."""
        points = self.first.points, self.second.points
        return piece_squares(*points, pieces.first, pieces.second), pieces.masses / self.total

    def distances(self, pieces: Pieces) -> Floats:
        points = self.first.points, self.second.points
        return piece_distances(*points, pieces.first, pieces.second)


def _claim_value(recipe: Recipe, squares: Floats, masses: Floats) -> float:
    """Compute the recipe's cost of a coupling, or its logarithm."""
    if recipe.cost == "squared":
        return float(squares @ masses)
    if recipe.cost == "renyi":
        return float(logsumexp(recipe.rate * squares, b=masses))
    epsilons = np.array([recipe.epsilon if recipe.cost == "delta" else 0.0])
    row = np.array([0, len(squares)])
    return float(row_deltas(row, np.sqrt(squares), masses, 0.0, recipe.noise_std, epsilons)[0])


def _rankings(recipe: Recipe) -> list[Callable[[Floats, Floats], float]]:
    """List costs of a coupling, by squared distances and masses; the best by each is kept."""

    def worst(squares: Floats, _masses: Floats) -> float:
        return float(squares.max())

    result: list[Callable[[Floats, Floats], float]] = [
        partial(_claim_value, recipe),
        partial(_claim_value, attrs.evolve(recipe, cost="squared")),
        worst,
    ]
    guess = recipe.of_guess
    if guess is not None and guess != recipe:
        result.append(partial(_claim_value, guess))
    return result


def _instances(
    distributions: Sequence[FiniteDistribution],
    pairs: Sequence[DistributionPair],
    n_instances: int | None = None,
) -> list[_Instance]:
    dims = sorted({distribution.dim for distribution in distributions})
    if len(dims) != 1:
        raise ArgumentError(
            f"distributions must have one dimension, got {', '.join(map(str, dims))}"
        )
    merged = in_threads(_merged, distributions)
    corners = [np.stack([points.min(axis=0), points.max(axis=0)]) for points, _ in merged]
    result = []
    for a, b in pairs:
        total = math.lcm(distributions[a].total, distributions[b].total)
        first, second = (
            _Side(merged[i].points, merged[i].masses * (total // distributions[i].total))
            for i in (a, b)
        )
        # The corners of their boxes tell most distributions apart.
        equal = np.array_equal(corners[a], corners[b]) and equal_distributions(
            distributions[a], distributions[b]
        )
        result.append(_Instance(first, second, total, equal, n_instances or len(pairs)))
    return result


def _merged(distribution: FiniteDistribution) -> _Side:
    """Merge equal atoms where that leaves few, or where masses differ anyway."""
    points, counts = distribution.outputs, distribution.counts
    direction = random_directions(SEED, 1, distribution.dim)
    values = np.empty((1, len(points)))
    project(direction, np.ascontiguousarray(points.T), values)
    n_distinct = len(np.unique(values[0]))
    if n_distinct == len(points) or (distribution.is_uniform and 2 * n_distinct > len(points)):
        # Copies, because loops are compiled anew for read-only arrays.
        return _Side(np.array(points), np.array(counts))
    atoms, where = np.unique(points, axis=0, return_inverse=True)
    masses = np.zeros(len(atoms), dtype=np.int64)
    np.add.at(masses, where.reshape(-1), counts)
    return _Side(atoms, masses)


def _candidates(instance: _Instance, recipe: Recipe) -> list[Pieces]:
    a, b = instance.first, instance.second
    if a.points.shape[1] == 1:
        return [_monotone(a, b, 0)]
    result = []
    if recipe.effort == "thorough":
        axes = range(min(a.points.shape[1], MOST_MATCHINGS))
        result += [_monotone(a, b, axis) for axis in axes]
    largest = max(float(np.abs(side.points).max()) for side in (a, b))
    if largest > _LARGEST:
        # Their squares overflow, so no search can tell one coupling from another.
        return result or [_monotone(a, b, 0)]
    exact = _exact(instance, recipe)
    return result + (exact or _searched(instance, recipe))


def _monotone(a: _Side, b: _Side, axis: int) -> Pieces:
    orders = [stable_order(np.ascontiguousarray(side.points[:, axis])) for side in (a, b)]
    return Pieces(*corner(orders[0], a.masses, orders[1], b.masses))


def _exact(instance: _Instance, recipe: Recipe) -> list[Pieces]:
    """Find the best couplings for the squared distance and the claim, where that is affordable."""
    a, b = instance.first, instance.second
    unit = int(np.gcd(np.gcd.reduce(a.masses), np.gcd.reduce(b.masses)))
    n_units = instance.total // unit
    share = _ALL_CELLS // instance.n_instances
    if recipe.effort == "quick":
        share //= _QUICKER
    # Equal units of one atom are ties, with which an assignment is slow.
    few_ties = n_units <= 2 * max(len(a.masses), len(b.masses))
    is_assignment = few_ties and n_units <= _ASSIGNED and n_units**2 <= share
    if not is_assignment and len(a.masses) * len(b.masses) > min(_CELLS, share):
        return []
    squares = pair_squares(a.points, b.points)
    if is_assignment:
        first, second = (np.repeat(np.arange(len(s.masses)), s.masses // unit) for s in (a, b))

    def solved(costs: Floats) -> Pieces:
        if is_assignment:
            _, columns = scipy.optimize.linear_sum_assignment(costs[first][:, second])
            return _joined(first, second[columns], np.full(n_units, unit))
        flows, room = np.empty((2, len(b.masses), len(a.masses)), dtype=np.int64)
        transport(costs, a.masses, b.masses, flows, room)
        columns, rows = np.nonzero(flows)
        return Pieces(rows, columns, flows[columns, rows])

    plain = solved(squares)
    result = [plain]
    top = float(squares[plain.first, plain.second].max())
    for claim in dict.fromkeys((recipe, recipe.of_guess)):
        if claim is not None and claim.cost != "squared":
            costs = squares.copy()
            to_costs(costs, len(a.masses), len(b.masses), top, *_cost_numbers(claim))
            result.append(solved(costs))
    if recipe.effort == "thorough" and is_assignment and n_units <= _BOTTLENECK:
        within = _bottleneck(squares[first][:, second])
        result.append(solved(np.where(squares <= within, squares, _FOREVER / n_units)))
    return result


def _bottleneck(squares: Floats) -> float:
    """Find the least worst squared distance of an assignment."""
    least = max(squares.min(axis=0).max(), squares.min(axis=1).max())
    candidates = np.unique(squares[squares >= least])
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        near = scipy.sparse.csr_array(squares <= candidates[middle])
        if (scipy.sparse.csgraph.maximum_bipartite_matching(near) >= 0).all():
            high = middle
        else:
            low = middle + 1
    return float(candidates[low])


def _cost_numbers(recipe: Recipe) -> tuple[int, float, float, float]:
    """Return kind, rate, epsilon and noise of a cost, the last arguments of compiled loops."""
    kinds = {"squared": SQUARED, "renyi": RENYI, "delta": DELTA, "guess": DELTA}
    epsilon = float(recipe.epsilon) if recipe.cost == "delta" else 0.0
    return kinds[recipe.cost], float(recipe.rate), epsilon, float(recipe.noise_std)


def _searched(instance: _Instance, recipe: Recipe) -> list[Pieces]:
    """Search by bisection, then by rounds of exact transport in blocks of near pieces."""
    a, b = instance.first, instance.second
    directions = random_directions(SEED, _N_DIRECTIONS, a.points.shape[1])
    n_atoms = max(len(a.masses), len(b.masses))
    unit = int(np.gcd(np.gcd.reduce(a.masses), np.gcd.reduce(b.masses)))
    n_rounds, block = _WORK // (instance.n_instances * n_atoms), _BLOCK
    if recipe.effort == "thorough":
        n_rounds = max(_FEWEST_ROUNDS, min(_MOST_ROUNDS, n_rounds))
    else:
        n_rounds = max(1, min(_FEWEST_ROUNDS, n_rounds // _QUICKER))
        block = _QUICK_BLOCK
    plain = attrs.evolve(recipe, cost="squared")

    def bisected(masses_a: Integers, masses_b: Integers) -> Pieces:
        atoms_a, atoms_b = np.flatnonzero(masses_a), np.flatnonzero(masses_b)
        first, second, masses = bisect(
            a.points[atoms_a], masses_a[atoms_a], b.points[atoms_b], masses_b[atoms_b], directions
        )
        return Pieces(atoms_a[first], atoms_b[second], masses)

    def coupled(masses_a: Integers, masses_b: Integers, most: int, n_rounds: int) -> Pieces:
        return refined(bisected(masses_a, masses_b), plain, most, n_rounds)

    def refined(pieces: Pieces, recipe: Recipe, most: int, n_rounds: int) -> Pieces:
        # As many pieces are visited as if there were one for each atom.
        n_turns = max(1, n_rounds * n_atoms // max(n_atoms, len(pieces.masses)))
        is_watched = n_turns > _PATIENCE
        costs = [_claim_value(recipe, *instance.measured(pieces))] if is_watched else []
        for turn in range(n_turns):
            turned = np.roll(directions, -_STRIDE * (turn + 1), axis=0)
            pieces = Pieces(
                *improve(
                    a.points,
                    b.points,
                    pieces.first,
                    pieces.second,
                    pieces.masses,
                    turned,
                    _SIDES[turn % len(_SIDES)],
                    block,
                    max(most, len(pieces.masses)),
                    *_cost_numbers(recipe),
                )
            )
            if not is_watched:
                continue
            costs.append(_claim_value(recipe, *instance.measured(pieces)))
            if turn >= _PATIENCE and costs[-1] >= costs[-1 - _PATIENCE] * (1 - _LEAST_FALL):
                break
        return pieces

    most = instance.total // unit
    if most <= _UNITS_PER_ATOM * n_atoms:
        result = [coupled(a.masses, b.masses, most, n_rounds)]
    elif n_rounds <= _FEW_ROUNDS:
        bulk_a, bulk_b = _single_units(a, b, instance.total, directions[0])
        rest = bisected(a.masses - bulk_a, b.masses - bulk_b)
        # Masses are unlike here, so that pieces must be split.
        parts = [refined(rest, recipe, 2 * len(rest.masses), n_rounds)]
        if bulk_a.any():
            bulk = coupled(bulk_a, bulk_b, 0, n_rounds)
            parts.append(bulk if recipe.cost == "squared" else refined(bulk, recipe, 0, 1))
        whole = _together(parts)
        for share in _FAR_SHARES:
            squares, _ = instance.measured(whole)
            is_far = squares >= np.quantile(squares, 1 - share)
            near, far = (
                Pieces(*(array[chosen] for array in whole)) for chosen in (~is_far, is_far)
            )
            whole = _together([near, refined(far, recipe, 2 * len(far.masses), 1)])
        return [whole]
    else:
        bulk_a, bulk_b = _bulk(a, b, instance.total, directions[0])
        n_bulk = max(len(a.masses), len(b.masses)) * 2 * _UNITS_PER_ATOM
        crumbs = _PIECES_PER_ATOM * (len(a.masses) + len(b.masses))
        parts = [coupled(a.masses - bulk_a, b.masses - bulk_b, crumbs, n_rounds // 2)]
        if bulk_a.any():
            parts.append(coupled(bulk_a, bulk_b, n_bulk, n_rounds))
        whole = _together(parts)
        most = len(whole.masses) + n_atoms
        result = [refined(whole, plain, most, n_rounds // 2)]
    if recipe.cost != "squared":
        result.append(refined(result[0], recipe, max(most, len(result[0].masses)), n_rounds // 2))
    return result


def _single_units(a: _Side, b: _Side, total: int, direction: Floats) -> tuple[Integers, Integers]:
    """Return masses of one unit an atom, as many for both; none where much of the mass remains."""
    side = max(a, b, key=lambda side: len(side.masses))
    unit = int(np.median(side.masses))
    n_units = min(int(np.count_nonzero(masses >= unit)) for masses in (a.masses, b.masses))
    if n_units * unit < _SINGLE * total:
        return np.zeros_like(a.masses), np.zeros_like(b.masses)
    bulk_a, bulk_b = (
        _thinned(side.points @ direction, np.minimum(side.masses // unit, 1), n_units) * unit
        for side in (a, b)
    )
    return bulk_a, bulk_b


def _bulk(a: _Side, b: _Side, total: int, direction: Floats) -> tuple[Integers, Integers]:
    """Return masses of both in equal units, of equal total, with a few units an atom at most."""
    n_atoms = max(len(a.masses), len(b.masses))
    unit, most = 0, 0
    for side in (a, b):
        for parts in range(1, 2 * _UNITS_PER_ATOM + 1):
            size = max(1, int(_BULK * (total // len(side.masses)) / parts))
            n_units = min(int((masses // size).sum()) for masses in (a.masses, b.masses))
            if n_units * size > most and n_units <= _UNITS_PER_ATOM * n_atoms:
                unit, most = size, n_units * size
    if not unit:
        return np.zeros_like(a.masses), np.zeros_like(b.masses)
    bulk_a, bulk_b = (
        _thinned(side.points @ direction, side.masses // unit, most // unit) * unit
        for side in (a, b)
    )
    return bulk_a, bulk_b


def _thinned(values: Floats, units: Integers, n_units: int) -> Integers:
    """Keep this many units of atoms in total; those left out are spread evenly over the values."""
    counts = units.copy()
    n_extra = int(units.sum()) - n_units
    if n_extra:
        order = stable_order(values)
        reached = np.cumsum(units[order])
        places = (np.arange(n_extra) * 2 + 1) * int(reached[-1]) // (2 * n_extra)
        np.subtract.at(counts, order[np.searchsorted(reached, places, side="right")], 1)
    return counts


def _together(parts: Sequence[Pieces]) -> Pieces:
    """Concatenate couplings of parts of the mass."""
    return Pieces(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _joined(first: Integers, second: Integers, masses: Integers) -> Pieces:
    """Merge pieces that join the same atoms."""
    keys, where = np.unique(np.stack([first, second]), axis=1, return_inverse=True)
    sums = np.zeros(keys.shape[1], dtype=np.int64)
    np.add.at(sums, where.reshape(-1), masses)
    return Pieces(np.ascontiguousarray(keys[0]), np.ascontiguousarray(keys[1]), sums)


def range_tables(diameter: float, n_instances: int) -> MatchingTables:
    """Bound the distances of distributions by the diameter of their public range.

    Guarantee: every coupling of two distributions inside the range stays within the diameter. A
    matching of samples would bound the distance of the samples only.
    """
    row = np.array([diameter]), np.ones(1, dtype=np.int64)
    return MatchingTables.of_rows([row] * n_instances, [1] * n_instances)
