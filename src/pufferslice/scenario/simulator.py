# SPDX-License-Identifier: Apache-2.0
"""Simulators of a world, and samples of them: declared to be the prior, or drawn from it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_count
from pufferslice._core.files import digest
from pufferslice.data.frames import frame_of, without_missing
from pufferslice.errors import ScenarioError
from pufferslice.queries import Query
from pufferslice.queries.functions import called

DRAWS_PER_BLOCK: Final = 2**16
"""Draws made from one stream of random numbers; each block has its own."""


class _AnySimulator(ABC):
    __slots__ = ()

    @abstractmethod
    def outputs(self, query: Query, n_draws: int, rng: np.random.Generator) -> Floats:
        """Simulate the query on independent draws, in the user's units; shape (n_draws, dim)."""

    def sampled(self, *, n_draws: int, seed: int) -> "SimulatedSample":
        """Sample `n_draws` independent draws from a public seed; the prior is the simulator."""
        return SimulatedSample(simulator=self, n_draws=n_draws, seed=seed)

    def declared(self, *, n_draws: int, seed: int) -> "DeclaredSample":
        """Declare `n_draws` draws from a public seed to *be* the prior."""
        return DeclaredSample(simulator=self, n_draws=n_draws, seed=seed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


@final
@attrs.frozen(kw_only=True, repr=False)
class Simulator(_AnySimulator):
    """A world that can only be sampled: `draw_table(rng)` returns one table of it.

    `sampled` takes independent draws, from which the prior is bounded with a failure probability;
    `declared` takes draws and declares *them* to be the prior.
    """

    draw_table: Callable[[np.random.Generator], Any]

    def outputs(self, query: Query, n_draws: int, rng: np.random.Generator) -> Floats:
        """Simulate the query on `n_draws` tables, in the user's units; shape (n_draws, dim)."""
        tables = (frame_of(called(self.draw_table, rng)) for _ in range(n_draws))
        columns = list(query.columns)
        complete = (without_missing(table, columns, query.missing)[0] for table in tables)
        return np.vstack([query.outputs(table) for table in complete])


@final
@attrs.frozen(kw_only=True, repr=False)
class OutputSimulator(_AnySimulator):
    """A world whose query is simulated directly, many draws at a time.

    `draw_outputs(rng, n)` returns n independent outputs of the query in the user's units, shape
    (n, dim). As for `Simulator`, draws may be sampled or declared.
    """

    draw_outputs: Callable[[np.random.Generator, int], Any]

    def outputs(self, query: Query, n_draws: int, rng: np.random.Generator) -> Floats:
        """Simulate `n_draws` outputs; their shape is checked."""
        outputs = _floats_in(called(self.draw_outputs, rng, n_draws))
        if outputs.shape != (n_draws, query.dim):
            raise ScenarioError(
                f"draw_outputs was asked for {n_draws} outputs of a query with {query.dim} "
                f"coordinates and must return shape {(n_draws, query.dim)}, got {outputs.shape}"
            )
        return outputs


@attrs.frozen(kw_only=True)
class _Sample:
    simulator: _AnySimulator = attrs.field(repr=False)
    n_draws: int
    seed: int

    def __attrs_post_init__(self) -> None:
        check_count(1, n_draws=self.n_draws)
        check_count(0, seed=self.seed)


@final
@attrs.frozen(kw_only=True)
class DeclaredSample(_Sample):
    """A sample of a simulator, declared to be the prior; the certificate states this."""

    def outputs(self, query: Query, secret: str) -> Floats:
        """The drawn outputs of the world of this secret, in the user's units."""
        rng = np.random.default_rng([self.seed, stable_number(secret)])
        return self.simulator.outputs(query, self.n_draws, rng)

    @property
    def origin(self) -> str:
        """Public words on how the distribution was made."""
        return (
            f"{self.n_draws} draws of a simulator, public seed {self.seed}; the drawn sample is "
            "declared to be the prior"
        )


@final
@attrs.frozen(kw_only=True)
class SimulatedSample(_Sample):
    """Independent draws of a simulator; the prior is the simulator, not the draws.

    Needs: a seed that was chosen before its draws were seen.
    """

    def outputs(self, query: Query, secret: str) -> Floats:
        """The draws of the world of this secret, in the user's units."""
        blocks = []
        for index, start in enumerate(range(0, self.n_draws, DRAWS_PER_BLOCK)):
            rng = np.random.default_rng([self.seed, stable_number(secret), index])
            n_draws = min(DRAWS_PER_BLOCK, self.n_draws - start)
            blocks.append(self.simulator.outputs(query, n_draws, rng))
        return np.concatenate(blocks)

    @property
    def origin(self) -> str:
        """Public words on how the distribution is known."""
        return (
            f"a simulator, known through {self.n_draws} independent draws per world, public seed "
            f"{self.seed}"
        )


def _floats_in(values: Any) -> Floats:  # whatever the user's function returns
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ScenarioError(
            f"what draw_outputs returns must be an array of numbers, got {type(values).__name__}"
        ) from None


def stable_number(secret: str) -> int:
    """A number for a secret that does not depend on the process, to seed its own stream."""
    return int(digest(secret.encode())[:15], 16)
