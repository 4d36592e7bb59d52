# SPDX-License-Identifier: Apache-2.0
"""Attacks on resampled real tables: none guesses more often than the certificate says.

A longer version, with more sizes and couplings, is in soak/attacks.
"""

import pytest
from tests import real_tables

from pufferslice import Guarantee, certify_release
from pufferslice._core.sampler import SeededTestNoise
from pufferslice.audit import audit_release

pytestmark = [pytest.mark.soundness, pytest.mark.statistical]

pytest.importorskip("sklearn")

N_OUTPUTS = 1_500
SURE = 5.0
"""Standard errors by which chance may exceed a claim, for all attacks of this file together."""
GUESS = Guarantee.guess(at_most=0.64)
CASES = {
    "adult": (real_tables.adult, 3_000, False),
    "moments": (real_tables.moments, 3_000, False),
    "cleveland": (real_tables.cleveland, 60, True),
    "student": (real_tables.student, 395, True),
    "breast cancer": (real_tables.breast_cancer, 569, False),
    "diabetes": (real_tables.diabetes, 442, False),
    "homes": (real_tables.homes, 400, False),
    "hospital": (real_tables.hospital, 300, True),
    "school": (real_tables.school, 60, True),
    "home": (real_tables.home, 48, False),
}


@pytest.mark.parametrize("case", CASES)
def test_the_best_attack_is_within_the_claim(case, request, seed):
    make, size, needs_data = CASES[case]
    options = {"folder": request.getfixturevalue("data_folder")} if needs_data else {}
    scenario = make(size, **options)
    check(scenario, certify_release(scenario, GUESS), seed)


CLAIMS = [
    GUESS,
    Guarantee.unsliced(order=4, epsilon=1.0),
    Guarantee.epsilon_delta(epsilon=1.0, delta=1e-3),
]


@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_near_cells(claim, data_folder, seed):
    """Patients by their pain, of which some kinds are close; rare outputs by theorem 2."""
    scenario = real_tables.cleveland(303, folder=data_folder)
    check(scenario, certify_release(scenario, claim, coupling="transport:cp"), seed)


def check(scenario, certificate, seed):
    """The best attack guesses no more often than is stated, and no audit refutes the rest."""
    noise = SeededTestNoise(seed=seed)
    best, error = real_tables.best_attack(scenario, certificate, N_OUTPUTS, noise=noise, seed=seed)
    assert certificate.guess is not None
    assert best <= certificate.guess + SURE * error
    audit = audit_release(
        scenario,
        None,
        certificate,
        n_outputs=N_OUTPUTS,
        confidence=1 - 1e-4,
        seed=seed,
        noise=noise,
    )
    assert not audit.refuted
