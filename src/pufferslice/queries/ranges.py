# SPDX-License-Identifier: Apache-2.0
"""Public ranges of a query: where its outputs are clipped to, in the user's units."""

from typing import Any, final

import attrs
import numpy as np

from pufferslice.arrays import Floats, locked, same
from pufferslice.checks import check_above, check_finite
from pufferslice.errors import ArgumentError


def _vector(values: Any) -> Floats:  # noqa: ANN401 - whatever numpy can read as numbers
    """A locked array of one dimension; a single number has length one."""
    return locked(np.atleast_1d(locked(values)))


@final
@attrs.frozen
class Box:
    """Every coordinate between a public low and a public high.

    >>> Box([0, 0], [1, 10]).clip(np.array([[0.5, 12.0]]))
    array([[ 0.5, 10. ]])
    """

    low: Floats = attrs.field(converter=_vector, eq=same)
    """Lowest value of each coordinate, shape (dim,)."""
    high: Floats = attrs.field(converter=_vector, eq=same)
    """Highest value of each coordinate, shape (dim,)."""

    def __attrs_post_init__(self) -> None:
        if self.low.ndim != 1 or self.low.size == 0 or self.low.shape != self.high.shape:
            msg = (
                "low and high must be vectors of one length, at least 1; "
                f"got shapes {self.low.shape} and {self.high.shape}"
            )
            raise ArgumentError(msg)
        check_finite(low=self.low, high=self.high)
        upside_down = np.flatnonzero(~(self.low < self.high))
        if upside_down.size:
            where = int(upside_down[0])
            low, high = float(self.low[where]), float(self.high[where])
            msg = f"low must be below high; in coordinate {where} low is {low!r}, high is {high!r}"
            raise ArgumentError(msg)

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.low)

    @property
    def center(self) -> Floats:
        """The middle of the box, shape (dim,)."""
        return self.low / 2 + self.high / 2

    def clip(self, outputs: Floats) -> Floats:
        """Move each coordinate of each row to the nearest value in the box; shape (n, dim)."""
        return np.clip(outputs, self.low, self.high)

    def description(self) -> dict[str, Any]:
        """The range as JSON values."""
        return {"kind": "box", "low": self.low.tolist(), "high": self.high.tolist()}


@final
@attrs.frozen
class Ball:
    """Every output within a public Euclidean distance of a public center.

    >>> Ball([0, 0], 5).clip(np.array([[6.0, 8.0]]))
    array([[3., 4.]])
    """

    center: Floats = attrs.field(converter=_vector, eq=same)
    """Middle of the ball, shape (dim,)."""
    radius: float
    """Largest distance from the center, in the user's units."""

    def __attrs_post_init__(self) -> None:
        if self.center.ndim != 1 or self.center.size == 0:
            msg = f"center must be a vector of length at least 1; got shape {self.center.shape}"
            raise ArgumentError(msg)
        check_finite(center=self.center)
        check_above(0, radius=self.radius)

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.center)

    def clip(self, outputs: Floats) -> Floats:
        """Pull each row outside the ball to its surface, up to rounding; shape (n, dim)."""
        offsets = outputs - self.center
        # `hypot` does not overflow where a sum of squares would.
        distances = np.hypot.reduce(offsets, axis=1, keepdims=True)
        outside = distances > self.radius
        shares = np.divide(self.radius, distances, out=np.ones_like(distances), where=outside)
        clipped: Floats = np.where(outside, self.center + shares * offsets, outputs)
        return clipped

    def description(self) -> dict[str, Any]:
        """The range as JSON values."""
        return {"kind": "ball", "center": self.center.tolist(), "radius": float(self.radius)}
