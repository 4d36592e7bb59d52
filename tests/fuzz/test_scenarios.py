# SPDX-License-Identifier: Apache-2.0
"""No certificate of a random scenario says anything that 40 digits call false."""

import os

import attrs
import pytest
from tests.fuzz import claims
from tests.fuzz.random_scenarios import KINDS
from tests.fuzz.scenario_soak import outcomes, problems_of, summary_of

from pufferslice.certificate import statement

SAMPLE = 63
"""In `make test`: nine of every kind."""
SOAK = int(os.environ.get("PUFFERSLICE_SCENARIOS", "10000"))


@pytest.mark.soundness
def test_no_certificate_of_a_random_scenario_is_false(seed):
    cases = list(outcomes(seed, SAMPLE, 1))
    assert not problems_of(cases)
    assert summary_of(cases)["by kind"] == dict.fromkeys(KINDS, SAMPLE // len(KINDS))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_certificate_of_ten_thousand_is_false(seed):
    cases = list(outcomes(seed, SOAK, 2))
    assert not problems_of(cases), f"seed {seed}"


@pytest.mark.soundness
@pytest.mark.parametrize("share", [0.999, 0.5])
def test_too_little_noise_would_be_found(seed, monkeypatch, share):
    """The checks can fail.

    Noise that is a thousandth too small is noticed where distributions are exact.
    """
    calibrated, spent = statement.calibrated_noise, statement.spent_on
    monkeypatch.setattr(statement, "calibrated_noise", lambda e, s: calibrated(e, s) * share)
    monkeypatch.setattr(
        statement, "spent_on", lambda e, s, std: min(spent(e, s, std), s.target.bound)
    )
    monkeypatch.setattr(statement, "views_of", lambda *_: [])
    monkeypatch.setattr(
        claims, "verify", lambda _: attrs.make_class("V", {"holds": attrs.field(default=True)})()
    )
    exact = [i for i in range(32) if list(KINDS)[i % len(KINDS)] in ("groups", "gaussian")]
    cases = [claims.outcome_of(seed, index) for index in exact]
    caught = [bool(case.problems) or case.refused is not None for case in cases]
    assert sum(caught) >= len(caught) - 1


@pytest.mark.soundness
def test_gaussians_at_the_edge_of_an_infinite_cost():
    """Found by the soak: rounding of the spreads made the unsliced cost 2 parts in 10^11 short."""
    outcome = claims.outcome_of(20_261_116, 4_396, "gaussian")
    assert outcome.refused is None
    assert not outcome.problems
