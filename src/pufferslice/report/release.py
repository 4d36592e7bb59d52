# SPDX-License-Identifier: Apache-2.0
"""The part of a page about one protected release: what the public statement says of it."""

from collections.abc import Mapping
from typing import Any

from pufferslice.calibration.epsilon_delta import View, best_views
from pufferslice.calibration.guarantee import Guarantee, at_most, in_full
from pufferslice.certificate import Certificate
from pufferslice.certificate.what_if import mean_absolute_error
from pufferslice.certificate.wording import clipping_sentence, limit_sentences
from pufferslice.queries.ranges import range_words
from pufferslice.releases.release import INTERVAL_STDS, Release
from pufferslice.report.blocks import (
    Block,
    Bullets,
    Formula,
    Section,
    Table,
    Words,
    label,
    listed,
    number,
    pair_of,
)
from pufferslice.report.guessing import about_release, is_bounded, right_guesses_of


def secret_name(statement: Mapping[str, Any]) -> str:
    """What the secret is called."""
    secret = statement["scenario"]["secret"]
    return " and ".join(map(label, secret.get("columns") or [str(secret["worlds"])]))


def facts(certificate: Certificate, variation: float) -> dict[str, Any]:
    """What the words of the template fill in."""
    statement, claim = certificate.statement, certificate.guarantee
    scenario, noise, unsliced = statement["scenario"], statement["noise"], statement["unsliced"]
    names, n_secrets = scenario["query"]["names"], len(scenario["secrets"])
    whole, all_pairs = unsliced["epsilon"] is not None, _protects_all(scenario)
    among_all = is_bounded(variation) and n_secrets > 2 and all_pairs
    failure_probability = statement["failure_probability"]
    sampler_error = noise["implementation_delta"]
    return {
        "secret": secret_name(statement),
        "secrets": listed([label(secret) for secret in scenario["secrets"]]),
        "n_secrets": n_secrets,
        "n_names": len(names),
        "pairs": [pair_of(pair) for pair in scenario["pairs"]],
        "all_pairs": all_pairs,
        "one_release_is": scenario["one_release_is"],
        "priors": [
            {"name": label(prior["name"]), "source": prior["source"]}
            for prior in scenario["priors"]
        ],
        "equal": statement["distributions_are_equal"],
        "noise_std": number(noise["std"]) if noise["std"] else "",
        "stds": [
            (label(name), number(std))
            for name, std in zip(names, noise["std_by_coordinate"], strict=True)
        ],
        "sampler_error": at_most(sampler_error) if sampler_error else "",
        "notion": claim.notion,
        "sliced": claim.is_sliced,
        "order": in_full(claim.order) if isinstance(claim, Guarantee) else "",
        "epsilon": in_full(claim.epsilon),
        "delta": "" if isinstance(claim, Guarantee) else in_full(claim.delta),
        "failure_probability": in_full(failure_probability) if failure_probability else "",
        "profile": statement["profile"],
        "whole": whole,
        "unsliced_epsilon": at_most(unsliced["epsilon"]) if whole else "",
        "unsliced_order": in_full(unsliced["order"]),
        "unsliced_from": unsliced["from"],
        "guess": about_release(variation),
        "guess_among_all": right_guesses_of(variation, n_secrets) if among_all else "",
        "guess_without_release": f"{100 / n_secrets:.3g}\u00a0%",
        "earlier_releases": [digest[:12] for digest in statement["earlier_releases"]],
    }


def _protects_all(scenario: Mapping[str, Any]) -> bool:
    """Whether every two secrets are a protected pair; each pair is listed once."""
    n_secrets = len(scenario["secrets"])
    return len(scenario["pairs"]) == n_secrets * (n_secrets - 1) // 2


def alarms(certificate: Certificate) -> tuple[str, ...]:
    """What a reader must not overlook."""
    insecure = "INSECURE: the noise comes from a seeded test generator. Never publish this."
    clipping = clipping_sentence(certificate.statement["scenario"])
    return (*(() if certificate.is_secure else (insecure,)), *((clipping,) if clipping else ()))


def claim_section(certificate: Certificate, part: str) -> Section:
    """The claim in symbols and words, and the unsliced number beside it."""
    claim, views = certificate.guarantee, certificate.statement["views"]
    blocks: list[Block] = [Words("claim")]
    if isinstance(claim, Guarantee):
        notion, order, epsilon = claim.notion, in_full(claim.order), in_full(claim.epsilon)
        blocks.insert(0, Formula(notion=notion, order=order, epsilon=epsilon))
    if views:
        blocks.append(_views(views))
    return Section(id=f"{part}-claim", title=f"The claim: {claim}", blocks=tuple(blocks))


def _views(views: list[Mapping[str, Any]]) -> Table:
    best = best_views(View(**view) for view in views)
    return Table(
        caption="The same as (ε, δ); sliced readings are not statements about the whole output",
        head=("scope", "rule", "ε at most", "δ"),
        rows=tuple(
            (
                view["scope"],
                view["rule"].replace("_", " ") + (", the smallest" if View(**view) in best else ""),
                at_most(view["epsilon"]),
                in_full(view["delta"]),
            )
            for view in views
        ),
    )


def accuracy_section(certificate: Certificate, part: str) -> Section:
    """What the noise costs in accuracy, coordinate by coordinate."""
    statement = certificate.statement
    query, stds = statement["scenario"]["query"], statement["noise"]["std_by_coordinate"]
    widths = _widths(query["range"], len(stds))
    head = ["coordinate", "noise std", "error on average", "95 % within"]
    if widths:
        head.append("noise std / public range")
    rows = []
    for i, (name, std) in enumerate(zip(query["names"], stds, strict=True)):
        cells = [label(name), number(std), number(mean_absolute_error(std))]
        cells.append(f"±\u00a0{number(INTERVAL_STDS * std)}")
        if widths:
            cells.append(f"{100 * std / widths[i]:.3g}\u00a0%")
        rows.append(tuple(cells))
    table = Table(
        caption="Error that the noise adds to each released number, in your units",
        head=tuple(head),
        rows=tuple(rows),
    )
    return Section(id=f"{part}-accuracy", title="What it costs in accuracy", blocks=(table,))


def _widths(range_: Mapping[str, Any] | None, dim: int) -> list[float]:
    if range_ is None or range_.get("kind") != "box":
        return []
    widths = [high - low for low, high in zip(range_["low"], range_["high"], strict=True)]
    return widths if len(widths) == dim and min(widths) > 0 else []


def release_section(released: Release, part: str) -> Section:
    """The released numbers."""
    rows = zip(
        released.names, released.values, released.noise_stds, released.intervals, strict=True
    )
    cells: list[tuple[str, ...]] = [
        (label(name), number(float(value)), number(float(std)), f"{number(low)} to {number(high)}")
        for name, value, std, (low, high) in rows
    ]
    head: tuple[str, ...] = ("coordinate", "released", "noise std", "95 % interval")
    if released.range is not None:
        head = (*head[:3], "clipped to", "95 % interval of the clipped query")
        words = range_words(released.range)
        cells = [(*row[:3], of, row[3]) for row, of in zip(cells, words, strict=True)]
    table = Table(
        caption=f"Released numbers; intervals are for {released.interval_is_of}",
        head=head,
        rows=tuple(cells),
    )
    return Section(id=f"{part}-release", title="What was released", blocks=(table,))


def limits_section(certificate: Certificate, part: str, unchecked: tuple[str, ...]) -> Section:
    """Assumptions, limits, and what nobody can check here."""
    statement = certificate.statement
    priors = Table(
        caption="The beliefs that are covered",
        head=("prior", "kind", "where it comes from"),
        rows=tuple(
            (
                label(prior["name"]),
                prior["kind"],
                f"{prior['source'].replace('_', ' ')}: {prior['origin']}",
            )
            for prior in statement["scenario"]["priors"]
        ),
    )
    blocks: list[Block] = [priors, Bullets(items=limit_sentences(statement)), Words("limits")]
    if unchecked:
        blocks += [Words("unchecked"), Bullets(items=unchecked)]
    return Section(id=f"{part}-limits", title="Assumptions and limits", blocks=tuple(blocks))
