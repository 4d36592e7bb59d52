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
from pufferslice._core.display import rounded
from pufferslice.errors import ArgumentError, StorageError
from pufferslice.report.demo import FILES, PUBLIC_FILES, SECRET, run_demo
from pufferslice.report.page import internal_page


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
def differences(scenario):
    """Between every two groups, in scaled coordinates."""
    at = np.array([d.outputs[0] for d in scenario.priors[0].distributions.values()])
    return np.array([at[i] - at[j] for i in range(len(at)) for j in range(i)])


def test_exactly_the_listed_files_are_written_and_steps_reported(demo):
    result, steps = demo
    assert {path.name for path in result.folder.iterdir()} == set(FILES)
    assert {path.name for path in result.files} == set(FILES)
    assert steps == [(step, 8) for step in range(1, 9)]
    for path in result.files:
        assert (stat.S_IMODE(path.stat().st_mode) == 0o600) == (path.name not in PUBLIC_FILES)
    assert set(PUBLIC_FILES) == {"README.txt", "certificate.json", "release.json"}


def test_the_saved_certificate_is_that_of_a_direct_call(result, scenario):
    certificate = Certificate.load(result.folder / "certificate.json")
    assert verify(certificate).holds
    assert result.verification.holds
    assert certificate.digest == result.certificate.digest
    assert certificate.is_secure
    direct = certify_release(scenario, Guarantee.unsliced(order=4, epsilon=1.0))
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


def test_noise_of_the_three_mechanisms_by_hand(result, differences):
    """Squared distance of two groups over the noise, times order / (2 epsilon), is at most 1."""
    squares = (differences**2).sum(axis=1)
    profile = FiniteProfile.uniform(dim=9, n_directions=200, seed=7)
    along = (differences @ profile.directions.T) ** 2
    whitened = differences @ result.certificate.shape.whitening.T
    shaped = (whitened**2).sum(axis=1)
    assert [row["epsilon"] for row in result.sweep] == [0.1, 0.3, 1.0, 3.0, 10.0]
    for row in result.sweep:
        rate = 4 / (2 * row["epsilon"])
        assert row["fitted_std"] ** 2 == pytest.approx(rate * shaped.max(), rel=1e-6)
        assert row["isotropic_std"] ** 2 == pytest.approx(rate * squares.max(), rel=1e-6)
        assert row["paper_std"] ** 2 == pytest.approx(rate * along.max(), rel=1e-6)
        ratio = (row["isotropic_std"] / row["fitted_std"]) ** 2
        assert row["variance_ratio"] == pytest.approx(ratio, rel=1e-12)
    assert result.sweep[2]["fitted_std"] == result.certificate.noise_std


def test_each_mechanism_is_labelled_with_its_promise(result):
    """Total variances of theory: about 15.6 (the guard adds 2.6 %), 89.3, and 53.2."""
    fitted, isotropic, paper = result.mechanisms
    assert fitted["promise"] == isotropic["promise"] == "(4, 1)-RPP"
    assert paper["promise"] == "(4, 1)-Joint-SRPP"
    assert [row["about"] for row in result.mechanisms] == [
        "whole output", "whole output", "200 slices alone",
    ]  # fmt: skip
    assert paper["unsliced_epsilon"] > 1.5 > fitted["unsliced_epsilon"]
    assert paper["guess"] > fitted["guess"]
    variances = [row["total_variance"] for row in result.mechanisms]
    assert variances == pytest.approx([15.96, 89.26, 53.23], rel=1e-3)


def test_it_says_that_it_is_the_experiment_and_not_a_useful_release(result):
    assert not result.verdict.is_useful
    assert result.verdict.is_determined
    text = " ".join(str(result).split())
    assert result.verdict.sentence in text
    assert "the paper's experiment" in text
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert result.verdict.sentence in page


def test_audit_is_of_the_certificate_and_is_kept(result):
    read = json.loads((result.folder / "audit.json").read_text(encoding="utf-8"))
    assert read == json.loads(json.dumps(result.audit.to_json()))
    assert read["certificate"] == result.certificate.digest
    assert not result.audit.refuted
    assert {verdict.outcome for verdict in result.audit.verdicts} == {"not refuted"}


def test_it_ends_with_one_page(result):
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert result.certificate.digest in page
    for value, std in zip(result.released.values, result.released.noise_stds, strict=True):
        assert f"<span>{rounded(value, std)}</span>" in page
    assert "How “<bdi>race</bdi>” is protected" in page
    assert 'class="watermark"' in page
    about = [result.folder / name for name in ("certificate.json", "release.json", "audit.json")]
    assert internal_page(about).decode() == page


def test_summary_says_what_the_numbers_are(result, scenario, differences):
    scales = scenario.query.scales[:, None]
    text = (result.folder / "summary.txt").read_text(encoding="utf-8")
    assert text == f"{result}\n"
    assert "'race'" in text
    assert "VERIFIED" in text
    assert "(4, 1)-RPP for the whole output" in text
    assert "guesses right at most 63.9" in text
    assert "does not refute the certificate" in text
    assert "its own new ledger" in text
    assert str(result.folder) in text
    for name in (*scenario.query.names, *FILES):
        assert name in text
    for row, difference in zip(result.statistics, differences.T * scales, strict=True):
        assert row["largest_difference"] == pytest.approx(np.abs(difference).max())
        assert f"{row['largest_difference']:.4g}" in text
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
    stds = result.certificate.statement["noise"]["std_by_coordinate"]
    assert [row["noise_std"] for row in summary["statistics"]] == pytest.approx(stds)
    assert summary["statistics"][0]["half_width"] == pytest.approx(1.959964 * stds[0])
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
