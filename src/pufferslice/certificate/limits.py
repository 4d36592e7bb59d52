# SPDX-License-Identifier: Apache-2.0
"""Codes that certificates of training runs state, and their wording.

A statement holds codes only, so a sentence can be mended without changing the digest of any
certificate. What a code means must not change: a new meaning is a new code.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pufferslice.errors import ArgumentError

ISOLATED: Final = ("state-outside-model", "functorch-internals")
"""The limits of runs whose program runs every example alone, as the trainer of this library does.

They stand in place of the hypothesis that examples are kept apart.
"""

BY_PROGRAM: Final = ("examples-kept-apart-by-program",)
"""The limit of runs by any other program."""

RUN_LIMITS: Final[Mapping[str, str]] = {
    "examples-kept-apart-by-program": (
        "The gradient of an example must depend only on its record, the history, and randomness "
        "shared by both worlds: no batch normalisation, no mixing of examples. The program that "
        "trained is trusted for this; nothing here enforced it."
    ),
    "state-outside-model": (
        "Every example was run alone. Code of the model, the loss or the dataset that keeps state "
        "in module globals, classes or files, and a dataset that keeps any, could still carry "
        "something of one example to another; this is not covered."
    ),
    "functorch-internals": (
        "Code of the model or the loss that calls private functions of functorch, or looks into "
        "the interpreter itself (stack frames, the garbage collector), could see other examples; "
        "this is not covered."
    ),
    "loop-outside-program": (
        "The training loop was not the program's. What it computed from the records beside the "
        "noisy steps is not covered: metrics, and buffers of the model that its own forward passes "
        "changed."
    ),
}
"""What depends on the program that trained, which says it."""

LIMITS: Final[Mapping[str, str]] = {
    "follows-plan": (
        "The claim holds for runs that follow their plans exactly, under the listed hypotheses."
    ),
    "differing-records-only": ("The secret is protected only through how many records it changes."),
    "losses-not-covered": (
        "Losses, metrics and anything else computed from the private data beside the noisy "
        "gradients is not covered."
    ),
    "epsilons-do-not-add": (
        "Runs compose only over the same data, the same differing records and the same order; "
        "printed epsilons do not add up."
    ),
    "average-over-batches": (
        "The claim for the secret is an average over the draws of the batches. It does not bound "
        "what the run that took place shows, implies no SRPP, and gives no (epsilon, delta)."
    ),
    "stops-on-non-finite": (
        "A plan stops its run when the gradient of an example is NaN or infinite. Such a stop "
        "depends on the data, and what it reveals is not covered."
    ),
    "noise-not-ideal": (
        "The noise that was drawn is not exactly the noise of the bound. The distance, "
        "implementation_delta, is part of no Rényi epsilon; an (epsilon, delta) view for the "
        "secret holds for the drawn noise with 1 + exp(epsilon) times the distance added to its "
        "delta. The delta stated for one record includes it."
    ),
    **RUN_LIMITS,
}
"""All limits of training runs, in the order of a statement."""

CONDITIONS: Final[Mapping[str, str]] = {
    "hypotheses-and-limits": "The hypotheses and limits of this certificate apply here, too.",
    "n-records-public": "The number of records is public.",
    "one-row-per-person": "A person has one record.",
    "preprocessing-not-fitted": (
        "No preprocessing was fitted to the data: no scaling, vocabulary, selection of features or "
        "choice of settings that one record could change."
    ),
    "draws-secret": "Batch draws, record indices and realised batch sizes stay secret.",
}
"""What the statement about one record needs."""


def check_limits(limits: Sequence[str]) -> tuple[str, ...]:
    """Limits that a program gave, in the order of a statement.

    Raise unless all are known and they say how examples were kept apart: no argument may drop that.
    """
    if not isinstance(limits, tuple | list) or not set(map(str, limits)) <= set(RUN_LIMITS):
        msg = f"limits must be a list of codes among {', '.join(RUN_LIMITS)}; got {limits!r}"
        raise ArgumentError(msg)
    if not (set(limits) >= set(BY_PROGRAM) or set(limits) >= set(ISOLATED)):
        msg = (
            "limits must say how examples were kept apart; give "
            f"{BY_PROGRAM[0]!r}, or both of {', '.join(map(repr, ISOLATED))}"
        )
        raise ArgumentError(msg)
    return tuple(code for code in RUN_LIMITS if code in limits)
