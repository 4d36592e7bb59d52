# SPDX-License-Identifier: Apache-2.0
"""The demonstration: one protected release of the embedded Adult table, audited, on one page.

The secret is race: which of the five groups a published summary is about. The query is the
paper's nine statistics with their public scales; one release is the summary of one group.
Needs the extra `report`.
"""

from pufferslice.demo.result import DemoResult, SweptNoise
from pufferslice.demo.running import run_demo

__all__ = ["DemoResult", "SweptNoise", "run_demo"]
