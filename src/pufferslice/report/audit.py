# SPDX-License-Identifier: Apache-2.0
"""Verdicts of audits, guesses of attacks and membership, as sections of the internal edition."""

from collections.abc import Sequence
from typing import Final

from pufferslice.audit import Audit, Inference, MembershipAudit, Verdict
from pufferslice.calibration.guarantee import at_most, in_full
from pufferslice.report.blocks import Block, Bullets, Cell, Section, Table, Words, number, pair_of

_LOOKS: Final = {"refuted": "bad", "not refuted": "good", "out of reach": "open"}
_ATTACKS: Final = {"gaussian_map": "Gaussian MAP"}


def audit_section(audits: Sequence[Audit], part: str) -> Section:
    """Verdicts on every claim, and how often attacks guessed the secret."""
    blocks: list[Block] = [
        Words("audits"),
    ]
    for audit in audits:
        blocks.append(
            verdict_table(
                audit.verdicts,
                f"Verdicts, all together with confidence {in_full(audit.confidence)}; "
                f"{audit.n_outputs:,} outputs under each secret",
            )
        )
        if audit.inferences:
            blocks.append(_inference_table(audit.best_inferences))
        if audit.unaudited:
            blocks.append(Bullets(items=tuple(f"Not audited: {text}." for text in audit.unaudited)))
    return Section(id=f"{part}-audits", title="Audits", blocks=tuple(blocks))


def verdict_table(verdicts: Sequence[Verdict], caption: str) -> Table:
    """One row per verdict."""
    return Table(
        caption=caption,
        head=("claim", "outcome", "seen, at least", "claimed, at most", "pair that shows most"),
        rows=tuple(
            (
                one.claim,
                Cell(one.outcome, _LOOKS[one.outcome]),
                f"{one.quantity} {number(one.lower_bound)}",
                f"{one.quantity} {at_most(one.claimed)}",
                pair_of(one.pair),
            )
            for one in verdicts
        ),
    )


def _inference_table(best: Sequence[Inference]) -> Table:
    return Table(
        caption="Guessing the secret, where each attack succeeds best",
        head=("attack", "prior", "among", "right", "right without the output", "advantage"),
        rows=tuple(
            (
                _ATTACKS.get(one.attack, one.attack.replace("_", " ")),
                one.prior_kind,
                pair_of(one.secrets) if len(one.secrets) == 2 else "all secrets",
                str(one.accuracy),
                str(one.prior_accuracy),
                str(one.advantage),
            )
            for one in best
        ),
    )


def membership_table(audit: MembershipAudit) -> Table:
    """What an attack on membership found."""
    rows = [("ROC AUC; guessing gives 0.5", str(audit.roc_auc))]
    rows += [
        (
            f"share of members found, false positives at most {in_full(rate.false_positive_rate)}",
            str(rate.true_positive_rate),
        )
        for rate in audit.low_rates
    ]
    return Table(
        caption=f"Membership: {audit.attack}, {audit.n_members:,} members and "
        f"{audit.n_non_members:,} others, confidence {in_full(audit.confidence)}",
        head=("number", "value [interval]"),
        rows=tuple(rows),
        note="It describes one trained model and bounds no epsilon.",
    )
