# SPDX-License-Identifier: Apache-2.0
"""Guess the secret from an output: the paper's Gaussian attack, and the best one there is."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import (
    check_above,
    check_between,
    check_count,
    check_finite,
    check_probabilities,
)
from pufferslice._core.text import quoted
from pufferslice.audit.verdict import json_values
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.scenario.distributions import (
    Distribution,
    FiniteDistribution,
    GaussianDistribution,
    GaussianMixture,
    SampledDistribution,
)
from pufferslice.scenario.priors import Prior
from pufferslice.sensitivity.concentration import clopper_pearson
from pufferslice.sensitivity.whitening import Shape

Attack = Literal["gaussian_map", "likelihood_ratio"]
PriorKind = Literal["natural", "balanced"]

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


class Counted(NamedTuple):
    """The result of the trials of an attack."""

    n_trials: int
    accuracy: Interval
    prior_accuracy: Interval
    advantage: Interval


@final
@attrs.frozen(kw_only=True)
class Inference:
    """How often an attack names the secret of an output, among some secrets and under a prior."""

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
    """Of each interval alone."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
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
    means = np.array([mean_of(distribution) for distribution in distributions])
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


def attack_secrets(
    scores: Mapping[str, Floats], shares: Mapping[str, float], *, seed: int, confidence: float
) -> Counted:
    """Draw secrets by `shares`, guess each from one of its outputs, and count.

    `scores[s]` are the log likelihoods of outputs under s, columns in the order of `shares`. Every
    output is used at most once, so the trials are independent and Clopper-Pearson applies.

    Guarantee: each interval fails with probability at most 1 - `confidence`.
    """
    check_between(0, 1, confidence=confidence)
    secrets = list(shares)
    if len(secrets) < 2:
        raise ArgumentError(f"shares must name at least two secrets, got {len(secrets)}")
    for secret in secrets:
        if secret not in scores:
            raise ArgumentError(
                f"there are no scores of outputs under secret {quoted(secret)}; scores must have "
                "an array for each secret of shares"
            )
        if scores[secret].ndim != 2 or scores[secret].shape[1] != len(secrets):
            raise ArgumentError(
                f"scores must have one column for each of {len(secrets)} secrets, got "
                f"{scores[secret].shape} under {quoted(secret)}"
            )
        check_finite(scores=scores[secret])
    probabilities = np.array([shares[secret] for secret in secrets])
    check_probabilities(shares=probabilities, length=len(secrets))
    # Enough outputs whichever secrets are drawn; the number does not depend on the draw.
    n_trials = min(len(scores[secret]) for secret in secrets)
    exact = probabilities / probabilities.sum()
    labels = np.random.default_rng(seed).choice(len(secrets), size=n_trials, p=exact)
    with np.errstate(divide="ignore"):
        weights = np.log(probabilities)
    n_right = 0
    for index, secret in enumerate(secrets):
        n_used = int(np.count_nonzero(labels == index))
        guesses = (scores[secret][:n_used] + weights).argmax(axis=1)
        n_right += int(np.count_nonzero(guesses == index))
    n_likeliest = int(np.count_nonzero(labels == probabilities.argmax()))
    accuracy, prior_accuracy = (
        Interval(n / n_trials, *clopper_pearson(n, n_trials, 1 - confidence))
        for n in (n_right, n_likeliest)
    )
    top = float(probabilities.max())
    advantage = Interval(accuracy.value - top, accuracy.low - top, accuracy.high - top)
    return Counted(n_trials, accuracy, prior_accuracy, advantage)


def infer_secrets(
    outputs: Mapping[str, Floats],
    prior: Prior,
    noise_std: float,
    *,
    pairs: Sequence[tuple[str, str]],
    seed: int,
    confidence: float,
) -> tuple[Inference, ...]:
    """Both attacks, on every pair and on all secrets, under the natural and the balanced prior.

    `outputs` are in scaled coordinates, by secret; `confidence` is that of each interval alone. The
    likelihood-ratio attack uses fewer outputs if the distributions have very many atoms. Noise with
    a shape is isotropic once outputs and prior are whitened, see `whitened_prior`.
    """
    check_count(0, seed=seed)
    secrets = tuple(secret for secret in prior.distributions if secret in outputs)
    if len(secrets) < 2:
        raise ArgumentError("outputs must be of at least two secrets, got those of one or none")
    distributions = [prior.distributions[secret] for secret in secrets]
    n_atoms = sum(max(1, distribution.n_samples) for distribution in distributions)
    most = max(1, _MOST_ENTRIES // (n_atoms * len(secrets)))
    scores: dict[Attack, dict[str, Floats]] = {
        "gaussian_map": {
            secret: gaussian_scores(outputs[secret], distributions, noise_std) for secret in secrets
        },
        "likelihood_ratio": {
            secret: likelihood_scores(outputs[secret][:most], distributions, noise_std)
            for secret in secrets
        },
    }
    subsets = [*map(tuple, pairs), *([secrets] if len(secrets) > 2 else [])]
    inferences = []
    for attack, subset in itertools.product(scores, subsets):
        columns = [secrets.index(secret) for secret in subset]
        chosen = {secret: scores[attack][secret][:, columns] for secret in subset}
        total = sum(prior.secret_probability(secret) for secret in subset)
        shares: dict[PriorKind, dict[str, float]] = {
            "natural": {secret: prior.secret_probability(secret) / total for secret in subset},
            "balanced": dict.fromkeys(subset, 1 / len(subset)),
        }
        for prior_kind, kind_shares in shares.items():
            counted = attack_secrets(chosen, kind_shares, seed=seed, confidence=confidence)
            inference = Inference(
                attack=attack,
                prior=prior.name,
                prior_kind=prior_kind,
                secrets=subset,
                confidence=confidence,
                **counted._asdict(),
            )
            inferences.append(inference)
    return tuple(inferences)


def whitened_prior(prior: Prior, shape: Shape, center: Floats) -> Prior:
    """The prior of whitened outputs; its distributions have a known mean."""
    distributions = {
        secret: _whitened(distribution, shape, center)
        for secret, distribution in prior.distributions.items()
    }
    return attrs.evolve(prior, distributions=distributions)


def _whitened(distribution: Distribution, shape: Shape, center: Floats) -> Distribution:
    if isinstance(distribution, GaussianDistribution):
        return _whitened_gaussian(distribution, shape, center)
    if isinstance(distribution, GaussianMixture):
        components = [_whitened_gaussian(part, shape, center) for part in distribution.components]
        return attrs.evolve(distribution, components=components)
    if isinstance(distribution, FiniteDistribution | SampledDistribution):
        return attrs.evolve(distribution, outputs=shape.whitened(distribution.outputs, center))
    raise ScenarioError(
        "only distributions with known values can be whitened; score the outputs yourself"
    )


def _whitened_gaussian(
    distribution: GaussianDistribution, shape: Shape, center: Floats
) -> GaussianDistribution:
    cov = shape.whitening @ distribution.cov @ shape.whitening.T
    mean = shape.whitened(distribution.mean[None], center)[0]
    return GaussianDistribution(mean=mean, cov=(cov + cov.T) / 2)


def mean_of(distribution: Distribution) -> Floats:
    """Mean of a distribution of the prepared query; streamed distributions do not keep it."""
    mean = distribution.mean
    if mean is None:
        raise ScenarioError(
            "streamed distributions keep counts and no values, so they have no known mean; score "
            "the outputs yourself and use attack_secrets"
        )
    return mean


def _log_likelihood(outputs: Floats, distribution: Distribution, noise_std: float) -> Floats:
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
    known = distribution.atoms()
    if known is None:
        raise ScenarioError(
            "streamed distributions keep counts and no values, so outputs have no known "
            "likelihood; score the outputs yourself and use attack_secrets"
        )
    atoms, counts = known
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
