# SPDX-License-Identifier: Apache-2.0
"""The audit of a static certificate: outputs, attacks, and a verdict on every claim."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_between, check_count, is_a
from pufferslice._core.display import Shown
from pufferslice._core.numbers import at_most, in_full, percent_at_most
from pufferslice._core.plot import Plot
from pufferslice._core.sampler import Noise, OperatingSystemNoise
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
from pufferslice.audit.outputs import Outputs, check_array, check_scenario, draw_outputs, noisy
from pufferslice.audit.pictures import audit_plot
from pufferslice.audit.tables import (
    Experiment,
    coupled_sums,
    discriminant,
    experiments_of,
    farthest_rows,
    gaussian_of,
    row_kinds,
    simulated,
    some_of,
)
from pufferslice.audit.verdict import NEVER_PROVES, Verdict, json_values
from pufferslice.certificate import Certificate
from pufferslice.certificate.files import read_audit
from pufferslice.claims import Claim
from pufferslice.claims.views import best_views
from pufferslice.errors import ArgumentError, escaped
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

AUDIT_FORMAT: Final = "pufferslice-audit"
AUDIT_VERSION: Final = 5

_SPHERE_CAP: Final = 8.0
"""Cap of divergences along drawn directions, in multiples of the claim."""

STATED: Final = "the mean difference over the stated covariance"
RATIO: Final = "the likelihood ratio"
LINEAR: Final = "the linear discriminant of simulated tables"
QUADRATIC: Final = "the quadratic discriminant of simulated tables"
SIMULATED: Final = "the likelihood of simulated tables"
BOTH_TABLES: Final = "the likelihood of both candidate tables"
ONE_ROW: Final = "the difference of two rows"

_MOST_RATIOS: Final = 2**23
"""Largest number of outputs of a secret times atoms of a pair for the likelihood ratio."""

_NOISE_PARTS: Final = 1000
"""Parts of the failure probability, of which one is for the stated noise. Its test is tight, so it
would use all that it gets, while bounds on divergences stay far below the truth."""

_KNOWN_PARTS: Final = 8
"""Parts of the failure probability, of which one is for readers of both candidate tables, and one
for one person."""

_SHUFFLE: Final = 2**31
_DIRECTIONS: Final = _SHUFFLE + 1
_SIMULATION: Final = _SHUFFLE + 2
_CANDIDATES: Final = _SHUFFLE + 3
"""Seeds of their own: the streams of the distributions are numbered from 0."""
_N_DIRECTIONS: Final = 1_000
"""Number of directions that are drawn to test a claim along the whole sphere."""


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

    def plot(self) -> Plot:
        """Draw the lower bound of every verdict, against what is claimed."""
        return audit_plot(
            self.verdicts,
            certificate=self.certificate,
            confidence=self.confidence,
            n_outputs=self.n_outputs,
        )

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

    `profile` has the slices of a sliced claim; a claim about the whole output needs none. Of
    scenarios of rows, real tables are drawn; their readers know all other rows, or none, or hold
    both candidate tables, and what is stated of one person is tried on two real rows.

    Guarantee: that of `Audit`. `seed` is that of the values drawn from the distributions and of the
    pilot, never of the noise.
    """
    _slices(profile, certificate, seed)
    check_between(0, 1, confidence=confidence)
    outputs = draw_outputs(scenario, certificate, n_outputs, seed=seed, noise=noise)
    share = split(1 - confidence, _KNOWN_PARTS)
    settings: dict[str, Any] = {"n_outputs": n_outputs, "seed": seed, "noise": noise}
    known = [
        audit_known(scenario, certificate, confidence=1 - share, **settings)
        for audit_known in _audits_of_knowledge(scenario, certificate)
    ]
    audit = audit_outputs(
        scenario,
        profile,
        certificate,
        outputs,
        confidence=confidence + len(known) * share,
        seed=seed,
        progress=progress,
    )
    return attrs.evolve(audit, confidence=confidence, verdicts=(*audit.verdicts, *known))


def _audits_of_knowledge(
    scenario: Scenario, certificate: Certificate
) -> list[Callable[..., Verdict]]:
    """Audits of readers who know more than an output: both tables, or all rows but one."""
    statement = certificate.released
    if not (row_kinds(scenario) and certificate.noise_std):
        return []
    person = statement.one_person or statement.one_person_given_noise
    both = [] if statement.guess is None else [_audit_both_tables]
    return [*both, *([] if person is None else [_audit_one_person])]


def _audit_both_tables(
    scenario: Scenario,
    certificate: Certificate,
    *,
    n_outputs: int,
    confidence: float,
    seed: int,
    noise: Noise,
) -> Verdict:
    """Guess which of two candidate tables was released, both of them known.

    Rows meet as the certificate states: then it bounds right guesses of this reader, too.
    """
    statement, kinds = certificate.released, row_kinds(scenario)
    shape, center, (prior,) = certificate.shape, scenario.query.center, scenario.priors
    coupling = "" if statement.coupling is None else statement.coupling.name
    tables = [
        coupled_sums(
            kinds,
            pair,
            n_outputs,
            coupling=coupling,
            shape=shape,
            rng=np.random.default_rng([seed, _CANDIDATES, number, world]),
        )
        for number, pair in enumerate(scenario.pairs)
        for world in range(2)
    ]
    sizes = [len(first) for first, _ in tables]
    # One call, because a seeded test generator starts the same stream again at every call.
    draws = noise.draw(sum(sizes) * scenario.dim).reshape(-1, scenario.dim)
    scores = []
    for place, (both, own) in enumerate(
        zip(tables, np.split(draws, np.cumsum(sizes)[:-1]), strict=True)
    ):
        released = noisy(both[place % 2], np.arange(len(own)), own, center, certificate)
        first, second, output = (_white(each, center, shape) for each in (*both, released))
        towards_first = ((output - (first + second) / 2) * (first - second)).sum(axis=1)
        scores.append(np.sign(towards_first)[:, None])
    rng = np.random.default_rng([seed, _SHUFFLE])
    comparisons = [
        comparison
        for number, pair in enumerate(scenario.pairs)
        for comparison in both_orders(
            prior.name,
            {
                secret: SplitOutputs.of(scores[2 * number + world], rng=rng)
                for world, secret in enumerate(pair)
            },
            [pair],
        )
    ]
    share = percent_at_most(float(statement.guess or 1.0)).replace("\u00a0", " ")
    words = (
        f"right guesses of someone who holds both candidate tables ({coupling}), at most {share}"
    )
    lines = Lines(np.ones((1, 1)), [BOTH_TABLES])
    return audit_lines(
        [(comparison, lines) for comparison in comparisons],
        guess_test(),
        Claimed(words, "guess", float(statement.guess or 1.0)),
        confidence=confidence,
    )


def _audit_one_person(
    scenario: Scenario,
    certificate: Certificate,
    *,
    n_outputs: int,
    confidence: float,
    seed: int,
    noise: Noise,
) -> Verdict:
    """Tell one row from another where all others are known: two real rows that are far apart."""
    statement, shape, center = certificate.released, certificate.shape, scenario.query.center
    person = statement.one_person or statement.one_person_given_noise
    epsilon, delta = (0.0, 1.0) if person is None else (person.epsilon, person.delta)
    rows = farthest_rows(row_kinds(scenario), shape)
    draws = noise.draw(2 * n_outputs * scenario.dim).reshape(2, n_outputs, scenario.dim)
    rng = np.random.default_rng([seed, _SHUFFLE])
    outputs = {
        name: SplitOutputs.of(
            noisy(row[None], np.zeros(n_outputs, dtype=np.int64), own, center, certificate), rng=rng
        )
        for name, row, own in zip(("one row", "another row"), rows, draws, strict=True)
    }
    first, second = (_white(row[None], center, shape)[0] for row in rows)
    white = partial(_white, center=center, shape=shape)
    lines = Lines(_unit(first - second)[None], [ONE_ROW], None, white)
    words = f"one person: ({at_most(epsilon)}, {in_full(delta)})"
    return audit_lines(
        [
            (comparison, lines)
            for comparison in both_orders(
                scenario.priors[0].name, outputs, [("one row", "another row")]
            )
        ],
        epsilon_test(delta),
        Claimed(words, "epsilon", epsilon),
        confidence=confidence,
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
    experiments = {each.name: each for each in experiments_of(scenario)}
    parts = _parts(scenario, experiments, outputs, np.random.default_rng([seed, _SHUFFLE]))
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
    lines = _lines(scenario, experiments, comparisons, shape)
    if scenario.prior_kind == "rows":
        lines += _simulated_lines(experiments, comparisons, certificate, center, seed)
    else:
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
    scenario: Scenario,
    experiments: Mapping[str, Experiment],
    outputs: Outputs,
    rng: np.random.Generator,
) -> dict[str, dict[str, SplitOutputs]]:
    """The outputs of every prior and secret, and of other experiments, checked and split."""
    parts = {}
    for name, experiment in experiments.items():
        arrays = outputs.values.get(name, {})
        if not arrays and experiment.most is not None:  # outputs from elsewhere have none of these
            continue
        for secret in experiment.prior.distributions:
            if secret not in arrays:
                raise ArgumentError(
                    f"there are no outputs under prior {quoted(name)} and secret {quoted(secret)}"
                )
            check_array(arrays[secret], scenario.dim)
        parts[name] = {
            secret: SplitOutputs.of(values, rng=rng) for secret, values in arrays.items()
        }
    return parts


def _lines(
    scenario: Scenario,
    experiments: Mapping[str, Experiment],
    comparisons: Sequence[Comparison],
    shape: Shape | None,
) -> list[tuple[Comparison, Lines]]:
    r"""Axes, the difference of the means where it is known, and the lines of the pilot.

    With a shape also $\Sigma^{-1}\Delta$, along which the stated noise hides a difference of means
    least; lines of the pilot are found in whitened coordinates.
    """
    white = partial(_white, center=scenario.query.center, shape=shape)

    def beyond(pilot: Floats) -> Callable[[Floats], npt.NDArray[np.bool_]]:
        is_outside = outside_of(pilot)
        return lambda outputs: is_outside(white(outputs))

    candidates = []
    for comparison in comparisons:
        distributions = experiments[comparison.prior].prior.distributions
        first, second = (distributions[secret] for secret in comparison.pair)
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


def _simulated_lines(
    experiments: Mapping[str, Experiment],
    comparisons: Sequence[Comparison],
    certificate: Certificate,
    center: Floats,
    seed: int,
) -> list[tuple[Comparison, Lines]]:
    """Discriminants of tables that the attacker draws, and their likelihood under the noise."""
    noise_std = certificate.noise_std
    white = partial(_white, center=center, shape=certificate.shape)

    def ratios(outputs: Floats, pair: Sequence[Distribution]) -> Floats:
        scores = likelihood_scores(white(outputs), pair, noise_std)
        return scores[:, :1] - scores[:, 1:]

    drawn = {
        name: {
            secret: white(values)
            for secret, values in simulated(each, seed=[seed, _SIMULATION, number]).items()
        }
        for number, (name, each) in enumerate(experiments.items())
        if any(comparison.prior == name for comparison in comparisons)
    }
    candidates = []
    for comparison in comparisons:
        first, second = (drawn[comparison.prior][secret] for secret in comparison.pair)
        direction = discriminant(first, second, noise_std)
        if direction.any():
            lines = Lines(_unit(direction)[None], [LINEAR], None, white)
            candidates.append((comparison, lines))
        pairs: dict[str, Sequence[Distribution]] = {
            QUADRATIC: [gaussian_of(first), gaussian_of(second)],
            SIMULATED: [some_of(values, comparison.n_outputs) for values in (first, second)],
        }
        for name, pair in pairs.items():
            lines = Lines(np.ones((1, 1)), [name], None, partial(ratios, pair=pair))
            candidates.append((comparison, lines))
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
