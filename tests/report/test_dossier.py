# SPDX-License-Identifier: Apache-2.0
"""What belongs to which certificate; what belongs to none, or does not verify, is refused."""

import copy
import json
import shutil

import attrs
import pytest

from pufferslice.calibration.guarantee import Guarantee
from pufferslice.certificate import Certificate, certify_release
from pufferslice.errors import ArgumentError, CertificateError
from pufferslice.report.inputs import internal_inputs, public_inputs

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
