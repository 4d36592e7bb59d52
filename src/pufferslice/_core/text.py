# SPDX-License-Identifier: Apache-2.0
"""Labels and arguments in messages: escaped and short, and never the value of a single person.

A label of the data can break a line, reverse it, or be a person's name. A label that occurs once
may be that person's record and is never shown; no list has more than `MOST_SHOWN` labels.
"""

import re
from collections.abc import Callable, Collection, Mapping
from numbers import Number
from typing import Any, Final

from pufferslice.errors import escaped

MOST_SHOWN: Final = 8
"""Labels in one list, at most."""

LONGEST: Final = 80
"""Characters of one label, at most."""

ISOLATE: Final = "\u2068"
END_ISOLATE: Final = "\u2069"

_SENTENCE: Final = re.compile(r'[.:;] |"|^ |  | $|^$')
"""Labels that could be read as part of the message, or overlooked."""


def shown(label: str) -> str:
    r"""A label in prose: escaped, cut if it is long, in quotes if it reads like a sentence.

    >>> shown("Asian-Pac-Islander"), shown("low. Epsilon: 0")
    ('Asian-Pac-Islander', '"low. Epsilon: 0"')
    """
    text = escaped(_cut(str(label)))
    return '"{}"'.format(text.replace('"', r"\"")) if _SENTENCE.search(text) else text


def label(text: str) -> str:
    r"""A label between Unicode isolates, so that it reverses no other text; pages make a `<bdi>`.

    >>> label("race")
    '\u2068race\u2069'
    """
    return f"{ISOLATE}{shown(text)}{END_ISOLATE}"


def quoted(label: str) -> str:
    """A label in quotes, escaped, and cut if it is long.

    >>> quoted("a" * 200) == repr("a" * 79 + "…")
    True
    """
    text = escaped(_cut(str(label)))
    mark = '"' if "'" in text and '"' not in text else "'"
    return mark + text.replace(mark, f"\\{mark}") + mark


def listed(names: Collection[str], show: Callable[[str], str] = shown) -> str:
    """Names that are public or were typed: the first of them, and how many more there are.

    >>> listed("abcdefghij")
    'a, b, c, d, e, f, g, h and 2 more'
    """
    more = len(names) - MOST_SHOWN
    first = ", ".join(map(show, list(names)[:MOST_SHOWN]))
    return f"{first} and {more:,} more" if more > 0 else first


def given(value: object) -> str:
    """An argument in an error: a number or a short string as it is, otherwise its type.

    >>> given(0.5), given(["a", "b"]), given(range(1_000))
    ('0.5', "['a', 'b']", 'a range')
    """
    if _is_plain(value):
        return quoted(value) if isinstance(value, str) else _cut(escaped(repr(value)))
    if isinstance(value, list | tuple) and len(value) <= MOST_SHOWN and all(map(_is_plain, value)):
        inner = ", ".join(map(given, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


def escaped_texts(value: Any) -> Any:  # any JSON value
    """A JSON value in which every string is escaped."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, Mapping):
        return {escaped_texts(key): escaped_texts(item) for key, item in value.items()}
    return [escaped_texts(item) for item in value] if isinstance(value, list | tuple) else value


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | bool | Number)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
