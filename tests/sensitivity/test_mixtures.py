# SPDX-License-Identifier: Apache-2.0
"""Mixtures of Gaussians: no stated number is below the truth, which integration gives."""

import attrs
import numpy as np
import pyarrow as pa
import pytest
from scipy.optimize import linprog
from scipy.stats import multivariate_normal

from pufferslice import Guarantee, Scenario, certify_release, release, verify
from pufferslice.audit import audit_release
from pufferslice.certificate import Certificate
from pufferslice.claims.epsilon_delta import delta_curve
from pufferslice.errors import ScenarioError
from pufferslice.queries import summary
from pufferslice.scenario import FiniteDistribution, GaussianDistribution, GaussianMixture
from pufferslice.sensitivity.couplings import Recipe
from pufferslice.sensitivity.gaussian import GaussianPairs, coupled_components
from pufferslice.sensitivity.sensitivity import Full, full_sensitivity
from pufferslice.sensitivity.whitening import Covariance

ORDERS = [1.5, 2.0, 4.0]


def noise(std: float) -> Covariance:
    """Isotropic noise; Gaussian pairs look at its deviation only."""
    return Covariance(dim=1, std=std)


def random_mixture(rng, dim, n_components, spread=1.0):
    components = []
    for _ in range(n_components):
        root = rng.normal(size=(dim, dim)) * 0.4
        mean = rng.normal(size=dim) * spread
        components.append(GaussianDistribution(mean=mean, cov=root @ root.T + 0.3 * np.eye(dim)))
    return GaussianMixture.weighted(components, rng.dirichlet(np.ones(n_components) * 3))


def scenario_of(first, second, **options):
    dim = first.dim
    query = summary(mean=[f"x{k}" for k in range(dim)], **options)
    return Scenario.from_worlds({"a": first, "b": second}, query=query)


def full_of(first, second):
    return full_sensitivity(scenario_of(first, second), recipe=Recipe())


def density(mixture, points, noise_std):
    noise = noise_std**2 * np.eye(mixture.dim)
    weights = mixture.counts / mixture.counts.sum()
    return sum(
        w * multivariate_normal(c.mean, c.cov + noise).pdf(points)
        for w, c in zip(weights, mixture.components, strict=True)
    )


def densities(first, second, noise_std):
    """Both on a grid that holds all of their mass, and the size of a cell."""
    dim, parts = first.dim, (*first.components, *second.components)
    std = max(np.sqrt(np.linalg.norm(part.cov, 2) + noise_std**2) for part in parts)
    n, width = 20_001 if dim == 1 else 301, max(np.abs(p.mean).max() for p in parts) + 9 * std
    axis = np.linspace(-width, width, n)
    points = axis[:, None] if dim == 1 else np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    p, q = (density(mixture, points, noise_std) for mixture in (first, second))
    cell = (axis[1] - axis[0]) ** dim
    assert p.sum() * cell == pytest.approx(1, abs=1e-9)
    return p, q, cell


def renyi(order, p, q, cell):
    inside = (p > 0) & (q > 0)
    moment = (p[inside] ** order * q[inside] ** (1 - order)).sum() * cell
    return float(np.log(moment) / (order - 1))


@pytest.mark.soundness
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_no_stated_number_is_below_the_truth(dim, seed):
    rng = np.random.default_rng(seed)
    first, second = random_mixture(rng, dim, 3), random_mixture(rng, dim, 1 + seed)
    full, noise_std = full_of(first, second), 0.8
    p, q, cell = densities(first, second, noise_std)
    for order in ORDERS:
        stated = float(full.differences.divergences(order, noise(noise_std))[0])
        truth = max(renyi(order, p, q, cell), renyi(order, q, p, cell))
        assert truth <= stated
    for epsilon in (0.0, 0.5, 1.0):
        truth = max(
            np.maximum(p - np.exp(epsilon) * q, 0).sum(),
            np.maximum(q - np.exp(epsilon) * p, 0).sum(),
        )
        assert truth * cell <= delta_curve(full, noise_std)(epsilon)
    assert np.abs(p - q).sum() * cell / 2 <= full.variation(noise_std)


def test_near_mixtures_are_nearly_exact():
    """All components shift alike and lie far apart: the cost is that of one component."""
    parts = [GaussianDistribution(mean=[m], cov=[[1.0]]) for m in (-20.0, 0.0, 20.0)]
    moved = [GaussianDistribution(mean=part.mean + 0.5, cov=part.cov) for part in parts]
    weights = [0.2, 0.5, 0.3]
    full = full_of(
        GaussianMixture.weighted(parts, weights),
        GaussianMixture.weighted(moved[::-1], weights[::-1]),
    )
    # 4 * 0.25 / (2 * (1 + 1)), the divergence of N(0.5, 2) from N(0, 2).
    assert full.differences.divergences(4.0, noise(1.0)) == pytest.approx([0.25], rel=1e-9)


def test_known_answer_of_two_pieces():
    """Half of the mass stays, half moves by 1: ln((1 + e^(a(a-1)/(2(s^2+1)))) / 2) / (a - 1)."""
    point, other = (GaussianDistribution(mean=[m], cov=[[1.0]]) for m in (0.0, 1.0))
    stay = GaussianMixture.weighted([point, GaussianDistribution(mean=[9], cov=[[1]])], [0.5, 0.5])
    move = GaussianMixture.weighted([GaussianDistribution(mean=[9], cov=[[1]]), other], [0.5, 0.5])
    full = full_of(stay, move)
    expected = np.log((1 + np.exp(4 * 3 / (2 * 4))) / 2) / 3
    assert full.differences.divergences(4.0, noise(np.sqrt(3.0))) == pytest.approx(
        [expected], rel=1e-9
    )
    slices = full.differences.slice_costs(np.array([[1.0]]), 4.0, noise(np.sqrt(3.0)), "exact")
    assert slices == pytest.approx(np.array([[expected]]), rel=1e-9)


def test_the_coupling_is_exact_and_the_cheapest(rng):
    first, second = random_mixture(rng, 2, 4), random_mixture(rng, 2, 5)
    pieces = coupled_components(first, second, np.ones(2))
    for side, mixture in enumerate((first, second)):
        for component, count in zip(mixture.components, mixture.counts, strict=True):
            assert sum(piece[2] for piece in pieces if piece[side] == component) == count

    def cost(one, other):
        root = np.linalg.cholesky(one.cov)
        cross = np.sqrt(np.linalg.eigvalsh(root.T @ other.cov @ root)).sum()
        apart = one.mean - other.mean
        return apart @ apart + np.trace(one.cov) + np.trace(other.cov) - 2 * cross

    costs = [[cost(one, other) for other in second.components] for one in first.components]
    sums = np.zeros((9, 20))
    for k in range(20):
        sums[k // 5, k] = sums[4 + k % 5, k] = 1
    masses = np.concatenate([first.counts, second.counts]) / 2**30
    best = linprog(np.ravel(costs), A_eq=sums, b_eq=masses).fun
    own = sum(count / 2**30 * cost(one, other) for one, other, count in pieces)
    assert own == pytest.approx(best, rel=1e-6)


def test_equal_mixtures_need_no_noise(rng):
    mixture = random_mixture(rng, 2, 3)
    turned = GaussianMixture(components=mixture.components[::-1], counts=mixture.counts[::-1])
    full = full_of(mixture, turned)
    assert full.are_equal
    assert full.differences.divergences(4.0, noise(1.0)).tolist() == [0.0]


def test_large_and_infinite_costs():
    far = GaussianPairs(
        means=np.array([[[0.0], [100.0]], [[0.0], [1.0]]]),
        covs=np.ones((2, 2, 1, 1)),
        owners=np.array([0, 0]),
        counts=np.array([2**28, 3 * 2**28]),
    )
    # e^(3 D) of the far piece alone, at a mass of a quarter.
    assert far.divergences(4.0, noise(1.0)) == pytest.approx(
        [4 / 4 * 1e4 - np.log(4) / 3], rel=1e-9
    )
    wide = attrs.evolve(far, covs=np.array([[[[9.0]], [[0.0]]], [[[1.0]], [[1.0]]]]))
    assert wide.divergences(4.0, noise(1.0)).tolist() == [np.inf]


class TestCertificates:
    @pytest.mark.parametrize(
        "claim",
        [
            Guarantee.unsliced(order=4, epsilon=1.0),
            Guarantee.epsilon_delta(1.0, 1e-5),
            Guarantee.guess(at_most=0.6),
        ],
    )
    def test_every_claim_certifies_verifies_and_survives_a_file(self, claim, tmp_path, rng):
        scenario = scenario_of(random_mixture(rng, 2, 1), random_mixture(rng, 2, 2))
        certificate = certify_release(scenario, claim)
        assert certificate.statement.scenario.priors[0].origin == (
            "declared mixtures of Gaussian distributions"
        )
        assert certificate.statement.unsliced.source.endswith("Gaussian components, coupled")
        certificate.save(tmp_path / "certificate.json")
        again = Certificate.load(tmp_path / "certificate.json")
        assert verify(again, scenario=scenario).holds
        assert isinstance(again.evidence.full, Full)
        table = pa.table({"x0": [0.5, 1.0], "x1": [0.0, 2.0]})
        released = release(scenario, table, again, ledger=tmp_path / "ledger")
        assert len(released.values) == 2

    def test_the_truth_is_within_the_claim(self, rng):
        first, second = random_mixture(rng, 2, 2), random_mixture(rng, 2, 3)
        certificate = certify_release(
            scenario_of(first, second),
            Guarantee.unsliced(order=4, epsilon=1.0),
            shape="isotropic",
        )
        p, q, cell = densities(first, second, certificate.noise_std)
        assert max(renyi(4.0, p, q, cell), renyi(4.0, q, p, cell)) <= 1.0

    def test_an_audit_finds_nothing_wrong(self, rng):
        scenario = scenario_of(random_mixture(rng, 2, 2), random_mixture(rng, 2, 2))
        certificate = certify_release(scenario, Guarantee.unsliced(order=4, epsilon=1.0))
        audit = audit_release(
            scenario, None, certificate, n_outputs=20_000, confidence=0.99, seed=1
        )
        assert not audit.refuted

    def test_a_gaussian_beside_a_mixture_is_one_of_one_component(self, rng):
        mixture = random_mixture(rng, 1, 2)
        gaussian = GaussianDistribution(mean=[0.0], cov=[[1.0]])
        scenario = scenario_of(mixture, gaussian)
        assert isinstance(scenario.priors[0].declared["b"], GaussianMixture)
        with pytest.raises(ScenarioError, match="one kind"):
            scenario_of(mixture, FiniteDistribution.uniform([[0.0]]))


@pytest.mark.soundness
def test_a_mixture_beside_a_gaussian_of_its_mean_and_spread_is_not_equal_to_it():
    """However the prior was put together: the mean and covariance of a mixture are not it."""
    apart = [GaussianDistribution(mean=[m], cov=[[0.01]]) for m in (-9.0, 9.0)]
    worlds = {
        "mixture": GaussianMixture.weighted(apart, [0.5, 0.5]),
        "one": GaussianDistribution(mean=[0.0], cov=[[81.01]]),
    }
    scenario = Scenario.from_worlds(worlds, query=summary(mean=["x"]), source="public_model")
    prior = attrs.evolve(scenario.priors[0], declared=worlds)
    by_hand = attrs.evolve(scenario, priors=(prior,))
    claim = Guarantee.unsliced(order=2, epsilon=1.0)
    noises = [certify_release(given, claim).noise_std for given in (scenario, by_hand)]
    assert noises[0] == pytest.approx(noises[1], rel=1e-9)
    assert noises[1] > 5
    listed = attrs.evolve(prior, declared=worlds | {"one": FiniteDistribution.uniform([[0.0]])})
    with pytest.raises(ScenarioError, match="compared"):
        certify_release(attrs.evolve(scenario, priors=(listed,)), claim)
