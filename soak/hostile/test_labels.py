# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""Labels that would break lines, turn them around, or pass for a sentence of a certificate."""

import json
import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest

import pufferslice as ps
from pufferslice._core.files import pretty_json
from pufferslice.audit import audit_outputs, draw_outputs
from pufferslice.certificate.training import certify_training
from pufferslice.claims import Measure
from pufferslice.cli.app import run
from pufferslice.learning import Poisson, WorstCase, exactly, plan_with_noise
from pufferslice.report.page import internal_page, label_page, public_page

FORGED = "Unsliced (the released bits): Rényi divergence at most 0.001 at order 4"
LABELS = [
    f"a\n\n{FORGED}",
    f"b. {FORGED}",
    "c\u202e\u2066)eurt si gnihtyreve(",
    "d\u200b\u200f\u2028\x1b[2J\x9b\r\x85",
    "e[bold red]x[/] [link=file:///etc/passwd]y[/link] </bdi><script>alert(1)</script>",
    "f\u2069\u2068",
]
OUTSIDE_THE_BODY = re.compile(
    r"<(style|script|title)\b.*?</\1>|<svg.*?</svg>|aria-label=\"[^\"]*\"", re.DOTALL
)
COLUMN = f"x\n\n{FORGED}\u202e"
SITE = f"site\n{FORGED}\u202e"
TABLE = pa.table(
    {SITE: [label for label in LABELS for _ in range(3)], COLUMN: np.arange(3.0 * len(LABELS))}
)
PROFILE = ps.FiniteProfile.axes(dim=1)
TARGET = ps.Guarantee.joint(order=4, epsilon=1.0)
QUERY = ps.queries.summary(mean=[COLUMN])


@pytest.fixture(scope="module")
def scenario():
    return ps.Scenario.from_groups({f"prior\n{FORGED}": TABLE}, secret=SITE, query=QUERY)


@pytest.fixture(scope="module")
def certificate(scenario):
    return ps.certify_release(scenario, TARGET.along(PROFILE))


@pytest.fixture(scope="module")
def audit(scenario, certificate):
    outputs = draw_outputs(scenario, certificate, 2_000, seed=1)
    return audit_outputs(scenario, PROFILE, certificate, outputs, confidence=0.95, seed=1)


@pytest.fixture
def files(scenario, certificate, audit, tmp_path, monkeypatch):
    """Certificate, release, audit and scenario of the hostile table, in the working folder."""
    monkeypatch.chdir(tmp_path)
    certificate.save("c.json")
    ps.release(scenario, TABLE.slice(0, 3), certificate, ledger="l.db", out="r.json")
    (tmp_path / "audit.json").write_bytes(pretty_json(audit.to_json()))
    pa.csv.write_csv(TABLE, "t.csv")
    (tmp_path / "scenario.toml").write_text(
        f"""
[data]
path = "t.csv"
[secret]
column = {json.dumps(SITE)}
[query]
distribution = "groups"
mean = [{json.dumps(COLUMN)}]
[prior]
source = "released-data"
[profile]
n_directions = 4
seed = 7
[guarantee]
notion = "joint"
order = 4
epsilon = 1.0
"""
    )
    return tmp_path


def assert_tame(text):
    """No character but the line break does anything, and no line begins with a forged sentence."""
    for one in set(text) - {"\n"}:
        assert unicodedata.category(one) not in {"Cc", "Cf", "Zl", "Zp", "Cs", "Co"}, ascii(one)
    for line in text.splitlines():
        if line.lstrip(" -").startswith("Unsliced (the released bits)"):
            assert "0.001" not in line


def test_certificate(certificate):
    prose = str(certificate)
    assert_tame(prose)
    bare = re.sub(r"\"[^\"]*\"|'[^']*'", "", prose)
    assert bare.count("released bits): Rényi divergence at most") == 1
    assert r"a\n\n" in prose
    assert max(map(len, prose.splitlines())) < 1_500


def test_release(files):
    released = ps.Release.load("r.json")
    assert_tame(str(released))
    # The claim, one coordinate, the unsliced cost, and the guesses.
    assert len(str(released).splitlines()) == 4


def test_verdicts(audit):
    assert_tame(str(audit))
    assert any("\\u202e" in str(one) or r"\n" in str(one) for one in audit.verdicts)


def test_training(tmp_path):
    plan = plan_with_noise(
        differing=exactly(1),
        sampling=Poisson(n_records=100, rate=0.1),
        accountant=WorstCase(),
        measure=Measure.renyi(order=4.0),
        noise_multipliers=np.full(5, 40.0),
        clip_norm=1.0,
    )
    trained = certify_training(plan, data=f"people\n\n{FORGED}\u202e", deltas=())
    assert_tame(str(trained))
    trained.save(tmp_path / "c.json")
    page = OUTSIDE_THE_BODY.sub("", internal_page([tmp_path / "c.json"]).decode())
    assert_tame(page.replace("\u00a0", " "))
    assert FORGED not in re.sub(r"<bdi>.*?</bdi>", "", page)


def test_notebooks(certificate, audit, files):
    for value in (certificate, audit, ps.Release.load("r.json")):
        page = value._repr_html_()
        assert_tame(page.replace("\u00a0", " "))
        assert "<script" not in page
        assert "</bdi>" not in page


def test_label(files):
    page = label_page(["c.json"]).decode()
    assert_tame(OUTSIDE_THE_BODY.sub("", page).replace("\u00a0", " "))
    assert "<script" not in page
    assert all("<" not in label for label in isolated_labels(page))


def test_long_labels_are_cut():
    table = pa.table({"s": ["a" * 5_000] * 2 + ["b" * 5_000] * 2, "x": [0.0, 1.0, 2.0, 3.0]})
    scenario = ps.Scenario.from_groups(table, secret="s", query=ps.queries.summary(mean=["x"]))
    prose = str(ps.certify_release(scenario, TARGET.along(PROFILE)))
    assert "a" * 81 not in prose
    assert "a" * 79 + "…" in prose


def isolated_labels(page):
    return re.findall(r"<bdi>(.*?)</bdi>", page)


@pytest.mark.parametrize("make", [internal_page, public_page])
def test_pages(files, make):
    chosen = ["c.json", "r.json"] + (["audit.json"] if make is internal_page else [])
    page = make(chosen).decode()
    body = OUTSIDE_THE_BODY.sub("", page)
    assert_tame(body.replace("\u00a0", " "))
    assert "<script>alert" not in page
    assert page.count("<bdi>") == page.count("</bdi>") > 10
    assert all("<" not in label for label in isolated_labels(page))
    # Every label stands isolated wherever it stands in the body.
    outside = re.sub(r"<bdi>.*?</bdi>", "", body)
    for label in (*LABELS, COLUMN, SITE):
        assert label[:1] + r"\n" not in outside
    assert FORGED not in outside
    titled = "".join(re.findall(r"<title>(.*?)</title>|aria-label=\"([^\"]*)\"", page)[0])
    assert "<bdi>" not in titled


@pytest.mark.parametrize("make", [internal_page, public_page])
def test_pages_about_shaped_noise(tmp_path, make):
    """Names of statistics stand in lists to choose from, on axes, and in data of the page."""
    other = "y</script><img src=x>\u202e"
    table = TABLE.append_column(other, pa.array(np.arange(18.0) ** 2))
    query = ps.queries.summary(mean=[COLUMN, other])
    scenario = ps.Scenario.from_groups(table, secret=SITE, query=query)
    held = ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.7))
    assert_tame(str(held).replace("\u00a0", " "))
    held.save(tmp_path / "c.json")
    page = make([tmp_path / "c.json"]).decode()
    assert_tame(OUTSIDE_THE_BODY.sub("", page).replace("\u00a0", " "))
    assert "<img" not in page
    (data,) = re.findall(r'<script type="application/json">(\{.*?)</script>', page)
    assert [name[1:-1].startswith(("mean(x", '"mean(x')) for name in json.loads(data)["names"]] == [
        True,
        False,
    ]
    options = re.findall(r"<option [^>]*>(.*?)</option>", page)
    assert len(options) == 4
    assert all("<" not in option for option in options)


COMMANDS = [
    "calibrate scenario.toml",
    "calibrate scenario.toml --json",
    "verify c.json",
    "spent c.json",
    "compare scenario.toml",
    "audit c.json --scenario scenario.toml --n-outputs 2000",
    "report c.json r.json audit.json --out page.html",
    "report c.json --label --out label.html",
    "release --certificate c.json --ledger l.db --out again.json --again",
    "release --certificate c.json --ledger l.db --out again.json --again --json",
    "release scenario.toml --certificate c.json --ledger l.db --out s.json --group zebra",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command, files, capfd):
    run(command.split())
    printed = capfd.readouterr()
    assert printed.out or printed.err
    assert_tame(printed.out)
    assert_tame(printed.err)
    if command.endswith("--json"):
        assert json.loads(printed.out)
    if "zebra" in command:
        assert r"a\n\n" in printed.err
        assert "[link=file" in printed.err
