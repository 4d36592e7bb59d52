# SPDX-License-Identifier: Apache-2.0
"""An Opacus loop under a training plan: settings from the plan, checks, and an accountant.

Opacus adds noise of standard deviation `noise_multiplier * max_grad_norm` to the *sum* of the
clipped per-example gradients. A plan does the same, so its multiplier is passed to `make_private`
unchanged. Learning rate, momentum, weight decay and the divisor come after the noise and cost
nothing.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, final

import attrs

from pufferslice.calibration.guarantee import Guarantee
from pufferslice.certificate import Certificate, certify_training, secret_epsilon
from pufferslice.errors import ArgumentError, MissingExtraError
from pufferslice.learning import FlatClipping, Poisson, TrainingPlan
from pufferslice.torch.model_checks import layer_problems

try:
    import torch
    from opacus import grad_sample
    from opacus.accountants import IAccountant
    from opacus.optimizers import DPOptimizer
    from opacus.utils.batch_memory_manager import BatchSplittingSampler
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler
    from torch import nn
    from torch.utils.data import DataLoader, IterableDataset
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "the bridge to Opacus needs torch and opacus; install them with: "
        "pip install 'pufferslice[opacus]'"
    ) from error

Loader: TypeAlias = DataLoader[Any]

UNIFORM_GRID: Final = 2.0**-24
"""Spacing of the uniform numbers that the Opacus sampler compares with its rate."""

_MODULES: Final = (
    grad_sample.GradSampleModule,
    grad_sample.GradSampleModuleExpandedWeights,
    # What `wrap_model=False` returns; new in Opacus 1.6.
    getattr(grad_sample, "GradSampleHooks", grad_sample.GradSampleModule),
)
_STATE: Final = ("mechanism", "plan", "n_steps")

_NOISE: Final = {
    True: (
        "The noise was drawn by Opacus in floating point from a cryptographic generator "
        "(secure_mode): the claim holds for ideal real-valued Gaussian noise, and what rounding "
        "reveals is made hard to use but not bounded."
    ),
    False: (
        "The noise was drawn by Opacus in floating point from a generator that is not "
        "cryptographic (no secure_mode): the claim holds for ideal real-valued Gaussian noise, "
        "against an adversary who cannot predict the generator."
    ),
}
_NOT_ISOLATED: Final = (
    "Opacus runs the examples of a batch together: that none of them reaches the gradient of "
    "another rests on the code of the model and of the loss, which was not checked beyond the "
    "types of the layers."
)


class _Run(NamedTuple):
    """What `make_private` returned."""

    module: Any
    optimizer: DPOptimizer
    data_loader: Loader

    @property
    def sampler(self) -> Any:  # Opacus ships no types
        sampler = self.data_loader.batch_sampler
        return sampler.sampler if isinstance(sampler, BatchSplittingSampler) else sampler


def opacus_sampling(data_loader: Loader) -> Poisson:
    """The Poisson sampling that `make_private` derives from this data loader.

    Opacus draws each record with probability 1 / len(data_loader), which is not batch size over
    records, by comparing it with a uniform number of 24 bits. The returned rate is the largest that
    can result: up to 6e-8 above 1 / len(data_loader), never below.
    """
    if isinstance(data_loader.dataset, IterableDataset):
        raise ArgumentError(
            "data_loader must read a dataset with a length; Opacus cannot draw from an iterable"
        )
    return Poisson(n_records=_n_records(data_loader), rate=_largest_rate(1 / len(data_loader)))


@final
class PlanAccountant(IAccountant):  # type: ignore[misc]  # Opacus ships no types
    """Checks every step of an Opacus run against its plan, and gives the plan's guarantee.

    Set it as `engine.accountant` before `make_private`, and `watch` what `make_private` returned.
    From then on Opacus calls it in every step, after the noise is drawn and before the model
    changes. A step that differs from the plan raises: the model keeps its parameters, and nothing
    is counted.

    Guarantee: `guarantee()` holds for the parameters after every counted step, all together, and
    for ideal real-valued Gaussian noise only: Opacus draws in floating point.
    Needs: the loop takes its batches from the watched data loader and its gradients from the
    watched module, with a loss that is reduced as in `loss_reduction`, and takes one step per
    batch, empty ones included. The model and the loss compute each example from that example
    alone. None of this can be checked. And the hypotheses of the plan.
    """

    def __init__(self, plan: TrainingPlan) -> None:
        super().__init__()
        if not isinstance(plan.sampling, Poisson):
            raise ArgumentError(
                f"the plan's sampling is {plan.sampling.name!r}, and Opacus supports Poisson "
                "sampling only; make the plan with opacus_sampling(data_loader)"
            )
        if not isinstance(plan.clipping, FlatClipping):
            raise ArgumentError(
                f"the plan's clipping is {plan.clipping.kind!r}, and the bridge to Opacus supports "
                "flat clipping only; give the plan one clip norm"
            )
        self._plan: Final = plan
        self._rate: Final = plan.sampling.rate
        self._n_taken = 0
        self._run: _Run | None = None

    @property
    def plan(self) -> TrainingPlan:
        """The plan that the run must follow."""
        return self._plan

    @property
    def noise_multiplier(self) -> float:
        """That of the plan's next step, for `make_private`.

        If the plan changes its noise, set `optimizer.noise_multiplier` to it before each step;
        other values are refused.
        """
        if self._n_taken >= self.plan.n_steps:
            raise ArgumentError(
                f"the plan has {self.plan.n_steps} steps, so there is no step {self._n_taken + 1}; "
                "a longer run needs a longer plan from its start"
            )
        return float(self.plan.noise_multipliers[self._n_taken])

    def watch(self, *, module: Any, optimizer: DPOptimizer, data_loader: Loader) -> None:
        """Check the run now and at every step; call it again if the objects change.

        `module` is the wrapped one, or its hooks (`wrap_model=False`). With `BatchMemoryManager`
        the data loader is the one that the manager returns.
        """
        run = _Run(module, optimizer, data_loader)
        self._check(run)
        if optimizer.step_hook != self._before_update:
            raise ArgumentError(
                "the optimizer does not report its steps to this accountant; set "
                "engine.accountant to it before make_private"
            )
        self._run = run

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step of the watched run if it is the plan's next; Opacus does this itself."""
        self._watched()
        number = self._n_taken + 1
        if noise_multiplier != self.noise_multiplier:
            raise ArgumentError(
                f"step {number} has noise_multiplier {noise_multiplier!r}, the plan has "
                f"{self.noise_multiplier!r}; set it to the plan's before the step"
            )
        if not self._is_planned_rate(sample_rate):
            raise ArgumentError(
                f"step {number} draws at rate {sample_rate!r}, the plan at {self._rate!r}; make "
                "one step per batch"
            )
        self._n_taken = number

    def guarantee(self) -> Guarantee:
        """The guarantee of the run: the plan's, also if it stops early."""
        self._check_started()
        return self.plan.guarantee()

    def _check_started(self) -> None:
        if not self._n_taken:
            raise ArgumentError(
                "no step has been counted, so there is nothing to guarantee yet; train first"
            )

    def certificate(self, *, data: str) -> Certificate:
        """The certificate of the watched run: the plan's cost.

        It also states how the noise was drawn, and that only the code of the model separates the
        examples of a batch.
        """
        self._check_started()
        optimizer = self._watched().optimizer
        is_secure = bool(optimizer.secure_mode and optimizer.generator is not None)
        return certify_training(self.plan, data=data, noise=f"{_NOISE[is_secure]} {_NOT_ISOLATED}")

    def get_epsilon(self, delta: float) -> float:
        """The steps so far as (epsilon, delta), by the best of a grid of orders.

        It bounds how well the two worlds of the plan can be distinguished. It is not the epsilon of
        differential privacy, which is about one record.
        """
        taken = self.plan.noise_multipliers[: max(1, self._n_taken)]
        plan = attrs.evolve(self.plan, noise_multipliers=taken)
        epsilon = secret_epsilon([plan], delta=delta, implementation_delta=0.0)
        return epsilon if self._n_taken else 0.0

    def __len__(self) -> int:
        """Number of steps taken."""
        return self._n_taken

    @classmethod
    def mechanism(cls) -> str:
        """The name under which the state of this accountant is stored."""
        return "pufferslice"

    def get_optimizer_hook_fn(
        self,
        sample_rate: float,  # noqa: ARG002 - 1 / len(loader) here, which may not be the true rate
    ) -> Callable[[DPOptimizer], None]:
        """The hook that the optimizer calls between noise and update; used by `make_private`."""
        return self._before_update

    def state_dict(self, destination: Any = None) -> Any:  # as Opacus has it
        """The plan and the number of its steps that were taken, as JSON values."""
        state = {} if destination is None else destination
        values = (self.mechanism(), self.plan.to_json(), self._n_taken)
        state.update(zip(_STATE, values, strict=True))
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state of the same plan; `watch` the new objects before the next step."""
        mechanism, plan, n_taken = (dict(state_dict or {}).get(key) for key in _STATE)
        if mechanism != self.mechanism() or plan != self.plan.to_json():
            raise ArgumentError(
                f"state_dict must be the state of a {self.mechanism()!r} accountant with the same "
                "plan; pass the result of state_dict()"
            )
        if type(n_taken) is not int or not 0 <= n_taken <= self.plan.n_steps:
            raise ArgumentError(
                f"n_steps in state_dict must be a number of steps of the plan, at most "
                f"{self.plan.n_steps}; pass the result of state_dict()"
            )
        self._n_taken, self._run = n_taken, None

    def _watched(self) -> _Run:
        if self._run is None:
            raise ArgumentError(
                "the accountant does not know the run; after make_private call "
                "accountant.watch(module=..., optimizer=..., data_loader=...)"
            )
        return self._run

    def _before_update(self, optimizer: DPOptimizer) -> None:
        run = self._watched()
        if optimizer is not run.optimizer:
            raise ArgumentError(
                "another optimizer than the watched one took a step; a run has one optimizer"
            )
        self._check(run)
        _check_batch(run)
        self.step(
            noise_multiplier=float(optimizer.noise_multiplier),
            sample_rate=float(run.sampler.sample_rate) * optimizer.accumulated_iterations,
        )

    def _check(self, run: _Run) -> None:
        """Raise if the run does not follow the plan at the next step; name the differences."""
        differences = [*self._setting_differences(run)] or [*self._object_differences(run)]
        if differences:
            raise ArgumentError(
                f"this Opacus run does not follow the plan: {'; '.join(differences)}"
            )

    def _is_planned_rate(self, drawn: float) -> bool:
        """Whether the plan has this rate, rounded up to the largest rate of the sampler."""
        return _largest_rate(drawn) <= self._rate <= drawn + 2 * UNIFORM_GRID

    def _setting_differences(self, run: _Run) -> Iterator[str]:
        """Settings that differ from the plan, and objects of other types."""
        optimizer, sampler = run.optimizer, run.sampler
        if type(optimizer) is not DPOptimizer:
            yield (
                f"the optimizer is a {type(optimizer).__name__}; the plan needs flat clipping in "
                "one process (clipping='flat', grad_sample_mode='hooks')"
            )
        planned = {
            "noise_multiplier": self.noise_multiplier,
            "max_grad_norm": self.plan.clipping.norms[0],
        }
        for name, wanted in planned.items():
            value = getattr(optimizer, name, None)
            if value != wanted:
                yield f"{name} is {value!r}, the plan has {wanted!r}"
        if type(sampler) is not UniformWithReplacementSampler:
            yield (
                f"the data loader draws with a {type(sampler).__name__}, not by Poisson sampling "
                "in one process (poisson_sampling=True)"
            )
        if getattr(run.data_loader.collate_fn, "rand_on_empty", False):
            yield "an empty batch is replaced by a made-up record (set rand_on_empty=False)"
        if torch.get_default_dtype() not in {torch.float32, torch.float64}:
            yield (
                f"the default dtype is {torch.get_default_dtype()}, in which the sampler cannot "
                "keep its rate (set torch.float32)"
            )
        if type(run.module) not in _MODULES:
            yield (
                f"the module is a {type(run.module).__name__}, whose clipping cannot be checked "
                "(grad_sample_mode='hooks', 'functorch' or 'ew')"
            )

    def _object_differences(self, run: _Run) -> Iterator[str]:
        """Other differences, of objects of the expected types."""
        optimizer, sampler = run.optimizer, run.sampler
        n_records = _n_records(run.data_loader)
        if not n_records == sampler.num_samples == self.plan.sampling.n_records:
            yield (
                f"the dataset has {n_records} records, of which {sampler.num_samples} can be "
                f"drawn; the plan has {self.plan.sampling.n_records}"
            )
        if not self._is_planned_rate(sampler.sample_rate):
            yield (
                f"records are drawn with probability up to {_largest_rate(sampler.sample_rate)!r}, "
                f"the plan's rate is {self._rate!r} (make it with opacus_sampling)"
            )
        inner: nn.Module = run.module._module  # noqa: SLF001 - there is no public name
        # Opacus accepts such layers if they have no parameters.
        yield from layer_problems(inner)
        if not {*map(id, optimizer.params)} <= {*map(id, inner.parameters())}:
            yield "the optimizer trains parameters that are not the module's"
        reductions = (run.module.loss_reduction, optimizer.loss_reduction)
        if reductions[0] != reductions[1]:
            yield "loss_reduction is {!r} in the module and {!r} in the optimizer".format(
                *reductions
            )
        # The divisor does not change the cost, but must be public.
        divisor = int(sampler.num_samples * (1 / len(sampler)))
        expected = optimizer.expected_batch_size
        if "mean" in reductions and not 0 < divisor == expected:
            yield f"expected_batch_size is {expected!r}; by this loader it is {max(divisor, 1)}"
        # Anyone who knows the seed of a user's generator knows what is drawn.
        if optimizer.secure_mode:
            return
        if optimizer.generator is not None:
            yield "the noise has a separate generator, which can be repeated (drop noise_generator)"
        accountant = self.plan.accountant.name
        if sampler.generator is not None and accountant == "amplified":
            yield (
                f"the data loader has a separate generator, and {accountant!r} needs batches that "
                "nobody can repeat (drop the generator, or plan with log_moment)"
            )


def _check_batch(run: _Run) -> None:
    """Raise unless the noisy gradient is of one batch, and clipping bounded it."""
    is_split = isinstance(run.data_loader.batch_sampler, BatchSplittingSampler)
    if run.optimizer._is_last_step_skipped and not is_split:  # noqa: SLF001 - there is no public name
        raise ArgumentError(
            "batches were accumulated into one step, which then costs more than in the plan; split "
            "batches with BatchMemoryManager and watch the data loader that it returns"
        )
    for parameter in run.optimizer.params:
        if parameter.grad is None or not bool(torch.isfinite(parameter.grad).all()):
            raise ArgumentError(
                "a gradient is not finite, so clipping did not bound the effect of a record; the "
                "step was not taken. Use a loss and inputs whose gradients are always finite"
            )


def _n_records(data_loader: Loader) -> int:
    return len(data_loader.dataset)  # type: ignore[arg-type]  # torch declares no length


def _largest_rate(rate: float) -> float:
    """The largest probability of `torch.rand(n) < rate`."""
    return math.ceil(rate / UNIFORM_GRID) * UNIFORM_GRID
