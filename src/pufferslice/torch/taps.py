# SPDX-License-Identifier: Apache-2.0
"""Linear layers, convolutions and embeddings whose per-example gradients are never written out.

In the replica such a layer adds a zero, its *tap*, to its outputs and keeps its inputs. The
gradient of the tap and the inputs, example by example, give norms and sums by products. The weight
itself is a constant there, so it must have no other use: any other way to it raises
`OtherUseError`, and the layer then goes without tap. A layer is known by its exact type, never by
what it was seen to do.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from pufferslice.torch.contributions import Contribution, Rows, Scratch, added
from pufferslice.torch.convolution import ConvolutionUse
from pufferslice.torch.layout import ParameterLayout
from pufferslice.torch.linear import LinearTokens, linear_contributions

Positions = tuple[int | None, int | None]
"""Of weight and bias in the layout; None is a constant."""

_CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class OtherUseError(RuntimeError):
    """A tapped layer was used in a way that its tap does not see."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(f"a {type(layer).__name__} is used in another way than by calling it")
        self.layer = layer


@final
class Call(NamedTuple):
    """One call of a tapped layer."""

    layer: nn.Module
    """The user's own."""
    zero: Tensor
    """Like its outputs."""


@final
class Taps:
    """The calls of tapped layers in one run of a replica.

    Without expected `calls` it notes them; with them it adds the zeros given, and refuses others.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        calls: Sequence[Call] | None = None,
        zeros: Sequence[Tensor] = (),
    ) -> None:
        self.layers: Final = {id(layer): layer for layer in layers}
        self.owners: Final = {id(p): layer for layer in layers for p in layer.parameters()}
        self.noted: Final[list[Call]] = []
        self._expected = calls
        self._zeros = zeros
        self._inputs: list[tuple[nn.Module, Tensor, int]] = []
        self._misused: nn.Module | None = None

    def refuse(self, layer: nn.Module) -> NoReturn:
        """The layer cannot be tapped; remembered, because code may catch what is raised in it."""
        self._misused = layer
        raise OtherUseError(layer)

    def called(self, layer: nn.Module, inputs: Tensor, outputs: Tensor) -> Tensor:
        """The outputs with their tap."""
        position = len(self._inputs)
        self._inputs.append((layer, inputs, inputs._version))  # noqa: SLF001 - no public name
        if self._expected is None:
            self.noted.append(Call(layer, torch.zeros_like(outputs)))
            return outputs
        if position >= len(self._expected):
            self.refuse(layer)
        expected = self._expected[position]
        if expected.layer is not layer or expected.zero.shape != outputs.shape:
            self.refuse(layer)
        return outputs + self._zeros[position]

    def inputs(self) -> list[Tensor]:
        """What the layers were called with; nobody may have written to it since."""
        if self._misused is not None:
            self.refuse(self._misused)
        for layer, inputs, version in self._inputs:
            if inputs._version != version:  # noqa: SLF001 - no public name
                self.refuse(layer)
        if self._expected is not None and len(self._inputs) != len(self._expected):
            self.refuse(self._expected[-1].layer)
        return [inputs for _, inputs, _ in self._inputs]


@final
class Locked(dict[str, Any]):
    """The parameters of a tapped layer in a replica: there is no way to them but the tap."""

    def __init__(self, layer: nn.Module, taps: Taps) -> None:
        super().__init__()
        self._layer, self._taps = layer, taps

    def _refuse(self, *_: object) -> NoReturn:
        self._taps.refuse(self._layer)

    __contains__ = __getitem__ = __setitem__ = __delitem__ = __iter__ = __len__ = _refuse
    get = items = keys = values = pop = copy = update = setdefault = _refuse  # type: ignore[assignment]


def tapped_copy(layer: nn.Module, copy: nn.Module, taps: Taps) -> None:
    """Make a copy of a layer, all of whose other attributes are there, one with taps."""
    weight, bias = _weight_and_bias(layer)
    constants = (weight.detach(), None if bias is None else bias.detach())

    def forward(inputs: Tensor, *rest: object) -> Tensor:
        if rest or not isinstance(inputs, Tensor):
            taps.refuse(layer)
        if isinstance(layer, nn.Linear):
            outputs = functional.linear(inputs, *constants)
        elif isinstance(layer, nn.Embedding):
            outputs = functional.embedding(inputs, constants[0])
        else:
            if inputs.dim() != weight.dim() or len(inputs) != 1:
                taps.refuse(layer)
            outputs = _convolution(layer).forward(inputs)
        return taps.called(layer, inputs, outputs)

    copy.__dict__["_parameters"] = Locked(layer, taps)
    copy.__dict__["forward"] = forward


def _weight_and_bias(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    return cast("Tensor", layer.weight), cast("Tensor | None", getattr(layer, "bias", None))


def _convolution(layer: Any, positions: Positions = (None, None)) -> ConvolutionUse:  # noqa: ANN401 - of three types
    return ConvolutionUse(
        weight=layer.weight.detach(),
        bias=None if layer.bias is None else layer.bias.detach(),
        positions=positions,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=layer.groups,
    )


def tappable(model: nn.Module, layout: ParameterLayout) -> list[nn.Module]:
    """Layers of known types, with trained parameters that no other layer has."""
    trained = {id(parameter) for parameter in layout.parameters}
    owners: dict[int, int] = {}
    modules = list(model.modules())
    for module in modules:
        for parameter in module._parameters.values():  # noqa: SLF001 - each name, also a tied one
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    return [
        module
        for module in modules
        if _is_known(module)
        and any(id(p) in trained for p in module.parameters())
        and all(owners[id(p)] == 1 for p in module.parameters())
    ]


def _is_known(module: nn.Module) -> bool:
    if "forward" in module.__dict__ or set(module._parameters) - {"weight", "bias"}:  # noqa: SLF001 - of its own
        return False
    if type(module) is nn.Embedding:
        return module.max_norm is None and not (module.sparse or module.scale_grad_by_freq)
    if type(module) in _CONVOLUTIONS:
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) is nn.Linear


def tapped_contributions(
    calls: Sequence[tuple[nn.Module, Tensor, Tensor]], layout: ParameterLayout, scratch: Scratch
) -> dict[int, Contribution]:
    """Contributions by their positions, from (layer, inputs, gradient of outputs) of each call.

    Both tensors have examples along dimension 0 and the batch of one along dimension 1. Only
    linear layers may have several calls.
    """
    places = {id(parameter): i for i, parameter in enumerate(layout.parameters)}
    linear, found = [], defaultdict[int, list[Contribution]](list)
    for layer, inputs, outputs in calls:
        weight, bias = _weight_and_bias(layer)
        positions = (places.get(id(weight)), places.get(id(bias)))
        if isinstance(layer, nn.Linear):
            linear.append(LinearTokens(positions, _tokens(outputs), _tokens(inputs)))
        elif isinstance(layer, nn.Embedding):
            found[places[id(weight)]].append(_rows(layer, inputs, outputs))
        else:
            use = _convolution(layer, positions)
            both = use.contributions(inputs.flatten(0, 1), outputs.flatten(0, 1), scratch)
            for position, contribution in both.items():
                found[position].append(contribution)
    for position, contribution in linear_contributions(linear, scratch):
        found[position].append(contribution)
    return {position: added(those) for position, those in found.items()}


def _tokens(values: Tensor) -> Tensor:
    """Shape (n, n_features) for one token per example, else (n, n_tokens, n_features)."""
    tokens = values.reshape(len(values), -1, values.shape[-1])
    return tokens[:, 0].contiguous() if tokens.shape[1] == 1 else tokens.contiguous()


def _rows(layer: nn.Embedding, inputs: Tensor, outputs: Tensor) -> Rows:
    """One vector per example and distinct row."""
    n, n_rows = len(inputs), layer.num_embeddings
    ids = inputs.reshape(n, -1).long()
    vectors = outputs.reshape(-1, layer.embedding_dim)
    if layer.padding_idx is not None:
        vectors = vectors.masked_fill((ids.reshape(-1) == layer.padding_idx)[:, None], 0.0)
    owners = torch.arange(n, device=ids.device)[:, None].expand_as(ids)
    keys, where = torch.unique(owners * n_rows + ids, return_inverse=True)
    sums = vectors.new_zeros(len(keys), vectors.shape[1])
    sums.index_add_(0, where.reshape(-1), vectors)
    return Rows(
        owners=torch.div(keys, n_rows, rounding_mode="floor"),
        rows=keys % n_rows,
        vectors=sums,
        n_examples=n,
        n_rows=n_rows,
    )
