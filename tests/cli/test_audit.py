# SPDX-License-Identifier: Apache-2.0
"""`pufferslice audit`: exit codes, words, JSON, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pufferslice.audit import Outputs, draw_outputs
from pufferslice.certificate import Certificate
from pufferslice.cli.app import run
from pufferslice.config import read_request

SCENARIO = """
[query]
distribution = "worlds"
mean = ["pay", "age"]
[worlds]
low = "low.csv"
high = "high.csv"
[profile]
kind = "uniform"
n_directions = 6
seed = 7
[guarantee]
notion = "joint"
order = 2
epsilon = {epsilon}
"""
ONE = "audit one.json --scenario one.toml"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two worlds of one table each, certified, and outputs with half the noise."""
    folder = tmp_path_factory.mktemp("audit")
    (folder / "low.csv").write_text("pay,age\n1,3\n2,4\n3,5\n")
    (folder / "high.csv").write_text("pay,age\n2,3\n3,4\n4,6\n")
    for name, epsilon in (("one", 1.0), ("six", 6.0), ("other", 1.0)):
        text = SCENARIO.format(epsilon=epsilon)
        (folder / f"{name}.toml").write_text(text.replace("high.csv", "low.csv") if name == "other"
                                             else text)  # fmt: skip
    for name in ("one", "six"):
        scenario = str(folder / f"{name}.toml")
        assert run(["calibrate", scenario, "--out", str(folder / f"{name}.json")]) == 0
    request = read_request(folder / "one.toml")
    certificate = Certificate.load(folder / "one.json")
    drawn = draw_outputs(request.scenario, certificate, 20_000, seed=0)
    distributions = request.scenario.priors[0].distributions
    values = {
        secret: (distributions[secret].outputs[0] + array) / 2
        for secret, array in drawn.values["declared"].items()
    }
    outputs = Outputs(certificate=certificate.digest, values={"declared": values})
    outputs.save(folder / "broken.npz")
    np.savez(folder / "damaged.npz", x=np.zeros(3))
    return folder


@pytest.fixture(autouse=True)
def folder(made, monkeypatch):
    monkeypatch.chdir(made)


def test_a_right_mechanism_stands(ask):
    answer = ask(ONE, "--n-outputs 20000 --plot found.svg")
    assert answer.code == 0
    assert "Picture, internal: found.svg" in answer.out
    assert "What attacks found, against what is claimed" in Path("found.svg").read_text()
    assert answer.out.startswith("NOT REFUTED at confidence 0.95")
    for words in ("(2, 1)-Joint-SRPP", "the unsliced bound", "can refute claims below"):
        assert words in answer.out
    assert ask(ONE, "--json").json["n_outputs"] == 100_000


@pytest.mark.soundness
def test_half_the_noise_exits_with_one_and_says_where():
    """A real process, because the exit code is what scripts look at."""
    command = [sys.executable, "-c", "from pufferslice.cli import main; main()", *ONE.split()]
    done = subprocess.run(
        [*command, "--supplied", "broken.npz"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("REFUTED at confidence 0.95")
    claim = done.stdout.split("REFUTED: (2, 1)-Joint-SRPP\n")[1].split("\n")
    assert "Rényi divergence of order 2, joint over 6 slices" in claim[0]
    for words in ("seen best between", "'low'", "along slice "):
        assert words in claim[1]


def test_json(ask):
    answer = ask(ONE, "--supplied broken.npz --json --confidence 0.99")
    document = json.loads(answer.out)
    assert (answer.code, document["refuted"], document["confidence"]) == (1, True, 0.99)
    first = document["verdicts"][0]
    assert (first["outcome"], set(first["pair"])) == ("refuted", {"low", "high"})
    assert first["lower_bound"] > first["claimed"] == 1.0
    attacks = {inference["attack"] for inference in document["inferences"]}
    assert attacks == {"gaussian_map", "likelihood_ratio"}
    assert ask(ONE, "--n-outputs 5000 --json").json["refuted"] is False


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{ONE} --n-outputs 99", "at least 100"),
        (f"{ONE} --n-outputs 1000 --confidence 1", "confidence"),
        (f"{ONE} --n-outputs 1000 --seed -1", "seed"),
        (f"{ONE} --n-outputs 1000 --supplied x.npz", "not both"),
        (f"{ONE} --supplied absent.npz", "absent.npz"),
        (f"{ONE} --supplied damaged.npz", "does not hold outputs"),
        ("audit one.json --scenario other.toml --n-outputs 1000", "another scenario"),
        ("audit six.json --scenario six.toml --supplied broken.npz", "made under certificate"),
        ("audit six.json --scenario six.toml --n-outputs 150", "would put (2, 6)-Joint-SRPP in"),
    ],
)
def test_wrong_use(ask, line, words):
    answer = ask(line)
    assert (answer.code, words in answer.err) == (2, True), answer.err
