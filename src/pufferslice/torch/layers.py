# SPDX-License-Identifier: Apache-2.0
"""Layers of exactly known types: how their copies run under vmap, and their gradients.

In a replica such a layer adds a zero, its *tap*, to its output and keeps its inputs. The gradient
of the tap and the inputs, example by example, give norms and sums by products, so that the weight
gradients of the examples need not be materialised. The weight is a constant there and must have no
other use: any other access raises `OtherUseError`, and the layer then runs its original code with
gradients for its parameters. Recurrent layers and attention are reimplemented, because torch has no
vmap rule for them. Dropout draws from a generator of the block. A layer is recognised by its exact
type and its settings, never by its behaviour.

Models of `transformers` leave the attention mask out if the tokenizer's mask has no padding. That
depends on values of the data, which `torch.func.vmap` does not reveal. In a replica the model
always builds the mask, by its own code; this changes values by rounding only.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, NoReturn, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils._pytree import tree_leaves

from pufferslice.torch.contributions import (
    Contribution,
    Dense,
    Rows,
    added,
    convolution_gradients,
    token_products,
)
from pufferslice.torch.recurrence import run_cells

_IMPLEMENTATIONS: Final = ("eager", "sdpa")
"""Kinds of attention whose mask is a tensor over pairs of tokens."""

_MARK: Final = "pufferslice_keeps_masks"
"""Attribute of the config of a replica."""

_NEVER_LEFT_OUT: Final = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}


def adapt_transformers(copy: nn.Module) -> None:
    """Let a model of `transformers` in a replica run under `torch.func.vmap`.

    The config of the replica is marked, never the user's; functions that build masks check it.
    """
    # absent unless such a model exists; `import transformers` would take seconds
    modeling = sys.modules.get("transformers.modeling_utils")
    if modeling is None or not isinstance(copy, modeling.PreTrainedModel):
        return
    registry = sys.modules["transformers"].AttentionMaskInterface
    vars(copy.config)[_MARK] = True
    # reads the values of input_ids, in order to warn
    copy.__dict__["warn_if_padding_and_no_attention_mask"] = lambda *_, **__: None
    for name in _IMPLEMENTATIONS:
        build = registry()[name]
        if not hasattr(build, _MARK):
            registry.register(name, _never_skipping(build))


def _never_skipping(build: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    def build_mask(*args: Any, **kwargs: Any) -> Tensor | None:  # as `build`
        of_replica = hasattr(kwargs.get("config"), _MARK)
        if of_replica and kwargs.get("attention_mask") is not None:
            kwargs |= _NEVER_LEFT_OUT
        return build(*args, **kwargs)

    setattr(build_mask, _MARK, True)
    return build_mask


Form = Literal["linear", "convolution", "rows", "scale"]
"""How a parameter is used: product with tokens, convolution, table, or elementwise."""

_LINEAR: Final = (nn.Linear, NonDynamicallyQuantizableLinear)
_CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_RECURRENT: Final = (nn.LSTM, nn.GRU, nn.RNN)
_CHANNEL_DROPOUTS: Final = {nn.Dropout1d: 3, nn.Dropout2d: 4, nn.Dropout3d: 5}
"""Number of dimensions of a batch."""
_WEIGHTS_OF_RNN: Final = frozenset({"_parameters", "_flat_weights", "_flat_weight_refs"})
_PARAMETERS: Final = frozenset({"_parameters"})


class OtherUseError(RuntimeError):
    """A tapped layer was used other than by calling it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(f"a {type(layer).__name__} is used in another way than by calling it")
        self.layer = layer


@final
class Use(NamedTuple):
    """One use of parameters of a layer."""

    layer: nn.Module
    """The user's own."""
    form: Form
    weight: str
    """Name in the layer."""
    bias: str | None
    tap: int
    """Number of the tap that receives the gradient of its outputs."""


@final
class Calls(NamedTuple):
    """Uses of the tapped layers in one run, the same for all examples of one shape."""

    uses: list[Use]
    zeros: list[Tensor]
    """One for each tap, of the shape of the layer's output."""


@final
class Pass:
    """One run of a replica on one example: replaces tensors and adapts known layers.

    Without `expected` calls it records them; with them it adds the `zeros` and refuses other calls.
    """

    def __init__(
        self,
        tensor: Callable[[Tensor], Tensor],
        layers: Iterable[nn.Module] = (),
        generator: torch.Generator | None = None,
        expected: Calls | None = None,
        zeros: Sequence[Tensor] = (),
    ) -> None:
        self._tensor = tensor
        self._layers = {id(layer): layer for layer in layers}
        self._owners = {
            id(parameter): layer
            for layer in self._layers.values()
            for parameter in layer._parameters.values()  # noqa: SLF001 - without its children's
        }
        self._generator = generator
        self._expected = expected
        self._zeros = zeros
        self.noted: Final = Calls([], [])
        self._inputs: list[Tensor] = []
        self._versions: list[int] = []
        self._misused: nn.Module | None = None

    def tensor(self, tensor: Tensor) -> Tensor:
        """The replacement of a tensor; a tapped parameter may be used in its layer only."""
        if id(tensor) in self._owners:
            self.refuse(self._owners[id(tensor)])
        return self._tensor(tensor)

    def hides(self, module: nn.Module) -> frozenset[str]:
        """The parameters of a tapped layer."""
        if id(module) not in self._layers:
            return frozenset()
        return _WEIGHTS_OF_RNN if isinstance(module, nn.RNNBase) else _PARAMETERS

    def adapt(self, module: nn.Module, copy: nn.Module) -> None:
        """Replace the forward pass of the copy of a known layer."""
        if id(module) in self._layers:
            copy.__dict__["_parameters"] = Locked(module, self)
            run_layer, settings = _forward(module, copy, self), _settings(module)

            def forward(*args: object, **kwargs: object) -> object:
                if _settings(copy) != settings:  # changed in this run
                    self.refuse(module)
                return run_layer(*args, **kwargs)

            copy.__dict__["forward"] = forward
        elif self._generator is not None and is_dropout(module) and module.training:
            copy.__dict__["forward"] = lambda inputs: self.dropout(copy, inputs)
        else:
            adapt_transformers(copy)

    def refuse(self, layer: nn.Module) -> NoReturn:
        """Raise `OtherUseError`; remembered, because user code may catch it."""
        self._misused = layer
        raise OtherUseError(layer)

    def tap(self, layer: nn.Module, outputs: Tensor) -> tuple[Tensor, int]:
        """The outputs with a tap, and its number."""
        number = len(self.noted.zeros)
        if self._expected is None:
            if outputs.dtype != next(layer.parameters()).dtype:  # autocast inside the model
                self.refuse(layer)
            self.noted.zeros.append(torch.zeros_like(outputs))
            return outputs, number
        if number >= len(self._zeros) or self._zeros[number].shape != outputs.shape:
            self.refuse(layer)
        self.noted.zeros.append(self._zeros[number])
        return outputs + self._zeros[number], number

    def use(
        self,
        layer: nn.Module,
        form: Form,
        inputs: Tensor,
        *,
        tap: int,
        weight: str = "weight",
        bias: str | None = "bias",
    ) -> None:
        """Record that these inputs are used with these parameters, and the tap of the output."""
        use = Use(layer, form, weight, bias, tap)
        place = len(self.noted.uses)
        if self._expected is not None and self._expected.uses[place : place + 1] != [use]:
            self.refuse(layer)
        self.noted.uses.append(use)
        self._inputs.append(inputs)
        self._versions.append(inputs._version)  # noqa: SLF001 - no public name

    def take_inputs(self) -> list[Tensor]:
        """The inputs of all uses, once; refused if they were written to since.

        The replica refers to this object in cycles, which would keep the inputs alive.
        """
        if self._misused is not None:
            self.refuse(self._misused)
        for use, values, version in zip(self.noted.uses, self._inputs, self._versions, strict=True):
            if values._version != version:  # noqa: SLF001 - no public name
                self.refuse(use.layer)
        if self._expected is not None and len(self._inputs) != len(self._expected.uses):
            self.refuse(self._expected.uses[-1].layer)
        inputs, self._inputs = self._inputs, []
        return inputs

    def dropout(self, layer: Any, inputs: Tensor) -> Tensor:  # of five types
        """The layer's output, with masks from the generator of the block."""
        if not (layer.training and layer.p):
            return inputs
        shape = inputs.shape
        if type(layer) in _CHANNEL_DROPOUTS:
            # without a batch dimension channels come first; Dropout2d takes every input as a batch
            is_batch = type(layer) is nn.Dropout2d or inputs.dim() == _CHANNEL_DROPOUTS[type(layer)]
            n_outer = 2 if is_batch else 1
            shape = torch.Size((*shape[:n_outer], *(1,) * (inputs.dim() - n_outer)))
        return inputs * self.mask(layer.p, shape, inputs)

    def mask(self, p: float, shape: torch.Size, like: Tensor) -> Tensor:
        """1 / (1 - p) with probability 1 - p, else 0."""
        drawn = torch.rand(shape, generator=self._generator, device=like.device)
        return (drawn >= p).to(like.dtype) / (1 - p) if p < 1 else torch.zeros_like(like)


@final
class Outline(Tensor):
    """Replaces a parameter of a tapped layer: dtype, device and shape, but no values.

    Layers around it, such as those of LoRA, read these; any computation is another use.
    """

    refuse: Callable[[], NoReturn]

    @staticmethod
    def of(parameter: Tensor, refuse: Callable[[], NoReturn]) -> "Outline":
        """The outline of a parameter; `refuse` is called where values are asked for."""
        outline: Outline = Tensor._make_wrapper_subclass(  # noqa: SLF001 - no public name
            Outline,
            parameter.shape,
            dtype=parameter.dtype,
            device=parameter.device,
            requires_grad=parameter.requires_grad,
        )
        outline.refuse = refuse
        return outline

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # noqa: SLF001 - as torch says

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # as torch has it
        values = tree_leaves((args, kwargs))
        next(value for value in values if isinstance(value, Outline)).refuse()


@final
class Locked(dict[str, Any]):
    """The parameters of a tapped layer in a replica; only the tap uses them."""

    def __init__(self, layer: nn.Module, run: Pass) -> None:
        super().__init__()
        self._layer, self._run = layer, run

    def _refuse(self, *_: object) -> NoReturn:
        self._run.refuse(self._layer)

    def __contains__(self, name: object) -> bool:
        return name in self._layer._parameters  # noqa: SLF001 - names only

    def __getitem__(self, name: str) -> Tensor | None:
        parameter = self._layer._parameters[name]  # noqa: SLF001 - also one that is None
        return None if parameter is None else Outline.of(parameter, self._refuse)

    __setitem__ = __delitem__ = __iter__ = __len__ = _refuse
    get = items = keys = values = pop = copy = update = setdefault = _refuse  # type: ignore[assignment]


def known_layers(model: nn.Module, trained: Sequence[Tensor]) -> list[nn.Module]:
    """Layers of known types and settings whose parameters no other layer has."""
    wanted = {id(parameter) for parameter in trained}
    owners: dict[int, int] = {}
    modules = list(model.modules())
    for module in modules:
        for parameter in module._parameters.values():  # noqa: SLF001 - each name, also a tied one
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    layers = []
    for module in modules:
        parameters = [p for p in module._parameters.values() if p is not None]  # noqa: SLF001 - as above
        needed = any(id(p) in wanted for p in parameters) or isinstance(module, nn.RNNBase)
        if needed and _is_known(module) and all(owners[id(p)] == 1 for p in parameters):
            layers.append(module)
    return layers


def _is_known(module: Any) -> bool:  # any module, one type a line
    kind = type(module)
    if "forward" in module.__dict__:
        return False
    if kind in _RECURRENT:
        names = {name for level in module._all_weights for name in level}  # noqa: SLF001 - no other
        return not module.proj_size and set(module._parameters) == names  # noqa: SLF001 - as above
    if kind is nn.MultiheadAttention:
        last = module.out_proj
        return (
            bool(module._qkv_same_embed_dim)  # noqa: SLF001 - no public name
            and (module.bias_k is None and module.bias_v is None and not module.add_zero_attn)
            and (type(last) in _LINEAR and "forward" not in last.__dict__)
        )
    if set(module._parameters) - {"weight", "bias"}:  # noqa: SLF001 - of its own
        return False
    if kind is nn.Embedding:
        return module.max_norm is None and not (module.sparse or module.scale_grad_by_freq)
    if kind in _CONVOLUTIONS:
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return kind in _LINEAR or kind in {nn.LayerNorm, nn.GroupNorm}


def _settings(layer: nn.Module) -> dict[str, object]:
    kinds = (int, float, str, tuple, type(None))
    attributes = vars(layer).items()
    return {
        name: value for name, value in attributes if name[0] != "_" and isinstance(value, kinds)
    }


def is_dropout(module: nn.Module) -> bool:
    """Whether its masks can be drawn from the generator of a block."""
    kinds = (nn.Dropout, *_CHANNEL_DROPOUTS)
    return type(module) in kinds and "forward" not in module.__dict__ and not module.inplace


def _forward(layer: Any, copy: Any, run: Pass) -> Callable[..., Any]:  # a known type
    """The forward pass of the copy of a tapped layer; other ways to call it are refused."""
    if type(layer) in _RECURRENT:
        return lambda inputs, hx=None: _recurrent(layer, run, inputs, hx)
    if type(layer) is nn.MultiheadAttention:
        return lambda *args, **kwargs: _attention(layer, copy, run, *args, **kwargs)
    constants = {
        name: None if value is None else value.detach()
        for name, value in layer._parameters.items()  # noqa: SLF001 - by their names
    }
    weight: Any = constants["weight"]
    bias = constants.get("bias")

    def forward(inputs: Tensor, *rest: object) -> Tensor:
        if rest or not isinstance(inputs, Tensor):
            run.refuse(layer)
        form: Form = "linear"
        if type(layer) in _LINEAR:
            outputs = functional.linear(inputs, weight, bias)
        elif type(layer) is nn.Embedding:
            form, outputs = "rows", functional.embedding(inputs, weight)
        elif type(layer) in _CONVOLUTIONS:
            if inputs.dim() != weight.dim() or len(inputs) != 1:
                run.refuse(layer)
            zeros = [0] * len(layer.stride)
            geometry = (layer.stride, layer.padding, layer.dilation, False, zeros, layer.groups)
            form, outputs = "convolution", torch.convolution(inputs, weight, bias, *geometry)
        else:
            form = "scale"
            if type(layer) is nn.LayerNorm:
                inputs = functional.layer_norm(
                    inputs, layer.normalized_shape, None, None, layer.eps
                )
                shape = layer.normalized_shape
            else:
                inputs = functional.group_norm(inputs, layer.num_groups, eps=layer.eps)
                shape = (layer.num_channels, *(1,) * (inputs.dim() - 2))
            outputs = inputs * weight.reshape(shape)
            outputs = outputs if bias is None else outputs + bias.reshape(shape)
        outputs, tap = run.tap(layer, outputs)
        run.use(layer, form, inputs, tap=tap, bias=None if bias is None else "bias")
        return outputs

    return forward


def _recurrent(layer: Any, run: Pass, inputs: Any, hx: Any) -> Any:  # as torch's own
    """`nn.LSTM`, `nn.GRU` or `nn.RNN`, as torch documents it."""
    is_lstm = layer.mode == "LSTM"
    if not isinstance(inputs, Tensor) or inputs.dim() not in {2, 3}:
        run.refuse(layer)  # a packed sequence
    is_single = inputs.dim() == 2
    values = inputs.unsqueeze(1) if is_single else inputs
    if layer.batch_first and not is_single:
        values = values.transpose(0, 1)
    first: tuple[Tensor, ...] = () if hx is None else tuple(hx) if is_lstm else (hx,)
    if is_single:
        first = tuple(state.unsqueeze(1) for state in first)
    n_rows, n_directions = values.shape[1], 2 if layer.bidirectional else 1
    nothing = values.new_zeros(n_rows, layer.hidden_size)
    states, cells = [], []
    for level in range(layer.num_layers):
        outputs = []
        for direction in range(n_directions):
            end = "_reverse" if direction else ""
            place = level * n_directions + direction
            start = first[0][place] if first else nothing
            cell = first[1][place] if first and is_lstm else nothing
            ordered = values.flip(0) if direction else values
            names = [f"weight_{part}_l{level}{end}" for part in ("ih", "hh")]
            biases = [name.replace("weight", "bias") if layer.bias else None for name in names]
            to_inputs, to_hidden = (getattr(layer, name).detach() for name in names)
            gates = functional.linear(ordered, to_inputs, _constant(layer, biases[0]))
            gates, tap = run.tap(layer, gates)
            run.use(layer, "linear", ordered, tap=tap, weight=names[0], bias=biases[0])
            hidden = _constant(layer, biases[1])
            hidden = torch.zeros_like(gates) if hidden is None else hidden.expand_as(gates)
            if layer.mode == "GRU":  # elsewhere both have the same gradient
                hidden, tap = run.tap(layer, hidden)
            sequence, sequence_cells = run_cells(layer.mode, gates, hidden, to_hidden, start, cell)
            before = torch.cat([start.unsqueeze(0), sequence[:-1]])
            run.use(layer, "linear", before, tap=tap, weight=names[1], bias=biases[1])
            states.append(sequence[-1])
            if is_lstm:
                cells.append(sequence_cells[-1])
            outputs.append(sequence.flip(0) if direction else sequence)
        values = torch.cat(outputs, 2) if n_directions > 1 else outputs[0]
        if layer.dropout and layer.training and level + 1 < layer.num_layers:
            values = values * run.mask(layer.dropout, values.shape, values)
    last: list[Tensor] = [torch.stack(states), *([torch.stack(cells)] if is_lstm else [])]
    if is_single:
        values, last = values.squeeze(1), [state.squeeze(1) for state in last]
    elif layer.batch_first:
        values = values.transpose(0, 1)
    return values, tuple(last) if is_lstm else last[0]


def _constant(layer: nn.Module, name: str | None) -> Tensor | None:
    parameter: Tensor | None = None if name is None else getattr(layer, name)
    return None if parameter is None else parameter.detach()


def _attention(
    layer: Any,  # an nn.MultiheadAttention
    copy: Any,
    run: Pass,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,  # noqa: FBT001, FBT002 - as torch's own
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,  # noqa: FBT001, FBT002 - as torch's own
    is_causal: bool = False,  # noqa: FBT001, FBT002 - as torch's own
) -> tuple[Tensor, Tensor | None]:
    """Self-attention of `nn.MultiheadAttention`, as torch documents it."""
    if not (query is key is value) or (is_causal and attn_mask is None):
        run.refuse(layer)
    is_single = query.dim() == 2
    rows = query.unsqueeze(0) if is_single else query
    if not is_single and not layer.batch_first:
        rows = rows.transpose(0, 1)
    weight, bias = layer.in_proj_weight.detach(), _constant(layer, "in_proj_bias")
    projected, tap = run.tap(layer, functional.linear(rows, weight, bias))
    name = None if bias is None else "in_proj_bias"
    run.use(layer, "linear", rows, tap=tap, weight="in_proj_weight", bias=name)
    heads = projected.reshape(*projected.shape[:2], 3, layer.num_heads, layer.head_dim)
    q, k, v = heads.permute(2, 0, 3, 1, 4)
    scores = q @ k.mT * layer.head_dim**-0.5
    if attn_mask is not None:
        whole = attn_mask if attn_mask.dim() == 2 else attn_mask.reshape(scores.shape)
        scores = _masked(scores, whole)
    if key_padding_mask is not None:
        padding = key_padding_mask.unsqueeze(0) if is_single else key_padding_mask
        scores = _masked(scores, padding[:, None, None, :])
    # where a query may see nothing, torch returns NaN weights, but 0 if they are not needed
    weights = scores.softmax(-1) if need_weights else torch._safe_softmax(scores, -1)  # noqa: SLF001 - no public name
    if layer.dropout and layer.training:
        weights = weights * run.mask(layer.dropout, weights.shape, weights)
    # torch uses the weight without calling the layer, so hooks do not run
    outputs = copy.out_proj.forward((weights @ v).transpose(1, 2).flatten(2))
    if is_single:
        outputs, weights = outputs.squeeze(0), weights.squeeze(0)
    elif not layer.batch_first:
        outputs = outputs.transpose(0, 1)
    if not need_weights:
        return outputs, None
    return outputs, weights.mean(-3) if average_attn_weights else weights


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def layer_contributions(
    uses: Sequence[Use], inputs: list[Tensor], of_taps: list[Tensor], places: dict[int, int]
) -> dict[int, Contribution]:
    """The contributions of the examples to each trained parameter, by its place.

    Inputs and gradients have examples along dimension 0; both lists are cleared, to free memory.
    Several uses of a parameter are added, in one product if they are linear.
    """
    contributions: dict[int, list[Contribution]] = {}
    products: dict[int, Contribution] = {}
    tokens: dict[int, list[tuple[Tensor, Tensor]]] = {}
    last_of_tap = {use.tap: i for i, use in enumerate(uses)}
    last_of_weight = {(id(use.layer), use.weight): i for i, use in enumerate(uses)}
    nothing = torch.empty(0)
    for i, use in enumerate(uses):
        values, gradient = inputs[i], of_taps[use.tap]
        inputs[i] = nothing
        if last_of_tap[use.tap] == i:
            of_taps[use.tap] = nothing
        weight = places.get(id(getattr(use.layer, use.weight)))
        bias = None if use.bias is None else places.get(id(getattr(use.layer, use.bias)))
        if use.form == "linear":
            left, right = (
                tensor.reshape(len(tensor), -1, tensor.shape[-1]) for tensor in (gradient, values)
            )
            if weight is not None:
                tokens.setdefault(weight, []).append((left, right))
                if last_of_weight[id(use.layer), use.weight] == i:
                    pairs = tokens.pop(weight)
                    sides = [
                        side[0] if len(side) == 1 else torch.cat(side, 1)
                        for side in zip(*pairs, strict=True)
                    ]
                    products[weight] = token_products(*sides)
                    del pairs, sides
            gradient = left.sum(1) if left.shape[1] > 1 else left[:, 0]
        elif use.form == "convolution":
            gradient = gradient.flatten(0, 1)
            if weight is not None:
                vectors = convolution_gradients(use.layer, values.flatten(0, 1), gradient)
                contributions.setdefault(weight, []).append(vectors)
            gradient = gradient.flatten(2).sum(2)
        elif use.form == "rows":
            if weight is not None:
                contributions.setdefault(weight, []).append(_rows(use.layer, values, gradient))
        elif weight is not None:
            contributions.setdefault(weight, []).append(
                Dense(_unscaled(use.layer, gradient * values))
            )
        if bias is not None:
            if use.form == "scale":
                gradient = _unscaled(use.layer, gradient)
            contributions.setdefault(bias, []).append(Dense(gradient.contiguous()))
    return {place: added(those) for place, those in contributions.items()} | products


def _unscaled(layer: Any, values: Tensor) -> Tensor:  # a LayerNorm or GroupNorm
    """Sum values over all but the examples and the entries of the weight."""
    if isinstance(layer, nn.LayerNorm):
        return values.reshape(len(values), -1, layer.weight.numel()).sum(1)
    return values.reshape(*values.shape[:3], -1).sum((1, 3))


def _rows(layer: Any, inputs: Tensor, outputs: Tensor) -> Rows:  # an nn.Embedding
    """One vector per example and distinct row."""
    n, n_rows = len(inputs), layer.num_embeddings
    ids = inputs.reshape(n, -1).long()
    vectors = outputs.reshape(-1, layer.embedding_dim)
    if layer.padding_idx is not None:
        padding = layer.padding_idx % n_rows  # may count from the end
        vectors = vectors.masked_fill((ids.reshape(-1) == padding)[:, None], 0.0)
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
