# SPDX-License-Identifier: Apache-2.0
"""`pufferslice release`: the query with noise, once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pufferslice._core.text import given, listed, quoted
from pufferslice.cli.output import Json, PlotFile, answer, check_plot, plotted, progress_bar
from pufferslice.errors import ArgumentError, StorageError

if TYPE_CHECKING:
    from pufferslice.certificate import Certificate
    from pufferslice.config.budget import BudgetRequest
    from pufferslice.config.scenario import DerivedSection
    from pufferslice.releases import Release
    from pufferslice.releases.derived import DerivedStatistics


def release(
    certificate: Annotated[Path, typer.Option(help="The certificate, beside its evidence.")],
    ledger: Annotated[
        str, typer.Option(help="The ledger: a file, created if absent, or postgresql://…#name.")
    ],
    out: Annotated[Path, typer.Option(help="The release file; must not exist.")],
    scenario: Annotated[
        Path | None, typer.Argument(help="The scenario.toml or budget.toml that was certified.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Argument(help="Under a budget: the rows, if not those of the part's scenario."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Release the rows of the table with this secret.")
    ] = None,
    row: Annotated[
        int | None,
        typer.Option(help="Release this row of the table, from 0 (distribution records)."),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            help="Release the rows of this file instead of the table in the scenario (worlds)."
        ),
    ] = None,
    spent_marks: Annotated[
        Path | None,
        typer.Option(help="Folder for the spent mark; without it, that of the certificate."),
    ] = None,
    part: Annotated[str | None, typer.Option(help="Under a budget: the part.")] = None,
    period: Annotated[
        int | None, typer.Option(help="Under a budget: the period of a repeated part, from 1.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Under a budget: a statistic; may be repeated.")
    ] = None,
    spend: Annotated[
        float | None,
        typer.Option(help="Under a budget: the share of the declared precision; default the rest."),
    ] = None,
    noise: Annotated[
        list[str] | None,
        typer.Option(help="Under a budget: wanted noise, as 'mean(age)=0.3'; may be repeated."),
    ] = None,
    into_range: Annotated[
        bool,
        typer.Option(
            "--into-range", help="Move values that noise put outside their public range to its end."
        ),
    ] = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Write the recorded release again; under a budget the latest, or --again SERIAL.",
        ),
    ] = False,
    plot: PlotFile = None,
    json: Json = False,
) -> None:
    """Release the query on some rows, once or inside a part of a budget, and record it.

    The cost of the noise is recomputed from the scenario first, also its couplings.
    """
    from pufferslice.certificate import Certificate
    from pufferslice.config.budget import read_budget
    from pufferslice.config.scenario import read_request
    from pufferslice.data.readers import FileTable
    from pufferslice.releases import Ledger
    from pufferslice.releases.commands import AGAIN
    from pufferslice.releases.derived import requested
    from pufferslice.releases.release import release as release_rows
    from pufferslice.releases.release import release_again

    check_plot(plot)  # before the release, which happens once
    held = Certificate.load(certificate)
    if again and into_range:
        raise ArgumentError("--again writes the recorded release as it is; leave --into-range out")
    book = Ledger(ledger)
    derived: DerivedStatistics | None = None
    if again:
        released = release_again(
            held,
            ledger=book,
            out=out,
            spent_marks=spent_marks,
            part=part,
            period=period,
            serial=_serial_of(scenario, data),
        )
    elif scenario is None:
        raise ArgumentError(
            "give the scenario.toml that was certified; only --again works without it"
        )
    elif held.workflow == "budget":
        unwanted = {"--group": group, "--row": row, "--rows": rows}
        if unfit := [name for name, value in unwanted.items() if value is not None]:
            raise ArgumentError(
                f"{listed(unfit)} is for a scenario.toml; name the rows of a part of a budget "
                "after budget.toml, as in: release budget.toml january.csv"
            )
        request, name = read_budget(scenario, progress_bar), _part_of(held, part)
        section = request.derived[name]
        released = release_rows(
            request.scenarios[name],
            _rows_of(request, name, data),
            held,
            ledger=book,
            part=name,
            period=period,
            only=only,
            spend=spend,
            noise=None if noise is None else _wanted_noise(noise),
            out=out,
            spent_marks=spent_marks,
            into_range=into_range,
        )
        derived = _possible(released, section)
    else:
        choices = {"--part": part, "--period": period, "--only": only, "--spend": spend}
        choices |= {"--noise": noise, "the rows after the scenario": data}
        if unfit := [name for name, value in choices.items() if value is not None]:
            raise ArgumentError(
                f"{listed(unfit)} is for a budget, and this certificate is of one release; leave "
                "it out, or name rows with --rows"
            )
        asked = read_request(scenario, progress_bar)
        section = asked.file.derived
        # A wrong name is found before the release, which happens once.
        wanted = requested(asked.scenario.query.names, **section.arguments())
        n_choices = sum(choice is not None for choice in (group, row, rows))
        if n_choices != 1 and not (n_choices == 0 and asked.scenario.rule is None):
            raise ArgumentError(
                "choose the rows to release by exactly one of --group, --row, --rows"
            )
        table = (
            asked.chosen_rows(group=group, row=row)
            if rows is None
            else FileTable.of(rows, asked.file.data.null_values)
        )
        with progress_bar("recomputing couplings") as progress:
            released = release_rows(
                asked.scenario,
                table,
                held,
                ledger=book,
                out=out,
                spent_marks=spent_marks,
                into_range=into_range,
                progress=progress,
            )
        if wanted:
            derived = released.derived(
                **section.arguments(), simultaneous=section.simultaneous, certificate=held
            )
    try:
        values = "" if derived is None else f"\n{derived}"
        text = f"{released}{values}\n\nWritten: {out}. Recorded in {book.name}."
        text += plotted(plot, released.plot)
        more = {} if derived is None else {"statistics": derived.to_json()}
        answer(released.to_json() | more, text, json=json)
    except StorageError as error:
        raise StorageError(
            f"{error}. The release is written to {str(out)!r} and recorded in the ledger "
            f"{book.name!r}; {AGAIN}"
        ) from error


def _serial_of(scenario: Path | None, data: str | None) -> int | None:
    """Return the number after --again, which is an argument, with or without budget.toml."""
    last = data if data is not None or scenario is None else str(scenario)
    return int(last) if last is not None and last.isdecimal() else None


def _part_of(held: "Certificate", part: str | None) -> str:
    """Return the part that is released; the only one may be left out."""
    names = [each.name for each in held.budget.tables]
    if part is None and len(names) == 1:
        return names[0]
    if part not in names:
        raise ArgumentError(f"--part must be one of {listed(names)}, got {given(part)}")
    return part


def _rows_of(request: "BudgetRequest", part: str, data: str | None) -> object:
    """Return the rows of a part: those of a file, or of the table of its scenario."""
    from pufferslice.data.readers import FileTable

    if data is not None:
        return FileTable.of(data, request.null_values[part])
    table = request.tables[part]
    if table is None or part in request.repeated:
        raise ArgumentError(
            f"name the rows of part {quoted(part)} after budget.toml, as in: release budget.toml "
            "january.csv"
        )
    return table


def _wanted_noise(texts: list[str]) -> dict[str, float]:
    """Read wanted noise, as `mean(age)=0.3`; names may have an equals sign."""
    noise = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            noise[name.strip()] = float(number)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise ArgumentError(
                f"--noise must be a statistic and a number, as 'mean(age)=0.3', got {given(text)}"
            )
    return noise


def _possible(released: "Release", section: "DerivedSection") -> "DerivedStatistics | None":
    """Compute the statistics of [derived] where the release has all that they need."""
    from pufferslice.errors import ReleaseError

    arguments = section.arguments()
    if not arguments:
        return None
    try:
        return released.derived(**arguments, simultaneous=section.simultaneous)
    except ReleaseError:
        return None  # some of it was not released this time
