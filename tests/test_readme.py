# SPDX-License-Identifier: Apache-2.0
"""The README runs, as a page of the documentation does, and prints what it shows."""

import ast
import re
from itertools import pairwise

import pytest
from tests.test_docs import follow

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


def test_blocks_run_and_print_what_they_show(readme, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    follow(readme)


def test_every_block_is_run_and_has_its_output(readme):
    """Python and commands above, and the two targets of make, which CI runs."""
    shown = [info.strip() for info in re.findall(r"^```(.*)$", readme, re.MULTILINE)]
    opened = [info for info in shown if info]
    assert set(opened) == {"sh", "python", "console", 'text title="Output"'}
    assert opened.count("sh") == 1
    for this, then in pairwise([*opened, ""]):
        assert this != "python" or then == 'text title="Output"'
    for body in blocks(readme, "console"):
        commands, *_ = body.split("\n", 1)
        assert commands.startswith("$ pufferslice ")
        assert not re.search(r"^\$[^\n]*\n(?=\$|\Z)", body, re.MULTILINE)


def test_ten_lines_are_about_ten(readme):
    for code in blocks(readme, "python"):
        steps = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.stmt)]
        assert (
            len([node for node in steps if not isinstance(node, ast.Import | ast.ImportFrom)]) <= 10
        )


def blocks(text, *languages):
    return [body for language, body in BLOCK.findall(text) if language in languages]
