# SPDX-License-Identifier: Apache-2.0
"""Budgets on the command line: from the starter to the last release, and a training run."""

import json
from html import unescape

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from tests.config.test_budget import BUDGET, EARLIER, NOW, SECTIONS, TRAIN, table
from tests.releases.test_migrate import ONE, made_before

from pufferslice import Certificate, Ledger, Release
from pufferslice.config.document import toml_of

MONTH = table(35)
RELEASE = "release budget.toml --certificate budget.json --ledger office.ledger"
AGAIN = "release --certificate budget.json --ledger office.ledger --part year --again"


@pytest.fixture
def folder(tmp_path, monkeypatch, ask):
    monkeypatch.chdir(tmp_path)
    for name, rows in (("now", NOW), ("earlier", EARLIER)):
        pa.parquet.write_table(rows, tmp_path / f"{name}.parquet")
    for name, rows in (("january", MONTH), ("february", table(36)), ("small", table(12))):
        pa.csv.write_csv(rows, tmp_path / f"{name}.csv")
    for name, document in (("year", SECTIONS), ("train", TRAIN), ("budget", BUDGET)):
        (tmp_path / f"{name}.toml").write_text(toml_of(document), encoding="utf-8")
    assert ask("calibrate budget.toml --out budget.json").code == 0
    return tmp_path


def test_the_starter_is_released(tmp_path, ask, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "calibrate budget.toml --out budget.json" in ask("init --template budget .").out
    said = ask("calibrate budget.toml --out budget.json").out
    assert "Without the reserve ('later'), the noise of every other part would be" in said
    made = ask(f"{RELEASE} --part yearbook --out yearbook.json")
    assert "Release 1 of part 'yearbook'" in made.out
    assert ask("verify budget.json --scenario budget.toml --json").json["holds"] is True


def test_a_part_in_steps(folder, ask):
    first = ask(f"{RELEASE} --part year --only 'mean(age)' --spend 0.4 --out one.json --json").json
    std = first["values"][0]["noise_std"]
    second = ask(f"{RELEASE} --part year --noise 'mean(age)={2 * std}' --out two.json --json").json
    assert second["values"][0]["noise_std"] == pytest.approx(2 * std)
    assert second["measured"]["serial"] == 2
    refused = ask(f"{RELEASE} --part year --noise 'mean(age)={std / 2}' --out three.json")
    assert (refused.code, "the least is mean(age)" in refused.err) == (1, True)
    assert ask(f"{RELEASE} --part year --out four.json").code == 0
    assert "nothing is left" in ask(f"{RELEASE} --part year --out five.json").err
    assert not (folder / "three.json").exists()
    assert not (folder / "five.json").exists()


def test_periods(folder, ask):
    month = f"{RELEASE} --part months".replace("budget.toml", "budget.toml {}")
    made = ask(f"{month.format('january.csv')} --period 1 --out january.json --json").json
    assert made["n_rows"] == 35
    for rows, period, words in (
        ("january.csv", 1, "precision"),
        ("january.csv", 2, "not fresh"),
        ("small.csv", 2, "30 to 40 rows"),
        ("february.csv", 13, "period must be at most 12"),
        ("", 2, "january.csv"),
    ):
        refused = ask(f"{month.format(rows)} --spend 0.5 --period {period} --out no.json")
        assert refused.code in {1, 2}
        assert words in refused.err
        assert not (folder / "no.json").exists()
    assert ask(f"{month.format('february.csv')} --period 2 --out february.json").code == 0
    listed = ask("ledger list office.ledger").out
    assert "part months 1; left:" in listed
    assert "part months 2; left:" in listed


def test_a_release_again(folder, ask):
    for name in ("one", "two"):
        assert ask(f"{RELEASE} --part year --spend 0.3 --out {name}.json").code == 0
    released = {name: Release.load(folder / f"{name}.json") for name in ("one", "two")}
    for place, (options, name) in enumerate(
        ((f"{AGAIN} 1", "one"), (f"{AGAIN} 2", "two"), (AGAIN, "two"))
    ):
        assert ask(f"{options} --out again{place}.json").code == 0
        assert Release.load(folder / f"again{place}.json") == released[name]
    with_file = AGAIN.replace("release", "release budget.toml", 1)
    assert ask(f"{with_file} 1 --out again.json").code == 0
    assert Release.load(folder / "again.json") == released["one"]
    refused = ask(f"{AGAIN} 3 --out no.json")
    assert (refused.code, "keeps no release" in refused.err) == (1, True)


def test_sign_and_report(folder, ask):
    assert ask("keygen keys").code == 0
    assert ask("sign budget.json --key keys/private.pem").code == 0
    assert ask("verify budget.json --key keys/public.pem --json").json["signed"] is True
    assert ask(f"{RELEASE} --part year --spend 0.3 --out one.json").code == 0
    assert ask(f"{RELEASE} --part year --out rest.json").code == 0
    assert ask("report budget.json one.json rest.json --public --out page.html").code == 0
    page = (folder / "page.html").read_text()
    for name in ("one.json", "rest.json"):
        assert Release.load(folder / name).title in unescape(page)
    # what combines earlier releases cannot be recomputed without them
    refused = ask("report budget.json rest.json --public --out no.html")
    assert (refused.code, "does not verify" in refused.err) == (2, True)
    assert not (folder / "no.html").exists()
    assert "months" in page
    assert "mean(age)" in page


def test_a_ledger_with_releases_before_03(folder, ask):
    made_before(folder / "old.ledger", 2, {ONE: "published"})
    assert ask("ledger migrate old.ledger office.ledger").code == 0
    calibrate = "calibrate budget.toml --ledger office.ledger --out named.json"
    refused = ask(calibrate)
    assert (refused.code, "--acknowledge-earlier" in refused.err) == (1, True)
    assert not (folder / "named.json").exists()
    assert "does not cover jointly: 111111111111." in ask(f"{calibrate} --acknowledge-earlier").out
    assert Certificate.load(folder / "named.json").budget.earlier_releases == [ONE]
    assert ask(f"{RELEASE} --part year --out no.json").code == 1
    named = RELEASE.replace("budget.json", "named.json")
    assert ask(f"{named} --part year --out year.json").code == 0
    listed = ask("ledger list office.ledger").out
    assert "Spent before 0.3" in listed


def test_a_changed_budget_is_refuted(folder, ask):
    document = json.loads((folder / "budget.json").read_text())
    document["statement"]["parts"][0]["share"] = 0.39
    (folder / "budget.json").write_text(json.dumps(document))
    assert ask("verify budget.json").code == 1
    assert ask(f"{RELEASE} --part year --out year.json").code == 1
    assert not (folder / "office.ledger").exists()


def test_another_scenario_is_refused(folder, ask):
    changed = SECTIONS | {"query": SECTIONS["query"] | {"clip": {"age": [18, 80]}}}
    (folder / "year.toml").write_text(toml_of(changed), encoding="utf-8")
    assert ask("verify budget.json --scenario budget.toml --json").code == 1
    refused = ask(f"{RELEASE} --part year --out year.json")
    assert (refused.code, "certified for another scenario" in refused.err) == (1, True)
    assert not (folder / "office.ledger").exists()


TRAINED = "train train.toml --certificate budget.json --part model --ledger office.ledger"


@pytest.mark.soundness
def test_a_training_run(folder, ask):
    made = ask(f"{TRAINED} --json")
    assert made.json["certificate"] == Certificate.load(folder / "budget.json").digest
    assert made.json["guarantee"] == {"notion": "guess", "at_most": 0.64}
    rows = [json.loads(line) for line in (folder / "run/public.jsonl").read_text().splitlines()]
    assert "spent_epsilon" not in rows[-1]
    assert Certificate.load(folder / "run/certificate.json").evidence is None
    refused = ask(f"{TRAINED} --out other")
    assert (refused.code, "another run" in refused.err) == (1, True)
    assert not (folder / "other/model.pt").exists()
    (entry,) = Ledger(folder / "office.ledger").entries()
    assert (entry.part, entry.state) == ("model", "published")
    assert "part model 1; left: nothing" in ask("ledger list office.ledger").out
    assert (
        "training"
        in ask("report budget.json --out page.html").out + (folder / "page.html").read_text()
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{RELEASE} --out r.json", "--part must be one of"),
        (f"{RELEASE} --part model --out r.json", "--part must be one of"),
        (f"{RELEASE} --part year --group a --out r.json", "--group is for a scenario.toml"),
        (f"{RELEASE} --part year --noise age --out r.json", "as 'mean(age)=0.3'"),
        (f"{RELEASE} --part year --noise mean(age)=x --out r.json", "as 'mean(age)=0.3'"),
        (f"{RELEASE} --part year --only mean(pay) --out r.json", "only must name statistics"),
        (f"{RELEASE} --part months --out r.json", "january.csv"),
        (f"{RELEASE.replace('budget.toml', '')} --part year --out r.json", "give the scenario"),
        ("train train.toml", "[secret]: is required"),
        ("train train.toml --part model", "--certificate"),
        ("train train.toml --certificate budget.json --part model", "--ledger"),
        ("train train.toml --certificate budget.json --ledger l --part year", "training part"),
        ("audit budget.json --scenario budget.toml", "each part"),
    ],
)
def test_refused(folder, ask, line, words):
    before = sorted(folder.iterdir())
    answer = ask(line.replace("mean(age)=x", "'mean(age)=x'").replace("mean(pay)", "'mean(pay)'"))
    assert answer.code in {1, 2}
    assert words in answer.err
    assert sorted(folder.iterdir()) == before


def test_flags_of_budgets_are_refused_without_one(folder, ask):
    claimed = SECTIONS | {"guarantee": {"notion": "guess", "at_most": 0.64}}
    (folder / "year.toml").write_text(toml_of(claimed), encoding="utf-8")
    assert ask("calibrate year.toml --out alone.json").code == 0
    line = "release year.toml --certificate alone.json --ledger l --out r.json"
    for option, name in (
        ("--part year", "--part"),
        ("--period 1", "--period"),
        ("--only 'mean(age)'", "--only"),
        ("--spend 0.5", "--spend"),
        ("--noise 'mean(age)=1'", "--noise"),
    ):
        assert f"{name} is for a budget" in ask(f"{line} {option}").err
    assert not (folder / "l").exists()
    assert "release" in ask("train train.toml --certificate alone.json --ledger l --part x").err
