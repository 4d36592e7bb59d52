# SPDX-License-Identifier: Apache-2.0
"""The measurements of private steps, on the smallest model."""

import importlib
import sys

import pytest

pytest.importorskip("opacus")

pytestmark = pytest.mark.filterwarnings("ignore")  # those of Opacus, which would stop its steps


@pytest.fixture
def private_step(repository, monkeypatch):
    monkeypatch.syspath_prepend(repository / "benchmarks")
    yield importlib.import_module("private_step")
    for name in ("private_step", "process_memory", "rows"):
        del sys.modules[name]


@pytest.fixture
def case(private_step):
    return private_step.CASES["mlp"]


def test_every_contender_is_timed_on_the_smallest_model(private_step, case, monkeypatch):
    monkeypatch.setattr(private_step, "SHORTEST_TURN", 0.0)
    found = private_step.times(case, private_step.CONTENDERS, rounds=1)
    assert found.keys() == private_step.CONTENDERS.keys()
    assert all(isinstance(seconds, float) and seconds > 0 for seconds in found.values())


def test_our_step_takes_poisson_batches_of_the_expected_size(private_step, case):
    step = private_step.trainer_step(case, case.data())
    sizes = [step().n_examples for _ in range(20)]
    assert len(set(sizes)) > 1
    # 16 records is one standard deviation of a batch, so this is more than eight of the mean.
    assert abs(sum(sizes) / len(sizes) - case.batch_size) < 32


def test_memory_is_that_of_a_process_with_torch(private_step, case):
    found = private_step.in_process("peak", "mlp", contenders=["plain"])
    assert 100 < found["plain"] < 10_000


def test_a_contender_that_fails_is_named_with_the_reason(private_step, case, monkeypatch):
    def failing(case, data):
        raise NotImplementedError("no rule\nfor this layer")

    monkeypatch.setitem(private_step.CONTENDERS, "hooks", failing)
    found = private_step.times(case, ["hooks"], rounds=1)
    assert found == {"hooks": "NotImplementedError: no rule for this layer"}
    found |= {"plain": 1.0, "ours": 2.0, "functorch": 6.0, "ghost": 4.0}
    _, over_ours = private_step.time_rows(case, 1, found)
    assert over_ours["ratio"] == 2.0
    assert "ghost, over ours (hooks: NotImplementedError" in over_ours["name"]


@pytest.mark.parametrize(
    ("times", "ratios", "met"),
    [
        ({"plain": 1.0, "ours": 2.5, "ghost": 2.75}, (2.5, 1.1), (True, True)),
        ({"plain": 1.0, "ours": 2.6, "ghost": 2.75}, (2.6, 2.75 / 2.6), (False, False)),
        ({"plain": 1.0, "ours": "ValueError: no", "ghost": 3.0}, (None, None), (False, False)),
    ],
)
def test_rows_hold_ratios_against_goals(private_step, case, times, ratios, met):
    rows = private_step.time_rows(case, 1, times)
    assert tuple(row["ratio"] for row in rows) == pytest.approx(ratios)
    assert tuple(row["met"] for row in rows) == met


def test_memory_is_held_against_the_leanest_mode(private_step, case):
    row = private_step.memory_row(case, {"ours": 300.0, "hooks": 900.0, "ghost": 250.0})
    assert (row["ratio"], row["met"]) == (1.2, False)
    assert "ghost" in row["name"]
