# SPDX-License-Identifier: Apache-2.0
"""Train a model exactly as a plan prescribes: batches, clipped sums, noise and certificate."""

import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, Final, final

import attrs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from torch.optim import Optimizer

from pufferslice._core.checks import check_between, check_count, is_a
from pufferslice._core.threads import n_cores
from pufferslice.certificate import Certificate, record_epsilon, secret_epsilon
from pufferslice.certificate.certificate import BudgetPlan
from pufferslice.certificate.limits import ISOLATED
from pufferslice.certificate.training import certify_training
from pufferslice.claims import Claim
from pufferslice.claims.views import DEFAULT_DELTAS
from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.learning import TrainingPlan
from pufferslice.learning.integer_sums import implementation_delta, sum_grid
from pufferslice.learning.plan import SignalToNoise, signal_to_noise
from pufferslice.releases import Ledger
from pufferslice.releases.runs import charge_run
from pufferslice.torch import model_checks
from pufferslice.torch.batches import Batch, Block, Source, blocks_of, fetched_ahead
from pufferslice.torch.checkpoint import Checkpoint, Learner, check_readable, plan_digest
from pufferslice.torch.clipping import ClippedSums, check_radii, one_thread
from pufferslice.torch.distributed import PATIENCE, joined_processes
from pufferslice.torch.isolation import checked_records
from pufferslice.torch.layout import layout_of
from pufferslice.torch.model_checks import uncompiled, validate
from pufferslice.torch.per_example import Examples, LossFunction, made_up, rows_of
from pufferslice.torch.run import TrainingRun

_LARGEST_BLOCK: Final = 384
"""Block beyond which rounding takes over a hundredth of the clip norm (see `integer_sums`)."""

_NOISE: Final = (
    "Integer Gaussian noise of parameter 2^44 in units of the plan's noise over 2^44, added to "
    "integer sums of clipped gradients, once per step. It is drawn from AES-256-CTR under a key "
    "hashed from the secret key of the run, the step and the sums. Gradients are clipped to "
    "slightly less than the plan's norms, so that the rounding of blocks and sums stays within the "
    "sensitivity that the plan accounts for."
)
"""Way in which the noise is drawn; every certificate of a run states it."""


@final
@attrs.frozen(kw_only=True)
class StepReport:
    """Numbers of one step from the private data. Internal: the guarantee does not cover them.

    Publishing them, or choosing by them when to stop or what to try next, voids the guarantee.
    """

    step: int
    """Number of steps taken, including this one."""
    n_examples: int
    mean_loss: float
    """Mean loss of the examples; NaN for an empty batch."""
    n_non_finite: int
    """Examples left out because their gradient is NaN or infinite."""
    seconds: float


@final
class Batches:
    """The batches from a run's current step to its last; made by `Trainer.batches`.

    Its length is the number of steps left. It can be read once; a second loop continues.
    """

    def __init__(self, batches: Generator[Batch], n_left: Callable[[], int]) -> None:
        self._batches = batches
        self._n_left = n_left

    def __len__(self) -> int:
        return self._n_left()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        """End the progress bar now; after the last batch it ends by itself."""
        self._batches.close()


@final
class Trainer:
    """Follows a plan: takes ordinary PyTorch objects, trains the model and certifies the run.

    The model is not wrapped, and only training changes it. For items (inputs..., target) of the
    dataset, `loss_fn(model(*inputs), target)` must return one number for a batch of one example;
    for items that are dicts, `loss_fn(model(**item), item)`. Each example is run as if it were
    alone, so a model or loss that computes with its batch trains on batches of one. With a `folder`
    the run can be saved and resumed; without, its key is in memory only. `blocks_in_flight`, the
    number of blocks computed at once, affects speed and memory only. `on_step` is called with the
    report of each step. A plan of a budget needs the `ledger` of its releases, which charges the
    part before the first step, once for each run, also if that is killed and resumed; `spent_marks`
    is the folder of the spent mark, as in `release`.
    Under `torch.distributed`, make a trainer in every process; they share the work of each batch
    and hold the same weights, bit for bit those that one process would have. If one of them stops
    or is lost, the others end with an error after at most `patience` seconds.

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
        scheduler: Any = None,  # torch has no common class
        blocks_in_flight: int | None = None,
        on_step: Callable[["StepReport"], None] | None = None,
        ledger: str | os.PathLike[str] | Ledger | None = None,
        spent_marks: str | os.PathLike[str] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        if not is_a(plan, TrainingPlan):
            raise ArgumentError(
                f"plan must be a TrainingPlan, got {type(plan).__name__}; see plan_training"
            )
        self._budgeted: Final = plan if isinstance(plan, BudgetPlan) else None
        if (self._budgeted is None) != (ledger is None):
            raise ArgumentError(
                "ledger is required for a plan of a budget, whose part it charges; train with "
                "Trainer(..., ledger=...)"
                if ledger is None
                else "ledger is for plans of a budget, as budget.plan('model'); leave it out"
            )
        self._ledger: Final = ledger
        self._spent_marks: Final = spent_marks
        self._folder: Final = folder
        is_function = callable(loss_fn)
        if not is_function:
            raise ArgumentError(
                f"loss_fn must be a function of outputs and targets, got {loss_fn!r}"
            )
        in_flight = n_cores() if blocks_in_flight is None else blocks_in_flight
        check_count(1, blocks_in_flight=in_flight)
        check_between(0.0, 86_400.0, patience=patience)
        validate(model)
        inner = uncompiled(model)
        self._plan = plan
        self._original_plan: Final = plan
        self._layout: Final = layout_of(inner, plan.clipping)
        model_checks.check_optimizer(optimizer, self._layout)
        model_checks.check_scheduler(scheduler, optimizer)
        model_checks.check_precision(self._layout)
        self._learner: Final = Learner(inner, optimizer, scheduler, self._layout.names)
        self._check_grid(plan if plan.block else attrs.evolve(plan, block=_LARGEST_BLOCK))
        warning = model_checks.adam_warning(optimizer, plan, self._layout)
        if warning:
            warnings.warn(warning, stacklevel=2)
        self._processes: Final = joined_processes(patience)
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
        self.last_report: StepReport | None = None
        """Report of the last step; internal."""
        self._n_taken = 0
        self._drawn_batches: weakref.WeakSet[Batch] = weakref.WeakSet()
        self._needs_resume = self._run.needs_resume
        if not self._needs_resume and (self._processes.size > 1 or self._run.has_files):
            self._share_first_state()

    def _share_first_state(self) -> None:
        """Start all processes from the state of the first one, and write it to the folder."""

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
            self._learner.check_fits(checkpoint, self._original_plan)
            self._learner.restore(checkpoint)

    @property
    def name(self) -> str:
        """Public name of the run, as in its ledger and its checkpoints."""
        return self._run.name

    @property
    def plan(self) -> TrainingPlan:
        """The plan; if it has no block, `batches` chooses one."""
        return self._plan

    @property
    def _block(self) -> int:
        return int(self.plan.block or 0)

    @property
    def needs_resume(self) -> bool:
        """Whether the folder holds a run, so that `resume` must be called first."""
        return self._needs_resume

    @property
    def n_taken(self) -> int:
        """Number of steps taken so far."""
        return self._n_taken

    @property
    def gradient_method(self) -> str:
        """Way in which examples are run, all at once or one by one, and the reason if that is slow.

        Not known before `batches` has seen the dataset.
        """
        return str(self._sums.method or "not known before the dataset is")

    @property
    def is_finished(self) -> bool:
        """Whether the run is over: all steps taken, or stopped. Its key is destroyed."""
        return self._run.is_over

    def batches(
        self,
        dataset: Any,  # any map-style dataset
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        n_workers: int = 0,
        progress: bool | None = None,
    ) -> Batches:
        """The batches from the current step to the end of the plan; pass each to `step`.

        `dataset` returns records by position, as tuples (inputs..., target) or as dicts of inputs,
        and has the plan's number of records as its length. `collate_fn` is called on each record
        alone. `n_workers` processes fetch records ahead. Every batch is drawn as the plan
        prescribes and may be empty. `progress` draws a bar; by default on a terminal.
        """
        self._check_resumed()
        check_count(0, n_workers=n_workers)
        source = Source(dataset, collate_fn)
        source.check(self.plan.sampling.n_records)
        example = self._prepare(source)
        if self._n_left:
            self._processes.from_first(lambda: self._check_isolation(source, example))
            self._processes.from_first(self._charge)
        batches = self._draw_batches(source, n_workers)
        show_bar = sys.stderr.isatty() if progress is None else progress
        if show_bar and self._processes.is_first:
            batches = self._with_bar(batches)
        return Batches(batches, lambda: self._n_left)

    def _charge(self) -> None:
        """Charge the part of a budget that the run trains, if it is of one."""
        if self._budgeted is not None and self._ledger is not None:
            charge_run(
                self._budgeted,
                self.name,
                ledger=self._ledger,
                n_parameters=self._layout.n_parameters,
                folder=self._folder,
                spent_marks=self._spent_marks,
            )

    def step(self, batch: Batch) -> StepReport:
        """Take the plan's next step: clipped sum, noise, division, optimizer, scheduler.

        If it raises before the noise is drawn, nothing was done and the step can be repeated. The
        last step ends the run: with a folder it writes the final checkpoint. If that fails (a full
        disk), the step counts all the same, and `save` ends the run.
        """
        started = time.perf_counter()
        self._check_step(batch)
        if not self._sums.is_prepared:
            self._prepare(batch.source)
        grid = sum_grid(self.plan, self._n_taken, self._layout.sizes)
        seed_of = partial(self._seed, batch.step, 1)
        sums = self._sums.of(batch, grid, self._block, seed_of)
        self._run.add_noise(batch.step, sums.integers)
        # Post-processing: divide by a public constant, and step optimizer and scheduler.
        self._layout.set_gradients(sums.integers, grid.steps / self.plan.divisor)
        with one_thread():
            self._learner.optimizer.step()
            self._learner.optimizer.zero_grad(set_to_none=True)
            if self._learner.scheduler is not None:
                self._learner.scheduler.step()
        self._n_taken += 1
        if self._n_taken == self.plan.n_steps:
            self._end()
        report = self.last_report = StepReport(
            step=self._n_taken,
            n_examples=len(batch.indices),
            mean_loss=sums.mean_loss,
            n_non_finite=sums.n_non_finite,
            seconds=time.perf_counter() - started,
        )
        if self._on_step is not None:
            self._on_step(report)
        return report

    def spent(self) -> Claim:
        """What the steps so far cost.

        This is not a claim about a run that may continue, or that stops when the data suggest it:
        such a run costs what `certificate` states.
        """
        return self._plan_so_far().guarantee()

    def spent_epsilon(self, delta: float) -> float:
        """Epsilon of the steps so far for the declared secret, as (epsilon, delta).

        As with `spent`, this is not a claim about a run that may continue.
        """
        return self._epsilon(secret_epsilon, delta)

    def record_epsilon(self, delta: float) -> float:
        """Epsilon of the steps so far for one record: (epsilon, delta)-differential privacy.

        For the replacement of any one record, under the conditions that the certificate states. As
        with `spent`, this is not a claim about a run that may continue.
        """
        return self._epsilon(record_epsilon, delta)

    def _epsilon(self, epsilon_of: Callable[..., float], delta: float) -> float:
        plan = self._plan_so_far()
        distance = implementation_delta(plan, self._layout.n_parameters)
        return epsilon_of([plan], delta=delta, implementation_delta=distance)

    def _plan_so_far(self) -> TrainingPlan:
        if not self._n_taken:
            raise TrainingError("no step has been taken, so nothing has been spent yet")
        multipliers = self.plan.noise_multipliers[: self._n_taken]
        return attrs.evolve(self.plan, noise_multipliers=multipliers)

    @property
    def signal_to_noise(self) -> SignalToNoise:
        """The largest possible signal of the gradients over the noise; public."""
        return signal_to_noise(self.plan, self._layout.sizes)

    def certificate(
        self,
        *,
        data: str | None = None,
        deltas: Sequence[float] = DEFAULT_DELTAS,
        limits: Sequence[str] = (),
    ) -> Certificate:
        """The certificate of the run: the plan's full cost, however many steps were taken.

        `data` is a public name of the dataset; without it, one that no other run has. `limits` are
        codes of further limits.
        Under a budget it is that of the budget, for all its outputs together.
        """
        return self._certify(self.plan, _NOISE, data=data, deltas=deltas, limits=limits)

    def stop(
        self,
        *,
        independent_of_data: bool,
        data: str | None = None,
        deltas: Sequence[float] = DEFAULT_DELTAS,
    ) -> Certificate:
        """End the run now and certify the steps taken; the certificate states the assumption.

        Needs: the choice to stop does not depend on the data in any way, losses included. You
        declare this with `independent_of_data=True`. Otherwise use `certificate`.
        """
        if independent_of_data is not True:
            raise ArgumentError(
                "independent_of_data must be True: the cost of fewer steps holds only if the "
                "choice to stop did not depend on the data. If it did, use certificate()"
            )
        self._check_resumed()
        if not self._n_taken or self.is_finished:
            raise TrainingError(
                "there is nothing to stop: the run has taken no step, or has already ended"
            )
        self._end()
        noise = (
            f"{_NOISE} The run was stopped after {self._n_taken} of {self.plan.n_steps} planned "
            "steps. The claim holds only if that choice did not depend on the data, not even on "
            "losses or metrics of private data. Whoever stopped it declared so, and it cannot be "
            "checked."
        )
        return self._certify(self._plan_so_far(), noise, data=data, deltas=deltas)

    def _certify(
        self,
        plan: TrainingPlan,
        noise: str,
        *,
        data: str | None,
        deltas: Sequence[float],
        limits: Sequence[str] = (),
    ) -> Certificate:
        if self._budgeted is not None:
            return self._budgeted.certificate
        return certify_training(
            plan,
            data=f"the data of run {self.name}" if data is None else data,
            noise=noise,
            deltas=deltas,
            implementation_delta=implementation_delta(plan, self._layout.n_parameters),
            limits=(*ISOLATED, *limits),
        )

    def close(self) -> None:
        """End the run now, and destroy its key; `certificate` states the plan's full cost."""
        if not self.is_finished:
            self._end()

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write a checkpoint to `checkpoint.pt` in the folder, or to `path`, completely or not.

        It holds model, optimizer, scheduler and step, never the key. The first process writes it;
        in the others the call does nothing.
        """
        self._check_resumed()
        if self.is_finished:
            raise TrainingError(
                "the run is over: keep the model itself, by torch.save(model.state_dict(), ...)"
            )
        self._run.write(self._checkpoint(), path)
        if self._n_taken == self.plan.n_steps:
            self._run.forget(self._n_taken)

    def resume(self, path: str | os.PathLike[str] | None = None) -> None:
        """Restore model, optimizer, scheduler and step from a checkpoint.

        On the same machine the run ends with the weights of an uninterrupted one, bit for bit, with
        any number of processes, which must all call this. Only the latest checkpoint of the run is
        accepted: to train from an older one, start a new run in another folder; two runs over the
        same data show what `certify_training` of both plans states. A finished run can be loaded,
        but takes no more steps.
        """
        checkpoint = self._run.resume(
            path, partial(self._learner.check_fits, plan=self._original_plan)
        )
        self._learner.restore(checkpoint)
        self._n_taken, self._needs_resume = checkpoint.step, False
        if self._original_plan.block is None:
            self._plan = attrs.evolve(self._original_plan, block=checkpoint.block)
        self._drawn_batches = weakref.WeakSet()
        if self._n_taken == self.plan.n_steps:
            self._run.forget(self._n_taken)

    @property
    def _n_left(self) -> int:
        return 0 if self.is_finished else self.plan.n_steps - self._n_taken

    def _draw_batches(self, source: Source, n_workers: int) -> Generator[Batch]:
        """Draw batch after batch; workers fetch the blocks of coming batches meanwhile."""
        ahead: Iterator[Examples] | None = None
        if n_workers:
            coming = (self._batch(source, step) for step in range(self._n_taken, self.plan.n_steps))
            blocks = (block for batch in coming for block in self._blocks_here(batch))
            ahead = fetched_ahead(source, blocks, n_workers)
        while self._n_left:
            batch = self._batch(source, self._n_taken)
            if ahead is not None:
                fetched = {block.number: next(ahead) for block in self._blocks_here(batch)}
                batch = attrs.evolve(batch, fetched=fetched)
            self._drawn_batches.add(batch)
            yield batch
            if self._n_left and batch in self._drawn_batches and self._n_taken == batch.step:
                raise TrainingError(
                    f"the batch of step {batch.step} was not trained on. Give every batch to "
                    "trainer.step, also an empty one: the plan's cost is that of all its draws. To "
                    "accumulate gradients over several batches, plan with a larger rate instead: "
                    "a batch of any size is computed in blocks that fit into memory"
                )

    def _blocks_here(self, batch: Batch) -> list[Block]:
        """The blocks of a batch that this process computes."""
        groups = batch.groups()
        here = self._processes.own_parts(len(groups))
        return [batch.blocks[number] for i in here for number in groups[i]]

    def _with_bar(self, batches: Iterator[Batch]) -> Generator[Batch]:
        counts = (BarColumn(), MofNCompleteColumn())
        columns = (*counts, TextColumn("{task.fields[last]}"), TimeRemainingColumn())
        with Progress("training", *columns, console=Console(stderr=True)) as bar:
            bar.console.print(str(self.signal_to_noise))
            n_steps = self.plan.n_steps
            steps = bar.add_task("training", total=n_steps, completed=self._n_taken, last="")
            for batch in batches:
                yield batch
                if (report := self.last_report) is not None:
                    last = f"loss {report.mean_loss:.3f}  {1_000 * report.seconds:.0f} ms/step"
                    bar.update(steps, completed=self._n_taken, last=last)

    def _batch(self, source: Source, step: int) -> Batch:
        indices = self._run.draw(step)
        blocks = blocks_of(indices, self._block, partial(self._seed, step, 0))
        return Batch(step=step, indices=indices, source=source, blocks=blocks)

    def _seed(self, step: int, use: int, number: int) -> int:
        """A seed of a block: `use` is 0 for draws of the dataset and 1 for draws of the model."""
        return self._run.seed(step, 2 * number + use)

    def _check_isolation(self, source: Source, example: Examples) -> None:
        """Raise if a few records, fetched and run, change what the model gives for others."""
        shown = made_up(example, 2)
        known = self._sums.outcome(shown)
        records = checked_records(source, self.plan.sampling.n_records)
        if known is None:  # the model does not run on made-up examples
            shown, records = rows_of(records, 0, 1), rows_of(records, 1, None)
            known = self._sums.outcome(shown)
        self._sums.outcome(records)
        self._sums.check_outcome(shown, known)

    def _prepare(self, source: Source) -> Examples:
        """Choose how examples are run and, unless the plan states it, how many per block.

        Returns the first record.
        """
        example = source.first()
        self._sums.prepare(example)
        if self.plan.block is None:
            sampling = self.plan.sampling
            spread = sampling.divisor**0.5 if sampling.name == "poisson" else 0.0
            block = self._sums.chosen_block(example, sampling.divisor, spread)
            chosen = attrs.evolve(self._original_plan, block=min(block, _LARGEST_BLOCK))
            self._check_grid(chosen)
            self._plan = chosen
        return example

    def _check_grid(self, plan: TrainingPlan) -> None:
        for step in (plan.noise_multipliers.argmin(), plan.noise_multipliers.argmax()):
            check_radii(sum_grid(plan, int(step), self._layout.sizes))

    def _check_resumed(self) -> None:
        if self._needs_resume:
            raise TrainingError(
                "the folder already holds a run: call trainer.resume() first, or use another "
                "folder for a new run"
            )

    def _check_step(self, batch: Batch) -> None:
        """Raise unless this is the plan's next step, on its batch, in the accounted precision."""
        self._check_resumed()
        if not self._n_left:
            raise TrainingError(
                f"the run is over after {self._n_taken} of {self.plan.n_steps} planned steps; a "
                "longer run needs a longer plan from its start"
            )
        if not is_a(batch, Batch) or batch not in self._drawn_batches:
            raise ArgumentError(
                "step takes a batch of trainer.batches(dataset), which is drawn as the plan "
                f"prescribes; got a {type(batch).__name__} from elsewhere"
            )
        if batch.step != self._n_taken:
            raise TrainingError(
                f"the batch is of step {batch.step} and the next step is {self._n_taken}; use each "
                "batch once, in order"
            )
        batch.source.check(self.plan.sampling.n_records)
        model_checks.check_unchanged(self._learner.model, self._layout)
        model_checks.check_optimizer(self._learner.optimizer, self._layout)
        model_checks.check_precision(self._layout)

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(
            run=self._run.name,
            plan=plan_digest(self._original_plan),
            step=self._n_taken,
            block=self.plan.block,
            states=self._learner.states,
            names=self._learner.names,
            kinds=self._learner.kinds,
        )

    def _end(self) -> None:
        self._run.end(self._checkpoint())
