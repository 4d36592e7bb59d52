# SPDX-License-Identifier: Apache-2.0
"""One panel of the static experiments: its noise, errors and attack against formulas."""

import math

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import norm

from pufferslice.queries import equals, summary
from reproduction.panels import (
    BUDGETS,
    N_DIRECTIONS,
    ORDER,
    PAPER_SCALE,
    Panel,
    Scale,
    SecretTable,
    Task,
    curves_of,
    panel_rows,
    trial_slices,
)

N = 40_000


def panel_of(groups, number_of_each):
    """A panel whose groups have the given values in three coordinates."""
    labels = np.repeat(list(groups), number_of_each)
    values = np.repeat(np.array(list(groups.values()), dtype=float), number_of_each, axis=0)
    columns = {f"x{k}": column for k, column in enumerate(values.T)}
    table = SecretTable(
        table=pa.table({"group": labels, **columns}),
        protected="group",
        summary=summary(mean=["x0", "x1", "x2"]),
        task=Task(feature_scales={"x0": 1}, target="x1", positive=equals(0)),
    )
    return Panel.of("natural", table, "summary")


TWO = {"a": (0, 0, 0), "b": (1, 2, 2)}
DISTANCE = 3.0


@pytest.fixture(scope="module")
def two():
    """Two groups at distance 3, one three times as large as the other."""
    panel = panel_of(TWO, [N // 4, 3 * N // 4])
    scale = Scale(budgets=(0.5, 2.0, 20.0), n_trials=2, queries=("summary",))
    return panel, panel_rows(panel, scale, 0)


def test_the_papers_sweep():
    assert len(BUDGETS) == 22
    assert (BUDGETS[0], BUDGETS[-1]) == (0.05, 60)
    assert list(BUDGETS) == sorted(set(BUDGETS))
    assert (PAPER_SCALE.n_trials, N_DIRECTIONS, ORDER) == (3, 200, 4)
    assert len(PAPER_SCALE.queries) == 4


def test_a_row_for_every_notion_rule_budget_and_trial(two):
    _, rows = two
    keys = {(r["notion"], r["rule"], r["epsilon"], r["trial"]) for r in rows}
    assert len(rows) == len(keys) == 2 * 2 * 3 * 2
    assert {row["n_records"] for row in rows} == {N}


def test_noise_is_the_papers_closed_form(two):
    """The two formulas of the paper, from the directions of the trial and the shift by hand."""
    panel, rows = two
    for row in rows:
        directions = trial_slices(panel.scenario, row["trial"] - 1).profile.directions
        squares = (directions @ np.array([1.0, 2.0, 2.0])) ** 2
        worst = squares.mean() if row["notion"] == "average" else squares.max()
        closed = ORDER / (2 * row["epsilon"]) * worst
        if row["rule"] == "closed_form":
            assert row["noise_std"] ** 2 == pytest.approx(closed, rel=1e-9)
        else:
            # One pair of point masses: the average gains nothing, the joint log-moment does.
            expected = closed if row["notion"] == "average" else joint_variance(squares, row)
            assert row["noise_std"] ** 2 == pytest.approx(expected, rel=1e-9)


def joint_variance(squares, row):
    """Solve mean exp(c u^2) = e^((order - 1) epsilon) for the variance, by bisection."""
    wanted = (ORDER - 1) * row["epsilon"]
    low, high = 1e-6, 1e6
    for _ in range(200):
        middle = math.sqrt(low * high)
        logs = ORDER * (ORDER - 1) * squares / (2 * middle)
        top = logs.max()
        fits = top + math.log(np.mean(np.exp(logs - top))) <= wanted
        low, high = (low, middle) if fits else (middle, high)
    return high


def test_errors_are_those_of_the_noise(two):
    _, rows = two
    for row in rows:
        variance, dim = row["noise_std"] ** 2, 3
        off = 5 * math.sqrt(2 / (dim * N))
        assert row["mse"] == pytest.approx(dim * variance, rel=off)
        assert row["mae"] == pytest.approx(row["noise_std"] * math.sqrt(2 / math.pi), rel=off)
        # The mean norm of a standard normal vector in three dimensions is sqrt(8 / pi).
        assert row["l2"] == pytest.approx(row["noise_std"] * math.sqrt(8 / math.pi), rel=off)
        # Three quarters of the records carry a vector of length 3, the others one of length 0.
        relative = math.sqrt(row["mse"] / (0.75 * DISTANCE**2))
        assert row["relative_error"] == pytest.approx(relative, rel=1e-12)
        assert row["snr_db"] == pytest.approx(-20 * math.log10(relative), abs=1e-9)


def test_the_attack_is_the_best_one_for_two_groups(two):
    """Bayes: say b if the projection is beyond the middle, moved by ln 3 towards a."""
    _, rows = two
    for row in rows:
        ratio = DISTANCE / row["noise_std"]
        moved = math.log(3) / ratio
        expected = 0.75 * norm.cdf(ratio / 2 + moved) + 0.25 * norm.cdf(ratio / 2 - moved)
        assert row["accuracy"] == pytest.approx(expected, abs=5 * 0.5 / math.sqrt(N))
        assert row["prior_accuracy"] == 0.75
        assert row["advantage"] == row["accuracy"] - 0.75


def test_the_attack_starts_well_above_the_prior_on_average_with_two_equal_groups():
    """In nine dimensions noise on average at epsilon 0.05 leaves |shift| / std of about 0.47.

    So the attack is right in Phi(0.237) = 0.594 of cases, far from 0.5, whatever the data: that is
    why the paper's "close to the prior" cannot hold there.
    """
    ratio = math.sqrt(2 * 0.05 * 9 / ORDER)
    assert norm.cdf(ratio / 2) == pytest.approx(0.594, abs=5e-4)


def test_trials_and_panels_have_their_own_noise_and_a_public_seed(two):
    panel, rows = two
    scale = Scale(budgets=(0.5, 2.0, 20.0), n_trials=2, queries=("summary",))
    assert panel_rows(panel, scale, 0) == rows
    other = panel_rows(panel, scale, 1)
    assert not {row["mse"] for row in rows} & {row["mse"] for row in other}
    assert [row["noise_std"] for row in other] == [row["noise_std"] for row in rows]
    # Relative to its variance no error is that of another row: each had noise of its own.
    assert len({round(row["mse"] / row["noise_std"] ** 2, 9) for row in rows}) == len(rows)
    first, second = (trial_slices(panel.scenario, trial).profile for trial in (0, 1))
    assert first.n_directions == N_DIRECTIONS
    assert first.digest() != second.digest()


def test_curves_are_means_over_trials(two):
    _, rows = two
    curves = curves_of(rows)
    assert len(curves) == 4
    for curve in curves:
        assert curve.epsilons.tolist() == [0.5, 2, 20]
        assert curve.n_outputs == 2 * N
        for k, epsilon in enumerate(curve.epsilons):
            mine = [
                row
                for row in rows
                if (row["notion"], row["rule"], row["epsilon"])
                == (curve.notion, curve.rule, epsilon)
            ]
            assert len(mine) == 2
            assert curve.squared_errors[k] == np.mean([row["mse"] for row in mine])
            assert curve.accuracies[k] == np.mean([row["accuracy"] for row in mine])
            assert curve.noise_stds[k] == np.mean([row["noise_std"] for row in mine])


def test_five_groups_are_told_apart_when_there_is_little_noise():
    groups = {name: (10 * k, k % 2, k) for k, name in enumerate("abcde")}
    panel = panel_of(groups, [50, 40, 30, 20, 10])
    rows = panel_rows(panel, Scale(budgets=(1e-4, 1e5), n_trials=1, queries=("summary",)), 0)
    assert panel.n_records == 150
    for row in rows:
        if row["epsilon"] == 1e5:
            assert row["accuracy"] == 1
        else:
            assert row["accuracy"] == pytest.approx(1 / 3, abs=0.15)
