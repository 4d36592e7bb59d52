# SPDX-License-Identifier: Apache-2.0
"""Typed model of training.toml, and the request that it stands for; plans as files."""

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import attrs
from pydantic import Field

from pufferslice._core.checks import check_above, check_between, is_a
from pufferslice._core.files import parsed_json, pretty_json, read_bytes, write_whole
from pufferslice.claims import Claim, EpsilonDelta, Guess, Information
from pufferslice.claims.views import DEFAULT_DELTAS
from pufferslice.config.document import (
    Document,
    File,
    Number,
    Table,
    Text,
    Word,
    key,
    parsed_toml,
    toml_of,
)
from pufferslice.errors import ArgumentError
from pufferslice.learning import (
    DifferingRecords,
    SamplingDesign,
    TrainingPlan,
    at_most,
    binomial,
    exactly,
    from_pmf,
    mostly_at_most,
    plan_training,
)
from pufferslice.learning.accountants import ACCOUNTANT_NAMES, Accountant, accountant_named
from pufferslice.learning.clipping import FlatClipping
from pufferslice.learning.plan import check_n_steps
from pufferslice.learning.request import (
    OPTIMIZERS,
    SCHEDULES,
    DataSource,
    Learning,
    Output,
    Prevalence,
    TrainingRequest,
)
from pufferslice.learning.sampling import sampling_from_description

TAIL_KEYS: Final = ("tail_probability", "failure_probability")
"""Keys of a secret that say how rarely more records differ."""
_EVALUATIONS: Final = 20
"""Approximate number of evaluations in a run by default: one may take as long as many steps."""

_LEARNING: Final = {field.name: field.default for field in attrs.fields(Learning)}
_OUTPUT: Final = {field.name: field.default for field in attrs.fields(Output)}
"""Default output options, for keys that a file leaves out."""

Count = Annotated[int, Field(ge=1)]
Shares = Annotated[tuple[Number, Number], Field(strict=False)]


class DataSection(Table):
    """What to train on."""

    dataset: Text = key(example="digits", used=True)
    """`digits` (8x8 digits of scikit-learn), or `module:function` that returns what to train on
    and what is held out."""
    n_records: Count = key(example=1437, used=True)
    """Records to train on, the same in both worlds; public. The first of the digits and of labelled
    images, all of your own data."""
    name: Text | None = key(None, example="digits 2026")
    """Public name of the data in the certificate. Left out, it is unique to the run."""
    n_classes: int | None = key(None, example=10)
    """Number of classes, for your own data with a named model."""


class PrevalenceTable(Table):
    """Two worlds by the share of a label, and the one that is trained on."""

    label: int
    shares: Shares
    seed: int
    world: Literal["first", "second"]


class SecretSection(Table):
    """How many records the secret changes; exactly one of the first five keys."""

    exactly: int | None = key(None, example=4, used=True)
    """A fixed set of this many records differs."""
    at_most: int | None = key(None, example=4)
    """At most this many records differ, whichever they are."""
    mismatch_probability: Number | None = key(None, example=0.001)
    """Each record differs independently with this probability."""
    probabilities: Annotated[tuple[Number, ...] | None, Field(strict=False)] = key(
        None, example=[0.5, 0.25, 0.25]
    )
    """The probability that 0, 1, 2, … records differ."""
    prevalence: PrevalenceTable | None = key(
        None, example={"label": 3, "shares": [0.1, 0.104], "seed": 7, "world": "first"}
    )
    """Two worlds with these shares of a label. `world`, `first` or `second`, is trained on: it is
    the secret, so a file that has it is confidential."""
    tail_probability: Number | None = key(None, example=1e-6)
    """Beside `at_most`, `mismatch_probability` or `probabilities`: with this probability at most,
    more records differ than are accounted for. It is part of the `delta` of [guarantee], once for
    the whole run."""
    failure_probability: Number | None = key(None, example=0.01)
    """Beside `at_most` and `tail_probability`, for a number that a simulation gave: that the tail
    is larger than stated. The certificate states it separately from delta. Default 0."""

    def worlds(self) -> Prevalence | None:
        """Build the two worlds, if the secret is a prevalence."""
        kinds = [name for name in type(self).model_fields if name not in TAIL_KEYS]
        if len(self.model_fields_set.intersection(kinds)) != 1:
            raise ArgumentError(f"needs exactly one of {', '.join(kinds)}")
        return None if self.prevalence is None else Prevalence(**self.prevalence.given())

    def differing(self, n_records: int) -> DifferingRecords:
        """Build the distribution of the number of differing records."""
        worlds, tail = self.worlds(), self.tail_probability
        if self.failure_probability is not None and (tail is None or self.at_most is None):
            raise ArgumentError(
                "failure_probability belongs to at_most with a tail_probability; leave it out"
            )
        if worlds is not None:
            differing = worlds.differing(n_records)
        elif self.exactly is not None:
            differing = exactly(self.exactly)
        elif self.at_most is not None and tail is not None:
            differing = mostly_at_most(
                self.at_most,
                tail_probability=tail,
                failure_probability=self.failure_probability or 0.0,
            )
        elif self.at_most is not None:
            differing = at_most(self.at_most)
        elif self.mismatch_probability is not None:
            differing = binomial(
                n_records=n_records, mismatch_probability=self.mismatch_probability
            )
        else:
            differing = from_pmf([float(chance) for chance in self.probabilities or ()])
        if tail is not None and self.at_most is None:
            if differing.is_fixed_set:
                raise ArgumentError(
                    "tail_probability is for a number of records that varies; leave it out"
                )
            differing = differing.truncated(tail_probability=tail)
        if differing.largest > n_records:
            raise ArgumentError(
                f"up to {differing.largest} records differ, but n_records is {n_records}"
            )
        return differing


class SamplingSection(Table):
    """How a batch is drawn."""

    kind: Annotated[str, Word("poisson", "without_replacement", "with_replacement")] = key(
        example="poisson", used=True
    )
    """`poisson`, `without-replacement` or `with-replacement`."""
    rate: Number | None = key(None, example=1.0, used=True)
    """For `poisson`: probability of each record. With few steps large batches do best."""
    batch_size: int | None = key(None, example=512)
    """For the others."""

    def design(self, n_records: int) -> SamplingDesign:
        """Build the sampling design."""
        needed, other = ("rate", "batch_size")
        if self.kind != "poisson":
            needed, other = other, needed
        if getattr(self, needed) is None or getattr(self, other) is not None:
            raise ArgumentError(f"{self.kind} needs {needed} and no {other}")
        return sampling_from_description(
            {"kind": self.kind, "n_records": n_records, needed: getattr(self, needed)}
        )


class TrainingSection(Table):
    """Model, optimizer and steps."""

    model: Text = key(example="linear", used=True)
    """`linear`, `small`, `resnet22`, or `module:function` of the seed."""
    loss: Text = key(_LEARNING["loss"], example="cross_entropy")
    """`cross_entropy` (default), or `module:function` of outputs and targets."""
    seed: int = key(example=0, used=True)
    """Public seed of the initial weights."""
    optimizer: Annotated[str, Word(*OPTIMIZERS)] = key(
        _LEARNING["optimizer"], example="sgd", used=True
    )
    """`sgd` (default) or `adam`; what follows the noise costs nothing."""
    learning_rate: Number = key(example=1.0, used=True)
    """Step size."""
    momentum: Number = key(_LEARNING["momentum"], example=0.5, used=True)
    """For `sgd`; default 0."""
    weight_decay: Number = key(_LEARNING["weight_decay"], example=0.0)
    """Default 0."""
    schedule: Annotated[str, Word(*SCHEDULES)] = key(_LEARNING["schedule"], example="constant")
    """`constant` (default), or `cosine`: it rises over the first steps and falls to 0."""
    n_warmup_steps: int = key(_LEARNING["n_warmup_steps"], example=0)
    """For `cosine`: steps over which the learning rate rises; default 0."""
    n_steps: int | None = key(None, example=10, used=True)
    """Noisy steps; or `n_epochs`."""
    n_epochs: Count | None = key(None, example=10)
    """Complete passes over the data; or `n_steps`."""
    clip_norm: Number = key(example=2.0, used=True)
    """The most that one record can add to the sum of gradients."""
    block: int | None = key(None, example=64)
    """Examples per forward and backward pass; chosen by the trainer if left out."""
    non_finite: Literal["zero", "stop"] = key("zero", example="zero")
    """An example whose gradient is NaN or infinite: `zero` (default), it contributes nothing; or
    `stop`, the run stops, and what that reveals is not covered."""

    def n_steps_of(self, design: SamplingDesign) -> int:
        """Return the number of steps, or as many as the passes over the data take."""
        if (self.n_steps is None) == (self.n_epochs is None):
            raise ArgumentError("needs either n_steps or n_epochs")
        # Rates are decimal fractions: 1 / 0.1 must not become 11 steps.
        passes = math.ceil(design.n_records / design.divisor - 1e-9)
        steps = self.n_steps if self.n_steps is not None else (self.n_epochs or 0) * passes
        check_n_steps(steps)
        return steps

    def learning(self) -> Learning:
        """Build the settings of model and optimizer."""
        options = self.given(field.name for field in attrs.fields(Learning))
        if self.loss == "cross-entropy":
            options["loss"] = "cross_entropy"
        return Learning(**options)


class GuaranteeSection(Table):
    """The claim; it has no defaults."""

    accountant: Annotated[str, Word(*ACCOUNTANT_NAMES)] = key(example="log-moment", used=True)
    """`worst-case`, `log-moment`, `amplified` (Poisson; the draws stay secret) or `mean-square`
    (right guesses and bits only)."""
    at_most: Number | None = key(None, example=0.64)
    """A claim of right guesses: the share of right guesses between two values of the secret, both
    equally likely; above 0.5 and below 1."""
    bits: Number | None = key(None, example=0.1)
    """Instead of `at_most`: the most bits of information between two values."""
    epsilon: Number | None = key(None, example=8.0, used=True)
    """Instead of `at_most`: the ε that is claimed, above 0; with `order` or `delta`."""
    order: Number | None = key(None, example=8, used=True)
    """Rényi order of `epsilon`, above 1."""
    delta: Number | None = key(None, example=1e-5)
    """Instead of `order`: the δ of `epsilon`. If [secret] has a `tail_probability`, the claim needs
    a `delta` or `at_most`, of which that is a part."""
    deltas: Annotated[tuple[float, ...], Field(strict=False, min_length=1)] = key(
        DEFAULT_DELTAS, example=[1e-5]
    )
    """Of the (ε, δ) views; default `[1e-5]`."""

    def target(self, accountant: Accountant) -> Claim:
        """Build the claim that the plan must meet."""
        bounds = ("at_most", "bits", "epsilon")
        if len(self.model_fields_set.intersection(bounds)) != 1:
            raise ArgumentError(f"needs exactly one of {', '.join(bounds)}")
        if self.epsilon is None and (self.order is not None or self.delta is not None):
            raise ArgumentError("order and delta belong to epsilon; leave them out")
        if self.at_most is not None:
            return Guess(at_most=self.at_most)
        if self.bits is not None:
            return Information(bits=self.bits)
        epsilon = self.epsilon or 0.0
        check_above(0, epsilon=epsilon)
        if self.delta is not None and self.order is None:
            return EpsilonDelta(epsilon=epsilon, delta=self.delta)
        if self.order is None or self.delta is not None:
            raise ArgumentError(
                "needs either order, of a Rényi claim, or delta, of an (epsilon, delta) claim"
            )
        check_above(1, order=self.order)
        return accountant.claim(order=self.order, epsilon=epsilon)

    def all_deltas(self) -> tuple[float, ...]:
        """List the deltas of the views; the delta of the claim comes first."""
        for delta in self.deltas:
            check_between(0, 1, deltas=delta)
        if self.delta is None:
            return self.deltas
        others = self.deltas if "deltas" in self.model_fields_set else ()
        return tuple(dict.fromkeys((float(self.delta), *others)))


class OutputSection(Table):
    """Where results go."""

    folder: Text = key(example="run", used=True)
    """New, empty, or with an unfinished run of this file."""
    public_evaluation: bool = key(_OUTPUT["public_evaluation"], example=True, used=True)
    """`true` declares the held-out records public: metrics on them may be published. Default
    `false`."""
    evaluate_every: int | None = key(None, example=1)
    """Steps between rows of the public log; default a twentieth of all steps."""
    checkpoint_every: int = key(_OUTPUT["checkpoint_every"], example=10)
    """Steps between checkpoints; default 10."""


class TrainingFile(File):
    """training.toml: what to train, on what, and what must stay protected."""

    header: ClassVar[str] = """\
What to train, on what, and what must stay protected. Run it with
  pufferslice train training.toml
It writes into the folder of [output]. After Ctrl-C or a crash the same command resumes."""

    data: DataSection
    secret: SecretSection | None = None
    sampling: SamplingSection
    training: TrainingSection
    guarantee: GuaranteeSection | None = None
    output: OutputSection


def read_training_file(path: str | os.PathLike[str]) -> TrainingFile:
    """Read a training file as it is, also one without a claim, as parts of budgets are."""
    return TrainingFile.of(_document(path))


def read_training(
    path: str | os.PathLike[str], plan: TrainingPlan | None = None
) -> TrainingRequest:
    """Read a training file; the folder and the modules that it names are relative to it.

    `plan` is that of a budget, for a file that says neither what is hidden nor how much.
    """
    return training_of(_document(path), Path(path).parent, plan)


def sampling_and_steps(file: TrainingFile) -> tuple[SamplingDesign, int]:
    """Return how batches are drawn, and how many."""
    with _in_section("sampling"):
        design = file.sampling.design(file.data.n_records)
    with _in_section("training"):
        return design, file.training.n_steps_of(design)


def training_of(
    document: Document, folder: Path, budgeted: TrainingPlan | None = None
) -> TrainingRequest:
    """Build the request that a document stands for, with the least noise that meets its claim.

    A file without a claim follows the plan of a budget.
    """
    if is_a(document, Mapping) and "format" in document:
        raise ArgumentError(
            "this is a training plan alone: it has neither data nor a model; start from the "
            "training.toml that `pufferslice init` writes"
        )
    file = TrainingFile.of(document)
    training = file.training
    with _in_section("data"):
        source = DataSource(**file.data.given(("dataset", "name", "n_classes")))
    with _in_section("training"):
        learning = training.learning()
        check_above(0, clip_norm=training.clip_norm)
    if budgeted is not None:
        plan = _checked_plan(file, budgeted)
        worlds, deltas = None, tuple(DEFAULT_DELTAS)
    else:
        plan, worlds, deltas = _claimed_plan(file)
    with _in_section("training"):
        plan = attrs.evolve(plan, block=training.block, non_finite=training.non_finite)
    with _in_section("output"):
        output = Output(
            folder=folder / file.output.folder,
            evaluate_every=(
                max(1, plan.n_steps // _EVALUATIONS)
                if file.output.evaluate_every is None
                else file.output.evaluate_every
            ),
            public_evaluation=file.output.public_evaluation,
            checkpoint_every=file.output.checkpoint_every,
        )
    return TrainingRequest(
        plan=plan,
        data=source,
        worlds=worlds,
        learning=learning,
        output=output,
        deltas=deltas,
        source_folder=folder,
    )


def _claimed_plan(file: TrainingFile) -> tuple[TrainingPlan, Prevalence | None, tuple[float, ...]]:
    """Find the plan with the least noise that meets the claim of a file."""
    if file.secret is None or file.guarantee is None:
        missing = "secret" if file.secret is None else "guarantee"
        raise ArgumentError(f"[{missing}]: is required, but for a part of a budget")
    with _in_section("secret"):
        worlds, differing = file.secret.worlds(), file.secret.differing(file.data.n_records)
    design, n_steps = sampling_and_steps(file)
    with _in_section("guarantee"):
        accountant = accountant_named(file.guarantee.accountant)
        target, deltas = file.guarantee.target(accountant), file.guarantee.all_deltas()
    plan = plan_training(
        differing=differing,
        sampling=design,
        clip_norm=file.training.clip_norm,
        n_steps=n_steps,
        accountant=accountant,
        target=target,
    )
    return plan, worlds, deltas


def _checked_plan(file: TrainingFile, plan: TrainingPlan) -> TrainingPlan:
    """Return the plan of a budget; raise unless the file is the one that the budget read."""
    if file.secret is not None or file.guarantee is not None:
        raise ArgumentError(
            "a part of a budget has no [secret] and no [guarantee]; the budget says what is hidden"
        )
    ours = *sampling_and_steps(file), FlatClipping(norm=file.training.clip_norm)
    if file.training.non_finite != plan.non_finite:
        raise ArgumentError(
            "[training] non_finite must be 'zero' under a budget: what a stop reveals is not part "
            "of its promise"
        )
    if ours != (plan.sampling, plan.n_steps, plan.clipping):
        raise ArgumentError(
            "the training file has another sampling, clip_norm or number of steps than the budget "
            "certified; certify the budget again, before its first output"
        )
    return plan


def write_plan(plan: TrainingPlan, path: str | os.PathLike[str]) -> None:
    """Write a plan: JSON if the name ends in .json, TOML otherwise."""
    document = plan.to_json()
    if os.fspath(path).endswith(".json"):
        content = pretty_json(document)
    else:
        content = toml_of(document).encode()
    write_whole(path, content)


def read_plan(path: str | os.PathLike[str]) -> TrainingPlan:
    """Read a plan that `write_plan` wrote, or one like it."""
    document = _document(path)
    if isinstance(document, Mapping) and document and set(document) <= {*TrainingFile.model_fields}:
        raise ArgumentError(
            f"{str(path)!r} is a training file; use read_training, whose result has the plan"
        )
    return TrainingPlan.from_json(document)


def _document(path: str | os.PathLike[str]) -> Any:  # a JSON or TOML value
    content = read_bytes(path, "settings")
    try:
        if os.fspath(path).endswith(".json"):
            return parsed_json(content)
        return parsed_toml(content)
    except ValueError as error:
        raise ArgumentError(f"{str(path)!r} is not a training plan or file: {error}") from error


@contextlib.contextmanager
def _in_section(name: str) -> Iterator[None]:
    """Name the section in which an argument is wrong."""
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(f"[{name}] {error}") from error
