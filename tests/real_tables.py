# SPDX-License-Identifier: Apache-2.0
"""Scenarios on real tables, and the attacks that any data scientist would try on their releases."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from pufferslice import Scenario, datasets, queries
from pufferslice.audit import draw_outputs

CLEVELAND_CLIP: Final = {"chol": (100, 600), "trestbps": (90, 200), "oldpeak": (0, 7)}
STUDENT_CLIP: Final = {"absences": (0, 75), "G1": (0, 20), "G2": (0, 20), "age": (15, 22)}


def adult(n_rows, **options):
    """Ages, hours, a skewed gain, and rates of which one is that of a few rows in a thousand."""
    last_year, _ = datasets.adult_years()
    query = queries.join(
        queries.summary(
            mean=["age", "hours-per-week", "capital-gain"],
            std=["age"],
            rate={"income": ">50K"},
            clip={"age": (17, 90), "hours-per-week": (1, 99), "capital-gain": (0, 99_999)},
        ),
        queries.contingency_table({"race": ["White", "Amer-Indian-Eskimo"]}, statistic="rate"),
    )
    settings = {"column": "sex", "value": "Female", "within": 0.05, "n_rows": n_rows}
    return Scenario.from_prevalence(
        None, **(settings | {"query": query, "moments_from": last_year} | options)
    )


def moments(n_rows, **options):
    """Second moments of six columns, of which marriage goes with the secret."""
    last_year, _ = datasets.adult_years()
    query = queries.second_moments(
        target={"income": ">50K"},
        numbers=["education-num", "age"],
        levels={
            "marital-status": ["Married-civ-spouse"],
            "occupation": ["Exec-managerial", "Prof-specialty"],
            "capital-gain": [queries.above(5_000)],
        },
        clip={"education-num": (1, 16), "age": (17, 70)},
    )
    settings = {"column": "sex", "value": "Female", "within": 0.05, "n_rows": n_rows}
    return Scenario.from_prevalence(
        None, **(settings | {"query": query, "moments_from": last_year} | options)
    )


def cleveland(n_rows, folder, **options):
    """Patients with and without a disease."""
    table = pa_csv.read_csv(folder / "cleveland.csv.gz")
    ill = np.where(np.array(table["num"]) > 0, "yes", "no")
    table = table.append_column("ill", pa.array(ill))
    query = queries.join(
        queries.summary(mean=list(CLEVELAND_CLIP), clip=CLEVELAND_CLIP),
        queries.contingency_table({"cp": [1, 2, 3]}, statistic="rate"),
    )
    settings = {"column": "ill", "value": "yes", "within": 0.1, "n_rows": n_rows}
    return Scenario.from_prevalence(
        None, **(settings | {"query": query, "moments_from": table} | options)
    )


def student(n_rows, folder, **options):
    """Pupils of two schools; absences are skewed, grades correlated."""
    table = pa_csv.read_csv(folder / "student-mat.csv.gz")
    query = queries.summary(mean=list(STUDENT_CLIP), rate={"higher": "no"}, clip=STUDENT_CLIP)
    settings = {"column": "school", "value": "MS", "within": 0.05, "n_rows": n_rows}
    return Scenario.from_prevalence(
        None, **(settings | {"query": query, "moments_from": table} | options)
    )


def _bundled(data, labels, n_columns=None):
    columns = {
        f"x{k}": data[:, k] for k in range(data.shape[1] if n_columns is None else n_columns)
    }
    clip = {name: (float(x.min()), float(x.max())) for name, x in columns.items()}
    table = pa.table({**columns, "kind": np.where(labels, "yes", "no")})
    return table, queries.summary(mean=list(columns), clip=clip)


def breast_cancer(n_rows, **options):
    """Thirty measures of tumours, many of them nearly the same."""
    from sklearn.datasets import load_breast_cancer

    loaded: Any = load_breast_cancer()
    table, query = _bundled(loaded.data, loaded.target == 0)
    settings = {"column": "kind", "value": "yes", "within": 0.05, "n_rows": n_rows}
    return Scenario.from_prevalence(
        None, **(settings | {"query": query, "moments_from": table} | options)
    )


def diabetes(n_rows, **options):
    """Ten measures of patients, and the total that a hospital of a hidden size reports."""
    from sklearn.datasets import load_diabetes

    loaded: Any = load_diabetes()
    progressed = loaded.target > np.quantile(loaded.target, 0.9)
    table, query = _bundled(loaded.data, progressed)
    settings = {"column": "kind", "value": "yes", "within": 0.05, "n_rows": n_rows}
    return Scenario.from_prevalence(
        None, **(settings | {"query": query, "moments_from": table} | options)
    )


def homes(n_rows, **options):
    """48 half-hours of homes of which one is a large customer."""
    rng = np.random.default_rng(5)
    day = 1 + 0.5 * np.sin(np.arange(48) / 48 * 2 * np.pi)
    loads = rng.gamma(2.0, 0.3, (400, 48)) * day + 0.1
    heated = np.arange(400) < 120
    loads[heated] += 0.18
    loads[0] *= 60
    names = [f"x{k}" for k in range(48)]
    table = pa.table(
        {**dict(zip(names, loads.T, strict=True)), "kind": np.where(heated, "yes", "no")}
    )
    query = queries.summary(mean=names, clip=dict.fromkeys(names, (0.0, 60.0)))
    settings = {"column": "kind", "value": "yes", "within": 0.02, "n_rows": n_rows}
    return Scenario.from_prevalence(
        None, **(settings | {"query": query, "moments_from": table} | options)
    )


def hospital(up_to, folder, **options):
    """Totals of a hospital whose number of patients is hidden."""
    table = pa_csv.read_csv(folder / "cleveland.csv.gz")
    query = queries.summary(
        total=["chol", "oldpeak"], count={"sex": 1}, clip={"chol": (100, 600), "oldpeak": (0, 7)}
    )
    settings = {"query": query, "moments_from": table, "up_to": up_to, "ratio": 1.1}
    return Scenario.from_volume(None, **(settings | options))


def school(up_to, folder, **options):
    """Totals of pupils, of which one school has a hidden number."""
    table = pa_csv.read_csv(folder / "student-mat.csv.gz")
    query = queries.summary(total=["absences"], count={"higher": "no"}, clip={"absences": (0, 75)})
    settings = {"query": query, "moments_from": table, "up_to": up_to, "ratio": 1.2}
    return Scenario.from_supplier(None, column="school", value="MS", **(settings | options))


def home(length, **options):
    """Energy and peaks of a home, by its state; loads are skewed, and peaks rare."""
    rng = np.random.default_rng(8)
    state = np.arange(400) % 2
    kwh = np.round(rng.gamma(0.3, 1.0, 400) + state * rng.choice([0.2, 4.0], 400, p=[0.9, 0.1]), 3)
    loads = pa.table({"state": state, "kwh": kwh, "peak": (kwh > 4.5).astype(float)})
    clip = {"kwh": (0.0, 8.0), "peak": (0.0, 1.0)}
    settings = {"positions": [length // 2], "length": length, "loads": loads}
    settings |= {"query": queries.summary(total=["kwh", "peak"], clip=clip)} | options
    return Scenario.from_occupancy([[0.95, 0.05], [0.1, 0.9]], **settings)


def attackers() -> dict[str, Callable[[], Any]]:
    """Classifiers by name."""
    from sklearn.discriminant_analysis import (
        LinearDiscriminantAnalysis,
        QuadraticDiscriminantAnalysis,
    )
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.neighbors import KNeighborsClassifier

    return {
        "linear": LinearDiscriminantAnalysis,
        "quadratic": lambda: QuadraticDiscriminantAnalysis(reg_param=1e-3),
        "boosting": lambda: HistGradientBoostingClassifier(max_iter=60, random_state=0),
        "neighbours": lambda: KNeighborsClassifier(n_neighbors=51),
    }


def best_attack(scenario, certificate, n_outputs, *, noise, seed):
    """Share of right guesses of the best attack on a held-out half, and its standard error.

    Attacks are trained on one half of the outputs of each experiment: tables whose other rows are
    known, and whole tables at both ends of the range.
    """
    from threadpoolctl import threadpool_limits

    drawn = draw_outputs(scenario, certificate, n_outputs, seed=seed, noise=noise)
    best, n_tested = 0.5, 2 * n_outputs
    for secrets in drawn.values.values():
        for first, second in scenario.pairs:
            sides = [secrets[first], secrets[second]]
            size = min(map(len, sides)) // 2
            values = np.concatenate([part[: 2 * size] for part in sides])
            spread = values.std(axis=0)
            values = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
            labels = np.repeat([0, 1], 2 * size)
            is_training = np.tile(np.arange(2 * size) < size, 2)
            for make in attackers().values():
                with threadpool_limits(1):  # several of these run beside each other
                    model = make().fit(values[is_training], labels[is_training])
                    right = model.predict(values[~is_training]) == labels[~is_training]
                if right.mean() > best:
                    best, n_tested = float(right.mean()), len(right)
    return best, float(np.sqrt(0.25 / n_tested))
