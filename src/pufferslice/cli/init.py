# SPDX-License-Identifier: Apache-2.0
"""`pufferslice init`: commented files to start from."""

from pathlib import Path
from typing import Annotated, Final

import typer

from pufferslice.cli.output import Json, answer

BUDGET: Final = "budget"
"""Template of several files."""


def init(
    folder: Annotated[Path, typer.Argument(help="Where the files are written.")],
    template: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A short scenario.toml: prevalence, volume, supplier, occupancy or attribute; or "
            "budget, a budget.toml with its parts.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write a commented scenario.toml and training.toml that run as they are, on embedded data."""
    from pufferslice._core.checks import check_one_of
    from pufferslice._core.files import OPEN, make_folder, write_all_new
    from pufferslice.config.document import template as every_key
    from pufferslice.config.scenario import ScenarioFile
    from pufferslice.config.starters import STARTERS, budget_files
    from pufferslice.config.training import TrainingFile

    scenario, training = folder / "scenario.toml", folder / "training.toml"
    if template is None:
        texts = {scenario: every_key(ScenarioFile), training: every_key(TrainingFile)}
    elif template == BUDGET:
        texts = {folder / name: text for name, text in budget_files().items()}
    else:
        check_one_of((*STARTERS, BUDGET), template=template)
        texts = {scenario: STARTERS[template].text()}
    make_folder(folder)
    write_all_new([(path, text.encode(), OPEN) for path, text in texts.items()])
    lines = [
        f"Written: {', '.join(map(str, texts))}",
        f"Next: pufferslice calibrate {next(iter(texts))} --out certificate.json",
    ]
    if training in texts:
        lines.append(f"  or: pufferslice train {training}")
    answer({"written": [str(path) for path in texts]}, "\n".join(lines), json=json)
