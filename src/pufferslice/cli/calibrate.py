# SPDX-License-Identifier: Apache-2.0
"""`pufferslice calibrate`: noise and certificate, nothing released."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pufferslice.cli.output import print_json, progress_bar
from pufferslice.errors import ArgumentError

if TYPE_CHECKING:
    from pufferslice.certificate import Certificate
    from pufferslice.files import Request

_FROM_FLAGS = "From flags"


def calibrate(
    scenario: Annotated[Path | None, typer.Argument(help="A scenario.toml.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the certificate here, its evidence beside it.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="State the releases that this ledger already holds.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="CSV or Parquet.", rich_help_panel=_FROM_FLAGS)
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="An embedded table: adult.", rich_help_panel=_FROM_FLAGS)
    ] = None,
    null_value: Annotated[
        list[str] | None,
        typer.Option(help="A text that means missing, e.g. '?'.", rich_help_panel=_FROM_FLAGS),
    ] = None,
    missing: Annotated[
        str, typer.Option(help="refuse or drop-rows.", rich_help_panel=_FROM_FLAGS)
    ] = "refuse",
    secret: Annotated[
        str | None, typer.Option(help="Column(s), by commas.", rich_help_panel=_FROM_FLAGS)
    ] = None,
    quantiles: Annotated[
        int | None,
        typer.Option(help="Bin the secret into quantiles.", rich_help_panel=_FROM_FLAGS),
    ] = None,
    law: Annotated[
        str | None,
        typer.Option(help="groups, bootstrap or records.", rich_help_panel=_FROM_FLAGS),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Numeric columns (law records).", rich_help_panel=_FROM_FLAGS),
    ] = None,
    mean: Annotated[
        str | None, typer.Option(help="Columns to average.", rich_help_panel=_FROM_FLAGS)
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="Columns to take the spread of.", rich_help_panel=_FROM_FLAGS)
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(help="column=value, a share of rows.", rich_help_panel=_FROM_FLAGS),
    ] = None,
    scales: Annotated[
        str | None, typer.Option(help="Public unit per coordinate.", rich_help_panel=_FROM_FLAGS)
    ] = None,
    low: Annotated[
        str | None, typer.Option(help="Public range, low ends.", rich_help_panel=_FROM_FLAGS)
    ] = None,
    high: Annotated[
        str | None, typer.Option(help="Public range, high ends.", rich_help_panel=_FROM_FLAGS)
    ] = None,
    replicates: Annotated[
        int, typer.Option(help="Of the bootstrap.", rich_help_panel=_FROM_FLAGS)
    ] = 200,
    source: Annotated[
        str,
        typer.Option(
            help="Of the prior: public-model, held-out, released-data.",
            rich_help_panel=_FROM_FLAGS,
        ),
    ] = "released-data",
    notion: Annotated[
        str | None, typer.Option(help="joint, average, unsliced.", rich_help_panel=_FROM_FLAGS)
    ] = None,
    order: Annotated[
        float | None, typer.Option(help="Rényi order, above 1.", rich_help_panel=_FROM_FLAGS)
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The budget, above 0.", rich_help_panel=_FROM_FLAGS)
    ] = None,
    delta: Annotated[
        list[float] | None,
        typer.Option(help="Of the (epsilon, delta) views.", rich_help_panel=_FROM_FLAGS),
    ] = None,
    directions: Annotated[
        int | None, typer.Option(help="Number of random slices.", rich_help_panel=_FROM_FLAGS)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Public seed of slices and bootstrap.", rich_help_panel=_FROM_FLAGS),
    ] = None,
    rule: Annotated[
        str | None, typer.Option(help="tight or closed-form.", rich_help_panel=_FROM_FLAGS)
    ] = None,
    envelope: Annotated[
        str | None, typer.Option(help="transport or worst-gap.", rich_help_panel=_FROM_FLAGS)
    ] = None,
) -> None:
    """Find the noise for a scenario and state what it promises. Releases nothing."""
    flags: dict[str, Any] = {
        name: value
        for name, value in locals().items()
        if name not in {"scenario", "out", "ledger", "json"} and value is not None
    }
    from pufferslice.cli.flags import document_of
    from pufferslice.files import read_request, request_of

    if scenario is not None and (data or dataset):
        msg = "give either a scenario file or --data with flags, not both"
        raise ArgumentError(msg)
    request = read_request(scenario) if scenario else request_of(document_of(flags), Path())
    certificate = _certified(request, ledger)
    if out is not None:
        certificate.save(out)
    if json:
        print_json(summary_of(certificate))
        return
    typer.echo(str(certificate))
    if out is None:
        typer.echo("\nNothing was written; add --out certificate.json to keep the certificate.")
    else:
        typer.echo(f"\nWritten: {out} and, confidential, its evidence beside it.")


def _certified(request: "Request", ledger: Path | None) -> "Certificate":
    from pufferslice.certificate import certify_release
    from pufferslice.ledger import Ledger

    with progress_bar("gap tables") as progress:
        return certify_release(
            request.scenario,
            request.profile,
            request.target,
            method=request.method,
            deltas=request.deltas,
            earlier_releases=Ledger(ledger).releases() if ledger else (),
            progress=progress,
        )


def summary_of(certificate: "Certificate") -> dict[str, Any]:
    """The numbers of a certificate that scripts ask for, flat."""
    statement = certificate.statement
    names = statement["scenario"]["query"]["names"]
    by_coordinate = statement["noise"]["std_by_coordinate"]
    return {
        "noise_std": statement["noise"]["std"],
        "noise_std_by_coordinate": dict(zip(names, by_coordinate, strict=True)),
        **statement["guarantee"],
        "spent_epsilon": statement["spent_epsilon"],
        "unsliced_epsilon": statement["unsliced"]["epsilon"],
        "failure_probability": statement["failure_probability"],
        "dim": statement["profile"]["dim"],
        "n_directions": statement["profile"]["n_directions"],
        "profile_digest": statement["profile"]["digest"],
        **statement["method"],
        "law": statement["scenario"]["law"],
        "secrets": statement["scenario"]["secrets"],
        "rows_dropped": statement["scenario"]["rows_dropped"],
        "laws_are_equal": statement["laws_are_equal"],
        "views": statement["views"],
        "certificate": certificate.digest,
    }
