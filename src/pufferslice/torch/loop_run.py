# SPDX-License-Identifier: Apache-2.0
"""The state of a run whose loop is the user's own: the batch in hand, its passes, its noisy sum."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pufferslice.arrays import Integers
from pufferslice.errors import TrainingError
from pufferslice.noise import draw_integers
from pufferslice.parallel import n_cores
from pufferslice.sgd import TrainingPlan
from pufferslice.sgd.drawing import draw_batch
from pufferslice.sgd.grid import SumGrid
from pufferslice.sgd.run_key import RunKey
from pufferslice.torch import admission
from pufferslice.torch.batches import Batch, Examples, check_dataset
from pufferslice.torch.block_pool import BlockPool, one_thread
from pufferslice.torch.gradients import BlockGradients, BlockSum
from pufferslice.torch.layout import ParameterLayout
from pufferslice.torch.loop_forward import Forward, Hooks, check_inputs, inner_products

LossReduction = Literal["mean", "sum"]


class _Block(NamedTuple):
    number: int
    examples: Examples
    n_examples: int


@final
class LoopRun:
    """What loader, optimizer and hooks of one run have in common."""

    def __init__(
        self,
        model: nn.Module,
        layout: ParameterLayout,
        plan: TrainingPlan,
        reduction: LossReduction,
    ) -> None:
        self.layout: Final = layout
        self.plan: Final = plan
        self._model: Final = model
        self._reduction: Final = reduction
        self._key: Final = RunKey.fresh()
        self.name: Final = self._key.name
        self.n_taken = 0
        self.n_non_finite = 0
        """Examples of the last step whose gradient was NaN or infinite; private."""
        self._batch: Examples | None = None
        self._coming: tuple[Forward, Tensor] | None = None
        self._forward: Forward | None = None
        self._is_prepared = False
        self._is_busy = False
        self._gradients = BlockGradients(
            model, inner_products, layout, block=plan.block, non_finite=plan.non_finite
        )
        self._pool, self._one_by_one = BlockPool(n_cores()), BlockPool(1)
        self._hooks = Hooks(model, self._before_forward, self._after_forward)

    def draw(self, dataset: Any) -> Examples:  # noqa: ANN401 - any map-style dataset
        """The batch of the next step, the same one however often it is asked for."""
        self.check_going_on()
        check_dataset(dataset, self.plan.sampling.n_records)
        indices = draw_batch(self.plan.sampling, self._key.batch_key(self.n_taken))
        device = admission.device_of(self.layout)
        self._batch = tuple(one.to(device) for one in _collated(dataset, indices))
        self._forward = None
        return self._batch

    def noisy_sums(self, grid: SumGrid) -> Integers:
        """The clipped sum of the batch in hand with its noise; from here on the step is taken."""
        self.check_going_on()
        if self._batch is None:
            msg = (
                "no batch was taken from the loader since the last step; a step takes one batch of "
                "the loader that make_private returned"
            )
            raise TrainingError(msg)
        sums = np.zeros(self.layout.n_parameters, dtype=np.int64)
        self.n_non_finite = 0
        if len(self._batch[0]):
            sums += self._clipped_sums(self._checked_forward(), grid)
        noise_key = self._key.noise_key(self.n_taken, sums)
        noisy: Integers = sums + draw_integers(noise_key, len(sums))
        self.n_taken += 1
        self._batch = self._forward = None
        return noisy

    def end(self) -> None:
        """Destroy the key and take the hooks away."""
        self._key.destroy()
        self._hooks.remove()
        self._batch = self._forward = None

    @property
    def is_over(self) -> bool:
        """Whether no step is left."""
        return self._key.is_destroyed or self.n_taken >= self.plan.n_steps

    def check_going_on(self) -> None:
        """There is a step left."""
        if self.is_over:
            msg = (
                f"the run is over after {self.n_taken} of {self.plan.n_steps} planned steps; a "
                "longer run needs a longer plan from its start"
            )
            raise TrainingError(msg)

    def _before_forward(self, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self._is_busy:
            return
        self._coming = None
        if not torch.is_grad_enabled() or self._batch is None or not len(self._batch[0]):
            return
        if self._forward is not None:
            msg = (
                "the model was run twice on one batch; a step has one forward pass. Evaluate "
                "under torch.no_grad(), and take the step before the next batch"
            )
            raise TrainingError(msg)
        check_inputs(args, named, self._batch)
        admission.check_unchanged(self._model, self.layout)
        admission.check_precision(self.layout)
        forward = Forward(tuple(one.detach().clone() for one in args))
        self._coming = forward, torch.get_rng_state()

    def _after_forward(self, outputs: Any) -> Any:  # noqa: ANN401 - whatever the model gives
        if self._is_busy or self._coming is None:
            return None
        (forward, state), self._coming = self._coming, None
        forward.is_random = not torch.equal(state, torch.get_rng_state())
        if forward.is_random:
            outputs = self._seeded_outputs(forward.inputs)
        shown = forward.cut(outputs)
        self._forward = forward
        return shown

    def _seeded_outputs(self, inputs: Examples) -> Any:  # noqa: ANN401 - as above
        """The outputs with the random numbers that the step will use too."""
        found = []
        state = torch.get_rng_state()
        self._is_busy = True
        try:
            with torch.no_grad(), one_thread():
                for block in self._blocks(inputs):
                    torch.default_generator.manual_seed(self._seed(block.number))
                    # copies: the step needs the inputs as they were
                    outputs = self._model(*(one.clone() for one in block.examples))
                    found.append(_first_rows(outputs, block.n_examples))
        finally:
            self._is_busy = False
            torch.set_rng_state(state)
        return _joined(found)

    def _checked_forward(self) -> Forward:
        """The batch went through the model and back once, and nothing else reached a parameter."""
        if self._forward is None or not self._forward.came_back:
            missing = "forward" if self._forward is None else "backward"
            msg = (
                f"the batch of this step had no {missing} pass; run the model on it and call "
                "backward on the loss before optimizer.step()"
            )
            raise TrainingError(msg)
        for name, parameter in zip(self.layout.names, self.layout.parameters, strict=True):
            if parameter.grad is not None:
                msg = (
                    f"parameter {name!r} has a gradient that did not come through the outputs of "
                    "the model, so it cannot be clipped. Call optimizer.zero_grad() before each "
                    "backward pass, compute the loss from the outputs of the whole model, and use "
                    "weight_decay of the optimizer instead of a penalty"
                )
                raise TrainingError(msg)
        return self._forward

    def _clipped_sums(self, forward: Forward, grid: SumGrid) -> Integers:
        # the model runs again now, and may not be as it was in the loop
        admission.check_unchanged(self._model, self.layout)
        admission.check_precision(self.layout)
        n_examples = len(forward.inputs[0])
        factor = n_examples if self._reduction == "mean" else 1
        examples = (*forward.inputs, forward.output_gradients(factor))
        state = torch.get_rng_state()
        self._is_busy = True
        try:
            with torch.enable_grad():
                self._prepare(examples, is_random=forward.is_random)
                return self._summed(examples, grid)
        finally:
            self._is_busy = False
            torch.set_rng_state(state)

    def _prepare(self, examples: Examples, *, is_random: bool) -> None:
        """Choose how gradients are taken; a single example is not enough to choose for good."""
        gradients, n_examples = self._gradients, len(examples[0])
        is_known = self._is_prepared and gradients.is_prepared
        if not is_known or gradients.draws_randomness != is_random:
            with one_thread():
                gradients.prepare(
                    next(self._blocks(examples)).examples, min(n_examples, self.plan.block)
                )
            self._is_prepared = n_examples > 1
        if gradients.reckons_with_batch:
            msg = (
                "the model mixes examples: what it gives for a batch is not what it gives for each "
                "example alone, so your loss saw other outputs than the step uses; train it with "
                "Trainer, which runs each example alone"
            )
            raise TrainingError(msg)
        if gradients.path != "per_example" and is_random:
            msg = (
                "the model draws random numbers, and its gradients can be taken only example by "
                "example, which would draw others than the loss was computed with; train it with "
                "Trainer"
            )
            raise TrainingError(msg)

    def _summed(self, examples: Examples, grid: SumGrid) -> Integers:
        def block_sum(block: _Block) -> BlockSum:
            seed = self._seed(block.number)
            return self._gradients.block_sum(block.examples, block.n_examples, grid, seed)

        pool = self._one_by_one if self._gradients.run_alone else self._pool
        sums = np.zeros(self.layout.n_parameters, dtype=np.int64)
        left_out = 0
        each = closing(pool.each(block_sum, self._blocks(examples)))
        with each as results:
            for result in results:
                sums += result.integers
                left_out += result.n_non_finite
        self.n_non_finite = left_out
        return sums

    def _blocks(self, examples: Examples) -> Iterator[_Block]:
        """The examples in blocks of the plan; in the place of missing ones stands the first."""
        size = int(self.plan.block)
        for number, start in enumerate(range(0, len(examples[0]), size)):
            rows = tuple(one[start : start + size] for one in examples)
            short = size - len(rows[0])
            filled = tuple(
                torch.cat([one, one[:1].expand(short, *one.shape[1:])]) if short else one
                for one in rows
            )
            yield _Block(number, filled, size - short)

    def _seed(self, number: int) -> int:
        return self._key.block_seed(self.n_taken, number)


def _collated(dataset: Any, indices: Integers) -> Examples:  # noqa: ANN401 - as in `draw`
    """The examples of a batch; of an empty one their shapes, read off the first record."""
    read = indices if len(indices) else np.zeros(1, dtype=np.int64)
    batch = Batch(step=0, indices=read, dataset=dataset, block_size=len(read))
    examples, _ = batch.block(0)
    return tuple(one[: len(indices)] for one in examples)


def _first_rows(outputs: Any, n_examples: int) -> Any:  # noqa: ANN401 - whatever the model gives
    return pytree.tree_map_only(Tensor, lambda one: one[:n_examples], outputs)


def _joined(outputs: list[Any]) -> Any:  # noqa: ANN401 - as above
    """The outputs of several blocks as those of one."""

    def joined(*parts: Any) -> Any:  # noqa: ANN401 - as above
        return torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0]

    return pytree.tree_map(joined, *outputs)
