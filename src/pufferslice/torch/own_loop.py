# SPDX-License-Identifier: Apache-2.0
"""A user's training loop under a plan: `make_private` and what it returns.

The loop takes batches from the loader and steps the optimizer once for each. The step runs model
and loss on each record of that batch alone, by a `Trainer`; it ignores everything else that the
loop computes from a batch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, final

import torch
from torch import nn
from torch.optim import Optimizer

from pufferslice.certificate import Certificate
from pufferslice.claims import Claim
from pufferslice.claims.views import DEFAULT_DELTAS
from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.learning import TrainingPlan
from pufferslice.torch.batches import Batch, Block, joined
from pufferslice.torch.distributed import joined_processes
from pufferslice.torch.model_checks import uncompiled
from pufferslice.torch.per_example import Examples, LossFunction, mapped
from pufferslice.torch.trainer import StepReport, Trainer

_LIMIT: Final = "loop-outside-program"
"""Code of the limit that certificates of such runs state."""


@final
class PrivateLoader:
    """The batches of a run, drawn as its plan prescribes; take one optimizer step for each.

    One pass has about as many batches as it takes to see every record once; the last pass ends with
    the plan. A batch may be empty: its tensors have no rows, and its step is noise only.
    """

    def __init__(self, trainer: Trainer, batches: Iterator[Batch], dataset: Any) -> None:
        self._trainer = trainer
        self._batches = batches
        self.dataset: Final = dataset
        self.batch: Batch | None = None
        """The current batch, which has had no step yet."""

    def __len__(self) -> int:
        """Batches in one pass."""
        sampling = self._trainer.plan.sampling
        return max(1, round(sampling.n_records / sampling.divisor))

    def __iter__(self) -> Iterator[Examples]:
        """The next pass; it starts with the current batch if there is one."""
        for _ in range(len(self)):
            if self.batch is None:
                batch = next(self._batches, None)
                if batch is None:
                    return
                batch.fetched.update({i: batch.examples(i) for i in range(len(batch.blocks))})
                self.batch = batch
            yield self._whole(self.batch)
            if self.batch is not None:
                raise TrainingError(
                    f"the batch of step {self.batch.step} had no optimizer.step(). Take one step "
                    "for every batch, also for an empty one: the plan's cost is that of all draws. "
                    "To accumulate gradients over several batches, plan with a larger rate "
                    "instead: a batch of any size is computed in blocks that fit into memory"
                )

    def _whole(self, batch: Batch) -> Examples:
        if not batch.blocks:
            first = batch.source.fetch(Block(0, 0, (0,)))
            return mapped(lambda tensor: tensor[:0], first)
        return joined([batch.fetched[block.number] for block in batch.blocks])


@final
class PrivateOptimizer(Optimizer):
    """The user's optimizer; every step uses the plan's noisy gradient and no other.

    Schedulers accept it like any optimizer. Gradients that the loop computes are discarded. The key
    of the run is destroyed after the plan's last step, or by `close`.

    Guarantee: the plan's, for the weights after every step, all together.
    Needs: the hypotheses of the plan. Other uses of the records in the loop are not covered:
    metrics, and buffers of the model that a forward pass of the loop changes.
    """

    def __init__(self, optimizer: Optimizer, trainer: Trainer, loader: PrivateLoader) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._inner = optimizer
        self._trainer = trainer
        self._loader = loader
        self._is_stepping = False
        self._guard = optimizer.register_step_pre_hook(self._check_caller)
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # whatever the closure gives
        """Take the plan's next step on the current batch.

        A `closure` is called once, before the step, and its result is returned; the step does not
        use the gradients that it computed. If this raises before the noise is drawn, the batch was
        not used and the step can be repeated.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._loader.batch is None:
            raise TrainingError(
                "no batch was taken from the loader since the last step, or the run is over; a "
                "step takes one batch of the loader that make_private returned"
            )
        taken = self._trainer.n_taken
        self._is_stepping = True
        try:
            self._trainer.step(self._loader.batch)
        finally:
            self._is_stepping = False
            if self._trainer.n_taken > taken:
                self._loader.batch = None
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002 - torch's own signature
        """Set the gradients to None, whatever `set_to_none` is."""
        self._inner.zero_grad(set_to_none=True)

    @property
    def last_report(self) -> StepReport | None:
        """Report of the last step; internal."""
        return self._trainer.last_report

    @property
    def n_taken(self) -> int:
        """Number of steps taken."""
        return self._trainer.n_taken

    def spent(self) -> Claim:
        """What the steps so far cost; see `Trainer.spent`."""
        return self._trainer.spent()

    def spent_epsilon(self, delta: float) -> float:
        """Epsilon of the steps so far for the declared secret; see `Trainer.spent_epsilon`."""
        return self._trainer.spent_epsilon(delta)

    def record_epsilon(self, delta: float) -> float:
        """Epsilon of the steps so far for one record; see `Trainer.record_epsilon`."""
        return self._trainer.record_epsilon(delta)

    def certificate(
        self, *, data: str | None = None, deltas: Sequence[float] = DEFAULT_DELTAS
    ) -> Certificate:
        """The certificate of the run: the plan's full cost, however many steps were taken."""
        return self._trainer.certificate(data=data, deltas=deltas, limits=[_LIMIT])

    def close(self) -> None:
        """End the run: destroy its key and release the user's optimizer."""
        self._trainer.close()
        self._loader.batch = None
        self._guard.remove()

    def state_dict(self) -> dict[str, Any]:
        """The state of the user's optimizer; it contains nothing of the run."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the state of the user's optimizer."""
        self._inner.load_state_dict(state_dict)
        self._share()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a private optimizer cannot be pickled or copied; keep its state_dict()")

    def _share(self) -> None:
        """Share the groups, so that schedulers change those of the user's optimizer."""
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def _check_caller(self, *_: object) -> None:
        if not self._is_stepping:
            raise TrainingError(
                "the optimizer that was given to make_private was stepped directly, without noise; "
                "step the one that make_private returned"
            )


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    dataset: Any,  # any map-style dataset
    plan: TrainingPlan,
    *,
    loss_fn: LossFunction,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    n_workers: int = 0,
) -> tuple[nn.Module, PrivateOptimizer, PrivateLoader]:
    """Return the same model, and an optimizer and a loader that follow the plan.

    The shortest loop is `for _ in loader: optimizer.step()`: a step runs model and loss on each
    record of the batch alone, clips, adds noise and updates. Arguments are those of `Trainer` and
    of its `batches`.

    Guarantee: the plan's, as in `PrivateOptimizer`.
    """
    if isinstance(optimizer, PrivateOptimizer):
        raise ArgumentError("optimizer is already private; give the original optimizer")
    if joined_processes().size > 1:
        raise ArgumentError("make_private works in one process only; use Trainer for several")
    trainer = Trainer(uncompiled(model), loss_fn, optimizer, plan)
    batches = trainer.batches(dataset, collate_fn=collate_fn, n_workers=n_workers, progress=False)
    loader = PrivateLoader(trainer, batches, dataset)
    private = PrivateOptimizer(optimizer, trainer, loader)
    private.zero_grad()
    return model, private, loader
