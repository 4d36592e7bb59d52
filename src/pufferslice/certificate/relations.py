# SPDX-License-Identifier: Apache-2.0
"""Relations that must hold inside a scenario's description and its evidence, whoever made them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from pufferslice.certificate.evidence import Evidence
from pufferslice.gaps import GapTables, GaussianPairs, MatchingTables
from pufferslice.priors import KINDS, LAWS, ONE_RELEASE, SOURCES
from pufferslice.queries.ranges import range_of

_ROOM: Final = 1 - 2.0**-20
"""Room for rounding between two ways to compute one length."""
_COARSE: Final = 0.5
"""Tables are rounded up, each to its own digits; less than this share is no rounding."""


def broken_relations(evidence: Evidence) -> Iterator[str]:
    """What cannot be true of any scenario, in sentences; nothing for evidence that was issued."""
    yield from _in_description(evidence.scenario, evidence.slices.profile.dim)
    seen, full = evidence.slices.seen, evidence.full
    gaussian = {prior["kind"] for prior in evidence.scenario["priors"]} == {"gaussian"}
    if gaussian != isinstance(seen, GaussianPairs):
        yield "the priors are said to be of another kind than the evidence"
    sampled = {prior["kind"] for prior in evidence.scenario["priors"]} == {"sampled"}
    if full.seen is None and not (sampled and evidence.scenario["query"]["range"] is None):
        yield "the evidence of the whole output is missing, and these priors have it"
    if isinstance(seen, GapTables) and isinstance(full.seen, MatchingTables):
        gaps = seen.worst().max(axis=1)
        if full.from_range:
            yield from _in_range(evidence, full.seen)
        elif (full.seen.worst().min(axis=1) < gaps * _ROOM).any():
            yield "a coupling's largest distance is below a gap along a slice, which cannot be"
    if isinstance(seen, GapTables) and evidence.plain is not None:
        yield from _in_bands(evidence, seen, evidence.plain)


def _in_description(scenario: Mapping[str, Any], dim: int) -> Iterator[str]:
    law, secrets, query, priors = (scenario[key] for key in ("law", "secrets", "query", "priors"))
    pairs = [tuple(pair) for pair in scenario["pairs"]]
    names, scales = query["names"], query["scales"]
    distinct = {prior["name"] for prior in priors}
    clipped = [*scenario["clipped"]["all"], *scenario["clipped"]["some"]]
    rules = {
        f"the law must be one of {', '.join(LAWS)}": law in LAWS,
        f"one_release_is must be what law {law!r} says": (
            scenario["one_release_is"] == ONE_RELEASE.get(law)
        ),
        "there must be at least two secrets, all different": (
            1 < len(secrets) == len(set(secrets))
        ),
        "there must be pairs to protect, each once": 0 < len(pairs) == len(set(pairs)),
        "a pair must be two different values among the secrets": all(
            len(pair) == len(set(pair)) == 2 and set(pair) <= set(secrets) for pair in pairs
        ),
        "there must be priors, all of different names": 0 < len(priors) == len(distinct),
        f"a prior must be {', '.join(KINDS)}, from {', '.join(SOURCES)}": all(
            prior["source"] in SOURCES and prior["kind"] in KINDS for prior in priors
        ),
        "the query must have as many names and scales as the profile has dimensions": (
            len(set(names)) == len(names) == len(scales) == dim
        ),
        "the scales of a query must be greater than 0": all(scale > 0 for scale in scales),
        "rows_dropped must be at least 0": scenario["rows_dropped"] >= 0,
        "only secrets, each once, can be clipped, and only by a range": (
            len(clipped) == len(set(clipped))
            and set(clipped) <= set(secrets)
            and (not clipped or query["range"] is not None)
        ),
    }
    yield from (rule for rule, holds in rules.items() if not holds)


def _in_range(evidence: Evidence, full: MatchingTables) -> Iterator[str]:
    """A bound from a range is at least the diameter of the range that is stated."""
    scenario = evidence.scenario
    stated = range_of(scenario["query"]["range"] or scenario["counted_range"])
    if stated is None:
        yield "a bound from a range is used, but no range is stated"
        return
    diameter = stated.diameter(np.array(scenario["query"]["scales"], dtype=np.float64))
    if full.worst().min() < diameter * _ROOM:
        yield "the bound from the range is below the diameter of the stated range"


def _in_bands(evidence: Evidence, seen: GapTables, plain: GapTables) -> Iterator[str]:
    """Bands lie around the samples: on covered levels their gaps are at least the samples' own."""
    missing = evidence.slices.missing[:, None]
    least = seen.means() * (1 - missing) + missing * plain.worst()
    narrow = (least < plain.means() * _COARSE).any()
    if narrow or (not missing.any() and (seen.worst() < plain.worst() * _ROOM).any()):
        yield "the bands are narrower than what the samples themselves show"
    if evidence.beyond is not None:
        share = (evidence.beyond.totals / seen.totals)[:, None]
        low = seen.means() < evidence.beyond.means() * share * _COARSE
        if low.any() or (seen.worst() < evidence.beyond.worst() * _ROOM).any():
            yield "the gaps leave out what counts at the public range beyond the bands"
