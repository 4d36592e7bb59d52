# SPDX-License-Identifier: Apache-2.0
"""Evidence of a budget: the moments of the rows of every part. Confidential, and no records."""

import contextlib
import io
import os
from collections.abc import Mapping
from typing import Any, Final, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import arrays_in
from pufferslice._core.checks import is_a
from pufferslice._core.files import canonical_json, digest, parsed_json
from pufferslice._core.text import given, quoted
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.parts import DeclaredParts
from pufferslice.certificate.statement import CHANGED, BudgetStatement, read_scenario
from pufferslice.errors import ArgumentError, CertificateError, ScenarioError
from pufferslice.scenario.rows import RowDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.rows import (
    CELLS,
    INDEPENDENT,
    RowDifference,
    couplings_by_cells,
)
from pufferslice.sensitivity.sensitivity import distribution_pairs

KIND: Final = "budget"
VERSION: Final = 5

_SALT_BYTES: Final = 32
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, MemoryError)


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class BudgetEvidence:
    """Moments of the rows of every part, and where they come from."""

    tables: Mapping[str, RowDifference]
    """Difference of each part about rows, by its name, in the order of the parts."""
    scenarios: Mapping[str, Mapping[str, Any]]
    """Public descriptions of their scenarios."""
    confidential: Mapping[str, Mapping[str, Any]]
    """Digest of the distributions of each, and how much its statistics vary."""
    coupling: str
    """Coupling of the rows of a change, one for all parts."""
    salt: bytes
    """Random bytes that prevent checking guesses of the evidence against its public digest."""

    @classmethod
    def of(cls, parts: DeclaredParts, coupling: str) -> "BudgetEvidence":
        """Compute the evidence of all parts under one coupling."""
        check_coupling(parts, coupling)
        scenarios = parts.scenarios
        evidence = cls(
            tables={name: difference_of(each, coupling) for name, each in scenarios.items()},
            scenarios={name: each.description() for name, each in scenarios.items()},
            confidential={
                name: {
                    "distributions_digest": each.distributions_digest(),
                    "spreads": each.spreads(),
                    "keys": list(each.ledger_keys()),
                }
                for name, each in scenarios.items()
            },
            coupling=coupling,
            salt=os.urandom(_SALT_BYTES),
        )
        evidence.check()
        return evidence

    def of_scenarios(self, scenarios: Mapping[str, Scenario]) -> dict[str, RowDifference]:
        """Compute the differences of other scenarios, by the names of their parts."""
        return {name: difference_of(each, self.coupling) for name, each in scenarios.items()}

    def check(self) -> None:
        """Raise unless the numbers agree with each other and belong to the described scenarios."""
        if not list(self.tables) == list(self.scenarios) == list(self.confidential):
            raise CertificateError(f"the evidence has other parts than it describes. {CHANGED}")
        for name, rows in self.tables.items():
            scenario = self.scenarios[name]
            read_scenario(scenario)
            rows.check()
            sizes = rows.dim, rows.n_instances
            stated = (
                len(scenario["query"]["names"]),
                (len(scenario["priors"]) * len(scenario["pairs"])),
            )
            if sizes != stated or any(prior["kind"] != "rows" for prior in scenario["priors"]):
                raise CertificateError(
                    f"the evidence of a part is of another scenario than it describes. {CHANGED}"
                )
            if not is_a(self.confidential[name].get("distributions_digest"), str):
                raise CertificateError(f"the evidence has no distributions_digest. {CHANGED}")

    def digest(self) -> str:
        """Compute the salted SHA-256 of everything in the evidence."""
        parts = [self.salt, canonical_json(self._facts())]
        for name, array in sorted(self._arrays().items()):
            parts += [name.encode(), f"{array.dtype.str}{array.shape}".encode(), array.tobytes()]
        return digest(*parts)

    def to_bytes(self) -> bytes:
        """Write the evidence as a compressed numpy archive, without pickles."""
        file = io.BytesIO()
        facts = np.frombuffer(canonical_json(self._facts()), dtype=np.uint8)
        salt = np.frombuffer(self.salt, dtype=np.uint8)
        arrays: dict[str, Any] = {"facts": facts, "salt": salt, **self._arrays()}
        np.savez_compressed(file, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "BudgetEvidence":
        """Read what `to_bytes` wrote; anything else raises a `CertificateError`."""
        try:
            arrays = arrays_in(content)
            facts = parsed_json(arrays.pop("facts").tobytes())
            return cls._from_parts(facts, arrays.pop("salt").tobytes(), arrays)
        except _UNREADABLE as error:
            raise CertificateError(
                f"the evidence cannot be read ({type(error).__name__}); it is damaged or not "
                "evidence of a budget. Get the file that was written beside the certificate, or "
                "certify again"
            ) from error

    @classmethod
    def _from_parts(
        cls, facts: dict[str, Any], salt: bytes, arrays: dict[str, npt.NDArray[Any]]
    ) -> "BudgetEvidence":
        if facts["version"] != VERSION:
            raise CertificateError(
                f"the evidence has version {facts['version']!r}, this program reads {VERSION}. "
                "Verify it with the program that issued it"
            )
        numbered = {str(place): name for place, name in enumerate(facts["parts"])}
        fields: dict[str, dict[str, Any]] = {name: {} for name in facts["parts"]}
        for key, array in arrays.items():
            place, _, field = key.partition("_")
            fields[numbered[place]][field] = array
        evidence = cls(
            tables={name: RowDifference(**values) for name, values in fields.items()},
            scenarios=dict(zip(facts["parts"], facts["scenarios"], strict=True)),
            confidential=dict(zip(facts["parts"], facts["confidential"], strict=True)),
            coupling=facts["coupling"],
            salt=salt,
        )
        evidence.check()
        return evidence

    def _facts(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "version": VERSION,
            "parts": list(self.tables),
            "scenarios": [dict(each) for each in self.scenarios.values()],
            "confidential": [dict(each) for each in self.confidential.values()],
            "coupling": self.coupling,
        }

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {
            f"{place}_{name}": array
            for place, rows in enumerate(self.tables.values())
            for name, array in rows.arrays().items()
        }

    def __repr__(self) -> str:
        return f"BudgetEvidence(parts={list(self.tables)!r})"


def read_evidence(content: bytes) -> Evidence | BudgetEvidence:
    """Read the evidence of a release or of a budget."""
    kind = None
    with contextlib.suppress(*_UNREADABLE):
        kind = parsed_json(arrays_in(content)["facts"].tobytes()).get("kind")
    return BudgetEvidence.from_bytes(content) if kind == KIND else Evidence.from_bytes(content)


def broken_budget(evidence: BudgetEvidence, statement: BudgetStatement) -> list[str]:
    """List relations between the evidence of a budget and its statement that do not hold."""
    problems = []
    described = {part.name: part.scenario.to_json() for part in statement.tables}
    for name, rows in evidence.tables.items():
        if described.get(name) != evidence.scenarios[name]:
            problems.append(f"part {quoted(name)} has another scenario in the evidence")
        problems += rows.problems(evidence.scenarios[name])
    coupled = {rows.shares.shape[1] > 0 for rows in evidence.tables.values()}
    if coupled != {evidence.coupling != INDEPENDENT} or any(
        len(rows.coupled) or len(rows.plans) for rows in evidence.tables.values()
    ):
        problems.append("the parts are coupled in another way than the evidence says")
    return problems


def difference_of(scenario: Scenario, coupling: str) -> RowDifference:
    """Compute the moments of the change between the worlds of a scenario of rows."""
    distributions, pairs = distribution_pairs(scenario)
    kinds = [each for each in distributions if isinstance(each, RowDistribution)]
    return RowDifference.of(kinds, pairs, coupling=coupling)


def shared_couplings(parts: DeclaredParts) -> list[str]:
    """List the couplings that all parts can have: the independent one, and by labels they share."""
    kinds = [
        [
            distribution
            for distribution in distribution_pairs(table.scenario)[0]
            if isinstance(distribution, RowDistribution)
        ]
        for table in parts.tables
    ]
    alike = set.intersection(*[set(couplings_by_cells(each)) for each in kinds])
    # Near cells are planned by the means of one part's features, so in each part differently.
    equal = sorted(name for name in alike if name.startswith(CELLS))
    names = [name for name in equal if len(_labels(parts, name)) == 1]
    return [INDEPENDENT, *names]


def check_coupling(parts: DeclaredParts, coupling: str) -> None:
    """Raise unless all parts can be coupled in one way: by the same public label of the same rows.

    Couplings chosen part by part are no coupling of the rows. With two bits and their exclusive or
    as the secret, noise of a quarter, one part by its own cells and the other independently, 92.1 %
    right guesses would be stated and 95.5 % be true.
    """
    if not is_a(coupling, str) or (coupling != INDEPENDENT and not coupling.startswith(CELLS)):
        raise ArgumentError(
            f"coupling must be {INDEPENDENT!r} or {CELLS + 'NAME'!r}, one for all parts, got "
            f"{given(coupling)}"
        )
    if coupling == INDEPENDENT:
        return
    labels = _labels(parts, coupling)
    if None in labels or len(labels) > 1:
        raise ScenarioError(
            f"coupling {coupling!r} needs one label for all parts, and their queries name "
            "different conditions on these columns; couplings cannot be chosen part by part. Name "
            "the same conditions in every part, or couple independently"
        )


def _labels(parts: DeclaredParts, coupling: str) -> set[object]:
    """Definitions of a label in the parts; None where a part has none of this name."""
    found: set[object] = set()
    for table in parts.tables:
        features = table.scenario.query.features
        named = {} if features is None else features.labellings
        label = named.get(coupling.removeprefix(CELLS))
        if label is None:
            found.add(None)
        else:
            found.add(frozenset((one.column, one.fill, frozenset(one.conditions)) for one in label))
    return found
