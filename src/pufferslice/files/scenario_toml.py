# SPDX-License-Identifier: Apache-2.0
"""scenario.toml and the values it stands for; flags of the command line take the same road."""

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import attrs
import numpy as np
import pyarrow as pa

from pufferslice import datasets, queries
from pufferslice.calibration import ENVELOPES, RULES, Method
from pufferslice.certificate.issuing import DEFAULT_DELTAS
from pufferslice.checks import check_one_of
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.guarantee import Guarantee
from pufferslice.laws import GaussianLaw
from pufferslice.priors import LAWS, SOURCES, Bootstrap
from pufferslice.queries import (
    Ball,
    Box,
    Condition,
    Query,
    above,
    at_least,
    at_most,
    below,
    columns,
    equals,
    summary,
)
from pufferslice.scenario import Scenario
from pufferslice.secret import Bins
from pufferslice.slicing import FiniteProfile
from pufferslice.storage import read_bytes
from pufferslice.tables import Frame, frame_of, read_table, without_missing

Document = Mapping[str, Any]
"""A parsed scenario.toml, or the same made from flags."""

SECTIONS: Final[Mapping[str, frozenset[str]]] = {
    "data": frozenset({"path", "dataset", "null_values", "missing"}),
    "secret": frozenset({"column", "columns", "bins", "pairs"}),
    "query": frozenset(
        {"law", "mean", "std", "rate", "quantile", "count_share", "columns", "flags", "model",
         "range", "scales"}
    ),
    "bootstrap": frozenset({"n_replicates", "seed"}),
    "worlds": frozenset(),
    "gaussian": frozenset(),
    "prior": frozenset({"source", "kind"}),
    "profile": frozenset({"kind", "n_directions", "seed", "n_sets", "blocks", "directions",
                          "weights"}),
    "guarantee": frozenset({"notion", "order", "epsilon", "deltas"}),
    "calibration": frozenset({"rule", "envelope"}),
}  # fmt: skip
"""Sections and their keys; `worlds` and `gaussian` have one key per secret."""

_DATASETS: Final[Mapping[str, Callable[[], pa.Table]]] = {
    "adult": datasets.adult,
    "adult_complete": datasets.adult_complete,
}
_CONDITIONS: Final[Mapping[str, Callable[[Any], Condition]]] = {
    "equals": equals,
    "above": above,
    "at_least": at_least,
    "below": below,
    "at_most": at_most,
}
_MODELS: Final[tuple[str, ...]] = ("logistic_regression", "linear_svm", "forest_importances")


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class Request:
    """Everything that a scenario file asks for."""

    scenario: Scenario
    profile: FiniteProfile
    target: Guarantee
    method: Method | None
    """None where the file leaves the choice to the library."""
    deltas: tuple[float, ...]
    table: pa.Table | None
    """The data that the scenario was made from; none for worlds."""
    null_values: tuple[str, ...]
    """Texts that mean a missing value in files."""

    def complete_table(self) -> Frame:
        """The table as the scenario saw it: without the rows that lack a value."""
        scenario = self.scenario
        if self.table is None or scenario.rule is None:
            msg = "law 'worlds' has no table of its own"
            raise ArgumentError(msg)
        read = dict.fromkeys((*scenario.rule.columns, *scenario.query.columns))
        return without_missing(frame_of(self.table), list(read), scenario.query.missing)[0]


def read_request(path: str | os.PathLike[str]) -> Request:
    """Read scenario.toml; paths inside it are relative to its folder."""
    try:
        document = tomllib.loads(read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"{str(path)!r} is not TOML: {error}"
        raise ArgumentError(msg) from error
    return request_of(document, Path(path).parent)


def request_of(document: Document, folder: Path) -> Request:
    """The values that a document stands for."""
    check_document(document)
    query = query_of(document)
    law = _law(document)
    table = None if law == "worlds" else _table(document, folder)
    scenario = _scenario(document, folder, query, table)
    guarantee = _section(document, "guarantee")
    return Request(
        scenario=scenario,
        profile=_profile(document, scenario.dim),
        target=Guarantee(
            notion=_word(_required(guarantee, "guarantee", "notion")),  # type: ignore[arg-type]
            order=_number(_required(guarantee, "guarantee", "order"), "order"),
            epsilon=_number(_required(guarantee, "guarantee", "epsilon"), "epsilon"),
        ),
        method=_method(document),
        deltas=tuple(guarantee.get("deltas", DEFAULT_DELTAS)),
        table=table,
        null_values=tuple(_section(document, "data").get("null_values", ())),
    )


def check_document(document: Document) -> None:
    """Only known sections and keys; a misspelt key must not silently change a claim."""
    for name, section in document.items():
        if name not in SECTIONS:
            msg = f"unknown section [{name}]; known are {', '.join(SECTIONS)}"
            raise ArgumentError(msg)
        if not isinstance(section, Mapping):
            msg = f"[{name}] must be a section, got {type(section).__name__}"
            raise ArgumentError(msg)
        for key in section if SECTIONS[name] else ():
            if key not in SECTIONS[name]:
                known = ", ".join(sorted(SECTIONS[name]))
                msg = f"unknown key {key!r} in [{name}]; known are {known}"
                raise ArgumentError(msg)


def query_of(document: Document) -> Query:
    """The query that a document describes, with range, scales and missing-value policy."""
    said = _section(document, "query")
    query = _bare_query(said)
    if "range" in said:
        query = query.with_range(_range(said["range"]))
    if "scales" in said:
        query = query.with_scales(said["scales"])
    return query.with_missing(_section(document, "data").get("missing", "refuse"))


def _bare_query(said: Document) -> Query:
    if "model" in said:
        return _model(said["model"])
    if "columns" in said or "flags" in said:
        flags = _conditions(said.get("flags", []), "flags")
        return columns(said.get("columns", []), flags=flags or None)
    quantiles: dict[str, Any] = {}
    for entry in said.get("quantile", []):
        levels = _required(entry, "query.quantile", "level")
        quantiles[_required(entry, "query.quantile", "column")] = levels
    return summary(
        mean=said.get("mean", []),
        std=said.get("std", []),
        rate=_conditions(said.get("rate", []), "rate") or None,
        quantile=quantiles or None,
        count_share=said.get("count_share"),
    )


def _conditions(entries: Sequence[Document], where: str) -> list[tuple[str, Condition]]:
    found = []
    for entry in entries:
        column = _required(entry, f"query.{where}", "column")
        kinds = [key for key in entry if key != "column"]
        if len(kinds) != 1 or kinds[0] not in _CONDITIONS:
            known = ", ".join(_CONDITIONS)
            msg = f"query.{where} for {column!r} needs one condition of {known}; got {kinds}"
            raise ArgumentError(msg)
        found.append((column, _CONDITIONS[kinds[0]](entry[kinds[0]])))
    return found


def _model(said: Document) -> Query:
    kind = _word(_required(said, "query.model", "kind"))
    check_one_of(_MODELS, kind=kind)
    rest = {key: value for key, value in said.items() if key != "kind"}
    builder: Callable[..., Query] = getattr(queries, kind)
    try:
        return builder(**rest)
    except TypeError as error:
        msg = f"query.model of kind {kind!r} cannot be made: {error}"
        raise ArgumentError(msg) from error


def _range(said: Document) -> Box | Ball:
    if set(said) == {"low", "high"}:
        return Box(low=said["low"], high=said["high"])
    if set(said) == {"center", "radius"}:
        return Ball(center=said["center"], radius=said["radius"])
    msg = f"query.range needs low and high, or center and radius; got {sorted(said)}"
    raise ArgumentError(msg)


def _law(document: Document) -> str:
    law = _word(_required(_section(document, "query"), "query", "law"))
    check_one_of(LAWS, law=law)
    return law


def _table(document: Document, folder: Path) -> pa.Table:
    said = _section(document, "data")
    if ("path" in said) == ("dataset" in said):
        msg = "[data] needs either path or dataset"
        raise ArgumentError(msg)
    if "dataset" in said:
        name = _word(said["dataset"])
        check_one_of(tuple(_DATASETS), dataset=name)
        return _DATASETS[name]()
    return read_table(folder / said["path"], null_values=said.get("null_values", ()))


def _scenario(document: Document, folder: Path, query: Query, table: pa.Table | None) -> Scenario:
    prior = _section(document, "prior")
    kind = _word(prior.get("kind", "empirical"))
    check_one_of(("empirical", "sampled"), kind=kind)
    if kind == "sampled":
        msg = (
            "prior kind 'sampled' needs confidence bands, which this version does not have; "
            "'empirical' declares the sample itself to be the prior, and the certificate says so"
        )
        raise ScenarioError(msg)
    source = _word(prior["source"]) if "source" in prior else None
    if source is not None:
        check_one_of(SOURCES, source=source)
    pairs = _section(document, "secret").get("pairs", "all")
    chosen = pairs if isinstance(pairs, str) else [tuple(pair) for pair in pairs]
    law = _law(document)
    if table is None:
        worlds = _worlds(document, folder)
        return Scenario.from_worlds(worlds, query=query, pairs=chosen, source=source)  # type: ignore[arg-type]
    said: dict[str, Any] = {
        "secret": _secret(_section(document, "secret")),
        "query": query,
        "pairs": chosen,
        "source": source or "released_data",
    }
    if law == "bootstrap":
        bootstrap = _section(document, "bootstrap")
        said["bootstrap"] = Bootstrap(
            n_replicates=_required(bootstrap, "bootstrap", "n_replicates"),
            seed=_required(bootstrap, "bootstrap", "seed"),
        )
        return Scenario.from_bootstrap(table, **said)
    return (Scenario.from_groups if law == "groups" else Scenario.from_records)(table, **said)


def _worlds(document: Document, folder: Path) -> dict[str, object]:
    tables, gaussians = document.get("worlds", {}), document.get("gaussian", {})
    if bool(tables) == bool(gaussians):
        msg = "law 'worlds' needs either [worlds], a file per world, or [gaussian.NAME] sections"
        raise ArgumentError(msg)
    if tables:
        nulls = _section(document, "data").get("null_values", ())
        return {name: read_table(folder / path, null_values=nulls) for name, path in tables.items()}
    return {
        name: GaussianLaw(
            mean=np.asarray(_required(law, f"gaussian.{name}", "mean")),
            cov=np.asarray(_required(law, f"gaussian.{name}", "cov")),
        )
        for name, law in gaussians.items()
    }


def _secret(said: Document) -> str | list[str] | Bins:
    given = [key for key in ("column", "columns", "bins") if key in said]
    if len(given) != 1:
        msg = "[secret] needs exactly one of column, columns, bins"
        raise ArgumentError(msg)
    if given[0] != "bins":
        secret: str | list[str] = said[given[0]]
        return secret
    bins = said["bins"]
    return Bins(
        column=_required(bins, "secret.bins", "column"),
        quantiles=_required(bins, "secret.bins", "quantiles"),
    )


def _profile(document: Document, dim: int) -> FiniteProfile:
    said = _section(document, "profile")
    kind = _word(said.get("kind", "given" if "directions" in said else "uniform"))
    check_one_of(("uniform", "axes", "orthogonal", "blocks", "given"), kind=kind)
    if kind == "axes":
        return FiniteProfile.axes(dim=dim)
    if kind == "given":
        rows = _required(said, "profile", "directions")
        if "weights" not in said:
            return FiniteProfile.of(rows)
        return FiniteProfile(directions=rows, weights=said["weights"])
    seed = _required(said, "profile", "seed")
    if kind == "orthogonal":
        n_sets = _required(said, "profile", "n_sets")
        return FiniteProfile.orthogonal(dim=dim, n_sets=n_sets, seed=seed)
    n_directions = _required(said, "profile", "n_directions")
    if kind == "blocks":
        blocks = _required(said, "profile", "blocks")
        return FiniteProfile.blocks(dim=dim, blocks=blocks, n_directions=n_directions, seed=seed)
    return FiniteProfile.uniform(dim=dim, n_directions=n_directions, seed=seed)


def _method(document: Document) -> Method | None:
    said = _section(document, "calibration")
    if not said:
        return None
    rule = _word(said.get("rule", "tight"))
    check_one_of(RULES, rule=rule)
    default = "worst_gap" if rule == "closed_form" else "transport"
    if document.get("gaussian") and rule == "tight":
        default = "exact"
    envelope = _word(said.get("envelope", default))
    check_one_of(ENVELOPES, envelope=envelope)
    return Method(rule=rule, envelope=envelope)  # type: ignore[arg-type]


def _section(document: Document, name: str) -> Document:
    section: Document = document.get(name, {})
    return section


def _required(section: object, where: str, key: str) -> Any:  # noqa: ANN401 - a TOML value
    if not isinstance(section, Mapping) or key not in section:
        msg = f"[{where}] needs {key!r}"
        raise ArgumentError(msg)
    return section[key]


def _word(value: object) -> str:
    """A word of the vocabulary: files and flags may write it with hyphens."""
    if not isinstance(value, str):
        msg = f"expected a word, got {value!r}"
        raise ArgumentError(msg)
    return value.replace("-", "_")


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{name} must be a number, got {value!r}"
        raise ArgumentError(msg)
    return float(value)
