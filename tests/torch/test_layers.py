# SPDX-License-Identifier: Apache-2.0
"""Known layers, in each of their settings, against plain autograd on single examples."""

import itertools

import numpy as np
import pytest
import torch
from tests.torch.engine import Engine, clipped_rows
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from pufferslice.learning import FlatClipping
from pufferslice.torch.layout import layout_of
from pufferslice.torch.per_example import PerExample

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:training is slow"),
    pytest.mark.filterwarnings("ignore:the model or loss_fn gives a batch other losses"),
]

SIZES = (0.01, 1.0, 3.0)
"""What the losses of the examples are multiplied by: the first gradient is not clipped."""
N_TIMES, WIDTH, HIDDEN = 3, 4, 6
TOKENS = (N_TIMES, WIDTH)


class Around(nn.Module):
    """A layer, used as `call` says; gradients of its inputs go to `gain`, which is not tapped."""

    def __init__(self, layer, shape, call=None):
        super().__init__()
        self.layer, self.call = layer, call
        self.gain = nn.Parameter(1 + torch.rand(shape))

    def forward(self, x):
        h = x * self.gain if x.is_floating_point() else x
        h = self.layer(h) if self.call is None else self.call(self.layer, h)
        return h if x.is_floating_point() else h * self.gain[..., None]


def loss_fn(outputs, sizes):
    return outputs.flatten(1).sin().sum(1) * sizes


def examples_of(shape, n_ids=None):
    shape = (len(SIZES), *shape)
    inputs = torch.randn(shape) if n_ids is None else torch.randint(n_ids, shape)
    return inputs, torch.tensor(SIZES)


def checked(model, examples):
    """An engine whose sum is right."""
    engine = Engine(model, loss_fn, examples)
    expected = clipped_rows(model, loss_fn, engine.layout, examples)
    np.testing.assert_allclose(engine.sum(examples), expected, atol=5e-6)
    assert np.linalg.norm(expected) > 0.01
    return engine


def is_tapped(engine, layer):
    return any(one is layer for one in engine.method.tapped)


def case(make, shape, call=None, *, tapped=True, n_ids=None):
    return make, shape, call, tapped, n_ids


def twice(layer, h):
    return layer(layer(h).tanh())


class Several(nn.Module):
    """Settings that change in the forward pass."""

    def __init__(self, layer, **settings):
        super().__init__()
        self.inner, self.settings = layer, settings

    def forward(self, x):
        for name, value in self.settings.items():
            setattr(self.inner, name, value)
        return self.inner(x)


IMAGE = (4, 5, 6)
CASES = {
    "linear": case(lambda: nn.Linear(4, 3), (4,)),
    "linear, no bias": case(lambda: nn.Linear(4, 3, bias=False), (4,)),
    "linear, few tokens": case(lambda: nn.Linear(20, 20), (2, 20)),
    "linear, many tokens": case(lambda: nn.Linear(4, 3), (5, 6, 4)),
    "linear, called twice": case(lambda: nn.Linear(4, 4), (4,), twice),
    "linear, tokens, called twice": case(lambda: nn.Linear(4, 4), (5, 4), twice),
    "linear, one vector": case(lambda: nn.Linear(4, 3), (4,), lambda f, h: f(h[0])[None]),
    "linear, in no_grad": case(
        lambda: nn.Linear(4, 4), (4,), lambda f, h: f(h) + torch.no_grad()(f)(h) * h
    ),
    "conv1d": case(lambda: nn.Conv1d(4, 6, 3), (4, 9)),
    "conv1d, geometry": case(
        lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), (4, 9)
    ),
    "conv2d": case(lambda: nn.Conv2d(4, 6, 3, bias=False), IMAGE),
    "conv2d, stride": case(lambda: nn.Conv2d(4, 6, 3, stride=(2, 3)), IMAGE),
    "conv2d, padding": case(lambda: nn.Conv2d(4, 6, 3, padding=(1, 2)), IMAGE),
    "conv2d, dilation": case(lambda: nn.Conv2d(4, 6, 2, dilation=(2, 3)), IMAGE),
    "conv2d, groups": case(lambda: nn.Conv2d(4, 8, 3, groups=4), IMAGE),
    "conv2d, all": case(
        lambda: nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, dilation=2, groups=2), IMAGE
    ),
    "conv2d, reflect": case(
        lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), IMAGE, tapped=False
    ),
    "conv2d, circular": case(
        lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), IMAGE, tapped=False
    ),
    "conv2d, same": case(lambda: nn.Conv2d(4, 6, 3, padding="same"), IMAGE, tapped=False),
    "conv2d, called twice": case(lambda: nn.Conv2d(4, 4, 3, padding=1), IMAGE, twice, tapped=False),
    "conv2d, not a batch": case(
        lambda: nn.Conv2d(4, 6, 3), IMAGE, lambda f, h: f(h[0])[None], tapped=False
    ),
    "conv3d": case(lambda: nn.Conv3d(2, 4, 2), (2, 3, 4, 3)),
    "conv3d, geometry": case(
        lambda: nn.Conv3d(2, 4, 2, stride=2, padding=1, dilation=2, groups=2), (2, 3, 4, 3)
    ),
    "embedding": case(lambda: nn.Embedding(5, 3), (7,), n_ids=5),
    "embedding, padding": case(lambda: nn.Embedding(4, 3, padding_idx=1), (2, 7), n_ids=4),
    "embedding, last is padding": case(lambda: nn.Embedding(4, 3, padding_idx=-1), (7,), n_ids=4),
    "embedding, padding set": case(
        lambda: changed(nn.Embedding(4, 3), padding_idx=-1), (7,), n_ids=4
    ),
    "embedding, sparse": case(lambda: nn.Embedding(5, 3, sparse=True), (7,), tapped=False, n_ids=5),
    "embedding, counts": case(
        lambda: nn.Embedding(5, 3, scale_grad_by_freq=True), (7,), tapped=False, n_ids=5
    ),
    "layer norm": case(lambda: nn.LayerNorm(4), (4,)),
    "layer norm, tokens": case(lambda: nn.LayerNorm(4), (5, 4)),
    "layer norm, two dimensions": case(lambda: nn.LayerNorm((5, 4)), (2, 5, 4)),
    "layer norm, no bias": case(lambda: nn.LayerNorm(4, bias=False, eps=0.1), (5, 4)),
    "layer norm, no weight": case(
        lambda: nn.LayerNorm(4, elementwise_affine=False), (5, 4), tapped=False
    ),
    "group norm, 2": case(lambda: nn.GroupNorm(2, 4, eps=0.1), (4,)),
    "group norm, 3": case(lambda: nn.GroupNorm(2, 4), (4, 5)),
    "group norm, 4": case(lambda: nn.GroupNorm(4, 4), IMAGE),
    "changed in the pass": case(
        lambda: Several(nn.Conv2d(4, 6, 3), stride=(2, 2), padding=(1, 1)), IMAGE, tapped=False
    ),
    "eps changed in the pass": case(lambda: Several(nn.LayerNorm(4), eps=1.0), (4,), tapped=False),
}


def changed(layer, **settings):
    for name, value in settings.items():
        setattr(layer, name, value)
    return layer


@pytest.mark.soundness
@pytest.mark.parametrize("name", CASES)
def test_layers(name):
    torch.manual_seed(0)
    make, shape, call, tapped, n_ids = CASES[name]
    layer = make()
    for parameter in layer.parameters():  # no weight of a norm is 1, no bias 0
        parameter.data += 0.3 * torch.randn_like(parameter)
    engine = checked(Around(layer, shape, call), examples_of(shape, n_ids))
    assert is_tapped(engine, getattr(layer, "inner", layer)) == tapped


@pytest.mark.soundness
def test_a_table_that_is_rescaled_in_the_forward_pass():
    """`max_norm` writes to the weight, so nothing is tapped and examples run one by one."""
    torch.manual_seed(0)
    layer = nn.Embedding(5, 3, max_norm=0.5)
    before = layer.weight.detach().clone()
    engine = checked(Around(layer, (7,)), examples_of((7,), 5))
    assert not engine.method.tapped
    torch.testing.assert_close(layer.weight.detach(), before, rtol=0, atol=0)


@pytest.mark.soundness
@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize(
    "name", ["linear", "conv2d, stride", "layer norm, tokens", "group norm, 3"]
)
def test_half_of_a_layer_may_be_frozen(name, frozen):
    torch.manual_seed(0)
    make, shape, *_ = CASES[name]
    layer = make()
    getattr(layer, frozen).requires_grad_(requires_grad=False)
    assert is_tapped(checked(Around(layer, shape), examples_of(shape)), layer)


@pytest.mark.soundness
def test_tied_weights_are_not_tapped_and_one_layer_in_two_places_is():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    other = nn.Linear(4, 4)
    other.weight = layer.weight
    for both, tapped in ((other, False), (layer, True)):
        model = nn.Sequential(layer, nn.Tanh(), both)
        assert is_tapped(checked(model, examples_of((4,))), layer) == tapped


class Recurrent(nn.Module):
    """A recurrent layer; the loss depends on what `part` says."""

    def __init__(self, layer, *, first=False, single=False, part="all"):
        super().__init__()
        self.layer, self.single, self.part = layer, single, part
        self.gain = nn.Parameter(1 + torch.rand(TOKENS))
        n = layer.num_layers * (1 + layer.bidirectional)
        width = (layer.proj_size or layer.hidden_size, layer.hidden_size)
        sizes = width if layer.mode == "LSTM" else width[:1]
        self.first = nn.ParameterList([torch.randn(n, 1, one) for one in sizes] if first else [])

    def forward(self, x):
        h = x * self.gain
        first = tuple(one.expand(-1, len(x), -1).contiguous() for one in self.first)
        if self.single:
            h, first = h[0], tuple(one[:, 0] for one in first)
        elif not self.layer.batch_first:
            h = h.transpose(0, 1)
        is_lstm = self.layer.mode == "LSTM"
        outputs, last = self.layer(h, (first if is_lstm else first[0]) if first else None)
        last = last if is_lstm else (last,)
        if self.single:
            outputs, last = outputs[None], tuple(one.unsqueeze(1) for one in last)
        elif not self.layer.batch_first:
            outputs = outputs.transpose(0, 1)
        found = {"outputs": outputs, "h": last[0].transpose(0, 1), "c": last[-1].transpose(0, 1)}
        wanted = found if self.part == "all" else [self.part]
        return torch.cat([found[one].flatten(1) for one in wanted], 1)


RECURRENT = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN tanh": nn.RNN,
    "RNN relu": lambda *given, **named: nn.RNN(*given, nonlinearity="relu", **named),
}
WAYS = [
    (batch_first, bias, {"first": first, "single": batch_first ^ bias ^ first, "part": part})
    for (batch_first, bias, first), part in zip(
        itertools.product([False, True], repeat=3), ["outputs", "h", "c", "all"] * 2, strict=True
    )
]
"""Any three settings of four occur in all combinations."""


@pytest.mark.soundness
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers(kind, n_layers, bidirectional, way):
    torch.manual_seed(3)
    batch_first, bias, beside = way
    layer = RECURRENT[kind](
        WIDTH,
        HIDDEN,
        num_layers=n_layers,
        bidirectional=bidirectional,
        batch_first=batch_first,
        bias=bias,
    )
    assert is_tapped(checked(Recurrent(layer, **beside), examples_of(TOKENS)), layer)


@pytest.mark.soundness
@pytest.mark.parametrize("trained", [(), ("weight_hh_l0",), ("bias_ih_l0", "bias_hh_l0")])
def test_recurrent_layers_that_are_frozen_are_run_at_once(trained):
    torch.manual_seed(0)
    layer = nn.LSTM(WIDTH, HIDDEN)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name in trained)
    engine = checked(Recurrent(layer), examples_of(TOKENS))
    assert is_tapped(engine, layer)
    assert not engine.method.reason


@pytest.mark.soundness
def test_recurrent_layers_with_projections_or_packed_sequences_are_not_tapped():
    def call(layer, h):
        lengths = torch.full((len(h),), N_TIMES - 1)
        packed, _ = layer(pack_padded_sequence(h, lengths, batch_first=True))
        return packed.data.reshape(1, -1)

    torch.manual_seed(0)
    layer = nn.LSTM(WIDTH, HIDDEN, proj_size=2)
    assert not is_tapped(checked(Recurrent(layer, first=True), examples_of(TOKENS)), layer)
    for kind in (nn.LSTM, nn.GRU):
        layer = kind(WIDTH, HIDDEN, batch_first=True)
        assert not checked(Around(layer, TOKENS, call), examples_of(TOKENS)).method.at_once


HEADS = 2
MASK = torch.ones(N_TIMES, N_TIMES, dtype=torch.bool).triu(1)
FLOAT_MASK = torch.linspace(-1, 1, N_TIMES * N_TIMES).reshape(N_TIMES, N_TIMES)
MASKS = torch.stack([MASK, torch.zeros_like(MASK)])
PADDING = torch.tensor([[False, False, True]])


def attend(**named):
    """Self-attention with these arguments; the loss depends on the weights too, where given."""

    def call(layer, h):
        own = {name: batched(name, one, len(h)) for name, one in named.items()}
        h = h if layer.batch_first else h.transpose(0, 1)
        outputs, weights = layer(h, h, h, **own)
        outputs = outputs if layer.batch_first else outputs.transpose(0, 1)
        parts = [outputs] if weights is None else [outputs, weights]
        return torch.cat([one.flatten(1) for one in parts], 1)

    return call


def batched(name, value, n):
    if name == "key_padding_mask":
        return value.expand(n, -1)
    if name == "attn_mask" and value.dim() == 3:
        return value.repeat(n, 1, 1)
    return value


def attend_single(layer, h, **named):
    (own,) = h
    outputs, weights = layer(own, own, own, **named)
    return torch.cat([outputs.flatten(), weights.flatten()])[None]


def attention(call=None, *, tapped=True, **settings):
    return call or attend(), tapped, {"batch_first": True, **settings}


ATTENTION = {
    "batch first": attention(),
    "time first": attention(batch_first=False),
    "not a batch": attention(attend_single),
    "not a batch, masks": attention(
        lambda f, h: attend_single(f, h, attn_mask=MASKS, key_padding_mask=PADDING[0])
    ),
    "bool mask": attention(attend(attn_mask=MASK)),
    "float mask": attention(attend(attn_mask=FLOAT_MASK)),
    "bool mask for each head": attention(attend(attn_mask=MASKS)),
    "float mask for each head": attention(
        attend(attn_mask=torch.stack([FLOAT_MASK, FLOAT_MASK.T])), batch_first=False
    ),
    "padding": attention(attend(key_padding_mask=PADDING)),
    "float padding": attention(attend(key_padding_mask=-PADDING.float())),
    "both masks": attention(attend(attn_mask=MASK, key_padding_mask=PADDING, need_weights=False)),
    "no weights": attention(attend(need_weights=False)),
    "causal": attention(attend(attn_mask=MASK, is_causal=True, need_weights=False)),
    "weights of each head": attention(attend(average_attn_weights=False)),
    "no bias": attention(bias=False),
    "nothing to see": attention(
        attend(key_padding_mask=torch.ones_like(PADDING), need_weights=False)
    ),
    "cross": attention(lambda f, h: f(h, h.flip(1), h.flip(1))[0], tapped=False),
    "bias for keys": attention(add_bias_kv=True, tapped=False),
    "a zero": attention(add_zero_attn=True, tapped=False),
    "sizes given": attention(kdim=WIDTH, vdim=WIDTH),
    "other sizes": attention(
        lambda f, h: f(h, h[..., :2], h[..., :3])[0], kdim=2, vdim=3, tapped=False
    ),
}


@pytest.mark.soundness
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name):
    torch.manual_seed(0)
    call, tapped, settings = ATTENTION[name]
    layer = nn.MultiheadAttention(WIDTH, HEADS, **settings)
    engine = checked(Around(layer, TOKENS, call), examples_of(TOKENS))
    assert is_tapped(engine, layer) == tapped
    assert is_tapped(engine, layer.out_proj) == tapped


class Doubled(nn.Linear):
    """Attention uses the weight of its last layer, not the layer."""

    def forward(self, x):
        return 2 * super().forward(x)


def hooked():
    layer = nn.Linear(WIDTH, WIDTH)
    layer.register_forward_hook(lambda *given: 2 * given[-1])
    return layer


@pytest.mark.soundness
@pytest.mark.parametrize("last", [lambda: Doubled(WIDTH, WIDTH), hooked])
def test_attention_does_not_call_its_last_layer(last):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    layer.out_proj = last()
    checked(Around(layer, TOKENS, attend()), examples_of(TOKENS))


@pytest.mark.soundness
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_transformer_layers(norm_first, training):
    torch.manual_seed(0)
    own = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first}
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 5, **own).train(training)
    engine = checked(Around(layer, TOKENS).train(training), examples_of(TOKENS))
    assert is_tapped(engine, layer.self_attn) == training
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 5, **own).train(training)
    both = Around(layer, TOKENS, lambda f, h: f(h, h.cos(), tgt_mask=MASK))
    engine = checked(both, examples_of(TOKENS))
    assert is_tapped(engine, layer.self_attn)
    assert is_tapped(engine, layer.linear1)
    assert not is_tapped(engine, layer.multihead_attn)


N_MASKS, RATE = 2000, 0.3
DROPOUTS = {
    "each number": (nn.Dropout, (2, 3), (2, 3)),
    "1d": (nn.Dropout1d, (6, 2), (6, 1)),
    "2d": (nn.Dropout2d, (6, 2, 2), (6, 1, 1)),
    "2d, three dimensions": (nn.Dropout2d, (6, 2), (6, 1)),
    "3d": (nn.Dropout3d, (6, 2, 1, 2), (6, 1, 1, 1)),
    "1d, no batch": (lambda p: NoBatch(nn.Dropout1d(p)), (6, 2), (6, 1)),
    "3d, no batch": (lambda p: NoBatch(nn.Dropout3d(p)), (6, 2, 1, 2), (6, 1, 1, 1)),
}


class NoBatch(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x[0])[None]


def rows_of(model, examples, seed=0):
    """Gradients of each parameter for each example, for a loss that is the sum of the outputs."""
    layout = layout_of(model, FlatClipping(norm=1.0))
    run = PerExample(model, lambda outputs, _: outputs.sum(), layout)
    method = run.method_for(tuple(one[:1] for one in examples))
    assert method.at_once
    assert not method.draws
    found = run.contributions(examples, method, seed)[1]
    return torch.cat([found[place].dense() for place in sorted(found)], 1)


def masks_of(layer, shape, *, seed=0, training=True, n=N_MASKS):
    """The gradient of `gain` is the mask itself."""
    model = Around(layer, shape).train(training)
    return rows_of(model, (torch.ones(n, *shape), torch.zeros(n)), seed).reshape(n, *shape)


@pytest.mark.statistical
@pytest.mark.filterwarnings("ignore:dropout2d")
@pytest.mark.parametrize("name", DROPOUTS)
def test_masks_have_the_rate_and_scale_of_the_layer(name, seed):
    """Each of 6 rates, from 2000 draws, is within 5.2 of its standard errors (0.01).

    That fails by chance less than once in a million times, and finds a rate that is off by 0.08, or
    a mask that examples share, in 99 of 100.
    """
    make, shape, masked = DROPOUTS[name]
    masks = masks_of(make(RATE), shape, seed=seed)
    kept = masks.reshape(N_MASKS, 6, -1)[..., :1]
    assert torch.equal(
        masks.reshape(N_MASKS, *shape), kept.reshape(N_MASKS, *masked).expand(-1, *shape)
    )
    scale = torch.tensor(1 / (1 - RATE))
    torch.testing.assert_close(kept[kept != 0], scale.expand(int((kept != 0).sum())))
    rates = (kept == 0).double().mean(0)
    # 0.12 if channels have masks of their own, 1 if they share them
    assert float((kept == kept[:, :1]).all(1).double().mean()) < 0.2
    assert float((rates - RATE).abs().max()) < 5.2 * (RATE * (1 - RATE) / N_MASKS) ** 0.5


@pytest.mark.filterwarnings("ignore:dropout2d")
@pytest.mark.parametrize("name", DROPOUTS)
def test_masks_depend_on_the_seed_the_rate_and_the_mode(name):
    make, shape, _ = DROPOUTS[name]
    first, again, other = (masks_of(make(RATE), shape, seed=seed, n=50) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert bool((masks_of(make(0.0), shape, n=3) == 1).all())
    assert bool((masks_of(make(1.0), shape, n=3) == 0).all())
    assert bool((masks_of(make(RATE), shape, training=False, n=3) == 1).all())


def relu_cells(p):
    """Outputs are linear in the mask: all is positive, so that relu does nothing."""
    layer = nn.RNN(WIDTH, HIDDEN, num_layers=2, nonlinearity="relu", dropout=p, batch_first=True)
    for parameter in layer.parameters():
        parameter.data.abs_()
    return Around(layer, TOKENS, lambda f, h: f(h)[0])


def attention_with(p):
    layer = nn.MultiheadAttention(WIDTH, HEADS, dropout=p, batch_first=True)
    return Around(layer, TOKENS, lambda f, h: f(h, h, h)[0])


@pytest.mark.statistical
@pytest.mark.parametrize("make", [relu_cells, attention_with])
def test_dropout_inside_layers_averages_to_none(make, seed):
    """Gradients are linear in the masks here, so their mean is the gradient in eval mode.

    Some 100 means are within 6 standard errors, which fails by chance less than once in a million
    times. A mask that is too large by a tenth moves some of them by more than 8.
    """
    torch.manual_seed(0)
    n = 20_000
    model = make(0.2)
    examples = torch.rand(1, *TOKENS).expand(n, -1, -1), torch.zeros(n)
    rows = rows_of(model, examples, seed).double()
    expected = rows_of(model.eval(), tuple(one[:1] for one in examples))[0].double()
    errors = rows.std(0) / n**0.5
    assert float((expected.abs() * 0.1 / errors).nan_to_num(posinf=0.0).max()) > 8
    assert bool(((rows.mean(0) - expected).abs() <= 6 * errors + 1e-5 * expected.abs().max()).all())


@pytest.mark.soundness
@pytest.mark.parametrize("make", [relu_cells, attention_with])
def test_dropout_inside_layers_depends_on_the_seed_and_may_drop_everything(make):
    torch.manual_seed(0)
    examples = examples_of(TOKENS)
    engine = Engine(make(0.5), loss_fn, examples)
    first, again, other = (engine.sum(examples, seed=seed) for seed in (3, 3, 4))
    assert is_tapped(engine, engine.sums._model.layer)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other, atol=1e-3)
    checked(make(1.0), examples)


FACTS = {
    "dtype": lambda w, h: h.to(w.dtype),
    "device": lambda w, h: h.to(w.device),
    "shape": lambda w, h: h / w.shape[0] ** 0.5,
    "is a tensor": lambda w, h: h * 2 if isinstance(w, torch.Tensor) else h,
    "needs a gradient": lambda w, h: h * 2 if w.requires_grad else h,
}
USES = {
    "linear": lambda w, h: functional.linear(h, w),
    "product": lambda w, h: h @ w.T,
    "penalty": lambda w, h: h + w.pow(2).sum(),
    "detached": lambda w, h: h + w.detach().sum(),
    "data": lambda w, h: h + w.data.sum(),
    "number": lambda w, h: h + w[0, 0].item(),
    "list": lambda w, h: h + w.tolist()[0][0],
    "array": lambda w, h: h + float(w.detach().numpy().sum()),
    "view": lambda w, h: h * w.view(-1)[0],
    "compared": lambda w, h: h * (w > 0).sum(),
    "stacked": lambda w, h: h + torch.stack([w, w]).sum(),
    "copied": lambda w, h: h + w.clone().mean(),
    "caught": lambda w, h: h + _caught(w),
}


def _caught(weight):
    try:
        return weight.sum()
    except RuntimeError:
        return 0.0


@pytest.mark.soundness
@pytest.mark.parametrize("name", [*FACTS, *USES])
def test_facts_of_a_weight_leave_its_tap_and_any_other_use_takes_it(name):
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, WIDTH)
    ask = (FACTS | USES)[name]
    model = Around(layer, (WIDTH,), lambda f, h: ask(f.weight, torch.tanh(f(h))))
    assert is_tapped(checked(model, examples_of((WIDTH,))), layer) == (name in FACTS)


class Halved(nn.Module):
    """A layer under autocast inside the model, whose outputs are in half precision."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, values):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.linear(values)


def test_a_layer_under_autocast_inside_the_model_is_not_tapped():
    torch.manual_seed(3)
    model, examples = Halved(), (torch.randn(6, 4), torch.randint(2, (6,)))
    loss_fn = nn.CrossEntropyLoss(reduction="none")
    engine = Engine(model, loss_fn, examples)
    assert engine.method.at_once
    assert not engine.method.tapped
    expected = clipped_rows(model, loss_fn, engine.layout, examples)
    assert np.allclose(engine.sum(examples), expected, rtol=0.02, atol=0.02)
