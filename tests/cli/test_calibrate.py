# SPDX-License-Identifier: Apache-2.0
"""`calibrate` from samples and from flags: what is required, and results."""

import pytest
from tests.cli.conftest import write_parts

FLAGS = (
    "calibrate --data parts --secret g --distribution records --columns x,y --notion joint"
    " --directions 6 --seed 7 --json"
)
SRPP = "--order 4 --epsilon 1 --range=-6:6,0:20"
LOOSE = "--claim epsilon-delta --epsilon 1 --delta 0.05"
SAMPLED = "--prior sampled --failure-probability 0.05"
ADULT = (
    "calibrate --dataset adult --secret race --distribution groups --notion joint --order 4 "
    "--epsilon 1 --directions 20 --seed 7"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    write_parts(folder, 3, 2_000)
    return folder


@pytest.fixture(autouse=True)
def folder(made, monkeypatch):
    monkeypatch.chdir(made)


def test_samples_and_exact_priors(ask):
    sampled = ask(FLAGS, SRPP, SAMPLED).json
    assert (sampled["prior"], sampled["claim"], sampled["delta"]) == ("sampled", "srpp", None)
    assert sampled["range"] == {"kind": "box", "low": [-6.0, 0.0], "high": [6.0, 20.0]}
    assert (sampled["failure_probability"], sampled["sampling"]["tails"]) == (0.05, "at_range")
    exact = ask(FLAGS, SRPP).json
    assert (exact["prior"], exact["failure_probability"]) == ("empirical", 0)
    assert exact["sampling"] is None
    assert exact["noise_std"] < sampled["noise_std"]


def test_epsilon_delta_the_band_and_the_sphere(ask):
    loose = ask(FLAGS, LOOSE, SAMPLED).json
    assert (loose["claim"], loose["delta"], loose["order"]) == ("epsilon_delta", 0.05, None)
    assert (loose["unsliced_epsilon"], loose["sampling"]["tails"]) == (None, "in_delta")
    dkw = ask(FLAGS, LOOSE.replace("0.05", "0.3"), SAMPLED, "--band dkw").json
    assert dkw["sampling"]["band"] == "dkw"
    sphere = ask(FLAGS, SRPP, SAMPLED, "--profile sphere").json
    assert sphere["profile"] == "sphere"
    assert sphere["sampling"]["noise_shares"]["slicing"] > 0


def test_the_claim_is_about_clipped_values(ask):
    line = f"{FLAGS} {SRPP} {SAMPLED}"
    narrow = ask(line.replace("-6:6,0:20", "-1:1,0:2")).json
    assert narrow["noise_std"] < ask(line).json["noise_std"]
    clipped = ask(ADULT, "--mean age --range age=17:36").out
    assert "THE RANGE CLIPS THE DATA" in clipped
    assert "clipped to a public range: mean(age) to [17, 36]" in clipped


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (f"{SRPP} --prior sampled", "need failure_probability"),
        (f"{SRPP} --failure-probability 0.1", "nothing can fail"),
        (f"--order 4 --epsilon 1 {SAMPLED}", "cannot be certified from samples"),
        (f"{LOOSE} --delta 0.1 {SAMPLED}", "one --delta, got 2"),
        (f"{SRPP} --guess 0.6", "[guarantee] at_most: is not part of claim"),
        (f"{SRPP} --shape fitted", "a claim along slices has isotropic noise"),
        (f"{SRPP} --shape round", "[calibration] shape: must be"),
        (f"{SRPP} --accuracy x", "--accuracy must be name=half-width"),
        (f"{SRPP} --accuracy x=1 --accuracy x=2", "--accuracy must be name=half-width"),
        (f"{SRPP} --accuracy x=wide", "--accuracy takes one number"),
        (f"{LOOSE} --order 4 {SAMPLED}", "[guarantee] order: is not part"),
        (f"--claim epsilon-delta --epsilon 1 {SAMPLED}", "--delta: required"),
        (f"{LOOSE.replace('0.05', '1e-4')} {SAMPLED}", "too few samples"),
        (f"{SRPP} --low=-6,0 --high 6,20", "either --range or --low"),
        ("--order 4 --epsilon 1 --range 1,2", "low:high for each coordinate"),
        (f"{SRPP} --prior guessed", "[prior] kind: must be"),
    ],
)
def test_what_is_refused(ask, flags, words):
    assert words in ask(FLAGS, flags).err


def test_a_claim_without_slices_needs_no_directions(ask):
    flags = "calibrate --data parts/0.parquet --secret g --distribution groups --mean x --json"
    claim = "--notion unsliced --order 4 --epsilon 1"
    assert ask(flags, claim).json["notion"] == "unsliced"
    assert "--directions" in ask(flags, claim.replace("unsliced", "joint")).err
    resampled = ask(flags.replace("groups", "bootstrap"), claim)
    assert (resampled.code, "--seed: required" in resampled.err) == (2, True)


def test_the_whole_sphere_needs_neither_directions_nor_a_seed(ask):
    flags = "calibrate --data parts/0.parquet --secret g --distribution groups --mean x,y --json"
    found = ask(flags, "--notion average --order 4 --epsilon 1 --profile whole-sphere").json
    assert (found["profile"], found["n_directions"], found["rule"]) == ("whole_sphere", None, None)
    # Two points: the average over the sphere of the plane is half of what the whole output costs.
    assert found["unsliced_epsilon"] == pytest.approx(2.0, rel=1e-9)


WHOLE = (
    "calibrate --dataset adult --secret race --distribution groups --mean age,hours-per-week "
    "--scales 10,10 --json"
)
RENYI = "--notion unsliced --order 4 --epsilon 1"


def test_three_claims_about_the_whole_output(ask):
    """Each is reached, none asks for slices, and one noise reads the same in all of them."""
    renyi, guess, pair = (
        ask(WHOLE, claim).json
        for claim in (RENYI, "--guess 0.6", "--notion unsliced --epsilon 1 --delta 1e-5")
    )
    for answer, claim in ((renyi, "srpp"), (guess, "guess"), (pair, "epsilon_delta")):
        assert (answer["claim"], answer["shape"], answer["dim"]) == (claim, "fitted", 2)
        assert answer["profile"] is answer["n_directions"] is answer["rule"] is None
        assert len(answer["verdict"]["statistics"]) == 2
    assert (renyi["order"], renyi["epsilon"], renyi["at_most"]) == (4, 1, None)
    assert renyi["spent"] == pytest.approx(1)
    assert (guess["notion"], guess["at_most"], guess["epsilon"]) == ("guess", 0.6, None)
    assert guess["spent"] == pytest.approx(guess["guess"]) == pytest.approx(0.6)
    assert (pair["notion"], pair["delta"], pair["order"]) == ("unsliced", 1e-5, None)
    named = ask(WHOLE, "--claim epsilon-delta --notion unsliced --epsilon 1 --delta 1e-5").json
    assert named["noise_std"] == pair["noise_std"]


def test_shapes_and_the_guard(ask):
    fitted, diagonal, isotropic = (
        ask(WHOLE, RENYI, flags).json for flags in ("", "--shape diagonal", "--shape isotropic")
    )
    totals = [
        sum(std**2 for std in answer["noise_std_by_coordinate"].values())
        for answer in (fitted, diagonal, isotropic)
    ]
    assert totals == sorted(totals)
    stds = set(isotropic["noise_std_by_coordinate"].values())
    assert (isotropic["shape"], len(stds)) == ("isotropic", 1)
    guarded = ask(WHOLE, RENYI, "--guard 0.4").json
    assert guarded["guard"] >= 0.4 * (1 - 1e-9) > fitted["guard"]
    given = ask(WHOLE, RENYI, "--set 'calibration.shape=[[1.0, 0.0], [0.0, 4.0]]'").json
    age, hours = given["noise_std_by_coordinate"].values()
    assert (given["shape"], hours / age) == ("given", pytest.approx(2))


def test_accuracy_effort_and_total(ask):
    loose = RENYI.replace("--epsilon 1", "--epsilon 9")
    widths = {"mean(age)": 8.0, "mean(hours-per-week)": 12.0}
    flags = " ".join(f"'--accuracy={name}={width}'" for name, width in widths.items())
    accurate = ask(WHOLE, loose, flags).json
    stds = accurate["noise_std_by_coordinate"]
    assert all(1.96 * stds[name] <= width * 1.001 for name, width in widths.items())
    assert accurate["epsilon"] < 9
    assert "this accuracy costs" in ask(WHOLE, RENYI, "'--accuracy=mean(age)=0.1'").err
    assert "accuracy must map coordinates" in ask(WHOLE, RENYI, "--accuracy age=8").err
    quick = ask(WHOLE, RENYI, "--effort quick --total 3").json
    assert (quick["total"], quick["spent"]) == (3, pytest.approx(1))
    assert "must be at least the epsilon" in ask(WHOLE, RENYI, "--total 0.5").err


def test_what_is_protected_comes_first(ask):
    lines = ask(WHOLE.replace(" --json", ""), RENYI).out.splitlines()
    assert lines[0].startswith("Protected: the secret 'race'")
    table = next(i for i, line in enumerate(lines) if line.startswith("statistic"))
    assert "not worth making" in lines[table + 3]
    certificate = next(i for i, line in enumerate(lines) if line.startswith("Certificate "))
    assert table < certificate
    assert not any("worth making" in line for line in lines[certificate:])


def test_the_verdict_stays_out_of_the_certificate(ask, made):
    answer = ask(WHOLE, RENYI, "--out whole.json").json
    assert answer["verdict"]["is_useful"] is False
    assert "worth making" not in (made / "whole.json").read_text()


def test_flags_beside_a_file_are_refused(ask, made):
    (made / "s.toml").write_text("")
    for flags in ("--epsilon 2", "--guess 0.6", "--dataset adult", "--missing drop-rows"):
        answer = ask("calibrate s.toml", flags)
        assert (answer.code, f"not both: {flags.split()[0]}" in answer.err) == (2, True)


def test_coordinates_are_in_the_order_of_the_flags(ask):
    for flags, names in [
        ("--rate sex=Male --mean age", ["rate(sex = Male)", "mean(age)"]),
        ("--mean age --rate sex=Male --std age", ["mean(age)", "rate(sex = Male)", "std(age)"]),
    ]:
        assert list(ask(ADULT, flags, "--json").json["noise_std_by_coordinate"]) == names


def test_ranges_and_scales_by_name(ask):
    by_name, by_place, in_full = (
        ask(ADULT, "--json --rate sex=Male --mean age", flags).json
        for flags in (
            "--range age=17:90 --scales age=10,sex=0.1",
            "--range 0:1,17:90 --scales 0.1,10",
            "'--range=mean(age)=17:90,rate(sex = Male)=0:1' --scales 0.1,10",
        )
    )
    assert by_name["range"] == by_place["range"] == in_full["range"]
    assert by_name["noise_std_by_coordinate"] == by_place["noise_std_by_coordinate"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--rate sex=Male --mean age --range 17:90,0:1", "rate(sex = Male)"),
        ("--rate sex=Male --mean age --range 0:1,2000:3000", "mean(age)"),
        ("--rate sex=Male --range 2000:3000", "its values are [0, 1]"),
        ("--rate sex=male", "Did you mean 'Male'"),
        ("--mean age --range age=17:90,age=1:2", "--range must be name=value"),
        ("--mean age --range age=17", "--range must be low:high"),
        ("--mean age --scales age=10,5", "--scales must be name=value"),
        ("--mean age --scales age=x", "--scales takes one number"),
        ("--rate 'capital-gain>1,000'", "--rate takes one number"),
        ("--mean age --set guarantee.epsilonn=2", "did you mean 'epsilon'"),
        ("--mean age --set epsilon=2", "--set"),
    ],
)
def test_nonsense_is_refused(ask, flags, words):
    answer = ask(ADULT, flags)
    assert answer.code in (1, 2)
    assert words in answer.err


def test_overrides_of_the_short_form_and_the_alias_of_distribution(ask):
    flags = "--mean age --set guarantee.epsilon=2 --set query.range.age=[17,90] --json"
    answer = ask(ADULT.replace("--distribution", "--law"), flags).json
    assert (answer["epsilon"], answer["range"]["high"]) == (2, [90])


def test_other_bounds_side_by_side(ask, made):
    plain = WHOLE.replace(" --json", "")
    table = ask(plain, RENYI, "--sweep --bounds 0.5,1,2 --plot sweep.svg")
    assert (table.code, table.err) == (0, "")
    assert "right guesses" in table.out
    assert "Written: sweep.svg" in table.out
    assert (made / "sweep.svg").read_text().startswith("<svg ")
    rows = ask(WHOLE, RENYI, "--sweep --bounds 1").json["rows"]
    certified = ask(WHOLE, RENYI).json
    assert rows[0]["noise_std_by_coordinate"] == certified["noise_std_by_coordinate"]
    for wrong, words in (
        ("--sweep --out c.json", "certifies no bound"),
        ("--sweep --bounds one", "--bounds must be numbers"),
        ("--plot x.svg", "are for --sweep"),
    ):
        refused = ask(WHOLE, RENYI, wrong)
        assert (refused.code, words in refused.err) == (2, True)
