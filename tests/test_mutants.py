# SPDX-License-Identifier: Apache-2.0
"""The mutation script finds operators, changes one, and tells caught from missed."""

import ast

import pytest
from tests import mutants


@pytest.mark.parametrize("module", mutants.CORE)
def test_every_core_module_has_mutants_that_parse(module):
    every = list(mutants.mutants_of(module))
    assert len(every) >= 3
    original = ast.unparse(ast.parse((mutants.PACKAGE / module).read_text(encoding="utf-8")))
    assert all(ast.unparse(ast.parse(one.source)) != original for one in every)


def test_a_dropped_factor_is_caught_and_no_change_is_not():
    module, tests = "learning/sampling.py", "tests/learning/test_sampling.py"
    every = list(mutants.mutants_of(module))
    divisor = next(one for one in every if "self.rate * self.n_records" in one.change)
    assert mutants.is_caught(divisor, tests)
    text = (mutants.PACKAGE / module).read_text(encoding="utf-8")
    assert not mutants.is_caught(divisor._replace(source=text), tests)
