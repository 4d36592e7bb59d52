# SPDX-License-Identifier: Apache-2.0
"""Small models and their records, from a seed: inputs of the golden steps, plain torch."""

import torch
from torch import nn

N_CLASSES = 3


class _Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.recurrent, self.last = kind(4, 5, batch_first=True), nn.Linear(5, N_CLASSES)

    def forward(self, x):
        return self.last(self.recurrent(x)[0][:, -1])


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            8, nhead=2, dim_feedforward=12, dropout=0.0, batch_first=True
        )
        self.last = nn.Linear(8, N_CLASSES)

    def forward(self, x):
        return self.last(self.layer(x).mean(dim=1))


class _Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(11, 5), nn.Linear(5, N_CLASSES)

    def forward(self, x):
        return self.last(torch.tanh(self.words(x)).mean(dim=1))


class _Tied(nn.Module):
    """One matrix that embeds words and predicts them."""

    def __init__(self):
        super().__init__()
        self.words, self.between = nn.Embedding(N_CLASSES, 5), nn.Linear(5, 5)
        self.last = nn.Linear(5, N_CLASSES, bias=False)
        self.last.weight = self.words.weight

    def forward(self, x):
        return self.last(torch.tanh(self.between(self.words(x).mean(dim=1))))


class _OneByOne(nn.Module):
    """Asks for a value, which no code for many examples at once can answer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, N_CLASSES)

    def forward(self, x):
        hidden = self.first(x)
        hidden = torch.tanh(hidden) if hidden.sum().item() > 0 else torch.relu(hidden)
        return self.last(hidden)


class _Lora(nn.Module):
    """A frozen layer, and beside it a narrow one that is trained."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 8).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.last = nn.Linear(8, N_CLASSES)

    def forward(self, x):
        return self.last(torch.tanh(self.base(x) + 0.5 * self.up(self.down(x))))


def _mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, N_CLASSES))


def _cnn():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 2, groups=2),
        nn.Flatten(),
        nn.Linear(4, N_CLASSES),
    )


def _norms():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(64),
        nn.Linear(64, N_CLASSES),
    )


def _dropout():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, N_CLASSES))


def _conv1d():
    return nn.Sequential(
        nn.Conv1d(3, 4, 3, dilation=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, N_CLASSES)
    )


_MODELS = {
    "mlp": (_mlp, (6,)),
    "cnn": (_cnn, (2, 4, 4)),
    "lstm": (lambda: _Recurrent(nn.LSTM), (5, 4)),
    "gru": (lambda: _Recurrent(nn.GRU), (5, 4)),
    "attention": (_Attention, (4, 8)),
    "embedding": (_Embedding, 11),
    "norms": (_norms, (2, 4, 4)),
    "tied": (_Tied, N_CLASSES),
    "dropout": (_dropout, (6,)),
    "one_by_one": (_OneByOne, (6,)),
    "lora": (_Lora, (6,)),
    "conv1d": (_conv1d, (3, 8)),
}


def loss(outputs, targets):
    """One number for each example."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def learner(name, seed, n_records):
    """A model by its name, and records (inputs, targets) for it."""
    make, shape = _MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
        if isinstance(shape, int):
            inputs = torch.randint(shape, (n_records, 6))
        else:
            inputs = torch.randn(n_records, *shape)
        targets = torch.randint(N_CLASSES, (n_records,))
    return model, (inputs, targets)
