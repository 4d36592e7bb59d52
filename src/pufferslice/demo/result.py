# SPDX-License-Identifier: Apache-2.0
"""What the demonstration made, and its summary in words."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, final

import attrs

from pufferslice.arrays import Floats, locked
from pufferslice.audit import Audit
from pufferslice.certificate import Certificate, Verification
from pufferslice.certificate.prose import guess_sentence
from pufferslice.demo.setting import (
    EPSILONS,
    FILES,
    GROUP,
    NOTIONS,
    PUBLIC_FILES,
    SECRET,
    TARGET,
)
from pufferslice.guarantee import Guarantee
from pufferslice.releasing import Release
from pufferslice.report.tables import text_table


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
            **attrs.asdict(self.target),
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
            "guarantee": attrs.asdict(self.certificate.guarantee),
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
            _audited(self.audit),
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


def _audited(audit: Audit) -> str:
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
