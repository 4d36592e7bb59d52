# SPDX-License-Identifier: Apache-2.0
"""The mutation script finds operators, changes one, and tells caught from missed."""

import ast

import pytest
from tests import mutants


@pytest.mark.parametrize("module", mutants.modules())
def test_every_module_has_tests_and_mutants_that_parse(module):
    """All operators of one tree, because a module has hundreds; the first one by itself too."""
    assert mutants.tests_of(module)
    text = (mutants.PACKAGE / module).read_text(encoding="utf-8")
    tree = ast.parse(text)
    changes = [mutants.mutate(node) for node in dict.fromkeys(mutants.sites(tree))]
    assert all(change.split(" -> ")[0] != change.split(" -> ")[1] for change in changes)
    compile(ast.unparse(tree), module, "exec")
    first = mutants.mutant_of(module, 0)
    compile(first.source, module, "exec")
    assert first.change == changes[0]
    assert first.source != ast.unparse(ast.parse(text))


def test_the_tests_of_a_module_come_before_those_of_its_package():
    tests = mutants.tests_of("learning/sampling.py")
    assert tests[0] == "tests/learning/test_sampling.py"
    assert tests.index("tests/contracts/test_accountants.py") < len(tests) - 1
    assert {"tests/learning/test_tails.py", "tests/learning/test_plan.py"} <= set(tests)
    assert len(set(tests)) == len(tests)


def test_a_dropped_factor_is_caught_and_no_change_is_not():
    module = "learning/sampling.py"
    tests = ["tests/learning/test_sampling.py::TestPoissonRatio"]
    every = (mutants.mutant_of(module, k) for k in range(mutants.n_mutants(module)))
    divisor = next(one for one in every if "self.rate * self.n_records" in one.change)
    assert mutants.is_caught(divisor, tests)
    text = (mutants.PACKAGE / module).read_text(encoding="utf-8")
    assert not mutants.is_caught(divisor._replace(source=text), tests)
