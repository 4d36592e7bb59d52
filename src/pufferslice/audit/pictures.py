# SPDX-License-Identifier: Apache-2.0
"""Picture of an audit: what attacks found, against what is claimed."""

from collections.abc import Sequence
from typing import Final

from pufferslice._core.display import rounded
from pufferslice._core.plot import Bar, Plot, Row, row_chart, scale
from pufferslice.audit.verdict import NEVER_PROVES, Verdict

_TITLE: Final = "What attacks found, against what is claimed"
_SYMBOLS: Final = {"epsilon": "ε", "delta": "δ", "guess": "right guesses"}


def audit_plot(
    verdicts: Sequence[Verdict], *, certificate: str, confidence: float, n_outputs: int
) -> Plot:
    """Draw the lower bound of every verdict as a bar, and the claim as an upright line."""
    rows = [_row(verdict) for verdict in verdicts]
    looks = {bar.look for row in rows for bar in row.bars}
    keys = {"noise": "lower bound found", "against": "lower bound found, which refutes the claim"}
    return Plot(
        title=_TITLE,
        charts=(row_chart(_TITLE, rows),),
        keys=tuple((look, words) for look, words in keys.items() if look in looks),
        notes=(
            f"A bar is what an attack proves, the upright line the claim. {NEVER_PROVES}",
            f"Confidence of all together: {confidence:g}. Outputs per secret: {n_outputs:,}.",
            f"Certificate {certificate[:12]}.",
        ),
        is_internal=True,
    )


def _row(verdict: Verdict) -> Row:
    low, high = scale(verdict.lower_bound, verdict.claimed)
    if verdict.quantity == "guess":  # a coin flip is right half of the time
        low, high = 0.5, 1.0
    found = min(max(verdict.lower_bound, low), high)
    symbol = _SYMBOLS[verdict.quantity]
    return Row(
        name=verdict.claim,
        numbers=f"{verdict.outcome}: {symbol} ≥ {rounded(verdict.lower_bound)}, "
        f"claimed ≤ {rounded(verdict.claimed)}",
        ends=(low, high),
        bars=(Bar("against" if verdict.refuted else "noise", low, found),),
        bound=verdict.claimed,
    )
