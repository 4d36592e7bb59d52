# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - one file that mkdocs loads by its path
"""How docstrings become Markdown: examples as code, `Guarantee:` and `Source:` as paragraphs.

A griffe extension, named in mkdocs.yml. Docstrings are written to be read in the source, where a
bare `>>>` and a line that begins with `Needs:` are clear; Markdown would run them together.
"""

import re

import griffe

_LEAD = re.compile(r"^(Guarantee|Needs|Reason|Source):", re.MULTILINE)
_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class ReadableDocstrings(griffe.Extension):
    """Rewrites each docstring once it is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:  # noqa: ARG002 - griffe's call
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown_of(obj.docstring.value)


def markdown_of(docstring: str) -> str:
    """The same text, with fences around examples and blank lines before the leading words."""
    fenced = _EXAMPLE.sub(lambda found: f"```pycon\n{found.group()}\n```", docstring)
    return _LEAD.sub(r"\n**\1:**", fenced)
