# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""A ledger that was restored from a backup is older than its marks, and releases nothing."""

import json
import shutil
import stat
import sys
from typing import ClassVar

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.releases.test_postgres import query
from tests.releases.test_release import (
    GROUPS,
    MEAN,
    SEEDED,
    TABLE,
    Watched,
    certified,
    release_a,
    rows_of,
)

from pufferslice import Certificate, Guarantee, Scenario, certify_release
from pufferslice._core import databases
from pufferslice.cli.app import run
from pufferslice.errors import AlreadyReleasedError, LedgerError, StorageError
from pufferslice.queries import summary
from pufferslice.releases import Ledger, release, release_again, storage
from pufferslice.releases.commands import copying, finished, reconciling
from pufferslice.releases.marks import found_in, marks_in, marks_of_releases
from pufferslice.releases.release import Release, grant_of
from pufferslice.releases.value import fitting_value, released_rows, table_mark

OTHER = Scenario.from_groups(TABLE, secret="t", query=MEAN)
OTHER_ROWS = TABLE.take([0, 2, 4, 6, 8])


@pytest.fixture
def certificate():
    return certified(GROUPS)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "books" / "census.ledger"


@pytest.fixture
def saved(certificate, tmp_path):
    """The certificate as a file in a folder of its own."""
    (tmp_path / "certificates").mkdir()
    certificate.save(tmp_path / "certificates" / "c.json")
    return Certificate.load(tmp_path / "certificates" / "c.json")


def release_other(path, **said):
    return release(OTHER, OTHER_ROWS, certified(OTHER), ledger=path, **said)


def restored(path, before):
    """What copying back a file does: the journal of SQLite is not there either."""
    path.write_bytes(before)


class TestRestored:
    @pytest.mark.soundness
    def test_a_restored_backup_does_not_release_again(self, path, saved, tmp_path):
        """Two different noises under one certificate."""
        release_other(path)
        backup = path.read_bytes()
        first = release_a(saved, ledger=path, out=tmp_path / "r.json")
        restored(path, backup)
        assert saved.digest not in Ledger(path).releases()
        for again in (
            lambda: release_a(saved, ledger=path),
            lambda: release_a(saved, ledger=path, out=tmp_path / "s.json"),
            lambda: release(OTHER, OTHER_ROWS, saved_beside(saved, certified(OTHER)), ledger=path),
        ):
            with pytest.raises(LedgerError, match="older than the spent marks") as caught:
                again()
            assert saved.digest[:12] in str(caught.value)
        assert Ledger(path).releases() == [r.certificate for r in [release_of(backup, tmp_path)]]
        assert run(["ledger", "reconcile", str(path), str(tmp_path / "certificates")]) == 0
        with pytest.raises(AlreadyReleasedError, match="has had it: it was published"):
            release_a(saved, ledger=path)
        with pytest.raises(AlreadyReleasedError, match="same secret"):
            release_a(certified(GROUPS), ledger=path)
        # the mark alone does not hold the numbers; the release file does
        with pytest.raises(Exception, match="keeps no release"):
            release_again(saved, ledger=path, out=tmp_path / "s.json")
        assert first.values.size == 2

    @pytest.mark.soundness
    def test_a_release_file_brings_the_numbers_back(self, path, saved, tmp_path):
        Ledger(path).make()
        backup = path.read_bytes()
        first = release_a(saved, ledger=path, out=tmp_path / "r.json")
        restored(path, backup)
        places = [str(tmp_path / "certificates"), str(tmp_path / "r.json")]
        assert run(["ledger", "reconcile", str(path), *places]) == 0
        assert release_again(saved, ledger=path, out=tmp_path / "s.json") == first
        assert Ledger(path).problems() == []
        assert run(["ledger", "reconcile", str(path), *places]) == 0
        assert len(Ledger(path).entries()) == 1

    @pytest.mark.soundness
    def test_a_backup_from_between_intent_and_result(self, path, saved, monkeypatch):
        """It looks like an attempt without a result, which could be given up."""
        backups = []
        record_drawn = Ledger.record_drawn

        def backed_up(self, *args):
            backups.append(path.read_bytes())
            record_drawn(self, *args)

        monkeypatch.setattr(Ledger, "record_drawn", backed_up)
        release_a(saved, ledger=path)
        restored(path, backups[0])
        ledger = Ledger(path)
        assert [entry.state for entry in ledger.entries()] == ["intended"]
        ledger.give_up(ledger.entries()[0])
        with pytest.raises(LedgerError, match="older than the spent marks"):
            release_a(saved, ledger=path)
        assert finished(reconciling(ledger, marks_in(saved.path.parent))) == 1
        assert [entry.state for entry in ledger.entries()] == ["published"]
        with pytest.raises(AlreadyReleasedError, match="has had it"):
            release_a(saved, ledger=path)

    @pytest.mark.soundness
    def test_a_ledger_that_branched(self, path, saved, tmp_path):
        """Restored, and used with other folders of marks, before the two branches meet."""
        Ledger(path).make()
        backup = path.read_bytes()
        release_a(saved, ledger=path)
        restored(path, backup)
        shutil.move(tmp_path / "certificates", tmp_path / "elsewhere")
        release_other(path, spent_marks=tmp_path / "m")
        shutil.move(tmp_path / "elsewhere", tmp_path / "certificates")
        with pytest.raises(LedgerError, match="older than the spent marks"):
            release_a(saved, ledger=path)
        assert finished(reconciling(Ledger(path), found_in([tmp_path / "certificates"]))) == 1
        assert len(Ledger(path).entries()) == 2

    @pytest.mark.soundness
    def test_two_releases_of_one_intent_are_both_kept(self, path, saved, monkeypatch):
        """Restored between intent and result, while the first process went on."""
        backups, record_drawn = [], Ledger.record_drawn

        def backed_up(self, *args):
            backups.append(path.read_bytes())
            record_drawn(self, *args)

        monkeypatch.setattr(Ledger, "record_drawn", backed_up)
        release_a(saved, ledger=path)
        monkeypatch.undo()
        restored(path, backups[0])
        ledger = Ledger(path)
        ledger.record_drawn(ledger.entries()[0], '{"certificate": "other"}')
        assert finished(reconciling(ledger, marks_in(saved.path.parent))) == 1
        assert [entry.state for entry in ledger.entries()] == ["drawn", "published"]
        assert finished(reconciling(ledger, marks_in(saved.path.parent))) == 0

    @pytest.mark.soundness
    def test_a_ledger_that_was_removed_and_made_anew(self, path, saved):
        release_a(saved, ledger=path)
        path.unlink()
        with pytest.raises(LedgerError, match="or made anew"):
            release_a(saved, ledger=path)
        assert finished(reconciling(Ledger(path), marks_in(saved.path.parent))) == 1
        with pytest.raises(AlreadyReleasedError):
            release_a(saved, ledger=path)

    @pytest.mark.soundness
    def test_a_copy_knows_the_marks_and_the_old_one_that_was_restored_does_not(
        self, path, saved, tmp_path
    ):
        release_other(path, spent_marks=saved.path.parent)
        backup, new = path.read_bytes(), tmp_path / "new.ledger"
        finished(copying(Ledger(path), Ledger(new)))
        release_a(saved, ledger=new)
        restored(path, backup)
        with pytest.raises(LedgerError, match="older than the spent marks"):
            release_a(saved, ledger=path)

    def test_folders_that_the_ledger_knows_are_looked_at(self, path, saved, tmp_path):
        """Whoever releases from another folder still meets the mark of the first release."""
        release_other(path, spent_marks=saved.path.parent)
        backup = path.read_bytes()
        release_a(saved, ledger=path)
        restored(path, backup)
        certificate = certified(GROUPS)
        with pytest.raises(LedgerError, match="older than the spent marks"):
            release_a(certificate, ledger=path, out=tmp_path / "elsewhere.json")

    def test_a_mark_of_another_ledger_elsewhere_says_nothing(self, path, saved, tmp_path):
        release_a(saved, ledger=path)
        release_other(tmp_path / "second.ledger", spent_marks=saved.path.parent)
        assert finished(reconciling(Ledger(path), marks_in(saved.path.parent))) == 0

    @pytest.mark.soundness
    def test_a_release_file_of_the_certificate_counts_in_any_ledger(self, path, saved, tmp_path):
        """A ledger from before its first release has another name for all that follows."""
        release_a(saved, ledger=path, out=tmp_path / "a.json")
        second = Ledger(tmp_path / "second.ledger")
        with pytest.raises(LedgerError, match="or made anew"):
            release_a(saved, ledger=second, out=tmp_path / "b.json")
        assert second.entries() == []
        second.make()
        assert finished(reconciling(second, found_in([saved.path.parent, tmp_path]))) == 1
        with pytest.raises(AlreadyReleasedError):
            release_a(saved, ledger=second, out=tmp_path / "b.json")


def release_of(backup, tmp_path):
    (tmp_path / "backup").write_bytes(backup)
    (entry,) = Ledger(tmp_path / "backup").entries()
    return Release.from_json(json.loads(entry.release))


def saved_beside(saved, certificate):
    certificate.save(saved.path.with_name("other.json"))
    return Certificate.load(saved.path.with_name("other.json"))


class TestFolders:
    def marks(self, *folders):
        return [len(marks_in(folder)) for folder in folders]

    def test_beside_the_certificate_else_beside_out_else_beside_the_ledger(
        self, path, saved, tmp_path
    ):
        folders = [saved.path.parent, tmp_path / "out", path.parent]
        folders[1].mkdir()
        release_a(saved, ledger=path, out=folders[1] / "a.json")
        assert self.marks(*folders) == [1, 0, 0]
        release_a(certified(GROUPS), ledger=tmp_path / "2", out=folders[1] / "b.json")
        assert self.marks(*folders) == [1, 1, 0]
        release_a(certified(GROUPS), ledger=path.with_name("3"))
        assert self.marks(*folders) == [1, 1, 1]
        release_a(saved, ledger=tmp_path / "4", spent_marks=tmp_path / "marks" / "here")
        assert self.marks(*folders, tmp_path / "marks" / "here") == [1, 1, 1, 1]

    def test_a_mark_is_confidential_and_names_what_was_released(self, path, saved):
        released = release_a(saved, ledger=path)
        (mark,) = marks_in(saved.path.parent)
        name = saved.path.with_name("census.spent")
        assert stat.S_IMODE(name.stat().st_mode) == 0o600
        assert mark.grant.certificate == saved.digest
        assert (mark.part, mark.period, mark.charge) == ("release", 1, 1)
        assert (mark.ledger, mark.intent) == (released.recorded.ledger, released.recorded.intent)
        assert str(released.values[0]) not in name.read_text()

    @pytest.mark.soundness
    def test_without_a_writable_folder_nothing_is_drawn(self, path, tmp_path, monkeypatch):
        certificate = certified(GROUPS, generator=SEEDED)
        certificate.save(tmp_path / "c.json")
        saved = Certificate.load(tmp_path / "c.json")
        noise = Watched(Ledger(path))

        def full(folder):
            raise StorageError(28, f"cannot write {str(folder)!r}: No space left")

        monkeypatch.setattr("pufferslice.releases.marks.check_writable", full)
        for said in ({}, {"spent_marks": tmp_path / "m"}, {"out": tmp_path / "r.json"}):
            with pytest.raises(StorageError, match=r"no spent mark can be left.*spent_marks="):
                release_a(saved, ledger=path, generator=noise, **said)
        assert noise.seen == [(1, [])] * 3
        assert not path.exists()
        (tmp_path / "file").touch()
        with pytest.raises(StorageError, match="no spent mark"):
            release_a(saved, ledger=path, generator=noise, spent_marks=tmp_path / "file")

    def test_where_the_first_is_not_writable_the_second_is_taken(
        self, path, saved, tmp_path, monkeypatch
    ):
        def check(folder):
            if folder == saved.path.parent:
                raise StorageError(13, "cannot write: Permission denied")

        monkeypatch.setattr("pufferslice.releases.marks.check_writable", check)
        (tmp_path / "out").mkdir()
        release_a(saved, ledger=path, out=tmp_path / "out" / "r.json")
        assert self.marks(saved.path.parent, tmp_path / "out") == [0, 1]

    @pytest.mark.soundness
    def test_it_is_there_before_anything_is_handed_out(self, path, saved, tmp_path, monkeypatch):
        found = []

        def write(*_):
            found.append(len(marks_in(saved.path.parent)))
            raise StorageError(28, "No space left")

        monkeypatch.setattr(sys.modules[release.__module__], "write_new", write)
        with pytest.raises(StorageError, match="recorded in the ledger"):
            release_a(saved, ledger=path, out=tmp_path / "r.json")
        assert found == [1]
        monkeypatch.undo()
        # also where a crash came before the mark, and the release is written again
        saved.path.with_name("census.spent").unlink()
        for name in "rs":
            release_again(saved, ledger=path, out=tmp_path / f"{name}.json")
            assert len(marks_in(saved.path.parent)) == 1

    def test_a_mark_that_cannot_be_written_hands_out_nothing(
        self, path, saved, tmp_path, monkeypatch
    ):
        def full(*_):
            raise StorageError(28, "No space left")

        monkeypatch.setattr("pufferslice.releases.marks.append_line", full)
        with pytest.raises(StorageError, match=r"recorded in the ledger.*--again"):
            release_a(saved, ledger=path, out=tmp_path / "r.json")
        assert not (tmp_path / "r.json").exists()
        assert [entry.state for entry in Ledger(path).entries()] == ["drawn"]
        monkeypatch.undo()
        release_again(saved, ledger=path, out=tmp_path / "r.json")
        assert self.marks(saved.path.parent) == [1]

    @pytest.mark.parametrize("line", ["", "[]", "{}", '{"format": "pufferslice-spent"}', "older"])
    def test_a_damaged_mark_is_not_overlooked(self, path, saved, line):
        release_other(path, spent_marks=saved.path.parent)
        file = saved.path.with_name("census.spent")
        older = file.read_text().replace('"version":5', '"version":4')
        file.write_text(older if line == "older" else f"{line}\n{file.read_text()}")
        with pytest.raises(LedgerError, match=r"census\.spent' cannot be read"):
            release_a(saved, ledger=path)
        assert len(Ledger(path).entries()) == 1

    def test_an_unfinished_mark_is_of_a_release_that_was_not_handed_out(self, path, saved):
        release_other(path, spent_marks=saved.path.parent)
        file = saved.path.with_name("census.spent")
        file.write_text(f"{file.read_text()}{file.read_text()[:40]}")
        release_a(saved, ledger=path)
        assert len(marks_in(file)) == len(file.read_text().splitlines()) == 2

    def test_several_ledgers_share_a_folder(self, path, saved, tmp_path):
        for name in ("a/census", "b/census", "c/other"):
            (tmp_path / name).parent.mkdir()
            held = saved_beside(saved, certified(GROUPS))
            release_a(held, ledger=tmp_path / f"{name}.ledger")
        assert [len(marks_in(saved.path.with_name(f"{name}.spent"))) for name in
                ("census", "other")] == [2, 1]  # fmt: skip

    def test_reconcile_of_what_is_not_there(self, path, saved, tmp_path):
        assert run(["ledger", "reconcile", str(path), str(tmp_path)]) == 2
        release_a(saved, ledger=path)
        assert run(["ledger", "reconcile", str(path), str(tmp_path / "none")]) == 2
        mark = saved.path.with_name("census.spent")
        assert run(["ledger", "reconcile", str(path), str(mark)]) == 0


class TestDatabase:
    """Release files are the marks."""

    def forget(self, address, after):
        """What a restored backup of the database does."""
        query(address, "ALTER TABLE events DISABLE TRIGGER ALL")
        query(address, "ALTER TABLE contents DISABLE TRIGGER ALL")
        query(address, f"DELETE FROM events WHERE number > {after}")  # noqa: S608
        query(address, "DELETE FROM contents")
        query(address, "ALTER TABLE events ENABLE TRIGGER ALL")
        query(address, "ALTER TABLE contents ENABLE TRIGGER ALL")

    @pytest.mark.soundness
    @pytest.mark.parametrize("after", [1, 3])
    def test_a_restored_database_is_noticed_by_the_release_files(
        self, address, saved, tmp_path, after
    ):
        folder = tmp_path / "published"
        folder.mkdir()
        first = release_a(saved, ledger=address, out=folder / "r.json")
        assert not list(tmp_path.rglob("*.spent"))
        self.forget(address, after)
        with pytest.raises(LedgerError, match="older than the spent marks"):
            release(OTHER, OTHER_ROWS, certified(OTHER), ledger=address, out=folder / "other.json")
        places = [str(folder), str(saved.path)]
        assert run(["ledger", "reconcile", address, *places]) == 0
        with pytest.raises(AlreadyReleasedError, match="has had it"):
            release_a(saved, ledger=address, out=folder / "s.json")
        with pytest.raises(AlreadyReleasedError, match="same secret"):
            release_a(certified(GROUPS), ledger=address, out=folder / "s.json")
        release(OTHER, OTHER_ROWS, certified(OTHER), ledger=address, out=folder / "other.json")
        assert release_again(saved, ledger=address, out=folder / "s.json") == first
        assert Ledger(address).problems() == []

    def test_a_release_without_its_certificate_counts_for_every_secret(
        self, address, certificate, tmp_path
    ):
        release_a(certificate, ledger=address, out=tmp_path / "r.json")
        self.forget(address, 1)
        assert finished(reconciling(Ledger(address), found_in([tmp_path]))) == 1
        with pytest.raises(AlreadyReleasedError, match="same secret"):
            release(OTHER, OTHER_ROWS, certified(OTHER), ledger=address)

    def test_a_folder_of_marks_can_be_asked_for(self, address, certificate, tmp_path):
        release_a(certificate, ledger=address, spent_marks=tmp_path / "m")
        self.forget(address, 1)
        with pytest.raises(LedgerError, match="older than the spent marks"):
            release_a(certificate, ledger=address, spent_marks=tmp_path / "m")

    def test_other_files_beside_it_are_passed_over(self, address, certificate, tmp_path):
        for name, text in {
            "a.json": "no json",
            "b.json": "[]",
            "c.json": '{"format": "pufferslice-release", "ledger": {}}',
            "d.json": '{"format": "pufferslice-release", "ledger": {"id": 3}}',
            "e.json": '{"format": "pufferslice-certificate"}',
        }.items():
            (tmp_path / name).write_text(text)
        (tmp_path / "f.json").mkdir()
        release_a(certificate, ledger=address, out=tmp_path / "r.json")
        assert found_in([tmp_path])[0].grant.certificate == certificate.digest

    def test_a_damaged_release_file_is_not_overlooked(self, address, certificate, tmp_path):
        release_a(certificate, ledger=address, out=tmp_path / "r.json")
        document = json.loads((tmp_path / "r.json").read_text())
        for change in ({"values": None}, {"values": 3}, {"guarantee": 3, "values": [{}]}):
            (tmp_path / "r.json").write_text(json.dumps(document | change))
            with pytest.raises(LedgerError, match="release file of intent"):
                found_in([tmp_path])
        for charge in ("1/0", "much", None):
            edited = document | {"ledger": document["ledger"] | {"charge": charge}}
            (tmp_path / "r.json").write_text(json.dumps(edited))
            with pytest.raises(LedgerError, match="release file of intent"):
                found_in([tmp_path])

    @pytest.mark.soundness
    def test_the_mark_of_a_release_file_meets_its_secret_in_other_words(self, tmp_path):
        """Keys that depend on rows are in no release file, so that it counts for any secret."""
        people = pa.table({"sex": ["f", "m"] * 100, "age": [float(x) for x in range(200)]})
        recoded = people.set_column(0, "sex", pa.array(["1", "2"] * 100))
        query = summary(mean=["age"], clip={"age": (0, 200)})
        scenario, other = (
            Scenario.from_prevalence(table, column="sex", value=value, query=query, within=0.05)
            for table, value in ((people, "f"), (recoded, "2"))
        )
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.7))
        certificate.save(tmp_path / "c.json")
        release(scenario, people, certificate, ledger=tmp_path / "l", out=tmp_path / "r.json")
        (mark,) = marks_of_releases([tmp_path])
        meets = grant_of(other, certify_release(other, Guarantee.guess(at_most=0.7)))
        assert mark.grant.meets(meets)


class TestTables:
    """The mark of a table, by which a ledger knows it again."""

    TABLE: ClassVar = {
        "sex": ["F", "M", None, "F"] * 5,
        "site": ["a", "bb", "a", ""] * 5,
        "age": [30.0, 41.0, 52.0, None] * 5,
    }

    def mark(self, table):
        query = summary(mean=["age"], rate={"site": "a"}, clip={"age": (17, 90)})
        scenario = Scenario.from_prevalence(
            pa.table(self.TABLE), column="sex", value="F", within=0.1, query=query
        )
        rows = released_rows(scenario, table)
        return table_mark(scenario, rows, fitting_value(scenario, rows))

    def test_the_same_in_any_order_and_of_any_library(self):
        table = pa.table(self.TABLE)
        mark = self.mark(table)
        assert mark["n_rows"] == 20
        order = np.random.default_rng(1).permutation(20)
        others = (
            table.take(order),
            table.select(["age", "site", "sex"]),
            pl.DataFrame(self.TABLE),
            pd.DataFrame(self.TABLE),
            table.set_column(1, "site", table["site"].dictionary_encode()),
        )
        assert [self.mark(other) for other in others] == [mark] * len(others)

    @pytest.mark.parametrize(("column", "value"), [("age", 31.0), ("site", "b"), ("site", "bbb")])
    def test_one_cell_makes_another(self, column, value):
        changed = self.TABLE | {column: [value, *self.TABLE[column][1:]]}
        assert self.mark(pa.table(changed)) != self.mark(pa.table(self.TABLE))

    def test_a_ledger_keeps_it(self, path, certificate):
        release_a(certificate, ledger=path)
        (entry,) = Ledger(path).entries()
        assert entry.table["n_rows"] == 3
        assert set(entry.table) == {"n_rows", "digest"}


class TestLocks:
    @pytest.fixture(autouse=True)
    def not_tried(self, monkeypatch):
        monkeypatch.setattr(storage, "_LOCKING", set())

    @pytest.mark.soundness
    @pytest.mark.parametrize("options", ["nolock=1", "vfs=unix-none"])
    def test_a_disk_whose_locks_do_not_work_is_refused(
        self, path, saved, tmp_path, monkeypatch, options
    ):
        monkeypatch.setattr(databases, "_OPTIONS", f"mode=rw&{options}")
        with pytest.raises(LedgerError, match=r"file locks do not work.*nothing was released"):
            release_a(saved, ledger=path, out=tmp_path / "r.json")
        monkeypatch.undo()
        monkeypatch.setattr(storage, "_LOCKING", set())
        assert Ledger(path).entries() == []
        release_a(saved, ledger=path, out=tmp_path / "r.json")
        assert len(storage._LOCKING) == 1

    def test_locks_that_cannot_be_tried(self, path, saved, monkeypatch):
        monkeypatch.setattr("sys.executable", "/nowhere/python")
        with pytest.raises(LedgerError, match="could not be tried"):
            release_a(saved, ledger=path)

    def test_it_is_tried_once_for_each_disk(self, path, saved, monkeypatch):
        release_a(saved, ledger=path)
        monkeypatch.setattr("sys.executable", "/nowhere/python")
        release_other(path)
        assert rows_of("a").num_rows == 3
