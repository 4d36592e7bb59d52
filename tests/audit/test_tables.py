# SPDX-License-Identifier: Apache-2.0
"""Audits of rows: tables as they should be drawn, right certificates stand, broken ones fall."""

import json
import math
from typing import ClassVar

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from scipy.special import ndtr
from tests.row_scenarios import EARLIER, GUESS, MADE, made, prevalence, supplier, volume
from tests.scenario_files import toml_text

from pufferslice import Guarantee, Scenario, certify_release, queries
from pufferslice._core.sampler import SeededTestNoise
from pufferslice.audit import Outputs, audit_outputs, audit_release, draw_outputs, supplied_outputs
from pufferslice.audit.release import BOTH_TABLES, ONE_ROW
from pufferslice.audit.tables import (
    coupled_sums,
    discriminant,
    experiments_of,
    farthest_rows,
    row_kinds,
)
from pufferslice.certificate import Certificate
from pufferslice.cli.app import run
from pufferslice.errors import ScenarioError
from pufferslice.scenario.rows import drawn_sums, sums_of_runs
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.sensitivity import distribution_pairs

NOISE = SeededTestNoise(seed=2)
SETTINGS = {"n_outputs": 3_000, "confidence": 0.99, "noise": NOISE}
OF_NUMBERS = [kind for kind, (make, *_) in MADE.items() if "occupancy" not in make.__name__]


def near(drawn, expected, spread, n):
    """Whether means of n draws are within five standard errors."""
    return (np.abs(drawn - expected) <= 5 * spread / math.sqrt(n) + 1e-9).all()


class TestSums:
    ROWS = np.array([[0.0, 1.0], [2.0, -1.0], [5.0, 3.0]])

    @pytest.mark.parametrize("n_rows", [3, 40])
    @pytest.mark.parametrize("largest", [2, 30])
    def test_moments(self, n_rows, largest, seed):
        """Drawn row by row, or as how often each row is drawn: the same law."""
        rng = np.random.default_rng(seed)
        rows = np.resize(self.ROWS, (n_rows, 2))
        counts = np.resize([largest, largest // 2, 0], 30_000)
        sums = drawn_sums(rows, counts, rng)
        for count in {largest, largest // 2}:
            part = sums[counts == count]
            std = rows.std(axis=0) * math.sqrt(count)
            assert near(part.mean(axis=0), count * rows.mean(axis=0), std, len(part))
            assert part.std(axis=0) == pytest.approx(std, rel=0.05)
        assert not sums[counts == 0].any()

    def test_runs(self):
        sums = sums_of_runs(self.ROWS, np.array([2, 0, 1]))
        np.testing.assert_array_equal(sums, [[2.0, 0.0], [0.0, 0.0], [5.0, 3.0]])


@pytest.mark.soundness
class TestDraws:
    @pytest.mark.parametrize("kind", OF_NUMBERS)
    def test_candidates_differ_by_the_second_moment(self, kind, seed):
        """E ZZ' of drawn candidates is that of the evidence, and both have their own law."""
        scenario, certificate = made(kind)
        coupling, n = certificate.statement.coupling.name, 20_000
        moments = certificate.evidence.full.differences.second_moments
        kinds = row_kinds(scenario)
        for moment, pair in zip(moments, scenario.pairs, strict=True):
            first, second = coupled_sums(
                kinds,
                pair,
                n,
                coupling=coupling,
                shape=certificate.shape,
                rng=np.random.default_rng(seed),
            )
            change = second - first
            products = change[:, :, None] * change[:, None, :]
            raised = 1e-6 * np.diagonal(moment).max()
            apart = np.abs(products.mean(axis=0) - moment)
            assert (apart <= 5 * products.std(axis=0) / math.sqrt(len(change)) + raised).all()
            for sums, name in zip((first, second), pair, strict=True):
                world = kinds[name]
                assert near(sums.mean(axis=0), world.mean, sums.std(axis=0), len(sums))
                spread = np.sqrt(np.diagonal(world.cov))
                assert sums.std(axis=0) == pytest.approx(spread, rel=0.06, abs=1e-9)

    @pytest.mark.parametrize("kind", OF_NUMBERS)
    def test_whole_tables(self, kind, seed):
        """All rows are drawn: those that differ, and the others from one kind."""
        scenario, _ = made(kind)
        base, *whole = experiments_of(scenario)
        kinds = row_kinds(scenario)
        n_kinds = sum(bool(each.rows_at_hand.any()) for each in kinds.values())
        assert (base.most, len(whole)) == (None, n_kinds)
        n_rows = scenario.secret.get("n_rows", scenario.secret.get("up_to"))
        for experiment in whole:
            assert experiment.n_draws(5_000) == 5_000
            alike = next(name for name in kinds if f"'{name}'" in experiment.name)
            for name, world in kinds.items():
                values, where = experiment.draw(name, 5_000, np.random.default_rng(seed))
                assert where.tolist() == list(range(5_000))
                assert near(values.mean(axis=0), world.mean, values.std(axis=0), 5_000)
                if name == alike:  # then all rows are of one kind
                    spread = np.sqrt(n_rows * np.diagonal(world.row_cov))
                    assert values.std(axis=0) == pytest.approx(spread, rel=0.06, abs=1e-9)

    def test_large_tables_are_fewer(self):
        (*_, last) = experiments_of(prevalence(n_rows=10_000_000))
        assert last.n_draws(5_000) == 200
        (base, *whole) = experiments_of(made("chain")[0])
        assert (base.name, whole) == ("chain", [])

    def test_the_farthest_rows(self):
        scenario = volume()
        one, other = farthest_rows(row_kinds(scenario), None)
        rows = scenario.priors[0].distributions["the larger size"].rows_at_hand
        rows = np.vstack([rows, np.zeros(2)])
        apart = np.linalg.norm(rows[:, None] - rows[None], axis=2).max()
        assert np.linalg.norm(one - other) == pytest.approx(apart)

    def test_linear_discriminant(self):
        first, second = np.array([[1.0, 0.0], [3.0, 2.0]]), np.array([[0.0, 1.0], [0.0, 1.0]])
        cov = np.array([[0.5, 0.5], [0.5, 0.5]]) + 4 * np.eye(2)
        expected = np.linalg.solve(cov, [2.0, 0.0])
        np.testing.assert_allclose(discriminant(first, second, 2.0), expected)


def verdicts_of(audit):
    return {verdict.line: verdict for verdict in audit.verdicts}


@pytest.mark.soundness
@pytest.mark.parametrize("kind", MADE)
def test_right_certificates_stand(kind, seed):
    scenario, certificate = made(kind)
    audit = audit_release(scenario, None, certificate, seed=seed, **SETTINGS)
    assert not audit.refuted
    assert sum(1 - verdict.confidence for verdict in audit.verdicts) == pytest.approx(0.01)
    assert audit.confidence == 0.99
    lines = verdicts_of(audit)
    assert (BOTH_TABLES in lines) == (kind in OF_NUMBERS)
    assert (ONE_ROW in lines) == (kind in OF_NUMBERS)
    if BOTH_TABLES in lines:
        both = lines[BOTH_TABLES]
        assert certificate.guess - 0.08 < both.lower_bound < both.claimed == certificate.guess
        assert certificate.statement.coupling.name in both.claim
        assert lines[ONE_ROW].lower_bound < lines[ONE_ROW].claimed


@pytest.mark.soundness
def test_the_best_reader_guesses_as_often_as_theory_says(seed):
    """Whoever holds both candidate tables is right with probability E Phi(root Q / 2)."""
    scenario, certificate = made("cells")
    n = 20_000
    first, second = coupled_sums(
        row_kinds(scenario),
        scenario.pairs[0],
        n,
        coupling="cells:site",
        shape=certificate.shape,
        rng=np.random.default_rng(seed),
    )
    change = (second - first) @ certificate.shape.whitening.T / certificate.noise_std
    truth = ndtr(np.linalg.norm(change, axis=1) / 2).mean()
    audit = audit_release(
        scenario, None, certificate, n_outputs=n, confidence=0.99, seed=seed, noise=NOISE
    )
    assert truth - 0.017 < verdicts_of(audit)[BOTH_TABLES].lower_bound < truth + 0.002
    assert truth < certificate.guess


def claiming(certificate, **changes):
    """The same noise under a statement that claims something else."""
    statement = certificate.statement
    return attrs.evolve(
        certificate,
        statement=statement.model_copy(update=changes),
    )


def with_less_noise(certificate, factor):
    noise = certificate.statement.noise
    return claiming(certificate, noise=noise.model_copy(update={"std": noise.std * factor}))


@pytest.mark.soundness
class TestBroken:
    @pytest.mark.parametrize("kind", [*OF_NUMBERS, "chain", "weeks", "rooms"])
    def test_half_the_noise_falls(self, kind, seed):
        scenario, certificate = made(kind)
        broken = with_less_noise(certificate, 0.5 if kind in OF_NUMBERS else 0.25)
        audit = audit_release(scenario, None, broken, seed=seed, **SETTINGS)
        assert audit.refuted
        assert kind not in OF_NUMBERS or verdicts_of(audit)[BOTH_TABLES].refuted

    @pytest.mark.parametrize("kind", ["independent", "cells", "transport"])
    def test_noise_for_the_mean_change_alone_falls(self, kind, seed):
        """Without D (S0 + S1), as if rows of one kind were all alike."""
        scenario, certificate = made(kind)
        full = certificate.evidence.full
        (shift,) = full.differences.changes
        alone = 10 * np.linalg.norm(full.shape.whitening @ shift.mean)
        factor = alone / math.sqrt(GUESS.distance_limit) / certificate.noise_std
        assert factor < 0.8
        broken = with_less_noise(certificate, factor)
        settings = SETTINGS | {"n_outputs": 10_000}
        audit = audit_release(scenario, None, broken, seed=seed, **settings)
        assert verdicts_of(audit)[BOTH_TABLES].refuted

    @pytest.mark.parametrize("make", [prevalence, volume, supplier])
    def test_one_person_falls_where_noise_is_a_tenth(self, make, seed):
        scenario = make()
        broken = with_less_noise(certify_release(scenario, GUESS), 0.1)
        audit = audit_release(scenario, None, broken, seed=seed, **SETTINGS)
        assert verdicts_of(audit)[ONE_ROW].refuted

    def test_rare_rows(self, seed):
        """One row in a hundred is far from all others."""
        values = [0.0] * 990 + [1.0] * 10
        table = pa.table({"ill": ["yes"] * 1000 + ["no"] * 1000, "x": [*values, *[0.0] * 1000]})
        scenario = Scenario.from_prevalence(
            table,
            column="ill",
            value="yes",
            within=0.05,
            query=queries.summary(mean=["x"], clip={"x": (0, 1)}),
            n_rows=1_000,
            source="held_out",
        )
        broken = with_less_noise(certify_release(scenario, GUESS), 0.1)
        audit = audit_release(scenario, None, broken, seed=seed, **SETTINGS)
        assert audit.verdicts[0].refuted


class TestOutputs:
    def test_saved_and_audited_again(self, tmp_path):
        scenario, certificate = made("independent")
        drawn = draw_outputs(scenario, certificate, 1_000, seed=0, noise=NOISE)
        assert len(drawn.values) == 3
        drawn.save(tmp_path / "outputs.npz")
        loaded = Outputs.load(tmp_path / "outputs.npz")
        audits = [
            audit_outputs(scenario, None, certificate, each, confidence=0.9, seed=0)
            for each in (drawn, loaded)
        ]
        assert audits[0] == audits[1]

    def test_outputs_from_elsewhere_are_of_the_secrets_alone(self):
        scenario, certificate = made("volume")
        rng = np.random.default_rng(1)
        released = {secret: rng.normal(size=(500, 2)) * 1e6 for secret in scenario.secrets}
        outputs = supplied_outputs(scenario, certificate, released)
        audit = audit_outputs(scenario, None, certificate, outputs, confidence=0.9, seed=0)
        assert not audit.refuted

    def test_rows_in_another_order_are_audited(self):
        _, certificate = made("cells")
        places = np.random.default_rng(3).permutation(len(EARLIER))
        shuffled = prevalence(moments_from=EARLIER.take(places))
        assert not audit_release(shuffled, None, certificate, seed=0, **SETTINGS).refuted

    def test_bits_are_audited_by_the_guesses_that_follow(self):
        scenario = prevalence()
        certificate = certify_release(scenario, Guarantee.information(bits=0.2))
        audit = audit_release(scenario, None, certificate, seed=0, **SETTINGS)
        assert any("no attack bounds it" in words for words in audit.unaudited)
        assert verdicts_of(audit)[BOTH_TABLES].claimed == certificate.guess

    def test_moments_alone_cannot_be_drawn(self):
        scenario = Scenario.from_occupancy(
            [[0.9, 0.1], [0.2, 0.8]],
            length=12,
            positions=[5],
            query=queries.summary(total=["kwh"], clip={"kwh": (0, 5)}),
            loads={0: ([1.0], [[0.5]]), 1: ([3.0], [[0.25]])},
        )
        certificate = certify_release(scenario, GUESS)
        with pytest.raises(ScenarioError, match="the rows themselves"):
            audit_release(scenario, None, certificate, seed=0, **SETTINGS)


class TestCommand:
    ILL: ClassVar = {"property": {"column": "ill", "equals": "yes"}}
    TEMPLATES: ClassVar = {
        "prevalence": ({"within": 0.1} | ILL, "mean"),
        "volume": ({"up_to": 200, "ratio": 1.2}, "total"),
        "supplier": ({"up_to": 100, "ratio": 1.2} | ILL, "total"),
    }

    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        rng = np.random.default_rng(3)
        people = pa.table(
            {
                "ill": np.where(rng.random(150) < 0.4, "yes", "no"),
                "age": rng.integers(20, 90, 150),
            }
        )
        pa_csv.write_csv(people, tmp_path / "people.csv")
        monkeypatch.chdir(tmp_path)
        return tmp_path

    @pytest.mark.parametrize("template", TEMPLATES)
    def test_real_tables_are_drawn(self, folder, template, capsys):
        section, statistic = self.TEMPLATES[template]
        document = {
            "data": {"path": "people.csv"},
            template: section,
            "query": {"distribution": "worlds", statistic: ["age"], "clip": {"age": [0, 100]}},
            "prior": {"source": "released-data"},
            "guarantee": {"notion": "guess", "at_most": 0.64},
        }
        (folder / "scenario.toml").write_text(toml_text(document))
        assert run(["calibrate", "scenario.toml", "--out", "right.json"]) == 0
        words = ["audit", "right.json", "--scenario", "scenario.toml", "--n-outputs", "20000"]
        capsys.readouterr()
        assert run([*words, "--json", "--out", "audit.json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document == json.loads((folder / "audit.json").read_text())
        assert {BOTH_TABLES, ONE_ROW} <= {verdict["line"] for verdict in document["verdicts"]}
        with_less_noise(Certificate.load("right.json"), 0.25).save("broken.json")
        words[1] = "broken.json"
        assert run(words) == 1
        assert "REFUTED: at most 64" in capsys.readouterr().out


def test_row_kinds_of_other_scenarios():
    rows = RowDifference.of(*distribution_pairs(prevalence()))
    assert rows.n_instances == 1
    assert row_kinds(made("chain")[0]) == {}
