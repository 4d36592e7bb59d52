# SPDX-License-Identifier: Apache-2.0
"""Train a model exactly as a plan says: draws, clipped sums, noise, steps, and the certificate."""

import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, final

import attrs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from torch import nn
from torch.optim import Optimizer

from pufferslice._core.arrays import Integers
from pufferslice._core.checks import check_count
from pufferslice._core.threads import n_cores
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.certificate import Certificate, record_epsilon, secret_epsilon
from pufferslice.certificate.training import DEFAULT_DELTAS
from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.learning import TrainingPlan
from pufferslice.learning.integer_sums import SumGrid, implementation_delta, sum_grid
from pufferslice.learning.plan import SignalToNoise, signal_to_noise
from pufferslice.torch import model_checks
from pufferslice.torch.batches import Batch, Block, Source, blocks_of, fetched_ahead
from pufferslice.torch.checkpoint import Checkpoint, Learner, check_readable, plan_digest
from pufferslice.torch.clipping import ClippedSums, check_radii, one_thread
from pufferslice.torch.distributed import joined_processes
from pufferslice.torch.layout import layout_of
from pufferslice.torch.model_checks import uncompiled, validate
from pufferslice.torch.per_example import Examples, LossFunction
from pufferslice.torch.run import TrainingRun, certify_run, first_steps

_LARGEST_BLOCK: Final = 384
"""In larger blocks, rounding takes more than a hundredth of the clip norm (`sgd.grid`)."""


@final
@attrs.frozen(kw_only=True)
class StepReport:
    """What one step saw of the private data. Internal: the guarantee does not cover these numbers.

    To publish them, or to choose by them when to stop or what to try next, undoes the guarantee.
    """

    step: int
    """Steps taken, with this one."""
    n_examples: int
    mean_loss: float
    """NaN for an empty batch."""
    n_non_finite: int
    """Examples left out because their gradient is NaN or infinite."""
    seconds: float


@final
class Batches:
    """The batches from a run's current step to its last; `Trainer.batches` makes it.

    Its length is the number of steps left. It can be read once; a loop over what is left resumes.
    """

    def __init__(self, batches: Iterator[Batch], n_left: Callable[[], int]) -> None:
        self._batches = batches
        self._n_left = n_left

    def __len__(self) -> int:
        return self._n_left()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)


@final
class Trainer:
    """Follows a plan: ordinary PyTorch objects in, a trained model and its certificate out.

    The model is not wrapped, and only training changes it. For items (inputs..., target) of the
    dataset, `loss_fn(model(*inputs), target)` must give one number for a batch of one example; for
    items that are dicts, `loss_fn(model(**item), item)`. Each example is run as if it were alone,
    so a model or loss that computes with its batch trains on batches of one. With a `folder` the
    run can be saved and resumed; without, its key is in memory only. `blocks_in_flight` is how many
    blocks are computed at once: speed and memory only. `on_step` is called with the report of each
    step.
    Under `torch.distributed`, make a trainer in every process; they share the work of each batch
    and hold the same weights, bit for bit those that one process would have.

    Guarantee: the plan's, for the weights after every step, all together. Batches, sums and noise
    are functions of a secret key of the run, which is destroyed when the run ends.
    Needs: the hypotheses of the plan; the same dataset throughout, in every process.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        optimizer: Optimizer,
        plan: TrainingPlan,
        *,
        folder: str | os.PathLike[str] | None = None,
        scheduler: Any = None,  # noqa: ANN401 - torch has no common class
        blocks_in_flight: int | None = None,
        on_step: Callable[["StepReport"], None] | None = None,
    ) -> None:
        if not isinstance(plan, TrainingPlan):
            msg = f"plan must be a TrainingPlan, got {type(plan).__name__}; see plan_training"
            raise ArgumentError(msg)
        if not callable(loss_fn):
            msg = f"loss_fn must be a function of outputs and targets, got {loss_fn!r}"
            raise ArgumentError(msg)
        in_flight = n_cores() if blocks_in_flight is None else blocks_in_flight
        check_count(1, blocks_in_flight=in_flight)
        validate(model)
        inner = uncompiled(model)
        self.plan = plan
        """The plan; its block is chosen when the dataset is known, if it had none."""
        self._asked: Final = plan
        self._block = int(plan.block or 0)
        self._layout: Final = layout_of(inner, plan.clipping)
        model_checks.check_optimizer(optimizer, self._layout)
        model_checks.check_scheduler(scheduler, optimizer)
        model_checks.check_precision(self._layout)
        self._learner: Final = Learner(inner, optimizer, scheduler, self._layout.names)
        self._check_grid(plan if plan.block else attrs.evolve(plan, block=_LARGEST_BLOCK))
        drowned = model_checks.adam_warning(optimizer, plan, self._layout)
        if drowned:
            warnings.warn(drowned, stacklevel=2)
        self._processes: Final = joined_processes()
        self._sums: Final = ClippedSums(
            inner,
            loss_fn,
            self._layout,
            non_finite=plan.non_finite,
            processes=self._processes,
            in_flight=int(in_flight),
        )
        self._run: Final = TrainingRun(plan, self._processes, folder)
        self._on_step = on_step
        self._n_taken = 0
        self._handed: weakref.WeakSet[Batch] = weakref.WeakSet()
        self._needs_resume = self._run.needs_resume
        if not self._needs_resume:
            self._begin_alike()

    def _begin_alike(self) -> None:
        """All processes begin as the first one does, and a folder holds a state from the start."""
        if self._processes.size == 1 and not self._run.has_files:
            return

        def first_state() -> bytes:
            checkpoint = self._checkpoint()
            raw = checkpoint.to_bytes()
            check_readable(raw)
            if self._run.has_files:
                self._run.write(checkpoint)
            return raw

        raw = self._processes.from_first(first_state)
        if not self._processes.is_first:
            checkpoint = Checkpoint.from_bytes(raw, "the state of the first process")
            self._check_fits(checkpoint)
            self._learner.restore(checkpoint)

    @property
    def name(self) -> str:
        """Public name of the run, which its ledger and its checkpoints carry."""
        return self._run.name

    @property
    def needs_resume(self) -> bool:
        """Whether the folder held a run already, and `resume` must come first."""
        return self._needs_resume

    @property
    def n_taken(self) -> int:
        """Steps taken on the way to the present weights."""
        return self._n_taken

    @property
    def gradient_method(self) -> str:
        """How examples are run, all at once or one by one, and why it is slow if it is.

        Not known before `batches` has seen the dataset.
        """
        return str(self._sums.method or "not known before the dataset is")

    @property
    def is_finished(self) -> bool:
        """Whether the run is over: all steps taken, or stopped. Its key is destroyed."""
        return self._run.is_over

    def batches(
        self,
        dataset: Any,  # noqa: ANN401 - any map-style dataset
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        n_workers: int = 0,
        progress: bool | None = None,
    ) -> Batches:
        """The batches from the current step to the end of the plan, each to be given to `step`.

        `dataset` gives records by position, as tuples (inputs..., target) or as dicts of inputs,
        and its length, which is the plan's number of records. `collate_fn` is called on each record
        alone. `n_workers` processes fetch records ahead. Batches are drawn afresh, as the plan
        says; one may be empty. `progress` draws a bar; by default on a terminal.
        """
        self._check_not_found()
        check_count(0, n_workers=n_workers)
        source = Source(dataset, collate_fn)
        source.check(self.plan.sampling.n_records)
        self._prepare(source)
        drawn = self._drawn(source, n_workers)
        shown = sys.stderr.isatty() if progress is None else progress
        if shown and self._processes.is_first:
            drawn = self._with_bar(drawn)
        return Batches(drawn, lambda: self._n_left)

    def step(self, batch: Batch) -> StepReport:
        """Take the plan's next step: clipped sum, noise, division, optimizer, scheduler.

        If it raises before the noise is drawn, nothing was done and the step can be taken again.
        The last step ends the run: with a folder it writes the final checkpoint, and if that fails
        (a full disk) the step is made all the same; then `save` ends the run.
        """
        started = time.perf_counter()
        self._check_step(batch)
        if not self._sums.is_prepared:
            self._prepare(batch.source)
        grid = sum_grid(self.plan, self._n_taken, self._layout.sizes)
        seed_of = partial(self._seed, batch.step, 1)
        sums = self._sums.of(batch, grid, self._block, seed_of)
        self._update(self._run.noisy(batch.step, sums.integers), grid)
        self._n_taken += 1
        if self._n_taken == self.plan.n_steps:
            self._end()
        report = StepReport(
            step=self._n_taken,
            n_examples=len(batch.indices),
            mean_loss=sums.mean_loss,
            n_non_finite=sums.n_non_finite,
            seconds=time.perf_counter() - started,
        )
        if self._on_step is not None:
            self._on_step(report)
        return report

    def spent(self) -> Guarantee:
        """What the steps so far cost.

        It is no claim of a run that may continue, or that stops when the data suggest it: that run
        costs what `certificate` says.
        """
        return self._taken().guarantee()

    def spent_epsilon(self, delta: float) -> float:
        """Epsilon of the steps so far for the declared secret, as (epsilon, delta).

        As `spent`, it is no claim of a run that may continue.
        """
        return secret_epsilon([self._taken()], delta=delta, implementation_delta=self._distance())

    def record_epsilon(self, delta: float) -> float:
        """Epsilon of the steps so far for one record: (epsilon, delta)-differential privacy.

        For the replacement of any one record, under the conditions that the certificate states. As
        `spent`, it is no claim of a run that may continue.
        """
        return record_epsilon([self._taken()], delta=delta, implementation_delta=self._distance())

    def _distance(self) -> float:
        return implementation_delta(self._taken(), self._layout.n_parameters)

    def _taken(self) -> TrainingPlan:
        if not self._n_taken:
            msg = "no step has been taken, so nothing has been spent yet"
            raise TrainingError(msg)
        return first_steps(self.plan, self._n_taken)

    @property
    def signal_to_noise(self) -> SignalToNoise:
        """The largest signal that gradients can have, over the noise; public."""
        return signal_to_noise(self.plan, self._layout.sizes)

    def certificate(
        self,
        *,
        data: str | None = None,
        deltas: Sequence[float] = DEFAULT_DELTAS,
        limits: Sequence[str] = (),
    ) -> Certificate:
        """The certificate of the run: the plan's full cost, however many steps were taken.

        `data` is a public name of the dataset, without which the certificate composes with no
        other: runs compose only over data of the same name. `limits` are codes of further limits.
        """
        return self._certified(data, deltas, limits)

    def stop(
        self,
        *,
        independent_of_data: bool,
        data: str | None = None,
        deltas: Sequence[float] = DEFAULT_DELTAS,
    ) -> Certificate:
        """End the run now; the certificate of the steps taken, which says what it assumes.

        Needs: the choice to stop does not depend on the data in any way, losses included. That is
        what `independent_of_data=True` says. Otherwise use `certificate`.
        """
        if independent_of_data is not True:
            msg = (
                "independent_of_data must be True: the cost of fewer steps holds only if the data "
                "had no part in the choice to stop. If they had, certificate() holds"
            )
            raise ArgumentError(msg)
        self._check_not_found()
        if not self._n_taken or self.is_finished:
            msg = "there is nothing to stop: the run has taken no step, or is over already"
            raise TrainingError(msg)
        self._end()
        return self._certified(data, deltas, n_taken=self._n_taken)

    def close(self) -> None:
        """End the run now, and destroy its key; `certificate` states the plan's full cost."""
        if not self.is_finished:
            self._end()

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write a checkpoint, whole or not at all: `checkpoint.pt` in the folder, or `path`.

        It holds model, optimizer, scheduler and step, never the key. The first process writes;
        calling it in the others does nothing.
        """
        self._check_not_found()
        if self.is_finished:
            msg = "the run is over: keep the model itself, by torch.save(model.state_dict(), ...)"
            raise TrainingError(msg)
        self._run.write(self._checkpoint(), path)
        if self._n_taken == self.plan.n_steps:
            self._run.forget(self._n_taken)

    def resume(self, path: str | os.PathLike[str] | None = None) -> None:
        """Resume from a checkpoint: model, optimizer, scheduler and step become what they were.

        Weights come out as in an uninterrupted run, bit for bit on the same machine, with any
        number of processes, which must all call this. Only the latest checkpoint of the run is
        accepted: to train again from an older one, start a new run in another folder; two runs over
        the same data compose with `compose`. Of a finished run the final checkpoint can be loaded,
        and no step taken.
        """
        checkpoint = self._run.resume(path, self._check_fits)
        self._learner.restore(checkpoint)
        self._n_taken, self._needs_resume = checkpoint.step, False
        if self._asked.block is None:
            self.plan = attrs.evolve(self._asked, block=checkpoint.block)
            self._block = int(checkpoint.block or 0)
        self._handed = weakref.WeakSet()
        if self._n_taken == self.plan.n_steps:
            self._run.forget(self._n_taken)

    @property
    def _n_left(self) -> int:
        return 0 if self.is_finished else self.plan.n_steps - self._n_taken

    def _drawn(self, source: Source, n_workers: int) -> Iterator[Batch]:
        """Batch after batch; with workers, the blocks of coming batches are fetched meanwhile."""
        ahead: Iterator[Examples] | None = None
        if n_workers:
            coming = (self._batch(source, step) for step in range(self._n_taken, self.plan.n_steps))
            blocks = (block for batch in coming for block in self._own_blocks(batch))
            ahead = fetched_ahead(source, blocks, n_workers)
        while self._n_left:
            batch = self._batch(source, self._n_taken)
            if ahead is not None:
                fetched = {block.number: next(ahead) for block in self._own_blocks(batch)}
                batch = attrs.evolve(batch, fetched=fetched)
            self._handed.add(batch)
            yield batch
            if self._n_left and batch in self._handed and self._n_taken == batch.step:
                msg = (
                    f"the batch of step {batch.step} was not trained on. Give every batch to "
                    "trainer.step, also an empty one: the plan's cost is that of all its draws"
                )
                raise TrainingError(msg)

    def _own_blocks(self, batch: Batch) -> list[Block]:
        groups = batch.groups()
        own = (groups[i] for i in self._processes.own_parts(len(groups)))
        return [batch.blocks[number] for numbers in own for number in numbers]

    def _with_bar(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress("training", *columns, console=Console(stderr=True)) as bar:
            bar.console.print(str(self.signal_to_noise))
            steps = bar.add_task("training", total=self.plan.n_steps, completed=self._n_taken)
            for batch in batches:
                yield batch
                bar.update(steps, completed=self._n_taken)

    def _batch(self, source: Source, step: int) -> Batch:
        indices = self._run.draw(step)
        blocks = blocks_of(indices, self._block, partial(self._seed, step, 0))
        return Batch(step=step, indices=indices, source=source, blocks=blocks)

    def _seed(self, step: int, use: int, number: int) -> int:
        """A seed of a block: 0 for what its dataset draws, 1 for what the model draws."""
        return self._run.seed(step, 2 * number + use)

    def _prepare(self, source: Source) -> None:
        """Choose how examples are run and, if the plan leaves it open, how many at once."""
        example = source.fetch(Block(0, 0, (0,)))
        self._sums.prepare(example)
        if self.plan.block is None:
            sampling = self.plan.sampling
            spread = sampling.divisor**0.5 if sampling.name == "poisson" else 0.0
            block = self._sums.chosen_block(example, sampling.divisor, spread)
            chosen = attrs.evolve(self._asked, block=min(block, _LARGEST_BLOCK))
            self._check_grid(chosen)
            self.plan, self._block = chosen, int(chosen.block or 0)

    def _check_grid(self, plan: TrainingPlan) -> None:
        for step in (plan.noise_multipliers.argmin(), plan.noise_multipliers.argmax()):
            check_radii(sum_grid(plan, int(step), self._layout.sizes))

    def _update(self, noisy: Integers, grid: SumGrid) -> None:
        """Post-processing: divide by the public constant and let the optimizer use it."""
        self._layout.set_gradients(noisy, grid.steps / self.plan.divisor)
        with one_thread():
            self._learner.optimizer.step()
            self._learner.optimizer.zero_grad(set_to_none=True)
            if self._learner.scheduler is not None:
                self._learner.scheduler.step()

    def _check_not_found(self) -> None:
        if self._needs_resume:
            msg = (
                "the folder holds a run already: call trainer.resume() before anything else, or "
                "use another folder for a new run"
            )
            raise TrainingError(msg)

    def _check_step(self, batch: Batch) -> None:
        """The step is the plan's next one, on a batch drawn for it, in the numbers charged for."""
        self._check_not_found()
        if not self._n_left:
            msg = (
                f"the run is over after {self._n_taken} of {self.plan.n_steps} planned steps; a "
                "longer run needs a longer plan from its start"
            )
            raise TrainingError(msg)
        if not isinstance(batch, Batch) or batch not in self._handed:
            msg = (
                f"step takes a batch of trainer.batches(dataset), which is drawn as the plan says; "
                f"got a {type(batch).__name__} from elsewhere"
            )
            raise ArgumentError(msg)
        if batch.step != self._n_taken:
            msg = (
                f"the batch is of step {batch.step} and the next step is {self._n_taken}; each "
                "batch is used once, in turn"
            )
            raise TrainingError(msg)
        batch.source.check(self.plan.sampling.n_records)
        model_checks.check_unchanged(self._learner.model, self._layout)
        model_checks.check_optimizer(self._learner.optimizer, self._layout)
        model_checks.check_precision(self._layout)

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(
            run=self._run.name,
            plan=plan_digest(self._asked),
            step=self._n_taken,
            block=self.plan.block,
            states=self._learner.states,
            names=self._learner.names,
            kinds=self._learner.kinds,
        )

    def _check_fits(self, checkpoint: Checkpoint) -> None:
        self._learner.check_fits(checkpoint, self._asked)

    def _end(self) -> None:
        self._run.end(self._checkpoint())

    def _certified(
        self,
        data: str | None,
        deltas: Sequence[float],
        limits: Sequence[str] = (),
        n_taken: int | None = None,
    ) -> Certificate:
        return certify_run(
            self.plan,
            run=self._run.name,
            data=data,
            n_parameters=self._layout.n_parameters,
            deltas=deltas,
            n_taken=n_taken,
            limits=limits,
        )
