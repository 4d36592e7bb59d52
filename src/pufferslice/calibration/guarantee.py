# SPDX-License-Identifier: Apache-2.0
"""Claims: a notion with an order and an epsilon, an epsilon and a delta, or a share of guesses."""

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Context
from typing import Any, ClassVar, Final, Literal, Self, final

import attrs

from pufferslice._core.checks import (
    check_above,
    check_at_least,
    check_between,
    check_one_of,
    plain_float,
)
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.profiles import AnyProfile
from pufferslice.sensitivity.renyi import SLICED_NOTIONS

Notion = Literal["average", "joint", "unsliced", "average_over_batches"]

NOTIONS: Final = ("average", "joint", "unsliced", "average_over_batches")
RELEASE_NOTIONS: Final = ("average", "joint", "unsliced")
"""What a static release can claim."""

_NAMES: Final = {
    "average": "Average-SRPP",
    "joint": "Joint-SRPP",
    "unsliced": "RPP",
    "average_over_batches": "sa-SRPP (on average over batch draws)",
}


@attrs.frozen(kw_only=True)
class _BoundedEpsilon:
    """What both kinds of claim about an epsilon share."""

    notion: str
    epsilon: float
    profile: AnyProfile | None = attrs.field(default=None, eq=False, repr=False)
    """The slices of a sliced claim about a release; None for claims without slices."""

    def __attrs_post_init__(self) -> None:
        if self.profile is not None and not self.is_sliced:
            raise ArgumentError(
                f"a profile belongs to average and joint claims; {self.notion!r} has no slices"
            )

    @property
    def bound(self) -> float:
        """What the cost of the noise may be at most: epsilon."""
        return self.epsilon

    def with_bound(self, bound: float) -> Self:
        """The same claim with another epsilon."""
        return attrs.evolve(self, epsilon=bound)

    def along(self, profile: AnyProfile) -> Self:
        """The same claim along the slices of a profile; a claim without slices stays as it is."""
        return attrs.evolve(self, profile=profile) if self.is_sliced else self

    @property
    def is_sliced(self) -> bool:
        """Whether the claim is about slices of the output only."""
        return self.notion in SLICED_NOTIONS

    def to_json(self) -> dict[str, Any]:
        """As JSON values; `claim_of` reads them. The profile is described elsewhere."""
        return attrs.asdict(self, filter=lambda field, _: field.name != "profile")


@final
@attrs.frozen(kw_only=True)
class Guarantee(_BoundedEpsilon):
    """A claim: the divergence of order `order`, aggregated as `notion` says, is at most `epsilon`.

    >>> print(Guarantee.joint(order=4, epsilon=1.0))
    (4, 1)-Joint-SRPP
    """

    notion: Notion
    """`average` or `joint` over the slices of a profile, `unsliced`, or `average_over_batches`."""
    order: float = attrs.field(converter=plain_float)
    """The Rényi order, greater than 1."""
    epsilon: float = attrs.field(converter=plain_float)
    """The bound on the divergence, greater than 0."""

    def __attrs_post_init__(self) -> None:
        check_one_of(NOTIONS, notion=self.notion)
        check_above(1, order=self.order)
        check_above(0, epsilon=self.epsilon)
        super().__attrs_post_init__()

    @classmethod
    def average(
        cls, *, order: float, epsilon: float, profile: AnyProfile | None = None
    ) -> "Guarantee":
        """The mean over the slices is at most `epsilon`. Source: def:ave_srpp."""
        return cls(notion="average", order=order, epsilon=epsilon, profile=profile)

    @classmethod
    def joint(
        cls, *, order: float, epsilon: float, profile: AnyProfile | None = None
    ) -> "Guarantee":
        """The log-moment over the slices is at most `epsilon`. Source: def:joint_srpp."""
        return cls(notion="joint", order=order, epsilon=epsilon, profile=profile)

    @classmethod
    def unsliced(cls, *, order: float, epsilon: float) -> "Guarantee":
        """The divergence of the whole output is at most `epsilon` (Rényi Pufferfish privacy)."""
        return cls(notion="unsliced", order=order, epsilon=epsilon)

    @classmethod
    def average_over_batches(cls, *, order: float, epsilon: float) -> "Guarantee":
        """The paper's subsampling-aware claim for learning: a mean over batch draws only.

        It does not imply any of the other notions.
        Source: def:ms_Ave_SRPP, def:ms_Joint_SRPP.
        """
        return cls(notion="average_over_batches", order=order, epsilon=epsilon)

    @staticmethod
    def epsilon_delta(epsilon: float, delta: float) -> "ApproximateGuarantee":
        """(epsilon, delta)-Pufferfish privacy of the whole output."""
        return ApproximateGuarantee(notion="unsliced", epsilon=epsilon, delta=delta)

    @staticmethod
    def guess(*, at_most: float) -> "GuessGuarantee":
        """Between two protected, equally likely secrets, at most this share of guesses is right."""
        return GuessGuarantee(at_most=at_most)

    def __str__(self) -> str:
        return f"({in_full(self.order)}, {at_most(self.epsilon)})-{_NAMES[self.notion]}"


@final
@attrs.frozen(kw_only=True)
class ApproximateGuarantee(_BoundedEpsilon):
    """(epsilon, delta)-Pufferfish privacy, of the whole output or aggregated over slices.

    `unsliced`: it holds for the whole output. `joint`: the mean over the slices of the delta of
    each slice at `epsilon` is at most `delta`. `average`: the mean over the slices of the epsilon
    of each slice at `delta` is at most `epsilon`. The last two never speak of the whole output.

    >>> print(ApproximateGuarantee.joint(epsilon=1.0, delta=1e-5))
    (1, 1e-05)-Joint-SPP, sliced
    >>> print(Guarantee.epsilon_delta(1.0, 1e-5))
    (1, 1e-05)-PP
    """

    notion: Literal["average", "joint", "unsliced"]
    epsilon: float = attrs.field(converter=plain_float)
    """Greater than 0; what noise costs may be 0, where `delta` bounds the total variation."""
    delta: float = attrs.field(converter=plain_float)
    """Between 0 and 1; it does not include the failure probability of a sampled prior."""

    def __attrs_post_init__(self) -> None:
        check_one_of(RELEASE_NOTIONS, notion=self.notion)
        check_at_least(0, epsilon=self.epsilon)
        check_between(0, 1, delta=self.delta)
        super().__attrs_post_init__()

    @classmethod
    def average(
        cls, *, epsilon: float, delta: float, profile: AnyProfile | None = None
    ) -> "ApproximateGuarantee":
        """The mean of the slices' epsilons at `delta`. Source: def:ave_spp."""
        return cls(notion="average", epsilon=epsilon, delta=delta, profile=profile)

    @classmethod
    def joint(
        cls, *, epsilon: float, delta: float, profile: AnyProfile | None = None
    ) -> "ApproximateGuarantee":
        """The mean of the slices' deltas at `epsilon`. Source: def:joint_spp."""
        return cls(notion="joint", epsilon=epsilon, delta=delta, profile=profile)

    def __str__(self) -> str:
        numbers = f"({at_most(self.epsilon)}, {in_full(self.delta)})"
        names = {"average": "Average-SPP, sliced", "joint": "Joint-SPP, sliced", "unsliced": "PP"}
        return f"{numbers}-{names[self.notion]}"


@final
@attrs.frozen(kw_only=True)
class GuessGuarantee:
    """A claim about the whole output: how often the secret can be guessed.

    Someone who holds one of the priors, has narrowed the secret down to two protected values, both
    equally likely, and sees only this release guesses right at most this often. It does not bound
    guesses among more than two secrets.

    >>> print(Guarantee.guess(at_most=0.6))
    at most 60 % right guesses between two values
    """

    at_most: float = attrs.field(converter=plain_float)
    """Above one half, below 1."""
    notion: ClassVar[Literal["guess"]] = "guess"
    is_sliced: ClassVar[bool] = False
    profile: ClassVar[None] = None

    def __attrs_post_init__(self) -> None:
        check_between(0.5, 1, at_most=self.at_most)

    @property
    def bound(self) -> float:
        """What the share of right guesses may be at most."""
        return self.at_most

    def with_bound(self, bound: float) -> "GuessGuarantee":
        """The same claim with another share of right guesses."""
        return GuessGuarantee(at_most=bound)

    def along(self, profile: AnyProfile) -> "GuessGuarantee":
        """The claim itself: it has no slices."""
        del profile
        return self

    def to_json(self) -> dict[str, Any]:
        """As JSON values; `claim_of` reads them."""
        return {"notion": self.notion, "at_most": self.at_most}

    def __str__(self) -> str:
        share = percent_at_most(self.at_most).replace("\u00a0", " ")
        return f"at most {share} right guesses between two values"


Claim = Guarantee | ApproximateGuarantee | GuessGuarantee
"""What a static release can promise."""


def claim_of(values: Mapping[str, Any]) -> Claim:
    """The claim of JSON values: with a share of guesses, a delta, or an order.

    >>> claim_of({"notion": "joint", "epsilon": 1.0, "delta": 1e-5})
    ApproximateGuarantee(notion='joint', epsilon=1.0, delta=1e-05)
    """
    if "at_most" in values:
        return GuessGuarantee(at_most=values["at_most"])
    return ApproximateGuarantee(**values) if "delta" in values else Guarantee(**values)


def in_full(value: float) -> str:
    """A number of a claim with all its digits: fewer could make the claim look stronger.

    >>> in_full(4.0), in_full(1.0000004)
    ('4', '1.0000004')
    """
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def at_most(value: float, digits: int = 6) -> str:
    """A bound with six digits, or as many as are given, rounded up.

    >>> at_most(1.0), at_most(2.00000001), at_most(3.1946, digits=3)
    ('1', '2.00001', '3.2')
    """
    short = f"{value:.{digits}g}"
    if float(short) >= value:
        return short
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(value)
    return f"{float(rounded):.{digits}g}"


def percent_at_most(share: float) -> str:
    r"""A bound on a probability in tenths of a percent, rounded up; the space does not break.

    >>> percent_at_most(0.81501), percent_at_most(1.2)
    ('81.6\xa0%', '100\xa0%')
    """
    return f"{min(100.0, math.ceil(share * 1000) / 10):g}\u00a0%"
