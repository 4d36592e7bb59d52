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
from typing import TypedDict

import numpy as np

from pufferslice import Scenario, datasets, queries
from pufferslice.calibration.shape import (
    FittedShape,
    Kind,
    default_guard_radius,
    fit_coupled,
    fit_points,
    limit_of,
)
from pufferslice.sensitivity.sensitivity import distribution_pairs

ORDER, EPSILON, SEED = 4.0, 1.0, 7
LARGEST_GAP = 1e-3
SECRET = "race"  # noqa: S105 - the name of a column
SECONDS = {"pairs": 1.0, "many": 20.0, "coupled": 5.0}
KINDS: tuple[Kind, ...] = ("fitted", "diagonal")


class Row(TypedDict):
    """One line of the table; seconds, or total variance in scaled units."""

    name: str
    ours: float
    peer: float | None
    ratio: float | None
    goal: str | None
    met: bool | None


def measure() -> list[Row]:
    rng = np.random.default_rng(SEED)
    limit = limit_of(ORDER, EPSILON)
    points = rng.normal(size=(16, 9))
    pairs = np.array([a - b for a, b in itertools.combinations(points, 2)])
    many = rng.normal(size=(1_000, 200))
    tables = [rng.normal(size=(2_000, 10)) + rng.normal(size=10) / 2 for _ in range(10)]
    masses = [np.full(2_000, 1 / 2_000)] * len(tables)
    guard = default_guard_radius(np.concatenate(tables)) ** 2 / limit
    return [
        seconds(
            "120 pairs in 9 dimensions",
            lambda: fit_points(pairs, limit=limit, guard=default_guard_radius(pairs) ** 2 / limit),
            SECONDS["pairs"],
        ),
        seconds(
            "1,000 differences in 200 dimensions",
            lambda: fit_points(many, limit=limit, guard=default_guard_radius(many) ** 2 / limit),
            SECONDS["many"],
        ),
        seconds(
            "10 instances of 2,000 coupled pieces in 10 dimensions",
            lambda: fit_coupled(tables, masses, order=ORDER, epsilon=EPSILON, guard=guard),
            SECONDS["coupled"],
        ),
        *adult(limit),
    ]


def seconds(name: str, fit: Callable[[], FittedShape], goal: float) -> Row:
    start = time.process_time()
    shape = fit()
    spent = time.process_time() - start
    assert shape.gap is not None
    assert shape.gap <= LARGEST_GAP
    return Row(
        name=f"shape of noise, {name}: seconds of processor time to a gap of {LARGEST_GAP:g}",
        ours=spent,
        peer=None,
        ratio=None,
        goal=f"<= {goal:g}",
        met=spent <= goal,
    )


def adult(limit: float) -> list[Row]:
    scenario = Scenario.from_groups(
        datasets.adult_complete(), secret=SECRET, query=queries.adult_summary()
    )
    distributions, pairs = distribution_pairs(scenario)
    rows = np.array([distributions[a].outputs[0] - distributions[b].outputs[0] for a, b in pairs])
    guard = default_guard_radius(rows) ** 2 / limit
    isotropic = scenario.dim * float((rows**2).sum(axis=1).max()) / limit
    lines = []
    for kind in KINDS:
        shape = fit_points(rows, limit=limit, guard=guard, kind=kind)
        total = float(np.trace(shape.covariance))
        lines.append(
            Row(
                name=f"Adult, groups, unsliced: total variance of {kind}, and of isotropic noise",
                ours=total,
                peer=isotropic,
                ratio=isotropic / total,
                goal=None,
                met=None,
            )
        )
    return lines


def main() -> None:
    for row in measure():
        beside = "" if row["peer"] is None else f" against {row['peer']:.4g}"
        verdict = {True: " met", False: " NOT met", None: ""}[row["met"]]
        goal = "" if row["goal"] is None else f"; goal {row['goal']}{verdict}"
        print(f"{row['name']}: {row['ours']:.4g}{beside}{goal}")


if __name__ == "__main__":
    main()
