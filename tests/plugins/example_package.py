# SPDX-License-Identifier: Apache-2.0
"""A package with plugins. The tests install a copy of it into a temporary folder."""

import numpy as np

from pufferslice.learning import LogMoment
from pufferslice.queries import table_function
from pufferslice.scenario import FiniteDistribution


def trimmed_mean(column, share=0.0):
    def mean(table):
        values = np.sort(table[column].to_numpy())
        n_cut = int(share * len(values))
        return float(values[n_cut : len(values) - n_cut].mean())

    return table_function(
        mean,
        names=[f"trimmed({column})"],
        columns=[column],
        description=f"mean of {column} without a share of {share} at both ends",
    )


def coin(heads):
    return FiniteDistribution.weighted([[0.0], [1.0]], [1 - heads, heads])


class Cautious:
    """Twice the cost by the log moment, or another multiple."""

    draws_may_be_seen = "Anyone may see the batches."

    def __init__(self, factor=2.0):
        self.factor = factor
        self.certifies = f"{factor} times what the log moment bounds."

    def check(self, sampling, differing):
        if sampling.name != "poisson":
            raise ValueError("cautious needs Poisson sampling")

    def step_costs(self, order, sampling, n_differing, noise_multipliers):
        costs = LogMoment().step_costs(order, sampling, n_differing, noise_multipliers)
        return self.factor * costs


class Silent(Cautious):
    draws_may_be_seen = " "


class WithoutCheck(Cautious):
    check = None


class Negative(Cautious):
    def __init__(self):
        super().__init__(-1.0)


def number():
    return 3


def secretive():
    raise ValueError("record 17 is Ada")
