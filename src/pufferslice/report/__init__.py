# SPDX-License-Identifier: Apache-2.0
"""Pictures of what others computed (extra `report`)."""

from pufferslice.report.figures import (
    Level,
    NoiseCurve,
    PlaneCosts,
    noise_figure,
    plane_figure,
    png_of,
    slices_figure,
)

__all__ = [
    "Level",
    "NoiseCurve",
    "PlaneCosts",
    "noise_figure",
    "plane_figure",
    "png_of",
    "slices_figure",
]
