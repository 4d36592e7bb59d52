# SPDX-License-Identifier: Apache-2.0
"""The example scripts run as they are, in seconds, without a warning."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))
TRAINING = [script for script in EXAMPLES if script.stem.startswith("train_")]
RELEASES = [script for script in EXAMPLES if script not in TRAINING]


def run(script, folder):
    """The script in a folder of its own, which is also where its temporary folders go."""
    return subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_there_are_examples():
    assert {script.stem for script in EXAMPLES} >= {
        "adult_groups",
        "adult_model",
        "gaussian_worlds",
        "hospital_prevalence",
        "records_from_csv",
        "shop_volume",
        "train_digits",
        "utility_occupancy",
    }


@pytest.mark.parametrize("script", RELEASES, ids=lambda script: script.stem)
def test_example_releases_under_a_certificate(script, tmp_path):
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    claim = r"(\(\d+, [\d.]+\)-RPP|at most [\d.]+ % right guesses between two values)"
    assert re.search(rf"\nRelease under {claim}, certificate", "\n" + done.stdout)
    assert "INSECURE" not in done.stdout
    # The bounds were fixed before the examples were calibrated.
    shares = re.findall(r"^  [\w -]+ (0\.\d{3})$", done.stdout, re.MULTILINE)
    assert all(float(share) < 0.2 for share in shares)
    rates = re.findall(r"0\.\d{3}", "".join(re.findall("^Noise of .*$", done.stdout, re.MULTILINE)))
    assert all(float(rate) < 0.05 for rate in rates)
    assert bool(shares) == script.stem.endswith(("prevalence", "occupancy", "volume"))
    if script.stem == "adult_groups":
        assert float(re.search(r"isotropic noise, .*: ([\d.]+) times", done.stdout)[1]) > 5
        assert "VERIFIED from the evidence" in done.stdout
        (folder,) = tmp_path.glob("adult-groups-*")
        written = {path.name for path in folder.iterdir()}
        files = {"certificate.evidence.npz", "certificate.json", "release.json"}
        assert written == files | {"census.ledger", "census.spent"}


@pytest.mark.parametrize("script", TRAINING, ids=lambda script: script.stem)
def test_example_trains_under_a_certificate(script, tmp_path):
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.search(r"\nTrained under \(8, 8\)-RPP, certificate [0-9a-f]{16}", done.stdout)
    assert float(re.search(r"held-out digits: ([\d.]+)", done.stdout)[1]) > 0.8
    (folder,) = tmp_path.glob("train-digits-*")
    written = {path.name for path in folder.iterdir()}
    assert written == {"certificate.json", "checkpoint.pt", "run.ledger"}
