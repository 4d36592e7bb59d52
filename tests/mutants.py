# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: T201 - a script prints
"""Change one operator of the library at a time, and see whether a test notices.

    python -m tests.mutants [--count N] [--seed S] [--processes N] [MODULE ...]

The checkout is not touched: Python is told to load a changed copy of the module in place of the
module itself, and the tests of that module run, for a minute at most. They must pass without the
change. A mutant that no test notices is printed with its line; some of these are equivalent to the
original, the others are gaps in the tests. The exit code is 1 if fewer than three of four are
caught.
"""

import argparse
import ast
import contextlib
import functools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "src" / "pufferslice"
TESTS: Final = ROOT / "tests"
LEAST: Final = 0.75
"""Share of mutants that must be caught."""
SECONDS: Final = 60
"""For the tests of one mutant; what is not caught by then has survived."""
STUCK: Final = 20
"""Seconds after which one test counts as failed."""


_SWAPS: Final = {
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Pow: ast.Mult,
}
_CALLS: Final = {
    "max": "min",
    "min": "max",
    "maximum": "minimum",
    "minimum": "maximum",
    "ceil": "floor",
    "floor": "ceil",
    "sqrt": "abs",
}
_LOAD: Final = """
import importlib.util, sys

class Changed:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {name!r}:
            return importlib.util.spec_from_file_location(name, {path!r})

sys.meta_path.insert(0, Changed)
"""


class Mutant(NamedTuple):
    """One changed operator."""

    module: str
    line: int
    change: str
    source: str
    """The whole changed module."""


def modules() -> list[str]:
    """Every module with an operator to change, as a path below the package."""
    paths = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    return [path for path in paths if n_mutants(path)]


def tests_of(module: str) -> list[str]:
    """Test files in the order in which they run.

    First those of the module's name, then those that name it, then the others of its package.
    """
    *folder, file = module.split("/")
    dotted = "pufferslice." + module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    package, _, name = dotted.rpartition(".")
    imports = re.compile(rf"\b{re.escape(dotted)}\b|from {re.escape(package)} import .*\b{name}\b")
    of_package = TESTS.joinpath(*folder) if folder else TESTS
    own = [of_package / f"test_{file.removeprefix('_')}"]
    naming = [path for path, text in _all_tests() if name in text and imports.search(text)]
    rest = sorted(of_package.glob("test_*.py"))
    if folder == ["_core"]:
        own, rest = [TESTS / "core" / own[0].name], sorted((TESTS / "core").glob("test_*.py"))
    files = dict.fromkeys(path for path in (*own, *naming, *rest) if path.exists())
    return [path.relative_to(ROOT).as_posix() for path in files]


@functools.cache
def _all_tests() -> list[tuple[Path, str]]:
    return [(path, path.read_text(encoding="utf-8")) for path in sorted(TESTS.rglob("test_*.py"))]


def _text(module: str) -> str:
    return (PACKAGE / module).read_text(encoding="utf-8")


def n_mutants(module: str) -> int:
    """How many operators of a module's functions can be changed."""
    return sum(1 for _ in sites(ast.parse(_text(module))))


def mutant_of(module: str, number: int) -> Mutant:
    """The module with one of its operators changed."""
    tree = ast.parse(_text(module))
    node = list(sites(tree))[number]
    change = mutate(node)
    return Mutant(module, node.lineno, change, ast.unparse(tree))


def sites(tree: ast.Module) -> Iterator[ast.expr]:
    """Operators and calls of a module's functions that can be changed."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(ast.Module(body=function.body, type_ignores=[])):
                is_operator = isinstance(node, ast.BinOp) and type(node.op) in _SWAPS
                if (is_operator and not _is_text(node)) or _called(node) in _CALLS:
                    yield node


def _is_text(node: ast.BinOp) -> bool:
    """Joined strings, types and sequences are no arithmetic."""
    parts = (ast.JoinedStr, ast.List, ast.Tuple, ast.Set, ast.Dict)
    return any(
        isinstance(side, parts)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    name = node.func
    return name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")


def mutate(node: ast.expr) -> str:
    """Change the node in its tree, and say what became of it."""
    before = ast.unparse(node)
    if isinstance(node, ast.BinOp):
        node.op = _SWAPS[type(node.op)]()
    elif isinstance(node, ast.Call):
        name = _CALLS[_called(node)]
        if isinstance(node.func, ast.Attribute) and name != "abs":
            node.func.attr = name
        else:
            node.func = ast.Name(id=name, ctx=ast.Load())
    return f"{before} -> {ast.unparse(node)}"


def is_caught(mutant: Mutant, tests: Sequence[str], seconds: float = SECONDS) -> bool:
    """Whether a test fails, or hangs, with the mutant in place."""
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / "changed.py"
        changed.write_text(mutant.source, encoding="utf-8")
        name = "pufferslice." + mutant.module.removesuffix(".py").replace("/", ".")
        # Python runs this file at the start of every process that has its folder in the path.
        start = Path(folder) / "sitecustomize.py"
        start.write_text(_LOAD.format(name=name.removesuffix(".__init__"), path=str(changed)))
        options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--no-header"]
        options += [f"--timeout={STUCK}", "--timeout-method=thread"]
        path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(seconds) != 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            # With the processes that the tests have started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> int:
    """Run a sample of mutants; exit code 1 if too few of them are caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help="paths below the package; all without it")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    every = [(module, k) for module in asked.modules or modules() for k in range(n_mutants(module))]
    sample = random.Random(asked.seed).sample(every, min(asked.count, len(every)))
    chosen = [mutant_of(*place) for place in sample]
    n_caught = 0
    with ThreadPoolExecutor(asked.processes) as pool:
        verdicts = pool.map(lambda mutant: is_caught(mutant, tests_of(mutant.module)), chosen)
        for i, (mutant, caught) in enumerate(zip(chosen, verdicts, strict=True), start=1):
            n_caught += caught
            verdict = "caught" if caught else "SURVIVES"
            place = f"{mutant.module}:{mutant.line}"
            print(f"{i}/{len(chosen)} {verdict} {place} {mutant.change[:100]}", flush=True)
    share = n_caught / len(chosen)
    print(f"{n_caught} of {len(chosen)} caught ({share:.0%}), {len(every)} possible")
    return int(share < LEAST)


if __name__ == "__main__":
    sys.exit(main())
