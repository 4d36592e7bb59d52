# SPDX-License-Identifier: Apache-2.0
"""Damaged files: every reader refuses them with one of the library's errors, or reads a value."""

import io
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soak.fuzz.odd import damaged
from soak.fuzz.readers import READERS, good_files, read
from soak.sizes import SIZE


@pytest.fixture(scope="session")
def files():
    return good_files()


@pytest.mark.parametrize("name", READERS)
def test_good_files_are_read(files, name):
    assert read(name, files[name])


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@settings(
    max_examples=SIZE.files,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
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
@pytest.mark.parametrize("number", range(SIZE.guided_readers))
def test_coverage_guided(seed, number, repository):
    """The seed decides which readers; `make soak` installs the fuzzer."""
    pytest.importorskip("atheris")
    name = np.random.default_rng(seed).permutation(list(READERS))[number]
    counts = [str(SIZE.guided_files), str(seed)]
    command = [sys.executable, "-m", "soak.fuzz.atheris_readers", name, *counts]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{name}: {done.stderr[-4000:]}"
