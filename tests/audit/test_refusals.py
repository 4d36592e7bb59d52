# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""Calls of the audits that are refused."""

import math
from functools import partial

import attrs
import numpy as np
import pyarrow as pa
import pytest
from tests.audit import teeth
from tests.refusals import Refusal, check_refused
from tests.wrong_arguments import wrong_calls, wrong_values

from pufferslice.audit import (
    Probes,
    TrainingRuns,
    Verdict,
    audit_line,
    audit_outputs,
    audit_property,
    audit_release,
    audit_training,
    draw_outputs,
    supplied_outputs,
)
from pufferslice.audit.divergence import RenyiTest, SplitOutputs, outputs_needed
from pufferslice.audit.inference import gaussian_scores, likelihood_scores
from pufferslice.audit.membership import (
    ShadowModels,
    audit_membership,
    likelihood_ratio_scores,
    loss_scores,
    margin_scores,
    offline_likelihood_ratio_scores,
    roc_auc,
)
from pufferslice.audit.outputs import quantised_rows
from pufferslice.audit.training import audit_released
from pufferslice.certificate import certify_release, certify_training
from pufferslice.claims import Guarantee, Measure
from pufferslice.errors import ScenarioError
from pufferslice.learning import MeanSquare, WithoutReplacement, WorstCase, exactly, plan_with_noise
from pufferslice.queries import Box, summary
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere

RNG = np.random.default_rng(1)
PLANE = FiniteProfile.uniform(dim=2, n_directions=6, seed=7)
JOINT = Guarantee.joint(order=2, epsilon=1.0)
ROWS = pa.table({"g": ["a", "a", "b", "b"], "x": [1.1, 1.3, 2.0, 3.3], "y": [0.1, 5.0, 7.0, 7.7]})
QUERY = summary(mean=["x", "y"]).with_range(Box([0, 0], [10, 10]))
GROUPS = Scenario.from_groups(ROWS, secret="g", query=QUERY)
MOVED = ROWS.set_column(1, "x", pa.array([1.1, 1.4, 2.0, 3.3]))
CERTIFICATE = certify_release(GROUPS, JOINT.along(PLANE))
OTHER = certify_release(GROUPS, Guarantee.joint(order=2, epsilon=3.0, profile=PLANE))
ZEROS, NONE = np.zeros((5, 2)), np.zeros((0, 3))
PROBES = {"labels": np.array([0, 1, 2] * 2), "from_second": np.arange(6) >= 3, "n_classes": 3}
SHADOWS = ShadowModels(
    scores=RNG.normal(size=(12, 7)), members=np.indices((12, 7)).sum(axis=0) % 2 == 0
)
OUTSIDE = ShadowModels(scores=RNG.normal(size=(4, 3)), members=np.zeros((4, 3), dtype=bool))
FEW = attrs.evolve(OUTSIDE, members=np.array([[False, True, True]] * 2 + [[True] * 3] * 2))
COPIES = ShadowModels(
    scores=np.tile([1.0, 2.0], (4, 1)), members=np.array([[True, False], [False, True]] * 2)
)
VERDICT = Verdict(
    claim="(2, 1)-RPP", quantity="epsilon", claimed=1.0, statistic="Rényi divergence of order 2",
    lower_bound=3.2, confidence=0.95, refutable_below=8.6, n_outputs=100_000, pair=("a", "b"),
    prior="declared", line="axis 0",
)  # fmt: skip


def plan_of(accountant=None, multiplier=2.0):
    accountant = accountant or WorstCase()
    return plan_with_noise(
        differing=exactly(1), sampling=WithoutReplacement(n_records=4, batch_size=4),
        clip_norm=1.0, noise_multipliers=[multiplier], accountant=accountant,
        measure=Measure.of(accountant.claim(order=2.0, epsilon=1.0)),
    )  # fmt: skip


def runs_of(plan=None, n_runs=300, **fields):
    fields = {"worker": "m:f", "plan": plan or plan_of(), "n_runs": n_runs} | fields
    return TrainingRuns(**fields)


def verdict(**changes):
    return attrs.evolve(VERDICT, **changes)


def line(n=200, epsilon=1.0, **changes):
    settings = {"claim": Guarantee.unsliced(order=2, epsilon=epsilon), "confidence": 0.95,
                "seed": 0} | changes  # fmt: skip
    outputs = np.random.default_rng(0).normal(size=(2, n))
    return audit_line(outputs[0] + 1, outputs[1], **settings)


def not_finite():
    outputs = RNG.normal(size=(2, 200))
    outputs[0, :3] = [np.nan, np.inf, -np.inf]
    return audit_line(*outputs, Guarantee.unsliced(order=2, epsilon=1.0), confidence=0.9, seed=0)


def released(**changes):
    settings = {"profile": teeth.PROFILE, "n_outputs": 1_000, "confidence": 0.95, "seed": 0}
    return audit_release(
        teeth.point_masses(), certificate=teeth.certified(1.0), **settings | changes
    )


def another_sphere():
    sphere, other = (SampledSphere.draw(dim=2, n_directions=9, seed=seed) for seed in (1, 2))
    claim = Guarantee.joint(order=2, epsilon=1.0, profile=sphere)
    certificate = certify_release(GROUPS, claim, failure_probability=0.05)
    return audit_release(GROUPS, other, certificate, n_outputs=5_000, confidence=0.9, seed=0)


def supplied(**arrays):
    return supplied_outputs(GROUPS, CERTIFICATE, {"a": ZEROS, "b": ZEROS} | arrays)


def drawn(certificate, **changes):
    outputs = attrs.evolve(draw_outputs(GROUPS, OTHER, 500, seed=0), **changes)
    return audit_outputs(GROUPS, PLANE, certificate, outputs, confidence=0.95, seed=0)


def trained(runs=None, **changes):
    settings = {"folder": "absent", "confidence": 0.95, "seed": 1} | changes
    return audit_training(runs or runs_of(n_runs=1_300), **settings)


def inferred(accountant=None, **changes):
    settings = {"folder": "absent", "n_shadows": 100, "confidence": 0.9, "seed": 0} | changes
    return audit_property(runs_of(plan_of(accountant)), Probes(**PROBES), **settings)


def probes(**changes):
    return Probes(**PROBES | changes)


def membership(scores=(1.0, 2.0), members=(1, 0), **changes):
    settings = {"attack": "given", "confidence": 0.95, "false_positive_rates": (0.01,)} | changes
    return audit_membership(scores, members, **settings)


REFUSALS = {
    # Lines and verdicts.
    **wrong_values(
        verdict, {}, quantity=["sigma"], confidence=[1.0], lower_bound=[math.nan],
        claimed=[math.inf], n_outputs=[0],
    ),
    **wrong_values(
        line, {}, confidence=[1.0], seed=[-1], pair=[("a", "a")],
        # It may hold and one line cost more.
        claim=[
            Guarantee.average(order=2, epsilon=1.0), Guarantee.joint(order=2, epsilon=1.0),
            Guarantee.average_over_batches(order=2, epsilon=1.0),
            Guarantee.epsilon_delta(1.0, 1e-5),
        ],
    ),
    **wrong_calls({
        "line, few": (lambda: line(n=99), "at least 100"),
        "line, needed": (
            lambda: line(epsilon=6.0), f"{outputs_needed(RenyiTest(2.0), 6.0, 1, 0.95)}"),
        "line, out of reach": (lambda: line(epsilon=60.0), "no number of outputs"),
        "line, not finite": (not_finite, "3 of 200"),
        "outputs, vector": (lambda: SplitOutputs.of(np.zeros(200), rng=RNG), "shape"),
        **{score.__name__: (
            partial(score, np.zeros((1, 1)), [FiniteDistribution.uniform([[0.0]])], 0.0),
            "noise_std") for score in (gaussian_scores, likelihood_scores)},
    }),
    # Releases.
    **wrong_values(
        released, {}, confidence=[1.0], seed=[-1], n_outputs=[0],
        profile=[FiniteProfile.axes(dim=2), None],
    ),
    **wrong_calls({
        "release, few": (lambda: released(n_outputs=50), "at least 100"),
        "release, sphere": (another_sphere, "profile"),
        "supplied, absent": (
            lambda: supplied_outputs(GROUPS, CERTIFICATE, {"a": ZEROS}), "absent: b"),
        "supplied, unknown": (lambda: supplied(c=ZEROS), "unknown: c"),
        "supplied, shape": (lambda: supplied(a=np.zeros((5, 3))), "shape"),
        "supplied, nan": (lambda: supplied(a=np.full((5, 2), np.nan)), "10 of 10"),
        "supplied, words": (lambda: supplied(a=[["x", "y"]]), "numbers"),
        "outputs, other certificate": (lambda: drawn(CERTIFICATE), OTHER.digest[:12]),
        "outputs, absent": (lambda: drawn(OTHER, values={"table": {}}), "secret 'a'"),
        "certificate of training": (
            lambda: draw_outputs(GROUPS, certify_training(plan_of(), data="d"), 10, seed=0),
            "audit_training"),
    }),
    "grid": Refusal(
        lambda: quantised_rows(np.array([[0.0], [1e9]]), np.zeros(1), 1.0), ScenarioError, "64 bit"
    ),
    "other scenario": Refusal(
        lambda: draw_outputs(teeth.point_masses(), CERTIFICATE, 10, seed=0),
        ScenarioError, "scenario",
    ),
    "other records": Refusal(
        lambda: draw_outputs(
            Scenario.from_groups(MOVED, secret="g", query=QUERY), CERTIFICATE, 10, seed=0),
        ScenarioError, "scenario",
    ),
    # Training and properties.
    **wrong_values(trained, {}, confidence=[1.0], seed=[-1]),
    **wrong_values(
        runs_of, {}, worker=["train", None], n_runs=[0], block=[0], plan=[{"n_steps": 1}],
        worlds=[("a",)],
    ),
    **wrong_values(inferred, {}, n_shadows=[300, 1], confidence=[1.0], seed=[-1],
                   shares=[(0.2, 0.2)]),
    **wrong_values(
        probes, {},
        labels=[np.array([[0, 1, 2, 0, 1, 2]]), np.array([0, 1, 2, 0, 1, 3])],
        from_second=[np.ones(6, bool)],
    ),
    **wrong_calls({
        "training, worlds": (lambda: runs_of(worlds=("a", "a")), "'a'"),
        "training, out of reach": (lambda: trained(runs_of(plan_of(multiplier=0.1))), "400"),
        "training, bits": (
            lambda: trained(runs_of(attrs.evolve(plan_of(), measure=Measure.information()))),
            "refute bits"),
        "training, mean": (lambda: trained(runs_of(plan_of(MeanSquare()))), "mean over batch"),
        "training, nan": (
            lambda: audit_released(
                runs_of(), np.full((2, 300, 1), np.nan), confidence=0.9, seed=1),
            "300 of 300"),
        "probes, shares": (lambda: probes(labels=np.array([0.5] * 6)), "integers"),
        "probes, flags": (lambda: probes(from_second=np.arange(6)), "True or False"),
        "probes, released": (
            lambda: probes().log_probabilities(np.zeros((3, 17))), "each model"),
        "property, mean": (lambda: inferred(MeanSquare()), "mean over batch"),
    }),
    # Membership.
    **wrong_calls({
        f"{call.__name__}, {names}": (partial(call, scores, members), names)
        for call in (membership, roc_auc)
        for scores, members, names in (
            ([1.0, math.nan, 2.0], [1, 0, 0], "1 of 3"),
            ([1.0, 2.0], [1, 1], "no non-members"),
            ([1.0, 2.0], [False, False], "no members"),
            ([], [], "type"),
            ([1.0, 2.0], [1, 0, 1], "shape"),
            ([[1.0], [2.0]], [1, 0], "per record"),
            ([1.0, 2.0], [0.0, 1.0], "True or False"),
            (["a", "b"], [0, 1], "numbers"),
        )
    }),
    **wrong_values(membership, {}, confidence=[1.0], attack=[3]),
    **wrong_values(
        margin_scores, {"logits": [[1.0, 2.0]], "labels": [0]},
        logits=[[[1.0, math.inf]]], labels=[[0, 1], [0.5], [2], [-1]],
    ),
    **wrong_values(
        ShadowModels, {"scores": [[1.0, 2.0]], "members": [[True, False]]},
        members=[[[True]]], scores=[[[1.0, np.nan]]],
    ),
    **wrong_calls({
        "rate of 0": (lambda: membership(false_positive_rates=(0.0,)), "between 0 and 1"),
        "rate above 1": (lambda: membership(false_positive_rates=(1.5,)), "between 0 and 1"),
        "losses": (lambda: loss_scores([1.0, math.inf]), "1 of 2"),
        "margins, vector": (lambda: margin_scores([1.0, 2.0], [0, 1]), "two classes"),
        "margins, one class": (lambda: margin_scores([[1.0], [2.0]], [0, 0]), "two classes"),
        "shadows, none": (lambda: ShadowModels(scores=NONE, members=NONE > 0), "shadow models"),
        "shadows, vector": (
            lambda: ShadowModels(scores=[1.0, 2.0], members=[[True, False]]), "shadow models"),
        "shadows, flags": (
            lambda: ShadowModels(scores=[[1.0, 2.0]], members=[[0.5, 1.0]]), "True or False"),
        "shadows, never inside": (
            lambda: likelihood_ratio_scores(np.zeros(3), OUTSIDE), "3 of 3 records"),
        "shadows, rarely outside": (
            lambda: offline_likelihood_ratio_scores(np.zeros(3), FEW), "2 of 3 records"),
        "shadows, copies": (lambda: likelihood_ratio_scores([1.0, 2.0], COPIES), "copies"),
    }),
    **wrong_calls({
        f"{attack.__name__}, {names}": (partial(attack, **{
            "scores": np.zeros(7), "shadows": SHADOWS, **change}), names)
        for attack in (likelihood_ratio_scores, offline_likelihood_ratio_scores)
        for change, names in (
            ({"scores": np.zeros(6)}, "7 records"),
            ({"scores": np.full(7, np.nan)}, "scores"),
            ({"spread": "global"}, "spread"),
            ({"shadows": None}, "shadow models"),
        )
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refused(name):
    check_refused(REFUSALS[name])
