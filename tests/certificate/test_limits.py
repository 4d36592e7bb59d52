# SPDX-License-Identifier: Apache-2.0
"""Codes of limits: every code has a wording, and nobody can drop or invent one."""

import copy
from pathlib import Path

import pytest
from tests.certificate.conftest import PLAN
from tests.json_edits import statement_of

from pufferslice.certificate import Certificate, certify_training, verify
from pufferslice.certificate import limits as table
from pufferslice.errors import ArgumentError, CertificateError
from pufferslice.learning.plan import HYPOTHESES

WORDINGS = {
    "release limits": table.RELEASE_LIMITS,
    "limits": table.LIMITS,
    "hypotheses": HYPOTHESES,
    "conditions": table.CONDITIONS,
}


def certified(**options):
    return certify_training(PLAN, data="d", **options)


@pytest.mark.parametrize("wording", WORDINGS.values(), ids=WORDINGS)
def test_every_code_has_a_sentence_of_its_own(wording):
    assert len(set(wording.values())) == len(wording)
    for code, sentence in wording.items():
        assert code == code.lower().strip()
        assert " " not in code
        assert sentence.endswith(".")
        assert len(sentence) > 15
    assert set(table.ISOLATED) | set(table.BY_PROGRAM) <= set(table.RUN_LIMITS)


def test_every_code_of_a_release_is_in_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "limits.md").read_text("utf-8")
    assert [code for code in table.RELEASE_LIMITS if f"`{code}`" not in page] == []


@pytest.mark.soundness
def test_a_run_by_another_program_says_who_keeps_examples_apart():
    certificate = certified()
    assert "examples-kept-apart-by-program" in certificate.statement.limits
    assert "no batch normalisation, no mixing of examples" in str(certificate)


@pytest.mark.soundness
def test_a_run_of_isolated_examples_names_what_is_left_open():
    certificate = certified(limits=table.ISOLATED)
    text = str(certificate)
    assert "no mixing of examples" not in text
    for code in table.ISOLATED:
        assert code in certificate.statement.limits
        assert table.LIMITS[code] in text
    assert verify(certificate).holds


@pytest.mark.soundness
@pytest.mark.parametrize("limits", [(), ("state-outside-model",), ("loop-outside-program",)])
def test_how_examples_are_kept_apart_cannot_be_left_out(limits):
    with pytest.raises(ArgumentError, match="limits must state how examples were kept apart"):
        certified(limits=limits)
    statement = copy.deepcopy(certified().statement.to_json())
    statement["limits"] = [*statement["limits"][:-1], *limits]
    problems = verify(Certificate(statement=statement_of(statement), evidence=None)).problems
    assert any("kept apart" in problem for problem in problems)


@pytest.mark.parametrize(
    "limits", ["state-outside-model", ("follows-plan",), ("x",), (5,), ([],), None, 5]
)
def test_unknown_codes_are_refused(limits):
    with pytest.raises(ArgumentError, match="limits must be a list of codes among"):
        certified(limits=limits)


@pytest.mark.soundness
@pytest.mark.parametrize("name", ["limits", "hypotheses"])
def test_a_code_that_cannot_be_shown_is_not_read(name):
    document = certified().to_json()
    statement = copy.deepcopy(document["statement"])
    statement[name].append("a-code-of-tomorrow")
    with pytest.raises(CertificateError, match=rf"statement\.{name}\[\d\]"):
        Certificate.from_json({**document, "statement": statement})
    assert not verify(Certificate(statement=statement_of(statement), evidence=None)).holds


@pytest.mark.soundness
def test_every_limit_that_follows_from_the_plan_is_recomputed():
    statement = certified(implementation_delta=1e-20).statement
    for code in set(statement.limits) - set(table.RUN_LIMITS):
        fewer = {**statement.to_json(), "limits": [one for one in statement.limits if one != code]}
        assert not verify(Certificate(statement=statement_of(fewer), evidence=None)).holds, code


def test_mending_a_sentence_changes_no_certificate(monkeypatch):
    certificate = certified()
    for wording in WORDINGS.values():
        for code in wording:
            monkeypatch.setitem(wording, code, f"Mended: {wording[code]}")
    assert certified().digest == certificate.digest
    assert verify(certificate).holds
    assert "Mended: " in str(certificate)
