# SPDX-License-Identifier: Apache-2.0
"""Publish nine statistics of one group of the Adult census table and hide which group.

In a scenario of kind `groups` one release is the query on the rows of one group. Everything is
written to a new folder, whose name is printed.
"""

import tempfile
from pathlib import Path

import pyarrow.compute as pc

import pufferslice as ps


def main() -> None:
    """Certify, save, release, and verify what was saved."""
    folder = Path(tempfile.mkdtemp(prefix="adult-groups-"))
    adult = ps.datasets.adult_complete()
    query = ps.queries.adult_summary()
    scenario = ps.Scenario.from_groups(adult, secret="race", query=query)  # noqa: S106 - a column
    target = ps.Guarantee.unsliced(order=4, epsilon=1.0)  # about the whole output

    # Noise that is fitted to the secret (the default), compared with isotropic noise.
    isotropic = ps.certify_release(scenario, target, shape="isotropic")
    certificate = ps.certify_release(scenario, target)
    certificate.save(folder / "certificate.json")

    rows = adult.filter(pc.field("race") == "Black")
    ledger, out = folder / "census.ledger", folder / "release.json"
    print(ps.release(scenario, rows, certificate, ledger=ledger, out=out))

    profile = ps.FiniteProfile.uniform(dim=query.dim, n_directions=200, seed=7)
    sliced = ps.certify_release(scenario, ps.Guarantee.joint(order=4, epsilon=1.0, profile=profile))
    whole, along = (variance(other) / variance(certificate) for other in (isotropic, sliced))
    print("\nTotal variance of other noise, compared with this release:")
    print(f"  isotropic noise, for the same claim: {whole:.2f} times")
    print(f"  {sliced.guarantee}, which is only about slices: {along:.2f} times")
    print(f"\n{ps.verify(ps.Certificate.load(folder / 'certificate.json'))}")
    print(f"\nWritten to {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def variance(certificate: ps.Certificate) -> float:
    """Total variance of the noise, in scaled coordinates."""
    statement = certificate.statement
    stds = zip(
        statement.noise.std_by_coordinate,
        statement.scenario.query.scales,
        strict=True,
    )
    return sum((std / scale) ** 2 for std, scale in stds)


if __name__ == "__main__":
    main()
