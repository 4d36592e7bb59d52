# SPDX-License-Identifier: Apache-2.0
"""Blocks in flight: in order, few at a time, one thread each, and torch left as it was."""

import signal
import threading
import time
from contextlib import closing

import pytest
import torch

from pufferslice.torch.block_pool import BlockPool


@pytest.fixture(params=[1, 2, 5])
def pool(request):
    return BlockPool(request.param)


@pytest.fixture(params=[1, 2, 3])
def n_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_order(pool):
    assert list(pool.each(lambda i: i * i, range(40))) == [i * i for i in range(40)]
    assert list(pool.each(lambda i: i, [])) == []


def test_torch_has_one_thread_inside_and_what_it_had_outside(pool, n_threads):
    seen = list(pool.each(lambda _: torch.get_num_threads(), range(10)))
    assert seen == [1] * 10
    assert torch.get_num_threads() == n_threads
    in_new_thread = []
    thread = threading.Thread(target=lambda: in_new_thread.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert in_new_thread == [n_threads]
    assert list(pool.each(lambda _: torch.get_num_threads(), range(10))) == [1] * 10


def test_an_error_comes_out_and_torch_is_left_as_it_was(pool, n_threads):
    def fails_at_three(i):
        if i == 3:
            raise ZeroDivisionError
        return i

    with (
        pytest.raises(ZeroDivisionError),
        closing(pool.each(fails_at_three, range(20))) as results,
    ):
        list(results)
    assert torch.get_num_threads() == n_threads
    assert list(pool.each(lambda i: i, range(5))) == [0, 1, 2, 3, 4]


def test_items_are_made_just_before_their_turn():
    made, done = [], []
    pool = BlockPool(2)

    def items():
        for i in range(30):
            made.append(i)
            yield i

    for result in pool.each(lambda i: i, items()):
        done.append(result)
        # two in threads, one waiting, one in hand
        assert len(made) - len(done) <= 3


def test_work_runs_at_once():
    both = threading.Barrier(2, timeout=30)
    assert sorted(BlockPool(2).each(lambda _: both.wait(), range(2))) == [0, 1]


def test_one_item_is_worked_on_where_the_others_are(pool, n_threads):
    own = threading.get_ident()
    place, inside = pool.once(lambda _: (threading.get_ident(), torch.get_num_threads()), 0)
    assert inside == 1
    assert torch.get_num_threads() == n_threads
    (there,) = pool.each(lambda _: threading.get_ident(), [0])
    assert (place == own) == (there == own)


def test_an_error_in_one_item_comes_out(pool):
    with pytest.raises(ZeroDivisionError):
        pool.once(lambda i: 1 // i, 0)


def test_an_interrupt_waits_for_the_one_item_that_is_worked_on():
    done = []

    def work(item):
        time.sleep(0.2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.2)
        done.append(item)

    # a worker of xdist ignores interrupts
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            BlockPool(2).once(work, 1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [1]
