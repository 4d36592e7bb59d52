# SPDX-License-Identifier: Apache-2.0
"""Distributions of a query: samples with multiplicities, weights held exactly, Gaussians."""

import math
from fractions import Fraction
from typing import ClassVar

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import oracles

from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import (
    WEIGHT_QUANTA,
    Distribution,
    FiniteDistribution,
    GaussianDistribution,
    GaussianMixture,
    SampledDistribution,
    equal_distributions,
)


class TestEmpiricalDistribution:
    def test_uniform(self):
        distribution = FiniteDistribution.uniform([[0.0, 1.0], [2.0, 3.0], [2.0, 3.0]])
        assert (distribution.n_samples, distribution.dim, distribution.total) == (3, 2, 3)
        assert distribution.counts.tolist() == [1, 1, 1]
        assert distribution.is_uniform

    def test_copied_and_locked(self):
        outputs = np.zeros((2, 1))
        distribution = FiniteDistribution.uniform(outputs)
        outputs[:] = 7
        assert distribution.outputs.tolist() == [[0.0], [0.0]]
        with pytest.raises(ValueError):
            distribution.outputs[0, 0] = 1
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            distribution.counts = np.ones(2)

    @pytest.mark.parametrize("bad", [math.nan, -math.inf])
    def test_values_must_be_finite_and_are_counted_not_shown(self, bad):
        with pytest.raises(ArgumentError, match="2 of 4 values") as caught:
            FiniteDistribution.uniform([[bad, 123.25], [bad, 0.0]])
        assert "123.25" not in str(caught.value)

    def test_squares_must_be_floats(self):
        assert FiniteDistribution.uniform([[1e150], [-1e150]]).n_samples == 2
        with pytest.raises(ArgumentError) as caught:
            FiniteDistribution.uniform([[1.0], [-1.25e300]])
        assert "1.25" not in str(caught.value)


class TestWeighted:
    @given(st.lists(st.integers(1, 1000), min_size=1, max_size=30))
    def test_each_weight_is_held_to_one_quantum_and_all_sum_to_one(self, parts):
        weights = np.array(parts) / sum(parts)
        distribution = FiniteDistribution.weighted(np.arange(len(parts))[:, None], weights)
        total = sum(int(count) for count in distribution.counts)
        assert total == distribution.total
        for weight, count in zip(weights, distribution.counts, strict=True):
            held = Fraction(int(count), total)
            assert abs(held - Fraction(float(weight))) <= Fraction(1, WEIGHT_QUANTA)

    def test_largest_remainders(self):
        """2^30 / 3 = 357913941.33: one of three equal weights gets the quantum left over."""
        distribution = FiniteDistribution.weighted([[0.0], [1.0], [2.0]], [1 / 3, 1 / 3, 1 / 3])
        quotas = np.sort(distribution.counts * WEIGHT_QUANTA / distribution.total)
        assert quotas.tolist() == [357913941, 357913941, 357913942]

    def test_the_largest_remainder_wins(self):
        quanta = np.array([10.6, 20.5, WEIGHT_QUANTA - 31.1])
        distribution = FiniteDistribution.weighted([[0.0], [1.0], [2.0]], quanta / WEIGHT_QUANTA)
        assert distribution.counts.tolist() == [11, 20, WEIGHT_QUANTA - 31]


class TestGaussianDistribution:
    @pytest.mark.parametrize("cov", [np.zeros((2, 2)), np.ones((2, 2)), np.diag([1e-30, 1e30])])
    def test_semi_definite_is_enough(self, cov):
        assert GaussianDistribution(mean=np.zeros(2), cov=cov).dim == 2

    def test_made_exactly_symmetric(self):
        distribution = GaussianDistribution(mean=[0, 0], cov=[[1, 0.5], [0.5 + 2**-50, 1]])
        assert distribution.cov.tolist() == [[1, 0.5 + 2**-51], [0.5 + 2**-51, 1]]
        assert not distribution.cov.flags.writeable


class TestEqualDistributions:
    @given(st.data())
    def test_the_same_probabilities_on_the_same_atoms(self, data):
        first, second = (data.draw(oracles.empirical_distributions(2)) for _ in range(2))
        assert equal_distributions(first, second) == (masses(first) == masses(second))
        assert equal_distributions(first, first)

    @given(st.data())
    def test_whatever_the_order_and_the_multiplicity(self, data):
        distribution = data.draw(oracles.empirical_distributions(2))
        order = data.draw(st.permutations(range(distribution.n_samples)))
        twice = FiniteDistribution(
            outputs=np.vstack([distribution.outputs[order], distribution.outputs]),
            counts=np.concatenate([distribution.counts[order], distribution.counts]),
        )
        assert equal_distributions(distribution, twice)
        assert equal_distributions(twice, distribution)

    @pytest.mark.parametrize(
        "other",
        [
            FiniteDistribution.uniform([[0.0], [1.5], [2.0]]),
            FiniteDistribution.uniform([[0.0], [math.nextafter(1.0, 2.0)], [2.0]]),
            FiniteDistribution(outputs=[[0.0], [1.0], [2.0]], counts=[1, 2, 1]),
            FiniteDistribution.uniform([[0.0, 0], [1.0, 0], [2.0, 0]]),
        ],
    )
    def test_differences_that_a_bounding_box_does_not_show(self, other):
        first = FiniteDistribution.uniform([[0.0], [1.0], [2.0]])
        assert not equal_distributions(first, other)


def masses(distribution):
    total, found = sum(int(c) for c in distribution.counts), {}
    for row, count in zip(distribution.outputs.tolist(), distribution.counts, strict=True):
        found[tuple(row)] = found.get(tuple(row), 0) + Fraction(int(count), total)
    return found


ROWS = [[0.5], [0.25], [0.25]]


class DistributionContract:
    """What every type of distribution offers: `distribution`, `other`, and what is known of it."""

    distribution: Distribution
    other: Distribution
    """Of the same type, with the same shapes."""
    kind = "empirical"
    n_samples = 3
    mean = 1 / 3
    atoms: ClassVar = ([[0.5], [0.25], [0.25]], [1, 1, 1])

    def test_facts(self):
        shown = self.distribution
        assert (shown.kind, shown.dim, shown.n_samples) == (self.kind, 1, self.n_samples)
        assert type(shown).__name__ in repr(shown)
        assert "0.25" not in repr(shown)

    def test_mean_and_atoms(self):
        mean, atoms = self.distribution.mean, self.distribution.atoms()
        assert mean == pytest.approx([self.mean])
        assert self.atoms == (None if atoms is None else tuple(array.tolist() for array in atoms))

    def test_draws_follow_the_distribution(self, rng):
        values, where = self.distribution.draw(100_000, rng=rng)
        assert where.shape == (100_000,)
        assert values[where].mean() == pytest.approx(self.mean, abs=0.02)
        assert {len(values)} <= {100_000, self.n_samples}

    def test_equality(self):
        assert equal_distributions(self.distribution, attrs.evolve(self.distribution))
        assert not equal_distributions(self.distribution, self.other)

    def test_digest_parts_differ_between_distributions_and_types(self):
        types = DistributionContract.__subclasses__()
        parts = [b"|".join(one.distribution.digest_parts()) for one in types]
        assert len({*parts, b"|".join(self.other.digest_parts())}) == len(types) + 1


class TestFiniteContract(DistributionContract):
    distribution = FiniteDistribution.uniform(ROWS)
    other = FiniteDistribution(outputs=ROWS, counts=[1, 2, 1])


class TestSampledContract(DistributionContract):
    distribution = SampledDistribution(outputs=ROWS)
    other = SampledDistribution(outputs=[[0.5], [0.5], [0.25]])
    kind = "sampled"


class TestGaussianContract(DistributionContract):
    distribution = GaussianDistribution(mean=[0.25], cov=[[1.0]])
    other = GaussianDistribution(mean=[0.25], cov=[[2.0]])
    kind, n_samples, mean, atoms = "gaussian", 0, 0.25, None


class TestMixtureContract(DistributionContract):
    distribution = GaussianMixture.weighted(
        [TestGaussianContract.distribution, TestGaussianContract.other], [0.5, 0.5]
    )
    other = GaussianMixture.weighted(distribution.components, [0.75, 0.25])
    kind, n_samples, mean, atoms = "gaussian", 0, 0.25, None

    def test_components_may_come_in_any_order_and_in_parts(self):
        first, second = self.distribution.components
        again = GaussianMixture.weighted([second, first, second], [0.25, 0.5, 0.25])
        assert equal_distributions(self.distribution, again)

    def test_moments_are_those_of_draws(self, rng):
        mixture = GaussianMixture.weighted(
            [
                GaussianDistribution(mean=[0.0, 0.0], cov=np.eye(2)),
                GaussianDistribution(mean=[3.0, -1.0], cov=[[2.0, 1.0], [1.0, 1.0]]),
            ],
            [0.7, 0.3],
        )
        values, where = mixture.draw(200_000, rng=rng)
        # Five standard errors, of numbers whose spread is at most 1.9.
        assert values[where].mean(axis=0) == pytest.approx(mixture.mean, abs=0.022)
        assert np.cov(values.T) == pytest.approx(mixture.cov, abs=0.06)
