# SPDX-License-Identifier: Apache-2.0
"""Clipping of per-example gradients, and allocation of noise to layers."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above, check_count, check_one_of
from pufferslice.errors import ArgumentError

Allocation = Literal["equal", "least_noise"]


@final
@attrs.frozen(kw_only=True)
class FlatClipping:
    """Clipping of every per-example gradient as one vector, to one norm."""

    kind: ClassVar[str] = "flat"

    norm: float

    def __attrs_post_init__(self) -> None:
        check_above(0, clip_norm=self.norm)

    @property
    def ratios(self) -> Floats:
        """Multiplier of each layer over the effective multiplier: one layer, 1."""
        return np.ones(1)

    @property
    def norms(self) -> tuple[float, ...]:
        """Clip norm of each layer."""
        return (self.norm,)

    def description(self) -> dict[str, Any]:
        """The clipping as JSON values."""
        return {"kind": self.kind, "norm": float(self.norm)}


@final
@attrs.frozen(kw_only=True)
class LayerClipping:
    r"""Clipping of the gradient of each layer to the norm of the layer, with separate noise.

    With noise multipliers $z_\ell$ a step costs what a single layer costs at
    $z = (\sum_\ell z_\ell^{-2})^{-1/2}$, the effective multiplier, in full dimension.
    """

    kind: ClassVar[str] = "layers"

    names: tuple[str, ...]
    norms: tuple[float, ...]
    sizes: tuple[int, ...]
    """Number of parameters of each layer; it matters for `least_noise` only."""
    allocation: Allocation

    def __attrs_post_init__(self) -> None:
        check_one_of(("equal", "least_noise"), allocation=self.allocation)
        if not len(self.names) == len(self.norms) == len(self.sizes) > 0:
            raise ArgumentError(
                "names, norms and sizes must have one entry per layer, and at least one; got "
                f"{len(self.names)}, {len(self.norms)}, {len(self.sizes)}"
            )
        if not all(isinstance(name, str) for name in self.names) or (
            len(set(self.names)) != len(self.names)
        ):
            raise ArgumentError(f"names of layers must be distinct strings, got {list(self.names)}")
        for name, norm, size in zip(self.names, self.norms, self.sizes, strict=True):
            check_above(0, **{f"clip norm of layer {name!r}": norm})
            check_count(1, **{f"size of layer {name!r}": size})

    @property
    def ratios(self) -> Floats:
        r"""$z_\ell / z$ for each layer; their inverse squares sum to 1.

        `equal`: the same for all, $\sqrt{E}$ for E layers. `least_noise`: the least total noise
        variance $\sum_\ell d_\ell (z_\ell C_\ell)^2$ at the same cost, which is
        $z_\ell^2 \propto 1 / (\sqrt{d_\ell} C_\ell)$.
        """
        if self.allocation == "equal":
            return np.full(len(self.norms), math.sqrt(len(self.norms)))
        weights = np.sqrt(np.array(self.sizes, dtype=np.float64)) * np.array(self.norms)
        return np.asarray(np.sqrt(weights.sum() / weights))

    def description(self) -> dict[str, Any]:
        """The clipping as JSON values."""
        return {
            "kind": self.kind,
            "names": list(self.names),
            "norms": [float(norm) for norm in self.norms],
            "sizes": [int(size) for size in self.sizes],
            "allocation": self.allocation,
        }


Clipping = FlatClipping | LayerClipping


def clipping_of(description: Mapping[str, Any]) -> Clipping:
    """The clipping that a `description()` describes."""
    if description.get("kind") == FlatClipping.kind:
        return FlatClipping(norm=description["norm"])
    check_one_of((LayerClipping.kind,), kind=str(description.get("kind")))
    return LayerClipping(
        names=tuple(description["names"]),
        norms=tuple(description["norms"]),
        sizes=tuple(description["sizes"]),
        allocation=description["allocation"],
    )


def effective_multiplier(multipliers: Floats) -> float:
    r"""$(\sum_\ell z_\ell^{-2})^{-1/2}$: the single-layer multiplier of the same cost."""
    values = np.asarray(multipliers, dtype=np.float64)
    if values.ndim != 1 or not values.size:
        raise ArgumentError(
            f"multipliers must be a row of one number per layer, got shape {values.shape}"
        )
    least = float(values.min())
    check_above(0, multiplier=least)
    check_above(0, multiplier=float(values.max()))
    # Relative to the least one, so that no square overflows or underflows.
    return float(least * np.sum((least / values) ** 2) ** -0.5)
