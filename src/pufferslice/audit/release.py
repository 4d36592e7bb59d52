# SPDX-License-Identifier: Apache-2.0
"""The audit of a static certificate: outputs, attacks, and a verdict on every claim."""

import io
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, Integers, arrays_in, locked
from pufferslice._core.checks import check_between, check_count, check_finite, is_a
from pufferslice._core.display import Shown
from pufferslice._core.files import (
    CONFIDENTIAL,
    canonical_json,
    parsed_json,
    read_bytes,
    write_whole,
)
from pufferslice._core.numbers import at_most, in_full, percent_at_most
from pufferslice._core.sampler import SIGMA_INT, Noise, OperatingSystemNoise
from pufferslice._core.text import listed, quoted
from pufferslice._core.threads import Progress, silent
from pufferslice.audit.divergence import (
    Aggregation,
    Claimed,
    Comparison,
    Lines,
    LineTest,
    RenyiTest,
    SplitOutputs,
    audit_lines,
    audit_slices,
    both_orders,
    check_in_reach,
    delta_test,
    epsilon_test,
    guess_test,
    joint_over,
    mean_over,
    mean_over_sphere,
    outside_of,
)
from pufferslice.audit.inference import (
    Inference,
    infer_secrets,
    likelihood_scores,
    whitened_prior,
)
from pufferslice.audit.noise import WHITENED, audit_noise, pilot_lines
from pufferslice.audit.verdict import NEVER_PROVES, Verdict, json_values
from pufferslice.certificate import Certificate
from pufferslice.certificate.files import read_audit
from pufferslice.claims import Claim
from pufferslice.claims.views import best_views
from pufferslice.errors import ArgumentError, ScenarioError, TableError, escaped
from pufferslice.releases.release import quantised
from pufferslice.scenario.distributions import Distribution
from pufferslice.scenario.priors import Prior
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.concentration import split
from pufferslice.sensitivity.profiles import (
    AnyProfile,
    Profile,
    SampledSphere,
    WholeSphere,
    check_profile,
)
from pufferslice.sensitivity.whitening import Shape

FORMAT: Final = "pufferslice-outputs"
VERSION: Final = 1

AUDIT_FORMAT: Final = "pufferslice-audit"
AUDIT_VERSION: Final = 5

LARGEST_RATIO: Final = 2**18
"""Largest distance from the centre in noise standard deviations: integers of 64 bits."""

_SPHERE_CAP: Final = 8.0
"""Cap of divergences along drawn directions, in multiples of the claim."""

STATED: Final = "the mean difference over the stated covariance"
RATIO: Final = "the likelihood ratio"

_MOST_RATIOS: Final = 2**23
"""Largest number of outputs of a secret times atoms of a pair for the likelihood ratio."""

_NOISE_PARTS: Final = 1000
"""Parts of the failure probability, of which one is for the stated noise. Its test is tight, so it
would use all that it gets, while bounds on divergences stay far below the truth."""

_SHUFFLE: Final = 2**31
_DIRECTIONS: Final = _SHUFFLE + 1
"""Seeds of their own: the streams of the distributions are numbered from 0."""
_N_DIRECTIONS: Final = 1_000
"""Number of directions that are drawn to test a claim along the whole sphere."""

_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError)


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class Outputs:
    """Independent outputs of one mechanism under every prior and secret.

    Confidential: the mean of many outputs is close to the query itself.
    """

    certificate: str
    """Digest of the certificate of the mechanism."""
    values: Mapping[str, Mapping[str, Floats]]
    """Outputs by prior and secret, in scaled coordinates, shape (n, dim)."""

    @property
    def n_outputs(self) -> int:
        """Number of outputs under the secret that has fewest."""
        return min(len(array) for secrets in self.values.values() for array in secrets.values())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a compressed numpy archive, whole, readable by its owner only."""
        names = [[prior, secret] for prior, secrets in self.values.items() for secret in secrets]
        facts = {
            "format": FORMAT,
            "version": VERSION,
            "certificate": self.certificate,
            "names": names,
        }
        arrays: dict[str, Any] = {
            f"values_{index}": self.values[prior][secret]
            for index, (prior, secret) in enumerate(names)
        }
        file = io.BytesIO()
        packed = np.frombuffer(canonical_json(facts), dtype=np.uint8)
        np.savez_compressed(file, facts=packed, **arrays)
        write_whole(path, file.getvalue(), CONFIDENTIAL)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Outputs":
        """Read a file of `save`."""
        content = read_bytes(path, "archive")
        try:
            arrays = arrays_in(content)
            facts = parsed_json(arrays["facts"].tobytes())
            if facts["format"] != FORMAT or facts["version"] != VERSION:
                raise ValueError(facts["format"])
            values: dict[str, dict[str, Floats]] = {}
            for index, (prior, secret) in enumerate(facts["names"]):
                values.setdefault(prior, {})[secret] = locked(arrays[f"values_{index}"])
            return cls(certificate=str(facts["certificate"]), values=values)
        except _UNREADABLE as error:
            raise TableError(
                f"{str(path)!r} does not hold outputs; write them with Outputs.save"
            ) from error

    def __repr__(self) -> str:
        return f"Outputs(certificate='{self.certificate[:12]}…', n_outputs={self.n_outputs})"


def draw_outputs(
    scenario: Scenario,
    certificate: Certificate,
    n_outputs: int,
    *,
    seed: int,
    noise: Noise = OperatingSystemNoise(),  # noqa: B008 - it has no state
) -> Outputs:
    """Fresh outputs under every prior and secret, each as from one release.

    A value is drawn from the distribution, whitened and put on the grid by the functions that a
    release uses, noise is added in integers, and the sum is mapped back. `seed` is that of the
    values, not of the noise.

    Needs: distributions that can be drawn from. Values of sampled priors are drawn from the sample:
    the bands around a sample contain the sample, so the claim covers it.
    """
    check_count(1, n_outputs=n_outputs)
    check_count(0, seed=seed)
    check_scenario(scenario, certificate)
    query, noise_std, shape = scenario.query, certificate.noise_std, certificate.shape
    places = [(prior, secret) for prior in scenario.priors for secret in prior.distributions]
    # One call, because a seeded test generator starts the same stream again at every call.
    size = len(places) * n_outputs * query.dim
    draws = noise.draw(size if noise_std else 0).reshape(-1, n_outputs, query.dim)
    values: dict[str, dict[str, Floats]] = {}
    for index, (prior, secret) in enumerate(places):
        rng = np.random.default_rng([seed, index])
        atoms, where = prior.distributions[secret].draw(n_outputs, rng=rng)
        drawn = atoms[where]
        if noise_std:
            used, back = np.unique(where, return_inverse=True)
            whole = quantised_rows(atoms[used], query.center, noise_std, shape)
            grid = whole[back] + draws[index]
            if shape is None:
                drawn = query.center + grid * (noise_std / SIGMA_INT)
            else:
                # Wide, because what is small in one direction is a difference of what is large.
                noisy = grid.astype(np.longdouble) * (np.longdouble(noise_std) / SIGMA_INT)
                drawn = (query.center + noisy @ shape.coloring.T).astype(np.float64)
        values.setdefault(prior.name, {})[secret] = locked(drawn)
    return Outputs(certificate=certificate.digest, values=values)


def supplied_outputs(
    scenario: Scenario, certificate: Certificate, released: Mapping[str, Any]
) -> Outputs:
    """Outputs from elsewhere, by secret, in the user's units, shape (n, dim) each.

    With several priors, `released` maps the name of each prior to such a mapping.

    Needs: independent outputs of the mechanism that `certificate` is about.
    """
    check_scenario(scenario, certificate)
    alone = len(scenario.priors) == 1
    by_prior = {scenario.priors[0].name: released} if alone else released
    values: dict[str, dict[str, Floats]] = {}
    for prior in scenario.priors:
        arrays = by_prior.get(prior.name, {})
        absent = [secret for secret in prior.distributions if secret not in arrays]
        unknown = [secret for secret in arrays if secret not in prior.distributions]
        if absent or unknown:
            raise ArgumentError(
                f"outputs must be given for every secret of prior {quoted(prior.name)} and no "
                f"other; absent: {listed(absent) or 'none'}, unknown: {listed(unknown) or 'none'}"
            )
        values[prior.name] = {}
        for secret, array in arrays.items():
            numbers = locked(array)
            _check_array(numbers, scenario.dim)
            values[prior.name][secret] = locked(numbers / scenario.query.scales)
    return Outputs(certificate=certificate.digest, values=values)


def check_scenario(scenario: Scenario, certificate: Certificate) -> None:
    """Raise unless the certificate is of a release of this scenario."""
    if certificate.workflow != "release":
        raise ArgumentError(
            "this certificate is of a training run, which has no distributions to draw from; "
            "audit it in Python, with audit_training"
        )
    evidence = certificate.evidence
    other = (
        evidence is not None
        and evidence.confidential["distributions_digest"] != scenario.distributions_digest()
    )
    if other or certificate.released.scenario.to_json() != scenario.description():
        raise ScenarioError(
            "the certificate was issued for another scenario; audit it with the scenario that was "
            "certified, or certify this one"
        )


def quantised_rows(
    values: Floats, center: Floats, noise_std: float, shape: Shape | None = None
) -> Integers:
    """`quantised` of every row, the same integers; it is called only for rows close to a tie."""
    if shape is None:
        wide = values.astype(np.longdouble) - center.astype(np.longdouble)
    else:
        wide = shape.whitened(values, center).astype(np.longdouble)
    if not float(np.abs(wide).max()) < LARGEST_RATIO * noise_std:
        raise ScenarioError(
            f"the distributions reach farther than {LARGEST_RATIO} noise standard deviations from "
            "the public centre of the query; audits draw in 64 bits. Centre the query with a "
            "range"
        )
    steps = wide * SIGMA_INT / np.longdouble(noise_std)
    grid = np.rint(steps)
    # Three roundings, each of at most half an eps.
    error = np.abs(steps) * (2 * np.finfo(np.longdouble).eps)
    unsure = (np.abs(steps - grid) + error >= 0.5).any(axis=1)
    result: Integers = grid.astype(np.int64)
    for row in np.flatnonzero(unsure):
        result[row] = quantised(values[row], center, noise_std, shape)
    return result


def _check_array(array: Floats, dim: int) -> None:
    if array.ndim != 2 or array.shape[1] != dim or not len(array):
        raise ArgumentError(f"outputs must have shape (n, {dim}), n at least 1; got {array.shape}")
    check_finite(outputs=array)


@final
@attrs.frozen(kw_only=True)
class Audit(Shown):
    """The result of all attacks on a certificate.

    Guarantee: if everything that the certificate states holds, `refuted` is true with probability
    at most 1 - `confidence`. An audit never proves a claim.
    """

    certificate: str
    """Digest of the certificate."""
    confidence: float
    """Confidence of all verdicts together."""
    n_outputs: int
    """Number of outputs under each secret, the fewest."""
    verdicts: tuple[Verdict, ...]
    inferences: tuple[Inference, ...]
    """Attacks on the secret itself; they refute nothing by themselves."""
    unaudited: tuple[str, ...]
    """Statements of the certificate without a verdict, and why."""

    @property
    def refuted(self) -> bool:
        """Whether any claim is refuted."""
        return any(verdict.refuted for verdict in self.verdicts)

    @property
    def best_inferences(self) -> list[Inference]:
        """Pair or set of secrets with the largest advantage, by attack and kind of prior."""
        best: dict[tuple[str, str], Inference] = {}
        for inference in self.inferences:
            key = (inference.attack, inference.prior_kind)
            if key not in best or inference.advantage.value > best[key].advantage.value:
                best[key] = inference
        return list(best.values())

    def to_json(self) -> dict[str, Any]:
        """The audit file as JSON values."""
        document: dict[str, Any] = {
            "format": AUDIT_FORMAT,
            "version": AUDIT_VERSION,
            "refuted": self.refuted,
        }
        document |= json_values(self)
        document["verdicts"] = [verdict.to_json() for verdict in self.verdicts]
        read_audit(document)
        return document

    def table_rows(self) -> list[dict[str, Any]]:
        """One row per verdict."""
        return [row for verdict in self.verdicts for row in verdict.table_rows()]

    def sentences(self) -> list[str]:
        """What an audit can show."""
        return [NEVER_PROVES]

    def __str__(self) -> str:
        head = "REFUTED" if self.refuted else "NOT REFUTED"
        certificate = escaped(self.certificate[:16])
        lines = [
            f"{head} at confidence {self.confidence:g}, certificate {certificate}",
            NEVER_PROVES,
            "",
            *(str(verdict) for verdict in self.verdicts),
            *(f"NOT AUDITED: {escaped(text)}" for text in self.unaudited),
        ]
        if self.inferences:
            each = self.inferences[0].confidence
            alone = f"each interval alone has confidence {each:g}"
            lines += ["", f"Guessing the secret, where it succeeds best ({alone}):"]
            lines += [f"  {inference}" for inference in self.best_inferences]
        return "\n".join(lines)


class _Question(NamedTuple):
    """One claim and its test."""

    test: LineTest
    claimed: Claimed
    aggregation: Callable[[float, int], Aggregation] | None = None
    """Aggregation from a failure probability and a number of comparisons; None on the best line."""


def audit_release(
    scenario: Scenario,
    profile: AnyProfile | None,
    certificate: Certificate,
    *,
    n_outputs: int,
    confidence: float,
    seed: int,
    noise: Noise = OperatingSystemNoise(),  # noqa: B008 - it has no state
    progress: Progress = silent,
) -> Audit:
    """Draw fresh outputs as releases would, and try to refute what the certificate states.

    `profile` has the slices of a sliced claim; a claim about the whole output needs none.

    Guarantee: that of `Audit`. `seed` is that of the values drawn from the distributions and of the
    pilot, never of the noise.
    """
    _slices(profile, certificate, seed)
    outputs = draw_outputs(scenario, certificate, n_outputs, seed=seed, noise=noise)
    return audit_outputs(
        scenario,
        profile,
        certificate,
        outputs,
        confidence=confidence,
        seed=seed,
        progress=progress,
    )


def audit_outputs(
    scenario: Scenario,
    profile: AnyProfile | None,
    certificate: Certificate,
    outputs: Outputs,
    *,
    confidence: float,
    seed: int,
    progress: Progress = silent,
) -> Audit:
    """Audit available outputs as `audit_release` does; see `supplied_outputs`.

    Needs: independent outputs of the mechanism that is to be audited.
    """
    check_between(0, 1, confidence=confidence)
    check_count(0, seed=seed)
    check_scenario(scenario, certificate)
    slices = _slices(profile, certificate, seed)
    if outputs.certificate != certificate.digest:
        raise ArgumentError(
            f"the outputs were made under certificate {outputs.certificate[:12]}, not under "
            f"{certificate.digest[:12]}; give those of the mechanism that is audited"
        )
    questions, unaudited = _questions(certificate, slices)
    noise_std, shape, center = certificate.noise_std, certificate.shape, scenario.query.center
    n_questions = len(questions) + (noise_std > 0)
    noise_share = split(1 - confidence, _NOISE_PARTS) if noise_std > 0 else 0.0
    share = split(1 - confidence - noise_share, len(questions))
    parts = _parts(scenario, outputs, np.random.default_rng([seed, _SHUFFLE]))
    comparisons = [
        comparison
        for prior, secrets in parts.items()
        for comparison in both_orders(prior, secrets, scenario.pairs)
    ]
    beliefs = {
        prior.name: prior if shape is None else whitened_prior(prior, shape, center)
        for prior in scenario.priors
        if noise_std > 0 and all(d.mean is not None for d in prior.distributions.values())
    }
    lines = _lines(scenario, comparisons, shape)
    lines += _ratio_lines(scenario, comparisons, certificate, beliefs)
    verdicts = []
    for done, (test, claimed, aggregation) in enumerate(questions):
        progress(done, n_questions)
        if aggregation is None or slices is None:
            verdicts.append(audit_lines(lines, test, claimed, confidence=1 - share))
            continue
        verdict = audit_slices(
            comparisons,
            test,
            claimed,
            lines=Lines(slices.directions, [f"slice {at}" for at in range(slices.n_directions)]),
            aggregation=aggregation(share / 2, len(comparisons)),
            confidence=1 - share,
        )
        verdicts.append(verdict)
    check_in_reach(verdicts, questions[0].test, 1 if slices is None else slices.n_directions)
    inferences: list[Inference] = []
    if noise_std > 0:
        progress(len(questions), n_questions)
        verdicts.append(
            audit_noise(
                parts,
                [f"axis {name}" for name in scenario.query.names],
                noise_std=noise_std,
                center=center,
                confidence=1 - noise_share,
                shape=shape,
            )
        )
        for prior, belief in beliefs.items():
            values = outputs.values[prior]
            inferences += infer_secrets(
                {secret: _white(rows, center, shape) for secret, rows in values.items()},
                belief,
                noise_std,
                pairs=scenario.pairs,
                seed=seed,
                confidence=confidence,
            )
    progress(n_questions, n_questions)
    return Audit(
        certificate=certificate.digest,
        confidence=confidence,
        n_outputs=outputs.n_outputs,
        verdicts=tuple(verdicts),
        inferences=tuple(inferences),
        unaudited=tuple(unaudited),
    )


def _questions(
    certificate: Certificate, profile: Profile | None
) -> tuple[list[_Question], list[str]]:
    """A test of each statement of the certificate, and the statements without one."""
    claim, unsliced = certificate.guarantee, certificate.released.unsliced
    main, unaudited = _main_question(claim, profile), []
    questions = [] if main is None else [main]
    if main is None:
        unaudited.append(f"{claim}: no attack bounds it; numbers that follow from it are audited")
    if unsliced.epsilon is None:
        unaudited.append(f"the unsliced cost: the certificate states none ({unsliced.source})")
    elif claim.is_sliced or not claim.has_order:
        order, epsilon = unsliced.order, unsliced.epsilon
        words = f"the unsliced bound ({in_full(order)}, {at_most(epsilon)})-RPP"
        questions.append(_Question(RenyiTest(order), Claimed(words, "epsilon", epsilon)))
    guess = unsliced.guess
    is_new = main is None or main.claimed.quantity != "guess"
    if not claim.is_sliced and is_new and guess is not None:
        share = percent_at_most(guess).replace("\u00a0", " ")
        words = f"the stated right guesses, at most {share}"
        questions.append(_Question(guess_test(), Claimed(words, "guess", guess)))
    # The smallest epsilon of every scope and delta; the larger ones follow.
    for view in best_views(certificate.released.views):
        scope, delta, epsilon = view.scope, view.delta, view.epsilon
        words = f"the view ({at_most(epsilon)}, {in_full(delta)}), {scope}"
        if scope == "unsliced":
            questions.append(_Question(epsilon_test(delta), Claimed(words, "epsilon", epsilon)))
        elif profile is not None and epsilon > 0 and not isinstance(profile, SampledSphere):
            notion = "joint" if "joint" in scope else "average"
            questions.append(_approximate_question(words, notion, epsilon, delta, profile))
    if isinstance(profile, SampledSphere):
        unaudited.append("the views along slices of the sphere, which follow from the claim")
    if not questions:
        raise ArgumentError(
            f"the certificate states nothing that an attack could refute: {listed(unaudited)}"
        )
    return questions, unaudited


def _main_question(claim: Claim, profile: Profile | None) -> _Question | None:
    """The test of the claim itself; None if no attack bounds what it bounds."""
    if claim.hockey_stick is not None:
        epsilon, delta = claim.hockey_stick
        if epsilon == 0:  # total variation, which bounds right guesses
            return _Question(guess_test(), Claimed(str(claim), "guess", (1 + delta) / 2))
        return _approximate_question(str(claim), claim.notion, epsilon, delta, profile)
    if not claim.has_order:
        return None
    order, epsilon = claim.reported_order, claim.bound
    test, claimed = RenyiTest(order), Claimed(str(claim), "epsilon", epsilon)
    if profile is None:
        return _Question(test, claimed)
    if isinstance(profile, SampledSphere):
        n_directions, cap = profile.n_directions, _SPHERE_CAP * epsilon
        return _Question(test, claimed, partial(mean_over_sphere, n_directions, cap))
    joint = claim.notion == "joint"
    slices = joint_over(profile.weights, order) if joint else mean_over(profile.weights)
    return _Question(test, claimed, lambda *_: slices)


def _approximate_question(
    words: str, notion: str, epsilon: float, delta: float, profile: Profile | None
) -> _Question:
    """Test delta of the whole output; over slices the mean of deltas if joint, else epsilons."""
    mean = None if profile is None else mean_over(profile.weights)
    aggregation = None if mean is None else lambda *_: mean
    if mean is not None and notion != "joint":
        return _Question(epsilon_test(delta), Claimed(words, "epsilon", epsilon), aggregation)
    return _Question(delta_test(epsilon), Claimed(words, "delta", delta), aggregation)


def _parts(
    scenario: Scenario, outputs: Outputs, rng: np.random.Generator
) -> dict[str, dict[str, SplitOutputs]]:
    """The outputs of every prior and secret, checked and split."""
    parts = {}
    for prior in scenario.priors:
        arrays = outputs.values.get(prior.name, {})
        for secret in prior.distributions:
            if secret not in arrays:
                name = quoted(prior.name)
                raise ArgumentError(
                    f"there are no outputs under prior {name} and secret {quoted(secret)}"
                )
            _check_array(arrays[secret], scenario.dim)
        parts[prior.name] = {
            secret: SplitOutputs.of(values, rng=rng) for secret, values in arrays.items()
        }
    return parts


def _lines(
    scenario: Scenario, comparisons: Sequence[Comparison], shape: Shape | None
) -> list[tuple[Comparison, Lines]]:
    r"""Axes, the difference of the means where it is known, and the lines of the pilot.

    With a shape also $\Sigma^{-1}\Delta$, along which the stated noise hides a difference of means
    least; lines of the pilot are found in whitened coordinates.
    """
    white = partial(_white, center=scenario.query.center, shape=shape)

    def beyond(pilot: Floats) -> Callable[[Floats], npt.NDArray[np.bool_]]:
        is_outside = outside_of(pilot)
        return lambda outputs: is_outside(white(outputs))

    distributions = {prior.name: prior.distributions for prior in scenario.priors}
    candidates = []
    for comparison in comparisons:
        first, second = (distributions[comparison.prior][secret] for secret in comparison.pair)
        directions = [*np.eye(scenario.dim)]
        names = [f"axis {name}" for name in scenario.query.names]
        shift = first.mean - second.mean
        if shift.any() and scenario.dim > 1:
            directions = [_unit(shift), *directions]
            names = ["the mean difference", *names]
            if shape is not None:
                directions = [_unit(shape.whitening.T @ (shape.whitening @ shift)), *directions]
                names = [STATED, *names]
        pilots = [white(part.pilot) for part in comparison.outputs]
        recommended = pilot_lines(*pilots)
        if shape is not None:
            recommended = {n: _unit(shape.whitening.T @ w) for n, w in recommended.items()}
        lines = Lines(np.array([*directions, *recommended.values()]), [*names, *recommended])
        candidates.append((comparison, lines))
        if WHITENED in recommended:
            names = [f"{WHITENED}, and out of the range of {comparison.pair[1]!r}"]
            line = Lines(recommended[WHITENED][None], names, beyond(pilots[1]))
            candidates.append((comparison, line))
    return candidates


def _ratio_lines(
    scenario: Scenario,
    comparisons: Sequence[Comparison],
    certificate: Certificate,
    beliefs: Mapping[str, Prior],
) -> list[tuple[Comparison, Lines]]:
    """The likelihood ratio of two secrets: of all numbers it distinguishes them best.

    `beliefs` are priors in whitened coordinates. Between two points the ratio is that along a line
    that is tested anyway, and with many atoms it takes too long.
    """
    center, noise_std, shape = scenario.query.center, certificate.noise_std, certificate.shape

    def ratios(outputs: Floats, pair: Sequence[Distribution]) -> Floats:
        scores = likelihood_scores(_white(outputs, center, shape), pair, noise_std)
        return scores[:, :1] - scores[:, 1:]

    candidates = []
    for comparison in comparisons:
        belief = beliefs.get(comparison.prior)
        if belief is None:
            continue
        pair = [belief.distributions[secret] for secret in comparison.pair]
        sizes = [distribution.n_samples for distribution in pair]
        if sizes != [1, 1] and sum(sizes) * comparison.n_outputs <= _MOST_RATIOS:
            line = Lines(np.ones((1, 1)), [RATIO], None, partial(ratios, pair=pair))
            candidates.append((comparison, line))
    return candidates


def _white(outputs: Floats, center: Floats, shape: Shape | None) -> Floats:
    return outputs if shape is None else shape.whitened(outputs, center)


def _unit(vector: Floats) -> Floats:
    return np.asarray(vector / np.linalg.norm(vector))


def _slices(profile: AnyProfile | None, certificate: Certificate, seed: int) -> Profile | None:
    """The slices of the claim, drawn for the whole sphere; None if it is about the whole output."""
    if profile is not None:
        check_profile(profile, profile.dim if is_a(profile, AnyProfile) else 1)
    if not certificate.guarantee.is_sliced:
        return None
    if profile is None:
        raise ArgumentError(
            f"{certificate.guarantee} is a claim along slices; give the profile that was "
            "certified, which is in the evidence and in the scenario file"
        )
    stated = certificate.released.profile
    if stated is None or stated.digest != profile.digest():
        raise ArgumentError(
            "the certificate was issued for another slice profile; give the one that was "
            "certified, which is in the evidence and in the scenario file"
        )
    if isinstance(profile, WholeSphere):
        drawn = int(np.random.SeedSequence([seed, _DIRECTIONS]).generate_state(1)[0])
        return SampledSphere.draw(dim=profile.dim, n_directions=_N_DIRECTIONS, seed=drawn)
    return profile
