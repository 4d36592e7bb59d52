# SPDX-License-Identifier: Apache-2.0
"""Formulas name the paper's own labels, and those exist; every file carries its licence line."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import pufferslice

PACKAGE = Path(pufferslice.__file__).parent
LABEL = re.compile(r"(?<![\w:/.-])[A-Za-z]+:[A-Za-z][\w-]*\b")
SOURCE = re.compile(r"^Source:(.*?)(?=^\s*$|^\w+:\s|\Z)", re.MULTILINE | re.DOTALL)
SPDX = "# SPDX-License-Identifier: Apache-2.0"


@pytest.fixture(scope="module")
def paper_labels(repository):
    """Of definitions, theorems, lemmas, corollaries, propositions and algorithms."""
    return (repository / "docs" / "paper-labels.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def paper_map(repository):
    path = repository / "docs" / "paper-map.md"
    if not path.exists():
        pytest.skip("docs/paper-map.md is not written")
    return path.read_text(encoding="utf-8")


def test_the_list_of_labels_is_sorted_and_made_of_labels(paper_labels):
    assert paper_labels == sorted(set(paper_labels))
    assert all(LABEL.fullmatch(label) for label in paper_labels)


def test_every_cited_label_exists(paper_labels):
    cited = {
        label: path.name
        for path in PACKAGE.rglob("*.py")
        for label in cited_labels(path.read_text(encoding="utf-8"))
    }
    assert cited, "no docstring names its source"
    assert not {label: where for label, where in cited.items() if label not in paper_labels}


def test_every_label_of_the_paper_map_exists(paper_map, paper_labels):
    assert not set(LABEL.findall(paper_map)) - set(paper_labels)


def test_every_label_has_its_place_in_the_paper_map(paper_map, paper_labels):
    assert not set(paper_labels) - set(LABEL.findall(paper_map))


def test_every_name_of_the_paper_map_resolves(paper_map):
    names = re.findall(r"`(pufferslice(?:\.\w+)+)`", paper_map)
    assert names
    for name in names:
        resolve(name)


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
    folders = ("src", "tests", "benchmarks", "examples")
    files = [path for folder in folders for path in (repository / folder).rglob("*.py")]
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
