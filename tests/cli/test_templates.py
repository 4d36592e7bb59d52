# SPDX-License-Identifier: Apache-2.0
"""From `init --template` to a release, for every template."""

import io
import json
import sys
import tomllib
from pathlib import Path

import pytest

from pufferslice._core.display import rounded
from pufferslice.config.document import toml_of
from pufferslice.config.starters import STARTERS


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("YOUR-PATIENT.csv").write_text("bmi,blood pressure\n28.4,101\n")
    Path("YOUR-STATES.csv").write_text("state\n" + "0\n1\n1\n0\n" * 84)
    return tmp_path


@pytest.mark.parametrize("name", STARTERS)
def test_a_template_runs_to_a_release(here, ask, name):
    files = {"attribute": "YOUR-PATIENT.csv", "occupancy": "YOUR-STATES.csv"}
    rows = f"--rows {files[name]}" if name in files else ""
    assert ask(f"init . --template {name} --json").json == {"written": ["scenario.toml"]}
    assert STARTERS[name].released.strip() == rows
    certified = ask("calibrate scenario.toml --out c.json --json").json
    assert certified["guess"] < 0.65
    assert certified["verdict"]["is_useful"]
    files = "--certificate c.json --ledger one.ledger --out release.json"
    released = ask(f"release scenario.toml {files} {rows} --json").json
    assert released["certificate"] == certified["certificate"]
    assert "VERIFIED from the data" in ask("verify c.json --scenario scenario.toml").out
    audited = ask("audit c.json --scenario scenario.toml --n-outputs 500 --json")
    assert audited.code == 0


def test_declared_worlds_are_released_with_rows_of_a_file(here, ask):
    ask("init . --template attribute")
    assert "from the data" not in ask("calibrate scenario.toml --out c.json").out
    refused = ask("release scenario.toml --certificate c.json --ledger one.ledger --out r.json")
    assert (refused.code, "use --rows FILE" in refused.err) == (2, True)


def test_values_are_moved_into_their_range(here, ask):
    ask("init . --template prevalence")
    ask("calibrate scenario.toml --out c.json")
    release = "release scenario.toml --certificate c.json --ledger one.ledger --out"
    for plot, words in (("values.png", "must end in .svg"), ("nowhere/values.svg", "nowhere")):
        assert words in ask(f"{release} release.json --plot {plot}").err
        assert not Path("one.ledger").exists(), "a release happens once"
    released = ask(f"{release} release.json --into-range --json --plot values.svg").json
    values = [rounded(row["value"], row["noise_std"]) for row in released["values"]]
    assert all(f": {value} ±" in Path("values.svg").read_text() for value in values)
    assert [row["moved_into"] for row in released["values"]][1:3] == [[None, None], [0.0, 1.0]]
    assert json.loads(Path("release.json").read_text()) == released
    refused = ask(f"{release} other.json --again --into-range")
    assert (refused.code, "--into-range" in refused.err) == (2, True)


def test_mechanisms_are_compared_without_a_profile(here, ask):
    ask("init . --template attribute")
    refused = ask("compare scenario.toml")
    assert (refused.code, "at one order and epsilon" in refused.err) == (2, True)
    claim = """--set 'guarantee={notion="unsliced", order=4, epsilon=0.4}'"""
    rows = ask("compare scenario.toml --json", claim).json["rows"]
    noise = {row["mechanism"]: row["noise_std"] for row in rows}
    assert noise["unsliced, fitted shape"] < noise["unsliced, couplings"]
    assert "joint, tight, exact" in noise


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("screen", "is_shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_draws_are_followed_on_a_terminal(here, ask, monkeypatch, screen, is_shown):
    ask("init . --template prevalence")
    keys = ("prior=draws", "shares=[0.3,0.35]", "n_draws=9", "seed=1")
    drawn = " ".join(f"--set prevalence.{key}" for key in keys)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    assert ask(f"calibrate scenario.toml {drawn} --set calibration.effort=quick").code == 0
    assert ("tables/s" in screen.getvalue()) == is_shown


def test_derived_statistics_are_printed_and_checked_before_the_release(here, ask):
    ask("init . --template prevalence")
    tables = [
        {"distribution": "worlds", "std": ["age"], "clip": {"age": [17, 90]}},
        {"distribution": "worlds", "by": [{"column": "sex", "values": ["Female", "Male"]}]}
        | {"cells": "count"},
    ]
    document = tomllib.loads(Path("scenario.toml").read_text()) | {"query": tables}
    document["derived"] = {
        "ratio": [["count(sex = Female)", "count(sex = Male)"]],
        "quantile": [{"column": "age", "level": 0.5}],
    }
    Path("scenario.toml").write_text(toml_of(document))
    refused = ask("calibrate scenario.toml --out c.json")
    assert (refused.code, "histogram" in refused.err) == (1, True)
    assert not Path("c.json").exists()
    right = document | {"derived": {"ratio": document["derived"]["ratio"]}}
    Path("right.toml").write_text(toml_of(right))
    text = ask("calibrate right.toml --out c.json").out
    for judged in ("std(age) ", "count(sex = Female) / count(sex = Male) "):
        (line,) = (line for line in text.splitlines() if line.startswith(judged))
        assert float(line.split()[-2]) > 0  # its size
    release = "release scenario.toml --certificate c.json --ledger one.ledger --out release.json"
    refused = ask(release)
    assert (refused.code, "histogram" in refused.err) == (1, True)
    assert not Path("one.ledger").exists()
    del document["derived"]["quantile"]
    document["derived"]["simultaneous"] = True
    Path("scenario.toml").write_text(toml_of(document))
    text = ask(release).out
    assert "std(age)" in text
    assert "count(sex = Female) / count(sex = Male)" in text
    assert "all of them together" in text
    Path("two").mkdir()  # a release file is known in its folder, whatever the ledger
    other = release.replace("one.", "two.").replace("release.json", "two/r.json")
    (row,) = ask(other, "--json").json["statistics"]["statistics"]
    assert row["low"] < row["value"] < row["high"]


def test_the_holder_is_told_what_clipping_and_missing_values_cost(here, ask):
    ask("init . --template prevalence")
    query = {"distribution": "worlds", "mean": ["capital-gain"], "clip": {"capital-gain": [0, 2e4]}}
    query["rate"] = [{"column": "occupation", "equals": "Sales"}]
    document = tomllib.loads(Path("scenario.toml").read_text()) | {"query": query}
    Path("scenario.toml").write_text(toml_of(document))
    text = ask("calibrate scenario.toml").out
    assert "capital-gain: 124 of 16,280 values are clipped, and the mean 1,080 becomes 672" in text
    assert "occupation: 899 of 16,280 rows have no value" in text
    gain, _ = ask("calibrate scenario.toml --json").json["columns"]
    assert round(gain["mean_before"]) == 1077
