# SPDX-License-Identifier: Apache-2.0
"""Audit of a training plan: train many times in both worlds of a secret, and compare."""

import os

import numpy as np

from pufferslice.arrays import Floats
from pufferslice.audit.divergence import (
    Claimed,
    Comparison,
    Lines,
    SplitOutputs,
    audit_lines,
    both_orders,
    outputs_needed,
)
from pufferslice.audit.line_tests import RenyiTest
from pufferslice.audit.pilot_lines import MOST_AXES, pilot_lines
from pufferslice.audit.repeated import TrainingRuns, train_repeatedly
from pufferslice.audit.verdict import Verdict
from pufferslice.checks import check_between, check_count
from pufferslice.errors import ArgumentError
from pufferslice.guarantee import Guarantee
from pufferslice.parallel import Progress, silent


def audit_training(
    runs: TrainingRuns,
    *,
    folder: str | os.PathLike[str],
    confidence: float,
    seed: int,
    n_processes: int | None = None,
    progress: Progress = silent,
) -> Verdict:
    """Try to refute the guarantee of a plan by what its training releases.

    Every run is made in both worlds as often as `runs` says, in `n_processes` processes. A tenth of
    them, chosen by the public `seed`, decides along which line to look and where to cut it: axes of
    the released vector, the difference of the means, and two lines along which the covariance shows
    least noise. The others bound the divergence from below.
    The folder keeps finished runs; called again with the same arguments, an audit goes on.

    Guarantee: if what is released keeps the plan's guarantee, the verdict is `refuted` with
    probability at most 1 - `confidence`. It says nothing about what the worker does not release.
    Needs: runs that are independent of each other, in the two worlds that the plan speaks of, in
    which no more records differ than it says.
    """
    check_between(0, 1, confidence=confidence)
    check_count(0, seed=seed)
    claim = auditable_claim(runs)
    _check_enough(runs, claim, confidence)
    settings = {"confidence": float(confidence), "seed": int(seed)}
    released = train_repeatedly(
        runs, folder, settings=settings, n_processes=n_processes, progress=progress
    )
    return audit_released(runs, released, confidence=confidence, seed=seed)


def audit_released(
    runs: TrainingRuns, released: tuple[Floats, Floats], *, confidence: float, seed: int
) -> Verdict:
    """The verdict on runs that were made already: one released vector per row, by world.

    Guarantee: as `audit_training`.
    Needs: as there; all runs that were made are in the arrays, as many as were meant to be.
    """
    claim = auditable_claim(runs)
    check_between(0, 1, confidence=confidence)
    check_count(0, seed=seed)
    if any(len(values) != runs.n_runs for values in released):
        found = " and ".join(str(len(values)) for values in released)
        msg = f"there must be {runs.n_runs} runs in each world, as was planned; got {found}"
        raise ArgumentError(msg)
    rng = np.random.default_rng(seed)
    parts = [SplitOutputs.of(values, rng=rng) for values in released]
    named = dict(zip(runs.worlds, parts, strict=True))
    lines = _lines(*(part.pilot for part in parts))
    candidates: list[tuple[Comparison, Lines]] = [
        (comparison, lines)
        for comparison in both_orders(runs.plan.differing.origin, named, [runs.worlds])
    ]
    return audit_lines(
        candidates,
        RenyiTest(order=claim.order),
        Claimed(f"{claim}, whole run", "epsilon", claim.epsilon),
        confidence=confidence,
    )


def auditable_claim(runs: TrainingRuns) -> Guarantee:
    """The guarantee of the plan, if it bounds the divergence of what is released."""
    claim = runs.plan.guarantee()
    if claim.notion != "unsliced":
        msg = (
            f"the plan claims {claim}: a mean over batch draws, which bounds the divergence of "
            "nothing that is released, so no run can refute it. Plan with worst_case, log_moment "
            "or amplified"
        )
        raise ArgumentError(msg)
    return claim


def _check_enough(runs: TrainingRuns, claim: Guarantee, confidence: float) -> None:
    """Before any training: some outcome of so many runs would refute the claim."""
    needed = outputs_needed(RenyiTest(order=claim.order), claim.epsilon, 1, confidence)
    if needed is None:
        msg = (
            f"no number of runs can refute epsilon {claim.epsilon:g}: an audit reaches about the "
            "logarithm of their number. Audit a plan with a smaller epsilon"
        )
        raise ArgumentError(msg)
    if runs.n_runs < needed:
        msg = (
            f"too few runs for confidence {confidence:g}: {runs.n_runs} in each world can never "
            f"refute epsilon {claim.epsilon:g}, and {needed} are needed before they could. To find "
            "a wrong factor takes several times as many"
        )
        raise ArgumentError(msg)


def _lines(first: Floats, second: Floats) -> Lines:
    """Axes and what the pilots recommend, if there are few, and their means over variances."""
    dim = first.shape[1]
    directions, names = [], []
    if dim <= MOST_AXES:
        directions += list(np.eye(dim))
        names += [f"released number {number}" for number in range(dim)]
    if dim > 1:
        spread = first.var(axis=0) + second.var(axis=0)
        spread[spread == 0] = max(float(spread.max()), 1.0) * 1e-12
        weighted = (first.mean(axis=0) - second.mean(axis=0)) / spread
        length = float(np.linalg.norm(weighted))
        if length > 0:
            directions.append(weighted / length)
            names.append("the difference of the means")
    recommended = pilot_lines(first, second)
    directions += recommended.values()
    names += recommended
    if not directions:
        directions, names = [np.eye(1, dim)[0]], ["released number 0"]
    return Lines(np.array(directions), tuple(names))
