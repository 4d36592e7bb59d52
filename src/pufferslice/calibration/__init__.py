# SPDX-License-Identifier: Apache-2.0
"""From sensitivity to noise, and from noise to epsilon."""

from pufferslice.calibration.calibrate import Method
from pufferslice.calibration.guarantee import ApproximateGuarantee, Guarantee, GuessGuarantee
from pufferslice.calibration.noise import OperatingSystemNoise, SeededTestNoise
from pufferslice.calibration.sample_size import SamplePlan, plan_samples

__all__ = [
    "ApproximateGuarantee",
    "Guarantee",
    "GuessGuarantee",
    "Method",
    "OperatingSystemNoise",
    "SamplePlan",
    "SeededTestNoise",
    "plan_samples",
]
