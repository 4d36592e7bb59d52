# SPDX-License-Identifier: Apache-2.0
"""The contract of every claim; the tests of each one inherit it."""

import math

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from tests import oracles
from tests.compared import (
    EMPIRICAL,
    EXACT,
    TRANSPORT,
    WORST_GAP,
    along,
    full_of_rows,
    point_masses,
    slices_of,
    whole,
)
from tests.inherited import for_every
from tests.row_moments import difference_of, rows_of
from tests.shifts import OneShift

from pufferslice._core.numbers import at_most, percent_at_most
from pufferslice.claims import (
    EpsilonDelta,
    Guarantee,
    Guess,
    Information,
    OverBatches,
    Renyi,
    Sliced,
    claim_of,
)
from pufferslice.claims.guarantee import CLAIMS, RELEASE_CLAIMS
from pufferslice.claims.slices import LEAST_NOISE
from pufferslice.errors import ArgumentError, ClaimError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.rows import Differing
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.sensitivity import DIFFERENCES, Full, Slices

STDS = st.floats(math.log(0.3), math.log(30)).map(math.exp)
FACTORS = st.floats(1.0, 8.0)
DISTANCES = st.floats(0.05, 20.0)
ROUNDING = 1e-10


@st.composite
def coupled(draw):
    """Distances of one to three instances."""
    entry = st.tuples(DISTANCES, st.integers(1, 9))
    rows = draw(st.lists(st.lists(entry, min_size=1, max_size=4), min_size=1, max_size=3))
    distinct = [sorted(dict(row).items(), reverse=True) for row in rows]
    return whole(full_of_rows(*distinct, dim=draw(st.integers(1, 4))))


@st.composite
def gaussian_pairs(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    roots = rng.normal(size=(2, 2, 2, 2)) / 2
    return GaussianPairs(
        means=3 * rng.normal(size=(2, 2, 2)), covs=roots @ roots.transpose(0, 1, 3, 2)
    )


@st.composite
def row_differences(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    root, shift = rng.normal(size=(2, 2)), rng.normal(size=2)
    rows = rows_of(
        shift=shift, spread=root @ root.T, spans=[9.0, 9.0], counts=[2.0, rng.uniform(4.0, 8.0)]
    )
    return whole(Full(dim=2, differences=rows))


@st.composite
def differing_rows(draw):
    """Rows that differ, of a fixed or a random number, with their layers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = rng.normal(size=(2, 4, 2)) + rng.normal(size=(2, 1, 2))
    differing = Differing(
        most=int(rng.integers(2, 30)), probability=draw(st.sampled_from([1.0, 0.2]))
    )
    return whole(Full(dim=2, differences=difference_of(*kinds, differing)))


def gaussians():
    return gaussian_pairs().map(lambda pairs: whole(Full(dim=2, differences=pairs)))


def along_the_slices():
    return oracles.worlds().map(lambda world: along(slices_of(world[0], world[2], world[1])))


def along_gaussian_slices():
    profile = FiniteProfile.uniform(dim=2, n_directions=3, seed=1)
    return gaussian_pairs().map(lambda pairs: along(Slices(profile=profile, differences=pairs)))


class ClaimContract:
    """Set `claims` to the claims, and `compared` to what they may be asked about."""

    claims = None
    compared = None
    has_slices = False

    def named(self, bound):
        """The bound in a text."""
        return at_most(bound)

    @pytest.mark.soundness
    @for_every(data=st.data(), noise_std=STDS, factor=FACTORS)
    def test_more_noise_never_costs_more(self, data, noise_std, factor):
        claim, compared = data.draw(self.claims), data.draw(self.compared)
        more, less = (claim.spent(compared, std) for std in (noise_std * factor, noise_std))
        assert more <= less * (1 + ROUNDING)
        assert more >= claim.free

    @pytest.mark.soundness
    @for_every(data=st.data())
    def test_the_least_noise_meets_the_bound_and_less_does_not(self, data):
        claim, compared = data.draw(self.claims), data.draw(self.compared)
        noise_std = claim.least_noise(compared)
        assert noise_std > 0
        assert claim.spent(compared, noise_std) <= claim.bound
        if noise_std > self.floor(compared):
            assert claim.spent(compared, 0.99 * noise_std) > claim.bound

    def floor(self, compared):
        """Noise that covers the grid, where the distributions hide the secret themselves."""
        part = compared.full.differences if compared.slices is None else compared.slices
        return part.scale * LEAST_NOISE * 1e4

    @for_every(data=st.data(), share=st.floats(0.2, 0.95))
    def test_a_stronger_claim_needs_more_noise(self, data, share):
        claim, compared = data.draw(self.claims), data.draw(self.compared)
        stronger = claim.with_bound(claim.free + share * (claim.bound - claim.free))
        assert stronger.least_noise(compared) >= claim.least_noise(compared) * (1 - ROUNDING)

    @for_every(data=st.data(), noise_std=STDS)
    def test_what_is_spent_can_be_claimed(self, data, noise_std):
        claim, compared = data.draw(self.claims), data.draw(self.compared)
        spent = claim.spent(compared, noise_std)
        try:
            claimed = claim.with_bound(spent)
        except ArgumentError:  # 0, infinite, or a certain guess
            assume(False)
        assert claimed.bound == spent
        assert claimed.spent(compared, noise_std) <= claimed.bound

    @for_every(data=st.data())
    def test_a_claim_is_its_json(self, data):
        claim = data.draw(self.claims)
        values = claim.to_json()
        assert claim_of(values) == claim
        assert values["notion"] == claim.notion
        assert claim.bound in values.values()

    @for_every(data=st.data())
    def test_texts_name_the_bound(self, data):
        claim = data.draw(self.claims)
        assert self.named(claim.bound) in str(claim).replace("\u00a0", " ")
        other = claim.with_bound(claim.ladder()[0])
        assert other.meaning != claim.meaning
        assert other.cost_words(0.7, "") != claim.cost_words(0.8, "")

    @for_every(data=st.data())
    def test_ladders_hold_the_bound(self, data):
        claim = data.draw(self.claims)
        for bounds in (claim.ladder(), claim.bounds_around(7), claim.bounds_around(3)):
            assert claim.bound in bounds
            assert list(bounds) == sorted(set(bounds))
            assert all(claim.with_bound(bound).bound == bound for bound in bounds)
        assert len(claim.ladder()) == 7

    @for_every(data=st.data(), noise_std=STDS)
    def test_equal_distributions_are_free(self, data, noise_std):
        claim, compared = data.draw(self.claims), self.equal()
        assert claim.spent(compared, noise_std) == claim.free
        assert claim.least_noise(compared) == 0.0

    def equal(self):
        return whole(full_of_rows([(0.0, 4)], [(0.0, 1)], equal=[True, True]))

    @for_every(data=st.data())
    def test_it_is_about_the_whole_output_or_along_slices(self, data):
        claim = data.draw(self.claims)
        assert claim.whole.is_sliced is False
        assert claim.whole.whole == claim.whole
        assert claim.recipe(1.0, "quick").effort == "quick"
        if claim.is_sliced:
            assert Sliced(claim=claim.whole, notion=claim.notion) == claim
        else:
            assert claim.whole == claim
            assert claim.instance_costs(None, 1.0) is None

    @for_every(data=st.data())
    def test_what_has_no_slices_refuses_them(self, data):
        claim = data.draw(self.claims)
        if claim.is_sliced or self.has_slices:
            return
        calls = (
            lambda: Sliced(claim=claim, notion="joint"),
            lambda: claim.slice_cost(None, "joint", 1.0, None),
            lambda: claim.slice_noise(None, "joint", None),
            lambda: claim.sphere_costs(None, "joint", 1.0),
            lambda: claim.sliced_words("joint"),
            lambda: claim.sliced_meaning("joint"),
        )
        for call in calls:
            with pytest.raises(ArgumentError):
                call()


class WholeContract(ClaimContract):
    """Claims about the whole output, besides: what two points cost."""

    compared = st.one_of(coupled(), gaussians())

    @for_every(data=st.data(), distance=DISTANCES)
    def test_two_points_cost_the_bound_at_the_limit_of_the_distance(self, data, distance):
        claim = data.draw(self.claims)
        noise_std = distance / math.sqrt(claim.distance_limit)
        points = whole(full_of_rows([(distance, 1)]))
        assert claim.spent(points, noise_std * (1 + 1e-6)) <= claim.bound
        assert claim.spent(points, noise_std * (1 - 1e-6)) > claim.bound
        assert claim.least_noise(points) == pytest.approx(noise_std, rel=1e-6)

    @for_every(data=st.data(), rows=row_differences())
    def test_rows_bound_what_goes_by_mean_squares(self, data, rows):
        claim = data.draw(self.claims)
        if claim.by_mean_square:
            noise_std = claim.least_noise(rows)
            assert rows.full.mean_square(noise_std) == pytest.approx(claim.distance_limit, rel=1e-6)

    @for_every(data=st.data(), compared=coupled())
    def test_a_hockey_stick_says_the_same(self, data, compared):
        claim = data.draw(self.claims)
        if claim.hockey_stick is not None:
            other = Guarantee.epsilon_delta(*claim.hockey_stick)
            noise_std = other.least_noise(compared)
            assert claim.least_noise(compared) == pytest.approx(noise_std, rel=1e-6)

    @for_every(data=st.data(), share=st.floats(0.01, 0.5))
    def test_a_prior_that_is_off_costs_more(self, data, share):
        claim = data.draw(self.claims)
        words = [claim.words_if_off(s, 1e-26) for s in (0.0, share)]
        assert words[0] != words[1]

    @for_every(data=st.data(), distance=DISTANCES)
    def test_a_new_kind_of_difference_is_enough(self, data, distance):
        """Any class that satisfies the protocol and stands in the table of kinds."""
        claim, shift = data.draw(self.claims), np.array([0.6, 0.8]) * distance
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(DIFFERENCES, OneShift.name, OneShift)
            shifted = whole(Full(dim=2, differences=OneShift(shift=shift)))
        points = whole(full_of_rows([(distance, 1)], dim=2))
        assert claim.least_noise(shifted) == pytest.approx(claim.least_noise(points), rel=1e-6)
        assert claim.spent(shifted, 2.0) == pytest.approx(claim.spent(points, 2.0), rel=1e-6)
        if claim.has_order:
            with pytest.raises(ClaimError):
                Sliced(claim=claim, notion="joint").spent(shifted, 2.0)


class TestGuess(WholeContract):
    kind = Guess
    claims = st.floats(0.505, 0.98).map(lambda g: Guarantee.guess(at_most=g))
    compared = st.one_of(coupled(), gaussians(), row_differences(), differing_rows())

    def named(self, bound):
        return percent_at_most(bound).replace("\u00a0", " ")


class TestInformation(WholeContract):
    kind = Information
    claims = oracles.epsilons().map(lambda b: Guarantee.information(bits=b))
    compared = st.one_of(coupled(), row_differences())


class TestRenyi(WholeContract):
    kind = Renyi
    claims = st.builds(
        lambda order, epsilon: Guarantee.unsliced(order=order, epsilon=epsilon),
        oracles.orders(),
        oracles.epsilons(),
    )
    compared = st.one_of(coupled(), gaussians(), differing_rows())
    has_slices = True


class TestEpsilonDelta(WholeContract):
    kind = EpsilonDelta
    claims = st.builds(
        Guarantee.epsilon_delta, oracles.epsilons(), st.sampled_from([1e-9, 1e-5, 1e-2, 0.2])
    )
    compared = st.one_of(coupled(), gaussians(), differing_rows())
    has_slices = True


class SlicedContract(ClaimContract):
    """Claims along slices, each by a method that fits what is compared."""

    def equal(self):
        profile = FiniteProfile.uniform(dim=2, n_directions=3, seed=0)
        distributions = [FiniteDistribution.uniform([[0.3, 0.1], [0.2, 7.0]])] * 2
        return along(slices_of(distributions, profile))

    @for_every(data=st.data())
    def test_a_claim_about_the_whole_output_implies_it(self, data):
        """Of two points, whose slices show at most what the whole output does."""
        claim = data.draw(self.claims)
        shift = data.draw(st.lists(st.floats(0.1, 5.0), min_size=2, max_size=2))
        distributions, profile = point_masses([0.0, 0.0], shift), FiniteProfile.axes(dim=2)
        sliced = claim.least_noise(along(slices_of(distributions, profile)))
        points = whole(full_of_rows([(math.hypot(*shift), 1)], dim=2))
        assert sliced <= claim.whole.least_noise(points) * (1 + ROUNDING)


def sliced(method, **fields):
    notions = oracles.notions().map(lambda notion: getattr(Guarantee, notion))
    return st.builds(
        lambda make, values: make(**values).by(method), notions, st.fixed_dictionaries(fields)
    )


class TestSlicedRenyi(SlicedContract):
    claims = st.one_of(
        *[sliced(m, order=oracles.orders(), epsilon=oracles.epsilons()) for m in EMPIRICAL]
    )
    compared = along_the_slices()


class TestSlicedRenyiOfGaussians(ClaimContract):
    claims = sliced(EXACT, order=oracles.orders(), epsilon=oracles.epsilons())
    compared = along_gaussian_slices()

    def equal(self):
        cov = np.tile(np.eye(2), (1, 2, 1, 1))
        pairs = GaussianPairs(means=np.zeros((1, 2, 2)), covs=cov)
        return along(Slices(profile=FiniteProfile.axes(dim=2), differences=pairs))


class TestSlicedEpsilonDelta(SlicedContract):
    claims = st.one_of(
        *[
            sliced(m, epsilon=oracles.epsilons(), delta=st.sampled_from([1e-9, 1e-5, 1e-2]))
            for m in (TRANSPORT, WORST_GAP)
        ]
    )
    compared = along_the_slices()


class TestWholeSphere(ClaimContract):
    """Along every direction there is, in closed form; averages are for two points."""

    claims = st.builds(
        lambda order, epsilon: Guarantee.joint(order=order, epsilon=epsilon),
        oracles.orders(),
        oracles.epsilons(),
    )
    compared = coupled()


class TestWholeSphereOnAverage(ClaimContract):
    claims = st.builds(
        lambda order, epsilon: Guarantee.average(order=order, epsilon=epsilon),
        oracles.orders(),
        oracles.epsilons(),
    )
    compared = DISTANCES.map(lambda r: whole(full_of_rows([(r, 1)], dim=3)))


def test_every_claim_has_its_contract():
    tested = {case.kind for case in WholeContract.__subclasses__()}
    assert tested == set(RELEASE_CLAIMS) == {*CLAIMS} - {OverBatches}
