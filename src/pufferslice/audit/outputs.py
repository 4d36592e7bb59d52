# SPDX-License-Identifier: Apache-2.0
"""Outputs of a release, drawn as releases draw them, or supplied from elsewhere."""

import io
import os
from collections.abc import Mapping
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, Integers, arrays_in, locked
from pufferslice._core.checks import check_count, check_finite
from pufferslice._core.files import (
    CONFIDENTIAL,
    canonical_json,
    parsed_json,
    read_bytes,
    write_whole,
)
from pufferslice._core.sampler import SIGMA_INT, Noise, OperatingSystemNoise
from pufferslice._core.text import listed, quoted
from pufferslice.audit.tables import experiments_of
from pufferslice.certificate import Certificate
from pufferslice.certificate.evidence import Evidence
from pufferslice.errors import ArgumentError, ScenarioError, TableError
from pufferslice.releases.release import quantised
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.whitening import Shape

FORMAT: Final = "pufferslice-outputs"
VERSION: Final = 1

LARGEST_RATIO: Final = 2**18
"""Largest distance from the centre in noise standard deviations: integers of 64 bits."""

_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError)


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class Outputs:
    """Independent outputs of one mechanism under every prior and secret.

    Confidential: the mean of many outputs is close to the query itself.
    """

    certificate: str
    """Digest of the certificate of the mechanism."""
    values: Mapping[str, Mapping[str, Floats]]
    """Outputs by prior, or experiment, and secret, in scaled coordinates, shape (n, dim)."""

    @property
    def n_outputs(self) -> int:
        """Number of outputs under the secret that has fewest."""
        return min(len(array) for secrets in self.values.values() for array in secrets.values())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a compressed numpy archive, whole, readable by its owner only."""
        names = [[prior, secret] for prior, secrets in self.values.items() for secret in secrets]
        facts = {
            "format": FORMAT,
            "version": VERSION,
            "certificate": self.certificate,
            "names": names,
        }
        arrays: dict[str, Any] = {
            f"values_{index}": self.values[prior][secret]
            for index, (prior, secret) in enumerate(names)
        }
        file = io.BytesIO()
        packed = np.frombuffer(canonical_json(facts), dtype=np.uint8)
        np.savez_compressed(file, facts=packed, **arrays)
        write_whole(path, file.getvalue(), CONFIDENTIAL)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Outputs":
        """Read a file of `save`."""
        content = read_bytes(path, "archive")
        try:
            arrays = arrays_in(content)
            facts = parsed_json(arrays["facts"].tobytes())
            if facts["format"] != FORMAT or facts["version"] != VERSION:
                raise ValueError(facts["format"])
            values: dict[str, dict[str, Floats]] = {}
            for index, (prior, secret) in enumerate(facts["names"]):
                values.setdefault(prior, {})[secret] = locked(arrays[f"values_{index}"])
            return cls(certificate=str(facts["certificate"]), values=values)
        except _UNREADABLE as error:
            raise TableError(
                f"{str(path)!r} does not hold outputs; write them with Outputs.save"
            ) from error

    def __repr__(self) -> str:
        return f"Outputs(certificate='{self.certificate[:12]}…', n_outputs={self.n_outputs})"


def draw_outputs(
    scenario: Scenario,
    certificate: Certificate,
    n_outputs: int,
    *,
    seed: int,
    noise: Noise = OperatingSystemNoise(),  # noqa: B008 - it has no state
) -> Outputs:
    """Fresh outputs under every prior and secret, each as from one release.

    A value is drawn from the distribution, whitened and put on the grid by the functions that a
    release uses, noise is added in integers, and the sum is mapped back. `seed` is that of the
    values, not of the noise. Of scenarios of rows there are also outputs of whole tables, at both
    ends of the range of what is hidden; fewer of them, where tables are large.

    Needs: distributions that can be drawn from. Values of sampled priors are drawn from the sample:
    the bands around a sample contain the sample, so the claim covers it.
    """
    check_count(1, n_outputs=n_outputs)
    check_count(0, seed=seed)
    check_scenario(scenario, certificate)
    places = [
        (experiment, secret)
        for experiment in experiments_of(scenario)
        for secret in experiment.prior.distributions
    ]
    # One call, because a seeded test generator starts the same stream again at every call.
    sizes = [experiment.n_draws(n_outputs) for experiment, _ in places]
    size = sum(sizes) * scenario.dim if certificate.noise_std else 0
    draws = np.split(noise.draw(size).reshape(-1, scenario.dim), np.cumsum(sizes)[:-1])
    values: dict[str, dict[str, Floats]] = {}
    for index, ((experiment, secret), n) in enumerate(zip(places, sizes, strict=True)):
        rng = np.random.default_rng([seed, index])
        atoms, where = experiment.draw(secret, n, rng)
        outputs = noisy(atoms, where, draws[index], scenario.query.center, certificate)
        values.setdefault(experiment.name, {})[secret] = locked(outputs)
    return Outputs(certificate=certificate.digest, values=values)


def noisy(
    atoms: Floats, where: Integers, draws: Integers, center: Floats, certificate: Certificate
) -> Floats:
    """Put values on the grid, add integer noise, and map the sum back, as a release does."""
    noise_std, shape = certificate.noise_std, certificate.shape
    if not noise_std:
        return np.asarray(atoms[where])
    used, back = np.unique(where, return_inverse=True)
    grid = quantised_rows(atoms[used], center, noise_std, shape)[back] + draws
    if shape is None:
        return np.asarray(center + grid * (noise_std / SIGMA_INT))
    # Wide, because what is small in one direction is a difference of what is large.
    wide = grid.astype(np.longdouble) * (np.longdouble(noise_std) / SIGMA_INT)
    return np.asarray((center + wide @ shape.coloring.T).astype(np.float64))


def supplied_outputs(
    scenario: Scenario, certificate: Certificate, released: Mapping[str, Any]
) -> Outputs:
    """Outputs from elsewhere, by secret, in the user's units, shape (n, dim) each.

    With several priors, `released` maps the name of each prior to such a mapping.

    Needs: independent outputs of the mechanism that `certificate` is about.
    """
    check_scenario(scenario, certificate)
    alone = len(scenario.priors) == 1
    by_prior = {scenario.priors[0].name: released} if alone else released
    values: dict[str, dict[str, Floats]] = {}
    for prior in scenario.priors:
        arrays = by_prior.get(prior.name, {})
        absent = [secret for secret in prior.distributions if secret not in arrays]
        unknown = [secret for secret in arrays if secret not in prior.distributions]
        if absent or unknown:
            raise ArgumentError(
                f"outputs must be given for every secret of prior {quoted(prior.name)} and no "
                f"other; absent: {listed(absent) or 'none'}, unknown: {listed(unknown) or 'none'}"
            )
        values[prior.name] = {}
        for secret, array in arrays.items():
            numbers = locked(array)
            check_array(numbers, scenario.dim)
            values[prior.name][secret] = locked(numbers / scenario.query.scales)
    return Outputs(certificate=certificate.digest, values=values)


def check_scenario(scenario: Scenario, certificate: Certificate) -> None:
    """Raise unless the certificate is of a release of this scenario."""
    if certificate.workflow != "release":
        raise ArgumentError(
            f"this certificate is of a {certificate.workflow}, and not of one release, so there "
            "are no two distributions to draw from; audit runs in Python, with audit_training, and "
            "of a budget each part as a release of its own"
        )
    evidence = certificate.evidence
    is_other = certificate.released.scenario.to_json() != scenario.description()
    if is_other or not (
        evidence is None or (isinstance(evidence, Evidence) and evidence.is_of(scenario))
    ):
        raise ScenarioError(
            "the certificate was issued for another scenario; audit it with the scenario that was "
            "certified, or certify this one"
        )


def quantised_rows(
    values: Floats, center: Floats, noise_std: float, shape: Shape | None = None
) -> Integers:
    """`quantised` of every row, the same integers; it is called only for rows close to a tie."""
    if shape is None:
        wide = values.astype(np.longdouble) - center.astype(np.longdouble)
    else:
        wide = shape.whitened(values, center).astype(np.longdouble)
    if not float(np.abs(wide).max()) < LARGEST_RATIO * noise_std:
        raise ScenarioError(
            f"the distributions reach farther than {LARGEST_RATIO} noise standard deviations from "
            "the public centre of the query; audits draw in 64 bits. Centre the query with a "
            "range"
        )
    steps = wide * SIGMA_INT / np.longdouble(noise_std)
    grid = np.rint(steps)
    # Three roundings, each of at most half an eps.
    error = np.abs(steps) * (2 * np.finfo(np.longdouble).eps)
    unsure = (np.abs(steps - grid) + error >= 0.5).any(axis=1)
    result: Integers = grid.astype(np.int64)
    for row in np.flatnonzero(unsure):
        result[row] = quantised(values[row], center, noise_std, shape)
    return result


def check_array(array: Floats, dim: int) -> None:
    """Raise unless these are some finite outputs with so many coordinates."""
    if array.ndim != 2 or array.shape[1] != dim or not len(array):
        raise ArgumentError(f"outputs must have shape (n, {dim}), n at least 1; got {array.shape}")
    check_finite(outputs=array)
