# SPDX-License-Identifier: Apache-2.0
"""`pufferslice report`: both editions, who may read them, and wrong use in words."""

import json
import shutil
import stat
import sys

import pytest
from tests.cli.conftest import SCENARIO

from pufferslice.cli.app import run

COMPARED = {
    "order": 4, "epsilon": 1.0, "dim": 2, "n_instances": 3, "rows": [], "left_out": {},
    "epsilons": [],
}  # fmt: skip
LOGGED = {
    "step": 1, "n_steps": 1, "notion": "unsliced", "order": 4, "spent_epsilon": 1, "epsilon": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Calibrated, released and audited through the command line."""
    folder = tmp_path_factory.mktemp("report")
    rows = [f"{'abc'[i % 3]},{30 + 5 * (i % 3) + i % 7},{40 + i % 5}" for i in range(60)]
    (folder / "people.csv").write_text("\n".join(["site,pay,age", *rows]) + "\n")
    scenario, certificate = str(folder / "scenario.toml"), str(folder / "c.json")
    (folder / "scenario.toml").write_text(SCENARIO)
    assert run(["calibrate", scenario, "--out", certificate]) == 0
    release = ["--ledger", str(folder / "l.ledger"), "--out", str(folder / "r.json")]
    assert run(["release", scenario, "--certificate", certificate, *release, "--group", "a"]) == 0
    audit = ["--n-outputs", "2000", "--out", str(folder / "a.json")]
    assert run(["audit", certificate, "--scenario", scenario, *audit]) == 0
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_internal_edition_is_for_its_owner(folder, ask):
    answer = ask("report c.json r.json a.json --out page.html")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("Written: page.html, the internal edition, ")
    assert "do not publish it" in answer.out
    assert mode(folder / "page.html") == mode(folder / "a.json") == 0o600
    assert b"Do not publish" in (folder / "page.html").read_bytes()
    told = ask("report c.json --out page.html --json").json
    size = (folder / "page.html").stat().st_size
    assert told == {"out": "page.html", "edition": "internal", "bytes": size}


def test_the_public_edition_is_for_anyone(folder, ask):
    line = "report c.json r.json --public --out page.html"
    assert "the public edition" in ask(line).out
    assert mode(folder / "page.html") & 0o444
    first = (folder / "page.html").read_bytes()
    (folder / "c.evidence.npz").rename("kept.npz")
    assert ask(line).code == 0
    assert (folder / "page.html").read_bytes() == first
    assert ask("report c.json --out page.html").code == 0
    assert mode(folder / "page.html") == 0o600, "private again when it is replaced"


def test_a_label_is_for_anyone_too(folder, ask):
    answer = ask("report c.json --label --out label.html")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("Written: label.html, a privacy label, ")
    assert "evidence" not in answer.out
    assert mode(folder / "label.html") & 0o444
    assert ask("report c.json --label --out label.html --json").json["edition"] == "label"
    assert b"Privacy label" in (folder / "label.html").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("c.json r.json --label --out p.html", "a label is about one certificate"),
        ("people.csv --out p.html", "'people.csv' is not a file of a known kind"),
        ("absent.json --out p.html", "absent.json"),
        ("r.json --out p.html", "needs at least one certificate"),
        ("c.json --out c.json", "--out 'c.json' is one of the files to report on"),
        ("c.json --out c.evidence.npz", "or evidence; name another"),
        ("c.json a.json --public --out p.html", "is an audit, which is not for"),
        ("c.json c.evidence.npz --out p.html", "is found by itself"),
        ("c.json --out no/p.html", "cannot write 'no/p.html'"),
    ],
)
def test_wrong_use_in_words(folder, ask, arguments, words):
    before = (folder / "c.evidence.npz").read_bytes()
    answer = ask("report", arguments)
    assert (answer.code, words in answer.err) == (2, True), answer.err
    assert not list(folder.glob("*.html"))
    assert (folder / "c.evidence.npz").read_bytes() == before


def test_an_edited_certificate_and_a_missing_extra(folder, ask, monkeypatch):
    text = (folder / "c.json").read_text()
    (folder / "c.json").write_text(text.replace('"epsilon": 1.0', '"epsilon": 2.0'))
    edited = ask("report c.json --out page.html")
    assert (edited.code, "was edited" in edited.err) == (1, True)
    assert not (folder / "page.html").exists()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "pufferslice.report.page", raising=False)
    extra = "reports need jinja2; install it with: pip install 'pufferslice[report]'"
    assert ask("report c.json --out page.html") == (1, "", f"error: {extra}\n")


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (None, "[" * 200_000),
        (None, '{"a":' * 100_000),
        (None, f"{json.dumps(LOGGED)}\n{json.dumps(LOGGED | {'order': 'x'})}\n"),
        (None, json.dumps(LOGGED).replace('"epsilon": 1', '"epsilon": 1e999')),
        ("a.json", {"confidence": "x"}),
        ("a.json", {"unaudited": ["\ud800"]}),
        ("a.json", {"verdicts": 5}),
        ("a.json", {"verdicts": [{"claimed": "x"}]}),
        (COMPARED, {"noise_curves": [1]}),
        (COMPARED, {"rows": [{"mechanism": "x"}]}),
        (LOGGED, {"step": "x"}),
    ],
    ids=range(11),
)
def test_odd_files_are_refused_in_words(folder, ask, base, changes):
    if base == "a.json":
        base = json.loads((folder / base).read_text())
    (folder / "odd.json").write_text(changes if base is None else json.dumps(base | changes))
    answer = ask("report c.json odd.json --out page.html")
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert not (folder / "page.html").exists()
