# SPDX-License-Identifier: Apache-2.0
"""Walk through a JSON document, and change one place of a copy."""

import copy
from operator import setitem


def inner(value, path=()):
    """Every JSON value inside a document, with its path."""
    yield path, value
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from inner(part, (*path, key))


def edited(document, path, change):
    """A copy of the document in which `change(holder, key)` was called for one path."""
    document = copy.deepcopy(dict(document))
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    change(holder, path[-1])
    return document


def put(document, path, value):
    """A copy of the document with another value at one path."""
    return edited(document, path, lambda holder, key: setitem(holder, key, value))
