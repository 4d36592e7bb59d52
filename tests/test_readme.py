# SPDX-License-Identifier: Apache-2.0
"""The README runs: its Python as one program, its `pufferslice` commands through the script."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import pufferslice

BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def readme(repository):
    return (repository / "README.md").read_text(encoding="utf-8")


def test_the_two_commands_are_shown(readme):
    assert "make demo" in readme
    assert "make test" in readme


def test_it_opens_with_what_is_protected_and_from_whom(readme):
    opening = readme.split("\n\n")[1]
    assert len(re.findall(r"[.?!](?=\s|$)", opening)) == 4
    headings = re.findall(r"^## (.*)$", readme, re.MULTILINE)
    assert headings == [
        "Start",
        "Ten lines of Python",
        "Ten lines of training",
        "Command line",
        "What is not promised",
        "What is in it",
        "More",
        "Cite and licence",
    ]


def test_the_two_commands_are_targets(readme, repository):
    targets = re.findall(r"^(\w+):", (repository / "Makefile").read_text(), re.MULTILINE)
    shown = [line.split()[1] for body in blocks(readme, "sh") for line in body.splitlines()]
    assert shown == ["demo", "test"]
    assert set(shown) <= set(targets)


def test_files_that_are_named_are_there(readme, repository):
    named = re.findall(r"`([\w./-]+\.(?:md|cff)|LICENSE|NOTICE)`", readme)
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", readme)
    assert named
    assert not [name for name in (*named, *pictures) if not (repository / name).exists()]


def test_the_version_to_cite_is_this_one(readme):
    assert f"version {pufferslice.__version__.removesuffix('.dev0')}," in readme


def test_python_blocks_run(readme, tmp_path, monkeypatch):
    program = blocks(readme, "python")
    assert program
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "readme"}
    for number, code in enumerate(program, 1):
        exec(compile(code, f"README.md, python block {number}", "exec"), names)  # noqa: S102 - our own text


def test_every_block_is_run(readme):
    """Python and commands below, and the two targets of make, which CI runs."""
    shown = re.findall(r"^```(.*)$", readme, re.MULTILINE)
    assert set(shown) == {"", "sh", "python", "console"}
    assert shown.count("sh") == 1
    for body in blocks(readme, "console"):
        assert all(line.startswith("$ pufferslice ") for line in body.splitlines())


def test_ten_lines_are_about_ten(readme):
    for code in blocks(readme, "python"):
        steps = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.stmt)]
        assert (
            len([node for node in steps if not isinstance(node, ast.Import | ast.ImportFrom)]) <= 10
        )


def test_commands_run(readme, tmp_path):
    script = Path(sys.executable).parent / "pufferslice"
    for words in commands(readme):
        done = subprocess.run(
            [script, *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"


def test_commands_are_found_in_every_spelling():
    text = """
```console
$ pufferslice demo --out "a b"
wrote a b/certificate.json
```
```sh
pip install pufferslice
pufferslice verify \\
    certificate.json  # recompute
```
```python
pufferslice = 1
```
"""
    assert commands(text) == [
        ["pufferslice", "demo", "--out", "a b"],
        ["pufferslice", "verify", "certificate.json"],
    ]
    assert blocks(text, "python") == ["pufferslice = 1\n"]


def blocks(text, *languages):
    return [body for language, body in BLOCK.findall(text) if language in languages]


def commands(text):
    """The `pufferslice …` lines of shell blocks, split into words; other lines are output."""
    lines = []
    for body in blocks(text, "console", "sh"):
        for line in body.replace("\\\n", " ").splitlines():
            words = (
                shlex.split(line.removeprefix("$ "), comments=True) if "pufferslice" in line else []
            )
            if words and words[0] == "pufferslice":
                lines.append(words)
    return lines
