# SPDX-License-Identifier: Apache-2.0
"""Sliced divergences and caps over the directions of the plane: exact, and held to the paper."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad

from reproduction import profiles
from reproduction.experiment import Setting, experiment_named
from reproduction.profiles import (
    FIRST,
    ORDER,
    SECOND,
    CapProfile,
    SlicedProfile,
    attained_joint,
)

SETTING = Setting(full=False, folder=Path("unused"))


def divergence(angle):
    """The closed form of theory, written out once more for one direction."""
    u = np.array([math.cos(angle), math.sin(angle)])
    shift = u @ (FIRST.mean - SECOND.mean)
    v1, v2 = u @ FIRST.cov @ u, u @ SECOND.cov @ u
    mixed = ORDER * v2 + (1 - ORDER) * v1
    spread = math.log(v2 / v1) / 2 + math.log(v2 / mixed) / (2 * (ORDER - 1))
    return spread + ORDER * shift**2 / (2 * mixed)


class TestSlicedDivergences:
    def test_along_the_first_axis_by_hand(self):
        # N(1, 1) from N(0, 1.3): mixed variance 4 * 1.3 - 3 = 2.2.
        by_hand = math.log(1.3) / 2 + math.log(1.3 / 2.2) / 6 + 4 / (2 * 2.2)
        assert SlicedProfile.of("8", 8).divergences[0] == pytest.approx(by_hand, rel=1e-13)

    def test_the_limit_is_the_integral(self):
        limit = SlicedProfile.of("limit", 720)
        average = quad(divergence, 0, math.pi, epsabs=1e-12)[0] / math.pi
        moment = quad(lambda a: math.exp((ORDER - 1) * divergence(a)), 0, math.pi)[0] / math.pi
        assert limit.average == pytest.approx(average, rel=1e-10)
        assert limit.joint == pytest.approx(math.log(moment) / (ORDER - 1), rel=1e-10)

    def test_all_claims_hold(self):
        outcome = experiment_named("sliced-divergences").run(SETTING)
        assert [claim.held for claim in outcome.claims] == [True] * 4
        slices = [row for row in outcome.rows if row["quantity"] == "slice"]
        assert len(slices) == 8 + 16 + 32 + 720
        assert len(outcome.rows) == len(slices) + 4 * 3

    def test_other_distributions_can_break_a_claim(self, monkeypatch):
        """Claims are decided by the numbers: an unsliced divergence that is too small fails one."""
        monkeypatch.setattr(profiles, "gaussian_divergence_nd", lambda *_: 0.1)
        held = [claim.held for claim in profiles.run(SETTING).claims]
        assert held == [True, False, True, True]


class TestCapRings:
    def test_along_the_first_axis_by_hand(self):
        # reach 1 * 1 + 0.6 * 0.3 = 1.18; cap (2 * 1.18 * 4 / 20)^2; cost 2.5 * cap / (2 * 0.09).
        by_hand = 2.5 * (2 * 1.18 * 4 / 20) ** 2 / (2 * 0.09)
        assert CapProfile.of("huc", 15).costs[0] == pytest.approx(by_hand, rel=1e-13)

    def test_subsampling_divides_by_the_ratio_of_squares(self):
        # E[K^2] of Binomial(4, 0.2) is 4 * 0.2 * 0.8 + 0.8^2 = 1.28, the cap 4^2 = 16.
        worst, mean = CapProfile.of("huc", 48), CapProfile.of("sa_huc", 48)
        np.testing.assert_allclose(worst.costs / mean.costs, 16 / 1.28, rtol=1e-12)

    @pytest.mark.soundness
    def test_attained_by_brute_force(self):
        """All 2^4 subsets of the differing records, pushed to the same side.

        Their cost passes the joint ring of mean-square caps.
        """
        angles = 2 * math.pi * np.arange(15) / 15
        directions = np.column_stack([np.cos(angles), np.sin(angles)])
        best = 0.0
        for signs in ([1.0, 1.0], [1.0, -1.0]):
            push = profiles._PRECONDITIONER @ (np.array([1.0, 0.6]) * signs)
            mean = 0.0
            for subset in range(2**4):
                drawn = subset.bit_count()
                costs = 2.5 * (directions @ (2 * drawn * push / 20)) ** 2 / (2 * 0.3**2)
                joint = math.log(np.mean(np.exp(1.5 * costs))) / 1.5
                mean += 0.2**drawn * 0.8 ** (4 - drawn) * joint
            best = max(best, mean)
        assert attained_joint(15) == pytest.approx(best, rel=1e-12)
        ring = CapProfile.of("sa_huc", 15)
        assert ring.average == pytest.approx(ring.costs.mean(), rel=1e-13)
        assert ring.joint < best < ring.largest == ring.costs.max()

    def test_three_of_four_claims_hold(self):
        outcome = experiment_named("cap-rings").run(SETTING)
        assert [claim.held for claim in outcome.claims] == [True, True, True, False]
        assert "gradients attain" in outcome.claims[-1].found
