# SPDX-License-Identifier: Apache-2.0
"""Attacks on the implementation: float support, shared noise, residues of grid values."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from pufferslice.audit import draw_outputs
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.calibration.noise import (
    SIGMA_INT,
    OperatingSystemNoise,
    SeededTestNoise,
    draw_integers,
)
from pufferslice.certificate import certify_release
from pufferslice.errors import AlreadyReleasedError
from pufferslice.learning.keys import RunKey
from pufferslice.queries import summary
from pufferslice.releases.release import quantised, release, release_again
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
def test_every_grid_value_of_one_secret_is_one_of_the_other():
    """The support is all integers within reach of the sampler, around either query value."""
    _, certificate = certified(1.0)
    moved = quantised(np.array([1.0]), np.array([0.0]), certificate.noise_std)[0]
    draws = OperatingSystemNoise().draw(100_000)
    largest = 2**48 - 1
    assert (np.abs(draws - moved) <= largest).all()
    assert (np.abs(draws + moved) <= largest).all()


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


def certified_table(folder, noise):
    table = pa.table({"g": ["a", "a", "b", "b"], "x": [1.0, 2.0, 3.0, 4.0]})
    scenario = Scenario.from_groups(table, secret="g", query=summary(mean=["x"]))  # noqa: S106
    target = Guarantee.joint(order=2, epsilon=1.0)
    return scenario, table.slice(0, 2), certify_release(scenario, target.along(LINE), noise=noise)


@pytest.mark.soundness
def test_repeated_releases_never_share_noise(tmp_path):
    """Forty certificates of one scenario: forty different values around the same query."""
    noise = OperatingSystemNoise()
    seen = set()
    for run in range(40):
        scenario, rows, certificate = certified_table(tmp_path, noise)
        seen.add(
            int(release(scenario, rows, certificate, ledger=tmp_path / f"l{run}").grid_values[0])
        )
    assert len(seen) == 40
    seeded = SeededTestNoise(seed=1)
    assert len({int(seeded.draw(1)[0]) for _ in range(40)}) == 1, "a reused seed would be seen"


@pytest.mark.soundness
def test_a_release_that_is_resumed_has_the_same_noise_and_no_second_one(tmp_path):
    scenario, rows, certificate = certified_table(tmp_path, OperatingSystemNoise())
    first = release(scenario, rows, certificate, ledger=tmp_path / "l")
    again = release_again(certificate, ledger=tmp_path / "l", out=tmp_path / "again.json")
    assert again.grid_values == first.grid_values
    with pytest.raises(AlreadyReleasedError):
        release(scenario, rows, certificate, ledger=tmp_path / "l")


FORKED = """
import json, os, sys
from pufferslice.calibration.noise import OperatingSystemNoise

noise = OperatingSystemNoise()
found = [noise.draw(4).tolist()]  # the generator is warm before it is copied
for _ in range(6):
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, json.dumps(noise.draw(4).tolist()).encode())
        os._exit(0)
    os.wait()
    found.append(json.loads(os.read(read, 10_000)))
found.append(noise.draw(4).tolist())
print(json.dumps(found))
"""


@pytest.mark.soundness
def test_forked_processes_never_share_noise():
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=True
    )
    draws = [number for draw in json.loads(done.stdout) for number in draw]
    assert len(set(draws)) == len(draws) == 32


@pytest.mark.soundness
def test_resumed_runs_never_noise_two_sums_alike(tmp_path):
    """A step taken again with its own sums gets its own noise, which then averages nothing out."""
    key = RunKey.create(tmp_path / "run.key")
    sums = np.arange(5, dtype=np.int64)
    other = sums.copy()
    other[2] += 1
    before = key.noise_key(7, sums)
    resumed = RunKey.read(tmp_path / "run.key")
    assert resumed.noise_key(7, sums) == before
    keys = {
        before,
        resumed.noise_key(8, sums),
        resumed.noise_key(7, other),
        resumed.noise_key(7, sums[:4]),
        RunKey.fresh().noise_key(7, sums),
    }
    draws = [draw_integers(one, 20).tolist() for one in keys]
    assert len({number for draw in draws for number in draw}) == 20 * 5
