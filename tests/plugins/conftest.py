# SPDX-License-Identifier: Apache-2.0
"""Packages with plugins, installed without pip: a module and its metadata in a folder."""

import shutil
import sys
from pathlib import Path

import pytest

_MODULE = "pufferslice_example_plugins"
_ENTRY_POINTS = f"""\
[pufferslice.queries]
trimmed_mean = {_MODULE}:trimmed_mean
summary = {_MODULE}:trimmed_mean
number = {_MODULE}:number
secretive = {_MODULE}:secretive
gone = {_MODULE}:gone

[pufferslice.distributions]
coin = {_MODULE}:coin
number = {_MODULE}:number

[pufferslice.accountants]
cautious = {_MODULE}:Cautious
log-moment = {_MODULE}:Cautious
silent = {_MODULE}:Silent
without_check = {_MODULE}:WithoutCheck
negative = {_MODULE}:Negative
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a version of the example package, in place of the one before it."""
    folder = tmp_path / "site"
    folder.mkdir()

    def installed(version="1.0", package="example-plugins"):
        for old in folder.glob(f"{package}-*"):
            shutil.rmtree(old)
        shutil.copy(Path(__file__).with_name("example_package.py"), folder / f"{_MODULE}.py")
        metadata = folder / f"{package}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        )
        (metadata / "entry_points.txt").write_text(_ENTRY_POINTS)
        monkeypatch.syspath_prepend(folder)

    def uninstalled():
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(folder)])

    installed.away = uninstalled
    yield installed
    sys.modules.pop(_MODULE, None)


@pytest.fixture
def example(install):
    """Version 1.0 of the example package."""
    install()
    return install
