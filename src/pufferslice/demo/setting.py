# SPDX-License-Identifier: Apache-2.0
"""What the demonstration shows: the choices that its parts share."""

from typing import Final, Literal

from pufferslice.guarantee import Guarantee

SECRET: Final = "race"  # noqa: S105 - the name of a column
GROUP: Final = "Black"
"""The group whose summary is released."""
TARGET: Final = Guarantee.joint(order=4, epsilon=1.0)
"""What the certificate claims."""
EPSILONS: Final = (0.1, 0.3, 1.0, 3.0, 10.0)
NOTIONS: Final[tuple[Literal["average", "joint"], ...]] = ("average", "joint")
N_DIRECTIONS: Final = 200
SEED: Final = 7
N_OUTPUTS: Final = 10_000
"""Fresh outputs under each secret that the audit attacks."""
CONFIDENCE: Final = 0.95

FILES: Final = {
    "README.txt": "this list",
    "summary.txt": "the summary in words",
    "summary.json": "the same numbers for programs",
    "certificate.json": "the public statement: what is promised, and what is not",
    "release.json": "the released statistics, with their noise, for the public",
    "certificate.evidence.npz": "what `pufferslice verify` recomputes the certificate from",
    "demo.ledger": "the ledger of this run: one release per certificate",
    "audit.json": "attacks on the certificate with fresh outputs, and their verdicts",
    "report.html": "all of it on one page, to open in a browser",
}
PUBLIC_FILES: Final = ("README.txt", "certificate.json", "release.json")
"""All others tell of the evidence, and are readable by their owner only."""
