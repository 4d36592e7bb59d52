# SPDX-License-Identifier: Apache-2.0
"""Every recorded operation gives the gradients of autograd, and what is not known is left to it."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.torch.architectures import (
    SEEDS,
    Attention,
    Recurrent,
    Residual,
    Sequences,
    Shifted,
    attentions,
    cells,
    convolution_cases,
    encoder_layers,
    factors,
    linear_cases,
    recurrents,
    sequence_cases,
    shaken,
    shifts,
    token_norms,
)
from tests.torch.one_by_one import FLAT, Case, check_exact, prepared, squared_loss
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from pufferslice import ArgumentError
from pufferslice.torch.contributions import Scratch
from pufferslice.torch.layout import layout_of
from pufferslice.torch.operations import UnsupportedUseError
from pufferslice.torch.recording import Recorder

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # torch, of its own convolution; here the padding is done beforehand
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported:UserWarning"),
]

BLOCK, LENGTH, WIDTH, N_WORDS = 5, 6, 4, 7
CALM = settings(max_examples=20)


@pytest.fixture(autouse=True)
def _fixed_draws(seed):
    torch.manual_seed(seed)


def on(model, *inputs):
    """A case of random targets; the outputs are flattened and every one of them counts."""
    with torch.no_grad():
        outputs = model(*inputs)
    return Case(model, squared_loss, (*inputs, torch.randn(outputs.shape)))


def images(channels=3, side=6):
    return torch.randn(BLOCK, channels, side, side)


def sequences():
    return torch.randn(BLOCK, LENGTH, WIDTH)


def words():
    """Every word, the first and the last too, and repeated ones within an example."""
    ids = torch.randint(0, N_WORDS, (BLOCK, LENGTH))
    ids[:, 0], ids[:, 1], ids[1, 2:] = N_WORDS - 1, 0, 3
    return ids


def through(entry):
    """Words to a vector by a function of the ids."""
    return nn.Sequential(entry, nn.Tanh(), nn.Linear(WIDTH, 3))


class Of(nn.Module):
    """A model that is a function with parameters."""

    def __init__(self, function, **parameters):
        super().__init__()
        for name, shape in parameters.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))
        self.function = function

    def forward(self, *inputs):
        return self.function(self, *inputs)


@pytest.mark.parametrize(
    "model",
    [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Conv2d(3, 8, 3, stride=2, padding=(0, 2), bias=False),
        nn.Conv2d(3, 8, (1, 3), stride=(2, 1)),
        nn.Conv2d(3, 6, 3, groups=3),
        nn.Conv2d(3, 4, 3, dilation=2),
        nn.Conv2d(3, 4, 2, padding="same"),
        nn.Conv2d(3, 4, 3, padding="valid"),
        nn.Conv2d(3, 4, (2, 3), padding="same", dilation=(1, 2)),
        nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect"),
        nn.Conv2d(3, 4, 4, padding="same", padding_mode="replicate"),
        nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
        nn.Conv2d(3, 4, 6),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3)),
        nn.Sequential(nn.Conv2d(3, 4, 3), shaken(nn.GroupNorm(2, 4)), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Conv2d(3, 4, 3), shaken(nn.InstanceNorm2d(4, affine=True))),
        nn.Sequential(nn.Conv2d(3, 4, 3), shaken(nn.BatchNorm2d(4)).eval()),
        nn.Sequential(nn.Conv2d(3, 4, 3), shaken(nn.LayerNorm((4, 4, 4)))),
        nn.Sequential(nn.Conv2d(3, 4, 3), shaken(nn.LayerNorm(4))),
        nn.Sequential(nn.Flatten(), nn.Linear(108, 3)),
        nn.Linear(6, 2),
    ],
    ids=lambda model: str(model).replace("\n", "")[:60],
)
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_layers_of_images_are_recorded(model, memory):
    case = on(model, images().to(memory_format=memory))
    assert check_exact(case, factor=0.7, n_examples=BLOCK - 1) == "recorded"


@pytest.mark.parametrize("side", [4, 12, 24])
@pytest.mark.parametrize("n_out", [2, 16])
def test_both_ways_to_the_gradient_of_a_convolution(side, n_out):
    """Patches, or examples as groups when there are many positions for few channels."""
    model = nn.Conv2d(8, n_out, 3, padding=1)
    assert check_exact(on(model, images(8, side))) == "recorded"


def test_convolutions_of_one_padded_size_do_not_see_each_others_borders():
    """6 and a border of 1 on each side are as large as 8 without a border."""

    def run(model, examples):
        hidden = functional.pad(model.bordered(examples), (1, 1, 1, 1), value=2.0)
        return model.bordered(model.plain(hidden)) + model.plain(hidden)

    model = Of(run)
    model.bordered, model.plain = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3)
    assert check_exact(on(model, images())) == "recorded"


@CALM
@given(convolution_cases(), factors())
def test_any_geometry_of_a_convolution(case, factor):
    assert check_exact(case, factor=factor) == "recorded"


@CALM
@given(linear_cases(), factors())
def test_linear_maps_of_any_shape(case, factor):
    assert check_exact(case, factor=factor) == "recorded"


@pytest.mark.parametrize("tokens", [(), (1,), (3,), (40,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_maps_of_every_number_of_tokens(tokens, bias):
    model = nn.Sequential(nn.Linear(16, 24, bias=bias), nn.Tanh(), nn.Linear(24, 16, bias=bias))
    assert check_exact(on(model, torch.randn(BLOCK, *tokens, 16))) == "recorded"


@pytest.mark.parametrize(
    "entry",
    [
        nn.Embedding(N_WORDS, WIDTH),
        nn.Embedding(N_WORDS, WIDTH, padding_idx=0),
        nn.Embedding(N_WORDS, WIDTH, padding_idx=-1),
        nn.Embedding(N_WORDS, WIDTH, sparse=True),
        Of(lambda m, ids: functional.embedding(ids, m.w), w=(N_WORDS, WIDTH)),
        Of(lambda m, ids: functional.embedding(ids, m.w, padding_idx=-1), w=(N_WORDS, WIDTH)),
        Of(lambda m, ids: functional.embedding(ids, m.w, padding_idx=-2), w=(N_WORDS, WIDTH)),
        Of(lambda m, ids: functional.embedding(ids, m.w, padding_idx=0), w=(N_WORDS, WIDTH)),
    ],
    ids=str,
)
def test_tables_are_recorded_with_repeated_words_and_padding(entry):
    case = on(through(entry), words())
    assert check_exact(case, factor=0.5) == "recorded"


def test_the_last_row_as_padding_is_known_even_if_no_example_shown_has_it():
    entry = Of(lambda m, ids: functional.embedding(ids, m.w, padding_idx=-1), w=(N_WORDS, WIDTH))
    case = on(through(entry), words())
    shown = (torch.randint(0, N_WORDS - 1, (BLOCK, LENGTH)), torch.randn(BLOCK, LENGTH, 3))
    check_exact(case, shown=shown)


def test_words_of_one_and_of_many_dimensions():
    for shape in ((BLOCK,), (BLOCK, 1), (BLOCK, 2, 3)):
        ids = torch.randint(0, N_WORDS, shape)
        ids.view(-1)[0] = (ids.view(-1)[-1] + 1) % N_WORDS
        case = on(nn.Sequential(nn.Embedding(N_WORDS, WIDTH), nn.Linear(WIDTH, 2)), ids)
        assert check_exact(case) == "recorded"


@CALM
@given(st.data(), factors())
def test_tables_tied_to_the_way_out(data, factor):
    torch.manual_seed(data.draw(SEEDS))
    entry = nn.Embedding(5, WIDTH, padding_idx=data.draw(st.sampled_from([None, 0, 4])))
    model = Sequences(entry, [Residual(nn.Linear(WIDTH, WIDTH))], [0], nn.Linear(WIDTH, 5))
    model.out.weight = entry.weight
    ids = torch.randint(0, 5, (BLOCK, LENGTH))
    assert check_exact(on(model, ids), factor=factor) == "recorded"


@pytest.mark.parametrize("n_dims", [1, 2, 3])
def test_instance_norm_of_any_dimensions(n_dims):
    norm = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[n_dims - 1](3, affine=True)
    case = on(nn.Sequential(shaken(norm), nn.Tanh()), torch.randn(BLOCK, 3, *(5,) * n_dims))
    assert check_exact(case) == "recorded"


@CALM
@given(st.data(), factors())
def test_norms_of_tokens(data, factor):
    torch.manual_seed(data.draw(SEEDS))
    layers = token_norms(LENGTH)
    model = Sequences(nn.Linear(3, WIDTH), [Residual(data.draw(layers))], [0], nn.Linear(WIDTH, 2))
    case = on(model, torch.randn(BLOCK, LENGTH, 3))
    assert check_exact(case, factor=factor) == "recorded"


@settings(max_examples=30)
@given(sequence_cases(layers=attentions()), factors())
def test_attention_with_every_mask(case, factor):
    assert check_exact(case, factor=factor) == "recorded"


@settings(max_examples=12)
@given(sequence_cases(layers=encoder_layers()), factors())
def test_encoder_layers(case, factor):
    assert check_exact(case, factor=factor) == "recorded"


@pytest.mark.parametrize("training", [True, False])
def test_a_whole_encoder_with_padded_sequences(training):
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def run(model, examples):
        padding = examples[:, :, 0] > 0.8
        padding[:, 0] = False
        return model.encoder(examples, src_key_padding_mask=padding) * ~padding[:, :, None]

    model = Of(run)
    model.encoder = encoder
    model.train(training)
    assert check_exact(on(model, sequences())) == "recorded"


def test_attention_with_weights_for_each_input():
    """Keys and values of other widths: separate weights, known without a common bias."""

    def run(model, queries, keys):
        return model.inner(queries, keys, keys)[0]

    for bias, path in ((False, {"recorded"}), (True, {"recorded", "per_example"})):
        model = Of(run)
        model.inner = nn.MultiheadAttention(WIDTH, 2, kdim=3, vdim=3, bias=bias, batch_first=True)
        assert check_exact(on(model, sequences(), torch.randn(BLOCK, 5, 3))) in path


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("average", [True, False])
def test_attention_shares_are_those_of_torch(need_weights, average):
    """Also when the loss reads them."""

    def run(model, examples):
        outputs, shares = model.inner(
            *[examples] * 3, need_weights=need_weights, average_attn_weights=average
        )
        return outputs if shares is None else shares.flatten(1)

    model = Of(run)
    model.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    if need_weights:
        model.inner.out_proj.requires_grad_(False)
    assert check_exact(on(model, sequences())) == "recorded"


@pytest.mark.parametrize(
    "given",
    [{}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"bias": False}],
    ids=str,
)
def test_attention_between_sequences_is_exact(given):
    def run(model, queries, keys):
        return model.inner(queries, keys, keys)[0]

    model = Of(run)
    model.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=True, **given)
    check_exact(on(model, sequences(), torch.randn(BLOCK, 3, WIDTH)), factor=0.5)


@pytest.mark.parametrize("given", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_self_attention_with_extra_keys_is_exact(given):
    model = Attention(
        WIDTH, 2, mask="none", padding=False, need_weights=False, batch_first=True, **given
    )
    check_exact(on(model, sequences()))


def test_a_decoder_layer_is_exact():
    def run(model, targets, memory):
        return model.inner(targets, memory, tgt_mask=torch.ones(6, 6).triu(1) * -1e3)

    model = Of(run)
    model.inner = nn.TransformerDecoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True)
    check_exact(on(model, sequences(), torch.randn(BLOCK, 3, WIDTH)))


@settings(max_examples=25)
@given(sequence_cases(layers=recurrents()), factors())
def test_recurrent_layers(case, factor):
    assert check_exact(case, factor=factor) == "recorded"


@CALM
@given(sequence_cases(layers=cells()), factors())
def test_recurrent_cells(case, factor):
    assert check_exact(case, factor=factor) == "recorded"


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_last_states_are_those_of_torch(kind):
    """The last states of all layers and directions, and initial ones that are given."""

    def run(model, examples):
        first = examples[:, :4, :3].transpose(0, 1).contiguous()
        start = (first, first * 2) if isinstance(model.inner, nn.LSTM) else first
        outputs, last = model.inner(examples, start)
        last = torch.cat(last, -1) if isinstance(last, tuple) else last
        return torch.cat([outputs.flatten(1), last.transpose(0, 1).flatten(1)], 1)

    model = Of(run)
    model.inner = kind(WIDTH, 3, num_layers=2, bidirectional=True, batch_first=True)
    assert check_exact(on(model, sequences())) == "recorded"


@pytest.mark.parametrize(
    "inner",
    [
        nn.LSTM(WIDTH, WIDTH, proj_size=2, batch_first=True),
        nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.0, batch_first=True),
    ],
    ids=["projected", "stacked"],
)
def test_unusual_recurrent_layers_are_exact(inner):
    check_exact(on(Recurrent(inner), sequences()))


def test_packed_sequences_are_exact():
    def run(model, examples):
        lengths = torch.tensor([LENGTH] * len(examples))
        packed = nn.utils.rnn.pack_padded_sequence(examples, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(model.inner(packed)[0], batch_first=True)[0]

    model = Of(run)
    model.inner = nn.GRU(WIDTH, 3, batch_first=True)
    check_exact(on(model, sequences()))


@CALM
@given(st.data(), factors())
def test_parameters_that_are_added_and_multiplied(data, factor):
    torch.manual_seed(data.draw(SEEDS))
    layers = [Residual(data.draw(shifts(LENGTH))), Residual(data.draw(shifts(LENGTH)))]
    model = Sequences(nn.Linear(3, WIDTH), layers, [0, 1, 0], nn.Linear(WIDTH, 2))
    case = on(model, torch.randn(BLOCK, LENGTH, 3))
    assert check_exact(case, factor=factor) == "recorded"


@pytest.mark.parametrize("function", [torch.add, torch.mul, torch.Tensor.add, torch.Tensor.mul])
def test_sums_and_products_as_functions(function):
    model = Of(lambda m, x: function(function(x, m.a), m.b), a=(WIDTH,), b=(LENGTH, 1))
    assert check_exact(on(model, sequences())) == "recorded"


def test_a_linear_map_used_twice_on_different_numbers_of_tokens():
    def run(model, examples):
        return model.inner(torch.tanh(model.inner(examples)).mean(1)) + model.inner(examples[:, 0])

    model = Of(run)
    model.inner = nn.Linear(WIDTH, WIDTH)
    assert check_exact(on(model, sequences())) == "recorded"


def test_sums_of_layers_whose_gradients_are_one_and_the_same():
    """Autograd hands one tensor to both sides of a sum, and adds to it later."""

    def run(model, examples):
        hidden = model.a(examples)
        hidden = hidden + model.b(hidden)
        hidden = hidden + model.p
        return hidden + model.a(hidden) + hidden

    model = Of(run, p=(WIDTH,))
    model.a, model.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    for inputs in (torch.randn(BLOCK, WIDTH), sequences()):
        assert check_exact(on(model, inputs), factor=0.5) == "recorded"


def test_a_convolution_and_a_norm_used_twice():
    convolution, norm = nn.Conv2d(3, 3, 3, padding=1), shaken(nn.GroupNorm(1, 3))
    model = nn.Sequential(convolution, norm, nn.ELU(), convolution, norm)
    assert check_exact(on(model, images())) == "recorded"


def test_a_bias_shared_by_different_layers():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    model[2].bias = model[0].bias
    assert check_exact(on(model, sequences())) == "recorded"


@pytest.mark.parametrize("which", ["weight", "bias"])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(WIDTH, 3),
        nn.Conv1d(LENGTH, 3, 2),
        shaken(nn.LayerNorm(WIDTH)),
        shaken(nn.GroupNorm(2, LENGTH)),
        shaken(nn.InstanceNorm1d(LENGTH, affine=True)),
        shaken(nn.BatchNorm1d(LENGTH)).eval(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_half_frozen_layers(layer, which):
    layer = copy.deepcopy(layer)
    getattr(layer, which).requires_grad_(False)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), layer)
    assert check_exact(on(model, sequences())) == "recorded"


def test_half_frozen_attention_and_recurrence():
    attention = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True)
    attention.self_attn.in_proj_weight.requires_grad_(False)
    attention.self_attn.out_proj.bias.requires_grad_(False)
    recurrent = nn.GRU(WIDTH, 3, batch_first=True)
    recurrent.weight_hh_l0.requires_grad_(False)
    recurrent.bias_ih_l0.requires_grad_(False)
    for model in (attention, Recurrent(recurrent)):
        assert check_exact(on(model, sequences())) == "recorded"


class Doubled(torch.autograd.Function):
    """A product with its own backward pass, that torch.func can follow."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs, weight):
        return 2 * inputs @ weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs, weight = ctx.saved_tensors
        return 2 * gradient @ weight.mT, 2 * inputs.mT @ gradient


class OldStyle(torch.autograd.Function):
    """As people wrote it before torch.func, which cannot follow it."""

    @staticmethod
    def forward(ctx, inputs, weight):
        ctx.save_for_backward(inputs, weight)
        return inputs @ weight

    @staticmethod
    def backward(ctx, gradient):
        inputs, weight = ctx.saved_tensors
        return gradient @ weight.mT, inputs.mT @ gradient


class Disguised(torch.autograd.Function):
    """Its forward pass is a linear map, which must not be recorded in place of its own backward."""

    @staticmethod
    def forward(ctx, inputs, weight):
        ctx.save_for_backward(inputs, weight)
        return functional.linear(inputs, weight)

    @staticmethod
    def backward(ctx, gradient):
        inputs, weight = ctx.saved_tensors
        return gradient @ weight, gradient.mT @ inputs


UNKNOWN = {
    "matmul": Of(lambda m, x: x @ m.w, w=(4, 3)),
    "transposed": Of(lambda m, x: functional.linear(x, m.w.T), w=(4, 3)),
    "einsum": Of(lambda m, x: torch.einsum("ni,io->no", x, m.w), w=(4, 3)),
    "reshaped": Of(lambda m, x: functional.linear(x, m.w.reshape(3, 4)), w=(12,)),
    "indexed": Of(lambda m, x: functional.linear(x, m.w[1]), w=(2, 3, 4)),
    "normed": Of(lambda m, x: functional.linear(x, m.w / m.w.norm()), w=(3, 4)),
    "subtracted": Of(lambda m, x: x - m.w, w=(4,)),
    "divided": Of(lambda m, x: x / m.w, w=(4,)),
    "added with a factor": Of(lambda m, x: torch.add(x, m.w, alpha=3), w=(4,)),
    "added in place": Of(lambda m, x: (x * 2).add_(m.w), w=(4,)),
    "added with plus equal": Of(lambda m, x: iadded(x, m.w), w=(4,)),
    "added to each other": Of(lambda m, x: x * (m.a + m.b), a=(4,), b=(4,)),
    "stacked": Of(lambda m, x: torch.cat([m.w.expand(len(x), 4), x], 1).tanh(), w=(1, 4)),
    "a number": Of(lambda m, x: x * m.w.exp(), w=()),
    "where": Of(lambda m, x: torch.where(x > 0, x, m.w), w=(4,)),
    "prelu": nn.PReLU(4),
    "bilinear": Of(lambda m, x: functional.bilinear(x, x.sin(), m.w), w=(3, 4, 4)),
    "addmm": Of(lambda m, x: torch.addmm(m.b, x, m.w), w=(4, 3), b=(3,)),
    "transposed convolution": nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.ConvTranspose1d(2, 3, 2, stride=2)
    ),
    "weight norm": parametrizations.weight_norm(nn.Linear(4, 3)),
    "orthogonal": parametrizations.orthogonal(nn.Linear(4, 4, bias=False)),
    "own function": Of(lambda m, x: Doubled.apply(x, m.w), w=(4, 3)),
    "old function": Of(lambda m, x: OldStyle.apply(x, m.w), w=(4, 3)),
    "disguised function": Of(lambda m, x: Disguised.apply(x, m.w), w=(3, 4)),
    "disguised and plain": Of(
        lambda m, x: Disguised.apply(x, m.w) + functional.linear(x.sin(), m.w), w=(3, 4)
    ),
    "operator": Of(lambda m, x: torch.ops.aten.mm(x, m.w), w=(4, 3)),
    "branch on the data": Of(lambda m, x: x * (m.a if x.sum() > 0 else m.b), a=(4,), b=(4,)),
    "flattened tokens": Of(
        lambda m, x: functional.linear(x.reshape(-1, 2), m.w).reshape(len(x), -1), w=(3, 2)
    ),
}


def iadded(examples, parameter):
    values = examples * 2
    values += parameter
    return values


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_uses_are_left_to_autograd_and_exact(name):
    model = copy.deepcopy(UNKNOWN[name])
    inputs = torch.randn(BLOCK, WIDTH)
    if name == "branch on the data":
        inputs = inputs.abs() * torch.tensor([1, -1, 1, -1, 1])[:, None]
        target = torch.randn(BLOCK, WIDTH)
        case = Case(by_single_examples(model), squared_loss, (inputs, target))
    else:
        case = on(model, inputs)
    assert check_exact(case, factor=0.6) in {"per_example", "one_by_one"}


def by_single_examples(inner):
    """A model that takes its examples one by one in a loop of its own."""
    model = Of(lambda m, x: torch.cat([m.inner(one) for one in x.split(1)]))
    model.inner = inner
    return model


def test_a_bag_of_words_is_exact():
    model = nn.Sequential(nn.EmbeddingBag(N_WORDS, WIDTH, mode="sum"), nn.Linear(WIDTH, 2))
    check_exact(on(model, words()))


def test_a_table_whose_gradient_is_scaled_by_the_frequency_in_a_block_is_refused():
    case = on(through(nn.Embedding(N_WORDS, WIDTH, scale_grad_by_freq=True)), words())
    with pytest.raises(ArgumentError, match=r"treats a block differently from its examples"):
        prepared(case)


def test_recomputed_layers_are_exact():
    def run(model, examples):
        hidden = checkpoint(model.inner, model.entry(examples), use_reentrant=False)
        return model.out(torch.tanh(hidden))

    model = Of(run)
    model.entry, model.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
    model.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    check_exact(on(model, sequences()))


def test_an_input_changed_in_place_after_a_sum_is_exact():
    def run(model, examples):
        values = torch.tanh(examples)
        shifted = values + model.p
        values.mul_(0)
        return shifted * 2 + values

    check_exact(on(Of(run, p=(WIDTH,)), sequences()))


def test_questions_about_a_parameter_are_no_use_of_it():
    def run(model, examples):
        weight = model.inner.weight
        assert weight.dim() == len(weight.shape) == 2
        assert weight.requires_grad
        assert weight.size(0) == 3
        assert weight.is_contiguous()
        return model.inner(examples.to(weight.dtype))

    model = Of(run)
    model.inner = nn.Linear(WIDTH, 3)
    assert check_exact(on(model, sequences())) == "recorded"


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.Conv1d(BLOCK, 2, 1), (BLOCK, 3)),
        (nn.Linear(WIDTH, 2), (BLOCK + 1, WIDTH)),
        (nn.Linear(WIDTH, 2), (BLOCK * 2, WIDTH)),
        (nn.LSTM(WIDTH, 2), (LENGTH, WIDTH)),
        (Shifted((BLOCK, WIDTH), times=False, parameter_first=False), (BLOCK, WIDTH)),
        (Shifted((BLOCK, 1), times=True, parameter_first=True), (BLOCK, WIDTH)),
        (Shifted((LENGTH, WIDTH), times=True, parameter_first=True), (BLOCK, 1, WIDTH)),
    ],
)
def test_what_is_not_one_row_per_example_is_not_recorded(model, inputs):
    recorder = Recorder(layout_of(model, FLAT), BLOCK, Scratch())
    with pytest.raises(UnsupportedUseError), recorder:
        model(torch.randn(inputs))


@pytest.mark.soundness
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
def test_results_in_other_precisions_are_not_recorded(dtype):
    """The rounding of sums of their gradients is not charged for."""
    model = Of(lambda m, x: x.to(dtype) * m.p, p=())
    recorder = Recorder(layout_of(model, FLAT), BLOCK, Scratch())
    with pytest.raises(UnsupportedUseError, match=str(dtype)), recorder:
        model(torch.randn(BLOCK, WIDTH))


@pytest.mark.soundness
def test_linear_maps_in_half_precision_are_not_recorded():
    model = nn.Linear(WIDTH, WIDTH)
    recorder = Recorder(layout_of(model, FLAT), BLOCK, Scratch())
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(UnsupportedUseError, match="bfloat16"),
        recorder,
    ):
        model(torch.randn(BLOCK, WIDTH))


@pytest.mark.parametrize("shape", [(BLOCK, WIDTH), (BLOCK, 1)])
def test_a_constant_as_long_as_the_block_is_not_taken_for_examples(shape):
    """A table of as many rows as there are examples, shifted by a parameter."""
    table = torch.randn(shape)
    model = Of(lambda m, x: torch.tanh(x) @ (table + m.p).T, p=(WIDTH,))
    assert check_exact(on(model, torch.randn(BLOCK, WIDTH))) != "recorded"


def test_recording_leaves_the_model_alone():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    recorder = Recorder(layout_of(model, FLAT), BLOCK, Scratch())
    with recorder:
        losses = model(torch.randn(BLOCK, WIDTH)).square().sum(1)
    torch.autograd.grad(losses.sum(), recorder.anchor, allow_unused=True)
    assert sorted(recorder.contributions()) == [0, 1, 2, 3]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())
    # and outside of it everything is as it was
    outputs = model(torch.randn(BLOCK, WIDTH)).sum()
    assert torch.autograd.grad(outputs, model[0].weight)[0].shape == (WIDTH, WIDTH)


def test_a_use_that_the_loss_does_not_read_contributes_nothing():
    model = nn.ModuleList([nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2)])
    recorder = Recorder(layout_of(model, FLAT), BLOCK, Scratch())
    examples = torch.randn(BLOCK, WIDTH)
    with recorder:
        model[0](examples)
        losses = model[1](examples).sum(1)
    torch.autograd.grad(losses.sum(), recorder.anchor, allow_unused=True)
    assert sorted(recorder.contributions()) == [2, 3]
