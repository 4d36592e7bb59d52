# SPDX-License-Identifier: Apache-2.0
r"""Couplings of streamed rows: spilled to disk in strata of equal mass, coupled two at a time.

If $P = \frac1K \sum_k P_k$ and $Q = \frac1K \sum_k Q_k$, couplings of $P_k$ with $Q_k$ put together
are a coupling of P and Q. The rows of a secret are put in a fixed pseudo-random order and cut at
equal mass; a row on a border is split. All masses are integers.
"""

import contextlib
import hashlib
import itertools
import math
import os
import shutil
import stat
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers
from pufferslice._core.checks import check_count
from pufferslice._core.files import (
    CONFIDENTIAL,
    ROOM,
    canonical_json,
    digest,
    make_folder,
    open_regular,
    parsed_json,
    pretty_json,
    read_bytes,
    write_whole,
)
from pufferslice._core.kernels import kernel
from pufferslice._core.threads import Progress, in_threads, n_cores, silent
from pufferslice.errors import ArgumentError, ScenarioError, StorageError
from pufferslice.scenario.distributions import LARGEST_TOTAL, FiniteDistribution
from pufferslice.scenario.histograms import BinGrid, Histograms
from pufferslice.sensitivity.binned import CountedRows, Tally, grouped
from pufferslice.sensitivity.couplings import Recipe, coupling_tables
from pufferslice.sensitivity.kernels import thinned
from pufferslice.sensitivity.tables import (
    MOST_ENTRIES,
    DistributionPair,
    MatchingTables,
    Row,
)
from pufferslice.sensitivity.whitening import Shape

try:
    import fcntl
except ImportError:  # Windows, where folders of killed processes are not looked for
    fcntl = None  # type: ignore[assignment]

FORMAT: Final = "pufferslice-strata"
VERSION: Final = 1

MOST_ROWS: Final = 200_000
"""Rows of a stratum, at most, and one more where rows are split."""

MOST_BYTES: Final = 2**25
"""Bytes of a stratum, at most, unless a row alone takes more."""

ORDER_KEY: Final = 0x9E3779B97F4A7C15
"""Of the order in which rows are cut into strata; any key gives a sound coupling."""

_PREFIX: Final = "pufferslice-strata-"
_MANIFEST: Final = "manifest.json"
_ROWS: Final = "rows.f64"
_LOCK: Final = "lock"
_MOST_AT_ONCE: Final = 4
"""Pairs of strata that are coupled at once; each is in memory."""
_LARGEST_TOTAL: Final = 2**62
_QUANTA: Final = 2**52
"""Units of mass where exact ones would not fit; masses then are moved to larger distances."""
_FINEST: Final = 8192
"""Entries of a row of the tables."""

Announce = Callable[[int], None]
"""Called with the bytes that a spill takes on disk, before it begins."""


def unannounced(_n_bytes: int) -> None:
    """The announcement of a library call: none."""


def strata_count(n_rows: int, dim: int, most_rows: int = MOST_ROWS) -> int:
    """The number of strata for these rows: the least power of two that makes them small enough.

    Powers of two, so that the strata of a large secret can be coupled with those of a small one.

    >>> strata_count(300_000, 3), strata_count(200_000, 3), strata_count(2, 10_000_000)
    (2, 1, 2)
    """
    most = max(1, min(most_rows, MOST_BYTES // (8 * dim)))
    n_strata = 1
    while n_strata * most < n_rows and 2 * n_strata <= n_rows:
        n_strata *= 2
    return n_strata


@final
@attrs.frozen(kw_only=True)
class Cut:
    """How the rows of one secret are cut into strata of equal mass.

    In units of 1 / (n_rows * n_strata), the row at place p has the mass from p * n_strata to
    (p + 1) * n_strata, and stratum k that from k * n_rows to (k + 1) * n_rows.

    >>> [Cut(n_rows=5, n_strata=2).masses(k).tolist() for k in range(2)]
    [[2, 2, 1], [1, 2, 2]]
    """

    n_rows: int
    n_strata: int

    def __attrs_post_init__(self) -> None:
        check_count(1, n_rows=self.n_rows, n_strata=self.n_strata)
        if self.n_strata > self.n_rows:
            raise ArgumentError(
                f"n_strata must be at most n_rows = {self.n_rows}, got {self.n_strata}"
            )

    def first(self, stratum: int) -> int:
        """The first place with mass in a stratum."""
        return stratum * self.n_rows // self.n_strata

    def size(self, stratum: int) -> int:
        """The number of rows with mass in a stratum."""
        return -(-(stratum + 1) * self.n_rows // self.n_strata) - self.first(stratum)

    def masses(self, stratum: int, border: Sequence[int] = (0, -1)) -> Integers:
        """Mass of each row of a stratum, divided by what all rows of the secret have in common.

        `border`: where its rows at the first and the last place are; the others have equal masses.
        The sum is the same in every stratum.
        """
        n, k, first = self.n_rows, self.n_strata, self.first(stratum)
        masses = np.full(self.size(stratum), k, dtype=np.int64)
        masses[border[0]] -= stratum * n - first * k
        masses[border[1]] -= (first + len(masses)) * k - (stratum + 1) * n
        return masses // math.gcd(n, k)

    def split(self, first: int, n_rows: int) -> tuple[Integers, Integers, Integers]:
        """For rows first, first + 1, ...: which row from 0, its stratum, its place.

        Rows come in their order, so that the size of batches does not matter; one on a border comes
        twice.
        """
        if first + n_rows > self.n_rows:
            raise rows_changed()
        places = ordered_places(first, n_rows, self.n_rows, ORDER_KEY)
        strata = places * self.n_strata // self.n_rows
        is_split = (places + 1) * self.n_strata > (strata + 1) * self.n_rows
        times = 1 + is_split
        source = np.repeat(np.arange(n_rows), times)
        strata = np.repeat(strata, times)
        strata[np.cumsum(times)[is_split] - 1] += 1
        return source, strata, places[source]


@kernel
def ordered_places(first: int, n_places: int, n_rows: int, key: int) -> Integers:
    """Places of rows first, first + 1, ... in a fixed pseudo-random order of n_rows rows.

    A bijection: steps that can be undone, on the least number of bits, until the result is in.
    """
    n_bits = 1
    while (1 << n_bits) < n_rows:
        n_bits += 1
    mask = np.uint64((1 << n_bits) - 1)
    shift = np.uint64((n_bits + 1) // 2)
    secret = np.uint64(key)
    result = np.empty(n_places, dtype=np.int64)
    for i in range(n_places):
        x = np.uint64(first + i)
        while True:
            for turn in range(4):
                x = (x + (secret >> np.uint64(7 * turn))) & mask
                x = (x * np.uint64(0xBF58476D1CE4E5B9)) & mask
                x ^= x >> shift
            if x < np.uint64(n_rows):
                break
        result[i] = np.int64(x)
    return result


class Stratum(NamedTuple):
    """The rows of one stratum and their integer masses."""

    rows: Floats
    masses: Integers


PairWork = Callable[[Stratum, Stratum], tuple[MatchingTables, float]]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class KeptStrata(ABC):
    """The strata of one secret, whose rows are kept somewhere else."""

    cut: Cut
    dim: int
    digests: tuple[str, ...]
    """SHA-256 of the rows of each stratum, as they would be on disk."""
    borders: Integers
    """Where, in each stratum, the rows at its first and its last place are; (n_strata, 2)."""

    @property
    def n_rows(self) -> int:
        """Rows of the secret."""
        return self.cut.n_rows

    @property
    def n_strata(self) -> int:
        """Number of strata."""
        return self.cut.n_strata

    @property
    def digest(self) -> str:
        """SHA-256 over the rows and how they are cut, wherever they are."""
        facts = [FORMAT, VERSION, self.n_rows, self.n_strata, self.dim, self.borders.tolist()]
        return digest(canonical_json([*facts, list(self.digests)]))

    @abstractmethod
    def rows(self, stratum: int) -> Floats:
        """The rows of one stratum, clipped and scaled, shape (n, dim)."""

    def masses(self, stratum: int) -> Integers:
        """The integer mass of each of these rows; their sum is the same in every stratum."""
        return self.cut.masses(stratum, self.borders[stratum].tolist())

    def each_pair(
        self, other: "KeptStrata", places: Sequence[tuple[int, int]], work: PairWork
    ) -> Iterator[tuple[MatchingTables, float]]:
        """What `work` gives for these strata of this secret and of another, in any order."""

        def both(place: tuple[int, int]) -> tuple[MatchingTables, float]:
            read = (
                Stratum(s.rows(k), s.masses(k)) for s, k in zip((self, other), place, strict=True)
            )
            return work(*read)

        at_once = min(n_cores(), _MOST_AT_ONCE)
        for start in range(0, len(places), at_once):
            yield from in_threads(both, places[start : start + at_once])

    def __repr__(self) -> str:
        facts = f"n_rows={self.n_rows}, n_strata={self.n_strata}, dim={self.dim}"
        return f"{type(self).__name__}({facts})"


@final
@attrs.frozen(kw_only=True, eq=False, repr=False)
class SpilledStrata(KeptStrata):
    """The strata of one secret on disk; every one is checked by its digest when it is read."""

    offset: int
    """Where the rows of this secret begin in the file, in rows."""
    folder: "SpillFolder"
    """Keeps the file for as long as the strata are used."""

    def rows(self, stratum: int) -> Floats:
        """The rows of one stratum, clipped and scaled, shape (n, dim)."""
        sizes = [self.cut.size(k) for k in range(stratum + 1)]
        start = 8 * self.dim * (self.offset + sum(sizes[:-1]))
        content = self.folder.read(start, 8 * self.dim * sizes[-1])
        if hashlib.sha256(content).hexdigest() != self.digests[stratum]:
            raise _damaged(self.folder.path)
        return np.frombuffer(content, dtype="<f8").reshape(-1, self.dim).astype(np.float64)


class SpillFolder:
    """A folder with one file of rows; a temporary one is removed with the last user of it.

    It contains rows of the data, so only its owner may read it. A process that is killed leaves
    its temporary folder; the next spill of the same user removes it.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        if path is None:
            _remove_abandoned(Path(tempfile.gettempdir()))
            try:
                self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            except OSError as error:
                raise StorageError(
                    error.errno,
                    f"cannot make a temporary folder: {error.strerror or error}; set TMPDIR",
                ) from error
        else:
            self.path = Path(path)
            make_folder(self.path, 0o700)
        lock = _locked(self.path / _LOCK)
        if lock is None:
            raise StorageError(
                f"the folder {str(self.path)!r} is used by another process; name another one"
            )
        self._finalizer = weakref.finalize(
            self, _release, self.path, lock, os.getpid(), remove=path is None
        )

    @property
    def rows_file(self) -> Path:
        """All rows, secret by secret, stratum by stratum."""
        return self.path / _ROWS

    @property
    def manifest(self) -> Path:
        """Written last: what the file has to contain."""
        return self.path / _MANIFEST

    def read(self, start: int, n_bytes: int) -> bytes:
        """Bytes of the file of rows."""
        try:
            with open_regular(self.rows_file) as file:
                file.seek(start)
                return file.read(n_bytes)
        except StorageError as error:
            raise StorageError(
                f"the strata in {str(self.path)!r} are gone or cannot be read: spilled rows are "
                "removed with their folder. Spill them again"
            ) from error

    def empty(self) -> None:
        """Remove the files of an earlier spill, and no others."""
        for file in (self.manifest, self.rows_file):
            file.unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process use the folder; a temporary one is removed."""
        self._finalizer()


def _locked(path: Path) -> IO[bytes] | None:
    """The file, locked for this process until it is closed; None if another one has it."""
    try:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        file = os.fdopen(os.open(path, flags, CONFIDENTIAL), "r+b")
    except OSError as error:
        raise StorageError(
            error.errno,
            f"cannot write {str(path)!r}: {error.strerror or error}; name another folder",
        ) from error
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
    return file


def _release(path: Path, lock: IO[bytes], process: int, *, remove: bool) -> None:
    if os.getpid() != process:
        return  # a forked child does not own the folder
    if remove:
        shutil.rmtree(path, ignore_errors=True)
    lock.close()


def _remove_abandoned(parent: Path) -> None:
    """Remove temporary folders of this user whose process is gone: nobody holds their lock."""
    if fcntl is not None:
        for folder in parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                about = folder.lstat()
                if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
                    continue
                with (folder / _LOCK).open("r+b") as lock:  # missing while it is made
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)


def _damaged(path: Path) -> StorageError:
    return StorageError(
        f"the strata in {str(path)!r} were truncated or changed after they were spilled; nothing "
        "is computed from them. Spill the rows again"
    )


Cuts = Mapping[str, tuple[Cut, int]]
"""How the rows of each secret are cut, and where in the file they begin, in rows."""


def cuts_of(histograms: Histograms, most_rows: int) -> Cuts:
    """The strata of every secret; more rows than a coupling can count are refused."""
    check_count(1, most_rows=most_rows)
    result, offset = {}, 0
    for secret, n in histograms.n_rows.items():
        if n >= LARGEST_TOTAL:
            raise ScenarioError(
                f"a secret has {n:,} rows, and couplings count fewer than {LARGEST_TOTAL:,}; leave "
                "the strata out, and the range bounds the whole output"
            )
        cut = Cut(n_rows=n, n_strata=strata_count(n, histograms.grid.dim, most_rows))
        result[secret] = cut, offset
        offset += sum(cut.size(k) for k in range(cut.n_strata))
    return result


def few_directions(histograms: Histograms) -> BinGrid:
    """The grid along which rows that were kept are counted again: enough to see every column."""
    grid = histograms.grid
    return attrs.evolve(grid, directions=grid.directions[: max(2, grid.dim)])


def check_counted(tally: Tally, histograms: Histograms) -> None:
    """Refuse rows that do not fall into the bins that the scan has counted."""
    again = tally.histograms()
    if again.secrets != histograms.secrets or not np.array_equal(
        again.counts, histograms.counts[:, : again.counts.shape[1]]
    ):
        raise rows_changed()


def spilled(
    ready: Iterable[tuple[CountedRows, int]],
    histograms: Histograms,
    folder: SpillFolder,
    identity: Callable[[], Mapping[str, str]],
    *,
    most_rows: int,
    announce: Announce,
    progress: Callable[[int], None],
) -> dict[str, SpilledStrata]:
    """Rows that a scan has counted, on disk in the strata of their secrets.

    Strata that an earlier process finished in this folder are taken up instead. `ready` gives rows
    and what `progress` gets after them. An error removes what was written. The `identity` is asked
    for again at the end: nothing is taken up later of data that changed meanwhile.
    """
    with contextlib.ExitStack() as on_error:
        on_error.callback(folder.close)
        cuts, dim = cuts_of(histograms, most_rows), histograms.grid.dim
        before = _spilled_before(folder, identity, histograms, cuts)
        if before is not None:
            on_error.pop_all()
            return before
        parts = {secret: _Part(cut, dim, offset) for secret, (cut, offset) in cuts.items()}
        n_bytes = 8 * dim * sum(part.n_rows for part in parts.values())
        announce(n_bytes)
        free = shutil.disk_usage(folder.path).free
        if free < n_bytes + ROOM:
            raise StorageError(
                f"the strata take {n_bytes / 2**30:.3g} GiB in {str(folder.path)!r}, where "
                f"{free / 2**30:.3g} GiB are free. Name a folder with more room, or set TMPDIR"
            )
        folder.empty()
        on_error.callback(folder.empty)
        tally = Tally(few_directions(histograms), 1)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(folder.rows_file, flags, CONFIDENTIAL)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for rows, done in ready:
                if not parts.keys() >= set(rows.secrets):
                    raise rows_changed()
                tally.add_rows(rows)
                for secret, outputs in rows.by_secret():
                    for start, content in parts[secret].placed(outputs):
                        _write(file, start, content, folder.rows_file)
                progress(done)
            check_counted(tally, histograms)
            os.fsync(file.fileno())
        secrets = {secret: part.facts() for secret, part in parts.items()}
        facts = {
            "format": FORMAT,
            "version": VERSION,
            "identity": dict(identity()),
            "secrets": secrets,
        }
        manifest = {**facts, "digest": digest(canonical_json(facts))}
        write_whole(folder.manifest, pretty_json(manifest), CONFIDENTIAL)
        on_error.pop_all()
        return _strata_of(secrets, cuts, dim, folder)


def _write(file: FileIO, start: int, content: memoryview, path: Path) -> None:
    try:
        file.seek(start)
        while len(content):
            content = content[file.write(content) :]
    except OSError as error:
        raise StorageError(
            error.errno,
            f"cannot write {str(path)!r}: {error.strerror or error}; nothing was kept",
        ) from error


def rows_changed() -> ScenarioError:
    """The refusal of rows that differ from those of the scan."""
    return ScenarioError(
        "the rows are not those that were counted: the data changed after the scan, or other data "
        "were given. Scan them again"
    )


class _Part:
    """The strata of one secret that are being written."""

    def __init__(self, cut: Cut, dim: int, offset: int) -> None:
        self._cut, self._dim, self._offset = cut, dim, offset
        self._n_seen = 0
        sizes = [cut.size(k) for k in range(cut.n_strata)]
        self.n_rows = sum(sizes)
        self._starts = offset + np.concatenate([[0], np.cumsum(sizes)])
        self._filled = np.zeros(cut.n_strata, dtype=np.int64)
        self._hashes = [hashlib.sha256() for _ in sizes]
        self._borders = np.zeros((cut.n_strata, 2), dtype=np.int64)

    def placed(self, rows: Floats) -> Iterator[tuple[int, memoryview]]:
        """Where in the file the next rows go: bytes, and where they begin."""
        n_strata = self._cut.n_strata
        source, strata, places = self._cut.split(self._n_seen, len(rows))
        self._n_seen += len(rows)
        order = grouped(strata, n_strata)
        ends = np.cumsum(np.bincount(strata, minlength=n_strata)).tolist()
        begin = 0
        for k, end in enumerate(ends):
            if end == begin:
                continue
            chosen = order[begin:end]
            for side, place in enumerate((0, self._cut.size(k) - 1)):
                where = np.flatnonzero(places[chosen] == self._cut.first(k) + place)
                if len(where):
                    self._borders[k, side] = self._filled[k] + where[0]
            content = memoryview(rows[source[chosen]].astype("<f8").tobytes())
            self._hashes[k].update(content)
            yield 8 * self._dim * int(self._starts[k] + self._filled[k]), content
            self._filled[k] += end - begin
            begin = end

    def facts(self) -> dict[str, Any]:
        """What is not known without the rows."""
        digests = [state.hexdigest() for state in self._hashes]
        return {"digests": digests, "borders": self._borders.tolist()}


def _strata_of(
    facts: Mapping[str, Any], cuts: Cuts, dim: int, folder: SpillFolder
) -> dict[str, SpilledStrata]:
    return {
        secret: SpilledStrata(
            cut=cut,
            dim=dim,
            offset=offset,
            digests=tuple(facts[secret]["digests"]),
            borders=np.array(facts[secret]["borders"], dtype=np.int64),
            folder=folder,
        )
        for secret, (cut, offset) in cuts.items()
    }


def _spilled_before(
    folder: SpillFolder,
    identity: Callable[[], Mapping[str, str]],
    histograms: Histograms,
    cuts: Cuts,
) -> dict[str, SpilledStrata] | None:
    """The strata that an earlier process finished in this folder; None if it did not finish.

    Strata of other data, and files that were changed, are refused.
    """
    if not folder.manifest.exists():
        return None
    try:
        facts = parsed_json(read_bytes(folder.manifest, "archive"))
        stated = facts.pop("digest")
        if digest(canonical_json(facts)) != stated or facts["format"] != FORMAT:
            raise _damaged(folder.path)
        if facts["version"] != VERSION or facts["identity"] != dict(identity()):
            raise StorageError(
                f"the strata in {str(folder.path)!r} are of other data or another scan. Name "
                "another folder, or remove it"
            )
        strata = _strata_of(facts["secrets"], cuts, histograms.grid.dim, folder)
        tally = Tally(few_directions(histograms), 1)
        for secret, part in strata.items():
            for rows in _whole_rows(part):
                tally.add(rows, [secret], np.zeros(len(rows), dtype=np.int64))
        check_counted(tally, histograms)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise _damaged(folder.path) from None
    return strata


def _whole_rows(strata: SpilledStrata) -> Iterator[Floats]:
    """All rows of a secret, a stratum at a time, and each once: also those on borders."""
    border = None
    for k in range(strata.n_strata):
        rows, (first, last) = strata.rows(k), strata.borders[k].tolist()
        size = strata.cut.size(k)
        if not (0 <= first < size and 0 <= last < size and (first != last or size == 1)):
            raise _damaged(strata.folder.path)
        if border is not None:
            if not np.array_equal(border, rows[first]):
                raise _damaged(strata.folder.path)
            rows_left = np.delete(rows, first, axis=0)
        else:
            rows_left = rows
        is_split = (k + 1) * strata.n_rows % strata.n_strata > 0
        border = rows[last] if is_split else None
        yield rows_left


def strata_tables(
    strata: Sequence[KeptStrata],
    pairs: Sequence[DistributionPair],
    recipe: Recipe,
    *,
    shape: Shape | None,
    center: Floats,
    progress: Progress = silent,
) -> MatchingTables:
    """As `coupling_tables`, stratum by stratum: a few pairs of strata are in memory at a time.

    Of two secrets with unlike numbers of strata, each stratum of the smaller one is coupled with
    several of the larger one.
    Guarantee: every slice of the result is a coupling with exact marginals. Where the common unit
    of mass would not fit 64 bits, mass is moved to larger distances only.
    """
    n_strata = [max(strata[a].n_strata, strata[b].n_strata) for a, b in pairs]
    total, counter = sum(n_strata), itertools.count(1)
    work = partial(coupled_strata, recipe=recipe, shape=shape, center=center, n_instances=total)
    by_pair, totals = [], []
    for (a, b), n in zip(pairs, n_strata, strict=True):
        first, second = strata[a], strata[b]
        places = [(k * first.n_strata // n, k * second.n_strata // n) for k in range(n)]
        tables = first.each_pair(second, places, work)
        rows, sum_of_row = _added_up(tables, n, lambda: progress(next(counter), total))
        by_pair.append(rows)
        totals.append(sum_of_row)
    by_slot = [row for slot in zip(*by_pair, strict=True) for row in slot]
    # Neither bins nor strata show that two distributions are equal.
    return MatchingTables.of_rows(by_slot, totals).coarsened(MOST_ENTRIES)


def coupled_strata(
    first: Stratum,
    second: Stratum,
    *,
    recipe: Recipe,
    shape: Shape | None,
    center: Floats,
    n_instances: int,
) -> tuple[MatchingTables, float]:
    """Tables of one pair of strata, in the coordinates that a shape whitens; and their error.

    It is that of a sum of squares in floats, which grows with the outputs.
    """
    pair = [
        FiniteDistribution(
            outputs=rows if shape is None else shape.whitened(rows, center), counts=masses
        )
        for rows, masses in (first, second)
    ]
    largest = max(float(np.abs(distribution.outputs).max()) for distribution in pair)
    dim = pair[0].dim
    extra = 4 * (dim + 2) * math.sqrt(dim) * UNIT_ROUNDOFF * largest
    tables = coupling_tables(pair, [DistributionPair(0, 1)], recipe, n_instances=n_instances)
    return tables, extra


def _added_up(
    parts: Iterable[tuple[MatchingTables, float]], n_strata: int, report: Callable[[], None]
) -> tuple[list[Row], int]:
    """The tables of all strata of a pair as one row for each slot, and the sum of its masses.

    Each part comes with what its distances are too short by at most. Masses are added as exact
    integers of any size.
    """
    slots: list[tuple[Floats, npt.NDArray[Any]]] = []
    unit, fits = 0, True
    for tables, extra in parts:
        # The same for all strata of a pair, which have equal masses.
        unit = int(tables.totals[0])
        fits = unit * n_strata <= _LARGEST_TOTAL
        new_gaps = np.nextafter(tables.gaps + extra, np.inf)
        new_masses = tables.counts if fits else tables.counts.astype(object)
        slots = slots or [(new_gaps[:0], new_masses[:0])] * tables.n_slices
        for slot, (start, stop) in enumerate(itertools.pairwise(tables.starts.tolist())):
            gaps = np.concatenate([slots[slot][0], new_gaps[start:stop]])
            masses = np.concatenate([slots[slot][1], new_masses[start:stop]])
            distinct, where = np.unique(gaps, return_inverse=True)
            sums = np.zeros(len(distinct), dtype=masses.dtype)
            np.add.at(sums, where, masses)
            slots[slot] = distinct, sums
        report()
    rows = []
    for ascending, masses in slots:
        gaps, counts = ascending[::-1].copy(), masses[::-1]
        if not fits:
            counts = rounded_masses(counts, unit * n_strata, _QUANTA)
        is_used = counts > 0
        row = gaps[is_used], np.ascontiguousarray(counts[is_used], dtype=np.int64)
        rows.append(row if len(row[0]) <= _FINEST else thinned(*row, _FINEST))
    return rows, unit * n_strata if fits else _QUANTA


def rounded_masses(masses: npt.NDArray[Any], total: int, quanta: int) -> Integers:
    """Masses of falling distances in other units: no distance has less mass at or above it.

    >>> rounded_masses(np.array([1, 1, 8], dtype=object), 10, 4).tolist()
    [1, 0, 3]
    """
    reached = [-(-int(mass) * quanta // total) for mass in np.cumsum(masses.astype(object))]
    return np.asarray(np.diff(np.array([0, *reached], dtype=np.int64)), dtype=np.int64)
