# SPDX-License-Identifier: Apache-2.0
"""Attacks on the implementation: float support, shared noise, residues of grid values."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from pufferslice.audit import draw_outputs
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.calibration.noise import SIGMA_INT, OperatingSystemNoise, SeededTestNoise
from pufferslice.certificate import certify_release
from pufferslice.queries import summary
from pufferslice.releases.release import release
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile

THRESHOLD = 1e-9
"""A right distribution falls below it once in a thousand million runs."""

LINE = FiniteProfile.axes(dim=1)
VALUES = {"zero": 0.0, "one": 1.0}


def certified(epsilon):
    """Point masses at 0 and 1; at order 2 and epsilon 1 the noise is about 1."""
    worlds = {secret: FiniteDistribution.uniform([[value]]) for secret, value in VALUES.items()}
    scenario = Scenario.from_worlds(worlds, query=summary(mean=["x"]), source="public_model")
    return scenario, certify_release(
        scenario, Guarantee.joint(order=2, epsilon=epsilon, profile=LINE)
    )


def impossible(outputs, value):
    """Outputs that no double z makes: value + z, rounded, is never the output."""
    guess = outputs - value
    reached = np.zeros(len(outputs), dtype=bool)
    for z in (guess, np.nextafter(guess, -np.inf), np.nextafter(guess, np.inf)):
        reached |= value + z == outputs
    return ~reached


@pytest.mark.soundness
def test_support_attack_finds_plain_float_noise(rng):
    """Mironov (2012): a quarter or more of the outputs at 0 cannot come from 1."""
    outputs = 0.0 + rng.normal(0.0, 1.0, 100_000)
    assert impossible(outputs, 1.0).mean() > 0.2
    assert impossible(outputs, 0.0).mean() == 0
    assert impossible(1.0 + rng.normal(0.0, 1.0, 100_000), 1.0).mean() == 0


@pytest.mark.soundness
@pytest.mark.statistical
@pytest.mark.parametrize("epsilon", [0.3, 4.0])
def test_support_attack_finds_nothing_in_a_release(epsilon, rng):
    """Whatever it says of an output, it says as often under the other secret."""
    scenario, certificate = certified(epsilon)
    drawn = draw_outputs(scenario, certificate, 100_000, seed=0).values["declared"]
    assert support_p([drawn[secret][:, 0] for secret in VALUES]) > THRESHOLD
    plain = [value + rng.normal(0, certificate.noise_std, 100_000) for value in VALUES.values()]
    assert support_p(plain) < THRESHOLD


def support_p(outputs):
    """Smallest p-value that outputs of both secrets are equally often called impossible."""
    # How fine floats are depends on where they lie, so outputs are compared where that is equal.
    cells = [np.stack([binade(part), binade(part - 1.0)], axis=1) for part in outputs]
    found = [1.0]
    for value in VALUES.values():
        flags = [impossible(part, value) for part in outputs]
        for cell in np.unique(np.vstack(cells), axis=0):
            pairs = zip(flags, cells, strict=True)
            found.append(same_rate_p(*(flag[(at == cell).all(axis=1)] for flag, at in pairs)))
    return min(found)


def binade(values):
    """Sign and exponent of floats: between neighbouring powers of two they are equally fine."""
    return np.sign(values).astype(int) * (np.frexp(values)[1] + 2_000)


def same_rate_p(first, second):
    """Fisher's exact test of two rates."""
    table = [[int(x.sum()), int((~x).sum())] for x in (first, second)]
    return stats.fisher_exact(table).pvalue


@pytest.mark.soundness
@pytest.mark.statistical
@pytest.mark.parametrize("modulus", [2, 3, 7, 16, 256])
def test_residues_do_not_depend_on_the_secret(modulus):
    scenario, certificate = certified(1.0)
    step = certificate.noise_std / SIGMA_INT
    drawn = draw_outputs(scenario, certificate, 200_000, seed=0).values["declared"]
    residues = {s: np.round(v[:, 0] / step).astype(np.int64) % modulus for s, v in drawn.items()}
    counts = [np.bincount(part, minlength=modulus) for part in residues.values()]
    assert stats.chi2_contingency(counts).pvalue > THRESHOLD
    for count in counts:
        assert stats.chisquare(count).pvalue > THRESHOLD
    # Noise on a coarser grid than the values would leave the residues of neighbours apart.
    coarse = OperatingSystemNoise().draw(1_000) // modulus * modulus
    apart = [np.bincount((coarse + value) % modulus, minlength=modulus) for value in (0, 1)]
    assert (np.minimum(*apart) == 0).all()


@pytest.mark.soundness
def test_repeated_releases_never_share_noise(tmp_path):
    """Forty certificates of one scenario: forty different values around the same query."""
    noise = OperatingSystemNoise()
    table = pa.table({"g": ["a", "a", "b", "b"], "x": [1.0, 2.0, 3.0, 4.0]})
    scenario = Scenario.from_groups(table, secret="g", query=summary(mean=["x"]))  # noqa: S106
    target = Guarantee.joint(order=2, epsilon=1.0, profile=LINE)
    values = set()
    for run in range(40):
        certificate = certify_release(scenario, target, noise=noise)
        released = release(scenario, table.slice(0, 2), certificate, ledger=tmp_path / f"l{run}")
        values.add(int(released.grid_values[0]))
    assert len(values) == 40
    seeded = SeededTestNoise(seed=1)
    assert len({int(seeded.draw(1)[0]) for _ in range(40)}) == 1, "a reused seed would be seen"
