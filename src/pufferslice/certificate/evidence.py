# SPDX-License-Identifier: Apache-2.0
"""Evidence: the confidential numbers from which a claim can be recomputed. No records in it."""

import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, Final, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice.calibration import Full, Slices
from pufferslice.errors import CertificateError
from pufferslice.gaps import GapTables, GaussianPairs, LawPair, gap_tables
from pufferslice.laws import EmpiricalLaw, GaussianLaw
from pufferslice.parallel import Progress, silent
from pufferslice.scenario import Scenario
from pufferslice.slicing import FiniteProfile
from pufferslice.storage import canonical_json, digest
from pufferslice.unsliced import full_tables

VERSION: Final = 1

_TABLE_ARRAYS: Final = ("starts", "gaps", "counts", "totals", "equal")
_SALT_BYTES: Final = 32
_UNREADABLE: Final = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    EOFError,
    OSError,
    NotImplementedError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class Evidence:
    """Gap tables or Gaussian pairs of every instance, the profile, and what they were made of."""

    slices: Slices
    full: Full
    scenario: Mapping[str, Any]
    """The public description of the scenario, as it was when the evidence was made."""
    confidential: Mapping[str, Any]
    """Row counts, and the digest of the laws."""
    salt: bytes
    """Random, so that the public digest of the evidence cannot be used to check guesses."""

    @classmethod
    def of(
        cls, scenario: Scenario, profile: FiniteProfile, progress: Progress = silent
    ) -> "Evidence":
        """The evidence of a scenario along a profile."""
        slices, full = _seen(scenario, profile, progress)
        return cls(
            slices=slices,
            full=full,
            scenario=scenario.description(),
            confidential={
                "laws_digest": scenario.laws_digest(),
                "n_rows": {prior.name: dict(prior.n_rows) for prior in scenario.priors},
            },
            salt=os.urandom(_SALT_BYTES),
        )

    def digest(self) -> str:
        """Salted SHA-256 over everything in the evidence."""
        parts = [self.salt, canonical_json(self._facts())]
        for name, array in sorted(self._arrays().items()):
            parts += [name.encode(), f"{array.dtype.str}{array.shape}".encode(), array.tobytes()]
        return digest(*parts)

    def to_bytes(self) -> bytes:
        """The evidence as a compressed numpy archive, without pickles."""
        file = io.BytesIO()
        facts = np.frombuffer(canonical_json(self._facts()), dtype=np.uint8)
        salt = np.frombuffer(self.salt, dtype=np.uint8)
        arrays: dict[str, Any] = {"facts": facts, "salt": salt, **self._arrays()}
        np.savez_compressed(file, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Evidence":
        """Read back what `to_bytes` wrote; anything else is a `CertificateError`."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            facts = json.loads(arrays.pop("facts").tobytes())
            return cls._from_parts(facts, arrays.pop("salt").tobytes(), arrays)
        except _UNREADABLE as error:
            kind = type(error).__name__
            msg = f"the evidence cannot be read ({kind}); it is damaged or not evidence"
            raise CertificateError(msg) from error

    @classmethod
    def _from_parts(
        cls, facts: dict[str, Any], salt: bytes, arrays: dict[str, npt.NDArray[Any]]
    ) -> "Evidence":
        if facts["version"] != VERSION:
            msg = f"the evidence has version {facts['version']!r}, this program reads {VERSION}"
            raise CertificateError(msg)
        profile = FiniteProfile(directions=arrays["directions"], weights=arrays["weights"])
        evidence = cls(
            slices=Slices(profile=profile, seen=_unpacked("slices", facts["kind"], arrays)),
            full=Full(dim=profile.dim, seen=_unpacked("full", facts["kind"], arrays)),
            scenario=facts["scenario"],
            confidential=facts["confidential"],
            salt=salt,
        )
        evidence.check()
        return evidence

    def check(self) -> None:
        """The numbers fit together, and are about the instances that the description lists."""
        seen, full = self.slices.seen, self.full.seen
        seen.check()
        full.check()
        n_instances = len(self.scenario["priors"]) * len(self.scenario["pairs"])
        if not n_instances == seen.n_instances == full.n_instances:
            msg = (
                f"the evidence lists {n_instances} (prior, pair) instances, but is about "
                f"{seen.n_instances}, and {full.n_instances} couplings"
            )
            raise CertificateError(msg)
        for tables in (seen, full):
            if isinstance(tables, GapTables) and tables.worst()[tables.equal].any():
                msg = "the evidence calls laws equal that its own gaps tell apart"
                raise CertificateError(msg)
        if not np.array_equal(seen.equal, full.equal) or self.full.dim != self.slices.profile.dim:
            msg = "the evidence along the slices and in full is not of the same laws"
            raise CertificateError(msg)

    def _facts(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "kind": "gaps" if isinstance(self.slices.seen, GapTables) else "gaussian",
            "scenario": dict(self.scenario),
            "confidential": dict(self.confidential),
        }

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        profile = self.slices.profile
        return {
            "directions": profile.directions,
            "weights": profile.weights,
            **_packed("slices", self.slices.seen),
            **_packed("full", self.full.seen),
        }

    def __repr__(self) -> str:
        return f"Evidence(slices={self.slices.seen!r})"


def _seen(scenario: Scenario, profile: FiniteProfile, progress: Progress) -> tuple[Slices, Full]:
    if scenario.priors[0].kind == "gaussian":
        pairs = _gaussian_pairs(scenario)
        return Slices(profile=profile, seen=pairs), Full(dim=profile.dim, seen=pairs)
    laws, positions = _law_pairs(scenario)
    tables = gap_tables(laws, positions, profile.directions, progress)
    full = full_tables(laws, positions, profile, tables)
    return Slices(profile=profile, seen=tables), Full(dim=profile.dim, seen=full)


def _law_pairs(scenario: Scenario) -> tuple[list[EmpiricalLaw], list[LawPair]]:
    """Every law once, and the positions of the two laws of every instance."""
    where: dict[tuple[str, str], int] = {}
    laws: list[EmpiricalLaw] = []
    pairs = []
    for prior, pair in scenario.instances:
        for secret in pair:
            law = prior.laws[secret]
            if isinstance(law, EmpiricalLaw) and (prior.name, secret) not in where:
                where[prior.name, secret] = len(laws)
                laws.append(law)
        pairs.append(LawPair(where[prior.name, pair.first], where[prior.name, pair.second]))
    return laws, pairs


def _gaussian_pairs(scenario: Scenario) -> GaussianPairs:
    laws = [[prior.laws[secret] for secret in pair] for prior, pair in scenario.instances]
    return GaussianPairs(
        means=np.array([[law.mean for law in two if isinstance(law, GaussianLaw)] for two in laws]),
        covs=np.array([[law.cov for law in two if isinstance(law, GaussianLaw)] for two in laws]),
    )


def _packed(prefix: str, seen: GapTables | GaussianPairs) -> dict[str, npt.NDArray[Any]]:
    if isinstance(seen, GaussianPairs):
        return {f"{prefix}_means": seen.means, f"{prefix}_covs": seen.covs}
    return {f"{prefix}_{name}": getattr(seen, name) for name in _TABLE_ARRAYS}


def _unpacked(
    prefix: str, kind: str, arrays: dict[str, npt.NDArray[Any]]
) -> GapTables | GaussianPairs:
    if kind == "gaussian":
        return GaussianPairs(means=arrays[f"{prefix}_means"], covs=arrays[f"{prefix}_covs"])
    return GapTables(**{name: arrays[f"{prefix}_{name}"] for name in _TABLE_ARRAYS})
