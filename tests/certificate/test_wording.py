# SPDX-License-Identifier: Apache-2.0
import re

import numpy as np
import pytest
from tests.certificate.conftest import KINDS

from pufferslice.calibration.guarantee import Guarantee, at_most
from pufferslice.certificate import certify_release
from pufferslice.certificate.wording import limit_sentences
from pufferslice.queries import summary
from pufferslice.scenario.distributions import FiniteDistribution, GaussianDistribution
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
    assert ("except with probability 0.1" if doubtful else "with certainty") in text
    for prior in certificate.statement["scenario"]["priors"]:
        assert f"{prior['name']}: {prior['kind']}" in text
        assert prior["origin"] in text
    for name in certificate.statement["scenario"]["query"]["names"]:
        assert name in text
    for limit in limit_sentences(certificate.statement):
        assert limit in text
    assert "None" not in text
    assert "nan" not in text


def test_sliced_and_unsliced_are_labelled(certificates):
    text = str(certificates["records"])
    assert "Unsliced (the released bits): at most" in text
    assert "times the claim's epsilon" in text
    sliced = [line for line in text.splitlines() if line.startswith("  sliced joint (")]
    unsliced = [line for line in text.splitlines() if line.startswith("  unsliced (")]
    assert len(sliced) == len(unsliced) == 4
    assert "along 6 slices of 2 dimensions" in text


def test_an_unsliced_claim_does_not_speak_of_slices(certificates):
    text = str(certificates["unsliced"])
    assert "Claim: (3, 2)-RPP, with certainty." in text
    assert "along 6 slices" not in text
    assert "  sliced" not in text


def test_numbers_are_those_of_the_statement(certificates):
    statement = certificates["records"].statement
    text = str(certificates["records"])
    noise = statement["noise"]
    assert f"standard deviation {noise['std']:.6g} in scaled coordinates" in text
    assert f"pay: {noise['std_by_coordinate'][0]:.6g}" in text
    assert f"at most {at_most(statement['unsliced']['epsilon'])} at order 4" in text
    assert f"The noise costs {at_most(statement['spent_epsilon'])} of 1 (tight, transport)" in text
    assert noise["generator"] in text


def test_earlier_releases_in_words(certificates):
    text = str(certificates["groups"])
    assert "does not cover jointly: abababababab." in text
    assert "does not cover jointly" not in str(certificates["records"])


def test_many_pairs_are_counted():
    worlds = {f"w{i}": FiniteDistribution.uniform([[float(i)]]) for i in range(6)}
    scenario = Scenario.from_worlds(worlds, query=summary(mean=["x"]), source="public_model")
    certificate = certify_release(
        scenario, Guarantee.joint(order=2, epsilon=1.0, profile=FiniteProfile.axes(dim=1))
    )
    assert ", and 9 more." in str(certificate)


def test_no_finite_unsliced_bound_is_said():
    """Along the first axis the distributions are close.

    In the second their spreads are far apart.
    """
    worlds = {
        "a": GaussianDistribution(mean=[0.0, 0.0], cov=np.diag([1.0, 1.0])),
        "b": GaussianDistribution(mean=[3.0, 0.0], cov=np.diag([1.0, 100.0])),
    }
    scenario = Scenario.from_worlds(worlds, query=summary(mean=["x", "y"]), source="public_model")
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
    found = re.search(r"Unsliced \(the released bits\): at most (\S+) at order", text)
    assert float(found[1]) >= statement["unsliced"]["epsilon"]
    views = re.findall(r"\n  (sliced average|sliced joint|unsliced) \((\S+), (\S+)\)", text)
    assert len(views) == len(statement["views"])
    for (scope, epsilon, delta), view in zip(views, statement["views"], strict=True):
        assert scope == view["scope"]
        assert float(epsilon) >= view["epsilon"]
        assert float(delta) >= view["delta"]
    spent = re.search(r"The noise costs (\S+) of", text)
    assert float(spent[1]) >= statement["spent_epsilon"]
    error = re.search(r"sampling error at most (\S+) in total variation", text)
    assert float(error[1]) >= statement["noise"]["implementation_delta"]
