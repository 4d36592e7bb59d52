# SPDX-License-Identifier: Apache-2.0
"""Sums over rows: what a query needs, exactly, on every engine, whatever the rows hold."""

import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from pufferslice import datasets
from pufferslice.data.frames import frame_of
from pufferslice.errors import ScenarioError
from pufferslice.queries import (
    above,
    at_least,
    contingency_table,
    equals,
    group_by,
    hours,
    intervals,
    join,
    linear_regression,
    months,
    summary,
)
from pufferslice.queries.derived import Derived
from pufferslice.queries.features import Source, clip_from_table, feature_bits, named_feature

RNG = np.random.default_rng(17)
N = 400
DATA = {
    "age": RNG.integers(17, 91, N),
    "pay": RNG.gamma(2, 30, N),
    "sex": RNG.choice(["F", "M"], N),
    "ill": RNG.choice(["no", "yes"], N, p=[0.7, 0.3]),
    "at": (np.datetime64("2026-01-01") + RNG.integers(0, 90, N)).astype("datetime64[us]"),
}
TABLE = pa.table(DATA)
FRAME = frame_of(TABLE)
CLIP = {"age": (17, 90), "pay": (0, 200)}
SEXES = {"sex": ["F", "M"]}
QUERY = join(
    summary(
        mean=["age"],
        std=["age", "pay"],
        rate={"ill": "yes"},
        covariance=[("age", "pay")],
        correlation=[("pay", "age")],
        clip=CLIP,
    ),
    group_by(
        SEXES,
        mean=["pay"],
        std=["pay"],
        rate={"ill": "yes"},
        covariance=[("age", "pay")],
        correlation=[("age", "pay")],
        clip=CLIP,
    ),
    contingency_table({"sex": ["F", "M"], "ill": ["yes", "no"]}),
    contingency_table({"at": months("2026-01", "2026-03")}),
    linear_regression(features=["age", "pay"], targets=["when"], clip=CLIP | {"when": (0, 9)}),
)
WITH_TARGET = TABLE.append_column("when", pa.array(RNG.uniform(0, 9, N)))


def exact_sums(query, table):
    frame = frame_of(table)
    n_bits = feature_bits(len(frame))
    return query.as_sums().features.outputs(frame, n_bits)


class TestNames:
    def test_grammar(self):
        pay = Source(column="pay", low=0, high=200)
        temperature = Source(column="t", low=-30, high=10)
        assert named_feature("total", pay.centred).name == "total(pay - 100)"
        assert named_feature("mean", temperature.centred, pay).name == "mean(pay * (t + 10))"
        assert Source(column="x", low=-4, high=4).centred.factor == "x"
        # A middle is rounded to 1 % of the range, so that names stay short.
        assert Source(column="x", low=0.1, high=0.7).centred.words == "x - 0.4"

    def test_each_sum_once(self):
        names = QUERY.features.names
        assert len(names) == len(set(names))
        assert names[:3] == ("mean(age)", "mean((age - 53.5) * (age - 53.5))", "mean(pay)")
        assert "total(pay - 100 | sex = F)" in names
        # Counted by the rates of groups, and as cells of the table.
        assert names.count("count(sex = F, ill = yes)") == 1
        assert "count(sex = F, ill = no)" in names
        derived = {each.name for each in QUERY.derived}
        assert set(QUERY.names) == derived | (set(names) & set(QUERY.names))

    def test_the_query_of_the_sums(self):
        sums = QUERY.as_sums()
        assert sums.names == sums.features.names == QUERY.features.names
        assert (sums.kind, sums.parameters) == (QUERY.kind, QUERY.parameters)
        assert sums.derived == QUERY.derived
        outputs = sums.outputs(WITH_TARGET)[0]
        exact = [float(total) for total in exact_sums(QUERY, WITH_TARGET)]
        np.testing.assert_allclose(outputs, exact, rtol=1e-5, atol=1e-3)
        means = sums.row_means(frame_of(WITH_TARGET))
        np.testing.assert_allclose(means.function(means.terms.mean(axis=0), N), outputs, rtol=1e-9)
        plain = summary(mean=["age"], clip={"age": (0, 99)})
        assert plain.as_sums() == plain.with_missing("middle")
        copy = pickle.loads(pickle.dumps(sums))  # noqa: S301
        assert copy == sums
        np.testing.assert_array_equal(copy.outputs(WITH_TARGET)[0], outputs)

    def test_a_name_that_was_asked_for_is_kept(self):
        first = group_by(SEXES, rate={"ill": "yes"})
        second = group_by(SEXES, count={"ill": "yes"})
        joined = join(first, second)
        assert "count(ill = yes | sex = F)" in joined.features.names
        assert "count(sex = F, ill = yes)" not in joined.features.names
        third = join(second, contingency_table({"ill": ["yes"], "sex": ["F"]}))
        assert third.features.names == second.names
        (alias,) = third.derived
        assert (alias.name, alias.of) == ("count(ill = yes, sex = F)", second.names[:1])

    def test_a_listed_total_serves_for_the_mean(self):
        query = group_by({"sex": ["F"]}, mean=["pay"], total=["pay"], clip={"pay": (0, 200)})
        assert query.features.names == ("total(pay | sex = F)", "count(sex = F)")

    def test_one_rule_for_each_column(self):
        both = join(summary(mean=["pay"], clip={"pay": (0, 9)}), summary(std=["pay"]))
        with pytest.raises(ScenarioError, match=r"'mean\(pay\)' is needed with two clip ranges"):
            both.as_sums()


class TestDerived:
    def test_without_noise_they_are_the_statistics(self):
        values = dict(
            zip(QUERY.features.names, QUERY.as_sums().outputs(WITH_TARGET)[0], strict=True)
        )
        wanted = dict(zip(QUERY.names, QUERY.outputs(WITH_TARGET)[0], strict=True))
        for each in QUERY.derived:
            value = each.value(np.array([values[name] for name in each.of]), N)
            assert value == pytest.approx(wanted[each.name], rel=1e-9), each.name

    @pytest.mark.parametrize("kind", ["halves", "constant", "drawn"])
    def test_they_are_in_their_public_ranges_and_reach_the_ends(self, kind):
        """Half of the rows at each end of the clip ranges reach the largest std and covariance."""
        rng, ends = np.random.default_rng(3), {"halves": [0, 1], "constant": [1, 1]}
        shares = np.resize(ends.get(kind, rng.uniform(-1, 2, 40)), 40)  # beyond the ranges as well
        data = {name: low + shares * (high - low) for name, (low, high) in CLIP.items()}
        table = pa.table(
            {
                **data,
                "sex": np.resize(["F", "F", "M"], 40),
                "ill": np.resize(["no", "yes"], 40),
                "when": shares,
                "at": np.resize(DATA["at"], 40),
            }
        )
        margin = Derived(
            name="not F", kind="sum", of=["count(sex = F, ill = yes)"], numbers=(40, -1)
        )
        parts = dict(zip(QUERY.features.names, QUERY.features.parts, strict=True))
        values = dict(zip(QUERY.features.names, QUERY.as_sums().outputs(table)[0], strict=True))
        found = {}
        for each in (*QUERY.derived, margin):
            ends = each.ends([parts[name] for name in each.of], 40)
            assert (ends is None) == (each.kind == "coefficient")
            if ends is not None:
                value = each.value(np.array([values[name] for name in each.of]), 40)
                assert ends[0] - 1e-4 <= value <= ends[1] + 1e-4, each.name
                found[each.name] = (*ends, float(value))
        assert found["not F"][:2] == (0, 40)
        assert found["mean(pay | sex = F)"][:2] == (0, 200)
        assert found["rate(ill = yes | sex = F)"][:2] == (0, 1)
        assert found["covariance(age, pay)"][:2] == (-3650, 3650)
        if kind == "halves":
            assert found["std(pay)"] == pytest.approx((0, 100, 100), rel=1e-4)
            assert found["covariance(age, pay)"][2] == pytest.approx(3650, rel=1e-4)
            assert found["correlation(pay, age)"] == pytest.approx((-1, 1, 1), rel=1e-4)

    def test_ratios_without_a_public_range(self):
        """A sum over other rows than those that are counted, or over another number of rows."""
        count, rate = (
            named_feature(kind, cell=(("ill", equals("yes")),)) for kind in ("count", "rate")
        )
        women = named_feature("count", cell=(("sex", equals("F")),))
        total = named_feature("total", Source(column="pay", low=0, high=9))
        for first, second in ((count, women), (rate, named_feature("count")), (count, total)):
            each = Derived(name="x", kind="ratio", of=[first.name, second.name], numbers=(0,))
            assert each.ends([first, second], 40) is None
        alone = Derived(name="x", kind="sum", of=[count.name], numbers=(0, 1))
        assert alone.ends([count], None) is None  # a hidden number of rows

    def test_ridge_needs_the_number_of_rows(self):
        query = linear_regression(
            features=["age"], targets=["pay"], regularisation=500.0, clip=CLIP
        )
        sums = query.as_sums().outputs(TABLE)[0]
        values = [each.value(sums, N).item() for each in query.derived]
        np.testing.assert_allclose(values, query.outputs(TABLE)[0], rtol=1e-9)

    def test_quantiles_of_a_histogram(self):
        edges = np.linspace(0, 400, 161).tolist()
        query = summary(quantile={"pay": (0.1, 0.9)}, median=["pay"], edges={"pay": edges})
        sums = query.as_sums().outputs(TABLE)[0]
        values = [each.value(sums).item() for each in query.derived]
        np.testing.assert_allclose(values, query.outputs(TABLE)[0], atol=2.5)
        assert summary(median=["pay"]).features is None
        assert query.parameters["edges"]["pay"] == edges


class TestMissing:
    @pytest.mark.parametrize("name", ["pandas", "polars", "pyarrow"])
    def test_the_public_rule(self, name):
        values = {"pay": [10.0, None, math.nan, math.inf], "ill": ["yes", None, "no", "yes"]}
        make = {"pandas": pd.DataFrame, "polars": lambda x: pl.DataFrame(x, strict=False)}
        table = make.get(name, pa.table)(values)
        rates = [("ill", "yes"), ("pay", above(5)), ("pay", 10)]
        query = summary(mean=["pay"], rate=rates, clip={"pay": (0, 40)})
        np.testing.assert_allclose(
            np.array(exact_sums(query, table), float), [17.5, 0.5, 0.25, 0.25]
        )
        filled = summary(
            mean=["pay"], rate=rates, clip={"pay": (0, 40)}, missing={"pay": 0, "ill": "yes"}
        )
        np.testing.assert_allclose(
            np.array(exact_sums(filled, table), float), [2.5, 0.75, 0.25, 0.25]
        )
        assert filled.parameters["missing"] == {"pay": 0, "ill": "yes"}
        assert filled != query
        ten = summary(rate=rates[1:], missing={"pay": 10})
        assert [float(x) for x in exact_sums(ten, table)] == [1.0, 1.0]

    def test_in_groups_and_tables(self):
        table = pa.table({"sex": ["F", None, "M"], "pay": [None, 30.0, 20.0]})
        query = join(
            group_by(SEXES, total=["pay"], clip={"pay": (0, 100)}, missing={"sex": "F"}),
            contingency_table(SEXES, missing={"sex": "M"}),
        )
        assert [float(x) for x in exact_sums(query, table)] == pytest.approx(
            [80, 20, 1, 2], abs=1e-4
        )

    @pytest.mark.parametrize(
        "labels",
        [
            ["a", "b\0", None, "a"],
            [2.0**60, math.inf, None, 1.0],
            [None, None, None, None],
            pa.array([b"a", b"\xff", None, b"b"]).view(pa.string()),
        ],
    )
    def test_no_value_is_refused(self, labels):
        table = pa.table({"x": labels})
        is_text = pa.types.is_string(table["x"].type)
        query = contingency_table({"x": ["a" if is_text else 1]})
        assert exact_sums(query, table)[0] in (1, 2, 0)

    def test_mixed_objects(self):
        table = pd.DataFrame({"x": ["a", 3, None, "a"]}, dtype=object)
        assert exact_sums(contingency_table({"x": ["a", 3]}), table) == [2, 1]

    def test_what_the_holder_is_told(self):
        query = summary(
            mean=["capital-gain"], rate={"income": ">50K"}, clip={"capital-gain": (0, 20_000)}
        )
        gain, income = query.features.unusual(datasets.adult())
        assert (round(gain.mean_before), round(gain.mean_after)) == (1078, 673)
        assert (gain.n_missing, gain.n_clipped, income.mean_before) == (0, 253, None)
        assert str(gain).endswith("and the mean 1,080 becomes 673")
        assert str(income) == "income: nothing is clipped or missing"
        table = pa.table(
            {"capital-gain": [math.nan, None, math.inf, 5.0], "income": ["a"] * 3 + [None]}
        )
        gain, income = query.features.unusual(table)
        assert (gain.n_missing, gain.n_rows, income.n_missing) == (3, 4, 1)


class TestIntegers:
    @pytest.mark.soundness
    def test_rows_engines_and_threads_in_any_order(self):
        order = RNG.permutation(N)
        tables = [
            WITH_TARGET,
            WITH_TARGET.take(order),
            WITH_TARGET.to_pandas(),
            pl.from_arrow(WITH_TARGET),
            pl.from_arrow(WITH_TARGET.take(order)),
            pa.concat_tables([WITH_TARGET.slice(100), WITH_TARGET.slice(0, 100)]),
        ]
        with ThreadPoolExecutor(4) as threads:
            first, *others = threads.map(lambda table: exact_sums(QUERY, table), tables * 2)
        assert all(sums == first for sums in others)
        assert all(isinstance(total, Fraction) for total in first)

    def test_outside_of_a_cell_a_row_adds_nothing(self):
        query = group_by(
            {"sex": ["X"]}, total=["pay"], mean=["age"], clip={"pay": (-3, 10), "age": (17, 90)}
        )
        assert exact_sums(query, TABLE) == [0, 0, 0]

    def test_many_levels_are_one_pass(self):
        levels = [f"D{i:03d}" for i in range(105)]
        table = pa.table({"to": RNG.choice(levels, 20_000), "late": RNG.normal(size=20_000)})
        query = group_by({"to": levels}, mean=["late"], clip={"late": (-9, 9)})
        derived = np.array(exact_sums(query, table), float)
        means = table.to_pandas().groupby("to")["late"].mean().to_numpy()
        np.testing.assert_allclose(derived[::2] / derived[1::2], means, atol=1e-4)
        np.testing.assert_allclose(query.outputs(table)[0], means, rtol=1e-9)


class TestClip:
    def test_from_an_earlier_table(self):
        earlier = pa.table({"x": [-1234.5, 0.0, None], "y": [0.0312, 17.0, math.inf]})
        assert clip_from_table(earlier, ["x", "y"]) == {"x": (-1300, 0), "y": (0.031, 17)}
        query = summary(mean=["x", "y"], clip={"y": (0, 20)}, clip_from=earlier)
        assert query.parameters["clip"] == {"x": [-1300.0, 0.0], "y": [0.0, 20.0]}
        assert query.features.low.tolist() == [-1300, 0]
        regression = linear_regression(features=["x"], targets=["y"], clip_from=earlier)
        assert regression.parameters["clip"]["x"] == [-1300.0, 0.0]

    def test_products_have_the_ranges_of_their_columns(self):
        query = summary(std=["x"], covariance=[("x", "y")], clip={"x": (0, 10), "y": (-1, 3)})
        features = query.features
        ends = dict(zip(features.names, zip(features.low, features.high, strict=True), strict=True))
        assert ends["mean((x - 5) * (x - 5))"] == (0, 25)
        assert ends["mean((x - 5) * (y - 1))"] == (-10, 10)
        assert np.isinf(summary(std=["x"]).features.high).all()


class TestLabelsAndBoxes:
    QUERY = join(
        contingency_table({"sex": ["F", "M"], "ill": ["yes"]}),
        group_by({"age": intervals([0, 40, 60, 99])}, total=["pay"], mean=["age"], clip=CLIP),
        summary(mean=["pay"], rate=[("age", at_least(50)), ("age", 20)], clip=CLIP),
        contingency_table({"at": hours()}),
    )

    def test_labels_are_named_by_columns(self):
        features = self.QUERY.features
        labellings = features.labellings
        assert list(labellings) == ["sex", "ill", "age", "at", "sex & ill"]
        codes = features.read(FRAME).labels(labellings)
        assert codes["sex"].tolist() == [{"F": 1, "M": 2}[sex] for sex in DATA["sex"]]
        # A function of the row: the same in any part of the table.
        part = frame_of(TABLE.slice(50, 60))
        for name, labels in features.read(part).labels(labellings).items():
            np.testing.assert_array_equal(labels, codes[name][50:110])
        # Equal labels, equal flags.
        numbers = self.QUERY.features.numbers(FRAME)
        place = self.QUERY.features.names.index("count(sex = F, ill = yes)")
        for code in np.unique(codes["sex & ill"]):
            assert len(np.unique(numbers[codes["sex & ill"] == code, place])) == 1

    def test_labels_of_too_many_patterns_are_left_out(self):
        big = contingency_table({"a": list(range(80)), "b": list(range(80))})
        assert list(big.features.labellings) == ["a", "b"]

    @pytest.mark.soundness
    @pytest.mark.parametrize("n_rows", [1, 300])
    def test_every_row_is_in_a_box(self, n_rows):
        features = self.QUERY.features
        low, high = features.boxes()
        assert low.shape == high.shape == (len(low), len(features.names))
        values = {
            "sex": RNG.choice(["F", "M", "X", None], n_rows),
            "ill": RNG.choice(["no", "yes", None], n_rows),
            "age": RNG.choice([math.nan, -9, 0, 20, 39.9, 40, 50, 60, 99, 1e9], n_rows),
            "pay": RNG.choice([math.nan, math.inf, -1, 0, 70, 1e9], n_rows),
            "at": np.full(n_rows, np.datetime64("2026-01-01T13:30", "us")),
        }
        frame = frame_of(pa.table({name: pa.array(x) for name, x in values.items()}))
        rows = features.values(features.integers(frame, 20), 20)
        inside = (low <= rows[:, None]) & (rows[:, None] <= high)
        assert inside.all(axis=2).any(axis=1).all()

    def test_cells_of_a_column_exclude_each_other(self):
        query = join(
            contingency_table({"sex": ["F", "M", "X"]}),
            group_by(SEXES, total=["pay"], clip={"pay": (10, 90)}),
            summary(mean=["pay"], clip={"pay": (10, 90)}),
        )
        low, high = query.features.boxes()
        boxes = sorted(zip(low.tolist(), high.tolist(), strict=True), reverse=True)
        assert boxes == [
            ([1, 0, 0, 0, 0, 10], [1, 0, 0, 90, 0, 90]),
            ([0, 1, 0, 0, 0, 10], [0, 1, 0, 0, 90, 90]),
            ([0, 0, 1, 0, 0, 10], [0, 0, 1, 0, 0, 90]),
            ([0, 0, 0, 0, 0, 10], [0, 0, 0, 0, 0, 90]),
        ]  # fmt: skip

    def test_overlapping_conditions(self):
        low, _ = summary(rate=[("x", above(1)), ("x", above(2)), ("x", 5)]).features.boxes()
        assert {tuple(row) for row in low[:, :2].tolist()} == {(0, 0), (1, 0), (1, 1)}

    def test_fewer_columns_are_split_where_there_are_many(self):
        query = join(*(contingency_table({name: list(range(40))}) for name in "abc"))
        low, high = query.features.boxes()
        assert len(low) == 41  # two columns would give 1,681
        assert (high - low).sum(axis=1).max() == 80
