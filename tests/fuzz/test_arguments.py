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
from pufferslice.calibration import OperatingSystemNoise, SeededTestNoise, epsilon_delta
from pufferslice.errors import PuffersliceError
from pufferslice.learning.accountants import accountant_named
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
    fixed: Mapping[str, Any] = MappingProxyType({})
    sizes: tuple[str, ...] = ()
    """Arguments that say how much is made: huge ones are tested elsewhere, if they fit at all."""


CALLS = {
    "Guarantee": Call(ps.Guarantee, {"notion": "joint", "order": 4.0, "epsilon": 1.0}),
    "ApproximateGuarantee": Call(
        ps.ApproximateGuarantee, {"notion": "joint", "epsilon": 1.0, "delta": 0.1}
    ),
    "Method": Call(ps.Method, {"rule": "tight", "envelope": "transport"}),
    "Box": Call(ps.queries.Box, {"low": [0.0, 0.0], "high": [1.0, 2.0]}),
    "Ball": Call(ps.queries.Ball, {"center": [0.0, 0.0], "radius": 1.0}),
    "Bins": Call(ps.Bins, {"column": "x", "quantiles": 2}),
    "Bootstrap": Call(ps.Bootstrap, {"n_replicates": 5, "seed": 1}),
    "FiniteDistribution": Call(
        ps.FiniteDistribution, {"outputs": [[0.0], [1.0]], "counts": [1, 2]}
    ),
    "FiniteDistribution.uniform": Call(ps.FiniteDistribution.uniform, {"outputs": [[0.0], [1.0]]}),
    "FiniteDistribution.weighted": Call(
        ps.FiniteDistribution.weighted, {"outputs": [[0.0], [1.0]], "weights": [0.5, 0.5]}
    ),
    "SampledDistribution": Call(ps.SampledDistribution, {"outputs": [[0.0], [1.0]]}),
    "GaussianDistribution": Call(
        ps.GaussianDistribution, {"mean": [0.0, 1.0], "cov": [[1.0, 0.0], [0.0, 1.0]]}
    ),
    "FiniteProfile": Call(
        ps.FiniteProfile, {"directions": [[1.0, 0.0], [0.0, 1.0]], "weights": [0.5, 0.5]}
    ),
    "FiniteProfile.of": Call(ps.FiniteProfile.of, {"directions": [[1.0, 0.0]]}),
    "FiniteProfile.uniform": Call(
        ps.FiniteProfile.uniform,
        {"dim": 2, "n_directions": 3, "seed": 1},
        sizes=("dim", "n_directions"),
    ),
    "FiniteProfile.axes": Call(ps.FiniteProfile.axes, {"dim": 2}, sizes=("dim",)),
    "FiniteProfile.orthogonal": Call(
        ps.FiniteProfile.orthogonal, {"dim": 2, "n_sets": 3, "seed": 1}, sizes=("dim", "n_sets")
    ),
    "FiniteProfile.blocks": Call(
        ps.FiniteProfile.blocks,
        {"dim": 2, "blocks": [[0], [0, 1]], "n_directions": 2, "seed": 1},
        sizes=("dim", "n_directions"),
    ),
    "SampledSphere.draw": Call(
        ps.SampledSphere.draw,
        {"dim": 2, "n_directions": 3, "seed": 1},
        sizes=("dim", "n_directions"),
    ),
    "SeededTestNoise": Call(SeededTestNoise, {"seed": 1}),
    "draw": Call(OperatingSystemNoise().draw, {"size": 2}, sizes=("size",)),
    "summary": Call(
        ps.queries.summary,
        {"mean": ["x"], "std": ["x"], "rate": {"s": "a"}, "quantile": {"x": 0.5}, "count_share": 9},
    ),
    "columns": Call(ps.queries.columns, {"names": ["x"], "flags": {"s": "a"}}),
    "above": Call(ps.queries.above, {"limit": 1.0}),
    "with_scales": Call(QUERY.with_scales, {"scales": [1.0, 2.0]}),
    "certify_release": Call(
        ps.certify_release,
        {"failure_probability": None, "deltas": (1e-5,), "earlier_releases": ()},
        {"scenario": SCENARIO, "guarantee": GAUSSIAN.along(PROFILE)},
    ),
    "from_groups": Call(
        ps.Scenario.from_groups,
        {"secret": "s", "pairs": "all", "source": "held_out"},
        {"table": TABLE, "query": QUERY},
    ),
    "from_worlds": Call(
        ps.Scenario.from_worlds,
        {"pairs": "all", "probabilities": None, "name": "world"},
        {"worlds": {"a": TABLE, "b": TABLE.slice(1)}, "query": QUERY},
    ),
    "spent": Call(
        ps.spent,
        {"noise_std": 3.0, "notion": "joint", "order": 2.0},
        {"certificate": CERTIFICATE},
    ),
    "exactly": Call(learning.exactly, {"n_differing": 2}),
    "at_most": Call(learning.at_most, {"max_differing": 2}),
    "binomial": Call(
        learning.binomial, {"n_records": 20, "mismatch_probability": 0.1}, sizes=("n_records",)
    ),
    "from_pmf": Call(learning.from_pmf, {"probabilities": [0.5, 0.5]}),
    "Poisson": Call(learning.Poisson, {"n_records": 20, "rate": 0.5}),
    "WithReplacement": Call(learning.WithReplacement, {"n_records": 20, "batch_size": 5}),
    "WithoutReplacement": Call(learning.WithoutReplacement, {"n_records": 20, "batch_size": 5}),
    "FlatClipping": Call(learning.FlatClipping, {"norm": 1.0}),
    "LayerClipping": Call(
        learning.LayerClipping,
        {"names": ("a", "b"), "norms": (1.0, 2.0), "sizes": (3, 4), "allocation": "equal"},
    ),
    "plan_training": Call(
        learning.plan_training,
        {"clip_norm": 1.0, "n_steps": 3},
        {
            "differing": learning.exactly(2),
            "sampling": POISSON,
            "accountant": learning.LogMoment(),
            "target": ps.Guarantee.unsliced(order=4, epsilon=1.0),
        },
        sizes=("n_steps",),
    ),
    "plan_with_noise": Call(
        learning.plan_with_noise,
        {"clip_norm": 1.0, "noise_multipliers": [5.0, 6.0], "order": 4.0},
        {"differing": learning.exactly(2), "sampling": POISSON, "accountant": learning.LogMoment()},
    ),
    "amplified_divergence": Call(
        learning.amplified_divergence,
        {"order": 4.0, "noise_multiplier": 2.0, "rate": 0.1, "n_differing": 2},
        sizes=("n_differing",),
    ),
    "effective_multiplier": Call(
        learning.effective_multiplier, {"multipliers": np.array([1.0, 2.0])}
    ),
    "discrete_mismatch": Call(
        learning.discrete_mismatch, {"first": [0.5, 0.5], "second": [0.25, 0.75]}
    ),
    "gaussian_mismatch": Call(
        learning.gaussian_mismatch, {"first": (0.0, 1.0), "second": (1.0, 1.0)}
    ),
    "accountant_named": Call(accountant_named, {"name": "log_moment"}),
    "relabelled": Call(
        learning.relabelled,
        {"labels": np.array([0, 1] * 10), "label": 1, "share": 0.6, "seed": 1},
    ),
    "group_noise_std": Call(
        baselines.group_noise_std,
        {"group_sensitivity": 1.0},
        {"target": ps.Guarantee.unsliced(order=4, epsilon=1.0)},
    ),
    "group_size": Call(baselines.group_size, {"n_differing": 2}, {"sampling": POISSON}),
    "laplace_scale": Call(baselines.laplace_scale, {"epsilon": 1.0}, {"couples": [LAWS]}),
    "dagwm_cost": Call(
        baselines.dagwm_cost, {"order": 4.0, "noise_std": 1.0, "q": 1.0}, {"couple": LAWS}
    ),
    "SinkhornSettings": Call(
        baselines.SinkhornSettings, {"regularisation": 0.1, "tolerance": 1e-3, "n_thresholds": 4}
    ),
    "DpSgd": Call(baselines.DpSgd, {"rate": 0.1, "n_steps": 5, "group_size": 1}),
    "audit_line": Call(
        audit.audit_line,
        {"first": LINE, "second": OTHER, "confidence": 0.9, "seed": 1},
        {"claim": GAUSSIAN},
    ),
    "bound_epsilon": Call(
        audit.bound_epsilon,
        {"first": LINE, "second": OTHER, "delta": 0.01, "confidence": 0.9, "seed": 1},
    ),
    "roc_auc": Call(audit.roc_auc, {"scores": LINE[:8], "members": [True, False] * 4}),
    "audit_membership": Call(
        audit.audit_membership,
        {"scores": LINE, "members": [True, False] * 200, "attack": "loss", "confidence": 0.9},
        {"false_positive_rates": (0.5,)},
    ),
    "loss_scores": Call(audit.loss_scores, {"losses": LINE}),
    "margin_scores": Call(
        audit.margin_scores, {"logits": LINE[:8].reshape(4, 2), "labels": [0, 1, 0, 1]}
    ),
    "paper_epsilon": Call(
        epsilon_delta.paper_epsilon, {"order": 4.0, "epsilon": 1.0, "delta": 1e-5}
    ),
    "dkw_halfwidth": Call(
        concentration.dkw_halfwidth, {"n_samples": 10, "failure_probability": 0.1}
    ),
    "clopper_pearson": Call(
        concentration.clopper_pearson,
        {"n_successes": 1, "n_trials": 10, "failure_probability": 0.1},
    ),
}
ATTEMPTS = [(name, argument) for name, call in CALLS.items() for argument in call.odd]


@pytest.mark.parametrize("name", CALLS)
def test_the_arguments_are_good(name):
    call = CALLS[name]
    check_sound(call.make(**call.odd, **call.fixed))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("name", "argument"), ATTEMPTS)
def test_an_odd_argument(name, argument):
    call = CALLS[name]
    for value in (*NUMBERS, *OTHERS, *(() if argument in call.sizes else HUGE)):
        try:
            made = call.make(**{**call.odd, argument: value}, **call.fixed)
        except PuffersliceError:
            continue
        except (TypeError, ValueError) as error:
            is_other = any(value is one for one in OTHERS) or (
                kind_of(value) != kind_of(call.odd[argument])
            )
            if not is_other and argument not in str(error):
                raise AssertionError(value) from error
        else:
            check_sound(made)


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
