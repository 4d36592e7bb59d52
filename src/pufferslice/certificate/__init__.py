# SPDX-License-Identifier: Apache-2.0
"""Certificates: issue, read, sign, verify."""

from pufferslice.certificate.document import Certificate
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.issuing import certify_release, required_evidence, spent
from pufferslice.certificate.learning import certify_runs, certify_training, compose
from pufferslice.certificate.run_costs import record_epsilon, secret_epsilon
from pufferslice.certificate.signing import new_key_pair, sign
from pufferslice.certificate.verifying import Verification, verify

__all__ = [
    "Certificate",
    "Evidence",
    "Verification",
    "certify_release",
    "certify_runs",
    "certify_training",
    "compose",
    "new_key_pair",
    "record_epsilon",
    "required_evidence",
    "secret_epsilon",
    "sign",
    "spent",
    "verify",
]
