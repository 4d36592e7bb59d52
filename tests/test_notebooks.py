# SPDX-License-Identifier: Apache-2.0
"""The notebooks are made from the pages, always the same, and run from top to bottom.

Their cells are run here one after the other in one set of names, as a kernel would: cells have no
magic commands, and a kernel would be twenty more packages for the same check.
"""

import ast
import contextlib
import importlib.util
import io
import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NAMES = ["prevalence", "attribute", "occupancy", "training"]


@pytest.fixture(scope="module")
def notebooks():
    """The module that makes them; it is no part of the library."""
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_of(notebook):
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return ["".join(cell["source"]) for cell in cells]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_shows_its_certificate(notebooks, name, tmp_path, monkeypatch):
    if name == "training":
        pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.chdir(tmp_path)
    *cells, last = code_of(notebooks.notebook(name))
    names = {"__name__": "notebook"}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for cell in cells:
            exec(compile(cell, name, "exec"), names)  # noqa: S102 - our own text
    shown = eval(compile(last, name, "eval"), names)._repr_html_()  # noqa: S307 - our own text
    assert out.getvalue().strip()
    assert "<table>" in shown
    assert "Protected:" in shown


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_has_the_code_of_its_section_and_no_link_to_a_page(notebooks, name):
    source = notebooks.NOTEBOOKS[name]
    page = (ROOT / "docs" / source.page).read_text(encoding="utf-8")
    notebook = notebooks.notebook(name)
    section = page.split(f"\n## {source.section}\n")[1].split("\n## ")[0]
    blocks = [part.split("\n```")[0] for part in section.split("```python\n")[1:]]
    assert code_of(notebook)[-1 - len(blocks) : -1] == [block.strip() for block in blocks]
    texts = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "markdown"]
    assert texts[0] == f"# {source.section}"
    assert ".md)" not in "".join(texts)
    assert 'title="Output"' not in "".join(texts)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_of_the_format(notebooks, name):
    """The required keys of nbformat 4.5; ids are unique, and nothing has been run."""
    notebook = json.loads(notebooks.notebook_text(name))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    for cell in notebook["cells"]:
        wanted = {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            wanted |= {"execution_count", "outputs"}
            assert (cell["execution_count"], cell["outputs"]) == (None, [])
            ast.parse("".join(cell["source"]))
        assert set(cell) == wanted
        assert "".join(cell["source"]).strip()
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)


def test_notebooks_are_written_the_same_every_time(notebooks, tmp_path, monkeypatch):
    for folder in ("one", "two"):
        monkeypatch.setattr(sys, "argv", ["notebooks.py", str(tmp_path / folder)])
        runpy.run_path(str(ROOT / "docs" / "notebooks.py"), run_name="__main__")
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
        for folder in ("one", "two")
    )
    assert first == second
    assert set(first) == {f"{name}.ipynb" for name in notebooks.NOTEBOOKS}
    assert set(notebooks.NOTEBOOKS) == set(NAMES)


def test_a_section_that_is_gone_is_an_error(notebooks, monkeypatch):
    gone = notebooks.Source("templates.md", "Gone", "certificate")
    monkeypatch.setitem(notebooks.NOTEBOOKS, "gone", gone)
    with pytest.raises(LookupError, match=r"templates\.md has no section 'Gone'"):
        notebooks.notebook("gone")
