# SPDX-License-Identifier: Apache-2.0
"""The public names: sorted, lazy, all there, and the same for people and for type checkers."""

import inspect
import subprocess
import sys
from importlib import import_module, metadata

import pytest

import pufferslice


def test_all_is_sorted_and_has_no_duplicates():
    assert pufferslice.__all__ == sorted(set(pufferslice.__all__))


def test_all_is_what_can_be_resolved():
    assert set(pufferslice.__all__) == set(pufferslice._HOMES)
    assert len(pufferslice.__all__) <= 33


@pytest.mark.parametrize("name", pufferslice.__all__)
def test_every_name_resolves_to_its_home(name):
    value = getattr(pufferslice, name)
    home, there = pufferslice._HOMES[name]
    if inspect.ismodule(value):
        assert value.__name__ == f"{home}.{there}"
    else:
        assert value is getattr(import_module(home), name)
        assert f"{value.__module__}.".startswith(f"{home}.")


@pytest.mark.parametrize("name", pufferslice.__all__)
def test_every_name_is_documented(name):
    assert inspect.getdoc(getattr(pufferslice, name))


def test_type_checkers_see_the_same_names(tmp_path, repository):
    uses = "".join(f"print(ps.{name})\n" for name in pufferslice.__all__)
    (tmp_path / "uses.py").write_text(f"import pufferslice as ps\n{uses}print(ps.certifi)\n")
    # Options and folder of `make lint`, whose cache has all but this file.
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "uses.py")]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if "error" in line]
    assert len(errors) == 2, done.stdout
    assert "certifi" in errors[0]


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
