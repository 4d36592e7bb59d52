# SPDX-License-Identifier: Apache-2.0
"""The accountant that an existing Opacus loop reports its steps to."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, final

from pufferslice.certificate import Certificate, certify_training
from pufferslice.checks import check_between
from pufferslice.errors import ArgumentError
from pufferslice.guarantee import Guarantee
from pufferslice.sgd import TrainingPlan, run_cost
from pufferslice.torch.opacus import (
    OpacusRun,
    check_batch,
    check_opacus,
    check_step,
    noise_caveat,
    opacus_noise_multiplier,
)
from pufferslice.views import ORDERS, improved_epsilon_joint

# isort: split
# After our own module for Opacus, which says what is missing if it is.
from opacus.accountants import IAccountant
from opacus.optimizers import DPOptimizer


@final
class PlanAccountant(IAccountant):  # type: ignore[misc]  # Opacus ships no types
    """Holds an Opacus run to its plan, step by step, and gives the plan's guarantee.

    Set it as `engine.accountant` before `make_private`, and `watch` what `make_private` returned.
    From then on Opacus shows it every step after the noise is drawn and before the model changes.
    A step that is not the plan's raises: the model keeps its parameters, and nothing is counted.

    Guarantee: `guarantee()` holds for the parameters after every counted step, all together, and
    for ideal real-valued Gaussian noise only: Opacus draws in floating point (`noise_caveat`).
    Needs: what `check_opacus` needs, and the hypotheses of the plan.
    """

    def __init__(self, plan: TrainingPlan) -> None:
        super().__init__()
        opacus_noise_multiplier(plan)
        self.plan: Final = plan
        self._n_taken = 0
        self._run: OpacusRun | None = None

    def watch(self, run: OpacusRun) -> None:
        """Check the run now and again at every step; call it once more if the objects change.

        With `BatchMemoryManager` the data loader of the run is the one that it gives.
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
        """Count one step of the watched run, if it is the plan's next; Opacus does this itself."""
        self._watched()
        check_step(self.plan, len(self), noise_multiplier, sample_rate)
        last = self.history[-1] if self.history else None
        if last and last[:2] == (noise_multiplier, sample_rate):
            self.history[-1] = (*last[:2], last[2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))
        self._n_taken += 1

    def spent(self) -> float:
        """Cost of the steps so far at the plan's order: what a run of exactly these steps costs.

        The claim of a run that might have gone on is the plan's: `guarantee()`.
        """
        return self._cost(self.plan.order) if len(self) else 0.0

    def guarantee(self) -> Guarantee:
        """What the run promises: the plan's guarantee, also if it stops early."""
        if not len(self):
            msg = "no step has been counted, so there is nothing to guarantee yet; train first"
            raise ArgumentError(msg)
        return self.plan.guarantee()

    def certificate(self, *, data: str) -> Certificate:
        """The certificate of the watched run: the plan's cost, and how Opacus drew the noise."""
        self.guarantee()
        caveat = noise_caveat(self._watched().optimizer)
        return certify_training(self.plan, data=data, noise=caveat)

    def get_epsilon(self, delta: float) -> float:
        """The steps so far as (epsilon, delta), by the best of a grid of orders.

        It bounds how well the two worlds of the plan can be told apart. It is not the epsilon of
        differential privacy, which is about one record.
        """
        check_between(0, 1, delta=delta)
        if self.plan.accountant.notion != "unsliced":
            msg = (
                f"accountant {self.plan.accountant.name!r} averages over batches, which no "
                "(epsilon, delta) can be read from; use worst_case, log_moment or amplified"
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
        """The name under which the state of this accountant is stored."""
        return "pufferslice"

    def get_optimizer_hook_fn(
        self,
        sample_rate: float,  # noqa: ARG002 - 1 / len(loader) here, which may not be the true rate
    ) -> Callable[[DPOptimizer], None]:
        """What the optimizer calls between noise and update; `make_private` asks for it."""
        return self._before_update

    def state_dict(self, destination: Any = None) -> Any:  # noqa: ANN401 - as Opacus has it
        """The steps so far and their plan, as JSON values."""
        state = OrderedDict() if destination is None else destination
        state["history"] = [list(entry) for entry in self.history]
        state["mechanism"] = self.mechanism()
        state["plan"] = self.plan.to_json()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state of the same plan; `watch` the new objects before the next step."""
        if not state_dict or state_dict.get("mechanism") != self.mechanism():
            msg = (
                f"this is not the state of a {self.mechanism()!r} accountant; give what "
                "state_dict() gave"
            )
            raise ArgumentError(msg)
        if state_dict.get("plan") != self.plan.to_json():
            msg = "the state belongs to another plan; make the accountant with that plan"
            raise ArgumentError(msg)
        history = _history_of(state_dict.get("history"))
        steps = [entry[:2] for entry in history for _ in range(entry[2])]
        for step, (noise_multiplier, sample_rate) in enumerate(steps):
            check_step(self.plan, step, noise_multiplier, sample_rate)
        self.history, self._n_taken, self._run = history, len(steps), None

    def _watched(self) -> OpacusRun:
        if self._run is None:
            msg = (
                "the accountant has not seen the run; after make_private call accountant.watch("
                "OpacusRun(module=..., optimizer=..., data_loader=...))"
            )
            raise ArgumentError(msg)
        return self._run

    def _before_update(self, optimizer: DPOptimizer) -> None:
        run = self._watched()
        if optimizer is not run.optimizer:
            msg = "another optimizer than the watched one made a step; a run has one optimizer"
            raise ArgumentError(msg)
        check_opacus(self.plan, run, step=len(self))
        check_batch(run)
        self.step(
            noise_multiplier=float(optimizer.noise_multiplier),
            sample_rate=run.rate * optimizer.accumulated_iterations,
        )

    def _cost(self, order: float) -> float:
        taken = self.plan.noise_multipliers[: len(self)]
        plan = self.plan
        return float(run_cost(plan.accountant, order, plan.sampling, plan.differing, taken))


def _history_of(entries: object) -> list[tuple[float, float, int]]:
    try:
        return [(float(noise), float(rate), int(count)) for noise, rate, count in entries]  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        msg = (
            "the history in the state is not a list of (noise multiplier, rate, steps); give what "
            "state_dict() gave"
        )
        raise ArgumentError(msg) from error
