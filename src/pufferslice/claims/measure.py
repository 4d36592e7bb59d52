# SPDX-License-Identifier: Apache-2.0
"""What a claim bounds, without the bound."""

from collections.abc import Mapping
from typing import Any, Final, final

import attrs

from pufferslice._core.numbers import in_full
from pufferslice.claims.claim import Outputs, WholeClaim
from pufferslice.claims.epsilon_delta import EpsilonDelta
from pufferslice.claims.guarantee import CLAIMS, Claim, claim_of
from pufferslice.claims.guess import Guess
from pufferslice.claims.information import Information
from pufferslice.claims.renyi import OverBatches, Renyi
from pufferslice.errors import ArgumentError

_ANY_BOUND: Final = 0.75
"""A bound that every claim may have."""


@final
@attrs.frozen(repr=False)
class Measure:
    """What a claim bounds: right guesses, bits, a divergence of an order, epsilon at a delta.

    >>> Measure.renyi(order=16)
    Measure('epsilon at order 16')
    >>> print(Measure.of(Guess(at_most=0.64)).claim(0.6))
    at most 60 % right guesses between two values
    """

    _example: WholeClaim

    @classmethod
    def of(cls, claim: Claim) -> "Measure":
        """Take the bound off a claim about a whole output."""
        if not isinstance(claim, CLAIMS):
            raise ArgumentError(
                f"the target of a run must be a claim about the whole of it, got {claim}; use "
                "Guarantee.guess(...), or Guarantee.unsliced(...), which implies both sliced "
                "notions for every profile"
            )
        return cls(claim.with_bound(_ANY_BOUND))

    @classmethod
    def guess(cls) -> "Measure":
        """Measure by right guesses between two values."""
        return cls(Guess(at_most=_ANY_BOUND))

    @classmethod
    def information(cls) -> "Measure":
        """Measure by bits of information between two values."""
        return cls(Information(bits=_ANY_BOUND))

    @classmethod
    def renyi(cls, *, order: float) -> "Measure":
        """Measure by the Rényi divergence of an order."""
        return cls(Renyi(order=order, epsilon=_ANY_BOUND))

    @classmethod
    def epsilon_delta(cls, *, delta: float) -> "Measure":
        """Measure by the epsilon at a delta."""
        return cls(EpsilonDelta(epsilon=_ANY_BOUND, delta=delta))

    @classmethod
    def over_batches(cls, *, order: float) -> "Measure":
        """Measure by the mean over batch draws of the Rényi divergence of an order."""
        return cls(OverBatches(order=order, epsilon=_ANY_BOUND))

    @property
    def kind(self) -> type[WholeClaim]:
        """Class of the claims."""
        return type(self._example)

    @property
    def order(self) -> float:
        """Order of the divergence, or the one at which other claims report it."""
        return self._example.reported_order

    @property
    def delta(self) -> float | None:
        """Delta of an epsilon at a delta; None for other measures."""
        return self.to_json().get("delta")

    def claim(self, bound: float) -> WholeClaim:
        """Build the claim with a bound."""
        return self._example.with_bound(bound)

    def cost(self, outputs: Outputs, noise_std: float) -> float:
        """Compute the smallest bound of a claim that holds for these outputs."""
        return self._example.cost(outputs, noise_std)

    def to_json(self) -> dict[str, Any]:
        """Return the claim as JSON values, without its bound."""
        values = self._example.to_json()
        del values[self._example.bound_name]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Measure":
        """Read the values of `to_json`.

        >>> Measure.from_json({"notion": "unsliced", "delta": 1e-5})
        Measure('epsilon at delta 1e-05')
        """
        for claim in CLAIMS:
            names = {field.name for field in attrs.fields(claim)} - {claim.bound_name}
            if values.get("notion") == claim.notion and set(values) == names | {"notion"}:
                return cls.of(claim_of({**values, claim.bound_name: _ANY_BOUND}))
        keys = ", ".join(sorted(map(str, values))) or "nothing"
        raise ArgumentError(
            "a claim without its bound is a notion (guess, information, unsliced or "
            f"average_over_batches) with the order or delta that it has; got {keys}"
        )

    def __str__(self) -> str:
        claim = self._example
        if self.delta is not None:
            return f"epsilon at delta {in_full(self.delta)}"
        if not claim.has_order:
            return {"at_most": "right guesses", "bits": "bits of information"}[claim.bound_name]
        averaged = ", on average over batch draws" if self.kind is OverBatches else ""
        return f"epsilon at order {in_full(self.order)}{averaged}"

    def __repr__(self) -> str:
        return f"Measure({str(self)!r})"
