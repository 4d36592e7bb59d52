# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""Whether a release is worth making: noise beside what each statistic could tell."""

import json

import numpy as np
import pyarrow as pa
import pytest
from tests.certificate.conftest import bell, worlds

from pufferslice import (
    Guarantee,
    Scenario,
    certify_release,
    datasets,
)
from pufferslice.certificate.verdict import verdict
from pufferslice.errors import CertificateError
from pufferslice.queries import columns, summary

TARGET = Guarantee.unsliced(order=4, epsilon=1.0)


def test_groups_of_adult_are_not_worth_releasing():
    """Law `groups`: a constant is better at every epsilon below 2 * order, shaped noise or not."""
    query = summary(mean=["age", "hours-per-week", "education-num"])
    scenario = Scenario.from_groups(datasets.adult(), secret="race", query=query)
    certificate = certify_release(scenario, TARGET)
    judged = verdict(certificate)
    assert judged.is_determined
    assert not judged.is_useful
    assert "not worth making" in judged.sentence
    assert "whole table" in judged.sentence
    stds = certificate.statement.noise.std_by_coordinate
    for statistic, std in zip(judged.statistics, stds, strict=True):
        assert statistic.noise_std == std > statistic.constant_error
        assert str(judged).count(f"{std:.3g}") >= 1
    assert str(judged).splitlines()[1].endswith("noise")


def judged_worlds(size=100.0, spread=1.0, shift=1.0, source="released_data", **options):
    """Worlds whose first mean differs, and the certificate of a release."""
    cov = spread**2 * np.eye(2)
    x, y = bell([size, 1.0], cov), bell([size + shift, 1.0], cov)
    scenario = worlds(x=x, y=y, query=summary(mean=["a", "b"]), source=source)
    return certify_release(scenario, TARGET, **options)


def test_declared_worlds_are_measured_by_the_size_of_the_statistic():
    """Readers do not know what the prior, made of the data, knows."""
    judged = verdict(judged_worlds(spread=0.1))
    large, small = judged.statistics
    assert large.is_useful
    assert large.difference == pytest.approx(1.0)
    assert large.size == pytest.approx(101.0)
    assert small.difference == pytest.approx(0.0, abs=1e-12)
    assert not judged.is_determined
    assert judged.is_useful
    # Half a standard deviation apart, and 0.1 within: sqrt(0.25 + 0.01).
    assert large.constant_error == pytest.approx(np.sqrt(0.26))
    assert small.constant_error == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("source", "yardstick", "is_useful"),
    [
        ("released_data", "size", True),
        ("held_out", "size", True),
        ("public_model", "constant", False),
    ],
)
def test_readers_who_have_the_model_know_what_a_constant_tells(source, yardstick, is_useful):
    """Means 0.2 apart, 0.1 within: noise is above a constant, and far below the mean of 100."""
    certificate = judged_worlds(spread=0.1, shift=0.2, source=source, shape="isotropic")
    judged = verdict(certificate)
    large = judged.statistics[0]
    assert large.constant_error < large.noise_std < large.size
    assert (judged.yardstick, large.is_useful) == (yardstick, is_useful)
    assert ("a constant" in judged.sentence) is not is_useful


def test_one_of_two_is_only_noise():
    judged = verdict(judged_worlds(shift=8.0, shape="isotropic"))
    assert [statistic.is_useful for statistic in judged.statistics] == [True, False]
    assert judged.sentence.startswith("1 of 2 statistics are not worth releasing")
    assert "larger bound" in judged.sentence
    lines = str(judged).splitlines()
    assert [line.endswith("  mostly noise") for line in lines[1:3]] == [False, True]


def test_everything_is_useful():
    judged = verdict(judged_worlds(size=50.0, shift=0.01))
    assert judged.sentence.startswith("For every statistic")
    assert all("mostly noise" not in line for line in str(judged).splitlines()[1:3])


def test_records_are_measured_by_a_constant():
    """A released row is one person's: a statistic of it must beat the best constant."""
    rng = np.random.default_rng(0)
    site = np.repeat(["x", "y"], 200)
    table = pa.table({"site": site, "a": rng.normal(size=400) + (site == "y") * 0.2})
    scenario = Scenario.from_records(table, secret="site", query=columns(["a"]))
    strict = verdict(certify_release(scenario, Guarantee.unsliced(order=4, epsilon=0.01)))
    assert not strict.is_determined
    assert not strict.is_useful
    loose = verdict(certify_release(scenario, Guarantee.unsliced(order=4, epsilon=50.0)))
    assert loose.is_useful
    (statistic,) = loose.statistics
    assert statistic.constant_error == pytest.approx(table["a"].to_numpy().std(), rel=1e-9)


def test_json_is_plain_and_complete():
    judged = verdict(judged_worlds())
    document = json.loads(json.dumps(judged.to_json()))
    assert document["is_useful"] == judged.is_useful
    assert document["sentence"] == judged.sentence
    assert [row["name"] for row in document["statistics"]] == ["mean(a)", "mean(b)"]


def test_nothing_of_it_is_public():
    certificate = judged_worlds(shift=0.7312)
    assert "0.7312" in json.dumps(verdict(certificate).to_json())
    assert "spreads" not in json.dumps(certificate.to_json())
    with pytest.raises(CertificateError, match="evidence"):
        verdict(type(certificate)(statement=certificate.statement, evidence=None))


def test_equal_distributions():
    atoms = [[1.0], [3.0]]
    judged = verdict(certify_release(worlds(x=atoms, y=atoms), TARGET))
    assert judged.is_useful
    assert judged.statistics[0].noise_std == 0
