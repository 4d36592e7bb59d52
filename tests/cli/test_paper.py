# SPDX-License-Identifier: Apache-2.0
"""`pufferslice paper`: lists, runs, writes whole files, and says what held."""

import csv
import json

import attrs
import pytest

from pufferslice import paper
from pufferslice.cli import app
from pufferslice.errors import MissingExtraError
from pufferslice.paper import Experiment, experiment_named

QUICK = experiment_named("cap-rings")


def stub(name, error):
    def run(_setting):
        raise error

    return attrs.evolve(QUICK, name=name, run=run)


def test_the_list_shows_every_experiment(capsys):
    assert app.run(["paper", "list"]) == 0
    shown = capsys.readouterr().out
    for experiment in paper.EXPERIMENTS:
        assert experiment.name in shown
        assert experiment.title in shown


def test_the_list_as_json(capsys):
    assert app.run(["paper", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["experiments"]
    assert [one["name"] for one in found] == [one.name for one in paper.EXPERIMENTS]
    assert {"name", "title", "source", "needs", "duration"} == set(found[0])


def test_a_run_writes_table_numbers_and_pictures(tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert app.run(["paper", "run", "cap-rings", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "cap-rings: 3 of 4 claims of the paper held" in shown
    assert "DID NOT HOLD: The joint ring" in shown
    assert sorted(path.name for path in out.iterdir()) == [
        "cap-rings.csv",
        "cap-rings.json",
        "cap-rings.png",
        "cap-rings.svg",
    ]
    document = json.loads((out / "cap-rings.json").read_text(encoding="utf-8"))
    with (out / "cap-rings.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(document["rows"])
    assert float(rows[0]["cost_nats"]) == document["rows"][0]["cost_nats"]
    assert (out / "cap-rings.png").read_bytes().startswith(b"\x89PNG")
    assert b"</svg>" in (out / "cap-rings.svg").read_bytes()


def test_what_is_said_of_our_own_rule_is_told_apart(tmp_path, capsys, monkeypatch):
    def run(setting):
        found = QUICK.run(setting)
        return attrs.evolve(found, claims=found.claims[:3], our_claims=found.claims[3:])

    monkeypatch.setattr(paper, "experiment_named", lambda _: attrs.evolve(QUICK, run=run))
    command = ["paper", "run", "cap-rings", "--out", str(tmp_path)]
    assert app.run(command) == 0
    shown = capsys.readouterr().out
    assert "cap-rings: 3 of 3 claims of the paper held; 0 of 1 about our own rule" in shown
    papers, ours = shown.split("About our own rule, of which the paper says nothing:")
    assert "DID NOT HOLD" not in papers
    assert "DID NOT HOLD" in ours
    assert app.run([*command, "--json"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert [claim["held"] for claim in outcome["our_claims"]] == [False]


def test_a_run_as_json(tmp_path, capsys):
    command = ["paper", "run", "sliced-divergences", "--out", str(tmp_path), "--json"]
    assert app.run(command) == 0
    answer = json.loads(capsys.readouterr().out)
    (outcome,) = answer["outcomes"]
    assert all(claim["held"] for claim in outcome["claims"])
    assert outcome["files"][0] == "sliced-divergences.csv"
    assert answer["left_out"] == {}


def test_an_unknown_name_is_wrong_use_and_named_with_the_choices(tmp_path, capsys):
    assert app.run(["paper", "run", "figure-1", "--out", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert "no experiment 'figure-1'" in error
    assert "cap-rings" in error
    assert not (tmp_path / "none").exists()


def test_missing_data_is_named_with_the_way_out(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("PUFFERSLICE_DATA", raising=False)
    command = ["paper", "run", "training-curves", "--full", "--out", str(tmp_path)]
    assert app.run(command) == 2
    assert "PUFFERSLICE_DATA" in capsys.readouterr().err


def test_a_missing_extra_is_refused_with_what_to_install(tmp_path, capsys, monkeypatch):
    error = MissingExtraError("training needs torch; install it with: pip install 'x[torch]'")
    monkeypatch.setattr(paper, "experiment_named", lambda name: stub(name, error))
    assert app.run(["paper", "run", "anything", "--out", str(tmp_path)]) == 1
    assert "pip install 'x[torch]'" in capsys.readouterr().err


def test_a_folder_that_cannot_be_is_told_before_the_work(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(paper, "experiment_named", lambda name: stub(name, AssertionError()))
    assert app.run(["paper", "run", "cap-rings", "--out", str(tmp_path / "file")]) == 1
    assert "cannot make the folder" in capsys.readouterr().err


def test_all_goes_on_after_what_must_be_left_out(tmp_path, capsys, monkeypatch):
    missing = stub("other", MissingExtraError("this needs an extra"))
    monkeypatch.setattr(paper, "EXPERIMENTS", (missing, QUICK))
    assert app.run(["paper", "run", "all", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "other is left out: this needs an extra" in shown.err
    assert "cap-rings: 3 of 4" in shown.out
    assert (tmp_path / "cap-rings.json").exists()


def test_an_interrupt_leaves_whole_files_and_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(paper, "EXPERIMENTS", (QUICK, stub("second", KeyboardInterrupt())))
    assert app.run(["paper", "run", "all", "--out", str(tmp_path)]) == 130
    assert "goes on with second where it was" in capsys.readouterr().err
    json.loads((tmp_path / "cap-rings.json").read_text(encoding="utf-8"))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("full", [True, False])
def test_each_scale_keeps_its_runs_apart(tmp_path, monkeypatch, full):
    seen = []

    def run(setting):
        seen.append((setting.full, setting.folder))
        return QUICK.run(setting)

    one = Experiment(name="cap-rings", title="t", source="s", needs="", duration="d", run=run)
    monkeypatch.setattr(paper, "experiment_named", lambda _: one)
    flags = ["--full"] if full else []
    assert app.run(["paper", "run", "cap-rings", "--out", str(tmp_path), *flags]) == 0
    scale = "full" if full else "default"
    assert seen == [(full, tmp_path / "runs" / "cap-rings" / scale)]
