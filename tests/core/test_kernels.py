# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import numpy as np
import pytest

from pufferslice._core import kernels
from pufferslice._core.kernels import kernel

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
    assert _doubled.compiled.signatures
    assert _doubled.compiled.stats.cache_path is not None


def test_a_kernel_gives_up_the_interpreter_lock_and_keeps_ieee_rounding():
    options = _doubled.compiled.targetoptions
    assert options["nogil"] is True
    assert not options.get("parallel", False)
    assert not options.get("fastmath", False)


def test_a_function_that_has_no_place_for_a_cache_is_compiled_all_the_same():
    names = {}
    exec(compile(TEXT, "<no file>", "exec"), names)  # noqa: S102 - our own text, no file behind it
    add = kernel(names["add"])
    assert add(2, 3) == 5
    assert add.compiled.signatures
    assert add.compiled.stats.cache_path is None


def test_noise_is_drawn_where_the_cache_folder_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.touch()
    script = (
        "from pufferslice._core.sampler import SeededTestNoise as S; "
        "print(len(S(seed=1).draw(100_000)))"
    )
    done = run_python(
        script,
        NUMBA_CACHE_DIR=str(file / "below"),
        NUMBA_CACHE_LOCATOR_CLASSES="UserProvidedCacheLocator",
    )
    assert (done.returncode, done.stdout) == (0, "100000\n"), done.stderr


def test_another_failure_of_numba_is_not_hidden(monkeypatch):
    def broken(function):
        raise RuntimeError("unknown locator")

    monkeypatch.setattr(kernels, "_cache_of", broken)
    with pytest.raises(RuntimeError, match="unknown locator"):
        kernel(lambda: 0)()


INNER = """
from pufferslice._core.kernels import kernel

@kernel
def inner(x):
    return x * {factor}
"""
OUTER = """
from inner import inner
from pufferslice._core.kernels import kernel

LANES = {lanes}

@kernel
def outer(x):
    return inner(x) + LANES

print(outer(1.0), sum(outer.compiled.stats.cache_hits.values()))
"""


@pytest.mark.soundness
def test_machine_code_is_made_again_when_what_it_calls_or_reads_changes(tmp_path):
    """numba itself looks at the kernel's own file only."""
    found = []
    for factor, lanes in ((2.0, 8), (2.0, 8), (3.0, 8)):
        (tmp_path / "inner.py").write_text(INNER.format(factor=factor))
        outer = OUTER.format(lanes=lanes)
        if not (tmp_path / "outer.py").exists():
            (tmp_path / "outer.py").write_text(outer)
        done = subprocess.run(
            [sys.executable, "-B", "outer.py"],
            cwd=tmp_path,
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        found.append(done.stdout.split())
    assert found == [["10.0", "0"], ["10.0", "1"], ["11.0", "0"]]


def test_constants_of_a_kernel_are_part_of_its_key():
    names = {"LANES": 8, "kernel": kernel}
    exec(compile("def f(x):\n    return x + LANES", __file__, "exec"), names)  # noqa: S102 - ours
    before = b"".join(kernels._ingredients(names["f"], set()))
    names["LANES"] = 16
    assert b"".join(kernels._ingredients(names["f"], set())) != before


def run_python(script, **variables):
    return subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
