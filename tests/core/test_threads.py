# SPDX-License-Identifier: Apache-2.0
"""Threads: results in the order of the items, errors come through, progress adds up."""

import threading
import time

import pytest

from pufferslice._core.threads import in_threads, n_cores


def test_order_of_the_items_whatever_finishes_first():
    def work(k):
        time.sleep(0.002 * (k % 3 == 0))
        return k * k

    assert in_threads(work, list(range(50))) == [k * k for k in range(50)]


def test_more_than_one_thread_where_there_is_more_than_one_core():
    if n_cores() == 1:
        assert in_threads(lambda _: threading.get_ident(), range(2)) != []
        return
    # Two pieces that wait for each other finish only if they run at the same time.
    meeting = threading.Barrier(2, timeout=20)
    assert sorted(in_threads(lambda _: meeting.wait(), [0, 1])) == [0, 1]


def test_an_error_comes_through():
    def work(k):
        if k == 7:
            raise KeyError(k)
        return k

    with pytest.raises(KeyError, match="7"):
        in_threads(work, list(range(20)))


def test_progress_counts_every_piece_once():
    seen = []
    in_threads(lambda k: k, list(range(9)), lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen][-1] == 9
    assert sorted(done for done, _ in seen) == [done for done, _ in seen]
    assert {total for _, total in seen} == {9}
