# SPDX-License-Identifier: Apache-2.0
"""Real processes over gloo: their number changes no bit, and a lost one stops the others."""

import pytest
from tests.torch.small import outcome

from pufferslice.torch.distributed import Processes, joined_processes

PREPARE = """
import contextlib, datetime, json, os, signal, sys, time
from pathlib import Path
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
sys.path.insert(0, sys.argv[1])
import attrs
import torch
from torch import distributed
from torch.utils.data import TensorDataset
from pufferslice import PuffersliceError
from pufferslice.learning import Poisson
from tests.torch.small import (
    N_RECORDS, copy_of, digest_of, model_of, plan_of, records, train, trainer_of
)

folder = Path(sys.argv[2])
counter = iter(range(1000))


def opened(place, plan=None, **given):
    given = {"optimizer": torch.optim.Adam, "schedule": True, "model": model_of(), **given}
    trainer, model = trainer_of(attrs.evolve(plan or plan_of(), block=3), folder=place, **given)
    if trainer.needs_resume:
        trainer.resume()
    return trainer, model


def together(size, work):
    '''Start so many processes; what each told, or its error, and how it ended.'''
    place = folder / f"group {next(counter)}"
    place.mkdir()
    children = [started(rank, size, place, work) for rank in range(size)]
    statuses = [os.waitpid(child, 0)[1] for child in children]
    told = []
    for rank, status in enumerate(statuses):
        said = place / f"{rank}.json"
        told.append(json.loads(said.read_text()) if said.exists() else f"status {status}")
    return told


def started(rank, size, place, work):
    child = os.fork()
    if child:
        return child
    try:
        distributed.init_process_group(
            "gloo", init_method=f"file://{place}/meet", rank=rank, world_size=size,
            timeout=datetime.timedelta(seconds=60),
        )
        try:
            told = work(rank)
        except PuffersliceError as error:
            told = f"{type(error).__name__}: {error}"
        (place / f"{rank}.json").write_text(json.dumps(told))
        os._exit(0)
    finally:
        os._exit(1)


torch.set_num_threads(1)
train(opened(folder / "warm", blocks_in_flight=1)[0])
opened(folder / "run", blocks_in_flight=1)
found = {}
"""

SAME = (
    PREPARE
    + """
def whole(place, plan=None, dropout=0.0):
    def work(rank):
        trainer, model = opened(place, plan, model=model_of(rank, dropout))
        reports = train(trainer, save_every=2)
        return {
            "weights": digest_of(model),
            "losses": [report.mean_loss.hex() for report in reports],
            "sizes": [report.n_examples for report in reports],
            "epsilon": trainer.certificate().guarantee.epsilon,
            "spent": trainer.spent().epsilon,
            "finished": trainer.is_finished,
        }

    return work


few = plan_of(12, sampling=Poisson(n_records=N_RECORDS, rate=0.005))
CASES = {"plain": (None, 0.0), "dropout": (None, 0.5), "few": (few, 0.0)}
for name, (plan, dropout) in CASES.items():
    opened(folder / name, plan, model=model_of(7, dropout), blocks_in_flight=1)
    for size in (1, 2, 3):
        place = copy_of(folder / name, folder / f"{name} {size}")
        found[f"{name} {size}"] = together(size, whole(place, plan, dropout))


def fresh(rank):
    '''No folder, other first weights in every process: the first one's are everybody's.'''
    trainer, model = trainer_of(model=model_of(rank))
    begun = digest_of(model)
    train(trainer)
    return [begun, digest_of(model), trainer.name]


found["fresh"] = together(2, fresh)


def first_saves(rank):
    '''The usual idiom: only the first process calls save.'''
    trainer, model = opened(folder / "run")
    for batch in trainer.batches(records(), n_workers=1):
        trainer.step(batch)
        if rank == 0 and not trainer.is_finished:
            trainer.save()
    return digest_of(model)


found["first saves"] = together(2, first_saves)
found["key is gone"] = not (folder / "run" / "run.key").exists()
print(json.dumps(found))
"""
)

LOST = (
    PREPARE
    + """
expected_place = copy_of(folder / "run", folder / "unbroken")
trainer, model = opened(expected_place, blocks_in_flight=1)
train(trainer)
found["unbroken"] = digest_of(model)


def killed(rank):
    trainer, model = opened(folder / "run")
    for batch in trainer.batches(records()):
        if rank == 2 and trainer.n_taken == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step(batch)
        if trainer.n_taken == 2:
            trainer.save()


start = time.monotonic()
found["killed"] = together(3, killed)
found["seconds"] = time.monotonic() - start


def goes_on(rank):
    trainer, model = opened(folder / "run")
    begun = trainer.n_taken
    train(trainer)
    return [begun, digest_of(model)]


found["resumed"] = together(2, goes_on)


class Broken(TensorDataset):
    def __getitem__(self, index):
        return super().__getitem__(index) if index == 0 else 1 // 0


def fails(rank):
    '''The second process cannot read the records of its blocks.'''
    plan = plan_of(sampling=Poisson(n_records=N_RECORDS, rate=1.0))
    trainer, model = trainer_of(attrs.evolve(plan, block=10))
    train(trainer, n_steps=1)
    data = Broken(*records().tensors) if rank == 1 else records()
    batch = next(trainer.batches(data))
    with contextlib.suppress(ZeroDivisionError):
        trainer.step(batch)
        return "no error"
    return "its own error"


def drifts(rank):
    trainer, model = trainer_of()
    train(trainer, n_steps=1)
    if rank == 1:
        with torch.no_grad():
            model[0].bias += 1e-7
    train(trainer)


def rewinds(rank):
    trainer, model = trainer_of(folder=folder / "rewound")
    train(trainer, n_steps=1)
    trainer.save(folder / "old.pt")
    distributed.barrier()
    train(trainer, n_steps=1)
    trainer.save()
    distributed.barrier()
    trainer.resume(folder / "old.pt")


def other_plans(rank):
    trainer_of(plan_of(n_steps=6 + rank))


def other_folder(rank):
    (folder / "file").touch()
    trainer_of(folder=folder / "file")


def stops(rank):
    '''The second process stops without ending, as a debugger or a full machine does.'''
    trainer, model = trainer_of(patience=2.0)
    train(trainer, n_steps=1)
    if rank == 1:
        (folder / "stopped").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    start = time.monotonic()
    try:
        train(trainer)
    except PuffersliceError as error:
        return [str(error), time.monotonic() - start]
    finally:
        os.kill(int((folder / "stopped").read_text()), signal.SIGKILL)


found["stops"] = together(2, stops)

for work in (fails, drifts, rewinds, other_plans, other_folder):
    found[work.__name__] = together(2, work)
print(json.dumps(found))
"""
)


@pytest.mark.slow
def test_the_number_of_processes_changes_no_bit(repository, tmp_path):
    same = outcome(SAME, repository, tmp_path)
    for case in ("plain", "dropout", "few"):
        told = [one for size in (1, 2, 3) for one in same[f"{case} {size}"]]
        assert len(told) == 6
        assert told[0]["finished"]
        assert all(one == told[0] for one in told[1:]), case
    assert 0 in same["few 3"][0]["sizes"], "batches smaller than the number of processes"
    # processes begin with the weights and the key of the first, which may save alone
    first, other = same["fresh"]
    assert first == other
    assert first[0] != first[1]
    first, other = same["first saves"]
    assert first == other
    assert same["key is gone"]


@pytest.mark.slow
def test_a_lost_or_deviating_process_stops_all(repository, tmp_path):
    lost = outcome(LOST, repository, tmp_path)
    *others, killed = lost["killed"]
    assert killed == "status 9"
    for told in others:
        assert told.startswith("TrainingError: ")
        assert "lost another process" in told
        assert "trainer.resume()" in told
    assert lost["seconds"] < 50
    assert lost["resumed"] == [[2, lost["unbroken"]]] * 2
    (error, seconds), stopped = lost["stops"]
    assert "waited for it for 2 seconds" in error
    assert seconds < 20
    assert stopped == "status 9"
    first, other = lost["fails"]
    assert "1 of the processes" in first
    assert other == "its own error"
    assert all("weights" in told for told in lost["drifts"])
    first, other = lost["rewinds"]
    assert first.startswith("RewindError: ")
    assert other.startswith("TrainingError: the first process")
    assert "plan" in lost["other_plans"][1]
    first, other = lost["other_folder"]
    assert first.startswith("StorageError: ")
    assert other.startswith("TrainingError: the first process")


def test_one_process_needs_nobody():
    alone = joined_processes()
    assert (alone.rank, alone.size, alone.is_first) == (0, 1, True)
    assert alone.from_first(lambda: 7) == 7
    assert alone.own_parts(3) == range(3)


def test_parts_are_shared_out_without_rest():
    for size in (1, 2, 3, 5):
        shares = [set(Processes(rank, size).own_parts(7)) for rank in range(size)]
        assert set().union(*shares) == set(range(7))
        assert sum(map(len, shares)) == 7
