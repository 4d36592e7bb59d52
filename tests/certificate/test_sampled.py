# SPDX-License-Identifier: Apache-2.0
"""Certificates from samples and on the sphere.

Both claims, their confidence, and what is refused.
"""

import math

import attrs
import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import hyp1f1
from tests.certificate.conftest import CLOSED_FORM, WORST_GAP, bell, stating, worlds

from pufferslice.certificate import certify_release, spent, under_scenario, verify
from pufferslice.certificate.evidence import Evidence
from pufferslice.claims import Guarantee, claim_of
from pufferslice.errors import ArgumentError, CalibrationError, CertificateError, ScenarioError
from pufferslice.queries import Ball, Box, columns, summary
from pufferslice.scenario.distributions import (
    FiniteDistribution,
    SampledDistribution,
)
from pufferslice.scenario.priors import Bootstrap
from pufferslice.scenario.scenario import Scenario
from pufferslice.scenario.simulator import OutputSimulator
from pufferslice.sensitivity import GapTables
from pufferslice.sensitivity.bands import missing_mass
from pufferslice.sensitivity.concentration import LEVEL_QUANTA, band_ranks, dkw_halfwidth
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere
from pufferslice.sensitivity.sensitivity import Confidence, Slices, full_of_slices

LINE = FiniteProfile.axes(dim=1)
JOINT = Guarantee.joint(order=4, epsilon=1.0)
AVERAGE = Guarantee.average(order=4, epsilon=1.0)
LOOSE = {notion: getattr(Guarantee, notion)(epsilon=1.0, delta=0.05)
         for notion in ("average", "joint")}  # fmt: skip
RANGE = Box([-4, -4], [4, 4])
QUERY = summary(mean=["x", "y"])
CLIPPED = QUERY.with_range(RANGE)
PROFILE = FiniteProfile.uniform(dim=2, n_directions=5, seed=2)


def simulated(shift, n_draws=1500, seed=3, dim=2):
    draw = OutputSimulator(draw_outputs=lambda rng, n: rng.normal(shift, 0.5, size=(n, dim)))
    return draw.sampled(n_draws=n_draws, seed=seed)


def sampled_worlds(n_draws=1500, query=CLIPPED, shift=0.4):
    return worlds(low=simulated(0.0, n_draws), high=simulated(shift, n_draws), query=query)


def certified(scenario, target, profile=PROFILE, **options):
    options = {"failure_probability": 0.05, **options}
    return certify_release(scenario, target.along(profile), **options)


@pytest.fixture(scope="module")
def sampled():
    return sampled_worlds()


@pytest.fixture(scope="module")
def srpp(sampled):
    return certified(sampled, JOINT)


@pytest.fixture(scope="module")
def loose():
    return certified(sampled_worlds(query=QUERY), LOOSE["joint"])


class TestBothClaims:
    @pytest.mark.parametrize("band", ["order_statistics", "dkw"])
    @pytest.mark.parametrize("method", [None, WORST_GAP, CLOSED_FORM])
    @pytest.mark.parametrize("target", [JOINT, AVERAGE], ids=str)
    def test_srpp(self, sampled, target, method, band):
        certificate = certified(sampled, target, band=band, method=method)
        assert verify(certificate).holds
        assert certificate.spent <= target.epsilon
        statement = certificate.statement
        assert statement.failure_probability == 0.05
        assert statement.sampling.band == band
        assert statement.sampling.tails == "at_range"
        shares = statement.sampling.noise_shares
        assert sum(value for _, value in shares) == pytest.approx(1)
        assert shares.slicing == 0
        assert 0 < shares.distribution < 1

    @pytest.mark.parametrize("method", [None, WORST_GAP])
    @pytest.mark.parametrize("query", [QUERY, CLIPPED])
    @pytest.mark.parametrize("notion", ["joint", "average"])
    def test_epsilon_delta(self, notion, query, method):
        certificate = certified(sampled_worlds(query=query), LOOSE[notion], method=method)
        assert verify(certificate).holds
        assert certificate.guarantee == LOOSE[notion]
        assert certificate.spent <= 1
        assert certificate.statement.sampling.tails == "in_delta"
        missing = band_ranks(1500, 0.05 / 10, "order_statistics").missing
        assert certificate.statement.sampling.delta_of_tails == pytest.approx(missing)
        assert (certificate.unsliced_epsilon is None) == (query is QUERY)

    def test_a_failure_probability_of_numpy(self, sampled):
        narrow = np.float32(0.05)
        certificate = certified(sampled, JOINT, failure_probability=narrow)
        assert certificate.statement.failure_probability == float(narrow)

    def test_the_unsliced_bound_is_the_diameter(self, srpp):
        diameter = 8 * math.sqrt(2)
        expected = 4 * diameter**2 / (2 * srpp.noise_std**2)
        assert srpp.unsliced_epsilon == pytest.approx(expected, rel=1e-9)
        assert srpp.unsliced_epsilon >= expected
        assert srpp.statement.unsliced.source == "the diameter of the public range"

    def test_the_diameter_follows_the_scales(self):
        scaled = certified(sampled_worlds(query=CLIPPED.with_scales([2, 4])), JOINT)
        expected = 4 * (4**2 + 2**2) / (2 * scaled.noise_std**2)
        assert scaled.unsliced_epsilon == pytest.approx(expected, rel=1e-9)

    def test_without_a_range_there_is_no_unsliced_bound_and_it_says_why(self, loose):
        assert loose.unsliced_epsilon is None
        assert "without a public range" in loose.statement.unsliced.source
        assert loose.statement.views == []

    @pytest.mark.parametrize("high", [4.0, 1.0])
    def test_tails_on_the_line_count_at_the_range_in_the_unsliced_bound(self, high):
        """Where delta holds the tails of the claim, a range still bounds the whole output."""
        query = summary(mean=["x"]).with_range(Box([-4], [high]))
        sides = {name: simulated(shift, dim=1) for name, shift in (("low", 0.0), ("high", 0.4))}
        certificate = certified(worlds(**sides, query=query), LOOSE["joint"], LINE)
        slices = certificate.evidence.slices
        tables, missing = slices.differences, slices.missing[0]
        assert 0 < missing < 0.05
        rate = 1 / certificate.noise_std**2  # of order 2
        gaps = tables.masses @ np.exp(rate * tables.gaps**2)
        expected = math.log((1 - missing) * gaps + missing * math.exp(rate * (4 + high) ** 2))
        assert certificate.unsliced_epsilon == pytest.approx(expected, rel=1e-9)
        variation = tables.masses @ (2 * stats.norm.cdf(tables.gaps * math.sqrt(rate) / 2) - 1)
        beyond = 2 * stats.norm.cdf((4 + high) * math.sqrt(rate) / 2) - 1
        expected = (1 + (1 - missing) * variation + missing * beyond) / 2
        assert certificate.statement.unsliced.guess == pytest.approx(expected, rel=1e-9)
        stored = Evidence.from_bytes(certificate.evidence.to_bytes())
        assert verify(attrs.evolve(certificate, evidence=stored)).holds

    def test_a_gap_that_is_not_below_the_diameter_takes_the_tails(self):
        half = LEVEL_QUANTA // 2
        rows = [
            (np.array([8.5, 1.0]), np.array([1, half - 1])),
            (np.array([2.0]), np.array([half])),
        ]
        tables = GapTables.of_rows([*rows, *rows], [half, half])
        both = FiniteProfile(directions=[[1.0], [-1.0]], weights=[0.5, 0.5])
        slices = Slices(profile=both, differences=tables, missing=missing_mass(tables))
        full = full_of_slices(slices, Box([-4], [4]), np.ones(1))
        full.differences.check()
        assert full.differences.gaps.tolist() == pytest.approx([8.5, 1.0, 8.0, 2.0] * 2, rel=1e-12)
        assert full.differences.counts.tolist() == [half + 1, half - 1, half, half] * 2
        assert not full.missing.any()
        assert full_of_slices(slices, None, np.ones(1)).missing.tolist() == [0.5, 0.5]

    def test_unsliced_claims_rest_on_the_range_alone(self, sampled):
        target = Guarantee.unsliced(order=4, epsilon=1.0)
        with pytest.raises(ArgumentError, match="the public range alone"):
            certify_release(sampled, target, failure_probability=0.05)
        certificate = certify_release(sampled, target, shape="isotropic")
        assert certificate.noise_std**2 == pytest.approx(4 * 128 / 2, rel=1e-9)
        assert certificate.statement.sampling is None
        assert certificate.statement.failure_probability == 0

    def test_unsliced_claims_need_a_range(self):
        with pytest.raises(ScenarioError, match="without a public range"):
            certified(sampled_worlds(query=QUERY), Guarantee.unsliced(order=4, epsilon=1.0))

    def test_tails_of_data_are_not_told(self):
        """How much of delta the tails take would give the number of rows away."""
        rng = np.random.default_rng(1)
        table = pa.table({"s": ["a", "b"] * 1000, "x": rng.normal(size=2000)})
        scenario = Scenario.from_records(table, secret="s", query=columns(["x"]))  # noqa: S106
        certificate = certified(scenario.with_sampled_priors(), LOOSE["joint"], LINE)
        assert certificate.statement.sampling.delta_of_tails is None
        assert certificate.evidence.confidential["n_samples"] == {"table": {"a": 1000, "b": 1000}}
        assert "1000" not in str(certificate)

    def test_more_samples_need_less_noise(self, srpp):
        many = certified(sampled_worlds(60_000), JOINT)
        assert many.noise_std < srpp.noise_std
        shares = [c.statement.sampling.noise_shares.distribution for c in (many, srpp)]
        assert shares[0] > shares[1]


class TestSoundness:
    """The certified noise against the truth, over many draws of the samples."""

    N_RUNS = 60
    FAILURE = 0.2

    @pytest.mark.statistical
    @pytest.mark.soundness
    @pytest.mark.parametrize(
        "name",
        [
            "skewed",
            "discrete",
            pytest.param("heavy-tailed", marks=pytest.mark.soak),
            pytest.param("tied", marks=pytest.mark.soak),
        ],
    )
    def test_the_noise_is_enough_for_the_true_distributions(self, name, rng):
        """Certified noise is below what the priors themselves need in at most a share 0.2 of runs;
        declaring the sample to be the distribution is below it in far more."""
        pairs = {
            "skewed": (stats.beta(1, 6), stats.beta(1.5, 4)),
            "discrete": (stats.binom(8, 0.3), stats.binom(8, 0.5)),
            "heavy-tailed": (stats.truncpareto(0.5, 80), stats.truncpareto(0.8, 80)),
            "tied": (stats.bernoulli(0.02), stats.bernoulli(0.1)),
        }
        pair = pairs[name]
        lows, highs = zip(*(distribution.support() for distribution in pair), strict=True)
        query = summary(mean=["x"]).with_range(Box([min(lows)], [max(highs)]))
        levels = (np.arange(100_000) + 0.5) / 100_000
        a, b = (distribution.ppf(levels)[:, None] for distribution in pair)
        true = worlds(a=a, b=b, query=query)
        needed = certify_release(true, JOINT.along(LINE)).noise_std * (1 - 1e-6)
        below = np.zeros(2, dtype=int)
        for _ in range(self.N_RUNS):
            drawn = {s: distribution.rvs((300, 1), random_state=rng).astype(float)
                     for s, distribution in zip("ab", pair, strict=True)}  # fmt: skip
            sides = {s: SampledDistribution(outputs=x) for s, x in drawn.items()}
            scenario = worlds(**sides, query=query)
            found = certified(scenario, JOINT, LINE, failure_probability=self.FAILURE)
            plain = certify_release(worlds(**drawn, query=query), JOINT.along(LINE))
            below += [found.noise_std < needed, plain.noise_std < needed]
        room = 5 * math.sqrt(self.N_RUNS * self.FAILURE * (1 - self.FAILURE))
        assert below[0] <= self.N_RUNS * self.FAILURE + room
        assert below[0] == 0
        assert below[1] >= self.N_RUNS / 5

    @pytest.mark.soundness
    def test_rare_mass_is_inside_delta(self, rng):
        """True delta of the second claim, by quadrature, with an atom that no sample may show."""
        target = Guarantee.joint(epsilon=1.0, delta=0.05)
        drawn = (rng.normal(mean, 1.0, size=(1200, 1)) for mean in (0.0, 0.3))
        a, b = (SampledDistribution(outputs=outputs) for outputs in drawn)
        certificate = certified(worlds(a=a, b=b), target, LINE)
        rare = 1e-3
        std = math.hypot(certificate.noise_std, 1)

        def delta(sign):
            def positive(x):
                near = stats.norm(0.0, std).pdf(x)
                far = stats.norm(500.0, std).pdf(x)
                p = (1 - rare) * near + rare * far
                q = stats.norm(0.3, std).pdf(x)
                first, second = (p, q) if sign > 0 else (q, p)
                return max(0.0, first - math.e * second)

            parts = [(-60, 60), (440, 560)]
            return sum(quad(positive, *part, limit=400)[0] for part in parts)

        assert rare < delta(1) <= target.delta
        assert delta(-1) <= target.delta

    @pytest.mark.statistical
    @pytest.mark.soundness
    @pytest.mark.parametrize("name", ["discrete", "rare"])
    def test_true_deltas_are_inside_the_claim(self, name, rng):
        """Over draws of 400 samples, the true delta of the noisy mixtures is above the claim's in
        at most a share 0.2 of runs, in both orders; with half the noise it always is."""
        atoms = np.arange(9.0)
        pairs = {
            "discrete": (stats.binom(8, 0.3).pmf(atoms), stats.binom(8, 0.5).pmf(atoms)),
            "rare": (np.eye(9)[0], 0.999 * np.eye(9)[0] + 0.001 * np.eye(9)[8]),
        }
        first, second = pairs[name]
        target = Guarantee.joint(epsilon=0.5, delta=0.1)

        def true_delta(std):
            grid = np.linspace(-8 * std, 8 + 8 * std, 20_001)
            kernels = stats.norm.pdf(grid[:, None], atoms, std)
            p, q = kernels @ first, kernels @ second
            step = grid[1] - grid[0]
            return max(
                np.maximum(0, a - math.exp(0.5) * b).sum() * step for a, b in ((p, q), (q, p))
            )

        too_small = half = 0
        for _ in range(25):
            a, b = (
                SampledDistribution(outputs=rng.choice(atoms, size=(400, 1), p=p))
                for p in (first, second)
            )
            try:
                noise = certified(worlds(a=a, b=b), target, LINE, failure_probability=0.2).noise_std
            except CalibrationError:
                # All covered gaps are 0: no noise is asked for, and the rare mass is below delta.
                assert name == "rare"
                noise = 1e-3
            too_small += true_delta(noise) > target.delta
            half += true_delta(noise / 3) > target.delta
        assert too_small == 0
        assert half == (25 if name == "discrete" else 0)

    def test_no_union_over_instances(self, sampled, srpp):
        """Twelve pairs that look alike do not pay for their number, only for the worst of them."""
        one, other = simulated(0.0), simulated(0.4)
        many = worlds(**{"low": one, "high": other, "low 2": one}, query=CLIPPED)
        pairs = many.pairs
        only = attrs.evolve(many, pairs=tuple(p for p in pairs if set(p) == {"low", "high"}))
        assert certified(only, JOINT).noise_std == srpp.noise_std


class TestSphere:
    """Point masses at distance 3 in R^9, range a ball of diameter 3: closed forms on the sphere."""

    QUERY9 = summary(mean=[f"x{i}" for i in range(9)]).with_range(Ball([0.0] * 9, 1.5))
    SCENARIO = worlds(a=np.eye(9)[:1] * -1.5, b=np.eye(9)[:1] * 1.5, query=QUERY9)

    def certified(self, notion, n_directions, seed=1, method=None):
        profile = SampledSphere.draw(dim=9, n_directions=n_directions, seed=seed)
        target = claim_of({"notion": notion, "order": 4.0, "epsilon": 1.0})
        return certified(self.SCENARIO, target, profile, method=method)

    @pytest.mark.parametrize("method", [None, WORST_GAP, CLOSED_FORM])
    def test_the_average_term_by_hand(self, method):
        certificate = self.certified("average", 400, method=method)
        u = certificate.evidence.slices.profile.directions[:, 0]
        h = math.sqrt(math.log(2 / 0.05) / 800)
        by_hand = 2 * (9 * np.mean(u**2) + 9 * h)
        assert certificate.noise_std**2 == pytest.approx(by_hand, rel=1e-9)
        assert certificate.noise_std**2 > 2

    @pytest.mark.parametrize("method", [None, WORST_GAP, CLOSED_FORM])
    def test_the_joint_term_by_hand(self, method):
        certificate = self.certified("joint", 400, method=method)
        u = certificate.evidence.slices.profile.directions[:, 0]
        h = math.sqrt(math.log(2 / 0.05) / 800)
        c = 6 / certificate.noise_std**2
        moment = np.mean(np.exp(9 * c * u**2)) + math.expm1(9 * c) * h
        assert moment == pytest.approx(math.exp(3), rel=1e-8)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("notion", "variance", "n_directions"),
        [("average", 2.0, 60_000), ("joint", 5.38628260122933, 20_000)],
    )
    def test_the_known_answer_is_the_limit_from_above(self, notion, variance, n_directions):
        assert hyp1f1(0.5, 4.5, 54 / 5.38628260122933) == pytest.approx(math.exp(3), rel=1e-9)
        few, many = (self.certified(notion, n).noise_std ** 2 for n in (2_000, n_directions))
        assert variance < many < few
        if notion == "average":
            assert many == pytest.approx(variance, rel=0.06)
        # With the mean over the drawn directions replaced by that over the sphere.
        h = dkw_halfwidth(n_directions, 0.05)
        c = 6 / many
        joint = hyp1f1(0.5, 4.5, 9 * c) + math.expm1(9 * c) * h
        average = many / 2 - 9 * h
        assert (joint if notion == "joint" else average) == pytest.approx(
            math.exp(3) if notion == "joint" else 1.0, rel=0.02
        )

    @pytest.mark.statistical
    @pytest.mark.soundness
    def test_the_term_covers_and_is_needed(self):
        """60 draws of 50 directions: never below the closed form; without the term about half."""
        found = [self.certified("average", 50, seed) for seed in range(60)]
        below = sum(c.noise_std**2 < 2 for c in found)
        h = dkw_halfwidth(50, 0.05)
        without = sum(c.noise_std**2 - 18 * h < 2 for c in found)
        assert below <= 60 * 0.05 + 5 * math.sqrt(60 * 0.05)
        assert below == 0
        assert 15 <= without <= 45

    def test_sampled_distributions_take_half_of_the_failure_probability(self):
        sphere = SampledSphere.draw(dim=2, n_directions=300, seed=1)
        certificate = certified(sampled_worlds(), AVERAGE, sphere)
        evidence = certificate.evidence
        assert evidence.slices.sphere.halfwidth == dkw_halfwidth(300, 0.025)
        assert evidence.confidence.band_probability(300) == pytest.approx(0.05 / 4 / 300)
        finite = FiniteProfile.of(sphere.directions)
        same = certified(sampled_worlds(), AVERAGE, finite, failure_probability=0.025)
        term = 2 * 128 * dkw_halfwidth(300, 0.025) / certificate.noise_std**2
        costs = spent(same, noise_std=certificate.noise_std).epsilon
        assert costs + term == pytest.approx(1, rel=1e-9)
        assert verify(certificate).holds
        shares = certificate.statement.sampling.noise_shares
        assert shares.slicing > 0.1
        assert sum(value for _, value in shares) == pytest.approx(1)

    def test_what_the_statement_says(self):
        certificate = self.certified("joint", 50)
        assert certificate.statement.profile.kind == "sphere"
        assert certificate.statement.sampling.band is None
        assert "whole sphere of 9 dimensions" in str(certificate)
        assert "sphere-sampled" in certificate.statement.limits
        drawn = certificate.evidence.slices.profile
        assert drawn.digest() != FiniteProfile.of(drawn.directions).digest()


SPHERE = SampledSphere.draw(dim=2, n_directions=20, seed=1)
SAMPLED = sampled_worlds()
POINTS, IN_RANGE = (worlds(a=[[0.0, 0.0]], b=[[1.0, 0.0]], query=q) for q in (QUERY, CLIPPED))
GAUSSIANS = worlds(a=bell([0.0, 0.0], np.eye(2)), b=bell([1.0, 0.0], np.eye(2)))
GROUPS = Scenario.from_groups(
    pa.table({"s": list("aabb"), "x": [1.0, 2.0, 3.0, 4.0]}),
    secret="s",  # noqa: S106
    query=summary(mean=["x"]),
)
WEIGHTED = FiniteDistribution.weighted([[0.0], [1.0]], [0.25, 0.75])
CERTAIN = {"failure_probability": None}


@pytest.mark.parametrize(
    ("scenario", "target", "profile", "options", "error", "match"),
    [
        (SAMPLED, JOINT, PROFILE, CERTAIN, ArgumentError, "sampled priors need failure_prob"),
        (SAMPLED, JOINT, PROFILE, {"failure_probability": math.nan}, ArgumentError, "failure_prob"),
        (SAMPLED, JOINT, PROFILE, {"band": "bootstrap"}, ArgumentError, "band"),
        (SAMPLED, LOOSE["joint"], PROFILE, {"method": CLOSED_FORM}, ArgumentError, "rule 'tight'"),
        (sampled_worlds(query=QUERY), JOINT, PROFILE, {}, ScenarioError, "with_range"),
        (
            sampled_worlds(12),
            JOINT,
            PROFILE,
            {},
            CalibrationError,
            r"12 of a .*at least (\d+)",
        ),
        (POINTS, JOINT, PROFILE, {}, ArgumentError, "failure_probability"),
        (POINTS, JOINT, SPHERE, {}, ScenarioError, "public range"),
        (IN_RANGE, JOINT, SPHERE, CERTAIN, ArgumentError, "failure_probability"),
        (IN_RANGE, LOOSE["joint"], SPHERE, {}, ArgumentError, "FiniteProfile"),
        (IN_RANGE, JOINT, None, CERTAIN, ArgumentError, "profile"),
        (GAUSSIANS, LOOSE["joint"], PROFILE, CERTAIN, ArgumentError, "Gaussian priors"),
        (GAUSSIANS, JOINT, SPHERE, {}, ScenarioError, "FiniteProfile"),
    ],
)
def test_refusals(scenario, target, profile, options, error, match):
    with pytest.raises(error, match=match):
        certified(scenario, target, profile, **options)


@pytest.mark.parametrize(
    ("scenario", "match"),
    [
        (GROUPS, "not a sample"),
        (SAMPLED, "draws"),
        (worlds(a=WEIGHTED, b=WEIGHTED), "weighted atoms"),
    ],
)
def test_priors_that_are_no_samples(scenario, match):
    with pytest.raises(ScenarioError, match=match):
        scenario.with_sampled_priors()


def test_too_few_samples_for_delta_and_the_number_that_is_named_is_enough():
    target = Guarantee.joint(epsilon=1.0, delta=0.01)
    with pytest.raises(CalibrationError, match="too few samples: the bands leave out") as error:
        certified(sampled_worlds(900, QUERY), target)
    needed = int(str(error.value).split("About ")[1].split()[0])
    assert 1500 < needed < 10_000
    enough = certified(sampled_worlds(needed, QUERY), target)
    assert enough.evidence.slices.missing.max() <= 0.0051


def test_bootstrap_replicates_sample_the_bootstrap_distribution(table):
    query = summary(mean=["pay"]).with_range(Box([0], [80]))
    scenario = Scenario.from_bootstrap(
        table,
        secret="site",  # noqa: S106
        query=query,
        bootstrap=Bootstrap(n_replicates=400, seed=2),
    ).with_sampled_priors()
    assert "declared" not in scenario.priors[0].origin
    assert scenario.priors[0].origin.endswith("which is known only through them")
    assert verify(certified(scenario, JOINT, LINE)).holds


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(5)
    n = 6_000
    site = rng.integers(0, 2, n)
    pay, age = rng.normal(30 + 2 * site, 4, n), rng.gamma(3.0, 5, n)
    return pa.table({"site": np.array(["n", "s"])[site], "pay": pay, "age": age})


class TestVerification:
    @pytest.mark.parametrize(
        ("path", "value"),
        [
            (("failure_probability",), 0.01),
            (("guarantee", "epsilon"), 0.9),
            (("guarantee", "delta"), 0.04),
            (("sampling", "band"), "dkw"),
            (("sampling", "noise_shares", "distribution"), 1.0),
            (("sampling", "delta_of_tails"), 0.001),
            (("profile", "kind"), "sphere"),
            (("unsliced", "epsilon"), 3.0),
        ],
    )
    def test_edited_statements_are_refuted(self, loose, path, value):
        assert not verify(stating(loose, path, value)).holds

    def test_half_the_noise_is_refuted(self, srpp):
        half = stating(srpp, ("noise", "std"), srpp.noise_std / 2)
        assert "more than the claim's" in verify(half).problems[0]

    def test_evidence_that_does_not_fit_itself(self, loose, srpp):
        few = {"low": 9000, "high": 9000}
        confidential = {"distributions_digest": "0" * 64, "n_samples": {"declared": few}}
        with pytest.raises(CertificateError, match="levels"):
            attrs.evolve(loose.evidence, confidential=confidential).check()
        with pytest.raises(CertificateError, match="kind of priors"):
            attrs.evolve(loose.evidence, confidence=None).check()
        slices = attrs.evolve(loose.evidence.slices, plain=None)
        with pytest.raises(CertificateError, match="kind of priors"):
            attrs.evolve(loose.evidence, slices=slices).check()
        full = attrs.evolve(srpp.evidence.full, from_range=False)
        with pytest.raises(CertificateError, match="not that of the public range"):
            attrs.evolve(srpp.evidence, full=full).check()


class TestSpent:
    def test_of_an_approximate_claim(self, loose):
        assert spent(loose).epsilon == pytest.approx(1, rel=1e-9)
        assert spent(loose, noise_std=2 * loose.noise_std).epsilon < 1
        assert spent(loose, notion="average").notion == "average"

    def test_it_has_no_order(self, loose):
        with pytest.raises(ArgumentError, match="has no order"):
            spent(loose, order=4)

    def test_much_noise_costs_no_epsilon_at_this_delta(self, loose):
        assert spent(loose, noise_std=1e9) == loose.guarantee.with_bound(0.0)

    def test_noise_that_gives_nothing_to_state(self, loose):
        with pytest.raises(CalibrationError, match="no bound like"):
            spent(loose, noise_std=1e-9)

    def test_under_another_scenario(self, srpp):
        closer = under_scenario(srpp, sampled_worlds(shift=0.1))
        assert spent(closer).epsilon < 1
        exact = worlds(low=[[0.0, 0.0]], high=[[1.0, 0.0]], query=CLIPPED)
        with pytest.raises(ArgumentError, match="both by samples or neither"):
            under_scenario(srpp, exact)


class TestDoubt:
    def test_how_it_is_split(self):
        bands = Confidence(failure_probability=0.1, band="dkw", tails="at_range", on_sphere=False)
        both = attrs.evolve(bands, on_sphere=True)
        sphere = Confidence(failure_probability=0.1, band=None, tails=None, on_sphere=True)
        assert bands.band_probability(10) == pytest.approx(0.1 / 20)
        assert both.band_probability(10) == pytest.approx(0.1 / 40)
        assert both.sphere_halfwidth(50) == dkw_halfwidth(50, 0.05)
        assert sphere.sphere_halfwidth(50) == dkw_halfwidth(50, 0.1)

    @pytest.mark.parametrize(
        ("band", "tails", "on_sphere"),
        [
            (None, None, False),
            ("dkw", None, False),
            (None, "at_range", True),
            ("dkw", "lost", False),
        ],
    )
    def test_what_cannot_be(self, band, tails, on_sphere):
        with pytest.raises(ArgumentError):
            Confidence(failure_probability=0.1, band=band, tails=tails, on_sphere=on_sphere)
