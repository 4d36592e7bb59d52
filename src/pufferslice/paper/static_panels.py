# SPDX-License-Identifier: Apache-2.0
"""One panel of the static figures: noise, error and attack against epsilon, by simulation.

As in the paper, every record carries the query of its group, and each gets noise of its own. That
is a simulation of very many outputs from a public seed, never a release: a certificate covers one
release, with noise that nobody can repeat.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple, final

import attrs
import numpy as np

from pufferslice.arrays import Floats
from pufferslice.audit.inference import gaussian_scores
from pufferslice.calibration import Method, Rule, Slices, calibrate
from pufferslice.certificate import Evidence
from pufferslice.guarantee import Guarantee, Notion
from pufferslice.laws import EmpiricalLaw
from pufferslice.paper.experiment import Row
from pufferslice.paper.tables import QUERIES, QueryName, SecretTable
from pufferslice.parallel import in_threads
from pufferslice.scenario import Scenario
from pufferslice.slicing import FiniteProfile

ORDER: Final = 4.0
N_DIRECTIONS: Final = 200
SEED: Final = 20_260_101
"""Public; directions and noise of every trial are derived from it."""

BUDGETS: Final = (
    0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 2.0, 4.0, 8.0, 10.0, 12.0, 14.0, 18.0, 20.0, 25.0, 30.0, 35.0,
    40.0, 45.0, 50.0, 55.0, 60.0,
)  # fmt: skip
"""The paper's 22 budgets."""

NOTIONS: Final[tuple[Notion, ...]] = ("average", "joint")
METHODS: Final[Mapping[Rule, Method]] = {
    "tight": Method(rule="tight", envelope="transport"),
    "closed_form": Method(rule="closed_form", envelope="worst_gap"),
}
"""Ours, and the paper's own."""


@final
@attrs.frozen(kw_only=True)
class Scale:
    """How much of the paper's sweep is run."""

    budgets: tuple[float, ...] = BUDGETS
    n_trials: int = 3
    queries: tuple[QueryName, ...] = QUERIES

    def __str__(self) -> str:
        queries = "1 query" if len(self.queries) == 1 else f"{len(self.queries)} queries"
        trials = "1 trial" if self.n_trials == 1 else f"{self.n_trials} trials"
        return (
            f"{queries}, {len(self.budgets)} budgets from {self.budgets[0]:g} to "
            f"{self.budgets[-1]:g}, {trials}, {N_DIRECTIONS} directions, order {ORDER:g}"
        )


PAPER_SCALE: Final = Scale()


@final
@attrs.frozen(kw_only=True, repr=False)
class Panel:
    """One table under one prior, and one query on its groups."""

    prior: str
    """`natural` or `balanced`."""
    query: QueryName
    scenario: Scenario
    counts: Mapping[str, int]
    """Records of each secret."""

    @classmethod
    def of(cls, prior: str, table: SecretTable, query: QueryName) -> "Panel":
        """The panel of a query, with a model fitted on each group if the query asks for one."""
        asked = table.query(query)
        columns = dict.fromkeys((table.protected, *asked.columns))
        scenario = Scenario.from_groups(
            table.table.select(list(columns)), secret=table.protected, query=asked
        )
        return cls(prior=prior, query=query, scenario=scenario, counts=scenario.priors[0].n_rows)

    @property
    def n_records(self) -> int:
        """Records of all groups together."""
        return sum(self.counts.values())

    @property
    def shares(self) -> Floats:
        """The prior: the share of each group."""
        return np.array(list(self.counts.values())) / self.n_records

    @property
    def laws(self) -> tuple[EmpiricalLaw, ...]:
        """The point mass of each group, in the order of the counts."""
        laws = (self.scenario.priors[0].laws[secret] for secret in self.counts)
        return tuple(law for law in laws if isinstance(law, EmpiricalLaw))


class _Outputs(NamedTuple):
    """What the records of a panel carry: the scaled query of their group, and which group."""

    values: Floats
    groups: "np.ndarray[tuple[int], np.dtype[np.intp]]"


def panels_of(
    tables: Mapping[str, Callable[[], SecretTable]], queries: Sequence[QueryName]
) -> Iterator[Panel]:
    """Every prior with every query."""
    for prior, make in tables.items():
        table = make()
        for query in queries:
            yield Panel.of(prior, table, query)


def panel_rows(panel: Panel, scale: Scale, number: int) -> list[Row]:
    """The table of one panel in long form: a row for each notion, rule, budget and trial.

    `number` tells the panels of an experiment apart, so that each draws noise of its own.
    """
    parts = in_threads(
        lambda trial: list(_trial_rows(panel, scale, number, trial)), range(scale.n_trials)
    )
    return [row for part in parts for row in part]


def _trial_rows(panel: Panel, scale: Scale, number: int, trial: int) -> Iterator[Row]:
    slices = trial_slices(panel.scenario, trial)
    carried = _carried(panel)
    cells = product(enumerate(NOTIONS), enumerate(METHODS.items()), enumerate(scale.budgets))
    for (n, notion), (r, (rule, method)), (b, epsilon) in cells:
        target = Guarantee(notion=notion, order=ORDER, epsilon=epsilon)
        noise_std = calibrate(target, slices, method)
        rng = np.random.default_rng([SEED, number, trial, n, r, b])
        yield {
            "prior": panel.prior,
            "query": panel.query,
            "notion": notion,
            "rule": rule,
            "epsilon": epsilon,
            "trial": trial + 1,
            "n_records": panel.n_records,
            "dim": panel.scenario.dim,
            "noise_std": noise_std,
            **_simulated(panel, carried, noise_std, rng),
        }


def trial_slices(scenario: Scenario, trial: int) -> Slices:
    """What the directions of a trial can show; they are drawn afresh, from a public seed."""
    seed = int(np.random.SeedSequence([SEED, trial]).generate_state(1)[0])
    profile = FiniteProfile.uniform(dim=scenario.dim, n_directions=N_DIRECTIONS, seed=seed)
    return Evidence.of(scenario, profile).slices


def _carried(panel: Panel) -> _Outputs:
    groups = np.repeat(np.arange(len(panel.counts)), list(panel.counts.values()))
    values = np.vstack([law.outputs for law in panel.laws])
    return _Outputs(values[groups], groups)


def _simulated(
    panel: Panel, carried: _Outputs, noise_std: float, rng: np.random.Generator
) -> dict[str, float]:
    """Errors and the attack on one noisy output of every record, in scaled units.

    Source: app:experiments.
    """
    errors = noise_std * rng.standard_normal(carried.values.shape)
    squares = (errors**2).sum(axis=1)
    scores = gaussian_scores(carried.values + errors, panel.laws, noise_std)
    guesses = (scores + np.log(panel.shares)).argmax(axis=1)
    accuracy = float(np.mean(guesses == carried.groups))
    likeliest = float(panel.shares.max())
    ratio = float(squares.sum() / (carried.values**2).sum())
    return {
        "mse": float(squares.mean()),
        "mae": float(np.abs(errors).mean()),
        "l2": float(np.sqrt(squares).mean()),
        "relative_error": math.sqrt(ratio),
        "snr_db": -10 * math.log10(ratio),
        "accuracy": accuracy,
        "prior_accuracy": likeliest,
        "advantage": accuracy - likeliest,
    }
