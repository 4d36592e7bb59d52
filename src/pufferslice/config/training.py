# SPDX-License-Identifier: Apache-2.0
"""training.toml: what to train and under which plan; or a training plan alone."""

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from pufferslice._core.checks import check_above, check_between, check_count, check_one_of
from pufferslice._core.files import parsed_json, pretty_json, read_bytes, write_whole
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.certificate.training import DEFAULT_DELTAS
from pufferslice.config.toml import (
    Document,
    Sections,
    check_sections,
    numbers,
    parsed_toml,
    text,
    word,
)
from pufferslice.errors import ArgumentError
from pufferslice.learning import (
    Accountant,
    DifferingRecords,
    SamplingDesign,
    TrainingPlan,
    accountant_named,
    at_most,
    binomial,
    exactly,
    from_pmf,
    plan_training,
    sampling_from_description,
)
from pufferslice.learning.plan import check_n_steps
from pufferslice.learning.request import DataSource, Learning, Output, Prevalence, TrainingRequest

TRAINING_SECTIONS: Final[Sections] = {
    "data": frozenset({"dataset", "n_records", "name", "n_classes"}),
    "secret": frozenset(
        {"exactly", "at_most", "mismatch_probability", "probabilities", "prevalence"}
    ),
    "sampling": frozenset({"kind", "rate", "batch_size"}),
    "training": frozenset(
        {"model", "loss", "seed", "optimizer", "learning_rate", "momentum", "weight_decay",
         "schedule", "n_warmup_steps", "n_steps", "n_epochs", "clip_norm", "block", "non_finite"}
    ),
    "guarantee": frozenset({"accountant", "order", "epsilon", "deltas"}),
    "output": frozenset({"folder", "public_evaluation", "evaluate_every", "checkpoint_every"}),
}  # fmt: skip
"""Sections of a training file and their keys."""

_OF_PLAN: Final = frozenset({"n_steps", "n_epochs", "clip_norm", "block", "non_finite"})
"""Keys of [training] that belong to the plan."""

_EVALUATIONS: Final = 20
"""About so many in a run whose file does not say how often: one may take as long as many steps."""

_PREVALENCE: Final = ("label", "shares", "seed", "world")
_SAMPLINGS: Final = ("poisson", "without_replacement", "with_replacement")


def read_training(path: str | os.PathLike[str]) -> TrainingRequest:
    """Read a training file; its folder and the modules it names are looked for beside it."""
    return training_of(_document(path), Path(path).parent)


def training_of(document: Document, folder: Path) -> TrainingRequest:
    """The request that a document stands for, with the least noise that keeps its budget."""
    if "format" in document:
        msg = (
            "this is a training plan alone: it says what a run may cost, but not on which data "
            "and with which model; start from the training.toml that `pufferslice init` writes"
        )
        raise ArgumentError(msg)
    _check_document(document)
    data, secret, _, training, claim, output = (document[name] for name in TRAINING_SECTIONS)
    with _in_section("data"):
        check_count(1, n_records=_required(data, "n_records"))
        source = DataSource(**_without(data, {"n_records"}, needs=("dataset",)))
    with _in_section("secret"):
        worlds = _prevalence(secret)
        differing = _differing(secret, worlds, data["n_records"])
        if differing.largest > data["n_records"]:
            msg = (
                f"up to {differing.largest} records differ, but n_records is {data['n_records']}; "
                "no more records can differ than there are"
            )
            raise ArgumentError(msg)
    with _in_section("training"):
        learning = Learning(**_learning(training))
    plan = _plan(document, differing)
    with _in_section("guarantee"):
        deltas = _deltas(claim.get("deltas", DEFAULT_DELTAS))
    with _in_section("output"):
        where = folder / text(_required(output, "folder"), "folder")
        rare = {"evaluate_every": max(1, plan.n_steps // _EVALUATIONS)}
        wanted = Output(folder=where, **(rare | _without(output, {"folder"})))
    return TrainingRequest(
        plan=plan,
        data=source,
        worlds=worlds,
        learning=learning,
        output=wanted,
        deltas=deltas,
        source_folder=folder,
    )


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
    if isinstance(document, Mapping) and document and set(document) <= set(TRAINING_SECTIONS):
        msg = (
            f"{str(path)!r} is a training file, whose plan is made from it: use read_training, "
            "whose result has the plan"
        )
        raise ArgumentError(msg)
    return TrainingPlan.from_json(document)


def toml_of(document: Mapping[str, Any]) -> str:
    """A JSON object as TOML: values first, then a section per object; null is not written.

    >>> print(toml_of({"steps": 2, "sampling": {"kind": "poisson", "rate": 0.5}}), end="")
    steps = 2
    <BLANKLINE>
    [sampling]
    kind = "poisson"
    rate = 0.5
    """
    lines = [
        f"{key} = {_toml_value(value)}"
        for key, value in document.items()
        if not isinstance(value, Mapping) and value is not None
    ]
    for name, section in document.items():
        if isinstance(section, Mapping):
            lines += ["", f"[{name}]"]
            lines += [f"{k} = {_toml_value(v)}" for k, v in section.items() if v is not None]
    return "\n".join(lines) + "\n"


def _document(path: str | os.PathLike[str]) -> Any:  # noqa: ANN401 - a JSON or TOML value
    content = read_bytes(path, "settings")
    try:
        if os.fspath(path).endswith(".json"):
            return parsed_json(content)
        return parsed_toml(content)
    except ValueError as error:
        msg = f"{str(path)!r} is not a training plan or file: {error}"
        raise ArgumentError(msg) from error


def _check_document(document: Document) -> None:
    """All sections, and only known keys: a misspelt key must not silently change a claim."""
    check_sections(document, TRAINING_SECTIONS)
    absent = [f"[{name}]" for name in TRAINING_SECTIONS if name not in document]
    if absent:
        msg = f"a training file needs the section {absent[0]}: what is certified has no defaults"
        raise ArgumentError(msg)


@contextlib.contextmanager
def _in_section(name: str) -> Iterator[None]:
    """Say in which section an argument is wrong."""
    try:
        yield
    except ArgumentError as error:
        msg = f"[{name}] {error}"
        raise ArgumentError(msg) from error


def _plan(document: Document, differing: DifferingRecords) -> TrainingPlan:
    training, claim = document["training"], document["guarantee"]
    with _in_section("sampling"):
        design = _design(document["sampling"], document["data"]["n_records"])
    with _in_section("guarantee"):
        accountant, target = _claim(claim)
    with _in_section("training"):
        check_above(0, clip_norm=_required(training, "clip_norm"))
        n_steps = _n_steps(training, design)
    plan = plan_training(
        differing=differing,
        sampling=design,
        clip_norm=training["clip_norm"],
        n_steps=n_steps,
        accountant=accountant,
        target=target,
    )
    with _in_section("training"):
        return attrs.evolve(
            plan,
            block=training.get("block"),
            non_finite=training.get("non_finite", "zero"),
        )


def _prevalence(said: Document) -> Prevalence | None:
    """The two worlds, if that is how the secret is told."""
    if len(said) != 1:
        known = ", ".join(sorted(TRAINING_SECTIONS["secret"]))
        found = ", ".join(said) or "none"
        msg = f"needs exactly one of {known}; got {found}"
        raise ArgumentError(msg)
    if "prevalence" not in said:
        return None
    worlds = said["prevalence"]
    if not isinstance(worlds, Mapping) or sorted(worlds) != sorted(_PREVALENCE):
        msg = f"prevalence must be a table of {', '.join(_PREVALENCE)}; got {worlds!r}"
        raise ArgumentError(msg)
    shares = worlds["shares"]
    return Prevalence(**{**worlds, "shares": tuple(shares) if isinstance(shares, list) else shares})


def _differing(said: Document, worlds: Prevalence | None, n_records: int) -> DifferingRecords:
    if worlds is not None:
        return worlds.differing(n_records)
    if "exactly" in said:
        return exactly(said["exactly"])
    if "at_most" in said:
        return at_most(said["at_most"])
    if "mismatch_probability" in said:
        chance = said["mismatch_probability"]
        return binomial(n_records=n_records, mismatch_probability=chance)
    return from_pmf(numbers(said["probabilities"], "probabilities"))


def _design(said: Document, n_records: int) -> SamplingDesign:
    kind = word(_required(said, "kind"), "kind")
    check_one_of(_SAMPLINGS, kind=kind)
    wanted = "rate" if kind == "poisson" else "batch_size"
    if set(said) != {"kind", wanted}:
        found = ", ".join(key for key in said if key != "kind") or "nothing"
        msg = f"{kind} needs {wanted} and nothing else, got {found}"
        raise ArgumentError(msg)
    return sampling_from_description({"kind": kind, "n_records": n_records, wanted: said[wanted]})


def _claim(said: Document) -> tuple[Accountant, Guarantee]:
    accountant = accountant_named(word(_required(said, "accountant"), "accountant"))
    order, epsilon = (_required(said, key) for key in ("order", "epsilon"))
    check_above(1, order=order)
    check_above(0, epsilon=epsilon)
    return accountant, Guarantee(notion=accountant.notion, order=order, epsilon=epsilon)


def _deltas(values: object) -> tuple[float, ...]:
    deltas = tuple(numbers(values, "deltas"))
    for delta in deltas:
        check_between(0, 1, deltas=delta)
    return deltas


def _n_steps(said: Document, design: SamplingDesign) -> int:
    """Steps as they are said, or as many as whole passes over the data take."""
    if ("n_steps" in said) == ("n_epochs" in said):
        msg = "needs either n_steps or n_epochs; say one of them"
        raise ArgumentError(msg)
    if "n_epochs" in said:
        check_count(1, n_epochs=said["n_epochs"])
        # Rates are decimal fractions, so that 1 / 0.1 must not become 11 steps.
        steps = int(said["n_epochs"]) * math.ceil(design.n_records / design.divisor - 1e-9)
    else:
        steps = said["n_steps"]
    check_n_steps(steps)
    return steps


def _learning(said: Document) -> dict[str, Any]:
    chosen = _without(said, _OF_PLAN, needs=("model", "seed", "learning_rate"))
    words = {
        key: word(value, key) for key, value in chosen.items() if key in {"optimizer", "schedule"}
    }
    if chosen.get("loss") == "cross-entropy":
        words["loss"] = "cross_entropy"
    return chosen | words


def _without(
    section: Document, left_out: frozenset[str] | set[str], needs: tuple[str, ...] = ()
) -> dict[str, Any]:
    for key in needs:
        _required(section, key)
    return {key: value for key, value in section.items() if key not in left_out}


def _required(section: Document, key: str) -> Any:  # noqa: ANN401 - a TOML value
    if key not in section:
        msg = f"needs {key!r}"
        raise ArgumentError(msg)
    return section[key]


def _toml_value(value: object) -> str:
    """Texts, numbers, truth values and lists look the same in JSON and TOML, objects do not."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{json.dumps(k)} = {_toml_value(v)}" for k, v in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value, ensure_ascii=True, allow_nan=False)
