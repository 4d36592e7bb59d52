# SPDX-License-Identifier: Apache-2.0
"""Walk through a JSON document, and change one place of a copy."""

import copy
from operator import setitem
from typing import Any

import attrs
from pydantic import TypeAdapter, ValidationError

from pufferslice.certificate.statement import (
    ReleaseStatement,
    TrainingStatement,
    read_statement,
)
from pufferslice.errors import CertificateError


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


@attrs.frozen
class Unread:
    """Values in place of a statement that no reader takes: whoever checks them refuses them."""

    values: Any
    total = None
    workflow = "release"

    def to_json(self):
        return self.values


def statement_of(values):
    """The statement of JSON values; field by field where the fields contradict each other.

    Values in place of a statement where a field itself is none.
    """
    try:
        return read_statement(values)
    except CertificateError:
        pass
    training = isinstance(values, dict) and values.get("workflow") == "training"
    model = TrainingStatement if training else ReleaseStatement
    try:
        parts = {
            name: TypeAdapter(field.rebuild_annotation()).validate_python(values[name])
            for name, field in model.model_fields.items()
        }
    except (ValidationError, KeyError, TypeError):
        return Unread(values)
    return Unread(values) if set(values) - set(parts) else model.model_construct(**parts)
