# SPDX-License-Identifier: Apache-2.0
"""The paper's tables: the counts it prints, its priors and groups, and the queries on them."""

import hashlib
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferslice import datasets
from pufferslice.errors import ArgumentError
from reproduction import panels
from reproduction.panels import QUERIES, hash_groups, stratified_rows


@pytest.fixture(scope="module")
def folder(data_folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUFFERSLICE_DATA", str(data_folder))
        yield data_folder


@pytest.fixture(scope="module")
def adult():
    return panels.adult_race()


class TestCountsOfThePaper:
    def test_adult(self, adult):
        assert adult.n_records == 30_162
        shares = adult.shares()
        assert len(shares) == 5
        assert max(shares, key=shares.get) == "White"
        assert shares["White"] == 25_933 / 30_162
        assert round(shares["White"], 2) == 0.86

    def test_cleveland(self, folder):
        table = panels.cleveland_sex()
        assert table.n_records == 303
        assert table.shares() == {"female": 97 / 303, "male": 206 / 303}
        # The paper says 0.7: right to the one digit that it prints.
        assert round(table.shares()["male"], 1) == 0.7
        assert round(table.shares()["male"], 3) == 0.680

    def test_student_sex_is_not_what_the_paper_says(self, folder):
        table = panels.student_sex()
        assert table.n_records == 395
        assert table.shares() == {"F": 208 / 395, "M": 187 / 395}
        # The paper says 0.6; no subset of rounding gives that (docs/errata.md).
        assert round(table.shares()["F"], 3) == 0.527
        assert round(table.shares()["F"], 1) == 0.5

    def test_student_grades(self, folder):
        table = panels.student_grades()
        assert table.n_records == 395
        counts = {secret: round(share * 395) for secret, share in table.shares().items()}
        assert list(counts.values()) == [102, 84, 78, 58, 73]
        # Quintiles follow each other: no grade is in two groups.
        grades, labels = np.array(table.table["G3"]), table.labels()
        ends = [(grades[labels == s].min(), grades[labels == s].max()) for s in counts]
        assert ends == [(0, 8), (9, 10), (11, 12), (13, 14), (15, 20)]


class TestBalanced:
    def test_sizes(self, adult, folder):
        for table, n_rarest in (
            (adult, 231),
            (panels.cleveland_sex(), 97),
            (panels.student_grades(), 58),
            (panels.student_sex(), 187),
        ):
            balanced = table.balanced()
            k = len(table.shares())
            assert balanced.n_records == k * n_rarest
            assert set(balanced.shares().values()) == {1 / k}
            assert balanced.protected == table.protected
            assert balanced.query("summary") == table.query("summary")

    def test_the_draw_is_public_and_the_same_everywhere(self, folder):
        table = panels.cleveland_sex()
        assert table.balanced().table.equals(table.balanced().table)
        assert not table.balanced(1).table.equals(table.balanced(2).table)
        rows = stratified_rows(np.array(["b", "a", "b", "b", "a", "b"]), seed=7)
        assert rows.tolist() == [0, 1, 3, 4]

    @given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.integers(0, 99))
    def test_as_many_of_each_as_of_the_rarest(self, labels, seed):
        labels = np.array(labels)
        rows = stratified_rows(labels, seed)
        _, counts = np.unique(labels, return_counts=True)
        _, kept = np.unique(labels[rows], return_counts=True)
        assert kept.tolist() == [counts.min()] * len(counts)
        assert (np.diff(rows) > 0).all()

    def test_every_row_has_the_same_chance(self):
        labels = np.repeat(["a", "b"], [4, 12])
        n_seeds = 3_000
        seen = np.zeros(16)
        for seed in range(n_seeds):
            seen[stratified_rows(labels, seed)] += 1
        assert (seen[:4] == n_seeds).all()
        # Each of the twelve is drawn with probability 1/3; 5 standard deviations.
        deviation = np.sqrt(n_seeds * (1 / 3) * (2 / 3))
        assert np.abs(seen[4:] - n_seeds / 3).max() < 5 * deviation

    def test_a_seed_must_be_a_whole_number(self):
        with pytest.raises(ArgumentError, match="seed"):
            stratified_rows(np.array(["a", "b"]), -1)


class TestHashGroups:
    def test_five_groups_of_about_a_fifth(self):
        table = panels.adult_hashed()
        assert table.n_records == 30_162
        shares = table.shares()
        assert list(shares) == ["G1", "G2", "G3", "G4", "G5"]
        # 5 standard deviations of a fair draw.
        assert max(abs(share - 0.2) for share in shares.values()) < 5 * np.sqrt(0.16 / 30_162)
        assert round(max(shares.values()), 2) == 0.2

    def test_a_group_depends_on_the_row_alone(self, rng):
        table = datasets.adult().slice(0, 500)
        groups = hash_groups(table)
        order = rng.permutation(500)
        np.testing.assert_array_equal(hash_groups(table.take(pa.array(order))), groups[order])
        doubled = pa.concat_tables([table, table])
        assert hash_groups(doubled).tolist() == [*groups, *groups]
        older = table.set_column(0, "age", pa.compute.add(table["age"], 1))
        assert 300 < np.count_nonzero(hash_groups(older) != groups) < 480

    def test_groups_are_fixed_for_good(self):
        table = pa.table({"age": [17, 18, 19, 20], "sex": ["F", "M", "F", None]})
        groups = ["G1", "G2", "G3", "G4"]
        assert hash_groups(table).tolist() == groups
        # The last digit in base 5 of the SHA-256 of the row as sorted, compact JSON.
        texts = ['{"age":17,"sex":"F"}', '{"age":18,"sex":"M"}', '{"age":19,"sex":"F"}',
                 '{"age":20,"sex":null}']  # fmt: skip
        digits = [int(hashlib.sha256(text.encode()).hexdigest(), 16) % 5 for text in texts]
        assert [f"G{digit + 1}" for digit in digits] == groups


class TestQueries:
    @pytest.mark.parametrize("make", ["adult_race", "cleveland_sex", "student_grades"])
    def test_dimensions(self, make, folder):
        table = getattr(panels, make)()
        dims = {name: table.query(name).dim for name in QUERIES}
        assert dims == {
            "summary": 9,
            "logistic_regression": 10,
            "linear_svm": 10,
            "forest_importances": 9,
        }

    def test_no_query_reads_the_secret_or_missing_values(self, adult, folder):
        made = (adult, panels.cleveland_sex(), panels.student_grades(), panels.student_sex())
        for table in made:
            for name in QUERIES:
                columns = table.query(name).columns
                assert table.protected not in columns
                assert sum(table.table[column].null_count for column in columns) == 0

    def test_the_flags_of_adult(self, adult):
        frame = adult.table.to_pandas()
        assert frame["male"].sum() == 20_380
        assert (frame["married"] == (frame["marital-status"] == "Married-civ-spouse")).all()
        assert (frame["private"] == (frame["workclass"] == "Private")).all()
        assert (frame["born-in-us"] == (frame["native-country"] == "United-States")).all()
        assert set(adult.task.feature_scales) >= {"male", "married", "private", "born-in-us"}

    def test_models_can_be_fitted_on_every_group(self, folder):
        for table in (panels.cleveland_sex(), panels.student_grades(), panels.student_sex()):
            chosen = table.balanced()
            labels = chosen.labels()
            for name in ("logistic_regression", "linear_svm"):
                bound = chosen.query(name).bound(chosen.table)
                values = [bound(np.flatnonzero(labels == secret)) for secret in chosen.shares()]
                assert np.isfinite(values).all()
                # The groups are told apart, or there would be nothing to protect.
                assert np.ptp(values, axis=0).max() > 0.1

    def test_forests_split_their_importance(self, folder):
        table = panels.cleveland_sex()
        values = table.query("forest_importances").outputs(table.table)[0]
        assert values.sum() == pytest.approx(1)
        assert values.min() >= 0

    def test_scikit_learn_is_loaded_only_for_models(self, repository):
        code = (
            "import sys\nfrom reproduction import panels\nfrom pufferslice import datasets\n"
            "assert 'sklearn' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, cwd=repository)

    def test_no_record_is_shown(self, adult):
        assert repr(adult) == "SecretTable(protected='race', n_records=30162)"
