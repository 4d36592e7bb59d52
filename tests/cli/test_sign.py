# SPDX-License-Identifier: Apache-2.0
"""`sign` and `verify --release`: files of certificates, budgets and releases."""

import json

import pytest
from tests.releases.test_budget import BUDGET, of_year

from pufferslice import Certificate, Ledger, Release
from pufferslice.cli.app import run
from pufferslice.cli.output import REFUSED


@pytest.fixture
def office(tmp_path, monkeypatch):
    """A folder with keys, a budget, and two releases, of which the second combines both."""
    monkeypatch.chdir(tmp_path)
    assert run(["keygen", "keys"]) == 0
    BUDGET.save("budget.json")
    certificate = Certificate.load("budget.json")
    of_year("o.ledger", certificate=certificate, only=["mean(age)"], spend=0.4, out="one.json")
    of_year("o.ledger", certificate=certificate, out="rest.json")
    return tmp_path


def answer_of(capsys, *words, code=0):
    capsys.readouterr()
    assert run([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


PUBLIC = ["--key", "keys/public.pem"]
SIGN = ["--key", "keys/private.pem"]


def test_releases_of_a_budget(office, capsys):
    verify = ["verify", "budget.json", "--release", "rest.json"]
    alone = answer_of(capsys, *verify, code=REFUSED)
    assert alone["holds"]
    assert "give those as well" in alone["releases"][0]["problems"][0]
    both = answer_of(capsys, *verify, "--release", "one.json")
    assert [each["holds"] for each in both["releases"]] == [True, True]
    sign = ["sign", "rest.json", "--certificate", "budget.json", *SIGN]
    assert run(sign) != 0
    assert Release.load("rest.json").signature is None
    assert run([*sign, "--earlier", "one.json", "--ledger", "o.ledger"]) == 0
    signed = answer_of(capsys, *verify, "--release", "one.json")["releases"]
    assert [each["signed"] for each in signed] == [False, False]  # without the key
    assert run(["sign", "budget.json", *SIGN]) == 0
    held = answer_of(capsys, *verify, "--release", "one.json", *PUBLIC)
    assert [each["signed"] for each in held["releases"]] == [True, False]
    document = json.loads((office / "rest.json").read_text())
    document["values"][0]["value"] += 1.0
    (office / "rest.json").write_text(json.dumps(document))
    edited = answer_of(capsys, *verify, "--release", "one.json", code=REFUSED)
    assert "edited" in edited["releases"][0]["problems"][0]


def test_a_signed_release_is_still_a_mark(office):
    assert run(["sign", "one.json", "--certificate", "budget.json", *SIGN]) == 0
    assert run(["ledger", "reconcile", "o.ledger", "."]) == 0
    assert len(Ledger("o.ledger").entries()) == 2


def test_the_serial_of_a_newer_signature_is_higher(office, capsys):
    sign = ["sign", "budget.json", *SIGN, "--ledger", "o.ledger"]
    first, second = (answer_of(capsys, *sign)["signature"] for _ in range(2))
    assert first["ledger"] == second["ledger"] == Ledger("o.ledger").lineage
    assert first["serial"] < second["serial"]
    dated = ["verify", "budget.json", *PUBLIC, "--not-before"]
    assert answer_of(capsys, *dated, "2026-01-01")["holds"]
    assert not answer_of(capsys, *dated, "2999-01-01", code=REFUSED)["holds"]


def test_what_is_refused(office, capsys):
    assert run(["sign", "one.json", *SIGN]) != 0
    assert "--certificate" in capsys.readouterr().err
    (office / "keys" / "private.pem").chmod(0o644)
    assert run(["sign", "budget.json", *SIGN]) != 0
    assert "can be read by others" in capsys.readouterr().err
