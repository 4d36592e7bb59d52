# SPDX-License-Identifier: Apache-2.0
"""Outputs of a mechanism under each secret: drawn afresh as a release draws them, or supplied."""

import io
import os
from collections.abc import Mapping
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice.arrays import Floats, Integers, arrays_in, locked
from pufferslice.certificate import Certificate
from pufferslice.checks import check_count, check_finite
from pufferslice.errors import ArgumentError, ScenarioError, TableError
from pufferslice.laws import EmpiricalLaw, GaussianLaw, Law, SampledLaw
from pufferslice.noise import SIGMA_INT, Noise, OperatingSystemNoise
from pufferslice.queries import Query
from pufferslice.releasing import quantised
from pufferslice.scenario import Scenario
from pufferslice.showing import listed, quoted
from pufferslice.storage import (
    CONFIDENTIAL,
    canonical_json,
    parsed_json,
    read_bytes,
    write_whole,
)

FORMAT: Final = "pufferslice-outputs"
VERSION: Final = 1

LARGEST_RATIO: Final = 2**18
"""Laws reach at most this many noise standard deviations from the centre: integers of 64 bits."""

_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError)


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class Outputs:
    """Independent outputs of one mechanism under every prior and secret.

    Confidential: so many outputs average to the query itself.
    """

    certificate: str
    """Digest of the certificate that is said to cover the mechanism."""
    values: Mapping[str, Mapping[str, Floats]]
    """By prior and secret, in scaled coordinates, shape (n, dim)."""

    @property
    def n_outputs(self) -> int:
        """Under the secret that has fewest."""
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
        """Read back what `save` wrote."""
        content = read_bytes(path, "archive")
        try:
            arrays = arrays_in(content)
            facts = parsed_json(arrays["facts"].tobytes())
            if facts["format"] != FORMAT or facts["version"] != VERSION:
                raise ValueError(facts["format"])
            values: dict[str, dict[str, Floats]] = {}
            for index, (prior, secret) in enumerate(facts["names"]):
                values.setdefault(prior, {})[secret] = locked(arrays[f"values_{index}"])
        except _UNREADABLE as error:
            msg = f"{str(path)!r} does not hold outputs; write them with Outputs.save"
            raise TableError(msg) from error
        return cls(certificate=facts["certificate"], values=values)

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
    """Fresh outputs under every prior and secret, each as one release would make it.

    A value is drawn from the law, put on the grid by the function that a release uses, and noise
    is added in integers. `seed` is that of the values, not of the noise.

    Needs: laws that can be drawn from. Of sampled priors, the sample itself is drawn from: bands
    around a sample hold for the sample too, so the claim must. Binned laws keep no values.
    """
    check_count(1, n_outputs=n_outputs)
    check_count(0, seed=seed)
    check_scenario(scenario, certificate)
    query, noise_std = scenario.query, certificate.noise_std
    places = [(prior, secret) for prior in scenario.priors for secret in prior.laws]
    # One call, because a seeded test generator starts the same stream again at every call.
    size = len(places) * n_outputs * query.dim
    draws = noise.draw(size if noise_std else 0).reshape(-1, n_outputs, query.dim)
    values: dict[str, dict[str, Floats]] = {}
    for index, (prior, secret) in enumerate(places):
        rng = np.random.default_rng([seed, index])
        law = prior.laws[secret]
        if noise_std:
            grid = _drawn_grid(law, query, noise_std, (n_outputs, rng)) + draws[index]
            drawn = query.center + grid * (noise_std / SIGMA_INT)
        else:
            drawn = draw_values(law, n_outputs, rng=rng)
        values.setdefault(prior.name, {})[secret] = locked(drawn)
    return Outputs(certificate=certificate.digest, values=values)


def supplied_outputs(
    scenario: Scenario, certificate: Certificate, released: Mapping[str, Any]
) -> Outputs:
    """Outputs that were made elsewhere, by secret, in the user's units, shape (n, dim) each.

    With several priors, `released` maps the name of each prior to such a mapping.

    Needs: independent outputs of the mechanism that `certificate` is about.
    """
    check_scenario(scenario, certificate)
    alone = len(scenario.priors) == 1
    by_prior = {scenario.priors[0].name: released} if alone else released
    values: dict[str, dict[str, Floats]] = {}
    for prior in scenario.priors:
        given = by_prior.get(prior.name, {})
        absent = [secret for secret in prior.laws if secret not in given]
        unknown = [secret for secret in given if secret not in prior.laws]
        if absent or unknown:
            msg = (
                f"outputs must be given for every secret of prior {quoted(prior.name)} and no "
                f"other; absent: {listed(absent) or 'none'}, unknown: {listed(unknown) or 'none'}"
            )
            raise ArgumentError(msg)
        values[prior.name] = {
            secret: _in_scaled(locked(array), scenario.query) for secret, array in given.items()
        }
    return Outputs(certificate=certificate.digest, values=values)


def check_scenario(scenario: Scenario, certificate: Certificate) -> None:
    """The certificate is of a release of this scenario."""
    if certificate.road != "static":
        msg = (
            "this certificate is of a training run, which has no laws to draw from; audit it "
            "with audit_training"
        )
        raise ArgumentError(msg)
    laws = None if certificate.evidence is None else certificate.evidence.confidential
    other = laws is not None and laws["laws_digest"] != scenario.laws_digest()
    if other or dict(certificate.statement["scenario"]) != scenario.description():
        msg = (
            "the certificate was issued for another scenario; audit it with the scenario that was "
            "certified, or certify this one"
        )
        raise ScenarioError(msg)


def check_outputs(scenario: Scenario, certificate: Certificate, outputs: Outputs) -> None:
    """The outputs are of this certificate, for every secret, finite, and of the right shape."""
    if outputs.certificate != certificate.digest:
        msg = (
            f"the outputs were made under certificate {outputs.certificate[:12]}, not under "
            f"{certificate.digest[:12]}; give those of the mechanism that is audited"
        )
        raise ArgumentError(msg)
    for prior in scenario.priors:
        for secret in prior.laws:
            found = outputs.values.get(prior.name, {}).get(secret)
            if found is None:
                named = f"prior {quoted(prior.name)} and secret {quoted(secret)}"
                msg = f"there are no outputs under {named}"
                raise ArgumentError(msg)
            _check_array(found, scenario.dim)


def draw_values(law: Law, n_outputs: int, *, rng: np.random.Generator) -> Floats:
    """Independent values of the prepared query under one secret, without noise."""
    if isinstance(law, GaussianLaw):
        return rng.multivariate_normal(law.mean, law.cov, n_outputs, method="eigh")
    atoms, where = _drawn_atoms(law, n_outputs, rng)
    return np.asarray(atoms[where])


def _drawn_atoms(law: Law, n_outputs: int, rng: np.random.Generator) -> tuple[Floats, Integers]:
    """The atoms of a law, and which of them were drawn."""
    if isinstance(law, EmpiricalLaw):
        ends = np.cumsum(law.counts)
        return law.outputs, np.searchsorted(ends, rng.integers(ends[-1], size=n_outputs), "right")
    if isinstance(law, SampledLaw):
        return law.outputs, rng.integers(law.n_samples, size=n_outputs)
    msg = (
        "streamed laws keep counts and no values, so nothing can be drawn from them; audit with "
        "outputs that the mechanism itself made, see supplied_outputs"
    )
    raise ScenarioError(msg)


def _drawn_grid(
    law: Law, query: Query, noise_std: float, drawn: tuple[int, np.random.Generator]
) -> Integers:
    """Drawn values on the grid; every atom is put there once."""
    n_outputs, rng = drawn
    if isinstance(law, GaussianLaw):
        atoms, where = draw_values(law, n_outputs, rng=rng), np.arange(n_outputs)
    else:
        atoms, where = _drawn_atoms(law, n_outputs, rng)
    used, back = np.unique(where, return_inverse=True)
    return quantised_rows(atoms[used], query.center, noise_std)[back]


def quantised_rows(values: Floats, center: Floats, noise_std: float) -> Integers:
    """`quantised` of every row, the same integers; only what is close to a tie takes its road."""
    if not float(np.abs(values - center).max()) < LARGEST_RATIO * noise_std:
        msg = (
            f"the laws reach farther than {LARGEST_RATIO} noise standard deviations from the "
            "public centre of the query; audits draw in 64 bits. Centre the query with a range"
        )
        raise ScenarioError(msg)
    wide = (values.astype(np.longdouble) - center.astype(np.longdouble)) * SIGMA_INT
    steps = wide / np.longdouble(noise_std)
    grid = np.rint(steps)
    # Three roundings, each of at most half an eps.
    error = np.abs(steps) * (2 * np.finfo(np.longdouble).eps)
    unsure = (np.abs(steps - grid) + error >= 0.5).any(axis=1)
    result: Integers = grid.astype(np.int64)
    for row in np.flatnonzero(unsure):
        result[row] = quantised(values[row], center, noise_std)
    return result


def _in_scaled(array: Floats, query: Query) -> Floats:
    _check_array(array, query.dim)
    return locked(array / query.scales)


def _check_array(array: Floats, dim: int) -> None:
    if array.ndim != 2 or array.shape[1] != dim or not len(array):
        msg = f"outputs must have shape (n, {dim}), n at least 1; got {array.shape}"
        raise ArgumentError(msg)
    check_finite(outputs=array)
