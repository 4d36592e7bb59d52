# SPDX-License-Identifier: Apache-2.0
"""Every number is the one that the golden files hold: names may change, numbers may not.

A key that got another name is mended by one line in renames.json, a name of the library in
adapter.py. `"old": "new"` holds for a key anywhere, `"a.old": "b.new"` for a path; `"old": null`
for a key that is gone.
"""

import json
import math

import pytest
from tests.golden import adapter, commands, make, specs

pytestmark = [
    pytest.mark.filterwarnings("ignore:training is slow"),
    pytest.mark.filterwarnings("ignore:the model or loss_fn gives a batch other losses"),
]

MOST_SHOWN = 12
N_PARTS = {"scenarios": 15, "plans": 5, "steps": 4}
EXACT, ELSEWHERE, COARSE = 1e-12, 1e-9, 1e-5
"""Relative: where the files were made, on another machine, and for what torch computes."""


def parts(name):
    return [pytest.param(k, id=f"{name}{k}") for k in range(N_PARTS[name])]


@pytest.mark.parametrize("part", parts("scenarios"))
def test_scenarios(part):
    check_part("scenarios", part, specs.scenario_specs(), make.scenario)


@pytest.mark.parametrize("part", parts("plans"))
def test_plans(part):
    check_part("plans", part, specs.plan_specs(), make.plan)


@pytest.mark.parametrize("part", parts("steps"))
def test_steps(part):
    check_part("steps", part, specs.step_specs(), make.step)


@pytest.mark.parametrize("name", commands.CHAINS)
def test_commands(name):
    document = golden("commands")
    check(document, document["entries"][name], make.chain(name))


def test_a_changed_number_is_seen():
    was = {"noise": {"std": 1.0, "parts": [1, 2.5]}, "digest": "a"}
    assert not differences(was, was, {}, same_machine=True)
    halved = {"noise": {"std": 0.5, "parts": [1, 2.5]}, "digest": "a"}
    assert differences(was, halved, {}, same_machine=True) == ["noise.std: 1.0 became 0.5"]
    nearly = {"noise": {"std": 1.0, "parts": [1, 2.5 * (1 + 1e-11)]}, "digest": "b"}
    assert len(differences(was, nearly, {}, same_machine=True)) == 2
    assert not differences(was, nearly, {}, same_machine=False)
    assert differences(was, was | {"more": 1}, {}, same_machine=True) == ["more: is new"]
    less = {"noise": {"std": 1.0}, "digest": "a"}
    assert len(differences(was, less, {}, same_machine=True)) == 2


def test_a_renamed_key_is_not_a_changed_number():
    was = {"noise": {"std": 1.0}, "views": [{"rule": 2}], "old": 3}
    now = {"noise": {"standard_deviation": 1.0}, "readings": [{"rule": 2}]}
    renames = {"noise.std": "noise.standard_deviation", "views": "readings", "old": None}
    assert not differences(was, now, renames, same_machine=True)


def check_part(name, part, inputs, compute):
    """Every so-manieth entry, so that all parts take about as long."""
    document = golden(name)
    assert len(document["entries"]) == len(inputs)
    chosen = slice(part, None, N_PARTS[name])
    check(document, document["entries"][chosen], [compute(spec) for spec in inputs[chosen]])


def check(document, expected, found):
    same_machine = document["machine"] == adapter.machine()
    # As a file would give it back: tuples are lists, keys are texts.
    found = json.loads(json.dumps(found))
    problems = differences(expected, found, renames(), same_machine=same_machine)
    shown = "\n".join(problems[:MOST_SHOWN])
    assert not problems, f"{len(problems)} numbers differ, the first of them:\n{shown}"


def differences(expected, found, renamed, *, same_machine):
    """What is not as it was, one line for each leaf."""
    old, new = dict(leaves(expected, renamed)), dict(leaves(found, {}))
    problems = []
    for path, leaf in old.items():
        where = ".".join(map(str, path))
        if path not in new:
            problems.append(f"{where}: {leaf!r} is gone")
        elif not agree(path, leaf, new[path], same_machine=same_machine):
            problems.append(f"{where}: {leaf!r} became {new[path]!r}")
    problems += [f"{'.'.join(map(str, path))}: is new" for path in new if path not in old]
    return problems


def agree(path, old, new, *, same_machine):
    if path[-1] == "digest":
        return old == new or not same_machine
    if isinstance(old, bool) or isinstance(new, bool) or old is None or isinstance(old, str):
        return old is new or (isinstance(old, str) and old == new)
    if not isinstance(new, int | float):
        return False
    if "coarse" in path:
        return math.isclose(old, new, rel_tol=COARSE, abs_tol=COARSE)
    if math.isnan(old):
        return math.isnan(new)
    least = 0.0 if same_machine else ELSEWHERE
    return math.isclose(old, new, rel_tol=EXACT if same_machine else ELSEWHERE, abs_tol=least)


def leaves(node, renamed, path=()):
    """Path and value of everything below that holds nothing else; renamed paths by new names."""
    if isinstance(node, dict | list) and node:
        inner = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in inner:
            yield from leaves(value, renamed, (*path, key))
        return
    new = new_path(path, renamed)
    if new is not None:
        yield new, node if not isinstance(node, dict | list) else type(node).__name__


def new_path(path, renamed):
    """The path by new names; places in lists may stand between the keys. None if a key is gone."""
    for old, new in renamed.items():
        wanted = [old] if old in path else old.split(".")
        places = [place for place, key in enumerate(path) if isinstance(key, str)]
        for i in range(len(places) - len(wanted) + 1):
            hit = places[i : i + len(wanted)]
            if [path[place] for place in hit] != wanted:
                continue
            if new is None:
                return None
            *around, name = [new] if len(wanted) == 1 else new.split(".")
            between = [key for key in path[hit[0] : hit[-1]] if not isinstance(key, str)]
            path = (*path[: hit[0]], *around, *between, name, *path[hit[-1] + 1 :])
            break
    return path


def golden(name):
    return json.loads((make.FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def renames():
    return json.loads((make.FOLDER / "renames.json").read_text(encoding="utf-8"))
