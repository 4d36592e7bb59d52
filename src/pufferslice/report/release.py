# SPDX-License-Identifier: Apache-2.0
"""The numbers of a page about one protected release."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.threads import Progress
from pufferslice.audit import Audit, Inference
from pufferslice.baselines import comparison
from pufferslice.calibration.epsilon_delta import View, best_views
from pufferslice.calibration.guessing import right_guesses
from pufferslice.certificate import Certificate
from pufferslice.certificate.what_if import (
    PairCost,
    SliceProfile,
    SweepPoint,
    epsilons_around,
    pair_costs,
    slice_profile,
    stated_variation,
    what_if,
)
from pufferslice.certificate.wording import clipping_sentence, limit_sentences
from pufferslice.queries.ranges import range_words
from pufferslice.report.inputs import Curves, ReportInputs
from pufferslice.report.svg import Series
from pufferslice.report.text import label

_MOST_PAIRS: Final = 30
_MOST_RAYS: Final = 400
_MOST_COORDINATES: Final = 12
_EQUAL: Final = 0.005
"""Curves that differ by less than this share cannot be told apart and share a line."""
_LOOKS: Final = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_DRAWN: Final = ("tight, transport", "tight, exact", comparison.UNSLICED)
"""How the names of our forms end that are drawn; all are in the table."""


def release_numbers(held: ReportInputs) -> dict[str, Any]:
    """What the public statement says, and what was released, audited and compared."""
    certificate = held.certificate
    statement = certificate.statement
    scenario, n_secrets = statement["scenario"], len(statement["scenario"]["secrets"])
    columns = scenario["secret"].get("columns") or [str(scenario["secret"]["worlds"])]
    best = best_views(View(**view) for view in statement["views"])
    audits = [audit for audit in held.audits if isinstance(audit, Audit)]
    return {
        "kind": "release",
        "subject": " and ".join(map(label, columns)),
        "statement": statement,
        "claim": certificate.guarantee,
        "all_pairs": len(scenario["pairs"]) == n_secrets * (n_secrets - 1) // 2,
        "clipping": clipping_sentence(scenario),
        "limits": limit_sentences(statement),
        "widths": _widths(scenario["query"]["range"], scenario["query"]["names"]),
        "views": [(view, View(**view) in best) for view in statement["views"]],
        "variation": stated_variation(certificate),
        "releases": [
            (released, None if released.range is None else range_words(released.range))
            for released in held.releases
        ],
        "audits": [(audit, _best_attacks(audit)) for audit in audits],
        "refuted": [v.claim for audit in audits for v in audit.verdicts if v.refuted],
        "comparisons": [(curves, *_drawn(curves)) for curves in held.comparisons],
        "evidence": None,
    }


def evidence_numbers(
    certificate: Certificate, numbers: Mapping[str, Any], progress: Progress
) -> dict[str, Any]:
    """What only the evidence shows: other epsilons, slices, and pairs; nothing if it is missing."""
    if certificate.evidence is None or certificate.statement["distributions_are_equal"]:
        return {}
    points = what_if(certificate, epsilons_around(certificate.guarantee.epsilon), progress)
    start = next(i for i, point in enumerate(points) if point.claim == certificate.guarantee)
    scales = certificate.statement["scenario"]["query"]["scales"][:_MOST_COORDINATES]
    noise = _noise_lines(certificate, points)
    pairs = pair_costs(certificate)
    profile = slice_profile(certificate)
    return {
        "variation": min(numbers["variation"], points[start].total_variation),
        "evidence": {
            "points": points,
            "start": start,
            "stds": [
                [None if point.noise_std is None else point.noise_std * scale for scale in scales]
                for point in points
            ],
            "noise": noise,
            "errors": [
                Series(
                    name=line.name,
                    look=line.look,
                    xs=line.xs,
                    ys=tuple(None if y is None else y**2 for y in line.ys),
                )
                for line in noise
            ],
            "guesses": Series(
                name="guesses",
                look="third",
                xs=noise[0].xs,
                ys=tuple(100 * right_guesses(point.total_variation) for point in points),
            ),
            "profile": profile,
            "rays": None if profile is None or len(profile.costs) < 2 else _rays(profile),
            "pairs": pairs[:_MOST_PAIRS],
            "bars": [_cost(pair) for pair in pairs[:_MOST_PAIRS]],
            "n_pairs_left": len(pairs) - len(pairs[:_MOST_PAIRS]),
            "several_priors": len({row.prior for row in pairs}) > 1,
        },
    }


def _widths(range_: Mapping[str, Any] | None, names: Sequence[str]) -> list[float]:
    if range_ is None or range_.get("kind") != "box":
        return []
    widths = [high - low for low, high in zip(range_["low"], range_["high"], strict=True)]
    return widths if len(widths) == len(names) and min(widths) > 0 else []


def _best_attacks(audit: Audit) -> list[Inference]:
    best: dict[tuple[str, str], Inference] = {}
    for inference in audit.inferences:
        key = (inference.attack, inference.prior_kind)
        if key not in best or inference.advantage.value > best[key].advantage.value:
            best[key] = inference
    return list(best.values())


def _noise_lines(certificate: Certificate, points: Sequence[SweepPoint]) -> list[Series]:
    """The certificate's own rule first, on which the markers stand; then the other one."""
    stds = {
        "tight": tuple(point.tight_std for point in points),
        "closed_form": tuple(point.closed_form_std for point in points),
    }
    names = ["tight", "closed_form"]
    if not certificate.guarantee.is_sliced:
        names, stds = ["unsliced"], {"unsliced": tuple(point.noise_std for point in points)}
    elif certificate.statement["method"]["rule"] == "closed_form":
        names.reverse()
    epsilons = tuple(point.claim.epsilon for point in points)
    lines = [
        Series(name=name, look=look, xs=epsilons, ys=stds[name])
        for name, look in zip(names, _LOOKS, strict=False)
    ]
    return [line for line in lines if line.points]


def _cost(pair: PairCost) -> float:
    costs = (pair.sliced_cost, pair.unsliced_cost, pair.largest_gap)
    return next((cost for cost in costs if cost is not None), 0.0)


def _rays(profile: SliceProfile) -> dict[str, Any]:
    """Costs and angles to draw; a query of two coordinates has true directions."""
    costs = profile.costs
    if profile.angles is not None and len(costs) <= _MOST_RAYS:
        angles = [*profile.angles.tolist(), *(profile.angles + math.pi).tolist()]
        return {"costs": [*costs.tolist(), *costs.tolist()], "angles": angles, "are_true": True}
    ordered = np.sort(costs)
    if len(ordered) > _MOST_RAYS:
        ordered = ordered[np.linspace(0, len(ordered) - 1, _MOST_RAYS).round().astype(int)]
    angles = [2 * math.pi * i / len(ordered) + math.pi / 2 for i in range(len(ordered))]
    return {"costs": ordered.tolist(), "angles": angles, "are_true": False}


def _drawn(curves: Curves) -> tuple[list[Series], bool]:
    """The lines of a comparison, and whether some stand for several mechanisms."""
    ours = {row.mechanism for row in curves.table.rows if row.is_ours}
    drawn = {
        name: np.array(values, dtype=float)
        for name, values in curves.noise_stds.items()
        if name not in ours or name.endswith(_DRAWN)
    }
    groups = grouped(drawn)
    lines = [
        Series(
            name=" ≈ ".join(names),
            look=_LOOKS[i % len(_LOOKS)],
            xs=curves.epsilons,
            ys=curves.noise_stds[names[0]],
        )
        for i, names in enumerate(groups)
    ]
    return lines, len(groups) < len(drawn)


def grouped(curves: Mapping[str, Floats]) -> list[list[str]]:
    """Names of curves that coincide, together; in the order of the first of each group."""
    groups: list[list[str]] = []
    for name, values in curves.items():
        for group in groups:
            if np.allclose(values, curves[group[0]], rtol=_EQUAL, atol=0, equal_nan=True):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups
