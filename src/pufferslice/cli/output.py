# SPDX-License-Identifier: Apache-2.0
"""How verbs print: one JSON object or prose, and a progress bar on a terminal only."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import typer

from pufferslice.parallel import Progress, silent


def print_json(value: Any) -> None:  # noqa: ANN401 - any JSON value
    """One JSON object on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A bar on standard error if that is a terminal; silent elsewhere."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield report
