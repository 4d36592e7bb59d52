# SPDX-License-Identifier: Apache-2.0
"""`pufferslice account`: both ways, all designs, and every wrong use in words."""

import json
import math
import shlex
import subprocess
import sys

import pytest

from pufferslice.cli.app import run

BASE = {
    "n_records": "50000", "exactly": "20", "sampling": "poisson", "batch_size": "512",
    "n_steps": "3920", "order": "16",
}  # fmt: skip
ALL = ["worst_case", "mean_square", "log_moment", "amplified"]


def flags(**changes):
    texts = {**BASE, **changes}
    pairs = [
        (f"--{name.replace('_', '-')}", text) for name, text in texts.items() if text is not None
    ]
    return ["account", *(part for pair in pairs for part in pair)]


def answer(capsys, **changes):
    assert run([*flags(**changes), "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out, parse_constant=pytest.fail)


def test_the_shape_of_the_answer(capsys):
    found = answer(capsys, epsilon="1")
    assert list(found["accountants"]) == ALL
    for row in found["accountants"].values():
        assert {"noise_multiplier", "epsilon", "certifies"} <= set(row)
        assert row["noise_multiplier"] > 0
        assert 1 - 1e-9 < row["epsilon"] <= 1
        assert len(row["certifies"]) > 40
    assert found["not_applicable"] == {}
    assert (found["order"], found["n_steps"]) == (16.0, 3_920)
    assert found["sampling"] == {"kind": "poisson", "n_records": 50_000, "rate": 0.01024}
    assert "does not imply SRPP" in found["accountants"]["mean_square"]["certifies"]


def test_one_record_and_signal_to_noise(capsys):
    found = answer(capsys, epsilon="1", n_parameters="270000")
    for name, row in found["accountants"].items():
        record = row["one_record"]
        assert record["accountant"] == ("log_moment" if name == "mean_square" else name)
        assert record["delta"] == 1e-5
        assert 0 < record["epsilon"] < record["epsilon_at_delta"]
        signal = row["signal_to_noise"]
        expected = 512 / (row["noise_multiplier"] * 270_000**0.5)
        assert signal["per_step"] == pytest.approx(expected, rel=1e-12)
        assert "larger epsilon" in signal["advice"]
    assert run(flags(epsilon="1", n_parameters="270000")) == 0
    text = capsys.readouterr().out
    assert "any single record" in text
    assert "(bounded by log_moment)" in text
    assert text.count("larger batches") == 1
    assert run(flags(epsilon="1")) == 0
    text = capsys.readouterr().out
    assert "in one coordinate" in text
    assert (
        answer(capsys, epsilon="1", delta="1e-7")["accountants"]["amplified"]["one_record"]["delta"]
        == 1e-7
    )
    assert run(flags(epsilon="1", n_parameters="0")) == 2
    assert "n_parameters" in capsys.readouterr().err


def test_short_flags_say_the_same(capsys):
    short = "--records 50000 --differing 20 --sampling poisson --batch 512 --steps 3920 --order 16"
    assert run(["account", *short.split(), "--epsilon", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer(capsys, epsilon="1")
    short = short.replace("--differing 20", "--mismatch 0.001")
    assert run(["account", *short.split(), "--epsilon", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == answer(capsys, exactly=None, mismatch_probability="0.001", epsilon="1")


KNOWN = {
    ("512", "1"): (7083.501959, 175.153412, 176.4677711, 72.53368006),
    ("512", "8"): (2504.396135, 61.92608267, 65.69691082, 25.64145606),
    ("512", "80"): (791.9595949, 19.58274678, 46.08305796, 8.10979814),
    ("1024", "1"): (5008.79227, 188.8837893, 190.6452922, 102.5781335),
    ("1024", "8"): (1770.87549, 66.78050415, 71.88207762, 36.26253012),
    ("1024", "80"): (560.0, 21.11784964, 49.95889417, 11.46826999),
}
STEPS = {"512": "3920", "1024": "1960"}


@pytest.mark.soundness
@pytest.mark.parametrize(("batch", "epsilon"), KNOWN)
def test_known_answers_both_ways(capsys, batch, epsilon):
    """Mean square and log moment are known without replacement, amplified with Poisson."""
    for name, multiplier in zip(ALL, KNOWN[batch, epsilon], strict=True):
        sampling = "poisson" if name == "amplified" else "without-replacement"
        setting = {"sampling": sampling, "batch_size": batch, "n_steps": STEPS[batch]}
        there = answer(capsys, **setting, epsilon=epsilon)["accountants"][name]
        assert there["noise_multiplier"] == pytest.approx(multiplier, rel=1e-9)
        known = {**setting, "noise_multiplier": repr(multiplier)}
        back = answer(capsys, **known)["accountants"][name]
        assert back["epsilon"] == pytest.approx(float(epsilon), rel=2e-8)
        assert back["noise_multiplier"] == multiplier


@pytest.mark.soundness
def test_known_costs_of_single_steps(capsys):
    """One amplified step, and the mean square that hides it."""
    setting = {"n_records": "2000", "batch_size": "20", "n_steps": "1"}  # rate 0.01
    found = answer(capsys, **setting, noise_multiplier="4")["accountants"]
    assert found["amplified"]["epsilon"] == pytest.approx(101.957391276349, rel=1e-9)
    assert found["mean_square"]["epsilon"] == pytest.approx(0.476, rel=1e-12)
    found = answer(capsys, **setting, noise_multiplier="8")["accountants"]
    assert found["amplified"]["epsilon"] == pytest.approx(0.0200009817479189, rel=1e-9)


@pytest.mark.soundness
def test_known_cost_of_random_differing_records(capsys):
    setting = {
        "n_records": "100", "sampling": "without-replacement", "batch_size": "10", "n_steps": "50",
        "order": "4", "noise_multiplier": "40",
    }  # fmt: skip
    found = answer(capsys, **setting, exactly=None, mismatch_probability="0.05")
    assert found["accountants"]["log_moment"]["epsilon"] == pytest.approx(
        0.204848053582437, rel=1e-9
    )
    assert list(found["accountants"]) == ["worst_case", "log_moment"]
    assert "fixed set" in found["not_applicable"]["mean_square"]
    fixed = answer(capsys, **setting, exactly="5")["accountants"]
    assert fixed["log_moment"]["epsilon"] == pytest.approx(0.173487203414766, rel=1e-9)
    assert fixed["mean_square"]["epsilon"] == pytest.approx(0.170454545454545, rel=1e-9)


def test_designs_differ(capsys):
    found = {
        design: answer(capsys, sampling=design, noise_multiplier="100", n_steps="1", order="2")
        for design in ("poisson", "without-replacement", "with-replacement")
    }
    squares = {"poisson": 0.244645888, "without-replacement": 0.244568859377}
    squares["with-replacement"] = 0.24666112
    for design, square in squares.items():
        cost = found[design]["accountants"]["mean_square"]["epsilon"]
        assert cost == pytest.approx(2 * 2 * square / 100**2, rel=1e-10)
    caps = {"poisson": 20, "without-replacement": 20, "with-replacement": 512}
    for design, cap in caps.items():
        cost = found[design]["accountants"]["worst_case"]["epsilon"]
        assert cost == pytest.approx(4 * cap**2 / 100**2, rel=1e-14)
    assert ["amplified" in one["accountants"] for one in found.values()] == [True, False, False]
    assert "needs Poisson" in found["with-replacement"]["not_applicable"]["amplified"]


def test_the_poisson_batch_is_the_expected_size(capsys):
    found = answer(capsys, batch_size="0.5", noise_multiplier="50", n_records="1000")
    assert found["sampling"]["rate"] == 0.0005


def test_at_most(capsys):
    found = answer(capsys, exactly=None, at_most="20", epsilon="1")
    assert list(found["accountants"]) == ["worst_case", "log_moment", "amplified"]
    assert found["accountants"]["worst_case"]["noise_multiplier"] == pytest.approx(
        7083.501959, rel=1e-9
    )


@pytest.mark.soundness
def test_delta_and_comparison(capsys):
    setting = {"n_records": "100", "exactly": "3", "batch_size": "10", "n_steps": "20"}
    setting["order"] = "4"
    found = answer(capsys, **setting, epsilon="1", delta="1e-5")
    rows = {name: row["epsilon_at_delta"] for name, row in found["accountants"].items()}
    assert rows["mean_square"] == {"none": "an average over batch draws gives no (epsilon, delta)"}
    assert 0 < rows["log_moment"]["loss_distribution"] < rows["log_moment"]["order_grid"]
    assert rows["amplified"]["loss_distribution"] == "not for this accountant"
    assert list(found["comparison"]) == ["dp_sgd", "group_dp_sgd", "group_dp_sgd_all"]
    noise = answer(capsys, **setting, noise_multiplier="12", delta="1e-5")
    assert "comparison" not in noise
    assert run([*flags(**setting, epsilon="1", delta="1e-5")]) == 0
    prose = capsys.readouterr().out
    assert "Unsliced epsilon at delta 1e-05:" in prose
    assert "mean_square: none: an average over batch draws" in prose
    assert "dp_sgd (protects one record)" in prose
    assert "group_dp_sgd_all (protects any 3 records" in prose
    assert run([*flags(**setting, epsilon="40", delta="1e-5")]) == 0
    assert "group_dp_sgd_all does not apply" in capsys.readouterr().out


def test_prose(capsys):
    assert run(flags(sampling="without-replacement", epsilon="1")) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("3920 steps at order 16; exactly 20 records differ.")
    # Rounded up: 7083.501959, 175.153412 and 176.4677711.
    for text in ("noise multiplier", "7083.51", "175.154", "176.468", "amplified does not apply:"):
        assert text in shown
    assert "does not imply SRPP" in shown
    with pytest.raises(json.JSONDecodeError):
        json.loads(shown)


WRONG_USE = [
    ({"batch_size": "50001", "epsilon": "1"}, "at most --n-records 50000"),
    ({"batch_size": "0", "epsilon": "1"}, "--batch-size must be above 0"),
    ({"batch_size": "-5", "epsilon": "1"}, "--batch-size must be above 0"),
    ({"batch_size": "nan", "epsilon": "1"}, "--batch-size must be above 0"),
    ({"batch_size": "inf", "epsilon": "1"}, "--batch-size must be above 0"),
    ({"sampling": "without-replacement", "batch_size": "50001", "epsilon": "1"}, "batch_size"),
    ({"sampling": "with-replacement", "batch_size": "50001", "epsilon": "1"}, "batch_size"),
    ({"sampling": "without-replacement", "batch_size": "0", "epsilon": "1"}, "batch_size"),
    ({"sampling": "without-replacement", "batch_size": "1.5", "epsilon": "1"}, "integer"),
    ({"sampling": "without-replacement", "batch_size": "inf", "epsilon": "1"}, "integer"),
    ({"sampling": "with-replacement", "batch_size": "nan", "epsilon": "1"}, "integer"),
    ({"sampling": "shuffled", "epsilon": "1"}, "sampling must be one of poisson"),
    ({"n_records": "0", "epsilon": "1"}, "n_records must be an integer and at least 1"),
    ({"exactly": "50001", "epsilon": "1"}, "50001"),
    ({"exactly": "50001", "noise_multiplier": "1"}, "50001"),
    ({"exactly": None, "at_most": "50001", "epsilon": "1"}, "50001"),
    ({"exactly": "-1", "epsilon": "1"}, "at least 0"),
    ({"exactly": None, "mismatch_probability": "1.5", "epsilon": "1"}, "probability from 0 to 1"),
    ({"exactly": None, "mismatch_probability": "nan", "epsilon": "1"}, "probability from 0 to 1"),
    (
        {"exactly": None, "epsilon": "1"},
        "exactly one of --exactly, --at-most",
    ),
    ({"at_most": "3", "epsilon": "1"}, "got 2 of the three"),
    ({"noise_multiplier": "0"}, "noise_multiplier must be a finite number greater than 0"),
    ({"noise_multiplier": "-3"}, "noise_multiplier must be a finite number greater than 0"),
    ({"noise_multiplier": "nan"}, "noise_multiplier must be a finite number greater than 0"),
    ({"noise_multiplier": "1e-200"}, "noise_multiplier must lie between"),
    ({"noise_multiplier": "1e200"}, "noise_multiplier must lie between"),
    ({"order": "1", "epsilon": "1"}, "order must be a finite number greater than 1"),
    ({"order": "0.5", "noise_multiplier": "5"}, "order must be a finite number greater than 1"),
    ({"order": "nan", "epsilon": "1"}, "order must be a finite number greater than 1"),
    ({"order": "inf", "epsilon": "1"}, "order must be a finite number greater than 1"),
    ({"epsilon": "0"}, "epsilon must be a finite number greater than 0"),
    ({"epsilon": "-1"}, "epsilon must be a finite number greater than 0"),
    ({"epsilon": "inf"}, "epsilon must be a finite number greater than 0"),
    ({"n_steps": "0", "epsilon": "1"}, "n_steps must be an integer and at least 1"),
    ({"n_steps": "-2", "noise_multiplier": "1"}, "n_steps must be an integer and at least 1"),
    ({"n_steps": "1000000000000", "epsilon": "1"}, "n_steps must be at most"),
    ({"epsilon": "1", "noise_multiplier": "5"}, "either --epsilon"),
    ({}, "either --epsilon"),
    ({"epsilon": "1", "delta": "0"}, "delta must lie strictly between 0 and 1"),
    ({"epsilon": "1", "delta": "2"}, "delta must lie strictly between 0 and 1"),
]
REFUSED = [
    ({"epsilon": "1e-320"}, "is not between the cost"),
    ({"epsilon": "1e300"}, "is not between the cost"),
    ({"epsilon": "1", "order": "1e308"}, "is not between the cost"),
    ({"epsilon": "1", "exactly": "0"}, "nothing to calibrate"),
    ({"epsilon": "1", "exactly": None, "mismatch_probability": "0"}, "nothing to calibrate"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG_USE, ids=str)
def test_wrong_use(capsys, changes, words):
    assert run([*flags(**changes), "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert words in shown.err


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=str)
def test_what_no_noise_can_give(capsys, changes, words):
    assert run([*flags(**changes), "--json"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err


def test_a_value_that_is_no_number_and_a_missing_option(capsys):
    assert run([*flags(n_steps="many", epsilon="1")]) == 2
    assert run([*flags(order=None, epsilon="1")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_no_record_differs(capsys):
    found = answer(capsys, exactly="0", noise_multiplier="5")
    assert [row["epsilon"] for row in found["accountants"].values()] == [0.0] * 4


@pytest.mark.parametrize("extreme", [{"noise_multiplier": "1e-90"}, {"noise_multiplier": "1e90"}])
def test_extremes_are_numbers_or_errors(capsys, extreme):
    code = run([*flags(**extreme), "--json"])
    shown = capsys.readouterr()
    if code:
        assert (code, shown.out) == (1, "")
        assert shown.err.startswith("error: ")
    else:
        rows = json.loads(shown.out, parse_constant=pytest.fail)["accountants"]
        assert all(math.isfinite(row["epsilon"]) and row["epsilon"] > 0 for row in rows.values())


def test_as_a_process():
    """The documented line, and a wrong one: exit codes, one JSON object, no traceback."""
    line = (
        "account --n-records 50000 --exactly 20 --sampling poisson --batch-size 512 --n-steps 3920 "
        "--order 16 --noise-multiplier 72.5 --json"
    )
    program = [sys.executable, "-c", "from pufferslice.cli import main; main()"]
    good = subprocess.run(
        [*program, *shlex.split(line)], capture_output=True, text=True, check=True
    )
    assert json.loads(good.stdout)["accountants"]["amplified"]["epsilon"] == pytest.approx(
        1, rel=2e-3
    )
    bad = subprocess.run(
        [*program, *shlex.split(line.replace("--batch-size 512", "--batch-size 1e9"))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "Traceback" not in bad.stderr
