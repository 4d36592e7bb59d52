# SPDX-License-Identifier: Apache-2.0
"""A private step of `Trainer` beside a plain SGD step of the same model and batch, and peers.

Ratios are times of a step over a plain step, or over a peer; rounds are interleaved, each figure is
a median, 1 and 2 threads, as many blocks in flight as threads. A plan chooses its block: goals are
held against the block that is named, and the default block of 16 stands beside it. ResNet-22:
draws, collation, clipping, grid and noise are all inside. The small models are timed without noise,
which is reported apart, in nanoseconds per parameter. Peers at batch 128: the quickest mode of
Opacus, and per-example gradients by `torch.func` in chunks of 32, both with float32 noise. Memory:
what two steps add to the highest resident size of a process that has model, data and trainer (which
loads what compiled code needs when it is made), in processes of their own, medians of 3.

    python benchmarks/private_step.py
"""

import copy
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import attrs
import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from process_memory import highest_resident_bytes
from pufferslice import Guarantee
from pufferslice.noise import draw_integers
from pufferslice.sgd import LogMoment, TrainingPlan, WithoutReplacement, exactly, plan_training
from pufferslice.sgd.grid import sum_grid
from pufferslice.sgd.run_key import RunKey
from pufferslice.torch import Trainer
from pufferslice.torch.batches import Batch
from pufferslice.torch.block_pool import BlockPool
from pufferslice.torch.gradients import BlockGradients
from pufferslice.torch.layout import layout_of
from pufferslice.torch.models import cross_entropy, resnet22

ROUNDS = {64: 9, 128: 7, 512: 5}
BLOCKS = {1: {64: 64, 128: 64, 512: 64}, 2: {64: 32, 128: 32, 512: 64}}
"""The quickest blocks, by threads and batch."""
DEFAULT_BLOCK = 16
N_RECORDS = 1024
N_STEPS = 10_000
CHUNK = 32
IN_FLIGHT = ((16, 2, False), (16, 4, True), (32, 2, True))
"""Blocks, how many of them are in flight, and whether these are the 64 examples of the goal."""

PLAIN_GOAL, OPACUS_GOAL, FUNC_GOAL = 1.15, 1.6, 1.25
SMALL_GOAL, NOISE_GOAL, MEMORY_GOAL = 1.3, 40.0, 1.3

Row = dict[str, object]


def measure() -> list[Row]:
    if len(sys.argv) == 3 and sys.argv[1] == "--memory":
        return []
    threads = torch.get_num_threads()
    rows: list[Row] = []
    try:
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            for batch_size in ROUNDS:
                rows += resnet_rows(batch_size, n_threads)
            rows += small_rows(n_threads)
    finally:
        torch.set_num_threads(threads)
    return [*rows, noise_row(), *memory_rows()]


def resnet_rows(batch_size: int, n_threads: int) -> list[Row]:
    images = torch.randn(N_RECORDS, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(images, torch.arange(N_RECORDS) % 10)
    model = resnet22(seed=1)
    block = BLOCKS[n_threads][batch_size]
    sides = {
        "plain": plain_step(copy.deepcopy(model), data, batch_size),
        "ours": trainer_step(copy.deepcopy(model), data, (batch_size, block), n_threads),
        "default": trainer_step(copy.deepcopy(model), data, (batch_size, DEFAULT_BLOCK), n_threads),
    }
    if batch_size == 128:
        sides["func"] = func_step(copy.deepcopy(model), data, batch_size)
        for mode in ("hooks", "functorch", "ghost"):
            sides[mode] = opacus_step(copy.deepcopy(model), data, batch_size, mode)
    times = medians(sides, ROUNDS[batch_size], settle=batch_size < 512)
    where = f"ResNet-22, batch {batch_size}, {n_threads} thread(s), blocks of"
    name = f"{where} {block}: step"
    rows = [
        row(f"{name} over plain", times["ours"], times["plain"], at_most=PLAIN_GOAL),
        row(f"{where} {DEFAULT_BLOCK}: step over plain", times["default"], times["plain"]),
    ]
    if batch_size == 128:
        best = min(("hooks", "functorch", "ghost"), key=times.__getitem__)
        for peer, what, goal in (
            (best, "Opacus, " + best, OPACUS_GOAL),
            ("func", "torch.func", FUNC_GOAL),
        ):
            rows.append(row(f"{name}; {what} over ours", times["ours"], times[peer], at_least=goal))
    return rows


def small_rows(n_threads: int) -> list[Row]:
    generator = torch.Generator().manual_seed(2)
    mlp = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    cases = {
        "MLP 64-256-256-10, batch 256": (
            mlp,
            torch.randn(256, 64, generator=generator),
            256,
        ),
        "one-block transformer, width 128, batch 64": (
            Encoder(),
            torch.randn(64, 32, 128, generator=generator),
            64 // n_threads,
        ),
    }
    rows = []
    for name, (model, inputs, block) in cases.items():
        data = TensorDataset(inputs, torch.arange(len(inputs)) % 10)
        sides = {
            "plain": plain_step(copy.deepcopy(model), data, len(inputs)),
            "ours": noiseless_step(copy.deepcopy(model), data, block, n_threads),
            "default": noiseless_step(copy.deepcopy(model), data, DEFAULT_BLOCK, n_threads),
        }
        times = medians(sides, 41, settle=True)
        where = f"{name}, {n_threads} thread(s), blocks of"
        what = "step without noise over plain"
        rows += [
            row(f"{where} {block}: {what}", times["ours"], times["plain"], at_most=SMALL_GOAL),
            row(f"{where} {DEFAULT_BLOCK}: {what}", times["default"], times["plain"]),
        ]
    return rows


class Encoder(nn.Module):
    """A transformer encoder of one block, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Shape (n_examples, n_tokens, 128) to (n_examples, 10)."""
        return self.head(self.encoder(tokens).mean(1))


def plain_step(model: nn.Module, data: TensorDataset, batch_size: int) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, targets = data.tensors

    def step() -> None:
        where = torch.randperm(len(data))[:batch_size]
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs[where]), targets[where]).backward()
        optimizer.step()

    return step


def planned(n_records: int, batch_size: int, block: int) -> TrainingPlan:
    plan = plan_training(
        differing=exactly(4),
        sampling=WithoutReplacement(n_records=n_records, batch_size=batch_size),
        clip_norm=1.0,
        n_steps=N_STEPS,
        accountant=LogMoment(),
        target=Guarantee.unsliced(order=8, epsilon=8.0),
    )
    return attrs.evolve(plan, block=block)


def trainer_step(
    model: nn.Module, data: TensorDataset, batch_and_block: tuple[int, int], in_flight: int
) -> Callable[[], object]:
    plan = planned(len(data), *batch_and_block)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    trainer = Trainer(model, cross_entropy, optimizer, plan, blocks_in_flight=in_flight)
    batches: Iterator[Batch] = trainer.batches(data)
    return lambda: trainer.step(next(batches))


def noiseless_step(
    model: nn.Module, data: TensorDataset, block: int, n_threads: int
) -> Callable[[], object]:
    """What a trainer does without the noise: clipped integer sums, division, optimizer."""
    n = len(data)
    plan = planned(n, n, block)
    layout = layout_of(model, plan.clipping)
    grid = sum_grid(plan, 0, layout.sizes)
    gradients = BlockGradients(model, cross_entropy, layout, block=block, non_finite="zero")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, targets = data.tensors
    gradients.prepare((inputs[:block], targets[:block]), block)
    assert gradients.path == "recorded"
    pool = BlockPool(n_threads)

    def blocks(where: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        return ((inputs[part], targets[part]) for part in where.split(block))

    def step() -> None:
        where = torch.randperm(n)
        sums = np.zeros(layout.n_parameters, dtype=np.int64)
        for found in pool.each(lambda b: gradients.block_sum(b, block, grid, 0), blocks(where)):
            sums += found.integers
        layout.set_gradients(sums, grid.steps / plan.divisor)
        optimizer.step()

    return step


def func_step(model: nn.Module, data: TensorDataset, batch_size: int) -> Callable[[], object]:
    """Per-example gradients by `vmap(grad)` in chunks, clipped, with float32 noise."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, targets = data.tensors
    names = [name for name, _ in model.named_parameters()]

    def loss(given: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(model, given, (x[None],))
        return functional.cross_entropy(logits, y[None])

    per_example = vmap(grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        where = torch.randperm(len(data))[:batch_size]
        given = {name: p.detach() for name, p in model.named_parameters()}
        sums = {name: torch.zeros_like(p) for name, p in given.items()}
        for part in where.split(CHUNK):
            found = per_example(given, inputs[part], targets[part])
            squares = sum(found[name].flatten(1).square().sum(1) for name in names)
            weights = (1.0 / squares.sqrt()).clamp_max(1.0)
            for name in names:
                sums[name] += torch.tensordot(weights, found[name], 1)
        for name, parameter in model.named_parameters():
            parameter.grad = (sums[name] + torch.randn_like(parameter)) / batch_size
        optimizer.step()

    return step


def opacus_step(
    model: nn.Module, data: TensorDataset, batch_size: int, mode: str
) -> Callable[[], object]:
    from opacus import PrivacyEngine  # noqa: PLC0415 - only this row needs it

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=batch_size)
    criterion = nn.CrossEntropyLoss()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode=mode,
            **({"criterion": criterion} if mode == "ghost" else {}),
        )
    private, optimizer = made[0], made[1]
    criterion = made[2] if mode == "ghost" else criterion
    inputs, targets = data.tensors

    def step() -> None:
        where = torch.randperm(len(data))[:batch_size]
        optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            criterion(private(inputs[where]), targets[where]).backward()
        optimizer.step()

    return step


def noise_row() -> Row:
    """Key, keyed hash and integer noise for a million parameters, per parameter."""
    n, key = 1_000_000, RunKey.fresh()
    sums = np.arange(n, dtype=np.int64)
    times = []
    for step in range(9):
        start = time.perf_counter()
        _ = sums + draw_integers(key.noise_key(0, step, sums), n)
        times.append(time.perf_counter() - start)
    ours = median(times) / n * 1e9
    return {
        "name": "noise of a step: nanoseconds per parameter",
        "ours": ours,
        "peer": None,
        "ratio": None,
        "goal": f"<= {NOISE_GOAL:g}",
        "met": ours <= NOISE_GOAL,
    }


def memory_rows() -> list[Row]:
    """Highest resident size over that before training: batch 512 of ours, batch 64 of plain."""
    plain = median(peak("plain") for _ in range(3))
    rows = []
    for block, in_flight, is_goal in IN_FLIGHT:
        what = f"{in_flight} blocks of {block} in flight: MiB over plain at batch 64"
        ours = median(peak(f"{block}x{in_flight}") for _ in range(3))
        goal = MEMORY_GOAL if is_goal else None
        rows.append(row(f"ResNet-22, batch 512, {what}", ours, plain, at_most=goal))
    return rows


def peak(side: str) -> float:
    made = subprocess.run(
        [sys.executable, str(Path(__file__)), "--memory", side],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(made.stdout)


def print_peak(side: str) -> None:
    """In a process of its own: MiB that two steps added to the highest resident size."""
    torch.set_num_threads(2)
    images = torch.randn(N_RECORDS, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(images, torch.arange(N_RECORDS) % 10)
    model = resnet22(seed=1)
    if side == "plain":
        step = plain_step(model, data, 64)
    else:
        block, in_flight = map(int, side.split("x"))
        step = trainer_step(model, data, (512, block), in_flight)
    before = highest_resident_bytes()
    for _ in range(2):
        step()
    print((highest_resident_bytes() - before) / 2**20)


def medians(
    sides: dict[str, Callable[[], object]], rounds: int, *, settle: bool
) -> dict[str, float]:
    """Median seconds of each side, interleaved, after one round that is not counted.

    To settle is to take a step that is not counted before each one that is: the threads of the side
    before may still hold a core, waiting for more work, and its own are to be awake.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for counted in (False, *(True,) * rounds):
        for name, step in sides.items():
            if settle:
                step()
            start = time.perf_counter()
            step()
            if counted:
                times[name].append(time.perf_counter() - start)
    return {name: median(found) for name, found in times.items()}


def row(
    name: str,
    ours: float,
    peer: float,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Row:
    """A ratio of ours over the peer, or of the peer over ours where that is to be large."""
    ratio = ours / peer if at_least is None else peer / ours
    goal, met = None, None
    if at_most is not None:
        goal, met = f"<= {at_most:g}", ratio <= at_most
    elif at_least is not None:
        goal, met = f">= {at_least:g}", ratio >= at_least
    return {"name": name, "ours": ours, "peer": peer, "ratio": ratio, "goal": goal, "met": met}


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "--memory":
        print_peak(sys.argv[2])
        return
    for found in measure():
        ratio = f", ratio {found['ratio']:.3f}" if found["ratio"] else ""
        verdict = "" if found["met"] is None else "met" if found["met"] else "NOT met"
        print(f"{found['name']}: {found['ours']:.4g}{ratio}; goal {found['goal']} {verdict}")


if __name__ == "__main__":
    main()
