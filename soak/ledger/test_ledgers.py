# SPDX-License-Identifier: Apache-2.0
"""A hundred thousand orders of the commands of a ledger, and twenty processes that race."""

import os
import secrets

import pytest
from soak.ledger.explore import explore_at_once
from soak.ledger.races import race
from soak.sizes import IS_SAMPLE, SIZE
from tests.releases.conftest import running_server

PROCESSES = 1 if IS_SAMPLE else os.cpu_count() or 1


@pytest.mark.soundness
def test_orders_on_files(seed):
    row = explore_at_once("files", SIZE.orders, seed, PROCESSES, None)
    assert row["schedules"] == SIZE.orders


@pytest.mark.soundness
@pytest.mark.soak
def test_orders_in_databases(seed):
    with running_server() as server:
        row = explore_at_once("databases", SIZE.orders // 10, seed, PROCESSES, server.address)
    assert row["schedules"] == SIZE.orders // 10


@pytest.mark.soundness
@pytest.mark.parametrize("store", ["files", "databases"])
def test_of_many_processes_one_releases_in_each_round(store, tmp_path):
    with running_server() as server:
        run, n_rounds = secrets.token_hex(4), SIZE.rounds
        places = {
            "files": [str(tmp_path / f"{k}.ledger") for k in range(n_rounds)],
            "databases": [server.address(f"race{run}_{k}") for k in range(n_rounds)],
        }
        assert race(places[store], SIZE.racers, tmp_path / "marks") == [1] * n_rounds
