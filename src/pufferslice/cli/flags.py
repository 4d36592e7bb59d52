# SPDX-License-Identifier: Apache-2.0
"""Flags as the document that scenario.toml would be, so that both take one road."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pufferslice.errors import ArgumentError

_REQUIRED = ("secret", "distribution", "notion", "order", "epsilon", "directions", "seed")
_REQUIRED_APPROXIMATE = (
    "secret",
    "distribution",
    "notion",
    "epsilon",
    "delta",
    "directions",
    "seed",
)
_COMPARISONS = {">=": "at_least", "<=": "at_most", "=": "equals", ">": "above", "<": "below"}


def document_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a scenario file, from flags by their names."""
    if not ({"data", "dataset"} & set(flags)):
        msg = (
            "give a scenario file, or --data FILE with --secret, --distribution and the other flags"
        )
        raise ArgumentError(msg)
    approximate = flags.get("claim", "srpp").replace("-", "_") == "epsilon_delta"
    needed = _REQUIRED_APPROXIMATE if approximate else _REQUIRED
    absent = [f"--{name}" for name in needed if name not in flags]
    if absent:
        msg = f"{', '.join(absent)} must be said: what is certified has no defaults"
        raise ArgumentError(msg)
    document: dict[str, Any] = {
        "data": _data(flags),
        "secret": _secret(flags),
        "query": _query(flags),
        "prior": _prior(flags),
        "profile": {"n_directions": flags["directions"], "seed": flags["seed"]},
        "guarantee": _guarantee(flags, approximate=approximate),
    }
    if "profile" in flags:
        document["profile"]["kind"] = flags["profile"]
    if flags["distribution"] == "bootstrap":
        document["bootstrap"] = {"n_replicates": flags["replicates"], "seed": flags["seed"]}
    chosen = {name: flags[name] for name in ("rule", "envelope", "noise_std") if name in flags}
    return document | ({"calibration": chosen} if chosen else {})


def _prior(flags: Mapping[str, Any]) -> dict[str, Any]:
    prior = {"source": flags["source"]}
    if "prior" in flags:
        prior["kind"] = flags["prior"]
    if "band" in flags:
        prior["band"] = flags["band"]
    return prior


def _guarantee(flags: Mapping[str, Any], *, approximate: bool) -> dict[str, Any]:
    names = ("claim", "notion", "order", "epsilon", "failure_probability")
    said: dict[str, Any] = {name: flags[name] for name in names if name in flags}
    if "delta" in flags and not approximate:
        said["deltas"] = flags["delta"]
    elif "delta" in flags:
        if len(flags["delta"]) != 1:
            msg = f"--claim epsilon-delta has one --delta, got {len(flags['delta'])}; say it once"
            raise ArgumentError(msg)
        said["delta"] = flags["delta"][0]
    return said


def _data(flags: Mapping[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {"missing": flags["missing"]}
    if "data" in flags:
        data["path"] = str(Path(flags["data"]))
    if "dataset" in flags:
        data["dataset"] = flags["dataset"]
    if "bins" in flags:
        data["bins"] = flags["bins"]
    if "null_value" in flags:
        data["null_values"] = flags["null_value"]
    return data


def _secret(flags: Mapping[str, Any]) -> dict[str, Any]:
    if "quantiles" in flags:
        return {"bins": {"column": flags["secret"], "quantiles": flags["quantiles"]}}
    columns = _names(flags["secret"])
    return {"column": columns[0]} if len(columns) == 1 else {"columns": columns}


def _query(flags: Mapping[str, Any]) -> dict[str, Any]:
    query: dict[str, Any] = {"distribution": flags["distribution"]}
    if flags["distribution"] == "records" and "columns" not in flags:
        msg = "distribution 'records' needs --columns, the numeric columns of one row"
        raise ArgumentError(msg)
    if flags["distribution"] != "records" and "columns" in flags:
        msg = "--columns is for distribution 'records'; else use --mean, --std, --rate"
        raise ArgumentError(msg)
    # In the order of the command line, which is that of the coordinates.
    for name in flags:
        if name in ("columns", "mean", "std"):
            query[name] = _names(flags[name])
        if name == "rate":
            query["rate"] = [_condition(text) for text in flags["rate"]]
    if "scales" in flags:
        query["scales"] = _scales(flags["scales"])
    if "range" in flags and ("low" in flags or "high" in flags):
        msg = "give either --range or --low and --high, not both"
        raise ArgumentError(msg)
    if "range" in flags:
        query["range"] = _intervals(flags["range"])
    elif "low" in flags or "high" in flags:
        ends = (flags.get("low", ""), flags.get("high", ""))
        query["range"] = {
            "low": _numbers(ends[0], "--low"),
            "high": _numbers(ends[1], "--high"),
        }
    return query


def _condition(text: str) -> dict[str, Any]:
    """`income=>50K` is the column income with the value `>50K`; `gain>0` a comparison."""
    marks = [(text.find(mark), -len(mark), mark) for mark in _COMPARISONS if mark in text[1:]]
    if not marks:
        msg = f"--rate must be column=value, column>number or the like, got {text!r}"
        raise ArgumentError(msg)
    where = min(marks)
    column, mark = text[: where[0]].strip(), where[2]
    value = text[where[0] + len(mark) :].strip()
    if mark == "=":
        return {"column": column, "equals": value}
    return {"column": column, _COMPARISONS[mark]: _numbers(value, "--rate")[0]}


def _scales(text: str) -> list[float] | dict[str, float]:
    """`10,0.1`: by position; `age=10,income=0.1`: by name."""
    named = _named(text, "--scales")
    if named is None:
        return _numbers(text, "--scales")
    return {name: _numbers(value, "--scales")[0] for name, value in named.items()}


def _intervals(text: str) -> dict[str, list[float]]:
    """`17:90,0:40`: low and high end of each coordinate; `age=17:90,income=0:1`: by name."""
    named = _named(text, "--range")
    parts = [part.split(":") for part in (text.split(",") if named is None else named.values())]
    if any(len(part) != 2 for part in parts):
        msg = f"--range must be low:high for each coordinate, separated by commas; got {text!r}"
        raise ArgumentError(msg)
    ends = [[_numbers(end, "--range")[0] for end in part] for part in parts]
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
            msg = f"{flag} must be name=value for each coordinate, each once; got {text!r}"
            raise ArgumentError(msg)
        named[name.strip()] = value
    return named


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str, flag: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        msg = f"{flag} must be numbers separated by commas, got {text!r}"
        raise ArgumentError(msg) from None
