# SPDX-License-Identifier: Apache-2.0
"""Loops of Lightning with manual optimisation, in which each step is a planned one."""

import pytest
import torch
from tests.torch.small import (
    LOSS,
    N_STEPS,
    digest_of,
    model_of,
    plan_of,
    records,
    train,
    trainer_of,
)

from pufferslice.torch import Trainer, make_private

lightning = pytest.importorskip("lightning.pytorch")
pytestmark = [
    pytest.mark.usefixtures("same_key"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]


class WithOptimizer(lightning.LightningModule):
    """A private optimizer and its loader, as Lightning has them."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.model = model_of()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        _, self.private, self.loader = make_private(
            self.model, optimizer, records(), plan_of(), loss_fn=LOSS
        )

    def configure_optimizers(self):
        return self.private

    def train_dataloader(self):
        return self.loader

    def training_step(self, batch, batch_idx):
        assert isinstance(batch, tuple | list)
        self.optimizers().step()

    @property
    def n_taken(self):
        return self.private.n_taken


class WithTrainer(lightning.LightningModule):
    """A trainer, whose batches are Lightning's."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.model = model_of()
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.private = Trainer(self.model, LOSS, self.inner, plan_of())

    def configure_optimizers(self):
        return self.inner

    def train_dataloader(self):
        return self.private.batches(records())

    def training_step(self, batch, batch_idx):
        self.private.step(batch)

    @property
    def n_taken(self):
        return self.private.n_taken


def fitted(module, **given):
    loop = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **given,
    )
    loop.fit(module)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (WithOptimizer, {"max_steps": N_STEPS}),
        (WithOptimizer, {"max_epochs": N_STEPS}),
        (WithTrainer, {"max_epochs": 1}),
    ],
)
def test_lightning_trains_as_an_own_loop_does(kind, given):
    module = kind()
    fitted(module, **given)
    assert module.n_taken == N_STEPS
    trainer, model = trainer_of()
    train(trainer)
    assert digest_of(module.model) == digest_of(model) != digest_of(model_of())


@pytest.mark.parametrize("kind", [WithOptimizer, WithTrainer])
def test_lightnings_limit_of_batches_leaves_the_run_unfinished(kind):
    module = kind()
    fitted(module, max_epochs=1, limit_train_batches=1)
    assert module.n_taken == 1
