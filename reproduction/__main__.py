# SPDX-License-Identifier: Apache-2.0
"""`python -m reproduction`: run the paper's experiments and check its claims."""

import errno
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pufferslice._core.files import make_folder
from pufferslice.cli.output import INTERRUPTED, REFUSED, WRONG_USE, print_json, progress_bar, say
from pufferslice.errors import ArgumentError, MissingExtraError, PuffersliceError, StorageError
from reproduction import experiment
from reproduction.experiment import Claim, Outcome, Setting

app = typer.Typer(
    name="python -m reproduction",
    help="Reproduce the paper's figures, and check its claims.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command(name="list")
def show(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the experiments: what each is, what it needs, how long it takes."""
    if json:
        keys = ("name", "title", "source", "needs", "duration")
        listed = [{key: getattr(entry, key) for key in keys} for entry in experiment.EXPERIMENTS]
        print_json({"experiments": listed})
        return
    for entry in experiment.EXPERIMENTS:
        say(f"{entry.name}\n    {entry.title}\n    source: {entry.source}")
        say(f"    needs: {entry.needs or 'nothing more'}\n    takes: {entry.duration}")


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="An experiment of `list`, or all.")],
    out: Annotated[Path, typer.Option(help="Folder for tables, numbers and pictures.")],
    full: Annotated[
        bool, typer.Option("--full", help="At the paper's own scale, which may take days.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run an experiment; claims that do not hold are a finding, not an error.

    An interrupted run resumes when the command is repeated with the same folder.
    """
    wanted = experiment.EXPERIMENTS if name == "all" else (experiment.experiment_named(name),)
    # Checked before hours of work: the folder can be created and pictures can be drawn.
    from reproduction.figures import write_outcome

    make_folder(out)
    answers: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for chosen in wanted:
        try:
            # Each scale keeps its training runs in a folder of its own.
            runs = out / "runs" / chosen.name / ("full" if full else "default")
            with progress_bar(chosen.name) as progress:
                outcome = chosen.run(Setting(full=full, folder=runs, progress=progress))
            files = write_outcome(outcome, out)
        except (MissingExtraError, StorageError) as error:
            if len(wanted) == 1:
                raise
            left_out[chosen.name] = getattr(error, "strerror", None) or str(error)
            typer.echo(f"{chosen.name} is left out: {left_out[chosen.name]}", err=True)
            continue
        except KeyboardInterrupt:
            again = f"the same command resumes {chosen.name}"
            typer.echo(f"interrupted; every file in {out} is complete, and {again}", err=True)
            raise typer.Exit(INTERRUPTED) from None
        if not json:
            say(_prose(outcome))
            say(f"  written to {out}: {', '.join(files)}\n")
        document = outcome.to_json()
        del document["rows"]
        answers.append(document | {"files": files})
    if json:
        print_json({"outcomes": answers, "left_out": left_out})
    if left_out:
        raise typer.Exit(REFUSED)


@app.command()
def gallery(
    folder: Annotated[Path, typer.Argument(help="Where results are kept; they are not run again.")],
) -> None:
    """Run all experiments at their default scale and write the page docs/gallery.md."""
    from reproduction.gallery import write_gallery

    write_gallery(folder, say)


@app.command(name="property")
def infer_property(
    folder: Annotated[Path, typer.Argument(help="Where finished runs are kept; it resumes.")],
    n_runs: Annotated[int, typer.Option(help="Models of each world.")] = 250,
    n_shadows: Annotated[int, typer.Option(help="Of them, the attacker's.")] = 50,
) -> None:
    """Guess from models of digits how common a digit was among their records (minutes)."""
    from reproduction import property as digits_property

    for epsilon in digits_property.EPSILONS:
        with progress_bar(f"epsilon {epsilon:g}") as progress:
            audit = digits_property.audit(
                epsilon,
                folder / f"epsilon-{epsilon:g}",
                n_runs=n_runs,
                n_shadows=n_shadows,
                progress=progress,
            )
        say(f"epsilon {epsilon:g} at order 4: {audit}")


@app.command()
def cifar(
    results: Annotated[Path, typer.Argument(help="Folder of the results, one file per run.")],
    scratch: Annotated[Path, typer.Option(help="Folder for checkpoints of unfinished runs.")],
    part: Annotated[
        str, typer.Option(help="ladder-1024, attack, ladder-512, layers, batches or anchor.")
    ] = "all",
) -> None:
    """Train on CIFAR-10 what has no result yet: hours, of which nothing is lost when interrupted.

    PUFFERSLICE_DATA must have CIFAR-10. The same command resumes.
    """
    from reproduction.cifar import planned_runs, train_all

    runs = planned_runs(part)
    try:
        train_all(runs, results, scratch, say)
    except KeyboardInterrupt:
        typer.echo("interrupted; the same command resumes", err=True)
        raise typer.Exit(INTERRUPTED) from None


@app.command(name="cifar-page")
def cifar_page(
    results: Annotated[Path, typer.Argument(help="Folder of the results, complete or not.")],
) -> None:
    """Write the page docs/cifar.md from the CIFAR-10 runs that have finished."""
    from reproduction.cifar_page import write_page

    write_page(results, say)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors go to standard error."""
    try:
        app(args=None if arguments is None else list(arguments))
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except StorageError as error:
        typer.echo(f"error: {error.strerror or error}", err=True)
        return WRONG_USE if error.errno == errno.ENOENT else REFUSED
    except PuffersliceError as error:
        typer.echo(f"error: {error}", err=True)
        return WRONG_USE if isinstance(error, ArgumentError) else REFUSED
    return 0


def _prose(outcome: Outcome) -> str:
    parts = [outcome.verdict, f"  {outcome.scale}", *_lines(outcome.claims)]
    if outcome.our_claims:
        parts += ["  About our own mechanisms, which are not in the paper:"]
        parts += _lines(outcome.our_claims)
    return "\n".join(parts)


def _lines(claims: Sequence[Claim]) -> list[str]:
    return [f"  {line}" for claim in claims for line in str(claim).splitlines()]


if __name__ == "__main__":
    sys.exit(main())
