# SPDX-License-Identifier: Apache-2.0
"""`python -m reproduction`: lists, runs, writes whole files, and says what held."""

import csv
import json

import attrs
import pytest

from pufferslice.errors import MissingExtraError
from reproduction import experiment
from reproduction.__main__ import main
from reproduction.experiment import Experiment, experiment_named

QUICK = experiment_named("cap-rings")


def stub(name, error):
    def run(_setting):
        raise error

    return attrs.evolve(QUICK, name=name, run=run)


def test_the_list_shows_every_experiment(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["experiments"]
    assert [entry["name"] for entry in listed] == [one.name for one in experiment.EXPERIMENTS]
    assert all(entry["name"] in shown and entry["title"] in shown for entry in listed)


def test_a_run_writes_table_numbers_and_pictures(tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert main(["run", "cap-rings", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "cap-rings: 3 of 4 claims of the paper reproduced" in shown
    assert "NOT REPRODUCED: The joint ring" in shown
    endings = sorted(path.suffix for path in out.glob("cap-rings.*"))
    assert endings == [".csv", ".json", ".png", ".svg"]
    document = json.loads((out / "cap-rings.json").read_text(encoding="utf-8"))
    with (out / "cap-rings.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(document["rows"])
    assert float(rows[0]["cost_nats"]) == document["rows"][0]["cost_nats"]
    assert (out / "cap-rings.png").read_bytes().startswith(b"\x89PNG")
    assert b"</svg>" in (out / "cap-rings.svg").read_bytes()


def test_a_run_as_json_with_claims_about_our_own_rule_apart(tmp_path, capsys, monkeypatch):
    def run(setting):
        outcome = QUICK.run(setting)
        return attrs.evolve(outcome, claims=outcome.claims[:3], our_claims=outcome.claims[3:])

    monkeypatch.setattr(experiment, "experiment_named", lambda _: attrs.evolve(QUICK, run=run))
    command = ["run", "cap-rings", "--out", str(tmp_path)]
    assert main(command) == 0
    papers, ours = capsys.readouterr().out.split("About our own mechanisms")
    assert "NOT REPRODUCED" not in papers
    assert "NOT REPRODUCED" in ours
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (outcome,) = answer["outcomes"]
    assert all(claim["held"] for claim in outcome["claims"])
    assert [claim["held"] for claim in outcome["our_claims"]] == [False]
    assert outcome["files"][0] == "cap-rings.csv"
    assert answer["left_out"] == {}


def test_an_unknown_name_and_missing_data_are_wrong_use(tmp_path, capsys, monkeypatch):
    assert main(["run", "figure-1", "--out", str(tmp_path / "none")]) == 2
    assert "no experiment 'figure-1'" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    monkeypatch.delenv("PUFFERSLICE_DATA", raising=False)
    command = ["run", "training-curves", "--full", "--out", str(tmp_path)]
    assert main(command) == 2
    assert "PUFFERSLICE_DATA" in capsys.readouterr().err


def test_a_missing_extra_is_refused_with_what_to_install(tmp_path, capsys, monkeypatch):
    error = MissingExtraError("training needs torch; install it with: pip install 'x[torch]'")
    monkeypatch.setattr(experiment, "experiment_named", lambda name: stub(name, error))
    assert main(["run", "anything", "--out", str(tmp_path)]) == 1
    assert "pip install 'x[torch]'" in capsys.readouterr().err


def test_a_folder_that_cannot_be_created_is_refused_before_the_work(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(experiment, "experiment_named", lambda name: stub(name, AssertionError()))
    assert main(["run", "cap-rings", "--out", str(tmp_path / "file")]) == 1
    assert "cannot make the folder" in capsys.readouterr().err


def test_all_continues_after_what_is_left_out(tmp_path, capsys, monkeypatch):
    missing = stub("other", MissingExtraError("this needs an extra"))
    monkeypatch.setattr(experiment, "EXPERIMENTS", (missing, QUICK))
    assert main(["run", "all", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "other is left out: this needs an extra" in shown.err
    assert "cap-rings: 3 of 4" in shown.out
    assert (tmp_path / "cap-rings.json").exists()


def test_an_interrupt_leaves_complete_files_and_names_the_way_to_resume(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(experiment, "EXPERIMENTS", (QUICK, stub("second", KeyboardInterrupt())))
    assert main(["run", "all", "--out", str(tmp_path)]) == 130
    assert "the same command resumes second" in capsys.readouterr().err
    json.loads((tmp_path / "cap-rings.json").read_text(encoding="utf-8"))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("full", [True, False])
def test_each_scale_keeps_its_runs_apart(tmp_path, monkeypatch, full):
    seen = []

    def run(setting):
        seen.append((setting.full, setting.folder))
        return QUICK.run(setting)

    one = Experiment(name="cap-rings", title="t", source="s", needs="", duration="d", run=run)
    monkeypatch.setattr(experiment, "experiment_named", lambda _: one)
    flags = ["--full"] if full else []
    assert main(["run", "cap-rings", "--out", str(tmp_path), *flags]) == 0
    scale = "full" if full else "default"
    assert seen == [(full, tmp_path / "runs" / "cap-rings" / scale)]
