# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
import math

import attrs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests import oracles
from tests.certificate.conftest import CLOSED_FORM, WORST_GAP, bell
from tests.certificate.conftest import worlds as named

from pufferslice._core.sampler import SIGMA_INT, SeededTestNoise
from pufferslice.certificate import certify_release, spent, under_scenario, verify, what_if
from pufferslice.certificate.issue import spent_in_full
from pufferslice.claims import Guarantee
from pufferslice.claims import claim_of as claim_of_json
from pufferslice.claims.slices import Method
from pufferslice.errors import (
    ArgumentError,
    CalibrationError,
    PuffersliceError,
    ScenarioError,
)
from pufferslice.queries import Box, columns, summary
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile

LINE = FiniteProfile.axes(dim=1)
AXES = FiniteProfile.axes(dim=2)
TRANSPORT = Method(rule="tight", envelope="transport")
METHODS = [TRANSPORT, WORST_GAP, CLOSED_FORM]
NOTIONS = ["average", "joint", "unsliced"]


def claim_of(notion, order=4.0, epsilon=1.0):
    return claim_of_json({"notion": notion, "order": order, "epsilon": epsilon})


def worlds(*sides):
    return named(**{f"w{place}": side for place, side in enumerate(sides)})


def gaussians(*sides):
    return worlds(*(bell(*side) for side in sides))


def certified(scenario, claim, **options):
    """With isotropic noise, whatever the claim is about."""
    return certify_release(scenario, claim, shape="isotropic", **options)


def variance(scenario, profile, claim, method=None):
    return certified(scenario, claim.along(profile), method=method).noise_std ** 2


FAR_ATOM = worlds([[0.0], [0.0], [0.0], [10.0]], [[0.0]] * 4)
POINTS = worlds([[0.0, 0.0]], [[3.0, 4.0]])


@pytest.mark.parametrize(
    ("scenario", "profile", "claim", "method", "expected"),
    [
        (FAR_ATOM, LINE, claim_of("joint", 2), TRANSPORT, 48.4624005830654),
        (FAR_ATOM, LINE, claim_of("average", 2), TRANSPORT, 48.4624005830654),
        (FAR_ATOM, LINE, claim_of("joint", 2), WORST_GAP, 100.0),
        (FAR_ATOM, LINE, claim_of("unsliced", 2), None, 48.4624005830654),
        (POINTS, AXES, claim_of("average", 4, 2.0), CLOSED_FORM, 12.5),
        (POINTS, AXES, claim_of("average", 4, 2.0), TRANSPORT, 12.5),
        (POINTS, AXES, claim_of("joint", 4, 2.0), CLOSED_FORM, 16.0),
        (POINTS, AXES, claim_of("joint", 4, 2.0), WORST_GAP, 14.4581776618717),
        (POINTS, AXES, claim_of("unsliced", 4, 2.0), None, 25.0),
    ],
)
def test_known_answers(scenario, profile, claim, method, expected):
    assert variance(scenario, profile, claim, method) == pytest.approx(expected, rel=1e-9)


def test_known_answer_of_gaussians():
    scenario = gaussians(([1.0], [[1.0]]), ([0.0], [[2.25]]))
    certificate = certify_release(scenario, claim_of("joint").along(LINE))
    cost = spent(certificate, noise_std=2.0)
    assert cost.epsilon == pytest.approx(1.71947728452954, rel=1e-12)
    assert certificate.guarantee.method == Method(rule="tight", envelope="exact")


@pytest.mark.soundness
def test_gaussian_noise_is_enough_in_both_orders_of_the_pair():
    for distributions in [
        (([1.0], [[1.0]]), ([0.0], [[2.25]])),
        (([0.0], [[2.25]]), ([1.0], [[1.0]])),
    ]:
        certificate = certify_release(gaussians(*distributions), claim_of("average").along(LINE))
        noisy = [(mean[0], cov[0][0] + certificate.noise_std**2) for mean, cov in distributions]
        costs = [
            float(oracles.gaussian_divergence(4, one, two)) for one, two in (noisy, noisy[::-1])
        ]
        assert max(costs) <= 1.0
        assert max(costs) == pytest.approx(1.0, rel=1e-9)
        assert min(costs) < 0.5


def test_gaussians_have_one_method():
    scenario = gaussians(([0.0], [[1.0]]), ([3.0], [[1.0]]))
    for method in METHODS:
        with pytest.raises(ArgumentError, match="envelope must be one of exact"):
            certify_release(scenario, claim_of("joint").along(LINE), method=method)


def test_gaussians_whose_own_spread_is_enough_get_a_way_out():
    """At order 4 they are 0.02 apart without any noise."""
    scenario = gaussians(([0.0], [[1.0]]), ([0.1], [[1.0]]))
    for notion in NOTIONS:
        certificate = certify_release(scenario, claim_of(notion).along(LINE))
        assert 0 < certificate.noise_std < 1e-12
        assert certificate.spent == pytest.approx(0.02, rel=1e-9)
        assert verify(certificate, scenario=scenario).holds
        assert "only the minimum" in str(certificate)


class TestNoiseOfOnesOwn:
    def test_it_is_certified_at_its_own_cost(self, records, profile):
        smallest = certify_release(records, claim_of("joint").along(profile))
        noise_std = 2 * smallest.noise_std
        own = certify_release(records, claim_of("joint").along(profile), noise_std=noise_std)
        assert own.noise_std == noise_std
        assert own.spent == spent(smallest, noise_std=noise_std).epsilon < 1
        assert own.unsliced_epsilon < smallest.unsliced_epsilon
        assert "chosen by the data holder" in str(own)
        assert verify(own, scenario=records).holds
        assert smallest.statement.noise.calibrated
        assert not own.statement.noise.calibrated

    @pytest.mark.parametrize("notion", NOTIONS)
    def test_too_little_is_refused_with_its_cost(self, records, profile, notion):
        smallest = certify_release(records, claim_of(notion).along(profile)).noise_std
        with pytest.raises(CalibrationError, match=r"noise_std .* costs"):
            certify_release(records, claim_of(notion).along(profile), noise_std=smallest * 0.999)

    def test_noise_whose_square_is_no_float_is_no_question(self):
        scenario = gaussians(([0.0], [[1.0]]), ([1.0], [[1.0]]))
        certificate = certify_release(scenario, Guarantee.unsliced(order=4, epsilon=1.0))
        assert 0 < spent(certificate, noise_std=1e149).epsilon < 1e-200
        with pytest.raises(ArgumentError, match="noise_std"):
            spent(certificate, noise_std=1e160)

    def test_equal_distributions_may_have_noise(self, profile):
        alike = gaussians(([0.0, 1.0], np.eye(2)), ([0.0, 1.0], np.eye(2)))
        certificate = certify_release(alike, claim_of("joint").along(profile), noise_std=0.5)
        assert certificate.noise_std == 0.5
        assert certificate.spent == 0
        assert verify(certificate, scenario=alike).holds


def test_average_needs_least_and_unsliced_most(records, gaussian, profile):
    for scenario in (records, gaussian):
        stds = [certified(scenario, claim_of(n).along(profile)).noise_std for n in NOTIONS]
        assert 0 < stds[0] < stds[1] < stds[2]


def test_tight_never_needs_more_than_the_closed_form(records, groups, profile):
    for scenario in (records, groups):
        for notion in ("average", "joint"):
            stds = [
                certify_release(scenario, claim_of(notion).along(profile), method=method).noise_std
                for method in METHODS
            ]
            assert stds[0] <= stds[1] * (1 + 1e-9)
            assert stds[1] <= stds[2] * (1 + 1e-9)


@pytest.mark.soundness
@pytest.mark.parametrize("method", [TRANSPORT, WORST_GAP])
@pytest.mark.parametrize("notion", ["average", "joint"])
def test_noise_is_enough_by_exact_arithmetic_and_not_much_more(rng, notion, method):
    """From a table to the noise; the oracle sorts fractions."""
    table = pa.table(
        {"s": ["a"] * 9 + ["b"] * 7 + ["c"] * 12, "x": rng.gamma(2, size=28), "y": np.arange(28.0)}
    )
    scenario = Scenario.from_records(table, secret="s", query=columns(["x", "y"]))
    profile = FiniteProfile.uniform(dim=2, n_directions=5, seed=3)
    claim = claim_of(notion, 3.0, 0.7)
    std = certify_release(scenario, claim.along(profile), method=method).noise_std
    x, y = (table[name].to_numpy() for name in "xy")
    outputs = np.column_stack([x, y])
    distributions = [
        FiniteDistribution.uniform(outputs[part]) for part in np.split(np.arange(28), [9, 16])
    ]
    gaps = oracles.true_gap_distributions(
        distributions, [(0, 1), (0, 2), (1, 2)], profile.directions
    )
    cost = oracles.tight_cost(claim, gaps, profile, std, method.envelope)
    assert 0.98 * claim.epsilon < cost <= claim.epsilon
    assert oracles.tight_cost(claim, gaps, profile, std / 2, method.envelope) > 2


@pytest.mark.soundness
@pytest.mark.parametrize("notion", NOTIONS)
def test_noise_is_enough_by_integrating_the_densities(rng, notion):
    """Against the divergence itself, not a bound of it."""
    for _ in range(5):
        first, second = oracles.random_samples(rng, 2)
        claim = claim_of(notion, 2.0, 0.5)
        profile = FiniteProfile.uniform(dim=2, n_directions=4, seed=int(rng.integers(1000)))
        certificate = certify_release(worlds(first, second), claim.along(profile))
        std = certificate.noise_std
        if certificate.shape is not None:  # to where the noise is isotropic
            first, second = (one @ certificate.shape.whitening.T for one in (first, second))
        costs = []
        for p, q in ((first, second), (second, first)):
            if notion == "unsliced":
                costs.append(oracles.divergence_on_grid(2.0, p, q, std))
                continue
            lines = [(p @ u[:, None], q @ u[:, None]) for u in profile.directions]
            slices = [oracles.divergence_on_grid(2.0, a, b, std) for a, b in lines]
            costs.append(float(oracles.aggregated(notion, 2.0, slices, profile.weights)))
        assert max(costs) <= claim.epsilon


@pytest.mark.soundness
def test_point_masses_cost_all_of_epsilon_so_that_half_the_noise_would_not_do():
    for notion in NOTIONS:
        certificate = certify_release(POINTS, claim_of(notion).along(AXES))
        assert certificate.spent == pytest.approx(1.0, rel=1e-9)
        assert spent(certificate, noise_std=certificate.noise_std / 2).epsilon > 3.9


@pytest.mark.soundness
@pytest.mark.parametrize("exponent", [-52, -46, -40, -20])
@pytest.mark.parametrize("notion", ["average", "joint"])
def test_orders_next_to_one(notion, exponent):
    """Dividing by order - 1 multiplies every rounding error."""
    distributions = [
        FiniteDistribution.uniform([[1.0, 1.0], [2.0, 2.0], [3.0, 8.0]]),
        FiniteDistribution.uniform([[4.0, 2.0], [9.0, 5.0], [30.0, 5.0]]),
    ]
    profile = FiniteProfile.uniform(dim=2, n_directions=10, seed=1)
    gaps = oracles.true_gap_distributions(distributions, [(0, 1)], profile.directions)
    for epsilon in (1e-3, 1.0):
        claim = claim_of(notion, 1 + 2.0**exponent, epsilon)
        try:
            certificate = certify_release(worlds(*distributions), claim.along(profile), deltas=())
        except PuffersliceError:
            continue
        with oracles.HP.workdps(60):
            cost = oracles.tight_cost(claim, gaps, profile, certificate.noise_std, "transport")
        assert cost <= epsilon
        unsliced = certify_release(worlds(*distributions), claim.whole.along(profile))
        assert unsliced.noise_std > certificate.noise_std


@pytest.mark.soundness
@pytest.mark.parametrize("epsilon", [1e-3, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("notion", ["average", "joint"])
@pytest.mark.parametrize("n_directions", [3, 7])
def test_small_budgets(notion, epsilon, n_directions):
    """Weights and masses sum to 1 up to rounding, which a small budget can see."""
    profile = FiniteProfile.uniform(dim=2, n_directions=n_directions, seed=1)
    claim = claim_of(notion, 4.0, epsilon)
    distributions = list(POINTS.priors[0].distributions.values())
    gaps = oracles.true_gap_distributions(distributions, [(0, 1)], profile.directions)
    std = certify_release(POINTS, claim.along(profile), deltas=()).noise_std
    assert oracles.tight_cost(claim, gaps, profile, std, "transport") <= oracles.exact(epsilon)


@pytest.mark.soundness
@pytest.mark.parametrize("epsilon", [1e-2, 1e-6, 1e-10])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_small_budgets_of_gaussians(shift, epsilon):
    distributions = ([0.0], [[1.0]]), ([shift], [[3.0]])
    certificate = certify_release(
        gaussians(*distributions), claim_of("joint", 4.0, epsilon).along(LINE)
    )
    std = oracles.exact(certificate.noise_std)
    noisy = [(mean[0], oracles.exact(cov[0][0]) + std**2) for mean, cov in distributions]
    cost = max(oracles.gaussian_divergence(4, *pair) for pair in (noisy, noisy[::-1]))
    assert cost <= oracles.exact(epsilon)
    assert cost <= oracles.exact(certificate.unsliced_epsilon)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 1e3, 1e5, 1e7])
@pytest.mark.parametrize("notion", NOTIONS)
def test_small_and_large_budgets_give_certificates_that_can_be_written(notion, epsilon, tmp_path):
    certificate = certify_release(POINTS, claim_of(notion, 4.0, epsilon).along(AXES))
    certificate.save(tmp_path / "c.json")
    assert verify(certificate).holds
    assert certificate.spent == pytest.approx(epsilon, rel=1e-9)


def test_a_direction_without_weight_may_be_as_wide_as_it_likes(tmp_path):
    profile = FiniteProfile(directions=np.eye(2), weights=[1.0, 0.0])
    scenario = worlds([[0.0, 0.0]], [[1.0, 20.0]])
    for notion in ("average", "joint"):
        certificate = certify_release(scenario, claim_of(notion).along(profile))
        certificate.save(tmp_path / f"{notion}.json")
        assert certificate.noise_std**2 == pytest.approx(2.0, rel=1e-9)


def test_equal_distributions_need_no_noise_and_the_statement_says_so(certificates):
    certificate = certificates["equal"]
    assert certificate.noise_std == 0
    assert certificate.statement.distributions_are_equal is True
    assert certificate.spent == 0
    assert certificate.unsliced_epsilon == 0
    assert certificate.statement.unsliced.source == "equal distributions"
    assert "distributions-equal" in certificate.statement.limits
    assert certificate.statement.noise.implementation_delta == 0
    with pytest.raises(CalibrationError, match="the distributions are equal"):
        spent(certificate)


def test_distributions_that_are_equal_up_to_rounding_are_not_equal():
    scenario = worlds([[1.0]], [[math.nextafter(1.0, 2)]])
    certificate = certify_release(scenario, claim_of("joint").along(LINE))
    assert certificate.noise_std > 0
    assert certificate.statement.distributions_are_equal is False


def test_a_profile_of_another_dimension():
    with pytest.raises(ArgumentError, match=r"dimension 2, the query has 1; use .*dim=1"):
        certify_release(FAR_ATOM, claim_of("joint").along(AXES))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(({"noise_std": std}, "noise_std") for std in (0.0, -1.0, math.nan, math.inf, 1e160)),
        *(({"deltas": [1e-5, x]}, "delta must lie") for x in (0.0, 1.0, -1.0, math.nan, "x")),
        ({"deltas": 1e-5}, "deltas must be several numbers"),
        ({"method": Method(rule="tight", envelope="exact")}, "one of transport, worst_gap"),
    ],
    ids=str,
)
def test_options_that_are_refused(options, words):
    with pytest.raises(ArgumentError, match=words):
        certify_release(POINTS, claim_of("joint").along(AXES), **options)


@pytest.mark.parametrize(
    "deltas", [(1e-5, 1e-5), np.array([1e-5], dtype=np.float32), np.array([1e-5, 1e-3]), ()]
)
def test_any_deltas_give_a_certificate_that_verifies(deltas, tmp_path):
    certificate = certify_release(POINTS, claim_of("joint").along(AXES), deltas=deltas)
    certificate.save(tmp_path / "c.json")
    assert verify(certificate).holds


def test_what_can_be_read_once_is_not_lost():
    certificate = certify_release(
        POINTS,
        claim_of("joint").along(AXES),
        deltas=iter([1e-5]),
    ).acknowledging(iter(["a" * 64]))
    assert certificate.statement.deltas == [1e-5]
    assert certificate.statement.earlier_releases == ["a" * 64]
    assert verify(certificate).holds


@pytest.mark.parametrize("digests", ["a" * 64, ["first"], [5]])
def test_earlier_releases_are_digests(digests):
    with pytest.raises(ArgumentError, match="earlier_releases"):
        certify_release(POINTS, claim_of("joint").along(AXES)).acknowledging(digests)


def test_an_unsliced_claim_takes_no_method_that_it_does_not_use():
    """Its noise comes from couplings of the whole output; another label would be untrue."""
    with pytest.raises(ArgumentError, match=r"method|rule|envelope"):
        certify_release(FAR_ATOM, claim_of("unsliced").along(LINE), method=CLOSED_FORM)


def test_what_the_statement_says(certificates, records, profile):
    statement = certificates["records"].statement
    noise = statement.noise
    assert statement.scenario.to_json() == records.description()
    assert statement.guarantee == Guarantee.joint(order=4, epsilon=1.0)
    assert noise.std_by_coordinate == [2 * noise.std, 5 * noise.std]
    assert noise.grid == noise.std / SIGMA_INT
    assert 0 < noise.implementation_delta < 1e-25
    assert statement.profile.to_json() == {
        "kind": "finite",
        "dim": 2,
        "n_directions": 6,
        "effective_slices": pytest.approx(6.0),
        "largest_weight": pytest.approx(1 / 6),
        "digest": profile.digest(),
    }
    assert statement.failure_probability == 0
    assert statement.sampling is None
    assert statement.unsliced.order == 4
    assert "couplings per pair" in statement.unsliced.source
    assert {view.delta for view in statement.views} == {1e-5}
    assert {view.scope for view in statement.views} == {"sliced joint", "unsliced"}
    assert "prior-is-released-data" in statement.limits


def test_gaussian_grids_are_charged_to_the_implementation(certificates):
    noise = certificates["gaussian"].statement.noise
    assert 2 * 2.0**-46.4 < noise.implementation_delta < 2 * 2.0**-45.9


def test_dropped_rows_reach_the_statement():
    table = pa.table({"s": list("aabbb"), "x": [1.0, 2.0, 3.0, 4.0, None]})
    query = summary(mean=["x"]).with_missing("drop-rows")
    scenario = Scenario.from_groups(table, secret="s", query=query)
    certificate = certify_release(scenario, claim_of("joint").along(LINE))
    assert certificate.statement.scenario.rows_dropped == 1
    assert "1 rows with missing values were left out; the claim is about the others." in str(
        certificate
    )


def test_seeded_noise_stamps_the_certificate(certificates):
    statement = certificates["seeded"].statement
    assert statement.noise.generator == SeededTestNoise.name
    assert statement.noise.secure is False
    assert "insecure-noise" in statement.limits
    assert "INSECURE" in str(certificates["seeded"])
    assert "insecure-noise" not in certificates["groups"].statement.limits


def test_progress_is_told_to_the_end(records, profile):
    told = []
    certify_release(
        records, claim_of("joint").along(profile), progress=lambda done, of: told.append((done, of))
    )
    assert told[-1][0] == told[-1][1]


def test_spent_is_what_was_certified_unless_told_otherwise(certificates):
    certificate = certificates["records"]
    assert spent(certificate) == Guarantee.joint(order=4, epsilon=certificate.spent)
    more = spent(certificate, noise_std=2 * certificate.noise_std)
    assert more.epsilon < certificate.spent / 2
    assert spent(certificate, order=2).epsilon < certificate.spent
    assert spent(certificate, notion="average").epsilon < certificate.spent
    unsliced = spent(certificate, notion="unsliced")
    assert unsliced == Guarantee.unsliced(order=4, epsilon=certificate.unsliced_epsilon)


def test_spent_by_hand():
    certificate = certify_release(POINTS, claim_of("average").along(AXES))
    assert spent(certificate, noise_std=1.0, order=3).epsilon == pytest.approx(3 * 12.5 / 2)
    assert spent(certificate, noise_std=1.0, notion="unsliced").epsilon == pytest.approx(50.0)


@pytest.mark.soundness
@pytest.mark.parametrize("noise_std", [np.float32(1.7), np.float32(1e25), np.float16(3.1)])
def test_narrow_floats_do_not_round_a_cost_down(certificates, noise_std):
    for kind in ("records", "gaussian", "unsliced"):
        for ask in (spent, spent_in_full):
            narrow = ask(certificates[kind], noise_std=noise_std, order=np.float32(2.3))
            wide = ask(certificates[kind], noise_std=float(noise_std), order=float(np.float32(2.3)))
            assert narrow == wide


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"noise_std": 0.0}, "noise_std must lie"),
        ({"noise_std": float("nan")}, "noise_std must lie"),
        ({"order": 1.0}, "order must be"),
        ({"notion": "jointly"}, "jointly"),
    ],
)
def test_spent_of_nonsense(certificates, asked, said):
    with pytest.raises(ArgumentError, match=said):
        spent(certificates["records"], **asked)


def test_spent_without_a_finite_answer():
    certificate = certify_release(
        gaussians(([0.0], [[1.0]]), ([0.0], [[9.0]])), claim_of("joint", 2.0).along(LINE)
    )
    with pytest.raises(CalibrationError, match="no bound like"):
        spent(certificate, order=16, noise_std=0.1)


def test_spent_under_another_prior(certificates, groups, profile):
    certificate = certificates["groups"]
    table = pa.table(
        {
            "site": ["north", "north", "south", "south", "west", "west"],
            "pay": [1.0, 2, 30, 40, 30, 40],
            "age": [1.0, 2, 3, 4, 3, 4],
        }
    )
    query = summary(mean=["pay", "age"])
    other = Scenario.from_groups(table, secret="site", query=query)
    costs = under_scenario(certificate, other)
    difference = profile.directions @ np.array([33.5, 2.0])
    moments = np.exp(6 * difference**2 / certificate.noise_std**2).mean()
    assert spent(costs).epsilon == pytest.approx(math.log(moments) / 3, rel=1e-9)
    assert not verify(costs).holds


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: attrs.evolve(s, query=s.query.with_scales([100.0, 100.0])), "query"),
        (lambda s: attrs.evolve(s, query=s.query.with_range(Box([0, 0], [9e9, 9e9]))), "query"),
        (lambda s: attrs.evolve(s, pairs=s.pairs[:1]), "pairs"),
        (lambda s: attrs.evolve(s, secret={"columns": ["town"]}), "secret"),
        (lambda s: FAR_ATOM, "distribution"),
    ],
)
def test_another_scenario_must_ask_the_same(certificates, groups, change, named):
    """Noise in units of 100 costs a ten-thousandth of what it costs in units of 1."""
    assert under_scenario(certificates["groups"], groups)
    with pytest.raises(ArgumentError, match=named):
        under_scenario(certificates["groups"], change(groups))


def permuted(table, rng):
    return table.take(pa.array(rng.permutation(table.num_rows)))


def test_row_order_and_chunks_do_not_matter(table, records, groups, profile, rng):
    shuffled = permuted(table, rng)
    pieces = [shuffled.slice(start, 20) for start in range(0, shuffled.num_rows, 20)]
    chunked = pa.concat_tables(pieces)
    assert chunked["pay"].num_chunks == 6
    query = records.query
    stds = {
        certify_release(
            Scenario.from_records(one, secret="site", query=query), claim_of("joint").along(profile)
        ).noise_std
        for one in (table, shuffled, chunked, chunked.to_pandas())
    }
    assert len(stds) == 1
    query = groups.query
    means = [
        certify_release(
            Scenario.from_groups(one, secret="site", query=query), claim_of("joint").along(profile)
        ).noise_std
        for one in (table, chunked)
    ]
    assert means[0] == pytest.approx(means[1], rel=1e-9)


@given(oracles.worlds(), oracles.notions(), oracles.orders(), oracles.epsilons())
def test_every_certificate_verifies_and_keeps_its_promise(drawn, notion, order, epsilon):
    distributions, pairs, profile = drawn
    claim = claim_of(notion, order, epsilon)
    try:
        certificate = certify_release(worlds(*distributions), claim.along(profile))
    except CalibrationError:
        assume(False)  # the profile is blind to one of the pairs
    assert verify(certificate).holds
    gaps = oracles.true_gap_distributions(distributions, pairs, profile.directions)
    cost = oracles.tight_cost(claim, gaps, profile, certificate.noise_std, "transport")
    assert cost <= oracles.exact(epsilon)


@given(oracles.worlds(), st.sampled_from(NOTIONS), oracles.orders(), oracles.epsilons())
def test_noise_falls_in_epsilon_and_scales_with_the_outputs(drawn, notion, order, epsilon):
    distributions, _, profile = drawn

    def std(factor, budget):
        scaled = [
            FiniteDistribution(outputs=distribution.outputs * factor, counts=distribution.counts)
            for distribution in distributions
        ]
        claim = claim_of(notion, order, budget)
        return certify_release(worlds(*scaled), claim.along(profile), deltas=()).noise_std

    try:
        base = std(1.0, epsilon)
    except CalibrationError:
        assume(False)  # the profile is blind to one of the pairs
    assert std(1.0, 2 * epsilon) < base < std(1.0, epsilon / 2)
    assert std(1024.0, epsilon) == pytest.approx(1024 * base, rel=1e-9)
    # Gaps are rounded up to 8 binary digits, which is not the same grid after a factor 3.
    assert std(3.0, epsilon) == pytest.approx(3 * base, rel=1 / 128)


@pytest.mark.soundness
def test_a_notion_of_learning_is_no_claim_about_a_release(certificates, records, profile):
    """It is an average over batch draws, and a release has none."""
    claim = Guarantee.average_over_batches(order=4, epsilon=1.0)
    with pytest.raises(ArgumentError, match="notion"):
        certify_release(records, claim.along(profile))
    with pytest.raises(ArgumentError, match="notion"):
        spent(certificates["records"], notion="average_over_batches")


class TestWeights:
    """A profile whose weight lies where nothing is to be seen promises nothing."""

    POINTS = worlds([[0.0, 0.5]], [[3.0, 0.5]])
    GAUSSIANS = gaussians(([0.0, 0.0], np.eye(2)), ([3.0, 0.0], np.eye(2)))

    @pytest.mark.soundness
    @pytest.mark.parametrize("seeing", [0.0, 1e-9, 1e-4])
    @pytest.mark.parametrize("name", ["POINTS", "GAUSSIANS"])
    @pytest.mark.parametrize("notion", ["average", "joint"])
    def test_a_blind_profile_is_refused_whatever_its_weights(self, name, seeing, notion):
        directions = FiniteProfile.uniform(dim=2, n_directions=199, seed=1).directions
        weights = np.full(200, seeing / 199)
        weights[-1] = 1 - seeing
        profile = FiniteProfile(directions=np.vstack([directions, [[0.0, 1.0]]]), weights=weights)
        with pytest.raises(CalibrationError, match="profile"):
            certify_release(getattr(self, name), claim_of(notion, 4, 0.1).along(profile))

    @pytest.mark.soundness
    @pytest.mark.parametrize("offset", [0.0, 1e4, 1e6, 1e9])
    def test_rounding_is_no_sight(self, offset):
        """Gaps have the rounding of projections added to them, which grows with the offset."""
        table = pa.table(
            {"s": ["a", "a", "b", "b"], "x": [0.0, 0, 2, 2], "y": [offset, offset + 1] * 2,
             "z": [0.0, 1, 0, 1]}
        )  # fmt: skip
        scenario = Scenario.from_groups(table, secret="s", query=summary(mean=["x", "y", "z"]))
        blind = FiniteProfile.of([[0.0, 0.6, 0.8], [0.0, 0.8, -0.6], [0.0, 0.28, 0.96]])
        with pytest.raises(CalibrationError, match="profile"):
            certify_release(scenario, claim_of("joint").along(blind))

    @pytest.mark.soundness
    @pytest.mark.parametrize("angle", [1e-3, 1e-7])
    @pytest.mark.parametrize("name", ["POINTS", "GAUSSIANS"])
    def test_a_slice_next_to_blind_does_not_see(self, name, angle):
        nearly = FiniteProfile.of([[np.sin(angle), np.cos(angle)]])
        target = claim_of("joint", 4, 0.1)
        with pytest.raises(CalibrationError, match="profile"):
            certify_release(getattr(self, name), target.along(nearly))
        fair = FiniteProfile.of([[0.6, 0.8]])
        assert certify_release(getattr(self, name), target.along(fair))

    def test_the_statement_tells_how_many_slices_count(self):
        directions = FiniteProfile.axes(dim=2).directions
        four = np.vstack([directions, [[0.6, 0.8]], [[0.8, 0.6]]])
        profile = FiniteProfile(directions=four, weights=np.array([0.7, 0.2, 0.1, 0.0]))
        certificate = certify_release(self.POINTS, claim_of("joint").along(profile))
        stated = certificate.statement.profile
        assert stated.n_directions == 3
        assert stated.effective_slices == pytest.approx(1 / (0.49 + 0.04 + 0.01))
        assert stated.largest_weight == pytest.approx(0.7)
        assert "weighted like 1.85 equal ones; the largest weight is 0.7" in str(certificate)
        equal = certify_release(self.POINTS, claim_of("joint").along(FiniteProfile.axes(dim=2)))
        assert "weighted like" not in str(equal)


def test_scales_that_a_certificate_cannot_state():
    query = summary(mean=["x"])
    scenario = named(a=[[0.0]], b=[[1e149]], query=query.with_scales([1e155]))
    with pytest.raises(CalibrationError, match="scales"):
        certify_release(scenario, claim_of("joint").along(LINE))
    far = bell([1e140], [[1.0]])
    with pytest.raises(ScenarioError, match="scales"):
        named(a=bell([0.0], [[1.0]]), b=far, query=query.with_scales([1e-200]))


@pytest.mark.parametrize("claim", [1.0, "guess", None])
def test_a_claim_is_a_value(claim, records):
    for call in (certify_release, what_if):
        with pytest.raises(ArgumentError, match=r"guarantee must be a claim .*guess\(at_most"):
            call(records, claim)
