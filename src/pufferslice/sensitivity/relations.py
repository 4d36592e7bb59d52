# SPDX-License-Identifier: Apache-2.0
"""Relations that hold between the differences of every scenario and its public description."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from pufferslice.queries.ranges import range_of
from pufferslice.sensitivity.sensitivity import Full, Slices
from pufferslice.sensitivity.tables import GapTables

_ROOM: Final = 1 - 2.0**-20
"""Relative tolerance between two ways to compute one length."""
_COARSE: Final = 0.5
"""Least share of a gap that rounding can leave: tables are rounded up, each to its own digits."""


def broken_relations(
    full: Full, slices: Slices | None, scenario: Mapping[str, Any]
) -> Iterator[str]:
    """List what cannot be true of any scenario, in sentences; nothing for genuine evidence."""
    kinds = {prior["kind"] for prior in scenario["priors"]}
    for part in (full.differences, None if slices is None else slices.differences):
        if part is not None and not kinds <= set(part.prior_kinds):
            yield "the statement gives the priors another kind than the evidence"
            return
    if full.differences is None:
        if kinds != {"sampled"} or scenario["query"]["range"] is not None:
            yield "the evidence of the whole output is missing, and these priors have it"
    else:
        yield from full.differences.problems(scenario)
        if full.recipe is not None and not full.differences.is_coupled_as(full.recipe.coupling):
            yield "the rows of a change meet in another way in the evidence than it says"
    reach = None if full.differences is None else full.differences.reach()
    if reach is not None and full.from_range:
        yield from _of_range(full, float(reach.min()), scenario)
    elif reach is not None and slices is not None:
        gaps = slices.differences.largest_gaps()
        if gaps is not None and (reach < gaps * _ROOM).any():
            yield "a coupling's largest distance is below a gap along a slice, which cannot be"
    if slices is not None and slices.plain is not None:
        yield from _in_bands(slices, slices.plain)


def _of_range(full: Full, reach: float, scenario: Mapping[str, Any]) -> Iterator[str]:
    """Check that a bound from a range is at least the diameter of the stated range."""
    stated = range_of(scenario["query"]["range"])
    if stated is None:
        yield "a bound from a range is used, but no range is stated"
        return
    scales = np.array(scenario["query"]["scales"], dtype=np.float64)
    shape = full.shape
    diameter = stated.diameter(scales) if shape is None else shape.diameter(stated, scales)
    if reach < diameter * _ROOM:
        yield "the bound from the range is below the diameter of the stated range"


def _in_bands(slices: Slices, plain: GapTables) -> Iterator[str]:
    """Check that on covered levels the gaps of the bands are at least the samples' own."""
    tables, beyond, missing = slices.differences, slices.beyond, slices.missing[:, None]
    if not isinstance(tables, GapTables):
        return
    least = tables.means() * (1 - missing) + missing * plain.worst()
    narrow = (least < plain.means() * _COARSE).any()
    if narrow or (not missing.any() and (tables.worst() < plain.worst() * _ROOM).any()):
        yield "the bands are narrower than what the samples themselves show"
    if beyond is not None:
        low = tables.means() < beyond.means() * (beyond.totals / tables.totals)[:, None] * _COARSE
        if low.any() or (tables.worst() < beyond.worst() * _ROOM).any():
            yield "the gaps leave out what counts at the public range beyond the bands"
