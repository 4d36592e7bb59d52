# SPDX-License-Identifier: Apache-2.0
"""`pufferslice spent`: what a noise costs, at any order and under any notion."""

from pathlib import Path
from typing import Annotated

import typer

from pufferslice.cli.output import Json, answer


def spent(
    certificate: Annotated[Path, typer.Argument(help="A certificate with its evidence beside it.")],
    noise_std: Annotated[
        float | None, typer.Option(help="In scaled coordinates; as certified if left out.")
    ] = None,
    order: Annotated[float | None, typer.Option(help="As certified if left out.")] = None,
    notion: Annotated[str | None, typer.Option(help="As certified if left out.")] = None,
    scenario: Annotated[
        Path | None, typer.Option(help="Use the priors of another scenario.toml.")
    ] = None,
    json: Json = False,
) -> None:
    """Compute the epsilon that a noise costs. Issues no certificate."""
    from pufferslice.calibration.guarantee import at_most
    from pufferslice.certificate import Certificate
    from pufferslice.certificate import spent as spent_by
    from pufferslice.certificate.issue import spent_in_full
    from pufferslice.certificate.wording import guess_sentence, unsliced_sentence

    held = Certificate.load(certificate)
    if scenario is not None:
        from pufferslice.certificate.issue import under_scenario
        from pufferslice.config import read_request

        held = under_scenario(held, read_request(scenario).scenario)
    word = None if notion is None else notion.replace("-", "_")
    cost = spent_by(held, noise_std=noise_std, order=order, notion=word)
    std = held.noise_std if noise_std is None else noise_std
    unsliced = spent_in_full(held, noise_std=noise_std, order=order)
    answer(
        {"noise_std": std, **cost.to_json(), **held.statement["method"], "unsliced": unsliced},
        f"Noise {std:.6g} (scaled coordinates) costs at most {at_most(cost.epsilon)}: {cost}\n"
        f"{unsliced_sentence(unsliced)}, from {unsliced['from']}.\n"
        f"{guess_sentence(unsliced['guess'])}",
        json=json,
    )
