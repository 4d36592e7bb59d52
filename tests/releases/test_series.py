# SPDX-License-Identifier: Apache-2.0
"""A budget on real rows: what it costs, and what an attack on all of its outputs reaches."""

import math

import numpy as np
import pytest

from pufferslice import (
    Guarantee,
    Ledger,
    Repeated,
    Reserve,
    Scenario,
    certify_budget,
    datasets,
    queries,
    release,
)

GUESS = Guarantee.guess(at_most=0.64)
CLIP = {"age": (17, 90), "hours-per-week": (1, 99)}
LAST_YEAR, THIS_YEAR = datasets.adult_years()
SETTINGS = {"column": "sex", "value": "Female", "within": 0.05, "moments_from": LAST_YEAR}
MONTH = THIS_YEAR.num_rows // 12


def of_adult(query, n_rows=None, **options):
    table = THIS_YEAR if n_rows is None else None
    return Scenario.from_prevalence(
        table, query=query, **SETTINGS | ({} if n_rows is None else {"n_rows": n_rows}) | options
    )


def stds_of(certificate, name):
    return next(
        np.array(part.noise.std_by_coordinate)
        for part in certificate.budget.tables
        if part.name == name
    )


def test_what_a_month_costs():
    """Twelve months, a yearbook and a reserve, 64 % for all: at most 3.9 times one release."""
    survey = queries.summary(mean=list(CLIP), rate={"income": ">50K"}, clip=CLIP)
    later = queries.summary(rate={"education": "Bachelors"})
    month = of_adult(survey, MONTH)
    parts = {
        "yearbook": of_adult(survey),
        "monthly": Repeated(month, times=12, rows=(MONTH, MONTH)),
        "later": Reserve(of_adult(later)),
    }
    shares = {"yearbook": 0.1, "monthly": 0.85, "later": 0.05}
    certificate = certify_budget(parts, GUESS, shares=shares)
    alone = certify_budget({"month": Repeated(month, times=1, rows=(MONTH, MONTH))}, GUESS)
    ratios = stds_of(certificate, "monthly") / stds_of(alone, "month")
    assert ratios.max() <= 3.9
    assert ratios.min() >= math.sqrt(12 / 0.85) * 0.99
    assert certificate.budget.guess <= 0.64


ATTACKED = queries.summary(mean=["age"], rate={"income": ">50K"}, clip={"age": CLIP["age"]})
N_YEAR, N_MONTH = 400, 200


def certified(parts, at_most=0.64):
    shares = {"yearbook": 0.4, "monthly": 0.4, "later": 0.2}
    return certify_budget(parts, Guarantee.guess(at_most=at_most), shares=shares)


@pytest.fixture(scope="module")
def attacked():
    parts = {
        "yearbook": of_adult(ATTACKED, N_YEAR),
        "monthly": Repeated(of_adult(ATTACKED, N_MONTH), times=2, rows=(N_MONTH, N_MONTH)),
        "later": Reserve(of_adult(queries.summary(rate={"education": "HS-grad"}), N_YEAR)),
    }
    return parts, certified(parts)


class Attacker:
    """Knows all rows but those that make the difference, and the laws of these."""

    def __init__(self, parts):
        self.scenarios = {
            "yearbook": parts["yearbook"],
            "monthly": parts["monthly"].scenario,
            "later": parts["later"].scenario,
        }
        sex = np.array(LAST_YEAR["sex"])
        self.kinds = [np.flatnonzero((sex == "Female") == is_her) for is_her in (False, True)]
        self.laws = {name: self.law(each) for name, each in self.scenarios.items()}

    def law(self, scenario):
        """By name, what one row adds to a statistic times n: values of the rows of either kind."""
        rows = {}
        for name in scenario.query.names:
            kind, _, inner = name.removesuffix(")").partition("(")
            column, _, value = inner.partition(" = ")
            values = np.array(LAST_YEAR[column])
            flags = values == value if kind == "rate" else np.clip(values, *CLIP[column])
            rows[name] = [flags[chosen].astype(float) for chosen in self.kinds]
        return rows

    def table(self, rng, n_rows, world):
        """Rows of a world, and the known ones: three in ten are of the kind, and D more or less."""
        n_differing = math.ceil(0.05 * n_rows)
        n_her = round(0.3 * n_rows)
        known = np.concatenate(
            [
                rng.choice(self.kinds[True], n_her),
                rng.choice(self.kinds[False], n_rows - n_her - n_differing),
            ]
        )
        return known, np.concatenate([known, rng.choice(self.kinds[world], n_differing)])

    def score(self, part, known, n_rows, released):
        """Log-likelihood ratio of the two worlds, as if what differs were normal."""
        laws = self.laws[part]
        n_differing = n_rows - len(known)
        means, middle, spread = [], [], []
        for name in released.names:
            kind, _, inner = name.removesuffix(")").partition("(")
            column, _, value = inner.partition(" = ")
            rows = np.array(LAST_YEAR[column].take(known))
            certain = rows == value if kind == "rate" else np.clip(rows, *CLIP[column])
            no, yes = laws[name]
            means.append((yes.mean() - no.mean()) * n_differing / n_rows)
            half = (yes.mean() + no.mean()) / 2 * n_differing
            middle.append((certain.sum() + half) / n_rows)
            spread.append((yes.var() + no.var()) / 2 * n_differing / n_rows**2)
        covariance = released.noise_covariance + np.diag(spread)
        return float(np.linalg.solve(covariance, means) @ (released.values - middle))

    def outcome(self, budget, folder, rng):
        """Right or wrong about one office that published everything, through its ledger."""
        world = int(rng.integers(2))
        ledger = Ledger(folder / "office.ledger")
        known, rows = self.table(rng, N_YEAR, world)
        year = LAST_YEAR.take(rows)

        def published(part, table, known, **options):
            released = release(
                self.scenarios[part], table, budget, part=part, ledger=ledger, **options
            )
            return self.score(part, known, len(table), released)

        first = published("yearbook", year, known, only=["mean(age)"], spend=0.5)
        # What comes next, and how precisely, follows from what was seen.
        second = "mean(age)" if first > 0 else "rate(income = >50K)"
        score = first + published("yearbook", year, known, only=[second])
        for period in (1, 2):
            month, fresh = self.table(rng, N_MONTH, world)
            only = ["mean(age)"] if score > 0 else None
            score += published("monthly", LAST_YEAR.take(fresh), month, period=period, only=only)
        score += published("later", year, known)
        return (score > 0) == bool(world)


def reached(parts, budget, folder, n_offices):
    """Share of right guesses about so many offices, each with a ledger of its own."""
    attacker, rng, right = Attacker(parts), np.random.default_rng(12), 0
    for office in range(n_offices):
        (folder / str(office)).mkdir()
        right += attacker.outcome(budget, folder / str(office), rng)
    return right / n_offices


@pytest.mark.soundness
@pytest.mark.slow
def test_an_attack_on_all_outputs(attacked, tmp_path):
    """Three parts, chosen as one goes; soak/attacks repeats it for more offices."""
    error = math.sqrt(0.64 * 0.36 / 20)
    assert reached(*attacked, tmp_path, 20) <= 0.64 + 3 * error
