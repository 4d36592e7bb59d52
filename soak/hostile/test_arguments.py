# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""Odd arguments of public constructors and functions: an error that names them, or a value."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs
import numpy as np
import pyarrow as pa
import pytest

import pufferslice as ps
from pufferslice import audit, baselines, learning
from pufferslice._core.sampler import OperatingSystemNoise, SeededTestNoise
from pufferslice.claims import Measure, views
from pufferslice.errors import PuffersliceError
from pufferslice.learning.accountants import accountant_named
from pufferslice.scenario import GaussianMixture
from pufferslice.sensitivity import concentration

NUMBERS: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, -1, 0, 1, 0.5, -0.0, 1e308, -1e308, 1e-320, 1e-9,
    [math.nan], [math.inf, 1.0], [], [[]], np.zeros((2, 2, 2)), np.array([1e308, -1e308]),
)  # fmt: skip
"""Odd numbers and arrays: in place of such, an error names the argument."""

OTHERS: tuple[Any, ...] = (
    True, None, "x", "", b"x", [[1.0, 2.0], [3.0]], ["a", "b"], {}, {"x": 1}, 1j, np.array(["a"]),
    np.array([1, 2], dtype=object), (1,), object(),
)  # fmt: skip
"""No numbers at all: a plain TypeError or ValueError will do."""

HUGE = (2**63, 10**30)
"""For arguments that are not sizes of what is made."""

GAUSSIAN = ps.Guarantee.joint(order=4, epsilon=1.0)
TABLE = pa.table({"s": ["a", "a", "b", "b"], "x": [1.0, 2.0, 4.0, 7.0], "y": [0.0, 1.0, 0.5, 3.0]})
QUERY = ps.queries.summary(mean=["x", "y"])
CLIPPED = ps.queries.summary(mean=["x"], clip={"x": (0, 9)})
TOTALS = ps.queries.summary(total=["x"], clip={"x": (0, 9)})
SCENARIO = ps.Scenario.from_groups(TABLE, secret="s", query=QUERY)
PROFILE = ps.FiniteProfile.axes(dim=2)
CERTIFICATE = ps.certify_release(SCENARIO, GAUSSIAN.along(PROFILE))
LAWS = tuple(ps.FiniteDistribution.uniform([[0.0], [k]]) for k in (1.0, 2.0))
POISSON = learning.Poisson(n_records=20, rate=0.2)
RNG = np.random.default_rng(1)
LINE, OTHER = RNG.normal(size=400), RNG.normal(1, 1, size=400)


class Call(NamedTuple):
    """A public callable and arguments that it takes; `fixed` are values of the library."""

    make: Callable[..., Any]
    odd: dict[str, Any]
    fixed: Mapping[str, Any]
    how_much: tuple[str, ...]
    """Arguments that say how much is made: huge ones are tested elsewhere, if they fit at all."""


def call(make, *, fixed=MappingProxyType({}), how_much=(), **odd):
    return make.__qualname__, Call(make, odd, fixed, how_much)


def loads_of_a_home(**options):
    """The form of `from_occupancy` for numbers that depend on the state."""
    return ps.Scenario.from_occupancy(options.pop("chain"), query=TOTALS, **options)


def edges_of_bins(edges):
    return ps.Bins(column="x", edges=edges)


UNSLICED = ps.Guarantee.unsliced(order=4, epsilon=1.0)
PLAN = {"differing": learning.exactly(2), "sampling": POISSON, "accountant": learning.LogMoment()}
DRAWN = ("dim", "n_directions")
PAIR = {"first": LINE, "second": OTHER, "confidence": 0.9, "seed": 1}
CALLS = dict([
    call(ps.Guarantee.joint, order=4.0, epsilon=1.0),
    call(ps.Guarantee.epsilon_delta, epsilon=1.0, delta=0.1),
    call(ps.Guarantee.guess, at_most=0.6),
    call(ps.Guarantee.information, bits=0.1),
    call(ps.Method, rule="tight", envelope="transport"),
    call(ps.queries.Box, low=[0.0, 0.0], high=[1.0, 2.0]),
    call(ps.queries.Ball, center=[0.0, 0.0], radius=1.0),
    call(ps.Bins, column="x", quantiles=2),
    call(edges_of_bins, edges=[1.0, 2.0]),
    call(ps.Bootstrap, n_replicates=5, seed=1),
    call(ps.FiniteDistribution, outputs=[[0.0], [1.0]], counts=[1, 2]),
    call(ps.FiniteDistribution.uniform, outputs=[[0.0], [1.0]]),
    call(ps.FiniteDistribution.weighted, outputs=[[0.0], [1.0]], weights=[0.5, 0.5]),
    call(ps.SampledDistribution, outputs=[[0.0], [1.0]]),
    call(ps.GaussianDistribution, mean=[0.0, 1.0], cov=[[1.0, 0.0], [0.0, 1.0]]),
    call(ps.FiniteProfile, directions=[[1.0, 0.0], [0.0, 1.0]], weights=[0.5, 0.5]),
    call(ps.FiniteProfile.of, directions=[[1.0, 0.0]]),
    call(ps.FiniteProfile.uniform, how_much=DRAWN, dim=2, n_directions=3, seed=1),
    call(ps.FiniteProfile.axes, how_much=DRAWN, dim=2),
    call(ps.FiniteProfile.orthogonal, how_much=("dim", "n_sets"), dim=2, n_sets=3, seed=1),
    call(ps.FiniteProfile.blocks, how_much=DRAWN, dim=2, blocks=[[0], [0, 1]], n_directions=2,
         seed=1),
    call(ps.SampledSphere.draw, how_much=DRAWN, dim=2, n_directions=3, seed=1),
    call(SeededTestNoise, seed=1),
    call(OperatingSystemNoise().draw, how_much=("size",), size=2),
    call(ps.queries.summary, mean=["x"], std=["x"], rate={"s": "a"}, quantile={"x": 0.5},
         count_share=9),
    call(ps.queries.columns, names=["x"], flags={"s": "a"}),
    call(ps.queries.above, limit=1.0),
    call(ps.queries.between, low=1.0, high=2.0),
    call(ps.queries.hour, number=3),
    call(ps.queries.weekday, name="Monday"),
    call(ps.queries.days, first="2026-01-01", last="2026-01-03"),
    call(ps.queries.intervals, edges=[1.0, 2.0]),
    call(ps.queries.group_by, by={"s": ["a"]}, median=["x"], covariance=[("x", "y")]),
    call(ps.queries.histogram, column="x", edges=[1.0, 2.0], statistic="rate"),
    call(ps.queries.contingency_table, by={"s": ["a"]}, statistic="count"),
    call(ps.queries.linear_regression, features=["x"], targets=["y"], regularisation=1.0),
    call(ps.queries.autocorrelation, column="x", time="y", lags=[1]),
    call(ps.queries.boosting_importances, features=["x"], target="s", positive="a", n_trees=2,
         seed=1, depth=2, learning_rate=0.1),
    call(ps.Scenario.from_occupancy,
         fixed={"query": ps.queries.summary(count={"s": 1})}, how_much=("length", "n_draws"),
         chain=[[0.5, 0.5], [0.5, 0.5]], length=3, positions=[1, (0, 1)], start="stationary",
         counted=[1], windows=[(0, 3)], n_draws=5, seed=1),
    call(loads_of_a_home, how_much=("length",), chain=[[0.5, 0.5], [0.5, 0.5]], positions=[1],
         length=3, loads={0: ([0.5], [[0.1]]), 1: ([2.0], [[0.5]])}, state="s", states=[0, 1],
         start=[0.5, 0.5], name="the home"),
    call(ps.Scenario.from_prevalence, fixed={"table": TABLE, "query": CLIPPED}, column="s",
         value="a", within=0.25, n_rows=4, design="stratified", source="held_out"),
    call(ps.Scenario.from_volume, fixed={"table": TABLE, "query": TOTALS}, up_to=20, ratio=1.5,
         name="shop"),
    call(ps.Scenario.from_supplier, fixed={"table": TABLE, "query": TOTALS}, column="s", value="a",
         up_to=20, ratio=1.5),
    call(ps.Scenario.from_attribute,
         fixed={"history": TABLE, "query": ps.queries.columns(["x"])}, name="y", bins=[0.75],
         within=1.0, source="held_out"),
    call(baselines.markov_noise, how_much=("length",), transition=[[0.5, 0.5], [0.5, 0.5]],
         length=3, epsilon=1.0, delta=0.1),
    call(GaussianMixture.weighted, components=[ps.GaussianDistribution(mean=[0.0], cov=[[1.0]])],
         weights=[1.0]),
    call(QUERY.with_scales, scales=[1.0, 2.0]),
    call(ps.certify_release, fixed={"scenario": SCENARIO, "guarantee": GAUSSIAN.along(PROFILE)},
         failure_probability=None, deltas=(1e-5,)),
    call(ps.Scenario.from_groups, fixed={"table": TABLE, "query": QUERY}, secret="s", pairs="all",
         source="held_out"),
    call(ps.Scenario.from_worlds,
         fixed={"worlds": {"a": TABLE, "b": TABLE.slice(1)}, "query": QUERY},
         pairs="all", probabilities=None, name="world"),
    call(ps.spent, fixed={"certificate": CERTIFICATE}, noise_std=3.0, notion="joint", order=2.0),
    call(learning.exactly, n_differing=2),
    call(learning.at_most, max_differing=2),
    call(learning.mostly_at_most, max_differing=2, tail_probability=0.1, failure_probability=0.0),
    call(learning.binomial, how_much=("n_records",), n_records=20, mismatch_probability=0.1),
    call(learning.from_pmf, probabilities=[0.5, 0.5]),
    call(learning.Poisson, n_records=20, rate=0.5),
    call(learning.WithReplacement, n_records=20, batch_size=5),
    call(learning.WithoutReplacement, n_records=20, batch_size=5),
    call(learning.FlatClipping, norm=1.0),
    call(learning.LayerClipping, names=("a", "b"), norms=(1.0, 2.0), sizes=(3, 4),
         allocation="equal"),
    call(learning.plan_training, fixed=PLAN | {"target": UNSLICED}, how_much=("n_steps",),
         clip_norm=1.0, n_steps=3),
    call(learning.plan_with_noise, fixed=PLAN, clip_norm=1.0, noise_multipliers=[5.0, 6.0],
         measure=Measure.renyi(order=4.0)),
    call(learning.amplified_divergence, how_much=("n_differing",), order=4.0, noise_multiplier=2.0,
         rate=0.1, n_differing=2),
    call(learning.effective_multiplier, multipliers=np.array([1.0, 2.0])),
    call(learning.discrete_mismatch, first=[0.5, 0.5], second=[0.25, 0.75]),
    call(learning.gaussian_mismatch, first=(0.0, 1.0), second=(1.0, 1.0)),
    call(accountant_named, name="log_moment"),
    call(learning.relabelled, labels=np.array([0, 1] * 10), label=1, share=0.6, seed=1),
    call(baselines.group_noise_std, fixed={"target": UNSLICED}, group_sensitivity=1.0),
    call(baselines.group_sensitivity, record_widths=[1.0], divisors=[4.0], scales=[1.0],
         group_sizes=[2, 2]),
    call(baselines.group_size, fixed={"sampling": POISSON}, n_differing=2),
    call(baselines.laplace_scale, fixed={"couples": [LAWS]}, epsilon=1.0),
    call(baselines.dagwm_cost, fixed={"couple": LAWS}, order=4.0, noise_std=1.0, q=1.0),
    call(baselines.SinkhornSettings, regularisation=0.1, tolerance=1e-3, n_thresholds=4),
    call(baselines.DpSgd, rate=0.1, n_steps=5, group_size=1),
    call(audit.audit_line, fixed={"claim": UNSLICED}, **PAIR),
    call(audit.bound_epsilon, delta=0.01, **PAIR),
    call(audit.roc_auc, scores=LINE[:8], members=[True, False] * 4),
    call(audit.audit_membership, fixed={"false_positive_rates": (0.5,)}, scores=LINE,
         members=[True, False] * 200, attack="loss", confidence=0.9),
    call(audit.loss_scores, losses=LINE),
    call(audit.margin_scores, logits=LINE[:8].reshape(4, 2), labels=[0, 1, 0, 1]),
    call(views.paper_epsilon, order=4.0, epsilon=1.0, delta=1e-5),
    call(concentration.dkw_halfwidth, n_samples=10, failure_probability=0.1),
    call(concentration.clopper_pearson, n_successes=1, n_trials=10, failure_probability=0.1),
])  # fmt: skip
ATTEMPTS = [(name, argument) for name, good in CALLS.items() for argument in good.odd]


@pytest.mark.parametrize("name", CALLS)
def test_the_arguments_are_good(name):
    good = CALLS[name]
    check_sound(good.make(**good.odd, **good.fixed))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("name", "argument"), ATTEMPTS)
def test_an_odd_argument(name, argument):
    good = CALLS[name]
    for value in (*NUMBERS, *OTHERS, *(() if argument in good.how_much else HUGE)):
        try:
            result = good.make(**{**good.odd, argument: value}, **good.fixed)
        except PuffersliceError:
            continue
        except (TypeError, ValueError) as error:
            is_other = any(value is other for other in OTHERS) or (
                kind_of(value) != kind_of(good.odd[argument])
            )
            if not is_other and argument not in str(error):
                raise AssertionError(value) from error
        else:
            check_sound(result)


def kind_of(value):
    if isinstance(value, list | tuple | np.ndarray):
        return "array"
    return "number" if isinstance(value, int | float) and value is not True else "other"


def check_sound(made):
    """Numbers of what was made are numbers, and sizes of noise and budgets are not negative."""
    if isinstance(made, float):
        assert not math.isnan(made)
    elif isinstance(made, np.ndarray) and made.dtype.kind == "f":
        assert not np.isnan(made).any()
    elif attrs.has(type(made)):
        for field in attrs.fields(type(made)):
            if field.name == "bind":
                continue
            value = getattr(made, field.name)
            if isinstance(value, float) and field.name in ("epsilon", "order", "delta", "radius"):
                assert 0 <= value < math.inf
            check_sound(value)
