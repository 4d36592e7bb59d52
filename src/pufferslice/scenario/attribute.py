# SPDX-License-Identifier: Apache-2.0
"""Template attribute: hide a number that is jointly Gaussian with the statistics."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice._core.text import quoted
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.scenario.distributions import GaussianDistribution
from pufferslice.scenario.pairs import Pairs, ordered_pairs
from pufferslice.scenario.priors import Source

if TYPE_CHECKING:
    from pufferslice.scenario.scenario import Scenario


def from_attribute(
    cls: type["Scenario"],
    *,
    query: Query,
    values: Sequence[float],
    mean: npt.ArrayLike | None = None,
    cov: npt.ArrayLike | None = None,
    history: object = None,
    name: str = "attribute",
    within: float | None = None,
    source: Source = "public_model",
) -> "Scenario":
    """Hide a number that is jointly Gaussian with the released statistics.

    `mean` and `cov` are of the attribute, first, and the statistics of the query, from a model
    or a kernel (`gaussian_process`). The secret is which of `values` it has. Pairs: all, or
    values that differ by at most `within`. A `history` of earlier cases is refused: they need
    not be normal.
    """
    if history is not None:
        raise ScenarioError(
            "a history of cases is not a normal distribution, and noise that is fitted as if "
            "it were one can reveal the attribute. Declare mean and cov of a model that you "
            "trust, or put the cases into bins with Scenario.from_records"
        )
    if mean is None or cov is None:
        raise ArgumentError("give mean and cov, of the attribute first and then the statistics")
    joint = GaussianDistribution(mean=mean, cov=cov)
    origin = f"statistics and {quoted(name)} jointly Gaussian, given the value of the latter"
    if joint.dim != query.dim + 1:
        raise ArgumentError(
            f"mean and cov (or the times of a process) must have {query.dim + 1} coordinates, "
            f"the attribute first and then those of the query; got {joint.dim}"
        )
    numbers = {f"{value:.12g}": float(value) for value in values}
    if len(numbers) < 2 or len(numbers) != len(values):
        raise ArgumentError("values must be at least two different numbers")
    worlds: dict[str, Any] = {
        label: joint.conditioned(on=[0], at=[value]) for label, value in numbers.items()
    }
    pairs: Pairs = "all" if within is None else ordered_pairs(numbers, difference=within)
    scenario = cls.from_worlds(worlds, query=query, pairs=pairs, source=source, name=name)
    return scenario.with_origin(origin)


def gaussian_process(
    kernel: Callable[[float, float], float], times: Sequence[float], *, mean: float = 0.0
) -> tuple[Floats, Floats]:
    """Mean and covariance of a Gaussian process at some times, for `Scenario.from_attribute`.

    The first time is that of the hidden attribute, the others are those of the statistics.

    >>> import math
    >>> mean, cov = gaussian_process(lambda s, t: math.exp(-abs(s - t)), [20.0, 8.0, 21.0])
    >>> [round(float(x), 4) for x in cov[0]]
    [1.0, 0.0, 0.3679]
    """
    cov = np.array([[float(kernel(s, t)) for t in times] for s in times])
    return np.full(len(cov), float(mean)), (cov + cov.T) / 2
