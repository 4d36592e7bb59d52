# SPDX-License-Identifier: Apache-2.0
"""The part of a page about one protected release: what the public statement says of it."""

from collections.abc import Mapping
from typing import Any, Final

from pufferslice.calibration.epsilon_delta import View, best_views
from pufferslice.calibration.guarantee import (
    ApproximateGuarantee,
    Claim,
    Guarantee,
    at_most,
    in_full,
)
from pufferslice.certificate import Certificate
from pufferslice.certificate.what_if import mean_absolute_error
from pufferslice.certificate.wording import clipping_sentence, limit_sentences
from pufferslice.queries.ranges import range_words
from pufferslice.releases.release import INTERVAL_STDS, Release
from pufferslice.report.blocks import (
    Block,
    Bullets,
    Card,
    Formula,
    Section,
    Table,
    Text,
    counted,
    label,
    listed,
    number,
    pair_of,
)
from pufferslice.report.guessing import about_release, is_bounded, right_guesses_of

_SOURCES: Final = {
    "released_data": "made from the released data itself",
    "held_out": "made from held-out data",
    "public_model": "a public model",
}
_NOTIONS: Final = {
    "average": "the mean over the slices of the Rényi divergence",
    "joint": "the log-moment over the slices of the Rényi divergence",
    "unsliced": "the Rényi divergence of the whole output",
}


def secret_name(statement: Mapping[str, Any]) -> str:
    """What the secret is called."""
    secret = statement["scenario"]["secret"]
    return " and ".join(map(label, secret.get("columns") or [str(secret["worlds"])]))


def lead(certificate: Certificate) -> str:
    """The first sentence of the page."""
    statement = certificate.statement
    scenario, name = statement["scenario"], secret_name(statement)
    n_names, n_secrets = len(scenario["query"]["names"]), len(scenario["secrets"])
    what = "one number is" if n_names == 1 else f"{n_names} numbers are"
    if statement["distributions_are_equal"]:
        return (
            f"In one release {what} published, without noise: for every protected pair and covered "
            f"belief they have the same distribution, whichever of the two the secret “{name}” is."
        )
    start = f"In one release {what} published, with noise."
    if statement["unsliced"]["epsilon"] is None:
        return (
            f"{start} The noise limits what single slices show of the secret “{name}”; for a "
            "reader of the whole release nothing is promised."
        )
    if not _protects_all(scenario):
        return (
            f"{start} The noise limits how well a reader can tell apart the values of the secret "
            f"“{name}” that form a protected pair; other values it may give away."
        )
    return (
        f"{start} The noise limits how well a reader can tell which of {n_secrets} values the "
        f"secret “{name}” has."
    )


def _protects_all(scenario: Mapping[str, Any]) -> bool:
    """Whether every two secrets are a protected pair; each pair is listed once."""
    n_secrets = len(scenario["secrets"])
    return len(scenario["pairs"]) == n_secrets * (n_secrets - 1) // 2


def _pair_words(scenario: Mapping[str, Any]) -> str:
    pairs = [pair_of(pair) for pair in scenario["pairs"]]
    if len(scenario["secrets"]) == 2:
        return "The two are not to be told apart."
    if _protects_all(scenario):
        return f"No two of them are to be told apart: {counted(len(pairs), 'pair')}."
    return f"Not to be told apart: {listed(pairs)}. No other pair is protected."


def cards(certificate: Certificate, variation: float) -> tuple[Card, ...]:
    """What is protected, from whom, and how much noise that takes."""
    statement = certificate.statement
    scenario, noise = statement["scenario"], statement["noise"]
    names, n_more = scenario["query"]["names"], len(scenario["priors"]) - 3
    whole = statement["unsliced"]["epsilon"] is not None
    stds = [
        f"{label(name)}: std {number(std)}"
        for name, std in zip(names, noise["std_by_coordinate"], strict=True)
    ]
    return (
        Card(
            title="What is protected",
            strong=f"“{secret_name(statement)}”, {len(scenario['secrets'])} values",
            lines=(
                listed([label(secret) for secret in scenario["secrets"]]) + ".",
                _pair_words(scenario),
                f"One release is {scenario['one_release_is']}.",
            ),
        ),
        Card(
            title="From whom",
            strong="Anyone who sees the release, with any computer"
            if whole
            else "Anyone who looks along one slice alone",
            lines=(
                "They may know the mechanism and every setting, but not the noise that was drawn.",
                *(f"Belief covered: {_belief(prior)}." for prior in scenario["priors"][:3]),
                *([f"{n_more} more are covered, listed below."] if n_more > 0 else []),
                "Beliefs that are not listed are not covered.",
            ),
        ),
        Card(
            title="How much noise",
            strong=_noise_words(noise["std"]),
            lines=(*stds[:3], *_more(len(stds) - 3), about_release(variation)),
        ),
    )


def _belief(prior: Mapping[str, Any]) -> str:
    return f"{label(prior['name'])} ({_SOURCES.get(prior['source'], prior['source'])})"


def _noise_words(std: float) -> str:
    if not std:
        return "None: the distributions are equal"
    return f"Standard deviation {number(std)}, in scaled units"


def _more(n_left: int) -> tuple[str, ...]:
    return (f"and {counted(n_left, 'more coordinate')}, below.",) if n_left > 0 else ()


def alarms(certificate: Certificate) -> tuple[str, ...]:
    """What a reader must not overlook."""
    insecure = "INSECURE: the noise comes from a seeded test generator. Never publish this."
    clipping = clipping_sentence(certificate.statement["scenario"])
    return (*(() if certificate.is_secure else (insecure,)), *((clipping,) if clipping else ()))


def claim_section(certificate: Certificate, variation: float, part: str) -> Section:
    """The claim in symbols and words, and the unsliced number beside it."""
    statement, claim = certificate.statement, certificate.guarantee
    confidence = statement["failure_probability"]
    sure = "with certainty" if not confidence else f"except with probability {in_full(confidence)}"
    unsliced = statement["unsliced"]
    whole = (
        f"No finite bound is known for the whole output ({unsliced['from']})."
        if unsliced["epsilon"] is None
        else f"For the whole output, which is what a reader sees, the same noise costs at most "
        f"{at_most(unsliced['epsilon'])} at order {in_full(unsliced['order'])} (from "
        f"{unsliced['from']}). Only this number is a statement about the released bits"
        f"{_drawn(statement['noise']['implementation_delta'])}."
    )
    words = (f"{_meaning(claim)}, {sure}{_along(statement['profile'], claim)}.", whole)
    blocks: list[Block] = [Text(paragraphs=(*words, *_among_all(statement, variation)))]
    if isinstance(claim, Guarantee):
        notion, order, epsilon = claim.notion, in_full(claim.order), in_full(claim.epsilon)
        blocks.insert(0, Formula(notion=notion, order=order, epsilon=epsilon))
    if statement["views"]:
        blocks.append(_views(statement["views"]))
    return Section(id=f"{part}-claim", title=f"The claim: {claim}", blocks=tuple(blocks))


def _drawn(implementation_delta: float) -> str:
    """What the sampler adds to the ideal noise that costs are about."""
    if not implementation_delta:
        return ""
    error = at_most(implementation_delta)
    return f", up to the sampler's own error of at most {error} in total variation"


def _among_all(statement: Mapping[str, Any], variation: float) -> tuple[str, ...]:
    """Guessing among all secrets, if every pair of them is protected."""
    n_secrets = len(statement["scenario"]["secrets"])
    if not is_bounded(variation) or n_secrets < 3 or not _protects_all(statement["scenario"]):
        return ()
    said = (
        f"If all {n_secrets} secrets are equally likely beforehand, the right one is guessed at "
        f"most {right_guesses_of(variation, n_secrets)} of the time; without the release "
        f"{100 / n_secrets:.3g}\u00a0%."
    )
    return (said,)


def _meaning(claim: Claim) -> str:
    epsilon = in_full(claim.epsilon)
    if isinstance(claim, ApproximateGuarantee):
        return (
            f"Between the outputs under the two secrets of any protected pair, sliced (ε, δ) with "
            f"ε = {epsilon} and δ = {in_full(claim.delta)}, {claim.notion} over the slices, holds"
        )
    return (
        f"Between the outputs under the two secrets of any protected pair, "
        f"{_NOTIONS[claim.notion]} of order {in_full(claim.order)} is at most ε = {epsilon}"
    )


def _along(profile: Mapping[str, Any], claim: Claim) -> str:
    if not claim.is_sliced:
        return ""
    where = counted(profile["dim"], "dimension")
    if profile["kind"] == "sphere":
        drawn = counted(profile["n_directions"], "direction")
        return f", along the whole sphere of {where}, known by {drawn} drawn from it"
    return f", along {counted(profile['n_directions'], 'fixed slice')} of {where}"


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
                f"{_SOURCES.get(prior['source'], prior['source'])}: {prior['origin']}",
            )
            for prior in statement["scenario"]["priors"]
        ),
    )
    blocks: list[Block] = [priors, Bullets(items=limit_sentences(statement))]
    if not _protects_all(statement["scenario"]):
        pairs = "; ".join(pair_of(pair) for pair in statement["scenario"]["pairs"])
        blocks.append(Text(paragraphs=(f"Protected pairs, and no others: {pairs}.",)))
    if statement["earlier_releases"]:
        named = ", ".join(digest[:12] for digest in statement["earlier_releases"])
        blocks.append(
            Text(paragraphs=(f"Earlier releases, not covered jointly with this one: {named}.",))
        )
    if unchecked:
        blocks += [
            Text(paragraphs=("What the evidence cannot decide:",)),
            Bullets(items=unchecked),
        ]
    return Section(id=f"{part}-limits", title="Assumptions and limits", blocks=tuple(blocks))
