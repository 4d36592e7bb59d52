# SPDX-License-Identifier: Apache-2.0
"""Priors: the distributions of a query under each secret, and what they were made from."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_at_least, check_count, check_fits, check_one_of
from pufferslice._core.text import quoted
from pufferslice.data.frames import Frame, without_missing
from pufferslice.data.tables import frame_of_rows
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.queries.ranges import central_ends, ends_of, joined_ends, no_ends
from pufferslice.scenario.distributions import (
    Distribution,
    FiniteDistribution,
    GaussianDistribution,
    GaussianMixture,
    Kind,
    SampledDistribution,
)
from pufferslice.scenario.simulator import (
    DeclaredSample,
    OutputSimulator,
    SimulatedSample,
    Simulator,
    stable_number,
)

Source = Literal["public_model", "held_out", "released_data"]

SOURCES: Final = ("public_model", "held_out", "released_data")
"""Sources of a prior; if it is the released data, the noise scale depends on them."""

LAWS: Final = ("groups", "bootstrap", "records", "worlds")
"""Meanings of one release; see `ONE_RELEASE`."""

ONE_RELEASE: Final = {
    "groups": "the query on the rows of one group; the distribution under a secret is a point mass",
    "bootstrap": "the query on the rows of one group; the prior is the query on resampled rows",
    "records": "the query of one row; the distribution under a secret is that of the group's rows",
    "worlds": "the query on a whole table; the distribution under a secret is the world's own",
}

_FEWEST_ROWS: Final = 2
_ORIGINS: Final[Mapping[Kind, str]] = {
    "empirical": "declared finite distributions",
    "sampled": "independent draws of the distributions, which are known only through them",
    "gaussian": "declared Gaussian distributions",
}
_MIXTURES: Final = "declared mixtures of Gaussian distributions"
_Declared: TypeAlias = (
    FiniteDistribution | SampledDistribution | GaussianDistribution | GaussianMixture
)
DECLARED: Final = "the drawn sample is declared to be the prior"


@final
@attrs.frozen(kw_only=True)
class Bootstrap:
    """Resampling of a group; the drawn replicates are declared to be the prior."""

    n_replicates: int
    """Number of resampled tables per group."""
    seed: int
    """Public seed of the resampling."""

    def __attrs_post_init__(self) -> None:
        check_count(2, n_replicates=self.n_replicates)
        check_fits(1, n_replicates=self.n_replicates)
        check_count(0, seed=self.seed)


@final
@attrs.frozen(kw_only=True, repr=False)
class Prior:
    """One belief about how secrets and data are linked (the paper's theta).

    Distributions are those of the *prepared* query: clipped to its range and divided by its scales.
    """

    name: str
    source: Source
    origin: str
    """Public sentence on how the distributions were made."""
    probabilities: Mapping[str, float]
    """Probability of each secret."""
    distributions: Mapping[str, Distribution]
    """Distribution of the prepared query under each secret that has positive probability."""
    n_rows: Mapping[str, int] = attrs.field(factory=dict)
    """Rows behind each distribution, where it was made from rows; confidential."""
    declared: Mapping[str, GaussianDistribution | GaussianMixture] = attrs.field(factory=dict)
    """Gaussian distributions in the user's units, as declared; `distributions` has them scaled,
    which rounds."""
    n_clipped: Mapping[str, int] = attrs.field(factory=dict)
    """Values of each distribution that the query's range moved; confidential."""
    current: Mapping[str, Distribution] = attrs.field(factory=dict)
    """The same distributions made of the table that is to be released, where `distributions` are
    of another one: for its holder alone."""
    has_given_tables: bool = False
    """Whether the distributions are those of the query on given tables of the released data: then
    no other value than theirs may be released."""

    def __attrs_post_init__(self) -> None:
        check_one_of(SOURCES, source=self.source)
        kinds = {type(distribution) for distribution in self.distributions.values()}
        if len(kinds) != 1:
            raise ScenarioError(
                f"prior {quoted(self.name)} must have distributions of one kind, all empirical, "
                "all sampled or all Gaussian"
            )
        dims = {distribution.dim for distribution in self.distributions.values()}
        if len(dims) != 1:
            raise ScenarioError(
                f"prior {quoted(self.name)} must have distributions of one dimension, got "
                f"{sorted(dims)}; give all of them for one query"
            )
        if self.kind == "gaussian" and set(self.declared) != set(self.distributions):
            raise ScenarioError(
                f"prior {quoted(self.name)} must have its Gaussians as declared and as scaled"
            )

    @property
    def kind(self) -> Kind:
        """Kind of the prior: an empirical one *is* its sample, a sampled one is known by it."""
        return next(iter(self.distributions.values())).kind

    def sampled(self) -> "Prior":
        """The prior whose independent draws are the atoms of this one.

        Needs: the atoms of every distribution are independent draws of it.
        """
        if self.kind != "empirical":
            raise ScenarioError(
                f"prior {quoted(self.name)} is {self.kind}; only an empirical one holds draws. "
                "Leave with_sampled_priors() out"
            )
        origin = self.origin.removesuffix(DECLARED).rstrip("; ")
        return attrs.evolve(
            self,
            distributions={
                secret: _drawn(distribution) for secret, distribution in self.distributions.items()
            },
            origin=f"{origin}; independent draws of the prior, which is known only through them",
        )

    def secret_probability(self, secret: str) -> float:
        """Probability of a secret, 0 if it cannot occur."""
        return self.probabilities.get(secret, 0.0)

    def description(self) -> dict[str, Any]:
        """Statement of the certificate about the prior."""
        return {
            "name": self.name,
            "source": self.source,
            "kind": self.kind,
            "origin": self.origin,
        }

    def __repr__(self) -> str:
        n_secrets = len(self.distributions)
        return f"Prior(name={self.name!r}, source={self.source!r}, n_secrets={n_secrets})"


@final
@attrs.frozen(kw_only=True, repr=False)
class Resampled:
    """A world that is a table resampled with replacement; the resampled tables are the prior."""

    table: Any
    bootstrap: Bootstrap

    def __repr__(self) -> str:
        return f"Resampled(n_replicates={self.bootstrap.n_replicates})"


def grouped_prior(
    name: str,
    source: Source,
    origin: str,
    query: Query,
    frame: Frame,
    labels: npt.NDArray[np.str_],
    distribution: Literal["groups", "bootstrap", "records"],
    bootstrap: Bootstrap | None,
) -> tuple[Prior, Floats]:
    """Make a prior of the query on the rows of each group, on resampled ones, or on each row.

    Also the lowest and highest value of each coordinate before clipping, shape (2, dim).
    """
    check_level(query, "row" if distribution == "records" else "table", distribution)
    evaluate, rows = query.bound(frame), group_rows(labels)
    outputs: dict[str, Floats] = {}
    # From 1: number 0 would be the stream of the seed alone, from which slices may be drawn.
    for number, (secret, where) in enumerate(rows.items(), start=1):
        if bootstrap is None:
            outputs[secret] = np.atleast_2d(evaluate(where))
        else:
            rng = np.random.default_rng([bootstrap.seed, number])
            outputs[secret] = _resampled_outputs(evaluate, where, bootstrap.n_replicates, rng)
    prior = Prior(
        name=name,
        source=source,
        origin=origin,
        probabilities={secret: len(where) / len(labels) for secret, where in rows.items()},
        distributions={
            s: FiniteDistribution.uniform(query.prepared(raw)) for s, raw in outputs.items()
        },
        n_rows={secret: len(where) for secret, where in rows.items()},
        n_clipped={secret: query.n_outside(raw) for secret, raw in outputs.items()},
    )
    return prior, joined_ends(map(ends_of, outputs.values()))


World = object
"""A table, a list of tables, `Resampled`, a sample of a simulator, or a distribution of the
query."""


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class TableWorld:
    """A world that is made of tables, by the query's policy on missing values."""

    tables: list[Frame]
    n_dropped: int
    """Rows that were left out."""
    bootstrap: Bootstrap | None
    """Resampling of the only table; None if the tables are the world as they are."""
    origin: str
    """Public words on how the distribution was made."""

    def outputs(self, query: Query, secret: str) -> Floats:
        """The outputs of the world of this secret, in the user's units."""
        if self.bootstrap is None:
            return np.vstack([query.outputs(table) for table in self.tables])
        (table,) = self.tables
        rng = np.random.default_rng([self.bootstrap.seed, stable_number(secret)])
        n_replicates, rows = self.bootstrap.n_replicates, np.arange(len(table))
        return _resampled_outputs(query.bound(table), rows, n_replicates, rng)


CompleteWorld: TypeAlias = (
    TableWorld | Simulator | OutputSimulator | SimulatedSample | DeclaredSample | _Declared
)


def complete_world(query: Query, world: World) -> CompleteWorld:
    """The world, as a `TableWorld` if it is made of tables.

    Tables of a simulator are treated when they are drawn, and rows left out are not counted.
    """
    if isinstance(world, CompleteWorld):
        return world
    tables, bootstrap, origin = [world], None, "the query on one table per world"
    if isinstance(world, Resampled):
        tables, bootstrap = [world.table], world.bootstrap
        origin = (
            f"{bootstrap.n_replicates} bootstrap replicates per world, public seed "
            f"{bootstrap.seed}; {DECLARED}"
        )
    elif isinstance(world, list | tuple):
        tables = [*world]
        origin = f"the query on {len(world)} given tables per world, equally likely"
        if not world:
            raise ScenarioError("a world that is a list of tables needs at least one table")
    columns = list(query.columns)
    parts = [without_missing(frame_of_rows(table), columns, query.missing) for table in tables]
    return TableWorld(
        tables=[frame for frame, _ in parts],
        n_dropped=sum(n for _, n in parts),
        bootstrap=bootstrap,
        origin=origin,
    )


class WorldDistribution(NamedTuple):
    """The distribution of the query in one world."""

    distribution: Distribution
    origin: str
    """A public sentence on how it was made."""
    n_clipped: int
    """Values of the distribution that the query's range moved."""
    ends: Floats
    """Lowest and highest value of each coordinate before clipping, shape (2, dim)."""
    central: Floats
    """Ends, shape (2, dim), without the rarest values at both ends."""


def world_distribution(query: Query, secret: str, world: CompleteWorld) -> WorldDistribution:
    """Make the distribution of the query in one world."""
    check_level(query, "table", "worlds")
    if isinstance(world, Simulator | OutputSimulator):
        raise ScenarioError(
            f"world {quoted(secret)} is a simulator without a number of draws. Take "
            "independent draws with simulator.sampled(n_draws=..., seed=...), and certify with a "
            "failure probability; or declare draws to be the prior with "
            "simulator.declared(n_draws=..., seed=...)"
        )
    if isinstance(world, _Declared):
        atoms = world.atoms()
        is_mixture = isinstance(world, GaussianMixture)
        return WorldDistribution(
            distribution=world.prepared(query),
            origin=_MIXTURES if is_mixture else _ORIGINS[world.kind],
            n_clipped=0 if atoms is None else query.n_outside(atoms[0]),
            ends=no_ends(query.dim) if atoms is None else ends_of(atoms[0]),
            central=no_ends(query.dim) if atoms is None else central_ends(*atoms),
        )
    raw = world.outputs(query, secret)
    prepared = query.prepared(raw)
    return WorldDistribution(
        distribution=SampledDistribution(outputs=prepared)
        if isinstance(world, SimulatedSample)
        else FiniteDistribution.uniform(prepared),
        origin=world.origin,
        n_clipped=query.n_outside(raw),
        ends=ends_of(raw),
        central=central_ends(raw, np.ones(len(raw), dtype=np.int64)),
    )


def group_rows(labels: npt.NDArray[np.str_]) -> dict[str, npt.NDArray[np.intp]]:
    """Row numbers of each secret, in the order of the secrets; a group has at least two rows."""
    secrets, inverse = np.unique(labels, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(inverse))[:-1])
    _check_group_sizes([len(part) for part in parts])
    return {str(secret): part for secret, part in zip(secrets, parts, strict=True)}


def _check_group_sizes(sizes: Sequence[int]) -> None:
    """Check that every group has at least two rows; labels of smaller ones are not shown."""
    n_small = sum(size < _FEWEST_ROWS for size in sizes)
    if n_small:
        raise ScenarioError(
            f"every group needs at least {_FEWEST_ROWS} rows; {n_small:,} of the {len(sizes):,} "
            "values of the secret have one, which would be that record itself. If the secret is a "
            "number, take its quantile bins: secret=Bins(column=..., quantiles=4), in a file "
            "[secret] bins = { column = ..., quantiles = 4 }. Otherwise leave these rows out, or "
            "merge each group with another"
        )


def check_level(query: Query, level: str, distribution: str) -> None:
    """Check that distributions of rows have a query of a row, and others one of a table."""
    if query.level != level:
        other = "summary(...) or table_function(...)" if level == "table" else "columns(...)"
        raise ScenarioError(
            f"distribution {distribution!r} needs a query of a {level}, got {query.kind!r}, which "
            f"is one of a {query.level}; use {other}"
        )


def check_probabilities_of(secrets: Sequence[str], probabilities: Mapping[str, float]) -> None:
    """Check that declared probabilities of the secrets are not negative and sum to 1."""
    for secret in secrets:
        if secret not in probabilities:
            raise ArgumentError(
                f"probabilities must name every secret; {quoted(secret)} is missing"
            )
    for secret, share in probabilities.items():
        check_at_least(0, **{f"probabilities[{quoted(secret)}]": share})
    total = sum(probabilities.values())
    if abs(total - 1) > 1e-9:
        raise ArgumentError(f"probabilities must sum to 1, got {total!r}")


def _resampled_outputs(
    evaluate: Callable[[npt.NDArray[np.intp]], Floats],
    rows: npt.NDArray[np.intp],
    n_replicates: int,
    rng: np.random.Generator,
) -> Floats:
    draws = (rows[rng.integers(len(rows), size=len(rows))] for _ in range(n_replicates))
    return np.stack([evaluate(draw) for draw in draws])


def _drawn(distribution: Distribution) -> SampledDistribution:
    """Read the atoms of an empirical distribution as draws."""
    if not isinstance(distribution, FiniteDistribution) or not distribution.is_uniform:
        raise ScenarioError(
            "weighted atoms are not independent draws; give the draws themselves, each once"
        )
    return SampledDistribution(outputs=distribution.outputs)
