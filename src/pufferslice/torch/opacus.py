# SPDX-License-Identifier: Apache-2.0
"""An Opacus loop under a training plan: settings from the plan, checks, and an accountant.

Opacus adds noise of standard deviation `noise_multiplier * max_grad_norm` to the *sum* of the
clipped per-example gradients. A plan does the same, so its multiplier is passed to `make_private`
unchanged. Learning rate, momentum, weight decay and the divisor come after the noise and cost
nothing.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias, final

import attrs

from pufferslice._core.checks import check_count
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.certificate import Certificate, certify_training, secret_epsilon
from pufferslice.errors import ArgumentError, MissingExtraError
from pufferslice.learning import FlatClipping, Poisson, TrainingPlan, run_cost
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
    msg = (
        "the bridge to Opacus needs torch and opacus; install them with: "
        "pip install 'pufferslice[opacus]'"
    )
    raise MissingExtraError(msg) from error

Loader: TypeAlias = DataLoader[Any]

UNIFORM_GRID: Final = 2.0**-24
"""Spacing of the uniform numbers that the Opacus sampler compares with its rate."""

_MODULES: Final = (
    grad_sample.GradSampleModule,
    grad_sample.GradSampleModuleExpandedWeights,
    # What `wrap_model=False` returns; new in Opacus 1.6.
    getattr(grad_sample, "GradSampleHooks", grad_sample.GradSampleModule),
)
_NOT_ISOLATED: Final = (
    "Opacus runs the examples of a batch together: that none of them reaches the gradient of "
    "another rests on the code of the model and of the loss, which was not checked beyond the "
    "types of the layers."
)


@final
@attrs.frozen(kw_only=True, repr=False)
class OpacusRun:
    """The objects that `make_private` returned and the loop must use."""

    module: Any
    """The wrapped module, or its hooks if it was not wrapped."""
    optimizer: DPOptimizer
    data_loader: Loader

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that the optimizer trains."""
        return list(self.optimizer.params)


def opacus_sampling(data_loader: Loader) -> Poisson:
    """The Poisson sampling that `make_private` derives from this data loader.

    Opacus draws each record with probability 1 / len(data_loader), which is not batch size over
    records, by comparing it with a uniform number of 24 bits. The returned rate is the largest that
    can result: up to 6e-8 above 1 / len(data_loader), never below.
    """
    if isinstance(data_loader.dataset, IterableDataset):
        msg = "data_loader must read a dataset with a length; Opacus cannot draw from an iterable"
        raise ArgumentError(msg)
    return Poisson(n_records=_n_records(data_loader), rate=_largest_rate(1 / len(data_loader)))


def opacus_noise_multiplier(plan: TrainingPlan) -> float:
    """The `noise_multiplier` for `make_private`: that of the plan's first step.

    If the plan changes its noise, set `optimizer.noise_multiplier` to
    `plan.noise_multipliers[step]` before each step; other values are refused.
    """
    return _planned_multiplier(plan, 0)


def noise_caveat(optimizer: DPOptimizer) -> str:
    """The assumptions of the claim of an Opacus run, as public sentences for its certificate.

    They state how the noise was drawn, and that only the code of the model separates the examples
    of a batch.
    """
    if optimizer.secure_mode and optimizer.generator is not None:
        noise = (
            "The noise was drawn by Opacus in floating point from a cryptographic generator "
            "(secure_mode): the claim holds for ideal real-valued Gaussian noise, and what "
            "rounding reveals is made hard to use but not bounded."
        )
    else:
        noise = (
            "The noise was drawn by Opacus in floating point from a generator that is not "
            "cryptographic (no secure_mode): the claim holds for ideal real-valued Gaussian noise, "
            "against an adversary who cannot predict the generator."
        )
    return f"{noise} {_NOT_ISOLATED}"


def check_opacus(plan: TrainingPlan, run: OpacusRun, *, step: int = 0) -> None:
    """Check that the run follows the plan at this step; the error names the differences.

    Needs: the loop takes its batches from the run's data loader and its gradients from the run's
    module, with a loss that is reduced as in `loss_reduction`, and takes one step per batch, empty
    ones included. The model and the loss compute each example from that example alone. None of this
    can be checked.
    """
    differences = [*_setting_differences(plan, run, step)] or [*_object_differences(plan, run)]
    if differences:
        msg = f"this Opacus run does not follow the plan: {'; '.join(differences)}"
        raise ArgumentError(msg)


@final
class PlanAccountant(IAccountant):  # type: ignore[misc]  # Opacus ships no types
    """Checks every step of an Opacus run against its plan, and gives the plan's guarantee.

    Set it as `engine.accountant` before `make_private`, and `watch` what `make_private` returned.
    From then on Opacus calls it in every step, after the noise is drawn and before the model
    changes. A step that differs from the plan raises: the model keeps its parameters, and nothing
    is counted.

    Guarantee: `guarantee()` holds for the parameters after every counted step, all together, and
    for ideal real-valued Gaussian noise only: Opacus draws in floating point (`noise_caveat`).
    Needs: what `check_opacus` needs, and the hypotheses of the plan.
    """

    def __init__(self, plan: TrainingPlan) -> None:
        super().__init__()
        opacus_noise_multiplier(plan)
        self.plan: Final = plan
        self.history: list[tuple[float, float, int]] = []
        self._run: OpacusRun | None = None

    def watch(self, run: OpacusRun) -> None:
        """Check the run now and at every step; call it again if the objects change.

        With `BatchMemoryManager` the data loader of the run is the one that the manager returns.
        """
        check_opacus(self.plan, run, step=len(self))
        if run.optimizer.step_hook != self._before_update:
            msg = (
                "the optimizer does not report its steps to this accountant; set "
                "engine.accountant to it before make_private"
            )
            raise ArgumentError(msg)
        self._run = run

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step of the watched run if it is the plan's next; Opacus does this itself."""
        self._watched()
        self._count(noise_multiplier, sample_rate)

    def spent(self) -> float:
        """Cost of a run of exactly the steps so far, at the plan's order.

        The claim of a run that might have continued is the plan's: `guarantee()`.
        """
        plan, taken = self.plan, self.plan.noise_multipliers[: len(self)]
        if not len(taken):
            return 0.0
        return float(run_cost(plan.accountant, plan.order, plan.sampling, plan.differing, taken))

    def guarantee(self) -> Guarantee:
        """The guarantee of the run: the plan's, also if it stops early."""
        if not len(self):
            msg = "no step has been counted, so there is nothing to guarantee yet; train first"
            raise ArgumentError(msg)
        return self.plan.guarantee()

    def certificate(self, *, data: str) -> Certificate:
        """The certificate of the watched run: the plan's cost, and the run's `noise_caveat`."""
        self.guarantee()
        caveat = noise_caveat(self._watched().optimizer)
        return certify_training(self.plan, data=data, noise=caveat)

    def get_epsilon(self, delta: float) -> float:
        """The steps so far as (epsilon, delta), by the best of a grid of orders.

        It bounds how well the two worlds of the plan can be distinguished. It is not the epsilon of
        differential privacy, which is about one record.
        """
        taken = self.plan.noise_multipliers[: max(1, len(self))]
        plan = attrs.evolve(self.plan, noise_multipliers=taken)
        epsilon = secret_epsilon([plan], delta=delta, implementation_delta=0.0)
        return epsilon if len(self) else 0.0

    def __len__(self) -> int:
        """Number of steps taken."""
        return sum(count for _, _, count in self.history)

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

    def state_dict(self, destination: Any = None) -> Any:  # noqa: ANN401 - as Opacus has it
        """The steps so far and their plan, as JSON values."""
        state = OrderedDict() if destination is None else destination
        state["history"] = [list(entry) for entry in self.history]
        state["mechanism"] = self.mechanism()
        state["plan"] = self.plan.to_json()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state of the same plan; `watch` the new objects before the next step."""
        if not state_dict or state_dict.get("mechanism") != self.mechanism():
            msg = (
                f"state_dict is not the state of a {self.mechanism()!r} accountant; pass the "
                "result of state_dict()"
            )
            raise ArgumentError(msg)
        if state_dict.get("plan") != self.plan.to_json():
            msg = "state_dict belongs to another plan; make the accountant with that plan"
            raise ArgumentError(msg)
        try:
            entries = [
                (float(noise), float(rate), range(count))
                for noise, rate, count in state_dict["history"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            msg = (
                "history in state_dict must be a list of (noise multiplier, rate, number of "
                "steps); pass the result of state_dict()"
            )
            raise ArgumentError(msg) from error
        replayed = PlanAccountant(self.plan)
        for noise_multiplier, sample_rate, counted in entries:
            for _ in counted:
                replayed._count(noise_multiplier, sample_rate)
        self.history, self._run = replayed.history, None

    def _watched(self) -> OpacusRun:
        if self._run is None:
            msg = (
                "the accountant does not know the run; after make_private call accountant.watch("
                "OpacusRun(module=..., optimizer=..., data_loader=...))"
            )
            raise ArgumentError(msg)
        return self._run

    def _before_update(self, optimizer: DPOptimizer) -> None:
        run = self._watched()
        if optimizer is not run.optimizer:
            msg = "another optimizer than the watched one took a step; a run has one optimizer"
            raise ArgumentError(msg)
        check_opacus(self.plan, run, step=len(self))
        _check_batch(run)
        rate = float(_sampler_of(run.data_loader).sample_rate)
        self.step(
            noise_multiplier=float(optimizer.noise_multiplier),
            sample_rate=rate * optimizer.accumulated_iterations,
        )

    def _count(self, noise_multiplier: float, sample_rate: float) -> None:
        """Count a step if it has the noise and the sampling rate of the plan's next one."""
        step, plan = len(self), self.plan
        planned = _planned_multiplier(plan, step)
        if noise_multiplier != planned:
            msg = (
                f"step {step + 1} has noise_multiplier {noise_multiplier!r}, the plan has "
                f"{planned!r}; set it to the plan's before the step"
            )
            raise ArgumentError(msg)
        if not _is_rate_of(plan, sample_rate):
            msg = (
                f"step {step + 1} draws at rate {sample_rate!r}, the plan at "
                f"{_poisson(plan).rate!r}; make one step per batch"
            )
            raise ArgumentError(msg)
        is_repeated = self.history and self.history[-1][:2] == (noise_multiplier, sample_rate)
        n_before = self.history.pop()[2] if is_repeated else 0
        self.history.append((noise_multiplier, sample_rate, n_before + 1))


def _setting_differences(plan: TrainingPlan, run: OpacusRun, step: int) -> Iterator[str]:
    """Settings that differ from the plan, and objects of other types."""
    optimizer, sampler = run.optimizer, _sampler_of(run.data_loader)
    if type(optimizer) is not DPOptimizer:
        yield (
            f"the optimizer is a {type(optimizer).__name__}; the plan needs flat clipping in one "
            "process (clipping='flat', grad_sample_mode='hooks')"
        )
    planned = {
        "noise_multiplier": _planned_multiplier(plan, step),
        "max_grad_norm": plan.clipping.norms[0],
    }
    for name, wanted in planned.items():
        value = getattr(optimizer, name, None)
        if value != wanted:
            yield f"{name} is {value!r}, the plan has {wanted!r}"
    if type(sampler) is not UniformWithReplacementSampler:
        yield (
            f"the data loader draws with a {type(sampler).__name__}, not by Poisson sampling in "
            "one process (poisson_sampling=True)"
        )
    if getattr(run.data_loader.collate_fn, "rand_on_empty", False):
        yield "an empty batch is replaced by a made-up record (rand_on_empty=False keeps it empty)"
    if torch.get_default_dtype() not in {torch.float32, torch.float64}:
        yield (
            f"the default dtype is {torch.get_default_dtype()}, in which the sampler cannot keep "
            "its rate (set torch.float32)"
        )
    if type(run.module) not in _MODULES:
        yield (
            f"the module is a {type(run.module).__name__}, whose clipping cannot be checked "
            "(grad_sample_mode='hooks', 'functorch' or 'ew')"
        )


def _object_differences(plan: TrainingPlan, run: OpacusRun) -> Iterator[str]:
    """Other differences, of objects of the expected types."""
    optimizer, sampler = run.optimizer, _sampler_of(run.data_loader)
    n_records = _n_records(run.data_loader)
    if not n_records == sampler.num_samples == plan.sampling.n_records:
        yield (
            f"the dataset has {n_records} records, of which {sampler.num_samples} can be drawn; "
            f"the plan has {plan.sampling.n_records}"
        )
    if not _is_rate_of(plan, sampler.sample_rate):
        yield (
            f"records are drawn with probability up to {_largest_rate(sampler.sample_rate)!r}, the "
            f"plan's rate is {_poisson(plan).rate!r} (make it with opacus_sampling)"
        )
    inner: nn.Module = run.module._module  # noqa: SLF001 - there is no public name
    # Opacus accepts such layers if they have no parameters.
    yield from layer_problems(inner)
    if not {*map(id, run.parameters)} <= {*map(id, inner.parameters())}:
        yield "the optimizer trains parameters that are not the module's"
    reductions = (run.module.loss_reduction, optimizer.loss_reduction)
    if reductions[0] != reductions[1]:
        yield "loss_reduction is {!r} in the module and {!r} in the optimizer".format(*reductions)
    # The divisor does not change the cost, but must be public.
    divisor, expected = int(sampler.num_samples * (1 / len(sampler))), optimizer.expected_batch_size
    if "mean" in reductions and not 0 < divisor == expected:
        yield f"expected_batch_size is {expected!r}; by this data loader it is {max(divisor, 1)}"
    # Anyone who knows the seed of a user's generator knows what is drawn.
    if optimizer.secure_mode:
        return
    if optimizer.generator is not None:
        yield "the noise has a separate generator, which can be repeated (drop noise_generator)"
    if sampler.generator is not None and plan.accountant.name == "amplified":
        yield (
            "the data loader has a separate generator, and 'amplified' needs batches that "
            "nobody can repeat (drop the generator, or plan with log_moment)"
        )


def _planned_multiplier(plan: TrainingPlan, step: int) -> float:
    """The noise multiplier of a step of a plan that Opacus can follow."""
    _poisson(plan)
    if not isinstance(plan.clipping, FlatClipping):
        msg = (
            f"the plan's clipping is {plan.clipping.kind!r}, and the bridge to Opacus supports "
            "flat clipping only; give the plan one clip norm"
        )
        raise ArgumentError(msg)
    check_count(0, step=step)
    if step >= plan.n_steps:
        msg = (
            f"the plan has {plan.n_steps} steps, so there is no step {step + 1}; a longer run "
            "needs a longer plan from its start"
        )
        raise ArgumentError(msg)
    return float(plan.noise_multipliers[step])


def _check_batch(run: OpacusRun) -> None:
    """Raise unless the noisy gradient is of one batch, and clipping bounded it."""
    is_split = isinstance(run.data_loader.batch_sampler, BatchSplittingSampler)
    if run.optimizer._is_last_step_skipped and not is_split:  # noqa: SLF001 - there is no public name
        msg = (
            "batches were accumulated into one step, which then costs more than in the plan; split "
            "batches with BatchMemoryManager and watch the data loader that it returns"
        )
        raise ArgumentError(msg)
    for parameter in run.parameters:
        if parameter.grad is None or not bool(torch.isfinite(parameter.grad).all()):
            msg = (
                "a gradient is not finite, so clipping did not bound the effect of a record; the "
                "step was not taken. Use a loss and inputs whose gradients are always finite"
            )
            raise ArgumentError(msg)


def _sampler_of(data_loader: Loader) -> Any:  # noqa: ANN401 - Opacus ships no types
    sampler = data_loader.batch_sampler
    return sampler.sampler if isinstance(sampler, BatchSplittingSampler) else sampler


def _n_records(data_loader: Loader) -> int:
    return len(data_loader.dataset)  # type: ignore[arg-type]  # torch declares no length


def _poisson(plan: TrainingPlan) -> Poisson:
    if not isinstance(plan.sampling, Poisson):
        msg = (
            f"the plan's sampling is {plan.sampling.name!r}, and Opacus supports Poisson sampling "
            "only; make the plan with opacus_sampling(data_loader)"
        )
        raise ArgumentError(msg)
    return plan.sampling


def _largest_rate(rate: float) -> float:
    """The largest probability of `torch.rand(n) < rate`."""
    return math.ceil(rate / UNIFORM_GRID) * UNIFORM_GRID


def _is_rate_of(plan: TrainingPlan, drawn: float) -> bool:
    """Whether the plan has this rate, rounded up to the largest rate of the sampler."""
    return _largest_rate(drawn) <= _poisson(plan).rate <= drawn + 2 * UNIFORM_GRID
