# SPDX-License-Identifier: Apache-2.0
"""`pufferslice report`: one self-contained page from certificates and what belongs to them."""

from pathlib import Path
from typing import Annotated

import typer

from pufferslice.cli.output import Json, answer, progress_bar
from pufferslice.errors import ArgumentError


def report(
    files: Annotated[
        list[Path],
        typer.Argument(help="Certificates, releases, audits, comparison.json, training logs."),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")],
    public: Annotated[
        bool, typer.Option("--public", help="Only public statements and values, to be published.")
    ] = False,
    label: Annotated[
        bool, typer.Option("--label", help="A privacy label: one card about one certificate.")
    ] = False,
    json: Json = False,
) -> None:
    """Write one self-contained HTML page; the internal edition, unless --public or --label."""
    from pufferslice._core.files import CONFIDENTIAL, OPEN, write_whole
    from pufferslice.certificate.certificate import EVIDENCE_SUFFIX
    from pufferslice.report.page import internal_page, label_page, public_page

    if out.resolve() in {path.resolve() for path in files} or out.name.endswith(EVIDENCE_SUFFIX):
        raise ArgumentError(
            f"--out {str(out)!r} is one of the files to report on, or evidence; name another"
        )
    edition = "label" if label else "public" if public else "internal"
    if label:
        page = label_page(files)
    elif public:
        page = public_page(files)
    else:
        with progress_bar("epsilons") as progress:
            page = internal_page(files, progress)
    write_whole(out, page, CONFIDENTIAL if edition == "internal" else OPEN)
    what = "a privacy label" if label else f"the {edition} edition"
    text = f"Written: {out}, {what}, {len(page) / 1000:.0f} kB."
    if edition == "internal":
        text += "\nIt contains evidence: do not publish it. --public writes the edition for that."
    answer({"out": str(out), "edition": edition, "bytes": len(page)}, text, json=json)
