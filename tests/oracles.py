# SPDX-License-Identifier: Apache-2.0
"""What the tests compare with: exact fractions, 40-digit arithmetic, brute force; and strategies.

Nothing here calls a formula of the library. A distribution of a gap is a list of (gap, mass)
fractions.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from mpmath import mp
from scipy.special import logsumexp

from pufferslice.scenario.distributions import FiniteDistribution, equal_distributions
from pufferslice.sensitivity import DistributionPair
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.tables import MatchingTables

HP = mp.clone()
HP.dps = 40

GRID = Fraction(1, 2**44)


def exact(number):
    """A float or a fraction as a 40-digit number, without rounding through decimals."""
    ratio = Fraction(number)
    return HP.mpf(ratio.numerator) / ratio.denominator


def atoms(distribution, direction):
    """The distribution along a direction: (value, probability), nothing rounded."""
    along = [Fraction(float(u)) for u in direction]
    total = sum(int(count) for count in distribution.counts)
    return [
        (
            sum(u * Fraction(float(x)) for u, x in zip(along, row, strict=True)),
            Fraction(int(n), total),
        )
        for row, n in zip(distribution.outputs, distribution.counts, strict=True)
    ]


def quantile(distribution, t):
    """F^-1(t): the smallest value with F(value) >= t."""
    reached = Fraction(0)
    for value, mass in sorted(distribution):
        reached += mass
        if reached >= t:
            return value
    raise AssertionError


def gap_distribution(first, second):
    """The distribution of |F^-1(t) - G^-1(t)| under uniform t, from the definition."""
    breaks = sorted({Fraction(0), *cumulative(first), *cumulative(second)})
    gaps = {}
    for low, high in itertools.pairwise(breaks):
        t = (low + high) / 2
        gap = abs(quantile(first, t) - quantile(second, t))
        gaps[gap] = gaps.get(gap, Fraction(0)) + high - low
    return sorted(gaps.items(), reverse=True)


def cumulative(distribution):
    return list(itertools.accumulate(mass for _, mass in sorted(distribution)))


def true_gap_distributions(distributions, pairs, directions):
    """[instance][slice] -> distribution of the gap."""
    lines = [[atoms(distribution, u) for u in directions] for distribution in distributions]
    return [
        [gap_distribution(lines[a][k], lines[b][k]) for k in range(len(directions))]
        for a, b in pairs
    ]


def tabulated(tables, instance, position):
    """One row of gap tables as a distribution of fractions."""
    row = position * tables.n_instances + instance
    span = slice(int(tables.starts[row]), int(tables.starts[row + 1]))
    total = int(tables.totals[instance])
    gaps, counts = tables.gaps[span], tables.counts[span]
    return [
        (Fraction(float(g)), Fraction(int(n), total)) for g, n in zip(gaps, counts, strict=True)
    ]


def matching_tables(distributions, pairs, directions):
    """Distances under the monotone coupling along each direction, by repeating every atom."""
    rows, totals, equal = [], [], []
    for direction in directions:
        for a, b in pairs:
            first, second = distributions[a], distributions[b]
            total = math.lcm(first.total, second.total)
            ends = []
            for side in (first, second):
                order = np.argsort(side.outputs @ direction, kind="stable")
                copies = side.counts[order] * (total // side.total)
                ends.append(np.repeat(side.outputs[order], copies, axis=0))
            totals.append(total)
            equal.append(equal_distributions(first, second))
            apart = np.linalg.norm(ends[0] - ends[1], axis=1) * (not equal[-1])
            distances, counts = np.unique(apart, return_counts=True)
            rows.append((distances[::-1], counts[::-1]))
    n = len(pairs)
    return MatchingTables.of_rows(rows, totals[:n], equal[:n])


def dominates(upper, lower):
    """Whether, rank by rank, the upper distribution is at least the lower one."""
    upper, lower = sorted(upper, reverse=True), sorted(lower, reverse=True)
    above, below, position = Fraction(0), Fraction(0), 0
    for i, (gap, mass) in enumerate(lower):
        below += mass
        while position < len(upper) and upper[position][0] >= gap:
            above += upper[position][1]
            position += 1
        is_last = i + 1 == len(lower) or lower[i + 1][0] < gap
        if is_last and above < below:
            return False
    return True


def stretched(distribution, factor, least):
    """Every positive gap raised to `least`, times a factor, capped at the worst; 0 stays 0."""
    worst = max(gap for gap, _ in distribution)
    return [
        (min(max(gap, least) * factor, worst) if gap else gap, mass) for gap, mass in distribution
    ]


def envelope(kind, order, gaps, noise_std, margin=0):
    """Bound along one slice from the distribution of its gap; `margin` is added to every gap."""
    a, s = exact(order), exact(noise_std)
    if kind == "worst_gap":
        return a * (exact(max(g for g, _ in gaps)) + margin) ** 2 / (2 * s**2)
    moment = HP.fsum(
        exact(mass) * HP.exp(a * (a - 1) * (exact(gap) + margin) ** 2 / (2 * s**2))
        for gap, mass in gaps
    )
    return HP.log(moment) / (a - 1)


def aggregated(notion, order, costs, weights):
    a, weights = exact(order), [exact(float(w)) for w in weights]
    weights = [w / HP.fsum(weights) for w in weights]  # a profile is read as shares of their sum
    if notion == "average":
        return HP.fsum(w * c for w, c in zip(weights, costs, strict=True))
    moment = HP.fsum(w * HP.exp((a - 1) * c) for w, c in zip(weights, costs, strict=True))
    return HP.log(moment) / (a - 1)


def grid_margin(dim, noise_std):
    return HP.sqrt(dim) * exact(GRID) * exact(noise_std)


def tight_cost(claim, gap_distributions, profile, noise_std, kind):
    """Aggregate the envelopes of each instance, then take the maximum over instances."""
    margin = grid_margin(profile.dim, noise_std)
    return max(
        aggregated(
            claim.notion,
            claim.order,
            [envelope(kind, claim.order, gaps, noise_std, margin) for gaps in instance],
            profile.weights,
        )
        for instance in gap_distributions
    )


def closed_form_cost(claim, gap_distributions, profile, noise_std):
    """The paper's theorems: the maximum over instances is taken slice by slice."""
    margin = grid_margin(profile.dim, noise_std)
    worst = [
        max(exact(max(g for g, _ in instance[k])) for instance in gap_distributions) + margin
        for k in range(len(profile.weights))
    ]
    weights = [exact(float(w)) for w in profile.weights]
    squares = (
        HP.fsum(w * d**2 for w, d in zip(weights, worst, strict=True))
        if claim.notion == "average"
        else max(d**2 for d, w in zip(worst, weights, strict=True) if w > 0)
    )
    return exact(claim.order) * squares / (2 * exact(noise_std) ** 2)


def gaussian_divergence(order, first, second):
    """Between N(m1, v1) and N(m2, v2), given as (mean, variance), from the log of the integral."""
    a = HP.mpf(order)
    (m1, v1), (m2, v2) = ([HP.mpf(x) for x in distribution] for distribution in (first, second))
    precision = a / v1 + (1 - a) / v2
    if precision <= 0:
        return HP.inf
    centre = (a * m1 / v1 + (1 - a) * m2 / v2) / precision
    exponent = precision * centre**2 - a * m1**2 / v1 - (1 - a) * m2**2 / v2
    scale = -a * HP.log(v1) - (1 - a) * HP.log(v2) - HP.log(precision)
    return (exponent + scale) / (2 * (a - 1))


def exact_delta(ratio, epsilon):
    """Of N(ratio, 1) against N(0, 1), 40 digits."""
    if ratio == 0:
        return HP.mpf(0)
    r, e = HP.mpf(ratio), HP.mpf(epsilon)
    return HP.ncdf(r / 2 - e / r) - HP.exp(e) * HP.ncdf(-r / 2 - e / r)


def mixture(points, samples):
    """Density of the mixture of N(sample, I), equal weights; points (..., dim)."""
    dim = samples.shape[1]
    squares = ((points[..., None, :] - samples) ** 2).sum(axis=-1)
    return np.exp(-squares / 2).mean(axis=-1) / (2 * np.pi) ** (dim / 2)


def divergence_on_grid(order, first, second, noise_std):
    """Rényi divergence of two noisy samples in one or two dimensions, trapezoid rule."""
    first, second = first / noise_std, second / noise_std
    both = np.vstack([first, second])
    reach = order * (both.max() - both.min()) + 12
    axis = np.arange(both.min() - reach, both.max() + reach, 0.2)
    points = np.stack(np.meshgrid(*[axis] * first.shape[1], indexing="ij"), axis=-1)
    p, q = mixture(points, first), mixture(points, second)
    inside = (p > 0) & (q > 0)
    integrand = np.exp(order * np.log(p[inside]) + (1 - order) * np.log(q[inside]))
    return float(np.log(integrand.sum() * 0.2 ** first.shape[1]) / (order - 1))


def noisy_divergence(order, first, second, noise_std):
    """The same on the line, in log space: high orders have their mass where densities underflow."""
    x, y = np.sort(first / noise_std), np.sort(second / noise_std)
    low = min(x[0], order * x[0] - (order - 1) * y[-1]) - 14
    high = max(x[-1], order * x[-1] - (order - 1) * y[0]) + 14
    grid, step = np.linspace(low, high, math.ceil((high - low) * 8), retstep=True)

    def log_density(atoms):
        return logsumexp(-((grid[:, None] - atoms) ** 2) / 2, axis=1) - math.log(len(atoms))

    logs = order * log_density(x) - (order - 1) * log_density(y)
    return float(logsumexp(logs) + math.log(step / math.sqrt(2 * math.pi))) / (order - 1)


def privacy_curve(first, second, noise_std, step=0.005):
    """epsilon -> larger hockey-stick divergence of both orders of two noisy samples, on a grid.

    The integrand has kinks, so the error is of the order of the step squared.
    """
    first, second = first / noise_std, second / noise_std
    both = np.vstack([first, second])
    axis = np.arange(both.min() - 8, both.max() + 8, step)
    points = np.stack(np.meshgrid(*[axis] * first.shape[1], indexing="ij"), axis=-1)
    p, q = mixture(points, first), mixture(points, second)
    cell = step ** first.shape[1]

    def delta(epsilon):
        there, back = (a - np.exp(epsilon) * b for a, b in ((p, q), (q, p)))
        return float(max(there[there > 0].sum(), back[back > 0].sum()) * cell)

    return delta


def smallest_epsilon(delta_at, delta, highest=60.0):
    """Where a falling curve meets delta, at least 0, to 1e-9; the lower end is returned."""
    if delta_at(0.0) <= delta:
        return 0.0
    low = 0.0
    while highest - low > 1e-9:
        middle = (low + highest) / 2
        low, highest = (middle, highest) if delta_at(middle) > delta else (low, middle)
    return low


def values():
    return st.integers(-12, 12).map(lambda k: k / 4)


@st.composite
def empirical_distributions(draw, dim):
    """Few atoms, often tied, with or without multiplicities."""
    n = draw(st.integers(1, 5))
    row = st.lists(values(), min_size=dim, max_size=dim)
    outputs = draw(st.lists(row, min_size=n, max_size=n))
    counts = draw(st.one_of(st.just([1] * n), st.lists(st.integers(1, 4), min_size=n, max_size=n)))
    return FiniteDistribution(outputs=outputs, counts=counts)


def probabilities(n_atoms, n_distributions=2):
    """Probability vectors, some of their entries very small."""
    entry = st.floats(1e-9, 1.0)
    distribution = st.lists(entry, min_size=n_atoms, max_size=n_atoms).map(
        lambda v: np.array(v) / sum(v)
    )
    return st.tuples(*[distribution] * n_distributions)


@st.composite
def profiles(draw, dim):
    """Axes or random directions, with weights that are not all equal."""
    seed, n = draw(st.integers(0, 2**16)), draw(st.integers(1, 4))
    base = draw(
        st.sampled_from(
            [FiniteProfile.axes(dim=dim), FiniteProfile.uniform(dim=dim, n_directions=n, seed=seed)]
        )
    )
    parts = np.array(
        draw(st.lists(st.integers(1, 5), min_size=base.n_directions, max_size=base.n_directions))
    )
    return FiniteProfile(directions=base.directions, weights=parts / parts.sum())


@st.composite
def worlds(draw, n_distributions=3):
    """(distributions, pairs, profile).

    At least one pair of distributions differs along some slice.
    """
    dim = draw(st.integers(1, 3))
    distributions = [draw(empirical_distributions(dim)) for _ in range(n_distributions)]
    shifted = draw(st.integers(1, 8)) / 4
    distributions[0] = FiniteDistribution(
        outputs=distributions[1].outputs + shifted, counts=distributions[1].counts
    )
    pairs = [DistributionPair(a, b) for a, b in itertools.combinations(range(n_distributions), 2)]
    return distributions, pairs, draw(profiles(dim))


def orders():
    return st.one_of(st.sampled_from([1.5, 2.0, 4.0, 16.0]), st.floats(1.05, 32))


def epsilons():
    return st.floats(-4, 3).map(lambda x: 2.0**x)


def notions():
    return st.sampled_from(["average", "joint"])


def random_samples(rng, dim, n_max=6, spread=1.0):
    """Two samples of unequal size, for the tests that integrate densities."""
    n, m = rng.integers(2, n_max, size=2)
    return rng.normal(scale=spread, size=(n, dim)), rng.normal(0.5, spread, size=(m, dim))
