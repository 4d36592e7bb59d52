# SPDX-License-Identifier: Apache-2.0
"""Run a command as a user would, and check what must hold whatever it was given."""

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from pufferslice.certificate import Certificate, verify
from pufferslice.cli.app import run

MOST_LINES = 14
"""Of an error; those about wrong usage are drawn in a box."""

PEOPLE = [("a", 31.5, 40.0), ("a", 29.0, 35.5), ("b", 36.0, 41.0), ("b", 35.0, 52.0),
          ("c", 40.0, 47.5), ("c", 42.25, 30.0), ("c", 39.0, 61.0)]  # fmt: skip

SCENARIO: dict[str, Any] = {
    "data": {"path": "people.csv"},
    "secret": {"column": "site", "pairs": "all"},
    "query": {
        "distribution": "groups",
        "mean": ["pay", "age"],
        "rate": [{"column": "age", "above": 40}],
        "range": {"low": [0, 0, 0], "high": [100, 100, 1]},
        "scales": [10, 10, 0.1],
    },
    "prior": {"source": "released-data", "kind": "empirical"},
    "profile": {"n_directions": 4, "seed": 7},
    "guarantee": {"notion": "joint", "order": 4, "epsilon": 1.0, "deltas": [1e-5]},
    "calibration": {"rule": "tight", "envelope": "transport"},
}
RECORDS: dict[str, Any] = {
    **SCENARIO,
    "query": {
        "distribution": "records",
        "columns": ["pay", "age"],
        "range": {"center": [35, 45], "radius": 40},
    },
    "guarantee": {"notion": "average", "order": 2, "epsilon": 0.5},
}
STREAMED: dict[str, Any] = {**RECORDS, "data": {"path": "people.parquet", "bins": 16}}
SAMPLED: dict[str, Any] = {
    **RECORDS,
    "data": {"path": "many.parquet", "missing": "drop-rows", "null_values": ["?"]},
    "prior": {"source": "held-out", "kind": "sampled", "band": "dkw"},
    "guarantee": {
        "claim": "epsilon-delta", "notion": "joint", "epsilon": 1.0, "delta": 0.3,
        "failure_probability": 0.05,
    },
    "profile": {"n_directions": 2, "seed": 7},
}  # fmt: skip
GAUSSIAN: dict[str, Any] = {
    "query": {"distribution": "worlds", "mean": ["pay", "age"]},
    "gaussian": {
        "low": {"mean": [0.0, 1.0], "cov": [[1.0, 0.0], [0.0, 2.0]]},
        "high": {"mean": [2.0, 1.0], "cov": [[1.5, 0.2], [0.2, 2.0]]},
    },
    "profile": {"kind": "axes"},
    "guarantee": {"notion": "unsliced", "order": 3, "epsilon": 1.0},
}
GUESS: dict[str, Any] = {
    **{name: part for name, part in SCENARIO.items() if name != "profile"},
    "guarantee": {"notion": "guess", "at_most": 0.6},
    "calibration": {
        "shape": "fitted", "guard": 0.1, "weights": {"mean(pay)": 2.0}, "effort": "quick",
    },
}  # fmt: skip
PAIR: dict[str, Any] = {
    **{name: part for name, part in RECORDS.items() if name != "profile"},
    "guarantee": {"notion": "unsliced", "epsilon": 1.0, "delta": 1e-5},
    "calibration": {"shape": [[2.0, 0.5], [0.5, 1.0]], "effort": "quick"},
}
ACCURATE: dict[str, Any] = {
    **{name: part for name, part in SCENARIO.items() if name != "profile"},
    "guarantee": {"notion": "unsliced", "order": 4, "epsilon": 9.0, "total": 9.0},
    "calibration": {"shape": "diagonal", "accuracy": {"mean(pay)": 30.0, "mean(age)": 60.0}},
}
BOOTSTRAP: dict[str, Any] = {
    **SCENARIO,
    "secret": {"bins": {"column": "age", "quantiles": 2}},
    "query": {
        "distribution": "bootstrap",
        "mean": ["pay"],
        "quantile": [{"column": "pay", "level": 0.5}],
    },
    "bootstrap": {"n_replicates": 5, "seed": 3},
    "profile": {"kind": "orthogonal", "n_sets": 1, "seed": 7},
}
SCENARIOS = {
    "groups": SCENARIO,
    "records": RECORDS,
    "streamed": STREAMED,
    "sampled": SAMPLED,
    "gaussian": GAUSSIAN,
    "bootstrap": BOOTSTRAP,
    "guess": GUESS,
    "pair": PAIR,
    "accurate": ACCURATE,
}

TRAINING: dict[str, Any] = {
    "data": {"dataset": "digits", "n_records": 60},
    "secret": {"exactly": 2},
    "sampling": {"kind": "poisson", "rate": 0.5},
    "training": {
        "model": "linear", "seed": 0, "optimizer": "sgd", "learning_rate": 0.5, "momentum": 0.5,
        "n_steps": 2, "clip_norm": 1.0,
    },
    "guarantee": {"accountant": "log-moment", "order": 8, "epsilon": 8.0},
    "output": {"folder": "run", "public_evaluation": True},
}  # fmt: skip


class Answer(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str


def csv_text(rows: Any = PEOPLE, header: str = "site,pay,age") -> str:
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


def command(folder: Path, *arguments: str) -> Answer:
    """Run a command in a folder; any exception that leaves it is a failure."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run(arguments)
    answer = Answer(code, out.getvalue(), err.getvalue())
    check_answer(arguments, answer)
    check_files(folder)
    return answer


def check_answer(arguments: tuple[str, ...], answer: Answer) -> None:
    assert answer.code in (0, 1, 2), (arguments, answer)
    assert "Traceback" not in answer.err, (arguments, answer.err)
    lines = answer.err.splitlines()
    assert len(lines) <= MOST_LINES, (arguments, answer.err)
    if answer.code == 2 or (answer.code == 1 and not answer.out):
        assert answer.err.strip(), (arguments, answer)
    if "--json" in arguments and answer.code == 0 and answer.out:
        check_json(json.loads(answer.out, parse_constant=_refuse), arguments)


def check_json(answer: Any, where: Any) -> None:
    """No number of a budget is negative."""
    if isinstance(answer, dict):
        for key, value in answer.items():
            if "epsilon" in str(key) and isinstance(value, int | float):
                assert 0 <= value < math.inf, (where, key, value)
            check_json(value, where)


def check_files(folder: Path) -> None:
    """Nothing is half written: no remains, and every file that a command made can be read."""
    for path in folder.rglob("*"):
        assert not path.name.startswith("."), path
    made = folder / "made.json"
    if made.is_file():
        certificate = Certificate.load(made)
        assert verify(certificate).holds
        statement = certificate.statement
        assert 0 <= statement["spent"] <= certificate.guarantee.bound < math.inf
        assert 0 <= statement["noise"]["std"] < math.inf
        check_json(statement, made)


def _refuse(text: str) -> float:
    raise AssertionError(text)
