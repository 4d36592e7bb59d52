# SPDX-License-Identifier: Apache-2.0
"""The demonstration: one protected release of the embedded Adult table, audited, on one page."""

import os
import textwrap
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pufferslice import data, queries
from pufferslice._core.arrays import Floats, locked
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
from pufferslice.report.blocks import text_table
from pufferslice.report.page import internal_page
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


@final
@attrs.frozen(kw_only=True)
class SweptNoise:
    """One claim, and the noise that each rule asks for; standard deviations in scaled units."""

    target: Guarantee
    tight_std: float
    closed_form_std: float

    @property
    def variance_ratio(self) -> float:
        """How many times the variance of the tight rule the closed form needs."""
        return (self.closed_form_std / self.tight_std) ** 2

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values."""
        return {
            **self.target.to_json(),
            "tight_std": self.tight_std,
            "closed_form_std": self.closed_form_std,
            "variance_ratio": self.variance_ratio,
        }


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
    sweep: tuple[SweptNoise, ...]
    differences: Floats = attrs.field(converter=locked)
    """The largest true difference between two groups, per statistic, in the user's units."""

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
            "statistics": [
                {
                    "name": name,
                    "released": value,
                    "noise_std": std,
                    "largest_difference": difference,
                }
                for name, value, std, difference in _statistics(self)
            ],
            "sweep": [row.to_json() for row in self.sweep],
            "files": [str(path) for path in self.files],
        }

    def __str__(self) -> str:
        parts = (
            _protected(self.certificate),
            _promised(self),
            _noise(self),
            _audit_lines(self.audit),
            _sweep(self.sweep),
            _written(self.folder),
        )
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        return f"DemoResult(folder={str(self.folder)!r}, certificate={self.certificate!r})"


def listed_files() -> str:
    """The files of the demonstration, one per line."""
    return "\n".join(f"  {name:<25} {what}" for name, what in FILES.items())


def for_the_public() -> str:
    """Which of the files others may have."""
    names = " and ".join(name for name in PUBLIC_FILES if name.endswith(".json"))
    return (
        f"With data of your own, only {names}\n"
        "would be for the public; what tells of the evidence is readable by its owner only."
    )


def _protected(certificate: Certificate) -> str:
    scenario = certificate.statement["scenario"]
    return (
        f"Protected: {SECRET!r} in the complete rows of the Adult census table "
        f"({len(scenario['secrets'])} groups, all {len(scenario['pairs'])} pairs).\n"
        f"One release is the summary of one group ({len(scenario['query']['names'])} statistics); "
        "a reader should not be able to tell\nwhich group it was."
    )


def _promised(result: DemoResult) -> str:
    certificate = result.certificate
    whole = certificate.unsliced_epsilon
    bound = "no finite bound" if whole is None else f"at most {whole:.4g}"
    verdict = "VERIFIED from its evidence" if result.verification.holds else "REFUTED"
    claim, n_slices = certificate.guarantee, certificate.statement["profile"]["n_directions"]
    return (
        f"Certificate {certificate.digest[:16]}: {claim} along {n_slices} slices; {verdict}.\n"
        f"The noise costs {certificate.spent_epsilon:.6g} of {claim.epsilon:g}. Unsliced, which is "
        "the statement about the released bits,\n"
        f"it costs {bound} at order {certificate.statement['unsliced']['order']:g}.\n"
        f"{textwrap.fill(guess_sentence(certificate.guess), 100)}"
    )


def _statistics(result: DemoResult) -> Iterator[tuple[str, float, float, float]]:
    """Name, released value, noise, largest true difference between groups; in the user's units."""
    released = result.released
    for name, value, std, difference in zip(
        released.names, released.values, released.noise_stds, result.differences, strict=True
    ):
        yield name, float(value), float(std), float(difference)


def _noise(result: DemoResult) -> str:
    head = ("statistic", "released", "noise std", "largest true difference")
    rows = [(name, *(f"{value:.4g}" for value in values)) for name, *values in _statistics(result)]
    return (
        f"Released for {GROUP!r}, beside the largest true difference between two groups (shown\n"
        f"because Adult is public; with your data it is confidential):\n{text_table([head, *rows])}"
    )


def _audit_lines(audit: Audit) -> str:
    outcome = "REFUTES the certificate" if audit.refuted else "does not refute the certificate"
    pairs = [one for one in audit.inferences if len(one.secrets) == 2]
    best = max(pairs, key=lambda one: one.advantage.value)
    return (
        f"An audit with {audit.n_outputs} fresh outputs under each group {outcome}; an\n"
        "audit never proves one. Of two groups, its best attack names the right one "
        f"{best.accuracy.value:.1%} of the time\n"
        f"({' and '.join(best.secrets)}); blind guesses, "
        f"{best.accuracy.value - best.advantage.value:.1%}."
    )


def _sweep(sweep: Sequence[SweptNoise]) -> str:
    head = ["epsilon"]
    for notion in NOTIONS:
        head += [f"{notion}: tight", "closed form", "ratio"]
    rows = [
        [f"{epsilon:g}", *chain(*(_cells(row) for row in sweep if row.target.epsilon == epsilon))]
        for epsilon in EPSILONS
    ]
    return (
        f"Noise std in scaled units at order {TARGET.order:g}, by both rules, and the ratio of "
        f"their variances:\n{text_table([head, *rows])}"
    )


def _cells(row: SweptNoise) -> tuple[str, str, str]:
    return f"{row.tight_std:.4g}", f"{row.closed_form_std:.4g}", f"{row.variance_ratio:.2f}"


def _written(folder: Path) -> str:
    return (
        f"Open {folder / 'report.html'} in a browser: it is all there, on one page.\n"
        f"Files in {folder}:\n{listed_files()}\n"
        f"This run started its own new ledger. {for_the_public()}"
    )


_MARK: Final = "Made by `pufferslice demo`"
_LEDGER_REMAINS: Final = ("-journal", "-wal", "-shm")
_STEPS: Final = 7


def run_demo(out: str | os.PathLike[str], progress: Progress = silent) -> DemoResult:
    """Certify, release, verify, audit and report on the embedded Adult table; all goes to `out`.

    `out` must be new, empty, or the folder of an earlier demonstration, whose files are replaced,
    its ledger included: each run stands alone. Needs the extra `report`.
    """
    folder = Path(out)
    _clear(folder)
    table, scenario = _adult()
    progress(1, _STEPS)
    certificate = _certified(scenario, folder)
    progress(2, _STEPS)
    released = release(
        scenario,
        table.filter(pc.equal(table[SECRET], pa.scalar(GROUP))),
        certificate,
        ledger=folder / "demo.ledger",
        out=folder / "release.json",
    )
    progress(3, _STEPS)
    audit = _audited(scenario, certificate, folder)
    progress(4, _STEPS)
    values = _values(scenario)
    result = DemoResult(
        folder=folder,
        certificate=certificate,
        verification=verify(Certificate.load(folder / "certificate.json")),
        released=released,
        audit=audit,
        sweep=swept(required_evidence(certificate).slices),
        differences=np.ptp(values, axis=0) * scenario.query.scales,
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


def swept(slices: Slices) -> tuple[SweptNoise, ...]:
    """The noise for every notion and epsilon, by both rules, from the same evidence."""
    targets = [
        Guarantee(notion=notion, order=TARGET.order, epsilon=epsilon)
        for notion in NOTIONS
        for epsilon in EPSILONS
    ]
    return tuple(
        SweptNoise(
            target=target,
            tight_std=calibrate(target, slices, TIGHT),
            closed_form_std=calibrate(target, slices, CLOSED_FORM),
        )
        for target in targets
    )


def _adult() -> tuple[pa.Table, Scenario]:
    table = data.adult_complete()
    query = queries.adult_summary()
    return table, Scenario.from_groups(table, secret=SECRET, query=query)


def _certified(scenario: Scenario, folder: Path) -> Certificate:
    certificate = certify_release(scenario, TARGET.along(_profile(scenario)), method=TIGHT)
    certificate.save(folder / "certificate.json")
    return certificate


def _profile(scenario: Scenario) -> FiniteProfile:
    return FiniteProfile.uniform(dim=scenario.dim, n_directions=N_DIRECTIONS, seed=SEED)


def _audited(scenario: Scenario, certificate: Certificate, folder: Path) -> Audit:
    audit = audit_release(
        scenario,
        _profile(scenario),
        certificate,
        n_outputs=N_OUTPUTS,
        confidence=CONFIDENCE,
        seed=SEED,
    )
    write_whole(folder / "audit.json", pretty_json(audit.to_json()), CONFIDENTIAL)
    return audit


def _values(scenario: Scenario) -> Floats:
    """The scaled query on each group, shape (n_groups, dim)."""
    distributions = scenario.priors[0].distributions.values()
    return np.vstack(
        [
            distribution.outputs
            for distribution in distributions
            if isinstance(distribution, FiniteDistribution)
        ]
    )


def _clear(folder: Path) -> None:
    """Make the folder, or empty it of an earlier demonstration; anything else is left alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark = folder / "README.txt"
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
    # Written first, so that a run that was cut short is known as one.
    write_whole(folder / "README.txt", _readme().encode())


def _readme() -> str:
    return (
        f"{_MARK} on the public Adult table. The next run replaces these files and\n"
        "starts a new ledger. A real ledger is kept: it is what stops a second release.\n"
        f"{for_the_public()}\n\n{listed_files()}\n"
    )
