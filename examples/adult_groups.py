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
    profile = ps.FiniteProfile.uniform(dim=query.dim, n_directions=200, seed=7)
    target = ps.Guarantee.joint(order=4, epsilon=1.0)

    # The paper's closed form needs more noise than the tight rule, which is the default.
    closed_form = ps.Method(rule="closed_form", envelope="worst_gap")
    wasteful = ps.certify_release(scenario, target.along(profile), method=closed_form)
    certificate = ps.certify_release(scenario, target.along(profile))
    certificate.save(folder / "certificate.json")

    rows = adult.filter(pc.field("race") == "Black")
    ledger, out = folder / "census.ledger", folder / "release.json"
    print(ps.release(scenario, rows, certificate, ledger=ledger, out=out))

    ratio = (wasteful.noise_std / certificate.noise_std) ** 2
    print(f"\nThe closed form needs {ratio:.2f} times this variance.")
    print(f"Sliced, as claimed: {certificate.guarantee}")
    print(f"Unsliced, about the released bits: {ps.spent(certificate, notion='unsliced')}")
    print(f"\n{ps.verify(ps.Certificate.load(folder / 'certificate.json'))}")
    print(f"\nWritten to {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


if __name__ == "__main__":
    main()
