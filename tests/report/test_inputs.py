# SPDX-License-Identifier: Apache-2.0
"""Files of a report: recognised by content, matched to certificates; all others are refused."""

import copy
import json
import shutil

import attrs
import pytest
from tests.report.conftest import LEARNING, STATIC

from pufferslice.audit import Audit
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.certificate import Certificate, certify_release, verify
from pufferslice.errors import (
    ArgumentError,
    CertificateError,
    PuffersliceError,
    ReleaseError,
    StorageError,
)
from pufferslice.releases.release import Release
from pufferslice.report.inputs import (
    Curves,
    MemberAudit,
    TrainingAudit,
    TrainingLog,
    internal_inputs,
    public_inputs,
    read_file,
)
from pufferslice.report.page import internal_page, public_page

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
    ("name", "key", "complaint"),
    [
        ("audit.json", "format", r"audit\.format: is missing"),
        ("audit.json", "confidence", r"audit\.confidence: is missing"),
        ("comparison.json", "dim", "KeyError"),
        ("membership.json", "n_members", r"audit\.n_members: is missing"),
        ("verdict.json", "confidence", r"audit\.confidence: is missing"),
    ],
)
def test_files_that_are_not_whole_are_refused(case, name, key, complaint):
    document = load(case / name)
    del document[key]
    (case / name).write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ArgumentError, match=rf"{name}' cannot be read: {complaint}"):
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
    with pytest.raises(ReleaseError, match="values"):
        read_file(case / "release.json")
    with pytest.raises(StorageError, match=r"absent\.json"):
        read_file(case / "absent.json")


EVERYTHING = (
    "certificate.json", "release.json", "audit.json", "comparison.json",
    "trained.json", "public.jsonl", "internal.jsonl", "verdict.json", "membership.json",
)  # fmt: skip
PUBLIC = ("certificate.json", "release.json", "trained.json", "public.jsonl")


def files(folder, names):
    return [folder / name for name in names]


def edit(path, change):
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")


def test_everything_finds_its_certificate(made, certificate, trained):
    static, learning = internal_inputs(files(made, EVERYTHING))
    assert static.certificate.digest == certificate.digest
    assert learning.certificate.digest == trained.digest
    assert (len(static.releases), len(static.audits), len(static.comparisons)) == (1, 1, 1)
    assert (len(learning.logs), len(learning.audits)) == (2, 2)
    assert static.verification.holds
    assert learning.verification.holds
    assert static.scenario != learning.scenario


def test_the_order_of_files_plays_no_part(made):
    static, learning = internal_inputs(files(made, EVERYTHING[::-1]))[::-1]
    assert len(static.audits) == 1
    assert len(learning.logs) == 2


def test_the_public_edition_forgets_evidence(made):
    static, learning = public_inputs(files(made, PUBLIC))
    assert static.certificate.evidence is None
    assert static.verification is learning.verification is None
    assert len(static.releases) == len(learning.logs) == 1


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("audit.json", "is an audit, which is not for the public"),
        ("verdict.json", "is an audit, which is not for the public"),
        ("membership.json", "is an audit, which is not for the public"),
        ("comparison.json", "is a comparison, made from the distributions themselves"),
        ("internal.jsonl", "is an internal log, which is not for the public"),
    ],
)
def test_what_is_not_public_is_refused(made, name, complaint):
    with pytest.raises(ArgumentError, match=complaint):
        public_inputs(files(made, (*PUBLIC, name)))


@pytest.mark.parametrize("gather", [internal_inputs, public_inputs])
def test_a_report_needs_a_certificate(made, gather):
    with pytest.raises(ArgumentError, match="needs at least one certificate"):
        gather(files(made, ["release.json"]))
    with pytest.raises(ArgumentError, match="needs at least one certificate"):
        gather([])


def test_a_certificate_is_given_once(case):
    shutil.copy(case / "trained.json", case / "again.json")
    with pytest.raises(ArgumentError, match="are the same certificate"):
        internal_inputs(files(case, ["trained.json", "again.json"]))


@pytest.mark.soundness
@pytest.mark.parametrize("gather", [internal_inputs, public_inputs])
def test_evidence_that_refutes_is_heard(case, certificate, gather):
    """Half the noise, digest and all: only recomputing tells."""
    statement = copy.deepcopy(dict(certificate.statement))
    noise = statement["noise"]
    noise["std"] /= 2
    noise["std_by_coordinate"] = [std / 2 for std in noise["std_by_coordinate"]]
    Certificate(statement=statement, evidence=certificate.evidence).save(case / "half.json")
    with pytest.raises(CertificateError, match=r"half\.json' does not verify: the stated noise"):
        gather([case / "half.json"])


@pytest.mark.soundness
def test_plans_that_refute_are_heard(case, trained):
    statement = copy.deepcopy(dict(trained.statement))
    statement["guarantee"]["epsilon"] /= 2
    attrs.evolve(trained, statement=statement).save(case / "half.json")
    with pytest.raises(CertificateError, match=r"half\.json' does not verify"):
        public_inputs([case / "half.json"])


def test_without_evidence_nothing_is_verified(case):
    (case / "certificate.evidence.npz").unlink()
    (held,) = internal_inputs([case / "certificate.json"])
    assert held.verification is None


@pytest.mark.parametrize("name", ["release.json", "audit.json"])
def test_files_of_another_certificate_are_refused(case, name):
    edit(case / name, lambda document: document.update(certificate="ab" * 32))
    with pytest.raises(ArgumentError, match=rf"{name}' belongs to none .*abababababababab"):
        internal_inputs(files(case, ["certificate.json", name]))


def test_audits_of_the_other_road_are_refused(case, certificate, trained):
    edit(case / "verdict.json", lambda document: document.update(certificate=certificate.digest))
    with pytest.raises(ArgumentError, match="an audit of the other kind"):
        internal_inputs(files(case, ["certificate.json", "verdict.json"]))
    edit(case / "audit.json", lambda document: document.update(certificate=trained.digest))
    with pytest.raises(ArgumentError, match="an audit of the other kind"):
        internal_inputs(files(case, ["trained.json", "audit.json"]))


def test_a_second_release_is_refused(case):
    shutil.copy(case / "release.json", case / "again.json")
    with pytest.raises(ArgumentError, match="a second release of one certificate"):
        internal_inputs(files(case, ["certificate.json", "release.json", "again.json"]))


def test_a_release_has_the_noise_of_its_certificate(case, trained):
    edit(case / "release.json", lambda document: document["values"][1].update(noise_std=0.1))
    with pytest.raises(ArgumentError, match="whose coordinates or noise it does not have"):
        internal_inputs(files(case, ["certificate.json", "release.json"]))
    edit(case / "release.json", lambda document: document.update(certificate=trained.digest))
    with pytest.raises(ArgumentError, match="whose coordinates or noise it does not have"):
        internal_inputs(files(case, ["trained.json", "release.json"]))


@pytest.mark.parametrize("key", ["order", "epsilon", "dim", "n_instances"])
def test_comparisons_of_another_scenario_are_refused(case, key):
    edit(case / "comparison.json", lambda document: document.update({key: document[key] + 1}))
    with pytest.raises(ArgumentError, match=r"comparison\.json' belongs to none"):
        internal_inputs(files(case, ["certificate.json", "comparison.json"]))


def test_comparisons_are_known_by_the_noise_of_their_own_row(case):
    def other(document):
        for row in document["rows"]:
            row["noise_std"] *= 1.001

    edit(case / "comparison.json", other)
    with pytest.raises(ArgumentError, match=r"comparison\.json' belongs to none"):
        internal_inputs(files(case, ["certificate.json", "trained.json", "comparison.json"]))


def test_a_comparison_that_fits_two_is_refused(case, scenario, profile):
    certify_release(scenario, Guarantee.joint(order=4, epsilon=1.0, profile=profile)).save(
        case / "b.json"
    )
    with pytest.raises(ArgumentError, match="belongs to more than one"):
        internal_inputs(files(case, ["certificate.json", "b.json", "comparison.json"]))


def test_logs_of_another_run_are_refused(case):
    text = (case / "public.jsonl").read_text(encoding="utf-8")
    (case / "public.jsonl").write_text(text.replace('"n_steps": 12', '"n_steps": 13'))
    with pytest.raises(ArgumentError, match=r"public\.jsonl' belongs to none"):
        internal_inputs(files(case, ["trained.json", "public.jsonl"]))
    with pytest.raises(ArgumentError, match=r"internal\.jsonl' belongs to none"):
        internal_inputs(files(case, ["certificate.json", "internal.jsonl"]))


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
def test_a_statement_that_cannot_be_read_is_refused(case, name, path, wrong):
    value = json.loads((case / name).read_text(encoding="utf-8"))
    (case / name).write_text(changed(value, path, wrong), encoding="utf-8")
    with pytest.raises(CertificateError, match=r"statement|coordinates"):
        Certificate.load(case / name)


@pytest.mark.parametrize("name", ["audit.json", "comparison.json", "membership.json"])
def test_a_value_of_another_type_is_named(case, name):
    value = json.loads((case / name).read_text(encoding="utf-8"))
    key = "order" if name == "comparison.json" else "confidence"
    (case / name).write_text(changed(value, (key,), '"5"'), encoding="utf-8")
    with pytest.raises(PuffersliceError, match=r"confidence: must be a valid number|float"):
        read_file(case / name)
