# SPDX-License-Identifier: Apache-2.0
"""What code may ask of a tapped layer: facts of its weight, and nothing that depends on values."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from pufferslice.sgd import FlatClipping
from pufferslice.torch.isolation import Isolation
from pufferslice.torch.layout import layout_of

WIDTH = 4
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


class Asking(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.first, self.last, self.use = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2), use

    def forward(self, x):
        return self.last(self.use(self.first.weight, torch.tanh(self.first(x))))


def treated(use):
    torch.manual_seed(0)
    model = Asking(use)
    loss_fn = nn.CrossEntropyLoss(reduction="none")
    layout = layout_of(model, FlatClipping(norm=1.0))
    isolation = Isolation(model, loss_fn, layout)
    examples = torch.randn(3, WIDTH), torch.tensor([0, 1, 1])
    treatment = isolation.treatment(examples)
    losses, found = isolation.contributions(examples, treatment, 0)
    expected = [loss_fn(model(x[None]), y[None]) for x, y in zip(*examples, strict=True)]
    assert torch.allclose(losses, torch.cat(expected).detach(), atol=1e-6)
    gradients = [torch.autograd.grad(loss, layout.parameters[0])[0] for loss in expected]
    rows = torch.stack([gradient.reshape(-1) for gradient in gradients])
    assert torch.allclose(found[0].dense(), rows, atol=1e-5)
    return any(layer is model.first for layer in treatment.tapped)


@pytest.mark.parametrize("ask", FACTS)
def test_facts_of_a_weight_leave_its_tap(ask):
    assert treated(FACTS[ask])


@pytest.mark.parametrize("use", USES)
def test_any_other_use_of_a_weight_takes_its_tap_away(use):
    assert not treated(USES[use])
