# SPDX-License-Identifier: Apache-2.0
"""Random scenarios of every kind, each with the distributions that are true in it.

A case is made from (seed, index) alone, so any one of them can be made again. What is true is
written down beside the scenario, not read off it: rows are clipped and scaled here once more.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from pufferslice.claims import Claim, EpsilonDelta, Method, claim_of
from pufferslice.errors import ScenarioError
from pufferslice.queries import Ball, Box, columns, summary
from pufferslice.scenario.distributions import (
    FiniteDistribution,
    GaussianDistribution,
    SampledDistribution,
)
from pufferslice.scenario.priors import Bootstrap
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere, WholeSphere

GROUP = "group"
METHODS = (
    Method(rule="tight", envelope="transport"),
    Method(rule="tight", envelope="worst_gap"),
    Method(rule="closed_form", envelope="worst_gap"),
)


@attrs.frozen(kw_only=True, eq=False)
class Case:
    """A scenario, what is asked of it, and the truth."""

    kind: str
    scenario: Scenario
    profile: Any
    target: Any
    options: dict[str, Any]
    truth: list[tuple[Any, Any]]
    """The two true distributions of every instance, in scaled coordinates."""

    @property
    def failure_probability(self) -> float:
        return self.options.get("failure_probability") or 0.0

    @property
    def method(self) -> Method:
        default = "exact" if self.kind == "gaussian" else "transport"
        return self.options.get("method") or Method(rule="tight", envelope=default)


def random_case(seed: int, index: int, kind: str | None = None) -> Case:
    """Case number `index` of a seed; the kinds take turns, if none is named."""
    rng = np.random.default_rng([seed, index])
    make = KINDS[kind or list(KINDS)[index % len(KINDS)]]
    while True:
        try:
            return make(rng)
        except ScenarioError as error:
            # a range beside all values, or at one end of them
            if not re.search("every value of it|range clips them", str(error)):
                raise


def _groups(rng: np.random.Generator) -> Case:
    dim = _dim(rng)
    names = [f"x{i}" for i in range(dim)]
    n_std = int(rng.integers(0, dim))
    query = summary(mean=names[: dim - n_std], std=names[dim - n_std :])

    def distribution(rows: np.ndarray) -> np.ndarray:
        means, rest = rows[:, : dim - n_std], rows[:, dim - n_std :]
        return np.concatenate([means.mean(axis=0), rest.std(axis=0)])[None, :]

    make = Scenario.from_groups
    return _from_tables("groups", rng, query=query, make=make, distribution=distribution)


def _records(rng: np.random.Generator) -> Case:
    query = columns([f"x{i}" for i in range(_dim(rng))])
    make = Scenario.from_records
    return _from_tables("records", rng, query=query, make=make, distribution=lambda rows: rows)


def _bootstrap(rng: np.random.Generator) -> Case:
    """Only the replicates say what the distribution is, so the scenario gives them."""
    query = summary(mean=[f"x{i}" for i in range(_dim(rng))])
    how = Bootstrap(n_replicates=int(rng.integers(2, 7)), seed=int(rng.integers(1000)))

    make = functools.partial(Scenario.from_bootstrap, bootstrap=how)
    return _from_tables("bootstrap", rng, query=query, make=make, distribution=None)


def _weighted(rng: np.random.Generator) -> Case:
    """Finite distributions with weights or counts, declared as worlds."""
    dim, size = _dim(rng), _size(rng)
    query = _dressed(rng, summary(mean=[f"x{i}" for i in range(dim)]), size)
    distributions = {}
    for secret in _secrets(rng):
        rows = _rows(rng, int(rng.integers(1, 6)), dim, size)
        if rng.random() < 0.5:
            parts = rng.dirichlet(np.ones(len(rows))) * 0.9 + 0.1 / len(rows)
            distributions[secret] = FiniteDistribution.weighted(rows, parts / parts.sum())
        else:
            counts = rng.integers(1, 50, size=len(rows))
            distributions[secret] = FiniteDistribution(outputs=rows, counts=counts)
    scenario = Scenario.from_worlds(
        distributions, query=query, pairs=_pairs(rng, list(distributions))
    )
    made = {
        secret: FiniteDistribution(
            outputs=_prepared(query, distribution.outputs), counts=distribution.counts
        )
        for secret, distribution in distributions.items()
    }
    truth = [(made[a], made[b]) for a, b in scenario.pairs]
    return Case(
        kind="weighted",
        scenario=scenario,
        profile=_profile(rng, dim),
        target=_claim(rng, any_claim=True),
        options=_exact_options(rng),
        truth=truth,
    )


def _gaussian(rng: np.random.Generator) -> Case:
    dim, size = _dim(rng), _size(rng)
    query = _scaled(rng, summary(mean=[f"x{i}" for i in range(dim)]))
    shared = _cov(rng, dim, size)
    distributions = {
        secret: GaussianDistribution(
            mean=_rows(rng, 1, dim, size)[0],
            cov=shared if rng.random() < 0.4 else _cov(rng, dim, size),
        )
        for secret in _secrets(rng)
    }
    scenario = Scenario.from_worlds(
        distributions, query=query, pairs=_pairs(rng, list(distributions))
    )
    over = np.outer(query.scales, query.scales)
    made = {
        k: (distribution.mean / query.scales, distribution.cov / over)
        for k, distribution in distributions.items()
    }
    return Case(
        kind="gaussian",
        scenario=scenario,
        profile=_profile(rng, dim),
        target=_renyi(rng, ("average", "joint", "unsliced")),
        options={"deltas": _deltas(rng)},
        truth=[(made[a], made[b]) for a, b in scenario.pairs],
    )


def _sampled(rng: np.random.Generator) -> Case:
    """Draws of finite distributions that are known here and not to the library."""
    dim, size = _dim(rng), _size(rng)
    query = summary(mean=[f"x{i}" for i in range(dim)])
    approximate = rng.random() < 0.3
    if not approximate or rng.random() < 0.5:
        query = query.with_range(_range(rng, dim, size))
    query = _scaled(rng, query)
    secrets = _secrets(rng)[:2]
    distributions, worlds = {}, {}
    for secret in secrets:
        rows = _rows(rng, int(rng.integers(1, 6)), dim, size)
        counts = rng.integers(1, 9, size=len(rows))
        distributions[secret] = FiniteDistribution(outputs=_prepared(query, rows), counts=counts)
        n_draws = int(rng.integers(300, 1500))
        drawn = rng.choice(len(rows), size=n_draws, p=counts / counts.sum())
        worlds[secret] = SampledDistribution(outputs=rows[drawn])
    claim = _renyi(rng, ("average", "joint"))
    if approximate:
        pair = EpsilonDelta(epsilon=claim.epsilon, delta=float(rng.uniform(0.15, 0.6)))
        claim = attrs.evolve(claim, claim=pair)
    options: dict[str, Any] = {
        "failure_probability": float(10 ** rng.uniform(-3, -1)),
        "band": str(rng.choice(["order_statistics", "dkw"])),
        "deltas": _deltas(rng),
    }
    if not approximate and rng.random() < 0.5:
        options["method"] = METHODS[int(rng.integers(len(METHODS)))]
    return Case(
        kind="sampled",
        scenario=Scenario.from_worlds(worlds, query=query),
        profile=_profile(rng, dim, most=3),
        target=claim,
        options=options,
        truth=[(distributions[secrets[0]], distributions[secrets[1]])],
    )


def _sphere(rng: np.random.Generator) -> Case:
    """Point masses, for which the whole sphere is known in closed form: drawn from, or as such."""
    dim, size = int(rng.integers(2, 5)), _size(rng)
    names = [f"x{i}" for i in range(dim)]
    query = _scaled(rng, summary(mean=names).with_range(_range(rng, dim, size)))
    table, parts = _table(rng, names, size, _secrets(rng))
    scenario = Scenario.from_groups(table, secret=GROUP, query=query)
    made = {
        secret: FiniteDistribution.uniform(_prepared(query, rows.mean(axis=0)[None, :]))
        for secret, rows in parts.items()
    }
    n_directions = int(rng.integers(5, 400))
    drawn = Case(
        kind="sphere",
        scenario=scenario,
        profile=SampledSphere.draw(
            dim=dim, n_directions=n_directions, seed=int(rng.integers(2**31))
        ),
        target=_renyi(rng, ("average", "joint")),
        options={
            "failure_probability": float(10 ** rng.uniform(-3, -1)),
            "method": METHODS[int(rng.integers(len(METHODS)))],
            "deltas": _deltas(rng),
        },
        truth=[(made[a], made[b]) for a, b in scenario.pairs],
    )
    if rng.integers(2):
        return drawn
    options = {"deltas": drawn.options["deltas"]}
    return attrs.evolve(drawn, profile=WholeSphere(dim=dim), options=options)


KINDS: dict[str, Callable[[np.random.Generator], Case]] = {
    "groups": _groups,
    "records": _records,
    "bootstrap": _bootstrap,
    "weighted": _weighted,
    "gaussian": _gaussian,
    "sampled": _sampled,
    "sphere": _sphere,
}


def _from_tables(
    kind: str,
    rng: np.random.Generator,
    *,
    query: Any,
    make: Callable[..., Scenario],
    distribution: Callable[[np.ndarray], np.ndarray] | None,
) -> Case:
    size = _size(rng)
    query = _dressed(rng, query, size)
    names = [f"x{i}" for i in range(query.dim)]
    secrets = _secrets(rng)
    tables, truths = {}, {}
    for prior in ["only"] if rng.random() < 0.7 else ["first", "second"]:
        tables[prior], parts = _table(rng, names, size, secrets)
        truths[prior] = {
            secret: FiniteDistribution.uniform(_prepared(query, distribution(rows)))
            for secret, rows in (parts.items() if distribution else ())
        }
    scenario = make(tables, secret=GROUP, query=query, pairs=_pairs(rng, secrets))
    truth = []
    for prior, (a, b) in scenario.instances:
        known = truths[prior.name] if distribution else prior.distributions
        truth.append((known[a], known[b]))
    return Case(
        kind=kind,
        scenario=scenario,
        profile=_profile(rng, query.dim),
        target=_claim(rng, any_claim=True),
        options=_exact_options(rng),
        truth=truth,
    )


def _dim(rng: np.random.Generator) -> int:
    return int(rng.integers(1, 4))


def _size(rng: np.random.Generator) -> float:
    """Mostly 1; now and then tiny or huge units."""
    return 1.0 if rng.random() < 0.7 else float(10 ** rng.uniform(-8, 8))


def _secrets(rng: np.random.Generator) -> list[str]:
    return ["a", "b", "c"][: int(rng.integers(2, 4))]


def _pairs(rng: np.random.Generator, secrets: list[str]) -> Any:
    if rng.random() < 0.7 or len(secrets) < 3:
        return "all"
    every = [("a", "b"), ("a", "c"), ("b", "c")]
    return [every[i] for i in rng.permutation(3)[: int(rng.integers(1, 3))]]


def _rows(rng: np.random.Generator, n: int, dim: int, size: float) -> np.ndarray:
    """Ties and exact quarters, or plain normal numbers; a far point now and then."""
    if rng.random() < 0.4:
        rows = rng.integers(-12, 13, size=(n, dim)) / 4
    else:
        rows = rng.normal(size=(n, dim)) * rng.choice([0.1, 1.0, 4.0])
    if rng.random() < 0.2:
        rows[int(rng.integers(n)), int(rng.integers(dim))] += float(rng.choice([-30.0, 30.0]))
    return np.asarray(rows * size, dtype=np.float64)


def _table(
    rng: np.random.Generator, names: list[str], size: float, secrets: list[str]
) -> tuple[pa.Table, dict[str, np.ndarray]]:
    parts = {secret: _rows(rng, int(rng.integers(2, 6)), len(names), size) for secret in secrets}
    rows = np.concatenate(list(parts.values()))
    labels = [secret for secret, part in parts.items() for _ in part]
    return pa.table({GROUP: labels, **dict(zip(names, rows.T, strict=True))}), parts


def _cov(rng: np.random.Generator, dim: int, size: float) -> np.ndarray:
    root = rng.normal(size=(dim, dim)) * size * rng.choice([0.3, 1.0])
    cov = root @ root.T
    return np.asarray((cov + cov.T) / 2)


def _range(rng: np.random.Generator, dim: int, size: float) -> Box | Ball:
    """Wide or so narrow that it clips."""
    reach = size * float(rng.choice([2.0, 8.0, 50.0]))
    middle = rng.integers(-2, 3, size=dim) * size / 4
    if rng.random() < 0.3:
        return Ball(middle, reach)
    return Box(middle - reach, middle + reach * rng.uniform(0.5, 1.0, size=dim))


def _scaled(rng: np.random.Generator, query: Any) -> Any:
    if rng.random() < 0.5:
        return query
    return query.with_scales(10 ** rng.uniform(-2, 2, size=query.dim))


def _dressed(rng: np.random.Generator, query: Any, size: float) -> Any:
    if rng.random() < 0.4:
        limits = _range(rng, query.dim, size)
        lowest = [coordinate.low for coordinate in query.coordinates]
        if isinstance(limits, Box):
            limits = Box(np.maximum(limits.low, lowest), limits.high)
        else:
            limits = Ball(np.maximum(limits.center, lowest), limits.radius)
        query = query.with_range(limits)
    return _scaled(rng, query)


def _prepared(query: Any, rows: np.ndarray) -> np.ndarray:
    """Clipped and scaled by hand."""
    if isinstance(query.range, Box):
        rows = np.minimum(np.maximum(rows, query.range.low), query.range.high)
    elif isinstance(query.range, Ball):
        offsets = rows - query.range.center
        lengths = np.sqrt((offsets**2).sum(axis=1, keepdims=True))
        shrunk = query.range.center + offsets * query.range.radius / np.maximum(lengths, 1e-300)
        rows = np.where(lengths > query.range.radius, shrunk, rows)
    return np.asarray(rows / query.scales)


def _profile(rng: np.random.Generator, dim: int, most: int = 5) -> FiniteProfile:
    seed, n = int(rng.integers(2**31)), int(rng.integers(1, most + 1))
    way = int(rng.integers(3))
    if way == 0:
        base = FiniteProfile.axes(dim=dim)
    elif way == 1:
        base = FiniteProfile.orthogonal(dim=dim, n_sets=1, seed=seed)
    else:
        base = FiniteProfile.uniform(dim=dim, n_directions=n, seed=seed)
    if rng.random() < 0.5:
        return base
    parts = rng.integers(0 if base.n_directions > 2 else 1, 5, size=base.n_directions) * 1.0
    parts[0] += 1
    return FiniteProfile(directions=base.directions, weights=parts / parts.sum())


def _renyi(rng: np.random.Generator, notions: tuple[str, ...]) -> Claim:
    order = float(rng.choice([1.05, 1.5, 2.0, 4.0, 16.0, 64.0, 1 + 10 ** rng.uniform(-2, 2)]))
    epsilon = float(10 ** rng.uniform(-2.5, 1.5))
    return claim_of({"notion": str(rng.choice(notions)), "order": order, "epsilon": epsilon})


def _claim(rng: np.random.Generator, *, any_claim: bool) -> Any:
    claim = _renyi(rng, ("average", "joint", "unsliced"))
    if any_claim and rng.random() < 0.12 and claim.is_sliced:
        pair = EpsilonDelta(epsilon=claim.epsilon, delta=float(10 ** rng.uniform(-6, -0.5)))
        return attrs.evolve(claim, claim=pair)
    return claim


def _exact_options(rng: np.random.Generator) -> dict[str, Any]:
    """A method is for sliced Rényi claims; the caller drops it elsewhere."""
    method = METHODS[int(rng.integers(len(METHODS)))] if rng.random() < 0.6 else None
    return {"method": method, "deltas": _deltas(rng)}


def _deltas(rng: np.random.Generator) -> tuple[float, ...]:
    return (float(10 ** rng.uniform(-9, -1)),) if rng.random() < 0.3 else ()
