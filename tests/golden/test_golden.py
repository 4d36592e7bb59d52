# SPDX-License-Identifier: Apache-2.0
"""Every number is the one that the golden files hold, as exactly as its kind allows.

A closed form may differ in its rounding. What a search or a solver found may differ in its last
digits, and with it all that follows from it: a better solver changes no golden file.
"""

import json
import math

import pytest
from tests.golden import commands, make, specs

pytestmark = [
    pytest.mark.filterwarnings("ignore:training is slow"),
    pytest.mark.filterwarnings("ignore:the model or loss_fn gives a batch other losses"),
]

MOST_SHOWN = 12
N_PARTS = {"scenarios": 15, "plans": 5, "steps": 4}
CLOSED_FORM, SEARCHED, BY_TORCH = 1e-12, 1e-6, 1e-5
"""Relative."""

GIVEN = {"profile", "failure_probability", "batch", "differing", "ratios", "divisor"}
"""Keys of numbers that do not depend on the noise."""
OF_NOISE = {
    *("std", "std_by_coordinate", "spent", "noise_multipliers", "noise_stds", "costs"),
    *("sum_of_costs", "epsilon", "record_cost", "grid", "implementation_delta", "signal_to_noise"),
}
"""Keys of numbers that follow from the noise without a search."""


def parts(name):
    return [pytest.param(k, id=f"{name}{k}") for k in range(N_PARTS[name])]


@pytest.mark.parametrize("part", parts("scenarios"))
def test_scenarios(part):
    check_part("scenarios", part, specs.scenario_specs(), make.scenario, of_scenario)


@pytest.mark.parametrize("part", parts("plans"))
def test_plans(part):
    check_part("plans", part, specs.plan_specs(), make.plan, of_plan)


@pytest.mark.parametrize("part", parts("steps"))
def test_steps(part):
    check_part("steps", part, specs.step_specs(), make.step, lambda _: {"grid"})


@pytest.mark.parametrize("name", commands.CHAINS)
def test_commands(name):
    check([(golden("commands")[name], make.chain(name), set())])


def of_scenario(spec):
    """Keys of closed forms: the evidence, unless it has the coordinates of a fitted shape."""
    exact = "failure_probability" not in spec and "delta" not in spec["claim"]
    is_closed = exact and spec.get("method") == ["closed_form", "worst_gap"]
    evidence = set() if "shape" in spec else {"evidence"}
    return GIVEN | evidence | (OF_NOISE if is_closed else set())


def of_plan(spec):
    """Keys of closed forms; where the noise is searched, those that do not depend on it."""
    return GIVEN if spec["noise_multipliers"] is None else GIVEN | OF_NOISE


def test_a_changed_number_is_seen():
    was = {"noise": {"std": 1.0, "parts": [1, 2.5]}, "digest": "a"}
    assert not differences(was, was, set())
    halved = {"noise": {"std": 0.5, "parts": [1, 2.5]}, "digest": "a"}
    assert differences(was, halved, set()) == ["noise.std: 1.0 became 0.5"]
    nearly = {"noise": {"std": 1.0, "parts": [1, 2.5 * (1 + 1e-9)]}, "digest": "a"}
    assert not differences(was, nearly, {"std"})
    assert len(differences(was, nearly, {"noise"})) == 1
    assert differences(was, was | {"more": 1}, set()) == ["more: is new"]
    less = {"noise": {"std": 1.0}, "digest": "b"}
    assert len(differences(was, less, set())) == 3
    for old, new in ((10**9, 10**9 + 1), (True, 1), (None, 0), (0.0, 1e-300), ("x", None)):
        assert differences({"x": old}, {"x": new}, set())


def check_part(name, part, inputs, compute, closed_forms):
    """Every so-manieth entry, so that all parts take about as long."""
    entries = golden(name)
    assert len(entries) == len(inputs)
    chosen = slice(part, None, N_PARTS[name])
    check(
        (entry, compute(spec), closed_forms(spec))
        for entry, spec in zip(entries[chosen], inputs[chosen], strict=True)
    )


def check(comparisons):
    """Each has what is expected, what came out, and the keys of closed forms."""
    problems = [problem for one in comparisons for problem in differences(*one)]
    shown = "\n".join(problems[:MOST_SHOWN])
    assert not problems, f"{len(problems)} numbers differ, the first of them:\n{shown}"


def differences(expected, found, closed_forms):
    """What is not as it was, one line for each leaf."""
    # As a file would give it back: tuples are lists, keys are texts.
    old, new = dict(leaves(expected)), dict(leaves(json.loads(json.dumps(found))))
    problems = []
    for path, leaf in old.items():
        where = ".".join(map(str, path))
        if path not in new:
            problems.append(f"{where}: {leaf!r} is gone")
        elif not agree(path, leaf, new[path], closed_forms):
            problems.append(f"{where}: {leaf!r} became {new[path]!r}")
    return problems + [f"{'.'.join(map(str, path))}: is new" for path in new if path not in old]


def agree(path, old, new, closed_forms):
    if not isinstance(old, float) or not isinstance(new, float):
        return type(old) is type(new) and old == new
    if math.isnan(old):
        return math.isnan(new)
    if "coarse" in path:
        return math.isclose(old, new, rel_tol=BY_TORCH, abs_tol=BY_TORCH)
    if "shape" in path:  # a matrix, some entries of which are rounding errors
        return math.isclose(old, new, rel_tol=SEARCHED, abs_tol=SEARCHED)
    return math.isclose(
        old, new, rel_tol=SEARCHED if closed_forms.isdisjoint(path) else CLOSED_FORM
    )


def leaves(node, path=()):
    """Path and value of everything below that holds nothing else."""
    if isinstance(node, dict | list) and node:
        inner = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in inner:
            yield from leaves(value, (*path, key))
        return
    yield path, node if not isinstance(node, dict | list) else type(node).__name__


def golden(name):
    return json.loads((make.FOLDER / f"{name}.json").read_text(encoding="utf-8"))["entries"]
