# SPDX-License-Identifier: Apache-2.0
"""Mechanisms broken on purpose, and what audits see of them.

    python tests/audit/teeth.py

prints the table of docs/audits.md: point masses in the plane, eight slices, a joint claim of
order 2, 100,000 outputs under each secret, confidence 0.95.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from pufferslice._core.sampler import SIGMA_INT, SeededTestNoise
from pufferslice.audit import Audit, audit_outputs, supplied_outputs
from pufferslice.certificate import Certificate, certify_release
from pufferslice.claims import Guarantee
from pufferslice.queries import summary
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile

ORDER = 2.0
CONFIDENCE = 0.95
SURE = 1 - 1e-6
"""For an audit that must not refute, whatever the seed."""
N_OUTPUTS = 100_000
EPSILONS = (0.001, 0.01, 0.1, 1.0, 3.0, 6.0)
STEP_SIZE = 0.2
N_MICROBATCHES = 4
CORRELATION = 0.999
WITHOUT_NOISE = 0.01
TRUNCATED_AT = 3.0

POINTS = {"low": (0.0, 0.0), "middle": (0.15, 0.1), "high": (0.4, 0.3)}
PROFILE = FiniteProfile.uniform(dim=2, n_directions=8, seed=3)

Draw = Callable[[int], np.ndarray]
"""Independent standard noise for every secret, output and coordinate, by the number of the draw."""
Mechanism = Callable[[Certificate, Draw], np.ndarray]
"""Which multiples of the certified noise a mechanism adds."""
Shaped = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Outputs of a mechanism with shaped noise: of values, of isotropic noise with the certified
deviation, both with a row for each output, and of the matrix that maps noise back."""


def point_masses(points: Mapping[str, tuple[float, ...]] = POINTS) -> Scenario:
    """One value under each secret: the claim is as tight as it can be."""
    names = [f"x{index}" for index in range(len(next(iter(points.values()))))]
    worlds = {secret: FiniteDistribution.uniform([list(point)]) for secret, point in points.items()}
    return Scenario.from_worlds(worlds, query=summary(mean=names), source="public_model")


def certified(epsilon: float, scenario: Scenario | None = None) -> Certificate:
    target = Guarantee.joint(order=ORDER, epsilon=epsilon)
    return certify_release(scenario or point_masses(), target.along(PROFILE))


def wrong_pair(certificate: Certificate, draw: Draw) -> np.ndarray:
    """Calibrated for the two secrets that lie closest."""
    two = point_masses({secret: POINTS[secret] for secret in ("low", "middle")})
    return certified(certificate.guarantee.epsilon, two).noise_std / certificate.noise_std * draw(0)


def noise_of_rank_one(_: Certificate, draw: Draw) -> np.ndarray:
    """None at all in one direction, which is no axis and no slice."""
    free, noise = np.array([1.0, -0.5]) / np.hypot(1.0, 0.5), draw(0)
    return noise - (noise @ free)[..., None] * free


def correlated_noise(_: Certificate, draw: Draw) -> np.ndarray:
    first, second = np.moveaxis(draw(0), -1, 0)
    mixed = CORRELATION * first + np.sqrt(1 - CORRELATION**2) * second
    return np.stack([first, mixed], axis=-1)


def sometimes_no_noise(_: Certificate, draw: Draw) -> np.ndarray:
    """In a hundredth of the outputs, which has the same size for every seed."""
    noise = draw(0)
    noise[:, :: round(1 / WITHOUT_NOISE)] = 0.0
    return noise


def truncated_noise(_: Certificate, draw: Draw) -> np.ndarray:
    """Drawn again beyond three standard deviations."""
    noise = draw(0)
    again = 0
    while (beyond := np.abs(noise) > TRUNCATED_AT).any():
        again += 1
        noise = np.where(beyond, draw(again), noise)
    return noise


def right(_: Certificate, draw: Draw) -> np.ndarray:
    return draw(0)


def variance_for_deviation(certificate: Certificate, draw: Draw) -> np.ndarray:
    """Sigma squared where sigma belongs: too little noise if sigma is below 1."""
    return certificate.noise_std * draw(0)


def one_noise_for_all(_: Certificate, draw: Draw) -> np.ndarray:
    """The same draw in every coordinate."""
    return draw(0)[..., :1] * [1.0, 1.0]


BROKEN: dict[str, Mechanism] = {
    "half the noise": lambda _, draw: 0.5 * draw(0),
    "noise forgotten in one coordinate": lambda _, draw: draw(0) * [0.0, 1.0],
    "sensitivity of the wrong pair": wrong_pair,
    "sigma squared for sigma, sigma below 1": variance_for_deviation,
    f"step size {STEP_SIZE:g} slipped into the noise": lambda _, draw: STEP_SIZE * draw(0),
    f"noise per microbatch mean, {N_MICROBATCHES} of them": lambda _, draw: np.mean(
        [draw(part) for part in range(N_MICROBATCHES)], axis=0
    ),
    "a seed reused": lambda _, draw: np.broadcast_to(draw(0)[:1, :1], draw(0).shape),
}
"""Each is seen along the slices of the claim."""

HIDDEN: dict[str, Mechanism] = {
    "one noise for all coordinates": one_noise_for_all,
    "no noise in one direction": noise_of_rank_one,
    f"correlation {CORRELATION:g} between the coordinates": correlated_noise,
    f"no noise in {WITHOUT_NOISE:.0%} of the outputs": sometimes_no_noise,
    f"noise truncated at {TRUNCATED_AT:g} standard deviations": truncated_noise,
}
"""The slices of the claim may not see these; other lines, atoms and ranges do."""


def a_tenth_less(values: np.ndarray, noise: np.ndarray, coloring: np.ndarray) -> np.ndarray:
    """A tenth less noise in one whitened direction, which is no axis of either coordinates."""
    narrow = np.arange(1.0, values.shape[-1] + 1)
    narrow /= np.linalg.norm(narrow)
    return values + (noise - 0.1 * (noise @ narrow)[..., None] * narrow) @ coloring.T


def flipped_correlation(values: np.ndarray, noise: np.ndarray, coloring: np.ndarray) -> np.ndarray:
    """Every coordinate has its noise, and the first goes against the others."""
    noisy = noise @ coloring.T
    noisy[..., 0] *= -1
    return values + noisy


def right_shape(values: np.ndarray, noise: np.ndarray, coloring: np.ndarray) -> np.ndarray:
    return values + noise @ coloring.T


BROKEN_SHAPES: dict[str, Shaped] = {
    "a tenth less noise in one direction": a_tenth_less,
    "isotropic noise of the same total": lambda values, noise, coloring: (
        values + noise * np.sqrt((coloring**2).sum() / len(coloring))
    ),
    "whitened where it should be mapped back": lambda values, noise, coloring: (
        values + noise @ np.linalg.inv(coloring).T
    ),
    "mapped back twice": lambda values, noise, coloring: values + noise @ (coloring @ coloring).T,
    "correlation of the wrong sign": flipped_correlation,
    "values on the grid without whitening": lambda values, noise, coloring: (
        (values + noise) @ coloring.T
    ),
}
"""Mechanisms that say they have the certified shape of noise."""


def certified_whole(epsilon: float, scenario: Scenario | None = None) -> Certificate:
    """A claim about the whole output, with noise of a fitted shape."""
    target = Guarantee.unsliced(order=ORDER, epsilon=epsilon)
    return certify_release(scenario or point_masses(), target)


def audit_of_shape(
    mechanism: Shaped,
    scenario: Scenario,
    certificate: Certificate,
    n_outputs: int,
    seed: int,
    confidence: float = CONFIDENCE,
) -> Audit:
    """The audit of a mechanism on point masses around 0."""
    (prior,) = scenario.priors
    shape = (len(prior.distributions), n_outputs, scenario.dim)
    draws = SeededTestNoise(seed=seed).draw(math.prod(shape)) / SIGMA_INT
    noise = certificate.noise_std * draws.reshape(shape)
    values = np.array([point.outputs for point in prior.distributions.values()])
    released = mechanism(np.broadcast_to(values, shape), noise, certificate.shape.coloring)
    outputs = supplied_outputs(
        scenario, certificate, dict(zip(prior.distributions, released, strict=True))
    )
    return audit_outputs(scenario, None, certificate, outputs, confidence=confidence, seed=seed)


def audit_of(
    mechanism: Mechanism,
    certificate: Certificate,
    n_outputs: int,
    seed: int,
    confidence: float = CONFIDENCE,
) -> Audit:
    """The audit of a mechanism that says it is the certified one."""
    shape = (len(POINTS), n_outputs, 2)

    def draw(number: int) -> np.ndarray:
        noise = SeededTestNoise(seed=seed + number * 10_007)
        return (noise.draw(math.prod(shape)) / SIGMA_INT).reshape(shape)

    scenario, noise = point_masses(), certificate.noise_std * mechanism(certificate, draw)
    drawn = {s: np.array(POINTS[s]) + part for s, part in zip(POINTS, noise, strict=True)}
    outputs = supplied_outputs(scenario, certificate, drawn)
    return audit_outputs(scenario, PROFILE, certificate, outputs, confidence=confidence, seed=seed)


def table(seed: int) -> str:
    """One mechanism a row: the bound on its sliced cost at epsilon 1, and the claims it breaks."""
    lines = [
        "| mechanism | joint epsilon at a claim of 1 is at least | seen by | claims refuted |",
        "|---|---|---|---|",
    ]
    for name, mechanism in {"right": right, **BROKEN, **HIDDEN}.items():
        audits = {e: audit_of(mechanism, certified(e), N_OUTPUTS, seed) for e in EPSILONS}
        first = next((v for v in audits[1.0].verdicts if v.refuted), None)
        seen_by = f"{first.pair[0]}/{first.pair[1]}, {first.line}" if first else "-"
        claims = ", ".join(f"{e:g}" for e, audit in audits.items() if audit.refuted) or "none"
        bound = audits[1.0].verdicts[0].lower_bound
        lines.append(f"| {name} | {bound:.2f} | {seen_by} | {claims} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(seed=1))  # noqa: T201 - it is a command
