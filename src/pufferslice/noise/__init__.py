# SPDX-License-Identifier: Apache-2.0
"""The least noise: its shape, its size, and the draws that it needs."""

from pufferslice._core.sampler import OperatingSystemNoise, SeededTestNoise
from pufferslice.noise.sample_size import SamplePlan, plan_samples

__all__ = [
    "OperatingSystemNoise",
    "SamplePlan",
    "SeededTestNoise",
    "plan_samples",
]
