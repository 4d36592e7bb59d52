# SPDX-License-Identifier: Apache-2.0
"""What every engine must give: the integers that numpy finds in memory, and their moments."""

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest
from tests.engines.conftest import ENGINES, EVERY, READ
from tests.engines.tables import nasty_query, nasty_table, plain_query, plain_table

import pufferslice as ps
from pufferslice.data.engines import collected, lazy_of
from pufferslice.data.frames import frame_of
from pufferslice.data.tables import rows_of
from pufferslice.queries import equals, summary, sums
from pufferslice.queries.expressions import Expressions
from pufferslice.queries.features import RowFeatures
from pufferslice.queries.layout import Layout
from pufferslice.queries.partition import partitions_of
from pufferslice.queries.sums import tally_of

NASTY = nasty_table()
FEATURES = nasty_query().as_sums().features
N_BITS = 20
INTEGERS = FEATURES.integers(frame_of(NASTY), N_BITS)
SECRET = partitions_of([("sex", equals("F"), None)])


def by_row(lazy, expressions):
    """The value of each expression in each row, in the order of the column `row`."""
    found = collected(lazy.select("row", **expressions))
    order = np.argsort(found["row"])
    return {name: [found[name][k] for k in order] for name in expressions}


@pytest.mark.parametrize("engine", ENGINES)
class TestIntegers:
    """Row by row: what is quantised, and which conditions are met."""

    def test_numbers_are_those_of_numpy(self, engine, held_by):
        of = Expressions.of(lazy_of(held_by(engine, NASTY)), FEATURES.columns)
        expressions = {
            f"f{place}": of.quantised(part.factors, part.ends, N_BITS, part.cell, dict(part.fills))
            for place, part in enumerate(FEATURES.parts)
        }
        found = by_row(of.lazy, expressions)
        for place, part in enumerate(FEATURES.parts):
            assert found[f"f{place}"] == INTEGERS[:, place].tolist(), part.name

    def test_keys_are_the_patterns_of_numpy(self, engine, held_by):
        of = Expressions.of(lazy_of(held_by(engine, NASTY)), FEATURES.columns)
        keys = {f"k{place}": of.key(part) for place, part in enumerate(FEATURES.partitions)}
        found = by_row(of.lazy, {name: key.expression for name, key in keys.items()})
        for part, (name, key) in zip(FEATURES.partitions, keys.items(), strict=True):
            wanted = part.codes(frame_of(NASTY))
            assert key.codes(found[name]).tolist() == wanted.tolist(), part


@pytest.mark.parametrize("engine", READ)
class TestSums:
    SOME = RowFeatures.of(FEATURES.parts[::6])
    ROWS = INTEGERS[:, ::6]
    WOMEN = np.array(NASTY["sex"].to_pylist()) == "F"

    def test_sums_and_covariances_are_exact(self, engine, held_by):
        self.check_exact(held_by(engine, NASTY))

    def check_exact(self, table):
        layout = Layout.of(self.SOME, N_BITS, SECRET, by=self.SOME.partitions[:6])
        found = tally_of(rows_of(table), layout)
        assert 4 < len(layout.grids) < len(self.SOME.parts)
        chosen = found.flags("sex", equals("F"))
        read = tally_of(rows_of(pa.dataset.dataset(NASTY)), layout)
        assert found.counts.sum() == len(self.WOMEN)
        for rows, groups in ((self.WOMEN, chosen), (~self.WOMEN, ~chosen)):
            added = found.sums()[groups].sum(axis=0)
            np.testing.assert_array_equal(added, self.ROWS[rows].sum(axis=0))
            wanted, cov = np.cov(self.ROWS[rows].T, bias=True), found.covariance(groups)
            np.testing.assert_allclose(cov, wanted, atol=1e-12 * 2**40)
            # To the last bit, in whatever order the engine adds up.
            np.testing.assert_array_equal(cov, read.covariance(groups))

    def test_products_are_exact_beyond_64_bits(self, engine, held_by, monkeypatch):
        monkeypatch.setattr(sums, "_SUM_BITS", 40)  # as if there were that many rows
        self.check_exact(held_by(engine, NASTY))

    def test_a_label_that_no_group_decides_is_asked_for(self, engine, held_by):
        layout = Layout.of(self.SOME, N_BITS, SECRET, by=[])
        found = tally_of(rows_of(held_by(engine, NASTY)), layout, has_moments=False)
        part = next(each for each in self.SOME.partitions if each.column == "text")
        labelled = found.labelled(found.flags("sex", equals("F")), [[part]])
        codes = part.codes(frame_of(NASTY))[self.WOMEN]
        assert labelled.codes.tolist() == np.unique(codes).tolist()
        for code, count, added in zip(*labelled, strict=True):
            assert count == (codes == code).sum()
            np.testing.assert_array_equal(added, self.ROWS[self.WOMEN][codes == code].sum(axis=0))


def scenario_of(table, earlier):
    return ps.Scenario.from_prevalence(
        table, column="sex", value="F", within=0.05, query=plain_query(), moments_from=earlier
    )


@pytest.fixture(scope="module")
def tables():
    return plain_table(seed=6), plain_table(seed=5)


@pytest.fixture(scope="module")
def in_memory(tables):
    return scenario_of(*tables)


@pytest.fixture(scope="module")
def certificate(in_memory):
    return ps.certify_release(in_memory, ps.Guarantee.guess(at_most=0.64))


@pytest.fixture(scope="module", params=EVERY)
def engine(request):
    return request.param


@pytest.fixture(scope="module")
def scenario(engine, held_by, tables):
    return scenario_of(*(held_by(engine, table) for table in tables))


class TestScenario:
    def test_moments_are_those_of_rows_in_memory(self, scenario, in_memory):
        assert scenario.description() == in_memory.description()
        assert scenario.distributions_digest() == in_memory.distributions_digest()
        for kept in ("distributions", "current"):
            wanted, found = (getattr(s.priors[0], kept) for s in (in_memory, scenario))
            assert list(wanted) == list(found) != []
            for name, rows in wanted.items():
                assert found[name].rows is None
                assert found[name].sums == rows.sums
                np.testing.assert_allclose(found[name].row_mean, rows.row_mean, rtol=1e-12)
                units = np.sqrt(np.outer(*[np.diagonal(rows.row_cov)] * 2))
                apart = np.abs(found[name].row_cov - rows.row_cov)
                assert (apart <= 1e-9 * units).all()
                assert list(found[name].cells) == list(rows.cells)
                for label, cells in rows.cells.items():
                    for mine, theirs in zip(found[name].cells[label], cells, strict=True):
                        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)

    def test_certificates_verify_across_engines(self, scenario, in_memory, certificate):
        assert ps.verify(certificate, scenario=scenario).holds
        own = ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.64))
        assert ps.verify(own, scenario=in_memory).holds
        np.testing.assert_allclose(
            own.released.noise.std_by_coordinate,
            certificate.released.noise.std_by_coordinate,
            rtol=1e-9,
        )

    def test_the_release_is_of_the_same_integers(
        self, engine, held_by, tables, in_memory, certificate, tmp_path
    ):
        released = ps.release(
            in_memory, held_by(engine, tables[0]), certificate, ledger=tmp_path / "one.ledger"
        )
        exact = in_memory.query.features.outputs(frame_of(tables[0]), N_BITS)
        exact = np.array([float(value) for value in exact])
        apart = np.abs(released.values - exact) / released.noise_stds
        assert 0 < apart.max() < 8


@pytest.mark.soundness
class TestBoundsThatRestOnRows:
    """They were computed from single rows, of which an engine's scenario has moments only."""

    QUERY = summary(mean=["age", "pay"], clip={"age": (17, 90), "pay": (0, 100)})

    def scenario(self, table):
        return ps.Scenario.from_prevalence(
            None,
            column="sex",
            value="F",
            within=0.05,
            query=self.QUERY,
            moments_from=table,
            n_rows=500,
        )

    @pytest.fixture
    def tables(self):
        table = plain_table(500)
        return table, pa.dataset.dataset(table)

    def test_a_claim_that_rests_on_them_is_refused(self, tables):
        in_memory, elsewhere = map(self.scenario, tables)
        claim = ps.Guarantee.unsliced(order=4, epsilon=1)
        certificate = ps.certify_release(in_memory, claim)
        assert ps.verify(certificate, scenario=in_memory).holds
        (problem,) = ps.verify(certificate, scenario=elsewhere).problems
        assert "rests on single rows" in problem
        # By moments alone the noise is larger, and rows can only confirm it.
        own = ps.certify_release(elsewhere, claim)
        assert own.released.noise.std > certificate.released.noise.std
        assert ps.verify(own, scenario=in_memory).holds
        assert ps.verify(own, scenario=elsewhere).holds

    def test_views_beside_a_claim_of_guesses_are_told_apart(self, tables):
        in_memory, elsewhere = map(self.scenario, tables)
        certificate = ps.certify_release(in_memory, ps.Guarantee.guess(at_most=0.64))
        unchecked = [
            ps.verify(certificate, scenario=each).unchecked for each in (in_memory, elsewhere)
        ]
        assert [any("single rows" in text for text in texts) for texts in unchecked] == [
            False,
            True,
        ]

    def test_a_release_of_them_is_refused(self, tables, tmp_path):
        """Other rows of the same moments would make the printed epsilons untrue."""
        in_memory, elsewhere = map(self.scenario, tables)
        claim = ps.Guarantee.guess(at_most=0.64)
        certificate = ps.certify_release(in_memory, claim)
        with pytest.raises(ps.errors.ReleaseError, match="rest on single rows"):
            ps.release(elsewhere, tables[1], certificate, ledger=tmp_path / "one.ledger")
        assert not list(tmp_path.iterdir())
        own = ps.certify_release(elsewhere, claim)
        ps.release(elsewhere, tables[1], own, ledger=tmp_path / "one.ledger")
