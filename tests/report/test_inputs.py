# SPDX-License-Identifier: Apache-2.0
"""Files of a report: recognised by content, matched to certificates; all others are refused."""

import copy
import json
import shutil

import attrs
import pytest
from tests.json_edits import statement_of
from tests.report.conftest import LEARNING, PUBLIC, STATIC, files

from pufferslice._core.files import canonical_json, digest
from pufferslice.audit import Audit, MembershipAudit, Verdict
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
    "verdict.json": Verdict,
    "membership.json": MembershipAudit,
    "public.jsonl": TrainingLog,
    "internal.jsonl": TrainingLog,
}


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def edit(path, *keys, **changes):
    """Set or, if None, remove values below some keys."""
    document = load(path)
    inner = document
    for key in keys:
        inner = inner[key]
    for name, value in changes.items():
        inner[name] = value
        if value is None:
            del inner[name]
    path.write_text(json.dumps(document), encoding="utf-8")


def seal(path):
    """Give an edited release the digest of what it now says, as a careful forger would."""
    document = load(path)
    inside = {k: v for k, v in document.items() if k not in ("digest", "signature")}
    edit(path, digest=digest(canonical_json(inside)))


@pytest.mark.parametrize("name", KINDS)
def test_content_decides_not_the_name_and_is_read_back(made, tmp_path, name):
    shutil.copy(made / name, tmp_path / "anything")
    file = read_file(tmp_path / "anything")
    content = file.content
    assert isinstance(content, KINDS[name])
    if isinstance(content, Audit | Verdict | MembershipAudit | Curves):
        values = (content.table if isinstance(content, Curves) else content).to_json()
        document = load(made / name)
        assert document | json.loads(json.dumps(values)) == document
        assert file.names == document.get("certificate")
    if isinstance(content, Curves):
        assert content.epsilons == (0.5, 1.0)
        assert content.noise_stds["joint, tight, transport"][1] is None


def test_an_edited_outcome_is_worked_out_again(case):
    """An audit whose numbers refute is refuted, whatever its words say."""
    edit(case / "audit.json", "verdicts", 0, lower_bound=5.0, refuted=False, outcome="not refuted")
    edit(case / "audit.json", refuted=False)
    audit = read_file(case / "audit.json").content
    assert (audit.refuted, audit.verdicts[0].outcome) == (True, "refuted")


def test_logs(made, tmp_path):
    """Without its heading, or as one row among public ones, an internal log stays private."""
    public = (made / "public.jsonl").read_text(encoding="utf-8")
    internal = (made / "internal.jsonl").read_text(encoding="utf-8").splitlines()
    for text, is_internal, steps in [
        (public, False, [4, 8, 12]),
        (public.splitlines()[0], False, [4]),
        (public[:-9], False, [4, 8]),  # cut off by a crash
        ("\n".join(internal), True, list(range(1, 13))),
        ("\n".join(internal[1:]), True, list(range(1, 13))),
        (public + internal[3], True, [4, 8, 12, 3]),
    ]:
        (tmp_path / "log.jsonl").write_text(text, encoding="utf-8")
        log = read_file(tmp_path / "log.jsonl").content
        assert (log.internal, [row["step"] for row in log.rows]) == (is_internal, steps)


@pytest.mark.parametrize(
    "content",
    ["", "words", "[1, 2]", "{}", '{"format": "something else"}', '{"step": 1}\n{"step": 2}\n',
     '{"a": 1}\n[2]\n', '{"order": NaN}', "\x00\x01"],
)  # fmt: skip
def test_unknown_files_are_refused_by_name(tmp_path, content):
    (tmp_path / "strange.json").write_text(content, encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"strange\.json' is not a file of a known kind"):
        read_file(tmp_path / "strange.json")


@pytest.mark.parametrize(
    ("name", "keys", "changes", "error", "words"),
    [
        ("audit.json", (), {"confidence": None}, ArgumentError, "confidence"),
        ("audit.json", (), {"format": None}, ArgumentError, "format"),
        ("comparison.json", (), {"dim": None}, ArgumentError, "cannot be read"),
        ("membership.json", (), {"n_members": None}, ArgumentError, "n_members"),
        ("verdict.json", (), {"pair": ["a", "b", "c"]}, ArgumentError, "pair"),
        ("verdict.json", (), {"certificate": None}, ArgumentError, "certificate"),
        ("audit.json", (), {"confidence": "5"}, ArgumentError, "confidence"),
        ("comparison.json", (), {"order": "5"}, ArgumentError, "float was expected"),
        ("comparison.json", (), {"epsilons": [1.0]}, ArgumentError, "epsilons"),
        ("certificate.json", ("statement", "guarantee"), {"epsilon": 2.0}, CertificateError,
         "was edited"),
        ("release.json", (), {"values": None}, ReleaseError, "values"),
    ],
)  # fmt: skip
def test_damaged_files_of_a_known_kind_say_so(case, name, keys, changes, error, words):
    edit(case / name, *keys, **changes)
    with pytest.raises(error, match=words):
        read_file(case / name)


def test_evidence_need_not_be_named_and_absent_files_are(made):
    with pytest.raises(ArgumentError, match="evidence"):
        read_file(made / "certificate.evidence.npz")
    with pytest.raises(StorageError, match=r"absent\.json"):
        read_file(made / "absent.json")


def test_everything_finds_its_certificate(made, certificate, trained):
    """In any order."""
    names = (*STATIC, *LEARNING)
    for static, learning in (
        internal_inputs(files(made, names)),
        internal_inputs(files(made, names[::-1]))[::-1],
    ):
        assert static.certificate.digest == certificate.digest
        assert learning.certificate.digest == trained.digest
        assert (len(static.releases), len(static.audits), len(static.comparisons)) == (1, 1, 1)
        assert (len(learning.logs), len(learning.audits)) == (2, 2)
        assert static.verification.holds
        assert learning.verification.holds
        assert static.scenario != learning.scenario


def test_what_is_not_verified(made, case):
    static, learning = public_inputs(files(made, PUBLIC))
    assert static.certificate.evidence is None
    assert static.verification is learning.verification is None
    assert len(static.releases) == len(learning.logs) == 1
    (case / "certificate.evidence.npz").unlink()
    assert internal_inputs([case / "certificate.json"])[0].verification is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((f"{kind}.json", "not for the public") for kind in ("audit", "verdict", "membership")),
        ("comparison.json", "comparison"),
        ("internal.jsonl", "not for the public"),
    ],
)
def test_what_is_not_public_is_refused(made, name, words):
    with pytest.raises(ArgumentError, match=words):
        public_inputs(files(made, (*PUBLIC, name)))


@pytest.mark.soundness
@pytest.mark.parametrize("gather", [internal_inputs, public_inputs])
def test_evidence_and_plans_that_refute_are_heard(case, certificate, trained, gather):
    """Half the noise or the cost, digest and all: only recomputing tells."""
    statement = copy.deepcopy(certificate.statement.to_json())
    noise = statement["noise"]
    noise["std"] /= 2
    noise["std_by_coordinate"] = [std / 2 for std in noise["std_by_coordinate"]]
    Certificate(statement=statement_of(statement), evidence=certificate.evidence).save(
        case / "half.json"
    )
    with pytest.raises(CertificateError, match=r"half\.json' does not verify: the stated noise"):
        gather([case / "half.json"])
    statement = copy.deepcopy(trained.statement.to_json())
    statement["guarantee"]["epsilon"] /= 2
    attrs.evolve(trained, statement=statement_of(statement)).save(case / "half.json")
    with pytest.raises(CertificateError, match=r"half\.json' does not verify"):
        gather([case / "half.json"])


ANOTHER = {"certificate": "ab" * 32}
BOX = {"kind": "box", "low": [0.0] * 3, "high": [1.0] * 3}
FREE = {"order": 4.0, "epsilon": 1e-9, "source": "hope", "guess": 0.5}


@pytest.mark.parametrize(
    ("names", "changes", "words"),
    [
        ([], {}, "at least one certificate"),
        (["release.json"], {}, "at least one certificate"),
        (["trained.json", "again/trained.json"], {}, "are the same certificate"),
        (["certificate.json", "release.json", "again/release.json"], {}, "second release"),
        (["certificate.json", "release.json"], ANOTHER, "belongs to none .*abababababababab"),
        (["certificate.json", "audit.json"], ANOTHER, "belongs to none .*abababababababab"),
        (["certificate.json", "verdict.json"], {"certificate": "certificate.json"}, "another kind"),
        (["trained.json", "audit.json"], {"certificate": "trained.json"}, "another kind"),
        (["certificate.json", "release.json"], {"noise_std": 0.1}, "noise"),
        (["certificate.json", "release.json"], {"covariance": "correlated"}, "covariance"),
        (["trained.json", "release.json"], {"certificate": "trained.json"}, "training run"),
        (["certificate.json", "release.json"], {"secure": False}, "secure"),
        (["certificate.json", "release.json"], {"guarantee": "(4, 0.1)-RPP"}, "guarantee"),
        (["certificate.json", "release.json"], {"range": BOX}, "range"),
        (["certificate.json", "release.json"], {"unsliced": FREE}, "unsliced"),
        (["certificate.json", "comparison.json"], {"order": 5.0}, "belongs to none"),
        (["certificate.json", "comparison.json"], {"epsilon": 2.0}, "belongs to none"),
        (["certificate.json", "comparison.json"], {"dim": 4}, "belongs to none"),
        (["certificate.json", "comparison.json"], {"n_instances": 4}, "belongs to none"),
        (["certificate.json", "trained.json", "comparison.json"], {"rows": []}, "belongs to none"),
        (["certificate.json", "b.json", "comparison.json"], {}, "belongs to more than one"),
        (["certificate.json", "internal.jsonl"], {}, "belongs to none"),
    ],
)
def test_what_does_not_belong_is_refused(
    case, scenario, profile, certificate, names, changes, words
):
    (case / "again").mkdir()
    for name in ("trained.json", "release.json"):
        shutil.copy(case / name, case / "again")
    certify_release(scenario, certificate.guarantee.along(profile)).save(case / "b.json")
    if (digest_of := changes.get("certificate", "")).endswith(".json"):
        changes = {"certificate": Certificate.load(case / digest_of).digest}
    if "noise_std" in changes:
        del (document := json.loads((case / names[-1]).read_text()))["covariance"]
        (case / names[-1]).write_text(json.dumps(document))
    if "covariance" in changes:
        triangle = json.loads((case / names[-1]).read_text())["covariance"]
        triangle[1][0] += 0.1 * (triangle[0][0] * triangle[1][1]) ** 0.5
        changes = {"covariance": triangle}
    if changes:
        edit(case / names[-1], *(["values", 1] if "noise_std" in changes else []), **changes)
        if names[-1] == "release.json":
            seal(case / names[-1])
    with pytest.raises(ArgumentError, match=words):
        internal_inputs(files(case, names))


@pytest.mark.parametrize("is_sealed", [False, True])
def test_an_edited_value_is_not_printed(case, is_sealed):
    value = load(case / "release.json")["values"][0]["value"]
    edit(case / "release.json", "values", 0, value=value + 1.0)
    if is_sealed:
        seal(case / "release.json")
    words = "values: they do not follow" if is_sealed else "was edited: its digest"
    with pytest.raises(ArgumentError, match=words):
        public_inputs(files(case, ["certificate.json", "release.json"]))


def test_logs_of_another_run_are_refused(case):
    text = (case / "public.jsonl").read_text(encoding="utf-8")
    (case / "public.jsonl").write_text(text.replace('"n_steps": 12', '"n_steps": 13'))
    with pytest.raises(ArgumentError, match=r"public\.jsonl' belongs to none"):
        internal_inputs(files(case, ["trained.json", "public.jsonl"]))


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
    document = json.loads(json.dumps(value))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = "the wrong value"
    text = json.dumps(document).replace('"the wrong value"', wrong)
    if path[0] == "statement" and len(path) > 1 and "1e400" not in text:
        document = json.loads(text)
        document["digest"] = digest(canonical_json(document["statement"]))
        text = json.dumps(document)
    return text


@pytest.mark.parametrize("name", [*STATIC, *LEARNING])
def test_wrong_values_are_refused_or_shown(case, name):
    """Each value of a file, or of the last row of a log, replaced by each wrong one."""
    (case / "certificate.evidence.npz").unlink()
    beside = "certificate.json" if name in STATIC else "trained.json"
    paths = files(case, dict.fromkeys((beside, name)))
    good = paths[-1].read_text(encoding="utf-8")
    *lines, last = good.splitlines(keepends=True) if name.endswith(".jsonl") else [good]
    value = json.loads(last)
    n_read = n_refused = 0
    for place in places(value):
        for wrong in WRONG:
            text = "".join([*lines, changed(value, place, wrong)])
            paths[-1].write_text(text, encoding="utf-8")
            try:
                content = read_file(paths[-1]).content
                n_read += 1
                if isinstance(content, Certificate):
                    str(content)
                    verify(content)
                if n_read % EVERY == 0:
                    (public_page if name != "internal.jsonl" else internal_page)(paths)
            except PuffersliceError:
                n_refused += 1
    assert n_refused > n_read // 4


@pytest.mark.parametrize(
    ("name", "path", "wrong"),
    [
        ("certificate.json", ("scenario", "query", "names"), "[]"),
        ("certificate.json", ("scenario", "query", "range", "low"), '["x", 0, 0]'),
        ("certificate.json", ("scenario", "query", "range", "high"), "[1]"),
        ("trained.json", ("runs", 0, "noise_multipliers"), "[]"),
        ("trained.json", ("runs", 0, "sampling"), "{}"),
    ],
)
def test_a_statement_that_cannot_be_read_is_refused(case, name, path, wrong):
    (case / name).write_text(changed(load(case / name), ("statement", *path), wrong))
    with pytest.raises(CertificateError, match=r"statement|coordinates"):
        Certificate.load(case / name)
