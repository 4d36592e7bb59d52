# SPDX-License-Identifier: Apache-2.0
"""`pufferslice paper`: the paper's figures made again, and which of its claims held."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pufferslice.cli.exit_codes import INTERRUPTED, REFUSED
from pufferslice.cli.output import print_json, progress_bar, say
from pufferslice.errors import MissingExtraError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pufferslice.paper import Claim, Experiment, Outcome

app = typer.Typer(
    name="paper",
    help="Make the paper's figures again, and say which of its claims held.",
    no_args_is_help=True,
)


@app.command(name="list")
def show(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the experiments: what each is, what it needs, how long it takes."""
    from pufferslice.paper import EXPERIMENTS

    if json:
        print_json({"experiments": [_described(one) for one in EXPERIMENTS]})
        return
    for one in EXPERIMENTS:
        say(f"{one.name}\n    {one.title}\n    source: {one.source}")
        say(f"    needs: {one.needs or 'nothing more'}\n    takes: {one.duration}")


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="An experiment of `paper list`, or all.")],
    out: Annotated[Path, typer.Option(help="Folder for tables, numbers and pictures.")],
    full: Annotated[
        bool, typer.Option("--full", help="At the paper's own scale, which may take days.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run an experiment; claims that did not hold are a finding, not an error.

    A run that is cut off goes on where it was when it is started again with the same folder.
    """
    from pufferslice.paper import EXPERIMENTS, experiment_named

    wanted = EXPERIMENTS if name == "all" else (experiment_named(name),)
    # Before hours of work, not after: whether there is a folder, and the extra for pictures.
    from pufferslice.report.paper_figures import write_outcome
    from pufferslice.storage import make_folder

    make_folder(out)
    answers: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for one in wanted:
        try:
            outcome = _outcome(one, out, full=full)
            answers.append(_shown(outcome, write_outcome(outcome, out), out, quiet=json))
        except (MissingExtraError, StorageError) as error:
            if len(wanted) == 1:
                raise
            left_out[one.name] = getattr(error, "strerror", None) or str(error)
            typer.echo(f"{one.name} is left out: {left_out[one.name]}", err=True)
        except KeyboardInterrupt:
            again = f"the same command goes on with {one.name} where it was"
            typer.echo(f"interrupted; every file in {out} is whole, and {again}", err=True)
            raise typer.Exit(INTERRUPTED) from None
    if json:
        print_json({"outcomes": answers, "left_out": left_out})
    if left_out:
        raise typer.Exit(REFUSED)


def _outcome(one: "Experiment", out: Path, *, full: bool) -> "Outcome":
    """Run one experiment; each scale keeps its training runs in a folder of its own."""
    from pufferslice.paper import Setting

    folder = out / "runs" / one.name / ("full" if full else "default")
    with progress_bar(one.name) as progress:
        return one.run(Setting(full=full, folder=folder, progress=progress))


def _shown(outcome: "Outcome", files: list[str], out: Path, *, quiet: bool) -> dict[str, Any]:
    """Print what held, unless one JSON object is to be printed; the entry of that object."""
    if not quiet:
        say(_prose(outcome))
        say(f"  written to {out}: {', '.join(files)}\n")
    kept = {key: value for key, value in outcome.to_json().items() if key != "rows"}
    return kept | {"files": files}


def _prose(outcome: "Outcome") -> str:
    parts = [outcome.verdict, f"  {outcome.scale}", *_told(outcome.claims)]
    if outcome.our_claims:
        parts += ["  About our own rule, of which the paper says nothing:"]
        parts += _told(outcome.our_claims)
    return "\n".join(parts)


def _told(claims: "Sequence[Claim]") -> list[str]:
    return [f"  {line}" for one in claims for line in str(one).splitlines()]


def _described(one: "Experiment") -> dict[str, str]:
    return {
        "name": one.name,
        "title": one.title,
        "source": one.source,
        "needs": one.needs,
        "duration": one.duration,
    }
