# SPDX-License-Identifier: Apache-2.0
"""Calls of the baselines that are refused."""

import math
from functools import partial
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
from tests.refusals import Refusal, check_refused

from pufferslice import FiniteDistribution, FiniteProfile, GaussianDistribution, Guarantee, Scenario
from pufferslice.baselines import (
    DpSgd,
    SinkhornSettings,
    dagwm_cost,
    dagwm_noise_std,
    dp_sgd_epsilon,
    dp_sgd_multiplier,
    group_noise_std,
    group_sensitivity,
    group_size,
    gwm_noise_std,
    laplace_renyi_scale,
    laplace_scale,
    markov_noise,
    sinkhorn_noise,
    sinkhorn_w_infinity,
    sliced_wasserstein,
    w_infinity,
    wasserstein_distance,
)
from pufferslice.baselines.account import (
    Run,
    accounts_for,
    accounts_for_noise,
    one_record_row,
    signal_row,
)
from pufferslice.baselines.comparison import Settings, compare_mechanisms, couples_of
from pufferslice.claims import Measure
from pufferslice.errors import ArgumentError, CalibrationError, ScenarioError
from pufferslice.learning import Poisson, at_most, exactly
from pufferslice.queries import summary
from pufferslice.scenario import SecretPair
from pufferslice.scenario.distributions import SampledDistribution

RPP = Guarantee.unsliced(order=4, epsilon=1.0)
JOINT = Guarantee.joint(order=4, epsilon=1.0)
RUN = Run(differing=exactly(3), sampling=Poisson(n_records=100, rate=0.1), n_steps=20)
ORDER = Measure.renyi(order=4)
NOBODY = attrs.evolve(RUN, differing=exactly(0))
PEER = DpSgd(rate=0.01, n_steps=100)
STRICT = SinkhornSettings(regularisation=0.3, tolerance=1e-9)


def points(*values):
    """A uniform distribution on the line, or in space."""
    return FiniteDistribution.uniform([[x] if isinstance(x, float) else x for x in values])


SPIKE = points(0.0, 0.0, 0.0, 10.0), points(0.0, 0.0, 0.0, 0.0)
PLANE, SPACE = points([0.0, 0.0], [1.0, 0.0]), points([0.0, 0.0, 0.0])
GAUSSIAN = GaussianDistribution(mean=[0.0], cov=[[1.0]])
MANY = FiniteDistribution.uniform(np.zeros((2_000_000, 1)))
UNLIKE = (
    FiniteDistribution(outputs=[[0.0], [1.0]], counts=[2**27, 1]),
    FiniteDistribution(outputs=[[0.0], [3.0]], counts=[2**27, 3]),
)


def at_order(epsilon):
    return Guarantee.unsliced(order=4, epsilon=epsilon)


def account(name, multiplier):
    return accounts_for_noise(RUN, multiplier, ORDER)[name]


def sinkhorn(**change):
    return SinkhornSettings(**{"regularisation": 0.1, "tolerance": 1e-4} | change)


def markov(chain=((0.4, 0.6), (0.5, 0.5)), **change):
    return markov_noise(chain, **{"length": 5, "epsilon": 1.0, "delta": 1e-5} | change)


def group(record_widths=(1.0, 1.0), **change):
    fields = {"divisors": [3.0, 3.0], "scales": [1.0, 1.0], "group_sizes": [2, 1]}
    return group_sensitivity(record_widths, **fields | change)


def compare_in_another_dimension():
    scenario = Scenario.from_worlds(
        {"a": SPACE, "b": points([1.0, 0.0, 0.0])},
        query=summary(mean=["x", "y", "z"]), source="public_model",
    )  # fmt: skip
    return compare_mechanisms(scenario, FiniteProfile.axes(dim=2), JOINT)


def couples_of_samples():
    sampled = SampledDistribution(outputs=np.zeros((2, 1)))
    prior = SimpleNamespace(distributions={"a": sampled, "b": sampled})
    return couples_of(SimpleNamespace(instances=[(prior, SecretPair("a", "b"))]))


WRONG_ARGUMENTS = {
    # Accounts of a run.
    "run, no steps": (lambda: attrs.evolve(RUN, n_steps=0), "n_steps"),
    "run, steps": (lambda: attrs.evolve(RUN, n_steps=10**12), "n_steps"),
    "run, differing": (lambda: attrs.evolve(RUN, differing=at_most(101)), "101"),
    "noise, nan": (lambda: accounts_for_noise(RUN, math.nan, ORDER), "noise_multiplier"),
    "noise, tiny": (lambda: accounts_for_noise(RUN, 1e-200, ORDER), "noise_multiplier"),
    "target, joint": (lambda: accounts_for(RUN, JOINT), "target"),
    "one record, delta": (lambda: one_record_row(account("log_moment", 12.0), 1.0), "delta"),
    "signal": (lambda: signal_row(account("amplified", 2.0), 0), "n_parameters"),
    # DP-SGD and losses.
    "dp-sgd, rate": (lambda: DpSgd(rate=math.nan, n_steps=1), "rate"),
    "dp-sgd, steps": (lambda: DpSgd(rate=0.1, n_steps=0), "n_steps"),
    "dp-sgd, group": (lambda: DpSgd(rate=0.1, n_steps=1, group_size=0), "group_size"),
    "dp-sgd, noise": (lambda: dp_sgd_epsilon(PEER, 0.0, 1e-5, "rdp"), "noise_multiplier"),
    "dp-sgd, delta": (lambda: dp_sgd_epsilon(PEER, 1.0, 0.0, "rdp"), "delta"),
    "dp-sgd, accounting": (lambda: dp_sgd_epsilon(PEER, 1.0, 1e-5, "other"), "accounting"),
    "dp-sgd, epsilon": (lambda: dp_sgd_multiplier(PEER, -1.0, 1e-5, "rdp"), "epsilon"),
    "group size": (lambda: group_size(Poisson(n_records=5, rate=0.5), 6), "6"),
    # Wasserstein mechanisms and distances.
    **{
        f"{noise_std.__name__}, {name}": (partial(noise_std, *arguments), names)
        for noise_std in (gwm_noise_std, dagwm_noise_std)
        for name, arguments, names in (
            ("sliced", ([SPIKE], JOINT), "whole output"),
            ("gaussian", ([(GAUSSIAN, GAUSSIAN)], RPP), "atoms"),
            ("none", ([], RPP), "couples"),
            ("dimensions", ([(SPIKE[0], PLANE)], RPP), "dimension"),
            ("memory", ([(MANY, MANY)], RPP), "memory"),
        )
    },
    "dagwm, q": (lambda: dagwm_noise_std([SPIKE], RPP, 0.5), "q must"),
    "dagwm, noise": (lambda: dagwm_cost(SPIKE, 4, 0.0), "noise_std"),
    "dagwm, order": (lambda: dagwm_cost(SPIKE, 1.0, 1.0), "order"),
    "laplace, dimension": (lambda: laplace_scale([(SPACE, SPACE)], 1.0), "scalar"),
    "laplace, notion": (
        lambda: laplace_renyi_scale([SPIKE], Guarantee.average_over_batches(order=4, epsilon=1.0)),
        "whole output",
    ),
    "group privacy": (lambda: group_noise_std(math.nan, RPP), "group_sensitivity"),
    "group, no widths": (lambda: group([]), "coordinate"),
    "group, divisors": (lambda: group(divisors=[3.0]), "coordinate"),
    "group, infinite": (lambda: group([1.0, math.inf]), "record_widths"),
    "group, width": (lambda: group([1.0, -1.0]), "record_width"),
    "group, divisor": (lambda: group(divisors=[3.0, 0.0]), "divisor"),
    "group, scale": (lambda: group(scales=[1.0, -1.0]), "scale"),
    "group, none": (lambda: group(group_sizes=[]), "n_groups"),
    "group, size": (lambda: group(group_sizes=[3, 0.5]), "group size"),
    "group, floats": (lambda: group([1e308] * 2, divisors=[1e-3] * 2), "group_sensitivity"),
    "w-infinity, dimensions": (lambda: w_infinity(PLANE, SPACE), "dimension"),
    "w-infinity, memory": (lambda: w_infinity(MANY, MANY), "59,604.6 GiB"),
    "distance, p": (lambda: wasserstein_distance(PLANE, PLANE, p=0.5), "p must"),
    "distance, profile": (
        lambda: sliced_wasserstein(PLANE, PLANE, p=2, profile=FiniteProfile.axes(dim=3)),
        "dimension",
    ),
    # Sinkhorn.
    "sinkhorn, nan": (lambda: sinkhorn(regularisation=math.nan), "regularisation"),
    "sinkhorn, tolerance": (lambda: sinkhorn(tolerance=-1.0), "tolerance"),
    "sinkhorn, one": (lambda: sinkhorn(n_thresholds=1), "n_thresholds"),
    "sinkhorn, rounds": (lambda: sinkhorn(max_iterations=0), "max_iterations"),
    "sinkhorn, infinite": (lambda: sinkhorn(thresholds=(1.0, math.inf)), "thresholds"),
    "sinkhorn, negative": (lambda: sinkhorn(thresholds=(-1.0,)), "thresholds"),
    "sinkhorn, dimensions": (lambda: sinkhorn_w_infinity(PLANE, SPACE, STRICT), "dimension"),
    "sinkhorn, notion": (
        lambda: sinkhorn_noise([SPIKE], Guarantee.average(order=4, epsilon=1.0), STRICT),
        "whole output",
    ),
    "sinkhorn, memory": (lambda: sinkhorn_w_infinity(MANY, MANY, STRICT), "37,252.9 GiB"),
    # Markov chains.
    "markov, transition": (lambda: markov([[0.5, 0.5]]), "transition"),
    "markov, zero": (lambda: markov([[1.0, 0.0], [0.5, 0.5]]), "positive"),
    "markov, length": (lambda: markov(length=0), "length"),
    "markov, epsilon": (lambda: markov(epsilon=0.0), "epsilon"),
    "markov, delta": (lambda: markov(delta=1.0), "delta"),
    # Comparisons.
    "settings, q": (lambda: Settings(q=0.9), "q"),
    "settings, table": (lambda: Settings(largest_table=0), "largest_table"),
    "settings, group": (lambda: Settings(group_sensitivity=-1.0), "group_sensitivity"),
    "comparison, profile": (compare_in_another_dimension, "profile"),
}

REFUSALS = {
    name: Refusal(call, ArgumentError, names) for name, (call, names) in WRONG_ARGUMENTS.items()
} | {
    "epsilon, tiny": Refusal(
        lambda: accounts_for(RUN, at_order(1e-320)), CalibrationError, "epsilon"
    ),
    "epsilon, huge": Refusal(
        lambda: accounts_for(RUN, at_order(1e300)), CalibrationError, "epsilon"
    ),
    "nobody differs, noise": Refusal(
        lambda: accounts_for_noise(NOBODY, 1.0, ORDER), CalibrationError, "no record differs"
    ),
    "nobody differs": Refusal(
        lambda: accounts_for(NOBODY, at_order(1.0)), CalibrationError, "calibrate"
    ),
    "dagwm, floats": Refusal(lambda: dagwm_cost(SPIKE, 4, 1e-200), CalibrationError, "floats"),
    "dagwm, counts": Refusal(lambda: dagwm_cost(UNLIKE, 4, 1.0), CalibrationError, "denominator"),
    "comparison, samples": Refusal(couples_of_samples, ScenarioError, "distributions"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused(name):
    check_refused(REFUSALS[name])
