# SPDX-License-Identifier: Apache-2.0
"""Attention and recurrent layers, spelled out in linear maps so that each map can be recorded."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from pufferslice.torch.operations import Records, UnsupportedUseError, recorded_linear

State = tuple[Tensor, ...]
Step = Callable[[Tensor, Tensor, State], State]
"""Projected inputs, projected hidden state and old state, to the new state; hidden is first."""


def attention(
    recorder: Records,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,  # noqa: ARG001 - torch checks it
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,  # noqa: FBT001 - torch's own signature
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,  # noqa: FBT001, FBT002 - as above
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,  # noqa: FBT001, FBT002 - as above
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,  # noqa: FBT001, FBT002 - as above
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,  # noqa: FBT001, FBT002 - as above
    is_causal: bool = False,  # noqa: ARG001, FBT001, FBT002 - a hint; the mask is given
) -> tuple[Tensor, Tensor | None]:
    """`multi_head_attention_forward` on (length, examples, features), example by example."""
    plain = query.dim() == 3 and not add_zero_attn
    if not plain or any(x is not None for x in (bias_k, bias_v, static_k, static_v)):
        msg = "attention with extra keys, or without examples"
        raise UnsupportedUseError(msg)
    if use_separate_proj_weight:
        weights = (q_proj_weight, k_proj_weight, v_proj_weight)
        if in_proj_bias is not None:
            msg = "attention with separate weights and one common bias"
            raise UnsupportedUseError(msg)
        triple = [
            recorded_linear(recorder, x.transpose(0, 1), _given(w), None)
            for x, w in zip((query, key, value), weights, strict=True)
        ]
    elif query is key and key is value:
        joint = recorded_linear(
            recorder, query.transpose(0, 1), _given(in_proj_weight), in_proj_bias
        )
        triple = list(joint.chunk(3, dim=-1))
    else:
        msg = "attention between different sequences with one common weight"
        raise UnsupportedUseError(msg)
    heads = [_split(x, num_heads) for x in triple]
    mask = _mask(heads[0], attn_mask, key_padding_mask)
    dropout = dropout_p if training else 0.0
    mixed, shares = _attended(heads, mask, dropout, need_weights)
    outputs = recorded_linear(
        recorder, mixed.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias
    )
    if shares is not None and average_attn_weights:
        shares = shares.mean(1)
    return outputs.transpose(0, 1), shares


def _given(weight: Tensor | None) -> Tensor:
    if weight is None:
        msg = "attention without its weights"
        raise UnsupportedUseError(msg)
    return weight


def _split(values: Tensor, num_heads: int) -> Tensor:
    """(examples, length, features) to (examples, heads, length, features per head)."""
    return values.reshape(*values.shape[:2], num_heads, -1).transpose(1, 2)


def _mask(query: Tensor, attn_mask: Tensor | None, padding: Tensor | None) -> Tensor | None:
    """Both masks as one that is added, broadcast to (examples, heads, length, length)."""
    masks = []
    if attn_mask is not None:
        shared = attn_mask.dim() == 2
        shape = (1, 1, *attn_mask.shape) if shared else (*query.shape[:2], *attn_mask.shape[1:])
        masks.append(_added(attn_mask.reshape(shape), query))
    if padding is not None:
        masks.append(_added(padding[:, None, None, :], query))
    return sum(masks[1:], masks[0]) if masks else None


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """A mask that is added to the scores: minus infinity where a boolean one is true."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)


def _attended(
    heads: Sequence[Tensor],
    mask: Tensor | None,
    dropout: float,
    need_weights: bool,  # noqa: FBT001 - torch's own word
) -> tuple[Tensor, Tensor | None]:
    query, key, value = heads
    if not need_weights:
        return functional.scaled_dot_product_attention(query, key, value, mask, dropout), None
    scores = (query / math.sqrt(query.shape[-1])) @ key.mT
    shares = torch.softmax(scores if mask is None else scores + mask, dim=-1)
    shares = functional.dropout(shares, dropout) if dropout else shares
    return shares @ value, shares


def lstm_cell(
    recorder: Records,
    inputs: Tensor,
    state: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`LSTMCell`: hidden and cell state."""
    hidden = recorded_linear(recorder, state[0], w_hh, b_hh)
    new = _lstm_step(recorded_linear(recorder, inputs, w_ih, b_ih), hidden, tuple(state))
    return new[0], new[1]


def one_state_cell(step: Step) -> Callable[..., Tensor]:
    """`GRUCell` and `RNNCell`: the hidden state."""

    def cell(
        recorder: Records,
        inputs: Tensor,
        state: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Tensor:
        hidden = recorded_linear(recorder, state, w_hh, b_hh)
        return step(recorded_linear(recorder, inputs, w_ih, b_ih), hidden, (state,))[0]

    return cell


def recurrent(step: Step) -> Callable[..., tuple[Tensor, ...]]:
    """`LSTM`, `GRU` and `RNN` over whole sequences; packed sequences are not known here."""

    def run(
        recorder: Records,
        inputs: Tensor,
        states: Any,  # noqa: ANN401 - one tensor, or two for an LSTM
        weights: Sequence[Tensor],
        has_biases: Any,  # noqa: ANN401 - packed sequences have another signature
        num_layers: int,
        dropout: float,
        training: bool,  # noqa: FBT001 - torch's own signature
        bidirectional: bool,  # noqa: FBT001 - as above
        batch_first: bool | None = None,  # noqa: FBT001 - as above
    ) -> tuple[Tensor, ...]:
        if not isinstance(has_biases, bool) or batch_first is None or inputs.dim() != 3:
            msg = "a recurrent layer on packed sequences or on one example"
            raise UnsupportedUseError(msg)
        first = [states] if isinstance(states, Tensor) else list(states)
        n_directions = 2 if bidirectional else 1
        size = len(weights) // (num_layers * n_directions)
        if size != (4 if has_biases else 2):
            msg = "a recurrent layer with a projection"
            raise UnsupportedUseError(msg)
        values = inputs if batch_first else inputs.transpose(0, 1)
        last: list[State] = []
        for layer in range(num_layers):
            ways = []
            for way in range(n_directions):
                index = layer * n_directions + way
                own = [*weights[index * size : (index + 1) * size], None, None][:4]
                start = tuple(state[index] for state in first)
                outputs, end = _scanned(recorder, step, values, start, own, backward=way == 1)
                ways.append(outputs)
                last.append(end)
            values = torch.cat(ways, -1) if bidirectional else ways[0]
            if training and dropout and layer < num_layers - 1:
                values = functional.dropout(values, dropout)
        ends = [torch.stack([end[i] for end in last]) for i in range(len(first))]
        return (values if batch_first else values.transpose(0, 1), *ends)

    return run


def _scanned(
    recorder: Records,
    step: Step,
    values: Tensor,
    state: State,
    weights: Sequence[Any],
    *,
    backward: bool,
) -> tuple[Tensor, State]:
    """One layer in one direction: all outputs, and the last state."""
    w_ih, w_hh, b_ih, b_hh = weights
    projected = recorded_linear(recorder, values, w_ih, b_ih).unbind(1)
    outputs = []
    for part in reversed(projected) if backward else projected:
        state = step(part, recorded_linear(recorder, state[0], w_hh, b_hh), state)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backward else outputs, 1), state


def _lstm_step(inputs: Tensor, hidden: Tensor, state: State) -> State:
    entry, forget, cell, output = (inputs + hidden).chunk(4, -1)
    kept = torch.sigmoid(forget) * state[1] + torch.sigmoid(entry) * torch.tanh(cell)
    return torch.sigmoid(output) * torch.tanh(kept), kept


def _gru_step(inputs: Tensor, hidden: Tensor, state: State) -> State:
    reset_i, update_i, new_i = inputs.chunk(3, -1)
    reset_h, update_h, new_h = hidden.chunk(3, -1)
    new = torch.tanh(new_i + torch.sigmoid(reset_i + reset_h) * new_h)
    return (new + torch.sigmoid(update_i + update_h) * (state[0] - new),)


def _tanh_step(inputs: Tensor, hidden: Tensor, state: State) -> State:  # noqa: ARG001 - see Step
    return (torch.tanh(inputs + hidden),)


def _relu_step(inputs: Tensor, hidden: Tensor, state: State) -> State:  # noqa: ARG001 - see Step
    return (torch.relu(inputs + hidden),)


COMPOSITES: Final[dict[Any, Callable[..., Any]]] = {
    functional.multi_head_attention_forward: attention,
    torch.lstm_cell: lstm_cell,
    torch.gru_cell: one_state_cell(_gru_step),
    torch.rnn_tanh_cell: one_state_cell(_tanh_step),
    torch.rnn_relu_cell: one_state_cell(_relu_step),
    torch.lstm: recurrent(_lstm_step),
    torch.gru: recurrent(_gru_step),
    torch.rnn_tanh: recurrent(_tanh_step),
    torch.rnn_relu: recurrent(_relu_step),
}
"""Whole layers that are done in linear maps instead."""
