# SPDX-License-Identifier: Apache-2.0
"""What ties a release file to its certificate: its digest, its integers, and its signature."""

from collections.abc import Mapping

import attrs

from pufferslice._core.checks import check_count
from pufferslice.certificate import Certificate, Verification
from pufferslice.certificate.signature import RELEASE, document_problem, signature_of
from pufferslice.certificate.signing import checked_date, now
from pufferslice.errors import ReleaseError
from pufferslice.releases.release import Release, release_problems
from pufferslice.scenario.scenario import Scenario


def verify_release(
    certificate: Certificate,
    released: Release,
    *,
    scenario: Scenario | Mapping[str, Scenario] | None = None,
    public_key: bytes | None = None,
) -> Verification:
    """Recompute a release from its certificate and its integers, and compare all fields.

    That the integers are the ones that were drawn only a signature can tell, which `public_key`
    (PEM) checks, or the ledger, which keeps them.
    """
    problems = release_problems(certificate, released, scenario)
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
        "values": "" if certificate.noise_std else "there is no noise: they are those of the rows",
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
    date: str | None = None,
    serial: int = 1,
    ledger: str | None = None,
) -> Release:
    """Sign a release that belongs to its certificate; see `pufferslice.certificate.sign`."""
    check_count(1, serial=serial)
    problems = release_problems(certificate, released)
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
