# SPDX-License-Identifier: Apache-2.0
"""Scenario and training files of every kind as documents, their table, and TOML of any document."""

import json
import re
from typing import Any

PEOPLE = [("a", 31.5, 40.0), ("a", 29.0, 35.5), ("b", 36.0, 41.0), ("b", 35.0, 52.0),
          ("c", 40.0, 47.5), ("c", 42.25, 30.0), ("c", 39.0, 61.0)]  # fmt: skip

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")

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
    "data": {"path": "people.csv"},
    "secret": {"column": "site"},
    "query": {
        "distribution": "records",
        "columns": ["pay", "age"],
        "range": {"center": [35, 45], "radius": 40},
    },
    "profile": {"n_directions": 4, "seed": 7},
    "guarantee": {"notion": "average", "order": 2, "epsilon": 0.5},
}
SAMPLED: dict[str, Any] = {
    **RECORDS,
    "data": {"path": "many.parquet"},
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
    "guarantee": {"notion": "unsliced", "order": 4, "epsilon": 9.0},
    "calibration": {"shape": "diagonal", "accuracy": {"mean(pay)": 30.0, "mean(age)": 60.0}},
}
BOOTSTRAP: dict[str, Any] = {
    "data": {"path": "people.csv"},
    "secret": {"bins": {"column": "age", "quantiles": 2}},
    "query": {
        "distribution": "bootstrap",
        "mean": ["pay"],
        "quantile": [{"column": "pay", "level": 0.5}],
    },
    "bootstrap": {"n_replicates": 5, "seed": 3},
    "profile": {"kind": "orthogonal", "n_sets": 1, "seed": 7},
    "guarantee": {"notion": "joint", "order": 4, "epsilon": 1.0},
}
PREVALENCE: dict[str, Any] = {
    "data": {"path": "many.parquet"},
    "prevalence": {
        "property": {"column": "site", "equals": "a"}, "shares": [0.4, 0.5], "n_rows": 600,
        "design": "independent", "prior": "draws", "n_draws": 20, "seed": 7,
    },
    "secret": {"pairs": "all"},
    "query": {"distribution": "worlds", "mean": ["pay"], "rate": [{"column": "age", "above": 45}]},
    "prior": {"source": "released-data"},
    "guarantee": {"notion": "guess", "at_most": 0.64},
}  # fmt: skip
ATTRIBUTE: dict[str, Any] = {
    "attribute": {
        "name": "dose", "values": [1.0, 2.0, 4.0],
        "process": {"kernel": "exponential", "variance": 4, "length_scale": 3, "times": [9, 12]},
    },
    "secret": {"pairs": {"difference": 2}},
    "query": {"distribution": "worlds", "mean": ["pay"], "scales": {"pay": 5}},
    "prior": {"source": "public-model"},
    "guarantee": {"notion": "unsliced", "order": 4, "epsilon": 1.0},
}  # fmt: skip
SHARES: dict[str, Any] = {
    "data": {"path": "many.parquet"},
    "prevalence": {"property": {"column": "site", "equals": "a"}, "within": 0.05},
    "query": {
        "mean": ["pay"], "std": ["pay"], "rate": [{"column": "age", "above": 45}],
        "clip": {"pay": [20, 50]}, "missing": {"pay": 35},
    },
    "derived": {"std": ["pay"]},
    "guarantee": {"notion": "guess", "at_most": 0.64},
    "calibration": {"coupling": "independent"},
}  # fmt: skip
SUPPLIER: dict[str, Any] = {
    "data": {"path": "many.parquet"},
    "supplier": {"property": {"column": "site", "equals": "a"}, "ratio": 1.2, "up_to": 400},
    "query": {
        "total": ["pay"], "count": [{"column": "age", "above": 45}], "clip": {"pay": [20, 50]},
    },
    "guarantee": {"notion": "guess", "at_most": 0.64},
}  # fmt: skip
HISTORY: dict[str, Any] = {
    "attribute": {"name": "age", "history": "many.parquet", "bins": [42], "within": 3},
    "query": {"columns": ["pay"], "range": {"low": [0], "high": [100]}, "scales": {"pay": 10}},
    "guarantee": {"notion": "guess", "at_most": 0.7},
}
HOME: dict[str, Any] = {
    "occupancy": {
        "chain": [[0.9, 0.1], [0.2, 0.8]], "length": 12, "positions": {"first": 2, "every": 5},
        "loads": "many.parquet", "state": "site", "states": ["a", "b"],
        "periods": {"column": "week", "every": 6},
    },
    "query": {
        "by": [{"column": "week", "values": [1, 2]}], "total": ["pay"], "clip": {"pay": [0, 99]},
    },
    "guarantee": {"notion": "guess", "at_most": 0.64},
}  # fmt: skip
OCCUPANCY: dict[str, Any] = {
    "occupancy": {
        "chain": [[0.9, 0.1], [0.2, 0.8]], "length": 12, "positions": [3, [6, 8]],
        "start": [0.5, 0.5], "counted": [1], "windows": [[0, 12]],
    },
    "query": {"distribution": "worlds", "count": [{"column": "state", "equals": 1}]},
    "prior": {"source": "public-model"},
    "guarantee": {"notion": "guess", "at_most": 0.64},
}  # fmt: skip
VOLUME: dict[str, Any] = {
    "data": {"path": "many.parquet"},
    "volume": {"ratio": 1.05, "up_to": 700},
    "query": {
        "distribution": "worlds", "count": [{"column": "age", "above": 45}], "total": ["pay"],
        "clip": {"pay": [20, 50]},
    },
    "prior": {"source": "released-data"},
    "guarantee": {"notion": "guess", "at_most": 0.64},
}  # fmt: skip
SCENARIOS = {
    "groups": SCENARIO,
    "records": RECORDS,
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


def csv_text(rows: Any = PEOPLE, header: str = "site,pay,age") -> str:
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


def toml_text(document: Any) -> str:
    """A document as TOML with inline values; what TOML has no word for is written as text."""
    if not isinstance(document, dict):
        return f"value = {_toml(document)}\n"
    lines, sections = [], []
    for key, value in document.items():
        if isinstance(value, dict):
            sections.append(f"[{_key(key)}]")
            sections += [f"{_key(name)} = {_toml(inner)}" for name, inner in value.items()]
        else:
            lines.append(f"{_key(key)} = {_toml(value)}")
    return "\n".join([*lines, *sections]) + "\n"


def _key(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=True)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps("" if value is None else value, ensure_ascii=True)
