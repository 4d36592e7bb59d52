# SPDX-License-Identifier: Apache-2.0
"""Mechanisms broken on purpose, and what audits see of them.

    python tests/audit/teeth.py

prints the table of docs/audits.md: point masses in the plane, eight slices, a joint claim of
order 2, 100,000 outputs under each secret, confidence 0.95.
"""

from collections.abc import Callable, Mapping

import attrs
import numpy as np

from pufferslice.audit import audit_outputs, supplied_outputs
from pufferslice.audit.release import Audit
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.calibration.noise import SIGMA_INT, SeededTestNoise
from pufferslice.certificate import Certificate, certify_release
from pufferslice.queries import summary
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile

ORDER = 2.0
CONFIDENCE = 0.95
N_OUTPUTS = 100_000
EPSILONS = (0.001, 0.01, 0.1, 1.0, 3.0, 6.0)
STEP_SIZE = 0.2
N_MICROBATCHES = 4
CORRELATION = 0.999
WITHOUT_NOISE = 0.01
TRUNCATED_AT = 3.0

POINTS = {"low": (0.0, 0.0), "middle": (0.15, 0.1), "high": (0.4, 0.3)}
PROFILE = FiniteProfile.uniform(dim=2, n_directions=8, seed=3)

Drawn = dict[str, np.ndarray]
Mechanism = Callable[[Certificate, int, int], Drawn]
"""From a certificate, a number of outputs and a seed to outputs under every secret."""


def point_masses(points: Mapping[str, tuple[float, ...]] = POINTS) -> Scenario:
    """One value under each secret: the claim is as tight as it can be."""
    names = [f"x{index}" for index in range(len(next(iter(points.values()))))]
    worlds = {secret: FiniteDistribution.uniform([list(point)]) for secret, point in points.items()}
    return Scenario.from_worlds(worlds, query=summary(mean=names), source="public_model")


def certified(epsilon: float, scenario: Scenario | None = None) -> Certificate:
    target = Guarantee.joint(order=ORDER, epsilon=epsilon)
    return certify_release(scenario or point_masses(), target.along(PROFILE))


def standard_noise(n_outputs: int, seed: int) -> np.ndarray:
    """Independent standard noise for every secret, output and coordinate."""
    size = len(POINTS) * n_outputs * 2
    return (SeededTestNoise(seed=seed).draw(size) / SIGMA_INT).reshape(len(POINTS), n_outputs, 2)


def with_noise(certificate: Certificate, noise: np.ndarray) -> Drawn:
    """The query plus the given multiples of the certified noise."""
    stds = certificate.noise_std * noise
    return {s: np.array(POINTS[s]) + part for s, part in zip(POINTS, stds, strict=True)}


def right(certificate: Certificate, n_outputs: int, seed: int) -> Drawn:
    return with_noise(certificate, standard_noise(n_outputs, seed))


def half_the_noise(certificate: Certificate, n_outputs: int, seed: int) -> Drawn:
    return with_noise(certificate, 0.5 * standard_noise(n_outputs, seed))


def one_coordinate_forgotten(certificate: Certificate, n_outputs: int, seed: int) -> Drawn:
    return with_noise(certificate, standard_noise(n_outputs, seed) * [0.0, 1.0])


def wrong_pair(certificate: Certificate, n_outputs: int, seed: int) -> Drawn:
    """Calibrated for the two secrets that lie closest."""
    epsilon = certificate.guarantee.epsilon
    two = {secret: POINTS[secret] for secret in ("low", "middle")}
    ratio = certified(epsilon, point_masses(two)).noise_std / certificate.noise_std
    return with_noise(certificate, ratio * standard_noise(n_outputs, seed))


def variance_for_deviation(certificate: Certificate, n_outputs: int, seed: int) -> Drawn:
    """Sigma squared where sigma belongs: too little noise if sigma is below 1."""
    return with_noise(certificate, certificate.noise_std * standard_noise(n_outputs, seed))


def step_size_in_noise(certificate: Certificate, n_outputs: int, seed: int) -> Drawn:
    """Noise scaled by the step size, the signal not."""
    return with_noise(certificate, STEP_SIZE * standard_noise(n_outputs, seed))


def noise_per_microbatch(certificate: Certificate, n_outputs: int, seed: int) -> Drawn:
    """Every microbatch mean gets the noise of the whole; the average of them is released."""
    parts = [standard_noise(n_outputs, seed + part * 10_007) for part in range(N_MICROBATCHES)]
    return with_noise(certificate, np.mean(parts, axis=0))


def seed_reused(certificate: Certificate, n_outputs: int, seed: int) -> Drawn:
    """Every release begins the same stream again."""
    first = standard_noise(1, seed)[:1]
    return with_noise(certificate, np.broadcast_to(first, (len(POINTS), n_outputs, 2)))


def one_noise_for_all(certificate: Certificate, n_outputs: int, seed: int) -> Drawn:
    """The same draw in every coordinate."""
    noise = standard_noise(n_outputs, seed)
    return with_noise(certificate, noise[..., :1] * [1.0, 1.0])


def noise_of_rank_one(certificate: Certificate, n_outputs: int, seed: int) -> Drawn:
    """None at all in one direction, which is no axis and no slice."""
    free = np.array([1.0, -0.5]) / np.hypot(1.0, 0.5)
    noise = standard_noise(n_outputs, seed)
    return with_noise(certificate, noise - (noise @ free)[..., None] * free)


def correlated_noise(certificate: Certificate, n_outputs: int, seed: int) -> Drawn:
    first, second = np.moveaxis(standard_noise(n_outputs, seed), -1, 0)
    mixed = CORRELATION * first + np.sqrt(1 - CORRELATION**2) * second
    return with_noise(certificate, np.stack([first, mixed], axis=-1))


def sometimes_no_noise(certificate: Certificate, n_outputs: int, seed: int) -> Drawn:
    """In a hundredth of the outputs, which has the same size for every seed."""
    noise = standard_noise(n_outputs, seed)
    noise[:, :: round(1 / WITHOUT_NOISE)] = 0.0
    return with_noise(certificate, noise)


def truncated_noise(certificate: Certificate, n_outputs: int, seed: int) -> Drawn:
    """Drawn again beyond three standard deviations."""
    noise = standard_noise(n_outputs, seed)
    again = 0
    while (beyond := np.abs(noise) > TRUNCATED_AT).any():
        again += 1
        noise = np.where(beyond, standard_noise(n_outputs, seed + again * 10_007), noise)
    return with_noise(certificate, noise)


BROKEN: dict[str, Mechanism] = {
    "half the noise": half_the_noise,
    "noise forgotten in one coordinate": one_coordinate_forgotten,
    "sensitivity of the wrong pair": wrong_pair,
    "sigma squared for sigma, sigma below 1": variance_for_deviation,
    f"step size {STEP_SIZE:g} slipped into the noise": step_size_in_noise,
    f"noise per microbatch mean, {N_MICROBATCHES} of them": noise_per_microbatch,
    "a seed reused": seed_reused,
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


def audit_of(mechanism: Mechanism, certificate: Certificate, n_outputs: int, seed: int) -> Audit:
    """The audit of a mechanism that says it is the certified one."""
    scenario = point_masses()
    drawn = mechanism(certificate, n_outputs, seed)
    outputs = supplied_outputs(scenario, certificate, drawn)
    return audit_outputs(scenario, PROFILE, certificate, outputs, confidence=CONFIDENCE, seed=seed)


@attrs.frozen(kw_only=True)
class Row:
    """One mechanism: the bound on its sliced cost at epsilon 1, and the claims that it breaks."""

    name: str
    lower_bound: float
    by: str
    refuted: tuple[float, ...]


def row(name: str, mechanism: Mechanism, seed: int) -> Row:
    audits = {e: audit_of(mechanism, certified(e), N_OUTPUTS, seed) for e in EPSILONS}
    first = next((v for v in audits[1.0].verdicts if v.refuted), audits[1.0].verdicts[0])
    return Row(
        name=name,
        lower_bound=audits[1.0].verdicts[0].lower_bound,
        by=f"{first.pair[0]}/{first.pair[1]}, {first.line}" if first.refuted else "-",
        refuted=tuple(epsilon for epsilon, audit in audits.items() if audit.refuted),
    )


def table(seed: int) -> str:
    """The table in Markdown."""
    lines = [
        "| mechanism | joint epsilon at a claim of 1 is at least | seen by | claims refuted |",
        "|---|---|---|---|",
    ]
    for name, mechanism in {"right": right, **BROKEN, **HIDDEN}.items():
        found = row(name, mechanism, seed)
        claims = ", ".join(f"{epsilon:g}" for epsilon in found.refuted) or "none"
        lines.append(f"| {found.name} | {found.lower_bound:.2f} | {found.by} | {claims} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(seed=1))  # noqa: T201 - it is a command
