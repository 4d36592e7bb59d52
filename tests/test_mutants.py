# SPDX-License-Identifier: Apache-2.0
"""The list of mutants fits the source and its page, and the script that runs it tells the truth."""

import re
import subprocess
import sys
from collections import Counter

import pytest
from tests import mutants

MUTANTS = mutants.all_mutants()
BY_NAME = {one.name: one for one in MUTANTS}
SAMPLE = ("improved-root", "square-poisson", "surcharge-dim", "union-directions")
"""Quick ones, of both roads: none of them needs a kernel to be compiled."""

FEWEST_FORMULAS = 20
FEWEST_MUTANTS = 80

TRUTH = """
import sys
from pathlib import Path
from tests import mutants

mutants.LIST = Path(sys.argv[1])
sys.exit(mutants.main([]))
"""

OTHERS = """
[[formula]]
name = "Discrepancy of a batch"
module = "sgd/sampling.py"
tests = ["tests/learning/test_sampling.py::TestDivisor"]

[[formula.mutants]]
name = "nothing"
dropped = "nothing"
source = 'return d * self.rate * (1 + (d - 1) * self.rate)'
mutant = 'return (1 + (d - 1) * self.rate) * d * self.rate'

[[formula.mutants]]
name = "no-program"
dropped = "an import"
source = 'import numpy as np'
mutant = 'import numpy_that_is_not_there as np'

[[formula.mutants]]
name = "divisor"
dropped = "the rate"
source = 'return float(self.rate * self.n_records)'
mutant = 'return float(self.n_records)'
"""


def text_of(one):
    return (mutants.ROOT / "src" / mutants.PACKAGE / one.module).read_text(encoding="utf-8")


def rows_of(page):
    """Formula, what is dropped, module and test of each row."""
    rows = [line.strip("| ").split(" | ") for line in page.split("\n") if line.startswith("| ")]
    return [[cell.strip("`") for cell in row] for row in rows[1:]]


@pytest.fixture(scope="module")
def page(repository):
    return (repository / "docs" / "mutants.md").read_text(encoding="utf-8")


def has_test(test):
    """Whether the file of a test exists, with the class and the function that it names."""
    name, *parts = test.split("::")
    path = mutants.ROOT / name
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    defined = set(re.findall(r"^\s*(?:class|def) (\w+)", text, re.MULTILINE))
    return bool(text) and defined.issuperset(parts)


def test_the_list_is_long_enough_and_names_differ():
    assert len({one.formula for one in MUTANTS}) >= FEWEST_FORMULAS
    assert len(MUTANTS) >= FEWEST_MUTANTS
    assert not [name for name, times in Counter(one.name for one in MUTANTS).items() if times > 1]


@pytest.mark.parametrize("name", BY_NAME)
def test_the_source_text_is_there_once_and_the_mutant_is_a_program(name):
    one = BY_NAME[name]
    text = text_of(one)
    assert text.count(one.source) == 1
    mutated = one.mutated(text)
    assert mutated != text
    compile(mutated, one.module, "exec")


def test_the_tests_that_mutants_name_are_there():
    assert not {test for one in MUTANTS for test in one.tests if not has_test(test)}


def test_the_page_has_a_row_for_every_mutant(page):
    listed = [[one.formula, one.dropped, one.module] for one in MUTANTS]
    assert [row[:3] for row in rows_of(page)] == listed
    n_formulas = len({one.formula for one in MUTANTS})
    assert f"{len(MUTANTS)} of them in {n_formulas} formulas" in " ".join(page.split())


def test_the_tests_on_the_page_are_there_and_among_those_of_the_mutant(page):
    for one, (*_, test) in zip(MUTANTS, rows_of(page), strict=True):
        assert has_test(test), test
        assert any(f"{test}::".startswith(f"{named}::") for named in one.tests), one.name


def test_a_text_that_is_not_there_once_is_an_error():
    one = BY_NAME[SAMPLE[0]]
    for text in ("", 2 * one.source):
        with pytest.raises(ValueError, match="times in the module"):
            one.mutated(text)


@pytest.mark.soundness
def test_a_few_mutants_are_caught():
    done = run("tests/mutants.py", "--only", *SAMPLE)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.split("\n")
    assert lines[0].startswith("without a mutant all tests pass")
    caught = {line.split()[1]: line.split()[-1] for line in lines if line.startswith("caught")}
    assert set(caught) == set(SAMPLE)
    for name, test in caught.items():
        assert any(test.startswith(named) for named in BY_NAME[name].tests)
    assert lines[-2] == f"{len(SAMPLE)} of {len(SAMPLE)} caught"


def test_what_is_not_caught_is_told(tmp_path):
    (tmp_path / "list.toml").write_text(OTHERS, encoding="utf-8")
    done = run("-c", TRUTH, tmp_path / "list.toml")
    assert done.returncode == 1
    assert {line.split()[1]: line.split()[0] for line in done.stdout.split("\n")[1:4]} == {
        "nothing": "survived",
        "no-program": "broken",
        "divisor": "caught",
    }
    assert done.stdout.endswith(
        "1 of 3 caught\n  not caught: nothing\n  not caught: no-program\n"
    ), done.stderr


def test_tests_that_fail_without_a_mutant_stop_it(tmp_path):
    text = OTHERS.replace("TestDivisor", "TestNobodyWrote")
    (tmp_path / "list.toml").write_text(text, encoding="utf-8")
    done = run("-c", TRUTH, tmp_path / "list.toml")
    assert done.returncode == 1
    assert done.stdout.startswith("without a mutant")
    assert "caught" not in done.stdout


@pytest.mark.parametrize("arguments", [["--only", "no-such"], ["--only", "dkw", "--write", "page"]])
def test_arguments(arguments):
    assert run("tests/mutants.py", *arguments).returncode == 2


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_mutant_is_caught():
    done = run("tests/mutants.py")
    assert done.returncode == 0, done.stdout + done.stderr


def run(*arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=mutants.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
