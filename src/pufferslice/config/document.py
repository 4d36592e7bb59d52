# SPDX-License-Identifier: Apache-2.0
"""Files that people write, as typed models: reading, errors, template, reference and schema."""

import contextlib
import difflib
import json
import math
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    WrapValidator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from pufferslice._core.files import MOST_NESTED, check_document
from pufferslice.errors import ArgumentError

Document = Mapping[str, Any]
"""A parsed scenario.toml or training.toml."""

_LONG_KEY: Final = re.compile(
    rb"""(?:\.[ \t]*+(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+){%d}""" % MOST_NESTED
)
"""Pattern of keys for which `tomllib` would take time that grows with the square of the parts."""


class Table(BaseModel):
    """A table of a file: unknown keys are refused, and values are not converted."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def given(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the keys that the file has, of those named, or of all."""
        names = type(self).model_fields if names is None else names
        return {name: getattr(self, name) for name in names if name in self.model_fields_set}


class File(Table):
    """A whole file, whose fields are its sections."""

    header: ClassVar[str]
    """First lines of the template."""

    @classmethod
    def of(cls, document: object) -> Self:
        """Build the file from a document; an `ArgumentError` names section, key and rule."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
        # A misspelt key explains a missing one, so it comes first.
        detail = min(details, key=lambda each: each["type"] != "extra_forbidden")
        where = _place(detail["loc"])
        raise ArgumentError(f"{where}: {_rule(detail, cls)}" if where else _rule(detail, cls))


def key(
    default: Any = ...,  # the type of the key
    *,
    example: object,
    others: Iterable[object] = (),
    used: bool = False,
) -> Any:
    """Describe a key with an example value; the template sets it if `used`, else comments it.

    The template shows `others` as comments.
    """
    return Field(default, examples=[example, *others], json_schema_extra={"x-used": used})


class Word:
    """A string among some words; a file may write hyphens for underscores."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __get_pydantic_core_schema__(
        self, _source: object, _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda value: value.replace("-", "_") if isinstance(value, str) else value,
            core_schema.literal_schema(list(self.words)),
        )

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        hyphenated = [word.replace("_", "-") for word in self.words]
        return {"type": "string", "enum": list(dict.fromkeys((*self.words, *hyphenated)))}


def either(words: str) -> WrapValidator:
    """State one rule in words for a value of several types."""

    def validate(value: object, handler: Any) -> object:  # pydantic's handler
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(f"must be {words}") from None

    return WrapValidator(validate)


def _number(value: object) -> int | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            if math.isfinite(value):
                return value
        except OverflowError:
            pass
    raise ValueError("must be a finite number")


Number = Annotated[int | float, PlainValidator(_number), WithJsonSchema({"type": "number"})]
"""A finite number that stays an integer if it is one, because names of coordinates show it."""

_Item = TypeVar("_Item")
Listed = Annotated[tuple[_Item, ...], Field(strict=False)]
Text = Annotated[str, Field(min_length=1)]
Texts = Listed[str]
Numbers = Listed[float]
Pair = Annotated[tuple[str, str], Field(strict=False)]


def _equal_rows(rows: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    if len({len(row) for row in rows}) > 1:
        raise ValueError("must be lists of one length")
    return rows


Matrix = Annotated[Listed[Numbers], AfterValidator(_equal_rows)]


def parsed_toml(content: bytes) -> dict[str, Any]:
    """Parse a TOML document; anything else raises a `ValueError`."""
    if _LONG_KEY.search(content):
        raise ValueError(f"it has a key of more than {MOST_NESTED} parts")
    try:
        document = tomllib.loads(content.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_document(document)
    return document


def overridden(document: Document, assignments: Iterable[str]) -> dict[str, Any]:
    """Copy a document with keys replaced, each by `section.key=value`, or sections by a table.

    A value is read as TOML; one that is not TOML is a string, so that words need no quotes.

    >>> changes = ["guarantee.notion=joint", "guarantee.epsilon=2.0"]
    >>> overridden({"guarantee": {"notion": "average", "epsilon": 1.0}}, changes)
    {'guarantee': {'notion': 'joint', 'epsilon': 2.0}}
    """
    changed: dict[str, Any] = dict(document)
    for assignment in assignments:
        *tables, name, value = _assignment(assignment)
        inner = changed
        for step in tables:
            table = inner.get(step, {})
            inner[step] = dict(table) if isinstance(table, Mapping) else {}
            inner = inner[step]
        inner[name] = value
    return changed


def _assignment(text: str) -> list[Any]:
    """Split into the parts of the key, and the value; a quoted part may hold an equals sign."""
    for mark in re.finditer("=", text):
        try:
            table: Any = parsed_toml(f"{text[: mark.start()]} = 0".encode())
            value = _value(text[mark.end() :])
        except ValueError:
            continue
        parts: list[Any] = []
        while isinstance(table, dict) and len(table) == 1:
            ((part, table),) = table.items()
            parts.append(part)
        if table == 0 and (len(parts) > 1 or isinstance(value, dict)):
            return [*parts, value]
        break
    # A value may hold a password; only its key is shown.
    name, equals, _ = text.partition("=")
    which = f" {name!r}" if equals and re.fullmatch(r"[\w.-]+", name) else ""
    raise ArgumentError(
        f"--set{which} must be section.key=value; write --set guarantee.epsilon=2 or "
        "--set guarantee.notion=joint"
    )


def _value(text: str) -> object:
    """Read a TOML value, or else the text itself; raise a `ValueError` if it is not Unicode."""
    content = f"value = {text}".encode()
    with contextlib.suppress(ValueError):
        parsed = parsed_toml(content)
        if set(parsed) == {"value"}:
            return parsed["value"]
    return text.strip()


def toml_of(document: Mapping[str, Any]) -> str:
    """Write a JSON object as TOML: values first, then a section per object; null is left out.

    Keys keep their order, which in [query] is that of the coordinates: tables within a section are
    written in one line, as no other key could follow them.

    >>> print(toml_of({"steps": 2, "sampling": {"kind": "poisson", "rate": 0.5}}), end="")
    steps = 2
    <BLANKLINE>
    [sampling]
    kind = "poisson"
    rate = 0.5
    """
    lines = [
        f"{name} = {_toml_value(value)}"
        for name, value in document.items()
        if not (isinstance(value, Mapping) or _are_tables(value)) and value is not None
    ]
    for name, section in document.items():
        if isinstance(section, Mapping):
            lines += _toml_section(name, section)
        elif _are_tables(section):
            for each in section:
                lines += ["", f"[[{name}]]", *_toml_lines(each)]
    return "\n".join(lines) + "\n"


def _toml_section(name: str, section: Mapping[str, Any]) -> list[str]:
    """Write a section, or one for each of its tables if it holds nothing else."""
    if section and all(isinstance(value, Mapping) for value in section.values()):
        parts = [_toml_section(f"{name}.{_toml_key(k)}", v) for k, v in section.items()]
        return [line for part in parts for line in part]
    return ["", f"[{name}]", *_toml_lines(section)]


def _toml_lines(section: Mapping[str, Any]) -> list[str]:
    return [f"{_toml_key(k)} = {_toml_value(v)}" for k, v in section.items() if v is not None]


def _are_tables(value: object) -> bool:
    return isinstance(value, list) and value != [] and isinstance(value[0], Mapping)


def template(file: type[File]) -> str:
    """Write a commented file that runs as it is: every section, and every key with an example."""
    lines = [f"# {line}".rstrip() for line in file.header.splitlines()]
    for section, field in file.model_fields.items():
        keys = _keys(field)
        used = any(_used(each) for each in keys.values())
        lines += ["", *_comment(_description(field))]
        if not keys:
            example = toml_of({section: field.examples[0]})  # type: ignore[index]
            lines += [f"# {line}" for line in example.splitlines() if line]
            continue
        lines.append(f"{'' if used else '# '}[{section}]")
        for name, each in keys.items():
            line = f"{'' if _used(each) else '# '}{name} = {_example(each)}"
            lines += _described(line, each)
            lines += [f"# {name} = {_toml_value(other)}" for other in each.examples[1:]]  # type: ignore[index]
    return "\n".join(lines) + "\n"


def filled(file: type[File], document: Document, header: str) -> str:
    """Write a file with the sections and keys of a document alone, each with its description."""
    lines = [f"# {line}".rstrip() for line in header.splitlines()]
    for section, values in document.items():
        field = file.model_fields[section]
        lines += ["", *_comment(_description(field))]
        keys = _keys(field)
        if not keys:
            lines += toml_of({section: values}).splitlines()[1:]
            continue
        lines.append(f"[{section}]")
        for name, value in values.items():
            lines += _described(f"{name} = {_toml_value(value)}", keys[name])
    return "\n".join(lines) + "\n"


def reference(file: type[File]) -> str:
    """Write a table of all sections and keys in Markdown."""
    lines = ["| section | key | value |", "|---|---|---|"]
    for section, field in file.model_fields.items():
        lines.append(f"| `[{section}]` | | {_description(field)} |")
        for name, each in (_keys(field) or _inner_keys(field)).items():
            example = _example(each)
            lines.append(f"| | `{name}` | {_description(each)} Example: `{example}` |")
    return "\n".join(lines) + "\n"


def schema(file: type[File]) -> dict[str, Any]:
    """Return the JSON Schema of a file."""
    return file.model_json_schema()


def _described(line: str, key: FieldInfo) -> list[str]:
    """Put the description of a key beside its line, or above if that is too long."""
    beside = f"{line:28} # {_description(key)}"
    return [beside] if len(beside) <= 100 else [*_comment(_description(key)), line]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 98)]


def _used(field: FieldInfo) -> bool:
    return bool(field.json_schema_extra and field.json_schema_extra.get("x-used"))  # type: ignore[union-attr]


def _example(field: FieldInfo) -> str:
    return _toml_value(field.examples[0])  # type: ignore[index]


def _keys(section: FieldInfo) -> dict[str, FieldInfo]:
    """List a section's keys; none for one with a key per world, which has an example itself."""
    return {} if section.examples else next(_tables(section.annotation)).model_fields


def _inner_keys(section: FieldInfo) -> dict[str, FieldInfo]:
    """List the keys of each table of a section of tables, if they have examples."""
    keys = next((table.model_fields for table in _tables(section.annotation)), {})
    return dict(keys) if all(each.examples for each in keys.values()) else {}


def _description(field: FieldInfo) -> str:
    text = field.description or next(_tables(field.annotation)).__doc__ or ""
    return " ".join(text.split())


def _tables(annotation: object) -> Iterator[type[Table]]:
    if isinstance(annotation, type) and issubclass(annotation, Table):
        yield annotation
    for inner in get_args(annotation):
        yield from _tables(inner)


def _place(location: tuple[int | str, ...]) -> str:
    """Name a place in a file, such as `[query] rate[0].column`."""
    section, *steps = location or ("",)
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return f"[{section}] {path.removeprefix('.')}".rstrip() if location else ""


def _rule(detail: ErrorDetails, file: type[File]) -> str:
    kind, location = detail["type"], detail["loc"]
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return _unknown(location, file)
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return "must be a table"
    if kind == "string_too_short":
        return "must not be empty"
    text = detail["msg"].removeprefix("Value error, ").replace("Input should", "must")
    text = text.replace("a valid integer", "an integer").replace("a valid ", "a ")
    return text.replace("tuple", "list")


def _unknown(location: tuple[int | str, ...], file: type[File]) -> str:
    table: type[Table] = file
    for step in location[:-1]:
        if step in table.model_fields:
            table = next(_tables(table.model_fields[str(step)].annotation), table)
    known = list(table.model_fields)
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
    return f"is unknown; {hint}"


def _toml_value(value: object) -> str:
    """Write a value as TOML; only objects look different in JSON."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return _toml_text(value)


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_text(name)


def _toml_text(value: object) -> str:
    # TOML has no pairs of surrogates and, unlike JSON, no DEL within a string.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")
