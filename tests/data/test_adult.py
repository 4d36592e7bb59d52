# SPDX-License-Identifier: Apache-2.0
from importlib import resources

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest

from pufferslice import datasets, queries
from pufferslice.data.adult import ADULT_SHA256, read_adult
from pufferslice.errors import StorageError

FOLDER = resources.files("pufferslice.data")
NUMBERS = ["age", "education-num", "hours-per-week"]


@pytest.fixture(scope="module")
def adult():
    return datasets.adult()


@pytest.fixture(scope="module")
def oracle():
    with (FOLDER / "adult.csv.gz").open("rb") as file:
        return pd.read_csv(file, compression="gzip", na_values=["?"], keep_default_na=False)


class TestTable:
    def test_counts_of_the_published_file(self, adult):
        assert adult.shape == (32_561, 15)
        nulls = {name: adult[name].null_count for name in adult.column_names}
        expected = {"workclass": 1_836, "occupation": 1_843, "native-country": 583}
        assert {name: n for name, n in nulls.items() if n} == expected
        assert pc.sum(pc.equal(adult["race"], "White")).as_py() == 27_816
        assert pc.sum(pc.equal(adult["income"], ">50K")).as_py() == 7_841
        assert pc.sum(pc.equal(adult["sex"], "Male")).as_py() == 21_790

    def test_complete_rows(self):
        complete = datasets.adult_complete()
        assert complete.num_rows == 30_162
        assert sum(column.null_count for column in complete.columns) == 0
        assert pc.sum(pc.equal(complete["race"], "White")).as_py() == 25_933
        assert pc.sum(pc.equal(complete["sex"], "Male")).as_py() == 20_380

    def test_attribution_ships_beside_it(self):
        text = (FOLDER / "ADULT.md").read_text()
        for needed in ("CC BY 4.0", "Becker, B. and Kohavi, R. (1996)", ADULT_SHA256):
            assert needed in text

    def test_a_damaged_copy_is_refused(self, tmp_path):
        content = bytearray((FOLDER / "adult.csv.gz").read_bytes())
        path = tmp_path / "adult.csv.gz"
        path.write_bytes(content)
        assert read_adult(path).num_rows == 32_561
        content[1000] ^= 1
        for damaged in (bytes(content), bytes(content[:-1]), b""):
            path.write_bytes(damaged)
            with pytest.raises(StorageError, match="is damaged"):
                read_adult(path)


class TestSummary:
    def test_the_papers_nine_statistics(self, adult, oracle):
        query = queries.adult_summary()
        assert query.names == (
            *(f"mean({name})" for name in NUMBERS),
            *(f"std({name})" for name in NUMBERS),
            "rate(capital-gain > 0)",
            "rate(capital-loss > 0)",
            "rate(income = >50K)",
        )
        expected = [
            *oracle[NUMBERS].mean(),
            *oracle[NUMBERS].std(ddof=0),
            (oracle["capital-gain"] > 0).mean(),
            (oracle["capital-loss"] > 0).mean(),
            (oracle["income"] == ">50K").mean(),
        ]
        np.testing.assert_allclose(query.outputs(adult)[0], expected, rtol=1e-12)

    def test_public_units_and_range(self):
        query = queries.adult_summary()
        assert query.scales.tolist() == [10, 2.5, 10, 5, 1, 5, 0.1, 0.1, 0.1]
        assert query.range.low.tolist() == [17, 1, 1, 0, 0, 0, 0, 0, 0]
        assert query.range.high.tolist() == [90, 16, 99, 36.5, 7.5, 49, 1, 1, 1]
        assert query.center.tolist() == pytest.approx([5.35, 3.4, 5, 3.65, 3.75, 4.9, 5, 5, 5])

    def test_nothing_of_adult_is_clipped(self, adult):
        query = queries.adult_summary()
        bound = query.bound(adult)
        races = np.array(adult["race"].to_pylist())
        for race in np.unique(races):
            outputs = bound(np.flatnonzero(races == race))[None]
            np.testing.assert_array_equal(query.prepared(outputs), outputs / query.scales)
