# SPDX-License-Identifier: Apache-2.0
"""`pufferslice spent`: what a noise costs, at any order and delta and under any notion."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pufferslice.cli.output import Json, answer, progress_bar

if TYPE_CHECKING:
    from pufferslice.certificate.evidence import Evidence


def spent(
    certificate: Annotated[Path, typer.Argument(help="A certificate with its evidence beside it.")],
    noise_std: Annotated[
        float | None, typer.Option(help="In scaled coordinates; as certified if left out.")
    ] = None,
    order: Annotated[float | None, typer.Option(help="As certified if left out.")] = None,
    delta: Annotated[
        list[float] | None,
        typer.Option(help="The delta of (epsilon, delta); as certified if left out."),
    ] = None,
    notion: Annotated[str | None, typer.Option(help="As certified if left out.")] = None,
    scenario: Annotated[
        Path | None, typer.Option(help="Use the priors of another scenario.toml.")
    ] = None,
    json: Json = False,
) -> None:
    """Compute what a noise costs: epsilon at an order, epsilon at a delta, and right guesses.

    Issues no certificate.
    """
    from pufferslice._core.checks import check_between
    from pufferslice._core.numbers import at_most, in_full
    from pufferslice.certificate import Certificate
    from pufferslice.certificate import spent as spent_by
    from pufferslice.certificate.issue import required_evidence, spent_in_full
    from pufferslice.certificate.wording import guess_sentence, unsliced_sentence

    held = Certificate.load(certificate)
    if scenario is not None:
        from pufferslice.certificate.issue import under_scenario
        from pufferslice.config.scenario import read_request

        other = read_request(scenario, progress_bar).scenario
        with progress_bar("recomputing couplings"):
            held = under_scenario(held, other)
    claim, word = held.guarantee, None if notion is None else notion.replace("-", "_")
    # Claims without an order are read at one below, with the others.
    at = order if claim.has_order or claim.is_sliced else None
    cost = spent_by(held, noise_std=noise_std, order=at, notion=word)
    std = held.noise_std if noise_std is None else noise_std
    unsliced = spent_in_full(held, noise_std=noise_std, order=order)
    deltas = delta or list(held.released.deltas)
    if not delta and "delta" in (numbers := claim.to_json()):
        deltas = [numbers["delta"], *deltas]
    for each in deltas:
        check_between(0, 1, delta=each)
    pairs = _pairs(required_evidence(held), std, deltas)
    stated = held.released.method
    method = stated.to_json() if stated and cost.is_sliced else None
    units = "scaled" if held.shape is None else "whitened"
    lines = [
        f"Noise {std:.6g} ({units} coordinates) costs at most {at_most(cost.bound)}: {cost}",
        f"{unsliced_sentence(unsliced)}, from {unsliced.source}.",
    ]
    lines += [
        f"Unsliced: no finite epsilon at delta {pair['delta']:g}."
        if pair["epsilon"] is None
        else f"Unsliced: ({at_most(pair['epsilon'])}, {in_full(pair['delta'])})."
        for pair in pairs
    ]
    value = {
        "noise_std": std,
        **cost.to_json(),
        **(method or dict.fromkeys(("rule", "envelope"))),
        "unsliced": unsliced.to_json() | {"epsilon_delta": pairs},
    }
    answer(value, "\n".join([*lines, guess_sentence(unsliced.guess)]), json=json)


def _pairs(evidence: "Evidence", noise_std: float, deltas: list[float]) -> list[dict[str, Any]]:
    """Pair each delta with the whole output's epsilon; None where nothing bounds it."""
    from pufferslice.claims import EpsilonDelta

    pairs: list[dict[str, Any]] = []
    for delta in dict.fromkeys(deltas):
        epsilon = EpsilonDelta(epsilon=1.0, delta=delta).cost(evidence.full, noise_std)
        pairs.append({"epsilon": epsilon if math.isfinite(epsilon) else None, "delta": delta})
    return pairs
