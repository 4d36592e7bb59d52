# SPDX-License-Identifier: Apache-2.0
"""Sampling designs: distributions of the discrepancy, caps, mean squares, and what is refused."""

import itertools
import json
import math
from fractions import Fraction

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy import stats
from tests.learning import counting

from pufferslice.errors import ArgumentError
from pufferslice.learning.sampling import (
    Discrepancy,
    Poisson,
    WithoutReplacement,
    WithReplacement,
    binomial_log_probabilities,
    poisson_mean_square_ratio,
    sampling_from_description,
)

HP = mp.clone()
HP.dps = 40


@st.composite
def designs(draw, most_records=60):
    n_records = draw(st.integers(1, most_records))
    kind = draw(st.sampled_from([Poisson, WithoutReplacement, WithReplacement]))
    if kind is Poisson:
        return Poisson(n_records=n_records, rate=draw(st.floats(1e-6, 1.0)))
    return kind(n_records=n_records, batch_size=draw(st.integers(1, n_records)))


@st.composite
def designs_with_differing(draw):
    design = draw(designs())
    return design, draw(st.integers(0, design.n_records))


def probabilities(design, n_differing):
    return np.exp(design.discrepancy_distribution(n_differing).log_probabilities)


class TestMeanSquare:
    @pytest.mark.parametrize(
        ("design", "known"),
        [
            (WithoutReplacement(n_records=50_000, batch_size=512), 0.244568859377),
            (Poisson(n_records=50_000, rate=0.01024), 0.244645888),
            (WithReplacement(n_records=50_000, batch_size=512), 0.24666112),
            (WithoutReplacement(n_records=50_000, batch_size=1024), 0.568831088622),
            (Poisson(n_records=50_000, rate=0.02048), 0.568983552),
            (WithReplacement(n_records=50_000, batch_size=1024), 0.57720832),
        ],
    )
    def test_known_answers(self, design, known):
        assert design.mean_square_discrepancy(20) == pytest.approx(known, rel=2e-12)

    def test_by_hand(self):
        # One of two records differs: drawn or not.
        assert Poisson(n_records=2, rate=0.25).mean_square_discrepancy(1) == 0.25
        assert WithoutReplacement(n_records=2, batch_size=1).mean_square_discrepancy(1) == 0.5
        # Two draws of two records: 0, 1, 1 or 2 differing ones: (0 + 1 + 1 + 4) / 4.
        assert WithReplacement(n_records=2, batch_size=2).mean_square_discrepancy(1) == 1.5

    @pytest.mark.parametrize("kind", [WithoutReplacement, WithReplacement])
    def test_a_single_record(self, kind):
        assert kind(n_records=1, batch_size=1).mean_square_discrepancy(1) == 1

    @given(designs_with_differing())
    def test_is_the_mean_square_of_the_distribution(self, drawn):
        design, n_differing = drawn
        distribution = design.discrepancy_distribution(n_differing)
        summed = np.exp(distribution.log_probabilities) @ distribution.counts.astype(float) ** 2
        assert design.mean_square_discrepancy(n_differing) == pytest.approx(summed, rel=1e-12)

    @given(designs(), st.data())
    def test_more_differing_records_never_mean_less(self, design, data):
        few, many = sorted(data.draw(st.tuples(*[st.integers(0, design.n_records)] * 2)))
        assert design.mean_square_discrepancy(few) <= design.mean_square_discrepancy(many)

    @given(st.integers(1, 50), st.data())
    def test_without_replacement_is_the_smallest(self, n_records, data):
        size = data.draw(st.integers(1, n_records))
        d = data.draw(st.integers(0, n_records))
        least = WithoutReplacement(n_records=n_records, batch_size=size)
        others = [
            WithReplacement(n_records=n_records, batch_size=size),
            Poisson(n_records=n_records, rate=size / n_records),
        ]
        for other in others:
            excess = other.mean_square_discrepancy(d) - least.mean_square_discrepancy(d)
            assert excess >= -1e-12 * least.mean_square_discrepancy(d)


class TestDistributionExactly:
    @pytest.mark.parametrize("n_differing", range(6))
    @pytest.mark.parametrize(
        ("design", "batches"),
        [
            (Poisson(n_records=5, rate=0.375), list(counting.poisson_batches(5, 0.375))),
            (Poisson(n_records=5, rate=1), list(counting.poisson_batches(5, 1))),
            *(
                (WithoutReplacement(n_records=5, batch_size=b), counting.sets_of(5, b))
                for b in (1, 3, 4, 5)
            ),
            *(
                (WithReplacement(n_records=5, batch_size=b), counting.sequences_of(5, b))
                for b in (1, 3, 5)
            ),
        ],
    )
    def test_every_batch_gone_through(self, design, batches, n_differing):
        exact = counting.exact_distribution(batches, n_differing)
        distribution = design.discrepancy_distribution(n_differing)
        for k, log_probability in zip(
            distribution.counts, distribution.log_probabilities, strict=True
        ):
            chance = exact.pop(int(k), 0)
            if chance == 0:
                assert log_probability == -math.inf
            else:
                assert math.exp(log_probability) == pytest.approx(float(chance), rel=1e-14)
        assert not {k: chance for k, chance in exact.items() if chance}

    @given(designs_with_differing())
    def test_agrees_with_scipy(self, drawn):
        design, d = drawn
        distribution = design.discrepancy_distribution(d)
        match design:
            case Poisson():
                oracle = stats.binom(d, design.rate)
            case WithoutReplacement():
                oracle = stats.hypergeom(design.n_records, d, design.batch_size)
            case WithReplacement():
                oracle = stats.binom(design.discrepancy_cap(d), d / design.n_records)
        np.testing.assert_allclose(
            np.exp(distribution.log_probabilities),
            oracle.pmf(distribution.counts),
            rtol=1e-10,
            atol=1e-300,
        )

    @given(designs_with_differing())
    def test_sums_to_one_on_zero_to_the_cap(self, drawn):
        design, d = drawn
        distribution = design.discrepancy_distribution(d)
        assert distribution.counts.tolist() == list(range(design.discrepancy_cap(d) + 1))
        assert math.fsum(np.exp(distribution.log_probabilities)) == pytest.approx(1, abs=1e-14)

    @given(designs(), st.data())
    def test_more_differing_records_are_drawn_more_often(self, design, data):
        d = data.draw(st.integers(0, design.n_records - 1))
        few, many = probabilities(design, d), probabilities(design, d + 1)
        few = np.pad(few, (0, len(many) - len(few)))
        # Above each count, more mass: stochastic dominance.
        assert np.all(np.cumsum(many[::-1]) >= np.cumsum(few[::-1]) - 1e-12)

    def test_no_differing_record_is_no_discrepancy(self):
        for design in (
            Poisson(n_records=9, rate=0.3),
            WithoutReplacement(n_records=9, batch_size=4),
            WithReplacement(n_records=9, batch_size=4),
        ):
            distribution = design.discrepancy_distribution(0)
            assert distribution.counts.tolist() == [0]
            assert distribution.log_probabilities.tolist() == [0.0]
            assert design.discrepancy_cap(0) == 0
            assert design.mean_square_discrepancy(0) == 0

    def test_all_records_differ(self):
        assert probabilities(Poisson(n_records=3, rate=1.0), 3).tolist() == [0, 0, 0, 1]
        assert probabilities(WithoutReplacement(n_records=5, batch_size=2), 5).tolist() == [0, 0, 1]
        assert probabilities(WithReplacement(n_records=5, batch_size=2), 5).tolist() == [0, 0, 1]


def log_binomial(n_trials, chance):
    q = HP.mpf(chance.numerator) / chance.denominator
    return lambda k: (
        HP.log(HP.binomial(n_trials, k)) + k * HP.log(q) + (n_trials - k) * HP.log1p(-q)
    )


def log_hypergeometric(n_records, d, b):
    return lambda k: HP.log(
        HP.binomial(d, k) * HP.binomial(n_records - d, b - k) / HP.binomial(n_records, b)
    )


class TestTails:
    @pytest.mark.parametrize(
        ("design", "n_differing", "exact"),
        [
            (Poisson(n_records=10**6, rate=0.01), 20, log_binomial(20, Fraction(0.01))),
            (Poisson(n_records=10**6, rate=0.01), 50_000, log_binomial(50_000, Fraction(0.01))),
            (
                Poisson(n_records=500, rate=1 - 2**-50),
                500,
                log_binomial(500, 1 - Fraction(2) ** -50),
            ),
            (Poisson(n_records=100, rate=1e-300), 100, log_binomial(100, Fraction(1e-300))),
            (
                WithoutReplacement(n_records=50_000, batch_size=512),
                20,
                log_hypergeometric(50_000, 20, 512),
            ),
            (
                WithoutReplacement(n_records=50_000, batch_size=30_000),
                30_000,
                log_hypergeometric(50_000, 30_000, 30_000),
            ),
            (
                WithReplacement(n_records=50_000, batch_size=50_000),
                20,
                log_binomial(50_000, Fraction(20, 50_000)),
            ),
        ],
    )
    def test_logs_are_exact_to_the_last_digits(self, design, n_differing, exact):
        logs = design.discrepancy_distribution(n_differing).log_probabilities
        possible = np.flatnonzero(np.isfinite(logs))
        for k in np.unique(np.linspace(possible[0], possible[-1], 40).astype(int)):
            # Plain cumulative sums are off by 8e-15 here, differences of gammaln by far more.
            error = float(HP.mpf(float(logs[k])) - exact(int(k)))
            assert abs(error) < 3e-15 * abs(float(exact(int(k)))) + 2e-16

    def test_far_below_the_smallest_float(self):
        distribution = Poisson(n_records=1_000, rate=1e-3).discrepancy_distribution(1_000)
        assert distribution.log_probabilities[-1] == pytest.approx(
            1_000 * math.log(1e-3), rel=1e-15
        )
        assert math.exp(distribution.log_probabilities[-1]) == 0

    def test_long_distributions_sum_to_one(self):
        for design in (
            Poisson(n_records=10**6, rate=0.3),
            WithoutReplacement(n_records=10**6, batch_size=300_000),
            WithReplacement(n_records=10**6, batch_size=300_000),
        ):
            total = math.fsum(np.exp(design.discrepancy_distribution(500_000).log_probabilities))
            assert total == pytest.approx(1, abs=1e-12)


N_RECORDS, N_DIFFERING, BATCH_SIZE, N_BATCHES = 12, 5, 6, 200_000

SIMULATED = {
    "poisson": Poisson(n_records=N_RECORDS, rate=BATCH_SIZE / N_RECORDS),
    "without_replacement": WithoutReplacement(n_records=N_RECORDS, batch_size=BATCH_SIZE),
    "with_replacement": WithReplacement(n_records=N_RECORDS, batch_size=BATCH_SIZE),
}


@pytest.fixture(scope="module")
def draws(seed):
    """Discrepancies of simulated batches; the records that differ are the first ones."""
    rng = np.random.default_rng(seed)
    chosen = rng.random((N_BATCHES, N_RECORDS)) < BATCH_SIZE / N_RECORDS
    shuffled = rng.permuted(np.tile(np.arange(N_RECORDS), (N_BATCHES, 1)), axis=1)
    drawn = rng.integers(N_RECORDS, size=(N_BATCHES, BATCH_SIZE))
    return {
        "poisson": chosen[:, :N_DIFFERING].sum(axis=1),
        "without_replacement": (shuffled[:, :BATCH_SIZE] < N_DIFFERING).sum(axis=1),
        "with_replacement": (drawn < N_DIFFERING).sum(axis=1),
    }


@pytest.mark.statistical
class TestSimulation:
    @pytest.mark.parametrize(("drawn", "claimed"), list(itertools.product(SIMULATED, SIMULATED)))
    def test_each_distribution_fits_its_own_batches_and_no_others(self, draws, drawn, claimed):
        p = counting.p_value(draws[drawn], probabilities(SIMULATED[claimed], N_DIFFERING))
        assert (p > counting.THRESHOLD) == (drawn == claimed)

    @pytest.mark.parametrize("name", SIMULATED)
    @pytest.mark.parametrize("wrong", [N_DIFFERING - 1, N_DIFFERING + 1])
    def test_one_differing_record_more_or_less_is_seen(self, draws, name, wrong):
        p = counting.p_value(draws[name], probabilities(SIMULATED[name], wrong))
        assert p < counting.THRESHOLD

    def test_a_rate_that_is_two_percent_off_is_seen(self, draws):
        off = Poisson(n_records=N_RECORDS, rate=1.02 * BATCH_SIZE / N_RECORDS)
        assert counting.p_value(draws["poisson"], probabilities(off, 5)) < counting.THRESHOLD

    @pytest.mark.parametrize("name", SIMULATED)
    def test_the_mean_square_is_the_simulated_one(self, draws, name):
        squares = draws[name].astype(float) ** 2
        distance = abs(squares.mean() - SIMULATED[name].mean_square_discrepancy(N_DIFFERING))
        assert distance < 6 * squares.std() / math.sqrt(N_BATCHES)

    @pytest.mark.parametrize("name", SIMULATED)
    def test_the_cap_is_reached_and_never_passed(self, draws, name):
        assert draws[name].max() == SIMULATED[name].discrepancy_cap(N_DIFFERING)


class TestCap:
    @pytest.mark.parametrize(
        ("design", "caps"),
        [
            (Poisson(n_records=10, rate=0.1), {0: 0, 1: 1, 4: 4, 10: 10}),
            (WithoutReplacement(n_records=10, batch_size=4), {0: 0, 1: 1, 4: 4, 10: 4}),
            (WithReplacement(n_records=10, batch_size=4), {0: 0, 1: 4, 4: 4, 10: 4}),
        ],
    )
    def test_known_answers(self, design, caps):
        assert {d: design.discrepancy_cap(d) for d in caps} == caps


class TestDivisor:
    def test_is_public_and_does_not_depend_on_a_draw(self):
        assert Poisson(n_records=50_000, rate=0.01024).divisor == 512
        assert WithoutReplacement(n_records=50_000, batch_size=512).divisor == 512
        assert WithReplacement(n_records=50_000, batch_size=512).divisor == 512

    @pytest.mark.parametrize(
        "design",
        [Poisson(n_records=3, rate=1), WithReplacement(n_records=3, batch_size=2)],
    )
    def test_is_a_float(self, design):
        assert type(design.divisor) is float


class TestPoissonRatio:
    @pytest.mark.parametrize("n_differing", range(6))
    @pytest.mark.parametrize("rate", [0.125, 0.5, 1.0])
    def test_every_batch_gone_through(self, rate, n_differing):
        exact = sum(
            chance * Fraction(sum(i < n_differing for i in batch), len(batch)) ** 2
            for batch, chance in counting.poisson_batches(5, rate)
            if batch
        )
        ratio = poisson_mean_square_ratio(Poisson(n_records=5, rate=rate), n_differing)
        assert ratio == pytest.approx(float(exact), rel=1e-13)

    def test_all_records_differ_unless_the_batch_is_empty(self):
        ratio = poisson_mean_square_ratio(Poisson(n_records=50, rate=0.02), 50)
        assert ratio == pytest.approx(1 - 0.98**50, rel=1e-13)

    def test_one_record(self):
        assert poisson_mean_square_ratio(Poisson(n_records=1, rate=0.25), 1) == 0.25

    def test_is_not_the_mean_square_over_the_expected_size(self):
        design = Poisson(n_records=50_000, rate=0.01024)
        divided = design.mean_square_discrepancy(20) / design.divisor**2
        ratio = poisson_mean_square_ratio(design, 20)
        # E[K^2 | B] / B^2 = one + two / B, and the mean of 1/B is above 1/E[B] by (1 - q)/E[B]^2.
        one = 20 * 19 / (50_000 * 49_999)
        two = 20 / 50_000 - one
        inverse = (1 + (1 - design.rate) / design.divisor) / design.divisor
        assert ratio == pytest.approx(one + two * inverse, rel=2e-5)
        assert ratio > 1.001 * divided

    def test_more_differing_than_records(self):
        with pytest.raises(ArgumentError, match="n_differing must be at most n_records = 5, got 6"):
            poisson_mean_square_ratio(Poisson(n_records=5, rate=0.5), 6)


class TestDescription:
    @given(designs())
    def test_round_trip_through_json(self, design):
        text = json.dumps(design.description(), allow_nan=False)
        assert sampling_from_description(json.loads(text)) == design

    def test_names(self):
        kinds = [design.description()["kind"] for design in SIMULATED.values()]
        assert kinds == ["poisson", "without_replacement", "with_replacement"]
        assert kinds == [design.name for design in SIMULATED.values()]

    def test_numpy_numbers_become_plain(self):
        design = Poisson(n_records=np.int64(10), rate=np.float32(0.5))
        assert json.dumps(design.description()) == json.dumps(
            {"kind": "poisson", "n_records": 10, "rate": 0.5}
        )
        sized = WithReplacement(n_records=np.int32(10), batch_size=np.uint8(5))
        assert type(sized.batch_size) is int

    @pytest.mark.parametrize("kind", ["shuffled", None, 3, ["poisson"]])
    def test_unknown_kind(self, kind):
        with pytest.raises(ArgumentError, match="one of poisson, without_replacement, with_repl"):
            sampling_from_description({"kind": kind, "n_records": 3, "batch_size": 2})

    def test_no_kind(self):
        with pytest.raises(ArgumentError, match="got None"):
            sampling_from_description({"n_records": 3, "rate": 0.5})

    @pytest.mark.parametrize(
        "fields",
        [{}, {"n_records": 3}, {"n_records": 3, "rate": 0.5, "seed": 1}, {"n_records": 3, "q": 1}],
    )
    def test_other_fields(self, fields):
        with pytest.raises(ArgumentError, match="poisson sampling is described by n_records and r"):
            sampling_from_description({"kind": "poisson", **fields})

    def test_values_are_checked_again(self):
        with pytest.raises(ArgumentError, match="rate must be greater than 0"):
            sampling_from_description({"kind": "poisson", "n_records": 3, "rate": 0})


class TestRefused:
    @pytest.mark.parametrize("rate", [0, 0.0, -0.1, 1.0000001, 2, math.nan, math.inf, True, "0.1"])
    def test_rate(self, rate):
        with pytest.raises(ArgumentError, match="rate must be greater than 0 and at most 1, got"):
            Poisson(n_records=10, rate=rate)

    @pytest.mark.parametrize("n_records", [0, -1, 2.5, True, "10", None])
    @pytest.mark.parametrize(
        "make",
        [
            lambda n: Poisson(n_records=n, rate=0.5),
            lambda n: WithoutReplacement(n_records=n, batch_size=1),
            lambda n: WithReplacement(n_records=n, batch_size=1),
        ],
    )
    def test_n_records(self, make, n_records):
        with pytest.raises(ArgumentError, match="n_records must be a whole number and at least 1"):
            make(n_records)

    @pytest.mark.parametrize("kind", [WithoutReplacement, WithReplacement])
    def test_batch_size(self, kind):
        with pytest.raises(
            ArgumentError, match="batch_size must be at most n_records = 10, got 11"
        ):
            kind(n_records=10, batch_size=11)
        with pytest.raises(ArgumentError, match="batch_size must be a whole number and at least 1"):
            kind(n_records=10, batch_size=0)

    @pytest.mark.parametrize("design", SIMULATED.values())
    def test_differing(self, design):
        for ask, name in (
            (design.discrepancy_cap, "max_differing"),
            (design.discrepancy_distribution, "n_differing"),
            (design.mean_square_discrepancy, "n_differing"),
        ):
            with pytest.raises(ArgumentError, match=f"{name} must be at most n_records = 12"):
                ask(13)
            for bad in (-1, 1.5, True):
                with pytest.raises(ArgumentError, match=f"{name} must be a whole number"):
                    ask(bad)

    @pytest.mark.parametrize(
        "design",
        [
            Poisson(n_records=2**25, rate=0.5),
            WithoutReplacement(n_records=2**26, batch_size=2**25),
            WithReplacement(n_records=2**26, batch_size=2**25),
        ],
    )
    def test_distributions_that_would_fill_the_memory(self, design):
        with pytest.raises(ArgumentError, match="33554433 counts, more than the 16777216"):
            design.discrepancy_distribution(2**25)
        assert design.mean_square_discrepancy(2**25) > 0
        assert design.discrepancy_cap(2**25) == 2**25

    def test_designs_are_frozen(self):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            SIMULATED["poisson"].rate = 0.1


class TestDiscrepancy:
    def test_locked_and_equal_by_value(self):
        distribution = SIMULATED["poisson"].discrepancy_distribution(3)
        assert distribution == SIMULATED["poisson"].discrepancy_distribution(3)
        assert distribution != SIMULATED["poisson"].discrepancy_distribution(2)
        assert repr(distribution) == "Discrepancy(0..3)"
        with pytest.raises(ValueError, match="read-only"):
            distribution.log_probabilities[0] = 0

    @pytest.mark.parametrize("counts", [[], [1, 2], [0, 2], [1, 0]])
    def test_counts(self, counts):
        with pytest.raises(ArgumentError, match="counts must be 0, 1, 2"):
            Discrepancy(counts=counts, log_probabilities=[math.log(0.5)] * 2)

    def test_length(self):
        with pytest.raises(ArgumentError, match=r"shape \(2,\), one for each count; got \(1,\)"):
            Discrepancy(counts=[0, 1], log_probabilities=[0.0])

    @pytest.mark.parametrize(
        "logs", [[0.0, -20.0], [-1.0, -1.0], [math.nan, 0.0], [math.inf, 0.0], [1e6, 0.0]]
    )
    def test_sum(self, logs):
        with pytest.raises(ArgumentError, match="must sum to 1, got"):
            Discrepancy(counts=[0, 1], log_probabilities=logs)


@given(st.integers(0, 30), st.floats(0.01, 100), st.floats(0.01, 100), st.floats(1e-3, 1e3))
def test_only_the_odds_of_a_trial_count(n_trials, success, failure, factor):
    one = binomial_log_probabilities(n_trials, success, failure)
    other = binomial_log_probabilities(n_trials, success * factor, failure * factor)
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
