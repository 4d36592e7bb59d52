# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - one file that mkdocs loads by its path
"""The list of all messages: every place in the source that builds an error or gives a warning.

An mkdocs hook, named in mkdocs.yml, puts the list on a page when the documentation is built. The
tests use the same list to check that each message occurs in a test.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "pufferslice"
PLACEHOLDER = "<!-- messages -->"

_WARNING = re.compile(r"^(warnings\.)?warn$")


class Site(NamedTuple):
    """One place that builds an error."""

    module: str
    first_line: int
    last_line: int
    kind: str
    text: str

    def __str__(self) -> str:
        """Place and text."""
        return f"{self.module}:{self.first_line} {self.kind}: {self.text}"


def on_page_markdown(markdown: str, **kwargs: object) -> str:  # noqa: ARG001 - mkdocs' call
    """Put the list where the page has its placeholder."""
    return markdown.replace(PLACEHOLDER, listing()) if PLACEHOLDER in markdown else markdown


def listing() -> str:
    """All messages as Markdown, by module, without repetition."""
    by_module: dict[str, dict[str, None]] = {}
    for site in all_sites():
        line = f"- **{site.kind}**: {quoted(site.text)}"
        by_module.setdefault(site.module, {})[line] = None
    parts = [f"### `{module}`\n\n" + "\n".join(lines) for module, lines in by_module.items()]
    return "\n\n".join(parts)


def quoted(text: str) -> str:
    """A message as code, whatever quotes it holds."""
    fence = "``" if "`" in text else "`"
    inner = f" {text} " if "`" in text else text
    return f"{fence}{inner}{fence}"


def modules() -> list[Path]:
    """The source files, sorted."""
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The module of a source file."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@functools.cache
def error_names() -> frozenset[str]:
    """The classes of errors.py."""
    tree = ast.parse((PACKAGE / "errors.py").read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.ClassDef))


@functools.cache
def all_sites() -> tuple[Site, ...]:
    """Every site of the package, by module and line."""
    return tuple(site for path in modules() for site in sites_of(path))


def sites_of(path: Path) -> list[Site]:
    """The sites of one source file, by line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names, module = error_names(), name_of(path)
    sites = []
    for scope in scopes_of(tree):
        body = list(nodes_of(scope))
        for node in body:
            kind = built_by(node, names)
            if kind is not None and isinstance(node, ast.Call):
                text = text_of(node, body)
                sites.append(Site(module, node.lineno, node.end_lineno or 0, kind, text))
    return sorted(sites, key=lambda site: site.first_line)


def scopes_of(tree: ast.Module) -> Iterator[ast.AST]:
    """The module and every function in it."""
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node


def nodes_of(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope without those of functions inside it, in the order of the source."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from nodes_of(node)


def built_by(node: ast.AST, names: frozenset[str]) -> str | None:
    """The error or warning that a call builds, or None."""
    if not isinstance(node, ast.Call):
        return None
    called = ast.unparse(node.func)
    if _WARNING.match(called):
        return "warning"
    last = called.rpartition(".")[2]
    return last if last in names else None


def text_of(call: ast.Call, scope: list[ast.AST]) -> str:
    """The text of the message, with expressions in braces."""
    if not call.args:
        return ""
    message = call.args[-1]  # a StorageError has the number of the error first
    if isinstance(message, ast.Name):
        message = last_value(message, scope) or message
    return " ".join(readable(message).split())


def last_value(name: ast.Name, scope: list[ast.AST]) -> ast.expr | None:
    """The expression that was last assigned to a name before its use."""
    assignments = [
        node
        for node in scope
        if isinstance(node, ast.Assign)
        and node.lineno <= name.lineno
        and any(isinstance(t, ast.Name) and t.id == name.id for t in node.targets)
    ]
    return max(assignments, key=lambda node: node.lineno).value if assignments else None


def readable(message: ast.expr) -> str:
    """A string as it is, an f-string with its expressions in braces, all else as source."""
    if isinstance(message, ast.Constant) and isinstance(message.value, str):
        return message.value
    if isinstance(message, ast.JoinedStr):
        return "".join(
            "{" + ast.unparse(part.value) + "}"
            if isinstance(part, ast.FormattedValue)
            else readable(part)
            for part in message.values
        )
    if isinstance(message, ast.BinOp) and isinstance(message.op, ast.Add):
        return readable(message.left) + readable(message.right)
    if isinstance(message, ast.IfExp):
        return f"{readable(message.body)} / {readable(message.orelse)}"
    return "{" + ast.unparse(message) + "}"
