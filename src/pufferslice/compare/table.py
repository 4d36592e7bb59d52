# SPDX-License-Identifier: Apache-2.0
"""The table of a comparison: a row per mechanism."""

import csv
import io
from collections.abc import Mapping
from typing import Any, Literal, final

import attrs

Scope = Literal["sliced", "unsliced", "none"]


@final
@attrs.frozen(kw_only=True)
class Row:
    """What one mechanism adds for the budget, and what that promises."""

    mechanism: str
    is_ours: bool
    guarantee: str
    """The claim in words, as `(4, 1)-Joint-SRPP`."""
    scope: Scope
    """Whether the claim is about slices or about the whole output; `none`: no claim holds."""
    noise: Literal["gaussian", "laplace"]
    noise_std: float
    """Standard deviation of one coordinate, in scaled units."""
    mean_squared_error: float
    """Expected squared error of one coordinate, in scaled units squared: the noise alone."""
    unsliced_epsilon: float | None
    """Upper bound on the unsliced cost of this noise at the order; None where it is infinite."""
    guess: float | None
    """Most that guesses between two protected secrets can be right; None where nothing is known."""
    seconds: float
    """From the laws to the noise."""
    peak_bytes: int
    """Largest memory of Python and its arrays on the way, beyond what was held before."""
    note: str = ""


@final
@attrs.frozen(kw_only=True)
class Comparison:
    """All mechanisms on one scenario, for one order and one epsilon; ours on top."""

    order: float
    epsilon: float
    dim: int
    n_instances: int
    rows: tuple[Row, ...]
    left_out: Mapping[str, str]
    """Mechanisms without a row, and why."""

    def row(self, mechanism: str) -> Row:
        """The row of one mechanism."""
        return next(row for row in self.rows if row.mechanism == mechanism)

    def to_json(self) -> dict[str, Any]:
        """The table as JSON values."""
        return attrs.asdict(self) | {
            "rows": [attrs.asdict(row) for row in self.rows],
            "left_out": dict(self.left_out),
        }

    def to_csv(self) -> str:
        """The rows as CSV, with a header."""
        file = io.StringIO()
        writer = csv.DictWriter(file, [field.name for field in attrs.fields(Row)])
        writer.writeheader()
        writer.writerows(attrs.asdict(row) for row in self.rows)
        return file.getvalue()
