# SPDX-License-Identifier: Apache-2.0
"""Every value of every file of a report, replaced by one of another kind: an error or a page."""

import json

import pytest
from tests.report.conftest import LEARNING, STATIC

from pufferslice.certificate import Certificate, verify
from pufferslice.errors import CertificateError, PuffersliceError
from pufferslice.report.inputs import read_file
from pufferslice.report.page import internal_page, public_page

WRONG = (
    "null", '"x"', '"5"', "-1", "0", "1e400", "[]", "{}", "true", "9" * 400, '""', '["x"]',
    '{"x": 1}',
)  # fmt: skip
EVERY = 8
"""Of the changed files that are read, one in so many is shown on a page."""


def places(value, path=()):
    """Where values are: of a list the first two."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, part in parts if isinstance(value, dict | list) else ():
        if isinstance(part, dict | list):
            yield from places(part, (*path, key))
        else:
            yield (*path, key)


def changed(value, path, wrong):
    """The JSON text with one value replaced, and a digest that fits."""
    if not path:
        return wrong
    copy = json.loads(json.dumps(value))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = "the wrong value"
    text = json.dumps(copy).replace('"the wrong value"', wrong)
    if path[0] == "statement" and len(path) > 1 and "1e400" not in text:
        copy = json.loads(text)
        copy["digest"] = Certificate(statement=copy["statement"], evidence=None).digest
        text = json.dumps(copy)
    return text


def variants(good, name):
    """The file with each of its values replaced by each wrong one; of a log, the last row."""
    lines = good.splitlines(keepends=True) if name.endswith(".jsonl") else [good]
    value = json.loads(lines[-1])
    for path in places(value):
        for wrong in WRONG:
            yield "".join([*lines[:-1], changed(value, path, wrong)])


@pytest.mark.parametrize("name", [*STATIC, *LEARNING])
def test_wrong_values_are_refused_or_shown(case, name):
    (case / "certificate.evidence.npz").unlink()
    beside = "certificate.json" if name in STATIC else "trained.json"
    files = [case / one for one in dict.fromkeys((beside, name))]
    n_read = n_refused = 0
    for text in variants(files[-1].read_text(encoding="utf-8"), name):
        files[-1].write_text(text, encoding="utf-8")
        try:
            content = read_file(files[-1]).content
            n_read += 1
            if isinstance(content, Certificate):
                str(content)
                verify(content)
            if n_read % EVERY == 0:
                (public_page if name != "internal.jsonl" else internal_page)(files)
        except PuffersliceError:
            n_refused += 1
    assert n_refused > n_read // 4


@pytest.mark.parametrize(
    ("name", "path", "wrong"),
    [
        ("certificate.json", ("statement", "scenario", "query", "names"), "[]"),
        ("certificate.json", ("statement", "scenario", "query", "range", "low"), '["x", 0, 0]'),
        ("certificate.json", ("statement", "scenario", "query", "range", "high"), "[1]"),
        ("trained.json", ("statement", "runs", 0, "noise_multipliers"), "[]"),
        ("trained.json", ("statement", "runs", 0, "sampling"), "{}"),
    ],
)
def test_a_statement_that_cannot_be_read_aloud_is_refused(case, name, path, wrong):
    value = json.loads((case / name).read_text(encoding="utf-8"))
    (case / name).write_text(changed(value, path, wrong), encoding="utf-8")
    with pytest.raises(CertificateError, match=r"statement|coordinates"):
        Certificate.load(case / name)


@pytest.mark.parametrize("name", ["audit.json", "comparison.json", "membership.json"])
def test_a_value_of_another_type_is_named(case, name):
    value = json.loads((case / name).read_text(encoding="utf-8"))
    key = "order" if name == "comparison.json" else "confidence"
    (case / name).write_text(changed(value, (key,), '"5"'), encoding="utf-8")
    with pytest.raises(PuffersliceError, match="float"):
        read_file(case / name)
