# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""Claims about the whole output: three targets, shapes of noise, and the truth as an oracle."""

import math
from operator import setitem

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import logsumexp
from tests.certificate.conftest import bell, worlds
from tests.json_edits import edited, statement_of

from pufferslice import (
    Bootstrap,
    Certificate,
    FiniteDistribution,
    FiniteProfile,
    Guarantee,
    SampledDistribution,
    Scenario,
    certify_release,
    release,
    spent,
    verify,
)
from pufferslice._core.sampler import SeededTestNoise
from pufferslice.certificate.issue import spent_in_full
from pufferslice.claims.epsilon_delta import delta_curve
from pufferslice.claims.guess import released_guess
from pufferslice.claims.slices import Method
from pufferslice.errors import (
    ArgumentError,
    CalibrationError,
    ReleaseError,
    ScenarioError,
)
from pufferslice.queries import Box, summary
from pufferslice.sensitivity.couplings import Recipe
from pufferslice.sensitivity.sensitivity import full_sensitivity
from pufferslice.sensitivity.whitening import Shape

TARGETS = (
    Guarantee.unsliced(order=4, epsilon=1.0),
    Guarantee.epsilon_delta(1.0, 1e-5),
    Guarantee.guess(at_most=0.6),
)
SLICED = Guarantee.joint(order=4, epsilon=1.0, profile=FiniteProfile.axes(dim=2))
QUERY = summary(mean=["a", "b"], scales={"a": 1.0, "b": 10.0})


def points():
    """Two coordinates that the secret determines."""
    return worlds(x=[[0.0, 0.0]], y=[[3.0, 1.0]], z=[[2.0, 20.0]], query=QUERY)


def draws(n=40, query=QUERY, kind=FiniteDistribution.uniform):
    rng = np.random.default_rng(5)
    shape = np.array([[1.0, 0.0], [5.0, 4.0]])
    first, second = (rng.normal(size=(size, 2)) @ shape.T for size in (n, n + 7))
    return worlds(x=kind(first), y=kind(second + np.array([1.0, 0.0])), query=query)


def gaussians():
    cov = np.array([[0.25, 0.5], [0.5, 9.0]])
    return worlds(x=bell([1.0, 2.0], cov), y=bell([2.0, 7.0], cov * 1.25), query=QUERY)


def sampled():
    query = QUERY.with_range(Box([-9, -90], [9, 90]))
    return draws(300, query, lambda rows: SampledDistribution(outputs=np.clip(rows, -8, 8)))


SCENARIOS = {"points": points, "draws": draws, "gaussians": gaussians, "sampled": sampled}


def total(certificate):
    """Sum of the noise variances in scaled coordinates."""
    stds = np.array(certificate.statement.noise.std_by_coordinate)
    return float(((stds / QUERY.scales) ** 2).sum())


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_every_target_with_every_shape(name, target, tmp_path):
    scenario = SCENARIOS[name]()
    totals = {}
    for shape in ("isotropic", "diagonal", "fitted", [[1.0, 3.0], [3.0, 100.0]]):
        certificate = certify_release(scenario, target, shape=shape)
        kind = shape if isinstance(shape, str) else "given"
        assert certificate.statement.noise.shape.kind == kind
        assert certificate.guarantee == target
        assert target.bound * (1 - 1e-6) <= certificate.spent <= target.bound
        assert certificate.statement.profile is certificate.statement.method is None
        certificate.save(tmp_path / f"{kind}.json")
        again = Certificate.load(tmp_path / f"{kind}.json")
        assert verify(again).holds
        assert verify(again, scenario=scenario).holds
        totals[kind] = total(certificate)
    assert totals["diagonal"] <= totals["isotropic"] * 1.001
    if name != "sampled":
        assert totals["fitted"] <= totals["diagonal"] * 1.02


def test_one_difference_costs_its_square():
    # With one difference d the best noise has trace |d|^2 / c; isotropic noise dim times that.
    scenario = worlds(x=[[0.0, 0.0]], y=[[3.0, 40.0]], query=QUERY)
    target = Guarantee.unsliced(order=4, epsilon=1.0)
    assert total(certify_release(scenario, target, shape="isotropic")) == pytest.approx(100.0)
    shaped = certify_release(scenario, target, guard=1e-3)
    assert total(shaped) == pytest.approx(50.0, rel=1e-3)
    assert shaped.statement.noise.shape.gap <= 1e-3


def test_the_guard_hides_every_small_shift():
    certificate = certify_release(points(), TARGETS[0], guard=0.7)
    stated = certificate.statement.noise.shape.guard
    assert stated >= 0.7 * (1 - 1e-6)
    covariance = certificate.shape.covariance * certificate.noise_std**2
    angles = np.linspace(0, np.pi, 50)
    shifts = stated * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    costs = 4 / 2 * np.einsum("id,de,ie->i", shifts, np.linalg.inv(covariance), shifts)
    assert costs.max() <= 1.0
    isotropic = certify_release(points(), TARGETS[0], shape="isotropic")
    guard = isotropic.statement.noise.shape.guard
    assert 4 / 2 * (guard / isotropic.noise_std) ** 2 == pytest.approx(1.0, rel=1e-6)


@pytest.mark.soundness
@pytest.mark.parametrize("epsilon", [1.0, 1e-24])
@pytest.mark.parametrize("shape", ["isotropic", "fitted"])
def test_the_guard_leaves_room_for_the_grid(epsilon, shape):
    """Rounding two points to the grid can add sqrt(2) / 2^44 of the noise to their distance."""
    target = Guarantee.unsliced(order=4, epsilon=epsilon)
    certificate = certify_release(points(), target, shape=shape, deltas=())
    guard, stretch = certificate.statement.noise.shape.guard, 1.0
    if certificate.shape is not None:
        stretch = np.linalg.norm(certificate.shape.whitening, 2)
    longest = guard * stretch / certificate.noise_std + math.sqrt(2) / 2**44
    assert 0.999 * epsilon < 4 / 2 * longest**2 <= epsilon


def test_weights_move_noise_away_from_what_matters():
    plain = certify_release(points(), TARGETS[0]).statement.noise.std_by_coordinate
    weighted = certify_release(points(), TARGETS[0], weights={"mean(b)": 100.0})
    stds = weighted.statement.noise.std_by_coordinate
    assert stds[1] < plain[1]
    assert stds[0] > plain[0]


@pytest.mark.parametrize("weights", [{"mean(b)": 100.0}, {"mean(a)": 1e-3}])
def test_weights_keep_the_guard(weights):
    certificate = certify_release(points(), TARGETS[0], weights=weights, guard=2.0)
    stated = certificate.statement.noise.shape.guard
    assert stated >= 0.95 * 2.0


class TestAccuracy:
    def test_what_needs_none_is_not_drowned(self):
        most = Guarantee.unsliced(order=4, epsilon=100.0)
        certificate = certify_release(points(), most, accuracy={"mean(a)": 2.0})
        plain = certify_release(points(), certificate.guarantee)
        stds, others = (c.statement.noise.std_by_coordinate[1] for c in (certificate, plain))
        assert stds < 10 * others

    def test_the_least_epsilon_that_reaches_it(self):
        most = Guarantee.unsliced(order=4, epsilon=100.0)
        certificate = certify_release(points(), most, accuracy={"mean(a)": 2.0, "mean(b)": 40.0})
        stds = np.array(certificate.statement.noise.std_by_coordinate)
        assert (1.959963984540054 * stds <= np.array([2.0, 40.0]) * (1 + 1e-9)).all()
        assert certificate.guarantee.epsilon == pytest.approx(certificate.spent)
        # Half the half-widths cost four times as much.
        finer = certify_release(points(), most, accuracy={"mean(a)": 1.0, "mean(b)": 20.0})
        assert finer.spent == pytest.approx(4 * certificate.spent, rel=0.02)
        assert verify(finer, scenario=points()).holds

    def test_a_covariance_of_ones_own_is_scaled_to_it(self):
        most = Guarantee.unsliced(order=4, epsilon=100.0)
        certificate = certify_release(
            points(), most, shape=np.diag([4.0, 1.0]), accuracy={"mean(a)": 2.0}
        )
        stds = certificate.statement.noise.std_by_coordinate
        assert stds == pytest.approx([2 / 1.959963984540054, 10 / 1.959963984540054])

    def test_an_accuracy_that_costs_nothing_claims_an_epsilon_all_the_same(self):
        most = Guarantee.epsilon_delta(1.0, 0.5)
        certificate = certify_release(points(), most, accuracy={"mean(a)": 1e4})
        assert certificate.spent == 0
        assert certificate.guarantee.epsilon == pytest.approx(1e-3, rel=0.1)
        assert verify(certificate, scenario=points()).holds

    def test_it_says_what_it_costs_if_that_is_too_much(self):
        with pytest.raises(CalibrationError, match="costs"):
            certify_release(points(), TARGETS[0], accuracy={"mean(a)": 0.01})

    @pytest.mark.parametrize("accuracy", [{}, {"mean(c)": 1.0}, {"mean(a)": -1.0}, 3.0])
    def test_wrong_accuracies(self, accuracy):
        with pytest.raises(ArgumentError, match="accuracy"):
            certify_release(points(), TARGETS[0], accuracy=accuracy)

    def test_not_with_a_noise_of_ones_own(self):
        with pytest.raises(ArgumentError, match="accuracy"):
            certify_release(points(), TARGETS[0], accuracy={"mean(a)": 1.0}, noise_std=3.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shape": "round"}, "shape"),
        ({"shape": np.eye(3)}, "coordinates"),
        ({"shape": np.eye(2), "guard": 1.0}, "guard"),
        ({"shape": "isotropic", "weights": [1.0, 2.0]}, "weights"),
        ({"guard": 0.0}, "guard"),
        ({"weights": {"mean(c)": 2.0}}, "weights"),
        ({"weights": [1.0, -1.0]}, "weights"),
        ({"effort": "huge"}, "effort"),
        ({"failure_probability": 0.1}, "failure_probability"),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(ArgumentError, match=words):
        certify_release(points(), TARGETS[0], **options)


@pytest.mark.parametrize(
    "options",
    [{"shape": "fitted"}, {"shape": np.eye(2)}, {"guard": 1.0}, {"weights": [1.0, 1.0]}],
)
def test_a_sliced_claim_has_no_shape(options):
    with pytest.raises(ArgumentError, match="vanish"):
        certify_release(points(), SLICED, **options)


class TestSamples:
    def test_without_a_range_nothing_does(self):
        scenario = draws(50, QUERY, lambda rows: SampledDistribution(outputs=rows))
        for target in TARGETS:
            with pytest.raises(ScenarioError, match="range"):
                certify_release(scenario, target)

    @pytest.mark.parametrize("with_range", [True, False])
    def test_one_dimension_has_its_own_table(self, with_range, tmp_path):
        rng = np.random.default_rng(0)
        query = summary(mean=["a"])
        if with_range:
            query = query.with_range(Box([-50], [50]))
        x, y = (
            SampledDistribution(outputs=rng.normal(size=(3000, 1)) + shift) for shift in (0.0, 1.0)
        )
        scenario = worlds(x=x, y=y, query=query)
        guess = certify_release(scenario, Guarantee.guess(at_most=0.7), failure_probability=0.05)
        assert guess.statement.failure_probability == 0.05
        # Noise for the range alone would be above 40.
        assert 0.5 < guess.noise_std < 10
        guess.save(tmp_path / "c.json")
        assert verify(Certificate.load(tmp_path / "c.json"), scenario=scenario).holds
        if with_range:
            renyi = certify_release(scenario, TARGETS[0], failure_probability=0.05)
            assert renyi.unsliced_epsilon <= 1.0
        else:
            with pytest.raises(ScenarioError, match="range"):
                certify_release(scenario, TARGETS[0], failure_probability=0.05)


@pytest.fixture(scope="module")
def certificate():
    return certify_release(points(), TARGETS[0])


class TestEdited:
    """A statement or evidence that was changed is refuted, and releases nothing."""

    @pytest.mark.parametrize(
        ("path", "factor"),
        [
            (("noise", "std"), 0.99),
            (("noise", "shape", "guard"), 1.01),
            (("noise", "std_by_coordinate", 0), 0.9),
            (("unsliced", "guess"), 0.99),
            (("spent",), 0.99),
            (("noise", "shape", "whitening", 1, 0), 1.5),
            (("noise", "shape", "whitening", 0, 0), 1 + 1e-12),
        ],
    )
    def test_numbers(self, certificate, path, factor, tmp_path):
        values = edited(
            certificate.statement.to_json(),
            path,
            lambda at, key: setitem(at, key, at[key] * factor),
        )
        forged = Certificate(statement=statement_of(values), evidence=certificate.evidence)
        assert not verify(forged).holds
        assert not verify(forged, scenario=points()).holds
        with pytest.raises(ReleaseError):
            release(
                points(), pa.table({"a": [0.0], "b": [0.0]}), forged, ledger=tmp_path / "ledger"
            )

    def test_slices_are_not_there_to_ask(self, certificate):
        with pytest.raises(ArgumentError, match="slices"):
            spent(certificate, notion="joint")

    def test_no_method_goes_with_it(self, certificate):
        method = Method(rule="tight", envelope="transport")
        with pytest.raises(ArgumentError, match="method"):
            certify_release(points(), TARGETS[2], method=method)
        sliced = certify_release(points(), SLICED).evidence
        with pytest.raises(ArgumentError, match="slices"):
            TARGETS[2].slice_cost(sliced.slices, "joint", 1.0, method)
        with pytest.raises(ArgumentError, match="name them with"):
            certify_release(points(), Guarantee.joint(order=4, epsilon=1.0))

    def test_spent_by_another_noise_or_order(self, certificate):
        assert spent(certificate).epsilon == pytest.approx(1.0)
        assert spent(certificate, noise_std=2 * certificate.noise_std).epsilon == pytest.approx(
            0.25, rel=1e-6
        )
        assert spent(certificate, order=8).epsilon == pytest.approx(2.0, rel=1e-6)
        assert spent_in_full(certificate).guess == certificate.guess

    def test_spent_by_a_claim_without_an_order(self):
        certificate = certify_release(points(), TARGETS[2])
        assert spent(certificate).at_most == pytest.approx(0.6)
        with pytest.raises(ArgumentError, match="order"):
            spent(certificate, order=3)
        with pytest.raises(ArgumentError, match="slices"):
            spent(certificate, notion="joint")
        assert spent(certificate, notion="guess") == spent(certificate)
        with pytest.raises(CalibrationError, match="no bound like"):
            spent(certificate, noise_std=1e-9)


def test_released_noise_has_the_stated_covariance(tmp_path):
    scenario, rows = points(), pa.table({"a": [3.0], "b": [1.0]})
    certificate = certify_release(scenario, TARGETS[0], generator=SeededTestNoise(seed=0))
    errors = []
    for seed in range(150):
        noise = SeededTestNoise(seed=seed)
        published = release(
            scenario, rows, certificate, ledger=tmp_path / f"{seed}.ledger", generator=noise
        )
        errors.append((published.values - [3.0, 1.0]) / QUERY.scales)
    whitened = np.array(errors) @ certificate.shape.whitening.T / certificate.noise_std
    # Sums of squares of 300 standard normal numbers, and of 150 products: five standard deviations.
    assert abs((whitened**2).sum() - 300) < 5 * math.sqrt(600)
    assert abs((whitened[:, 0] * whitened[:, 1]).sum()) < 5 * math.sqrt(150)
    assert abs(whitened.mean(axis=0)).max() < 5 / math.sqrt(150)
    stds = np.array(errors).std(axis=0)
    stated = np.array(certificate.statement.noise.std_by_coordinate) / QUERY.scales
    assert np.allclose(stds, stated, rtol=0.3)


def test_a_bootstrap_value_is_no_atom_and_is_never_refused(tmp_path):
    rng = np.random.default_rng(1)
    table = pa.table(
        {"g": ["x"] * 30 + ["y"] * 30, "a": rng.normal(size=60), "b": rng.normal(size=60) * 9}
    )
    scenario = Scenario.from_bootstrap(
        table, secret="g", query=QUERY, bootstrap=Bootstrap(n_replicates=50, seed=0)
    )
    certificate = certify_release(scenario, TARGETS[0])
    rows = pa.table({"g": ["x"] * 30, "a": [1e300] * 30, "b": [-1e290] * 30})
    published = release(scenario, rows, certificate, ledger=tmp_path / "ledger")
    assert np.isfinite(published.values).all()


@pytest.mark.parametrize("seed", range(80))
def test_no_stated_number_is_below_the_truth(seed):
    """Two-dimensional integration of the noisy densities, for random pairs and shapes."""
    rng = np.random.default_rng(seed)
    shape = Shape.of_covariance(np.eye(2) + rng.uniform(0, 2) * np.outer(*[rng.normal(size=2)] * 2))
    size, shift = rng.uniform(0.2, 2), rng.normal(size=2)
    sides = {
        name: FiniteDistribution(
            outputs=rng.normal(size=(n, 2)) * size + move, counts=rng.integers(1, 4, n)
        )
        for name, n, move in zip("xy", rng.integers(1, 6, 2), (0.0, shift), strict=True)
    }
    scenario = worlds(**sides)
    std, order, epsilon = rng.uniform(0.6, 2), rng.uniform(1.2, 5), rng.uniform(0.0, 1.5)
    full = full_sensitivity(scenario, recipe=Recipe(), shape=shape)
    # Where the noise is isotropic: both divergences are those of the original coordinates.
    atoms = [world.outputs @ shape.whitening.T for world in sides.values()]
    step = std / 8
    axes = [
        np.arange(low - 14 * std, high + 14 * std, step)
        for low, high in zip(
            np.vstack(atoms).min(axis=0), np.vstack(atoms).max(axis=0), strict=True
        )
    ]
    grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 1, 2)
    p, q = (
        logsumexp(
            -((grid - rows) ** 2).sum(axis=2) / (2 * std**2),
            b=world.counts / world.counts.sum() / (2 * np.pi * std**2) * step**2,
            axis=1,
        )
        for rows, world in zip(atoms, sides.values(), strict=True)
    )
    for a, b in ((p, q), (q, p)):
        divergence = logsumexp(order * a + (1 - order) * b) / (order - 1)
        assert divergence <= full.divergence(order, std) + 1e-6
        delta = np.maximum(np.exp(a) - math.exp(epsilon) * np.exp(b), 0).sum()
        assert delta <= delta_curve(full, std)(epsilon) + 1e-3  # of the kink
    variation = np.abs(np.exp(p) - np.exp(q)).sum() / 2
    assert (1 + variation) / 2 <= released_guess(full, std) + 1e-3


def test_atoms_that_whitening_brings_together_are_not_published():
    query = QUERY.with_range(Box([0, 0], [1e12, 1e12]))
    scenario = worlds(x=[[0.1, 0.1]], y=[[0.1 + 1e-9, 0.1]], query=query)
    with pytest.raises(CalibrationError, match="whitened"):
        certify_release(scenario, TARGETS[0])
    assert certify_release(scenario, TARGETS[0], shape="isotropic").noise_std > 0


def test_a_guard_that_needs_more_noise_than_the_claim_gets_it():
    certificate = certify_release(points(), TARGETS[0], guard=100.0)
    assert certificate.statement.noise.shape.guard >= 100.0
    assert certificate.spent < 0.1
    assert verify(certificate, scenario=points()).holds


@pytest.mark.parametrize("chosen", [{"noise_std": 3.0}, {"accuracy": {"mean(a)": 5.0}}])
def test_a_guard_does_not_change_a_noise_that_was_chosen(chosen):
    with pytest.raises(CalibrationError, match="guard"):
        certify_release(points(), Guarantee.unsliced(order=4, epsilon=100.0), guard=1e4, **chosen)


def test_priors_that_hide_the_secret_at_a_delta_need_no_epsilon():
    scenario = worlds(a=bell([0.0], [[1.0]]), b=bell([1e-6], [[1.0]]))
    certificate = certify_release(scenario, Guarantee.epsilon_delta(0.5, 1e-5))
    assert certificate.spent == 0  # the total variation, 4e-7, is less than delta
    assert certificate.noise_std > 0
    assert verify(certificate).holds
    assert "only the minimum" in str(certificate)
    assert spent(certificate) == Guarantee.epsilon_delta(0, 1e-5)


def test_a_claim_of_epsilon_zero_is_one_about_guesses():
    with pytest.raises(ArgumentError, match=r"guess\(at_most=\(1 \+ delta\) / 2\)"):
        certify_release(points(), Guarantee.epsilon_delta(0, 0.1))
    certificate = certify_release(points(), Guarantee.guess(at_most=0.55))
    std = certificate.noise_std
    assert delta_curve(certificate.evidence.full, std)(0.0) == pytest.approx(0.1, rel=1e-9)
