# SPDX-License-Identifier: Apache-2.0
"""The demonstration: one protected release of the embedded Adult table, audited, on one page."""

import os
import textwrap
from pathlib import Path
from typing import Any, Final, Literal, final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pufferslice import data, queries
from pufferslice._core.files import CONFIDENTIAL, pretty_json, read_bytes, write_whole
from pufferslice._core.threads import Progress, silent
from pufferslice.audit import Audit, audit_release
from pufferslice.calibration.calibrate import calibrate
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.certificate import Certificate, Verification, certify_release, verify
from pufferslice.certificate.issue import required_evidence
from pufferslice.certificate.what_if import CLOSED_FORM, TIGHT
from pufferslice.certificate.wording import guess_sentence
from pufferslice.errors import ArgumentError, StorageError
from pufferslice.releases.release import Release, release
from pufferslice.report.page import internal_page
from pufferslice.report.text import text_table
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.sensitivity import Slices

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
_LISTED_FILES: Final = "\n".join(f"  {name:<25} {what}" for name, what in FILES.items())
_FOR_THE_PUBLIC: Final = (
    "With data of your own, only certificate.json and release.json\n"
    "would be for the public; what tells of the evidence is readable by its owner only."
)
_MARK: Final = "Made by `pufferslice demo`"
_LEDGER_REMAINS: Final = ("-journal", "-wal", "-shm")
_STEPS: Final = 7


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class DemoResult:
    """What the demonstration made; `print(result)` is its summary."""

    folder: Path
    certificate: Certificate
    verification: Verification
    """The outcome of recomputing the saved certificate from the saved evidence."""
    released: Release
    audit: Audit
    """What attacks with fresh outputs say about the certificate."""
    sweep: tuple[dict[str, Any], ...]
    """The noise of both rules for every notion and epsilon, in scaled units."""
    statistics: tuple[dict[str, Any], ...]
    """Released value, noise, and largest true difference between two groups, in their units."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything that was written."""
        return tuple(self.folder / name for name in FILES)

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON values."""
        return {
            "certificate": self.certificate.digest,
            "guarantee": self.certificate.guarantee.to_json(),
            "verified": self.verification.holds,
            "refuted": self.audit.refuted,
            "noise_std": self.certificate.noise_std,
            "spent_epsilon": self.certificate.spent_epsilon,
            "unsliced_epsilon": self.certificate.unsliced_epsilon,
            "guess": self.certificate.guess,
            "statistics": list(self.statistics),
            "sweep": list(self.sweep),
            "files": [str(path) for path in self.files],
        }

    def __str__(self) -> str:
        certificate, claim, audit = self.certificate, self.certificate.guarantee, self.audit
        scenario, unsliced = certificate.statement["scenario"], certificate.unsliced_epsilon
        pairs = [attack for attack in audit.inferences if len(attack.secrets) == 2]
        best = max(pairs, key=lambda attack: attack.advantage.value)
        blind = best.accuracy.value - best.advantage.value
        statistics = [("statistic", "released", "noise std", "largest true difference")]
        for row in self.statistics:
            name, *values = row.values()
            statistics.append((name, *(f"{value:.4g}" for value in values)))
        sweep = [["epsilon"]]
        for notion in NOTIONS:
            sweep[0] += [f"{notion}: tight", "closed form", "ratio"]
        for epsilon in EPSILONS:
            cells = [f"{epsilon:g}"]
            for row in self.sweep:
                if row["epsilon"] == epsilon:
                    cells += [f"{row[key]:.4g}" for key in ("tight_std", "closed_form_std")]
                    cells.append(f"{row['variance_ratio']:.2f}")
            sweep.append(cells)
        return f"""\
Protected: {SECRET!r} in the complete rows of the Adult census table \
({len(scenario["secrets"])} groups, all {len(scenario["pairs"])} pairs).
One release is the summary of one group ({len(scenario["query"]["names"])} statistics); \
a reader should not be able to tell
which group it was.

Certificate {certificate.digest[:16]}: {claim} along \
{certificate.statement["profile"]["n_directions"]} slices; \
{"VERIFIED from its evidence" if self.verification.holds else "REFUTED"}.
The noise costs {certificate.spent_epsilon:.6g} of {claim.epsilon:g}. Unsliced, which is \
the statement about the released bits,
it costs {"no finite bound" if unsliced is None else f"at most {unsliced:.4g}"} at order \
{certificate.statement["unsliced"]["order"]:g}.
{textwrap.fill(guess_sentence(certificate.guess), 100)}

Released for {GROUP!r}, beside the largest true difference between two groups (shown
because Adult is public; with your data it is confidential):
{text_table(statistics)}

An audit with {audit.n_outputs} fresh outputs under each group \
{"REFUTES" if audit.refuted else "does not refute"} the certificate; an
audit never proves one. Of two groups, its best attack names the right one \
{best.accuracy.value:.1%} of the time
({" and ".join(best.secrets)}); blind guesses, {blind:.1%}.

Noise std in scaled units at order {TARGET.order:g}, by both rules, and the ratio of their \
variances:
{text_table(sweep)}

Open {self.folder / "report.html"} in a browser: it is all there, on one page.
Files in {self.folder}:
{_LISTED_FILES}
This run started its own new ledger. {_FOR_THE_PUBLIC}"""

    def __repr__(self) -> str:
        return f"DemoResult(folder={str(self.folder)!r}, certificate={self.certificate!r})"


def run_demo(out: str | os.PathLike[str], progress: Progress = silent) -> DemoResult:
    """Certify, release, verify, audit and report on the embedded Adult table; all goes to `out`.

    `out` must be new, empty, or the folder of an earlier demonstration, whose files are replaced,
    its ledger included: each run stands alone. Needs the extra `report`.
    """
    folder = Path(out)
    _clear(folder)
    table = data.adult_complete()
    scenario = Scenario.from_groups(table, secret=SECRET, query=queries.adult_summary())
    profile = FiniteProfile.uniform(dim=scenario.dim, n_directions=N_DIRECTIONS, seed=SEED)
    progress(1, _STEPS)
    certificate = certify_release(scenario, TARGET.along(profile), method=TIGHT)
    certificate.save(folder / "certificate.json")
    progress(2, _STEPS)
    released = release(
        scenario,
        table.filter(pc.equal(table[SECRET], pa.scalar(GROUP))),
        certificate,
        ledger=folder / "demo.ledger",
        out=folder / "release.json",
    )
    progress(3, _STEPS)
    audit = audit_release(
        scenario, profile, certificate, n_outputs=N_OUTPUTS, confidence=CONFIDENCE, seed=SEED
    )
    write_whole(folder / "audit.json", pretty_json(audit.to_json()), CONFIDENTIAL)
    progress(4, _STEPS)
    result = DemoResult(
        folder=folder,
        certificate=certificate,
        verification=verify(Certificate.load(folder / "certificate.json")),
        released=released,
        audit=audit,
        sweep=_sweep(required_evidence(certificate).slices),
        statistics=_statistics(released, scenario),
    )
    progress(5, _STEPS)
    write_whole(folder / "summary.txt", f"{result}\n".encode(), CONFIDENTIAL)
    write_whole(folder / "summary.json", pretty_json(result.to_json()), CONFIDENTIAL)
    progress(6, _STEPS)
    about = ("certificate.json", "release.json", "audit.json")
    page = internal_page([folder / name for name in about])
    write_whole(folder / "report.html", page, CONFIDENTIAL)
    progress(7, _STEPS)
    return result


def _sweep(slices: Slices) -> tuple[dict[str, Any], ...]:
    rows = []
    for notion in NOTIONS:
        for epsilon in EPSILONS:
            target = Guarantee(notion=notion, order=TARGET.order, epsilon=epsilon)
            tight, closed = (calibrate(target, slices, method) for method in (TIGHT, CLOSED_FORM))
            stds = {"tight_std": tight, "closed_form_std": closed}
            rows.append(target.to_json() | stds | {"variance_ratio": (closed / tight) ** 2})
    return tuple(rows)


def _statistics(released: Release, scenario: Scenario) -> tuple[dict[str, Any], ...]:
    # The distribution of a group is one point, the query on its rows.
    points = [
        distribution.outputs
        for distribution in scenario.priors[0].distributions.values()
        if isinstance(distribution, FiniteDistribution)
    ]
    differences = np.ptp(np.vstack(points), axis=0) * scenario.query.scales
    return tuple(
        {
            "name": name,
            "released": float(value),
            "noise_std": float(std),
            "largest_difference": float(difference),
        }
        for name, value, std, difference in zip(
            released.names, released.values, released.noise_stds, differences, strict=True
        )
    )


def _clear(folder: Path) -> None:
    """Make the folder, or empty it of an earlier demonstration; anything else is left alone."""
    mark = folder / "README.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ours = mark.exists() and read_bytes(mark, "settings").startswith(_MARK.encode())
        if not ours and any(folder.iterdir()):
            msg = (
                f"out must be a new or empty folder, or that of an earlier demonstration; "
                f"{str(folder)!r} holds other files. Name another folder"
            )
            raise ArgumentError(msg)
        for name in (*FILES, *(f"demo.ledger{suffix}" for suffix in _LEDGER_REMAINS)):
            if name != mark.name:
                (folder / name).unlink(missing_ok=True)
    except OSError as error:
        msg = f"cannot use the folder {str(folder)!r}: {error}"
        raise StorageError(msg) from error
    readme = (
        f"{_MARK} on the public Adult table. The next run replaces these files and\n"
        "starts a new ledger. A real ledger is kept: it is what stops a second release.\n"
        f"{_FOR_THE_PUBLIC}\n\n{_LISTED_FILES}\n"
    )
    # Written first, so that a run that was cut short is known as one.
    write_whole(mark, readme.encode())
