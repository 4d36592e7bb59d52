# SPDX-License-Identifier: Apache-2.0
"""Wording of certificates: the sentences of a statement in plain words.

Labels and all other texts of a statement are escaped, so that none of them can pass for prose.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_FLOOR, Context
from typing import Any, Final, NamedTuple, TypeAlias

from pufferslice._core.numbers import at_most, in_full, percent_at_most
from pufferslice._core.text import MOST_SHOWN, listed, quoted, shown
from pufferslice.certificate.limits import CONDITIONS, LIMITS, NOT_STATED, RELEASE_LIMITS
from pufferslice.certificate.statement import (
    CouplingPart,
    OnePersonPart,
    PlanPart,
    ProfilePart,
    ReleaseStatement,
    SamplingPart,
    ScenarioPart,
    ShareSecret,
    SizeSecret,
    StateSecret,
    TrainingStatement,
    UnslicedPart,
    ViewPart,
    WholeSpherePart,
    WorldsSecret,
)
from pufferslice.claims import Claim
from pufferslice.claims.views import ViewRule, best_views
from pufferslice.learning.plan import HYPOTHESES
from pufferslice.noise.decision import INTERVAL_STDS
from pufferslice.queries.ranges import Box, range_words
from pufferslice.scenario.priors import DECLARED, Source

INSECURE: Final = "INSECURE (seeded test noise, never publish)"

_SOURCES: Final[Mapping[Source, str]] = {
    "released_data": "the released table itself",
    "held_out": "another table",
    "public_model": "a public model",
}
"""Where rows, or their moments, come from, in words."""

_MOST_PAIRS_NAMED: Final = 6
_NEARLY_EQUAL: Final = 0.99
"""Share of effective slices above which their weights need no mention."""
_VIEW_RULES: Final[Mapping[ViewRule, str]] = {
    "paper": "the paper's conversion",
    "improved": "the improved conversion",
    "order_grid": "the best of many orders",
    "order_optimum": "the best order",
    "direct": "the distances themselves",
    "loss_distribution": "the privacy-loss distribution",
}


OneStatement: TypeAlias = ReleaseStatement | TrainingStatement
"""Statements that are not about a budget; `budget_wording` has the words of those."""


def prose_of(statement: OneStatement, digest: str) -> str:
    """Write the whole statement as text, in the order a reader asks; bounds are rounded up."""
    statement = statement.escaped()
    if isinstance(statement, TrainingStatement):
        parts = _training_parts(statement)
    else:
        parts = _release_parts(statement)
    limits = "Limits:\n" + _bullets(limit_sentences(statement))
    head = "\n".join(filter(None, first_lines(statement)))
    parts = [f"Certificate {digest[:16]}", head, *parts, limits]
    return "\n\n".join(part for part in parts if part)


def _release_parts(statement: ReleaseStatement) -> list[str]:
    return [
        _whole_output(statement),
        _claim(statement),
        _views(statement.views),
        _query(statement.scenario),
        _priors(statement.scenario),
        _noise(statement),
        "\n".join(shape_sentences(statement)),
        clipping_sentence(statement.scenario),
        _shares(statement.sampling),
        earlier_sentence(statement.earlier_releases),
    ]


def earlier_sentence(digests: Sequence[str]) -> str:
    """Name releases before 0.3 that are not covered jointly; empty if there are none."""
    named = ", ".join(digest[:12] for digest in digests)
    return named and f"Earlier releases that this certificate does not cover jointly: {named}."


class FirstLines(NamedTuple):
    """What every reader needs, a line each; empty where there is nothing to say."""

    protected: str
    """What is hidden, and from whom."""
    guess: str
    """How often someone guesses right."""
    person: str
    """What any one person, or record, gets."""
    noise: str
    """How much noise is on each number."""


def first_lines(statement: OneStatement) -> FirstLines:
    """Write a few lines for every reader: the protection, the right guesses, and the noise."""
    statement = statement.escaped()
    if isinstance(statement, TrainingStatement):
        return _first_training_lines(statement)
    names = statement.scenario.query.names
    return FirstLines(
        protected=protected_sentence(statement.scenario),
        guess=f"{guess_sentence(statement.guess)}{doubt_sentence(statement)}",
        person=person_sentence(statement),
        noise=noise_sentence(names, statement.noise.std_by_coordinate),
    )


def person_sentence(statement: ReleaseStatement) -> str:
    """Say what any one person gets from a release, under which conditions, or why nothing."""
    if not statement.scenario.has_priors("rows"):
        return "Any one person: no promise beside the named secret."
    if statement.one_person is not None:
        return (
            f"Any one person: {_privacy(statement.one_person)}, where a person has one row. The "
            "noise does not depend on the released rows, and each counts within public ranges."
        )
    given = statement.one_person_given_noise
    more = "" if given is None else f" Given the noise, it would be {_privacy(given)}."
    return f"Any one person: no promise. {NOT_STATED[statement.not_stated['one_person']]}{more}"


def _privacy(person: OnePersonPart) -> str:
    epsilon, delta = at_most(person.epsilon, digits=3), in_full(person.delta)
    return f"({epsilon}, {delta})-differential privacy"


def doubt_sentence(statement: OneStatement) -> str:
    """Say what the first lines rest on, after a space: sampling, or noise from released rows."""
    failure = statement.failure_probability
    words = f" All of this holds except with probability {in_full(failure)}." if failure else ""
    if "noise-from-released-rows" in statement.limits:
        words += (
            " This is given the noise, which was fitted to the released rows themselves: what the "
            "noise tells about them comes on top."
        )
    return words


def table_rows(statement: OneStatement) -> list[dict[str, Any]]:
    """Return the noise of each statistic, or for training a row per run."""
    if isinstance(statement, TrainingStatement):
        return [
            {
                "n_steps": run.n_steps,
                "n_records": run.n_records,
                "sampling": run.sampling.kind,
                "accountant": run.accountant,
                "least_noise_multiplier": min(run.noise_multipliers),
                "largest_noise_multiplier": max(run.noise_multipliers),
            }
            for run in statement.runs
        ]
    names, stds = statement.scenario.query.names, statement.noise.std_by_coordinate
    return [
        {"statistic": name, "noise_std": std, "within_95_percent": INTERVAL_STDS * std}
        for name, std in zip(names, stds, strict=True)
    ]


def noise_sentence(names: Sequence[str], stds: Sequence[float]) -> str:
    r"""Say by how much the noise changes each statistic, 95 times of 100, in the user's units.

    >>> noise_sentence(["mean(age)", "mean(pay)"], [2.0, 100.0])
    'Noise on each released number, 95\xa0% of the time at most: mean(age) 3.92, mean(pay) 196.'
    """
    if not any(stds):
        return "No noise is added: the released numbers look the same whatever the secret is."
    parts = [
        f"{shown(name)} {INTERVAL_STDS * std:.3g}"
        for name, std in zip(names[:MOST_SHOWN], stds, strict=False)
    ]
    more = f", and {len(names) - len(parts)} more below" if len(names) > len(parts) else ""
    return (
        f"Noise on each released number, 95\u00a0% of the time at most: {', '.join(parts)}{more}."
    )


def _training_parts(statement: TrainingStatement) -> list[str]:
    distance, noise = statement.implementation_delta, list(statement.noise)
    if distance:
        noise.append(f"Sampling error of all noise at most {at_most(distance)} in total variation.")
    return [
        f"Training on {quoted(statement.data)}, {len(statement.runs)} run(s):\n"
        + "\n".join(map(_run, statement.runs)),
        f"Claim: {statement.guarantee}.\n" + "\n".join(statement.certifies),
        "Who may see the batch draws:\n" + "\n".join(statement.draws_may_be_seen),
        "Noise:\n" + "\n".join(noise),
        _views(statement.views),
        f"One record:\n{record_sentence(statement)}\nThis needs:\n"
        + _bullets(record_conditions(statement)),
        "Hypotheses:\n" + _bullets(HYPOTHESES[code] for code in statement.hypotheses),
    ]


def _first_training_lines(statement: TrainingStatement) -> FirstLines:
    """Write four lines about runs: the secret, right guesses, any single record, the noise."""
    runs, record = statement.runs, statement.one_record
    differing = "; ".join(dict.fromkeys(differing_words(run.differing) for run in runs))
    averaged = statement.guarantee.notion == "average_over_batches"
    multipliers = [multiplier for run in runs for multiplier in run.noise_multipliers]
    ends = dict.fromkeys(f"{end:.3g}" for end in (min(multipliers), max(multipliers)))
    single = f"no epsilon can be stated at delta {in_full(record.delta)}"
    if record.epsilon_at_delta is not None:
        single = (
            f"differential privacy with epsilon {at_most(record.epsilon_at_delta)} at delta "
            f"{in_full(record.delta)}"
        )
    return FirstLines(
        protected=(
            f"Protected{', on average over batch draws only' if averaged else ''}: from which of "
            f"two worlds the records of {quoted(statement.data)} come ({differing})."
        ),
        guess=run_guess_sentence(statement.guess, len(runs)) + doubt_sentence(statement),
        person=f"Any single record: {single}, under the conditions of the certificate.",
        noise=(
            f"Noise on each number of every step: standard deviation {' to '.join(ends)} times the "
            "clip norm, which is the most that one record can add."
        ),
    )


def differing_words(differing: Mapping[str, Any]) -> str:
    """Say how many records a secret changes.

    >>> differing_words({"kind": "binomial", "n_records": 9, "mismatch_probability": 0.25})
    'each record differs with probability 0.25'
    """
    chance = differing.get("mismatch_probability")
    return str(differing.get("origin", f"each record differs with probability {chance}"))


def limit_sentences(statement: OneStatement) -> tuple[str, ...]:
    """Say what a certificate does not cover."""
    if isinstance(statement, TrainingStatement):
        failure = at_most(statement.failure_probability)
        return tuple(LIMITS[code].format(failure_probability=failure) for code in statement.limits)
    scenario, square = statement.scenario, statement.mean_square
    facts = {
        "n_dropped": scenario.rows_dropped,
        "clipped": _clipped_secrets(scenario),
        "mean_square": "" if square is None else at_most(square, digits=3),
    }
    return tuple(RELEASE_LIMITS[code].format(**facts) for code in statement.limits)


def clipping_sentence(scenario: ScenarioPart) -> str:
    """Say under which secrets the range cuts off values of the query; empty if under none."""
    clipped = _clipped_secrets(scenario)
    return RELEASE_LIMITS["range-clips-data"].format(clipped=clipped) if clipped else ""


def _clipped_secrets(scenario: ScenarioPart) -> str:
    return " and ".join(
        f"{how} values under {len(secrets)} secret{'s' if len(secrets) > 1 else ''} "
        f"({listed(secrets, quoted)})"
        for how in ("all", "some")
        if (secrets := getattr(scenario.clipped, how))
    )


def protected_sentence(scenario: ScenarioPart) -> str:
    """Say which values of the secret must not be told apart, and by whom."""
    secret, whom = scenario.secret, adversary_words(scenario)
    if words := range_words_of(secret):
        return f"Protected: {words}{whom}."
    drawn = ""
    if any(DECLARED in prior.origin for prior in scenario.priors):
        drawn = " The claim is about tables that were drawn, not about the rows themselves."
    columns = (
        [secret.worlds] if isinstance(secret, WorldsSecret) else getattr(secret, "columns", [])
    )
    pairs = scenario.pairs
    named = ", ".join(" / ".join(map(shown, pair)) for pair in pairs[:_MOST_PAIRS_NAMED])
    more = f", and {len(pairs) - _MOST_PAIRS_NAMED} more" if len(pairs) > _MOST_PAIRS_NAMED else ""
    return (
        f"Protected: the secret {' and '.join(map(quoted, columns))} "
        f"({len(scenario.secrets)} values){whom}. "
        f"Not to be told apart: {named}{more}.{drawn}"
    )


def range_words_of(secret: object) -> str:
    """Describe which values of a secret must not be told apart; empty where they are listed.

    >>> range_words_of(SizeSecret(size_of="shop", ratio=1.1, up_to=1_000, n_differing=90))
    "any two sizes of 'shop' within a factor of 1.1, up to 1,000 rows"
    """
    if isinstance(secret, ShareSecret):
        points = f"{100 * secret.within:.6g}"
        unit = "point" if points == "1" else "points"
        if not isinstance(secret.share_of, str):
            kinds = listed(secret.share_of, quoted)
            return f"any two divisions of the rows among {kinds} at most {points} {unit} apart"
        return f"any two shares of {quoted(secret.share_of)} at most {points} {unit} apart"
    if isinstance(secret, SizeSecret):
        return (
            f"any two sizes of {quoted(secret.size_of)} within a factor of {secret.ratio:g}, up "
            f"to {secret.up_to:,} rows"
        )
    if isinstance(secret, StateSecret):
        n, slots = len(secret.positions), len(secret.periods)
        times = "1 protected time" if n == 1 else f"each of {n:,} protected times"
        return f"the state of {quoted(secret.state_of)} at {times} among {slots:,}"
    return ""


def adversary_words(scenario: ScenarioPart) -> str:
    """Say from whom the secret is hidden; the text begins with a comma."""
    secret = scenario.secret
    if isinstance(secret, ShareSecret) and secret.design == "independent":
        return (
            f", on average over the other rows; about {secret.n_differing:,} of "
            f"{secret.n_rows:,} rows make the difference"
        )
    if isinstance(secret, ShareSecret | SizeSecret):
        return (
            f", even from someone who knows every row but the {secret.n_differing:,} that make "
            "the difference"
        )
    if isinstance(secret, StateSecret):
        return (
            ", from someone who knows how states follow each other and what is measured in each "
            "state, but no other state"
        )
    return ", from someone whose belief is one of the declared priors"


def release_words(scenario: ScenarioPart) -> str:
    """Say what one release is, after "One release is"."""
    secret = scenario.secret
    if isinstance(secret, ShareSecret):
        return f"the query on a whole table of {secret.n_rows:,} rows"
    if isinstance(secret, SizeSecret):
        return "the query on a whole table, whose number of rows is neither checked nor printed"
    if isinstance(secret, StateSecret):
        return "the query on a whole table, whose number of rows is not checked"
    return scenario.one_release_is


def _query(scenario: ScenarioPart) -> str:
    query, n = scenario.query, len(scenario.query.names)
    limits, clipped = query.limits, ""
    if limits is not None:
        words = range_words(limits)
        if isinstance(limits, Box):
            words = [f"{name} to {ends}" for name, ends in zip(query.names, words, strict=True)]
        clipped = f"\nIt is clipped to a public range: {', '.join(dict.fromkeys(words))}."
    return (
        f"One release is {release_words(scenario)}.\n"
        f"Query: {query.kind} with {n} coordinate{'s' if n > 1 else ''}: "
        f"{', '.join(map(shown, query.names))}.{clipped}"
    )


def _priors(scenario: ScenarioPart) -> str:
    if scenario.has_priors("rows"):
        prior = scenario.priors[0]
        return f"The noise was fitted to {prior.origin}, of {_SOURCES[prior.source]}."
    lines = [
        f"  - {shown(prior.name)}: {prior.kind}, from {prior.source.replace('_', ' ')}: "
        f"{prior.origin}"
        for prior in scenario.priors
    ]
    return (
        "Protects against anyone whose background knowledge is one of these priors:\n"
        + "\n".join(lines)
    )


def _claim(statement: ReleaseStatement) -> str:
    claim, method, noise = statement.guarantee, statement.method, statement.noise
    failure, spent = statement.failure_probability, statement.spent
    rows = statement.scenario.has_priors("rows")
    sure = "under the declared priors"
    if statement.mean_square is not None:
        square = at_most(statement.mean_square, digits=3)
        what = "readings" if isinstance(statement.scenario.secret, StateSecret) else "rows"
        sure = f"for {what} whose mean squared distance under this noise is at most {square}"
    elif failure:
        sure = f"except with probability {in_full(failure)}"
    along = "" if rows else _along(statement.profile)
    rule = ""
    if method is not None:
        rule = f" ({method.rule.replace('_', ' ')}, {method.envelope.replace('_', ' ')})"
    reason = ""
    if not noise.calibrated:
        reason = (
            "\nThe noise was chosen by the data holder, raised to hide one row, or rounded up; it "
            "is more than the claim needs."
        )
    elif noise.std and claim.free + spent < claim.bound / 2:
        reason = (
            "\nThe variation of the data already hides the secret this well, so only the minimum "
            "noise is added."
        )
    # The first lines say how often guesses are right.
    cost = "" if spent == statement.guess else f"\n{claim.cost_words(spent, rule)}"
    return f"Claim: {claim}{along}, {sure}.{cost}{reason}"


def _along(profile: ProfilePart | WholeSpherePart | None) -> str:
    if profile is None:
        return " for the whole output"
    if isinstance(profile, WholeSpherePart):
        return f" along the whole sphere of {profile.dim} dimensions, in closed form"
    where = f"{profile.dim} dimensions (profile {profile.digest[:12]})"
    if profile.kind == "sphere":
        return f" along the whole sphere of {where}, known by {profile.n_directions} directions"
    equal = ""
    if profile.effective_slices < _NEARLY_EQUAL * profile.n_directions:
        equal = (
            f", weighted like {profile.effective_slices:.3g} equal ones; the largest weight is "
            f"{profile.largest_weight:.3g}"
        )
    return f" along {profile.n_directions} slices of {where}{equal}"


def _shares(sampling: SamplingPart | None) -> str:
    """Say what the noise is due to, for distributions or slices that were sampled."""
    if sampling is None:
        return ""
    lines = []
    if sampling.band is not None:
        beyond = "count at the public range" if sampling.tails == "at_range" else "are in delta"
        lines.append(
            f"Sampled distributions are bounded by {sampling.band.replace('_', ' ')}; the "
            f"tails {beyond}."
        )
    if sampling.delta_of_tails is not None:
        lines.append(f"Of delta, {at_most(sampling.delta_of_tails)} is for the tails.")
    if sampling.noise_shares is not None:
        parts = ", ".join(f"{name} {x:.1%}" for name, x in sampling.noise_shares)
        lines.append(f"Shares of the noise: {parts}.")
    return "\n".join(lines)


def _noise(statement: ReleaseStatement) -> str:
    noise, names = statement.noise, statement.scenario.query.names
    stds = zip(names, noise.std_by_coordinate, strict=True)
    lines = [f"  {shown(name)}: {std:.6g}" for name, std in stds]
    scaled = ""
    if statement.mean_square is None:
        scaled = f", standard deviation {noise.std:.6g} in scaled coordinates"
        scaled += "" if noise.shape.kind == "isotropic" else " (root mean square)"
    return (
        f"Noise: Gaussian on a grid{scaled}; standard deviations in your units:\n"
        + "\n".join(lines)
        + f"\n  generator {noise.generator}, sampling error at most "
        f"{at_most(noise.implementation_delta)} in total variation"
    )


def shape_sentences(statement: ReleaseStatement) -> tuple[str, ...]:
    """Describe the shape of the noise: its origin, its guard, and how near the best it is."""
    claim, noise = statement.guarantee, statement.noise
    if claim.is_sliced or not noise.std:
        return ()
    shape = noise.shape
    correlated = shape.is_beside and shape.kind not in {"diagonal", "isotropic"}
    correlated |= any(any(row[:i]) for i, row in enumerate(shape.whitening or ()))
    how = {
        "fitted": "fitted to the secret",
        "diagonal": "fitted to the secret, each statistic by itself",
        "isotropic": "the same in every direction of the scaled coordinates",
        "given": "a public covariance that the data holder chose",
    }[shape.kind]
    alike = "the noise of different statistics is correlated" if correlated else "no correlation"
    sentences = [f"Shape of the noise: {how}; {alike}.", _guard(statement, claim)]
    if shape.gap is not None:
        share = max(1, math.ceil(shape.gap * 10_000)) / 100
        plain = " without correlation" if shape.kind == "diagonal" else ""
        best_for = "for the couplings that it was fitted to"
        if statement.scenario.distribution == "groups":
            best_for = "for this claim"
        elif statement.scenario.has_priors("sampled"):
            best_for = "for this range"
        sentences.append(
            f"Its total variance is within {share:g}\u00a0% of the best Gaussian noise{plain} "
            f"{best_for}{'' if statement.mean_square is not None else ', with this guard'}."
        )
    if statement.coupling is not None:
        sentences.append(_coupling(statement.scenario, statement.coupling))
    return tuple(sentence for sentence in sentences if sentence)


def _coupling(scenario: ScenarioPart, coupling: CouplingPart) -> str:
    """Say how the rows of a change meet, and how much less noise any coupling could allow."""
    if isinstance(scenario.secret, StateSecret):
        return (
            "Coupling: in the proof, the states of the two worlds meet as early as they can, and "
            "then stay together; what is measured is the same wherever they are."
        )
    how = {
        "independent": "drawn independently of each other",
        "transport": "matched by nearness, which a plain verification does not check",
    }
    kind, _, name = coupling.name.partition(":")
    label = "all conditions of the query" if name == "*" else shown(name)
    fallback = "as far as possible" if kind == "cells" else "by nearness of the groups"
    words = how.get(coupling.name, f"matched by {label}, {fallback}")
    return (
        f"Coupling: in the proof, the rows of the two worlds are {words}; no coupling would allow "
        f"noise of this shape below {100 * coupling.least_share:.0f}\u00a0% of this."
    )


def _guard(statement: ReleaseStatement, claim: Claim) -> str:
    r"""Say what the guard hides, and what wrong priors cost.

    If each true distribution is within a share t of the guard of the declared one, every coupled
    distance grows by at most $2 t \sqrt{c}$ times the noise, c the squared distance that the claim
    allows between two points.
    """
    guard, query = statement.noise.shape.guard, statement.scenario.query
    if guard is None or statement.mean_square is not None:
        return ""
    alone = f"{shown(query.names[0])} alone by {_at_least(guard * query.scales[0])}"
    hidden = (
        f"Guard: every shift of the output by up to {_at_least(guard)} in scaled coordinates "
        f"({alone}) is hidden as well as the claim says."
    )
    if any(statement.scenario.has_priors(kind) for kind in ("gaussian", "sampled")):
        return hidden
    if statement.scenario.distribution == "groups":
        delta = statement.noise.implementation_delta
        tenth, whole = (claim.whole.words_if_off(share, delta) for share in (0.1, 1.0))
        return (
            f"{hidden} If a prior is wrong by a tenth of the guard, the cost is {tenth}; by the "
            f"whole guard, {whole}."
        )
    return (
        f"{hidden} If a prior is wrong by a tenth of the guard, every distance between coupled "
        "outputs counts as longer by 20\u00a0% of the longest that the claim allows between two "
        "points; by the whole guard, 200\u00a0%."
    )


def _at_least(value: float) -> str:
    """Write three digits, rounded down."""
    return f"{float(Context(prec=3, rounding=ROUND_FLOOR).create_decimal(value)):.3g}"


def _whole_output(statement: ReleaseStatement) -> str:
    unsliced, claim = statement.unsliced, statement.guarantee
    if statement.scenario.has_priors("rows"):
        return ""
    if unsliced.epsilon is None:
        return f"{unsliced_sentence(unsliced)} ({unsliced.source})."
    compared = ""
    if claim.is_sliced and claim.has_order:
        compared = f"; {unsliced.epsilon / claim.bound:.3g} times the claim's epsilon"
    return f"{unsliced_sentence(unsliced)}, from {unsliced.source}{compared}."


def unsliced_sentence(unsliced: UnslicedPart) -> str:
    """Say what the noise costs in all dimensions, without the full stop."""
    if unsliced.epsilon is None:
        return "Unsliced (the released bits): no finite bound"
    return (
        f"Unsliced (the released bits): Rényi divergence at most {at_most(unsliced.epsilon)} at "
        f"order {in_full(unsliced.order)}"
    )


def guess_sentence(guess: float | None, seen: str = "this release", over: str = "releases") -> str:
    """Say how often someone who has narrowed the secret down to two values guesses right."""
    if guess is None or percent_at_most(guess) == percent_at_most(1.0):
        return f"No useful bound on guessing the secret can be stated for the whole of {seen}."
    return (
        "Someone who has narrowed the secret down to two protected values, both equally likely, "
        f"and sees only {seen} guesses right at most {percent_at_most(guess)} of the time, "
        f"on average over {over} (coin flip: 50\u00a0%)."
    )


def run_guess_sentence(guess: float | None, n_runs: int) -> str:
    """Say the same of someone who sees training runs."""
    seen = "this training run" if n_runs == 1 else "these training runs"
    return guess_sentence(guess, seen, "training runs")


def unsliced_first(views: Iterable[ViewPart]) -> list[ViewPart]:
    """Put views of the whole output first."""
    return sorted(views, key=lambda view: view.scope != "unsliced")


def _views(views: Sequence[ViewPart]) -> str:
    if not views:
        return ""
    best = best_views(views) if len(views) > 1 else []
    lines = [
        f"  {view.scope} ({at_most(view.epsilon)}, {in_full(view.delta)}) "
        f"by {_VIEW_RULES[view.rule]}{' (smallest)' if view in best else ''}"
        for view in unsliced_first(views)
    ]
    return "As (epsilon, delta):\n" + "\n".join(lines)


def record_sentence(statement: TrainingStatement) -> str:
    """Say what one record gets, with the accountants that bound it."""
    record = statement.one_record
    names = " and ".join(name.replace("_", " ") for name in record.accountants)
    rdp = (
        "Replacing any one record moves what the runs release by a Rényi divergence of at most "
        f"{at_most(record.epsilon)} at order {in_full(record.order)} (accountant: {names})."
    )
    if record.epsilon_at_delta is None:
        return f"{rdp} No (epsilon, delta) can be stated at delta {in_full(record.delta)}."
    return (
        f"{rdp} That is ({at_most(record.epsilon_at_delta)}, {in_full(record.delta)})-"
        "differential privacy for the replacement of one record; delta includes the sampling error "
        "of the noise."
    )


def record_conditions(statement: TrainingStatement) -> tuple[str, ...]:
    """Say what the statement about one record needs."""
    return tuple(CONDITIONS[code] for code in statement.one_record.conditions)


def _bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"  - {sentence}" for sentence in sentences)


def _run(plan: PlanPart) -> str:
    multipliers = plan.noise_multipliers
    noise = f"{min(multipliers):.6g}"
    if len(multipliers) > 1:
        noise = f"from {noise} to {max(multipliers):.6g}"
    accountant = plan.accountant.replace("_", " ")
    return (
        f"  - {plan.n_steps} steps, {plan.sampling.kind.replace('_', ' ')} sampling, "
        f"{plan.clipping.kind} clipping, noise multiplier {noise}, accountant {accountant}"
    )
