# SPDX-License-Identifier: Apache-2.0
"""The paper's three tables: preprocessing, secrets, natural and balanced priors, and queries.

Where the paper does not say how something was done, the docstring says what is done here. Model
queries need the extra `models`, which is loaded when one of them is asked for.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Final, Literal, final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pufferslice import datasets, queries
from pufferslice.checks import check_count
from pufferslice.queries import Condition, Query, above, at_least, equals
from pufferslice.secret import Bins, secret_rule
from pufferslice.storage import canonical_json
from pufferslice.tables import frame_of

QueryName = Literal["summary", "logistic_regression", "linear_svm", "forest_importances"]

QUERIES: Final[tuple[QueryName, ...]] = (
    "logistic_regression",
    "forest_importances",
    "linear_svm",
    "summary",
)
"""The four queries, in the order of the paper's panels."""

SUBSAMPLE_SEED: Final = 7
"""Public seed of the stratified subsamples."""

FOREST_TREES: Final = 100
FOREST_SEED: Final = 7

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
        """One of the four queries of the paper on this table."""
        return _QUERIES[name](self)

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
    kept = []
    for secret in secrets:
        rows = np.flatnonzero(labels == secret)
        kept.append(rows[np.argsort(keys[rows], kind="stable")][: counts.min()])
    return np.sort(np.concatenate(kept))


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
        table=table, protected="race", summary=datasets.adult_summary(), task=_ADULT_TASK
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
    table = datasets.cleveland()
    names = np.where(table["sex"].to_numpy() == 1, "male", "female")
    named = table.set_column(table.column_names.index("sex"), "sex", pa.array(names))
    return SecretTable(
        table=named, protected="sex", summary=datasets.cleveland_summary(), task=_CLEVELAND_TASK
    )


def student_grades() -> SecretTable:
    """Student performance, secret the quintile of the final grade: 395 records in five groups.

    Grades are tied, so the groups have 102, 84, 78, 58 and 73 records. The models predict who takes
    paid extra classes: the grade itself is known within a group, and the paper names no target.
    """
    table = datasets.student()
    frame = frame_of(table)
    rule = secret_rule(Bins(column="G3", quantiles=len(HASH_GROUPS)), [frame])
    grouped = table.append_column("grade group", pa.array(rule.labels(frame)))
    return SecretTable(
        table=grouped,
        protected="grade group",
        summary=datasets.student_summary(),
        task=attrs.evolve(_STUDENT_TASK, target="paid", positive=equals("yes")),
    )


def student_sex() -> SecretTable:
    """Student performance, secret sex: 395 records, 208 of them F.

    The models predict a final grade from 10 on, which is a pass, from nine numeric columns that
    are known before the examination; the paper names none.
    """
    return SecretTable(
        table=datasets.student(),
        protected="sex",
        summary=datasets.student_summary(),
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


def _summary(table: SecretTable) -> Query:
    return table.summary


def _logistic(table: SecretTable) -> Query:
    task = table.task
    return queries.logistic_regression(
        features=list(task.feature_scales),
        target=task.target,
        positive=task.positive,
        feature_scales=task.feature_scales,
    )


def _svm(table: SecretTable) -> Query:
    task = table.task
    return queries.linear_svm(
        features=list(task.feature_scales),
        target=task.target,
        positive=task.positive,
        feature_scales=task.feature_scales,
    )


def _forest(table: SecretTable) -> Query:
    task = table.task
    return queries.forest_importances(
        features=list(task.feature_scales),
        target=task.target,
        positive=task.positive,
        n_trees=FOREST_TREES,
        seed=FOREST_SEED,
    )


_QUERIES: Final[Mapping[QueryName, Callable[[SecretTable], Query]]] = {
    "summary": _summary,
    "logistic_regression": _logistic,
    "linear_svm": _svm,
    "forest_importances": _forest,
}
