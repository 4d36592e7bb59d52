# SPDX-License-Identifier: Apache-2.0
"""`pufferslice audit`: exit codes, words, JSON, and what it refuses."""

import json
import subprocess
import sys

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two worlds of one table each, certified."""
    where = tmp_path_factory.mktemp("audit")
    (where / "low.csv").write_text("pay,age\n1,3\n2,4\n3,5\n")
    (where / "high.csv").write_text("pay,age\n2,3\n3,4\n4,6\n")
    for name, epsilon in (("one", 1.0), ("six", 6.0)):
        (where / f"{name}.toml").write_text(SCENARIO.format(epsilon=epsilon))
        arguments = ["calibrate", str(where / f"{name}.toml"), "--out", str(where / f"{name}.json")]
        assert run(arguments) == 0
    return where


def audit(folder, *more, certificate="one", scenario="one"):
    paths = [str(folder / f"{certificate}.json"), "--scenario", str(folder / f"{scenario}.toml")]
    return run(["audit", *paths, *more])


@pytest.fixture(scope="module")
def broken(folder):
    """Outputs of a mechanism that adds half the noise."""
    request = read_request(folder / "one.toml")
    certificate = Certificate.load(folder / "one.json")
    drawn = draw_outputs(request.scenario, certificate, 20_000, seed=0)
    distributions = request.scenario.priors[0].distributions
    values = {
        secret: distributions[secret].outputs[0] + (array - distributions[secret].outputs[0]) / 2
        for secret, array in drawn.values["declared"].items()
    }
    path = folder / "broken.npz"
    Outputs(certificate=certificate.digest, values={"declared": values}).save(path)
    return path


def test_a_right_mechanism_stands(folder, capsys):
    assert audit(folder, "--n-outputs", "20000") == 0
    output = capsys.readouterr().out
    assert output.startswith("NOT REFUTED at confidence 0.95")
    assert "(2, 1)-Joint-SRPP" in output
    assert "the unsliced bound" in output
    assert "can refute claims below" in output


@pytest.mark.soundness
def test_half_the_noise_exits_with_one_and_says_where(folder, broken):
    """A real process, because the exit code is what scripts look at."""
    command = [sys.executable, "-c", "from pufferslice.cli import main; main()"]
    arguments = ["audit", folder / "one.json", "--scenario", folder / "one.toml"]
    done = subprocess.run(
        [*command, *arguments, "--supplied", broken], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("REFUTED at confidence 0.95")
    claim = done.stdout.split("REFUTED: (2, 1)-Joint-SRPP\n")[1].split("\n")
    assert "Rényi divergence of order 2, joint over 6 slices" in claim[0]
    assert "seen best between" in claim[1]
    assert "'low'" in claim[1]
    assert "along slice " in claim[1]


def test_json(folder, broken, capsys):
    assert audit(folder, "--supplied", str(broken), "--json", "--confidence", "0.99") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["refuted"] is True
    assert document["confidence"] == 0.99
    first = document["verdicts"][0]
    assert first["outcome"] == "refuted"
    assert set(first["pair"]) == {"low", "high"}
    assert first["lower_bound"] > first["claimed"] == 1.0
    assert {one["attack"] for one in document["inferences"]} == {
        "gaussian_map",
        "likelihood_ratio",
    }
    assert audit(folder, "--n-outputs", "5000", "--json") == 0
    assert json.loads(capsys.readouterr().out)["refuted"] is False


def test_the_number_of_outputs_has_a_default(folder, capsys):
    assert audit(folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["n_outputs"] == 100_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n-outputs", "99"], "at least 100"),
        (["--n-outputs", "0"], "n_outputs"),
        (["--n-outputs", "1000", "--confidence", "1"], "confidence"),
        (["--n-outputs", "1000", "--seed", "-1"], "seed"),
        (["--n-outputs", "1000", "--supplied", "x.npz"], "not both"),
        (["--supplied", "absent.npz"], "absent.npz"),
    ],
)
def test_wrong_use(folder, capsys, arguments, message):
    assert audit(folder, *arguments) == 2
    assert message in capsys.readouterr().err


def test_too_few_outputs_for_the_claim(folder, capsys):
    assert audit(folder, "--n-outputs", "150", certificate="six", scenario="six") == 2
    output = capsys.readouterr().err
    assert "too few outputs" in output
    assert "outputs under each secret would put (2, 6)-Joint-SRPP in reach" in output


def test_outputs_of_another_certificate(folder, broken, capsys):
    more = ["--supplied", str(broken)]
    assert audit(folder, *more, certificate="six", scenario="six") == 2
    assert "made under certificate" in capsys.readouterr().err


def test_another_scenario(folder, capsys, tmp_path):
    for name in ("low", "high"):
        (tmp_path / f"{name}.csv").write_text("pay,age\n1,3\n2,4\n3,9\n")
    (tmp_path / "one.toml").write_text(SCENARIO.format(epsilon=1.0))
    arguments = ["audit", str(folder / "one.json"), "--scenario", str(tmp_path / "one.toml")]
    assert run([*arguments, "--n-outputs", "1000"]) == 2
    assert "another scenario" in capsys.readouterr().err


def test_damaged_outputs(folder, capsys, tmp_path):
    path = tmp_path / "outputs.npz"
    np.savez(path, x=np.zeros(3))
    assert audit(folder, "--supplied", str(path)) == 2
    assert "does not hold outputs" in capsys.readouterr().err
