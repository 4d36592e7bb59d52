# SPDX-License-Identifier: Apache-2.0
"""`calibrate` from samples and from streamed files: required flags and results."""

import json
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pufferslice.cli.app import run

FLAGS = (
    "calibrate --secret g --distribution records --columns x,y --notion joint --directions 6"
    " --seed 7 --json"
)
SRPP = "--order 4 --epsilon 1 --range=-6:6,0:20"
LOOSE = "--claim epsilon-delta --epsilon 1 --delta 0.05"
SAMPLED = "--prior sampled --failure-probability 0.05"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    rng = np.random.default_rng(3)
    (folder / "parts").mkdir()
    for index in range(3):
        g = rng.integers(0, 2, 2_000)
        x, y = rng.normal(0.3 * g, 1.0), rng.exponential(1.0, 2_000)
        table = pa.table({"g": np.array(["a", "b"])[g], "x": x, "y": y})
        pq.write_table(table, folder / "parts" / f"{index}.parquet")
    return folder


@pytest.fixture
def answer(made, monkeypatch, capsys):
    monkeypatch.chdir(made)

    def ask(*flags):
        status = run(shlex.split(" ".join((FLAGS, *flags))))
        output = capsys.readouterr()
        return json.loads(output.out) if status == 0 else output.err

    return ask


def test_what_the_json_says(answer):
    found = answer("--data parts", SRPP, SAMPLED)
    assert found["prior"] == "sampled"
    assert found["claim"] == "srpp"
    assert found["delta"] is None
    assert found["range"] == {"kind": "box", "low": [-6.0, 0.0], "high": [6.0, 20.0]}
    assert found["failure_probability"] == 0.05
    assert found["sampling"]["tails"] == "at_range"
    exact = answer("--data parts", SRPP)
    assert (exact["prior"], exact["failure_probability"], exact["sampling"]) == (
        "empirical",
        0,
        None,
    )
    assert exact["noise_std"] < found["noise_std"]


def test_epsilon_delta(answer):
    found = answer("--data parts", LOOSE, SAMPLED)
    assert (found["claim"], found["delta"], found["order"]) == ("epsilon_delta", 0.05, None)
    assert found["unsliced_epsilon"] is None
    assert found["sampling"]["tails"] == "in_delta"


def test_the_band_and_the_sphere_may_be_chosen(answer):
    dkw = answer("--data parts", LOOSE.replace("0.05", "0.3"), SAMPLED, "--band dkw")
    assert dkw["sampling"]["band"] == "dkw"
    sphere = answer("--data parts", SRPP, SAMPLED, "--profile sphere")
    assert sphere["profile"] == "sphere"
    assert sphere["sampling"]["noise_shares"]["slicing"] > 0


@pytest.mark.parametrize("prior", ["--prior empirical", SAMPLED])
def test_streamed_is_as_read_whole_up_to_two_bins(answer, prior):
    whole = answer("--data parts", SRPP, prior)
    streamed = answer("--data parts", SRPP, prior, "--bins 4096")
    assert whole["noise_std"] <= streamed["noise_std"] * (1 + 1e-9) <= whole["noise_std"] * 1.03
    globbed = answer("--data 'parts/*.parquet'", SRPP, prior, "--bins 4096")
    assert globbed["noise_std"] == streamed["noise_std"]


@pytest.mark.slow
def test_local_workers_change_nothing(answer):
    one = answer("--data parts", SRPP, SAMPLED, "--bins 256")
    two = answer("--data parts", SRPP, SAMPLED, "--bins 256 --workers 2")
    assert {**one, "certificate": ""} == {**two, "certificate": ""}


def test_a_checkpoint_is_written_and_used(answer, made):
    first = answer("--data parts", SRPP, SAMPLED, "--bins 256 --checkpoint scan.npz")
    assert (made / "scan.npz").exists()
    again = answer("--data parts", SRPP, SAMPLED, "--bins 256 --checkpoint scan.npz")
    assert again["noise_std"] == first["noise_std"]
    other = answer("--data parts", SRPP, SAMPLED, "--bins 512 --checkpoint scan.npz")
    assert isinstance(other, str)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--data parts", SRPP, "--bins 256"), "[prior] kind: is required"),
        (("--data parts", SRPP, "--prior sampled"), "need failure_probability"),
        (("--data parts", SRPP, "--failure-probability 0.1"), "nothing can fail"),
        (("--data parts", "--order 4 --epsilon 1", SAMPLED), "cannot be certified from samples"),
        (("--data parts", LOOSE, "--delta 0.1", SAMPLED), "one --delta, got 2"),
        (("--data parts", LOOSE, "--order 4", SAMPLED), "[guarantee] order: is not part"),
        (("--data parts", "--claim epsilon-delta --epsilon 1", SAMPLED), "--delta: required"),
        (("--data parts", LOOSE.replace("0.05", "1e-4"), SAMPLED), "too few samples"),
        (("--data parts", SRPP, "--low=-6,0 --high 6,20"), "either --range or --low"),
        (("--data parts", "--order 4 --epsilon 1 --range 1,2"), "low:high for each coordinate"),
        (("--data parts", SRPP, SAMPLED, "--workers 2"), "are for streamed data"),
        (("--data parts", SRPP, "--prior guessed"), "[prior] kind: must be"),
    ],
)
def test_what_is_refused(answer, flags, words):
    assert words in answer(*flags)


def test_values_outside_the_range_are_clipped_and_the_claim_is_about_that(answer):
    narrow = answer("--data parts --order 4 --epsilon 1 --range=-1:1,0:2", SAMPLED, "--bins 512")
    wide = answer("--data parts", SRPP, SAMPLED, "--bins 512")
    assert narrow["noise_std"] < wide["noise_std"]


def test_a_claim_without_slices_needs_no_directions(made, monkeypatch, capsys):
    monkeypatch.chdir(made)
    flags = "calibrate --data parts/0.parquet --secret g --distribution groups --mean x --json"
    claim = "--notion unsliced --order 4 --epsilon 1"
    assert run(shlex.split(f"{flags} {claim}")) == 0
    assert json.loads(capsys.readouterr().out)["notion"] == "unsliced"
    assert run(shlex.split(f"{flags} {claim}".replace("unsliced", "joint"))) == 2
    assert "--directions" in capsys.readouterr().err


class TestAdult:
    """Order, names, conditions and clipping on the command line, with real data."""

    GROUPS = (
        "calibrate --dataset adult --secret race --distribution groups --notion joint --order 4 "
        "--epsilon 1 --directions 20 --seed 7 --json"
    )
    RATE = "--rate sex=Male --mean age"

    @pytest.fixture
    def ask(self, capsys):
        def asked(*flags):
            status = run(shlex.split(" ".join((self.GROUPS, *flags))))
            output = capsys.readouterr()
            return status, json.loads(output.out) if status == 0 else output.err

        return asked

    def test_coordinates_are_in_the_order_of_the_flags(self, ask):
        status, found = ask(self.RATE, "--range 0:1,17:90")
        assert status == 0
        assert list(found["noise_std_by_coordinate"]) == ["rate(sex = Male)", "mean(age)"]
        assert found["clipped"] == {"all": [], "some": []}
        status, other = ask("--mean age --rate sex=Male --std age")
        assert list(other["noise_std_by_coordinate"]) == [
            "mean(age)",
            "rate(sex = Male)",
            "std(age)",
        ]

    def test_ranges_and_scales_by_name(self, ask):
        by_name = ask(self.RATE, "--range age=17:90", "--scales age=10,sex=0.1")[1]
        by_place = ask(self.RATE, "--range 0:1,17:90", "--scales 0.1,10")[1]
        full = ask(self.RATE, "'--range=mean(age)=17:90,rate(sex = Male)=0:1'", "--scales 0.1,10")
        assert by_name["range"] == by_place["range"] == full[1]["range"]
        assert by_name["noise_std_by_coordinate"] == by_place["noise_std_by_coordinate"]

    @pytest.mark.parametrize(
        ("flags", "code", "words"),
        [
            ("--rate sex=Male --mean age --range 17:90,0:1", 2, "rate(sex = Male)"),
            ("--rate sex=Male --mean age --range 0:1,2000:3000", None, "mean(age)"),
            ("--rate sex=Male --range 2000:3000", 2, "its values are [0, 1]"),
            ("--rate sex=male", None, "Did you mean 'Male'"),
            ("--mean age --range age=17:90,age=1:2", 2, "--range must be name=value"),
            ("--mean age --range age=17", 2, "--range must be low:high"),
            ("--mean age --scales age=10,5", 2, "--scales must be name=value"),
            ("--mean age --scales age=x", 2, "--scales must be numbers"),
        ],
    )
    def test_nonsense_is_refused(self, ask, flags, code, words):
        status, told = ask(flags)
        assert status == code or (code is None and status in (1, 2))
        assert words in told

    def test_overrides_of_the_short_form_and_the_alias_of_distribution(self, ask):
        flags = self.GROUPS.replace("--distribution", "--law")
        status, summary = ask("--mean age --set guarantee.epsilon=2 --set query.range.age=[17,90]")
        assert (status, summary["epsilon"], summary["range"]["high"]) == (0, 2, [90])
        assert run(shlex.split(f"{flags} --mean age")) == 0
        status, error = ask("--mean age --set guarantee.epsilonn=2")
        assert (status, "did you mean 'epsilon'" in error) == (2, True)
        assert "--set" in ask("--mean age --set epsilon=2")[1]

    def test_what_the_range_clips_is_said(self, capsys):
        flags = self.GROUPS.replace(" --json", " --mean age --range age=17:36")
        assert run(shlex.split(flags)) == 0
        told = capsys.readouterr().out
        assert "THE RANGE CLIPS THE DATA" in told
        assert "clipped to a public range: mean(age) to [17, 36]" in told
