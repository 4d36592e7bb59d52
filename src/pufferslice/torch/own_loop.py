# SPDX-License-Identifier: Apache-2.0
"""A training loop of the user's own, held to a plan: `make_private` and what it returns.

The loop stays as it was: batches from a loader, model, loss, backward, step. The loader draws as
the plan says, and the step clips, adds the plan's noise and divides by its constant. A step that is
not the plan's raises before noise is drawn, and then nothing of the batch was used.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, final

from torch import nn
from torch.optim import Optimizer

from pufferslice.certificate import Certificate
from pufferslice.certificate.learning import DEFAULT_DELTAS
from pufferslice.checks import check_one_of
from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.guarantee import Guarantee
from pufferslice.sgd import TrainingPlan
from pufferslice.sgd.grid import sum_grid
from pufferslice.torch import admission, charging
from pufferslice.torch.batches import Examples, check_dataset
from pufferslice.torch.distributed import joined_processes
from pufferslice.torch.gradients import check_radii
from pufferslice.torch.layout import layout_of
from pufferslice.torch.loop_run import LoopRun, LossReduction
from pufferslice.torch.structure import uncompiled, validate

OWN_LOOP: Final = (
    "The loss was computed by a loop that the program does not see: that the loss of an example "
    "depends on no other example is the word of who ran it."
)
"""What a certificate says of a run whose loop is the user's own."""


@final
class PrivateLoader:
    """The batches of a run, drawn as its plan says; each is to be followed by one optimizer step.

    One pass makes about as many batches as it takes to see every record once, and the last one
    ends with the plan. A batch may be empty: its tensors have no rows, and its step is noise only.
    Items of the dataset are tuples (inputs..., target), collated as torch does.
    """

    def __init__(self, run: LoopRun, dataset: Any) -> None:  # noqa: ANN401 - any map-style dataset
        self._run = run
        self.dataset: Final = dataset

    def __len__(self) -> int:
        """Batches in one pass."""
        sampling = self._run.plan.sampling
        return max(1, round(sampling.n_records / sampling.divisor))

    def __iter__(self) -> Iterator[Examples]:
        """The next pass; it begins with the batch in hand if that had no step yet."""
        self._run.check_going_on()
        return self._batches()

    def _batches(self) -> Iterator[Examples]:
        for _ in range(len(self)):
            if self._run.is_over:
                return
            step = self._run.n_taken
            yield self._run.draw(self.dataset)
            if self._run.n_taken == step:
                msg = (
                    f"the batch of step {step} had no optimizer.step(). Take one step for every "
                    "batch, also for an empty one: the plan's cost is that of all its draws"
                )
                raise TrainingError(msg)


@final
class PrivateOptimizer(Optimizer):
    """The user's optimizer, whose every step uses the plan's noisy gradient and no other.

    Schedulers take it as any optimizer. When the plan's last step is taken, or after `close`, the
    key of the run is destroyed and the model is free of hooks.

    Guarantee: the plan's, for the weights after every step, all together.
    Needs: the hypotheses of the plan. The loop computes the loss, so that the loss of an example
    depends on no other example (but for the mean over the batch) cannot be checked here.
    """

    def __init__(self, optimizer: Optimizer, run: LoopRun, dataset: Any) -> None:  # noqa: ANN401
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._inner = optimizer
        self._run = run
        self._dataset = dataset
        self._is_stepping = False
        self._guard = optimizer.register_step_pre_hook(self._check_caller)
        self._share()

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no loss is returned
        """Take the plan's next step on the batch in hand.

        If it raises before the noise is drawn, nothing of the batch was used and the step can be
        taken again. A step whose noise was drawn counts, whatever the optimizer does with it.
        """
        if closure is not None:
            msg = (
                "step takes no closure: a plan gives one noisy gradient per step. Call backward on "
                "the loss, then step()"
            )
            raise ArgumentError(msg)
        run = self._run
        run.check_going_on()
        check_dataset(self._dataset, run.plan.sampling.n_records)
        admission.check_optimizer(self._inner, run.layout)
        grid = sum_grid(run.plan, run.n_taken, run.layout.sizes)
        run.layout.set_gradients(run.noisy_sums(grid), grid.steps / run.plan.divisor)
        self._is_stepping = True
        try:
            self._inner.step()
        finally:
            self._is_stepping = False
            self.zero_grad()
            if run.is_over:
                self.close()

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002 - torch's own signature
        """Forget the gradients; they become None in any case."""
        self._inner.zero_grad(set_to_none=True)

    @property
    def n_taken(self) -> int:
        """Steps taken."""
        return self._run.n_taken

    @property
    def n_non_finite(self) -> int:
        """Examples that the last step left out for a NaN or infinite gradient.

        Internal: the guarantee does not cover it.
        """
        return self._run.n_non_finite

    def spent(self) -> Guarantee:
        """What the steps so far cost.

        It is no claim of a run that may go on, or that stops when the data suggest it: that run
        costs what `certificate` says.
        """
        if not self.n_taken:
            msg = "no step has been taken, so nothing has been spent yet"
            raise TrainingError(msg)
        plan = self._run.plan
        return charging.taken_plan(plan, self.n_taken).guarantee()

    def certificate(
        self, *, data: str | None = None, deltas: Sequence[float] = DEFAULT_DELTAS
    ) -> Certificate:
        """The certificate of the run: the plan's full cost, however many steps were taken.

        `data` is a public name of the dataset, without which the certificate composes with no
        other: runs compose only over data of the same name.
        """
        return charging.certify_run(
            self._run.plan,
            run=self._run.name,
            data=data,
            noise=(OWN_LOOP,),
            n_parameters=self._run.layout.n_parameters,
            deltas=deltas,
        )

    def close(self) -> None:
        """End the run: destroy its key, take the hooks away, give the optimizer back."""
        self._run.end()
        self._guard.remove()

    def state_dict(self) -> dict[str, Any]:
        """The state of the user's optimizer; nothing of the run."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the state of the user's optimizer."""
        self._inner.load_state_dict(state_dict)
        self._share()

    def __getstate__(self) -> dict[str, Any]:
        msg = "a private optimizer cannot be pickled or copied; keep its state_dict()"
        raise TypeError(msg)

    def _share(self) -> None:
        """Schedulers that change this optimizer's groups change those of the user's."""
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def _check_caller(self, *_: object) -> None:
        if not self._is_stepping:
            msg = (
                "the optimizer that was given to make_private was stepped itself, without noise; "
                "step the one that make_private returned"
            )
            raise TrainingError(msg)


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    dataset: Any,  # noqa: ANN401 - any map-style dataset
    plan: TrainingPlan,
    *,
    loss_reduction: LossReduction,
) -> tuple[nn.Module, PrivateOptimizer, PrivateLoader]:
    """The same model, and an optimizer and a loader that hold a loop to the plan.

    Batches come from the loader; each goes through the model once, its loss back once, and is
    followed by one step. `loss_reduction` says whether the loss is the mean or the sum over the
    examples of a batch. The model is not wrapped; hooks on it see its inputs and outputs, and the
    graph ends at its outputs. A step runs the model a second time, block by block.

    Guarantee: the plan's, as `PrivateOptimizer` says. Weights are those of a `Trainer` up to
    rounding; that they do not depend on threads and processes is promised for `Trainer` only.
    """
    if not isinstance(plan, TrainingPlan):
        msg = f"plan must be a TrainingPlan, got {type(plan).__name__}; see plan_training"
        raise ArgumentError(msg)
    check_one_of(("mean", "sum"), loss_reduction=loss_reduction)
    validate(model)
    if uncompiled(model) is not model:
        msg = "model must be given as it was before torch.compile, whose code runs no hooks"
        raise ArgumentError(msg)
    if isinstance(optimizer, PrivateOptimizer):
        msg = "optimizer is private already; give the one that it was made of"
        raise ArgumentError(msg)
    if joined_processes().size > 1:
        msg = "a loop of one's own runs in one process; use Trainer for several"
        raise ArgumentError(msg)
    layout = layout_of(model, plan.clipping)
    admission.check_optimizer(optimizer, layout)
    admission.check_precision(layout)
    admission.device_of(layout)
    check_dataset(dataset, plan.sampling.n_records)
    for step in (plan.noise_multipliers.argmin(), plan.noise_multipliers.argmax()):
        check_radii(sum_grid(plan, int(step), layout.sizes))
    run = LoopRun(model, layout, plan, loss_reduction)
    private = PrivateOptimizer(optimizer, run, dataset)
    private.zero_grad()
    return model, private, PrivateLoader(run, dataset)
