# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - one file that mkdocs loads by its path
"""A griffe extension, named in mkdocs.yml, that turns the source into API pages.

It marks examples and lines such as `Needs:` in docstrings, which Markdown would run together, and
adds the signatures of attrs classes, which griffe does not know.
"""

import re

import griffe

_LEAD = re.compile(r"^(Guarantee|Needs|Reason|Source):", re.MULTILINE)
_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
_DEFAULT = re.compile(r"\b(default|factory)=")


class ReadableValues(griffe.Extension):
    """Rewrites docstrings, and gives attrs classes the signature that they have."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, list[griffe.Parameter]] = {}

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:  # noqa: ARG002 - griffe's call
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown_of(obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **kwargs: object) -> None:  # noqa: ARG002 - as above
        """Add the `__init__` that attrs makes."""
        decorator = next(
            (str(d.value) for d in cls.decorators if "attrs.frozen" in str(d.value)), None
        )
        if decorator is None:
            return
        fields = [field for field in cls.attributes.values() if is_field(field)]
        keyword = "kw_only=True" in decorator
        # attrs takes fields of a base class first; that class was read before this one
        scope = cls.path.rpartition(".")[0]
        parameters = [
            parameter for base in cls.bases for parameter in self._known.get(f"{scope}.{base}", [])
        ]
        parameters += parameters_of(fields, keyword=keyword)
        self._known[cls.path] = parameters
        itself = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        init = griffe.Function("__init__", parameters=griffe.Parameters(itself, *parameters))
        cls.set_member("__init__", init)
        for field in fields:
            field.labels -= {"class-attribute", "instance-attribute"}
            field.value = None


def markdown_of(docstring: str) -> str:
    """The same text, with fences around examples and blank lines before the leading words."""
    fenced = _EXAMPLE.sub(lambda example: f"```pycon\n{example.group()}\n```", docstring)
    return _LEAD.sub(r"\n**\1:**", fenced)


def is_field(attribute: griffe.Attribute) -> bool:
    """Whether attrs takes this attribute as an argument."""
    # griffe unwraps ClassVar and says only that the attribute is not one of instances.
    return (
        attribute.annotation is not None
        and "instance-attribute" in attribute.labels
        and "init=False" not in str(attribute.value)
    )


def parameters_of(fields: list[griffe.Attribute], *, keyword: bool) -> list[griffe.Parameter]:
    """The parameters of the class, after `self`."""
    kinds = griffe.ParameterKind
    return [
        griffe.Parameter(
            f.name,
            annotation=f.annotation,
            kind=kinds.keyword_only
            if keyword or "kw_only=True" in str(f.value)
            else kinds.positional_or_keyword,
            default=default_of(f),
        )
        for f in fields
    ]


def default_of(field: griffe.Attribute) -> str | None:
    """The default as it is shown; `...` for one that attrs computes."""
    value = None if field.value is None else str(field.value)
    if value is None or not value.startswith("attrs.field("):
        return value
    return "..." if _DEFAULT.search(value) else None
