# SPDX-License-Identifier: Apache-2.0
"""Run a command as a user would, and check what must hold whatever it was given."""

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from tests import scenario_files
from tests.scenario_files import (
    ATTRIBUTE,
    BOOTSTRAP,
    HISTORY,
    HOME,
    OCCUPANCY,
    PAIR,
    PREVALENCE,
    RECORDS,
    SAMPLED,
    SCENARIO,
    SHARES,
    SUPPLIER,
    VOLUME,
)

from pufferslice.certificate import Certificate, verify
from pufferslice.cli.app import run

MOST_LINES = 14
"""Of an error; those about wrong usage are drawn in a box."""


_ALL = {"prior": SCENARIO["prior"], "secret": SCENARIO["secret"]}
_ROWS = _ALL | {"calibration": SCENARIO["calibration"]}
_READ = {"path": "many.parquet", "missing": "drop-rows", "null_values": ["?"]}
FUZZED: dict[str, dict[str, Any]] = scenario_files.SCENARIOS | {
    "records": RECORDS | _ROWS,
    "sampled": _ROWS | SAMPLED | {"data": _READ, "secret": SCENARIO["secret"]},
    "bootstrap": _ROWS | BOOTSTRAP | {"guarantee": SCENARIO["guarantee"]},
    "pair": PAIR | _ALL,
    "prevalence": PREVALENCE,
    "attribute": ATTRIBUTE,
    "occupancy": OCCUPANCY,
    "volume": VOLUME,
    "shares": SHARES,
    "supplier": SUPPLIER,
    "history": HISTORY,
    "home": HOME,
}
"""The scenario files with more sections and keys, so that there is more to change."""


class Answer(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str


def command(folder: Path, *arguments: str) -> Answer:
    """Run a command in a folder; any exception that leaves it is a failure."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run(arguments)
    answer = Answer(code, out.getvalue(), err.getvalue())
    check_answer(arguments, answer)
    check_files(folder)
    return answer


def check_answer(arguments: tuple[str, ...], answer: Answer) -> None:
    assert answer.code in (0, 1, 2), (arguments, answer)
    assert "Traceback" not in answer.err, (arguments, answer.err)
    lines = answer.err.splitlines()
    # A word of the user's is shown in lines of a terminal's width.
    most = MOST_LINES + sum(map(len, arguments)) // 60
    assert len(lines) <= most, (arguments, answer.err)
    if answer.code == 2 or (answer.code == 1 and not answer.out):
        assert answer.err.strip(), (arguments, answer)
    if "--json" in arguments and answer.code == 0 and answer.out:
        check_json(json.loads(answer.out, parse_constant=_refuse), arguments)


def check_json(answer: Any, where: Any) -> None:
    """No number of a budget is negative."""
    if isinstance(answer, dict):
        for key, value in answer.items():
            if "epsilon" in str(key) and isinstance(value, int | float):
                assert 0 <= value < math.inf, (where, key, value)
            check_json(value, where)


def check_files(folder: Path) -> None:
    """Nothing is half written: no remains, and every file that a command made can be read."""
    for path in folder.rglob("*"):
        assert not path.name.startswith("."), path
    made = folder / "made.json"
    if made.is_file():
        certificate = Certificate.load(made)
        assert verify(certificate).holds
        statement = certificate.statement
        assert 0 <= statement.spent <= certificate.guarantee.bound < math.inf
        assert 0 <= statement.noise.std < math.inf
        check_json(statement.to_json(), made)


def _refuse(text: str) -> float:
    raise AssertionError(text)
