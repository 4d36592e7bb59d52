# SPDX-License-Identifier: Apache-2.0
"""Statistics that follow from released sums: formulas, intervals, files and what is refused."""

import math

import attrs
import numpy as np
import pyarrow as pa
import pytest
from tests.refusals import Refusal, check_refused

import pufferslice as ps
from pufferslice.errors import ArgumentError, ReleaseError
from pufferslice.queries import (
    contingency_table,
    group_by,
    histogram,
    join,
    linear_regression,
    summary,
)
from pufferslice.queries.derived import Derived
from pufferslice.releases.derived import (
    cells_of,
    derived_statistics,
    noise_covariance,
    requested,
)
from pufferslice.releases.release import Release

RNG = np.random.default_rng(31)
N = 5_000
AGE = RNG.integers(17, 91, N)
TABLE = pa.table(
    {
        "age": AGE,
        "pay": np.clip(0.5 * AGE + RNG.normal(0, 8, N), 0, 99),
        "sex": RNG.choice(["F", "M"], N),
        "ill": RNG.choice(["no", "yes"], N, p=[0.8, 0.2]),
    }
)
CLIP = {"age": (17, 90), "pay": (0, 99)}
QUERY = join(
    summary(
        std=["age"],
        covariance=[("age", "pay")],
        correlation=[("age", "pay")],
        quantile={"age": 0.3},
        edges={"age": [17, 30, 45, 60, 75, 91]},
        clip=CLIP,
    ),
    group_by({"sex": ["F", "M"]}, mean=["pay"], rate={"ill": "yes"}, clip={"pay": (0, 99)}),
    linear_regression(features=["age"], targets=["pay"], clip=CLIP),
)
SUMS = QUERY.as_sums()
EXACT = SUMS.outputs(TABLE)[0]


def some_noise(names, share=0.01):
    """A covariance of correlated noise, of about this share of each sum."""
    factor = RNG.normal(size=(len(names), len(names)))
    stds = share * np.maximum(np.abs(EXACT), 1.0)
    correlation = factor @ factor.T
    sizes = np.sqrt(np.diagonal(correlation))
    return correlation / np.outer(sizes, sizes) * np.outer(stds, stds)


NOISE = some_noise(SUMS.names, 0.003)


def derived(values, specs=QUERY.derived, covariance=NOISE, names=SUMS.names, **options):
    return derived_statistics(specs, names=names, values=values, covariance=covariance, **options)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    scenario = ps.Scenario.from_prevalence(
        TABLE, column="ill", value="yes", within=0.05, query=QUERY, moments_from=TABLE.slice(0)
    )
    certificate = ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.7))
    folder = tmp_path_factory.mktemp("derived")
    out = folder / "release.json"
    released = ps.release(scenario, TABLE, certificate, ledger=folder / "a.ledger", out=out)
    return released, certificate, out


class TestFormulas:
    def test_without_noise_error_and_interval_vanish(self):
        wanted = dict(zip(QUERY.names, QUERY.outputs(TABLE)[0], strict=True))
        for row in derived(EXACT, covariance=np.zeros_like(NOISE)).rows:
            if not row.name.startswith("quantile"):  # within a cell of the histogram
                assert row.value == pytest.approx(wanted[row.name], rel=1e-9)
            assert row.high - row.low == pytest.approx(0, abs=1e-9)
            assert not row.remark

    def test_a_ratio_to_first_order(self):
        spec = Derived(name="r", kind="ratio", of=["a", "b"], numbers=[7.0])
        cov = np.array([[4.0, 1.0], [1.0, 9.0]])
        (row,) = derived(np.array([50.0, 200.0]), [spec], cov, ["a", "b"]).rows
        gradient = np.array([1 / 200, -50 / 200**2])
        assert row.value == 7.25
        assert row.standard_error == pytest.approx(math.sqrt(gradient @ cov @ gradient), rel=1e-12)
        assert row.high - row.value == pytest.approx(1.959964 * row.standard_error, rel=1e-6)

    def test_a_denominator_near_zero_is_drawn_and_told(self):
        spec = Derived(name="r", kind="ratio", of=["a", "b"], numbers=[0.0])
        cov = np.diag([1.0, 9.0])
        (far,) = derived(np.array([50.0, 12.1]), [spec], cov, ["a", "b"]).rows
        (near,) = derived(np.array([50.0, 11.9]), [spec], cov, ["a", "b"]).rows
        assert (far.remark, near.remark[:3]) == ("", "b i")
        assert near.high - near.value > 2 * (near.value - near.low)
        again = derived(np.array([50.0, 11.9]), [spec], cov, ["a", "b"]).rows[0]
        assert again == near

    def test_a_variance_that_noise_made_negative(self):
        spec = Derived(name="s", kind="std", of=["a", "aa"], numbers=[0.0])
        (row,) = derived(np.array([3.0, 8.9]), [spec], np.diag([0.01, 0.01]), ["a", "aa"]).rows
        assert (row.value, row.low) == (0.0, 0.0)
        assert "the variance" in row.remark
        zero = Derived(name="z", kind="ratio", of=["a", "aa"], numbers=[0.0])
        table = derived(np.array([0.0, 0.0]), [zero], np.zeros((2, 2)), ["a", "aa"])
        assert table.to_dict()["statistics"][0]["value"] is None

    def test_margins(self):
        spec = requested(["x", "y", "z"], margin={"all": ["x", "z"]})
        (row,) = derived(
            np.array([1.0, 5.0, 2.0]), spec, np.diag([9.0, 1, 16]), ["x", "y", "z"]
        ).rows
        assert (row.name, row.value, row.standard_error) == ("all", 3.0, 5.0)

    def test_a_ratio_of_a_cell_and_a_margin_of_its_table(self):
        """Against the ratio of the cell and a margin that is written out."""
        names = [f"count(race = {r}, pay = {p})" for r in "WB" for p in ("low", "high")]
        names.append("count(race = B, sex = F)")
        values, factor = np.array([50.0, 40, 30, 20, 9]), np.tri(5) / 10
        noise = factor @ factor.T
        cell, margin = "count(race = B, pay = high)", "count(race = B)"
        spec = requested(names, ratio=[(cell, margin)])
        (row,) = derived(values, spec, noise, names).rows
        assert row.value == 20 / 50
        gradient = np.array([0.0, 0.0, -20 / 50**2, 30 / 50**2, 0.0])
        assert row.standard_error == pytest.approx(math.sqrt(gradient @ noise @ gradient))
        assert cells_of("count(pay = low)", names) == (names[0], names[2])
        assert cells_of("total(x | pay = low)", names) == ()
        assert cells_of("count(race = B)", ["count(race = B)"]) == ()


def covered(*, simultaneous):
    """Which intervals hold the truth, over draws of known noise on the exact sums."""
    kinds = ("std(age)", "correlation(age, pay)", "quantile(age, 0.3)", "mean(pay | sex = F)")
    specs = [spec for spec in QUERY.derived if spec.name in kinds]
    names = list(dict.fromkeys(name for spec in specs for name in spec.of))
    where = [SUMS.names.index(name) for name in names]
    exact, noise = EXACT[where], NOISE[np.ix_(where, where)]
    truth = derived(exact, specs, 0 * noise, names).rows
    draws = np.random.default_rng(3).multivariate_normal(exact, noise, 200)
    tables = [derived(x, specs, noise, names, simultaneous=simultaneous) for x in draws]
    return np.array(
        [
            [row.low <= true.value <= row.high for row, true in zip(each.rows, truth, strict=True)]
            for each in tables
        ]
    )


@pytest.mark.statistical
def test_each_interval_alone_covers_95_percent():
    held = covered(simultaneous=False)
    # Binomial(200, 0.95): four standard deviations are 0.06.
    assert (np.abs(held.mean(axis=0) - 0.95) < 0.06).all()
    assert held.all(axis=1).mean() < 0.9


@pytest.mark.statistical
def test_all_intervals_together_cover_95_percent():
    assert abs(covered(simultaneous=True).all(axis=1).mean() - 0.95) < 0.06


class TestRelease:
    def test_the_query_decides_what_is_derived(self, released):
        release, _, _ = released
        assert release.names == SUMS.names
        table = release.derived()
        assert [row.name for row in table.rows] == [spec.name for spec in QUERY.derived]
        wanted = dict(zip(QUERY.names, QUERY.outputs(TABLE)[0], strict=True))
        for row in table.rows:
            bias = 2 if row.name.startswith("quantile") else 0
            assert abs(row.value - wanted[row.name]) < 6 * row.standard_error + bias
        assert str(table) in str(release)
        assert "after noise" in table._repr_html_()
        assert len(table.to_pandas()) == len(table.rows)
        assert table["std(age)"] == table.rows[0]
        assert repr(table).startswith("DerivedStatistics(std(age)")

    def test_what_is_asked_for_is_found_by_name(self, released):
        release, _, _ = released
        asked = release.derived(
            std=["age"],
            covariance=[("pay", "age")],
            correlation=[("age", "pay")],
            quantile={"age": [0.3]},
            ratio=[("count(sex = F)", "count(sex = M)")],
            regression={"pay": ["age"]},
        )
        own = {row.name: row.value for row in release.derived().rows}
        rows = {row.name: row.value for row in asked.rows}
        assert rows["covariance(pay, age)"] == own["covariance(age, pay)"]
        for name in ("std(age)", "correlation(age, pay)", "quantile(age, 0.3)", "intercept(pay)"):
            assert rows[name] == own[name]
        assert "count(sex = F) / count(sex = M)" in rows

    def test_the_file_holds_what_is_needed(self, released):
        release, certificate, out = released
        loaded = Release.load(out)
        assert loaded == release
        assert loaded.derived() == release.derived()
        np.testing.assert_array_equal(loaded.noise_covariance, noise_covariance(certificate))
        np.testing.assert_allclose(
            np.sqrt(np.diagonal(release.noise_covariance)), release.noise_stds, rtol=1e-9
        )
        assert loaded.n_rows == N

    def test_many_statistics_need_the_certificate(self, released):
        release, certificate, _ = released
        bare = attrs.evolve(release, noise_covariance=None)
        assert Release.from_json(bare.to_json()) == bare
        assert bare.derived(certificate=certificate) == release.derived()
        assert f"{len(QUERY.derived)} more follow" in str(bare)

    def test_centers_of_either_sign(self):
        query = summary(correlation=[("t", "u (C)")], clip={"t": (-30, 10), "u (C)": (-3, 3)})
        (spec,) = requested(query.features.names, correlation=[("t", "u (C)")])
        assert spec == query.derived[0]
        assert spec.numbers == (-10.0, 0.0)


def changed(released, **changes):
    document = released[0].to_json()
    return Release.from_json(document | changes)


REFUSED = [
    Refusal(lambda r: r.derived(std=["pay", "sex"]), ReleaseError, "'mean(sex)'"),
    Refusal(lambda r: r.derived(ratio=[("count(sex = F)", "x")]), ReleaseError, "'x'"),
    Refusal(lambda r: r.derived(ratio=["ab"]), ArgumentError, "ratio"),
    Refusal(lambda r: r.derived(ratio="ab"), ArgumentError, "ratio"),
    Refusal(lambda r: r.derived(ratio=[("a", "b", "c")]), ArgumentError, "ratio"),
    Refusal(lambda r: r.derived(std="age"), ArgumentError, "std"),
    Refusal(lambda r: r.derived(margin=["a"]), ArgumentError, "margin"),
    Refusal(lambda r: r.derived(margin={"all": []}), ArgumentError, "margin"),
    Refusal(lambda r: r.derived(quantile={"pay": 0.5}), ReleaseError, "'pay'"),
    Refusal(lambda r: r.derived(quantile={"age": 2}), ArgumentError, "quantile"),
    Refusal(lambda r: r.derived()["std(x)"], ArgumentError, "std(age)"),
    Refusal(lambda r: attrs.evolve(r, specs=()).derived(), ArgumentError, "std=['age']"),
    Refusal(
        lambda r: attrs.evolve(r, noise_covariance=None).derived(), ArgumentError, "certificate"
    ),
    Refusal(
        lambda r: attrs.evolve(r, noise_covariance=2 * r.noise_covariance), ReleaseError, "diagonal"
    ),
]


@pytest.mark.parametrize("place", range(len(REFUSED)))
def test_refused(released, place):
    refusal = REFUSED[place]
    check_refused(refusal._replace(call=lambda: refusal.call(released[0])))


def test_damaged_files_are_refused(released):
    spec = {"name": "s", "kind": "std", "of": ["a"], "numbers": []}
    for changes, words in (
        ({"covariance": [[1.0], [1.0]]}, "triangle"),
        ({"derived": [spec]}, "of and numbers"),
        ({"derived": [spec | {"kind": "product"}]}, "kind"),
    ):
        with pytest.raises(ReleaseError, match=words):
            changed(released, **changes)
    other = ps.certify_release(
        ps.Scenario.from_prevalence(
            TABLE, column="ill", value="yes", within=0.1, query=contingency_table({"sex": ["F"]})
        ),
        ps.Guarantee.guess(at_most=0.7),
    )
    with pytest.raises(ArgumentError, match="certificate"):
        released[0].derived(certificate=other)


def test_a_histogram_with_a_gap_has_no_quantiles():
    names = join(
        histogram("x", [0, 1], statistic="count"), histogram("x", [2, 3], statistic="count")
    )
    with pytest.raises(ReleaseError, match="without gaps"):
        requested(names.names, quantile={"x": 0.5})


def test_a_penalty_needs_the_number_of_rows():
    query = linear_regression(features=["age"], targets=["pay"], regularisation=9.0, clip=CLIP)
    names = query.features.names
    values = query.as_sums().outputs(TABLE)[0]
    with pytest.raises(ArgumentError, match="public number of rows"):
        derived(values, query.derived, np.eye(len(names)), names)
    assert derived(values, query.derived, 1e-9 * np.eye(len(names)), names, n_rows=N).rows
