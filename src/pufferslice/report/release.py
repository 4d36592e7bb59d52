# SPDX-License-Identifier: Apache-2.0
"""Numbers of a page about one protected release."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.numbers import in_full, percent_at_most
from pufferslice._core.plot import row_chart
from pufferslice._core.svg import Series, ellipse_axes
from pufferslice._core.text import label
from pufferslice._core.threads import Progress
from pufferslice.audit import Audit
from pufferslice.baselines import comparison
from pufferslice.certificate import Certificate
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.issue import required_evidence
from pufferslice.certificate.limits import RELEASE_LIMITS
from pufferslice.certificate.pictures import BY_RANGE, NOISE, noise_rows
from pufferslice.certificate.statement import (
    BallRange,
    BoxRange,
    ReleaseStatement,
    ScenarioPart,
)
from pufferslice.certificate.sweep import (
    PairCost,
    SliceProfile,
    SweepPoint,
    costs_if_off,
    pair_costs,
    slice_profile,
    stated_variation,
    sweep_points,
)
from pufferslice.certificate.verdict import verdict
from pufferslice.certificate.wording import (
    adversary_words,
    clipping_sentence,
    doubt_sentence,
    first_lines,
    limit_sentences,
    range_words_of,
    release_words,
    shape_sentences,
    unsliced_first,
)
from pufferslice.claims import Claim
from pufferslice.claims.views import best_views
from pufferslice.noise.decision import INTERVAL_STDS
from pufferslice.queries.ranges import range_words
from pufferslice.releases.pictures import VALUES, value_rows
from pufferslice.report.inputs import Curves, ReportInputs
from pufferslice.report.text import N_BOUNDS, bound
from pufferslice.sensitivity.profiles import WHOLE_SPHERE

_MOST_PAIRS: Final = 30
_MOST_SLICES: Final = 400
_MOST_COORDINATES: Final = 12
_LONGEST_ON_AN_AXIS: Final = 28
_OFF: Final = (0.1, 0.25, 0.5, 1.0)
"""Shares of the guard by which a prior may be off, for which the cost is shown."""
_EQUAL: Final = 0.005
"""Share below which curves cannot be told apart and are drawn as one line."""
_MOST_DRAWN: Final = 30
_LOOKS: Final = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_DRAWN: Final = ("tight, transport", "tight, exact", comparison.UNSLICED)
"""Endings of the names of our mechanisms that are drawn; the table has all."""


def release_numbers(held: ReportInputs) -> dict[str, Any]:
    """Collect what the public statement says, and what was released, audited and compared."""
    certificate = held.certificate
    statement = certificate.released
    scenario, n_secrets = statement.scenario, len(statement.scenario.secrets)
    lines = first_lines(statement)
    best = best_views(statement.views)
    audits = [audit for audit in held.audits if isinstance(audit, Audit)]
    return {
        "kind": "release",
        "subject": _subject(scenario),
        "range": range_words_of(scenario.secret),
        "whom": adversary_words(scenario).removeprefix(", "),
        "release_is": release_words(scenario),
        "person": lines.person,
        "by_rows": scenario.has_priors("rows"),
        "statement": statement,
        "claim": certificate.guarantee,
        "is_share": certificate.guarantee.unit != 1,  # a share of right guesses, in percent
        "all_pairs": len(scenario.pairs) == n_secrets * (n_secrets - 1) // 2,
        "clipping": clipping_sentence(scenario),
        "doubt": doubt_sentence(statement),
        "limits": limit_sentences(statement),
        "widths": _widths(scenario.query.range, scenario.query.names),
        "views": [(view, view in best) for view in unsliced_first(statement.views)],
        "readings": _readings(certificate.guarantee, statement),
        "shape": _shape(certificate),
        "variation": stated_variation(certificate),
        "noise_chart": row_chart(
            NOISE, noise_rows(scenario, statement.noise.std_by_coordinate), most=_MOST_DRAWN
        ).svg,
        "by_range": BY_RANGE,
        "releases": [
            (
                released,
                row_chart(VALUES, value_rows(released), most=_MOST_DRAWN).svg,
                None if released.range is None else range_words(released.range),
                released.derived().rows
                if released.specs and released.noise_covariance is not None
                else (),
            )
            for released in held.releases
        ],
        "audits": [(audit, audit.best_inferences) for audit in audits],
        "refuted": [v.claim for audit in audits for v in audit.verdicts if v.refuted],
        "comparisons": [(curves, *_drawn(curves)) for curves in held.comparisons],
        "of_isotropic": _shares_of(certificate, _compared_std(held)),
        "evidence": None,
    }


def evidence_numbers(
    certificate: Certificate, numbers: Mapping[str, Any], progress: Progress
) -> dict[str, Any]:
    """Collect what only the evidence shows: the verdict, other bounds, slices and pairs."""
    if certificate.evidence is None or certificate.released.distributions_are_equal:
        return {}
    points = sweep_points(
        certificate, certificate.guarantee.bounds_around(N_BOUNDS), progress=progress
    )
    start = next(i for i, point in enumerate(points) if point.claim == certificate.guarantee)
    n_shown = min(_MOST_COORDINATES, len(certificate.released.noise.std_by_coordinate))
    noise = _noise_lines(certificate, points)
    bounds = noise[0].xs
    guesses = tuple(100 * point.guess for point in points)
    epsilons = tuple(point.unsliced_epsilon for point in points)
    pairs = pair_costs(certificate)
    profile = slice_profile(certificate)
    isotropic_std = _isotropic_std(certificate.guarantee, required_evidence(certificate))
    return {
        "variation": min(numbers["variation"], points[start].total_variation),
        "of_isotropic": numbers["of_isotropic"] or _shares_of(certificate, isotropic_std),
        "evidence": {
            "points": points,
            "start": start,
            "stds": [
                [None] * n_shown
                if point.noise_stds is None
                else point.noise_stds[:n_shown].tolist()
                for point in points
            ],
            "noise": noise,
            "errors": [
                attrs.evolve(line, ys=tuple(None if y is None else y**2 for y in line.ys))
                for line in noise
            ],
            "guesses": Series(name="guesses", look="third", xs=bounds, ys=guesses),
            "epsilons": Series(name="epsilons", look="third", xs=bounds, ys=epsilons),
            "verdict": verdict(certificate),
            "if_off": list(zip(_OFF, costs_if_off(certificate, _OFF), strict=False)),
            "profile": profile,
            "slices": None if profile is None or len(profile.costs) < 2 else _slice_lines(profile),
            "pairs": pairs[:_MOST_PAIRS],
            "bars": [_cost(pair) for pair in pairs[:_MOST_PAIRS]],
            "n_pairs_left": len(pairs) - len(pairs[:_MOST_PAIRS]),
            "several_priors": len({row.prior for row in pairs}) > 1,
        },
    }


def shares(numbers: Mapping[str, Any], std: float, place: int) -> list[str]:
    """Compare the noise of a statistic with its public range and with isotropic noise."""
    of_range = [100 * std / numbers["widths"][place]] if numbers["widths"] else []
    of_isotropic = [100 * numbers["of_isotropic"][place]] if numbers["of_isotropic"] else []
    return [f"{share:.3g}\u00a0%" for share in of_range + of_isotropic]


def share_columns(numbers: Mapping[str, Any]) -> list[str]:
    """Name what `shares` compares with."""
    names = {"widths": "noise std / public range", "of_isotropic": "share of isotropic noise"}
    return [name for key, name in names.items() if numbers[key]]


def _subject(scenario: ScenarioPart) -> str:
    """Name what is hidden, in a few words."""
    words = {"share_of": "share of ", "size_of": "size of ", "state_of": "state of ", "worlds": ""}
    secret = scenario.secret
    names = getattr(secret, "columns", [])
    for field, word in words.items():
        value = getattr(secret, field, None)
        if value is not None:
            names = [f"{word}{name}" for name in ([value] if isinstance(value, str) else value)]
    return " and ".join(map(label, names))


def _readings(claim: Claim, statement: ReleaseStatement) -> list[tuple[str, str, str]]:
    """Read one noise as divergence, (epsilon, delta) and guesses: whole output, slices."""
    unsliced, rows = statement.unsliced, []
    order, sliced = f"Rényi divergence of order {in_full(unsliced.order)}", ""
    if claim.is_sliced and claim.has_order:
        sliced = f"{bound(statement.spent)}, {claim.notion}"
    if unsliced.epsilon is not None or sliced:
        whole = bound(unsliced.epsilon)
        rows.append((order, whole, sliced))
    best = best_views(statement.views)
    for delta in statement.deltas:
        readings = {view.scope != "unsliced": bound(view.epsilon) for view in best
                 if view.delta == delta}  # fmt: skip
        if readings:
            name = f"ε at δ = {in_full(delta)}"
            rows.append((name, readings.get(False, "none"), readings.get(True, "")))
    guess = unsliced.guess
    rows.append(("right guesses", "none" if guess is None else percent_at_most(guess), ""))
    return rows


def _shape(certificate: Certificate) -> dict[str, Any] | None:
    """Describe the public shape of the noise: words, correlations, and ellipses to choose from."""
    statement, shape = certificate.released, certificate.shape
    sentences = shape_sentences(statement)
    if not sentences:
        return None
    code = "shape-shows-differences"
    words = {
        "sentences": sentences,
        "pitfall": RELEASE_LIMITS[code] if code in statement.limits else "",
        "ellipses": None,
    }
    if shape is None or shape.dim < 2:
        return words
    names = statement.scenario.query.names[:_MOST_COORDINATES]
    stds = statement.noise.std_by_coordinate[:_MOST_COORDINATES]
    deviations = np.sqrt(np.diagonal(shape.covariance))
    correlation = shape.covariance / np.outer(deviations, deviations)
    correlation = correlation[: len(names), : len(names)]
    return words | {
        "ellipses": {
            "names": [label(_shortened(name)) for name in names],
            "ends": [f"{INTERVAL_STDS * std:.3g}" for std in stds],
            "correlations": [[f"{value:.2f}" for value in row] for row in correlation],
            "axes": [[ellipse_axes(value) for value in row] for row in correlation.tolist()],
        },
        "first": float(correlation[0, 1]),
        "n_left": shape.dim - len(names),
    }


def _shares_of(certificate: Certificate, isotropic_std: float | None) -> list[float]:
    """Compare the noise of each statistic with isotropic noise; empty where that is not known."""
    if certificate.shape is None or not isotropic_std:
        return []
    stds = certificate.released.noise.std_by_coordinate
    scales = certificate.released.scenario.query.scales
    return [std / (scale * isotropic_std) for std, scale in zip(stds, scales, strict=True)]


def _compared_std(held: ReportInputs) -> float | None:
    """Return isotropic noise for the same claim, if a comparison has it."""
    rows = [row for curves in held.comparisons for row in curves.table.rows]
    return next((row.noise_std for row in rows if row.mechanism == comparison.UNSLICED), None)


def _isotropic_std(claim: Claim, evidence: Evidence) -> float | None:
    """Compute isotropic noise for the same claim, where the evidence can be mapped back.

    Moments can, from whitened coordinates; coupled distances cannot.
    """
    full = evidence.full
    if full.shape is None or full.differences is None:
        return None
    scaled = full.differences.unwhitened(full.shape)
    if scaled is None:
        return None
    isotropic = attrs.evolve(full, differences=scaled, shape=None)
    return claim.least_noise(attrs.evolve(evidence, full=isotropic))


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_ON_AN_AXIS else name[: _LONGEST_ON_AN_AXIS - 1] + "…"


def _widths(range_: BoxRange | BallRange | None, names: Sequence[str]) -> list[float]:
    if not isinstance(range_, BoxRange):
        return []
    widths = [high - low for low, high in zip(range_.low, range_.high, strict=True)]
    return widths if len(widths) == len(names) and min(widths) > 0 else []


def _noise_lines(certificate: Certificate, points: Sequence[SweepPoint]) -> list[Series]:
    """List the noise by the certificate's own rule, where the markers stand, then by the other."""
    stds = {
        "tight": tuple(point.tight_std for point in points),
        "closed_form": tuple(point.closed_form_std for point in points),
    }
    names = ["tight", "closed_form"]
    method = certificate.released.method
    if method is None:
        whole = WHOLE_SPHERE if certificate.guarantee.is_sliced else "unsliced"
        names, stds = [whole], {whole: tuple(point.noise_std for point in points)}
    elif method.rule == "closed_form":
        names.reverse()
    unit = certificate.guarantee.unit
    bounds = tuple(unit * point.claim.bound for point in points)
    lines = [
        Series(name=name, look=look, xs=bounds, ys=stds[name])
        for name, look in zip(names, _LOOKS, strict=False)
    ]
    return [line for line in lines if line.points]


def _cost(pair: PairCost) -> float:
    costs = (pair.sliced_cost, pair.unsliced_cost, pair.largest_gap)
    return next((cost for cost in costs if cost is not None), 0.0)


def _slice_lines(profile: SliceProfile) -> list[Series]:
    """List the slice costs in falling order, with their average and joint value."""
    n_slices = len(profile.costs)
    places = np.arange(n_slices)
    if n_slices > _MOST_SLICES:
        places = np.linspace(0, n_slices - 1, _MOST_SLICES).round().astype(int)
    shares = tuple((100 * (places + 1) / n_slices).tolist())
    costs = tuple(np.sort(profile.costs)[::-1][places].tolist())
    ends = (shares[0], shares[-1])
    return [
        Series(name="slices", look="first", xs=shares, ys=costs),
        Series(name="average", look="second", xs=ends, ys=(profile.average,) * 2),
        Series(name="joint", look="third", xs=ends, ys=(profile.joint,) * 2),
    ]


def _drawn(curves: Curves) -> tuple[list[Series], bool]:
    """Choose the lines of a comparison, and say whether some stand for several mechanisms."""
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
    """Group the names of curves that coincide, in the order of the first of each group."""
    groups: list[list[str]] = []
    for name, values in curves.items():
        for group in groups:
            if np.allclose(values, curves[group[0]], rtol=_EQUAL, atol=0, equal_nan=True):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups
