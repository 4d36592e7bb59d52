# SPDX-License-Identifier: Apache-2.0
"""Property inference: guess from a trained model in which of two worlds it was trained.

Many models are trained in both worlds (`train_repeatedly`), each asked for its class probabilities
on the same public probe records. Some models are the attacker's shadow models, the others are
attacked once each. The share of right guesses is a lower bound on what the model reveals about the
secret, beside the upper bound of the plan.

Suri and Evans 2022, "Formalizing and Estimating Distribution Inference Risks"; Suri, Lu, Chen and
Evans 2023, "Dissecting Distribution Inference".
"""

import math
import os
from collections.abc import Mapping
from typing import Any, Final, final

import attrs
import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp
from scipy.stats import binom

from pufferslice._core.arrays import Floats, Integers, locked_integers
from pufferslice._core.checks import check_between, check_count, check_finite
from pufferslice._core.threads import Progress, silent
from pufferslice.audit.inference import Interval
from pufferslice.audit.membership import Flags, locked_flags
from pufferslice.audit.training import TrainingRuns, train_repeatedly
from pufferslice.audit.verdict import Verdict, fewest, json_values
from pufferslice.claims import Measure, OverBatches
from pufferslice.errors import ArgumentError
from pufferslice.learning import TrainingPlan
from pufferslice.sensitivity.concentration import clopper_pearson

_MOST_RECORDS: Final = 2**40
"""Largest number of records to compare with; as many tell nearly any two shares apart."""
_FEWEST: Final = 2


@final
@attrs.frozen(kw_only=True, eq=False)
class Probes:
    """Public records that every model is asked about: their true classes, and where they are from.

    A model is asked for the logarithms of its class probabilities, shape (n_probes, n_classes); the
    worker of `TrainingRuns` returns them flat.
    """

    labels: Integers = attrs.field(converter=locked_integers)
    """The true class of each record, shape (n_probes,)."""
    from_second: Flags = attrs.field(converter=locked_flags)
    """Whether the record is typical of the second world, shape (n_probes,); of the first else."""
    n_classes: int

    def __attrs_post_init__(self) -> None:
        check_count(2, n_classes=self.n_classes)
        labels, sides = self.labels, self.from_second
        if labels.ndim != 1 or sides.shape != labels.shape:
            raise ArgumentError(
                "labels must be one integer for each probe, and from_second one True or False; got "
                f"shapes {labels.shape} and {sides.shape}"
            )
        if not (labels.size and labels.min() >= 0 and labels.max() < self.n_classes):
            raise ArgumentError(f"labels must lie between 0 and {self.n_classes - 1}")
        if sides.all() or not sides.any():
            raise ArgumentError("from_second must mark some probes and not all: both worlds count")

    def log_probabilities(self, released: Floats) -> Floats:
        """Normalised log-probabilities of models, shape (n_models, n_probes, n_classes)."""
        wanted = len(self.labels) * self.n_classes
        if released.ndim != 2 or released.shape[1] != wanted:
            raise ArgumentError(
                f"each model must release {wanted} numbers, one for each probe and class; got "
                f"shape {released.shape}"
            )
        check_finite(released=released)
        logits = released.reshape(-1, len(self.labels), self.n_classes)
        return np.asarray(logits - logsumexp(logits, axis=2, keepdims=True))


@final
@attrs.frozen(kw_only=True)
class PropertyAttack:
    """Success of one attack that names the world of a model, both worlds equally often."""

    attack: str
    accuracy: Interval
    records_leaked: tuple[int, int] | None
    """As many records of the training data, seen directly, say as much as the model: for the
    observed accuracy and for the lower end of its interval. None without `shares`."""


@final
@attrs.frozen(kw_only=True)
class PropertyAudit:
    """Success of attacks on the world of a model, beside what the plan allows.

    Guarantee: all intervals hold at once with `confidence`, if runs are independent.
    """

    worlds: tuple[str, str]
    n_shadows: int
    """Models of each world that the attacker trains."""
    n_attacked: int
    """Models of each world that are attacked."""
    attacks: tuple[PropertyAttack, ...]
    verdict: Verdict
    """Verdict of the strongest attack on the plan's bound."""
    confidence: float

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        return json_values(self) | {"verdict": self.verdict.to_json()}

    def __str__(self) -> str:
        sizes = f"{self.n_attacked} models of each world attacked, {self.n_shadows} shadow models"
        lines = [f"{sizes} of each"]
        for attack in self.attacks:
            line = f"  {attack.attack}: right guesses {attack.accuracy}"
            if attack.records_leaked is not None:
                seen, least = attack.records_leaked
                line += f", as from seeing {seen} records (at least {least})"
            lines.append(line)
        lines.append(
            f"  the plan allows {self.verdict.claimed:.4f}: {self.verdict.outcome}; guessing gives "
            f"0.5; confidence {self.confidence:g} for all"
        )
        return "\n".join(lines)


def audit_property(
    runs: TrainingRuns,
    probes: Probes,
    *,
    folder: str | os.PathLike[str],
    n_shadows: int,
    confidence: float,
    seed: int,
    shares: tuple[float, float] | None = None,
    n_processes: int | None = None,
    progress: Progress = silent,
) -> PropertyAudit:
    """Train shadow models and others in both worlds, and guess the worlds of the others.

    `n_shadows` of the `n_runs` models of each world, chosen by the public `seed`, are the
    attacker's. `shares`: how common the property is in each world, to say how many records leak.
    The folder keeps finished runs; called again with the same arguments, an audit resumes.

    Guarantee: if what is released keeps the plan's guarantee, the verdict is `refuted` with
    probability at most 1 - `confidence`. It does not cover attacks that were not tried.
    Needs: as `audit_training`; the probes are public and independent of the runs.
    """
    if runs.plan.measure.kind is OverBatches:
        raise ArgumentError(
            "the plan claims a mean over batch draws, which no run can refute; plan for "
            "Guarantee.guess(...)"
        )
    check_between(0, 1, confidence=confidence)
    check_count(0, seed=seed)
    check_count(_FEWEST, n_shadows=n_shadows)
    if n_shadows >= runs.n_runs:
        raise ArgumentError(
            f"n_shadows must be less than n_runs {runs.n_runs}: the other models are attacked; got "
            f"{n_shadows}"
        )
    if shares is not None:
        records_leaked(0.5, shares)
    settings: Mapping[str, Any] = {
        "confidence": float(confidence),
        "seed": int(seed),
        "n_shadows": int(n_shadows),
        "probes": [probes.labels.tolist(), probes.from_second.tolist(), int(probes.n_classes)],
    }
    released = train_repeatedly(
        runs, folder, settings=settings, n_processes=n_processes, progress=progress
    )
    return attack_property(
        runs,
        released,
        probes,
        n_shadows=n_shadows,
        confidence=confidence,
        seed=seed,
        shares=shares,
    )


def attack_property(
    runs: TrainingRuns,
    released: tuple[Floats, Floats],
    probes: Probes,
    *,
    n_shadows: int,
    confidence: float,
    seed: int,
    shares: tuple[float, float] | None = None,
) -> PropertyAudit:
    """The attacks on finished runs: one released vector per row, by world."""
    rng = np.random.default_rng(seed)
    shadows, attacked = [], []
    for values in released:
        models = probes.log_probabilities(values)[rng.permutation(runs.n_runs)]
        shadows.append(models[:n_shadows])
        attacked.append(models[n_shadows:])
    n_attacked = int(runs.n_runs) - n_shadows
    share = (1 - confidence) / 2
    attacks = []
    for name, guess in (("loss", _loss_guesses), ("KL divergence", _divergence_guesses)):
        second = [guess(models, shadows, probes) for models in attacked]
        n_right = int(np.count_nonzero(~second[0])) + int(np.count_nonzero(second[1]))
        accuracy, leaked = mean_interval(n_right, 2 * n_attacked, share), None
        if shares is not None:
            leaked = records_leaked(accuracy.value, shares), records_leaked(accuracy.low, shares)
        attacks.append(PropertyAttack(attack=name, accuracy=accuracy, records_leaked=leaked))
    best = max(attacks, key=lambda attack: attack.accuracy.low)
    verdict = Verdict(
        claim=f"{runs.plan.guarantee()}, whole run",
        quantity="guess",
        claimed=plan_guesses(runs.plan),
        statistic=f"right guesses of the {best.attack} attack",
        lower_bound=best.accuracy.low,
        confidence=confidence,
        refutable_below=mean_interval(2 * n_attacked, 2 * n_attacked, share).low,
        n_outputs=n_attacked,
        pair=runs.worlds,
        prior=runs.plan.differing.origin,
        line=f"{len(probes.labels)} probe records",
    )
    return PropertyAudit(
        worlds=runs.worlds,
        n_shadows=int(n_shadows),
        n_attacked=n_attacked,
        attacks=tuple(attacks),
        verdict=verdict,
        confidence=float(confidence),
    )


def plan_guesses(plan: TrainingPlan) -> float:
    """Most right guesses between two worlds that a plan allows, with ideal noise."""
    return Measure.guess().cost(plan.difference, 1.0)


def mean_interval(n_right: int, n_trials: int, failure_probability: float) -> Interval:
    r"""Clopper-Pearson interval of the mean probability of independent trials that may differ.

    Proof. Let S be the number of successes, p the mean of the probabilities, n the trials. For
    $c \ge np + 1$, $P(S \ge c) \le P(B \ge c)$ with $B \sim \mathrm{Bin}(n, p)$ (Hoeffding 1956,
    theorem 4). The lower end is wrong if S reaches the least c with $P(B \ge c)$ at most half the
    failure probability. If $p \ge 1/n$ and $c < np + 1$, then $P(B \ge c) \ge P(B \ge np) > 1/4$
    (Greenberg and Mohri 2014), so that c is at least np + 1. If $p < 1/n$, a lower end below 1/n is
    replaced by 0, and one above needs $P(\mathrm{Bin}(n, 1/n) \ge c) \le 1/4$, so $c \ge 2$. The
    upper end by symmetry.

    >>> mean_interval(90, 100, 0.05)
    Interval(value=0.9, low=0.8237774..., high=0.9509953...)
    """
    check_between(0, 0.5, failure_probability=failure_probability)
    low, high = clopper_pearson(n_right, n_trials, failure_probability)
    return Interval(
        n_right / n_trials,
        low if low >= 1 / n_trials else 0.0,
        high if high <= 1 - 1 / n_trials else 1.0,
    )


def records_leaked(accuracy: float, shares: tuple[float, float]) -> int:
    """Fewest records seen directly that let someone tell two shares as often as this.

    Of n records, each with the property by chance, the best guess of the share is right with
    probability (1 + TV) / 2, TV the total variation of two binomial distributions.

    >>> records_leaked(0.75, (0.25, 0.75)), records_leaked(0.5, (0.25, 0.75))
    (1, 0)
    """
    for value in shares:
        check_between(0, 1, share=value)
    low, high = sorted(shares)
    if not low < high:
        raise ArgumentError(f"shares must be different, got {low:g} twice")
    if accuracy <= 0.5:
        return 0
    # A count is likelier under the larger share above this multiple of n.
    cut = math.log((1 - low) / (1 - high)) / math.log(high * (1 - low) / (low * (1 - high)))

    def reaches(n: int) -> bool:
        below = math.floor(n * cut)
        apart = float(binom.cdf(below, n, low) - binom.cdf(below, n, high))
        return (1 + apart) / 2 >= accuracy

    return fewest(reaches, most=_MOST_RECORDS) or _MOST_RECORDS


def _loss_guesses(models: Floats, shadows: list[Floats], probes: Probes) -> npt.NDArray[np.bool_]:
    """Guess the second world where the losses on the two kinds of probes differ beyond a cut.

    Cut and side are those with the most right guesses among the shadow models.
    """
    at = np.arange(len(probes.labels))

    def differences(asked: Floats) -> Floats:
        losses = -asked[:, at, probes.labels]
        sides = probes.from_second
        return np.asarray(losses[:, ~sides].mean(axis=1) - losses[:, sides].mean(axis=1))

    first, second = (np.sort(differences(asked)) for asked in shadows)
    places = np.unique(np.concatenate([first, second]))
    cuts = np.concatenate([[-np.inf], (places[1:] + places[:-1]) / 2, [np.inf]])
    below = np.searchsorted(first, cuts) + len(second) - np.searchsorted(second, cuts)
    total = len(first) + len(second)
    is_above = below.max() >= (total - below).max()
    cut = cuts[(below if is_above else total - below).argmax()]
    return np.asarray((differences(models) > cut) == is_above)


def _divergence_guesses(
    models: Floats, shadows: list[Floats], probes: Probes
) -> npt.NDArray[np.bool_]:
    """Guess the second world where, of pairs of shadow models, mostly the second is closer.

    Closer by the mean Kullback-Leibler divergence over all probes.
    """
    del probes

    def divergences(asked: Floats) -> Floats:
        """Divergences from each shadow model to each attacked one, shape (n_models, n_shadows)."""
        chances = np.exp(asked)
        agreement = (chances * asked).sum(axis=(1, 2))
        cross = np.einsum("spc,mpc->ms", chances, models, optimize=True)
        return np.asarray((agreement - cross) / asked.shape[1])

    near, far = divergences(shadows[0]), divergences(shadows[1])
    closer = (far[:, None, :] < near[:, :, None]).mean(axis=(1, 2))
    return np.asarray(closer > 0.5)
