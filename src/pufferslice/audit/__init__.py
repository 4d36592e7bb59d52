# SPDX-License-Identifier: Apache-2.0
"""Audits: lower bounds by attack, which may refute a claim and never prove one."""

from pufferslice.audit.divergence import audit_line, bound_epsilon
from pufferslice.audit.membership import (
    MembershipAudit,
    ShadowModels,
    audit_membership,
    likelihood_ratio_scores,
    loss_scores,
    margin_scores,
    offline_likelihood_ratio_scores,
    roc_auc,
)
from pufferslice.audit.outputs import Outputs, draw_outputs, supplied_outputs
from pufferslice.audit.property import (
    Probes,
    PropertyAudit,
    audit_property,
)
from pufferslice.audit.release import Audit, audit_outputs, audit_release
from pufferslice.audit.training import (
    TrainingRuns,
    audit_training,
)
from pufferslice.audit.verdict import Verdict

__all__ = [
    "Audit",
    "MembershipAudit",
    "Outputs",
    "Probes",
    "PropertyAudit",
    "ShadowModels",
    "TrainingRuns",
    "Verdict",
    "audit_line",
    "audit_membership",
    "audit_outputs",
    "audit_property",
    "audit_release",
    "audit_training",
    "bound_epsilon",
    "draw_outputs",
    "likelihood_ratio_scores",
    "loss_scores",
    "margin_scores",
    "offline_likelihood_ratio_scores",
    "roc_auc",
    "supplied_outputs",
]
