# SPDX-License-Identifier: Apache-2.0
"""Certificates: issue, read, sign and verify them."""

from pufferslice.certificate.budget import certify_budget
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.issue import certify_release, spent, under_scenario
from pufferslice.certificate.parts import Repeated, Reserve, Training
from pufferslice.certificate.signing import new_key_pair, sign
from pufferslice.certificate.sweep import Sweep, what_if
from pufferslice.certificate.training import (
    certify_training,
    record_epsilon,
    secret_epsilon,
)
from pufferslice.certificate.verdict import Verdict, verdict
from pufferslice.certificate.verify import Verification, verify

__all__ = [
    "Certificate",
    "Repeated",
    "Reserve",
    "Sweep",
    "Training",
    "Verdict",
    "Verification",
    "certify_budget",
    "certify_release",
    "certify_training",
    "new_key_pair",
    "record_epsilon",
    "secret_epsilon",
    "sign",
    "spent",
    "under_scenario",
    "verdict",
    "verify",
    "what_if",
]
