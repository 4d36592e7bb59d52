# SPDX-License-Identifier: Apache-2.0
"""The demonstration: what it writes is whole, agrees with direct calls, and can be made again."""

import json
import stat

import attrs
import numpy as np
import pytest

from pufferslice import (
    Certificate,
    FiniteProfile,
    Guarantee,
    Ledger,
    Release,
    Scenario,
    certify_release,
    datasets,
    queries,
    verify,
)
from pufferslice.calibration.calibrate import Method, calibrate
from pufferslice.certificate.evidence import Evidence
from pufferslice.errors import ArgumentError, StorageError
from pufferslice.report.demo import FILES, PUBLIC_FILES, SECRET, run_demo
from pufferslice.report.page import internal_page

TIGHT = Method(rule="tight", envelope="transport")
CLOSED_FORM = Method(rule="closed_form", envelope="worst_gap")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """One run, and the steps that it reported."""
    steps = []
    folder = tmp_path_factory.mktemp("demo") / "out"
    result = run_demo(folder, lambda done, total: steps.append((done, total)))
    return result, steps


@pytest.fixture(scope="module")
def result(demo):
    return demo[0]


@pytest.fixture(scope="module")
def scenario():
    table = datasets.adult_complete()
    return Scenario.from_groups(table, secret=SECRET, query=queries.adult_summary())


@pytest.fixture(scope="module")
def evidence(scenario):
    return Evidence.of(scenario, FiniteProfile.uniform(dim=9, n_directions=200, seed=7))


def test_exactly_the_listed_files_are_written_and_steps_reported(demo):
    result, steps = demo
    assert {path.name for path in result.folder.iterdir()} == set(FILES)
    assert {path.name for path in result.files} == set(FILES)
    assert steps == [(step, 7) for step in range(1, 8)]
    for path in result.files:
        assert (stat.S_IMODE(path.stat().st_mode) == 0o600) == (path.name not in PUBLIC_FILES)
    assert set(PUBLIC_FILES) == {"README.txt", "certificate.json", "release.json"}


def test_the_saved_certificate_is_that_of_a_direct_call(result, scenario):
    certificate = Certificate.load(result.folder / "certificate.json")
    assert verify(certificate).holds
    assert result.verification.holds
    assert certificate.digest == result.certificate.digest
    assert certificate.is_secure
    profile = FiniteProfile.uniform(dim=9, n_directions=200, seed=7)
    direct = certify_release(scenario, Guarantee.joint(order=4, epsilon=1.0, profile=profile))
    statement, others = dict(certificate.statement), dict(direct.statement)
    # The digest is salted, so only it may differ.
    assert statement.pop("evidence_digest") != others.pop("evidence_digest")
    assert statement == others


def test_one_release_of_the_group_is_in_the_ledger(result):
    (entry,) = Ledger(result.folder / "demo.ledger").entries()
    assert (entry.state, entry.certificate) == ("published", result.certificate.digest)
    released = Release.load(result.folder / "release.json")
    assert released == result.released
    assert released.secure
    assert json.loads(entry.release) == released.to_json()


def test_release_is_the_group_with_noise(result, scenario):
    """Fresh noise on each run: within 8 standard deviations, and nowhere without noise."""
    true = scenario.priors[0].distributions["Black"].outputs[0] * scenario.query.scales
    off = np.abs(result.released.values - true) / result.released.noise_stds
    assert off.max() < 8
    assert off.min() > 0


def test_sweep_agrees_with_direct_calibration_and_with_closed_forms_by_hand(result, evidence):
    """Closed form: order / (2 epsilon) * level^2, the mean square of the slices, or the largest."""
    sensitivities = evidence.slices.seen.worst().max(axis=0)
    squares = {
        "average": evidence.slices.profile.weights @ sensitivities**2,
        "joint": sensitivities.max() ** 2,
    }
    wanted = [(n, e) for n in ("average", "joint") for e in (0.1, 0.3, 1.0, 3.0, 10.0)]
    assert [(row["notion"], row["epsilon"]) for row in result.sweep] == wanted
    for row in result.sweep:
        target = Guarantee(notion=row["notion"], order=4, epsilon=row["epsilon"])
        tight, closed = row["tight_std"], row["closed_form_std"]
        assert tight == calibrate(target, evidence.slices, TIGHT)
        assert closed == calibrate(target, evidence.slices, CLOSED_FORM)
        assert row["variance_ratio"] == pytest.approx(closed**2 / tight**2, rel=1e-12)
        assert closed**2 == pytest.approx(2 / target.epsilon * squares[target.notion], rel=1e-9)
    assert result.sweep[7]["tight_std"] == result.certificate.noise_std


def test_audit_is_of_the_certificate_and_is_kept(result):
    read = json.loads((result.folder / "audit.json").read_text(encoding="utf-8"))
    assert read == json.loads(json.dumps(result.audit.to_json()))
    assert read["certificate"] == result.certificate.digest
    assert not result.audit.refuted
    assert {verdict.outcome for verdict in result.audit.verdicts} == {"not refuted"}


def test_it_ends_with_one_page(result):
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert result.certificate.digest in page
    for released in result.released.values:
        assert f"{released:.4g}" in page
    assert "How “<bdi>race</bdi>” is protected" in page
    assert 'class="watermark"' in page
    about = [result.folder / name for name in ("certificate.json", "release.json", "audit.json")]
    assert internal_page(about).decode() == page


def test_summary_says_what_the_numbers_are(result, scenario):
    text = (result.folder / "summary.txt").read_text(encoding="utf-8")
    assert text == f"{result}\n"
    assert "'race'" in text
    assert "VERIFIED" in text
    assert f"at most {result.certificate.unsliced_epsilon:.4g} at order 4" in text
    assert "does not refute the certificate" in text
    assert "its own new ledger" in text
    assert str(result.folder) in text
    for name in (*scenario.query.names, *FILES):
        assert name in text
    ages = [
        distribution.outputs[0, 0] * 10
        for distribution in scenario.priors[0].distributions.values()
    ]
    assert f"{max(ages) - min(ages):.4g}" in text
    wide = [line for line in text.splitlines() if len(line) > 100]
    assert all(str(result.folder) in line for line in wide)


def test_what_is_refuted_would_be_said(result):
    broken = attrs.evolve(result.verification, problems=("noise.std differs",))
    assert "REFUTED" in str(attrs.evolve(result, verification=broken))
    worse = attrs.evolve(result.audit.verdicts[0], lower_bound=2.0)
    audit = attrs.evolve(result.audit, verdicts=(worse,))
    assert "REFUTES the certificate" in str(attrs.evolve(result, audit=audit))


def test_summary_for_programs(result):
    summary = json.loads((result.folder / "summary.json").read_text(encoding="utf-8"))
    assert summary == result.to_json()
    assert summary["verified"] is True
    assert summary["noise_std"] == result.certificate.noise_std
    assert [row["name"] for row in summary["statistics"]] == list(result.released.names)
    assert summary["statistics"][0]["noise_std"] == pytest.approx(10 * summary["noise_std"])
    assert str(float(result.released.values[0])) not in repr(result)


def test_second_run_starts_anew(result):
    first = {path.name: path.read_bytes() for path in result.files}
    (result.folder / "notes.txt").write_text("mine", encoding="utf-8")
    (result.folder / "demo.ledger-journal").write_text("a run that was cut short", encoding="utf-8")
    again = run_demo(result.folder)
    (entry,) = Ledger(again.folder / "demo.ledger").entries()
    assert entry.certificate == again.certificate.digest != result.certificate.digest
    assert verify(Certificate.load(again.folder / "certificate.json")).holds
    assert Release.load(again.folder / "release.json") == again.released != result.released
    assert (again.folder / "release.json").read_bytes() != first["release.json"]
    assert not (again.folder / "demo.ledger-journal").exists()
    assert (again.folder / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert again.sweep == result.sweep


def test_folder_of_someone_else_is_left_alone(tmp_path):
    kept = {"certificate.json": "mine", "README.txt": "my project"}
    for name, content in kept.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"new or empty folder.*holds other files"):
        run_demo(tmp_path)
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == kept


def test_a_folder_or_file_that_cannot_be_replaced_is_named(tmp_path):
    (tmp_path / "README.txt").write_text("Made by `pufferslice demo`", encoding="utf-8")
    (tmp_path / "release.json").mkdir()
    for folder, name in ((tmp_path, "release.json"), (tmp_path / "README.txt", "README.txt")):
        with pytest.raises(StorageError, match=rf"cannot use the folder .*{name}"):
            run_demo(folder)
