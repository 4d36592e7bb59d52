# SPDX-License-Identifier: Apache-2.0
"""The demonstration: one protected release of the embedded Adult table, audited, on one page.

It hides the share of women, and publishes statistics of the whole table.
"""

import os
import textwrap
from pathlib import Path
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice import data
from pufferslice._core.files import CONFIDENTIAL, pretty_json, read_bytes, write_whole
from pufferslice._core.threads import Progress, silent
from pufferslice.audit import Audit, audit_release
from pufferslice.calibration.guarantee import Guarantee, percent_at_most
from pufferslice.certificate import Certificate, Sweep, Verification, certify_release, verify
from pufferslice.certificate.issue import spent_in_full
from pufferslice.certificate.sweep import CLOSED_FORM
from pufferslice.certificate.verdict import Verdict, verdict
from pufferslice.certificate.wording import INTERVAL_STDS, guess_sentence, shape_sentences
from pufferslice.errors import ArgumentError, StorageError
from pufferslice.queries import Query, above, at_least, summary
from pufferslice.releases.release import Release, release
from pufferslice.report.page import internal_page
from pufferslice.report.text import text_table
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile

SHARES: Final = (0.30, 0.325, 0.35)
"""Of women, in the three worlds that are not told apart."""
TARGET: Final = Guarantee.guess(at_most=0.64)
"""What the certificate claims, of the whole output."""
GUESSES: Final = (0.55, 0.6, 0.64, 0.7, 0.8)
"""Other bounds to choose among."""
PAPER: Final = Guarantee.joint(order=4, epsilon=1.0)
"""What the paper's mechanism claims, of slices."""
N_DIRECTIONS: Final = 200
"""Its slices."""
N_DRAWS: Final = 500
"""How many draws of each prior it gets, because it couples atoms."""
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
"""All others reveal evidence, and are readable by their owner only."""
_LISTED_FILES: Final = "\n".join(f"  {name:<25} {what}" for name, what in FILES.items())
_FOR_THE_PUBLIC: Final = (
    "With data of your own, only certificate.json and release.json may be published;\n"
    "the other files are derived from the evidence, and only you can read them."
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
    sweep: Sweep
    """What other shares of right guesses would cost."""
    statistics: tuple[dict[str, Any], ...]
    """True and released value, noise, and largest difference between two worlds, in their units."""

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
            "sweep": self.sweep.to_dict(),
            "files": [str(path) for path in self.files],
        }

    def __str__(self) -> str:
        certificate, audit = self.certificate, self.audit
        pairs = [attack for attack in audit.inferences if len(attack.secrets) == 2]
        best = max(pairs, key=lambda attack: attack.advantage.value)
        blind = best.accuracy.value - best.advantage.value
        shape = "\n".join(
            textwrap.fill(line, 100) for line in shape_sentences(certificate.statement)
        )
        worlds = " or ".join(f"{100 * share:g} %" for share in SHARES)
        return f"""\
Protected: the share of women in the Adult census table, which could be
{worlds}.
Published: {len(self.statistics)} statistics of the whole table.
{textwrap.fill(guess_sentence(certificate.guess), 100)}

Certificate {certificate.digest[:16]}: {certificate.guarantee}.
{"VERIFIED from its evidence" if self.verification.holds else "REFUTED"}.
{shape}

Released, beside the truth, with the noise of three mechanisms and the largest difference between
two of the shares (truth and difference are shown because Adult is public; yours are confidential):
{text_table(self._statistics_rows())}
{textwrap.fill(self.verdict.sentence, 100)}

What each mechanism promises. Only claims of the whole output are about what a reader sees:
{text_table(self._mechanism_rows())}
The paper's mechanism couples atoms, so it is given {N_DRAWS} draws of each declared prior.

An audit with {audit.n_outputs} fresh outputs under each share \
{"REFUTES" if audit.refuted else "does not refute"} the certificate; an
audit never proves one. Of two shares, its best attack names the right one \
{best.accuracy.value:.1%} of the time
({" and ".join(best.secrets)}; with confidence {best.accuracy.low:.1%} to \
{best.accuracy.high:.1%}); guesses without the release, {blind:.1%}.

{self.sweep}

Open {self.folder / "report.html"} in a browser: everything is on one page.
Files in {self.folder}:
{_LISTED_FILES}
This run started its own new ledger.
{_FOR_THE_PUBLIC}"""

    def _statistics_rows(self) -> list[tuple[str, ...]]:
        mechanisms = ("std fitted", "isotropic", "paper")
        rows = [tuple(row.values()) for row in self.statistics]
        return [
            ("statistic", "truth", "released", "±95 %", *mechanisms, "between"),
            *((name, *(f"{value:.4g}" for value in values)) for name, *values in rows),
        ]

    def _mechanism_rows(self) -> list[tuple[str, ...]]:
        return [
            ("mechanism", "promise", "about", "guesses", "variance"),
            *(
                (
                    row["mechanism"],
                    row["promise"],
                    row["about"],
                    percent_at_most(row["guess"]).replace("\u00a0", " "),
                    f"{row['total_variance']:.3g}",
                )
                for row in self.mechanisms
            ),
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
    table, query = data.adult_complete(), demo_query()
    scenario = Scenario.from_prevalence(
        table, column="sex", value="Female", shares=SHARES, query=query
    )
    progress(1, _STEPS)
    certificate = certify_release(scenario, TARGET)
    certificate.save(folder / "certificate.json")
    progress(2, _STEPS)
    isotropic = certify_release(scenario, TARGET, shape="isotropic")
    paper_std = _paper_noise(scenario)
    progress(3, _STEPS)
    released = release(
        scenario,
        table,
        certificate,
        ledger=folder / "demo.ledger",
        out=folder / "release.json",
        into_range=True,
    )
    progress(4, _STEPS)
    audit = audit_release(
        scenario, None, certificate, n_outputs=N_OUTPUTS, confidence=CONFIDENCE, seed=SEED
    )
    write_whole(folder / "audit.json", pretty_json(audit.to_json()), CONFIDENTIAL)
    progress(5, _STEPS)
    usefulness = verdict(certificate)
    # The priors are the same, so that isotropic noise of any size can be read off.
    sliced = spent_in_full(isotropic, noise_std=paper_std)
    result = DemoResult(
        folder=folder,
        certificate=certificate,
        verification=verify(Certificate.load(folder / "certificate.json")),
        released=released,
        audit=audit,
        verdict=usefulness,
        mechanisms=tuple(
            {
                "mechanism": name,
                "promise": str(claim),
                "about": about,
                "guess": guess,
                "total_variance": query.dim * noise_std**2,
            }
            for name, claim, about, guess, noise_std in (
                ("fitted", TARGET, "whole output", certificate.guess, certificate.noise_std),
                ("isotropic", TARGET, "whole output", isotropic.guess, isotropic.noise_std),
                (
                    "paper's joint",
                    PAPER,
                    f"{N_DIRECTIONS} slices alone",
                    sliced["guess"],
                    paper_std,
                ),
            )
        ),
        sweep=Sweep.of(certificate, GUESSES),
        statistics=tuple(
            {
                "name": statistic.name,
                "truth": float(truth),
                "released": float(value),
                "half_width": INTERVAL_STDS * statistic.noise_std,
                "noise_std": statistic.noise_std,
                "isotropic_std": isotropic.noise_std * float(scale),
                "paper_std": paper_std * float(scale),
                "largest_difference": statistic.difference,
            }
            for statistic, truth, value, scale in zip(
                usefulness.statistics,
                query.outputs(table)[0],
                released.values,
                query.scales,
                strict=True,
            )
        ),
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


def demo_query() -> Query:
    """Eight statistics of the whole table, in public units that were not fitted to the rows."""
    return summary(
        mean=["age", "education-num", "hours-per-week"],
        rate=[
            ("income", ">50K"),
            ("age", above(60)),
            ("capital-gain", above(0)),
            ("capital-loss", above(0)),
            ("hours-per-week", at_least(50)),
        ],
    ).with_scales([10, 2.5, 10, 0.1, 0.1, 0.1, 0.1, 0.1])


def _paper_noise(scenario: Scenario) -> float:
    """Noise of the paper's joint mechanism, closed form, on draws of the declared priors."""
    rng = np.random.default_rng(SEED)
    worlds = {
        share: FiniteDistribution.uniform(rng.multivariate_normal(prior.mean, prior.cov, N_DRAWS))
        for share, prior in scenario.priors[0].declared.items()
    }
    drawn = Scenario.from_worlds(worlds, query=scenario.query)
    profile = FiniteProfile.uniform(dim=scenario.dim, n_directions=N_DIRECTIONS, seed=SEED)
    return certify_release(drawn, PAPER.along(profile), method=CLOSED_FORM).noise_std


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
