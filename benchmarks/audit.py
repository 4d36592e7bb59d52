# SPDX-License-Identifier: Apache-2.0
"""Audits: how long one of Adult takes, and how much of a known divergence the bound reaches.

Adult: nine statistics of the five groups of `race`, 100,000 fresh outputs under each secret; every
claim of the certificate and both attacks on the secret. Once along 200 uniform slices, once for the
whole output with noise of a fitted shape, whose cost is known: the groups are points.

    python benchmarks/audit.py
"""

import numpy as np

from pufferslice import FiniteProfile, Guarantee, Scenario, certify_release, datasets, queries
from pufferslice.audit import Verdict, audit_line, audit_release
from pufferslice.claims import Claim
from rows import Row, at_most, row, show, timed

ORDER = 4.0
N_DIRECTIONS = 200
N_OUTPUTS = 100_000
SEED = 7
SECRET = "race"  # noqa: S105 - the name of a column
MOST_SECONDS = 30.0

N_SAMPLES = 1_000_000
LEAST_SHARE = 0.85
LEAST_SHAPED_SHARE = 0.6
CONFIDENCE = 0.95


def measure() -> list[Row]:
    query = queries.adult_summary()
    scenario = Scenario.from_groups(datasets.adult_complete(), secret=SECRET, query=query)
    profile = FiniteProfile.uniform(dim=query.dim, n_directions=N_DIRECTIONS, seed=SEED)
    joint = Guarantee.joint(order=ORDER, epsilon=1.0, profile=profile)
    whole = Guarantee.unsliced(order=2, epsilon=1.0)
    sliced = adult(scenario, joint, f"{N_DIRECTIONS} slices")[0]
    shaped, verdict = adult(scenario, whole, "the whole output, fitted shape")
    truth = certify_release(scenario, whole).spent
    name = "Adult, 9 dimensions, fitted shape, order 2: lower bound, and the truth"
    reached = share_row(name, verdict.lower_bound, truth, LEAST_SHAPED_SHARE)
    return [sliced, shaped, gaussians(), reached]


def adult(scenario: Scenario, claim: Claim, words: str) -> tuple[Row, Verdict]:
    """The second audit is timed, as in a process that has compiled its loops."""
    certificate = certify_release(scenario, claim)
    settings = {"confidence": CONFIDENCE, "seed": SEED}
    audit_release(scenario, claim.profile, certificate, n_outputs=1_000, **settings)
    audit, seconds = timed(
        lambda: audit_release(scenario, claim.profile, certificate, n_outputs=N_OUTPUTS, **settings)
    )
    assert not audit.refuted
    name = f"Static audit of Adult, 9 dimensions, {words}, {N_OUTPUTS:,} outputs per secret"
    return at_most(f"{name}: seconds", seconds, MOST_SECONDS), audit.verdicts[0]


def gaussians() -> Row:
    """N(1, 1) against N(0, 1) at order 2: the divergence is 1."""
    rng = np.random.default_rng(SEED)
    first, second = rng.normal(1, 1, N_SAMPLES), rng.normal(0, 1, N_SAMPLES)
    claim = Guarantee.unsliced(order=2, epsilon=1.0)
    verdict = audit_line(first, second, claim, confidence=CONFIDENCE, seed=SEED)
    name = f"N(1,1) against N(0,1), order 2, {N_SAMPLES:,} samples: lower bound, and the truth"
    return share_row(name, verdict.lower_bound, 1.0, LEAST_SHARE)


def share_row(name: str, bound: float, truth: float, least: float) -> Row:
    return row(name, bound, truth, goal=f">= {least:g}", met=bound >= least * truth)


if __name__ == "__main__":
    show(measure())
