# SPDX-License-Identifier: Apache-2.0
"""The trained parameters, their clipped layers and their places in one flat vector."""

import functools
import itertools
from typing import final

import attrs
from torch import Tensor, nn

from pufferslice._core.arrays import Floats, Integers
from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.learning import LayerClipping
from pufferslice.learning.clipping import Clipping
from pufferslice.torch.contributions import scaled


@final
@attrs.frozen(kw_only=True, eq=False, repr=False)
class ParameterLayout:
    """The trainable parameters of a model, each once, in the order of `named_parameters`."""

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    layers: tuple[int, ...]
    """The clipped layer of each parameter; flat clipping has one layer, 0."""
    n_layers: int

    @functools.cached_property
    def slices(self) -> tuple[slice, ...]:
        """Place of each parameter in the flat vector."""
        ends = itertools.accumulate((p.numel() for p in self.parameters), initial=0)
        return tuple(slice(a, b) for a, b in itertools.pairwise(ends))

    @functools.cached_property
    def n_parameters(self) -> int:
        """Length of the flat vector."""
        return sum(parameter.numel() for parameter in self.parameters)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of coordinates of each clipped layer."""
        sizes = [0] * self.n_layers
        for layer, parameter in zip(self.layers, self.parameters, strict=True):
            sizes[layer] += parameter.numel()
        return tuple(sizes)

    def place_of(self, position: int, sums: Tensor) -> slice:
        """Place of the sums of a parameter; raises if they do not fit, as kernels do not check."""
        n_numbers = self.parameters[position].numel()
        if sums.shape != (n_numbers,):
            raise TrainingError(
                f"a sum of {sums.numel()} numbers for parameter {self.names[position]!r} of "
                f"{n_numbers}; the step was not taken. Please report the model"
            )
        return self.slices[position]

    def set_gradients(self, noisy: Integers, scales: Floats) -> None:
        """Set gradients to noisy sums times `scales`, the unit of each layer over the divisor."""
        for parameter, place, layer in zip(self.parameters, self.slices, self.layers, strict=True):
            gradient = scaled(noisy[place], float(scales[layer]), parameter.dtype)
            parameter.grad = gradient.to(parameter.device).view_as(parameter)

    def __repr__(self) -> str:
        return f"ParameterLayout(n_parameters={self.n_parameters}, n_layers={self.n_layers})"


def layout_of(model: nn.Module, clipping: Clipping) -> ParameterLayout:
    """The layout of a model under a plan's clipping.

    A parameter belongs to the layer `name` if that is its own name or the name of a module around
    it. Every trainable parameter must belong to exactly one layer of the plan.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    names = tuple(trained)
    if isinstance(clipping, LayerClipping):
        layers = tuple(_layer_of(name, clipping.names) for name in names)
        n_layers = len(clipping.names)
    else:
        layers, n_layers = (0,) * len(names), 1
    layout = ParameterLayout(
        names=names, parameters=tuple(trained.values()), layers=layers, n_layers=n_layers
    )
    if isinstance(clipping, LayerClipping) and layout.sizes != tuple(clipping.sizes):
        wrong = next(i for i, n in enumerate(layout.sizes) if n != clipping.sizes[i])
        raise ArgumentError(
            f"layer {clipping.names[wrong]!r} has {layout.sizes[wrong]} trainable parameters in "
            f"the model and {clipping.sizes[wrong]} in the plan; make the plan with the sizes of "
            "this model"
        )
    return layout


def _layer_of(name: str, layers: tuple[str, ...]) -> int:
    matches = [i for i, layer in enumerate(layers) if f"{name}.".startswith(f"{layer}.")]
    if len(matches) != 1:
        problem = "no layer" if not matches else "several layers"
        raise ArgumentError(
            f"parameter {name!r} belongs to {problem} of the plan's clipping; its layers must be "
            "names of modules or parameters that cover every trainable parameter once"
        )
    return matches[0]
