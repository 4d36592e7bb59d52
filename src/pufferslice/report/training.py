# SPDX-License-Identifier: Apache-2.0
"""Numbers of a page about private training."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pufferslice._core.svg import Series
from pufferslice._core.text import label
from pufferslice._core.threads import Progress
from pufferslice.audit import MembershipAudit, Verdict
from pufferslice.certificate import Certificate
from pufferslice.certificate.statement import PlanPart
from pufferslice.certificate.sweep import stated_variation, what_if_training
from pufferslice.certificate.wording import doubt_sentence, limit_sentences, record_conditions
from pufferslice.claims import Guess, Information, Renyi
from pufferslice.claims.guess import right_guesses
from pufferslice.learning.plan import HYPOTHESES
from pufferslice.report.inputs import SPENT, ReportInputs, TrainingLog
from pufferslice.report.text import N_BOUNDS

_MOST_POINTS: Final = 300
_COLUMNS: Final = (
    *(SPENT + claim.bound_name for claim in (Renyi, Guess, Information)),
    "held_out_accuracy",
    "held_out_loss",
)
_INTERNAL_COLUMNS: Final = ("mean_loss", "held_out_accuracy", "held_out_loss")


def training_numbers(held: ReportInputs) -> dict[str, Any]:
    """Collect what the public statement says, and what logs and audits show."""
    certificate = held.certificate
    statement = certificate.trained
    verdicts = [audit for audit in held.audits if isinstance(audit, Verdict)]
    return {
        "kind": "training",
        "subject": label(statement.data),
        "statement": statement,
        "claim": certificate.guarantee,
        # A claim that averages over batch draws is not about the draw that the run saw.
        "about_the_run": certificate.guarantee.notion != "average_over_batches",
        "noise_multipliers": _ends(statement.runs),
        "runs": [(run.to_json(), _ends([run])) for run in statement.runs],
        "variation": stated_variation(certificate),
        "doubt": doubt_sentence(statement),
        "record_conditions": record_conditions(statement),
        "hypotheses": [HYPOTHESES[code] for code in statement.hypotheses],
        "limits": limit_sentences(statement),
        "logs": [(log.internal, list(_curves(log))) for log in held.logs],
        "verdicts": verdicts,
        "memberships": [audit for audit in held.audits if isinstance(audit, MembershipAudit)],
        "refuted": [verdict.claim for verdict in verdicts if verdict.refuted],
        "sweep": None,
    }


def training_sweep(certificate: Certificate, progress: Progress) -> dict[str, Any]:
    """Compute the noise of a plan at other bounds; nothing if it has no single noise."""
    claim = certificate.guarantee
    points = what_if_training(certificate, claim.bounds_around(N_BOUNDS), progress)
    if not points:
        return {}
    unit = claim.unit
    bounds = tuple(unit * point.claim.bound for point in points)
    multipliers = tuple(point.noise_multiplier for point in points)
    guesses = tuple(100 * right_guesses(point.total_variation) for point in points)
    return {
        "sweep": {
            "points": points,
            "start": bounds.index(unit * claim.bound),
            "noise": Series(name="noise", look="first", xs=bounds, ys=multipliers),
            "guesses": Series(name="guesses", look="third", xs=bounds, ys=guesses),
        }
    }


def _ends(runs: Sequence[PlanPart]) -> tuple[float, float]:
    values = [value for run in runs for value in run.noise_multipliers]
    return min(values), max(values)


def _curves(log: TrainingLog) -> Iterator[tuple[Series, int]]:
    """List the columns of a log that are drawn, and the step between drawn rows."""
    for name in _INTERNAL_COLUMNS if log.internal else _COLUMNS:
        rows = [row for row in log.rows if isinstance(row.get(name), int | float)]
        if rows:
            stride = 1 + (len(rows) - 1) // _MOST_POINTS
            last = rows[-1:] if (len(rows) - 1) % stride else []
            points = [(float(row["step"]), float(row[name])) for row in [*rows[::stride], *last]]
            xs, ys = zip(*points, strict=True)
            yield Series(name=name, look="first", xs=xs, ys=ys), stride
