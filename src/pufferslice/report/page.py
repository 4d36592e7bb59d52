# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page from files: nothing is loaded, and the page computes nothing."""

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pufferslice import __version__
from pufferslice._core.threads import Progress, silent
from pufferslice.audit import Audit
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.certificate.what_if import (
    SweepPoint,
    epsilons_around,
    slice_profile,
    stated_variation,
    what_if,
    what_if_training,
)
from pufferslice.errors import MissingExtraError, escaped
from pufferslice.report import audit, comparison, evidence, release, training
from pufferslice.report.blocks import (
    END_ISOLATE,
    ISOLATE,
    Part,
    Section,
    Words,
    counted,
    label,
    listed,
)
from pufferslice.report.inputs import (
    Edition,
    MemberAudit,
    ReportInputs,
    TrainingAudit,
    internal_inputs,
    public_inputs,
)

try:
    import jinja2
    import markupsafe
except ModuleNotFoundError as error:
    msg = "reports need jinja2; install it with: pip install 'pufferslice[report]'"
    raise MissingExtraError(msg) from error

_FOLDER: Final = Path(__file__).parent / "template"
_ISOLATED: Final = re.compile(f"{ISOLATE}([^{ISOLATE}{END_ISOLATE}]*){END_ISOLATE}")


def internal_page(paths: Sequence[str | os.PathLike[str]], progress: Progress = silent) -> bytes:
    """The internal edition: watermarked, with everything that the files and the evidence show.

    Needs: certificates that verify, and only files that are about one of them.
    """
    inputs = internal_inputs(paths)
    parts = [
        _internal_part(held, f"part-{i}", _share(progress, i, len(inputs)))
        for i, held in enumerate(inputs)
    ]
    return _rendered("internal", parts, inputs)


def public_page(paths: Sequence[str | os.PathLike[str]]) -> bytes:
    """The public edition, from public statements and released values alone.

    Guarantee: the bytes are the same whether the evidence lies beside the certificates or not.
    """
    inputs = public_inputs(paths)
    parts = [_public_part(held, f"part-{i}") for i, held in enumerate(inputs)]
    return _rendered("public", parts, inputs)


def _share(progress: Progress, index: int, n_parts: int) -> Progress:
    def report(done: int, total: int) -> None:
        progress(index * total + done, n_parts * total)

    return report


def _public_part(held: ReportInputs, part: str) -> Part:
    if held.certificate.workflow == "training":
        return _learning_part(held, part, ())
    variation = stated_variation(held.certificate)
    return _static_part(held, part, variation, ())


def _internal_part(held: ReportInputs, part: str, progress: Progress) -> Part:
    certificate = held.certificate
    epsilons = epsilons_around(certificate.guarantee.epsilon)
    if certificate.workflow == "training":
        prospects = what_if_training(certificate, epsilons, progress)
        drawn = [training.outlook_section(certificate, prospects, part)] if prospects else []
        return _learning_part(held, part, drawn)
    variation = stated_variation(certificate)
    if certificate.evidence is None:
        note = Section(id=f"{part}-evidence", title="Evidence", blocks=(Words("no_evidence"),))
        return _static_part(held, part, variation, [note])
    if certificate.statement["distributions_are_equal"]:
        return _static_part(held, part, variation, ())
    found = what_if(certificate, epsilons, progress)
    own = next(row for row in found if row.claim == certificate.guarantee)
    return _static_part(
        held, part, min(variation, own.total_variation), _evidence_sections(held, found, part)
    )


def _evidence_sections(held: ReportInputs, found: Sequence[SweepPoint], part: str) -> list[Section]:
    certificate, claim = held.certificate, held.certificate.guarantee
    sections = [evidence.outlook_section(certificate, found, part)]
    profile = slice_profile(certificate)
    if profile is not None and len(profile.costs) > 1:
        sliced = isinstance(claim, Guarantee) and claim.is_sliced
        epsilon = claim.epsilon if sliced else None
        sections.append(evidence.slices_section(profile, epsilon, part))
    return [*sections, evidence.pairs_section(certificate, part)]


def _static_part(held: ReportInputs, part: str, variation: float, drawn: Sequence[Section]) -> Part:
    certificate = held.certificate
    unchecked = () if held.verification is None else held.verification.unchecked
    audits = [audit for audit in held.audits if isinstance(audit, Audit)]
    refuted = [verdict.claim for audit in audits for verdict in audit.verdicts if verdict.refuted]
    first, others = drawn[:1], drawn[1:]
    sections = [
        *first,
        *(release.release_section(released, part) for released in held.releases),
        release.accuracy_section(certificate, part),
        release.claim_section(certificate, part),
        *others,
        *([audit.audit_section(audits, part)] if audits else []),
        *([comparison.comparison_section(held.comparisons, part)] if held.comparisons else []),
        release.limits_section(certificate, part, unchecked),
    ]
    return Part(
        kind="release",
        id=part,
        subject=release.secret_name(certificate.statement),
        facts=release.facts(certificate, variation),
        alarms=release.alarms(certificate),
        refuted=tuple(refuted),
        sections=tuple(sections),
        digest=certificate.digest,
        verified=held.verification is not None,
        signed=certificate.signature is not None,
    )


def _learning_part(held: ReportInputs, part: str, drawn: Sequence[Section]) -> Part:
    certificate = held.certificate
    unchecked = () if held.verification is None else held.verification.unchecked
    verdicts = [audit.verdict for audit in held.audits if isinstance(audit, TrainingAudit)]
    audited = any(isinstance(audit, TrainingAudit | MemberAudit) for audit in held.audits)
    sections = [
        training.plan_section(certificate, part),
        *drawn,
        *([training.log_section(held.logs, part)] if held.logs else []),
        *([training.audit_section(held, part)] if audited else []),
        training.limits_section(certificate, part, unchecked),
    ]
    return Part(
        kind="training",
        id=part,
        subject=label(certificate.statement["data"]),
        facts=training.facts(certificate),
        alarms=(),
        refuted=tuple(verdict.claim for verdict in verdicts if verdict.refuted),
        sections=tuple(sections),
        digest=certificate.digest,
        verified=held.verification is not None,
        signed=certificate.signature is not None,
    )


def _rendered(edition: Edition, parts: Sequence[Part], inputs: Sequence[ReportInputs]) -> bytes:
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        finalize=_isolated,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain": _plain, "counted": counted, "listed": listed}
    text = environment.get_template("page.html").render(
        edition=edition,
        parts=parts,
        n_scenarios=len({repr(held.scenario) for held in inputs}),
        style=style,
        script=script,
        policy=_policy(style, script),
        version=__version__,
    )
    return text.encode()


def _isolated(value: object) -> object:
    """A text for the body of the page: escaped, its labels isolated; anything else as it is."""
    if not isinstance(value, str) or isinstance(value, markupsafe.Markup):
        return value
    return _marked(value, "<bdi>", "</bdi>")


def _plain(text: str) -> markupsafe.Markup:
    """A text for an attribute or the title: escaped, its labels between Unicode isolates."""
    return _marked(text, ISOLATE, END_ISOLATE)


def _marked(text: str, start: str, end: str) -> markupsafe.Markup:
    parts = [markupsafe.escape(escaped(part, keep="\u00a0")) for part in _ISOLATED.split(text)]
    parts[1::2] = [markupsafe.Markup(f"{start}{part}{end}") for part in parts[1::2]]  # noqa: S704
    return markupsafe.Markup("").join(parts)


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded; of style and script only these very ones are taken."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
