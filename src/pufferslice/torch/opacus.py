# SPDX-License-Identifier: Apache-2.0
"""Whether an Opacus run follows a training plan, and what it needs from the plan to do so.

Opacus adds noise of standard deviation `noise_multiplier * max_grad_norm` to the *sum* of the
clipped per-example gradients. That is the noise space of a plan, so the plan's multiplier goes to
`make_private` unchanged. Learning rate, momentum, weight decay and the divisor come after the
noise and cost nothing.
"""

import math
from collections.abc import Iterator
from typing import Any, Final, TypeAlias, final

import attrs

from pufferslice.checks import check_count
from pufferslice.errors import ArgumentError, MissingExtraError
from pufferslice.sgd import FlatClipping, Poisson, TrainingPlan
from pufferslice.torch.model_checks import layer_problems

try:
    import torch
    from opacus import grad_sample
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
"""Spacing of the uniform numbers that the sampler of Opacus compares with its rate."""

_MODULES: Final = (
    grad_sample.GradSampleModule,
    grad_sample.GradSampleModuleExpandedWeights,
    # What `wrap_model=False` returns; Opacus before 1.6 has no such thing.
    getattr(grad_sample, "GradSampleHooks", grad_sample.GradSampleModule),
)


@final
@attrs.frozen(kw_only=True, repr=False)
class OpacusRun:
    """What `make_private` returned, and what the loop must use."""

    module: Any
    """The wrapped module, or its hooks if it was not wrapped."""
    optimizer: DPOptimizer
    data_loader: Loader

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that the optimizer trains."""
        return list(self.optimizer.params)

    @property
    def rate(self) -> float:
        """The rate that the sampler compares its uniform numbers with."""
        return float(_sampler_of(self.data_loader).sample_rate)


def opacus_sampling(data_loader: Loader) -> Poisson:
    """The Poisson design that `make_private` will make of this data loader.

    Opacus draws each record with probability 1 / len(data_loader), which is not batch size over
    records, by comparing it with a uniform number of 24 bits. The rate returned is the most that
    this can give: up to 6e-8 above 1 / len(data_loader), never below.
    """
    if isinstance(data_loader.dataset, IterableDataset):
        msg = "data_loader must read a dataset with a length; Opacus cannot draw from an iterable"
        raise ArgumentError(msg)
    n_records = len(data_loader.dataset)  # type: ignore[arg-type]  # torch declares no length
    return Poisson(n_records=n_records, rate=_largest_rate(1 / len(data_loader)))


def opacus_noise_multiplier(plan: TrainingPlan) -> float:
    """What to pass to `make_private` as `noise_multiplier`: that of the plan's first step.

    If the plan changes its noise, set `optimizer.noise_multiplier` to
    `plan.noise_multipliers[step]` before each step; a step with another one is refused.
    """
    return planned_multiplier(plan, 0)


def noise_caveat(optimizer: DPOptimizer) -> str:
    """A public sentence on what the noise of an Opacus run is; a certificate should carry it."""
    if optimizer.secure_mode and optimizer.generator is not None:
        return (
            "The noise was drawn by Opacus in floating point from a cryptographic generator "
            "(secure_mode): the claim holds for ideal real-valued Gaussian noise, and what "
            "rounding gives away is made hard to use but not bounded."
        )
    return (
        "The noise was drawn by Opacus in floating point from a generator that is not "
        "cryptographic (no secure_mode): the claim holds for ideal real-valued Gaussian noise, "
        "against an adversary who cannot predict the generator."
    )


def check_opacus(plan: TrainingPlan, run: OpacusRun, *, step: int = 0) -> None:
    """The run follows the plan at this step; if it does not, the error tells every difference.

    Needs: the loop takes its batches from the run's data loader and its gradients from the run's
    module, with a loss that is reduced as `loss_reduction` says, and makes one step per batch,
    empty ones too. This cannot be seen from the objects.
    """
    multiplier = planned_multiplier(plan, step)
    found = [
        *_optimizer_differences(plan, run.optimizer, multiplier),
        *_loader_differences(plan, run.data_loader),
        *_module_differences(run.module),
    ]
    # The rest compares objects with each other, which must be of the right kind for it.
    found = found or [*_pairing_differences(run), *_generator_differences(plan, run)]
    if found:
        msg = f"this Opacus run does not follow the plan: {'; '.join(found)}"
        raise ArgumentError(msg)


def planned_multiplier(plan: TrainingPlan, step: int) -> float:
    """The noise multiplier of a step of a plan that Opacus can follow."""
    _poisson(plan)
    if not isinstance(plan.clipping, FlatClipping):
        msg = (
            f"the plan's clipping is {plan.clipping.kind!r}, and the bridge to Opacus knows flat "
            "clipping only; give the plan one clip norm"
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


def check_step(plan: TrainingPlan, step: int, noise_multiplier: float, rate: float) -> None:
    """A step that was reported has the noise and the sampling rate that the plan has for it."""
    planned = planned_multiplier(plan, step)
    if noise_multiplier != planned:
        msg = (
            f"step {step + 1} has noise_multiplier {noise_multiplier!r}, the plan has {planned!r}; "
            "set it to the plan's before the step"
        )
        raise ArgumentError(msg)
    if not _is_rate_of(plan, rate):
        msg = (
            f"step {step + 1} draws at rate {rate!r}, the plan at {_poisson(plan).rate!r}; "
            "make one step per batch"
        )
        raise ArgumentError(msg)


def check_batch(run: OpacusRun) -> None:
    """The noisy gradient that is about to be used is of one batch, and clipping bounded it."""
    whole = isinstance(run.data_loader.batch_sampler, BatchSplittingSampler)
    if run.optimizer._is_last_step_skipped and not whole:  # noqa: SLF001 - there is no public name
        msg = (
            "batches were accumulated into one step, which then costs more than the plan says; "
            "split batches with BatchMemoryManager and watch the data loader that it gives"
        )
        raise ArgumentError(msg)
    for parameter in run.parameters:
        if parameter.grad is None or not bool(torch.isfinite(parameter.grad).all()):
            msg = (
                "a gradient is not finite, so clipping did not bound what a record can do; the "
                "step was not made. Use a loss and inputs whose gradients are always finite"
            )
            raise ArgumentError(msg)


def _optimizer_differences(
    plan: TrainingPlan, optimizer: DPOptimizer, multiplier: float
) -> Iterator[str]:
    if type(optimizer) is not DPOptimizer:
        yield (
            f"the optimizer is a {type(optimizer).__name__}; the plan needs flat clipping in one "
            "process (clipping='flat', grad_sample_mode='hooks')"
        )
        return
    if optimizer.noise_multiplier != multiplier:
        yield f"noise_multiplier is {optimizer.noise_multiplier!r}, the plan has {multiplier!r}"
    clip_norm = plan.clipping.norms[0]
    if optimizer.max_grad_norm != clip_norm:
        yield f"max_grad_norm is {optimizer.max_grad_norm!r}, the plan clips to {clip_norm!r}"


def _loader_differences(plan: TrainingPlan, data_loader: Loader) -> Iterator[str]:
    sampler = _sampler_of(data_loader)
    if type(sampler) is not UniformWithReplacementSampler:
        yield (
            f"the data loader draws with a {type(sampler).__name__}, not by Poisson sampling in "
            "one process (poisson_sampling=True)"
        )
        return
    n_records = len(data_loader.dataset)  # type: ignore[arg-type]  # torch declares no length
    if not n_records == sampler.num_samples == plan.sampling.n_records:
        yield (
            f"the dataset has {n_records} records of which {sampler.num_samples} are drawn from, "
            f"the plan has {plan.sampling.n_records}"
        )
    if not _is_rate_of(plan, sampler.sample_rate):
        yield (
            f"records are drawn with probability up to {_largest_rate(sampler.sample_rate)!r}, the "
            f"plan's rate is {_poisson(plan).rate!r} (make it with opacus_sampling)"
        )
    if torch.get_default_dtype() not in {torch.float32, torch.float64}:
        yield (
            f"the default dtype is {torch.get_default_dtype()}, in which the sampler cannot keep "
            "its rate (set torch.float32)"
        )
    if getattr(data_loader.collate_fn, "rand_on_empty", False):
        yield "an empty batch is replaced by a made-up record (rand_on_empty=False keeps it empty)"


def _module_differences(module: Any) -> Iterator[str]:  # noqa: ANN401 - see OpacusRun
    if type(module) not in _MODULES:
        yield (
            f"the module is a {type(module).__name__}, whose clipping cannot be checked "
            "(grad_sample_mode='hooks', 'functorch' or 'ew')"
        )
        return
    # Opacus itself lets those layers pass that have no parameters.
    yield from layer_problems(_inner(module))


def _pairing_differences(run: OpacusRun) -> Iterator[str]:
    """What does not belong together: the divisor does not change the cost, but must be public."""
    known = {id(parameter) for parameter in _inner(run.module).parameters()}
    if not all(id(parameter) in known for parameter in run.parameters):
        yield "the optimizer trains parameters that are not the module's"
    reduction = run.optimizer.loss_reduction
    if run.module.loss_reduction != reduction:
        yield (
            f"loss_reduction is {run.module.loss_reduction!r} in the module and {reduction!r} in "
            "the optimizer"
        )
    sampler = _sampler_of(run.data_loader)
    divisor = int(sampler.num_samples * (1 / len(sampler)))
    given = run.optimizer.expected_batch_size
    if reduction == "mean" and not (given == divisor and divisor > 0):
        yield f"expected_batch_size is {given!r}; of this data loader it must be {max(divisor, 1)}"


def _generator_differences(plan: TrainingPlan, run: OpacusRun) -> Iterator[str]:
    """Generators given by the user have seeds, and who knows a seed knows what is drawn."""
    if run.optimizer.secure_mode:
        return
    if run.optimizer.generator is not None:
        yield "the noise has a generator of its own, which can be repeated (drop noise_generator)"
    drawn_from = _sampler_of(run.data_loader).generator
    if drawn_from is not None and plan.accountant.name == "amplified":
        yield (
            "the data loader has a generator of its own, and 'amplified' needs batches that "
            "nobody can repeat (drop the generator, or plan with log_moment)"
        )


def _sampler_of(data_loader: Loader) -> Any:  # noqa: ANN401 - Opacus ships no types
    sampler = data_loader.batch_sampler
    return sampler.sampler if isinstance(sampler, BatchSplittingSampler) else sampler


def _inner(module: Any) -> nn.Module:  # noqa: ANN401 - see OpacusRun
    inner: nn.Module = module._module  # noqa: SLF001 - there is no public name
    return inner


def _poisson(plan: TrainingPlan) -> Poisson:
    if not isinstance(plan.sampling, Poisson):
        msg = (
            f"the plan's sampling is {plan.sampling.name!r}, and Opacus keeps to Poisson sampling "
            "only; make the plan with opacus_sampling(data_loader)"
        )
        raise ArgumentError(msg)
    return plan.sampling


def _largest_rate(rate: float) -> float:
    """The largest probability of `torch.rand(n) < rate`."""
    return math.ceil(rate / UNIFORM_GRID) * UNIFORM_GRID


def _is_rate_of(plan: TrainingPlan, drawn: float) -> bool:
    """Whether the plan has this rate, rounded up to what the sampler gives at most."""
    return _largest_rate(drawn) <= _poisson(plan).rate <= drawn + 2 * UNIFORM_GRID
