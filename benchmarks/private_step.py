# SPDX-License-Identifier: Apache-2.0
"""A whole private step of `Trainer`, with default settings, beside a plain step and Opacus.

Ours is draws, collation, clipped sums, noise and SGD, on Poisson batches. Plain is forward,
backward and SGD on a batch of the expected size. Opacus is the quickest of its hooks, functorch and
ghost clipping, noise included, on Poisson batches that are drawn without its loader; a mode that
cannot run a model is named with the reason. No model has dropout. Each model has a process of its
own for each number of threads, which may use as many cores; contenders take turns there, and each
time is a median over rounds. Memory: the highest resident size of a process that imports the same
whatever it measures and takes three steps of one contender.

    python benchmarks/private_step.py --models mlp,cnn --threads 1 --rounds 7
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from statistics import median

import attrs
import torch
from opacus import PrivacyEngine
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from process_memory import available_bytes, highest_resident_bytes
from pufferslice import Guarantee
from pufferslice.learning import LogMoment, Poisson, TrainingPlan, exactly, plan_training
from pufferslice.torch import Batch, Trainer
from pufferslice.torch.models import cross_entropy, n_parameters, resnet22
from rows import Row, show

ROUNDS = 11
THREADS = (1, 2)
MODES = ("hooks", "functorch", "ghost")
BATCHES_IN_DATA = 16
"""Records over the expected batch size."""
N_STEPS = 10_000
LEARNING_RATE = 1e-3
SHORTEST_TURN = 0.05
"""Seconds: a contender with quick steps takes several of them in a turn."""
MEMORY_GOAL = 1.0

Step = Callable[[], object]
Results = dict[str, float | str]
"""A figure for each contender, or why it cannot run the model."""


class CharLstm(nn.Module):
    """The classifier of names in Opacus's examples: the last state of one layer of LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 64)
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 18)

    def forward(self, characters: Tensor) -> Tensor:
        """Shape (n_examples, n_characters) to (n_examples, 18)."""
        _, (state, _) = self.lstm(self.embedding(characters))
        return self.head(state[-1])


class TokenMean(nn.Module):
    """The mean over dimension 1."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Shape (n_examples, n_tokens, width) to (n_examples, width)."""
        return tokens.mean(1)


class BertMini(nn.Module):
    """BERT with 4 layers of width 256, for sequences of two classes, with random weights."""

    def __init__(self) -> None:
        from transformers import (  # noqa: PLC0415 - slow to import, and only this model needs it
            BertConfig,
            BertForSequenceClassification,
        )

        super().__init__()
        self.bert = BertForSequenceClassification(
            BertConfig(
                hidden_size=256,
                num_hidden_layers=4,
                num_attention_heads=4,
                intermediate_size=1024,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        """Both of shape (n_examples, n_tokens); the result has shape (n_examples, 2)."""
        return self.bert(input_ids=tokens, attention_mask=attention_mask).logits


class OpacusBertMini(BertMini):
    """Says the positions of every example: Opacus fails on an embedding without examples."""

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        """Both of shape (n_examples, n_tokens); the result has shape (n_examples, 2)."""
        return self.bert(
            input_ids=tokens,
            attention_mask=attention_mask,
            position_ids=torch.arange(tokens.shape[1]).repeat(len(tokens), 1),
            token_type_ids=torch.zeros_like(tokens),
        ).logits


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def mnist_cnn() -> nn.Sequential:
    """The network of Opacus's MNIST example."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def transformer() -> nn.Sequential:
    layers = (
        nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(2)
    )
    return nn.Sequential(*layers, TokenMean(), nn.Linear(128, 10))


def text_mlp() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(29_000, 64), TokenMean(), nn.Linear(64, 4))


def numbers(*shape: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randn(n, *shape),)


def words(vocabulary: int, length: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randint(vocabulary, (n, length)),)


def padded_words(n: int) -> tuple[Tensor, ...]:
    """Word pieces and the mask of a tokenizer: sequences of 16 to 64, padded to 64."""
    lengths = torch.randint(16, 65, (n, 1))
    mask = (torch.arange(64) < lengths).long()
    return torch.randint(1, 30_522, (n, 64)) * mask, mask


@attrs.frozen(kw_only=True)
class Case:
    """A model, its made-up data, and what a step of it may cost."""

    label: str
    batch_size: int
    model: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]
    n_classes: int = 10
    opacus_model: Callable[[], nn.Module] | None = None
    """Where Opacus needs more than its own replacement of layers."""
    at_most_plain: float
    at_least_opacus: float

    @property
    def n_records(self) -> int:
        """Records of the made-up data."""
        return self.batch_size * BATCHES_IN_DATA

    def data(self) -> TensorDataset:
        """Made-up records, the same for every contender."""
        torch.manual_seed(2)
        targets = torch.randint(self.n_classes, (self.n_records,))
        return TensorDataset(*self.inputs(self.n_records), targets)


CASES = {
    "mlp": Case(
        label="MLP 64-256-256-10",
        batch_size=256,
        model=partial(mlp, 64, 256, 256, 10),
        inputs=numbers(64),
        at_most_plain=2.5,
        at_least_opacus=1.1,
    ),
    "cnn": Case(
        label="CNN of Opacus's MNIST example",
        batch_size=256,
        model=mnist_cnn,
        inputs=numbers(1, 28, 28),
        at_most_plain=1.6,
        at_least_opacus=1.15,
    ),
    "resnet": Case(
        label="ResNet-22",
        batch_size=128,
        model=partial(resnet22, seed=1),
        inputs=numbers(3, 32, 32),
        at_most_plain=1.35,
        at_least_opacus=1.4,
    ),
    "lstm": Case(
        label="char-LSTM, 16 characters",
        batch_size=256,
        model=CharLstm,
        inputs=words(128, 16),
        n_classes=18,
        at_most_plain=2.5,
        at_least_opacus=5,
    ),
    "transformer": Case(
        label="2-layer transformer, width 128, 64 tokens",
        batch_size=64,
        model=transformer,
        inputs=numbers(64, 128),
        at_most_plain=1.8,
        at_least_opacus=1.7,
    ),
    "text": Case(
        label="text MLP, vocabulary 29,000",
        batch_size=256,
        model=text_mlp,
        inputs=words(29_000, 64),
        n_classes=4,
        at_most_plain=2.2,
        at_least_opacus=3,
    ),
    "large": Case(
        label="MLP 784-2048-2048-640-10",
        batch_size=256,
        model=partial(mlp, 784, 2048, 2048, 640, 10),
        inputs=numbers(784),
        at_most_plain=2.0,
        at_least_opacus=1.0,
    ),
    "bert": Case(
        label="BERT-mini of transformers, 64 tokens",
        batch_size=64,
        model=BertMini,
        inputs=padded_words,
        n_classes=2,
        opacus_model=OpacusBertMini,
        at_most_plain=1.8,
        at_least_opacus=1.7,
    ),
}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def plain_step(case: Case, data: TensorDataset) -> Step:
    model = built(case.model)
    optimizer = sgd(model)

    def step() -> None:
        where = torch.randperm(len(data))[: case.batch_size]
        *inputs, targets = data[where]
        optimizer.zero_grad()
        functional.cross_entropy(model(*inputs), targets).backward()
        optimizer.step()

    return step


def trainer_step(case: Case, data: TensorDataset) -> Step:
    model = built(case.model)
    trainer = Trainer(model, cross_entropy, sgd(model), plan_of(case))
    batches: Iterator[Batch] = trainer.batches(data)
    return lambda: trainer.step(next(batches))


def plan_of(case: Case) -> TrainingPlan:
    return plan_training(
        differing=exactly(4),
        sampling=Poisson(n_records=case.n_records, rate=1 / BATCHES_IN_DATA),
        clip_norm=1.0,
        n_steps=N_STEPS,
        accountant=LogMoment(),
        target=Guarantee.unsliced(order=8, epsilon=8.0),
    )


def opacus_step(case: Case, data: TensorDataset, *, mode: str) -> Step:
    model = ModuleValidator.fix(built(case.opacus_model or case.model))
    written_out = 0 if mode == "ghost" else 4 * case.batch_size * n_parameters(model)
    if 4 * written_out > available_bytes():
        raise MemoryError(f"{written_out / 2**30:.1f} GiB of gradients")
    criterion = nn.CrossEntropyLoss()
    engine_made = PrivacyEngine().make_private(
        module=model,
        optimizer=sgd(model),
        data_loader=DataLoader(data, batch_size=case.batch_size),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
        **({"criterion": criterion} if mode == "ghost" else {}),
    )
    private, optimizer = engine_made[:2]
    criterion = engine_made[2] if mode == "ghost" else criterion

    def step() -> None:
        (where,) = torch.where(torch.rand(len(data)) < 1 / BATCHES_IN_DATA)
        *inputs, targets = data[where]
        optimizer.zero_grad()
        criterion(private(*inputs), targets).backward()
        optimizer.step()

    return step


def built(model: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return model().train()


CONTENDERS: dict[str, Callable[[Case, TensorDataset], Step]] = {
    "plain": plain_step,
    "ours": trainer_step,
    **{mode: partial(opacus_step, mode=mode) for mode in MODES},
}


def times(case: Case, contenders: Iterable[str], rounds: int) -> Results:
    """Median seconds of a step of each contender.

    A turn begins with a step that is not counted: threads of the contender before may still hold a
    core or finish what they prepared, and its own are to be awake. A mode of Opacus that takes
    three times as long as the quickest at the start has no turns, and that first time counts.
    """
    data = case.data()
    results: Results = {}
    steps: dict[str, Step] = {}
    first: dict[str, float] = {}
    for name in contenders:
        try:
            step = CONTENDERS[name](case, data)
            step()
            first[name] = clocked(step, n_in_turn(clocked(step, 1)))
        except Exception as error:  # noqa: BLE001 - whatever it is, this one cannot run the model
            results[name] = reason(error)
        else:
            steps[name] = step
    longest = 3 * min((first[mode] for mode in MODES if mode in first), default=0.0)
    in_turn = [name for name in steps if name not in MODES or first[name] <= longest]
    turns: dict[str, list[float]] = {name: [] for name in in_turn}
    for _ in range(rounds):
        for name in in_turn:
            steps[name]()
            turns[name].append(clocked(steps[name], n_in_turn(first[name])))
    return results | first | {name: median(found) for name, found in turns.items()}


def n_in_turn(seconds: float) -> int:
    """Steps in a row that make a turn long enough to be timed."""
    return 1 + int(SHORTEST_TURN / seconds)


def clocked(step: Step, n_steps: int) -> float:
    """Seconds of one step, over several in a row."""
    start = time.perf_counter()
    for _ in range(n_steps):
        step()
    return (time.perf_counter() - start) / n_steps


def reason(error: Exception) -> str:
    """The kind of error and the beginning of what it says, on one line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:80]}"


def peak(case: Case, contender: str) -> float | str:
    """MiB at the highest after three steps of a process that runs nothing else."""
    data = case.data()
    try:
        step = CONTENDERS[contender](case, data)
        for _ in range(3):
            step()
    except Exception as error:  # noqa: BLE001 - as in `times`
        return reason(error)
    return highest_resident_bytes() / 2**20


def in_process(
    what: str,
    name: str,
    *,
    n_threads: int = max(THREADS),
    rounds: int = ROUNDS,
    contenders: Iterable[str] = CONTENDERS,
) -> Results:
    """What this file measures of one model in a process of its own, on `n_threads` cores."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:n_threads]))
    process = ["taskset", "-c", cores, sys.executable, __file__, "--measure", what]
    options = ["--models", name, "--rounds", str(rounds), "--contenders", ",".join(contenders)]
    done = subprocess.run(
        [*process, *options],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": str(n_threads)},
    )
    found: Results = json.loads(done.stdout.splitlines()[-1])
    return found


def time_rows(case: Case, n_threads: int, found: Results) -> list[Row]:
    name = f"{case.label}, batch {case.batch_size}, {n_threads} thread(s): step"
    rows = [row(f"{name} over plain", found["ours"], found["plain"], at_most=case.at_most_plain)]
    if best := quickest(found):
        what = f"{name}; Opacus, {best}, over ours{left_out(found)}"
        rows.append(row(what, found["ours"], found[best], at_least=case.at_least_opacus))
    return rows


def memory_row(case: Case, found: Results) -> Row:
    best = quickest(found)
    what = f"peak MiB over that of Opacus, {best}{left_out(found)}"
    name = f"{case.label}, batch {case.batch_size}: {what}"
    return row(name, found["ours"], found[best] if best else None, at_most=MEMORY_GOAL)


def quickest(found: Results) -> str | None:
    """The mode of Opacus with the smallest figure, if one could run the model."""
    figures = {m: found[m] for m in MODES if isinstance(found.get(m), float)}
    return min(figures, key=lambda mode: float(figures[mode]), default=None)


def left_out(found: Results) -> str:
    """The modes of Opacus that could not run the model."""
    modes = [f"{mode}: {found[mode]}" for mode in MODES if isinstance(found.get(mode), str)]
    return f" ({'; '.join(modes)})" if modes else ""


def row(
    name: str,
    ours: float | str,
    peer: float | str | None,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Row:
    """A ratio of ours over the peer, or of the peer over ours where that is to be large."""
    goal = f"<= {at_most:g}" if at_most is not None else f">= {at_least:g}"
    ratio = met = None
    if isinstance(ours, float) and isinstance(peer, float):
        ratio = ours / peer if at_most is not None else peer / ours
        met = ratio <= at_most if at_most is not None else ratio >= at_least
    return Row(name=name, ours=ours, peer=peer, ratio=ratio, goal=goal, met=bool(met))


def measure() -> list[Row]:
    """The rows of all models."""
    rows = []
    for name, case in CASES.items():
        for n_threads in THREADS:
            found = in_process("times", name, n_threads=n_threads, rounds=ROUNDS)
            rows += time_rows(case, n_threads, found)
        rows.append(memory_row(case, peaks(name)))
    return rows


def peaks(name: str) -> Results:
    """The peak of each private contender, in a process of its own."""
    found: Results = {}
    for contender in CONTENDERS:
        if contender != "plain":
            found |= in_process("peak", name, contenders=[contender])
    return found


def listed(known: Iterable[str]) -> Callable[[str], list[str]]:
    """A reader of names divided by commas."""

    def read(text: str) -> list[str]:
        if unknown := set(text.split(",")) - set(known):
            raise argparse.ArgumentTypeError(
                f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}"
            )
        return text.split(",")

    return read


def main() -> None:
    parser = argparse.ArgumentParser(description="What a private step costs, for chosen models.")
    parser.add_argument("--models", type=listed(CASES), default=list(CASES))
    parser.add_argument("--threads", type=listed([str(n) for n in THREADS]), default=["1"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--contenders", type=listed(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--memory", action="store_true", help="the peaks of processes instead")
    parser.add_argument("--measure", choices=("times", "peak"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("default", module="pufferslice")
        (case,) = (CASES[name] for name in options.models)
        if options.measure == "times":
            print(json.dumps(times(case, options.contenders, options.rounds)))
        else:
            (contender,) = options.contenders
            print(json.dumps({contender: peak(case, contender)}))
        return
    for name in options.models:
        if options.memory:
            show([memory_row(CASES[name], peaks(name))])
            continue
        for n_threads in map(int, options.threads):
            found = in_process(
                "times",
                name,
                n_threads=n_threads,
                rounds=options.rounds,
                contenders=options.contenders,
            )
            print(", ".join(f"{side} {figure(found[side])}" for side in options.contenders))
            show(time_rows(CASES[name], n_threads, found))


def figure(seconds: float | str) -> str:
    return seconds if isinstance(seconds, str) else f"{1e3 * seconds:.2f} ms"


if __name__ == "__main__":
    main()
