# SPDX-License-Identifier: Apache-2.0
"""Codes and wording of what a certificate does not cover.

A statement holds codes only, so a sentence can be improved without changing the digest of any
certificate. The meaning of a code must not change: a new meaning is a new code.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pufferslice.errors import ArgumentError

RELEASE_LIMITS: Final[Mapping[str, str]] = {
    "named-secret-only": (
        "Only the named secret is protected, and no one person beside it: this release states no "
        "differential privacy. A release of sums of rows states it where the noise was fitted to "
        "another table, every row counts within public clip ranges, and a person has one row."
    ),
    "declared-priors-only": (
        "It holds under the declared priors and for the listed pairs; if none of these "
        "priors is true, nothing is claimed."
    ),
    "rows-like-these": (
        "It holds for rows like those that the noise was fitted to: their mean squared distance "
        "under this noise must be at most {mean_square}. Values count within their public clip "
        "ranges. Rows that depend on each other, as those of one household do, must be one row."
    ),
    "slots-like-these": (
        "It holds for a home whose states follow one of the declared chains, and whose readings, "
        "given the states, are independent of each other and like those that the noise was fitted "
        "to: their mean squared distance under this noise must be at most {mean_square}. Values "
        "count within their public clip ranges."
    ),
    "rare-rows-like-these": (
        "Its epsilons hold for rows of which the mean exponential of that squared distance is also "
        "at most that of the rows that the noise was fitted to: rows with more, or farther, "
        "outliers need more noise. The share of right guesses does not depend on this."
    ),
    "noise-from-released-rows": (
        "The noise was fitted to the released rows themselves, so every promise is given the "
        "noise, and what the noise itself tells about the rows is not covered. Noise from an "
        "earlier table would tell nothing."
    ),
    "slices-are-ideal": (
        "Sliced numbers describe the ideal real-valued mechanism along the slices of the profile; "
        "they do not survive post-processing. Only the unsliced number is a statement about the "
        "released bits."
    ),
    "shape-shows-differences": (
        "The shape of the noise was fitted to the released data: it reveals the directions in "
        "which the secrets differ, and by how much. A shape from public data would not."
    ),
    "one-release": (
        "It covers exactly one release. Releases of one scenario do not add up: two harmless ones "
        "can reveal the secret together."
    ),
    "earlier-releases-apart": (
        "Before version 0.3 other releases were made that may be about the same secret. They are "
        "not covered jointly with this one: together they can reveal more than each alone."
    ),
    "evidence-confidential": "The evidence is confidential and must stay internal.",
    "prior-is-released-data": (
        "The priors were made from the released data itself, so the noise scale and every number "
        "computed from it reveal something about the data."
    ),
    "rows-dropped": (
        "{n_dropped} rows with missing values were left out; the claim is about the others."
    ),
    "query-is-clipped": (
        "The claim holds for the query clipped to its public range, which is what a release "
        "publishes. Intervals around released numbers are of that value too, not of the value "
        "before clipping."
    ),
    "range-clips-data": (
        "THE RANGE CLIPS THE DATA: the query lies outside its public range for {clipped}. A "
        "release of them publishes the nearest value in the range."
    ),
    "priors-sampled": (
        "The priors are known only through independent draws; except with the failure probability "
        "the claim holds for the distributions that the draws come from. That the draws are "
        "independent, and that nobody chose them or the slices by their results, is assumed."
    ),
    "priors-normal": (
        "The priors are normal distributions that the data holder declared as a model. If the data "
        "follow them only approximately, right guesses change by no more than the total variation "
        "between the two. An epsilon at an order has no such margin, because it weighs outputs "
        "that practically never occur."
    ),
    "tails-in-delta": (
        "What lies beyond the bands around the sampled distributions is in delta, not in epsilon: "
        "such a rare output may reveal the secret."
    ),
    "sphere-sampled": (
        "The profile is the whole sphere; the directions were drawn from it, and the failure "
        "probability covers that too."
    ),
    "distributions-equal": ("The distributions are equal under every pair: no noise is needed."),
    "noise-not-ideal": (
        "The noise that is drawn differs from the ideal noise of the bounds by at most "
        "implementation_delta. Right guesses, the numbers for one person and claims with a delta "
        "include it. An epsilon at an order does not; an (epsilon, delta) view holds with 1 + "
        "exp(epsilon) times it added to delta."
    ),
    "insecure-noise": ("INSECURE: the noise comes from a seeded test generator. Never publish it."),
}
"""Limits of releases, in the order of a statement; braces hold names to be filled in."""

BUDGET_LIMITS: Final[Mapping[str, str]] = {
    "named-secret-only": RELEASE_LIMITS["named-secret-only"],
    "one-budget": (
        "It covers all outputs under this budget, in any order and chosen after seeing earlier "
        "ones, and nothing else: another budget or certificate about the same secret is not "
        "covered. A ledger keeps count."
    ),
    "earlier-releases-apart": RELEASE_LIMITS["earlier-releases-apart"],
    "rows-like-these": (
        "It holds for rows whose mean squared distance under the declared precision is at most "
        "the stated one, within the public clip ranges. Rows that depend on each other, as those "
        "of one household do, must be one row."
    ),
    "periods-are-fresh": (
        "The rows of different periods must be independent given the secret: the same households "
        "asked again are not, and their periods are features of one table. The table of another "
        "part is made of all rows of these periods, or of rows that are independent of them."
    ),
    "noise-from-released-rows": RELEASE_LIMITS["noise-from-released-rows"],
    "training-follows-plan": (
        "The claim holds for training runs that follow their plans exactly, under the listed "
        "hypotheses, and that keep examples apart. Losses, metrics and anything else computed "
        "from the private data, apart from the noisy gradients, are not covered."
    ),
    "evidence-confidential": RELEASE_LIMITS["evidence-confidential"],
    "noise-not-ideal": (
        "The noise that is drawn differs slightly from the ideal noise of the bounds. The "
        "distance, implementation_delta, is part of the stated right guesses."
    ),
    "insecure-noise": RELEASE_LIMITS["insecure-noise"],
}
"""Limits of budgets, in the order of a statement."""

NOT_STATED: Final[Mapping[str, str]] = {
    "not-of-rows": "The scenario is not one of rows, so its distances do not add up.",
    "person-not-a-row": "A row is not a person here, and what one person adds is not declared.",
    "noise-from-released-rows": (
        "The noise was computed from the released rows, of which this person's is one."
    ),
    "no-finite-epsilon": "At this delta no epsilon can be stated for one person.",
}
"""Reasons why a number of a statement is null."""

ISOLATED: Final = ("state-outside-model", "functorch-internals")
"""Limits of runs whose program runs every example alone, as this library's trainer does.

They replace the hypothesis that examples are kept apart.
"""

BY_PROGRAM: Final = ("examples-kept-apart-by-program",)
"""Limit of runs by any other program."""

RUN_LIMITS: Final[Mapping[str, str]] = {
    "examples-kept-apart-by-program": (
        "The gradient of an example must depend only on its record, the history, and randomness "
        "shared by both worlds: no batch normalisation, no mixing of examples. The program that "
        "trained is trusted for this; nothing here enforced it."
    ),
    "state-outside-model": (
        "Every example was run alone. Code of the model, the loss or the dataset that keeps state "
        "in module globals, class attributes, context variables, thread locals or files, and a "
        "dataset that keeps state, can still carry one example into the gradient of another and "
        "move the sum by more than one record may; this is not covered."
    ),
    "functorch-internals": (
        "Code of the model or the loss that calls private functions of functorch, runs compiled "
        "code outside torch's dispatcher, or looks into the interpreter itself (stack frames, the "
        "garbage collector), could see other examples; this is not covered. That torch's own "
        "operators keep the examples of a block apart is assumed."
    ),
    "loop-outside-program": (
        "The training loop was the user's own. What it computed from the records apart from the "
        "noisy steps is not covered: metrics, and buffers of the model that its own forward passes "
        "changed."
    ),
}
"""Limits that depend on the program that trained."""

LIMITS: Final[Mapping[str, str]] = {
    "follows-plan": (
        "The claim holds for runs that follow their plans exactly, under the listed hypotheses."
    ),
    "differing-records-only": ("The secret is protected only through how many records it changes."),
    "losses-not-covered": (
        "Losses, metrics and anything else computed from the private data, apart from the noisy "
        "gradients, are not covered."
    ),
    "epsilons-do-not-add": (
        "It covers the stated runs and no other over the same data: printed bounds do not add up."
    ),
    "average-over-batches": (
        "The claim for the secret is an average over the draws of the batches. It does not bound "
        "what the run that took place shows, implies no SRPP, and gives no (epsilon, delta). What "
        "is said of right guesses holds."
    ),
    "more-may-differ": (
        "More records may differ than the claim counts. The probability of that, "
        "excess_probability, is part of the claim's delta or right guesses and of the deltas of "
        "its views, once for all runs. There is no Rényi claim for the secret."
    ),
    "cap-simulated": (
        "How many records differ was bounded by a simulation. The claim holds except with "
        "probability at most {failure_probability} over that simulation."
    ),
    "stops-on-non-finite": (
        "A plan stops its run when the gradient of an example is NaN or infinite. Such a stop "
        "depends on the data, and what it reveals is not covered."
    ),
    "noise-not-ideal": (
        "The noise that was drawn differs slightly from the ideal noise of the bound. The "
        "distance, implementation_delta, is not part of bits or of any Rényi epsilon; an (epsilon, "
        "delta) view for the secret holds for the drawn noise with 1 + exp(epsilon) times the "
        "distance added to its delta. Right guesses, an epsilon that is claimed at a delta, and "
        "the delta stated for one record include it."
    ),
    **RUN_LIMITS,
}
"""Limits of training runs, in the order of a statement; braces hold names to be filled in."""

CONDITIONS: Final[Mapping[str, str]] = {
    "hypotheses-and-limits": "The hypotheses and limits of this certificate also apply here.",
    "n-records-public": "The number of records is public.",
    "one-row-per-person": "A person has one record.",
    "preprocessing-not-fitted": (
        "No preprocessing was fitted to the data: no scaling, vocabulary, selection of features or "
        "choice of settings that one record could change."
    ),
    "draws-secret": "Batch draws, record indices and realised batch sizes stay secret.",
}
"""Conditions of the statement about one record."""


def check_limits(limits: Sequence[str]) -> tuple[str, ...]:
    """Check the limits of a program, and return them in the order of a statement.

    Raise unless all are known and state how examples were kept apart.
    """
    if not isinstance(limits, tuple | list) or not set(map(str, limits)) <= set(RUN_LIMITS):
        raise ArgumentError(
            f"limits must be a list of codes among {', '.join(RUN_LIMITS)}; got {limits!r}"
        )
    if not (set(limits) >= set(BY_PROGRAM) or set(limits) >= set(ISOLATED)):
        raise ArgumentError(
            "limits must state how examples were kept apart; give "
            f"{BY_PROGRAM[0]!r}, or both of {', '.join(map(repr, ISOLATED))}"
        )
    return tuple(code for code in RUN_LIMITS if code in limits)
