# SPDX-License-Identifier: Apache-2.0
"""A ledger moves to a new one: never two that are open, whenever the copy is killed."""

import contextlib
import json
import multiprocessing
import os
import secrets
import signal

import pytest

from pufferslice.cli.app import run
from pufferslice.errors import AlreadyReleasedError, LedgerError
from pufferslice.releases import Ledger, release_again
from pufferslice.releases.postgres import Database
from pufferslice.releases.storage import SqliteFile

SCENARIO = "scenario"
ONE, TWO, THREE = "1" * 64, "2" * 64, "3" * 64
STORES = (SqliteFile, Database)

DIRECTIONS = [
    ("file", "file"),
    ("file", "database"),
    ("database", "file"),
    ("database", "database"),
]


@pytest.fixture
def place(tmp_path, request):
    """Makes places for new ledgers, by kind."""

    def new(kind):
        name = f"c{secrets.token_hex(8)}"
        if kind == "file":
            return str(tmp_path / name)
        return request.getfixturevalue("server").address(name)

    return new


@pytest.fixture(params=DIRECTIONS, ids="-".join)
def both(request, place):
    """A ledger with two releases, and a place for a new one."""
    source, target = (place(kind) for kind in request.param)
    filled(Ledger(source))
    return source, target


def filled(ledger):
    ledger.intend(SCENARIO, ONE, [])
    ledger.record_drawn(ONE, json.dumps({"certificate": ONE}))
    ledger.record_published(ONE)
    ledger.intend(SCENARIO, TWO, [ONE], ("key", 0.25, 1.0))


def is_open(location):
    """Whether a release is accepted; one that is recorded already tells without a change."""
    ledger = Ledger(location)
    if ledger.id is None:
        return False
    try:
        ledger.intend(SCENARIO, ONE, [])
    except AlreadyReleasedError:
        return True
    except LedgerError as error:
        assert "incoming" in str(error) or "closed" in str(error)  # noqa: PT017
        return False
    return True


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_child(work):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_around(method, *, number, before):
    """Kill at the call of `make` or `change` with this number, of both ledgers together."""
    calls = iter(range(100))
    for store in STORES:
        work = getattr(store, method)

        def wrapped(self, *args, work=work, **said):
            mine = next(calls)
            if before and mine == number:
                die()
            result = work(self, *args, **said)
            if not before and mine == number:
                die()
            return result

        setattr(store, method, wrapped)


def killed_inside(name, *, after):
    work = getattr(Ledger, name)

    def wrapped(*args):
        if after:
            work(*args)
        die()

    setattr(Ledger, name, wrapped)


# The first change is that of the old ledger; inside it, the second fills the new one.
KILLS = {
    "before the new one is made": (killed_around, {"method": "make", "number": 0, "before": True}),
    "when it is made": (killed_around, {"method": "make", "number": 0, "before": False}),
    "before it is filled": (killed_around, {"method": "change", "number": 1, "before": True}),
    "inside the filling": (killed_inside, {"name": "_take_in", "after": True}),
    "when it is filled": (killed_around, {"method": "change", "number": 1, "before": False}),
    "before the mark is durable": (killed_inside, {"name": "_hand_over", "after": True}),
    "when the old one is marked": (
        killed_around,
        {"method": "change", "number": 0, "before": False},
    ),
    "before the new one opens": (killed_around, {"method": "change", "number": 2, "before": True}),
    "inside the opening": (killed_inside, {"name": "_check_moved_to", "after": True}),
    "when the new one is open": (killed_around, {"method": "change", "number": 2, "before": False}),
}
MARKED = list(KILLS)[6:]


@pytest.mark.soundness
@pytest.mark.parametrize("moment", KILLS)
def test_killed_between_any_two_steps_at_most_one_is_open(both, moment):
    source, target = both
    before = Ledger(source).entries()
    kill, said = KILLS[moment]

    def copy():
        kill(**said)
        run(["ledger", "copy", source, target])

    assert in_a_child(copy) == -signal.SIGKILL
    assert is_open(source) == (moment not in MARKED)
    assert is_open(target) == (moment == "when the new one is open")
    assert Ledger(source).entries() == before
    if moment not in MARKED:
        # whoever goes on with the old one loses nothing
        Ledger(source).intend(SCENARIO, THREE, [ONE, TWO])
        Ledger(source).record_drawn(TWO, json.dumps({"certificate": TWO}))
    assert run(["ledger", "copy", source, target]) == 0
    assert (is_open(source), is_open(target)) == (False, True)
    new, old = Ledger(target), Ledger(source)
    assert new.entries() == old.entries()
    assert len(new.entries()) == (3 if moment not in MARKED else 2)
    assert new.problems() == old.problems() == []
    assert old.moved_to == new.name
    with pytest.raises(AlreadyReleasedError, match=r"would cost 1\.05"):
        new.intend(SCENARIO, "4" * 64, new.releases(), ("key", 0.8, 1.0))
    assert run(["ledger", "copy", source, target]) == 0


def test_kills_cover_all_changes(both):
    """Else a kill is of a step that is not there any more."""
    source, target = both
    kill, said = killed_around, {"method": "change", "number": 3, "before": True}
    assert in_a_child(lambda: (kill(**said), Ledger(source).copy_to(Ledger(target)))) == 0


@pytest.fixture
def incoming(both):
    """The old one is open, the new one filled."""
    source, target = both
    kill, said = KILLS["when it is filled"]
    copy = lambda: (kill(**said), Ledger(source).copy_to(Ledger(target)))  # noqa: E731
    assert in_a_child(copy) == -signal.SIGKILL
    return source, target


def test_an_incoming_ledger_can_be_read_and_nothing_else(incoming, place, tmp_path, capsys):
    source, target = incoming
    new = Ledger(target)
    assert new.is_incoming
    assert new.entries() == Ledger(source).entries()
    for call in (
        lambda: new.intend(SCENARIO, THREE, [ONE, TWO]),
        lambda: new.record_drawn(TWO, "{}"),
        lambda: new.record_published(ONE),
        lambda: new.copy_to(Ledger(place("file"))),
        lambda: release_again(None, ledger=new, out=tmp_path / "r.json"),
    ):
        with pytest.raises(LedgerError, match="is incoming"):
            call()
    assert run(["ledger", "check", target]) == 1
    capsys.readouterr()
    assert run(["ledger", "list", target]) == 0
    assert "Not open" in capsys.readouterr().out
    assert run(["ledger", "list", target, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["id"], told["incoming"]) == (new.id, True)


def test_an_incoming_ledger_opens_for_its_own_source_only(incoming, place):
    source, target = incoming
    other = Ledger(place("file"))
    filled(other)
    with pytest.raises(LedgerError, match="incoming from another"):
        other.copy_to(Ledger(target))
    assert other.moved_to is None
    # the old one is open still, and may move elsewhere; then the first never opens
    elsewhere = Ledger(place("file"))
    assert Ledger(source).copy_to(elsewhere) == 2
    with pytest.raises(LedgerError, match="before; use that one"):
        Ledger(source).copy_to(Ledger(target))
    assert [is_open(x) for x in (source, target)] == [False, False]
    assert elsewhere.releases() == [ONE, TWO]


def test_a_new_ledger_without_releases_can_be_filled(both):
    source, target = both
    new = Ledger(target)
    new._storage.make()
    new_id = new.id
    assert Ledger(source).copy_to(new) == 2
    assert (new.id, new.is_incoming) == (new_id, False)


@pytest.mark.soundness
def test_an_older_mark_does_not_open_a_ledger_for_another_source(tmp_path):
    """A ledger without releases moved here; then another one begins to move to the same place."""
    empty, old, new = (Ledger(tmp_path / name) for name in ("empty", "old", "new"))
    empty._storage.make()
    empty.copy_to(new)
    filled(old)
    kill, said = KILLS["when it is filled"]
    assert in_a_child(lambda: (kill(**said), old.copy_to(new))) == -signal.SIGKILL
    with pytest.raises(LedgerError, match="before; use that one"):
        empty.copy_to(new)
    assert (is_open(old.path), is_open(new.path)) == (True, False)
    assert old.copy_to(new) == 2


def test_a_damaged_ledger_is_not_copied(tmp_path):
    old, new = Ledger(tmp_path / "old"), Ledger(tmp_path / "new")
    old.intend(SCENARIO, ONE, [])
    old.path.write_bytes(old.path.read_bytes().replace(b"1intended", b"1intendex"))
    with pytest.raises(LedgerError, match="is damaged"):
        old.copy_to(new)
    assert new.is_incoming


@pytest.mark.soundness
def test_a_ledger_with_releases_is_not_filled(both):
    source, target = both
    Ledger(target).intend("other", THREE, [])
    with pytest.raises(LedgerError, match="has entries"):
        Ledger(source).copy_to(Ledger(target))
    assert is_open(source)
    assert Ledger(target).releases() == [THREE]


def test_a_ledger_that_went_away_after_the_copy_is_not_made_anew(tmp_path):
    old, new = Ledger(tmp_path / "old"), Ledger(tmp_path / "new")
    filled(old)
    old.copy_to(new)
    (tmp_path / "new").unlink()
    with pytest.raises(LedgerError, match="if it is gone, restore"):
        old.copy_to(new)
    assert not (tmp_path / "new").exists()
    new.intend(SCENARIO, ONE, [])
    with pytest.raises(LedgerError, match="if it is gone, restore"):
        old.copy_to(new)


def test_no_ledger_is_copied_to_itself(tmp_path, both):
    source, _ = both
    with pytest.raises(LedgerError, match="to itself"):
        Ledger(source).copy_to(Ledger(source))
    assert is_open(source)
    if "://" not in source:
        (tmp_path / "link").symlink_to(source)
        with pytest.raises(LedgerError, match="to itself"):
            Ledger(source).copy_to(Ledger(tmp_path / "link"))


@pytest.mark.soundness
def test_a_copy_that_lost_something_is_noticed_before_the_mark(both, monkeypatch):
    source, target = both
    take_in = Ledger._take_in
    monkeypatch.setattr(Ledger, "_take_in", lambda *args: take_in(*args[:-1], args[-1][:1]))
    with pytest.raises(LedgerError, match="does not hold what"):
        Ledger(source).copy_to(Ledger(target))
    monkeypatch.undo()
    assert (is_open(source), is_open(target)) == (True, False)
    assert Ledger(source).copy_to(Ledger(target)) == 2


def _release_while_open(source, number, results):
    """Intend one after another until the ledger is closed."""
    intended = []
    with contextlib.suppress(LedgerError):
        for k in range(400):
            certificate = f"{number:032x}{k:032x}"
            Ledger(source).intend(SCENARIO, certificate, [], ("key", 1e-4, 1.0))
            intended.append(certificate)
    results.put(intended)


def _copy(source, target, results):
    try:
        Ledger(source).copy_to(Ledger(target))
        results.put("copied")
    except LedgerError as error:
        results.put(str(error))


@pytest.mark.soundness
@pytest.mark.parametrize("direction", DIRECTIONS, ids="-".join)
def test_releases_race_against_copies(place, direction):
    """What the old one accepted is in the new one."""
    source, target = (place(kind) for kind in direction)
    Ledger(source).intend(SCENARIO, ONE, [], ("key", 1e-4, 1.0))
    context = multiprocessing.get_context("fork")
    releases, copies = context.Queue(), context.Queue()
    processes = [
        context.Process(target=_release_while_open, args=(source, k, releases)) for k in range(3)
    ]
    for process in processes:
        process.start()
    while len(Ledger(source).releases()) < 10:
        pass
    copying = [context.Process(target=_copy, args=(source, target, copies)) for _ in range(2)]
    for process in copying:
        process.start()
    told = [copies.get(timeout=100) for _ in copying]
    accepted = {ONE, *(name for _ in processes for name in releases.get(timeout=100))}
    for process in processes + copying:
        process.join()
    assert told == ["copied"] * 2
    assert Ledger(source).copy_to(Ledger(target)) == len(accepted)
    assert (is_open(source), is_open(target)) == (False, True)
    assert set(Ledger(target).releases()) == accepted
