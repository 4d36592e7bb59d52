# SPDX-License-Identifier: Apache-2.0
"""Run every benchmark beside this file and write one table.

A benchmark is a module with `measure() -> list[dict]`, one dict per row of the table: `name`,
`ours`, `peer`, `ratio`, `goal` (text, numbers or None) and `met` (bool, or None without a goal).
"""

import argparse
import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLUMNS = ("name", "ours", "peer", "ratio", "goal", "met")
PACKAGES = ("numpy", "scipy", "numba", "pyarrow", "POT", "opendp", "torch", "opacus")

Row = dict[str, object]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write the table if everything was measured; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description="Run the benchmarks and write one table.")
    parser.add_argument("--only", metavar="NAME", help="one module; printed, nothing written")
    parser.add_argument("--folder", type=Path, default=HERE, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    found = benchmarks(options.folder)
    if options.only is not None and options.only not in found:
        parser.error(f"--only must be one of {', '.join(found)}; got {options.only!r}")
    rows = measure({options.only: found[options.only]} if options.only else found)
    text = table(rows)
    print(text)
    if options.only is None:
        (options.folder / "table.md").write_text(text, encoding="utf-8")
    return int(any(row["met"] is False for row in rows))


def benchmarks(folder: Path) -> dict[str, Callable[[], list[Row]]]:
    """The `measure` function of each module in `folder` that has one, by module name."""
    # The root of the repository is for `reproduction`, which is not installed.
    for place in (HERE.parent, folder):
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem != Path(__file__).stem)
    modules = {name: importlib.import_module(name) for name in names}
    return {name: module.measure for name, module in modules.items() if hasattr(module, "measure")}


def measure(chosen: dict[str, Callable[[], list[Row]]]) -> list[Row]:
    """The rows of all chosen benchmarks, one after the other."""
    rows: list[Row] = []
    for name, function in chosen.items():
        print(f"measuring {name}", file=sys.stderr, flush=True)
        for row in function():
            if set(row) != set(COLUMNS):
                raise ValueError(
                    f"{name}: a row must have the keys {', '.join(COLUMNS)}; got {sorted(row)}"
                )
            rows.append(row)
    return rows


def table(rows: list[Row]) -> str:
    """Markdown: how it was made, on what kind of machine, and one line per row."""
    lines = [
        "# Benchmarks",
        "",
        "Made by `make bench`. Both sides of a ratio are measured in the same run.",
        "",
        machine(),
        "",
        line(COLUMNS),
        line("---" for _ in COLUMNS),
        *(line(cell(row[column]) for column in COLUMNS) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Cores and versions; nothing that names the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = [f"{name} {version(name)}" for name in PACKAGES]
    python = f"Python {platform.python_version()}"
    return ", ".join([f"{cores} cores", platform.machine(), python, *versions]) + "."


def version(package: str) -> str:
    """The installed version, or that there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def line(cells: Iterable[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def cell(value: object) -> str:
    """How a value is shown."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
