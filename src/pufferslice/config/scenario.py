# SPDX-License-Identifier: Apache-2.0
"""scenario.toml and the values it stands for; flags of the command line use the same code."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import attrs
import numpy as np
import pyarrow as pa

from pufferslice import data, queries
from pufferslice._core.checks import check_one_of
from pufferslice._core.files import read_bytes
from pufferslice.calibration.calibrate import RULES, Method
from pufferslice.calibration.guarantee import ApproximateGuarantee, Claim, Guarantee
from pufferslice.certificate.issue import DEFAULT_DELTAS
from pufferslice.config.toml import (
    Document,
    Sections,
    check_sections,
    number,
    parsed_toml,
    required,
    section,
    word,
)
from pufferslice.data import Frame, frame_of, read_table, without_missing
from pufferslice.errors import ArgumentError
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
from pufferslice.queries.query import RangeLike
from pufferslice.queries.statistics import STATISTICS
from pufferslice.scenario.distributions import GaussianDistribution
from pufferslice.scenario.histograms import Histograms
from pufferslice.scenario.priors import LAWS, SOURCES, Bootstrap, Source
from pufferslice.scenario.scenario import Pairs, Scenario
from pufferslice.scenario.secrets import Bins
from pufferslice.sensitivity import RowScan, scan_files, streamed_scenario
from pufferslice.sensitivity.concentration import BANDS, BandKind
from pufferslice.sensitivity.profiles import FiniteProfile, Profile, SampledSphere
from pufferslice.sensitivity.sensitivity import ENVELOPES


class Shape(NamedTuple):
    """A kind of value, in words, and how it is told."""

    words: str
    fits: Callable[[Any], bool]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: object, inner: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and all(map(inner, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_numbers(value: object) -> bool:
    return _is_list(value, _is_number)


def _are_texts(value: object) -> bool:
    return _is_list(value, _is_text)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


TEXT: Final = Shape("a text", _is_text)
TEXTS: Final = Shape("a list of texts", _are_texts)
NUMBER: Final = Shape("a number", _is_number)
NUMBERS: Final = Shape("a list of numbers", _are_numbers)
LEVELS: Final = Shape(
    "a number or a list of numbers", lambda value: _is_number(value) or _are_numbers(value)
)
SCALES: Final = Shape(
    "a list of numbers, or a number for each name",
    lambda value: _are_numbers(list(value.values()) if _is_table(value) else value),
)
BLOCKS: Final = Shape("a list of lists of numbers", lambda value: _is_list(value, _are_numbers))
ROWS: Final = Shape(
    "a list of lists of numbers, all of one length",
    lambda value: BLOCKS.fits(value) and len({len(row) for row in value}) < 2,
)
PAIRS: Final = Shape(
    "'all' or a list of pairs of texts",
    lambda value: _is_text(value) or _is_list(value, _are_texts),
)
TABLE: Final = Shape("a table, as { key = value }", _is_table)
TABLES: Final = Shape("a list of tables", lambda value: _is_list(value, _is_table))

SHAPES: Final[Mapping[str, Mapping[str, Shape]]] = {
    "data": {"path": TEXT, "dataset": TEXT, "null_values": TEXTS, "missing": TEXT, "bins": NUMBER},
    "secret": {"column": TEXT, "columns": TEXTS, "bins": TABLE, "pairs": PAIRS},
    "secret.bins": {"column": TEXT, "quantiles": NUMBER},
    "query": {
        "distribution": TEXT, "mean": TEXTS, "std": TEXTS, "rate": TABLES, "quantile": TABLES,
        "count_share": NUMBER, "columns": TEXTS, "flags": TABLES, "model": TABLE, "range": TABLE,
        "scales": SCALES,
    },
    "query.range": {"low": NUMBERS, "high": NUMBERS, "center": NUMBERS, "radius": NUMBER},
    "query.rate": {"column": TEXT},
    "query.flags": {"column": TEXT},
    "query.quantile": {"column": TEXT, "level": LEVELS},
    "query.model": {"kind": TEXT},
    "bootstrap": {"n_replicates": NUMBER, "seed": NUMBER},
    "prior": {"source": TEXT, "kind": TEXT, "band": TEXT},
    "profile": {
        "kind": TEXT, "n_directions": NUMBER, "seed": NUMBER, "n_sets": NUMBER, "blocks": BLOCKS,
        "directions": ROWS, "weights": NUMBERS,
    },
    "guarantee": {
        "claim": TEXT, "notion": TEXT, "order": NUMBER, "epsilon": NUMBER, "delta": NUMBER,
        "deltas": NUMBERS, "failure_probability": NUMBER,
    },
    "calibration": {"rule": TEXT, "envelope": TEXT, "noise_std": NUMBER},
}  # fmt: skip
"""By section, and by table inside a section."""

_GAUSSIAN: Final = {"mean": NUMBERS, "cov": ROWS}


def check_shapes(document: Document) -> None:
    """Every value is of its kind; what a value may be is checked where it is used."""
    for name, shapes in SHAPES.items():
        outer, _, inner = name.partition(".")
        values = document.get(outer, {})
        tables = values.get(inner, {}) if inner else values
        for table in tables if isinstance(tables, list | tuple) else [tables]:
            _check(name, table, shapes)
    for world, path in document.get("worlds", {}).items():
        _check("worlds", {world: path}, {world: TEXT})
    for world, distribution in document.get("gaussian", {}).items():
        _check("gaussian", {world: distribution}, {world: TABLE})
        _check(f"gaussian.{world}", distribution, _GAUSSIAN)


def _check(where: str, values: Mapping[str, Any], shapes: Mapping[str, Shape]) -> None:
    for key, shape in shapes.items():
        if key in values and not shape.fits(values[key]):
            msg = f"[{where}] {key} must be {shape.words}, got {_short(values[key])}"
            raise ArgumentError(msg)


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


CLAIMS: Final = ("srpp", "epsilon_delta")
"""A Rényi claim, or sliced (epsilon, delta)."""

PROFILES: Final = ("uniform", "sphere", "axes", "orthogonal", "blocks", "given")


def target_of(document: Document) -> Claim:
    """What is claimed; the word `claim` decides, and the numbers must be those of that claim."""
    said = section(document, "guarantee")
    claim = word(said.get("claim", "srpp"), "claim")
    check_one_of(CLAIMS, claim=claim)
    notion = word(required(said, "guarantee", "notion"), "notion")
    epsilon = number(required(said, "guarantee", "epsilon"), "epsilon")
    if claim == "srpp":
        if "delta" in said:
            msg = (
                "delta belongs to claim 'epsilon-delta'; say that claim, or give the deltas of the "
                "(epsilon, delta) views as deltas = [...]"
            )
            raise ArgumentError(msg)
        order = number(required(said, "guarantee", "order"), "order")
        return Guarantee(notion=notion, order=order, epsilon=epsilon)  # type: ignore[arg-type]
    if "order" in said:
        msg = "claim 'epsilon-delta' has no order; leave order out, or claim srpp"
        raise ArgumentError(msg)
    delta = number(required(said, "guarantee", "delta"), "delta")
    return ApproximateGuarantee(notion=notion, epsilon=epsilon, delta=delta)  # type: ignore[arg-type]


def failure_probability_of(document: Document) -> float | None:
    """The failure probability, if the file says one."""
    said = section(document, "guarantee")
    if "failure_probability" not in said:
        return None
    return number(said["failure_probability"], "failure_probability")


def noise_std_of(document: Document) -> float | None:
    """A noise of the user's own, if the file says one."""
    said = section(document, "calibration")
    return number(said["noise_std"], "noise_std") if "noise_std" in said else None


def band_of(document: Document) -> BandKind:
    """How sampled distributions are bounded."""
    band = word(section(document, "prior").get("band", "order_statistics"), "band")
    check_one_of(BANDS, band=band)
    return band  # type: ignore[return-value]


def profile_of(document: Document, dim: int) -> Profile:
    """The slices: those that are listed or drawn, or the whole sphere."""
    said = section(document, "profile")
    kind = word(said.get("kind", "given" if "directions" in said else "uniform"), "kind")
    check_one_of(PROFILES, kind=kind)
    if kind == "axes":
        return FiniteProfile.axes(dim=dim)
    if kind == "given":
        return _given(said)
    seed = required(said, "profile", "seed")
    if kind == "orthogonal":
        n_sets = required(said, "profile", "n_sets")
        return FiniteProfile.orthogonal(dim=dim, n_sets=n_sets, seed=seed)
    n_directions = required(said, "profile", "n_directions")
    if kind == "sphere":
        return SampledSphere.draw(dim=dim, n_directions=n_directions, seed=seed)
    if kind == "blocks":
        blocks = required(said, "profile", "blocks")
        return FiniteProfile.blocks(dim=dim, blocks=blocks, n_directions=n_directions, seed=seed)
    return FiniteProfile.uniform(dim=dim, n_directions=n_directions, seed=seed)


def _given(said: Document) -> FiniteProfile:
    rows = required(said, "profile", "directions")
    if "weights" not in said:
        return FiniteProfile.of(rows)
    return FiniteProfile(directions=rows, weights=said["weights"])


def method_of(document: Document) -> Method | None:
    """Rule and envelope, or none where the file leaves the choice to the library."""
    said = section(document, "calibration")
    if not set(said) - {"noise_std"}:
        return None
    rule = word(said.get("rule", "tight"), "rule")
    check_one_of(RULES, rule=rule)
    default = "worst_gap" if rule == "closed_form" else "transport"
    if document.get("gaussian") and rule == "tight":
        default = "exact"
    envelope = word(said.get("envelope", default), "envelope")
    check_one_of(ENVELOPES, envelope=envelope)
    return Method(rule=rule, envelope=envelope)  # type: ignore[arg-type]


SECTIONS: Final[Sections] = {
    "data": frozenset({"path", "dataset", "null_values", "missing", "bins"}),
    "secret": frozenset({"column", "columns", "bins", "pairs"}),
    "query": frozenset(
        {"distribution", "mean", "std", "rate", "quantile", "count_share", "columns", "flags",
         "model", "range", "scales"}
    ),
    "bootstrap": frozenset({"n_replicates", "seed"}),
    "worlds": frozenset(),
    "gaussian": frozenset(),
    "prior": frozenset({"source", "kind", "band"}),
    "profile": frozenset({"kind", "n_directions", "seed", "n_sets", "blocks", "directions",
                          "weights"}),
    "guarantee": frozenset({"claim", "notion", "order", "epsilon", "delta", "deltas",
                            "failure_probability"}),
    "calibration": frozenset({"rule", "envelope", "noise_std"}),
}  # fmt: skip
"""Sections and their keys; `worlds` and `gaussian` have one key per secret."""

_DATASETS: Final[Mapping[str, Callable[[], pa.Table]]] = {
    "adult": data.adult,
    "adult_complete": data.adult_complete,
}
"""Tables by name, which ship with the library."""

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
    profile: Profile
    target: Claim
    failure_probability: float | None
    """None where the file says none: exact distributions along a finite profile need none."""
    band: BandKind
    method: Method | None
    """None where the file leaves the choice to the library."""
    deltas: tuple[float, ...]
    noise_std: float | None
    """A noise of the user's own, in scaled coordinates; None where the claim decides."""
    table: pa.Table | None
    """The data that the scenario was made from; none for worlds and for streamed data."""
    null_values: tuple[str, ...]
    """Texts that mean a missing value in files."""

    @property
    def without_table(self) -> str:
        """Why there is no table, in the words of an error."""
        if self.scenario.rule is None:
            return "distribution 'worlds' has no table of its own"
        return "streamed data were counted and not kept, so there is no table"

    def complete_table(self) -> Frame:
        """The table as the scenario saw it: without the rows that lack a value."""
        scenario = self.scenario
        if self.table is None or scenario.rule is None:
            msg = f"{self.without_table}; give the rows"
            raise ArgumentError(msg)
        read = dict.fromkeys((*scenario.rule.columns, *scenario.query.columns))
        return without_missing(frame_of(self.table), list(read), scenario.query.missing)[0]


Scan = Callable[[Path, RowScan], Histograms]
"""Counts the rows of files; how many processes do it changes nothing in the result."""


def read_request(path: str | os.PathLike[str], scan: Scan = scan_files) -> Request:
    """Read scenario.toml; paths inside it are relative to its folder."""
    try:
        document = parsed_toml(read_bytes(path, "settings"))
    except ValueError as error:
        msg = f"{str(path)!r} is not TOML: {error}"
        raise ArgumentError(msg) from error
    return request_of(document, Path(path).parent, scan)


def request_of(document: Document, folder: Path, scan: Scan = scan_files) -> Request:
    """The values that a document stands for."""
    check_document(document)
    query = query_of(document)
    profile = profile_of(document, query.dim)
    table = None
    if "bins" in section(document, "data"):
        scenario = _streamed(document, folder, (query, profile), scan)
    else:
        table = None if _distribution(document) == "worlds" else _table(document, folder)
        scenario = _scenario(document, folder, query, table)
    return Request(
        scenario=scenario.with_sampled_priors() if _kind(document) == "sampled" else scenario,
        profile=profile,
        target=target_of(document),
        failure_probability=failure_probability_of(document),
        band=band_of(document),
        method=method_of(document),
        deltas=tuple(section(document, "guarantee").get("deltas", DEFAULT_DELTAS)),
        noise_std=noise_std_of(document),
        table=table,
        null_values=tuple(section(document, "data").get("null_values", ())),
    )


def _kind(document: Document) -> str:
    """Whether the data are the prior or a sample of it; streamed data must say."""
    prior = section(document, "prior")
    if "bins" in section(document, "data") and "kind" not in prior:
        msg = (
            "streamed data must say what they are: [prior] kind = 'empirical' (the rows are the "
            "prior) or 'sampled' (the rows are a sample of it); --prior on the command line"
        )
        raise ArgumentError(msg)
    kind = word(prior.get("kind", "empirical"), "kind")
    check_one_of(("empirical", "sampled"), kind=kind)
    return kind


def _streamed(
    document: Document, folder: Path, said: tuple[Query, Profile], scan: Scan
) -> Scenario:
    query, profile = said
    distribution, data = _distribution(document), section(document, "data")
    if distribution != "records" or "path" not in data:
        msg = (
            "data are streamed (bins) for distribution 'records', from path; got distribution "
            f"{distribution!r}. Leave bins out to read a table whole"
        )
        raise ArgumentError(msg)
    _kind(document)
    rows = RowScan.of(
        query,
        secret=_secret(section(document, "secret")),
        profile=profile,
        n_bins=data["bins"],
        null_values=data.get("null_values", ()),
    )
    return streamed_scenario(
        scan(folder / data["path"], rows),
        rows,
        pairs=_pairs(document),
        source=_source(document) or "released_data",
    )


def _pairs(document: Document) -> Pairs:
    pairs = section(document, "secret").get("pairs", "all")
    if isinstance(pairs, str):
        return pairs  # type: ignore[return-value]
    return [tuple(pair) for pair in pairs]


def _source(document: Document) -> Source | None:
    prior = section(document, "prior")
    source = word(prior["source"], "source") if "source" in prior else None
    if source is not None:
        check_one_of(SOURCES, source=source)
    return source  # type: ignore[return-value]


def check_document(document: Document) -> None:
    """Only known sections and keys of a scenario file, and values of the kind that they take."""
    query = document.get("query")
    if isinstance(query, Mapping) and "median" in query:
        msg = (
            '[query] has no median; write quantile = [{ column = "age", level = 0.5 }]. It has '
            f"{', '.join(STATISTICS)}; anything else is a table_function in Python"
        )
        raise ArgumentError(msg)
    check_sections(document, SECTIONS)
    check_shapes(document)


def query_of(document: Document) -> Query:
    """The query that a document describes, with range, scales and missing-value policy."""
    said = section(document, "query")
    query = _bare_query(said)
    if "range" in said:
        query = query.with_range(_range(said["range"]))
    if "scales" in said:
        query = query.with_scales(said["scales"])
    return query.with_missing(section(document, "data").get("missing", "refuse"))


def _bare_query(said: Document) -> Query:
    if "model" in said:
        return _model(said["model"])
    if "columns" in said or "flags" in said:
        flags = _conditions(said.get("flags", []), "flags")
        return columns(said.get("columns", []), flags=flags or None)
    # In the order of the file, which is that of the coordinates.
    statistics: dict[str, Any] = {key: said[key] for key in said if key in STATISTICS}
    if "rate" in said:
        statistics["rate"] = _conditions(said["rate"], "rate")
    if "quantile" in said:
        statistics["quantile"] = [
            tuple(required(entry, "query.quantile", key) for key in ("column", "level"))
            for entry in said["quantile"]
        ]
    return summary(**statistics)


def _conditions(entries: Sequence[Document], where: str) -> list[tuple[str, Condition]]:
    found = []
    for entry in entries:
        column = required(entry, f"query.{where}", "column")
        kinds = [key for key in entry if key != "column"]
        if len(kinds) != 1 or kinds[0] not in _CONDITIONS:
            known = ", ".join(_CONDITIONS)
            msg = f"query.{where} for {column!r} needs one condition of {known}; got {kinds}"
            raise ArgumentError(msg)
        found.append((column, _CONDITIONS[kinds[0]](entry[kinds[0]])))
    return found


def _model(said: Document) -> Query:
    kind = word(required(said, "query.model", "kind"), "kind")
    check_one_of(_MODELS, kind=kind)
    rest = {key: value for key, value in said.items() if key != "kind"}
    builder: Callable[..., Query] = getattr(queries, kind)
    try:
        return builder(**rest)
    except TypeError as error:
        msg = f"query.model of kind {kind!r} cannot be made: {error}"
        raise ArgumentError(msg) from None


def _range(said: Document) -> RangeLike:
    """By position (low and high, or center and radius), or by name."""
    if set(said) == {"low", "high"}:
        return Box(low=said["low"], high=said["high"])
    if set(said) == {"center", "radius"}:
        return Ball(center=said["center"], radius=said["radius"])
    if set(said) & {"low", "high", "center", "radius"}:
        msg = (
            "query.range needs low and high, or center and radius, or a low and a high end for "
            f"each coordinate by name; got {sorted(said)}"
        )
        raise ArgumentError(msg)
    return said


def _distribution(document: Document) -> str:
    distribution = word(
        required(section(document, "query"), "query", "distribution"), "distribution"
    )
    check_one_of(LAWS, distribution=distribution)
    return distribution


def _table(document: Document, folder: Path) -> pa.Table:
    said = section(document, "data")
    if ("path" in said) == ("dataset" in said):
        msg = "[data] needs either path or dataset"
        raise ArgumentError(msg)
    if "dataset" in said:
        name = word(said["dataset"], "dataset")
        check_one_of(tuple(_DATASETS), dataset=name)
        return _DATASETS[name]()
    return read_table(folder / said["path"], null_values=said.get("null_values", ()))


def _scenario(document: Document, folder: Path, query: Query, table: pa.Table | None) -> Scenario:
    source, chosen = _source(document), _pairs(document)
    distribution = _distribution(document)
    if table is None:
        worlds = _worlds(document, folder)
        return Scenario.from_worlds(worlds, query=query, pairs=chosen, source=source)
    said: dict[str, Any] = {
        "secret": _secret(section(document, "secret")),
        "query": query,
        "pairs": chosen,
        "source": source or "released_data",
    }
    if distribution == "bootstrap":
        bootstrap = section(document, "bootstrap")
        said["bootstrap"] = Bootstrap(
            n_replicates=required(bootstrap, "bootstrap", "n_replicates"),
            seed=required(bootstrap, "bootstrap", "seed"),
        )
        return Scenario.from_bootstrap(table, **said)
    return (Scenario.from_groups if distribution == "groups" else Scenario.from_records)(
        table, **said
    )


def _worlds(document: Document, folder: Path) -> dict[str, object]:
    tables, gaussians = document.get("worlds", {}), document.get("gaussian", {})
    if bool(tables) == bool(gaussians):
        msg = "'worlds' needs either [worlds], a file per world, or [gaussian.NAME] sections"
        raise ArgumentError(msg)
    if tables:
        nulls = section(document, "data").get("null_values", ())
        return {name: read_table(folder / path, null_values=nulls) for name, path in tables.items()}
    return {
        name: GaussianDistribution(
            mean=np.asarray(required(distribution, f"gaussian.{name}", "mean")),
            cov=np.asarray(required(distribution, f"gaussian.{name}", "cov")),
        )
        for name, distribution in gaussians.items()
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
        column=required(bins, "secret.bins", "column"),
        quantiles=required(bins, "secret.bins", "quantiles"),
    )
