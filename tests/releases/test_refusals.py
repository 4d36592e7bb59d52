# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""What releases and ledgers refuse; a refused release leaves no file behind."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
import pytest
from tests.fitting import fitting_value
from tests.refusal_tables import positions, refusals
from tests.refusals import check_refused
from tests.releases.grants import granted
from tests.releases.test_release import (
    DRAWN,
    GAUSSIAN,
    GROUPS,
    LISTED,
    OTHER,
    RECORDS,
    RENAMED,
    RESAMPLED,
    SEEDED,
    TABLE,
    WORLDS,
    certified,
    rows_of,
)

from pufferslice.certificate import certify_release
from pufferslice.claims import Guarantee
from pufferslice.errors import (
    ArgumentError,
    CertificateError,
    LedgerError,
    PuffersliceError,
    ReleaseError,
    StorageError,
    TableError,
)
from pufferslice.queries import Ball, summary
from pufferslice.releases.budget import part_sums
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.release import Release, release
from pufferslice.scenario.scenario import Scenario

LEDGER, ONE, TWO = Path("never.ledger"), "1" * 64, "2" * 64
WHOLE = Guarantee.unsliced(order=4, epsilon=0.01)
HELD = certified(GROUPS)
RELEASED = Release(
    certificate=ONE,
    guarantee="(4, 1)-RPP",
    names=("mean(x)", "mean(y)"),
    values=np.array([1.0, 2.0]),
    noise_stds=np.ones(2),
    grid_values=(1, 2),
    secure=True,
    unsliced=HELD.statement.unsliced,
)
A = rows_of("a")


def released(scenario, rows, certificate=None, **options):
    held = certificate or (HELD if scenario is GROUPS else certified(scenario))
    return release(scenario, rows, held, ledger=LEDGER, out="r.json", **options)


def moved(query):
    scenario = Scenario.from_groups(TABLE, secret="s", query=query)
    held = certify_release(scenario, WHOLE, generator=SEEDED, deltas=())
    return released(scenario, A, held, generator=SEEDED, into_range=True)


def one_coordinate_of_two():
    table = pa.table({"s": list("aabb"), "pay": [1e9, 1e9, 2e9, 2e9], "r": [0.0, 1.0, 1.0, 1.0]})
    scenario = Scenario.from_groups(table, secret="s", query=summary(mean=["pay", "r"]))
    fitting_value(scenario, pa.table({"s": ["a", "a"], "pay": [1e9, 1e9], "r": [0.0, 0.0]}))


def loaded(content):
    Path("file.json").write_text(content)
    try:
        return Release.load("file.json")
    finally:
        Path("file.json").unlink()


def without(*names, **changed):
    document = RELEASED.to_json() | changed
    return json.dumps({key: value for key, value in document.items() if key not in names})


def intended(path):
    Ledger(path).intend(granted(ONE))


def damaged(old, new):
    """The entries of a ledger in which some bytes are others."""
    intended("one.ledger")
    path = Path("one.ledger")
    path.write_bytes(path.read_bytes().replace(old, new))
    try:
        Ledger(path).entries()
    finally:
        path.unlink()


def edited(statement, *, kept=False):
    """Release from a ledger that was edited, perhaps by who has kept it open."""
    intended("one.ledger")
    with Ledger("one.ledger") as opened, closing(sqlite3.connect("one.ledger")) as connection:
        assert opened.id is not None
        connection.execute(statement)
        connection.commit()
        try:
            (opened if kept else Ledger("one.ledger")).intend(granted(TWO))
        finally:
            Path("one.ledger").unlink()


def piped():
    os.mkfifo("pipe")
    try:
        intended("pipe")
    finally:
        Path("pipe").unlink()


REFUSED = {
    ReleaseError: [
        ("3 groups", lambda: released(GROUPS, TABLE)),
        ("a, b, c", lambda: released(GROUPS, RENAMED)),
        ("'groups'", lambda: released(GROUPS, rows_of("a", OTHER))),
        ("2 rows", lambda: released(RESAMPLED, A.slice(0, 2))),
        ("got 3", lambda: released(RECORDS, A)),
        ("'records'", lambda: released(RECORDS, OTHER.slice(0, 1))),
        ("'worlds'", lambda: released(WORLDS, OTHER)),
        ("'worlds'", lambda: released(LISTED, TABLE.slice(0, 6))),
        ("number of rows", lambda: released(DRAWN, TABLE.slice(0, 6))),
        ("'groups'", one_coordinate_of_two),
        ("from_prevalence", lambda: part_sums(RECORDS, A, None)),
        ("along slices", lambda: released(GROUPS, A, into_range=True)),
        ("nothing to do", lambda: moved(summary(mean=["x"]))),
        ("ball", lambda: moved(summary(mean=["x"]).with_range(Ball([5], 9)))),
        ("two ends", lambda ends: attrs.evolve(RELEASED, moved_into=ends), [[0, 1]]),
        ("two ends", lambda ends: attrs.evolve(RELEASED, moved_into=ends), [[5, 6], [0, 50]]),
        ("both", lambda: released(GROUPS, A, generator=SEEDED)),
        ("both", lambda: released(GROUPS, A, certified(GROUPS, generator=SEEDED))),
        ("names", lambda names: attrs.evolve(RELEASED, names=names), ("x",)),
        ("names", lambda values: attrs.evolve(RELEASED, values=values), [1.0, np.nan]),
        ("names", lambda: attrs.evolve(RELEASED, grid_values=())),
        ("file.json", loaded, ""),
        ("'format'", loaded, "[]", '{"format": "other"}'),
        ("values", loaded, without("values")),
        ("version", loaded, without(version=1)),
    ],
    TableError: [
        ("'y'", lambda: released(GROUPS, A.drop_columns(["y"]))),
        ("column", lambda: fitting_value(GAUSSIAN, pa.table({"x": [1.0]}))),
    ],
    CertificateError: [
        ("statement", lambda: released(GROUPS, A, attrs.evolve(HELD, evidence=None))),
    ],
    ArgumentError: [("certificate", lambda: release(GROUPS, HELD, A, ledger=LEDGER))],
    StorageError: [("nowhere.json", Release.load, "nowhere.json")],
    LedgerError: [
        ("version 4", edited, "UPDATE identity SET version = 4"),
        ("no id", lambda: edited("DELETE FROM identity", kept=True)),
        ("cannot be used", positions(damaged), (b"TABLE events", b"TABLE ev\x8d\x8ds")),
        ("damaged", positions(damaged), (b"intended", b"intendex"), (b"granted", b"grandad")),
        ("cannot be used", intended, "."),
        ("pipe", piped),
    ],
    PuffersliceError: [("/dev/null", intended, "/dev/null/ledger")],
}


@pytest.mark.parametrize("refusal", refusals(REFUSED))
def test_refused(refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_refused(refusal)
    assert not list(tmp_path.iterdir())
