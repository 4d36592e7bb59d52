# SPDX-License-Identifier: Apache-2.0
"""Our mechanism and the others on one scenario: the numbers, the claims, and what is left out."""

import csv
import io
import json
import math
import sys
import tracemalloc

import attrs
import numpy as np
import pyarrow as pa
import pytest

import pufferslice as ps
from pufferslice.baselines import (
    SinkhornSettings,
    comparison,
    dagwm_noise_std,
    full_sensitivity,
    gwm_noise_std,
    laplace_scale,
)
from pufferslice.baselines.comparison import (
    BASELINES,
    EPSILONS,
    SHAPED,
    UNSLICED,
    Settings,
    compare_mechanisms,
    couples_of,
    noise_curves,
)
from pufferslice.claims.slices import Method
from pufferslice.queries import Ball, Box, summary

OURS = [
    "average, tight, transport",
    "average, tight, worst gap",
    "average, closed form",
    "joint, tight, transport",
    "joint, tight, worst gap",
    "joint, closed form",
    "unsliced, couplings",
    "unsliced, fitted shape",
]
TARGET = ps.Guarantee.joint(order=4, epsilon=1.0)
RPP = ps.Guarantee.unsliced(order=4, epsilon=1.0)


def worlds(distributions, dim):
    names = [f"x{index}" for index in range(dim)]
    return ps.Scenario.from_worlds(distributions, query=summary(mean=names), source="public_model")


def sampled_worlds(rng, n, m, dim):
    first, second = rng.normal(size=(n, dim)), 1.3 * rng.normal(size=(m, dim)) + 0.5
    distributions = {
        "a": ps.FiniteDistribution.uniform(first),
        "b": ps.FiniteDistribution.uniform(second),
    }
    return worlds(distributions, dim)


@pytest.fixture(scope="module")
def scenario(seed):
    return sampled_worlds(np.random.default_rng(seed), 60, 60, 3)


@pytest.fixture(scope="module")
def profile():
    return ps.FiniteProfile.uniform(dim=3, n_directions=50, seed=7)


@pytest.fixture(scope="module")
def found(scenario, profile):
    return compare_mechanisms(scenario, profile, TARGET, Settings(group_sensitivity=12.0))


def test_ours_stand_on_top_in_all_forms(found):
    assert [row.mechanism for row in found.rows if row.is_ours] == OURS
    assert all(row.is_ours for row in found.rows[: len(OURS)])
    others = [row.mechanism for row in found.rows[len(OURS) :]]
    assert others == [name for name in BASELINES if "Laplace" not in name]
    assert "scalar queries" in found.left_out["Wasserstein, Laplace noise"]


def test_our_rows_are_what_a_certificate_would_add(found, scenario, profile):
    for notion in ("average", "joint"):
        for name, rule, envelope in (
            ("tight, transport", "tight", "transport"),
            ("tight, worst gap", "tight", "worst_gap"),
            ("closed form", "closed_form", "worst_gap"),
        ):
            claim = attrs.evolve(TARGET, notion=notion)
            method = Method(rule=rule, envelope=envelope)
            issued = ps.certify_release(scenario, claim.along(profile), method=method)
            row = found.row(f"{notion}, {name}")
            assert row.noise_std == issued.noise_std
            assert row.unsliced_epsilon == issued.statement.unsliced.epsilon
            assert (row.guarantee, row.scope) == (str(claim), "sliced")


def test_unsliced_rows_are_what_a_certificate_would_add(found, scenario):
    """With isotropic noise, and with the fitted shape that is the default of a certificate."""
    rows = [found.row(name) for name in (UNSLICED, SHAPED)]
    plain, shaped = (
        ps.certify_release(scenario, RPP, shape="isotropic"),
        ps.certify_release(scenario, RPP),
    )
    assert {(row.guarantee, row.scope) for row in rows} == {("(4, 1)-RPP", "unsliced")}
    assert rows[0].noise_std == plain.noise_std
    stds = np.array(shaped.statement.noise.std_by_coordinate) / scenario.query.scales
    assert rows[1].mean_squared_error == pytest.approx(float(np.mean(stds**2)), rel=1e-12)
    assert rows[1].noise_std == pytest.approx(math.sqrt(rows[1].mean_squared_error), rel=1e-12)
    assert "correlated noise" in rows[1].note
    for row, issued in zip(rows, (plain, shaped), strict=True):
        assert row.unsliced_epsilon == issued.statement.unsliced.epsilon
        assert row.guess == issued.guess


def test_without_a_profile_there_are_no_sliced_forms(found, scenario, profile):
    settings = Settings(group_sensitivity=12.0)
    whole = compare_mechanisms(scenario, None, TARGET.along(profile), settings)
    rows = [row for row in found.rows if row.scope != "sliced"]
    assert [row.mechanism for row in whole.rows] == [row.mechanism for row in rows]
    assert [row.noise_std for row in whole.rows] == [row.noise_std for row in rows]
    assert list(noise_curves(scenario, None, 4.0, settings)) == [row.mechanism for row in rows]


def test_a_fitted_shape_needs_less_noise_where_secrets_differ_in_one_direction():
    """Three secrets on a line in space: isotropic noise is spent on three axes, shaped on one."""
    points = {name: ps.FiniteDistribution.uniform([[s, 2 * s, 3 * s]]) for name, s in
              (("a", 0.0), ("b", 1.0), ("c", 1.5))}  # fmt: skip
    found = compare_mechanisms(worlds(points, 3), ps.FiniteProfile.axes(dim=3), TARGET)
    ratio = found.row(SHAPED).mean_squared_error / found.row(UNSLICED).mean_squared_error
    assert 1 / 3 < ratio < 0.36, "a third, and what the guard adds"


def test_rows_of_others_are_what_their_functions_say(found, scenario):
    couples = couples_of(scenario)
    general = found.row("general Wasserstein (GWM)")
    aware = found.row("distribution-aware (DAGWM)")
    assert general.noise_std == gwm_noise_std(couples, RPP)
    assert aware.noise_std == dagwm_noise_std(couples, RPP)
    assert aware.noise_std < general.noise_std
    assert {general.guarantee, aware.guarantee} == {"(4, 1)-RPP"}
    group = found.row("group privacy")
    assert group.noise_std == pytest.approx(12 * math.sqrt(2))
    assert group.guarantee == "(4, 1)-RPP, any prior"
    assert "sensitivity 12, as given" in group.note


def test_sinkhorn_claims_nothing_and_has_its_true_cost(found, scenario):
    row = found.row("Sinkhorn-Wasserstein")
    exact = full_sensitivity(couples_of(scenario))
    assert (row.scope, row.guarantee) == ("none", "none: an estimate")
    assert row.unsliced_epsilon == pytest.approx(4 * exact**2 / (2 * row.noise_std**2))
    assert "gap to exact +" in row.note
    assert "marginals off by" in row.note


@pytest.mark.soundness
def test_a_loose_sinkhorn_shows_that_it_overspends(profile):
    places = {"a": [[0.0, 0, 0]] * 51 + [[6.0, 8, 0]] * 49, "b": [[0.0, 0, 0], [6.0, 8, 0]] * 50}
    scenario = worlds({k: ps.FiniteDistribution.uniform(v) for k, v in places.items()}, 3)
    loose = SinkhornSettings(regularisation=0.5, tolerance=0.05, thresholds=(1.0, 10.0))
    found = compare_mechanisms(scenario, profile, TARGET, Settings(sinkhorn=loose))
    row = found.row("Sinkhorn-Wasserstein")
    assert row.unsliced_epsilon > 37
    assert "gap to exact -8.6" in row.note


def test_time_and_memory_are_measured_and_large_tables_left_out(scenario, profile):
    """GWM and DAGWM hold tables of 60 x 60 distances; tracing of the caller stays on."""
    table = 8 * 60**2
    tracemalloc.start()
    try:
        measured = compare_mechanisms(scenario, profile, TARGET)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    assert all(row.seconds > 0 for row in measured.rows)
    assert measured.row("general Wasserstein (GWM)").peak_bytes >= table
    assert measured.row("distribution-aware (DAGWM)").peak_bytes >= 2 * table
    small = compare_mechanisms(scenario, profile, TARGET, Settings(largest_table=3_599))
    assert not tracemalloc.is_tracing()
    for name in BASELINES[:3]:
        assert all(part in small.left_out[name] for part in ("60 x 60", "3,599"))


def test_scalar_queries_have_a_laplace_row(rng):
    scenario = sampled_worlds(rng, 30, 20, 1)
    profile = ps.FiniteProfile.axes(dim=1)
    target = ps.Guarantee.joint(order=4, epsilon=0.5)
    found = compare_mechanisms(scenario, profile, target)
    row = found.row("Wasserstein, Laplace noise")
    scale = laplace_scale(couples_of(scenario), 0.5)
    assert row.mean_squared_error == pytest.approx(2 * scale**2)
    assert (row.noise, row.guarantee, row.scope) == ("laplace", "0.5-Pufferfish", "unsliced")


def test_on_the_line_the_same_distribution_costs_the_same_everywhere(rng):
    """One slice is the whole output, so sliced and unsliced forms agree with the baselines."""
    found = compare_mechanisms(sampled_worlds(rng, 30, 30, 1), ps.FiniteProfile.axes(dim=1), TARGET)
    assert SHAPED not in [row.mechanism for row in found.rows]
    names = ("average, closed form", "joint, closed form", "general Wasserstein (GWM)")
    worst = [found.row(name).noise_std for name in names]
    assert worst == pytest.approx([worst[0]] * 3, rel=1e-9)
    transport = found.row("joint, tight, transport").noise_std
    aware = found.row("distribution-aware (DAGWM)").noise_std
    assert aware <= transport <= aware * 1.008


def test_group_privacy_falls_back_on_the_width_of_the_range(rng):
    columns = {"site": ["a", "b"] * 20, "pay": rng.normal(size=40), "age": rng.normal(size=40)}
    table = pa.table(columns)
    profile = ps.FiniteProfile.axes(dim=2)
    query = summary(mean=["pay", "age"]).with_scales([2.0, 1.0])
    for bounds, width in ((Box([-3, -2], [3, 2]), 5.0), (Ball([0, 0], 5.0), 10.0)):
        bounded = query.with_range(bounds)
        scenario = ps.Scenario.from_groups(table, secret="site", query=bounded)  # noqa: S106
        row = compare_mechanisms(scenario, profile, TARGET).row("group privacy")
        assert row.noise_std == pytest.approx(width * math.sqrt(2))
        assert "width of the range" in row.note
    scenario = ps.Scenario.from_groups(table, secret="site", query=query)  # noqa: S106
    found = compare_mechanisms(scenario, profile, TARGET)
    assert "group_sensitivity" in found.left_out["group privacy"]


def test_gaussian_worlds_have_their_own_forms():
    distributions = {
        "a": ps.GaussianDistribution(mean=np.zeros(2), cov=np.eye(2)),
        "b": ps.GaussianDistribution(mean=np.ones(2), cov=1.5 * np.eye(2)),
    }
    profile = ps.FiniteProfile.uniform(dim=2, n_directions=20, seed=1)
    found = compare_mechanisms(worlds(distributions, 2), profile, TARGET)
    names = [row.mechanism for row in found.rows]
    assert names == ["average, tight, exact", "joint, tight, exact", UNSLICED, SHAPED]
    assert "infinite" in found.left_out["general Wasserstein (GWM)"]
    assert len(found.left_out) == len(BASELINES)


def test_equal_distributions_need_no_noise_except_by_sinkhorn(profile):
    """It charges for the first threshold above 0, and ln 2 for the entropy of the identity."""
    distribution = ps.FiniteDistribution.uniform(np.arange(6.0).reshape(2, 3))
    found = compare_mechanisms(worlds({"a": distribution, "b": distribution}, 3), profile, TARGET)
    noises = {row.mechanism: row.noise_std for row in found.rows}
    estimate = math.sqrt(27) / 32 + 0.1 * math.log(2)
    assert noises.pop("Sinkhorn-Wasserstein") == pytest.approx(estimate * math.sqrt(2), rel=1e-3)
    assert set(noises.values()) == {0.0}
    assert found.row("Sinkhorn-Wasserstein").unsliced_epsilon == 0.0


def test_without_pot_dagwm_is_left_out_for_unequal_weights(rng, monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    scenario, axis = sampled_worlds(rng, 12, 9, 1), ps.FiniteProfile.axes(dim=1)
    name = "distribution-aware (DAGWM)"
    assert "pufferslice[baselines]" in compare_mechanisms(scenario, axis, TARGET).left_out[name]
    assert name not in noise_curves(scenario, axis, 4.0)


def test_table_as_json_and_csv(found):
    again = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (again["order"], again["epsilon"], again["dim"], again["n_instances"]) == (4, 1, 3, 1)
    assert again["rows"][0]["noise_std"] == found.rows[0].noise_std
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [row["mechanism"] for row in rows] == [row.mechanism for row in found.rows]
    assert float(rows[3]["noise_std"]) == found.rows[3].noise_std


def test_curves_go_through_the_rows_of_the_table(found, scenario, profile):
    curves = noise_curves(scenario, profile, 4.0, Settings(group_sensitivity=12.0))
    assert list(curves) == [row.mechanism for row in found.rows]
    one = EPSILONS.index(1.0)
    for row in found.rows:
        assert curves[row.mechanism][one] == pytest.approx(row.noise_std, rel=1e-9)
        assert (np.diff(curves[row.mechanism]) < 0).all()


def test_couplings_of_curves_are_found_once_for_each_shape(scenario, profile, monkeypatch):
    """A certificate at another epsilon has its own shape and couplings, and hardly less noise."""
    issued = []

    def counted(*args, **settings):
        issued.append(settings["shape"])
        return ps.certify_release(*args, **settings)

    monkeypatch.setattr(comparison, "certify_release", counted)
    curves = noise_curves(scenario, profile, 4.0, epsilons=(0.2, 1.0, 5.0))
    assert issued == ["isotropic", "fitted"]
    for name, shape in ((UNSLICED, "isotropic"), (SHAPED, "fitted")):
        for epsilon, noise in zip((0.2, 1.0, 5.0), curves[name], strict=True):
            own = ps.certify_release(scenario, attrs.evolve(RPP, epsilon=epsilon), shape=shape)
            assert 0.95 * noise < own.noise_std < 1.01 * noise


def test_curves_reach_the_least_noise_where_none_is_needed():
    """Gaussians of equal spread half a unit apart cost 0.5 at order 4 without any noise."""
    distributions = {
        "a": ps.GaussianDistribution(mean=np.zeros(1), cov=np.eye(1)),
        "b": ps.GaussianDistribution(mean=np.full(1, 0.5), cov=np.eye(1)),
    }
    curves = noise_curves(worlds(distributions, 1), ps.FiniteProfile.axes(dim=1), 4.0)
    noises = curves["joint, tight, exact"]
    assert 0 < noises[-1] < 1e-11
    assert noises[0] > 0.1
