# SPDX-License-Identifier: Apache-2.0
"""A ledger moves to a new one: never two that are open, whenever the copy is killed."""

import contextlib
import json
import multiprocessing
import os
import secrets
import signal

import pytest
from tests.releases.grants import ONE, THREE, TWO, granted, lived, text_of

from pufferslice.cli.app import run
from pufferslice.errors import AlreadyReleasedError, LedgerError
from pufferslice.releases import Ledger, commands, release_again
from pufferslice.releases.commands import copying, finished
from pufferslice.releases.ledger import Transaction

DIRECTIONS = [
    ("file", "file"),
    ("file", "database"),
    ("database", "file"),
    ("database", "database"),
]
OTHER = ("other secret",)


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
    lived(ledger, ONE)
    return lived(ledger, TWO, "intended", keys=OTHER)


def copied(source, target):
    return finished(copying(Ledger(source), Ledger(target)))


def is_open(location):
    """Whether a release is accepted; one that is recorded already tells without a change."""
    ledger = Ledger(location)
    if ledger.id is None:
        return False
    try:
        ledger.intend(granted(ONE))
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


def killed_after(step):
    """A copy that is killed when a step was taken."""

    def copy(source, target):
        for taken in copying(Ledger(source), Ledger(target)):
            if taken.name == step:
                die()

    return copy


def killed_inside(owner, name, kind=None):
    """A copy that is killed when a function has done its work, inside of a transaction."""

    def copy(source, target):
        work = getattr(owner, name)

        def wrapped(*args, **said):
            work(*args, **said)
            if kind is None or args[1] == kind:
                die()

        setattr(owner, name, wrapped)
        copied(source, target)

    return copy


KILLS = {
    "before the new one has its name": killed_inside(Ledger, "identity"),
    "when it is made": killed_after("incoming"),
    "inside the filling": killed_inside(commands, "_fill"),
    "when it is filled": killed_after("filled"),
    "before the mark is durable": killed_inside(Transaction, "append", "moved"),
    "when the old one is marked": killed_after("moved"),
    "inside the opening": killed_inside(Transaction, "append", "arrived"),
    "when the new one is open": killed_after("arrived"),
}
MARKED = list(KILLS)[5:]


@pytest.mark.soundness
@pytest.mark.parametrize("moment", KILLS)
def test_killed_between_any_two_steps_at_most_one_is_open(both, moment):
    source, target = both
    before = Ledger(source).entries()
    assert in_a_child(lambda: KILLS[moment](source, target)) == -signal.SIGKILL
    assert is_open(source) == (moment not in MARKED)
    assert is_open(target) == (moment == "when the new one is open")
    assert Ledger(source).entries() == before
    if moment not in MARKED:
        # whoever goes on with the old one loses nothing
        lived(Ledger(source), THREE, "intended", keys=("third",))
        Ledger(source).record_drawn(before[1], text_of(TWO))
    assert run(["ledger", "copy", source, target]) == 0
    assert (is_open(source), is_open(target)) == (False, True)
    new, old = Ledger(target), Ledger(source)
    assert new.entries() == old.entries()
    assert len(new.entries()) == (3 if moment not in MARKED else 2)
    assert new.problems() == old.problems() == []
    assert old.moved_to == new.name
    assert new.book().lineage == old.book().lineage
    with pytest.raises(AlreadyReleasedError, match="same secret"):
        new.intend(granted("4" * 64, OTHER))
    assert run(["ledger", "copy", source, target]) == 0


def test_the_steps_of_a_copy(both):
    """Else a kill is after a step that is not there any more."""
    source, target = both
    steps = list(copying(Ledger(source), Ledger(target)))
    assert [step.name for step in steps] == ["incoming", "filled", "moved", "arrived"]
    assert [step.is_alone for step in steps] == [False, True, False, False]


@pytest.fixture
def incoming(both):
    """The old one is open, the new one filled."""
    source, target = both
    assert in_a_child(lambda: killed_after("filled")(source, target)) == -signal.SIGKILL
    return source, target


def test_an_incoming_ledger_can_be_read_and_nothing_else(incoming, place, tmp_path, capsys):
    source, target = incoming
    new = Ledger(target)
    assert new.is_incoming
    assert new.entries() == Ledger(source).entries()
    entry = new.entries()[1]
    for call in (
        lambda: new.intend(granted(THREE, ("third",))),
        lambda: new.record_drawn(entry, "{}"),
        lambda: new.give_up(entry),
        lambda: new.check_free(granted(THREE, ("third",))),
        lambda: copied(target, place("file")),
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
        copied(other.name, target)
    assert other.moved_to is None
    # the old one is open still, and may move elsewhere; then the first never opens
    elsewhere = Ledger(place("file"))
    assert copied(source, elsewhere.name) == 2
    with pytest.raises(LedgerError, match="before; use that one"):
        copied(source, target)
    assert [is_open(x) for x in (source, target)] == [False, False]
    assert elsewhere.releases() == [ONE, TWO]


def test_a_new_ledger_without_releases_can_be_filled(both):
    source, target = both
    new = Ledger(target)
    new.make()
    new_id = new.id
    assert copied(source, target) == 2
    assert (new.id, new.is_incoming) == (new_id, False)


@pytest.mark.soundness
def test_an_older_mark_does_not_open_a_ledger_for_another_source(tmp_path):
    """A ledger without releases moved here; then another one begins to move to the same place."""
    empty, old, new = (str(tmp_path / name) for name in ("empty", "old", "new"))
    Ledger(empty).make()
    copied(empty, new)
    filled(Ledger(old))
    with pytest.raises(LedgerError, match="has entries"):
        copied(old, new)
    copied(empty, new)
    assert (is_open(old), is_open(new)) == (True, True)


def test_a_damaged_ledger_is_not_copied(tmp_path):
    old, new = Ledger(tmp_path / "old"), Ledger(tmp_path / "new")
    lived(old)
    old.path.write_bytes(old.path.read_bytes().replace(b"intended", b"intendex"))
    with pytest.raises(LedgerError, match="old' is damaged"):
        finished(copying(old, new))
    assert new.is_incoming
    with pytest.raises(LedgerError, match="old' is damaged"):
        copied(old.path, new.path)


@pytest.mark.soundness
def test_a_ledger_with_releases_is_not_filled(both):
    source, target = both
    lived(Ledger(target), THREE)
    with pytest.raises(LedgerError, match="has entries"):
        copied(source, target)
    assert is_open(source)
    assert Ledger(target).releases() == [THREE]


@pytest.mark.soundness
def test_an_incoming_ledger_with_other_entries_is_not_filled(incoming):
    """The old one was restored and went on with other releases."""
    source, target = incoming
    old = Ledger(source)
    restored = Ledger(f"{source}x" if "://" in source else f"{source}.restored")
    restored.make()
    with restored.alone() as transaction:
        transaction.execute("UPDATE identity SET id = ?", (old.id,))
    lived(restored, THREE)
    with pytest.raises(LedgerError, match="has other entries"):
        copied(restored.name, target)
    assert restored.moved_to is None


def test_a_ledger_that_went_away_after_the_copy_is_not_made_anew(tmp_path):
    old, new = str(tmp_path / "old"), tmp_path / "new"
    filled(Ledger(old))
    copied(old, new)
    new.unlink()
    with pytest.raises(LedgerError, match="if it is gone, restore"):
        copied(old, new)
    assert not new.exists()
    lived(Ledger(new))
    with pytest.raises(LedgerError, match="if it is gone, restore"):
        copied(old, new)


def test_no_ledger_is_copied_to_itself(tmp_path, both):
    source, _ = both
    with pytest.raises(LedgerError, match="to itself"):
        copied(source, source)
    assert is_open(source)
    if "://" not in source:
        (tmp_path / "link").symlink_to(source)
        with pytest.raises(LedgerError, match="to itself"):
            copied(source, tmp_path / "link")


@pytest.mark.soundness
def test_a_copy_that_lost_something_is_noticed_before_the_mark(both, monkeypatch):
    source, target = both
    fill = commands._fill
    monkeypatch.setattr(commands, "_fill", lambda *args: fill(*args[:-2], args[-2][:3], args[-1]))
    with pytest.raises(LedgerError, match="does not hold what"):
        copied(source, target)
    monkeypatch.undo()
    assert (is_open(source), is_open(target)) == (True, False)
    assert copied(source, target) == 2


def _release_while_open(source, number, results):
    """Intend one after another until the ledger is closed."""
    intended = []
    with contextlib.suppress(LedgerError):
        for k in range(200):
            certificate = f"{number:032x}{k:032x}"
            Ledger(source).intend(granted(certificate, (certificate,)))
            intended.append(certificate)
    results.put(intended)


def _copy(source, target, results):
    try:
        copied(source, target)
        results.put("copied")
    except LedgerError as error:
        results.put(str(error))


@pytest.mark.soundness
@pytest.mark.parametrize("direction", DIRECTIONS, ids="-".join)
def test_releases_race_against_copies(place, direction):
    """What the old one accepted is in the new one."""
    source, target = (place(kind) for kind in direction)
    Ledger(source).intend(granted(ONE))
    context = multiprocessing.get_context("fork")
    releases, copies = context.Queue(), context.Queue()
    processes = [
        context.Process(target=_release_while_open, args=(source, k, releases)) for k in range(3)
    ]
    for process in processes:
        process.start()
    while len(Ledger(source).releases()) < 10:
        pass
    copies_made = [context.Process(target=_copy, args=(source, target, copies)) for _ in range(2)]
    for process in copies_made:
        process.start()
    told = [copies.get(timeout=100) for _ in copies_made]
    accepted = {ONE, *(name for _ in processes for name in releases.get(timeout=100))}
    for process in processes + copies_made:
        process.join()
    assert told == ["copied"] * 2
    assert copied(source, target) == len(accepted)
    assert (is_open(source), is_open(target)) == (False, True)
    assert set(Ledger(target).releases()) == accepted
