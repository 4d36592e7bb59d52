# SPDX-License-Identifier: Apache-2.0
"""A scenario: secrets, the pairs to protect, priors, and the query of one release."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count
from operator import attrgetter
from typing import Any, Literal, NamedTuple, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.calls import Call
from pufferslice._core.checks import check_one_of, check_unique, is_a
from pufferslice._core.files import canonical_json, digest
from pufferslice._core.text import given, quoted
from pufferslice.data.frames import Frame, without_missing
from pufferslice.data.tables import frame_of_rows
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.queries.ranges import joined_ends
from pufferslice.queries.variation import (
    check_possible,
    check_reached,
    check_varied,
)
from pufferslice.scenario.attribute import from_attribute
from pufferslice.scenario.distributions import (
    Distribution,
    GaussianDistribution,
    GaussianMixture,
    Kind,
    equal_distributions,
)
from pufferslice.scenario.keys import declared_keys
from pufferslice.scenario.made import recorded
from pufferslice.scenario.moments import from_moments
from pufferslice.scenario.occupancy import from_occupancy
from pufferslice.scenario.pairs import Pairs, SecretPair, chosen_pairs
from pufferslice.scenario.prevalence import from_prevalence
from pufferslice.scenario.priors import (
    DECLARED,
    LAWS,
    ONE_RELEASE,
    Bootstrap,
    Prior,
    Source,
    TableWorld,
    World,
    check_probabilities_of,
    complete_world,
    grouped_prior,
    world_distribution,
)
from pufferslice.scenario.rows import Differing, RowDistribution
from pufferslice.scenario.secrets import Bins, SecretRule, secret_columns, secret_rule
from pufferslice.scenario.volume import from_supplier, from_volume

Secret = str | Sequence[str] | Bins


class Instance(NamedTuple):
    """Instance of the definition: one prior and one pair."""

    prior: Prior
    pair: SecretPair


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class Scenario:
    """Secrets, the pairs to protect, the priors, and the query of one release.

    Build one with `from_prevalence`, `from_volume`, `from_supplier`, `from_attribute`,
    `from_occupancy`, `from_groups`, `from_bootstrap`, `from_records` or `from_worlds`.
    """

    distribution: Literal["groups", "bootstrap", "records", "worlds"]
    """Meaning of one release."""
    secret: Mapping[str, Any]
    """Public description of the secret."""
    secrets: tuple[str, ...]
    """The values that the secret can take."""
    pairs: tuple[SecretPair, ...]
    """The protected pairs."""
    priors: tuple[Prior, ...]
    query: Query
    rule: SecretRule | None = None
    """Rule that reads the secret of a row; none for worlds."""
    n_dropped: int = 0
    """Rows left out because of missing values."""
    more_keys: Sequence[str] = ()
    """Keys of the secret beside those of its names: other words for it, also by the rows;
    confidential."""
    made: Call | None = None
    """The call that made the scenario, without rows; None for one of several tables' priors, or
    made by hand."""
    made_pairs: tuple[SecretPair, ...] = ()
    """Pairs that this call protects."""

    def __attrs_post_init__(self) -> None:
        check_one_of(LAWS, distribution=self.distribution)
        _check_secrets(self.secrets)
        check_unique("priors", [prior.name for prior in self.priors])
        if len({prior.kind for prior in self.priors}) != 1:
            raise ScenarioError(
                "priors of one scenario must be all empirical, all sampled or all Gaussian; make "
                "two scenarios"
            )
        for prior, pair in self.instances:
            impossible = [secret for secret in pair if not prior.secret_probability(secret) > 0]
            if impossible:
                raise ScenarioError(
                    f"pair {given(tuple(pair))} is not comparable: prior {quoted(prior.name)} "
                    f"gives {quoted(impossible[0])} probability 0. Drop the pair, or give a prior "
                    "under which both secrets can occur"
                )

    @classmethod
    @recorded
    def from_groups(
        cls,
        table: object,
        *,
        secret: Secret,
        query: Query,
        pairs: Pairs = "all",
        source: Source = "released_data",
    ) -> "Scenario":
        """Release the query on the rows of one group; the secret is which group.

        `table` may be a mapping from names of priors to tables: then every one is a prior.
        """
        origin = "the query on the rows of each group"
        return _from_tables(table, "groups", secret, query, pairs, source, origin)

    @classmethod
    @recorded
    def from_bootstrap(
        cls,
        table: object,
        *,
        secret: Secret,
        query: Query,
        bootstrap: Bootstrap,
        pairs: Pairs = "all",
        source: Source = "released_data",
    ) -> "Scenario":
        """Release as `from_groups`, with the query on resampled rows as the distribution."""
        origin = (
            f"{bootstrap.n_replicates} bootstrap replicates of each group, of the group's own "
            f"size, public seed {bootstrap.seed}; {DECLARED}"
        )
        return _from_tables(table, "bootstrap", secret, query, pairs, source, origin, bootstrap)

    @classmethod
    @recorded
    def from_records(
        cls,
        table: object,
        *,
        secret: Secret,
        query: Query,
        pairs: Pairs = "all",
        source: Source = "released_data",
    ) -> "Scenario":
        """Release the query of one row; the secret is that row's group."""
        origin = "the query of each row of the group"
        return _from_tables(table, "records", secret, query, pairs, source, origin)

    @classmethod
    @recorded
    def from_worlds(
        cls,
        worlds: Mapping[str, World],
        *,
        query: Query,
        pairs: Pairs = "all",
        source: Source | None = None,
        probabilities: Mapping[str, float] | None = None,
        name: str = "world",
    ) -> "Scenario":
        """Release the query on a whole table; the secret is which world it comes from.

        A world is a table, a list of tables, `Resampled`, a sample of a simulator, or a
        distribution of the query itself. Without `probabilities` the worlds are equally likely.
        Without `source`, that of worlds made of tables is the released data, that of others a
        public model.
        """
        _check_texts("worlds", worlds)
        secrets = tuple(worlds)
        _check_secrets(secrets)
        if any(isinstance(world, GaussianMixture) for world in worlds.values()):
            worlds = {
                secret: GaussianMixture.weighted([world], [1.0])
                if isinstance(world, GaussianDistribution)
                else world
                for secret, world in worlds.items()
            }
        complete = {secret: complete_world(query, world) for secret, world in worlds.items()}
        of_tables = {s: world for s, world in complete.items() if isinstance(world, TableWorld)}
        resampled = [world.bootstrap is not None for world in of_tables.values()]
        if len(of_tables) == len(worlds):
            check_varied(query, [table for world in of_tables.values() for table in world.tables])
        results = {s: world_distribution(query, s, world) for s, world in complete.items()}
        shares = dict(probabilities or dict.fromkeys(secrets, 1 / len(secrets)))
        check_probabilities_of(secrets, shares)
        if source is None:
            source = "released_data" if of_tables else "public_model"
        declared = {
            secret: world
            for secret, world in worlds.items()
            if isinstance(world, GaussianDistribution | GaussianMixture)
        }
        prior = Prior(
            name="declared",
            source=source,
            origin="; ".join(dict.fromkeys(result.origin for result in results.values())),
            probabilities=shares,
            distributions={secret: result.distribution for secret, result in results.items()},
            n_clipped={secret: result.n_clipped for secret, result in results.items()},
            # Nothing is known of the rows of a release unless every world is resampled.
            n_rows={secret: len(world.tables[0]) for secret, world in of_tables.items()}
            if sum(resampled) == len(worlds)
            else {},
            declared=declared,
            has_given_tables=source == "released_data"
            and len(of_tables) == len(worlds)
            and not any(resampled),
        )
        scenario = cls(
            distribution="worlds",
            secret={"worlds": name},
            secrets=secrets,
            pairs=chosen_pairs(pairs, secrets),
            priors=(prior,),
            query=query,
            n_dropped=sum(world.n_dropped for world in of_tables.values()),
        )
        check_reached(query, joined_ends(result.ends for result in results.values()))
        # A normal approximation may leave the range of a statistic, but not with most of its mass.
        normal = [
            np.stack([part.mean + spread, part.mean - spread])
            for world in declared.values()
            for part in (world.components if isinstance(world, GaussianMixture) else [world])
            for spread in (2 * np.sqrt(np.diag(part.cov)),)
        ]
        central = [result.central for result in results.values()]
        check_possible(query, joined_ends([*central, *normal]))
        free = attrs.evolve(query, range=None)
        _check_clipping(
            scenario,
            lambda: cls.from_worlds(worlds, query=free, pairs=pairs).has_equal_distributions(),
        )
        return scenario

    from_prevalence = classmethod(from_prevalence)
    from_volume = classmethod(from_volume)
    from_supplier = classmethod(from_supplier)
    from_moments = classmethod(from_moments)
    from_attribute = classmethod(from_attribute)
    from_occupancy = classmethod(from_occupancy)

    @classmethod
    def of_rows(
        cls,
        query: Query,
        worlds: Mapping[str, RowDistribution],
        current: Mapping[str, RowDistribution],
        *,
        secret: Mapping[str, Any],
        source: Source,
        origin: str,
        n_rows: int | None,
        more_keys: Sequence[str] = (),
    ) -> "Scenario":
        """Make a scenario of worlds that differ in some rows: any two values within a range."""
        prior = Prior(
            name="rows",
            source=source,
            origin=origin,
            probabilities=dict.fromkeys(worlds, 1 / len(worlds)),
            distributions=worlds,
            current=current,
            n_rows={} if n_rows is None else dict.fromkeys(worlds, n_rows),
        )
        return cls(
            distribution="worlds",
            secret=secret,
            secrets=tuple(worlds),
            pairs=chosen_pairs("all", tuple(worlds)),
            priors=(prior,),
            query=query,
            more_keys=more_keys,
        )

    def with_origin(
        self,
        origin: str,
        *,
        n_dropped: int = 0,
        n_rows: Mapping[str, int] | None = None,
        name: str = "declared",
    ) -> "Scenario":
        """The scenario with a sentence about its prior, and the rows that a release must have."""
        (prior,) = self.priors
        prior = attrs.evolve(prior, name=name, origin=origin, n_rows=n_rows or {})
        return attrs.evolve(self, priors=(prior,), n_dropped=self.n_dropped + n_dropped)

    def with_prior(self, other: "Scenario") -> "Scenario":
        """Add the priors of `other` to this scenario."""
        shared = attrgetter("distribution", "secret", "secrets", "pairs", "query", "rule")
        if shared(self) != shared(other):
            raise ScenarioError(
                "only priors of the same distribution, secrets, pairs and query can be joined, "
                "and bins with the same edges; give both tables at once, as a mapping"
            )
        names = {prior.name for prior in self.priors}
        added = []
        for prior in other.priors:
            name = prior.name
            if self.distribution == "worlds":  # where the user gives no names
                numbered = (f"{prior.name} {k}" for k in count(2))
                name = next(n for n in chain([name], numbered) if n not in names)
            names.add(name)
            added.append(attrs.evolve(prior, name=name))
        return attrs.evolve(
            self,
            priors=(*self.priors, *added),
            n_dropped=self.n_dropped + other.n_dropped,
            more_keys=[*self.more_keys, *other.more_keys],
            made=None,
        )

    def with_sampled_priors(self) -> "Scenario":
        """Read the atoms of the priors as draws of populations that are not known otherwise.

        What was the prior (rows of a group, bootstrap replicates, tables of a world) is now an
        independent sample of it, and a certificate carries a failure probability.
        """
        if self.distribution == "groups":
            raise ScenarioError(
                "distribution 'groups' has one value under each secret, not a sample; use "
                "distribution 'bootstrap' or 'records', or 'worlds' with draws of a simulator"
            )
        return attrs.evolve(self, priors=tuple(prior.sampled() for prior in self.priors))

    @property
    def prior_kind(self) -> Kind:
        """Kind of the priors, the same for all of them."""
        return self.priors[0].kind

    @property
    def dim(self) -> int:
        """Dimension of the query."""
        return self.query.dim

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Every prior with every pair."""
        return tuple(Instance(prior, pair) for prior in self.priors for pair in self.pairs)

    def clipped(self) -> dict[str, list[str]]:
        """The secrets under which the public range moves `all`, or `some`, values of the query.

        How many values it moves is a count of confidential rows, and not public.
        """
        clipped: dict[str, list[str]] = {"all": [], "some": []}
        for secret in self.secrets:
            priors = [prior for prior in self.priors if secret in prior.distributions]
            n_clipped = sum(prior.n_clipped.get(secret, 0) for prior in priors)
            if n_clipped:
                n_values = sum(prior.distributions[secret].n_samples for prior in priors)
                clipped["all" if n_clipped == n_values else "some"].append(secret)
        return clipped

    def differing(self) -> Differing:
        """How many rows differ between two protected worlds: a number or its distribution."""
        found = {
            each.differing
            for prior in self.priors
            for each in prior.distributions.values()
            if isinstance(each, RowDistribution) and isinstance(each.differing, Differing)
        }
        if len(found) != 1:
            raise ScenarioError(
                "this scenario does not say how many rows differ; from_prevalence, from_volume and "
                "from_supplier do"
            )
        return found.pop()

    def has_equal_distributions(self) -> bool:
        """Whether the values of the query look the same under both secrets of every instance."""
        return all(
            equal_distributions(prior.distributions[pair.first], prior.distributions[pair.second])
            for prior, pair in self.instances
        )

    def spreads(self) -> dict[str, list[Any]]:
        """Variation of each statistic, in the user's units.

        `difference`: largest difference of its means between two protected secrets. `constant`:
        error (root mean square) of the best constant, under the prior that makes it largest; for
        sums of rows, where every value in the public range is as likely, and for the sums of a
        home by the declared chain and loads. `size`: the largest absolute mean; None for sums of
        centred numbers, whose size says nothing. Confidential.
        """
        differences, constants, sizes = [], [], []
        for prior in self.priors:
            means = np.array([each.mean for each in prior.distributions.values()])
            shares = np.array([prior.secret_probability(secret) for secret in prior.distributions])
            weights = shares / shares.sum()
            rows = [d for d in prior.distributions.values() if isinstance(d, RowDistribution)]
            if rows:
                sizes.append(np.max([np.abs(each.size) for each in rows], axis=0))
                constants.append(np.sqrt(np.max([each.ignorance for each in rows], axis=0)))
            else:
                within = np.array([_variance(each) for each in prior.distributions.values()])
                apart = (means - weights @ means) ** 2
                sizes.append(np.abs(means).max(axis=0))
                constants.append(np.sqrt(weights @ (within + apart)))
            where = {secret: k for k, secret in enumerate(prior.distributions)}
            differences += [
                np.abs(means[where[a]] - means[where[b]])
                for a, b in self.pairs
                if a in where and b in where
            ]
        scales, features = self.query.scales, self.query.features
        size: list[float | None] = (np.max(sizes, axis=0) * scales).tolist()
        if self.prior_kind == "rows" and features is not None:
            centred = [any(factor.center for factor in part.factors) for part in features.parts]
            size = [None if far else value for far, value in zip(centred, size, strict=True)]
        return {
            "difference": (np.max(differences, axis=0) * scales).tolist(),
            "constant": (np.max(constants, axis=0) * scales).tolist(),
            "size": size,
        }

    def description(self) -> dict[str, Any]:
        """Public facts about the scenario, as JSON values."""
        return {
            "distribution": self.distribution,
            "one_release_is": ONE_RELEASE[self.distribution],
            "secret": dict(self.secret),
            "secrets": list(self.secrets),
            "pairs": [list(pair) for pair in self.pairs],
            "priors": [prior.description() for prior in self.priors],
            "query": self.query.description(),
            "rows_dropped": self.n_dropped,
            "clipped": self.clipped(),
        }

    def to_dict(self) -> dict[str, Any]:
        """Public facts about the scenario, as JSON values: its `description`."""
        return self.description()

    @property
    def digest(self) -> str:
        """SHA-256 of the public facts, by which people see that two scenarios are the same.

        `pufferslice calibrate` prints it as well, and a certificate has it as `scenario_digest`.
        Digests of certificates differ always: every one has its own salt.
        """
        return digest(canonical_json(self.description()))

    def to_toml(self, *, files: Mapping[str, str] | None = None) -> str:
        """Write the scenario as the text of a scenario.toml, without a claim.

        Tables that are in memory need a file each: `files` names it by the argument that they were
        given as, or by the world, as `{"table": "people.csv", "moments_from": "last-year.csv"}`.
        What TOML cannot hold, as a Python function, is refused by its name.

        >>> from pufferslice.queries import summary
        >>> scenario = Scenario.from_worlds(
        ...     {"low": GaussianDistribution(mean=[1.0], cov=[[1.0]]),
        ...      "high": GaussianDistribution(mean=[2.0], cov=[[1.0]])},
        ...     query=summary(mean=["age"]),
        ... )
        >>> print(scenario.to_toml().partition("[gaussian")[0].strip())
        [data]
        missing = "refuse"
        <BLANKLINE>
        [query]
        distribution = "worlds"
        mean = ["age"]
        """
        from pufferslice.config.scenario import toml_of_scenario  # noqa: PLC0415 - it is above

        return toml_of_scenario(self, {} if files is None else files)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> "Scenario":
        """Read the scenario of a scenario.toml; its claim, if it has one, is left alone.

        Paths in the file are relative to its folder.
        """
        from pufferslice.config.scenario import scenario_at  # noqa: PLC0415 - it is above

        return scenario_at(path)

    def _compared(self) -> Iterator[bytes]:
        """Bytes by which scenarios are compared: public facts, and all that noise is fitted to."""
        yield canonical_json(self.description())
        yield repr(self.ledger_keys()).encode()
        for prior in self.priors:
            for kept in (prior.distributions, prior.current):
                for secret, distribution in sorted(kept.items()):
                    yield secret.encode()
                    yield from distribution.digest_parts()
                    if isinstance(distribution, RowDistribution):
                        yield from (distribution.row_mean.tobytes(), distribution.row_cov.tobytes())

    def __eq__(self, other: object) -> bool:
        """Whether two scenarios have the same public facts and the same distributions."""
        if not isinstance(other, Scenario):
            return NotImplemented
        return list(self._compared()) == list(other._compared())

    def __hash__(self) -> int:
        return hash(self.digest)

    def ledger_keys(self) -> tuple[str, ...]:
        """Keys of the secret; scenarios that share one are about the same secret.

        They follow from its names: the column and the values of a share, whose size or state it is,
        the columns of a group, the `name` of declared worlds. Never from widths, labels, the query,
        the claim, the order of the rows, or single rows. Confidential.
        """
        return tuple(sorted({*declared_keys(self.secret), *self.more_keys}))

    def distributions_digest(self) -> str:
        """SHA-256 over every distribution.

        Confidential, because data could be guessed and checked.
        """
        parts = []
        for prior in self.priors:
            for secret, distribution in sorted(prior.distributions.items()):
                parts += [prior.name.encode(), secret.encode(), *distribution.digest_parts()]
            for secret, declared in sorted(prior.declared.items()):
                parts += [b"declared", secret.encode(), *declared.digest_parts()]
        return digest(*parts)

    def __repr__(self) -> str:
        return (
            f"Scenario(distribution={self.distribution!r}, n_secrets={len(self.secrets)}, "
            f"n_pairs={len(self.pairs)}, n_priors={len(self.priors)}, dim={self.dim}, "
            f"digest={self.digest[:12]!r})"
        )


def _variance(distribution: Distribution) -> Floats:
    """Variance of each coordinate under one secret."""
    if isinstance(distribution, GaussianDistribution | GaussianMixture):
        return np.diagonal(distribution.cov)
    atoms = distribution.atoms()
    if atoms is None:
        return np.zeros(distribution.dim)
    rows, counts = atoms
    return np.asarray(np.average((rows - distribution.mean) ** 2, axis=0, weights=counts))


def _from_tables(
    table: object,
    distribution: Literal["groups", "bootstrap", "records"],
    secret: Secret,
    query: Query,
    pairs: Pairs,
    source: Source,
    origin: str,
    bootstrap: Bootstrap | None = None,
) -> Scenario:
    tables = table if isinstance(table, Mapping) else {"table": table}
    _check_texts("priors", tables)
    columns = list(dict.fromkeys((*secret_columns(secret), *query.columns)))
    frames: dict[str, Frame] = {}
    n_dropped = 0
    for name, one_table in tables.items():
        frames[name], n = without_missing(frame_of_rows(one_table), columns, query.missing)
        n_dropped += n
    rule = secret_rule(secret, list(frames.values()))
    check_varied(query, list(frames.values()))
    labels = {name: rule.labels(frame) for name, frame in frames.items()}

    def priors_of(query: Query) -> tuple[tuple[Prior, ...], Floats]:
        """Make priors of the tables; also return the ends of the values before clipping."""
        parts = [
            grouped_prior(name, source, origin, query, frame, labels[name], distribution, bootstrap)
            for name, frame in frames.items()
        ]
        return tuple(prior for prior, _ in parts), joined_ends(ends for _, ends in parts)

    priors, ends = priors_of(query)
    secrets = tuple(sorted({value for prior in priors for value in prior.distributions}))
    scenario = Scenario(
        distribution=distribution,
        secret=rule.description(),
        secrets=secrets,
        pairs=chosen_pairs(pairs, secrets),
        priors=priors,
        query=query,
        rule=rule,
        n_dropped=n_dropped,
    )
    check_reached(query, ends)
    free = attrs.evolve(query, range=None)
    _check_clipping(
        scenario,
        lambda: attrs.evolve(scenario, priors=priors_of(free)[0]).has_equal_distributions(),
    )
    return scenario


def _check_clipping(scenario: Scenario, equal_unclipped: Callable[[], bool]) -> None:
    """Refuse distributions that only clipping makes equal: their release would say nothing."""
    clips = any(scenario.clipped().values())
    if clips and scenario.has_equal_distributions() and not equal_unclipped():
        raise ScenarioError(
            "the distributions under all protected secrets are the same only because the public "
            "range clips them: a release would show an end of the range, not the data. Give a "
            "range that holds the query's values, or leave it out"
        )


def _check_secrets(secrets: tuple[str, ...]) -> None:
    if len(secrets) < 2:
        values = ", ".join(map(quoted, secrets)) or "none"
        raise ScenarioError(
            f"the secret must take at least 2 values, found {values}: there is nothing to hide. "
            "Name another column, or give tables with both"
        )


def _check_texts(what: str, named: Mapping[str, object]) -> None:
    if not all(is_a(name, str) and name for name in named):
        kinds = sorted({type(name).__name__ for name in named})
        raise ArgumentError(f"{what} must be named by non-empty strings, got {', '.join(kinds)}")
    if not named and what == "priors":
        raise ArgumentError("at least one table is needed, got none")
