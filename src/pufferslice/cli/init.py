# SPDX-License-Identifier: Apache-2.0
"""`pufferslice init`: a commented scenario.toml to start from."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from pufferslice.cli.output import print_json
from pufferslice.errors import StorageError


def init(
    folder: Annotated[Path, typer.Argument(help="Where scenario.toml is written.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a commented scenario.toml that runs as it is, on the embedded Adult table."""
    from pufferslice.storage import write_new

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"cannot make the folder {str(folder)!r}: {error.strerror}"
        raise StorageError(msg) from error
    template = files("pufferslice.cli").joinpath("scenario.toml").read_bytes()
    path = folder / "scenario.toml"
    write_new(path, template)
    if json:
        print_json({"written": [str(path)]})
        return
    typer.echo(f"Written: {path}\nNext: pufferslice calibrate {path} --out certificate.json")
