# SPDX-License-Identifier: Apache-2.0
"""Audits: lower bounds by attack, which may refute a claim and never prove one."""

from pufferslice.audit.auditing import Audit, audit_outputs, audit_release
from pufferslice.audit.divergence import audit_line, bound_epsilon
from pufferslice.audit.inference import Inference, infer_secrets
from pufferslice.audit.outputs import Outputs, draw_outputs, supplied_outputs
from pufferslice.audit.verdict import Verdict

__all__ = [
    "Audit",
    "Inference",
    "Outputs",
    "Verdict",
    "audit_line",
    "audit_outputs",
    "audit_release",
    "bound_epsilon",
    "draw_outputs",
    "infer_secrets",
    "supplied_outputs",
]
