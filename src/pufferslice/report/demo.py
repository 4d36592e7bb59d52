# SPDX-License-Identifier: Apache-2.0
"""The demonstration: one protected release of the embedded Adult table, audited, on one page.

It repeats the paper's experiment with a claim about the whole output.
"""

import os
import textwrap
from pathlib import Path
from typing import Any, Final, final

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from pufferslice import data, queries
from pufferslice._core.files import CONFIDENTIAL, pretty_json, read_bytes, write_whole
from pufferslice._core.threads import Progress, silent
from pufferslice.audit import Audit, audit_release
from pufferslice.calibration.guarantee import Guarantee, at_most, percent_at_most
from pufferslice.certificate import Certificate, Verification, certify_release, verify
from pufferslice.certificate.verdict import Verdict, verdict
from pufferslice.certificate.what_if import CLOSED_FORM, sweep_points
from pufferslice.certificate.wording import INTERVAL_STDS, guess_sentence, shape_sentences
from pufferslice.errors import ArgumentError, StorageError
from pufferslice.releases.release import Release, release
from pufferslice.report.page import internal_page
from pufferslice.report.text import text_table
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile

SECRET: Final = "race"  # noqa: S105 - the name of a column
GROUP: Final = "Black"
"""The group whose summary is released."""
TARGET: Final = Guarantee.unsliced(order=4, epsilon=1.0)
"""What the certificate claims, of the whole output."""
EPSILONS: Final = (0.1, 0.3, 1.0, 3.0, 10.0)
N_DIRECTIONS: Final = 200
"""Slices of the paper's mechanism."""
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
_STEPS: Final = 8


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
    verdict: Verdict
    """Whether such a release is worth making."""
    mechanisms: tuple[dict[str, Any], ...]
    """Fitted noise, isotropic noise and the paper's joint mechanism: promise and noise of each."""
    sweep: tuple[dict[str, Any], ...]
    """The noise of the three at several epsilons, root mean square in scaled units."""
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
            "spent": self.certificate.spent,
            "unsliced_epsilon": self.certificate.unsliced_epsilon,
            "guess": self.certificate.guess,
            "mechanisms": list(self.mechanisms),
            "verdict": self.verdict.to_json(),
            "statistics": list(self.statistics),
            "sweep": list(self.sweep),
            "files": [str(path) for path in self.files],
        }

    def __str__(self) -> str:
        certificate, audit = self.certificate, self.audit
        scenario = certificate.statement["scenario"]
        pairs = [attack for attack in audit.inferences if len(attack.secrets) == 2]
        best = max(pairs, key=lambda attack: attack.advantage.value)
        blind = best.accuracy.value - best.advantage.value
        shape = "\n".join(
            textwrap.fill(line, 100) for line in shape_sentences(certificate.statement)
        )
        return f"""\
Protected: {SECRET!r} in the complete rows of the Adult census table \
({len(scenario["secrets"])} groups, all {len(scenario["pairs"])} pairs).
One release is the summary of one group ({len(scenario["query"]["names"])} statistics); \
a reader should not be able to tell
which group it was.
{textwrap.fill(guess_sentence(certificate.guess), 100)}

Certificate {certificate.digest[:16]}: {certificate.guarantee} for the whole output; \
{"VERIFIED from its evidence" if self.verification.holds else "REFUTED"}.
{shape}

Released for {GROUP!r}, with the noise of three mechanisms and the largest true difference
between two groups (shown because Adult is public; with your data it is confidential):
{text_table(self._statistics_rows())}

What each of them promises. Only claims of the whole output are about what a reader sees:
{text_table(self._mechanism_rows())}

{textwrap.fill(self.verdict.sentence, 100)}
This is the paper's experiment, shown to compare mechanisms; it is not a release to imitate.

An audit with {audit.n_outputs} fresh outputs under each group \
{"REFUTES" if audit.refuted else "does not refute"} the certificate; an
audit never proves one. Of two groups, its best attack names the right one \
{best.accuracy.value:.1%} of the time
({" and ".join(best.secrets)}; with confidence {best.accuracy.low:.1%} to \
{best.accuracy.high:.1%}); blind guesses, {blind:.1%}.

Noise std at order {TARGET.order:g}, root mean square of the statistics in scaled units:
{text_table(self._sweep_rows())}

Open {self.folder / "report.html"} in a browser: it is all there, on one page.
Files in {self.folder}:
{_LISTED_FILES}
This run started its own new ledger. {_FOR_THE_PUBLIC}"""

    def _statistics_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [
            ("statistic", "released", "±95 %", "std fitted", "isotropic", "paper", "difference")
        ]
        for row in self.statistics:
            name, *values = row.values()
            rows.append((name, *(f"{value:.4g}" for value in values)))
        return rows

    def _mechanism_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [
            ("mechanism", "promise", "about", "whole output", "guesses", "total variance")
        ]
        for row in self.mechanisms:
            unsliced, guess = row["unsliced_epsilon"], row["guess"]
            rows.append(
                (
                    row["mechanism"],
                    row["promise"],
                    row["about"],
                    "no bound" if unsliced is None else f"({TARGET.order:g}, {at_most(unsliced)})",
                    "no bound" if guess is None else percent_at_most(guess).replace("\u00a0", " "),
                    f"{row['total_variance']:.4g}",
                )
            )
        return rows

    def _sweep_rows(self) -> list[tuple[str, ...]]:
        head = ("epsilon", "fitted", "isotropic", "paper's joint", "isotropic / fitted, variance")
        return [head, *(tuple(f"{value:.4g}" for value in row.values()) for row in self.sweep)]

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
    certificate = certify_release(scenario, TARGET)
    certificate.save(folder / "certificate.json")
    progress(2, _STEPS)
    isotropic = certify_release(scenario, TARGET, shape="isotropic")
    joint = Guarantee.joint(order=TARGET.order, epsilon=TARGET.epsilon, profile=profile)
    paper = certify_release(scenario, joint, method=CLOSED_FORM)
    progress(3, _STEPS)
    released = release(
        scenario,
        table.filter(pc.equal(table[SECRET], pa.scalar(GROUP))),
        certificate,
        ledger=folder / "demo.ledger",
        out=folder / "release.json",
    )
    progress(4, _STEPS)
    audit = audit_release(
        scenario, None, certificate, n_outputs=N_OUTPUTS, confidence=CONFIDENCE, seed=SEED
    )
    write_whole(folder / "audit.json", pretty_json(audit.to_json()), CONFIDENTIAL)
    progress(5, _STEPS)
    # Never None: groups are not counted in bins.
    usefulness: Verdict = verdict(certificate)  # type: ignore[assignment]
    result = DemoResult(
        folder=folder,
        certificate=certificate,
        verification=verify(Certificate.load(folder / "certificate.json")),
        released=released,
        audit=audit,
        verdict=usefulness,
        mechanisms=(
            _mechanism("fitted noise", "whole output", certificate),
            _mechanism("isotropic noise", "whole output", isotropic),
            _mechanism("paper's joint", f"{N_DIRECTIONS} slices alone", paper),
        ),
        sweep=_sweep(certificate, isotropic, paper),
        statistics=_statistics(released, usefulness, isotropic, paper),
    )
    progress(6, _STEPS)
    write_whole(folder / "summary.txt", f"{result}\n".encode(), CONFIDENTIAL)
    write_whole(folder / "summary.json", pretty_json(result.to_json()), CONFIDENTIAL)
    progress(7, _STEPS)
    about = ("certificate.json", "release.json", "audit.json")
    page = internal_page([folder / name for name in about])
    write_whole(folder / "report.html", page, CONFIDENTIAL)
    progress(8, _STEPS)
    return result


def _mechanism(name: str, about: str, certificate: Certificate) -> dict[str, Any]:
    """One row of the comparison; total variance is in scaled units."""
    n_coordinates = len(certificate.statement["scenario"]["query"]["names"])
    return {
        "mechanism": name,
        "promise": str(certificate.guarantee),
        "about": about,
        "unsliced_epsilon": certificate.unsliced_epsilon,
        "guess": certificate.guess,
        "total_variance": n_coordinates * certificate.noise_std**2,
    }


def _sweep(
    fitted: Certificate, isotropic: Certificate, paper: Certificate
) -> tuple[dict[str, Any], ...]:
    rows = []
    for points in zip(
        *(sweep_points(held, EPSILONS) for held in (fitted, isotropic, paper)), strict=True
    ):
        shaped, plain, closed = (point.noise_std for point in points)
        ratio = None if shaped is None or plain is None else (plain / shaped) ** 2
        rows.append(
            {
                "epsilon": points[0].claim.bound,
                "fitted_std": shaped,
                "isotropic_std": plain,
                "paper_std": closed,
                "variance_ratio": ratio,
            }
        )
    return tuple(rows)


def _statistics(
    released: Release, usefulness: Verdict, isotropic: Certificate, paper: Certificate
) -> tuple[dict[str, Any], ...]:
    plain, sliced = (held.statement["noise"]["std_by_coordinate"] for held in (isotropic, paper))
    return tuple(
        {
            "name": name,
            "released": float(value),
            "half_width": INTERVAL_STDS * float(std),
            "noise_std": float(std),
            "isotropic_std": plain_std,
            "paper_std": sliced_std,
            "largest_difference": statistic.difference,
        }
        for name, value, std, plain_std, sliced_std, statistic in zip(
            released.names,
            released.values,
            released.noise_stds,
            plain,
            sliced,
            usefulness.statistics,
            strict=True,
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
