# SPDX-License-Identifier: Apache-2.0
"""Audits of training: right plans stand, broken ones fall, others are refused before they run."""

import attrs
import numpy as np
import pytest
from scipy.stats import binom

from pufferslice.audit.noise import MOST_AXES
from pufferslice.audit.training import TrainingRuns, audit_released, audit_training
from pufferslice.errors import ArgumentError
from pufferslice.learning import MeanSquare, WithoutReplacement, WorstCase, exactly, plan_with_noise

N_RUNS = 1_300
CONFIDENCE = 0.95

WORKERS = """
import attrs
import numpy as np
from pufferslice.torch.canary import release_canary

def half_the_noise(world, plan):
    return release_canary(world, attrs.evolve(plan, noise_multipliers=plan.noise_multipliers / 2))

def sums(world, plan):
    shift = 1.0 if world == "first" else -1.0
    noise = np.random.default_rng().normal(size=2) * plan.noise_multipliers[0]
    return np.array([0.6, 0.8]) * shift + noise
"""


def plan_of(multiplier=2.0, accountant=None, order=2.0):
    """One step on all records, of which one differs: epsilon is 2 * order / multiplier^2."""
    return plan_with_noise(
        differing=exactly(1),
        sampling=WithoutReplacement(n_records=4, batch_size=4),
        clip_norm=1.0,
        noise_multipliers=np.full(1, multiplier),
        accountant=accountant or WorstCase(),
        order=order,
    )


def runs_of(plan=None, worker="pufferslice.torch.canary:release_canary", n_runs=N_RUNS):
    return TrainingRuns(worker=worker, plan=plan or plan_of(), n_runs=n_runs)


def outputs(rng, direction, noise_std, n_runs=N_RUNS):
    """What two worlds release that are pushed apart along a unit direction, 2 in all."""
    shift = np.asarray(direction, dtype=np.float64)
    noise = rng.normal(size=(2, n_runs, len(shift))) * noise_std
    return noise[0] + shift, noise[1] - shift


@pytest.fixture
def home(tmp_path, monkeypatch):
    (tmp_path / "broken_workers.py").write_text(WORKERS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.soundness
@pytest.mark.timeout(600)
def test_half_the_noise_is_refuted_and_the_right_noise_is_not(home):
    """Of 1,000 simulated audits of 1,300 runs at half the noise all refuted: bound 1.76 +- 0.17."""
    half = runs_of(worker="broken_workers:half_the_noise")
    assert half.plan.guarantee().epsilon == pytest.approx(1.0)
    verdict = audit_training(half, folder=home / "half", confidence=CONFIDENCE, seed=1)
    assert verdict.outcome == "refuted"
    assert verdict.claim == "(2, 1)-RPP, whole run"
    assert verdict.prior == "exactly 1 records differ"
    right = runs_of(n_runs=400)
    verdict = audit_training(right, folder=home / "right", confidence=CONFIDENCE, seed=1)
    assert verdict.outcome == "not refuted"
    assert verdict.n_outputs == 400


@pytest.mark.soundness
def test_the_same_folder_gives_the_same_verdict_and_no_other_seed(home):
    runs = runs_of(plan_of(order=2.0), worker="broken_workers:sums", n_runs=200)
    said = {"folder": home / "runs", "confidence": CONFIDENCE}
    verdict = audit_training(runs, seed=3, n_processes=1, **said)
    assert audit_training(runs, seed=3, **said) == verdict
    with pytest.raises(ArgumentError, match="another audit: seed differ"):
        audit_training(runs, seed=4, **said)
    with pytest.raises(ArgumentError, match="another audit: confidence differ"):
        audit_training(runs, seed=3, folder=home / "runs", confidence=0.9)


@pytest.mark.soundness
@pytest.mark.statistical
@pytest.mark.parametrize("dim", [1, 3, MOST_AXES + 1])
def test_too_little_noise_is_seen_in_any_direction(rng, dim):
    direction = rng.normal(size=dim)
    direction /= np.linalg.norm(direction)
    for noise_std, outcome in ((2.0, "not refuted"), (1.0, "refuted")):
        released = outputs(rng, direction, noise_std, n_runs=6_000)
        found = audit_released(runs_of(n_runs=6_000), released, confidence=CONFIDENCE, seed=1)
        assert found.outcome == outcome, found


def test_a_coordinate_without_noise_is_seen(rng):
    first, second = outputs(rng, [0.0, 1.0], 50.0)
    first[:, 0], second[:, 0] = 1.0, 1.0 + 1e-9
    found = audit_released(runs_of(), (first, second), confidence=CONFIDENCE, seed=1)
    assert found.outcome == "refuted"


@pytest.mark.soundness
@pytest.mark.statistical
@pytest.mark.parametrize("dim", [20, 300])
def test_equal_worlds_are_told_apart_no_more_often_than_said(rng, dim):
    """No cost at all. A line chosen on the counted runs would show: along the difference of their
    own means, 400 runs of 300 numbers differ by 1.2 deviations.
    """
    runs = runs_of(plan_of(multiplier=1e5), n_runs=400)
    assert runs.plan.guarantee().epsilon < 1e-9
    refuted = 0
    for seed in range(100):
        released = tuple(rng.normal(size=(2, 400, dim)))
        refuted += audit_released(runs, released, confidence=0.9, seed=seed).refuted
    assert refuted <= binom.ppf(1 - 1e-6, 100, 0.1)


def test_worlds_that_release_the_same_are_not_refuted():
    same = np.ones((400, 70))
    found = audit_released(runs_of(n_runs=400), (same, same), confidence=CONFIDENCE, seed=1)
    assert (found.outcome, found.lower_bound) == ("not refuted", 0.0)


def test_a_mean_over_batches_cannot_be_audited(tmp_path):
    runs = runs_of(plan_of(accountant=MeanSquare()))
    with pytest.raises(ArgumentError, match=r"a mean over batch draws.*Plan with worst_case"):
        audit_training(runs, folder=tmp_path / "runs", confidence=CONFIDENCE, seed=1)
    assert not (tmp_path / "runs").exists()


def test_too_few_runs_are_refused_before_any_is_made(tmp_path):
    runs = runs_of(plan_of(multiplier=0.75), n_runs=200)
    said = {"folder": tmp_path / "runs", "confidence": 0.99, "seed": 1}
    with pytest.raises(ArgumentError, match=r"too few runs.*and (\d+) are needed") as error:
        audit_training(runs, **said)
    needed = int(str(error.value).split(" are needed")[0].split()[-1])
    assert 200 < needed < 100_000
    with pytest.raises(ArgumentError, match=f"and {needed} are needed"):
        audit_training(attrs.evolve(runs, n_runs=needed - 1), **said)
    with pytest.raises(ArgumentError, match="no number of runs can refute epsilon 400"):
        audit_training(runs_of(plan_of(multiplier=0.1)), **said)
    assert not (tmp_path / "runs").exists()


def test_bad_arguments_are_refused(tmp_path, rng):
    said = {"folder": tmp_path / "runs", "confidence": CONFIDENCE, "seed": 1}
    with pytest.raises(ArgumentError, match="confidence must lie strictly between 0 and 1"):
        audit_training(runs_of(), **said | {"confidence": 1.0})
    with pytest.raises(ArgumentError, match="seed must be a whole number"):
        audit_training(runs_of(), **said | {"seed": -1})
    first, second = outputs(rng, [1.0], 2.0, n_runs=300)
    short = (first, second[:200])
    with pytest.raises(ArgumentError, match="300 runs in each world, as was planned; got 300 and"):
        audit_released(runs_of(n_runs=300), short, confidence=CONFIDENCE, seed=1)
    first[3] = np.nan
    with pytest.raises(ArgumentError, match="finite; 1 of 300"):
        audit_released(runs_of(n_runs=300), (first, second), confidence=CONFIDENCE, seed=1)
