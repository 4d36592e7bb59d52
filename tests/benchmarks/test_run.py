# SPDX-License-Identifier: Apache-2.0
"""The benchmark runner, on small benchmarks made for it."""

import importlib.util
import platform
import sys

import pytest

NO_BENCHMARKS = {"run", "rows", "process_memory"}
"""Modules beside the benchmarks that measure nothing themselves."""


@pytest.fixture
def run(repository):
    spec = importlib.util.spec_from_file_location("run", repository / "benchmarks" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """One benchmark that meets its goal, one without a goal, and a module that is no benchmark."""
    benchmark(tmp_path, "sample_quick", name="a | b", goal=">= 3", met=True)
    benchmark(tmp_path, "sample_plain", name="plain", goal=None, met=None)
    (tmp_path / "sample_timing.py").write_text("clock = 1\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("sample_")]:
        del sys.modules[name]


def benchmark(folder, module, *, name, goal, met):
    row = {"name": name, "ours": 0.5, "peer": "2 s", "ratio": 4.0, "goal": goal, "met": met}
    text = f"def measure():\n    return [{row!r}]\n"
    (folder / f"{module}.py").write_text(text, encoding="utf-8")


def test_all_benchmarks_make_one_table(run, folder, capsys):
    assert run.main(["--folder", str(folder)]) == 0
    written = (folder / "table.md").read_text(encoding="utf-8")
    assert written.splitlines()[-4:] == [
        "| name | ours | peer | ratio | goal | met |",
        "| --- | --- | --- | --- | --- | --- |",
        "| plain | 0.5 | 2 s | 4 | - | - |",
        "| a \\| b | 0.5 | 2 s | 4 | >= 3 | yes |",
    ]
    assert capsys.readouterr().out.strip() == written.strip()


def test_table_tells_cores_and_versions_but_not_the_host(run, monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "secret-host")
    facts = run.machine()
    assert "cores" in facts
    assert f"Python {platform.python_version()}" in facts
    assert "numpy 2" in facts
    assert "secret-host" not in facts


def test_only_prints_one_and_writes_nothing(run, folder, capsys):
    assert run.main(["--folder", str(folder), "--only", "sample_quick"]) == 0
    out = capsys.readouterr().out
    assert "a \\| b" in out
    assert "plain" not in out
    assert not (folder / "table.md").exists()


def test_a_missed_goal_is_told_by_the_exit_code(run, folder):
    benchmark(folder, "sample_slow", name="slow", goal=">= 5", met=False)
    assert run.main(["--folder", str(folder)]) == 1
    assert "| slow | 0.5 | 2 s | 4 | >= 5 | **no** |" in (folder / "table.md").read_text()


def test_unknown_name_is_wrong_use(run, folder, capsys):
    with pytest.raises(SystemExit, match="2"):
        run.main(["--folder", str(folder), "--only", "nothing"])
    assert "--only must be one of sample_plain, sample_quick" in capsys.readouterr().err


def test_a_row_with_other_keys_is_refused(run, folder):
    text = 'def measure():\n    return [{"name": "x"}]\n'
    (folder / "sample_wrong.py").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="sample_wrong: a row must have the keys name, ours"):
        run.main(["--folder", str(folder)])
    assert not (folder / "table.md").exists()


def test_every_benchmark_can_be_imported(run, repository, monkeypatch):
    pytest.importorskip("opacus")
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    modules = {path.stem for path in (repository / "benchmarks").glob("*.py")}
    assert set(run.benchmarks(repository / "benchmarks")) == modules - NO_BENCHMARKS
    for name in modules - before:
        sys.modules.pop(name, None)


def test_a_package_that_is_absent_is_named_so(run):
    assert run.version("no-such-package-at-all") == "not installed"
