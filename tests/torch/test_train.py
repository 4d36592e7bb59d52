# SPDX-License-Identifier: Apache-2.0
"""Whole runs: what is written and to which log, how they resume, and how well they learn.

Runs have fresh noise, so what is asserted of a single one holds for every noise.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from statistics import mean

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from pufferslice import datasets
from pufferslice.certificate import Certificate, verify
from pufferslice.config.document import template
from pufferslice.config.training import TrainingFile, toml_of, training_of
from pufferslice.errors import ArgumentError, StorageError, TrainingError
from pufferslice.learning import mostly_at_most
from pufferslice.learning.keys import RunKey
from pufferslice.learning.plan import recipe_learning_rates
from pufferslice.report.inputs import internal_inputs
from pufferslice.torch.ledger import RunLedger
from pufferslice.torch.models import (
    cross_entropy,
    layer_sizes,
    linear_model,
    n_parameters,
    small_convnet,
)
from pufferslice.torch.train import (
    INTERNAL_NOTE,
    ImageDataset,
    RunLog,
    evaluate,
    held_out_metrics,
    rows_of,
    run_data,
    run_loss,
    run_model,
    run_optimizer,
    run_training,
)
from reproduction.training import evaluate_run

PUBLIC_KEYS = {"step", "n_steps", "notion", "order", "spent_epsilon", "epsilon"}
METRICS = {"held_out_loss", "held_out_accuracy"}


def document(**changes):
    """A training file; `section__key` changes a key, and a secret replaces the other one."""
    content = {
        "data": {"dataset": "digits", "n_records": 60},
        "secret": {"exactly": 2},
        "sampling": {"kind": "poisson", "rate": 0.5},
        "training": {
            "model": "linear", "seed": 0, "learning_rate": 0.5, "n_steps": 4, "clip_norm": 1.0,
        },
        "guarantee": {"accountant": "amplified", "order": 8, "epsilon": 8.0},
        "output": {"folder": "run", "public_evaluation": True, "checkpoint_every": 2},
    }  # fmt: skip
    for name, value in changes.items():
        section, _, key = name.partition("__")
        content[section] = {key: value} if section == "secret" else content[section] | {key: value}
    return content


def request(folder, **changes):
    return training_of(document(**changes), folder)


def rows(run):
    return rows_of(run.folder / "public.jsonl")


def internal_rows(run):
    return rows_of(run.folder / "internal.jsonl")


def weights(folder):
    return torch.load(folder / "model.pt", weights_only=True)


def same_weights(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def stop_after(step):
    """A callback that presses Ctrl-C after a step."""

    def on_step(report):
        if report.step == step:
            signal.raise_signal(signal.SIGINT)

    return on_step


def test_what_is_written(tmp_path):
    asked, reports = request(tmp_path, data__name="sixty digits"), []
    before = os.umask(0o022)
    try:
        run = run_training(asked, on_step=reports.append)
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in run.folder.iterdir()} == {
        **dict.fromkeys(("certificate.json", "model.pt", "public.jsonl"), 0o644),
        **dict.fromkeys(("checkpoint.pt", "internal.jsonl", "run.json", "run.ledger"), 0o600),
    }
    certificate = Certificate.load(run.folder / "certificate.json")
    assert certificate.digest == run.certificate.digest
    assert verify(certificate).holds
    assert certificate.statement.data == "sixty digits"
    (stated,) = certificate.statement.runs
    assert stated.to_json() == asked.plan.to_json() | {"block": stated.block}
    assert stated.block >= 1
    assert certificate.guarantee.epsilon == asked.plan.guarantee().epsilon
    assert [report.step for report in reports] == [1, 2, 3, 4]
    model = linear_model((1, 8, 8), 10)
    model.load_state_dict(weights(run.folder))
    metrics = held_out_metrics(model, cross_entropy, run_data(asked).held_out)
    assert metrics == run.metrics == {key: rows(run)[-1][key] for key in METRICS}


def test_a_tail_in_delta_from_the_file_to_the_report(tmp_path):
    """As the plan made in Python; the log and the certificate state its delta and confidence."""
    content = document(guarantee__delta=1e-4)
    del content["guarantee"]["order"]
    content["secret"] = {"at_most": 2, "tail_probability": 1e-6, "failure_probability": 0.05}
    asked = training_of(content, tmp_path)
    run = run_training(asked)
    statement = run.certificate.statement
    assert asked.plan.differing == mostly_at_most(
        2, tail_probability=1e-6, failure_probability=0.05
    )
    assert statement.guarantee.delta == 1e-4
    assert statement.failure_probability == 0.05
    assert statement.guarantee.epsilon == pytest.approx(8.0, rel=1e-6)
    assert statement.guarantee.epsilon <= 8.0
    assert verify(run.certificate).holds
    logged = rows(run)
    assert all(set(row) == PUBLIC_KEYS - {"order"} | {"delta"} | METRICS for row in logged)
    assert logged[-1]["spent_epsilon"] == pytest.approx(logged[-1]["epsilon"], rel=1e-9)
    assert logged[0]["spent_epsilon"] < logged[-1]["spent_epsilon"]
    (inputs,) = internal_inputs([run.folder / "certificate.json", run.folder / "public.jsonl"])
    assert [log.rows[-1]["delta"] for log in inputs.logs] == [1e-4]


def test_each_number_stands_in_its_log(tmp_path):
    run = run_training(request(tmp_path))
    assert [row["step"] for row in rows(run)] == [1, 2, 3, 4]
    assert all(set(row) == PUBLIC_KEYS | METRICS for row in rows(run))
    spent = [row["spent_epsilon"] for row in rows(run)]
    assert spent == sorted(spent)
    assert spent[-1] == rows(run)[-1]["epsilon"] == run.certificate.guarantee.epsilon
    heading, *internal = internal_rows(run)
    assert heading == {"internal": True, "note": INTERNAL_NOTE}
    assert [row["step"] for row in internal] == [1, 2, 3, 4]
    keys = {"internal", "step", "n_examples", "mean_loss", "n_non_finite", "seconds"}
    assert all(set(row) == keys and row["internal"] is True for row in internal)


def test_held_out_records_that_are_not_declared_public(tmp_path):
    """Also: public rows are as rare as asked for, and the last step has one."""
    changes = {"output__public_evaluation": False, "output__evaluate_every": 3}
    run = run_training(request(tmp_path, **changes))
    assert run.metrics == {}
    assert [row["step"] for row in rows(run)] == [3, 4]
    assert all(set(row) == PUBLIC_KEYS for row in rows(run))
    private = [row["step"] for row in internal_rows(run) if set(row) >= METRICS]
    assert private == [3, 4]


def test_empty_batches_and_data_without_a_name(tmp_path):
    """Rate 1e-9 of 60 records: every batch is empty, a step with noise only and without loss."""
    runs = [
        run_training(request(tmp_path, sampling__rate=1e-9, output__folder=name))
        for name in ("a", "b")
    ]
    batches = [(row["n_examples"], row["mean_loss"]) for row in internal_rows(runs[0])[1:]]
    assert batches == [(0, None)] * 4
    assert len({run.certificate.statement.data for run in runs}) == 2


def test_a_log_keeps_what_was_before_and_drops_an_incomplete_line(tmp_path):
    path = tmp_path / "x.jsonl"
    log = RunLog(path, internal=False, n_taken=0)
    for step in (1, 2, 3):
        log.add({"step": step, "value": float("inf")})
    with path.open("ab") as file:
        file.write(b'{"step": 4, "val')
    assert [row["step"] for row in rows_of(path)] == [1, 2, 3]
    log = RunLog(path, internal=False, n_taken=2)
    assert rows_of(path) == [{"step": 1, "value": None}, {"step": 2, "value": None}]
    path.unlink()
    with pytest.raises(StorageError, match=r"x\.jsonl"):
        log.add({"step": 1})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "training__momentum": 0.9, "training__schedule": "cosine",
            "training__n_warmup_steps": 2, "training__weight_decay": 0.01,
        },
    ],
)  # fmt: skip
def test_ctrl_c_saves_and_the_same_request_resumes(tmp_path, changes):
    """Twice from the same key: interrupted once more, and not. Weights and logs are the same."""
    before = signal.getsignal(signal.SIGINT)
    asked = request(tmp_path, training__n_steps=6, **changes)
    with pytest.raises(KeyboardInterrupt, match="step 1 of 6"):
        run_training(asked, on_step=stop_after(1))
    assert signal.getsignal(signal.SIGINT) is before
    assert not (tmp_path / "run" / "certificate.json").exists()
    shutil.copytree(tmp_path / "run", tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt, match="step 3 of 6"):
        run_training(asked, on_step=stop_after(3))
    broken = run_training(asked)
    whole = run_training(
        request(tmp_path, training__n_steps=6, output__folder="whole", **changes),
        on_step=stop_after(6),  # too late to stop it
    )
    assert same_weights(weights(broken.folder), weights(whole.folder))
    assert rows(broken) == rows(whole)
    assert broken.certificate.digest == whole.certificate.digest
    assert [row["step"] for row in internal_rows(broken)[1:]] == [1, 2, 3, 4, 5, 6]


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    def twice(_report):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stopped:
        run_training(request(tmp_path), on_step=twice)
    assert str(stopped.value) == ""
    runs = []
    thread = threading.Thread(target=lambda: runs.append(run_training(request(tmp_path))))
    thread.start()
    thread.join()
    assert runs[0].n_steps == 4


@pytest.mark.parametrize("n_rows", [pytest.param(0, marks=pytest.mark.soak), 3])
def test_killed_and_started_again(tmp_path, n_rows):
    """A real process, killed at some moment; then the same file again, to the end."""
    changes = {
        "training__n_steps": 80, "output__checkpoint_every": 7, "output__evaluate_every": 5,
    }  # fmt: skip
    (tmp_path / "t.toml").write_text(toml_of(document(**changes)))
    program = "from pufferslice.cli import main; main()"
    command = [sys.executable, "-c", program, "train", "t.toml"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    log, until = tmp_path / "run" / "public.jsonl", time.monotonic() + 100
    while time.monotonic() < until:
        if log.exists() and len(log.read_bytes().splitlines()) >= n_rows:
            break
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "run" / "certificate.json").exists()
    run = run_training(request(tmp_path, **changes))
    assert [row["step"] for row in rows(run)] == list(range(5, 81, 5))
    assert [row["step"] for row in internal_rows(run)[1:]] == list(range(1, 81))
    assert verify(run.certificate).holds


def test_what_a_crash_after_the_last_step_prevented_is_written(tmp_path):
    asked = request(tmp_path)
    run = run_training(asked)
    before, all_rows = weights(run.folder), rows(run)
    for name in ("certificate.json", "model.pt"):
        (run.folder / name).unlink()
    lines = (run.folder / "public.jsonl").read_text().splitlines(keepends=True)
    (run.folder / "public.jsonl").write_text("".join(lines[:-1]))
    again = run_training(asked)
    assert same_weights(weights(run.folder), before)
    assert rows(again) == all_rows
    assert again.certificate.digest == run.certificate.digest
    assert again.metrics == run.metrics
    with pytest.raises(TrainingError, match="finished run"):
        run_training(asked)


@pytest.mark.parametrize(("owner", "name"), [(RunKey, "create"), (RunLedger, "start")])
def test_killed_while_its_folder_is_made(tmp_path, monkeypatch, owner, name):
    """Between record, ledger, key and first entry; the next process can use the folder."""
    (tmp_path / "run").mkdir()
    unfinished = tmp_path / "run" / f".run.json.{'0a' * 8}"
    unfinished.write_bytes(b"{")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, killed)
        with pytest.raises(KeyboardInterrupt):
            run_training(request(tmp_path))
    assert (tmp_path / "run" / "run.ledger").exists()
    assert (tmp_path / "run" / "run.key").exists() == (owner is RunLedger)
    assert run_training(request(tmp_path)).n_steps == 4
    assert not unfinished.exists()


def test_another_request_is_refused_by_what_differs(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_training(request(tmp_path), on_step=stop_after(1))
    with pytest.raises(TrainingError, match=r"learning\.learning_rate;"):
        run_training(request(tmp_path, training__learning_rate=0.25))
    with pytest.raises(TrainingError, match=r"plan\.noise_multipliers;"):
        run_training(request(tmp_path, guarantee__epsilon=4.0))
    run = run_training(request(tmp_path, output__evaluate_every=2))
    assert [row["step"] for row in rows(run)] == [1, 2, 4]


def test_a_folder_with_other_things(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("x")
    for folder in ("run", "run/thesis.tex"):
        with pytest.raises(ArgumentError, match="folder"):
            run_training(request(tmp_path, output__folder=folder))
    with pytest.raises(StorageError, match=r"thesis\.tex/run"):
        run_training(request(tmp_path, output__folder="run/thesis.tex/run"))
    for content in ("", "{}", "[]", '{"format": "pufferslice-run"}'):
        (tmp_path / "run" / "run.json").write_text(content)
        with pytest.raises(TrainingError, match=r"run\.json"):
            run_training(request(tmp_path))
    with pytest.raises(ArgumentError, match="resnet22"):
        run_training(request(tmp_path, training__model="resnet22", output__folder="new"))
    assert not (tmp_path / "new").exists()


def test_the_secret_world_stands_in_no_public_file(tmp_path):
    """Two requests that differ in the world alone: public files name none, certificates agree."""
    statements = []
    for world in ("first", "second"):
        secret = {"label": 3, "shares": [0.2, 0.25], "seed": 7, "world": world}
        changes = {"output__folder": world, "data__name": "digits", "secret__prevalence": secret}
        run = run_training(request(tmp_path, **changes))
        statements.append(run.certificate.statement)
        for name in ("certificate.json", "public.jsonl"):
            text = (run.folder / name).read_text()
            assert '"world"' not in text
            assert "second" not in text
        assert '"world"' in (run.folder / "run.json").read_text()
    assert statements[0] == statements[1]
    assert statements[0].runs[0].differing["counts"] == [3]


def test_a_finished_run_is_evaluated(tmp_path):
    """Members have the labels of their world; losses by the weights themselves, a linear map."""
    secret = {"label": 3, "shares": [0.1, 0.15], "seed": 7, "world": "second"}
    asked = request(tmp_path, secret__prevalence=secret)
    run = run_training(asked)
    parts = evaluate_run(asked)
    assert parts["held_out"].accuracy == run.metrics["held_out_accuracy"]
    assert parts["held_out"].mean_loss == pytest.approx(run.metrics["held_out_loss"], rel=1e-5)
    weight, bias = (value.double().numpy() for value in weights(run.folder).values())
    train, _ = datasets.digits()
    flat = (train.images[:120].reshape(120, -1) / 16 - 0.5) / 0.25
    inputs = flat - flat.mean(axis=1, keepdims=True)
    logits = inputs / (flat.std(axis=1, ddof=1, keepdims=True) + 1e-6) @ weight.T + bias
    labels = np.append(asked.worlds.realised(train.labels[:60]), train.labels[60:120])
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(120), labels]
    for name, part in (("members", slice(0, 60)), ("others", slice(60, 120))):
        np.testing.assert_allclose(parts[name].losses, losses[part], rtol=1e-3, atol=1e-5)
        assert parts[name].accuracy == np.mean(logits.argmax(axis=1)[part] == labels[part])
    assert repr(parts["members"]) == "Evaluation(n_records=60)"


def test_records_of_a_reused_buffer_are_evaluated_one_by_one():
    values = torch.arange(6.0)

    class Reused:
        buffer = torch.zeros(1)

        def __len__(self):
            return 6

        def __getitem__(self, index):
            return self.buffer.fill_(values[index]), 0.0

    found = evaluate(nn.Identity(), lambda outputs, _: outputs[:, 0], Reused())
    assert found.losses.tolist() == values.tolist()


@pytest.mark.slow
def test_digits_are_learnt_within_the_budget(tmp_path):
    """The file of `pufferslice init` as it is: at least 85 % of the held-out digits, mean of 2.

    Twelve runs gave 0.869 to 0.897, so a mean of 2 below 0.85 is no bad luck.
    """
    content = tomllib.loads(template(TrainingFile))
    content["output"]["evaluate_every"] = content["training"]["n_steps"]
    accuracies = []
    for number in range(2):
        content["output"]["folder"] = f"run-{number}"
        run = run_training(training_of(content, tmp_path))
        claim = run.certificate.statement.guarantee
        assert (claim.notion, claim.order) == ("unsliced", 8)
        assert claim.epsilon <= 8
        assert run.certificate.statement.runs[0].differing["counts"] == [4]
        accuracies.append(run.metrics["held_out_accuracy"])
    assert mean(accuracies) >= 0.85


# --- data, models, losses and optimizers that a request names

MODULE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from pufferslice.data import digits

def points(n=20, shift=0):
    inputs = torch.linspace(-1, 1, n * 3).reshape(n, 3)
    return TensorDataset(inputs, torch.arange(n) % 2 + shift)

def data(): return points(), points(4)
def alone(): return points(), None
def images(): return TensorDataset(torch.zeros(20, 3, 8, 8), torch.zeros(20, dtype=int)), None
def wrong_labels(): return points(shift=1), None
def nothing(): return None
def no_train(): return None, points()
def no_records(): return iter([1]), None
def empty_held_out(): return points(), TensorDataset(torch.zeros(0, 3), torch.zeros(0))
def digit_images(): return digits()
def digits_and_nothing(): return digits()[0], None
def a_list(): return [(torch.zeros(3), 1)] * 20, None
def broken(): import module_that_is_not_there

def model(seed): return nn.Linear(3, 2 + seed)
def no_model(seed): return "model"
def frozen(seed): return nn.Linear(3, 2).requires_grad_(False)
def squares(outputs, targets): return (outputs[:, 0] - targets) ** 2
number = 3
"""


@pytest.fixture
def asked(tmp_path, request):
    """Requests beside a module of the user's own, under a name of its own for each test."""
    name = f"own_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(MODULE)

    def make(**changes):
        named = {
            key: value.replace("own:", f"{name}:") if isinstance(value, str) else value
            for key, value in {"data__n_records": 20, "training__n_steps": 8, **changes}.items()
        }
        return training_of(document(**named), tmp_path)

    yield make
    sys.modules.pop(name, None)


def prevalence(world="second"):
    return {"label": 1, "shares": [0.5, 0.6], "seed": 7, "world": world}


def test_digits_are_the_first_of_the_split_on_a_public_scale(asked):
    data = run_data(asked())
    train, held_out = datasets.digits()
    assert (len(data.train), len(data.others), len(data.held_out)) == (20, 20, 360)
    assert (data.shape, data.n_classes) == ((1, 8, 8), 10)
    for records, position, source in ((data.train, 3, 3), (data.others, 4, 24)):
        image, label = records[position]
        assert np.allclose(image[0].numpy(), (train.images[source, :, :, 0] / 16 - 0.5) / 0.25)
        assert label == train.labels[source]
    assert data.held_out[0][1] == held_out.labels[0]
    assert run_data(asked(data__n_records=1_000)).others is None
    with pytest.raises(ArgumentError, match="1438"):
        run_data(asked(data__n_records=1_438))


def test_images_have_their_channels_first_one_by_one_or_together():
    images = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    dataset = ImageDataset(
        datasets.LabelledImages(images=images, labels=np.array([0, 1]), white=255, n_classes=2)
    )
    assert dataset[1][0].shape == (3, 4, 5)
    wanted = (float(images[1, 2, 3, 1]) / 255 - 0.5) / 0.25
    assert dataset[1][0][1, 2, 3].item() == pytest.approx(wanted)
    for index, (image, label) in zip((1, 0, 1), dataset.__getitems__([1, 0, 1]), strict=True):
        assert torch.equal(image, dataset[index][0])
        assert label == dataset[index][1]


@pytest.mark.parametrize(("world", "count"), [("first", 143), ("second", 158)])
def test_only_labels_change_with_the_world(asked, world, count):
    secret = {"label": 3, "shares": [0.1, 0.11], "seed": 7, "world": world}
    changed = asked(data__n_records=1_437, secret__prevalence=secret)
    data, plain = run_data(changed), run_data(asked(data__n_records=1_437))
    labels = np.array([data.train[i][1] for i in range(1_437)])
    assert np.count_nonzero(labels == 3) == count
    assert np.array_equal(labels, changed.worlds.realised(datasets.digits()[0].labels[:1_437]))
    assert all(torch.equal(data.train[i][0], plain.train[i][0]) for i in (0, 700, 1_436))


def test_data_of_ones_own(asked):
    path = list(sys.path)
    data = run_data(asked(data__dataset="own:data", data__n_classes=2))
    assert sys.path == path
    assert (len(data.train), len(data.held_out), data.shape) == (20, 4, (3,))
    assert run_data(asked(data__dataset="own:alone")).held_out is None
    assert len(run_data(asked(data__dataset="own:a_list")).train) == 20
    changed = asked(data__dataset="own:data", secret__prevalence=prevalence())
    assert int((run_data(changed).train.tensors[-1] == 1).sum()) == 12
    with pytest.raises(ArgumentError, match="TensorDataset"):
        run_data(asked(data__dataset="own:a_list", secret__prevalence=prevalence()))


def test_images_of_a_function_are_taken_as_the_digits_are(asked):
    secret = {"label": 3, "shares": [0.1, 0.15], "seed": 7, "world": "second"}
    own, named = (
        run_data(asked(data__dataset=dataset, secret__prevalence=secret))
        for dataset in ("own:digit_images", "digits")
    )
    assert own.n_classes == named.n_classes == 10
    assert own.shape == named.shape
    for mine, theirs in ((own.train, named.train), (own.others, named.others)):
        assert [label for _, label in mine] == [label for _, label in theirs]
        assert all(torch.equal(mine[i][0], theirs[i][0]) for i in range(20))
    assert len(own.held_out) == len(named.held_out)
    assert run_data(asked(data__dataset="own:digit_images", data__n_classes=10)).n_classes == 10


@pytest.mark.parametrize(
    ("dataset", "changes", "match"),
    [
        ("own:nothing", {}, "two datasets"),
        ("own:no_train", {}, "n_records"),
        ("own:no_records", {}, "position"),
        ("own:empty_held_out", {}, "held-out"),
        ("own:data", {"n_records": 19}, "19.*20"),
        ("own:absent", {}, "absent"),
        ("own:number", {}, "number"),
        ("no_such_module:data", {}, "no_such_module"),
        ("no_such.module:data", {}, "no_such.module"),
        ("own:wrong_labels", {"n_classes": 2}, "10 of 20"),
        ("own:digits_and_nothing", {}, "LabelledImages"),
        ("own:digit_images", {"n_classes": 3}, "n_classes is 3, .* 10"),
        ("own:digit_images", {"n_records": 1_438}, "1437"),
    ],
)
def test_data_that_are_refused(asked, dataset, changes, match):
    with pytest.raises(ArgumentError, match=match):
        run_data(asked(data__dataset=dataset, **{f"data__{k}": v for k, v in changes.items()}))


def test_what_the_users_own_module_misses_is_shown_as_it_is(asked):
    with pytest.raises(ModuleNotFoundError, match="module_that_is_not_there"):
        run_data(asked(data__dataset="own:broken"))


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"training__model": "linear"}, 650),
        ({"training__model": "small"}, 1_370),
        ({"data__dataset": "own:data", "training__model": "own:model", "training__seed": 4}, 24),
    ],
)
def test_models_by_name(asked, changes, size):
    request = asked(**changes)
    assert n_parameters(run_model(request, run_data(request))) == size


def test_the_resnet_has_as_many_outputs_as_classes(asked):
    request = asked(data__dataset="own:images", data__n_classes=5, training__model="resnet22")
    assert run_model(request, run_data(request))[-1].out_features == 5
    sizes = {"0.weight": 72, "0.bias": 8, "4.weight": 1280, "4.bias": 10}
    assert layer_sizes(small_convnet((1, 8, 8), 10, seed=0)) == sizes


@pytest.mark.parametrize(
    ("dataset", "model", "match"),
    [
        ("own:data", "own:no_model", "torch module"),
        ("own:data", "linear", "n_classes"),
        ("digits", "resnet22", "3 channels"),
        ("own:data", "own:frozen", "no trainable parameter"),
    ],
)
def test_models_that_are_refused(asked, dataset, model, match):
    request = asked(data__dataset=dataset, training__model=model)
    with pytest.raises(ArgumentError, match=match):
        run_optimizer(request, run_model(request, run_data(request)))


def test_settings_of_the_optimizer_arrive(asked):
    request = asked(training__momentum=0.9, training__weight_decay=0.01)
    optimizer, schedule = run_optimizer(request, nn.Linear(2, 2))
    group = optimizer.param_groups[0]
    assert isinstance(optimizer, torch.optim.SGD)
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.5, 0.9, 0.01)
    assert schedule is None
    adam, _ = run_optimizer(asked(training__optimizer="adam"), nn.Linear(2, 2))
    assert isinstance(adam, torch.optim.Adam)


def test_cosine_is_the_papers_schedule(asked):
    request = asked(training__schedule="cosine", training__n_warmup_steps=3)
    optimizer, schedule = run_optimizer(request, nn.Linear(2, 2))
    rates = []
    for _ in range(8):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    wanted = recipe_learning_rates(peak=0.5, n_steps=8, n_warmup_steps=3)
    assert rates == pytest.approx(wanted.tolist())


def test_metrics_by_hand_and_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 2, bias=False))
    model[1].weight.data = torch.tensor([[0.0], [1.0]])
    model[0].eval()
    inputs = torch.tensor([[1.0], [2.0], [-1.0]]).repeat(200, 1)  # more than are taken at once
    records = TensorDataset(inputs, torch.tensor([1, 0, 0]).repeat(200))
    metrics = held_out_metrics(model, cross_entropy, records)
    losses = np.log1p(np.exp([-1.0, 2.0, -1.0]))
    assert metrics["held_out_loss"] == pytest.approx(losses.mean())
    assert metrics["held_out_accuracy"] == pytest.approx(2 / 3)
    assert [module.training for module in model.modules()] == [True, False, True]


def test_another_loss_has_no_accuracy(asked):
    request = asked(data__dataset="own:data", training__loss="own:squares")
    metrics = held_out_metrics(nn.Linear(3, 1), run_loss(request), run_data(request).held_out)
    assert set(metrics) == {"held_out_loss"}
    assert run_loss(asked()) is cross_entropy
