# SPDX-License-Identifier: Apache-2.0
"""Sweeps over bounds: by hand, as certificates state them, and as tables and pictures.

A point agrees with certifying again; pairs and slices add up to what the certificate spends.
"""

import json
import math
from xml.etree import ElementTree as ET

import attrs
import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import norm
from tests.certificate.conftest import CLOSED_FORM, bell, draws, worlds

from pufferslice.certificate import (
    Certificate,
    Sweep,
    certify_release,
    certify_training,
    spent,
    what_if,
)
from pufferslice.certificate.sweep import (
    costs_if_off,
    pair_costs,
    slice_profile,
    stated_variation,
    sweep_points,
    what_if_training,
)
from pufferslice.claims import Guarantee, Measure, claim_of
from pufferslice.errors import ArgumentError, CalibrationError, CertificateError
from pufferslice.learning import (
    Amplified,
    MeanSquare,
    Poisson,
    WorstCase,
    exactly,
    plan_training,
    plan_with_noise,
)
from pufferslice.queries import summary
from pufferslice.sensitivity.profiles import FiniteProfile, WholeSphere

QUERY = summary(mean=["<b>x</b>", "y"], scales={"<b>x</b>": 10, "y": 1})
CLAIM = Guarantee.unsliced(order=4, epsilon=1.0)
POINTS = {"a": [0.0, 0.0], "b": [3.0, 0.0], "c": [0.0, 1.0]}
JOINT = Guarantee.joint(order=4, epsilon=1.0)
PROFILE = FiniteProfile.uniform(dim=2, n_directions=12, seed=3)
SAMPLING = Poisson(n_records=100, rate=0.5)


def scenario(shift=(20.0, 0.0), spread=1.0):
    """Means that differ by `shift` in the user's units, with this variance in scaled ones."""
    cov = spread * np.diag([100.0, 1.0])
    return worlds(low=bell([0.0, 0.0], cov), high=bell(shift, cov), query=QUERY)


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
    finite = worlds(
        a=[[0.0, 0.0], [10.0, 2.0], [0.0, 1.0]],
        b=[[10.0, 0.0], [20.0, 2.0], [30.0, 1.0]],
        query=QUERY,
    )
    for given in (scenario(), finite):
        for claim in (CLAIM, Guarantee.guess(at_most=0.6), Guarantee.epsilon_delta(1.0, 1e-5)):
            held = certify_release(given, claim)
            found = what_if(given, claim)
            (own,) = [row for row in found.rows if row.claim == claim]
            stated = held.statement
            assert own.noise_stds == pytest.approx(stated.noise.std_by_coordinate)
            assert own.guess == pytest.approx(held.guess, rel=1e-4)
            assert own.unsliced_epsilon == pytest.approx(held.unsliced_epsilon, rel=1e-9)
            views = [view.epsilon for view in stated.views if view.scope == "unsliced"]
            assert own.epsilon_at_delta == pytest.approx(min(views), rel=1e-4)
            assert found.order == stated.unsliced.order
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
    assert own.noise_stds.tolist() == held.statement.noise.std_by_coordinate
    assert own.unsliced_epsilon > 1.0 > low.claim.epsilon


@pytest.mark.soundness
@pytest.mark.parametrize("notion", ["average", "joint"])
@pytest.mark.parametrize("profile", [FiniteProfile.axes(dim=2), WholeSphere(dim=2)])
def test_epsilon_at_delta_is_that_of_the_whole_output(notion, profile):
    """Two points 5 apart: the slices show less than the release."""
    target = claim_of({"notion": notion, "order": 4.0, "epsilon": 1.0}).along(profile)
    held = certify_release(worlds(a=[[0.0, 0.0]], b=[[3.0, 4.0]], query=QUERY), target)
    (own,) = Sweep.of(held, [1.0], delta=1e-5).rows
    views = {"unsliced": [], "sliced": []}
    for view in held.statement.views:
        views["unsliced" if view.scope == "unsliced" else "sliced"].append(view.epsilon)
    assert own.epsilon_at_delta == pytest.approx(min(views["unsliced"]), rel=1e-9)
    assert notion == "joint" or own.epsilon_at_delta > 1.2 * min(views["sliced"])


def test_slices_of_several_values_have_their_sweep():
    several = worlds(a=[[0.0, 0.0], [1.0, 2.0]], b=[[3.0, 4.0], [5.0, 1.0]], query=QUERY)
    target = Guarantee.average(order=4, epsilon=1.0, profile=FiniteProfile.axes(dim=2))
    held = certify_release(several, target)
    (own,) = Sweep.of(held, [1.0], delta=1e-5).rows
    views = [v.epsilon for v in held.statement.views if v.scope == "unsliced"]
    assert own.epsilon_at_delta == pytest.approx(min(views), rel=1e-4)


def test_tables(sweep):
    text = str(sweep)
    for words in ("right guesses", "epsilon at delta 1e-05", "noise of mean(y)", "Internal"):
        assert words in text
    lines = text.splitlines()[1:-1]
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split() == ["bound", "0.5", "1", "4"]
    assert lines[-1].split()[-3:] == ["3.87", "2.65", "1"]
    document = json.loads(json.dumps(sweep.to_dict()))
    assert document["claim"] == CLAIM.to_json()
    assert document["rows"][1]["noise_std_by_coordinate"]["mean(y)"] == pytest.approx(7**0.5)
    held = certify_release(scenario(), CLAIM)
    assert json.dumps(Sweep.of(held, [1.0], delta=np.float32(1e-5)).to_dict())
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
    assert partly.plot()._repr_svg_().count("<circle") == 2
    with pytest.raises(CalibrationError, match="nothing to plot"):
        attrs.evolve(sweep, rows=rows[:1]).plot()


def test_the_picture(sweep):
    svg = sweep.plot()._repr_svg_()
    root = ET.fromstring(svg)  # noqa: S314 - our own picture
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert {"ε claimed", "noise, 1 at 1", "right guesses, at most (%)"} <= set(texts)
    assert "Internal: do not publish." in texts
    assert "script" not in svg
    # The claim is the second of three bounds: its dashed line goes through the points there.
    lines = [node for node in root.iter() if node.get("class") == "marker"]
    dots = [float(n.get("cx")) for n in root.iter() if n.tag.endswith("circle")]
    assert [float(line[0].get("x1")) for line in lines] == [dots[1], dots[1]]
    guess = what_if(scenario(), Guarantee.guess(at_most=0.6), bounds=[0.55, 0.6]).plot()
    assert "right guesses claimed (%)" in guess._repr_svg_()


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


@pytest.fixture(scope="module")
def points():
    return worlds(**{name: [at] for name, at in POINTS.items()})


@pytest.fixture(scope="module")
def certificate(points):
    return certify_release(points, JOINT.along(PROFILE))


@pytest.fixture(scope="module")
def gaussian():
    low = bell([0.0, 0.0], [[1.0, 0.2], [0.2, 2.0]])
    high = bell([2.0, 0.5], [[1.5, 0.0], [0.0, 1.0]])
    return certify_release(worlds(low=low, high=high), JOINT.along(PROFILE))


@pytest.mark.parametrize("claimed", [1.0, 0.3, 7.123456789, 1e-6, 250.0])
def test_epsilons_surround_the_claim(claimed):
    epsilons = Guarantee.joint(order=4, epsilon=claimed).bounds_around(25)
    assert len(epsilons) == 25
    assert epsilons[12] == claimed
    assert np.all(np.diff(epsilons) > 0)
    assert epsilons[0] == pytest.approx(claimed * 10**-1.5, rel=0.01)
    assert epsilons[-1] == pytest.approx(claimed * 10**1.5, rel=0.01)


@pytest.mark.parametrize("target", [JOINT, Guarantee.average(order=2.5, epsilon=0.4)], ids=str)
def test_an_outlook_is_what_certifying_again_says(points, target):
    held = certify_release(points, target.along(PROFILE))
    epsilons = (0.1, target.epsilon, 5.0)
    for epsilon, row in zip(epsilons, sweep_points(held, epsilons), strict=True):
        again = certify_release(points, target.with_bound(epsilon).along(PROFILE))
        assert row.claim == again.guarantee
        assert row.noise_std == row.tight_std == again.noise_std
        assert row.unsliced_epsilon == again.unsliced_epsilon


def test_closed_form_by_hand(certificate):
    """Joint: variance = order / (2 epsilon) * the largest squared gap of all slices."""
    (row,) = sweep_points(certificate, [2.0])
    at = np.array(list(POINTS.values()))
    gaps = np.abs((at[:, None] - at[None]) @ PROFILE.directions.T)
    assert row.closed_form_std**2 == pytest.approx(4 / 4 * gaps.max() ** 2, rel=1e-9)
    assert row.closed_form_std >= row.noise_std


def test_a_closed_form_has_its_tight_rule_beside_it(points, certificate):
    held = certify_release(points, JOINT.along(PROFILE), method=CLOSED_FORM)
    (own,) = sweep_points(held, [1.0])
    assert own.noise_std == own.closed_form_std == held.noise_std
    assert own.tight_std == certificate.noise_std < held.noise_std


def test_a_bound_that_no_noise_reaches_has_no_noise(certificate):
    (beyond,) = sweep_points(certificate, [1e-30])
    assert beyond.noise_std is beyond.noise_stds is beyond.tight_std is None
    assert beyond.unsliced_epsilon is None
    assert beyond.total_variation == 1.0


@pytest.mark.soundness
def test_variation_is_never_below_that_of_the_released_points(certificate):
    """Point masses: 2 Phi(distance / (2 noise)) - 1 between the farthest two."""
    farthest = math.sqrt(10)
    for row in sweep_points(certificate, JOINT.bounds_around(25)):
        exact = 2 * float(ndtr(farthest / row.noise_std / 2)) - 1
        assert exact <= row.total_variation <= min(1.0, 2 * exact)


@pytest.mark.soundness
def test_the_statement_alone_bounds_the_same_variation(certificate, gaussian):
    exact = 2 * float(ndtr(math.sqrt(10) / certificate.noise_std / 2)) - 1
    stated = stated_variation(certificate)
    assert exact <= stated < 1
    assert stated == stated_variation(attrs.evolve(certificate, evidence=None))
    (own,) = sweep_points(certificate, [1.0])
    assert own.total_variation <= stated * (1 + 1e-6)
    assert own.total_variation == pytest.approx(stated, rel=1e-6)
    (other,) = sweep_points(gaussian, [gaussian.guarantee.epsilon])
    assert stated_variation(gaussian) == pytest.approx(other.total_variation, rel=1e-6)


def test_pairs_are_ranked_and_the_first_spends_the_budget(certificate):
    rows = pair_costs(certificate)
    assert [row.pair for row in rows] == [("b", "c"), ("a", "b"), ("a", "c")]
    assert rows[0].sliced_cost == pytest.approx(certificate.spent, rel=1e-9)
    assert rows[0].unsliced_cost == pytest.approx(4 * 10 / 2 / certificate.noise_std**2, rel=1e-6)
    assert rows[2].unsliced_cost == pytest.approx(4 * 1 / 2 / certificate.noise_std**2, rel=1e-6)
    gap = np.abs(np.array([3.0, 0.0]) @ PROFILE.directions.T).max()
    assert rows[1].largest_gap == pytest.approx(gap, rel=1e-12)
    assert {row.prior for row in rows} == {"declared"}


def test_slices_of_the_hardest_pair_by_hand(certificate):
    profile = slice_profile(certificate)
    along = (np.array([3.0, -1.0]) @ PROFILE.directions.T) ** 2
    costs = 4 * along / (2 * certificate.noise_std**2)
    assert profile.pair == ("b", "c")
    assert profile.costs == pytest.approx(costs, rel=1e-9)
    assert profile.joint == pytest.approx(certificate.spent, rel=1e-9)
    assert profile.average == pytest.approx(costs.mean(), rel=1e-9)


def test_gaussian_distributions_have_no_closed_form_and_no_gap(gaussian):
    low, own, high = sweep_points(gaussian, [0.5, 1.0, 2.0])
    assert own.noise_std == gaussian.noise_std
    assert low.noise_std > own.noise_std > high.noise_std
    assert own.closed_form_std is None
    (row,) = pair_costs(gaussian)
    assert row.largest_gap is None
    assert row.sliced_cost == pytest.approx(gaussian.spent, rel=1e-9)
    assert slice_profile(gaussian).joint == pytest.approx(gaussian.spent, rel=1e-9)


def test_unsliced_claims_have_one_rule(points):
    held = certify_release(points, Guarantee.unsliced(order=3, epsilon=2.0))
    low, own = sweep_points(held, [1.0, 2.0])
    assert own.noise_std == held.noise_std
    assert own.closed_form_std is own.tight_std is None
    assert low.noise_std == pytest.approx(own.noise_std * math.sqrt(2), rel=1e-6)
    rows = pair_costs(held)
    assert rows[0].sliced_cost is None
    assert rows[0].pair == ("b", "c")
    assert rows[0].largest_gap is None
    assert slice_profile(held) is None


@pytest.mark.parametrize("claimed", [0.6, 0.50001, 0.99999, 0.753])
def test_shares_of_guesses_lie_between_coin_flip_and_certainty(claimed):
    shares = Guarantee.guess(at_most=claimed).bounds_around(25)
    assert claimed in shares
    assert np.all(np.diff(shares) > 0)
    assert 0.5 < min(shares) <= max(shares) < 1
    assert len(shares) > 12


@pytest.mark.parametrize("shape", ["fitted", "diagonal", "isotropic"])
@pytest.mark.parametrize(
    ("target", "others"),
    [
        (Guarantee.unsliced(order=3, epsilon=2.0), (0.5, 4.0)),
        (Guarantee.epsilon_delta(1.0, 1e-4), (0.5, 2.0)),
        (Guarantee.guess(at_most=0.6), (0.55, 0.9)),
    ],
    ids=str,
)
def test_a_claim_about_the_whole_output_is_what_certifying_again_says(
    points, target, others, shape
):
    """The shape for points does not depend on the bound, up to the solver's tolerance."""
    held = certify_release(points, target, shape=shape)
    own, *rows = sweep_points(held, (target.bound, *others))
    assert own.noise_std == held.noise_std
    assert own.total_variation == pytest.approx(stated_variation(held), rel=1e-6)
    for bound, row in zip(others, rows, strict=True):
        again = certify_release(points, target.with_bound(bound), shape=shape)
        assert row.claim == again.guarantee
        assert row.noise_std == pytest.approx(again.noise_std, rel=1e-3)
        assert row.closed_form_std is row.tight_std is None
    assert pair_costs(held)[0].unsliced_cost == pytest.approx(held.unsliced_epsilon, rel=1e-9)


@pytest.mark.soundness
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_priors_that_are_off_by_a_share_of_the_guard_cost_no_more(share):
    """Each law is moved by that much in the worst direction, and the noise is priced anew."""
    atoms = np.array([[0.0, 0.0], [1.0, 0.5], [0.0, 2.0]])
    laws = {"a": atoms, "b": atoms + np.array([2.0, 1.0])}
    target = Guarantee.unsliced(order=3, epsilon=2.0)
    held = certify_release(worlds(**laws), target)
    (cost,) = costs_if_off(held, [share])
    covariance = held.shape.covariance * held.noise_std**2
    _, vectors = np.linalg.eigh(covariance)
    moved = share * held.statement.noise.shape.guard * vectors[:, 0]
    worst = 0.0
    for sign in (-1, 1):
        away = {"a": laws["a"] - sign * moved, "b": laws["b"] + sign * moved}
        true = certify_release(worlds(**away), target.with_bound(100.0), shape=covariance)
        again = spent(true, noise_std=math.sqrt(np.trace(covariance) / 2))
        worst = max(worst, again.epsilon)
    assert held.spent < worst <= cost * (1 + 1e-6)


def test_points_that_are_off_cost_a_known_factor(points):
    held = certify_release(points, Guarantee.unsliced(order=3, epsilon=2.0))
    assert costs_if_off(held, [0.1, 1.0]) == pytest.approx([2 * 1.44, 2 * 9], rel=1e-3)
    guess = certify_release(points, Guarantee.guess(at_most=0.6))
    wanted = [ndtr(1.2 * ndtri(0.6)), ndtr(3 * ndtri(0.6))]
    assert costs_if_off(guess, [0.1, 1.0]) == pytest.approx(wanted, rel=1e-3)


def test_what_no_coupling_bounds_has_no_cost_of_being_off(certificate, gaussian):
    assert costs_if_off(certificate, [0.1]) == costs_if_off(gaussian, [0.1]) == ()


def test_samples_without_a_range_say_nothing_about_guessing():
    sides = {"low": draws(0.0), "middle": draws(0.5), "high": draws(1.0)}
    scenario = worlds(**sides, query=summary(mean=["pay", "age"]))
    target = Guarantee.joint(epsilon=1.0, delta=0.2)
    held = certify_release(scenario, target.along(PROFILE), failure_probability=0.1)
    low, own = sweep_points(held, [0.5, 1.0])
    assert own.noise_std == held.noise_std < low.noise_std
    assert own.unsliced_epsilon is None
    assert own.total_variation == stated_variation(held) == 1.0
    assert slice_profile(held) is None
    rows = pair_costs(held)
    assert {row.pair for row in rows} == {("low", "middle"), ("low", "high"), ("middle", "high")}
    for row in rows:
        assert row.sliced_cost is row.unsliced_cost is None
        assert row.largest_gap > 0


def test_nothing_without_evidence(certificate):
    bare = Certificate(statement=certificate.statement, evidence=None)
    for look in (pair_costs, slice_profile, lambda held: sweep_points(held, [1.0])):
        with pytest.raises(CertificateError, match="the evidence is not available"):
            look(bare)


def planned(accountant, target):
    return plan_training(
        differing=exactly(2), sampling=SAMPLING, clip_norm=1.0, n_steps=5, accountant=accountant,
        target=target,
    )  # fmt: skip


def with_noise(multipliers, sampling=SAMPLING):
    return plan_with_noise(
        differing=exactly(2), sampling=sampling, clip_norm=1.0, noise_multipliers=multipliers,
        accountant=WorstCase(), measure=Measure.renyi(order=8),
    )  # fmt: skip


@pytest.mark.parametrize("accountant", [WorstCase(), Amplified()], ids=lambda one: one.name)
def test_training_outlook_is_planning_again(accountant):
    low, held, high = (
        planned(accountant, Guarantee.unsliced(order=8, epsilon=epsilon))
        for epsilon in (0.5, 2.0, 4.0)
    )
    held = certify_training(held, data="digits")
    rows = what_if_training(held, [0.5, held.guarantee.epsilon, 4.0])
    assert rows[0].noise_multiplier == low.noise_multipliers[0]
    assert rows[2].noise_multiplier == high.noise_multipliers[0]
    assert rows[1].total_variation == pytest.approx(stated_variation(held), rel=1e-6)
    assert rows[0].total_variation < rows[1].total_variation < rows[2].total_variation < 1


def test_training_that_no_noise_makes_so_private_has_no_multiplier():
    held = planned(WorstCase(), Guarantee.unsliced(order=8, epsilon=2.0))
    beyond, within = what_if_training(certify_training(held, data="digits"), [1e-300, 1.0])
    assert beyond.noise_multiplier is None
    assert beyond.total_variation == 1.0
    assert within.noise_multiplier > held.noise_multipliers[0]
    assert within.total_variation < 1


@pytest.mark.soundness
def test_variation_of_a_run_in_which_all_records_are_drawn():
    """Worst case, every record in every step: two Gaussians 2 D sqrt(T) / z apart."""
    plan = with_noise(np.full(9, 20.0), Poisson(n_records=10, rate=1.0))
    exact = 2 * float(ndtr(2 * 2 * 3 / 20 / 2)) - 1
    assert exact <= stated_variation(certify_training(plan, data="d")) <= 1.3 * exact


def test_the_mean_square_of_an_average_over_batches_bounds_guesses():
    plan = planned(MeanSquare(), Guarantee.average_over_batches(order=8, epsilon=1.0))
    held = certify_training(plan, data="digits")
    exact = 2 * float(ndtr(math.sqrt(plan.difference.squared_distance(1.0)) / 2)) - 1
    assert stated_variation(held) == pytest.approx(exact, rel=1e-9)
    assert what_if_training(held, [1.0])[0].total_variation == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("target", [Guarantee.guess(at_most=0.6), Guarantee.information(bits=0.1)])
def test_outlook_of_right_guesses_and_bits(target):
    held = certify_training(planned(Amplified(), target), data="digits")
    low, high = what_if_training(held, [0.55 if target.bound > 0.5 else 0.05, 0.7])
    assert low.noise_multiplier > high.noise_multiplier
    assert low.total_variation < high.total_variation < 1


def test_several_runs_and_schedules_have_no_training_outlook():
    held = certify_training(with_noise([20.0, 30.0]), data="digits")
    assert what_if_training(held, [1.0]) == ()
    both = certify_training([with_noise([20.0, 30.0])] * 2, data="digits")
    assert what_if_training(both, [1.0]) == ()
    assert stated_variation(both) > stated_variation(held)
