# SPDX-License-Identifier: Apache-2.0
"""A scenario: secrets, the pairs to protect, priors, and the query of one release."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, combinations, count
from operator import attrgetter
from typing import Any, Literal, NamedTuple, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.checks import check_one_of, check_unique, is_a
from pufferslice._core.files import canonical_json, digest
from pufferslice._core.text import given, listed, quoted
from pufferslice._core.threads import Progress, silent
from pufferslice.data.frames import Frame, frame_of, without_missing
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.queries.variation import check_reached, check_varied
from pufferslice.scenario.distributions import (
    GaussianDistribution,
    GaussianMixture,
    Kind,
    equal_distributions,
)
from pufferslice.scenario.histograms import joined_ends
from pufferslice.scenario.priors import (
    LAWS,
    ONE_RELEASE,
    Bootstrap,
    GroupDistributions,
    PluginDistribution,
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
        return _from_tables(
            table,
            distribution="groups",
            secret=secret,
            query=query,
            pairs=pairs,
            source=source,
            make=group_distributions,
            origin="the query on the rows of each group",
        )

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
        return _from_tables(
            table,
            distribution="bootstrap",
            secret=secret,
            query=query,
            pairs=pairs,
            source=source,
            make=partial(bootstrap_distributions, bootstrap=bootstrap),
            origin=origin,
        )

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
        return _from_tables(
            table,
            distribution="records",
            secret=secret,
            query=query,
            pairs=pairs,
            source=source,
            make=record_distributions,
            origin="the query of each row of the group",
        )

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
        Without `source`, that of worlds made of tables is the released data, that of others a
        public model.
        """
        _check_texts("worlds", worlds)
        secrets = tuple(worlds)
        _check_secrets(secrets)
        made = [world for world in worlds.values() if isinstance(world, PluginDistribution)]
        worlds = {
            secret: world.distribution if isinstance(world, PluginDistribution) else world
            for secret, world in worlds.items()
        }
        if any(isinstance(world, GaussianMixture) for world in worlds.values()):
            worlds = {
                secret: GaussianMixture.weighted([world], [1.0])
                if isinstance(world, GaussianDistribution)
                else world
                for secret, world in worlds.items()
            }
        complete: dict[str, World] = {}
        n_dropped = 0
        for secret, world in worlds.items():
            complete[secret], n = complete_world(query, world)
            n_dropped += n
        tables = [tables_of(world) for world in complete.values()]
        if all(tables):
            check_varied(query, list(chain.from_iterable(tables)))
        results = {s: world_distribution(query, s, world) for s, world in complete.items()}
        shares = dict(probabilities or dict.fromkeys(secrets, 1 / len(secrets)))
        check_probabilities_of(secrets, shares)
        if source is None:
            has_data = any(map(is_made_of_data, worlds.values()))
            source = "released_data" if has_data else "public_model"
        prior = Prior(
            name="declared",
            source=source,
            origin="; ".join(dict.fromkeys(result.origin for result in results.values())),
            probabilities=shares,
            distributions={secret: result.distribution for secret, result in results.items()},
            n_clipped={secret: result.n_clipped for secret, result in results.items()},
            n_rows=resampled_rows(complete),
            declared={
                secret: world
                for secret, world in worlds.items()
                if isinstance(world, GaussianDistribution | GaussianMixture)
            },
            has_given_tables=source == "released_data"
            and all(map(is_given_tables, worlds.values())),
            plugins=tuple(dict.fromkeys(world.plugin for world in made)),
        )
        scenario = cls(
            distribution="worlds",
            secret={"worlds": name},
            secrets=secrets,
            pairs=chosen_pairs(pairs, secrets),
            priors=(prior,),
            query=query,
            n_dropped=n_dropped,
        )
        check_reached(query, joined_ends(result.ends for result in results.values()))
        free = attrs.evolve(query, range=None)
        check_clipping(
            scenario,
            lambda: cls.from_worlds(worlds, query=free, pairs=pairs).has_equal_distributions(),
        )
        return scenario

    @staticmethod
    def from_prevalence(
        table: object,
        *,
        column: str,
        value: Any,  # noqa: ANN401 - a value or a condition
        shares: Sequence[float],
        query: Query,
        n_rows: int | None = None,
        design: Literal["stratified", "independent"] = "stratified",
        prior: Literal["gaussian", "draws"] = "gaussian",
        n_draws: int = 500,
        seed: int | None = None,
        within: float | None = None,
        source: Source = "released_data",
        progress: Progress = silent,
    ) -> "Scenario":
        """Hide how common something is: the share of rows whose `column` has `value`.

        In each world a share of `n_rows` rows (by default as many as the table has) has the
        property. `stratified`: exactly that share; `independent`: each row by itself. Rows with and
        without it are drawn with replacement from the table's. `prior="gaussian"`: moments by
        formula for means, rates, counts, totals and tables, by the delta method for other smooth
        functions of means (standard deviations, correlations, groups, linear regressions);
        `"draws"`: `n_draws` tables drawn with `seed`, which are then the prior, for any query, as
        quantiles and other models need. Pairs: all, or shares that differ by at most `within`.
        """
        from pufferslice.scenario.templates import prevalence  # noqa: PLC0415 - it builds on this

        return prevalence(
            table,
            column=column,
            value=value,
            shares=shares,
            query=query,
            n_rows=n_rows,
            design=design,
            prior=prior,
            n_draws=n_draws,
            seed=seed,
            within=within,
            source=source,
            progress=progress,
        )

    @staticmethod
    def from_attribute(
        *,
        query: Query,
        values: Sequence[float],
        mean: npt.ArrayLike | None = None,
        cov: npt.ArrayLike | None = None,
        history: object = None,
        name: str = "attribute",
        within: float | None = None,
        source: Source | None = None,
    ) -> "Scenario":
        """Hide a number that is jointly Gaussian with the released statistics.

        `mean` and `cov` are of the attribute, first, and the statistics of the query, from a model
        or a kernel (`gaussian_process`); or they are those of `history`, a table whose rows are
        earlier cases: a column `name`, and one for each statistic, by its name or its column. The
        secret is which of `values` it has. Pairs: all, or values that differ by at most `within`.
        The `source` is a public model, or held-out data for a history, unless another is given.
        """
        from pufferslice.scenario.templates import attribute  # noqa: PLC0415 - it builds on this

        return attribute(
            query=query,
            values=values,
            mean=mean,
            cov=cov,
            history=history,
            name=name,
            within=within,
            source=source,
        )

    @staticmethod
    def from_markov_chain(
        transition: npt.ArrayLike | Mapping[str, npt.ArrayLike],
        *,
        length: int,
        positions: Sequence[int | tuple[int, int]],
        query: Query,
        start: npt.ArrayLike | Literal["stationary"] = "stationary",
        counted: Sequence[int] | None = None,
        windows: Sequence[tuple[int, int]] | None = None,
        n_draws: int | None = None,
        seed: int | None = None,
        source: Source = "public_model",
        progress: Progress = silent,
    ) -> "Scenario":
        """Hide the state at some times of a Markov chain, where counts of states are released.

        `transition[i][j]` is the probability of state j after state i; a mapping gives several
        chains, each a prior. `positions`, from 0, are the times that matter: at each of them no two
        states are told apart; `(first, last)` is an interval, through all of which the chain has
        one state. The query has a coordinate for each of the `counted` states (by default all but
        the first, which follows), in each of the `windows` (by default all times), which are
        `(first, stop)`. The prior holds each probability to a multiple of 2^-30, and leaves out
        counts that are too rare for that; the certificate says how much. Chains with too many
        counts need `n_draws` with a public `seed`: the drawn counts are then the prior.
        """
        from pufferslice.scenario.templates import markov_chain  # noqa: PLC0415 - it builds on this

        return markov_chain(
            transition,
            length=length,
            positions=positions,
            query=query,
            start=start,
            counted=counted,
            windows=windows,
            n_draws=n_draws,
            seed=seed,
            source=source,
            progress=progress,
        )

    @staticmethod
    def from_volume(
        table: object,
        *,
        sizes: Sequence[int],
        query: Query,
        ratio: float | None = None,
        source: Source = "released_data",
        progress: Progress = silent,
    ) -> "Scenario":
        """Hide how many rows a business has.

        In each world the table has so many rows, drawn with replacement from those of `table`;
        moments by formula or the delta method, as in `from_prevalence` (normal approximation).
        Pairs: all, or sizes within a `ratio`.
        """
        from pufferslice.scenario.templates import volume  # noqa: PLC0415 - it builds on this

        return volume(
            table, sizes=sizes, query=query, ratio=ratio, source=source, progress=progress
        )

    def with_prior(self, other: "Scenario") -> "Scenario":
        """This scenario with the priors of `other` as well."""
        shared = attrgetter("distribution", "secret", "secrets", "pairs", "query", "rule")
        if shared(self) != shared(other):
            msg = (
                "only priors of the same distribution, secrets, pairs and query can be joined, "
                "and bins with the same edges; give both tables at once, as a mapping"
            )
            raise ScenarioError(msg)
        names = {prior.name for prior in self.priors}
        added = []
        for prior in other.priors:
            name = prior.name
            if self.distribution == "worlds":  # where the user gives no names
                numbered = (f"{prior.name} {k}" for k in count(2))
                name = next(n for n in chain([name], numbered) if n not in names)
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
                "distribution 'groups' has one value under each secret, not a sample; use "
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
        clipped: dict[str, list[str]] = {"all": [], "some": []}
        for secret in self.secrets:
            priors = [prior for prior in self.priors if secret in prior.distributions]
            n_clipped = sum(prior.n_clipped.get(secret, 0) for prior in priors)
            if n_clipped:
                n_values = sum(prior.distributions[secret].n_samples for prior in priors)
                clipped["all" if n_clipped == n_values else "some"].append(secret)
        return clipped

    def has_equal_distributions(self) -> bool:
        """Whether the values of the query look the same under both secrets of every instance."""
        return all(
            equal_distributions(prior.distributions[pair.first], prior.distributions[pair.second])
            for prior, pair in self.instances
        )

    def spreads(self) -> dict[str, list[float]] | None:
        """How much each statistic varies, in the user's units; None if values were only counted.

        `difference`: largest difference of its means between two protected secrets. `constant`:
        error (root mean square) of the best constant, under the prior that makes it largest.
        `size`: the largest absolute mean. Confidential.
        """
        differences, constants, sizes = [], [], []
        for prior in self.priors:
            means, squares, shares = [], [], []
            for secret, distribution in prior.distributions.items():
                mean = distribution.mean
                if mean is None:
                    return None
                variance = np.zeros(self.dim)
                if isinstance(distribution, GaussianDistribution | GaussianMixture):
                    variance = np.diagonal(distribution.cov)
                elif (atoms := distribution.atoms()) is not None:
                    rows, counts = atoms
                    variance = np.average((rows - mean) ** 2, axis=0, weights=counts)
                means.append(mean)
                squares.append(variance)
                shares.append(prior.probabilities.get(secret, 0.0))
            weights = np.array(shares) / sum(shares)
            center = weights @ np.array(means)
            off_center = np.array(squares) + (np.array(means) - center) ** 2
            constants.append(np.sqrt(weights @ off_center))
            sizes.append(np.abs(means).max(axis=0))
            where = {secret: k for k, secret in enumerate(prior.distributions)}
            differences += [
                np.abs(means[where[a]] - means[where[b]])
                for a, b in self.pairs
                if a in where and b in where
            ]
        scales = self.query.scales
        return {
            "difference": (np.max(differences, axis=0) * scales).tolist(),
            "constant": (np.max(constants, axis=0) * scales).tolist(),
            "size": (np.max(sizes, axis=0) * scales).tolist(),
        }

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
                parts += [prior.name.encode(), secret.encode(), *distribution.digest_parts()]
            for secret, declared in sorted(prior.declared.items()):
                parts += [b"declared", secret.encode(), *declared.digest_parts()]
        return digest(*parts)

    def __repr__(self) -> str:
        return (
            f"Scenario(distribution={self.distribution!r}, n_secrets={len(self.secrets)}, "
            f"n_pairs={len(self.pairs)}, n_priors={len(self.priors)}, dim={self.dim})"
        )


DistributionMaker = Callable[[Query, Frame, npt.NDArray[np.str_]], GroupDistributions]
"""From a query, a table and the secret of its rows to distributions and row counts."""


def _from_tables(
    table: object,
    *,
    distribution: Literal["groups", "bootstrap", "records"],
    secret: Secret,
    query: Query,
    pairs: Pairs,
    source: Source,
    make: DistributionMaker,
    origin: str,
) -> Scenario:
    tables = table if isinstance(table, Mapping) else {"table": table}
    _check_texts("priors", tables)
    columns = list(dict.fromkeys((*secret_columns(secret), *query.columns)))
    frames: dict[str, Frame] = {}
    n_dropped = 0
    for name, one_table in tables.items():
        frames[name], n = without_missing(frame_of(one_table), columns, query.missing)
        n_dropped += n
    rule = secret_rule(secret, list(frames.values()))
    check_varied(query, list(frames.values()))
    priors, ends = [], []
    for name, frame in frames.items():
        labels = rule.labels(frame)
        groups = make(query, frame, labels)
        ends.append(groups.ends)
        priors.append(
            Prior(
                name=name,
                source=source,
                origin=origin,
                probabilities={value: n / len(labels) for value, n in groups.n_rows.items()},
                distributions=groups.distributions,
                n_rows=groups.n_rows,
                n_clipped=groups.n_clipped,
            )
        )
    secrets = tuple(sorted({value for prior in priors for value in prior.distributions}))
    scenario = Scenario(
        distribution=distribution,
        secret=rule.description(),
        secrets=secrets,
        pairs=chosen_pairs(pairs, secrets),
        priors=tuple(priors),
        query=query,
        rule=rule,
        n_dropped=n_dropped,
    )
    check_reached(query, joined_ends(ends))
    check_clipping(
        scenario,
        lambda: _from_tables(
            table,
            distribution=distribution,
            secret=secret,
            query=attrs.evolve(query, range=None),
            pairs=pairs,
            source=source,
            make=make,
            origin=origin,
        ).has_equal_distributions(),
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
    if not is_a(pairs, Iterable):
        msg = f"pairs must be 'all' or a list of pairs of secrets, got {given(pairs)}"
        raise ArgumentError(msg)
    chosen = []
    for pair in pairs:
        n_secrets = len(pair) if is_a(pair, list | tuple) else 0
        if n_secrets != 2 or pair[0] == pair[1]:
            # A string here is part of what came in place of pairs, which is not shown.
            shown = given(pair) if is_a(pair, list | tuple) else f"a {type(pair).__name__}"
            msg = f"a pair must name two different secrets, got {shown}"
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
        values = ", ".join(map(quoted, secrets)) or "none"
        msg = (
            f"the secret must take at least 2 values, found {values}: there is nothing to hide. "
            "Name another column, or give tables with both"
        )
        raise ScenarioError(msg)


def _check_texts(what: str, named: Mapping[str, object]) -> None:
    if not all(is_a(name, str) and name for name in named):
        kinds = sorted({type(name).__name__ for name in named})
        msg = f"{what} must be named by non-empty strings, got {', '.join(kinds)}"
        raise ArgumentError(msg)
    if not named and what == "priors":
        msg = "at least one table is needed, got none"
        raise ArgumentError(msg)


def _check_comparable(instance: Instance) -> None:
    for secret in instance.pair:
        if not instance.prior.secret_probability(secret) > 0:
            msg = (
                f"pair {given(tuple(instance.pair))} is not comparable: prior "
                f"{quoted(instance.prior.name)} gives {quoted(secret)} probability 0. Drop the "
                "pair, or give a prior under which both secrets can occur"
            )
            raise ScenarioError(msg)
