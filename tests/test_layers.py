# SPDX-License-Identifier: Apache-2.0
"""Imports point down. The chain itself is in pyproject.toml; the rules beside it are here."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pufferslice

PACKAGE = Path(pufferslice.__file__).parent

FORBIDDEN = [
    ("*", ["pufferslice.__main__"]),
    ("learning", ["pufferslice.torch", "torch"]),
    ("certificate", ["pufferslice.baselines"]),
]
"""A module (or package), and what it may not import although the chain would let it."""


def test_imports_point_down(repository):
    done = lint_imports(repository, folder=repository)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "imports point down KEPT" in done.stdout


@pytest.mark.parametrize(
    ("module", "text", "complaint"),
    [
        ("errors", "import pufferslice.data", "errors is not allowed to import pufferslice.data"),
        ("torch", "import pufferslice.baselines", "torch is not allowed to import pufferslice.ba"),
        ("homeless", "", "homeless"),
    ],
    ids=["upward", "sideways", "undeclared"],
)
def test_a_wrong_module_is_caught(module, text, complaint, repository, tmp_path):
    package = tmp_path / "pufferslice"
    package.mkdir()
    names = (
        *(
            "__main__",
            "cli",
            "report",
            "config",
            "audit",
            "torch",
            "baselines",
            "models",
            "releases",
            "certificate",
        ),
        *("learning", "noise", "claims", "sensitivity"),
        *("scenario", "queries", "data", "_core"),
        "errors",
    )
    texts = dict.fromkeys(names, "") | {"__init__": "import pufferslice.errors", module: text}
    for name, content in texts.items():
        (package / f"{name}.py").write_text(content, encoding="utf-8")
    done = lint_imports(repository, folder=tmp_path)
    assert done.returncode == 1
    assert complaint in done.stdout


@pytest.mark.parametrize(("module", "forbidden"), FORBIDDEN)
def test_rules_beside_the_chain(module, forbidden):
    for path in sources(module):
        assert not [name for name in imported(path) if is_inside(name, forbidden)], path


def test_torch_is_imported_only_inside_the_torch_package():
    inside = sources("torch")
    for path in PACKAGE.rglob("*.py"):
        if path not in inside:
            assert not [name for name in imported(path) if is_inside(name, ["torch"])], path


def test_the_scan_sees_every_form_of_import(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "import torch.nn as nn\n"
        "from pufferslice import sensitivity\n"
        "def late():\n    from pufferslice.sensitivity.exact import table\n",
        encoding="utf-8",
    )
    assert imported(path) == {
        "torch.nn",
        "pufferslice",
        "pufferslice.sensitivity",
        "pufferslice.sensitivity.exact",
        "pufferslice.sensitivity.exact.table",
    }


def lint_imports(repository, folder):
    """Check the package found from `folder` against the contracts of this repository."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    options = ["--no-logo", "--no-cache", "--config", str(repository / "pyproject.toml")]
    return subprocess.run(
        [*command, *options], cwd=folder, capture_output=True, text=True, check=False
    )


def sources(module):
    """The files of a module or package; none if it does not exist."""
    return [*PACKAGE.glob(f"{module}.py"), *PACKAGE.glob(f"{module}/**/*.py")]


def imported(path):
    """Every absolute name that a file imports, at the top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def is_inside(name, packages):
    return any(name == package or name.startswith(f"{package}.") for package in packages)
