# SPDX-License-Identifier: Apache-2.0
"""Output of commands: one JSON object or prose, a progress bar on a terminal, exit codes."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pufferslice._core.threads import Progress, silent
from pufferslice.errors import StorageError

if TYPE_CHECKING:
    from pufferslice._core.plot import Plot

REFUSED: Final = 1
"""Exit code of a refusal, a refutation, or an answer with a part left out."""
WRONG_USE: Final = 2
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as shells have it: 128 and the number of the signal."""
TERMINATED: Final = 143
"""Exit code after SIGTERM, where a command has something to save; as shells have it."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
PlotFile = Annotated[Path | None, typer.Option("--plot", help="Write a picture here, NAME.svg.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override a key of the file, as guarantee.epsilon=2. Repeatable.",
    ),
]
"""Option that replaces keys of a scenario file for one call."""


def answer(value: Any, text: str, *, json: bool) -> None:  # any JSON value
    """Print the answer of a command: for programs, or for people."""
    if json:
        print_json(value)
    else:
        say(text)


def check_plot(path: Path | None) -> None:
    """Refuse a file that cannot be a picture, before anything else is done."""
    from pufferslice._core.files import check_writable
    from pufferslice._core.plot import checked_path

    if path is not None:
        check_writable(checked_path(path).parent)


def plotted(path: Path | None, draw: "Callable[[], Plot]") -> str:
    """Write the picture of an answer if one is wanted, and say so."""
    if path is None:
        return ""
    plot = draw()
    plot.save(path)
    return f"\nPicture{', internal' if plot.is_internal else ''}: {path}"


def say(text: str) -> None:
    """Print on standard output; a `StorageError` if that fails, as on a full disk."""
    if sys.stdout is None:
        raise StorageError(
            "cannot write to standard output: it was closed before the command began"
        )
    try:
        typer.echo(text)
        sys.stdout.flush()
    except (OSError, UnicodeEncodeError) as error:
        discard_output()
        raise StorageError(
            f"cannot write to standard output: {getattr(error, 'strerror', None) or error}"
        ) from error


def discard_output() -> None:
    """Discard what standard output still holds, or Python would fail on it when it exits."""
    with contextlib.suppress(OSError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def print_json(value: Any) -> None:  # any JSON value
    """Print one JSON object; characters that could break or reorder a line are escaped."""
    text = dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    say("".join(c if c == "\n" or c.isprintable() else dumps(c)[1:-1] for c in text))


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """Show a bar with a rate, on standard error if that is a terminal; silent elsewhere."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TextColumn

    columns = (*Bar.get_default_columns(), TextColumn("{task.fields[rate]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, rate="")
        start = time.perf_counter()
        reports: list[int] = []

        def report(done: int, total: int) -> None:
            nonlocal start
            if reports and done < reports[-1]:  # the next of several rounds
                start, reports[:] = time.perf_counter(), []
            reports[1:] = [done]
            rate = (done - reports[0]) / (time.perf_counter() - start)
            bar.update(task, completed=done, total=total or None, rate=f"{rate:,.0f} {what}/s")

        yield report
