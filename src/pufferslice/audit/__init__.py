# SPDX-License-Identifier: Apache-2.0
"""Audits: lower bounds by attack, which may refute a claim and never prove one."""

from pufferslice.audit.auditing import Audit, audit_outputs, audit_release
from pufferslice.audit.divergence import audit_line, bound_epsilon
from pufferslice.audit.inference import Inference, infer_secrets
from pufferslice.audit.membership import (
    LowRate,
    MembershipAudit,
    audit_membership,
    loss_scores,
    margin_scores,
    roc_auc,
)
from pufferslice.audit.outputs import Outputs, draw_outputs, supplied_outputs
from pufferslice.audit.repeated import TrainingRuns, train_repeatedly
from pufferslice.audit.shadows import (
    ShadowModels,
    likelihood_ratio_scores,
    offline_likelihood_ratio_scores,
)
from pufferslice.audit.training import audit_released, audit_training
from pufferslice.audit.verdict import Verdict

__all__ = [
    "Audit",
    "Inference",
    "LowRate",
    "MembershipAudit",
    "Outputs",
    "ShadowModels",
    "TrainingRuns",
    "Verdict",
    "audit_line",
    "audit_membership",
    "audit_outputs",
    "audit_release",
    "audit_released",
    "audit_training",
    "bound_epsilon",
    "draw_outputs",
    "infer_secrets",
    "likelihood_ratio_scores",
    "loss_scores",
    "margin_scores",
    "offline_likelihood_ratio_scores",
    "roc_auc",
    "supplied_outputs",
    "train_repeatedly",
]
