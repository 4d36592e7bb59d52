# SPDX-License-Identifier: Apache-2.0
"""Parts of a budget: what will be published about one secret, all declared beforehand."""

from collections.abc import Mapping
from typing import Final, Literal, final

import attrs

from pufferslice._core.checks import check_count, is_a
from pufferslice._core.text import given, listed, quoted
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.learning.clipping import Clipping, FlatClipping, LayerClipping
from pufferslice.learning.plan import check_n_steps
from pufferslice.learning.sampling import SamplingDesign
from pufferslice.queries.features import feature_bits
from pufferslice.scenario.rows import FEWEST_ROWS, Differing, shared_secret
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.periods import TableSizes

MOST_TIMES: Final = 10_000
"""Most periods of a part."""


@final
@attrs.frozen(eq=False)
class Repeated:
    """A part that is published in each of several periods, about fresh rows.

    Where a share is hidden, `rows` is the public range of the number of rows of a period, as
    `rows=(9_000, 12_000)`; a period with another number is refused. Where a size is hidden there is
    none: the largest size of the scenario bounds how many rows differ. The noise of all periods is
    fixed beforehand.

    Needs: the rows of different periods are independent given the secret. The same households asked
    again are not: their periods are features of one table.
    """

    scenario: Scenario
    times: int = attrs.field(kw_only=True)
    """Number of periods."""
    rows: tuple[int, int] | None = attrs.field(default=None, kw_only=True)
    """Least and largest number of rows of a period."""

    def __attrs_post_init__(self) -> None:
        check_rows_scenario(self.scenario)
        check_count(1, times=self.times)
        if self.times > MOST_TIMES:
            raise ArgumentError(f"times must be at most {MOST_TIMES:,}, got {self.times:,}")
        secret = self.scenario.secret
        if "state_of" in secret:
            raise ScenarioError(
                "the state of a home cannot be hidden in fresh rows: its periods follow each "
                "other. Put all of them into one scenario, with periods="
            )
        if ("share_of" in secret) != (self.rows is not None):
            raise ArgumentError(
                "rows=(least, most) is required where a share is hidden, as the number of rows of "
                "a period is public; where a size is hidden it is refused, because up_to bounds it"
            )
        if self.rows is not None:
            if not is_a(self.rows, tuple | list) or len(self.rows) != 2:
                raise ArgumentError(f"rows must be (least, most), got {given(self.rows)}")
            least, most = self.rows
            check_count(FEWEST_ROWS, rows=least)
            check_count(least, rows=most)
            features = self.scenario.query.features
            if features is not None and feature_bits(most) != feature_bits(secret["n_rows"]):
                raise ArgumentError(
                    f"rows may be at most {2**42 - 1:,}, so that all periods are rounded alike"
                )


@final
@attrs.frozen(eq=False)
class Reserve:
    """A part for features that may be needed later; its query lists all of them.

    They can only be published later if they are declared now. A small share costs the others
    little.
    """

    scenario: Scenario

    def __attrs_post_init__(self) -> None:
        check_rows_scenario(self.scenario)


@final
@attrs.frozen(kw_only=True)
class Training:
    """A part that trains a model; the budget finds its noise.

    `differing` is `scenario.differing()` of the scenario whose table is trained on.
    """

    differing: Differing
    sampling: SamplingDesign
    """How batches are drawn."""
    clip_norm: float | Clipping
    """Largest norm of the gradient of one example."""
    n_steps: int
    block: int | None = None
    """Examples per forward and backward pass; None lets the trainer choose."""

    def __attrs_post_init__(self) -> None:
        if not is_a(self.differing, Differing):
            raise ArgumentError(
                "differing must be scenario.differing() of the scenario whose table is trained on, "
                f"got {given(self.differing)}"
            )
        if not is_a(self.sampling, SamplingDesign):
            raise ArgumentError(
                "sampling must be a value such as Poisson(n_records=1000, rate=0.1) of "
                f"pufferslice.learning, got {given(self.sampling)}"
            )
        check_n_steps(self.n_steps)

    @property
    def clipping(self) -> Clipping:
        """Clipping of the gradients."""
        if isinstance(self.clip_norm, FlatClipping | LayerClipping):
            return self.clip_norm
        return FlatClipping(norm=self.clip_norm)


BudgetPart = Scenario | Repeated | Reserve | Training
"""Part of a budget: a scenario is one table that is published once, in one release or several."""


@final
@attrs.frozen(kw_only=True, eq=False)
class DeclaredTable:
    """A part about rows: a scenario, how often it is published, and the sizes of its tables."""

    name: str
    kind: Literal["table", "reserve", "repeated"]
    """Kind of part in a statement: `table`, `reserve` or `repeated`."""
    scenario: Scenario
    times: int = 1
    rows: tuple[int, int] | None = None

    @classmethod
    def of(cls, name: str, part: Scenario | Repeated | Reserve) -> "DeclaredTable":
        """Read a part that a user declared."""
        if isinstance(part, Repeated):
            rows = None if part.rows is None else (int(part.rows[0]), int(part.rows[1]))
            return cls(
                name=name,
                kind="repeated",
                scenario=part.scenario,
                times=int(part.times),
                rows=rows,
            )
        if isinstance(part, Reserve):
            return cls(name=name, kind="reserve", scenario=part.scenario)
        check_rows_scenario(part)
        return cls(name=name, kind="table", scenario=part)


@final
@attrs.frozen(kw_only=True, eq=False)
class DeclaredParts:
    """All parts of a budget, which are about one secret."""

    tables: tuple[DeclaredTable, ...]
    runs: Mapping[str, Training]
    names: tuple[str, ...]
    """Names of all parts, in the order in which they were declared."""

    @classmethod
    def of(cls, parts: Mapping[str, BudgetPart]) -> "DeclaredParts":
        """Check that the parts can share a budget."""
        if not is_a(parts, Mapping) or not parts:
            raise ArgumentError("parts must map names to scenarios, Repeated, Reserve or Training")
        for name, part in parts.items():
            if not is_a(name, str) or not name:
                raise ArgumentError(f"parts must be named by non-empty strings, got {given(name)}")
            if not is_a(part, BudgetPart):
                raise ArgumentError(
                    f"part {quoted(name)} must be a scenario, Repeated, Reserve or Training, got "
                    f"{given(part)}"
                )
        tables = tuple(
            DeclaredTable.of(name, part)
            for name, part in parts.items()
            if not isinstance(part, Training)
        )
        runs = {name: part for name, part in parts.items() if isinstance(part, Training)}
        if not tables:
            raise ArgumentError(
                "parts must include a scenario, which says what is hidden; add one beside the "
                "training"
            )
        declared = cls(tables=tables, runs=runs, names=tuple(parts))
        declared._check_one_secret()
        declared._check_runs()
        return declared

    def _check_one_secret(self) -> None:
        first = self.tables[0]
        for other in self.tables[1:]:
            if shared_secret(other.scenario.secret) != shared_secret(first.scenario.secret):
                raise ScenarioError(
                    f"parts {quoted(first.name)} and {quoted(other.name)} hide different secrets, "
                    "or different values of one; a budget is for one secret, hidden alike in all "
                    "of its parts. Certify the other in a budget of its own"
                )
        sizes = {t.scenario.secret.get("n_rows") for t in self.tables if t.rows is None}
        if len(sizes) > 1:
            raise ScenarioError(
                "the tables of a budget that are published once must have one number of rows, as "
                "they are one table; publish other rows as Repeated(...), or under a secret of "
                "their own"
            )
        longest = self.most_times
        apart = [t.name for t in self.tables if t.rows is not None and longest % t.times]
        if apart:
            raise ArgumentError(
                f"times of {listed(apart, quoted)} must divide {longest}, the number of periods of "
                "another part: a quarter is made of whole months. Change times"
            )

    def _check_runs(self) -> None:
        known = {}
        for table in self.tables:
            if table.kind != "repeated" and "n_rows" in table.scenario.secret:
                known[table.scenario.secret["n_rows"]] = table.scenario.differing()
        for name, run in self.runs.items():
            if known.get(run.sampling.n_records) != run.differing:
                raise ScenarioError(
                    f"training part {quoted(name)} must have the differing() and the number of "
                    "rows of a scenario of this budget that is published once, with a public "
                    "number of rows: it is trained on that table"
                )

    @property
    def most_times(self) -> int:
        """Largest number of periods of all parts that hide a share."""
        return max((table.times for table in self.tables if table.rows is not None), default=1)

    @property
    def scenarios(self) -> dict[str, Scenario]:
        """Scenario of each table, by the name of its part."""
        return {table.name: table.scenario for table in self.tables}


def sizes_of(
    secret: Mapping[str, object], rows: tuple[int, int] | None, times: int, most_times: int
) -> TableSizes | None:
    """Return how many rows the tables of a part have; None where that is hidden.

    A table that is published less often than another may be made of the rows of several of its
    periods, each of which rounds its own number of differing rows up.
    """
    if "share_of" not in secret:
        return None
    n_rows = int(str(secret["n_rows"]))
    least, most = (n_rows, n_rows) if rows is None else rows
    return TableSizes(
        within=float(str(secret["within"])),
        design="independent" if secret["design"] == "independent" else "stratified",
        least=least,
        most=most,
        pieces=most_times // times,
    )


def check_rows_scenario(scenario: object) -> None:
    """Raise unless a scenario can be a part of a budget: mean squares of other priors do not add.

    Of two fair bits and their exclusive or as the secret, each bit alone tells nothing, and both
    together, with noise of a quarter, allow 95.5 % right guesses.
    """
    if not isinstance(scenario, Scenario):
        raise ArgumentError(f"a part must be about a scenario, got {given(scenario)}")
    if scenario.prior_kind != "rows":
        raise ScenarioError(
            f"a scenario with {scenario.prior_kind} priors cannot be part of a budget: two "
            "releases that are harmless alone can reveal the secret together. Parts are scenarios "
            "of rows, as from_prevalence, from_volume and from_supplier make them"
        )
