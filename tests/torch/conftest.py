# SPDX-License-Identifier: Apache-2.0
"""What tests of training may ask for."""

import pytest

from pufferslice.learning.keys import RunKey
from pufferslice.torch.clipping import one_thread as kept_to_one_thread


@pytest.fixture(scope="module")
def one_thread():
    """Torch keeps to one thread, as it does for every block of a run."""
    with kept_to_one_thread():
        yield


@pytest.fixture
def same_key(monkeypatch):
    """All runs of a test have the same key."""
    monkeypatch.setattr(RunKey, "fresh", classmethod(lambda cls: cls.from_bytes(bytes(range(32)))))
