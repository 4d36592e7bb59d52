# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing of one reader with atheris (which `make soak` installs).

    python -m soak.fuzz.atheris_readers certificate 20000 1

The reader, how many inputs, and the seed. An input on which anything but a library error is raised
ends the run with an error, and lies beside as crash-*.
"""

import re
import sys
import tempfile
from pathlib import Path

import atheris

SOURCE = Path(__file__).resolve().parents[2] / "src"
COMPILED = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in sorted(SOURCE.rglob("*.py"))
    if re.search(r"^@(summing_|small_)?kernel$", path.read_text(encoding="utf-8"), re.MULTILINE)
]
"""Compiled by numba, which cannot read instrumented code."""

with atheris.instrument_imports(include=["pufferslice"], exclude=COMPILED):
    from soak.fuzz.readers import good_files, read

    import pufferslice.torch.checkpoint  # noqa: F401 - imported late by its reader


def main() -> None:
    name, runs, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    folder = Path(tempfile.mkdtemp(prefix="corpus-"))
    good = good_files()[name]
    (folder / "good").write_bytes(good)
    (folder / "cut").write_bytes(good[: len(good) // 2])
    longest = max(4096, 2 * len(good))
    options = [
        f"-runs={runs}", f"-seed={seed % 2**31 or 1}", f"-max_len={longest}",
        "-print_final_stats=1", "-timeout=60", "-rss_limit_mb=4096", f"-artifact_prefix={folder}/",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(folder)], lambda raw: read(name, raw))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
