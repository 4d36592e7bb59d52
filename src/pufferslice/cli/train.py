# SPDX-License-Identifier: Apache-2.0
"""`pufferslice train`: a model, its certificate and its logs from a training file."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pufferslice.cli.output import INTERRUPTED, Json, answer


def train(
    training: Annotated[Path, typer.Argument(help="A training.toml.")],
    out: Annotated[
        Path | None, typer.Option(help="Write here instead of the folder in the file.")
    ] = None,
    json: Json = False,
) -> None:
    """Train a model from a training.toml, or resume an interrupted run."""
    import attrs

    from pufferslice.config import read_training

    request = read_training(training)
    # Loaded only for a file that can be read: it takes seconds.
    from pufferslice.torch.train import run_training

    if out is not None:
        request = attrs.evolve(request, output=attrs.evolve(request.output, folder=out))
    try:
        # On a terminal the progress bar begins with the ratio.
        is_said = json or sys.stderr.isatty()
        announce = None if is_said else lambda ratio: typer.echo(str(ratio), err=True)
        trained = run_training(request, announce=announce)
    except KeyboardInterrupt as stopped:
        typer.echo(str(stopped) or "interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
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
