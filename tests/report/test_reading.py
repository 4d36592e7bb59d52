# SPDX-License-Identifier: Apache-2.0
"""Files are known by what is in them; others are refused by name."""

import json
import shutil

import pytest

from pufferslice.audit import Audit
from pufferslice.certificate import Certificate
from pufferslice.errors import ArgumentError, CertificateError, ReleaseError, StorageError
from pufferslice.releases.release import Release
from pufferslice.report.inputs import Curves, MemberAudit, TrainingAudit, TrainingLog, read_file

KINDS = {
    "certificate.json": Certificate,
    "trained.json": Certificate,
    "release.json": Release,
    "audit.json": Audit,
    "comparison.json": Curves,
    "verdict.json": TrainingAudit,
    "membership.json": MemberAudit,
    "public.jsonl": TrainingLog,
    "internal.jsonl": TrainingLog,
}


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", KINDS)
def test_content_decides_not_the_name(made, tmp_path, name):
    renamed = tmp_path / "anything"
    shutil.copy(made / name, renamed)
    assert isinstance(read_file(renamed).content, KINDS[name])


@pytest.mark.parametrize("name", ["audit.json", "comparison.json", "verdict.json"])
def test_what_was_written_is_read_back(made, name):
    document, content = load(made / name), read_file(made / name).content
    if isinstance(content, Audit):
        assert content.to_json() == document
    elif isinstance(content, Curves):
        assert document | content.table.to_json() == document
        assert content.epsilons == (0.5, 1.0)
        assert content.noise_stds["joint, tight, transport"][1] is None
    else:
        assert content.verdict.to_json() | {"certificate": content.certificate} == document


def test_membership_is_read_back(made):
    document, content = load(made / "membership.json"), read_file(made / "membership.json").content
    assert (
        json.loads(json.dumps(content.audit.to_json())) | {"certificate": content.certificate}
        == document
    )


def test_an_edited_outcome_is_worked_out_again(case):
    """An audit whose numbers refute is refuted, whatever its words say."""
    document = load(case / "audit.json")
    document["verdicts"][0] |= {"lower_bound": 5.0, "refuted": False, "outcome": "not refuted"}
    document["refuted"] = False
    (case / "audit.json").write_text(json.dumps(document), encoding="utf-8")
    audit = read_file(case / "audit.json").content
    assert audit.refuted
    assert audit.verdicts[0].outcome == "refuted"


def test_logs_are_told_apart(made, tmp_path):
    assert not read_file(made / "public.jsonl").content.internal
    internal = read_file(made / "internal.jsonl").content
    assert internal.internal
    assert len(internal.rows) == 12
    # Without its heading, or as one row among public ones, it stays private.
    lines = (made / "internal.jsonl").read_text(encoding="utf-8").splitlines()
    bare = tmp_path / "bare.jsonl"
    bare.write_text("\n".join(lines[1:]), encoding="utf-8")
    assert read_file(bare).content.internal
    mixed = (made / "public.jsonl").read_text(encoding="utf-8") + lines[3]
    bare.write_text(mixed, encoding="utf-8")
    assert read_file(bare).content.internal
    first = (made / "public.jsonl").read_text(encoding="utf-8").splitlines()[0]
    bare.write_text(first, encoding="utf-8")
    assert read_file(bare).content.rows[0]["step"] == 4


def test_a_row_that_a_crash_cut_off_is_left_out(made, tmp_path):
    path = tmp_path / "public.jsonl"
    path.write_bytes((made / "public.jsonl").read_bytes()[:-9])
    assert [row["step"] for row in read_file(path).content.rows] == [4, 8]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "words",
        "[1, 2]",
        "{}",
        '{"format": "something else"}',
        '{"step": 1}\n{"step": 2}\n',
        '{"a": 1}\n[2]\n',
        '{"order": NaN}',
        "\x00\x01",
    ],
)
def test_unknown_files_are_refused_by_name(tmp_path, content):
    path = tmp_path / "strange.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"strange\.json' is no file of a known kind"):
        read_file(path)


def test_evidence_need_not_be_named(made):
    with pytest.raises(ArgumentError, match="the evidence beside it is found"):
        read_file(made / "certificate.evidence.npz")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("audit.json", "confidence"),
        ("comparison.json", "dim"),
        ("membership.json", "n_members"),
        ("verdict.json", "confidence"),
    ],
)
def test_files_that_are_not_whole_are_refused(case, name, key):
    document = load(case / name)
    del document[key]
    (case / name).write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ArgumentError, match=rf"{name}' cannot be read: KeyError"):
        read_file(case / name)


@pytest.mark.parametrize("name", ["verdict.json", "membership.json"])
def test_audits_of_training_must_name_their_certificate(case, name):
    document = load(case / name)
    del document["certificate"]
    (case / name).write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ArgumentError, match="does not say which certificate it is about"):
        read_file(case / name)


def test_damaged_files_of_a_known_kind_say_so(case):
    document = load(case / "certificate.json")
    document["statement"]["guarantee"]["epsilon"] = 0.5
    (case / "certificate.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(CertificateError, match="was edited"):
        read_file(case / "certificate.json")
    document = load(case / "release.json")
    del document["values"]
    (case / "release.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ReleaseError, match="is not a release"):
        read_file(case / "release.json")
    with pytest.raises(StorageError, match=r"absent\.json"):
        read_file(case / "absent.json")
