# SPDX-License-Identifier: Apache-2.0
r"""Tables of real rows, drawn in both worlds of a pair, and what readers may know of them.

Rows are drawn with replacement from those of each kind; nothing is drawn from a law that a
certificate assumes. Three kinds of readers are tried. One knows all rows but those that make the
difference: then only these count. One knows no row, but that all others are of one kind: at the
ends of the range of shares the differing rows are the only ones of theirs. And one holds both
candidate tables, drawn as the certificate couples them, and asks only which of the two was
released: whoever knows less guesses no better, and this is as often right as

$$E\, \Phi(\tfrac12 \sqrt{Z^\top \Sigma^{-1} Z}) \le \Phi(\tfrac12 \sqrt\rho)$$
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.text import quoted
from pufferslice.scenario.distributions import FiniteDistribution, GaussianDistribution
from pufferslice.scenario.priors import Prior
from pufferslice.scenario.rows import Differing, RowDistribution, drawn_sums, sums_of_runs
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.rows import INDEPENDENT, TRANSPORT, RowDifference, transported_rows
from pufferslice.sensitivity.whitening import Shape

Draw = Callable[[str, int, np.random.Generator], tuple[Floats, Integers]]
"""Values of the query under a secret, and which of them each draw has."""
Meet = Callable[[int, np.random.Generator], tuple[Floats, Floats]]
"""Draws rows of both kinds of a pair, as they meet."""

FEWEST_TABLES: Final = 200
_MOST_WORK: Final = 2**28
"""Most numbers that draws of whole tables, or of coupled rows, go through for each secret."""
_MOST_ROWS: Final = 2**21
"""Most coupled rows in memory."""
_SIMULATED: Final = 4_096
"""Tables that the attacker draws for each secret."""
_MOST_LIKELIHOODS: Final = 2**24
"""Most outputs times simulated tables whose likelihoods are computed."""
_FARTHEST_OF: Final = 1_000
"""Rows among which the two are looked for that are farthest apart."""


@final
@attrs.frozen(kw_only=True, eq=False)
class Experiment:
    """A way to draw values of the query under every secret, by what a reader does not know."""

    name: str
    prior: Prior
    draw: Draw
    most: int | None = None
    """Most draws under each secret; None for any number."""

    def n_draws(self, n_outputs: int) -> int:
        """Number of draws for so many outputs."""
        return n_outputs if self.most is None else min(n_outputs, self.most)


def experiments_of(scenario: Scenario) -> list[Experiment]:
    """List the experiments on a scenario: its priors, then tables whose other rows are unknown."""
    priors = [
        Experiment(name=each.name, prior=each, draw=_draw_of(each)) for each in scenario.priors
    ]
    return [*priors, *_whole_tables(scenario)]


def _draw_of(prior: Prior) -> Draw:
    def draw(secret: str, n: int, rng: np.random.Generator) -> tuple[Floats, Integers]:
        return prior.distributions[secret].draw(n, rng=rng)

    return draw


def _whole_tables(scenario: Scenario) -> list[Experiment]:
    """Tables of a kind of rows but for those that make the difference, all drawn afresh.

    The mean of the other rows, which tells nothing, is taken off.
    """
    kinds = row_kinds(scenario)
    if not kinds:
        return []
    prior = scenario.priors[0]
    n_rows = int(scenario.secret.get("n_rows", scenario.secret.get("up_to")))
    found = []
    for name, others in kinds.items():
        if not others.rows_at_hand.any():  # rows that one world lacks
            continue
        work = n_rows + others.rows_at_hand.size // 4

        def draw(
            secret: str, n: int, rng: np.random.Generator, others: RowDistribution = others
        ) -> tuple[Floats, Integers]:
            differing = numbers_of(others).draw(n, rng)
            rest = drawn_sums(others.rows_at_hand, n_rows - differing, rng)
            rest -= (n_rows - numbers_of(others).mean) * others.row_mean
            return rest + drawn_sums(kinds[secret].rows_at_hand, differing, rng), np.arange(n)

        most = max(FEWEST_TABLES, _MOST_WORK // work)
        words = f"{prior.name}, all others unknown and {quoted(name)}"
        found.append(Experiment(name=words, prior=prior, draw=draw, most=most))
    return found


def row_kinds(scenario: Scenario) -> Mapping[str, RowDistribution]:
    """Kinds of rows by their names, where a number of rows makes the difference; else none."""
    kinds = {
        name: each
        for name, each in scenario.priors[0].distributions.items()
        if isinstance(each, RowDistribution) and isinstance(each.differing, Differing)
    }
    return kinds if len(scenario.priors) == 1 else {}


def numbers_of(kind: RowDistribution) -> Differing:
    """The law of the number of rows that differ."""
    return kind.differing  # type: ignore[return-value]  # as row_kinds has selected


def coupled_sums(
    kinds: Mapping[str, RowDistribution],
    pair: tuple[str, str],
    n_outputs: int,
    *,
    coupling: str,
    shape: Shape | None,
    rng: np.random.Generator,
) -> tuple[Floats, Floats]:
    """Draw what the differing rows add in both candidate tables, as a coupling has them meet.

    Of fewer pairs of tables than asked for, where so many rows would take too long.
    """
    first, second = (kinds[name] for name in pair)
    differing = numbers_of(first)
    n_draws = max(FEWEST_TABLES, int(_MOST_WORK // 4 // (differing.mean * first.dim + 1)))
    counts = differing.draw(min(n_outputs, n_draws), rng)
    meet = _meeting(first, second, coupling, shape)
    ends = [np.empty((len(counts), first.dim)) for _ in pair]
    block = max(1, _MOST_ROWS // max(1, int(counts.max(initial=1)) * first.dim))
    for start in range(0, len(counts), block):
        part = counts[start : start + block]
        for sums, rows in zip(ends, meet(int(part.sum()), rng), strict=True):
            sums[start : start + block] = sums_of_runs(rows, part)
    return ends[0], ends[1]


def _meeting(
    first: RowDistribution, second: RowDistribution, coupling: str, shape: Shape | None
) -> Meet:
    rows = [first.rows_at_hand, second.rows_at_hand]
    if coupling == INDEPENDENT:
        return lambda n, rng: (
            rows[0][rng.integers(len(rows[0]), size=n)],
            rows[1][rng.integers(len(rows[1]), size=n)],
        )
    if coupling == TRANSPORT:
        ((x, y, masses),) = transported_rows([first, second], [(0, 1)], shape)
        shares = masses / masses.sum()

        def transported(n: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
            pieces = rng.choice(len(shares), n, p=shares)
            return x[pieces], y[pieces]

        return transported
    name = coupling.partition(":")[2]
    labels = [codes for each in (first, second) if (codes := each.codes(name)) is not None]
    kinds = [attrs.evolve(each, place=place) for place, each in enumerate((first, second))]
    plans = RowDifference.of(kinds, [(0, 1)], coupling=coupling, shape=shape).plans
    return _by_cells(rows, labels, plans[0] if len(plans) else None)


def _by_cells(rows: list[Floats], labels: list[Integers], plan: Floats | None) -> Meet:
    """Cells meet by the plan, else equal ones as often as they can; rows independently in them."""
    cells, codes = np.unique(np.concatenate(labels), return_inverse=True)
    sides = np.split(codes, [len(labels[0])])
    orders = [np.argsort(side, kind="stable") for side in sides]
    counts = [np.bincount(side, minlength=len(cells)) for side in sides]
    starts = [np.cumsum(count) - count for count in counts]
    if plan is None:
        shares = [count / count.sum() for count in counts]
        common = np.minimum(*shares)
        left = [share - common for share in shares]
        plan = np.diag(common) + np.outer(*left) / (left[0].sum() or 1.0)
    chances = plan.ravel() / plan.sum()

    def meet(n: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        both = np.unravel_index(rng.choice(len(chances), n, p=chances), plan.shape)
        found = []
        for k, cell in enumerate(both):
            within = (rng.random(n) * counts[k][cell]).astype(np.int64)
            found.append(rows[k][orders[k][starts[k][cell] + within]])
        return found[0], found[1]

    return meet


def farthest_rows(
    kinds: Mapping[str, RowDistribution], shape: Shape | None
) -> tuple[Floats, Floats]:
    """Two real rows that are far apart in whitened coordinates, as one person's row may be."""
    rows = np.unique(np.concatenate([kind.rows_at_hand for kind in kinds.values()]), axis=0)
    whitened = rows if shape is None else shape.whitened(rows, np.zeros(rows.shape[1]))
    # The far ends of coordinates, and those farthest from the middle.
    size = np.linalg.norm(whitened - whitened.mean(axis=0), axis=1)
    ends = np.unique([*np.argsort(-size)[:_FARTHEST_OF], *whitened.argmin(0), *whitened.argmax(0)])
    apart = ((whitened[ends][:, None] - whitened[ends][None]) ** 2).sum(axis=2)
    one, other = np.unravel_index(apart.argmax(), apart.shape)
    return rows[ends[one]], rows[ends[other]]


def simulated(experiment: Experiment, *, seed: Sequence[int]) -> dict[str, Floats]:
    """Values that an attacker draws under each secret, with seeds of their own, shape (n, dim)."""
    drawn = {}
    for place, secret in enumerate(experiment.prior.distributions):
        rng = np.random.default_rng([*seed, place])
        atoms, where = experiment.draw(secret, experiment.n_draws(_SIMULATED), rng)
        drawn[secret] = atoms[where]
    return drawn


def discriminant(first: Floats, second: Floats, noise_std: float) -> Floats:
    """Linear discriminant of noisy values: the difference of their means over their covariance."""
    centred = np.concatenate([part - part.mean(axis=0) for part in (first, second)])
    cov = centred.T @ centred / len(centred) + noise_std**2 * np.eye(first.shape[1])
    return np.asarray(np.linalg.solve(cov, first.mean(axis=0) - second.mean(axis=0)))


def gaussian_of(values: Floats) -> GaussianDistribution:
    """Gaussian with the moments of some values, for a quadratic discriminant."""
    cov = np.cov(values.T, bias=True).reshape(values.shape[1], -1)
    return GaussianDistribution(mean=values.mean(axis=0), cov=cov)


def some_of(values: Floats, n_outputs: int) -> FiniteDistribution:
    """The values themselves, for a likelihood; fewer where outputs are many."""
    return FiniteDistribution.uniform(values[: max(FEWEST_TABLES, _MOST_LIKELIHOODS // n_outputs)])
