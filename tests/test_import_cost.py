# SPDX-License-Identifier: Apache-2.0
"""What `import pufferslice` loads, and how long it takes."""

import subprocess
import sys

import pytest

HEAVY = {
    "dask",
    "matplotlib",
    "opacus",
    "pandas",
    "plotly",
    "polars",
    "scipy.stats",
    "sklearn",
    "torch",
}
IMPORT = "import pufferslice"
IMPORT_AND_RESOLVE = "import pufferslice as ps; [getattr(ps, name) for name in ps.__all__]"


@pytest.mark.parametrize("statement", [IMPORT, IMPORT_AND_RESOLVE])
def test_import_loads_nothing_heavy(statement):
    loaded = run(f"{statement}\nimport sys\nprint(*sys.modules)").split()
    assert "pufferslice" in loaded
    assert not HEAVY.intersection(loaded)


def test_import_alone_loads_no_third_party():
    loaded = run(f"{IMPORT}\nimport sys\nprint(*sys.modules)").split()
    assert not {"attrs", "numba", "numpy", "pyarrow", "scipy"}.intersection(loaded)


@pytest.mark.parametrize("statement", [IMPORT, IMPORT_AND_RESOLVE])
def test_import_takes_under_a_second_warm(statement):
    code = (
        f"import time\nstart = time.perf_counter()\n{statement}\nprint(time.perf_counter() - start)"
    )
    # The best of a few runs: the first warms the disk, and other work on the machine only adds.
    assert min(float(run(code)) for _ in range(4)) < 1.0


def run(code):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
