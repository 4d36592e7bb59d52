# SPDX-License-Identifier: Apache-2.0
"""The paper's figures as experiments: rows of numbers, and which of its claims they bear out.

Pictures of them are drawn by `pufferslice.report.paper_figures`.
"""

from pufferslice.paper.catalogue import EXPERIMENTS, experiment_named
from pufferslice.paper.experiment import Claim, Experiment, Outcome, Setting

__all__ = [
    "EXPERIMENTS",
    "Claim",
    "Experiment",
    "Outcome",
    "Setting",
    "experiment_named",
]
