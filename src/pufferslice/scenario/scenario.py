# SPDX-License-Identifier: Apache-2.0
"""Scenario: what is protected from whom: secrets, pairs, priors, and the query of one release."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, count
from typing import Any, Literal, NamedTuple, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.checks import check_one_of, check_unique
from pufferslice._core.files import canonical_json, digest
from pufferslice._core.text import given, listed, quoted
from pufferslice.data import Frame, frame_of, without_missing
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.queries.variation import check_reached, check_varied
from pufferslice.scenario.distributions import (
    GaussianDistribution,
    distribution_bytes,
    look_equal,
    n_samples_of,
)
from pufferslice.scenario.histograms import joined_ends
from pufferslice.scenario.priors import (
    LAWS,
    ONE_RELEASE,
    Bootstrap,
    GroupDistributions,
    Kind,
    Prior,
    Source,
    World,
    bootstrap_distributions,
    check_probabilities_of,
    complete_world,
    group_distributions,
    is_given_tables,
    is_made_of_data,
    record_distributions,
    resampled_rows,
    tables_of,
    world_distribution,
)
from pufferslice.scenario.secrets import Bins, SecretRule, secret_columns, secret_rule

Secret = str | Sequence[str] | Bins
Pairs = Literal["all"] | Sequence[tuple[str, str]]


class SecretPair(NamedTuple):
    """Two secrets that must not be told apart; protected in both orders."""

    first: str
    second: str


class Instance(NamedTuple):
    """One prior and one pair: what the definition quantifies over."""

    prior: Prior
    pair: SecretPair


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class Scenario:
    """Secrets, the pairs to protect, the priors, and the query of one release.

    Build one with `from_groups`, `from_bootstrap`, `from_records` or `from_worlds`.
    """

    distribution: Literal["groups", "bootstrap", "records", "worlds"]
    """What one release is."""
    secret: Mapping[str, Any]
    """Public description of the secret."""
    secrets: tuple[str, ...]
    """The values that the secret can take."""
    pairs: tuple[SecretPair, ...]
    """The protected pairs."""
    priors: tuple[Prior, ...]
    query: Query
    rule: SecretRule | None = None
    """How the secret of a row is read; none for worlds."""
    n_dropped: int = 0
    """Rows left out because of missing values."""
    counted_range: Mapping[str, Any] | None = None
    """Where streamed rows were counted, described as a range of a query is."""

    def __attrs_post_init__(self) -> None:
        check_one_of(LAWS, distribution=self.distribution)
        _check_secrets(self.secrets)
        check_unique("priors", [prior.name for prior in self.priors])
        if len({prior.kind for prior in self.priors}) != 1:
            msg = (
                "priors of one scenario must be all empirical, all sampled or all Gaussian; make "
                "two scenarios"
            )
            raise ScenarioError(msg)
        for instance in self.instances:
            _check_comparable(instance)

    @classmethod
    def from_groups(
        cls,
        table: object,
        *,
        secret: Secret,
        query: Query,
        pairs: Pairs = "all",
        source: Source = "released_data",
    ) -> "Scenario":
        """One release is the query on the rows of one group; the secret is which group.

        `table` may be a mapping from names of priors to tables: then every one is a prior.
        """
        made = (group_distributions, "the query on the rows of each group")
        return _from_tables(cls, "groups", (table, secret, query, pairs, source), made)

    @classmethod
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
        """As `from_groups`, but the distribution under a secret is the query on resampled rows."""
        origin = (
            f"{bootstrap.n_replicates} bootstrap replicates of each group, of the group's own "
            f"size, public seed {bootstrap.seed}; the drawn sample is declared to be the prior"
        )
        made = (partial(bootstrap_distributions, bootstrap=bootstrap), origin)
        return _from_tables(cls, "bootstrap", (table, secret, query, pairs, source), made)

    @classmethod
    def from_records(
        cls,
        table: object,
        *,
        secret: Secret,
        query: Query,
        pairs: Pairs = "all",
        source: Source = "released_data",
    ) -> "Scenario":
        """One release is the query of one row; the secret is that row's group."""
        made = (record_distributions, "the query of each row of the group")
        return _from_tables(cls, "records", (table, secret, query, pairs, source), made)

    @classmethod
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
        """One release is the query on a whole table; the secret is which world it comes from.

        A world is a table, a list of tables, `Resampled`, a sample of a simulator, or a
        distribution of the query itself. Without `probabilities` the worlds are equally likely.
        Without `source`, worlds made of tables are said to be the released data, others a public
        model.
        """
        _check_texts("worlds", worlds)
        secrets = tuple(worlds)
        _check_secrets(secrets)
        kept = {secret: complete_world(query, world) for secret, world in worlds.items()}
        tables = {secret: tables_of(world) for secret, (world, _) in kept.items()}
        if all(tables.values()):
            check_varied(query, [table for found in tables.values() for table in found])
        made = {
            secret: world_distribution(query, secret, world) for secret, (world, _) in kept.items()
        }
        own = any(map(is_made_of_data, worlds.values()))
        shares = dict(probabilities or dict.fromkeys(secrets, 1 / max(1, len(secrets))))
        check_probabilities_of(secrets, shares)
        made_from = source or ("released_data" if own else "public_model")
        given = all(map(is_given_tables, worlds.values()))
        prior = Prior(
            name="declared",
            source=made_from,
            origin="; ".join(dict.fromkeys(one.origin for one in made.values())),
            probabilities=shares,
            distributions={secret: one.distribution for secret, one in made.items()},
            n_clipped={secret: one.n_clipped for secret, one in made.items()},
            n_rows=resampled_rows({secret: world for secret, (world, _) in kept.items()}),
            declared={
                s: world for s, world in worlds.items() if isinstance(world, GaussianDistribution)
            },
            has_given_tables=given and made_from == "released_data",
        )
        scenario = cls(
            distribution="worlds",
            secret={"worlds": name},
            secrets=secrets,
            pairs=chosen_pairs(pairs, secrets),
            priors=(prior,),
            query=query,
            n_dropped=sum(n for _, n in kept.values()),
        )
        check_reached(query, joined_ends(one.ends for one in made.values()))
        free = attrs.evolve(query, range=None)
        check_clipping(
            scenario,
            lambda: cls.from_worlds(worlds, query=free, pairs=pairs).has_equal_distributions(),
        )
        return scenario

    def with_prior(self, other: "Scenario") -> "Scenario":
        """This scenario, held under the priors of `other` as well."""
        mine = (self.distribution, self.secret, self.secrets, self.pairs, self.query, self.rule)
        theirs = (
            other.distribution,
            other.secret,
            other.secrets,
            other.pairs,
            other.query,
            other.rule,
        )
        if mine != theirs:
            msg = (
                "only priors of the same distribution, secrets, pairs and query can be joined, "
                "and bins with the same edges; give both tables at once, as a mapping"
            )
            raise ScenarioError(msg)
        names = {prior.name for prior in self.priors}
        added = []
        for prior in other.priors:
            spellings = (
                _spellings(prior.name) if self.distribution == "worlds" else iter([prior.name])
            )
            name = next((n for n in spellings if n not in names), prior.name)
            names.add(name)
            added.append(attrs.evolve(prior, name=name))
        dropped = self.n_dropped + other.n_dropped
        return attrs.evolve(self, priors=(*self.priors, *added), n_dropped=dropped)

    def with_sampled_priors(self) -> "Scenario":
        """This scenario, but the priors are populations that are known only through the draws.

        What was the prior (rows of a group, bootstrap replicates, tables of a world) is now an
        independent sample of it, and a certificate carries a failure probability.
        """
        if self.distribution == "groups":
            msg = (
                "distribution 'groups' has one value under each secret, which is no sample; use "
                "distribution 'bootstrap' or 'records', or 'worlds' with draws of a simulator"
            )
            raise ScenarioError(msg)
        return attrs.evolve(self, priors=tuple(prior.sampled() for prior in self.priors))

    @property
    def prior_kind(self) -> Kind:
        """How the priors are known; all of them in the same way."""
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
        found: dict[str, list[str]] = {"all": [], "some": []}
        for secret in self.secrets:
            priors = [prior for prior in self.priors if secret in prior.distributions]
            n_clipped = sum(prior.n_clipped.get(secret, 0) for prior in priors)
            if n_clipped:
                n_values = sum(n_samples_of(prior.distributions[secret]) for prior in priors)
                found["all" if n_clipped == n_values else "some"].append(secret)
        return found

    def has_equal_distributions(self) -> bool:
        """Whether the values of the query look the same under both secrets of every instance."""
        return all(
            look_equal(prior.distributions[pair.first], prior.distributions[pair.second])
            for prior, pair in self.instances
        )

    def description(self) -> dict[str, Any]:
        """All that is public about the scenario, as JSON values."""
        return {
            "distribution": self.distribution,
            "one_release_is": ONE_RELEASE[self.distribution],
            "secret": dict(self.secret),
            "secrets": list(self.secrets),
            "pairs": [list(pair) for pair in self.pairs],
            "priors": [prior.description() for prior in self.priors],
            "query": self.query.description(),
            "rows_dropped": self.n_dropped,
            "counted_range": None if self.counted_range is None else dict(self.counted_range),
            "clipped": self.clipped(),
        }

    def key(self) -> str:
        """Identifies whose secret a ledger is about, whatever is asked of the data."""
        return digest(canonical_json([dict(self.secret), sorted(self.secrets)]))

    def distributions_digest(self) -> str:
        """SHA-256 over every distribution.

        Confidential, because data could be guessed and checked.
        """
        parts = []
        for prior in self.priors:
            for secret, distribution in sorted(prior.distributions.items()):
                parts += [prior.name.encode(), secret.encode(), *distribution_bytes(distribution)]
            for secret, declared in sorted(prior.declared.items()):
                parts += [b"declared", secret.encode(), *distribution_bytes(declared)]
        return digest(*parts)

    def __repr__(self) -> str:
        return (
            f"Scenario(distribution={self.distribution!r}, n_secrets={len(self.secrets)}, "
            f"n_pairs={len(self.pairs)}, n_priors={len(self.priors)}, dim={self.dim})"
        )


DistributionMaker = Callable[[Query, Frame, npt.NDArray[np.str_]], GroupDistributions]
"""From a query, a table and the secret of its rows to distributions and row counts."""


def _from_tables(
    cls: type[Scenario],
    distribution: Literal["groups", "bootstrap", "records"],
    said: tuple[object, Secret, Query, Pairs, Source],
    made: tuple[DistributionMaker, str],
) -> Scenario:
    (table, secret, query, pairs, source), (make, origin) = said, made
    tables = table if isinstance(table, Mapping) else {"table": table}
    _check_texts("priors", tables)
    read = dict.fromkeys((*secret_columns(secret), *query.columns))
    kept = {
        name: without_missing(frame_of(one), list(read), query.missing)
        for name, one in tables.items()
    }
    frames = [frame for frame, _ in kept.values()]
    rule = secret_rule(secret, frames)
    check_varied(query, frames)
    priors, ends = [], []
    for name, (frame, _) in kept.items():
        labels = rule.labels(frame)
        distributions, n_rows, n_clipped, ends_of_distributions = make(query, frame, labels)
        ends.append(ends_of_distributions)
        shares = {secret: n / len(labels) for secret, n in n_rows.items()}
        priors.append(
            Prior(
                name=name,
                source=source,
                origin=origin,
                probabilities=shares,
                distributions=distributions,
                n_rows=n_rows,
                n_clipped=n_clipped,
            )
        )
    secrets = tuple(sorted({secret for prior in priors for secret in prior.distributions}))
    scenario = cls(
        distribution=distribution,
        secret=rule.description(),
        secrets=secrets,
        pairs=chosen_pairs(pairs, secrets),
        priors=tuple(priors),
        query=query,
        rule=rule,
        n_dropped=sum(n for _, n in kept.values()),
    )
    check_reached(query, joined_ends(ends))
    free = attrs.evolve(query, range=None)
    again = (table, secret, free, pairs, source)
    check_clipping(
        scenario, lambda: _from_tables(cls, distribution, again, made).has_equal_distributions()
    )
    return scenario


def check_clipping(scenario: Scenario, equal_unclipped: Callable[[], bool]) -> None:
    """Refuse distributions that only clipping makes equal: their release would say nothing."""
    clips = any(scenario.clipped().values())
    if clips and scenario.has_equal_distributions() and not equal_unclipped():
        msg = (
            "the distributions under all protected secrets are the same only because the public "
            "range clips them: a release would show an end of the range, not the data. Give a "
            "range that holds the query's values, or leave it out"
        )
        raise ScenarioError(msg)


def chosen_pairs(pairs: Pairs, secrets: tuple[str, ...]) -> tuple[SecretPair, ...]:
    """The declared pairs in the order of the secrets, each once."""
    if isinstance(pairs, str):
        check_one_of(("all",), pairs=pairs)
        return tuple(SecretPair(a, b) for a, b in combinations(secrets, 2))
    if not isinstance(pairs, Iterable):
        msg = f"pairs must be 'all' or a list of pairs of secrets, got {given(pairs)}"
        raise ArgumentError(msg)
    chosen = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or pair[0] == pair[1]:
            # A text here is not a name that was typed, but part of what came in place of pairs.
            found = given(pair) if isinstance(pair, list | tuple) else f"a {type(pair).__name__}"
            msg = f"a pair must name two different secrets, got {found}"
            raise ArgumentError(msg)
        for secret in pair:
            if secret not in secrets:
                msg = (
                    f"pair {given(tuple(pair))} names no secret {given(secret)}; the secrets are "
                    f"{listed(secrets)}"
                )
                raise ScenarioError(msg)
        chosen.append(SecretPair(*sorted(pair, key=secrets.index)))
    if not chosen:
        msg = "pairs must name at least one pair of secrets, or be 'all'"
        raise ArgumentError(msg)
    return tuple(dict.fromkeys(chosen))


def _check_secrets(secrets: tuple[str, ...]) -> None:
    if len(secrets) < 2:
        found = ", ".join(map(quoted, secrets)) or "none"
        msg = (
            f"the secret must take at least 2 values, found {found}: there is nothing to hide. "
            "Name another column, or give tables with both"
        )
        raise ScenarioError(msg)


def _check_texts(what: str, named: Mapping[str, object]) -> None:
    if not all(isinstance(name, str) and name for name in named):
        kinds = sorted({type(name).__name__ for name in named})
        msg = f"{what} must be named by texts that are not empty, got {', '.join(kinds)}"
        raise ArgumentError(msg)
    if not named and what == "priors":
        msg = "at least one table is needed, got none"
        raise ArgumentError(msg)


def _spellings(name: str) -> Iterator[str]:
    """The name, then the name with a number."""
    yield name
    for k in count(2):
        yield f"{name} {k}"


def _check_comparable(instance: Instance) -> None:
    for secret in instance.pair:
        if not instance.prior.secret_probability(secret) > 0:
            msg = (
                f"pair {given(tuple(instance.pair))} is not comparable: prior "
                f"{quoted(instance.prior.name)} gives {quoted(secret)} probability 0. Drop the "
                "pair, or give a prior under which both secrets can occur"
            )
            raise ScenarioError(msg)
