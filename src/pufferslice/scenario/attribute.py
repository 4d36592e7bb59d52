# SPDX-License-Identifier: Apache-2.0
"""Template attribute: hide a number that is related to the statistics of one case."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above
from pufferslice._core.text import listed, quoted
from pufferslice.data.tables import frame_of_rows
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.scenario.distributions import GaussianDistribution
from pufferslice.scenario.keys import key_of
from pufferslice.scenario.made import recorded
from pufferslice.scenario.pairs import Pairs, chosen_pairs, ordered_pairs
from pufferslice.scenario.priors import Source
from pufferslice.scenario.secrets import Bins, EdgeSecret

if TYPE_CHECKING:
    from pufferslice.scenario.scenario import Scenario


@recorded
def from_attribute(
    cls: type["Scenario"],
    *,
    query: Query,
    values: Sequence[float] | None = None,
    mean: npt.ArrayLike | None = None,
    cov: npt.ArrayLike | None = None,
    history: object = None,
    bins: Sequence[float] | None = None,
    name: str = "attribute",
    within: float | None = None,
    source: Source | None = None,
) -> "Scenario":
    """Hide a number that is related to the released statistics of one case.

    *By a declared model*: the number is jointly Gaussian with the statistics. `mean` and `cov` are
    of the number, first, and the statistics of the query, from a model or a kernel
    (`gaussian_process`). The secret is which of `values` it has. Pairs: all, or values that differ
    by at most `within`.

    *By earlier cases*: `history` is a table with a row for each case and the number in the column
    `name`, and the query is one of a row, `columns(...)`. The secret is in which bin the number
    lies, between the public edges `bins`; under each, the distribution is that of the rows of the
    history in that bin, and no normal one. Pairs: all, or bins that hold two numbers at most
    `within` apart. `with_sampled_priors()` takes the cases for a sample of a population. The case
    that is released needs no column `name`.
    """
    by_model = [values is not None, mean is not None, cov is not None]
    by_history = [history is not None, bins is not None]
    if any(by_history) and not any(by_model):
        if not all(by_history):
            raise ArgumentError("earlier cases need both history and bins, the edges of its bins")
        asked = Bins(column=name, edges=bins)
        return _from_history(cls, query, history, asked, within, source or "held_out")
    if any(by_history) or values is None or mean is None or cov is None:
        raise ArgumentError(
            "give values with mean and cov, of the attribute first and then the statistics; or a "
            "history with bins. Noise that is fitted to a history as if it were normal can reveal "
            "the attribute"
        )
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
    source = source or "public_model"
    return cls.from_worlds(worlds, query=query, pairs=pairs, source=source, name=name).with_origin(
        origin
    )


def _from_history(
    cls: type["Scenario"],
    query: Query,
    history: object,
    bins: Bins,
    within: float | None,
    source: Source,
) -> "Scenario":
    """Make the rows of each bin the distribution of one case with a number in that bin."""
    edges = bins.edges or ()
    names = EdgeSecret(column=bins.column, edges=edges).names
    scenario = cls.from_records(frame_of_rows(history), secret=bins, query=query, source=source)
    empty = [bin_ for bin_ in names if bin_ not in scenario.secrets]
    if empty:
        raise ScenarioError(
            f"the history has no case in {listed(empty, quoted)}, so that nothing is known of such "
            "a case; choose other edges for the bins"
        )
    pairs: Pairs = "all"
    if within is not None:
        check_above(0, within=within)
        ends = [-np.inf, *edges, np.inf]  # bin k from end k to end k + 1
        places = combinations(range(len(names)), 2)
        pairs = [(names[i], names[j]) for i, j in places if ends[j] - ends[i + 1] < within]
    prior = attrs.evolve(
        scenario.priors[0],
        name="history",
        origin=f"the query of each earlier case whose {quoted(bins.column)} is in the bin",
        n_rows={},
    )
    # Which bin a new case is in may not be known yet: no column of it is read.
    return attrs.evolve(
        scenario,
        secrets=names,
        pairs=chosen_pairs(pairs, names),
        priors=(prior,),
        rule=None,
        more_keys=(key_of(bins.column),),
    )


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
