# SPDX-License-Identifier: Apache-2.0
"""What scenario, plan and training files refuse; each message names the section and the key."""

import copy
from pathlib import Path

import pytest
from tests.refusal_tables import refusals
from tests.refusals import check_refused
from tests.scenario_files import GUESS, SCENARIO, TRAINING, csv_text

from pufferslice.config import read_plan
from pufferslice.config.document import overridden
from pufferslice.config.scenario import request_of
from pufferslice.config.training import training_of
from pufferslice.errors import ArgumentError, ScenarioError

CLAIM = {"notion": "joint", "order": 4, "epsilon": 1.0}
QUERY, WORLDS = ({"distribution": kind, "mean": ["age"]} for kind in ("groups", "worlds"))
SCALED = QUERY | {"scales_from": "people.parquet"}
MODEL = {
    "kind": "logistic-regression", "features": ["pay", "age"], "target": "rich", "positive": 1,
}  # fmt: skip
NORMAL = {"mean": [0], "cov": [[1]]}
COUNT = {"distribution": "worlds", "count": [{"column": "state", "equals": 1}]}
TOTAL = {"distribution": "worlds", "total": ["age"], "clip": {"age": [0, 100]}}
ILL = {"property": {"column": "site", "equals": "a"}, "within": 0.1}
JOINT = {"values": [1.0, 2.0, 4.0], "mean": [0.0, 1.0], "cov": [[4.0, 1.0], [1.0, 2.0]]}
PROCESS = {"kernel": "exponential", "variance": 4.0, "length_scale": 3.0, "times": [20, 14]}
UNCLAIMED = {name: keys for name, keys in SCENARIO.items() if name != "guarantee"}
SIZES = {"ratio": 1.2, "up_to": 200}
STEPS = {"chain": [[0.9, 0.1], [0.2, 0.8]], "length": 4}
PLAN = 'format = "pufferslice-training-plan"\n'


def scenario(sections):
    return request_of(SCENARIO | {"query": QUERY, "guarantee": CLAIM} | sections, Path())


def template(sections):
    document = {"query": WORLDS, "data": SCENARIO["data"], "guarantee": GUESS["guarantee"]}
    return request_of(document | sections, Path())


def hidden(**changes):
    """The section of a process with some keys changed."""
    return {"attribute": {"values": [1, 2], "process": PROCESS | changes}}


def training(changes):
    """A training file with changes; None leaves a section or a key out."""
    sections = copy.deepcopy(TRAINING)
    for name, value in changes.items():
        section, _, key = name.partition("__")
        holder, key = (sections[section], key) if key else (sections, section)
        holder[key] = value
        if value is None:
            del holder[key]
    return training_of(sections, Path())


def query(keys):
    return scenario({"query": QUERY | keys})


def claim(keys):
    return scenario({"guarantee": CLAIM | keys})


def plan(file):
    name, text = file
    Path(name).write_text(text)
    return read_plan(name)


REFUSED = {
    ArgumentError: [
        ("not a training plan", plan, ("a.toml", "[plan"), ("b.json", "{"), ("d.json", "[]")),
        ("format", plan, ("c.toml", 'format = "other"\n')),
        ("version", plan, ("e.toml", PLAN + "version = 2\n")),
        ("incomplete", plan, ("f.toml", PLAN + "version = 5\n")),
        ("[data] path", scenario, {"data": {"path": ""}}),
        ("[data] bins", scenario, {"data": {"bins": 64}}),
        ("[data] dataset", scenario, {"data": {"dataset": "iris"}}),
        ("[data]", scenario, {"data": {}}, {"data": "people.csv"}),
        ("did you mean 'query'", scenario, {"queries": {}}),
        ("[zebra]", scenario, {"zebra": {}}),
        ("[secret]", scenario, {"secret": {}}),
        ("quantiles", scenario, {"secret": {"bins": {"column": "age"}}}),
        ("[secret] pairs", scenario, {"secret": {"pairs": [["a"]]}}),
        ("[query] distribution", scenario, {"query": {"mean": ["pay"]}}),
        ("every", template, {"occupancy": STEPS | {"positions": {"first": 0, "every": 0}}}),
        ("did you mean 'mean'", query, {"means": ["pay"]}),
        ("[query] cells", scenario, {"query": {"distribution": "groups", "cells": "count"}}),
        ("[query] cells", query, {"cells": "count", "by": [{"column": "sex", "values": ["m"]}]}),
        ("[query] allow_empty", query, {"allow_empty": True}),
        (
            "[query] edges",
            scenario,
            {"query": {"second_moments": {"target": "pay"}, "edges": {"pay": [0, 1]}}},
        ),
        ("[query] second_moments", query, {"second_moments": {"target": "pay"}}),
        ("[query] by", query, {"by": [{"column": "pay", "edges": [0, 1]}] * 2}),
        ("edges, per", query, {"by": [{"column": "pay", "per": "hour", "edges": [0, 1]}]}),
        ("[query] scales_from", query, {"scales_from": "./people.csv"}),
        ("[query] scales_from", scenario, {"data": {"path": "p*.parquet"}, "query": SCALED}),
        ("summary", scenario, {"query": {"distribution": "groups"}}),
        ("[query] count_share", query, {"count_share": 10**400}),
        ("[query] range", query, {"range": {"low": [0]}}),
        ("[query] range", query, {"range": {"pay": [1, 2], "low": [0]}}),
        ("range names 'pay'", query, {"range": {"pay": [1, 2]}}),
        ("[query] scales", query, {"scales": {"x": "y"}}),
        ("[query] rate[0].equal", query, {"rate": [{"column": "x", "equal": 1}]}),
        ("[query] rate[0]", query, {"rate": [{"column": "rich"}]}),
        ("[query] model.kind", query, {"model": {"kind": "oracle"}}),
        ("[query] model", query, {"mean": [], "model": MODEL | {"n_trees": 3}}),
        ("[bootstrap]", query, {"distribution": "bootstrap"}),
        ("[bootstrap]", scenario, {"bootstrap": {"n_replicates": 9, "seed": 2}}),
        ("exactly one section", query, {"distribution": "worlds"}),
        ("[gaussian] a.cov", scenario, {"gaussian": {"a": {"mean": [0], "cov": [[1], [1, 2]]}}}),
        ("did you mean 'cov'", scenario, {"gaussian": {"a": {"covv": 1}}}),
        ("[profile] n_directions", scenario, {"profile": {"seed": 1}}),
        ("[profile] directions", scenario, {"profile": {"kind": "given"}}),
        ("[guarantee]: is required", lambda: request_of(UNCLAIMED, Path())),
        ("[guarantee] order", claim, {"order": True}),
        ("[guarantee] order", scenario, {"guarantee": {"notion": "joint", "epsilon": 1}}),
        ("[guarantee] order", claim, {"claim": "epsilon-delta", "delta": 0.1}),
        ("[guarantee] epsilon", claim, {"epsilon": float("inf")}),
        (
            "[guarantee] epsilon",
            scenario,
            {"guarantee": {"notion": "guess", "at_most": 0.6, "epsilon": 1.0}},
        ),
        ("[guarantee] delta", claim, {"delta": 0.1}),
        (
            "[guarantee] delta",
            scenario,
            {"guarantee": {"claim": "epsilon-delta", "notion": "joint", "epsilon": 1}},
        ),
        ("[guarantee] at_most", scenario, {"guarantee": {"notion": "guess"}}),
        ("[guarantee] at_most", claim, {"at_most": 0.6}),
        ("[guarantee] claim", claim, {"claim": "guess"}),
        ("at_most", scenario, {"guarantee": {"notion": "guess", "at_most": 0.4}}),
        ("[calibration] shape", scenario, {"calibration": {"shape": "round"}}),
        ("[calibration] shape", scenario, {"calibration": {"shape": [[1.0], [1.0, 2.0]]}}),
        ("[calibration] effort", scenario, {"calibration": {"effort": "none"}}),
        ("[calibration] accuracy.x", scenario, {"calibration": {"accuracy": {"x": "y"}}}),
        ("[prior] kind", scenario, {"prior": {"kind": "guessed"}}),
        ("[secret] column", scenario, {"query": WORLDS, "worlds": {"a": "x.csv", "b": "y.csv"}}),
        ("[secret] name", template, {"prevalence": ILL, "secret": {"name": "people"}}),
        ("[secret] name", scenario, {"secret": {"column": "site", "name": "people"}}),
        ("[prev", template, {"prevalence": ILL, "volume": SIZES}),
        (
            "[prevalence]",
            template,
            {"prevalence": ILL, "query": {"distribution": "groups", "mean": ["age"]}},
        ),
        ("needs property or values", template, {"prevalence": {"within": 0.1}}),
        ("[prevalence] property", template, {"prevalence": ILL | {"property": {"column": "ill"}}}),
        ("[prevalence] design", template, {"prevalence": ILL | {"design": "odd"}}),
        ("prior='draws'", template, {"prevalence": ILL | {"seed": 3}}),
        ("is the released table", template, {"prevalence": ILL | {"moments_from": "people.csv"}}),
        ("[data]", template, {"prevalence": ILL, "data": {}}),
        ("cov", template, {"attribute": JOINT | {"cov": [[1.0]]}}),
        ("[attribute]", template, {"attribute": {"values": [1, 2]}}),
        ("[attribute]", template, {"attribute": JOINT | {"within": 1.0}}),
        ("'records'", template, {"attribute": {"history": "people.parquet", "bins": [50]}}),
        ("[attribute]", template, {"attribute": {"values": [1, 2], "mean": [0.0, 1.0]}}),
        ("[attribute]", template, {"attribute": JOINT | {"history": "earlier.parquet"}}),
        ("[attribute]", template, {"attribute": JOINT | {"process": PROCESS}}),
        ("[attribute] process.kernel", template, hidden(kernel="linear")),
        ("variance", template, hidden(variance=0.0)),
        ("length_scale", template, hidden(length_scale=-1.0)),
        ("times", template, hidden(times=[20])),
        (
            "[attribute] process.variance",
            template,
            {"attribute": {"values": [1, 2], "process": {"kernel": "exponential"}}},
        ),
        ("[occupancy] chain", template, {"occupancy": STEPS | {"chain": 3}}),
        ("[occupancy] length", template, {"occupancy": {"chain": STEPS["chain"]}}),
        ("[occupancy] periods", template, {"occupancy": STEPS | {"periods": {"column": "week"}}}),
        ("[occupancy] positions", template, {"occupancy": STEPS | {"positions": "some"}}),
        ("[occupancy] positions", template, {"occupancy": STEPS | {"positions": [[1, 2, 3]]}}),
        ("[occupancy] windows", template, {"occupancy": STEPS | {"windows": [[1]]}}),
        (
            "n_draws and seed go together",
            template,
            {"occupancy": STEPS | {"seed": 3}, "query": COUNT},
        ),
        ("[occupancy] start", template, {"occupancy": STEPS | {"start": "here"}}),
        ("[volume] up_to", template, {"volume": SIZES | {"up_to": 90.5}}),
        (
            "are numbers",
            template,
            {"volume": SIZES, "query": TOTAL, "secret": {"pairs": {"ratio": 2.0}}},
        ),
        ("[secret] pairs", template, {"volume": SIZES, "secret": {"pairs": {"within": 3}}}),
        ("[data] dataset", training, {"data__dataset": None}, {"data__dataset": "mnist"}),
        ("[data] n_records", training, {"data__n_records": 0}),
        ("did you mean 'n_records'", training, {"data__n_record": 3}),
        ("[secret]", training, {"secret__at_most": 3}, {"secret": None}),
        ("[secret]", training, {"secret": {"tail_probability": 0.1}}),
        ("[secret] exactly", training, {"secret__exactly": 2.5}),
        ("n_records is 60", training, {"secret__exactly": 101}),
        ("[secret] probabilities", training, {"secret": {"probabilities": [0.5]}}),
        ("[secret] mismatch_probability", training, {"secret": {"mismatch_probability": 2}}),
        ("[secret] prevalence.shares", training, {"secret": {"prevalence": {"label": 3}}}),
        ("[sampling] kind", training, {"sampling__kind": "all"}),
        ("[sampling] rate", training, {"sampling__rate": 1.5}),
        ("[sampling] poisson", training, {"sampling__rate": None}),
        ("[sampling] poisson", training, {"sampling__batch_size": 3}),
        ("[training] model", training, {"training__model": "large"}),
        ("[training] learning_rate", training, {"training__learning_rate": "x"}),
        ("[training] clip_norm", training, {"training__clip_norm": 0}),
        ("[training]", training, {"training__n_epochs": 3}, {"training__n_steps": None}),
        ("[training] n_steps", training, {"training__n_steps": 10**8}),
        ("[training] block", training, {"training__block": 0}),
        ("[guarantee] accountant", training, {"guarantee__accountant": "rdp"}),
        ("[guarantee] order", training, {"guarantee__order": 1}),
        ("order, of a Rényi claim, or delta", training, {"guarantee__order": None}),
        ("exactly one of at_most, bits, epsilon", training, {"guarantee__at_most": 0.6}),
        ("exactly one of at_most, bits, epsilon", training, {"guarantee__epsilon": None}),
        (
            "belong to epsilon",
            training,
            {"guarantee": {"accountant": "amplified", "at_most": 0.6, "order": 8}},
        ),
        ("at_most", training, {"guarantee": {"accountant": "amplified", "at_most": 0.4}}),
        ("bits", training, {"guarantee": {"accountant": "amplified", "bits": 0}}),
        ("order, of a Rényi claim, or delta", training, {"guarantee__delta": 1e-5}),
        ("[guarantee] epsilon", training, {"guarantee__epsilon": 0}),
        ("Rényi", training, {"secret": {"at_most": 3, "tail_probability": 0.1}}),
        ("[secret] tail_probability", training, {"secret__tail_probability": 0.1}),
        ("[secret] tail_probability", training, {"secret": {"at_most": 3, "tail_probability": 2}}),
        (
            "[secret] failure_probability",
            training,
            {"secret": {"at_most": 3, "failure_probability": 0.1}},
        ),
        ("[guarantee] deltas", training, {"guarantee__deltas": [2.0]}),
        ("[output] public_evaluation", training, {"output__public_evaluation": 1}),
        ("[output] checkpoint_every", training, {"output__checkpoint_every": 0}),
        ("--set", lambda text: overridden({}, [text]), "", "=", "a.b", "seed=1", "seed=joint"),
        ("--set", lambda text: overridden({}, [text]), "a b=1", "a.b=\udcff"),
        ("table", lambda value: training_of(value, Path()), [], 3, "x", None),
        (
            "components",
            scenario,
            {
                "query": WORLDS,
                "secret": {},
                "gaussian": {"a": NORMAL, "b": NORMAL | {"components": []}},
            },
        ),
        (
            "numbers",
            template,
            {"secret": {"column": "site", "pairs": {"nearest": 1}}, "query": QUERY},
        ),
    ],
    ScenarioError: [
        ("prior='gaussian' is refused", template, {"prevalence": ILL | {"prior": "gaussian"}}),
        ("count or a rate", template, {"occupancy": STEPS}),
        ("use distribution 'bootstrap' or 'records'", scenario, {"prior": {"kind": "sampled"}}),
    ],
}


@pytest.mark.parametrize("refusal", refusals(REFUSED))
def test_refused(refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("people.csv").write_text(csv_text())
    Path("people.parquet").touch()
    check_refused(refusal)
