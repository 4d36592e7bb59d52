# SPDX-License-Identifier: Apache-2.0
"""Scenarios of rows of every kind, for tests: how rows meet, several kinds, chains, sizes."""

import numpy as np
import pyarrow as pa

from pufferslice import Guarantee, Scenario, certify_release, queries

GUESS = Guarantee.guess(at_most=0.64)
N_ROWS = 60
RNG = np.random.default_rng(21)
EARLIER = pa.table(
    {
        "ill": np.where(np.arange(N_ROWS) % 3 == 0, "yes", "no"),
        "site": np.array(["a", "b", "c"])[np.arange(N_ROWS) // 4 % 3],
        "age": RNG.integers(20, 80, N_ROWS) + 10 * (np.arange(N_ROWS) % 3 == 0),
        "cost": np.round(RNG.gamma(1.0, 200.0, N_ROWS), 2),
    }
)
CLIP = {"age": (0, 100), "cost": (0, 1_000)}
MEANS = queries.join(
    queries.summary(mean=["age", "cost"], clip=CLIP),
    queries.contingency_table({"site": ["a", "b"]}, statistic="rate"),
)
TOTALS = queries.summary(total=["cost"], count={"site": "a"}, clip={"cost": (0, 1_000)})
LOADS = pa.table(
    {
        "state": np.arange(90) % 3,
        "kwh": np.round(RNG.gamma(1.0, 0.5, 90), 2) + np.arange(90) % 3,
        "peak": (RNG.random(90) < 0.2 + 0.3 * (np.arange(90) % 3)).astype(float),
    }
)
TWO_STATES = LOADS.filter(np.arange(90) % 3 < 2)
HOME = [[0.9, 0.1], [0.2, 0.8]]
ROOMS = [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]]
ENERGY = queries.summary(total=["kwh", "peak"], clip={"kwh": (0, 5), "peak": (0, 1)})
WEEKS = {"week": [1] * 7 + [2] * 5}
BY_WEEK = queries.group_by({"week": [1, 2]}, total=["kwh"], clip={"kwh": (0, 5)})


def prevalence(**options):
    settings = {"column": "ill", "value": "yes", "within": 0.05, "query": MEANS}
    settings |= {"n_rows": 200, "moments_from": EARLIER} | options
    return Scenario.from_prevalence(settings.pop("table", None), **settings)


def groups(**options):
    return prevalence(column="site", value=None, values=["a", "b"], **options)


def volume(**options):
    settings = {"query": TOTALS, "up_to": 220, "moments_from": EARLIER} | options
    return Scenario.from_volume(settings.pop("table", None), **settings)


def supplier(**options):
    settings = {"column": "site", "value": "a", "query": TOTALS, "up_to": 80, "ratio": 1.25}
    settings |= {"moments_from": EARLIER} | options
    return Scenario.from_supplier(settings.pop("table", None), **settings)


def occupancy(**options):
    settings = {"positions": [5], "query": ENERGY, "length": 12, "loads": TWO_STATES} | options
    return Scenario.from_occupancy(settings.pop("chain", HOME), **settings)


MADE = {
    "independent": (prevalence, {}, {"coupling": "independent"}),
    "cells": (prevalence, {}, {"coupling": "cells:site"}),
    "near cells": (prevalence, {}, {"coupling": "transport:site"}),
    "transport": (prevalence, {}, {"coupling": "transport"}),
    "random number": (prevalence, {"design": "independent"}, {}),
    "diagonal": (prevalence, {}, {"shape": "diagonal"}),
    "own rows": (prevalence, {"table": EARLIER, "n_rows": None, "moments_from": None}, {}),
    "person": (prevalence, {}, {"person": (1.0, 1e-6)}),
    "several kinds": (groups, {}, {}),
    "volume": (volume, {}, {}),
    "supplier": (supplier, {}, {}),
    "chain": (occupancy, {}, {}),
    "weeks": (occupancy, {"query": BY_WEEK, "length": None, "periods": WEEKS}, {}),
    "turning": (occupancy, {"chain": [[0.2, 0.8], [0.7, 0.3]]}, {}),
    "rooms": (
        occupancy,
        {
            "chain": {"calm": ROOMS, "busy": [[0.5, 0.2, 0.3], [0.3, 0.4, 0.3], [0.1, 0.5, 0.4]]},
            "loads": LOADS,
            "states": [0, 1, 2],
            "positions": [3, (8, 9)],
        },
        {},
    ),
}
"""What makes each kind: a scenario, its options, and those of the certificate."""


def made(kind):
    """The scenario of a kind, and its certificate."""
    make, options, certified = MADE[kind]
    scenario = make(**options)
    return scenario, certify_release(scenario, GUESS, **certified)
