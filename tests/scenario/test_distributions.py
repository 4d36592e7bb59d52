# SPDX-License-Identifier: Apache-2.0
"""Laws of a query: samples with multiplicities, weights held exactly, Gaussians."""

import math
from fractions import Fraction

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import oracles

from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import (
    WEIGHT_QUANTA,
    EmpiricalLaw,
    GaussianLaw,
    SampledBinnedLaw,
    SampledLaw,
    equal_laws,
    law_bytes,
)
from pufferslice.scenario.histograms import BinGrid, BinnedLaw


class TestEmpiricalLaw:
    def test_uniform(self):
        law = EmpiricalLaw.uniform([[0.0, 1.0], [2.0, 3.0], [2.0, 3.0]])
        assert (law.n_samples, law.dim, law.total) == (3, 2, 3)
        assert law.counts.tolist() == [1, 1, 1]
        assert law.is_uniform

    def test_multiplicities(self):
        law = EmpiricalLaw(outputs=[[0.0], [1.0]], counts=[1, 3])
        assert (law.n_samples, law.dim, law.total) == (2, 1, 4)
        assert not law.is_uniform

    def test_copied_and_locked(self):
        outputs = np.zeros((2, 1))
        law = EmpiricalLaw.uniform(outputs)
        outputs[:] = 7
        assert law.outputs.tolist() == [[0.0], [0.0]]
        with pytest.raises(ValueError):
            law.outputs[0, 0] = 1
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            law.counts = np.ones(2)

    def test_equality_and_repr_that_shows_no_record(self):
        law = EmpiricalLaw.uniform([[0.125], [1.0]])
        assert law == EmpiricalLaw.uniform([[0.125], [1.0]])
        assert law != EmpiricalLaw.uniform([[0.125], [2.0]])
        assert repr(law) == "EmpiricalLaw(n_samples=2, dim=1)"

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_values_must_be_finite_and_are_counted_not_shown(self, bad):
        with pytest.raises(ArgumentError, match="2 of 4 values") as caught:
            EmpiricalLaw.uniform([[bad, 123.25], [bad, 0.0]])
        assert "123.25" not in str(caught.value)

    @pytest.mark.parametrize("shape", [(0, 2), (2, 0), (2, 2, 2)])
    def test_shape(self, shape):
        with pytest.raises(ArgumentError, match="outputs must have shape"):
            EmpiricalLaw(outputs=np.zeros(shape), counts=np.ones(shape[0], dtype=int))

    @pytest.mark.parametrize(
        "counts", [[0, 1], [-1, 2], [1], [1, 1, 1], [1.5, 1.0], [math.nan, 1.0], [[1, 1]]]
    )
    def test_counts_must_be_whole_and_positive(self, counts):
        with pytest.raises(ArgumentError):
            EmpiricalLaw(outputs=[[0.0], [1.0]], counts=counts)

    def test_counts_must_leave_room_for_a_common_denominator(self):
        with pytest.raises(ArgumentError, match=r"2\^31"):
            EmpiricalLaw(outputs=[[0.0], [1.0]], counts=[2**31, 2**31])
        with pytest.raises(ArgumentError, match=r"2\^31"):
            EmpiricalLaw(outputs=[[0.0], [1.0]], counts=[2**62, 2**62])

    def test_not_numbers(self):
        with pytest.raises(ArgumentError, match="numbers"):
            EmpiricalLaw.uniform([["a"], ["b"]])


class TestWeighted:
    @given(st.lists(st.integers(1, 1000), min_size=1, max_size=30))
    def test_each_weight_is_held_to_one_quantum_and_all_sum_to_one(self, parts):
        weights = np.array(parts) / sum(parts)
        law = EmpiricalLaw.weighted(np.arange(len(parts))[:, None], weights)
        total = sum(int(count) for count in law.counts)
        assert total == law.total
        for weight, count in zip(weights, law.counts, strict=True):
            held = Fraction(int(count), total)
            assert abs(held - Fraction(float(weight))) <= Fraction(1, WEIGHT_QUANTA)

    def test_largest_remainders(self):
        """2^30 / 3 = 357913941.33: one of three equal weights gets the quantum left over."""
        law = EmpiricalLaw.weighted([[0.0], [1.0], [2.0]], [1 / 3, 1 / 3, 1 / 3])
        quotas = np.sort(law.counts * WEIGHT_QUANTA / law.total)
        assert quotas.tolist() == [357913941, 357913941, 357913942]

    def test_the_largest_remainder_wins(self):
        quanta = np.array([10.6, 20.5, WEIGHT_QUANTA - 31.1])
        law = EmpiricalLaw.weighted([[0.0], [1.0], [2.0]], quanta / WEIGHT_QUANTA)
        assert (law.counts * WEIGHT_QUANTA // law.total).tolist() == [11, 20, WEIGHT_QUANTA - 31]

    def test_dyadic_weights_are_exact(self):
        law = EmpiricalLaw.weighted([[0.0], [1.0], [2.0]], [0.25, 0.25, 0.5])
        assert (law.counts / law.total).tolist() == [0.25, 0.25, 0.5]

    @pytest.mark.parametrize(
        "weights", [[0.5, 0.6], [-0.5, 1.5], [0.5], [math.nan, 1.0], [0.2, 0.3, 0.5], [0.5, 0.4999]]
    )
    def test_weights_must_be_a_distribution(self, weights):
        with pytest.raises(ArgumentError, match="weights"):
            EmpiricalLaw.weighted([[0.0], [1.0]], weights)

    @pytest.mark.parametrize("small", [0.0, 1e-12])
    def test_weights_too_small_to_be_held_are_refused(self, small):
        with pytest.raises(ArgumentError, match="Drop rows"):
            EmpiricalLaw.weighted([[0.0], [1.0]], [small, 1 - small])


class TestGaussianLaw:
    def test_values(self):
        law = GaussianLaw(mean=[0.0, 1.0], cov=[[2.0, 1.0], [1.0, 2.0]])
        assert law.dim == 2
        assert law == GaussianLaw(mean=[0.0, 1.0], cov=[[2.0, 1.0], [1.0, 2.0]])
        assert law != GaussianLaw(mean=[0.0, 1.0], cov=[[2.0, 1.0], [1.0, 3.0]])
        assert repr(law) == "GaussianLaw(dim=2)"

    @pytest.mark.parametrize("cov", [np.zeros((2, 2)), np.ones((2, 2)), np.diag([1e-30, 1e30])])
    def test_semi_definite_is_enough(self, cov):
        assert GaussianLaw(mean=np.zeros(2), cov=cov).dim == 2

    @pytest.mark.parametrize(
        ("mean", "cov"),
        [
            (np.zeros(2), np.eye(3)),
            (np.zeros((2, 1)), np.eye(2)),
            (np.zeros(0), np.eye(0)),
            (0.0, 1.0),
        ],
    )
    def test_shapes(self, mean, cov):
        with pytest.raises(ArgumentError, match="mean and cov must have shapes"):
            GaussianLaw(mean=mean, cov=cov)

    def test_finite(self):
        with pytest.raises(ArgumentError, match="mean must be finite"):
            GaussianLaw(mean=[math.nan], cov=[[1.0]])
        with pytest.raises(ArgumentError, match="cov must be finite"):
            GaussianLaw(mean=[0.0], cov=[[math.inf]])

    def test_made_exactly_symmetric(self):
        law = GaussianLaw(mean=[0, 0], cov=[[1, 0.5], [0.5 + 2**-50, 1]])
        assert law.cov.tolist() == [[1, 0.5 + 2**-51], [0.5 + 2**-51, 1]]
        assert not law.cov.flags.writeable

    def test_symmetric_and_positive(self):
        with pytest.raises(ArgumentError, match="symmetric"):
            GaussianLaw(mean=[0.0, 0.0], cov=[[1.0, 0.5], [0.4, 1.0]])
        with pytest.raises(ArgumentError, match="positive semi-definite"):
            GaussianLaw(mean=[0.0, 0.0], cov=[[1.0, 2.0], [2.0, 1.0]])
        with pytest.raises(ArgumentError, match="positive semi-definite"):
            GaussianLaw(mean=[0.0], cov=[[-1.0]])


class TestEqualLaws:
    @given(st.data())
    def test_the_same_probabilities_on_the_same_atoms(self, data):
        first, second = (data.draw(oracles.empirical_laws(2)) for _ in range(2))
        assert equal_laws(first, second) == (masses(first) == masses(second))
        assert equal_laws(first, first)

    @given(st.data())
    def test_whatever_the_order_and_the_multiplicity(self, data):
        law = data.draw(oracles.empirical_laws(2))
        order = data.draw(st.permutations(range(law.n_samples)))
        twice = EmpiricalLaw(
            outputs=np.vstack([law.outputs[order], law.outputs]),
            counts=np.concatenate([law.counts[order], law.counts]),
        )
        assert equal_laws(law, twice)
        assert equal_laws(twice, law)

    def test_differences_that_a_bounding_box_does_not_show(self):
        first = EmpiricalLaw.uniform([[0.0], [1.0], [2.0]])
        assert not equal_laws(first, EmpiricalLaw.uniform([[0.0], [1.5], [2.0]]))
        assert not equal_laws(first, EmpiricalLaw(outputs=[[0.0], [1.0], [2.0]], counts=[1, 2, 1]))
        assert not equal_laws(first, EmpiricalLaw.uniform([[0.0, 0], [1.0, 0], [2.0, 0]]))

    def test_the_same_margins_are_not_the_same_law(self):
        first = EmpiricalLaw.uniform([[0.0, 0.0], [1.0, 1.0]])
        assert not equal_laws(first, EmpiricalLaw.uniform([[0.0, 1.0], [1.0, 0.0]]))

    def test_one_last_bit_is_a_difference(self):
        first = EmpiricalLaw.uniform([[1.0]])
        assert not equal_laws(first, EmpiricalLaw.uniform([[math.nextafter(1.0, 2.0)]]))

    def test_both_zeros_are_zero(self):
        assert equal_laws(EmpiricalLaw.uniform([[0.0]]), EmpiricalLaw.uniform([[-0.0]]))


def masses(law):
    total, found = sum(int(c) for c in law.counts), {}
    for row, count in zip(law.outputs.tolist(), law.counts, strict=True):
        found[tuple(row)] = found.get(tuple(row), 0) + Fraction(int(count), total)
    return found


class TestSampled:
    def test_draws_are_not_atoms(self):
        drawn = SampledLaw(outputs=[[0.0, -0.0], [1.0, 2.0]])
        assert (drawn.n_samples, drawn.dim) == (2, 2)
        assert repr(drawn) == "SampledLaw(n_samples=2, dim=2)"
        assert not np.signbit(drawn.outputs).any()
        assert drawn != EmpiricalLaw.uniform(drawn.outputs)

    @pytest.mark.parametrize("outputs", [[], [[]], [1.0, 2.0], [[np.nan]]])
    def test_refusals(self, outputs):
        with pytest.raises(ArgumentError, match="outputs"):
            SampledLaw(outputs=outputs)

    def test_binned_draws(self):
        grid = BinGrid(directions=[[1.0]], center=[0.0], extents=[1.0], shape="box", n_bins=4)
        binned = BinnedLaw(grid=grid, counts=[[1, 0, 2, 0]])
        drawn = SampledBinnedLaw(draws=binned)
        assert (drawn.n_samples, drawn.dim) == (3, 1)
        assert repr(drawn) == "SampledBinnedLaw(n_samples=3, dim=1)"

    def test_the_bytes_of_a_law_tell_its_kind(self):
        grid = BinGrid(directions=[[1.0]], center=[0.0], extents=[1.0], shape="box", n_bins=4)
        binned = BinnedLaw(grid=grid, counts=[[1, 0, 2, 0]])
        rows = np.array([[0.5], [0.25]])
        laws = [
            EmpiricalLaw.uniform(rows),
            SampledLaw(outputs=rows),
            binned,
            SampledBinnedLaw(draws=binned),
            GaussianLaw(mean=[0.5], cov=[[0.25]]),
        ]
        kinds = {b"|".join(law_bytes(law)) for law in laws}
        assert len(kinds) == len(laws)
