# SPDX-License-Identifier: Apache-2.0
"""Certificates of training runs: what composes, and what the replacement of one record gets."""

import math

import attrs
import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.certificate.conftest import changed, changes, stating, worlds

from pufferslice._core.numbers import percent_at_most
from pufferslice.certificate import Certificate, certify_release, verify
from pufferslice.certificate.files import json_schemas
from pufferslice.certificate.sweep import stated_variation, what_if_training
from pufferslice.certificate.training import (
    certify_training,
    costs_by_order,
    record_accountant,
    record_cost,
    record_epsilon,
    secret_epsilon,
)
from pufferslice.certificate.verify import UNCHECKED_TRAINING
from pufferslice.certificate.wording import first_lines, guess_sentence
from pufferslice.claims import Guarantee, Measure, Renyi
from pufferslice.claims.views import ORDERS, improved_epsilon_joint, paper_epsilon
from pufferslice.errors import ArgumentError, CalibrationError, CertificateError
from pufferslice.learning import (
    Amplified,
    LayerClipping,
    LogMoment,
    MeanSquare,
    Poisson,
    WithoutReplacement,
    WithReplacement,
    WorstCase,
    at_most,
    binomial,
    calibrate_multiplier,
    exactly,
    from_pmf,
    mixed_cost,
    mostly_at_most,
    plan_training,
    plan_with_noise,
    run_cost,
)
from pufferslice.learning.accountants import certifies, draws_may_be_seen
from pufferslice.learning.plan import HYPOTHESES
from pufferslice.sensitivity.profiles import FiniteProfile

RANDOM = binomial(n_records=100, mismatch_probability=0.05)
CUT = from_pmf([0.7, 0.2, 0.1 - 1e-6, 1e-6]).truncated(tail_probability=2e-6)
SIMULATED = mostly_at_most(6, tail_probability=2e-6, failure_probability=0.01)
COIN = from_pmf([0.5, 0.5])
RENYI = Guarantee.unsliced(order=4, epsilon=1.0)
TEN = WithoutReplacement(n_records=100, batch_size=10)
POISSON = Poisson(n_records=100, rate=0.1)
LAYERS = LayerClipping(names=("a", "b"), norms=(1.0, 0.5), sizes=(3, 9), allocation="equal")


def planned(order=4, **changes):
    """A plan that states a divergence, or with a tail an epsilon at a delta."""
    fields = {
        "differing": RANDOM,
        "sampling": TEN,
        "clip_norm": 1.0,
        "noise_multipliers": np.full(50, 40.0),
        "accountant": LogMoment(),
    } | changes
    measure = Measure.of(fields["accountant"].claim(order=order, epsilon=1.0))
    if fields["differing"].excess_probability:
        measure = Measure.epsilon_delta(delta=1e-5)
    return plan_with_noise(**{"measure": measure} | fields)


def planned_for(target, **changes):
    fields = {
        "differing": CUT,
        "sampling": TEN,
        "clip_norm": 1.0,
        "n_steps": 5,
        "accountant": LogMoment(),
    }
    return plan_training(target=target, **{**fields, **changes})


def certified(data="people 2024", deltas=(1e-5,), **changes):
    return certify_training(planned(**changes), data=data, deltas=deltas)


def together(*changes, **options):
    """Certify several runs over the same data in one certificate."""
    plans = [planned(**each) for each in changes]
    return certify_training(plans, **{"data": "d", "deltas": (1e-5,)} | options)


def drawn(distance, deltas=()):
    plan = planned(differing=COIN)
    return certify_training(plan, data="d", deltas=deltas, implementation_delta=distance)


KINDS = {
    "random": certified,
    "worst_case": lambda: certified(accountant=WorstCase(), differing=at_most(4)),
    "mean_square": lambda: certified(accountant=MeanSquare(), differing=exactly(5)),
    "amplified": lambda: certified(accountant=Amplified(), differing=exactly(5), sampling=POISSON),
    "layers": lambda: certified(clip_norm=LAYERS, differing=COIN, deltas=(1e-5, 1e-7)),
    "schedule": lambda: certified(noise_multipliers=[30.0, 40.0], differing=COIN),
    "no_delta": lambda: certified(differing=exactly(2), deltas=()),
    "several": lambda: together(
        {"differing": COIN}, {"differing": COIN, "noise_multipliers": [20.0]}
    ),
    "two_accountants": lambda: together(
        *(
            {"sampling": POISSON, "accountant": one(), "differing": COIN}
            for one in (LogMoment, Amplified)
        )
    ),
    "guess": lambda: certified(differing=COIN, measure=Measure.guess()),
    "guess by mean square": lambda: certified(accountant=MeanSquare(), measure=Measure.guess()),
    "guess with secret draws": lambda: certified(
        accountant=Amplified(), differing=exactly(5), sampling=POISSON, measure=Measure.guess()
    ),
    "bits": lambda: certified(differing=COIN, measure=Measure.information()),
    "epsilon": lambda: certified(differing=COIN, measure=Measure.epsilon_delta(delta=1e-6)),
    "guess with a tail": lambda: certified(differing=CUT, measure=Measure.guess()),
    "guesses": lambda: together(
        *(
            {
                "sampling": POISSON,
                "accountant": one(),
                "differing": COIN,
                "measure": Measure.guess(),
            }
            for one in (MeanSquare, Amplified)
        )
    ),
    "drawn": lambda: drawn(2e-20, deltas=(1e-5,)),
    "stops": lambda: certify_training(
        attrs.evolve(planned(differing=COIN), non_finite="stop"), data="d"
    ),
    "truncated": lambda: certified(differing=CUT, deltas=(1e-5, 1e-3)),
    "two truncated": lambda: together(
        {"differing": SIMULATED}, {"differing": SIMULATED}, deltas=(1e-5, 1e-4)
    ),
    "two runs": lambda: together(
        {"differing": COIN},
        {"differing": COIN, "noise_multipliers": np.full(20, 40.0)},
        implementation_delta=6e-20,
    ),
}


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft202012Validator(json_schemas()["certificate"])


@pytest.mark.parametrize("kind", KINDS)
def test_certificates_fit_the_schema_and_verify(kind, validator, tmp_path):
    certificate = KINDS[kind]()
    validator.validate(certificate.to_json())
    verification = verify(certificate)
    assert verification.problems == ()
    assert verification.has_evidence
    assert [line.split(":")[0] for line in verification.unchecked] == list(UNCHECKED_TRAINING)
    certificate.save(tmp_path / "run.json")
    back = Certificate.load(tmp_path / "run.json")
    assert back.digest == certificate.digest
    assert verify(back).holds
    assert not (tmp_path / "run.evidence.npz").exists()
    assert str(back).startswith(str(certificate)[:40])


@pytest.mark.parametrize("name", ["noise_std", "spent", "unsliced_epsilon", "is_secure"])
def test_what_only_a_release_has(name):
    with pytest.raises(CertificateError, match="belongs to certificates of a release"):
        getattr(KINDS["amplified"](), name)


def test_what_a_certificate_says():
    certificate = KINDS["amplified"]()
    statement = certificate.statement
    plan = planned(accountant=Amplified(), differing=exactly(5), sampling=POISSON)
    assert certificate.workflow == "training"
    assert certificate.guarantee == plan.guarantee()
    assert [run.to_json() for run in statement.runs] == [plan.to_json()]
    assert statement.certifies == [certifies(Amplified(), Renyi)]
    assert statement.draws_may_be_seen == [draws_may_be_seen(Amplified(), Renyi)]
    assert statement.failure_probability == 0.0
    assert statement.hypotheses == list(HYPOTHESES)
    assert "epsilons-do-not-add" in statement.limits


@pytest.mark.soundness
def test_views_are_the_conversions_at_the_order_and_the_best_of_the_grid():
    plan = planned()
    views = {view.rule: view for view in certified().statement.views}
    epsilon = plan.guarantee().epsilon
    schedule = (plan.sampling, plan.differing, plan.noise_multipliers)
    grid = min(
        improved_epsilon_joint(order, run_cost(LogMoment(), order, *schedule), 1e-5)
        for order in ORDERS
    )
    assert views["paper"].epsilon == pytest.approx(paper_epsilon(4, epsilon, 1e-5), rel=1e-12)
    improved = improved_epsilon_joint(4, epsilon, 1e-5)
    assert views["improved"].epsilon == pytest.approx(improved, rel=1e-12)
    assert views["order_grid"].epsilon == pytest.approx(grid, rel=1e-12)
    least = secret_epsilon([plan], delta=1e-5, implementation_delta=0.0)
    assert views["loss_distribution"].epsilon == pytest.approx(least, rel=1e-12)
    assert 0.5 * grid < least < grid
    assert {(view.scope, view.delta) for view in views.values()} == {("unsliced", 1e-5)}


@pytest.mark.soundness
def test_mean_square_never_becomes_epsilon_delta():
    certificate = certified(accountant=MeanSquare(), differing=exactly(5), deltas=(1e-5, 1e-6))
    mean = {"accountant": MeanSquare(), "differing": exactly(5)}
    both = together(mean, mean, deltas=(1e-5, 1e-6))
    for one in (certificate, both):
        assert one.statement.views == []
        assert one.statement.deltas == []
        assert one.guarantee.notion == "average_over_batches"
        assert "average-over-batches" in one.statement.limits
        assert "implies no SRPP" in str(one)
    views = certified(differing=exactly(5)).statement.views
    assert not verify(stating(certificate, ("views",), views)).holds
    assert certificate.guarantee.epsilon == pytest.approx(0.170454545454545, rel=1e-12)
    assert both.guarantee.epsilon == pytest.approx(2 * 0.170454545454545, rel=1e-12)


def is_costless(path):
    """What a plan says that its cost does not depend on."""
    last = [part for part in path if isinstance(part, str)]
    return path[0] == "runs" and (
        last[-1] in ("origin", "block", "is_fixed_set") or (len(last) > 1 and last[1] == "clipping")
    )


@pytest.mark.soundness
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("schedule", marks=pytest.mark.soak),
        "mean_square",
        pytest.param("several", marks=pytest.mark.soak),
        "no_delta",
        "drawn",
        pytest.param("stops", marks=pytest.mark.soak),
        "truncated",
        pytest.param("guess", marks=pytest.mark.soak),
        "guess by mean square",
        "bits",
        "guess with a tail",
    ],
)
def test_every_changed_field_is_noticed(kind):
    certificate = KINDS[kind]()
    tried, missed = set(), set()
    for path, statement in changes(certificate.statement):
        tried.add(path)
        if verify(Certificate(statement=statement, evidence=None)).holds:
            missed.add(path)
    assert {path[0] for path in missed} <= set(UNCHECKED_TRAINING)
    unexplained = {path for path in missed if path[0] == "runs" and not is_costless(path)}
    assert unexplained == set()
    assert {path[0] for path in tried} == set(certificate.statement.to_json())
    assert ("runs", 0, "noise_multipliers", 0) in tried
    bound = certificate.guarantee.bound_name
    assert ("guarantee", bound) in tried - missed
    assert ("guess",) in tried - missed
    if kind == "mean_square":  # the only accountant whose soundness rests on it
        assert ("runs", 0, "differing", "is_fixed_set") in tried - missed


def hockey_stick(first, second, epsilon, std):
    """Exact delta of two mixtures of N(mean, std^2), given as {mean: probability}."""

    def density(y, sides):
        return sum(chance * stats.norm.pdf(y, mean, std) for mean, chance in sides.items())

    means = [*first, *second]
    y = np.linspace(min(means) - 12 * std, max(means) + 12 * std, 40_001)
    gap = density(y, first) - math.exp(epsilon) * density(y, second)
    return float(np.maximum(gap, 0).sum() * (y[1] - y[0]))


@pytest.mark.soundness
class TestTails:
    """Tails of the differing records are in delta, once for a run, and nowhere else."""

    @staticmethod
    def worlds(n_records, shares):
        """Sums of records that are -1 or 1, with two shares of ones, all in every batch."""
        counts = np.arange(n_records + 1)
        return [
            {2 * k - n_records: float(stats.binom.pmf(k, n_records, p)) for k in counts.tolist()}
            for p in shares
        ]

    @pytest.mark.parametrize("n_records", [1, 6])
    @pytest.mark.parametrize("shares", [(0.0, 0.02), (0.3, 0.4), (0.5, 0.45)])
    @pytest.mark.parametrize("multiplier", [0.2, 1.5, 8.0])
    @pytest.mark.parametrize("tail", [1e-3, 0.05, 0.2])
    def test_no_claim_is_below_the_exact_divergence(self, n_records, shares, multiplier, tail):
        """T full-batch steps show the sum with noise of std z / sqrt(T); the means are 2 apart."""
        n_steps = 4
        whole = binomial(n_records=n_records, mismatch_probability=abs(shares[0] - shares[1]))
        cut = whole.truncated(tail_probability=tail)
        plan = planned(
            differing=cut,
            sampling=Poisson(n_records=n_records, rate=1.0),
            noise_multipliers=np.full(n_steps, multiplier),
            accountant=WorstCase(),
        )
        delta = tail + 0.01
        epsilon = secret_epsilon([plan], delta=delta, implementation_delta=0.0)
        first, second = self.worlds(n_records, shares)
        std = multiplier / math.sqrt(n_steps)
        for pair in ((first, second), (second, first)):
            assert hockey_stick(*pair, min(epsilon, 600.0), std) <= delta * (1 + 1e-6)

    def test_without_the_tail_the_claim_would_be_false(self):
        """A record in 50 flips: with hardly any noise the whole tail shows."""
        whole = binomial(n_records=3, mismatch_probability=0.02)
        cut = whole.truncated(tail_probability=0.06)
        assert cut.largest == 0
        plan = planned(
            differing=cut,
            sampling=Poisson(n_records=3, rate=1.0),
            noise_multipliers=[0.05],
            accountant=WorstCase(),
        )
        epsilon = secret_epsilon([plan], delta=0.059, implementation_delta=0.0)
        first, second = self.worlds(3, (0.0, 0.02))
        exact = hockey_stick(second, first, epsilon, 0.05)
        assert 0.059 - cut.excess_probability < exact <= 0.059
        assert exact == pytest.approx(1 - 0.98**3, rel=1e-3)

    def test_what_the_certificate_says(self):
        certificate = KINDS["truncated"]()
        statement, plan = certificate.statement, planned(differing=CUT)
        claim = certificate.guarantee
        assert str(claim).endswith("-PP")
        assert claim.delta == 1e-5
        assert claim.epsilon == secret_epsilon([plan], delta=1e-5, implementation_delta=0.0)
        given = attrs.evolve(plan, differing=CUT.without_excess)
        left = 1e-5 - CUT.excess_probability
        assert claim.epsilon == pytest.approx(
            secret_epsilon([given], delta=left, implementation_delta=0.0), rel=1e-9
        )
        assert "Rényi" not in statement.certifies[0]
        assert "more-may-differ" in statement.limits
        assert "cap-simulated" not in statement.limits
        assert "no Rényi claim" in str(certificate)
        assert {view.delta for view in statement.views} == {1e-5, 1e-3}
        assert statement.failure_probability == 0.0
        # One record does not depend on how many differ.
        whole = certified(differing=exactly(1), deltas=(1e-5, 1e-3)).statement
        assert statement.one_record.epsilon_at_delta == whole.one_record.epsilon_at_delta
        (point,) = what_if_training(certificate, [1.0])
        assert point.noise_multiplier > 0
        assert CUT.excess_probability < stated_variation(certificate) < 0.5

    def test_a_tail_counts_once_for_several_runs(self):
        both = KINDS["two truncated"]()
        assert both.guarantee.delta == 1e-5
        assert both.statement.failure_probability == 0.01
        assert "except with probability at most 0.01 over" in str(both)
        assert {"more-may-differ", "cap-simulated"} <= set(both.statement.limits)
        twice = planned(differing=SIMULATED, noise_multipliers=np.full(100, 40.0))
        expected = secret_epsilon([twice], delta=1e-5, implementation_delta=0.0)
        assert both.guarantee.epsilon == pytest.approx(expected, rel=1e-12)

    def test_the_distance_of_the_noise_is_in_the_claim(self):
        plan = planned(differing=SIMULATED)
        claims = [
            certify_training(plan, data="d", implementation_delta=distance).guarantee.epsilon
            for distance in (0.0, 1e-7)
        ]
        assert claims[0] < claims[1]

    @pytest.mark.parametrize("accountant", [WorstCase(), LogMoment(), Amplified()])
    @pytest.mark.parametrize("differing", [exactly(5), CUT, SIMULATED, RANDOM])
    def test_plans_for_epsilon_and_delta(self, accountant, differing):
        target = Guarantee.epsilon_delta(2.0, 1e-5)
        plan = planned_for(
            target, differing=differing, sampling=POISSON, n_steps=20, accountant=accountant
        )
        assert plan.guarantee().epsilon <= 2.0
        epsilon = secret_epsilon([plan], delta=1e-5, implementation_delta=0.0)
        assert 1.99 < epsilon <= 2.0
        less = attrs.evolve(plan, noise_multipliers=plan.noise_multipliers * 0.99)
        assert secret_epsilon([less], delta=1e-5, implementation_delta=0.0) > 2.0

    def test_rare_large_numbers_need_hardly_any_noise_whether_cut_or_not(self):
        """Of 100 records 5 differ on average; the largest number is 100."""
        target = Guarantee.epsilon_delta(2.0, 1e-5)
        whole, cut, worst = (
            planned_for(target, differing=differing, sampling=POISSON, n_steps=20)
            for differing in (RANDOM, RANDOM.truncated(tail_probability=1e-6), at_most(100))
        )
        z = whole.noise_multipliers[0]
        assert z <= cut.noise_multipliers[0] < 1.02 * z
        assert worst.noise_multipliers[0] > 5 * z

    @pytest.mark.parametrize(
        ("call", "match"),
        [
            (lambda _: planned(differing=CUT, measure=Measure.renyi(order=4)), "no Rényi claim"),
            (lambda _: mixed_cost(4, np.zeros(len(CUT.counts)), CUT), "no Rényi claim"),
            (
                lambda plan: run_cost(LogMoment(), 4, TEN, CUT, plan.noise_multipliers),
                "no Rényi claim",
            ),
            (lambda _: calibrate_multiplier(LogMoment(), RENYI, TEN, CUT, 5), "no Rényi claim"),
            (lambda _: planned_for(RENYI), "no Rényi claim"),
            (lambda _: planned(differing=CUT, accountant=MeanSquare()), "not epsilon_delta"),
            (lambda plan: certify_training(plan, data="d", deltas=(1e-7,)), "truncate less"),
            (
                lambda plan: secret_epsilon([plan], delta=1e-7, implementation_delta=0.0),
                "truncate less",
            ),
        ],
    )
    def test_refusals(self, call, match):
        with pytest.raises(ArgumentError, match=match):
            call(planned(differing=CUT))

    def test_no_epsilon_at_all(self):
        with pytest.raises(CalibrationError, match="a larger delta"):
            certify_training(planned(differing=CUT), data="d", implementation_delta=1e-3)


@pytest.mark.soundness
def test_runs_add_as_functions_of_the_differing_records():
    one = certified()
    both = together({}, {})
    assert one.guarantee.epsilon == pytest.approx(0.204848053582437, rel=1e-12)
    assert both.guarantee.epsilon == pytest.approx(0.463058, abs=5e-7)
    assert both.guarantee.epsilon > 1.1 * 2 * one.guarantee.epsilon
    twice = planned(noise_multipliers=np.full(100, 40.0))
    assert both.guarantee.epsilon == pytest.approx(twice.guarantee().epsilon, rel=1e-12)
    assert len(both.statement.runs) == 2
    third = together({}, {}, {})
    longer = planned(noise_multipliers=np.full(150, 40.0))
    assert third.guarantee.epsilon == pytest.approx(longer.guarantee().epsilon, rel=1e-12)


@pytest.mark.soundness
def test_runs_of_different_design_and_noise_add():
    first = planned(differing=exactly(5))
    second = planned(
        differing=exactly(5),
        sampling=WithReplacement(n_records=100, batch_size=20),
        accountant=WorstCase(),
        noise_multipliers=[90.0, 80.0],
        clip_norm=LAYERS,
    )
    both = certify_training([first, second], data="d")
    apart = first.guarantee().epsilon + second.guarantee().epsilon
    assert first.guarantee().epsilon == pytest.approx(0.173487203414766, rel=1e-12)
    assert both.guarantee.epsilon == pytest.approx(apart, rel=1e-12)
    assert both.statement.certifies == [
        certifies(accountant, Renyi) for accountant in (LogMoment(), WorstCase())
    ]
    assert len(both.statement.draws_may_be_seen) == 2


def test_no_run_at_all():
    with pytest.raises(ArgumentError, match="at least one run"):
        secret_epsilon([], delta=1e-5, implementation_delta=0.0)


@pytest.mark.soundness
def test_the_distance_of_the_noise_travels():
    one = drawn(1e-20)
    assert one.statement.implementation_delta == 1e-20
    assert KINDS["no_delta"]().statement.implementation_delta == 0.0
    assert one.guarantee == certified(differing=COIN, deltas=()).guarantee
    assert together({"differing": COIN}, deltas=(), implementation_delta=1e-20).digest == one.digest


@pytest.mark.soundness
def test_a_stop_that_depends_on_the_data_is_not_covered():
    assert "stops-on-non-finite" in KINDS["stops"]().statement.limits
    assert "NaN or infinite" in str(KINDS["stops"]())
    assert "stops-on-non-finite" not in drawn(0.0).statement.limits
    plan = planned(differing=COIN)
    both = certify_training([plan, attrs.evolve(plan, non_finite="stop")], data="d")
    assert "stops-on-non-finite" in both.statement.limits
    assert not verify(stating(KINDS["stops"](), ("runs", 0, "non_finite"), "zero")).holds


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("other", "match"),
    [
        ({"differing": binomial(n_records=100, mismatch_probability=0.06)}, "differing records"),
        ({"differing": exactly(5)}, "different differing records"),
        ({"order": 5}, "different kinds of claims"),
        ({"measure": Measure.guess()}, "different kinds of claims"),
        ({"sampling": WithoutReplacement(n_records=200, batch_size=10)}, "numbers of records"),
    ],
)
def test_what_does_not_compose(other, match):
    with pytest.raises(CertificateError, match=match):
        together({}, other)


@pytest.mark.soundness
def test_another_notion_does_not_compose():
    mean = {"accountant": MeanSquare(), "differing": exactly(5)}
    with pytest.raises(CertificateError, match="different kinds of claims"):
        together({"differing": exactly(5)}, mean)


def test_an_edited_certificate_of_what_does_not_compose_is_refuted():
    run = certified(order=5).statement.runs[0]
    edited = stating(together({}, {}), ("runs", 1), run)
    problems = verify(edited).problems
    assert any("different kinds of claims" in problem for problem in problems)


@pytest.mark.soundness
def test_two_bits_and_their_exclusive_or():
    """Each bit alone is free, both together are the secret: static costs cannot add."""
    equal, different = np.array([[[0.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])

    def released(bits, profile):
        scenario = worlds(equal=equal[:, bits], different=different[:, bits])
        return certify_release(scenario, Guarantee.joint(order=4, epsilon=0.5, profile=profile))

    line = FiniteProfile.uniform(dim=1, n_directions=1, seed=1)
    alone = [released([bit], line) for bit in (0, 1)]
    both = released([0, 1], FiniteProfile.uniform(dim=2, n_directions=20, seed=1))
    for certificate in alone:
        assert certificate.statement.distributions_are_equal is True
        assert certificate.spent == 0
        assert certificate.unsliced_epsilon == 0
    assert both.statement.distributions_are_equal is False
    assert both.spent > 0.4
    assert both.unsliced_epsilon > 0


@pytest.mark.parametrize(
    ("texts", "word"),
    [({"data": ""}, "data"), ({"data": None}, "data"), ({"data": 5}, "data"),
     ({"noise": ""}, "noise"), ({"noise": None}, "noise")],
)  # fmt: skip
def test_data_and_noise_are_named(texts, word):
    with pytest.raises(ArgumentError, match=f"{word} must be"):
        certify_training(planned(), **{"data": "d", **texts})


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_deltas_outside(delta):
    with pytest.raises(ArgumentError, match="delta must lie strictly between"):
        certified(deltas=(delta,))


@pytest.mark.parametrize(
    "damage",
    [
        {"claim": {"notion": "unsliced"}},
        {"claim": {"notion": ["guess"]}},
        {"noise_multipliers": ["x"]},
        {"noise_multipliers": [1e-300]},
        {"n_steps": 10**15},
        {"sampling": []},
        {"clipping": None},
        {"version": 1},
        {"differing": {"kind": "listed"}},
    ],
    ids=str,
)
def test_damaged_plans_are_problems_not_crashes(damage):
    assert not verify(changed(certified(), lambda s: s["runs"][0].update(damage))).holds


CERTIFYING = (WorstCase(), LogMoment(), Amplified())


def record_plan(**changes):
    fields = {
        "differing": exactly(20),
        "sampling": Poisson(n_records=2_000, rate=0.01),
        "noise_multipliers": [1.0],
        "accountant": Amplified(),
        "order": 16,
    }
    return planned(**{**fields, **changes})


def one_record(*plans, **options):
    return certify_training(plans, data="d", **options).statement.one_record


@pytest.mark.soundness
def test_known_cost_of_one_amplified_step():
    plan = record_plan(sampling=Poisson(n_records=100, rate=0.1), order=2)
    assert record_cost([plan], 2) == pytest.approx(0.0408272790240896, rel=1e-9)
    assert one_record(plan).epsilon == pytest.approx(0.0408272790240896, rel=1e-9)


@pytest.mark.soundness
def test_mean_square_never_states_its_own_cost():
    """Order 16, noise 1, rate 0.01: it says 0.32 where the truth is 3.10."""
    plan = record_plan(accountant=MeanSquare(), differing=exactly(1))
    assert plan.guarantee().epsilon == pytest.approx(0.32, rel=1e-12)
    truth = record_cost([record_plan()], 16)
    assert truth == pytest.approx(3.10, abs=0.005)
    record = one_record(plan)
    assert record.accountants == ["log_moment"]
    assert record.epsilon >= truth
    log_moment = math.log(0.99 + 0.01 * math.exp(15 * 32)) / 15
    assert record.epsilon == pytest.approx(log_moment, rel=1e-12)
    assert "draws-secret" not in record.conditions


@pytest.mark.parametrize(
    ("sampling", "cap"),
    [
        (Poisson(n_records=50, rate=0.1), 1),
        (WithoutReplacement(n_records=50, batch_size=5), 1),
        (WithReplacement(n_records=50, batch_size=5), 5),
    ],
)
def test_the_worst_case_of_one_record_is_its_cap(sampling, cap):
    """With replacement one record may be drawn every time."""
    plan = record_plan(
        sampling=sampling, accountant=WorstCase(), noise_multipliers=[2.0, 4.0], order=3
    )
    assert record_cost([plan], 3) == pytest.approx(6 * cap**2 * (1 / 4 + 1 / 16), rel=1e-14)


class TestOracle:
    """Losses of the pair of mixtures on a grid, rounded down: never more than the true delta."""

    WIDTH = 1e-3

    @staticmethod
    def losses(noise, rate):
        """Mass and loss of small cells of the line."""
        edges = np.linspace(-1 - 12 * noise, 1 + 12 * noise, 400_001)

        def masses(mean):
            below, above = stats.norm.cdf(edges, mean, noise), stats.norm.sf(edges, mean, noise)
            return np.where(edges[1:] < mean, np.diff(below), -np.diff(above))

        common = (1 - rate) * masses(0.0)
        first, second = common + rate * masses(1.0), common + rate * masses(-1.0)
        kept = (first > 1e-300) & (second > 1e-300)
        return first[kept], np.log(first[kept] / second[kept])

    def delta(self, noise, rate, n_steps, epsilon):
        masses, losses = self.losses(noise, rate)
        cells = np.floor(losses / self.WIDTH).astype(int)
        lowest = cells.min()
        one = np.bincount(cells - lowest, masses)
        size = (len(one) - 1) * n_steps + 1
        spectrum = np.fft.rfft(one, 1 << size.bit_length()) ** n_steps
        total = np.fft.irfft(spectrum)[:size]
        values = (lowest * n_steps + np.arange(size)) * self.WIDTH
        above = (values > epsilon) & (total > 1e-14)
        return float(total[above] @ -np.expm1(epsilon - values[above]))

    @pytest.mark.soundness
    @pytest.mark.parametrize("accountant", CERTIFYING, ids=repr)
    @pytest.mark.parametrize(
        ("noise", "rate", "n_steps", "delta"),
        [(1.0, 0.05, 1, 1e-7), (0.7, 0.3, 1, 1e-3), (2.0, 1.0, 1, 1e-5), (1.5, 0.1, 20, 1e-5)],
    )
    def test_epsilon_is_never_below_the_truth(self, accountant, noise, rate, n_steps, delta):
        plan = record_plan(
            sampling=Poisson(n_records=2_000, rate=rate),
            noise_multipliers=np.full(n_steps, noise),
            accountant=accountant,
        )
        epsilon = record_epsilon([plan], delta=delta, implementation_delta=0.0)
        assert self.delta(noise, rate, n_steps, epsilon) <= delta
        if accountant == Amplified():  # the oracle would notice a quarter of it
            assert self.delta(noise, rate, n_steps, epsilon / 4) > delta

    @pytest.mark.soundness
    def test_the_direction_of_the_pair_does_not_matter(self):
        """The mixtures mirror each other, so one order of them is enough."""
        masses, losses = self.losses(1.0, 0.2)
        assert np.exp(-losses) @ masses == pytest.approx(1.0, abs=1e-12)


@pytest.mark.soundness
def test_runs_add_at_each_order():
    first = record_plan(noise_multipliers=np.full(30, 3.0))
    second = record_plan(accountant=LogMoment(), noise_multipliers=np.linspace(4, 6, 10))
    costs = {
        order: record_cost([first], order) + record_cost([second], order)
        for order in (*ORDERS, 16.0)
    }
    record = one_record(first, second)
    assert record.epsilon == pytest.approx(costs[16.0], rel=1e-12)
    grid = min(improved_epsilon_joint(order, cost, 1e-5) for order, cost in costs.items())
    assert 0.5 * grid <= record.epsilon_at_delta <= grid
    assert record.accountants == ["amplified", "log_moment"]
    assert "draws-secret" in record.conditions
    alone = one_record(first).epsilon_at_delta
    assert alone < record.epsilon_at_delta


@pytest.mark.soundness
@settings(max_examples=40, deadline=None)
@given(
    accountant=st.sampled_from(CERTIFYING),
    rate=st.floats(0.01, 1.0),
    noise=st.floats(0.5, 50.0),
    n_differing=st.integers(1, 12),
    order=st.floats(1.1, 40.0),
    fixed=st.booleans(),
)
def test_one_record_costs_no_more_than_a_secret_that_changes_some(
    accountant, rate, noise, n_differing, order, fixed
):
    plan = record_plan(
        differing=(exactly if fixed else at_most)(n_differing),
        sampling=Poisson(n_records=100, rate=rate),
        noise_multipliers=[noise, 2 * noise],
        accountant=accountant,
        order=order,
    )
    claim = plan.guarantee().epsilon
    assert record_cost([plan], order) <= claim * (1 + 1e-9)
    if n_differing == 1:
        assert record_cost([plan], order) == pytest.approx(claim, rel=1e-12)


@pytest.mark.soundness
def test_a_secret_that_may_change_nothing_can_cost_less_than_one_record():
    plan = record_plan(differing=from_pmf([0.5, 0.5]))
    assert plan.guarantee().epsilon < record_cost([plan], 16)


class TestDistanceOfTheNoise:
    @pytest.mark.soundness
    def test_delta_covers_it(self):
        """(1 + e^epsilon) times the distance is left out of what ideal noise may cost."""
        plan, delta = record_plan(noise_multipliers=np.full(5, 3.0)), 1e-5
        ideal = record_epsilon([plan], delta=delta, implementation_delta=0.0)
        for distance in (1e-12, 1e-8, 1e-6):
            epsilon = record_epsilon([plan], delta=delta, implementation_delta=distance)
            left = delta - (1 + math.exp(epsilon)) * distance
            assert epsilon > ideal
            exact = record_epsilon([plan], delta=left, implementation_delta=0.0)
            assert epsilon == pytest.approx(exact, rel=1e-6)
        assert record_epsilon([plan], delta=delta, implementation_delta=delta) == math.inf

    @pytest.mark.soundness
    @pytest.mark.parametrize("narrow", [np.float32(1e-9), np.float16(1e-6)])
    def test_narrow_floats_do_not_round_epsilon_down(self, narrow):
        plan = record_plan(noise_multipliers=[20.0])
        wide = one_record(plan, implementation_delta=float(narrow))
        assert one_record(plan, implementation_delta=narrow) == wide
        delta = np.float32(1e-5)
        assert record_epsilon([plan], delta=delta, implementation_delta=1e-9) == record_epsilon(
            [plan], delta=float(delta), implementation_delta=1e-9
        )

    def test_a_certificate_without_epsilon_says_so(self):
        certificate = certify_training(record_plan(), data="d", implementation_delta=1e-4)
        record = certificate.statement.one_record
        assert record.epsilon_at_delta is None
        assert record.epsilon > 0
        assert "No (epsilon, delta) can be stated at delta 1e-05" in str(certificate)
        assert verify(certificate).holds
        less = certify_training(record_plan(), data="d", implementation_delta=1e-9)
        assert (
            less.statement.one_record.epsilon_at_delta > one_record(record_plan()).epsilon_at_delta
        )

    @pytest.mark.parametrize("distance", [-1e-9, 1.5, math.nan])
    def test_distances_that_are_none(self, distance):
        with pytest.raises(ArgumentError, match="implementation_delta"):
            record_epsilon([record_plan()], delta=1e-5, implementation_delta=distance)


class TestDeclaredSecret:
    def test_it_is_below_the_best_of_the_orders(self):
        plan = record_plan(noise_multipliers=np.full(5, 30.0))
        epsilon = secret_epsilon([plan], delta=1e-5, implementation_delta=0.0)
        views = certify_training(plan, data="d").statement.views
        by_rule = {view.rule: view.epsilon for view in views}
        assert epsilon == pytest.approx(by_rule["loss_distribution"], rel=1e-12)
        assert epsilon < by_rule["order_grid"]
        assert epsilon > record_epsilon([plan], delta=1e-5, implementation_delta=0.0)

    def test_mean_square_has_none(self):
        plan = record_plan(accountant=MeanSquare())
        with pytest.raises(ArgumentError, match="averages over batches"):
            secret_epsilon([plan], delta=1e-5, implementation_delta=0.0)

    @pytest.mark.parametrize("epsilon_of", [secret_epsilon, record_epsilon])
    def test_only_runs_that_compose(self, epsilon_of):
        with pytest.raises(ArgumentError, match="at least one"):
            epsilon_of([], delta=1e-5, implementation_delta=0.0)
        with pytest.raises(CertificateError, match="different kinds of claims"):
            epsilon_of([record_plan(), record_plan(order=4)], delta=1e-5, implementation_delta=0.0)
        with pytest.raises(ArgumentError, match="delta must lie"):
            epsilon_of([record_plan()], delta=0.0, implementation_delta=0.0)


GUESSES = ("guess", "guess by mean square", "guess with secret draws", "guesses")


@pytest.mark.soundness
@pytest.mark.parametrize("kind", KINDS)
def test_right_guesses_are_stated_whatever_is_claimed(kind):
    """Between a coin flip and what the (epsilon, delta) view allows: TV <= tanh(eps/2) + delta."""
    statement = KINDS[kind]().statement
    assert 0.5 < statement.guess < 1
    for view in statement.views:
        variation = math.tanh(view.epsilon / 2) * (1 - view.delta) + view.delta
        assert statement.guess <= 0.5 + variation / 2 + 1e-9
    if statement.mean_square is not None and kind not in ("worst_case", "two_accountants"):
        assert statement.guess <= stats.norm.cdf(math.sqrt(statement.mean_square) / 2) + 1e-9


@pytest.mark.soundness
@pytest.mark.parametrize("kind", GUESSES)
def test_a_claim_of_guesses_in_the_words_of_releases(kind):
    certificate = KINDS[kind]()
    guarantee, statement = certificate.guarantee, certificate.statement
    assert guarantee.notion == "guess"
    assert guarantee.at_most == statement.guess
    share = percent_at_most(statement.guess)
    seen = "this training run" if len(statement.runs) == 1 else "these training runs"
    words = guess_sentence(statement.guess)
    words = words.replace("this release", seen).replace("over releases", "over training runs")
    lines = first_lines(statement)
    assert lines.guess == words
    assert f"guesses right at most {share} of the time" in lines.guess
    assert f"Claim: {guarantee}.\n" in str(certificate)
    assert "Rényi" not in statement.certifies[0]
    assert "as (epsilon, delta)" in str(certificate).lower()


@pytest.mark.soundness
def test_a_lower_share_than_the_noise_gives_is_refuted():
    certificate = KINDS["guess with secret draws"]()
    share = certificate.guarantee.at_most
    for change in ({"guess": share - 1e-3}, {"guarantee": {"notion": "guess", "at_most": 0.51}}):
        assert not verify(changed(certificate, lambda s, change=change: s.update(change))).holds
    both = changed(
        certificate,
        lambda s: s.update(guess=0.51, guarantee={"notion": "guess", "at_most": 0.51}),
    )
    assert not verify(both).holds


def test_mean_squares_of_runs_add_up():
    """What a budget adds up: 4 E K^2 / z^2 for every step."""
    one, both = KINDS["random"]().statement, together({}, {}).statement
    square = TEN.mean_square_over(100 * 0.05, 100 * 0.05 * 0.95 + 5**2)
    assert one.mean_square == pytest.approx(50 * 4 * square / 40**2, rel=1e-9)
    assert both.mean_square == pytest.approx(2 * one.mean_square, rel=1e-12)
    assert KINDS["truncated"]().statement.mean_square is None


@pytest.mark.soundness
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9, 1e-14])
@pytest.mark.parametrize("noise", [2.0, 40.0])
def test_one_record_has_no_floor(noise, delta):
    """At most 1.1 times dp-accounting's loss distribution; an order grid ends at 0.0195."""
    dp = pytest.importorskip("dp_accounting")
    import dp_accounting.pld

    plan = record_plan(noise_multipliers=np.full(100, noise))
    found = record_epsilon([plan], delta=delta, implementation_delta=0.0)
    event = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(noise))
    relation = dp.NeighboringRelation.REPLACE_ONE
    accountant = dp_accounting.pld.PLDAccountant(neighboring_relation=relation)
    other = accountant.compose(event, 100).get_epsilon(delta)
    if delta >= 1e-9:  # beyond, dp-accounting leaves out more than that
        assert found <= 1.1 * other
        assert found >= 0.95 * other
    orders = costs_by_order([attrs.evolve(plan, differing=exactly(1))])
    assert found <= min(improved_epsilon_joint(o, cost, delta) for o, cost in orders.items())
    if (noise, delta) == (40.0, 1e-3):
        assert found < 0.0195 / 4


@pytest.mark.soundness
@pytest.mark.parametrize("accountant", [Amplified(), MeanSquare()], ids=repr)
def test_every_changed_field_is_refuted(accountant):
    certificate = certify_training(record_plan(accountant=accountant), data="d")
    record = certificate.statement.one_record
    edits = [
        {"adjacency": "add-or-remove"},
        {"accountants": [accountant.name, "log_moment"]},
        {"order": 15.0},
        {"epsilon": record.epsilon * 0.999},
        {"delta": record.delta / 2},
        {"epsilon_at_delta": record.epsilon_at_delta * 0.999},
        {"epsilon_at_delta": None},
        {"conditions": record.conditions[1:]},
        {"conditions": []},
    ]
    if accountant == Amplified():
        edits += [{"accountants": ["log_moment"]}, {"conditions": record.conditions[:-1]}]
    assert verify(certificate).holds
    for change in edits:
        edited = changed(certificate, lambda s, change=change: s["one_record"].update(change))
        assert not verify(edited).holds, change
    assert not verify(changed(certificate, lambda s: s.pop("one_record"))).holds


def test_prose_says_it_with_its_conditions():
    certificate = certify_training(record_plan(noise_multipliers=np.full(50, 4.0)), data="d")
    text = str(certificate)
    assert "differential privacy for the replacement of one record" in text
    assert "(accountant: amplified)" in text
    for said in ("number of records is public", "one record", "preprocessing", "stay secret"):
        assert said in text.partition("One record:")[2]
    assert record_accountant(record_plan()) == Amplified()
