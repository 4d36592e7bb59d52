# SPDX-License-Identifier: Apache-2.0
"""`pufferslice account`: both ways, all designs, and every wrong use in words."""

import json

import pytest

from pufferslice import Guarantee
from pufferslice.baselines import account
from pufferslice.learning import LogMoment, Poisson, binomial, mostly_at_most, plan_training

BASE = {
    "n_records": "50000", "exactly": "20", "sampling": "poisson", "batch_size": "512",
    "n_steps": "3920", "order": "16",
}  # fmt: skip
ALL = ["worst_case", "mean_square", "log_moment", "amplified"]


def line(**changes):
    options = {k: text for k, text in (BASE | changes).items() if text is not None}
    return "account " + " ".join(f"--{k.replace('_', '-')} {text}" for k, text in options.items())


@pytest.fixture
def table(ask):
    return lambda **changes: ask(line(**changes), "--json").json


def test_the_shape_of_the_answer(table):
    answer = table(epsilon="1", n_parameters="270000")
    assert list(answer["accountants"]) == ALL
    for name, row in answer["accountants"].items():
        assert row["noise_multiplier"] > 0
        assert 1 - 1e-9 < row["claim"]["epsilon"] <= 1
        assert 0.5 < row["guess"] < 1
        assert row["relation"] == "replace records: exactly 20 records differ"
        assert len(row["certifies"]) > 40
        record = row["one_record"]
        assert record["accountant"] == ("log_moment" if name == "mean_square" else name)
        assert record["delta"] == 1e-5
        assert record["relation"] == "replace 1 record"
        assert min(record["epsilon"], record["epsilon_at_delta"]) > 0
        signal = row["signal_to_noise"]
        expected = 512 / (row["noise_multiplier"] * 270_000**0.5)
        assert signal["per_step"] == pytest.approx(expected, rel=1e-12)
        assert "weaker claim" in signal["advice"]
    assert answer["not_applicable"] == {}
    assert answer["measure"] == {"notion": "unsliced", "order": 16.0}
    assert answer["n_steps"] == 3_920
    assert answer["sampling"] == {"kind": "poisson", "n_records": 50_000, "rate": 0.01024}
    assert "does not imply SRPP" in answer["accountants"]["mean_square"]["certifies"]


def test_short_flags_say_the_same(table, ask):
    short = "account --records 50000 --sampling poisson --batch 512 --steps 3920 --order 16 --json"
    fixed = ask(short, "--differing 20 --epsilon 1").json
    assert fixed == table(epsilon="1")
    random = ask(short, "--mismatch 0.001 --epsilon 1").json
    assert random == table(exactly=None, mismatch_probability="0.001", epsilon="1")


KNOWN = {
    ("512", "1"): (7083.501959, 175.153412, 176.4677711, 72.53368006),
    ("1024", "80"): (560.0, 21.11784964, 49.95889417, 11.46826999),
}
"""Two of the settings of tests/baselines/test_account.py, through the command and back."""
STEPS = {"512": "3920", "1024": "1960"}


@pytest.mark.soundness
@pytest.mark.parametrize(("batch", "epsilon"), KNOWN)
def test_known_answers_both_ways(table, batch, epsilon):
    """Mean square and log moment are known without replacement, amplified with Poisson."""
    for name, multiplier in zip(ALL, KNOWN[batch, epsilon], strict=True):
        sampling = "poisson" if name == "amplified" else "without-replacement"
        setting = {"sampling": sampling, "batch_size": batch, "n_steps": STEPS[batch]}
        there = table(**setting, epsilon=epsilon)["accountants"][name]
        assert there["noise_multiplier"] == pytest.approx(multiplier, rel=1e-9)
        back = table(**setting, noise_multiplier=repr(multiplier))["accountants"][name]
        assert back["claim"]["epsilon"] == pytest.approx(float(epsilon), rel=2e-8)
        assert back["noise_multiplier"] == multiplier


STEP = {"n_records": "2000", "batch_size": "20", "n_steps": "1"}  # rate 0.01
SHORT = {
    "n_records": "100", "sampling": "without-replacement", "batch_size": "10", "n_steps": "50",
    "order": "4", "noise_multiplier": "40",
}  # fmt: skip


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("setting", "costs"),
    [
        (STEP | {"noise_multiplier": "4"},
         {"amplified": 101.957391276349, "mean_square": 0.476}),
        (STEP | {"noise_multiplier": "8"}, {"amplified": 0.0200009817479189}),
        (SHORT | {"exactly": None, "mismatch_probability": "0.05"},
         {"log_moment": 0.204848053582437}),
        (SHORT | {"exactly": "5"},
         {"log_moment": 0.173487203414766, "mean_square": 0.170454545454545}),
    ],
)  # fmt: skip
def test_known_costs(table, setting, costs):
    """One amplified step, and the mean square that hides it; random and fixed records."""
    answer = table(**setting)
    for name, cost in costs.items():
        assert answer["accountants"][name]["claim"]["epsilon"] == pytest.approx(cost, rel=1e-9)
    if "mismatch_probability" in setting:
        assert list(answer["accountants"]) == ["worst_case", "log_moment"]
        assert "fixed set" in answer["not_applicable"]["mean_square"]


@pytest.mark.parametrize(
    ("design", "square", "cap"),
    [("poisson", 0.244645888, 20), ("without-replacement", 0.244568859377, 20),
     ("with-replacement", 0.24666112, 512)],
)  # fmt: skip
def test_designs_differ(table, design, square, cap):
    answer = table(sampling=design, noise_multiplier="100", n_steps="1", order="2")
    rows = answer["accountants"]
    assert rows["mean_square"]["claim"]["epsilon"] == pytest.approx(4 * square / 100**2, rel=1e-10)
    assert rows["worst_case"]["claim"]["epsilon"] == pytest.approx(4 * cap**2 / 100**2, rel=1e-14)
    assert ("amplified" in rows) == (design == "poisson")
    if design != "poisson":
        assert "needs Poisson" in answer["not_applicable"]["amplified"]


def test_expected_sizes_and_largest_numbers(table):
    small = table(batch_size="0.5", noise_multiplier="50", n_records="1000")
    assert small["sampling"]["rate"] == 0.0005
    rows = table(exactly=None, at_most="20", epsilon="1")["accountants"]
    assert list(rows) == ["worst_case", "log_moment", "amplified"]
    assert rows["worst_case"]["noise_multiplier"] == pytest.approx(7083.501959, rel=1e-9)


COMPARED = {"n_records": "100", "exactly": "3", "batch_size": "10", "n_steps": "20", "order": None}


@pytest.mark.soundness
def test_every_row_meets_one_target_and_names_its_relation(table, ask, monkeypatch):
    """DP-SGD beside it is computed once; the prose is of the same rows, and of one left out."""
    asked = COMPARED | {"epsilon": "1", "delta": "1e-5"}
    answer = table(**asked)
    rows = answer["accountants"]
    assert list(rows) == ["worst_case", "log_moment", "amplified"]
    for row in rows.values():
        assert 1 - 1e-6 < row["claim"]["epsilon"] <= 1
        assert row["claim"]["delta"] == row["one_record"]["delta"] == 1e-5
    assert "Guarantee.guess" in answer["not_applicable"]["mean_square"]
    compared = answer["comparison"]
    relations = {name: row["relation"] for name, row in compared.items()}
    assert relations["record"] == "replace 1 record"
    assert relations["dp_sgd"] == "add or remove 1 record"
    assert list(compared) == ["record", "dp_sgd", "group_dp_sgd", "group_dp_sgd_all"]
    monkeypatch.setattr(account, "comparison_rows", lambda *_: dict(compared))
    prose = ask(line(**asked)).out
    assert prose.startswith("20 steps, noise for (1, 1e-05)-PP.")
    for words in ("mean_square does not apply:", "the promise is weaker", *relations.values()):
        assert words in prose
    compared["group_dp_sgd_all"] = {"group_size": 3, "not_applicable": "too large"}
    assert "group_dp_sgd_all does not apply: too large" in ask(line(**asked)).out


@pytest.mark.soundness
def test_right_guesses_and_bits(table):
    """All four accountants answer; a given noise is measured by right guesses, too."""
    asked = COMPARED | {"exactly": None, "mismatch_probability": "0.02"}
    answer = table(**asked, guess="0.64")
    assert list(answer["accountants"]) == ALL
    assert list(answer["comparison"]) == ["record", "dp_sgd"]
    for name, row in answer["accountants"].items():
        assert 0.64 - 1e-6 < row["claim"]["at_most"] == row["guess"] <= 0.64
        back = table(**asked, noise_multiplier=repr(row["noise_multiplier"]))
        assert back["accountants"][name]["claim"] == row["claim"]
        assert "comparison" not in back
    bits = table(**asked, bits="0.1")
    assert list(bits["accountants"]) == ALL
    assert bits["comparison"] == {}
    for row in bits["accountants"].values():
        assert 0.1 - 1e-6 < row["claim"]["bits"] <= 0.1


def test_prose(ask):
    shown = ask(line(sampling="without-replacement", epsilon="1")).out
    assert shown.startswith("3920 steps, noise for (16, 1)-RPP.")
    # Rounded up: 7083.501959, 175.153412 and 176.4677711.
    for words in ("noise multiplier", "7083.51", "175.154", "176.468", "amplified does not apply:",
                  "does not imply SRPP", "in one coordinate", "Any single record",
                  "(bounded by log_moment)", "exactly 20 records differ"):  # fmt: skip
        assert words in shown
    many = ask(line(epsilon="1", n_parameters="270000")).out
    assert "over 270000 parameters" in many
    assert many.count("larger batches") == 1
    guesses = ask(line(**COMPARED, noise_multiplier="12")).out
    assert guesses.startswith("20 steps, cost of the noise in right guesses.")
    assert " %" in guesses


RARE = {
    "n_records": "1000", "batch_size": "100", "n_steps": "50", "order": None, "exactly": None,
    "delta": "1e-5",
}  # fmt: skip
TAIL = {"mismatch_probability": "0.002", "tail_probability": "1e-6"}


@pytest.mark.parametrize(
    ("secret", "differing"),
    [
        (TAIL, binomial(n_records=1_000, mismatch_probability=0.002)),
        (
            {"at_most": "12", "tail_probability": "1e-6", "failure_probability": "0.01"},
            mostly_at_most(12, tail_probability=1e-6, failure_probability=0.01),
        ),
    ],
    ids=["cut", "simulated"],
)
def test_a_tail_is_as_planned_in_python(table, secret, differing):
    if not differing.excess_probability:
        differing = differing.truncated(tail_probability=1e-6)
    answer = table(epsilon="2", **RARE | secret)
    plan = plan_training(
        differing=differing,
        sampling=Poisson(n_records=1_000, rate=0.1),
        clip_norm=1.0,
        n_steps=50,
        accountant=LogMoment(),
        target=Guarantee.epsilon_delta(2.0, 1e-5),
    )
    row = answer["accountants"]["log_moment"]
    assert row["noise_multiplier"] == plan.noise_multipliers[0]
    assert row["claim"]["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert row["claim"]["epsilon"] <= 2
    assert row["certifies"].startswith("(epsilon, delta)")
    assert "mean_square" in answer["not_applicable"]
    assert answer["measure"] == {"notion": "unsliced", "delta": 1e-5}
    assert answer["excess_probability"] == differing.excess_probability
    assert answer["failure_probability"] == differing.failure_probability
    back = table(noise_multiplier=repr(row["noise_multiplier"]), **RARE | secret)
    cost = back["accountants"]["log_moment"]["claim"]["epsilon"]
    assert cost == pytest.approx(row["claim"]["epsilon"], rel=1e-9)


def test_no_accountant_covers_a_tail_at_an_order(table):
    answer = table(epsilon="2", **RARE | TAIL | {"delta": None, "order": "8"})
    assert answer["accountants"] == {}
    assert all("no Rényi claim covers" in why for why in answer["not_applicable"].values())
    assert list(answer["not_applicable"]) == ALL


def test_a_tail_in_words(ask):
    said = ask(line(noise_multiplier="40", **RARE | TAIL)).out
    assert "in epsilon at delta 1e-05; of that, 1.96032e-07 is for more differing records" in said
    simulated = {"at_most": "3", "tail_probability": "1e-6", "failure_probability": "0.01"}
    said = ask(line(noise_multiplier="40", **RARE | simulated)).out
    assert "except with probability 0.01, that of the simulation" in said


@pytest.mark.parametrize("noise", ["1e-90", "1e90"])
def test_extremes_are_numbers_or_errors(ask, noise):
    answer = ask(line(noise_multiplier=noise), "--json")
    if answer.code:
        assert (answer.code, answer.out, answer.err[:7]) == (1, "", "error: ")
    else:
        rows = json.loads(answer.out, parse_constant=pytest.fail)["accountants"]
        assert all(row["claim"]["epsilon"] > 0 for row in rows.values())
