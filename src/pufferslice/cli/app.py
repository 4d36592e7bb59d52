# SPDX-License-Identifier: Apache-2.0
"""The `pufferslice` command: its verbs, and how errors leave it."""

import errno
import sys
from collections.abc import Sequence

import typer

from pufferslice.cli import (
    account,
    audit,
    calibrate,
    compare,
    demo,
    init,
    paper,
    release,
    report,
    sign,
    spent,
    train,
    verify,
)
from pufferslice.errors import (
    ArgumentError,
    PuffersliceError,
    ScenarioError,
    StorageError,
    TableError,
)

REFUSED = 1
WRONG_USE = 2

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
app.command(name="init")(init.init)
app.command(name="demo")(demo.demo)
app.command(name="calibrate")(calibrate.calibrate)
app.command(name="spent")(spent.spent)
app.command(name="release")(release.release)
app.command(name="verify")(verify.verify)
app.command(name="audit")(audit.audit)
app.command(name="account")(account.account)
app.command(name="train")(train.train)
app.command(name="compare")(compare.compare)
app.command(name="report")(report.report)
app.add_typer(paper.app, name="paper")
app.command(name="sign")(sign.sign)
app.command(name="keygen")(sign.keygen)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors go to standard error, in words."""
    try:
        app(args=None if arguments is None else list(arguments))
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except StorageError as error:
        typer.echo(f"error: {error.strerror or error}", err=True)
        return WRONG_USE if error.errno == errno.ENOENT else REFUSED
    except PuffersliceError as error:
        typer.echo(f"error: {error}", err=True)
        return WRONG_USE if isinstance(error, _WRONG_USE) else REFUSED
    return 0
