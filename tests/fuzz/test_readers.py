# SPDX-License-Identifier: Apache-2.0
"""Damaged files: every reader refuses them with one of the library's errors, or reads a value."""

import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.odd import damaged
from tests.fuzz.readers import READERS, good_files, read

RUNS = 20_000
"""Of the coverage-guided fuzzer, for each reader in `make soak`."""


@pytest.fixture(scope="session")
def files():
    return good_files()


@pytest.mark.parametrize("name", READERS)
def test_good_files_are_read(files, name):
    assert read(name, files[name])


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_damaged_files(files, name, data):
    read(name, data.draw(damaged(files[name])))


class Bomb:
    """Unpickling it would make a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", READERS)
def test_no_reader_runs_a_pickle(name, tmp_path):
    import io

    import numpy as np
    import torch

    target = str(tmp_path / "made")
    archive, saved = io.BytesIO(), io.BytesIO()
    np.savez(archive, facts=np.array([Bomb(target)], dtype=object))
    torch.save({"format": Bomb(target)}, saved)
    for raw in (pickle.dumps(Bomb(target)), archive.getvalue(), saved.getvalue()):
        assert not read(name, raw)
    assert not (tmp_path / "made").exists()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", READERS)
def test_coverage_guided(seed, name, repository, tmp_path):
    pytest.importorskip("atheris", reason="`make soak` installs it")
    command = [sys.executable, "-m", "tests.fuzz.atheris_readers", name, str(RUNS), str(seed)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
