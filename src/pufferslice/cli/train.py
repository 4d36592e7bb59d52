# SPDX-License-Identifier: Apache-2.0
"""`pufferslice train`: a model, its certificate and its logs from a training file."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pufferslice._core.text import listed
from pufferslice.cli.output import INTERRUPTED, TERMINATED, Json, answer
from pufferslice.errors import ArgumentError

if TYPE_CHECKING:
    from pufferslice.certificate.certificate import BudgetPlan


def train(
    training: Annotated[Path, typer.Argument(help="A training.toml.")],
    out: Annotated[
        Path | None, typer.Option(help="Write here instead of the folder in the file.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="Under a budget: its certificate, beside its evidence.")
    ] = None,
    part: Annotated[str | None, typer.Option(help="Under a budget: the training part.")] = None,
    ledger: Annotated[
        str | None, typer.Option(help="Under a budget: the ledger that charges the part.")
    ] = None,
    spent_marks: Annotated[
        Path | None,
        typer.Option(help="Folder for the spent mark; without it, that of the certificate."),
    ] = None,
    json: Json = False,
) -> None:
    """Train a model from a training.toml, or resume an interrupted run."""
    import attrs

    from pufferslice.config import read_training

    request = read_training(training, _plan_of(certificate, part, ledger, spent_marks))
    # Loaded only for a file that can be read: it takes seconds.
    from pufferslice.torch.train import Terminated, run_training

    if out is not None:
        request = attrs.evolve(request, output=attrs.evolve(request.output, folder=out))
    if request.named_code:
        typer.echo(
            f"{training} names code, which runs now with your rights: "
            f"{', '.join(request.named_code)}; modules are looked for in "
            f"{str(request.source_folder.resolve())!r} first",
            err=True,
        )
    try:
        # On a terminal the progress bar begins with the ratio.
        is_said = json or sys.stderr.isatty()
        announce = None if is_said else lambda ratio: typer.echo(str(ratio), err=True)
        trained = run_training(request, announce=announce, ledger=ledger, spent_marks=spent_marks)
    except KeyboardInterrupt as stopped:
        typer.echo(str(stopped) or "interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Terminated as stopped:
        typer.echo(str(stopped), err=True)
        raise typer.Exit(TERMINATED) from None
    value = {
        "folder": str(trained.folder),
        "n_steps": trained.n_steps,
        "guarantee": trained.certificate.guarantee.to_json(),
        "metrics": dict(trained.metrics),
        "certificate": trained.certificate.digest,
    }
    lines = [str(trained.certificate), "", f"{trained.n_steps} steps taken."]
    if "held_out_accuracy" in trained.metrics:
        share = trained.metrics["held_out_accuracy"]
        lines.append(f"Accuracy on the held-out records, declared public: {share:.1%}")
    lines += [
        f"To publish, in {trained.folder}: model.pt, certificate.json, public.jsonl.",
        "Not covered by the guarantee: internal.jsonl, checkpoint.pt, run.json, run.ledger.",
    ]
    answer(value, "\n".join(lines), json=json)


def _plan_of(
    certificate: Path | None, part: str | None, ledger: str | None, spent_marks: Path | None
) -> "BudgetPlan | None":
    """Return the plan of a part of a budget; None for a run with a claim of its own."""
    from pufferslice.certificate import Certificate

    if certificate is None:
        options = {"--part": part, "--ledger": ledger, "--spent-marks": spent_marks}
        if unfit := [name for name, value in options.items() if value is not None]:
            raise ArgumentError(
                f"{listed(unfit)} is for a part of a budget; name its certificate with "
                "--certificate, or leave it out"
            )
        return None
    held = Certificate.load(certificate)
    runs = [run.name for run in held.budget.runs]
    if part is None and len(runs) == 1:
        (part,) = runs
    if part is None or ledger is None:
        raise ArgumentError(
            f"--part and --ledger are required to train under a budget; its training parts are "
            f"{listed(runs) or 'none'}"
        )
    return held.plan(part)
