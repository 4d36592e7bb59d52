# SPDX-License-Identifier: Apache-2.0
"""Attacks on resampled real tables of 60 to 30,000 rows, for every coupling and claim."""

import pytest
from soak.sizes import SIZE
from tests import real_tables

from pufferslice import Guarantee, certify_release
from pufferslice._core.sampler import SeededTestNoise
from pufferslice.audit import audit_release

pytestmark = [pytest.mark.soak, pytest.mark.soundness]

pytest.importorskip("sklearn")

N_OUTPUTS = SIZE.outputs
SURE = 5.5
"""Standard errors by which chance may exceed a claim, for all attacks of this file together."""
PREVALENCE = {
    "adult": (real_tables.adult, (300, 5_000, 30_000), "race", False),
    "cleveland": (real_tables.cleveland, (60, 303), "cp", True),
    "student": (real_tables.student, (60, 395), "higher", True),
    "breast cancer": (real_tables.breast_cancer, (60, 569), None, False),
    "diabetes": (real_tables.diabetes, (60, 442), None, False),
    "homes": (real_tables.homes, (60, 400, 4_000), None, False),
}
OTHERS = {
    "hospital": (real_tables.hospital, (60, 300, 5_000), True),
    "school": (real_tables.school, (60, 300), True),
    "home": (real_tables.home, (48, 336), False),
}
VARIANTS = {
    "default": ({}, {}),
    "loose": ({"within": 0.2}, {}),
    "random number": ({"design": "independent"}, {}),
    "independent": ({}, {"coupling": "independent"}),
    "equal cells": ({}, {"coupling": "cells:"}),
    "near cells": ({}, {"coupling": "transport:"}),
    "transport": ({}, {"coupling": "transport"}),
    "diagonal": ({}, {"shape": "diagonal"}),
}
CLAIMS = [Guarantee.guess(at_most=0.55), Guarantee.guess(at_most=0.8)]


def check(scenario, certificate, seed):
    noise = SeededTestNoise(seed=seed)
    best, error = real_tables.best_attack(scenario, certificate, N_OUTPUTS, noise=noise, seed=seed)
    assert best <= certificate.guess + SURE * error
    settings = {"n_outputs": N_OUTPUTS, "confidence": 1 - 1e-6, "seed": seed, "noise": noise}
    assert not audit_release(scenario, None, certificate, **settings).refuted


def folder_of(request, *, needs_data):
    return {"folder": request.getfixturevalue("data_folder")} if needs_data else {}


@pytest.mark.parametrize("claim", CLAIMS, ids=str)
@pytest.mark.parametrize(
    ("case", "n_rows", "variant"),
    [
        (case, n, variant)
        for case, (_, sizes, label, _) in PREVALENCE.items()
        for n in sizes
        for variant in VARIANTS
        if n <= SIZE.rows and (label is not None or not variant.endswith("cells"))
    ],
)
def test_shares(case, n_rows, variant, claim, request, seed):
    make, _, label, needs_data = PREVALENCE[case]
    options, certified = VARIANTS[variant]
    if variant.endswith("cells"):
        certified = {"coupling": f"{certified['coupling']}{label}"}
    scenario = make(n_rows, **folder_of(request, needs_data=needs_data), **options)
    check(scenario, certify_release(scenario, claim, **certified), seed)


@pytest.mark.parametrize("claim", CLAIMS, ids=str)
@pytest.mark.parametrize(
    ("case", "size"),
    [(case, n) for case, (_, sizes, _) in OTHERS.items() for n in sizes if n <= SIZE.rows],
)
def test_sizes_and_states(case, size, claim, request, seed):
    make, _, needs_data = OTHERS[case]
    scenario = make(size, **folder_of(request, needs_data=needs_data))
    check(scenario, certify_release(scenario, claim), seed)
