# SPDX-License-Identifier: Apache-2.0
"""Public ranges of a query: where its outputs are clipped to, in the user's units."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, Integers, locked, same
from pufferslice._core.checks import check_above, check_size
from pufferslice._core.text import given
from pufferslice.errors import ArgumentError

_UNIT: Final = 2.0**-52
_ROUNDINGS: Final = 16
"""Bound on the number of roundings between a point of the range and its scaled coordinates."""


def _vector(values: Any) -> Floats:  # whatever numpy can read as numbers
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
            raise ArgumentError(
                "low and high must be vectors of one length, at least 1; "
                f"got shapes {self.low.shape} and {self.high.shape}"
            )
        check_size(low=self.low, high=self.high)
        upside_down = np.flatnonzero(~(self.low < self.high))
        if upside_down.size:
            where = int(upside_down[0])
            low, high = float(self.low[where]), float(self.high[where])
            raise ArgumentError(
                f"low must be below high; in coordinate {where} low is {low!r}, high is {high!r}"
            )

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

    def outside(self, outputs: Floats) -> npt.NDArray[np.bool_]:
        """Find the coordinates of each row that clipping moves; shape (n, dim)."""
        return np.asarray((outputs < self.low) | (outputs > self.high), dtype=np.bool_)

    def support(self, directions: Floats, scales: Floats) -> Floats:
        """Lowest and highest projection of the scaled box, rounded outwards: (n_directions, 2)."""
        ends = np.stack([self.low / scales, self.high / scales])
        middle, half = ends.sum(axis=0) / 2, (ends[1] - ends[0]) / 2
        sizes = np.abs(directions) @ np.abs(ends).max(axis=0)
        return _outwards(directions @ middle, np.abs(directions) @ half, sizes, self.dim)

    def diameter(self, scales: Floats) -> float:
        """Euclidean diameter of the scaled box, rounded up."""
        # Points of the range are scaled, which rounds them: far from 0 by more than their sides.
        farthest = np.maximum(np.abs(self.low), np.abs(self.high)) / scales
        sides = (self.high - self.low) / scales + 2 * _UNIT * farthest
        return float(np.linalg.norm(sides)) * (1 + (self.dim + _ROUNDINGS) * _UNIT)

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
            raise ArgumentError(
                f"center must be a vector of length at least 1; got shape {self.center.shape}"
            )
        check_size(center=self.center)
        check_above(0, radius=self.radius)
        check_size(radius=np.array(self.radius, dtype=np.float64))

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.center)

    def clip(self, outputs: Floats) -> Floats:
        """Pull each row outside the ball to its surface, up to rounding; shape (n, dim)."""
        offsets, distances = self._offsets(outputs)
        outside = distances > self.radius
        shares = np.divide(self.radius, distances, out=np.ones_like(distances), where=outside)
        clipped: Floats = np.where(outside, self.center + shares * offsets, outputs)
        return clipped

    def outside(self, outputs: Floats) -> npt.NDArray[np.bool_]:
        """Find the rows that clipping moves, all coordinates of a row alike; shape (n, dim)."""
        return np.broadcast_to(self._offsets(outputs)[1] > self.radius, outputs.shape)

    def support(self, directions: Floats, scales: Floats) -> Floats:
        """Lowest and highest projection of the scaled ball, rounded outwards: (n_directions, 2)."""
        middle = self.center / scales
        half = self.radius * np.linalg.norm(directions / scales, axis=1)
        size = float(np.linalg.norm(middle)) + self.radius / float(scales.min())
        return _outwards(directions @ middle, half, size, self.dim)

    def diameter(self, scales: Floats) -> float:
        """Euclidean diameter of the scaled ball, rounded up."""
        size = float(np.linalg.norm(self.center)) + self.radius
        room = size * (self.dim + _ROUNDINGS) * _UNIT
        return 2 * (self.radius + room) / float(scales.min()) * (1 + _UNIT)

    def description(self) -> dict[str, Any]:
        """The range as JSON values."""
        return {"kind": "ball", "center": self.center.tolist(), "radius": float(self.radius)}

    def _offsets(self, outputs: Floats) -> tuple[Floats, Floats]:
        """Offsets from the center, and their norms, shape (n, 1); NaN is taken to be at it."""
        offsets = outputs - self.center
        # `hypot` does not overflow where a sum of squares would.
        known = np.where(np.isnan(offsets), 0.0, offsets)
        return offsets, np.hypot.reduce(known, axis=1, keepdims=True)


def check_range(range: object) -> None:  # noqa: A002 - the word users know
    """Check that a public range is a `Box`, a `Ball` or None."""
    if not isinstance(range, Box | Ball | None):
        raise ArgumentError(
            f"range must be a Box or a Ball, got {given(range)}; write Box(low=[...], high=[...]) "
            "or Ball(center=[...], radius=...)"
        )


def range_of(description: Mapping[str, Any] | None) -> Box | Ball | None:
    """The range with this description; None for None.

    >>> range_of({"kind": "ball", "center": [0.0], "radius": 2.0}).radius
    2.0
    """
    if description is None:
        return None
    if description["kind"] == "box":
        return Box(low=description["low"], high=description["high"])
    return Ball(center=description["center"], radius=description["radius"])


def range_words(range_: Box | Ball) -> list[str]:
    """Words for the range of each coordinate; the same for all coordinates of a ball.

    >>> range_words(Box([0, 0], [1, 100]))
    ['[0, 1]', '[0, 100]']
    """
    if isinstance(range_, Box):
        ends = zip(range_.low, range_.high, strict=True)
        return [f"[{low:g}, {high:g}]" for low, high in ends]
    center = ", ".join(f"{value:g}" for value in range_.center)
    return [f"the ball of radius {range_.radius:g} around ({center})"] * range_.dim


def no_ends(dim: int) -> Floats:
    """The ends of no values at all; shape (2, dim)."""
    return np.array([[math.inf] * dim, [-math.inf] * dim])


def ends_of(values: Floats) -> Floats:
    """Lowest and highest value of each coordinate; shape (2, dim)."""
    return np.stack([values.min(axis=0), values.max(axis=0)])


def central_ends(values: Floats, counts: Integers) -> Floats:
    """The 2 % and 98 % quantile of each coordinate; shape (2, dim)."""
    return np.quantile(values, [0.02, 0.98], axis=0, weights=counts, method="inverted_cdf")


def joined_ends(parts: Iterable[Floats]) -> Floats:
    """Lowest and highest value of each coordinate over all parts, each of shape (2, dim)."""
    ends = np.stack(list(parts))
    return np.stack([ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)])


def _outwards(middle: Floats, half: Floats, sizes: Floats | float, dim: int) -> Floats:
    """Ends of intervals, with room for rounding inner products whose terms sum to `sizes`."""
    room = half + (half + sizes) * (dim + _ROUNDINGS) * _UNIT
    return np.stack([middle - room, middle + room], axis=1)
