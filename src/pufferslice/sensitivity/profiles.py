# SPDX-License-Identifier: Apache-2.0
"""Slice profiles: finite sets of directions, and the whole sphere, drawn from or in closed form."""

from collections.abc import Sequence
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import (
    check_count,
    check_fits,
    check_probabilities,
    check_unit_rows,
    is_a,
)
from pufferslice._core.files import digest
from pufferslice._core.text import given
from pufferslice.errors import ArgumentError


@attrs.frozen(kw_only=True, repr=False)
class _Directions:
    directions: Floats = attrs.field(converter=locked, eq=same)
    """Unit vectors, shape (n_directions, dim)."""

    def __attrs_post_init__(self) -> None:
        check_unit_rows(directions=self.directions)

    @property
    def n_directions(self) -> int:
        """Number of slices."""
        return len(self.directions)

    @property
    def dim(self) -> int:
        """Dimension of the scaled query."""
        return int(self.directions.shape[1])

    def _bytes(self) -> tuple[bytes, bytes]:
        """Return shape and directions, for a digest."""
        shape = np.array(self.directions.shape, dtype=">i8")
        return shape.tobytes(), self.directions.astype(">f8").tobytes()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_directions={self.n_directions}, dim={self.dim})"


@final
@attrs.frozen(kw_only=True, repr=False)
class FiniteProfile(_Directions):
    """A finite set of unit directions and their weights (the paper's (U, omega)).

    The `directions` are unit vectors, shape (n_directions, dim), in the coordinates of the *scaled*
    query.

    >>> FiniteProfile.uniform(dim=9, n_directions=200, seed=7)
    FiniteProfile(n_directions=200, dim=9)
    """

    weights: Floats = attrs.field(converter=locked, eq=same)
    """Probabilities, shape (n_directions,); read as shares of their sum."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_probabilities(weights=self.weights, length=len(self.directions))

    @classmethod
    def of(cls, directions: Any) -> "FiniteProfile":  # whatever numpy reads
        """Weight the given directions equally."""
        rows = locked(directions)
        check_unit_rows(directions=rows)
        return cls(directions=rows, weights=np.full(len(rows), 1 / len(rows)))

    @classmethod
    def uniform(cls, *, dim: int, n_directions: int, seed: int) -> "FiniteProfile":
        """Draw independent uniform directions on the sphere, from a public seed.

        On the line there is only one slice, the line itself.
        """
        check_count(1, dim=dim, n_directions=n_directions)
        check_count(0, seed=seed)
        if dim == 1:
            return cls.of([[1.0]])
        return cls.of(_draw_unit_rows(n_directions, dim, np.random.default_rng(seed)))

    @classmethod
    def axes(cls, *, dim: int) -> "FiniteProfile":
        """Use the coordinate axes as directions."""
        check_count(1, dim=dim)
        check_fits(1, **{"dim * dim": dim * dim})
        return cls.of(np.eye(dim))

    @classmethod
    def orthogonal(cls, *, dim: int, n_sets: int, seed: int) -> "FiniteProfile":
        """Draw `n_sets` random orthonormal bases, from a public seed."""
        check_count(1, dim=dim, n_sets=n_sets)
        check_count(0, seed=seed)
        if dim == 1:
            return cls.of([[1.0]])
        check_fits(dim * dim, n_sets=n_sets)
        # QR with the signs of R put back: bases with the uniform (Haar) distribution.
        q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((n_sets, dim, dim)))
        signs = np.sign(np.diagonal(r, axis1=1, axis2=2))
        bases = (q * signs[:, None, :]).transpose(0, 2, 1)
        bases = bases / np.linalg.norm(bases, axis=2, keepdims=True)
        return cls.of(bases.reshape(-1, dim))

    @classmethod
    def blocks(
        cls, *, dim: int, blocks: Sequence[Sequence[int]], n_directions: int, seed: int
    ) -> "FiniteProfile":
        """Draw `n_directions` uniform directions in each block of coordinates; weigh all alike."""
        check_count(1, dim=dim, n_directions=n_directions)
        check_count(0, seed=seed)
        rng = np.random.default_rng(seed)
        parts: list[Floats] = []
        for block in blocks:
            if not is_a(block, Sequence | np.ndarray):
                raise ArgumentError(
                    f"a block must list coordinates, got {given(block)}; blocks is a list of lists"
                )
            inside = all(is_a(i, int | np.integer) and 0 <= i < dim for i in block)
            if not (inside and len(block) > 0 and len(set(block)) == len(block)):
                raise ArgumentError(
                    f"a block must list different coordinates from 0 to {dim - 1}, got "
                    f"{given(list(block))}"
                )
            check_fits(dim * (len(parts) + 1), n_directions=n_directions)
            part = np.zeros((n_directions, dim))
            part[:, list(block)] = _draw_unit_rows(n_directions, len(block), rng)
            parts.append(part)
        if not parts:
            raise ArgumentError("blocks must hold at least one block of coordinates, got none")
        return cls.of(np.vstack(parts))

    @property
    def effective_slices(self) -> float:
        """Number of equally weighted slices that would be as concentrated: 1 / sum(weights^2)."""
        shares = self.weights / self.weights.sum()
        return float(1 / (shares @ shares))

    def digest(self) -> str:
        """Compute SHA-256 over the stored directions and weights, however they were drawn."""
        return digest(*self._bytes(), self.weights.astype(">f8").tobytes())


@final
@attrs.frozen(kw_only=True, repr=False)
class SampledSphere(_Directions):
    """The whole sphere as profile, known through directions drawn uniformly and independently.

    The `directions` are unit vectors, shape (n_directions, dim), drawn without looking at the data.
    The claim is about *all* directions, so it carries the error of drawing only some of them (a
    Hoeffding term) and a failure probability, and it needs a query with a public range. If the
    drawn directions themselves are to be the profile, use `FiniteProfile.uniform`.

    >>> SampledSphere.draw(dim=9, n_directions=2000, seed=7)
    SampledSphere(n_directions=2000, dim=9)
    """

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        _check_not_line(self.dim)

    @classmethod
    def draw(cls, *, dim: int, n_directions: int, seed: int) -> "SampledSphere":
        """Draw independent uniform directions; choose the seed without looking at results."""
        check_count(2, dim=dim)
        check_count(1, n_directions=n_directions)
        check_count(0, seed=seed)
        return cls(directions=_draw_unit_rows(n_directions, dim, np.random.default_rng(seed)))

    @property
    def weights(self) -> Floats:
        """Equal weights of the directions."""
        return np.full(self.n_directions, 1 / self.n_directions)

    @property
    def effective_slices(self) -> float:
        """Number of drawn directions, because their weights are equal."""
        return float(self.n_directions)

    def digest(self) -> str:
        """Compute SHA-256 over the drawn directions; never that of a finite profile."""
        return digest(b"sphere", *self._bytes())


@final
@attrs.frozen(kw_only=True)
class WholeSphere:
    """The whole sphere as profile, in closed form: all directions count, and none is drawn.

    The claim needs neither directions nor a failure probability nor a public range, but it has a
    closed form only for some distributions (`pufferslice.claims.sliced`); for the others it
    is refused, and `SampledSphere` or `FiniteProfile.uniform` is the way out.

    >>> WholeSphere(dim=9)
    WholeSphere(dim=9)
    """

    dim: int
    """Dimension of the scaled query, at least 2."""

    def __attrs_post_init__(self) -> None:
        check_count(1, dim=self.dim)
        _check_not_line(self.dim)

    def digest(self) -> str:
        """Compute SHA-256 over the dimension; never that of a profile with directions."""
        return digest(b"whole sphere", np.array([self.dim], dtype=">i8").tobytes())


WHOLE_SPHERE: Final = "whole_sphere"
"""Kind of `WholeSphere` in files and statements."""
Profile = FiniteProfile | SampledSphere
"""Profiles with directions."""
AnyProfile = Profile | WholeSphere
"""Profiles that a sliced claim can name."""


def check_profile(profile: object, dim: int) -> None:
    """Refuse anything but a profile of slices in `dim` coordinates."""
    if not isinstance(profile, AnyProfile):
        raise ArgumentError(
            "profile must be a FiniteProfile, a SampledSphere or a WholeSphere, got "
            f"{given(profile)}; write FiniteProfile.uniform(dim={dim}, n_directions=..., seed=...)"
        )
    if profile.dim != dim:
        raise ArgumentError(
            f"profile has dimension {profile.dim}, the query has {dim}; use "
            f"FiniteProfile.uniform(dim={dim}, ...)"
        )


def _check_not_line(dim: int) -> None:
    """Check that the sphere has at least two dimensions."""
    if dim == 1:
        raise ArgumentError(
            "on the line there is only one slice, the line itself; use FiniteProfile.axes"
        )


def project(directions: Floats, outputs: Floats) -> Floats:
    """Compute inner products, one contiguous row per direction: shape (n_directions, n_samples)."""
    return np.ascontiguousarray(directions @ outputs.T)


def _draw_unit_rows(n_rows: int, dim: int, rng: np.random.Generator) -> Floats:
    check_fits(dim, n_directions=n_rows)
    rows = rng.standard_normal((n_rows, dim))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))
