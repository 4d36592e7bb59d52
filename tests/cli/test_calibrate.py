# SPDX-License-Identifier: Apache-2.0
"""`calibrate`: from samples, the three claims, shapes, other bounds."""

import pytest
from tests.cli.conftest import write_parts
from tests.scenario_files import toml_text

ROWS = {
    "data": {"path": "parts"},
    "secret": {"column": "g"},
    "query": {
        "distribution": "records",
        "columns": ["x", "y"],
        "range": {"low": [-6, 0], "high": [6, 20]},
    },
    "profile": {"n_directions": 6, "seed": 7},
    "guarantee": {"notion": "joint", "order": 4, "epsilon": 1},
}
GROUPS = {
    "data": {"path": "parts/0.parquet"},
    "secret": {"column": "g"},
    "query": {"distribution": "groups", "mean": ["x", "y"]},
    "guarantee": {"notion": "unsliced", "order": 4, "epsilon": 1},
}
WHOLE = GROUPS | {
    "data": {"dataset": "adult"},
    "secret": {"column": "race"},
    "query": {"distribution": "groups", "mean": ["age", "hours-per-week"], "scales": [10, 10]},
}
FILES = {
    "rows": ROWS,
    "loose": ROWS
    | {
        "query": {"distribution": "records", "columns": ["x", "y"]},
        "guarantee": {"notion": "joint", "epsilon": 1, "delta": 0.05},
    },
    "groups": GROUPS,
    "whole": WHOLE,
}
SRPP = "calibrate rows.toml --json"
LOOSE = "calibrate loose.toml --json"
RENYI = "calibrate whole.toml --json"
SAMPLED = "--set prior.kind=sampled --set guarantee.failure_probability=0.05"
RENYI_CLAIM = """--set 'guarantee={notion="joint", order=4, epsilon=1, failure_probability=0.05}'"""
EMPIRICAL = "--set prior.kind=empirical"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    write_parts(folder, 3, 2_000)
    for name, document in FILES.items():
        (folder / f"{name}.toml").write_text(toml_text(document))
    return folder


@pytest.fixture(autouse=True)
def folder(made, monkeypatch):
    monkeypatch.chdir(made)


def test_samples_and_exact_priors(ask):
    sampled = ask(SRPP, SAMPLED).json
    assert (sampled["prior"], sampled["claim"], sampled["delta"]) == ("sampled", "srpp", None)
    assert sampled["range"] == {"kind": "box", "low": [-6.0, 0.0], "high": [6.0, 20.0]}
    assert (sampled["failure_probability"], sampled["sampling"]["tails"]) == (0.05, "at_range")
    exact = ask(SRPP).json
    assert (exact["prior"], exact["failure_probability"]) == ("empirical", 0)
    assert exact["sampling"] is None
    assert exact["noise_std"] < sampled["noise_std"]


def test_epsilon_delta_the_band_and_the_sphere(ask):
    loose = ask(LOOSE, SAMPLED).json
    assert (loose["claim"], loose["delta"], loose["order"]) == ("epsilon_delta", 0.05, None)
    assert (loose["unsliced_epsilon"], loose["sampling"]["tails"]) == (None, "in_delta")
    dkw = ask(LOOSE, SAMPLED, "--set guarantee.delta=0.3 --set prior.band=dkw").json
    assert dkw["sampling"]["band"] == "dkw"
    sphere = ask(SRPP, SAMPLED, "--set profile.kind=sphere").json
    assert sphere["profile"] == "sphere"
    assert sphere["sampling"]["noise_shares"]["slicing"] > 0


def test_the_claim_is_about_clipped_values(ask):
    line = f"{SRPP} {SAMPLED}"
    narrow = ask(line, "--set 'query.range={low=[-1,0], high=[1,2]}'").json
    assert narrow["noise_std"] < ask(line).json["noise_std"]
    clipped = ask("calibrate whole.toml --set 'query.range={age=[17,36], hours-per-week=[1,99]}'")
    assert "THE RANGE CLIPS THE DATA" in clipped.out
    assert "clipped to a public range: mean(age) to [17, 36]" in clipped.out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{SRPP} --set prior.kind=sampled", "need failure_probability"),
        (f"{SRPP} --set prior.kind=guessed", "[prior] kind: must be"),
        (f"{SRPP} --set guarantee.failure_probability=0.1", "nothing can fail"),
        (f"{SRPP} --set guarantee.at_most=0.6", "[guarantee] at_most: is not part of claim"),
        (f"{SRPP} --set calibration.shape=fitted", "a claim along slices has isotropic noise"),
        (f"{SRPP} --set calibration.shape=round", "[calibration] shape: must be"),
        (f"{SRPP} --set profile={{}}", "[profile] seed: is required"),
        (f"{LOOSE} {SAMPLED} --set guarantee.delta=1e-4", "too few samples"),
        (f"{LOOSE} {SAMPLED} {RENYI_CLAIM}", "cannot be certified from samples"),
    ],
)
def test_what_is_refused(ask, line, words):
    assert words in ask(line).err


def test_the_whole_sphere_needs_neither_directions_nor_a_seed(ask):
    claim = "--set guarantee.notion=average --set profile.kind=whole-sphere"
    answer = ask("calibrate groups.toml --json", claim).json
    assert (answer["profile"], answer["n_directions"], answer["rule"]) == (
        "whole_sphere",
        None,
        None,
    )
    # Two points: the average over the sphere of the plane is half of what the whole output costs.
    assert answer["unsliced_epsilon"] == pytest.approx(2.0, rel=1e-9)


def test_three_claims_about_the_whole_output(ask):
    """Each is reached, none asks for slices, and one noise reads the same in all of them."""
    renyi, guess, pair = (
        ask(RENYI, claim).json
        for claim in (
            "",
            """--set 'guarantee={notion="guess", at_most=0.6}'""",
            """--set 'guarantee={notion="unsliced", epsilon=1, delta=1e-5}'""",
        )
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


def test_shapes_and_the_guard(ask):
    fitted, diagonal, isotropic = (
        ask(RENYI, f"--set calibration.shape={shape}").json
        for shape in ("fitted", "diagonal", "isotropic")
    )
    totals = [
        sum(std**2 for std in answer["noise_std_by_coordinate"].values())
        for answer in (fitted, diagonal, isotropic)
    ]
    assert totals == sorted(totals)
    stds = set(isotropic["noise_std_by_coordinate"].values())
    assert (isotropic["shape"], len(stds)) == ("isotropic", 1)
    guarded = ask(RENYI, "--set calibration.guard=0.4").json
    assert guarded["guard"] >= 0.4 * (1 - 1e-9) > fitted["guard"]
    given = ask(RENYI, "--set 'calibration.shape=[[1.0, 0.0], [0.0, 4.0]]'").json
    age, hours = given["noise_std_by_coordinate"].values()
    assert (given["shape"], hours / age) == ("given", pytest.approx(2))


def test_accuracy_and_effort(ask):
    widths = {"mean(age)": 8.0, "mean(hours-per-week)": 12.0}
    accuracy = "calibration.accuracy={'mean(age)'=8.0, 'mean(hours-per-week)'=12.0}"
    accurate = ask(RENYI, f'--set guarantee.epsilon=9 --set "{accuracy}"').json
    stds = accurate["noise_std_by_coordinate"]
    assert all(1.96 * stds[name] <= width * 1.001 for name, width in widths.items())
    assert accurate["epsilon"] < 9
    tight = "--set 'calibration.accuracy.\"mean(age)\"=0.1'"
    assert "this accuracy costs" in ask(RENYI, tight).err
    assert "accuracy must map coordinates" in ask(RENYI, "--set calibration.accuracy.age=8").err
    assert ask(RENYI, "--set calibration.effort=quick").json["spent"] == pytest.approx(1)


def test_what_is_protected_comes_first(ask):
    lines = ask("calibrate whole.toml").out.splitlines()
    assert lines[0].startswith("Protected: the secret 'race'")
    table = next(i for i, line in enumerate(lines) if line.startswith("statistic"))
    assert "not worth making" in lines[table + 3]
    certificate = next(i for i, line in enumerate(lines) if line.startswith("Certificate "))
    assert table < certificate
    assert not any("worth making" in line for line in lines[certificate:])


def test_the_verdict_stays_out_of_the_certificate(ask, made):
    answer = ask(RENYI, "--out whole.json").json
    assert answer["verdict"]["is_useful"] is False
    assert "worth making" not in (made / "whole.json").read_text()


def test_other_bounds_side_by_side(ask, made):
    table = ask("calibrate whole.toml --sweep --bounds 0.5,1,2 --plot sweep.svg")
    assert (table.code, table.err) == (0, "")
    assert "right guesses" in table.out
    assert "Picture, internal: sweep.svg" in table.out
    assert "What other bounds would cost" in (made / "sweep.svg").read_text()
    assert ask(RENYI, "--plot noise.svg").code == 0
    assert "Noise of each statistic" in (made / "noise.svg").read_text()
    rows = ask(RENYI, "--sweep --bounds 1").json["rows"]
    certified = ask(RENYI).json
    assert rows[0]["noise_std_by_coordinate"] == certified["noise_std_by_coordinate"]
    for wrong, words in (
        ("--sweep --out c.json", "certifies no bound"),
        ("--sweep --bounds one", "--bounds must be numbers"),
        ("--bounds 0.5", "is for --sweep"),
        ("--plot x.png", "must end in .svg"),
    ):
        refused = ask(RENYI, wrong)
        assert (refused.code, words in refused.err) == (2, True)
