# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""Whether a release is worth making: noise beside what each statistic could tell."""

import json

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtr
from tests.certificate.conftest import bell, worlds

from pufferslice import (
    Guarantee,
    Scenario,
    certify_release,
    datasets,
    queries,
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
    assert str(judged).splitlines()[1].endswith("mostly noise")


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


# Sums of rows: real cases, as an office would judge them.

GUESS = Guarantee.guess(at_most=0.64)
DAY, WEEK = 48, 336


def a_home(per_period, n_periods):
    """Half-hour readings of one home whose state lasts; every evening at 20:00 is protected."""
    rng = np.random.default_rng(1)
    states = np.arange(4_000) % 2
    kwh = np.where(states == 1, rng.gamma(2.0, 0.3, 4_000), rng.gamma(2.0, 0.08, 4_000))
    periods = np.repeat(np.arange(n_periods), per_period).tolist()
    query = queries.group_by(
        {"period": list(range(n_periods))}, total=["kwh"], clip={"kwh": (0, 3)}
    )
    scenario = Scenario.from_occupancy(
        [[0.97, 0.03], [0.07, 0.93]],
        positions=range(40, per_period * n_periods, DAY),
        periods={"period": periods},
        loads=pa.table({"state": states, "kwh": kwh}),
        query=query,
    )
    return verdict(certify_release(scenario, GUESS))


def test_daily_totals_of_a_home_are_hollow_and_weekly_ones_are_not():
    """Someone who knows the chain and the loads can name a day's total with less error."""
    daily, weekly = a_home(DAY, 7), a_home(WEEK, 4)
    assert not daily.is_useful
    assert daily.sentence.startswith("This release is not worth making")
    assert "weeks in place of days" in daily.sentence
    day, week = daily.statistics[3], weekly.statistics[2]
    assert day.constant_error < day.noise_std < day.size
    assert all(statistic.is_useful for statistic in weekly.statistics)
    assert week.noise_std < week.constant_error < week.size
    assert weekly.sentence.startswith("For every statistic")
    assert "Sizes are those of one home" in str(weekly)


def shares_of_women(query, *, earlier=0, claim=GUESS):
    years = datasets.adult_years()
    scenario = Scenario.from_prevalence(
        years[1 - earlier],
        column="sex",
        value="Female",
        within=0.05,
        query=query,
        moments_from=years[earlier],
    )
    return scenario, certify_release(scenario, claim)


def test_statistics_of_a_census_are_readable():
    query = queries.summary(mean=["age"], rate={"income": ">50K"}, clip={"age": (17, 90)})
    judged = verdict(shares_of_women(query)[1])
    assert judged.yardstick == "both"
    assert judged.is_useful
    age = judged.statistics[0]
    assert age.size == pytest.approx(queries.summary(mean=["age"]).outputs(
        datasets.adult_years()[0])[0][0], rel=1e-5)  # fmt: skip
    assert age.constant_error == pytest.approx((90 - 17) / np.sqrt(12), rel=1e-6)
    header = str(judged).splitlines()[0].split("  ")
    assert [part.strip() for part in header if part.strip()] == [
        "statistic", "noise std", "between secrets", "size", "error of a constant",
    ]  # fmt: skip


def test_small_cells_are_mostly_noise():
    """A handful of rows among 16,281: whoever reads such a count reads noise."""
    query = queries.contingency_table({"native-country": ["Scotland", "Mexico"]})
    _, certificate = shares_of_women(query, claim=Guarantee.guess(at_most=0.52))
    judged = verdict(certificate)
    assert [one.is_useful for one in judged.statistics] == [False, True]
    assert judged.sentence.startswith("1 of 2 statistics are not worth releasing")


def test_what_is_computed_from_sums_is_judged_in_their_place():
    """A centred total has no size; the mean of a group, and a standard deviation, have one."""
    query = queries.join(
        queries.summary(std=["age"], clip={"age": (17, 90)}),
        queries.group_by(
            {"race": ["White", "Black"]}, mean=["hours-per-week"], clip={"hours-per-week": (1, 99)}
        ),
        queries.summary(quantile={"age": 0.5}, edges={"age": list(range(17, 92, 5))}),
    )
    scenario, certificate = shares_of_women(query)
    judged = {one.name: one for one in verdict(certificate, scenario).statistics}
    assert "total(hours-per-week - 50 | race = Black)" not in judged
    # Against draws of the noise, at the earlier values.
    values = scenario.priors[0].distributions["the smaller share"].size * scenario.query.scales
    noise = certificate.evidence.full.noise(certificate.noise_std).covariance
    noise = noise * np.outer(scenario.query.scales, scenario.query.scales)
    drawn = np.random.default_rng(5).multivariate_normal(values, noise, 20_000)
    for spec in scenario.query.derived:
        where = [scenario.query.names.index(name) for name in spec.of]
        found = spec.value(drawn[:, where].T)
        assert judged[spec.name].noise_std == pytest.approx(found.std(), rel=0.05)
        assert judged[spec.name].size == pytest.approx(abs(found.mean()), rel=0.05)
        assert judged[spec.name].is_useful
    alone = [one.name for one in verdict(certificate).statistics]
    assert "total(hours-per-week - 50 | race = Black)" in alone


def test_what_is_computed_must_beat_a_constant_as_well():
    """The mean of a group of six: less noise than its size, more than the error of a guess."""
    query = queries.group_by(
        {"native-country": ["Scotland", "Mexico"]},
        mean=["hours-per-week"],
        clip={"hours-per-week": (1, 99)},
    )
    scenario, certificate = shares_of_women(query, claim=Guarantee.guess(at_most=0.525))
    few, many = (one for one in verdict(certificate, scenario).statistics if "mean" in one.name)
    assert few.constant_error == many.constant_error == pytest.approx(98 / np.sqrt(12))
    assert few.constant_error < few.noise_std < few.size
    assert [few.is_useful, many.is_useful] == [False, True]


def test_the_holder_is_told_of_more_rows_than_are_covered():
    """Of the rows at hand, not of those that the noise was fitted to; and never the public."""
    last_year, this_year = datasets.adult_years()
    query = queries.summary(total=["age"], clip={"age": (17, 90)})
    for rows, moments, told in (
        (this_year, last_year[:900], True),
        (this_year[:900], last_year, False),
        (this_year, None, True),
        (this_year[:1_000], None, False),
    ):
        scenario = Scenario.from_volume(rows, query=query, up_to=1_000, moments_from=moments)
        certificate = certify_release(scenario, GUESS)
        assert ("more rows than up_to=1,000" in str(verdict(certificate, scenario))) is told
        assert "more rows than" not in str(certificate)


@pytest.mark.parametrize("n_more", [-100, 0, 100])
def test_a_single_flag_has_a_bound_of_its_own(n_more):
    """It claims less than second moments: the holder is told only where more rows have it."""
    table = pa.table(
        {
            "ill": np.repeat([1, 0], [500, 500]),
            "paid": np.repeat([1, 0, 1, 0], [300, 200, 100, 400]),
        }
    )
    other = pa.table(
        {
            "ill": np.repeat([1, 0], [500, 500]),
            "paid": np.repeat([1, 0, 1, 0], [300 + n_more, 200 - n_more, 100, 400]),
        }
    )
    scenario = Scenario.from_prevalence(
        other,
        column="ill",
        value=1,
        within=0.01,
        query=summary(rate={"paid": 1}),
        moments_from=table,
    )
    certificate = certify_release(scenario, Guarantee.guess(at_most=0.7))
    judged = verdict(certificate)
    bound = np.sqrt(certificate.statement.mean_square)
    assert certificate.guess < ndtr(bound / 2) - 0.001  # the finite sum is the smaller bound
    assert bool(judged.current_sentence) is (n_more > 0)
    if n_more <= 0:
        assert judged.current_guess <= judged.claimed
    else:
        assert judged.current_guess > ndtr(bound / 2)


def test_the_holder_is_told_that_the_rows_at_hand_would_need_more_noise():
    query = queries.summary(
        mean=["age", "hours-per-week"],
        rate={"income": ">50K"},
        clip={"age": (17, 90), "hours-per-week": (1, 99)},
    )
    certificate = shares_of_women(query, earlier=1)[1]
    assert not verdict(shares_of_women(query)[1]).current_sentence
    told = verdict(certificate)
    assert told.current_guess > told.claimed
    assert told.to_json()["current"] == told.current_sentence
    assert told.current_sentence in str(told)
    public = json.dumps(certificate.to_json()) + str(certificate)
    assert "would need more noise" not in public
