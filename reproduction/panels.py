# SPDX-License-Identifier: Apache-2.0
"""One panel of the static figures: its table, prior and query, and a simulation of it.

Where the paper does not say how something was done, the docstring says what is done here. Model
queries need the extra `sklearn`, which is loaded when one of them is asked for.

As in the paper, every record carries the query of its group, and each gets noise of its own. That
is a simulation of very many outputs from a public seed, never a release: a certificate covers one
release, with noise that nobody can repeat. Curves are means over the trials.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, Literal, cast, final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pufferslice import datasets, queries
from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import check_count
from pufferslice._core.files import canonical_json
from pufferslice._core.threads import in_threads, silent
from pufferslice.audit.inference import gaussian_scores
from pufferslice.certificate import certify_release
from pufferslice.claims import Method, Renyi
from pufferslice.claims.sliced import SlicedNotion
from pufferslice.claims.slices import Rule
from pufferslice.data.frames import frame_of
from pufferslice.queries import Condition, Query, above, at_least, equals
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.scenario.secrets import Bins, secret_rule
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.sensitivity import Slices, slice_sensitivity
from reproduction import data
from reproduction.experiment import Row, number_in

QueryName = Literal[
    "summary",
    "logistic_regression",
    "linear_svm",
    "forest_importances",
    "boosting_importances",
]

QUERIES: Final[tuple[QueryName, ...]] = (
    "logistic_regression",
    "forest_importances",
    "linear_svm",
    "summary",
)
"""The four queries of the figures, in the order of the paper's panels; gradient boosting is named
in the text alone.
"""

SUBSAMPLE_SEED: Final = 7
"""Public seed of the stratified subsamples."""

N_TREES: Final = 100
"""Of forests and of boosting; the paper says no number."""
TREE_SEED: Final = 7

HASH_GROUPS: Final = ("G1", "G2", "G3", "G4", "G5")


@final
@attrs.frozen(kw_only=True)
class Task:
    """What the models of a table predict: a condition on one column, from nine others."""

    feature_scales: Mapping[str, float]
    """The features and the public unit of each."""
    target: str
    positive: Condition


@final
@attrs.frozen(kw_only=True, repr=False)
class SecretTable:
    """A table with a secret in one of its columns, and what is asked of it."""

    table: pa.Table
    protected: str
    """The column with the secret of each row."""
    summary: Query
    task: Task

    @property
    def n_records(self) -> int:
        """Number of rows."""
        return int(self.table.num_rows)

    def shares(self) -> dict[str, float]:
        """The share of rows of each secret: the paper's empirical prior."""
        secrets, counts = np.unique(self.labels(), return_counts=True)
        return {str(s): int(n) / self.n_records for s, n in zip(secrets, counts, strict=True)}

    def labels(self) -> npt.NDArray[np.str_]:
        """The secret of every row."""
        return np.array(self.table[self.protected].to_pylist(), dtype=np.str_)

    def query(self, name: QueryName) -> Query:
        """One of the queries of the paper on this table."""
        if name == "summary":
            return self.summary
        scales, target, positive = self.task.feature_scales, self.task.target, self.task.positive
        if name in ("forest_importances", "boosting_importances"):
            importances = getattr(queries, name)
            return cast(
                "Query",
                importances(
                    features=list(scales),
                    target=target,
                    positive=positive,
                    n_trees=N_TREES,
                    seed=TREE_SEED,
                ),
            )
        linear = queries.linear_svm if name == "linear_svm" else queries.logistic_regression
        return linear(
            features=list(scales), target=target, positive=positive, feature_scales=scales
        )

    def balanced(self, seed: int = SUBSAMPLE_SEED) -> "SecretTable":
        """A stratified subsample, from a public seed: as many rows of each secret as of the rarest.

        Rows keep their order.
        """
        rows = stratified_rows(self.labels(), seed)
        return attrs.evolve(self, table=self.table.take(rows))

    def __repr__(self) -> str:
        return f"SecretTable(protected={self.protected!r}, n_records={self.n_records})"


def stratified_rows(labels: npt.NDArray[np.str_], seed: int) -> npt.NDArray[np.int64]:
    """Row numbers, ascending: of every label as many as the rarest has, drawn without replacement.

    The draw is the same under every version of numpy: rows are ordered by raw bits.
    """
    check_count(0, seed=seed)
    secrets, counts = np.unique(labels, return_counts=True)
    keys = np.random.PCG64(seed).random_raw(len(labels))
    chosen = []
    for secret in secrets:
        rows = np.flatnonzero(labels == secret)
        chosen.append(rows[np.argsort(keys[rows], kind="stable")][: counts.min()])
    return np.sort(np.concatenate(chosen))


def hash_groups(table: pa.Table) -> npt.NDArray[np.str_]:
    """One of five groups for every row, by a SHA-256 of its cells: same rows, same group.

    The paper names no hash function; this one depends on the cells alone, not on their order in
    the file or on the machine.
    """
    numbers = [
        int.from_bytes(hashlib.sha256(canonical_json(row)).digest(), "big") % len(HASH_GROUPS)
        for row in table.to_pylist()
    ]
    return np.array(HASH_GROUPS, dtype=np.str_)[numbers]


def adult_race() -> SecretTable:
    """Adult, complete rows, secret race (five values): 30,162 records.

    The models predict an income above 50K from nine features. The paper says "demographic and
    employment attributes"; here five numbers and four flags: sex, marriage, private employer and
    birth in the United States.
    """
    table = datasets.adult_complete()
    for name, (column, value) in _ADULT_FLAGS.items():
        table = table.append_column(
            name, pc.equal(table[column], pa.scalar(value)).cast(pa.int64())
        )
    return SecretTable(
        table=table, protected="race", summary=queries.adult_summary(), task=_ADULT_TASK
    )


def adult_hashed() -> SecretTable:
    """Adult with the balanced prior of the paper's appendix: five groups by a hash of the row."""
    natural = adult_race()
    groups = hash_groups(datasets.adult_complete())
    return attrs.evolve(
        natural, table=natural.table.append_column("group", pa.array(groups)), protected="group"
    )


def cleveland_sex() -> SecretTable:
    """Cleveland heart disease, secret sex: 303 records, 206 of them male.

    The models predict heart disease from the first nine columns other than sex, none of which has
    missing values; the paper names no features.
    """
    table = data.cleveland()
    names = np.where(table["sex"].to_numpy() == 1, "male", "female")
    named = table.set_column(table.column_names.index("sex"), "sex", pa.array(names))
    return SecretTable(
        table=named, protected="sex", summary=data.cleveland_summary(), task=_CLEVELAND_TASK
    )


def student_grades() -> SecretTable:
    """Student performance, secret the quintile of the final grade: 395 records in five groups.

    Grades are tied, so the groups have 102, 84, 78, 58 and 73 records. The models predict who takes
    paid extra classes: the grade itself is known within a group, and the paper names no target.
    """
    table = data.student()
    frame = frame_of(table)
    rule = secret_rule(Bins(column="G3", quantiles=len(HASH_GROUPS)), [frame])
    grouped = table.append_column("grade group", pa.array(rule.labels(frame)))
    return SecretTable(
        table=grouped,
        protected="grade group",
        summary=data.student_summary(),
        task=attrs.evolve(_STUDENT_TASK, target="paid", positive=equals("yes")),
    )


def student_sex() -> SecretTable:
    """Student performance, secret sex: 395 records, 208 of them F.

    The models predict a final grade from 10 on, which is a pass, from nine numeric columns that
    are known before the examination; the paper names none.
    """
    return SecretTable(
        table=data.student(),
        protected="sex",
        summary=data.student_summary(),
        task=_STUDENT_TASK,
    )


_ADULT_FLAGS: Final = {
    "male": ("sex", "Male"),
    "married": ("marital-status", "Married-civ-spouse"),
    "private": ("workclass", "Private"),
    "born-in-us": ("native-country", "United-States"),
}

_ADULT_TASK: Final = Task(
    feature_scales={
        "age": 10, "education-num": 2.5, "hours-per-week": 10,
        "capital-gain": 10_000, "capital-loss": 1_000, **dict.fromkeys(_ADULT_FLAGS, 1),
    },
    target="income",
    positive=equals(">50K"),
)  # fmt: skip

_CLEVELAND_TASK: Final = Task(
    feature_scales={
        "age": 10, "cp": 1, "trestbps": 20, "chol": 50, "fbs": 1, "restecg": 1, "thalach": 20,
        "exang": 1, "oldpeak": 1,
    },
    target="num",
    positive=above(0),
)  # fmt: skip

_STUDENT_TASK: Final = Task(
    feature_scales={
        "age": 1, "Medu": 1, "Fedu": 1, "traveltime": 1, "studytime": 1, "failures": 1,
        "famrel": 1, "goout": 1, "absences": 10,
    },
    target="G3",
    positive=at_least(10),
)  # fmt: skip


ORDER: Final = 4.0
N_DIRECTIONS: Final = 200
SEED: Final = 20_260_101
"""Public; directions and noise of every trial are derived from it."""

BUDGETS: Final = (
    0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 2.0, 4.0, 8.0, 10.0, 12.0, 14.0, 18.0, 20.0, 25.0, 30.0, 35.0,
    40.0, 45.0, 50.0, 55.0, 60.0,
)  # fmt: skip
"""The paper's 22 budgets."""

NOTIONS: Final[tuple[SlicedNotion, ...]] = ("average", "joint")
METHODS: Final[Mapping[Rule, Method]] = {
    "tight": Method(rule="tight", envelope="transport"),
    "closed_form": Method(rule="closed_form", envelope="worst_gap"),
}
"""Ours, and the paper's own."""

SHAPED: Final = ("unsliced", "shaped")
"""Notion and rule of the third mechanism: a claim about the whole output, noise of a fitted shape.
"""


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
    def distributions(self) -> tuple[FiniteDistribution, ...]:
        """The point mass of each group, in the order of the counts."""
        distributions = (self.scenario.priors[0].distributions[secret] for secret in self.counts)
        return tuple(
            distribution
            for distribution in distributions
            if isinstance(distribution, FiniteDistribution)
        )


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

    `number` is that of the panel in its experiment, so that each panel draws its own noise.
    """
    parts = in_threads(
        lambda trial: list(_trial_rows(panel, scale, number, trial)), range(scale.n_trials)
    )
    return [row for part in parts for row in part]


def _trial_rows(panel: Panel, scale: Scale, number: int, trial: int) -> Iterator[Row]:
    slices = trial_slices(panel.scenario, trial)
    isotropic = np.eye(panel.scenario.dim)
    cells = product(enumerate(NOTIONS), enumerate(METHODS.items()), enumerate(scale.budgets))
    for (n, notion), (r, (rule, method)), (b, epsilon) in cells:
        noise_std = Renyi(order=ORDER, epsilon=epsilon).slice_noise(slices, notion, method)
        rng = np.random.default_rng([SEED, number, trial, n, r, b])
        simulated = _simulated(panel, noise_std, isotropic, rng)
        yield _row(panel, trial, (notion, rule), epsilon, simulated)
    for b, epsilon in enumerate(scale.budgets):
        certificate = certify_release(panel.scenario, Renyi(order=ORDER, epsilon=epsilon))
        whitening = isotropic if certificate.shape is None else certificate.shape.whitening
        rng = np.random.default_rng([SEED, number, trial, len(NOTIONS), 0, b])
        simulated = _simulated(panel, certificate.noise_std, whitening, rng)
        yield _row(panel, trial, SHAPED, epsilon, simulated)


def _row(
    panel: Panel,
    trial: int,
    mechanism: tuple[str, str],
    epsilon: float,
    simulated: Mapping[str, float],
) -> Row:
    notion, rule = mechanism
    return {
        "prior": panel.prior,
        "query": panel.query,
        "notion": notion,
        "rule": rule,
        "epsilon": epsilon,
        "trial": trial + 1,
        "n_records": panel.n_records,
        "dim": panel.scenario.dim,
        **simulated,
    }


def trial_slices(scenario: Scenario, trial: int) -> Slices:
    """What the directions of a trial can show; each trial draws its own, from a public seed."""
    seed = int(np.random.SeedSequence([SEED, trial]).generate_state(1)[0])
    profile = FiniteProfile.uniform(dim=scenario.dim, n_directions=N_DIRECTIONS, seed=seed)
    return slice_sensitivity(scenario, profile, None, silent)


def _simulated(
    panel: Panel, noise_std: float, whitening: Floats, rng: np.random.Generator
) -> dict[str, float]:
    """Errors and the attack on one noisy output of every record, in scaled units.

    Every record carries the scaled query of its group. The noise is isotropic in whitened
    coordinates, where the attack looks at it. Source: app:experiments.
    """
    groups = np.repeat(np.arange(len(panel.counts)), list(panel.counts.values()))
    outputs = np.vstack([distribution.outputs for distribution in panel.distributions])[groups]
    white = noise_std * rng.standard_normal(outputs.shape)
    coloring = np.linalg.inv(whitening)
    errors = white @ coloring.T
    known = [
        attrs.evolve(distribution, outputs=distribution.outputs @ whitening.T)
        for distribution in panel.distributions
    ]
    squares = (errors**2).sum(axis=1)
    scores = gaussian_scores(outputs @ whitening.T + white, known, noise_std)
    guesses = (scores + np.log(panel.shares)).argmax(axis=1)
    accuracy = float(np.mean(guesses == groups))
    likeliest = float(panel.shares.max())
    ratio = float(squares.sum() / (outputs**2).sum())
    return {
        "noise_std": noise_std * float(np.linalg.norm(coloring)) / math.sqrt(len(coloring)),
        "mse": float(squares.mean()),
        "mae": float(np.abs(errors).mean()),
        "l2": float(np.sqrt(squares).mean()),
        "relative_error": math.sqrt(ratio),
        "snr_db": -10 * math.log10(ratio),
        "accuracy": accuracy,
        "prior_accuracy": likeliest,
        "advantage": accuracy - likeliest,
    }


@final
@attrs.frozen(kw_only=True)
class Curve:
    """Noise, error and attack of one panel, notion and rule against epsilon: means over trials."""

    prior: str
    query: str
    notion: str
    rule: str
    epsilons: Floats = attrs.field(converter=locked, eq=same)
    """Ascending."""
    noise_stds: Floats = attrs.field(converter=locked, eq=same)
    """Root mean variance of a coordinate, in scaled units."""
    squared_errors: Floats = attrs.field(converter=locked, eq=same)
    """Mean squared error of a record: summed over the coordinates, in scaled units."""
    accuracies: Floats = attrs.field(converter=locked, eq=same)
    prior_accuracy: float
    n_outputs: int
    """Simulated outputs behind each point: records times trials."""
    dim: int

    @property
    def panel(self) -> str:
        """Which panel, in words."""
        return f"{self.prior} {self.query}"

    @property
    def accuracy_deviations(self) -> Floats:
        """Standard error of each accuracy, at least that of one output in all."""
        p = np.clip(self.accuracies, 1 / self.n_outputs, 1 - 1 / self.n_outputs)
        return np.sqrt(p * (1 - p) / self.n_outputs)

    @property
    def squared_error_deviation(self) -> float:
        """Relative standard error of each mean squared error: squares of normal draws."""
        return float(np.sqrt(2 / (self.dim * self.n_outputs)))


def curves_of(rows: Sequence[Row]) -> tuple[Curve, ...]:
    """The curves of an outcome's rows, in the order of their first rows."""
    keys = ("prior", "query", "notion", "rule")
    grouped: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        grouped.setdefault(tuple(str(row[key]) for key in keys), []).append(row)
    return tuple(_curve(*key, rows=found) for key, found in grouped.items())


def _curve(prior: str, query: str, notion: str, rule: str, *, rows: Sequence[Row]) -> Curve:
    epsilons = sorted({number_in(row, "epsilon") for row in rows})
    n_trials = len({row["trial"] for row in rows})

    def means(column: str) -> Floats:
        cells: dict[float, list[float]] = {epsilon: [] for epsilon in epsilons}
        for row in rows:
            cells[number_in(row, "epsilon")].append(number_in(row, column))
        return np.array([np.mean(cell) for cell in cells.values()])

    return Curve(
        prior=prior,
        query=query,
        notion=notion,
        rule=rule,
        epsilons=np.array(epsilons),
        noise_stds=means("noise_std"),
        squared_errors=means("mse"),
        accuracies=means("accuracy"),
        prior_accuracy=number_in(rows[0], "prior_accuracy"),
        n_outputs=int(number_in(rows[0], "n_records")) * n_trials,
        dim=int(number_in(rows[0], "dim")),
    )
