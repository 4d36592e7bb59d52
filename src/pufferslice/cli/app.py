# SPDX-License-Identifier: Apache-2.0
"""The program `pufferslice`: its commands, its exit codes, and how it prints errors."""

import errno
from collections.abc import Sequence
from typing import Annotated

import typer

from pufferslice import __version__
from pufferslice.cli import (
    account,
    audit,
    calibrate,
    compare,
    demo,
    init,
    ledger,
    release,
    report,
    sign,
    spent,
    train,
    verify,
)
from pufferslice.cli.output import INTERRUPTED, REFUSED, WRONG_USE, discard_output, say
from pufferslice.errors import (
    ArgumentError,
    PuffersliceError,
    ScenarioError,
    StorageError,
    TableError,
)

_WRONG_USE = (ArgumentError, ScenarioError, TableError)

app = typer.Typer(
    name="pufferslice",
    help=(
        "Publish a statistic or train a model while a declared secret stays protected, with a "
        "certificate."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    if wanted:
        say(f"pufferslice {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


for _command in (
    init.init,
    demo.demo,
    calibrate.calibrate,
    spent.spent,
    release.release,
    verify.verify,
    audit.audit,
    account.account,
    train.train,
    compare.compare,
    report.report,
    sign.sign,
    sign.keygen,
):
    app.command()(_command)
app.add_typer(ledger.app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors go to standard error."""
    try:
        return _run(arguments)
    except BaseException as error:
        if _is_interrupt(error):
            return INTERRUPTED
        raise


def _run(arguments: Sequence[str] | None) -> int:
    try:
        app(args=None if arguments is None else list(arguments))
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except StorageError as error:
        typer.echo(f"error: {error.strerror or error}", err=True)
        return WRONG_USE if error.errno in (errno.ENOENT, errno.EISDIR) else REFUSED
    except PuffersliceError as error:
        typer.echo(f"error: {error}", err=True)
        return WRONG_USE if isinstance(error, _WRONG_USE) else REFUSED
    except OSError as error:  # typer prints help texts itself
        discard_output()
        typer.echo(f"error: {error}", err=True)
        return REFUSED
    return 0


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether an error is Ctrl-C, also where Python wraps it while it loads a module."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
