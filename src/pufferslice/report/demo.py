# SPDX-License-Identifier: Apache-2.0
"""The demonstration: one protected release of the embedded Adult table, audited, on one page.

It hides the share of women, and publishes statistics of the whole table.
"""

import math
import os
import textwrap
from pathlib import Path
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice import data
from pufferslice._core.arrays import Floats
from pufferslice._core.files import CONFIDENTIAL, pretty_json, read_bytes, write_whole
from pufferslice._core.threads import Progress, silent
from pufferslice.audit import Audit, audit_release
from pufferslice.certificate import Certificate, Sweep, Verification, certify_release, verify
from pufferslice.certificate.verdict import Verdict, verdict
from pufferslice.certificate.wording import (
    first_lines,
    shape_sentences,
)
from pufferslice.claims import Guarantee
from pufferslice.errors import ArgumentError, StorageError
from pufferslice.noise.decision import INTERVAL_STDS
from pufferslice.queries import Query, above, at_least, summary
from pufferslice.releases.release import Release, release
from pufferslice.report.page import internal_page
from pufferslice.report.text import text_table
from pufferslice.scenario.scenario import Scenario

WITHIN: Final = 0.05
"""Largest difference of two shares of women that are not told apart."""
TARGET: Final = Guarantee.guess(at_most=0.64)
"""Claim of the certificate, about the whole output."""
_CLIP: Final = {"age": (17, 90), "education-num": (1, 16), "hours-per-week": (1, 99)}
_N_RATES: Final = 5
GUESSES: Final = (0.55, 0.6, 0.64, 0.7, 0.8)
"""Other shares of right guesses to choose among."""
SEED: Final = 7
N_OUTPUTS: Final = 10_000
"""Number of fresh outputs under each secret that the audit attacks."""
CONFIDENCE: Final = 0.95

FILES: Final = {
    "README.txt": "this list",
    "summary.txt": "the summary in words",
    "summary.json": "the same numbers for programs",
    "certificate.json": "the public statement: what is promised, and what is not",
    "release.json": "the released statistics, with their noise, for the public",
    "certificate.evidence.npz": "what `pufferslice verify` recomputes the certificate from",
    "demo.ledger": "the ledger of this run: one release per certificate",
    "demo.spent": "what a ledger must know that is restored from a backup",
    "audit.json": "attacks on the certificate with fresh outputs, and their verdicts",
    "report.html": "all of it on one page, to open in a browser",
}
PUBLIC_FILES: Final = ("README.txt", "certificate.json", "release.json")
"""Files for the public; all others reveal evidence, and only their owner can read them."""
_LISTED_FILES: Final = "\n".join(f"  {name:<25} {what}" for name, what in FILES.items())
_FOR_THE_PUBLIC: Final = (
    "With data of your own, only certificate.json and release.json may be published;\n"
    "the other files are derived from the evidence, and only you can read them."
)
_MARK: Final = "Made by `pufferslice demo`"
_LEDGER_REMAINS: Final = ("-journal", "-wal", "-shm")
_STEPS: Final = 7


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class DemoResult:
    """Results of the demonstration; `print(result)` is its summary."""

    folder: Path
    certificate: Certificate
    verification: Verification
    """Outcome of recomputing the saved certificate from the saved evidence."""
    released: Release
    audit: Audit
    """Results of attacks on the certificate with fresh outputs."""
    verdict: Verdict
    """Whether such a release is worth making."""
    sweep: Sweep
    """Sweep over other shares of right guesses."""
    statistics: tuple[dict[str, Any], ...]
    """Rows by statistic: true and released value, noise, noise of group privacy with the same
    promise, and largest difference between two worlds, in their units."""

    @property
    def files(self) -> tuple[Path, ...]:
        """List every file that was written."""
        return tuple(self.folder / name for name in FILES)

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {
            "certificate": self.certificate.digest,
            "guarantee": self.certificate.guarantee.to_json(),
            "verified": self.verification.holds,
            "refuted": self.audit.refuted,
            "noise_std": self.certificate.noise_std,
            "spent": self.certificate.spent,
            "guess": self.certificate.guess,
            "verdict": self.verdict.to_json(),
            "statistics": list(self.statistics),
            "sweep": self.sweep.to_dict(),
            "files": [str(path) for path in self.files],
        }

    def __str__(self) -> str:
        certificate, audit = self.certificate, self.audit
        pairs = [attack for attack in audit.inferences if len(attack.secrets) == 2]
        best = max(pairs, key=lambda attack: attack.advantage.value)
        blind = best.accuracy.value - best.advantage.value
        shape = "\n".join(
            textwrap.fill(line, 100) for line in shape_sentences(certificate.released)
        )
        interval = f"{best.accuracy.low:.1%} to {best.accuracy.high:.1%}"
        attack = (
            f"An audit draws real rows for both shares, {audit.n_outputs} times each, and knows "
            f"all other rows. It {'REFUTES' if audit.refuted else 'does not refute'} the "
            "certificate; an audit never proves one. Of two shares, its best attack names the "
            f"right one {best.accuracy.value:.1%} of the time ({CONFIDENCE:.0%} interval "
            f"{interval}); guesses without the release, {blind:.1%}."
        )
        lines = first_lines(certificate.released)
        return f"""\
{textwrap.fill(lines.protected, 100)}
{textwrap.fill(lines.guess, 100)}
{textwrap.fill(lines.person, 100)}
Published: {len(self.statistics)} statistics of this year's half of the Adult census table.
The noise was fitted to last year's half, so it tells nothing about the rows that are released.

Certificate {certificate.digest[:16]}: {certificate.guarantee}.
{"VERIFIED from its evidence" if self.verification.holds else "REFUTED"}.
{shape}

Released, beside the truth, with the noise; the noise of differential privacy for as many rows, with
the same promise; and the mean difference between two such shares (truth and difference are shown
because Adult is public; yours are confidential):
{text_table(self._statistics_rows())}
{textwrap.fill(" ".join(self.verdict.sentences()), 100)}

{textwrap.fill(attack, 100)}

{self.sweep}

Open {self.folder / "report.html"} in a browser: everything is on one page.
Files in {self.folder}:
{_LISTED_FILES}
This run started its own new ledger.
{_FOR_THE_PUBLIC}"""

    def _statistics_rows(self) -> list[tuple[str, ...]]:
        rows = [tuple(row.values()) for row in self.statistics]
        return [
            ("statistic", "truth", "released", "±95 %", "noise std", "group DP", "between"),
            *((name, *(f"{value:.4g}" for value in values)) for name, *values in rows),
        ]

    def __repr__(self) -> str:
        return f"DemoResult(folder={str(self.folder)!r}, certificate={self.certificate!r})"


def run_demo(out: str | os.PathLike[str], progress: Progress = silent) -> DemoResult:
    """Certify, release, verify, audit and report on the embedded Adult table; all goes to `out`.

    `out` must be new, empty, or the folder of an earlier demonstration, whose files are replaced,
    its ledger included: each run stands alone. Needs the extra `report`.
    """
    folder = Path(out)
    _clear(folder)
    (last_year, table), query = data.adult_years(), demo_query()
    scenario = Scenario.from_prevalence(
        table,
        column="sex",
        value="Female",
        within=WITHIN,
        query=query,
        moments_from=last_year,
    )
    progress(1, _STEPS)
    certificate = certify_release(scenario, TARGET)
    certificate.save(folder / "certificate.json")
    progress(2, _STEPS)
    released = release(
        scenario,
        table,
        certificate,
        ledger=folder / "demo.ledger",
        out=folder / "release.json",
        into_range=True,
    )
    progress(3, _STEPS)
    audit = audit_release(
        scenario, None, certificate, n_outputs=N_OUTPUTS, confidence=CONFIDENCE, seed=SEED
    )
    write_whole(folder / "audit.json", pretty_json(audit.to_json()), CONFIDENTIAL)
    progress(4, _STEPS)
    usefulness = verdict(certificate)
    result = DemoResult(
        folder=folder,
        certificate=certificate,
        verification=verify(Certificate.load(folder / "certificate.json")),
        released=released,
        audit=audit,
        verdict=usefulness,
        sweep=Sweep.of(certificate, GUESSES),
        statistics=tuple(
            {
                "name": statistic.name,
                "truth": float(truth),
                "released": float(value),
                "half_width": INTERVAL_STDS * statistic.noise_std,
                "noise_std": statistic.noise_std,
                "group_privacy_std": float(group_std),
                "largest_difference": statistic.difference,
            }
            for statistic, truth, value, group_std in zip(
                usefulness.statistics,
                query.outputs(table)[0],
                released.values,
                _group_privacy(scenario),
                strict=True,
            )
        ),
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


def demo_query() -> Query:
    """Build a query of eight statistics of the whole table, each clipped to a public range."""
    return summary(
        mean=list(_CLIP),
        rate=[
            ("income", ">50K"),
            ("age", above(60)),
            ("capital-gain", above(0)),
            ("capital-loss", above(0)),
            ("hours-per-week", at_least(50)),
        ],
        clip=_CLIP,
    )


def _group_privacy(scenario: Scenario) -> Floats:
    """Compute noise that hides so many rows whatever they are, in every statistic at once.

    Each row can move a mean by the width of its clip range over the number of rows.
    """
    widths = np.array([high - low for low, high in _CLIP.values()] + [1.0] * _N_RATES)
    widest = widths * scenario.secret["n_differing"] / scenario.secret["n_rows"]
    return np.asarray(widest * math.sqrt(scenario.dim / TARGET.distance_limit))


def _clear(folder: Path) -> None:
    """Make the folder, or empty it of an earlier demonstration; anything else is left alone."""
    mark = folder / "README.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ours = mark.exists() and read_bytes(mark, "settings").startswith(_MARK.encode())
        if not ours and any(folder.iterdir()):
            raise ArgumentError(
                f"out must be a new or empty folder, or that of an earlier demonstration; "
                f"{str(folder)!r} holds other files. Name another folder"
            )
        for name in (*FILES, *(f"demo.ledger{suffix}" for suffix in _LEDGER_REMAINS)):
            if name != mark.name:
                (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot use the folder {str(folder)!r}: {error}") from error
    readme = (
        f"{_MARK} on the public Adult table. The next run replaces these files and\n"
        "starts a new ledger. A real ledger is kept: it is what stops a second release.\n"
        f"{_FOR_THE_PUBLIC}\n\n{_LISTED_FILES}\n"
    )
    # Written first, so that the next run recognises an unfinished one.
    write_whole(mark, readme.encode())
