# SPDX-License-Identifier: Apache-2.0
"""Drops the factors and roots of the central formulas, one at a time, and asks the tests.

    python tests/mutants.py [--only NAME ...] [--write docs/mutants.md]

The list is tests/mutants.toml. The checkout is never changed: the package is copied to a temporary
folder, one mutant is put into the copy, and the tests that it names run on the copy, in a process
of their own. A mutant is caught if a test fails. One that nothing catches, that does not run, or
whose source text is not in its module exactly once, makes the exit code 1.
"""

import argparse
import compileall
import contextlib
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, Literal, NamedTuple

import attrs
import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
LIST: Final = ROOT / "tests" / "mutants.toml"
PACKAGE: Final = "pufferslice"
SECONDS: Final = 1800
"""A run of tests that takes longer is stopped, and is an error: nothing was found out."""

_HEAVY: Final = ("numpy", "numba", "scipy.special", "scipy.stats", "scipy.optimize", "mpmath")
"""Imported once; every run of tests is a fork that has them already. Never the package itself."""
_LATER: Final = 10.0
"""Seconds by which a mutant is newer than what it replaces, so that no compiled code of it is."""

Outcome = Literal["caught", "survived", "broken"]


@attrs.frozen(kw_only=True)
class Mutant:
    """One factor, root, maximum or union bound that is left out."""

    name: str
    formula: str
    module: str
    """Path inside the package."""
    source: str
    """Stands exactly once in the module."""
    mutant: str
    """Takes its place."""
    dropped: str
    """What is missing then, in words."""
    tests: tuple[str, ...]
    """Files, classes or functions of tests; one of them must fail."""

    def mutated(self, text: str) -> str:
        """The module with the mutant in it."""
        if text.count(self.source) != 1:
            msg = f"{self.name}: {self.source!r} is {text.count(self.source)} times in the module"
            raise ValueError(msg)
        return text.replace(self.source, self.mutant)


class Finding(NamedTuple):
    """What became of a mutant."""

    outcome: Outcome
    test: str
    """The first test that failed, or why nothing was found out."""
    seconds: float


def all_mutants() -> list[Mutant]:
    """The list, formula by formula."""
    return [
        Mutant(
            name=one["name"],
            formula=formula["name"],
            module=one.get("module", formula["module"]),
            source=one["source"],
            mutant=one["mutant"],
            dropped=one["dropped"],
            tests=tuple(one.get("tests", formula["tests"])),
        )
        for formula in tomllib.loads(LIST.read_text(encoding="utf-8"))["formula"]
        for one in formula["mutants"]
    ]


class Copy:
    """The package in a folder of its own, and the machine code that numba made of it."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "src"
        self._folder = folder
        self._machine_code = folder / "numba"
        self._machine_code.mkdir()
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src", self.source, ignore=ignored)
        compileall.compile_dir(self.source, quiet=2)
        files = (self.source / PACKAGE).rglob("*.py")
        self._texts = {path: path.read_text(encoding="utf-8") for path in files}

    def run(self, tests: Sequence[str]) -> Finding:
        """Run tests on the copy as it is."""
        return self._in_a_fork(tests, self._machine_code)

    def run_with(self, mutant: Mutant) -> Finding:
        """Run a mutant's tests with the mutant in the copy."""
        path = self.source / PACKAGE / mutant.module
        text, times = path.read_text(encoding="utf-8"), path.stat()
        # What is compiled of the mutant must not be there for the next one, nor what was compiled
        # of the original, or of modules whose machine code may have it inside, for the mutant.
        stale = [f"{Path(one).stem}.*" for one in self._reached_from(mutant.module)]
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            own = Path(folder) / "numba"
            shutil.copytree(self._machine_code, own, ignore=shutil.ignore_patterns(*stale))
            try:
                path.write_text(mutant.mutated(text), encoding="utf-8")
                os.utime(path, (times.st_atime, times.st_mtime + _LATER))
                return self._in_a_fork(mutant.tests, own)
            finally:
                path.write_text(text, encoding="utf-8")
                os.utime(path, (times.st_atime, times.st_mtime))

    def _reached_from(self, module: str) -> set[str]:
        """The module, those that import it, those that import these, and so on."""
        reached, new = set[str](), {module}
        while new:
            reached |= new
            found = {one for target in new for one in self._importers(target)}
            new = found - reached
        return reached

    def _importers(self, module: str) -> list[str]:
        """Modules that import a module by its name, or something from its package."""
        name = f"{PACKAGE}/{module.removesuffix('.py')}".replace("/", ".")
        said = [f"from {one} import" for one in (name, name.rpartition(".")[0])]
        return [
            str(path.relative_to(self.source / PACKAGE))
            for path, text in self._texts.items()
            if any(one in text for one in said)
        ]

    def _in_a_fork(self, tests: Sequence[str], machine_code: Path) -> Finding:
        started = time.perf_counter()
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        log = self._folder / "log.txt"
        process = context.Process(
            target=_run_tests, args=(sender, self.source, machine_code, list(tests), log)
        )
        process.start()
        sender.close()
        found: tuple[Outcome, str] = "broken", f"no answer after {SECONDS} seconds"
        if receiver.poll(SECONDS):
            try:
                found = receiver.recv()
            except EOFError:
                found = "broken", f"the process ended: {_last_line(log)}"
        else:
            process.kill()
        process.join()
        return Finding(*found, time.perf_counter() - started)


class FirstFailure:
    """Notes the first test that fails, and what could not even be collected."""

    def __init__(self) -> None:
        self.test: str | None = None
        self.uncollected: str | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        """That a test fails is enough: hypothesis need not look for the smallest example."""
        hypothesis = importlib.import_module("hypothesis")
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "mutants", derandomize=True, deadline=None, phases=phases
        )

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed and self.test is None:
            self.test = report.nodeid

    def pytest_collectreport(self, report) -> None:
        if report.failed and self.uncollected is None:
            self.uncollected = report.nodeid


def _run_tests(
    sender: Connection, source: Path, machine_code: Path, tests: list[str], log: Path
) -> None:
    """In a fork: pytest on the copy, the answer into the pipe, what it prints into the log."""
    _take_from(source, machine_code)
    importlib.import_module("numba").config.CACHE_DIR = str(machine_code)
    watcher = FirstFailure()
    # No time limit inside: on a busy machine it would pass for a test that fails.
    options = ["-x", "-q", "-n", "0", "--timeout", "0", "-o", f"cache_dir={machine_code.parent}"]
    with log.open("w") as text, contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = pytest.main([*options, f"--rootdir={ROOT}", *tests], plugins=[watcher])
    imported = Path(str(getattr(sys.modules.get(PACKAGE), "__file__", None)))
    if not imported.is_relative_to(source):
        sender.send(("broken", f"the tests imported {imported}, not the copy"))
    elif watcher.uncollected is not None or code not in {0, 1}:
        sender.send(("broken", f"pytest gave {code!r}: {watcher.uncollected or _last_line(log)}"))
    elif watcher.test is not None:
        sender.send(("caught", watcher.test))
    else:
        sender.send(("survived", ""))


def _take_from(source: Path, machine_code: Path) -> None:
    """Import the package from the copy, here and in processes that tests start."""
    if any(name.split(".")[0] == PACKAGE for name in sys.modules):
        msg = f"{PACKAGE} was imported before the copy was made"
        raise RuntimeError(msg)
    os.chdir(ROOT)
    # The same run whatever run of tests, with its own seed and workers, this one is a part of.
    for name in [one for one in os.environ if one.startswith(("PUFFERSLICE_SEED", "PYTEST_"))]:
        del os.environ[name]
    os.environ |= {
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": str(machine_code),
        "HYPOTHESIS_PROFILE": "mutants",
    }
    sys.dont_write_bytecode = True
    here = str(Path(__file__).parent)
    sys.path[:] = [str(source), str(ROOT), *(entry for entry in sys.path if entry != here)]


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "nothing was printed")


@contextlib.contextmanager
def copied() -> Iterator[Copy]:
    """A copy of the package for as long as it is needed."""
    for name in _HEAVY:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        yield Copy(Path(folder))


def page_of(findings: dict[str, Finding]) -> str:
    """The documentation page, if all mutants of the list were run."""
    mutants = all_mutants()
    formulas = list(dict.fromkeys(one.formula for one in mutants))
    # Without the parameters of a test, which say little here.
    tests = {name: found.test.split("[")[0] for name, found in findings.items()}
    rows = [
        f"| {one.formula} | {one.dropped} | `{one.module}` | `{tests[one.name]}` |"
        for one in mutants
    ]
    text = PAGE.format(n_mutants=len(mutants), n_formulas=len(formulas))
    return text + "\n".join(rows) + "\n"


PAGE: Final = """\
# What the tests would notice

A guarantee is only as good as its formulas, and a formula is one dropped 2 away from being false.
So a script drops the factors, roots, squares, maxima and union bounds of the central formulas,
{n_mutants} of them in {n_formulas} formulas, one at a time, and runs the tests. Each is caught: the
table names the first test that fails.

    python tests/mutants.py --write docs/mutants.md

made this page from the list in `tests/mutants.toml`. Nothing in the checkout is changed: the
package is copied, the copy gets one mutant, and the tests that the list names for it run on the
copy. The tests pass on the unchanged copy first. `make test` checks that the list still fits the
source and this page, and runs a few mutants; `make soak` runs them all.

What this does not show: that a formula is right. A mutant that is caught says that *this* mistake
would be noticed, by a known answer, an independent computation or a distribution; mistakes that
nobody thought of are not in the list. Some mutants make a cost too large, not too small. They are
wasteful and not unsound, and are listed because a test that does not see them would not see their
inverse.

| formula | what is dropped | module | caught by |
|---|---|---|---|
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the list, or a part of it, and print what became of each mutant."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names, or how they begin")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page for the documentation")
    said = parser.parse_args(arguments)
    if said.only and said.write:
        parser.error("a page is written of the whole list")
    chosen = [one for one in all_mutants() if one.name.startswith(tuple(said.only or ("",)))]
    if not chosen:
        parser.error("no mutant has such a name")
    with copied() as copy:
        unchanged = copy.run(sorted({test for one in chosen for test in one.tests}))
        if unchanged.outcome != "survived":
            _say(f"without a mutant: {unchanged.test} fails")
            return 1
        _say(f"without a mutant all tests pass ({unchanged.seconds:.0f} s)")
        findings: dict[str, Finding] = {}
        for one in chosen:
            findings[one.name] = found = copy.run_with(one)
            _say(f"{found.outcome:<9} {one.name:<28} {found.seconds:5.1f} s  {found.test}")
    missed = [name for name, found in findings.items() if found.outcome != "caught"]
    _say(
        f"{len(findings) - len(missed)} of {len(findings)} caught"
        + "".join(f"\n  not caught: {name}" for name in missed)
    )
    if said.write and not missed:
        said.write.write_text(page_of(findings), encoding="utf-8")
    return 1 if missed else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
