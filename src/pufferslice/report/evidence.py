# SPDX-License-Identifier: Apache-2.0
"""Sections of the internal edition: what the evidence shows."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from pufferslice.calibration.guarantee import at_most, in_full
from pufferslice.certificate import Certificate
from pufferslice.certificate.what_if import PairCost, SliceProfile, SweepPoint, pair_costs
from pufferslice.report.blocks import (
    Figure,
    Outlook,
    Section,
    Table,
    Words,
    bar_shares,
    counted,
    label,
    number,
    pair_of,
)
from pufferslice.report.guessing import (
    about_release,
    guess_axes,
    guess_line,
    is_bounded,
    percent,
    right_guesses_of,
)
from pufferslice.report.svg import Axes, Ring, Series, line_chart, marks, polar_chart

_Plot = tuple[str, Sequence[Series], Axes, Callable[[float | None], str]]

_EPSILON: Final = "ε of the claim (nats)"
_MOST_PAIRS: Final = 30
_MOST_RAYS: Final = 400
_MOST_COORDINATES: Final = 12


def outlook_section(
    certificate: Certificate, prospects: Sequence[SweepPoint], part: str
) -> Section:
    """The slider, and noise, error and guessing against epsilon."""
    epsilons = tuple(row.claim.epsilon for row in prospects)
    series = _noise_series(certificate, prospects)
    errors = [_squared(one) for one in series]
    variations = [row.total_variation for row in prospects]
    plots: list[_Plot] = [
        ("Noise against ε", series, _log_axes("noise std (scaled units)"), number),
        ("Error against ε", errors, _log_axes("squared error (scaled units²)"), number),
    ]
    if any(map(is_bounded, variations)):
        line = guess_line(epsilons, variations)
        plots.append(("Guessing against ε", [line], guess_axes(_EPSILON), percent))
    figures, places = [], []
    for index, (title, lines, axes, show) in enumerate(plots):
        figures.append(
            Figure(
                title=title,
                svg=line_chart(title, lines, axes, marker=f"{part}-marker-{index}"),
                legend=tuple((one.look, one.name) for one in lines),
                table=curve_table(title, lines, show),
            )
        )
        places.append(marks(lines, axes))
    choices = tuple(
        _choice(certificate, row, [place[i] for place in places]) for i, row in enumerate(prospects)
    )
    block = Outlook(
        id=f"{part}-outlook",
        start=epsilons.index(certificate.guarantee.epsilon),
        choices=choices,
        numbers=_numbers(prospects),
        coordinates=tuple(
            map(label, certificate.statement["scenario"]["query"]["names"][:_MOST_COORDINATES])
        ),
        figures=tuple(figures),
    )
    return Section(id=f"{part}-epsilon", title="If ε were different", blocks=(block,))


def _numbers(prospects: Sequence[SweepPoint]) -> tuple[tuple[str, str], ...]:
    """Name and label of the large numbers; what no epsilon has is left out."""
    order = in_full(prospects[0].unsliced_order)
    kept = {
        ("noise", "noise std (scaled)"): True,
        ("error", "error on average (scaled)"): True,
        ("guess", "right guesses of two, at most"): any(
            is_bounded(row.total_variation) for row in prospects
        ),
        ("unsliced", f"unsliced ε at order {order}, at most"): any(
            row.unsliced_epsilon is not None for row in prospects
        ),
    }
    return tuple(named for named, keep in kept.items() if keep)


def _log_axes(y_label: str) -> Axes:
    return Axes(x_label=_EPSILON, y_label=y_label, log_x=True, log_y=True)


def _noise_series(certificate: Certificate, prospects: Sequence[SweepPoint]) -> list[Series]:
    """The certificate's own rule first, on which the markers stand; then the other one."""
    epsilons = tuple(row.claim.epsilon for row in prospects)
    own = tuple(row.noise_std for row in prospects)
    tight = tuple(row.tight_std for row in prospects)
    closed = tuple(row.closed_form_std for row in prospects)
    if not certificate.guarantee.is_sliced:
        return [Series(name="bound on the whole output", look="first", xs=epsilons, ys=own)]
    lines = [("tight rule", tight), ("paper's closed form", closed)]
    if certificate.statement["method"]["rule"] == "closed_form":
        lines.reverse()
    (first, values), (second, others) = lines
    series = [
        Series(name=f"{first} (this certificate)", look="first", xs=epsilons, ys=values),
        Series(name=second, look="second", xs=epsilons, ys=others),
    ]
    return [one for one in series if one.points]


def _squared(one: Series) -> Series:
    ys = tuple(None if y is None else y**2 for y in one.ys)
    return Series(name=one.name, look=one.look, xs=one.xs, ys=ys)


def curve_table(
    caption: str, series: Sequence[Series], show: Callable[[float | None], str] = number
) -> Table:
    """The numbers behind lines that share their epsilons."""
    rows = [(at_most(x), *(show(one.ys[i]) for one in series)) for i, x in enumerate(series[0].xs)]
    return Table(caption=caption, head=("ε", *(one.name for one in series)), rows=tuple(rows))


def _choice(certificate: Certificate, row: SweepPoint, places: Sequence[Any]) -> Mapping[str, Any]:
    scales = certificate.statement["scenario"]["query"]["scales"]
    std = row.noise_std
    return {
        "epsilon": in_full(row.claim.epsilon),
        "noise": number(std),
        "error": number(row.mean_absolute_error),
        "guess": right_guesses_of(row.total_variation, 2),
        "unsliced": "none" if row.unsliced_epsilon is None else at_most(row.unsliced_epsilon),
        "sentence": sentence(certificate, row),
        "stds": [
            "none" if std is None else number(std * scale) for scale in scales[:_MOST_COORDINATES]
        ],
        "marks": [[place.x, place.y] for place in places],
    }


def sentence(certificate: Certificate, row: SweepPoint) -> str:
    """The claim at one epsilon in plain words."""
    epsilon = in_full(row.claim.epsilon)
    if row.noise_std is None or row.mean_absolute_error is None:
        return f"At ε = {epsilon} no noise can be calibrated for this claim."
    name = label(certificate.statement["scenario"]["query"]["names"][0])
    scale = certificate.statement["scenario"]["query"]["scales"][0]
    off = number(row.mean_absolute_error * scale)
    start = f"At ε = {epsilon} the released {name} is off by {off} on average."
    return f"{start} {about_release(row.total_variation)}"


def slices_section(profile: SliceProfile, claim_epsilon: float | None, part: str) -> Section:
    """The polar slice profile of the pair that costs most."""
    costs, angles, note = _rays(profile)
    rings = [Ring("average over the slices", "second", profile.average)]
    rings.append(Ring("joint over the slices", "third", profile.joint))
    if claim_epsilon is not None:
        rings.append(Ring("the claim's ε", "claim", claim_epsilon))
    title = f"Cost along each slice, {pair_of(profile.pair)}"
    listed = sorted(costs, reverse=True)
    figure = Figure(
        title=title,
        svg=polar_chart(title, angles, costs, rings),
        legend=(
            ("first", "one slice each: length is its cost (nats)"),
            *((ring.look, f"{ring.name}: {number(ring.value)}") for ring in rings),
        ),
        table=Table(
            caption="Cost along the drawn slices, largest first",
            head=("rank", f"Rényi bound of order {in_full(profile.order)} (nats)"),
            rows=tuple((str(i + 1), number(cost)) for i, cost in enumerate(listed)),
        ),
        note=note,
    )
    blocks = (Words("slices", {"slices_prior": label(profile.prior)}), figure)
    return Section(id=f"{part}-slices", title="Slice profile", blocks=blocks)


def _rays(profile: SliceProfile) -> tuple[list[float], list[float], str]:
    """Costs and angles to draw; a query of two coordinates has true directions."""
    if profile.angles is not None and len(profile.costs) <= _MOST_RAYS:
        both = [*profile.angles.tolist(), *(profile.angles + math.pi).tolist()]
        note = "The angle is that of the direction in the plane of the two coordinates."
        return [*profile.costs.tolist(), *profile.costs.tolist()], both, note
    ordered = np.sort(profile.costs)
    if len(ordered) > _MOST_RAYS:
        ordered = ordered[np.linspace(0, len(ordered) - 1, _MOST_RAYS).round().astype(int)]
    angles = [2 * math.pi * i / len(ordered) + math.pi / 2 for i in range(len(ordered))]
    note = "Slices are ordered by cost, anticlockwise from the top; the angle has no other meaning."
    if len(ordered) < len(profile.costs):
        note += f" Drawn are {len(ordered)} of {len(profile.costs)}."
    return ordered.tolist(), angles, note


def pairs_section(certificate: Certificate, part: str) -> Section:
    """Pairs ranked by how hard they are to protect."""
    found = pair_costs(certificate)
    shown = found[:_MOST_PAIRS]
    several = len({row.prior for row in found}) > 1
    sliced = found[0].sliced_cost is not None
    head = ["pair"] + (["prior"] if several else []) + (["sliced cost"] if sliced else [])
    head += ["unsliced cost, at most", "largest gap (scaled)"]
    rows = []
    for row in shown:
        cells = [pair_of(row.pair)] + ([label(row.prior)] if several else [])
        cells += [number(row.sliced_cost)] if sliced else []
        cells += [
            "none" if row.unsliced_cost is None else at_most(row.unsliced_cost),
            number(row.largest_gap),
        ]
        rows.append(tuple(cells))
    left = len(found) - len(shown)
    table = Table(
        caption="Hardest first, at the certificate's noise",
        head=tuple(head),
        rows=tuple(rows),
        bars=bar_shares([_weight(row) for row in shown]),
        bar_name="share of the hardest",
        note=f"Left out, as they are easier: {counted(left, 'pair')}." if left else "",
    )
    return Section(
        id=f"{part}-pairs", title="Pairs, by how hard they are to protect", blocks=(table,)
    )


def _weight(row: PairCost) -> float:
    for value in (row.sliced_cost, row.unsliced_cost, row.largest_gap):
        if value is not None:
            return value
    return 0.0
