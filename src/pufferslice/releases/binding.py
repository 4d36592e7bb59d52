# SPDX-License-Identifier: Apache-2.0
"""What ties a release file to its certificate: its digest, its integers, and its signature."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_count
from pufferslice._core.sampler import SIGMA_INT
from pufferslice.certificate import Certificate, Verification
from pufferslice.certificate.left import whitened_statistics
from pufferslice.certificate.signature import RELEASE, document_problem, signature_of
from pufferslice.certificate.signing import checked_date, now
from pufferslice.certificate.statement import TablePart
from pufferslice.errors import ReleaseError
from pufferslice.noise.spending import Estimate, Measurement, Spending, combined_estimate
from pufferslice.queries.moments import Design
from pufferslice.releases.release import (
    MOST_STORED,
    Measured,
    Recorded,
    Release,
    public_ends,
    released_at,
    released_specs,
)
from pufferslice.scenario.scenario import Scenario

_SAME: Final = 1e-9
"""Relative tolerance for the last digits of another machine."""
_CLOSE: Final = 1e-6
"""Tolerance, in deviations of their noise, of values that are computed in floats."""


def verify_release(
    certificate: Certificate,
    released: Release,
    *,
    scenario: Scenario | Mapping[str, Scenario] | None = None,
    earlier: Sequence[Release] = (),
    public_key: bytes | None = None,
) -> Verification:
    """Recompute a release from its certificate and its integers, and compare all fields.

    That the integers are the ones that were drawn only a signature can tell, which `public_key`
    (PEM) checks, or the ledger, which keeps them. Under a budget, a release of all that is left
    combines `earlier` releases of its part, which are then needed, and `scenario` maps names of
    parts to their scenarios.
    """
    problems = release_problems(certificate, released, scenario, earlier)
    unsigned = None
    if public_key is not None:
        document = released.unsigned()
        unsigned = document_problem(RELEASE, document, released.signature, public_key, "release")
        problems += [] if unsigned is None else [unsigned]
    signed = public_key is not None and unsigned is None
    unchecked = {
        "grid_value": ""
        if signed
        else "whether these integers were drawn: ask for a signature, or look into the ledger",
        "moved_into": ""
        if scenario is not None or released.moved_into is None
        else "whether these are the public ends: give the scenario",
        "derived": ""
        if scenario is not None or not released.specs
        else "whether these are the statistics that the query asks for: give the scenario",
        "values": ""
        if certificate.workflow == "budget" or certificate.noise_std
        else "there is no noise: they are those of the rows",
    }
    return Verification(
        problems=tuple(problems),
        unchecked=tuple(f"{field}: {why}" for field, why in unchecked.items() if why),
        signed=signed,
        has_evidence=True,
        source="the certificate",
    )


def sign_release(
    released: Release,
    certificate: Certificate,
    private_key: bytes,
    *,
    earlier: Sequence[Release] = (),
    date: str | None = None,
    serial: int = 1,
    ledger: str | None = None,
) -> Release:
    """Sign a release that belongs to its certificate; see `pufferslice.certificate.sign`."""
    check_count(1, serial=serial)
    problems = release_problems(certificate, released, earlier=earlier)
    if problems:
        raise ReleaseError(
            f"the release does not verify, so it is not signed: {problems[0]}. Get the original, "
            "or write it again with release --again"
        )
    signature = signature_of(
        RELEASE,
        released.unsigned(),
        private_key,
        date=now() if date is None else checked_date(date),
        serial=serial,
        ledger=ledger,
    )
    return attrs.evolve(released, signature=signature)


def release_problems(
    certificate: Certificate,
    released: Release,
    scenario: Scenario | Mapping[str, Scenario] | None = None,
    earlier: Sequence[Release] = (),
) -> list[str]:
    """List what does not fit between a release and its certificate; empty if all belongs together.

    Everything that a release states is recomputed from the certificate and the released integers;
    with `scenario` also the public ends that values were moved into, and which statistics follow.
    Under a budget, what combines `earlier` releases of the part is recomputed from them.
    """
    if released.certificate != certificate.digest:
        return ["the release names another certificate"]
    if released.sealed != released.read_as:
        return ["the release was edited: its digest is not that of its contents"]
    if certificate.workflow == "budget":
        return _problems_of_part(certificate, released, scenario, earlier)
    if certificate.workflow != "release":
        return ["the release names a certificate of a training run"]
    if len(released.grid_values) != len(certificate.released.scenario.query.names):
        return ["names: the release has other statistics than its certificate"]
    exact = [] if certificate.noise_std else _scaled_back(certificate, released)
    expected = released_at(certificate, released.grid_values, exact)
    ends = released.moved_into
    values = expected.values if ends is None else np.clip(expected.values, ends[:, 0], ends[:, 1])
    fields = "names", "guarantee", "secure", "unsliced", "range", "clipping", "n_rows", "design"
    problems = [
        f"{name}: the release does not have that of its certificate"
        for name in fields
        if getattr(released, name) != getattr(expected, name)
    ]
    if not np.array_equal(released.values, values):
        problems.append("values: they do not follow from the released integers and the noise")
    if not certificate.noise_std and any(released.grid_values):
        problems.append("grid_value: there is no noise, so it must be 0")
    if not np.allclose(released.noise_stds, expected.noise_stds, rtol=_SAME, atol=0.0):
        problems.append("noise_std: the release does not have the noise of its certificate")
    if not _is_same_covariance(released, expected.noise_covariance, _SAME):
        problems.append("covariance: the release does not have that of its certificate")
    if isinstance(scenario, Scenario):
        problems += _problems_of_scenario(certificate, released, scenario)
    return problems


def _problems_of_scenario(
    certificate: Certificate, released: Release, scenario: Scenario
) -> list[str]:
    """List what only the scenario can tell: public ends, and statistics that follow."""
    problems, query, ends = [], scenario.query, released.moved_into
    if ends is not None:
        known = dict(zip(query.names, public_ends(query, certificate), strict=True))
        right = [known.get(name) for name in released.names]
        if not all(
            each is not None and np.array_equal(each, own)
            for each, own in zip(right, ends, strict=True)
        ):
            problems.append("moved_into: these are not the public ends of the statistics")
    if released.specs != released_specs(query, released.names):
        problems.append("derived: these are not the statistics that the query asks for")
    return problems


def _problems_of_part(
    certificate: Certificate,
    released: Release,
    scenario: Scenario | Mapping[str, Scenario] | None,
    earlier: Sequence[Release],
) -> list[str]:
    """List what does not fit between a release and the part of a budget that it is of."""
    measured, recorded = released.measured, released.recorded
    parts = {part.name: part for part in certificate.budget.tables}
    if measured is None or recorded is None or recorded.part not in parts:
        return ["part: the release does not name a part of the budget about rows"]
    part = parts[recorded.part]
    problems = _problems_of_place(certificate, released, part, recorded, measured)
    directions, coefficients = _directions(part, measured), _coefficients(part, released)
    sizes = len(released.grid_values), len(part.noise.whitening)
    if directions is None or directions.shape != sizes or coefficients is None:
        return [*problems, "directions: they do not fit the part or the released integers"]
    used = Spending.none(sizes[1]).plus(
        Measurement(directions=directions, estimate=np.zeros((1, sizes[0])))
    )
    if not used.fits() or not _covers(recorded.charge, directions):
        problems.append("directions: they spend more than the release says that it took")
    if not _follow(part, released, directions, coefficients, earlier):
        before = [each for each in earlier if _is_before(each, released)]
        problems.append(
            "values: they do not follow from the released integers and the noise"
            if measured.serial
            == 1 + len({each.measured.serial for each in before if each.measured})
            else "values: they do not follow from this release alone; if they combine the earlier "
            "releases of the part, give those as well"
        )
    if isinstance(scenario, Mapping) and part.name in scenario:
        problems += _problems_of_scenario(certificate, released, scenario[part.name])
    return problems


def _problems_of_place(
    certificate: Certificate,
    released: Release,
    part: TablePart,
    recorded: Recorded,
    measured: Measured,
) -> list[str]:
    """List what a release states otherwise than its budget."""
    known: int | None = getattr(part.scenario.secret, "n_rows", None)
    sizes = [] if known is None else [known, known] if part.rows is None else part.rows
    n_rows, unsliced, query = released.n_rows, released.unsliced, part.scenario.query
    right = {
        "guarantee": released.guarantee == str(certificate.guarantee),
        "secure": released.secure == certificate.is_secure,
        "unsliced": (unsliced.epsilon, unsliced.guess) == (None, certificate.budget.guess),
        "range": released.range is None and not released.clipping,
        "n_rows": sizes[0] <= n_rows <= sizes[1] if sizes and n_rows else n_rows is known,
        "period": 1 <= recorded.period <= part.times,
        "of_periods": measured.of_periods == (part.kind == "repeated"),
        "design": released.design == Design.of_query(query.kind, query.parameters),
        "derived": all(set(spec.of) <= set(released.names) for spec in released.specs),
    }
    return [
        f"{name}: the release does not have that of its certificate"
        for name, holds in right.items()
        if not holds
    ]


def _directions(part: TablePart, measured: Measured) -> Floats | None:
    """Return the measured numbers by coordinates of precision 1; None if they are no matrix."""
    if measured.directions is None:
        return math.sqrt(measured.share or 0.0) * np.eye(len(part.noise.whitening))
    if len({len(row) for row in measured.directions}) != 1:
        return None
    return np.array(measured.directions, dtype=np.float64)


def _coefficients(part: TablePart, released: Release) -> Floats | None:
    """Return the released values as combinations of statistics; None if they are none."""
    names, measured = part.scenario.query.names, released.measured
    stated = None if measured is None else measured.coefficients
    if stated is not None:
        shape = len(released.names), len(names)
        is_matrix = (len(stated), *{len(row) for row in stated}) == shape
        return np.array(stated, dtype=np.float64) if is_matrix else None
    places = {name: place for place, name in enumerate(names)}
    if not set(released.names) <= set(places):
        return None
    return np.asarray(np.eye(len(names))[[places[name] for name in released.names]])


def _covers(charge: Fraction, directions: Floats) -> bool:
    """Whether a share of the precision is at least what these directions spend."""
    return float(np.linalg.norm(directions, 2)) ** 2 <= float(charge) * (1 + _SAME)


def _is_before(each: Release, released: Release) -> bool:
    """Whether a release is an earlier one of the same part and period."""
    places = [
        None
        if r.recorded is None or r.measured is None
        else (r.certificate, r.recorded.ledger, r.recorded.part, r.recorded.period)
        for r in (each, released)
    ]
    return (
        places[0] == places[1]
        and each.measured is not None
        and released.measured is not None
        and each.measured.serial < released.measured.serial
    )


def _follow(
    part: TablePart,
    released: Release,
    directions: Floats,
    coefficients: Floats,
    earlier: Sequence[Release],
) -> bool:
    """Whether values and noise follow from the integers, alone or with those of earlier ones."""
    statistics = coefficients @ whitened_statistics(part)
    outputs = [(directions, _numbers(released))]
    found = [combined_estimate(outputs, statistics)]
    for each in sorted(
        (each for each in earlier if _is_before(each, released)),
        key=lambda each: 0 if each.measured is None else each.measured.serial,
    ):
        before = None if each.measured is None else _directions(part, each.measured)
        if before is not None and before.shape == (len(each.grid_values), directions.shape[1]):
            outputs.insert(-1, (before, _numbers(each)))
    if len(outputs) > 1:
        found.append(combined_estimate(outputs, statistics))
    return any(_is_of(released, estimate) for estimate in found)


def _numbers(released: Release) -> Floats:
    return np.array([integer / SIGMA_INT for integer in released.grid_values])


def _is_of(released: Release, found: Estimate) -> bool:
    """Whether a release has the values and the noise of an estimate."""
    stds = np.sqrt(np.diagonal(found.covariance))
    values, ends = found.values, released.moved_into
    if ends is not None:
        values = np.clip(values, ends[:, 0], ends[:, 1])
    return (
        bool(found.is_known.all())
        and np.allclose(released.noise_stds, stds, rtol=_CLOSE, atol=0.0)
        and bool((np.abs(released.values - values) <= _CLOSE * stds + _SAME * np.abs(values)).all())
        and _is_same_covariance(released, found.covariance, _CLOSE)
    )


def _scaled_back(certificate: Certificate, released: Release) -> list[Fraction]:
    """Values of a release without noise, which nothing but the data can confirm."""
    scales = certificate.released.scenario.query.scales
    return [Fraction(x) / Fraction(s) for x, s in zip(released.values, scales, strict=True)]


def _is_same_covariance(released: Release, right: Floats | None, same: float) -> bool:
    stated = released.noise_covariance
    if stated is None or right is None:
        return stated is None and (right is None or len(right) > MOST_STORED)
    stds = np.sqrt(np.diagonal(right))
    return stated.shape == right.shape and bool(
        (np.abs(stated - right) <= same * np.outer(stds, stds)).all()
    )
