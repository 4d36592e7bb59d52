# SPDX-License-Identifier: Apache-2.0
"""Odd values, damaged bytes and changed documents, as hypothesis strategies."""

import copy
import math
from typing import Any

from hypothesis import strategies as st

ODD_NUMBERS = (
    0, -1, 1, 2, 3, 0.5, -0.0, 1e-320, 1e-300, 1e-9, 1.0000000001, 1e9, 1e300, 1.7e308, 2**31,
    2**63, -(2**63) - 1, 2**70, 10**30, math.nan, math.inf, -math.inf,
)  # fmt: skip
ODD_TEXTS = (
    "", " ", "x", "pay", "site", "a", "all", "joint", "unsliced", "\0", "é\u202e", "../..", "/",
    "*", "[", "nan", "1e400", "-1", "x" * 3000, "\n", "module:function", ".", "true",
)  # fmt: skip


def odd_values() -> st.SearchStrategy[Any]:
    """Whatever a file can hold in place of what should stand there."""
    leaves = st.one_of(
        st.sampled_from(ODD_NUMBERS), st.sampled_from(ODD_TEXTS), st.booleans(), st.none()
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["column", "low", "x", ""]), inner, max_size=2),
        ),
        max_leaves=4,
    )


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes cut short, changed, left out, put in, or something else altogether."""
    raw = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        size = len(raw)
        place = draw(st.integers(0, max(0, size - 1)))
        way = draw(st.sampled_from(["cut", "flip", "drop", "insert", "double", "zero", "other"]))
        if way == "cut":
            del raw[place:]
        elif way == "flip" and size:
            raw[place] ^= draw(st.integers(1, 255))
        elif way == "drop":
            del raw[place : place + draw(st.integers(1, 40))]
        elif way == "insert":
            raw[place:place] = draw(st.binary(min_size=1, max_size=8))
        elif way == "double":
            raw[place:place] = raw[place : place + 64]
        elif way == "zero":
            raw[place : place + 8] = bytes(min(8, size - place))
        elif way == "other":
            raw = bytearray(
                draw(st.sampled_from([b"", b"\xff\xfe", b"PAR1", b"PK\x03\x04", b"{}"]))
            )
    return bytes(raw)


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """A document in which one to three values are replaced, left out, or joined by others."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        if not places:
            return draw(odd_values())
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        way = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add", "swap"]))
        if way == "remove":
            del holder[key]
        elif way == "add" and isinstance(holder, dict):
            holder[draw(st.sampled_from(ODD_TEXTS))] = draw(odd_values())
        elif way == "swap":
            other, place = places[draw(st.integers(0, len(places) - 1))]
            # A copy, so that no value comes to hold itself.
            holder[key] = copy.deepcopy(other[place])
        else:
            holder[key] = draw(odd_values())
    return document


def _places(node: Any) -> Any:
    """(holder, key) of every value below."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from _places(node[key])
