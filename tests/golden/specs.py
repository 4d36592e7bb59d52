# SPDX-License-Identifier: Apache-2.0
"""What the golden files are computed from: plain values from fixed seeds, no name of the library.

A spec is a dict of JSON values, made from its number alone.
"""

from typing import Any

import numpy as np

SEED = 20_261_117
N_SCENARIOS = 300
N_SHAPED = 12
N_PLANS = 40

Spec = dict[str, Any]

_GONE = "gone"
"""In the place of what is no longer made, so that all others keep their numbers."""
_GROUP = "group"
_SECRETS = ("a", "b", "c", "d", "e")


def scenario_specs() -> list[Spec]:
    """All scenarios; the kinds take turns."""
    turns = map(scenario_spec, range(N_SCENARIOS))
    return [
        *(spec for spec in turns if _GONE not in (spec["kind"], spec.get("way"))),
        *(shaped_spec(number) for number in range(N_SHAPED)),
    ]


def scenario_spec(number: int) -> Spec:
    """Scenario `number`, with its profile, its claim and how it is certified."""
    rng = np.random.default_rng([SEED, 1, number])
    kinds = list(_SCENARIOS)
    kind = kinds[number % len(kinds)]
    return {"kind": kind, **_SCENARIOS[kind](rng)}


def shaped_spec(number: int) -> Spec:
    """Scenario `number` with a claim about the whole output, and noise with a shape."""
    rng = np.random.default_rng([SEED, 4, number])
    kind = ["groups", "finite", "weighted", "gaussian", "resampled", "sampled"][number % 6]
    spec: Spec = {"dim": 1}
    while spec["dim"] == 1 or (kind == "sampled" and spec["query"]["range"] is None):
        spec = {"kind": kind, **_SCENARIOS[kind](rng), "method": None}
    epsilon = float(10 ** rng.uniform(-1, 1))
    claims = [
        {"notion": "unsliced", "order": 4.0, "epsilon": epsilon},
        {"notion": "unsliced", "epsilon": epsilon, "delta": 1e-5},
        {"notion": "guess", "at_most": float(rng.uniform(0.55, 0.8))},
    ]
    shapes = ["fitted", "diagonal", "fitted", np.diag(np.arange(1.0, 1 + spec["dim"])).tolist()]
    return spec | {"claim": claims[number % 3], "shape": shapes[number % 4]}


# Scenarios


def _groups(rng: np.random.Generator) -> Spec:
    """Point masses: statistics of every group, under one or several priors."""
    dim = _dim(rng)
    return _from_tables(rng, dim, _statistics(rng, dim))


def _records(rng: np.random.Generator) -> Spec:
    dim = _dim(rng)
    return _from_tables(rng, dim, {"columns": _names(dim)})


def _bootstrap(rng: np.random.Generator) -> Spec:
    dim = _dim(rng)
    spec = _from_tables(rng, dim, _statistics(rng, dim))
    return spec | {"n_replicates": int(rng.integers(2, 12)), "seed": int(rng.integers(1000))}


def _finite(rng: np.random.Generator) -> Spec:
    """Finite laws of equal or unequal sizes, all atoms alike."""
    dim, secrets = _dim(rng), _secrets(rng)
    same_size = int(rng.integers(1, 9)) if rng.random() < 0.5 else None
    laws = {
        one: {"atoms": _rows(rng, same_size or int(rng.integers(1, 9)), dim)} for one in secrets
    }
    return _declared(rng, dim, laws) | _exact(rng)


def _weighted(rng: np.random.Generator) -> Spec:
    """Finite laws with weights or with counts."""
    dim = _dim(rng)
    laws: dict[str, Spec] = {}
    for one in _secrets(rng):
        atoms = _rows(rng, int(rng.integers(1, 8)), dim)
        if rng.random() < 0.5:
            parts = rng.integers(1, 40, size=len(atoms))
            laws[one] = {"atoms": atoms, "weights": (parts / parts.sum()).tolist()}
        else:
            laws[one] = {"atoms": atoms, "counts": rng.integers(1, 50, size=len(atoms)).tolist()}
    spec = _declared(rng, dim, laws)
    if rng.random() < 0.3:
        parts = rng.integers(1, 9, size=len(laws))
        spec["probabilities"] = dict(zip(laws, (parts / parts.sum()).tolist(), strict=True))
    return spec | _exact(rng)


def _tables(rng: np.random.Generator) -> Spec:
    """Worlds that are tables, or lists of tables."""
    dim = _dim(rng)
    n_tables = int(rng.integers(1, 4))
    worlds = {one: [_world(rng, dim) for _ in range(n_tables)] for one in _secrets(rng)}
    return _asked(rng, dim, _statistics(rng, dim)) | {"worlds": worlds} | _exact(rng)


def _resampled(rng: np.random.Generator) -> Spec:
    """Worlds that are tables, drawn again with replacement."""
    dim = _dim(rng)
    worlds = {one: _world(rng, dim) for one in _secrets(rng)}
    seeds = {"n_replicates": int(rng.integers(2, 12)), "seed": int(rng.integers(1000))}
    return _asked(rng, dim, _statistics(rng, dim)) | {"worlds": worlds} | seeds | _exact(rng)


def _gaussian(rng: np.random.Generator) -> Spec:
    dim = _dim(rng)
    shared = _cov(rng, dim) if rng.random() < 0.5 else None
    laws = {
        one: {"mean": _rows(rng, 1, dim)[0], "cov": shared or _cov(rng, dim)}
        for one in _secrets(rng)
    }
    spec = _declared(rng, dim, laws, ranged=False)
    spec["claim"] = _renyi(rng, ("average", "joint", "unsliced"))
    return spec | {"deltas": _deltas(rng)}


def _sampled(rng: np.random.Generator) -> Spec:
    """Draws of laws: with a public range, or with the tails in delta."""
    dim, in_delta = _dim(rng), rng.random() < 0.3
    secrets = _secrets(rng, most=3)
    laws = {}
    for one in secrets:
        n_draws = int(rng.integers(200, 900))
        shift = rng.integers(-4, 5, size=dim) / 4
        laws[one] = {
            "draws": {"seed": int(rng.integers(2**31)), "n": n_draws, "shift": shift.tolist()}
        }
    spec = _declared(rng, dim, laws, ranged=False)
    # One in thirty Rényi claims has none, and is refused.
    if rng.random() < (0.5 if in_delta else 0.97):
        spec["query"]["range"] = _limits(rng, dim, (4.0, 8.0))
    spec["profile"] = _profile(rng, dim, most=3)
    spec["claim"] = _renyi(rng, ("average", "joint"))
    if in_delta:
        spec["claim"] = _approximate(rng, 0.2, 0.6)
    elif rng.random() < 0.15:
        spec["claim"] = _renyi(rng, ("unsliced",))
    return spec | _doubt(rng) | {"deltas": _deltas(rng), "method": _method(rng, spec["claim"])}


def _sphere(rng: np.random.Generator) -> Spec:
    """The whole sphere as profile, for point masses of groups."""
    dim = int(rng.integers(2, 5))
    spec = _from_tables(rng, dim, {"mean": _names(dim)}, n_priors=1)
    spec["query"]["range"] = _limits(rng, dim, (8.0, 40.0))
    n_directions = int(rng.integers(5, 200))
    spec["profile"] = {
        "way": "sphere",
        "n_directions": n_directions,
        "seed": int(rng.integers(2**31)),
    }
    spec["claim"] = _renyi(rng, ("average", "joint"))
    return spec | _doubt(rng) | {"method": _method(rng, spec["claim"])}


def _sampled_rows(rng: np.random.Generator) -> Spec:
    """Rows or replicates of a table that only tell of the prior."""
    dim = int(rng.integers(1, 4))
    way = str(rng.choice(["records", _GONE, "bootstrap"]))
    asked = {"mean": _names(dim)} if way == "bootstrap" else {"columns": _names(dim)}
    spec = _from_tables(rng, dim, asked, n_priors=1, n_rows=(150, 400))
    spec["query"]["range"] = _limits(rng, dim, (8.0, 16.0))
    spec["profile"] = _profile(rng, dim, most=3)
    spec["claim"] = _renyi(rng, ("average", "joint"))
    spec |= {"way": way, "n_replicates": 150}
    return spec | _doubt(rng) | {"seed": 5, "method": _method(rng, spec["claim"])}


_SCENARIOS = {
    "groups": _groups,
    "records": _records,
    "bootstrap": _bootstrap,
    "finite": _finite,
    "weighted": _weighted,
    "tables": _tables,
    "resampled": _resampled,
    "gaussian": _gaussian,
    "sampled": _sampled,
    _GONE: lambda _rng: {},
    "sphere": _sphere,
    "sampled_rows": _sampled_rows,
}


# What scenarios are made of


def _dim(rng: np.random.Generator) -> int:
    return int(rng.integers(1, 5))


def _names(dim: int) -> list[str]:
    return [f"x{i}" for i in range(dim)]


def _secrets(rng: np.random.Generator, most: int = 5) -> list[str]:
    return list(_SECRETS[: int(rng.integers(2, most + 1))])


def _pairs(rng: np.random.Generator, secrets: list[str]) -> Any:
    if rng.random() < 0.7 or len(secrets) < 3:
        return "all"
    every = [[a, b] for i, a in enumerate(secrets) for b in secrets[i + 1 :]]
    return [every[i] for i in sorted(rng.permutation(len(every))[: len(every) // 2 + 1].tolist())]


def _rows(rng: np.random.Generator, n: int, dim: int) -> list[list[float]]:
    """Ties and exact quarters, or plain normal numbers; a far point now and then."""
    if rng.random() < 0.4:
        rows = rng.integers(-12, 13, size=(n, dim)) / 4
    else:
        rows = rng.standard_normal((n, dim)) * [0.1, 1.0, 4.0][int(rng.integers(3))]
    if rng.random() < 0.2:
        rows[int(rng.integers(n)), int(rng.integers(dim))] += 30.0
    return rows.tolist()


def _world(rng: np.random.Generator, dim: int) -> dict[str, list[float]]:
    rows = np.array(_rows(rng, int(rng.integers(3, 9)), dim))
    return {f"x{i}": rows[:, i].tolist() for i in range(dim)}


def _table(
    rng: np.random.Generator, dim: int, secrets: list[str], n_rows: tuple[int, int]
) -> dict[str, list[Any]]:
    parts = {one: _rows(rng, int(rng.integers(*n_rows)), dim) for one in secrets}
    labels = [one for one, part in parts.items() for _ in part]
    rows = np.array([row for part in parts.values() for row in part])
    return {_GROUP: labels, **{f"x{i}": rows[:, i].tolist() for i in range(dim)}}


def _from_tables(
    rng: np.random.Generator,
    dim: int,
    asked: Spec,
    n_priors: int | None = None,
    n_rows: tuple[int, int] = (2, 7),
) -> Spec:
    secrets = _secrets(rng)
    n_priors = n_priors or int(rng.choice([1, 1, 2, 3]))
    tables = {f"prior {k}": _table(rng, dim, secrets, n_rows) for k in range(n_priors)}
    spec = _asked(rng, dim, asked) | {"tables": tables, "secret": _GROUP}
    return spec | {"pairs": _pairs(rng, secrets)} | _exact(rng)


def _declared(
    rng: np.random.Generator, dim: int, laws: dict[str, Spec], *, ranged: bool = True
) -> Spec:
    """Laws of the query itself."""
    spec = _asked(rng, dim, {"mean": _names(dim)})
    if not ranged:
        spec["query"]["range"] = None
    return spec | {"laws": laws, "pairs": _pairs(rng, list(laws))}


def _asked(rng: np.random.Generator, dim: int, asked: Spec) -> Spec:
    """A query of `dim` coordinates, and the slices to look along."""
    query = {"asked": asked, "range": None, "scales": None}
    narrow = not {"std", "rate"} & set(asked)
    if narrow and rng.random() < 0.4:
        query["range"] = _limits(rng, dim, (2.0, 8.0, 50.0))
    if rng.random() < 0.5:
        query["scales"] = (10 ** rng.uniform(-2, 2, size=dim)).tolist()
    return {"dim": dim, "query": query, "profile": _profile(rng, dim)}


def _statistics(rng: np.random.Generator, dim: int) -> Spec:
    """Means, and at times spreads, shares and quantiles."""
    names = _names(dim)
    n_means = int(rng.integers(1, dim + 1))
    rest = names[n_means:]
    if not rest:
        return {"mean": names}
    way = int(rng.integers(3))
    if way == 0:
        return {"mean": names[:n_means], "std": rest}
    if way == 1:
        return {"mean": names[:n_means], "rate": dict.fromkeys(rest, 0.25)}
    return {"mean": names[:n_means], "quantile": dict.fromkeys(rest, 0.5)}


def _limits(rng: np.random.Generator, dim: int, reaches: tuple[float, ...]) -> Spec:
    """A box or a ball, wide or so narrow that it clips."""
    reach = float(rng.choice(reaches))
    middle = rng.integers(-2, 3, size=dim) / 4
    if rng.random() < 0.3:
        return {"center": middle.tolist(), "radius": reach}
    high = middle + reach * rng.uniform(0.5, 1.0, size=dim)
    return {"low": (middle - reach).tolist(), "high": high.tolist()}


def _cov(rng: np.random.Generator, dim: int) -> list[list[float]]:
    root = rng.standard_normal((dim, dim)) * [0.3, 1.0][int(rng.integers(2))]
    cov = (root[:, :, None] * root.T[None, :, :]).sum(axis=1) + 0.05 * np.eye(dim)
    return ((cov + cov.T) / 2).tolist()


def _profile(rng: np.random.Generator, dim: int, most: int = 6) -> Spec:
    way = ["axes", "orthogonal", "uniform", "uniform"][int(rng.integers(4))]
    n = int(rng.integers(1, most + 1))
    spec: Spec = {"way": way, "n_directions": n, "seed": int(rng.integers(2**31))}
    if rng.random() < 0.4:
        spec["parts"] = rng.integers(1, 5, size=24).tolist()
    return spec


# What is claimed


def _renyi(rng: np.random.Generator, notions: tuple[str, ...]) -> Spec:
    order = [1.05, 1.5, 2.0, 4.0, 16.0, 64.0, 1 + float(10 ** rng.uniform(-2, 2))]
    return {
        "notion": notions[int(rng.integers(len(notions)))],
        "order": order[int(rng.integers(len(order)))],
        "epsilon": float(10 ** rng.uniform(-2, 1.2)),
    }


def _approximate(rng: np.random.Generator, low: float, high: float) -> Spec:
    return {
        "notion": ["average", "joint"][int(rng.integers(2))],
        "epsilon": float(10 ** rng.uniform(-1, 1)),
        "delta": float(rng.uniform(low, high)),
    }


def _exact(rng: np.random.Generator) -> Spec:
    claim = _renyi(rng, ("average", "joint", "average", "joint", "unsliced"))
    if rng.random() < 0.2:
        claim = _approximate(rng, 1e-6, 0.1)
    return {"claim": claim, "method": _method(rng, claim), "deltas": _deltas(rng)}


def _method(rng: np.random.Generator, claim: Spec) -> list[str] | None:
    methods = [None, ["tight", "transport"], ["tight", "worst_gap"], ["closed_form", "worst_gap"]]
    method = methods[int(rng.integers(4))]
    if claim["notion"] == "unsliced" or ("delta" in claim and method == methods[3]):
        return None
    return method


def _deltas(rng: np.random.Generator) -> list[float]:
    return [[], [1e-5], [1e-3], [1e-9, 0.01]][int(rng.integers(4))]


def _doubt(rng: np.random.Generator) -> Spec:
    return {
        "failure_probability": float(10 ** rng.uniform(-3, -1)),
        "band": ["order_statistics", "dkw"][int(rng.integers(2))],
    }


# Training plans


def plan_specs() -> list[Spec]:
    """All plans."""
    return [plan_spec(number) for number in range(N_PLANS)]


def plan_spec(number: int) -> Spec:
    """Plan `number`: samplings, accountants, laws of differing records and clippings take turns."""
    rng = np.random.default_rng([SEED, 2, number])
    accountant = ["worst_case", "log_moment", "amplified", "mean_square"][number % 4]
    sampling = ["poisson", "without_replacement", "with_replacement"][number // 4 % 3]
    laws = ["exactly", "at_most", "binomial", "pmf", "folded"]
    law = laws[number // 3 % len(laws)]
    if accountant == "amplified":
        sampling = "poisson"
    if accountant == "mean_square":
        law = "exactly"
    n_records = int(rng.choice([60, 500, 1000 if accountant == "amplified" else 4000]))
    n_steps = int(rng.choice([1, 7, 40]))
    return {
        "accountant": accountant,
        "order": float(rng.choice([1.5, 2.0, 4.0, 8.0, 17.5])),
        "sampling": {
            "kind": sampling,
            "n_records": n_records,
            "batch_size": int(rng.integers(1, n_records // 5)),
        },
        "differing": {
            "law": law,
            "n": int(rng.integers(1, 12)),
            "chance": float(10 ** rng.uniform(-4, -1.5)),
            "pmf": {"0": 0.5, "1": 0.25, "5": 0.125, "20": 0.125},
        },
        "clipping": _clipping(rng, ["flat", "equal", "least_noise"][number % 3]),
        "n_steps": n_steps,
        # None: the noise is found for the epsilon.
        "noise_multipliers": _schedule(rng, n_steps) if number % 2 else None,
        "epsilon": float(10 ** rng.uniform(-0.7, 1.0)),
        "delta": float(10 ** rng.uniform(-8, -3)),
        "n_parameters": int(rng.integers(10, 10_000)),
    }


def _schedule(rng: np.random.Generator, n_steps: int) -> list[float]:
    first = float(10 ** rng.uniform(0, 1.5))
    if rng.random() < 0.5:
        return [first] * n_steps
    return np.linspace(first, 2 * first, n_steps).tolist()


def _clipping(rng: np.random.Generator, kind: str) -> Spec:
    if kind == "flat":
        return {"kind": "flat", "norm": float(10 ** rng.uniform(-1, 1))}
    n_layers = int(rng.integers(2, 5))
    return {
        "kind": kind,
        "norms": (10 ** rng.uniform(-1, 1, size=n_layers)).tolist(),
        "sizes": rng.integers(1, 500, size=n_layers).tolist(),
    }


# Steps of training

MODELS = (
    "mlp",
    "cnn",
    "lstm",
    "gru",
    "attention",
    "embedding",
    "norms",
    "tied",
    "dropout",
    "one_by_one",
    "lora",
    "conv1d",
)
WAYS = ("flat", "layers", "repeated")
"""One norm and Poisson batches; a norm for each part, without replacement; with replacement."""


def step_specs() -> list[Spec]:
    """Every model with every way of clipping and drawing."""
    return [
        {
            "model": model,
            "way": way,
            "seed": SEED + 100 * i + j,
            "n_records": 16,
            "batch_size": 10,
            "block": 4,
        }
        for i, model in enumerate(MODELS)
        for j, way in enumerate(WAYS)
    ]
