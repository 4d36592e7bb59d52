# SPDX-License-Identifier: Apache-2.0
"""Formulas name the paper's own labels, and those exist; every file carries its licence line."""

import ast
import importlib
import re
from pathlib import Path
from typing import get_args

import pytest

import pufferslice
from reproduction.experiment import EXPERIMENTS, Verdict

PACKAGE = Path(pufferslice.__file__).parent
LABEL = re.compile(r"(?<![\w:/.-])[A-Za-z]+:[A-Za-z][\w-]*(?::\w[\w-]*)*\b")
SOURCE = re.compile(r"^Source:(.*?)(?=^\s*$|^\w+:\s|\Z)", re.MULTILINE | re.DOTALL)
NEED_NO_TEST = {"background", "nothing to compute", "step of a proof"}
SPDX = "# SPDX-License-Identifier: Apache-2.0"


@pytest.fixture(scope="module")
def paper_labels(repository):
    """Of definitions, theorems and their like, algorithms, assumptions, figures, experiments."""
    return (repository / "docs" / "paper-labels.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def paper_map(repository):
    return (repository / "docs" / "paper-map.md").read_text(encoding="utf-8")


def test_the_list_of_labels_is_sorted_and_made_of_labels(paper_labels):
    assert paper_labels == sorted(set(paper_labels))
    assert all(LABEL.fullmatch(label) for label in paper_labels)


def test_every_cited_label_exists(paper_labels, repository):
    cited = {
        label: path.name
        for folder in (PACKAGE, repository / "reproduction")
        for path in folder.rglob("*.py")
        for label in cited_labels(path.read_text(encoding="utf-8"))
    }
    assert cited, "no docstring names its source"
    assert not {label: where for label, where in cited.items() if label not in paper_labels}


def test_every_label_of_the_paper_map_exists(paper_map, paper_labels):
    assert not set(LABEL.findall(paper_map)) - set(paper_labels)


def test_every_label_has_its_place_in_the_paper_map(paper_map, paper_labels):
    assert not set(paper_labels) - set(LABEL.findall(paper_map))


def test_every_name_of_the_paper_map_resolves(paper_map):
    names = re.findall(r"`((?:pufferslice|reproduction)(?:\.\w+)+)`", paper_map)
    assert names
    for name in names:
        resolve(name)


def test_every_row_of_the_paper_map_has_a_test_or_needs_none(paper_map):
    rows = [line for line in paper_map.splitlines() if re.match(r"\| `\w+:", line)]
    assert len(rows) > 60
    for row in rows:
        *_, test, status, _ = (cell.strip() for cell in row.split(" |"))
        assert test.startswith("`tests/") or status in NEED_NO_TEST, row


def test_what_is_not_followed_has_its_reason_in_the_errata(paper_map, repository):
    errata = set(LABEL.findall((repository / "docs" / "errata.md").read_text(encoding="utf-8")))
    pointing = [
        line
        for line in paper_map.splitlines()
        if re.match(r"\| `\w+:", line) and re.search("errata|not followed", line)
    ]
    assert len(pointing) > 10
    for row in pointing:
        label = row.split(" |")[0]
        assert errata & set(LABEL.findall(label)), row


def test_the_paper_map_counts_its_rows(paper_map, paper_labels):
    rows = [line for line in paper_map.splitlines() if re.match(r"\| `\w+:", line)]
    tested = [row for row in rows if "`tests/" in row]
    refused = [row for row in rows if re.search("errata|not followed", row)]
    counted = (
        f"{len(rows)} rows for {len(paper_labels)} labels: {len(tested)} name code and a test, "
        f"{len(rows) - len(tested)} need no code. Of {len(refused)} rows a part is not followed, "
        "or not certified, and the [errata](errata.md) say why."
    )
    assert counted in " ".join(paper_map.split())


def test_every_test_of_the_paper_map_can_be_pasted_into_pytest(paper_map, repository):
    named = re.findall(r"`(tests/[\w/]+\.py)((?:::\w+)*)`", paper_map)
    assert named
    for path, name in named:
        assert name.removeprefix("::") in {"", *ids_of(repository / path)}, f"{path}{name}"


def test_every_number_of_the_paper_is_decided(paper_map, paper_labels):
    part = paper_map[paper_map.index("## Numbers in the text") :]
    rows = [line for line in part.splitlines() if re.search(r"\| `\w+:\w", line)]
    assert len(rows) > 30
    names = {experiment.name for experiment in EXPERIMENTS}
    for row in rows:
        *_, source, ours, verdict, where, _ = (cell.strip() for cell in row.split("|"))
        assert source.strip("`") in paper_labels, row
        assert ours, row
        assert re.sub(r" for \d+ records$", "", verdict) in get_args(Verdict), row
        assert where.startswith(("`tests/", "[")) or where.strip("`") in names, row


def test_ids_of_tests_name_their_class(tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text(
        "def test_a(): ...\nclass TestB:\n    def test_c(self): ...\n", encoding="utf-8"
    )
    assert ids_of(path) == {"test_a", "TestB", "TestB::test_c"}


def test_the_paper_map_names_every_experiment(paper_map):
    part = paper_map[paper_map.index("## Figures and experiments") :]
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", part))
    assert named == {experiment.name for experiment in EXPERIMENTS}


def test_experiments_name_labels_of_the_paper(paper_labels):
    for experiment in EXPERIMENTS:
        labels = LABEL.findall(experiment.source)
        assert labels, experiment.name
        assert not set(labels) - set(paper_labels), experiment.name


def test_sources_are_read_to_the_end_of_their_paragraph():
    text = '''
def f():
    """Formula.

    Source: thm:one-A, with the constant
    of lemma:two_b (doi:10.1000/1, https://example.org).
    Needs: not:cited.
    """
'''
    assert cited_labels(text) == {"thm:one-A", "lemma:two_b"}


def test_every_source_file_has_its_licence_line(repository):
    folders = ("src", "reproduction", "tests", "soak", "benchmarks", "examples")
    files = [path for folder in folders for path in (repository / folder).rglob("*.py")]
    files += repository.glob("*.py")
    assert files
    assert not [path for path in files if licence_line(path) != SPDX]


def cited_labels(text):
    """The labels in the `Source:` paragraphs of all docstrings of a module."""
    labels = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            doc = ast.get_docstring(node) or ""
            for paragraph in SOURCE.findall(doc):
                labels |= set(LABEL.findall(paragraph))
    return labels


def ids_of(path):
    """What may follow the path of a test file in pytest: functions, classes and their methods."""
    ids = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            ids.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)]
            ids |= {node.name, *(f"{node.name}::{name}" for name in methods)}
    return ids


def licence_line(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line for line in lines if not line.startswith("#!")), None)


def resolve(name):
    """The module or the attribute that a dotted name means."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            value = getattr(value, part)
        return value
    pytest.fail(f"{name} is not a module")
