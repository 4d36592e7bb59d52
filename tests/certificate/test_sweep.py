# SPDX-License-Identifier: Apache-2.0
"""Sweeps over bounds: by hand, as certificates state them, and as tables and pictures."""

import json
import math
from xml.etree import ElementTree as ET

import attrs
import numpy as np
import pytest
from scipy.stats import norm

from pufferslice import (
    FiniteDistribution,
    FiniteProfile,
    GaussianDistribution,
    Guarantee,
    Scenario,
    certify_release,
    what_if,
)
from pufferslice.certificate import Sweep
from pufferslice.errors import ArgumentError, CalibrationError, CertificateError
from pufferslice.queries import summary
from pufferslice.report.sweep import sweep_svg
from pufferslice.sensitivity import WholeSphere

QUERY = summary(mean=["<b>x</b>", "y"], scales={"<b>x</b>": 10, "y": 1})
CLAIM = Guarantee.unsliced(order=4, epsilon=1.0)


def scenario(shift=(20.0, 0.0), spread=1.0):
    """Means that differ by `shift` in the user's units, with this variance in scaled ones."""
    cov = spread * np.diag([100.0, 1.0])
    worlds = {
        "low": GaussianDistribution(mean=[0.0, 0.0], cov=cov),
        "high": GaussianDistribution(mean=list(shift), cov=cov),
    }
    return Scenario.from_worlds(worlds, query=QUERY)


@pytest.fixture(scope="module")
def sweep():
    held = certify_release(scenario(), CLAIM, shape="isotropic")
    return Sweep.of(held, [0.5, 1.0, 4.0])


def test_known_answers(sweep):
    """Two standard deviations apart: 4 / 2 * 2^2 / (1 + variance) is epsilon."""
    assert [row.claim.bound for row in sweep.rows] == [0.5, 1.0, 4.0]
    for row in sweep.rows:
        epsilon = row.claim.epsilon
        std = math.sqrt(8 / epsilon - 1)
        assert row.noise_stds == pytest.approx([10 * std, std], rel=1e-6)
        assert row.unsliced_epsilon == pytest.approx(epsilon, rel=1e-9)
        apart = math.sqrt(epsilon / 2)
        assert row.guess == pytest.approx(norm.cdf(apart / 2), rel=1e-6)
        # The delta of two Gaussians at the stated epsilon is at most the sweep's.
        view = row.epsilon_at_delta
        delta = norm.cdf(apart / 2 - view / apart) - math.exp(view) * norm.cdf(
            -apart / 2 - view / apart
        )
        assert 1e-8 < delta <= 1e-5


def test_its_own_bound_is_the_certificate():
    worlds = {
        "a": FiniteDistribution.uniform([[0.0, 0.0], [10.0, 2.0], [0.0, 1.0]]),
        "b": FiniteDistribution.uniform([[10.0, 0.0], [20.0, 2.0], [30.0, 1.0]]),
    }
    finite = Scenario.from_worlds(worlds, query=QUERY)
    for given in (scenario(), finite):
        for claim in (CLAIM, Guarantee.guess(at_most=0.6), Guarantee.epsilon_delta(1.0, 1e-5)):
            held = certify_release(given, claim)
            found = what_if(given, claim)
            (own,) = [row for row in found.rows if row.claim == claim]
            stated = held.statement
            assert own.noise_stds == pytest.approx(stated["noise"]["std_by_coordinate"])
            assert own.guess == pytest.approx(held.guess, rel=1e-4)
            assert own.unsliced_epsilon == pytest.approx(held.unsliced_epsilon, rel=1e-9)
            views = [view["epsilon"] for view in stated["views"] if view["scope"] == "unsliced"]
            assert own.epsilon_at_delta == pytest.approx(min(views), rel=1e-4)
            assert found.order == stated["unsliced"]["order"]
            # More may be told with less noise.
            bounds = [row.claim.bound for row in found.rows]
            noise = [float(row.noise_stds[0]) for row in found.rows]
            assert bounds == sorted(bounds)
            assert noise == sorted(noise, reverse=True)
            assert len(found.rows) == 7


def test_slices_have_their_sweep_as_well():
    claim = Guarantee.joint(order=4, epsilon=1.0, profile=FiniteProfile.axes(dim=2))
    held = certify_release(scenario(), claim)
    low, own = Sweep.of(held, [0.5, 1.0]).rows
    assert own.noise_stds.tolist() == held.statement["noise"]["std_by_coordinate"]
    assert own.unsliced_epsilon > 1.0 > low.claim.epsilon


@pytest.mark.soundness
@pytest.mark.parametrize("notion", ["average", "joint"])
@pytest.mark.parametrize("profile", [FiniteProfile.axes(dim=2), WholeSphere(dim=2)])
def test_epsilon_at_delta_is_that_of_the_whole_output(notion, profile):
    """Two points 5 apart: the slices show less than the release."""
    points = {
        "a": FiniteDistribution.uniform([[0.0, 0.0]]),
        "b": FiniteDistribution.uniform([[3.0, 4.0]]),
    }
    target = Guarantee(notion=notion, order=4, epsilon=1.0, profile=profile)
    held = certify_release(Scenario.from_worlds(points, query=QUERY), target)
    (own,) = Sweep.of(held, [1.0], delta=1e-5).rows
    views = {"unsliced": [], "sliced": []}
    for view in held.statement["views"]:
        views["unsliced" if view["scope"] == "unsliced" else "sliced"].append(view["epsilon"])
    assert own.epsilon_at_delta == pytest.approx(min(views["unsliced"]), rel=1e-9)
    assert notion == "joint" or own.epsilon_at_delta > 1.2 * min(views["sliced"])


def test_slices_of_several_values_have_their_sweep():
    worlds = {
        "a": FiniteDistribution.uniform([[0.0, 0.0], [1.0, 2.0]]),
        "b": FiniteDistribution.uniform([[3.0, 4.0], [5.0, 1.0]]),
    }
    target = Guarantee.average(order=4, epsilon=1.0, profile=FiniteProfile.axes(dim=2))
    held = certify_release(Scenario.from_worlds(worlds, query=QUERY), target)
    (own,) = Sweep.of(held, [1.0], delta=1e-5).rows
    views = [v["epsilon"] for v in held.statement["views"] if v["scope"] == "unsliced"]
    assert own.epsilon_at_delta == pytest.approx(min(views), rel=1e-4)


def test_tables(sweep):
    text = str(sweep)
    for words in ("right guesses of two", "epsilon at delta 1e-05", "noise of mean(y)", "Internal"):
        assert words in text
    lines = text.splitlines()[1:-1]
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split() == ["bound", "0.5", "1", "4"]
    assert lines[-1].split()[-3:] == ["3.87", "2.65", "1"]
    document = json.loads(json.dumps(sweep.to_dict()))
    assert document["claim"] == CLAIM.to_json()
    assert document["rows"][1]["noise_std_by_coordinate"]["mean(y)"] == pytest.approx(7**0.5)
    frame = sweep.to_pandas()
    assert frame.shape == (3, 6)
    assert frame["mean(y)"].tolist() == [float(row.noise_stds[1]) for row in sweep.rows]
    html = sweep._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;x&lt;/b&gt;" in html
    assert "do not publish" in html
    assert repr(sweep) == "Sweep(claim='(4, 1)-RPP', n_bounds=3)"


def test_a_bound_that_no_noise_reaches(sweep):
    rows = (attrs.evolve(sweep.rows[0], noise_stds=None, epsilon_at_delta=None), *sweep.rows[1:])
    partly = attrs.evolve(sweep, rows=rows)
    assert str(partly).splitlines()[-2].split()[-3:] == ["-", "2.65", "1"]
    assert partly.to_dict()["rows"][0]["noise_std_by_coordinate"] is None
    assert partly.to_pandas()["mean(y)"].isna().tolist() == [True, False, False]
    assert sweep_svg(partly).count("<circle") == 2
    with pytest.raises(CalibrationError, match="nothing to plot"):
        sweep_svg(attrs.evolve(sweep, rows=rows[:1]))


def test_the_picture(sweep):
    root = ET.fromstring(sweep_svg(sweep))  # noqa: S314 - our own picture
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert {"epsilon", "noise, 1 at 1", "right guesses of two, %"} <= set(texts)
    assert "script" not in sweep_svg(sweep)
    guess = sweep_svg(what_if(scenario(), Guarantee.guess(at_most=0.6), bounds=[0.55, 0.6]))
    assert "right guesses claimed" in guess


def test_what_is_refused(sweep):
    held = certify_release(scenario(), CLAIM)
    with pytest.raises(ArgumentError, match="delta"):
        Sweep.of(held, delta=0.0)
    with pytest.raises(ArgumentError, match="epsilon"):
        Sweep.of(held, [0.0])
    with pytest.raises(CertificateError, match="evidence"):
        Sweep.of(attrs.evolve(held, evidence=None))
    with pytest.raises(CalibrationError, match="equal"):
        Sweep.of(certify_release(scenario(shift=(0.0, 0.0)), CLAIM, shape="isotropic"))
