# SPDX-License-Identifier: Apache-2.0
# /// script
# dependencies = ["nox>=2025.2.9"]
# ///
"""Environments that `make` does not have: every Python, and the oldest dependencies.

`pip install nox`, then `nox --list`; the workflows run the same sessions.
"""

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True

PYTHONS = nox.project.python_versions(nox.project.load_toml("pyproject.toml"))
"""Those of the classifiers."""
EXACT = ("-c", "constraints.txt")
OLDEST = (
    *("pytest", "pytest-timeout", "hypothesis", "matplotlib", "mpmath", "jsonschema", "pandas<3"),
    *("polars", "POT", "opacus", "build", "hatchling", "mkdocstrings[python]", "mkdocs-material"),
    "selenium",
)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """All tests, with the versions of constraints.txt; arguments go to pytest."""
    session.install(*EXACT, "-e", ".[all]", "--group", "dev")
    session.run("pytest", *(session.posargs or ("-n", "auto", "--dist", "worksteal")))


@nox.session(python=PYTHONS[0])
def lint(session: nox.Session) -> None:
    """The commands of `make lint`."""
    session.install(*EXACT, "-e", ".[all]", "--group", "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy", "--strict", "src")
    session.run("lint-imports", "--no-logo")


@nox.session(python=PYTHONS[0], default=False)
def docs(session: nox.Session) -> None:
    """The documentation, warnings as errors, into site/."""
    session.install(*EXACT, "-e", ".", "--group", "docs")
    session.run("mkdocs", "build", "--strict")


@nox.session(python=PYTHONS[0], default=False)
def lowest(session: nox.Session) -> None:
    """The tests with the oldest versions that pyproject.toml admits.

    Three exceptions: the oldest matplotlib warns with today's pyparsing, the oldest pyarrow does
    not know the strings of pandas 3, and tests/test_layers.py needs a newer rich.
    """
    session.install("-c", "tests/lower-bounds.txt", ".[all]", *OLDEST)
    session.run(
        *("pytest", "-W", "ignore::DeprecationWarning", "--ignore", "tests/test_layers.py"),
        *("--deselect", "tests/test_packaging.py::test_what_is_installed_is_what_is_locked"),
        *(session.posargs or ("tests",)),
    )


if __name__ == "__main__":
    nox.main()
