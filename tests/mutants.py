# SPDX-License-Identifier: Apache-2.0
"""Change one operator of a core module at a time, and see whether a test notices.

    python -m tests.mutants [--count N] [--seed S] [--processes N] [MODULE ...]

The checkout is not touched: Python is told to load a changed copy of the module in place of the
module itself, and the tests of that module run. A mutant that no test notices is printed with its
line; some of these are equivalent to the original, the others are gaps in the tests.
"""

import argparse
import ast
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "src" / "pufferslice"

CORE: Final = {
    "sensitivity/renyi.py": "tests/sensitivity/test_renyi.py tests/calibration",
    "sensitivity/tables.py": "tests/sensitivity/test_tables.py tests/sensitivity/test_exact.py",
    "sensitivity/exact.py": "tests/sensitivity/test_exact.py",
    "sensitivity/gaussian.py": (
        "tests/sensitivity/test_gaussian.py tests/sensitivity/test_mixtures.py "
        "tests/calibration/test_guessing.py tests/calibration/test_unsliced.py"
    ),
    "sensitivity/concentration.py": "tests/sensitivity/test_concentration.py",
    "sensitivity/couplings.py": "tests/sensitivity/test_couplings.py",
    "sensitivity/whitening.py": "tests/sensitivity/test_whitening.py",
    "calibration/calibrate.py": "tests/calibration/test_calibrate.py",
    "calibration/epsilon_delta.py": "tests/calibration",
    "calibration/guessing.py": "tests/calibration/test_guessing.py",
    "calibration/shape.py": "tests/calibration/test_shape.py",
    "calibration/fit.py": "tests/calibration/test_fit.py",
    "calibration/sphere.py": "tests/calibration/test_sphere.py",
    "calibration/unsliced.py": "tests/calibration/test_unsliced.py",
    "learning/accountants.py": (
        "tests/learning/test_accountants.py tests/learning/test_refusals.py tests/contracts"
    ),
    "learning/sampling.py": "tests/learning/test_sampling.py tests/learning/test_refusals.py",
    "learning/differing.py": "tests/learning/test_differing.py tests/learning/test_refusals.py",
    "learning/clipping.py": "tests/learning/test_clipping.py tests/learning/test_refusals.py",
    "learning/integer_sums.py": "tests/learning",
    "learning/tails.py": "tests/learning/test_tails.py tests/learning/test_refusals.py",
    "certificate/composition.py": "tests/certificate/test_composition.py",
    "certificate/training.py": "tests/certificate",
}
"""Modules that hold formulas of a guarantee, and the tests that must notice a change."""

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


def mutants_of(module: str) -> Iterator[Mutant]:
    """Every operator of a module's functions, changed one at a time."""
    text = (PACKAGE / module).read_text(encoding="utf-8")
    for i in range(sum(1 for _ in sites(ast.parse(text)))):
        tree = ast.parse(text)
        node = list(sites(tree))[i]
        change = mutate(node)
        yield Mutant(module, node.lineno, change, ast.unparse(tree))


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


def is_caught(mutant: Mutant, tests: str, seconds: float = 60) -> bool:
    """Whether a test of its module fails, or takes too long, with the mutant in place."""
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / "changed.py"
        changed.write_text(mutant.source, encoding="utf-8")
        name = "pufferslice." + mutant.module.removesuffix(".py").replace("/", ".")
        # Python runs this file at the start of every process that has its folder in the path.
        start = Path(folder) / "sitecustomize.py"
        start.write_text(_LOAD.format(name=name, path=str(changed)), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", *tests.split()]
        options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header"]
        options += [f"--timeout={seconds}", "--timeout-method=thread"]
        done = subprocess.run(
            [*command, *options],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": folder},
            capture_output=True,
            check=False,
        )
    return done.returncode != 0


def main() -> int:
    """Run a sample of mutants; exit code 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=list(CORE))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.parse_args()
    every = [mutant for module in asked.modules for mutant in mutants_of(module)]
    chosen = random.Random(asked.seed).sample(every, min(asked.count, len(every)))
    survivors = 0
    with ThreadPoolExecutor(asked.processes) as pool:
        verdicts = pool.map(lambda mutant: is_caught(mutant, CORE[mutant.module]), chosen)
        for i, (mutant, caught) in enumerate(zip(chosen, verdicts, strict=True), start=1):
            survivors += not caught
            verdict = "caught" if caught else "SURVIVES"
            sys.stdout.write(
                f"{i}/{len(chosen)} {verdict} {mutant.module}:{mutant.line} {mutant.change[:100]}\n"
            )
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - survivors} of {len(chosen)} caught, {len(every)} possible\n")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
