# SPDX-License-Identifier: Apache-2.0
"""The short form of `calibrate`: flags as the document that scenario.toml would be."""

from collections.abc import Mapping
from typing import Any

from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.profiles import WHOLE_SPHERE

_REQUIRED = ("secret", "distribution", "notion")
_COMPARISONS = {">=": "at_least", "<=": "at_most", "=": "equals", ">": "above", "<": "below"}
_KEYS = {
    "data": {
        "path": "data", "dataset": "dataset", "missing": "missing", "null_values": "null_value",
    },
    "prior": {"source": "source", "kind": "prior", "band": "band"},
    "profile": {"kind": "profile", "n_directions": "directions", "seed": "seed"},
    "guarantee": {
        "claim": "claim", "notion": "notion", "order": "order", "epsilon": "epsilon",
        "at_most": "guess", "total": "total", "failure_probability": "failure_probability",
    },
    "calibration": {
        "shape": "shape", "guard": "guard", "effort": "effort", "noise_std": "noise_std",
        "rule": "rule", "envelope": "envelope",
    },
}  # fmt: skip
"""Keys of the file whose value is that of a flag."""


def document_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a scenario file, from flags by their names."""
    if not ({"data", "dataset"} & set(flags)):
        raise ArgumentError(
            "give a scenario file, or --data FILE with --secret, --distribution and the other flags"
        )
    if "guess" in flags:
        flags = {"notion": "guess", **flags}
    claim = flags.get("claim", "").replace("-", "_")
    pair = claim == "epsilon_delta" or (not claim and "delta" in flags and "order" not in flags)
    required = [*_REQUIRED]
    if flags.get("notion") == "guess":
        required += ["guess"]
    else:
        required += ["epsilon", "delta" if pair else "order"]
    sliced = flags.get("notion") in ("joint", "average")
    drawn = flags.get("profile", "").replace("-", "_") != WHOLE_SPHERE
    if sliced and drawn:
        required += ["directions", "seed"]
    elif flags.get("distribution") == "bootstrap":
        required += ["seed"]
    absent = [f"--{name}" for name in required if name not in flags]
    if absent:
        raise ArgumentError(
            f"{', '.join(absent)}: required, because what is certified has no defaults"
        )
    document: dict[str, Any] = {
        section: {key: flags[flag] for key, flag in keys.items() if flag in flags}
        for section, keys in _KEYS.items()
    }
    if not {"profile", "directions"} & set(flags):
        del document["profile"]
    if "data" in flags:
        document["data"]["path"] = str(flags["data"])
    if "accuracy" in flags:
        document["calibration"]["accuracy"] = _widths(flags["accuracy"])
    if "delta" in flags and not pair:
        document["guarantee"]["deltas"] = flags["delta"]
    elif "delta" in flags:
        if len(flags["delta"]) != 1:
            raise ArgumentError(
                f"an (epsilon, delta) claim takes one --delta, got {len(flags['delta'])}"
            )
        document["guarantee"]["delta"] = flags["delta"][0]
    if flags["distribution"] == "bootstrap":
        document["bootstrap"] = {"n_replicates": flags["replicates"], "seed": flags["seed"]}
    columns = _names(flags["secret"])
    secret: dict[str, Any]
    if "quantiles" in flags:
        secret = {"bins": {"column": flags["secret"], "quantiles": flags["quantiles"]}}
    else:
        secret = {"column": columns[0]} if len(columns) == 1 else {"columns": columns}
    return document | {"secret": secret, "query": _query(flags)}


def _query(flags: Mapping[str, Any]) -> dict[str, Any]:
    query: dict[str, Any] = {"distribution": flags["distribution"]}
    if flags["distribution"] == "records" and "columns" not in flags:
        raise ArgumentError(
            "distribution 'records' needs --columns, the numeric columns of one row"
        )
    if flags["distribution"] != "records" and "columns" in flags:
        raise ArgumentError(
            "--columns is for distribution 'records'; otherwise use --mean, --std, --rate"
        )
    # The order of the command line is that of the coordinates.
    for name in flags:
        if name in ("columns", "mean", "std"):
            query[name] = _names(flags[name])
        if name == "rate":
            query["rate"] = [_condition(text) for text in flags["rate"]]
    if "scales" in flags:
        query["scales"] = _scales(flags["scales"])
    if "range" in flags and ("low" in flags or "high" in flags):
        raise ArgumentError("give either --range or --low and --high, not both")
    if "range" in flags:
        query["range"] = _intervals(flags["range"])
    elif "low" in flags or "high" in flags:
        query["range"] = {end: numbers(flags.get(end, ""), f"--{end}") for end in ("low", "high")}
    return query


def _condition(text: str) -> dict[str, Any]:
    """`income=>50K` is the column income with the value `>50K`; `gain>0` a comparison."""
    marks = [(text.find(mark), -len(mark), mark) for mark in _COMPARISONS if mark in text[1:]]
    if not marks:
        raise ArgumentError(f"--rate must be column=value, column>number or the like, got {text!r}")
    start, _, mark = min(marks)
    column, value = text[:start].strip(), text[start + len(mark) :].strip()
    if mark == "=":
        return {"column": column, "equals": value}
    return {"column": column, _COMPARISONS[mark]: _number(value, "--rate")}


def _scales(text: str) -> list[float] | dict[str, float]:
    """`10,0.1`: by position; `age=10,income=0.1`: by name."""
    named = _named(text, "--scales")
    if named is None:
        return numbers(text, "--scales")
    return {name: _number(value, "--scales") for name, value in named.items()}


def _widths(texts: list[str]) -> dict[str, float]:
    """`mean(age)=0.5` each; a name may hold `=` and commas."""
    widths: dict[str, float] = {}
    for text in texts:
        name, mark, value = text.rpartition("=")
        if not mark or not name.strip() or name.strip() in widths:
            raise ArgumentError(f"--accuracy must be name=half-width, each name once; got {text!r}")
        widths[name.strip()] = _number(value, "--accuracy")
    return widths


def _intervals(text: str) -> dict[str, list[float]]:
    """`17:90,0:40`: low and high end of each coordinate; `age=17:90,income=0:1`: by name."""
    named = _named(text, "--range")
    parts = [part.split(":") for part in (text.split(",") if named is None else named.values())]
    if any(len(part) != 2 for part in parts):
        raise ArgumentError(
            f"--range must be low:high for each coordinate, separated by commas; got {text!r}"
        )
    ends = [[_number(end, "--range") for end in part] for part in parts]
    if named is not None:
        return dict(zip(named, ends, strict=True))
    return {"low": [low for low, _ in ends], "high": [high for _, high in ends]}


def _named(text: str, flag: str) -> dict[str, str] | None:
    """Values by name, if the text has names; a name may hold `=`, its value may not."""
    if "=" not in text:
        return None
    named: dict[str, str] = {}
    for part in text.split(","):
        name, mark, value = part.rpartition("=")
        if not mark or not name.strip() or name.strip() in named:
            raise ArgumentError(
                f"{flag} must be name=value for each coordinate, each once; got {text!r}"
            )
        named[name.strip()] = value
    return named


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _number(text: str, flag: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentError(
            f"{flag} takes one number at a time, without separators; got {text!r}"
        ) from None


def numbers(text: str, flag: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError(f"{flag} must be numbers separated by commas, got {text!r}") from None
