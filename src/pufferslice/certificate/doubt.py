# SPDX-License-Identifier: Apache-2.0
"""How a claim may fail: bands around sampled laws, and directions drawn from the sphere."""

from collections.abc import Mapping
from typing import Any, Final, Literal, final

import attrs

from pufferslice.checks import check_between, check_one_of
from pufferslice.concentration import BANDS, BandKind, dkw_halfwidth, split
from pufferslice.errors import ArgumentError

Tails = Literal["at_range", "in_delta"]

TAILS: Final = ("at_range", "in_delta")
"""Where a band has no samples left: gaps count at the public range, or the mass is in delta."""


@final
@attrs.frozen(kw_only=True)
class Doubt:
    """The failure probability of a certificate and what it is spent on.

    Spent over the two laws and the directions, not over the instances: the instance that truly
    needs the most noise does not depend on the draws, and the noise is at least its own.
    """

    failure_probability: float
    """Of the whole claim."""
    band: BandKind | None
    """The bands around sampled laws; none if the laws are exact."""
    tails: Tails | None
    """What is done beyond the bands; none if there are none."""
    on_sphere: bool
    """Whether directions were drawn from the sphere; they take half, or all if laws are exact."""

    def __attrs_post_init__(self) -> None:
        check_between(0, 1, failure_probability=self.failure_probability)
        if (self.band is None) != (self.tails is None) or not (self.on_sphere or self.band):
            msg = (
                "a failure probability belongs to bands (with band and tails), to drawn directions "
                f"(on_sphere), or to both; got band {self.band!r}, tails {self.tails!r}, on_sphere "
                f"{self.on_sphere!r}"
            )
            raise ArgumentError(msg)
        if self.band is not None and self.tails is not None:
            check_one_of(BANDS, band=self.band)
            check_one_of(TAILS, tails=self.tails)

    def band_probability(self, n_directions: int) -> float:
        """That of one band: one law along one direction."""
        parts = 2 if self.on_sphere else 1
        return split(self.failure_probability, 2 * parts * n_directions)

    def sphere_halfwidth(self, n_directions: int) -> float:
        """Half-width of a mean over drawn directions, as a share of the largest value.

        Source: thm:mc_finite_gaussian_ave_srpp, thm:mc_finite_gaussian_joint_srpp.
        """
        parts = 1 if self.band is None else 2
        return dkw_halfwidth(n_directions, split(self.failure_probability, parts))

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> "Doubt":
        """Read back what `to_json` made."""
        return cls(**said)
