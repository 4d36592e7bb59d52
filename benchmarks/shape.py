# SPDX-License-Identifier: Apache-2.0
"""The shape of noise: seconds of processor time to a gap, and variance beside isotropic noise.

Differences between all pairs of 16 random points, random differences in 200 dimensions, and
coupled pieces of ten instances; the default guard. Adult, race, the nine statistics: totals of the
fitted and the diagonal shape beside isotropic noise at order 4 and epsilon 1.

    python benchmarks/shape.py
"""

import itertools
import time
from collections.abc import Callable

import numpy as np

from pufferslice import Scenario, datasets, queries
from pufferslice._core.arrays import Floats
from pufferslice.claims import Renyi
from pufferslice.noise.fit import GUARD_SHARE
from pufferslice.noise.shape import (
    FittedShape,
    Kind,
    fit_coupled,
    fit_points,
)
from pufferslice.sensitivity.sensitivity import distribution_pairs
from rows import Row, at_most, row, show

ORDER, EPSILON, SEED = 4.0, 1.0, 7
LARGEST_GAP = 1e-3
SECRET = "race"  # noqa: S105 - the name of a column
SECONDS = {"pairs": 1.0, "many": 20.0, "coupled": 5.0}
KINDS: tuple[Kind, ...] = ("fitted", "diagonal")


def measure() -> list[Row]:
    rng = np.random.default_rng(SEED)
    limit = Renyi(order=ORDER, epsilon=EPSILON).distance_limit
    points = rng.normal(size=(16, 9))
    pairs = np.array([a - b for a, b in itertools.combinations(points, 2)])
    many = rng.normal(size=(1_000, 200))
    tables = [rng.normal(size=(2_000, 10)) + rng.normal(size=10) / 2 for _ in range(10)]
    masses = [np.full(2_000, 1 / 2_000)] * len(tables)
    guard = least_variance(np.concatenate(tables), limit)
    return [
        seconds(
            "120 pairs in 9 dimensions",
            lambda: fit_points(pairs, limit=limit, guard=least_variance(pairs, limit)),
            SECONDS["pairs"],
        ),
        seconds(
            "1,000 differences in 200 dimensions",
            lambda: fit_points(many, limit=limit, guard=least_variance(many, limit)),
            SECONDS["many"],
        ),
        seconds(
            "10 instances of 2,000 coupled pieces in 10 dimensions",
            lambda: fit_coupled(tables, masses, order=ORDER, epsilon=EPSILON, guard=guard),
            SECONDS["coupled"],
        ),
        *adult(limit),
    ]


def least_variance(differences: Floats, limit: float) -> float:
    """What the default guard asks for in every direction."""
    return (GUARD_SHARE * float(np.linalg.norm(differences, axis=1).max())) ** 2 / limit


def seconds(name: str, fit: Callable[[], FittedShape], goal: float) -> Row:
    start = time.process_time()
    shape = fit()
    spent = time.process_time() - start
    assert shape.gap is not None
    assert shape.gap <= LARGEST_GAP
    name = f"shape of noise, {name}: seconds of processor time to a gap of {LARGEST_GAP:g}"
    return at_most(name, spent, goal)


def adult(limit: float) -> list[Row]:
    scenario = Scenario.from_groups(
        datasets.adult_complete(), secret=SECRET, query=queries.adult_summary()
    )
    distributions, pairs = distribution_pairs(scenario)
    rows = np.array([distributions[a].outputs[0] - distributions[b].outputs[0] for a, b in pairs])
    guard = least_variance(rows, limit)
    isotropic = scenario.dim * float((rows**2).sum(axis=1).max()) / limit
    lines = []
    for kind in KINDS:
        shape = fit_points(rows, limit=limit, guard=guard, kind=kind)
        total = float(np.trace(shape.covariance))
        name = f"Adult, groups, unsliced: total variance of {kind}, and of isotropic noise"
        lines.append(row(name, total, isotropic, ratio=isotropic / total))
    return lines


if __name__ == "__main__":
    show(measure())
