# SPDX-License-Identifier: Apache-2.0
"""`pufferslice export`: a certificate's public statement in the format of a public registry."""

from pathlib import Path
from typing import Annotated

import typer

from pufferslice.cli.output import Json, answer
from pufferslice.errors import ArgumentError


def export(
    certificate: Annotated[Path, typer.Argument(help="The certificate.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    name: Annotated[str, typer.Option(help="Name of what is published.")],
    curator: Annotated[str, typer.Option(help="Who publishes it.")],
    curator_type: Annotated[str, typer.Option(help="Government, Industry or Nonprofit.")],
    intended_use: Annotated[str, typer.Option(help="What it is for.")],
    region: Annotated[str, typer.Option(help="Which region the data describe.")],
    published: Annotated[str, typer.Option(help="When, as YYYY-MM-DD.")],
    author: Annotated[str, typer.Option(help="Who writes this record.")],
    sector: Annotated[str | None, typer.Option(help="Technology, Healthcare, …")] = None,
    registry: Annotated[
        bool, typer.Option("--registry", help="YAML of the OpenDP deployments registry.")
    ] = False,
    json: Json = False,
) -> None:
    """Write the public statement for a registry, with the facts that only you know."""
    from pufferslice._core.files import write_whole
    from pufferslice.certificate.certificate import evidence_path
    from pufferslice.report.inputs import public_inputs
    from pufferslice.report.registry import DeploymentFacts, registry_record, registry_yaml

    if not registry:
        raise ArgumentError("export needs a format; the only one is --registry")
    if out.resolve() in {certificate.resolve(), evidence_path(certificate).resolve()}:
        raise ArgumentError(
            f"--out {str(out)!r} is the certificate or its evidence; name another file"
        )
    (held,) = public_inputs([certificate])
    facts = DeploymentFacts(
        name=name,
        curator=curator,
        curator_type=curator_type,
        intended_use=intended_use,
        region=region,
        published=published,
        author=author,
        sector=sector,
    )
    write_whole(out, registry_yaml(held.certificate, facts))
    text = (
        f"Written: {out}, a draft record with variant Custom. Read it before you submit it: only "
        "you know whether it is true."
    )
    answer({"out": str(out), "record": registry_record(held.certificate, facts)}, text, json=json)
