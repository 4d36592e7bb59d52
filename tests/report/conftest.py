# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""A folder with every kind of file that a report takes."""

import json
import shutil

import attrs
import numpy as np
import pyarrow as pa
import pytest

from pufferslice.audit import audit_membership, audit_release
from pufferslice.audit.verdict import Verdict
from pufferslice.baselines.comparison import compare_mechanisms
from pufferslice.certificate import certify_release, certify_training
from pufferslice.claims import Guarantee
from pufferslice.learning import LogMoment, Poisson, exactly, plan_training
from pufferslice.queries import Box, summary
from pufferslice.releases.release import release
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile

JOINT = Guarantee.joint(order=4, epsilon=1.0)


def made_table(column="pay", groups=("north", "south", "west")):
    rng = np.random.default_rng(11)
    parts = [
        pa.table(
            {
                "site": [group] * 30,
                column: rng.normal(30 + 2 * i, 4, size=30),
                "age": rng.gamma(3 + i, 5, size=30),
            }
        )
        for i, group in enumerate(groups)
    ]
    return pa.concat_tables(parts)


def made_scenario(table, column="pay"):
    query = summary(mean=[column, "age"], std=["age"]).with_range(Box([0, 0, 0], [80, 120, 60]))
    return Scenario.from_groups(table, secret="site", query=query.with_scales([2.0, 5.0, 3.0]))


def put(path, value):
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def scenario():
    return made_scenario(made_table())


@pytest.fixture(scope="session")
def profile():
    return FiniteProfile.uniform(dim=3, n_directions=20, seed=7)


@pytest.fixture(scope="session")
def certificate(scenario, profile):
    return certify_release(scenario, JOINT.along(profile))


@pytest.fixture(scope="session")
def trained():
    plan = plan_training(
        differing=exactly(4),
        sampling=Poisson(n_records=500, rate=0.5),
        clip_norm=1.0,
        n_steps=12,
        accountant=LogMoment(),
        target=Guarantee.unsliced(order=8, epsilon=4.0),
    )
    return certify_training(plan, data="digits")


@pytest.fixture(scope="session")
def made(tmp_path_factory, scenario, profile, certificate, trained):
    """Written once; tests that change a file take `case`."""
    folder = tmp_path_factory.mktemp("made")
    certificate.save(folder / "certificate.json")
    rows = made_table().slice(0, 30)
    out = folder / "release.json"
    release(scenario, rows, certificate, ledger=folder / "site.ledger", out=out)
    audit = audit_release(scenario, profile, certificate, n_outputs=2_000, confidence=0.95, seed=1)
    put(folder / "audit.json", audit.to_json())
    compared = compare_mechanisms(scenario, profile, JOINT).to_json()
    curves = {row["mechanism"]: [row["noise_std"] * 2, None] for row in compared["rows"]}
    put(folder / "comparison.json", compared | {"epsilons": [0.5, 1.0], "noise_curves": curves})
    _learning_files(folder, trained)
    return folder


def _learning_files(folder, trained):
    trained.save(folder / "trained.json")
    claim = trained.statement.guarantee.to_json()
    rows = [
        claim | {"step": step, "n_steps": 12, "spent_epsilon": claim["epsilon"] * step / 12,
                 "held_out_accuracy": 0.5 + step / 40}
        for step in (4, 8, 12)
    ]  # fmt: skip
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "public.jsonl").write_text(lines, encoding="utf-8")
    private = [{"internal": True, "note": "Do not publish this file."}]
    private += [{"internal": True, "step": i, "mean_loss": 2.25 / i} for i in range(1, 13)]
    lines = "".join(json.dumps(row) + "\n" for row in private)
    (folder / "internal.jsonl").write_text(lines, encoding="utf-8")
    named = {"certificate": trained.digest}
    put(folder / "verdict.json", made_verdict().to_json() | named)
    flags = np.repeat([True, False], 9_000)
    scores = np.random.default_rng(2).normal(np.where(flags, 0.2, 0.0))
    member = audit_membership(scores, flags, attack="loss threshold", confidence=0.95)
    put(folder / "membership.json", member.to_json() | named)


def made_verdict(**changed):
    verdict = Verdict(
        claim="(8, 4)-RPP, whole run",
        quantity="epsilon",
        claimed=4.0,
        statistic="Rényi divergence of order 8",
        lower_bound=1.5,
        confidence=0.95,
        refutable_below=6.5,
        n_outputs=2_000,
        pair=("first", "second"),
        prior="exactly 4 records differ",
        line="released number 0",
    )
    return attrs.evolve(verdict, **changed)


STATIC = ("certificate.json", "release.json", "audit.json", "comparison.json")
LEARNING = ("trained.json", "public.jsonl", "internal.jsonl", "verdict.json", "membership.json")
PUBLIC = ("certificate.json", "release.json", "trained.json", "public.jsonl")


def files(folder, names):
    return [folder / name for name in names]


@pytest.fixture
def case(made, tmp_path):
    """A copy of the folder, to be spoilt."""
    return shutil.copytree(made, tmp_path / "case")
