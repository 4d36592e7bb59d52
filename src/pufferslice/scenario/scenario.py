# SPDX-License-Identifier: Apache-2.0
"""A scenario: secrets, the pairs to protect, priors, and the query of one release."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, combinations, count
from operator import attrgetter
from typing import Any, Literal, NamedTuple, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, locked
from pufferslice._core.checks import check_count, check_fits, check_one_of, check_unique, is_a
from pufferslice._core.files import canonical_json, digest
from pufferslice._core.text import given, listed, quoted
from pufferslice._core.threads import Progress, silent
from pufferslice.data.frames import Frame, complete_part, frame_of, without_missing
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.queries.conditions import Condition, conditions_of
from pufferslice.queries.ranges import joined_ends
from pufferslice.queries.variation import (
    check_possible,
    check_reached,
    check_varied,
    near_matches,
)
from pufferslice.scenario.distributions import (
    FiniteDistribution,
    GaussianDistribution,
    GaussianMixture,
    Kind,
    equal_distributions,
)
from pufferslice.scenario.priors import (
    DECLARED,
    LAWS,
    ONE_RELEASE,
    Bootstrap,
    Prior,
    Source,
    TableWorld,
    World,
    check_level,
    check_probabilities_of,
    complete_world,
    grouped_prior,
    world_distribution,
)
from pufferslice.scenario.rows import (
    DESIGNS,
    FEWEST_ROWS,
    Design,
    RowDistribution,
    RowTable,
    check_both_kinds,
    frame_of_rows,
    share_differing,
    size_differing,
    two_worlds,
)
from pufferslice.scenario.secrets import Bins, SecretRule, secret_columns, secret_rule
from pufferslice.scenario.templates import (
    LEAST_SHARE,
    NO_NORMAL_LAW,
    PRIOR_FORMS,
    PriorForm,
    drawn_path,
    held_counts,
    is_index,
    ordered_pairs,
    share_names,
    state_counts,
    stationary,
    time_span,
    window_span,
)

Secret = str | Sequence[str] | Bins
Pairs = Literal["all"] | Sequence[tuple[str, str]]


class SecretPair(NamedTuple):
    """Pair of secrets that must not be told apart, protected in both orders."""

    first: str
    second: str


class Instance(NamedTuple):
    """Instance of the definition: one prior and one pair."""

    prior: Prior
    pair: SecretPair


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class Scenario:
    """Secrets, the pairs to protect, the priors, and the query of one release.

    Build one with `from_prevalence`, `from_attribute`, `from_markov_chain`, `from_volume`,
    `from_groups`, `from_bootstrap`, `from_records` or `from_worlds`.
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

    @classmethod
    def from_prevalence(
        cls,
        table: object,
        *,
        column: str,
        value: Any,  # a value or a condition
        query: Query,
        within: float | None = None,
        moments_from: object = None,
        n_rows: int | None = None,
        design: Design = "stratified",
        prior: PriorForm | Literal["gaussian"] = "rows",
        shares: Sequence[float] | None = None,
        n_draws: int = 500,
        seed: int | None = None,
        source: Source | None = None,
        progress: Progress = silent,
    ) -> "Scenario":
        """Hide how common something is: the share of rows whose `column` has `value`.

        Any two shares at most `within` apart are hidden, as `within=0.05` for five points, even
        from someone who knows every row but those that make the difference. The query is a sum
        over rows: means and rates of all rows, totals, counts, cross tables, each with a public
        `clip` range. The noise is fitted to the rows of `moments_from`, an earlier, held-out or
        public table; without it, to those of `table`, and the certificate says so. `n_rows` is the
        public number of rows that a release has, by default that of `table`. `stratified`: exactly
        a share of the rows has the property; `independent`: each row by itself.

        `prior="draws"` is for queries that are not sums, as quantiles: `n_draws` tables of each of
        the `shares`, drawn with `seed`, are then the prior, and the claim is about these tables.
        Pairs: all, or shares that differ by at most `within`.
        """
        check_level(query, "table", "worlds")
        check_one_of(DESIGNS, design=design)
        if prior == "gaussian":
            raise ScenarioError(NO_NORMAL_LAW)
        check_one_of(PRIOR_FORMS, prior=prior)
        ((_, condition),) = conditions_of("value", {column: value})
        if prior == "draws":
            return _drawn_prevalence(
                cls,
                table,
                column=column,
                condition=condition,
                query=query,
                shares=shares,
                within=within,
                n_rows=n_rows,
                design=design,
                n_draws=n_draws,
                seed=seed,
                source=source or "released_data",
                progress=progress,
            )
        if shares is not None or seed is not None:
            raise ArgumentError(
                "shares and seed go with prior='draws'; hide any two shares within a distance with "
                "within=0.05"
            )
        if within is None:
            raise ArgumentError(
                "within must say how far apart two shares may be that are hidden, as within=0.05"
            )
        if table is None and n_rows is None:
            raise ArgumentError("n_rows is required where no table is given")
        if table is None and moments_from is None:
            raise ArgumentError("give a table, or moments_from and n_rows")
        n = len(frame_of_rows(table)) if n_rows is None else n_rows
        differing = share_differing(within, n, design)
        rows = RowTable.of(
            table if moments_from is None else moments_from, query, n_rows=n, also=column
        )
        part, present = complete_part(rows.frame, column)
        has = np.zeros(len(rows.frame), dtype=np.bool_)
        if present.any():
            has[present] = condition.flags(part, column)
        property_name = condition.on(column)
        hint = ""
        if not has.any() and condition.comparison == "equals" and present.any():
            hint = near_matches(column, str(condition.value), [part])
        check_both_kinds(has, property_name, hint)
        secret = {
            "share_of": property_name,
            "within": float(within),
            "n_rows": int(n),
            "n_differing": share_differing(within, n, "stratified").most,
            "design": design,
        }
        names = ("the smaller share", "the larger share")
        return _of_rows(
            cls,
            rows,
            two_worlds(names, (rows.rows[~has], rows.rows[has]), rows, differing),
            secret=secret,
            source=source or ("released_data" if moments_from is None else "held_out"),
            origin=f"means and covariances of rows with and without {property_name}",
            n_rows=n,
        )

    @classmethod
    def from_attribute(
        cls,
        *,
        query: Query,
        values: Sequence[float],
        mean: npt.ArrayLike | None = None,
        cov: npt.ArrayLike | None = None,
        history: object = None,
        name: str = "attribute",
        within: float | None = None,
        source: Source = "public_model",
    ) -> "Scenario":
        """Hide a number that is jointly Gaussian with the released statistics.

        `mean` and `cov` are of the attribute, first, and the statistics of the query, from a model
        or a kernel (`gaussian_process`). The secret is which of `values` it has. Pairs: all, or
        values that differ by at most `within`. A `history` of earlier cases is refused: they need
        not be normal.
        """
        if history is not None:
            raise ScenarioError(
                "a history of cases is not a normal distribution, and noise that is fitted as if "
                "it were one can reveal the attribute. Declare mean and cov of a model that you "
                "trust, or put the cases into bins with Scenario.from_records"
            )
        if mean is None or cov is None:
            raise ArgumentError("give mean and cov, of the attribute first and then the statistics")
        joint = GaussianDistribution(mean=mean, cov=cov)
        origin = f"statistics and {quoted(name)} jointly Gaussian, given the value of the latter"
        if joint.dim != query.dim + 1:
            raise ArgumentError(
                f"mean and cov (or the times of a process) must have {query.dim + 1} coordinates, "
                f"the attribute first and then those of the query; got {joint.dim}"
            )
        numbers = {f"{value:.12g}": float(value) for value in values}
        if len(numbers) < 2 or len(numbers) != len(values):
            raise ArgumentError("values must be at least two different numbers")
        worlds: dict[str, Any] = {
            label: joint.conditioned(on=[0], at=[value]) for label, value in numbers.items()
        }
        pairs: Pairs = "all" if within is None else ordered_pairs(numbers, difference=within)
        scenario = cls.from_worlds(worlds, query=query, pairs=pairs, source=source, name=name)
        return _with_origin(scenario, origin)

    @classmethod
    def from_markov_chain(
        cls,
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
        one state. The query counts states, or is their share of all times: `count` or `rate` of the
        values of one column. It has a coordinate for each of the `counted` states (by default all
        but the first, which follows), in each of the `windows` (by default all times), which are
        `(first, stop)`. The prior holds each probability to a multiple of 2^-30, and leaves out
        counts that are too rare for that; the certificate says how much. Chains with too many
        counts need `n_draws` with a public `seed`: the drawn counts are then the prior. A release
        takes one row for each time.
        """
        chains = transition if isinstance(transition, Mapping) else {"chain": transition}
        is_share = _is_share_of_states(query)
        check_count(2, length=length)
        check_fits(1, length=length)
        if query.missing != "refuse":
            raise ArgumentError(
                f"query must refuse missing values, got {given(query.missing)}: a chain has a "
                'state at every time. Use query.with_missing("refuse"), in a file missing = '
                '"refuse", and fill gaps before the release'
            )
        if (n_draws is None) != (seed is None):
            raise ArgumentError(
                "n_draws and seed go together: draws of the chain need a public seed"
            )
        if n_draws is not None and seed is not None:
            check_count(2, n_draws=n_draws)
            check_count(0, seed=seed)
            check_fits(length, n_draws=n_draws)
        times = [time_span(position, length) for position in positions]
        windows = [(0, length)] if windows is None else windows
        spans = [window_span(window, length) for window in windows]
        scenario = None
        for name, matrix in chains.items():
            chain = locked(matrix)
            n_states = len(chain)
            square = chain.ndim == 2 and chain.shape == (n_states, n_states) and n_states >= 2
            shares = square and chain.min() >= 0
            if not shares or np.abs(chain.sum(axis=1) - 1).max() > 1e-9:
                raise ArgumentError(
                    "transition must be a square matrix of probabilities whose rows sum to 1"
                )
            first = stationary(chain) if isinstance(start, str) else locked(start)
            if first.shape != (n_states,) or not (first.min() >= 0 and abs(first.sum() - 1) < 1e-9):
                raise ArgumentError(
                    f"start must be 'stationary' or {n_states} probabilities that sum to 1"
                )
            states = list(range(1, n_states)) if counted is None else list(counted)
            if not all(is_index(s, n_states) for s in states) or len(set(states)) != len(states):
                raise ArgumentError(f"counted must be different states from 0 to {n_states - 1}")
            coordinates = [(span, state) for span in spans for state in states]
            if query.dim != len(coordinates):
                raise ArgumentError(
                    f"the query must have one coordinate for each counted state of each window "
                    f"({len(coordinates)}), got {query.dim}; the last state follows from the others"
                )
            worlds: dict[str, Any] = {}
            pairs: list[tuple[str, str]] = []
            errors, left_out = [0.0], 0.0
            for number, known in enumerate(times):
                labels = []
                for state in range(n_states):
                    label = f"state {state} at {known.start}"
                    if len(known) > 1:
                        label = f"state {state} from {known.start} to {known.stop - 1}"
                    if n_draws is not None:
                        rng = np.random.default_rng([seed or 0, number, state])
                        path = drawn_path(chain, first, length, known, state, n_draws, rng)
                        if path is None:
                            continue
                        rows = [
                            (path[:, span.start : span.stop] == k).sum(1) for span, k in coordinates
                        ]
                        held = FiniteDistribution.uniform(np.stack(rows, axis=1))
                    else:
                        masses = state_counts(chain, first, length, known, state, coordinates)
                        if masses is None:
                            continue
                        held, error, rare = held_counts(masses)
                        errors.append(error)
                        left_out = max(left_out, rare)
                    if is_share:
                        held = attrs.evolve(held, outputs=held.outputs / length)
                    worlds[label] = held
                    labels.append(label)
                pairs += combinations(labels, 2)
                progress(number + 1, len(times))
            origin = f"counts of {length} states of a Markov chain with {n_states} states"
            if n_draws is not None:
                origin += f", {n_draws} draws per secret, public seed {seed}; {DECLARED}"
            else:
                origin += (
                    "; the prior has their probabilities held to multiples of 2^-30, each within "
                    f"{max(errors):.2g} of itself"
                )
            if left_out:
                origin += (
                    f"; counts rarer than {LEAST_SHARE:.1g} are left out, under each secret of "
                    f"probability {left_out:.2g} together at most, which the chain itself adds to "
                    "a delta and to right guesses"
                )
            part = cls.from_worlds(
                worlds, query=query, pairs=pairs, source=source, name="state at a time"
            )
            n_rows = dict.fromkeys(worlds, length)
            part = _with_origin(part, origin, n_rows=n_rows, name=str(name))
            scenario = part if scenario is None else scenario.with_prior(part)
        if scenario is None:
            raise ArgumentError("transition must hold at least one chain")
        return scenario

    @classmethod
    def from_volume(
        cls,
        table: object,
        *,
        query: Query,
        up_to: int,
        ratio: float = 1.1,
        moments_from: object = None,
        name: str = "the table",
        source: Source | None = None,
    ) -> "Scenario":
        """Hide how many rows a business has.

        Any two sizes within a `ratio` are hidden, up to the largest size `up_to`, which is public.
        The query is made of totals and counts, each with a public `clip` range; a mean would divide
        by the hidden number. The noise is fitted to the rows of `moments_from`, as in
        `from_prevalence`. The number of rows is never printed. `name` says whose size it is.
        """
        check_level(query, "table", "worlds")
        differing = size_differing(ratio, up_to)
        rows = RowTable.of(table if moments_from is None else moments_from, query, up_to=up_to)
        if len(rows.frame) < FEWEST_ROWS:
            raise ScenarioError(f"a volume needs at least {FEWEST_ROWS} rows")
        secret = {
            "size_of": name,
            "ratio": float(ratio),
            "up_to": int(up_to),
            "n_differing": differing.most,
        }
        names = ("the smaller size", "the larger size")
        return _of_rows(
            cls,
            rows,
            two_worlds(names, (np.zeros((1, query.dim)), rows.rows), rows, differing),
            secret=secret,
            source=source or ("released_data" if moments_from is None else "held_out"),
            origin="the mean and the covariance of the rows",
            n_rows=None,
        )

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
            self, priors=(*self.priors, *added), n_dropped=self.n_dropped + other.n_dropped
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

    def has_equal_distributions(self) -> bool:
        """Whether the values of the query look the same under both secrets of every instance."""
        return all(
            equal_distributions(prior.distributions[pair.first], prior.distributions[pair.second])
            for prior, pair in self.instances
        )

    def spreads(self) -> dict[str, list[float]]:
        """Variation of each statistic, in the user's units.

        `difference`: largest difference of its means between two protected secrets. `constant`:
        error (root mean square) of the best constant, under the prior that makes it largest.
        `size`: the largest absolute mean. Confidential.
        """
        differences, constants, sizes = [], [], []
        for prior in self.priors:
            means, squares, shares = [], [], []
            for secret, distribution in prior.distributions.items():
                mean = distribution.mean
                variance = np.zeros(self.dim)
                if isinstance(distribution, GaussianDistribution | GaussianMixture):
                    variance = np.diagonal(distribution.cov)
                elif isinstance(distribution, RowDistribution):
                    mean = distribution.size + distribution.mean
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

    def key(self) -> str:
        """Identify whose secret a ledger is about, whatever is asked of the data."""
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
        frames[name], n = without_missing(frame_of(one_table), columns, query.missing)
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


def _is_share_of_states(query: Query) -> bool:
    """Whether a query is of shares of states; refused if it is not of counts either."""
    kinds = {coordinate.statistic for coordinate in query.coordinates}
    stated = query.parameters
    cells = [[entry] for kind in ("count", "rate") for entry in stated.get(kind) or []]
    cells = cells or stated.get("by") or []
    labels = [{entry["column"] for entry in cell if "equals" in entry} for cell in cells]
    states = set.intersection(*labels) if labels else set()
    if kinds not in ({"count"}, {"rate"}) or not states:
        raise ScenarioError(
            "the query of a Markov chain must be a count or a rate of states: values of one "
            "column, as summary(count={'state': 1}). Nothing is known about other numbers of a "
            "time, as loads, and noise for counts does not hide the state in them"
        )
    return kinds == {"rate"}


def _of_rows(
    cls: type[Scenario],
    rows: RowTable,
    worlds: Mapping[str, RowDistribution],
    *,
    secret: Mapping[str, Any],
    source: Source,
    origin: str,
    n_rows: int | None,
) -> Scenario:
    """Make a scenario of two worlds that differ in some rows: any two values within a range."""
    prior = Prior(
        name="rows",
        source=source,
        origin=origin,
        probabilities=dict.fromkeys(worlds, 0.5),
        distributions=worlds,
        n_rows={} if n_rows is None else dict.fromkeys(worlds, n_rows),
    )
    return cls(
        distribution="worlds",
        secret=secret,
        secrets=tuple(worlds),
        pairs=chosen_pairs("all", tuple(worlds)),
        priors=(prior,),
        query=rows.query,
    )


def _drawn_prevalence(
    cls: type[Scenario],
    table: object,
    *,
    column: str,
    condition: Condition,
    query: Query,
    shares: Sequence[float] | None,
    within: float | None,
    n_rows: int | None,
    design: Design,
    n_draws: int,
    seed: int | None,
    source: Source,
    progress: Progress,
) -> Scenario:
    """Draw tables with each share of a property, which are declared to be the prior."""
    if shares is None or seed is None:
        raise ArgumentError("prior='draws' needs shares and a public seed")
    columns = list(dict.fromkeys((column, *query.columns)))
    frame, n_dropped = without_missing(frame_of_rows(table), columns, query.missing)
    has = condition.flags(frame, column)
    property_name = condition.on(column)
    check_both_kinds(has, property_name)
    check_varied(query, [frame])
    n = len(frame) if n_rows is None else n_rows
    check_count(FEWEST_ROWS, n_rows=n)
    names = share_names(shares)
    sizes = {name: math.floor(share * n + 0.5) for name, share in names.items()}
    if len(set(sizes.values())) != len(sizes):
        raise ArgumentError(
            f"two shares give the same number of rows among {n}; take shares further apart"
        )
    check_count(2, n_draws=n_draws)
    check_count(0, seed=seed)
    check_fits(1, n_rows=n)
    check_fits(query.dim, n_draws=n_draws)
    evaluate = query.bound(frame)
    groups = np.flatnonzero(has), np.flatnonzero(~has)
    worlds: dict[str, Any] = {}
    for number, (name, size) in enumerate(sizes.items(), start=1):
        rng = np.random.default_rng([seed, number])
        outputs = np.empty((n_draws, query.dim))
        for draw in range(n_draws):
            k = size if design == "stratified" else int(rng.binomial(n, size / n))
            rows = [rng.choice(g, m) for g, m in zip(groups, (k, n - k), strict=True) if m]
            outputs[draw] = evaluate(np.concatenate(rows))
            progress((number - 1) * n_draws + draw + 1, len(sizes) * n_draws)
        worlds[name] = FiniteDistribution.uniform(outputs)
    origin = (
        f"{n_draws} tables of {n} rows, drawn with replacement ({design}) from the rows "
        f"with and without {property_name}, public seed {seed}; {DECLARED}"
    )
    pairs: Pairs = "all" if within is None else ordered_pairs(names, difference=within)
    scenario = cls.from_worlds(
        worlds, query=query, pairs=pairs, source=source, name=f"share of {property_name}"
    )
    return _with_origin(scenario, origin, n_dropped=n_dropped, n_rows=dict.fromkeys(worlds, n))


def _with_origin(
    scenario: Scenario,
    origin: str,
    *,
    n_dropped: int = 0,
    n_rows: Mapping[str, int] | None = None,
    name: str = "declared",
) -> Scenario:
    """Add a sentence about the prior, and the number of rows that a release must have."""
    (prior,) = scenario.priors
    prior = attrs.evolve(prior, name=name, origin=origin, n_rows=n_rows or {})
    return attrs.evolve(scenario, priors=(prior,), n_dropped=scenario.n_dropped + n_dropped)


def _check_clipping(scenario: Scenario, equal_unclipped: Callable[[], bool]) -> None:
    """Refuse distributions that only clipping makes equal: their release would say nothing."""
    clips = any(scenario.clipped().values())
    if clips and scenario.has_equal_distributions() and not equal_unclipped():
        raise ScenarioError(
            "the distributions under all protected secrets are the same only because the public "
            "range clips them: a release would show an end of the range, not the data. Give a "
            "range that holds the query's values, or leave it out"
        )


def chosen_pairs(pairs: Pairs, secrets: tuple[str, ...]) -> tuple[SecretPair, ...]:
    """The declared pairs in the order of the secrets, each once."""
    if isinstance(pairs, str):
        check_one_of(("all",), pairs=pairs)
        return tuple(SecretPair(a, b) for a, b in combinations(secrets, 2))
    if not is_a(pairs, Iterable):
        raise ArgumentError(
            f"pairs must be 'all' or a list of pairs of secrets, got {given(pairs)}"
        )
    chosen = []
    for pair in pairs:
        n_secrets = len(pair) if is_a(pair, list | tuple) else 0
        if n_secrets != 2 or pair[0] == pair[1]:
            # A string here is part of what came in place of pairs, which is not shown.
            shown = given(pair) if is_a(pair, list | tuple) else f"a {type(pair).__name__}"
            raise ArgumentError(f"a pair must name two different secrets, got {shown}")
        for secret in pair:
            if secret not in secrets:
                raise ScenarioError(
                    f"pair {given(tuple(pair))} names no secret {given(secret)}; the secrets are "
                    f"{listed(secrets)}"
                )
        chosen.append(SecretPair(*sorted(pair, key=secrets.index)))
    if not chosen:
        raise ArgumentError("pairs must name at least one pair of secrets, or be 'all'")
    return tuple(dict.fromkeys(chosen))


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
