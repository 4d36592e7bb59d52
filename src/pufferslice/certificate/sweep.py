# SPDX-License-Identifier: Apache-2.0
"""Choose a bound: noise, right guesses and epsilon of several, side by side, before any release.

Everything here is computed from confidential numbers and must stay internal.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import check_between
from pufferslice._core.display import data_frame, html_of, rounded
from pufferslice._core.text import shown
from pufferslice._core.threads import Progress, silent
from pufferslice.calibration.epsilon_delta import View, views_of
from pufferslice.calibration.guarantee import (
    Claim,
    GuessGuarantee,
    at_most,
    percent_at_most,
)
from pufferslice.calibration.guessing import right_guesses
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.issue import certify_release, required_evidence
from pufferslice.certificate.statement import noise_stds
from pufferslice.certificate.what_if import bounds_around, quick_full, sweep_points
from pufferslice.errors import CalibrationError
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.couplings import Effort

if TYPE_CHECKING:
    import pandas as pd

_LADDER: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Epsilons to try, as shares of the claimed one."""
_N_GUESSES: Final = 7
DELTA: Final = 1e-5
_INTERNAL: Final = (
    "Internal; spends nothing. An estimate: far from the claim, noise and guesses may be larger."
)


@final
@attrs.frozen(kw_only=True)
class SweepRow:
    """One bound of a claim, and what it would mean for the whole output."""

    claim: Claim
    noise_stds: Floats | None = attrs.field(converter=attrs.converters.optional(locked), eq=same)
    """Of each statistic, in the user's units; None where no noise reaches the bound."""
    guess: float
    """Most that guesses between two protected secrets, equally likely before, can be right."""
    unsliced_epsilon: float | None
    """At the order of the sweep; None where there is no finite bound."""
    epsilon_at_delta: float | None
    """The best view of the whole output at the delta of the sweep; None if there is none."""


@final
@attrs.frozen(kw_only=True, repr=False)
class Sweep:
    """What other bounds of a claim would cost, all else equal; `print(sweep)` is a table.

    Shape and couplings are those found for the claim itself: far from it, a certificate of another
    bound may have noise that is a quarter larger, or more right guesses. A sweep promises nothing
    and spends nothing: to use a bound, certify it.
    """

    claim: Claim
    """The one that was asked about."""
    names: tuple[str, ...]
    """The statistics."""
    order: float
    """Of `unsliced_epsilon`."""
    delta: float
    """Of `epsilon_at_delta`."""
    rows: tuple[SweepRow, ...]

    @classmethod
    def of(
        cls,
        certificate: Certificate,
        bounds: Sequence[float] | None = None,
        *,
        delta: float = DELTA,
        progress: Progress = silent,
    ) -> "Sweep":
        """Other bounds of a certificate: epsilons, or shares of guesses; without, some around it.

        Needs the evidence, and distributions that differ.
        """
        check_between(0, 1, delta=delta)
        evidence, statement = required_evidence(certificate), certificate.statement
        if evidence.are_equal:
            msg = "the distributions are equal: every bound holds without noise"
            raise CalibrationError(msg)
        claim = certificate.guarantee
        scales = np.array(statement["scenario"]["query"]["scales"])
        points = sweep_points(certificate, _ladder(claim) if bounds is None else bounds, progress)
        full = quick_full(evidence)
        rows = []
        for point in points:
            stds: Floats | None = None
            views: tuple[View, ...] = ()
            if point.noise_std is not None:
                stds = noise_stds(full, point.noise_std) * scales
                views = views_of(None, full, point.claim, point.noise_std, None, delta)
            rows.append(
                SweepRow(
                    claim=point.claim,
                    noise_stds=stds,
                    guess=right_guesses(point.total_variation),
                    unsliced_epsilon=point.unsliced_epsilon,
                    epsilon_at_delta=min((view.epsilon for view in views), default=None),
                )
            )
        return cls(
            claim=claim,
            names=tuple(statement["scenario"]["query"]["names"]),
            order=float(statement["unsliced"]["order"]),
            delta=delta,
            rows=tuple(rows),
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "claim": self.claim.to_json(),
            "order": self.order,
            "delta": self.delta,
            "rows": [
                {
                    "bound": row.claim.bound,
                    "guess": row.guess,
                    "unsliced_epsilon": row.unsliced_epsilon,
                    "epsilon_at_delta": row.epsilon_at_delta,
                    "noise_std_by_coordinate": None
                    if row.noise_stds is None
                    else dict(zip(self.names, row.noise_stds.tolist(), strict=True)),
                }
                for row in self.rows
            ],
        }

    def to_pandas(self) -> "pd.DataFrame":
        """One row per bound; the noise of each statistic is a column with its name."""
        rows = []
        for row in self.to_dict()["rows"]:
            noise = row.pop("noise_std_by_coordinate") or dict.fromkeys(self.names)
            rows.append(row | noise)
        return data_frame(rows)

    def __str__(self) -> str:
        table = self._table()
        rows = [list(table[0]), *(list(line.values()) for line in table)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in rows
        ]
        return "\n".join([f"{self._heading}:", *lines, _INTERNAL])

    def _repr_html_(self) -> str:
        return html_of([f"{self._heading}."], self._table(), str(self), internal=True)

    def __repr__(self) -> str:
        return f"Sweep(claim='{self.claim}', n_bounds={len(self.rows)})"

    @property
    def _heading(self) -> str:
        what = "shares of right guesses" if isinstance(self.claim, GuessGuarantee) else "epsilons"
        return f"{self.claim} and other {what}"

    def _table(self) -> list[dict[str, str]]:
        """A line for each number, a column for each bound; nothing where there is no number."""
        heads = [f"{row.claim.bound:g}" for row in self.rows]
        lines = {
            "right guesses of two": [
                percent_at_most(row.guess).replace("\u00a0", " ") for row in self.rows
            ],
            f"epsilon at order {self.order:g}": [_up(row.unsliced_epsilon) for row in self.rows],
            f"epsilon at delta {self.delta:g}": [_up(row.epsilon_at_delta) for row in self.rows],
        }
        for place, name in enumerate(self.names):
            lines[f"noise of {shown(name)}"] = [
                "-" if row.noise_stds is None else rounded(float(row.noise_stds[place]))
                for row in self.rows
            ]
        return [
            {"bound": name} | dict(zip(heads, cells, strict=True)) for name, cells in lines.items()
        ]


def what_if(
    scenario: Scenario,
    guarantee: Claim,
    *,
    bounds: Sequence[float] | None = None,
    delta: float = DELTA,
    effort: Effort = "thorough",
    progress: Progress = silent,
) -> Sweep:
    """What other bounds of a guarantee would cost, before anything is certified or spent.

    `bounds` are epsilons or, of `Guarantee.guess`, shares of right guesses; without, some around
    that of `guarantee`. Couplings are looked for once. For a guarantee with options of its own (a
    shape, a method, samples) certify it and ask `Sweep.of(certificate)`.
    """
    certificate = certify_release(scenario, guarantee, effort=effort, progress=progress)
    return Sweep.of(certificate, bounds, delta=delta, progress=progress)


def _ladder(claim: Claim) -> tuple[float, ...]:
    """Bounds to try; the claim's own is among them, not rounded."""
    if isinstance(claim, GuessGuarantee):
        return bounds_around(claim, _N_GUESSES)
    return tuple(
        claim.bound if share == 1 else float(f"{claim.bound * share:.3g}") for share in _LADDER
    )


def _up(epsilon: float | None) -> str:
    """Three digits, rounded up."""
    return "-" if epsilon is None else at_most(epsilon, digits=3)
