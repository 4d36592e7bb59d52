# SPDX-License-Identifier: Apache-2.0
"""Public constructors of claims, and claims from JSON values."""

from collections.abc import Mapping
from typing import Any, Final, final

import attrs

from pufferslice.claims.claim import WholeClaim
from pufferslice.claims.epsilon_delta import EpsilonDelta
from pufferslice.claims.guess import Guess
from pufferslice.claims.information import Information
from pufferslice.claims.renyi import OverBatches, Renyi
from pufferslice.claims.sliced import Sliced, SlicedNotion
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.profiles import AnyProfile
from pufferslice.sensitivity.renyi import SLICED_NOTIONS

Claim = WholeClaim | Sliced
"""Type of all claims."""

CLAIMS: Final[tuple[type[WholeClaim], ...]] = (Guess, Information, Renyi, EpsilonDelta, OverBatches)
"""Classes of all claims about a whole output or about training."""

RELEASE_CLAIMS: Final = (Guess, Information, Renyi, EpsilonDelta)
"""Claims that a release can make; along slices, too, if they have slices."""

RELEASE_NOTIONS: Final = (
    *SLICED_NOTIONS,
    *dict.fromkeys(claim.notion for claim in RELEASE_CLAIMS),
)
"""Names of what a release can bound, in files."""


@final
class Guarantee:
    """Constructors of all claims: `Guarantee.guess(at_most=0.64)` and others."""

    def __init__(self) -> None:
        raise ArgumentError("use one of the constructors, as Guarantee.guess(at_most=0.64)")

    @staticmethod
    def guess(*, at_most: float) -> Guess:
        """Claim that at most this share of guesses between two equally likely secrets is right."""
        return Guess(at_most=at_most)

    @staticmethod
    def information(*, bits: float) -> Information:
        """Claim that the release reveals at most so many bits between two protected secrets."""
        return Information(bits=bits)

    @staticmethod
    def unsliced(*, order: float, epsilon: float) -> Renyi:
        """Claim a divergence of at most `epsilon` of the output (Rényi Pufferfish privacy)."""
        return Renyi(order=order, epsilon=epsilon)

    @staticmethod
    def epsilon_delta(epsilon: float, delta: float) -> EpsilonDelta:
        """Claim (epsilon, delta)-Pufferfish privacy of the whole output."""
        return EpsilonDelta(epsilon=epsilon, delta=delta)

    @staticmethod
    def average(
        *,
        epsilon: float,
        order: float | None = None,
        delta: float | None = None,
        profile: AnyProfile | None = None,
    ) -> Sliced:
        """Claim a mean over slices of at most `epsilon`, of divergences or of epsilons at a delta.

        Source: def:ave_srpp, def:ave_spp.
        """
        return _sliced("average", epsilon, order, delta, profile)

    @staticmethod
    def joint(
        *,
        epsilon: float,
        order: float | None = None,
        delta: float | None = None,
        profile: AnyProfile | None = None,
    ) -> Sliced:
        """Claim a log-moment over slices of at most `epsilon`, or a mean delta of at most `delta`.

        Source: def:joint_srpp, def:joint_spp.
        """
        return _sliced("joint", epsilon, order, delta, profile)

    @staticmethod
    def average_over_batches(*, order: float, epsilon: float) -> OverBatches:
        """Claim a mean over batch draws only: the paper's subsampling-aware claim for learning.

        It does not imply any of the other notions.
        Source: def:ms_Ave_SRPP, def:ms_Joint_SRPP.
        """
        return OverBatches(order=order, epsilon=epsilon)


def _sliced(
    notion: SlicedNotion,
    epsilon: float,
    order: float | None,
    delta: float | None,
    profile: AnyProfile | None,
) -> Sliced:
    if (order is None) == (delta is None):
        raise ArgumentError("a claim along slices takes either an order or a delta")
    claim: WholeClaim
    if delta is None:
        claim = Renyi(order=order, epsilon=epsilon)
    else:
        claim = EpsilonDelta(epsilon=epsilon, delta=delta)
    return Sliced(claim=claim, notion=notion, profile=profile)


def asked(claim: Claim, *, notion: str | None, order: float | None) -> Claim:
    """Return the claim with another notion or order, where it has them; None keeps its own."""
    whole = claim.whole if order is None else claim.whole.with_order(order)
    notion = claim.notion if notion is None else notion
    if notion in SLICED_NOTIONS:
        return Sliced(claim=whole, notion=notion)  # type: ignore[arg-type]
    if notion != whole.notion:
        raise ArgumentError(
            f"{claim} has no notion {notion!r}; leave it out, or certify a claim that has"
        )
    return whole


def claim_of(values: Mapping[str, Any]) -> Claim:
    """Read a claim from JSON values: its notion and its fields.

    >>> print(claim_of({"notion": "joint", "epsilon": 1.0, "delta": 1e-5}))
    (1, 1e-05)-Joint-SPP, sliced
    """
    fields = {name: value for name, value in values.items() if name != "notion"}
    notion = values["notion"]
    wanted = "unsliced" if notion in SLICED_NOTIONS else notion
    for claim in CLAIMS:
        names = {field.name for field in attrs.fields(claim)}
        if claim.notion == wanted and names == set(fields):
            made = claim(**fields)
            return Sliced(claim=made, notion=notion) if notion in SLICED_NOTIONS else made
    raise ArgumentError(f"there is no claim {notion!r} with {', '.join(sorted(fields))}")
