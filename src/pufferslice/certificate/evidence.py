# SPDX-License-Identifier: Apache-2.0
"""Evidence: the confidential numbers from which a claim can be recomputed. No records in it."""

import io
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar, final
from weakref import ref

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import arrays_in
from pufferslice._core.files import canonical_json, digest, parsed_json
from pufferslice._core.threads import Progress, silent
from pufferslice.certificate.statement import CHANGED
from pufferslice.errors import CertificateError
from pufferslice.queries.ranges import range_of
from pufferslice.scenario.rows import RowDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity import GapTables
from pufferslice.sensitivity.bands import missing_mass
from pufferslice.sensitivity.concentration import LEVEL_QUANTA
from pufferslice.sensitivity.couplings import Recipe
from pufferslice.sensitivity.difference import Difference
from pufferslice.sensitivity.profiles import FiniteProfile, Profile, SampledSphere
from pufferslice.sensitivity.rows import RowDifference, are_moments_of_same_rows
from pufferslice.sensitivity.sensitivity import (
    DIFFERENCES,
    SLICE_DIFFERENCES,
    Confidence,
    Full,
    SliceDifference,
    Slices,
    covered_totals,
    full_of_slices,
    full_sensitivity,
    slice_sensitivity,
    sphere_term,
)
from pufferslice.sensitivity.whitening import Shape

VERSION: Final = 5

Tables = Difference | SliceDifference
Kept = TypeVar("Kept")

_MOST_CURRENT: Final = 64
"""Most coordinates of which the moments of the rows at hand are kept."""
_MOST_COMPRESSED: Final = 2**24
"""Most bytes that are compressed: digits of moments do not get shorter, and take long."""
_SALT_BYTES: Final = 32
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, MemoryError)


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class Evidence:
    """Distances or Gaussian pairs of every instance, and where they come from."""

    full: Full
    slices: Slices | None = None
    """Differences along slices; None for claims about the whole output."""
    scenario: Mapping[str, Any]
    """Public description of the scenario when the evidence was computed."""
    confidential: Mapping[str, Any]
    """Counts of rows and samples, and the digest of the distributions."""
    confidence: Confidence | None = None
    """Ways in which the claim may fail; None for exact distributions along a finite profile."""
    salt: bytes
    """Random bytes that prevent checking guesses of the evidence against its public digest."""

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        profile: Profile | None = None,
        confidence: Confidence | None = None,
        *,
        recipe: Recipe | None = None,
        shape: Shape | None = None,
        progress: Progress = silent,
        reuse: bool = False,
    ) -> "Evidence":
        """Compute the evidence of a scenario as a whole, and along a profile if one is given.

        `recipe` decides how couplings are looked for. With `reuse`, the tables that this process
        computed last are used again if they are of the same distributions.
        """
        doubt = None if confidence is None else attrs.asdict(confidence)
        chosen = Recipe() if recipe is None else recipe
        along = None if profile is None else profile.digest()
        facts = canonical_json([scenario.description(), doubt, along])
        # Of rows, the digest has no more than their sums, which other rows may have as well.
        rows = [
            ref(distribution)
            for prior in scenario.priors
            for distribution in prior.distributions.values()
            if isinstance(distribution, RowDistribution)
        ]
        key = digest(facts, scenario.distributions_digest().encode()), *rows
        slices = None
        if profile is not None:
            slices = _SLICES.get(
                key, lambda: slice_sensitivity(scenario, profile, confidence, progress), reuse=reuse
            )
        matrix = b"" if shape is None else shape.whitening.tobytes()
        full = _FULLS.get(
            (key, digest(canonical_json(attrs.asdict(chosen)), matrix)),
            lambda: full_sensitivity(
                scenario, recipe=chosen, shape=shape, slices=slices, progress=progress
            ),
            reuse=reuse,
        )
        sizes = {}
        if scenario.prior_kind == "sampled":
            sizes = {
                prior.name: {
                    secret: distribution.n_samples
                    for secret, distribution in prior.distributions.items()
                }
                for prior in scenario.priors
            }
        evidence = cls(
            slices=slices,
            full=full,
            scenario=scenario.description(),
            confidential={
                "distributions_digest": scenario.distributions_digest(),
                "n_rows": {prior.name: dict(prior.n_rows) for prior in scenario.priors},
                "n_samples": sizes,
                "spreads": scenario.spreads(),
                "current": _current_moments(scenario, chosen.coupling),
            },
            confidence=confidence,
            salt=os.urandom(_SALT_BYTES),
        )
        for name, tables in evidence.tables.items():
            for array in _packed(name, tables).values():
                array.setflags(write=False)
        evidence.check()
        return evidence

    def of_scenario(
        self,
        scenario: Scenario,
        *,
        recipe: Recipe | None = None,
        progress: Progress = silent,
        reuse: bool = False,
    ) -> "Evidence":
        """Compute the evidence of a scenario with this profile, confidence, shape and recipe."""
        return Evidence.of(
            scenario,
            None if self.slices is None else self.slices.profile,
            self.confidence,
            recipe=self.full.recipe if recipe is None else recipe,
            shape=self.full.shape,
            progress=progress,
            reuse=reuse,
        )

    def is_of(self, scenario: Scenario, progress: Progress = silent) -> bool:
        """Whether this is about the distributions of a scenario: the same, to the last bit.

        Rows may come in any order, so that their moments may differ as far as sums are rounded.
        """
        if scenario.prior_kind != "rows":
            return bool(
                self.confidential["distributions_digest"] == scenario.distributions_digest()
            )
        stored = self.full.differences
        fresh = self.of_scenario(scenario, progress=progress, reuse=True).full.differences
        return (
            isinstance(stored, RowDifference)
            and isinstance(fresh, RowDifference)
            and are_moments_of_same_rows(stored, fresh)
        )

    @property
    def tables(self) -> dict[str, Tables]:
        """Distance tables or Gaussian pairs of the evidence, by their names in the file."""
        slices = self.slices
        named = {
            "slices": slices and slices.differences,
            "full": self.full.differences,
            "plain": slices and slices.plain,
            "beyond": slices and slices.beyond,
        }
        return {name: tables for name, tables in named.items() if tables is not None}

    @property
    def are_equal(self) -> bool:
        """Whether both distributions are equal in every instance."""
        return self.full.are_equal if self.slices is None else self.slices.are_equal

    @property
    def failure_probability(self) -> float:
        """Probability that the bounds fail."""
        return 0.0 if self.confidence is None else self.confidence.failure_probability

    def required_slices(self) -> Slices:
        """Return the slices; evidence of the whole output raises a `CertificateError`."""
        if self.slices is None:
            raise CertificateError(
                "the certificate is about the whole output: its evidence has no slices"
            )
        return self.slices

    def digest(self) -> str:
        """Compute the salted SHA-256 of everything in the evidence."""
        parts = [self.salt, canonical_json(self._facts())]
        for name, array in sorted(self._arrays().items()):
            parts += [name.encode(), f"{array.dtype.str}{array.shape}".encode(), array.tobytes()]
        return digest(*parts)

    def to_bytes(self) -> bytes:
        """Write the evidence as a numpy archive, without pickles; a small one is compressed."""
        file = io.BytesIO()
        facts = np.frombuffer(canonical_json(self._facts()), dtype=np.uint8)
        salt = np.frombuffer(self.salt, dtype=np.uint8)
        arrays: dict[str, Any] = {"facts": facts, "salt": salt, **self._arrays()}
        is_small = sum(array.nbytes for array in arrays.values()) <= _MOST_COMPRESSED
        (np.savez_compressed if is_small else np.savez)(file, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Evidence":
        """Read what `to_bytes` wrote; anything else raises a `CertificateError`."""
        try:
            arrays = arrays_in(content)
            facts = parsed_json(arrays.pop("facts").tobytes())
            return cls._from_parts(facts, arrays.pop("salt").tobytes(), arrays)
        except _UNREADABLE as error:
            raise CertificateError(
                f"the evidence cannot be read ({type(error).__name__}); it is damaged or not "
                "evidence. Get the file that was written beside the certificate, or certify again"
            ) from error

    @classmethod
    def _from_parts(
        cls, facts: dict[str, Any], salt: bytes, arrays: dict[str, npt.NDArray[Any]]
    ) -> "Evidence":
        if facts["version"] != VERSION:
            raise CertificateError(
                f"the evidence has version {facts['version']!r}, this program reads {VERSION}. "
                "Verify it with the program that issued it"
            )
        doubt = facts["confidence"]
        confidence = None if doubt is None else Confidence(**doubt)
        query = facts["scenario"]["query"]
        limits, scales = range_of(query["range"]), np.array(query["scales"], dtype=np.float64)
        kinds = facts["differences"]
        parts: dict[str, dict[str, Any]] = {name: {} for name in kinds}
        for name, array in arrays.items():
            part, _, field = name.partition("_")
            if part in parts:
                parts[part][field] = array
        slices = None
        if "slices" in kinds:
            directions = arrays["directions"]
            profile: Profile
            if confidence is not None and confidence.on_sphere:
                profile = SampledSphere(directions=directions)
            else:
                profile = FiniteProfile(directions=directions, weights=arrays["weights"])
            tables = SLICE_DIFFERENCES[kinds["slices"]](**parts["slices"])
            in_delta = confidence is not None and confidence.tails == "in_delta"
            missing = missing_mass(tables) if in_delta else np.zeros(tables.n_instances)
            slices = Slices(
                profile=profile,
                differences=tables,
                missing=missing,
                plain=GapTables(**parts["plain"]) if "plain" in kinds else None,
                beyond=GapTables(**parts["beyond"]) if "beyond" in kinds else None,
                sphere=sphere_term(confidence, profile, limits, scales),
                failure_probability=0.0 if confidence is None else confidence.failure_probability,
            )
        if facts["full"] is None:
            if slices is None or slices.profile.dim != 1:
                raise CertificateError(f"the evidence of the whole output is missing. {CHANGED}")
            full = full_of_slices(slices, limits, scales)
        else:
            stored = facts["full"]["recipe"]
            recipe = None if stored is None else Recipe(**stored)
            if recipe is not None and attrs.asdict(recipe) != stored:
                raise CertificateError(
                    f"the evidence does not say how its couplings were found. {CHANGED}"
                )
            full = Full(
                dim=len(query["names"]),
                differences=DIFFERENCES[kinds["full"]](**parts["full"])
                if "full" in kinds
                else None,
                from_range=facts["full"]["from_range"],
                shape=Shape(whitening=arrays["whitening"]) if "whitening" in arrays else None,
                recipe=recipe,
            )
        evidence = cls(
            slices=slices,
            full=full,
            scenario=facts["scenario"],
            confidential=facts["confidential"],
            confidence=confidence,
            salt=salt,
        )
        evidence.check()
        return evidence

    def check(self) -> None:
        """Raise unless the numbers agree with each other and belong to the described instances."""
        parts = list(self.tables.values())
        n_instances = len(self.scenario["priors"]) * len(self.scenario["pairs"])
        for part in parts:
            part.check()
            if not {prior["kind"] for prior in self.scenario["priors"]} <= set(part.prior_kinds):
                raise CertificateError(
                    f"the evidence is about priors of another kind than it lists. {CHANGED}"
                )
            if part.n_instances != n_instances:
                raise CertificateError(
                    f"the evidence lists {n_instances} (prior, pair) instances, but is about "
                    f"{part.n_instances}. {CHANGED}"
                )
        if not isinstance(self.confidential.get("distributions_digest"), str):
            raise CertificateError(f"the evidence has no distributions_digest. {CHANGED}")
        alike = all(np.array_equal(part.equal, parts[0].equal) for part in parts)
        dims = {self.full.dim, len(self.scenario["query"]["names"])}
        if self.slices is not None:
            dims.add(self.slices.profile.dim)
        if not alike or len(dims) > 1:
            raise CertificateError(
                f"the evidence along the slices and in full is not of the same priors. {CHANGED}"
            )
        self._check_confidence()

    def _check_confidence(self) -> None:
        """Raise unless the bands cover exactly the levels that their sample sizes allow."""
        kinds = {prior["kind"] for prior in self.scenario["priors"]}
        sampled = kinds == {"sampled"}
        banded = self.confidence is not None and self.confidence.band is not None
        fits = (sampled and self.slices is not None) == banded == ("plain" in self.tables)
        if not fits or (self.slices is None and self.confidence is not None):
            raise CertificateError(
                f"the evidence does not fit its kind of priors, sampled or not. {CHANGED}"
            )
        ranged = self.scenario["query"]["range"] is not None
        bounded = ranged == self.full.from_range == (self.full.differences is not None)
        if sampled and self.full.dim > 1 and not bounded:
            raise CertificateError(
                f"the evidence of the whole output is not that of the public range. {CHANGED}"
            )
        if self.confidence is None or self.slices is None or not banded:
            return
        if not isinstance(self.slices.differences, GapTables):
            return
        sizes = self.confidential["n_samples"]
        pairs = [
            (sizes[prior["name"]][first], sizes[prior["name"]][second])
            for prior in self.scenario["priors"]
            for first, second in self.scenario["pairs"]
        ]
        covered = covered_totals(pairs, self.confidence, self.slices.profile.n_directions)
        cut = self.confidence.tails == "in_delta"
        expected = covered if cut else [LEVEL_QUANTA] * len(pairs)
        beyond = self.slices.beyond
        rest = [] if beyond is None else beyond.totals.tolist()
        left = [] if cut else [LEVEL_QUANTA - mass for mass in covered]
        if self.slices.differences.totals.tolist() != expected or rest != left:
            raise CertificateError(
                f"the evidence covers other levels than its numbers of samples allow. {CHANGED}"
            )

    def _facts(self) -> dict[str, Any]:
        full = self.full
        return {
            "version": VERSION,
            "differences": {
                name: part.name
                for name, part in self.tables.items()
                if name != "full" or not self._full_is_slice()
            },
            "full": None
            if self._full_is_slice()
            else {
                "from_range": full.from_range,
                "recipe": None if full.recipe is None else attrs.asdict(full.recipe),
            },
            "confidence": None if self.confidence is None else attrs.asdict(self.confidence),
            "scenario": dict(self.scenario),
            "confidential": dict(self.confidential),
        }

    def _full_is_slice(self) -> bool:
        """Return whether the whole output is the slice: in one dimension it is stored once."""
        return self.full.dim == 1 and self.slices is not None

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays: dict[str, npt.NDArray[Any]] = {}
        if self.slices is not None:
            profile = self.slices.profile
            arrays |= {"directions": profile.directions, "weights": profile.weights}
        if self.full.shape is not None:
            arrays["whitening"] = self.full.shape.whitening
        for name, tables in self.tables.items():
            if name != "full" or not self._full_is_slice():
                arrays |= _packed(name, tables)
        return arrays

    def __repr__(self) -> str:
        return f"Evidence(full={self.full.differences!r})"


def _current_moments(scenario: Scenario, coupling: str) -> list[Any] | None:
    """Second moments of the change by the rows at hand, where the noise is from another table."""
    (prior, *others) = scenario.priors
    kinds = [each for each in prior.current.values() if isinstance(each, RowDistribution)]
    if others or not kinds or scenario.dim > _MOST_CURRENT:
        return None
    places = {name: place for place, name in enumerate(prior.current)}
    pairs = [(places[first], places[second]) for first, second in scenario.pairs]
    rows = RowDifference.of(kinds, pairs, coupling=coupling)
    moments: list[Any] = rows.second_moments.tolist()
    return moments


class _Latest(Generic[Kept]):
    """Cache of the last tables by all they depend on: a release follows its certification."""

    def __init__(self) -> None:
        self._kept: tuple[object, Kept] | None = None

    def get(self, key: object, make: Callable[[], Kept], *, reuse: bool) -> Kept:
        kept = self._kept  # another thread may put its own there
        if not (reuse and kept and kept[0] == key):
            kept = self._kept = key, make()
        return kept[1]


_SLICES: Final[_Latest[Slices]] = _Latest()
_FULLS: Final[_Latest[Full]] = _Latest()


def _packed(prefix: str, differences: Tables) -> dict[str, npt.NDArray[Any]]:
    return {f"{prefix}_{name}": array for name, array in differences.arrays().items()}
