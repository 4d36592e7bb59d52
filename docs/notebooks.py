# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - one file that mkdocs loads by its path
"""Jupyter notebooks, made from sections of these pages, so that no example is written twice.

An mkdocs hook, named in mkdocs.yml, adds them to the site; `python docs/notebooks.py FOLDER` writes
them to a folder. A notebook has the text and the Python of one section, after the imports of the
sections before it on the same page, and ends with a value that shows itself.
"""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

DOCS: Final = Path(__file__).resolve().parent

_SECTION: Final = re.compile(r"^## (.+)$", re.MULTILINE)
_BLOCK: Final = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]*\.md[^)]*\)")


class Source(NamedTuple):
    """Where a notebook comes from."""

    page: str
    section: str
    shows: str
    """The expression of its last cell."""


NOTEBOOKS: Final = {
    "prevalence": Source("templates.md", "How common is it?", "certificate"),
    "attribute": Source("templates.md", "What value does it have?", "certificate"),
    "occupancy": Source("templates.md", "What was the state at that time?", "certificate"),
    "training": Source("training-tutorial.md", "In Python", 'trainer.certificate(data="digits")'),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebooks to the site."""
    for name in NOTEBOOKS:
        uri = f"notebooks/{name}.ipynb"
        files.append(File.generated(config, uri, content=notebook_text(name)))
    return files


def notebook_text(name: str) -> str:
    """The notebook as a file, the same bytes whenever it is made."""
    return json.dumps(notebook(name), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def notebook(name: str) -> dict[str, Any]:
    """The notebook as JSON values of nbformat 4.5."""
    source = NOTEBOOKS[name]
    page = (DOCS / source.page).read_text(encoding="utf-8")
    start, *parts = _SECTION.split(page)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    if source.section not in sections:
        raise LookupError(
            f"{source.page} has no section {source.section!r} for the notebook {name!r}"
        )
    before = list(sections)[: list(sections).index(source.section)]
    earlier = "".join([start, *(sections[title] for title in before)])
    cells = [
        ("markdown", f"# {source.section}"),
        ("code", "\n".join(imports(earlier))),
        *_cells(sections[source.section]),
        ("code", source.shows),
    ]
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "cells": [_cell(i, kind, text) for i, (kind, text) in enumerate(cells) if text],
    }


def imports(text: str) -> list[str]:
    """The import statements of the Python blocks of a text, each once."""
    blocks = [body for language, _, body in _BLOCK.findall(text) if language == "python"]
    nodes = [node for body in blocks for node in ast.parse(body).body]
    wanted = [ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return list(dict.fromkeys(wanted))


def _cells(text: str) -> list[tuple[str, str]]:
    """Texts and Python blocks in their order; outputs are left to whoever runs the notebook."""
    cells, place = [], 0
    for block in _BLOCK.finditer(text):
        cells.append(("markdown", text[place : block.start()]))
        if block[1] == "python":
            cells.append(("code", block[3]))
        elif 'title="Output"' not in block[2]:
            cells.append(("markdown", block[0]))
        place = block.end()
    cells.append(("markdown", text[place:]))
    return [(kind, _LINK.sub(r"\1", body.strip()) if kind == "markdown" else body.strip())
            for kind, body in cells]  # fmt: skip


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": text.splitlines(keepends=True),
    }
    return cell | {"execution_count": None, "outputs": []} if kind == "code" else cell


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for notebook_name in NOTEBOOKS:
        (folder / f"{notebook_name}.ipynb").write_text(notebook_text(notebook_name), "utf-8")
