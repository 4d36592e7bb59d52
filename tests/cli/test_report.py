# SPDX-License-Identifier: Apache-2.0
"""`pufferslice report`: both editions, who may read them, and wrong use in words."""

import json
import stat
import sys

import numpy as np
import pytest

from pufferslice.cli.app import run

SCENARIO = """
[data]
path = "people.csv"
[secret]
column = "site"
[query]
distribution = "groups"
mean = ["pay", "age"]
scales = [10, 10]
[profile]
n_directions = 12
seed = 7
[guarantee]
notion = "joint"
order = 4
epsilon = 1.0
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Calibrated, released and audited through the command line."""
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(5)
    rows = [f"{'abc'[i % 3]},{30 + 5 * (i % 3) + rng.normal():.6f},{40 + i % 3}" for i in range(60)]
    (folder / "people.csv").write_text("\n".join(["site,pay,age", *rows]) + "\n")
    (folder / "scenario.toml").write_text(SCENARIO)
    scenario, certificate = str(folder / "scenario.toml"), str(folder / "c.json")
    assert run(["calibrate", scenario, "--out", certificate]) == 0
    release = ["--ledger", str(folder / "l.ledger"), "--out", str(folder / "r.json")]
    assert run(["release", scenario, "--certificate", certificate, *release, "--group", "a"]) == 0
    audit = ["--n-outputs", "2000", "--out", str(folder / "a.json")]
    assert run(["audit", certificate, "--scenario", scenario, *audit]) == 0
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    for path in made.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_internal_edition_is_for_its_owner(folder, capsys):
    assert run(["report", "c.json", "r.json", "a.json", "--out", "page.html"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert told.out.startswith("Written: page.html, the internal edition, ")
    assert "do not publish it" in told.out
    assert mode(folder / "page.html") == 0o600
    assert b"Do not publish" in (folder / "page.html").read_bytes()


def test_the_public_edition_is_for_anyone(folder, capsys):
    assert run(["report", "c.json", "r.json", "--public", "--out", "page.html"]) == 0
    assert "the public edition" in capsys.readouterr().out
    assert mode(folder / "page.html") & 0o444
    first = (folder / "page.html").read_bytes()
    (folder / "c.evidence.npz").unlink()
    assert run(["report", "c.json", "r.json", "--public", "--out", "page.html"]) == 0
    assert (folder / "page.html").read_bytes() == first


def test_a_public_page_becomes_private_when_it_is_replaced(folder):
    assert run(["report", "c.json", "--public", "--out", "page.html"]) == 0
    assert run(["report", "c.json", "--out", "page.html"]) == 0
    assert mode(folder / "page.html") == 0o600


def test_one_json_object(folder, capsys):
    assert run(["report", "c.json", "--out", "page.html", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    size = (folder / "page.html").stat().st_size
    assert told == {"out": "page.html", "edition": "internal", "bytes": size}


def test_an_audit_is_written_for_its_owner(made):
    assert mode(made / "a.json") == 0o600
    assert json.loads((made / "a.json").read_text())["n_outputs"] == 2_000


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["people.csv", "--out", "p.html"], 2, "'people.csv' is no file of a known kind"),
        (["absent.json", "--out", "p.html"], 2, "absent.json"),
        (["r.json", "--out", "p.html"], 2, "needs at least one certificate"),
        (["c.json", "--out", "c.json"], 2, "--out 'c.json' is one of the files to report on"),
        (["c.json", "a.json", "--public", "--out", "p.html"], 2, "is an audit, which is not for"),
        (["c.json", "c.evidence.npz", "--out", "p.html"], 2, "is found by itself"),
        (["c.json", "--out", "no/p.html"], 2, "cannot write 'no/p.html'"),
    ],
)
def test_wrong_use_is_told_in_words(folder, capsys, arguments, code, complaint):
    assert run(["report", *arguments]) == code
    assert complaint in capsys.readouterr().err
    assert not list(folder.glob("*.html"))


def test_a_certificate_that_was_edited_is_refused(folder, capsys):
    text = (folder / "c.json").read_text()
    (folder / "c.json").write_text(text.replace('"epsilon": 1.0', '"epsilon": 0.5'))
    assert run(["report", "c.json", "--out", "page.html"]) == 1
    assert "was edited" in capsys.readouterr().err
    assert not (folder / "page.html").exists()


def test_without_the_extra_one_sentence(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "pufferslice.report.page", raising=False)
    assert run(["report", "c.json", "--out", "page.html"]) == 1
    assert capsys.readouterr().err == (
        "error: reports need jinja2; install it with: pip install 'pufferslice[report]'\n"
    )


def test_evidence_is_not_overwritten(folder, capsys):
    before = (folder / "c.evidence.npz").read_bytes()
    assert run(["report", "c.json", "--out", "c.evidence.npz"]) == 2
    assert "or evidence; name another" in capsys.readouterr().err
    assert (folder / "c.evidence.npz").read_bytes() == before


def audit_with(folder, **changes):
    return json.dumps(json.loads((folder / "a.json").read_text()) | changes)


@pytest.mark.parametrize(
    "odd",
    [
        lambda _: "[" * 200_000,
        lambda _: '{"a":' * 100_000,
        lambda folder: audit_with(folder, confidence="x"),
        lambda folder: audit_with(folder, unaudited=["\ud800"]),
        lambda folder: audit_with(folder, verdicts=5),
        lambda folder: audit_with(folder, verdicts=[{"claimed": "x"}]),
        lambda _: json.dumps(COMPARED | {"noise_curves": [1]}),
        lambda _: json.dumps(COMPARED | {"rows": [{"mechanism": "x"}]}),
        lambda _: json.dumps(LOGGED | {"step": "x"}),
        lambda _: json.dumps(LOGGED | {"epsilon": "x"}),
        lambda _: json.dumps(LOGGED) + "\n" + json.dumps(LOGGED | {"order": "x"}) + "\n",
        lambda _: json.dumps(LOGGED).replace('"epsilon": 1', '"epsilon": 1e999'),
    ],
)
def test_odd_files_are_refused_in_words(folder, capsys, odd):
    (folder / "odd.json").write_text(odd(folder))
    assert run(["report", "c.json", "odd.json", "--out", "page.html"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (folder / "page.html").exists()


COMPARED = {
    "order": 4,
    "epsilon": 1.0,
    "dim": 2,
    "n_instances": 3,
    "rows": [],
    "left_out": {},
    "epsilons": [],
}
LOGGED = {
    "step": 1,
    "n_steps": 1,
    "notion": "unsliced",
    "order": 4,
    "spent_epsilon": 1,
    "epsilon": 1,
}
