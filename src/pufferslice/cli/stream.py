# SPDX-License-Identifier: Apache-2.0
"""The passes over streamed files as commands make them: with a bar, announced, resumable."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pufferslice.cli.output import progress_bar
from pufferslice.errors import ArgumentError

if TYPE_CHECKING:
    from pufferslice.config.scenario import Request
    from pufferslice.scenario.histograms import Histograms, Strata
    from pufferslice.sensitivity import RowScan

StrataFolder = Annotated[
    Path | None,
    typer.Option(help="Keep the rows that streamed couplings need here, for later commands."),
]


def streamed_request(
    scenario: Path,
    *,
    context: typer.Context | None = None,
    overrides: list[str] | None = None,
    strata_folder: Path | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    checkpoint: Path | None = None,
) -> "Request":
    """The request of a scenario file.

    Streamed files are read here; options that have no use then are refused. A cluster is connected
    until `context` ends, because rows that are coupled may stay on it.
    """
    from pufferslice.config.scenario import read_request
    from pufferslice.sensitivity import scan_files, spill_files

    passes = set()
    client: Any = None

    def scan(path: str | Path, rows: "RowScan") -> "Histograms":
        nonlocal client
        passes.add("scan")
        if context is None or (workers is None and scheduler is None):
            with progress_bar("rows") as progress:
                return scan_files(path, rows, checkpoint=checkpoint, progress=progress)
        from pufferslice.sensitivity.cluster import cluster_client, scan_cluster_files

        client = context.with_resource(cluster_client(workers=workers, scheduler=scheduler))
        with progress_bar("rows") as progress:
            return scan_cluster_files(path, rows, client, checkpoint=checkpoint, progress=progress)

    def spill(
        path: str | Path, rows: "RowScan", histograms: "Histograms"
    ) -> "Mapping[str, Strata]":
        passes.add("spill")

        def announce(n_bytes: int) -> None:
            where = "a temporary folder, which is removed when the command ends"
            if strata_folder is not None:
                where = f"{str(strata_folder)!r}, confidential, until you remove it"
            elif client is not None:
                where = "memory and disks of the cluster, until the command ends"
            size = (
                f"{n_bytes / 2**30:.3g} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.3g} MiB"
            )
            typer.echo(f"Couplings need the rows again: {size} in {where}.", err=True)

        if client is not None and strata_folder is None:
            from pufferslice.sensitivity.cluster import spill_cluster_files

            with progress_bar("strata") as progress:
                return spill_cluster_files(
                    path, rows, histograms, client, announce=announce, progress=progress
                )
        with progress_bar("rows") as progress:
            return spill_files(
                path, rows, histograms, folder=strata_folder, announce=announce, progress=progress
            )

    request = read_request(scenario, scan, spill, progress_bar, overrides=overrides)
    if "scan" not in passes and (workers, scheduler, checkpoint) != (None, None, None):
        raise ArgumentError(
            "--workers, --scheduler and --checkpoint are for streamed data; see bins in [data]"
        )
    if "spill" not in passes and strata_folder is not None:
        raise ArgumentError(
            "--strata-folder is for streamed data whose rows are coupled; see bins and strata in "
            "[data]"
        )
    return request
