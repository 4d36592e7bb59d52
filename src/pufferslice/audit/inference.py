# SPDX-License-Identifier: Apache-2.0
"""Guess the secret from an output: the paper's Gaussian attack, and the best one there is."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above
from pufferslice._core.text import quoted
from pufferslice.audit.verdict import json_values
from pufferslice.scenario.distributions import (
    Distribution,
    FiniteDistribution,
    GaussianDistribution,
    GaussianMixture,
)
from pufferslice.scenario.priors import Prior
from pufferslice.scenario.rows import RowDistribution
from pufferslice.sensitivity.concentration import clopper_pearson
from pufferslice.sensitivity.whitening import Shape

Attack = Literal["gaussian_map", "likelihood_ratio"]
PriorKind = Literal["natural", "balanced"]
Values = TypeVar("Values")

_ENTRIES_AT_ONCE: Final = 2**21
_MOST_ENTRIES: Final = 2**27
"""Largest number of outputs times atoms for the likelihood-ratio attack."""


@final
@attrs.frozen
class Interval:
    """An observed share, and a confidence interval of its expectation."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@final
@attrs.frozen(kw_only=True)
class Inference:
    """Success of an attack that names the secret of an output, among some and under a prior."""

    attack: Attack
    prior: str
    prior_kind: PriorKind
    """`natural`, the prior's own shares, or `balanced`, all secrets equally likely."""
    secrets: tuple[str, ...]
    n_trials: int
    accuracy: Interval
    prior_accuracy: Interval
    """Accuracy of always naming the likeliest secret."""
    advantage: Interval
    """Accuracy less the largest share of the prior, which is known."""
    confidence: float
    """Confidence of each interval alone."""

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        return json_values(self)

    def __str__(self) -> str:
        among = " or ".join(map(quoted, self.secrets)) if len(self.secrets) == 2 else "all secrets"
        return (
            f"{self.attack}, {self.prior_kind} prior, {among}: accuracy {self.accuracy}, "
            f"prior {self.prior_accuracy}, advantage {self.advantage}"
        )


def gaussian_scores(
    outputs: Floats, distributions: Sequence[Distribution], noise_std: float
) -> Floats:
    r"""Log density of N(mean of the distribution, noise variance), up to a constant.

    Shape (n, n_distributions). The attack of the paper's experiments:
    $\hat s(y) = \arg\max_s \ln \pi(s) + \ln \phi(y; \mu_s, \sigma^2 I)$.
    """
    check_above(0, noise_std=noise_std)
    means = np.array([distribution.mean for distribution in distributions])
    return _gaussian_kernel(outputs, means, noise_std)


def likelihood_scores(
    outputs: Floats, distributions: Sequence[Distribution], noise_std: float
) -> Floats:
    """Log density of the noisy output under each distribution, up to a constant.

    Shape (n, n_distributions). With the shares of the prior this is the most accurate attack, if
    the distributions and the noise are as declared.
    """
    check_above(0, noise_std=noise_std)
    columns = [_log_likelihood(outputs, distribution, noise_std) for distribution in distributions]
    return np.stack(columns, axis=1)


def infer_secrets(
    outputs: Mapping[str, Floats],
    prior: Prior,
    noise_std: float,
    *,
    pairs: Sequence[tuple[str, str]],
    seed: int,
    confidence: float,
) -> tuple[Inference, ...]:
    """Attack every pair and all secrets in two ways, under the natural and the balanced prior.

    `outputs` are in scaled coordinates, by secret; `confidence` is that of each interval alone. The
    likelihood-ratio attack uses fewer outputs if the distributions have very many atoms. Noise with
    a shape is isotropic once outputs and prior are whitened, see `whitened_prior`.
    """
    secrets = tuple(prior.distributions)
    distributions = list(prior.distributions.values())
    n_atoms = sum(max(1, distribution.n_samples) for distribution in distributions)
    most = max(1, _MOST_ENTRIES // (n_atoms * len(secrets)))
    scores: dict[Attack, list[Floats]] = {
        "gaussian_map": [
            gaussian_scores(outputs[secret], distributions, noise_std) for secret in secrets
        ],
        "likelihood_ratio": [
            likelihood_scores(outputs[secret][:most], distributions, noise_std)
            for secret in secrets
        ],
    }
    inferences = []
    for attack, subset in itertools.product(scores, [*pairs, *([secrets] if secrets[2:] else [])]):
        columns = [secrets.index(secret) for secret in subset]
        chosen = [scores[attack][column][:, columns] for column in columns]
        natural = [prior.secret_probability(secret) for secret in subset]
        shares: dict[PriorKind, list[float]] = {
            "natural": [share / sum(natural) for share in natural],
            "balanced": [1 / len(subset)] * len(subset),
        }
        for kind, kind_shares in shares.items():
            n_trials, accuracy, prior_accuracy, advantage = attack_secrets(
                chosen, np.array(kind_shares), seed=seed, confidence=confidence
            )
            inference = Inference(
                attack=attack,
                prior=prior.name,
                prior_kind=kind,
                secrets=tuple(subset),
                n_trials=n_trials,
                accuracy=accuracy,
                prior_accuracy=prior_accuracy,
                advantage=advantage,
                confidence=confidence,
            )
            inferences.append(inference)
    return tuple(inferences)


def attack_secrets(
    scores: Sequence[Floats], shares: Floats, *, seed: int, confidence: float
) -> tuple[int, Interval, Interval, Interval]:
    """Draw secrets by `shares`, guess each from one of its outputs, and count.

    `scores[i]` are the log likelihoods of outputs under secret i, a column for each secret. Every
    output is used at most once, so the trials are independent and Clopper-Pearson applies. Returns
    the number of trials, accuracy, accuracy of the likeliest secret, and advantage.

    Guarantee: each interval fails with probability at most 1 - `confidence`.
    """
    # Enough outputs whichever secrets are drawn; the number does not depend on the draw.
    n_trials = min(map(len, scores))
    labels = np.random.default_rng(seed).choice(len(shares), size=n_trials, p=shares / shares.sum())
    with np.errstate(divide="ignore"):
        weights = np.log(shares)
    n_right = 0
    for index, rows in enumerate(scores):
        n_used = int(np.count_nonzero(labels == index))
        guesses = (rows[:n_used] + weights).argmax(axis=1)
        n_right += int(np.count_nonzero(guesses == index))
    n_likeliest = int(np.count_nonzero(labels == shares.argmax()))
    accuracy, prior_accuracy = (
        Interval(n / n_trials, *clopper_pearson(n, n_trials, 1 - confidence))
        for n in (n_right, n_likeliest)
    )
    top = float(shares.max())
    advantage = Interval(accuracy.value - top, accuracy.low - top, accuracy.high - top)
    return n_trials, accuracy, prior_accuracy, advantage


def whitened_prior(prior: Prior, shape: Shape, center: Floats) -> Prior:
    """The prior of whitened outputs; its distributions have a known mean."""
    distributions = {
        secret: _whitened(distribution, shape, center)
        for secret, distribution in prior.distributions.items()
    }
    gaussian = {
        secret: distribution
        for secret, distribution in distributions.items()
        if isinstance(distribution, GaussianDistribution | GaussianMixture)
    }
    return attrs.evolve(prior, distributions=distributions, declared=gaussian)


def _whitened(distribution: Distribution, shape: Shape, center: Floats) -> Distribution:
    def gaussian(part: GaussianDistribution) -> GaussianDistribution:
        cov = shape.whitening @ part.cov @ shape.whitening.T
        mean = shape.whitened(part.mean[None], center)[0]
        return GaussianDistribution(mean=mean, cov=(cov + cov.T) / 2)

    if isinstance(distribution, RowDistribution):
        # An attack may take sums of rows for Gaussians; a promise may not.
        distribution = GaussianDistribution(mean=distribution.mean, cov=distribution.cov)
    if isinstance(distribution, GaussianDistribution):
        return gaussian(distribution)
    if isinstance(distribution, GaussianMixture):
        return attrs.evolve(distribution, components=map(gaussian, distribution.components))
    atoms, counts = distribution.atoms()  # type: ignore[misc]  # only Gaussians have none
    return FiniteDistribution(outputs=shape.whitened(atoms, center), counts=counts)


def _log_likelihood(outputs: Floats, distribution: Distribution, noise_std: float) -> Floats:
    if isinstance(distribution, RowDistribution):
        distribution = GaussianDistribution(mean=distribution.mean, cov=distribution.cov)
    if isinstance(distribution, GaussianDistribution):
        cov = distribution.cov + noise_std**2 * np.eye(distribution.dim)
        factor = np.linalg.cholesky(cov)
        standard = np.linalg.solve(factor, (outputs - distribution.mean).T)
        # The same constant as below: that of N(0, noise variance).
        spread = np.log(np.diag(factor)).sum() - distribution.dim * math.log(noise_std)
        return np.asarray(-(standard**2).sum(axis=0) / 2 - spread)
    if isinstance(distribution, GaussianMixture):
        parts = [_log_likelihood(outputs, part, noise_std) for part in distribution.components]
        weights = np.log(distribution.counts / distribution.counts.sum())
        return np.asarray(np.logaddexp.reduce(np.array(parts) + weights[:, None], axis=0))
    atoms, counts = distribution.atoms()  # type: ignore[misc]  # only Gaussians have none
    shares = counts / counts.sum()
    block = max(1, _ENTRIES_AT_ONCE // len(atoms))
    result = np.empty(len(outputs))
    for start in range(0, len(outputs), block):
        logs = _gaussian_kernel(outputs[start : start + block], atoms, noise_std) + np.log(shares)
        top = logs.max(axis=1, keepdims=True)
        total = np.exp(logs - top).sum(axis=1)
        result[start : start + block] = top[:, 0] + np.log(total)
    return result


def _gaussian_kernel(outputs: Floats, centers: Floats, noise_std: float) -> Floats:
    """-|y - c|^2 / (2 noise variance), shape (n, n_centers); both centred to keep precision."""
    middle = centers.mean(axis=0)
    y, c = (outputs - middle) / noise_std, (centers - middle) / noise_std
    squares = (y**2).sum(axis=1)[:, None] - 2 * (y @ c.T) + (c**2).sum(axis=1)
    return np.asarray(-squares / 2)
