# SPDX-License-Identifier: Apache-2.0
"""Mechanisms broken on purpose are refuted; right ones are, in at most the stated share of runs."""

from functools import partial
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
    # A hundredth of the outputs is too little for orders as low as 2, and tails that are cut off
    # show about as much as the claim allows.
    if not name.startswith(("no noise in 1% of the outputs", "noise truncated")):
        assert unsliced.refuted
        # These two are nearly the same line where coordinates are correlated.
        assert any(words in unsliced.line for words in ("over the covariance", "least variance"))


def test_a_sliced_claim_is_not_refuted_by_other_lines(seed):
    """One noise for all coordinates is enough along these slices."""
    audit = teeth.audit_of(teeth.one_noise_for_all, teeth.certified(1.0), 20_000, seed, teeth.SURE)
    assert not audit.verdicts[0].refuted
    assert audit.verdicts[0].line.startswith("slice ")
    assert audit.refuted


def test_noise_above_the_certified_is_not_refuted(seed):
    """Sigma squared for sigma is a failure only if sigma is below 1."""
    loose = teeth.certified(0.05)
    assert loose.noise_std > 1
    audit = teeth.audit_of(teeth.variance_for_deviation, loose, 20_000, seed, teeth.SURE)
    assert not audit.refuted


def in_five_dimensions(seed):
    """Differences of five secrets are correlated, and large in some directions only."""
    points = np.random.default_rng(seed).normal(size=(5, 5)) * [0.02, 0.05, 0.1, 0.3, 1.0]
    points[:, 0] += 0.5 * points[:, 4]
    return teeth.point_masses({f"s{index}": tuple(row) for index, row in enumerate(points)})


@pytest.mark.parametrize("name", teeth.BROKEN_SHAPES)
@pytest.mark.parametrize("dim", [2, 5])
def test_broken_shapes_are_refuted(seed, name, dim):
    scenario = teeth.point_masses() if dim == 2 else in_five_dimensions(seed)
    certificate = teeth.certified_whole(1.0, scenario)
    assert certificate.statement.noise.shape.kind == "fitted"
    mechanism = teeth.BROKEN_SHAPES[name]
    audit = teeth.audit_of_shape(mechanism, scenario, certificate, 50_000, seed, teeth.SURE)
    claim, noise = audit.verdicts[0], audit.verdicts[-1]
    assert claim.claim == "(2, 1)-RPP"
    if name == "values on the grid without whitening":
        assert claim.refuted, "the noise is right, and the differences are not"
        assert not noise.refuted
    else:
        assert noise.refuted
        assert "whitened" in noise.claim


@pytest.mark.parametrize(
    ("epsilon", "n_runs", "n_outputs", "most"),
    [
        (1.0, 20, 2_000, 0.0),  # in truth refutations are far rarer than stated
        *(
            pytest.param(epsilon, 200, 20_000, 1 - teeth.CONFIDENCE, marks=pytest.mark.soak)
            for epsilon in (0.1, 1.0, 3.0)
        ),
    ],
)
@pytest.mark.parametrize("kind", ["isotropic", 2, 5])
def test_right_mechanisms_are_rarely_refuted(seed, kind, epsilon, n_runs, n_outputs, most):
    """Isotropic noise along slices, and noise with a shape in two and five dimensions."""
    if kind == "isotropic":
        certificate, n_runs = teeth.certified(epsilon), max(n_runs, 40)
        audit_of = partial(teeth.audit_of, teeth.right, certificate)
    else:
        scenario = teeth.point_masses() if kind == 2 else in_five_dimensions(seed)
        certificate = teeth.certified_whole(epsilon, scenario)
        audit_of = partial(teeth.audit_of_shape, teeth.right_shape, scenario, certificate)
    runs = [audit_of(n_outputs, seed + run).refuted for run in range(n_runs)]
    assert np.mean(runs) <= most


def test_a_right_shape_comes_close_to_its_claim(seed):
    """Along the best of the lines that the audit looks along."""
    scenario = in_five_dimensions(seed)
    certificate = teeth.certified_whole(1.0, scenario)
    settings = scenario, certificate, teeth.N_OUTPUTS, seed, teeth.SURE
    audit = teeth.audit_of_shape(teeth.right_shape, *settings)
    assert not audit.refuted
    assert 0.6 < audit.verdicts[0].lower_bound <= 1


@pytest.mark.soak
def test_the_documented_table_is_what_the_command_prints():
    page = (DOCS / "audits.md").read_text(encoding="utf-8")
    assert teeth.table(seed=1) in page
