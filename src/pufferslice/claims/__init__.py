# SPDX-License-Identifier: Apache-2.0
"""Claims: what can be promised, each with its own cost, words and JSON."""

from pufferslice.claims.epsilon_delta import EpsilonDelta
from pufferslice.claims.guarantee import Claim, Guarantee, claim_of
from pufferslice.claims.guess import Guess
from pufferslice.claims.information import Information
from pufferslice.claims.measure import Measure
from pufferslice.claims.renyi import OverBatches, Renyi
from pufferslice.claims.sliced import Sliced
from pufferslice.claims.slices import Method

__all__ = [
    "Claim",
    "EpsilonDelta",
    "Guarantee",
    "Guess",
    "Information",
    "Measure",
    "Method",
    "OverBatches",
    "Renyi",
    "Sliced",
    "claim_of",
]
