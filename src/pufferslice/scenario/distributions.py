# SPDX-License-Identifier: Apache-2.0
"""Distributions of a query under one secret: finite, known through a sample only, or Gaussian."""

from typing import Any, Final, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, Integers, locked, locked_integers, same
from pufferslice._core.checks import check_finite, check_probabilities
from pufferslice.errors import ArgumentError
from pufferslice.scenario.histograms import BinnedDistribution

WEIGHT_QUANTA: Final = 2**30
"""Weights of an empirical distribution are held as whole multiples of 1 / WEIGHT_QUANTA."""

LARGEST_TOTAL: Final = 2**31
"""So that the common denominator of two distributions fits a 64-bit integer."""

_SYMMETRY_TOLERANCE: Final = 1e-12


def _without_minus_zero(values: Any) -> Floats:  # noqa: ANN401 - whatever numpy can read
    return locked(locked(values) + 0.0)


def _check_outputs(outputs: Floats) -> None:
    if outputs.ndim != 2 or outputs.size == 0:
        shape = outputs.shape
        msg = f"outputs must have shape (n_samples, dim), both at least 1; got {shape}"
        raise ArgumentError(msg)
    check_finite(outputs=outputs)


@final
@attrs.frozen(kw_only=True, repr=False)
class FiniteDistribution:
    """A distribution with finitely many atoms: `outputs[i]` has probability `counts[i] / total`.

    >>> FiniteDistribution.uniform([[0.0], [0.0], [10.0]])
    FiniteDistribution(n_samples=3, dim=1)
    """

    outputs: Floats = attrs.field(converter=_without_minus_zero, eq=same)
    """The atoms, shape (n_samples, dim); -0.0 is held as 0.0, which prints the same."""
    counts: Integers = attrs.field(converter=locked_integers, eq=same)
    """How often each atom counts, whole numbers of at least 1, shape (n_samples,)."""

    def __attrs_post_init__(self) -> None:
        _check_outputs(self.outputs)
        if self.counts.shape != (len(self.outputs),) or self.counts.min() < 1:
            msg = (
                "counts must be whole numbers of at least 1, one for each row of outputs; got "
                f"shape {self.counts.shape} for {len(self.outputs)} rows"
            )
            raise ArgumentError(msg)
        # In floats, because a sum of integers could wrap around.
        if float(self.counts.astype(np.float64).sum()) > LARGEST_TOTAL:
            msg = (
                f"the counts must sum to at most 2^31 = {LARGEST_TOTAL}; divide them by a common "
                "factor, or use fewer rows"
            )
            raise ArgumentError(msg)

    @classmethod
    def uniform(cls, outputs: Floats) -> "FiniteDistribution":
        """Every row of `outputs` with the same probability."""
        rows = np.atleast_2d(locked(outputs))
        return cls(outputs=rows, counts=np.ones(len(rows), dtype=np.int64))

    @classmethod
    def weighted(cls, outputs: Floats, weights: Floats) -> "FiniteDistribution":
        """Row i with probability `weights[i]`, held to a whole multiple of 1 / WEIGHT_QUANTA.

        The distribution *is* the one with the held weights; largest remainders make them sum to 1
        exactly.
        """
        weights = locked(weights)
        rows = np.atleast_2d(locked(outputs))
        check_probabilities(weights=weights, length=len(rows))
        exact = weights * WEIGHT_QUANTA
        counts = np.floor(exact).astype(np.int64)
        short = WEIGHT_QUANTA - int(counts.sum())
        counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
        if counts.min() < 1:
            msg = (
                f"weights must be at least 1/{WEIGHT_QUANTA}; the smallest is "
                f"{float(weights.min())!r}. Drop rows that carry no weight"
            )
            raise ArgumentError(msg)
        return cls(outputs=rows, counts=counts)

    @property
    def n_samples(self) -> int:
        """Number of atoms."""
        return len(self.outputs)

    @property
    def dim(self) -> int:
        """Output dimension."""
        return int(self.outputs.shape[1])

    @property
    def total(self) -> int:
        """Sum of the counts: the denominator of all probabilities."""
        return int(self.counts.sum())

    @property
    def is_uniform(self) -> bool:
        """Whether every atom counts once."""
        return self.total == self.n_samples

    def __repr__(self) -> str:
        return f"FiniteDistribution(n_samples={self.n_samples}, dim={self.dim})"


@final
@attrs.frozen(kw_only=True, repr=False)
class SampledDistribution:
    """A distribution that is known only through independent draws of it.

    The draws are not the distribution.

    >>> SampledDistribution(outputs=[[0.0], [0.0], [10.0]])
    SampledDistribution(n_samples=3, dim=1)
    """

    outputs: Floats = attrs.field(converter=_without_minus_zero, eq=same)
    """Independent draws, shape (n_samples, dim)."""

    def __attrs_post_init__(self) -> None:
        _check_outputs(self.outputs)

    @property
    def n_samples(self) -> int:
        """Number of draws."""
        return len(self.outputs)

    @property
    def dim(self) -> int:
        """Output dimension."""
        return int(self.outputs.shape[1])

    def __repr__(self) -> str:
        return f"SampledDistribution(n_samples={self.n_samples}, dim={self.dim})"


@final
@attrs.frozen(kw_only=True, repr=False)
class GaussianDistribution:
    """N(mean, cov): a declared Gaussian prior of the query under one secret."""

    mean: Floats = attrs.field(converter=locked, eq=same)
    """Shape (dim,)."""
    cov: Floats = attrs.field(converter=locked, eq=same)
    """Symmetric and positive semi-definite, shape (dim, dim); made exactly symmetric."""

    def __attrs_post_init__(self) -> None:
        dim = self.mean.size
        if self.mean.shape != (dim,) or dim == 0 or self.cov.shape != (dim, dim):
            shapes = f"{self.mean.shape}, {self.cov.shape}"
            msg = f"mean and cov must have shapes (dim,) and (dim, dim); got {shapes}"
            raise ArgumentError(msg)
        check_finite(mean=self.mean, cov=self.cov)
        size = float(np.abs(self.cov).max())
        if np.abs(self.cov - self.cov.T).max() > _SYMMETRY_TOLERANCE * size:
            msg = "cov must be symmetric; use (cov + cov.T) / 2"
            raise ArgumentError(msg)
        if not np.array_equal(self.cov, self.cov.T):
            # What reads one triangle and what reads both must see the same distribution.
            object.__setattr__(self, "cov", locked(self.cov / 2 + self.cov.T / 2))
        smallest = float(np.linalg.eigvalsh(self.cov)[0])
        if smallest < -_SYMMETRY_TOLERANCE * size:
            msg = f"cov must be positive semi-definite; its smallest eigenvalue is {smallest!r}"
            raise ArgumentError(msg)

    @property
    def dim(self) -> int:
        """Output dimension."""
        return self.mean.size

    def __repr__(self) -> str:
        return f"GaussianDistribution(dim={self.dim})"


@final
@attrs.frozen(kw_only=True, repr=False)
class SampledBinnedDistribution:
    """As `SampledDistribution`, for draws that were counted in bins and not kept."""

    draws: BinnedDistribution

    @property
    def n_samples(self) -> int:
        """Number of draws."""
        return self.draws.n_samples

    @property
    def dim(self) -> int:
        """Output dimension."""
        return self.draws.dim

    def __repr__(self) -> str:
        return f"SampledBinnedDistribution(n_samples={self.n_samples}, dim={self.dim})"


Distribution = (
    FiniteDistribution
    | BinnedDistribution
    | SampledDistribution
    | SampledBinnedDistribution
    | GaussianDistribution
)


def equal_distributions(first: FiniteDistribution, second: FiniteDistribution) -> bool:
    """Whether two empirical distributions put the same probability on the same atoms, bit for bit.

    >>> a = FiniteDistribution.uniform([[0.0], [1.0]])
    >>> equal_distributions(a, FiniteDistribution.uniform([[1.0], [1.0], [0.0], [0.0]]))
    True
    """
    atoms_1, counts_1 = _merged(first)
    atoms_2, counts_2 = _merged(second)
    if not np.array_equal(atoms_1, atoms_2):
        return False
    return all(
        int(a) * second.total == int(b) * first.total
        for a, b in zip(counts_1, counts_2, strict=True)
    )


def look_equal(first: Distribution, second: Distribution) -> bool:
    """Whether two distributions of one kind have the same atoms, draws, counts or parameters.

    Of distributions that are known by draws or bins, this does not say that they are equal.
    """
    if isinstance(first, FiniteDistribution) and isinstance(second, FiniteDistribution):
        return equal_distributions(first, second)
    if isinstance(first, SampledDistribution) and isinstance(second, SampledDistribution):
        samples = (
            FiniteDistribution.uniform(first.outputs),
            FiniteDistribution.uniform(second.outputs),
        )
        return equal_distributions(*samples)
    if isinstance(first, SampledBinnedDistribution) and isinstance(
        second, SampledBinnedDistribution
    ):
        return look_equal(first.draws, second.draws)
    if isinstance(first, BinnedDistribution) and isinstance(second, BinnedDistribution):
        # As integers of any size: a product of two counts may not fit 64 bits.
        return all(
            bool((a.astype(object) * second.total == b.astype(object) * first.total).all())
            for a, b in zip(first.counts, second.counts, strict=True)
        )
    return first == second


def n_samples_of(distribution: Distribution) -> int:
    """Number of atoms, draws or rows of a distribution; 0 for a formula."""
    return 0 if isinstance(distribution, GaussianDistribution) else distribution.n_samples


def _merged(distribution: FiniteDistribution) -> tuple[Floats, Integers]:
    """Distinct atoms in lexicographic order, with the sum of their counts."""
    atoms, where = np.unique(distribution.outputs, axis=0, return_inverse=True)
    counts = np.zeros(len(atoms), dtype=np.int64)
    np.add.at(counts, where.reshape(-1), distribution.counts)
    return atoms, counts


def distribution_bytes(distribution: Distribution) -> list[bytes]:
    """All of a distribution as bytes, for a digest.

    Different kinds of distribution have different bytes.
    """
    arrays: tuple[npt.NDArray[Any], ...]
    if isinstance(distribution, FiniteDistribution):
        arrays = (distribution.outputs, distribution.counts)
    elif isinstance(distribution, SampledDistribution):
        arrays = (distribution.outputs, np.zeros(0))
    elif isinstance(distribution, GaussianDistribution):
        arrays = (distribution.mean, distribution.cov)
    else:
        binned = (
            distribution if isinstance(distribution, BinnedDistribution) else distribution.draws
        )
        kind = b"binned" if isinstance(distribution, BinnedDistribution) else b"sampled, binned"
        return [kind, binned.grid.digest().encode(), binned.counts.tobytes()]
    return [part for a in arrays for part in (str(a.shape).encode(), a.tobytes())]
