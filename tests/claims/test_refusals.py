# SPDX-License-Identifier: Apache-2.0
"""What claims refuse: the class of the error, and what its message names."""

import math

import attrs
import numpy as np
import pytest
from tests.compared import (
    CLOSED_FORM,
    EMPIRICAL,
    EXACT,
    TRANSPORT,
    WORST_GAP,
    Compared,
    full_of,
    full_of_rows,
    least_noise,
    point_masses,
    slices_of,
    spent,
    whole,
)
from tests.refusals import Refusal, check_refused

from pufferslice.claims import Guarantee, Method, Sliced, claim_of
from pufferslice.claims.epsilon_delta import delta_curve
from pufferslice.claims.guarantee import asked
from pufferslice.claims.guess import guessing_advantage, released_variation
from pufferslice.claims.slices import closed_form_cost, slice_divergence
from pufferslice.claims.views import (
    improved_epsilon_average,
    improved_epsilon_joint,
    optimum_over_orders,
    paper_epsilon,
    unique_deltas,
    views_of,
)
from pufferslice.errors import ArgumentError, CalibrationError, ClaimError
from pufferslice.scenario.distributions import GaussianDistribution
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere
from pufferslice.sensitivity.sensitivity import Full, Slices, SphereTerm
from pufferslice.sensitivity.whitening import Shape

GUESS = Guarantee.guess(at_most=0.6)
BITS = Guarantee.information(bits=0.25)
RENYI = Guarantee.unsliced(order=4, epsilon=1.0)
JOINT = Guarantee.joint(order=4, epsilon=1.0)
AVERAGE = Guarantee.average(order=4, epsilon=1.0)
JOINT_DELTA = Guarantee.joint(epsilon=1.0, delta=1e-3)
OVER_BATCHES = Guarantee.average_over_batches(order=4, epsilon=1.0)

AXES = FiniteProfile.axes(dim=2)
POINTS = point_masses([0.0, 0.0], [3.0, 4.0])
SLICES, FULL = slices_of(POINTS, AXES), full_of(POINTS)
TERM = SphereTerm(halfwidth=0.1, diameter=5.0)
DIRECTIONS = SampledSphere(directions=np.eye(2))
SPHERE = Slices(profile=DIRECTIONS, differences=SLICES.differences, sphere=TERM)
TAILLESS = attrs.evolve(SLICES, missing=[1e-3])

SPREADS = [GaussianDistribution(mean=[0.0, x], cov=(1 + x) * np.eye(2)) for x in (0.0, 1.0)]
GAUSSIANS = GaussianPairs.of([tuple(SPREADS)], np.ones(2))
GAUSSIAN_SLICES = Slices(profile=AXES, differences=GAUSSIANS)
UNBOUNDED = Full(dim=2, differences=None)
TAILLESS_FULL = full_of_rows([(2.0, 1)], dim=2, missing=np.array([0.01]))
"""Whole outputs: of which nothing is known, and of which the tails are not."""

NOT_ABOVE_ZERO = (0.0, -1.0, math.nan, math.inf)
RULES = (paper_epsilon, improved_epsilon_joint, improved_epsilon_average)


def views(noise_std, delta):
    return views_of(Compared(full=FULL, slices=SLICES), JOINT.by(TRANSPORT), noise_std, delta)


VALUES = [
    *[
        Refusal(lambda a=order: Guarantee.unsliced(order=a, epsilon=1.0), ArgumentError, "order")
        for order in (1, 0.5, -3, math.nan, math.inf)
    ],
    *[
        Refusal(lambda a=order: Guarantee.joint(order=a, epsilon=1.0), ArgumentError, "order")
        for order in (1, math.nan)
    ],
    *[
        Refusal(lambda a=order: RENYI.with_order(a), ArgumentError, "order")
        for order in (1.0, math.nan)
    ],
    *[
        Refusal(lambda e=epsilon, make=make: make(order=2, epsilon=e), ArgumentError, "epsilon")
        for epsilon in NOT_ABOVE_ZERO
        for make in (Guarantee.unsliced, Guarantee.joint, Guarantee.average_over_batches)
    ],
    Refusal(lambda: Guarantee.average_over_batches(order=1, epsilon=1), ArgumentError, "order"),
    Refusal(lambda: Guarantee.epsilon_delta(-1e-9, 0.1), ArgumentError, "epsilon"),
    Refusal(lambda: Guarantee.joint(epsilon=-1e-9, delta=0.1), ArgumentError, "epsilon"),
    *[
        Refusal(lambda d=delta: Guarantee.epsilon_delta(1.0, d), ArgumentError, "delta")
        for delta in (0.0, 1.0, math.nan)
    ],
    *[
        Refusal(lambda g=at_most: Guarantee.guess(at_most=g), ArgumentError, "at_most")
        for at_most in (0.5, 1.0, 0.2, math.nan)
    ],
    *[
        Refusal(lambda b=bits: Guarantee.information(bits=b), ArgumentError, "bits")
        for bits in NOT_ABOVE_ZERO
    ],
    *[
        Refusal(lambda n=notion: Sliced(claim=RENYI, notion=n), ArgumentError, "notion")
        for notion in ("median", "Joint", "", "unsliced")
    ],
    Refusal(Guarantee, ArgumentError, "constructors"),
    Refusal(lambda: Guarantee.joint(epsilon=1.0), ArgumentError, "order"),
    Refusal(lambda: Guarantee.average(order=4, epsilon=1.0, delta=0.1), ArgumentError, "delta"),
    Refusal(lambda: claim_of({"notion": "guess", "bits": 1.0}), ArgumentError, "bits"),
    Refusal(lambda: claim_of({"notion": "average_over_batches"}), ArgumentError, "average"),
    Refusal(lambda: asked(GUESS, notion="unsliced", order=None), ArgumentError, "unsliced"),
    Refusal(lambda: asked(GUESS, notion="joint", order=None), ArgumentError, str(GUESS)),
    Refusal(lambda: asked(GUESS, notion=None, order=2.0), ArgumentError, "order"),
    Refusal(lambda: BITS.with_order(2.0), ArgumentError, "order"),
    Refusal(lambda: GUESS.bounds_around(2), ArgumentError, "n_bounds"),
    Refusal(lambda: RENYI.bounds_around(2), ArgumentError, "n_bounds"),
    Refusal(lambda: Method(rule="loose", envelope="transport"), ArgumentError, "rule"),
    Refusal(lambda: Method(rule="tight", envelope="best"), ArgumentError, "envelope"),
    Refusal(lambda: Method(rule="closed_form", envelope="transport"), ArgumentError, "worst_gap"),
]

WHOLE_OUTPUTS = [
    *[
        Refusal(lambda c=claim: c.mean_square_cost(0.5, 0.0), CalibrationError, "right guesses")
        for claim in (RENYI, Guarantee.epsilon_delta(1.0, 0.1))
    ],
    *[
        Refusal(lambda c=claim, s=std: c.spent(whole(FULL), s), ArgumentError, "noise_std")
        for claim in (GUESS, BITS, RENYI, Guarantee.epsilon_delta(1.0, 0.1), JOINT)
        for std in NOT_ABOVE_ZERO
    ],
    *[
        Refusal(lambda a=order: FULL.divergence(a, 1.0), ArgumentError, "order")
        for order in (1.0, 0.5, math.nan)
    ],
    Refusal(lambda: delta_curve(FULL, 1.0)(-0.1), ArgumentError, "epsilon"),
    *[
        Refusal(lambda c=claim: c.least_noise(whole(UNBOUNDED)), CalibrationError, "range")
        for claim in (GUESS, BITS, RENYI, Guarantee.epsilon_delta(1.0, 0.1))
    ],
    *[
        Refusal(lambda c=claim: c.least_noise(whole(TAILLESS_FULL)), CalibrationError, "tails")
        for claim in (RENYI, BITS)
    ],
    *[
        Refusal(lambda f=full: BITS.spent(whole(f), 1.0), ClaimError, "range")
        for full in (UNBOUNDED, TAILLESS_FULL)
    ],
    Refusal(
        lambda: BITS.spent(whole(Full(dim=2, differences=GAUSSIANS)), 1.0), ClaimError, "Gaussian"
    ),
    # No noise is better than its sampler.
    *[
        Refusal(lambda c=claim, f=full: c.least_noise(whole(f)), CalibrationError, "sampler")
        for claim, full in (
            (Guarantee.epsilon_delta(50.0, 1e-12), FULL),
            (Guarantee.guess(at_most=0.5 + 1e-14), Full(dim=2, differences=GAUSSIANS)),
        )
    ],
    Refusal(
        lambda: RENYI.least_noise(whole(full_of_rows([(0.0, 1)]))), CalibrationError, "isotropic"
    ),
    # Below this, floats cancel.
    Refusal(
        lambda: Guarantee.epsilon_delta(1.0, 1e-13).least_noise(whole(FULL)), ArgumentError, "delta"
    ),
    *[
        Refusal(lambda s=share: guessing_advantage(0.5, largest_share=s), ArgumentError, "share")
        for share in (0.0, 1.0, math.nan)
    ],
    Refusal(lambda: guessing_advantage(-0.1, largest_share=0.5), ArgumentError, "total_variation"),
    Refusal(lambda: released_variation(0.1, -1.0), ArgumentError, "implementation_delta"),
    *[
        Refusal(call, ArgumentError, "Guarantee.guess")
        for call in (
            lambda: OVER_BATCHES.spent(whole(FULL), 1.0),
            lambda: OVER_BATCHES.least_noise(whole(FULL)),
            lambda: OVER_BATCHES.words_if_off(0.1, 0.0),
        )
    ],
]

ALONG_SLICES = [
    *[
        Refusal(lambda s=std, m=method: spent(JOINT, SLICES, s, m), ArgumentError, "noise_std")
        for std in NOT_ABOVE_ZERO
        for method in EMPIRICAL
    ],
    # Slices without a method are not the whole sphere: its noise would be too small for them.
    *[
        Refusal(lambda f=ask: f(JOINT, SLICES, None), ArgumentError, "method")
        for ask in (least_noise, lambda claim, slices, method: spent(claim, slices, 1.0, method))
    ],
    Refusal(lambda: spent(JOINT_DELTA, SLICES, 0.0, TRANSPORT), ArgumentError, "noise_std"),
    *[
        Refusal(lambda s=std: SLICES.costs(2.0, s, "worst_gap"), ArgumentError, "noise_std")
        for std in NOT_ABOVE_ZERO
    ],
    *[
        Refusal(lambda a=order: SLICES.costs(a, 1.0, "transport"), ArgumentError, "order")
        for order in (1.0, 0.5, math.nan)
    ],
    *[
        Refusal(lambda c=claim: least_noise(c, GAUSSIAN_SLICES, TRANSPORT), ArgumentError, name)
        for claim, name in ((JOINT, "exact"), (JOINT_DELTA, "envelope"))
    ],
    Refusal(lambda: spent(JOINT, GAUSSIAN_SLICES, 1.0, WORST_GAP), ArgumentError, "exact"),
    Refusal(lambda: spent(JOINT, GAUSSIAN_SLICES, 1.0, CLOSED_FORM), ArgumentError, "exact"),
    *[
        Refusal(
            lambda n=notion: closed_form_cost(GAUSSIAN_SLICES, n, 4.0, 1.0), ArgumentError, "tight"
        )
        for notion in ("average", "joint")
    ],
    Refusal(lambda: spent(JOINT_DELTA, GAUSSIAN_SLICES, 1.0, EXACT), ArgumentError, "Gaussian"),
    *[
        Refusal(lambda c=claim: least_noise(c, SLICES, EXACT), ArgumentError, "envelope")
        for claim in (JOINT, AVERAGE, JOINT_DELTA)
    ],
    Refusal(lambda: spent(JOINT, SLICES, 1.0, EXACT), ArgumentError, "envelope"),
    Refusal(lambda: spent(JOINT_DELTA, SLICES, 1.0, EXACT), ArgumentError, "envelope"),
    Refusal(lambda: SLICES.costs(2.0, 1.0, "exact"), ArgumentError, "envelope"),
    Refusal(
        lambda: slice_divergence(SLICES, "unsliced", 2.0, 1.0, TRANSPORT), ArgumentError, "notion"
    ),
    # The distributions differ, but only along an axis without weight in the profile.
    *[
        Refusal(
            lambda c=claim, m=method, w=weights: least_noise(
                c,
                slices_of(
                    point_masses([0.0, 0.0], [0.0, 1.0]),
                    FiniteProfile(directions=np.eye(2)[: len(w)], weights=w),
                ),
                m,
            ),
            CalibrationError,
            "profile",
        )
        for claim, methods in ((JOINT, EMPIRICAL), (JOINT_DELTA, [TRANSPORT]))
        for method in methods
        for weights in ([1.0], [1.0, 0.0])
    ],
    # The grid itself costs order * d * 2^-89: no noise brings a cost below that.
    Refusal(
        lambda: least_noise(Guarantee.joint(order=2, epsilon=1e-30), SLICES, WORST_GAP),
        CalibrationError,
        "noise",
    ),
    # No method, also not the closed form, may forget the mass that is left out.
    *[
        Refusal(lambda c=claim, m=method: least_noise(c, TAILLESS, m), ArgumentError, "tails")
        for claim in (JOINT, AVERAGE)
        for method in EMPIRICAL
    ],
    Refusal(lambda: TAILLESS.costs(4.0, 1.0, "worst_gap"), ArgumentError, "tails"),
    Refusal(lambda: spent(JOINT_DELTA, TAILLESS, 20.0, TRANSPORT), ArgumentError, "delta 0.001"),
    Refusal(lambda: spent(JOINT_DELTA, SPHERE, 1.0, TRANSPORT), ArgumentError, "FiniteProfile"),
]

SLICES_AND_THE_SPHERE = [
    Refusal(
        lambda: Slices(profile=DIRECTIONS, differences=SLICES.differences),
        ArgumentError,
        "SampledSphere",
    ),
    Refusal(
        lambda: Slices(profile=AXES, differences=SLICES.differences, sphere=TERM),
        ArgumentError,
        "FiniteProfile",
    ),
    Refusal(lambda: attrs.evolve(SPHERE, missing=[0.1]), ArgumentError, "levels"),
    Refusal(lambda: SphereTerm(halfwidth=0.1, diameter=0.0), ArgumentError, "diameter"),
    *[
        Refusal(
            lambda s=slices: attrs.evolve(s, profile=FiniteProfile.axes(dim=3)),
            ArgumentError,
            "profile",
        )
        for slices in (SLICES, GAUSSIAN_SLICES)
    ],
    *[
        Refusal(lambda f=full: JOINT.least_noise(whole(f)), ArgumentError, "FiniteProfile")
        for full in (UNBOUNDED, Full(dim=2, differences=GAUSSIANS))
    ],
    Refusal(
        lambda: JOINT.spent(
            whole(full_of_rows([(2.0, 1)], dim=2, shape=Shape(whitening=np.eye(2)))), 1.0
        ),
        ArgumentError,
        "isotropic",
    ),
    Refusal(lambda: FULL.sphere_divergences("unsliced", 2.0, 1.0), ArgumentError, "notion"),
    Refusal(lambda: JOINT_DELTA.spent(whole(FULL), 1.0), ArgumentError, str(JOINT_DELTA.whole)),
]

VIEWS = [
    *[
        Refusal(lambda r=rule, v=values: r(*v), ArgumentError, name)
        for rule in RULES
        for *values, name in (
            (1.0, 1.0, 0.1, "order"),
            (math.nan, 1.0, 0.1, "order"),
            (2.0, -1.0, 0.1, "epsilon"),
            (2.0, math.nan, 0.1, "epsilon"),
            (2.0, 1.0, 0.0, "delta"),
            (2.0, 1.0, 1.0, "delta"),
            (2.0, 1.0, math.nan, "delta"),
        )
    ],
    *[
        Refusal(lambda v=values: optimum_over_orders(*v), ArgumentError, name)
        for *values, name in ((-1.0, 0.1, "rho"), (math.nan, 0.1, "rho"), (1.0, 1.5, "delta"))
    ],
    *[Refusal(lambda s=std: views(s, 1e-5), ArgumentError, "noise_std") for std in NOT_ABOVE_ZERO],
    *[
        Refusal(lambda d=delta: views(10.0, d), ArgumentError, "delta")
        for delta in (0.0, 1.0, math.nan)
    ],
    # Noise that does not give the claim: the first two rules would not hold.
    Refusal(lambda: views(3.0, 1e-5), ArgumentError, str(JOINT)),
    Refusal(lambda: unique_deltas(1e-5), ArgumentError, "deltas"),
    Refusal(lambda: unique_deltas([1e-5, 2.0]), ArgumentError, "delta"),
]


@pytest.mark.parametrize(
    "refusal", [*VALUES, *WHOLE_OUTPUTS, *ALONG_SLICES, *SLICES_AND_THE_SPHERE, *VIEWS]
)
def test_refused(refusal):
    check_refused(refusal)


def test_what_is_not_known_costs_everything():
    """Noise of any size can still be asked about: the answer is that nothing is bounded."""
    assert GUESS.spent(whole(UNBOUNDED), 1.0) == 1.0
    assert RENYI.spent(whole(UNBOUNDED), 1.0) == math.inf
    assert RENYI.spent(whole(TAILLESS_FULL), 1.0) == math.inf
    assert Guarantee.epsilon_delta(1.0, 0.1).spent(whole(UNBOUNDED), 1.0) == math.inf
