# SPDX-License-Identifier: Apache-2.0
"""Mechanisms broken on purpose are refuted; right ones are, in at most the stated share of runs."""

from pathlib import Path

import numpy as np
import pytest
from tests.audit import teeth

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = [pytest.mark.soundness, pytest.mark.statistical]


@pytest.fixture(scope="module")
def certificate():
    return teeth.certified(1.0)


@pytest.mark.parametrize("name", teeth.BROKEN)
def test_broken_mechanisms_are_refuted(certificate, seed, name):
    """With fewer outputs than in the documentation, because seven audits run here."""
    assert certificate.noise_std < 0.7, "or sigma squared would be enough noise"
    audit = teeth.audit_of(teeth.BROKEN[name], certificate, 20_000, seed)
    assert audit.refuted
    assert audit.verdicts[0].lower_bound > 1.5, "the claim itself, not only what follows from it"
    assert audit.verdicts[0].line.startswith("slice ")


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
@pytest.mark.parametrize("name", teeth.HIDDEN)
def test_mechanisms_that_slices_may_not_see_are_refuted(seed, name, epsilon):
    """By the noise that the certificate states, and where it can be, by its unsliced number."""
    certificate = teeth.certified(epsilon)
    audit = teeth.audit_of(teeth.HIDDEN[name], certificate, teeth.N_OUTPUTS, seed)
    noise, unsliced = audit.verdicts[-1], audit.verdicts[1]
    assert noise.refuted
    assert noise.claim.startswith("noise of standard deviation")
    # A hundredth of the outputs is too little for orders as low as 2.
    if name != "no noise in 1% of the outputs":
        assert unsliced.refuted
        assert "over the covariance" in unsliced.line


def test_a_sliced_claim_is_not_refuted_by_other_lines(seed):
    """One noise for all coordinates is enough along these slices."""
    audit = teeth.audit_of(teeth.one_noise_for_all, teeth.certified(1.0), 20_000, seed)
    assert not audit.verdicts[0].refuted
    assert audit.verdicts[0].line.startswith("slice ")
    assert audit.refuted


def test_noise_above_the_certified_is_not_refuted(seed):
    """Sigma squared for sigma is a failure only if sigma is below 1."""
    loose = teeth.certified(0.05)
    assert loose.noise_std > 1
    assert not teeth.audit_of(teeth.variance_for_deviation, loose, 20_000, seed).refuted


@pytest.mark.parametrize(
    ("epsilon", "n_runs", "n_outputs", "most"),
    [
        (1.0, 40, 2_000, 0.0),  # in truth refutations are far rarer than stated
        *(
            pytest.param(epsilon, 200, 20_000, 1 - teeth.CONFIDENCE, marks=pytest.mark.soak)
            for epsilon in (0.1, 1.0, 3.0)
        ),
    ],
)
def test_right_mechanisms_are_rarely_refuted(seed, epsilon, n_runs, n_outputs, most):
    certificate = teeth.certified(epsilon)
    runs = (
        teeth.audit_of(teeth.right, certificate, n_outputs, seed + run) for run in range(n_runs)
    )
    assert np.mean([audit.refuted for audit in runs]) <= most


@pytest.mark.soak
def test_the_documented_table_is_what_the_command_prints():
    page = (DOCS / "audits.md").read_text(encoding="utf-8")
    assert teeth.table(seed=1) in page
