# SPDX-License-Identifier: Apache-2.0
"""The gallery shows every experiment, and what is exact in it is what comes out today."""

import csv
import io
import re
from itertools import product
from pathlib import Path

import attrs
import pytest
from PIL import Image

from pufferslice._core.files import digest
from reproduction import gallery
from reproduction.experiment import EXPERIMENTS, Claim, Outcome, experiment_named
from reproduction.figures import figures_of
from reproduction.noise import BOTH_DIFFERING, EPSILONS, SETUPS, noise_multipliers, noise_setting
from reproduction.panels import SHAPED
from reproduction.static import STUDIES

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "assets" / "gallery"
NAMES = [experiment.name for experiment in EXPERIMENTS]


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sections(page):
    """The text under each heading of an experiment."""
    parts = re.split(r"^## ([a-z-]+)\n", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def table(name):
    with (PICTURES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_has_every_experiment_in_order(page, sections):
    assert list(sections) == NAMES
    assert gallery._INTRODUCTION in page


def test_the_page_begins_with_a_picture_of_each(page, sections):
    first = [re.search(r"\]\(assets/gallery/([^)]+)\)", text)[1] for text in sections.values()]
    thumbnails = map(gallery.thumbnail, map(experiment_named, NAMES), first)
    assert page.startswith("\n".join([gallery._TITLE, *thumbnails, "", gallery._INTRODUCTION]))


@pytest.mark.parametrize("name", NAMES)
def test_each_has_its_picture_its_scale_and_its_claims(sections, name):
    text = sections[name]
    pictures = re.findall(r"\]\(assets/gallery/([^)]+\.png)\)", text)
    assert pictures
    for picture in pictures:
        assert picture.startswith(name)
        content = (PICTURES / picture).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) < 120_000
    assert "\nScale: " in text
    papers, _, ours = text.partition(" about our own mechanisms held.")
    n_held, n_claims = map(
        int, re.search(r"(\d+) of (\d+) claims of the paper reproduced", text).groups()
    )
    assert len(re.findall(r"^- Reproduced:", papers, re.MULTILINE)) == n_held
    assert len(re.findall(r"^- ", papers, re.MULTILINE)) == n_claims > 0
    assert bool(ours) == name.startswith("static-")
    if ours:
        n_held, n_claims = map(int, re.search(r"(\d+) of (\d+)\Z", papers).groups())
        assert len(re.findall(r"^- Held:", ours, re.MULTILINE)) == n_held
        assert len(re.findall(r"^- ", ours, re.MULTILINE)) == n_claims


def test_errors_are_compared_in_a_table(page):
    rows = re.findall(r"^\| (static-[\w-]+), (\w+) \|(.*)\|$", page, re.MULTILINE)
    assert {name for name, _, _ in rows} == set(STUDIES)
    cells = [cell.strip() for *_, line in rows for cell in line.split("|")]
    assert len(cells) == 5 * len(rows) == 5 * 11
    # Four queries of nine panels, and gradient boosting of two.
    assert len(list(filter(None, cells))) == 4 * 9 + 2
    for cell in filter(None, cells):
        for ratio in cell.split(" / "):
            assert ratio == "not comparable" or float(ratio) > 0


def test_the_table_has_the_median_of_each_panel():
    rows = [
        {
            "prior": "natural",
            "query": "summary",
            "notion": notion,
            "rule": rule,
            "epsilon": epsilon,
            "trial": 1,
            "n_records": 100,
            "dim": 9,
            "noise_std": 1.0,
            "mse": error / epsilon,
            "accuracy": 0.5 + epsilon / 10,
            "prior_accuracy": 0.5,
        }
        for (notion, rule), error in (
            (("average", "closed_form"), 30.0),
            (("joint", "closed_form"), 70.0),
            (SHAPED, 10.0),
        )
        for epsilon in (1.0, 2.0, 3.0)
    ]
    outcome = Outcome(experiment="static-student", scale="s", rows=rows, claims=())
    assert "| static-student, natural | 3 / 7 |" in gallery.same_attack([outcome])


def test_no_file_is_left_over(page):
    shown = set(re.findall(r"\(assets/gallery/([^)]+)\)", page))
    assert {path.name for path in PICTURES.iterdir()} == shown


@pytest.mark.parametrize("name", ["sliced-divergences", "cap-rings"])
def test_exact_sections_and_tables_are_what_comes_out_today(sections, name, tmp_path):
    experiment = experiment_named(name)
    outcome = gallery.kept_outcome(tmp_path, experiment)
    stamp = (tmp_path / f"{name}.json").stat().st_mtime_ns
    assert gallery.kept_outcome(tmp_path, experiment) == outcome
    assert (tmp_path / f"{name}.json").stat().st_mtime_ns == stamp
    pictures = [f"{picture}.png" for picture in figures_of(outcome)]
    section = gallery.section(experiment, outcome, pictures)
    assert section.strip() == f"## {name}\n{sections[name]}".strip()
    kept, fresh = table(name), list(csv.DictReader(io.StringIO(outcome.to_csv())))
    assert len(kept) == len(fresh)
    for old, new in zip(kept, fresh, strict=True):
        assert old.keys() == new.keys()
        assert all(same(old[key], new[key]) for key in old)


def test_the_noise_table_is_what_comes_out_today():
    rows = table("sgd-noise")
    series_shown = ("srpp", "sa_srpp", "log_moment", "amplified", "recipe_srpp")
    for count, setup, series in product(BOTH_DIFFERING, SETUPS, series_shown):
        wanted = (str(count), str(setup.batch_size), series)
        kept = [
            float(row["noise_multiplier"])
            for row in rows
            if (row["n_differing"], row["batch_size"], row["series"]) == wanted
        ]
        fresh = noise_multipliers(noise_setting(setup, count), series, EPSILONS)
        assert kept == pytest.approx(fresh, rel=1e-9)


def test_pictures_name_the_table_they_were_drawn_from():
    for name in gallery.EXACT:
        source = digest((PICTURES / f"{name}.csv").read_bytes())
        with Image.open(PICTURES / f"{name}.png") as image:
            assert image.text[gallery.DATA] == source


def same(old, new):
    """Equal as text, or as numbers up to the last digits, which another machine may round."""
    try:
        return float(old) == pytest.approx(float(new), rel=1e-9)
    except ValueError:
        return old == new


class TestGallery:
    OUTCOME = Outcome(
        experiment="cap-rings",
        scale="small",
        rows=({"x": 1},),
        claims=(
            Claim(statement="a holds", source="fig:a, fig:b", held=True, found="1"),
            Claim(statement="b holds.", source="fig:c", held=False, found="two"),
        ),
    )

    def test_a_section_says_what_held_and_what_did_not(self):
        made = gallery.section(experiment_named("cap-rings"), self.OUTCOME, ["cap-rings.png"])
        assert "1 of 2 claims of the paper reproduced." in made
        assert "- Reproduced: a holds (`fig:a`, `fig:b`). Found: 1." in made
        assert "- **Not reproduced**: b holds (`fig:c`). Found: two." in made
        assert "[table](assets/gallery/cap-rings.csv)" in made
        assert "our own" not in made
        ours = attrs.evolve(self.OUTCOME, our_claims=self.OUTCOME.claims[1:])
        made = gallery.section(experiment_named("cap-rings"), ours, ["cap-rings.png"])
        assert "0 of 1 about our own mechanisms held.\n\n- **Did not hold**: b holds" in made
