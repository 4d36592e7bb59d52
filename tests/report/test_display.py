# SPDX-License-Identifier: Apache-2.0
"""What certificates, releases, comparisons, audits and verdicts show in a notebook."""

import html
import json
import re
from xml.etree import ElementTree as ET

import attrs
import numpy as np
import pytest
from tests.report.conftest import JOINT, made_scenario, made_table, made_verdict

from pufferslice._core.display import rounded
from pufferslice._core.numbers import percent_at_most
from pufferslice._core.sampler import SeededTestNoise
from pufferslice.audit import Audit
from pufferslice.baselines.comparison import Comparison
from pufferslice.certificate import certify_release
from pufferslice.certificate.verdict import verdict
from pufferslice.errors import CertificateError
from pufferslice.noise.decision import INTERVAL_STDS
from pufferslice.releases.release import Release, release
from pufferslice.report.inputs import read_file

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def values(made, certificate, trained):
    """One of each kind."""
    audit = read_file(made / "audit.json").content
    compared = read_file(made / "comparison.json").content.table
    assert isinstance(audit, Audit)
    assert isinstance(compared, Comparison)
    return {
        "certificate": certificate,
        "training": trained,
        "release": Release.load(made / "release.json"),
        "comparison": compared,
        "audit": audit,
        "audit verdict": made_verdict(),
        "verdict": verdict(certificate),
    }


ROWS = {
    "certificate": 3,
    "training": 1,
    "release": 3,
    "audit verdict": 1,
    "verdict": 3,
}
PUBLIC = {"certificate", "training", "release"}
KINDS = ["certificate", "training", "release", "comparison", "audit", "audit verdict", "verdict"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_shows_a_table_and_says_whether_it_is_internal(values, kind):
    page, frame = values[kind]._repr_html_(), values[kind].to_pandas()
    n_rows = ROWS.get(kind) or len(getattr(values[kind], "rows", ()) or values[kind].verdicts)
    assert len(frame) == n_rows > 0
    assert page.count("<tr>") == 1 + n_rows
    assert ("Internal: do not publish." in page) == (kind not in PUBLIC)
    assert "<script" not in page
    assert "style" not in page


@pytest.mark.parametrize("kind", KINDS)
def test_to_dict_is_what_json_can_write(values, kind):
    assert json.loads(json.dumps(values[kind].to_dict())) == values[kind].to_json()


def texts(plot):
    root = ET.fromstring(plot._repr_svg_())  # noqa: S314 - made by our own code
    return [n.text.strip("\u2068\u2069") for n in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_picture_of_a_release_has_its_values_and_their_noise(values):
    released = values["release"]
    plot = released.plot()
    assert not plot.is_internal
    words = texts(plot)
    half = INTERVAL_STDS * released.noise_stds
    for name, value, each, std in zip(
        released.names, released.values, half, released.noise_stds, strict=True
    ):
        numbers = words[words.index(name) + 1]
        assert numbers == f"{rounded(value, std)} ±\u00a0{rounded(each, std)}"
    dots = re.findall(r'<circle cx="([\d.]+)"', plot._repr_svg_())
    ends = re.findall(r"M([\d.]+) \S+ -5H([\d.]+)m", plot._repr_svg_())
    for dot, (low, high) in zip(dots, ends, strict=True):
        assert float(dot) == pytest.approx((float(low) + float(high)) / 2, abs=0.02)


def test_the_picture_of_a_certificate_has_noise_within_its_public_range(values):
    """The ranges are 80, 120 and 60 wide; 488 pixels are a range."""
    held = values["certificate"]
    plot = held.plot()
    assert not plot.is_internal
    drawn = re.findall(r'class="noise" x="16.0" y="\d+" width="([\d.]+)"', plot._repr_svg_())
    wanted = [
        488 * min(1.0, INTERVAL_STDS * std / width)
        for std, width in zip(held.released.noise.std_by_coordinate, (80, 120, 60), strict=True)
    ]
    assert [float(width) for width in drawn] == pytest.approx(wanted, abs=0.02)
    with pytest.raises(CertificateError, match="no statistics to plot"):
        values["training"].plot()


def test_the_picture_of_an_audit_has_every_verdict(values):
    audit = values["audit"]
    plot = audit.plot()
    assert plot.is_internal
    svg = plot._repr_svg_()
    assert svg.count('class="bound"') == len(audit.verdicts)
    assert 'class="against"' not in svg
    for verdict_ in audit.verdicts:
        found = f"≥ {rounded(verdict_.lower_bound)}, claimed ≤ {rounded(verdict_.claimed)}"
        assert any(found in text for text in texts(plot))
    refuted = attrs.evolve(audit, verdicts=(made_verdict(lower_bound=5.0),)).plot()
    assert "lower bound found, which refutes the claim" in texts(refuted)
    # 4 of the 6 of the scale are claimed, 5 found.
    svg = refuted._repr_svg_()
    (bar,) = re.findall(r'class="against" x="16.0" y="\d+" width="([\d.]+)"', svg)
    (bound,) = re.findall(r'<line x1="([\d.]+)" x2="[\d.]+" y1="\d+" y2="\d+" class="bound"', svg)
    assert (float(bound) - 16) / float(bar) == pytest.approx(4 / 5, abs=1e-3)


def test_a_certificate_leads_with_its_three_lines(certificate):
    page = html.unescape(certificate._repr_html_())
    sentences = re.findall(r"<p>(.*?)</p>", page)
    assert sentences[1].startswith("Protected: the secret 'site' (3 values), from someone")
    assert percent_at_most(certificate.guess) in sentences[2]
    assert sentences[3].startswith("Any one person: no promise")
    assert sentences[4].startswith("Noise on each released number")
    stds = certificate.statement.noise.std_by_coordinate
    frame = certificate.to_pandas()
    assert frame["noise_std"].tolist() == stds
    assert frame["within_95_percent"].tolist() == pytest.approx([1.959964 * std for std in stds])


def test_a_release_shows_the_digits_that_its_noise_leaves(values):
    released = values["release"]
    frame = released.to_pandas()
    assert frame["value"].tolist() == released.values.tolist()
    assert np.array_equal(frame[["low", "high"]], released.intervals)
    decimals = 1 - int(np.floor(np.log10(released.noise_stds[0])))
    assert f"<td>{released.values[0]:.{decimals}f}</td>" in released._repr_html_()
    assert "INSECURE" not in released._repr_html_()


def test_test_noise_is_marked_in_a_notebook_too(scenario, profile, tmp_path):
    noise = SeededTestNoise(seed=1)
    certificate = certify_release(scenario, JOINT.along(profile), generator=noise)
    rows = made_table().slice(0, 30)
    released = release(scenario, rows, certificate, ledger=tmp_path / "l.ledger", generator=noise)
    for value in (certificate, released):
        assert "<p>INSECURE (seeded test noise, never publish)</p>" in value._repr_html_()
    assert "INSECURE: the noise comes from a seeded test generator." in texts(released.plot())
    assert released.plot().is_internal


def test_hostile_names_are_text(profile, tmp_path):
    table = made_table(column=HOSTILE, groups=(HOSTILE, '"><img src=x>', "west"))
    scenario = made_scenario(table, column=HOSTILE)
    certificate = certify_release(scenario, JOINT.along(profile))
    rows = table.slice(0, 30)
    released = release(scenario, rows, certificate, ledger=tmp_path / "l.ledger")
    for value in (certificate, released, verdict(certificate)):
        page = value._repr_html_()
        assert "<script" not in page
        assert "<img" not in page
        assert html.escape(HOSTILE) in page
    for value in (certificate, released):
        assert "<script" not in value.plot()._repr_svg_()
        assert f"mean({HOSTILE})" in texts(value.plot())
