# SPDX-License-Identifier: Apache-2.0
"""A scenario: secrets, the pairs to protect, priors, and the query of one release."""

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
from pufferslice.data.frames import Frame, floats_of, frame_of, without_missing
from pufferslice.data.readers import complete_frames
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.queries.conditions import conditions_of
from pufferslice.queries.query import RowMoments
from pufferslice.queries.ranges import joined_ends
from pufferslice.queries.variation import (
    check_ends,
    check_possible,
    check_reached,
    check_varied,
    near_matches,
    row_ends,
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
    PluginDistribution,
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
from pufferslice.scenario.secrets import Bins, SecretRule, secret_columns, secret_rule
from pufferslice.scenario.templates import (
    DESIGNS,
    FEWEST_ROWS,
    LEAST_SHARE,
    PRIOR_FORMS,
    Design,
    PriorForm,
    approximation,
    drawn_path,
    held_counts,
    is_index,
    ordered_pairs,
    read_if_needed,
    row_means_of,
    share_names,
    state_counts,
    stationary,
    time_span,
    window_span,
)

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

    Build one with `from_prevalence`, `from_attribute`, `from_markov_chain`, `from_volume`,
    `from_groups`, `from_bootstrap`, `from_records` or `from_worlds`.
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
    row_spans: tuple[float, ...] = ()
    """By how much one row can move each coordinate, in scaled units, where the distributions are
    normal approximations of tables of drawn rows: noise must hide that, because the approximation
    does not know it. Rounded up to powers of two, because the noise is public and a span is the
    value of one extreme row. Confidential."""

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
        """One release is the query on the rows of one group; the secret is which group.

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
        """As `from_groups`, but the distribution under a secret is the query on resampled rows."""
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
        """One release is the query of one row; the secret is that row's group."""
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
        """One release is the query on a whole table; the secret is which world it comes from.

        A world is a table, a list of tables, `Resampled`, a sample of a simulator, or a
        distribution of the query itself. Without `probabilities` the worlds are equally likely.
        Without `source`, that of worlds made of tables is the released data, that of others a
        public model.
        """
        _check_texts("worlds", worlds)
        secrets = tuple(worlds)
        _check_secrets(secrets)
        plugins = [w.plugin for w in worlds.values() if isinstance(w, PluginDistribution)]
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
            plugins=tuple(dict.fromkeys(plugins)),
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
        shares: Sequence[float],
        query: Query,
        n_rows: int | None = None,
        design: Design = "stratified",
        prior: PriorForm = "gaussian",
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
        check_level(query, "table", "worlds")
        check_one_of(DESIGNS, design=design)
        check_one_of(PRIOR_FORMS, prior=prior)
        if (seed is None) != (prior == "gaussian"):
            raise ArgumentError(
                "seed goes with prior='draws', which needs one; a Gaussian prior draws nothing"
            )
        ((_, condition),) = conditions_of("value", {column: value})
        needed = list(dict.fromkeys((column, *query.columns)))
        n_dropped = n_with = n_without = 0
        first, second = RowMoments(), RowMoments()
        ends: list[Floats] = []
        latest: list[Frame] = []
        parts = complete_frames(
            read_if_needed(table, query, whole=prior == "draws"),
            needed,
            query.missing,
            silent if prior == "draws" else progress,
        )
        for part, n_missing in parts:
            n_dropped += n_missing
            if not len(part):
                continue
            latest, has = [part], condition.flags(part, column)
            ends.append(row_ends(query, latest))
            n_with += int(np.count_nonzero(has))
            n_without += int(np.count_nonzero(~has))
            if prior == "gaussian":
                means = row_means_of(query, part)
                first.add(means.terms[has])
                second.add(means.terms[~has])
        property_name = condition.on(column)
        spans: list[Floats] = []
        if min(n_with, n_without) < FEWEST_ROWS:
            hint = ""
            if not n_with and condition.comparison == "equals":
                hint = near_matches(column, str(condition.value), latest)
            raise ScenarioError(
                f"a prevalence needs at least {FEWEST_ROWS} rows with {quoted(property_name)} and "
                f"{FEWEST_ROWS} without.{hint} Correct the value, or choose another"
            )
        check_ends(query, joined_ends(ends), latest)
        n = n_with + n_without if n_rows is None else n_rows
        check_count(FEWEST_ROWS, n_rows=n)
        names = share_names(shares)
        sizes = {name: round(share * n) for name, share in names.items()}
        if len(set(sizes.values())) != len(sizes):
            raise ArgumentError(
                f"two shares give the same number of rows among {n}; take shares further apart"
            )
        worlds: dict[str, Any] = {}
        if prior == "gaussian":
            row_ends_of_terms = joined_ends([first.ends, second.ends])
            (mean_1, cov_1), (mean_0, cov_0) = (
                (moments.mean, moments.covariance) for moments in (first, second)
            )
            for name, size in sizes.items():
                share = size / n
                cov = share * cov_1 + (1 - share) * cov_0
                if design == "independent":
                    cov = cov + share * (1 - share) * np.outer(mean_1 - mean_0, mean_1 - mean_0)
                row_mean = share * mean_1 + (1 - share) * mean_0
                mean, cov = means.moments(row_mean, cov, n)
                worlds[name] = GaussianDistribution(mean=mean, cov=cov)
                spans.append(
                    means.row_span(row_mean, n, row_ends_of_terms, is_linear=query.is_linear)
                )
            origin = (
                f"mean and covariance of rows with and without {property_name}, drawn with "
                f"replacement ({design}) to {n} rows; {approximation(query)}"
            )
        else:
            check_count(2, n_draws=n_draws)
            check_count(0, seed=seed or 0)
            check_fits(1, n_rows=n)
            check_fits(query.dim, n_draws=n_draws)
            evaluate = query.bound(*latest)
            groups = np.flatnonzero(has), np.flatnonzero(~has)
            for number, (name, size) in enumerate(sizes.items(), start=1):
                rng = np.random.default_rng([seed or 0, number])
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
        n_rows_of = dict.fromkeys(worlds, n)
        return _with_origin(scenario, origin, n_dropped=n_dropped, n_rows=n_rows_of, spans=spans)

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
        source: Source | None = None,
    ) -> "Scenario":
        """Hide a number that is jointly Gaussian with the released statistics.

        `mean` and `cov` are of the attribute, first, and the statistics of the query, from a model
        or a kernel (`gaussian_process`); or they are those of `history`, a table whose rows are
        earlier cases: a column `name`, and one for each statistic, named as the statistic
        (`mean(age)`: a case may be a table) or as its column (`age`: a case is one row, and so is a
        release). The secret is which of `values` it has. Pairs: all, or values that differ by at
        most `within`. The `source` is a public model, or held-out data for a history, unless
        another is given.
        """
        if (mean is None) != (cov is None) or (mean is None) == (history is None):
            raise ArgumentError("give mean and cov together, or a history to take them from")
        n_rows, n_dropped = None, 0
        if history is None:
            joint = GaussianDistribution(mean=mean, cov=cov)
            origin = (
                f"statistics and {quoted(name)} jointly Gaussian, given the value of the latter"
            )
        else:
            frame = frame_of(history)
            labels = [
                label if label in frame.columns else coordinate.column or label
                for label, coordinate in zip(query.names, query.coordinates, strict=True)
            ]
            frame, n_dropped = without_missing(frame, [name, *labels], query.missing)
            joint = GaussianDistribution.from_draws(
                np.column_stack([floats_of(frame, column) for column in (name, *labels)])
            )
            origin = f"mean and covariance of {len(frame)} earlier cases; normal approximation"
            if tuple(labels) != query.names:
                n_rows = 1  # a value of a column is the statistic of a table with one row
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
        source = source or ("public_model" if history is None else "held_out")
        scenario = cls.from_worlds(worlds, query=query, pairs=pairs, source=source, name=name)
        sizes = dict.fromkeys(worlds, n_rows) if n_rows else None
        return _with_origin(scenario, origin, n_rows=sizes, n_dropped=n_dropped)

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
        one state. The query has a coordinate for each of the `counted` states (by default all but
        the first, which follows), in each of the `windows` (by default all times), which are
        `(first, stop)`. The prior holds each probability to a multiple of 2^-30, and leaves out
        counts that are too rare for that; the certificate says how much. Chains with too many
        counts need `n_draws` with a public `seed`: the drawn counts are then the prior. A release
        takes one row for each time.
        """
        chains = transition if isinstance(transition, Mapping) else {"chain": transition}
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
                        worlds[label] = FiniteDistribution.uniform(np.stack(rows, axis=1))
                    else:
                        masses = state_counts(chain, first, length, known, state, coordinates)
                        if masses is None:
                            continue
                        worlds[label], error, rare = held_counts(masses)
                        errors.append(error)
                        left_out = max(left_out, rare)
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
        check_level(query, "table", "worlds")
        n_dropped, rows = 0, RowMoments()
        ends: list[Floats] = []
        latest: list[Frame] = []
        whole = read_if_needed(table, query)
        parts = complete_frames(whole, query.columns, query.missing, progress)
        for part, n_missing in parts:
            n_dropped += n_missing
            if len(part):
                means = row_means_of(query, part)
                rows.add(means.terms)
                latest = [part]
                ends.append(row_ends(query, latest))
        if rows.n_rows < FEWEST_ROWS:
            raise ScenarioError(f"a volume needs at least {FEWEST_ROWS} complete rows")
        check_ends(query, joined_ends(ends), latest)
        if len(set(sizes)) != len(sizes) or len(sizes) < 2:
            raise ArgumentError("sizes must be at least two different numbers of rows")
        worlds: dict[str, Any] = {}
        names: dict[str, float] = {}
        spans: list[Floats] = []
        for size in sizes:
            check_count(FEWEST_ROWS, size=size)
            label = f"{size:,} rows"
            names[label] = float(size)
            mean, cov = means.moments(rows.mean, rows.covariance, size)
            worlds[label] = GaussianDistribution(mean=mean, cov=cov)
            spans.append(means.row_span(rows.mean, size, rows.ends, is_linear=query.is_linear))
        pairs: Pairs = "all" if ratio is None else ordered_pairs(names, ratio=ratio)
        scenario = cls.from_worlds(
            worlds, query=query, pairs=pairs, source=source, name="number of rows"
        )
        return _with_origin(
            scenario,
            f"mean and covariance of the rows, drawn with replacement; {approximation(query)}",
            n_dropped=n_dropped,
            n_rows={name: int(n) for name, n in names.items()},
            spans=spans,
        )

    def with_prior(self, other: "Scenario") -> "Scenario":
        """This scenario with the priors of `other` as well."""
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
        spans = [part.row_spans for part in (self, other) if part.row_spans]
        return attrs.evolve(
            self,
            priors=(*self.priors, *added),
            n_dropped=self.n_dropped + other.n_dropped,
            row_spans=tuple(np.max(spans, axis=0).tolist()) if spans else (),
        )

    def with_sampled_priors(self) -> "Scenario":
        """This scenario, but the priors are populations that are known only through the draws.

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

    def spreads(self) -> dict[str, list[float]]:
        """How much each statistic varies, in the user's units.

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
        """The tables as priors, and the ends of the values before clipping."""
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


def _with_origin(
    scenario: Scenario,
    origin: str,
    *,
    n_dropped: int = 0,
    n_rows: Mapping[str, int] | None = None,
    name: str = "declared",
    spans: Sequence[Floats] = (),
) -> Scenario:
    """The scenario with a sentence about its prior, and the rows that a release must have.

    `spans` are, for each world, by how much one row can move each statistic.
    """
    (prior,) = scenario.priors
    prior = attrs.evolve(prior, name=name, origin=origin, n_rows=n_rows or {})
    row_spans: tuple[float, ...] = ()
    if spans:
        widest = np.max(spans, axis=0) / scenario.query.scales
        with np.errstate(divide="ignore"):  # 0 stays 0
            row_spans = tuple(np.exp2(np.ceil(np.log2(widest))).tolist())
    return attrs.evolve(
        scenario,
        priors=(prior,),
        n_dropped=scenario.n_dropped + n_dropped,
        row_spans=row_spans,
    )


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
