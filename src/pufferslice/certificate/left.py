# SPDX-License-Identifier: Apache-2.0
"""What is left of a budget: the least noise that each statistic of each part can still have."""

import math
from typing import Any, ClassVar, Final, Protocol, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.display import Shown
from pufferslice._core.text import shown
from pufferslice.certificate.statement import BudgetStatement, TablePart
from pufferslice.noise.spending import Spending
from pufferslice.sensitivity.whitening import Shape

_WHAT: Final = (
    "The least noise that a further release of each statistic alone can have, in your units. A "
    "release without `only` takes all that is left, and combines it with what was released."
)


class Spendings(Protocol):
    """A ledger, as far as this module needs it."""

    def spending(self, certificate: str, part: str, period: int) -> Spending | None:
        """Return the precision that is spent of a part; None if nothing is yet."""


@final
@attrs.frozen(kw_only=True)
class LeftStatistic:
    """What can still be had of one statistic, in the user's units."""

    part: str
    period: int
    statistic: str
    noise_std: float
    """Noise of the whole precision that was declared."""
    least_noise_std: float
    """Least noise that a release of this statistic can still have; infinite if nothing is left."""
    share: float
    """Share of the declared precision of this statistic that is left."""

    def __str__(self) -> str:
        period = f" {self.period}" if self.period else ""
        least = "nothing is left of it alone"
        if math.isfinite(self.least_noise_std):
            least = f"noise std at least {self.least_noise_std:.4g}"
        return f"{shown(self.part)}{period}: {shown(self.statistic)}: {least}"


@final
@attrs.frozen(kw_only=True)
class Left(Shown):
    """What is left of a budget, for each statistic of each part and period."""

    is_internal: ClassVar[bool] = False

    statistics: tuple[LeftStatistic, ...]

    def to_json(self) -> dict[str, Any]:
        """Return what is left as JSON values; noise that cannot be had is null."""
        rows = self.table_rows()
        for row in rows:
            if math.isinf(row["least_noise_std"]):
                row["least_noise_std"] = None
        return {"left": rows}

    def table_rows(self) -> list[dict[str, Any]]:
        """Return one row for each statistic of each part and period."""
        return [attrs.asdict(each) for each in self.statistics]

    def sentences(self) -> list[str]:
        """Say what the numbers are."""
        return [_WHAT]

    def __str__(self) -> str:
        lines = []
        for part in dict.fromkeys(each.part for each in self.statistics):
            rows = [each for each in self.statistics if each.part == part]
            periods = list(dict.fromkeys(each.period for each in rows))
            whole = [p for p in periods if all(r.share == 1 for r in rows if r.period == p)]
            if whole:
                which = f", {len(whole)} of {len(periods)} periods" if whole != [0] else ""
                lines.append(f"  {shown(part)}{which}: nothing was spent")
            lines += [f"  {each}" for each in rows if each.period not in whole]
        return "\n".join([*self.sentences(), *lines])


def what_is_left(statement: BudgetStatement, digest: str, ledger: Spendings) -> Left:
    """Compute what is left of every part about rows, by the ledger of its releases.

    Periods of a part are numbered from 1; a part that is published once has period 0 here.
    """
    found: list[LeftStatistic] = []
    for part in statement.tables:
        statistics = whitened_statistics(part)
        for period in range(1, part.times + 1):
            spending = ledger.spending(digest, part.name, period)
            if spending is None:
                spending = Spending.none(len(statistics))
            found += _left_of(part, period, statistics, spending)
    return Left(statistics=tuple(found))


def whitened_statistics(part: TablePart) -> Floats:
    """Return the statistics of a part, in the user's units, by coordinates of precision 1."""
    coloring = Shape(whitening=part.noise.whitening).coloring
    return np.asarray(np.array(part.scenario.query.scales)[:, None] * coloring)


def _left_of(
    part: TablePart, period: int, statistics: Floats, spending: Spending
) -> list[LeftStatistic]:
    declared, least = np.linalg.norm(statistics, axis=1), spending.least_stds(statistics)
    return [
        LeftStatistic(
            part=part.name,
            period=period if part.kind == "repeated" else 0,
            statistic=name,
            noise_std=float(whole),
            least_noise_std=float(std),
            share=1.0 if not spending.total.any() else min(1.0, float(whole / std) ** 2),
        )
        for name, whole, std in zip(part.scenario.query.names, declared, least, strict=True)
    ]
