# SPDX-License-Identifier: Apache-2.0
"""Plugins of an installed package: found, stated on certificates, and missed by `verify`."""

import datetime as dt
import importlib.metadata
import json
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from tests.scenario_files import TRAINING, csv_text, toml_text

import pufferslice as ps
from pufferslice._core import plugins
from pufferslice.certificate import Certificate, certify_training, verify
from pufferslice.certificate.schema import check_statement, json_schemas
from pufferslice.cli.app import run
from pufferslice.config import read_plan, write_plan
from pufferslice.config.training import training_of
from pufferslice.errors import (
    ArgumentError,
    CertificateError,
    PluginError,
    ReleaseError,
    ScenarioError,
)
from pufferslice.learning import (
    LogMoment,
    Poisson,
    TrainingPlan,
    WithoutReplacement,
    binomial,
    exactly,
    plan_training,
    plan_with_noise,
    plugin_accountant,
    run_cost,
)
from pufferslice.queries import plugin_query, summary
from pufferslice.scenario import plugin_distribution

TABLE = pa.table({"site": list("aabb"), "pay": [1.0, 2.0, 3.0, 10.0]})
UNSLICED = ps.Guarantee.unsliced(order=4, epsilon=1.0)
STATED = {"name": "trimmed_mean", "package": "example-plugins", "version": "1.0"}
POISSON = Poisson(n_records=100, rate=0.1)


def trimmed(column="pay", **options):
    return plugin_query("trimmed_mean", {"column": column, **options})


def groups(query):
    return ps.Scenario.from_groups(TABLE, secret="site", query=query)  # noqa: S106 - a column


def coins():
    worlds = {
        name: plugin_distribution("coin", {"heads": p}) for name, p in (("a", 0.5), ("b", 0.75))
    }
    return ps.Scenario.from_worlds(worlds, query=summary(rate={"site": "a"}))


def plan(**options):
    return plan_training(
        differing=exactly(2), sampling=POISSON, clip_norm=1.0, n_steps=5, target=UNSLICED,
        accountant=plugin_accountant("cautious", options),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (plugin_query, ["summary", "mean", "group-by"]),
        (plugin_distribution, ["gaussian", "worlds"]),
        (plugin_accountant, ["log-moment", "worst_case", "plugin"]),
    ],
)
def test_names_of_the_library_are_refused(example, build, names):
    for name in names:
        with pytest.raises(ArgumentError, match="built in"):
            build(name, {})


TRIMMED = "options of plugin 'trimmed_mean'"


@pytest.mark.parametrize(
    ("build", "name", "options", "error", "words"),
    [
        (plugin_query, "trimmed_mean", {"day": dt.date(2026, 1, 1)}, ArgumentError, TRIMMED),
        (plugin_query, "trimmed_mean", {"share": float("nan")}, ArgumentError, TRIMMED),
        (plugin_query, "trimmed_mean", 3, ArgumentError, TRIMMED),
        (plugin_query, "trimmed_mean", {1: {2}}, ArgumentError, TRIMMED),
        (plugin_query, "trimmed_mean", {"share": 0.1}, ArgumentError, f"{TRIMMED}.*'column'"),
        (plugin_query, "number", {}, PluginError, "must return a Query, got int"),
        (plugin_query, "secretive", {}, ScenarioError, "raised ValueError"),
        (plugin_query, "gone", {}, PluginError, "cannot be imported.*gone"),
        (plugin_distribution, "number", {}, PluginError, "FiniteDistribution.*got int"),
        (plugin_accountant, "silent", {}, PluginError, "draws_may_be_seen"),
        (plugin_accountant, "without_check", {}, PluginError, "method check"),
    ],
)
def test_what_does_not_fit_is_refused_and_not_shown(example, build, name, options, error, words):
    with pytest.raises(error, match=words) as caught:
        build(name, options)
    assert "Ada" not in str(caught.value)


class TestQuery:
    def test_it_computes_and_is_stated(self, example):
        query = trimmed(share=0.25)
        assert query.outputs(TABLE).tolist() == [[2.5]]
        stated = STATED | {"options": {"column": "pay", "share": 0.25}}
        assert query.description()["plugin"] == stated
        assert query.with_scales([2.0]).plugin == query.plugin
        assert trimmed(share=0.25) == query != trimmed()

    def test_no_plugin_leaves_no_trace(self):
        assert "plugin" not in summary(mean=["pay"]).description()

    def test_nothing_is_imported_before_it_is_asked_for(self, example):
        with pytest.raises(PluginError, match=r"'other'.*is not installed; installed: .*trimmed"):
            plugin_query("other", {})
        assert "pufferslice_example_plugins" not in sys.modules
        trimmed()
        assert "pufferslice_example_plugins" in sys.modules

    def test_it_is_in_one_package(self, example):
        example(package="other-plugins")
        with pytest.raises(PluginError, match="several packages: example-plugins, other-plugins"):
            trimmed()

    def test_it_belongs_to_a_package(self, monkeypatch):
        alone = importlib.metadata.EntryPoint("alone", "json:loads", "pufferslice.queries")
        monkeypatch.setattr(plugins, "entry_points", lambda group: [alone])
        with pytest.raises(PluginError, match="no installed package"):
            plugin_query("alone", {})


class TestDistribution:
    def test_it_is_the_one_that_python_builds(self, example):
        declared = {
            name: ps.FiniteDistribution.weighted([[0.0], [1.0]], [1 - p, p])
            for name, p in (("a", 0.5), ("b", 0.75))
        }
        by_hand = ps.Scenario.from_worlds(declared, query=summary(rate={"site": "a"}))
        scenario = coins()
        assert scenario.distributions_digest() == by_hand.distributions_digest()
        (prior,) = scenario.description()["priors"]
        assert prior.pop("plugins") == [STATED | {"name": "coin"}]  # not its options
        assert [prior] == by_hand.description()["priors"]


class TestAccountant:
    def test_costs_are_those_of_the_plugin(self, example):
        cautious = plugin_accountant("cautious", {"factor": 3.0})
        multipliers = np.array([20.0, 30.0])
        one = run_cost(cautious, 4, POISSON, exactly(2), multipliers)
        assert one == 3 * run_cost(LogMoment(), 4, POISSON, exactly(2), multipliers)

    @pytest.mark.soundness
    def test_many_counts_take_no_shortcut(self, example):
        """Beyond 512 counts the library's accountants interpolate; a plugin's law is not known."""
        differing = binomial(n_records=600, mismatch_probability=0.5)
        sampling = Poisson(n_records=600, rate=0.01)
        cautious = plugin_accountant("cautious", {})
        multipliers = np.array([500.0])
        costs = ps.learning.cost_by_count(cautious, 2, sampling, differing, multipliers)
        assert len(costs) > 512
        one_by_one = [
            cautious.step_costs(2, sampling, int(n), multipliers) for n in differing.counts
        ]
        assert costs.tolist() == np.concatenate(one_by_one).tolist()

    def test_calibration_never_overspends(self, example):
        made = plan()
        assert 0.999 < made.guarantee().epsilon <= 1

    def test_a_plan_comes_back(self, example, tmp_path):
        made = plan(factor=2.5)
        stated = STATED | {"name": "cautious", "options": {"factor": 2.5}}
        assert made.to_json()["accountant"] == "plugin"
        assert made.to_json()["plugin"] == stated
        for name in ("plan.json", "plan.toml"):
            write_plan(made, tmp_path / name)
            assert read_plan(tmp_path / name) == made

    def test_a_plan_needs_its_version(self, example):
        document = plan().to_json()
        example("1.1")
        with pytest.raises(PluginError, match=r"'1\.0' is not installed, but .*'1\.1'"):
            TrainingPlan.from_json(document)

    def test_it_may_refuse_a_design(self, example):
        with pytest.raises(ValueError, match="cautious needs Poisson"):
            plan_with_noise(
                differing=exactly(1), sampling=WithoutReplacement(n_records=9, batch_size=3),
                clip_norm=1.0, noise_multipliers=[5.0], order=2,
                accountant=plugin_accountant("cautious", {}),
            )  # fmt: skip

    def test_costs_are_not_negative(self, example):
        with pytest.raises(PluginError, match="floats of at least 0"):
            run_cost(plugin_accountant("negative", {}), 4, POISSON, exactly(2), np.ones(2))

    def test_no_differing_record_costs_nothing(self, example):
        negative = plugin_accountant("negative", {})
        assert negative.step_costs(4, POISSON, 0, np.ones(2)).tolist() == [0, 0]


class TestCertificate:
    @pytest.fixture
    def schema(self):
        return jsonschema.Draft202012Validator(json_schemas()["certificate"])

    def test_a_release(self, example, schema, tmp_path):
        scenario = groups(trimmed())
        certificate = ps.certify_release(scenario, UNSLICED)
        certificate.save(tmp_path / "certificate.json")
        schema.validate(json.loads((tmp_path / "certificate.json").read_text()))
        assert "plugins" in certificate.statement["limits"]
        assert "plugin 'trimmed_mean' of 'example-plugins' '1.0'" in str(certificate)
        loaded = Certificate.load(tmp_path / "certificate.json")
        for data in (None, scenario):
            result = verify(loaded, scenario=data)
            assert result.holds
            assert any(
                "what plugin 'trimmed_mean'" in point and "cannot" not in point
                for point in result.unchecked
            )

    def test_a_release_without_its_plugin(self, example):
        scenario = groups(trimmed())
        certificate = ps.certify_release(scenario, UNSLICED)
        example.away()
        from_evidence = verify(certificate)
        assert from_evidence.holds
        assert any("cannot be recomputed here: plugin" in text for text in from_evidence.unchecked)
        from_data = verify(certificate, scenario=scenario)
        assert not from_data.holds
        assert str(from_data).startswith("NOT VERIFIED\n  - cannot be recomputed here: plugin")

    def test_a_release_with_another_version(self, example, tmp_path):
        certificate = ps.certify_release(groups(trimmed()), UNSLICED)
        example("2.0")
        scenario = groups(trimmed())
        assert "'2.0'; install that version" in str(verify(certificate, scenario=scenario))
        with pytest.raises(ReleaseError, match="install that version"):
            ps.release(scenario, TABLE.slice(0, 2), certificate, ledger=tmp_path / "l")

    def test_priors(self, example, schema):
        certificate = ps.certify_release(coins(), UNSLICED)
        assert "plugins" in certificate.statement["limits"]
        assert "plugin 'coin' of 'example-plugins' '1.0'" in str(certificate)
        assert "0.5" not in json.dumps(certificate.statement["scenario"])
        assert verify(certificate, scenario=coins()).holds

    def test_training(self, example, schema, tmp_path):
        certificate = certify_training(plan(), data="d")
        certificate.save(tmp_path / "certificate.json")
        schema.validate(json.loads((tmp_path / "certificate.json").read_text()))
        assert "plugin-accountant" in certificate.statement["limits"]
        assert "accountant plugin 'cautious' of 'example-plugins' '1.0'" in str(certificate)
        record = certificate.statement["one_record"]
        assert record["accountants"] == ["log_moment"]
        noise = plan().noise_multipliers
        assert record["epsilon"] == run_cost(LogMoment(), 4, POISSON, exactly(1), noise)
        assert verify(Certificate.load(tmp_path / "certificate.json")).holds

    def test_training_without_its_plugin_is_not_refuted(self, example):
        certificate = certify_training(plan(), data="d")
        example.away()
        result = verify(certificate)
        assert not result.holds
        assert str(result).startswith("NOT VERIFIED\n  - cannot be recomputed here: plugin")

    def test_an_accountant_names_its_plugin(self, example):
        statement = json.loads(json.dumps(certify_training(plan(), data="d").statement))
        del statement["runs"][0]["plugin"]
        with pytest.raises(CertificateError, match="a plugin belongs to accountant 'plugin'"):
            check_statement(statement)


class TestFiles:
    def test_a_release_by_commands(self, example, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        Path("people.csv").write_text(csv_text())
        document = {
            "data": {"path": "people.csv"},
            "secret": {"column": "site"},
            "query": {
                "distribution": "groups",
                "plugin": {"name": "trimmed_mean", "options": {"column": "pay"}},
                "scales": [10],
            },
            "guarantee": {"notion": "unsliced", "order": 4, "epsilon": 1.0},
        }
        Path("scenario.toml").write_text(toml_text(document))
        assert run(["calibrate", "scenario.toml", "--out", "certificate.json"]) == 0
        query = Certificate.load("certificate.json").statement["scenario"]["query"]
        assert query["plugin"] == STATED | {"options": {"column": "pay"}}
        release = ["release", "scenario.toml", "--certificate", "certificate.json", "--group", "a"]
        assert run([*release, "--ledger", "l", "--out", "release.json"]) == 0
        check = ["verify", "certificate.json", "--scenario", "scenario.toml"]
        assert run(check) == 0
        example.away()
        capsys.readouterr()
        assert run(check) == 1
        assert "plugin 'trimmed_mean' of pufferslice.queries is not" in capsys.readouterr().err
        assert run(["verify", "certificate.json"]) == 0
        assert "cannot be recomputed here" in capsys.readouterr().out
        both = {**document["query"], "mean": ["pay"]}
        Path("scenario.toml").write_text(toml_text(document | {"query": both}))
        assert run(["calibrate", "scenario.toml"]) == 2
        assert "[query] plugin: is the whole query; leave mean out" in capsys.readouterr().err

    def test_worlds_by_commands(self, example, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        document = {
            "query": {"distribution": "worlds", "rate": [{"column": "site", "equals": "a"}]},
            "plugin": {
                "fair": {"name": "coin", "options": {"heads": 0.5}},
                "bent": {"name": "coin", "options": {"heads": 0.75}},
            },
            "guarantee": {"notion": "unsliced", "order": 4, "epsilon": 1.0},
        }
        Path("scenario.toml").write_text(toml_text(document))
        assert run(["calibrate", "scenario.toml", "--out", "certificate.json"]) == 0
        scenario = Certificate.load("certificate.json").statement["scenario"]
        assert scenario["secrets"] == ["fair", "bent"]
        assert scenario["priors"][0]["plugins"] == [STATED | {"name": "coin"}]

    def test_training(self, example):
        claim = TRAINING["guarantee"] | {"accountant": "plugin", "plugin": {"name": "cautious"}}
        request = training_of(TRAINING | {"guarantee": claim}, Path())
        assert request.plan.accountant == plugin_accountant("cautious", {})
        for wrong in ({"accountant": "amplified"}, {"plugin": None}):
            changed = {k: v for k, v in (claim | wrong).items() if v is not None}
            with pytest.raises(ArgumentError, match=r"\[guarantee\] plugin and accountant"):
                training_of(TRAINING | {"guarantee": changed}, Path())
