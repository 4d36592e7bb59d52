# SPDX-License-Identifier: Apache-2.0
"""The public names: sorted, lazy, all there, and the same for people and for type checkers."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest

import pufferslice


def test_all_is_sorted_and_has_no_duplicates():
    assert pufferslice.__all__ == sorted(set(pufferslice.__all__))


def test_all_is_what_can_be_resolved():
    assert set(pufferslice.__all__) == set(pufferslice._HOMES) | set(pufferslice._MODULES)
    assert len(pufferslice.__all__) <= 30


@pytest.mark.parametrize("name", pufferslice.__all__)
def test_every_name_resolves_to_its_home(name):
    value = getattr(pufferslice, name)
    home = f"pufferslice.{pufferslice._HOMES.get(name) or pufferslice._MODULES[name]}"
    if inspect.ismodule(value):
        assert value.__name__ == home
    else:
        assert value is getattr(import_module(home), name)
        assert f"{value.__module__}.".startswith(f"{home}.")


@pytest.mark.parametrize("name", pufferslice.__all__)
def test_every_name_is_documented(name):
    assert inspect.getdoc(getattr(pufferslice, name))


def test_type_checkers_see_the_same_names_in_the_same_homes():
    seen = {}
    for node in ast.walk(ast.parse(Path(pufferslice.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                seen |= {
                    alias.asname or alias.name: line.module.removeprefix("pufferslice")
                    for alias in line.names
                }
    homes = {name: f".{home}" for name, home in pufferslice._HOMES.items()}
    assert seen == homes | dict.fromkeys(pufferslice._MODULES, "")


def test_dir_lists_names_before_they_are_used():
    code = "import pufferslice; assert {*pufferslice.__all__, '__version__'} == {*dir(pufferslice)}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'pufferslice' has no attribute 'certifi'"):
        pufferslice.certifi  # noqa: B018 - the access is the test


def test_star_import_gives_all():
    names = {}
    exec("from pufferslice import *", names)  # noqa: S102 - star imports live at module level only
    assert set(pufferslice.__all__) <= set(names)


def test_version_is_the_installed_one():
    assert pufferslice.__version__ == metadata.version("pufferslice")
