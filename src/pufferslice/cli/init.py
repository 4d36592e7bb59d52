# SPDX-License-Identifier: Apache-2.0
"""`pufferslice init`: a commented scenario.toml and training.toml to start from."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from pufferslice.cli.output import print_json, say

_TEMPLATES = ("scenario.toml", "training.toml")


def init(
    folder: Annotated[Path, typer.Argument(help="Where the two files are written.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a commented scenario.toml and training.toml that run as they are, on embedded data."""
    from pufferslice._core.files import check_new, make_folder, write_new

    make_folder(folder)
    scenario, training = paths = [folder / name for name in _TEMPLATES]
    for path in paths:
        check_new(path)
    for path in paths:
        write_new(path, files("pufferslice.cli").joinpath(path.name).read_bytes())
    if json:
        print_json({"written": [str(path) for path in paths]})
        return
    say(
        f"Written: {scenario}, {training}\n"
        f"Next: pufferslice calibrate {scenario} --out certificate.json\n"
        f"  or: pufferslice train {training}"
    )
