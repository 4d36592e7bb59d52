# SPDX-License-Identifier: Apache-2.0
"""The demonstration: what it writes is whole, agrees with direct calls, and can be made again."""

import json
import runpy
import stat

import attrs
import numpy as np
import pytest

from pufferslice import Certificate, Guarantee, Ledger, Release, Scenario, datasets, verify
from pufferslice._core.display import rounded
from pufferslice.errors import ArgumentError, StorageError
from pufferslice.report import demo
from pufferslice.report.demo import FILES, PUBLIC_FILES, WITHIN, demo_query, run_demo


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory):
    """One run, and the steps that it reported."""
    steps = []
    folder = tmp_path_factory.mktemp("demo") / "out"
    result = run_demo(folder, lambda done, total: steps.append((done, total)))
    return result, steps


@pytest.fixture(scope="module")
def result(demonstration):
    return demonstration[0]


@pytest.fixture(scope="module")
def scenario():
    last_year, table = datasets.adult_years()
    return Scenario.from_prevalence(
        table,
        column="sex",
        value="Female",
        within=WITHIN,
        query=demo_query(),
        moments_from=last_year,
    )


def test_exactly_the_listed_files_are_written_and_steps_reported(demonstration):
    result, steps = demonstration
    assert {path.name for path in result.folder.iterdir()} == set(FILES)
    assert {path.name for path in result.files} == set(FILES)
    assert steps == [(step, 7) for step in range(1, 8)]
    for path in result.files:
        assert (stat.S_IMODE(path.stat().st_mode) == 0o600) == (path.name not in PUBLIC_FILES)
    assert set(PUBLIC_FILES) == {"README.txt", "certificate.json", "release.json"}


def test_the_saved_certificate_holds_for_the_table(result, scenario):
    certificate = Certificate.load(result.folder / "certificate.json")
    assert verify(certificate, scenario=scenario).holds
    assert result.verification.holds
    assert certificate.digest == result.certificate.digest
    assert certificate.is_secure
    assert certificate.guarantee == Guarantee.guess(at_most=0.64)
    assert certificate.guess <= 0.64


def test_one_release_is_in_the_ledger(result):
    (entry,) = Ledger(result.folder / "demo.ledger").entries()
    assert (entry.state, entry.certificate) == ("published", result.certificate.digest)
    released = Release.load(result.folder / "release.json")
    assert released == result.released
    assert released.secure
    assert json.loads(entry.release) == released.to_json()


def test_release_is_the_whole_table_with_noise(result, scenario):
    """Fresh noise on each run: within 8 standard deviations, and nowhere without noise."""
    true = scenario.query.outputs(datasets.adult_years()[1])[0]
    assert [row["truth"] for row in result.statistics] == true.tolist()
    off = np.abs(result.released.values - true) / result.released.noise_stds
    assert off.max() < 8
    assert off.min() > 0
    assert result.released.moved_into[3].tolist() == [0, 1]


def test_the_numbers_that_it_is_shown_for(result):
    """Half an hour of noise on a mean of 40, where privacy of a group of rows has 19 hours."""
    rows = {row["name"]: row for row in result.statistics}
    hours, income = rows["mean(hours-per-week)"], rows["rate(income = >50K)"]
    assert hours["truth"] == pytest.approx(40.41, abs=0.01)
    assert hours["noise_std"] == pytest.approx(0.483, abs=0.005)
    # 814 of 16,280 rows, each by up to 98 hours, in eight statistics.
    group = 814 / 16_280 * 98 * (8 / 0.513970825836408) ** 0.5
    assert hours["group_privacy_std"] == pytest.approx(group, rel=1e-9)
    assert income["truth"] == pytest.approx(0.241, abs=0.001)
    assert income["noise_std"] == pytest.approx(0.0160, abs=0.0002)


def test_the_picture_of_the_readme_shows_these_numbers(result, repository):
    draw = runpy.run_path(str(repository / "docs" / "noise_picture.py"))["picture"]
    picture = (repository / "docs" / "assets" / "noise.svg").read_text(encoding="utf-8")
    assert draw(result.statistics) == picture


def test_it_is_a_useful_release_and_other_bounds_stand_beside_it(result):
    assert result.verdict.is_useful
    assert not result.verdict.is_determined
    bounds = [row.claim.bound for row in result.sweep.rows]
    assert bounds == [0.55, 0.6, 0.64, 0.7, 0.8]
    stds = result.certificate.statement.noise.std_by_coordinate
    assert result.sweep.rows[2].noise_stds == pytest.approx(stds)


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
    assert "share of sex = Female" in page
    assert 'class="watermark"' in page


def test_summary_says_what_the_numbers_are(result):
    text = (result.folder / "summary.txt").read_text(encoding="utf-8")
    assert text == f"{result}\n"
    for words in (
        "any two shares of 'sex = Female' at most 5 points apart",
        "VERIFIED",
        "guesses right at most 64",
        "It does not",
        "its own new ledger",
        str(result.sweep),
        str(result.folder),
        *(row["name"] for row in result.statistics),
        *FILES,
    ):
        assert words in text
    for row in result.statistics:
        assert f"{row['largest_difference']:.4g}" in text
    wide = [line for line in text.splitlines() if len(line) > 100]
    assert all(str(result.folder) in line for line in wide)


def test_what_is_refuted_would_be_said(result):
    broken = attrs.evolve(result.verification, problems=("noise.std differs",))
    assert "REFUTED" in str(attrs.evolve(result, verification=broken))
    worse = attrs.evolve(result.audit.verdicts[0], lower_bound=2.0)
    audit = attrs.evolve(result.audit, verdicts=(worse,))
    assert "REFUTES" in str(attrs.evolve(result, audit=audit))


def test_summary_for_programs(result):
    summary = json.loads((result.folder / "summary.json").read_text(encoding="utf-8"))
    assert summary == result.to_json()
    assert summary["verified"] is True
    assert summary["noise_std"] == result.certificate.noise_std
    assert [row["name"] for row in summary["statistics"]] == list(result.released.names)
    stds = result.certificate.statement.noise.std_by_coordinate
    assert [row["noise_std"] for row in summary["statistics"]] == pytest.approx(stds)
    assert summary["statistics"][0]["half_width"] == pytest.approx(1.959964 * stds[0])
    assert str(float(result.released.values[0])) not in repr(result)


def test_second_run_starts_anew(result, monkeypatch):
    """Its page is of its own three files; drawing it takes half of the time, so it is not drawn."""
    monkeypatch.setattr(demo, "internal_page", lambda about: repr(list(about)).encode())
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
    assert again.sweep.to_dict() == result.sweep.to_dict()
    about = [again.folder / name for name in ("certificate.json", "release.json", "audit.json")]
    assert (again.folder / "report.html").read_text(encoding="utf-8") == repr(about)


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
