# SPDX-License-Identifier: Apache-2.0
"""The static experiments: Adult, Cleveland and Student under natural and balanced priors.

What the paper says about them is written as statements that numbers can refute. The paper speaks
of its closed form. The same statements can be held against the tight rule, which adds less noise;
they are ours then, and none of the paper's.

Accuracies and errors are simulated, so neighbours are compared with a tolerance of a few standard
errors, which every statement names. Noise is computed and compared without one.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, final

import attrs
import numpy as np

from pufferslice.claims.sliced import SlicedNotion
from pufferslice.claims.slices import Rule
from reproduction.experiment import Claim, Outcome, Row, Setting, number_in
from reproduction.panels import (
    NOTIONS,
    PAPER_SCALE,
    SHAPED,
    Curve,
    Scale,
    SecretTable,
    adult_hashed,
    adult_race,
    cleveland_sex,
    curves_of,
    panel_rows,
    panels_of,
    student_grades,
    student_sex,
)

N_ERRORS: Final = 4
"""Standard errors that a simulated number may be off: one in 30,000 comparisons is, by chance."""

NEAR_PRIOR: Final = 0.05
"""How far from the prior's accuracy still counts as close to it."""

NEAR_PERFECT: Final = 0.95
NEAR_ZERO: Final = 0.01
"""Share of the squared error at the smallest budget that counts as close to zero."""

CLEAR: Final = 0.02
"""How far from the prior's accuracy, and from 1, accuracies of two mechanisms are compared."""

SEARCH_DIGITS: Final = 10
"""`calibrate` finds the smallest noise to about one part in 10^11."""

MAIN: Final = "subsec:experiment_GSWM"
APPENDIX: Final = "app:cleveland_student_results"

_WORDS: Final[Mapping[str, str]] = {"average": "Ave", "joint": "Joint"}
_RULES: Final[Mapping[Rule, str]] = {
    "tight": "tight rule",
    "closed_form": "the paper's closed form",
}

Pairs = Sequence[tuple[Curve, Curve]]
"""Ave and Joint of the same panel and rule."""


def tradeoff_claims(curves: Sequence[Curve], rule: Rule, source: str) -> Iterator[Claim]:
    """With one rule errors fall, accuracies rise, and Joint is the more careful notion."""
    chosen = [curve for curve in curves if curve.rule == rule]
    pairs = _pairs(chosen, ("average", "joint"), lambda curve: curve.notion)
    yield _error_falls(chosen, rule, source)
    yield _error_vanishes(chosen, rule, source)
    yield _accuracy_rises(chosen, rule, source)
    for notion in NOTIONS:
        yield _starts_at_the_prior(chosen, rule, notion, source)
    yield _joint_needs_more_noise(pairs, rule, source)
    yield _joint_is_attacked_less(pairs, rule, source)
    yield _gap_is_in_the_middle(pairs, rule, source)


def perfect_inference_claims(curves: Sequence[Curve], rule: Rule) -> Iterator[Claim]:
    """With one rule accuracy ends at perfect inference; a claim about Cleveland and Student."""
    for notion in NOTIONS:
        chosen = [c for c in curves if c.rule == rule and c.notion == notion]
        ends = {curve.panel: float(curve.accuracies[-1]) for curve in chosen}
        worst = min(ends, key=ends.__getitem__)
        yield Claim(
            statement=(
                f"{_WORDS[notion]}, {_RULES[rule]}: attack accuracy rises towards perfect "
                f"inference, to at least {NEAR_PERFECT:g} at the largest budget"
            ),
            source=APPENDIX,
            held=ends[worst] >= NEAR_PERFECT,
            found=f"lowest {ends[worst]:.3f} ({worst}), highest {max(ends.values()):.3f}",
        )


def share_claims(stated: Mapping[str, float], shares: Mapping[str, float]) -> Iterator[Claim]:
    """The accuracy of always naming the most frequent secret, as in the paper, by prior."""
    for prior, share in stated.items():
        digits = len(f"{share:g}".partition(".")[2])
        yield Claim(
            statement=f"the commonest secret of the {prior} prior has the share {share:g}, rounded",
            source="app:experiments",
            held=round(shares[prior], digits) == share,
            found=f"its share is {shares[prior]:.4f}",
        )


def count_claims(stated: int | None, counts: Mapping[str, int]) -> Iterator[Claim]:
    """The number of records of the natural prior, if the paper says one."""
    if stated is not None:
        yield Claim(
            statement=f"the table has {stated:,} records",
            source="app:experiments",
            held=counts["natural"] == stated,
            found=f"{counts['natural']:,} records",
        )


def _error_falls(curves: Sequence[Curve], rule: Rule, source: str) -> Claim:
    changes = [
        (float(change), curve)
        for curve in curves
        for change in curve.squared_errors[1:] / curve.squared_errors[:-1] - 1
    ]
    beyond = [change for change, curve in changes if change > _error_tolerance(curve)]
    noise_falls = all((np.diff(curve.noise_stds) < 0).all() for curve in curves)
    worst, where = max(changes, key=lambda change: change[0])
    return Claim(
        statement=(
            f"{_RULES[rule]}: noise falls with epsilon at every step, and the simulated MSE never "
            f"rises by more than {N_ERRORS} standard errors"
        ),
        source=source,
        held=noise_falls and not beyond,
        found=(
            f"noise {'falls' if noise_falls else 'does not fall'} at all steps; of {len(changes)} "
            f"steps {sum(change > 0 for change, _ in changes)} raise the MSE, {len(beyond)} beyond "
            f"tolerance; the worst changes it by {worst:+.1%} ({where.panel}, tolerance "
            f"{_error_tolerance(where):+.1%})"
        ),
    )


def _error_vanishes(curves: Sequence[Curve], rule: Rule, source: str) -> Claim:
    ratios = {
        f"{curve.panel}, {_WORDS[curve.notion]}": float(
            curve.squared_errors[-1] / curve.squared_errors[0]
        )
        for curve in curves
    }
    worst = max(ratios, key=ratios.__getitem__)
    return Claim(
        statement=(
            f"{_RULES[rule]}: MSE falls towards zero, to at most {NEAR_ZERO:.0%} of its value at "
            "the smallest budget"
        ),
        source=source,
        held=ratios[worst] <= NEAR_ZERO,
        found=f"at most {ratios[worst]:.3%} ({worst}), at least {min(ratios.values()):.3%}",
    )


def _accuracy_rises(curves: Sequence[Curve], rule: Rule, source: str) -> Claim:
    drops = [(_largest_drop(curve), f"{curve.panel}, {_WORDS[curve.notion]}") for curve in curves]
    (errors, size), where = max(drops)
    n_beyond = sum(drop[0] > N_ERRORS for drop, _ in drops)
    gains = [float(curve.accuracies[-1] - curve.accuracies[0]) for curve in curves]
    return Claim(
        statement=(
            f"{_RULES[rule]}: attack accuracy rises with epsilon: it never falls by more than "
            f"{N_ERRORS} standard errors below what it was, and ends above where it started"
        ),
        source=source,
        held=n_beyond == 0 and min(gains) > 0,
        found=(
            f"{n_beyond} of {len(curves)} curves fall beyond tolerance; the largest fall is "
            f"{size:.4f}, {errors:.1f} standard errors ({where}); gains from {min(gains):.3f} to "
            f"{max(gains):.3f}"
        ),
    )


def _largest_drop(curve: Curve) -> tuple[float, float]:
    """In standard errors and in accuracy, below the highest point at any smaller budget."""
    tops = np.maximum.accumulate(curve.accuracies)
    where = np.array([int(curve.accuracies[: k + 1].argmax()) for k in range(len(tops))])
    errors = np.hypot(curve.accuracy_deviations, curve.accuracy_deviations[where])
    drops = tops - curve.accuracies
    worst = int((drops / errors).argmax())
    return float(drops[worst] / errors[worst]), float(drops[worst])


def _starts_at_the_prior(
    curves: Sequence[Curve], rule: Rule, notion: SlicedNotion, source: str
) -> Claim:
    chosen = [curve for curve in curves if curve.notion == notion]
    starts = {
        prior: float(
            np.mean([c.accuracies[0] - c.prior_accuracy for c in chosen if c.prior == prior])
        )
        for prior in dict.fromkeys(curve.prior for curve in chosen)
    }
    smallest = float(chosen[0].epsilons[0])
    shown = ", ".join(f"{prior} prior {value:+.3f}" for prior, value in starts.items())
    return Claim(
        statement=(
            f"{_WORDS[notion]}, {_RULES[rule]}: at the smallest budget attack accuracy is within "
            f"{NEAR_PRIOR:g} of the prior's, in the mean over queries"
        ),
        source=source,
        held=all(abs(value) <= NEAR_PRIOR for value in starts.values()),
        found=f"advantage at epsilon {smallest:g}: {shown}",
    )


def _joint_needs_more_noise(pairs: Pairs, rule: Rule, source: str) -> Claim:
    ratios = np.array([joint.noise_stds / average.noise_stds for average, joint in pairs])
    lower = [
        average.panel
        for average, joint in pairs
        if (joint.squared_errors / average.squared_errors - 1 < -_error_tolerance(joint)).any()
    ]
    return Claim(
        statement=(
            f"{_RULES[rule]}: at every budget Joint needs more noise than Ave, and its simulated "
            f"MSE is not lower beyond {N_ERRORS} standard errors"
        ),
        source=source,
        held=bool((ratios > 1).all()) and not lower,
        found=(
            f"noise of Joint over noise of Ave from {ratios.min():.3f} to {ratios.max():.3f}; "
            f"MSE lower beyond tolerance in {len(lower)} of {len(pairs)} panels"
        ),
    )


def _error_tolerance(curve: Curve) -> float:
    """How far two squared errors that are the same may be apart, relatively."""
    return N_ERRORS * math.sqrt(2) * curve.squared_error_deviation


def _joint_is_attacked_less(pairs: Pairs, rule: Rule, source: str) -> Claim:
    excess = {
        average.panel: (
            joint.accuracies - average.accuracies,
            np.hypot(average.accuracy_deviations, joint.accuracy_deviations),
        )
        for average, joint in pairs
    }
    worst = max(excess, key=lambda panel: float((excess[panel][0] / excess[panel][1]).max()))
    size, errors = excess[worst]
    at = int((size / errors).argmax())
    n_beyond = sum(bool((gap > N_ERRORS * error).any()) for gap, error in excess.values())
    mean_gaps = [float(-gap.mean()) for gap, _ in excess.values()]
    return Claim(
        statement=(
            f"{_RULES[rule]}: Joint is attacked less: at no budget more accurately than Ave beyond "
            f"{N_ERRORS} standard errors, and less accurately in the mean over budgets"
        ),
        source=source,
        held=n_beyond == 0 and min(mean_gaps) > 0,
        found=(
            f"{n_beyond} of {len(pairs)} panels beyond tolerance; the worst point has Joint "
            f"{size[at]:+.4f} against Ave, {size[at] / errors[at]:.1f} standard errors ({worst}); "
            f"in the mean Ave is ahead by {min(mean_gaps):.3f} to {max(mean_gaps):.3f}"
        ),
    )


def _gap_is_in_the_middle(pairs: Pairs, rule: Rule, source: str) -> Claim:
    gap = np.mean([average.accuracies - joint.accuracies for average, joint in pairs], axis=0)
    at = int(gap.argmax())
    epsilons = pairs[0][0].epsilons
    return Claim(
        statement=(
            f"{_RULES[rule]}: the gap between the attacks on Ave and Joint, in the mean over "
            "panels, is widest at a moderate budget, neither the smallest nor the largest"
        ),
        source=source,
        held=0 < at < len(gap) - 1,
        found=(
            f"widest at epsilon {epsilons[at]:g}: {gap[at]:.3f}; at the ends {gap[0]:.3f} and "
            f"{gap[-1]:.3f}"
        ),
    )


def tight_claim(curves: Sequence[Curve]) -> Claim:
    """How the two rules compare."""
    pairs = _pairs(curves, ("tight", "closed_form"), lambda curve: curve.rule)
    ratios = np.array([closed.noise_stds**2 / tight.noise_stds**2 for tight, closed in pairs])
    return Claim(
        statement=(
            "the tight rule never needs more noise than the paper's closed form, to the "
            f"{SEARCH_DIGITS} digits to which noise is searched"
        ),
        source="corollary:SRPE_implies_SRPP",
        held=bool((ratios >= 1 - 10.0**-SEARCH_DIGITS).all()),
        found=(
            f"noise variance of the closed form over that of the tight rule from "
            f"{ratios.min():.3f} to {ratios.max():.3f}"
        ),
    )


def shaped_claims(curves: Sequence[Curve]) -> Iterator[Claim]:
    """Error of the paper's closed form over that of shaped noise where the attack is as accurate.

    The squared error of shaped noise is read off its curve at the same accuracy, between
    neighbouring budgets; accuracies that only one of the curves has are left out, and those within
    `CLEAR` of the prior's or of 1, where all mechanisms are alike.
    """
    shaped = {curve.panel: curve for curve in curves if (curve.notion, curve.rule) == SHAPED}
    for notion in NOTIONS:
        chosen = [c for c in curves if c.rule == "closed_form" and c.notion == notion]
        ratios = {curve.panel: same_attack_ratios(curve, shaped[curve.panel]) for curve in chosen}
        medians = {panel: float(np.median(values)) for panel, values in ratios.items() if values}
        found = ", ".join(
            f"{panel} {medians[panel]:.2g}" if panel in medians else f"{panel} not comparable"
            for panel in ratios
        )
        yield Claim(
            statement=(
                f"at the same attack accuracy the closed form of {_WORDS[notion]} has a larger MSE "
                "than shaped noise for the whole output, in the median of every panel"
            ),
            source="subsec:experiment_GSWM",
            held=bool(medians) and min(medians.values()) > 1,
            found=f"MSE over that of shaped noise: {found}",
        )


def same_attack_ratios(curve: Curve, ours: Curve) -> list[float]:
    """Squared error of one curve over that of another at the same accuracy, where both have it."""
    tops = np.maximum.accumulate(ours.accuracies)
    ratios = []
    for accuracy, error in zip(curve.accuracies, curve.squared_errors, strict=True):
        is_clear = curve.prior_accuracy + CLEAR < accuracy < 1 - CLEAR
        if is_clear and tops[0] < accuracy < tops[-1]:
            same_error = np.exp(np.interp(accuracy, tops, np.log(ours.squared_errors)))
            ratios.append(float(error / same_error))
    return ratios


def _pairs(
    curves: Sequence[Curve], values: tuple[str, str], which: Callable[[Curve], str]
) -> list[tuple[Curve, Curve]]:
    """Curves that differ in one field only, the first value before the second."""

    def key(curve: Curve) -> tuple[str, ...]:
        fields = (curve.prior, curve.query, curve.notion, curve.rule)
        return tuple(field for field in fields if field not in values)

    second = {key(curve): curve for curve in curves if which(curve) == values[1]}
    return [(curve, second[key(curve)]) for curve in curves if which(curve) == values[0]]


MakeTable = Callable[[], SecretTable]


@final
@attrs.frozen(kw_only=True)
class StaticStudy:
    """One table and secret of the static experiments, and what the paper says of them."""

    name: str
    tables: Mapping[str, MakeTable]
    """By prior: `natural`, `balanced`."""
    n_records: int | None
    """Of the natural prior, as the paper says."""
    shares: Mapping[str, float]
    """Of the commonest secret, by prior, as the paper rounds them."""
    source: str
    scale: Scale = PAPER_SCALE
    """The queries and the sweep, by default those of the paper's figures."""

    def run(self, scale: Scale, setting: Setting) -> Outcome:
        """Simulate every panel and hold the paper's claims against it."""
        rows: list[Row] = []
        n_panels = len(self.tables) * len(scale.queries)
        for number, panel in enumerate(panels_of(self.tables, scale.queries)):
            rows += panel_rows(panel, scale, number)
            setting.progress(number + 1, n_panels)
        counts = {str(row["prior"]): int(number_in(row, "n_records")) for row in rows}
        records = ", ".join(f"{prior} prior {n:,} records" for prior, n in counts.items())
        curves = curves_of(rows)
        return Outcome(
            experiment=self.name,
            scale=f"{records}; {scale}; simulated outputs from a public seed",
            rows=tuple(rows),
            claims=(
                *count_claims(self.n_records, counts),
                *share_claims(self.shares, {c.prior: c.prior_accuracy for c in curves}),
                *self._claims_with("closed_form", curves),
            ),
            our_claims=(
                *self._claims_with("tight", curves),
                tight_claim(curves),
                *shaped_claims(curves),
            ),
        )

    def _claims_with(self, rule: Rule, curves: tuple[Curve, ...]) -> Iterator[Claim]:
        yield from tradeoff_claims(curves, rule, self.source)
        if self.source == APPENDIX:
            yield from perfect_inference_claims(curves, rule)


def _with_balanced(make: MakeTable) -> dict[str, MakeTable]:
    return {"natural": make, "balanced": lambda: make().balanced()}


STUDIES: Final = {
    study.name: study
    for study in (
        StaticStudy(
            name="static-adult",
            tables={"natural": adult_race, "balanced": adult_hashed},
            n_records=30_162,
            shares={"natural": 0.86, "balanced": 0.2},
            source=MAIN,
        ),
        StaticStudy(
            name="static-adult-boosting",
            tables={"natural": adult_race, "balanced": adult_hashed},
            n_records=None,
            shares={},
            source=MAIN,
            scale=Scale(queries=("boosting_importances",)),
        ),
        StaticStudy(
            name="static-adult-stratified",
            tables={"balanced": lambda: adult_race().balanced()},
            n_records=None,
            shares={"balanced": 0.2},
            source=MAIN,
        ),
        StaticStudy(
            name="static-cleveland",
            tables=_with_balanced(cleveland_sex),
            n_records=303,
            shares={"natural": 0.7, "balanced": 0.5},
            source=APPENDIX,
        ),
        StaticStudy(
            name="static-student",
            tables=_with_balanced(student_grades),
            n_records=395,
            shares={"balanced": 0.2},
            source=APPENDIX,
        ),
        StaticStudy(
            name="static-student-sex",
            tables=_with_balanced(student_sex),
            n_records=395,
            shares={"natural": 0.6, "balanced": 0.5},
            source=APPENDIX,
        ),
    )
}
"""By name; the default scale is the paper's own."""


def run(name: str, setting: Setting) -> Outcome:
    """One of the studies at the paper's scale, which is also the default one."""
    return STUDIES[name].run(STUDIES[name].scale, setting)
