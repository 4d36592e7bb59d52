# SPDX-License-Identifier: Apache-2.0
"""Models that pick rows by an index: whose row is whose must be known, or examples run alone."""

import numpy as np
import pytest
import torch
from tests.torch.one_by_one import Case, block_sum, check_exact, prepared, squared_loss
from torch import nn

from pufferslice.errors import TrainingError

BLOCK = 6
RADIUS = 0.5


class Picking(nn.Module):
    """Two linear maps; the second one meets its rows as `there` puts them, and `back` again."""

    def __init__(self, there, back=lambda rows, _: rows):
        super().__init__()
        self.first, self.second = nn.Linear(5, 4, bias=False), nn.Linear(5, 4, bias=False)
        self.there, self.back = there, back

    def forward(self, inputs):
        return self.first(inputs) + self.back(self.second(self.there(inputs)), inputs)


def order_of(inputs):
    """Large first entries come first; the others stay as they are."""
    return torch.argsort(-(inputs[:, 0] > 20).float(), stable=True)


def sorting():
    return Picking(
        lambda inputs: inputs[order_of(inputs)],
        lambda rows, inputs: rows[torch.argsort(order_of(inputs))],
    )


def examples_of(seed, n_examples=BLOCK):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n_examples, 5, generator=generator)
    return inputs, torch.randn(n_examples, 4, generator=generator)


@pytest.mark.soundness
def test_examples_that_are_sorted_by_what_is_in_them_never_change_the_weights_of_others(seed):
    """No two change places among the examples first seen, so only a step can notice."""
    torch.manual_seed(seed)
    inputs, targets = examples_of(seed, 16)
    # small and large gradients in turn: in another order, each small one meets a large one
    inputs, targets = 0.01 * inputs + 0.1, torch.full_like(targets, 1.0)
    targets[::2] = 5_000.0
    gradients = prepared(Case(sorting(), squared_loss, (inputs, targets)))
    before, _ = block_sum(gradients, (inputs, targets), RADIUS)
    other = inputs.clone()
    other[-1] = torch.tensor([21.0, 0.0, 0.0, 0.0, 0.0])
    try:
        after, _ = block_sum(gradients, (other, targets), RADIUS)
    except TrainingError as error:
        assert "examples that are picked by an index" in str(error)  # noqa: PT017 - either is right
    else:
        assert np.linalg.norm(after - before) <= 2 * RADIUS * (1 + 1e-6)


def test_a_model_that_sorts_what_it_is_shown_is_exact(seed):
    torch.manual_seed(seed)
    inputs, targets = examples_of(seed)
    inputs[3, 0] = 21.0
    assert check_exact(Case(sorting(), squared_loss, (inputs, targets))) != "recorded"


ROWS = torch.arange(BLOCK)
COLUMNS = torch.tensor([0, 1, 2, 1, 0, 4])
TURNED = ROWS.flip(0)
TABLE = torch.linspace(0, 1, 4 * BLOCK).reshape(-1, 1)[:BLOCK]
TURNING = torch.eye(BLOCK).flip(0)


@pytest.mark.parametrize(
    "there",
    [
        lambda x: x[:, [1, 0, 2, 3, 4]],
        lambda x: x[torch.arange(len(x)), COLUMNS[0]][:, None] * x,
        lambda x: x[torch.arange(len(x))[:, None], COLUMNS[None, :5]],
        lambda x: x[None, torch.arange(len(x))][0],
        lambda x: x.index_select(1, COLUMNS[:5]),
        lambda x: torch.gather(x, 1, COLUMNS[:5].expand(len(x), 5)),
        lambda x: torch.take_along_dim(x, COLUMNS[:5].expand(len(x), 5), 1),
        lambda x: x.clone().index_fill_(1, COLUMNS[:1], 0.0),
        lambda x: x.clone().index_add_(1, COLUMNS[:1], x[:, :1]),
        lambda x: x[..., [1, 0, 2, 3, 4]][:],
        lambda x: x.flip(1).roll(2, 1).roll(1, dims=[-1]).sort(dim=1).values,
        lambda x: torch.cat(x.unbind(1)[::-1]).reshape(5, len(x)).T,
        lambda x: torch.cat([*torch.split(x, 2, dim=1), x.narrow(1, 0, 1)], 1)[:, 1:],
        lambda x: x.T[TURNED[1:]].T @ torch.eye(5, dtype=x.dtype),
        lambda x: x[:, None].expand(-1, BLOCK, -1)[:, TURNED][:, 0],
        lambda x: x + torch.nn.functional.embedding(COLUMNS[:5], TABLE)[:, 0],
        lambda x: x + torch.ones(9, len(x), 5)[torch.full((len(x),), 8), torch.arange(len(x))],
    ],
)
def test_columns_may_be_picked(there, seed):
    torch.manual_seed(seed)
    assert check_exact(Case(Picking(there), squared_loss, examples_of(seed))) == "recorded"


def filled(inputs):
    values = inputs.clone()
    values[values > 1] = 0.0
    return values


def test_one_number_may_be_written_wherever_it_is_wanted(seed):
    torch.manual_seed(seed)
    assert check_exact(Case(Picking(filled), squared_loss, examples_of(seed))) == "recorded"


def some_only(inputs):
    return inputs[inputs[:, 0] < 20]


def test_rows_that_are_left_out_are_taken_one_by_one(seed):
    """Where all are kept in the first block, a later one would have too few."""
    torch.manual_seed(seed)

    def back(rows, inputs):
        values = rows.new_zeros(len(inputs), rows.shape[1])
        values[inputs[:, 0] < 20] = rows
        return values

    inputs, targets = examples_of(seed)
    case = Case(Picking(some_only, back), squared_loss, (inputs, targets))
    assert prepared(case).path == "one_by_one"
    inputs[2, 0] = 21.0
    assert check_exact(case) == "one_by_one"


@pytest.mark.parametrize(
    "there",
    [
        lambda x: x[TURNED],
        lambda x: x[TURNED.tolist()],
        lambda x: x[TURNED.numpy()],
        lambda x: x.index_select(0, TURNED),
        lambda x: torch.index_select(x, -2, TURNED),
        lambda x: x.gather(0, TURNED[:, None].expand_as(x)),
        lambda x: torch.take_along_dim(x, TURNED[:, None], 0),
        lambda x: x.take(torch.arange(x.numel()).reshape(x.shape)),
        lambda x: torch.zeros_like(x).index_copy_(0, TURNED, x),
        lambda x: torch.zeros_like(x).scatter(0, TURNED[:, None].expand_as(x), x),
        lambda x: torch.zeros_like(x).index_put((TURNED,), x),
        lambda x: torch.stack([x[i] for i in TURNED.tolist()]),
        lambda x: torch.stack([x[i] for i in TURNED]),
        lambda x: torch.cat([x[i : i + 1] for i in TURNED.tolist()]),
        lambda x: torch.cat([x[3:], x[:3]]),
        lambda x: torch.stack([x.select(0, i) for i in TURNED.tolist()]),
        lambda x: torch.cat([x.narrow(0, i, 1) for i in TURNED.tolist()]),
        lambda x: torch.stack(x.unbind()[::-1]),
        lambda x: torch.stack(list(x)[::-1]),
        lambda x: torch.cat(x.split(1)[::-1]),
        lambda x: torch.cat(torch.chunk(x, 2)[::-1]),
        lambda x: torch.cat(x.tensor_split(2)[::-1]),
        lambda x: x.repeat_interleave(torch.tensor([0, 2, 1, 1, 1, 1]), 0),
        lambda x: x.flip(0),
        lambda x: torch.flip(x, dims=(-1, -2)),
        torch.flipud,
        lambda x: torch.fliplr(x.T).T,
        lambda x: x.roll(1, 0),
        lambda x: torch.roll(x, 5),
        lambda x: x.sort(0).values,
        lambda x: x.T.sort().values.T,
        torch.msort,
        lambda x: x.masked_select(torch.ones_like(x, dtype=torch.bool)).reshape(x.shape),
        lambda x: x.masked_scatter(x > 0, x),
        lambda x: x[None, :, :][:, TURNED][0],
        lambda x: x.T[..., TURNED].T,
        lambda x: x.T.index_select(1, TURNED).T,
        lambda x: x.expand(2, BLOCK, 5).flatten(0, 1)[: 2 * BLOCK][TURNED],
        lambda x: torch.nn.functional.embedding(TURNED, x),
        lambda x: TURNING @ x,
        lambda x: torch.mm(TURNING, x),
    ],
)
def test_every_way_to_pick_rows_is_seen(there, seed):
    torch.manual_seed(seed)
    inputs, targets = examples_of(seed)
    gradients = prepared(Case(nn.Linear(5, 4), squared_loss, (inputs, targets)))
    gradients.objective.model.register_forward_pre_hook(lambda _, given: (there(given[0]),))
    with pytest.raises(TrainingError, match=r"examples that are picked by an index"):
        block_sum(gradients, (inputs, targets))
