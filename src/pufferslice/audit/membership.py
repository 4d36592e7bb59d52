# SPDX-License-Identifier: Apache-2.0
"""Membership inference: scores of records, shadow models, and how well they find members.

Input is arrays, from any framework; a higher score means more likely a member. The result describes
one trained model; it is not a lower bound on the epsilon of a plan, which has another secret.

Carlini et al. 2022, "Membership Inference Attacks From First Principles". Shadow models are trained
as the attacked one was, each on a random part of the records.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, final

import attrs
import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, rel_entr

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import check_between, check_finite, check_one_of, is_a
from pufferslice._core.text import given
from pufferslice.audit.inference import Interval
from pufferslice.audit.verdict import fewest, json_values
from pufferslice.errors import ArgumentError, escaped
from pufferslice.sensitivity.concentration import clopper_pearson, split, tail_bound

LOW_RATES: Final = (0.001, 0.01)
"""False-positive rates at which an attack matters: few accusations, nearly all right."""

_BISECTIONS: Final = 60
"""Number of bisections that reach the spacing of floats in the unit interval."""

FEWEST_SHADOWS: Final = 2
"""Shadow models with a record, and without; fewer have no variance."""

_LEAST_SHARE: Final = 1e-12
"""Least variance of one record, as a share of the pooled one."""

Flags = npt.NDArray[np.bool_]
Spread = Literal["pooled", "per_record"]


@final
@attrs.frozen(kw_only=True)
class LowRate:
    """The share of members found at a low false-positive rate."""

    false_positive_rate: float
    """Largest share of all non-members above the threshold."""
    threshold: float
    """Score above which records count as members; chosen from the non-members alone."""
    true_positive_rate: Interval
    """Share of members above the threshold, with its Clopper-Pearson interval."""


@final
@attrs.frozen(kw_only=True)
class MembershipAudit:
    """Success of an attack that tells members from non-members of one model.

    Guarantee: the intervals and the false-positive rates hold all at once, with `confidence`.
    """

    attack: str
    """Name of the attack."""
    n_members: int
    n_non_members: int
    roc_auc: Interval
    """The chance that a member scores above a non-member, ties by half; guessing gives 1/2."""
    low_rates: tuple[LowRate, ...]
    confidence: float

    @property
    def is_seen(self) -> bool:
        """Whether one of the intervals shows that the attack is better than guessing."""
        rates = (rate.true_positive_rate.low > rate.false_positive_rate for rate in self.low_rates)
        return self.roc_auc.low > 0.5 or any(rates)

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        return json_values(self)

    def __str__(self) -> str:
        lines = [
            f"{escaped(self.attack)}: {self.n_members} members, {self.n_non_members} non-members",
            f"  ROC AUC {self.roc_auc}; guessing gives 0.5",
            *(
                f"  true-positive rate {rate.true_positive_rate} at no more than "
                f"{rate.false_positive_rate:g} false positives"
                for rate in self.low_rates
            ),
            f"  all at once with confidence {self.confidence:g}; intervals for any sample size",
        ]
        return "\n".join(lines)


def audit_membership(
    scores: npt.ArrayLike,
    members: npt.ArrayLike,
    *,
    attack: str,
    confidence: float,
    false_positive_rates: Sequence[float] = LOW_RATES,
) -> MembershipAudit:
    """ROC AUC and true-positive rates at low false-positive rates, all with intervals.

    No interval is asymptotic. That of the AUC is Hoeffding's for averages over pairs, with the
    relative entropy in the exponent; it is wider than DeLong's, which is asymptotic. A threshold is
    an order statistic of the non-members that, by the exact binomial tail, no more than the wanted
    share of all of them exceeds; the members above it have a Clopper-Pearson interval.

    Guarantee: everything holds at once with `confidence`, for continuous and tied scores.
    Needs: given the model, the scored members are independent draws of its members and the scored
    non-members of the others; `attack` does not depend on their scores.

    >>> rng = np.random.default_rng(0)
    >>> members = np.repeat([True, False], 10_000)
    >>> losses = rng.exponential(np.where(members, 0.5, 1.0))
    >>> audit = audit_membership(
    ...     loss_scores(losses), members, attack="loss threshold", confidence=0.95
    ... )
    >>> round(audit.roc_auc.value, 2), audit.is_seen
    (0.67, True)
    """
    values, flags = _labelled(scores, members)
    check_between(0, 1, confidence=confidence)
    if not is_a(attack, str):
        raise ArgumentError(f"attack must be the name of an attack, got {given(attack)}")
    for rate in false_positive_rates:
        check_between(0, 1, false_positive_rate=rate)
    inside, outside = np.sort(values[flags]), np.sort(values[~flags])
    share = split(1 - confidence, 1 + 2 * len(false_positive_rates))
    smallest = min(false_positive_rates, default=1.0)
    if smallest < 1 and _tail(len(outside), len(outside), smallest) > share:
        needed = non_members_needed(smallest, share) or "more than can be scored"
        raise ArgumentError(
            f"too few non-members for this confidence: {len(outside)} were scored; a threshold "
            f"with at most {smallest:g} false positives needs {needed}. Score more, or use larger "
            "false_positive_rates"
        )
    return MembershipAudit(
        attack=attack,
        n_members=len(inside),
        n_non_members=len(outside),
        roc_auc=_auc_interval(inside, outside, share),
        low_rates=tuple(_low_rate(inside, outside, rate, share) for rate in false_positive_rates),
        confidence=confidence,
    )


def roc_auc(scores: npt.ArrayLike, members: npt.ArrayLike) -> float:
    """The share of pairs in which the member scores above the non-member, ties by half.

    >>> roc_auc([3.0, 1.0, 2.0, 1.0], [True, True, False, False])
    0.625
    """
    values, flags = _labelled(scores, members)
    return _auc(np.sort(values[flags]), np.sort(values[~flags]))


def loss_scores(losses: npt.ArrayLike) -> Floats:
    """The loss-threshold attack (Yeom et al. 2018): a model fits what it was trained on.

    The score is the negative loss of the record under the model.
    """
    values = locked(losses)
    check_finite(losses=values)
    return -values


def margin_scores(logits: npt.ArrayLike, labels: npt.ArrayLike) -> Floats:
    """The log-odds of the true class, for the likelihood-ratio attack.

    `logits` has shape (n_records, n_classes), `labels` the true classes. Over models they are
    closer to Gaussian than the loss, and unlike ln(p / (1 - p)) they never overflow.

    >>> margin_scores([[2.0, 0.0], [0.0, 1000.0]], [0, 1]).tolist()
    [2.0, 1000.0]
    """
    values, classes = locked(logits), np.asarray(labels)
    if values.ndim != 2 or values.shape[1] < 2:
        raise ArgumentError(
            "logits must have shape (n_records, n_classes), with two classes or more; got "
            f"{values.shape}"
        )
    check_finite(logits=values)
    n_records, n_classes = values.shape
    if classes.shape != (n_records,) or classes.dtype.kind not in "iu":
        raise ArgumentError(
            f"labels must be {n_records} integers, got {classes.dtype} of {classes.shape}"
        )
    if classes.size and not (classes.min() >= 0 and classes.max() < n_classes):
        raise ArgumentError(
            f"labels must lie between 0 and {n_classes - 1}, as there are {n_classes} classes"
        )
    records = np.arange(n_records)
    others = values.copy()
    others[records, classes] = -np.inf
    return np.asarray(values[records, classes] - logsumexp(others, axis=1))


def _labelled(scores: npt.ArrayLike, members: npt.ArrayLike) -> tuple[Floats, Flags]:
    values = locked(scores)
    if values.ndim != 1:
        raise ArgumentError(f"scores must be one number per record, got shape {values.shape}")
    check_finite(scores=values)
    flags = locked_flags(members)
    check_alike(values, flags)
    n_members = int(flags.sum())
    if n_members in {0, len(flags)}:
        missing = "members" if n_members == 0 else "non-members"
        raise ArgumentError(
            f"members must mark records of both classes; of {len(flags)} there are no {missing}. "
            "Score records that were trained on and records that were not"
        )
    return values, flags


def locked_flags(flags: npt.ArrayLike) -> Flags:
    """A read-only copy of True and False, or 1 and 0; anything else is refused."""
    values = np.asarray(flags)
    if values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
        raise ArgumentError(f"expected True or False for each record, got type {values.dtype}")
    copied = values.astype(np.bool_)
    copied.setflags(write=False)
    return copied


def check_alike(scores: Floats, members: Flags) -> None:
    """Raise unless every score has its flag."""
    if members.shape != scores.shape:
        raise ArgumentError(
            f"members must have shape {scores.shape}, as the scores have; got {members.shape}"
        )


def non_members_needed(false_positive_rate: float, failure_probability: float) -> int | None:
    """Fewest non-members with a threshold of this false-positive rate; None if too many.

    >>> non_members_needed(0.01, 0.01)
    459
    """
    return fewest(lambda n: _tail(n, n, false_positive_rate) <= failure_probability)


def _tail(n_non_members: int, rank: int, rate: float) -> float:
    """Upper bound on the chance that more than `rate` of all lie above the score of this rank."""
    # The share below is rounded up, so the tail is not rounded down.
    below = math.nextafter(1 - rate, 1.0)
    return float(tail_bound(n_non_members, np.array([rank]), np.array([below]))[0])


def _low_rate(inside: Floats, outside: Floats, rate: float, share: float) -> LowRate:
    low, high = 0, len(outside)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _tail(len(outside), middle, rate) <= share else (middle, high)
    threshold = float(outside[high - 1])
    n_found = len(inside) - int(np.searchsorted(inside, threshold, side="right"))
    share_found = Interval(n_found / len(inside), *clopper_pearson(n_found, len(inside), share))
    return LowRate(false_positive_rate=rate, threshold=threshold, true_positive_rate=share_found)


def _auc(inside: Floats, outside: Floats) -> float:
    """AUC from integers, twice the pairs, so that ties by half are exact."""
    below = np.searchsorted(outside, inside, side="left")
    not_above = np.searchsorted(outside, inside, side="right")
    twice = int(below.sum()) + int(not_above.sum())
    return twice / (2 * len(inside) * len(outside))


def _auc_interval(inside: Floats, outside: Floats, share: float) -> Interval:
    r"""All values a with $k \, kl(A \| a) \le \ln(2 / share)$, k the size of the smaller class.

    The AUC of the sample is a mean of means over k disjoint pairs (Hoeffding 1963, section 5), so
    its moment generating function is at most that of a mean of k Bernoulli variables.
    """
    auc = _auc(inside, outside)
    budget = math.log(2 / share) / min(len(inside), len(outside))

    def end(outermost: float) -> float:
        allowed, refused = auc, outermost
        for _ in range(_BISECTIONS):
            middle = (allowed + refused) / 2
            entropy = float(rel_entr(auc, middle) + rel_entr(1 - auc, 1 - middle))
            allowed, refused = (middle, refused) if entropy <= budget else (allowed, middle)
        return refused

    return Interval(auc, end(0.0), end(1.0))


@final
@attrs.frozen(kw_only=True, repr=False)
class ShadowModels:
    """Scores of the records under shadow models, and which records each model was trained on."""

    scores: Floats = attrs.field(converter=locked, eq=same)
    """Scores of the records, shape (n_models, n_records)."""
    members: Flags = attrs.field(converter=locked_flags, eq=same)
    """Whether each model was trained on the record, shape (n_models, n_records)."""

    def __attrs_post_init__(self) -> None:
        if self.scores.ndim != 2 or not self.scores.size:
            raise ArgumentError(
                "shadow models are missing: their scores must have shape (n_models, n_records), "
                f"both at least 1, got {self.scores.shape}"
            )
        check_finite(shadow_scores=self.scores)
        check_alike(self.scores, self.members)

    @property
    def n_models(self) -> int:
        """Number of shadow models."""
        return len(self.scores)

    @property
    def n_records(self) -> int:
        """Number of records that they scored."""
        return int(self.scores.shape[1])

    def __repr__(self) -> str:
        return f"ShadowModels(n_models={self.n_models}, n_records={self.n_records})"


def likelihood_ratio_scores(
    scores: npt.ArrayLike, shadows: ShadowModels, *, spread: Spread = "pooled"
) -> Floats:
    r"""The online attack: how much likelier the score is if the record was trained on.

    $$\ln N(s; \mu_{in}, \sigma_{in}^2) - \ln N(s; \mu_{out}, \sigma_{out}^2)$$

    `scores` are those of the attacked model, best made by `margin_scores`. `pooled` fits one
    variance to all records, better below about 64 shadow models; `per_record` one to each.
    Needs: every record in the training set of at least two shadow models, and outside of two.
    """
    values = _attacked(scores, shadows)
    inside, outside = (
        -((values - means) ** 2) / variances / 2 - np.log(variances) / 2
        for means, variances in (
            _fitted(shadows, shadows.members, spread, "with"),
            _fitted(shadows, ~shadows.members, spread, "without"),
        )
    )
    return np.asarray(inside - outside)


def offline_likelihood_ratio_scores(
    scores: npt.ArrayLike, shadows: ShadowModels, *, spread: Spread = "pooled"
) -> Floats:
    r"""The offline attack: how far above its scores without training on it, $(s - \mu) / \sigma$.

    Weaker than the online attack, but shadow models need not be trained on the attacked records.
    Needs: every record outside of the training set of at least two shadow models.
    """
    values = _attacked(scores, shadows)
    means, variances = _fitted(shadows, ~shadows.members, spread, "without")
    return np.asarray((values - means) / np.sqrt(variances))


def _attacked(scores: npt.ArrayLike, shadows: ShadowModels) -> Floats:
    if not is_a(shadows, ShadowModels):
        raise ArgumentError(
            f"shadow models are missing: shadows must be ShadowModels, got {given(shadows)}"
        )
    values = locked(scores)
    if values.shape != (shadows.n_records,):
        raise ArgumentError(
            f"scores must be one number for each of the {shadows.n_records} records that the "
            f"shadow models scored, in the same order; got shape {values.shape}"
        )
    check_finite(scores=values)
    return values


def _fitted(
    shadows: ShadowModels, chosen: Flags, spread: Spread, word: str
) -> tuple[Floats, Floats]:
    """Means and variances of the records' scores under some of the shadow models."""
    check_one_of(("pooled", "per_record"), spread=spread)
    counts = chosen.sum(axis=0)
    short = int(np.count_nonzero(counts < FEWEST_SHADOWS))
    if short:
        msg = (
            f"shadow models are missing: {short} of {shadows.n_records} records have fewer than "
            f"{FEWEST_SHADOWS} models trained {word} them, and {FEWEST_SHADOWS} are needed. Train "
            "more shadow models"
        )
        if word == "with":
            msg += ", or use offline_likelihood_ratio_scores, which needs none with the record"
        raise ArgumentError(msg)
    means = np.where(chosen, shadows.scores, 0.0).sum(axis=0) / counts
    squares = np.where(chosen, (shadows.scores - means) ** 2, 0.0).sum(axis=0)
    pooled = float(squares.sum() / (counts - 1).sum())
    if not pooled > 0:
        raise ArgumentError(
            f"the models trained {word} a record all give it the same score, for every record: "
            "they are copies of one model. Train shadow models on different parts of the data"
        )
    if spread == "pooled":
        return means, np.full(shadows.n_records, pooled)
    return means, np.maximum(squares / (counts - 1), _LEAST_SHARE * pooled)
