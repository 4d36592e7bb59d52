# SPDX-License-Identifier: Apache-2.0
"""Slice profiles: directions, weights, digests, projection."""

import math

import attrs
import numpy as np
import pytest
from scipy import stats

from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere, project


class TestFiniteProfile:
    def test_axes(self):
        profile = FiniteProfile.axes(dim=3)
        assert profile.directions.tolist() == np.eye(3).tolist()
        assert profile.weights == pytest.approx([1 / 3] * 3, rel=1e-15)
        assert (profile.n_directions, profile.dim) == (3, 3)
        assert repr(profile) == "FiniteProfile(n_directions=3, dim=3)"

    def test_uniform_is_uniform_on_the_sphere(self):
        """First coordinate in R^5: (1 + u) / 2 is Beta(2, 2); all coordinates are alike."""
        profile = FiniteProfile.uniform(dim=5, n_directions=20_000, seed=1)
        assert np.linalg.norm(profile.directions, axis=1) == pytest.approx(np.ones(20_000))
        assert profile.weights == pytest.approx(np.full(20_000, 1 / 20_000))
        for k in range(5):
            draws = (1 + profile.directions[:, k]) / 2
            assert stats.kstest(draws, stats.beta(2, 2).cdf).pvalue > 1e-6
            assert stats.kstest(draws, stats.beta(2, 2.3).cdf).pvalue < 1e-6
        second = profile.directions.T @ profile.directions / 20_000
        assert second == pytest.approx(np.eye(5) / 5, abs=0.01)

    def test_the_line_has_one_slice(self):
        profile = FiniteProfile.uniform(dim=1, n_directions=7, seed=3)
        assert profile.directions.tolist() == [[1.0]]
        assert profile.weights.tolist() == [1.0]

    def test_orthogonal(self):
        profile = FiniteProfile.orthogonal(dim=4, n_sets=3, seed=5)
        assert (profile.n_directions, profile.dim) == (12, 4)
        bases = profile.directions.reshape(3, 4, 4)
        for basis in bases:
            assert basis @ basis.T == pytest.approx(np.eye(4), abs=1e-14)
        assert abs(bases[0] - bases[1]).max() > 0.1

    def test_orthogonal_bases_are_uniform(self):
        """Every direction of a Haar basis is uniform: E u1 = 0, P(u1 > 0) = 1/2, E u1^2 = 1/3."""
        bases = FiniteProfile.orthogonal(dim=3, n_sets=4000, seed=6).directions.reshape(-1, 3, 3)
        # Standard error of a mean of u1 is 0.58 / sqrt(4000) = 0.009.
        assert bases.mean(axis=0) == pytest.approx(np.zeros((3, 3)), abs=0.05)
        assert (bases**2).mean(axis=0) == pytest.approx(np.full((3, 3), 1 / 3), abs=0.03)
        assert (np.linalg.det(bases) > 0).mean() == pytest.approx(0.5, abs=0.05)

    def test_blocks(self):
        profile = FiniteProfile.blocks(dim=5, blocks=[[0, 3], [1]], n_directions=4, seed=2)
        assert profile.n_directions == 8
        assert profile.weights == pytest.approx([1 / 8] * 8)
        first, second = profile.directions[:4], profile.directions[4:]
        assert (first[:, [1, 2, 4]] == 0).all()
        assert (second[:, [0, 2, 3, 4]] == 0).all()
        assert (abs(second[:, 1]) == 1).all()
        assert len(np.unique(first, axis=0)) == 4

    @pytest.mark.parametrize(
        "build",
        [
            lambda seed: FiniteProfile.uniform(dim=3, n_directions=4, seed=seed),
            lambda seed: FiniteProfile.orthogonal(dim=3, n_sets=2, seed=seed),
            lambda seed: FiniteProfile.blocks(dim=3, blocks=[[0, 2]], n_directions=4, seed=seed),
        ],
    )
    def test_the_seed_decides(self, build):
        assert build(7) == build(7)
        assert build(7) != build(8)

    def test_frozen_and_locked(self):
        directions = np.eye(2)
        profile = FiniteProfile.of(directions)
        directions[0, 0] = 9
        assert profile.directions[0, 0] == 1
        with pytest.raises(ValueError):
            profile.directions[0, 0] = 2
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            profile.weights = np.ones(2)


class TestDigest:
    def test_depends_on_what_is_stored_only(self):
        drawn = FiniteProfile.uniform(dim=3, n_directions=4, seed=7)
        again = FiniteProfile(directions=drawn.directions.tolist(), weights=drawn.weights.tolist())
        assert drawn.digest() == again.digest()
        assert len(drawn.digest()) == 64
        assert int(drawn.digest(), 16) >= 0

    def test_sees_every_number(self):
        base = FiniteProfile(directions=[[0.6, 0.8], [1.0, 0.0]], weights=[0.5, 0.5])
        others = [
            FiniteProfile(directions=[[0.8, 0.6], [1.0, 0.0]], weights=[0.5, 0.5]),
            FiniteProfile(directions=[[1.0, 0.0], [0.6, 0.8]], weights=[0.5, 0.5]),
            FiniteProfile(directions=[[0.6, 0.8], [1.0, 0.0]], weights=[0.25, 0.75]),
            FiniteProfile(
                directions=[[math.nextafter(0.6, 1), 0.8], [1.0, 0.0]], weights=[0.5, 0.5]
            ),
        ]
        digests = {profile.digest() for profile in [base, *others]}
        assert len(digests) == 5

    def test_sees_the_shape(self):
        """The same bytes as one direction in R^4 and as four on the line."""
        long = FiniteProfile(directions=[[1.0, 0.0, 0.0, 0.0]], weights=[1.0])
        wide = FiniteProfile(directions=[[1.0, 0.0], [0.0, 1.0]], weights=[1.0, 0.0])
        assert long.digest() != wide.digest()


class TestProject:
    def test_by_hand(self):
        outputs = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        values = project(np.array([[0.0, 1.0], [0.6, 0.8]]), outputs)
        assert values == pytest.approx(np.array([[2.0, 4.0, 6.0], [2.2, 5.0, 7.8]]), rel=1e-15)
        assert values.flags.c_contiguous


class TestSampledSphere:
    def test_directions_are_those_of_a_uniform_profile_but_not_the_same_profile(self):
        sphere = SampledSphere.draw(dim=4, n_directions=30, seed=5)
        finite = FiniteProfile.uniform(dim=4, n_directions=30, seed=5)
        assert np.array_equal(sphere.directions, finite.directions)
        assert np.array_equal(sphere.weights, finite.weights)
        assert sphere.digest() != finite.digest()
        assert sphere != finite
        assert repr(sphere) == "SampledSphere(n_directions=30, dim=4)"
