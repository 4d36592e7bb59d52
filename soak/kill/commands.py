# SPDX-License-Identifier: Apache-2.0
"""The long commands, what must hold of their files whenever they are killed, and how they go on."""

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from soak.kill.nursery import Ended, Nursery
from tests.releases.grants import granted, lived, text_of
from tests.releases.test_migrate import made_before
from tests.scenario_files import TRAINING as SHORT_TRAINING
from tests.scenario_files import toml_text

from pufferslice._core.files import digest
from pufferslice.certificate import Certificate, verify
from pufferslice.errors import AlreadyReleasedError, LedgerError
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.marks import Outside, marks_in
from pufferslice.releases.release import Release

SCENARIO = """
[data]
path = "people.parquet"
[secret]
column = "site"
[query]
distribution = "records"
columns = ["pay", "age"]
range = {{ low = [0, 0], high = [100, 100] }}
scales = [10, 10]
[prior]
source = "released-data"
kind = "empirical"
[profile]
n_directions = {n_directions}
seed = 7
[guarantee]
notion = "joint"
order = 4
epsilon = 1.0
"""
TRAINING = (
    toml_text(SHORT_TRAINING).replace("n_steps = 2\n", "n_steps = 40\n")
    + "evaluate_every = 4\ncheckpoint_every = 3\n"
)
RUN_KEY = b"pufferslice-run-key 1\n" + b"5a" * 32 + b"\n"
ROWS_PER_GROUP = 500
CALIBRATE = ["calibrate", "scenario.toml", "--out", "certificate.json"]


def write_scenario(folder: Path, n_rows: int, n_directions: int) -> None:
    """A table of `n_rows` people, and a scenario on it."""
    rng = np.random.default_rng(5)
    site = rng.integers(3, size=n_rows)
    table = pa.table(
        {
            "site": np.array(["a", "b", "c"])[site],
            "pay": 30 + 5 * site + rng.normal(size=n_rows),
            "age": 40 + 10 * rng.normal(size=n_rows),
        }
    )
    pq.write_table(table, folder / "people.parquet", row_group_size=ROWS_PER_GROUP)
    (folder / "scenario.toml").write_text(SCENARIO.format(n_directions=n_directions))


def whole_certificate(path: Path) -> Certificate | None:
    """The certificate, which verifies, or None if there is none; anything else is an error."""
    if not path.exists():
        return None
    certificate = Certificate.load(path)
    found = verify(certificate)
    assert found.holds, found.problems
    return certificate


def names(folder: Path) -> set[str]:
    """Files that have their names; what a killed write leaves is hidden."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): digest(path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Command(ABC):
    """One command: made ready, run, killed, looked at, and run to its end."""

    name: str
    line: str
    """As typed after `pufferslice`."""
    options: Mapping[str, Any] = MappingProxyType({})
    modules: tuple[str, ...] = ()
    """What it imports late, and can be imported before the fork."""
    is_warm = True
    """Whether its kernels may be loaded before the fork."""

    def __init__(self, base: Path, nursery: Nursery) -> None:
        self.base, self.nursery = base / self.name, nursery
        self.arguments = self.line.split()
        self.base.mkdir(parents=True)
        self.ready = self.base / "ready"
        self.ready.mkdir()
        self.make_ready()
        self.number = 0
        self.seconds = self._unbroken()

    def _unbroken(self) -> float:
        """Run it once without a signal; the answer to compare with, and how long it takes."""
        if self.is_warm:
            self.nursery.warm(self.arguments, self.fresh())
        folder = self.fresh()
        ended = self.run(folder)
        self.remember(folder, ended)
        return ended.seconds

    def fresh(self) -> Path:
        self.number += 1
        folder = self.base / f"{self.number}"
        shutil.copytree(self.ready, folder)
        self.arrive(folder)
        return folder

    def run(self, folder: Path) -> Ended:
        ended = self.nursery.run(self.arguments, folder, **self.options)
        assert ended.code == 0, (self.name, ended)
        return ended

    def broken(self, folder: Path, after: float, signal: int) -> Ended:
        return self.nursery.run(self.arguments, folder, after=after, signal=signal, **self.options)

    def from_scratch(self, folder: Path, after: float, signal: int) -> int:
        """As `broken`, in a process that imports for itself; the exit code."""
        program = "from pufferslice.cli import main; main()"
        if key := self.options.get("run_key"):  # so that its sums can be compared
            program = f"""
import shutil
from pufferslice.learning.keys import RunKey
RunKey.create = lambda path: (shutil.copy({key!r}, path), RunKey.read(path))[1]
{program}"""
        process = subprocess.Popen(
            [sys.executable, "-c", program, *self.arguments],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after)
        process.send_signal(signal)
        return process.wait(120)

    def arrive(self, folder: Path) -> None:  # noqa: B027 - most need nothing
        """What every fresh folder needs of its own."""

    @abstractmethod
    def make_ready(self) -> None: ...

    @abstractmethod
    def remember(self, folder: Path, ended: Ended) -> None: ...

    @abstractmethod
    def look(self, folder: Path) -> None:
        """What holds at every moment."""

    @abstractmethod
    def resume(self, folder: Path) -> None:
        """The same command ends as if it had not been interrupted."""


class Calibrate(Command):
    name = "calibrate"
    modules = ("pufferslice.config",)
    line = "calibrate scenario.toml --out certificate.json --json"

    def make_ready(self) -> None:
        write_scenario(self.ready, 3000, 60)

    def arrive(self, folder: Path) -> None:
        """Every second time there is an older certificate in its place."""
        if self.number % 2 and hasattr(self, "older"):
            for name, content in self.older.items():
                (folder / name).write_bytes(content)

    def remember(self, folder: Path, ended: Ended) -> None:
        self.noise_std = json.loads(ended.stdout)["noise_std"]
        files = ("certificate.json", "certificate.evidence.npz")
        self.older = {name: (folder / name).read_bytes() for name in files}

    def look(self, folder: Path) -> None:
        found = whole_certificate(folder / "certificate.json")
        assert found is None or found.evidence is not None
        assert names(folder) <= {
            "people.parquet", "scenario.toml", "certificate.json", "certificate.evidence.npz",
        }  # fmt: skip

    def resume(self, folder: Path) -> None:
        self.run(folder)
        found = whole_certificate(folder / "certificate.json")
        assert found is not None
        assert found.noise_std == self.noise_std


class Train(Command):
    """All runs have one known key, so that one unbroken run is the answer for all."""

    name = "train"
    modules = ("pufferslice.torch.train", "sklearn.datasets", "torch._dynamo")
    is_warm = False  # a process that has trained cannot fork children that train
    line = "train training.toml --json"

    def make_ready(self) -> None:
        (self.ready / "training.toml").write_text(TRAINING)
        key = self.base / "key"
        key.write_bytes(RUN_KEY)
        key.chmod(0o600)
        self.options = {"run_key": str(key)}

    def remember(self, folder: Path, ended: Ended) -> None:
        self.weights = self._weights(folder)
        self.steps = self._steps(folder)
        self.public = (folder / "run" / "public.jsonl").read_bytes()
        assert len(self.steps) == len(set(self.steps.values())) == 40

    def look(self, folder: Path) -> None:
        run = folder / "run"
        if not run.exists():
            return
        if (run / "certificate.json").exists():
            whole_certificate(run / "certificate.json")
            assert self._weights(folder).keys() == self.weights.keys()
        if (run / "run.ledger").exists():
            taken = self._steps(folder)
            # No step was recorded with other sums, and none but the first so many.
            assert taken.items() <= self.steps.items()
            assert sorted(taken) == list(range(len(taken)))
        if (run / "public.jsonl").exists():
            lines = (run / "public.jsonl").read_bytes().splitlines()
            rows = [json.loads(line) for line in lines if line.endswith(b"}")]
            assert len(rows) >= len(lines) - 1
            if rows:
                assert rows[-1]["step"] <= len(self._steps(folder))

    def resume(self, folder: Path) -> None:
        if not (folder / "run" / "certificate.json").exists():
            self.run(folder)
        found = self._weights(folder)
        assert found.keys() == self.weights.keys()
        assert all(np.array_equal(found[name], self.weights[name]) for name in found)
        assert self._steps(folder) == self.steps
        assert (folder / "run" / "public.jsonl").read_bytes() == self.public
        assert whole_certificate(folder / "run" / "certificate.json") is not None
        assert not (folder / "run" / "run.key").exists()
        hidden = [path.name for path in (folder / "run").iterdir() if path.name.startswith(".")]
        assert hidden == []

    def _weights(self, folder: Path) -> dict[str, np.ndarray]:
        import torch

        state = torch.load(folder / "run" / "model.pt", weights_only=True)
        return {name: value.numpy() for name, value in state.items()}

    def _steps(self, folder: Path) -> dict[int, str]:
        path = folder / "run" / "run.ledger"
        with contextlib.closing(sqlite3.connect(path)) as ledger:
            tables = ledger.execute("SELECT name FROM sqlite_master WHERE name = 'steps'")
            if tables.fetchone() is None:
                return {}
            return dict(ledger.execute("SELECT step, tag FROM steps").fetchall())


class Audit(Command):
    """It writes nothing, whether it is killed or not."""

    name = "audit"
    modules = ("pufferslice.audit", "pufferslice.config")
    line = "audit certificate.json --scenario scenario.toml --n-outputs 20000 --json"

    def make_ready(self) -> None:
        write_scenario(self.ready, 300, 10)
        self.nursery.warm(CALIBRATE, self.ready)

    def remember(self, folder: Path, ended: Ended) -> None:
        self.files = digests(folder)
        assert json.loads(ended.stdout)

    def look(self, folder: Path) -> None:
        assert digests(folder) == self.files

    def resume(self, folder: Path) -> None:
        assert json.loads(self.run(folder).stdout)
        assert digests(folder) == self.files


class ReleaseRow(Command):
    """Every attempt has a certificate of its own, of the same scenario and row."""

    name = "release"
    modules = ("pufferslice.config", "pufferslice.releases.release")
    line = (
        "release scenario.toml --certificate certificate.json --ledger ledger --out "
        "release.json --row 3 --json"
    )

    def make_ready(self) -> None:
        write_scenario(self.ready, 300, 10)
        self.noise: set[tuple[int, ...]] = set()

    def arrive(self, folder: Path) -> None:
        self.nursery.warm(CALIBRATE, folder)

    def remember(self, folder: Path, ended: Ended) -> None:
        self._keep(Release.load(folder / "release.json"))

    def look(self, folder: Path) -> None:
        entries = Ledger(folder / "ledger").entries()
        if (folder / "release.json").exists():
            released = Release.load(folder / "release.json")
            (entry,) = entries
            assert entry.state in ("drawn", "published")
            assert Release.from_json(json.loads(entry.release or "")) == released
        certificate = Certificate.load(folder / "certificate.json")
        assert [entry.certificate for entry in entries] in ([], [certificate.digest])

    def resume(self, folder: Path) -> None:
        """Not intended: it is released. Intended: refused. Drawn: the same numbers again."""
        entries = Ledger(folder / "ledger").entries()
        if not entries:
            self.run(folder)
            self._keep(Release.load(folder / "release.json"))
            entries = Ledger(folder / "ledger").entries()
        again = self.arguments + (["--again"] if entries[0].state != "intended" else [])
        again[again.index("release.json")] = "again.json"
        ended = self.nursery.run(again, folder)
        if entries[0].state == "intended":
            assert ended.code == 1
            assert "has had it" in ended.stderr
            assert not (folder / "again.json").exists()
            return
        assert ended.code == 0
        kept = Release.from_json(json.loads(entries[0].release or ""))
        assert Release.load(folder / "again.json") == kept
        if (folder / "release.json").exists():
            assert Release.load(folder / "release.json") == kept
        self.noise.add(kept.grid_values)
        refused = self.nursery.run(
            [*self.arguments[:-5], "--out", "third.json", "--row", "3"], folder
        )
        assert refused.code == 1
        assert not (folder / "third.json").exists()

    def _keep(self, released: Release) -> None:
        """One row, one scenario: equal numbers would be equal noise."""
        drawn = released.grid_values
        assert drawn not in self.noise
        self.noise.add(drawn)


class CopyLedger(Command):
    """Never two ledgers that are open, and in the end the new one with all releases."""

    name = "copy"
    modules = ("pufferslice.releases.ledger",)
    line = "ledger copy old.ledger new.ledger --json"
    n_releases = 40

    def make_ready(self) -> None:
        book = Ledger(self.ready / "old.ledger")
        for k in range(self.n_releases):
            book.intend(granted(f"{k:064x}", (str(k),)))

    def remember(self, folder: Path, ended: Ended) -> None:
        assert json.loads(ended.stdout)["releases"] == self.n_releases

    def look(self, folder: Path) -> None:
        assert sum(self._open(folder)) <= 1
        assert len(Ledger(folder / "old.ledger").entries()) == self.n_releases

    def resume(self, folder: Path) -> None:
        self.run(folder)
        assert self._open(folder) == [False, True]
        old, new = (Ledger(folder / name) for name in ("old.ledger", "new.ledger"))
        assert old.entries() == new.entries()
        assert names(folder) == {"old.ledger", "new.ledger"}

    def _open(self, folder: Path) -> list[bool]:
        """Of the old and the new one: whether a release is refused only for being there already."""
        found = []
        for name in ("old.ledger", "new.ledger"):
            book = Ledger(folder / name)
            if book.id is None:
                found.append(False)
                continue
            try:
                book.intend(granted("0" * 64, ("0",)))
            except AlreadyReleasedError:
                found.append(True)
            except LedgerError:
                found.append(False)
            else:
                raise AssertionError(f"{name} accepts a second release")
        return found


class Again(Command):
    """A release that was recorded and not written is written: the same numbers, and one mark."""

    name = "again"
    modules = ("pufferslice.releases.release",)
    line = "release --again --certificate certificate.json --ledger ledger --out again.json --json"

    def make_ready(self) -> None:
        write_scenario(self.ready, 300, 10)
        self.nursery.warm(CALIBRATE, self.ready)
        release = ReleaseRow.line.replace("release.json", "r.json").split()
        self.nursery.warm(release, self.ready)
        (self.ready / "r.json").unlink()
        (self.ready / "certificate.spent").unlink(missing_ok=True)
        (self.ready / "ledger.spent").unlink()

    def remember(self, folder: Path, ended: Ended) -> None:
        self.kept = Release.load(folder / "again.json")

    def look(self, folder: Path) -> None:
        if (folder / "again.json").exists():
            assert Release.load(folder / "again.json") == self.kept
            assert len(marks_in(folder)) == 1
        assert len(Ledger(folder / "ledger").entries()) == 1

    def resume(self, folder: Path) -> None:
        (folder / "again.json").unlink(missing_ok=True)
        self.run(folder)
        self.look(folder)
        assert Ledger(folder / "ledger").problems() == []


class Migrate(Command):
    """The old ledger is closed when the new one opens, and nothing in it is lost."""

    name = "migrate"
    modules = ("pufferslice.releases.earlier",)
    line = "ledger migrate old.ledger new.ledger --json"
    n_releases = 40

    def make_ready(self) -> None:
        self.certificates = [f"{k:064x}" for k in range(self.n_releases)]
        made_before(self.ready / "old.ledger", 3, dict.fromkeys(self.certificates, "published"))

    def remember(self, folder: Path, ended: Ended) -> None:
        assert json.loads(ended.stdout)["releases"] == self.n_releases

    def look(self, folder: Path) -> None:
        new = Ledger(folder / "new.ledger")
        if new.id is not None and not new.is_incoming:
            assert new.earlier() == self.certificates
            with contextlib.closing(sqlite3.connect(folder / "old.ledger")) as old:
                assert old.execute("SELECT count(*) FROM moved").fetchone() == (1,)

    def resume(self, folder: Path) -> None:
        self.run(folder)
        self.look(folder)
        assert not Ledger(folder / "new.ledger").is_incoming
        assert names(folder) == {"old.ledger", "new.ledger"}


class Reconcile(Command):
    """A restored ledger takes in all that its marks know, or nothing yet, and releases nothing."""

    name = "reconcile"
    modules = ("pufferslice.releases.marks",)
    line = "ledger reconcile a.ledger marks --json"
    n_releases = 20

    def make_ready(self) -> None:
        book = Ledger(self.ready / "a.ledger")
        book.make()
        with book.alone():
            pass  # the first event, which a ledger shares with its backups
        backup = (self.ready / "a.ledger").read_bytes()
        (self.ready / "marks").mkdir()
        # without a place, as every folder has a ledger of its own
        outside = Outside(place=None, folder=self.ready / "marks")
        for k in range(self.n_releases):
            entry = lived(book, f"{k:064x}", keys=(f"secret {k}",))
            grant = book.book().grants[entry.certificate]
            outside.leave("a", book.lineage, grant, entry, text_of(entry.certificate))
        (self.ready / "a.ledger").write_bytes(backup)

    def remember(self, folder: Path, ended: Ended) -> None:
        assert json.loads(ended.stdout)["found"] == self.n_releases

    def look(self, folder: Path) -> None:
        book = Ledger(folder / "a.ledger").book()
        missing = [mark for mark in marks_in(folder / "marks") if book.forgets(mark, None)]
        assert len(missing) in (0, self.n_releases)

    def resume(self, folder: Path) -> None:
        self.run(folder)
        assert len(Ledger(folder / "a.ledger").entries()) == self.n_releases
        assert Ledger(folder / "a.ledger").problems() == []


class Report(Command):
    name = "report"
    modules = ("pufferslice.config", "pufferslice.report.page")
    line = "report certificate.json --out report.html"

    def make_ready(self) -> None:
        write_scenario(self.ready, 300, 10)
        self.nursery.warm(CALIBRATE, self.ready)

    def remember(self, folder: Path, ended: Ended) -> None:
        self.page = (folder / "report.html").read_bytes()
        assert self.page.rstrip().endswith(b"</html>")

    def look(self, folder: Path) -> None:
        if (folder / "report.html").exists():
            assert (folder / "report.html").read_bytes().rstrip().endswith(b"</html>")
        whole_certificate(folder / "certificate.json")

    def resume(self, folder: Path) -> None:
        self.run(folder)
        assert (folder / "report.html").read_bytes().rstrip().endswith(b"</html>")


COMMANDS: dict[str, type[Command]] = {
    command.name: command
    for command in (
        Calibrate,
        Train,
        Audit,
        ReleaseRow,
        Again,
        Report,
        CopyLedger,
        Migrate,
        Reconcile,
    )
}
