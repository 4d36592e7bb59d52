# SPDX-License-Identifier: Apache-2.0
import re

import numpy as np
import pyarrow as pa
import pytest
from tests.certificate.conftest import KINDS, bell, of_rows, worlds

from pufferslice._core.numbers import at_most, percent_at_most
from pufferslice.certificate import certify_release, certify_training
from pufferslice.certificate.wording import first_lines, limit_sentences
from pufferslice.claims import Guarantee
from pufferslice.learning import LogMoment, MeanSquare, Poisson, binomial, exactly, plan_training
from pufferslice.queries import summary
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile


@pytest.mark.parametrize("kind", KINDS)
def test_every_certificate_reads_from_head_to_limits(certificates, kind):
    certificate = certificates[kind]
    text = str(certificate)
    assert text.startswith(f"Certificate {certificate.digest[:16]}")
    for part in ("Protected: the secret", "Not to be told apart:", "One release is", "Query:"):
        assert part in text
    assert f"Claim: {certificate.guarantee}" in text
    doubtful = kind in ("sampled", "approximate", "sphere")
    assert ("except with probability 0.1" if doubtful else "under the declared priors") in text
    for prior in certificate.statement.scenario.priors:
        assert f"{prior.name}: {prior.kind}" in text
        assert prior.origin in text
    for name in certificate.statement.scenario.query.names:
        assert name in text
    for limit in limit_sentences(certificate.statement):
        assert limit in text
    assert "None" not in text
    assert "nan" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_lines_are_for_every_reader(certificates, kind):
    """What is protected, how often it is guessed, one person, the noise; then the claim."""
    statement = certificates[kind].statement
    lines = str(certificates[kind]).splitlines()
    _, _, protected, guesses, person, noise, _, whole, _, claim, *_ = lines
    assert protected.startswith("Protected: the secret ")
    assert "from someone whose belief is one of the declared priors. Not to be" in protected
    assert person == "Any one person: no promise beside the named secret."
    assert (percent_at_most(statement.unsliced.guess) in guesses) == (kind != "approximate")
    assert ("No useful bound on guessing" in guesses) == (kind == "approximate")
    for std in statement.noise.std_by_coordinate:
        assert (f" {1.959964 * std:.3g}" in noise) == (kind != "equal")
    assert whole.startswith("Unsliced (the released bits)")
    assert claim.startswith(f"Claim: {certificates[kind].guarantee}")


def made_plan(differing, accountant, target):
    return plan_training(
        differing=differing,
        sampling=Poisson(n_records=500, rate=0.5),
        clip_norm=2.0,
        n_steps=12,
        accountant=accountant,
        target=target,
    )


def test_the_first_lines_of_a_training_certificate_are_for_every_reader():
    target = Guarantee.unsliced(order=8, epsilon=4.0)
    plan = made_plan(exactly(4), LogMoment(), target)
    certificate = certify_training(plan, data="digits")
    _, _, protected, guess, single, noise, *_ = str(certificate).splitlines()
    words = "from which of two worlds the records of 'digits' come (exactly 4 records differ)."
    assert protected == f"Protected: {words}"
    assert f"standard deviation {plan.noise_multipliers[0]:.3g} times the clip norm" in noise
    assert f"guesses right at most {percent_at_most(certificate.statement.guess)} of the" in guess
    record = certificate.statement.one_record
    assert f"epsilon {at_most(record.epsilon_at_delta)} at delta 1e-05" in single


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "apart, even from someone who knows every row but the 20 that make the difference."),
        (
            {"design": "independent"},
            "apart, on average over the other rows; about 20 of 400 rows make the difference.",
        ),
        (
            {"kind": "volume"},
            (
                "any two sizes of 'the shop' within a factor of 1.1, up to 500 rows, even from "
                "someone who knows every row but the 45 that make the difference."
            ),
        ),
        (
            {"kind": "state"},
            (
                "the state of 'the home' at each of 2 protected times among 10, from someone who "
                "knows how states follow each other and what is measured in each state, but no "
                "other state."
            ),
        ),
    ],
)
def test_the_first_line_says_from_whom(options, words):
    """Fixed draws hold for someone who knows all other rows; random ones only on average."""
    line = first_lines(of_rows(**options).statement).protected
    assert line.startswith("Protected: ")
    assert line.endswith(words)


def test_one_person_is_promised_something_only_by_noise_from_elsewhere():
    certificate = of_rows()
    person = certificate.statement.one_person
    words = f"({at_most(person.epsilon, digits=3)}, 1e-06)-differential privacy, where a person has"
    assert words in first_lines(certificate.statement).person
    assert "named-secret-only" not in certificate.statement.limits
    released = of_rows(moments_from=None)
    lines = first_lines(released.statement)
    assert lines.person.startswith("Any one person: no promise. The noise was computed from")
    assert lines.guess.endswith("what the noise tells about them comes on top.")
    assert "named-secret-only" in released.statement.limits
    of_slots = first_lines(of_rows("state").statement)
    assert of_slots.person.startswith("Any one person: no promise. A row is not a person here")


def test_the_mean_squared_distance_is_stated_once_as_the_bound_of_the_claim():
    certificate = of_rows()
    square = at_most(certificate.statement.mean_square, digits=3)
    claim = f"whose mean squared distance under this noise is at most {square}."
    assert f"Claim: {certificate.guarantee}, for rows {claim}" in str(certificate)
    assert str(certificate).count("guesses are right") == 0
    assert "Unsliced" not in str(certificate)


def test_the_first_line_says_what_the_claim_is_about():
    target = Guarantee.average_over_batches(order=8, epsilon=4.0)
    plan = made_plan(exactly(4), MeanSquare(), target)
    line = str(certify_training(plan, data="digits")).splitlines()[2]
    assert line.startswith("Protected, on average over batch draws only: from which of two worlds")
    differing = binomial(n_records=500, mismatch_probability=0.01)
    plan = made_plan(differing, LogMoment(), Guarantee.unsliced(order=8, epsilon=4.0))
    line = str(certify_training(plan, data="digits")).splitlines()[2]
    assert line.endswith("(each record differs with probability 0.01).")


def test_sliced_and_unsliced_are_labelled(certificates):
    text = str(certificates["records"])
    assert "Unsliced (the released bits): Rényi divergence at most" in text
    assert "times the claim's epsilon" in text
    sliced = [line for line in text.splitlines() if line.startswith("  sliced joint (")]
    unsliced = [line for line in text.splitlines() if line.startswith("  unsliced (")]
    assert len(sliced) == len(unsliced) == 4
    assert "along 6 slices of 2 dimensions" in text


def test_an_unsliced_claim_does_not_speak_of_slices(certificates):
    text = str(certificates["unsliced"])
    assert "Claim: (3, 2)-RPP for the whole output, under the declared priors." in text
    assert "slices" not in text
    assert "  sliced" not in text


POINTS = {"a": [0.0, 0.0], "b": [3.0, 0.0], "c": [2.0, 2.0]}
RENYI = Guarantee.unsliced(order=4, epsilon=1.0)
GUESS = Guarantee.guess(at_most=0.6)


@pytest.fixture(scope="module")
def points():
    """Groups of one value each; the query in units of 10 and 1."""
    rows = {"site": list(POINTS), "pay": [10 * x for x, _ in POINTS.values()]}
    table = pa.table(rows | {"age": [y for _, y in POINTS.values()]})
    table = pa.concat_tables([table, table])
    query = summary(mean=["pay", "age"]).with_scales([10.0, 1.0])
    return Scenario.from_groups(table, secret="site", query=query)  # noqa: S106 - a column


@pytest.mark.parametrize(
    ("target", "tenth", "whole"),
    [
        (RENYI, "epsilon 1.44;", "epsilon 9."),
        # Phi(1.2 z) and Phi(3 z) with Phi(z) = 0.6, rounded up.
        (GUESS, "62\u00a0% right guesses;", "77.7\u00a0% right guesses."),
        # By Phi(r/2 - e/r) - exp(e) Phi(-r/2 - e/r) with r = 1.2 and 3 times 0.268051.
        (Guarantee.epsilon_delta(1.0, 1e-5), "delta 0.000135713;", "delta 0.064344."),
    ],
    ids=str,
)
def test_the_guard_says_what_a_prior_that_is_off_costs(points, target, tenth, whole):
    certificate = certify_release(points, target)
    guard = certificate.statement.noise.shape.guard
    (sentence,) = re.findall("Guard: .*", str(certificate))
    found = re.search(r"up to (\S+) in scaled coordinates \(mean\(pay\) alone by (\S+)\)", sentence)
    assert guard * 0.99 < float(found[1]) <= guard
    assert guard * 9.9 < float(found[2]) <= guard * 10
    assert f"a tenth of the guard, the cost is {tenth} by the whole guard, {whole}" in sentence


def test_the_shape_and_its_gap_in_words(points, certificates):
    text = str(certify_release(points, RENYI))
    assert "fitted to the secret; the noise of different statistics is correlated." in text
    assert re.search(r"within 0\.0\d\u00a0% of the best Gaussian noise for this claim, with", text)
    assert "it reveals the directions in which the secrets differ" in text
    text = str(certify_release(points, RENYI, shape="diagonal"))
    assert "each statistic by itself; no correlation." in text
    assert "the best Gaussian noise without correlation for this claim" in text
    text = str(certify_release(points, RENYI, shape="isotropic"))
    assert "the same in every direction of the scaled coordinates; no correlation." in text
    assert "the best Gaussian noise" not in text
    text = str(certify_release(points, RENYI, shape=[[2.0, 1.0], [1.0, 2.0]]))
    assert "a public covariance that the data holder chose; the noise of different" in text
    text = str(certificates["unsliced"])
    assert "% of the best Gaussian noise for the couplings that it was fitted to" in text
    assert "counts as longer by 20\u00a0%" in text
    assert "Shape of the noise" not in str(certificates["records"])


def test_guesses_in_words(points):
    text = str(certify_release(points, GUESS))
    assert "Claim: at most 60 % right guesses between two values for the whole output" in text
    assert "guesses right at most 60\u00a0% of the time, on average over releases" in text


def test_numbers_are_those_of_the_statement(certificates):
    statement = certificates["records"].statement
    text = str(certificates["records"])
    noise = statement.noise
    assert f"standard deviation {noise.std:.6g} in scaled coordinates" in text
    assert f"pay: {noise.std_by_coordinate[0]:.6g}" in text
    assert f"at most {at_most(statement.unsliced.epsilon)} at order 4" in text
    assert f"The noise costs {at_most(statement.spent)} of 1 (tight, transport)" in text
    assert noise.generator in text


def test_earlier_releases_in_words(certificates):
    text = str(certificates["groups"])
    assert "does not cover jointly: abababababab." in text
    assert "does not cover jointly" not in str(certificates["records"])


def test_many_pairs_are_counted():
    scenario = worlds(**{f"w{i}": [[float(i)]] for i in range(6)})
    certificate = certify_release(
        scenario, Guarantee.joint(order=2, epsilon=1.0, profile=FiniteProfile.axes(dim=1))
    )
    assert ", and 9 more." in str(certificate)


def test_no_finite_unsliced_bound_is_said():
    """Along the first axis the distributions are close.

    In the second their spreads are far apart.
    """
    scenario = worlds(a=bell([0.0, 0.0], np.eye(2)), b=bell([3.0, 0.0], np.diag([1.0, 100.0])))
    certificate = certify_release(
        scenario, Guarantee.joint(order=4, epsilon=1.0, profile=FiniteProfile.of([[1.0, 0.0]]))
    )
    assert certificate.unsliced_epsilon is None
    assert "Unsliced (the released bits): no finite bound" in str(certificate)


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("order", "epsilon"), [(4.0, 1.0000004), (1.0000001, 1.0), (4.0000004, 0.3333333333)]
)
def test_a_claim_is_not_printed_stronger_than_it_is(order, epsilon):
    """Fewer digits may only say less: a larger epsilon, a smaller order greater than 1."""
    for claim in (
        Guarantee.joint(order=order, epsilon=epsilon),
        Guarantee.unsliced(order=order, epsilon=epsilon),
    ):
        printed = str(claim)[1:].split(")")[0].split(", ")
        assert 1 < float(printed[0]) <= order
        assert float(printed[1]) >= epsilon


@pytest.mark.soundness
@pytest.mark.parametrize("kind", KINDS)
def test_no_bound_is_printed_smaller_than_it_is(certificates, kind):
    statement = certificates[kind].statement
    text = str(certificates[kind])
    found = re.search(
        r"Unsliced \(the released bits\): Rényi divergence at most (\S+) at order", text
    )
    assert float(found[1]) >= statement.unsliced.epsilon
    views = re.findall(r"\n  (sliced average|sliced joint|unsliced) \((\S+), (\S+)\)", text)
    assert len(views) == len(statement.views)
    stated = sorted(statement.views, key=lambda view: view.scope != "unsliced")
    for (scope, epsilon, delta), view in zip(views, stated, strict=True):
        assert scope == view.scope
        assert float(epsilon) >= view.epsilon
        assert float(delta) >= view.delta
    spent = re.search(r"The noise costs (\S+) of", text)
    assert float(spent[1]) >= statement.spent
    error = re.search(r"sampling error at most (\S+) in total variation", text)
    assert float(error[1]) >= statement.noise.implementation_delta
