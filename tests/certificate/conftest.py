# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""Certificates of every kind, issued once; tests that change one make their own copy."""

import copy

import attrs
import numpy as np
import pyarrow as pa
import pytest
from tests.json_edits import inner, put, statement_of

from pufferslice._core.sampler import SeededTestNoise
from pufferslice.certificate import Certificate, certify_release
from pufferslice.certificate.release import CertificateOptions, release_statement
from pufferslice.claims import Guarantee, Measure
from pufferslice.claims.slices import Method
from pufferslice.learning import LogMoment, Poisson, exactly, plan_with_noise
from pufferslice.queries import Box, columns, summary
from pufferslice.scenario.distributions import FiniteDistribution, GaussianDistribution
from pufferslice.scenario.priors import Bootstrap
from pufferslice.scenario.scenario import Scenario
from pufferslice.scenario.simulator import OutputSimulator
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere, WholeSphere

KINDS = (
    "records", "worst_gap", "closed_form", "unsliced", "groups", "bootstrap", "gaussian", "equal",
    "seeded", "sampled", "approximate", "sphere", "whole_sphere",
)  # fmt: skip
"""Of the certificates below."""

SIZES = {"north": 37, "south": 53, "west": 29}
JOINT = Guarantee.joint(order=4, epsilon=1.0)
AVERAGE = Guarantee.average(order=2.5, epsilon=0.3)
LOOSE = Guarantee.joint(epsilon=1.0, delta=0.2)
SPHERE = SampledSphere.draw(dim=2, n_directions=7, seed=4)
PLAN = plan_with_noise(
    differing=exactly(2), sampling=Poisson(n_records=100, rate=0.1), clip_norm=1.0,
    noise_multipliers=[20.0], accountant=LogMoment(), measure=Measure.renyi(order=4),
)  # fmt: skip
WORST_GAP = Method(rule="tight", envelope="worst_gap")
CLOSED_FORM = Method(rule="closed_form", envelope="worst_gap")


def worlds(query=None, source="public_model", **sides):
    """A scenario of worlds: distributions, or the values that the query can have, all as likely."""
    made = {
        name: FiniteDistribution.uniform(side) if isinstance(side, list | np.ndarray) else side
        for name, side in sides.items()
    }
    query = query or summary(mean=[f"x{place}" for place in range(made[next(iter(made))].dim)])
    return Scenario.from_worlds(made, query=query, source=source)


def bell(mean, cov):
    return GaussianDistribution(mean=mean, cov=cov)


def _clipped(**asked):
    return summary(clip={"pay": (0, 100)}, **asked)


def of_rows(kind="share", **options):
    """A certificate of sums of rows, whose noise is from another table unless it is said."""
    rng = np.random.default_rng(3)
    rows = {"ill": ["yes", "no"] * 200, "pay": rng.uniform(0, 100, 400)}
    table, later = pa.table(rows), pa.table(rows | {"pay": rng.uniform(0, 100, 400)})
    settings = {"moments_from": table} | options
    if kind == "share":
        settings |= {"column": "ill", "value": "yes", "within": 0.05}
        scenario = Scenario.from_prevalence(later, query=_clipped(mean=["pay"]), **settings)
    elif kind == "volume":
        query = _clipped(total=["pay"])
        scenario = Scenario.from_volume(later, query=query, up_to=500, name="the shop", **settings)
    else:
        loads = pa.table({"state": [0, 1] * 20, "pay": rng.uniform(0, 100, 40)})
        scenario = Scenario.from_occupancy(
            [[0.5, 0.5], [0.4, 0.6]],
            positions=[3, 7],
            length=10,
            loads=loads,
            query=_clipped(total=["pay"]),
        )
    return certify_release(scenario, Guarantee.guess(at_most=0.6))


def draws(shift, dim=2):
    """A distribution that is known through 500 draws of a simulator."""
    draw = OutputSimulator(draw_outputs=lambda rng, n: rng.normal(shift, 1.0, size=(n, dim)))
    return draw.sampled(n_draws=500, seed=6)


def changed(certificate, change, evidence=None):
    """The certificate with a statement that a function has changed; the digest follows."""
    statement = copy.deepcopy(certificate.statement.to_json())
    change(statement)
    return Certificate(statement=statement_of(statement), evidence=evidence or certificate.evidence)


def stating(certificate, path, value):
    """The certificate with another value at one path of its statement."""
    return attrs.evolve(
        certificate, statement=statement_of(put(certificate.statement.to_json(), path, value))
    )


def other_values(value):
    """What a field may be changed to so that it says something else."""
    if isinstance(value, dict):
        fewer = [{k: v for k, v in value.items() if k != gone} for gone in value]
        return [*fewer, {**value, "more": 1}]
    if isinstance(value, list):
        fewer = [value[:k] + value[k + 1 :] for k in range(len(value))]
        return [*fewer, [*value, *(value[-1:] or ["x"])]]
    if value is None:
        return [0.5, "x"]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        return [value + "x", ""]
    if isinstance(value, int):
        return [value + 1, value - 1]
    return [value * 1.001 or 1.0, value * 0.999, -value, None]


def changes(statement):
    """Every field changed in turn: values, items and keys dropped and added."""
    values = statement.to_json()
    for path, value in inner(values):
        for other in other_values(value):
            if path and other != value:
                yield path, statement_of(put(values, path, other))


def issued(evidence, statement, **options):
    """A statement that the changed evidence itself gives: only relations can refute it."""
    options = attrs.evolve(CertificateOptions.read_off(statement), **options)
    return Certificate(statement=release_statement(evidence, options), evidence=evidence)


def made_table(rng):
    """Three groups of different size, two numbers that differ between the groups."""
    parts = []
    for index, (site, n) in enumerate(SIZES.items()):
        pay = rng.normal(30 + 2 * index, 4 + index, size=n)
        age = rng.gamma(3 + index, 5, size=n)
        parts.append(pa.table({"site": [site] * n, "pay": pay, "age": age}))
    return pa.concat_tables(parts)


@pytest.fixture(scope="session")
def table():
    return made_table(np.random.default_rng(11))


@pytest.fixture(scope="session")
def profile():
    return FiniteProfile.uniform(dim=2, n_directions=6, seed=7)


@pytest.fixture(scope="session")
def records(table):
    """Distribution `records`: the tables of the gaps have many entries."""
    query = columns(["pay", "age"]).with_range(Box([0, 0], [80, 120])).with_scales([2.0, 5.0])
    return Scenario.from_records(table, secret="site", query=query)


@pytest.fixture(scope="session")
def groups(table):
    """Distribution `groups`, under two priors."""
    other = made_table(np.random.default_rng(12))
    query = summary(mean=["pay", "age"])
    return Scenario.from_groups({"now": table, "then": other}, secret="site", query=query)


@pytest.fixture(scope="session")
def gaussian():
    """Distribution `worlds`: three Gaussians of different spread."""
    return worlds(
        low=bell([0.0, 0.0], [[1.0, 0.2], [0.2, 2.0]]),
        middle=bell([1.0, 0.5], [[1.5, 0.0], [0.0, 1.0]]),
        high=bell([2.0, 0.0], [[1.0, 0.2], [0.2, 2.0]]),
        query=summary(mean=["pay", "age"]),
    )


@pytest.fixture(scope="session")
def equal():
    """Distribution `worlds` with two distributions that are one."""
    atoms = np.array([[1.0, 2.0], [3.0, 5.0]])
    twice = np.vstack([atoms, atoms])[::-1]
    return worlds(a=atoms, b=twice, query=summary(mean=["pay", "age"]))


@pytest.fixture(scope="session")
def bootstrap(table):
    query = summary(mean=["pay", "age"])
    resampling = Bootstrap(n_replicates=40, seed=3)
    return Scenario.from_bootstrap(table, secret="site", query=query, bootstrap=resampling)


@pytest.fixture(scope="session")
def sampled():
    """Distribution `worlds`, known through draws of two simulators."""

    query = summary(mean=["pay", "age"]).with_range(Box([-5, -5], [6, 6]))
    return worlds(low=draws(0.0), high=draws(0.5), query=query)


@pytest.fixture(scope="session")
def certificates(records, groups, gaussian, equal, bootstrap, sampled, profile):
    """One certificate for every kind of scenario, claim and method."""
    unsliced = Guarantee.unsliced(order=3, epsilon=2.0)
    seeded = SeededTestNoise(seed=1)
    return {
        "records": certify_release(records, JOINT.along(profile)),
        "worst_gap": certify_release(records, AVERAGE.along(profile), method=WORST_GAP),
        "closed_form": certify_release(records, AVERAGE.along(profile), method=CLOSED_FORM),
        "unsliced": certify_release(records, unsliced.along(profile)),
        "groups": certify_release(groups, JOINT.along(profile)).acknowledging(["ab" * 32]),
        "bootstrap": certify_release(bootstrap, AVERAGE.along(profile)),
        "gaussian": certify_release(gaussian, JOINT.along(profile)),
        "equal": certify_release(equal, JOINT.along(profile)),
        "seeded": certify_release(groups, AVERAGE.along(profile), generator=seeded, deltas=()),
        "sampled": certify_release(sampled, JOINT.along(profile), failure_probability=0.1),
        "approximate": certify_release(sampled, LOOSE.along(profile), failure_probability=0.1),
        "sphere": certify_release(records, AVERAGE.along(SPHERE), failure_probability=0.1),
        "whole_sphere": certify_release(records, JOINT.along(WholeSphere(dim=2))),
    }
