# SPDX-License-Identifier: Apache-2.0
"""Random models for tests of gradients: images, sequences and words, in many combinations."""

import itertools
import math

import torch
from hypothesis import strategies as st
from tests.torch.one_by_one import Case, squared_loss
from torch import nn

from pufferslice.sgd import LayerClipping

SEEDS = st.integers(0, 2**31 - 1)
ATTENTION_MASKS = ("none", "boolean", "added", "per_head")


class Residual(nn.Module):
    """`x + tanh(inner(x))`: keeps shapes and sizes, however many are stacked."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, examples):
        return examples + torch.tanh(self.inner(examples))


class OnChannels(nn.Module):
    """A layer of (n, channels, length) on (n, length, channels)."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, examples):
        return self.inner(examples.mT).mT


class Attention(nn.Module):
    """Self-attention with every kind of mask, examples first or second."""

    def __init__(self, width, heads, *, mask, padding, need_weights, **given):
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, **given)
        self.mask, self.padding, self.need_weights = mask, padding, need_weights

    def forward(self, examples):
        n, length = examples.shape[:2]
        first = self.inner.batch_first
        given = examples if first else examples.transpose(0, 1)
        outputs, shares = self.inner(
            given,
            given,
            given,
            key_padding_mask=self._padding(examples) if self.padding else None,
            attn_mask=self._mask(n, length, examples.dtype),
            need_weights=self.need_weights,
        )
        outputs = outputs if first else outputs.transpose(0, 1)
        return outputs if shares is None else outputs + shares.mean((1, 2))[:, None, None]

    def _mask(self, n, length, dtype):
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        if self.mask == "boolean":
            return future
        if self.mask == "added":
            return torch.linspace(-1, 1, length * length, dtype=dtype).reshape(length, length)
        if self.mask == "per_head":
            return future.expand(n * self.inner.num_heads, length, length)
        return None

    def _padding(self, examples):
        """True for some keys of each example but never for the first."""
        padding = examples.detach()[:, :, 0] > 0.5
        padding[:, 0] = False
        if self.mask != "added":
            return padding
        return torch.zeros_like(padding, dtype=examples.dtype).masked_fill_(padding, -math.inf)


class Recurrent(nn.Module):
    """The outputs of a recurrent layer, examples first or second."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, examples):
        if self.inner.batch_first:
            return self.inner(examples)[0]
        return self.inner(examples.transpose(0, 1))[0].transpose(0, 1)


class Cell(nn.Module):
    """A recurrent cell over the tokens."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, examples):
        state, hidden = None, []
        for token in examples.unbind(1):
            state = self.cell(token, state)
            hidden.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(hidden, 1)


class Shifted(nn.Module):
    """A parameter added to each example, or multiplied with it, from either side."""

    def __init__(self, shape, *, times, parameter_first):
        super().__init__()
        self.parameter = nn.Parameter(torch.randn(shape))
        self.times, self.parameter_first = times, parameter_first

    def forward(self, examples):
        if self.times:
            return self.parameter * examples if self.parameter_first else examples * self.parameter
        return self.parameter + examples if self.parameter_first else examples + self.parameter


class Sequences(nn.Module):
    """Tokens to a vector: an entry, layers (some used again), a mean, a way out."""

    def __init__(self, entry, layers, order, out):
        super().__init__()
        self.entry, self.layers, self.order = entry, nn.ModuleList(layers), order
        self.out = out

    def forward(self, examples):
        values = self.entry(examples)
        for index in self.order:
            values = self.layers[index](values)
        return self.out(values.mean(1))


@st.composite
def attentions(draw, width=4):
    return Attention(
        width,
        draw(st.sampled_from([1, 2])),
        mask=draw(st.sampled_from(ATTENTION_MASKS)),
        padding=draw(st.booleans()),
        need_weights=draw(st.booleans()),
        bias=draw(st.booleans()),
        batch_first=draw(st.booleans()),
    )


@st.composite
def encoder_layers(draw, width=4):
    return nn.TransformerEncoderLayer(
        width,
        draw(st.sampled_from([1, 2])),
        dim_feedforward=5,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=draw(st.booleans()),
        bias=draw(st.booleans()),
    )


@st.composite
def recurrents(draw, width=4):
    kind = draw(st.sampled_from([nn.LSTM, nn.GRU, nn.RNN]))
    both_ways = draw(st.booleans())
    extra = {"nonlinearity": draw(st.sampled_from(["tanh", "relu"]))} if kind is nn.RNN else {}
    inner = kind(
        width,
        width // 2 if both_ways else width,
        num_layers=draw(st.integers(1, 2)),
        bidirectional=both_ways,
        bias=draw(st.booleans()),
        batch_first=draw(st.booleans()),
        **extra,
    )
    return Recurrent(inner)


@st.composite
def cells(draw, width=4):
    kind = draw(st.sampled_from([nn.LSTMCell, nn.GRUCell, nn.RNNCell]))
    return Cell(kind(width, width, bias=draw(st.booleans())))


@st.composite
def shifts(draw, length, width=4):
    shapes = [(width,), (length, width), (1, length, width), (length, 1), (1,), (), (1, 1, width)]
    return Shifted(
        draw(st.sampled_from(shapes)),
        times=draw(st.booleans()),
        parameter_first=draw(st.booleans()),
    )


@st.composite
def token_norms(draw, length, width=4):
    kinds = [
        lambda: nn.LayerNorm(width),
        lambda: nn.LayerNorm(width, bias=False),
        lambda: nn.LayerNorm((length, width)),
        lambda: nn.RMSNorm(width),
        lambda: nn.RMSNorm((length, width)),
        lambda: OnChannels(nn.GroupNorm(2, width)),
        lambda: OnChannels(nn.InstanceNorm1d(width, affine=True)),
    ]
    return shaken(draw(st.sampled_from(kinds))())


@st.composite
def token_maps(draw, width=4):
    bias = draw(st.booleans())
    kinds = [
        lambda: nn.Linear(width, width, bias=bias),
        lambda: nn.Sequential(nn.Linear(width, 7, bias=bias), nn.Tanh(), nn.Linear(7, width)),
        lambda: OnChannels(nn.Conv1d(width, width, 3, padding="same", bias=bias)),
    ]
    return draw(st.sampled_from(kinds))()


def token_layers(length, width=4):
    return st.one_of(
        token_maps(width),
        token_norms(length, width),
        attentions(width),
        encoder_layers(width),
        recurrents(width),
        cells(width),
        shifts(length, width),
    )


@st.composite
def sequence_cases(draw, layers=None, max_block=6):
    """Continuous or spoken tokens through random layers, some of them used twice."""
    length, width, n_words = draw(st.integers(4, 6)), 4, 5
    block, seed = draw(st.integers(2, max_block)), draw(SEEDS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        n_layers = draw(st.integers(1, 3))
        layers = token_layers(length, width) if layers is None else layers
        made = [Residual(draw(layers)) for _ in range(n_layers)]
        order = [*range(n_layers), *draw(st.lists(st.integers(0, n_layers - 1), max_size=1))]
        if draw(st.booleans()):
            padding = draw(st.sampled_from([None, 0, n_words - 1]))
            entry = nn.Embedding(n_words, width, padding_idx=padding)
            inputs = torch.randint(0, n_words, (block, length))
        else:
            entry = nn.Linear(3, width)
            inputs = torch.randn(block, length, 3)
        out = nn.Linear(width, n_words, bias=draw(st.booleans()))
        if isinstance(entry, nn.Embedding) and draw(st.booleans()):
            out.weight = entry.weight
        model = Sequences(entry, made, order, out)
        return finished(draw, model, inputs, torch.randn(block, n_words))


@st.composite
def linear_cases(draw, max_block=6):
    """Linear maps of inputs with none, one or two dimensions of tokens."""
    block, seed = draw(st.integers(2, max_block)), draw(SEEDS)
    tokens = tuple(draw(st.lists(st.integers(1, 4), max_size=2)))
    widths = draw(st.lists(st.integers(1, 9), min_size=2, max_size=4))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after, bias=draw(st.booleans())), nn.Tanh()]
        model = nn.Sequential(*layers[:-1])
        inputs = torch.randn(block, *tokens, widths[0])
        return finished(draw, model, inputs, torch.randn(block, *tokens, widths[-1]))


@st.composite
def convolutions(draw, n_dims, n_in, n_out):
    """A convolution of any geometry that leaves at least one position of a side of 7."""
    kernel = tuple(draw(st.lists(st.integers(1, 3), min_size=n_dims, max_size=n_dims)))
    dilation = tuple(draw(st.lists(st.integers(1, 2), min_size=n_dims, max_size=n_dims)))
    same = draw(st.sampled_from([None, "same", "valid"]))
    stride = (1,) * n_dims
    if same != "same":
        stride = tuple(draw(st.lists(st.integers(1, 3), min_size=n_dims, max_size=n_dims)))
    paddings = st.lists(st.integers(0, 2), min_size=n_dims, max_size=n_dims)
    padding = same or tuple(draw(paddings))
    dividers = [g for g in range(1, n_in + 1) if n_in % g == 0 and n_out % g == 0]
    modes = ["zeros", "circular", "reflect"] if padding != "valid" else ["zeros"]
    return (nn.Conv1d, nn.Conv2d, nn.Conv3d)[n_dims - 1](
        n_in,
        n_out,
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=draw(st.sampled_from(dividers)),
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(modes)),
    )


@st.composite
def convolution_cases(draw, max_block=6):
    """A convolution, a norm, perhaps another convolution, and a linear map."""
    n_dims, block, seed = draw(st.integers(1, 3)), draw(st.integers(2, max_block)), draw(SEEDS)
    n_in, n_mid = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([2, 4]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [draw(convolutions(n_dims, n_in, n_mid)), draw(image_norms(n_dims, n_mid))]
        layers.append(draw(st.sampled_from([nn.ELU, nn.Tanh, lambda: nn.ReLU(inplace=True)]))())
        if draw(st.booleans()):
            layers.append((nn.Conv1d, nn.Conv2d, nn.Conv3d)[n_dims - 1](n_mid, n_mid, 1))
        side = 7 if n_dims < 3 else 5
        inputs = torch.randn(block, n_in, *(side,) * n_dims)
        layers.append(nn.Flatten())
        with torch.no_grad():
            width = nn.Sequential(*layers)(inputs).shape[1]
        layers.append(nn.Linear(width, 2))
        return finished(draw, nn.Sequential(*layers), inputs, torch.randn(block, 2))


@st.composite
def image_norms(draw, n_dims, channels):
    batch_norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[n_dims - 1](channels).eval()
    kinds = [
        nn.GroupNorm(draw(st.sampled_from([1, 2])), channels),
        nn.GroupNorm(1, channels, affine=False),
        batch_norm,
        nn.Identity(),
    ]
    return shaken(draw(st.sampled_from(kinds)))


def shaken(module):
    """With random numbers in place of the ones and zeros that norms begin with."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return module


def finished(draw, model, inputs, targets):
    """Some parameters frozen, but never the last, and some models in float64."""
    parameters = list(model.parameters())
    frozen = draw(
        st.sets(st.integers(0, max(0, len(parameters) - 2)), max_size=len(parameters) - 1)
    )
    for index in frozen if draw(st.booleans()) else ():
        parameters[index].requires_grad_(False)
    if draw(st.integers(0, 3)) == 0:
        model, targets = model.double(), targets.double()
        inputs = inputs.double() if inputs.is_floating_point() else inputs
    return Case(model, squared_loss, (inputs, targets))


@st.composite
def clippings(draw, model):
    """Flat, or layers in a random order: each parameter by itself, or modules of the top."""
    trained = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    kind = draw(st.sampled_from(["flat", "parameters", "modules"]))
    if kind == "flat":
        return None
    names = trained if kind == "parameters" else {name.split(".")[0] for name in trained}
    names = tuple(draw(st.permutations(sorted(names))))
    sizes = [sum(n for key, n in trained.items() if f"{key}.".startswith(f"{x}.")) for x in names]
    return LayerClipping(
        names=names, norms=(1.0,) * len(names), sizes=tuple(sizes), allocation="equal"
    )


def factors():
    """Radii over the median norm: nearly all clipped, half of them, none."""
    return st.sampled_from([0.01, 0.3, 1.0, 3.0, 1e3]) | st.floats(math.exp(-3), math.exp(3))
