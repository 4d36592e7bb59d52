# SPDX-License-Identifier: Apache-2.0
"""A loop of Lightning with manual optimisation, in which each step is a planned one."""

import pytest
import torch
from tests.torch.small import LOSS, N_STEPS, copy_of, digest_of, model_of, plan_of, records, train

from pufferslice.errors import TrainingError
from pufferslice.torch import Trainer

lightning = pytest.importorskip("lightning.pytorch")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]


class Batches:
    """The batches of a run. With a length Lightning asks for none before the last was used."""

    def __init__(self, trainer, dataset):
        self._trainer, self._dataset = trainer, dataset

    def __len__(self):
        return self._trainer.plan.n_steps - self._trainer.n_taken

    def __iter__(self):
        return self._trainer.batches(self._dataset)


class Private(lightning.LightningModule):
    """What a user writes: the step is the trainer's, and Lightning runs the loop around it."""

    def __init__(self, folder=None):
        super().__init__()
        self.automatic_optimization = False
        self.model = model_of()
        self.learner = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.private = Trainer(self.model, LOSS, self.learner, plan_of(), folder=folder)
        self.losses = []

    def configure_optimizers(self):
        return self.learner

    def train_dataloader(self):
        return Batches(self.private, records())

    def training_step(self, batch, batch_idx):
        self.losses.append(self.private.step(batch).mean_loss)


def fitted(module, **given):
    loop = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **given,
    )
    loop.fit(module)
    return loop


def test_lightning_trains_as_an_own_loop_does(tmp_path):
    module = Private(tmp_path / "run")
    same_key = copy_of(tmp_path / "run", tmp_path / "own loop")
    fitted(module)
    assert module.private.is_finished
    assert len(module.losses) == N_STEPS
    model = model_of(seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, LOSS, optimizer, plan_of(), folder=same_key)
    trainer.resume()
    train(trainer)
    assert digest_of(module.model) == digest_of(model) != digest_of(model_of())
    assert module.private.certificate().statement == trainer.certificate().statement


def test_a_loader_without_length_would_be_read_ahead():
    module = Private()
    module.train_dataloader = lambda: module.private.batches(records())
    with pytest.raises(TrainingError, match="was not trained on"):
        fitted(module)
    assert module.private.n_taken == 0


def test_lightnings_limit_of_batches_leaves_the_run_unfinished():
    module = Private()
    fitted(module, limit_train_batches=2)
    assert module.private.n_taken == 2
    assert not module.private.is_finished
