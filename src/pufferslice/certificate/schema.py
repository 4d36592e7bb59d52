# SPDX-License-Identifier: Apache-2.0
"""The shape of a statement read from a file: what must be there before anything is computed."""

from collections.abc import Mapping
from typing import Any, Final

from pufferslice._core.text import quoted
from pufferslice.certificate.limits import CONDITIONS, LIMITS
from pufferslice.errors import CertificateError
from pufferslice.learning.accountants import ACCOUNTANTS
from pufferslice.learning.plan import HYPOTHESES
from pufferslice.queries.ranges import range_of

CHANGED: Final = "It was changed or is damaged: get the original, or certify again"
"""What a reader can do about a statement or evidence that nobody issued."""

_LARGEST: Final = 10**150

_NUMBER: Final = (int, float)
_MAYBE_NUMBER: Final = (int, float, type(None))

_GUARANTEE: Final = {"notion": str, "order": _NUMBER, "epsilon": _NUMBER}
_APPROXIMATE: Final = {"notion": str, "epsilon": _NUMBER, "delta": _NUMBER}
_SAMPLING: Final = {
    "band": (str, type(None)),
    "tails": (str, type(None)),
    "delta_of_tails": _MAYBE_NUMBER,
    "noise_shares": (dict, type(None)),
}
_SHARES: Final = {"distribution": _NUMBER, "sampling": _NUMBER, "slicing": _NUMBER}
_VIEWS: Final = [{"scope": str, "rule": str, "epsilon": _NUMBER, "delta": _NUMBER}]

_STATIC: Final = {
    "road": str,
    "scenario": {
        "distribution": str,
        "one_release_is": str,
        "secret": dict,
        "secrets": [str],
        "pairs": [[str]],
        "priors": [{"name": str, "source": str, "kind": str, "origin": str}],
        "query": {
            "kind": str,
            "level": str,
            "names": [str],
            "columns": [str],
            "parameters": dict,
            "range": (dict, type(None)),
            "scales": [_NUMBER],
            "missing": str,
        },
        "rows_dropped": int,
        "counted_range": (dict, type(None)),
        "clipped": {"all": [str], "some": [str]},
    },
    "guarantee": dict,
    "method": {"rule": str, "envelope": str},
    "spent_epsilon": _NUMBER,
    "distributions_are_equal": bool,
    "noise": {
        "family": str,
        "std": _NUMBER,
        "calibrated": bool,
        "std_by_coordinate": [_NUMBER],
        "grid": _NUMBER,
        "generator": str,
        "secure": bool,
        "implementation_delta": _NUMBER,
    },
    "profile": {
        "kind": str,
        "dim": int,
        "n_directions": int,
        "effective_slices": _NUMBER,
        "largest_weight": _NUMBER,
        "digest": str,
    },
    "failure_probability": _NUMBER,
    "sampling": (dict, type(None)),
    "unsliced": {"order": _NUMBER, "epsilon": _MAYBE_NUMBER, "from": str, "guess": _MAYBE_NUMBER},
    "deltas": [_NUMBER],
    "views": _VIEWS,
    "earlier_releases": [str],
    "limits": [str],
    "evidence_digest": str,
}
_LEARNING: Final = {
    "road": str,
    "data": str,
    "runs": [dict],
    "guarantee": _GUARANTEE,
    "certifies": [str],
    "draws_may_be_seen": [str],
    "noise": [str],
    "implementation_delta": _NUMBER,
    "failure_probability": _NUMBER,
    "deltas": [_NUMBER],
    "views": _VIEWS,
    "one_record": {
        "adjacency": str,
        "accountants": [str],
        "order": _NUMBER,
        "epsilon": _NUMBER,
        "delta": _NUMBER,
        "epsilon_at_delta": _MAYBE_NUMBER,
        "conditions": [str],
    },
    "hypotheses": [str],
    "limits": [str],
}

_ACCOUNTANTS: Final = {accountant.name for accountant in ACCOUNTANTS}

_RUN: Final = {
    "n_steps": int,
    "noise_multipliers": [_NUMBER],
    "accountant": str,
    "sampling": dict,
    "clipping": dict,
}


def check_shape(statement: object) -> dict[str, Any]:
    """A statement has exactly the parts of its road, each of its kind."""
    if isinstance(statement, dict) and statement.get("road") == "learning":
        _check(statement, _LEARNING, "statement")
        _check_runs(statement["runs"])
        _check_codes(statement)
        return statement
    _check(statement, _STATIC, "statement")
    if isinstance(statement, dict) and statement["road"] == "static":
        _check_secret(statement["scenario"]["secret"])
        _check_coordinates(statement["scenario"]["query"], statement["noise"])
        _check_claim(statement)
        return statement
    msg = f"the statement of a certificate must name its road, static or learning. {CHANGED}"
    raise CertificateError(msg)


def _check(value: object, shape: Any, where: str) -> None:  # noqa: ANN401 - a nested template
    if isinstance(shape, dict):
        if not isinstance(value, dict) or set(value) != set(shape):
            found = set(value) if isinstance(value, dict) else set()
            wrong = ", ".join(sorted(map(str, found ^ set(shape))))
            msg = f"{where} must have exactly its parts; wrong: {wrong}. {CHANGED}"
            raise CertificateError(msg)
        for key, part in shape.items():
            _check(value[key], part, f"{where}.{key}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            msg = f"{where} must be a list, got {type(value).__name__}. {CHANGED}"
            raise CertificateError(msg)
        for index, one in enumerate(value):
            _check(one, shape[0], f"{where}[{index}]")
    elif not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        msg = f"{where} is of the wrong kind, {type(value).__name__}. {CHANGED}"
        raise CertificateError(msg)
    elif isinstance(value, int | float) and not -_LARGEST < value < _LARGEST:
        msg = f"{where} is no number that a certificate can have. {CHANGED}"
        raise CertificateError(msg)


def _check_claim(statement: Mapping[str, Any]) -> None:
    """The parts that have two shapes: an order or a delta, exact or sampled."""
    said, sampling = statement["guarantee"], statement["sampling"]
    _check(said, _APPROXIMATE if "delta" in said else _GUARANTEE, "statement.guarantee")
    if sampling is not None:
        _check(sampling, _SAMPLING, "statement.sampling")
        if sampling["noise_shares"] is not None:
            _check(sampling["noise_shares"], _SHARES, "statement.sampling.noise_shares")


def _check_codes(statement: Mapping[str, Any]) -> None:
    """A code without a wording cannot be shown, so a certificate that has one is not read."""
    for name, codes, wording in (
        ("hypotheses", statement["hypotheses"], HYPOTHESES),
        ("limits", statement["limits"], LIMITS),
        ("one_record.conditions", statement["one_record"]["conditions"], CONDITIONS),
        ("one_record.accountants", statement["one_record"]["accountants"], _ACCOUNTANTS),
    ):
        unknown = [code for code in codes if code not in wording]
        if unknown:
            msg = (
                f"statement.{name} has a code that this program does not know, "
                f"{quoted(unknown[0])}. Use the program that issued it, or get the original"
            )
            raise CertificateError(msg)


def _check_runs(runs: list[dict[str, Any]]) -> None:
    """What a run is described by; the rest of its plan is read when it is verified."""
    for index, run in enumerate(runs):
        where = f"statement.runs[{index}]"
        _check({name: run.get(name) for name in _RUN}, _RUN, where)
        for name in ("sampling", "clipping"):
            _check(run[name].get("kind"), str, f"{where}.{name}.kind")
        if not run["noise_multipliers"]:
            msg = f"{where}.noise_multipliers must not be empty. {CHANGED}"
            raise CertificateError(msg)


def _check_coordinates(query: Mapping[str, Any], noise: Mapping[str, Any]) -> None:
    """A name, a scale and a noise for each coordinate, and a range of as many."""
    n_names = len(query["names"])
    lengths = {len(query["scales"]), len(noise["std_by_coordinate"])}
    for name, part in (query["range"] or {}).items():
        if name != "kind":
            shape = [_NUMBER] if isinstance(part, list) else _NUMBER
            _check(part, shape, f"statement.scenario.query.range.{name}")
    try:
        public_range = None if query["range"] is None else range_of(query["range"])
    except (KeyError, TypeError, ValueError):
        public_range, lengths = None, set()
    if public_range is not None:
        lengths |= {public_range.dim}
    if lengths != {n_names}:
        msg = f"names, scales, range and noise must be of one number of coordinates. {CHANGED}"
        raise CertificateError(msg)


def _check_secret(secret: Mapping[str, Any]) -> None:
    columns = secret.get("columns")
    named = isinstance(columns, list) and all(isinstance(column, str) for column in columns)
    if not named and not isinstance(secret.get("worlds"), str):
        msg = f"statement.scenario.secret must name columns or worlds. {CHANGED}"
        raise CertificateError(msg)
