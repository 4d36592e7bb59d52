# SPDX-License-Identifier: Apache-2.0
"""`pufferslice init`: a commented scenario.toml and training.toml to start from."""

from pathlib import Path
from typing import Annotated

import typer

from pufferslice.cli.output import Json, answer


def init(
    folder: Annotated[Path, typer.Argument(help="Where the two files are written.")],
    json: Json = False,
) -> None:
    """Write a commented scenario.toml and training.toml that run as they are, on embedded data."""
    from pufferslice._core.files import check_new, make_folder, write_new
    from pufferslice.config import ScenarioFile, TrainingFile, template

    make_folder(folder)
    scenario, training = folder / "scenario.toml", folder / "training.toml"
    for path in (scenario, training):
        check_new(path)
    write_new(scenario, template(ScenarioFile).encode())
    write_new(training, template(TrainingFile).encode())
    answer(
        {"written": [str(scenario), str(training)]},
        f"Written: {scenario}, {training}\n"
        f"Next: pufferslice calibrate {scenario} --out certificate.json\n"
        f"  or: pufferslice train {training}",
        json=json,
    )
