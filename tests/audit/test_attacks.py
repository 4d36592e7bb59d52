# SPDX-License-Identifier: Apache-2.0
"""Attacks on the implementation: float support, shared noise, residues of grid values."""

import itertools
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from tests.audit.teeth import point_masses

from pufferslice._core.sampler import SIGMA_INT, OperatingSystemNoise, SeededTestNoise
from pufferslice.audit import audit_release, draw_outputs
from pufferslice.audit.outputs import quantised_rows
from pufferslice.certificate import certify_release
from pufferslice.claims import Guarantee
from pufferslice.queries import Box, summary
from pufferslice.releases.release import quantised, release
from pufferslice.scenario.distributions import FiniteDistribution, GaussianDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile

THRESHOLD = 1e-9
"""A right distribution falls below it once in a thousand million runs."""

LINE = FiniteProfile.axes(dim=1)
VALUES = {"zero": 0.0, "one": 1.0}


def certified(epsilon):
    """Point masses at 0 and 1; at order 2 and epsilon 1 the noise is about 1."""
    scenario = point_masses({secret: (value,) for secret, value in VALUES.items()})
    return scenario, certify_release(
        scenario, Guarantee.joint(order=2, epsilon=epsilon, profile=LINE)
    )


PLANE = {"zero": [0.0, 0.0], "one": [1.0, 0.3]}


def certified_plane(epsilon, shape="fitted"):
    """Points in the plane, with noise of a shape."""
    scenario = point_masses(PLANE)
    return scenario, certify_release(
        scenario, Guarantee.unsliced(order=2, epsilon=epsilon), shape=shape
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
@pytest.mark.parametrize(
    ("epsilon", "dim"),
    [
        (4.0, 1),
        (0.3, 2),
        pytest.param(0.3, 1, marks=pytest.mark.soak),
        pytest.param(4.0, 2, marks=pytest.mark.soak),
    ],
)
def test_support_attack_finds_nothing_in_a_release(epsilon, dim, rng):
    """Whatever it says of an output, it says as often under the other secret.

    In the plane the noise has a shape; the first coordinates are 0 and 1 as on the line.
    """
    scenario, certificate = (certified if dim == 1 else certified_plane)(epsilon)
    drawn = draw_outputs(scenario, certificate, 100_000, seed=0).values["declared"]
    assert support_p([drawn[secret][:, 0] for secret in VALUES]) > THRESHOLD
    coloring = np.eye(1) if dim == 1 else certificate.shape.coloring
    noise = rng.normal(0, certificate.noise_std, (2, 100_000, dim)) @ coloring.T
    plain = [value + part[:, 0] for value, part in zip(VALUES.values(), noise, strict=True)]
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
@pytest.mark.statistical
@pytest.mark.parametrize("modulus", [2, 7, 256])
def test_residues_of_whitened_integers_do_not_depend_on_the_secret(modulus):
    """Of both integers and of their sum and difference, which a shape might tie together."""
    certificate = certified_plane(1.0)[1]
    points = np.array(list(PLANE.values()))
    whole = quantised_rows(points, np.zeros(2), certificate.noise_std, certificate.shape)
    grid = whole[:, None, :] + OperatingSystemNoise().draw(2 * 200_000 * 2).reshape(2, -1, 2)
    for combination in ([1, 0], [0, 1], [1, 1], [1, -1]):
        residues = (grid @ np.array(combination)) % modulus
        counts = [np.bincount(part, minlength=modulus) for part in residues]
        assert stats.chi2_contingency(counts).pvalue > THRESHOLD
        for count in counts:
            assert stats.chisquare(count).pvalue > THRESHOLD


FAR = 1e15
"""Floats lie an eighth apart here."""


def far_scenario(kind, scales=(3.0, 1.0)):
    """Two secrets one unit apart at a distance of 10^15, with scales that round."""
    points = {"zero": [FAR, 2.0], "one": [FAR + 1.0, 2.4], "two": [FAR + 0.5, -1.0]}
    query = summary(mean=["x", "y"]).with_scales(scales)
    if kind == "gaussian":
        worlds = {
            secret: GaussianDistribution(mean=point, cov=np.zeros((2, 2)))
            for secret, point in points.items()
        }
    else:
        query = query.with_range(Box([FAR - 4, -4], [FAR + 4, 4]))
        worlds = {secret: FiniteDistribution.uniform([point]) for secret, point in points.items()}
    return points, Scenario.from_worlds(worlds, query=query, source="public_model")


@pytest.mark.soundness
@pytest.mark.parametrize("kind", ["points", "gaussian"])
@pytest.mark.parametrize("shape", ["fitted", "diagonal", "isotropic", ((1.0, 0.9), (0.9, 1.0))])
def test_integers_of_far_values_differ_by_no_more_than_was_paid(kind, shape):
    """The integers that a release adds noise to, of one unit at 10^15: the exact cost is theirs."""
    points, scenario = far_scenario(kind)
    order = 4.0
    certificate = certify_release(
        scenario, Guarantee.unsliced(order=order, epsilon=1.0), shape=shape
    )
    scales = [Fraction(scale) for scale in scenario.query.scales.tolist()]
    integers = []
    for secret, point in points.items():
        value = [Fraction(x) / s for x, s in zip(point, scales, strict=True)]
        if kind == "points":
            value = scenario.priors[0].distributions[secret].outputs[0]
        at = quantised(value, scenario.query.center, certificate.noise_std, certificate.shape)
        integers.append(at)
    costs = [
        Fraction(order) / 2 * Fraction(sum((a - b) ** 2 for a, b in zip(*pair, strict=True)))
        / Fraction(SIGMA_INT) ** 2
        for pair in itertools.combinations(integers, 2)
    ]  # fmt: skip
    assert max(costs) <= Fraction(certificate.spent)
    # Distances of points with isotropic noise are rounded up by what floats lose at 10^15.
    least = 0.7 if (kind, shape) == ("points", "isotropic") else 0.999
    assert float(max(costs)) > least * certificate.spent


@pytest.mark.soundness
@pytest.mark.statistical
def test_far_values_are_released_with_the_shaped_noise():
    """What floats an eighth apart leave of it is rounding, which the audit allows for."""
    _, scenario = far_scenario("points")
    certificate = certify_release(scenario, Guarantee.unsliced(order=2, epsilon=0.001))
    audit = audit_release(
        scenario, None, certificate, n_outputs=50_000, confidence=0.95, seed=0,
        noise=SeededTestNoise(seed=3),
    )  # fmt: skip
    assert not audit.refuted


@pytest.mark.soundness
def test_repeated_releases_never_share_noise(tmp_path):
    """Forty certificates of one scenario: forty different values around the same query."""
    noise = OperatingSystemNoise()
    table = pa.table({"g": ["a", "a", "b", "b"], "x": [1.0, 2.0, 3.0, 4.0]})
    scenario = Scenario.from_groups(table, secret="g", query=summary(mean=["x"]))  # noqa: S106
    target = Guarantee.joint(order=2, epsilon=1.0, profile=LINE)
    values = set()
    for run in range(40):
        certificate = certify_release(scenario, target, generator=noise)
        released = release(scenario, table.slice(0, 2), certificate, ledger=tmp_path / f"l{run}")
        values.add(int(released.grid_values[0]))
    assert len(values) == 40
    seeded = SeededTestNoise(seed=1)
    assert len({int(seeded.draw(1)[0]) for _ in range(40)}) == 1, "a reused seed would be seen"
