# SPDX-License-Identifier: Apache-2.0
"""What a bound on total variation says to someone who guesses: percent, a sentence, a line."""

from collections.abc import Sequence
from typing import Final

from pufferslice.calibration.guarantee import percent_at_most
from pufferslice.calibration.guessing import right_guesses
from pufferslice.certificate.wording import guess_sentence
from pufferslice.report.svg import Axes, Series

_RIGHT: Final = "right guesses, at most"


def right_guesses_of(variation: float, n_secrets: int) -> str:
    """Right guesses among equally likely secrets, at most, as printed."""
    return percent_at_most(right_guesses(variation, n_secrets=n_secrets))


def is_bounded(variation: float) -> bool:
    """Whether the bound, as it is printed, is below certainty."""
    return right_guesses_of(variation, 2) != percent_at_most(1.0)


def percent(value: float | None) -> str:
    """A bound in percent; rounded up, as bounds are."""
    return "none" if value is None else percent_at_most(value / 100)


def about_release(variation: float) -> str:
    """What a reader of one release can guess."""
    return guess_sentence(right_guesses(variation))


def about_training(variation: float) -> str:
    """What a reader of a trained model can guess."""
    if not is_bounded(variation):
        return "No useful bound on guessing can be stated for what the run releases."
    return (
        "Someone who knows that both worlds are equally likely and sees the model guesses right "
        f"at most {right_guesses_of(variation, 2)} of the time (coin flip: 50\u00a0%)."
    )


def guess_line(epsilons: Sequence[float], variations: Sequence[float]) -> Series:
    """Right guesses against epsilon."""
    right = tuple(100 * right_guesses(variation) for variation in variations)
    return Series(name=_RIGHT, look="third", xs=tuple(epsilons), ys=right)


def guess_axes(x_label: str) -> Axes:
    """Right guesses between two, from a coin's to certainty."""
    return Axes(x_label=x_label, y_label=f"{_RIGHT} (%)", log_x=True, y_range=(50.0, 100.0))
