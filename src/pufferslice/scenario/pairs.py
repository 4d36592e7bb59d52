# SPDX-License-Identifier: Apache-2.0
"""Protected pairs of secrets: all, listed, or close by a rule."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np

from pufferslice._core.checks import check_above, check_count, check_one_of, is_a
from pufferslice._core.text import given, listed
from pufferslice.errors import ArgumentError, ScenarioError

Pairs = Literal["all"] | Sequence[tuple[str, str]]


class SecretPair(NamedTuple):
    """Pair of secrets that must not be told apart, protected in both orders."""

    first: str
    second: str


def chosen_pairs(pairs: Pairs, secrets: tuple[str, ...]) -> tuple[SecretPair, ...]:
    """The declared pairs in the order of the secrets, each once."""
    if isinstance(pairs, str):
        check_one_of(("all",), pairs=pairs)
        return tuple(SecretPair(a, b) for a, b in combinations(secrets, 2))
    if not is_a(pairs, Iterable):
        raise ArgumentError(
            f"pairs must be 'all' or a list of pairs of secrets, got {given(pairs)}"
        )
    chosen = []
    for pair in pairs:
        n_secrets = len(pair) if is_a(pair, list | tuple) else 0
        if n_secrets != 2 or pair[0] == pair[1]:
            # A string here is part of what came in place of pairs, which is not shown.
            shown = given(pair) if is_a(pair, list | tuple) else f"a {type(pair).__name__}"
            raise ArgumentError(f"a pair must name two different secrets, got {shown}")
        for secret in pair:
            if secret not in secrets:
                raise ScenarioError(
                    f"pair {given(tuple(pair))} names no secret {given(secret)}; the secrets are "
                    f"{listed(secrets)}"
                )
        chosen.append(SecretPair(*sorted(pair, key=secrets.index)))
    if not chosen:
        raise ArgumentError("pairs must name at least one pair of secrets, or be 'all'")
    return tuple(dict.fromkeys(chosen))


def ordered_pairs(
    values: Mapping[str, float],
    *,
    difference: float | None = None,
    ratio: float | None = None,
    nearest: int | None = None,
) -> list[tuple[str, str]]:
    """Pairs of secrets that are numbers and close: by difference, by ratio, or the k nearest.

    >>> ordered_pairs({"10": 10, "11": 11, "20": 20}, ratio=1.5)
    [('10', '11')]
    """
    rules = [rule for rule in (difference, ratio, nearest) if rule is not None]
    if len(rules) != 1:
        raise ArgumentError("give exactly one of difference, ratio and nearest")
    names = sorted(values, key=lambda name: values[name])
    numbers = np.array([float(values[name]) for name in names])
    if len(names) < 2 or not np.isfinite(numbers).all():
        raise ArgumentError("ordered secrets must be at least two finite numbers")
    (limit,), low, room = rules, numbers[:, None], 1 + 1e-12
    if nearest is not None:
        check_count(1, nearest=nearest)
        places = np.arange(len(names))
        close = places - places[:, None] <= nearest
    elif ratio is not None:
        check_above(1, ratio=limit)
        if not numbers.min() > 0:
            raise ArgumentError("a ratio needs secrets above 0")
        close = numbers <= low * limit * room
    else:
        check_above(0, difference=limit)
        close = numbers - low <= limit * room
    pairs = np.argwhere(np.triu(close, 1)).tolist()
    if not pairs:
        raise ArgumentError("no two secrets are that close; nothing would be protected")
    return [(names[i], names[j]) for i, j in pairs]
