# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""What a public range cuts off is stated, and a range that leaves nothing is refused."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.json_edits import statement_of

import pufferslice as ps
from pufferslice._core.sampler import SeededTestNoise
from pufferslice.certificate import certify_release, verify
from pufferslice.queries import Ball, Box, columns, summary
from pufferslice.releases.release import Release, release
from pufferslice.scenario.simulator import OutputSimulator

JOINT = ps.Guarantee.joint(order=4, epsilon=1.0)
LINE = ps.FiniteProfile.axes(dim=1)
TABLE = pa.table({"s": ["a"] * 3 + ["b"] * 3 + ["c"] * 3, "x": [1.0, 2, 3, 4, 5, 60, 70, 80, 90]})
LOUD = "THE RANGE CLIPS THE DATA"


def groups(range_=None):
    return ps.Scenario.from_groups(TABLE, secret="s", query=summary(mean=["x"], range=range_))


def records(range_=None):
    return ps.Scenario.from_records(TABLE, secret="s", query=columns(["x"], range=range_))


def rows_of(secret):
    return TABLE.filter(pc.equal(TABLE["s"], secret))


class TestWhichSecrets:
    @pytest.mark.parametrize(
        ("scenario", "everything", "some"),
        [
            (groups(), [], []),
            (groups(Box([0], [100])), [], []),
            (groups(Box([0], [50])), ["c"], []),
            (groups(Ball([0], 50)), ["c"], []),
            (records(Box([0], [50])), ["c"], ["b"]),
            (records(Box([0], [50])).with_sampled_priors(), ["c"], ["b"]),
            (records(Ball([50], 47)), [], ["a"]),
        ],
    )
    def test_known_answers(self, scenario, everything, some):
        assert scenario.description()["clipped"] == {"all": everything, "some": some}

    def test_worlds_of_every_kind(self):
        def normal(mean):
            simulator = OutputSimulator(draw_outputs=lambda rng, n: rng.normal(mean, 1, (n, 1)))
            return simulator.sampled(n_draws=50, seed=3)

        def drawn(rows):
            return ps.SampledDistribution(outputs=rows)

        atoms = ps.FiniteDistribution.uniform
        query = summary(mean=["x"], range={"x": (0, 10)})
        for low, high, how in [
            (TABLE.slice(0, 3), TABLE.slice(6), "all"),
            (atoms([[1.0]]), atoms([[5.0], [11.0]]), "some"),
            (drawn([[1.0]]), drawn([[5.0], [11.0]]), "some"),
            (normal(5.0), normal(50.0), "all"),
        ]:
            scenario = ps.Scenario.from_worlds({"low": low, "high": high}, query=query)
            assert scenario.clipped() == {"all": [], "some": []} | {how: ["high"]}
        gaussian = {name: ps.GaussianDistribution(mean=[0.0], cov=[[1.0]]) for name in "ab"}
        free = ps.Scenario.from_worlds(gaussian, query=summary(mean=["x"]))
        assert free.clipped() == {"all": [], "some": []}


class TestRefused:
    def test_distributions_that_are_equal_anyway_are_taken(self):
        query = columns(["x"], range={"x": (0, 10)})
        table = pa.table({"s": list("aabb"), "x": [5.0, 20, 5, 20]})
        scenario = ps.Scenario.from_records(table, secret="s", query=query)
        assert certify_release(scenario, JOINT.along(LINE)).noise_std == 0
        assert scenario.clipped() == {"all": [], "some": ["a", "b"]}


@pytest.fixture(scope="module")
def certificate():
    return certify_release(groups(Box([0], [50])), JOINT.along(LINE))


class TestStated:
    def test_in_the_certificate(self, certificate):
        assert certificate.statement.scenario.clipped.to_json() == {"all": ["c"], "some": []}
        assert "range-clips-data" in certificate.statement.limits
        assert LOUD in str(certificate)
        assert verify(certificate).holds

    @pytest.mark.parametrize("clipped", [{"all": [], "some": []}, {"all": ["a"], "some": ["b"]}])
    def test_an_edited_statement_is_refuted(self, certificate, clipped):
        statement = json.loads(json.dumps(certificate.statement.to_json()))
        statement["scenario"]["clipped"] = clipped
        edited = ps.Certificate(statement=statement_of(statement), evidence=certificate.evidence)
        assert not verify(edited).holds

    @pytest.mark.parametrize("limits", [Box([0], [50]), Ball([0], 50)])
    def test_in_the_release(self, limits, tmp_path):
        scenario = groups(limits)
        certificate = certify_release(scenario, JOINT.along(LINE))
        out = tmp_path / "r.json"
        released = release(scenario, rows_of("c"), certificate, ledger=tmp_path / "l", out=out)
        assert released.range == limits
        document = json.loads(out.read_text())
        assert document["range"] == limits.description()
        assert LOUD in document["clipping"]
        assert Release.load(out) == released

    def test_intervals_cover_the_clipped_query_and_not_the_query(self, tmp_path):
        scenario = groups(Box([0], [50]))
        covered = {50.0: 0, 80.0: 0}
        for seed in range(60):
            noise = SeededTestNoise(seed)
            narrow = ps.Guarantee.joint(order=4, epsilon=1000.0)
            certificate = certify_release(scenario, narrow.along(LINE), generator=noise)
            ledger = tmp_path / str(seed)
            found = release(scenario, rows_of("c"), certificate, ledger=ledger, generator=noise)
            low, high = found.intervals[0]
            for value in covered:
                covered[value] += low <= value <= high
        # 60 draws at 95 %: fewer than 50 have probability below 1e-3.
        assert covered[50.0] >= 50
        assert covered[80.0] == 0
