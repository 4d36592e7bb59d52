# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import numpy as np
import pytest

from pufferslice.compiled import kernel

TEXT = """
def add(first, second):
    return first + second
"""


@kernel
def _doubled(values):
    for i in range(len(values)):
        values[i] *= 2
    return len(values)


def test_a_kernel_is_compiled_and_cached():
    values = np.array([1.0, 2.0])
    assert _doubled(values) == 2
    assert values.tolist() == [2.0, 4.0]
    assert _doubled.signatures
    assert _doubled.stats.cache_path is not None


def test_a_kernel_gives_up_the_interpreter_lock_and_keeps_ieee_rounding():
    options = _doubled.targetoptions
    assert options["nogil"] is True
    assert not options.get("parallel", False)
    assert not options.get("fastmath", False)


def test_a_function_that_has_no_place_for_a_cache_is_compiled_all_the_same():
    names = {}
    exec(compile(TEXT, "<no file>", "exec"), names)  # noqa: S102 - our own text, no file behind it
    add = kernel(names["add"])
    assert add(2, 3) == 5
    assert add.signatures
    assert add.stats.cache_path is None


def test_noise_is_drawn_where_the_cache_folder_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.touch()
    script = "from pufferslice.noise import SeededTestNoise as S; print(len(S(seed=1).draw(5)))"
    done = run_python(script, "UserProvidedCacheLocator", NUMBA_CACHE_DIR=str(file / "below"))
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


def test_another_failure_of_numba_is_not_hidden():
    script = "from pufferslice.compiled import kernel; kernel(lambda: 0)"
    done = run_python(script, "NoSuchLocator")
    assert done.returncode == 1
    assert "RuntimeError: Unknown cache locator class: 'NoSuchLocator'" in done.stderr


def test_what_is_not_a_function_is_refused():
    with pytest.raises(TypeError):
        kernel(3)


def run_python(script, locator, **variables):
    """Run a script where numba looks for its cache folder in one way only."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"NUMBA_CACHE_LOCATOR_CLASSES": locator} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
