# SPDX-License-Identifier: Apache-2.0
"""The commands of a ledger in thousands of orders, with kills and restored backups between."""

import random
import tempfile
from pathlib import Path

import pytest
from tests.releases.explorer import (
    BUDGET,
    ONE,
    OTHER,
    PROGRAMS,
    SAME,
    Databases,
    Files,
    World,
    at_random,
    run,
)

from pufferslice.errors import LedgerError
from pufferslice.releases import commands, states
from pufferslice.releases.states import Book

N_SCHEDULES, N_IN_DATABASES = 82, 15
"""For each program: 2,028 in all, and more by `make soak`."""
MEMORY = Path("/dev/shm")  # noqa: S108 - a test makes a folder of its own there


@pytest.fixture
def folder(tmp_path):
    """A folder in memory where there is one: nothing here depends on a real disk."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        yield Path(place)


def schedules(program, folder, n_schedules, seed, store=Files):
    """Run random schedules, and return how many different ones there were."""
    different = set()
    for number in range(n_schedules):
        place = folder / f"{number}"
        place.mkdir()
        rng = random.Random(f"{seed} {program} {number}")
        different.add(run(PROGRAMS[program], World(store(place), place), at_random(rng)))
    return len(different)


@pytest.mark.soundness
@pytest.mark.parametrize("program", PROGRAMS)
def test_commands_in_any_order(program, folder, seed):
    assert schedules(program, folder, N_SCHEDULES, seed) > N_SCHEDULES // 4


QUICK = {"three at once", "copy and again", "budget", "restore"}
"""Programs that run in a database every time; `make soak` runs all of them."""


@pytest.mark.soundness
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.soak)
        for name, program in PROGRAMS.items()
        if not program.needs_files
    ],
)
def test_commands_in_any_order_in_databases(program, server, folder, seed):
    made = schedules(
        program, folder, N_IN_DATABASES, seed, store=lambda _: Databases(server.address)
    )
    assert made > N_IN_DATABASES // 4


def every_schedule(program, folder, most):
    """Run all schedules in turn, up to so many; return how many, and whether these are all."""
    script, number = [], 0
    while number < most:
        options = []

        def choose(n_waiting, n_mortal, script=script, options=options):
            place = len(options)
            options.append(n_waiting + n_mortal)
            return script[place] if place < len(script) else 0

        place = folder / f"{number}"
        place.mkdir()
        script = list(run(PROGRAMS[program], World(Files(place), place), choose))
        number += 1
        while script and script[-1] + 1 == options[len(script) - 1]:
            script.pop()
        if not script:
            return number, True
        script[-1] += 1
    return number, False


def test_every_schedule_is_another_one(folder):
    n_run, is_all = every_schedule("copy and again", folder, 60)
    assert (n_run, is_all) == (60, False)
    n_run, is_all = every_schedule("migrate", folder, 5)
    assert n_run == 5


@pytest.fixture
def world(folder):
    for name in ("marks", "out"):
        (folder / name).mkdir()
    return World(Files(folder), folder)


def overtaken(world, first, second):
    """A release on its way, and what the marks of another one say after it was recorded.

    The slow one looked before there were marks. The quick one was handed out from a branch of the
    ledger that a backup has replaced, and is found again between the draw and the handing out of
    the slow one.
    """
    (grant, said), (slow_grant, slow_said) = first, second
    commands.finished(world.create())
    backup = world.store.backup("a")
    slow = world.release(slow_grant, **slow_said)
    assert next(slow).name == "looked"
    commands.finished(world.release(grant, **said))
    world.has_restored = True
    world.store.restore("a", backup)
    while next(slow).name != "drawn":
        pass
    commands.finished(world.reconcile())
    return slow


TABLE, MATRIX = {"part": "table"}, {"part": "matrix"}


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((ONE, {}), (ONE, {})),
        ((SAME, {}), (ONE, {})),
        ((BUDGET, TABLE | {"charge": "2/3"}), (BUDGET, TABLE | {"charge": "1/2"})),
        (
            (BUDGET, MATRIX | {"directions": [[1.0, 0.0]]}),
            (BUDGET, MATRIX | {"directions": [[0.6, 0.8]]}),
        ),
    ],
    ids=["one certificate", "one secret", "one part", "one matrix"],
)
def test_a_release_that_was_overtaken_is_not_handed_out(world, first, second):
    slow = overtaken(world, first, second)
    with pytest.raises(LedgerError, match="another one was handed out in its place"):
        commands.finished(slow)
    assert world.drawn == 2
    assert [each.noise for each in world.handed] == [1]
    commands.finished(world.again(first[0]))  # the first one, whose file has its numbers
    assert [each.noise for each in world.handed] == [1, 1]
    world.check()


@pytest.mark.soundness
def test_a_drawn_release_that_was_overtaken_stays_in_the_ledger(world):
    """Not even when it is asked for: the certificate of the same secret was handed out."""
    slow = overtaken(world, (SAME, {}), (ONE, {}))
    slow.close()  # killed before it looked again
    with pytest.raises(LedgerError, match="another one was handed out in its place"):
        commands.finished(world.again(ONE))
    assert [each.noise for each in world.handed] == [1]
    world.check()


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((OTHER, {}), (ONE, {})),
        ((BUDGET, TABLE | {"charge": "1/3"}), (BUDGET, TABLE | {"charge": "2/3"})),
    ],
    ids=["another secret", "one part"],
)
def test_what_was_found_meanwhile_leaves_room_for_others(world, first, second):
    commands.finished(overtaken(world, first, second))
    assert [each.noise for each in world.handed] == [1, 2]
    world.check()


def no_check(*_):
    return None


def any_state(kind):
    """A transition that does not look at the state that a release is in."""

    def advance(book, event, fields):
        entry = book.entries[event.release]
        content = fields.get("content", entry.content)
        book.entries[entry.number] = states.attrs.evolve(entry, state=kind, content=content)

    return advance


def opened(name, source, moved, target):
    """Opens the new ledger before the old one says that it moved."""


def handing_out_first(releasing):
    """A release whose file is written before its mark."""

    def changed(ledger, grant, intent, outside, *, draw, text, hand_out):
        def draw_and_hand_out(entry):
            result = draw(entry)
            hand_out(result)
            return result

        return releasing(
            ledger, grant, intent, outside, draw=draw_and_hand_out, text=text, hand_out=no_check
        )

    return changed


MUTANTS = {
    "one certificate for one secret": (
        "two certificates of one secret",
        lambda patch: patch.setattr(Book, "check_free", no_check),
    ),
    "more of a matrix than was declared": (
        "matrix",
        lambda patch: patch.setattr(Book, "_check_precision", no_check),
    ),
    "more than was granted": ("budget", lambda patch: patch.setattr(Book, "_check_room", no_check)),
    "marks before the intent": (
        "restore",
        lambda patch: (
            patch.setattr(Book, "check_marks", no_check),
            patch.setattr(Book, "check_kept", no_check),
        ),
    ),
    "the look before handing out": (
        "restore",
        lambda patch: patch.setattr(commands, "_check_again", no_check),
    ),
    "the result before it is handed out": (
        "void",
        lambda patch: patch.setattr(
            "tests.releases.explorer.releasing", handing_out_first(commands.releasing)
        ),
    ),
    "nothing is drawn after it was given up": (
        "void",
        lambda patch: patch.setitem(states.TRANSITIONS, "drawn", any_state("drawn")),
    ),
    "nothing is given up after it was drawn": (
        "again and void",
        lambda patch: patch.setitem(states.TRANSITIONS, "void", any_state("void")),
    ),
    "a ledger that moved is closed": (
        "copy",
        lambda patch: (
            patch.setattr(Book, "check_open", no_check),
            patch.setattr(Book, "check_marks", no_check),
        ),
    ),
    "an incoming ledger is closed": (
        "copy",
        lambda patch: patch.setattr("pufferslice.releases.ledger.Ledger._check_arrived", no_check),
    ),
    "earlier releases": (
        "migrate",
        lambda patch: patch.setattr(
            "pufferslice.releases.earlier._fill", lambda target, t, earlier: target
        ),
    ),
}


@pytest.mark.soundness
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(name, marks=[] if number % 3 == 0 else pytest.mark.soak)
        for number, name in enumerate(MUTANTS)
    ],
)
def test_the_explorer_notices_what_is_left_out(mutant, folder, seed, monkeypatch):
    """Each rule, taken away, breaks the end of some schedule."""
    program, change = MUTANTS[mutant]
    change(monkeypatch)
    with pytest.raises(AssertionError):
        schedules(program, folder, 400, seed)
