# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""Refusals that need several packages: certificates, plans and releases that do not fit."""

import attrs
import pyarrow as pa
import pytest
from tests.refusal_tables import refusals
from tests.refusals import check_refused

import pufferslice as ps
from pufferslice.audit import TrainingRuns, audit_release
from pufferslice.baselines.comparison import compare_mechanisms
from pufferslice.certificate.evidence import Evidence
from pufferslice.claims import Measure, Sliced
from pufferslice.errors import CalibrationError, PuffersliceError, ReleaseError
from pufferslice.learning import Poisson, WorstCase, exactly, plan_with_noise
from pufferslice.learning.accountants import calibrate_multiplier

TABLE = pa.table({"site": ["a", "a", "b", "b"], "x": [0.0, 1.0, 2.0, 3.0]})
SAME = pa.table({"site": ["a", "a", "b", "b"], "x": [1.0, 2.0, 1.0, 2.0]})
LINE = ps.FiniteProfile.axes(dim=1)
JOINT = ps.Guarantee.joint(order=4, epsilon=1.0).along(LINE)
SCENARIO = ps.Scenario.from_groups(TABLE, secret="site", query=ps.queries.summary(mean=["x"]))
RECORDS, EQUAL = (
    ps.Scenario.from_records(
        table, secret="site", query=ps.queries.columns(["x"]), source="held_out"
    )
    for table in (TABLE, SAME)
)
CERTIFICATE, WITHOUT_NOISE = (ps.certify_release(given, JOINT) for given in (SCENARIO, EQUAL))
PLAN = plan_with_noise(
    differing=exactly(1),
    sampling=Poisson(n_records=9, rate=0.5),
    clip_norm=1.0,
    noise_multipliers=[2.0],
    accountant=WorstCase(),
    measure=Measure.renyi(order=4),
)
GUESS = ps.Guarantee.guess(at_most=0.6)
DELTA_RUN = (ps.Guarantee.epsilon_delta(1.0, 1e-5), PLAN.sampling, PLAN.differing, 1)
RUN = ps.certify_training(PLAN, data="nine records", noise="drawn by the system")


def of_two_dimensions():
    evidence = CERTIFICATE.evidence
    attrs.evolve(evidence, full=attrs.evolve(evidence.full, dim=2)).check()


def audit_of_bits():
    """So many bits, of a state that lasts, bound neither an epsilon nor guesses."""
    scenario = ps.Scenario.from_occupancy(
        [[0.99, 0.01], [0.01, 0.99]],
        length=60,
        positions=[2],
        query=ps.queries.summary(total=["x"], clip={"x": (0, 2)}),
        loads=pa.table({"state": [0, 1] * 30, "x": [0.0, 2.0] * 30}),
    )
    certificate = ps.certify_release(scenario, ps.Guarantee.information(bits=1e4))
    audit_release(scenario, None, certificate, n_outputs=200, confidence=0.9, seed=1)


def signed(**signature):
    document = CERTIFICATE.to_json() | {"signature": {"algorithm": "ed25519"} | signature}
    return ps.Certificate.from_json(document)


def released(scenario, rows, certificate):
    return ps.release(scenario, rows, certificate, ledger="never.ledger")


REFUSED = {
    PuffersliceError: [
        ("the evidence", of_two_dimensions),
        ("'module:function'", lambda: TrainingRuns(worker="train", plan=None, n_runs=9)),
        ("failure", lambda: Evidence.of(RECORDS.with_sampled_priors(), LINE, None)),
        ("signature.public_key", lambda: signed(public_key="x", value=1)),
        ("training runs", lambda: CERTIFICATE.trained),
        ("order and epsilon", lambda: compare_mechanisms(SCENARIO, None, GUESS)),
        ("worst_case", lambda: calibrate_multiplier(WorstCase(), *DELTA_RUN)),
        ("nothing that an attack", audit_of_bits),
        (
            "empirical priors",
            lambda: ps.plan_samples(SCENARIO, JOINT, noise_std=1.0, failure_probability=0.1),
        ),
    ],
    ReleaseError: [
        ("distributions do not have", lambda: released(EQUAL, TABLE.slice(3, 1), WITHOUT_NOISE)),
        ("training run", lambda: released(SCENARIO, TABLE.slice(0, 2), RUN)),
    ],
}


@pytest.mark.parametrize("refusal", refusals(REFUSED))
def test_refused(refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_refused(refusal)
    assert not list(tmp_path.iterdir())


def test_a_noise_that_would_cost_more_than_the_target(monkeypatch):
    monkeypatch.setattr(Sliced, "spent", lambda *_: 1.5)
    with pytest.raises(CalibrationError, match=r"1\.5"):
        ps.certify_release(SCENARIO, JOINT)
