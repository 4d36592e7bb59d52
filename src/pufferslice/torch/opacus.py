# SPDX-License-Identifier: Apache-2.0
"""An existing Opacus loop, accounted for by a training plan.

Opacus adds noise of standard deviation `noise_multiplier * max_grad_norm` to the *sum* of the
clipped per-example gradients. That is the noise space of a plan, so the multiplier of the plan goes
to `make_private` unchanged. Learning rate, momentum, weight decay and the divisor come after the
noise and cost nothing.

What the claim does not cover: Opacus draws its noise in floating point, not as the integer noise
that this library adds itself. The claim is about ideal real-valued Gaussian noise, and without
`secure_mode` the generator behind it is not cryptographic either (`noise_caveat`).
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias, final

import attrs

from pufferslice.checks import check_between, check_count
from pufferslice.errors import ArgumentError, MissingExtraError
from pufferslice.guarantee import Guarantee
from pufferslice.sgd.clipping import FlatClipping
from pufferslice.sgd.plan import TrainingPlan
from pufferslice.sgd.sampling import Poisson
from pufferslice.views import ORDERS, improved_epsilon_joint

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
"""Spacing of the uniform numbers that the sampler of Opacus compares with its rate."""

_MODULES: Final = (
    grad_sample.GradSampleModule,
    grad_sample.GradSampleModuleExpandedWeights,
    # What `wrap_model=False` returns, since Opacus 1.6.
    getattr(grad_sample, "GradSampleHooks", grad_sample.GradSampleModule),
)
_BATCH_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS: Final = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def opacus_sampling(data_loader: Loader) -> Poisson:
    """The Poisson design that `make_private` will draw from this data loader.

    Opacus draws each record with probability 1 / len(data_loader), whatever the batch size, by
    comparing it with a uniform number of 24 bits. The rate returned is the probability that this
    gives at most: up to 6e-8 above 1 / len(data_loader), never below.
    """
    if isinstance(data_loader.dataset, IterableDataset):
        msg = "data_loader must read a dataset with a length; Opacus cannot draw from an iterable"
        raise ArgumentError(msg)
    n_records = len(data_loader.dataset)  # type: ignore[arg-type] # torch leaves out __len__
    return Poisson(n_records=n_records, rate=_largest_rate(1 / len(data_loader)))


def opacus_noise_multiplier(plan: TrainingPlan) -> float:
    """What to pass to `make_private` as `noise_multiplier`: the plan's own, of the first step.

    If the plan changes its noise, set `optimizer.noise_multiplier` to
    `plan.noise_multipliers[step]` before each later step; a step with another one is refused.
    """
    _check_plan(plan)
    return float(plan.noise_multipliers[0])


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
        "and against an adversary who cannot predict the generator."
    )


def check_opacus(
    plan: TrainingPlan, *, module: Any, optimizer: DPOptimizer, data_loader: Loader, step: int = 0
) -> None:
    """What `make_private` returned follows the plan at this step; if not, all differences are told.

    Needs: the loop takes its batches from `data_loader` and its gradients from `module`, with a
    loss that is reduced as `loss_reduction` says. This cannot be seen from the objects.
    """
    multiplier = _planned_multiplier(plan, step)
    found = [
        *_optimizer_differences(plan, optimizer, multiplier),
        *_loader_differences(plan, data_loader),
        *_module_differences(module),
    ]
    # The rest compares objects with each other, and these must be of the right kind for it.
    found = found or [
        *_pairing_differences(module, optimizer, data_loader),
        *_generator_differences(plan, optimizer, data_loader),
    ]
    if found:
        msg = f"this Opacus run does not follow the plan: {'; '.join(found)}"
        raise ArgumentError(msg)


@final
@attrs.frozen
class _Run:
    """What `make_private` returned."""

    module: Any
    optimizer: DPOptimizer
    data_loader: Loader


@final
class PlanAccountant(IAccountant):  # type: ignore[misc] # Opacus ships no types
    """An accountant for Opacus that holds a run to its plan and gives the plan's guarantee.

    Set it as `engine.accountant` before `make_private`, and call `watch` with what `make_private`
    returned. From then on every step is compared with the plan after its noise is drawn and before
    the model is changed; a step that differs raises, changes nothing and is not counted.

    Guarantee: `guarantee()` holds for the parameters after all counted steps, together, for ideal
    Gaussian noise (`noise_caveat`).
    Needs: what `check_opacus` needs, and the hypotheses of the plan.
    """

    def __init__(self, plan: TrainingPlan) -> None:
        super().__init__()
        _check_plan(plan)
        self.plan: Final = plan
        self._n_taken = 0
        self._run: _Run | None = None

    def watch(self, *, module: Any, optimizer: DPOptimizer, data_loader: Loader) -> None:  # noqa: ANN401 - a module or, unwrapped, its hooks
        """Check the run now, and again at every step.

        With `BatchMemoryManager`, watch the data loader that it gives.
        """
        run = _Run(module, optimizer, data_loader)
        self._check(run)
        if optimizer.step_hook != self._before_update:
            msg = (
                "the optimizer does not report its steps to this accountant; set "
                "engine.accountant to it before make_private"
            )
            raise ArgumentError(msg)
        self._run = run

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step of the watched run if the plan has it next; Opacus calls this."""
        self._watched()
        _check_step(self.plan, len(self), noise_multiplier, sample_rate)
        last = self.history[-1] if self.history else None
        if last and last[:2] == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, last[2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))
        self._n_taken += 1

    def spent(self) -> float:
        """Cost of the steps so far at the plan's order; what a run claims is `guarantee()`.

        >>> # a run may stop early because of this number or of released models, not of the data
        """
        return self._cost(self.plan.order)

    def guarantee(self) -> Guarantee:
        """What the run promises: the plan's guarantee, also if it stopped early."""
        if not len(self):
            msg = "no step of the run has been counted, so there is nothing to guarantee yet"
            raise ArgumentError(msg)
        return self.plan.guarantee()

    def get_epsilon(self, delta: float) -> float:
        """Epsilon of the (epsilon, delta) view of the steps so far: the best over a grid of orders.

        It bounds how well the plan's two worlds can be told apart. It is not the epsilon of
        differential privacy, which is about one record.
        """
        check_between(0, 1, delta=delta)
        if self.plan.accountant.notion != "unsliced":
            msg = (
                f"accountant {self.plan.accountant.name!r} has no (epsilon, delta) view: it "
                "averages over batches. Use worst_case, log_moment or amplified"
            )
            raise ArgumentError(msg)
        if not len(self):
            return 0.0
        orders = {*ORDERS, self.plan.order}
        return min(improved_epsilon_joint(order, self._cost(order), delta) for order in orders)

    def __len__(self) -> int:
        """Number of steps taken."""
        return self._n_taken

    @classmethod
    def mechanism(cls) -> str:
        """The name under which Opacus stores the state of this accountant."""
        return "pufferslice"

    def get_optimizer_hook_fn(
        self,
        sample_rate: float,  # noqa: ARG002 - 1 / len(loader), which is not always the true rate
    ) -> Callable[[DPOptimizer], None]:
        """What Opacus calls between noise and update; `make_private` asks for it."""
        return self._before_update

    def state_dict(self, destination: Any = None) -> Any:  # noqa: ANN401 - as Opacus has it
        """The steps so far and the plan, as JSON values."""
        state = OrderedDict() if destination is None else destination
        state["history"] = [list(entry) for entry in self.history]
        state["mechanism"] = self.mechanism()
        state["plan"] = self.plan.to_json()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state of the same plan; `watch` the new objects before the next step."""
        if not state_dict or state_dict.get("mechanism") != self.mechanism():
            msg = f"this is not the state of a {self.mechanism()!r} accountant"
            raise ArgumentError(msg)
        if state_dict.get("plan") != self.plan.to_json():
            msg = "the state belongs to another plan; make the accountant with that plan"
            raise ArgumentError(msg)
        history = _history_of(state_dict.get("history"))
        steps = [entry[:2] for entry in history for _ in range(entry[2])]
        for step, entry in enumerate(steps):
            _check_step(self.plan, step, *entry)
        self.history, self._n_taken, self._run = history, len(steps), None

    def _watched(self) -> _Run:
        if self._run is None:
            msg = (
                "the accountant has not seen the run; after make_private call "
                "accountant.watch(module=..., optimizer=..., data_loader=...)"
            )
            raise ArgumentError(msg)
        return self._run

    def _check(self, run: _Run) -> None:
        check_opacus(
            self.plan,
            module=run.module,
            optimizer=run.optimizer,
            data_loader=run.data_loader,
            step=len(self),
        )

    def _before_update(self, optimizer: DPOptimizer) -> None:
        run = self._watched()
        if optimizer is not run.optimizer:
            msg = "another optimizer than the watched one took a step; one run has one optimizer"
            raise ArgumentError(msg)
        self._check(run)
        _check_gradients(run)
        self.step(
            noise_multiplier=float(optimizer.noise_multiplier),
            sample_rate=_sampler_of(run.data_loader).sample_rate * optimizer.accumulated_iterations,
        )

    def _cost(self, order: float) -> float:
        if not len(self):
            return 0.0
        taken = self.plan.noise_multipliers[: len(self)]
        return run_cost(
            self.plan.accountant, order, self.plan.sampling, self.plan.differing, taken
        )


def _check_plan(plan: TrainingPlan) -> None:
    if not isinstance(plan.sampling, Poisson):
        msg = (
            f"the plan draws batches {plan.sampling.name!r}, Opacus draws them by Poisson sampling; "
            "make the plan with opacus_sampling(data_loader)"
        )
        raise ArgumentError(msg)
    if not isinstance(plan.clipping, FlatClipping):
        msg = (
            f"the plan clips {plan.clipping.kind!r}; the bridge to Opacus knows flat clipping only. "
            "Give the plan one clip norm"
        )
        raise ArgumentError(msg)


def _planned_multiplier(plan: TrainingPlan, step: int) -> float:
    _check_plan(plan)
    check_count(0, step=step)
    if step >= plan.n_steps:
        msg = (
            f"the plan has {plan.n_steps} steps, and step {step + 1} was asked for; a longer run "
            "needs a plan with more steps from its start"
        )
        raise ArgumentError(msg)
    return float(plan.noise_multipliers[step])


def _check_step(plan: TrainingPlan, step: int, noise_multiplier: float, rate: float) -> None:
    planned = _planned_multiplier(plan, step)
    if noise_multiplier != planned:
        msg = f"step {step + 1} has noise_multiplier {noise_multiplier!r}, the plan has {planned!r}"
        raise ArgumentError(msg)
    if not _same_rate(rate, plan.sampling.rate):
        msg = (
            f"step {step + 1} draws with probability {rate!r}, the plan's rate is "
            f"{plan.sampling.rate!r}; take one step per batch"
        )
        raise ArgumentError(msg)


def _largest_rate(rate: float) -> float:
    """The largest probability with which `torch.rand(...) < rate` holds on 24 bits."""
    return math.ceil(rate / UNIFORM_GRID) * UNIFORM_GRID


def _same_rate(drawn: float, planned: float) -> bool:
    """Whether the plan has the drawn rate, rounded up to what the sampler gives at most."""
    return _largest_rate(drawn) <= planned <= drawn + 2 * UNIFORM_GRID
