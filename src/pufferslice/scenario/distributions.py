# SPDX-License-Identifier: Apache-2.0
"""Distributions of a query under one secret: what all kinds offer, and the kinds."""

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Final, Literal, Protocol, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, Integers, locked, locked_integers, same
from pufferslice._core.checks import check_finite, check_probabilities, check_size, is_a
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query

Kind = Literal["empirical", "sampled", "gaussian", "rows"]
"""Kind of a distribution: a sample, known by sampling, a formula, or a sum of some rows."""

WEIGHT_QUANTA: Final = 2**30
"""Number of quanta in a total weight of 1: weights are multiples of 1 / WEIGHT_QUANTA."""

LARGEST_TOTAL: Final = 2**31
"""Largest sum of counts: common denominators of two distributions fit 64-bit integers."""

_SYMMETRY_TOLERANCE: Final = 1e-12
_LEAST_UNIT: Final = 1e-290
"""Least product of scales: products below it would lose digits."""


class Distribution(Protocol):
    """The distribution of a prepared query under one secret.

    What a distribution shows next to another is in `pufferslice.sensitivity`, one row for each
    type. A new type implements this protocol, passes its contract in the tests, and adds a row.
    """

    @property
    def kind(self) -> Kind:
        """Kind of the distribution."""

    @property
    def dim(self) -> int:
        """Output dimension."""

    @property
    def n_samples(self) -> int:
        """Number of atoms or draws; 0 for a formula."""

    @property
    def mean(self) -> Floats:
        """Mean, shape (dim,), of the draws if it is sampled."""

    def atoms(self) -> tuple[Floats, Integers] | None:
        """Atoms or draws, shape (n_samples, dim), and how often each counts; None without any."""

    def draw(self, n_draws: int, *, rng: np.random.Generator) -> tuple[Floats, Integers]:
        """Independent draws: values, and for each draw its row in them."""

    def reduced(self) -> tuple[npt.NDArray[Any], ...]:
        """Reduced form: the same arrays for two distributions of a type that look the same."""

    def digest_parts(self) -> list[bytes]:
        """Bytes of the whole distribution, for a digest; no two types have the same."""


def _without_minus_zero(values: Any) -> Floats:  # whatever numpy can read
    return locked(locked(values) + 0.0)


@attrs.frozen(kw_only=True, repr=False)
class _Rows:
    outputs: Floats = attrs.field(converter=_without_minus_zero, eq=same)
    """Atoms or draws, shape (n_samples, dim); -0.0 is held as 0.0, which prints the same."""

    def __attrs_post_init__(self) -> None:
        if self.outputs.ndim != 2 or self.outputs.size == 0:
            shape = self.outputs.shape
            raise ArgumentError(
                f"outputs must have shape (n_samples, dim), both at least 1; got {shape}"
            )
        check_size(outputs=self.outputs)

    @property
    def n_samples(self) -> int:
        """Number of atoms or draws."""
        return len(self.outputs)

    @property
    def dim(self) -> int:
        """Output dimension."""
        return int(self.outputs.shape[1])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_samples={self.n_samples}, dim={self.dim})"


@final
@attrs.frozen(kw_only=True, repr=False)
class FiniteDistribution(_Rows):
    """A distribution with finitely many atoms: `outputs[i]` has probability `counts[i] / total`.

    >>> FiniteDistribution.uniform([[0.0], [0.0], [10.0]])
    FiniteDistribution(n_samples=3, dim=1)
    """

    kind: ClassVar[Kind] = "empirical"
    counts: Integers = attrs.field(converter=locked_integers, eq=same)
    """Count of each atom, integers of at least 1, shape (n_samples,)."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.counts.shape != (len(self.outputs),) or self.counts.min() < 1:
            raise ArgumentError(
                "counts must be integers of at least 1, one for each row of outputs; got "
                f"shape {self.counts.shape} for {len(self.outputs)} rows"
            )
        # In floats, because a sum of integers could wrap around.
        if float(self.counts.astype(np.float64).sum()) > LARGEST_TOTAL:
            raise ArgumentError(
                f"the counts must sum to at most 2^31 = {LARGEST_TOTAL}; divide them by a common "
                "factor, or use fewer rows"
            )

    @classmethod
    def uniform(cls, outputs: Floats) -> "FiniteDistribution":
        """Give every row of `outputs` the same probability."""
        rows = np.atleast_2d(locked(outputs))
        return cls(outputs=rows, counts=np.ones(len(rows), dtype=np.int64))

    @classmethod
    def weighted(cls, outputs: Floats, weights: Floats) -> "FiniteDistribution":
        """Give row i the probability `weights[i]`, held to a multiple of 1 / WEIGHT_QUANTA.

        The distribution *is* the one with the held weights; largest remainders make them sum to 1
        exactly.
        """
        rows = np.atleast_2d(locked(outputs))
        return cls(outputs=rows, counts=_held_weights(weights, len(rows)))

    @property
    def total(self) -> int:
        """Sum of the counts: the denominator of all probabilities."""
        return int(self.counts.sum())

    @property
    def is_uniform(self) -> bool:
        """Whether every atom counts once."""
        return self.total == self.n_samples

    @property
    def mean(self) -> Floats:
        """Mean, shape (dim,)."""
        return np.asarray(self.counts @ self.outputs / self.total)

    def atoms(self) -> tuple[Floats, Integers]:
        """The atoms and their counts."""
        return self.outputs, self.counts

    def draw(self, n_draws: int, *, rng: np.random.Generator) -> tuple[Floats, Integers]:
        """The atoms, and which of them each draw is."""
        ends = np.cumsum(self.counts)
        return self.outputs, np.searchsorted(ends, rng.integers(ends[-1], size=n_draws), "right")

    def prepared(self, query: Query) -> "FiniteDistribution":
        """Clip this distribution, in the user's units, to the query's range, and scale it."""
        return FiniteDistribution(outputs=query.prepared(self.outputs), counts=self.counts)

    def reduced(self) -> tuple[npt.NDArray[Any], ...]:
        """Distinct atoms in lexicographic order, and their counts in lowest terms."""
        atoms, where = np.unique(self.outputs, axis=0, return_inverse=True)
        counts = np.zeros(len(atoms), dtype=np.int64)
        np.add.at(counts, where.reshape(-1), self.counts)
        return atoms, counts // np.gcd.reduce(counts)

    def digest_parts(self) -> list[bytes]:
        """The atoms and counts as bytes."""
        return _array_parts(self.outputs, self.counts)


@final
@attrs.frozen(kw_only=True, repr=False)
class SampledDistribution(_Rows):
    """A distribution that is known only through independent draws of it.

    The draws are not the distribution.

    >>> SampledDistribution(outputs=[[0.0], [0.0], [10.0]])
    SampledDistribution(n_samples=3, dim=1)
    """

    kind: ClassVar[Kind] = "sampled"

    @property
    def mean(self) -> Floats:
        """Mean of the draws, shape (dim,)."""
        return np.asarray(self.outputs.mean(axis=0))

    def atoms(self) -> tuple[Floats, Integers]:
        """The draws, each of which counts once."""
        return self.outputs, np.ones(self.n_samples, dtype=np.int64)

    def draw(self, n_draws: int, *, rng: np.random.Generator) -> tuple[Floats, Integers]:
        """The draws that are known, and which of them each new draw is."""
        return self.outputs, rng.integers(self.n_samples, size=n_draws)

    def prepared(self, query: Query) -> "SampledDistribution":
        """Clip these draws, in the user's units, to the query's range, and scale them."""
        return SampledDistribution(outputs=query.prepared(self.outputs))

    def reduced(self) -> tuple[npt.NDArray[Any], ...]:
        """Reduced form of the finite distribution of the draws."""
        return FiniteDistribution.uniform(self.outputs).reduced()

    def digest_parts(self) -> list[bytes]:
        """The draws as bytes."""
        return _array_parts(self.outputs, np.zeros(0))


@final
@attrs.frozen(kw_only=True, repr=False)
class GaussianDistribution:
    """N(mean, cov): a declared Gaussian prior of the query under one secret."""

    kind: ClassVar[Kind] = "gaussian"
    n_samples: ClassVar[int] = 0
    mean: Floats = attrs.field(converter=locked, eq=same)
    """Mean, shape (dim,)."""
    cov: Floats = attrs.field(converter=locked, eq=same)
    """Covariance, shape (dim, dim): positive semi-definite, made exactly symmetric."""

    def __attrs_post_init__(self) -> None:
        dim = self.mean.size
        if self.mean.shape != (dim,) or dim == 0 or self.cov.shape != (dim, dim):
            shapes = f"{self.mean.shape}, {self.cov.shape}"
            raise ArgumentError(
                f"mean and cov must have shapes (dim,) and (dim, dim); got {shapes}"
            )
        check_finite(cov=self.cov)
        check_size(mean=self.mean, **{"roots of cov": np.sqrt(np.abs(self.cov))})
        size = float(np.abs(self.cov).max())
        if np.abs(self.cov - self.cov.T).max() > _SYMMETRY_TOLERANCE * size:
            raise ArgumentError("cov must be symmetric; use (cov + cov.T) / 2")
        if not np.array_equal(self.cov, self.cov.T):
            # What reads one triangle and what reads both must see the same distribution.
            object.__setattr__(self, "cov", locked(self.cov / 2 + self.cov.T / 2))
        smallest = float(np.linalg.eigvalsh(self.cov)[0])
        if smallest < -_SYMMETRY_TOLERANCE * size:
            raise ArgumentError(
                f"cov must be positive semi-definite; its smallest eigenvalue is {smallest!r}"
            )

    @property
    def dim(self) -> int:
        """Output dimension."""
        return self.mean.size

    @classmethod
    def from_draws(cls, draws: Floats) -> "GaussianDistribution":
        """The Gaussian with the mean and covariance of draws, shape (n_draws, dim)."""
        rows = np.atleast_2d(locked(draws))
        if rows.ndim != 2 or len(rows) < 2:
            raise ArgumentError(
                f"draws must have shape (n_draws, dim), n_draws at least 2; got {rows.shape}"
            )
        check_finite(draws=rows)
        centred = rows - rows.mean(axis=0)
        return cls(mean=rows.mean(axis=0), cov=centred.T @ centred / (len(rows) - 1))

    def conditioned(self, *, on: Sequence[int], at: Sequence[float]) -> "GaussianDistribution":
        r"""Condition the other coordinates on the values `at` of those of `on`.

        $$N(\mu_Y + \Sigma_{YA}\Sigma_{AA}^{-1}(a - \mu_A),\;
          \Sigma_{YY} - \Sigma_{YA}\Sigma_{AA}^{-1}\Sigma_{AY})$$

        >>> joint = GaussianDistribution(mean=[0.0, 1.0], cov=[[4.0, 2.0], [2.0, 3.0]])
        >>> given = joint.conditioned(on=[0], at=[2.0])
        >>> float(given.mean[0]), float(given.cov[0, 0])
        (2.0, 2.0)
        """
        known = list(dict.fromkeys(int(place) for place in on))
        if not known or len(known) != len(at) or not set(known) < set(range(self.dim)):
            raise ArgumentError(
                f"on must name some, not all, of the {self.dim} coordinates, each once, and at "
                "give a value for each"
            )
        check_finite(at=locked(at))
        free = [place for place in range(self.dim) if place not in known]
        # Eliminated exactly: rounding could add to a spread that is the difference of large ones.
        cov = [[Fraction(x) for x in row] for row in self.cov.tolist()]
        mean = [Fraction(x) for x in self.mean.tolist()]
        for place, value in zip(known, at, strict=True):
            pivot = cov[place][place]
            if not pivot:
                raise ArgumentError(
                    "the coordinates of on have no density together; leave out those that follow"
                )
            gains = [row[place] / pivot for row in cov]
            step = Fraction(float(value)) - mean[place]
            mean = [m + gain * step for m, gain in zip(mean, gains, strict=True)]
            top = list(cov[place])
            cov = [
                [x - gain * y for x, y in zip(row, top, strict=True)]
                for row, gain in zip(cov, gains, strict=True)
            ]
        return GaussianDistribution(
            mean=[float(mean[place]) for place in free],
            cov=[[float(cov[i][j]) for j in free] for i in free],
        )

    def atoms(self) -> None:
        """Return None: a Gaussian has no atoms."""

    def draw(self, n_draws: int, *, rng: np.random.Generator) -> tuple[Floats, Integers]:
        """Draw independent outputs, each its own value."""
        values = rng.multivariate_normal(self.mean, self.cov, n_draws, method="eigh")
        return values, np.arange(n_draws)

    def prepared(self, query: Query) -> "GaussianDistribution":
        """Scale this Gaussian, in the user's units; each number is rounded.

        To draw from, not to certify: certificates are computed from the declared Gaussian.
        """
        if self.dim != query.dim:
            raise ScenarioError(
                f"a Gaussian must have the query's {query.dim} coordinates, got {self.dim}"
            )
        if query.range is not None:
            raise ScenarioError(
                "a query clipped to a range does not have a Gaussian distribution; leave the range "
                "out, or give the distributions as samples"
            )
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            units = np.outer(query.scales, query.scales)
            mean, cov = self.mean / query.scales, self.cov / units
        if not (
            units.min() > _LEAST_UNIT
            and all(np.isfinite(array).all() for array in (units, mean, cov))
        ):
            raise ScenarioError(
                "scales are too far from 1: the scaled Gaussian distribution overflows; use other "
                "units"
            )
        return GaussianDistribution(mean=mean, cov=cov)

    def reduced(self) -> tuple[npt.NDArray[Any], ...]:
        """Mean and covariance."""
        return self.mean, self.cov

    def digest_parts(self) -> list[bytes]:
        """Mean and covariance as bytes."""
        return _array_parts(self.mean, self.cov)

    def __repr__(self) -> str:
        return f"GaussianDistribution(dim={self.dim})"


def _components(components: Iterable[GaussianDistribution]) -> tuple[GaussianDistribution, ...]:
    return tuple(components)


@final
@attrs.frozen(kw_only=True, repr=False)
class GaussianMixture:
    """A mixture of Gaussians: the query is that of component k with probability `counts[k]/total`.

    >>> narrow = GaussianDistribution(mean=[0.0], cov=[[1.0]])
    >>> wide = GaussianDistribution(mean=[1.0], cov=[[9.0]])
    >>> GaussianMixture.weighted([narrow, wide], [0.75, 0.25])
    GaussianMixture(n_components=2, dim=1)
    """

    kind: ClassVar[Kind] = "gaussian"
    n_samples: ClassVar[int] = 0
    components: tuple[GaussianDistribution, ...] = attrs.field(converter=_components)
    counts: Integers = attrs.field(converter=locked_integers, eq=same)
    """Integer count of each component, shape (n_components,), with sum WEIGHT_QUANTA."""

    def __attrs_post_init__(self) -> None:
        others = [c for c in self.components if not is_a(c, GaussianDistribution)]
        if others or len({component.dim for component in self.components}) != 1:
            raise ArgumentError(
                "components must be GaussianDistribution, at least one, all of one dimension"
            )
        fits = self.counts.shape == (len(self.components),) and self.counts.min() >= 1
        if not fits or int(self.counts.sum()) != WEIGHT_QUANTA:
            raise ArgumentError(
                "counts must be an integer of at least 1 for each component and sum to 2^30; use "
                "GaussianMixture.weighted(...)"
            )

    @classmethod
    def weighted(
        cls, components: Sequence[GaussianDistribution], weights: Floats | Sequence[float]
    ) -> "GaussianMixture":
        """Give component k the probability `weights[k]`, held as in `FiniteDistribution`."""
        return cls(components=components, counts=_held_weights(weights, len(components)))

    @property
    def dim(self) -> int:
        """Output dimension."""
        return self.components[0].dim

    @property
    def mean(self) -> Floats:
        """Mean, shape (dim,)."""
        means = np.array([component.mean for component in self.components])
        return np.asarray(self.counts / WEIGHT_QUANTA @ means)

    @property
    def cov(self) -> Floats:
        """Covariance within and between the components, shape (dim, dim)."""
        weights, mean = self.counts / WEIGHT_QUANTA, self.mean
        within = sum(w * c.cov for w, c in zip(weights, self.components, strict=True))
        apart = np.array([component.mean for component in self.components]) - mean
        return np.asarray(within + (weights * apart.T) @ apart)

    def atoms(self) -> None:
        """Return None: a mixture of Gaussians has no atoms."""

    def draw(self, n_draws: int, *, rng: np.random.Generator) -> tuple[Floats, Integers]:
        """Draw independent outputs, each its own value."""
        ends = np.cumsum(self.counts)
        which = np.searchsorted(ends, rng.integers(ends[-1], size=n_draws), "right")
        values = np.empty((n_draws, self.dim))
        for place, component in enumerate(self.components):
            of_it = which == place
            values[of_it] = component.draw(int(of_it.sum()), rng=rng)[0]
        return values, np.arange(n_draws)

    def prepared(self, query: Query) -> "GaussianMixture":
        """Scale this mixture, in the user's units, as `GaussianDistribution.prepared`."""
        components = [component.prepared(query) for component in self.components]
        return GaussianMixture(components=components, counts=self.counts)

    def merged(self) -> "GaussianMixture":
        """Merge equal components of the mixture, and sort them."""
        keys = [b"|".join(component.digest_parts()) for component in self.components]
        totals = Counter[bytes]()
        for key, count in zip(keys, self.counts.tolist(), strict=True):
            totals[key] += count
        by_key = dict(zip(keys, self.components, strict=True))
        order = sorted(totals)
        return GaussianMixture(
            components=[by_key[key] for key in order], counts=[totals[key] for key in order]
        )

    def reduced(self) -> tuple[npt.NDArray[Any], ...]:
        """Means, covariances and counts of the merged components."""
        parts = self.merged()
        means = np.array([component.mean for component in parts.components])
        covs = np.array([component.cov for component in parts.components])
        return means, covs, parts.counts

    def digest_parts(self) -> list[bytes]:
        """Components and counts as bytes."""
        parts = [part for component in self.components for part in component.digest_parts()]
        return [b"mixture", *parts, *_array_parts(self.counts)]

    def __repr__(self) -> str:
        return f"GaussianMixture(n_components={len(self.components)}, dim={self.dim})"


def equal_distributions(first: Distribution, second: Distribution) -> bool:
    """Whether two distributions of one type are equal, bit for bit, in all that is known of them.

    Finite and Gaussian distributions then are equal. Of those known by draws this only says that
    the draws are in the same proportions.

    >>> a = FiniteDistribution.uniform([[0.0], [1.0]])
    >>> equal_distributions(a, FiniteDistribution.uniform([[1.0], [1.0], [0.0], [0.0]]))
    True
    """
    return type(first) is type(second) and all(
        np.array_equal(a, b) for a, b in zip(first.reduced(), second.reduced(), strict=True)
    )


def _held_weights(weights: Any, length: int) -> Integers:  # whatever numpy can read
    """Probabilities as integer multiples of 1 / WEIGHT_QUANTA, by largest remainders."""
    weights = locked(weights)
    check_probabilities(weights=weights, length=length)
    exact = weights * WEIGHT_QUANTA
    counts = np.floor(exact).astype(np.int64)
    short = WEIGHT_QUANTA - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
    if counts.min() < 1:
        raise ArgumentError(
            f"weights must be at least 1/{WEIGHT_QUANTA}; the smallest is "
            f"{float(weights.min())!r}. Drop what carries no weight"
        )
    return locked_integers(counts)


def _array_parts(*arrays: npt.NDArray[Any]) -> list[bytes]:
    return [part for array in arrays for part in (str(array.shape).encode(), array.tobytes())]
