# SPDX-License-Identifier: Apache-2.0
"""Verdict: a claim, a lower bound by an attack, and whether the bound refutes the claim."""

from collections.abc import Callable
from typing import Any, Final, Literal, final

import attrs

from pufferslice._core.checks import check_at_least, check_between, check_count, check_one_of
from pufferslice._core.display import Shown
from pufferslice._core.text import quoted
from pufferslice.errors import escaped

Quantity = Literal["epsilon", "delta", "guess"]
Outcome = Literal["refuted", "not refuted", "out of reach"]

QUANTITIES: Final = ("epsilon", "delta", "guess")

NEVER_PROVES: Final = "An audit can refute a claim; it never proves one."


def json_values(value: attrs.AttrsInstance) -> dict[str, Any]:
    """The fields of a value, and of the values in it; JSON has lists and no tuples."""

    def listed(_: object, __: object, field: object) -> object:
        return list(field) if isinstance(field, tuple) else field

    return attrs.asdict(value, value_serializer=listed)


def fewest(
    is_enough: Callable[[int], bool], *, least: int = 1, most: int = 2**62, parts: int = 2**62
) -> int | None:
    """The smallest integer from `least` on that is enough, within one of `parts` parts of it.

    None if `most` is not enough. Needs: whatever is larger than enough is enough.

    >>> fewest(lambda n: n * n >= 1_000), fewest(lambda n: False, most=100)
    (32, None)
    """
    high = least
    while not is_enough(high):
        if high >= most:
            return None
        high = min(2 * high, most)
    low = high // 2
    while high - low > max(1, high // parts):
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return max(high, least)


@final
@attrs.frozen(kw_only=True)
class Verdict(Shown):
    """The result of one statistic on one claim; it can refute the claim and never proves it.

    Guarantee: if the claim holds for the mechanism that made the outputs, `refuted` is true with
    probability at most 1 - `confidence`.

    >>> verdict = Verdict(
    ...     claim="(2, 1)-RPP",
    ...     quantity="epsilon",
    ...     claimed=1.0,
    ...     statistic="Rényi divergence of order 2",
    ...     lower_bound=3.2,
    ...     confidence=0.95,
    ...     refutable_below=8.6,
    ...     n_outputs=100_000,
    ...     pair=("a", "b"),
    ...     prior="declared",
    ...     line="axis 0",
    ... )
    >>> verdict.outcome
    'refuted'
    """

    claim: str
    """The claim in words, as `(4, 1)-Joint-SRPP`."""
    quantity: Quantity
    """Tested number of the claim; `guess`: the share of right guesses between two secrets."""
    claimed: float
    """The claimed number: the mechanism should stay at or below it."""
    statistic: str
    """Name of the estimated number."""
    lower_bound: float
    """Lower bound on the number of the mechanism, with `confidence`; never below 0."""
    confidence: float
    """Confidence of this verdict alone; the verdicts of one audit share the audit's confidence."""
    refutable_below: float
    """The largest lower bound that these numbers of outputs can give, whatever they are."""
    n_outputs: int
    """Outputs under each of the two secrets, the fewer if they differ."""
    pair: tuple[str, str]
    """The two secrets or worlds, in the order of the divergence: the first from the second."""
    prior: str
    """Name of the prior."""
    line: str
    """The slice, axis or projection with the largest bound."""

    def __attrs_post_init__(self) -> None:
        check_one_of(QUANTITIES, quantity=self.quantity)
        check_at_least(0, claimed=self.claimed, lower_bound=self.lower_bound)
        check_between(0, 1, confidence=self.confidence)
        check_count(1, n_outputs=self.n_outputs)

    @property
    def refuted(self) -> bool:
        """Whether the lower bound is above what is claimed."""
        return self.lower_bound > self.claimed

    @property
    def in_reach(self) -> bool:
        """Whether some outputs, this many, would refute the claim."""
        return self.refutable_below > self.claimed

    @property
    def outcome(self) -> Outcome:
        """Outcome, one of three; a claim out of reach was not tested at all."""
        if self.refuted:
            return "refuted"
        return "not refuted" if self.in_reach else "out of reach"

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON values, the outcome included."""
        return json_values(self) | {
            "refuted": self.refuted,
            "outcome": self.outcome,
        }

    def table_rows(self) -> list[dict[str, Any]]:
        """The verdict as one row."""
        first, second = self.pair
        pair = {"first_secret": first, "second_secret": second}
        names = ("claim", "outcome", "quantity", "lower_bound", "claimed", "confidence")
        return [{name: getattr(self, name) for name in names} | pair]

    def sentences(self) -> list[str]:
        """What an audit can show."""
        return [NEVER_PROVES]

    def __str__(self) -> str:
        first, second = map(quoted, self.pair)
        bound = f"{self.quantity} is at least {self.lower_bound:.4g}"
        return (
            f"{self.outcome.upper()}: {escaped(self.claim)}\n"
            f"  {escaped(self.statistic)}: {bound}, claimed at most {self.claimed:.4g}\n"
            f"  seen best between {first} and {second}, prior {quoted(self.prior)}, "
            f"along {escaped(self.line)}\n"
            f"  confidence {self.confidence:.6g}; {self.n_outputs} outputs under each secret can "
            f"refute claims below {self.refutable_below:.4g}"
        )
